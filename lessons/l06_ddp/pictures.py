"""Lesson 06: how far several ranks' models are from one another, and from that of one process."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, PALE, colour_of, head, line_style, name_rows

SMALLEST = 1e-18  # a difference below it, 0 too, is drawn here: a logarithm has no 0


def by_update(lines: dict, title: str, ax: Axes | None = None, synthetic=False) -> Axes:
    """{name: largest difference of a weight, before and after each update}: a line each."""
    ax = ax or plt.subplots(figsize=(11, 5))[1]
    for number, line in enumerate(lines.values()):
        ax.plot(line, **line_style(number))
    ax.set(xlabel="updates", ylabel="largest difference of a weight", ylim=(-0.002, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    head(ax, title, pd.DataFrame([{"synthetic": synthetic}]), {})
    write_beside(ax, [(len(line) - 1, line[-1], name, colour_of(number)) for number, (name, line) in
                      enumerate(lines.items())], BESIDE_AN_END)
    return ax


def from_one_process(cases: dict, rounding: float, ax: Axes | None = None, synthetic=False) -> Axes:
    """{name: largest difference of a weight}: a point each; up to `rounding` it is the same training."""
    ax = ax or plt.subplots(figsize=(13, 1.8 + 0.65 * len(cases)))[1]
    ax.set(xscale="log", xlim=(SMALLEST / 2, 10), xlabel="largest difference of a weight from one process")
    ax.axvspan(SMALLEST / 2, rounding, color=PALE, zorder=0, linewidth=0)
    for row, off in enumerate(cases.values()):
        same = off <= rounding
        ax.plot(max(off, SMALLEST), row, "o" if same else "s", markersize=15, color=COLOURS[0 if same else 1])
        ax.annotate(f"{off:.0e}" if off else "0", (max(off, SMALLEST), row), (14, 0), textcoords="offset points",
                    va="center", fontweight="bold")
    name_rows(ax, cases)
    for x, text in ((SMALLEST, "rounding: the same training"), (3 * rounding, "another training")):
        ax.text(x, -0.7, text, va="bottom", fontsize=16, fontstyle="italic")
    head(ax, "DDP against one process on the whole batches", pd.DataFrame([{"synthetic": synthetic}]), {})
    ax.set_title(ax.get_title(loc="left"), pad=34 + 30 * synthetic)
    return ax
