# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         epochs: 1
#         old_launcher: false
#         samples: 2000
#         several_nodes: false
#       seconds: 50
#     seconds: 105
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Launchers
#
# Who starts the ranks, and what does it tell them? `torchrun`, its predecessor `torch.distributed.launch`, `mp.spawn`, and Slurm:
# on one node, and on two.

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import difflib
import inspect
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed.launch
from IPython.display import Markdown, display
from matplotlib.ticker import MaxNLocator
from torch.distributed import run as torchrun

import placement
import data
import models
from course import plots, runs
from scripts.lessons import spawn_mnist
from course.checks import lesson_10 as check
from course import slurm
from course.hosts import Cluster

# %% tags=["parameters"]
samples = 6000  # training images of MNIST
epochs = 2
old_launcher = True  # train with torch.distributed.launch, too
several_nodes = True  # two nodes and Slurm, live where this machine can; False shows the recorded runs

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
data.get_dataset("mnist")  # once, before the ranks ask for it
live = Path("results/live")
live.mkdir(parents=True, exist_ok=True)
for old in live.glob("10_*"):
    old.unlink()
us = {socket.gethostname(), socket.getfqdn()}


def told(name):
    """What hello_rank.py found: one dict a process."""
    return [json.loads(line) for line in (live / f"10_{name}.jsonl").read_text().splitlines()]


# %% [markdown]
# ## What a rank is told
#
# A launcher starts the processes, and tells each one who it is. Three come with PyTorch:
#
# - `torchrun script.py`: a program that starts your script several times.
# - `python -m torch.distributed.launch script.py`: its predecessor. It still works, with a warning.
# - `mp.spawn(function, nprocs=2)`: your script, started once by plain `python`, starts the processes itself.
#
# `scripts/lessons/hello_rank.py` trains nothing. Each rank says what it was told: the environment variables that its launcher does not have itself.
#
# **Predict.** How many variables does `torchrun` set for a rank? And `mp.spawn`?

# %%
my_torchrun, my_spawn = 4, 4  # your numbers

# %%
start = {"torchrun": time.time()}
# !env -u OMP_NUM_THREADS torchrun --nproc_per_node=2 scripts/lessons/hello_rank.py --out results/live/10_torchrun.jsonl
start["mp.spawn"] = time.time()
# !python scripts/lessons/hello_rank.py --spawn 2 --out results/live/10_spawn.jsonl

# %% [markdown]
# (The banner is about the one variable that `torchrun` would rather leave to you: [07](07_performance.ipynb) tells the story.)

# %%
meaning = {
    "RANK": "number in the job", "LOCAL_RANK": "number on this node: which GPU", "WORLD_SIZE": "processes in the job",
    "LOCAL_WORLD_SIZE": "processes on this node", "GROUP_RANK": "number of the node", "GROUP_WORLD_SIZE": "nodes",
    "MASTER_ADDR": "where all ranks meet: the host …", "MASTER_PORT": "… and the port",
    "TORCHELASTIC_RESTART_COUNT": "restarts so far", "TORCHELASTIC_MAX_RESTARTS": "restarts at most",
    "TORCHELASTIC_RUN_ID": "name of the job: `--rdzv-id`", "TORCHELASTIC_USE_AGENT_STORE": "torchrun itself listens at that port",
    "TORCHELASTIC_ERROR_FILE": "where `@record` leaves a traceback", "OMP_NUM_THREADS": "threads of each process (unless you set it)",
    "ROLE_RANK": "as RANK, where all ranks have one role", "ROLE_WORLD_SIZE": "as WORLD_SIZE, likewise", "ROLE_NAME": "the role",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "on these torchrun ends its ranks", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "a failed NCCL collective ends the rank",
}
by_torchrun, by_spawn = (sorted(told(name), key=lambda rank: rank["rank"]) for name in ("torchrun", "spawn"))


def value(rank, name):
    text = rank["told"].get(name, "–")
    return "this machine" if text in us else f"…/{Path(text).name}" if text.startswith("/") else text if len(text) < 36 else f"{text[:33]}…"


names = sorted(by_torchrun[1]["told"], key=lambda name: (list(meaning).index(name) if name in meaning else 99, name))
lesson.table([{"variable": f"`{name}`", "says": meaning.get(name, ""), "torchrun, rank 0": value(by_torchrun[0], name),
       "rank 1": value(by_torchrun[1], name), "mp.spawn, rank 1": value(by_spawn[1], name)} for name in names])
Markdown(f"`torchrun` sets **{len(names)}** (you said {my_torchrun}), `mp.spawn` **{len(by_spawn[1]['told'])}** (you said {my_spawn}). "
         f"It passes the function one number, here {by_spawn[0]['passed']} and {by_spawn[1]['passed']}: the rank. Everything else is up to the script.")

# %% [markdown]
# The first eight are those of lesson [03](03_processes_and_ranks.ipynb); meanings after
# [torchrun's documentation](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables) and source.
#
# ### What does the start cost?
#
# Both ways begin with one process that starts the others. From typing the command to a rank that has done `import torch`:

# %%
events = []
for launcher, ranks in (("torchrun", by_torchrun), ("mp.spawn", by_spawn)):
    for rank in ranks:
        first, ready = (1000 * (rank[moment] - start[launcher]) for moment in ("first_line", "ready"))
        events += [{"rank": rank["rank"], "lane": launcher, "event": event, "start": begin, "end": end} for event, begin, end in
                   (("the launcher, alone", 0, first), ("the rank: import torch", first, ready))]
events = pd.DataFrame(events)
plots.timeline(events, plt.subplots(figsize=(14, 6))[1])
plt.title("From the command to a rank that can train", pad=46)
plt.show()
alone = events[events["event"].str.startswith("the launcher")].groupby("lane")["end"].max() / 1000
Markdown(f"`torchrun` needs {alone['torchrun']:.1f} s before a rank runs its first line, `mp.spawn` {alone['mp.spawn']:.1f} s. In both, that is mostly "
         "the launcher's own `import torch`. Then each rank imports it again.")

# %% [markdown]
# ## One training, three launchers
#
# `scripts/lessons/spawn_mnist.py` trains LeNet on MNIST with `mp.spawn`. This is all that it does in place of `torchrun`:

# %%
display(Markdown(f"```python\n{inspect.getsource(spawn_mnist.be_rank)}```"))
print(*(line.strip() for line in inspect.getsource(spawn_mnist.main).splitlines() if "mp.spawn(" in line))

# %% [markdown]
# The function must stand in a file that a new process can import: one that was written in a notebook cannot be spawned (lesson
# [03](03_processes_and_ranks.ipynb) tries it). `open_store` in the script chooses a free port, and holds it.
#
# `main.py` can train the same. **Predict.** One process with batch 64, and two ranks with batch 32 each, started in three ways: the same
# seed, the same images. How far are their weights apart at the end?

# %%
my_difference = 0.01

# %%
seen = "auto" if not torch.cuda.is_available() else "cpu"  # CPUs for all, so that the weights can be compared; where there are GPUs, say so
options = f"--epochs {epochs} --lr 0.01 --samples {samples} --test-samples 1000"
training = f"main.py --dataset mnist --optimizer sgd --device cpu --no-channels-last {options}"
# !python {training} --batch-size 64 --save-model results/live/10_one.pt --log-file results/live/10_one.jsonl
# !torchrun --nproc_per_node=2 {training} --batch-size 32 --save-model results/live/10_torchrun.pt --log-file results/live/10_torchrun_mnist.jsonl

# %%
if old_launcher:
    get_ipython().system(f"python -W ignore -m torch.distributed.launch --nproc_per_node=2 {training} --batch-size 32 --save-model results/live/10_launch.pt")

# %%
# !python scripts/lessons/spawn_mnist.py --n-gpus 2 --device {seen} {options} --batch-size 32 --save-model results/live/10_spawn.pt

# %%
launched = {"torchrun": "10_torchrun.pt", "torch.distributed.launch": "10_launch.pt", "mp.spawn": "10_spawn.pt"}
if not old_launcher:
    del launched["torch.distributed.launch"]
_, test_set = data.get_dataset("mnist", verify=False)
test_images, test_labels = test_set.first(1000).__getitems__(range(1000))


def weights(file):
    return torch.load(live / file, map_location="cpu", weights_only=True)


def accuracy(state):
    model = models.ConvNet(channels=1, image_size=28)
    model.load_state_dict(state)
    with torch.no_grad():
        return (model(test_images).argmax(1) == test_labels).float().mean().item()


def farthest(state, other):
    return max((state[name] - other[name]).abs().max().item() for name in other)


def draw_differences(launched):
    """How far each launcher's weights are from those of one process; and how far the training has moved them."""
    one = weights("10_one.pt")
    torch.manual_seed(0)
    first = models.ConvNet(channels=1, image_size=28).state_dict()
    bars = {"(before any training)": farthest(first, one)} | {name: farthest(weights(file), one) for name, file in launched.items()}
    fig, ax = plt.subplots(figsize=(14, 2.5 + 0.8 * len(bars)))
    for y, (name, size) in enumerate(bars.items()):
        shown = max(size, 1e-10)  # a logarithm has no 0
        ax.barh(y, shown, height=0.6, color=plots.GREY if name.startswith("(") else plots.COLOURS[2] if size < 1e-5 else plots.COLOURS[1])
        ax.text(shown, y, f"  {size:.0e}" if size else "  0: bit for bit", va="center", fontweight="bold")
    ax.axvline(1e-5, color="black", linestyle="--", linewidth=2)
    ax.text(1e-5, -0.75, " as far as rounding may go", va="center", fontsize=15)
    ax.set(xscale="log", xlabel="largest difference of a weight", xlim=(1e-10, 30), ylim=(len(bars) - 0.5, -1.1))
    ax.set_yticks(range(len(bars)), bars)
    ax.grid(axis="y", visible=False)
    ax.set_title("How far from the weights of one process")
    plt.show()
    return bars


bars = draw_differences(launched)
lesson.table([{"launcher": name, "accuracy on 1000 test images": f"{accuracy(weights(file)):.3f}"} for name, file in
      {"one process": "10_one.pt", **launched}.items()])
apart = max(size for name, size in bars.items() if name in launched)
assert apart < 1e-5, bars
Markdown(f"You said {my_difference:g}. The largest difference is **{apart:.0e}**, while the training moved a weight by up to {bars['(before any training)']:.2f}. "
         "**A launcher starts processes. What they compute is none of its business.**")

# %% [markdown]
# The saved files load into the plain model: `spawn_mnist.py` saves `model.module.state_dict()`, without DDP's `module.` before each name.
# Where there are GPUs, `--n-gpus` means GPUs:

# %%
gpus = torch.cuda.device_count()
if gpus:
    print(subprocess.run([sys.executable, "scripts/lessons/spawn_mnist.py", f"--n-gpus={gpus}", *options.split()], check=True, capture_output=True, text=True,
                         timeout=300).stdout)
else:
    print("No GPU here, so the run above was on the CPU, and its first line says so.")

# %% [markdown]
# ## `unrecognized arguments: --local-rank`
#
# Many scripts from before PyTorch 2.0 have these lines. Their launcher passed `--local_rank`:

# %%
old, new = (Path(f"scripts/lessons/local_rank_{which}.py").read_text() for which in ("old", "new"))
display(Markdown(f"```python\n{old.split('import argparse', 1)[1].strip()}\n```"))

# %% [markdown]
# **Predict.** What does it do today? We run it with `scripts/cluster/why_it_failed.py`. It waits for a command no longer than we allow, and if it fails, looks for the
# line that says why. (`--expect-failure`: here we want it to fail.)

# %%
my_guess = "it prints two local ranks"

# %%
# !python scripts/cluster/why_it_failed.py --expect-failure --within 60 -- \
#     python -W ignore -m torch.distributed.launch --nproc_per_node=2 scripts/lessons/local_rank_old.py

# %% [markdown]
# The old launcher adds an argument to the command line of each rank. Since 2.0 that argument is spelled with a dash. The cure:

# %%
lines = list(difflib.unified_diff(old.split('"""')[2].strip().splitlines(), new.split('"""')[2].strip().splitlines(), n=100, lineterm=""))[3:]
display(Markdown("```diff\n" + "\n".join(lines) + "\n```"))

# %%
# !python -W ignore -m torch.distributed.launch --nproc_per_node=2 scripts/lessons/local_rank_new.py --epochs 3

# %% [markdown]
# The changed line reads both spellings, and without either the environment variable. So it works with every launcher. If you only use
# `torchrun`, `int(os.environ["LOCAL_RANK"])` is enough. What the old launcher says of itself, and its documentation of the change:

# %%
print(torch.distributed.launch.main.__deprecated__.strip())
change = inspect.getdoc(torch.distributed.launch).partition(".. versionchanged:: ")[2]
print("\nChanged in version", "\n\n".join(change.split("\n\n")[:3]))

# %% [markdown]
# ### Which version, which command
#
# | | before 1.10 | 1.10 to 1.13 | 2.0 and later |
# |:--|:--|:--|:--|
# | `torchrun` | not there: `python -m torch.distributed.launch --use_env` (1.9: `torch.distributed.run`) | yes | yes |
# | its options | – | `--nproc_per_node` | `--nproc_per_node` or `--nproc-per-node` |
# | `torch.distributed.launch` | the launcher (1.9: deprecated) | deprecated | deprecated |
# | it passes | `--local_rank=0` | `--local_rank=0` | `--local-rank=0` |
# | with `--use_env` | nothing | nothing | nothing (or `--use-env`) |
#
# Sources: the documentation of [1.9](https://pytorch.org/docs/1.9.0/elastic/run.html), of 1.10
# ([quoted here](https://discuss.pytorch.org/t/torchrun-command-not-found-does-it-need-to-be-installed-seperately/143225)), the
# [warning of 1.9](https://github.com/pytorch/pytorch/issues/60262), and the note above. Underscores work in every version. (The package called
# [`torchrun` on PyPI](https://pypi.org/project/torchrun/) is another program: `torchrun` comes with `torch`.)
#
# ## Restarts
#
# `torchrun` watches its ranks. With `--max-restarts=1` it starts again when one fails. Here rank 1 fails, but only at its first attempt.
#
# (They are told one variable less than before: this notebook has set `OMP_NUM_THREADS` itself.)
#
# **Predict.** Three ranks. How many processes are started in all?

# %%
my_processes = 4

# %%
# !python scripts/cluster/why_it_failed.py --all --within 60 -- torchrun --nproc_per_node=3 --max-restarts=1 \
#     scripts/lessons/hello_rank.py --fail 1 --out results/live/10_restart.jsonl

# %%
attempts = told("restart")
begin = min(process["first_line"] for process in attempts)
drawn = pd.DataFrame([{"rank": process["rank"], "event": f"attempt {process['attempt']}", "text": process["end"].split(" ", 2)[2],
                       "start": 1000 * (process["first_line"] - begin), "end": 1000 * (process["ready"] - begin)} for process in attempts])
plots.timeline(drawn, plt.subplots(figsize=(14, 5))[1])
plt.title("Rank 1 fails, and all are started again", pad=46)
plt.show()
counts = sorted({(process["attempt"], process["told"]["TORCHELASTIC_RESTART_COUNT"]) for process in attempts})
Markdown(f"You said {my_processes}. There were **{len(attempts)}** processes. The variable `TORCHELASTIC_RESTART_COUNT` was "
         + " and ".join(f"{count} in attempt {attempt}" for attempt, count in counts)
         + ". Ranks that were well are ended with SIGTERM and started again: they were in the middle of a step with the one that failed.")

# %% [markdown]
# The new processes begin where your script begins. What was not saved is lost. So a script that is to be restarted saves checkpoints, and loads the last
# one first (`main.py --checkpoint FILE` does). And it must not rely on its rank: after a restart a process may get another one
# ([torchrun's notices](https://docs.pytorch.org/docs/stable/elastic/run.html#important-notices)).
#
# ## Where do they meet?
#
# The ranks find each other in a *store*: a small server at `MASTER_ADDR:MASTER_PORT`. Before that the torchruns of all nodes must agree on who is in the
# job. That is the **rendezvous**. What do the options make of it? We ask `torchrun` itself, and stop it before it starts anything:

# %%
ways = {
    "": "one node, nothing said",
    "--standalone": "one node",
    "--master-port=29500": "one node, the port chosen",
    "--nnodes=2 --node-rank=1 --master-addr=node0 --master-port=29500": "the second of two nodes",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=7": "any of two nodes",
    "--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=7": "one node or two: elastic",
}
rows = []
for words, what in ways.items():
    with mock.patch.object(torchrun, "elastic_launch") as launch:
        torchrun.run(torchrun.parse_args([*words.split(), "main.py"]))
    config = launch.call_args.kwargs["config"]
    rows.append({"torchrun …": f"`{words}`" if words else "", "": what, "nodes": f"{config.min_nodes} to {config.max_nodes}", "rendezvous": config.rdzv_backend,
                 "they meet at": config.rdzv_endpoint, "job": f"{config.run_id[:8]}…" if len(config.run_id) > 8 else config.run_id})
lesson.table(rows)
ports = {name: told(name)[0]["told"]["MASTER_PORT"] for name in ("torchrun", "restart")}
Markdown(f"Port 0 means *any that is free*. The two torchruns above got {' and '.join(ports.values())}: on one node you need not choose a port.")

# %% [markdown]
# - **static**: each node is told its number, and how many there are. Node 0 opens the store at `--master-addr`, `--master-port`.
# - **c10d**: the nodes come in any order, to the same `--rdzv-endpoint` with the same `--rdzv-id`, and get their numbers there. A range such as
#   `--nnodes=1:2` lets nodes come and go: the job is *elastic*.
#
# ## When it does not start
#
# Five mistakes, all at once. The launcher's own output is often a page a rank. `why_it_failed.py` prints the one line.
#
# **Predict.** Which of them end by themselves at once, and which would you still be waiting for after a minute?

# %%
my_list = ["a master that is not there"]

# %%
taken = socket.create_server(("", 0))  # some other program's port
closed = socket.socket()
closed.bind(("127.0.0.1", 0))  # nobody listens here
hello = "scripts/lessons/local_rank_new.py"
join = f"torchrun --nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port={closed.getsockname()[1]}"
too_many = torch.cuda.device_count() + 1
mistakes = {  # what to start, and how many seconds we give it
    "a port in use": (f"torchrun --nproc_per_node=2 --master-port={taken.getsockname()[1]} {hello}", 60),
    "a port in use, mp.spawn": (f"python scripts/lessons/spawn_mnist.py --n-gpus 2 --device cpu --port {taken.getsockname()[1]}", 60),
    "a master that is not there": (f"{join} {hello}", 7),
    "the same, and no patience": (f"{join} --rdzv-conf=timeout=2 {hello}", 60),
    "more ranks than GPUs": (f"torchrun --nproc_per_node={too_many} main.py --backend nccl", 60),
}
started = {name: subprocess.Popen([sys.executable, "scripts/cluster/why_it_failed.py", f"--within={seconds}", "--", *shlex.split(command)],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for name, (command, seconds) in mistakes.items()}
said = {name: process.communicate(timeout=120)[0] for name, process in started.items()}
taken.close()
closed.close()
for name, text in said.items():
    print(f"--- {name}: {mistakes[name][0]}\n{text}")

# %%
ended = [name for name, text in said.items() if text.startswith("status:  124")]
Markdown(f"You said: {', '.join(my_list)}. Had to be ended: **{', '.join(ended) or 'none'}**. By itself `torchrun` waits "
         f"{config.rdzv_configs['timeout']} s for the others. That is right where nodes boot slowly, and a long time to wait for a typing mistake: "
         "`--rdzv-conf=timeout=SECONDS` sets it (`read_timeout` and `join_timeout` with c10d).")

# %% [markdown]
# ## Two nodes
#
# On two machines you would type a command on each. Here the two machines are *network namespaces* of this one, each with a name, an address and
# processes of its own (`scripts/cluster/lab_cluster.py`). They share the cores: this shows what happens, not how fast. It needs Linux and some rights.

# %%
not_asked = None if several_nodes else "several_nodes is False"
no_nodes = not_asked or Cluster.available()
recorded = Path("results/recorded/two-nodes-namespaces")


def run(command, within):
    """Show the command and what it says. It must end well, and in time."""
    print(f"$ {command}\n")
    done = subprocess.run([sys.executable, "scripts/cluster/why_it_failed.py", "--all", f"--within={within}", "--", *shlex.split(command)], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0


def replay(file):
    print(f"RECORDED on another machine ({file}), because {no_nodes}\n\n{file.read_text()}")


# %% [markdown]
# ### A fixed number of nodes: `--node-rank` and `--master-addr`
#
# The same line on both nodes, but for the node's own number: `$NODE` is 0 on one and 1 on the other. `$MASTER` is the name of the first.

# %%
static = "torchrun --nnodes=2 --node-rank=$NODE --nproc-per-node=1 --master-addr=$MASTER --master-port=29500"
if no_nodes:
    replay(recorded / "console-static.out")
    logs = {"one node, 1 rank": "one-node-1-rank", "one node, 2 ranks": "one-node-2-ranks", "two nodes, 1 rank each": "two-nodes-1-rank-each"}
    logs = {name: recorded / f"{file}.jsonl" for name, file in logs.items()}
else:
    run(f"python scripts/cluster/lab_cluster.py --nodes 2 --timeout 90 -- '{static} {training} --batch-size 32 --save-model results/live/10_nodes.pt "
        "--log-file results/live/10_nodes.jsonl'", within=100)
    launched["two nodes, torchrun"] = "10_nodes.pt"
    logs = {"one node, 1 rank": live / "10_one.jsonl", "one node, 2 ranks": live / "10_torchrun_mnist.jsonl", "two nodes, 1 rank each": live / "10_nodes.jsonl"}

# %% [markdown]
# `main.py` needed no change: the first eight variables of the table say all that it must know. The run log counts the nodes, and the plots of lesson
# [07](07_performance.ipynb) read it:

# %%
df = runs.read_runs(logs)
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 6.5))
plots.seconds_per_epoch(runs.seconds_per_epoch(df), left)
plots.speedup(runs.speedup_table(df[df["label"] != "one node, 2 ranks"]), right)
right.set_xlabel("nodes, 1 rank each")
plt.show()
nodes = df.groupby("label", sort=False).last()
Markdown("The logs say: " + "; ".join(f"*{name}*: {run.nodes} node(s), world size {run.world_size}, loss {run.loss:.4f}" for name, run in nodes.iterrows()) + ".")

# %% [markdown]
# These nodes share one machine's cores, and their network is memory. On real ones the same table and the same plots show what a network costs.
#
# ### Any number of nodes: c10d, elastic
#
# Nobody has a number now. `--nnodes=1:2`: one node is enough, two are welcome. `main.py` keeps a checkpoint, and after two epochs we kill the second
# node. With `--global-batch-size 64` a step takes 64 images, whether one rank makes it or two.
#
# **Predict.** What does the first node do: fail, wait for the other, begin again, or go on after the last epoch?

# %%
my_guess = "fail"

# %%
elastic = ("torchrun --nnodes=1:2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=10 --rdzv-endpoint=node0:29400 "
           "--rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3")
console = live / "10_elastic.txt"
if no_nodes:
    console = recorded / "console-node-lost.out"
else:
    command = f"{elastic} {training} --global-batch-size 64 --checkpoint results/live/10_elastic.ckpt".replace(f"--epochs {epochs}", "--epochs 4")
    print(f"$ {command}\n")
    with Cluster(2) as cluster, console.open("w") as out:
        first, second = (cluster.start(node, command.split(), stdout=out, stderr=subprocess.STDOUT) for node in (0, 1))
        give_up = time.monotonic() + 60
        while "Epoch: 1," not in console.read_text():
            assert first.poll() is None and time.monotonic() < give_up, f"waited 60 s at most for two epochs: {console.read_text()}"
            time.sleep(0.05)
        time.sleep(0.3)  # the checkpoint is written after the line
        cluster.kill(1)
        killed = time.monotonic()
        while console.read_text().count("rank(s) x batch") < 2:
            assert first.poll() is None and time.monotonic() < killed + 60, f"waited 60 s at most for node0 to begin again: {console.read_text()}"
            time.sleep(0.05)
        gap = time.monotonic() - killed
        assert first.wait(90) == 0
essential = [line.partition("node0: ")[2] or line for line in console.read_text().splitlines()
             if re.search(r"rank\(s\) x batch|Epoch: |Going on from|no word from|Error: |lab_cluster: ", line)]
print(f"RECORDED on another machine ({console}), because {no_nodes}\n" if no_nodes else "", *(line[:150] for line in essential), sep="\n")

# %%
parts = []  # (number of ranks, [epoch that the script counted, …]) of each job that was formed
for line in essential:
    if found := re.search(r"(\d+) rank\(s\) x batch", line):
        parts.append((int(found[1]), []))
    elif found := re.search(r"Epoch: (\d+)", line):
        parts[-1][1].append(int(found[1]))
fig, ax = plt.subplots(figsize=(14, 6))
done = 0
for number, (ranks, trained) in enumerate(parts):
    look = {"facecolor": "white", "hatch": "/", "linestyle": plots.LINES["recorded"]} if no_nodes else {"facecolor": plots.COLOURS[number]}
    for place, epoch in enumerate(trained, start=done + 1):
        ax.bar(place, epoch + 1, edgecolor=plots.COLOURS[number], linewidth=3, width=0.7, **look)
    ax.annotate(f"{ranks} node{'s' * (ranks > 1)}", (done + len(trained), trained[-1] + 1), (0, 8), textcoords="offset points", ha="center", color=plots.COLOURS[number],
                fontweight="bold")
    done += len(trained)
    if number == 0:
        ax.axvline(done + 0.5, color="black", linestyle=":")
        ax.annotate("node1 is killed", (done + 0.5, 0.9), (-10, 0), textcoords="offset points", xycoords=("data", "axes fraction"), ha="right")
ax.set(xlabel="epochs, one after another", ylabel="epochs that are in the model")
ax.margins(y=0.2)
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_locator(MaxNLocator(integer=True))
ax.set_title("Before and after the loss of a node" + (" (recorded)" if no_nodes else ""))
plt.show()
finished, begins = parts[0][1][-1] + 1, parts[1][1][0]
Markdown(f"You said: {my_guess}. The rest formed a new job, of {parts[1][0]} node(s)" + ("" if no_nodes else f", which began **{gap:.0f} s** after the loss") + ". "
         + (f"It **began again**: {finished} finished epochs were lost. (This run was recorded without `--checkpoint`.)" if begins == 0 else
            f"It **went on** with epoch {begins}, from the checkpoint: {finished - begins} of the {finished} finished epochs had to be done again."))

# %% [markdown]
# It is the node named in `--rdzv-endpoint` that keeps the job together: when that one is lost, all is lost. `--rdzv-conf` above makes the survivor
# notice the loss sooner, and wait less for others to join.
#
# ## Slurm
#
# On a cluster Slurm starts processes on the nodes it gives you. So it can be the launcher itself, or start one `torchrun` on each node. Both files are in
# `scripts/cluster/`, and this is the command that counts in each:

# %%
for way in ("ranks", "torchrun"):
    command = re.search(r"^srun (?:.*\\\n)*.*", Path(f"scripts/cluster/{way}.sbatch").read_text(), re.M)[0]  # to the first line that goes on no more
    print(f"{way}.sbatch:\n{command}\n")

# %% [markdown]
# Both files keep a checkpoint. Two minutes before the job's time is over, Slurm sends the signal USR1. `main.py` then saves and stops, and the file
# queues the job again, to go on from there. (`trap`: torchrun itself must not die of that signal.)
#
# In the first way, `ranks.sbatch`, nobody sets `RANK`. Slurm tells each task the same under other names, and `main.py` translates:

# %%
display(Markdown(f"```python\n{inspect.getsource(placement.adopt_slurm)}```"))

# %%
no_slurm = not_asked or slurm.missing() or no_nodes
recorded_slurm = Path("results/recorded/slurm-two-nodes")
if no_slurm:
    print(f"RECORDED on another machine ({recorded_slurm}), because {no_slurm}\n")
    outputs = {way: recorded_slurm / f"{way}.out" for way in ("ranks", "torchrun")}
else:
    job = f"{training} --batch-size 32".removeprefix("main.py ")
    submit = "; ".join(f"sbatch --gpus-per-node=0 --ntasks-per-node=1 --cpus-per-task=1 --output=results/live/10_slurm_{way}.txt scripts/cluster/{way}.sbatch "
                       f"{job} --log-file results/live/10_slurm_{way}.jsonl --save-model results/live/10_slurm_{way}.pt" for way in ("ranks", "torchrun"))
    run(f"python scripts/cluster/slurm_lab.py --nodes 2 -- sh -c 'sinfo; {submit}; sleep 4; squeue; while squeue --noheader | grep -q .; do sleep 0.5; done'", within=110)
    outputs = {way: live / f"10_slurm_{way}.txt" for way in ("ranks", "torchrun")}
    launched |= {"Slurm starts the ranks": "10_slurm_ranks.pt", "Slurm starts torchrun": "10_slurm_torchrun.pt"}
for way, output in outputs.items():
    print(f"--- {way}.sbatch", *(line[:150] for line in output.read_text().splitlines() if not re.search("frame|Exception raised", line)), sep="\n")
df = runs.read_runs({f"{way}.sbatch": output.with_suffix(".jsonl") for way, output in outputs.items()})
assert set(df["status"]) == {"completed"}, df["note"]
lesson.table([{"file": label, "started by": run.launcher, "nodes": run.nodes, "ranks": run.world_size, "loss": f"{run.loss:.6f}"}
      for label, run in df.groupby("label", sort=False).last().iterrows()])

# %% [markdown]
# Live, this is a real Slurm on the namespaces of this machine, for as long as the two jobs run (`scripts/cluster/slurm_lab.py`). Each line of a job begins with
# the task that printed it (`srun --label`). Two jobs may share a node, so each meets at a port made from its job's number. With one port written
# into the file, the second job on a node would fail.
#
# `torchrun` may end with a page about `TCPStore` and `failed to shutdown the rendezvous` (we leave out its C++ frames). Then the node that holds the
# store was the first to leave. The training is over by then, so it does no harm.
#
# ## All of them
#
# Every way to start that ran live on this machine, and how far its weights are from one process's:

# %%
bars = draw_differences(launched)
assert max(size for name, size in bars.items() if name in launched) < 1e-5, bars
Markdown(f"{len(launched)} launches of one training, {len(launched)} times the same model.")

# %% [markdown]
# **Which one?** `torchrun`, unless there is a reason. It works on one node and on many, can restart the ranks, and names the rank that failed first. `mp.spawn`: when a program
# must be started by plain `python`. Slurm alone: when its `srun` is all that you have, or you want its log of each task.
#
# ## Exercises
#
# 1. `my_local_rank(arguments, environment)`: the local rank, whoever started the script. `arguments` is the list that a script finds in `sys.argv[1:]`,
#    `environment` a dict like `os.environ`. The script also has an option of its own, `--epochs`.

# %%
import argparse  # noqa: F401 - for your answer


def my_local_rank(arguments, environment):
    raise NotImplementedError


check.device(my_local_rank)
# check.device.hint()
# check.device.solution()

# %% [markdown]
# 2. Two nodes, `node-a` and `node-b`, with four GPUs each. On `node-a` a colleague has started the first torchrun, port 29500. Write the command for
#    `node-b`, as text: it runs `main.py --epochs 3`.

# %%
my_command = ...

check.command(my_command)
# check.command.hint()
# check.command.solution()

# %% [markdown]
# 3. One rank fails at every attempt. How many processes has `torchrun --nproc_per_node=RANKS --max-restarts=MAX_RESTARTS` started in the end?

# %%
def my_count(ranks, max_restarts):
    raise NotImplementedError


check.restarts(my_count)
# check.restarts.hint()
# check.restarts.solution()

# %% [markdown]
# ## Where next
#
# - [03 · Processes and ranks](03_processes_and_ranks.ipynb): the names, process groups, and starting ranks from a notebook.
# - [07 · Performance](07_performance.ipynb): what more ranks gain.
# - Your own cluster: copy `scripts/cluster/torchrun.sbatch`, change its head, and read `python scripts/cluster/why_it_failed.py --log slurm-JOB.out` when it fails.
