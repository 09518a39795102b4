"""Exercises of lesson 09. The warm-up that is right is main.py's own scheduler, and most frames are of real runs."""

import math
from argparse import Namespace
from itertools import pairwise, product

import pandas as pd
import torch

import utils
from course import runs
from course.checks import Wrong, exercise
from course.checks.cases import RECORDED, misses


# Exercise 1: the rate, by rule
def my_rate(lr, batch, ranks, batch_size, rule):
    k = ranks * batch_size / batch  # how many times as large the batch of an update is
    return lr * {"none": 1, "linear": k, "sqrt": math.sqrt(k)}[rule]


@exercise(
    solution=my_rate,
    hint="All ranks together take ranks * batch_size images an update. How many times as many are these as `batch`? "
    "Linear: that number. Square root: its root.",
    mistakes={
        "You went by the number of ranks. An update now sees {images} images: {times:g} times as many as before.":
            lambda lr, batch, ranks, batch_size, rule: my_rate(lr, batch, ranks, batch, rule),
        "That is for one rank's images. The gradient is the mean over all ranks: {images} images.":
            lambda lr, batch, ranks, batch_size, rule: my_rate(lr, batch, 1, batch_size, rule),
        "Upside down: more images give a better gradient, so the step may be longer.":
            lambda lr, *others: lr * lr / my_rate(lr, *others),
        "That is the linear rule. This one multiplies by the square root.":
            lambda *asked: my_rate(*asked[:-1], asked[-1].replace("sqrt", "linear")),
    },
)
def rate(attempt):
    """The rules speak of the images an update sees, not of ranks. With 8 ranks of 8 images each, the batch is the 64 of
    before, and so is the rate. main.py's --lr-scaling multiplies by the ranks: it takes --lr for the rate of ONE rank's
    batch."""
    sizes = (0.01, 64, 8, 64), (0.01, 64, 8, 8), (0.1, 256, 256, 32), (0.4, 128, 2, 32)
    cases = [(*size, rule) for size, rule in product(sizes, ("none", "linear", "sqrt"))]
    for miss in misses(rate, attempt, cases):
        _, batch, ranks, batch_size, _ = miss.asked
        images = ranks * batch_size
        miss.tell("{lr:g} was right for {batch} images an update. For {ranks} ranks of {batch_size} each and "
                  "rule={rule!r} you said {got:.4g}.", "It is {right:.4g}.", images=images, times=images / batch)


# Exercise 2: the warm-up
def my_warm_up(step, lr, scale, warm_up_steps):
    risen = min(step / warm_up_steps, 1)  # the share of the way
    return lr * (1 + (scale - 1) * risen)


def rate_of_main(step, lr, scale, warm_up_steps):
    """The rate of this update, as main.py's scheduler sets it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = utils.scale_rate(optimizer, Namespace(lr_scale=scale, warmup_epochs=1), warm_up_steps)
    for _ in range(step):
        optimizer.step()
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


@exercise(
    solution=my_warm_up,
    hint="A straight line through two points: lr at step 0, lr * scale at step warm_up_steps. Then it stays there. The "
    "share of the way that is done is step / warm_up_steps, and never more than 1.",
    mistakes={
        "Yours begins at zero: the first update changes nothing. This one begins at lr, the rate that is right for one "
        "rank.": lambda step, lr, scale, warm_up_steps: lr * scale * min(step / warm_up_steps, 1),
        "Yours goes on rising. After warm_up_steps it has to stay.":
            lambda step, lr, scale, warm_up_steps: lr * (1 + (scale - 1) * step / warm_up_steps),
        "Still lr: a constant warm-up stays there and then jumps. The jump is what a gradual one avoids.":
            lambda step, lr, scale, warm_up_steps: lr if step < warm_up_steps else lr * scale,
        "You are one step early: step counts from 0, and the first update has lr itself.":
            lambda step, *others: my_warm_up(step + 1, *others),
        "At the end it has to be lr * scale. What is added on the way is lr * (scale - 1).":
            lambda step, lr, scale, warm_up_steps: lr + lr * scale * min(step / warm_up_steps, 1),
    },
)
def warm_up(attempt):
    """Your rates are those of main.py's scheduler, update by update: from the rate of one rank up to that of all, in a
    straight line, and level from there."""
    cases = [(step, *run) for run in ((0.01, 8, 20), (0.1, 2, 3), (0.5, 4, 1)) for step in range(run[-1] + 3)]
    for miss in misses(warm_up, attempt, cases, rate_of_main):
        miss.tell("lr={lr:g}, scale={scale}, warm_up_steps={warm_up_steps}: at step {step} you gave {got:.4g}, main.py "
                  "has {right:.4g}.")


# Exercise 3: epochs for as many updates
def my_epochs(epochs, images, ranks, batch_size):
    def updates(world_size):
        return math.ceil(math.ceil(images / world_size) / batch_size)

    return math.ceil(epochs * updates(1) / updates(ranks))


def not_whole(epochs, images, ranks, batch_size):
    return epochs * math.ceil(images / batch_size) / math.ceil(math.ceil(images / ranks) / batch_size)


@exercise(
    solution=my_epochs,
    hint="Updates an epoch of W ranks: ceil(ceil(images / W) / batch_size), as in lesson 05. One process makes epochs "
    "times that many with W = 1. How many epochs of all ranks are at least as many? Round up.",
    mistakes={
        "In the same epochs the ranks make fewer updates: each sees more images.":
            lambda epochs, images, ranks, batch_size: epochs,
        "Nearly. But the last batch of an epoch is smaller, and counts as an update: count the updates with the "
        "rounding that the sampler and the loader do.": lambda epochs, images, ranks, batch_size: epochs * ranks,
        "You rounded down: a few updates are still missing.": lambda *asked: math.floor(not_whole(*asked)),
        "An epoch is begun or it is not: give a whole number.": not_whole,
    },
)
def epochs_needed(attempt):
    """To make as many updates, the ranks need about `ranks` times as many epochs: all that they are faster is then
    spent on more images. That is why one wants a longer step instead. (Short batches at an epoch's end make it somewhat
    fewer epochs than `ranks` times as many.)"""
    cases = (10, 50_000, 8, 64), (4, 10_000, 8, 64), (3, 1000, 3, 64), (7, 640, 4, 16), (5, 100, 1, 7)
    for miss in misses(epochs_needed, attempt, cases):
        miss.tell("epochs={epochs}, images={images:,}, ranks={ranks}, batch_size={batch_size}: you said {got:g}, it is "
                  "{right:g}.")


# Exercise 4: time to an accuracy
def my_time_to(run, target):
    elapsed = run["seconds"].cumsum()
    reached = elapsed[run["val_accuracy"] >= target]
    return reached.iloc[0] if len(reached) else math.inf


@exercise(
    solution=my_time_to,
    hint="run[\"seconds\"].cumsum() is the time at the end of each epoch. Keep the epochs with a test accuracy "
    "(val_accuracy) of at least target, and take the first. Where there is none: math.inf.",
    mistakes={
        "These are the seconds of that epoch alone. The ones before it count, too.":
            lambda run, target: next(iter(run["seconds"][run["val_accuracy"] >= target]), math.inf),
        "That is when the epoch began. The accuracy was measured at its end.":
            lambda run, target: my_time_to(run.assign(seconds=run["seconds"].shift(fill_value=0)), target),
        "A run that has exactly the target has reached it.":
            lambda run, target: my_time_to(run, math.nextafter(target, 1)),
        "That is the time to the best epoch. The target was reached before.":
            lambda run, target: my_time_to(run, max(target, run["val_accuracy"].max())),
        "You took `accuracy`, of the training images. Asked is that of the test images.":
            lambda run, target: my_time_to(run.assign(val_accuracy=run["accuracy"]), target),
        "This run never reached the target. Its whole time would look like a success.":
            lambda run, target: min(my_time_to(run, target), run["seconds"].sum()),
    },
)
def time_to(attempt):
    """You found the time to an accuracy in logs of real runs: the seconds of all epochs up to the first that reaches
    it, and infinity where none does. This number, not images a second, is what a larger batch has to make smaller."""
    logs = [runs.read_run(RECORDED / f"{name}.jsonl") for name in ("one-process", "ddp8")]
    up_and_down = pd.DataFrame({"epoch": range(5), "seconds": [8.0, 5.0, 6.0, 5.5, 5.2],
                                "accuracy": [0.2, 0.39, 0.6, 0.7, 0.8], "val_accuracy": [0.3, 0.4, 0.35, 0.42, 0.45]})
    cases = [(up_and_down, 0.4), (up_and_down, 0.32), (up_and_down, 0.5)]
    for log in logs:
        accuracies = log["val_accuracy"]
        cases += [(log, sum(pair) / 2) for pair in pairwise(accuracies)] + [(log, accuracies.max() + 0.01)]

    def watched(run, target):
        before, got = run.copy(), attempt(run, target)
        if not run.equals(before):
            raise Wrong("Your function changes the table that it is given. Whoever looks at it next is misled.")
        return math.nan if got is None else got

    for miss in misses(time_to, watched, cases):
        run, _ = miss.asked
        miss.tell("Test accuracies {accuracies}, seconds an epoch {seconds}, target {target:.3f}: you said {got:.1f}, "
                  "it is {right:.1f}.", accuracies=", ".join(f"{value:.3f}" for value in run["val_accuracy"]),
                  seconds=", ".join(f"{value:.1f}" for value in run["seconds"]))
