"""Lesson 04: what each rank holds, cell by cell, before and after a collective and along the ring.

The numbers are those of lessons/l04_collectives/collectives_shown.py: each digit of a number stands for one rank, so
a cell
shows by its colours which ranks its number came from. Nothing here is drawn by hand: a cell is a value of a run.
"""

import itertools
import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.patches import Rectangle

from course.plots.style import GREY, bare, colour_of, darker


def contributors(number):
    """The ranks whose digit is in the number: [0, 2] for 101."""
    return [rank for rank, digit in enumerate(reversed(str(number))) if digit != "0"]


def held(cells, ax, title="", fontsize=17, mark=()):
    """A row a rank, a cell a number, striped in the colours of the ranks that it came from.

    `cells` is a list of numbers for each rank; `mark` holds the (rank, cell) that get a thick frame.
    """
    for rank, row in enumerate(cells):
        for column, number in enumerate(row):
            sources = contributors(number)
            for stripe, source in enumerate(sources):
                ax.add_patch(Rectangle((column - 0.45, rank - 0.4 + 0.8 * stripe / len(sources)), 0.9,
                                       0.8 / len(sources), color=colour_of(source), linewidth=0))
            framed = (rank, column) in mark
            ax.add_patch(Rectangle((column - 0.45, rank - 0.4), 0.9, 0.8, facecolor="none", zorder=3,
                                   edgecolor="black" if framed else GREY, linewidth=4 if framed else 1))
            ax.text(column, rank, str(number), ha="center", va="center", fontsize=fontsize, fontweight="bold", zorder=4,
                    bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.1"})
        if not row:
            ax.text(-0.4, rank, "nothing", va="center", fontsize=fontsize, color=GREY)
    ax.set(xlim=(-0.6, max(2, *map(len, cells)) - 0.4), ylim=(len(cells) - 0.4, -0.6), xticks=[])
    ax.set_yticks(range(len(cells)), [f"rank {rank}" for rank in range(len(cells))], fontweight="bold")
    for rank, label in enumerate(ax.get_yticklabels()):
        label.set_color(darker(colour_of(rank)))
    bare(ax)
    ax.set_title(title, fontsize=fontsize)
    return ax


def before_after(found, title):
    """A figure of what each rank held, a panel for each state that collectives_shown.py `found`."""
    states = found["states"]
    columns = [max(2, *map(len, state["cells"])) for state in states]
    rows = len(states[0]["cells"])
    fig, axes = plt.subplots(1, len(states), figsize=(1.6 * len(states) + 1.15 * sum(columns), 1.1 + 0.62 * rows),
                             width_ratios=columns)
    for state, ax in zip(states, axes, strict=True):
        held(state["cells"], ax, state["label"])
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return fig


def intervals(found, events):
    """The table for `plots.timeline`; events: {text: (event, label of the state it begins with, and it ends with)}."""
    at = {state["label"]: state["seconds"] for state in found["states"]}
    return pd.DataFrame([{"rank": rank, "event": event, "text": text, "start": 1000 * at[begin][rank],
                          "end": 1000 * at[end][rank]}
                         for text, (event, begin, end) in events.items() for rank in range(len(at[begin]))])


def ring_state(run, step, ax, fontsize=20):
    """What each rank held after `step`, counted from 0, with a frame around what arrived in it; None: at the start.

    `run` is "ring" of collectives_shown.py, whose first state is the start.
    """
    ranks, ends = len(run["chunks"]), list(itertools.accumulate(run["chunks"]))
    columns = [range(end - size, end) for size, end in zip(run["chunks"], ends, strict=True)]
    state = run["steps"][0 if step is None else step + 1]
    arrived = {((rank + 1) % ranks, cell) for rank, chunk in enumerate(state.get("sent", ()))
               for cell in columns[chunk]}
    held(state["cells"], ax, fontsize=fontsize, mark=arrived)
    for end in ends[:-1]:
        ax.axvline(end - 0.5, color=GREY, linewidth=1, linestyle=":")
    ax.set(ylim=(ranks - 0.1, -0.9))
    done = "added" if step is not None and step < ranks - 1 else "copied"
    ax.set_title("start" if step is None else f"step {step}: {done}", fontsize=fontsize)
    return ax


def ring(run, half):
    """A figure of one half of the ring: the start and the steps in which chunks are "added", or those in which they
    are "copied"."""
    ranks = len(run["chunks"])
    steps = [None, *range(ranks - 1)] if half == "added" else range(ranks - 1, 2 * (ranks - 1))
    rows = math.ceil(len(steps) / 2)
    fig, axes = plt.subplots(rows, 2, figsize=(6 + 2 * sum(run["chunks"]), (1 + 0.75 * ranks) * rows), squeeze=False)
    for ax in axes.flat[len(steps):]:
        ax.remove()
    for step, ax in zip(steps, axes.flat, strict=False):
        ring_state(run, step, ax)
    fig.suptitle("Ring all-reduce, recorded on each rank", x=0.01, ha="left", fontweight="bold")
    return fig
