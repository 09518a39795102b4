"""Lesson 14: operators by self time, and the gain of each change, predicted and measured."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from course import predict
from course.plots.style import COLOURS, GREY, PALE, PHASES, handles, key_below, line_key, name_rows, ticks

KINDS = {"product": PHASES["backward"], "other operator": PHASES["forward"], "between operators": COLOURS[3]}
PREDICTED = {"marker": "D", "linestyle": "", "color": COLOURS[1], "markerfacecolor": "none", "markersize": 14}


def kind(name: str) -> str:
    """Which of KINDS an operator or label of a profile is."""
    if predict.gains.is_product(name):
        return "product"
    return "other operator" if predict.gains.is_operator(name) else "between operators"


def shorten(name: str) -> str:
    """As people say it: no namespace, and what a label's own time is made of."""
    if name in predict.gains.LABELS:
        return f"{name} (between operators)"
    return name.removeprefix("aten::").split("#")[-1].replace("autograd::engine::evaluate_function: ", "engine: ")[:38]


def operators(rows: list[dict], ax: Axes, most: int = 10) -> Axes:
    """A bar for each of the `most` operators with the largest self time; `rows` as step_profile.py writes them."""
    total = sum(row["ms"] for row in rows)
    rows = rows[:most]
    kinds = [kind(row["name"]) for row in rows]
    bars = ax.barh(range(len(rows)), [row["ms"] for row in rows], height=0.7, color=[KINDS[name] for name in kinds])
    ax.bar_label(bars, [f"{row['ms'] / total:.0%}" for row in rows], padding=10, fontweight="bold")
    name_rows(ax, [shorten(row["name"]) for row in rows])
    ax.margins(x=0.12)
    ax.set_xlabel("milliseconds of self time in a step")
    ax.legend(handles=handles({name: KINDS[name] for name in KINDS if name in kinds}), loc="lower right")
    return ax


def changes(table: pd.DataFrame, ax: Axes, title: str = "") -> Axes:
    """A line a change: a hollow diamond predicted, a dot measured, with the middle half (thick) and all rounds (thin).

    Columns: `text`, `predicted` (or nothing), `gain`, `low`, `high`, `quartiles`; `error` where it did not run. The
    first row has nothing changed: the grey band is the noise, its largest gain or loss on both sides.
    """
    table = table.reset_index(drop=True)
    noise = predict.gains.noise(table.iloc[0])
    ax.axvspan(1 / noise, noise, color=PALE, zorder=0, linewidth=0)
    ax.axvline(1, color=GREY, linewidth=2, zorder=1)
    for y, row in table.iterrows():
        if pd.notna(row.get("error")):
            tried = "not tried" if row["error"].startswith("not tried") else "did not run here"
            ax.text(1, y, f"  {tried}", va="center", color=GREY, fontweight="bold")
            continue
        colour = COLOURS[0] if y else GREY
        ax.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=2)
        ax.plot(row["quartiles"], [y, y], color=colour, linewidth=7, solid_capstyle="butt", alpha=0.6)
        ax.plot(row["gain"], y, "o", color=colour, markersize=12)
        if pd.notna(row["predicted"]) and y:
            ax.plot(row["predicted"], y, **PREDICTED)
        ax.text(1.01, y, f"{row['gain']:.2f}×", va="center", fontweight="bold", transform=ax.get_yaxis_transform())
    name_rows(ax, table["text"])
    low = min(table["low"].min(), table["predicted"].min(), 1 / noise, 0.8) / 1.08
    high = max(table["high"].max(), table["predicted"].max(), noise, 1.25) * 1.08
    ax.set(xscale="log", xlabel="times as fast as without the change", title=title)
    locator = MaxNLocator(6, steps=[1, 2, 5, 10]) if high / low < 6 else LogLocator(subs=(1, 2, 5))
    ticks(ax, locator.tick_values(low, high))
    ax.set_xlim(low, high)
    return ax


def key(fig: Figure) -> None:
    """What the marks of `changes` stand for, below all axes."""
    measured = line_key("measured: median, middle half, all rounds", marker="o", color=COLOURS[0], markersize=12)
    key_below(fig, [line_key("predicted", **PREDICTED), measured, *handles({"nothing changed: noise": PALE})])
