# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         epochs: 1
#         samples: 4000
#       seconds: 15
#     seconds: 35
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · One device
#
# Before we use many devices: how fast is one, and where does its time go?

# %%
import glob, sys
sys.path.insert(0, next(found[:-17] for place in (".", "..", "*") for found in glob.glob(f"{place}/course/lesson.py")))
from course import lesson; lesson.begin()

# %%
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

import data
import models
import utils
from course import plots, runs
from scripts.rivals import textbook
from course.checks import lesson_01 as check

# %% tags=["parameters"]
samples = 20_000  # train on the first so many images, at least 2,000
epochs = 2  # passes over them
dataset = "auto"  # cifar10, or synthetic where it cannot be had

# %% [markdown]
# "One device" is one GPU where there is one. On a CPU it is **one core**: we allow PyTorch one thread.
# Later lessons give each process a core of its own, and then the numbers can be compared.

# %%
device = utils.find_placement().device
torch.set_num_threads(1)
cpu_set = data.get_dataset(dataset)[0].first(samples)
train_set = cpu_set.first(samples, device)  # on a GPU the images lie in its memory
synthetic = train_set.name == "synthetic"

batch_size = 64
steps_per_epoch = math.ceil(samples / batch_size)
name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"one of {utils.cores()} CPU cores"
print(f"device: {name}")
print(f"data:   {samples:,} images of {train_set.name}, {steps_per_epoch} steps of {batch_size} an epoch")

# %% [markdown]
# ## The baseline loop
#
# A model, a loader, a loss, an optimizer. Every line is here. All later lessons change this loop by a few lines only.
#
# **Predict**: how many images does this device train on in one second? Write your number into the cell.

# %%
my_images_per_second = 1000  # your number

# %%
torch.manual_seed(0)
model = models.ConvNet().to(device)  # LeNet
loader = DataLoader(train_set, batch_size, shuffle=True, collate_fn=train_set.collate)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)  # fused: one pass over all weights

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
    clock_seconds = time.perf_counter() - epoch_start
    print(f"epoch {epoch}: loss {epoch_loss / samples:.4f}, {clock_seconds:.2f} s, "
          f"{samples / clock_seconds:,.0f} images/s (you said {my_images_per_second:,})")

# %% [markdown]
# That is a number. Is it the right one?
#
# ## Two ways to time it wrongly
#
# **Wrong: count the warm-up.** The first steps are special. Memory is taken for the first time, and libraries choose
# and prepare their kernels. Here are the first steps of the loop above.

# %%
shown, median_ms = step_ms[:60], np.median(step_ms)
ax = plt.subplots(figsize=(12, 5))[1]
ax.plot(range(1, len(shown) + 1), shown, "o-")
ax.axhline(median_ms, color=plots.GREY, linestyle="--")
ax.annotate(f"first step: {shown[0]:.1f} ms", (1, shown[0]), (14, -4), textcoords="offset points", fontweight="bold")
ax.text(1.01, median_ms, f"median of all\n{len(step_ms)} steps:\n{median_ms:.1f} ms", va="center",
        transform=ax.get_yaxis_transform(), color=plots.GREY, fontweight="bold")  # beside the axes
ax.set(xlabel="step", ylabel="milliseconds", ylim=(0, 1.1 * max(shown)))
ax.set_title("The first steps are not like the others" + (" (SYNTHETIC DATA)" if synthetic else ""), pad=12)
plt.show()

# %%
Markdown(f"The first step took **{step_ms[0] / median_ms:.1f} times** the median step. An epoch judged by it would take "
         f"{step_ms[0] * steps_per_epoch / 1000:.1f} s, judged by the median step "
         f"{median_ms * steps_per_epoch / 1000:.1f} s. Single steps jump about, because other programs run too: "
         f"the median does not mind.")


# %% [markdown]
# **Wrong: stop the clock before the device is done.** On a GPU a call only puts work into a queue and returns.
# The clock must wait with `torch.cuda.synchronize()`. On a CPU a call returns when its work is done.

# %%
def wait_for_device():
    if device.type == "cuda":
        torch.cuda.synchronize()


images, labels = train_set.__getitems__(range(min(8192, samples)))
with torch.no_grad():
    model(images)  # warm-up for this batch size
    wait_for_device()
    start = time.perf_counter()
    model(images)
    returned = time.perf_counter() - start
    wait_for_device()
    done = time.perf_counter() - start
print(f"forward of {len(images)} images: the call returned after {1000 * returned:.2f} ms, "
      f"the work was done after {1000 * done:.2f} ms")
Markdown(f"A clock without the wait saw **{returned / done:.0%}** of the time. "
         + ("The rest would be blamed on whichever later line waits first." if device.type == "cuda"
            else "This device is a CPU, so nothing is missing. On a GPU most of it can be."))

# %% [markdown]
# ## The right way
#
# - Leave the warm-up out.
# - Take the median of many steps.
# - Wait for the device.
#
# `utils.PhaseTimer` marks the end of each phase. On a GPU the marks are events in its queue, and `totals()` waits for
# them. Here is the same loop with four marks. It is a function now, because we shall need it again.

# %%
WARM_UP = 10  # steps left out


def train(model_class, loader, epochs):
    """One row a step: seconds in each phase, loss, hits and images. Always the same first weights and order."""
    torch.manual_seed(0)
    model = model_class().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    rows = []
    for epoch in range(epochs):
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
            rows.append({"epoch": epoch, **seconds, "loss": loss.item(), "hits": hits, "images": len(labels)})
            timer = utils.PhaseTimer(device)
    return pd.DataFrame(rows)


def seconds_per_epoch(steps):
    """Seconds an epoch in each phase: the median step after the warm-up, times the number of steps."""
    return steps[["data", "forward", "backward", "update"]].iloc[WARM_UP:].median() * steps_per_epoch


# %% [markdown]
# **Predict**: which share of a step is data, forward, backward, update? Four numbers that add up to 100 %.

# %%
logits_run = train(models.ConvNet, loader, epochs)
one_epoch = seconds_per_epoch(logits_run)


def phase_rows(seconds_by_label):
    """The table that `plots.phases` draws: a row a run."""
    rows = [{"label": label, **seconds.add_suffix("_seconds")} for label, seconds in seconds_by_label.items()]
    return pd.DataFrame(rows).assign(synthetic=synthetic)


ax = plots.phases(phase_rows({"one device": one_epoch}), plt.subplots(figsize=(12, 3.2))[1])

# %%
shares = one_epoch / one_epoch.sum()
Markdown(
    "Of each epoch: " + ", ".join(f"**{phase} {share:.0%}**" for phase, share in shares.items()) + ". "
    f"Together {one_epoch.sum():.2f} s; by the clock the last epoch of the first loop took {clock_seconds:.2f} s. "
    "The clock also counts what stands between the marks: reading the loss, Python itself, and steps that other "
    "programs disturbed.")


# %% [markdown]
# Look at forward and backward. This is the work that several devices can share. Data is shared too, if every device
# has its own part of the images. The update is not: every device updates all weights.

# %% [markdown]
# ### Exercise 1: the seconds of a step
#
# Write the clock. `step()` makes one step, `wait()` waits for the device, and `clock()` is the time in seconds. Return how
# long a step takes. The check gives you devices that warm up, that queue their work, and that are disturbed.

# %%
def my_step_seconds(step, wait, clock):
    raise NotImplementedError


# %%
check.step_seconds(my_step_seconds)
# check.step_seconds.hint()
# check.step_seconds.solution()
# my_step_seconds(lambda: model(images[:64]), wait_for_device, time.perf_counter)  # a forward of 64 images

# %% [markdown]
# ## One image at a time, or a batch at a time?
#
# Most first tutorials prepare each image on its own: a PIL image, `ToTensor`, `Normalize`, and the loader stacks 64 of
# them. `data.ImageSet` keeps all images as one uint8 tensor. It picks 64 of them by index and normalises them in one go.
#
# First the proof that both give the same.

# %%
info = data.DATASETS[train_set.name]
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(info.mean, info.std)])
one_by_one = textbook.OneByOne(cpu_set.images, cpu_set.labels, transform)  # what torchvision.datasets.CIFAR10 does

count = 2000
textbook_images = torch.stack([one_by_one[i][0] for i in range(count)])
vectorised_images, vectorised_labels = cpu_set.__getitems__(range(count))
difference = (textbook_images - vectorised_images).abs().max().item()
same_labels = one_by_one.targets[:count] == vectorised_labels.tolist()
print(f"largest difference in {count} images: {difference:.1e} (values from {vectorised_images.min():.1f} to "
      f"{vectorised_images.max():.1f}); same labels: {same_labels}")
assert difference < 1e-5 and same_labels

# %% [markdown]
# The difference is rounding. So nothing but time is at stake. Both pipelines run in this one process, without workers:
# what we compare is the work of **one core**. (With a GPU, the vectorised batch is made by the GPU.)
#
# **Predict**: the textbook epoch takes how many times as long as the vectorised one?

# %%
my_ratio = 1.2  # your number

# %%
loaders = {
    "textbook": DataLoader(one_by_one, batch_size, shuffle=True),
    "vectorised": DataLoader(train_set, batch_size, shuffle=True, collate_fn=train_set.collate),
}
data_only, pipeline_epoch = {}, {}
for label, each in loaders.items():
    start = time.perf_counter()
    for images, _ in each:
        images.to(device)
    wait_for_device()
    data_only[label] = time.perf_counter() - start
    pipeline_epoch[label] = seconds_per_epoch(train(models.ConvNet, each, epochs=1))

ax = plots.phases(phase_rows(pipeline_epoch), plt.subplots(figsize=(12, 4))[1])

# %%
epoch_seconds = pd.Series({label: phases.sum() for label, phases in pipeline_epoch.items()})
pd.DataFrame({
    "data only, s": data_only,
    "µs an image": {label: 1e6 * seconds / samples for label, seconds in data_only.items()},
    "epoch, s": epoch_seconds,
    "data, % of the epoch": {label: 100 * phases["data"] / phases.sum() for label, phases in pipeline_epoch.items()},
    "images/s": samples / epoch_seconds,
}).round({"data only, s": 2, "µs an image": 1, "epoch, s": 2, "data, % of the epoch": 1, "images/s": 0})

# %%
ratio = epoch_seconds["textbook"] / epoch_seconds["vectorised"]
Markdown(f"On this machine the textbook pipeline needs **{data_only['textbook'] / data_only['vectorised']:.1f} times** as "
         f"long for the data, and **{ratio:.2f} times** as long for the whole epoch (you said {my_ratio}).")


# %% [markdown]
# Model, optimizer and order of images were the same, so this is the price of the data pipeline alone. Its arithmetic is
# the same too. The difference is the number of calls: the textbook way makes several Python calls and small tensors
# for each image, the vectorised way for each batch.
#
# `DataLoader(num_workers=…)` does not remove this work. It moves it to other cores. With one rank on every core there
# are no other cores.

# %% [markdown]
# ### Exercise 2: what limits the epoch?
#
# `phases` is a dictionary like `{"data": 6.0, "forward": 2.0, "backward": 3.0, "update": 1.0}`, in seconds. One phase, `name`, is
# made `times` times as fast. How many times as fast is the whole epoch? (`times` can be `math.inf`: the phase costs nothing.)

# %%
def my_gain(phases, name, times):
    raise NotImplementedError


# %%
check.gain(my_gain)
# check.gain.hint()
# check.gain.solution()
# my_gain(dict(pipeline_epoch["textbook"]), "data", math.inf)  # the most that a faster pipeline can bring here

# %% [markdown]
# ## Softmax before `CrossEntropyLoss`
#
# Our model returns **logits**: a score for each class, any number. `CrossEntropyLoss` turns them into probabilities
# itself, with a log-softmax.
#
# A common mistake: the model ends in a softmax, so that there are two. No error, no warning, the loss goes down.
# What does it cost?
#
# **Predict**: with perfect answers, how small can the loss of such a model get?

# %%
class WithSoftmax(models.ConvNet):
    def forward(self, images):
        return super().forward(images).softmax(1)


perfect = nn.functional.one_hot(torch.tensor([3]), 10).float()  # sure of class 3, and right
lowest = -math.log(math.e / (math.e + 9))  # ten classes: probability 1 for the right one, 0 for nine others
print(f"CrossEntropyLoss of perfect probabilities: {criterion(perfect, torch.tensor([3])):.4f}")
print(f"by hand, -log(e / (e + 9)):                {lowest:.4f}")
print(f"sure of a wrong class, log(e + 9):         {math.log(math.e + 9):.4f}")

# %% [markdown]
# The loss of this model cannot reach 0. It is caught between these two values. So judge by **accuracy**, not by
# the loss. Same seed, same images in the same order:

# %%
softmax_run = train(WithSoftmax, loader, epochs)


def curve(steps, label):
    """Loss and accuracy over each tenth of an epoch, on the training images."""
    tenth = np.arange(len(steps)) * 10 // steps_per_epoch + 1
    sums = steps.assign(loss=steps["loss"] * steps["images"]).groupby(tenth)[["loss", "hits", "images"]].sum()
    return pd.DataFrame({"label": label, "epoch": sums.index / 10, "loss": sums["loss"] / sums["images"],
                         "accuracy": sums["hits"] / sums["images"], "synthetic": synthetic, "world_size": 1})


curves = pd.concat([curve(logits_run, "logits"), curve(softmax_run, "softmax first")])
_, (left, right) = plt.subplots(1, 2, figsize=(18, 6.5))
plots.loss_by_epoch(curves, left)
left.axhline(lowest, color=plots.GREY, linestyle=":")
left.annotate("lowest possible with softmax first", (0.1, lowest), (0, -8), textcoords="offset points", va="top")
left.set_ylim(bottom=min(left.get_ylim()[0], lowest - 0.1))
plots.accuracy_by_epoch(curves, right)
for ax in (left, right):
    ax.set_xlabel("epochs trained (a point: a tenth of an epoch)")

# %%
first = {}
for label, steps in {"logits": logits_run, "softmax first": softmax_run}.items():
    one = steps[steps["epoch"] == 0]
    first[label] = {"first epoch: loss": (one["loss"] * one["images"]).sum() / samples,
                    "accuracy": one["hits"].sum() / samples,
                    "last tenth of the run: accuracy": curves.loc[curves["label"] == label, "accuracy"].iloc[-1]}
pd.DataFrame(first).T.round(3)

# %%
by_label = dict(list(curves.groupby("label")))
best = by_label["softmax first"].loc[by_label["softmax first"]["accuracy"].idxmax()]
as_good = by_label["logits"].loc[by_label["logits"]["accuracy"] >= best["accuracy"], "epoch"]
Markdown(f"Softmax first came to accuracy {best['accuracy']:.3f} after {best['epoch']:.1f} epochs. "
         + (f"With logits the same took **{as_good.min():.1f} epochs**." if len(as_good)
            else "With logits this was not reached: on this data, this time, the mistake cost nothing."))

# %% [markdown]
# ### Why
#
# The gradient has to pass the extra softmax on its way back, and comes out smaller. Below: the gradient of the very first
# step, over all weights; then that of one image whose right class is 0, while the model has put class 1 ahead.

# %%
variants = {"logits": models.ConvNet, "softmax first": WithSoftmax}
images, labels = train_set.__getitems__(range(batch_size))
first_step = {}
for label, model_class in variants.items():
    torch.manual_seed(0)
    model = model_class().to(device)
    criterion(model(images), labels).backward()
    first_step[label] = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()

rows = []
for ahead in (0, 2, 5, 10):
    scores = torch.zeros(1, 10)
    scores[0, 1] = ahead
    row = {"class 1 ahead by": ahead, "its probability": scores.softmax(1)[0, 1].item()}
    for label, last in {"logits": lambda z: z, "softmax first": lambda z: z.softmax(1)}.items():
        z = scores.clone().requires_grad_()
        criterion(last(z), torch.tensor([0])).backward()
        row[f"gradient, {label}"] = z.grad.norm().item()
    rows.append(row)

print(f"gradient norm of the first step: {first_step['logits']:.4f} with logits, {first_step['softmax first']:.4f} with "
      f"softmax first: {first_step['logits'] / first_step['softmax first']:.1f} times smaller")
pd.DataFrame(rows).set_index("class 1 ahead by").round(4)

# %% [markdown]
# Adam divides by the size of the gradient, so a gradient that is small **everywhere** would cost little. SGD has no such
# help. But look at the last row: the model is sure, and wrong. With logits this image pulls hardest. With
# softmax first it hardly pulls at all. No optimizer can repair that: the worst mistakes teach the least.
#
# There is a way to see the mistake in a log. A model that is sure of every answer has the lowest loss when it is right,
# and 1 more when it is wrong. On average that is log(e + 9) − accuracy. (A model that only guesses is not sure: its loss
# is log 10, a little below that line.) The dashed run is not ours: a tutorial published it
# (`results/recorded/tutorial-one-gpu-vs-eight`). Which of our two models does it look like?

# %%
recorded = runs.read_run("results/recorded/tutorial-one-gpu-vs-eight/one_gpu.txt")
ax = plt.subplots(figsize=(12, 7))[1]
between = np.array([0.05, 0.75])
ax.plot(between, math.log(math.e + 9) - between, ":", color=plots.GREY)
ax.annotate("log(e + 9) − accuracy", (0.75, math.log(math.e + 9) - 0.75), (6, 0), textcoords="offset points",
            va="center", color=plots.GREY)
for number, (label, rows) in enumerate(curves.groupby("label", sort=False)):
    colour, kind = plots.COLOURS[number], ", synthetic data" if synthetic else ""
    ax.plot(rows["accuracy"], rows["loss"], plots.MARKERS[number], color=colour)
    end = rows.loc[rows["accuracy"].idxmax()]
    ax.annotate(label + kind, (end["accuracy"], end["loss"]), (10, 8), textcoords="offset points", color=colour,
                fontweight="bold")
ax.plot(recorded["accuracy"], recorded["loss"], "^--", color=plots.COLOURS[2], markerfacecolor="white")
ax.annotate("a tutorial's run\n(recorded elsewhere)", (recorded["accuracy"].iloc[-2], recorded["loss"].iloc[-2]), (8, 12),
            textcoords="offset points", color=plots.COLOURS[2], fontweight="bold")
ax.set(xlabel="accuracy", ylabel="loss", xlim=(0.05, 1))
ax.set_title("Loss against accuracy", pad=12)
plt.show()

# %%
gap = (recorded["loss"] - (math.log(math.e + 9) - recorded["accuracy"])).abs()
Markdown(f"The recorded run stays within **{gap.max():.2f}** of the line, in the {len(recorded) - 1} epochs after the first "
         f"within {gap.iloc[1:].max():.2f}. It was printed with two decimals.")


# %% [markdown]
# The rule: **the model returns logits, the loss does the softmax.** For probabilities, call `softmax` when you predict.

# %% [markdown]
# ### Exercise 3: the right loss for each output
#
# Not every model returns logits: some end in a softmax, others in a *log*-softmax. `kind` is `"logits"`, `"probabilities"` or
# `"log-probabilities"`. Return the cross-entropy, the mean over the images, as a tensor. Which kind spoils
# `nn.functional.cross_entropy`, and which does not? Guess before you try.

# %%
def my_loss(outputs, labels, kind):
    raise NotImplementedError


# %%
check.loss(my_loss)
# check.loss.hint()
# check.loss.solution()

# %% [markdown]
# ## What it means for the rest of the course
#
# The time for one epoch on one device is the figure that every speed-up is compared with. Whoever compares with a slow
# one finds a speed-up easily. Suppose that two devices share the steps, and that sharing the gradients adds some time to
# each step.

# %%
step = epoch_seconds / steps_per_epoch
sharing = 0.2 * step["vectorised"]  # an assumption; later lessons measure it
two_devices = epoch_seconds / 2 * (step + sharing) / step
pd.DataFrame({
    "one device, s (measured)": epoch_seconds,
    "two devices, s (assumed)": two_devices,
    "speed-up (assumed)": epoch_seconds / two_devices,
}).round(2)

# %%
Markdown(f"The textbook pipeline shows the better speed-up ({epoch_seconds['textbook'] / two_devices['textbook']:.2f} against "
         f"{epoch_seconds['vectorised'] / two_devices['vectorised']:.2f}), and is the slower program on one device and on two. "
         f"And two vectorised devices against one textbook device would be a \"speed-up\" of "
         f"**{epoch_seconds['textbook'] / two_devices['vectorised']:.2f} with two devices**. Part of it is the pipeline: "
         f"{ratio:.2f} before any second device.")

# %% [markdown]
# So, before you use many devices:
#
# 1. Make one device fast, and make its result right.
# 2. Time it: warm-up left out, median, device waited for.
# 3. Write its seconds an epoch down. This is the baseline.
#
# **Where next**: [02 · DataParallel](02_data_parallel.ipynb) gives the same training several devices in one process.
# [07 · Performance](07_performance.ipynb) compares this baseline with 2, 4 and 8 processes.
