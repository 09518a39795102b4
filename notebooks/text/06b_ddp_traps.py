# ---
# jupyter:
#   course:
#     minutes: 110
#     quick:
#       parameters:
#         steps: 3
#       seconds: 30
#     seconds: 40
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06b · DDP's traps
#
# **The question.** The ranks share gradients, and little else. Where is that not enough, and who tells you?
#
# **You will be able to**
# - find out whether the ranks are still one model;
# - name what gives another result than one process, and repair it;
# - save messages with `no_sync`, and save a model that loads without DDP;
# - turn a training script into DDP.
#
# **You need** [06 · DistributedDataParallel](06_ddp.ipynb), shards ([05](05_distributed_sampler.ipynb)), and the
# process group ([03](03_processes_and_ranks.ipynb)).
#
# **Time.** About 110 minutes for you, 1 for the machine. That is two sittings: the traps (50 minutes); the capstone
# (60). You may skip the traps that your model does not have.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

import torch

from trainer import data
from trainer import models
from lessons.l06b_ddp_traps import capstone, check, show, traps

# %% tags=["parameters"]
ranks = 2  # processes of every run below; 2 or more
steps = 10  # updates of each training run

# %% [markdown]
# The ranks of this lesson are processes on the CPU, also where there are GPUs, so that everybody sees the same. (On two
# GPUs, as [Kaggle](../site/pages/systems.md) lends them, the table on BatchNorm has a row for PyTorch's own
# `SyncBatchNorm`, and each rank of the capstone takes a GPU.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank; lesson 07 says more
synthetic = data.get_dataset("auto")[0].name == "synthetic"

# %% [markdown]
# ## Are the ranks still together?
#
# ### Exercise 1: how far apart?
#
# Most traps give no error: you find them by comparing the ranks. `apart(model)` runs on all ranks. Return the largest
# difference of any weight between any two ranks: the same number on each rank. Do not change the weights.

# %%
# %%writefile results/live/06b_apart.py
import torch
import torch.distributed as dist


def apart(model):
    raise NotImplementedError


# %%
check.drift("results/live/06b_apart.py")
# check.drift.hint()
# check.drift.solution()

# %% [markdown]
# ## When it is not the training of one process
#
# DDP trains what one process trains, under conditions. We train six cases with DDP, and each with one process on the
# whole batches, too:
#
# - `"equal shards"`, and `"unequal shards"`;
# - `"loss summed"`: `reduction="sum"`;
# - `"dropout, one seed"` and `"dropout, one seed per rank"`: a layer `nn.Dropout(0.5)`;
# - `"BatchNorm"`: a small residual network.
#
# **Predict.** Which of these give a different result than one process?

# %%
my_cases = None  # a list of these names, in this order

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06b_ddp_traps/traps.py \
#     --step equality no_sync unused order save memory --steps {steps} \
#     --out results/live/06b_traps.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
answers = json.loads(Path("results/live/06b_traps.json").read_text())
weights = answers["equality"]["weights"]
show.from_one_process(weights, synthetic)
lesson.figure("Round points in the grey band: DDP trained what one process trains, to rounding. "
              "Square points: it trained something else, and no error said so.")
lesson.predicted(my_cases, [case for case, off in weights.items() if off > show.ROUNDING])

# %% [markdown]
# The picture has two rows more than the list: *unequal shards, loss weighted* and *BatchNorm over all ranks* are
# repairs, described below. These runs use float64, with 16 digits. In float32 the rounding of one sum can decide
# whether a ReLU is on or off, and from there on two equal trainings drift apart. So prove equality in float64, or after
# one update.
#
# - **Unequal shards.** DDP takes the mean of the ranks' means, so an image in a small shard counts for more. A loss
#   weighted by the images repairs it: an exercise of [05](05_distributed_sampler.ipynb).
# - **Loss summed.** DDP divides by the number of ranks ([06](06_ddp.ipynb) has the table).
# - **Dropout.** One process draws one mask for the whole batch. Each rank draws a mask for its own images. No seed
#   makes the two equal, and training does not need that. But give each rank a seed of its own (after the model is made,
#   as `main.py` does): with one seed, all ranks drop the same places.
# - **BatchNorm** takes mean and variance of the rank's own images. "BatchNorm over all ranks" does better.
#
# ## BatchNorm over all ranks
#
# `torch.nn.SyncBatchNorm` takes mean and variance over the images of all ranks. It needs GPUs; its formula does not.
#
# Sum up the values, their squares and their number, over all ranks. A value of this rank changes the shared mean, and
# the shared mean changes the loss of *every* rank. So in backward we add up the gradients of all ranks.
# `autograd.Function` lets us write forward and backward ourselves: `SumOverRanks` makes an all-reduce in each.

# %%
lesson.code(traps.SumOverRanks, traps.mean_and_variance)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.batchnorm(answers["equality"]))

# %% [markdown]
# One all-reduce is DDP's, for the gradients. Each layer over all ranks adds two: one in forward, one in backward.
# Nothing hides them, since the next layer needs the result. So synchronise when a rank has only a few images (as in
# object detection). With more images, measure whether it pays. On GPUs: `model =
# nn.SyncBatchNorm.convert_sync_batchnorm(model)`, before DDP (`main.py --sync-bn`).
#
# Our function is for reading. `squares / count − mean²` subtracts two nearly equal numbers, which loses digits in
# float32. So PyTorch's layer gathers each rank's mean and variance (one all-gather in forward), and combines them.
#
# **Running means**, which evaluation uses, are *buffers*: they have no gradients, so no all-reduce averages them. With
# plain BatchNorm they differ between the ranks (column *running means, between the ranks* of the table). By default DDP
# sends rank 0's buffers to all ranks before each forward (`broadcast_buffers`, since PyTorch 2.13
# `forward_sync_buffers`), except where the forward before it was in `no_sync` (next section). Training does not read
# them, so `main.py` switches this off, and sends rank 0's buffers before it evaluates.
#
# ## Fewer all-reduces: `no_sync`
#
# *Gradient accumulation* is backward of several small batches, then one update. `backward()` adds to `.grad`, so one
# all-reduce at the end is enough. DDP makes one in every backward; `with ddp.no_sync():` is there to leave them out.
# But what must stand inside it? A first try, for four batches:

# %%
lesson.difference(traps.synchronise_each, traps.first_try)

# %% [markdown]
# **Predict.** The model fits one bucket. How many all-reduces does this make?

# %%
my_all_reduces = None  # of four batches

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_all_reduces, answers["no_sync"]["first_try"]["all_reduces"])
ways = {"synchronise_each": "without `no_sync`", "first_try": "around backward only",
        "never": "around everything", "around_ddp": "`ddp.module(images)`, without `no_sync`",
        "synchronise_last": "in the right place"}
lesson.table([{"`no_sync`": text, "all-reduces": answers["no_sync"][way]["all_reduces"],
               "gradient: between the ranks": lesson.small(answers["no_sync"][way]["between_ranks"]),
               "from one process": lesson.small(answers["no_sync"][way]["from_one_process"])}
              for way, text in ways.items()])

# %% [markdown]
# The **forward** decides whether its backward will synchronise. Around backward alone `no_sync` does nothing, and no
# warning says so. The two rows without any all-reduce are wrong: the ranks never exchange a gradient. (`ddp.module` is
# the model without DDP.)
#
# ### Exercise 2: accumulate
#
# `train(ddp, batches, optimizer, every)` makes one pass over `batches`, a list of pairs `(inputs, labels)`, with one
# update after each `every` batches. The update must equal that of one process whose batch holds these batches of
# **all** ranks.
#
# - `len(batches)` is a multiple of `every`, all batches are equally large, and the loss is `cross_entropy`.
# - `ddp` gets one batch at a time.
# - Make one round of all-reduces per update.

# %%
# %%writefile results/live/06b_train.py
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, every):
    raise NotImplementedError


# %%
check.accumulate("results/live/06b_train.py")
# check.accumulate.hint()
# check.accumulate.solution()

# %% [markdown]
# ## A parameter without gradient
#
# A bucket leaves when all its gradients are there. Here is a model with a layer that `forward` leaves out: its
# gradients never come.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{"`find_unused_parameters`": f"`{option}`",
               "steps that went well": f"{case['steps']} of {case['tried']}",
               "then": f"`{case['error'].split('.')[0]}.`" if case["error"] else "–"}
              for option, case in answers["unused"].items()])

# %% [markdown]
# DDP reports it one step late: only the next forward finds that the last backward is not finished. With
# `find_unused_parameters=True` DDP looks through the graph in every step, [which costs
# time](https://docs.pytorch.org/docs/stable/notes/ddp.html). Use it only if some steps leave the layer out. Remove a
# layer that no step uses.
#
# ## Wrap last
#
# Wrap after you move or convert the model; only `torch.compile` comes later. The reason: DDP hangs its hooks on the
# *gradient accumulator* of each parameter, a node of autograd. `.double()` and `.to("cuda")` keep the parameter, but
# give it other data. Then autograd makes a new accumulator, without a hook. One batch, forward and backward:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{"model": f"`{model}`", "gradients, between the ranks": lesson.small(difference)}
              for model, difference in answers["order"].items()])

# %% [markdown]
# A difference in the second row means that no hook was called. So no gradient was averaged, and no message said so.
# (`nn.DataParallel` copies the parameters in every forward, so there the order does not matter.) Keep this order:
#
# 1. move, convert or freeze (`requires_grad = False`) the model;
# 2. `DistributedDataParallel(model)`;
# 3. `torch.compile`, if you use it. `main.py --compile` does it in this order, on any number of ranks.
#
# With a GPU for each rank say `device_ids=[local_rank]`: then DDP refuses a model that is still on the CPU. For a model
# whose layers lie on two GPUs of one process leave `device_ids` out: then DDP takes each tensor where it lies.
#
# ## What DDP does not share
#
# DDP shares the first weights, the gradients and, as described above, the buffers. Everything else is left to you.
#
# - **Figures.** The loss and the accuracy that a rank prints are those of its own images. All-reduce sums and counts
#   ([05](05_distributed_sampler.ipynb) does it for the test set; [08](08_performance.ipynb) shows a published tutorial
#   that did not).
# - **Files.** Every rank that saves writes the file. And wrappers change the names of the weights in it:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
model = models.ConvNet()
compiled = torch.compile(model)  # nothing is compiled before its first call
names = answers["save"]["names"] | {"torch.compile(model)": next(iter(compiled.state_dict()))}
lesson.table([{"model": f"`{of}`", "first name": f"`{name}`"} for of, name in names.items()])

# %% [markdown]
# `torch.compile(DDP(model))`, the order that [PyTorch
# recommends](https://docs.pytorch.org/docs/stable/notes/ddp.html), has both prefixes. A file with a prefix is not lost:
# `torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")` takes the prefix away. (If the file
# has `"_orig_mod."`, too, take that away first.)
#
# The run above has saved the model of its ranks. The file loads here, without DDP.
# [`map_location`](https://docs.pytorch.org/docs/stable/generated/torch.load.html) says where to put the tensors.
# Without it every rank puts those of a file from GPU 0 onto GPU 0.

# %%
file = "results/live/06b_traps.pt"
weights = torch.load(file, map_location="cpu", weights_only=True)
model = models.ConvNet()
model.load_state_dict(weights)

# %% [markdown]
# To **continue** a training you need more: the state of optimizer, scheduler and random numbers, epoch and step. Write
# them to another name first, and rename the file when it is whole: then a crash while writing spoils nothing. `main.py
# --checkpoint FILE` does this ([11](11_fault_tolerance.ipynb)).
#
# ### Exercise 3: save
#
# `save(ddp, file)` runs on all ranks. When it returns, on any of them, the file is there, and a model without DDP can
# load it. One rank writes.

# %%
# %%writefile results/live/06b_save.py
import torch
import torch.distributed as dist


def save(ddp, file):
    raise NotImplementedError


# %%
check.saved("results/live/06b_save.py")
# check.saved.hint()
# check.saved.solution()

# %% [markdown]
# ## Memory
#
# Bytes that each rank holds for each value of the model, in training with Adam in float32, before any activation:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = []
for case in answers["memory"]:
    kinds = {kind: size / case["values"] for kind, size in case["ranks"][0].items()}
    kinds["together"] = sum(kinds.values())
    rows.append({"`gradient_as_bucket_view`": f"`{case['gradient_as_bucket_view']}`"}
                | {kind: f"{size:.1f}" for kind, size in kinds.items()})
lesson.table(rows)

# %% [markdown]
# A bucket is a second copy of the gradients, unless `gradient_as_bucket_view=True` makes each gradient a piece of its
# bucket. More ranks do not make any column smaller: DDP splits the images, not the model. Lesson
# [13](13_beyond_ddp.ipynb) is about models that do not fit.
#
# ## Capstone: your own DDP program
#
# **A good place for a break.** What follows is an hour's work of its own.
#
# `examples/minimal.py` trains a small network in one process. Nothing of it is hidden:

# %%
# !cat examples/minimal.py

# %% [markdown]
# **The task.** Make of it a program that `torchrun` can start as 1, 2, 3 or more ranks, on one machine or on several,
# with `DistributedDataParallel`.
#
# - **The same training.** An update takes `BATCH` images, over all ranks together (as nearly as that can be divided),
#   at the same learning rate. An epoch takes each image once, but for a few that may be left out, or repeated, so that
#   all shards are equally long. Its order is another one in each epoch.
# - **Each rank for itself.** Random numbers (for dropout, say) differ between the ranks. Where
#   `torch.cuda.is_available()`, each rank has a GPU of its own: `cuda:LOCAL_RANK`.
# - **True figures.** One line per epoch, written as `minimal.py` writes it: the loss over the images of all ranks, and
#   the accuracy over all test images, each counted once.
# - **One file**, `SAVE`, written once, which the model of `minimal.py` can load.
#
# Leave the images of `MNIST`, the network and `EPOCHS` as they are. All that you need stands in this lesson, and in
# [03](03_processes_and_ranks.ipynb) (process group, device), [05](05_distributed_sampler.ipynb) and [06](06_ddp.ipynb).
# The next cell makes a copy to begin with (and never writes over yours). Open `results/live/06b_program.py` from
# JupyterLab's file browser, change it, and save it. A good order: the process group; sampler and batch size; the
# device; the model in DDP; sums over all ranks; printing and saving.

# %%
# !test -e results/live/06b_program.py || cp examples/minimal.py results/live/06b_program.py

# %% [markdown]
# Start it yourself: take away the first `# `.

# %%
# # !torchrun --nproc_per_node=2 results/live/06b_program.py --data {data.FOLDER}

# %% [markdown]
# Before you change anything, two ranks print two lines per epoch. (Why?)
#
# The check runs your file on 2 ranks, on 3 and on 1, with few images, and tells you the first thing that is not right
# yet. It watches what the ranks take, compute, print and save, so write the program in your own way. Where ranks would
# wait for each other for ever, it says which ranks, and in which line. The run on 3 ranks pretends that there are GPUs,
# and watches which of them each rank asks for.

# %%
capstone.program("results/live/06b_program.py")
# capstone.program.hint()
# capstone.program.solution()

# %% [markdown]
# ## What to remember
#
# 1. DDP trains what one process trains if all shards are equal, the loss is a mean, and no layer looks at the whole
#    batch. (Dropout draws other masks, which does no harm.)
# 2. The forward prepares what backward sends: call `ddp(images)`, put `no_sync` around the forward, too, and wrap the
#    model when it is ready.
# 3. All else is yours: you sum up metrics, rank 0 saves `ddp.module.state_dict()`, and each rank holds the whole model.
#
# **Next:** [08 · Performance](08_performance.ipynb): what DDP gains with 2, 4 and 8 ranks, and what limits it.
