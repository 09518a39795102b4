"""Lesson 12: the loss of a patient, batch by batch; ranks that hang."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from course import processes
from course.plots.style import COLOURS, MARKERS, PALE, darker, halo, head, write_in
from gallery.table import read_patients


def losses(form: str) -> dict[int, list[float]]:
    """{epoch: losses of its batches} that patient 4's "broken" or "repaired" program prints, in lines such as "losses
    of epoch 0: 0.15 0.26"."""
    printed = processes.said(read_patients()[4].command(form))
    return {int(epoch): [float(loss) for loss in values.split()]
            for epoch, values in re.findall(r"^losses of epoch (\d+): (.+)$", printed, re.MULTILINE)}


def rhythm(losses: dict[str, dict[int, list[float]]]) -> plt.Figure:
    """A row of axes a form of a script: its loss batch by batch, a line an epoch. `losses`: {form: {epoch: a list}}."""
    fig, rows = plt.subplots(len(losses), 1, figsize=(12, 4 * len(losses)), sharex=True, sharey=True)
    for ax, (form, epochs) in zip(np.atleast_1d(rows), losses.items(), strict=True):
        first = 0
        for number, (epoch, values) in enumerate(epochs.items()):
            ax.plot(range(first + 1, first + len(values) + 1), values, color=COLOURS[number], marker=MARKERS[number])
            ax.text(first + 1, 0.98, f"epoch {epoch}", color=darker(COLOURS[number]), fontweight="bold", va="top",
                    transform=ax.get_xaxis_transform(), path_effects=halo())
            first += len(values)
        ax.set_ylabel("loss of a batch")
        ax.margins(y=0.2)
        head(ax, form, key=[])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("batch, counted from the start")
    return fig


def named(whose: str, answer: tuple, folder: str) -> list[dict]:
    """What a function has named, beside what hang.py had drawn, as rows of a table."""
    truth = json.loads(Path(folder, "truth.json").read_text())
    rank, *collective = answer
    return [{"": f"{whose} function", "culprit": rank, "collective": " ".join(map(str, collective))},
            {"": "drawn by hang.py", "culprit": truth["culprit"], "collective": f"(fault: {truth['fault']})"}]


def missing(report: list[str]) -> list[str]:
    """A line for each collective that torchfrtrace finds incomplete: its group, and the missing ranks."""
    block = r"Not all ranks joining.*\n.*\ngroup info: (?:\w+:)?(.+)\n.*\nmissing ranks: (.+)"
    groups = re.findall(block, "\n".join(report))
    return [f"{group}: {ranks}" for group, ranks in groups]


def waiting(dumps: dict[int, dict], per_node: int, whose: str, culprit: int) -> plt.Figure:
    """A square a rank, a row a node: where it waits, as its dump says. A frame is around the culprit that was named."""
    def place(dump):
        entry = next((entry for entry in dump["entries"] if not entry["retired"]), None)
        group = entry and re.sub(r"node \d+", "its node", entry["process_group"][1])
        return f"in {entry['profiling_name'].partition(':')[2]} of {group}" if entry else "in no collective"

    places = {rank: place(dump) for rank, dump in dumps.items()}
    colours = dict(zip(sorted(set(places.values()) - {"in no collective"}), COLOURS, strict=False))
    colours |= {"in no collective": PALE} if "in no collective" in places.values() else {}
    fig, ax = plt.subplots(figsize=(10, 1.5 + 0.8 * len(dumps) / per_node))
    for rank, where in places.items():
        node, local = divmod(rank, per_node)
        ax.add_patch(plt.Rectangle((local - 0.45, node - 0.45), 0.9, 0.9, color=colours[where]))
        write_in(ax, local, node, rank, colours[where])
    node, local = divmod(culprit, per_node)
    ax.add_patch(plt.Rectangle((local - 0.5, node - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=5))
    ax.text(per_node - 0.4, node, f"← {whose} function: rank {culprit}", va="center", fontsize=18, fontweight="bold")
    ax.set(xlim=(-0.6, per_node + 3.2), ylim=(len(dumps) / per_node - 0.4, -0.6), xlabel="local rank", ylabel="node",
           xticks=range(per_node), yticks=range(len(dumps) // per_node))
    ax.grid(False)
    head(ax, f"Where {len(dumps)} ranks wait", key=colours, columns=2)
    return fig
