"""Lesson 12: the suspects, all mistakes of the gallery with a link to each; the losses that a patient prints."""

import re

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from course.plots.style import COLOURS, MARKERS, darker, halo, head


def suspects(entries, page, columns=3):
    """Rows of a table that reads down its columns."""
    links = [f"[{entry.heading}]({page}#{entry.anchor})" for entry in entries]
    height = -(-len(links) // columns)
    links += [""] * (height * columns - len(links))
    return [{" " * column or "suspects": links[row + column * height] for column in range(columns)}
            for row in range(height)]


def losses(printed):
    """{epoch: losses of its batches} from lines such as "losses of epoch 0: 0.15 0.26"; other lines tell nothing.

    ValueError where no line has any: then the script failed, and its last line says why.
    """
    found = list(filter(None, (re.match(r"losses of epoch (\d+): (.+)", line) for line in printed)))
    if not found:
        raise ValueError(f"no losses were printed, but: {printed[-1] if printed else 'nothing'}")
    return {int(line[1]): [float(loss) for loss in line[2].split()] for line in found}


def rhythm(losses):
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
