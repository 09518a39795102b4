# ---
# jupyter:
#   course:
#     minutes: 110
#     quick:
#       parameters:
#         updates: 10
#         few: 3
#         tokens: 12_288
#         rounds: 1
#         rates: none
#         options: --text TROUBLESHOOTING.md --batch 16
#         tries: 0
#       seconds: 55
#     seconds: 240
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16 · A language model
#
# **The question.** You get a training program of a language model, written for one process. Can you make it train on
# many ranks, and prove that it is still the same training?
#
# **At its end** there is `mine/gpt_ranks.py`: a GPT that trains on any number of ranks, with DDP and sharded, equal to
# one process in float64. What it writes has words. You have chosen a strategy under a budget of memory, and you know on
# which network your ranks beat one process.
#
# **You need** [06](06_ddp.ipynb) and [07](07_traps.ipynb); for the second part of the exam and the budget
# [13](13_shard_kept.ipynb).
#
# **Time.** About 110 minutes for you, 4 for the machine. Half of yours are for the exam.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

from course import dial, one_process
from lessons.l16_language_model import check, show

os.environ |= {"OMP_NUM_THREADS": "1", "EVERY": "10"}  # one thread per rank; EVERY divides the updates: lesson 15
live = "results/live/16"

# %% tags=["parameters"]
ranks = 2  # processes on the CPU, also where there are GPUs
updates = 800  # of the long training
few = 12  # updates that are compared with one process
options = "--batch 16"  # of these trainings; and "--text FILE" learns from another text than Python's manual
tokens = 184_320  # of each training under the budget
rates = "20mbit 300mbit none"  # of the network, where tokens per second are measured
rounds = 7  # of each way
tries = 3  # of the course's own, under the budget

# %% [markdown]
# ## The model, before it has learnt
#
# The model is the small GPT of the lessons before. It predicts the next *byte*, so a **token** is a byte here, and the
# vocabulary has 256 entries. Its text is the manual that comes with Python, nearly half a million bytes; the last tenth
# is held out. An update draws some places in the text, and reads 65 bytes from each: a **crop**.
#
# Not every byte of a crop is a **target**, one that the model learns to predict. In exam version A, a crop ends with
# its paragraph: what follows a blank line belongs to something else, and is padding.
#
# **Predict.** What is the loss before the first update? An untrained model gives all 256 bytes about the same
# probability. The loss is minus the natural logarithm of the probability of the right one.

# %%
my_first_loss = None

# %%
# !torchrun --nproc_per_node=1 lessons/l16_language_model/text_a.py --updates 0 {options} > {live}_before.txt
# !head -1 {live}_before.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
before = Path(f"{live}_before.txt").read_text()
lesson.predicted(my_first_loss, show.reports(before)[0][1], what="loss before the first update")

# %% [markdown]
# ## The exam
#
# Here is the program, in one process. The process group exists already. Delete the first line of `train`, and change
# what must change. One demand holds:
#
# > On any number of ranks your program trains what one process trains, and prints the same.
#
# On the command line, `--batch` counts the crops per update of all ranks together, and `--accumulate` the micro-batches
# of each rank. Both fit: `--batch` is a multiple of ranks times micro-batches.
#
# The check runs your `train` on 2, 3 and 1 ranks with a small text in float64, beside the program as it stands here,
# and compares each update. Rounding is tiny there: a loss that is off by 0.01 % is a mistake. It takes half a minute,
# and names one mistake at a time. Where its message names a note, the note says why. Use DDP first.

# %%
# %%mine gpt_ranks.py
import torch
import torch.distributed as dist
from torch import nn

from examples.minimal_gpt import GPT, ROWS, options, rate, read_text, write
from lessons.l16_language_model.targets import loss_of
from lessons.l16_language_model.targets import paragraph as targets_of


@torch.no_grad()
def validate(model, held_out):
    """Mean loss over all targets of the held-out windows."""
    total = sum(loss_of(model, windows, targets_of(windows), "sum") for windows in held_out.split(ROWS))
    return total.item() / (targets_of(held_out) >= 0).sum().item()


def train(args):
    raise NotImplementedError  # delete this line
    torch.manual_seed(0)
    learnt, held_out = read_text(args)
    model = GPT(args.context, args.width, args.layers)
    optimizer = torch.optim.AdamW([  # matrices decay; the norms' weights and biases do not
        {"params": [parameter for parameter in model.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates))
    crops = torch.Generator().manual_seed(0)
    print(f"update 0, val loss {validate(model, held_out):.4f}", flush=True)
    for update in range(1, args.updates + 1):
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        windows = learnt[begins[:, None] + torch.arange(args.context + 1)]
        loss = loss_of(model, windows, targets_of(windows))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if update % args.report == 0 or update == args.updates:
            print(f"update {update}, loss {loss.item():.4f}, val loss {validate(model, held_out):.4f}",
                  flush=True)
    print(write(model, args))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    parser = options()
    parser.add_argument("--fsdp", action="store_true", help="for the second part of the exam")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()

# %%
check.ddp("mine/gpt_ranks.py")
# check.ddp.hint()
# check.ddp.solution()

# %% [markdown]
# <details><summary>Another class has had version A?</summary>
#
# [Version B](../lessons/l16_language_model/text_b.py) takes its place: copy it into the cell, keep `%%mine
# gpt_ranks.py` as its first line. The check sees which version it is.
#
# </details>
#
# ## Is it one training?
#
# When your program is right, it trains in the rest of this lesson. Until then the course's does. Figures say whose.
#
# Now the real model and the real text, still in float64. Beside it runs one with a deliberate mistake: each rank
# takes the mean over **its own** targets, and DDP takes the mean of these means.
#
# **Predict.** How far are the weights of the program with the mistake from those of one process after the last update,
# in percent of their norm: about 0.01, about 1, or about 100?

# %%
my_distance = None  # 0.01, 1 or 100

# %%
program = check.ddp.file or check.OURS
wrong = check.write_mean_of_means(f"{live}_mean_of_means.py")
given = f"--updates {few} --report {few} --write 1 {options}".split()
distances = {}
for name, file in {f"DDP ({check.ddp.whose})": program, "a mean of the ranks' means": wrong}.items():
    one, many = one_process.compare(file, given, [ranks], few)
    distances[name] = show.distances(one, many)
    print(f"{name}: {many}")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.from_one_process(distances)
lesson.figure("The norm of the difference of all weights, relative to their norm. The program of the exam stays in the "
              "last digits. With one deliberate mistake the ranks train another model, and each rank still agrees with all others.")
far = 100 * distances["a mean of the ranks' means"][-1]
nearest = min((0.01, 1, 100), key=lambda each: abs(each / far - 1) if far else 1)
lesson.predicted(my_distance, nearest, what="distance of the wrong program")

# %% [markdown]
# The ranks of the wrong program are *one* model: a comparison of ranks with each other finds nothing. Only the
# numbers of one process do. `check.note()` lists what the course has to say about each decision of the exam.
#
# ## It learns words

# %%
# !torchrun --nproc_per_node={ranks} {program} --updates {updates} --report {-(-updates // 4)} --write 2000 \
#     {options} > {live}_after.txt
# !grep "^update" {live}_after.txt

# %% [markdown]
# What the model writes after a line break, before its first update:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
print(show.written(before, 150))

# %% [markdown]
# And after its last, without lines that hold no letter, and without most of long runs of blanks:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
print(show.written(Path(f"{live}_after.txt").read_text()))

# %% [markdown]
# ## The exam, second part: FSDP2
#
# A model that does not fit on one rank is sharded. Where `args.fsdp` is true, the model is sharded with `fully_shard`,
# and not wrapped in DDP. Extend your file. The same demand holds.

# %%
check.fsdp("mine/gpt_ranks.py")
# check.fsdp.hint()
# check.fsdp.solution()

# %%
sharded = check.fsdp.file or check.OURS
_, many = one_process.compare(sharded, ["--fsdp", *given], [ranks], few)
print(f"FSDP2 ({check.fsdp.whose}): {many}")

# %% [markdown]
# The same program for GPUs, bf16 and real use is [minimal_gpt_ddp.py](../examples/minimal_gpt_ddp.py).
#
# ## A strategy under a budget
#
# From here on you have a rank with little memory: **12 MB** of tensors between two updates. The program is
# your [train_gpt.py](../lessons/start/train_gpt.py), with the strategies of lessons [13](13_shard_kept.ipynb) to
# [15](15_talk_less.ipynb). The score is the loss on the held-out text after a fixed number of tokens. So it does not
# depend on your machine. As it stands, the program breaks the budget.
#
# Choose a strategy (`ddp`, `zero`, `fsdp`, …) and options: `--width` (a multiple of 4), `--layers`, `--lr`.
# `--batch` and `--updates` stay. Change the line, run the cells below it again, and get the score down.

# %%
my_strategy, my_options = "ddp", ""

# %% jupyter={"source_hidden": true} tags=["hide-input"]
budget = 12  # MB
fixed = f"--batch 48 --updates {tokens // (48 * 64)} --report {tokens // (48 * 64)}"
mine, ours = [], []

# %%
train_gpt = f"mine/train_gpt.py {fixed} --strategy {my_strategy} {my_options}"
# !torchrun --nproc_per_node={ranks} -m course.step_memory --out {live}_memory {train_gpt} > /dev/null
# !torchrun --nproc_per_node={ranks} {train_gpt} > {live}_tried.txt
mine.append(show.tried(my_options, f"{live}_memory", Path(f"{live}_tried.txt").read_text()))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.board(mine, budget, tokens))

# %% [markdown]
# What the course has tried stands below. Try three times before you look.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
for strategy, its_options in show.COURSE_TRIES[:tries]:
    ours.append(show.attempt(strategy, its_options, fixed, ranks, f"{live}_memory"))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.budget(mine + ours, budget)
lesson.figure("Each bar is a training: between two updates, one rank keeps so much. Only a bar that ends before the line "
              "counts.")
lesson.table(show.board(mine + ours, budget, tokens))

# %% [markdown]
# Between two updates a rank of DDP keeps weights, gradients and Adam's two values: 4 · 4 = 16 bytes per parameter. A
# rank that shards them keeps less per parameter, and may have a wider model for the same bytes. The worst moment within
# an update has activations and buffers, too: `step_memory.most` counts it, and `--micro-batches` lowers it.
#
# ## Tokens per second
#
# Your ranks exist to be faster than one process. Are they? Your DDP program and the one process of the beginning take
# turns, with 96 crops per update, on networks of different speeds. An update sends 1.7 MB of gradients.
#
# **Predict.** On which of these networks do your ranks reach more tokens per second than one process?

# %%
my_networks = None  # a list of "20mbit", "300mbit" and "none", which is no limit

# %%
why = dial.missing()  # None where this machine has a dial, else a line that says why not
run, folder = ("echo recorded:", "results/recorded/lessons") if why else ("", "results/live")
# !{run} torchrun --nproc_per_node={ranks} lessons/l16_language_model/token_speed.py --program {program} \
#     --rates {rates} --rounds {rounds} --out {folder}/16_speed.json
speed = json.loads(Path(f"{folder}/16_speed.json").read_text())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.speedup_by_network(speed, check.ddp.whose)
lesson.figure("Speed-up: tokens per second of the ranks ÷ one process. A dot is a pair of rounds, the bar the interval of "
              "their median. Left of the dotted line one process is faster.")
lesson.predicted(my_networks, show.where_faster(speed), what="where the ranks are faster")
lesson.table(show.speeds(speed))
lesson.verdict(show.sentence(speed) + (" Recorded." if why else ""))

# %% [markdown]
# Two ranks halve the computing and add the messages. Where these take longer than what was saved, one process wins.
# More crops per update, fewer bytes ([15](15_talk_less.ipynb)) or a faster network help the ranks. A larger model has
# more of both, computing and bytes.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. All ranks draw alike and take different shares. Each target of an update weighs the same: sum, and divide by the
#    number of all.
# 2. Average, then clip, then update, then step the schedule: once per update each. Only the last micro-batch sends.
# 3. Ranks that agree with each other may all be wrong. Compare numbers with one process, on the same tokens.
#
# **This was the last lesson.** Take your own training program, and do the same with it: first one process and its
# numbers, then ranks, then the [doctor](../doctor/README.md). [TROUBLESHOOTING.md](../TROUBLESHOOTING.md) helps when a
# run fails. What a GPU adds is on the page [On a GPU](../site/pages/gpu.md).
