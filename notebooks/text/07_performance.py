# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         epochs: 2
#         samples: 8000
#         test_samples: 2000
#       seconds: 50
#     seconds: 170
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Performance
#
# `torchrun --nproc_per_node=8` starts eight processes that train one model together.
# How much faster is that than one process, and what sets the limit?

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import math
import os
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import psutil
import torch
from IPython.display import Markdown, display

import data
import models
import utils
from course import plots, runs
from course.lesson import some
from course.checks import lesson_07 as check

# %% tags=["parameters"]
epochs = 3  # passes over the training images; the first one warms up and is left out of the timing
samples = 50_000  # training images
test_samples = 10_000  # test images, looked at after each epoch

# %% [markdown]
# ## What is one device?
#
# "Faster than one device" means little until we say what one device is. With GPUs it is **one GPU**. Without, it is
# **one CPU core**: left alone, PyTorch would use all cores in one process, and there would be nothing left to gain.
#
# (A core is what the operating system counts as one. Two of them may be one core of the chip, run by two threads:
# then two ranks cannot be twice as fast.)

# %%
cores, gpus = utils.cores(), torch.cuda.device_count()
devices, kind = (gpus, "GPU") if gpus else (cores, "core")
busy = psutil.cpu_percent(interval=1)  # what other programs use now, % of all cores
os.environ["OMP_NUM_THREADS"] = "1"  # for all commands below: one thread a process, so that a rank is one core


Markdown(f"This machine has {some(cores, 'CPU core')} and {some(gpus, 'GPU') if gpus else 'no GPU'}. "
         f"So one device is one {kind}, and we have **{some(devices, kind)}**. Other programs use {busy:.0f} % of the cores just now"
         + (": **close them, or the times below are theirs as much as ours.**" if busy > 10 else ": good, we may measure."))

# %% [markdown]
# ## Predict
#
# Eight ranks train on the same images as one process. **How many times as fast is an epoch?**
# Change the number below before you go on.

# %%
my_prediction = 8.0  # eight ranks, eight times as fast? Write your own number

# %% [markdown]
# And what is the most that can come out? If one rank keeps one device busy, `n` ranks keep `n` busy, but never more than
# there are: **min(ranks, devices)**. (A GPU may have room: one rank with a small model does not fill it.)
#
# Held fixed: the images of an epoch, the first weights (same seed), the learning rate, and the batch of **each process**.
# So an epoch is the same work for more ranks, which is called *strong scaling*. A step is not: each rank has as many images
# as before, and the ranks together have more (*weak scaling*). The *global batch*, all ranks together, grows, and an epoch
# has fewer steps. Fewer steps are fewer updates of the weights: what does that do to the loss after an epoch? Predict that too.

# %%
sizes = [1, 2, 4, 8]
batch_size = 64  # main.py's default, for each process
limit = {ranks: min(ranks, devices) for ranks in sizes}
names = {ranks: some(ranks, "rank") + f" on {some(devices, kind)}" * (ranks > devices) for ranks in sizes}  # for the plots
steps = {ranks: math.ceil(math.ceil(samples / ranks) / batch_size) for ranks in sizes}


lesson.table([{"ranks": ranks, f"min(ranks, {devices}): most speed-up": limit[ranks], "images a step, each rank": batch_size,
       "global batch": ranks * batch_size, "steps an epoch": steps[ranks]} for ranks in sizes])

# %% [markdown]
# ## One process
#
# The baseline. It is the same `main.py` that all ranks will run.

# %%
start = time.perf_counter()
# !python main.py --epochs {epochs} --samples {samples} --test-samples {test_samples} \
#     --log-file results/live/07_1.jsonl
command_seconds = {1: time.perf_counter() - start}

# %% [markdown]
# First the data. Then who works: model, strategy, ranks × batch, device, threads. Then one line an epoch: `Loss` and
# `acc` are of the training images, `val` of the test images. `time cost` counts training alone: no start, no test.
#
# ## Eight ranks
#
# Now the command that this lesson is about. Only what stands before `main.py` changes (and where the log and the weights go).

# %%
start = time.perf_counter()
# !torchrun --nproc_per_node=8 main.py --epochs {epochs} --samples {samples} --test-samples {test_samples} \
#     --log-file results/live/07_8.jsonl --save-model results/live/07_8.pt
command_seconds[8] = time.perf_counter() - start

# %% [markdown]
# Eight processes ran, yet each line stands there once: only rank 0 prints, and what it prints is summed over all ranks.
#
# How good was the prediction? We read both logs.

# %%
logs = {names[ranks]: f"results/live/07_{ranks}.jsonl" for ranks in sizes}
eight = runs.speedup_table(runs.read_runs({names[ranks]: logs[names[ranks]] for ranks in (1, 8)})).iloc[-1]
turns = f" (8 ranks share {some(devices, kind)}: they take turns)" if devices < 8 else ""
Markdown(f"You predicted {my_prediction:g}. min(ranks, devices) is {limit[8]}{turns}. "
         f"Measured: eight ranks are **{eight.speedup:.2f} times as fast** as one.")

# %% [markdown]
# **Where is the banner?** In a terminal, `torchrun` usually begins with a banner of asterisks about
# `OMP_NUM_THREADS`. We have set that variable, so it kept quiet. Here it is, with a command that does nothing:

# %%
# !env -u OMP_NUM_THREADS torchrun --nproc_per_node=2 --no-python true

# %% [markdown]
# It is no error. If every rank used all cores, the ranks would get in each other's way. So `torchrun` gives each rank one
# thread, and says that you may know better. `main.py` does: unless you set the variable, it takes *cores / ranks* threads.
#
# ## Two and four ranks
#
# Two points make no curve.

# %%
start = time.perf_counter()
# !torchrun --nproc_per_node=2 main.py --epochs {epochs} --samples {samples} --test-samples {test_samples} \
#     --log-file results/live/07_2.jsonl
command_seconds[2] = time.perf_counter() - start

# %%
start = time.perf_counter()
# !torchrun --nproc_per_node=4 main.py --epochs {epochs} --samples {samples} --test-samples {test_samples} \
#     --log-file results/live/07_4.jsonl
command_seconds[4] = time.perf_counter() - start

# %% [markdown]
# ## Read the logs back
#
# Before we compare, we check: did each run finish, with as many ranks as asked, on the same data with the same settings?

# %%
df = runs.read_runs(logs)
for ranks, (name, run) in zip(sizes, df.groupby("label", sort=False), strict=True):
    last = run.iloc[-1]
    assert last.status == "completed", f"{name}: {last.status}: {last.note}"
    assert (last.world_size, len(run)) == (ranks, epochs), f"{name}: {len(run)} epochs on {last.world_size} ranks"
same = ["dataset", "samples", "test_samples", "model", "batch_size", "lr", "optimizer", "seed", "shuffle", "device", "threads"]
assert len(df[same].drop_duplicates()) == 1, f"the runs differ:\n{df.groupby('label')[same].first()}"
assert (last.samples, last.batch_size) == (samples, batch_size)
table = runs.speedup_table(df)

lesson.table([{"run": run.label, "data": run.dataset, "images": f"{run.samples:,}", "seconds an epoch": f"{run.seconds:.2f}",
       "images/s": f"{run.images_per_second:,.0f}", "speed-up": f"{run.speedup:.2f}", "efficiency": f"{run.efficiency:.0%}",
       "loss": f"{run.loss:.2f}", "status": run.status} for run in table.itertuples()])
Markdown(f"All on {last.device_name}" + (", one core a rank." if not gpus else "."))

# %% [markdown]
# The time is the median over the epochs after the first. **Speed-up**: how many times as fast as one rank.
# **Efficiency**: speed-up / ranks.
#
# ## Time and throughput

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 7))
plots.seconds_per_epoch(table, left)
plots.throughput(table, right)
plt.show()

# %% [markdown]
# ## Speed-up and efficiency
#
# The dashed line is the hope: twice the ranks, twice the speed. The dotted one is min(ranks, devices).

# %%
many = np.linspace(1, max(sizes), 100)
allowed = np.minimum(many, devices)


def draw_limit(ax, y, x, side, corner):
    """Before the measured points, whose labels then keep clear of it. For cores `plots.speedup` shades by itself."""
    if devices < max(sizes):
        ax.plot(many, y, ":", color=plots.COLOURS[2])
        ax.annotate(f"min(ranks, {some(devices, kind)})", (x, np.interp(x, many, y)), (0, 8), textcoords="offset points", ha=side,
                    fontsize=16, fontweight="bold", color=plots.COLOURS[2])
    if 0 < gpus < max(sizes):
        ax.axvspan(gpus + 0.5, 1.06 * max(sizes) + 0.5, color="#F3E3D3", zorder=0, linewidth=0)
        ax.text(0.98, corner, f"more ranks than GPUs ({gpus})", ha="right", va="center", transform=ax.transAxes,
                fontsize=16, fontweight="bold", color=plots.WARNING)


fig, (left, right) = plt.subplots(1, 2, figsize=(18, 8))
left.plot(8, my_prediction, "*", markersize=22, color=plots.COLOURS[3])
left.annotate("you", (8, my_prediction), (-16, 0), textcoords="offset points", ha="right", va="center", color=plots.COLOURS[3], fontweight="bold")
draw_limit(left, allowed, 8, "right", 0.03)
plots.speedup(table, left)
left.set_ylim(top=max(left.get_ylim()[1], 1.1 * my_prediction))
draw_limit(right, allowed / many, max(4, devices), "left", 0.97)
plots.efficiency(table, right)
plt.show()


# %%
def row_of(ranks):
    """The row of the table for so many ranks."""
    return table[table["world_size"] == ranks].iloc[0]


best, eight = table.loc[table["speedup"].idxmax()], row_of(8)
fair = max(ranks for ranks in sizes if ranks <= devices)  # the most ranks that have a device each
lines = [f"The best speed-up is **{best.speedup:.2f}**, with {best.label}." if best.world_size > 1 else "No number of ranks was faster than one.",
         f"Eight ranks: speed-up **{eight.speedup:.2f}**, efficiency **{eight.efficiency:.0%}**. "
         f"That is {eight.speedup / limit[8]:.0%} of min(8, {some(devices, kind)})."]
if 1 < fair < 8:
    lines.insert(1, f"The last size with a {kind} for each rank is {fair}: speed-up {row_of(fair).speedup:.2f}, "
                    f"efficiency {row_of(fair).efficiency:.0%}.")
if gpus:
    lines += [f"Beyond {some(gpus, 'rank')} the ranks share GPUs. All they can gain is what one rank left idle."] * (gpus < 8)
elif cores < 8:
    lines.append(f"Beyond {some(cores, 'rank')} the ranks take turns. More ranks bring no more cores, so no more speed is "
                 "to be had: the efficiency must fall. **A low efficiency there says nothing against DDP.**")
if not gpus and best.speedup > 1.1 * limit[best.world_size]:
    lines.append("**More than min(ranks, cores): other programs disturbed these runs. Close them, and run again.**")
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# ### Exercise 1: strong and weak scaling
#
# Here all epochs had the same images: strong scaling. Others let the images of a run grow with the ranks, as our steps did: weak
# scaling. One formula serves both. One rank took `seconds_one` for `images_one`; all ranks together took `seconds_many` for `images_many`. Return speed-up and
# efficiency.

# %%
def my_scaling(seconds_one, images_one, seconds_many, images_many, ranks):
    raise NotImplementedError


# %%
check.scaling(my_scaling)
# check.scaling.hint()
# check.scaling.solution()
# my_scaling(row_of(1).seconds, samples, eight.seconds, samples, 8)  # this machine

# %% [markdown]
# ## Which part of a step grew?
#
# In one step each rank handles 64 images, whatever the number of ranks. So with a device for each rank, a step should
# take as long as alone. What it takes longer is the price of working together.
# `backward` holds the all-reduce: there the ranks exchange and average their gradients.

# %%
phases = [f"{phase}_seconds" for phase in plots.PHASES]
per_step = df.copy()
per_step[phases] = 1000 * df[phases].div(df["world_size"].map(steps).astype(float), axis=0)  # milliseconds
ax = plots.phases(per_step, plt.subplots(figsize=(12, 5))[1])
ax.set_xlabel("milliseconds a step (64 images a rank)")
later = per_step[(per_step["epoch"] > 0) | (epochs == 1)]  # as in the plot: without the epoch that warms up
ms = later.groupby("world_size")[phases].median().rename(columns=lambda name: name.removesuffix("_seconds"))
for y, total in enumerate(ms.sum(axis=1)):
    ax.text(total, y, f" {total:.1f}", va="center", fontweight="bold")
ax.margins(x=0.1)
plt.show()


# %%
def growth(ranks):
    grown = ms.loc[ranks] - ms.loc[1]
    return (f"From 1 to {some(ranks, 'rank')} a step goes from {ms.loc[1].sum():.1f} to {ms.loc[ranks].sum():.1f} ms. "
            f"`{grown.idxmax()}` changes most: {grown.max():+.1f} ms.")


lines = [growth(fair)] if fair > 1 else []
if devices < 8:
    lines.append(growth(8))
if not gpus and cores < 8:
    lines.append(f"Eight ranks on {some(cores, 'core')}: each has a core for {cores / 8:.0%} of the time. That alone makes a step "
                 f"{8 / cores:.1f} times as long. It took {ms.loc[8].sum() / ms.loc[1].sum():.1f} times as long.")
    lines.append("The ranks do not reach the all-reduce together: who comes early waits there, in `backward`. And its messages pass "
                 "from rank to rank, each of which can answer only when it has a core.")
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# ### Exercise 2: turns, or the price of working together?
#
# A step takes `alone` ms with one rank, and `together` ms with `ranks` ranks on `devices` devices. Each rank has a batch of its own,
# as large as before. A step may take longer because the ranks take turns, or because working together costs time. Return the
# second part, in ms.

# %%
def my_price(alone, together, ranks, devices):
    raise NotImplementedError


# %%
check.price(my_price)
# check.price.hint()
# check.price.solution()
# my_price(ms.loc[1].sum(), ms.loc[8].sum(), 8, devices)  # this machine

# %% [markdown]
# ## Or threads?
#
# One process can use several cores by itself: it cuts each operation up over *threads*. Then why start several processes?
# A side question, so with fewer images: the same cores both ways, as threads of one process and as ranks
# (on the CPU, also where there are GPUs).

# %%
team = max(ranks for ranks in sizes if ranks <= cores)
few = min(samples, 8000)
# !OMP_NUM_THREADS={team} python main.py --device cpu --epochs 2 --samples {few} --test-samples {test_samples} \
#     --log-file results/live/07_threads.jsonl
# !torchrun --nproc_per_node={team} main.py --device cpu --epochs 2 --samples {few} --test-samples {test_samples} \
#     --log-file results/live/07_ranks.jsonl

# %%
threads_ranks = {f"{some(team, 'thread')}, 1 process": "results/live/07_threads.jsonl",
                 f"{some(team, 'rank')}, 1 thread": "results/live/07_ranks.jsonl"}
ways = runs.seconds_per_epoch(runs.read_runs(threads_ranks))
assert (list(ways["status"]), list(ways["threads"])) == (["completed"] * 2, [team, 1])
ax = plots.seconds_per_epoch(ways, plt.subplots(figsize=(12, 4))[1])
ax.set_xlabel(f"seconds for {few:,} images")
plt.show()

threaded, ranked = ways["images_per_second"]
lines = [f"On {some(team, 'core')}, ranks are **{ranked / threaded:.2f} times** as fast as threads."
         + (" With one core there is nothing to compare: run this on a machine with more." if team == 1 else "")]
if not gpus:
    lines.append(f"Compared with one core: threads {threaded / row_of(1).images_per_second:.2f} times as fast, ranks {ranked / row_of(1).images_per_second:.2f} times.")
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# Threads meet at the end of every operation; ranks meet once a step. So a small model, whose operations are short, and a
# busy machine, where somebody is always held up, are hard on threads. In return, threads leave the training as it is (one
# batch of 64), and need no second start. They end at one machine, and at one GPU. Ranks do not.
#
# ## Is it as good a training?
#
# Left: what each epoch taught. Right: what each second taught.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 7))
plots.loss_by_epoch(df, left)
plots.loss_by_time(df, right)
plt.show()

# %%
target = df.groupby("label")["loss"].min().max()  # a loss that all runs get down to
df["elapsed"] = df.groupby("label")["seconds"].cumsum()
reached = df[df["loss"] <= target].groupby("label")["elapsed"].first()
lesson.table([{"run": run.label, "global batch": run.world_size * batch_size, "updates made": steps[run.world_size] * epochs,
       f"loss after {some(epochs, 'epoch')}": f"{run.loss:.2f}", f"training seconds until loss ≤ {target:.2f}": f"{reached[run.label]:.1f}"}
      for run in table.itertuples()])
first = reached.idxmin()
Markdown(f"After {some(epochs, 'epoch')} eight ranks have made {steps[1] / steps[8]:.1f} times fewer updates than one, each from a "
         f"gradient averaged over more images. Their loss is {eight.loss:.2f}, that of one rank {row_of(1).loss:.2f}. "
         f"The first to get down to {target:.2f} was **{first}**" + (", not the run with the shortest epoch." if first != best.label else "."))

# %% [markdown]
# So a shorter epoch is not yet a shorter training. **Faster per image and better per image are two questions**: this
# lesson measures the first. A larger global batch usually wants another learning rate: lesson [09](09_large_batch.ipynb).
#
# ## And the whole command?
#
# You waited longer than the training took. Each rank is a Python that starts and imports torch.

# %%
df["command_seconds"] = df["world_size"].map(command_seconds)
ax = plots.whole_command(df, plt.subplots(figsize=(12, 5.5))[1])
ax.set_xlabel(f"seconds ({some(epochs, 'epoch')})")
plt.show()

# %%
whole, logged = (df.groupby("label", sort=False)[f"{name}_seconds"].first() for name in ("command", "total"))
start_up = whole - logged  # until the log is opened
saved = row_of(1).seconds - best.seconds  # in each epoch
one, many_ranks = names[1], names[8]
lines = [f"The shortest command is the one with **{whole.idxmin()}**: {whole.min():.0f} s.",
         f"Starting took {start_up[one]:.1f} s with 1 rank ({start_up[one] / whole[one]:.0%} of the command), "
         f"and {start_up[many_ranks]:.1f} s with 8 ranks ({start_up[many_ranks] / whole[many_ranks]:.0%})."]
if best.world_size > 1:
    extra = start_up[best.label] - start_up[one]
    lines.append(f"{best.label} need {extra:.1f} s more to start than one, and save {saved:.2f} s an epoch. So they pay from about "
                 f"**{some(max(1, math.ceil(extra / saved)), 'epoch')}** of {samples:,} images on. A shorter job is done sooner by one process.")
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# ### Exercise 3: the most that the whole command can gain
#
# With one rank a command needs `starting` seconds to start, and `training` seconds to train. Suppose that working together costs
# nothing, and that the start takes no longer with more ranks. How many times as fast can the whole command be at most, with
# `ranks` ranks on `devices` devices?

# %%
def my_most(starting, training, ranks, devices):
    raise NotImplementedError


# %%
check.most(my_most)
# check.most.hint()
# check.most.solution()
# my_most(start_up[one], df["seconds"][df["world_size"] == 1].sum(), 8, devices), whole[one] / whole[many_ranks]  # and measured

# %% [markdown]
# ## The same on eight GPUs (recorded)
#
# Not measured here, and not by us: a tutorial published the console output of two runs, LeNet on CIFAR-10, one GPU
# and eight. The same reader reads it. What is recorded elsewhere is drawn hollow and dashed, and is compared only with
# its own one-GPU run.

# %%
folder = "results/recorded/tutorial-one-gpu-vs-eight"
recorded = runs.read_runs({"one GPU": f"{folder}/one_gpu.txt", "eight GPUs": f"{folder}/eight_gpus.txt"})
rec_table = runs.speedup_table(recorded)

fig, (left, right) = plt.subplots(1, 2, figsize=(18, 7))
plots.loss_by_epoch(recorded, left)
plots.seconds_per_epoch(rec_table, right)
plt.show()

# %%
one_gpu, eight_gpus = (run for _, run in recorded.groupby("label", sort=False))
one_s, eight_s, rec = one_gpu["seconds"], eight_gpus["seconds"], rec_table.iloc[-1]
lines = [f"The run on {rec.label} is **{rec.status}**: its log breaks off after {some(rec.epochs, 'epoch')}. The reader notes: *{rec.note}*.",
         f"Speed-up **{rec.speedup:.1f}**, efficiency {rec.efficiency:.0%}, against its own one-GPU run.",
         f"But one GPU took between {one_s.min():.0f} and {one_s.max():.0f} s for the same work. Epoch against epoch, the speed-up is anything "
         f"between {one_s.min() / eight_s.max():.1f} and {one_s.max() / eight_s.min():.1f}. Such a figure is worth one digit."]
if not gpus and not last.synthetic and samples == len(data.get_dataset(last.dataset, verify=False)[0]):
    lines.append(f"For comparison, live: **one core of this machine takes {row_of(1).seconds:.1f} s** for all {samples:,} images of {last.dataset}. "
                 f"The tutorial's GPU took {rec_table.iloc[0].seconds:.0f} s, if its epochs held as many. So the GPU's speed was hardly the limit there.")
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# Why did a GPU need so long for so small a model? The log does not say. A GPU that waits for its images would look like this:
# lesson [01](01_one_device.ipynb) times a loop that fetches them one by one. Eight processes also fetch eight times as
# many: then the speed-up may be that of the data, not of the GPUs.
#
# ## The puzzle: accuracy 0.06
#
# **Predict.** The loss on eight GPUs is close to that on one. The accuracy is not. What went wrong? Look at the
# numbers first, then write down your guess.

# %%
lesson.table([{"epoch": one.epoch, "loss, one GPU": f"{one.loss:.2f}", "loss, eight": f"{eight.loss:.2f}", "accuracy, one GPU": f"{one.accuracy:.2f}",
       "accuracy, eight": f"{eight.accuracy:.2f}"} for one, eight in zip(one_gpu.itertuples(), eight_gpus.itertuples(), strict=False)])

# %% [markdown]
# Ten classes: blind guessing has 10 % of the hits, and loss ln 10 = 2.30. A model with loss 1.96 does not fall below that.
# So the counting is wrong, not the model. Suppose that each rank divided the hits in **its own eighth** of the images by the number of
# **all** images, and that nobody added the eight up. Then eight times the printed value would be about right:

# %%
times_8 = eight_gpus.assign(label="eight GPUs × 8", accuracy=lambda run: 8 * run["accuracy"])
plots.accuracy_by_epoch(pd.concat([recorded, times_8]), plt.subplots(figsize=(12, 7))[1])
plt.show()
(printed, by_one), epoch = (run["accuracy"].iloc[len(eight_gpus) - 1] for run in (eight_gpus, one_gpu)), len(eight_gpus) - 1
Markdown(f"In epoch {epoch}: {printed:.2f} × 8 = **{8 * printed:.2f}**. One GPU had {by_one:.2f} by then. Two printed digits leave room: the value is "
         f"between {8 * (printed - 0.005):.2f} and {8 * (printed + 0.005):.2f}. That fits, with eight times fewer updates an epoch.")

# %% [markdown]
# ## Make the mistake ourselves
#
# The eight-rank run above saved its weights. We go through the eight shards of the test set one after another,
# as eight ranks would side by side.

# %%
info, weights = data.DATASETS[last.dataset], torch.load("results/live/07_8.pt", map_location="cpu", weights_only=True)
model = models.MODELS[last.model](info.shape[0], len(info.classes), info.shape[1])
model.load_state_dict(weights)
model.eval()
test_set = data.get_dataset(last.dataset, verify=False)[1].first(test_samples)

hits, shard_sizes = [], []
for rank in range(8):
    images, labels = test_set.__getitems__(range(rank, len(test_set), 8))  # this rank's shard
    with torch.no_grad():
        hits.append((model(images).argmax(1) == labels).sum().item())
    shard_sizes.append(len(labels))

lesson.table([{"rank": rank, "hits": hit, "hits / whole set (the mistake)": f"{hit / len(test_set):.3f}", "hits / own shard": f"{hit / size:.3f}"}
      for rank, (hit, size) in enumerate(zip(hits, shard_sizes, strict=True))])
logged = df[(df["world_size"] == 8) & (df["epoch"] == epochs - 1)]["val_accuracy"].item()
summed = sum(hits) / sum(shard_sizes)
assert abs(summed - logged) < 0.003, "the shards' hits do not add up to what the eight ranks logged"
Markdown(f"- The mistake, as rank 0 would print it: **{hits[0] / len(test_set):.2f}**.\n"
         f"- All hits / all images: {sum(hits):,} / {sum(shard_sizes):,} = **{summed:.4f}**. The eight ranks logged `val acc` **{logged:.4f}**. They agree.")

# %% [markdown]
# ## What repairs it
#
# Each rank counts in sums: loss, hits, images. One all-reduce adds them up over all ranks. Only then is anything divided.
# These are the lines, with their numbers:

# %%
# !grep -nE "sums \+=|sums = torch|def count|return loss" utils.py checkpoint.py
# !grep -n -A 4 "def all_sum" utils.py

# %% [markdown]
# If a metric of yours shrinks as you add ranks, look for the missing all-reduce.
#
# ## What others measured
#
# Published by others on their machines. Efficiency is computed from their figures.

# %%
bert = {"1 GPU": 122, "2 GPUs": 115, "4 GPUs": 111, "8 GPUs": 110, "2 × 8 GPUs": 80}  # samples/s of each GPU
lesson.table([{"BERT": where, "samples/s, each GPU": speed, "efficiency": f"{speed / bert['1 GPU']:.0%}"} for where, speed in bert.items()])
gpt2 = {"DDP, with NVLink": 101.9003, "DDP, without NVLink": 131.4367, "DataParallel, with NVLink": 110.5948}  # seconds for 200 steps
lesson.table([{"GPT-2 on two GPUs": way, "seconds, 200 steps": f"{seconds:.1f}", "time against the first": f"{seconds / gpt2['DDP, with NVLink']:.0%}"}
      for way, seconds in gpt2.items()])

# %% [markdown]
# Sources: BERT, [PyTorch issue 17159](https://github.com/pytorch/pytorch/issues/17159) (p50 of each GPU's samples/s).
# GPT-2, two TITAN RTX, [Transformers manual](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many).
#
# Within one machine the GPUs of BERT lose little. Across two machines the link is slower, and it shows. GPT-2 shows the
# same: the same GPUs, another link.
#
# ## Where next
#
# - Change `epochs` or `samples` at the top and run again. Predict first: from which length on do more ranks pay?
# - Try a model with more work a step: add `--model resnet` to all commands. Does the efficiency rise?
# - Have a machine with GPUs? Run this notebook there. The commands stay the same.
# - Next: [08 · Predict](08_predict_scaling.ipynb) measures what the all-reduce costs, and predicts such runs. After that
#   [09 · A larger batch](09_large_batch.ipynb): what a larger global batch does to the loss.
