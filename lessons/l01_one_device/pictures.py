"""Lesson 01: the first steps of a loop, and loss against accuracy, which shows a second softmax."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, GREY, darker, head, line_style
from course.plots.tables import by_run, need


def first_steps(steps: pd.DataFrame, ax: Axes | None = None, most: int = 60) -> Axes:
    """Milliseconds of the first steps, beside the median of all. `steps`: a row a step, column `milliseconds`."""
    need(steps, "milliseconds")
    ax = ax or plt.subplots(figsize=(12, 5))[1]
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


def loss_against_accuracy(curves: pd.DataFrame, recorded: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """A point for each row of the runs measured here, and those of one recorded elsewhere (dashed, hollow).

    The dotted line is where a model ends up that is sure of every answer and takes the softmax twice: a loss of
    log(e + 9) - 1 where it is right, 1 more where it is wrong, of ten classes.
    """
    need(curves, "loss", "accuracy")
    ax = ax or plt.subplots(figsize=(12, 7))[1]
    ends = []
    for number, rows in enumerate([*by_run(curves), recorded]):
        here = rows is not recorded
        style = line_style(number, "live" if here else "recorded")
        ax.plot(rows["accuracy"], rows["loss"], **style | ({"linestyle": "none"} if here else {}))
        end = rows.loc[rows["accuracy"].idxmax()]
        ends.append((end["accuracy"], end["loss"], end["label"] if here else "a tutorial's run\n(recorded elsewhere)",
                     style["color"]))
    line = np.array([0.05, 0.85])
    ax.plot(line, math.log(math.e + 9) - line, ":", color=GREY)
    ax.set(xlabel="accuracy (% of images)", ylabel="loss (cross-entropy)", xlim=(0.05, 1))
    ax.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    ax.annotate("sure of every answer,\nsoftmax twice", (line[1], math.log(math.e + 9) - line[1]), (8, 0),
                textcoords="offset points", va="center", color=darker(GREY), fontsize=16)
    head(ax, "Loss against accuracy", curves)
    write_beside(ax, ends, BESIDE_A_POINT)
    return ax
