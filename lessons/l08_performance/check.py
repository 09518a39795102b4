"""Exercises of lesson 08. The first sitting: a speed-up from two logs, where a step's time is lost, the rank that holds
up the others, what went wrong in a run, and the batch from which a second rank pays. The second: the time of a message,
an all-reduce that times itself, the time of a step and of an epoch, the batch from which DDP pays, and the link that 64
GPUs need."""

import math
import statistics
import time
from functools import partial
from numbers import Integral
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, exercise
from course.lesson import some
from course.on_ranks import exercise_on_ranks, patched


# Exercise 1: speed-up and efficiency, from two logs
def my_speedup(one, many):
    def images_a_second(log):
        epochs = [record for record in log if record["kind"] == "epoch"]
        return statistics.median(epoch["images_per_second"] for epoch in epochs[1:])

    speedup = images_a_second(many) / images_a_second(one)
    return speedup, speedup / many[0]["world_size"]


def timed_epochs(log, field, first=1):
    """Of each epoch from the `first` on."""
    return [record[field] for record in log if record["kind"] == "epoch"][first:]


def compared(usual, one, many):
    """By what `usual` makes of a log."""
    speedup = usual(many) / usual(one)
    return speedup, speedup / many[0]["world_size"]


def run_log(ranks, samples, seconds):
    """The records of a log, as main.py writes them, with the fields that matter here."""
    epochs = [{"kind": "epoch", "epoch": number, "seconds": each, "images_per_second": samples / each}
              for number, each in enumerate(seconds)]
    return [{"kind": "run", "world_size": ranks, "batch_size": 64, "samples": samples, "epochs": len(epochs)}, *epochs,
            {"kind": "end", "status": "completed", "seconds": 1.25 * sum(seconds) + 1}]


def pairs_of_runs():
    """(log of one process, log of several ranks): ranks, images of an epoch, seconds of each epoch."""
    cases = [((1, 6400, [1.4, 0.8, 0.82, 0.79, 1.3, 0.78]), (2, 6400, [1.2, 0.5, 0.9, 0.48, 0.52, 0.51])),
             ((1, 1000, [3.0, 2.0, 2.1, 2.6]), (8, 4000, [5.0, 4.0, 7.0, 3.9]))]
    return [[run_log(*run) for run in pair] for pair in cases]


@exercise(
    solution=my_speedup,
    hint="A log begins with the run's record, which has `world_size`. The records with kind \"epoch\" have "
    "`images_per_second`, of all ranks together. Leave out the first of them, and take the statistics.median of the "
    "others. Speed-up: that of many, divided by that of one. Efficiency: speed-up divided by ranks.",
    mistakes={
        "The first epoch warms up: it takes longer, and it is not what each further epoch takes. Leave it out.":
            partial(compared, lambda log: statistics.median(timed_epochs(log, "images_per_second", first=0))),
        "One epoch was disturbed, and the mean follows it. The median does not.":
            partial(compared, lambda log: statistics.mean(timed_epochs(log, "images_per_second"))),
        "These are seconds, and the two runs need not have equally many images in an epoch. Compare images a second.":
            partial(compared, lambda log: 1 / statistics.median(timed_epochs(log, "seconds"))),
        "The sum of the epochs holds the warm-up and the disturbed epoch, and the runs need not have equally many "
        "images. Take a usual epoch, and its images a second.":
            partial(compared, lambda log: 1 / sum(timed_epochs(log, "seconds", first=0))),
        "The seconds of the last record are those of the whole run: with its start, its tests and its warm-up.":
            partial(compared, lambda log: 1 / log[-1]["seconds"]),
        "images_per_second counts the images of all ranks already: do not multiply it by the ranks.":
            lambda one, many: tuple(many[0]["world_size"] * value for value in my_speedup(one, many)),
        "You turned the ratio round: a speed-up above 1 means that several ranks are faster.":
            lambda one, many: (1 / my_speedup(one, many)[0], 1 / my_speedup(one, many)[0] / many[0]["world_size"]),
        "Return the efficiency as a ratio: 0.75, not 75.":
            lambda one, many: (my_speedup(one, many)[0], 100 * my_speedup(one, many)[1]),
        "You swapped the two: the speed-up comes first, the efficiency second.":
            lambda one, many: my_speedup(one, many)[::-1],
        'Only the records of kind "epoch" have `images_per_second`, and only that of kind "run" has `world_size`.':
            partial(compared, lambda log: statistics.median(record["images_per_second"] for record in log)),
    },
)
def speedup(answer):
    """You divide the images a second of all ranks, in a usual epoch, by those of one process. The efficiency says what
    part of each rank's time is not lost."""
    for one, many in pairs_of_runs():
        result = answer(one, many)
        if not isinstance(result, tuple | list) or len(result) != 2 or None in result:
            raise Wrong(f"Your function returned {result!r}. Return two numbers: the speed-up and the efficiency.")
        speeds = [", ".join(f"{speed:,.0f}" for speed in timed_epochs(log, "images_per_second", 0))
                  for log in (one, many)]
        usual = [statistics.median(timed_epochs(log, "images_per_second")) for log in (one, many)]
        case = (f"Images a second of each epoch: with one process {speeds[0]}; with {many[0]['world_size']} ranks "
                f"{speeds[1]}. Usual, after the first: {usual[0]:,.0f} and {usual[1]:,.0f}.")
        for name, got, right in zip(("speed-up", "efficiency"), map(float, result), my_speedup(one, many), strict=True):
            yield Case(got, right, f"{case} You gave the {name} {got:.4g}; {right:.4g} is right.")


# Exercise 2: the cost of sharing the machine, and the cost of communication
def my_split(alone, together, ranks, ceiling):
    beside = alone * ranks / ceiling
    return beside - alone, together - beside


@exercise(
    solution=my_split,
    hint="How long is a step of processes that never talk? In the time of one step alone they do `ceiling` steps, all "
    "together. There are `ranks` of them, so each has done ceiling / ranks of its own step. With a ceiling of 2 and 8 "
    "ranks each rank works at 2/8 of its speed alone: how long is its step then?",
    mistakes={
        "You swapped the two parts: sharing the machine comes first, talking second.":
            lambda *step: my_split(*step)[::-1],
        "You counted everything beyond `alone` as talking. But processes that never talk slow each other down, too.":
            lambda alone, together, ranks, ceiling: (0.0, together - alone),
        "The ceiling counts the steps of *all* ranks. Each rank makes a step of its own, and that step is not shorter "
        "than alone.": lambda alone, together, ranks, ceiling: my_split(alone, together, 1, ceiling),
        "A time is the inverse of a speed. At half the speed a step takes twice as long, not one and a half times.":
            lambda alone, together, ranks, ceiling: (
                alone * (1 - ceiling / ranks), together - alone * (2 - ceiling / ranks)),
        "You let the ranks take turns, as with a ceiling of 1. With a higher ceiling some of them run together.":
            lambda alone, together, ranks, ceiling: my_split(alone, together, ranks, 1),
    },
)
def split(answer):
    """No link and no better program will give back the first part: it belongs to the machine. Only the second part is
    the price of working together: messages, and waiting for the slowest rank."""
    steps = ((10.0, 14.0, 2, 1.6), (5.0, 26.0, 8, 2.0), (4.0, 6.5, 4, 3.2))
    for alone, together, ranks, ceiling in steps:
        parts = answer(alone, together, ranks, ceiling)
        if not isinstance(parts, tuple | list) or len(parts) != 2:
            raise Wrong(f"Your function returned {parts!r}. Return two numbers, in ms: the time lost because the "
                        "processes are beside each other, and the time lost because they talk.")
        beside = alone * ranks / ceiling
        got, right = [float(part) for part in parts], [beside - alone, together - beside]
        yield Case(got, right,
                   f"A step takes {alone:g} ms alone and {together:g} ms with {ranks} ranks, and the ceiling is "
                   f"{ceiling:g}. You gave {got[0]:g} and {got[1]:g} ms; {right[0]:g} and {right[1]:g} ms are right.")


# Exercise 3: the rank that holds up the others
def my_slowest(work, talk, rounds):
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        talk()
    of_ranks = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, torch.tensor(statistics.median(seconds)))
    slow = torch.stack(of_ranks).argmax().item()
    return slow, of_ranks[slow].item()


def whole_steps(work, talk, rounds):
    return my_slowest(lambda: (work(), talk()), lambda: None, rounds)


def longest_wait(work, talk, rounds):
    return my_slowest(talk, work, rounds)


def mean_of_the_rounds(work, talk, rounds):
    with mock.patch.object(statistics, "median", statistics.mean):
        return my_slowest(work, talk, rounds)


def own_time(work, talk, rounds):
    with patched(my_slowest, all_gather=lambda of_ranks, own: of_ranks[dist.get_rank()].copy_(own)):
        return my_slowest(work, talk, rounds)


def sum_of_the_rounds(work, talk, rounds):
    slow, seconds = my_slowest(work, talk, rounds)
    return slow, rounds * seconds


def never_talks(work, talk, rounds):
    for _ in range(rounds):
        work()
    return 0, 0.0


USUAL = "work() in a usual round"


def measure_slowest(function, context):
    """The function's result and the times of each part of a round, for two slow ranks, one after the other."""
    measured = []
    rounds, quick, slow_work, message, disturbance = 5, 0.01, 0.04, 0.06, 0.4
    for slow in (1, context.world_size - 1):
        works, talks = [], []

        def work(slow=slow, works=works):
            start = time.perf_counter()
            disturbed = context.rank == 0 and len(works) == 2
            time.sleep(disturbance if disturbed else slow_work if context.rank == slow else quick)
            works.append(time.perf_counter() - start)

        def talk(talks=talks):
            start = time.perf_counter()
            dist.all_reduce(torch.zeros(1))
            time.sleep(message)
            talks.append(time.perf_counter() - start)

        pair = function(work, talk, rounds)
        if not isinstance(pair, tuple | list) or len(pair) != 2 or None in pair:
            raise Wrong(f"On rank {context.rank} it returned {pair!r}. Every rank needs the pair (rank, seconds).")
        if len(works) != rounds or len(talks) != rounds:
            raise Wrong(f"Rank {context.rank} called work() {len(works)} times and talk() {len(talks)} times. In each "
                        f"of the {rounds} rounds it must call both, once.")
        measured.append({"slow": slow, "named": int(pair[0]), "seconds": float(pair[1]), "times": {
            USUAL: statistics.median(works),
            "work(), mean of the rounds": statistics.mean(works),
            "work(), longest round": max(works),
            "work(), all rounds": sum(works),
            "talk() in a usual round": statistics.median(talks),
            "a usual round": statistics.median(map(sum, zip(works, talks, strict=True)))}})
        dist.barrier()
    return measured


def kind_of_time(seconds, times):
    """The name of the time that a function returned as `seconds`: a usual work() if near it, else the nearest."""
    near = [name for name in times if math.isclose(times[name], seconds, rel_tol=0.3)]
    return USUAL if USUAL in near else min(near, key=lambda name: abs(times[name] - seconds), default="another time")


@exercise_on_ranks(
    measure_slowest,
    solution=my_slowest,
    hint="Read the clock before and after work(), not after talk(): there all ranks wait for each other. Take the "
    "statistics.median of the rounds. Then every rank needs the medians of all ranks: dist.all_gather.",
    mistakes={
        "That is the time of a whole round, and all ranks share it: in talk() they wait for the slowest.": whole_steps,
        "The rank that you named waits longest in talk(), because it was done first. The slow rank works longest.":
            longest_wait,
        "Rank 0 was disturbed in one round. The mean of the rounds follows that round; the median does not.":
            mean_of_the_rounds,
        "Each rank knows its own time only. dist.all_gather gives every rank the times of all.": own_time,
        "These are the seconds of all rounds. Return those of one round.": sum_of_the_rounds,
        "Without talk() a round is not a step: nobody waits for anybody.": never_talks,
    },
)
def slowest(ranks):
    """The steps of all ranks are equally long, so a step time does not show which rank is slow, and rank 0's log hardly
    shows it. The time before the collective does: the slow rank works longest, and waits least."""
    for results in zip(*ranks, strict=True):  # of all ranks, with the same rank slow
        pairs = ", ".join(f"({result['named']}, {1000 * result['seconds']:.0f} ms)" for result in results)
        medians = ", ".join(f"{1000 * result['times'][USUAL]:.0f}" for result in results)
        message = f"The ranks returned {pairs}. In a usual round their work() takes {medians} ms."
        named = [result["named"] for result in results]
        # First the kind of time, which a mistake determines. With a wrong one, chance may decide which rank is named.
        kinds = [kind_of_time(result["seconds"], results[rank]["times"]) if rank in range(len(results)) else "no rank"
                 for rank, result in zip(named, results, strict=True)]
        yield Case(kinds, [USUAL] * len(results), message)
        yield Case(named, [result["slow"] for result in results], message)


# Exercise 4: what went wrong?
FAULTS = ("threads", "data", "batch", "slow rank")


def my_diagnosis(sound, run):
    grown = {phase for phase in sound if run[phase] > 2 * sound[phase]}
    if run["forward"] < sound["forward"] / 2:
        return "batch"
    if grown == {"data"}:
        return "data"
    return "threads" if "forward" in grown else "slow rank"


def by_what_grew_most(sound, run):
    grown = max(run, key=lambda phase: run[phase] - sound[phase])
    return {"data": "data", "forward": "threads", "backward": "slow rank", "update": "batch"}[grown]


SOUND = {"data": 0.5, "forward": 6.4, "backward": 9.5, "update": 0.7}
# How many times as long each phase takes; the first three as in runs a, b and c of results/recorded/went-wrong.
STRETCHED = {"threads": (2.4, 3.9, 15.4, 2.7), "data": (34, 1, 1, 0.9), "slow rank": (1.4, 1.4, 7.7, 1.3),
             "batch": (0.4, 0.1, 0.35, 0.9)}


def ill_runs():
    """(sound, run, fault): milliseconds of each phase of a step."""
    return [(SOUND, {phase: round(factor * SOUND[phase], 2) for phase, factor in zip(SOUND, factors, strict=True)},
             fault) for fault, factors in STRETCHED.items()]


@exercise(
    solution=my_diagnosis,
    hint="Compare each phase with that of the sound run: has it more than doubled? Which phases are this rank's own "
    "work, and in which does it wait for another rank? With too few images no phase doubles: which one gets much "
    "shorter?",
    mistakes={
        "`backward` is the longest phase of a sound run, too. Compare each phase with the sound run.":
            lambda sound, run: by_what_grew_most(dict.fromkeys(sound, 0), run),
        "The phase that grew most is not enough: too many threads stretch backward most, and forward as well. Look at "
        "all phases.": by_what_grew_most,
        "A slow rank makes this rank wait, and it waits in backward alone. Too many threads stretch each phase.":
            lambda *runs: {"threads": "slow rank", "slow rank": "threads"}.get(
                my_diagnosis(*runs), my_diagnosis(*runs)),
        "With too many threads the data phase doubles, too. Slow data stretches no other phase.":
            lambda sound, run: "data" if run["data"] > 2 * sound["data"] else my_diagnosis(sound, run),
        "A step with few images has a short forward: then the batch is too small.":
            lambda *runs: my_diagnosis(*runs).replace("batch", "slow rank"),
    },
)
def diagnosis(answer):
    """Threads in each other's way stretch every phase; slow data the first one; a slow rank the one in which this rank
    waits for it. A small batch shortens each step, and the messages become a larger part of it. A slow link would look
    like a slow rank: the exercise before this one tells the two apart."""
    for sound, run, fault in ill_runs():
        got = answer(dict(sound), dict(run))
        if got not in FAULTS:
            raise Wrong(f"Your function returned {got!r}. Return one of {', '.join(map(repr, FAULTS))}.")
        phases = ", ".join(f"{phase} {sound[phase]:.3g} → {run[phase]:.3g}" for phase in sound)
        yield Case(got, fault, f"From sound to ill, in ms a step: {phases}. You gave {got!r}; it was {fault!r}.")


# Exercise 5: the batch from which a second rank pays
def my_batch(measure, batches, wanted):
    low, high = 0, len(batches)  # the place of the answer is between these two, or one of them
    while low < high:
        middle = (low + high) // 2
        if measure(batches[middle]) >= wanted:
            high = middle
        else:
            low = middle + 1
    return batches[low] if low < len(batches) else None


def last_that_fails(measure, batches, wanted):
    batch = my_batch(measure, batches, wanted)
    place = batches.index(batch) if batch else len(batches)
    return batches[max(0, place - 1)]


def first_tried_that_reaches(measure, batches, wanted):
    while batches:
        middle = len(batches) // 2
        if measure(batches[middle]) >= wanted:
            return batches[middle]
        batches = batches[middle + 1:]
    return None


def never_narrows(measure, batches, wanted):
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if measure(batches[middle]) >= wanted else (middle, high)
    return batches[low]


def machines():
    """(batches, speed-up wanted, seconds of a step: fixed, an image, the message) of each case."""
    powers = [2**power for power in range(2, 17)]
    return [(powers, 1.7, 0.5, 0.1, 1.5), (powers, 1.7, 0.5, 0.01, 0.01), (powers[:8], 1.7, 1.0, 0.1, 90.0),
            (powers[2:8], 1.4, 0.5, 0.1, 4.0), (powers[:1], 1.2, 0.5, 0.1, 0.2)]


@exercise(
    solution=my_batch,
    hint="Measure the batch in the middle. If it reaches what is wanted, the answer is this batch or a smaller one; "
    "else a larger one. Go on with that half, until no batch is left to be tried. Think of the case that none reaches "
    "it.",
    mistakes={
        "The speed-up rises with the batch, so one measurement in the middle answers for half of the batches. You try "
        "one after another.":
            lambda measure, batches, wanted: next((batch for batch in batches if measure(batch) >= wanted), None),
        "This is the largest batch that does not reach it. The smallest that does is the next.": last_that_fails,
        "This batch reaches it, but a smaller one may, too: go on in the lower half.": first_tried_that_reaches,
        "Here no batch reaches it. Then return None.":
            lambda measure, batches, wanted: my_batch(measure, batches, wanted) or batches[-1],
        "Return the batch, not its speed-up.":
            lambda measure, *rest: (batch := my_batch(measure, *rest)) and measure(batch),
        "`measure` gives the speed-up, and `wanted` is one: do not divide by the ranks.":
            lambda measure, *rest: my_batch(lambda batch: measure(batch) / 2, *rest),
        "The search does not narrow: a batch that was measured and failed must be left out of the rest.":
            never_narrows,
    },
)
def batch(answer):
    """Each measurement halves what is left. Below your batch the message, which is equally long for every batch, takes
    too large a part of a step."""
    for batches, wanted, fixed, image, message in machines():
        speedups = {size: (fixed + image * size) / (fixed + image * size / 2 + message) for size in batches}
        tried, most = [], math.ceil(math.log2(len(batches) + 1)) + 1

        def measure(size, speedups=speedups, tried=tried):
            if size not in speedups:
                raise Wrong(f"You measured the batch {size!r}, which is not in `batches`.")
            tried.append(size)
            if len(tried) > 99:
                raise Wrong("You measured 99 times, and were not done.")
            return speedups[size]

        got = answer(measure, list(batches), wanted)
        right = next((size for size in batches if speedups[size] >= wanted), None)
        case = f"batches={batches}, wanted={wanted:.3g}"
        yield Case(got, right, f"{case}: you gave {got!r}; {right} is right. Some speed-ups: " + ", ".join(
            f"{size}: {speedups[size]:.2f}" for size in batches[:: max(1, len(batches) // 4)]) + ".")
        yield Case(max(0, len(tried) - most), 0, f"{case}: you measured {len(tried)} times, and each time takes two "
                                                 f"trainings. {most} or fewer are enough.")


# ------------------------------------------------------------------------------------------- second sitting


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
def my_break_even(fixed, per_image, all_reduce, ranks):
    needed = all_reduce / (ranks - 1)  # a step of one rank must take longer than this
    return max(1, math.floor((needed - fixed) / per_image) + 1)


def gain_of(fixed, per_image, all_reduce, ranks, batch):
    """How many times as fast as one process the ranks are, by the lesson's model."""
    step = fixed + per_image * batch
    return ranks * step / (step + all_reduce)


@exercise(
    solution=my_break_even,
    hint="In the time of one step the ranks do ranks * n images, one rank n. The ranks' step takes fixed + per_image * "
    "n + all_reduce. They are faster where ranks * (fixed + per_image * n) is more than that. Solve for n.",
    mistakes={
        "With that batch both are equally fast. The smallest that is faster has one image more.":
            lambda *case: max(1, my_break_even(*case) - 1),
        "A step need not take as long as the all-reduce: in one step n ranks do n batches.":
            lambda fixed, per_image, all_reduce, ranks: my_break_even(fixed, per_image, all_reduce, 2),
        "A step also has its fixed part, and the ranks do that side by side, too: it counts for them.":
            lambda fixed, *others: my_break_even(0, *others),
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
        right = next(n for n in range(1, 10_000) if gain_of(*case, n) > 1 + 1e-9)
        ratio = gain_of(*case, got)
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
