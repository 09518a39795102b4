# ---
# jupyter:
#   course:
#     minutes: 75
#     quick:
#       parameters:
#         epochs: 1
#         patience: 6
#         samples: 640
#         several_nodes: false
#       seconds: 68
#     seconds: 115
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Launchers
#
# **The question.** Who starts the ranks, and what does each launcher do for you: `torchrun`, `mp.spawn`, Slurm, Ray and
# others, on one machine and on several?
#
# **You will be able to**
#
# - say what a rank is told by its launcher, and what it has to find out by itself;
# - start ranks from Python without the classic failures;
# - write a torchrun line that two machines accept, and a file that Slurm accepts;
# - find the cause in what a failed launch prints.
#
# **You need** [03](03_processes_and_ranks.ipynb): rank, process group, where ranks meet.
#
# **Time.** About 75 minutes for you, 2 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import inspect
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.multiprocessing as mp
from IPython.core.magic import register_cell_magic

import data
import models
from course import plots, processes, slurm
from course.hosts import Cluster, where
from lessons.l10_launchers import check, show

# %% tags=["parameters"]
samples = 6000  # training images of MNIST
epochs = 2
patience = 20  # seconds, after which an attempt that has not ended is killed
several_nodes = True  # False: show the recorded runs of two nodes and Slurm

# %% [markdown]
# ## What a rank is told
#
# `torchrun script.py` starts your script several times. With `mp.spawn(function, nprocs=2)` your script is started
# once, by plain `python`, and starts the other processes itself. `hello_rank.py` trains nothing: each rank writes down
# the environment variables that its launcher has given it.
#
# **Predict.** To meet the others, a rank needs these five ([03](03_processes_and_ranks.ipynb)). How many of them does
# it get from `torchrun`? How many from `mp.spawn`?

# %%
needed = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
my_torchrun = None  # of the five
my_spawn = None  # of the five

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says why
live, recorded = Path("results/live"), Path("results/recorded")
lessons, cluster = Path("lessons/l10_launchers"), Path("scripts/cluster")
for old in live.glob("10_*"):
    old.unlink()
# !torchrun --nproc_per_node=2 {lessons}/hello_rank.py --out {live}/10_torchrun.txt
# !python {lessons}/hello_rank.py --spawn 2 --out {live}/10_spawn.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
by_torchrun, by_spawn = (pd.read_json(live / f"10_{name}.txt", lines=True)["variables"]
                         for name in ("torchrun", "spawn"))
lesson.predicted(my_torchrun, len(needed & set(by_torchrun[0])), "from torchrun")
lesson.predicted(my_spawn, len(needed & set(by_spawn[0])), "from mp.spawn")
lesson.table(show.variables(by_torchrun[0]))

# %% [markdown]
# The first eight are those of [03](03_processes_and_ranks.ipynb). (Meanings after [torchrun's
# documentation](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables) and source.) What
# `mp.spawn` passes is one number, as the first argument of the function. Everything else is up to the script.
#
# **Why is there no `--world-size` any more?** [Scripts older than
# torchrun](https://github.com/pytorch/examples/blob/main/imagenet/main.py) have options `--world-size`, `--rank` and
# `--dist-url`: a person typed them for each node (the last is the `init_method`). Now the launcher knows them. And it
# must: in a job that nodes may join and leave (an *elastic* one) the world size changes while it runs.
#
# ## mp.spawn, and three ways to fail
#
# You sit in a notebook and want two ranks, quickly. One process can start another in two ways: **spawn** starts a new
# Python, which must be told everything; **fork** (Linux, macOS) makes a copy of the process that runs.
#
# Some of these attempts fail, or never end. So each runs in a **notebook of its own**, which has the function `add_up`.
# It is ended, with all that it started, where the cell takes longer than its seconds.
#
# 1. `mp.spawn` with a function of the notebook.
# 2. The same function, but the processes are started by `fork`.
# 3. Number 2 again, after the notebook has added up a million numbers with several threads.
#
# **Predict.** Which of them work?

# %%
my_working = None  # a list, such as [1, 2]


# %%
def add_up(rank):
    torch.arange(1_000_000).sum()


# %% jupyter={"source_hidden": true} tags=["hide-input"]
how = {}  # how each attempt ended


@register_cell_magic
def attempt(line, cell):
    """%%attempt NUMBER SECONDS: run the cell below `add_up` in a notebook of its own."""
    first = "import torch\nimport torch.multiprocessing as mp\n" + inspect.getsource(add_up)
    number, seconds = map(int, line.split())
    how[number], output = show.in_a_notebook(first, cell, seconds)
    print(*filter(None, (how[number], output)), sep=": ")


# %%
# %%attempt 1 60
mp.spawn(add_up, nprocs=2)

# %%
# %%attempt 2 60
mp.start_processes(add_up, nprocs=2, start_method="fork")

# %%
# %%attempt 3 {patience}
torch.set_num_threads(2)
torch.arange(1_000_000).sum()
mp.start_processes(add_up, nprocs=2, start_method="fork")

# %%
lesson.predicted(my_working, [number for number, end in how.items() if end == "worked"])

# %% [markdown]
# - **spawn** starts a new Python, which must *import* the function by its name. What stands in a cell cannot be
#   imported: *Can't get attribute*.
# - **fork** copies this process with all its memory, so the function is there. But it does not copy threads. When torch
#   has already used several, the copy waits on Linux for threads that do not exist: it hangs, and says nothing. (One
#   thread in each rank, `torch.set_num_threads(1)`, avoids it.) After the notebook has used a GPU, fork fails: *Cannot
#   re-initialize CUDA in forked subprocess*.
#
# So put the function **in a file**, and use spawn. This file fails, too. Why? (`why_it_failed.py` runs a command, and
# shows the line of its output that matters.)

# %%
# %%writefile results/live/10_guard.py
import torch.multiprocessing as mp


def work(rank):
    return 2 * rank


mp.spawn(work, nprocs=2)

# %%
why = f"python {cluster}/why_it_failed.py --expect-failure --"
# !{why} python {live}/10_guard.py

# %% [markdown]
# Each new process imports the file, to find `work`, and so it comes to the last line, which starts new processes …
# Python notices and stops: *bootstrapping phase*. The **guard** `if __name__ == "__main__":` above that line is true in
# the first process only. Every script that spawns has one. (In a notebook it does not help: what a cell defines cannot
# be imported.)
#
# **What does a process get?** Many published trainers hand a whole object to `mp.spawn`. The arguments are **pickled**:
# written down, sent, and built anew in the new process. In this one, each rank counts a step and sets the weight to 7.
#
# **Predict.** What does the parent see afterwards: which `steps`, and which weight?

# %%
my_steps = None  # it begins with 0
my_weight = None  # it begins with 1.0

# %%
# %%writefile results/live/10_trainer.py
import torch.multiprocessing as mp
from torch import nn


class Trainer:
    def __init__(self):
        self.steps = 0
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.model.weight)


def train(rank, trainer):
    trainer.steps += 1
    nn.init.constant_(trainer.model.weight, 7)


if __name__ == "__main__":
    trainer = Trainer()
    mp.spawn(train, (trainer,), nprocs=2)
    print(trainer.steps, trainer.model.weight.item())

# %%
steps, weight = processes.said(f"python {live}/10_trainer.py").split()
lesson.predicted(my_steps, int(steps), "steps")
lesson.predicted(my_weight, float(weight))

# %% [markdown]
# A number in the object is a copy: what a rank does to it is lost. But `torch.multiprocessing` does not copy a CPU
# tensor. It moves it to **shared memory**, so parent and ranks have one model between them, and two optimizers would
# update the same weights. (`model.to("cuda")` gives each rank a copy of its own: with GPUs nobody notices.) Make model
# and optimizer *inside* the function, on each rank ([the
# manual](https://docs.pytorch.org/docs/stable/multiprocessing.html)).
#
# ### Exercise 1: a function for `mp.spawn` (on ranks)
#
# `mp.spawn` calls it as `be_rank(rank, world_size, port, file)` in three processes. Make one group of them, with gloo,
# at `port` of this machine (127.0.0.1), and a timeout. Each rank puts in the number `rank + 1`; the sum of all goes
# into `file` (a `Path`), written once. Leave the group at the end.

# %%
# %%writefile results/live/10_be_rank.py
from datetime import timedelta

import torch
import torch.distributed as dist


def be_rank(rank, world_size, port, file):
    raise NotImplementedError


# %%
check.spawned(live / "10_be_rank.py")
# check.spawned.hint()
# check.spawned.solution()

# %% [markdown]
# ## Printing from many ranks
#
# All ranks write to the same screen. Four ranks print 20 lines each with `print(line)`, then 20 with one `write`, all
# at the same moments, as ranks do at the end of a step.

# %%
# %%writefile results/live/10_chatter.py
import os
import sys
import time

time.sleep(2 - time.time() % 2)  # all ranks begin at an even second
for name, say in ("print", print), ("write", lambda line: sys.stdout.write(line + "\n")):
    for step in range(20):
        time.sleep(0.02 - time.time() % 0.02)  # a step takes 20 ms
        say(f"{name}: rank {os.environ['RANK']}, step {step}")

# %% [markdown]
# **Predict.** How many lines of the screen hold the words of several ranks, with `print`?

# %%
my_glued = None  # lines; 80 are printed

# %%
screen = processes.said(f"torchrun --nproc_per_node=4 {live}/10_chatter.py").splitlines()
glued = show.glued(screen)
lesson.predicted(my_glued, glued[0]["of these hold several"], "lines")
lesson.table(glued)

# %% [markdown]
# torchrun starts Python with `-u`: nothing that is printed waits in a buffer. So `print` writes the text and the end of
# the line one after the other, and another rank may write in between. How often is chance; in one piece, a short line
# stays whole. The **order** is chance, too: it does not say who was first. What to do:
#
# - Let rank 0 speak for all, about numbers that were summed over all ranks. `if rank == 0: print(…)`.
# - `torchrun --tee=3 --log-dir=logs`: on the screen each line begins with its local rank, `[default0]:`, and all that a
#   rank says is kept in files of its own. (3: what it prints, and its errors. `--redirects=3`: in the files only.
#   `--log-dir` alone keeps nothing of it.)
# - Some published scripts replace Python's own `print`
#   ([DETR's](https://github.com/facebookresearch/detr/blob/main/util/misc.py), for one), so that only rank 0 prints. It
#   hides what you need when something breaks: the last words of rank 3, and those of every library that prints.
#
# ## One training, several launchers
#
# `main.py` trains on MNIST: one process with batch 64, then two ranks with batch 32 each, by torchrun. `spawn_mnist.py`
# does the same training with `mp.spawn`. Same seed, same images. (`--no-channels-last`: `main.py` then keeps images in
# memory as `spawn_mnist.py` does.) On two GPUs, as [Kaggle](../site/pages/kaggle.md) lends them, take `--device cpu`
# away and look at the weights again: each process has a GPU, and NCCL carries the gradients.
#
# **Predict.** How far are the weights of two ranks from those of one process, at the end?

# %%
my_difference = None  # largest difference of a weight

# %%
data.get_dataset("mnist")  # once, before the ranks ask for it
options = f"--device cpu --epochs {epochs} --lr 0.01 --samples {samples} --test-samples 1000"
mnist = f"--dataset mnist --optimizer sgd --no-channels-last {options}"
each = "--batch-size 32"
# !python main.py {mnist} --batch-size 64 --save-model {live}/10_one.pt
# !torchrun --nproc_per_node=2 main.py {mnist} {each} --save-model {live}/10_torchrun.pt
# !python {lessons}/spawn_mnist.py --n-gpus 2 {options} {each} --save-model {live}/10_spawn.pt

# %%
def farthest(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


torch.manual_seed(0)
untrained = models.ConvNet(channels=1, image_size=28).state_dict()
one, two = torch.load(live / "10_one.pt"), torch.load(live / "10_torchrun.pt")
lesson.predicted(my_difference, farthest(one, two))
farthest(one, untrained)

# %% [markdown]
# (The last number: how far the training has moved a weight.) What is left between the two is rounding: float32 keeps
# about seven digits, and two ranks add in another order. **A launcher starts processes; what they compute is not its
# business.**
#
# ## `unrecognized arguments: --local-rank`
#
# The oldest launcher, `torch.distributed.launch`, passes the local rank on the command line. Scripts from before
# PyTorch 2.0 expect it with an underscore:

# %%
# !{why} python -W ignore -m torch.distributed.launch --nproc_per_node=2 \
#     {lessons}/local_rank_old.py
# !grep -n add_argument..--local {lessons}/local_rank_old.py {lessons}/local_rank_new.py

# %% [markdown]
# The new script takes both spellings, and without either the environment variable, so it works with every launcher. If
# you only use torchrun, `int(os.environ["LOCAL_RANK"])` is enough.
#
# | | before 1.10 | 1.10 to 1.13 | 2.0 and later |
# |:--|:--|:--|:--|
# | `torchrun` | not there | yes | yes |
# | its options | – | `--nproc_per_node` | `--nproc_per_node` or `--nproc-per-node` |
# | `torch.distributed.launch` | the launcher | deprecated | deprecated |
# | it passes (unless `--use_env`) | `--local_rank=0` | `--local_rank=0` | `--local-rank=0` |
#
# Sources: the documentation of [1.9](https://pytorch.org/docs/1.9.0/elastic/run.html), of 1.10 ([quoted
# here](https://discuss.pytorch.org/t/torchrun-command-not-found-does-it-need-to-be-installed-seperately/143225)) and of
# [torch.distributed.launch](https://docs.pytorch.org/docs/stable/distributed.html#launch-utility). (The package
# [`torchrun` on PyPI](https://pypi.org/project/torchrun/) is another program: `torchrun` comes with `torch`.)
#
# ## Restarts
#
# torchrun watches its ranks. With `--max-restarts=1` it starts again, once, when one fails. Here rank 1 of 3 fails at
# its first attempt.
#
# **Predict.** How many processes are started in all?

# %%
my_processes = None  # processes

# %%
# !torchrun --nproc_per_node=3 --max-restarts=1 {lessons}/hello_rank.py --fail 1 \
#     --out {live}/10_restart.txt 2> {live}/10_restart.err

# %%
started = pd.read_json(live / "10_restart.txt", lines=True).to_dict("records")
lesson.predicted(my_processes, len(started), "processes")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
begin = min(process["first_line"] for process in started)
plots.timeline(pd.DataFrame([
    {"rank": process["rank"], "event": f"attempt {process['attempt']}",
     "text": process["end"].split(" ", 2)[2],  # without "rank N"
     "start": 1000 * (process["first_line"] - begin), "end": 1000 * (process["ready"] - begin)}
    for process in started]), plt.subplots(figsize=(14, 5))[1])
plt.show()

# %% [markdown]
# torchrun ends the other ranks by the signal SIGTERM, a polite *please stop* (SIGKILL follows for a rank that does
# not), and starts all again. Those that were well, too: they were in the middle of a step with the one that failed. A
# new process begins where your script begins, so a script that is to be restarted saves checkpoints.
# [11](11_fault_tolerance.ipynb) is about that.
#
# ## The rendezvous
#
# Before any rank starts, the torchruns of all nodes must agree who belongs to the job. That is the **rendezvous**. We
# ask torchrun what it makes of its options, and stop it before it starts anything:

# %%
c10d = "--rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=7"
ways = ["--nnodes=1", "--master-port=29500", f"--nnodes=2 {c10d}", f"--nnodes=1:2 {c10d}"]
lesson.table([{"torchrun": f"`{way}`"} | show.rendezvous(show.launch_config(way)) for way in ways])

# %% [markdown]
# There are two kinds:
#
# - **static**: each torchrun is told its own number (`--node-rank`, from 0), and all are told where node 0 listens
#   (`--master-addr`, `--master-port`).
# - **c10d**: the nodes come in any order to the same `--rdzv-endpoint`, with the same `--rdzv-id` (the name of the
#   job), and get their numbers there. The endpoint's host is one of them: its torchrun listens there. `--node-rank` is
#   ignored. A range such as `--nnodes=1:2` lets nodes come and go: the job is *elastic*.
#
# A job on one node takes c10d by itself, and port 0, which means *any that is free* (before [a change of February
# 2026](https://github.com/pytorch/pytorch/pull/175699): only with `--standalone`). `--master-port` or `--nnodes=2`
# without `--rdzv-…` mean: static.
#
# A torchrun waits for nodes that have not come yet, as long as the last column says. That is right where nodes boot
# slowly, and long for a typing mistake, with GPUs that are paid for. `--rdzv-conf=timeout=SECONDS` sets it; for c10d
# `--rdzv-conf=join_timeout=SECONDS`.
#
# ### Exercise 2: three launches that failed
#
# This is what torchrun printed. (`grep` leaves out the lines that only say through which functions of torch the error
# came.) What is the cause of each? Answer with `port` (another program has it), `node` (one has not come), `rank 0` or
# `rank 1` (that rank failed first), or `option` (torchrun does not know one).

# %%
# !tail -n +1 {recorded}/failed-launches/*.out | grep -vE '^    |^  File "…'

# %%
my_causes = None  # a dict: {"A": "port", …}

# %%
check.failures(my_causes)
# check.failures.hint()
# check.failures.solution()

# %% [markdown]
# ## Two nodes
#
# On two machines you type one line on each. Here the two are *network namespaces* of this machine: each has a name, an
# address and processes of its own. They share the cores, so this shows what happens, not how fast. It needs Linux and
# some rights.
#
# ### Exercise 3: one line for two hosts
#
# Write a torchrun line that is typed, word for word the same, on `node0` and on `node1`. No host knows its number. The
# shell of each host knows `$MASTER`: it is `node0`. Two ranks start on each host, four in all. They run `main.py` with
# the options that your file is given: `"$@"` stands for them. (A line that ends with `\` goes on in the next.)
#
# torchrun's own parser reads your line as it is typed on each host. Where this machine can make two hosts, it is then
# typed on both.

# %%
# %%writefile results/live/10_line.sh
# torchrun, its options, the script, and "$@"

# %%
check.line(live / "10_line.sh")
# check.line.hint()
# check.line.solution()

# %% [markdown]
# Now two hosts train with your line: as many images a step as one process above, 16 on each of four ranks. (Where your
# line is not right yet, ours stands in its place.)

# %%
why_not = Cluster.available() if several_nodes else "several_nodes is False"
file = recorded / "two-nodes-namespaces/console-static.out"
line, whose_line = show.mine_or_ours(check.line, live / "10_our_line.sh")
lab = (f"{cluster}/lab_cluster.py --nodes 2 --"
       f" 'bash {line} {mnist} --batch-size 16 --save-model {live}/10_line.pt'")
lesson.verdict(where(why_not, file) + (f" The line is {whose_line}." if not why_not else ""))
print(show.essential(file.read_text() if why_not else processes.said(lab)))

# %% [markdown]
# `main.py` needed no change: the variables say all that it must know.
#
# Between real machines two more things go wrong. A node may have several networks, and gloo or NCCL take one by which
# the other node cannot be reached: `GLOO_SOCKET_IFNAME=eth0` or `NCCL_SOCKET_IFNAME=eth0` names the right one
# (`NCCL_DEBUG=INFO` prints which was taken). And ranks connect to each other at ports of their own choice: a firewall
# between the nodes must let all of them pass, not only the port of the rendezvous.
#
# [11](11_fault_tolerance.ipynb) shows what happens when one of the nodes is lost.
#
# ## Slurm
#
# On a cluster you hand a file to Slurm: `sbatch FILE` makes it a *job*. Slurm finds nodes that are free, and runs the
# file **on the first of them**. In the file, `srun` starts one command several times, on all nodes of the job; each is
# a *task*. A task can be a rank, or a torchrun, one on each node.
#
# What the job asks for stands in lines `#SBATCH --option=value`, above the first command. You need two:
#
# - `--nodes=2`
# - `--ntasks-per-node=1`: how often `srun` starts its command on each node
#
# Slurm tells the job who it is. `$SLURM_JOB_ID` is its number, which no other job has. `$SLURM_JOB_NODELIST` names the
# nodes, in short: `node[1-2]`. The command `scontrol show hostnames "$SLURM_JOB_NODELIST"` prints them one a line.
#
# ### Exercise 4: a file for Slurm
#
# Write a job of two nodes, which have no GPU here, with two ranks on each. It runs `main.py` with the options that the
# file is given. Two jobs may share a node: with one port written into the file, the second would meet the first. So
# let each job meet at a port of its own, from 20000 on. (`$((7 + 2))` is a number that the shell has computed,
# `$(command)` what a command has printed, `head -n 1` the first line.)
#
# The check rehearses the job, with a `srun` and a torchrun that start nothing. Where this machine can, it then hands
# your file to a real Slurm, on hosts as above.

# %%
# %%writefile results/live/10_job.sbatch
# Replace this line. The first line names the shell, #!/bin/bash; then #SBATCH lines; then commands.

# %%
check.job(live / "10_job.sbatch")
# check.job.hint()
# check.job.solution()

# %% [markdown]
# There is a second way: `srun` starts every rank itself, and nobody sets `RANK`. Slurm tells each task the same facts
# under other names, and `main.py` translates them (`slurm_names` in [launch.py](../launch.py)):
#
# | Slurm | torchrun |
# |:--|:--|
# | `SLURM_PROCID` | `RANK` |
# | `SLURM_STEP_NUM_TASKS` | `WORLD_SIZE` |
# | `SLURM_LOCALID` | `LOCAL_RANK` |
# | the first host of `SLURM_STEP_NODELIST` | `MASTER_ADDR` |
# | a number made from `SLURM_JOB_ID` and `SLURM_STEP_ID` | `MASTER_PORT` |
#
# A real Slurm runs both: your file, and `scripts/cluster/ranks.sbatch`, whose command is

# %%
# !grep -h "^srun" {cluster}/ranks.sbatch

# %%
no_slurm = why_not or slurm.missing()
files = [recorded / f"slurm-two-nodes/{way}.out" for way in ("ranks", "torchrun")]
job, whose_job = show.mine_or_ours(check.job, live / "10_our_job.sbatch")
lab = f"{cluster}/slurm_lab.py --nodes 2 -- {lessons}/submit_both.sh {job} {mnist} --batch-size 16"
lesson.verdict(where(no_slurm, files[0].parent) + (
    f" The second file is {whose_job}." if not no_slurm else ""))
print(show.essential("".join(file.read_text() for file in files) if no_slurm else
                     processes.said(lab)))

# %% [markdown]
# `0:` is the task that speaks (`srun --label`). First come the epochs of `ranks.sbatch`, then those of the other file.
# The weights of every launch of this lesson, beside those of one process:

# %%
trained = {path.stem[3:]: torch.load(path) for path in sorted(live.glob("10_*.pt"))}
lesson.table([{"weights of": {"line": f"two hosts, the line ({whose_line})", "slurm_job":
                              f"Slurm, the file ({whose_job})"}.get(way, way.replace("_", ", ")),
               "largest difference": f"{farthest(one, weights):.0e}"}
              for way, weights in trained.items()])

# %% [markdown]
# `scripts/cluster/torchrun.sbatch` is such a file for real clusters. It does two things more:
#
# - Shortly before the job's time is over Slurm sends the signal USR1, so that `main.py` can save and stop, and the file
#   queues the job again. torchrun would die of that signal: `trap "" USR1` makes it deaf to it.
# - It gives each rank its cores. A task gets one core unless `--cpus-per-task` says more, and data loading is then slow
#   for no visible reason.
#
# **Which core beside which GPU?** In a node with two processors a GPU is attached to one of them, and memory of the
# other is farther away. `torchrun --numa-binding=node` keeps a rank on the cores beside its GPU (`torchrun --help`).
# Where a task is a rank, `srun --gpus-per-task=1` lets each see one GPU alone
# ([manual](https://slurm.schedmd.com/srun.html#OPT_gpus-per-task)). It is `cuda:0` in every rank, so
# `torch.cuda.set_device(local_rank)` fails on all but the first. `main.py` takes what it sees.
#
# ## Where there is no Slurm
#
# **Kubernetes** starts *pods* (a program with all that it needs) on the machines of a cluster, and Kubeflow Trainer
# starts a training in them. **SkyPilot** rents machines of a cloud, sets them up, and gives them back. Both start a
# torchrun on each machine, as `torchrun.sbatch` does. *Neither was ever run here.* Two things to know:
#
# - torchrun looks for each option in the environment, too: for `--nnodes` in `PET_NNODES`. Kubeflow [sets these
#   variables](https://github.com/kubeflow/trainer/blob/06b555d6ef884257016880d2f719121652b63e23/pkg/runtime/framework/plugins/torch/torch.go),
#   so its command is `torchrun main.py`. SkyPilot sets variables of its own, such as `SKYPILOT_NODE_IPS`, for you to
#   write into torchrun's options.
# - The disk of a pod or of a rented machine is lost when it ends. Write logs and checkpoints to a volume of the
#   cluster, or to a bucket of the cloud.
#
# **Ray Train** needs no torchrun. [Ray](https://docs.ray.io/en/latest/cluster/key-concepts.html) makes a cluster of its
# own. The training becomes a function, and each rank an *actor* (a Python object in a process of its own) that runs it:
# `scripts/rivals/ray_loop.py`, with `main.py`'s weights at the end (a test compares them). Ray gives each rank cores
# and GPUs that no other job has, [finds another
# machine](https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html) when one is lost, and lets [other
# processes](https://docs.ray.io/en/latest/train/user-guides/data-loading-preprocessing.html) prepare the batches. To
# start a Ray takes time: `results/recorded/ray-start` has seconds beside torchrun's.
#
# ## Which one?
#
# | launcher | starts ranks | gives addresses | starts again | how often (if you say nothing) | where the ranks' output is |
# |:--|:--|:--|:--|:--|:--|
# | torchrun | itself | you, or itself | all ranks | `--max-restarts` (0) | on the screen |
# | mp.spawn | your script | your script | nothing | – | on the screen |
# | Slurm | by `srun` | Slurm | the job | `--requeue`: after a node is lost | `--output` names a file |
# | Ray Train | Ray | Ray | all ranks | `max_failures` (0) | where you started it |
# | Kubeflow | by torchrun | Kubeflow | failed pods | [`backoffLimit`](https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy) (6) | `kubectl logs` |
# | SkyPilot | by torchrun | SkyPilot | machines, job | lost machines: always; job: [`max_restarts_on_errors`](https://docs.skypilot.co/en/stable/examples/managed-jobs.html) (0) | `sky jobs logs` |
#
# (`main.py`'s run log goes through none of them: rank 0 writes it, where `--log-file` says.)
#
# `torchrun`, unless there is a reason: it works on one node and on many, restarts the ranks, and names the one that
# failed first. `mp.spawn`, when a program must be started by plain `python`. Slurm alone, when you want no process
# between Slurm and your ranks: Slurm binds each to its cores and its GPU, signals it and logs it. Ray, Kubeflow or
# SkyPilot, if your cluster is run by it.
#
# And what do the ranks use, once they run? `torch.distributed` has three old parts:
#
# | | what it gives | here |
# |:--|:--|:--|
# | **c10d** | process groups and collectives | [03](03_processes_and_ranks.ipynb), [04](04_collectives.ipynb) |
# | **DDP** | a model on each rank, gradients averaged; built on c10d | [06](06_ddp.ipynb) |
# | **RPC** | call a function on another worker, for example a server that keeps the weights | not taught |
#
# Start nothing new with RPC: [its manual](https://docs.pytorch.org/docs/stable/rpc.html) says "stable and in
# maintenance mode", and [so is TensorPipe](https://github.com/pytorch/tensorpipe/pull/468), which carries its messages
# (December 2025). For models too large for one GPU there are FSDP ([13](13_beyond_ddp.ipynb)) and
# [pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), for processes that call each other Ray
# or [Monarch](https://github.com/meta-pytorch/monarch). More: [the
# overview](https://docs.pytorch.org/tutorials/beginner/dist_overview.html), [torchrun's
# manual](https://docs.pytorch.org/docs/stable/elastic/run.html).

# %% [markdown]
# ## What to remember
#
# 1. torchrun tells a rank everything in its environment; `mp.spawn` passes one number, and the rest is up to you.
# 2. A function to spawn stands in a file, below an `if __name__ == "__main__":` guard, and makes its own model.
# 3. Nodes meet by rendezvous: static with numbers (`--node-rank`), or c10d with one endpoint and one id for all.
#
# **Next:** [11 · Fault tolerance](11_fault_tolerance.ipynb): a rank dies, a node is lost; what is left of the training?
