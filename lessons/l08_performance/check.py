"""Exercises of lesson 08: a speed-up from two logs, the rank that is slow, the times of a message and of a step."""

import math
import random
import statistics
from functools import partial

from course.exercise import Case, Wrong, exercise, mistake


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
    hint=("What does a usual epoch do, all ranks together? Which epoch is not usual, and which may be disturbed?",
          "Take the records with kind \"epoch\", without the first. They have `images_per_second`, of all ranks "
          "together. A disturbed one must not move the result.",
          "usual = statistics.median of `images_per_second` of these records, for each log. The speed-up is that of "
          "many divided by that of one; the efficiency divides it by many[0][\"world_size\"]."),
    mistakes={
        "The first epoch warms up: it takes longer, and it is not what each further epoch takes. Leave it out.":
            partial(compared, lambda log: statistics.median(timed_epochs(log, "images_per_second", first=0))),
        "One epoch was disturbed, and the mean follows it. The median does not.":
            partial(compared, lambda log: statistics.mean(timed_epochs(log, "images_per_second"))),
        "The first epoch warms up, and another one was disturbed: a mean of all epochs follows both. Leave the first "
        "out, and take the median.":
            partial(compared, lambda log: statistics.mean(timed_epochs(log, "images_per_second", first=0))),
        "That is the fastest epoch, which chance has helped. A usual one is in the middle: the median.":
            partial(compared, lambda log: max(timed_epochs(log, "images_per_second"))),
        "That is the last epoch alone, and it may be the disturbed one. Take the median of all but the first.":
            partial(compared, lambda log: timed_epochs(log, "images_per_second")[-1]),
        "These are seconds, and the two runs need not have equally many images in an epoch. Compare images per second.":
            partial(compared, lambda log: 1 / statistics.median(timed_epochs(log, "seconds"))),
        "The sum of the epochs holds the warm-up and the disturbed epoch, and the runs need not have equally many "
        "images. Take a usual epoch, and its images per second.":
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
    """You divide the images per second of all ranks, in a usual epoch, by those of one process. The efficiency says
    what part of each rank's time is not lost."""
    for one, many in pairs_of_runs():
        result = answer(one, many)
        if not isinstance(result, tuple | list) or len(result) != 2 or None in result:
            raise Wrong(f"Your function returned {result!r}. Return two numbers: the speed-up and the efficiency.")
        speeds = [", ".join(f"{speed:,.0f}" for speed in timed_epochs(log, "images_per_second", 0))
                  for log in (one, many)]
        usual = [statistics.median(timed_epochs(log, "images_per_second")) for log in (one, many)]
        case = (f"Images per second of each epoch: with one process {speeds[0]}; with {many[0]['world_size']} ranks "
                f"{speeds[1]}. Usual, after the first: {usual[0]:,.0f} and {usual[1]:,.0f}.")
        for name, got, right in zip(("speed-up", "efficiency"), map(float, result), my_speedup(one, many), strict=True):
            yield Case(got, right, f"{case} You gave the {name} {got:.4g}; {right:.4g} is right.")


# Exercise 2: the straggler
def my_straggler(steps):
    usual = [statistics.median(times) for times in zip(*steps, strict=True)]
    slow = usual.index(max(usual))
    return slow, usual[slow] - statistics.median(usual[:slow] + usual[slow + 1:])


def computing(slow, ranks, steps=15):
    """Seconds that each rank computes in each step; a rank other than `slow` is once disturbed for long."""
    draw = random.Random(slow)
    rows = [[(0.05 if rank == slow else 0.02) * draw.uniform(0.9, 1.1) for rank in range(ranks)] for _ in range(steps)]
    rows[4][(slow + 1) % ranks] = 2.0
    return rows


@exercise(
    solution=my_straggler,
    hint=("In a step all ranks wait for the slowest, so their steps are equally long. What they compute is not.",
          "zip(*steps) gives, rank by rank, the seconds of all steps. Which is usual, if one step was disturbed?",
          "usual = [statistics.median(times) for times in zip(*steps)]; the slow rank has the largest. What the others "
          "lose is its usual time less the statistics.median of the others' usual times."),
    mistakes={
        "Another rank was disturbed in one step, and a mean follows that step. The median does not.":
            mistake(my_straggler, {"statistics.median(times)": "statistics.mean(times)"}),
        "You added all steps up, the disturbed one too. A usual step is asked for: take the median of a rank's steps.":
            mistake(my_straggler, {"statistics.median(times)": "sum(times)"}),
        "One step was disturbed, and the longest step finds only that. What does a rank take in a usual step?":
            mistake(my_straggler, {"statistics.median(times)": "max(times)"}),
        "The slow rank computes longest. Who computes least waits longest.":
            mistake(my_straggler, {"usual.index(max(usual))": "usual.index(min(usual))"}),
        "These are its seconds. The others lose only what it takes longer than they do.":
            mistake(my_straggler, {" - statistics.median(usual[:slow] + usual[slow + 1:])": ""}),
        "The slow rank itself does not belong among the others: it moves their median.":
            mistake(my_straggler, {"usual[:slow] + usual[slow + 1:]": "usual"}),
    },
)
def straggler(answer):
    """The steps of all ranks are equally long, so no rank's log of steps shows who is slow. What each computes does."""
    for slow, ranks in ((1, 2), (2, 4), (0, 3)):
        steps = computing(slow, ranks)
        result = answer(steps)
        if not isinstance(result, tuple | list) or len(result) != 2 or None in result:
            raise Wrong(f"Your function returned {result!r}. Return two numbers: the rank, and seconds.")
        usual = ", ".join(f"{1e3 * statistics.median(times):.0f}" for times in zip(*steps, strict=True))
        right = my_straggler(steps)
        yield Case([int(result[0]), float(result[1])], list(right),
                   f"In a usual step the ranks compute for {usual} ms. You named rank {result[0]}, and "
                   f"{1e3 * float(result[1]):.1f} ms; rank {right[0]} and {1e3 * right[1]:.1f} ms are right.",
                   rel_tol=0.1)  # the median of differences will do, and the others' mean


# Exercise 3: a message
def my_message(bytes, points):
    right = next((number for number, (size, _) in enumerate(points) if size >= bytes), len(points) - 1)
    (size, seconds), (other, longer) = points[max(0, right - 1)], points[max(1, right)]
    return seconds + (longer - seconds) / (other - size) * (bytes - size)


def on_one_line(bytes, points):
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    return intercept + slope * bytes


def between_logarithms(whole, part, all):
    """The factor by which a value grows that grows by `whole` when another grows by `all`, and that one by `part`."""
    return whole ** (math.log(part) / math.log(all))


@exercise(
    solution=my_message,
    hint=("Between two measured messages trust these two. Beyond the last one there is no neighbour: go on as the last "
          "two do.",
          "Which two neighbours? For a size beyond the ends take the two points at that end. Both cases are the same "
          "line through two points.",
          "With the two points (size, seconds) and (other, longer): seconds + (longer - seconds) / (other - size) * "
          "(bytes - size)."),
    mistakes={
        "You took the nearest measured message. Between two of them the time lies between.":
            mistake(my_message, {"return seconds +": "return min(points, key=lambda point: abs(point[0] - bytes))[1] +",
                                 "(longer - seconds)": "0"}),
        "You took the next longer message. Between two of them the time lies between.":
            mistake(my_message, {"return seconds +": "return longer +", "(longer - seconds)": "0"}),
        "That is one straight line for all sizes. The points need not lie on one: where there are neighbours, go from "
        "one to the next.": on_one_line,
        "You went straight between the logarithms. α + β · bytes is straight in bytes and seconds.":
            mistake(my_message, {"return seconds + (longer - seconds) / (other - size) * (bytes - size)":
                                 "return seconds * between_logarithms(longer / seconds, bytes / size, other / size)"}),
        "Beyond the last point you went on in proportion to the bytes. Go on as the last two points do: only the extra "
        "bytes take extra time.":
            mistake(my_message, {"return seconds +": "return points[-1][1] * bytes / points[-1][0] if bytes > "
                                 "points[-1][0] else seconds +"}),
        "In proportion to the bytes even an empty message would take no time. What is it that each message pays?":
            mistake(my_message, {"return seconds + (longer - seconds) / (other - size) * (bytes - size)":
                                 "return seconds * bytes / size"}),
        "The line through the two ends holds for no message exactly. Where there are neighbours, go from one to the "
        "next.": mistake(my_message, {"points[max(0, right - 1)], points[max(1, right)]": "points[0], points[-1]"}),
        "Beyond the last point your answer stays the same, as np.interp does. A longer message takes longer.":
            mistake(my_message, {"(bytes - size)": "(min(max(bytes, points[0][0]), points[-1][0]) - size)"}),
    },
)
def message(answer):
    """Where there are neighbours you go from one to the next. Only beyond the ends do you trust a line: there α and β
    must serve."""
    four = [(1_000, 5.0e-4), (10_000, 6.5e-4), (100_000, 3.0e-3), (1_000_000, 2.4e-2)]
    for points in (four, four[1:3]):
        shown = ", ".join(f"{size:,} bytes {1e6 * seconds:,.0f} µs" for size, seconds in points)
        for bytes in (40_000, 10_000, 4_000_000, 200):
            got, right = answer(bytes, list(points)), my_message(bytes, points)
            if isinstance(got, tuple | list) or got is None:
                raise Wrong(f"Your function returned {got!r}. Return the seconds of a message, a number.")
            yield Case(float(got), right, f"Measured: {shown}. For {bytes:,} bytes you gave {1e6 * float(got):,.1f} "
                                          f"µs; {1e6 * right:,.1f} µs is right.")


# Exercise 4: a step
def predict(ready, backward, step, messages):
    free = 0.0
    for full, seconds in zip(ready, messages, strict=True):
        free = max(free, full) + seconds
    exposed = max(0.0, free - backward)
    return step + exposed, exposed


@exercise(
    solution=predict,
    hint=("Follow the buckets one after another, with the time at which the link is free again.",
          "A bucket leaves when it is full and the link is free, whichever is later. Its message holds the link.",
          "free = 0; for full, seconds in zip(ready, messages): free = max(free, full) + seconds. Exposed is what "
          "of it lies behind backward's end, or 0."),
    mistakes={
        "A bucket cannot leave before it is full: the first one waits for its gradients, too.":
            mistake(predict, {"max(free, full)": "free"}),
        "The buckets share one link. A bucket that is full waits until the one before it has arrived.":
            mistake(predict, {"free = max(free, full) + seconds": "free = max(free, full + seconds)"}),
        "You added all messages to the step. Those that travel while backward computes cost nothing.":
            mistake(predict, {"max(0.0, free - backward)": "sum(messages)"}),
        "The link may be free while the next bucket is not full yet. Then it waits for the gradients.":
            mistake(predict, {"max(0.0, free - backward)": "max(0.0, ready[0] + sum(messages) - backward)"}),
        "The update needs all gradients: it cannot hide a message. What lies behind backward's end is exposed.":
            mistake(predict, {"max(0.0, free - backward)": "max(0.0, free - step)"}),
        "Where the messages have arrived before backward ends nothing is exposed. It cannot be less than 0.":
            mistake(predict, {"max(0.0, free - backward)": "free - backward"}),
        "You took the last bucket's message alone. An earlier one may hold the link for longer than backward.":
            mistake(predict, {"max(0.0, free - backward)": "messages[-1]"}),
        "The update still comes: a step without communication takes `step`, and not `backward`.":
            mistake(predict, {"return step + exposed": "return backward + exposed"}),
        "You swapped the two: the step comes first, what is exposed second.":
            mistake(predict, {"return step + exposed, exposed": "return exposed, step + exposed"}),
    },
)
def step(answer):
    """You follow each bucket from full to arrived. What lies behind backward's end is the exposed communication, and
    only that makes a step longer."""
    for name, *case in (("a slow link", [4, 7, 10], 10, 11, [8, 2, 1]),
                        ("a fast link", [4, 7, 10], 10, 11, [1, .5, .2]),
                        ("a last bucket that waits", [2, 9, 10], 10, 12, [9, 3, .5]),
                        ("one bucket", [10], 10, 11, [6]), ("a long rest", [3, 5], 20, 22, [4, 4])):
        result = answer(*[[1e-3 * each for each in part] if isinstance(part, list) else 1e-3 * part for part in case])
        if not isinstance(result, tuple | list) or len(result) != 2 or None in result:
            raise Wrong(f"Your function returned {result!r}. Return two numbers, in seconds: the step, and how much of "
                        "its communication is exposed.")
        ready, backward, whole, messages = case
        got, right = [1e3 * float(each) for each in result], predict(*case)
        yield Case(got, list(right),
                   f"With {name}: gradients ready after {ready} ms, backward ends at {backward}, a step alone {whole}, "
                   f"messages of {messages} ms. You gave {got[0]:g} and {got[1]:g} ms; {right[0]:g} and {right[1]:g} "
                   "are right.")
