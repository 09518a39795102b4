# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         epochs: 2
#         ranks_to_run: 1 2
#         samples: 4000
#         test_samples: 500
#       seconds: 55
#     seconds: 135
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · A larger batch
#
# Eight ranks make the batch of each update eight times as large. What does that do to learning, and what can one do?

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import math
import os
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display

import data
import models
import utils
from course import plots, runs
from course.lesson import some
from course.checks import lesson_09 as check

# %% tags=["parameters"]
ranks_to_run = "1 2 4 8"  # the last is the one that we look at closely
epochs = 4  # passes over the training images
samples = 10_000  # training images
test_samples = 2_000  # test images, looked at after each epoch
lr = 0.01  # the learning rate of one rank; the recorded runs below show how good it is (with a much larger one the long steps diverge)

# %% [markdown]
# Lesson 07 asked how fast the images go through. Now we ask what the model has learned from them. All ranks together change the
# weights once a step, from the mean gradient of *all* their images, the **global batch**. `--batch-size` is each rank's own.
#
# The optimizer is SGD with momentum 0.9: the rules below were stated for it. **The ranks are processes on the CPU, also
# where there are GPUs**: a GPU changes the seconds, not the learning.

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank: a rank is a core
shutil.rmtree("results/live/09", ignore_errors=True)  # a sweep leaves alone what is finished; here it shall run
sizes = [int(number) for number in ranks_to_run.split()]
dataset, most, batch_size, cores = data.get_dataset("auto")[0].name, sizes[-1], 64, utils.cores()
common = f"--device cpu --epochs {epochs} --samples {samples} --test-samples {test_samples} --optimizer sgd"


steps = {ranks: plots.learning.updates_an_epoch(samples, ranks, batch_size) for ranks in sizes}
lesson.table([{"ranks": ranks, "global batch": ranks * batch_size, "updates an epoch": steps[ranks], f"in {some(epochs, 'epoch')}": epochs * steps[ranks]}
      for ranks in sizes])

# %% [markdown]
# **Predict.** One rank and all ranks train for the same epochs, so they see the same images, equally often. The learning rate is left
# alone. One rank gets some share of the test images right. What share of *that* does the training with the most ranks get?

# %%
my_share = 1.0  # 1.0: the images are the same, so the accuracy is

# %% [markdown]
# `scripts/measure/sweep.py` runs `main.py` for each number of ranks: plain `python` for one, `torchrun` for more.

# %%
world_sizes = " ".join(map(str, sizes))
# !python scripts/measure/sweep.py --out results/live/09 --world-sizes {world_sizes} --threads 1 -- {common} --lr {lr}

# %%
def log_of(ranks):
    return f"results/live/09/lenet-{'single' if ranks == 1 else f'ddp{ranks}'}-batch{batch_size}-seed0.jsonl"


def completed(logs):
    """The runs of {label: path}; all must have come to their end, on the same data with the same options."""
    df = runs.read_runs(logs)
    same = ["dataset", "samples", "test_samples", "epochs", "model", "optimizer", "seed", "device", "threads"]
    assert set(df["status"]) == {"completed"}, df.groupby("label")["status"].first()
    assert len(df[same].drop_duplicates()) == 1 and df["samples"][0] == samples, df.groupby("label")[same].first()
    return df


alone = completed({some(ranks, "rank"): log_of(ranks) for ranks in sizes})
final = alone.groupby("label", sort=False)["val_accuracy"].last()
first, last = final.iloc[0], final.iloc[-1]
Markdown(f"One rank: **{first:.1%}** of the test images. {some(most, 'rank')}: **{last:.1%}**. That is {last / first:.2f} of it; you said {my_share:g}. "
         f"({len(data.DATASETS[dataset].classes)} classes: blind guessing gets {1 / len(data.DATASETS[dataset].classes):.0%}. "
         f"{test_samples:,} test images: one standard error is {math.sqrt(first * (1 - first) / test_samples):.1%}.)")

# %% [markdown]
# ## Against what?
#
# The same runs, three times: against the images seen, the updates made, and the seconds of training.

# %%
fig, axes = plt.subplots(1, 3, figsize=(24, 7.5), sharey=True)
for ax, x, title in zip(axes, ["images", "updates", "elapsed"],
                        [f"For the same images (an epoch: {samples:,})", "For the same updates", "For the same time"], strict=True):
    plots.learning.accuracy_along(alone, x, ax, title)
for ax in axes[1:]:
    ax.set_ylabel("")
plt.show()

# %% [markdown]
# **Left**: the more ranks, the less is learned from the same images. **Middle**: the curves come close to each other. What a model has
# learned here goes by the *updates*, and more ranks make fewer of them. **Right** is what you wait for. It depends on the machine:
# more ranks than cores take turns.
#
# ## One process can stand for all
#
# DDP averages the gradients, so `W` ranks with batch `b` compute what **one process with batch `W·b`** computes, from the same seed, in the
# same order ([06](06_ddp.ipynb)). One process starts faster. So for *learning* it may stand for the ranks; for *times* it may not.
# We check that first: `main.py --global-batch-size` in one process, against the ranks of above.

# %%
global_batch = most * batch_size
# !python main.py {common} --lr {lr} --global-batch-size {global_batch} --log-file results/live/09/one_process.jsonl

# %%
one_process = completed({"one process": "results/live/09/one_process.jsonl"})
ranks_run = alone[alone["world_size"] == most].reset_index(drop=True)
lesson.table([{"epoch": epoch, f"loss, {some(most, 'rank')}": f"{theirs.loss:.7f}", "loss, one process": f"{its.loss:.7f}",
       "difference": f"{abs(theirs.loss - its.loss):.0e}", "difference of the weights' norm": f"{abs(theirs.weight_norm - its.weight_norm):.0e}"}
      for epoch, (theirs, its) in enumerate(zip(ranks_run.itertuples(), one_process.itertuples(), strict=True))])
apart = (ranks_run["loss"] - one_process["loss"]).abs()
padded = -samples % most  # images that the ranks train on twice
assert padded or apart[0] < 1e-4, f"the first losses differ by {apart[0]}: not the same training"
Markdown(f"The largest difference of a loss is **{apart.max():.0e}**: "
         + (f"{some(padded, 'image')} of each epoch are trained on twice by the ranks." if padded
            else "rounding." if apart.max() < 1e-4 else "rounding, which has grown from epoch to epoch.")
         + " From here on, curves marked *one process* stand for ranks.")

# %% [markdown]
# (Rounding grows in the course of a training, and a padded shard, [05](05_distributed_sampler.ipynb), trains on an image twice. `BatchNorm` would
# see each rank's images alone. LeNet has none.)
#
# ## What can one do: a longer step
#
# Fewer updates, each from more images: then let each go further. With `k` times the images an update:
#
# - **linear**: `k` times the learning rate. `k` small steps in nearly the same direction are one step, `k` times as long.
# - **square root**: `√k` times. The mean of `k` times the images has `√k` times less noise.
# - **linear with warm-up**: begin with the old rate, and rise to the new one in the first epoch
#   ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# **Predict.** Which of the three comes closest to one rank?

# %%
my_rule = "square root"  # or "linear", "warm-up"

# %%
scaled = {"square root": lr * math.sqrt(most), "linear": lr * most}
rate_sqrt, rate_linear = scaled.values()
# !python main.py {common} --global-batch-size {global_batch} --lr {rate_sqrt} --log-file results/live/09/sqrt.jsonl
# !python main.py {common} --global-batch-size {global_batch} --lr {rate_linear} --log-file results/live/09/linear.jsonl \
#     --save-model results/live/09/linear.pt

# %% [markdown]
# `main.py` scales by itself: with `--lr-scaling linear`, k times the images an update are k times `--lr`; here k is the number of ranks. `--warmup-epochs` needs it. So the
# third run is one of real ranks.

# %%
# !torchrun --nproc_per_node={most} main.py {common} --lr {lr} --lr-scaling linear --warmup-epochs 1 --log-file results/live/09/warm_up.jsonl

# %%
warm = completed({"linear, warm-up": "results/live/09/warm_up.jsonl"})
rules = completed({"1 rank": log_of(1), "rate left alone": log_of(most), "square root, one process": "results/live/09/sqrt.jsonl",
                   "linear, one process": "results/live/09/linear.jsonl", "linear, warm-up": "results/live/09/warm_up.jsonl"})
ax = plots.learning.accuracy_along(rules, "images", plt.subplots(figsize=(14, 8))[1], f"1 rank, and {some(most, 'rank')} with each rule")
plt.show()

# %%
after = rules.groupby("label", sort=False)["val_accuracy"].last()
closest = (after.drop("1 rank") - after["1 rank"]).abs().idxmin()
Markdown(f"1 rank: {after['1 rank']:.1%}. {some(most, 'rank')}: " + ", ".join(f"{name} {value:.1%}" for name, value in after.drop("1 rank").items())
         + f". Closest: **{closest}** (you said {my_rule}). One seed, {test_samples:,} test images: look at the recorded runs before you believe an order.")


# %% [markdown]
# ### Exercise 1: the rate
#
# `lr` was right when an update saw `batch` images. Now there are `ranks` ranks, each with `batch_size` images. Return the learning rate
# by `rule`: "none", "linear" or "sqrt".

# %%
def my_rate(lr, batch, ranks, batch_size, rule):
    raise NotImplementedError


# %%
check.rate(my_rate)
# check.rate.hint()
# check.rate.solution()

# %% [markdown]
# ### Exercise 2: the warm-up
#
# The rate of update number `step` (from 0): it begins at `lr`, rises in a straight line, is `lr * scale` at step `warm_up_steps`, and stays.

# %%
def my_warm_up(step, lr, scale, warm_up_steps):
    raise NotImplementedError


# %%
check.warm_up(my_warm_up)
# check.warm_up.hint()
# check.warm_up.solution()

# %% [markdown]
# ## Is the time worth it?
#
# Throughput counts images. What one waits for is an *accuracy*: say, seven tenths of what one rank reached in the end. (We look
# only after each epoch, so the times are those of whole epochs.)
#
# **Predict.** Which run gets there first?

# %%
my_first = f"{most} ranks"  # or "1 rank", "linear, warm-up", ...

# %%
timed = pd.concat([alone, warm], ignore_index=True)  # real ranks all: one process would not have their times
timed["elapsed"] = timed.groupby("label", sort=False)["seconds"].cumsum()
target = math.floor(70 * after["1 rank"]) / 100
to_target = timed[timed["val_accuracy"] >= target].groupby("label")["elapsed"].first().reindex(timed["label"].unique())
speeds = runs.seconds_per_epoch(timed).set_index("label")["images_per_second"]
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 6.5), sharey=True)
for y, label in enumerate(to_target.index):
    left.barh(y, speeds[label], height=0.6, color=plots.COLOURS[0])
    left.text(speeds[label], y, f"  {speeds[label]:,.0f}", va="center", fontweight="bold")
    reached = to_target[label]
    right.barh(y, np.nan_to_num(reached), height=0.6, color=plots.COLOURS[1])
    right.text(np.nan_to_num(reached), y, f"  not in {some(epochs, 'epoch')}" if np.isnan(reached) else f"  {reached:.1f} s", va="center", fontweight="bold")
left.set_yticks(range(len(to_target)), [f"{most} ranks,\n{label}" if label == "linear, warm-up" else label for label in to_target.index])
left.invert_yaxis()
left.set(xlabel="images/s")
left.xaxis.set_major_formatter("{x:,.0f}")
right.set(xlabel="seconds of training")
left.set_title("Throughput" + (" (SYNTHETIC DATA)" if dataset == "synthetic" else ""))
right.set_title(f"Time to {target:.0%} of the test images")
for ax in (left, right):
    ax.margins(x=0.25)
    ax.grid(axis="y", visible=False)
plt.show()

# %%
lines = [f"The most images a second: **{speeds.idxmax()}**. "
         + (f"The first at {target:.0%}: **{to_target.idxmin()}**, after {to_target.min():.1f} s (you said {my_first})." if to_target.notna().any()
            else f"None reached {target:.0%}.")]
if cores < most:
    lines.append(f"Here {some(most, 'rank')} share {some(cores, 'core')}: the images can go through as fast as with {some(cores, 'rank')}, no faster, and all that the fewer updates cost "
                 "must come out of that. Where each rank has a device, the bars on the left grow with the ranks. The rule then decides what is left of it on the right.")
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# ### Exercise 3: epochs for as many updates
#
# One process trains for `epochs` epochs. How many whole epochs do `ranks` ranks need at least, to make no fewer updates? Each rank has a batch of
# `batch_size`; count as lesson 05 does.

# %%
def my_epochs(epochs, images, ranks, batch_size):
    raise NotImplementedError


# %%
check.epochs_needed(my_epochs)
# check.epochs_needed.hint()
# check.epochs_needed.solution()

# %% [markdown]
# ### Exercise 4: time to an accuracy
#
# `run` is the table of one run, a row an epoch: `seconds` (of training, that epoch), `accuracy` (training images), `val_accuracy` (test images,
# at the epoch's end). After how many seconds of training has the run reached `target` on the test images? `math.inf` if it never does.

# %%
def my_time_to(run, target):
    raise NotImplementedError


# %%
check.time_to(my_time_to)
# check.time_to.hint()
# check.time_to.solution()
# {label: my_time_to(run, target) for label, run in timed.groupby("label")}  # the runs of above

# %% [markdown]
# ## Why: what do more images buy?
#
# A batch's gradient is an estimate of the gradient of *all* images, the true one. How far off is it? We draw batches at
# random, take their gradients, and average them in groups, as ranks do. Twice: with the first weights of a model, and with those of the
# *linear* run of above.
#
# **Predict.** Eight times the images: how many times smaller is the error?

# %%
my_gain = 8.0

# %%
torch.set_num_threads(1)
train_set, info = data.get_dataset(dataset, verify=False)[0].first(samples), data.DATASETS[dataset]
torch.manual_seed(0)
weights = {name: models.MODELS["lenet"](info.shape[0], len(info.classes), info.shape[1]) for name in ("first weights", "after training")}
weights["after training"].load_state_dict(torch.load("results/live/09/linear.pt", map_location="cpu", weights_only=True))
drawing = torch.Generator().manual_seed(0)
drawn = torch.randint(samples, (128, batch_size), generator=drawing)


def gradient(model, indices):
    """The gradient of the mean loss over these images, one flat tensor."""
    images, labels = train_set.__getitems__(indices)
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def relative_errors(model):
    """{images: error of the gradient of so many, as a share of the true one}: root mean squares."""
    chunks = torch.arange(samples).split(500)
    true = sum(gradient(model, chunk) * len(chunk) for chunk in chunks) / samples
    each = torch.stack([gradient(model, indices) for indices in drawn])
    means = {k: each.view(-1, k, each.shape[1]).mean(1) for k in (1, 2, 4, 8, 16)}
    return {k * batch_size: ((mean - true).norm(dim=1).square().mean().sqrt() / true.norm()).item() for k, mean in means.items()}


errors = {name: relative_errors(model) for name, model in weights.items()}

# %%
fig, ax = plt.subplots(figsize=(12, 7.5))
for number, (name, error) in enumerate(errors.items()):
    batches, values = list(error), list(error.values())
    colour = plots.COLOURS[number]
    ax.loglog(batches, values, plots.MARKERS[number] + "-", color=colour)
    ax.plot(batches, [values[0] * math.sqrt(batches[0] / batch) for batch in batches], ":", color=colour)
    ax.annotate(name, (batches[-1], values[-1]), (12, 0), textcoords="offset points", va="center", color=colour, fontweight="bold")
ax.axhline(1, color=plots.GREY, linewidth=2)
ax.text(batches[0], 1.03, "as large as the gradient itself", color=plots.GREY, fontsize=15)
ax.set_xticks(batches, batches)
ax.minorticks_off()
marks = [mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10) if ax.get_ylim()[0] < mark < ax.get_ylim()[1]]
ax.set_yticks(marks, marks)
ax.set(xlabel="images of the gradient", ylabel="error / true gradient", xlim=(55, 2600))
ax.set_title("How wrong is a batch's gradient? (dotted: 1 / √images)" + (", SYNTHETIC DATA" if dataset == "synthetic" else ""))
plt.show()

gains = {name: error[batch_size] / error[8 * batch_size] for name, error in errors.items()}
noise = {name: batch_size * error[batch_size] ** 2 for name, error in errors.items()}
Markdown("- " + "\n- ".join([
    "Eight times the images make the error " + ", ".join(f"{gain:.1f} ({name})" for name, gain in gains.items())
    + f" times smaller: √8 = {math.sqrt(8):.1f}. You said {my_gain:g}.",
    "The batch whose error is as large as the gradient itself: " + ", ".join(f"**{value:.0f} images** ({name})" for name, value in noise.items()) + "."]))


# %% [markdown]
# That batch is the *simple noise scale* of [McCandlish et al. 2018](https://arxiv.org/abs/1812.06162): the variance of an image's gradient over the
# square of the true one. **Far below it** a gradient is mostly noise, and more images really allow a longer step. **Far above it** the
# direction is known, and more images of the same weights say it again. It changes during training. So no rule for the rate can be
# right for every model, at every time.
#
# ## When are `k` small steps one long step?
#
# When the gradient stays the same in between. So compare, with plain SGD: 8 steps of 64 images with a rate, against one step of all 512 with 8 times the
# rate. The rate left alone goes about an eighth of the way: 0.875 are missing.

# %%
def distance(model, rate, scale, k=8):
    """How far one step with `scale` times the rate ends from k small steps, as a share of their way."""
    batches = drawn[:k]
    parameters = [parameter.detach() for parameter in model.parameters()]
    start = torch.nn.utils.parameters_to_vector(parameters)
    small = type(model)(info.shape[0], len(info.classes), info.shape[1])
    torch.nn.utils.vector_to_parameters(start.clone(), small.parameters())
    for batch in batches:
        moved = torch.nn.utils.parameters_to_vector(small.parameters()).detach() - rate * gradient(small, batch)
        torch.nn.utils.vector_to_parameters(moved, small.parameters())
    long = start - scale * rate * gradient(model, batches.flatten())
    return ((long - moved).norm() / (moved - start).norm()).item()


rates = [0.0002 * 2**i for i in range(12)]
fig, ax = plt.subplots(figsize=(12, 7.5))
fits = {}
for number, (name, model) in enumerate(weights.items()):
    apart = [distance(model, rate, 8) for rate in rates]
    fits[name] = max((rate for rate, value in zip(rates, apart, strict=True) if value < 1 - 1 / 8), default=None)
    ax.semilogx(rates, apart, plots.MARKERS[number] + "-", color=plots.COLOURS[number])
    seen = max((i for i, value in enumerate(apart) if value < 0.7), default=0)  # where the curves are apart, and inside the picture
    ax.annotate(name, (rates[seen], apart[seen]), (-14, 10), textcoords="offset points", ha="right", color=plots.COLOURS[number], fontweight="bold")
ax.axhline(1 - 1 / 8, linestyle="--", color=plots.GREY, linewidth=2)
ax.text(rates[0], 0.9, "rate left alone: 7/8 are missing", color=plots.GREY, fontsize=15)
ax.set(xlabel="learning rate of the small steps (plain SGD)", ylabel="apart / way of the small steps", ylim=(0, None))
ax.set_title("One long step instead of 8 small ones" + (", SYNTHETIC DATA" if dataset == "synthetic" else ""))
plt.show()
Markdown("The long step comes closer than the rate left alone up to a rate of about "
         + ", ".join(f"**{rate:g}** ({name})" if rate else f"less than {rates[0]:g} ({name})" for name, rate in fits.items())
         + f". (Momentum 0.9 lets each gradient act 1 + 0.9 + 0.81 + … = 10 times, so {lr:g} with momentum goes as far as {10 * lr:g} without. "
         f"There the trained model's long step is {distance(weights['after training'], 10 * lr, 8):.2f} of the way apart, and yet the linear run of above reached "
         f"{after['linear, one process']:.1%}. So this is the argument for the rule, not a proof of it.)")

# %% [markdown]
# So the linear rule is an approximation for small rates. Where the loss curves strongly a long step overshoots what small steps would
# have seen coming. Goyal et al. saw this early in training, and made the warm-up against it. In which part of a training it is worst
# depends on the model: look at your two curves.
#
# ## Error bars (recorded)
#
# One seed proves little. `results/recorded/large-batch` holds the wide part: three seeds (other first weights, other order of the
# images), four batches, many rates. Recorded, because it takes long: `record.sh` there is the one command that makes it. Its times are
# no measurement (the machine had other work), its accuracies do not depend on that. What is marked *one process* stands for ranks, as above.

# %%
recorded = runs.read_runs("results/recorded/large-batch")
ended = plots.learning.last_epochs(recorded)
wide, when = ended.iloc[0], pd.to_datetime(ended["started"].min()).date() if ended["started"].notna().any() else None
alike = ["dataset", "samples", "test_samples", "epochs", "model", "optimizer"]
assert len(ended[alike].drop_duplicates()) == 1, ended[alike].drop_duplicates()
by_hand = ended["lr_scaling"] == "none"  # one process, its --lr given; the others are real ranks with a warm-up
base, small = 0.01, 64
k = (ended["global_batch"] / small).astype(float)


def chosen(factor):
    """The runs whose rate is `base` times the factor of their batch."""
    return by_hand & np.isclose(ended["lr"], base * factor, rtol=1e-4)


warm_ups = ended[~by_hand & (ended["lr"] == base)]
table = pd.concat(
    plots.learning.over_seeds(rows, ["global_batch", "source", "machine"]).assign(rule=rule) for rule, rows in
    {"rate left alone": ended[chosen(1)], "square root": ended[chosen(np.sqrt(k))], "linear": ended[chosen(k)], "linear, warm-up (8 ranks)": warm_ups}.items())
ax = plots.learning.by_rule(table, plt.subplots(figsize=(14, 8.5))[1], f"After {some(wide.epochs, 'epoch')}: mean ± one sd of {table['runs'].max()} seeds")
ax.set_xlabel("images an update (one process stands for the ranks, but for the warm-up)")
plt.show()
Markdown(f"{wide.model} on the first {wide.samples:,} images of {wide.dataset}, {wide.test_samples:,} test images, {wide.optimizer} with momentum 0.9, "
         f"{wide.epochs} epochs; {wide.device_name}, {some(wide.cores, 'core')}{f', {when}' if when else ''}. {len(ended)} runs.")

# %%
points = table.set_index(["rule", "global_batch"])
one_rank, none = points.loc[("linear", small)], points.loc[("rate left alone", 8 * small)]


def result(row):
    return f"{row['mean']:.1%} ± {row['sd']:.1%}" if row["broken"] == 0 else f"{row['broken']} of {row['runs']} runs broke off"


lesson.table([{"8 × 64 images an update": rule, "rate": rate, "test accuracy": result(row),
       "of the loss made good": "" if rule == "rate left alone" or row["broken"] else f"{(row['mean'] - none['mean']) / (one_rank['mean'] - none['mean']):.0%}"}
      for rule, rate in {"rate left alone": f"{base:g}", "square root": f"{base * math.sqrt(8):.3g}", "linear": f"{8 * base:g}",
                         "linear, warm-up (8 ranks)": f"{base:g} to {8 * base:g}"}.items() for row in [points.loc[(rule, 8 * small)]]])
linear, gradual = points.loc[("linear", 8 * small)], points.loc[("linear, warm-up (8 ranks)", 8 * small)]
gain, scatter = 100 * (gradual["mean"] - linear["mean"]), math.hypot(gradual["sd"], linear["sd"])
Markdown(f"64 images an update: {result(one_rank)}. With the rate left alone, 512 images an update lose "
         f"**{100 * (one_rank['mean'] - none['mean']):.1f} percentage points**; the last column says how much of that a rule wins back.\n\n"
         f"The warm-up changes the linear rule's result by {gain:+.1f} points; the two scatter by {100 * scatter:.1f}. " + (
             "It helps." if gain > 100 * scatter else "So these runs do not show that it helps. " +
             f"Its epoch of lower rates is {1 / wide.epochs:.0%} of this short training (Goyal et al.: 5 epochs of 90, {5 / 90:.0%})."))

# %% [markdown]
# ## Every rate (recorded)
#
# A rule is a guess at where the best rate lies. Here are the rates themselves, for each batch. Read it from left to right: how does the
# best rate move, and where does each curve break down?

# %%
rates_table = plots.learning.over_seeds(ended[by_hand], ["global_batch", "lr", "source", "machine"])
way = {"linear rule": {batch: base * batch / small for batch in (64, 128, 256, 512)},
       "square-root rule": {batch: base * math.sqrt(batch / small) for batch in (64, 128, 256, 512)}}
ax = plots.learning.by_rate(rates_table, plt.subplots(figsize=(15, 9))[1], f"Accuracy after {some(wide.epochs, 'epoch')}, by rate", way)
ax.set_xlabel("learning rate (one process stands for the ranks)")
plt.show()

# %%
best = rates_table.loc[rates_table.groupby("global_batch")["mean"].idxmax()].set_index("global_batch")
rows, good = [], {}
for batch, tried in rates_table.groupby("global_batch"):
    near = tried[tried["mean"] >= best["mean"][batch] - max(best["sd"][batch], 0.01)]  # as good, for all that these seeds can say
    good[batch] = near["lr"].min(), near["lr"].max()
    rows.append({"images an update": batch, "best rate tried": f"{best['lr'][batch]:.3g}", "test accuracy": result(best.loc[batch]),
                 "about as good": f"{near['lr'].min():.3g} to {near['lr'].max():.3g}", "linear rule says": f"{base * batch / small:.3g}"})
lesson.table(rows)
top = {warmed: ended[(ended["global_batch"] == 512) & (np.isclose(ended["lr"], 0.02 if warmed else 0.16)) & (by_hand != warmed)] for warmed in (False, True)}
without, with_warm_up = (plots.learning.over_seeds(rows, ["global_batch"]).iloc[0] for rows in top.values())
Markdown(f"The best rate tried for 512 images is {best['lr'][512] / best['lr'][64]:.3g} times that for 64; with all that are about as good, "
         f"**{good[512][0] / good[64][1]:.3g} to {good[512][1] / good[64][0]:.3g} times**. Linear would be 8, square root {math.sqrt(8):.1f}. "
         f"Had we begun with 0.02 for 64 images, linear would say 0.16: without warm-up {result(without)}, with it {result(with_warm_up)}.")

# %% [markdown]
# ## The published result
#
# Goyal et al. trained ResNet-50 on ImageNet for 90 epochs: top-1 **error** on the validation images, mean and standard deviation of 5 trials
# ([arXiv 1706.02677](https://arxiv.org/abs/1706.02677), Tables 1 and 2a). The small batch is 256 images (8 GPUs × 32, rate 0.1), the large one 8,192
# (256 GPUs × 32): `k` = 32. Not measured here.

# %%
published = {"8,192, rate left alone": ("0.1", 41.67, 0.10), "8,192, square root": ("0.1 · √32", 26.22, 0.03),
             "8,192, linear, no warm-up": ("3.2", 24.84, 0.37), "8,192, linear, constant warm-up": ("3.2", 25.88, 0.56),
             "8,192, linear, gradual warm-up": ("3.2", 23.74, 0.09), "256": ("0.1", 23.60, 0.12)}
lesson.table([{"images an update": name, "rate": rate, "top-1 error, % (published)": f"{error:.2f} ± {sd:.2f}"} for name, (rate, error, sd) in published.items()])
(_, left_alone, _), (_, root, _), (_, gradual, _), (_, small_batch, _) = (published[name] for name in (
    "8,192, rate left alone", "8,192, square root", "8,192, linear, gradual warm-up", "256"))
Markdown(f"There, linear with a gradual warm-up wins back {(left_alone - gradual) / (left_alone - small_batch):.0%} of what the large batch lost, "
         f"square root {(left_alone - root) / (left_alone - small_batch):.0%}. (Constant warm-up: the low rate for 5 epochs, then a jump.)")

# %% [markdown]
# Compare it with ours and mind what differs: another model with BatchNorm, 128 times the images, 90 epochs, and rates that fall in steps later on. And theirs
# ends too: beyond 8,192 images their error rises, in spite of the linear rule and the warm-up (their Figure 1).
#
# For **Adam**, `main.py`'s default, the square root has the better argument
# ([Malladi et al. 2022](https://arxiv.org/abs/2205.10287); their rule changes Adam's β₁, β₂ and ε as well). Every rule is a first guess: try a rate below it and one above.
#
# ## What to remember
#
# - More ranks, same `--batch-size`: the global batch grows, the updates get fewer. The accuracy after the same epochs falls. A rate that follows wins a part of it back, seldom all.
# - Linear for SGD, as far as it carries. There is a largest rate that works, and it does not grow with the batch for ever.
# - Judge by **time to an accuracy**, over several seeds. Images a second is half of the answer.
# - Want the training of before, only faster? Keep the *global* batch: `--global-batch-size`. Each rank then has less to do a step.
#
# **Where next**: [05](05_distributed_sampler.ipynb) for who sees which image, [07](07_performance.ipynb) for the throughput. `scripts/measure/sweep.py --help`: your own
# rates, seeds and ranks.
