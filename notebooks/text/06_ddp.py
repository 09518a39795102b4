# ---
# jupyter:
#   course:
#     minutes: 90
#     quick:
#       parameters:
#         steps: 6
#         width: 512
#         samples: 1280
#         epochs: 3
#       seconds: 35
#     seconds: 75
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
# - prove that the ranks train as one process does;
# - see whether messages travel while backward goes on, and what that is worth.
#
# **You need** a training loop ([01](01_one_device.ipynb)), ranks and process groups
# ([03](03_processes_and_ranks.ipynb)), collectives ([04](04_collectives.ipynb)) and shards
# ([05](05_distributed_sampler.ipynb)).
#
# **Time.** About 90 minutes for you, 2 for the machine. After step 3 is a good place for a break.

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
from lessons.l06_ddp import buckets, check, show, wrapped_training

# %% tags=["parameters"]
ranks = 2  # processes of every run below; 2 or more
steps = 20  # updates of each training run
width = 1024  # of the layers in the model whose step we draw
samples, epochs = 12_800, 6  # of main.py's runs

# %% [markdown]
# The ranks of this lesson are processes on the CPU, also where there are GPUs: so everybody sees the same. A GPU
# changes the speed, not the result.

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
# Write `__init__`: after `MyDDP(model)` all ranks have rank 0's weights. A model has buffers, too, such as the running
# means of BatchNorm. `model.state_dict()` is a dict with both. Its tensors are the model's own, not copies: to change
# one in place is to change the model.

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
# of older weights: nobody waits, and the result is another one ([13b](13b_fsdp2.ipynb) names the parameter
# server).
#
# ## Step 3: one message
#
# Each all-reduce costs some time, however small the tensor ([04](04_collectives.ipynb)). So pack the gradients into
# one flat tensor, a **bucket**, and send that. Three functions are given:

# %%
lesson.code(buckets.make_buckets, buckets.pack, buckets.unpack)

# %% [markdown]
# Write `finish()` with **one** all-reduce for all gradients. A bucket is a list of parameters, of those that train:
# `parameter.requires_grad`.

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
# **A good place for a break.** Your class trains what one process trains. What follows makes it fast.
#
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
# unpacks them. `zero_grad()` sets every `.grad` to `None`, so `None` means: not yet there.
# (`functools.partial(function, bucket)` is `function` with its first argument set.)

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
# Two things may still go wrong. In a *second* backward before the update, `.grad is not None` is true from the first
# hook on, so a bucket leaves too early. And a parameter that a forward leaves out gets no gradient, so its bucket is
# never full. If that happens on one rank only, the ranks send different buckets at the same time.
#
# Make your class right for
# - a parameter without gradient, on all ranks or on some: `finish()` sends what is left, and `pack` puts zeros there;
# - one order: all ranks send bucket 0, then 1, then 2;
# - two `forward()` and `backward()` in turn before one `finish()`: each rank's `.grad` then holds the sum of both, and
#   `finish()` leaves the mean of these sums over the ranks;
# - both at once. After the first backward one rank may have sent all its buckets and another only some. The buckets of
#   the second backward must not meet those of the first.

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
               "messages an update": f"{proof['messages']:g}"}
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
# seed, evaluation, log. The class of your furthest step that is right trains here.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
whose = check.kept()
lesson.verdict(f"The class in results/live/06_my_ddp.py is **{whose}**"
               f"{f', of step {check.kept_step()}' if check.kept_step() else ''}.")
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
# **How to read it.** One step of rank 0. Blue and green: it computes. Orange: a message is under way, from when this
# rank sends it until the result is there; the bars are numbered. Grey, `wait`: nothing is left to compute, and
# `backward()`, or `finish()`, waits for the messages under way and copies the means back. The table has rank 0's
# medians over nine steps; the step drawn is the one whose parts are nearest to them. *together* is the median of whole
# steps, so the parts do not add up to it. *hidden* is the share of one bucket's `wait` that is saved.
#
# With one bucket nothing can be hidden: it leaves when all gradients are there. With small buckets compare two columns:
# `wait` is shorter, but on a CPU `backward` is longer, because the cores that compute also send. What counts is
# *together*. (A GPU's messages take hardly any of its computing.)

# %% [markdown]
# ## What to remember
#
# 1. Same first weights and the same mean gradient on every rank: so all ranks take the same step, and stay one model.
# 2. The mean of the ranks' gradients is the gradient of the whole batch if all shards are equally large and the loss is
#    a mean. Then the ranks train what one process trains, to rounding.
# 3. Gradients travel in buckets while backward goes on: a hook sends a bucket when its last gradient is there, and the
#    update waits for all. Every rank sends the same buckets in the same order.
#
# **Next:** [06b · DDP's traps](06b_ddp_traps.ipynb): when it is *not* the training of one process, and a program of
# your own.
