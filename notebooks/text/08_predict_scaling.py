# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         epochs: 2
#         batches_to_map: 4 64
#         models_to_map: lenet
#         ranks_to_run: 1 2
#         rounds: 2
#         samples: 4000
#         test_samples: 100
#       seconds: 60
#     seconds: 155
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · Predict
#
# Lesson [07](07_performance.ipynb) measured how fast 1, 2, 4 and 8 ranks are. Can we know it *before* we run them? And how
# fast would 1,024 GPUs be, which we do not have?

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import json
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import psutil
import torch
from IPython.display import Markdown, display

import data
import models
import utils
from course import plots, predict, runs, rank_program
from course.lesson import some
from course.checks import lesson_08 as check
from course.predict.scaling import Hierarchy, Job, Link, Measured, StepTime

# %% tags=["parameters"]
ranks_to_run = "1 2 4 8"  # begin with 1; 2 must be there
samples = 12_000  # training images of an epoch
epochs = 3  # the first one warms up and is left out
test_samples = 1000
batch_size = 64  # of each rank; it must divide by 4, and by the world sizes for strong scaling
rounds = 9  # times that each step is timed
models_to_map = "lenet resnet"  # lenet must be there
batches_to_map = "4 16 64 128"

# %%
world_sizes, heat_batches = ([int(number) for number in numbers.split()] for numbers in (ranks_to_run, batches_to_map))
heat_models = models_to_map.split()
first_sizes, shared = " ".join(str(batch_size * k // 4) for k in (1, 3, 6, 8)), batch_size // 2
cores, gpus = utils.cores(), torch.cuda.device_count()
devices, kind = (gpus, "GPU") if gpus else (cores, "core")
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank, for all commands below: a rank is one core
folder = f"results/live/08/{time.strftime('%Y%m%d-%H%M%S')}"  # a new one for each run of this cell: nothing old is re-used
Path(folder).mkdir(parents=True)
dataset = data.get_dataset("auto")[0].name
synthetic = " (SYNTHETIC DATA)" if dataset == "synthetic" else ""
others = psutil.cpu_percent(interval=1)  # what other programs use now, % of all cores


def found(name):
    """What a run of this notebook wrote."""
    return json.loads(Path(folder, f"{name}.json").read_text())


Markdown(f"Here: {some(devices, kind)}. Other programs use {others:.0f} % of the cores just now"
         + (": **close them, or no prediction can hold.**" if others > 10 else ": good, we may measure.") + f" All that this run measures goes to `{folder}`.")

# %% [markdown]
# ## Three measurements
#
# **1. A step on one rank, against the batch size.** `scripts/measure/step_time.py` runs the step of `main.py`: LeNet, one process,
# several batch sizes. The one that we want to predict is not among them.

# %%
# !python scripts/measure/step_time.py --batch-sizes {first_sizes} --rounds {rounds} --out {folder}/one.json

# %%
points = pd.DataFrame(found("one")["models"]["lenet"]["points"])
phases = pd.DataFrame(list(points["phases"]))
step = StepTime.fit(points["batch_size"], points["seconds"], backward=float((phases["backward"] / points["seconds"]).median()))

fig, ax = plt.subplots(figsize=(12, 6))
many = np.linspace(0, points["batch_size"].max(), 50)
ax.vlines(points["batch_size"], 1e3 * points["low"], 1e3 * points["high"], color=plots.COLOURS[0])
ax.plot(points["batch_size"], 1e3 * points["seconds"], "o", color=plots.COLOURS[0], markersize=13)
ax.plot(many, [1e3 * step.seconds(n) for n in many], ":", color=plots.COLOURS[1])
ax.plot(batch_size, 1e3 * step.seconds(batch_size), "s", color=plots.COLOURS[1], markerfacecolor="white", markersize=13)
ax.annotate(f"predicted for {batch_size}: {1e3 * step.seconds(batch_size):.2f} ms", (batch_size, 1e3 * step.seconds(batch_size)), (14, -20),
            textcoords="offset points", color=plots.COLOURS[1], fontweight="bold")
ax.set(xlabel="batch size", ylabel="milliseconds a step", ylim=(0, None), xlim=(0, None))
ax.set_title(f"A step of LeNet on one rank: measured and fitted{synthetic}")
plt.show()
Markdown(f"A step takes **a + b · batch**, with a = {1e3 * step.fixed:.2f} ms and b = {1e6 * step.per_image:.1f} µs. "
         f"`backward` is {step.backward:.0%} of it.")

# %% [markdown]
# **2. The bytes of the gradients.** No need to run anything: 4 bytes for each parameter.

# %%
gradient_bytes = sum(4 * p.numel() for p in models.ConvNet().parameters())
assert gradient_bytes == found("one")["models"]["lenet"]["gradient_bytes"]
print(f"LeNet: {gradient_bytes // 4:,} parameters, {gradient_bytes:,} bytes of gradients")

# %% [markdown]
# **3. The all-reduce: α and β for each number of ranks**, as in lesson [04](04_collectives.ipynb).

# %%
several = " ".join(str(ranks) for ranks in world_sizes if ranks > 1)
# !printf '%s\n' {several} | xargs -I W torchrun --nproc_per_node=W scripts/measure/message_time.py \
#     --max-bytes 1M --rounds {rounds} --out {folder}/all_reduce_W.json

# %%
alpha_beta = {ranks: tuple(found(f"all_reduce_{ranks}")["ops"]["all_reduce"][name] for name in ("alpha", "beta"))
              for ranks in world_sizes if ranks > 1}
all_reduce = Measured(alpha_beta)
lesson.table([{"ranks": ranks, "α, ms": f"{1e3 * alpha:.2f}", "β, ns a byte": f"{1e9 * beta:.2f}",
       "all-reduce of LeNet's gradients, ms": f"{1e3 * all_reduce.seconds(gradient_bytes, 1, ranks):.2f}"}
      for ranks, (alpha, beta) in alpha_beta.items()])


# %% [markdown]
# ## The model
#
# A step of W ranks = a step of one rank + what of the all-reduce is not hidden. That is all. It stands in `course/predict/scaling.py`,
# with equations and sources:
#
# - ranks beyond the devices take turns: the step gets W / devices times as long;
# - one bucket of gradients can leave when `backward` is over: **no overlap**. LeNet's gradients fit into one of DDP's buckets;
# - with k buckets, `backward` hides all but the last: **overlap**. What is left is max(c, k·c − (k−1)/k · backward), for c seconds a bucket.
#
# **Strong or weak?** Lesson 07 gave every run the same images an epoch. Inside a *step* there are still two ways. **Weak** scaling
# keeps the batch of each rank. **Strong** scaling keeps the batch of all ranks together, so that each rank has less to do.
#
# ### Exercise 1: strong or weak?
#
# - **a**: `python main.py --batch-size 64`, then `torchrun --nproc_per_node=4 main.py --batch-size 64`
# - **b**: `python main.py --batch-size 64`, then `torchrun --nproc_per_node=4 main.py --batch-size 16`
# - **c**: 8 GPUs with 256 images a step of all, then 256 GPUs with 8,192 ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677))
# - **d**: `python main.py --global-batch-size 256`, then `torchrun --nproc_per_node=8 main.py --global-batch-size 256`

# %%
def my_kinds():
    raise NotImplementedError
    return {"a": "strong or weak", "b": "...", "c": "...", "d": "..."}


# %%
check.kinds(my_kinds)
# check.kinds.hint()
# check.kinds.solution()

# %% [markdown]
# **Predict.** An epoch takes one rank some time. What part of it do two ranks need, each with a batch as large as that one's?

# %%
my_part = 0.5  # half of the time? Write your own number

# %% [markdown]
# And now the model. It writes its numbers down, **before** anything of this is run.

# %%
small_buckets = 3  # as --bucket-cap-mb 0.04 cuts LeNet's gradients: fc3 and fc2, fc1, the convolutions (the model takes them for equal; fc1 alone is three quarters)
naive = Job(step, gradient_bytes, all_reduce, buckets=1, cores=devices)
in_buckets = replace(naive, buckets=small_buckets)


def predicted_epochs(job, strong=False):
    """{ranks: seconds an epoch}"""
    ranks = [ranks for ranks in world_sizes if not strong or batch_size % ranks == 0]
    return {row["world_size"]: row["seconds"] for row in predict.scaling.table(job, ranks, batch_size, samples, strong)}


predicted = {"weak": predicted_epochs(naive), "weak, overlap": predicted_epochs(in_buckets), "strong": predicted_epochs(naive, strong=True),
             "strong, overlap": predicted_epochs(in_buckets, strong=True)}
rank_program.write_json(Path(folder, "prediction.json"), {"time": time.time(), "samples": samples, "batch_size": batch_size, "seconds": predicted})
lesson.table([{"ranks": ranks, **{f"weak, {name}": f"{1e3 * job.predict(ranks, batch_size).seconds:.2f} ms" for name, job in
                          (("no overlap", naive), (f"{small_buckets} buckets, overlap", in_buckets))},
       **{f"an epoch: {name}": f"{seconds[ranks]:.2f} s" if ranks in seconds else "–" for name, seconds in predicted.items()}} for ranks in world_sizes])

# %% [markdown]
# The columns in ms are one step; the others are whole epochs. *No overlap* is what `main.py` does with LeNet, since one bucket holds all.
#
# ## Measure
#
# `scripts/measure/sweep.py` starts `main.py` for each world size, one run after another, and keeps a log of each.

# %%
sizes = " ".join(map(str, world_sizes))
# !python scripts/measure/sweep.py --out {folder}/weak --world-sizes {sizes} --batch-sizes {batch_size} \
#     --threads 1 -- --epochs {epochs} --samples {samples} --test-samples {test_samples}

# %%
def epochs_of(name):
    """The logs of a sweep, and {ranks: (median, fastest, slowest epoch)}; the first epoch warms up and is left out."""
    logs = runs.read_runs(f"{folder}/{name}")
    assert set(logs["status"]) == {"completed"} and set(logs["epochs"]) == {epochs} and set(logs["samples"]) == {samples}
    later = logs[(logs["epoch"] > 0) | (epochs == 1)].groupby("world_size")["seconds"]
    return logs, {int(ranks): (s.median(), s.min(), s.max()) for ranks, s in later}


logs, measured = epochs_of("weak")
written, first_run = found("prediction")["time"], pd.to_datetime(logs["started"]).min().timestamp()
assert first_run >= int(written), "a run is older than the prediction: run all cells from the parameters on"
plots.scaling.overlay(measured, {"predicted from three measurements": predicted["weak"]}, plt.subplots(figsize=(14, 7.5))[1],
                      f"LeNet, {samples:,} images, batch {batch_size} a rank{synthetic}")
plt.show()


# %%
def error(seconds, ranks, measured=measured):
    return seconds[ranks] / measured[ranks][0] - 1


one_two = {ranks: error(predicted["weak"], ranks) for ranks in (1, 2)}
verdict = {ranks: f"{off:+.0%} ({'within' if abs(off) <= plots.scaling.AIM else '**not within**'} {plots.scaling.AIM:.0%})" for ranks, off in one_two.items()}
lines = [f"The prediction was written {first_run - written:.0f} s before the first run began.",
         f"You said that two ranks need {my_part:g} of one rank's time. The model said {predicted['weak'][2] / predicted['weak'][1]:.2f}. "
         f"They needed **{measured[2][0] / measured[1][0]:.2f}**.",
         f"The model is off by {verdict[1]} for one rank, and by {verdict[2]} for two."]
if abs(one_two[1]) > plots.scaling.AIM:
    lines.append("One rank alone is off already: the machine was busier, or quieter, when `main.py` ran than when the step was timed. Only the ratio of the two can be judged.")
if (1 + one_two[2]) / (1 + one_two[1]) < 0.95:
    lines.append("Beside one rank, it promised too much for two. **Something that costs time is missing in the model. What?**")
else:
    lines.append("Beside one rank, it did not promise too much for two. Whether that is more than luck, the next measurement will tell.")
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# ## What is missing?
#
# The three measurements were made in peace: one rank alone on the machine, and all-reduces with nothing in between. Training is not like that.
# So a **fourth measurement**, on two ranks:
#
# - *side by side*: both ranks train, each for itself. They say nothing to each other, but share memory, cache and power. Is a step as fast as alone?
# - *by hand*: after each `backward` they all-reduce a single number, so that the first waits for the last; then as many bytes as there are gradients.
#   How long do both take **there**, amid work?
#
# Still no DDP. The script times *alone* again in the same minutes, so that all ratios are of one time of day.

# %%
sides = [batch_size // 4, batch_size, 2 * batch_size]
side_sizes = " ".join(map(str, sides))
# !torchrun --nproc_per_node=2 scripts/measure/step_time.py \
#     --ways alone side_by_side by_hand --batch-sizes {side_sizes} --rounds {rounds} --out {folder}/two.json

# %%
two = {(point["way"], point["batch_size"]): point for point in found("two")["models"]["lenet"]["points"]}
turns = max(1, 2 / devices)
own = {n: sum(seconds for phase, seconds in two["by_hand", n]["phases"].items() if phase not in ("wait", "all_reduce")) for n in sides}
beside, slowdown = (max(1.0, float(np.median([seconds[n] / two["alone", n]["seconds"] / turns for n in sides])))  # less than 1 is noise
                    for seconds in ({n: two["side_by_side", n]["seconds"] for n in sides}, own))
quiet, (alpha, beta) = all_reduce.seconds(gradient_bytes, 1, 2), alpha_beta[2]
waits = {n: max(0.0, two["by_hand", n]["phases"]["wait"] - alpha) / turns for n in sides}  # without α, the price of the message itself
amid = {n: two["by_hand", n]["phases"]["all_reduce"] for n in sides}
lesson.table([{"batch of each rank": n, "a step alone, ms": f"{1e3 * two['alone', n]['seconds']:.2f}", "side by side, ms": f"{1e3 * two['side_by_side', n]['seconds']:.2f}",
       "by hand: the step itself, ms": f"{1e3 * own[n]:.2f}", "waiting for the other, ms": f"{1e3 * turns * waits[n]:.2f}", "all-reduce amid work, ms": f"{1e3 * amid[n]:.2f}",
       "all-reduce in peace, ms": f"{1e3 * quiet:.2f}"} for n in sides])
lines = [f"Side by side a step takes **{beside:.2f} times** as long as alone, without a single message. Between all-reduces its own work takes **{slowdown:.2f} times** as long.",
         f"At batch {sides[1]} a rank waits for the other for **{1e3 * turns * waits[sides[1]]:.2f} ms** in each step (mean). Whoever is first, waits: the two are never ready at the same moment.",
         f"The all-reduce amid work takes {amid[sides[1]] / quiet:.1f} times as long as in peace."]
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# *In peace* the all-reduces came one after another, with everybody awake and ready. In training each comes after milliseconds of work, and the two ranks are never done at the
# same moment. All these figures are means over steps, not medians of steps: an epoch is a **sum**, and its slow steps count in it.
#
# Slower work and the wait go into the step, the all-reduce amid work into α. Nothing else changes in the model.

# %%
def mended(job, batch):
    """The model with the fourth measurement, for steps with so many images a rank. It was made with two ranks: for more we
    assume the same slowness and wait in each turn, and take the all-reduce as measured in peace."""
    wait, busy = (float(np.interp(batch, sides, [of[n] for n in sides])) for of in (waits, amid))
    together = replace(job.step, fixed=slowdown * job.step.fixed + wait, per_image=slowdown * job.step.per_image)
    return replace(job, step=together, all_reduce=Measured(alpha_beta | {2: (max(0.0, busy - beta * gradient_bytes), beta)}))


def mended_seconds(job, strong=False):
    """{ranks: seconds an epoch}; one rank has nobody beside it."""
    seconds = {1: job.epoch_seconds(1, batch_size, samples)}
    for ranks in world_sizes[1:]:
        if strong and batch_size % ranks:
            continue
        batch = batch_size // ranks if strong else batch_size
        seconds[ranks] = mended(job, batch).epoch_seconds(ranks, batch, samples)
    return seconds


fig, ax = plt.subplots(figsize=(14, 5.5))
alone_ms, steps = 1e3 * step.seconds(batch_size), samples / 2 / batch_size
wait_ms, after = 1e3 * float(np.interp(batch_size, sides, list(waits.values()))), mended(naive, batch_size).predict(2, batch_size)
plots.scaling.parts([
    ("three measurements", False, {"a step alone": turns * alone_ms, "all-reduce": 1e3 * quiet}),
    ("with the fourth", False, {"a step alone": turns * alone_ms, "slower together": max(0.0, 1e3 * after.compute / turns - wait_ms - alone_ms) * turns,
                                "waiting for the other": turns * wait_ms, "all-reduce": 1e3 * after.exposed}),
    ("main.py, 2 ranks", True, {"the whole step": 1e3 * measured[2][0] / steps}),
], ax, "What a step of two ranks is made of")
plt.show()

# %% [markdown]
# A model that explains what we have seen already proves little. Does it also predict what nobody has measured yet? Two such cases:
#
# - **strong**: two ranks share the batch of one, so each has half of it
# - **overlap**: gradients in three small buckets (`--bucket-cap-mb 0.04`), which can leave while `backward` goes on
#
# Again: written down first, then run.

# %%
again = {"strong": mended_seconds(naive, strong=True), "overlap": mended_seconds(in_buckets)}
rank_program.write_json(Path(folder, "prediction_2.json"), {"time": time.time(), "seconds": again})
print({name: f"2 ranks: {seconds[2]:.2f} s" for name, seconds in again.items()})
# !python scripts/measure/sweep.py --out {folder}/strong --world-sizes 2 --batch-sizes {shared} \
#     --threads 1 -- --epochs {epochs} --samples {samples} --test-samples {test_samples}
# !python scripts/measure/sweep.py --out {folder}/overlap --world-sizes 2 --batch-sizes {batch_size} \
#     --threads 1 -- --epochs {epochs} --samples {samples} --test-samples {test_samples} --bucket-cap-mb 0.04

# %%
weak_mended = mended_seconds(naive)
later = {name: epochs_of(name)[1] for name in ("strong", "overlap")}
cases = [("weak, 1 rank", predicted["weak"][1], weak_mended[1], measured[1][0], "before / -"),
         ("weak, 2 ranks", predicted["weak"][2], weak_mended[2], measured[2][0], "before / **after**"),
         ("strong, 2 ranks", predicted["strong"][2], again["strong"][2], later["strong"][2][0], "before / before"),
         (f"weak, 2 ranks, {small_buckets} buckets", predicted["weak, overlap"][2], again["overlap"][2], later["overlap"][2][0], "before / before")]
lesson.table([{"an epoch": name, "three measurements": f"{three:.2f} s", "with the fourth": f"{four:.2f} s", "measured": f"{real:.2f} s",
       "off by (three)": f"{three / real - 1:+.0%}", "off by (four)": f"{four / real - 1:+.0%}", "predicted before or after measuring": when}
      for name, three, four, real, when in cases])
plots.scaling.overlay(measured, {"predicted from three measurements": predicted["weak"], "with the fourth": weak_mended},
                      plt.subplots(figsize=(14, 7.5))[1], f"LeNet, {samples:,} images, batch {batch_size} a rank{synthetic}")
plt.show()


# %%
def verdict_of(pairs):
    inside = sum(abs(off) <= plots.scaling.AIM for off in pairs)
    return f"{inside} of {len(pairs)} within {plots.scaling.AIM:.0%}, the worst off by {max(pairs, key=abs):+.0%}"


off_three, off_four = ([case[column] / case[3] - 1 for case in cases] for column in (1, 2))
hidden = measured[2][0] - later["overlap"][2][0]
promised = weak_mended[2] - again["overlap"][2]
lines = [f"Three measurements: {verdict_of(off_three)}. With the fourth: **{verdict_of(off_four)}**.",
         f"Two ranks were {measured[1][0] / measured[2][0]:.2f} times as fast as one. Three measurements promised {predicted['weak'][1] / predicted['weak'][2]:.2f}, "
         f"four {weak_mended[1] / weak_mended[2]:.2f}.",
         f"Overlap saved {hidden:+.2f} s an epoch; the model promised {promised:+.2f} s. "
         + ("On a CPU hiding is not free: the all-reduce needs the cores that `backward` needs." if hidden < promised and not gpus else "")]
drift = two["alone", batch_size]["seconds"] / step.seconds(batch_size) - 1
if abs(drift) > 0.05:
    lines.append(f"The machine itself changed: the same step of one rank alone took {abs(drift):.0%} {'longer' if drift > 0 else 'less time'} when we measured it again. Such a share of each error is no fault of the model.")
spread = max((high - low) / middle for middle, low, high in measured.values())
if spread > 0.1:
    lines.append(f"The epochs of one and the same run differ by up to {spread:.0%} here. No prediction can be better than that.")
if more := [ranks for ranks in world_sizes if ranks > 2]:
    lines.append("More ranks, three and four measurements: " + "; ".join(f"{ranks} ranks {error(predicted['weak'], ranks):+.0%} and {error(weak_mended, ranks):+.0%}" for ranks in more)
                 + f". The fourth was made with two ranks; that {'each turn' if max(more) > devices else 'every rank'} waits as long with more is assumed.")
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# **What this teaches.** A model tells you what *should* happen. Where it misses, it tells you what to measure next. Had we only measured, we would know
# *how long* two ranks take, and not *why*.
#
# ## When is DDP slower than one process?
#
# With small batches there is little to do between two all-reduces. Now the whole map: model × batch × ranks. Two ranks are
# measured, with DDP itself, against one rank alone in the same minutes.
#
# **Predict.** Below which batch size are two ranks of LeNet slower than one?

# %%
my_smallest = 8

# %%
swept, batches = shlex.join(heat_models), " ".join(map(str, heat_batches))
# !torchrun --nproc_per_node=2 scripts/measure/step_time.py --models {swept} --batch-sizes {batches} \
#     --ways alone ddp --rounds 3 --samples 4096 --out {folder}/heat.json

# %%
heat, fits = {}, {}
for model, of_model in found("heat")["models"].items():
    seconds = {(point["way"], point["batch_size"]): point["seconds"] for point in of_model["points"]}
    fit = StepTime.fit(heat_batches, [seconds["alone", n] for n in heat_batches], step.backward)
    fits[model] = replace(naive, step=fit, gradient_bytes=of_model["gradient_bytes"])
    rows = [{"world_size": 2, "batch_size": n, "speedup": 2 * seconds["alone", n] / seconds["ddp", n], "measured": True} for n in heat_batches]
    for ranks in [ranks for ranks in world_sizes if ranks > 2]:
        for n in heat_batches:
            alone, many = fits[model].predict(1, n).seconds, mended(fits[model], n).predict(ranks, n).seconds
            swept = model == "lenet" and n == batch_size  # the sweep above measured it
            rows.append({"world_size": ranks, "batch_size": n, "measured": swept,
                         "speedup": measured[1][0] / measured[ranks][0] if swept else ranks * alone / many})
    heat[model] = rows

fig, axes = plt.subplots(1, len(heat), figsize=(8.5 * len(heat), 1.5 + 1.5 * len(heat_batches)), squeeze=False)
for (model, rows), ax in zip(heat.items(), axes.flat, strict=True):
    plots.scaling.heat_map(rows, ax, f"{model}: images/s against one process")
plt.show()


# %%
def loses(model):
    slow = sorted({row["batch_size"] for row in heat[model] if row["measured"] and row["world_size"] == 2 and row["speedup"] < 1})
    return f"**{model}**: two ranks lose at batch size {', '.join(map(str, slow))} (measured)." if slow else f"**{model}**: two ranks are never slower than one in this map (measured)."


wins = [mended(fits["lenet"], n).predict(2, n).seconds < 2 * fits["lenet"].predict(1, n).seconds for n in range(1, 513)]
turning = next((n for n in range(1, 513) if all(wins[n - 1:])), None)  # and for all larger ones
lines = [loses(model) for model in heat]
lines += [f"You said {my_smallest}. The model with the fourth measurement says: two ranks of LeNet win from batch size **{turning or 'more than 512'}** on.",
          "Blue, above 1: DDP is faster. Orange, below 1: one process is. **Thick frame: measured. Dotted: predicted**, by the model with all four measurements, the fourth made with LeNet"
          + (f", where ranks share the {some(devices, kind)}." if max(world_sizes) > devices else ".")]
if any(row["speedup"] > 1.1 * min(row["world_size"], devices) for rows in heat.values() for row in rows if row["measured"]):
    lines.append(f"**A measured cell shows more than min(ranks, {kind}s): other programs disturbed these runs. Close them, and run again.**")
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# ### Exercise 2: from which batch size on?
#
# One rank's step takes `fixed + per_image * n` seconds. The ranks have a device each and a batch of n **each** (weak), and the all-reduce takes `all_reduce`
# seconds that nothing hides. Return the smallest whole n with which they do more images a second than one rank.

# %%
def my_batch(fixed, per_image, all_reduce, ranks):
    raise NotImplementedError


# %%
check.break_even(my_batch)
# check.break_even.hint()
# check.break_even.solution()
# my_batch(step.fixed, step.per_image, waits[batch_size] + amid[batch_size], 2)  # this machine

# %% [markdown]
# ## Machines that we do not have
#
# The same `Job`, with published figures in place of ours. **Nothing of this is measured here.** Three published series:
#
# - **ResNet-50, P100** ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)): 25 million parameters, 32 images a GPU, `backward` 120 ms, 8 GPUs and one 50 Gbit/s card a node. 8 GPUs took
#   [29 hours](https://developer.nvidia.com/facebook-trains-imagenet-1-hour) for 90 epochs of ImageNet; from 8 to 256 GPUs "about 90 %" efficiency.
# - **ViT, A100** ([NERSC tutorial, SC25](https://github.com/NERSC/sc25-dl-tutorial)): 16 samples a GPU, 204 samples/s on 4 GPUs, 2,573 on 64. Nodes:
#   [NERSC's page](https://docs.nersc.gov/systems/perlmutter/architecture/), 4 GPUs and 4 Slingshot 11 cards (200 Gbit/s each). Its size is computed below from its configuration.
# - **BERT** ([PyTorch issue 17159](https://github.com/pytorch/pytorch/issues/17159)): samples/s of each GPU. It names neither GPU, batch nor network, so **we assume**: BERT-base with 110 million
#   parameters ([Devlin et al. 2018](https://arxiv.org/abs/1810.04805)), 32 samples, V100 in nodes of 8 with 25 Gbit/s.

# %%
# What a message costs however short: nobody publishes it with the series above. Taken from all-reduces of 256 KiB on B200s (busbw in lesson 04:
# 9.54 GB/s on one node of 8, 1.33 GB/s on four): 14 steps of a ring within a node, 6 more between four nodes.
message = 256 * 2**10
in_node, in_all = 2 * 7 / 8 * message / 9.54e9, 2 * 31 / 32 * message / 1.33e9
within, between = in_node / 14, (in_all - in_node) / 6

vit = 12 * 12 * 384**2 + 2 * 384 * 20 * 8 * 8 + (360 // 8) * (720 // 8) * 384  # 12 blocks of width 384, patches of 8 x 8 x 20, positions
imagenet = 90 * 1_281_167  # images in 90 epochs


def far_away(step_seconds, backward, parameters, nvlink, network, per_node):
    """Link speeds in bytes a second and direction: a GPU's NVLink, and all cards of a node together."""
    return Job(StepTime(step_seconds, 0, backward), 4 * parameters, Hierarchy(Link(within, nvlink), Link(between, network)),
               buckets=predict.scaling.ddp_buckets(4 * parameters), ranks_per_node=per_node)


p100_step = 32 / (imagenet / (29 * 3600) / 8)
far = {  # NVLink, each direction: NVIDIA's data sheets (P100: 160 GB/s for both directions, A100 600, V100 300)
    "ResNet-50, P100": far_away(p100_step, 0.120 / p100_step, 25e6, 80e9, 50e9 / 8, 8),
    "ViT, A100": far_away(16 / (204 / 4), 2 / 3, vit, 300e9, 4 * 25e9, 4),
    "BERT (assumed: V100)": far_away(32 / 122, 2 / 3, 110e6, 150e9, 25e9 / 8, 8),
}
published = {
    "ResNet-50, P100": {8: 1.0, 256: 0.9},
    "ViT, A100": {4: 1.0, 64: 2573 / 16 / 204},
    "BERT (assumed: V100)": {gpus_: speed / 122 for gpus_, speed in {1: 122, 2: 115, 4: 111, 8: 110, 16: 80}.items()},
}
print(f"a message: {1e6 * within:.1f} µs within a node, {1e6 * between:.0f} µs between nodes; the ViT has {vit / 1e6:.1f} million parameters")

# %% [markdown]
# **Predict.** What efficiency does the model give for ResNet-50 on 1,024 of these GPUs, in percent of that on 8?

# %%
my_percent = 90

# %%
thousand = [2**power for power in range(11)]
curves, misses = {}, []
for name, job in far.items():
    base = min(published[name])
    alone = predict.scaling.speedup(job, base, 1)[1]
    curves[name] = {n: predict.scaling.speedup(job, n, 1)[1] / alone for n in thousand if n >= base}
    misses += [{"": name, "GPUs": n, "predicted": f"{curves[name][n]:.0%}", "published": f"{real:.0%}", "miss, percentage points": f"{100 * (curves[name][n] - real):+.0f}",
                "missing time, ms a step": f"{1e3 * job.step.fixed * (1 / real - 1 / curves[name][n]):.0f}"} for n, real in published[name].items() if n > base]
plots.scaling.to_many(curves, published, plt.subplots(figsize=(15, 8.5))[1], "Weak scaling to 1,024 GPUs")
plt.show()

# %%
lesson.table(misses)
most = max(curves, key=lambda name: curves[name][1024])
lines = [f"You said {my_percent} %. The model says {curves['ResNet-50, P100'][1024]:.0%} for ResNet-50 on 1,024 GPUs.",
         f"**It is too hopeful in {sum(not row['miss, percentage points'].startswith('-') for row in misses)} of {len(misses)} published points.** "
         "The last column is the time a step that it does not know of.",
         f"Here, from what was measured in peace, the epoch of two ranks came out {abs(one_two[2]):.0%} too {'short' if one_two[2] < 0 else 'long'}. The fourth measurement "
         "(who waits for whom, amid work) is one that none of these three series has. Nor does the model know of loading dataset, or of a network shared with others."]
Markdown("\n".join(f"- {line}" for line in lines))


# %% [markdown]
# So read such curves as **the best that can be had**. They answer questions such as "would a faster network help?" before anybody buys one.
# With overlap, as long as `backward` hides all buckets but the last, the answer is: hardly. Only that last one gets shorter.
#
# ### Exercise 3: which link?
#
# Without overlap. One GPU's step takes `step` seconds, the gradients have `gradient_bytes` bytes. `ranks` GPUs form a ring, and its messages cost nothing but their
# bytes. What bandwidth (bytes a second) must a link have, for this `efficiency` (0 to 1)?

# %%
def my_bandwidth(step, gradient_bytes, ranks, efficiency):
    raise NotImplementedError


# %%
check.link(my_bandwidth)
# check.link.hint()
# check.link.solution()
# my_bandwidth(p100_step, 4 * 25e6, 64, 0.9) / 1e9  # GB/s, for ResNet-50 on 64 P100 at 90 %

# %% [markdown]
# ## What to remember
#
# - Step of W ranks = step of one + all-reduce that nothing hides. Write the number down **before** you run.
# - Measure the parts as they will be used: all-reduce amid work, steps side by side.
# - Small batch, many messages, shared cores: DDP can be slower than one process.
# - With figures taken in peace, the model gives the speed that can be had at best. Its miss is a finding.
#
# ## Where next
#
# - `python scripts/measure/predict.py time --help` predicts for your own figures.
# - Run this notebook with `batch_size = 128`, or on another machine. Which term grows?
# - [09 · A larger batch](09_large_batch.ipynb): weak scaling makes the global batch grow. What does that do to the training?
# - [10 · Launchers](10_launchers.ipynb): start the ranks on other machines.
