# ---
# jupyter:
#   course:
#     minutes: 60
#     quick:
#       parameters:
#         images: 768
#         epochs: 1
#         several_hosts: false
#       seconds: 25
#     seconds: 115
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · From one machine to a cluster
#
# **The question.** Your program runs on the ranks of one machine. Now you have two machines, and then a cluster that
# takes job files. Who starts the ranks there, and who tells each of them what it must know?
#
# **At its end** there are two files. With `mine/line.sh` your program trains on two hosts. `mine/job.sbatch` has been
# run by a real Slurm, and a map shows every process that it started.
#
# **You need** ranks, process groups and `torchrun` ([03](03_processes_and_ranks.ipynb)) and your program with its parts.
# The course's parts stand in for those that you have not written.
#
# **Time.** About 60 minutes for you, 2 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import os

import torch

from course import slurm
from course.hosts import Cluster
from lessons.l10_launchers import check, show
from lessons.l10_launchers.who import FIVE

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank

# %% tags=["parameters"]
images, epochs = 3072, 2  # of each training
several_hosts = True  # False: show the recorded runs of two hosts and of Slurm

# %% [markdown]
# ## Two hosts
#
# Here two *network namespaces* of this machine play the hosts. Each has a name, an address and processes of its own.
# They share the cores, so the lesson shows what happens, and not how fast. `lab_cluster.py` types one command on both.
#
# In lesson 03 `torchrun --nproc_per_node=2 mine/train.py` started two ranks that trained together. What happens when it
# is typed on two hosts?
#
# **Predict.** How many lines `epoch 0: …` appear, on both hosts together?

# %%
my_lines = None  # lines

# %%
no_hosts = Cluster.available() if several_hosts else "several_hosts is False"
hosts = "scripts/cluster/lab_cluster.py --nodes 2 --"
alone = "torchrun --nproc_per_node=2 mine/train.py --images 768 --epochs 1"
which, printed = show.run("alone", f"{hosts} '{alone}'", no_hosts)
lesson.verdict(which)
print(printed)
lesson.predicted(my_lines, printed.count("epoch 0"), "lines", what="lines of epoch 0")

# %% [markdown]
# Rank 0 prints, and each host has a rank 0. These are two trainings of two ranks, and each has taken all images. To
# become one job of four ranks, the two torchruns must meet first.
#
# ## The rendezvous
#
# Before any rank starts, the torchruns of all hosts agree which hosts belong to the job, and which number each host has.
# This is the *rendezvous*. There are two kinds.
#
# - **static**: you tell each torchrun the number of its host, and all of them where host 0 listens.
# - **c10d**: the hosts come in any order to one *endpoint*, a host and a port, and get their numbers there. The torchrun
#   on the host of the endpoint listens. Hosts that come under another job id, or to another endpoint, belong to another
#   job.
#
# These are torchrun's options; its [manual](https://docs.pytorch.org/docs/stable/elastic/run.html) has more.
#
# | option | what it says |
# |:--|:--|
# | `--nnodes` | how many hosts the job has |
# | `--nproc-per-node` | how many ranks start on each host |
# | `--node-rank`, `--master-addr`, `--master-port` | static: the number of this host, and where host 0 listens |
# | `--rdzv-backend` | which rendezvous: `static`, the default, or `c10d` |
# | `--rdzv-endpoint` | c10d: where the hosts meet, `HOST:PORT` |
# | `--rdzv-id` | c10d: the id of the job |
#
# ### Exercise 1: one line for two hosts
#
# Write one torchrun line, which is typed on both hosts, word for word the same. Two ranks start on each host, and all
# four train together.
#
# - No host knows its number. In the shell of each host `$MASTER` is the name of the first one.
# - The script is `mine/train.py`. It gets the options that your file is given, `"$@"` in the shell.
# - A line that ends with `\` goes on in the next.
#
# The check lets torchrun read your line on each host. Where this machine can make two hosts, it then types the line on
# both.

# %%
# %%mine line.sh
# torchrun, its options, the script, and "$@"

# %%
check.line("mine/line.sh")
# check.line.hint()
# check.line.solution()

# %% [markdown]
# Now your program trains with it: first in one process, then on the two hosts. Where your line is not right yet, ours
# stands in its place.

# %%
options = f"--images {images} --epochs {epochs}"
line, whose = show.mine_or_ours(check.line, "mine/line.sh")
# !python mine/train.py {options} --save results/live/10_one.pt
which, printed = show.run("hosts", f"{hosts} 'bash {line} {options} --save results/live/10_hosts.pt'", no_hosts)
lesson.verdict(f"{which} It is {whose} line.")
print(printed)

# %% [markdown]
# One line per epoch, from one rank 0. `train.py` needed no change: `join()` reads RANK, WORLD_SIZE, MASTER_ADDR and
# MASTER_PORT, and the launcher has set all of them.
#
# ### Who listens, who connects
#
# The same line once more, and PyTorch logs what happens. Behind each port is a **store**, a small server that keeps names
# and values: there the hosts count themselves, and later the ranks find each other's addresses.

# %%
logged = "TORCH_CPP_LOG_LEVEL=INFO LOGLEVEL=INFO"
which, printed = show.run("rendezvous", f"{hosts} '{logged} bash {line} --images 768 --epochs 1'", no_hosts,
                          keep=show.MEETING)
lesson.verdict(which)
lesson.table(show.meeting(printed))

# %% [markdown]
# No host was told its number. The torchrun whose host is that of the endpoint opens the store there. All torchruns
# connect to it, this one included. When as many are there as `--nnodes` says, each gets a number, and from it the
# numbers of its ranks. The host with number 0 opens a second store for the ranks, at a free port, and passes it on.
#
# Between real machines two more things go wrong.
#
# - A host has several networks, and gloo or NCCL chooses one that does not reach the others.
#   `GLOO_SOCKET_IFNAME=eth0` and `NCCL_SOCKET_IFNAME=eth0` name the right one; `NCCL_DEBUG=INFO` prints which one NCCL
#   uses.
# - Ranks connect to each other at ports of their own choice. A firewall must let all of them pass, not the endpoint's
#   port alone.
#
# ## Slurm
#
# A cluster has many users, so nobody types lines on its nodes. You hand a *job file* to Slurm, on a *login node*:
# `sbatch FILE`. Slurm waits until enough nodes are free, and then runs the file **on the first of them**. In the file,
# `srun COMMAND` starts the command on the nodes of the job. Each process that it starts is a *task*.
#
# The file says what the job asks for, in lines `#SBATCH --option=value` above its first command. You need two:
#
# | option | what it says |
# |:--|:--|
# | `--nodes` | how many nodes the job gets |
# | `--ntasks-per-node` | how many times `srun` starts its command on each node |
#
# `srun` and the file find in their environment:
#
# | variable | what it is |
# |:--|:--|
# | `SLURM_JOB_ID` | a number that no other job has |
# | `SLURM_JOB_NODELIST` | the nodes in short, `node[1-2]`; `scontrol show hostnames "$SLURM_JOB_NODELIST"` prints one per line |
#
# ### Exercise 2: a job file
#
# Write a job of two nodes, with two ranks on each, started by torchrun. They run `mine/train.py` with the options that
# the file is given.
#
# - The first line of the file names the shell: `#!/bin/bash`.
# - Two of your jobs may get the same node. A port that is written into the file would let the second one meet the
#   first. So let each job meet at a port of its own, from 20000 to 65535.
# - In a shell `$((7 + 2))` computes a number and `$((123456 % 1000))` a remainder, `$(command)` is the output of a
#   command, and `head -n 1` passes on its first line.
#
# The check rehearses your file with a `srun` and a torchrun that start nothing. Where this machine has Slurm, it then
# hands the file to Slurm.

# %%
# %%mine job.sbatch
# Replace this line by your file.

# %%
check.job("mine/job.sbatch")
# check.job.hint()
# check.job.solution()

# %% [markdown]
# ## The map
#
# The same file once more, with a program in the place of `train.py` that asks instead of training: on which host am I,
# who started me, and which variables did I get? The map is drawn from these answers.
#
# **Predict.** A rank needs five facts: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. How many of the five does
# `srun` tell the torchrun that it starts?

# %%
my_facts = None  # of the five

# %%
no_slurm = no_hosts or slurm.missing()
job, whose = show.mine_or_ours(check.job, "mine/job.sbatch")
which, reports = show.reports_of(job, check.by_slurm, no_slurm)
lesson.verdict(f"{which} It is {whose} file.")
lesson.predicted(my_facts, len(set(FIVE) & set(reports[0]["launcher"])), "of five", what="facts that srun tells")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.map_of(reports)
lesson.figure("A job on two nodes, as its processes reported it. Each box lists the variables that matter here; "
              "a process also inherits those of the one above it.")

# %% [markdown]
# Slurm knows jobs, nodes and tasks, and no ranks. The torchruns met, and numbered four ranks. They met at the port of your
# endpoint. With c10d the ranks got another port, on the first node, passed on as MASTER_PORT. Now your job trains.

# %%
command = f"scripts/cluster/slurm_lab.py --nodes 2 -- lessons/l10_launchers/submit.sh {job} {options}"
which, printed = show.run("slurm", f"{command} --save results/live/10_slurm.pt", no_slurm)
lesson.verdict(f"{which} It is {whose} file.")
print(printed)

# %% [markdown]
# Three launches have trained your program. How far are the weights from those of one process?

# %%
one = torch.load("results/live/10_one.pt", weights_only=True)
rows = [{"launch": "one process", "hosts": 1, "ranks": 1, "largest difference of a weight": "0"}]
for launch, missing in (("hosts", no_hosts), ("slurm", no_slurm)):
    if not missing:
        weights = torch.load(f"results/live/10_{launch}.pt", weights_only=True)
        far = max((weights[name] - one[name]).abs().max().item() for name in one)
        rows.append({"launch": {"hosts": "your line, or ours", "slurm": "your job, or ours"}[launch], "hosts": 2,
                     "ranks": 4, "largest difference of a weight": lesson.small(far)})
lesson.table(rows)

# %% [markdown]
# So little can be left by rounding: four ranks add in another order than one, and float32 keeps about seven digits. How
# small the rest is in float64, [06](06_ddp.ipynb) shows on one machine. **A launcher starts processes. It does not change what they
# compute.** At the beginning two hosts trained two models. Now they train one.
#
# [`scripts/cluster/torchrun.sbatch`](../scripts/cluster/torchrun.sbatch) is such a file for real clusters. It does two
# things more.
#
# - It asks for a warning: `#SBATCH --signal=USR1@120` sends USR1 two minutes before the job's time is over. `main.py`
#   then saves and stops, and the file queues the job again.
# - It gives each rank its cores. A task gets one core unless `--cpus-per-task` says more. Since Slurm 22.05 `srun` does
#   not take this number over from `sbatch`, so the file exports `SRUN_CPUS_PER_TASK`.
#
# ## Which GPUs does a task see?
#
# There is a second way: `srun` starts every rank itself, without torchrun. Then nobody sets RANK. In each task your
# `join()` would take the process for a single one, and each would train alone. `main.py` translates Slurm's names
# (`slurm_names` in [launch.py](../trainer/launch.py)): `SLURM_PROCID` is the rank, `SLURM_LOCALID` the local rank, and
# `SLURM_STEP_NUM_TASKS` the world size.
#
# With one task per rank the GPUs are handed out, too, and two ways look alike. A Slurm that believes in four GPUs is
# asked for both. Slurm is real; the GPUs are not.

# %%
tasks = "srun --label --nodes=1 --ntasks-per-node=4 --cpus-per-task=1"
see = "sh -c 'echo CUDA_VISIBLE_DEVICES: ${CUDA_VISIBLE_DEVICES-not set}'"
for name, way in (("per_task", "--gpus-per-task=1"), ("no_binding", "--gpus-per-node=4 --gpu-bind=none")):
    which, printed = show.run(name, f"scripts/cluster/slurm_lab.py --nodes 1 --gpus 4 -- {tasks} {way} {see}", no_slurm,
                              keep="CUDA")
    print(way, *sorted(printed.splitlines()), sep="\n")
lesson.verdict(which)

# %% [markdown]
# - With **`--gpus-per-task=1`** each rank sees one GPU alone, which it calls `cuda:0`. So
#   `torch.cuda.set_device(local_rank)` fails on all ranks but the first. On a cluster that constrains devices each task may
#   print 0. And a rank does not see the GPUs of its peers: a user of a Slurm cluster reports that NCCL then went over PCIe
#   without a word, and an NCCL maintainer answers that it must see all GPUs of the node to find each NVLink ([issue
#   1066](https://github.com/NVIDIA/nccl/issues/1066), 2023-11-13). [Open
#   MPI](https://github.com/open-mpi/ompi/issues/11949) has such a report, too.
# - With **`--gpus-per-node=8 --ntasks-per-node=8 --gpu-bind=none`** the variable is not set here; a cluster may set it
#   to all of them. Either way every rank sees all eight GPUs of its node, and takes the one of its local rank. This is the usual advice. It is what a rank under torchrun sees as well, where one task
#   per node gets all GPUs.
#
# *Not run here: NCCL under either binding.* `NCCL_DEBUG=INFO` prints the way it takes, `P2P/IPC` or `SHM`.
#
# ## mp.spawn, in ten lines
#
# Without any launcher, a program can start its ranks itself, with `torch.multiprocessing.spawn`. It passes each process
# one number, its rank. Everything else is up to you: here the ranks meet in a file.

# %%
# %%writefile results/live/10_spawn.py
import tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def be_rank(rank, world_size, meet):
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world_size)
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.tensor([[rank + 1.0]])).sum().backward()  # the gradient is rank + 1
    print(f"rank {rank}: mean gradient {model.module.weight.grad.item()}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(be_rank, (2, f"file://{folder}/meet"), nprocs=2)

# %%
# !python results/live/10_spawn.py

# %% [markdown]
# The function stands in a file, and the call of `mp.spawn` below a guard: each new process imports that file, and without
# the guard would spawn again. Use `mp.spawn` where a program must be started by plain `python`. It stays on one machine,
# and restarts nothing. Where a rank fails, it ends the others and raises an error with that rank's number. [What goes
# wrong with it](../site/pages/launchers.md#what-goes-wrong-with-mpspawn) stands in one table.
#
# <details><summary><b>Card: a tutorial's trainer for mp.spawn</b></summary>
#
# [`cards/spawn_trainer.py`](../lessons/l10_launchers/cards/spawn_trainer.py) has the settings that such tutorials have:
# a `Trainer` class, `--n_gpus`, Adam with 0.001, batches of 8 per process, ten epochs, and a small CNN. Start it with
# `python lessons/l10_launchers/cards/spawn_trainer.py --n_gpus 2`, or with `--images 640 --epochs 1` for a first look.
# With 8 images per process the global batch grows with `--n_gpus`, so the training changes with the number of GPUs (lesson
# [09](09_large_batch.ipynb)). And the loss that it prints is that of rank 0's images.
#
# </details>
#
# <details><summary><b>Card: older launchers and versions</b></summary>
#
# | PyTorch | how ranks are started, and what a script gets |
# |:--|:--|
# | before 1.10 | `python -m torch.distributed.launch` passes `--local_rank`; with `--use_env` it sets LOCAL_RANK in its place |
# | from 1.10 | `torchrun` sets LOCAL_RANK, and passes nothing; `launch` is [deprecated](https://docs.pytorch.org/docs/stable/distributed.html#launch-utility) |
# | before 2.0 | options with underscores, `--nproc_per_node`; torchrun understands both spellings today |
# | from 2.0 | `launch` passes `--local-rank`, with a hyphen: [*unrecognized arguments*](../gallery/local_rank.py) in old scripts |
#
# A script for all of them accepts both spellings, and takes LOCAL_RANK from the environment where it gets neither. The
# package [`torchrun` on PyPI](https://pypi.org/project/torchrun/) is another program.
#
# </details>
#
# <details><summary><b>Card: a print that only rank 0 obeys</b></summary>
#
# Published scripts replace Python's own `print`, as [DETR](https://github.com/facebookresearch/detr/blob/main/util/misc.py)
# does in `setup_for_distributed`:
#
# ```python
# def setup_for_distributed(is_master):
#     import builtins as __builtin__
#     builtin_print = __builtin__.print
#
#     def print(*args, **kwargs):
#         force = kwargs.pop('force', False)
#         if is_master or force:
#             builtin_print(*args, **kwargs)
#
#     __builtin__.print = print
# ```
#
# `torchrun --nproc_per_node=2 lessons/l10_launchers/cards/quiet_print.py` shows what it hides. The loss turns into `nan`;
# rank 1 prints why, and nobody reads it. What libraries print on rank 1 is lost, too. Write `if rank == 0: print(…)` where you mean it, and print
# numbers that were summed over all ranks. `torchrun --tee=3 --log-dir=logs` keeps every rank's output in a file, and
# begins each line on the screen with its local rank, `[default0]:`.
#
# </details>
#
# [Other launchers](../site/pages/launchers.md), Ray, Kubernetes, SkyPilot and MPI among them, stand in one table, with
# what was run here and what was not.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. The same torchrun line on every host: so many nodes, so many ranks on each, one endpoint for all.
# 2. Slurm runs the file on the first node; `srun` starts one torchrun per node; torchrun tells the ranks who they are.
# 3. Let each rank see all GPUs of its node, and take the one of its local rank.
#
# **Next:** [11 · Fault tolerance](11_fault_tolerance.ipynb): a rank dies, a node is lost; what is left of the training?
