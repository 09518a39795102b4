"""Lesson 03: which process is which rank, and who connects to whom."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course.plots.style import COLOURS, WARNING, bare, colour_of, write_in
from lessons.l03_processes_and_ranks.ranks_meet import FILE, listener

ROUND = "round,pad=0,rounding_size=0.08"


def ranks_map(processes: pd.DataFrame) -> Axes:
    """A row a node, a box a process: `processes` has the columns `rank`, `local_rank` and `group_rank`, a line each.

    Nodes may be unequal.
    """
    columns, rows = processes["local_rank"].max() + 1, processes["group_rank"].max() + 1
    ax = plt.subplots(figsize=(3 + 3 * columns, 1.5 + 2.2 * rows))[1]
    ax.set(xlim=(-0.6, columns - 0.4), ylim=(rows - 0.4, -0.6), xticks=range(columns), yticks=range(rows))
    ax.set_xlabel("local rank: which process of its node")
    ax.set_ylabel("group rank: which node")
    ax.set_title(f"{rows} node{'s' if rows > 1 else ''}, world size {len(processes)}")
    ax.figure.draw_without_rendering()  # lays out the figure: the size of a box decides the size of its text
    width, height = abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0))) * 72 / ax.figure.dpi
    size = max(6, min(28, 0.13 * width, 0.18 * height))
    for node, of_node in processes.groupby("group_rank"):
        colour = colour_of(node)
        ax.add_patch(FancyBboxPatch((-0.44, node - 0.42), of_node["local_rank"].max() + 0.88, 0.84, boxstyle=ROUND,
                                    linewidth=2, facecolor="none", edgecolor=colour))
        for rank, x in zip(of_node["rank"], of_node["local_rank"], strict=True):
            ax.add_patch(Rectangle((x - 0.38, node - 0.36), 0.76, 0.72, facecolor=colour))
            write_in(ax, x, node - 0.04, f"rank {rank}", colour, fontsize=1.25 * size, va="bottom")
            write_in(ax, x, node - 0.02, f"local rank {x}\ngroup rank {node}", colour, fontsize=0.75 * size, va="top",
                     fontweight="normal")
    bare(ax)
    return ax


def links_maps(meetings: dict[str, tuple[list[str], list[dict]]]) -> list[Axes]:
    """Who connected to whom in each of the {title: (names, links)} of `ranks_meet.meetings`, one below another."""
    axes = plt.subplots(len(meetings), 1, figsize=(11, 3.6 * len(meetings)), squeeze=False)[1][:, 0]
    for ax, (title, (names, links)) in zip(axes, meetings.items(), strict=True):
        _links_map(names, links, ax)
        ax.set_title(f"{title}: {listener(links)} listens")
    return list(axes)


def _links_map(names, links, ax):
    """Processes as boxes, their TCP connections as lines.

    A process that listens is filled, and an arrow comes to it from each process that meets the others there. Torchrun
    or a file stands above the ranks. A file listens to nobody, so it is not filled.
    """
    ranks = [name for name in names if name.startswith("rank")]
    above = [name for name in names if name not in ranks]
    middle = (len(ranks) - 1) / 2
    places = {name: (x, 0) for x, name in enumerate(ranks)} | dict.fromkeys(above, (middle, 0.9))
    listening = {link["server"] for link in links if link["kind"] == "store"} - {FILE}
    for name in names:
        x, y = places[name]
        ax.add_patch(FancyBboxPatch((x - 0.33, y - 0.16), 0.66, 0.32, boxstyle=ROUND, zorder=3, linewidth=3,
                                    facecolor=WARNING if name in listening else "white",
                                    edgecolor=WARNING if name in listening | {FILE} else "black"))
        ax.text(x, y, name, ha="center", va="center", fontsize=22, fontweight="bold", zorder=4,
                color="white" if name in listening else "black")
    for link in links:
        (x0, y0), (x1, y1) = places[link["client"]], places[link["server"]]
        look = {"arrowstyle": "-|>", "color": WARNING, "mutation_scale": 25}
        if link["kind"] == "gloo":
            start, end, bow = (x0, y0 - 0.16), (x1, y1 - 0.16), -0.2 if x0 > x1 else 0.2
            look = {"arrowstyle": "-", "color": COLOURS[0]}
        elif link["client"] == link["server"]:  # it is a client of its own store
            start, end, bow = (x0 - 0.15, y0 + 0.16), (x0 + 0.15, y0 + 0.16), -0.7
        elif y0 < y1:
            start, end, bow = (x0, y0 + 0.16), (x1, y1 - 0.16), 0
        else:
            start, end, bow = (x0, y0 + 0.16), (x1 + 0.28, y1 + 0.16), 0.2
        ax.annotate("", end, start, arrowprops=look | {"connectionstyle": f"arc3,rad={bow}", "linewidth": 3})
    ax.text(middle, -0.95, "data (gloo)", ha="center", color=COLOURS[0], fontsize=22, fontweight="bold")
    ax.text(*((middle + 0.4, 0.9) if above else (0.45, 0.85)), "meeting (store)", va="center", color=WARNING,
            fontsize=22, fontweight="bold")
    half = max(3, len(ranks)) / 2
    ax.set(xlim=(middle - half, middle + half), ylim=(-1, 1.4))
    ax.axis("off")
