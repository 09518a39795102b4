# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         batches: 64 512
#         ceiling_rounds: 1
#         epochs: 2
#         samples: 320
#         test_samples: 100
#       seconds: 40
#     seconds: 180
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Performance
#
# **The question.** `torchrun --nproc_per_node=8` starts eight processes that train one model together. How much faster
# is that than one process, and what is the rest lost to?
#
# **You will be able to**
#
# - compute speed-up and efficiency from two logs, and say what was held fixed;
# - tell apart what is lost by taking turns, by sharing a machine, and by talking;
# - read from a log which phase of a step is too long, and find the rank that holds up the others;
# - have the same training sooner, and find the batch from which a second rank pays.
#
# **You need** [03 · Processes and ranks](03_processes_and_ranks.ipynb), [04 · Collectives](04_collectives.ipynb) and
# [06 · DDP](06_ddp.ipynb).
#
# **Time.** About 80 minutes for you, 3 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import psutil
import torch

import launch
import utils
from course import plots, runs
from lessons.l07_performance import check, show

# %% tags=["parameters"]
epochs = 4  # passes over the training images; the first one warms up and is not timed
samples = 12_800  # training images
test_samples = 2_000  # test images, looked at after each epoch
ceiling_rounds = 5  # each: a second for each number of processes that never talk
batches = "64 128 256 512 1024 2048"  # images of an update, for the search in exercise 5

# %% [markdown]
# ## What is one device?
#
# "Faster than one device" means little until we say what one device is. With GPUs it is **one GPU**. Without, it is
# **one CPU core**: left alone, PyTorch would use all cores in one process, and a second process would find none free.
# So all commands below have one thread a process. (Which uses the cores better, threads or ranks, is measured below.)
#
# On two GPUs, as [Kaggle](../site/pages/kaggle.md) lends them, look at one and two ranks: `nccl` stands in the printed
# line of two. Four and eight ranks share the GPUs over `gloo`, and take turns.
#
# (A core is what the operating system counts as one. Two of them may be one core of the chip, run by two threads: then
# two ranks cannot be twice as fast.)

# %%
cores, gpus = launch.cores(), torch.cuda.device_count()
devices = gpus or cores
os.environ["OMP_NUM_THREADS"] = "1"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
busy = psutil.cpu_percent(interval=1)  # % of all cores
kind = "GPU" if gpus else "core"
lesson.verdict([
    f"One device is one {kind}. This machine has **{lesson.some(devices, kind)}**.",
    f"Other programs use {busy:.0f} % of the cores just now: "
    + ("**close them, or they change the times below.**" if busy > 10 else "we may measure.")])

# %% [markdown]
# ## Predict
#
# We hold fixed: the images of an epoch, the first weights (same seed), the learning rate, and the batch of **each
# rank**.

# %%
sizes, batch_size = [1, 2, 4, 8], 64  # 64 is main.py's default, for each process

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{
    "ranks": n, "images an epoch": f"{samples:,}", "images a step, each rank": batch_size,
    "global batch": n * batch_size, "steps an epoch": runs.updates_an_epoch(samples, n, batch_size),
    "ranks for each device": f"{n / devices:.3g}"} for n in sizes])

# %% [markdown]
# The batch of each rank is fixed: this is called *weak scaling*. The *global batch* (all ranks together) grows. An
# epoch has the same images, so its time can fall; but it has fewer steps, that is, fewer updates of the weights, and
# the training ends with a different result. *Strong scaling* fixes the global batch (`--global-batch-size 64`: 64 / n
# images for each of n ranks). Then the updates are the same, and there is less work between two messages. So it stops
# paying much earlier (why, lesson [08](08_predict_scaling.ipynb) measures).
#
# **Predict.** How many times as fast as one rank are eight ranks, epoch against epoch? And is their loss after the last
# epoch higher, lower, or equal?

# %%
my_times = None  # times as fast
my_loss = None  # "higher", "lower" or "equal"

# %% [markdown]
# ## One process
#
# The baseline. It is the same `main.py` that all ranks will run.

# %%
options = f"--epochs {epochs} --samples {samples} --test-samples {test_samples}"
# !python main.py {options} --log-file results/live/07_1.jsonl

# %% [markdown]
# First the data. Then who works: model, strategy, ranks × batch, device, threads. Then one line an epoch: `Loss` and
# `acc` are of the training images, `val` of the test images. `time cost` counts training alone: no start, no test.
#
# ## Eight ranks
#
# Only what stands before `main.py` changes.

# %%
# !torchrun --nproc_per_node=8 main.py {options} --log-file results/live/07_8.jsonl

# %% [markdown]
# Eight processes ran, yet each line stands there once: only rank 0 prints, and what it prints is summed over all ranks.
#
# (In a terminal, `torchrun` begins with a banner: `Setting OMP_NUM_THREADS environment variable for each process to be
# 1 in default …`. It is no error. If every rank used all cores, the ranks would get in each other's way. So `torchrun`
# gives each rank one thread, unless you set the variable, as we have.)
#
# Two points make no curve:

# %%
# !torchrun --nproc_per_node=2 main.py {options} --log-file results/live/07_2.jsonl
# !torchrun --nproc_per_node=4 main.py {options} --log-file results/live/07_4.jsonl

# %% [markdown]
# And the class that you wrote in lesson [06](06_ddp.ipynb), in the place of PyTorch's. (Where that lesson has left none,
# ours.)

# %%
ours, mine = Path("lessons/l06_ddp/my_ddp.py"), Path("results/live/06_my_ddp.py")
yours = mine.exists() and mine.read_bytes() != ours.read_bytes()
wrapper = f"{mine if yours else ours}:MyDDP"
# !torchrun --nproc_per_node=2 main.py {options} --wrapper {wrapper} \
#     --log-file results/live/07_my_ddp.jsonl

# %% [markdown]
# ## May we compare them?
#
# Before a comparison: did each run finish, on the same images, with the same settings?

# %%
logs = {n: f"results/live/07_{n}.jsonl" for n in sizes}
df = runs.read_runs({lesson.some(n, "rank"): log for n, log in logs.items()})
lesson.verdict(show.comparable(df, epochs))


# %% [markdown]
# **Speed-up** is how many times as fast as one process. **Efficiency** is the speed-up divided by the number of ranks.
# A log holds what both need. Rank 0 wrote it, one record per line. (A command that is started again adds its records
# to the file: we take those of the last run.)

# %%
def records(log):
    every = [json.loads(line) for line in Path(log).read_text().splitlines()]
    last = max(place for place, record in enumerate(every) if record["kind"] == "run")
    return every[last:]


# %% jupyter={"source_hidden": true} tags=["hide-input"]
fields = ["kind", "world_size", "samples", "epoch", "seconds", "images_per_second"]
lesson.table([{name: f"{record[name]:.4g}" if isinstance(record.get(name), float)
               else record.get(name, "") for name in fields} for record in records(logs[8])])


# %% [markdown]
# `images_per_second` counts the images of all ranks. In the last record, `seconds` are those of the whole run.
#
# ### Exercise 1: speed-up and efficiency
#
# `one` and `many` are such lists of records: of one process, and of several ranks. The first epoch warms up, and does
# not count. Another epoch may have been disturbed: it must not move the result. The two runs need not have equally many
# images. Return two numbers: the speed-up, and the efficiency from 0 to 1.

# %%
def my_speedup(one, many):
    raise NotImplementedError


# %%
check.speedup(my_speedup)
# check.speedup.hint()
# check.speedup.solution()

# %% [markdown]
# Now your function reads the four logs. (As long as it is not right, ours does, and the picture says so.)

# %%
speedup_of, whose = check.speedup.or_ours(my_speedup)
lines = {"DDP": {n: speedup_of(records(logs[1]), records(logs[n])) for n in sizes}}
of_mine = speedup_of(records(logs[1]), records("results/live/07_my_ddp.jsonl"))
lines[f"MyDDP ({'yours' if yours else 'ours'})"] = {1: (1, 1), 2: of_mine}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
title = f"Speed-up and efficiency, computed by {whose} function"
show.speedups(lines, plt.subplots(figsize=(13, 7.5))[1], title, my_times)
plt.show()
lesson.predicted(my_times, lines["DDP"][8][0], "times")

# %% [markdown]
# ## What is it lost to?
#
# The ideal is n times as fast with n ranks. Three things take from it:
#
# - **Turns.** Only min(ranks, devices) ranks can work at the same moment; the others wait for their turn. Then a low
#   efficiency says nothing against DDP. (A GPU may have room: one rank with a small model does not fill it.)
# - **Sharing.** Processes that have a device each still share memory, caches, power. So we start as many processes as
#   ranks, each with a model of its own, that **never talk**. Divide the images a second of all by those of one process
#   alone: this is the **ceiling** of this model with this batch, on this machine.
# - **Talking.** What then is left: messages, waiting for the slowest rank, and what DDP itself does
#   ([08](08_predict_scaling.ipynb) tells these apart).
#
# **Predict.** How many times the images a second of one process do eight processes reach that never talk?

# %%
my_ceiling = None  # times

# %%
# !torchrun --nproc_per_node=8 scripts/measure/side_by_side.py --rounds {ceiling_rounds} \
#     --out results/live/07_ceiling.json
measured = json.loads(Path("results/live/07_ceiling.json").read_text())["ceilings"]
ceilings = {ceiling["ranks"]: ceiling for ceiling in measured}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_ceiling, ceilings[8]["ceiling"], "times")
table = runs.seconds_per_epoch(df).assign(speedup=[lines["DDP"][n][0] for n in sizes])
plots.under_ceiling(table, ceilings, devices, plt.subplots(figsize=(14, 8))[1], my_times)
plt.show()
lesson.table(show.losses(table, ceilings, devices))
lesson.verdict(show.talking(table, ceilings))


# %% [markdown]
# Read the picture from above and the table from the left: the ideal, less the three losses, is the speed-up. The
# ceiling was measured in several rounds. The upright lines show its lowest and its highest round, and the brackets show
# the loss that each of these two would give. Speed-up and ceiling are each divided by a run of one process of their
# own, since the machine's speed changes over minutes. Both are ratios of noisy times. So a loss below 0, or smaller
# than its range, says only: too little to be measured here.
#
# ### Exercise 2: the same in milliseconds
#
# A step takes `alone` ms with one rank alone on the machine, and `together` ms with `ranks` ranks. Each rank has a
# batch of its own, as large as before. `ceiling` is the one that we have just measured. How many ms does a step take
# longer because the processes are *beside each other* (turns and sharing), and how many because they *talk*? Return
# both.

# %%
def my_split(alone, together, ranks, ceiling):
    raise NotImplementedError


# %%
check.split(my_split)
# check.split.hint()
# check.split.solution()

# %% [markdown]
# ## Which part of a step grew?
#
# In a step each rank handles 64 images, whatever the number of ranks. So with a device for each rank, a step should
# take as long as alone. `main.py` times four phases of each step: data, forward, backward, update. In one of them the
# ranks talk.
#
# **Predict.** Which phase grows most, from one rank to two?

# %%
my_phase = None  # "data", "forward", "backward" or "update"

# %%
steps = show.per_step(df)
few = steps[steps.world_size <= max(2, devices)]  # where the ranks need not take turns

# %% jupyter={"source_hidden": true} tags=["hide-input"]
plots.phases(few, plt.subplots(figsize=(14, 5))[1], "milliseconds a step, 64 images a rank", "ms")
plt.show()
lesson.predicted(my_phase, show.grown(steps))

# %% [markdown]
# `backward` holds the all-reduce of the gradients. DDP can send a bucket of them while `backward` still computes others
# ([06](06_ddp.ipynb)). LeNet's gradients fit into one bucket: nothing is hidden here, and `backward` holds the whole
# message, and the wait for the other ranks. Lesson [08](08_predict_scaling.ipynb) takes it apart further.
#
# The log is rank 0's. It shows how long *rank 0* waited, and not for whom.
#
# ### Exercise 3: who holds up the others?
#
# Your function runs on three ranks. In each round call `work()`, which is this rank's own part of a step, and then
# `talk()`, which is a collective. One rank is slow. In one of the rounds another rank is disturbed: that must not
# count. Return (number of the slow rank, seconds that its `work()` takes in a usual round), **the same on every rank**.
#
# (Here `work()` is the CPU's. On a GPU a call returns before its work is done: synchronise before each look at the
# clock, or record CUDA events, as `main.py` does. Lesson [01](01_one_device.ipynb) shows why.)

# %%
# %%writefile results/live/07_slowest.py
import statistics
import time

import torch
import torch.distributed as dist


def my_slowest(work, talk, rounds):
    raise NotImplementedError


# %%
check.slowest("results/live/07_slowest.py")
# check.slowest.hint()
# check.slowest.solution()

# %% [markdown]
# ## Diagnose
#
# Four runs of `main.py` with two ranks, recorded on two cores. One is sound, and in three something was wrong. You can
# find out what from the phases.

# %%
wrong = show.per_step(runs.read_runs("results/recorded/went-wrong"))
phases = {run: show.medians(wrong, run) for run in ("sound", "a", "b", "c")}  # ms a step

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ax = plt.subplots(figsize=(14, 6))[1]
plots.phases(wrong, ax, "milliseconds a step of rank 0 (recorded)", "ms")
plt.show()


# %% [markdown]
# ### Exercise 4: name the fault
#
# `sound` and `run` are the milliseconds of each phase, `{"data": …, "forward": …, "backward": …, "update": …}`: of a
# sound run, and of one to be judged. Return its fault: `"threads"` (each rank has too many of them), `"data"` (images
# come too slowly), `"batch"` (too few images a step to be worth a message), or `"slow rank"` (another rank than this
# one is slow). A phase that has not doubled counts as unchanged.

# %%
def my_diagnosis(sound, run):
    raise NotImplementedError


# %%
check.diagnosis(my_diagnosis)
# check.diagnosis.hint()
# check.diagnosis.solution()

# %% [markdown]
# When it is right, your function judges the three recorded runs:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
judge, whose_judge = check.diagnosis.or_ours(my_diagnosis)
done = {"a": "`OMP_NUM_THREADS=8`: 16 threads on two cores",
        "b": "each image was opened and decoded when it was asked for",
        "c": "rank 1 had the processor for a quarter of the time"}
if whose_judge == "your":
    lesson.table([{"run": run, "you": judge(phases["sound"], phases[run]), "what was done": what}
                  for run, what in done.items()])

# %% [markdown]
# ## Is it as good a training?
#
# Left: what each epoch taught. Right: what each second taught.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
last = df.groupby("world_size")["loss"].last()
more = last[8] / last[1]  # within 1 % they are called equal
lesson.predicted(
    my_loss, "equal" if abs(more - 1) < 0.01 else "higher" if more > 1 else "lower")
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 7))
plots.loss_by_epoch(df, left)
plots.loss_by_time(df, right)
plt.show()

# %% [markdown]
# Each update of eight ranks rests on more images, but there are fewer of them. **Faster per image and better per image
# are two questions.** The second is that of lesson [09](09_large_batch.ipynb). But several ranks can also do the same
# training, update by update.
#
# ## The same training, sooner
#
# `--global-batch-size 512` fixes the images of an update: one process takes 512, each of two ranks 256. Then the
# updates are the same, but for rounding. A message has as many bytes as before, and the work between two messages is
# four times that of 64 images a rank.
#
# One process can use two cores as well: it cuts each operation up over two *threads*. Threads meet at the end of every
# operation, ranks once a step. But ranks have to send gradients. (Threads end at one machine, and are the CPU's.)
#
# **Predict.** With 512 images an update, how many times as fast as one process are two ranks? And two threads?

# %%
my_two_ranks = None  # times
my_two_threads = None  # times

# %%
# !python main.py {options} --global-batch-size 512 --log-file results/live/07_512_1.jsonl
# !torchrun --nproc_per_node=2 main.py {options} --global-batch-size 512 \
#     --log-file results/live/07_512_2.jsonl
os.environ["OMP_NUM_THREADS"] = "2"
# !python main.py {options} --global-batch-size 512 --log-file results/live/07_512_threads.jsonl
os.environ["OMP_NUM_THREADS"] = "1"

# %%
ways = {"1 process": "results/live/07_512_1.jsonl", "2 ranks": "results/live/07_512_2.jsonl",
        "2 threads": "results/live/07_512_threads.jsonl"}
faster = {way: speedup_of(records(ways["1 process"]), records(log))[0] for way, log in ways.items()}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_two_ranks, faster["2 ranks"], "times (ranks)")
lesson.predicted(my_two_threads, faster["2 threads"], "times (threads)")
same = runs.read_runs(ways)
plots.accuracy_twice(same)
plt.show()
later = same[same["epoch"] > 0].groupby("label", sort=False)["seconds"]
lesson.table([{
    "512 images an update": way, "seconds an epoch": f"{seconds.min():.2f} to {seconds.max():.2f}",
    f"times as fast, by {whose} function": f"{faster[way]:.2f}",
    "loss at the end": f"{same[same['label'] == way]['loss'].iloc[-1]:.3f}"}
    for way, seconds in later])

# %% [markdown]
# Left, for the same epochs: one curve, whoever computed it. Right: who is there sooner. Where the seconds of two ways
# overlap, these runs do not tell which is faster. (The same pair over eight epochs, recorded on a quiet machine:
# [results/recorded/same-training](../results/recorded/same-training/README.md).)
#
# ## From which batch on?
#
# The more images an update has, the less a message weighs in it.
#
# **Predict.** With how many images an update are two ranks 1.7 times as fast as one process, on this machine? Choose
# from the powers of two between 64 and 2,048.

# %%
my_paying_batch = None  # images an update, both ranks together


# %% [markdown]
# ### Exercise 5: find it
#
# `measure(batch)` trains twice, with one process and with two ranks, and returns the speed-up. It takes a quarter of a
# minute, so call it seldom. The speed-up rises with the batch. `batches` is a list, the smallest first. Return the
# smallest batch that reaches `wanted`, or None if none does.

# %%
def my_batch(measure, batches, wanted):
    raise NotImplementedError


# %%
check.batch(my_batch)
# check.batch.hint()
# check.batch.solution()

# %% [markdown]
# The check has simulated machines. Now your search gets this one. (As long as it is not right, ours does.) The speed-up
# with 512 is known already.

# %%
wanted, measured_speedups = 1.7, {512: faster["2 ranks"]}


def measure(batch):
    if batch not in measured_speedups:
        log = f"results/live/07_{batch}"
        for ranks, program in {1: "python", 2: "torchrun --nproc_per_node=2"}.items():
            command = f"{program} main.py {options} --global-batch-size {batch}"
            get_ipython().system(f"{command} --log-file {log}_{ranks}.jsonl")  # as `!` does
        one, two = records(f"{log}_1.jsonl"), records(f"{log}_2.jsonl")
        measured_speedups[batch], efficiency = speedup_of(one, two)
    return measured_speedups[batch]


search, whose_search = check.batch.or_ours(my_batch)
paying = search(measure, [int(batch) for batch in batches.split()], wanted)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_paying_batch, paying, "images an update" if paying else "of these")
title = f"Two ranks against one process: {whose_search} search"
pairs = {batch: [runs.read_run(f"results/live/07_{batch}_{n}.jsonl") for n in (1, 2)]
         for batch in measured_speedups}
spreads = {batch: show.spread(*pair) for batch, pair in pairs.items()}
ax = plt.subplots(figsize=(13, 7))[1]
show.by_batch(measured_speedups, spreads, wanted, paying, ax, title)
plt.show()

# %% [markdown]
# Near the line, noise decides: the next search may end one batch further. *None*: on this machine two ranks do not get
# that far; compare with their ceiling above. A larger batch talks less, and learns less from the same images. Lesson
# [08](08_predict_scaling.ipynb) predicts this curve, lesson [09](09_large_batch.ipynb) shows the price.

# %% [markdown]
# ## The same on eight GPUs (recorded)
#
# Not measured here, and not by us: a tutorial published the console output of two runs, LeNet on CIFAR-10, one GPU and
# eight. The output of eight GPUs ends after exactly 1,000 characters: the page cut it, and nothing shows that the run
# stopped. (*Unfinished* in the pictures means: the log that we have ends early.) We compare it only with its own
# one-GPU run.

# %%
folder = "results/recorded/tutorial-one-gpu-vs-eight"
recorded = runs.read_runs(
    {"one GPU": f"{folder}/one_gpu.txt", "eight GPUs": f"{folder}/eight_gpus.txt"})
rec_table = runs.speedup_table(recorded)
eight = recorded[recorded.label == "eight GPUs"]

# %% jupyter={"source_hidden": true} tags=["hide-input"]
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 7))
plots.loss_by_epoch(recorded, left)
plots.seconds_per_epoch(rec_table, right)
plt.show()
alone, last = recorded[recorded.label == "one GPU"].seconds, rec_table.iloc[-1]
lesson.verdict(
    f"Speed-up **{last.speedup:.1f}**, efficiency {last.efficiency:.0%}, by the medians. But one "
    f"GPU took {alone.min():.0f} to {alone.max():.0f} s for the same work: from epoch to epoch the "
    f"speed-up is anything between {alone.min() / eight.seconds.max():.1f} and "
    f"{alone.max() / eight.seconds.min():.1f}.")
lesson.table(show.recorded(recorded))

# %% [markdown]
# **Predict.** The table leaves out the accuracy on eight GPUs. Judge by the losses: what was it in the last epoch that
# was printed?

# %%
my_accuracy = None  # %

# %% [markdown]
# ## The puzzle

# %% jupyter={"source_hidden": true} tags=["hide-input"]
printed = eight.accuracy.iloc[-1]
lesson.predicted(my_accuracy, 100 * printed, "%, as printed")
plots.accuracy_by_epoch(recorded, plt.subplots(figsize=(12, 7))[1])
plt.show()

# %% [markdown]
# Ten classes: blind guessing has 10 % of the hits, and loss ln 10 = 2.30.
#
# **Predict.** What went wrong in the counting? Say it as a number: by what must the printed accuracy be multiplied?

# %%
my_factor = None  # ×

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_factor, 8, "×")
corrected = eight.assign(label="eight GPUs × 8", accuracy=8 * eight.accuracy)
lesson.verdict(f"Two printed digits leave room: 8 × {printed:.2f} is anything from "
               f"{8 * (printed - 0.005):.2f} to {8 * (printed + 0.005):.2f}.")
plots.accuracy_by_epoch(pd.concat([recorded, corrected]), plt.subplots(figsize=(12, 7))[1])
plt.show()

# %% [markdown]
# A model with such a loss does not fall below blind guessing. So the counting is wrong, not the model. The tutorial's
# code is known: each rank divided the hits in **its own eighth** of the images by the number of **all** images, and
# nobody added the eight up.
#
# If a metric of yours shrinks as you add ranks, look for the missing all-reduce. In `main.py` each rank counts in sums:
# losses, hits, images. One all-reduce adds them up over all ranks. Only then is anything divided.

# %%
lesson.code(utils.count, utils.all_sum)

# %% [markdown]
# (The same code has `nn.Softmax` before `CrossEntropyLoss`, which holds a softmax already: so the loss stays high, on
# one GPU as on eight. Lesson [01](01_one_device.ipynb) shows it.)
#
# ## What others measured
#
# Weak scaling of BERT, samples a second of *each* GPU ([PyTorch issue
# 17159](https://github.com/pytorch/pytorch/issues/17159), which names neither GPU, batch nor network):
#
# | 1 GPU | 2 | 4 | 8 | 2 × 8, two machines |
# |--:|--:|--:|--:|--:|
# | 122 | 115 | 111 | 110 | 80 |
#
# Between machines the link is slower, and it shows. With much work for each byte sent, efficiency lasts: the paper on
# DDP ([Li et al. 2020](https://arxiv.org/abs/2006.15704)) reports near-linear scaling to 256 GPUs.
#
# ## Your machine on the class's board
#
# In a class, hand in the folder `results/live`: the board is one picture of all machines in the room, from the
# logs of this lesson. A log holds what was run, on how many cores of which processor, and how fast; no name. If you
# want one on the board, write it here:

# %%
board_name = None  # at most 40 characters
lesson.sign(board_name)

# %% [markdown]
# ## What to remember
#
# 1. Say what one device is and what is held fixed. Then a speed-up means something. With the global batch held fixed,
#    several ranks do the same training, sooner.
# 2. Less than ideal has three reasons: turns, sharing, talking. Processes that never talk show the ceiling.
# 3. A step is as long as the slowest rank's. Find the phase that grew, then the rank.
#
# **Next:** [08 · Predict](08_predict_scaling.ipynb)
#
# It predicts such runs from their parts, and goes on to more GPUs than we have.
