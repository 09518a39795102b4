"""Lesson 12: the loss of a patient, batch by batch."""

import re

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from course import processes
from course.plots.style import COLOURS, MARKERS, darker, halo, head


def losses(script: str) -> dict[int, list[float]]:
    """{epoch: losses of its batches} that a script prints, in lines such as "losses of epoch 0: 0.15 0.26"."""
    printed = processes.said(f"python scripts/broken/{script}.py")
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
