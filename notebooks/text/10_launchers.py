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
# **The question.** Who starts the ranks, and what does each launcher do for you: `torchrun`, `mp.spawn`, Slurm and
# others, on one machine and on several?
#
# **You will be able to**
#
# - say what a rank is told by its launcher, and what it has to find out by itself;
# - start ranks from Python without the three classic failures;
# - write a torchrun line that two machines accept, and a file that Slurm accepts;
# - find the cause in what a failed launch prints.
#
# **You need** [03](03_processes_and_ranks.ipynb): rank, process group, where ranks meet.
#
# **Time.** About 75 minutes for you, 2 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import inspect
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.multiprocessing as mp
from IPython.core.magic import register_cell_magic

from trainer import data
from course import plots, processes, slurm
from course.hosts import Cluster, where
from lessons.l10_launchers import check, show, spawn_mnist

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
# **Predict.** To meet the others, a rank needs RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
# ([03](03_processes_and_ranks.ipynb)). How many of the five does it get from `torchrun`? How many from `mp.spawn`?

# %%
needed = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
my_torchrun = None  # of the five
my_spawn = None  # of the five

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 08 says why
live, recorded = Path("results/live"), Path("results/recorded")
lessons, cluster = Path("lessons/l10_launchers"), Path("scripts/cluster")
for old in live.glob("10_*"):
    old.unlink()
# !torchrun --nproc_per_node=2 {lessons}/hello_rank.py --out {live}/10_torchrun.txt
# !python {lessons}/hello_rank.py --spawn 2 --out {live}/10_spawn.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
def ranks_of(way):
    lines = (live / f"10_{way}.txt").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda rank: rank["rank"])


by_torchrun, by_spawn = ranks_of("torchrun"), ranks_of("spawn")
lesson.predicted(my_torchrun, len(needed & set(by_torchrun[0]["variables"])), "from torchrun")
lesson.predicted(my_spawn, len(needed & set(by_spawn[0]["variables"])), "from mp.spawn")
show.process_tree(by_torchrun + by_spawn, needed)
lesson.figure("The processes of the two commands. In both, one process starts all ranks. "
              "torchrun also tells each rank the five facts; plain Python does not.")
lesson.table(show.variables(by_torchrun[0]["variables"]))

# %% [markdown]
# The first eight are those of [03](03_processes_and_ranks.ipynb). (The meanings follow [torchrun's
# documentation](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables) and its source.)
# `mp.spawn` passes one number, as the first argument of the function. The script must find out everything else.
#
# **Why is there no `--world-size` any more?** [Scripts older than
# torchrun](https://github.com/pytorch/examples/blob/main/imagenet/main.py) have options `--world-size`, `--rank` and
# `--dist-url` (the `init_method`), which a person typed on each node. Today the launcher knows these values. In an
# *elastic* job, which nodes may join and leave, nobody else could: the world size changes while the job runs.
#
# ## mp.spawn from a notebook
#
# You sit in a notebook and want two ranks, quickly. Python knows three ways to start another process, and two matter
# here. **spawn** starts a new Python, which knows nothing of the first. **fork** (Linux, macOS) copies the process that
# runs. (The third, **forkserver**, forks from a clean helper, and needs a function in a file, as spawn does.)
#
# Some of these attempts fail, or never end. So each runs in a **notebook of its own**, which has the function `add_up`.
# A cell that takes longer than its limit is ended, with everything that it started.
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
# shows the decisive line of its output.)

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
# Each new process imports the file, to find `work`. So it reaches the last line, which starts new processes, and so on.
# Python notices and stops: *bootstrapping phase*. The **guard** `if __name__ == "__main__":` above that line is true in
# the first process only. Every script that spawns has one. (In a notebook it does not help: what a cell defines cannot
# be imported.)
#
# **What does a process get?** Many published trainers hand a whole object to `mp.spawn`. Python **pickles** the
# arguments: it writes them as bytes, sends these, and builds new objects from them in the new process. Below, each rank
# counts a step and sets the weight to 7.
#
# **Predict.** Which number of steps does the parent see afterwards, and which weight?

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
# A number in the object is a copy: the parent never sees what a rank does to it. But `torch.multiprocessing` does not
# copy a CPU tensor. It moves the tensor to **shared memory**, so the parent and all ranks have one model between them,
# and two optimizers would update the same weights. (`model.to("cuda")` gives each rank a copy of its own, so with GPUs
# nobody notices.) Make the model and the optimizer *inside* the function, on each rank ([the
# manual](https://docs.pytorch.org/docs/stable/multiprocessing.html)).
#
# ### Exercise 1: a function for `mp.spawn`
#
# `mp.spawn` calls `be_rank(rank, world_size, port, file)` in three processes. Make one group of them, with gloo, at
# `port` of this machine (127.0.0.1), and with a timeout. Add up the numbers `rank + 1` of all ranks. Rank 0 writes the
# sum into `file` (a `Path`). Every rank leaves the group at the end.

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
# All ranks write to the same screen. Each of four ranks prints 20 lines with `print(line)`, then 20 with one `write`.
# All print at the same moments, as ranks do at the end of a step.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
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
# **Predict.** With `print`, how many lines on the screen hold the words of several ranks?

# %%
my_glued = None  # lines; 80 are printed

# %%
chatter = f"torchrun --nproc_per_node=4 {live}/10_chatter.py"
screen = processes.said(chatter).splitlines()
glued = [line for line in screen if line.count("rank") > 1]
by_print = [line for line in glued if "print" in line]
lesson.predicted(my_glued, len(by_print), "lines")
print(*by_print[:3], f"by write: {len(glued) - len(by_print)} such lines", sep="\n")

# %% [markdown]
# torchrun starts Python with `-u`, so nothing that is printed waits in a buffer. Then `print` writes the text and the
# end of the line in two steps, and another rank may write in between. How often this happens is chance. A short line
# that is written in one piece stays whole. The **order** is chance, too: it does not say which rank was first. What to
# do:
#
# - Let rank 0 print for all, `if rank == 0: print(…)`, and print numbers that were summed over all ranks.
# - With `torchrun --tee=3 --log-dir=logs` each line on the screen begins with its local rank, `[default0]:`, and each
#   rank's output and errors are kept in files of its own. (`--redirects=3` keeps them in the files only. `--log-dir`
#   alone keeps nothing.)
# - Some published scripts replace Python's own `print`, so that only rank 0 prints: `setup_for_distributed`, in
#   [DETR](https://github.com/facebookresearch/detr/blob/main/util/misc.py) for one. There `print(text, force=True)`
#   prints on every rank. The replacement hides what you need when something breaks: the last words of rank 3, and those
#   of every library that prints.
#
# ## One training, several launchers
#
# `main.py` trains on MNIST: first one process with batch 64, then two ranks of torchrun with batch 32 each.
# `spawn_mnist.py` does the same training with `mp.spawn`, with the same seed and the same images. This is the life of
# one of its processes. Torchrun would have done the first lines for it:

# %%
lesson.code(spawn_mnist.be_rank)

# %% [markdown]
# Trainers with `--n_gpus`, Adam, batches of 8, ten epochs and a CNN of 32, 64 and 128 channels, as tutorials have them,
# differ from this one in *what* they train. How their processes start and meet is the same.
#
# (`--no-channels-last`: `main.py` then lays out images in memory as `spawn_mnist.py` does. On two GPUs, as
# [Kaggle](../site/pages/systems.md) lends them, leave out `--device cpu`: each process has a GPU, and NCCL carries the
# gradients.)
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


one, two = torch.load(live / "10_one.pt"), torch.load(live / "10_torchrun.pt")
lesson.predicted(my_difference, farthest(one, two))

# %% [markdown]
# The difference that remains is rounding: float32 keeps about seven digits, and two ranks add in another order. **A
# launcher starts processes. It does not change what they compute.**
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
# The new script accepts both spellings, and without either it reads the environment variable. So it works with every
# launcher. If you only use torchrun, `int(os.environ["LOCAL_RANK"])` is enough.
#
# (`torchrun` came with PyTorch 1.10, and [the hyphen with
# 2.0](https://docs.pytorch.org/docs/stable/distributed.html#launch-utility). The package
# [`torchrun` on PyPI](https://pypi.org/project/torchrun/) is another program.)
#
# ## Restarts
#
# torchrun watches its ranks. With `--max-restarts=1` it starts again, once, when one fails. Here rank 1 of 3 fails at
# its first attempt.
#
# **Predict.** How many times does torchrun start a rank, in both attempts together?

# %%
my_processes = None  # processes

# %%
# !torchrun --nproc_per_node=3 --max-restarts=1 {lessons}/hello_rank.py --fail 1 \
#     --out {live}/10_restart.txt 2> {live}/10_restart.err

# %% jupyter={"source_hidden": true} tags=["hide-input"]
started = pd.read_json(live / "10_restart.txt", lines=True).to_dict("records")
lesson.predicted(my_processes, len(started), "processes")
begin = min(process["first_line"] for process in started)
plots.timeline(pd.DataFrame([
    {"rank": process["rank"], "event": f"attempt {process['attempt']}",
     "text": process["end"].split(" ", 2)[2],  # without "rank N"
     "start": 1000 * (process["first_line"] - begin), "end": 1000 * (process["ready"] - begin)}
    for process in started]), plt.subplots(figsize=(14, 5))[1])
lesson.figure("Rank 1 fails, and torchrun ends the two healthy ranks, too. "
              "Then it starts all three again.")

# %% [markdown]
# torchrun ends the other ranks with the signal SIGTERM, a polite *please stop*. (A rank that does not stop gets
# SIGKILL.) Then it starts all ranks again, also the healthy ones: they were in the middle of a step with the rank that
# failed. A new process begins at the first line of your script, so a script that is to be restarted saves checkpoints.
# [11](11_fault_tolerance.ipynb) is about that.
#
# ## The rendezvous
#
# Before any rank starts, the torchruns of all nodes must agree which nodes belong to the job. This is the
# **rendezvous**. Here torchrun says how it understands its options, and starts nothing:

# %%
c10d = "--rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=7"
ways = ["--nnodes=1", "--master-port=29500", f"--nnodes=2 {c10d}", f"--nnodes=1:2 {c10d}"]
lesson.table([{"torchrun": f"`{way}`"} | show.rendezvous(show.launch_config(way)) for way in ways])

# %% [markdown]
# There are two kinds:
#
# - **static**: you tell each torchrun its own number (`--node-rank`, from 0), and all of them where node 0 listens
#   (`--master-addr`, `--master-port`).
# - **c10d**: the nodes come in any order to the same `--rdzv-endpoint`, with the same `--rdzv-id` (the name of the
#   job), and get their numbers there. The host of the endpoint is one of the nodes: its torchrun listens there.
#   `--node-rank` is ignored. A range such as `--nnodes=1:2` lets nodes come and go: the job is *elastic*.
#
# With the static rendezvous each of two nodes gets a command of its own:
#
# ```bash
# torchrun --nnodes=2 --node-rank=0 --master-addr=node0 --master-port=29500 main.py  # on node0
# torchrun --nnodes=2 --node-rank=1 --master-addr=node0 --master-port=29500 main.py  # on node1
# ```
#
# A job on one node uses c10d by itself, with port 0, which means *any free port*. (Before [a change of February
# 2026](https://github.com/pytorch/pytorch/pull/175699) it did so only with `--standalone`.) `--master-port`, or
# `--nnodes=2` without `--rdzv-…`, means static.
#
# The last column of the table above says how long a torchrun waits for nodes that have not come yet. So long a wait is
# right where nodes boot slowly, and expensive after a typing mistake. Set it by `--rdzv-conf=timeout=SECONDS`, for c10d
# by `--rdzv-conf=join_timeout=SECONDS`.
#
# ### Exercise 2: three launches that failed
#
# The consoles of three launches follow. (`grep` leaves out the lines that only say through which functions of torch the
# error came.) What is the cause of each failure? Answer with `port` (another program has the port), `node` (a node has
# not come), `rank 0` or `rank 1` (this rank failed first), or `option` (torchrun does not know an option).

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
# On two machines you type one line on each. Here two *network namespaces* of this machine play the machines: each has a
# name, an address and processes of its own. They share the cores, so this shows what happens, not how fast. It needs
# Linux and the right to make namespaces.
#
# ### Exercise 3: one line for two hosts
#
# Write one torchrun line that is typed, word for word the same, on `node0` and on `node1`. No host knows its number. In
# the shell of each host `$MASTER` is `node0`. Two ranks start on each host, four in all. They run `main.py` with the
# options that your file is given: `"$@"` stands for them. (A line that ends with `\` goes on in the next.)
#
# The check lets torchrun's own parser read your line on each host. Where this machine can make two hosts, it then types
# the line on both.

# %%
# %%writefile results/live/10_line.sh
# torchrun, its options, the script, and "$@"

# %%
check.line(live / "10_line.sh")
# check.line.hint()
# check.line.solution()

# %% [markdown]
# Now two hosts train with your line. A step has as many images as in one process above: 16 on each of four ranks.
# (Where your line is not right yet, ours stands in its place.)

# %%
why_not = Cluster.available() if several_nodes else "several_nodes is False"
file = recorded / "two-nodes-namespaces/console-static.out"
line, whose_line = show.mine_or_ours(check.line, live / "10_our_line.sh")
lab = (f"{cluster}/lab_cluster.py --nodes 2 --"
       f" 'bash {line} {mnist} --batch-size 16 --save-model {live}/10_line.pt'")
lesson.verdict(where(why_not, file) + (
    " There the nodes met in the static way, and trained on CIFAR-10." if why_not else
    f" The line is {whose_line}."))
print(show.essential(file.read_text() if why_not else processes.said(lab)))

# %% [markdown]
# `main.py` needed no change: the variables tell it everything.
#
# Between real machines two more things go wrong. A node may have several networks, and gloo or NCCL may choose one that
# does not reach the other node: `GLOO_SOCKET_IFNAME=eth0` or `NCCL_SOCKET_IFNAME=eth0` names the right one
# (`NCCL_DEBUG=INFO` prints which one NCCL uses). And ranks connect to each other at ports of their own choice, so a
# firewall between the nodes must let all of these pass, not only the port of the rendezvous.
#
# [11](11_fault_tolerance.ipynb) shows what happens when one of the nodes is lost.
#
# ## Slurm
#
# On a cluster you hand a file to Slurm: `sbatch FILE` makes it a *job*. Slurm finds free nodes, and runs the file **on
# the first of them**. In the file, `srun` starts one command several times, on all nodes of the job. Each of these
# processes is a *task*: a rank, or a torchrun that starts the ranks of its node.
#
# Lines `#SBATCH --option=value` above the first command say what the job asks for. You need two:
#
# - `--nodes=2`
# - `--ntasks-per-node=1`: how often `srun` starts its command on each node
#
# Slurm sets variables for the job. `$SLURM_JOB_ID` is its number, which no other job has. `$SLURM_JOB_NODELIST` names
# its nodes in short, `node[1-2]`, and `scontrol show hostnames "$SLURM_JOB_NODELIST"` prints them one a line.
#
# ### Exercise 4: a file for Slurm
#
# Write a job of two nodes, which have no GPU here, with two ranks on each. It runs `main.py` with the options that the
# file is given. Two jobs may share a node. With one port written into the file, the second job would meet the first: so
# let each job meet at a port of its own, from 20000 on. A port is at most 65535. (In a shell `$((7 + 2))` computes a
# number, `$((123456 % 1000))` is the remainder 456, `$(command)` is the output of a command, and `head -n 1` is its
# first line.)
#
# The check rehearses the job with a `srun` and a torchrun that start nothing. Where this machine has Slurm, it then
# hands your file to Slurm, on two hosts as above.

# %%
# %%writefile results/live/10_job.sbatch
# Replace this line. The first line names the shell, #!/bin/bash; then #SBATCH lines; then commands.

# %%
check.job(live / "10_job.sbatch")
# check.job.hint()
# check.job.solution()

# %% [markdown]
# Above, `srun` starts one torchrun on each node. In a second way it starts every rank itself, and nobody sets `RANK`.
# Slurm tells each task the same facts under other names, and `main.py` translates them (`slurm_names` in
# [launch.py](../trainer/launch.py)):
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
    " There they trained on CIFAR-10." if no_slurm else f" The second file is {whose_job}."))
print(show.essential("".join(file.read_text() for file in files) if no_slurm else
                     processes.said(lab)))

# %% [markdown]
# `0:` is the number of the task (`srun --label`). First come the epochs of `ranks.sbatch`, then those of the other
# file. How far are the weights of each launch of this lesson from those of one process?

# %%
trained = {path.stem[3:]: torch.load(path) for path in live.glob("10_*.pt")}
lesson.table([{"launch": way, "largest difference": f"{farthest(one, trained[way]):.0e}"}
              for way in sorted(trained.keys() - {"one"})])

# %% [markdown]
# `scripts/cluster/torchrun.sbatch` is such a file for real clusters. It does two things more:
#
# - It asks Slurm for a warning: `#SBATCH --signal=USR1@120` sends USR1 two minutes before the job's time is over.
#   (Without it a job gets SIGTERM at the limit, and SIGKILL soon after.) `main.py` then saves and stops, and the file
#   queues the job again. The signal would kill torchrun, so `trap "" USR1` lets torchrun ignore it.
# - It gives each rank its cores. A task gets one core unless `--cpus-per-task` says more, and data loading is then slow
#   for no visible reason. Since Slurm 22.05 `srun` does not take this number over from `sbatch`, so the file exports
#   `SRUN_CPUS_PER_TASK`.
#
# **Which cores belong to which GPU?** In a node with two processors each GPU is attached to one of them, and the memory
# of the other processor is farther away. `torchrun --numa-binding=node` keeps a rank on the cores near its GPU
# (`torchrun --help`). Where a task is a rank, `srun --gpus-per-task=1` shows each rank one GPU alone
# ([manual](https://slurm.schedmd.com/srun.html#OPT_gpus-per-task)). This GPU is `cuda:0` in every rank, so
# `torch.cuda.set_device(local_rank)` fails on all ranks but the first. `main.py` uses the GPU that it sees.
#
# ## Which launcher?
#
# | launcher | ranks are started by | after a failure it restarts | how often by default | a rank's output |
# |:--|:--|:--|:--|:--|
# | torchrun | torchrun | all ranks | `--max-restarts`: 0 | on the screen |
# | mp.spawn | your script | nothing | – | on the screen |
# | Slurm | `srun` | the job, after a lost node | always, unless `--no-requeue` or the site forbids it | the file of `--output` |
# | Ray Train | Ray | all ranks | `max_failures`: 0 | where you started it |
# | Kubeflow | torchrun | the failed pods | [`backoffLimit`](https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy): 6 | `kubectl logs` |
#
# Use `torchrun` unless there is a reason: it works on one node and on many, restarts the ranks, and names the rank that
# failed first. Use `mp.spawn` when a program must be started by plain `python`. Use Slurm alone when no process shall
# stand between Slurm and your ranks: it binds each rank to its cores and its GPU, and signals and logs it. Use Ray or
# Kubernetes where your cluster runs it:
#
# - **Kubernetes** (with Kubeflow Trainer) and rented machines (with SkyPilot) start a torchrun on each machine.
#   Kubeflow [passes torchrun its options in
#   variables](https://github.com/kubeflow/trainer/blob/06b555d6ef884257016880d2f719121652b63e23/pkg/runtime/framework/plugins/torch/torch.go),
#   such as `PET_NNODES` for `--nnodes`, so the command is `torchrun main.py`. The disk of such a machine is lost with
#   it: write logs and checkpoints to a volume or a bucket. *Neither was run here.*
# - **Ray Train** needs no torchrun. The training is a function, and each rank runs it in a process of Ray's
#   ([`scripts/rivals/ray_loop.py`](../scripts/rivals/ray_loop.py) ends with `main.py`'s weights, as a test shows). Ray
#   reserves each rank's cores and GPUs, and [replaces a lost
#   machine](https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html). It started two ranks in 7 to 14
#   times torchrun's seconds (`results/recorded/ray-start`).
#
# Once the ranks run, `torch.distributed` offers them three old parts: **c10d**, process groups and collectives
# ([03](03_processes_and_ranks.ipynb), [04](04_collectives.ipynb)); **DDP**, which is built on c10d and averages
# gradients ([06](06_ddp.ipynb)); and **RPC**, which calls a function on another worker, such as a server that keeps the
# weights. Start nothing new with RPC: [its manual](https://docs.pytorch.org/docs/stable/rpc.html) says "stable and in
# maintenance mode". Models too large for one GPU need FSDP ([13](13_beyond_ddp.ipynb)) or
# [pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html). Processes that call each other use Ray
# or [Monarch](https://github.com/meta-pytorch/monarch).

# %% [markdown]
# ## What to remember
#
# 1. torchrun tells a rank everything in its environment; `mp.spawn` passes one number, and the rest is up to you.
# 2. A function to spawn stands in a file, below an `if __name__ == "__main__":` guard, and makes its own model.
# 3. Nodes meet by rendezvous: static with numbers (`--node-rank`), or c10d with one endpoint and one id for all.
#
# **Next:** [11 · Fault tolerance](11_fault_tolerance.ipynb): a rank dies, a node is lost; what is left of the training?
