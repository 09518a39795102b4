"""Lesson 00: what train.py has printed, and one update of it, drawn."""

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from course.plots.style import GREY, colour_of, darker, write_in
from course.plots.timelines import EVENTS

LINE = re.compile(r"epoch (\d+): loss ([\d.]+), accuracy [\d.]+, ([\d.]+) ms per update")
ACROSS = 6  # images of a batch that are drawn in a row


def read(file: str, label: str, updates: int, epochs: int, synthetic: bool) -> pd.DataFrame:
    """The epochs that train.py has printed into `file`, as course.plots draws them: label, epoch, loss, ms per update,
    seconds. RuntimeError where one is missing: behind a pipe nobody sees that a program has failed."""
    found = LINE.findall(Path(file).read_text(encoding="utf-8"))
    if len(found) != epochs:
        raise RuntimeError(f"{file} has {len(found)} of {epochs} epochs. What did the command print?")
    rows = [(label, int(epoch), float(loss), float(ms)) for epoch, loss, ms in found]
    table = pd.DataFrame(rows, columns=["label", "epoch", "loss", "ms"])
    return table.assign(seconds=table["ms"] * updates / 1000, synthetic=synthetic)


def one_update(dataset, shard: Callable, n: int, batch: int, ranks: int, drawn: int = 12) -> Axes:
    """A drawing: who gets which images of the first batch, and where the gradients are averaged.

    `shard`(n, rank, ranks, epoch): a rank's images of n, as train.py calls it. `drawn`: so many of the batch are shown.
    """
    order = shard(n, 0, 1, 0)[:drawn]
    own = [[index for index in order if index in set(shard(n, rank, ranks, 0))] for rank in range(ranks)]
    ax, middle, right = plt.subplots(figsize=(16, 1.5 + 3 * ranks))[1], 1.5 * ranks, 8 + -(-drawn // ranks // 2)
    colours = [colour_of(rank + 3) for rank in range(ranks)]  # not those of the work
    arrow = {"arrowstyle": "-|>", "linewidth": 2.5, "mutation_scale": 22, "color": GREY, "shrinkA": 0, "shrinkB": 0}

    def picture(index, x, y, rank):
        ax.imshow(dataset.images[index].permute(1, 2, 0), extent=(x + 0.06, x + 0.94, y + 0.94, y + 0.06))
        ax.add_patch(plt.Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fill=False, linewidth=4,
                                   edgecolor=colours[rank]))

    def box(x, y, width, tall, text, colour):
        ax.add_patch(plt.Rectangle((x, y), width, tall, color=colour))
        write_in(ax, x + width / 2, y + tall / 2, text, colour, fontsize=16)

    rows = -(-drawn // ACROSS)
    for number, index in enumerate(order):
        rank = next(rank for rank in range(ranks) if index in own[rank])
        picture(index, number % ACROSS, middle - rows / 2 + number // ACROSS, rank)
    ax.text(0, middle - rows / 2 - 0.2, f"a batch of {batch} images", fontsize=17, fontweight="bold")
    ax.text(0, middle + rows / 2 + 0.6, f"the first {drawn} are drawn", fontsize=16, color=GREY)
    for rank in range(ranks):
        top, across = 3 * rank + 0.5, -(-len(own[rank]) // 2)
        for number, index in enumerate(own[rank]):
            picture(index, 7.8 + number % across, top + number // across, rank)
        ax.text(7.8, top - 0.2, f"rank {rank}: {batch // ranks} of them", fontsize=17, fontweight="bold",
                color=darker(colours[rank]))
        box(right, top, 2.6, 2, "forward\nbackward", EVENTS["backward"])
        box(right + 5.6, top, 2.0, 2, "update", EVENTS["update"])
        for start, end in (((ACROSS + 0.1, middle), (7.7, top + 1)), ((right + 2.6, top + 1), (right + 3.1, top + 1)),
                           ((right + 5.1, top + 1), (right + 5.6, top + 1))):
            ax.annotate("", end, start, arrowprops=arrow)
    box(right + 3.1, 0.5, 2.0, 3 * ranks - 1, "mean\nof all\ngradients", EVENTS["all-reduce"])
    ax.set(xlim=(-0.1, right + 7.7), ylim=(3 * ranks, -0.4), aspect="equal")
    ax.set_title(f"One update on {ranks} ranks (a drawing)")
    ax.axis("off")
    return ax
