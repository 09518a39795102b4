# ---
# jupyter:
#   course:
#     minutes: 25
#     quick:
#       parameters:
#         epochs: 2
#         images: 1920
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
# **The question.** The same training, on two processes in place of one: how much sooner is it done?
#
# **At the end** you own a training program, `mine/train.py`, that runs on one process or on many, and you have
# changed it for the first time.
#
# **You need** Python, and you have trained a network in PyTorch. You need no GPU.
#
# **Time.** About 25 minutes for you, 1 for the machine.
#
# Folded cells hold set-up and plotting. Run them; you need not read them.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed as dist

from course import plots
from lessons.l00_start_here import check, show
from lessons.start.ours.shard import shard
from trainer import data, launch

# %% tags=["parameters"]
images = 6144  # training images of the runs below: a multiple of 192
epochs = 6  # passes over them, at least 2
ranks = 2  # processes, where there are several; 192 is a multiple of it

# %% [markdown]
# ## What this machine has

# %% jupyter={"source_hidden": true} tags=["hide-input"]
cores = launch.cores()
gpus = Counter(torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count()))
backends = [name for name in ("gloo", "nccl", "mpi") if dist.is_backend_available(name)]
train_set, test_set = data.get_dataset("auto")
synthetic = train_set.name == "synthetic"
lesson.table([{"what": what, "on this machine": value} for what, value in {
    "CPU cores that we may use": cores,
    "GPUs": ", ".join(f"{count} × {name}" for name, count in gpus.items()) or "none",
    "libraries for messages between processes": ", ".join(backends),
    "images": f"{train_set.name}: {len(train_set):,} for training, {len(test_set):,} for the test"
              + " (SYNTHETIC: made from a seed, not photographs)" * synthetic,
}.items()])

# %% [markdown]
# ## Your program
#
# This is `mine/train.py`, all of it. The first cell has copied it into the folder `mine/`. It belongs to you, and you
# may change every line.

# %%
# !cat mine/train.py

# %% [markdown]
# You know most of these lines: a model, a batch, a loss, an optimizer, a loop. Six are new.
#
# | line | what it does |
# |:--|:--|
# | `rank, world_size, device = join()` | asks how many processes there are, and which of them this one is |
# | `parallel = MyDDP(model, all_reduce)` | gives all processes the same first weights |
# | `share = args.batch // world_size` | divides the batch |
# | `mine = shard(…)` | picks the images that this process trains on |
# | `parallel.finish()` | waits until each gradient is the mean over all processes |
# | `if (sums - sums[0]).abs().max() > 0` | stops if the processes have ended with different weights |
#
# The imports in the middle are the program's **parts**. You will write each of them, in the lesson that its comment
# names. Until then the program takes the course's part.
#
# ## The same training, sooner
#
# `torchrun` starts the *same file* several times. Each process gets a number, its **rank**. The number of processes
# is the **world size**. This is what two ranks do with a batch:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.one_update(train_set, shard, images, batch=192, ranks=ranks)
lesson.figure("The images are those that `shard` picks. Both ranks use the same mean, so their "
              "weights stay the same.")

# %% [markdown]
# Each rank computes on **one core**: `train.py` says `torch.set_num_threads(1)`. Here a core stands for a GPU, and a
# rank on a cluster has one GPU of its own. PyTorch alone would use all cores in one process. In lesson
# [01](01_measure.ipynb) you remove that line, and compare fairly.
#
# **Predict**: two ranks train how many times as fast as one process, on this machine? Write the number down *before*
# you run the next cells, or a range, such as `(1.2, 1.6)`. A wrong prediction is fine: you learn from the gap. At its
# end each lesson lists what you predicted, and what came.

# %%
my_speedup = None  # times as fast

# %% [markdown]
# One process first. `tee` shows what the program prints, and keeps it in a file. `%%time` adds how long you waited.

# %%
# %%time
# !python mine/train.py --images {images} --epochs {epochs} | tee results/live/00_one.txt

# %% [markdown]
# Now several ranks. `torchrun` warns that it gives each process one thread. That is what we want.

# %%
# %%time
# !torchrun --nproc_per_node={ranks} mine/train.py --images {images} --epochs {epochs} \
#     | tee results/live/00_ranks.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one, many = (show.read(f"results/live/00_{file}.txt", label, images // 192, epochs, synthetic)
             for file, label in (("one", "one process"), ("ranks", f"{ranks} ranks")))
axes = plt.subplots(1, 2, figsize=(19, 6.5), sharey=True)[1]
plots.loss_by_epoch(pd.concat([one, many]), axes[0])
plots.loss_by_time(pd.concat([one, many]), axes[1]).set_ylabel("")
lesson.figure("Left: after each epoch both runs have the same loss. "
              "Right: one of them has it sooner.")

# %% [markdown]
# Left, both runs are **the same training**: the same images in each update, the same losses. The ranks add the same
# numbers in another order, so a last digit may differ, and training makes such a difference grow: look at the last
# epochs. Lesson [05](05_distributed_sampler.ipynb) compares with 16 digits. Right, the ranks get there in less time. By
# how much? The first epoch is often slower, since everything happens for the first time. So we compare the medians of
# the other epochs.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one_ms, many_ms = (table["ms"][1:].median() for table in (one, many))
lesson.predicted(my_speedup, one_ms / many_ms, "times as fast", what="speed-up of two ranks")
lesson.table([{"run": name, "ms per update": f"{ms:.1f}", "speed-up": f"{one_ms / ms:.2f}"}
              for name, ms in (("one process", one_ms), (f"{ranks} ranks", many_ms))])
lesson.verdict(f"Each rank has a core of its own: {ranks} would be the ideal speed-up."
               if ranks <= cores else f"{ranks} ranks share {lesson.some(cores, 'core')}: "
               "they gain only what one process leaves idle.")


# %% [markdown]
# Why less than the ideal? The ranks send messages, they wait for each other, and they share this machine's memory.
# Lesson [08](08_performance.ipynb) separates these. And can you trust the number at all? Each program ran once, at
# another moment. Lesson [01](01_measure.ipynb) says when you may call one program faster.
#
# ## But how long did you wait?
#
# Compare the two lines `Wall time`. The speed-up counts updates alone. A command does more: `torchrun` starts Python
# and imports torch. Then every rank starts Python and imports torch again. The ranks meet, load the images, and test
# the model after each epoch. Most of that happens once per command, however long the training is. So several ranks
# pay for long trainings, and not for short ones.
#
# ## Your first lines on several processes
#
# The processes share nothing: no variable, no memory. Every process runs every line, and `rank` is what differs.
#
# ### Exercise: hello
#
# Write `my_hello(rank, world_size)`. Each rank prints `hello from rank` and its number. Rank 0 alone prints one more
# line: `world size` and the number of ranks.
#
# **How an exercise works.** Replace the line `raise NotImplementedError` by your code. Run that cell: it saves your
# function in `mine/`. The next cell checks it. Stuck? Take the `# ` before `check.….hint()` away (Ctrl+/), and run the
# cell again. There are three hints: each run shows the next, and the last is nearly the code.
# `solution()` shows an answer.

# %%
# %%mine hello.py
def my_hello(rank, world_size):
    raise NotImplementedError


# %%
check.hello("mine/hello.py")
# check.hello.hint()
# check.hello.solution()

# %% [markdown]
# Now your program says hello. The cell makes a copy of it with two more lines, below the one where a process learns
# who it is, and starts the copy on three ranks. As long as you have not written `my_hello`, the course's says hello.

# %%
place = "rank, world_size, device = join()\n"
hello = """from hello import my_hello
my_hello(rank, world_size)
"""
program = Path("mine/train.py").read_text()
Path("mine/hello_train.py").write_text(program.replace(place, place + hello))
# !torchrun --nproc_per_node=3 mine/hello_train.py --images 768 --epochs 1

# %% [markdown]
# The hellos come in any order, since nobody waits for anybody. The lines after them come once: in `train.py`, too,
# `if rank == 0` decides who prints. Open `mine/train.py` in the file browser, and find that line.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. `torchrun --nproc_per_node=2 mine/train.py` starts the same file twice, and each process knows its rank.
# 2. Each rank takes its share of every batch, and all use the mean of their gradients. So it is the same training.
# 3. Two ranks are at best twice as fast, and they take longer to start.
#
# **Next:** [01 · Measure](01_measure.ipynb): when is one program faster than another? Look up [which method to
# use](../site/pages/methods.md), or [a word](../site/pages/glossary.md), whenever you need it.
