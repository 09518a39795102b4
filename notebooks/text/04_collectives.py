# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         largest: 2M
#         rounds: 3
#         patience: 2
#       seconds: 50
#     seconds: 60
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Collectives
#
# Ranks share no memory. They talk by a few operations that all of them call together: **collectives**. What does each one
# move, and how long does it take?

# %%
import glob, sys
sys.path.insert(0, next(found[:-17] for place in (".", "..", "*") for found in glob.glob(f"{place}/course/lesson.py")))
from course import lesson; lesson.begin()

# %%
import inspect
import json
import os
import re
import shlex
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.ticker import FuncFormatter

import models
from course import plots, predict
from course.lesson import code
from scripts.lessons import collectives_shown, hang_on_purpose
from course.checks import lesson_04 as check

# %% tags=["parameters"]
ranks = 4  # of most runs below; 2 to 7
largest = "16M"  # bytes, the largest message that is timed
rounds = 5  # times that each message is timed
patience = 3  # seconds that the ranks wait which hang on purpose

# %% [markdown]
# One script calls every collective once, on a few numbers, and writes down what each rank held **before and after**.
# We run it now, with four ranks. Below, every cell of every picture is a value of this run.

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank
Path("results/live").mkdir(parents=True, exist_ok=True)
# !torchrun --nproc_per_node={ranks} scripts/lessons/collectives_shown.py --out results/live/04_collectives.json

# %%
demo = json.loads(Path("results/live/04_collectives.json").read_text())


def show(name, labels=None):
    """What the script did, and what each rank held."""
    code(collectives_shown.COLLECTIVES[name])
    display(plots.picture(plots.collectives.before_after(demo[name]["states"], name, labels)))


unsupported = [name for name, found in demo.items() if isinstance(found, dict) and "unsupported" in found]
Markdown(f"Here gloo (torch {demo['torch']}) has " + ("all of them." if not unsupported else
         f"all of them but {', '.join(unsupported)}. These are built from others: {demo[unsupported[0]]['unsupported']}"))

# %% [markdown]
# **How to read the pictures.** A row is a rank, a cell is a number. Rank 0 starts with 1 2 3 4, rank 1 with 10 20 30 40, and
# so on: **the place of a digit tells the rank that it came from**, also in a sum (ones: rank 0, tens: rank 1, hundreds: rank 2 …). The colours say the same. `yield` is where the script
# writes down what the rank holds.
#
# ## From one rank to all: broadcast, scatter

# %%
show("broadcast")

# %% [markdown]
# `broadcast`: all ranks get what rank 0 (`src`) has. DDP's constructor does this with the weights.

# %%
show("scatter")

# %% [markdown]
# `scatter`: rank 0 has a list, one piece for each rank. Each gets its own piece.
#
# ## From all ranks to one: gather, reduce

# %%
show("gather")

# %% [markdown]
# `gather` is scatter backwards. `reduce` **adds up** on the way.
#
# **Predict.** All ranks call `dist.reduce(mine, dst=0)`. What does rank 1 hold afterwards?

# %%
my_rank_1 = [10, 20, 30, 40]

# %%
show("reduce")
after = demo["reduce"]["states"][-1]["cells"]
Markdown(f"Rank 1 holds `{after[1]}` (you said `{my_rank_1}`). Rank 0 holds the sum, `{after[0]}`.")

# %% [markdown]
# Only rank 0 has a result. On the other ranks, gloo used your tensor as scratch paper: you see sums that came only half the way. After a
# reduce, do not read the tensor anywhere but on `dst`.
#
# Besides the sum (`ReduceOp.SUM`) there are `MAX`, `MIN`, `PRODUCT` and others.
#
# ## From all ranks to all

# %%
show("all_gather")

# %%
show("all_reduce")

# %% [markdown]
# `all_` means: every rank gets the result. `all_reduce` is the one of this course: with it DDP adds up the gradients, and divides them by
# the number of ranks.

# %%
show("reduce_scatter")

# %% [markdown]
# `reduce_scatter`: added up like all_reduce, but each rank gets only its own part of the sum.
#
# **Predict.** In `all_to_all` each rank has a list, one piece for each rank. What does rank 1 hold afterwards?

# %%
my_rank_1 = [10, 10, 10, 10]

# %%
show("all_to_all")
Markdown(f"Rank 1 holds `{demo['all_to_all']['states'][-1]['cells'][1]}` (you said `{my_rank_1}`): its piece from each rank. Rows become columns.")

# %% [markdown]
# ## Two ranks: send, recv
#
# These are not collectives. Only the two ranks concerned call them. The others go on.

# %%
show("send_recv")

# %% [markdown]
# Each `send` needs its `recv`. If two ranks both send first and then receive, small messages may pass, and large ones hang:
# `send` may wait until the other side takes the message. `dist.batch_isend_irecv` starts both at once.
#
# ## Nobody goes on before all are here: barrier
#
# No tensor here, only time. Each rank works a little longer than the one before (it sleeps).

# %%
code(collectives_shown.barrier)
states = demo["barrier"]["states"]
events = pd.DataFrame(plots.collectives.intervals(states, {"work": ("start", "arrives"), "wait": ("arrives", "leaves")}))
plots.timeline(events, plt.subplots(figsize=(13, 1.4 + ranks))[1]).set_title("Barrier: who waits how long", pad=34)
plt.show()
arrives, leaves = (dict(zip(range(ranks), state["seconds"], strict=True)) for state in states[1:])
Markdown(f"The last rank arrives after {1000 * max(arrives.values()):.0f} ms, the first one leaves after **{1000 * min(leaves.values()):.0f} ms**. "
         f"Rank 0 has waited for {1000 * (leaves[0] - arrives[0]):.0f} ms.")

# %% [markdown]
# Every collective waits in this way for what it needs from others. The slowest rank sets the time for all.
#
# ## Do not wait yet: asynchronous handles
#
# With `async_op=True` a collective returns at once, with a **handle**. Work that does not need the result can go on.
# `handle.wait()` comes when you need it. Here the last rank comes late.

# %%
show("async_handle", ["before the call", "before wait()", "after wait()"])
states = demo["async_handle"]["states"]
events = pd.DataFrame(plots.collectives.intervals(states, {
    "late": ("start", "before the call"), "own work": ("after the call", "before wait()"), "wait": ("before wait()", "after wait()")}))
plots.timeline(events, plt.subplots(figsize=(13, 1.4 + ranks))[1]).set_title("Call, go on working, wait", pad=34)
plt.show()
_, called, returned, waits, done = (state["seconds"][0] for state in states)
Markdown(f"On rank 0 the call took **{1000 * (returned - called):.1f} ms**, `wait()` **{1000 * (done - waits):.0f} ms**. In between it worked for "
         f"{1000 * (waits - returned):.0f} ms, which it would otherwise have waited longer.")


# %% [markdown]
# Until `wait()` has returned, the tensor belongs to the collective: do not read it, do not write it. In the middle
# picture some ranks may have the sum already, and others not yet. DDP overlaps backward and all-reduce with such
# handles ([06](06_ddp.ipynb)).
#
# ### Exercise 1: which one fits?
#
# - **a**: all ranks must start with rank 0's weights
# - **b**: every rank needs the sum of all ranks' gradients
# - **c**: rank 0 prints the number of right answers of all ranks
# - **d**: rank r updates only the r-th part of the weights; for this it needs that part of the summed gradients
# - **e**: after that, every rank needs all weights again
# - **f**: each rank has some tokens for each of the other ranks, other ones for each
#
# Move no more than is needed. The names are those of the functions above.

# %%
def my_choices():
    raise NotImplementedError
    return {"a": "...", "b": "...", "c": "...", "d": "...", "e": "...", "f": "..."}


# %%
check.choices(my_choices)
# check.choices.hint()
# check.choices.solution()

# %% [markdown]
# ### Exercise 2: all_reduce from two others
#
# It runs on three ranks, each with a tensor of its own. After `my_all_reduce(tensor)` the tensor holds the sum, on every rank. Use `dist.reduce`
# and `dist.broadcast`. The cell writes a file, the next one runs it.

# %%
# %%writefile results/live/04_answer.py
import torch.distributed as dist  # noqa: F401 - for your answer


def my_all_reduce(tensor):
    raise NotImplementedError


# %%
check.reduced("results/live/04_answer.py")
# check.reduced.hint()
# check.reduced.solution()

# %% [markdown]
# ## Ring all-reduce
#
# In exercise 2 everything passes through rank 0. The others wait for its link. The
# **ring** shares the load. Each rank sends only to the next one, and receives only from the one before. The tensor is cut
# into as many chunks as there are ranks, and in each step every rank sends one chunk.
#
# **Predict.** With four ranks: how many times the bytes of its tensor does each rank send?

# %%
my_times = 3.0

# %%
ring = demo["ring"]
display(HTML(plots.collectives.play_ring(ring)))

# %% [markdown]
# Press *play* (or *next*). An arrow is a chunk on its way to the next rank; the arrow that leaves below comes in above. A thick frame is
# what has just arrived. On a page that runs no JavaScript, the same steps as a strip:

# %%
fig, axes = plt.subplots(-(-len(ring["steps"]) // 2), 2, figsize=(7.5 + 1.6 * ranks, (0.9 + 0.55 * ranks) * -(-len(ring["steps"]) // 2)))
for ax in axes.flat:
    ax.axis("off")
for step, ax in enumerate(axes.T.flat):
    if step < len(ring["steps"]):
        ax.axis("on")
        plots.collectives.ring_state(ring, step, ax, fontsize=15)
fig.suptitle("Ring all-reduce, recorded on each rank", x=0.01, ha="left", fontweight="bold")
plots.picture(fig)


# %% [markdown]
# Two phases, n − 1 steps each:
#
# 1. **reduce-scatter**: what comes in is *added*, and sent on in the next step. In the end each rank has one chunk of the
#    whole sum.
# 2. **all-gather**: the whole sums go round and are *copied*.
#
# ### Exercise 3: which chunk, and when?
#
# Steps count from 0 to 2(n − 1) − 1, through both phases, as in the code below. (The pictures count the steps that are done: their step 1 is step 0
# here.) In step 0 rank r sends chunk r. Which chunk does it send in step `step`?

# %%
def my_chunk(rank, step, ranks):
    raise NotImplementedError


# %%
check.chunk(my_chunk)
# check.chunk.hint()
# check.chunk.solution()

# %% [markdown]
# Now the code. `batch_isend_irecv` starts a send and a receive together: if all ranks sent first, they could all wait.

# %%
code(collectives_shown.ring_steps)

# %% [markdown]
# Is it right? The script compares it with `dist.all_reduce`: on the numbers above, and on floats. And it counts the bytes.
# Three ranks with ten values each make a harder case: ten does not divide by three.

# %%
# !torchrun --nproc_per_node=3 scripts/lessons/collectives_shown.py --show ring --values 10 --out results/live/04_ring.json

# %%
three = json.loads(Path("results/live/04_ring.json").read_text())["ring"]
fig, axes = plt.subplots(len(three["steps"]), 1, figsize=(13, 3 * len(three["steps"])))
for step, ax in enumerate(axes):
    plots.collectives.ring_state(three, step, ax)
fig.suptitle(f"Three ranks, chunks of {', '.join(map(str, three['chunks']))} values", x=0.01, ha="left", fontweight="bold")
plots.picture(fig)

# %%
rows = []
for run in (ring, three):
    n = len(run["chunks"])
    sent = [sum(step["bytes"][rank] for step in run["steps"][1:]) for rank in range(n)]
    assert all(run["equal"]) and run["floats"]["ranks_agree"] and sum(sent) == 2 * (n - 1) * run["bytes"]
    rows.append({"ranks": n, "tensor, bytes": run["bytes"], "sent by each rank": ", ".join(map(str, sent)), "mean / tensor": f"{sum(sent) / n / run['bytes']:.3f}",
                 "2(n − 1)/n": f"{2 * (n - 1) / n:.3f}", "equal to all_reduce": "yes" if all(run["equal"]) else "NO",
                 "floats: largest difference": f"{run['floats']['off']:.0e}"})
lesson.table(rows)
Markdown(f"You said {my_times:g} times. It is **2(n − 1)/n = {2 * (ranks - 1) / ranks:g}** for {ranks} ranks, and never more than 2. The floats differ from `all_reduce` "
         "by rounding: they were added in another order. But all ranks have the same bits, since each sum was made once and then copied.")

# %%
fig, ax = plt.subplots(figsize=(12, 6))
many = [2, 4, 8, 16, 32, 64]
for number, (label, times) in enumerate({"reduce + broadcast: rank 0": [n - 1 for n in many],
                                         "ring: every rank": [2 * (n - 1) / n for n in many]}.items()):
    ax.plot(many, times, plots.MARKERS[number] + ":", color=plots.COLOURS[number], markerfacecolor="white")
    ax.annotate(label, (many[-1], times[-1]), (-8, 14), textcoords="offset points", ha="right", fontweight="bold", color=plots.COLOURS[number])
ax.set(xscale="log", yscale="log", xlabel="ranks", ylabel="times the bytes of the tensor", xticks=many, ylim=(0.8, 150))
ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
ax.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
ax.xaxis.set_minor_locator(plt.NullLocator())
ax.set_title("What the busiest rank sends (formula)")
plt.show()

# %% [markdown]
# With more ranks, each rank of the ring sends hardly more. This is why gradients can be averaged over hundreds of ranks
# ([Patarasuk and Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)). The price: 2(n − 1) steps, one after another. For small
# messages that is what counts, as you will see now. (In the simplest broadcast rank 0 sends to each of the others, as drawn here. Real
# ones use trees, which share the load better.)
#
# ## Time against message size
#
# `scripts/measure/message_time.py` times a collective for messages of many sizes: warm-up first, then rounds over all sizes, medians,
# and the slowest rank counts. Where each rank has a GPU of its own it uses NCCL, else gloo.
#
# **Predict.** How long does the all-reduce of 1 KiB take on this machine with four ranks, in microseconds?

# %%
my_microseconds = 100

# %%
# !torchrun --nproc_per_node={ranks} scripts/measure/message_time.py --op all_reduce send_recv --max-bytes {shlex.quote(largest)} --rounds {rounds} \
#     --out results/live/04_time.json

# %%
timed = json.loads(Path("results/live/04_time.json").read_text())
points = pd.DataFrame(timed["ops"]["all_reduce"]["points"])
alpha, beta = (timed["ops"]["all_reduce"][name] for name in ("alpha", "beta"))
where = f"{ranks} ranks, {timed['backend']}, {timed['device_name']}"


def size_name(size, _=None):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} B"


def plain(number, _=None):
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def log_axes(ax, sizes):
    ax.set(xscale="log", yscale="log", xlabel="message (bytes)", xticks=sizes)
    ax.xaxis.set_major_formatter(FuncFormatter(size_name))
    ax.yaxis.set_major_formatter(FuncFormatter(plain))
    ax.xaxis.set_minor_locator(plt.NullLocator())


fig, ax = plt.subplots(figsize=(13, 7.5))
many = np.geomspace(points["bytes"].min(), points["bytes"].max(), 100)
ax.vlines(points["bytes"], 1e6 * points["low"], 1e6 * points["high"], color=plots.COLOURS[0], linewidth=2)
ax.plot(points["bytes"], 1e6 * points["seconds"], "o", color=plots.COLOURS[0], markersize=13)
ax.plot(many, 1e6 * (alpha + beta * many), ":", color=plots.COLOURS[1])
log_axes(ax, points["bytes"][::2])
steep = many[beta * many > alpha / 20]
ax.plot(many, 1e6 * alpha + 0 * many, "--", color=plots.GREY, linewidth=1.5)
ax.plot(steep, 1e6 * beta * steep, "--", color=plots.GREY, linewidth=1.5)
ax.text(many[-1], 1e6 * alpha, "α", ha="right", va="bottom", color=plots.GREY, fontweight="bold")
if len(steep):
    ax.text(steep[0], 1e6 * beta * steep[0], " β · bytes", va="top", color=plots.GREY, fontweight="bold")
ax.set(ylabel="time (µs)")
ax.text(0.03, 0.9, f"α = {plain(1e6 * alpha)} µs,  β = {plain(1e9 * beta)} ns a byte", transform=ax.transAxes, color=plots.COLOURS[1], fontweight="bold")
ax.set_title(f"All-reduce: measured (dots, lines: slowest and fastest round)\nand fitted (dotted). {where}")
plt.show()

# %% [markdown]
# **Two regimes.** On the left the time does not depend on the size: that is **latency**, what it takes to bring the ranks
# together. On the right twice the bytes take twice as long: that is **bandwidth**. One line describes both:
#
# $$t(\text{bytes}) = \alpha + \beta\cdot\text{bytes}$$
#
# α is in seconds, β in seconds a byte. The dotted line is this formula (a straight line is bent when both axes are logarithmic). It is fitted to the *relative*
# errors, or the large messages alone would decide.

# %%
first, step = points.iloc[0], timed["ops"]["send_recv"]
misses = (alpha + beta * points["bytes"]) / points["seconds"] - 1
half = size_name(alpha / beta) if beta else "any size"
display(Markdown(f"{size_name(first['bytes'])} on {ranks} ranks took **{plain(1e6 * first['seconds'])} µs** (you said {my_microseconds:,}). Below α / β = **{half}** latency is more "
                 f"than half of the time. The fit misses the medians by {misses.abs().median():.0%} (median), at most by {misses.abs().max():.0%}. "
                 f"{ranks} ranks share {timed['cores']} cores here: where ranks are more than cores, a message has to wait for a core, too."))
lesson.table([{"all-reduce": "measured and fitted", "α, µs": plain(1e6 * alpha), "β, ns a byte": plain(1e9 * beta)},
       {"all-reduce": "predicted, as a ring of `send_recv`", "α, µs": plain(1e6 * predict.fit.ring_seconds(0, ranks, step["alpha"], 0)),
        "β, ns a byte": plain(1e9 * predict.fit.ring_seconds(1, ranks, 0, step["beta"]))}])

# %% [markdown]
# The second row is a test of the model. We also timed one step of a ring (`send_recv`: each rank sends to the next and receives
# from the one before). The ring makes 2(n − 1) such steps with chunks of bytes/n, so `predict.fit.ring_seconds` can predict the all-reduce. Is the
# prediction near? It leaves out the additions, and all that disturbs ranks which share cores.
#
# ## algbw and busbw
#
# Two bandwidths, both in GB/s ([NVIDIA nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)):
#
# - **algbw** = bytes / time. How fast is *my message* done?
# - **busbw** = algbw × 2(n − 1)/n. How fast do *the links* work? It can be compared with the speed of a link, and between numbers of ranks.

# %%
lesson.table([{"collective": name, **{f"{n} ranks": f"{factor(n):.3f}" for n in (2, 4, 8, 64)}} for name, factor in predict.fit.BUS_FACTORS.items()])
largest_point = points.iloc[-1]
Markdown(f"The table holds busbw / algbw. Our largest message, {size_name(largest_point['bytes'])} on {ranks} ranks: algbw **{plain(largest_point['algbw'] / 1e9)} GB/s**, "
         f"busbw **{plain(largest_point['busbw'] / 1e9)} GB/s**.")


# %% [markdown]
# ### Exercise 4: both bandwidths of an all-reduce
#
# In GB/s (1 GB is 10⁹ bytes).

# %%
def my_bandwidths(bytes, seconds, ranks):
    """(algbw, busbw)"""
    raise NotImplementedError


# %%
check.bandwidths(my_bandwidths)
# check.bandwidths.hint()
# check.bandwidths.solution()

# %% [markdown]
# ## Faster links
#
# Beside our own curve, the busbw that others have published. They are **not measured here**: hollow markers, dashed.
# The source is [stas00/ml-engineering](https://github.com/stas00/ml-engineering/tree/29c6b7087c66ce78a0333109e7bfa88b9871a26b/network#inter-node-speed-depends-on-intra-node-speed)
# (torch 2.9.1, NCCL 2.27.7): eight [H200](https://github.com/stas00/ml-engineering/blob/c53741b8b7dcc17b152757f104398c6dd6f231b3/network/benchmarks/results/all-reduce-8xH200.md)
# in one node, eight B200 in one node (NVLink), and four such nodes (EFA, a network of 8 × 50 GB/s from each node).

# %%
published_sizes = [256 * 2**10, 2**20, 4 * 2**20, 32 * 2**20, 256 * 2**20, 2**30, 16 * 2**30]
published = {  # name: (ranks, busbw in GB/s)
    "8 × B200, one node": (8, [9.54, 36.06, 76.48, 325.97, 646.11, 723.34, 845.67]),
    "8 × H200, one node": (8, [11.74, 39.93, 107.16, 275.84, 436.15, 463.58, 482.26]),
    "32 × B200, four nodes": (32, [1.33, 5.37, 18.90, 91.19, 229.09, 361.99, 381.80]),
}
ring_only = 367.61  # GB/s: the same 8 × H200 at 16 GiB with NCCL_NVLS_ENABLE=0, from the same source, section SHARP

fig, ax = plt.subplots(figsize=(14, 8.5))
ax.plot(points["bytes"], points["busbw"] / 1e9, "o-", color=plots.COLOURS[0])
ends = [(f"here, {ranks} ranks", points["bytes"].iloc[-1], points["busbw"].iloc[-1] / 1e9, 0)]
for number, (name, (_, busbw)) in enumerate(published.items(), start=1):
    ax.plot(published_sizes, busbw, plots.MARKERS[number] + "--", color=plots.COLOURS[number], markerfacecolor="white")
    ends.append((name, published_sizes[-1], busbw[-1], 24 - 12 * number))
for number, (name, x, y, up) in enumerate(ends):
    ax.annotate(name, (x, y), (12, up), textcoords="offset points", va="center", color=plots.COLOURS[number], fontweight="bold")
log_axes(ax, [2**10, 2**15, 2**20, 2**25, 2**30])
ax.text(0.98, 0.05, "dashed, hollow: published, not measured here\nsolid, filled: measured here", ha="right", transform=ax.transAxes, color=plots.GREY, fontweight="bold")
ax.set(ylabel="busbw (GB/s)")
ax.set_title(f"Bus bandwidth of all-reduce. Here: {where}")
plt.show()

# %%
rows, lenet = [], sum(parameter.nbytes for parameter in models.ConvNet().parameters())
fits = {f"here, {ranks} ranks": (alpha, beta)}
for name, (n, busbw) in published.items():
    seconds = [size * predict.fit.BUS_FACTORS["all_reduce"](n) / (1e9 * speed) for size, speed in zip(published_sizes, busbw, strict=True)]
    fits[f"{name} (published)"] = predict.fit.fit(published_sizes, seconds)
for name, (latency, per_byte) in fits.items():
    times = {f"{label}, ms": plain(1e3 * (latency + per_byte * size)) for label, size in
             ((f"LeNet ({lenet / 1e3:.0f} kB)", lenet), ("10⁸ values (0.4 GB)", 4e8), ("10⁹ values (4 GB)", 4e9))}
    rows.append({"": name, "α, µs": plain(1e6 * latency), "1/β, GB/s": plain(1e-9 / per_byte) if per_byte else "", **times})
lesson.table(rows)
(_, one_node), (_, h200), (_, four_nodes) = published.values()
ratio = {size_name(size): a / b for size, a, b in zip(published_sizes, one_node, four_nodes, strict=True)}
lines = ["The same `fit` for all. The last three columns are what it predicts for one all-reduce of all gradients, in float32.",
         f"Published, from one node to four: busbw falls by **{ratio['16 GiB']:.1f}×** at 16 GiB, and by **{ratio['1 MiB']:.1f}×** at 1 MiB. Small messages lose more: α "
         f"grows from {plain(1e6 * fits['8 × B200, one node (published)'][0])} to {plain(1e6 * fits['32 × B200, four nodes (published)'][0])} µs.",
         f"The eight H200 come above the speed of their links (450 GB/s, same source): {h200[-1]:.0f} GB/s. NCCL lets the switch add up (NVLS), so fewer bytes cross the links "
         f"than the formula of busbw assumes. With the ring alone it is {ring_only:.0f} GB/s. **busbw counts as if the ranks did all the adding.**"]
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# So send few, large messages: that is what DDP's buckets are for.
#
# ## A hang, on purpose
#
# A collective works only if **all ranks call the same one, in the same order**. Here the last rank calls another:

# %%
code(hang_on_purpose.different, hang_on_purpose.one_stays_away)

# %% [markdown]
# **Predict.** Three ranks run `different`. Which of them notice that something is wrong, and when?

# %%
my_ranks = [2]

# %%
# !torchrun --nproc_per_node=3 scripts/lessons/hang_on_purpose.py --timeout {patience} --out results/live/04_hang.json

# %%
seen = json.loads(Path("results/live/04_hang.json").read_text())
for number, rank in enumerate(seen["stack"]):
    print(f"rank {number} after {rank['end']:.1f} s: {rank['error'].splitlines()[0]}")
print(f"\nyou said: {my_ranks}; it was {[number for number, rank in enumerate(seen['stack']) if rank['error']]}")

# %% [markdown]
# All of them notice, but only when the time is up. Until then they wait and say nothing, and the message tells neither *for whom* nor *in which
# collective*. (The lines about `monitoredBarrier` come from a second try of the same script; see number 2 below.) The time is the
# process group's `timeout`: here a few seconds, by default
# [30 minutes with gloo and 10 with NCCL](https://docs.pytorch.org/docs/stable/distributed.html). Set it: `main.py` has `--timeout`.
#
# Three ways to find out who waits where.
#
# **1. The stack of every rank.** `faulthandler.dump_traceback_later(seconds)` prints where Python is, if it is still running then. For each
# rank we take the line of `hang_on_purpose.py`, and the function that it waits in:

# %%
bars = []
for number, rank in enumerate(seen["stack"]):
    inside = rank["stack"][1].split(" in ")[-1]
    line = next(line for line in rank["stack"] if "scripts/lessons/hang_on_purpose.py" in line).strip()
    print(f"rank {number} waits in {inside}:  {line}")
    bars.append({"rank": number, "event": f"waits in {inside}", "text": "line" + line.split("line")[1], "start": 1000 * rank["start"], "end": 1000 * rank["end"]})
plots.timeline(pd.DataFrame(bars), plt.subplots(figsize=(13, 4))[1]).set_title("Who waited where, until the timeout", pad=34)
plt.show()

# %% [markdown]
# One rank stands at another line than the rest: that is the mistake. On a job that hangs already, `py-spy dump --pid …` shows the same
# from outside.
#
# **2. A barrier that counts.** `dist.monitored_barrier` (gloo only) waits like a barrier, and then **names** who did not come. Put it
# before the place that you suspect. In `one_stays_away` rank 1 skips the collective, as in `if rank == 0: dist.all_reduce(…)`:

# %%
for number, rank in enumerate(seen["barrier"]):
    print(f"rank {number} after {rank['end']:.1f} s: {(rank['error'] or 'no error: it went on').splitlines()[0]}")
missing = re.search(r"Ranks? ([\d, ]+) failed", seen["barrier"][0]["error"])[1]
Markdown(f"Read **rank 0's** message: rank **{missing}** is missing. The others only know that something failed.")

# %% [markdown]
# **3. Compare the calls.** With the environment variable `TORCH_DISTRIBUTED_DEBUG=DETAIL` the ranks tell each other, before each collective, which one they
# are about to call. The same `different` as above:

# %%
rank = seen["detail"][0]
print(f"rank 0 after {rank['end']:.2f} s:")
print(textwrap.fill(re.sub(r"TensorOptions\(.*?\)\)\)", "…", rank["error"]), 110))

# %% [markdown]
# It names both ranks and both collectives, at once. It costs an extra message for each collective, so use it to search, not to train.
#
# With NCCL a stack often shows a later place: the call only queues the work, and returns. There PyTorch's *flight recorder* keeps the last
# collectives of each rank ([tutorial](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html)).
#
# ## What to remember
#
# - All ranks call the same collectives in the same order, or they hang until the timeout.
# - `all_reduce` = `reduce_scatter` + `all_gather`. In a ring each rank sends 2(n − 1)/n times the tensor.
# - Time = α + β · bytes. Small messages pay α, so send few and large ones.
# - busbw = algbw × 2(n − 1)/n compares with the speed of a link; algbw tells how long you wait.
#
# ## Where next
#
# - [05 · Who sees which image](05_distributed_sampler.ipynb), and [06 · DistributedDataParallel](06_ddp.ipynb), where all-reduce trains a model.
# - Run this notebook again with `ranks = 2`, and with 3. How do the pictures change, and how do α, β, algbw and busbw?
# - On a machine with GPUs: `torchrun --nproc_per_node=8 scripts/measure/message_time.py --max-bytes 1G --out nccl.json`.
