"""Lesson 14: operators by self time, the gain of each change, predicted and measured, and when a start is paid back."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from course.plots.style import (
    COLOURS,
    GREY,
    LINES,
    PALE,
    PHASES,
    PREDICTED,
    halo,
    handles,
    key_below,
    line_key,
    name_rows,
    ticks,
)
from lessons.l14_make_it_faster import gains

KINDS = {"convolution or matrix product": PHASES["backward"], "other operator": PHASES["forward"],
         "between operators": COLOURS[3]}
TICKS = (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.6, 2, 2.5, 3)


def kind(name: str) -> str:
    """Which of KINDS an operator or label of a profile is."""
    if gains.is_product(name):
        return "convolution or matrix product"
    return "other operator" if gains.is_operator(name) else "between operators"


def shorten(name: str) -> str:
    """As people say it: no namespace, and what a label's own time is made of."""
    if name in gains.LABELS:
        return f"{name} (between operators)"
    return name.removeprefix("aten::").split("#")[-1].replace("autograd::engine::evaluate_function: ", "engine: ")[:38]


def operators(rows: list[dict], ax: Axes, most: int = 8) -> Axes:
    """A bar for each of the `most` operators with the largest self time, and one for everything else; `rows` as
    step_profile.py writes them."""
    total = sum(row["ms"] for row in rows)
    names = [shorten(row["name"]) for row in rows[:most]]
    colours = [KINDS[kind(row["name"])] for row in rows[:most]]
    ms = [row["ms"] for row in rows[:most]]
    if rest := rows[most:]:
        names.append(f"everything else ({len(rest)} names)")
        ms.append(sum(row["ms"] for row in rest))
        colours.append(GREY)
    bars = ax.barh(range(len(names)), ms, height=0.7, color=colours)
    ax.bar_label(bars, [f"{one / total:.0%}" for one in ms], padding=10, fontweight="bold")
    name_rows(ax, names)
    ax.margins(x=0.12)
    ax.set_xlabel("milliseconds of self time in a step")
    return ax


def profiles(models: dict) -> Figure:
    """{title: rows of `operators`}: side by side, with one key."""
    fig, axes = plt.subplots(1, len(models), figsize=(20, 7))
    for ax, (title, rows) in zip(axes, models.items(), strict=True):
        operators(rows, ax).set_title(title)
    key_below(fig, KINDS)
    return fig


def limits(*tables: pd.DataFrame) -> tuple[float, float]:
    """Of the axis that `changes` draws on: what single rounds had beyond the middle half is left out."""
    marks = [0.8, 1.25]
    for table in tables:
        ran, noise = table[table["gain"].notna()], gains.noise(table.iloc[0])
        marks += [*ran["gain"], *ran["predicted"].dropna(), *ran["quartiles"].explode(), 1 / noise, noise]
    return max(min(marks) / 1.08, 0.4), min(max(marks) * 1.08, 3)


def changes(table: pd.DataFrame, ax: Axes, title: str, low: float, high: float) -> Axes:
    """A line a change: a hollow diamond predicted, a dot measured, with the middle half (thick) and all rounds (thin).

    Columns: `text`, `predicted` (or nothing), `gain`, `low`, `high`, `quartiles`, `verdict`; `error` where it did not
    run. The first row has nothing changed: the grey band is the noise, its largest gain or loss on both sides. The axis
    goes from `low` to `high`; a dot beyond stands at its edge, as a triangle.
    """
    table = table.reset_index(drop=True)
    noise = gains.noise(table.iloc[0])
    ax.axvspan(1 / noise, noise, color=PALE, zorder=0, linewidth=0)
    ax.axvline(1, color=GREY, linewidth=2, zorder=1)
    for y, row in table.iterrows():
        pays = row["verdict"] in ("pays", "costs")
        beside = {"va": "center", "transform": ax.get_yaxis_transform(), "color": "black" if pays else GREY}
        if pd.isna(row["gain"]):
            ax.text(1.03, y, row["verdict"], **beside)
            continue
        colour = COLOURS[0] if y else GREY
        ax.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=2)
        ax.plot(row["quartiles"], [y, y], color=colour, linewidth=7, solid_capstyle="butt", alpha=0.6)
        mark = "<" if row["gain"] < low else ">" if row["gain"] > high else "o"
        ax.plot(min(max(row["gain"], low), high), y, mark, color=colour, markersize=12, clip_on=False)
        if pd.notna(row["predicted"]) and y:
            ax.plot(min(max(row["predicted"], low), high), y, clip_on=False, **PREDICTED)
        ax.text(1.03, y, f"{row['gain']:.2f}×" + (f" {row['verdict']}" if y else ""), **beside,
                fontweight="bold" if pays else "normal")
    name_rows(ax, table["text"])
    ax.set(xscale="log", xlabel="times as fast as without the change", title=title)
    ticks(ax, [value for value in TICKS if low <= value <= high])
    ax.set_xlim(low, high)
    return ax


def compared(tables: dict, title: str) -> Figure:
    """{model: table of `changes`}: side by side, with one key."""
    rows = max(map(len, tables.values()))
    fig, axes = plt.subplots(1, len(tables), figsize=(20, 3.2 + 0.62 * rows), sharey=True, squeeze=False)
    for ax, (name, table) in zip(axes[0], tables.items(), strict=True):
        changes(table, ax, f"{name}, {title}", *limits(*tables.values()))
    measured = line_key("measured: median, middle half, all rounds", marker="o", color=COLOURS[0], markersize=12)
    key_below(fig, [line_key("predicted", **PREDICTED), measured, *handles({"nothing changed: noise": PALE})])
    return fig


def paid_back(found: dict, title: str) -> Figure:
    """When a slower first update is paid back by what the others save, for one change as compare_changes.py found it.

    The line is computed from the median, the band from the middle half of the rounds.
    """
    before, after = found["first_update_seconds"]
    extra = after - before
    low, middle, high = np.percentile(gains.saved(found), [25, 50, 75])
    updates = np.linspace(0, 2 * extra / middle if middle > 0 else 20_000, 2)
    fig, ax = plt.subplots(figsize=(12, 5.5))
    ax.fill_between(updates, updates * low - extra, updates * high - extra, color=COLOURS[0], alpha=0.2, linewidth=0)
    ax.plot(updates, updates * middle - extra, color=COLOURS[0], linestyle=LINES["predicted"])
    ax.axhline(0, color=GREY, linewidth=2)
    beside = {"textcoords": "offset points", "fontweight": "bold", "path_effects": halo()}
    ax.annotate("as long as without it", (0, 0), (0, 6), color=GREY, **beside)
    ax.annotate("computed from the median round; band: from the middle half", (updates[1], updates[1] * middle - extra),
                (0, 10), color=COLOURS[0], ha="right", **beside)
    ax.set(xlabel="updates", ylabel="seconds saved since the start", title=title)
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return fig
