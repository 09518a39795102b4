"""Exercises of notebook 07: speed-up and efficiency, what a crowded step cost, and the limit of the whole command."""

import math
from pathlib import Path

from scripts import runs
from scripts.checks import Wrong, exercise

RECORDED = Path(__file__).resolve().parents[2] / "results" / "recorded" / "two-cpu-cores"
BERT = {1: 122, 8: 110, 16: 80}  # samples/s of each GPU, as in the notebook: pytorch issue 17159

# ---------------------------------------------------------------------------------- 1: speed-up and efficiency


def my_scaling(seconds_one, images_one, seconds_many, images_many, ranks):
    speedup = (images_many / seconds_many) / (images_one / seconds_one)
    return speedup, speedup / ranks


def seconds_only(seconds_one, images_one, seconds_many, images_many, ranks):
    return seconds_one / seconds_many, seconds_one / seconds_many / ranks


def upside_down(seconds_one, images_one, seconds_many, images_many, ranks):
    speedup = seconds_many / seconds_one * images_one / images_many
    return speedup, speedup / ranks


def efficiency_is_speedup(seconds_one, images_one, seconds_many, images_many, ranks):
    speedup, _ = my_scaling(seconds_one, images_one, seconds_many, images_many, ranks)
    return speedup, speedup


def weak_everywhere(seconds_one, images_one, seconds_many, images_many, ranks):
    return ranks * seconds_one / seconds_many, seconds_one / seconds_many


def in_percent(seconds_one, images_one, seconds_many, images_many, ranks):
    speedup, efficiency = my_scaling(seconds_one, images_one, seconds_many, images_many, ranks)
    return speedup, 100 * efficiency


@exercise(
    solution=my_scaling,
    hint="Which of the numbers can be compared when both the images and the seconds differ? Images a second. Speed-up: "
    "those of all ranks / those of one. Efficiency: speed-up / ranks.",
    mistakes={
        "seconds compared, whatever the images": seconds_only,
        "upside down": upside_down,
        "efficiency not divided by the ranks": efficiency_is_speedup,
        "every run taken for weak scaling": weak_everywhere,
        "in percent": in_percent,
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


def turns_forgotten(alone, together, ranks, devices):
    return together - alone


def every_rank_takes_turns(alone, together, ranks, devices):
    return together - alone * ranks


def devices_make_a_step_shorter(alone, together, ranks, devices):
    return together - alone * ranks / devices


def divided_among_ranks(alone, together, ranks, devices):
    return together - alone / ranks


@exercise(
    solution=my_price,
    hint="How long would a step take if working together cost nothing? With a device for each rank, as long as alone. "
    "With 8 ranks on 2 devices each has a device for a quarter of the time.",
    mistakes={
        "turns forgotten": turns_forgotten,
        "as if there were one device": every_rank_takes_turns,
        "more devices than ranks make a step shorter": devices_make_a_step_shorter,
        "the step divided among the ranks": divided_among_ranks,
    },
)
def price(attempt):
    """Taking turns is no fault of DDP, and no faster link will mend it. Only what is left, beyond the turns, is the
    price of working together: all-reduce, waiting, and switching from rank to rank."""
    for alone, together, ranks, devices in ((5.0, 5.8, 2, 2), (5.0, 26.0, 8, 2), (4.0, 5.0, 4, 8), (3.0, 10.5, 3, 1)):
        turns = max(1, ranks / devices)
        truth, got = together - turns * alone, float(attempt(alone, together, ranks, devices))
        if math.isclose(got, truth, abs_tol=1e-9):
            continue
        case = (f"A step takes {alone:g} ms alone, and {together:g} ms with {ranks} ranks on {devices} device(s): you "
                f"said {got:.3g} ms.")
        if math.isclose(got, together - alone / ranks):
            raise Wrong(f"{case} You divided the step among the ranks. But each rank has a batch of its own, as large "
                        "as before: its step is not shorter, there are fewer of them in an epoch.")
        if ranks < devices and math.isclose(got, devices_make_a_step_shorter(alone, together, ranks, devices)):
            raise Wrong(f"{case} More devices than ranks do not make a step shorter: a rank uses one.")
        if math.isclose(got, together - alone * ranks) and devices > 1:
            raise Wrong(f"{case} That would be {ranks} ranks in turn on one device. There are {devices}.")
        if math.isclose(got, together - alone):
            raise Wrong(f"{case} A rank has a device for {devices / ranks:.0%} of the time. That alone makes a step of "
                        f"{turns * alone:g} ms, and is not the price of working together.")
        raise Wrong(f"{case} Without any price a step would take {turns * alone:g} ms.")


# ---------------------------------------------------------------------------------- 3: the most of the whole command


def my_most(starting, training, ranks, devices):
    return (starting + training) / (starting + training / min(ranks, devices))


def start_forgotten(starting, training, ranks, devices):
    return float(min(ranks, devices))


def start_shared(starting, training, ranks, devices):
    return (starting + training) / ((starting + training) / ranks)


def devices_forgotten(starting, training, ranks, devices):
    return my_most(starting, training, ranks, ranks)


def seconds_instead(starting, training, ranks, devices):
    return starting + training / min(ranks, devices)


def training_alone_on_top(starting, training, ranks, devices):
    return training / (starting + training / min(ranks, devices))


@exercise(
    solution=my_most,
    hint="Divide the seconds of one rank's command by those of the ranks' command. In the second, what gets shorter, "
    "and by how much at most: by ranks, or by min(ranks, devices)?",
    mistakes={
        "the start forgotten": start_forgotten,
        "the start shared, too": start_shared,
        "the devices forgotten": devices_forgotten,
        "seconds instead of a speed-up": seconds_instead,
        "the start in one of the two alone": training_alone_on_top,
    },
)
def most(attempt):
    """Amdahl's law: what the ranks do not share stays, and sets a limit that no number of devices passes. With a start
    of 5 s and 45 s of training, 10,000 devices make the command less than 10 times as fast. Real commands stay below
    your number, because more ranks also take longer to start."""
    for starting, training, ranks, devices in ((5.0, 45.0, 8, 2), (5.0, 45.0, 8, 8), (5.0, 45.0, 10_000, 10_000),
                                               (0.0, 30.0, 4, 8)):
        before, shortest = starting + training, starting + training / min(ranks, devices)
        truth, got = before / shortest, float(attempt(starting, training, ranks, devices))
        if math.isclose(got, truth, rel_tol=1e-6):
            continue
        case = (f"{starting:g} s of start, {training:g} s of training, {ranks:,} ranks on {devices:,} devices: you "
                f"said {got:.4g}.")
        if starting and math.isclose(got, shortest):
            raise Wrong(f"{case} These are the seconds of the command. How many times as fast is it?")
        if math.isclose(got, start_shared(starting, training, ranks, devices)):
            raise Wrong(f"{case} The ranks share the training. The start they do not share: each of them has to import "
                        "torch for itself.")
        if math.isclose(got, devices_forgotten(starting, training, ranks, devices)):
            raise Wrong(f"{case} {ranks} ranks on {devices} devices train at most {devices} times as fast as one.")
        if math.isclose(got, training / shortest):
            raise Wrong(f"{case} One rank has to start, too: its command takes {before:g} s.")
        if math.isclose(got, min(ranks, devices)):
            raise Wrong(f"{case} This is the most for the training. But the start is part of the command, and it does "
                        "not get shorter.")
        raise Wrong(f"{case} The command takes {before:g} s with one rank, with {ranks:,} at least {shortest:.4g} s.")
