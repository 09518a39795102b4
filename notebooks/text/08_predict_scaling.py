# ---
# jupyter:
#   course:
#     minutes: 75
#     quick:
#       parameters:
#         largest: 1M
#         rounds: 1
#         samples: 1280
#         seeds: '0'
#         timed_sizes: 16 64
#       seconds: 25
#     seconds: 120
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · Predict
#
# **The question.** Lesson [07](07_performance.ipynb) measured how fast several ranks are. Can we know it *before* we
# run them? And how fast would 1,024 GPUs be, which we do not have?
#
# **You will be able to**
#
# - predict the time of a message from a few that were measured: what of it is latency, what is bandwidth;
# - read off the most that a machine can give to several processes, and how this depends on the batch;
# - predict a step and an epoch of several ranks, and say how far the prediction was off;
# - say when DDP is slower than one process, and which link a larger job needs;
# - tell an upper bound from a prediction.
#
# **You need** [04 · Collectives](04_collectives.ipynb), [06 · DDP](06_ddp.ipynb) and
# [07 · Performance](07_performance.ipynb).
#
# **Time.** About 75 minutes for you, 2 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from trainer import models
from course import runs
from course.predict import fit
from lessons.l08_predict_scaling import check, show
from lessons.l08_predict_scaling.scaling import ddp_buckets

# %% tags=["parameters"]
ranks = 2  # each should have a core of its own, or a GPU
largest = "4M"  # bytes of the largest message
rounds = 7  # times that everything is timed, in turns
timed_sizes = "4 16 32 128"  # batch sizes of each rank
batch_size = 64  # the one that we predict: it is not among those that are timed
seeds = "0 1 2"  # a run of main.py for each
samples, epochs = 6400, 2  # of main.py; the first epoch warms up

# %% [markdown]
# One thread a rank: a rank is one core. All that we measure goes to a new folder, so that we read no old result. Close
# other programs now: they would be in every number below.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"
folder = f"results/live/08/{time.time():.0f}"


def measured(name):
    return json.loads(Path(folder, f"{name}.json").read_text())


# %% [markdown]
# ## 1. What does a message cost?
#
# Several ranks compute as one rank does, and they talk. We begin with the talking: `scripts/measure/message_time.py`
# times an all-reduce for messages of many sizes.
#
# **Predict.** How long does an all-reduce of 1 KiB take between two ranks on this machine?

# %%
my_microseconds = None  # µs

# %%
# !torchrun --nproc_per_node={ranks} scripts/measure/message_time.py \
#     --max-bytes {largest} --rounds {2 * rounds} --out {folder}/messages.json

# %%
messages = measured("messages")["ops"]["all_reduce"]
points = pd.DataFrame(messages["points"])

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_microseconds, 1e6 * points["seconds"][0], "µs")


# %% [markdown]
# The simplest model of such times is a line:
#
# $$t(\text{bytes}) = \alpha + \beta\cdot\text{bytes}$$
#
# **α** (alpha, seconds) is the **latency**: the time of a message, however short it is. **β** (beta, seconds a byte) is
# 1 / **bandwidth**. Ten messages pay α ten times. So send few, large messages: DDP makes buckets for this reason.
#
# ### Exercise 1: predict a message
#
# `points` is a list of measured messages, (bytes, seconds), from the shortest to the longest. Return the seconds of a
# message of `bytes`: a size between them, or beyond them.

# %%
def my_message(bytes, points):
    raise NotImplementedError


# %%
check.message(my_message)
# check.message.hint()
# check.message.solution()

# %% [markdown]
# In the check the points lie on a line. Here they lie beside it. Your function gets every other point, and predicts the
# rest. (As long as it is not right, ours does, and the picture says so.) A line that is more than 30 % off at a blue
# point is **refused** below. (A grey point tests nothing. If one lies far from the line, the line is no better there.)

# %%
message_seconds, whose = check.message.or_ours(my_message)
pairs = list(zip(points["bytes"], points["seconds"], strict=True))
size, worst = show.worst_error(message_seconds, points, pairs[::2])
refused = abs(worst) > 0.3

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ax = plt.subplots(figsize=(13, 7))[1]
show.time_by_size(points, message_seconds, pairs[::2], f"{whose} line: α + β · bytes", ax,
                  f"All-reduce between {ranks} ranks")
lesson.figure("The dotted line was drawn through the grey points alone; the blue ones test it. "
              "Short messages all cost about α. (Both axes are logarithmic, which bends the "
              "line.)")
lesson.verdict([
    f"The worst error of {whose} line is **{worst:+.0%}**, for {fit.size_name(size)}."
    + (" This line is **refused**: what follows uses the measured times beside it."
       if refused else ""),
    "A line through all points, with relative errors as small as can be: "
    + fit.line(messages["points"], messages["alpha"], messages["beta"])])

# %% [markdown]
# A function that goes through the two ends trusts two measurements. Least squares trusts the largest messages most,
# since their errors have the most microseconds. And beyond some size no line holds: a message that does not fit into
# the processor's cache costs more for each byte.
#
# ### Exercise 2: a collective that times itself
#
# Your function runs on three ranks. `call()` is a collective. Its first call is slow. Later calls take a different time
# on each rank and in each round, and now and then a call is disturbed. Return **one** number, the same on every rank:
# the seconds that a call takes until *all* ranks have their result. Decide what to do with the first call, with ranks
# that come late, and with a disturbed round, which must not move the result.

# %%
# %%writefile results/live/08_timing.py
import statistics
import time

import torch
import torch.distributed as dist


def my_timing(call, rounds):
    raise NotImplementedError


# %%
check.timing("results/live/08_timing.py")
# check.timing.hint()
# check.timing.solution()

# %% [markdown]
# ### Other links
#
# Two bandwidths are in use, both in GB/s
# ([nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)). **algbw** (algorithm bandwidth)
# is the bytes of the message ÷ the seconds: how soon is *my message* done? **busbw** (bus bandwidth) is the bytes that
# each rank *sends* ÷ the seconds: how busy are *the links*? In lesson [04](04_collectives.ipynb) you have counted what
# a rank sends in a ring of n: 2 (n − 1) / n times its tensor. So for an all-reduce busbw = algbw · 2 (n − 1) / n. It
# can be compared with the speed of a link, and between numbers of ranks.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
published = pd.read_csv("results/recorded/published/all_reduce.csv")
ax = plt.subplots(figsize=(14, 8))[1]
show.bus_bandwidth(points, published, f"here, {ranks} ranks", ax)
lesson.figure("Every curve rises while latency (α) dominates, and is flat where "
              "bandwidth (β) does. One node and four nodes differ most at the left: on "
              "the way to other nodes α grows more than β.")

# %% [markdown]
# Source of the dashed curves:
# [stas00/ml-engineering](https://github.com/stas00/ml-engineering/tree/29c6b7087c66ce78a0333109e7bfa88b9871a26b/network#inter-node-speed-depends-on-intra-node-speed)
# (NCCL 2.27, 2025). The curve of the H200 ends above the 450 GB/s of its links. It can, because its *switch* (the box
# that joins the GPUs) does the adding: fewer bytes cross a link than busbw assumes.
#
# ## 2. What can the machine give?
#
# Lesson [07](07_performance.ipynb) measured the **ceiling**: the images a second of processes that never talk, added
# up, divided by those of one process alone. A ceiling of 1.7 on two ranks means that the machine loses 0.3 by sharing
# memory, caches and power. No better network would bring this loss back. In lesson 07 each process had 64 images a
# step. Section 5 shows the ceiling for several batches.
#
# **Predict.** Is the ceiling with the smallest of these batches higher or lower than with the largest?

# %%
my_ceilings = None  # "higher", "lower" or "no significant difference"

# %% [markdown]
# ## 3. A first model, and what it forgets
#
# A step of several ranks = a step of one rank + an all-reduce of the gradients. LeNet's gradients fit into one of DDP's
# buckets, so nothing is sent while `backward` still runs, and the two times add up. The time of one rank's step with a
# batch of n images is again a line: `fixed + per_image * n`.
#
# **Predict.** An epoch takes one rank some time. What part of that time do two ranks need, with the same batch of 64
# each?
#
# A batch may be so small that two ranks do *fewer* images a second than one. What is the smallest of the timed batch
# sizes from which on two ranks are faster?

# %%
my_part = None  # 0.5 is half of the time
my_smallest = None  # images of each rank: 4, 16, 32 or 128


# %% [markdown]
# ### Exercise 3: predict the step, and the whole
#
# An epoch has `samples` images, for all ranks together. The sampler gives each of `ranks` ranks equally many, rounded
# up. `batch` is the batch of each rank; its last step of an epoch may have fewer images. The all-reduce takes `message`
# seconds. Return two times, in seconds: of a step with a whole batch, and of an epoch.

# %%
def my_prediction(samples, batch, ranks, fixed, per_image, message):
    raise NotImplementedError


# %%
check.prediction(my_prediction)
# check.prediction.hint()
# check.prediction.solution()

# %% [markdown]
# One command now times steps of LeNet in five ways, in turns, so that a disturbance meets all of them.
#
# - `alone`: rank 0 trains, the others wait;
# - `side_by_side`: each rank trains, nobody talks;
# - `by_hand`: the same, but after each `backward` all ranks all-reduce as many bytes as there are gradients;
# - `silent`: DDP, whose all-reduce is replaced by a function that sends nothing (a *communication hook*:
#   [14](14_make_it_faster.ipynb));
# - `ddp`: DDP as `main.py` has it. **This is what we want to predict, and no prediction uses it.**
#
# Its output goes to a file, so that you see the prediction first.

# %%
# !torchrun --nproc_per_node={ranks} lessons/l08_predict_scaling/step_time.py \
#     --rounds {rounds} --batch-sizes {timed_sizes} \
#     --out {folder}/steps.json > {folder}/steps.txt

# %%
table = show.parts(measured("steps")["models"]["lenet"]["points"])
alone = table.groupby("batch_size")["a step alone"].median()
fixed, per_image = fit.fit(alone.index, alone)
gradient_bytes = sum(4 * p.numel() for p in models.ConvNet().parameters())
message = message_seconds(gradient_bytes, pairs)
if refused:  # the line: go from one measured size to the next
    message = np.interp(gradient_bytes, points["bytes"], points["seconds"])
predict, whose_model = check.prediction.or_ours(my_prediction)
model = f"{whose_model} model"
first, epoch_seconds = predict(
    samples, batch_size, ranks, fixed, per_image, message)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{
    "fixed, ms": f"{1e3 * fixed:.2f}", "per image, µs": f"{1e6 * per_image:.0f}",
    "bytes of gradients": f"{gradient_bytes:,}",
    f"message, by {'measured sizes' if refused else f'{whose} line'}, ms": f"{1e3 * message:.2f}",
    f"a step of {ranks} ranks, ms": f"{1e3 * first:.2f}", "an epoch, s": f"{epoch_seconds:.3f}",
    "predicted by": f"{whose_model} function"}])

# %% [markdown]
# The three numbers were measured apart: a rank had the machine for itself, and all-reduces followed each other with
# nothing in between. Training is different. The differences between the five ways show what the model forgets:
#
# | part | measured as |
# |---|---|
# | a step alone | `alone` |
# | slower together | `by_hand` − waiting − all-reduce − `alone` |
# | waiting | in `by_hand`: from a rank's own arrival at the all-reduce until the last rank arrives |
# | all-reduce | in `by_hand`: from the arrival of the last rank until the result is there |
# | DDP itself | `silent` less `side_by_side`: its hooks, and its copies into buckets |

# %% jupyter={"source_hidden": true} tags=["hide-input"]
parts = show.between(table, batch_size)
lesson.table(show.parts_table(table))
lesson.verdict(f"For batch {batch_size} the sum of the parts predicts a step of "
               f"**{1e3 * parts.sum():.2f} ms**, {model} {1e3 * first:.2f} ms.")

# %% [markdown]
# A row holds five parts, their sum, and the time of a DDP step, all as medians of the rounds. The last column adds up
# and compares within each round instead, and gives the lowest and the highest error. **A part may come out below 0**:
# it is the difference of two measurements, and the noise may be larger than the part. We do not write 0 instead: that
# would hide the noise, and make every sum too large.
#
# ## 4. Does it hold for main.py?
#
# A model that explains the measurements that it was made from proves little. So we predict something new: batch 64 was
# not timed (its parts lie on the lines between 32 and 128), and `main.py` is a different program. Both predictions
# stand above. Now `main.py` runs, with one rank and with two in turns, once for each seed.

# %%
options = f"--batch-size {batch_size} --epochs {epochs} --samples {samples}"
options += " --test-samples 100"
# !for seed in {seeds}; do \
#     python main.py {options} --seed $$seed \
#         --log-file {folder}/main/seed-$$seed-1.jsonl && \
#     torchrun --nproc_per_node={ranks} main.py {options} --seed $$seed \
#         --log-file {folder}/main/seed-$$seed-{ranks}.jsonl || exit; done

# %% jupyter={"source_hidden": true} tags=["hide-input"]
logs = runs.read_runs(f"{folder}/main")
assert set(logs["status"]) == {"completed"}
later = logs[logs["epoch"] > 0]
steps = later["seconds"] * batch_size * later["world_size"] / samples  # seconds of one
ones, many = steps[later["world_size"] == 1], steps[later["world_size"] == ranks]
lesson.predicted(my_part, many.median() / ones.median() / ranks, "of one rank's time")
ax = plt.subplots(figsize=(13, 7))[1]
show.staircase(1e3 * parts, 1e3 * first, 1e3 * many, model, ax,
               f"A step of {ranks} ranks, batch {batch_size} each")
lesson.figure("The blue parts add up to one prediction, the model gives the other; both are "
              "dotted. The green bar is what main.py took. The gap between them is what the "
              "predictions miss.")
one_step = fixed + per_image * batch_size
lesson.table(show.errors_table(many, ones, first, parts.sum(), one_step, model))
took = later.loc[later["world_size"] == ranks, "seconds"]
lesson.verdict(f"The whole epoch, predicted by {model}: **{epoch_seconds:.2f} s**. "
               f"`main.py` took {took.min():.2f} to {took.max():.2f} s.")

# %% [markdown]
# Each error is given as the lowest and the highest of all runs. *One rank alone* talks to nobody. Its error has two
# causes: the line of section 3 misses something, or the machine ran faster or slower than when the steps were timed.
# The last column divides by one rank's step in the same minutes, so the second cause falls out.
#
# A model says what *should* happen. Where it misses, it says what to measure next. `main.py` alone would have told us
# *how long* a step takes, and not *why*.
#
# ## 5. When is DDP slower than one process?
#
# With a small batch there is little to compute between two all-reduces. You have predicted from which batch size on two
# ranks are faster. The rounds of section 3 answer it.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
speedups = show.speedups(table, ranks)
ceiling = show.speedups(table, ranks, "side_by_side")
first_model, of_parts = {}, {}
for n in range(alone.index.min(), alone.index.max() + 1):
    one, several = (predict(samples, n, size, fixed, per_image, message)[0] for size in (1, ranks))
    first_model[n] = ranks * one / several
    at = show.between(table, n)
    of_parts[n] = ranks * at["a step alone"] / at.sum()
off = show.worst_speedup(first_model, speedups)
curve = {f"{model},\noff by up to {off:+.0%}": first_model, "sum of the parts": of_parts}
lesson.predicted(my_smallest, show.smallest(speedups))
lesson.predicted(my_ceilings, show.smaller_batch(table))
ax = plt.subplots(figsize=(14, 8))[1]
show.by_batch(speedups, curve, ceiling, ranks, ax, f"LeNet: {ranks} ranks against one process")
lesson.figure("Below the black line DDP trains fewer images a second than one process; the upright "
              "line shows whether the difference is significant. "
              "From the dashed line (nothing lost) down to the grey line the machine takes its"
              " share; from the grey line down to the dots DDP pays for talking.")
lesson.verdict(show.pays(speedups))


# %% [markdown]
# The rule of lesson [01](01_measure.ipynb) decides: DDP is faster or slower only where the whole upright line, the
# 95 % interval of the ratio, lies on one side of 1. A dot whose line crosses 1 is a hint, not a result.
#
# The gradients have as many bytes for a batch of 4 as for one of 128. So their message weighs less, the longer a step
# is. DDP pays for waiting, for messages and for itself.
#
# ### Exercise 4: from which batch size on?
#
# One rank's step takes `fixed + per_image * n` seconds. Each rank has a device of its own and a batch of n. DDP adds
# `all_reduce` seconds to a step, and nothing hides them. Return the smallest whole n with which the ranks do more
# images a second than one rank.

# %%
def my_batch(fixed, per_image, all_reduce, ranks):
    raise NotImplementedError


# %%
check.break_even(my_batch)
# check.break_even.hint()
# check.break_even.solution()

# %% [markdown]
# ## 6. Machines that we do not have
#
# Now we put published figures into the model. **We measured nothing of this section.** For two series of runs every
# figure that the model needs was published ([list and sources](../results/recorded/published/README.md)):
#
# - **ResNet-50 on P100s**, 8 in a node, one network card of 50 Gbit/s a node. 25 million parameters; with 32 images a
#   GPU a step takes 232 ms on 8 GPUs, 120 ms of it `backward` ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677),
#   with Caffe2 and an all-reduce of their own, not with DDP);
# - a **ViT on A100s**, 4 in a node, four cards of 200 Gbit/s a node
#   ([NERSC tutorial, SC25](https://github.com/NERSC/sc25-dl-tutorial)).
#
# A third series has only results: a **language model on H100s**, 8 in a node, with NCCL
# ([The Ultra-Scale Playbook, 2025](https://huggingface.co/spaces/nanotron/ultrascale-playbook)). It shows how much real
# runs may lose.
#
# These models fill several buckets, and a bucket leaves while `backward` goes on: **overlap** ([Li et al.
# 2020](https://arxiv.org/abs/2006.15704), the paper on DDP). Let there be k buckets of c seconds each. (For the 100 MB
# of ResNet-50's gradients DDP's defaults make k = 5: one bucket of 1 MiB and four of up to 25, taken as equally long
# here.) The last bucket is full only when `backward` has ended, so at least its c seconds are left. The others leave
# while the rest of `backward`, (k − 1)/k of it, still runs, and that time can be hidden. If links cost the processor
# nothing, this much is left of the all-reduce:
#
# $$\max\left(c,\; k\,c - \frac{k-1}{k}\,\mathit{backward}\right)$$
#
# With 4 buckets of 10 ms and a `backward` of 40 ms: max(10, 40 − 30) = 10 ms. With a `backward` of 20 ms: 40 − 15 = 25
# ms.
#
# Two figures are in neither series: the latency of a message between nodes, and the share of its nominal bandwidth that
# a network reaches. So we draw a **band**.
#
# - Its upper edge has no latency between nodes, and all of the bandwidth. It is an **upper bound for rings**: only a
#   network that adds in its switches, or unequal buckets, can do better.
# - Its lower edge has half of the bandwidth, and the latency that the busbw of the four B200 nodes above gives at 256
#   KiB, for a ring over all nodes. It is an assumption, and no bound: real networks may be slower.
#
# **Predict.** What efficiency does the model give ResNet-50 on 1,024 of these GPUs at best, in percent of that on 8?
# (How many seconds do the gradients take over a node's link, and how much of that can `backward` hide?)

# %%
my_percent = None  # %

# %% jupyter={"source_hidden": true} tags=["hide-input"]
within, between = show.latencies(
    published, 256 * 2**10, "8 × B200, one node", "32 × B200, four nodes", nodes=4)
series = show.series()
reached = {name: show.efficiency(run) for name, run in series.items()}


# %% [markdown]
# This is the whole model:

# %%
def ring(bytes, n, latency, bandwidth):  # seconds of an all-reduce
    return 2 * (n - 1) * (latency + bytes / n / bandwidth)


def left(k, c, backward):  # seconds of k buckets that backward cannot hide
    return max(c, k * c - (k - 1) / k * backward)


def step(run, gpus, latency, share):  # seconds of a step
    k, local = run["buckets"], run["gpus_per_node"]
    bucket = 4 * run["parameters"] / k  # bytes: float32
    c = ring(bucket, local, within, run["nvlink"])  # in a node, then
    c += ring(bucket, gpus // local, latency, share * run["network"])
    return run["step"] + left(k, c, run["backward"] * run["step"])


# %%
bands = {name: show.band(run, step, between, share=0.5)
         for name, run in series.items() if "network" in run}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_percent, 100 * bands["ResNet-50, P100"][1024][1], "%")
show.to_many(bands, reached, plt.subplots(figsize=(14, 8))[1],
             "Weak scaling to 1,024 GPUs: upper bounds, and what was reached")
lesson.figure("Where there is a dotted line, every later published point of its colour "
              "lies below it: real runs lose more than the model. The language model on "
              "H100s has no line.")
lesson.table([
    {"": name, "GPUs": gpus, "upper bound": f"{high:.0%}", "with a slower network": f"{low:.0%}",
     "published": f"{points[gpus]:.0%}"}
    for name, points in reached.items() if name in bands
    for gpus in list(points)[1:] for low, high in [bands[name][gpus]]])

# %% [markdown]
# Why do real runs lose more?
#
# - **The network reaches less.** In the playbook's cluster an all-reduce of 256 MB had a bandwidth of 362 GB/s on two
#   nodes, 85 on 16, and 33 on 64 (512 GPUs): latency, and paths that many nodes share. Our lower edge assumes half.
# - **Ranks wait** for one another, work is slower beside other work, and DDP itself costs time. You have measured all
#   three above.
# - **The rest** is not in the model: loading data, and other jobs on the same network.
#
# So use an upper bound for questions that it can answer: "would a faster network help?", or "can 1,024 GPUs be worth it
# at all?"
#
# The model knows no data set. `doctor --pretend 128x8` runs five ranks of such a job on this CPU, one after the other,
# and sends nothing. **Predict.** `main.py` trains LeNet on 50,000 images, 64 a rank. How many updates has an epoch?

# %%
my_updates = None

# %%
link = 1 / series["ResNet-50, P100"]["network"]  # seconds a byte
# !python -m doctor --pretend 128x8 --alpha {between} --beta {link} --json {folder}/pretended.json \
#     main.py --dataset synthetic --epochs 1 2>&1 | grep -A9 "^doctor"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
counted = " ".join(json.loads(Path(folder, "pretended.json").read_text())["facts"])
lesson.predicted(my_updates, float(counted.split("epoch has ")[1].split()[0]), "updates")

# %% [markdown]
# The two times are the edges of the band above, for LeNet's gradients. But an update has room for more images than there
# are: 1,024 GPUs need a larger data set, or smaller batches. No figure of a network says so.
#
# ### Try it
#
# So far each rank had a batch of its own. Now the ranks **share** a batch of 256 images: 4 ranks take 64 each. A step
# of one rank takes 5 ms and 1 ms an image, two thirds of it in `backward`. The gradients have 100 MB. A message takes
# 50 µs, and a link sends 10 GB/s.
#
# **Predict.** With how many ranks (1, 2, 4 … 256) is such a step shortest? The page below begins with these values.

# %%
my_shared = None  # ranks

# %%
lesson.interactive("scaling")


# %%
def shared(n):  # seconds of a step of n ranks that share 256 images
    compute, k = 0.005 + 0.001 * 256 / n, ddp_buckets(100e6)
    return compute + left(k, ring(100e6 / k, n, 50e-6, 10e9), 2 / 3 * compute)


lesson.predicted(my_shared, min((2**i for i in range(9)), key=shared), "ranks")


# %% [markdown]
# ### Exercise 5: which link?
#
# Nothing overlaps here. One GPU's step takes `step` seconds, and the gradients have `gradient_bytes` bytes. `ranks`
# GPUs form a ring whose messages have no latency. What bandwidth (bytes a second) must a link have, for this
# `efficiency` (0 to 1)?

# %%
def my_bandwidth(step, gradient_bytes, ranks, efficiency):
    raise NotImplementedError


# %%
check.link(my_bandwidth)
# check.link.hint()
# check.link.solution()

# %% [markdown]
# ## What to remember
#
# 1. A message takes α + β · bytes. Time it warmed up, with the slowest rank, over several rounds. Print the worst error
#    of the line, and refuse a line that does not fit.
# 2. Processes that never talk set the ceiling. Below it, a step of several ranks = a step alone + slower together +
#    waiting + all-reduce + DDP itself.
# 3. Write the prediction down before you run, and give its error as a range over several runs. A model that forgets
#    costs is an upper bound: call it so.
#
# **Next:** [09 · A larger batch](09_large_batch.ipynb)
#
# More ranks make the batch of all together larger. What does that do to the training?
