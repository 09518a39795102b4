# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         many: 16
#         until: 1
#       seconds: 70
#     seconds: 180
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Break it
#
# **The question.** A run with several processes fails, hangs, or gives a wrong number and says nothing. How do you find
# the cause?
#
# **You will be able to**
# - go from a symptom to a suspect, and from a suspect to the one measurement that decides;
# - write the function that names the rank for which all others wait: from four stacks, and from 64 flight recorders;
# - find mistakes that print no error;
# - repair a script with several mistakes, and write an instrument for the next one.
#
# **You need** the collectives and their stacks ([04](04_collectives.ipynb)), [05 ·
# DistributedSampler](05_distributed_sampler.ipynb), [06 · DDP](06_ddp.ipynb), and how ranks are started
# ([10](10_launchers.ipynb)). No GPU.
#
# **Time.** About 80 minutes for you, 3 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json
import pickle
from pathlib import Path

import matplotlib.pyplot as plt
from torch.utils.data import DistributedSampler

from lessons.l12_break_it import check, gallery_table, hang, show

# %% tags=["parameters"]
until = 8  # patients that come today, 1 to 8
many = 64  # ranks of the large job, a multiple of 8

# %% [markdown]
# ## The clinic
#
# Eight patients come, one after the other. Each is a real script of a few lines, `train.py`, in which one thing is
# wrong. For each of them you
#
# 1. read the **script**, and see the **symptom**: what its user sees;
# 2. **guess** the cause, from the table of suspects below;
# 3. run the **diagnosis**: a measurement that decides;
# 4. see the **repair**, the smallest difference that helps, and run it as the **proof**.
#
# The suspects are links: each leads to its entry in [TROUBLESHOOTING.md](../TROUBLESHOOTING.md). Open them when you are
# in doubt, as you would at work. But guess before you run the diagnosis: a wrong guess that you correct is what you
# remember.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
page = "../TROUBLESHOOTING.md"
patients = gallery_table.read_patients()
links = [f"[{entry.heading}]({page}#{entry.anchor})"
         for entry in gallery_table.read_table().values()]
height = -(-len(links) // 3)  # three columns, read downwards
links += [""] * (3 * height - len(links))
lesson.table([{"suspects": links[row], " ": links[row + height], "  ": links[row + 2 * height]}
              for row in range(height)])

# %% [markdown]
# ## Patient 1
#
# A Slurm job with two tasks on one machine, which are started here with the variables that Slurm sets. (`&`: the first
# runs beside the second. The rest of the line waits for both.) The first patient is an easy one.

# %%
# !python scripts/broken/gallery.py patient 1 --until {until}

# %% [markdown]
# **Guess.** Write the suspect's number, as text.

# %%
my_guess_1 = None  # a number of the table, such as "9a"

# %% [markdown]
# **Diagnosis.** Each task prints where it means to meet the others. Search all that it printed for these lines:

# %%
# !python scripts/broken/gallery.py look 1 "^task" --until {until}
lesson.predicted(my_guess_1, patients[1].number)

# %%
# !python scripts/broken/gallery.py repair 1 --until {until}

# %% [markdown]
# Processes meet at **one** address and port, told to all of them (lesson [03](03_processes_and_ranks.ipynb)). torchrun
# tells it to the ranks of a node. Between nodes, and with `srun`, it is you who must.
#
# ## Patient 2
#
# Rank 0's message is shown. Rank 1 prints the same, and torchrun a report of its own.

# %%
# !python scripts/broken/gallery.py patient 2 --until {until}

# %%
my_guess_2 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** The message speaks of the step *before*: something in it was not finished. One variable makes PyTorch
# say what:

# %%
# !TORCH_DISTRIBUTED_DEBUG=INFO python scripts/broken/gallery.py patient 2 \
#     --lines "did not receive grad" --until {until}
lesson.predicted(my_guess_2, patients[2].number)

# %%
# !python scripts/broken/gallery.py repair 2 --until {until}

# %% [markdown]
# DDP starts its all-reduce when the gradients of a bucket are there. One that never comes keeps it waiting, and the
# averages of all buckets are copied back only when the last is there. An `optimizer.step()` now would use each rank's
# own gradients, all of them. The next `forward` notices. Without DDP the same model trains with no error:
# `parameter.grad is None` after `backward()` finds it in one process, too. The message names a cure,
# `find_unused_parameters=True`. It searches the graph in each step, and here it would only hide a layer that nobody
# uses. It is for a parameter that is used in some steps and not in others.
#
# ## Patient 3
#
# "Nothing is printed. Then, after the timeout, this." (The timeout is 6 seconds here. The default of gloo is 30 minutes:
# lesson [11](11_fault_tolerance.ipynb).)

# %%
# !python scripts/broken/gallery.py patient 3 --until {until}

# %% [markdown]
# The message of a timeout says that somebody waited, not why. At least three suspects look like this.

# %%
my_guess_3 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** The stack of **each** rank. The script asked Python for it, by `faulthandler.dump_traceback_later(3)`;
# for a process that already hangs, `py-spy dump --pid PID` does the same from outside. Lines without a rank are
# faulthandler's. Lines with a rank come from the errors after the timeout: the same places, and the rank that stood
# there. Find both lines in the script above.

# %%
# !python scripts/broken/gallery.py look 3 "File .train.py" --until {until}

# %% [markdown]
# Which hang is it? Find the row:

# %%
lesson.table(gallery_table.hangs(page))

# %%
lesson.predicted(my_guess_3, patients[3].number)
# !python scripts/broken/gallery.py repair 3 --until {until}

# %% [markdown]
# The block `if rank == 0` is for printing and writing. A collective inside it waits for ranks that never call it. Look
# for hidden ones: `SyncBatchNorm`, and the `forward` of a DDP model that evaluates on rank 0 alone, if it has buffers
# (as BatchNorm does). With NCCL, not run here, `barrier()` is itself an all-reduce of one number: rank 1's barrier
# answers rank 0's all-reduce. Rank 0 prints a wrong number, goes on, and hangs at its own `barrier()`, a line that is
# right. A collective too many hangs later, where nothing is wrong.
#
# ## Who holds up four ranks?
#
# Two stacks can be read. A job of a thousand ranks has a thousand, and a function must read them. Write it, for a
# program whose ranks hang on purpose. Four ranks run this `train`. One of them, the culprit, gets a `fault` and does
# something else in the fourth step. Which rank, and which fault, is drawn anew in each run:

# %%
lesson.code(hang.load_batch, hang.pack, hang.all_reduce_gradients, hang.log_loss, hang.train)

# %%
# !python lessons/l12_break_it/hang.py results/live/12_stacks
stacks = {rank: Path(f"results/live/12_stacks/{rank}.txt").read_text() for rank in range(4)}
for rank, stack in stacks.items():
    print(f"rank {rank}:", *stack.splitlines()[:6], sep="\n")


# %% [markdown]
# The call that a rank is in stands first. **1.** Write `my_culprit(stacks)`. It gets the text of each rank's stack, by
# rank, and returns the culprit and the collective in which the others miss it, such as `(2, "all_reduce")`. The check
# tries it on five hangs that were recorded with this program. Their ranks and faults differ, and your function knows
# only the texts.

# %%
def my_culprit(stacks):
    raise NotImplementedError


# %%
check.stacks(my_culprit)
# check.stacks.hint()
# check.stacks.solution()

# %% [markdown]
# Now the hang of your own machine, whose culprit the check does not know:

# %%
function, whose = check.stacks.or_ours(my_culprit)
lesson.table(show.named(whose, function(stacks), "results/live/12_stacks"))

# %% [markdown]
# All ranks but one say *I wait*. None can say for whom: each knows its own calls, and no more. Only the comparison
# names the culprit, and so the stacks of **all** ranks are needed. A stack that is missing is a finding, too.
#
# ## Who holds up 64?
#
# With NCCL a stack may not help: a call only queues the work, and Python stands lines later. PyTorch's **flight
# recorder** notes each collective that a rank has called, the last 2,000 of them. With `TORCH_NCCL_DUMP_ON_TIMEOUT=1`
# each rank writes its notes to a file when a collective times out
# ([how](../TROUBLESHOOTING.md#a-hang-under-nccl-the-flight-recorder)). gloo has the recorder, too, so 64 ranks on this
# machine can be asked. They play 8 nodes of 8 ranks. Gradients are added up within each node, then among the nodes'
# leaders, and each leader sends the sum to its node: three collectives a step, in two groups.

# %%
lesson.code(hang.train_by_node)

# %%
# !python lessons/l12_break_it/hang.py results/live/12_dumps --ranks {many}
dumps = {rank: pickle.loads(Path(f"results/live/12_dumps/rank_{rank}").read_bytes())
         for rank in range(many)}
last = {name: value for name, value in dumps[0]["entries"][-1].items() if name != "frames"}
dumps[0]["pg_config"], last

# %% [markdown]
# `process_group` is name and description of the group, `collective_seq_id` the number of the call in this group.
# `retired` says whether the call is done. (gloo's `state` stays at `scheduled`. NCCL's goes on, to `started` and
# `completed`: [source](https://github.com/pytorch/pytorch/pull/189363).) `pg_config` has the members of a rank's groups.
#
# PyTorch has a program that compares the dumps, `torchfrtrace`. **Predict:** how many ranks does it report as missing,
# in some group?

# %%
my_missing = None  # a number

# %%
report = get_ipython().getoutput("torchfrtrace --prefix rank_ results/live/12_dumps 2>&1")
missing = show.missing(report)
lesson.predicted(my_missing, len(missing))
print(missing)


# %% [markdown]
# Each line is true, and most are of no use. A rank that is missing here may wait itself, in another group, for a rank
# that waits for another one. At the end of the chain stands one that waits for nobody.
#
# **2.** Write `my_culprit_of_many(dumps)`. It gets a dict with the dump of each rank, and returns the culprit, the
# description of the group and the number of the collective in which it is missed, such as `(13, "node 1", 7)`. There
# are two faults: the culprit stops before a collective; or it calls another one than its node, under the same number.
# The check tries your function on four hangs, of 64 and of 48 ranks. (Their dumps are not from a run: a few lines of
# Python play the ranks and write what they would note, in the [documented
# format](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html). In three of them the recorder keeps
# 16 calls of each rank.)

# %%
def my_culprit_of_many(dumps):
    raise NotImplementedError


# %%
check.dumps(my_culprit_of_many)
# check.dumps.hint()
# check.dumps.solution()

# %% [markdown]
# The dumps of this machine's ranks again. Each square is a rank, each row a node; the colour says in which collective it
# waits. The frame is the answer of the function.

# %%
function, whose = check.dumps.or_ours(my_culprit_of_many)
answer = function(dumps)
lesson.table(show.named(whose, answer, "results/live/12_dumps"))
show.waiting(dumps, hang.PER_NODE, whose, answer[0])
plt.show()

# %% [markdown]
# Follow the chain from any square. A rank waits for its leader, which has not sent; its leader waits for one leader;
# that leader waits in its node, for one rank. On a real cluster the next step is to look at that rank's machine: its
# stack, its disk, its GPU.
#
# ## Patient 4
#
# No error from here on: exit status 0, and something is not right. The user says: "The loss goes up and down at the same
# places in each epoch, although I shuffle."

# %%
# !python scripts/broken/gallery.py patient 4 --until {until}

# %%
my_guess_4 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** The images that rank 0 takes, epoch by epoch. The script prints them, too:

# %%
# !python scripts/broken/gallery.py look 4 "rank 0 sees" --until {until}

# %%
lesson.predicted(my_guess_4, patients[4].number)
# !python scripts/broken/gallery.py repair 4 --until {until}

# %% [markdown]
# `DistributedSampler` shuffles by `seed + epoch`, and does not count epochs. So rank 0 also sees the same half of the
# images for ever. Both scripts once more, a point a batch:

# %%
show.rhythm({
    "Nobody calls set_epoch": show.losses("set_epoch"),
    "set_epoch before each epoch": show.losses("set_epoch_repaired"),
})
plt.show()

# %% [markdown]
# Above, each epoch repeats the last, batch by batch; what changes is what was learned. A loss with a rhythm is a reason
# to print the order.
#
# ## Patient 5
#
# "The same weights, the same test set. With one process I get one accuracy, with two ranks another."

# %%
# !python scripts/broken/gallery.py patient 5 --until {until}

# %%
my_guess_5 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Which images does the script's sampler give to each rank? (A sampler that is told `num_replicas` and
# `rank` needs no other process.)

# %%
[list(DistributedSampler(range(9), num_replicas=2, rank=rank, shuffle=False)) for rank in range(2)]

# %%
lesson.predicted(my_guess_5, patients[5].number)
# !python scripts/broken/gallery.py repair 5 --until {until}

# %% [markdown]
# One image counts twice, so that the shards are equally long. In training that does little harm. A test must count each
# image once. Then the shards are not equally long: evaluate with `model.module`, for the `forward` of a DDP model may
# wait for the other ranks.
#
# ## Patient 6
#
# "I use DDP, and after a few updates my ranks have different weights." (The norm of the weights, the root of the sum of
# their squares, is one number for all of them. Equal weights have equal norms.)

# %%
# !python scripts/broken/gallery.py patient 6 --until {until}

# %% [markdown]
# Two suspects fit: the weights were different from the start, or the gradients are not averaged.

# %%
my_guess_6 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Look at the weights *before* the first update, and count the all-reduces. (The script counts them with a
# communication hook, `model.register_comm_hook`.)

# %%
# !python scripts/broken/gallery.py look 6 "after 0|all-reduces" --until {until}
lesson.predicted(my_guess_6, patients[6].number)

# %%
# !python scripts/broken/gallery.py repair 6 --until {until}

# %% [markdown]
# It is DDP's `forward` that prepares the all-reduce. `model.module` is the model without DDP: for saving and for
# evaluation.
#
# ## Patient 7
#
# "The loss that my run prints is far better than what one process finds."

# %%
# !python scripts/broken/gallery.py patient 7 --until {until}

# %%
my_guess_7 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Let **each** rank print its loss, and of how many images it is made:

# %%
# !python scripts/broken/gallery.py look 7 "^rank" --until {until}
lesson.predicted(my_guess_7, patients[7].number)

# %%
# !python scripts/broken/gallery.py repair 7 --until {until}

# %% [markdown]
# Rank 0 prints what rank 0 saw. Add up sums and counts over the ranks, and divide last.
#
# ## Patient 8
#
# "Each image gets noise of its own. With two ranks half of it seems to be missing."

# %%
# !python scripts/broken/gallery.py patient 8 --until {until}

# %%
my_guess_8 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** A few random numbers of each rank, side by side:

# %%
# !python scripts/broken/gallery.py look 8 "^rank" --until {until}
lesson.predicted(my_guess_8, patients[8].number)

# %%
# !python scripts/broken/gallery.py repair 8 --until {until}

# %% [markdown]
# One seed for the model, so that all ranks begin alike; then another for each rank. Dropout draws from it, too.
#
# ## A program that examines
#
# For your own script nobody chooses the measurement for you. `doctor` runs a script as it is, and notes on each
# rank what passes through torch's public functions: forwards of a model, backwards, batches of a `DataLoader`,
# collectives, `torch.save` and `torch.load`. At the end it compares the ranks. It does not read the source.
#
# It now gets the scripts of patients 6 (`model.module` in place of `model`) and 8 (`torch.randn` for the noise).
# **Predict:** which of them does it find? (`grep` leaves the report, and drops torchrun's own lines.)

# %%
my_found = None  # a list: [], [6], [8] or [6, 8]

# %%
doctor = "torchrun --nproc_per_node=2 -m doctor"
# !{doctor} --json results/live/12_6.json scripts/broken/ddp_module.py 2>&1 | grep -A3 "^doctor"

# %%
# !{doctor} --json results/live/12_8.json scripts/broken/same_seed.py 2>&1 | grep -A5 "^doctor"
said = {patient: Path(f"results/live/12_{patient}.json").read_text() for patient in (6, 8)}
lesson.predicted(my_found, [patient for patient in said if json.loads(said[patient])["findings"]])

# %% [markdown]
# The doctor sees that the inner model was called, and that the weights differ. (Patient 6 changes its weights by hand;
# that is why no optimizer was looked at.) It does not see `torch.randn`. So *nothing found* is not *nothing wrong*: read
# the list of what was not judged, and measure the rest yourself. It does see that ranks draw the same random numbers in
# a DDP model with dropout, or in a data set that a `DataLoader` reads without workers.
#
# When a script of yours is suspect, begin with `--steps 50`, and then let it run once to its end: a forgotten
# `set_epoch`, the evaluation and the files show only there. The [README](../README.md#the-doctor) says how to take it
# to a cluster, and each entry of TROUBLESHOOTING.md whether it finds that mistake.
#
# ## The other suspects
#
# They are a reference. `python scripts/broken/gallery.py show NAME` runs one of them: symptom, diagnosis, repair and
# proof (`… list` has the names). Three more that you are likely to meet:
#
# - A job of many ranks fails, and the console is full. Begin at torchrun's last block, **Root Cause**: the rank that
#   failed first ([22](../TROUBLESHOOTING.md#22-the-wrong-traceback)).
# - `nvidia-smi` lists all processes at GPU 0 ([11a](../TROUBLESHOOTING.md#11a-every-process-on-gpu-0)).
# - One process, DDP, eight GPUs, and seven are idle ([29](../TROUBLESHOOTING.md#29-one-process-and-ddp-on-many-gpus)).
#
# ## Exercises
#
# **3. A patient with three mistakes.** It hangs, and that is not all. Take out the line `raise`, run the cell and the
# next one: the check runs your file on three ranks, and says what it sees. Repair one mistake after the other. `train`
# returns, on rank 0, the loss of each epoch over all images.

# %%
# %%writefile results/live/12_train.py
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

def train(ddp, optimizer, images, labels, epochs):
    raise NotImplementedError
    sampler, means = DistributedSampler(images, shuffle=True), []
    for epoch in range(epochs):
        sums = torch.zeros(2)
        for batch in torch.tensor(list(sampler)).split(4):
            loss = cross_entropy(ddp.module(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(batch), len(batch)])
        if dist.get_rank() == 0:
            dist.all_reduce(sums)
            means.append((sums[0] / sums[1]).item())
    return means


# %%
check.repaired("results/live/12_train.py")
# check.repaired.hint()
# check.repaired.solution()

# %% [markdown]
# **4. An instrument.** Write a function that every rank calls with its own model, and that returns, on **every** rank,
# the names of the parameters (`model.named_parameters()`) that are not the same on all ranks: `[]` where all is well.
# The model stays as it is.

# %%
# %%writefile results/live/12_drifted.py
import torch.distributed as dist

def drifted(model):
    raise NotImplementedError


# %%
check.instrument("results/live/12_drifted.py")
# check.instrument.hint()
# check.instrument.solution()

# %% [markdown]
# ## What to remember
#
# 1. An error message is the lucky case. Print what silent mistakes would change: images counted, updates made, first
#    indices, random numbers, a norm of the weights, on **each** rank.
# 2. A hang: the stack or the flight recorder of **each** rank. The culprit is missed by others, and waits for nobody.
# 3. One process on the whole batch is the judge: the same numbers, or a reason.
#
# **Next:** [13 · Beyond DDP](13_beyond_ddp.ipynb). Each rank holds the whole model. What if it does not fit?
