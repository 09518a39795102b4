# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         samples: 2000
#       seconds: 25
#     seconds: 35
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 00 · Start here
#
# What does this machine have for parallel training, and how much faster do two processes train on it than one?
#
# **The course in five lines**
#
# - You learn to train one model with many processes, to measure what that gains, and to say why it is not more.
# - Each notebook starts a real script, `main.py`, as you would type it, and draws the log that the script wrote.
# - To run it: open a notebook (`scripts/lab`) and choose *Run → Run All Cells*. Or let `scripts/run` execute all of them.
# - You need no GPU. A *rank* is a process: without a GPU it works on CPU cores, and *gloo* carries the gradients.
# - With GPUs the same files and the same commands use them, and *NCCL* carries the gradients.

# %%
import glob, sys
sys.path.insert(0, next(found[:-17] for place in (".", "..", "*") for found in glob.glob(f"{place}/course/lesson.py")))
from course import lesson; lesson.begin()

# %%
import math
import os
import re
import time
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import Markdown, display

import data
import utils
from course import plots, runs
from course.checks import lesson_00 as check

# %% tags=["parameters"]
samples = 10_000  # training images of the two runs below
ranks = 2  # processes of the second run

# %% [markdown]
# ## What this machine has

# %%
cores, gpus = utils.cores(), torch.cuda.device_count()
names = Counter(torch.cuda.get_device_name(gpu) for gpu in range(gpus))
train_set, test_set = data.get_dataset("auto")
info = data.DATASETS[train_set.name]
synthetic = train_set.name == "synthetic"

machine = {
    "CPU cores that we may use": cores,
    "main memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
    "GPUs": ", ".join(f"{count} × {name}" for name, count in names.items()) or "none",
    "PyTorch": torch.__version__,
    "backends in this PyTorch": ", ".join(name for name in ("gloo", "nccl", "mpi") if dist.is_backend_available(name))
    + " (nccl needs a GPU for each rank)",
    "data set": f"{train_set.name}: {len(train_set):,} training and {len(test_set):,} test images"
    + (" (SYNTHETIC: made from a seed, not photographs)" if synthetic else ""),
    "one image": f"{' × '.join(map(str, info.shape))} numbers (colours × height × width), {len(info.classes)} classes",
}
lesson.table(pd.DataFrame(machine.items(), columns=["what", "on this machine"]))

# %% [markdown]
# The network learns from images like these, and sees them no larger:

# %%
fig, axes = plt.subplots(2, 5, figsize=(10, 4))
for label, ax in enumerate(axes.flat):
    pair = train_set.images[(train_set.labels == label).nonzero()[:2, 0]]  # uint8 [2, C, H, W]
    ax.imshow(torch.cat([*pair], dim=2).permute(1, 2, 0))  # side by side; matplotlib wants [H, W, C]
    ax.set_title(info.classes[label], fontsize=18, loc="center")
    ax.axis("off")
fig.suptitle(f"{'SYNTHETIC DATA' if synthetic else train_set.name}: two images of each class", x=0.01, ha="left",
             fontsize=21, fontweight="bold", color=plots.WARNING if synthetic else "black")
plt.show()

# %% [markdown]
# ## How a lesson works
#
# **question → predict → run → picture → meaning**
#
# You write a number down *before* the run. Being wrong is fine: the gap is what you learn from.
#
# **Predict.** We train twice on the same images: first one process on one core (or one GPU), then two processes
# that share the images. How many times as fast will two processes train as one? Change the number.

# %%
my_prediction = 2.0

# %% [markdown]
# **Run.** First one process. `OMP_NUM_THREADS=1` keeps it to one core: otherwise `main.py` gives each process
# the cores divided by the ranks, one process would use them all, and a second one could add nothing.

# %%
start = time.perf_counter()
# !OMP_NUM_THREADS=1 python main.py --epochs 4 --samples {samples} --log-file results/live/00_one.jsonl
wall = {"one process": time.perf_counter() - start}

# %% [markdown]
# Now several, in one line. `torchrun` starts the processes and tells each one its rank. `main.py` does the rest.
# This way of training is called **DDP**: `DistributedDataParallel`.

# %%
start = time.perf_counter()
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} main.py --epochs 4 --samples {samples} --log-file results/live/00_ranks.jsonl
wall[f"{ranks} ranks"] = time.perf_counter() - start

# %% [markdown]
# **Picture.** The script wrote two logs. We read them back, and put your prediction beside the measurement.
# The first epoch warms up: speeds are the median of the others.

# %%
logs = runs.read_runs({"one process": "results/live/00_one.jsonl", f"{ranks} ranks": "results/live/00_ranks.jsonl"})
table = runs.speedup_table(logs, baseline="one process")
predicted = pd.DataFrame({"source": ["predicted"], "world_size": [ranks], "speedup": [my_prediction]})

plots.speedup(pd.concat([table[["label", "source", "machine", "world_size", "speedup", "oversubscribed", "cores",
                                "status", "synthetic"]], predicted]))
plt.show()

# %% [markdown]
# **Meaning.** Computed from the two logs. (Is the machine busy with other programs? Then they are in the numbers,
# too. Run the two cells again.)

# %%
one, many = (run for _, run in table.iterrows())
steps_one, steps_many = (math.ceil(samples / (run.batch_size * run.world_size)) for run in (one, many))
devices = gpus or cores
kind = ("GPU" if gpus else "core") + ("s" if devices > 1 else "")
crowded = ""
if ranks > devices:
    crowded = f" {ranks} ranks take turns on {devices} {kind}: one more helps only where the others leave it idle."
display(Markdown(
    f"- You predicted {my_prediction:g} times. On this machine {ranks} ranks trained **{many.speedup:.2f} times** as fast "
    f"as one process: {many.images_per_second:,.0f} images/s against {one.images_per_second:,.0f}.{crowded}\n"
    f"- Each process takes {one.batch_size} images a step. {ranks} ranks together take {ranks * many.batch_size} "
    f"(the *global batch*), so they make {steps_many} steps an epoch instead of {steps_one}. It is not quite the same "
    f"training: the loss after {one.epochs} epochs is {many.loss:.2f}, and with one process {one.loss:.2f}."
))

# %% [markdown]
# **But how long did you wait?** The speed above counts training alone. Here is the time of each whole command.

# %%
logs["command_seconds"] = logs["label"].map(wall)
plots.whole_command(logs, plt.subplots(figsize=(12, 4))[1])
plt.show()

# %% [markdown]
# What is *starting*? Python starts, and imports torch: `torchrun` does, and then each rank for itself.
# One such import, timed alone:

# %%
# !python -c "import time; start = time.perf_counter(); import torch; print(f'import torch: {time.perf_counter() - start:.1f} s')"
logged = logs.groupby("label")["total_seconds"].first()  # from the opening of the log to its end
start_one, start_many = (wall[label] - logged[label] for label in ("one process", f"{ranks} ranks"))
whole = wall["one process"] / wall[f"{ranks} ranks"]
display(Markdown(
    f"On this machine {start_many / wall[f'{ranks} ranks']:.0%} of the command with {ranks} ranks was starting. Training was {many.speedup:.2f} times "
    f"as fast as with one process, and the whole command {whole:.2f} times. "
    "The start is paid once a run: the longer the run, the less it matters."
))


# %% [markdown]
# ### Exercise 1: from how many epochs on?
#
# Each command needs some seconds to start, and then some seconds an epoch. Which is the shortest job, in epochs, that the
# ranks finish first? Return that number, or `None` if they never do.

# %%
def my_epochs(start_one, epoch_one, start_many, epoch_many):
    raise NotImplementedError


# %%
check.pays(my_epochs)
# check.pays.hint()
# check.pays.solution()
# my_epochs(start_one, one.seconds, start_many, many.seconds)  # the two runs above

# %% [markdown]
# ## Which way when
#
# Go down only as far as you need. Each step costs more care than the one above.

# %%
job_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))  # more than one only inside a Slurm job
several = {"live": job_nodes > 1, "else": "needs 2 machines"}
steps = [
    {"name": "One process", "what": "on one device", "command": "python main.py", "live": True,
     "question": "Does one device suffice?  No:"},
    {"name": "DataParallel", "what": "one process, all its GPUs", "command": "python main.py --strategy dp",
     "live": gpus > 1, "else": "needs 2 GPUs", "question": "Is it old code that must stay as it is?  No:"},
    {"name": "DDP", "what": "a process for each GPU or core", "command": "torchrun --nproc_per_node=8 main.py",
     "live": True, "question": "Does it fit one machine?  No:"},
    {"name": "DDP, several nodes", "what": "torchrun on each", "command": "torchrun --nnodes=2 … main.py", **several,
     "question": "Do nodes come and go?  Yes:"},
    {"name": "Elastic", "what": "starts again with the nodes there are", "command": "torchrun --nnodes=1:4 … main.py",
     **several},
]

fig, ax = plt.subplots(figsize=(12, 8.5))
width, height, right, down = 8.0, 1.0, 0.95, 1.6  # of a box, and from one to the next
for number, step in enumerate(steps):
    x, y, live = number * right, -number * down, step["live"]
    ax.add_patch(plt.Rectangle((x, y), width, height, linewidth=3, edgecolor=plots.COLOURS[0],
                               facecolor=plots.COLOURS[0] if live else "white"))
    ink = "white" if live else "black"
    name = ax.text(x + 0.15, y + 0.62, step["name"], fontsize=20, fontweight="bold", color=ink)
    ax.annotate(f"  {step['what']}", (1, 0.21), xycoords=name, fontsize=18, color=ink)
    ax.text(x + 0.15, y + 0.18, step["command"], fontsize=18, family="monospace", color=ink)
    ax.text(x + width - 0.15, y + 0.18, "live here" if live else step["else"], fontsize=18, fontweight="bold",
            ha="right", color=ink)
    if "question" in step:
        ax.annotate("", (x + right, y - down + height / 2), (x + right / 2, y),
                    arrowprops={"arrowstyle": "-|>", "connectionstyle": "angle,angleA=90,angleB=0", "linewidth": 3,
                                "mutation_scale": 30, "color": plots.GREY})
        ax.text(x + right / 2 + 0.2, y - 0.4, step["question"], fontsize=18, color=plots.GREY, fontweight="bold")
ax.set(xlim=(-0.1, 4 * right + width + 0.1), ylim=(-4 * down - 0.1, height + 0.1))
ax.set_title("Which way when: filled = this machine can do it now")
ax.axis("off")
plt.show()

# %%
meet = "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=FIRST_NODE:29400"
lesson.table(pd.DataFrame([
    ("One process", "`python main.py`"),
    ("DataParallel", "`python main.py --strategy dp`"),
    ("DDP", "`torchrun --nproc_per_node=8 main.py`"),
    ("DDP, two nodes", f"`torchrun --nnodes=2 --nproc_per_node=8 {meet} main.py`, on both"),
    ("Elastic, one to four", f"`torchrun --nnodes=1:4 --nproc_per_node=8 --max-restarts=3 {meet} main.py`, on each"),
], columns=["way", "the command"]))


# %% [markdown]
# DataParallel takes one changed line and is kept for old code: its one process feeds all GPUs.
# The PyTorch manual [advises DDP instead](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html),
# also on one machine. You have just run DDP.
#
# With one machine you can still rehearse two nodes. Type this in two terminals; each `torchrun` then plays a node:
#
# `torchrun --nnodes=2 --nproc_per_node=1 --rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=localhost:29400 main.py --device cpu`
#
# Elastic restarts the script with the nodes that are left. With `--checkpoint FILE` `main.py` goes on from that file, else it trains from
# the beginning ([lesson 11](11_fault_tolerance.ipynb)).

# %% [markdown]
# ### Exercise 2: the command for a machine
#
# You have `nodes` machines with `devices` GPUs or cores each, and want a rank on every device. Which line do you type, on
# each machine, to train with `main.py`? Several machines meet at `FIRST_NODE:29400`. For one device in one machine, one
# process is enough.

# %%
def my_command(nodes, devices):
    raise NotImplementedError


# %%
check.command(my_command)
# check.command.hint()
# check.command.solution()

# %% [markdown]
# ## The words from here on

# %%
words = {
    "epoch": "one pass over all training images",
    "gradient": "for each weight, which way and how much to change it; `backward()` computes it",
    "node": "one machine of several that work on a job",
    "backend": "the library that carries tensors between processes: gloo (CPU), NCCL (GPUs)",
    "process": "a running program with memory of its own. Processes share no variables: they send messages",
    "rank": "a process of the job; also its number, from 0",
    "local rank": "its number among the processes of the same machine, from 0. It picks the GPU",
    "world size": "how many ranks the job has",
    "shard": "the part of the images that one rank trains on in an epoch",
    "all-reduce": "all ranks add up their tensors, and each gets the sum. DDP averages the gradients with it",
    "global batch": "the images of one step over all ranks: batch size × world size",
}
files = sorted(Path("notebooks").glob("[0-9][0-9]_*.ipynb"))
lessons = {file.name: nbformat.read(file, as_version=4) for file in files}
text = {name: "\n".join(cell.source for cell in page.cells) for name, page in lessons.items()}


def used_most(word):
    """The lesson, other than this one, that uses the word most: look there first."""
    spelt = re.compile(rf"\b{word.replace(' ', '[ _]')}(?:e?s)?\b", re.IGNORECASE)  # in code, too
    uses = {name: len(spelt.findall(text[name])) for name in text}
    best = max((name for name in uses if not name.startswith("00_")), key=uses.get, default=None)
    return f"[{best[:2]}]({best})" if best and uses[best] else "–"


lesson.table(pd.DataFrame([(f"**{word}**", meaning, used_most(word)) for word, meaning in words.items()],
                  columns=["word", "meaning", "see lesson"]))

# %% [markdown]
# ## The lessons
#
# As they lie in `notebooks/`. The seconds are what the lesson's file expects on two cores.

# %%
rows = []
for name, page in lessons.items():
    heading, _, below = page.cells[0].source.partition("\n")
    question = " ".join(below.strip().split("\n\n")[0].split())
    seconds = page.metadata.get("course", {}).get("seconds", "?")
    rows.append((f"[{heading.strip('# ')}]({name})", question, f"{seconds} s"))
lesson.table(pd.DataFrame(rows, columns=["lesson", "its question", "takes about"]))

# %% [markdown]
# ## Where next
#
# - [01 · One device](01_one_device.ipynb): before you use many devices, make one fast, and learn to time it.
# - [07 · Performance](07_performance.ipynb): the comparison you saw here, with eight ranks, and with GPUs elsewhere.
# - The script behind it all: `main.py`, from top to bottom. `python main.py --help` lists its options.
