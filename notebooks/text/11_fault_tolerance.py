# ---
# jupyter:
#   course:
#     minutes: 100
#     quick:
#       parameters:
#         epochs: 5
#         moment: 1.5
#         samples: 2000
#         several_nodes: false
#       seconds: 45
#     seconds: 100
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Fault tolerance
#
# **The question.** One of many ranks dies, a node is lost, the cluster wants its machines back. What becomes of the
# training, and how much work is lost?
#
# **You will be able to**
#
# - say what `torchrun` does when a rank fails, and where the error of each rank stands;
# - say what a checkpoint must hold, and write it so that no kill can spoil it;
# - choose how often to save, by a formula of your own;
# - stop all ranks after the same step, though only one received the signal;
# - continue with another number of ranks than before.
#
# **You need** shards ([05](05_distributed_sampler.ipynb)), DDP ([06](06_ddp.ipynb)), collectives
# ([04](04_collectives.ipynb)), and `torchrun` on two nodes ([10](10_launchers.ipynb)).
#
# **Time.** About 100 minutes for you, 2 for the machine. Take a break after *How often to save*.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, math, os, re, shutil, tempfile
from pathlib import Path

import torch

from trainer import data
from course import processes
from course.hosts import Cluster, where
from course.interrupted import essential, kill_cost, of_kind, records, write_seconds
from lessons.l11_fault_tolerance import check, lose_node, show
from trainer.run import Run

# %% tags=["parameters"]
samples = 6000  # training images
epochs = 12
victim = 1  # the rank that you kill …
moment = 2.5  # … and when: in the middle of epoch 2; epochs count from 0, the first to be hit is 1
several_nodes = True  # two nodes, live where this machine can; False shows a recorded run

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 08 says more
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
live = Path("results/live")

# %% [markdown]
# ## What torchrun does
#
# `torchrun` watches its ranks. When one ends with an error, `torchrun` ends the others, too, for they wait for that
# rank in an all-reduce. With `--max-restarts=1` it then starts **all** ranks again, once
# ([manual](https://docs.pytorch.org/docs/stable/elastic/run.html)).
#
# Which rank failed first, and why? `main.py` has
# [`@record`](https://docs.pytorch.org/docs/stable/elastic/errors.html) on its main function. It writes the exception of
# a rank into a file, `error.json`, where `torchrun` looks for it.
#
# **Predict.** Two ranks train with an absurd learning rate: the loss becomes `nan` (not a number), and `main.py` stops
# with an error. One restart is allowed. How does the second attempt end?

# %%
my_second = None  # "ends well" or "fails"

# %%
# !python scripts/cluster/why_it_failed.py --expect-failure --within 120 -- \
#     torchrun --nproc_per_node=2 --max-restarts=1 --log-dir=results/live/11_errors \
#     main.py --device cpu --samples 500 --test-samples 100 --epochs 1 --lr 1e30

# %% jupyter={"source_hidden": true} tags=["hide-input"]
job = max((live / "11_errors").iterdir(), key=os.path.getmtime)  # torchrun makes one for each job
rows = []
for folder in sorted(job.glob("attempt_*/*")):  # attempt_0/1: attempt 0, rank 1
    file, message = folder / "error.json", "(there is none)"
    if file.exists():
        message = json.loads(file.read_text())["message"]["message"]
    rows.append({"attempt": folder.parent.name[-1], "rank": folder.name,
                 "`error.json` says": message})
second_failed = any(job.glob("attempt_1/*/error.json"))
lesson.predicted(my_second, "fails" if second_failed else "ends well")
lesson.table(rows)

# %% [markdown]
# **A restart cures an accident, and repeats a mistake.**
#
# - A process without a file had no time to write one: `torchrun` ended it, or a signal killed it. Then only its exit
#   code tells the cause: −9 is SIGKILL, often because memory ran out, −11 a segmentation fault.
# - The earliest file is the *root cause* that `torchrun` prints at the end. Without `@record` it prints *"To enable
#   traceback see …"* instead.
# - `TORCHELASTIC_RESTART_COUNT` tells a process how often **its** `torchrun` has restarted after a failure. Two nodes
#   may count differently, so do not use it in the name of a file that they share.
# - The new processes begin at the first line of your script. Everything that was not saved is lost.
#
# ## Kill a rank
#
# So save. `main.py --checkpoint FILE --checkpoint-every 35` writes a **checkpoint** every 35 steps, counted from the
# start of the run, and after each epoch. The file holds the weights, the optimizer's state, the position in the epoch
# and the states of the random generators. If the file exists when `main.py` starts, `main.py` goes on from there.
#
# First, a training that nobody disturbs:

# %%
every = 35
training = (f"main.py --device cpu --samples {samples} --test-samples 1000 --epochs {epochs}"
            " --batch-size 32")  # of each rank
# !rm -f results/live/11_whole*
# !torchrun --nproc_per_node=2 {training} \
#     --save-model results/live/11_whole.pt --log-file results/live/11_whole.jsonl

# %% [markdown]
# Now kill a rank: `victim` and `moment` stand at the top of this notebook. `kill_rank.py` reads the run's log, and at
# that moment sends SIGKILL, which no program can catch. (Linux does the same to a process when the machine has no
# memory left.) `torchrun` then ends the other rank with SIGTERM, a polite *please stop*, which a program may catch.
#
# **Predict.** How many seconds does the kill cost, until the run is back at the same step? How many steps are made a
# second time? How far are its last weights from those of the undisturbed run?

# %%
my_seconds = None  # seconds, all together
my_steps = None  # steps that are made a second time
my_difference = None  # largest difference of a weight

# %%
# !rm -f results/live/11_k* results/live/11_again*
# !python lessons/l11_fault_tolerance/kill_rank.py --kill {victim}@{moment} --within 150 \
#     --out results/live/11_kill.json -- torchrun --nproc_per_node=2 --max-restarts=1 {training} \
#     --checkpoint results/live/11_kept.pt --checkpoint-every {every} \
#     --save-model results/live/11_killed.pt --log-file results/live/11_killed.jsonl

# %%
kill = json.loads((live / "11_kill.json").read_text())
whole, killed = (records(live / f"11_{name}.jsonl") for name in ("whole", "killed"))
a, b = (torch.load(live / f"11_{name}.pt") for name in ("whole", "killed"))
largest = max((a[name] - b[name]).abs().max().item() for name in a)
lesson.predicted(my_difference, largest)
show.killed(whole, killed, victim, kill["kills"][0]["time"])
lesson.figure("Both trainings go through the same losses. The killed one is late: "
              "nothing is learnt while its processes start again (grey).")

# %% [markdown]
# Equal bits do not come by themselves. The checkpoint must hold *everything* that the next step depends on, also the
# learning rate schedule, the position in the shuffled order, and the states of the random generators. `main.py` even
# restores the order of DDP's buckets (`settle_buckets` in `run.py`), because sums in another order differ in their last
# bits. All this holds for the same number of ranks. On a GPU you also need [deterministic
# kernels](https://docs.pytorch.org/docs/stable/notes/randomness.html).
#
# How much time did the kill cost?

# %% jupyter={"source_hidden": true} tags=["hide-input"]
steps = math.ceil(samples / 64)  # of an epoch
again, cost = kill_cost(killed, kill, steps)
lesson.predicted(my_seconds, sum(cost.values()), "s")
lesson.predicted(my_steps, again, "steps")
cost_of_all = {**cost, f"**together, with {again} steps made again**": sum(cost.values())}
lesson.table([{"after the kill": part, "seconds": f"{seconds:.2f}"}
              for part, seconds in cost_of_all.items()])


# %% [markdown]
# All steps since the last checkpoint are made again: at worst a whole interval, on average half of one. All parts are
# measured within the killed run, since two runs differ in speed anyhow. The start takes long because each process
# imports PyTorch anew. Before that, the surviving rank takes two seconds to ask which other ranks are waiting, so that
# its error can name them. (That is a choice of `main.py`.)
#
# ### Exercise 1: never half a file
#
# A rank may be killed while it writes the checkpoint. `my_save(path, data)` replaces the content of the file `path` by
# the bytes `data`. At every moment `path` must hold all of the old data, or all of the new. The check runs your
# function in a process of its own and kills that process, once before each single instruction. (`os`, `shutil`,
# `tempfile` and `Path` are imported there.)

# %%
def my_save(path, data):
    raise NotImplementedError


# %%
check.never_half(my_save)
# check.never_half.hint()
# check.never_half.solution()

# %% [markdown]
# ## How often to save
#
# If you save seldom, a failure costs much work. If you save often, you spend the time on writing. Let δ be the seconds
# of a write, τ the seconds between two checkpoints, and M the mean time between two failures. Each failure also costs a
# restart of R seconds. Three shares of the time are lost:
#
# - writing: δ/τ
# - work made again, on average half an interval for each failure: τ/(2M)
# - restarts: R/M, however often you save.
#
# How large is M? When Meta trained Llama 3 on 16,384 GPUs, 419 failures stopped the job in 54 days ([Llama 3 2024,
# section 3.3.4](https://arxiv.org/abs/2407.21783)). This gives M. δ and R come from the killed run:

# %%
write = write_seconds(killed, steps, every)  # δ
restart = sum(cost.values()) - cost.get("steps made again", 0)  # R
between = 54 * 24 * 3600 / 419  # M, as published
print(f"δ = {1000 * write:.0f} ms, R = {restart:.1f} s, M = {between / 3600:.1f} h")

# %% [markdown]
# **Predict.** How many seconds between two checkpoints are best? Guess, before you compute.

# %%
my_seconds_between = None  # seconds


# %% [markdown]
# ### Exercise 2: the best interval, as a formula
#
# Which τ minimizes the sum of the three shares? Write `my_interval(write, between)`, which returns it. All times are in
# seconds, `write` is δ, and `between` is M. The check tries your intervals against 5,000 failures at random moments. It
# accepts each interval that loses at most 2 % more time than the best, however you found it.

# %%
def my_interval(write, between):
    raise NotImplementedError


# %%
check.interval(my_interval)
# check.interval.hint()
# check.interval.solution()

# %% [markdown]
# Your formula, with the numbers of this machine and Meta's failures (ours, where yours is not right yet):

# %%
interval, whose = check.interval.or_ours(my_interval)
every_seconds = interval(write, between)
lesson.predicted(my_seconds_between, every_seconds, "s")
show.interval(write, between, restart, every_seconds, whose)
lesson.figure("Short intervals lose time by writing, long ones by work that is made again. "
              "The filled diamond is the formula's interval, at the bottom of a wide valley. "
              "(Synthetic failures, drawn at Meta's rate.)")

# %% [markdown]
# The formula is [Young's, of 1974](https://doi.org/10.1145/361147.361115): τ = √(2δM).
# [Daly's, of 2006](https://doi.org/10.1016/j.future.2004.11.016), has further terms, for writes that are not short
# compared with M. The valley is wide: an interval three times too long, or three times too short, makes the first two
# shares together (3 + ⅓)/2 ≈ 1.7 times as large. Far outside the valley the loss is high.
#
# The failure of any node stops the job. So M of a job is M of one node divided by the number of nodes. Here are smaller
# jobs of the same nodes of 8 GPUs, each with the interval of the formula:

# %%
node_hours = between / 3600 * 16384 / 8
lesson.table(show.by_nodes((1, 8, 64, 2048), write, node_hours, restart, interval))

# %% [markdown]
# LeNet's file is small. A large model takes longer to write and longer to start: put your own `write` and `restart`
# where they are computed.
#
# Large jobs therefore shorten the wait: `dcp.async_save` ([13b](13b_fsdp2.ipynb) measures it) copies the state to the
# CPU's memory, which training waits for, and writes it during the next steps. The price is that memory, slower steps
# where the writer takes cores from them, and a checkpoint that is complete only later.
#
# **Take a break here.** So far a rank died without a warning. From here on machines come and go.
#
# ## Stop together
#
# Often there is a warning. A cluster that wants its machines back first sends a signal: SIGTERM, or the one that the
# job asked for, as `sbatch --signal=USR1@120` does. A program that catches the signal can save and leave. But the
# signal reaches the ranks at different moments, or only one of them. A rank that stops at once leaves the others
# waiting in an all-reduce. **All ranks must leave the loop after the same step**, so they have to ask each other.
#
# ### Exercise 3: all ranks stop after one step
#
# Each rank calls `must_stop(signalled, step)` after each step. `signalled` says whether *this* rank has received the
# signal, and `step` is the number of the step, from 1, the same on all ranks. Return `True` on all ranks after the same
# step, at most 10 steps after the first signal, else `False`. Communication takes time, so in 40 steps a rank may take
# part in four collectives. (Each send and each receive counts as one, too.) The check runs your file on 2 and on 3
# ranks, in trainings of 40 steps.

# %%
# %%writefile results/live/11_must_stop.py
import torch
import torch.distributed as dist


def must_stop(signalled, step):
    raise NotImplementedError


# %%
check.stopped("results/live/11_must_stop.py")
# check.stopped.hint()
# check.stopped.solution()

# %% [markdown]
# Repeat the training of *Kill a rank*. In the middle of the same epoch **one** rank gets SIGUSR1, and your `must_stop`
# decides when both leave. Then the whole command is started again, as Slurm's queue would do. (`stop_together.py` is
# `main.py` with your function, or with ours where yours is not right yet.)
#
# **Predict.** How many steps are made a second time? How far are the last weights from those of the undisturbed run?

# %%
my_steps_again = None  # steps
my_distance = None  # largest difference of a weight

# %%
must_stop = check.stopped.file or "ours"
# !rm -f results/live/11_stop*
# !python lessons/l11_fault_tolerance/kill_rank.py --signal USR1 --again --kill {victim}@{moment} \
#     --within 150 --out results/live/11_stop.json -- torchrun --nproc_per_node=2 \
#     lessons/l11_fault_tolerance/stop_together.py {must_stop} {training.removeprefix("main.py")} \
#     --checkpoint results/live/11_stopped_kept.pt --save-model results/live/11_stopped.pt \
#     --log-file results/live/11_stopped.jsonl > results/live/11_stop.out

# %% jupyter={"source_hidden": true} tags=["hide-input"]
stop, stopped = json.loads((live / "11_stop.json").read_text()), records(live / "11_stopped.jsonl")
stop_again, stop_seconds = show.stopped(stopped, stop, steps)
weights = torch.load(live / "11_stopped.pt")
lesson.predicted(my_steps_again, stop_again, "steps")
distance = max((a[name] - weights[name]).abs().max().item() for name in a)
lesson.predicted(my_distance, distance)
whose = "yours" if check.stopped.file else "ours"
lesson.table([
    {"": "killed", "steps made again": again, "largest difference of a weight": largest},
    {"": f"stopped by a signal, `must_stop` {whose}", "steps made again": stop_again,
     "largest difference of a weight": distance}])
print(*(line for line in stop["said"] if "stopped in epoch" in line), sep="\n")
print(f"From the signal to the end of the run: {stop_seconds:.2f} s")

# %% [markdown]
# One rank received the signal, both stopped after the same step, and the checkpoint was written there. So no step is
# made a second time. (The exit status 75, *try again later*, tells the queue that the job is not done.)
#
# `main.py` does it in this way (`run.py`). One thing differs: how often the ranks ask depends on the duration of a
# step. In the same all-reduce the ranks agree on the slowest rank's step time, and from it all of them compute the same
# next step at which they ask again.

# %%
lesson.code(Run.must_stop)

# %% [markdown]
# ## A node is lost, and comes back
#
# Two nodes are network namespaces of this machine, as in lesson [10](10_launchers.ipynb). The job is *elastic*: with
# `--nnodes=1:2` it needs one node, and takes two. `lose_node.py` kills node1 while both train, and starts it again a
# little later. At the end it sends SIGTERM, as a cluster does when it wants its machines back.
#
# **Predict.** Two nodes take 32 images a step each. node1 is lost. How many images a step must node0 take, so that the
# learning rate and the updates of an epoch may stay?

# %%
my_images = None  # images a step

# %%
why_not = Cluster.available() if several_nodes else "several_nodes is False"
nodes = Path("results/recorded/elastic-two-nodes") if why_not else live / "11_nodes"
lab, job = "python lessons/l11_fault_tolerance/lose_node.py", (
    f"--dataset {dataset} --device cpu --samples 3000 --test-samples 500 --global-batch-size 64")
if not why_not:
    processes.said(f"{lab} rejoin --out {nodes}/rejoin -- {job}", 300)
lesson.verdict(where(why_not, nodes))
print(lose_node.ELASTIC, "main.py …")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
log = records(nodes / "rejoin/run.jsonl")
moments = json.loads((nodes / "rejoin/moments.json").read_text())
show.nodes(log, moments, recorded=bool(why_not))
lesson.figure("node0 notices the loss, starts its rank again and trains alone. When "
              "node1 is back, node0's healthy rank stops and starts again with it. Grey "
              "time is lost.")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
console = (nodes / "rejoin/node0.out").read_text()
alone = re.search(r"\b1 rank\(s\) x batch (\d+)", console)
lesson.predicted(my_images, int(alone[1]), "images a step")
lesson.table([
    {"": event, "trains again after, s": f"{record['time'] - moments[event]:.1f}",
     "nodes": record["world_size"], "goes on in epoch": record["epoch"],
     "after step": record["step"]}
    for event, record in zip(("node1 is killed", "node1 is started again"),
                             of_kind(log, "restart")[-2:], strict=True)])
print(essential(console))

# %% [markdown]
# (In the figure *both are told to stop* belongs to the last dotted line, at the right.)
#
# `--global-batch-size` stays the same, so each rank takes a larger share, and the learning rate stays right. The
# training goes on from the checkpoint, not from epoch 0.
#
# When node1 comes back, nothing has failed. `torchrun` stops the healthy rank with SIGTERM, to start both ranks:
# `main.py` stops as above, and no step is lost.
#
# Three practical points:
#
# - `keep_alive_interval` and `keep_alive_max_attempt` above make `torchrun` notice a lost node sooner.
# - A node can come back only with the environment variable `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` on all nodes;
#   `lose_node.py` sets it. Without it, a node failed to come back here with torch 2.14 and 2.15.
# - node0 holds the rendezvous (`--rdzv-endpoint=node0:…`). If node0 is lost, the job is lost: give this task to a
#   machine that does not train.
#
# ### Exercise 4: another number of ranks
#
# The check saves a checkpoint in the middle of an epoch, first as two ranks would have done, then as four. You go on
# with three ranks. The file holds
#
# `{"step": 3, "batch_size": 6, "ranks": [{"sums": [loss, hits, images]}, …]}`
#
# - `step`: the steps of this epoch that are done, each with `batch_size` images on **each** of the old ranks
# - `ranks`: the sums that each old rank has counted so far in this epoch
#
# Write `my_resume(path, order)`. **Only rank 0's disk has the file.** `order` is the shuffled order of the epoch, a
# list of image numbers, the same on all ranks. As with `DistributedSampler`, rank r of n took `order[r::n]`, one batch
# after the other. Return two things:
#
# - the image numbers that this rank still takes in this epoch. Together the ranks take each remaining image once, and
#   all ranks take equally many. (The number of images allows it.)
# - the three sums with which this rank continues. At the end of the epoch an all-reduce adds them up over all ranks: no
#   image may be lost, or counted twice.

# %%
# %%writefile results/live/11_resume.py
import torch
import torch.distributed as dist


def my_resume(path, order):
    raise NotImplementedError


# %%
check.resumed("results/live/11_resume.py")
# check.resumed.hint()
# check.resumed.solution()

# %% [markdown]
# ## What to remember
#
# 1. When a rank dies, `torchrun` starts all ranks again, and everything that was not saved is lost. A checkpoint that
#    holds everything, and is whole at every moment, gives the same run.
# 2. The best interval is √(2δM). The valley is wide. Measure δ, and know how often your nodes fail.
# 3. Ranks that share a decision (to stop, or from where to go on) must ask each other, at a step that all of them know.
#
# **Next:** [11b · Restart only one](11b_restart_one.ipynb): must all ranks start again where one has died?
