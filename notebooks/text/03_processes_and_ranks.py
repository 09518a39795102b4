# ---
# jupyter:
#   course:
#     minutes: 55
#     quick:
#       parameters:
#         ranks: 2
#         wait: 1
#       seconds: 42
#     seconds: 57
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Processes and ranks
#
# **The question.** A training job is many processes, and all of them run the same program. How does each one know who
# it is, how do they find each other, and how long do they wait for one that is missing?
#
# **You will be able to**
#
# - tell rank, local rank and world size apart, and say which process does which job;
# - make a process group yourself, from nothing but environment variables;
# - say which process listens while the others connect to it;
# - choose a timeout, and read the message of a process that has waited in vain.
#
# **You need** Python, and to know what a process is. [02](02_data_parallel.ipynb) says why one process is not enough.
#
# **Time.** About 55 minutes for you, 1 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import os
import subprocess
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist

from course import rendezvous
from lessons.l03_processes_and_ranks import check, ranks_meet, show

os.environ["OMP_NUM_THREADS"] = "1"  # one thread for each process; lesson 07 says why

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
ranks = 3  # processes that meet
wait = 3  # seconds that a process waits for one that never comes

# %% [markdown]
# ## The names
#
# - **Node**: a machine. **Process**: a running program, with a memory of its own. With GPUs there is usually one
#   process for each GPU.
# - **World size**: how many processes the job has, on all nodes together.
# - **Rank**: the number of a process in the job, from 0 to world size − 1.
# - **Local rank**: its number on its own node. It says which GPU of the node belongs to this process.
# - **Group rank**: the number of the node. (torchrun calls the processes of one node a *group*.)
#
# `torchrun` is PyTorch's **launcher**: it starts the processes of a node and tells each one who it is. It does so by
# **environment variables**, which it sets before the program begins. This program reads four of them:

# %%
# %%writefile results/live/03_hello.py
from os import environ as env

print(f"rank {env['RANK']} of {env['WORLD_SIZE']}: local rank {env['LOCAL_RANK']} "
      f"on node {env['GROUP_RANK']}\n", end="")  # in one piece

# %%
# !torchrun --nproc_per_node=4 results/live/03_hello.py

# %% [markdown]
# The order of the lines is chance: four processes print at the same time. (Older tutorials type `python -m
# torch.distributed.launch` in place of `torchrun`. PyTorch 2.14 answers with a `FutureWarning`: "The module
# torch.distributed.launch is deprecated and will be removed in future. Use torchrun. […] If your script expects
# `--local-rank` argument to be set, please change it to read from `os.environ['LOCAL_RANK']` instead.")
#
# On two nodes you type the same command once on each node, and only `--node-rank` differs:
#
# ```bash
# torchrun --nnodes=2 --node-rank=0 --nproc_per_node=4 --master-addr=node0 --master-port=29500 hello.py  # on node 0
# torchrun --nnodes=2 --node-rank=1 --nproc_per_node=4 --master-addr=node0 --master-port=29500 hello.py  # on node 1
# ```
#
# Each of the two nodes above has four processes.
#
# **Predict.** A process has local rank 1 on node 1. What is its rank?

# %%
my_rank = None  # a whole number

# %% [markdown]
# Here two torchruns on one machine play the two nodes. (The folded cell starts both at the same time.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
port = rendezvous.free_port()
job = f"--nnodes=2 --nproc_per_node=4 --master-addr=localhost --master-port={port}"
hello = "lessons/l03_processes_and_ranks/ranks_meet.py --out results/live/03_hello"
# !torchrun {job} --node-rank=0 {hello} & torchrun {job} --node-rank=1 {hello} && wait $!
processes = ranks_meet.read("results/live/03_hello")
show.ranks_map(pd.DataFrame(processes))
lesson.figure("Each box is a process, each frame a node. The rank counts on from one node to the "
              "next; the local rank begins again at 0.")
ranks_by_place = {(each["group_rank"], each["local_rank"]): each["rank"] for each in processes}
lesson.predicted(my_rank, ranks_by_place[1, 1])

# %% [markdown]
# torchrun fills one node after the other, so the ranks of a node follow one another. Every node has a local rank 0; the
# job has only one rank 0. The last rank found these variables:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
variables = processes[-1]["variables"]
lesson.table([{"variable": f"`{name}`", "says": meaning, "value": variables[name]}
              for name, meaning in rendezvous.MEANING.items()])


# %% [markdown]
# ### Exercise 1: whose job is it?
#
# All ranks run the same program, so the program has to ask: *is this my job?* Some jobs must be done once in the whole
# job, some once on each node, some by every process. Return True if the process with this rank and local rank should do
# it. The jobs are `"train"`, `"print the loss"`, `"write the checkpoint to the shared disk"` and `"download to the
# node's own disk"`.

# %%
def my_turn(job, rank, local_rank):
    raise NotImplementedError


# %%
check.turn(my_turn)
# check.turn.hint()
# check.turn.solution()

# %% [markdown]
# ## The process group
#
# Each process now knows its number. It does not know *where* the others are. `init_process_group` brings them together,
# and returns when all of them have called it. From then on they are a **process group**, which spans all nodes.
# (torchrun uses the word *group* for one node.) The call answers five questions:
#
# | question | argument |
# |:--|:--|
# | Who am I? | `rank` |
# | How many are we? | `world_size` |
# | Where do we meet? | `init_method`, or a `store` |
# | Who carries the data? | `backend` |
# | How long do we wait? | `timeout` |
#
# The ranks of a group make **collective** calls: every rank makes the same call, and in it they exchange data. Two of
# these calls suffice here: `all_reduce` gives every rank the sum of all ranks' tensors; `barrier` moves no data, and
# returns only when every rank has called it. [04](04_collectives.ipynb) shows the others.
#
# The smallest group has one process. This notebook can be that process; the meeting place is its own memory
# (`HashStore`):

# %%
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
numbers = torch.tensor([1.0, 2.0, 3.0])
dist.all_reduce(numbers)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}:", numbers)
dist.destroy_process_group()

# %% [markdown]
# The sum over one rank is the tensor itself. So a program for many ranks also runs on one rank, and there you can debug
# everything except the communication.
#
# **Backend**: *gloo* moves tensors in CPU memory over the network, *nccl* moves tensors from GPU to GPU. The rule:
# **nccl for tensors on GPUs, gloo for tensors on CPUs**, and gloo where two ranks share a GPU, for nccl wants a GPU for
# each rank. If you name no backend, a machine with GPUs gets both. With `"nccl"` alone, a collective of a CPU tensor
# raises an error. ([04](04_collectives.ipynb) has the table of backends and operations.)
#
# On GPUs each rank first chooses its own, before anything goes to a GPU:
#
# ```python
# torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
# ```
#
# (Older code has `torch.cuda.set_device(local_rank)`.) By default neither torchrun nor PyTorch does this for you:
# without it all ranks of a node use GPU 0. (`torchrun --virtual-local-rank` shows each rank one GPU, as number 0.) With
# nccl also say `init_process_group(…, device_id=torch.device("cuda", local_rank))`: the ranks then connect at once, and
# a bad connection shows here, not in the first collective.
#
# ## Where do they meet?
#
# The place is the `init_method`. Programs often have an option for it, `--dist-url`.
#
# - `env://`, the default: at the address and port in the variables `MASTER_ADDR` and `MASTER_PORT`.
# - `tcp://host:port`: at this address and port, which stand in the program.
# - `file:///path`: in a file that all ranks can reach. It must be a **new** file each time.
#
# At an address, one process has to **listen**: it opens the port, and the others connect to it. It runs a **store**
# there, a small service that keeps values by name. With gloo each rank writes its own address into the store, and reads
# the others'. (With nccl rank 0 writes one identifier, and the others read it.)
#
# **Predict.** Who listens with `env://` when we start the processes by hand? And when torchrun starts them?

# %%
my_listener = None  # "rank 0", "the last rank" or "torchrun"
my_listener_torchrun = None  # the same

# %% [markdown]
# First by hand, without a launcher: we set the variables ourselves, and start the same program several times. The
# processes meet by `env://`, then in a file. Once they are connected, each asks the operating system for its own
# connections.

# %%
meeting = Path("results/live/03_meeting").resolve()
meeting.unlink(missing_ok=True)
program = [sys.executable, "lessons/l03_processes_and_ranks/ranks_meet.py",
           "--meet", "env://", f"file://{meeting}", "--out", "results/live/03_by_hand"]
for_all = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(rendezvous.free_port())}
started = [subprocess.Popen(program, env=os.environ | for_all | {"RANK": str(rank)})
           for rank in range(ranks)]
print("exit status of each rank:", [process.wait(timeout=120) for process in started])

# %% [markdown]
# Then torchrun starts them:

# %%
# !torchrun --nproc_per_node={ranks} lessons/l03_processes_and_ranks/ranks_meet.py \
#     --meet env:// --out results/live/03_torchrun

# %%
by_hand = ranks_meet.meetings("results/live/03_by_hand")
by_torchrun = ranks_meet.meetings("results/live/03_torchrun")
show.links_maps({"env://, by hand": by_hand["env://"],
                 "env://, torchrun": by_torchrun["env://"],
                 "file://, by hand": by_hand[f"file://{meeting}"]})
lesson.figure("Orange: an arrow leads from each process to the store where it met the others. "
              "Blue: the connections that carry tensors afterwards. They join every pair of "
              "ranks, wherever the ranks met.")
lesson.predicted(my_listener, ranks_meet.listener(by_hand["env://"][1]))
lesson.predicted(my_listener_torchrun, ranks_meet.listener(by_torchrun["env://"][1]))

# %% [markdown]
# The process that listens also connects to itself. (Blue is gloo's way; nccl connects only the ranks that exchange
# data.)
#
# - By hand, **rank 0** listens. So the port must be free on rank 0's node, and all other ranks must be able to reach
#   it. If rank 0 is late, they try again until the `timeout` of `init_process_group`.
# - With torchrun, **torchrun** listens, before it starts any rank. On one node it picks a free port, since [a change of
#   2026](https://github.com/pytorch/pytorch/pull/175699). Older versions take port 29500, so a second job on the
#   machine fails. In older versions `--standalone` makes torchrun pick a free port.
# - With a file nobody listens: the file is the store, and the ranks read and write it. A file of an earlier run holds
#   the addresses of processes that no longer exist.
#
# ### Exercise 2: be the launcher (on ranks)
#
# *On ranks* means: your code runs in several processes. The check starts four, two on each of two pretended nodes, but
# sets no environment variable. Set the five variables `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
# `MASTER_PORT` in `os.environ`, as torchrun would. Then make one group of all processes, with gloo and a timeout of 30
# seconds, and return `dist.get_rank()`. `hosts` is the list of the nodes' names; `port` is free on all of them.
#
# Replace the `raise` and run the cell: it writes the file. The next cell runs the file on four ranks.

# %%
# %%writefile results/live/03_join.py
import os
from datetime import timedelta

import torch.distributed as dist


def join(node, local_rank, hosts, per_node, port):
    raise NotImplementedError


# %%
check.joined("results/live/03_join.py")
# check.joined.hint()
# check.joined.solution()

# %% [markdown]
# ## How long do they wait?
#
# Sooner or later a rank is missing. The others wait for it as long as the `timeout` of the group says. (If a whole node
# is missing, the torchruns wait for each other, and have not started any rank yet. They have a timeout of their own:
# [10](10_launchers.ipynb).)
#
# **Predict.** If the timeout is too short, it ends a healthy job in which one rank writes a large checkpoint while the
# others wait. If it is too long, 64 GPUs stand still all night. How many minutes does gloo wait if you name no timeout?

# %%
my_minutes = None  # minutes

# %%
default = dist.distributed_c10d.default_pg_timeout
lesson.predicted(my_minutes, default.total_seconds() / 60, "minutes")

# %% [markdown]
# With nccl it is [10
# minutes](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group). After that time
# gloo raises an exception in the call; with nccl a thread in the background ends the process. On a cluster that you pay
# for by the hour, set a timeout of your own. This program sets one, and then rank 1 is busy with something else:

# %%
# %%writefile results/live/03_wait.py
import datetime
import sys
import time

import torch
import torch.distributed as dist

seconds = float(sys.argv[1])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
else:
    time.sleep(3 * seconds + 10)

# %% [markdown]
# We let it fail in three ways. Each failure prints many lines: lines from inside PyTorch's C++ code, warnings of the
# library, Python's traceback. `why_it_failed.py` runs a command and shows only the line that matters.
#
# **1. Rank 0 of 2 is started, rank 1 is not.**

# %%
why = "python scripts/cluster/why_it_failed.py --expect-failure"
env = f"env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={rendezvous.free_port()}"
# !{why} -- {env} RANK=0 python results/live/03_wait.py {wait}

# %% [markdown]
# **2. Rank 1 of 2 is started, rank 0 is not.** A wrong port, or a firewall on the way, looks the same.

# %%
# !{why} -- {env} RANK=1 python results/live/03_wait.py {wait}

# %% [markdown]
# **3. Both ranks meet, and then only rank 0 calls `all_reduce`.**

# %%
# !{why} --all -- torchrun --nproc_per_node=2 results/live/03_wait.py {wait} > results/live/03_out.txt
output = Path("results/live/03_out.txt").read_text().splitlines()
print(*output[-3:], sep="\n")

# %% [markdown]
# On a cluster you get the whole output, without that help. Open it once, and find the line yourself:

# %% jupyter={"outputs_hidden": true} tags=["hide-output"]
print(*output[:-3], sep="\n")

# %% [markdown]
# | the line says | what happened | where to look |
# |:--|:--|:--|
# | *1/2 clients joined* | the ranks never met: some did not come | a rank that was not started, or that has another world size |
# | *trying to connect to …* | the ranks never met: nobody listens | rank 0's node; the address and the port |
# | *Timed out waiting … for recv* | the ranks met, and then one did not take part | the rank that did **not** complain |
#
# In rows 1 and 3 the rank that complains has only waited: look for the rank that is silent. In row 2 look at both
# sides: does rank 0 listen, and has this rank the right address? (This is the wording of PyTorch 2.14. Rows 1 and 2
# come from the **store**, so they are the same with nccl; the store may wait up to a second longer than its timeout.
# Row 3 comes from gloo. The seconds of the whole command include the start of Python.)
#
# ### Exercise 3: one prepares, the others wait (on ranks)
#
# Four ranks on two nodes again; this time they have a process group. Every rank needs `file` (a `Path`) on its node's
# own disk. `download(file)` fetches it, which takes a moment. Download it **once on each node**, and return its text
# (`file.read_text()`) on every rank. No rank may read too early, and none may wait for ever.

# %%
# %%writefile results/live/03_fetch.py
import torch.distributed as dist


def fetch(local_rank, file, download):
    raise NotImplementedError


# %%
check.fetched("results/live/03_fetch.py")
# check.fetched.hint()
# check.fetched.solution()

# %% [markdown]
# The course's own programs do the same: in [`launch.py`](../trainer/launch.py) `find_placement` reads the variables, and
# `init_distributed_mode` makes the group, with backend and timeout. See also the manual of
# [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html).
#
# ## What to remember
#
# 1. **Rank** is a process's number in the job, **local rank** its number on the node. The launcher writes both into the
#    environment.
# 2. One process listens (rank 0, or torchrun). All ranks connect to it, and find each other through it. Then the data
#    goes from rank to rank.
# 3. Always choose a **timeout**. A rank that complains of a timeout has waited for another rank: look at that one, too.
#
# **Next:** [04 · Collectives](04_collectives.ipynb). The ranks have met: what can they do together?
