# ---
# jupyter:
#   course:
#     minutes: 130
#     quick:
#       parameters:
#         epochs: 3
#         moment: 1.5
#         one_alone: false
#         samples: 2000
#         several_nodes: false
#       seconds: 45
#     seconds: 120
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Fault tolerance
#
# **The question.** One of many ranks dies, a node is lost, a cable is cut. What becomes of the training, and how much
# work is lost?
#
# **You will be able to**
#
# - say what `torchrun` does when a rank fails, and where the error of each rank stands;
# - say what a checkpoint must hold, and write it so that no kill can spoil it;
# - choose how often to save, and how long to wait for a silent rank;
# - go on with another number of ranks than before;
# - say when it pays to start only the ranks again that died.
#
# **You need** shards ([05](05_distributed_sampler.ipynb)), DDP ([06](06_ddp.ipynb)), collectives
# ([04](04_collectives.ipynb)), and `torchrun` on two nodes ([10](10_launchers.ipynb)).
#
# **Time.** About 130 minutes for you, 2 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import importlib.util, json, math, os, re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed.constants as defaults

import data
import options
from course import plots, processes
from course.hosts import Cluster, where
from lessons.l11_fault_tolerance import check, lose_node, sharded_checkpoint, show, torchft_loop
from lessons.l11_fault_tolerance.kill_rank import records
from run import Run

# %% tags=["parameters"]
samples = 6000  # training images
epochs = 12
victim = 1  # the rank that you kill …
moment = 2.5  # … and when: in the middle of epoch 2; epochs count from 0, the first to be hit is 1
several_nodes = True  # two nodes, live where this machine can; False shows a recorded run
one_alone = True  # groups that go on without one, live where torchft is; False shows a recorded run

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
live = Path("results/live")

# %% [markdown]
# ## What torchrun does
#
# `torchrun` watches its ranks. When one ends with an error, it ends the others, too: they wait for that rank in an
# all-reduce. With `--max-restarts=1` it then starts **all** ranks again, once
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
# - Where a process has no file, it had no time to write one: `torchrun` ended it, or something killed it outright. Then
#   only its exit code tells: −9 is SIGKILL, often for want of memory, −11 a segmentation fault.
# - The earliest file is the *root cause*
#   that `torchrun` prints in the end. Without `@record` it prints *"To enable traceback see …"* instead.
# - `TORCHELASTIC_RESTART_COUNT` tells a process how often **its** `torchrun` has restarted after a failure. Two nodes
#   may count differently: name nothing by it that they share.
# - The new processes begin at the first line of your script. What was not saved is lost.
#
# ## Kill a rank
#
# So save. `main.py --checkpoint FILE --checkpoint-every 35` writes a **checkpoint** every 35 steps, counted from the
# start of the run, and after each epoch: the weights, the optimizer's state, the place in the epoch, the random states.
# When it starts and finds the file, it goes on from there.
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
# And now you kill a rank: `victim` and `moment` stand at the top of this notebook. `kill_rank.py` reads the run's log,
# and at that moment sends SIGKILL, which no program can catch. (Linux does the same to a process when the machine has
# no memory left.) `torchrun` then ends the other rank with SIGTERM, a polite *please stop*, which a program may catch.
#
# **Predict.** What does the kill cost, from the kill until the run is where it was? And how far are its last weights
# from those of the undisturbed run?

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
whole, killed = records(live / "11_whole.jsonl"), records(live / "11_killed.jsonl")
show.killed(whole, killed, victim, moment, kill["kills"][0]["time"])
plt.show()

# %%
a, b = (torch.load(live / f"11_{name}.pt", weights_only=True) for name in ("whole", "killed"))
largest = max((a[name] - b[name]).abs().max().item() for name in a)
lesson.predicted(my_difference, largest)
losses = [[record["loss"] for record in show.of_kind(log, "epoch")] for log in (whole, killed)]
print("the losses of all epochs are equal:", losses[0] == losses[1])

# %% [markdown]
# Equal bits do not come by themselves. The checkpoint must hold *all* that the next step depends on: also the learning
# rate schedule, the place in the shuffled order, and the random states. `main.py` even repeats how DDP orders its
# buckets (`settle_buckets` in `run.py`), because sums in another order have other last bits. It holds for the
# same number of ranks. On a GPU it also needs [deterministic
# kernels](https://docs.pytorch.org/docs/stable/notes/randomness.html).
#
# What did the kill cost?

# %% jupyter={"source_hidden": true} tags=["hide-input"]
steps = math.ceil(samples / 64)  # of an epoch
again, cost = show.kill_cost(killed, kill, steps)
lesson.predicted(my_seconds, sum(cost.values()), "s")
lesson.predicted(my_steps, again, "steps")
cost_of_all = {**cost, f"**together, with {again} steps made again**": sum(cost.values())}
lesson.table([{"after the kill": part, "seconds": f"{seconds:.2f}"}
              for part, seconds in cost_of_all.items()])


# %% [markdown]
# All steps since the last checkpoint are made again: at worst a whole interval, half of one on average.
# All of it is measured within the killed run: two runs differ in speed anyhow. To start again, each process imports
# PyTorch anew. Before that, the rank that is left waits two seconds, to learn who else waits; that is `main.py`'s own
# doing.
#
# ### Exercise 1: never half a file
#
# A rank may be killed while it writes the checkpoint. `my_save(path, data)` replaces the file `path` by the bytes
# `data`. At every moment `path` must hold all of the old data, or all of the new. The check runs your function in a
# process of its own and kills that process, once before each single instruction. (`os`, `shutil`, `tempfile` and
# `Path` are imported there.)

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
# Save seldom, and a failure costs much work. Save often, and you do nothing but write. Call the seconds of a write δ,
# those between two checkpoints τ, and M the mean time between two failures. Each failure also costs a restart of R
# seconds. The shares of the time that are lost:
#
# - writing: δ/τ
# - work made again, half an interval a failure on average: τ/2M
# - restarts: R/M, however often you save.
#
# The sum is least at
#
# $$\tau = \sqrt{2\,\delta\,M}$$
#
# ([Young 1974](https://doi.org/10.1145/361147.361115)). [Daly 2006](https://doi.org/10.1016/j.future.2004.11.016) has
# further terms, for writes that are not short beside M.
#
# What is M? When Meta trained Llama 3 on 16,384 GPUs, 419 failures stopped the job in 54 days ([Llama 3 2024, section
# 3.3.4](https://arxiv.org/abs/2407.21783)).
#
# So M is known, and our δ and R come from the killed run:

# %%
write = show.write_seconds(killed, steps, every)  # δ
restart = sum(cost.values()) - cost.get("steps made again", 0)  # R
between = 54 * 24 * 3600 / 419  # M, as published
print(f"δ = {1000 * write:.0f} ms, R = {restart:.1f} s, M = {between / 3600:.1f} h")

# %% [markdown]
# **Predict.** How many seconds between two checkpoints are best?

# %%
my_interval = None  # seconds

# %%
best = math.sqrt(2 * write * between)
lesson.predicted(my_interval, best, "s")
show.interval(write, between, restart, best)
plt.show()

# %% [markdown]
# The diamonds test the formula: 5,000 failures at random moments, drawn by a computer. The axes are logarithmic: each
# line is ten times the one before. The valley is wide. An interval three times too long, or too short, makes the first
# two shares together (3 + ⅓)/2 ≈ 1.7 times as large. Far outside it costs a lot.
#
# Any node that fails stops the job. So M of a job is M of one node divided by the number of nodes. The same nodes of 8
# GPUs in smaller jobs:

# %%
node_hours = between / 3600 * 16384 / 8
lesson.table(show.by_nodes((1, 8, 64, 2048), write, node_hours, restart))

# %% [markdown]
# This is LeNet's small file. A large model writes for longer and starts for longer: put your own `write` and `restart`
# where they are computed.
#
# So large jobs let training wait for less: `dcp.async_save` (DCP comes below) copies the state to the CPU's memory,
# which is all that training waits for, and writes it during the next steps. The price is that memory, and a checkpoint
# that is whole only later.
#
# ## A node is lost, and comes back
#
# Two nodes, made of network namespaces of this machine as in lesson [10](10_launchers.ipynb). The job is *elastic*:
# with `--nnodes=1:2` one node is enough, two are welcome. `lose_node.py` kills node1 while both train, and starts it
# again a little later. In the end it sends SIGTERM, as a cluster does when it wants its machines back. Beside it runs
# a second pair of nodes, for a later section.
#
# **Predict.** Both nodes together take 64 images a step, 32 each. How many does node0 take when it is alone?

# %%
my_images = None  # images a step

# %%
why_not = Cluster.available() if several_nodes else "several_nodes is False"
nodes = Path("results/recorded/elastic-two-nodes") if why_not else live / "11_nodes"
lab, job = "python lessons/l11_fault_tolerance/lose_node.py", (
    f"--dataset {dataset} --device cpu --samples 3000 --test-samples 500 --global-batch-size 64")
commands = [f"{lab} rejoin --out {nodes}/rejoin -- {job}",
            f"{lab} cut --epochs 1 --out {nodes}/cut -- {job} --timeout 5"]
if not why_not:
    list(ThreadPoolExecutor().map(processes.said, commands, [300, 300]))  # both pairs at once
lesson.verdict(where(why_not, nodes))
print(lose_node.ELASTIC, "main.py …")

# %%
log = records(nodes / "rejoin/run.jsonl")
moments = json.loads((nodes / "rejoin/moments.json").read_text())
show.elastic(log, moments, recorded=bool(why_not))
plt.show()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
console = (nodes / "rejoin/node0.out").read_text()
alone = re.search(r"\b1 rank\(s\) x batch (\d+)", console)
lesson.predicted(my_images, int(alone[1]), "images a step")
lesson.table([
    {"": event, "trains again after, s": f"{record['time'] - moments[event]:.1f}",
     "nodes": record["world_size"], "goes on in epoch": record["epoch"],
     "after step": record["step"]}
    for event, record in zip(("node1 is killed", "node1 is started again"),
                             show.of_kind(log, "restart")[-2:], strict=True)])
print(show.essential(console))

# %% [markdown]
# `--global-batch-size` stays as it was, so each rank takes a larger share, and the learning rate stays right. The
# training goes on where the checkpoint is, not at epoch 0.
#
# When node1 comes back, nothing has failed. `torchrun` stops the healthy rank with SIGTERM, to start both. `main.py`
# then writes a checkpoint and ends with status 75, "try again later": no step is lost. SIGUSR1, which Slurm can send
# before a job's time is over, does the same.
#
# A signal reaches the ranks at different moments, or only one of them. But they must leave the loop after the same
# step, or those that are left wait for the others. So they ask each other. This is `main.py`'s way, as it stands in
# `run.py`:

# %%
lesson.code(Run.must_stop)

# %% [markdown]
# Read the `all_reduce`: the largest of all flags is 1 where any rank has got the signal, and **all ranks see the same
# result**. With it travels the slowest rank's pace, so all agree on the step in which they ask again.
#
# Three practical points:
#
# - `keep_alive_interval` and `keep_alive_max_attempt` above make `torchrun` notice a lost node sooner.
# - Coming back needs the environment variable `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` on all nodes; `lose_node.py` sets
#   it. Without it, we saw a node fail to come back with torch 2.14 and 2.15.
# - node0 keeps the rendezvous (`--rdzv-endpoint=node0:…`). If that node is lost, all is lost: give this task to a
#   machine that does not train.
#
# ### Exercise 2: the newest checkpoint that all have
#
# Each rank writes its checkpoints to a disk of its own, and some writes failed. After the restart each rank has a list
# of the steps of the whole checkpoints on its disk, such as `[20, 40]`; it may be empty. From which step do they go
# on? Write `my_newest(steps)`. On every rank it returns **the same number: the newest step that all ranks have**, or
# `None`. The check runs your file on three ranks.
#
# Lists have different lengths, which 04's collectives do not take. Two others send any Python object:
#
# - `found = [None] * world_size`, then `dist.all_gather_object(found, mine)`: `found` has one object of each rank.
# - `box = [mine]`, then `dist.broadcast_object_list(box, src=0)`: on every rank `box[0]` is rank 0's object.

# %%
# %%writefile results/live/11_newest.py
import torch
import torch.distributed as dist


def my_newest(steps):
    raise NotImplementedError


# %%
check.newest("results/live/11_newest.py")
# check.newest.hint()
# check.newest.solution()

# %% [markdown]
# ### Exercise 3: another number of ranks
#
# The check saves a checkpoint in the middle of an epoch, as two ranks, then as four, would have done. You go on with
# three. The file holds
#
# `{"step": 3, "batch_size": 6, "ranks": [{"sums": [loss, hits, images]}, …]}`
#
# - `step`: steps of this epoch that are done, each with `batch_size` images on **each** of the old ranks
# - `ranks`: what each old rank has counted so far in this epoch
#
# Write `my_resume(path, order)`. **Only rank 0's disk has the file.** `order` is the shuffled order of the epoch, a
# list of image numbers, the same on all ranks. As with `DistributedSampler`, rank r of n took `order[r::n]`, a batch
# after the other. Return two things:
#
# - the image numbers that this rank still takes in this epoch. Together the ranks take each image that is left once,
#   and all ranks take equally many.
# - the three sums with which this rank goes on counting. At the end of the epoch an all-reduce adds them up over all
#   ranks: nothing may be lost, nothing counted twice.

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
# ## Restart only one
#
# So far one rank died, and **all** were started again. With 2,000 nodes, 1,999 wait for one. With
# [torchft](https://github.com/meta-pytorch/torchft) the others go on. The ranks are divided into **replica groups**.
# Each has the whole model, and a `torchrun` of its own, which starts it again.
#
# - A small program, the **lighthouse**, gets a sign of life (a *heartbeat*) from each group. Who gives none for 1.5 s
#   counts as dead: that is our setting, `--heartbeat_timeout_ms`.
# - In each step the groups that are alive form a **quorum**. They average their gradients over as many as they are.
# - A step counts only if each group of the quorum came through it. Otherwise the groups that are left make it again.
# - A group that comes back is sent the weights and the optimizer's state by a living one, over the network, and joins
#   at the step where the others are.
#
# This is the loop of a group. `manager` and `optimizer` are torchft's:

# %%
lesson.code(torchft_loop.learn)

# %% [markdown]
# Two groups of one rank each train the model of *Kill a rank*, with the same images in the same order, and in the
# middle of the same epoch one is killed. (This needs torchft: `pip install -e '.[rivals]'`.)
#
# And a third way, which needs nothing: the training of *Kill a rank* without `--max-restarts`. All of it ends, and is
# started again as a whole, as a queue such as Slurm's would do. (Here it waits in no queue.)
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
second = f"{kept}/11_again"
queue = (f"kill_rank.py --again --kill {victim}@{moment} --out {second}.json --"
         f" torchrun --nproc_per_node=2 {training} --checkpoint {second}.pt"
         f" --checkpoint-every {every} --log-file {second}.jsonl")
groups = (f"restart_nothing.py --kill {victim}@{int(moment * steps)} --out {kept}/11_groups"
          f" --compare {kept}/11_whole.pt -- {training.removeprefix('main.py')}")
for command in [] if why_not else [queue, groups]:
    processes.said(f"python lessons/l11_fault_tolerance/{command}", 320)
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
# How many steps are made twice after a restart is chance: as many as were made since the last checkpoint, fewer than `every`.
# The speeds before the kill are not of one program: `main.py` writes checkpoints, and torchft's group asks the lighthouse
# and writes a line in its log at each step.
#
# What each way promises is not the same. A restart gives **the undisturbed run**, later. torchft gives **a** run: all
# groups have one model, at once, but in some steps it has learnt from fewer images. So it is another model, and its loss
# may be higher or lower.
#
# When does which pay? A failure costs all groups the gap. One of G groups is missing until it is back, for about R,
# which is 1/G of the work. So the share gap / M + R / (G · M) of the time is lost, and no checkpoint is in it. (Who loses
# *all* groups at once still needs one, but a failure of a single node no longer sets its interval.) With M as above,
# this lesson's δ, R and gap, and as many groups as nodes:

# %%
for seconds in (write, restart), (60, 600):  # δ and R: here, and what if the model were large?
    lesson.verdict("**δ = {:.2g} s, R = {:.3g} s**".format(*seconds))
    lesson.table(show.both_ways((8, 64, 2048), *seconds, node_hours, alone["gap"]))


# %% [markdown]
# What one can win is the difference of the last two columns. It grows with the number of nodes, and with δ and R. The model
# leaves out: the question to the lighthouse in each step; the time in which the weights of a large model are sent; and
# that a missing group leaves fewer images a step, with the same learning rate.
#
# ### Exercise 4: which recovery was it?
#
# A rank that was **not** killed has logged each step that it made: `(number of the step, images that all took in it)`.
# `batch` is what they take when all are there. `my_recovery(log, batch)` returns three things: who was started again,
# `"all"`, `"one"` or `"nobody"`; how many steps were made twice; how many images nobody saw. Of a step that was made
# twice the weights have kept only the second.

# %%
def my_recovery(log, batch):
    raise NotImplementedError


# %%
check.recovery(my_recovery)
# check.recovery.hint()
# check.recovery.solution()

# %% [markdown]
# ## A cut link
#
# With gloo, which talks over TCP, a process that dies closes its connections, and the others hear of it at once. (With
# NCCL they may not: there `torchrun` notices that its child is dead, and ends the rest.) When a *cable* is cut, nothing
# is closed. The packets are lost, and nobody is told.
#
# So only the clock helps: `init_process_group(timeout=…)`, in `main.py` `--timeout`. Node1's link was cut while the
# second pair of nodes trained with `--timeout 5`.
#
# **Predict.** One cable is cut under a job of 64 GPUs that has gloo's default timeout. How many GPU hours are lost until
# the first rank says so?

# %%
my_hours = None  # GPU hours

# %% jupyter={"source_hidden": true} tags=["hide-input"]
at = json.loads((nodes / "cut/moments.json").read_text())
nccl = defaults.default_pg_nccl_timeout  # None where torch has no NCCL
waits = {"`--timeout 5`, seen": at["node0 gives up"] - at["the link of node1 is cut"],
         "`main.py`'s default": options.get_parser().get_default("timeout"),
         "PyTorch's default, NCCL": nccl and nccl.total_seconds(),
         "PyTorch's default, gloo": defaults.default_pg_timeout.total_seconds()}
lesson.predicted(my_hours, 64 * waits["PyTorch's default, gloo"] / 3600, "GPU hours")
lesson.table([{"timeout": name, "seconds": f"{wait:,.1f}",
               "GPU hours, 64 GPUs wait": f"{64 * wait / 3600:.2g}"}
              for name, wait in waits.items() if wait is not None])
print(show.essential((nodes / "cut/node0.out").read_text()))

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
# !rm -rf results/live/11_dcp
# !torchrun --nproc_per_node=2 lessons/l11_fault_tolerance/sharded_checkpoint.py \
#     --save results/live/11_dcp

# %%
pieces = sharded_checkpoint.contents(live / "11_dcp")
lesson.predicted(my_copies, sum(piece["name"] == "fc1.weight" for piece in pieces), "time(s)")
show.stored(pieces)
plt.show()

# %% [markdown]
# A file a rank. What all ranks hold, they divide among themselves, and each tensor of it is written once. Of the table
# each rank wrote its own rows.
#
# Now we read the folder **here**: one process, no process group. `dcp.load` reads into the tensors that you have,
# whatever number of ranks they are divided among:

# %%
lesson.code(sharded_checkpoint.load)
loaded, expected = sharded_checkpoint.load(live / "11_dcp"), sharded_checkpoint.expected()
print({name: torch.equal(loaded[name], value) for name, value in expected.items()})

# %% [markdown]
# `True`: the tensor has come back bit for bit, though no single file held all of it.
#
# A DCP checkpoint is many files, which nobody can replace in one moment. So write each checkpoint into a folder of its
# own, and delete an old folder only when the new one is complete: its `.metadata` is written last.
#
# ## What to remember
#
# 1. When a rank dies, `torchrun` starts all of them again, and what was not saved is lost. A checkpoint that holds
#    everything, and is whole at every moment, gives the same run. Replica groups go on without the dead one: another run.
# 2. The best interval is √(2δM). The valley is wide; measure δ, and know how often your nodes fail.
# 3. Ranks that share a decision (stop, go on from where) must ask each other; and a cut link is silent, so set the
#    timeout.
#
# **Next:** [12 · Break it](12_break_it.ipynb). Here a machine was at fault. There it is the program.
