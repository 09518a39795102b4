"""Lesson 06b: pictures and tables on DDP's traps, from the results that traps.py writes."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from course.lesson import small
from course.plots.style import COLOURS, PALE, head, name_rows

ROUNDING = 1e-9  # largest difference of a float64 weight in the same training, summed in another order
SMALLEST = 1e-18  # a difference below it, 0 too, is drawn here: a logarithm has no 0


def from_one_process(cases: dict, synthetic: bool) -> Axes:
    """{name: largest difference of a weight}: a point each. Up to ROUNDING the result is the same."""
    ax = plt.subplots(figsize=(13, 1.8 + 0.65 * len(cases)))[1]
    ax.set(xscale="log", xlim=(SMALLEST / 2, 10), xlabel="largest difference of a weight from one process")
    ax.axvspan(SMALLEST / 2, ROUNDING, color=PALE, zorder=0, linewidth=0)
    for row, off in enumerate(cases.values()):
        same = off <= ROUNDING
        ax.plot(max(off, SMALLEST), row, "o" if same else "s", markersize=15, color=COLOURS[0 if same else 1])
        ax.annotate(f"{off:.0e}" if off else "0", (max(off, SMALLEST), row), (14, 0), textcoords="offset points",
                    va="center", fontweight="bold")
    name_rows(ax, cases)
    for x, text in ((SMALLEST, "rounding: the same result"), (3 * ROUNDING, "a different result")):
        ax.text(x, -0.7, text, va="bottom", fontsize=16, fontstyle="italic")
    head(ax, "DDP against one process on the whole batches", pd.DataFrame([{"synthetic": synthetic}]), {})
    ax.set_title(ax.get_title(loc="left"), pad=34 + 30 * synthetic)
    return ax


def batchnorm(equality: dict) -> list[dict]:
    """A row for each way to take mean and variance; the last on GPUs only."""
    measured = equality["batchnorm"]
    rows = [{f"the model's {measured['layers']} layers": name,
             "weights, from one process": small(equality["weights"][name]),
             "running means, between the ranks": small(measured["running_means"][name]),
             "all-reduces per update": messages} for name, messages in measured["messages"].items()]
    if (real := measured.get("torch.nn.SyncBatchNorm")) is not None:
        rows.append(dict(zip(rows[0], ("`torch.nn.SyncBatchNorm`, on the GPU", small(real), "–", "–"), strict=True)))
    return rows
