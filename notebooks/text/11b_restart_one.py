# ---
# jupyter:
#   course:
#     minutes: 75
#     quick:
#       parameters:
#         epochs: 5
#         moment: 1.5
#         one_alone: false
#         samples: 2000
#         several_nodes: false
#       seconds: 30
#     seconds: 90
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11b · Restart only one
#
# **The question.** One rank of many has died. Must all others start again, and go back to a file on a disk?
#
# **You will be able to**
#
# - say what replica groups do when one of them dies, and when that pays;
# - bring back what a dead rank held from the memory of another;
# - choose how long to wait for a silent rank;
# - save a model that no rank holds alone, and read it with another number of ranks.
#
# **You need** [11](11_fault_tolerance.ipynb): checkpoints, restarts, and what a failure costs.
#
# **Time.** About 75 minutes for you, 2 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import importlib.util, json, math, os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed.constants as defaults

import data
import options
from course import processes
from course.hosts import Cluster, where
from lessons.l11_fault_tolerance.kill_rank import records
from lessons.l11_fault_tolerance.show import essential, kill_cost, write_seconds
from lessons.l11b_restart_one import check, sharded_checkpoint, show, torchft_loop

# %% tags=["parameters"]
samples = 6000  # training images
epochs = 12
victim = 1  # the rank, or the group, that is killed …
moment = 2.5  # … and when: in the middle of epoch 2; epochs count from 0, the first to be hit is 1
several_nodes = True  # two nodes, live where this machine can; False shows a recorded run
one_alone = True  # groups that go on without one, live where torchft is; False shows a recorded run

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
live = Path("results/live")

# %% [markdown]
# ## All again
#
# First the way of [11](11_fault_tolerance.ipynb): one training that nobody disturbs, and one in which a rank is killed.
# `torchrun` starts all ranks again, and they go on from the last checkpoint.

# %%
every, steps = 35, math.ceil(samples / 64)  # between two checkpoints; of an epoch
training = (f"main.py --device cpu --samples {samples} --test-samples 1000 --epochs {epochs}"
            " --batch-size 32")  # of each rank
# !rm -rf results/live/11b_[wk]* results/live/11b_groups
# !torchrun --nproc_per_node=2 {training} --save-model results/live/11b_whole.pt \
#     --log-file results/live/11b_whole.jsonl > results/live/11b_whole.out
# !python lessons/l11_fault_tolerance/kill_rank.py --kill {victim}@{moment} --within 150 \
#     --out results/live/11b_kill.json -- torchrun --nproc_per_node=2 --max-restarts=1 {training} \
#     --checkpoint results/live/11b_kept.pt --checkpoint-every {every} \
#     --log-file results/live/11b_killed.jsonl > results/live/11b_killed.out

# %%
killed, kill = records(live / "11b_killed.jsonl"), json.loads((live / "11b_kill.json").read_text())
cost = kill_cost(killed, kill, steps)[1]
write = write_seconds(killed, steps, every)  # δ
restart = sum(cost.values()) - cost.get("steps made again", 0)  # R
print(f"δ = {1000 * write:.0f} ms, R = {restart:.1f} s")

# %% [markdown]
# ## One again
#
# So far one rank died, and **all** were started again. With 2,000 nodes, 1,999 wait for one. With
# [torchft](https://github.com/meta-pytorch/torchft) the others go on. The ranks are divided into **replica groups**.
# Each has the whole model, and a `torchrun` of its own, which starts it again.
#
# - A small program, the **lighthouse**, gets a sign of life (a *heartbeat*) from each group. A group that gives none
#   for 1.5 s counts as dead: that is our setting, `--heartbeat_timeout_ms`.
# - In each step the groups that are alive form a **quorum**. They average their gradients over as many as they are.
# - A step counts only if each group of the quorum came through it. Otherwise the groups that are left make it again.
# - A group that comes back is sent the weights and the optimizer's state by a living one, over the network, and joins
#   at the step where the others are.
#
# This is the loop of a group. `manager` and `optimizer` are torchft's:

# %%
lesson.code(torchft_loop.learn)

# %% [markdown]
# Two groups of one rank each train the same model, with the same images in the same order, and in the middle of the
# same epoch one is killed. (This needs torchft: `pip install -e '.[rivals]'`.)
#
# **Predict.** For how long does the group that is left make no step? How many steps does it make twice? Does it end
# with the weights of the undisturbed run?

# %%
my_gap = None  # seconds
my_twice = None  # steps
my_same = None  # True or False

# %%
torchft = importlib.util.find_spec("torchft")
why_not = (None if torchft else "torchft is not installed") if one_alone else "one_alone is False"
kept = Path("results/recorded/restart-nothing") if why_not else live
groups = (f"restart_nothing.py --kill {victim}@{int(moment * steps)} --out {kept}/11b_groups"
          f" --compare {kept}/11b_whole.pt -- {training.removeprefix('main.py')}")
if not why_not:
    processes.said(f"python lessons/l11b_restart_one/{groups}", 320)
lesson.verdict(f"{where(why_not, kept)} There each run had 12 epochs." if why_not else
               "Live, on this machine, one after the other.")

# %%
ways, moments = show.ways(kept, batch=32)
show.recoveries(ways, batch=64, recorded=bool(why_not))
plt.show()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
alone = ways[show.ALONE]
lesson.predicted(my_gap, alone["gap"], "s")
lesson.predicted(my_twice, alone["again"], "step(s)")
lesson.predicted(my_same, moments["off"] == 0)
rows = [{"after the kill": name, "steps/s before it": f"{way['speed']:.0f}",
         "no step for, s": f"{way['gap']:.1f}", "steps made twice": way["again"],
         "images never seen": f"{way['unseen']:,}", "test loss, end": f"{way['loss']:.6f}"}
        for name, way in ways.items()]
undisturbed = dict.fromkeys(rows[0], "–") | {"after the kill": "(undisturbed)",
                                             "test loss, end": f"{moments['loss']:.6f}"}
lesson.table([*rows, undisturbed])
lesson.verdict(
    f"The killed group trained again {alone['back']:.1f} s after the kill. In between the other "
    f"made {alone['alone']:,} steps alone. At the end the weights of both groups differ by "
    f"{moments['apart']:.1g}. From the weights of the undisturbed run they differ by up to "
    f"{moments['off']:.2g}: {100 * moments['off'] / moments['largest']:.0f} % of the largest.")

# %% [markdown]
# How many steps are made twice after a restart is chance: as many as were made since the last checkpoint, fewer than
# `every`. The speeds before the kill are not of one program: `main.py` writes checkpoints, and torchft's group asks the
# lighthouse and writes a line in its log at each step.
#
# What each way promises is not the same. A restart gives **the undisturbed run**, later. torchft gives **a** run: all
# groups have one model, at once, but in some steps it has learnt from fewer images. So it is another model, and its
# loss may be higher or lower.
#
# When does which pay? A failure costs all groups the gap. One of G groups is missing until it is back, for about R,
# which is 1/G of the work. So the share gap / M + R / (G · M) of the time is lost, and no checkpoint is in it. (Who
# loses *all* groups at once still needs one, but a failure of a single node no longer sets its interval.) With M as in
# [11](11_fault_tolerance.ipynb) (Meta's failures), the δ, R and gap of this machine, and as many groups as nodes:

# %%
node_hours = 54 * 24 / 419 * 16384 / 8  # M of one node of 8 GPUs, as published
for seconds in (write, restart), (60, 600):  # δ and R: here, and what if the model were large?
    lesson.verdict("**δ = {:.2g} s, R = {:.3g} s**".format(*seconds))
    lesson.table(show.both_ways((8, 64, 2048), *seconds, node_hours, alone["gap"]))

# %% [markdown]
# What one can win is the difference of the last two columns. It grows with the number of nodes, and with δ and R. The
# model leaves out: the question to the lighthouse in each step; the time in which the weights of a large model are
# sent; and that a missing group leaves fewer images a step, with the same learning rate.
#
# ### Exercise 1: a checkpoint in a neighbour's memory
#
# A group that comes back gets the model from another group, since all have the whole. Where ranks *divide* a model
# ([13](13_beyond_ddp.ipynb)) no other rank has what the dead one held. So let each rank keep **one** other rank's part
# in its memory: it is written at the speed of the network, and read back without a disk ([GEMINI,
# 2023](https://doi.org/10.1145/3600006.3613145)).
#
# Write the class. The check makes one object on each rank, and all ranks call `keep(shard)`: `shard` is a tensor, as
# long on all ranks, which only this rank has. After it the object may hold one shard. Then rank `dead` dies. A new
# process takes its place, with a new object and a `shard` of zeros. All ranks call `restore(shard, dead)`, which fills
# the dead rank's tensor in place. Each rank dies once, on 2 and on 3 ranks. `dist.send`, `dist.recv` and `dist.isend`
# are [04](04_collectives.ipynb)'s.

# %%
# %%writefile results/live/11b_spare.py
import torch
import torch.distributed as dist


class Spare:
    def keep(self, shard):
        raise NotImplementedError

    def restore(self, shard, dead):
        raise NotImplementedError


# %%
check.spare("results/live/11b_spare.py")
# check.spare.hint()
# check.spare.solution()

# %% [markdown]
# ## A cut link
#
# With gloo, which talks over TCP, a process that dies closes its connections, and the others hear of it at once. (With
# NCCL they may not: there `torchrun` notices that its child is dead, and ends the rest.) When a *cable* is cut, nothing
# is closed. The packets are lost, and nobody is told.
#
# So only the clock helps: `init_process_group(timeout=…)`, in `main.py` `--timeout`. On two nodes, which are network
# namespaces of this machine, we cut node1's link while both train with `--timeout 5`.
#
# **Predict.** One cable is cut under a job of 64 GPUs that has gloo's default timeout. How many GPU hours are lost
# until the first rank says so?

# %%
my_hours = None  # GPU hours

# %%
no_nodes = Cluster.available() if several_nodes else "several_nodes is False"
cut = Path("results/recorded/elastic-two-nodes/cut") if no_nodes else live / "11b_cut"
if not no_nodes:
    processes.said(f"python lessons/l11_fault_tolerance/lose_node.py cut --epochs 1 --out {cut} --"
                   f" --dataset {dataset} --device cpu --samples 3000 --test-samples 500"
                   " --global-batch-size 64 --timeout 5", 300)
lesson.verdict(where(no_nodes, cut))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
at = json.loads((cut / "moments.json").read_text())
nccl = defaults.default_pg_nccl_timeout  # None where torch has no NCCL
waits = {"`--timeout 5`, seen": at["node0 gives up"] - at["the link of node1 is cut"],
         "`main.py`'s default": options.get_parser().get_default("timeout"),
         "PyTorch's default, NCCL": nccl and nccl.total_seconds(),
         "PyTorch's default, gloo": defaults.default_pg_timeout.total_seconds()}
lesson.predicted(my_hours, 64 * waits["PyTorch's default, gloo"] / 3600, "GPU hours")
lesson.table([{"timeout": name, "seconds": f"{wait:,.1f}",
               "GPU hours, 64 GPUs wait": f"{64 * wait / 3600:.2g}"}
              for name, wait in waits.items() if wait is not None])
print(essential((cut / "node0.out").read_text()))

# %% [markdown]
# All ranks wait for one. So why not a timeout of one second? The same clock runs when a rank is only *slow*: when rank
# 0 writes a large checkpoint, evaluates alone, or waits for a busy disk, the others wait in a collective. The timeout
# must be longer than the longest wait of a healthy run. Look for that wait in your logs, and take a few times as much.
#
# The last line above comes from `main.py`. It names the rank that waits, where it stands, and of whom there was no
# word: **look there first**. That is gloo, where the wait ends in an exception. With NCCL a watchdog ends the process:
# [04](04_collectives.ipynb) says how its flight recorder is read.
#
# ## Many writers, another number of readers
#
# In DDP each rank holds the whole model, so rank 0 can write it alone. When the ranks *divide* a model among them
# ([13](13_beyond_ddp.ipynb)), none of them has it all.
# [`torch.distributed.checkpoint`](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) (DCP) lets each
# rank write its part. `sharded_checkpoint.py` saves LeNet, which is whole on every rank, and a table whose rows are
# divided among the ranks, by one call on all ranks:
#
# `dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))`
#
# **Predict.** Two ranks hold LeNet twice. How often does `fc1.weight`, its largest tensor, stand in the folder?

# %%
my_copies = None  # times

# %%
# !rm -rf results/live/11b_dcp
# !torchrun --nproc_per_node=2 lessons/l11b_restart_one/sharded_checkpoint.py \
#     --save results/live/11b_dcp

# %%
pieces = sharded_checkpoint.contents(live / "11b_dcp")
lesson.predicted(my_copies, sum(piece["name"] == "fc1.weight" for piece in pieces), "time(s)")
show.stored(pieces)
plt.show()

# %% [markdown]
# Each rank wrote one file. What all ranks hold, they divide among themselves, and each tensor of it is written once. Of
# the table each rank wrote its own rows.
#
# Now we read the folder **here**: one process, no process group. `dcp.load` reads into the tensors that you have,
# whatever number of ranks they are divided among:

# %%
lesson.code(sharded_checkpoint.load)
loaded, expected = sharded_checkpoint.load(live / "11b_dcp"), sharded_checkpoint.expected()
print({name: torch.equal(loaded[name], value) for name, value in expected.items()})

# %% [markdown]
# `True`: the tensor has come back bit for bit, though no single file held all of it.
#
# A DCP checkpoint is many files, which nobody can replace in one moment. So write each checkpoint into a folder of its
# own, and delete an old folder only when the new one is complete: its `.metadata` is written last.
#
# ### Exercise 2: the newest checkpoint that all have
#
# Each rank writes its checkpoints to a disk of its own, and some writes failed. After the restart each rank has a list
# of the steps of the whole checkpoints on its disk, such as `[20, 40]`; it may be empty. From which step do they go
# on? Write `my_newest(steps)`. On every rank it returns **the same number: the newest step that all ranks have**, or
# `None`. The check runs your file on three ranks.
#
# Lists have different lengths, which [04](04_collectives.ipynb)'s collectives do not take. Two others send any Python
# object:
#
# - `found = [None] * world_size`, then `dist.all_gather_object(found, mine)`: `found` has one object of each rank.
# - `box = [mine]`, then `dist.broadcast_object_list(box, src=0)`: on every rank `box[0]` is rank 0's object.

# %%
# %%writefile results/live/11b_newest.py
import torch
import torch.distributed as dist


def my_newest(steps):
    raise NotImplementedError


# %%
check.newest("results/live/11b_newest.py")
# check.newest.hint()
# check.newest.solution()

# %% [markdown]
# ## Further on
#
# What large trainings do besides, each with a source:
#
# - **Goodput** is the share of all time in which a training learns something that it keeps. It is the number to
#   improve: a faster step does not help a job that waits. Llama 3 reached [more than 90
#   %](https://arxiv.org/abs/2407.21783) (section 3.3.4), with at least one interruption a day.
# - **Stragglers.** One slow rank slows all of them, and nothing fails. Only a comparison of the ranks' times shows it,
#   as NVIDIA's [resiliency extension](https://nvidia.github.io/nvidia-resiliency-ext/straggler_det/index.html) makes
#   it.
# - **Abort and shrink.** The ranks that are left end the collective in which they wait, and make a smaller group of
#   themselves, in the same processes: [`ncclCommAbort` and
#   `ncclCommShrink`](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html);
#   `torch.distributed.shrink_group` calls them. No Python starts anew, and R becomes small.
# - **Hot spares.** A few nodes wait, with the program started. One takes the dead one's rank, so the world size stays:
#   [in-process restart](https://nvidia.github.io/nvidia-resiliency-ext/inprocess/index.html).
#
# ## What to remember
#
# 1. Replica groups go on without the dead one, and take it back: no step waits for a restart, but it is another run.
# 2. What a rank holds alone must also stand somewhere else: in a neighbour's memory, or in a file of each rank.
# 3. A cut link is silent, so only the timeout ends the wait: longer than the longest wait of a healthy run.
#
# **Next:** [12 · Break it](12_break_it.ipynb). Here a machine was at fault. There it is the program.
