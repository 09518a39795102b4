# ---
# jupyter:
#   course:
#     minutes: 55
#     quick:
#       parameters:
#         ranks: 2
#         wait: 1
#       seconds: 40
#     seconds: 55
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
# - say who listens where the processes meet;
# - choose a timeout, and read what a process says that has waited in vain.
#
# **You need** Python, and to know what a process is. [02](02_data_parallel.ipynb) says why one process is not enough.
#
# **Time.** About 55 minutes for you, 1 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import os
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed as dist

from course import rendezvous
from lessons.l03_processes_and_ranks import check, ranks_meet, show

# %% tags=["parameters"]
ranks = 3  # processes that meet
wait = 3  # seconds that a process waits for one that never comes

# %% [markdown]
# ## The names
#
# - **Node**: a machine. **Process**: a running program, with a memory of its own. On GPUs usually one process for each
#   GPU.
# - **World size**: how many processes the job has, on all nodes together.
# - **Rank**: the number of a process in the job, from 0 to world size − 1.
# - **Local rank**: its number on its own node. It says which GPU of the node belongs to this process.
# - **Group rank**: the number of the node. (torchrun calls the processes of one node a *group*.)
#
# `torchrun` is PyTorch's **launcher**: the program that starts the processes of a node and tells each one who it is. On
# several nodes one torchrun runs on each. Here two torchruns on this machine play two nodes, with four processes each:
# `&` starts the first in the background, and `wait $!` waits for its end.
#
# **Predict.** A process has local rank 1 on node 1. What is its rank?

# %%
my_rank = None  # a whole number

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread for each process; lesson 07 says why
port = rendezvous.free_port()
job = f"--nnodes=2 --nproc_per_node=4 --master-addr=localhost --master-port={port}"
hello = "lessons/l03_processes_and_ranks/ranks_meet.py --out results/live/03_hello"
# !torchrun {job} --node-rank=0 {hello} & torchrun {job} --node-rank=1 {hello} && wait $!

# %% [markdown]
# The order of the lines is chance: eight processes print at the same time. Each one also wrote what it knows into a
# file of its own. The map is made from those files:

# %%
processes = ranks_meet.read("results/live/03_hello")
show.ranks_map(pd.DataFrame(processes))
plt.show()
ranks_by_place = {(each["group_rank"], each["local_rank"]): each["rank"] for each in processes}
lesson.predicted(my_rank, ranks_by_place[1, 1])

# %% [markdown]
# torchrun fills one node after the other: the ranks of a node are neighbours. Every node has a local rank 0; the job
# has only one rank 0.
#
# How does a process know all this? Its launcher wrote it into the **environment variables** of the process, before the
# program began. Those of the last rank:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
variables = processes[-1]["variables"]
lesson.table([{"variable": f"`{name}`", "says": meaning, "value": variables[name]}
              for name, meaning in rendezvous.MEANING.items()])


# %% [markdown]
# A program reads them with `os.environ["RANK"]`, or asks its process group, see below.
#
# ### Exercise 1: whose job is it?
#
# All ranks run the same program, so the program has to ask: *is this my job?* Some jobs are done once by all processes
# together, some once on each node, some by every process. Return True if the process with this rank and local rank
# should do it. The jobs are `"train"`, `"print the loss"`, `"write the checkpoint to the shared disk"` and `"download to
# the node's own disk"`.

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
# and returns when all have come. From then on they are a **process group** (of all nodes: it is not torchrun's group of
# one node). The call needs to know:
#
# | question | argument |
# |:--|:--|
# | Who am I? | `rank` |
# | How many are we? | `world_size` |
# | Where do we meet? | `init_method`, or a `store` |
# | Who carries the data? | `backend` |
# | How long do we wait? | `timeout` |
#
# The ranks of a group can make **collective** calls: calls that every rank makes, and in which they exchange data. Two
# are enough for this lesson: `all_reduce` gives every rank the sum of all ranks' tensors, and `barrier` moves no data,
# but returns only when every rank has called it. [04](04_collectives.ipynb) shows the others.
#
# The smallest group has one process. It lives in this notebook, and meets in its memory (`HashStore`):

# %%
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
numbers = torch.tensor([1.0, 2.0, 3.0])
dist.all_reduce(numbers)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}:", numbers)
dist.destroy_process_group()

# %% [markdown]
# The sum over one rank is the tensor itself. So a program that is written for many ranks also runs on one. That is how
# to debug all of it, except what the ranks say to each other.
#
# **Backend**: *gloo* moves tensors in CPU memory over the network, *nccl* moves tensors from GPU to GPU. The rule:
# **nccl for tensors on GPUs, gloo for tensors on CPUs**, and gloo where two ranks share a GPU, for nccl wants a GPU for
# each rank ([PyTorch's table](https://docs.pytorch.org/docs/stable/distributed.html#backends) of what each can move).
# Name none, and a machine with GPUs gets both. With `"nccl"` alone, a collective of a CPU tensor raises an error.
#
# On GPUs each rank first chooses its own, before anything goes to a GPU:
#
# ```python
# torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
# ```
#
# (In older code: `torch.cuda.set_device(local_rank)`.) Nobody does it for you: without it all ranks of a node take GPU
# 0.
#
# What does this machine have?

# %%
print("gloo:", dist.is_gloo_available(), " nccl:", dist.is_nccl_available(),
      " GPUs:", torch.cuda.device_count())

# %% [markdown]
# ## Where do they meet?
#
# The place is the `init_method`. Programs often have an option for it, `--dist-url`.
#
# - `env://`, the default: at the address and port in the variables `MASTER_ADDR` and `MASTER_PORT`.
# - `tcp://host:port`: the same, but written into the program.
# - `file:///path`: in a file that all can reach. It must be a **new** file each time.
#
# One process has to **listen** at the address: it opens the port, and the others connect to it. What they talk to there
# is a **store**, a small service that keeps values by name. Each rank leaves its own address in it, and reads those of
# the others.
#
# **Predict.** Who listens with `env://` when we start the processes by hand? And when torchrun starts them?

# %%
my_listener = None  # "rank 0", "all", "nobody" or "torchrun"
my_listener_torchrun = None  # the same

# %% [markdown]
# First by hand, without a launcher: we set the variables, and start the same program several times. The processes meet
# by `env://`, then in a file. Once they are connected, each asks the operating system for its own connections.

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
plt.show()
lesson.predicted(my_listener, ranks_meet.listener(by_hand["env://"][1]))
lesson.predicted(my_listener_torchrun, ranks_meet.listener(by_torchrun["env://"][1]))

# %% [markdown]
# Orange is the meeting: the filled process listens, and an arrow comes from each one that connects to it (also from
# itself). Blue are the connections through which the data goes afterwards: every rank has one to every other (with
# gloo; nccl connects those that exchange data).
#
# - By hand, **rank 0** listens. So the port must be free on rank 0's node, and all others must be able to reach it.
#   When rank 0 is late, they try again until the timeout.
# - With torchrun, **torchrun** listens, before any rank is there. On one node it picks a free port, since [a change of
#   2026](https://github.com/pytorch/pytorch/pull/175699). Older versions take port 29500, and a second job on the
#   machine then fails; `--standalone` makes those pick one, too.
# - With a file nobody listens: the file is the store, which the ranks read and write. A file that an earlier run has
#   left holds addresses of processes that are gone.
#
# ### Exercise 2: be the launcher (on ranks)
#
# The check starts four processes, two on each of two pretended nodes, but sets no environment variable. Set the five
# variables `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` in `os.environ`, as torchrun would have
# done, make one group of all, with gloo and a timeout of 30 seconds, and return your rank as the group tells it. `hosts`
# are the names of the nodes; `port` is free on all of them.
#
# Replace the `raise` and run the cell, which writes the file. The next cell runs it on four ranks.

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
# A rank that is missing is the most common trouble. The others wait for it: for the `timeout` of the group, and no
# longer. (Where a whole node is missing, the torchruns wait for each other, and have not started any rank yet. Their
# time is another option: [10](10_launchers.ipynb).)
#
# **Predict.** You choose the default for everybody. Too short, and it ends a healthy job in which one rank writes a
# large checkpoint, or fetches its data, while the others wait. Too long, and 64 GPUs stand still all night. How many
# minutes does gloo wait if the program says nothing?

# %%
my_minutes = None  # minutes

# %%
default = dist.distributed_c10d.default_pg_timeout
lesson.predicted(my_minutes, default.total_seconds() / 60, "minutes")

# %% [markdown]
# With nccl it is [10
# minutes](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group). When it is over,
# gloo raises an exception in the call; with nccl a thread in the background ends the process. On a cluster that you pay
# for by the hour, give a timeout of your own. This program does, and then rank 1 is busy with something else:

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
# We let it fail in three ways. Each time many lines come: C++ frames, warnings of the library, Python's traceback.
# `why_it_failed.py` runs a command and shows the one line that matters (`--all` shows every line).
#
# **1. Rank 0 of 2 is started, rank 1 is not.**

# %%
why = "python scripts/cluster/why_it_failed.py --expect-failure --"
env = f"env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={rendezvous.free_port()}"
# !{why} {env} RANK=0 python results/live/03_wait.py {wait}

# %% [markdown]
# **2. Rank 1 of 2 is started, rank 0 is not.** A wrong port, or a firewall on the way, looks the same.

# %%
# !{why} {env} RANK=1 python results/live/03_wait.py {wait}

# %% [markdown]
# **3. Both come, and then only rank 0 calls `all_reduce`.**

# %%
# !{why} torchrun --nproc_per_node=2 results/live/03_wait.py {wait}

# %% [markdown]
# | the line says | what happened | where to look |
# |:--|:--|:--|
# | *1/2 clients joined* | they never met: some did not come | a rank that was not started, or was told another world size |
# | *trying to connect to …* | they never met: nobody listens | rank 0's node; the address and the port |
# | *Timed out waiting … for recv* | they met, and one did not take part | the rank that did **not** complain |
#
# (The words are those of PyTorch 2.14; other versions put them differently. Rows 1 and 2 are what the **store** says:
# they are the same with nccl. It may wait up to a second longer than its timeout. Row 3 is gloo's. The seconds of the
# whole command have Python's start in them.) In rows 1 and 3 the rank that complains has only waited: look for the rank
# that says nothing. In row 2 look at both sides: does the first node listen, and was this rank told the right address?
#
# ### Exercise 3: one prepares, the others wait (on ranks)
#
# Four ranks on two nodes again; this time the group is made. Every rank needs `file` (a `Path`) on its node's own disk,
# and gets it with `download(file)`, which takes a moment. Download it **once on each node**, and return what stands in
# it (`file.read_text()`), on every rank. No rank may read too early, and none may wait for ever.

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
# This lesson as a program: in [`launch.py`](../launch.py) `find_placement` reads the variables, and
# `init_distributed_mode` makes the group, with backend and timeout. The manual:
# [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html).

# %% [markdown]
# ## What to remember
#
# 1. **Rank** is a process's number in the job, **local rank** its number on the node. The launcher writes both into the
#    environment.
# 2. One process listens (rank 0, or torchrun), all connect to it and learn the others' addresses. Then the data goes
#    from rank to rank.
# 3. Always choose a **timeout**. A rank that complains of a timeout has waited for another: look at that one, too.
#
# **Next:** [04 · Collectives](04_collectives.ipynb): the group stands; what can its ranks do together?
