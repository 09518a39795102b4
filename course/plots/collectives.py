"""Lesson 04: what each rank holds, cell by cell, and the steps of the ring, also as an animation.

The numbers are those of scripts/lessons/collectives_shown.py: each digit of a number stands for one rank, so a cell
shows by its colours which ranks its number came from. Nothing here is drawn by hand: a cell is a value of a run.
"""

import base64
import itertools
import re

import matplotlib.pyplot as plt
from matplotlib import animation
from matplotlib.patches import Rectangle

from course.plots.style import GREY, bare, colour_of, darker
from course.png import small_png

BUTTONS = {"minus": "slower", "fast-backward": "first", "step-backward": "back", "play fa-flip-horizontal": "reverse",
           "pause": "pause", "play": "play", "step-forward": "next", "fast-forward": "last", "plus": "faster"}


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


def before_after(states, title, labels=None):
    """A figure of what each rank held, one panel for each of the `states` (or those with one of the `labels`)."""
    states = [state for state in states if labels is None or state["label"] in labels]
    columns = [max(2, *map(len, state["cells"])) for state in states]
    rows = len(states[0]["cells"])
    fig, axes = plt.subplots(1, len(states), figsize=(1.6 * len(states) + 1.15 * sum(columns), 1.1 + 0.62 * rows),
                             width_ratios=columns)
    for state, ax in zip(states, axes, strict=True):
        held(state["cells"], ax, state["label"])
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return fig


def intervals(states, events):
    """Lines for `plots.timeline`: {event: (label it begins with, label it ends with)}, in milliseconds."""
    at = {state["label"]: state["seconds"] for state in states}
    return [{"rank": rank, "event": event, "start": 1000 * at[begin][rank], "end": 1000 * at[end][rank]}
            for event, (begin, end) in events.items() for rank in range(len(at[begin]))]


# ---------------------------------------------------------------------------------------------- the ring


def ring_state(run, step, ax, sending=False, fontsize=17):
    """The ring after `step` steps, each cell that has just arrived in a frame; `run` is "ring" of collectives_shown.py.

    With `sending`, the same state and arrows for what is sent in the step after it: each rank sends one chunk to the
    next rank, and the last one sends to rank 0 (the arrow that leaves below comes in above).
    """
    ranks, ends = len(run["chunks"]), list(itertools.accumulate(run["chunks"]))
    columns = [range(end - size, end) for size, end in zip(run["chunks"], ends, strict=True)]
    arrived = set()
    if step and not sending:
        arrived = {((rank + 1) % ranks, cell) for rank, chunk in enumerate(run["steps"][step]["sent"])
                   for cell in columns[chunk]}
    held(run["steps"][step]["cells"], ax, fontsize=fontsize, mark=arrived)
    for end in ends[:-1]:
        ax.axvline(end - 0.5, color=GREY, linewidth=1, linestyle=":")
    ax.set(ylim=(ranks - 0.1, -0.9))
    number, last = step + sending, len(run["steps"]) - 1
    done = "sent" if sending else "added" if number < ranks else "copied"
    ax.set_title(f"step {number} of {last}: {done}" if number else "start", fontsize=1.1 * fontsize)
    if sending:
        arrow = {"arrowstyle": "-|>,head_width=0.6,head_length=0.8", "color": "black", "linewidth": 5}
        for rank, chunk in enumerate(run["steps"][number]["sent"]):
            if columns[chunk]:
                x = (columns[chunk][0] + columns[chunk][-1]) / 2 + 0.35
                ax.annotate("", (x, rank + 0.85), (x, rank + 0.15), arrowprops=arrow, zorder=5)
                if rank == ranks - 1:
                    ax.annotate("", (x, -0.15), (x, -0.85), arrowprops=arrow, zorder=5)
    return ax


def play_ring(run):
    """HTML of the ring's steps with buttons to play them: needs JavaScript, and no network."""
    frames = [(0, False)]
    for step in range(1, len(run["steps"])):
        frames += [(step - 1, True), (step, False)]
    fig, ax = plt.subplots(figsize=(2 + 1.2 * sum(run["chunks"]), 1.4 + 0.8 * len(run["chunks"])), dpi=80)

    def draw(frame):
        ax.clear()
        step, sending = frame
        ring_state(run, step, ax, sending)

    html = animation.FuncAnimation(fig, draw, frames=frames, interval=1500).to_jshtml(default_mode="once")
    plt.close(fig)
    html = re.sub(r"<link\b[^>]*>", "", html)  # a font for the buttons, from the network: we take words
    html = re.sub(r'<i class="fa fa-([\w -]+)"></i>', lambda found: BUTTONS[found[1]], html)
    html = html.replace("width: 36px", "width: auto; padding: 0 0.5em")  # of a button
    frame = re.compile(r"(?<=data:image/png;base64,)[^\"]+")
    return frame.sub(lambda found: base64.b64encode(small_png(base64.b64decode(found[0]))).decode(), html)
