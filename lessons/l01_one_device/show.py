"""Lesson 01: ways to time an epoch, where its time goes, and what a second softmax does to loss and accuracy."""

import math

import numpy as np
import pandas as pd

NEAR = 0.05  # of the line: logs that people publish have two decimals


def clocks(step_ms):
    """What each way to judge an epoch says of it, from the milliseconds of its steps."""
    fastest = np.sort(step_ms)[:max(1, len(step_ms) // 10)]
    ways = {"the first step": step_ms[0], "the mean, as the clock on the wall": np.mean(step_ms),
            "the median": np.median(step_ms), "the fastest tenth of the steps": np.mean(fastest)}
    return [{"an epoch judged by": way, "ms per step": f"{ms:.1f}",
             "seconds per epoch": f"{ms * len(step_ms) / 1000:.2f}"} for way, ms in ways.items()]


def phase_table(seconds_by_label, synthetic):
    """The table that `plots.phases` draws, a row a run, from {label: seconds an epoch in each phase}."""
    rows = [{"label": label, **seconds.add_suffix("_seconds")} for label, seconds in seconds_by_label.items()]
    return pd.DataFrame(rows).assign(synthetic=synthetic)


def pipelines(seconds_by_label, samples):
    """A row for each data pipeline, and the first by the last."""
    rows = [{"pipeline": label, "data, µs per image": f"{1e6 * seconds['data'] / samples:.1f}",
             "data, s per epoch": f"{seconds['data']:.2f}", "whole epoch, s": f"{seconds.sum():.2f}",
             "images/s": f"{samples / seconds.sum():,.0f}"} for label, seconds in seconds_by_label.items()]
    first, *_, last = seconds_by_label.values()
    times = f"{first['data'] / last['data']:.1f}"
    return [*rows, {"pipeline": "first row / second row", "data, µs per image": times, "data, s per epoch": times,
                    "whole epoch, s": f"{first.sum() / last.sum():.2f}",
                    "images/s": f"{last.sum() / first.sum():.2f}"}]


def tenths(steps_by_label, steps_per_epoch, synthetic):
    """Loss and accuracy of each run in each tenth of an epoch, from its steps' `loss` (a mean), `hits`, `images`."""
    parts = []
    for label, steps in steps_by_label.items():
        tenth = np.arange(len(steps)) * 10 // steps_per_epoch + 1
        sums = steps.assign(loss=steps["loss"] * steps["images"]).groupby(tenth)[["loss", "hits", "images"]].sum()
        parts.append(pd.DataFrame({"label": label, "epoch": sums.index / 10, "loss": sums["loss"] / sums["images"],
                                   "accuracy": sums["hits"] / sums["images"], "synthetic": synthetic}))
    return pd.concat(parts, ignore_index=True)


def from_line(run):
    """How far each epoch's loss lies from log(e + 9) - accuracy: what a model has that is sure of every answer, of ten
    classes, and takes the softmax twice."""
    return (run["loss"] - (math.log(math.e + 9) - run["accuracy"])).abs()


def ends_in(run):
    """How the model of a run ends, as its log shows: on that line, or off it."""
    return "softmax first" if from_line(run).max() < NEAR else "logits"


def distances(runs):
    return [{"run": name, "epochs or tenths": len(run), "farthest from the dotted line": f"{from_line(run).max():.2f}",
             "half of them within": f"{from_line(run).median():.2f}"} for name, run in runs.items()]
