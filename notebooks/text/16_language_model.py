# ---
# jupyter:
#   course:
#     minutes: 110
#     quick:
#       parameters:
#         updates: 10
#         report: 10
#         rounds: 1
#         options: --batch 16 --text TROUBLESHOOTING.md --write 30
#       seconds: 45
#     seconds: 115
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16 · Your turn: a language model
#
# **The question.** The course has trained networks on images. Most large trainings are of language models. Does all of
# it still hold?
#
# **You will be able to**
#
# - make a plain training program of a language model data-parallel, with DDP and with FSDP2;
# - say what a sample, an update and the schedule count here, and where the clip and `no_sync` go;
# - count tokens a second and MFU, and prove that several ranks train what one process trains.
#
# **You need** [06](06_ddp.ipynb) and [07](07_traps.ipynb); for FSDP2 [13](13_beyond_ddp.ipynb) and
# [13b](13b_fsdp2.ipynb); the ceiling of [08](08_performance.ipynb).
#
# **Time.** About 110 minutes for you, 2 for the machine. Half of yours are for the exam.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

import torch

from course import memory
from course.compare import ratio
from examples import minimal_gpt
from lessons.l16_language_model import check, show

# %% jupyter={"source_hidden": true} tags=["parameters", "hide-input"]
ranks = 2  # or 4, 8: processes on the CPU, also where there are GPUs
updates, report = 360, 120  # of each training; updates between two reports
rounds = 7  # of each way, where speeds are compared
options = "--batch 16"  # and "--text FILE" learns from another text than Python's manual

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"
live = "results/live/16"


def printed(name):
    return Path(f"{live}_{name}.txt").read_text()


# %% [markdown]
# ## One process
#
# [minimal_gpt.py](../examples/minimal_gpt.py) is a decoder like GPT, as small as can be: two layers,
# 128 values for each byte. It predicts the next *byte*, so its vocabulary has 256 entries, and needs no tokenizer: here
# a **token** is a byte. Its text is the manual that comes with Python, nearly half a million bytes. The last tenth is
# held out. The loop has what such programs have: AdamW, warm-up and cosine, micro-batches, a clip.

# %%
lesson.code(minimal_gpt.validate, minimal_gpt.train)

# %% [markdown]
# **Predict.** What is the loss before the first update? (An untrained model gives all 256 bytes about the same
# probability. The loss is the natural logarithm of 1 / that.)

# %%
my_first_loss = None

# %%
# !python examples/minimal_gpt.py --updates {updates} --report {report} {options} > {live}_one.txt
# !cat {live}_one.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_first_loss, show.reports(printed("one"))[0][1])

# %% [markdown]
# ## What is a sample?
#
# There are no images to count, and no epoch. An update draws 16 random places in the text, and reads 65 bytes from
# each: 64 to predict from, and the last to be predicted. Such a piece is a **crop**. Two crops may overlap. An update
# is measured in **tokens**, since sequences may have any length.
#
# **Predict.** How many tokens does an update hold? And on 2 ranks, if the program runs there unchanged, with DDP around
# the model, and each rank draws crops with a seed of its own?

# %%
my_tokens = None  # of one process
my_tokens_of_two = None

# %% jupyter={"source_hidden": true} tags=["hide-input"]
args = minimal_gpt.options().parse_args(options.split())
tokens = args.batch * args.context
learnt, held_out = minimal_gpt.read_text(args)
lesson.predicted(my_tokens, tokens)
lesson.predicted(my_tokens_of_two, 2 * tokens)
lesson.verdict(f"One process takes {args.batch} crops of {args.context} tokens an update, so "
               f"{len(learnt) / tokens:,.0f} updates see as many tokens as there are to learn.")

# %% [markdown]
# Twice the tokens an update is another training (lesson [09](09_large_batch.ipynb)). Large trainings choose the tokens
# of an update, often millions, and divide them: tokens = ranks · micro-batches · crops · context.
#
# And **which rank draws which crops?** If all ranks have the same generator and each takes all that is drawn, they
# compute the same crops, and nothing fails. There are two ways out. With a seed for each rank the crops are random and
# different; nanoGPT does so. Or all ranks draw the same places, and each takes its share, `begins[rank::ranks]`. Only
# the second way can be compared with one process, so the exam asks for it.
#
# ## Where does the clip go?
#
# `clip_grad_norm_` shortens a gradient that is longer than 1. One rank has a rare crop, and a long gradient. The other
# has a short one:

# %%
mine, other = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 0.4])


def clip(gradient):
    return gradient * min(1, 1 / gradient.norm())


# %% [markdown]
# **Predict.** Clip the mean of the two, or take the mean of the two clipped. Do both point the same way?

# %%
my_same_way = None  # True or False

# %%
mean_clipped = clip((mine + other) / 2)
clipped_mean = (clip(mine) + clip(other)) / 2
torch.stack([mean_clipped, clipped_mean])

# %% jupyter={"source_hidden": true} tags=["hide-input"]
cosine = torch.cosine_similarity(mean_clipped, clipped_mean, dim=0).item()
lesson.predicted(my_same_way, cosine > 0.9999)

# %% [markdown]
# One process clips the mean gradient of the whole batch. So on ranks the clip comes **after the average**, once an
# update: with DDP, when the last micro-batch's `backward()` has returned. All ranks then clip the same gradient, and
# need no message. A sharded gradient needs one: each rank knows only its part of the norm (lesson
# [13b](13b_fsdp2.ipynb)).
#
# ## Where does `no_sync` go, and what does the schedule count?
#
# An update has two micro-batches, whose gradients add up. Only their sum must travel. `no_sync()` around all
# micro-batches **but the last** keeps DDP still (around the forward, too: [07](07_traps.ipynb)). The last
# `backward()` then sends what all have added up. To send each time is right as well, and sends twice as much.
#
# The rate rises over the first quarter of the updates (in long trainings over 1 % or less), and then falls along a
# cosine.
#
# **Predict.** By mistake, `schedule.step()` stands in the loop of micro-batches. After which of `updates` updates has
# the rate fallen to its end?

# %%
my_end = None  # an update

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_end, updates // args.accumulate)

# %% [markdown]
# The schedule counts **updates**: neither micro-batches nor ranks.
#
# Here all micro-batches of all ranks hold equally many targets. With padding or masked prompts they do not, and a mean
# of means is wrong (lesson [05](05_distributed_sampler.ipynb)). Then sum the loss, all-reduce the number of targets of
# the update before backward, and divide by it: `(loss_sum * ranks / all_targets).backward()`. DDP divides by the ranks.
#
# Adam hides mistakes. If the loss is not divided by the number of micro-batches, the gradient is twice as long, but
# Adam divides each value by its own usual size, and the clip may cut the rest. The loss looks as always. So compare
# numbers with those of one process, not curves by eye.
#
# ## How is the validation shared?
#
# The held-out text is cut into windows. Each rank judges a share; sums are added up over the ranks and divided once
# (lesson [05](05_distributed_sampler.ipynb)). With DDP the shares may have any length. With FSDP2 each forward gathers
# weights, so **all ranks must call the model equally often**, also where one of them has no windows left.
#
# **Predict.** Of the held-out windows each of 3 ranks takes every third, and judges `ROWS` at a time. May ranks differ
# in how often they call the model?

# %%
my_may_differ = None  # True or False

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = minimal_gpt.ROWS
lesson.predicted(my_may_differ, True)
lesson.table([{"windows": count, "windows of ranks 0, 1, 2": " ".join(map(str, shares)),
               "calls of the model": " ".join(str(-(-share // rows)) for share in shares)}
              for count in (len(held_out), 3 * rows, 3 * rows + 1)
              for shares in [[len(range(rank, count, 3)) for rank in range(3)]]])

# %% [markdown]
# A way that is right here: cut all windows into pieces of `ROWS` · ranks, and take every third window of each piece. A
# share may then be empty, and the model is called with no rows.
#
# ## The exam
#
# Make the program data-parallel. This is its loop in one process, for a start; the ranks have met already. Delete the
# first line of `train`, and change what must change.
#
# - **The same training.** In all ranks together an update holds the crops of one process, and trains what one process
#   trains, to rounding.
# - **Send once an update**, if you can.
# - **True figures.** Rank 0 prints `loss` and `val loss`, of all ranks, as `minimal_gpt.py` prints them.
# - **One file**, if `--save` names one: written by rank 0, and `GPT` can load it. (To resume, a file also needs the
#   optimizer, the schedule and the state of `crops`: lesson [11](11_fault_tolerance.ipynb).)
#
# The crops of an update can be divided by micro-batches times ranks. Where they cannot, your program may refuse.
#
# The check runs your `train` on 2, 3 and 1 ranks with a tiny text in float64, beside `minimal_gpt.py`'s, and compares
# each update. Rounding is tiny there: a loss that is off by 0.01 % is a mistake. It takes half a minute, and names one
# mistake at a time.

# %%
# %%writefile results/live/16_gpt_ddp.py
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from examples.minimal_gpt import GPT, ROWS, loss_of, options, rate, read_text, write


@torch.no_grad()
def validate(model, held_out):
    total = sum(loss_of(model, windows, "sum") for windows in held_out.split(ROWS))
    return total.item() / held_out[:, 1:].numel()


def train(args):
    raise NotImplementedError  # delete this line
    torch.manual_seed(0)
    learnt, held_out = read_text(args)
    model = GPT(args.context, args.width, args.layers).to(args.device)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: rate(update, args.updates))
    crops = torch.Generator().manual_seed(0)
    print(f"update 0, val loss {validate(model, held_out):.4f}", flush=True)
    seconds = 0
    for update in range(1, args.updates + 1):
        start = time.perf_counter()
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        loss = 0
        for part in begins.chunk(args.accumulate):
            windows = learnt[part[:, None] + torch.arange(args.context + 1)]
            micro = loss_of(model, windows) / args.accumulate
            micro.backward()
            loss += micro.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - start
        if update % args.report == 0 or update == args.updates:
            val_loss = validate(model, held_out)
            speed = update * args.batch * args.context / seconds
            print(f"update {update}, loss {loss:.4f}, val loss {val_loss:.4f}, "
                  f"{speed:,.0f} tokens/s", flush=True)
    print(write(model, args))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    parser = options()
    parser.add_argument("--fsdp", action="store_true", help="later in this lesson")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    train(args)
    dist.destroy_process_group()

# %%
check.ddp("results/live/16_gpt_ddp.py")
# check.ddp.hint()
# check.ddp.solution()

# %% [markdown]
# When it is right, yours trains in the rest of this lesson; until then
# [ours](../examples/minimal_gpt_ddp.py) does. Figures say whose program it is.

# %%
program = check.ddp.file or "examples/minimal_gpt_ddp.py"

# %%
# !torchrun --nproc_per_node={ranks} {program} \
#     --updates {updates} --report {report} {options} > {live}_ddp.txt
# !tail -n +2 {live}_ddp.txt

# %% [markdown]
# ## A few lines more: FSDP2
#
# Now the model is sharded: `fully_shard` for each block, then for the model, where `args.fsdp` is true. Extend your
# file. What else must change?
#
# - Parameters are DTensors from then on. When is the optimizer made? (`clip_grad_norm_` knows DTensors.)
# - DDP has `no_sync()`; a sharded model has `set_requires_gradient_sync(True or False)`. It saves messages and costs
#   memory: until the last micro-batch each rank keeps the whole gradient. Where memory is short, reduce each time.
# - DDP sends rank 0's first weights. `fully_shard` sends nothing.
# - Forward is a collective. So are `write` and `validate`, and whatever makes the weights whole for the file:
#   `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))`.

# %%
check.fsdp("results/live/16_gpt_ddp.py")
# check.fsdp.hint()
# check.fsdp.solution()

# %%
sharded = check.fsdp.file or "examples/minimal_gpt_ddp.py"

# %%
# !torchrun --nproc_per_node={ranks} {sharded} --fsdp \
#     --updates {updates} --report {report} {options} > {live}_fsdp.txt

# %% [markdown]
# **Predict.** The three runs have learnt from the same tokens, in float32. By how much do their losses on the held-out
# text differ, at most, in the whole training: by less than 0.02, by about 0.2, or by about 1?

# %%
my_difference = None  # "below 0.02", "about 0.2" or "about 1"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
whose = {True: "yours", False: "ours"}
runs = {"one process": printed("one"),
        f"{ranks} ranks, DDP ({whose[bool(check.ddp.file)]})": printed("ddp"),
        f"{ranks} ranks, FSDP2 ({whose[bool(check.fsdp.file)]})": printed("fsdp")}
differences = {name: show.apart(printed("one"), text) for name, text in runs.items()}
worst = max(differences.values())
most = "below 0.02" if worst < 0.02 else f"about {worst:.1g}"
lesson.predicted(my_difference, most)
lesson.table([{"run": name, "loss at the end": f"{show.reports(text)[-1][1]:.4f}",
               "most it differed from one process": f"{differences[name]:.4f}"}
              for name, text in runs.items()])
show.learning(runs, tokens)
lesson.figure("The loss on the held-out text, of one process and of the ranks. The lines lie "
              "upon each other: ranks change who computes, not what is learnt.")

# %% [markdown]
# What differs, perhaps behind the four digits shown, is rounding: ranks add the same numbers up in another order. In
# float32 a long training enlarges it. In float64, in the check, it stays below 0.0001 of the loss. This is what the
# model writes:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
print(show.written(printed("ddp")))

# %% [markdown]
# ### A second examiner
#
# The doctor watches a run, and knows nothing of the exam.

# %%
# !torchrun --nproc_per_node={ranks} -m doctor {program} \
#     --updates 4 --report 4 --write 1 --text TROUBLESHOOTING.md 2>&1 | grep -A6 "^doctor"

# %% [markdown]
# ## Which bucket waits?
#
# The model has a weight that is used twice. `embedding` turns each byte into 128 values, and `head`, the last layer,
# scores each byte with the same weight: they are **tied**. The position table is added to what comes out of
# `embedding`.
#
# **Predict.** Backward begins at the last layer. Which parameter's gradient is complete **last**?

# %%
my_last = None  # "head", "norm", "blocks", "position" or "embedding"

# %%
model, order = minimal_gpt.GPT(args.context, args.width), []
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
minimal_gpt.loss_of(model, held_out[:4]).backward()
" ".join(order)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_last, order[-1].split(".")[0])
entries, width, all_values = 50_257, 768, 124.4e6  # GPT-2: its paper, and nanoGPT
lesson.verdict(f"In GPT-2 the tied weight has {entries:,} × {width} values: "
               f"{entries * width / all_values:.0%} of all.")

# %% [markdown]
# One part of its gradient, from `head`, is there at the beginning. The other part, from `embedding`, comes at the very
# end. A bucket leaves when it is complete (lesson [06](06_ddp.ipynb)). So the tied weight travels last, with nothing
# left to compute meanwhile. In a small model with a large vocabulary that is a third of the bytes. The position table
# waits, too; and for a crop shorter than the table, zeros are sent for its other rows.
#
# Tied weights are **one** parameter: the optimizer, DDP and a wrapper must see it once. `model.parameters()` names it
# once. `fully_shard(model)` keeps both layers in one group. To give them a group of their own, name them together:
# `fully_shard([model.embedding, model.norm, model.head])`. In groups apart PyTorch 2.14 refuses them.
#
# ## Tokens a second
#
# One process, ranks that never talk (the **ceiling** of lesson [08](08_performance.ipynb)), and three ways to talk take
# turns, with 32 crops an update. `MyDDP` is your class of lesson [06](06_ddp.ipynb), if you have written it.
#
# **Predict.** What share of the ceiling does DDP reach here?

# %%
my_share = None  # %

# %%
mine = Path("mine/my_ddp.py")
wrapper, whose_class = (mine, "yours") if mine.exists() else ("lessons/start/ours/my_ddp.py", "ours")
# !torchrun --nproc_per_node={ranks} lessons/l16_language_model/token_speed.py \
#     --wrapper {wrapper}:MyDDP --rounds {rounds} --out {live}_speed.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
speed = json.loads(Path(f"{live}_speed.json").read_text())
ddp_share = ratio(speed["rounds"]["ddp"], speed["rounds"]["never"]).median
lesson.predicted(my_share, 100 * ddp_share, "%")
show.under_ceiling(speed)
lesson.figure(f"Tokens a second of {ranks} ranks together, beside one process. The grey band "
              "holds the rounds of ranks that never talk. No way of training together can be "
              "faster.")
lesson.table(show.speeds(speed))
lesson.verdict(f"MyDDP is {whose_class}.")


# %% [markdown]
# The rounds of two ways are pairs, and brackets hold the 95 % interval of lesson [01](01_measure.ipynb). *off*: how
# far the weights are from those of one process after three updates, relative to how far these have moved.
#
# DDP sends each gradient once an update; without `no_sync()` once a micro-batch. FSDP2 gathers weights for forward and
# for backward of each micro-batch, in many messages, so a model this small only loses by it.
#
# ### MyDDP
#
# `main.py --wrapper` puts a class of your own in DDP's place, and asks little of it: `forward`, and `finish()` before
# the update. The tied weight does no harm: `parameters()` names it once, and the hook runs once, when both parts of its
# gradient are there. So MyDDP trains what one process trains. This comparison leaves out its `no_sync()`, so it sends
# with each micro-batch: the table counts the bytes. Whoever forgets `finish()` before the clip clips gradients that are
# still on their way.
#
# ### Exercise: MFU
#
# How much of a device does a training use? The field counts **model FLOPs utilization** ([Chowdhery
# 2022](https://arxiv.org/abs/2204.02311), appendix B): the operations that the model needs for its tokens a second,
# over those that the device can do at best. A token needs 2 operations for each parameter in forward (multiply and
# add), and twice as many in backward. The attention adds 12 · layers · width · context. Write it; `peak` is in
# operations a second, of all devices together.

# %%
def my_mfu(speed, parameters, layers, width, context, peak):
    raise NotImplementedError


# %%
check.mfu(my_mfu)
# check.mfu.hint()
# check.mfu.solution()

# %% [markdown]
# The column *MFU* above takes as peak what a product of two large matrices reached here, in the same turns, so it is
# high. Papers take the maker's figure, which no real product reaches: do not compare the two. Llama 3
# [reports](https://arxiv.org/abs/2407.21783) 38 to 43 % of an H100's, in bfloat16, on 8,192 to 16,384 of them.
#
# What is only looked up costs nothing. So leave out the position table, as nanoGPT does, and the embedding where the
# output layer does not share it. The convention counts pairs that the causal mask leaves out, too. Some programs halve
# that part: say which, when you compare.
#
# ## Where would it stop fitting?
#
# This model needs a few megabytes. Let it grow: lesson [13](13_beyond_ddp.ipynb) counts what each rank holds, with
# Adam and autocast, one sequence of 4,096 tokens at a time.
#
# **Predict.** Up to how many billions of parameters does DDP (`gradient_as_bucket_view=True`) fit into 80 GB?

# %%
my_largest = None  # billions

# %% jupyter={"source_hidden": true} tags=["hide-input"]
usable = 0.9  # of a device's memory
budget = usable * 80e9
names = ["DDP", "ZeRO-1 as PyTorch has it", "ZeRO-3: FSDP"]


def needed(name, parameters, devices=8):
    return sum(memory.shared_out(parameters, devices)[name].values())


def largest(name):
    low, high = 1e6, 1e12
    while high > 1.001 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if needed(name, middle) <= budget else (low, middle)
    return low / 1e9


lesson.predicted(my_largest, largest("DDP"), "billion")
lesson.table([{"parameters": f"{size / 1e9:g} billion"} | {
    f"{name}, GB": f"{needed(name, size) / 1e9:.0f}" for name in names}
    for size in (0.124e9, 1.5e9, 7e9, 13e9, 70e9)])
lesson.verdict([f"{name} fits up to {largest(name):.1f} billion parameters on 8 devices of "
                f"80 GB, of which {usable:.0%} are used." for name in names])

# %% [markdown]
# Left out are the scores. For GPT-2 4,096 tokens × 50,257 entries × 4 bytes are 0.8 GB, and their gradient as much
# again. FSDP's gradients are reduced in each micro-batch here.
#
# Below that size DDP is the simplest choice. For GPT-2 on eight GPUs this loop needs a larger vocabulary, 12 layers,
# `torch.autocast` with bfloat16, and NCCL; where it averages, clips and steps stays the same.
# Above that size, the few lines of FSDP2 are the next step, and lesson
# [13b](13b_fsdp2.ipynb) says what stands around them.
#
# ## What to remember
#
# 1. Choose the tokens of an update and divide them. All ranks draw alike and take different shares, or each draws with
#    a seed of its own.
# 2. Average, then clip, then update, then step the schedule: once an update each. Only the last micro-batch sends.
# 3. Adam and a smooth curve hide mistakes. Compare numbers with one process on the same tokens.
#
# **This was the last lesson.** Take your own training program, and do the same with it: first one process and its
# numbers, then ranks, then the doctor. [TROUBLESHOOTING.md](../TROUBLESHOOTING.md) helps when a run fails.
