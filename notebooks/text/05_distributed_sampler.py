# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         orders: 10
#         samples: 2000
#       seconds: 30
#     seconds: 40
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · Who sees which image
#
# Many ranks train on one set of images. How do they share it without talking? And does each image count once?

# %%
import glob, sys
sys.path.insert(0, next(found[:-17] for place in (".", "..", "*") for found in glob.glob(f"{place}/course/lesson.py")))
from course import lesson; lesson.begin()

# %%
import itertools

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown, display
from torch.utils.data import DataLoader, DistributedSampler

import data
import models
import utils
from course import plots, runs
from course.checks import lesson_05 as check

# %% tags=["parameters"]
samples = 10_000  # training images of the model in the padding lab
test_images = 97  # its test images: one more than 12 × 8, so eight ranks have to pad seven times
orders = 50  # shuffled orders that the lab tries

# %% [markdown]
# ## Strided shards
#
# The part of the set that one rank sees is its **shard**. `DistributedSampler` says which items are in it. Given the
# number of ranks and a rank, it needs no process group. So this one notebook can ask for every rank.
#
# **Predict.** 20 items, 2 ranks, no shuffle. Which items does rank 1 get?

# %%
my_guess = list(range(10, 20))  # change it

# %%
items = range(20)  # the items are their own indices
shards = [list(DistributedSampler(items, num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)]
print("rank 0:", shards[0])
print("rank 1:", shards[1])
print("your guess was right" if my_guess == shards[1] else f"your guess: {my_guess}")


# %% [markdown]
# The same as a picture. `sightings` asks the sampler of each rank and writes down who sees what.

# %%
def sightings(n, ranks, epochs=(0,), set_epoch=True, **options):
    """A line each time a rank sees an item. What nobody sees has a line without rank."""
    lines = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(n), num_replicas=ranks, rank=rank, **options)
        for epoch in epochs:
            if set_epoch:
                sampler.set_epoch(epoch)
            lines += [(epoch, rank, place, item) for place, item in enumerate(list(sampler) or [None])]  # None: an empty shard
    seen = pd.DataFrame(lines, columns=["epoch", "rank", "place", "item"]).astype(float)
    everything = pd.DataFrame(itertools.product(epochs, range(n)), columns=["epoch", "item"], dtype=float)
    return seen.merge(everything, how="outer")


plots.sampler_map(sightings(20, 2, shuffle=False), plt.subplots(figsize=(14, 2.8))[1])
plt.show()

# %% [markdown]
# Not blocks: **strides**. The items are dealt like cards, one to each rank in turn.
#
# Why? Look at one *step*. With strides, the ranks together take the next items of the order: the same that one process
# with a batch twice as large would take.

# %%
batch_size = 5  # for each rank
loaders = [DataLoader(items, batch_size, sampler=DistributedSampler(items, 2, rank, shuffle=False)) for rank in (0, 1)]
alone = DataLoader(items, 2 * batch_size)
for step, (batch_0, batch_1, whole) in enumerate(zip(*loaders, alone, strict=True)):
    print(f"step {step}: rank 0 {batch_0.tolist()}, rank 1 {batch_1.tolist()}; one process: {whole.tolist()}")
    assert {*batch_0.tolist(), *batch_1.tolist()} == {*whole.tolist()}

# %% [markdown]
# ## Shuffled from a seed
#
# By default the sampler shuffles. The ranks do not talk to each other about the order. Yet no item is lost:

# %%
plots.sampler_map(sightings(20, 2), plt.subplots(figsize=(14, 2.8))[1], title="Shuffled: which rank sees which item")
plt.show()

# %% [markdown]
# Each rank shuffles the **whole** set with a random generator of its own, whose seed is `seed + epoch`. The same seed
# gives all ranks the same order. Then each takes its strides from it. By hand:

# %%
seed, epoch = 0, 0
order = torch.randperm(20, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
print("the order all ranks compute:", order)
for rank in (0, 1):
    from_sampler = list(DistributedSampler(items, 2, rank, seed=seed))
    print(f"rank {rank}: every 2nd of it, from {rank}:", order[rank::2], "= the sampler's:", order[rank::2] == from_sampler)
    assert order[rank::2] == from_sampler

# %% [markdown]
# So every run of a program has the same order. Here is a new process that knows nothing of this
# notebook:

# %%
# !python -c "from torch.utils.data import DistributedSampler; print('rank 0:', list(DistributedSampler(range(20), 2, 0)))"
print("here:  ", list(DistributedSampler(range(20), 2, 0)))

# %% [markdown]
# Two traps.
#
# - Seeds that differ from rank to rank: each rank takes strides from another order.
# - `seed + epoch` is a sum: a run with seed 1 begins with the second epoch of the run with seed 0.

# %%
n = 1000
own_seeds = [item for rank in range(4) for item in DistributedSampler(range(n), 4, rank, seed=rank)]
print(f"4 ranks, each with a seed of its own: {n - len(set(own_seeds))} of {n} items are seen by nobody in this epoch")

seed_0, seed_1 = (DistributedSampler(range(n), 4, 0, seed=seed) for seed in (0, 1))
seed_0.set_epoch(1)
print("seed 0 in epoch 1 is seed 1 in epoch 0:", list(seed_0) == list(seed_1))

# %% [markdown]
# ## `set_epoch`, and what forgetting it does
#
# The sampler does not know which epoch it is. `sampler.set_epoch(epoch)` tells it. Nothing fails when you forget the call.
#
# **Predict**: rank 0 of 2 trains for 6 epochs on 20 items. How many *different* items has it seen, with `set_epoch` and
# without?

# %%
my_with, my_without = 10, 10  # your numbers

# %%
fig, axes = plt.subplots(2, 1, figsize=(14, 9))
six = range(6)
called, forgotten = sightings(20, 2, six), sightings(20, 2, six, set_epoch=False)
plots.sampler_map(called, axes[0], rows="epoch", title="set_epoch called")
plots.sampler_map(forgotten, axes[1], rows="epoch", title="set_epoch forgotten")
plt.show()

# %%
met = {how: seen.loc[seen["rank"] == 0, "item"].nunique() for how, seen in {"with": called, "without": forgotten}.items()}
Markdown(f"In 6 epochs rank 0 has seen **{met['with']}** different items with `set_epoch` (you said {my_with}), and "
         f"**{met['without']}** without (you said {my_without}).")


# %% [markdown]
# Forgotten, each column keeps its colour and its number: each rank has the same items in the same order, epoch after epoch. All ranks
# together still see the whole set, so the loss goes down and nothing warns you. But the batches never change: the same images
# always stand in the same step. Shuffling was meant to prevent that.
#
# `main.py` calls it at the start of each epoch, on its own sampler: `checkpoint.Shard`, a DistributedSampler that can begin in the middle of an epoch.

# %%
# !grep -n "set_epoch" main.py

# %% [markdown]
# ### Exercise 1: an order for each epoch
#
# Write the shuffling. `my_order` returns the items 0 to n − 1 in the order of an epoch, as rank `rank` computes it.
# Another epoch, another order. Any deterministic way will do; it need not be PyTorch's.

# %%
def my_order(n, seed, epoch, rank):
    raise NotImplementedError


# %%
check.order(my_order)
# check.order.hint()
# check.order.solution()

# %% [markdown]
# ## When the set does not divide: padding
#
# **Predict**: 21 items on 2 ranks. How many does each rank get?

# %%
my_sizes = [11, 10]  # rank 0, rank 1

# %%
padded, dropped = (sightings(21, 2, shuffle=False, drop_last=drop_last) for drop_last in (False, True))
sizes = [padded.groupby("rank")["item"].count().astype(int).tolist(), dropped.groupby("rank")["item"].count().astype(int).tolist()]
print(f"the default:    {sizes[0]} (you said {my_sizes})")
print(f"drop_last=True: {sizes[1]}")

fig, axes = plt.subplots(2, 1, figsize=(14, 6.5))
plots.sampler_map(padded, axes[0], title="21 items on 2 ranks: padded")
plots.sampler_map(dropped, axes[1], title="21 items on 2 ranks: drop_last=True")
plt.show()

# %% [markdown]
# All shards are equally long, always. For DDP they must be: in each step the ranks average their gradients, and a rank with one step
# less would leave the others waiting. (For unequal ones PyTorch has
# [`Join`](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html): a rank that is done answers for the steps it does not have.)
#
# - The default **pads**: the order begins again, and the first items are seen twice. With shuffle these are other items in each epoch.
# - `drop_last=True` **drops**: the last items of the order are seen by nobody in this epoch.
#
# For training either is fine if the set is large. What about a set that is smaller than the world?

# %%
tiny = {drop_last: sightings(3, 8, shuffle=False, drop_last=drop_last) for drop_last in (False, True)}
fig, axes = plt.subplots(1, 2, figsize=(14, 6))
plots.sampler_map(tiny[False], axes[0], title="3 items, 8 ranks")
plots.sampler_map(tiny[True], axes[1], title="drop_last=True")
plt.show()

# %%
print(f"padded: {tiny[False]['item'].count()} items are seen, {tiny[False]['item'].nunique()} of them different")
loader = DataLoader(range(3), sampler=DistributedSampler(range(3), 8, 0, drop_last=True))
print(f"drop_last=True: {len(loader)} steps an epoch, and no error: nothing is trained, and nothing says so")
assert len(loader) == 0


# %% [markdown]
# ### Exercise 2: the shard of a rank
#
# Without shuffle and with padding, as a list of items. It must also be right for a set smaller than the world.

# %%
def my_shard(n, rank, world_size):
    raise NotImplementedError


# %%
check.shard(my_shard)
# check.shard.hint()
# check.shard.solution()

# %% [markdown]
# ## Try it
#
# When you run this cell yourself, there are sliders above the map. On a page that runs nothing, or without the package `ipywidgets`,
# you see pictures.

# %%
try:
    import ipywidgets as widgets
except ImportError:
    widgets = None


def map_of(items, ranks, shuffle, epoch, drop_last):
    fig, ax = plt.subplots(figsize=(14, 2.2 + 0.55 * ranks))
    options = f"epoch {epoch}, shuffle={shuffle}, drop_last={drop_last}"
    seen = sightings(items, ranks, [epoch], shuffle=shuffle, drop_last=drop_last)
    plots.sampler_map(seen, ax, title=f"{items} items, {ranks} ranks, {options}")
    plt.close(fig)  # it is shown by display, once
    return fig


if widgets:
    look = {"layout": widgets.Layout(width="320px")}  # one for all: each is saved with the notebook
    controls = {
        "items": widgets.IntSlider(21, 1, 40, description="items", **look),
        "ranks": widgets.IntSlider(4, 1, 8, description="ranks", **look),
        "epoch": widgets.IntSlider(0, 0, 9, description="epoch", **look),
        "shuffle": widgets.Checkbox(True, description="shuffle", **look),
        "drop_last": widgets.Checkbox(False, description="drop_last", **look),
    }
    box = widgets.VBox(list(controls.values()))
    without_sliders = {"text/plain": "(Here are sliders when you run this cell in JupyterLab.)"}
    display(box._repr_mimebundle_() | without_sliders, raw=True)
    shown = display(map_of(**{name: control.value for name, control in controls.items()}), display_id=True)

    def redraw(change):
        shown.update(map_of(**{name: control.value for name, control in controls.items()}))

    for control in controls.values():
        control.observe(redraw, "value")
else:
    for items_, epoch_, drop in [(21, 0, False), (21, 1, False), (21, 0, True)]:
        display(map_of(items_, ranks=4, shuffle=True, epoch=epoch_, drop_last=drop))

# %% [markdown]
# Questions to the map: for which numbers of items does nothing change when you tick `drop_last`? With how many items are most cells hatched?
# Which cells move when you change the epoch, with and without shuffle?
#
# ## In the `DataLoader`: `shuffle=False`
#
# The order is the sampler's business. A loader that shuffles as well would be a contradiction:

# %%
sampler = DistributedSampler(items, num_replicas=2, rank=0)
try:
    DataLoader(items, batch_size=5, shuffle=True, sampler=sampler)
except ValueError as error:
    print(f"ValueError: {error}")

# %% [markdown]
# So leave `shuffle` out (it is `False` then). The batches are shuffled all the same, by the sampler. The mistake is to take
# away the sampler instead: it works, and every rank trains on the whole set.

# %%
loader = DataLoader(items, batch_size=5, sampler=sampler)
print("shuffle left out, with the sampler:    ", [batch.tolist() for batch in loader])
loader = DataLoader(items, batch_size=5, shuffle=True)
print(f"shuffle=True, the sampler taken away:   {len(loader)} steps an epoch for each rank, instead of {len(sampler) // 5}")

# %% [markdown]
# ## Batch size: of a process, or of all?
#
# Under DDP each process has a loader of its own. Its `batch_size` is **per process**. The step of all ranks together takes the **global
# batch** = batch size × world size. (Under `DataParallel` there is one loader, and its `batch_size` is the whole batch.)
#
# **Predict**: 50,000 images, batch size 64 per process. How many steps an epoch does one process make, and how many do 8 ranks?

# %%
my_steps_1, my_steps_8 = 782, 782  # your numbers

# %%
images = range(50_000)


def plan(ranks, batch_size):
    loader = DataLoader(images, batch_size, sampler=DistributedSampler(images, ranks, 0))
    return {"ranks": ranks, "batch size": batch_size, "global batch": ranks * batch_size, "steps an epoch": len(loader)}


kept = pd.DataFrame([plan(ranks, 64) for ranks in (1, 2, 4, 8)])
print(f"you said {my_steps_1} and {my_steps_8}; they are {kept['steps an epoch'].iloc[0]} and {kept['steps an epoch'].iloc[-1]}\n")
print("Batch size per process kept: the global batch grows\n" + kept.to_string(index=False))
print("\nGlobal batch kept: the batch size is divided")
print(pd.DataFrame([plan(ranks, 64 // ranks) for ranks in (1, 2, 4, 8)]).to_string(index=False))


# %% [markdown]
# With the batch size kept, 8 ranks change the weights less often, each time after more images. With SGD the learning rate should follow the **global** batch;
# with Adam people often keep it, as `main.py` does unless `--lr-scaling` is given ([lesson 09](09_large_batch.ipynb)).
# A common rule multiplies it by the number of ranks and warms up slowly ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# ### Exercise 3: steps an epoch
#
# `drop_last` is given to the sampler and to the loader alike. Compute; build no loader.

# %%
def my_steps(n, world_size, batch_size, drop_last):
    raise NotImplementedError


# %%
check.steps(my_steps)
# check.steps.hint()
# check.steps.solution()

# %% [markdown]
# ## Padding lab: is the accuracy true?
#
# In training a repeated image is one of thousands. In **evaluation** it counts twice, and the accuracy can be wrong. By how much?
# We train a model, with two ranks. (`OMP_NUM_THREADS=1`: one core for each.)

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 main.py --epochs 2 --samples {samples} --test-samples {test_images} --save-model results/live/05_model.pt --log-file results/live/05_lab.jsonl

# %% [markdown]
# Now its answers to all test images: right or wrong. An answer does not depend on the rank that computes it. So this one process
# can evaluate as any number of ranks would: it takes the shard of each rank, counts hits and images, and adds up, as an all-reduce would.

# %%
run = runs.read_run("results/live/05_lab.jsonl").iloc[-1]
test_set, info = data.get_dataset(run["dataset"])[1], data.DATASETS[run["dataset"]]
model = models.MODELS[run["model"]](info.shape[0], len(info.classes), info.shape[1])
model.load_state_dict(torch.load("results/live/05_model.pt", map_location="cpu", weights_only=True))
model.eval()
with torch.no_grad():
    parts = [test_set.__getitems__(chunk) for chunk in torch.arange(len(test_set)).split(1000)]
    right = torch.cat([model(images).argmax(1) == labels for images, labels in parts])

truth = right[:test_images].double().mean().item()
synthetic = " (SYNTHETIC DATA)" if run["synthetic"] else ""
print(f"the truth{synthetic}: {right[:test_images].sum()} of {test_images} images right = {truth:.4f}")
print(f"the two ranks of main.py logged:       {run['val_accuracy']:.4f}")
assert abs(truth - run["val_accuracy"]) < 1.5 / test_images, "more than one image apart: not the same model or images"

# %% [markdown]
# Four ways to evaluate on W ranks:
#
# - **padded**: shards of `DistributedSampler`, hits of all / images of all
# - **dropped**: the same with `drop_last=True`
# - **mean of means**: unequal shards `range(rank, n, W)` with nothing repeated, and the mean of the ranks' accuracies
# - **exact**: the same unequal shards, hits of all / images of all
#
# **Predict**: on 8 ranks, by how many percentage points is the padded accuracy off?

# %%
my_error = 0.5  # your number


# %%
def shards_of(n, ranks, **options):
    return [list(DistributedSampler(range(n), ranks, rank, **options)) for rank in range(ranks)]


def all_reduced(shards):
    """Hits of all ranks / images of all ranks."""
    hits, seen = (sum(column) for column in zip(*[(right[shard].sum().item(), len(shard)) for shard in shards], strict=True))
    return hits / seen


lab = []
for ranks in range(1, 9):
    padded, dropped = (shards_of(test_images, ranks, shuffle=False, drop_last=drop) for drop in (False, True))
    exact = [list(range(rank, test_images, ranks)) for rank in range(ranks)]
    mean_of_means = sum(right[shard].double().mean().item() for shard in exact) / ranks
    accuracies = {"padded": all_reduced(padded), "dropped": all_reduced(dropped), "mean of means": mean_of_means, "exact": all_reduced(exact)}
    lab.append({"ranks": ranks, "seen twice": sum(map(len, padded)) - test_images, "left out": test_images - sum(map(len, dropped)),
                **{way: 100 * (accuracy - truth) for way, accuracy in accuracies.items()}})

lab = pd.DataFrame(lab).set_index("ranks")
assert (lab["exact"].abs() < 1e-9).all()
print(f"percentage points too high or too low, {test_images} test images{synthetic}:")
print(lab.to_string(float_format=lambda points: f"{round(points, 2) + 0.0:+.2f}"))  # + 0.0: no minus before a zero

# %%
worst = lab["padded"].abs().idxmax()
Markdown(f"On 8 ranks the padded accuracy is off by **{lab.loc[8, 'padded']:+.2f} percentage points** (you said {my_error}). The largest padded "
         f"error here is {lab.loc[worst, 'padded']:+.2f}, on {worst} ranks: one model, and an accuracy for each number of ranks. "
         f"Exact evaluation is off by {lab['exact'].abs().max():.2f} on any number.")

# %% [markdown]
# ### How wrong can it get?
#
# Of N images, H are right. Padding adds d copies, and h of them are right. Then
#
# $$\frac{H+h}{N+d}-\frac{H}{N}=\frac{d}{N+d}\left(\frac{h}{d}-\frac{H}{N}\right)$$
#
# Both fractions in the brackets lie between 0 and 1. So the error is at most d / (N + d). And d is at most **W − 1**: with W copies, each rank
# could have done with one image less. In the same way, dropping d images errs by at most d / (N − d). Both bounds are d / *images seen*.
#
# Do not believe it: try every number of right answers, the first ones or the last ones, for many N and W, padded and dropped.

# %%
closest = 0
for n, ranks, drop in itertools.product(range(1, 40), range(2, 9), (False, True)):
    indices = torch.tensor(shards_of(n, ranks, shuffle=False, drop_last=drop), dtype=torch.int64).flatten()
    d = abs(len(indices) - n)  # images seen again, or dropped
    if d == 0 or d == n and drop:  # nothing to look at, or nothing is seen at all
        continue
    answers = torch.ones(n, n).tril()  # row i: the first i + 1 answers are right
    answers = torch.cat([answers, 1 - answers])
    error = (answers[:, indices].mean(1) - answers.mean(1)).abs().max().item()
    assert d <= ranks - 1 and error <= d / len(indices) + 1e-6
    closest = max(closest, error / (d / len(indices)))
print(f"no error beyond d / images seen for N from 1 to 39 on 2 to 8 ranks; the largest was {closest:.0%} of it")

# %% [markdown]
# And with shuffle, which is the sampler's default? Then other images are repeated for each seed or epoch. The same model on the same images gets another
# accuracy each time. Each dot is one order, grey is the bound for W − 1 images.

# %%
ways = {"padded": False, "dropped": True}
bound = {"padded": lambda w: (w - 1) / (test_images + w - 1), "dropped": lambda w: (w - 1) / (test_images - w + 1)}
worlds = range(1, 9)
fig, axes = plt.subplots(1, 2, figsize=(16, 6.5), sharey=True)
on_8_ranks = {}
for (way, drop), ax, colour in zip(ways.items(), axes, plots.COLOURS, strict=False):
    limit = [100 * bound[way](w) for w in worlds]
    ax.bar(worlds, [2 * x for x in limit], bottom=[-x for x in limit], width=0.9, color="#E8E8E8")
    for w in worlds:
        errors = [100 * (all_reduced(shards_of(test_images, w, seed=seed, drop_last=drop)) - truth) for seed in range(orders)]
        side_by_side = [w + 0.7 * (seed / orders - 0.5) for seed in range(orders)]
        ax.plot(side_by_side, errors, "o", color=colour, markersize=6, alpha=0.5, markeredgewidth=0, label="shuffled" if w == 1 else None)
    on_8_ranks[way] = errors  # the last ones
    ax.axhline(0, color=plots.COLOURS[2], linewidth=2)
    ax.plot(worlds, lab[way], "D", color=colour, markersize=12, markeredgecolor="black", markeredgewidth=1.5, label="shuffle=False")
    ax.text(8.5, 0, " exact", color=plots.COLOURS[2], va="center", fontweight="bold", clip_on=False)
    ax.set(xlabel="world size (ranks)", xticks=worlds, xlim=(0.5, 8.5))
    ax.set_title(f"{way.capitalize()}, {test_images} test images{synthetic}")
    ax.legend(loc="upper left", frameon=False)
    ax.grid(axis="x", visible=False)
axes[0].set(ylabel="percentage points off", ylim=(-1.08 * limit[-1], 1.08 * limit[-1]))
plt.show()

# %%
low_high = {way: (min(errors), max(errors)) for way, errors in on_8_ranks.items()}
Markdown(f"On 8 ranks, over {orders} orders: " + "; ".join(
    f"{way} between {low:+.2f} and {high:+.2f} percentage points" for way, (low, high) in low_high.items())
    + ". The model never changed. Dropping is no repair: it only errs in another way.")

# %% [markdown]
# ### Why nobody notices
#
# CIFAR-10 has 10,000 test images. How many are seen twice? Beside it, a set with one image more:

# %%
fig, ax = plt.subplots(figsize=(12, 5))
for shift, n, colour in [(-0.2, 10_000, plots.COLOURS[0]), (0.2, 10_001, plots.COLOURS[1])]:
    copies = [sum(map(len, shards_of(n, w, shuffle=False))) - n for w in worlds]
    bars = ax.bar([w + shift for w in worlds], copies, width=0.38, color=colour, label=f"{n:,} images")
    ax.bar_label(bars, fontweight="bold")
ax.step([0.5, *[w + 0.5 for w in worlds]], [0, *[w - 1 for w in worlds]], color=plots.GREY, linestyle="--", linewidth=2)
ax.text(6.4, 5.15, "world size − 1", color=plots.GREY, ha="right", fontweight="bold")
ax.set(xlabel="world size (ranks)", ylabel="images seen twice", xticks=worlds, ylim=(0, 8))
ax.set_title("Padding hides where the set divides", pad=44)
ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, borderaxespad=0.2)
ax.grid(axis="x", visible=False)
plt.show()

# %%
table = pd.DataFrame([{"test images": n, "seen twice on 8 ranks": -n % 8, "error at most, points": 100 * (-n % 8) / (n + -n % 8),
                       "measured, points": 100 * (all_reduced(shards_of(n, 8, shuffle=False)) - right[:n].double().mean().item())}
                      for n in (test_images, 993, 9993, 10_000) if n <= len(right)])
print("8 ranks, shuffle=False, the first so many test images; the error is at most d / (N + d)")
print(table.to_string(index=False, float_format="{:.3f}".format))


# %% [markdown]
# 10,000 divides by 8, by 4 and by 2. On the usual numbers of GPUs the mistake shows nothing. And where it does pad, the set is so large that the error
# is smaller than what anybody looks at. The same code is wrong on your own small test set.
#
# `main.py` evaluates exactly (`utils.evaluate`), with a plain slice as the sampler, and adds sums:

# %%
# !grep -n -A 6 "shard = range" utils.py

# %% [markdown]
# Now the ranks' shards may differ in length, and so may their steps. This is safe because no collective runs in the loop: it calls the raw model, not the DDP wrapper. The ranks
# meet once, in `all_sum` at the end.
#
# ### Exercise 4: exact accuracy, even from padded shards
#
# Somebody has evaluated with padding (`shuffle=False`). `shards[r]` is rank r's list of right (`True`) and wrong (`False`), in the order of its shard.
# Return the true accuracy of the n items.

# %%
def my_accuracy(n, shards):
    raise NotImplementedError


# %%
check.accuracy(my_accuracy)
# check.accuracy.hint()
# check.accuracy.solution()

# %% [markdown]
# ## What to keep
#
# - Same seed on all ranks, `set_epoch` in each epoch, no `shuffle=True` in the loader.
# - `batch_size` is per process.
# - Train with padding; evaluate with exact shards, and add sums before you divide.
#
# **Where next**: [06 · DDP](06_ddp.ipynb) builds what happens in a step, the averaging of gradients. [07 · Performance](07_performance.ipynb) measures the whole.
