"""Lesson 03: which process is which rank, and what becomes of a job from its command to its end."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course.plots.style import (
    COLOURS,
    GREY,
    PALE,
    WARNING,
    bare,
    colour_of,
    handles,
    key_below,
    line_key,
    name_rows,
    write_in,
)

PARTS = {"imports torch": PALE, "meets the others": COLOURS[4], "waits": WARNING, "busy elsewhere": COLOURS[5],
         "launcher": GREY}


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
    for node, of_node in processes.groupby("group_rank"):
        colour = colour_of(node)
        ax.add_patch(FancyBboxPatch((-0.44, node - 0.42), of_node["local_rank"].max() + 0.88, 0.84, linewidth=2,
                                    boxstyle="round,pad=0,rounding_size=0.08", facecolor="none", edgecolor=colour))
        for rank, x in zip(of_node["rank"], of_node["local_rank"], strict=True):
            ax.add_patch(Rectangle((x - 0.38, node - 0.36), 0.76, 0.72, facecolor=colour))
            write_in(ax, x, node - 0.04, f"rank {rank}", colour, fontsize=28, va="bottom")
            write_in(ax, x, node - 0.02, f"local rank {x}\ngroup rank {node}", colour, fontsize=17, va="top",
                     fontweight="normal")
    bare(ax)
    return ax


def milestones(jobs: dict[str, tuple[str, float, float]]) -> list[Axes]:
    """For each job {title: (folder that milestones.py has written, when its command began, when it had ended)} a row
    for its launcher and one for each rank, over seconds since the command."""
    axes = plt.subplots(len(jobs), 1, figsize=(14, 1.2 + 3.4 * len(jobs)), squeeze=False, sharex=True)[1][:, 0]
    for ax, (title, (folder, begun, ended)) in zip(axes, jobs.items(), strict=True):
        count, listens = _noted(folder)["world size"], listener(folder)
        ranks = [_noted(folder, rank) for rank in range(count)]  # an earlier job may have had more
        names = ["launcher", *(f"rank {rank}" for rank in range(len(ranks)))]
        bars = [[("launcher", begun, ended)]]
        for noted in ranks:
            gave_up = noted.get("gave up")
            after = ("waits", noted["first all-reduce"], gave_up) if gave_up else (
                "busy elsewhere", noted["first all-reduce"], ended)
            bars.append([("imports torch", noted["start"], noted["imports"]),
                         ("meets the others", noted["imports"], noted["group"]), after])
        for row, parts in enumerate(bars):
            for part, start, end in parts:
                ax.barh(row, end - start, left=start - begun, height=0.6, color=PARTS[part])
        last_first = max(noted["first all-reduce"] for noted in ranks) - begun
        ax.vlines(last_first, 0.6, len(ranks) + 0.4, color="black", linestyle=":")
        for row, noted in enumerate(ranks, 1):
            if "gave up" in noted:
                ax.plot(noted["gave up"] - begun, row, "x", color="black", markersize=13)
        name_rows(ax, [f"{name}, listens" if name == listens else name for name in names])
        ax.set_title(title)
    axes[-1].set_xlabel("seconds since the command")
    key_below(axes[-1].figure, [*handles({part: PARTS[part] for part in PARTS if part != "launcher"}),
                                line_key("first all-reduce done", color="black", linestyle=":"),
                                line_key("gives up", color="black", marker="x", linestyle="")])
    return list(axes)


def listener(folder: str | Path) -> str:
    """Which process of a job listened where its ranks met: "launcher", or "rank 0"."""
    return _noted(folder)["listens"]


def _noted(folder, rank=0):
    return json.loads(Path(folder, f"rank-{rank}.json").read_text())
