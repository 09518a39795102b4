"""Lesson 13: what each rank holds, which piece of a weight is whose, and a map of which way to choose.

Counts are those of lessons/l13_beyond_ddp/shard_model.py, predictions those of course/predict/memory.py.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter

from course import predict
from course.plots.style import COLOURS, ROOM, WARNING, bare, colour_of, halo, key_below, name_rows, stacked, write_in
from course.plots.timelines import timeline

SHARED = "#D9D9D9"  # by all ranks
NAMES = {"one": "one process", "ddp": "DDP", "zero1": "ZeRO-1", "fsdp": "FSDP2", "tp": "TP", "fsdp_tp": "FSDP2 × TP",
         "gpipe": "pipeline, GPipe", "1f1b": "pipeline, 1F1B"}
PARTS = dict(zip([*predict.memory.PARTS, predict.memory.MOMENT], [COLOURS[i] for i in (0, 5, 2, 1, 3)], strict=True))
WAYS = dict(zip(predict.memory.WAYS, [SHARED, *(COLOURS[i] for i in (5, 0, 2, 4, 1))], strict=True))


def memory(found):
    """A figure: what each rank was counted to hold, a thin bar a rank; model states on the left, activations on the
    right. `found` is the JSON of lessons/l13_beyond_ddp/shard_model.py."""
    _, axes = plt.subplots(1, 2, figsize=(18, 8), width_ratios=[3, 2])
    panels = [part for part in PARTS if part != "activations"], ["activations"]
    y, places = 0, []
    for way, result in found["ways"].items():
        ranks = result["ranks"][:1] if way == "one" else result.get("ranks", [])
        rows = max(1, len(ranks))
        places.append(y + (rows - 1) / 2)
        if not ranks:
            axes[0].text(0, y, f" {result['unsupported'][:60]}", va="center", color=WARNING)
        for row, held in enumerate(ranks):
            for ax, panel in zip(axes, panels, strict=True):
                parts = [part for part in panel if held[part]]
                sizes = np.array([held[part] for part in parts]) / 1e6
                ax.barh(y + row, sizes, 0.9, sizes.cumsum() - sizes, color=[PARTS[part] for part in parts],
                        edgecolor="white")
                ax.text(sizes.sum(), y + row, f" {sizes.sum():.2f}", va="center", fontsize=15)
        y += rows + 0.7
    for ax in axes:
        name_rows(ax, [NAMES[way] for way in found["ways"]], places, bottom=y - 1)
        ax.margins(x=0.13)
    axes[1].tick_params(labelleft=False)
    axes[0].set(xlabel="MB a rank", title=f"Model states, {found['world_size']} ranks: a bar each")
    axes[1].set(xlabel="MB a rank", title="Activations")
    key_below(axes[0].figure, PARTS)
    return axes[0].figure


def pieces(found, ways, names):
    """A figure: which rank has which piece of each weight (columns), under each way (rows). Drawn to scale."""
    shapes = [found["shapes"][name] for name in names]
    tallest = max(shape[0] for shape in shapes)
    fig, axes = plt.subplots(len(ways), len(names), figsize=(3.4 * len(names) + 2, 0.6 + 2.5 * len(ways)),
                             width_ratios=[max(shape[1], tallest / 3) for shape in shapes], squeeze=False)
    for row, way in zip(axes, ways, strict=True):
        for ax, name, (height, width) in zip(row, names, shapes, strict=True):
            of_ranks = found["ways"][way]["pieces"][name]
            held = {}
            for rank, one in enumerate(of_ranks):
                if one and one["first"]:
                    held.setdefault((*one["first"], *one["shape"]), []).append(rank)
            for (top, left, rows, columns), ranks in held.items():
                all_have_it = len(ranks) == len(of_ranks) > 1
                colour = SHARED if all_have_it else colour_of(ranks[0])
                ax.add_patch(Rectangle((left, top), columns, rows, facecolor=colour, edgecolor="white", linewidth=3))
                told = "all" if all_have_it else " ".join(map(str, ranks))
                write_in(ax, left + columns / 2, top + rows / 2, told, colour)
            ax.set(xlim=(-2, width + 2), ylim=(height + 2, -2), xticks=[], yticks=[], aspect="equal")
            bare(ax)
            if ax in axes[0]:
                ax.set_title(f"{name.removesuffix('.weight').replace('blocks.', 'block ').replace('.', ' ')}\n"
                             f"{height} × {width}", fontsize=16, loc="center")
        row[0].set_ylabel(NAMES[way], rotation=0, ha="right", va="center", fontweight="bold", labelpad=12)
    fig.suptitle(f"Which rank has which piece ({found['world_size']} ranks)", x=0.01, ha="left", fontweight="bold")
    return fig


def states(rows, limit, title):
    """A figure: predicted bytes a device, {name: {part: bytes}}, stacked and dotted, and a line at `limit` bytes."""
    fig, ax = plt.subplots(figsize=(15, 7))
    bars = [{part: size / 1e9 for part, size in parts.items() if size} for parts in rows.values()]
    key_below(fig, stacked(ax, list(rows), bars, PARTS, "GB a device (predicted)", "GB", range(len(rows))))
    narrow = ROOM * max(sum(parts.values()) for parts in bars)
    for bar in ax.patches:
        if bar.get_width() <= narrow:  # the others have theirs inside
            ax.text(bar.get_x() + bar.get_width() / 2, bar.get_y(), f"{bar.get_width():.0f}", fontsize=14, ha="center",
                    va="bottom")
    ax.axvline(limit / 1e9, color="black", linewidth=3)
    ax.text(limit / 1e9, -0.62, f" {limit / 1e9:.0f} GB: a device ", va="bottom", ha="center", fontweight="bold")
    ax.set_title(title, pad=38)
    return fig


def schedules(found):
    """A figure: what each rank of the pipelines did, and when, one below the other on one axis of time."""
    ways = [way for way in ("gpipe", "1f1b") if found["ways"].get(way, {}).get("timeline")]
    fig, axes = plt.subplots(len(ways), 1, figsize=(16, 4.2 * len(ways)), sharex=True, squeeze=False)
    for ax, way in zip(axes[:, 0], ways, strict=True):
        timeline(pd.DataFrame(found["ways"][way]["timeline"]), ax)
        ax.set_title(f"{NAMES[way]}: a number is a micro-batch", pad=36 if ax is axes[0, 0] else 10)
        ax.set_xlabel("milliseconds (measured)" if ax is axes[-1, 0] else "")
        if ax is not axes[0, 0]:
            ax.get_legend().remove()
    return fig


def maps(links, devices, parameters, yours):
    """A figure: a map for each link, {title: bytes a second of each device to other nodes}; `yours`: (devices,
    parameters) to be marked on them."""
    fig, axes = plt.subplots(1, len(links), figsize=(10 * len(links), 10), sharey=True, squeeze=False)
    drawn = []
    for ax, (title, between) in zip(axes[0], links.items(), strict=True):
        drawn.append(grid(lambda count, between=between: predict.memory.Cluster(count, between=between), devices,
                          parameters))
        chart(drawn[-1], devices, parameters, ax, title)
        x, y = (np.interp(math.log(mine), np.log(all_of_them), range(len(all_of_them))) + 0.5
                for mine, all_of_them in zip(yours, (devices, parameters), strict=True))
        ax.plot(x, y, "o", markersize=8, markerfacecolor="black", markeredgecolor="white", markeredgewidth=2)
        aside = 60 if y < len(parameters) / 2 else -75  # the mark's neighbours stay to be seen, and the title
        ax.annotate("yours", (x, y), (0, aside), textcoords="offset points", fontweight="bold", path_effects=halo(),
                    ha="center", arrowprops={"arrowstyle": "-", "linewidth": 2, "shrinkB": 6})
    axes[0, 0].set_ylabel("parameters")
    used = {way for ways in drawn for row in ways for way in row}
    key_below(fig, {way: colour for way, colour in WAYS.items() if way in used})
    fig.suptitle("The simplest way that fits and is fast enough (predicted)", x=0.01, ha="left", fontweight="bold")
    return fig


def grid(cluster_of, devices, parameters, **options):
    """[parameter][device] -> name of the way that predict.memory.choose takes, or None; `cluster_of(devices)`."""
    chosen = [[predict.memory.choose(size, cluster_of(count), **options)[0] for count in devices]
              for size in parameters]
    return [[plan and plan.way for plan in row] for row in chosen]


def chart(ways, devices, parameters, ax, title):
    """The map: a cell's colour is the way to choose; white: it does not fit. A large region has its name in it."""
    names = [None, *WAYS]
    numbers = np.array([[names.index(way) for way in row] for row in ways])
    colours = ListedColormap(["white", *WAYS.values()])
    ax.pcolormesh(range(len(devices) + 1), range(len(parameters) + 1), numbers, cmap=colours, vmin=0,
                  vmax=len(names) - 1, edgecolors="white", linewidth=0.5)
    for number, name in enumerate(names):
        region = np.pad(numbers == number, 1)  # the map ends at its edges
        if region.sum() > 6:
            y, x = middle(region) - 0.5
            ax.text(x, y, (name or "does not fit").replace(" + ", "\n+ "), ha="center", va="center",
                    fontweight="bold", fontsize=15, rotation=90 if region.any(axis=0).sum() == 1 else 0,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "boxstyle": "round,pad=0.15"})
    ax.set_xticks([x + 0.5 for x in range(0, len(devices), 2)], [f"{count:,}" for count in devices[::2]])
    marks = [(i, size) for i, size in enumerate(parameters) if abs(math.log10(size) % 1) < 1e-6]
    ax.set_yticks([i + 0.5 for i, _ in marks], [short(size) for _, size in marks])
    ax.grid(visible=False)
    ax.set(xlabel="devices", title=title)
    return ax


def middle(region):
    """(row, column) of the cell of a region that is farthest from all outside it, so that a name there stands inside;
    of several the one nearest to the region's mean."""
    inside, outside = np.argwhere(region), np.argwhere(~region)
    sides = np.array([0.5, 1])  # rows are half as far as columns, for a name is broad
    room = (abs(inside[:, None] - outside) * sides).max(axis=2).min(axis=1)
    off = (abs(inside - inside.mean(axis=0)) * sides).sum(axis=1)
    return inside[np.lexsort((off, -room))[0]]


def short(number):
    """"70 B" for 70e9."""
    return EngFormatter()(float(f"{number:.3g}")).replace("G", "B")
