"""Exercises of notebook 07: speed-up and efficiency, what a crowded step cost, and the limit of the whole command."""

import math
from pathlib import Path

from course import runs
from course.checks import Wrong, exercise
from course.checks.cases import misses

RECORDED = Path(__file__).resolve().parents[2] / "results" / "recorded" / "two-cpu-cores"
BERT = {1: 122, 8: 110, 16: 80}  # samples/s of each GPU, as in the notebook: pytorch issue 17159

# ---------------------------------------------------------------------------------- 1: speed-up and efficiency


def my_scaling(seconds_one, images_one, seconds_many, images_many, ranks):
    speedup = (images_many / seconds_many) / (images_one / seconds_one)
    return speedup, speedup / ranks


@exercise(
    solution=my_scaling,
    hint="Which of the numbers can be compared when both the images and the seconds differ? Images a second. Speed-up: "
    "those of all ranks / those of one. Efficiency: speed-up / ranks.",
    mistakes={
        "seconds compared, whatever the images": lambda seconds_one, images_one, seconds_many, images_many, ranks: (
            seconds_one / seconds_many, seconds_one / seconds_many / ranks),
        "upside down": lambda *run: (1 / my_scaling(*run)[0], 1 / my_scaling(*run)[0] / run[-1]),
        "efficiency not divided by the ranks": lambda *run: (my_scaling(*run)[0], my_scaling(*run)[0]),
        "every run taken for weak scaling": lambda seconds_one, images_one, seconds_many, images_many, ranks: (
            ranks * seconds_one / seconds_many, seconds_one / seconds_many),
        "in percent": lambda *run: (my_scaling(*run)[0], 100 * my_scaling(*run)[1]),
    },
)
def scaling(attempt):
    """Strong scaling (the same images for more ranks) and weak scaling (as many images for each rank) are one formula:
    what all ranks do in a second, by what one does. The strong cases were this course's recorded runs, the weak ones
    BERT on 8 and 16 GPUs."""
    table = runs.speedup_table(runs.read_runs(RECORDED))
    one = table[table["world_size"] == 1].iloc[0]
    cases = [("images", one.seconds, one.samples, run.seconds, run.samples, int(run.world_size), run.speedup)
             for run in table[table["world_size"] > 1].itertuples()]
    cases += [("texts (BERT)", 1.0, BERT[1], 1.0, ranks * BERT[ranks], ranks, ranks * BERT[ranks] / BERT[1])
              for ranks in (8, 16)]
    for what, *numbers, truth in cases:
        seconds_one, images_one, seconds_many, images_many, ranks = numbers
        got = attempt(*numbers)
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Wrong("Return two numbers: speed-up, efficiency.")
        speedup, efficiency = map(float, got)
        case = (f"One rank took {seconds_one:.2f} s for {images_one:,} {what}, {ranks} ranks {seconds_many:.2f} s for "
                f"{images_many:,}: you gave a speed-up of {speedup:.2f}, and an efficiency of {efficiency:.3g}.")
        if not math.isclose(speedup, truth, rel_tol=1e-6):
            if math.isclose(speedup, 1 / truth):
                raise Wrong(f"{case} Upside down: a speed-up above 1 means that the ranks are faster.")
            if math.isclose(speedup, ranks * seconds_one / seconds_many):
                raise Wrong(f"{case} You took the images to grow with the ranks. Here they are the same.")
            if math.isclose(speedup, seconds_one / seconds_many):
                raise Wrong(f"{case} The seconds are the same, but the ranks did more in them. Compare what was done "
                            "in a second.")
            raise Wrong(f"{case} The speed-up is {truth:.2f}.")
        if math.isclose(efficiency, 100 * truth / ranks):
            raise Wrong(f"{case} The efficiency is right, in percent. Return it as a number from 0 to 1.")
        if not math.isclose(efficiency, truth / ranks, rel_tol=1e-6):
            raise Wrong(f"{case} Efficiency is the speed-up by the number of ranks: 1 if each works as fast as one "
                        "rank alone.")


# ---------------------------------------------------------------------------------- 2: what working together costs


def my_price(alone, together, ranks, devices):
    return together - alone * max(1, ranks / devices)


@exercise(
    solution=my_price,
    hint="How long would a step take if working together cost nothing? With a device for each rank, as long as alone. "
    "With 8 ranks on 2 devices each has a device for a quarter of the time.",
    mistakes={
        "turns forgotten": lambda alone, together, ranks, devices: together - alone,
        "as if there were one device": lambda alone, together, ranks, devices: together - alone * ranks,
        "more devices than ranks make a step shorter": lambda alone, together, ranks, devices: (
            together - alone * ranks / devices),
        "the step divided among the ranks": lambda alone, together, ranks, devices: together - alone / ranks,
    },
)
def price(attempt):
    """Taking turns is no fault of DDP, and no faster link will mend it. Only what is left, beyond the turns, is the
    price of working together: all-reduce, waiting, and switching from rank to rank."""
    cases = (5.0, 5.8, 2, 2), (5.0, 26.0, 8, 2), (4.0, 5.0, 4, 8), (3.0, 10.5, 3, 1)
    for miss in misses(price, attempt, cases):
        alone, together, ranks, devices = miss.asked
        fair = max(1, ranks / devices) * alone
        miss.explain(f"A step takes {alone:g} ms alone, and {together:g} ms with {ranks} ranks on {devices} device(s): "
                     f"you said {miss.got:.3g} ms.", {
            "the step divided among the ranks": "You divided the step among the ranks. But each rank has a batch of "
            "its own, as large as before: its step is not shorter, there are fewer of them in an epoch.",
            "more devices than ranks make a step shorter": "More devices than ranks do not make a step shorter: a rank "
            "uses one.",
            "as if there were one device": f"That would be {ranks} ranks in turn on one device. There are {devices}.",
            "turns forgotten": f"A rank has a device for {devices / ranks:.0%} of the time. That alone makes a step of "
            f"{fair:g} ms, and is not the price of working together.",
        }, f"Without any price a step would take {fair:g} ms.")


# ---------------------------------------------------------------------------------- 3: the most of the whole command


def my_most(starting, training, ranks, devices):
    return (starting + training) / (starting + training / min(ranks, devices))


@exercise(
    solution=my_most,
    hint="Divide the seconds of one rank's command by those of the ranks' command. In the second, what gets shorter, "
    "and by how much at most: by ranks, or by min(ranks, devices)?",
    mistakes={
        "the start forgotten": lambda starting, training, ranks, devices: min(ranks, devices),
        "the start shared, too": lambda starting, training, ranks, devices: ranks,
        "the devices forgotten": lambda starting, training, ranks, devices: my_most(starting, training, ranks, ranks),
        "seconds instead of a speed-up": lambda starting, training, ranks, devices: (
            starting + training / min(ranks, devices)),
        "the start in one of the two alone": lambda starting, training, ranks, devices: (
            training / (starting + training / min(ranks, devices))),
    },
)
def most(attempt):
    """Amdahl's law: what the ranks do not share stays, and sets a limit that no number of devices passes. With a start
    of 5 s and 45 s of training, 10,000 devices make the command less than 10 times as fast. Real commands stay below
    your number, because more ranks also take longer to start."""
    cases = (5.0, 45.0, 8, 2), (5.0, 45.0, 8, 8), (5.0, 45.0, 10_000, 10_000), (0.0, 30.0, 4, 8)
    for miss in misses(most, attempt, cases):
        starting, training, ranks, devices = miss.asked
        before = starting + training
        miss.explain(f"{starting:g} s of start, {training:g} s of training, {ranks:,} ranks on {devices:,} devices: "
                     f"you said {miss.got:.4g}.", {
            "seconds instead of a speed-up": "These are the seconds of the command. How many times as fast is it?",
            "the start shared, too": "The ranks share the training. The start they do not share: each of them has to "
            "import torch for itself.",
            "the devices forgotten": f"{ranks} ranks on {devices} devices train at most {devices} times as fast as "
            "one.",
            "the start in one of the two alone": f"One rank has to start, too: its command takes {before:g} s.",
            "the start forgotten": "This is the most for the training. But the start is part of the command, and it "
            "does not get shorter.",
        }, f"The command takes {before:g} s with one rank, with {ranks:,} at least {before / miss.right:.4g} s.")
