"""How runs learned, and where their time went: from the table of `runs.read_runs`, a row an epoch."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import GREY, PHASES, head, line_style, percent, stacked
from course.plots.tables import by_run, name_of, need, source_of


def loss_by_epoch(df: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Training loss of each run against epoch."""
    return curves(df, "epoch", "loss", "Training loss by epoch", "epoch", "loss (cross-entropy)", ax)


def loss_by_time(df: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Loss of each run against the seconds it has trained for; missing from the first epoch of unknown length on."""
    need(df, "seconds")
    return curves(df.assign(elapsed=elapsed(df)), "elapsed", "loss", "Training loss by time", "training time (s)",
                  "loss (cross-entropy)", ax)


def accuracy_by_epoch(df: pd.DataFrame) -> Axes:
    """Training accuracy of each run, in percent."""
    ax = curves(df, "epoch", "accuracy", "Training accuracy by epoch", "epoch", "accuracy (% of images)")
    percent(ax)
    return ax


def accuracy_twice(df: pd.DataFrame) -> Figure:
    """Test accuracy of each run after as many epochs, and after as many seconds of training: the same, and sooner."""
    need(df, "seconds", "val_accuracy")
    fig, axes = plt.subplots(1, 2, figsize=(19, 6.5), sharey=True)
    for ax, x, what, unit in ((axes[0], "epoch", "epochs", "epoch"), (axes[1], "elapsed", "time", "training time (s)")):
        percent(curves(df.assign(elapsed=elapsed(df)), x, "val_accuracy", f"For the same {what}", unit,
                       "test accuracy (%)", ax))
    axes[1].set_ylabel("")
    return fig


def elapsed(df: pd.DataFrame) -> pd.Series:
    """Seconds of training at the end of each row's epoch. Beyond a lost epoch nobody knows."""
    return pd.concat(rows["seconds"].cumsum(skipna=False).where(rows["epoch"] == np.arange(len(rows)))
                     for rows in by_run(df))


def curves(df: pd.DataFrame, x: str, y: str, title: str, xlabel: str, ylabel: str, ax: Axes | None = None) -> Axes:
    """A line a run, column `y` against column `x`, broken where an epoch is lost; its name stands at its end."""
    need(df, x, y)
    ax = ax or plt.subplots()[1]
    ends = []
    for number, rows in enumerate(by_run(df.astype({"epoch": float, x: float, y: float}))):
        run = rows.iloc[-1]
        style = line_style(number, source_of(run))
        gaps = np.flatnonzero(rows["epoch"].diff() > 1)
        xs, ys = (np.insert(rows[name].to_numpy(), gaps, np.nan) for name in (x, y))
        ax.plot(xs, ys, **style)
        drawn = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))
        if len(drawn):
            ends.append((xs[drawn[-1]], ys[drawn[-1]], name_of(run), style["color"]))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if x == "epoch":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        ax.set_xlim(left=0)
    head(ax, title, df)
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def phases(df: pd.DataFrame) -> Axes:
    """Where an epoch's seconds go: data, forward, backward, update, stacked, one bar a run.

    Medians over the epochs, without the first epoch, which warms up, if there are more.
    """
    columns = {f"{phase}_seconds": phase for phase in PHASES}
    need(df, *columns, enough=any)
    bars = []
    for rows in by_run(df):
        medians = rows.reindex(columns=list(columns)).iloc[int(len(rows) > 1):].median()
        bars.append(medians.dropna().rename(columns).to_dict())
    ax = plt.subplots()[1]
    key = stacked(ax, [name_of(rows.iloc[-1], 20) for rows in by_run(df)], bars, PHASES, "seconds an epoch")
    for y, parts in enumerate(bars):
        if not parts:
            ax.text(0, y, " phases not in this log", va="center", color=GREY)
    head(ax, "Where the time goes", df, key, columns=len(key))
    return ax
