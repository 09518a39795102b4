# ---
# jupyter:
#   course:
#     minutes: 50
#     quick:
#       parameters:
#         epochs: 1
#         samples: 2000
#       seconds: 15
#     seconds: 50
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · One device
#
# **The question.** How fast does one device train, where does its time go, and is the number that you print true?
#
# **You will be able to**
# - write a training loop, and time it so that neither warm-up nor waiting nor other programs spoil the number;
# - say which part of a step takes the time, and how much a faster part can gain;
# - feed images a batch at a time, and say what that is worth;
# - recognise a wrong loss, which no error reports.
#
# **You need** Python, a first idea of how a network is trained, and [00 · Start here](00_start_here.ipynb).
#
# **Time.** About 50 minutes for you, 1 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import math
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

from trainer import launch
from trainer import data
from trainer import models
import utils
from course import compare, plots, runs, timing
from lessons.l01_measure import check, show, textbook

# %% tags=["parameters"]
samples = 16_000  # train on the first so many images, at least 2,000
epochs = 2  # passes over them
dataset = "auto"  # cifar10, or synthetic where it cannot be had

# %% [markdown]
# "One device" is one GPU where there is one. On a CPU it is **one core**: we allow PyTorch one thread. Later lessons
# give each process a core of its own, and then the numbers can be compared.
#
# Model and data must be on the same device, so both go there first. `model.to(device)` moves the model itself;
# `images.to(device)` returns a copy, which you must use. (On a recent NVIDIA GPU one more line belongs here:
# [`torch.set_float32_matmul_precision("high")`](https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html).
# This makes matrix products faster and a little less exact. Convolutions already work this way.)

# %%
device = launch.find_placement().device  # a GPU, if there is one
torch.set_num_threads(1)
cpu_set = data.get_dataset(dataset)[0].first(samples)
train_set = cpu_set.first(samples, device)  # on a GPU the images lie in its memory
batch_size = 64
steps_per_epoch = math.ceil(samples / batch_size)
print(f"{device.type}: {samples:,} × {train_set.name}, {steps_per_epoch} steps")

# %% [markdown]
# ## The baseline loop
#
# A model, a loader, a loss, an optimizer. This is the whole training. Every later lesson changes a few of these lines.

# %%
torch.manual_seed(0)
model = models.ConvNet().to(device)  # LeNet, a small network
# this set gives a batch in one go, so there is nothing to collect: `collate` hands it on as it is
loader = DataLoader(train_set, batch_size, shuffle=True, collate_fn=train_set.collate)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)  # one pass over each tensor

step_ms = []
for epoch in range(epochs):
    epoch_loss, epoch_start = 0, time.perf_counter()
    step_start = epoch_start
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(labels)  # .item() waits until the device has the value
        step_ms.append(1000 * (time.perf_counter() - step_start))
        step_start = time.perf_counter()
    speed = samples / (time.perf_counter() - epoch_start)
    print(f"epoch {epoch}: loss {epoch_loss / samples:.3f}, {speed:,.0f} images/s")

# %% [markdown]
# That is a number. Is it the right one?
#
# ## Four ways to time an epoch
#
# The loop above wrote down the time of each step. Many people time one step and multiply. We look at all steps of the
# first epoch. Their **median** is the time that half of the steps stay below.
#
# **Predict**: the very first step takes how many times as long as the median step?

# %%
my_first_step = None  # times the median step

# %%
first_epoch = pd.Series(step_ms[:steps_per_epoch])
clocks = {"the first step": first_epoch[0],
          "the mean, as the clock on the wall": first_epoch.mean(),
          "the median": first_epoch.median(),
          "the fastest tenth of the steps": first_epoch.nsmallest(steps_per_epoch // 10).mean()}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
synthetic = train_set.name == "synthetic"
show.first_steps(pd.DataFrame({"milliseconds": first_epoch, "synthetic": synthetic}))
lesson.figure("The first step is warm-up. The steps after it lie close to the median; "
              "a step far above it was disturbed.")
lesson.predicted(my_first_step, clocks["the first step"] / clocks["the median"], "times")
lesson.table([{"an epoch judged by": name, "ms per step": f"{ms:.1f}",
               "seconds per epoch": f"{ms * steps_per_epoch / 1000:.2f}"}
              for name, ms in clocks.items()])

# %% [markdown]
# How to read the table:
#
# - **The first step is warm-up**: the process allocates memory for the first time, and libraries choose and prepare
#   their code for this batch size. (A later step can be as long, if another program had the core.)
# - **The mean** includes the warm-up, and every moment in which another program used the device. The mean times the
#   number of steps is the time on the clock on the wall: how long you waited.
# - **The median** ignores a few long steps. But a disturbance of more than half of the steps moves the median, too. So
#   compare it with **the fastest tenth**, and with a second run.
#
# ## The clock that stops too early
#
# A GPU works through a queue. A call only puts work into the queue and returns; `torch.cuda.synchronize()` waits until
# the queue is empty. Here a thread stands for the GPU: it works through what is submitted to it.

# %%
many, _ = cpu_set.__getitems__(range(2000))  # 2,000 images in one batch
cpu_model, queue = models.ConvNet(), ThreadPoolExecutor(1)
start = time.perf_counter()
call = queue.submit(cpu_model, many)  # as a call on a GPU: it queues the work
returned = time.perf_counter() - start
call.result()  # as torch.cuda.synchronize()
done = time.perf_counter() - start
lesson.table([{"the call returned after, ms": f"{1000 * returned:.2f}",
               "the work was done after, ms": f"{1000 * done:.2f}"}])


# %% [markdown]
# A clock that stops when the call returns has measured nothing of the work. On a GPU the time of the work then shows up
# at the next line that waits: often `.item()`, or a call that finds the queue full. (So call `.item()` in each step
# only if you time each step, as above. `main.py` adds up on the device, and calls `.item()` once per epoch.)
#
# ## Where the time goes
#
# `utils.PhaseTimer` marks the end of each phase of a step. (On a GPU its marks are events in the queue, and `totals()`
# waits for them.) The loop is the one above with four marks. It is a function now, because we need it several times.

# %%
def train(model_class, loader, epochs):
    torch.manual_seed(0)  # always the same first weights, and the same order of images
    model = model_class().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    rows = []
    for _ in range(epochs):
        timer = utils.PhaseTimer(device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            timer.mark("data")
            logits = model(images)
            loss = criterion(logits, labels)
            timer.mark("forward")
            optimizer.zero_grad()
            loss.backward()
            timer.mark("backward")
            optimizer.step()
            timer.mark("update")
            seconds = timer.totals()
            hits = (logits.argmax(1) == labels).sum().item()
            rows.append({**seconds, "loss": loss.item(), "hits": hits, "images": len(labels)})
            timer = utils.PhaseTimer(device)
    return pd.DataFrame(rows)


def seconds_per_epoch(steps):  # the median does not notice the warm-up
    return steps[["data", "forward", "backward", "update"]].median() * steps_per_epoch


# %% [markdown]
# Several devices can share the work of forward and backward. The other two phases are *data*, which fetches and
# normalises the images, and *update*, which is `optimizer.step()`.
#
# **Predict**: what share of a step do forward and backward take together?

# %%
my_share = None  # % of a step

# %%
logits_run = train(models.ConvNet, loader, epochs)
one_epoch = seconds_per_epoch(logits_run)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
bar = show.phase_table({"one device": one_epoch}, synthetic)
plots.phases(bar, plt.subplots(figsize=(12, 3.2))[1])
lesson.figure("The two blue phases can be shared by several devices.")
lesson.predicted(my_share, 100 * one_epoch[["forward", "backward"]].sum() / one_epoch.sum(), "%")


# %% [markdown]
# (Backward needs a gradient for the weights and one for the inputs of each layer: about twice the multiplications of
# forward. Here it needs 1.5 times, since the images need no gradient. The measured times can have another ratio: a step
# does not only multiply.)
#
# The work on the data can be shared as well, if each device prepares its own part of the images. The update is not
# shared in lessons 02 to 12: there every device updates all weights. (In lesson [13](13_beyond_ddp.ipynb) the devices
# share the update, too.)
#
# ### Exercise 1: the seconds of a step
#
# Write the clock yourself. `step()` makes one step, `wait()` waits for the device, and `clock()` returns the time in
# seconds. Make 10 steps that you do not time, then time 50 more. Return one number: the seconds of a step that is not
# disturbed. The check has devices that warm up (for 10 steps at most), devices that queue their work, and devices that
# are disturbed in one step of 20.

# %%
def my_step_seconds(step, wait, clock):
    raise NotImplementedError


# %%
check.step_seconds(my_step_seconds)
# check.step_seconds.hint()
# check.step_seconds.solution()

# %% [markdown]
# Your clock now times a forward pass on the queue from above, for batches of several sizes. A clock that never waits
# stands beside it. (As long as your clock is not right, ours is used.)

# %%
clock, whose = check.step_seconds.or_ours(my_step_seconds)
waits = {  # the thread works in order, so the small job `int` ends after all others
    f"{whose} clock": lambda: queue.submit(int).result(), "never waits": lambda: None}
rows = []
for size in (16, 64, 256):
    rows.append({"images in the batch": size})
    for name, wait in waits.items():
        seconds = clock(lambda size=size: queue.submit(cpu_model, many[:size]),
                        wait, time.perf_counter)
        rows[-1][f"{name}, ms"] = f"{1000 * seconds:.3g}"
        queue.submit(int).result()  # the next measurement begins with an empty queue
lesson.table(rows)

# %% [markdown]
# The clock that never waits measures how long it takes to queue a call, whatever the call does.
#
# ## When is one faster than the other?
#
# The times of one program differ, too. So a single time of each of two programs does not show which one is faster.
# Every lesson compares by one rule ([`course/compare.py`](../course/compare.py)):
#
# - **Rounds and pairs.** In each round every program runs once, for a short time, one after the other. The two times of
#   one round are a pair. What slows a whole round slows both.
# - **The ratio of each pair.** We state the **median** of these ratios. It need not be the ratio of the medians, so it
#   cannot be computed from two times of a table.
# - **An interval.** With ever more pairs the median would settle at one value. The interval in brackets is to hold that
#   value: a **95 % confidence interval**. If the whole comparison is repeated often, at least 95 % of the intervals hold
#   it. Its ends are two of the ratios: of six, seven or eight pairs the smallest and the largest, of nine pairs the
#   second smallest and the second largest.
# - **A winner only where the interval excludes 1.** Then the difference is **significant**. Otherwise there is **no
#   significant difference**, and with fewer than six pairs no winner is named.
#
# "No significant difference" does not mean "equally fast". It means that these pairs cannot show a difference, if there
# is one. More rounds narrow the interval, and so do longer rounds, or a quieter machine.
#
# Two trainings that run one after the other have no pairs: a slow minute may meet one of them alone. Of such runs we
# state the ratio of the medians, and the smallest and the largest ratio of two of their epochs. "No winner named" does
# not mean "equal": the rule cannot judge such runs.
#
# We put one word of the loop above to the test: `fused=True`. With it PyTorch does Adam's whole arithmetic on a tensor
# in one pass (on a GPU, on many tensors at once); with `foreach=False` it makes several calls for each tensor. We time
# the update alone, then the whole step. As a control, we also time the step with `fused=True` against *itself*.
#
# **Predict**: the update is a small part of a step. Compare a whole step with `fused=True` and one with
# `foreach=False`, by nine pairs of rounds. Is the difference significant?

# %%
my_significant = None  # True or False

# %%
images, labels = train_set.__getitems__(range(batch_size))


def update_and_step(**options):
    model = models.ConvNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), **options)

    def step():
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()

    step()  # the warm-up
    return optimizer.step, step


fused_update, fused_step = update_and_step(fused=True)
loop_update, loop_step = update_and_step(foreach=False)
again = update_and_step(fused=True)[1]
calls = {fused_update: 100, loop_update: 100, fused_step: 10, loop_step: 10, again: 10}
rounds = timing.interleave({  # nine rounds, in turns; a round takes the mean of its calls
    call: partial(timing.timed, call, number, device) for call, number in calls.items()}, rounds=9)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = [("update, foreach=False", loop_update, fused_update),
        ("whole step, foreach=False", loop_step, fused_step),
        ("whole step, fused=True (control)", again, fused_step)]
ratios = [compare.ratio(rounds[mine], rounds[fused]) for _, mine, fused in rows]
lesson.predicted(my_significant, ratios[1].significant)
lesson.table([{"program": name, "median, ms": f"{1000 * pd.Series(rounds[mine]).median():.2f}",
               "times as long as with fused=True": str(ratio)}
              for (name, mine, _), ratio in zip(rows, ratios, strict=True)])
if ratios[0].undecided:
    lesson.verdict(compare.NOT_SHOWN)

# %% [markdown]
# Why six pairs at least? Suppose that both programs are equally fast. Then chance alone decides whether the ratio of a
# pair is above 1 or below: 1/2 each, as with a coin. All six above 1, or all six below 1, has the probability
# 2 × (1/2)⁶ = 3 %. With five pairs it is 2 × (1/2)⁵ = 6 %, which is more than the 5 % that we accept. Pairs must not
# depend on each other; how the times are distributed does not matter. The rule still errs: of a hundred comparisons of
# equal programs, expect up to five that name a winner.
#
# Look at the control. If it names a winner, this is chance, or something that lasts and is not the program: its place in
# the round, or its place in memory. More pairs do not remove that. Then do not trust a difference of the same size in
# the other rows.
#
# ## One image at a time, or a batch at a time?
#
# Most first tutorials prepare each image on its own: a PIL image, `ToTensor`, `Normalize`; the loader then stacks 64
# images. `data.ImageSet` keeps all images as one uint8 tensor. It picks 64 images by index and normalises them in one
# call.
#
# Both give the same images, up to rounding:

# %%
info = data.DATASETS[train_set.name]
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(info.mean, info.std)])
one_by_one = textbook.OneByOne(cpu_set.images, cpu_set.labels, transform)  # as torchvision

singly = torch.stack([one_by_one[i][0] for i in range(2000)])
at_once, _ = cpu_set.__getitems__(range(2000))  # one call for all
torch.testing.assert_close(singly, at_once, rtol=0, atol=1e-5)

# %% [markdown]
# So the two pipelines can differ in time only. Both run in this one process: we compare the work of **one core**. (With
# a GPU, the second pipeline, a batch at a time, works on the GPU.)
#
# **Predict**: with one image at a time, the whole epoch takes how many times as long?

# %%
my_ratio = None  # times

# %%
part = train_set.first(samples // 5)  # a round trains on a fifth of the images
few = cpu_set.first(samples // 5)
loaders = {
    "an image at a time": DataLoader(
        textbook.OneByOne(few.images, few.labels, transform), batch_size, shuffle=True),
    "a batch at a time": DataLoader(
        part, batch_size, shuffle=True, collate_fn=part.collate),
}
rounds = timing.interleave({
    name: lambda each=each: seconds_per_epoch(train(models.ConvNet, each, epochs=1))
    for name, each in loaders.items()}, rounds=7)
pipelines = {name: pd.DataFrame(of_rounds).median() for name, of_rounds in rounds.items()}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
whole = compare.ratio(*([phases.sum() for phases in of_rounds] for of_rounds in rounds.values()))
data_only = compare.ratio(*([phases["data"] for phases in of_rounds]
                            for of_rounds in rounds.values()))
plots.phases(show.phase_table(pipelines, synthetic), plt.subplots(figsize=(12, 4))[1])
lesson.figure("Only the data takes longer with one image at a time. "
              "Forward, backward and update do the same work in both pipelines.")
lesson.predicted(my_ratio, whole.median, "times")
rows = [{"pipeline": name, "data, µs per image": f"{1e6 * seconds['data'] / samples:.1f}",
         "data, s per epoch": f"{seconds['data']:.2f}", "whole epoch, s": f"{seconds.sum():.2f}",
         "images/s": f"{samples / seconds.sum():,.0f}"} for name, seconds in pipelines.items()]
lesson.table(rows)
lesson.verdict([f"Data, times as long with one image at a time: {data_only}",
                f"Whole epoch, times as long with one image at a time: {whole}",
                *([compare.NOT_SHOWN] if whole.undecided else [])])


# %% [markdown]
# Model, optimizer and order of the images are the same: only the data pipeline differs. Even its arithmetic is the
# same. (If another bar differs a little, its work is still the same: its time differs from round to round.) The number
# of calls makes the difference: one pipeline makes several Python calls and small tensors for each image, and the other
# one for each batch. `DataLoader(num_workers=…)` does not remove this work; it moves the work to other cores. If each
# core already has a rank, no core is left for the workers.
#
# **Why this matters for all later lessons.** A speed-up compares with a baseline. Suppose that somebody trains on two
# devices a batch at a time, and compares with one device that takes an image at a time. Then the "speed-up" is too
# large by the ratio that you have just predicted, and the second device had no part in that. So make one device fast
# first, and write down its seconds per epoch.
#
# ### Exercise 2: how much can it gain?
#
# `phases` is a dictionary like `{"data": 6.0, "forward": 2.0, "backward": 3.0, "update": 1.0}`, in seconds. One phase,
# `name`, is made `times` times as fast. How many times as fast is the whole epoch? (`times` can be `math.inf`: the
# phase costs nothing any more.)

# %%
def my_gain(phases, name, times):
    raise NotImplementedError


# %%
check.gain(my_gain)
# check.gain.hint()
# check.gain.solution()

# %% [markdown]
# You have measured the change from one pipeline to the other. Your function predicts this change from the phases of
# the slow pipeline, and from how many times as fast the data is in the other one. (As long as it is not right, ours is
# used.)

# %%
gain, whose = check.gain.or_ours(my_gain)
phases = dict(pipelines["an image at a time"])
curve = {faster: gain(dict(phases), "data", faster)
         for faster in range(1, int(1.2 * data_only.median) + 2)}
limit = gain(dict(phases), "data", math.inf)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.amdahl(curve, limit, (data_only.median, whole.median), f"{whose} function")
lesson.figure("However fast the data becomes, the epoch cannot become faster than the limit: "
              "the other phases remain. This is Amdahl's law.")


# %% [markdown]
# The point lies on the curve if only the data has become faster. Right of the point the curve is nearly flat: to make
# the data still faster would hardly pay.

# %% [markdown]
# ## A box: a wrong loss
#
# A fast training is worth nothing if its result is wrong. The following mistake raises no error, and the loss goes
# down.
#
# Our model returns **logits**: a score for each class, which can be any number. `CrossEntropyLoss` turns logits into
# probabilities itself, by a softmax. Many models end in a softmax of their own. Then there are two, and the loss is
# a different one:

# %%
class WithSoftmax(models.ConvNet):
    def forward(self, images):
        return super().forward(images).softmax(1)


sure = nn.functional.one_hot(torch.tensor([3]), 10).float()  # class 3, with probability 1
right, wrong = (criterion(sure, torch.tensor([label])).item() for label in (3, 4))
lesson.table([{"the model is sure, and": "right", "loss": f"{right:.4f}"},
              {"the model is sure, and": "wrong", "loss": f"{wrong:.4f}"}])

# %% [markdown]
# The second softmax sees one 1 and nine 0s, so the class that the model is sure of gets the probability e / (e + 9). If
# the answer is right, the loss is log(e + 9) − 1; if it is wrong, the loss is log(e + 9). With two softmaxes the loss
# of an image always lies between these two values, however good the model is. A model that is sure of every answer has
# the mean loss log(e + 9) − accuracy.
#
# A tutorial published the log of its training. The last line:

# %%
recorded = runs.read_run("results/recorded/tutorial-one-gpu-vs-eight/one_gpu.txt")
lesson.table(recorded[["epoch", "loss", "accuracy"]].tail(1))

# %% [markdown]
# **Predict**: does the tutorial's model return logits, or does it end in a softmax? (log(e + 9) is the loss of "wrong"
# in the table above.)

# %%
my_guess = None  # "logits" or "softmax first"

# %% [markdown]
# We train our model with a second softmax, from the same first weights, on the same images.

# %%
softmax_run = train(WithSoftmax, loader, epochs)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
both = {"logits": logits_run, "softmax first": softmax_run}
curves = show.tenths(both, steps_per_epoch, synthetic)
show.loss_against_accuracy(curves, recorded)
lesson.figure("A point for each tenth of an epoch, or for each epoch of the tutorial. The dotted "
              "line is the loss of a model that is sure of every answer and has two softmaxes. "
              "A training with two softmaxes stays near it.")
lesson.predicted(my_guess, show.ends_in(recorded))
ours = dict(iter(curves.groupby("label", sort=False)))
lesson.table([{"run": name, "epochs or tenths": len(run),
               "farthest from the dotted line": f"{show.from_line(run).max():.2f}",
               "half of them within": f"{show.from_line(run).median():.2f}"}
              for name, run in (ours | {"the tutorial's": recorded}).items()])

# %% [markdown]
# A run that stays near the line at every accuracy has a second softmax. (At the beginning a model is not sure yet, and
# its point lies a little below the line.) The tutorial's code confirms the second softmax, as the [note beside the
# log](../results/recorded/tutorial-one-gpu-vs-eight/README.md) says. But the log alone was enough.
#
# Suppose that a model is sure, and wrong. Then the output of the first softmax hardly changes with the logits, and
# hardly any gradient reaches the weights: the model learns least from its worst mistakes. The rule: **the model returns
# logits, and the loss does the softmax.** For probabilities, call `softmax` when you predict.
#
# ## What to remember
#
# 1. Leave out the warm-up, wait for the device, and take the median. Call one program faster than another only if the
#    interval of their pairs' ratios excludes 1.
# 2. Find out where the time goes before you make anything faster: the phases that you leave alone set the limit.
# 3. Make one device fast, and its result right, before you use many. Its seconds per epoch are the baseline.
#
# **Next:** [02 · DataParallel](02_data_parallel.ipynb) gives this training several devices in one process, by one
# changed line.
