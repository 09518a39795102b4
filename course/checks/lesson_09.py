"""Exercises of lesson 09. The warm-up that is right is main.py's own scheduler, and most frames are of real runs."""

import math
from argparse import Namespace
from itertools import pairwise, product
from pathlib import Path

import pandas as pd
import torch

import utils
from course import runs
from course.checks import Wrong, exercise
from course.checks.cases import misses, same

RECORDED = Path(__file__).resolve().parents[2] / "results" / "recorded" / "two-cpu-cores"

# ------------------------------------------------------------------------------------------------ 1: the rate, by rule


def my_rate(lr, batch, ranks, batch_size, rule):
    k = ranks * batch_size / batch  # how many times as large the batch of an update is
    return lr * {"none": 1, "linear": k, "sqrt": math.sqrt(k)}[rule]


@exercise(
    solution=my_rate,
    hint="All ranks together take ranks * batch_size images an update. How many times as many are these as `batch`? "
    "Linear: that number. Square root: its root.",
    mistakes={
        "the ranks instead of the images": lambda lr, batch, ranks, batch_size, rule: (
            my_rate(lr, batch, ranks, batch, rule)),
        "the batch of one rank": lambda lr, batch, ranks, batch_size, rule: my_rate(lr, batch, 1, batch_size, rule),
        "divided instead of multiplied": lambda lr, *others: lr * lr / my_rate(lr, *others),
        "sqrt like linear": lambda *asked: my_rate(*asked[:-1], asked[-1].replace("sqrt", "linear")),
    },
)
def rate(attempt):
    """The rules speak of the images an update sees, not of ranks. With 8 ranks of 8 images each, the batch is the 64 of
    before, and so is the rate. main.py's --lr-scaling multiplies by the ranks: it takes --lr for the rate of ONE rank's
    batch."""
    sizes = (0.01, 64, 8, 64), (0.01, 64, 8, 8), (0.1, 256, 256, 32), (0.4, 128, 2, 32)
    cases = [(*size, rule) for size, rule in product(sizes, ("none", "linear", "sqrt"))]
    for miss in misses(rate, attempt, cases):
        lr, batch, ranks, batch_size, rule = miss.asked
        images = ranks * batch_size
        miss.explain(f"{lr:g} was right for {batch} images an update. For {ranks} ranks of {batch_size} each and "
                     f"rule={rule!r} you said {miss.got:.4g}.", {
            "the ranks instead of the images": "You went by the number of ranks. An update now sees "
            f"{images} images: {images / batch:g} times as many as before.",
            "the batch of one rank": "That is for one rank's images. The gradient is the mean over all ranks: "
            f"{images} images.",
            "divided instead of multiplied": "Upside down: more images give a better gradient, so the step may be "
            "longer.",
            "sqrt like linear": "That is the linear rule. This one multiplies by the square root.",
        }, f"It is {miss.right:.4g}.")


# ---------------------------------------------------------------------------------------------------- 2: the warm-up


def my_warm_up(step, lr, scale, warm_up_steps):
    risen = min(step / warm_up_steps, 1)  # the share of the way
    return lr * (1 + (scale - 1) * risen)


def rates_of_main(lr, scale, warm_up_steps, steps):
    """The rate of each update, as main.py's scheduler sets it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = utils.scale_rate(optimizer, Namespace(lr_scale=scale, warmup_epochs=1), warm_up_steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@exercise(
    solution=my_warm_up,
    hint="A straight line through two points: lr at step 0, lr * scale at step warm_up_steps. Then it stays there. The "
    "share of the way that is done is step / warm_up_steps, and never more than 1.",
    mistakes={
        "from zero": lambda step, lr, scale, warm_up_steps: lr * scale * min(step / warm_up_steps, 1),
        "it never stops": lambda step, lr, scale, warm_up_steps: lr * (1 + (scale - 1) * step / warm_up_steps),
        "constant warm-up": lambda step, lr, scale, warm_up_steps: lr if step < warm_up_steps else lr * scale,
        "one step early": lambda step, *others: my_warm_up(step + 1, *others),
        "lr + lr * scale at the end": lambda step, lr, scale, warm_up_steps: (
            lr + lr * scale * min(step / warm_up_steps, 1)),
    },
)
def warm_up(attempt):
    """Your rates are those of main.py's scheduler, update by update: from the rate of one rank up to that of all, in a
    straight line, and level from there."""
    for case in ((0.01, 8, 20), (0.1, 2, 3), (0.5, 4, 1)):
        lr, scale, warm_up_steps = case
        truth = rates_of_main(*case, warm_up_steps + 3)
        got = [float(attempt(step, *case)) for step in range(len(truth))]
        off = next((step for step, right in enumerate(truth) if not same(got[step], right)), None)
        if off is None:
            continue
        call = (f"lr={lr:g}, scale={scale}, warm_up_steps={warm_up_steps}: at step {off} you gave {got[off]:.4g}, "
                f"main.py has {truth[off]:.4g}.")
        for mistake, message in {
            "from zero": "Yours begins at zero: the first update changes nothing. This one begins at lr, the rate that "
            "is right for one rank.",
            "it never stops": "Yours goes on rising. After warm_up_steps it has to stay.",
            "constant warm-up": "Low, then a jump: a constant warm-up. The jump is what a gradual one avoids.",
            "one step early": "You are one step early: step counts from 0, and the first update has lr itself.",
            "lr + lr * scale at the end": "At the end it has to be lr * scale. What is added on the way is lr * (scale "
            "- 1).",
        }.items():
            if all(same(value, warm_up.mistakes[mistake](step, *case)) for step, value in enumerate(got)):
                raise Wrong(f"{call} {message}")
        raise Wrong(call)


# ------------------------------------------------------------------------------------- 3: epochs for as many updates


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
        "epochs times ranks": lambda epochs, images, ranks, batch_size: epochs * ranks,
        "rounded down": lambda *asked: math.floor(not_whole(*asked)),
        "not a whole number": not_whole,
        "the same epochs": lambda epochs, images, ranks, batch_size: epochs,
    },
)
def epochs_needed(attempt):
    """To make as many updates, the ranks need about `ranks` times as many epochs: all that they are faster is then
    spent on more images. That is why one wants a longer step instead. (Short batches at an epoch's end make it somewhat
    fewer epochs than `ranks` times as many.)"""
    cases = (10, 50_000, 8, 64), (4, 10_000, 8, 64), (3, 1000, 3, 64), (7, 640, 4, 16), (5, 100, 1, 7)
    for miss in misses(epochs_needed, attempt, cases):
        epochs, images, ranks, batch_size = miss.asked
        miss.explain(f"epochs={epochs}, images={images:,}, ranks={ranks}, batch_size={batch_size}: you said "
                     f"{miss.got:g}, it is {miss.right:g}.", {
            "the same epochs": "In the same epochs the ranks make fewer updates: each sees more images.",
            "epochs times ranks": "Nearly. But the last batch of an epoch is smaller, and counts as an update: count "
            "the updates with the rounding that the sampler and the loader do.",
            "rounded down": "You rounded down: a few updates are still missing.",
            "not a whole number": "An epoch is begun or it is not: give a whole number.",
        })


# ------------------------------------------------------------------------------------------- 4: time to an accuracy


def my_time_to(run, target):
    elapsed = run["seconds"].cumsum()
    reached = elapsed[run["val_accuracy"] >= target]
    return reached.iloc[0] if len(reached) else math.inf


@exercise(
    solution=my_time_to,
    hint="run[\"seconds\"].cumsum() is the time at the end of each epoch. Keep the epochs with a test accuracy "
    "(val_accuracy) of at least target, and take the first. Where there is none: math.inf.",
    mistakes={
        "the training accuracy": lambda run, target: my_time_to(run.assign(val_accuracy=run["accuracy"]), target),
        "the seconds of that epoch alone": lambda run, target: (
            next(iter(run["seconds"][run["val_accuracy"] >= target]), math.inf)),
        "the time to the best epoch": lambda run, target: my_time_to(run, max(target, run["val_accuracy"].max())),
        "the whole run, where it never got there": lambda run, target: (
            min(my_time_to(run, target), run["seconds"].sum())),
        "more than the target": lambda run, target: my_time_to(run, math.nextafter(target, 1)),
        "the time when the epoch began": lambda run, target: (
            my_time_to(run.assign(seconds=run["seconds"].shift(fill_value=0)), target)),
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
        run, target = miss.asked
        miss.explain(f"Test accuracies {', '.join(f'{value:.3f}' for value in run['val_accuracy'])}, seconds an epoch "
                     f"{', '.join(f'{value:.1f}' for value in run['seconds'])}, target {target:.3f}: you said "
                     f"{miss.got:.1f}, it is {miss.right:.1f}.", {
            "the seconds of that epoch alone": "These are the seconds of that epoch alone. The ones before it count, "
            "too.",
            "the time when the epoch began": "That is when the epoch began. The accuracy was measured at its end.",
            "more than the target": "A run that has exactly the target has reached it.",
            "the time to the best epoch": "That is the time to the best epoch. The target was reached before.",
            "the training accuracy": "You took `accuracy`, of the training images. Asked is that of the test images.",
            "the whole run, where it never got there": "This run never reached the target. Its whole time would look "
            "like a success.",
        })
