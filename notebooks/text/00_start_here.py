# ---
# jupyter:
#   course:
#     minutes: 40
#     quick:
#       parameters:
#         epochs: 2
#         samples: 1000
#         tested: 500
#       seconds: 40
#     seconds: 60
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 00 · Start here
#
# **The question.** How much faster do two processes train a network than one, on the machine in front of you?
#
# **You will be able to**
# - train one network with several processes, by one command, and read from the log what they gained;
# - say what a command costs once, besides its epochs;
# - write a first function that several processes run, each knowing who it is;
# - choose between the five ways to train, and find the lesson for each.
#
# **You need** nothing but Python. No GPU: without one, processes work on CPU cores. With GPUs the same files and the
# same commands use them.
#
# **Time.** About 40 minutes for you, 1 for the machine.
#
# This is the first lesson. Later you build DDP yourself from two calls ([06](06_ddp.ipynb)), predict
# how fast 1,024 GPUs would be, which you do not have ([08](08_predict_scaling.ipynb)), kill processes and see the
# training go on ([11](11_fault_tolerance.ipynb)), and repair scripts that are broken as people really break them
# ([12](12_break_it.ipynb)). A picture shows what was measured here; where it is a schematic, or was recorded elsewhere,
# it says so.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import math
import os
import time
from collections import Counter

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import torch
import torch.distributed as dist

import launch
import data
from course import plots, runs
from lessons.l00_start_here import check, show

# %% tags=["parameters"]
samples = 10_000  # training images of the runs below
epochs = 6  # passes over them, at least 2
tested = 10_000  # test images, after each epoch
ranks = 2  # processes, where there are several

# %% [markdown]
# ## What this machine has

# %%
cores = launch.cores()
gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
backends = [name for name in ("gloo", "nccl", "mpi") if dist.is_backend_available(name)]
train_set, test_set = data.get_dataset("auto")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
made_up = train_set.name == "synthetic"
lesson.table([{"what": what, "on this machine": value} for what, value in {
    "CPU cores that we may use": cores,
    "GPUs": ", ".join(f"{count} × {name}" for name, count in Counter(gpus).items()) or "none",
    "PyTorch": torch.__version__,
    "libraries for messages between processes (NCCL works with GPUs only)": ", ".join(backends),
    "images": f"{train_set.name}: {len(train_set):,} for training, {len(test_set):,} for the test"
              + " (SYNTHETIC: made from a seed, not photographs)" * made_up,
}.items()])

# %% [markdown]
# The network is to say what each image shows. It sees them no larger than this:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
few, classes = train_set.first(1000), data.DATASETS[train_set.name].classes
figure, axes = plt.subplots(2, 5, figsize=(10, 4))
for label, ax in enumerate(axes.flat):
    two = few.images[few.labels == label][:2]  # [2, C, H, W]
    ax.imshow(torch.cat([*two], 2).permute(1, 2, 0))  # matplotlib wants [H, W, C]
    ax.set_title(classes[label], fontsize=18, loc="center")
    ax.axis("off")
name, colour = ("SYNTHETIC DATA", plots.WARNING) if made_up else (train_set.name, "black")
figure.suptitle(f"{name}: two images of each class", x=0.01, ha="left", fontsize=21,
                fontweight="bold", color=colour)
plt.show()

# %% [markdown]
# ## The same training, sooner
#
# Every lesson goes the same way: a question, **your prediction**, a run, a picture, what it means. Write the number
# down *before* you run. To be wrong is fine: the gap is what you learn from.
#
# We train twice on the same images: first one process on one device (a GPU, or one CPU core), then two processes on
# two. Each process holds a copy of the network. The network is updated after each 512 images: one process takes all
# 512, and two take 256 each and average their gradients, which is what each has learned from its images.
#
# **Predict**: two processes train how many times as fast as one? Replace `None` by a number.

# %%
my_speedup = None  # times as fast

# %% [markdown]
# One process. (`OMP_NUM_THREADS=1` keeps it to one core. Otherwise it would use all cores.)

# %%
options = f"--samples {samples} --test-samples {tested}"
large = f"{options} --epochs {epochs} --global-batch-size 512 --lr 0.002"
start = time.perf_counter()
# !OMP_NUM_THREADS=1 python main.py {large} --log-file results/live/00_one.jsonl
wall = {"one process": time.perf_counter() - start}

# %% [markdown]
# Now two. `torchrun` starts the processes and tells each one its number, its **rank**. [`main.py`](../main.py) does
# the rest; you need not read it yet.
# This way to train is called **DDP**, for PyTorch's `DistributedDataParallel`.

# %%
start = time.perf_counter()
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} main.py {large} \
#     --log-file results/live/00_ranks.jsonl
wall[f"{ranks} ranks"] = time.perf_counter() - start

# %% [markdown]
# Each run wrote a log. We read both back, and draw the accuracy on the test images: once after as many epochs, once
# after as many seconds.

# %%
logs = runs.read_runs({"one process": "results/live/00_one.jsonl",
                       f"{ranks} ranks": "results/live/00_ranks.jsonl"})
plots.accuracy_twice(logs)
plt.show()

# %% [markdown]
# Left: epoch by epoch both are equally good, since it is **the same training**. (The small differences come from
# rounding.) Right: one of them is there earlier. How much earlier? The first epoch is often slower (it warms up), so we
# leave it out. Of the other speeds we take the middle one, the **median**.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
table = runs.speedup_table(logs, baseline="one process")
devices, kind = (len(gpus), "GPU") if gpus else (cores, "core")
lesson.predicted(my_speedup, table["speedup"].iloc[-1], "times as fast")
lesson.verdict(show.most_to_hope_for(ranks, devices, kind))

# %% [markdown]
# What is missing from the ideal was spent on averaging, on waiting for the other process, and on what the devices of one
# machine share. (Other programs on your machine count, too. Run the cells again.) Lesson [08](08_predict_scaling.ipynb)
# takes the loss apart, and predicts it.
#
# ## And with small batches?
#
# Each update costs a message, however few images it took. Without `--global-batch-size` each process takes 64 images
# for an update.
#
# **Predict**: with 64 images each, do two processes gain more than above, or less?

# %%
my_small = None  # "more" or "less"

# %%
small = f"{options} --epochs {max(2, epochs // 2)}"
# !OMP_NUM_THREADS=1 python main.py {small} --log-file results/live/00_one_small.jsonl
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} main.py {small} \
#     --log-file results/live/00_ranks_small.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one_small, ranks_small = "one process, 64", f"{ranks} ranks, 64 each"
small_logs = runs.read_runs({one_small: "results/live/00_one_small.jsonl",
                             ranks_small: "results/live/00_ranks_small.jsonl"})
rows = [*table.itertuples(), *runs.speedup_table(small_logs, baseline=one_small).itertuples()]
lesson.predicted(my_small, "more" if rows[3].speedup > rows[1].speedup else "less")
lesson.table([{"run": run.label, "images/s": f"{run.images_per_second:,.0f}",
               "times as fast": f"{run.speedup:.2f}",
               "images an update": run.batch_size * run.world_size,
               "updates an epoch": math.ceil(samples / (run.batch_size * run.world_size)),
               "epochs": run.epochs, "loss after them": f"{run.loss:.2f}"} for run in rows])

# %% [markdown]
# And it is **not the same training**: two processes with 64 images each make an update of 128, so an epoch has half as
# many updates, and the losses differ. Lesson [09](09_large_batch.ipynb) is about that.
#
# On a CPU there is a third way: one process that uses all cores itself. It is not what we compare here: one core stands
# for one GPU. Lesson [07](07_performance.ipynb) sets these side by side, too.
#
# ## But how long did you wait?
#
# The speed above counts training alone. The command also starts Python and imports torch: `torchrun` does, and then
# every rank for itself. The ranks meet, load the images, and end. All this comes once, however many epochs there are.
#
# **Predict**: what share of the second command's time did **not** go into its epochs (training, and evaluating)?

# %%
my_once = None  # % of the whole command

# %%
logs["command_seconds"] = logs["label"].map(wall)
plots.whole_command(logs, plt.subplots(figsize=(12, 4))[1])
plt.show()
one, many = runs.command_parts(logs).itertuples()
lesson.predicted(my_once, 100 * many.once / many.whole, "%")


# %% [markdown]
# **How an exercise works.** Replace the line `raise NotImplementedError` by your code. Run that cell and the next one:
# it checks your answer. Stuck? Take away the `# ` before `check.….hint()` and run the cell again.
# `solution()` shows an answer.
#
# ### Exercise 1: from how many epochs on?
#
# The command with one process needs `start_one` seconds once, to start and to end, and `epoch_one` seconds for each
# epoch. The command with several ranks needs `start_many` and `epoch_many`. From how many epochs on is it done earlier?
# Return the smallest such whole number, or `None` if there is none.

# %%
def my_epochs(start_one, epoch_one, start_many, epoch_many):
    raise NotImplementedError


# %%
check.pays(my_epochs)
# check.pays.hint()
# check.pays.solution()

# %% [markdown]
# The two commands above, with your function. (While it is not right yet, ours stands in its place.)

# %%
function, whose = check.pays.or_ours(my_epochs)
show.paid_back(one, many, function(one.once, one.epoch, many.once, many.epoch), whose)
plt.show()

# %% [markdown]
# ## Your first lines on several processes
#
# `torchrun` starts the *same file* several times. Nothing is shared: no variable, no memory. Each process can ask
# `dist.get_rank()` which one it is, and `dist.get_world_size()` how many they are.
#
# ### Exercise 2: hello
#
# The last lines of the cell are given. `init_process_group` makes the processes find each other: from then on they are
# *ranks*. `"gloo"` is the library that carries their messages on CPUs ([03](03_processes_and_ranks.ipynb) has both).
#
# Write `my_hello`. Each rank prints `hello from rank` and its number. Rank 0 alone prints one more line: `world size`
# and how many ranks there are. Run the cell: it writes the file. The check starts it on three ranks.

# %%
# %%writefile results/live/00_hello.py
import torch.distributed as dist


def my_hello():
    raise NotImplementedError


if __name__ == "__main__":
    dist.init_process_group("gloo")
    my_hello()
    dist.destroy_process_group()

# %%
check.hello("results/live/00_hello.py")
# check.hello.hint()
# check.hello.solution()
# # !torchrun --nproc_per_node=3 results/live/00_hello.py

# %% [markdown]
# ## Which way when
#
# Go down only as far as you need: each way asks for more care than the one above.

# %%
nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))  # more than one only inside a Slurm job
show.ways(len(gpus), nodes)
plt.show()

# %% [markdown]
# You have just used the third. The second is for old code: the PyTorch manual [advises DDP
# instead](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html), also in one machine. The `…`
# stands for the address where the machines meet. [10](10_launchers.ipynb) explains it, and shows how one machine can
# play two. In all five every device holds the whole model. A model that is too large for that is the subject of lesson
# [13](13_beyond_ddp.ipynb).
#
# ## The words
#
# You need not learn them now. Come back when one is in your way.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
files = {number: path.name for number, path in lesson.notebooks().items()}
lesson.table([{"word": f"**{word}**", "meaning": meaning, "lesson": f"[{number}]({files[number]})"}
              for word, (number, meaning) in show.WORDS.items()])

# %% [markdown]
# ## The lessons
#
# Lessons 00 to 07 build on each other. After 07 take what you need.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = []
for file in files.values():
    page = nbformat.read(f"notebooks/{file}", 4)
    title, question = page.cells[0].source.split("\n\n")[:2]
    course = page.metadata.course
    rows.append({"lesson": f"[{title.strip('# ')}]({file})",
                 "its question": " ".join(question.removeprefix("**The question.**").split()),
                 "for you": f"{course.minutes} min",
                 "for the machine": f"{math.ceil(course.seconds / 60)} min"})
lesson.table(rows)

# %% [markdown]
# ## What to remember
#
# 1. `torchrun --nproc_per_node=2 main.py` starts the same file twice, and each process knows its rank.
# 2. From two processes twice the speed is the most to hope for, and their start takes longer. Measure both.
# 3. Predict before you run. The gap is the lesson.
#
# **Next:** [01 · One device](01_one_device.ipynb): before you use many devices, make one fast, and learn to time it.
