"""The picture of this lesson."""

import statistics

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course.plots.style import COLOURS, colour_of, head, line_key, name_rows


def means(measured: dict, ax: Axes | None = None) -> Axes:
    """A bar for the mean of each rank; lines for the mean of all numbers, and for the mean of the ranks' means.

    `measured`: what hello.py wrote, {"means": a number for each rank, "mean": that of all}.
    """
    of_ranks = measured["means"]
    ax = ax or plt.subplots(figsize=(10, 2.5 + 0.5 * len(of_ranks)))[1]
    for rank, mean in enumerate(of_ranks):
        ax.barh(rank, mean, height=0.6, color=colour_of(rank))
    name_rows(ax, [f"rank {rank}" for rank in range(len(of_ranks))])
    ax.axvline(measured["mean"], color="black")
    ax.axvline(statistics.fmean(of_ranks), color=COLOURS[3], linestyle="--")
    ax.set_xlabel("mean of its numbers")
    head(ax, "The mean of all is not the mean of means",
         key=[line_key("all numbers", color="black"),
              line_key("mean of means", color=COLOURS[3], linestyle="--")], columns=2)
    return ax
