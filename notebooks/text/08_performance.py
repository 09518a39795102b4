# ---
# jupyter:
#   course:
#     minutes: 155
#     quick:
#       parameters:
#         batches: 64 512
#         ceiling_rounds: 1
#         epochs: 2
#         rounds: 1
#         largest: 1M
#         samples: 320
#         seeds: '0'
#         test_samples: 100
#         timed_samples: 1280
#         timed_sizes: 16 64
#         timing_rounds: 1
#       seconds: 95
#     seconds: 340
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · Performance: measure, explain, predict
#
# **The question.** `torchrun --nproc_per_node=8` starts eight processes that train one model together. How much faster
# is that than one process, where is the rest lost, and can we know it before we run?
#
# **You will be able to**
#
# - compute speed-up and efficiency from two logs, and say what was held fixed;
# - tell apart what is lost by taking turns, by sharing a machine, and by talking;
# - read from a log which phase of a step is too long, and find the rank that holds up the others;
# - have the same training sooner, and find the batch from which a second rank pays;
# - predict the time of a message, of a step and of an epoch of several ranks, and say how far the prediction was off;
# - say when DDP is slower than one process, and which link a larger job needs;
# - tell an upper bound from a prediction.
#
# **You need** [03 · Processes and ranks](03_processes_and_ranks.ipynb), [04 · Messages](04_collectives.ipynb) and
# [06 · DDP](06_ddp.ipynb).
#
# **Time.** About 155 minutes for you, 6 for the machine. It is for two sittings: the second begins at
# *Second sitting: predict*.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from trainer import data
from trainer import launch
from trainer import models
import utils
from course import compare, plots, runs
from course.predict import fit
from lessons.l08_performance import check, show, show_predicted
from lessons.l08_performance.scaling import ddp_buckets

# %% tags=["parameters"]
epochs = 6  # passes over the training images; the first one warms up and is not timed
samples = 6_144  # training images
test_samples = 2_000  # test images, looked at after each epoch
ceiling_rounds = 7  # each: 0.6 s for each number of processes that never talk
rounds = 9  # of each batch, for the search in exercise 5
batches = "64 128 256 512 1024 2048"  # images of an update, for that search
ranks = 2  # of the second sitting; each should have a core of its own, or a GPU
largest = "4M"  # bytes of the largest message
timing_rounds = 7  # times that everything is timed there, in turns
timed_sizes = "4 16 32 128"  # batch sizes of each rank
batch_size = 64  # the one that we predict: it is not among those that are timed
seeds = "0 1 2"  # a run of main.py for each
timed_samples, timed_epochs = 6400, 2  # of main.py; the first epoch warms up

# %% [markdown]
# ## What is one device?
#
# "Faster than one device" means little until we say what one device is. With GPUs it is **one GPU**. Without GPUs it is
# **one CPU core**: left alone, PyTorch would use all cores in one process, and a second process would find no free
# core. So every process below has one thread.
#
# (A core is what the operating system counts as a core. Two of them may be the two threads of one core of the chip.
# Then two ranks cannot be twice as fast. On two GPUs, as [Kaggle](../site/pages/systems.md) lends them, look at one and
# two ranks: four and eight ranks share the GPUs over `gloo`, and take turns.)

# %%
cores, gpus = launch.cores(), torch.cuda.device_count()
devices = gpus or cores
os.environ["OMP_NUM_THREADS"] = "1"
print(f"one device is one {'GPU' if gpus else 'core'}; this machine has {devices}")

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
    "global batch": n * batch_size, "steps an epoch": runs.updates_per_epoch(samples, n, batch_size),
    "ranks for each device": f"{n / devices:.3g}"} for n in sizes])

# %% [markdown]
# With a fixed batch for each rank we measure *weak scaling*. The *global batch*, that of all ranks together, grows with
# the ranks. An epoch has the same images, so it can take less time. But it has fewer steps, that is, fewer updates of
# the weights, and the training ends with a different result.
#
# *Strong scaling* fixes the global batch: with `--global-batch-size 64` each of n ranks takes 64 / n images. The
# updates are then the same, but there is less work between two messages. So strong scaling stops paying much earlier;
# the second sitting measures why.
#
# **Predict.** How many times as fast as one rank are eight ranks, epoch against epoch? And is their loss after the last
# epoch higher, lower, or equal?

# %%
my_times = None  # times as fast
my_loss = None  # "higher", "lower" or "equal"

# %% [markdown]
# ## One process
#
# The baseline. All ranks will run the same `main.py`.

# %%
options = f"--epochs {epochs} --samples {samples} --test-samples {test_samples}"
# !python main.py {options} --log-file results/live/07_1.jsonl

# %% [markdown]
# The second line names the model, the strategy, ranks × batch, the device and the threads. Then comes one line an
# epoch: `Loss` and `acc` are of the training images, `val` of the test images. `time cost` is the time of training
# alone, without the start and the test.
#
# ## Eight ranks
#
# Only the words before `main.py` change.

# %%
# !torchrun --nproc_per_node=8 main.py {options} --log-file results/live/07_8.jsonl \
#     --save-model results/live/07_8.pt

# %% [markdown]
# Eight processes ran, yet each line appears once: only rank 0 prints, and it prints sums over all ranks.
#
# Two ranks, four ranks, and the class that you wrote in lesson [06](06_ddp.ipynb) in the place of PyTorch's DDP. (If
# you have not written it, ours is used.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ours, mine = Path("lessons/start/ours/my_ddp.py"), Path("mine/my_ddp.py")
yours = mine.exists()
wrapper = f"{mine if yours else ours}:MyDDP"

# %%
# !torchrun --nproc_per_node=2 main.py {options} --log-file results/live/07_2.jsonl
# !torchrun --nproc_per_node=4 main.py {options} --log-file results/live/07_4.jsonl
# !torchrun --nproc_per_node=2 main.py {options} --wrapper {wrapper} \
#     --log-file results/live/07_my_ddp.jsonl

# %% [markdown]
# ## May we compare them?
#
# Did each run finish, on the same images, with the same settings?

# %% jupyter={"source_hidden": true} tags=["hide-input"]
logs = {n: f"results/live/07_{n}.jsonl" for n in sizes}
df = runs.read_runs({lesson.some(n, "rank"): log for n, log in logs.items()})
lesson.verdict(show.comparable(df, epochs))


# %% [markdown]
# **Speed-up** is how many times as fast as one process. **Efficiency** is the speed-up divided by the number of ranks.
# The log of a run holds all that both need: one record a line, written by rank 0.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
def records(log):
    """Of the last run in the log: a command that is started again adds its records."""
    every = [json.loads(line) for line in Path(log).read_text().splitlines()]
    last = max(place for place, record in enumerate(every) if record["kind"] == "run")
    return every[last:]


fields = ["kind", "world_size", "samples", "epoch", "seconds", "images_per_second"]
lesson.table([{name: f"{record[name]:.4g}" if isinstance(record.get(name), float)
               else record.get(name, "") for name in fields} for record in records(logs[8])])


# %% [markdown]
# `images_per_second` counts the images of all ranks. In the last record, `seconds` are those of the whole run.
#
# ### Exercise 1: speed-up and efficiency
#
# `one` and `many` are lists of such records: of one process, and of several ranks. The first epoch warms up, and does
# not count. Another epoch may have been disturbed; it must not change the result. The two runs need not have equally
# many images. Return two numbers: the speed-up, and the efficiency from 0 to 1.

# %%
def my_speedup(one, many):
    raise NotImplementedError


# %%
check.speedup(my_speedup)
# check.speedup.hint()
# check.speedup.solution()

# %% [markdown]
# Now your function reads the logs. (As long as it is not right, ours is used, and the picture says so.)

# %%
speedup_of, whose = check.speedup.or_ours(my_speedup)
lines = {"DDP": {n: speedup_of(records(logs[1]), records(logs[n])) for n in sizes}}
of_mine = speedup_of(records(logs[1]), records("results/live/07_my_ddp.jsonl"))
lines[f"MyDDP ({'yours' if yours else 'ours'})"] = {1: (1, 1), 2: of_mine}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
title = f"Speed-up and efficiency, computed by {whose} function"
show.speedups(lines, plt.subplots(figsize=(13, 7.5))[1], title, my_times)
lesson.figure("The ideal doubles when the ranks double. The runs stay below it, and more and more "
              "so where there are more ranks than devices.")
lesson.predicted(my_times, lines["DDP"][8][0], "times")


def rates(log):
    """Images a second of each epoch after the first."""
    return [record["images_per_second"] for record in records(log) if record["kind"] == "epoch"][1:]


elsewhere = runs.speedup_table(runs.read_runs("results/recorded/two-cpu-cores")).set_index("label")
of_wrapper = compare.of_separate_runs(
    rates("results/live/07_my_ddp.jsonl"), rates(logs[2]))
of_two = compare.of_separate_runs(rates(logs[2]), rates(logs[1]))
lesson.verdict([f"MyDDP, times as fast as DDP: {of_wrapper}",
                f"2 ranks, times as fast as one: {of_two}",
                f"The same on two other cores: {elsewhere.loc['ddp2', 'speedup']:.2f} "
                "([recorded](../results/recorded/two-cpu-cores/README.md))"])

# %% [markdown]
# The brackets hold the smallest and the largest ratio of two epochs; the first epoch is left out. These runs did not
# take turns, so there are no pairs, and by the rule of lesson [01](01_measure.ipynb) no winner is named. The
# speed-up of two ranks with 64 images each is no constant: it differs between machines, and between this lesson and
# lesson [00](00_start_here.ipynb). It is the time of a small step against the time of a message, and both vary.
#
# ## What is it lost to?
#
# The ideal is n times as fast with n ranks. Three losses lie between the ideal and the speed-up:
#
# - **Turns.** Only min(ranks, devices) ranks can work at the same moment; the others wait for their turn. Then a low
#   efficiency says nothing against DDP. (A GPU may have room: one rank with a small model does not fill it.)
# - **Sharing.** Processes that have a device each still share memory, caches and power. To measure this loss, we start
#   as many processes as ranks, each with a model of its own, that **never talk**. The images a second of all of them,
#   divided by those of one process alone, are the **ceiling** of this model with this batch on this machine.
# - **Talking.** This is what remains: messages, waiting for the slowest rank, and the work of DDP itself. The
#   second sitting tells these apart.
#
# **Predict.** One process alone trains x images a second. Eight processes that never talk run at the same time. How
# many times x do all eight together train?

# %%
my_ceiling = None  # times

# %%
# !torchrun --nproc_per_node=8 scripts/measure/side_by_side.py \
#     --rounds {ceiling_rounds} --seconds 0.6 --out results/live/07_ceiling.json
measured = json.loads(Path("results/live/07_ceiling.json").read_text())["ceilings"]
ceilings = {ceiling["ranks"]: ceiling for ceiling in measured}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_ceiling, ceilings[8]["ceiling"], "times")
table = runs.seconds_per_epoch(df).assign(speedup=[lines["DDP"][n][0] for n in sizes])
plots.under_ceiling(table, ceilings, devices, plt.subplots(figsize=(14, 8))[1], my_times)
lesson.figure("From the ideal down to the speed-up: the ranks lose by taking turns (grey), by "
              "sharing (yellow), and by talking (blue). The vertical bars show the range of the "
              "rounds.")
lesson.table(show.losses({n: compare.of_separate_runs(rates(logs[n]), rates(logs[1]))
                          for n in sizes}, ceilings, devices))


# %% [markdown]
# A row of the table reads from left to right: the ideal, less the three losses, is the speed-up. A round of the ceiling
# is a pair: all processes, and shortly before and after them one alone. So the brackets of *they share* hold the
# interval of lesson [01](01_measure.ipynb), and here 0 takes the place of 1: a loss is significant if its interval
# excludes 0. Below 0 it is noise. The brackets of *they talk* hold the smallest and the largest loss by single rounds
# and single epochs, for `main.py` did not run in turns with the ceiling. In the picture only the ceiling has bars for
# its range, and they may be too short to see. Ceiling and speed-up are each divided by a run of one process of their
# own, for the speed of a machine changes over minutes.
#
# ### Exercise 2: the same in milliseconds
#
# A step takes `alone` ms with one rank alone on the machine, and `together` ms with `ranks` ranks. Each rank has a
# batch of its own, as large as before. `ceiling` is the ceiling for these ranks, as you have just measured it: how many
# times the images a second of one process all of them reach if they never talk. How many ms does a step take longer
# because the processes are *beside each other* (turns and sharing), and how many because they *talk*? Return both.

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

# %% jupyter={"source_hidden": true} tags=["hide-input"]
steps = show.per_step(df)
few = steps[steps.world_size <= max(2, devices)]  # where the ranks need not take turns
plots.phases(few, plt.subplots(figsize=(14, 5))[1], "milliseconds a step, 64 images a rank", "ms")
lesson.figure("Compare each colour: `forward` can grow by sharing alone, `backward` also by the "
              "message.")
grown = show.grown(steps)
lesson.predicted(my_phase, grown)
later = steps[steps["epoch"] > 0].set_index("world_size")[f"{grown}_seconds"]
longer = compare.of_separate_runs(later[[2]], later[[1]])
lesson.verdict(f"{grown}, times as long with 2 ranks as with one: {longer}")

# %% [markdown]
# `forward` has no message, so it grows by sharing alone. `backward` shares the machine, too, and also contains the
# all-reduce of the gradients. DDP can send one bucket of gradients while `backward` still computes others
# ([06](06_ddp.ipynb)). LeNet's gradients fit into one bucket, so nothing is hidden here: `backward` contains the whole
# message, and the wait for the other ranks.
#
# The log is rank 0's. It shows how long *rank 0* waited. It does not show for whom.
#
# ### Exercise 3: who holds up the others?
#
# Your function runs on three ranks. `rounds` is the number of rounds. In each round call `work()`, which is this rank's
# own part of a step, and then `talk()`, which is a collective. Neither takes an argument. One rank is slow. In one of
# the rounds another rank is disturbed: that must not count. Return (number of the slow rank, seconds that its `work()`
# takes in a usual round), **the same on every rank**.
#
# (Here `work()` runs on the CPU. On a GPU a call returns before its work is done: synchronise before each look at the
# clock, or record CUDA events, as `main.py` does. Lesson [01](01_measure.ipynb) shows why.)

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
# ### Exercise 4: name the fault
#
# Four runs of `main.py` with two ranks, recorded on two cores. One run is sound. In the other three something was
# wrong, and the phases show what.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
folder = "results/recorded/went-wrong"
wrong = show.per_step(runs.read_runs(
    {run: f"{folder}/{run}.jsonl" for run in ("sound", "a", "b", "c")}))
phases = {run: show.medians(wrong, run) for run in ("sound", "a", "b", "c")}  # ms a step
ax = plt.subplots(figsize=(14, 6))[1]
plots.phases(wrong, ax, "milliseconds a step of rank 0 (recorded)", "ms")
lesson.figure("Each of the three faults makes the step longer than that of the sound run, "
              "and each fault lengthens different phases.")


# %% [markdown]
# `sound` and `run` are the milliseconds of each phase, `{"data": …, "forward": …, "backward": …, "update": …}`: of a
# sound run, and of a run to be judged. Return its fault: `"threads"` (each rank has too many of them), `"data"` (images
# come too slowly), `"batch"` (too few images a step to be worth a message), or `"slow rank"` (another rank is slow). A
# phase that has not doubled counts as unchanged.

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
# So far we have asked how fast the ranks are. What have they learned?

# %% jupyter={"source_hidden": true} tags=["hide-input"]
last = df.groupby("world_size")["loss"].last()
more = last[8] / last[1]  # within 1 % they are called equal
lesson.predicted(
    my_loss, "equal" if abs(more - 1) < 0.01 else "higher" if more > 1 else "lower")
fig, (left, right) = plt.subplots(1, 2, figsize=(18, 7))
plots.loss_by_epoch(df, left)
plots.loss_by_time(df, right)
lesson.figure("Left: with more ranks an epoch teaches less, for it has fewer updates. "
              "Right: so more images a second need not mean a lower loss a second.")

# %% [markdown]
# Each update of eight ranks rests on more images, but there are fewer updates. **Faster per image and better per image
# are two questions.** Lesson [09](09_large_batch.ipynb) asks the second one. But several ranks can also do the same
# training, update by update.
#
# ## The same training, sooner
#
# `--global-batch-size 512` fixes the images of an update: one process takes 512, each of two ranks takes 256. Then the
# updates are the same, but for rounding. A message has as many bytes as before, and the work between two messages is
# four times that of 64 images a rank.
#
# **Predict.** With 512 images an update, how many times as fast as one process are two ranks?

# %%
my_two_ranks = None  # times

# %%
large = f"{options} --global-batch-size 512"
# !python main.py {large} --log-file results/live/07_512_1.jsonl
# !torchrun --nproc_per_node=2 main.py {large} --log-file results/live/07_512_2.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ways = {"1 process": "results/live/07_512_1.jsonl", "2 ranks": "results/live/07_512_2.jsonl"}
plots.accuracy_twice(runs.read_runs(ways))
lesson.figure("Left: one curve, whether one process or two ranks computed it. "
              "Right: the two need different times for it.")
faster = compare.of_separate_runs(rates(ways["2 ranks"]), rates(ways["1 process"]))
lesson.predicted(my_two_ranks, faster.median, "times")
lesson.verdict(f"2 ranks, times as fast as 1 process: {faster}")

# %% [markdown]
# (The same pair over eight epochs, recorded on another machine:
# [results/recorded/same-training](../results/recorded/same-training/README.md).)
#
# ## From which batch on?
#
# The more images an update has, the less a message weighs in it.
#
# **Predict.** With how many images an update are two ranks 1.6 times as fast as one process, on this machine? Choose
# from the powers of two between 64 and 2,048.

# %%
my_paying_batch = None  # images an update, both ranks together


# %% [markdown]
# ### Exercise 5: find it
#
# `measure(batch)` measures one process and two ranks, in turns, and returns the speed-up. It takes about ten seconds,
# so call it seldom. The speed-up rises with the batch. `batches` is a list, the smallest batch first. Return the
# smallest batch that reaches `wanted`, or None if no batch does.

# %%
def my_batch(measure, batches, wanted):
    raise NotImplementedError


# %%
check.batch(my_batch)
# check.batch.hint()
# check.batch.solution()

# %% [markdown]
# The check has simulated machines. Now your search gets this machine. (As long as it is not right, ours is used.) The
# program times steps of `main.py`'s training: of one process, `alone`, and of two ranks, `ddp`.

# %%
wanted, speedups = 1.6, {}


def measure(batch):
    file = f"results/live/07_steps_{batch}.json"
    get_ipython().system(  # as `!` does; one process takes the batch, each of two ranks half of it
        "torchrun --nproc_per_node=2 lessons/l08_performance/step_time.py "
        f"--ways alone ddp --batch-sizes {batch} {batch // 2} --rounds {rounds} --out {file}")
    points = json.loads(Path(file).read_text())["models"]["lenet"]["points"]
    seconds = {(point["way"], point["batch_size"]): [step["step"] for step in point["rounds"]]
               for point in points}
    speedups[batch] = compare.ratio(seconds["alone", batch], seconds["ddp", batch // 2])
    return speedups[batch].median


search, whose_search = check.batch.or_ours(my_batch)
paying = search(measure, [int(batch) for batch in batches.split()], wanted)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_paying_batch, paying, "images an update" if paying else "of these")
title = f"Two ranks against one process: {whose_search} search"
show.by_batch(speedups, wanted, paying, plt.subplots(figsize=(13, 7))[1], title)
lesson.figure("The larger the batch, the more the second rank gains. The numbers give the order in "
              "which the search measured.")

# %% [markdown]
# An upright line is the 95 % interval of lesson [01](01_measure.ipynb). Near the wanted line noise decides: the next
# search may end one batch further. *None* means that two ranks do not get that far on this machine; compare with their
# ceiling above. A larger batch talks less, and learns less from the same images. The second sitting
# predicts this curve, and lesson [09](09_large_batch.ipynb) shows the price.
#
# The argument ends here. Each of the sections that follow up to the second sitting stands by itself: read them in any
# order, or leave them out.
#
# ## Two threads instead of two ranks
#
# One process can use two cores as well: it splits each operation over two *threads*. Threads meet at the end of every
# operation, ranks once a step. But ranks have to send gradients, and threads share them. (Threads end at one machine,
# and are for CPUs.)
#
# **Predict.** With 512 images an update, how many times as fast as one thread are two threads?

# %%
my_two_threads = None  # times

# %%
# !OMP_NUM_THREADS=2 python main.py {large} --log-file results/live/07_512_threads.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
threads = rates("results/live/07_512_threads.jsonl")
two = compare.of_separate_runs(threads, rates(ways["1 process"]))
lesson.predicted(my_two_threads, two.median, "times")
lesson.verdict([f"2 threads, times as fast as 1: {two}",
                "2 threads, times as fast as 2 ranks: "
                f"{compare.of_separate_runs(threads, rates(ways['2 ranks']))}"])

# %% [markdown]
# If the threads are faster here, this says nothing against DDP. Threads send no gradients, but they end at one machine.
# Ranks can go on where threads end.
#
# ## torchrun's banner
#
# In a terminal, `torchrun` begins with `Setting OMP_NUM_THREADS environment variable for each process to be 1 in
# default …`. This is no error. If every rank used all cores, the ranks would get in each other's way. So `torchrun`
# gives each rank one thread, unless you set the variable, as this lesson does.
#
# ## The same on eight GPUs (recorded)
#
# We did not measure this run. A tutorial published the console output of two runs, LeNet on CIFAR-10, on one GPU and on
# eight. The page cut the output of eight GPUs after exactly 1,000 characters; nothing shows that the run stopped.
# (*Unfinished* in the picture means: the log that we have ends early.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
folder = "results/recorded/tutorial-one-gpu-vs-eight"
recorded = runs.read_runs(
    {"one GPU": f"{folder}/one_gpu.txt", "eight GPUs": f"{folder}/eight_gpus.txt"})
alone, eight = (run for _, run in recorded.groupby("label", sort=False))
columns = ["epoch", "seconds", "loss", "accuracy"]
printed = alone[columns].merge(
    eight[columns[:-1]], "left", "epoch", suffixes=(", one GPU", ", eight"))
printed = printed.rename(columns={"accuracy": "accuracy, one GPU"})
lesson.table(printed.map(lambda value: "–" if pd.isna(value) else f"{value:.4g}"))
of_eight = compare.of_separate_runs(alone.seconds.iloc[1:], eight.seconds.iloc[1:])
lesson.verdict(f"Eight GPUs, times as fast as one: {of_eight}")

# %% [markdown]
# One GPU took 20 to 41 s for the same work, so the speed-up is known only roughly. Why it took so long is not known.
# The tutorial's code prepares the images one at a time, which keeps a GPU waiting.
#
# ## The puzzle
#
# **Predict.** The table leaves out the accuracy on eight GPUs. Its losses are there. Guess the accuracy that the page
# printed for the last of these epochs.

# %%
my_accuracy = None  # %

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_accuracy, 100 * eight.accuracy.iloc[-1], "%, as printed")

# %% [markdown]
# Ten classes: blind guessing is right for 10 % of the images, and its loss is ln 10 = 2.30. Here the loss is lower, but
# the printed accuracy is lower, too. A model can have both, but training hardly ever makes such a model. So suspect the
# counting before the model.
#
# **Predict.** By what must the printed accuracy be multiplied?

# %%
my_factor = None  # ×

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_factor, 8, "×")
corrected = eight.assign(label="eight GPUs × 8", accuracy=8 * eight.accuracy)
plots.accuracy_by_epoch(pd.concat([recorded, corrected]), plt.subplots(figsize=(12, 7))[1])
lesson.figure("Multiplied by eight, the printed accuracy comes near that of one GPU. "
              "(It was printed with two digits only, hence the steps.)")

# %% [markdown]
# The tutorial's code is known: each rank divided the hits in **its own eighth** of the images by the number of **all**
# images, and nobody added the eight numbers up. We make the mistake again, with the model that your eight ranks have
# trained above:

# %%
model = models.ConvNet()
model.load_state_dict(torch.load("results/live/07_8.pt", map_location="cpu"))
train_set = data.get_dataset("auto")[0].first(samples)
accuracies = []
for rank in range(8):
    images, labels = train_set.__getitems__(range(rank, samples, 8))  # this rank's eighth
    with torch.no_grad():
        hits = (model(images).argmax(1) == labels).sum().item()
    accuracies.append(hits / samples)  # the mistake: all images
print(*(f"rank {rank}: {one:.3f}" for rank, one in enumerate(accuracies)), sep=", ")
print(f"added up: {sum(accuracies):.3f}")

# %% [markdown]
# If a metric of yours shrinks as you add ranks, look for the missing all-reduce. In `main.py` each rank counts in sums:
# losses, hits, images. One all-reduce adds them up over all ranks. Only then does it divide.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.code(utils.count, utils.all_sum)

# %% [markdown]
# ## What others measured
#
# Weak scaling of BERT, samples a second of *each* GPU ([PyTorch issue
# 17159](https://github.com/pytorch/pytorch/issues/17159), which names neither GPU, batch nor network):
#
# | 1 GPU | 2 | 4 | 8 | 2 × 8, two machines |
# |--:|--:|--:|--:|--:|
# | 122 | 115 | 111 | 110 | 80 |
#
# The last column spans two machines. A slower link between them would explain the fall; the issue does not show the
# cause. With much work for each byte sent, the efficiency stays high: the paper on DDP ([Li et al.
# 2020](https://arxiv.org/abs/2006.15704)) reports near-linear scaling to 256 GPUs.

# %% [markdown]
# ## Second sitting: predict
#
# Can we know it *before* we run it? And how fast would 1,024 GPUs be, which we do not have? We put a step together from
# its parts: a message, a step alone, and what a machine gives to several processes. Then we say how far that was off.
#
# One thread per rank: a rank is one core. All that we measure goes to a new folder, so that we read no old result.
# Close other programs now: they would be in every number below.

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
#     --max-bytes {largest} --rounds {2 * timing_rounds} --out {folder}/messages.json

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
# ### Exercise 6: predict a message
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
size, worst = show_predicted.worst_error(message_seconds, points, pairs[::2])
refused = abs(worst) > 0.3

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ax = plt.subplots(figsize=(13, 7))[1]
show_predicted.time_by_size(points, message_seconds, pairs[::2], f"{whose} line: α + β · bytes", ax,
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
# ### Exercise 7: a collective that times itself
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
show_predicted.bus_bandwidth(points, published, f"here, {ranks} ranks", ax)
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
# The first sitting measured the **ceiling**: the images per second of processes that never communicate, added up,
# divided by those of one process alone. A ceiling of 1.7 on two ranks means that the machine loses 0.3 by sharing
# memory, caches and power. No better network would bring this loss back. Each process had 64 images per step there.
# Section 5 shows the ceiling for several batches.
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
# ### Exercise 8: predict the step, and the whole
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
# !torchrun --nproc_per_node={ranks} lessons/l08_performance/step_time.py \
#     --rounds {timing_rounds} --batch-sizes {timed_sizes} \
#     --out {folder}/steps.json > {folder}/steps.txt

# %%
table = show_predicted.parts(measured("steps")["models"]["lenet"]["points"])
alone = table.groupby("batch_size")["a step alone"].median()
fixed, per_image = fit.fit(alone.index, alone)
gradient_bytes = sum(4 * p.numel() for p in models.ConvNet().parameters())
message = message_seconds(gradient_bytes, pairs)
if refused:  # the line: go from one measured size to the next
    message = np.interp(gradient_bytes, points["bytes"], points["seconds"])
predict, whose_model = check.prediction.or_ours(my_prediction)
model = f"{whose_model} model"
first, epoch_seconds = predict(
    timed_samples, batch_size, ranks, fixed, per_image, message)

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
parts = show_predicted.between(table, batch_size)
lesson.table(show_predicted.parts_table(table))
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
options = f"--batch-size {batch_size} --epochs {timed_epochs} --samples {timed_samples}"
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
steps = later["seconds"] * batch_size * later["world_size"] / timed_samples  # seconds of one
ones, many = steps[later["world_size"] == 1], steps[later["world_size"] == ranks]
lesson.predicted(my_part, many.median() / ones.median() / ranks, "of one rank's time")
ax = plt.subplots(figsize=(13, 7))[1]
show_predicted.staircase(1e3 * parts, 1e3 * first, 1e3 * many, model, ax,
               f"A step of {ranks} ranks, batch {batch_size} each")
lesson.figure("The blue parts add up to one prediction, the model gives the other; both are "
              "dotted. The green bar is what main.py took. The gap between them is what the "
              "predictions miss.")
one_step = fixed + per_image * batch_size
lesson.table(show_predicted.errors_table(many, ones, first, parts.sum(), one_step, model))
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
speedups = show_predicted.speedups(table, ranks)
ceiling = show_predicted.speedups(table, ranks, "side_by_side")
first_model, of_parts = {}, {}
for n in range(alone.index.min(), alone.index.max() + 1):
    one, several = (predict(timed_samples, n, size, fixed, per_image, message)[0] for size in (1, ranks))
    first_model[n] = ranks * one / several
    at = show_predicted.between(table, n)
    of_parts[n] = ranks * at["a step alone"] / at.sum()
off = show_predicted.worst_speedup(first_model, speedups)
curve = {f"{model},\noff by up to {off:+.0%}": first_model, "sum of the parts": of_parts}
lesson.predicted(my_smallest, show_predicted.smallest(speedups))
lesson.predicted(my_ceilings, show_predicted.smaller_batch(table))
ax = plt.subplots(figsize=(14, 8))[1]
show_predicted.by_batch(speedups, curve, ceiling, ranks, ax, f"LeNet: {ranks} ranks against one process")
lesson.figure("Below the black line DDP trains fewer images a second than one process; the upright "
              "line shows whether the difference is significant. "
              "From the dashed line (nothing lost) down to the grey line the machine takes its"
              " share; from the grey line down to the dots DDP pays for talking.")
lesson.verdict(show_predicted.pays(speedups))


# %% [markdown]
# The rule of lesson [01](01_measure.ipynb) decides: DDP is faster or slower only where the whole upright line, the
# 95 % interval of the ratio, lies on one side of 1. A dot whose line crosses 1 is a hint, not a result.
#
# The gradients have as many bytes for a batch of 4 as for one of 128. So their message weighs less, the longer a step
# is. DDP pays for waiting, for messages and for itself.
#
# ### Exercise 9: from which batch size on?
#
# One rank's step takes `fixed + per_image * n` seconds. Each rank has a device of its own and a batch of n. DDP adds
# `all_reduce` seconds to a step, and nothing hides them. Return the smallest whole n with which the ranks do more
# images a second than one rank.

# %%
def my_break_even(fixed, per_image, all_reduce, ranks):
    raise NotImplementedError


# %%
check.break_even(my_break_even)
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
within, between = show_predicted.latencies(
    published, 256 * 2**10, "8 × B200, one node", "32 × B200, four nodes", nodes=4)
series = show_predicted.series()
reached = {name: show_predicted.efficiency(run) for name, run in series.items()}


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
bands = {name: show_predicted.band(run, step, between, share=0.5)
         for name, run in series.items() if "network" in run}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_percent, 100 * bands["ResNet-50, P100"][1024][1], "%")
show_predicted.to_many(bands, reached, plt.subplots(figsize=(14, 8))[1],
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
# ### Exercise 10: which link?
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
# ## Your machine on the class's board
#
# In a class, hand in the folder `results/live`: the board is one picture of all machines in the room, from the logs of
# this lesson. A log holds what was run, on how many cores of which processor, and how fast, but no name. If you want a
# name on the board, write it here:

# %%
board_name = None  # at most 40 characters
lesson.sign(board_name)

# %% [markdown]
# ## What to remember
#
# 1. Say what one device is and what is held fixed; only then does a speed-up mean something. With the global batch held
#    fixed, several ranks do the same training, sooner.
# 2. Processes that never communicate set the ceiling. Below it, a step of several ranks is a step alone, slower
#    together, waiting, the all-reduce, and DDP itself. Find the phase that grew, then the rank.
# 3. Write the prediction down before you run, and give its error as a range over several runs. A model that forgets
#    costs is an upper bound: call it so.
#
# **Next:** [09 · A larger batch](09_large_batch.ipynb)
#
# More ranks make the batch of all together larger. What does that do to the training?
