"""Exercises of lesson 08: the time of a message, an all-reduce that times itself, the time of a step and of an epoch,
the batch from which DDP pays, and the link that 64 GPUs need. The second runs on ranks: course/on_ranks.py says how."""

import math
import statistics
import time
from functools import partial
from numbers import Integral

import numpy as np
import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, exercise
from course.lesson import some
from course.on_ranks import exercise_on_ranks


def spread(values):
    return max(values) - min(values)


# Exercise 1: the time of a message
def my_message(bytes, points):
    (small, first), (large, last) = points[0], points[-1]
    beta = (last - first) / (large - small)
    alpha = first - beta * small
    return alpha + beta * bytes


def shortest_as_latency(bytes, points):
    (small, first), (large, last) = points[0], points[-1]
    return first + (last - first) / (large - small) * bytes


def power_law(bytes, points):
    (small, first), (large, last) = points[0], points[-1]
    return first * (bytes / small) ** (math.log(last / first) / math.log(large / small))


def links():
    """(α in s, β in s a byte, sizes that were measured, sizes to be predicted) of each case."""
    return [(500e-6, 1e-9, [100_000, 400_000, 1_600_000], [250_000, 16_000_000]),
            (20e-6, 4e-9, [1000, 8000], [2000, 100_000])]


@exercise(
    solution=my_message,
    hint="Two of the points are enough. By how many bytes do they differ, and by how many seconds? That is beta. What "
    "is left of the seconds of one point, without beta times its bytes, is alpha.",
    mistakes={
        "Seconds in proportion to the bytes: then an empty message would take no time. There is a latency, too.":
            lambda bytes, points: bytes * points[-1][1] / points[-1][0],
        "The largest message has paid the latency as well: seconds by bytes is more than beta. Take the difference of "
        "two points.": lambda bytes, points: points[0][1] + bytes * points[-1][1] / points[-1][0],
        "The shortest message has bytes, too: take beta times its bytes off, before you call its time alpha.":
            shortest_as_latency,
        "This is the time of the nearest message that was measured.":
            lambda bytes, points: min(points, key=lambda point: abs(point[0] - bytes))[1],
        "Between the points this is right. But a message larger than all of them takes longer than the largest.":
            lambda bytes, points: float(np.interp(bytes, *zip(*points, strict=True))),
        "A straight line on logarithmic axes is a power of the bytes, not alpha + beta * bytes.": power_law,
    },
)
def message(answer):
    """You draw a line through messages that were measured, and read any other from it. Real points lie beside such a
    line: the lesson shows by how much."""
    for alpha, beta, measured, sizes in links():
        points = [(size, alpha + beta * size) for size in measured]
        shown = ", ".join(f"{size:,} bytes {1e6 * seconds:,.1f} µs" for size, seconds in points)
        for size in sizes:
            got, right = answer(size, list(points)), alpha + beta * size
            if isinstance(got, tuple | list) or got is None:
                raise Wrong(f"Your function returned {got!r}. Return the seconds of a message, a number.")
            yield Case(float(got), right, f"Measured: {shown}. For {size:,} bytes you gave {1e6 * float(got):,.1f} µs; "
                                          f"{1e6 * right:,.1f} µs is right.", rel_tol=1e-4)


# Exercise 2: a collective that times itself
def my_timing(call, rounds):
    call()
    seconds = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        call()
        took = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds.append(took.item())
    return statistics.median(seconds)


def mistimed(mistake, call, rounds):
    """my_timing, but for one mistake."""
    if mistake != "no warm-up":
        call()
    seconds = []
    for _ in range(rounds):
        if mistake != "not together":
            dist.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    seconds = torch.tensor(seconds)
    if mistake == "median first":
        seconds = seconds.median()
    if mistake == "mean of the ranks":
        dist.all_reduce(seconds)
        seconds /= dist.get_world_size()
    elif mistake != "own rank":
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return (seconds.mean() if mistake == "mean of the rounds" else seconds.median()).item()


WARM_UP = 0.3  # seconds: how late the first call ends
# By how much each later call ends late, on ranks 0, 1, 2. The slowest of each: 150, 130, 160, 500, 250 ms. Each mistake
# is off by more than a busy machine adds: the ranks' own medians, the mean of the ranks, a start 490 ms apart.
LATE = [(0.15, 0.01, 0.03), (0.01, 0.13, 0.03), (0.01, 0.01, 0.16), (0.01, 0.5, 0.03), (0.25, 0.01, 0.03)]


def measure_timing(function, context):
    """The function's result, and when each collective began and ended on this rank."""
    spans = []

    def call():
        start, number = time.monotonic(), len(spans)  # the clock is the same for all processes
        dist.all_reduce(torch.zeros(1000))
        time.sleep(LATE[(number - 1) % len(LATE)][context.rank % 3] if number else WARM_UP)
        spans.append((start, time.monotonic()))

    seconds = function(call, len(LATE))
    if seconds is None:
        raise Wrong(f"On rank {context.rank} your function returned None. Every rank needs the number.")
    return {"seconds": float(seconds), "spans": spans}


@exercise_on_ranks(
    measure_timing,
    solution=my_timing,
    hint="One call that does not count. Then, in each round: dist.barrier(), read the clock, call(), read the clock; "
    "dist.all_reduce(seconds, op=dist.ReduceOp.MAX) of the difference, as a tensor. At the end statistics.median.",
    mistakes={
        "The first call is slow, since a first message connects the ranks and takes memory. It must not count: warm up "
        "with one more call, before the rounds.": partial(mistimed, "no warm-up"),
        "Each rank has timed itself. A collective has ended when the last rank has its result, so take the slowest of "
        "all: dist.all_reduce with dist.ReduceOp.MAX.": partial(mistimed, "own rank"),
        "Thus you also timed how long the ranks waited for one another. Let them start each round together: "
        "dist.barrier().": partial(mistimed, "not together"),
        "You took the mean of the ranks. But all wait for the slowest.": partial(mistimed, "mean of the ranks"),
        "This is the mean of the rounds: one disturbed round moves it. The median stays.":
            partial(mistimed, "mean of the rounds"),
        "You took the median of each rank first. The slowest rank is another one in each round: MAX first, then the "
        "median.": partial(mistimed, "median first"),
    },
)
def timing(ranks):
    """This is how message_time.py measures: warmed up, begun together, the slowest rank of each round, and the median
    of the rounds. Each of the four changes the number. On a GPU also torch.cuda.synchronize() before each reading of
    the clock (a collective of NCCL returns before it is done; message_time.py waits for it), and the tensor there."""
    rounds, seconds = len(LATE), [measured["seconds"] for measured in ranks]
    calls = list(zip(*(measured["spans"] for measured in ranks), strict=True))
    yield Case(min(len(calls) - rounds, 1), 1,
               f"You made {len(calls)} calls for {rounds} rounds; at least {rounds + 1} are needed.")
    if len(calls) < rounds:
        return
    calls = calls[-rounds:]
    waited = max(spread([start for start, _ in of_ranks]) for of_ranks in calls)
    yield Case(waited > 0.25, False,
               f"In one round the last rank began {1e3 * waited:.0f} ms after the first.")
    yield Case(spread(seconds) > 0.001, False,
               f"The ranks returned {' and '.join(f'{1e3 * value:.0f}' for value in seconds)} ms. They must return the "
               "same number.")
    took = [[end - start for start, end in of_ranks] for of_ranks in calls]
    slowest, right = list(map(max, took)), statistics.median(map(max, took))
    kinds = {"median of the slowest": right, "mean of the slowest": statistics.mean(slowest),
             "median of the means": statistics.median(map(statistics.mean, took)),
             "slowest of the medians": max(map(statistics.median, zip(*took, strict=True)))}
    # They come from the same calls as the answer, so a busy machine does not move it to another name.
    kind = min(kinds, key=lambda kind: abs(seconds[0] - kinds[kind]))
    kind = kind if math.isclose(seconds[0], kinds[kind], rel_tol=0.12) else "none of them"
    yield Case(kind, "median of the slowest",
               f"You gave {1e3 * seconds[0]:.0f} ms; {1e3 * right:.0f} ms is right. The slowest rank of each round "
               f"took {', '.join(f'{1e3 * value:.0f}' for value in slowest)} ms.")


# Exercise 3: a step, and an epoch
def my_prediction(samples, batch, ranks, fixed, per_image, message):
    def step(images):
        return fixed + per_image * images + (message if ranks > 1 else 0)

    full, rest = divmod(math.ceil(samples / ranks), batch)
    return step(batch), full * step(batch) + (step(rest) if rest else 0)


def in_equal_steps(rounded, samples, batch, ranks, *times):
    step = my_prediction(samples, batch, ranks, *times)[0]
    return step, rounded(samples / ranks / batch) * step


@exercise(
    solution=my_prediction,
    hint="A step of one rank takes fixed + per_image * batch; with several ranks the message comes on top. How many "
    "images has each rank, and how many full steps are these? divmod gives the full steps and the images that are "
    "left. The last step computes less, and sends as much.",
    mistakes={
        "With several ranks each step has a message: the gradients.":
            lambda *case: my_prediction(*case[:-1], 0),
        "One rank alone has nobody to send to.":
            lambda samples, batch, ranks, fixed, per_image, message: (
                my_prediction(samples, batch, ranks, fixed + message, per_image, 0)),
        "`message` is the time until all ranks have their result. The ranks do not take turns.":
            lambda samples, batch, ranks, fixed, per_image, message: (
                my_prediction(samples, batch, ranks, fixed, per_image, ranks * message)),
        "`batch` is that of each rank: its step computes all of it.":
            lambda samples, batch, ranks, fixed, per_image, message: (
                my_prediction(samples, batch, ranks, fixed, per_image / ranks, message)),
        "The ranks share the images of an epoch.":
            lambda samples, batch, ranks, *times: (
                my_prediction(samples, batch, ranks, *times)[0],
                my_prediction(samples * ranks, batch, ranks, *times)[1]),
        "The gradients are sent in each step, not once.":
            lambda *case: (my_prediction(*case)[0], my_prediction(*case[:-1], 0)[1] + case[-1]),
        "The last step of an epoch may have fewer images than the others.":
            partial(in_equal_steps, math.ceil),
        "A step with fewer images still has its fixed part and its message, whole: there is no part of a step.":
            partial(in_equal_steps, float),
        "The images that fill no batch are trained on as well: one more, shorter step.":
            partial(in_equal_steps, math.floor),
    },
)
def prediction(answer):
    """A first model of DDP: a step of one rank, and the message on top. It needs three numbers, measured apart from
    each other, and no run with several ranks that train."""
    cases = ((1001, 64, 4, 1e-3, 1e-4, 2e-3), (1000, 64, 1, 1e-3, 1e-4, 2e-3), (6400, 64, 2, 2e-3, 1e-4, 5e-4),
             (100, 64, 3, 1e-3, 1e-4, 4e-3))
    for case in cases:
        samples, batch, ranks, fixed, per_image, message = case
        result = answer(*case)
        if not isinstance(result, tuple | list) or len(result) != 2 or None in result:
            raise Wrong(f"Your function returned {result!r}. Return two numbers, in seconds: a step, and an epoch.")
        shard = math.ceil(samples / ranks)
        of_steps = [min(batch, shard - done) for done in range(0, shard, batch)]  # images
        step, *steps = (fixed + per_image * images + message * (ranks > 1) for images in (batch, *of_steps))
        rights = step, sum(steps)
        what = (f"{samples} images, batch {batch}, {some(ranks, 'rank')}, fixed {1e3 * fixed:g} ms, "
                f"{1e6 * per_image:g} µs an image, message {1e3 * message:g} ms")
        for name, got, right in zip(("a step", "an epoch"), map(float, result), rights, strict=True):
            yield Case(got, right, f"{what}: for {name} you gave {1e3 * got:.5g} ms; {1e3 * right:.5g} ms is right.")


# Exercise 4: from which batch on does it pay?
def my_batch(fixed, per_image, all_reduce, ranks):
    needed = all_reduce / (ranks - 1)  # a step of one rank must take longer than this
    return max(1, math.floor((needed - fixed) / per_image) + 1)


def speedup(fixed, per_image, all_reduce, ranks, batch):
    """How many times as fast as one process the ranks are, by the lesson's model."""
    step = fixed + per_image * batch
    return ranks * step / (step + all_reduce)


@exercise(
    solution=my_batch,
    hint="In the time of one step the ranks do ranks * n images, one rank n. The ranks' step takes fixed + per_image * "
    "n + all_reduce. They are faster where ranks * (fixed + per_image * n) is more than that. Solve for n.",
    mistakes={
        "With that batch both are equally fast. The smallest that is faster has one image more.":
            lambda *case: max(1, my_batch(*case) - 1),
        "A step need not take as long as the all-reduce: in one step n ranks do n batches.":
            lambda fixed, per_image, all_reduce, ranks: my_batch(fixed, per_image, all_reduce, 2),
        "A step also has its fixed part, and the ranks do that side by side, too: it counts for them.":
            lambda fixed, *others: my_batch(0, *others),
        "This is right for ranks that share one batch. Here each has a batch of its own.":
            lambda fixed, per_image, all_reduce, ranks: (
                max(1, math.floor(all_reduce / per_image * ranks / (ranks - 1)) + 1)),
    },
)
def break_even(answer):
    """Your batch size is where the curve crosses 1: below it the ranks talk longer than they gain. More ranks need less
    of a step each, as long as the all-reduce does not get slower with them, and no rank has to wait for a core."""
    cases = ((1e-3, 6.25e-5, 4e-3, 2), (1e-3, 6.25e-5, 4e-3, 4), (2e-4, 5e-5, 2.01e-2, 8), (1e-3, 6e-5, 5e-4, 2))
    for case in cases:
        got, (fixed, per_image, all_reduce, ranks) = answer(*case), case
        if not isinstance(got, Integral) or got < 1:
            raise Wrong(f"You returned {got}. A batch is a whole number of images, 1 or more.")
        right = next(n for n in range(1, 10_000) if speedup(*case, n) > 1 + 1e-9)
        ratio = speedup(*case, got)
        yield Case(got, right,
                   f"Fixed {1e3 * fixed:g} ms, {1e6 * per_image:g} µs an image, all-reduce {1e3 * all_reduce:g} ms, "
                   f"{ranks} ranks: you gave {got}. With it the ranks are {ratio:.3f} times as fast as one process. "
                   f"{'A smaller batch would do.' if got > right else 'They need a larger one.'}")


# Exercise 5: which link?
def my_bandwidth(step, gradient_bytes, ranks, efficiency):
    allowed = step * (1 / efficiency - 1)  # seconds that may be added to a step
    return 2 * (ranks - 1) / ranks * gradient_bytes / allowed


@exercise(
    solution=my_bandwidth,
    hint="Efficiency is step / (step + all-reduce): how long may the all-reduce take? In a ring each rank sends "
    "2 (ranks - 1) / ranks times the gradients. Bytes by seconds is the bandwidth.",
    mistakes={
        "Your number is right in bits a second. Return bytes a second.": lambda *case: 8 * my_bandwidth(*case),
        "In a ring each rank sends more than its gradients once: reduce-scatter, and then all-gather.":
            lambda step, gradient_bytes, ranks, efficiency: gradient_bytes / (step * (1 / efficiency - 1)),
        "The efficiency is the step's share of the *whole*, step and all-reduce together. You took the rest as a share "
        "of the step alone.":
            lambda step, gradient_bytes, ranks, efficiency: (
                my_bandwidth(step * efficiency, gradient_bytes, ranks, efficiency)),
        "In each of its 2 (n - 1) steps a ring sends bytes / n, not all bytes.":
            lambda step, gradient_bytes, ranks, efficiency: (
                my_bandwidth(step, ranks * gradient_bytes, ranks, efficiency)),
    },
)
def link(answer):
    """Your link gives just that efficiency, in the model. The number hardly depends on the ranks, since 2 (n - 1) / n
    goes to 2: many bytes in a short step need a fast link. Overlap would ask for less, latency for more."""
    cases = ((0.2, 1e8, 64, 0.9), (0.3, 1e8, 4, 0.5), (0.05, 4e8, 8, 0.8))
    for step, gradient_bytes, ranks, efficiency in cases:
        got = answer(step, gradient_bytes, ranks, efficiency)
        if got is None or not got > 0:
            raise Wrong(f"You returned {got}. A bandwidth is more than 0.")
        got, right = float(got), my_bandwidth(step, gradient_bytes, ranks, efficiency)
        reached = step / (step + 2 * (ranks - 1) / ranks * gradient_bytes / got)
        yield Case(got, right,
                   f"A step of {step:g} s, {gradient_bytes / 1e6:g} MB, {ranks} ranks, {efficiency:.0%}: you gave "
                   f"{got / 1e9:.4g} GB/s. The model then gives {reached:.1%}; it would take "
                   f"{right / 1e9:.4g} GB/s.")
