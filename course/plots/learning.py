"""Lesson 09: what a larger batch does to learning.

Tables come from `runs.read_runs`; `along` and `last_epochs` add the columns that the pictures need.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import GREY, colour_of, head, line_style, percent, ticks
from course.plots.tables import need, source_of
from course.plots.training import curves, elapsed

ALONG = {"images": "training images seen", "updates": "updates of the weights", "elapsed": "training time (s)"}


def updates_an_epoch(samples, world_size, batch_size):
    """Of all ranks together: the sampler pads the shards to one length, and the last batch may be smaller."""
    return math.ceil(math.ceil(samples / world_size) / batch_size)


def along(df: pd.DataFrame) -> pd.DataFrame:
    """Adds what a run has spent at the end of each epoch: `images`, `updates`, and `elapsed` seconds of training.

    Also `global_batch`, images an update. The rows of a run stand in the order of its epochs.
    """
    done = df["epoch"].astype(float) + 1
    steps = [updates_an_epoch(*run) for run in zip(df["samples"], df["world_size"], df["batch_size"], strict=True)]
    return df.assign(images=done * df["samples"].astype(float), updates=done * steps, elapsed=elapsed(df),
                     global_batch=df["world_size"] * df["batch_size"])


def last_epochs(df: pd.DataFrame) -> pd.DataFrame:
    """One row a run, its last epoch, with `result`: its test accuracy then. NaN where the run did not get to its end,
    as one whose loss was no longer a number."""
    last = along(df).groupby(["label", "path"], sort=False, dropna=False).tail(1)
    return last.assign(result=last["val_accuracy"].where(last["status"] == "completed"))


def over_seeds(last: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """`mean` and `sd` (of a sample: n - 1) of `result` over the runs that are alike in `by`, `runs` of them, and
    `broken` that have no result. Where one is broken the mean is missing: that of the others would flatter."""
    return last.groupby(by, as_index=False, dropna=False)["result"].agg(
        mean=lambda results: results.mean(skipna=False), sd=lambda results: results.std(skipna=False), runs="size",
        broken=lambda results: results.isna().sum())


def accuracy_along(df: pd.DataFrame, x: str, ax: Axes, title: str) -> Axes:
    """Test accuracy of each run against `x`: "images", "updates" or "elapsed", see `along`."""
    ax = curves(along(df), x, "val_accuracy", title, ALONG[x], "test accuracy (%)", ax)
    percent(ax)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter("{x:,.12g}")
    return ax


def by_rule(table: pd.DataFrame, ax: Axes, title: str) -> Axes:
    """Accuracy after the last epoch against the images an update, a line each `rule`; bars are one standard deviation.

    `table` is `over_seeds` by `rule` and `global_batch`, in the order in which the rules shall be drawn, with the
    columns `source` and `machine` of the runs.
    """
    need(table, "mean")
    ends = []
    for number, (rule, rows) in enumerate(table.groupby("rule", sort=False), 1):  # colour 0 is for one rank's run
        # side by side: where rules agree the bars would hide each other
        beside = rows.assign(global_batch=rows["global_batch"] * 1.03 ** (number - 2))
        for end in _points(ax, beside, "global_batch", number).tail(1).itertuples():
            ends.append((end.global_batch, end.mean, rule, colour_of(number)))
    _finish(ax, table, title, "images an update (global batch)", sorted(table["global_batch"].unique()))
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def by_rate(table: pd.DataFrame, ax: Axes, title: str, rules: dict | None = None) -> Axes:
    """Accuracy after the last epoch against the learning rate, a line each global batch; bars are one standard
    deviation, × is a rate with which a run broke off.

    `table` is `over_seeds` by `global_batch` and `lr`. `rules`: {name: {global batch: rate}}, a broad line through the
    points of the table that the rule chooses.
    """
    need(table, "mean")
    notes = []
    for number, (batch, rows) in enumerate(table.groupby("global_batch")):
        drawn, broken = _points(ax, rows, "lr", number), rows[rows["broken"] > 0]
        ax.plot(broken["lr"], np.full(len(broken), 0.06 + 0.012 * number), "X", color=colour_of(number), markersize=12)
        for best in drawn.nlargest(1, "mean").itertuples():
            notes.append((best.lr, best.mean + np.nan_to_num(best.sd), f"batch {batch}", colour_of(number)))
    for (name, rates), colour in zip((rules or {}).items(), ("black", GREY), strict=False):
        chosen = np.isclose(table["lr"].astype(float), table["global_batch"].map(rates).astype(float), rtol=1e-4)
        way = table[chosen].dropna(subset=["mean"]).sort_values("global_batch")
        ax.plot(way["lr"], way["mean"], linestyle=(0, (1, 1)), color=colour, linewidth=6, alpha=0.5, zorder=1)
        for end in way.tail(1).itertuples():
            notes.append((end.lr, end.mean, name, colour))
    shared = table["lr"].value_counts()
    _finish(ax, table, title, "learning rate", sorted(shared[shared > 1].index))  # a tick for each would be too many
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def _points(ax, rows, x, number):
    """The means against column `x`, each with its standard deviation; returns the rows that have one, along `x`."""
    drawn = rows.dropna(subset=["mean"]).sort_values(x)
    ax.errorbar(drawn[x].to_numpy(float), drawn["mean"], yerr=drawn["sd"], capsize=6, elinewidth=2, capthick=2,
                **line_style(number, source_of(rows.iloc[0])))
    return drawn


def _finish(ax, table, title, xlabel, values):
    ax.set_xscale("log", base=2)
    ticks(ax, values)
    ax.set(xlabel=xlabel, ylabel="test accuracy (%)")
    percent(ax)
    head(ax, title, table)
