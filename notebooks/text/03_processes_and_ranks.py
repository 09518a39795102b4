# ---
# jupyter:
#   course:
#     minutes: 45
#     quick:
#       parameters:
#         epochs: 1
#         images: 1152
#         wait: 1
#       seconds: 45
#     seconds: 70
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Processes and ranks
#
# **The question.** A training job is several processes, and all of them run the same program. How does each one know
# who it is, how do they find each other, and what happens when one of them is missing?
#
# **At the end** you have two parts of your own program. `mine/join.py` makes a process a rank. `mine/launch.py` starts
# `mine/train.py` on as many ranks as you like, without torchrun, and leaves no process behind when one fails.
#
# **You will be able to**
#
# - tell rank, local rank and world size apart, and say which process does which job;
# - make a process group from environment variables;
# - write a launcher;
# - read the message of a rank that has waited in vain, and say which rank to look at.
#
# **You need** [00 · Start here](00_start_here.ipynb), and to know what a process is.
#
# **Time.** About 45 minutes for you, 2 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
import re
import shlex
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import torch.distributed as dist

from course import failures, processes, rendezvous
from lessons.l03_processes_and_ranks import check, show


def fails(command, **variables):
    """Run a command that is to fail, with these environment variables. The line of its output that says why."""
    _, output = processes.run_and_read(shlex.split(command), 120, uuid.uuid4().hex, env={**os.environ, **variables})
    line, _ = failures.explain(output)
    return re.sub(r"^\[rank\d\]: ", "", line)


# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
wait = 3  # seconds that a rank waits for one that never comes
images, epochs = 6144, 3  # of your program's training

# %% [markdown]
# ## Who am I?
#
# - **Node**: a machine. **Process**: a running program with memory of its own. On GPUs there is one process per GPU.
# - **World size**: how many processes the job has, on all nodes together.
# - **Rank**: the number of a process in the job, from 0 to world size − 1.
# - **Local rank**: its number on its own node. It selects the GPU.
# - **Group rank**: the number of the node.
#
# `torchrun` is PyTorch's **launcher**. It starts the processes of a node, and tells each one who it is by
# **environment variables**. This program reads four of them:

# %%
# %%writefile results/live/03_hello.py
from os import environ as env

print(f"rank {env['RANK']} of {env['WORLD_SIZE']}: local rank {env['LOCAL_RANK']} "
      f"on node {env['GROUP_RANK']}\n", end="")  # in one piece

# %%
# !torchrun --nproc_per_node=4 results/live/03_hello.py

# %% [markdown]
# Four processes print at the same time, so the order of their lines is chance. The banner is torchrun's. Four processes
# that each start a thread per core would fight for the cores, so torchrun gives each of them one thread, unless
# `OMP_NUM_THREADS` says otherwise.
#
# On two nodes you type the command once on each node. Only `--node-rank` differs:
#
# ```bash
# torchrun --nnodes=2 --node-rank=0 --nproc_per_node=4 --master-addr=node0 --master-port=29500 hello.py  # on node 0
# torchrun --nnodes=2 --node-rank=1 --nproc_per_node=4 --master-addr=node0 --master-port=29500 hello.py  # on node 1
# ```
#
# **Predict.** A process has local rank 1 on node 1. What is its rank?

# %%
my_rank = None  # a whole number

# %% [markdown]
# Here two torchruns on one machine play the two nodes:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
job = f"--nnodes=2 --nproc_per_node=4 --master-addr=localhost --master-port={rendezvous.free_port()}"
hello, out = "results/live/03_hello.py", "results/live/03_node_"
os.environ["OMP_NUM_THREADS"] = "1"  # from here on without the banner
# !torchrun {job} --node-rank=0 {hello} > {out}0 & torchrun {job} --node-rank=1 {hello} > {out}1 && wait $!
lines = [line for node in (0, 1) for line in Path(f"{out}{node}").read_text().splitlines()]
nodes = pd.DataFrame([map(int, re.findall(r"\d+", line)) for line in lines],
                     columns=["rank", "world_size", "local_rank", "group_rank"])
show.ranks_map(nodes)
lesson.figure("Each box is a process, each frame a node. The rank counts on from one node to the next. "
              "The local rank begins again at 0.")
lesson.predicted(my_rank, int(nodes.query("group_rank == 1 and local_rank == 1")["rank"].item()), what="the rank")

# %% [markdown]
# torchrun fills one node after the other. Every node has a local rank 0, and the job has one rank 0.
#
# All ranks run the same program, so the program asks *is this my job?*
#
# | how often | who | examples |
# |:--|:--|:--|
# | once in the job | rank 0 | print the loss, write a checkpoint to the shared disk |
# | once per node | local rank 0 | download to the node's own disk |
# | in each process | all | train |
#
# ### Four live ranks
#
# Starting processes for each line of code is slow. These four ranks stay in the background, and a cell that begins with
# `%%px` runs on all of them:

# %%
lesson.live_ranks(4)

# %%
# %%px
import os, time
from pathlib import Path

print({name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")})

# %% [markdown]
# Now one rank of the node downloads a file, and all of them read it. Who waits for whom? `dist.barrier()` returns when
# every rank has called it.

# %%
# %%px
file = Path("results/live/03_download.txt")
if os.environ["LOCAL_RANK"] == "0":
    time.sleep(1)  # the download
    file.write_text("the whole file")
dist.barrier()
print(file.read_text())

# %% [markdown]
# Without the barrier three ranks would look for a file that is not there yet. If only local rank 0 called the barrier,
# it would wait for the others in vain.
#
# ## From processes to a group
#
# A process now knows its number. It does not know *where* the others are. `init_process_group` brings them together,
# and returns when all of them have called it. From then on they are a **process group**, which spans all nodes. It
# answers five questions:
#
# | question | argument | where the answer comes from by default |
# |:--|:--|:--|
# | Who am I? | `rank` | `RANK` |
# | How many are we? | `world_size` | `WORLD_SIZE` |
# | Where do we meet? | `init_method` | `env://`: the address in `MASTER_ADDR`, the port in `MASTER_PORT` |
# | Who carries the data? | `backend` | *gloo* for tensors on CPUs, *nccl* for tensors on GPUs |
# | How long do we wait? | `timeout` | see below |
#
# At the meeting place one process **listens**, and the others connect to it. It keeps a **store** there, a small
# service that holds values by name. Each rank writes its own address into the store and reads the others'. After that
# the data goes from rank to rank.
#
# The four live ranks have met already. Each of them calls the same **collective**, and gets the sum of all ranks'
# tensors:

# %%
# %%px
import torch

total = torch.tensor(float(dist.get_rank()))
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, {dist.get_backend()}: the sum is {total.item():g}")

# %% [markdown]
# ### Exercise 1: join
#
# **Predict.** You name no timeout, and one rank never comes. How many minutes does gloo wait?

# %%
my_minutes = None  # minutes

# %%
default = dist.distributed_c10d.default_pg_timeout.total_seconds()
lesson.predicted(my_minutes, default / 60, "minutes", what="how long a rank waits")

# %% [markdown]
# On a cluster that you pay for by the hour you want another bound.
#
# Your program calls `rank, world_size, device = join()` in the beginning, and `leave()` at the end. Write both. `join`
# makes the group with gloo, and no wait in it lasts longer than a minute. `device` is `torch.device("cpu")`. You may
# also start the program by hand, as in lesson 00: then nobody has set a variable, and it works as rank 0 of 1.

# %%
# %%mine join.py
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def join():
    """(rank, world_size, device) of this process, which is then in a group with the others."""
    raise NotImplementedError


def leave():
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


# %%
check.join("mine/join.py")
# check.join.hint()
# check.join.solution()

# %% [markdown]
# ## The launcher's job
#
# Somebody has to start the processes, and give each one its variables. So far it was torchrun. The core of it fits in
# twenty lines.
#
# ### Exercise 2: launch
#
# `launch(2, ["python", "mine/train.py"], wait=600)` starts two processes of this command, as ranks 0 and 1 of this
# machine. Each gets `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. It
# returns the exit status of the job: 0 if all ranks ended with 0. The check starts jobs whose ranks succeed, fail, are
# killed, and hang, and counts the processes that are left.

# %%
# %%mine launch.py
import os
import socket
import subprocess
import sys
import time


def launch(count, command, wait):
    """Run `command`, a list of words, as ranks 0 to count - 1; the exit status, after `wait` seconds at most."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), [sys.executable, *sys.argv[2:]], wait=600))

# %%
check.launch("mine/launch.py")
# check.launch.hint()
# check.launch.solution()

# %% [markdown]
# Now it starts your training on two ranks. Until yours is right, the course's launcher does.

# %%
launcher = check.launch.file or "lessons/start/ours/launch.py"
print(f"the launcher: {launcher}")
# !python {launcher} 2 mine/train.py --images {images} --epochs {epochs}

# %% [markdown]
# ## When a rank is missing
#
# This [program](../lessons/l03_processes_and_ranks/milestones.py) makes two all-reduces on two ranks. Rank 1 takes part
# in the first, and is then busy with something else. Your launcher starts it, then torchrun.
#
# **Predict.** One process listens at `MASTER_PORT`. Under your launcher it is rank 0. Which one is it under torchrun?

# %%
my_listener = None  # "rank 0", "rank 1" or "launcher"

# %%
program = f"lessons/l03_processes_and_ranks/milestones.py --wait {wait}"
begun = time.time()
said = fails(f"python {launcher} 2 {program} --out results/live/03_yours")
jobs = {f"python {launcher}": ("results/live/03_yours", begun, time.time())}
begun = time.time()
fails(f"torchrun --nproc_per_node=2 {program} --out results/live/03_torchrun")
jobs["torchrun"] = ("results/live/03_torchrun", begun, time.time())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.milestones(jobs)
lesson.figure("Two jobs in which rank 1 stays away from the second all-reduce. Rank 0 waits until the timeout, and gives "
              "up. When its process has ended, the launcher ends rank 1, which would have gone on.")
lesson.predicted(my_listener, show.listener(jobs["torchrun"][0]), what="who listens")

# %% [markdown]
# Read rank 0's row from left to right: the process starts, meets the other, takes part in the first all-reduce, and
# waits for rank 1. Rank 1 is at fault, and it says nothing.
#
# torchrun listens itself, before any rank has started. So its store outlives the ranks, and it can start them again.
#
# A rank can be missing in four ways. Each line below is the one that matters, out of a page of output:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
two = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rendezvous.free_port())}
with socket.socket() as another_program, ThreadPoolExecutor(3) as pool:
    another_program.bind(("", 0))
    another_program.listen()
    taken = two | {"MASTER_PORT": str(another_program.getsockname()[1]), "RANK": "0"}
    variables = [two | {"RANK": "0"}, {**two, "MASTER_PORT": str(rendezvous.free_port()), "RANK": "1"}, taken]
    lines = [*pool.map(lambda each: fails(f"python {program} --out results/live/03_alone", **each), variables), said]
meanings = [
    ("started rank 0 of 2 alone", "The ranks never met: some did not come.",
     "a rank that was not started, or that has another world size"),
    ("started rank 1 of 2 alone", "The ranks never met: nobody listens.",
     "rank 0's node; the address, the port, a firewall"),
    ("let another program listen at the port", "Rank 0 cannot listen.",
     "an earlier job that still runs; choose another port"),
    ("let rank 1 stay away, as above", "The ranks met, and then one did not take part.",
     "the rank that did **not** complain")]
lesson.table([{"what we did": did, "what a rank said": f"`{line}`", "what happened": happened, "where to look": where}
              for line, (did, happened, where) in zip(lines, meanings, strict=True)])

# %% [markdown]
# The first three come from the store, so they are the same with nccl. The wording is PyTorch's, and may change. In a
# larger job other ranks may say *Connection closed by peer*: they have lost the rank that gave up first. On a cluster
# `python scripts/cluster/why_it_failed.py -- torchrun …` runs a command and shows this one line.
#
# ## torchrun is the same, hardened
#
# Your program does not notice who has started it:

# %%
# !torchrun --nproc_per_node=2 mine/train.py --images {images} --epochs {epochs}

# %% [markdown]
# The losses are those of your launcher. What does torchrun add? First of all, variables:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
yours, theirs = (json.loads(Path(folder, "rank-0.json").read_text())["variables"] for folder, *_ in jobs.values())
print("only with torchrun:", ", ".join(sorted(set(theirs) - set(yours))))

# %% [markdown]
# | | your launcher | torchrun ([manual][run]) |
# |:--|:--|:--|
# | where | one machine | many: the torchruns of all nodes meet first, and number the ranks |
# | who listens | rank 0 | torchrun, before any rank; on one node it picks a free port ([since 2026][port]) |
# | a rank fails | it kills the others | SIGTERM, then SIGKILL after 30 seconds; `--max-restarts=N` starts all of them again |
# | what it reports | an exit status | which rank failed first, when, and its traceback where `@record` decorates `main` |
# | the job hangs | ends after `wait` seconds | no bound for the job; the group's timeout ends a wait |
# | you stop it | Ctrl-C ends the ranks | SIGTERM, SIGHUP and SIGQUIT do, too |
# | the ranks' output | as it comes | `--log-dir`, `--tee`, `--local-ranks-filter` |
#
# [run]: https://docs.pytorch.org/docs/stable/elastic/run.html
# [port]: https://github.com/pytorch/pytorch/pull/175699
#
# ## For reference: on GPUs
#
# - **Choose the GPU first**: `torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))`, before anything goes
#   to a GPU. Older code has `torch.cuda.set_device(local_rank)`. Without it all ranks of a node use GPU 0.
# - **Backend**: nccl for tensors on GPUs, gloo for tensors on CPUs. gloo also where two ranks share a GPU. A machine
#   with GPUs gets both if you name none.
# - `init_process_group("nccl", device_id=torch.device("cuda", local_rank))` connects at once, so a bad connection shows
#   here and not in the first collective.
# - **Timeout**: with nccl the default is [10 minutes][init]. Then a thread in the background ends the process, where
#   gloo raises an exception in the call.
# - **Older launchers**: `python -m torch.distributed.launch` passes `--local-rank` as an argument. torchrun sets
#   `LOCAL_RANK` only.
# - The course's [`main.py`](../main.py) does all of this in [`launch.py`](../trainer/launch.py).
#
# [init]: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. **Rank** is a process's number in the job, **local rank** its number on the node. The launcher writes both into the
#    environment.
# 2. One process listens, all ranks connect to it, and find each other there. Then the data goes from rank to rank.
# 3. Always set a **timeout**. A rank that complains of one has waited for another rank: look at that one.
#
# **Next:** [04 · Messages](04_collectives.ipynb). The ranks have met. Your next part is the message that adds up all
# their tensors.
