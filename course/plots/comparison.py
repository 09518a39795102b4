"""Run against run: seconds, throughput, speed-up, efficiency, from the table of `runs.speedup_table`, a row a run."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import (
    COLOURS,
    GREY,
    PALE,
    WARNING,
    bar_style,
    head,
    key_of,
    line_key,
    line_style,
    name_rows,
    percent,
    ticks,
)
from course.plots.tables import by_machine, field, machine_of, name_of, need, plain, source_of, unfinished

LOST = {"oversubscription": PALE, "contention": "#F6DDA8", "communication": "#C5DDF0"}  # where the ranks lose speed


def seconds_per_epoch(table: pd.DataFrame) -> Axes:
    """One bar a run, from `runs.seconds_per_epoch` or `runs.speedup_table`."""
    need(table, "seconds")
    ax = plt.subplots()[1]
    for y, (_, run) in enumerate(table.iterrows()):
        seconds = run["seconds"]
        if pd.isna(seconds):
            ax.text(0, y, " not known", va="center", color=GREY)
            continue
        ax.barh(y, seconds, height=0.6, **bar_style(source_of(run)))
        digits = f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}"
        ax.text(seconds, y, f"  {digits} s", va="center", fontweight="bold")
    name_rows(ax, [name_of(run, 20) for _, run in table.iterrows()])
    ax.margins(x=0.15)
    ax.set_xlabel("seconds an epoch")
    head(ax, "Time for one epoch", table, key_of(table, bars=True))
    return ax


def throughput(table: pd.DataFrame) -> Axes:
    """Images per second, all ranks together, against world size."""
    return _by_world_size(table, "images_per_second", "Throughput", "images/s", "{:,.0f}")


def speedup(table: pd.DataFrame) -> Axes:
    """Speed-up against world size, beside the ideal line."""
    return _by_world_size(table, "speedup", "Speed-up", "times as fast as the baseline", "{:.2f}×",
                          ideal=lambda ranks: ranks)


def efficiency(table: pd.DataFrame) -> Axes:
    """Speed-up / world size in percent, beside the 100 % line."""
    ax = _by_world_size(table, "efficiency", "Efficiency", "speed-up / ranks (%)", "{:.0%}", ideal=lambda ranks: 1)
    percent(ax)
    return ax


def under_ceiling(table: pd.DataFrame, ceilings: dict, devices: int, ax: Axes) -> Axes:
    """Speed-up against world size, and what of the ideal is lost to what.

    `ceilings`: {ranks: its "ceiling", with the ends "low" and "high" of its interval}, a line between them.
    """
    runs = table.sort_values("world_size").astype({"world_size": float, "speedup": float})
    sizes, measured = runs["world_size"].to_numpy(), runs["speedup"].to_numpy()
    limit, most = np.minimum(sizes, devices), sizes.max()
    known = {1: 1.0} | {ranks: limits["ceiling"] for ranks, limits in ceilings.items()}
    ceiling = np.interp(sizes, list(known), list(known.values()))
    for lost, (low, high) in {"oversubscription": (limit, sizes), "contention": (np.minimum(ceiling, limit), limit),
                              "communication": (np.minimum(measured, ceiling), ceiling)}.items():
        ax.fill_between(sizes, low, high, color=LOST[lost], linewidth=0)
    ax.plot(sizes, sizes, "--", color=GREY, linewidth=2)
    ax.plot(sizes, limit, color="black", linewidth=2)
    ax.plot(sizes, ceiling, color=COLOURS[2], linewidth=2)
    ax.vlines(list(ceilings), *([limits[end] for limits in ceilings.values()] for end in ("low", "high")),
              color=COLOURS[2])
    ax.plot(sizes, measured, **line_style(0, source_of(runs.iloc[0])))
    ends = [(most, most, "ideal", GREY),
            (most, limit[-1], f"{limit[-1]:g} device{'s' * int(limit[-1] > 1)}", "#000000"),
            (most, ceiling[-1], f"ceiling: {ceiling[-1]:.2f}", COLOURS[2]),
            (most, measured[-1], f"DDP: {measured[-1]:.2f}", COLOURS[0])]
    ticks(ax, sizes)
    ax.set(xlabel="world size (ranks)", ylabel="times as fast as one rank", ylim=(0, 1.1 * most))
    head(ax, "Speed-up, and what it loses", table, columns=3,
         key={f"lost to {lost}": colour for lost, colour in LOST.items()})
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def _by_world_size(table, y, title, ylabel, form, ideal=None) -> Axes:
    """A point a run, its value written as in `form`, a line through each machine's medians; `ideal` of ranks."""
    need(table, y, "world_size")
    table = table.dropna(subset=["world_size", y]).astype({"world_size": float, y: float})
    if table.empty:
        raise ValueError(f"nothing to draw: the world size of the runs with {y} is not known")
    ax, points, key = plt.subplots()[1], [], []
    for number, rows in enumerate(by_machine(table)):
        style = line_style(number, source_of(rows.iloc[0]))
        ax.plot(rows.groupby("world_size")[y].median(), **style | {"marker": ""})
        ax.plot(rows["world_size"], rows[y], **style | {"linestyle": "none"}, zorder=3)
        key.append(line_key(machine_of(rows.iloc[0]), **style))
        points += [(run["world_size"], run[y], form.format(run[y]) + unfinished(run), style["color"])
                   for _, run in rows.iterrows()]
    sizes, top = sorted(table["world_size"].unique()), table[y].max()
    most = sizes[-1]
    if ideal:
        ax.plot([1, most], [ideal(1), ideal(most)], "--", color=GREY, linewidth=2, zorder=1)
        top = max(top, ideal(most))
        points.append((most, ideal(most), "ideal", GREY))
    if most > 16:
        ax.set_xscale("log", base=2)
        ax.set_xlim(sizes[0] / 1.3, most * 1.3)
    else:
        ax.set_xlim(0.5, 1.06 * most + 0.5)
    ticks(ax, sizes)
    ax.set(xlabel="world size (ranks)", ylabel=ylabel)
    if most > 16 and y != "efficiency":  # so that the ideal is a straight line
        ax.set_yscale("log", base=2 if ideal else 10)
        ax.set_ylim(top=1.6 * top)
    else:
        ax.set_ylim(0, 1.18 * top)
    ax.yaxis.set_major_formatter("{x:,.12g}")
    _mark_more_ranks_than_cores(ax, table, at_top=y == "efficiency")
    head(ax, title, table, key if key_of(table) else [])
    write_beside(ax, points, BESIDE_A_POINT)
    return ax


def _mark_more_ranks_than_cores(ax: Axes, table: pd.DataFrame, at_top: bool) -> None:
    """Shades where ranks have to take turns on the cores."""
    crowded = table[[field(run, "oversubscribed", False) for _, run in table.iterrows()]]
    if crowded.empty:
        return
    several, right, notes = len(by_machine(table)) > 1, ax.get_xlim()[1], []
    for rows in by_machine(crowded):
        run = rows.sort_values("world_size").iloc[0]
        cores = run["cores"] * field(run, "nodes", 1)
        ax.axvspan(cores + 0.5, right, color="#F3E3D3", zorder=0, linewidth=0)
        whose = f"{plain(field(run, 'machine', 'here'))}: " if several else ""
        notes.append((right, ax.get_ylim()[at_top], f"{whose}more ranks than cores ({cores})", WARNING))
    side, way = ("top", -1) if at_top else ("bottom", 1)
    write_beside(ax, notes, [(-8, way * dy, "right", side) for dy in range(6, 250, 6)])
