# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         steps: 8
#         width: 768
#       seconds: 40
#     seconds: 50
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · DistributedDataParallel
#
# Several processes, each with its own images, train one and the same model. What must they tell each other, and when?
# We start with nothing, add one thing at a time, and end at DDP.

# %%
import glob, sys
sys.path.insert(0, next(found[:-17] for place in (".", "..", "*") for found in glob.glob(f"{place}/course/lesson.py")))
from course import lesson; lesson.begin()

# %%
import difflib
import inspect
import json
import os
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib.ticker import MaxNLocator

import data
from course import plots, runs
from course.lesson import code
from scripts.lessons import ddp_from_scratch, ddp_questions
from course.checks import lesson_06 as check

# %% tags=["parameters"]
ranks = 2  # processes of every run below; 2 or more
steps = 20  # updates of each training run
width = 1024  # of the layers in the model whose step we draw

# %% [markdown]
# Two scripts run everything below. Each of the six first functions of `scripts/lessons/ddp_from_scratch.py` is a whole training loop,
# and differs from the one before in a few lines. `scripts/lessons/ddp_questions.py`, beside it, asks what follows from them. **The ranks are processes on the CPU, also where there are GPUs**:
# so everybody sees the same, and a GPU would change nothing but the speed. (Only `SyncBatchNorm` asks for a GPU.)

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
Path("results/live").mkdir(parents=True, exist_ok=True)


def found(name):
    """What a run wrote for us."""
    return json.loads(Path(f"results/live/06_{name}.json").read_text())


def difference(old, new):
    """What a function of the script adds (+) to another, and leaves out (-)."""
    before, after = (inspect.getsource(function).rstrip().splitlines() for function in (old, new))
    lines = list(difflib.unified_diff(before, after, n=100, lineterm=""))[3:]
    display(Markdown("```diff\n" + "\n".join(lines) + "\n```"))


print(f"{ranks} ranks, {ddp_from_scratch.get_parser().get_default('batch_size')} images of {dataset} a step for each")

# %% [markdown]
# ## Nothing: each rank for itself
#
# This is the loop that everybody writes. `batches` holds the rank's own images: its shard of each whole batch.

# %%
code(ddp_from_scratch.independent)

# %% [markdown]
# Started as several ranks, it trains as many models: other first weights (a seed for each rank), other images.
#
# ## Broadcast: the same first weights
#
# `dist.broadcast(tensor, src=0)` gives every rank the values that rank 0 has. The green lines are new.

# %%
difference(ddp_from_scratch.independent, ddp_from_scratch.broadcast)

# %% [markdown]
# **Predict.** All ranks now begin with the same weights. Are these still the same after the last update?

# %%
my_prediction = "the same"  # or "not the same"

# %%
# !torchrun --nproc_per_node={ranks} scripts/lessons/ddp_from_scratch.py --step independent broadcast \
#     --steps {steps} --out results/live/06_start.json

# %%
proofs = found("start")
fig, ax = plt.subplots(figsize=(12, 6))
for number, name in enumerate(["independent", "broadcast"]):
    line = proofs[name]["between_ranks"]
    ax.plot(line, plots.MARKERS[number] + "-", color=plots.COLOURS[number])
    ax.annotate(name, (steps, line[-1]), (10, 0), textcoords="offset points", va="center", color=plots.COLOURS[number], fontweight="bold")
ax.set(xlabel="updates", ylabel="largest difference of a weight", ylim=(-0.002, None))
ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
ax.set_title("How far the ranks' models are apart" + (" (SYNTHETIC DATA)" if dataset == "synthetic" else ""))
plt.show()
first, last = (proofs["broadcast"]["between_ranks"][i] for i in (0, -1))
Markdown(f"You said: {my_prediction}. With `broadcast` the difference is {first:g} at the start, and **{last:.4f}** after {steps} updates: "
         f"{'the ranks drift apart' if last > 1e-6 else 'the ranks stay together'}.")

# %% [markdown]
# Each rank has other images, so other gradients, so other updates. **Same weights + same updates = same weights.**
# The first half is done. The other half: all ranks must update with the same gradient.
#
# ## Average the gradients
#
# `dist.all_reduce(tensor)` adds the tensor up over all ranks, and leaves the sum on each.

# %%
difference(ddp_from_scratch.broadcast, ddp_from_scratch.average)

# %% [markdown]
# We judge it twice: **between the ranks**, and **against one process** that trains on the whole batches, without any
# of this. And why do we divide? `scale` computes the gradient of one batch in four ways.
#
# **Predict.** One process has no ranks and no averaging. How large is the largest difference from its weights?

# %%
my_difference = 0.01

# %%
# !torchrun --nproc_per_node={ranks} scripts/lessons/ddp_from_scratch.py --step average --steps {steps} --out results/live/06_average.json
# !torchrun --nproc_per_node={ranks} scripts/lessons/ddp_questions.py --step scale --out results/live/06_scale.json

# %%
proofs |= found("average")
apart, off = (proofs["average"][key][-1] for key in ("between_ranks", "from_one_process"))
display(Markdown(f"You said {my_difference:g}. Between the ranks: **{apart:g}**. From one process: **{off:.1e}**. "
                 "That is rounding: the same numbers, added in another order."))
lesson.table([{"the loss is the … over a rank's images": row["loss"], "over the ranks we take the …": row["over_ranks"],
       "times the whole batch's gradient": f"{row['times']:.4f}", "rest (relative)": f"{row['relative_difference']:.0e}"}
      for row in found("scale")["scale"]])

# %% [markdown]
# **Sum or mean?** The loss decides. A mean over the images (PyTorch's default) needs the mean over the ranks. A sum over
# the images (`reduction="sum"`) needs the sum. **DDP always takes the mean**: that is the last row, when the loss is a sum. Its gradient
# is then smaller than one process's, by the number of ranks, and nothing warns you. (Further down we train that way.)
#
# ## Buckets: fewer, larger messages
#
# Each all-reduce costs some time, however small the tensor. So pack several gradients into one flat tensor, a *bucket*:

# %%
difference(ddp_from_scratch.average, ddp_from_scratch.bucketed)

# %%
code(ddp_from_scratch.make_buckets, ddp_from_scratch.pack, ddp_from_scratch.unpack)

# %% [markdown]
# ## Overlap: do not wait for the end of backward
#
# Backward begins with the last layer. Its gradients are ready while those of the first layers are still to come. So send a
# bucket **when it is full**: a hook on each parameter tells us, and `async_op=True` returns at once.
# Before the update we wait for all of them.

# %%
difference(ddp_from_scratch.bucketed, ddp_from_scratch.overlapped)

# %% [markdown]
# ## DistributedDataParallel
#
# It does all this: broadcast in its constructor, buckets, hooks, overlap, the mean. Compared with what we wrote it is mostly red …

# %%
difference(ddp_from_scratch.overlapped, ddp_from_scratch.ddp)

# %% [markdown]
# … and compared with the loop that we began with:

# %%
difference(ddp_from_scratch.independent, ddp_from_scratch.ddp)

# %%
# !torchrun --nproc_per_node={ranks} scripts/lessons/ddp_from_scratch.py --step bucketed overlapped ddp \
#     --steps {steps} --out results/live/06_ddp.json

# %%
proofs |= found("ddp")
messages = {"independent": 0, "broadcast": 0, "average": proofs["average"]["tensors"],
            "bucketed": proofs["average"]["buckets"], "overlapped": proofs["average"]["buckets"], "ddp": "DDP decides"}
lesson.table([{"step": f"`{name}`", "between ranks": f"{proofs[name]['between_ranks'][-1]:.1e}",
       "from one process": f"{proofs[name]['from_one_process'][-1]:.1e}", "all-reduces an update": messages[name],
       "ms an update": f"{1000 * proofs[name]['seconds_a_step']:.1f}"} for name in messages])

fig, ax = plt.subplots(figsize=(12, 7))
for number, name in enumerate(messages):
    line = proofs[name]["from_one_process"]
    ax.semilogy([max(value, 1e-10) for value in line], plots.MARKERS[number] + "-", color=plots.COLOURS[number])
together = [name for name in messages if proofs[name]["from_one_process"][-1] < 1e-4]
for number, name in enumerate(messages):
    if name not in together:
        ax.annotate(name, (steps, proofs[name]["from_one_process"][-1]), (10, 8 - 16 * number), textcoords="offset points",
                    va="center", color=plots.COLOURS[number], fontweight="bold")
if together:
    ax.annotate("\n".join(together), (steps, proofs[together[-1]]["from_one_process"][-1]), (10, 0), textcoords="offset points",
                va="center", fontweight="bold")
ax.set(xlabel="updates", ylabel="largest difference of a weight")
ax.set_yticks([1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1], ["0", "10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "1"])
ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
ax.set_title("How far from one process on the whole batches" + (" (SYNTHETIC DATA)" if dataset == "synthetic" else ""))
plt.show()
Markdown(f"**{len(together)} of the {len(messages)} are the training of one process**, up to rounding: {', '.join(f'`{name}`' for name in together)}.")

# %% [markdown]
# Which way they exchange the gradients changes only the time. (This model is so small that *ms an update* says little. The
# next section takes a larger one.)
#
# ## Overlap, seen
#
# DDP tells a *communication hook* of each bucket. Ours writes down when the bucket is sent, and when it has come back.
# The model: layers of `width` × `width` values. `bucket_cap_mb` sets the size of a bucket. We draw one step with small
# buckets, and one with a single bucket for all gradients.
#
# **Predict.** Which step is shorter?

# %%
my_choice = "small buckets"  # or "one bucket"

# %%
# !torchrun --nproc_per_node={ranks} scripts/lessons/ddp_questions.py --step timeline --bucket-mb 4 1000 --width {width} \
#     --out results/live/06_timeline.json

# %%
drawn = found("timeline")["timeline"]
fig, axes = plt.subplots(2, 1, figsize=(13, 4.5 + 3 * min(ranks, 4)), sharex=True)  # four ranks at most
for ax, run in zip(axes, drawn, strict=True):
    events = pd.DataFrame(run["events"])
    plots.timeline(events[events["rank"] < 4], ax)
    count = events.loc[events["event"] == "all-reduce", "text"].nunique()
    ax.set_title(f"bucket_cap_mb={run['bucket_cap_mb']:g}: {count} bucket{'s' * (count != 1)}, {run['bytes'] / 2**20:.0f} MiB of gradients",
                 pad=40)
axes[0].set_xlabel("")
plt.show()

# %%
small, one = drawn
total = {run["bucket_cap_mb"]: sum(run["medians"][name] for name in ("forward", "backward", "wait", "update")) for run in drawn}
rows = [{"bucket_cap_mb": f"{run['bucket_cap_mb']:g}", **{f"{name}, ms": f"{run['medians'][name]:.1f}" for name in
         ("forward", "backward", "wait", "update")}, "together, ms": f"{total[run['bucket_cap_mb']]:.1f}"} for run in drawn]
lesson.table(rows)
ratio = total[one["bucket_cap_mb"]] / total[small["bucket_cap_mb"]]
shorter = "neither" if abs(ratio - 1) < 0.03 else "small buckets" if ratio > 1 else "one bucket"


def hidden(run):
    """The share of the time under way of all all-reduces that lies below the backward of their rank."""
    events = pd.DataFrame(run["events"])
    ends = events[events["event"] == "backward"].set_index("rank")["end"]
    bars = events[events["event"] == "all-reduce"]
    below = (bars["end"].clip(upper=bars["rank"].map(ends)) - bars["start"]).clip(lower=0)
    return below.sum() / (bars["end"] - bars["start"]).sum()


lines = [f"Medians over {ddp_questions.TIMED} steps and all ranks. After its last gradient a rank waits **{small['medians']['wait']:.1f} ms** with small "
         f"buckets, and **{one['medians']['wait']:.1f} ms** with one bucket.",
         f"In the steps drawn, `backward` hides {hidden(small):.0%} of the time that the all-reduces take with small buckets, and {hidden(one):.0%} with one.",
         f"`backward` takes {small['medians']['backward']:.1f} ms with small buckets, {one['medians']['backward']:.1f} ms with one."
         + (" On CPUs overlap is not free: the all-reduce needs the same cores."
            if small["medians"]["backward"] > one["medians"]["backward"] else ""),
         f"A whole step with one bucket takes **{ratio:.2f} times** as long as with small buckets. Shorter here: **{shorter}** (you said: {my_choice})."]
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# **How to read it.** A bar of `all-reduce` begins when this rank sends the bucket, and ends when the mean of all ranks is there: who
# is early waits for the others. Bucket 0 holds the *last* layers. `backward` ends when the last bucket is sent: nothing is left to
# compute. What stands in `wait` is what `backward()` does after that: it waits for the all-reduces still under way, and copies the means back. With one
# bucket that is all of them.
#
# Smaller buckets can be sent earlier, and are more messages. DDP's own choice is 25 MiB a bucket
# ([manual](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)), and 1 MiB for the first, so that it is
# sent soon (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`). The gradients of `main.py`'s LeNet, 62,006 of 4 bytes, fit the first: there nothing overlaps.
# [DDP's default](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html) is 25 MiB.
#
# ## When it is not the same as one process
#
# Equality has conditions. Each bar is a training with DDP, compared with one process on the whole batches. (The same start of the
# ranks also answers the questions of the sections below.)
#
# **Predict.** Which of these break it: unequal shards, `reduction="sum"`, dropout, BatchNorm, Adam?

# %%
my_list = ["dropout"]

# %%
# !torchrun --nproc_per_node={ranks} scripts/lessons/ddp_questions.py --step equality no_sync unused metrics save memory \
#     --steps {steps} --out results/live/06_questions.json

# %%
questions = found("questions")
equality = questions["equality"]
cases = equality["weights"]
fig, ax = plt.subplots(figsize=(14, 7))
for y, off in enumerate(cases.values()):
    off = max(off, 1e-10)  # a logarithm has no 0
    ax.barh(y, off, height=0.6, color=plots.COLOURS[2] if off < 1e-5 else plots.COLOURS[1])
    ax.text(off, y, f"  {off:.0e}", va="center", fontweight="bold")
ax.set(xscale="log", xlabel="largest difference of a weight from one process", xlim=(1e-10, 10))
ax.set_yticks(range(len(cases)), cases)
ax.invert_yaxis()
ax.grid(axis="y", visible=False)
ax.set_title(f"DDP against one process, {steps} updates (green: rounding)" + (", SYNTHETIC DATA" if dataset == "synthetic" else ""))
plt.show()

# %%
sync, summed = equality["sync_batchnorm"], cases["reduction='sum'"]
sizes = " and ".join(map(str, equality["shard_sizes"]))
lines = [
    f"**Unequal shards** ({sizes} images). DDP takes the mean of the ranks' means: an image in a small shard counts for more. Weighted by "
    f"its share of the batch, the loss is right again: {cases['unequal shards, loss weighted']:.0e}.",
    f"**`reduction=\"sum\"`.** One process and DDP both add the losses up, and DDP's gradient comes out {ranks} times too small: "
    f"the weights are {summed:.0e} apart after {steps} updates.",
    f"**Dropout.** One process draws one mask for the whole batch, each rank draws its own. Neither choice of seeds here repeats what one process drew. "
    f"With one seed on all ranks, two ranks' masks agree in {equality['masks_agree, one seed']:.0%} of the places: all drop the same. With a seed "
    f"for each rank they agree in {equality['masks_agree, a seed a rank']:.0%}, by chance. Prefer that: one process, too, drops other places in each image.",
    f"**BatchNorm** takes mean and variance of the rank's own images. The running means of the ranks differ by {equality['running_means']:.1e}. "
    "DDP broadcasts rank 0's before each forward: those of the other ranks are lost.",
    f"**Adam** on equal shards: {cases['Adam, equal shards']:.0e}, while SGD has {cases['equal shards']:.0e}. Nothing is wrong here. Adam divides each "
    "gradient by its usual size, so tiny gradients move their weights as far as large ones. In a tiny gradient, rounding is a large share. "
    "So prove equality with SGD."]
if "error" in sync:
    lines.append(f"**SyncBatchNorm** takes mean and variance over all ranks, on GPUs only. Here it said: `{sync['error']}`")
else:
    lines.append(f"**SyncBatchNorm** (on this machine's GPU) takes mean and variance over all ranks: {sync['weights']:.0e} from one process, "
                 f"and plain BatchNorm {sync['plain']:.0e}.")
Markdown(f"You said: {', '.join(my_list)}.\n" + "\n".join(f"- {line}" for line in lines))

# %% [markdown]
# ## Fewer all-reduces: `no_sync`
#
# *Gradient accumulation*: several small batches, then one update. Backward adds to `.grad`, so an all-reduce is needed only in
# the last one. Inside `no_sync` DDP makes none. Here are two ways to write it:

# %%
difference(ddp_questions.synchronise_last, ddp_questions.misplaced)

# %% [markdown]
# The run above tried these two, and three more: without `no_sync`, with `no_sync` around everything, and a call of `ddp.module(images)`
# where `ddp(images)` should be. The communication hook counted.
#
# **Predict.** Four batches, one bucket. How many all-reduces does each way make?

# %%
my_counts = [4, 1, 1, 0, 1]  # without, all but the last, around backward only, around everything, ddp.module(images)

# %%
names = {"synchronise_each": "no `no_sync`", "synchronise_last": "around forward and backward, all but the last",
         "misplaced": "around backward only", "never": "around everything", "around_ddp": "`ddp.module(images)`"}
lesson.table([{"way": names[way], "all-reduces": row["all_reduces"], "you said": guess, "KiB all-reduced": f"{row['bytes'] / 1024:.0f}",
       "gradient: between ranks": f"{row['between_ranks']:.0e}", "from one process": f"{row['from_one_process']:.0e}"}
      for guess, (way, row) in zip(my_counts, questions["no_sync"].items(), strict=True)])

# %% [markdown]
# - Around backward only: **nothing saved, and no warning**. It is the *forward* that decides whether this backward will synchronise.
# - Around everything, and `ddp.module(images)`: fast, and wrong. The ranks never meet.
#
# ## A parameter without gradient
#
# A bucket is sent when all its gradients are there. A layer that `forward` leaves out never gets one. What does DDP say?

# %%
silent, searching = (questions["unused"][option] for option in ("False", "True"))
print(textwrap.fill(silent["error"].split("You can enable")[0], 110))

# %%
Markdown(f"It said so in step {silent['steps'] + 1}, not in step 1: only the next forward finds that the last backward is not finished. "
         f"With `find_unused_parameters=True` {searching['steps']} steps went well"
         + (f", and then: {searching['error'][:200]}" if searching["error"] else "")
         + ". DDP then looks through the graph in every step, [which costs time](https://docs.pytorch.org/docs/stable/notes/ddp.html). So use it only if "
         "the layer must be left out in some steps. If it is never used, remove it.")

# %% [markdown]
# ## Accuracy over all ranks
#
# The gradients are shared now. The numbers that you print are not: each rank knows the hits in its own shard. Three ways to make one
# number of them. The shards are unequal, as those of a test set may be.

# %%
metrics = questions["metrics"]
shards = " and ".join(f"{rank['hits']} of {rank['images']}" for rank in metrics["ranks"])
lesson.table([{"way": "rank 0's hits / all images", "accuracy": f"{metrics['own_hits_of_all_images'][0]:.4f}"},
      {"way": "mean of the ranks' accuracies", "accuracy": f"{metrics['average_of_averages']:.4f}"},
      {"way": "all hits / all images (sums and counts all-reduced)", "accuracy": f"{metrics['sums']:.4f}"},
      {"way": "one process on the whole set", "accuracy": f"{metrics['one_process']:.4f}"}])
assert metrics["sums"] == metrics["one_process"]
Markdown(f"The ranks had {shards} right. Sums and counts give exactly what one process finds.")

# %% [markdown]
# A published tutorial (recorded elsewhere) printed the first row. Its accuracy on eight GPUs is below that of blind guessing, which has 0.10
# in ten classes:

# %%
recorded = runs.read_run("results/recorded/tutorial-one-gpu-vs-eight/eight_gpus.txt").iloc[-1]
one_gpu = runs.read_run("results/recorded/tutorial-one-gpu-vs-eight/one_gpu.txt")
alike = one_gpu.loc[(one_gpu["loss"] - recorded["loss"]).abs().idxmin()]
Markdown(f"Printed in epoch {recorded['epoch']:.0f}: **{recorded['accuracy']:.2f}**, at loss {recorded['loss']:.2f}. If each rank divided its own hits by all images, "
         f"eight times that is about right: **{8 * recorded['accuracy']:.2f}**. One GPU had {alike['accuracy']:.2f} when its loss was {alike['loss']:.2f}. "
         "It fits. Lesson [07](07_performance.ipynb) makes the mistake itself, and repairs it.")

# %% [markdown]
# ## Saving
#
# All ranks hold the same weights, so one of them writes. Four things to know. Here is what the script does:

# %%
source = inspect.getsource(ddp_questions.save).splitlines()
begin, end = (next(i for i, line in enumerate(source) if text in line) for text in ("if lab.here.rank == 0", "model.load_state_dict(torch"))
display(Markdown("```python\n" + textwrap.dedent("\n".join(source[begin:end + 1])) + "\n```"))

# %%
saving = questions["save"]
rank_1 = saving["file_there"][1]
model = ddp_from_scratch.Lab(None, None, None, data.get_dataset(dataset, verify=False)[1]).model()
weights = torch.load("results/live/06_questions.pt", map_location="cpu", weights_only=True)
loaded = model.load_state_dict(weights)  # no DDP, no ranks: this notebook
with_prefix, without = saving["names"].values()
lines = [
    "**Rank 0 alone writes.** If all ranks wrote to one file, it could come out torn.",
    f"**Save `ddp.module.state_dict()`.** Its names are `{without[0]}`, … DDP's own are `{with_prefix[0]}`, …, and a plain model refuses them: "
    f"`{saving['error'].splitlines()[1].strip()[:75]} …`. For a file that already has the prefix: "
    f"`consume_prefix_in_state_dict_if_present(state, \"module.\")`, and it loads: {saving['after_cutting_the_prefix']}. "
    f"The file of this run, loaded here without DDP: {loaded}.",
    f"**A barrier before others read.** Rank 0 was slow (0.3 s of sleep, for a large model). Did rank 1 see the file? Before the barrier: {rank_1['before']}. "
    f"After it: {rank_1['after']}. Then all ranks loaded the same weights (difference {saving['from_saved']:g}).",
    "**`map_location`.** [Without it](https://docs.pytorch.org/docs/stable/generated/torch.load.html) tensors go back to the device they came from: "
    "a file from GPU 0 to GPU 0, from every rank. So say where: `\"cpu\"`, or the rank's own device.",
]
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# To continue a training later, save the optimizer's state, the scheduler's, the random state, the epoch and the step, too. And write to another
# name first, then rename: a job that is killed while it writes leaves no half file. `main.py --checkpoint FILE` does all of this
# ([lesson 11](11_fault_tolerance.ipynb)).
#
# ## Memory
#
# What does each rank hold for training? The model here, with Adam. DDP's buckets are a second copy of the gradients, unless
# `gradient_as_bucket_view=True`: then each gradient *is* a piece of a bucket.

# %%
memory = questions["memory"]
rows = {f"rank {number}\n{'as view' if case['gradient_as_bucket_view'] else 'default'}": rank
        for case in memory for number, rank in enumerate(case["ranks"][:2])}
table = pd.DataFrame(rows).T / 1024
ax = table.plot.barh(stacked=True, color=[plots.COLOURS[i] for i in (0, 5, 2, 1)], figsize=(13, 6), width=0.7)
ax.invert_yaxis()
ax.grid(axis="y", visible=False)
ax.bar_label(ax.containers[-1], [f" {kib:,.0f} KiB" for kib in table.sum(axis=1)], fontweight="bold")
ax.margins(x=0.15)
ax.set_xlabel("KiB")
ax.set_title("What each rank holds (activations aside)", pad=46)
ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.02, 1), frameon=False, columnspacing=1.2)
plt.show()
default, view = (sum(case["ranks"][0].values()) / case["values"] for case in memory)
Markdown(f"Measured on this model of {memory[0]['values']:,} values: {default:.1f} bytes a value, and {view:.1f} with views. A model with 10⁹ values "
         f"would need **{default:.0f} GB on every rank**, or {view:.0f} GB, before any activation. More ranks do not make it less: "
         "DDP shares the images, not the model. (Sharding the model is what FSDP does.)")

# %% [markdown]
# ## Exercises
#
# The first three run on ranks. Replace each `raise NotImplementedError`, run the cell (it writes the file), and the next one, which runs them on three ranks.
#
# 1. `average_gradients(model)` is called after backward, on each rank. Give every rank the mean gradient.
# 2. `accuracy(hits, images)` gets two plain numbers: this rank's. Return the accuracy over all ranks.
# 3. `train(ddp, batches, optimizer, every)`: one pass over `batches`, pairs `(inputs, labels)`, with an update after each `every` batches, as one process
#    would make with one batch of that size. The loss is `cross_entropy`. `ddp` gets one batch at a time. As few all-reduces as can be.
#
# Where one rank waits in vain for another, the check says which, after 5 seconds.

# %%
# %%writefile results/live/06_answer.py
from contextlib import nullcontext  # noqa: F401 - these are for your answers

import torch  # noqa: F401
import torch.distributed as dist  # noqa: F401
from torch.nn.functional import cross_entropy  # noqa: F401


def average_gradients(model):
    raise NotImplementedError


def accuracy(hits, images):
    raise NotImplementedError


def train(ddp, batches, optimizer, every):
    raise NotImplementedError


# %%
for number, exercise in enumerate([check.average, check.overall, check.accumulate], start=1):
    print(number, end=". ")
    exercise("results/live/06_answer.py")
# check.average.hint()  # overall, accumulate: the same
# check.average.solution()

# %% [markdown]
# 4. You trained one process with SGD, batch size `batch_size`, learning rate `lr`. Now you start `ranks` of them with the same `--batch-size`. How many
#    images does an update see, and which learning rate would you try first?

# %%
def settings(ranks, batch_size, lr):
    """(images an update sees, learning rate)"""
    raise NotImplementedError


check.scaled(settings)
# check.scaled.hint()
# check.scaled.solution()

# %% [markdown]
# ## Where next
#
# - [07 · Performance](07_performance.ipynb): what DDP gains with 2, 4 and 8 ranks, and what limits it.
# - `main.py` is this lesson as a program. Find in it: the constructor of DDP, the sums that are all-reduced, and the check that the ranks have
#   not drifted apart (`weight_norm`). It leaves out DDP's broadcast of BatchNorm's running means: training reads none, and `evaluate` sends rank 0's.
# - Run this notebook again with `ranks = 3`, or more. Which numbers change?
