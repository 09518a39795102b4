# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         by_hand: 2
#         patience: 3
#         per_node: 2
#         wait: 1
#       seconds: 50
#     seconds: 75
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Processes and ranks
#
# A job is many processes. How are they started, how does each know which one it is, and how do they find each other?

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import inspect
import os
import re
import socket
import sys

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import Markdown, display

from course import rendezvous, plots
from scripts.lessons import ranks_meet as script
from course.checks import lesson_03 as check
from course.notebook_kernel import SecondKernel

# %% tags=["parameters"]
nodes = 2  # of the job in the first section
per_node = 4  # its processes on each node
ranks = 2  # processes of the runs after it
by_hand = 3  # processes that we start without a launcher
wait = 3  # the timeout of a process group that never gets complete, seconds
patience = 8  # seconds until we say that a run hangs
lines = 20  # that each rank prints

# %% [markdown]
# ## A kernel that may hang
#
# Some things in this lesson fail, and some never end. So we try them in a **second kernel**: a notebook like this one, that nobody
# looks at. A cell that begins with `%%attempt` runs there. It has a time limit. When that is over, the second kernel is killed,
# with every process that it has started, and this notebook goes on.

# %%
second = SecondKernel(nodes=nodes, per_node=per_node, ranks=ranks, by_hand=by_hand, wait=wait, lines=lines)
second.register()
os.makedirs("results/live", exist_ok=True)

# %% [markdown]
# ## The names
#
# - **Node**: a machine. **Process**: a running program, with a memory of its own. On GPUs usually one process a GPU.
# - **World size**: how many processes the job has, on all nodes together.
# - **Rank**: the number of a process in the job, from 0 to world size − 1.
# - **Local rank**: its number on its node. It says which GPU of the node is yours.
# - **Group rank**: the number of the node. (torchrun says *group*: the processes that one torchrun looks after.)
#
# **Predict.** Two nodes with four processes each. Which rank has the process with local rank 2 on node 1?

# %%
my_rank_prediction = 4  # change it

# %%
places = pd.DataFrame(rendezvous.placements(nodes, per_node))
plots.rank_maps.ranks_map(places, plt.subplots(figsize=(3 + 3 * per_node, 1.5 + 2.2 * nodes))[1])
plt.show()
two_by_four = pd.DataFrame(rendezvous.placements(2, 4)).set_index(["group_rank", "local_rank"])["rank"]
print(f"2 nodes x 4 processes, local rank 2 on node 1: rank {two_by_four[1, 2]} (you said {my_rank_prediction})")

# %% [markdown]
# That was computed. Is it what torchrun does? One torchrun runs on each node, so several torchruns on this machine can play several nodes.
# Each process says who it is, and writes it down. (They print more than is shown. The rest is for a later section.)

# %%
# %%attempt --show {nodes * per_node} several nodes
import os
import subprocess

from course.rendezvous import free_port

torchrun = ["torchrun", f"--nnodes={nodes}", f"--nproc_per_node={per_node}", "--rdzv-backend=c10d", "--rdzv-id=03",
            f"--rdzv-endpoint=localhost:{free_port()}"]
program = ["scripts/lessons/ranks_meet.py", "--step", "hello", "chatter", "--lines", str(lines), "--out", "results/live/03_hello"]
launchers = [subprocess.Popen(torchrun + program, env=os.environ | {"OMP_NUM_THREADS": "1"}) for node in range(nodes)]
print("exit status of each torchrun:", [launcher.wait() for launcher in launchers])

# %%
told = rendezvous.read("results/live/03_hello")
plots.rank_maps.ranks_map(pd.DataFrame(told), plt.subplots(figsize=(3 + 3 * per_node, 1.5 + 2.2 * nodes))[1])
plt.title(f"As torchrun numbered {len(told)} real processes")
plt.show()
same = [{name: process[name] for name in ("rank", "local_rank", "group_rank")} for process in told] == rendezvous.placements(nodes, per_node)
print(f"the same as computed: {same}; {len({process['pid'] for process in told})} different processes")

# %% [markdown]
# Which machine becomes node 0 is decided when the torchruns meet with `--rdzv-backend=c10d`, as here. (`--node-rank` fixes it only where
# the first machine is named by `--master-addr`; with c10d torchrun ignores it.) After that the numbers are as computed.
#
# How does a process know? Its launcher wrote it into its **environment variables**, before the program began. Here are those of the last rank:

# %%
meaning = {"RANK": "rank", "LOCAL_RANK": "local rank", "GROUP_RANK": "group rank: which node", "WORLD_SIZE": "processes in the job",
           "LOCAL_WORLD_SIZE": "processes on this node", "GROUP_WORLD_SIZE": "nodes", "MASTER_ADDR": "where all ranks meet: the host …",
           "MASTER_PORT": "… and the port"}
us = {socket.gethostname(), socket.getfqdn(), "localhost"}
lesson.table([{"variable": f"`{name}`", "says": meaning[name], "value": "this machine" if value in us else value}
      for name, value in told[-1]["hello"].items()])

# %% [markdown]
# ### Try it
#
# When you run this cell yourself, there are sliders above the map.

# %%
try:
    import ipywidgets as widgets
except ImportError:
    widgets = None


def map_of(nodes, processes):
    fig, ax = plt.subplots(figsize=(14, 1.5 + 1.8 * nodes))
    plots.rank_maps.ranks_map(pd.DataFrame(rendezvous.placements(nodes, processes)), ax)
    plt.close(fig)  # it is shown by display, once
    return fig


shown = {"nodes": 3, "processes": 8}
if widgets:
    look = {"layout": widgets.Layout(width="320px")}
    controls = {name: widgets.IntSlider(value, 1, 8, description=name, **look) for name, value in shown.items()}
    without_sliders = {"text/plain": "(Here are sliders when you run this cell in JupyterLab.)"}
    display(widgets.VBox(list(controls.values()))._repr_mimebundle_() | without_sliders, raw=True)
    picture = display(map_of(**shown), display_id=True)

    def redraw(change):
        picture.update(map_of(**{name: control.value for name, control in controls.items()}))

    for control in controls.values():
        control.observe(redraw, "value")
else:
    display(map_of(**shown))


# %% [markdown]
# ### Exercise 1: from rank to place, and back
#
# `my_place` returns the pair (group rank, local rank). Every node has `per_node` processes.

# %%
def my_place(rank, per_node):
    raise NotImplementedError


def my_rank(group_rank, local_rank, per_node):
    raise NotImplementedError


# %%
check.place(my_place)
check.rank_of(my_rank)
# check.place.hint()  # rank_of: the same
# check.place.solution()

# %% [markdown]
# ### Exercise 2: whose turn is it?
#
# All ranks run the same program. So the program asks: is this my job? Return True if the process with this rank and local rank should do it. The jobs are
# `"train"`, `"print the loss"`, `"write the checkpoint to the shared disk"` and `"download to the node's own disk"`.

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
# Now each process knows its number, and that there are others. It does not know *where*. `init_process_group` brings them together: it returns when
# all have come. After that they can call collectives such as `all_reduce`.
#
# It needs five things: who am I (`rank`), how many are we (`world_size`), where do we meet (`init_method`), who carries the data (`backend`), and how long do
# we wait (`timeout`). Before it, a collective has no meaning:

# %%
try:
    dist.get_rank()
except ValueError as error:
    print(f"ValueError: {error}")

# %% [markdown]
# ### A group of one
#
# The smallest group has one process. It needs nobody, so it can live in this notebook. (`HashStore` is a meeting point in the memory of this process: it needs
# no address. The usual meeting points come next.)

# %%
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
numbers = torch.tensor([1.0, 2.0, 3.0])
dist.all_reduce(numbers)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, backend {dist.get_backend()}; the sum over all ranks: {numbers.tolist()}")
dist.destroy_process_group()
print("a group now:", dist.is_initialized())

# %% [markdown]
# The sum over one rank is the tensor itself. So a program that is written for many ranks also runs with one, without an `if`. This is how you debug
# it.
#
# ### Where do they meet?
#
# - `env://` (the default): at the address and port in `MASTER_ADDR` and `MASTER_PORT`.
# - `tcp://host:port`: the same, written into the program.
# - `file:///path`: in a file that all can reach. No port, no address. It must be a **new** file each time.
#
# **Predict.** Three processes meet by `env://`. Which of them listens on the port: rank 0, all of them, or none? And if torchrun started them?

# %%
my_listener, my_listener_torchrun = "all", "all"  # "rank 0", "all", "none" or "torchrun"

# %% [markdown]
# First without a launcher: we set the variables ourselves and start the same program several times. They meet three times, in the three ways. When all are connected,
# each one asks the operating system for its own sockets.

# %%
# %%attempt by hand
import os
import subprocess
import sys
from pathlib import Path

from course.rendezvous import free_port

Path("results/live/03_meeting").unlink(missing_ok=True)
urls = ["env://", f"tcp://127.0.0.1:{free_port()}", f"file://{os.getcwd()}/results/live/03_meeting"]
for_all = {"WORLD_SIZE": str(by_hand), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
program = [sys.executable, "scripts/lessons/ranks_meet.py", "--step", "meet", "--url", *urls, "--out", "results/live/03_by_hand"]
processes = [subprocess.Popen(program, env=os.environ | for_all | {"RANK": str(rank)}) for rank in range(by_hand)]
print("exit status of each rank:", [process.wait() for process in processes])

# %% [markdown]
# Then with torchrun, as everywhere in this course. (The same run also tries the backends, for the next section.)

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} scripts/lessons/ranks_meet.py --step meet backends --out results/live/03_torchrun

# %%
meetings = {}
for how, folder in (("by hand", "results/live/03_by_hand"), ("torchrun", "results/live/03_torchrun")):
    of_ranks = rendezvous.read(folder)
    for url, met in of_ranks[0]["meet"].items():
        seen = {name: sockets for rank in of_ranks for name, sockets in rank["meet"][url]["processes"].items()}
        meetings[f"{url.split('//')[0]}// {how}"] = (seen, rendezvous.links(seen, met["port"]))

fig, axes = plt.subplots(2, 2, figsize=(16, 11), gridspec_kw={"height_ratios": [2, 3]})
for ax, (name, (seen, links)) in zip(axes.flat, meetings.items(), strict=True):
    plots.rank_maps.links_map(list(seen), links, ax)
    listeners = sorted({link["server"] for link in links if link["kind"] == "store"})
    ax.set_title(f"{name}: {' and '.join(listeners) or 'nobody'} listens")
plt.show()
print(f"Started by hand you said: {my_listener}; with torchrun: {my_listener_torchrun}")

# %% [markdown]
# Orange: who listens at the meeting point (filled; named in the title), and who connected to it. Blue: the connections through which gloo then moves data, from each rank to each other.
#
# - **One process listens, all connect to it.** There they leave their own addresses and read the others'. This small service is called a **store**.
# - `env://` and `tcp://`: **rank 0** listens. So the port must be free on rank 0's node, and the others must be able to reach it. If rank 0 is late, the others try again until the timeout.
# - With torchrun, **torchrun itself** listens (on several nodes: one of the torchruns). It was there before any rank, and picked a free port (older versions take
#   29500, which was the default of `--master-port`; with `--standalone` they all pick one).
# - `file://`: nobody listens. The file is the store. A file left from an earlier run holds addresses of the dead.
#
# The store brings them together; the data goes the blue way.

# %% [markdown]
# ## Backends, and what each can move
#
# A backend carries the tensors. **gloo** goes over the network with CPU memory. **nccl** goes from GPU to GPU. Which ones does this PyTorch have?

# %%
built_in = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
print(f"torch {torch.__version__}:", ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in built_in.items()))
print(f"GPUs here: {torch.cuda.device_count()}")

# %% [markdown]
# The ranks above called ten operations, and compared each result with what it should be. ([Lesson 04](04_collectives.ipynb) shows what each of them does. Here only
# the question: does this backend have it?)
#
# **Predict.** How many of the ten work with gloo and CPU tensors?

# %%
my_count = 5

# %%
tried = rendezvous.read("results/live/03_torchrun")
names = list(tried[0]["backends"]["gloo, CPU"])
columns = {"gloo, CPU": "here"} | {column: "here" if column in tried[0]["backends"] else "documented" for column in rendezvous.NOT_DOCUMENTED}


def cell(column, name):
    if columns[column] == "documented":
        return "(no)" if name in rendezvous.NOT_DOCUMENTED[column] else "(yes)"
    on_ranks = {rank["backends"][column].get(name, "–") for rank in tried}
    return "yes" if on_ranks == {"yes"} else next(iter(on_ranks - {"yes"}))[:60]


lesson.table([{"collective": f"`{name}`", **{f"{column}: {'tried here' if how == 'here' else '*documented*'}": cell(column, name)
       for column, how in columns.items()}} for name in names])
works = sum(cell("gloo, CPU", name) == "yes" for name in names)
print(f"gloo with CPU tensors: {works} of {len(names)} on {len(tried)} ranks (you said {my_count})")
if "nccl" in tried[0]["backends"]:
    print(f"a group with nccl on this machine: {tried[0]['backends']['nccl']['error']}")

# %% [markdown]
# In brackets: not tried here, but as [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html#backends) has it.
# mpi is only in a PyTorch that was built on a machine with MPI.
#
# The rule: **tensors on GPUs: nccl. Tensors on CPUs: gloo.** That is also what `main.py` chooses. And gloo where two ranks share a GPU, because nccl wants a GPU
# for each rank.

# %% [markdown]
# ## Timeouts: who waited for whom?
#
# A rank that is missing is the most common trouble. So give each group a `timeout` that you are willing to wait. This is what you get without one:

# %%
defaults = {"gloo": dist.distributed_c10d.default_pg_timeout, "nccl": dist.distributed_c10d.default_pg_nccl_timeout}
print(", ".join(f"{backend}: {timeout.total_seconds() / 60:g} minutes" for backend, timeout in defaults.items() if timeout))

# %% [markdown]
# The next cell is for the attempts: it runs in the second kernel now, and again whenever that has to start anew. (`work` is for later.)

# %%
# %%second_kernel
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from course.rendezvous import free_port


def join(rank, url, seconds):
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2, timeout=timedelta(seconds=seconds))


def work(rank, ranks, url):
    share = torch.arange(1_000_000)[rank::ranks].sum()  # the sum of every ranks-th number
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=ranks, timeout=timedelta(seconds=20))
    dist.all_reduce(share)
    print(f"rank {rank}: the sum over all ranks is {share}\n", end="", flush=True)
    dist.destroy_process_group()
    return share.item()


# %% [markdown]
# Rank 0 of 2 comes. Rank 1 does not.

# %%
# %%attempt rank 1 never comes
join(0, f"tcp://127.0.0.1:{free_port()}", wait)

# %% [markdown]
# *1/2 clients joined*: rank 0 itself is the one. (The message counts whole seconds, so it can say one more than we asked for.)
#
# The other way round: rank 1 comes, and nobody listens. The same error comes when the port is wrong, or a firewall is in between.

# %%
# %%attempt rank 0 never comes
join(1, f"tcp://127.0.0.1:{free_port()}", wait)


# %% [markdown]
# And both come, but later only rank 0 calls `all_reduce`, while rank 1 is busy with something else.

# %%
# %%attempt rank 1 does not take part
def uneven(rank, url):
    join(rank, url, wait)
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        import time
        time.sleep(3 * wait + 10)


mp.start_processes(uneven, (f"tcp://127.0.0.1:{free_port()}",), 2, start_method="fork")

# %% [markdown]
# Each time many lines came, and one of them helps. What are the others?

# %%
kinds = {"frames of C++ (`frame #3: …`)": r"frame #\d+|<omitting|Exception raised from", "log of the library (`[W… socket.cpp…]`)": r"\[?[WEI]\d{4}"}
rows = []
for way in ("rank 1 never comes", "rank 0 never comes", "rank 1 does not take part"):
    outcome = second.outcomes[way]
    text = f"{outcome.said}{outcome.trace}".splitlines()
    counts = {kind: sum(re.match(pattern, line) is not None for line in text) for kind, pattern in kinds.items()}
    rows.append({"attempt": way, "lines": len(text), **counts, "Python's traceback": len(text) - sum(counts.values()),
                 "**the line to look at**": f"`{outcome.essential.split('] ')[-1]}`", "after": f"{outcome.seconds:.1f} s"})
lesson.table(rows)


# %% [markdown]
# **Read the last line first.** It says who waited, and for what: *1/2 clients joined* (a rank did not start, or has another world size), *trying to connect* (rank 0
# is not there, or address and port are wrong), *Timed out waiting … for recv* (they met, then one did not take part). With many ranks, look at the rank that did **not**
# complain: it is the one that is missing.
#
# ### Exercise 3: a pretend launcher
#
# Write the environment variables of one process, as a dict of **texts**: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`.
# `hosts` is the list of the nodes' names, `port` is free on all of them.

# %%
def my_environment(group_rank, local_rank, hosts, per_node, port):
    raise NotImplementedError


# %%
check.environment(my_environment)
# check.environment.hint()
# check.environment.solution()

# %% [markdown]
# ## Starting ranks from a notebook
#
# You have a notebook, and you want two ranks. There are several ways. We try each, with the same function `work`: each rank adds up its share of the numbers
# 0 to 999,999, then all ranks add up their sums. `work` stands in a cell (above), and in a file:

# %%
display(Markdown("```python\n" + inspect.getsource(script.work) + "```"))

# %% [markdown]
# **Predict.** Which of these work?
#
# 1. `mp.spawn`, with the function of the notebook
# 2. `mp.spawn`, with the function of the file
# 3. `start_method="fork"`, with the function of the notebook
# 4. `elastic_launch`, with the function of the notebook
# 5. number 3, after the notebook has itself computed something large
# 6. number 5, with one thread in each rank
# 7. `!torchrun`, with a script

# %%
my_working_ways = [1, 2, 3, 4, 5, 6, 7]

# %%
# %%attempt 1. mp.spawn, function of the notebook
mp.spawn(work, (ranks, f"tcp://127.0.0.1:{free_port()}"), nprocs=ranks)

# %% [markdown]
# **Why?** `spawn` starts a new Python. The function is sent to it by name: *`work`, in the module `__main__`*. Here `__main__` is the notebook. In the new Python it is an
# empty program, and nobody has run your cells there. A function in a file is found, because a file can be imported:

# %%
# %%attempt 2. mp.spawn, importable function
from scripts.lessons import ranks_meet as script

mp.spawn(script.work, (ranks, f"tcp://127.0.0.1:{free_port()}"), nprocs=ranks)

# %% [markdown]
# It works, and returns nothing: results have to go through a file or a queue. Each new Python imports torch again, which takes most of the time.
#
# `fork` is another way: the new process is a **copy** of this one, with all that is in its memory. So it knows `work`.

# %%
# %%attempt 3. fork, function of the notebook
mp.start_processes(work, (ranks, f"tcp://127.0.0.1:{free_port()}"), nprocs=ranks, start_method="fork")

# %% [markdown]
# `elastic_launch` is what torchrun is made of. It sets the environment variables, starts the ranks by `fork` (if asked to), and gives back what each one returned.

# %%
# %%attempt 4. elastic_launch, function of the notebook
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def work_by_environment():
    return work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")


config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id="03", max_restarts=0, start_method="fork",
                      rdzv_backend="c10d", rdzv_endpoint="localhost:0")
elastic_launch(config, work_by_environment)()

# %% [markdown]
# Now the same `fork` as in number 3, with one difference: before it, the notebook computes the answer itself, to compare.

# %%
# %%attempt --limit {patience} 5. fork, after the notebook has used its threads
print("threads of this kernel:", torch.get_num_threads())
print("the answer:", torch.arange(1_000_000).sum().item())
mp.start_processes(work, (ranks, f"tcp://127.0.0.1:{free_port()}"), nprocs=ranks, start_method="fork")

# %%
hang = second.outcomes["5. fork, after the notebook has used its threads"]
Markdown("**It hangs, and says nothing.** A large sum is shared by several threads, which PyTorch keeps for the next time. `fork` copies the memory, "
         "but **not the threads**. The copy believes that it has them, and waits for them for ever." if hang.end == "killed" else
         f"**It {hang.end} here.** Where PyTorch computes with several threads, it hangs: `fork` copies the memory, but not the threads, and the copy "
         "waits for them for ever.")


# %% [markdown]
# A rank that uses one thread needs nobody else's. The first line of the worker says so:

# %%
# %%attempt 6. the same, with one thread in each rank
def work_with_one_thread(rank, ranks, url):
    torch.set_num_threads(1)
    work(rank, ranks, url)


print("the answer:", torch.arange(1_000_000).sum().item())
mp.start_processes(work_with_one_thread, (ranks, f"tcp://127.0.0.1:{free_port()}"), nprocs=ranks, start_method="fork")

# %% [markdown]
# And the way of this course: a script, and torchrun. (`--tee=3` writes `[default0]:` in front of each line of rank 0.)

# %%
# %%attempt 7. !torchrun, a script
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} --tee=3 scripts/lessons/ranks_meet.py --step work

# %% [markdown]
# With GPUs `fork` has a second trap. A process that has once used a GPU cannot be copied:

# %%
gpu_way = "8. fork, after the notebook has used a GPU"
refused = re.search(r'RuntimeError\(\s*"(.*?)"\s*"(.*?)"', inspect.getsource(torch.cuda._lazy_init), re.DOTALL)
if torch.cuda.is_available():
    print(second.attempt(gpu_way, """
def on_gpu(rank):
    torch.ones(1, device="cuda")

torch.ones(1, device="cuda")
mp.start_processes(on_gpu, nprocs=ranks, start_method="fork")
""", 60))
else:
    print(f"No GPU here, so not tried. PyTorch would say:\n{''.join(refused.groups())}")

# %%
answer = sum(range(1_000_000))
ways = {way: outcome for way, outcome in second.outcomes.items() if way[0].isdigit()}
for way, outcome in ways.items():
    assert outcome.worked or way[0] not in "27", f"{way} must work everywhere: {outcome}"
rows = []
for way, outcome in sorted(ways.items()):
    right = outcome.printed.count(f"the sum over all ranks is {answer}\n")
    result = outcome.returned and f"returns `{outcome.returned}`" or "returns nothing, prints"
    rows.append({"way": way, "works?": "**yes**" if outcome.worked and right == ranks else f"no ({outcome.end})",
                 "seconds": f"{outcome.seconds:.1f}", "ranks with the right sum": f"{right} of {ranks}",
                 "what came of it": result if outcome.worked else
                 f"nothing: {outcome.left - 1} processes had to be killed" if outcome.end == "killed" else f"`{outcome.essential}`"})
if gpu_way not in ways:
    rows.append({"way": gpu_way, "works?": "not tried: no GPU", "seconds": "", "ranks with the right sum": "",
                     "what came of it": f"source of torch: `{refused[1].split('.')[0]}`"})
lesson.table(rows)

# %%
fig, ax = plt.subplots(figsize=(14, 6.5))
for y, (_, outcome) in enumerate(sorted(ways.items())):
    look = {"worked": {"color": plots.COLOURS[2]}, "failed": {"color": plots.COLOURS[1]},
            "killed": {"facecolor": "white", "edgecolor": plots.COLOURS[1], "hatch": "//"}}[outcome.end]
    ax.barh(y, outcome.seconds, height=0.6, **look)
    ax.text(outcome.seconds, y, f"  {outcome.seconds:.1f} s, {outcome.end}", va="center", fontweight="bold")
ax.set_yticks(range(len(ways)), sorted(ways))
ax.invert_yaxis()
ax.margins(x=0.35)
ax.grid(axis="y", visible=False)
ax.set_xlabel("seconds, from start to end")
ax.set_title(f"{ranks} ranks started from a notebook")
plt.show()
seconds = {way[0]: outcome.seconds for way, outcome in ways.items()}
print(f"You said that these work: {my_working_ways}. They did: {[int(way[0]) for way, outcome in sorted(ways.items()) if outcome.worked]}")
print(f"fork: {seconds['3']:.1f} s, mp.spawn: {seconds['2']:.1f} s, torchrun: {seconds['7']:.1f} s. A new Python has to import torch; a copy has it already.")

# %% [markdown]
# **Why the course uses torchrun**, although it is not the fastest to start:
#
# - A script is the same on a laptop, on eight GPUs and on ten nodes. The notebook only shows its results.
# - It starts from nothing: what you did in the notebook before cannot break it.
# - It watches its ranks. When one dies, it ends the others, and says which was first.
#
# For a quick look at two ranks, `elastic_launch` with `fork` is handy: start it in a fresh kernel, or with one thread in each rank.

# %% [markdown]
# ## Printing from many ranks
#
# All ranks write to the same screen. In the first run of this lesson each of them also printed `lines` lines, one after each step. Twice:

# %%
display(Markdown("```python\n" + inspect.getsource(script.chatter) + "```"))

# %% [markdown]
# **Predict.** In which order do the lines come? And does each stay a line of its own?

# %%
my_order = "rank 0, then 1, then 2, ... in each step"

# %%
screen = [line for line in second.outcomes["several nodes"].printed.splitlines() if "step" in line or not line]
halves = {"print(line)": [line for line in screen if "write:" not in line or "print:" in line],
          'sys.stdout.write(line + "\\n")': [line for line in screen if "write:" in line and "print:" not in line]}
fig, axes = plt.subplots(2, 1, figsize=(16, 7))
for ax, (how, text) in zip(axes, halves.items(), strict=True):
    plots.rank_maps.lines_map(text, ax)
    ax.set_title(f"{how}: the rank of each line")
plt.show()
broken = {how: sum(len(plots.rank_maps.SAID.findall(line)) > 1 for line in text) for how, text in halves.items()}
last = re.findall(rf"print: rank (\d+), step {lines - 1}(?!\d)", "\n".join(screen))
print(f"You said: {my_order}. Their last lines came in the order {', '.join(last)}.")
print("Lines that hold several:", ", ".join(f"{count} with {how}" for how, count in broken.items()), f"(of {len(told) * lines} each).")

# %% [markdown]
# - **The order is chance.** It says nothing about who was first at the work. (The picture has the first 40 lines of each kind.)
# - **Lines run together.** A cut cell is one line with the words of several ranks; ∅ is an empty line, whose line end came too late. torchrun starts Python with `-u`: nothing is buffered, and `print` writes the text and the line's end one after the other. Another rank can come in
#   between. Written in one piece, a short line stays whole.
# - torchrun can help: with `--tee=3`, as above, it collects each rank's output, and writes whole lines with the rank in front.
#
# In a program: let **rank 0** speak for all, about numbers that were summed over all ranks. And let each rank that has more to say write **its own file**.
# That is how everything in this lesson came back to the notebook: `rank-0.json`, `rank-1.json`, …
#
# ## Exercise 4: bring them together
#
# Your function runs on each rank. Make one group of all ranks: backend gloo, meeting in the file, and a timeout of 30 seconds. (`file` is an absolute path. It is a new
# one in each run.) Replace the `raise`, run the cell (it writes the file), and the next one, which runs it on three ranks.

# %%
# %%writefile results/live/03_answer.py
from datetime import timedelta  # noqa: F401, F811 - for your answer

import torch.distributed as dist  # noqa: F401


def join(rank, world_size, file):
    raise NotImplementedError


# %%
check.joined("results/live/03_answer.py")
# check.joined.hint()
# check.joined.solution()

# %%
second.end()  # and whatever it may have left

# %% [markdown]
# ## What to remember
#
# - **rank** is your number in the job, **local rank** your number on the node. The launcher says both, in environment variables.
# - One process listens (rank 0, or torchrun), all others connect. Then the data goes from rank to rank.
# - Always set a **timeout**, and read the last line of an error first.
# - From a notebook: a script, and `!torchrun`.
#
# ## Where next
#
# - [04 · Collectives](04_collectives.ipynb): what the ranks of a group can do together, and how long it takes.
# - [05 · Who sees which image](05_distributed_sampler.ipynb): the ranks share the images.
# - [06 · DistributedDataParallel](06_ddp.ipynb): they train one model.
# - `utils.find_placement` and `utils.init_distributed_mode` are this lesson as a program. Find in them: the variables, the backend, the timeout, the group of one.
