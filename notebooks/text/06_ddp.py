# ---
# jupyter:
#   course:
#     minutes: 90
#     quick:
#       parameters:
#         steps: 6
#         width: 512
#         samples: 1280
#         epochs: 2
#       seconds: 40
#     seconds: 80
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
# - write data-parallel training yourself, from `broadcast` and `all_reduce`, and say which of these steps
#   `DistributedDataParallel` (DDP) does for you, and when;
# - prove that the ranks train as one process does;
# - see whether messages travel while backward goes on, and what that is worth.
#
# **You need** a training loop ([01](01_measure.ipynb)), ranks and process groups
# ([03](03_processes_and_ranks.ipynb)), collectives ([04](04_collectives.ipynb)) and shards
# ([05](05_distributed_sampler.ipynb)).
#
# **Time.** About 90 minutes for you, 2 for the machine. After step 3 is a good place for a break.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

import pandas as pd
import torch

from trainer import data
from trainer import models
from course import compare, plots, runs
from lessons.l06_ddp import buckets, check, show, wrapped_training

# %% tags=["parameters"]
ranks = 2  # processes of every run below; 2 or more
steps = 20  # updates of each training run
width = 1024  # of the layers in the model whose step we draw
samples, epochs = 6400, 4  # of each of main.py's runs

# %% [markdown]
# The ranks of this lesson are processes on the CPU, also where there are GPUs, so that everybody sees the same. A GPU
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
# On two ranks this loop trains two models: each rank has its own random first weights and its own images.
#
# You will change nothing in this loop. You write a class that wraps the model, **`MyDDP(model)`**, as PyTorch's own
# `DistributedDataParallel(model)` does. Its `forward` gives the images to the model. Its `finish()` is called between
# backward and the update.
#
# You write the class in **five steps**. Each step is a cell, and the check behind it runs your class on 2 and on 3
# ranks. Once your class is right, it trains in the rest of this lesson. Until then our class takes its place, and the
# pictures say whose class it is.
#
# ## Step 1: the same first weights
#
# `dist.broadcast(tensor, src=0)` gives every rank the values of rank 0, in place. Every rank calls it.
#
# Write `__init__`: after `MyDDP(model)` all ranks have rank 0's weights. A model has buffers, too, such as the running
# means of BatchNorm. `model.state_dict()` is a dict with both (except buffers made with `persistent=False`; DDP sends
# those, too). Its tensors are the model's own, not copies: to change one in place is to change the model.

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
# **Predict.** All ranks now begin with the same weights. Do they still have the same weights after the last update?

# %%
my_weights = None  # "the same" or "not the same"

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/wrapped_training.py \
#     --wrapper none {check.same_weights.trains} --steps {steps} \
#     --out results/live/06_start.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
proofs = {"no wrapper": results("start")["none"],
          labelled(check.same_weights, "step 1"): results("start")[check.same_weights.trains]}
show.by_update({name: proof["between_ranks"] for name, proof in proofs.items()},
               "How far the ranks' models are apart", synthetic)
lesson.figure("A line that starts above 0: the ranks begin with different weights. A line that "
              "rises: their updates differ. One model on all ranks would be a line that stays at "
              "0.")
at_the_end = results("start")[check.same_weights.trains]["between_ranks"][-1]
lesson.predicted(my_weights, "not the same" if at_the_end else "the same")

# %% [markdown]
# **Same weights + same updates = same weights.** A broadcast gives the same weights, but not the same updates: each
# rank has its own images, so its own gradients, so its own updates. (Without a wrapper the updates differ, too. That
# line is flat all the same: it shows the largest difference of a weight, which comes from the different first weights.)
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
# Now the ranks should stay together. But is their model the one that **one process** trains on the whole batches?
#
# **Predict.** How large is the largest difference between a weight of the ranks and the same weight of one process,
# after the last update: exactly 0, about 1e-8, or about 1e-2?

# %%
my_difference = None  # 0, 1e-8 or 1e-2

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/wrapped_training.py \
#     --wrapper {check.mean_gradients.trains} --steps {steps} \
#     --out results/live/06_mean.json
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/ddp_questions.py \
#     --step scale --out results/live/06_scale.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
mean = results("mean")[check.mean_gradients.trains]
lesson.predicted(my_difference, mean["from_one_process"][-1])
lesson.table([{"the loss is the … over a rank's images": row["loss"],
               "over the ranks we take the …": row["over_ranks"],
               "times the gradient of the whole batch": f"{row['times']:.3f}"}
              for row in results("scale")["scale"]])

# %% [markdown]
# A float32 number has about seven digits. The ranks add the same numbers in a different order, so the last digits may
# differ: this is *rounding*.
#
# **Why do we divide by the number of ranks?** The table shows one batch, four ways. PyTorch's losses are a *mean*
# over the images: then the ranks need the mean, too. With `reduction="sum"` they need the sum. **DDP always takes the
# mean**: with a summed loss (last row) its gradient is N times too small on N ranks, and nothing warns you.
#
# **Who waits?** In each update every rank waits for all others. This is *synchronous* training, and the reason why the
# result is that of one process. In *asynchronous* training each worker changes shared weights as soon as its own
# gradient is ready. That gradient belongs to older weights, so the result differs ([13b](13b_fsdp2.ipynb) names the
# parameter server).
#
# ## Step 3: one message
#
# Each all-reduce costs some time, however small the tensor ([04](04_collectives.ipynb)). So pack gradients into one
# flat tensor, and send that. A **bucket** is a list of parameters: `pack` copies their gradients into a flat tensor,
# and `unpack` copies them back. Three functions are given:

# %%
lesson.code(buckets.make_buckets, buckets.pack, buckets.unpack)

# %% [markdown]
# Write `finish()` with **one** all-reduce for all gradients: use one bucket with all parameters that train
# (`parameter.requires_grad`). `make_buckets` may give several: it is for step 4.

# %%
# %%writefile results/live/06_step_3.py
import torch.distributed as dist
from torch import nn

from lessons.l06_ddp.buckets import pack, unpack


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
# Backward begins with the last layer. When the gradients of that layer are ready, those of the first layers are still
# to come. Do not wait for them: send what is ready. You need three things:
#
# - **buckets**: `make_buckets(module)` puts the last layers into the first bucket;
# - a **hook**, a function that PyTorch calls when the gradient of a parameter is complete:
#   `parameter.register_post_accumulate_grad_hook(function)` calls `function(parameter)`;
# - **`async_op=True`**: `work = dist.all_reduce(flat, async_op=True)` returns at once, and `work.wait()` waits.
#
# Write a hook that sends a bucket when its last gradient is there. Write a `finish()` that waits for all messages,
# unpacks them, and forgets them. `zero_grad()` sets every `.grad` to `None`, so `None` means: not yet there.
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
# Two things may still go wrong.
#
# - In a *second* backward before the update, `.grad is not None` is true from the first hook on: the first backward has
#   left its gradients there. So a bucket leaves too early.
# - A parameter that a forward leaves out gets no gradient. So its bucket is never full. If that happens on one rank
#   only, the ranks send different buckets at the same time.
#
# Make your class right for
# - a parameter without gradient, on all ranks or on some: `finish()` sends what is left, and `pack` puts zeros there;
# - one order: all ranks send bucket 0, then 1, then 2;
# - two `forward()` and `backward()` in turn before one `finish()`: each rank's `.grad` then holds the sum of both, and
#   `finish()` leaves the mean of these sums over the ranks;
# - both at once. After the first backward one rank may have sent all its buckets and another only some. The buckets of
#   the second backward must not meet those of the first.
#
# To begin: for each bucket, count the gradients that are still missing, instead of asking whether `.grad` is `None`.
# And when `forward()` is called after a `backward()`, with no `finish()` between them, another backward comes. What
# must every rank have sent by then?

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
# too. When `backward()` returns, every rank has the mean gradient. (On a GPU the messages are in its queue by then,
# ahead of the update.) So DDP needs no `finish()`. Does it do the same as the five steps?
#
# Usually a process has one GPU, or none. Old code gave one process several GPUs. With several `device_ids` DDP now
# raises a ValueError. Without `device_ids` it trains on the model's GPU alone, and does not say so ([entry
# 29](../TROUBLESHOOTING.md#29-one-process-and-ddp-on-many-gpus)).

# %% jupyter={"source_hidden": true} tags=["hide-input"]
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
lesson.table([{"wrapper": text, "between the ranks": lesson.small(proof["between_ranks"][-1]),
               "from one process": lesson.small(proof["from_one_process"][-1]),
               "messages an update": f"{proof['messages']:g}"}
              for name, text in names.items() for proof in [results("all")[name]]])
mib = sum(parameter.nbytes for parameter in models.ConvNet().parameters()) / 2**20
print(f"{mib:.2f} MiB of gradients")

# %% [markdown]
# A wrapper trains what one process trains if *between the ranks* is 0 and *from one process* is rounding. The way in
# which the ranks exchange their gradients then changes only the time.
#
# The model here is `main.py`'s LeNet. DDP's first bucket, like ours, holds 1 MiB
# (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`; the others hold 25 MiB,
# [manual](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)), and LeNet's
# gradients fit into it. So LeNet sends one message, when backward is at its end, and nothing overlaps.
#
# In its first step DDP sends all gradients in one bucket, and notes the order in which they come. Then it makes new
# buckets in that order. (With `find_unused_parameters=True` it keeps its first buckets.) So never time the first step.
#
# ## Your DDP trains CIFAR-10
#
# `main.py --wrapper FILE.py:CLASS` puts a class in the place of `DistributedDataParallel`. The rest is the same: data,
# seed, evaluation, log. The class of your furthest step that is right trains here, in turns with DDP.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
whose = check.kept()
lesson.verdict(f"The class in results/live/06_my_ddp.py is **{whose}**"
               f"{f', of step {check.kept_step()}' if check.kept_step() else ''}.")
common = f"--samples {samples} --test-samples 2000 --epochs {epochs}"

# %% [markdown]
# **Predict.** How many images a second does this `MyDDP` train, as a share of `DistributedDataParallel`'s?

# %%
my_share = None  # 1 means as fast as DDP

# %%
out, mine = "results/live/06", "--wrapper results/live/06_my_ddp.py:MyDDP"
# !rm -rf {out} && mkdir {out}
# !for turn in 1 2; do \
#     torchrun --nproc_per_node={ranks} main.py {common} {mine} \
#         --save-model {out}/mine.pt --log-file {out}/mine-$$turn.jsonl && \
#     torchrun --nproc_per_node={ranks} main.py {common} \
#         --save-model {out}/theirs.pt --log-file {out}/theirs-$$turn.jsonl \
#     || exit; done

# %% jupyter={"source_hidden": true} tags=["hide-input"]
both = {text: pd.concat(runs.read_run(f"{out}/{name}-{turn}.jsonl") for turn in (1, 2))
        for name, text in (("mine", f"MyDDP ({whose})"), ("theirs", "DistributedDataParallel"))}
show.speeds(both)
lesson.figure("Each point is an epoch, and the bar is the median. The first epoch of each run is "
              "left out, because it is slower. This picture alone does not say which class is "
              "faster.")
share = compare.of_separate_runs(*map(show.warm, both.values()))
lesson.predicted(my_share, share.median)
lesson.verdict(f"Images a second of MyDDP, by those of DDP: {share}.")
saved = [torch.load(f"{out}/{name}.pt", weights_only=True) for name in ("mine", "theirs")]
apart = max((saved[0][name] - saved[1][name]).abs().max().item() for name in saved[0])
print(f"largest difference between a weight of the one and of the other: {apart:.0e}")

# %% [markdown]
# The launches took turns, but two pairs are fewer than the six that the rule of lesson [01](01_measure.ipynb) needs.
# So we treat them as separate runs: the brackets hold the smallest and the largest ratio of two epochs.
#
# On two ranks each sum has two numbers, so both runs end with the same weights, to the last bit. On more ranks the
# weights may differ by rounding.
#
# More: the [tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html), the [design
# notes](https://docs.pytorch.org/docs/stable/notes/ddp.html), and the paper that measured buckets and overlap ([Li et
# al., VLDB 2020](https://arxiv.org/abs/2006.15704)).
#
# ## Overlap, seen
#
# Now a larger model: six layers of `width` × `width`. The program notes when each message was sent and when it came
# back. We draw three steps: DDP with small buckets (`bucket_cap_mb` sets their size, the first one's too), DDP with a
# single bucket for everything, and `MyDDP`.
#
# One thing differs from GPUs. There, sending needs only a small part of the GPU. Here **the same cores compute and
# send**.
#
# **Predict.** Which of DDP's two steps is shorter on this machine?

# %%
my_step = None  # "small buckets", "one bucket" or "no significant difference"

# %%
# !torchrun --nproc_per_node={ranks} lessons/l06_ddp/ddp_questions.py \
#     --step timeline --bucket-mb 4 1000 --width {width} {mine} \
#     --out results/live/06_timeline.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
drawn = results("timeline")["timeline"]
plots.timelines.one_below_another(
    {show.buckets(run, whose): pd.DataFrame(run["events"]) for run in drawn}, ranks=1)
lesson.figure("One step of rank 0 each. With small buckets orange bars (messages under way) lie "
              "below the dark blue one (backward). With one bucket the message leaves when "
              "backward has ended.")
lesson.predicted(my_step, show.shorter(*drawn[:2]))
lesson.table(show.overlap(drawn, whose))
lesson.verdict(show.against_one(*drawn[:2]))

# %% [markdown]
# - **Blue and green**: rank 0 computes. **Orange**: a message is under way, from the moment when rank 0 sends it until
#   the result is there. The messages are numbered.
# - **Grey**, `wait`: nothing is left to compute. `backward()`, or `finish()`, waits for the messages under way, and
#   copies the means back.
# - The table has the medians over all timed steps. The picture shows one step of each way, the one whose parts are
#   nearest to the medians. **So do not read from the picture which way is faster**: the verdict decides. *together* is
#   the median of whole steps, so the parts do not add up to it exactly.
# - *hidden*: how much shorter `wait` is than with one bucket, in %.
#
# One bucket hides nothing: it leaves when all gradients are there. Small buckets leave while `backward` goes on. What
# that gains depends on who sends. Here the same cores compute and send, so `backward` may take longer, and `wait` may
# not become shorter: the verdict says which differences are significant. A GPU's messages take hardly any of its
# computing, so there the time of the early messages is saved.
#
# ### Try it
#
# On such a GPU the size of the buckets decides. Small buckets leave early, but each pays the latency of a message. Which
# size is best?

# %%
lesson.interactive("buckets")

# %% [markdown]
# ## What to remember
#
# 1. Same first weights and the same mean gradient on every rank: so all ranks take the same step, and stay one model.
# 2. The mean of the ranks' gradients is the gradient of the whole batch if all shards are equally large and the loss is
#    a mean. Then the ranks train what one process trains, to rounding.
# 3. Gradients travel in buckets while backward goes on: a hook sends a bucket when its last gradient is there, and the
#    update waits for all. Every rank sends the same buckets in the same order.
#
# **Next:** [07 · Traps and capstone](07_traps.ipynb): when it is *not* the training of one process, and a program of
# your own.
