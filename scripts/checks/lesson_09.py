"""Exercises of lesson 09. The warm-up that is right is main.py's own scheduler, and most frames are of real runs."""

import math
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import torch

from scripts import runs
from scripts.checks import Wrong, exercise

ROOT = Path(__file__).resolve().parent.parent.parent


# ------------------------------------------------------------------------------------------------ 1: the rate, by rule


def my_rate(lr, batch, ranks, batch_size, rule):
    k = ranks * batch_size / batch  # how many times as large the batch of an update is
    return lr * {"none": 1, "linear": k, "sqrt": math.sqrt(k)}[rule]


def ranks_for_the_batch(lr, batch, ranks, batch_size, rule):
    return lr * {"none": 1, "linear": ranks, "sqrt": math.sqrt(ranks)}[rule]


def batch_of_one_rank(lr, batch, ranks, batch_size, rule):
    return my_rate(lr, batch, 1, batch_size, rule)


def upside_down(lr, batch, ranks, batch_size, rule):
    return lr * lr / my_rate(lr, batch, ranks, batch_size, rule)


def always_linear(lr, batch, ranks, batch_size, rule):
    return my_rate(lr, batch, ranks, batch_size, "none" if rule == "none" else "linear")


@exercise(
    solution=my_rate,
    hint="All ranks together take ranks * batch_size images an update. How many times as many are these as `batch`? "
    "Linear: that number. Square root: its root.",
    mistakes={
        "the ranks instead of the images": ranks_for_the_batch,
        "the batch of one rank": batch_of_one_rank,
        "divided instead of multiplied": upside_down,
        "sqrt like linear": always_linear,
    },
)
def rate(attempt):
    """The rules speak of the images an update sees, not of ranks. With 8 ranks of 8 images each, the batch is the 64 of
    before, and so is the rate. main.py's --lr-scaling multiplies by the ranks: it takes --lr for the rate of ONE rank's
    batch."""
    for lr, batch, ranks, batch_size in ((0.01, 64, 8, 64), (0.01, 64, 8, 8), (0.1, 256, 256, 32), (0.4, 128, 2, 32)):
        for rule in ("none", "linear", "sqrt"):
            asked = (lr, batch, ranks, batch_size, rule)
            truth, got = my_rate(*asked), float(attempt(*asked))
            if math.isclose(got, truth, rel_tol=1e-6):
                continue
            call = (f"{lr:g} was right for {batch} images an update. For {ranks} ranks of {batch_size} each and "
                    f"rule={rule!r} you said {got:.4g}.")
            if math.isclose(got, ranks_for_the_batch(*asked)):
                raise Wrong(f"{call} You went by the number of ranks. An update now sees {ranks * batch_size} images: "
                            f"{ranks * batch_size / batch:g} times as many as before.")
            if math.isclose(got, batch_of_one_rank(*asked)):
                raise Wrong(f"{call} That is for one rank's images. The gradient is the mean over all ranks: "
                            f"{ranks * batch_size} images.")
            if math.isclose(got, upside_down(*asked)):
                raise Wrong(f"{call} Upside down: more images give a better gradient, so the step may be longer.")
            if rule == "sqrt" and math.isclose(got, always_linear(*asked)):
                raise Wrong(f"{call} That is the linear rule. This one multiplies by the square root.")
            raise Wrong(f"{call} It is {truth:.4g}.")


# ---------------------------------------------------------------------------------------------------- 2: the warm-up


def my_warm_up(step, lr, scale, warm_up_steps):
    risen = min(step / warm_up_steps, 1)  # the share of the way
    return lr * (1 + (scale - 1) * risen)


def from_zero(step, lr, scale, warm_up_steps):
    return lr * scale * min(step / warm_up_steps, 1)


def never_stops(step, lr, scale, warm_up_steps):
    return lr * (1 + (scale - 1) * step / warm_up_steps)


def constant(step, lr, scale, warm_up_steps):
    return lr if step < warm_up_steps else lr * scale


def one_step_early(step, lr, scale, warm_up_steps):
    return my_warm_up(step + 1, lr, scale, warm_up_steps)


def one_lr_too_many(step, lr, scale, warm_up_steps):
    return lr + lr * scale * min(step / warm_up_steps, 1)


def rates_of_main(lr, scale, warm_up_steps, steps):
    """The rate of each update, as main.py's scheduler sets it."""
    import main  # late: it imports what a rank needs

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = main.scale_rate(optimizer, Namespace(lr_scaling="linear", warmup_epochs=1), scale, warm_up_steps)
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
        "from zero": from_zero,
        "it never stops": never_stops,
        "constant warm-up": constant,
        "one step early": one_step_early,
        "lr + lr * scale at the end": one_lr_too_many,
    },
)
def warm_up(attempt):
    """Your rates are those of main.py's scheduler, update by update: from the rate of one rank up to that of all, in a
    straight line, and level from there."""
    for lr, scale, warm_up_steps in ((0.01, 8, 20), (0.1, 2, 3), (0.5, 4, 1)):
        truth = rates_of_main(lr, scale, warm_up_steps, warm_up_steps + 3)
        got = [float(attempt(step, lr, scale, warm_up_steps)) for step in range(len(truth))]
        off = [step for step in range(len(truth)) if not math.isclose(got[step], truth[step], rel_tol=1e-6)]
        if not off:
            continue
        call = (f"lr={lr:g}, scale={scale}, warm_up_steps={warm_up_steps}: at step {off[0]} you gave "
                f"{got[off[0]]:.4g}, main.py has {truth[off[0]]:.4g}.")

        def same(mistake, got=got, case=(lr, scale, warm_up_steps)):
            return all(math.isclose(value, mistake(step, *case), rel_tol=1e-6) for step, value in enumerate(got))

        if same(from_zero):
            raise Wrong(f"{call} Yours begins at zero: the first update changes nothing. This one begins at lr, the "
                        "rate that is right for one rank.")
        if same(never_stops):
            raise Wrong(f"{call} Yours goes on rising. After warm_up_steps it has to stay.")
        if same(constant):
            raise Wrong(f"{call} Low, then a jump: a constant warm-up. The jump is what a gradual one avoids.")
        if same(one_step_early):
            raise Wrong(f"{call} You are one step early: step counts from 0, and the first update has lr itself.")
        if same(one_lr_too_many):
            raise Wrong(f"{call} At the end it has to be lr * scale. What is added on the way is lr * (scale - 1).")
        raise Wrong(call)


# ------------------------------------------------------------------------------------- 3: epochs for as many updates


def my_epochs(epochs, images, ranks, batch_size):
    def updates(world_size):
        return math.ceil(math.ceil(images / world_size) / batch_size)

    return math.ceil(epochs * updates(1) / updates(ranks))


def times_ranks(epochs, images, ranks, batch_size):
    return epochs * ranks


def rounded_down(epochs, images, ranks, batch_size):
    return epochs * math.ceil(images / batch_size) // math.ceil(math.ceil(images / ranks) / batch_size)


def not_whole(epochs, images, ranks, batch_size):
    return epochs * math.ceil(images / batch_size) / math.ceil(math.ceil(images / ranks) / batch_size)


def as_before(epochs, images, ranks, batch_size):
    return epochs


@exercise(
    solution=my_epochs,
    hint="Updates an epoch of W ranks: ceil(ceil(images / W) / batch_size), as in lesson 05. One process makes epochs "
    "times that many with W = 1. How many epochs of all ranks are at least as many? Round up.",
    mistakes={
        "epochs times ranks": times_ranks,
        "rounded down": rounded_down,
        "not a whole number": not_whole,
        "the same epochs": as_before,
    },
)
def epochs_needed(attempt):
    """To make as many updates, the ranks need about `ranks` times as many epochs: all that they are faster is then
    spent on more images. That is why one wants a longer step instead. (Short batches at an epoch's end make it somewhat
    fewer epochs than `ranks` times as many.)"""
    for asked in ((10, 50_000, 8, 64), (4, 10_000, 8, 64), (3, 1000, 3, 64), (7, 640, 4, 16), (5, 100, 1, 7)):
        epochs, images, ranks, batch_size = asked
        truth, got = my_epochs(*asked), float(attempt(*asked))
        if got == truth:
            continue
        call = (f"epochs={epochs}, images={images:,}, ranks={ranks}, batch_size={batch_size}: you said {got:g}, it is "
                f"{truth}.")
        if got == as_before(*asked):
            raise Wrong(f"{call} In the same epochs the ranks make fewer updates: each sees more images.")
        if got == times_ranks(*asked):
            raise Wrong(f"{call} Nearly. But the last batch of an epoch is smaller, and counts as an update: count the "
                        "updates with the rounding that the sampler and the loader do.")
        if got == rounded_down(*asked):
            raise Wrong(f"{call} You rounded down: a few updates are still missing.")
        if math.isclose(got, not_whole(*asked)):
            raise Wrong(f"{call} An epoch is begun or it is not: give a whole number.")
        raise Wrong(call)


# ------------------------------------------------------------------------------------------- 4: time to an accuracy


def my_time_to(run, target):
    elapsed = run["seconds"].cumsum()
    reached = elapsed[run["val_accuracy"] >= target]
    return reached.iloc[0] if len(reached) else math.inf


def training_accuracy(run, target):
    return my_time_to(run.assign(val_accuracy=run["accuracy"]), target)


def seconds_of_the_epoch(run, target):
    reached = run["seconds"][run["val_accuracy"] >= target]
    return reached.iloc[0] if len(reached) else math.inf


def time_to_the_best(run, target):
    reached = run["val_accuracy"].max() >= target
    return run["seconds"].cumsum()[run["val_accuracy"].idxmax()] if reached else math.inf


def the_whole_run_where_never(run, target):
    reached = my_time_to(run, target)
    return reached if reached < math.inf else run["seconds"].sum()


def above_only(run, target):
    reached = run["seconds"].cumsum()[run["val_accuracy"] > target]
    return reached.iloc[0] if len(reached) else math.inf


def time_before(run, target):
    return my_time_to(run.assign(seconds=run["seconds"].shift(fill_value=0)), target)


@exercise(
    solution=my_time_to,
    hint="run[\"seconds\"].cumsum() is the time at the end of each epoch. Keep the epochs with a test accuracy "
    "(val_accuracy) of at least target, and take the first. Where there is none: math.inf.",
    mistakes={
        "the training accuracy": training_accuracy,
        "the seconds of that epoch alone": seconds_of_the_epoch,
        "the time to the best epoch": time_to_the_best,
        "the whole run, where it never got there": the_whole_run_where_never,
        "more than the target": above_only,
        "the time when the epoch began": time_before,
    },
)
def time_to(attempt):
    """You found the time to an accuracy in logs of real runs: the seconds of all epochs up to the first that reaches
    it, and infinity where none does. This number, not images a second, is what a larger batch has to make smaller."""
    logs = [runs.read_run(ROOT / "results" / "recorded" / "two-cpu-cores" / f"{name}.jsonl")
            for name in ("one-process", "ddp8")]
    up_and_down = pd.DataFrame({"epoch": range(5), "seconds": [8.0, 5.0, 6.0, 5.5, 5.2],
                                "accuracy": [0.2, 0.39, 0.6, 0.7, 0.8], "val_accuracy": [0.3, 0.4, 0.35, 0.42, 0.45]})
    cases = [(up_and_down, 0.4), (up_and_down, 0.32), (up_and_down, 0.5)]
    for log in logs:
        accuracies = log["val_accuracy"]
        cases += [(log, sum(pair) / 2) for pair in pairwise(accuracies)] + [(log, accuracies.max() + 0.01)]
    for run, target in cases:
        before = run.copy()
        truth, got = my_time_to(run, target), attempt(run, target)
        if not run.equals(before):
            raise Wrong("Your function changes the table that it is given. Whoever looks at it next is misled.")
        got = math.nan if got is None else float(got)
        if math.isclose(got, truth, rel_tol=1e-9):
            continue
        call = (f"Test accuracies {', '.join(f'{value:.3f}' for value in run['val_accuracy'])}, seconds an epoch "
                f"{', '.join(f'{value:.1f}' for value in run['seconds'])}, target {target:.3f}: you said {got:.1f}, it "
                f"is {truth:.1f}.")
        messages = {
            seconds_of_the_epoch: "These are the seconds of that epoch alone. The ones before it count, too.",
            time_before: "That is when the epoch began. The accuracy was measured at its end.",
            above_only: "A run that has exactly the target has reached it.",
            time_to_the_best: "That is the time to the best epoch. The target was reached before.",
            training_accuracy: "You took `accuracy`, of the training images. Asked is that of the test images.",
            the_whole_run_where_never: "This run never reached the target. Its whole time would look like a success.",
        }
        for mistake, message in messages.items():
            if math.isclose(got, mistake(run, target), rel_tol=1e-9):
                raise Wrong(f"{call} {message}")
        raise Wrong(call)
