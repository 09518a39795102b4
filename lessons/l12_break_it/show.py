"""Lesson 12: ranks that wait, and for whom."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt

from course.plots.style import COLOURS, PALE, head, write_in
from lessons.l12_break_it import hang


def named(whose: str, answer: tuple, folder: str) -> list[dict]:
    """What a function has named, beside what hang.py had drawn, as rows of a table."""
    truth = json.loads(Path(folder, "truth.json").read_text())
    drawn = truth["culprit"], f"node {truth['culprit'] // hang.PER_NODE}", 2 * hang.AT + 1
    return [dict(zip(("", "culprit", "group", "number", "what it did"), row, strict=True)) for row in (
        (f"{whose} function", *answer, "–"), ("drawn by hang.py", *drawn, hang.FAULTS[truth["fault"]]))]


def waits(dumps: dict[int, dict]) -> dict[int, tuple[str, int, str]]:
    """{rank: (group, number, collective) in which it waits}; a rank that waits nowhere is left out."""
    found = {}
    for rank, dump in dumps.items():
        if entry := next((entry for entry in dump["entries"] if not entry["retired"]), None):
            found[rank] = (entry["process_group"][1], entry["collective_seq_id"], entry["profiling_name"])
    return found


def graph(dumps: dict[int, dict], culprit: tuple) -> dict[int, int]:
    """{rank that waits: a rank for which it waits}: one that has not called the same collective under this number, the
    culprit if it is among them."""
    where = waits(dumps)
    members = {group["desc"]: json.loads(group["ranks"]) for dump in dumps.values()
               for group in dump["pg_config"].values()}
    arrows = {}
    for rank, place in where.items():
        missing = [other for other in members[place[0]] if where.get(other) != place]
        if missing and rank != culprit[0]:
            arrows[rank] = culprit[0] if culprit[0] in missing else missing[0]
    return arrows


def waiting(dumps: dict[int, dict], per_node: int, whose: str, culprit: tuple) -> plt.Figure:
    """A square per rank, a row per node, coloured by where it waits, with an arrow to the rank for which it waits. A
    frame is around the culprit that was named."""
    def place(rank):
        group, _, name = where.get(rank, ("", 0, ""))
        group = re.sub(r"node \d+", "its node", group)
        return f"in {name.partition(':')[2]} of {group}" if group else "in no collective"

    where = waits(dumps)
    places = {rank: place(rank) for rank in dumps}
    colours = dict(zip(sorted(set(places.values()) - {"in no collective"}), COLOURS, strict=False))
    colours |= {"in no collective": PALE} if "in no collective" in places.values() else {}
    fig, ax = plt.subplots(figsize=(13, 2 + 0.95 * len(dumps) / per_node))
    at = {rank: (rank % per_node, rank // per_node) for rank in dumps}
    for rank, (local, node) in at.items():
        colour = colours[places[rank]]
        ax.add_patch(plt.Rectangle((local - 0.3, node - 0.3), 0.6, 0.6, color=colour))
        write_in(ax, local, node, rank, colour, fontsize=14)
    for rank, other in graph(dumps, culprit).items():
        leader = rank % per_node == 0
        bend = 0.25 if rank // per_node == other // per_node else -0.3
        ax.annotate("", at[other], at[rank], zorder=3 if leader else 1.5, arrowprops={
            "arrowstyle": "-|>", "color": "black" if leader else "#8A8A8A", "linewidth": 2.2 if leader else 1,
            "shrinkA": 14, "shrinkB": 16, "connectionstyle": f"arc3,rad={bend}"})
    local, node = at[culprit[0]]
    ax.add_patch(plt.Rectangle((local - 0.38, node - 0.38), 0.76, 0.76, fill=False, edgecolor="black", linewidth=5))
    ax.text(per_node - 0.4, node, f"← {whose} function: rank {culprit[0]}", va="center", fontsize=17,
            fontweight="bold")
    ax.set(xlim=(-0.8, per_node + 2.9), ylim=(len(dumps) / per_node - 0.4, -1.2), xlabel="local rank", ylabel="node",
           xticks=range(per_node), yticks=range(len(dumps) // per_node))
    ax.grid(False)
    head(ax, f"For whom {len(dumps)} ranks wait", key=colours, columns=2)
    return fig
