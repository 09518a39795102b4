# ---
# jupyter:
#   course:
#     minutes: 190
#     quick:
#       parameters:
#         steps: 6
#         width: 512
#         samples: 1280
#         epochs: 3
#       seconds: 45
#     seconds: 105
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · DistributedDataParallel
#
# **The question.** Several processes, each with its own images, train one and the same model. What must they tell
# each other, and when?
#
# **You will be able to**
# - write data-parallel training yourself, from `broadcast` and `all_reduce`, and say what `DistributedDataParallel`
#   (DDP) does of it, and when;
# - prove that the ranks train as one process does, and name what breaks this;
# - save messages with `no_sync`, and save a model that loads without DDP;
# - turn a training script into DDP.
#
# **You need** a training loop ([01](01_one_device.ipynb)), ranks and process groups
# ([03](03_processes_and_ranks.ipynb)), collectives ([04](04_collectives.ipynb)) and shards
# ([05](05_distributed_sampler.ipynb)).
#
# **Time.** About 190 minutes for you, 2 for the machine. That is three sittings: DDP, which you build (80 minutes);
# its traps (50); the capstone (60).

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

import data
import models
from course import plots, runs
from lessons.l06_ddp import buckets, capstone, check, show
from lessons.l06_ddp import ddp_questions as questions, wrapped_training

# %% tags=["parameters"]
ranks = 2  # processes of every run below; 2 or more
steps = 20  # updates of each training run
width = 1024  # of the layers in the model whose step we draw
samples, epochs = 12_800, 6  # of main.py's runs

# %% [markdown]
# The ranks of this lesson are processes on the CPU, also where there are GPUs: so everybody sees the same. A GPU
# changes the speed, not the result. (On two GPUs, as [Kaggle](../site/pages/kaggle.md) lends them, look at the table on
# BatchNorm, which gets a row for PyTorch's own `SyncBatchNorm`, and at the capstone, whose ranks take a GPU each.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank; lesson 07 says more
synthetic = data.get_dataset("auto")[0].name == "synthetic"


def results(name):
    return json.loads(Path(f"results/live/06_{name}.json").read_text())


def labelled(step, text):
    return f"{text} ({step.whose})"


# %% [markdown]
# ## The loop stays, the model is wrapped
#
# This is the training loop of this lesson. `batches` are the rank's own: its part of each whole batch.

# %%
lesson.code(wrapped_training.train)

# %% [markdown]
# Started on two ranks as it is, it trains two models: each rank has its own random first weights and its own images.
#
# You will change nothing in this loop. You write what stands around the model: **`MyDDP`**, as PyTorch's own
# `DistributedDataParallel(model)` stands around a model. `forward` gives the images to the model, and `finish()` is
# called between backward and the update. You write it in **five steps**. Each step is a cell, and behind it a check
# runs your class on 2 and on 3 ranks. What is right is what trains in the rest of this lesson. Until then our class
# takes its place, and the pictures say whose it is.
#
# ## Step 1: the same first weights
#
# `dist.broadcast(tensor, src=0)` gives every rank the values of rank 0, in place. Every rank calls it.
#
# Write `__init__`: after `MyDDP(model)` all ranks have rank 0's weights. (A model has buffers, too, such as the running
# means of BatchNorm. `model.state_dict()` has both.)

# %%
# %%writefile results/live/06_step_1.py
import torch.distributed as dist
from torch import nn


class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        raise NotImplementedError

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        pass


# %%
check.same_weights("results/live/06_step_1.py")
# check.same_weights.hint()
# check.same_weights.solution()

# %% [markdown]
# **Predict.** All ranks now begin with the same weights. Are these still the same on all ranks after the last update?

# %%
my_weights = None  # "the same" or "not the same"

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/wrapped_training.py \
#     --wrapper none {check.same_weights.trains} --steps {steps} --out results/live/06_start.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
proofs = {"no wrapper": results("start")["none"],
          labelled(check.same_weights, "step 1"): results("start")[check.same_weights.trains]}
show.by_update({name: proof["between_ranks"] for name, proof in proofs.items()},
               "How far the ranks' models are apart", synthetic)
plt.show()
at_the_end = results("start")[check.same_weights.trains]["between_ranks"][-1]
lesson.predicted(my_weights, "not the same" if at_the_end else "the same")

# %% [markdown]
# **Same weights + same updates = same weights.** A broadcast gives the first half only: each rank has other images,
# so other gradients, so other updates.
#
# ## Step 2: the mean gradient
#
# `dist.all_reduce(tensor)` adds the tensor up over all ranks, and leaves the sum on each.
#
# Write `finish()`: when it returns, every `parameter.grad` is the **mean** over all ranks. A frozen parameter has no
# gradient: its `.grad` is `None`. (Begin with your class of step 1.)

# %%
# %%writefile results/live/06_step_2.py
import torch.distributed as dist
from torch import nn


class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        ...  # as in step 1

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        raise NotImplementedError


# %%
check.mean_gradients("results/live/06_step_2.py")
# check.mean_gradients.hint()
# check.mean_gradients.solution()

# %% [markdown]
# Now the ranks should stay together. But do they train what **one process** trains, with the whole batches and none of
# this?
#
# **Predict.** How large is the largest difference between a weight of the ranks and the same weight of one process,
# after the last update?

# %%
my_difference = None  # a number

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/wrapped_training.py \
#     --wrapper {check.mean_gradients.trains} --steps {steps} --out results/live/06_mean.json
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/ddp_questions.py --step scale \
#     --out results/live/06_scale.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
mean = results("mean")[check.mean_gradients.trains]
lesson.predicted(my_difference, mean["from_one_process"][-1])
lesson.table([{"the loss is the … over a rank's images": row["loss"],
               "over the ranks we take the …": row["over_ranks"],
               "times the gradient of the whole batch": f"{row['times']:.3f}"}
              for row in results("scale")["scale"]])

# %% [markdown]
# A float32 number has about seven digits. The ranks add the same numbers in another order, so the last digits may
# differ: this is *rounding*.
#
# **Why do we divide by the number of ranks?** The table shows one batch, four ways. PyTorch's losses are a *mean*
# over the images: then the ranks need the mean, too. With `reduction="sum"` they need the sum. **DDP always takes the
# mean**: with a summed loss (last row) its gradient is N times too small on N ranks, and nothing warns you.
#
# **Who waits?** In each update every rank waits for all others. This is *synchronous* training, and why the result is
# that of one process. In *asynchronous* training each worker changes shared weights when it is ready, with a gradient
# of older weights: nobody waits, and the result is another one ([13](13_beyond_ddp.ipynb) names the parameter
# server).
#
# ## Step 3: one message
#
# Each all-reduce costs some time, however small the tensor ([04](04_collectives.ipynb)). So pack the gradients into
# one flat tensor, a **bucket**, and send that. Three functions are given:

# %%
lesson.code(buckets.make_buckets, buckets.pack, buckets.unpack)

# %% [markdown]
# Write `finish()` with **one** all-reduce for all gradients. A bucket is a list of parameters.

# %%
# %%writefile results/live/06_step_3.py
import torch.distributed as dist
from torch import nn

from lessons.l06_ddp.buckets import make_buckets, pack, unpack


class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        ...  # as in step 1

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        raise NotImplementedError


# %%
check.one_message("results/live/06_step_3.py")
# check.one_message.hint()
# check.one_message.solution()

# %% [markdown]
# ## Step 4: send while backward goes on
#
# Backward begins with the last layer. When its gradients are ready, those of the first layers are still to come. Why
# wait for them? Three things are needed:
#
# - **buckets**: `make_buckets(module)` puts the last layers into the first bucket;
# - a **hook**, a function that PyTorch calls when the gradient of a parameter is complete:
#   `parameter.register_post_accumulate_grad_hook(function)` calls `function(parameter)`;
# - **`async_op=True`**: `work = dist.all_reduce(flat, async_op=True)` returns at once, and `work.wait()` waits.
#
# Write a hook that sends a bucket when its last gradient is there, and a `finish()` that waits for all messages and
# unpacks them. `zero_grad()` sets every `.grad` to `None`, so `None` means: not yet there. (`functools.partial(function,
# bucket)` is `function` with its first argument set.)

# %%
# %%writefile results/live/06_step_4.py
from functools import partial

import torch.distributed as dist
from torch import nn

from lessons.l06_ddp.buckets import make_buckets, pack, unpack


class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        ...  # as in step 1, and the hooks

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        raise NotImplementedError


# %%
check.overlapped("results/live/06_step_4.py")
# check.overlapped.hint()
# check.overlapped.solution()

# %% [markdown]
# ## Step 5: after any backward
#
# `.grad is not None` is true in the *second* backward before an update, too, from its first hook on. And a parameter
# that a forward leaves out gets no gradient: its bucket is never full. On some ranks only, perhaps: then the ranks send
# their buckets in different orders, and a collective meets another one.
#
# Make your class right for
# - two `backward()` before one `finish()`: each rank's `.grad` then holds the sum of both, and `finish()` leaves the
#   mean of these sums over the ranks;
# - a parameter without gradient, on all ranks or on some: `finish()` sends what is left, and `pack` puts zeros there;
# - one order: all ranks send bucket 0, then 1, then 2.
#
# Not both at once: a second backward while ranks use different parameters asks for more than this.

# %%
# %%writefile results/live/06_step_5.py
from functools import partial

import torch.distributed as dist
from torch import nn

from lessons.l06_ddp.buckets import make_buckets, pack, unpack


class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        ...  # as in step 4, changed

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        raise NotImplementedError


# %%
check.any_backward("results/live/06_step_5.py")
# check.any_backward.hint()
# check.any_backward.solution()

# %% [markdown]
# When yours is right, the next cell prints ours, to compare.

# %%
check.compare()

# %% [markdown]
# ## DistributedDataParallel
#
# DDP does all of this: the broadcast in its constructor, the hooks and buckets in `backward()`, and it waits there,
# too. When `backward()` returns, every rank has the mean gradient (on a GPU the messages stand in the queue, before the
# update). So it needs no `finish()`. Does it do the same as the five steps?

# %%
five = [check.same_weights, check.mean_gradients, check.one_message, check.overlapped,
        check.any_backward]
trains = " ".join(step.trains for step in five)

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/wrapped_training.py \
#     --wrapper none {trains} ddp --steps {steps} --out results/live/06_all.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
names = {"none": "no wrapper"}
names |= {step.trains: f"step {step.number} ({step.whose})" for step in five}
names |= {"ddp": "`DistributedDataParallel`"}
lesson.table([{"wrapper": text, "between the ranks": show.small(proof["between_ranks"][-1]),
               "from one process": show.small(proof["from_one_process"][-1]),
               "messages an update": proof["messages"]}
              for name, text in names.items() for proof in [results("all")[name]]])
mib = sum(parameter.nbytes for parameter in models.ConvNet().parameters()) / 2**20
print(f"{mib:.2f} MiB of gradients")

# %% [markdown]
# A wrapper trains what one process trains if *between the ranks* is 0 and *from one process* is rounding. How the ranks
# exchange their gradients then changes the time alone.
#
# The model here is `main.py`'s LeNet. Its gradients fit into the first bucket, which holds 1 MiB in DDP, too
# (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`; the others hold 25 MiB,
# [manual](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)). So it sends
# one message, which leaves when backward is at its end, and with LeNet nothing overlaps.
#
# DDP's first step sends all in one bucket: in it DDP notes the order in which the gradients come, and then makes the
# buckets after it. So never time the first step.
#
# ## Your DDP trains CIFAR-10
#
# `main.py --wrapper FILE.py:CLASS` puts a class in the place of `DistributedDataParallel`. The rest is the same: data,
# seed, evaluation, log.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
whose = check.kept()
lesson.verdict(f"The class in results/live/06_my_ddp.py is **{whose}**.")
common = f"--samples {samples} --test-samples 2000 --epochs {epochs}"

# %% [markdown]
# **Predict.** How many images a second does this `MyDDP` train, as a share of `DistributedDataParallel`'s?

# %%
my_share = None  # such as 0.5

# %%
# !rm -f results/live/06_mine.jsonl results/live/06_theirs.jsonl
# !torchrun --nproc_per_node={ranks} main.py --wrapper results/live/06_my_ddp.py:MyDDP {common} \
#     --save-model results/live/06_mine.pt --log-file results/live/06_mine.jsonl
# !torchrun --nproc_per_node={ranks} main.py {common} \
#     --save-model results/live/06_theirs.pt --log-file results/live/06_theirs.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
both = {f"MyDDP ({whose})": runs.read_run("results/live/06_mine.jsonl"),
        "DistributedDataParallel": runs.read_run("results/live/06_theirs.jsonl")}
show.speeds(both)
plt.show()
mine, theirs = (frame["images_per_second"].iloc[1:] for frame in both.values())
lesson.predicted(my_share, mine.median() / theirs.median())
lesson.verdict(show.faster(mine, theirs))
saved = [torch.load(f"results/live/06_{name}.pt", weights_only=True) for name in ("mine", "theirs")]
apart = max((saved[0][name] - saved[1][name]).abs().max().item() for name in saved[0])
print(f"largest difference between a weight of the one and of the other: {apart:.0e}")

# %% [markdown]
# Each point is an epoch; the first one, in which all warms up, is left out. On two ranks there is one sum of two
# numbers, so the weights of both runs are the same, to the last bit. On more ranks they may differ by rounding.
#
# More: the [tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html), the [design
# notes](https://docs.pytorch.org/docs/stable/notes/ddp.html), and the paper that measured buckets and overlap ([Li et
# al., VLDB 2020](https://arxiv.org/abs/2006.15704)).
#
# ## Overlap, seen
#
# A larger model: six layers of `width` × `width`. We write down when each message was sent and when it came back, and
# draw one step each: DDP with small buckets (`bucket_cap_mb` sets their size, the first one's too), DDP with a single
# bucket for everything, and `MyDDP`.
#
# One thing differs from GPUs: there, sending needs only a small part of the GPU. Here the messages are carried by **the
# same cores that compute**. What overlap hides, backward may lose.
#
# **Predict.** Which of DDP's two steps is shorter on this machine?

# %%
my_step = None  # "small buckets", "one bucket" or "neither" (less than 3 % apart)

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/ddp_questions.py --step timeline \
#     --bucket-mb 4 1000 --width {width} --wrapper results/live/06_my_ddp.py:MyDDP \
#     --out results/live/06_timeline.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
drawn = results("timeline")["timeline"]
plots.timelines.one_below_another(
    {show.buckets(run, whose): pd.DataFrame(run["events"]) for run in drawn}, ranks=1)
plt.show()
lesson.predicted(my_step, show.shorter(*drawn[:2]))
lesson.table(show.overlap(drawn, whose))

# %% [markdown]
# **How to read it.** One step of rank 0. Blue: it computes. Orange: a bucket is under way, from when this rank sends it
# until the sum of all ranks is there; the bar shows the bucket's number. Grey, `wait`: nothing is left to compute, and
# `backward()`, or `finish()`, waits for the messages under way and copies the means back. The table has medians over
# nine steps and all ranks, and the step drawn is the nearest to them. *hidden* is the share of one bucket's `wait` that
# is saved.
#
# With one bucket nothing can be hidden: it leaves when all gradients are there. With small buckets compare two
# columns: is `wait` shorter, and is `backward` longer? The step is what counts.
#
# ## When it is not the training of one process
#
# **A good place for a break.** You have built DDP. From here on you meet its traps, one by one: what gives a
# different result; BatchNorm; `no_sync`; a parameter without gradient; a model that changes after wrapping; saving. You
# may skip the traps that your model does not have.
#
# ### Exercise 1: are the ranks still together?
#
# A trap is found by looking. `apart(model)` runs on all ranks. Return the largest difference of any weight between any
# two ranks: the same number on each rank. Do not change the weights.

# %%
# %%writefile results/live/06_apart.py
import torch
import torch.distributed as dist


def apart(model):
    raise NotImplementedError


# %%
check.drift("results/live/06_apart.py")
# check.drift.hint()
# check.drift.solution()

# %% [markdown]
# ### The cases
#
# Equality has conditions. Each case below is a training with DDP, compared with one process on the whole batches.
# "Loss summed" is `reduction="sum"`, "dropout" a layer `nn.Dropout(0.5)`, and "BatchNorm" a small residual network.
#
# **Predict.** Which of these give a different result than one process? `"equal shards"`, `"unequal shards"`,
# `"loss summed"`, `"dropout, one seed"` (the same for all ranks), `"dropout, one seed per rank"`, `"BatchNorm"`

# %%
my_cases = None  # a list of these names, in this order

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/ddp_questions.py \
#     --step equality no_sync unused order save memory --steps {steps // 2} \
#     --out results/live/06_questions.json

# %%
answers = results("questions")
weights = answers["equality"]["weights"]
show.from_one_process(weights, synthetic)
plt.show()
lesson.predicted(my_cases, [case for case, off in weights.items() if off > show.ROUNDING])

# %% [markdown]
# These runs have float64 numbers, of 16 digits. In float32 the rounding of one sum can decide whether a ReLU is on or
# off, and from there two equal trainings go apart. So prove equality in float64, or after one update.
#
# - **Unequal shards.** DDP takes the mean of the ranks' means, so an image in a small shard counts for more. A loss
#   weighted by the images repairs it: an exercise of [05](05_distributed_sampler.ipynb).
# - **Loss summed.** DDP divides by the number of ranks, as the table above said.
# - **Dropout.** One process draws one mask for the whole batch, each rank draws its own. No seed gives the ranks the
#   mask of the one process, and training does not need it. But give each rank a seed of its own (after the model is
#   made, as `main.py` does): with one seed, all ranks drop the same places.
# - **BatchNorm** takes mean and variance of the rank's own images. The last row does better.
#
# ## BatchNorm over all ranks
#
# `torch.nn.SyncBatchNorm` takes mean and variance over the images of all ranks. It needs GPUs; its formula does not.
# Sum up the values, their squares and their number, over all ranks. A value of this rank then changes the results of
# *all* ranks. So `SumOverRanks` makes an all-reduce in forward, and another one in backward:

# %%
lesson.code(questions.mean_and_variance)

# %%
lesson.table(show.batchnorm(answers["equality"]))

# %% [markdown]
# Each of the layers asks for two collectives per update: one in forward, one in backward. Nothing hides them: the next
# layer needs the result. So synchronise when a rank has few images; with many, its own mean and variance will do. On
# GPUs: `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`, before DDP (`main.py --sync-bn`).
#
# Our function is for reading: these runs are in float64. In float32 the difference of two large numbers loses its
# digits. So PyTorch's layer gathers each rank's own mean and variance in forward (one all-gather), and combines them.
#
# **Running means**, which evaluation uses, are *buffers*: no gradients, no all-reduce. With plain BatchNorm they
# differ between the ranks (table). By default DDP sends rank 0's to all before each forward (`broadcast_buffers`,
# since PyTorch 2.13 `forward_sync_buffers`). Training does not read them, so `main.py` switches this off, and sends
# rank 0's before it evaluates.
#
# ## Fewer all-reduces: `no_sync`
#
# *Gradient accumulation*: backward of several small batches, then one update. `backward()` adds to `.grad`, so one
# all-reduce at the end would do. DDP makes one in every backward, unless told not to by `with ddp.no_sync():`. A
# first try, for four batches:

# %%
lesson.difference(questions.synchronise_each, questions.first_try)

# %% [markdown]
# **Predict.** The model fits one bucket. How many all-reduces does this make?

# %%
my_all_reduces = None  # of four batches, the first three with no_sync around backward

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_all_reduces, answers["no_sync"]["first_try"]["all_reduces"])
ways = {"synchronise_each": "without `no_sync`", "first_try": "around backward only",
        "never": "around everything", "around_ddp": "`ddp.module(images)`, without `no_sync`",
        "synchronise_last": "in the right place"}
lesson.table([{"`no_sync`": text, "all-reduces": answers["no_sync"][way]["all_reduces"],
               "gradient: between the ranks": show.small(answers["no_sync"][way]["between_ranks"]),
               "from one process": show.small(answers["no_sync"][way]["from_one_process"])}
              for way, text in ways.items()])

# %% [markdown]
# It is the **forward** that decides whether its backward will synchronise. Around backward alone `no_sync` does
# nothing, and no warning says so. The two rows without any all-reduce are wrong: the ranks never meet.
# `ddp.module` is the model without DDP.
#
# ### Exercise 2: accumulate
#
# `train(ddp, batches, optimizer, every)` makes one pass over `batches`, a list of pairs `(inputs, labels)`, with one
# update after each `every` batches. It must equal the update of one process whose batch holds these batches of **all**
# ranks. `len(batches)` is a multiple of `every`. The loss is `cross_entropy`. `ddp` gets one batch at a time. Make one
# round of all-reduces per update.

# %%
# %%writefile results/live/06_train.py
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, every):
    raise NotImplementedError


# %%
check.accumulate("results/live/06_train.py")
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
# DDP says so one step late: only the next forward finds that the last backward is not finished. With
# `find_unused_parameters=True` DDP looks through the graph in every step, [which costs
# time](https://docs.pytorch.org/docs/stable/notes/ddp.html). Use it only if the layer must be left out in some steps.
# If it is never used, remove it.
#
# ## Wrap last
#
# DDP sets its hooks on the parameters as it finds them. And if the model changes after that? `.double()` gives it
# float64 numbers, and puts new tensors into the parameters, as `.to("cuda")` does. One batch, backward:

# %%
lesson.table([{"model": f"`{model}`", "gradients, between the ranks": show.small(difference)}
              for model, difference in answers["order"].items()])

# %% [markdown]
# A difference in the second row means: no hook was called, so nothing was averaged, and no message said so.
# (`nn.DataParallel` copies the parameters in every forward, and does not mind.) So the order is: move, convert or
# freeze (`requires_grad = False`) the model; `DistributedDataParallel(model)`; then `torch.compile`, if you use it.
#
# With a GPU for each rank say `device_ids=[local_rank]`: then DDP refuses a model that is still on the CPU. For a
# model whose layers stand on two GPUs of one process say nothing (`device_ids=None`), and DDP takes each tensor where
# it is.
#
# ## What DDP does not share
#
# DDP shares the gradients and, as described above, the buffers: nothing else. The loss and the accuracy that a rank
# prints are those of its own images: sums and counts must be all-reduced ([05](05_distributed_sampler.ipynb) does it for
# the test set, and [07](07_performance.ipynb) shows a published tutorial that did not). And every rank that saves writes
# the file. What would be in it? Wrappers change the names of the weights:

# %%
model = models.ConvNet()
compiled = torch.compile(model)  # nothing is compiled before its first call
names = answers["save"]["names"] | {"torch.compile(model)": next(iter(compiled.state_dict()))}
lesson.table([{"model": f"`{of}`", "first name": f"`{name}`"} for of, name in names.items()])

# %% [markdown]
# `torch.compile(DDP(model))`, the order that [PyTorch
# recommends](https://docs.pytorch.org/docs/stable/notes/ddp.html), has both prefixes. A file with the prefix is not
# lost: `torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")` takes it away (before it
# `"_orig_mod."`, if the file has that, too).
#
# The run above has saved a model of its ranks. It loads here, without DDP.
# [`map_location`](https://docs.pytorch.org/docs/stable/generated/torch.load.html) says where to: without it a file
# from GPU 0 goes to GPU 0, from every rank.

# %%
weights = torch.load("results/live/06_questions.pt", map_location="cpu", weights_only=True)
model.load_state_dict(weights)

# %% [markdown]
# To **continue** a training you need more: the optimizer's state, the scheduler's, the random state, epoch and step,
# written to another name first and then renamed: a crash while writing spoils no file. `main.py --checkpoint FILE` does
# this ([11](11_fault_tolerance.ipynb)).
#
# ### Exercise 3: save
#
# `save(ddp, file)` runs on all ranks. When it returns, on any of them, the file is there, and a model without DDP can
# load it. One rank writes.

# %%
# %%writefile results/live/06_save.py
import torch
import torch.distributed as dist


def save(ddp, file):
    raise NotImplementedError


# %%
check.saved("results/live/06_save.py")
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
# bucket. More ranks do not make any column smaller: DDP splits the images, not the model. For models that do not fit,
# see [13](13_beyond_ddp.ipynb).

# %% [markdown]
# ## Capstone: your own DDP program
#
# **Another good place for a break.** This is an hour's work of its own.
#
# `scripts/minimal.py` trains a small network in one process. Nothing of it is hidden:

# %%
# !cat scripts/minimal.py

# %% [markdown]
# **The task.** Make of it a program that `torchrun` can start as 1, 2, 3 or more ranks, on one machine or on several,
# with `DistributedDataParallel`.
#
# - **The same training.** An update takes `BATCH` images, over all ranks together (as nearly as that can be divided),
#   at the same learning rate. An epoch takes each image once, but for a few that may be left out, or repeated, so that
#   all shards are equally long. Its order is another one in each epoch.
# - **Each rank for itself.** Random numbers (for dropout, say) differ between the ranks. Where there are GPUs, each
#   rank has one of its own.
# - **True figures.** One line per epoch, written as `minimal.py` writes it: the loss over the images of all ranks, and
#   the accuracy over all test images, each counted once.
# - **One file**, `SAVE`, written once, which the model of `minimal.py` can load.
#
# Leave `data.get_dataset`, the network and `EPOCHS` as they are. All that you need stands in this lesson and in
# [05](05_distributed_sampler.ipynb). The next cell makes a copy to begin with (and never writes over yours). Open
# `results/live/my_ddp.py` from JupyterLab's file browser, change it, and save it. A good order: the process group;
# sampler and batch size; the device; the model in DDP; sums over all ranks; printing and saving.

# %%
# !test -e results/live/my_ddp.py || cp scripts/minimal.py results/live/my_ddp.py

# %% [markdown]
# Start it yourself: take away the first `# `.

# %%
# # !torchrun --nproc_per_node=2 results/live/my_ddp.py

# %% [markdown]
# Before you change anything, two ranks print two lines per epoch. (Why?)
#
# The check runs your file on 2, on 3 and on 1 ranks, with few images, and tells you the first thing that is not right
# yet. It watches what the ranks take, compute, print and save, so write it in your own way. Where ranks would wait for
# each other for ever, it says which ones, and where. GPUs that this machine does not have are pretended.

# %%
capstone.my_ddp("results/live/my_ddp.py")
# capstone.my_ddp.hint()
# capstone.my_ddp.solution()

# %% [markdown]
# ## What to remember
#
# 1. Same first weights and the same mean gradient on every rank: that is DDP. It is the training of one process if all
#    shards are equal, the loss is a mean, and no layer looks at the whole batch. (Dropout draws other masks, which does
#    no harm.)
# 2. DDP sends gradients in buckets while backward goes on. The forward prepares it, so call `ddp(images)`, and put
#    `no_sync` around the forward, too.
# 3. All else is yours: metrics are summed by you, rank 0 saves `ddp.module.state_dict()`, and each rank holds the
#    whole model.
#
# **Next:** [07 · Performance](07_performance.ipynb): what DDP gains with 2, 4 and 8 ranks, and what limits it.
