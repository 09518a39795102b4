"""Exercises of notebook 07: speed-up and efficiency, what a crowded step cost, and the limit of the whole command."""

from operator import itemgetter

from course import runs
from course.checks import Wrong, exercise
from course.checks.cases import RECORDED, misses

BERT = {1: 122, 8: 110, 16: 80}  # samples/s of each GPU, as in the notebook: pytorch issue 17159


# Exercise 1: speed-up and efficiency
def my_scaling(seconds_one, images_one, seconds_many, images_many, ranks):
    speedup = (images_many / seconds_many) / (images_one / seconds_one)
    return speedup, speedup / ranks


@exercise(
    solution=my_scaling,
    hint="Which of the numbers can be compared when both the images and the seconds differ? Images a second. Speed-up: "
    "those of all ranks / those of one. Efficiency: speed-up / ranks.",
    mistakes={
        "That is right in percent. Return it as a number from 0 to 1.":
            lambda *run: (my_scaling(*run)[0], 100 * my_scaling(*run)[1]),
        "That is the speed-up. Divide it by the number of ranks: the efficiency is 1 if each works as fast as one rank "
        "alone.": lambda *run: (my_scaling(*run)[0], my_scaling(*run)[0]),
        "Upside down: a speed-up above 1 means that the ranks are faster.":
            lambda *run: (1 / my_scaling(*run)[0], 1 / my_scaling(*run)[0] / run[-1]),
        "You took the images to grow with the ranks. Here they are the same.":
            lambda seconds_one, images_one, seconds_many, images_many, ranks: (
                ranks * seconds_one / seconds_many, seconds_one / seconds_many),
        "The seconds are the same, but the ranks did more in them. Compare what was done in a second.":
            lambda seconds_one, images_one, seconds_many, images_many, ranks: (
                seconds_one / seconds_many, seconds_one / seconds_many / ranks),
    },
)
def scaling(attempt):
    """Strong scaling (the same images for more ranks) and weak scaling (as many images for each rank) are one formula:
    what all ranks do in a second, by what one does. The strong cases were this course's recorded runs, the weak ones
    BERT on 8 and 16 GPUs."""
    table = runs.speedup_table(runs.read_runs(RECORDED))
    one = table[table["world_size"] == 1].iloc[0]
    speedups = {(one.seconds, one.samples, run.seconds, run.samples, int(run.world_size)): run.speedup
                for run in table[table["world_size"] > 1].itertuples()}
    speedups |= {(1.0, BERT[1], 1.0, ranks * BERT[ranks], ranks): ranks * BERT[ranks] / BERT[1] for ranks in (8, 16)}

    def right(*run):
        return speedups[run], speedups[run] / run[-1]

    def pair(*run):
        got = attempt(*run)
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Wrong("Return two numbers: speed-up, efficiency.")
        return tuple(map(float, got))

    for number, what, otherwise in (
        (0, "a speed-up", "The speed-up is {right:.2f}."),
        (1, "an efficiency", "Efficiency is the speed-up by the number of ranks: {right:.3g}."),
    ):
        for miss in misses(scaling, pair, speedups, right, itemgetter(number)):
            miss.tell("One rank took {seconds_one:.2f} s for {images_one:,} {images}, {ranks} ranks {seconds_many:.2f} "
                      "s for {images_many:,}: you gave {what} of {got:.3g}.", otherwise, what=what,
                      images="texts (BERT)" if miss.asked[1] == BERT[1] else "images")


# Exercise 2: what working together costs
def my_price(alone, together, ranks, devices):
    return together - alone * max(1, ranks / devices)


@exercise(
    solution=my_price,
    hint="How long would a step take if working together cost nothing? With a device for each rank, as long as alone. "
    "With 8 ranks on 2 devices each has a device for a quarter of the time.",
    mistakes={
        "You divided the step among the ranks. But each rank has a batch of its own, as large as before: its step is "
        "not shorter, there are fewer of them in an epoch.":
            lambda alone, together, ranks, devices: together - alone / ranks,
        "More devices than ranks do not make a step shorter: a rank uses one.":
            lambda alone, together, ranks, devices: together - alone * ranks / devices,
        "That would be {ranks} ranks in turn on one device. There are {devices}.":
            lambda alone, together, ranks, devices: together - alone * ranks,
        "A rank has a device for {share:.0%} of the time. That alone makes a step of {fair:g} ms, and is not the price "
        "of working together.": lambda alone, together, ranks, devices: together - alone,
    },
)
def price(attempt):
    """Taking turns is no fault of DDP, and no faster link will mend it. Only what is left, beyond the turns, is the
    price of working together: all-reduce, waiting, and switching from rank to rank."""
    cases = (5.0, 5.8, 2, 2), (5.0, 26.0, 8, 2), (4.0, 5.0, 4, 8), (3.0, 10.5, 3, 1)
    for miss in misses(price, attempt, cases):
        alone, _, ranks, devices = miss.asked
        miss.tell("A step takes {alone:g} ms alone, and {together:g} ms with {ranks} ranks on {devices} device(s): you "
                  "said {got:.3g} ms.", "Without any price a step would take {fair:g} ms.", share=devices / ranks,
                  fair=max(1, ranks / devices) * alone)


# Exercise 3: the most of the whole command
def my_most(starting, training, ranks, devices):
    return (starting + training) / (starting + training / min(ranks, devices))


@exercise(
    solution=my_most,
    hint="Divide the seconds of one rank's command by those of the ranks' command. In the second, what gets shorter, "
    "and by how much at most: by ranks, or by min(ranks, devices)?",
    mistakes={
        "These are the seconds of the command. How many times as fast is it?":
            lambda starting, training, ranks, devices: starting + training / min(ranks, devices),
        "The ranks share the training. The start they do not share: each of them has to import torch for itself.":
            lambda starting, training, ranks, devices: ranks,
        "{ranks} ranks on {devices} devices train at most {devices} times as fast as one.":
            lambda starting, training, ranks, devices: my_most(starting, training, ranks, ranks),
        "One rank has to start, too: its command takes {before:g} s.":
            lambda starting, training, ranks, devices: training / (starting + training / min(ranks, devices)),
        "This is the most for the training. But the start is part of the command, and it does not get shorter.":
            lambda starting, training, ranks, devices: min(ranks, devices),
    },
)
def most(attempt):
    """Amdahl's law: what the ranks do not share stays, and sets a limit that no number of devices passes. With a start
    of 5 s and 45 s of training, 10,000 devices make the command less than 10 times as fast. Real commands stay below
    your number, because more ranks also take longer to start."""
    cases = (5.0, 45.0, 8, 2), (5.0, 45.0, 8, 8), (5.0, 45.0, 10_000, 10_000), (0.0, 30.0, 4, 8)
    for miss in misses(most, attempt, cases):
        before = miss.asked[0] + miss.asked[1]
        miss.tell("{starting:g} s of start, {training:g} s of training, {ranks:,} ranks on {devices:,} devices: you "
                  "said {got:.4g}.",
                  "The command takes {before:g} s with one rank, with {ranks:,} at least {after:.4g} s.",
                  before=before, after=before / miss.right)
