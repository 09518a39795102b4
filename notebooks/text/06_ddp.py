# ---
# jupyter:
#   course:
#     minutes: 90
#     quick:
#       parameters:
#         updates: 4
#         rates: 150mbit none
#         rounds: 1
#         epochs: 1
#       seconds: 40
#     seconds: 120
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
# **At its end** there is `mine/my_ddp.py`, a `DistributedDataParallel` (DDP) of your own. Your program trains with it.
# The ranks train what one process trains. On a slow network two of its steps save time, and you measure how much.
#
# **You need** a training loop and the rule for *faster* ([01](01_measure.ipynb)), ranks and process groups
# ([03](03_processes_and_ranks.ipynb)), `all_reduce` ([04](04_collectives.ipynb)) and shards
# ([05](05_distributed_sampler.ipynb)).
#
# **Time.** About 90 minutes for you, 2 for the machine. After step 3 is a good place for a break.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

from course import dial, one_process, plots
from lessons.l06_ddp import check, show

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank: a process computes on one core

# %% tags=["parameters"]
ranks = 2  # processes of every run below: as many as there are cores, so that computing and sending can overlap
updates = 12  # of each training that is compared with one process
rates = "150mbit 600mbit none"  # of the network, where ways are timed
rounds = 12  # of each way
epochs = 3  # of the program at the end

# %% [markdown]
# ## The loop stays, the model is wrapped
#
# These are the lines of your program that have to do with DDP:

# %%
# !grep -n "MyDDP\|parallel" mine/train.py

# %% [markdown]
# `MyDDP(model, all_reduce)` wraps the model. Its `forward` gives the images to the model. Its `finish()` is called
# between backward and the update. On two ranks without any wrapper, this loop would train two models: each rank has its
# own images.
#
# You change nothing in the loop. You write the class, in **five steps**. Each step is a cell that changes one file,
# `mine/my_ddp.py`. The check behind it runs your class on 2 and on 3 ranks. Whatever you have not written yet is the
# course's, and the pictures say whose class they show. The ranks are processes on the CPU, also where there are GPUs.
# If you have solved the rank puzzle *Equal to one process* and its file is in `mine/`, run the checks
# of steps 1 and 2, and go on with step 3.
#
# ## Step 1: the same first weights
#
# `dist.broadcast(tensor, src=0)` gives every rank the values of rank 0, in place. Every rank calls it.
#
# Write `same_weights()`: after it every rank's model is that of rank 0, with all that the model remembers.

# %%
# %%mine my_ddp.py
import contextlib
from functools import partial

import torch
import torch.distributed as dist
from torch import nn


class MyDDP(nn.Module):
    def __init__(self, module, all_reduce=dist.all_reduce):
        super().__init__()
        self.module, self.all_reduce = module, all_reduce
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.ranks > 1:
            self.same_weights()

    def same_weights(self):
        raise NotImplementedError

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        pass

    def no_sync(self):
        return contextlib.nullcontext()


# %%
check.same_weights("mine/my_ddp.py")
# check.same_weights.hint()
# check.same_weights.solution()

# %% [markdown]
# **Predict.** All ranks now begin with the same weights. Do they still have the same weights after the last update?

# %%
my_weights = None  # "the same" or "not the same"

# %% [markdown]
# The program runs in one process and on the ranks, with your class as it is now. Are the ranks one model? Is it the
# model of one process?

# %%
few = f"--images {192 * updates} --batch 192"
alone, step_1 = one_process.compare(check.same_weights.program(), few.split(), [ranks], updates)
print(step_1)
lesson.predicted(my_weights, "the same" if step_1.one_model else "not the same", what="weights after step 1")


# %% [markdown]
# **Same weights + same updates = same weights.** A broadcast gives the same weights, but not the same updates: each
# rank has its own images, so its own gradients, so its own updates.
#
# `train.py` seeds all ranks alike, so its ranks would begin alike without step 1, too. A program that loads a
# checkpoint on rank 0 alone, or gives each rank a seed of its own, would not.
#
# ## Step 2: the mean gradient
#
# `self.all_reduce(tensor)` is your ring of lesson [04](04_collectives.ipynb), which the program passes in. It adds the
# tensor up over all ranks, and leaves the sum on each, in place.
#
# Write `finish()`: when it returns, every `parameter.grad` is the **mean** over all ranks. A frozen parameter has no
# gradient: its `.grad` is `None`.
#
# `%%mine my_ddp.py MyDDP` puts the cell's method into your class, in the place of the one that has its name.

# %%
# %%mine my_ddp.py MyDDP
def finish(self):
    raise NotImplementedError


# %%
check.mean_gradients("mine/my_ddp.py")
# check.mean_gradients.hint()
# check.mean_gradients.solution()

# %% [markdown]
# Now the ranks should stay together. But is their model the one that **one process** trains on the whole batches?
#
# **Predict.** How far are the ranks' weights from those of one process: not at all, in the last digits, or further?

# %%
my_distance = None  # "not at all", "in the last digits" or "further"

# %%
_, step_2 = one_process.compare(check.mean_gradients.program(), few.split(), [ranks], updates)
print(step_2)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.proof({f"step 1 ({check.same_weights.whose})": (alone, step_1),
            f"step 2 ({check.mean_gradients.whose})": (alone, step_2)})
lesson.figure("The norm of the difference of all weights, relative to their norm. After step 1 each rank goes its own "
              "way. After step 2 the ranks stay with one process.")
lesson.predicted(my_distance, show.how_far(alone, step_2), what="distance from one process")

# %% [markdown]
# The comparison runs in float64, which has about 16 digits. The ranks add the same numbers in a different order, so the
# last digits may differ: this is *rounding*.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.one_step()
lesson.figure("Blue: the same on both ranks. This model has one weight w. Its answer is w · image, its loss the squared "
              f"error, and the learning rate {show.LR:g}.")


# %% [markdown]
# **Why the mean?** PyTorch's losses are a mean over the images. The mean of the ranks' means is the mean over the whole
# batch, where all ranks have equally many images. DDP always takes the mean. With a loss that is a sum its gradient is N
# times too small on N ranks, and nothing warns you
# ([manual](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)).
#
# **What travels?** You may read that DDP synchronises parameters, or their updates. It sends gradients. After the start
# no parameter travels: all ranks compute the same update.
#
# **Who waits?** In each update every rank waits for all others. This is *synchronous* training, and the reason why the
# result is that of one process.
#
# ## Step 3: one message
#
# `finish()` now sends a message per parameter, and your program's model has ten. Each all-reduce costs some time,
# however small the tensor ([04](04_collectives.ipynb)). So pack all gradients into one flat tensor, and send that. A
# **bucket** is a list of parameters. `pack` copies their gradients into a flat tensor, and `unpack` copies them back.
#
# Write `finish()` with **one** all-reduce. Which parameters belong into its bucket?

# %%
# %%mine my_ddp.py MyDDP
@staticmethod
def pack(bucket):
    """One flat tensor [values] of the bucket's gradients; zeros for a parameter without one."""
    return torch.cat([(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
                      for parameter in bucket])


@staticmethod
def unpack(flat, bucket):
    """Copy the parts of the flat tensor into the bucket's gradients."""
    for parameter, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(part.view_as(parameter))


def finish(self):
    raise NotImplementedError


# %%
check.one_message("mine/my_ddp.py")
# check.one_message.hint()
# check.one_message.solution()

# %% [markdown]
# **A good place for a break.** Your class trains what one process trains.
#
# ## Step 4: send while backward goes on
#
# Backward begins with the last layer. When the gradients of that layer are ready, those of the first layers are still
# to come. Do not wait for them: send what is ready. You need three things.
#
# - **Buckets.** `make_buckets(module)` puts the last layers into the first bucket.
# - A **hook**, a function that PyTorch calls when the gradient of a parameter is complete:
#   `parameter.register_post_accumulate_grad_hook(function)` calls `function(parameter)`. `partial(function, 3)` is
#   `function` with its first argument set.
# - **`async_op=True`.** `work = dist.all_reduce(flat, async_op=True)` returns at once, and `work.wait()` waits. Your
#   ring cannot be used here, because it returns when all is done. The loss and the accuracy still go through it.
#
# Write the hook, `arrived()`: it sends a bucket when its last gradient is there. Register it for each parameter of each
# bucket. Write a `finish()` that waits for all messages, and unpacks them. In `no_sync()` backward only adds up.

# %%
# %%mine my_ddp.py MyDDP
def __init__(self, module, all_reduce=dist.all_reduce):
    super().__init__()
    self.module, self.all_reduce, self.communicate = module, all_reduce, True
    self.ranks = dist.get_world_size() if dist.is_initialized() else 1
    self.buckets = []
    if self.ranks > 1:
        self.same_weights()
        self.buckets = self.make_buckets(module)
    raise NotImplementedError  # the hooks


@staticmethod
def make_buckets(module, bucket_bytes=64 * 1024):
    """The parameters that train, in lists of about bucket_bytes; the last layer first, as backward reaches it."""
    buckets, filled = [[]], 0
    for parameter in reversed([each for each in module.parameters() if each.requires_grad]):
        if filled >= bucket_bytes:
            buckets, filled = [*buckets, []], 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


@contextlib.contextmanager
def no_sync(self):
    """Within it backward() only adds up: nothing is sent."""
    self.communicate = False
    try:
        yield
    finally:
        self.communicate = True


def arrived(self, number, parameter):
    """A gradient of bucket `number` is there."""
    raise NotImplementedError


def finish(self):
    raise NotImplementedError


# %%
check.overlapped("mine/my_ddp.py")
# check.overlapped.hint()
# check.overlapped.solution()

# %% [markdown]
# ## Overlap, seen
#
# Your program now runs on a network of 150 Mbit/s ([04](04_collectives.ipynb) has the dial), once with step 3 and once
# with step 4. Both runs are filmed: `-m doctor --film` starts a program and records what each of its ranks does.
# `06_program_3` is your program with the class as of step 3, yours or the course's. Step 3 sends by your ring: on two
# ranks its all-reduce is two messages to the neighbour, and two from it.

# %%
why = dial.missing()  # None where this machine has a dial, else a line that says why not
run, folder = ("echo recorded:", "results/recorded/lessons") if why else ("", "results/live")
paced = f"{run} torchrun --nproc_per_node=2 -m course.dial --rate 150mbit -m doctor --steps 3:4"
step_3, step_4 = check.one_message.program(), check.overlapped.program()
# !{paced} --film {folder}/06_film_3.json {step_3} --images 960 --epochs 1 2> results/live/06_film_3.txt
# !{paced} --film {folder}/06_film_4.json {step_4} --images 960 --epochs 1 2> results/live/06_film_4.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
whose = {step: "recorded" if why else step.whose for step in (check.one_message, check.overlapped)}
plots.films({f"Step 3: one message ({whose[check.one_message]})": f"{folder}/06_film_3.json",
             f"Step 4: buckets ({whose[check.overlapped]})": f"{folder}/06_film_4.json"}, step=3)
lesson.figure("The fourth update of the program. Above, the messages leave when backward has ended. Below, the first "
              "bucket leaves while backward goes on.")

# %% [markdown]
# The first bucket holds the last layers. They have most of this model's parameters, and backward reaches them first. So
# most of the bytes travel while the convolutions compute.
#
# ### What each step saves
#
# All ways now train in turns: without any communication, steps 2 to 4, and DDP itself, on three networks.
#
# **Predict.** On which of the three networks is step 4 faster than step 3?

# %%
my_networks = None  # a list of "150mbit", "600mbit" and "none"

# %%
# !{run} torchrun --nproc_per_node=2 lessons/l06_ddp/ladder.py --rates {rates} --rounds {rounds} \
#     --out {folder}/06_ladder.json
ladder = json.loads(Path(f"{folder}/06_ladder.json").read_text())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.ladder(ladder)
lesson.figure("Medians. Orange is what the update takes longer than without communication: the ranks wait for it. A way "
              "that seems faster than without communication was timed on a busy machine: run the race again."
              + (" Recorded." if why else ""))
lesson.predicted(my_networks, show.where_faster(ladder, "step 4", "step 3"), what="networks on which overlap gains")
lesson.table(show.table(ladder))
lesson.table(show.claims(ladder))

# %% [markdown]
# - **One message** saves what nine more all-reduces cost.
# - **Buckets during backward** hide part of the communication. That pays where messages take long, and computing is long
#   enough to hide them.
# - **Without a limit** messages over this machine's memory take hardly any time. There is little to hide, and the cores
#   that compute also send.
# - **DDP** sends one message here, because its first bucket holds 1 MiB and all gradients fit into it. With
#   `bucket_cap_mb` they become several, and DDP overlaps as your class does.
#
# **Why several buckets?** You may read that buckets make the overlap possible. Hooks and asynchronous messages do: a
# message per parameter, sent from its hook, would overlap, too, and pay for each message. One bucket pays once, and
# leaves last. Several buckets are the compromise. Which size is best?

# %%
lesson.interactive("buckets")


# %% [markdown]
# ## Step 5: after any backward
#
# This step is for those who want more. The lesson goes on without it.
#
# Your class of step 4 is right where each backward gives each parameter a gradient, on every rank. The check asks for
# more, one demand after another: find out what is missing from what it says. The cell may hold other methods, too, such
# as an `__init__` with a new attribute. Your class of step 4 stays in `results/live/06_step_4/`. If you leave step 5
# unfinished, take it back, since lesson 07 goes on with your program: `cp results/live/06_step_4/my_ddp.py mine/`.

# %%
# %%mine my_ddp.py MyDDP
def forward(self, *inputs):
    raise NotImplementedError


def arrived(self, number, parameter):
    raise NotImplementedError


def finish(self):
    raise NotImplementedError


# %%
check.any_backward("mine/my_ddp.py")
# check.any_backward.hint()
# check.any_backward.solution()

# %% [markdown]
# ## DistributedDataParallel
#
# DDP does what steps 1 to 4 do: the broadcast in its constructor, the hooks and buckets in `backward()`.
#
# **How does DDP wait without a `finish()`?** When its last bucket is full, DDP's hook asks autograd for a callback.
# Autograd calls it at the end of the whole backward. There DDP waits, and copies the means back ([design
# notes](https://docs.pytorch.org/docs/stable/notes/ddp.html)). So when `backward()` returns, every rank has the mean
# gradient. On a GPU the messages are queued before the update.
#
# | DDP does, and MyDDP does not | MyDDP does, and DDP does not |
# |---|---|
# | sends the buffers of rank 0 before each forward | step 5: takes a parameter that has a gradient on some ranks only; DDP raises an error, unless `find_unused_parameters=True` |
# | makes its buckets anew after the first update, in the order in which gradients came | leaves to you where the update waits: anything may stand between backward and `finish()` |
# | can keep gradients as views into the buckets, which saves one copy | sends by any all-reduce that it is given, in steps 2 and 3 |
# | compares the ranks' parameter shapes at the start | |
# | compresses buckets, where a communication hook says how | |
#
# So never time DDP's first update: its buckets are not the final ones.
#
# ## Your DDP trains CIFAR-10
#
# Two questions are asked of the whole program, on 2 and on 3 ranks.

# %%
parts = check.parts()
if parts == "ours":
    print("No check has found mine/my_ddp.py right, as it is now: the course's class trains in its place.")
# !python -m course.one_process --updates {updates} mine/train.py --parts {parts} {few}

# %% [markdown]
# Then your program trains with your parts, and with PyTorch's.

# %%
# !torchrun --nproc_per_node={ranks} mine/train.py --parts {parts} --epochs {epochs}
# !torchrun --nproc_per_node={ranks} mine/train.py --parts torch --epochs {epochs}

# %% [markdown]
# The losses and accuracies agree, to rounding in float32. The line of parts says whose `my_ddp` has trained. An update
# waits less now than with a message per parameter: the ladder has measured it.
#
# <details><summary>For reference</summary>
#
# - `main.py --device cpu --wrapper mine/my_ddp.py:MyDDP` trains LeNet or a small ResNet with your class.
# - A process has one GPU, or none. With several `device_ids` DDP raises a ValueError. Without `device_ids` it trains on
#   the model's GPU alone, and does not say so
#   ([entry 29](../TROUBLESHOOTING.md#29-one-process-and-ddp-on-many-gpus)).
# - `bucket_cap_mb` is 25 by default; DDP's first bucket holds 1 MiB.
# - `state_dict()` lacks buffers made with `persistent=False`. DDP sends those, too.
# - In *asynchronous* training each worker changes shared weights as soon as its own gradient is ready. That gradient
#   belongs to older weights, so the result differs.
# - More: the [tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html), and the paper that measured
#   buckets and overlap ([Li et al., VLDB 2020](https://arxiv.org/abs/2006.15704)).
#
# </details>

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Same first weights and the same mean gradient on every rank: so all ranks take the same step, and stay one model.
# 2. The mean of the ranks' gradients is the gradient of the whole batch if all shards are equally large and the loss is
#    a mean. Then the ranks train what one process trains, to rounding.
# 3. Gradients travel in buckets while backward goes on: a hook sends a bucket when its last gradient is there, and the
#    update waits for all. Every rank sends the same buckets in the same order.
#
# **Next:** [DDP's traps](07_traps.ipynb): when it is *not* the training of one process, and a program of your own.
