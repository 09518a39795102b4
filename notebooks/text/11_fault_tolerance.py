# ---
# jupyter:
#   course:
#     minutes: 90
#     quick:
#       parameters:
#         images: 768
#         kill: 1@13
#       seconds: 75
#     seconds: 150
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Fault tolerance
#
# **The question.** One of many ranks dies, or the cluster wants its machines back. What becomes of the training, and how
# much work is lost?
#
# **What you will have at the end**
#
# - a program that may be killed at any moment, and ends with the same bits as if nothing had happened;
# - a file that is never half written, and ranks that all stop after the same update;
# - a formula for how often to save;
# - a checkpoint of four ranks, read by two.
#
# **You need** your program with its parts from lessons [03](03_processes_and_ranks.ipynb) to [07](07_traps.ipynb). The
# course's parts stand in for those that you have not written.
#
# **Time.** About 90 minutes for you, 3 for the machine. Take a break before *How often to save*.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, os
from pathlib import Path

import torch
import torch.distributed.constants as defaults

from lessons.l11_fault_tolerance import check, sharded, show
from trainer.run import Run

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank

# %% tags=["parameters"]
images = 1536  # training images: 16 updates per epoch
kill = "1@23"  # rank 1, in the middle of the update after this one

# %% [markdown]
# ## What torchrun does
#
# `torchrun` watches its ranks. When one ends with an error, the others cannot go on: with gloo their connections close
# and they fail, with NCCL they wait. `torchrun` ends those that are left. With `--max-restarts=1` it then starts **all**
# ranks again, once ([manual](https://docs.pytorch.org/docs/stable/elastic/run.html)). The new processes begin at the first line of the
# program. A restart cures an accident and repeats a mistake: a program that fails at its first line fails again.
#
# Two ranks of your program train with random mirrored images and a learning rate that falls along a cosine. First nobody
# disturbs them:

# %%
training = f"mine/train.py --images {images} --batch 96 --lr 0.1 --epochs 3 --cosine --flip"
files = "results/live/11"  # how the files of this lesson begin
# !rm -rf {files}_*
# !torchrun --nproc_per_node=2 {training} --save {files}_whole.pt

# %% [markdown]
# The same training again, and one rank is killed by SIGKILL, which no program can catch. Linux does that to a process
# when the machine's memory is full. `killed.py` only runs your program, sends the signal, and notes when things happen.
#
# The ranks meet at a store that `torchrun` keeps. It outlives a restart, and with it the addresses of dead ranks: a new
# rank may wait for one of them in vain. [Issue 135712](https://github.com/pytorch/pytorch/issues/135712) is a related
# report, on several nodes. `--standalone` and the variable below give each attempt a store of its own.

# %%
restarts = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc_per_node=2 --max-restarts=1"
killed = f"-m lessons.l11_fault_tolerance.killed --kill {kill}"
# !{restarts} {killed} --events {files}_lost.jsonl {training} \
#     2> {files}_lost.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
total = 3 * (images // 96)  # updates
lost = show.again(show.events(f"{files}_lost.jsonl"), total)
print(f"updates made again: {lost} of {total}")

# %% [markdown]
# The training began again, and every update before the kill was lost. So it must save.
#
# ## Never half a file
#
# ### Exercise: `replace.py`
#
# A rank may be killed while it writes. `replace(path, data)` replaces the content of the file `path` by the bytes
# `data`. At every moment `path` holds all of the old data, or all of the new. The check runs your function in a process
# of its own and kills that process, once before each single instruction.

# %%
# %%mine replace.py
import os


def replace(path, data):
    raise NotImplementedError


# %%
check.never_half("mine/replace.py")
# check.never_half.hint()
# check.never_half.solution()

# %% [markdown]
# ## Save and restore
#
# ### Exercise: `checkpoint.py`
#
# Your program makes one object of this class. All ranks call `save` after every tenth update: `step` updates of the
# epoch are done, and `losses` has this rank's loss of each of them, tensors. When the program starts and the file is
# there, all ranks call `restore`, which returns `(epoch, step, losses)`.
#
# The training that goes on must be the one that was killed, **bit for bit**. So save everything that the next update
# depends on. Which rank knows it? `self.replace(path, data)` is your function from above; `torch.save(state, buffer)` with
# `buffer = io.BytesIO()` makes bytes of a dict, `buffer.getvalue()`.

# %%
# %%mine checkpoint.py
import io

import torch
import torch.distributed as dist


class Checkpoint:
    def __init__(self, file, model, optimizer, scheduler, replace):
        self.file, self.replace = file, replace
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def save(self, epoch, step, losses):
        raise NotImplementedError

    def restore(self):
        raise NotImplementedError


# %%
check.saved("mine/checkpoint.py")
# check.saved.hint()
# check.saved.solution()

# %% [markdown]
# Now kill it again, without a restart by `torchrun`, and start it by hand from the file that the dead ranks have left.

# %%
saving = f"{training} --checkpoint {files}_kept.pt"
# !torchrun --nproc_per_node=2 {killed} --events {files}_dead.jsonl {saving} 2> {files}_dead.txt || true
# !cp {files}_kept.pt {files}_left.pt
# !torchrun --nproc_per_node=2 {saving} --save {files}_resumed.pt

# %%
whole, resumed = (torch.load(f"{files}_{name}.pt") for name in ("whole", "resumed"))
print("the same bits:", all(torch.equal(whole[name], resumed[name]) for name in whole))

# %% [markdown]
# The loss lines are the same, too. On a GPU the same bits also need [deterministic
# kernels](https://docs.pytorch.org/docs/stable/notes/randomness.html). With PyTorch's DDP they need one thing more: it
# puts gradients into other buckets after its first backward, and sums in another order differ in their last bits.
# `main.py` restores that order (`settle_buckets` in [run.py](../trainer/run.py)).
#
# ## One item is missing
#
# Your program goes on from the file of the killed ranks once more, seven times. Each time one of the items in it is
# replaced by what a new process has: the model's first weights, an optimizer without momentum, a scheduler at its
# start, epoch 0, update 0 of the epoch, no losses, the random states of the seed.
#
# **Predict.** Without one of them the weights at the end are still the same bits. Without which?

# %%
my_item = None  # "model", "optimizer", "scheduler", "epoch", "step", "losses" or "rng"

# %%
# !torchrun --nproc_per_node=2 -m lessons.l11_fault_tolerance.take_out --out {files}_taken_out.json \
#     {training} --checkpoint {files}_left.pt

# %%
results = json.loads(Path(f"{files}_taken_out.json").read_text())
lesson.predicted(my_item, " and ".join(item for item in show.NAMES if not results[item]["weights"]),
                 what="the item that may be missing")
show.missing(results)
lesson.figure("Each row is a training that went on from the same file, with one item missing. Pale cells are those of "
              "the undisturbed training.")

# %% [markdown]
# No row ends with an error. A training goes on from an incomplete checkpoint, and its loss falls.
# Some rows even end with a lower loss than the undisturbed training, and not only those that trained longer, without the
# epoch or the update number. A falling loss does not show that something is missing: that is why the mistake lives long.
# The only test is the one above: compare killed and undisturbed bit for bit.
#
# ## What a kill costs
#
# Now `torchrun` restarts the ranks itself.
#
# **Predict.** How many seconds does the kill cost, until the training is again where it was?

# %%
my_seconds = None  # seconds, all together

# %%
# !rm -f {files}_kept.pt
# !{restarts} {killed} --events {files}_kill.jsonl {saving} \
#     2> {files}_kill.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
log = show.events(f"{files}_kill.jsonl")
parts = show.cost(log, total)
lesson.predicted(my_seconds, sum(parts.values()), "s", what="what a kill costs")
show.bar(parts)
lesson.figure("From the signal until the last lost update was made again. The other rank notices by its closed "
              "connection. Most of the time the new processes import PyTorch, read the data, and make their first "
              "update.")
print(f"updates made again: {show.again(log, total)}; without a checkpoint it was {lost}")

# %% [markdown]
# `main.py` waits up to two seconds more: a survivor asks which others are there, to name the rank that is gone.
#
# **Take a break here.**
#
# ## How often to save
#
# If you save seldom, a failure costs much work. If you save often, you spend the time on writing. Let δ be the seconds
# of a write, τ the seconds between two checkpoints, M the *mean time between failures* (MTBF), and R the seconds
# of a restart. Three shares of the time are lost. They hold where they are small:
#
# - writing: δ/τ
# - work made again, on average half an interval for each failure: τ/(2M)
# - restarts: R/M, however often you save.
#
# When Meta trained Llama 3 on 16,384 GPUs, 419 unexpected failures stopped the job in 54 days ([Llama 3 2024, section
# 3.3.4](https://arxiv.org/abs/2407.21783)). That gives M. For δ and R we suppose what a large model may take, a minute to
# write and ten to start again. Put in those of your own job.

# %%
write, restart = 60, 600  # δ and R: supposed
between = 54 * 24 * 3600 / 419  # M, as published
print(f"δ = {write} s, R = {restart} s, M = {between / 3600:.1f} h")

# %% [markdown]
# **Predict.** How many minutes between two checkpoints are best? Guess, before you compute.

# %%
my_minutes = None  # minutes


# %% [markdown]
# ### Exercise: the best interval
#
# Which τ minimizes the sum of the three shares? `my_interval(write, between)` returns it, in seconds. The check tries your
# intervals against 5,000 failures at random moments. It accepts each that loses at most 2 % more time than the best.

# %%
def my_interval(write, between):
    raise NotImplementedError


# %%
check.interval(my_interval)
# check.interval.hint()
# check.interval.solution()

# %%
interval, whose = check.interval.or_ours(my_interval)
lesson.predicted(my_minutes, interval(write, between) / 60, "min", what="the best interval")
show.interval(write, between, restart, interval(write, between), whose)
lesson.figure("Short intervals lose time by writing, long ones by work made again. The filled diamond is the formula's. "
              "The failures are synthetic, drawn at Meta's rate.")

# %% [markdown]
# Where the shares are large, their sum is too high, and the diamonds lie below the curve: time that is lost once cannot
# be lost again. The valley stays where it is.
#
# This is [Young's formula, of 1974](https://doi.org/10.1145/361147.361115).
# [Daly's, of 2006](https://doi.org/10.1016/j.future.2004.11.016), has further terms for writes that are long beside M. The
# valley is wide: an interval three times too long, or too short, makes the first two shares together (3 + ⅓)/2 ≈ 1.7
# times as large.
#
# Any node that fails stops the job, so M of a job is M of one node divided by the number of nodes. Smaller jobs of the
# same nodes, each with your interval:

# %%
node_hours = between / 3600 * 16384 / 8
lesson.table(show.by_nodes((1, 8, 64, 2048), write, node_hours, restart, interval))

# %% [markdown]
# The share of time in which a training makes progress that it keeps is its **goodput**: about 100 % minus the three shares
# of its row.
# Large jobs make δ small: `dcp.async_save` copies the state to the CPU's memory, which training waits for, and writes it
# during the next steps. They make R small by nodes that wait with the program
# started (*hot spares*).
#
# ## Stop together
#
# A cluster that wants its machines back (*preemption*) often warns first: it sends SIGTERM, or the signal that the job
# asked for, as `sbatch --signal=USR1@120` does. But it reaches the ranks at different moments, or only one of them. Where a
# rank leaves at once, the others fail or wait in an all-reduce. **All ranks must leave after the same update.**
#
# ### Exercise: `must_stop.py`
#
# Each rank calls `must_stop(signalled, step)` after each update. `signalled` says whether *this* rank has received the
# signal, and `step` is the number of the update, from 1, the same on all ranks. Return `True` on all ranks after the same
# update, at most 10 after the first signal, else `False`. In 40 updates a rank may take part in four collectives; each
# send and each receive counts as one. The check runs your file on 2 and on 3 ranks.

# %%
# %%mine must_stop.py
import torch
import torch.distributed as dist


def must_stop(signalled, step):
    raise NotImplementedError


# %%
check.stopped("mine/must_stop.py")
# check.stopped.hint()
# check.stopped.solution()

# %% [markdown]
# **One** rank of your program now gets SIGUSR1. `train.py` saves where `must_stop` says so, and leaves with exit status
# 75, *try again later*. Then the same command is started again, as Slurm's queue would do.
#
# **Predict.** How many updates are made a second time?

# %%
my_again = None  # updates

# %%
# !rm -f {files}_kept.pt
# !torchrun --nproc_per_node=2 {killed} --send USR1 --events {files}_stop.jsonl {saving} \
#     2> {files}_stop.txt || true
# !torchrun --nproc_per_node=2 -m lessons.l11_fault_tolerance.killed --events {files}_after.jsonl {saving} \
#     --save {files}_stopped.pt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
both = show.events(f"{files}_stop.jsonl") + show.events(f"{files}_after.jsonl")
stopped = torch.load(f"{files}_stopped.pt")
lesson.predicted(my_again, show.again(both, total), "updates", what="updates made again")
print("the same bits as undisturbed:", all(torch.equal(whole[name], stopped[name]) for name in whole))

# %% [markdown]
# `main.py` does the same, and chooses how often to ask by the duration of a step: in the all-reduce the ranks agree on the
# slowest rank's step time, so that all compute the same next question.

# %%
lesson.code(Run.must_stop)


# %% [markdown]
# ## Another number of ranks
#
# A node is lost, and none replaces it. Your `shard` and the global batch of `train.py` say which images an epoch still
# has to take, on any number of ranks. Weights, optimizer and scheduler are the same on all ranks. But what was a rank's
# own?
#
# ### Exercise: `restore`, on another number of ranks
#
# The check saves with your `save` on four ranks, and restores on two and on three. The loss of the epoch that `train.py`
# prints is the mean over its ranks of the mean of `losses`: it must be that of all updates, also of those that the four
# ranks made. Each rank must draw numbers of its own. The same bits are no longer asked for. This cell replaces the method
# `restore` of your class.

# %%
# %%mine checkpoint.py Checkpoint
def restore(self):
    raise NotImplementedError


# %%
check.resized("mine/checkpoint.py")
# check.resized.hint()
# check.resized.solution()

# %% [markdown]
# One of two ranks is killed once more, and its peer ends. Three go on from the file that they leave. Where your `restore`
# is not right yet, both trainings take the course's parts:

# %%
three = f"{training} --parts {check.resized.parts} --checkpoint {files}_three.pt"
# !rm -f {files}_three.pt
# !torchrun --nproc_per_node=2 {killed} --events {files}_three.jsonl {three} 2> {files}_three.txt || true
# !torchrun --nproc_per_node=3 {three}

# %% [markdown]
# The loss differs a little from that of the undisturbed run: other images are mirrored.
# Training that goes on with another number of ranks is *elastic*. `torchrun` can do this by itself. With `--nnodes=1:2
# --rdzv-backend=c10d --max-restarts=3` a job needs one node and takes two: where a node is lost, the other's `torchrun`
# starts its ranks again, with a smaller `WORLD_SIZE`. Three practical points:
#
# - `--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=5` makes it notice a lost node sooner than
#   its default. Then it also waits 5 s, and not 30, for more nodes.
# - If the node that holds the rendezvous (`--rdzv-endpoint`) is lost, the job is lost: give this task to a machine that
#   does not train.
# - A dead process closes its connections. A cut cable closes none: only the timeout of the process group ends the wait,
#   and it must be longer than the longest wait of a healthy run.

# %%
print(f"gloo waits {defaults.default_pg_timeout.total_seconds():,.0f} s, unless the program says otherwise")

# %% [markdown]
# ## Four writers, two readers
#
# In DDP each rank holds the whole model, so one rank can write it. Where ranks *shard* a model
# ([13](13_shard_kept.ipynb)), none has all of it.
# [`torch.distributed.checkpoint`](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) (DCP) lets each rank
# write its part, and gives another number of ranks the parts that they need (*resharding*).
#
# ### Exercise: `sharded.py`
#
# `state` is a dict of sharded tensors (`DTensor`), of which each rank holds its rows. `save` writes them to a folder, and
# `load` fills those of `state`, which are laid out for the ranks of now. The check saves on four ranks and loads on two.

# %%
# %%mine sharded.py
import torch.distributed.checkpoint as dcp


class Sharded:
    def save(self, state, folder):
        raise NotImplementedError

    def load(self, state, folder):
        raise NotImplementedError


# %%
check.sharded("mine/sharded.py")
# check.sharded.hint()
# check.sharded.solution()

# %%
# !torchrun --nproc_per_node=4 lessons/l11_fault_tolerance/sharded.py --save {files}_table
# !torchrun --nproc_per_node=2 lessons/l11_fault_tolerance/sharded.py --load {files}_table
lesson.table(sharded.contents(f"{files}_table"))

# %% [markdown]
# What each file holds: of two ranks, rank 0 needs two files, and rank 1 three. Its first row, 501, stands in the file that
# rank 1 of the four wrote.
#
# Many files cannot be replaced in one moment. So write each checkpoint into a new folder, and delete an old one only when
# the new one is complete: DCP writes `.metadata` last.
#
# ## Without a restart of all
#
# With 2,048 nodes, the processes of all start again because one node failed.
# [torchft](https://github.com/meta-pytorch/torchft) lets the others go on. The ranks are divided into **replica groups**, each with the whole model and a `torchrun` of its own. Each group sends
# heartbeats to a small program, the **lighthouse**. In each step the living groups form a **quorum** and average their
# gradients. A step counts only if all of them finish it. A group that comes back gets the weights and the optimizer's
# state from a living one, over the network, and joins at the current step.
#
# In a recorded run of two groups of one rank one group was killed. This is what the other one did:

# %%
recorded = Path("results/recorded/restart-nothing")
lesson.table(show.without_a_group(recorded, heartbeat=1.5))

# %% [markdown]
# Recorded, on two cores: [how](../results/recorded/restart-nothing/README.md). The first row is a setting,
# `--heartbeat_timeout_ms 1500`, and a large job, in which a healthy group may be silent for longer, sets it higher. So this is
# no race against `torchrun`. What differs in kind is the third row: training goes on while processes start.
#
# It has a price. While a group is missing, a step averages fewer images, so the result is **a** training, not the
# undisturbed one. In [a vendor's test on 64 H200
# GPUs](https://clockwork.io/blog/keeping-distributed-training-running-through-failures) with a failure every 45 to 75
# minutes, 3,000 steps took 818 minutes with restarts from checkpoints and 930 with torchft. The vendor sells a third way,
# which took 405.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. When a rank dies, `torchrun` starts all ranks again. A checkpoint that holds everything, and is whole at every moment,
#    gives the same bits. Test it by a kill: a missing item raises no error.
# 2. The best interval is √(2δM), in a wide valley. Measure δ, and know how often your nodes fail.
# 3. Ranks that share a decision must ask each other, after an update that all of them know.
#
# **Next:** [12 · Break it](12_break_it.ipynb). Here a machine was at fault. There it is the program.
