"""Lesson 04: pictures of what each rank holds, cell by cell, and tables of the ring and of the hangs.

The numbers are those of collectives_shown.py and hang_on_purpose.py. Each digit of a number stands for one rank, so a
cell shows by its colours from which ranks its number came. Nothing is drawn by hand: a cell is a value of a run.
"""

import math
import re

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.plots.style import GREY, bare, colour_of, darker

# ------------------------------------------------------------------------------------------ pictures


def contributors(number: int) -> list[int]:
    """The ranks whose digit is in the number: [0, 2] for 101."""
    return [rank for rank, digit in enumerate(reversed(str(number))) if digit != "0"]


def held(cells: list, ax: Axes, title="", fontsize=17, mark=()) -> Axes:
    """A row for each rank, a cell for each number, striped in the colours of the ranks that it came from.

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


def before_after(states: list[dict], title: str) -> Figure:
    """A panel for each state of a collective in the file of collectives_shown.py: what each rank held."""
    columns = [max(2, *map(len, state["cells"])) for state in states]
    rows = len(states[0]["cells"])
    fig, axes = plt.subplots(1, len(states), figsize=(1.6 * len(states) + 1.15 * sum(columns), 1.1 + 0.62 * rows),
                             width_ratios=columns)
    for state, ax in zip(states, axes, strict=True):
        held(state["cells"], ax, state["label"])
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return fig


def ring(run: dict, half: str) -> Figure:
    """One half of the ring, "ring" of collectives_shown.py: the start and the steps in which chunks are "added", or
    the steps in which they are "copied". Steps count from 0. A thick frame marks the number that has just arrived."""
    ranks = len(run["equal"])
    steps = range(-1, ranks - 1) if half == "added" else range(ranks - 1, 2 * (ranks - 1))
    rows = math.ceil(len(steps) / 2)
    fig, axes = plt.subplots(rows, 2, figsize=(6 + 2 * ranks, (1 + 0.75 * ranks) * rows), squeeze=False)
    for ax in axes.flat[len(steps):]:
        ax.remove()
    for step, ax in zip(steps, axes.flat, strict=False):
        state = run["steps"][step + 1]
        arrived = {((rank + 1) % ranks, chunk) for rank, chunk in enumerate(state.get("sent", ()))}
        held(state["cells"], ax, fontsize=20, mark=arrived)
        for edge in range(ranks - 1):
            ax.axvline(edge + 0.5, color=GREY, linewidth=1, linestyle=":")
        ax.set(ylim=(ranks - 0.1, -0.9))
        ax.set_title("start" if step < 0 else f"step {step}: {half}", fontsize=20)
    fig.suptitle("Ring all-reduce, recorded on each rank", x=0.01, ha="left", fontweight="bold")
    return fig


def intervals(times: dict, events: dict) -> pd.DataFrame:
    """The table for `plots.timeline`, in milliseconds, from {point: the seconds at which each rank came to it}.

    `events`: {text in the bar: (event, the point at which it begins, the point at which it ends)}.
    """
    return pd.DataFrame([{"rank": rank, "event": event, "text": text, "start": 1000 * begin, "end": 1000 * end}
                         for text, (event, first, last) in events.items()
                         for rank, (begin, end) in enumerate(zip(times[first], times[last], strict=True))])


# ------------------------------------------------------------------------------------------ tables


def ring_table(run: dict) -> list[dict]:
    """How many bytes the ring's ranks sent, and whether they hold the result of dist.all_reduce."""
    ranks = len(run["equal"])
    sent = [sum(step["bytes"][rank] for step in run["steps"][1:]) for rank in range(ranks)]
    return [{"": name, "measured": str(value)} for name, value in {
        "tensor, bytes": run["bytes"],
        "sent by each rank, bytes": ", ".join(map(str, sent)),
        "ranks whose whole numbers equal those of `dist.all_reduce`": f"{sum(run['equal'])} of {ranks}",
        "decimal numbers: largest difference from `dist.all_reduce`": f"{run['floats']['off']:.0e}",
        "decimal numbers: the same bits on all ranks": "yes" if run["floats"]["ranks_agree"] else "no",
    }.items()]


def messages(ranks: list[dict]) -> list[dict]:
    """Each rank's error message in the end, without its place in gloo's source and the options of its tensors."""
    rows = []
    for number, rank_result in enumerate(ranks):
        text = re.sub(r"\[[^\] ]*/[^\]]*\] ?", "", rank_result["error"] or "")
        message = " ".join(re.sub(r"TensorOptions\(.*?\)\)\)", "…)", text).split())
        rows.append({"rank": number, "after, s": f"{rank_result['end']:.2f}",
                     "it says": message or "nothing: it went on"})
    return rows


def stacks(ranks: list[dict]) -> list[dict]:
    """In which function of torch each rank was when its stack was printed, and from which line of the program."""
    rows = []
    for number, rank_result in enumerate(ranks):
        line = next(line for line in rank_result["stack"] if "/hang_on_purpose.py" in line)
        inside = rank_result["stack"][1].split(" in ")[-1]  # [0] is a wrapper around it, which logs
        rows.append({"rank": number, "it is in": f"`{inside}`", "called at": line.partition(", ")[2]})
    return rows
