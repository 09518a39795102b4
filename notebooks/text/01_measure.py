# ---
# jupyter:
#   course:
#     minutes: 40
#     quick:
#       parameters:
#         calls: 2
#         rounds: 2
#         steps: 40
#       seconds: 40
#     seconds: 80
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Measure
#
# **The question.** You have changed a program, and its times look better. Is it faster?
#
# **At the end** your program has a stopwatch of yours, `mine/stopwatch.py`, and you have changed the program and
# judged the change by the rule that this course uses for every *faster*.
#
# **You need** [00 · Start here](00_start_here.ipynb).
#
# **Time.** About 40 minutes for you, 2 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import copy
import math
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import torch
from torch.nn.functional import cross_entropy

from course import compare
from lessons.l01_measure import check, show
from lessons.l01_measure.turns import neighbours, one_core, taking_turns

# %% tags=["parameters"]
steps = 120  # that are timed one by one
rounds = 12  # of each comparison; 6 or more for a verdict
calls = 8  # steps in a round


# %% [markdown]
# ## The same step, many times
#
# `%run` starts your program inside this notebook. With no epochs it only makes ready: its model, its optimizer and
# its function `batch` are now ours to time.

# %%
# %run mine/train.py --epochs 0 --batch 64

# %% [markdown]
# This is one training step, timed again and again. For a second of that time, other programs want the same core. On a
# machine that you share this happens unasked.

# %%
def step():
    images, labels = batch(train_set, range(64))
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()


begun, milliseconds = [], []
with one_core():  # this notebook, and what it starts
    for number in range(steps):
        if number == steps // 2:
            neighbours(seconds=1)
        begun.append(time.perf_counter())
        step()
        milliseconds.append(1000 * (time.perf_counter() - begun[-1]))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
disturbed = [number for number in range(steps // 2, steps)
             if begun[number] < begun[steps // 2] + 1]
show.steps(milliseconds, range(disturbed[0], disturbed[-1] + 1))
lesson.figure("Each dot is one step. The work is always the same.")
lesson.table([{"a step, judged by": name, "ms": f"{ms:.1f}"} for name, ms in {
    "the first step": milliseconds[0], "the mean": fmean(milliseconds),
    "the median": median(milliseconds)}.items()])

# %% [markdown]
# - **The first step** includes a warm-up. Memory is allocated for the first time, and libraries choose their code for
#   this size of batch.
# - **The mean**, times the number of steps, is how long you waited. It contains the warm-up and every disturbance.
# - **The median** is the step in the middle: half of the steps are shorter. A few long steps do not move it. If more
#   than half of the steps are disturbed, the median moves, too.
#
# To learn what *your code* costs, leave the warm-up out, and take the median.
#
# ## The clock that stops too early
#
# A GPU works through a queue. A call only puts work into the queue, and returns. `torch.cuda.synchronize()` waits
# until the queue is empty. Here a thread plays the GPU. Python gives it three batches, one after the other, and
# prepares the next batch meanwhile.

# %%
spans = []


def span(lane, what, work):
    begin = time.perf_counter()
    result = work()
    spans.append((lane, what, begin, time.perf_counter()))
    return result


gpu = ThreadPoolExecutor(1)  # it works through what it is given, in order
start = time.perf_counter()
for _ in range(3):
    images, labels = span("Python", "prepare a batch", lambda: batch(train_set, range(64)))
    forward = partial(span, "device", "forward", partial(model, images))
    call = gpu.submit(forward)
early = time.perf_counter() - start  # all calls have returned
span("Python", "wait", call.result)  # as torch.cuda.synchronize()
late = time.perf_counter() - start

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.queue([(lane, what, begin - start, end - start) for lane, what, begin, end in spans],
           early, late)
lesson.figure("Two lanes of time. A clock that does not wait stops when the last call has "
              "returned: it has timed Python, and not the work.")

# %% [markdown]
# On a GPU the missing time shows up at the next line that needs a result: `loss.item()`, `print(loss)`, `.cpu()`. So
# a program can look slow in a line that only waits.
#
# ### Exercise 1: the stopwatch
#
# Write `now(device)`. It returns the time in seconds, as `time.perf_counter()` does, once the device has done all
# that it was given. `device` is a `torch.device`: `device.type` is `"cpu"` or `"cuda"`. `train.py` calls it before
# and after each epoch. The check has three kinds of devices.

# %%
# %%mine stopwatch.py
import time

import torch


def now(device):
    raise NotImplementedError


# %%
check.stopwatch("mine/stopwatch.py")
# check.stopwatch.hint()
# check.stopwatch.solution()

# %% [markdown]
# From here on this notebook times with your stopwatch, too. As long as you have not written it, ours is used.

# %%
stopwatch = check.stopwatch.file or "lessons/start/ours/stopwatch.py"
now = runpy.run_path(stopwatch)["now"]
print("From here on this notebook's stopwatch is", stopwatch)


# %% [markdown]
# ## Faster?
#
# Two programs, and two times that differ by 2 %, say. The times of *one* program differ by more than that, as you
# have seen. How do we find out?
#
# ### Exercise 2: fair rounds
#
# `programs` is a dict of functions: `programs[name]()` trains for a moment. `now()`, here without an argument, is the
# time in seconds. In each round every program runs once, and is timed. Return `{name: [its seconds, round by round]}`.
#
# The check has machines on which something disturbs you. On each of them the seconds of a round must have the right
# ratio. As long as your function is not right, ours takes its place below.

# %%
def my_rounds(programs, rounds, now):
    raise NotImplementedError


# %%
check.rounds(my_rounds)
# check.rounds.hint()
# check.rounds.solution()

# %% [markdown]
# The two times of a round are a **pair**. What slows a whole round slows both, and falls out of their ratio. The
# course's rule for *faster* ([`course/compare.py`](../course/compare.py)) uses these ratios:
#
# - We state the **median** of the pairs' ratios.
# - The brackets hold its **95 % confidence interval**. With ever more pairs the median would settle at one value; the
#   interval is made to contain that value. If the whole comparison is repeated often, at least 95 % of the intervals
#   contain it.
# - One program is *faster* only if the interval excludes 1. The difference is then **significant**. Otherwise there
#   is **no significant difference**. That does not mean *equal*: more rounds narrow the interval.
#
# The ends of the interval are two of the ratios: of six to eight pairs the smallest and the largest, of nine to eleven
# the second smallest and the second largest, of twelve to fourteen the third ones. Fewer than six pairs name no
# winner. If two programs are equally fast, each ratio is above 1 with probability 1/2, like a coin. Five of five on
# one side have a probability of 2 × (1/2)⁵ = 6 %, six of six have 3 %. No assumption about the distribution of the
# times is needed.
#
# Now we put two changes of one line to the test. The **control** is the same program once more: the rule should not
# call it faster.
#
# - `fused=True`: the optimizer makes its update of each tensor in one pass.
# - `channels_last`: the channels of a pixel stand side by side in memory ([what PyTorch
#   says](https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html)).
#
# **Predict**: which of the two makes the step significantly faster?

# %%
my_faster = None  # "none", "fused", "channels_last" or "both"


# %%
def training(memory_format=torch.contiguous_format, **options):
    own = copy.deepcopy(model).to(memory_format=memory_format)
    its = torch.optim.SGD(own.parameters(), lr=0.05, momentum=0.9, **options)

    def train():
        for _ in range(calls):
            images, labels = batch(train_set, range(64))
            its.zero_grad()
            cross_entropy(own(images), labels).backward()
            its.step()

    return train


programs = {"as it is": training(), "control": training(), "fused": training(fused=True),
            "channels_last": training(torch.channels_last)}
take_rounds, _ = check.rounds.or_ours(my_rounds)
seconds = take_rounds(programs, rounds, partial(now, device))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ratios = {name: compare.ratio(seconds["as it is"], seconds[name]) for name in list(seconds)[1:]}
faster = [name for name in ("fused", "channels_last")
          if ratios[name].significant and ratios[name].low > 1]
lesson.predicted(my_faster, "both" if len(faster) == 2 else (faster or ["none"])[0], what="which program is faster")
lesson.table([{"program": name, "median, ms per step": f"{1000 * median(of) / calls:.2f}",
               "speed-up over *as it is*": str(ratios.get(name, 1))} for name, of in seconds.items()])

# %% [markdown]
# Look at the control first. If it is significantly faster than itself, that is chance, or something that lasts and is
# not the program, such as its place in memory. Then do not trust a difference of that size in the other rows, either.
# The rule errs, too: of a hundred comparisons of equal programs, expect up to five with a winner.
#
# Two runs that did not take turns have no pairs, as in lesson 00. Then we state a ratio, and name no winner.
#
# ## What can a change gain?
#
# Before you make a part faster, ask what the whole would gain. A step has four phases. We time each with the
# stopwatch.

# %%
phases = {"data": [], "forward": [], "backward": [], "update": []}
for _ in range(steps):
    times = [now(device)]
    images, labels = batch(train_set, range(64))
    times.append(now(device))
    loss = cross_entropy(model(images), labels)
    times.append(now(device))
    optimizer.zero_grad()
    loss.backward()
    times.append(now(device))
    optimizer.step()
    times.append(now(device))
    for phase, (begin, end) in zip(phases, pairwise(times), strict=True):
        phases[phase].append(1000 * (end - begin))
phases = {phase: median(ms) for phase, ms in phases.items()}
lesson.table([{"phase": phase, "ms": f"{ms:.2f}", "share": f"{ms / sum(phases.values()):.0%}"}
              for phase, ms in phases.items()])


# %% [markdown]
# ### Exercise 3: the gain
#
# `phases` is a dict as above. The phase `name` becomes `times` times as fast, and the others stay as they are. How
# many times as fast is the whole step? `times` can be `math.inf`: then the phase takes no time at all.

# %%
def my_gain(phases, name, times):
    raise NotImplementedError


# %%
check.gain(my_gain)
# check.gain.hint()
# check.gain.solution()

# %% [markdown]
# Does your function tell the truth? An experiment makes backward 2, 4 and 8 times as fast: it is called in one of 2,
# 4 or 8 steps only. Nothing useful is learned that way, but the time is real.

# %%
def backward_in_one_of(few):
    def train():
        for number in range(8):
            images, labels = batch(train_set, range(64))
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            if number % few == 0:
                loss.backward()
            optimizer.step()

    return train


experiments = {few: backward_in_one_of(few) for few in (1, 2, 4, 8)}
seconds = take_rounds(experiments, rounds, partial(now, device))
measured = {few: compare.ratio(seconds[1], seconds[few]) for few in (2, 4, 8)}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
gain, whose = check.gain.or_ours(my_gain)
curves = {phase: {times / 4: gain(dict(phases), phase, times / 4) for times in range(4, 41)}
          for phase in ("backward", "update")}
show.amdahl(curves, measured, gain(dict(phases), "backward", math.inf), whose)
lesson.figure("Lines: computed from the table above. Squares: measured, with 95 % intervals. "
              "However fast backward becomes, the step stays below the limit.")

# %% [markdown]
# This is **Amdahl's law**. What you leave alone sets the limit. The line of the update hardly rises: whoever makes a
# small phase faster gains next to nothing for the step. That is why `fused=True` has so little to give.
#
# The law will come back. Several ranks share data, forward and backward; they do not share the update, the messages
# and the start.
#
# ## A change of your own
#
# Lesson 00 compared two ranks with one process on **one core**. Was that fair? Without the line
# `torch.set_num_threads(1)` PyTorch uses all cores in one process. The cell makes a copy of your program without that
# line. Later, put a change of yours there: another batch size, `channels_last`, or whatever you would like to know.

# %%
old, new = "torch.set_num_threads(1)", ""  # what stands in train.py, and what takes its place
program = Path("mine/train.py").read_text()
Path("mine/changed.py").write_text(program.replace(old, new))
assert old in program, "train.py has no such text"

# %% [markdown]
# Three programs now train in turns: your program, the changed one, and your program on two ranks. Each starts once.
# In its turn it trains on 960 images, then it stands still while the others train. So a changed batch size still does
# equal work. Your function calls the turns.
#
# **Predict** two numbers, each against your program on one core.

# %%
my_all_cores = None  # one process with all cores: how many times as fast?
my_two_ranks = None  # two ranks with a core each: how many times as fast?

# %%
enough = f"--images {960 * (rounds + 2)} --epochs 1"
commands = {"one process": f"python mine/train.py {enough}",
            "changed": f"python mine/changed.py {enough}",
            "two ranks": f"torchrun --nproc_per_node=2 mine/train.py {enough}"}
with taking_turns(commands, images=960) as programs:
    seconds = take_rounds(programs, rounds, partial(now, "cpu"))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
against = {name: compare.ratio(seconds["one process"], seconds[name])
           for name in ("changed", "two ranks")}
lesson.predicted(my_all_cores, against["changed"].median, "times as fast", what="one process, all cores")
lesson.predicted(my_two_ranks, against["two ranks"].median, "times as fast", what="two ranks")
lesson.table([{"program": name, "median, ms per 960 images": f"{1000 * median(seconds[name]):.0f}",
               "speed-up over one process": str(against.get(name, 1))} for name in seconds])
fair = compare.ratio(seconds["changed"], seconds["two ranks"])
lesson.verdict(f"Speed-up of two ranks over the changed program: {fair}.")

# %% [markdown]
# The last line compares two ranks with all cores of this machine. With two cores that is fair. With more, start as
# many ranks. In one process the cores meet in every layer, since PyTorch divides each operation among them. Two ranks
# meet once per update. On a cluster the question does not arise: a process has a GPU of its own. So the course goes
# on with one core per rank.
#
# Now change `old` and `new`, and run the section again. Write down your prediction first.
#
# ## Your program, with your stopwatch

# %%
# !python mine/train.py

# %% [markdown]
# The line `parts` says whose stopwatch it was. The losses are those of lesson 00: a clock changes nothing in the
# training. The last number of each line is now a time that you answer for, on a CPU and on a GPU.
#
# ## For reference
#
# <details><summary>Cards: where a GPU makes you wait, precision, a loss that is silently wrong</summary>
#
# - **Where Python waits for a GPU**: `.item()`, `.tolist()`, `.cpu()`, `print(tensor)`, `if tensor:`, and a call that
#   finds the queue full. Call `.item()` once per epoch, not once per step. To time parts of a step without waiting,
#   put `torch.cuda.Event(enable_timing=True)` into the queue: `utils.PhaseTimer` does.
# - **Model and data on one device**: `model.to(device)` moves the model itself. `images.to(device)` returns a copy,
#   which you must use.
# - **Faster matrix products** on recent NVIDIA GPUs, a little less exact:
#   [`torch.set_float32_matmul_precision("high")`](https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html).
# - **Two softmaxes** raise no error, and the loss goes down. `CrossEntropyLoss` wants *logits*: it takes the softmax
#   itself. If the model ends in a softmax of its own, the loss of ten classes cannot fall below log(e + 9) − 1 =
#   1.46, however good the model is.
#
# </details>

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Leave out the warm-up, wait for the device before you look at the clock, and take the median.
# 2. Let programs take turns. One is faster only if the interval of the pairs' ratios excludes 1.
# 3. The phases that you leave alone set the limit. Compute the gain before you work for it.
#
# **Next:** [02 · DataParallel](02_data_parallel.ipynb): one process, several GPUs, one changed line, and why PyTorch
# advises against it.
