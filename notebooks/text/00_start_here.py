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
#     seconds: 50
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
# - say how many seconds a command needs besides its epochs;
# - write a first function that several processes run, each knowing who it is;
# - choose between the five ways to train, and find the lesson for each.
#
# **You need** Python, and a first idea of how a network is trained. You need no GPU: without GPUs the processes work on
# CPU cores, and with GPUs the same files and the same commands use them.
#
# **Time.** About 40 minutes for you, 1 for the machine.
#
# This is the first lesson. Later you build DDP yourself from two calls ([06](06_ddp.ipynb)), predict how fast 1,024
# GPUs would train ([08](08_predict_scaling.ipynb)), kill processes and see the training go on
# ([11](11_fault_tolerance.ipynb)), and repair scripts with the mistakes that people really make
# ([12](12_break_it.ipynb)). A picture shows what was measured in this notebook. If it is a drawing, or was recorded
# elsewhere, it says so. Folded cells (a grey line, or `•••`) do what is not the subject: run them, too.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import math
import os
import time
from collections import Counter

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import torch
import torch.distributed as dist

from trainer import launch
from trainer import data
from course import compare, plots, runs
from lessons.l00_start_here import check, show

# %% tags=["parameters"]
samples = 10_000  # training images of the runs below
epochs = 6  # passes over them, at least 2
tested = 5_000  # test images, after each epoch
ranks = 2  # processes, where there are several

# %% [markdown]
# ## What this machine has

# %% jupyter={"source_hidden": true} tags=["hide-input"]
cores = launch.cores()
gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
backends = [name for name in ("gloo", "nccl", "mpi") if dist.is_backend_available(name)]
train_set, test_set = data.get_dataset("auto")
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
# The network learns to say what an image shows. It sees the images no larger than this:

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
lesson.figure("Each image belongs to one of ten classes. At this size some are hard to recognise, "
              "for people too.")

# %% [markdown]
# ## The same training, sooner
#
# We train twice on the same images: first one process on one device (a GPU, or one CPU core), then two processes on
# two devices. Each process holds a copy of the network. The network is updated after every 512 images. One process
# takes all 512. Two processes take 256 each and average their *gradients*: a gradient says for each weight how the loss
# changes with it, and the update follows from that.
#
# Every lesson asks for **your prediction** before it measures. Write the number down *before* you run the cell. A wrong
# prediction is fine: you learn from the gap.
#
# **Predict**: two processes train how many times as fast as one, on this machine? (The README shows another machine.)
# Replace `None` by a number.

# %%
my_speedup = None  # times as fast

# %% [markdown]
# One process. (`OMP_NUM_THREADS=1` keeps it on one core; without that it would use all cores. `--lr` is the learning
# rate. It is larger than usual, because each update uses many images. Lesson [09](09_large_batch.ipynb) says why.)

# %%
options = f"--samples {samples} --test-samples {tested}"
large = f"{options} --epochs {epochs} --global-batch-size 512 --lr 0.002"
start = time.perf_counter()
# !OMP_NUM_THREADS=1 python main.py {large} --log-file results/live/00_one.jsonl
wall = {"one process": time.perf_counter() - start}

# %% [markdown]
# Now two. `torchrun` starts the processes and tells each process its number, its **rank**. [`main.py`](../main.py) does
# the rest; you need not read it yet. This way to train is called **DDP**, for PyTorch's `DistributedDataParallel`.

# %%
start = time.perf_counter()
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} main.py {large} \
#     --log-file results/live/00_ranks.jsonl
wall[f"{ranks} ranks"] = time.perf_counter() - start

# %% [markdown]
# Each run wrote a log. We read both logs and draw the accuracy on the test images twice: by epoch, and by time.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
logs = runs.read_runs({"one process": "results/live/00_one.jsonl",
                       f"{ranks} ranks": "results/live/00_ranks.jsonl"})
plots.accuracy_twice(logs)
lesson.figure("Left: after the same epoch both runs are equally accurate, for both are the same "
              "training. Right: two ranks need less time for it.")


# %% [markdown]
# Left, the two curves are **the same training**; the small differences come from rounding. Right, one of them is ahead.
# By how much? The first epoch is often slower, since it warms up, so we leave it out. Of the others we take the one
# with the middle time: the **median**. The brackets hold the ratios of single epochs, from the smallest to the largest.
# The two runs did not take turns, so a slow minute may have met one of them alone. We state how many times as fast, and
# name no winner. If the ratios vary much, run this section again, from *One process*.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
def times_as_fast(logs):
    """Of the second run of two against the first, by the epochs after the first."""
    later = logs[logs["epoch"] > 0].groupby("label", sort=False)
    one, many = (epochs["seconds"] for _, epochs in later)
    return compare.of_separate_runs(one, many)


gain = times_as_fast(logs)
devices, kind = (len(gpus), "GPU") if gpus else (cores, "core")
lesson.predicted(my_speedup, gain.median, "times as fast")
lesson.verdict([f"Times as fast, {ranks} ranks against one process: {gain}",
                f"Each rank has a {kind} of its own: {ranks} times as fast is the most to hope for."
                if ranks <= devices else f"{ranks} ranks share {lesson.some(devices, kind)}: "
                "they gain only what one process leaves idle."])

# %% [markdown]
# Why less than the ideal? Time goes into averaging, into waiting for the other process, and into what the devices of one
# machine share; lesson [07](07_performance.ipynb) separates them. (Other programs on your machine take time, too: close
# them, and run the section again.) When may we say that one program is faster than another? Lesson
# [01](01_measure.ipynb) states the rule of this course. Lesson [08](08_predict_scaling.ipynb) predicts what is lost.
#
# ## And with small batches?
#
# Without `--global-batch-size` each process takes 64 images for an update.
#
# **Predict**: with 256 images each you know how many times as fast two processes are. And with 64 images each?

# %%
my_small = None  # times as fast

# %%
small = f"--samples {samples // 2} --test-samples 500 --epochs {epochs}"
# !OMP_NUM_THREADS=1 python main.py {small} --log-file results/live/00_one_small.jsonl
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} main.py {small} \
#     --log-file results/live/00_ranks_small.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
small_logs = runs.read_runs({"one process": "results/live/00_one_small.jsonl",
                             f"{ranks} ranks": "results/live/00_ranks_small.jsonl"})
small_gain = times_as_fast(small_logs)
lesson.predicted(my_small, small_gain.median, "times as fast")
lesson.table([{"run": run.label, "images an update": run.batch_size * run.world_size,
               "updates an epoch": runs.updates_per_epoch(
                   run.samples, run.world_size, run.batch_size),
               "images/s": f"{run.images_per_second:,.0f}",
               "times as fast as one process": "1" if run.world_size == 1 else
               f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
               "loss at the end": f"{run.loss:.2f}"}
              for ratio, table in ((gain, logs), (small_gain, small_logs))
              for run in runs.seconds_per_epoch(table).itertuples()])
elsewhere = runs.speedup_table(runs.read_runs("results/recorded/two-cpu-cores"))
recorded = elsewhere.set_index("label").loc["ddp2", "speedup"]
lesson.verdict(f"With 64 images each, two other cores reached {recorded:.2f} "
               "([recorded](../results/recorded/two-cpu-cores/README.md)).")

# %% [markdown]
# Each update costs a message, as large as all gradients together, however few images the update uses. With 64 images
# there is less work between two messages, so they weigh more. How much they weigh depends on the machine, and changes
# from run to run. Lesson [07](07_performance.ipynb) measures the same pair again, and finds out where the time is lost.
#
# And it is **not the same training**: two processes with 64 images each make one update for 128 images. So an epoch has
# half as many updates, and the losses differ. Lesson [09](09_large_batch.ipynb) is about that.
#
# (On a CPU there is a third way: one process that uses all cores. We do not compare it here, since one core stands for
# one GPU. Lesson 07 does.)
#
# ## But how long did you wait?
#
# The speeds above count training alone. A command does more: `torchrun` itself starts Python and imports torch. Then
# each rank starts Python and imports torch again. The ranks meet, load the images, and end. All this is done once,
# however many epochs there are. The two commands with 512 images an update took, from start to end:

# %%
for name, seconds in wall.items():
    print(f"{name}: {seconds:.1f} s")

# %% [markdown]
# **Predict**: what share of the time of the command with two ranks did **not** go into its epochs (training and
# evaluating)?

# %%
my_once = None  # a number: % of the whole command

# %% jupyter={"source_hidden": true} tags=["hide-input"]
logs["command_seconds"] = logs["label"].map(wall)
plots.whole_command(logs, plt.subplots(figsize=(12, 4))[1])
lesson.figure("Blue: training and evaluating; the ranks share this work. "
              "Grey: start and end; each rank starts Python and imports torch itself.")
one, many = runs.command_parts(logs).itertuples()
lesson.predicted(my_once, 100 * many.once / many.whole, "%")


# %% [markdown]
# **How an exercise works.** Replace the line `raise NotImplementedError` by your code. Run that cell, and then the next
# one, which checks your answer. Stuck? Take the `# ` before `check.….hint()` away (Ctrl+/), and run the cell again.
# `solution()` shows an answer.
#
# ### Exercise 1: from how many epochs on?
#
# The command with one process needs `start_one` seconds once, to start and to end, and `epoch_one` seconds for each
# epoch. The command with several ranks needs `start_many` and `epoch_many`. How many epochs must a job have, at least, so
# that several ranks are done first? Return that number, 1 or more, or `None` if they never are.

# %%
def my_epochs(start_one, epoch_one, start_many, epoch_many):
    raise NotImplementedError


# %%
check.pays(my_epochs)
# check.pays.hint()
# check.pays.solution()

# %% [markdown]
# Your function, applied to the two commands above. (Until yours is right, ours is used.)

# %%
function, whose = check.pays.or_ours(my_epochs)
show.paid_back(one, many, function(one.once, one.epoch, many.once, many.epoch), whose)
lesson.figure("Each line begins at the seconds that are spent once; its slope is the seconds of an "
              "epoch. Several ranks pay where their line runs below the other one.")

# %% [markdown]
# ## Your first lines on several processes
#
# `torchrun` starts the *same file* several times. The processes share nothing: no variable, no memory. Each process can
# ask `dist.get_rank()` for its number, and `dist.get_world_size()` for the number of processes.
#
# ### Exercise 2: hello
#
# The last lines of the cell are given. `init_process_group` makes the processes find each other: from then on they are
# *ranks*. `"gloo"` is the library that carries their messages on CPUs (lesson [03](03_processes_and_ranks.ipynb)).
#
# Write `my_hello`. Each rank prints `hello from rank` and its number. Rank 0 alone prints one more line: `world size`
# and the number of ranks. The cell writes a file when you run it, and the check starts this file on three ranks.

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
# # !OMP_NUM_THREADS=1 torchrun --nproc_per_node=3 results/live/00_hello.py

# %% [markdown]
# ## Which way when
#
# Go down only as far as you need: each way asks for more care than the one above.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))  # more than one only inside a Slurm job
show.ways(len(gpus), nodes)
lesson.figure("Start at the top, and take the first way whose question you answer with yes.")

# %% [markdown]
# You have just used DDP. DataParallel is for old code: the PyTorch manual [recommends
# DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html) instead, on one machine as well. The
# `…` stands for the address where the machines meet. Lesson [10](10_launchers.ipynb) explains it, and shows how one
# machine can play two. In all five ways every device holds the whole model. Lesson [13](13_beyond_ddp.ipynb) is about
# models that are too large for that.
#
# `torch.distributed` has three parts. The *collectives* (c10d) send tensors between ranks: lesson
# [04](04_collectives.ipynb). *DDP* is built from them: lesson [06](06_ddp.ipynb). *RPC* calls a function in another
# process; training with DDP does without it.
#
# ## The words
#
# You need not learn these words now. Come back when you meet one that you do not know.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
files = {number: path.name for number, path in lesson.notebooks().items()}
lesson.table([{"word": f"**{word}**", "meaning": meaning, "lesson": f"[{number}]({files[number]})"}
              for word, (number, meaning) in show.WORDS.items()])

# %% [markdown]
# ## The lessons
#
# Lessons 00 to 07 build on each other; 01 and 02 may wait. After 07 choose the lessons that you need.

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
# 2. Two processes are at best twice as fast as one, and they take longer to start. Measure both.
# 3. Predict before you run. The gap is the lesson.
#
# **Next:** [01 · One device](01_measure.ipynb): before you use many devices, make one fast, and learn to time it.
