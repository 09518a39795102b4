"""Every picture of the course: a DataFrame in, matplotlib Axes out. Importing this sets the course's style.

    python scripts/plots.py results/live --out build/plots

A picture says what its numbers are: solid lines and filled markers were measured on this machine, dashed
and hollow ones are recorded elsewhere, dotted ones predicted, and "SYNTHETIC DATA" stands above whatever was not
trained on real images. Tables come from scripts/runs.py. One made by hand needs only the columns that are drawn:
for a prediction `source="predicted"`, `world_size` and, say, `speedup`.
"""

import argparse
import math
import sys
import warnings
from functools import partial
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox

# Okabe and Ito's palette, which colour-blind readers can tell apart; without its yellow, too faint on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "p", "h"]  # each has an inside that can be hollow
LINES = {"live": "-", "recorded": "--", "predicted": ":"}
PHASES = {"data": "#E69F00", "forward": "#56B4E9", "backward": "#0072B2", "update": "#009E73"}
EVENTS = PHASES | {"wait": "#BDBDBD", "all-reduce": "#D55E00"}  # of a timeline
GREY = "#5F5F5F"
WARNING = "#D55E00"
COMMAND = {"starting": GREY, "training": PHASES["backward"], "evaluating, and the rest": PHASES["forward"]}


def use_course_style() -> None:
    """Large enough to be read from the back of a room. Done once when this module is imported."""
    mpl.rcParams.update(
        {
            "figure.figsize": (10, 6),
            "figure.constrained_layout.use": True,  # makes room for what stands outside the axes
            "savefig.bbox": "tight",
            "font.size": 17,
            "axes.titlesize": 21,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 18,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E3E3E3",
            "lines.linewidth": 3,
            "lines.markersize": 9,
            "lines.markeredgewidth": 2.5,
            "hatch.linewidth": 1.5,
            "axes.prop_cycle": mpl.cycler(color=COLOURS),
        }
    )


use_course_style()


# ---------------------------------------------------------------- run by run, along the epochs


def loss_by_epoch(df: pd.DataFrame, ax: Axes | None = None, column: str = "loss") -> Axes:
    """Training loss of each run against epoch; `column="val_loss"` for that of the test images."""
    return _curves(df, "epoch", column, ax, f"{_of(column)} loss by epoch", "epoch", "loss (cross-entropy)")


def loss_by_time(df: pd.DataFrame, ax: Axes | None = None, column: str = "loss") -> Axes:
    """Loss of each run against the seconds it has trained for; missing from the first epoch of unknown length on."""
    df = _with_elapsed(df)
    return _curves(
        df, "elapsed", column, ax, f"{_of(column)} loss by time", "training time (s)", "loss (cross-entropy)"
    )


def accuracy_by_epoch(df: pd.DataFrame, ax: Axes | None = None, column: str = "accuracy") -> Axes:
    """Training accuracy of each run, in percent; `column="val_accuracy"` for that of the test images."""
    ax = _curves(df, "epoch", column, ax, f"{_of(column)} accuracy by epoch", "epoch", "accuracy (% of images)")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    return ax


def phases(df: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Where an epoch's seconds go: data, forward, backward, update, stacked, one bar a run.

    Medians over the epochs, without the first one, which warms up, if there are more.
    """
    columns = [f"{phase}_seconds" for phase in PHASES]
    _need(df, columns)
    ax = _axes(ax)
    runs = list(_by_run(df))
    medians = pd.DataFrame([rows.reindex(columns=columns).iloc[int(len(rows) > 1) :].median() for _, rows in runs])
    _stacked(ax, medians, PHASES, "phases not in this log")
    _run_axis(ax, [rows.iloc[-1] for _, rows in runs])
    ax.set_xlabel("seconds an epoch")
    _head(ax, df, "Where the time goes", [Patch(color=c, label=p) for p, c in PHASES.items()], columns=4)
    return ax


def whole_command(df: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """From typing a command to its end: starting, training, and the rest, stacked, one bar a run.

    The logs know nothing of the time before they were opened, so `df` needs one more column: `command_seconds`, what
    the clock said of the whole command.
    """
    for column in ("command_seconds", "total_seconds", "seconds"):
        _need(df, [column])
    ax = _axes(ax)
    runs = [rows for _, rows in _by_run(df)]
    trained = pd.Series([rows["seconds"].sum(min_count=1) for rows in runs])
    last = pd.DataFrame([rows.iloc[-1] for rows in runs]).reset_index(drop=True)
    logged, whole = last["total_seconds"], last["command_seconds"]
    parts = pd.concat([whole - logged, trained, logged - trained], axis=1)
    parts[parts.isna().any(axis=1)] = np.nan  # of a run whose log has no end: a part alone would look like the whole
    _stacked(ax, parts, COMMAND, "no end in this log")
    for y, total in enumerate(parts.sum(axis=1, min_count=1)):
        if pd.notna(total):
            ax.text(total, y, f"  {total:,.1f} s", va="center", fontweight="bold")
    _run_axis(ax, [rows.iloc[-1] for rows in runs])
    ax.margins(x=0.15)
    ax.set_xlabel("seconds")
    _head(ax, df, "The whole command", [Patch(color=c, label=p) for p, c in COMMAND.items()], columns=3)
    return ax


def timeline(events: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """What each rank did, and when: a bar an event, a lane for each `rank` and, if there is such a column, `lane`.

    Columns: `rank`, `event` (what was done: the colour), `start` and `end` (ms); a `text` stands in its bar where it
    fits. Bars of a lane that overlap in time stand below each other.
    """
    _need(events, ["start"])
    _need(events, ["end"])
    ax = _axes(ax)
    events = events.assign(lane=events.get("lane", "")).sort_values("start", kind="stable")
    names = list(dict.fromkeys(events["event"]))
    others = iter([colour for colour in COLOURS if colour not in EVENTS.values()] * len(names))
    colours = {name: EVENTS.get(name) or next(others) for name in names}
    names.sort(key=lambda name: list(EVENTS).index(name) if name in EVENTS else len(EVENTS))
    inch = (events["end"].max() - events["start"].min()) / (ax.figure.get_figwidth() * ax.get_position().width)
    top, ticks = 0.0, {}
    for rank, of_rank in events.groupby("rank"):
        for lane, bars in of_rank.groupby("lane", sort=False):
            free = []  # from when on, for each row of this lane
            for _, bar in bars.iterrows():
                row = next((row for row, end in enumerate(free) if end <= bar["start"] + 1e-9), len(free))
                free[row:row + 1] = [bar["end"]]
                colour, length = colours[bar["event"]], bar["end"] - bar["start"]
                ax.barh(top + row, length, left=bar["start"], height=0.85, color=colour, edgecolor="white", linewidth=1)
                text = _plain(_get(bar, "text", ""))
                if length > 0.12 * inch * len(text):  # a character of 14 points takes about that
                    ax.text(bar["start"] + length / 2, top + row, text, ha="center", va="center", fontsize=14,
                            fontweight="bold", color="black" if _is_light(colour) else "white")
            ticks[top + (len(free) - 1) / 2] = f"rank {rank}" + (f"\n{_plain(lane)}" if lane else "")
            top += len(free)
        top += 0.6
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set_ylim(top - 0.9, -0.7)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("milliseconds")
    key = [Patch(color=colours[name], label=name) for name in names]
    _head(ax, events.assign(label=events.get("label", "run")), "What each rank did, and when", key, columns=len(key))
    return ax


# ---------------------------------------------------------------- run against run


def seconds_per_epoch(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """One bar a run, from `runs.seconds_per_epoch` or `runs.speedup_table`."""
    _need(table, ["seconds"])
    ax = _axes(ax)
    for y, (_, run) in enumerate(table.iterrows()):
        if pd.isna(run["seconds"]):
            ax.text(0, y, " not known", va="center", color=GREY)
            continue
        ax.barh(y, run["seconds"], height=0.6, linestyle=LINES[_source(run)], **_bar(_source(run), COLOURS[0]))
        ax.text(run["seconds"], y, f"  {_three_digits(run['seconds'])} s", va="center", fontweight="bold")
    _run_axis(ax, [run for _, run in table.iterrows()])
    ax.margins(x=0.15)
    ax.set_xlabel("seconds an epoch")
    _head(ax, table, "Time for one epoch", _source_keys(table, bars=True))
    return ax


def throughput(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Images a second, all ranks together, against world size."""
    ax = _scaling(table, "images_per_second", ax, "Throughput", "images/s", "{:,.0f}")
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    return ax


def speedup(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Speed-up against world size, beside the ideal line, from `runs.speedup_table`."""
    return _scaling(table, "speedup", ax, "Speed-up", "times as fast as the baseline", "{:.1f}×", ideal=lambda n: n)


def efficiency(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Speed-up / world size in percent, beside the 100 % line, from `runs.speedup_table`."""
    ax = _scaling(table, "efficiency", ax, "Efficiency", "speed-up / ranks (%)", "{:.0%}", ideal=lambda n: 0 * n + 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    return ax


# ---------------------------------------------------------------- who sees what


def sampler_map(
    df: pd.DataFrame, ax: Axes | None = None, rows: str = "rank", title: str = "Which rank sees which item"
) -> Axes:
    """A column an item, a row a rank; with `rows="epoch"` a row an epoch, and the ranks are colours.

    `df` has a line each time an item is seen: `epoch`, `rank`, `item`, and `place`, the item's place in the rank's
    shard, which is written into the cell. What is seen again in an epoch is hatched. An item that nobody sees has a
    line without `rank`, a rank that sees nothing a line without `item`.
    """
    _need(df, ["item"])
    if rows == "rank" and df["epoch"].nunique() > 1:
        raise ValueError('nothing to draw: there are several epochs; choose one, or rows="epoch"')
    ax = _axes(ax)
    seen = df.dropna(subset=["rank", "item"]).sort_values(["place", "rank"])  # the order in which they are dealt
    seen = seen.assign(again=seen.duplicated(["epoch", "item"]))
    missed = df[df["rank"].isna()]
    ys = {value: y for y, value in enumerate(sorted(df[rows].dropna().unique()))}
    last = int(df["item"].max())
    font = {"fontsize": 17 if last < 25 else 12, "fontweight": "bold", "ha": "center", "va": "center"}
    for (line, item), cell in seen.groupby([rows, "item"]):
        height = 0.9 / len(cell)  # an epoch's cell is shared by all ranks that see the item
        for slot, view in enumerate(cell.itertuples()):
            colour, bottom = _rank_colour(view.rank), ys[line] - 0.45 + slot * height
            look = {"facecolor": "white", "hatch": "//"} if view.again else {"facecolor": colour}
            ax.add_patch(Rectangle((item - 0.45, bottom), 0.9, height, edgecolor=colour, linewidth=2, **look))
            if last < 42 and len(cell) == 1:
                ink = "black" if view.again or _is_light(colour) else "white"
                halo = [patheffects.withStroke(linewidth=4, foreground="white")] if view.again else None
                ax.text(item, bottom + height / 2, f"{view.place:.0f}", color=ink, path_effects=halo, **font)
    for item, epoch in zip(missed["item"], missed["epoch"], strict=True):
        for y in [ys[epoch]] if rows == "epoch" else ys.values():
            ax.text(item, y, "×", color="black", **font | {"fontsize": 22})
    ax.set(xlim=(-0.6, last + 0.6), ylim=(len(ys) - 0.4, -0.6))
    ax.set_xlabel("item (in the cell: place in the shard)")
    ax.set_yticks(list(ys.values()), [f"{rows} {value:.0f}" for value in ys])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=25, steps=[1, 5, 10]))
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ranks = sorted(seen["rank"].unique()) if rows == "epoch" else []
    key = [Patch(color=_rank_colour(rank), label=f"rank {rank:.0f}") for rank in ranks]
    if seen["again"].any():
        key.append(Patch(facecolor="white", edgecolor="black", hatch="//", label="seen again (padding)"))
    if not missed.empty:
        key.append(Line2D([], [], linestyle="", marker="x", color="black", label="seen by nobody"))
    _head(ax, df.assign(label=""), title, key, columns=max(1, len(key)))
    return ax


def _rank_colour(rank: float) -> str:
    return COLOURS[int(rank) % len(COLOURS)]


def _is_light(colour: str) -> bool:
    return np.dot(mpl.colors.to_rgb(colour), [0.30, 0.59, 0.11]) > 0.5


# ---------------------------------------------------------------- what they are made of


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots()[1] if ax is None else ax


def _need(table: pd.DataFrame, columns: list[str]) -> None:
    if table.empty:
        raise ValueError("nothing to draw: the table has no rows")
    if not any(name in table and table[name].notna().any() for name in columns):
        raise ValueError(f"nothing to draw: no run here has {' or '.join(columns)}")


def _of(column: str) -> str:
    return "Test" if column.startswith("val_") else "Training"


def _get(run: pd.Series, name: str, otherwise=None):
    """A field of a run; `otherwise` where it is missing, or where a table made by hand lacks the column."""
    value = run.get(name)
    return otherwise if value is None or pd.isna(value) else value


def _source(run: pd.Series) -> str:
    return _get(run, "source", "live")


def _by_run(df: pd.DataFrame):
    """(number, its rows) of each run, in the order of the table."""
    return enumerate(
        rows for _, rows in df.groupby([k for k in ("label", "path") if k in df], sort=False, dropna=False)
    )


def _name(run: pd.Series, width: int = 16) -> str:
    return fill(_plain(_get(run, "label", "run")), width) + _unfinished(run)


def _unfinished(run: pd.Series) -> str:
    status = _get(run, "status")
    return f"\n({status})" if status in ("unfinished", "failed", "resumable") else ""


def _plain(text) -> str:
    return str(text).replace("$", r"\$")  # between dollars matplotlib reads formulas


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _numbers(values: pd.Series) -> np.ndarray:
    return values.astype("Float64").to_numpy(float, na_value=np.nan)


def _with_elapsed(df: pd.DataFrame) -> pd.DataFrame:
    """Adds `elapsed`: seconds of training at each epoch's end. Beyond a lost epoch nobody knows."""
    _need(df, ["seconds"])
    parts = []
    for _, rows in _by_run(df):
        follows = rows["epoch"].diff().fillna(1).eq(1) & (rows["epoch"].iloc[0] == 0)
        known = (follows & rows["seconds"].notna()).cumprod().astype(bool)
        parts.append(rows.assign(elapsed=rows["seconds"].cumsum().where(known)))
    return pd.concat(parts)


def _curves(df, x, y, ax, title, xlabel, ylabel) -> Axes:
    _need(df, [y])
    _need(df, [x])
    ax = _axes(ax)
    ends = []
    for number, rows in _by_run(df):
        run, colour, source = rows.iloc[-1], COLOURS[number % len(COLOURS)], _source(rows.iloc[-1])
        gaps = np.flatnonzero(np.diff(_numbers(rows["epoch"])) > 1) + 1  # a lost epoch breaks the line
        xs, ys = (np.insert(_numbers(rows[name]), gaps, np.nan) for name in (x, y))
        ax.plot(xs, ys, LINES[source], color=colour, **_marker(number, source, colour))
        drawn = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))
        if len(drawn):
            ends.append((xs[drawn[-1]], ys[drawn[-1]], _name(run), colour))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if x == "epoch":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        ax.set_xlim(left=0)
    _head(ax, df, title, _source_keys(df))
    _write_beside(ax, ends, BESIDE_AN_END)
    return ax


def _marker(number: int, source: str, colour: str) -> dict:
    return {
        "marker": MARKERS[number % len(MARKERS)],
        "markerfacecolor": colour if source == "live" else "white",
    }


def _bar(source: str, colour: str) -> dict:
    return {
        "facecolor": colour if source == "live" else "white", "edgecolor": colour, "linewidth": 3,
        "hatch": "/" if source == "recorded" else None,
    }  # fmt: skip


def _stacked(ax: Axes, seconds: pd.DataFrame, colours: dict, unknown: str) -> None:
    """A bar for each row of `seconds`, made of its columns; `unknown` is written where a row holds none of them."""
    right = seconds.sum(axis=1).max()
    digits = max(0, 1 - math.floor(math.log10(right / 3))) if right > 0 else 0
    for y, (_, row) in enumerate(seconds.iterrows()):
        if row.isna().all():
            ax.text(0, y, f" {unknown}", va="center", color=GREY)
        start = 0.0
        for colour, width in zip(colours.values(), row.fillna(0), strict=True):
            ax.barh(y, width, left=start, color=colour, height=0.6)
            if width > 0.08 * right:
                ink = "black" if _is_light(colour) else "white"
                ax.text(start + width / 2, y, f"{width:.{digits}f}", ha="center", va="center", color=ink)
            start += width


def _series(table: pd.DataFrame):
    """(number, rows by world size) of each machine's measured, recorded or predicted runs."""
    keys = [k for k in ("source", "machine") if k in table]
    groups = [rows for _, rows in table.groupby(keys, sort=False, dropna=False)] if keys else [table]
    order = [k for k in ("world_size",) if k in table]  # a curve made by hand has none
    return [(n, rows.sort_values(order, kind="stable") if order else rows) for n, rows in enumerate(groups)]


def _scaling(table, y, ax, title, ylabel, form, ideal=None) -> Axes:
    _need(table, [y])
    _need(table, ["world_size"])
    table = table[table["world_size"].notna() & table[y].notna()]
    if table.empty:
        raise ValueError(f"nothing to draw: the world size of the runs with {y} is not known")
    ax = _axes(ax)
    points, handles = [], []
    for number, rows in _series(table):
        source, colour = _source(rows.iloc[0]), COLOURS[number % len(COLOURS)]
        style = {"color": colour, **_marker(number, source, colour)}
        xs, ys = _numbers(rows["world_size"]), _numbers(rows[y])
        middle = pd.Series(ys).groupby(xs).median()
        ax.plot(middle.index, middle, LINES[source], color=colour)
        ax.plot(xs, ys, linestyle="none", **style, zorder=3)
        handles.append(Line2D([], [], linestyle=LINES[source], **style, label=_series_name(rows.iloc[0])))
        for x, value, (_, run) in zip(xs, ys, rows.iterrows(), strict=True):
            if np.isfinite(value):
                points.append((x, value, form.format(value) + _unfinished(run), colour))
    sizes = np.unique(_numbers(table["world_size"]))
    _rank_axis(ax, sizes)
    ax.set_ylabel(ylabel)
    top = np.nanmax(_numbers(table[y]))
    if ideal:
        many = np.linspace(1, sizes.max(), 100)
        ax.plot(many, ideal(many), "--", color=GREY, linewidth=2, zorder=1)
        top = max(top, ideal(sizes.max()))
        points.append((sizes.max(), ideal(sizes.max()), "ideal", GREY))
    if ax.get_xscale() == "log" and y != "efficiency":  # so that the ideal is a straight line
        ax.set_yscale("log", base=2 if ideal else 10)
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.set_ylim(top=1.6 * top)
    else:
        ax.set_ylim(0, 1.18 * top)
    _mark_more_ranks_than_cores(ax, table, at_top=y == "efficiency")
    _head(ax, table, title, handles if _source_keys(table) else [])
    _write_beside(ax, points, BESIDE_A_POINT)
    return ax


def _rank_axis(ax: Axes, sizes: np.ndarray) -> None:
    if sizes.max() > 16:
        ax.set_xscale("log", base=2)
        ax.set_xlim(sizes.min() / 1.3, sizes.max() * 1.3)
    else:
        ax.set_xlim(0.5, 1.06 * sizes.max() + 0.5)
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("world size (ranks)")


def _mark_more_ranks_than_cores(ax: Axes, table: pd.DataFrame, at_top: bool) -> None:
    """Shades where ranks have to take turns on the cores."""
    crowded = table[table.get("oversubscribed", pd.Series(False, table.index)).fillna(False).astype(bool)]
    if crowded.empty:
        return
    several, notes = len(_series(table)) > 1, []
    for _, rows in _series(crowded):
        run = rows.iloc[0]
        cores = run["cores"] * _get(run, "nodes", 1)
        left, right = cores + 0.5, ax.get_xlim()[1]
        ax.axvspan(left, right, color="#F3E3D3", zorder=0, linewidth=0)
        ax.set_xlim(right=right)
        whose = f"{_plain(_get(run, 'machine', 'here'))}: " if several else ""
        notes.append((right, ax.get_ylim()[at_top], f"{whose}more ranks than cores ({cores})", WARNING))
    side, way = ("top", -1) if at_top else ("bottom", 1)
    _write_beside(ax, notes, [(-8, way * dy, "right", side) for dy in range(6, 250, 6)])


def _run_axis(ax: Axes, runs: list[pd.Series]) -> None:
    """One run a line, from the top down, by name."""
    ax.set_yticks(range(len(runs)), [_name(run, 20) for run in runs])
    ax.set_ylim(len(runs) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)


def _series_name(run: pd.Series) -> str:
    source, machine = _source(run), _get(run, "machine")
    return f"{source}: {_plain(machine)}" if machine and machine != source else source


def _source_keys(table: pd.DataFrame, bars: bool = False) -> list:
    """What solid, dashed and dotted stand for; nothing where all was measured here."""
    keys = []
    for _, rows in _series(table):
        source = _source(rows.iloc[0])
        look = _bar(source, GREY) if bars else {"color": GREY, **_marker(0, source, GREY)}
        kind = Patch if bars else partial(Line2D, [], [])
        keys.append(kind(linestyle=LINES[source], label=_series_name(rows.iloc[0]), **look))
    return [] if [_source(rows.iloc[0]) for _, rows in _series(table)] == ["live"] else keys


def _head(ax: Axes, table: pd.DataFrame, title: str, key: list, columns: int = 1) -> None:
    """Title, and below it what a reader must know of the numbers: whether the data is real, and whose they are."""
    height = 0.0  # points above the axes
    if key:
        ax.legend(
            handles=key, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=16,
            borderaxespad=0.2, borderpad=0, labelspacing=0.3, columnspacing=1.5, handlelength=2.6,
        )  # fmt: skip
        height += 24 * -(-len(key) // columns)
    made_up = _made_up(table)
    if made_up:
        ax.annotate(
            made_up, (0, 1), (5, height + 8), xycoords="axes fraction", textcoords="offset points", va="bottom",
            color="white", fontsize=16, fontweight="bold", bbox={"facecolor": WARNING, "edgecolor": "none", "pad": 4},
        )  # fmt: skip
        height += 30
    ax.set_title(title, pad=10 + height)


def _made_up(table: pd.DataFrame) -> str:
    """Says which runs did not train on real images."""
    runs = [rows.iloc[-1] for _, rows in _by_run(table) if _source(rows.iloc[-1]) != "predicted"]
    made_up = [_plain(_get(run, "label", "run")) for run in runs if _get(run, "synthetic", False)]
    if not made_up or len(made_up) == len(runs):
        return "SYNTHETIC DATA" if made_up else ""
    which = ", ".join(made_up) if len(made_up) < 4 else f"{len(made_up)} of {len(runs)} runs"
    return f"SYNTHETIC DATA: {which}"


# Where a text may stand beside its point, best first: offset in points, and which side of the text is there.
BESIDE_AN_END = [(12, dy, "left", "center") for dy in sorted(range(-250, 251, 5), key=abs)]
BESIDE_AN_END += [(0, 14, "center", "bottom"), (0, -14, "center", "top")]
BESIDE_A_POINT = [
    (0, 10, "center", "bottom"), (0, -12, "center", "top"), (12, 0, "left", "center"), (-12, 0, "right", "center"),
    (10, 8, "left", "bottom"), (10, -8, "left", "top"), (-10, 8, "right", "bottom"), (-10, -8, "right", "top"),
    (0, 30, "center", "bottom"), (0, -32, "center", "top"), (0, 50, "center", "bottom"), (0, -52, "center", "top"),
]  # fmt: skip


def _write_beside(ax: Axes, notes: list[tuple[float, float, str, str]], places: list[tuple]) -> None:
    """Writes each (x, y, text, colour) beside its point, where it covers no other text, no line, and fits best."""
    halo = [patheffects.withStroke(linewidth=4, foreground="white")]
    style = {"fontsize": 16, "fontweight": "bold", "linespacing": 1.0, "path_effects": halo, "annotation_clip": False}
    texts = []
    for x, y, text, colour in notes:
        ink = [0.8 * part for part in mpl.colors.to_rgb(colour)]  # text needs more contrast than lines
        texts.append(ax.annotate(text, (x, y), (0, 0), textcoords="offset points", color=ink, **style))
    for _ in range(2):  # placing them makes the axes shrink for what stands outside; then they are placed for good
        ax.figure.canvas.figure.draw_without_rendering()
        drawn, frame = _pixels_of_lines(ax), ax.get_window_extent()
        written = [text.get_window_extent() for text in ax.texts if text not in texts]
        for text in sorted(texts, key=lambda text: -text.xy[1]):  # from the top down, as a list reads
            extent = text.get_window_extent()
            boxes = [_box_at(text, extent, place) for place in places]
            costs = [_cost(box, drawn, written, frame) + i for i, box in enumerate(boxes)]
            best = int(np.argmin(costs))
            dx, dy, ha, va = places[best]
            text.set(position=(dx, dy), ha=ha, va=va)
            written.append(boxes[best])


def _box_at(text, extent: Bbox, place: tuple) -> Bbox:
    """The pixels that a text of this extent takes at a place."""
    dx, dy, ha, va = place
    point = text.figure.dpi / 72
    x, y = text.axes.transData.transform(text.xy) + np.array([dx, dy]) * point
    left = x - extent.width * {"left": 0, "center": 0.5, "right": 1}[ha]
    bottom = y - extent.height * {"bottom": 0, "center": 0.5, "top": 1}[va]
    return Bbox.from_bounds(left, bottom, extent.width, extent.height).padded(1)


def _pixels_of_lines(ax: Axes) -> np.ndarray:
    """Points about 4 pixels apart along every line of the axes."""
    pieces = [np.empty((0, 2))]
    for line in ax.lines:
        path = ax.transData.transform(np.column_stack(line.get_data(orig=False)).astype(float))
        pieces.append(path[np.isfinite(path).all(axis=1)])
        for a, b in zip(path, path[1:], strict=False) if line.get_linestyle() != "None" else []:
            if np.isfinite([a, b]).all():
                pieces.append(np.linspace(a, b, 2 + int(np.hypot(*(b - a)) // 4)))
    return np.concatenate(pieces)


def _cost(box: Bbox, drawn: np.ndarray, written: list[Bbox], frame: Bbox) -> float:
    hidden = np.all((drawn > box.min) & (drawn < box.max), axis=1).sum()
    clashes = sum(box.overlaps(other) for other in written)
    outside = max(0, box.y1 - frame.y1, frame.y0 - box.y0) / box.height + (box.x0 < frame.x0)
    return hidden + 1000.0 * clashes + 30.0 * outside


# ---------------------------------------------------------------- command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws run logs, and writes one PNG a picture.")
    parser.add_argument("logs", nargs="+", help="run logs, folders of them, or globs")
    parser.add_argument(
        "--out", type=Path, default=Path("build/plots"), help="folder for the PNGs (default: build/plots)"
    )
    parser.add_argument("--baseline", action="append", help="label of the run to compare with (default: world size 1)")
    args = parser.parse_args(argv)
    mpl.use("Agg")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python scripts/plots.py`
    from scripts import runs

    def say(line):
        print(f"plots.py: {line}", file=sys.stderr)

    warnings.showwarning = lambda message, *rest: say(message)
    try:
        df = runs.read_runs(args.logs).sort_values(["source", "machine", "world_size"], kind="stable")
        try:
            table = runs.speedup_table(df, args.baseline)
        except runs.RunError as error:
            if args.baseline:
                raise
            say(f"no speed-up, no efficiency: {error}")
            table = runs.seconds_per_epoch(df)
        args.out.mkdir(parents=True, exist_ok=True)
        drawn = 0
        pictures = [(draw, df) for draw in (loss_by_epoch, loss_by_time, accuracy_by_epoch, phases)]
        pictures += [(draw, table) for draw in (seconds_per_epoch, throughput, speedup, efficiency)]
        for draw, data in pictures:
            try:
                figure = draw(data).figure
            except ValueError as error:
                say(f"{draw.__name__}: {error}")
                continue
            path = args.out / f"{draw.__name__}.png"
            unfinished = path.with_suffix(".part")
            figure.savefig(unfinished, format="png")
            unfinished.replace(path)
            plt.close(figure)
            print(path)
            drawn += 1
    except (runs.RunError, OSError) as error:
        say(error)
        return 2
    return 0 if drawn else 2


if __name__ == "__main__":
    sys.exit(main())
