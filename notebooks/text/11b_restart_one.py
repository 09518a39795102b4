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
# - restore what a dead rank held from the memory of another rank;
# - choose how long to wait for a silent rank;
# - save a model that no rank holds alone, and read it with another number of ranks.
#
# **You need** [11](11_fault_tolerance.ipynb): checkpoints, restarts, and what a failure costs.
#
# **Time.** About 75 minutes for you, 2 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import importlib.util, json, math, os
from pathlib import Path

import torch
import torch.distributed.constants as defaults

from trainer import data
from trainer import options
from course import processes
from course.hosts import Cluster, where
from course.interrupted import essential, kill_cost, records, write_seconds
from lessons.l11b_restart_one import check, sharded_checkpoint, show, torchft_loop

# %% tags=["parameters"]
samples = 6000  # training images
epochs = 12
victim = 1  # the rank, or the group, that is killed …
moment = 2.5  # … and when: in the middle of epoch 2; epochs count from 0, the first to be hit is 1
several_nodes = True  # two nodes, live where this machine can; False shows a recorded run
one_alone = True  # groups that go on without one, live where torchft is; False shows a recorded run

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 08 says more
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
live = Path("results/live")

# %% [markdown]
# ## All start again
#
# First the way of [11](11_fault_tolerance.ipynb): one training runs undisturbed, and in another a rank is killed.
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
# ## One starts again
#
# So far one rank died, and **all** were started again. With 2,000 nodes, 1,999 wait for one. With
# [torchft](https://github.com/meta-pytorch/torchft) the others go on. The ranks are divided into **replica groups**.
# Each group has the whole model, and a `torchrun` of its own, which restarts it.
#
# - Each group sends a sign of life (a *heartbeat*) to a small program, the **lighthouse**. A group that sends none for
#   1.5 s counts as dead: that is our setting, `--heartbeat_timeout_ms`.
# - In each step the living groups form a **quorum**, and average their gradients over the number of groups in it.
# - A step counts only if all groups of the quorum finish it. Otherwise it was an attempt, which changes no weights, and
#   the remaining groups try again. (An attempt is not counted as a step made twice.)
# - When a group comes back, a living group sends it the weights and the optimizer's state over the network, and it
#   joins at the current step.
#
# This is the loop of a group. `manager` and `optimizer` are torchft's:

# %%
lesson.code(torchft_loop.learn)

# %% [markdown]
# Two groups of one rank each train the same model, on the same images in the same order. In the middle of the same
# epoch one group is killed. (This needs torchft: `pip install -e '.[rivals]'`.)
#
# **Predict.** For how long does the surviving group make no step? How many steps does it make twice? Does it end with
# the weights of the undisturbed run?

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

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ways, moments = show.ways(kept, batch=32)
alone = ways[show.ALONE]
show.recoveries(ways, recorded=bool(why_not))
lesson.figure("Where a line is flat, no step is made. torchrun restarts all ranks, and "
              "the steps since the last checkpoint are made again. torchft's surviving "
              "group goes on sooner, alone.")
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
    f"The killed group trained again {alone['back']:.1f} s after the kill. Until then the other "
    f"made {alone['alone']:,} steps alone. At the end the weights of both groups differ by "
    f"{moments['apart']:.1g}. From the weights of the undisturbed run they differ by up to "
    f"{moments['off']:.2g}: {100 * moments['off'] / moments['largest']:.0f} % of the largest.")

# %% [markdown]
# After a restart the number of repeated steps is chance: the steps since the last checkpoint, fewer than `every`. The
# two speeds before the kill come from different programs: `main.py` writes checkpoints, and at each step torchft's
# group asks the lighthouse and writes a line in its log.
#
# The two ways do not promise the same. A restart gives **the undisturbed run**, later. torchft gives **a** run: all
# groups hold the same model, but in some steps it has learnt from fewer images. So the result is another model, and its
# loss may be higher or lower.
#
# When does which way pay? All groups stand still for the gap. Then G − 1 groups work while one restarts for R seconds,
# which loses R/G seconds of everybody's work. With a failure every M seconds the share (gap + R/G) / M of the time is
# lost, without any checkpoint. (To survive the loss of *all* groups a job still needs one, but the failure of a single
# node no longer sets its interval.)
#
# Take 2,048 nodes of 8 GPUs with the M of [11](11_fault_tolerance.ipynb) (Meta's failures), and suppose a large model:
# a write takes δ = 60 s, a restart R = 600 s, and the others notice and go on after 60 s. (The 1.5 s above will not do:
# a large job waits longer than that without any failure.) If tensor and pipeline parallelism
# ([13](13_beyond_ddp.ipynb)) spread one copy of the model over many nodes, a group is large:

# %%
between = 54 * 24 * 3600 / 419  # M, in seconds, as published
lesson.table(show.both_ways((1, 16, 128), write=60, restart=600, between=between, gap=60))

# %% [markdown]
# The larger the groups, the less is won. The formula leaves out three costs: the question to the lighthouse in each
# step, the time to send the weights of a large model, and smaller batches at the same learning rate while a group is
# missing. They can decide. In [a vendor's test on 64 H200
# GPUs](https://clockwork.io/blog/keeping-distributed-training-running-through-failures) with a failure every 45 to 75
# minutes, 3,000 steps took 818 minutes with restarts from checkpoints, and 930 minutes with torchft. (The vendor sells
# a third way, which took 405.)
#
# ### Exercise 1: a checkpoint in a neighbour's memory
#
# A group that comes back gets the model from another group, since each has the whole model. Where ranks *divide* a
# model ([13](13_beyond_ddp.ipynb)), no other rank has what the dead one held. So let each rank keep the part of **one**
# other rank in its memory. The copy travels at the speed of the network, and no disk is read after a failure.
# [GEMINI](https://doi.org/10.1145/3600006.3613145) (2023) recovers 13 times as fast in this way as from remote storage
# ([summary](https://www.micahlerner.com/2024/01/30/gemini-fast-failure-recovery-in-distributed-training-with-in-memory-checkpoints.html)).
#
# Write the class. The check makes one object on each rank, and all ranks call `keep(shard)`. `shard` is a tensor of the
# same length on all ranks, which only this rank has. After the call the object may hold one shard: a copy of another
# rank's. Then rank `dead` dies. A new process takes its place, with a new object and a `shard` of zeros. All ranks call
# `restore(shard, dead)`, which fills the dead rank's tensor in place. Each rank dies once, on 2 and on 3 ranks.
# [04](04_collectives.ipynb) explains `dist.send`, `dist.recv` and `dist.isend`.

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
# gloo talks over TCP. A process that dies closes its connections, and the others notice at once. (With NCCL they may
# not: there `torchrun` notices that its child is dead, and ends the other ranks.) When a *cable* is cut, no connection
# is closed. The packets are lost, and nobody is told.
#
# So only the clock helps: `init_process_group(timeout=…)`, in `main.py` `--timeout`. On two nodes, which are network
# namespaces of this machine, we cut node1's link while both train with `--timeout 5`.
#
# **Predict.** A cable is cut under a job of 64 GPUs that uses gloo's default timeout (lesson
# [03](03_processes_and_ranks.ipynb)). How many GPU hours are lost until the first rank reports it?

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
# All ranks wait for one. So why not set a timeout of one second? The same clock runs when a rank is only *slow*. While
# rank 0 writes a large checkpoint, evaluates alone, or waits for a busy disk, the others wait in a collective. The
# timeout must be longer than the longest wait of a healthy run. Find that wait in your logs, and allow a few times as
# much.
#
# The last line above comes from `main.py`. It names the rank that waits, the line where it waits, and the rank that
# sent nothing: **look there first**. With gloo the wait ends in an exception. With NCCL a watchdog ends the process,
# and [12](12_break_it.ipynb) reads its flight recorder.
#
# ## Many writers, another number of readers
#
# In DDP each rank holds the whole model, so rank 0 can write it alone. When ranks *divide* a model
# ([13](13_beyond_ddp.ipynb)), none of them has all of it.
# [`torch.distributed.checkpoint`](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) (DCP) lets each
# rank write its part. `sharded_checkpoint.py` saves LeNet, which is whole on every rank, and a table whose rows are
# divided among the ranks, by one call on all ranks:
#
# `dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))`
#
# **Predict.** Two ranks hold LeNet twice. How many copies of `fc1.weight`, its largest tensor, are in the folder?

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
lesson.figure("Each rank wrote one file. A tensor of LeNet, which both ranks hold, "
              "stands in one of the files. Of the divided table each rank wrote its own "
              "rows.")

# %% [markdown]
# All ranks hold LeNet, so they share out its tensors, and each tensor is written once. Of the table each rank wrote its
# own rows.
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
# A DCP checkpoint consists of many files, which nobody can replace in one moment. So write each checkpoint into a new
# folder, and delete an old folder only when the new one is complete: `.metadata` is written last.
#
# ### Exercise 2: the newest checkpoint that all ranks have
#
# Each rank writes its checkpoints to a disk of its own, and some writes failed. After the restart each rank has a list
# of steps, such as `[20, 40]`: those of the complete checkpoints on its disk. The list may be empty. From which step do
# the ranks go on? Write `my_newest(steps)`. On every rank it returns **the same number: the newest step that all ranks
# have**, or `None`. The check runs your file on three ranks.
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
# What large trainings do besides:
#
# - **Goodput** is the share of all time in which a training makes progress that it keeps. It is the number to improve:
#   a faster step does not help a job that waits. Llama 3 reached [more than 90 %](https://arxiv.org/abs/2407.21783)
#   (section 3.3.4), though a failure stopped it every three hours.
# - **Stragglers.** One slow rank slows all of them, and nothing fails. Only a comparison of the ranks' times shows it.
#   NVIDIA's [resiliency extension](https://nvidia.github.io/nvidia-resiliency-ext/straggler_det/usage_guide.html) gives
#   each rank a score: 0.5 means that it is twice as slow as the fastest.
# - **Abort and shrink.** The surviving ranks end the collective in which they wait, and make a smaller group, in the
#   same processes, so a restart does not include the start of Python. `torch.distributed.shrink_group` leaves ranks
#   out, by NCCL's [`ncclCommShrink`](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html).
# - **Hot spares.** Some nodes wait with the program started, and one of them replaces a dead node, so the world size
#   stays. The price is idle hardware: [8 of the 72 GPUs of a
#   rack](https://clockwork.io/blog/common-approaches-to-fault-tolerant-ai-training-selection-framework/), 11 %, are
#   common. NVIDIA's [in-process restart](https://nvidia.github.io/nvidia-resiliency-ext/inprocess/index.html) starts
#   the training function again in the living processes.
#
# ## What to remember
#
# 1. Replica groups go on without the dead group, and take it back. The living groups wait until the loss is noticed,
#    not until the restart is done. The result differs.
# 2. What one rank alone holds needs a second place: a neighbour's memory, or a file of each rank.
# 3. A cut link is silent, and only the timeout ends the wait. Set it above the longest wait of a healthy run.
#
# **Next:** [12 · Break it](12_break_it.ipynb). Here a machine was at fault. There it is the program.
