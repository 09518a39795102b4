"""Lesson 01: the first steps of a loop, clocks, what a faster phase gains, and loss against accuracy, which shows a
second softmax."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, GREY, darker, head, line_style
from course.plots.tables import by_run

NEAR = 0.05  # of the line: logs that people publish have two decimals
SURE_AND_WRONG = math.log(math.e + 9)  # loss of a wrong answer, of ten classes, after two softmaxes


def first_steps(steps: pd.DataFrame, most: int = 60) -> Axes:
    """Milliseconds of the first steps, beside the median of all. `steps`: a row a step, column `milliseconds`."""
    ax = plt.subplots(figsize=(12, 5))[1]
    times, median = steps["milliseconds"].to_numpy()[:most], steps["milliseconds"].median()
    ax.plot(range(1, len(times) + 1), times, "o-")
    ax.axhline(median, color=GREY, linestyle="--")
    ax.text(1.01, median, f"median of\n{len(steps)} steps:\n{median:.1f} ms", va="center", color=GREY,
            fontweight="bold", transform=ax.get_yaxis_transform())
    ax.set(xlabel="step", ylabel="milliseconds", ylim=(0, 1.1 * max(times)), xlim=(0, len(times) + 1))
    head(ax, "The first steps, and the median of all", steps)
    note = (1, times[0], f"first step: {times[0]:.1f} ms", COLOURS[0])
    write_beside(ax, [note], [(14, -4, "left", "center"), *BESIDE_A_POINT])
    return ax


def amdahl(curve: dict[float, float], limit: float, measured: tuple[float, float], whose: str) -> Axes:
    """What a faster data phase gains: {times as fast: gain of the epoch}, its limit, and a measured point."""
    ax = plt.subplots(figsize=(12, 5.5))[1]
    ax.plot(list(curve), list(curve.values()))
    ax.plot(*measured, "s", markersize=14, color=COLOURS[1])
    ax.axhline(limit, color=GREY, linestyle="--")
    most = max(curve)
    ax.set(xlabel="the data is so many times as fast", ylabel="the epoch is so many\ntimes as fast",
           xlim=(0, 1.3 * most), ylim=(0, 1.25 * max(limit, measured[1])), title="What a faster data phase gains")
    write_beside(ax, [(*measured, f"measured: {measured[1]:.2f}", COLOURS[1]),
                      (most, curve[most], whose, COLOURS[0]),
                      (0, limit, f"the limit: {limit:.2f}", GREY)], BESIDE_A_POINT)
    return ax


def phase_table(seconds_by_label: dict[str, pd.Series], synthetic: bool) -> pd.DataFrame:
    """The table that `plots.phases` draws, a row a run, from {label: seconds an epoch in each phase}."""
    rows = [{"label": label, **seconds.add_suffix("_seconds")} for label, seconds in seconds_by_label.items()]
    return pd.DataFrame(rows).assign(synthetic=synthetic)


def tenths(steps_by_label: dict[str, pd.DataFrame], steps_per_epoch: int, synthetic: bool) -> pd.DataFrame:
    """Loss and accuracy of each run in each tenth of an epoch, from its steps' `loss` (a mean), `hits`, `images`."""
    parts = []
    for label, steps in steps_by_label.items():
        tenth = np.arange(len(steps)) * 10 // steps_per_epoch + 1
        sums = steps.assign(loss=steps["loss"] * steps["images"]).groupby(tenth)[["loss", "hits", "images"]].sum()
        parts.append(pd.DataFrame({"label": label, "epoch": sums.index / 10, "loss": sums["loss"] / sums["images"],
                                   "accuracy": sums["hits"] / sums["images"], "synthetic": synthetic}))
    return pd.concat(parts, ignore_index=True)


def from_line(run: pd.DataFrame) -> pd.Series:
    """How far each row's loss lies from log(e + 9) - accuracy, the mean loss of a model that is sure of every answer,
    of ten classes, and takes the softmax twice."""
    return (run["loss"] - (SURE_AND_WRONG - run["accuracy"])).abs()


def ends_in(run: pd.DataFrame) -> str:
    """How the model of a run ends, as its log shows: on that line, or off it."""
    return "softmax first" if from_line(run).max() < NEAR else "logits"


def loss_against_accuracy(curves: pd.DataFrame, recorded: pd.DataFrame) -> Axes:
    """A point for each row of the runs measured here, and the line of a run recorded elsewhere (dashed, hollow).

    The dotted line is the one of `from_line`.
    """
    ax = plt.subplots(figsize=(12, 7))[1]
    ends = []
    for number, rows in enumerate([*by_run(curves), recorded]):
        live = rows is not recorded
        style = line_style(number, "live" if live else "recorded")
        ax.plot(rows["accuracy"], rows["loss"], **style | ({"linestyle": "none"} if live else {}))
        end = rows.loc[rows["accuracy"].idxmax()]
        ends.append((end["accuracy"], end["loss"], end["label"] if live else "a tutorial's run\n(recorded elsewhere)",
                     style["color"]))
    line = np.array([0.05, 0.85])
    ax.plot(line, SURE_AND_WRONG - line, ":", color=GREY)
    ax.set(xlabel="accuracy (% of images)", ylabel="loss (cross-entropy)", xlim=(0.05, 1))
    ax.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    ax.annotate("sure of every answer,\nsoftmax twice", (line[1], SURE_AND_WRONG - line[1]), (8, 0),
                textcoords="offset points", va="center", color=darker(GREY), fontsize=16)
    head(ax, "Loss against accuracy", curves)
    write_beside(ax, ends, BESIDE_A_POINT)
    return ax
