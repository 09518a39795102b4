"""Lesson 13: what each rank holds, which piece of a weight is whose, and a map of which way to choose.

Counts are those of scripts/lessons/shard_model.py, predictions those of course/predict/memory.py.
"""

import math

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from course import predict
from course.plots.style import COLOURS, WARNING, bare, colour_of, key_below, name_rows, stack, stacked, write_in

SHARED = "#D9D9D9"  # by all ranks
NAMES = {"one": "one process", "ddp": "DDP", "zero1": "ZeRO-1", "fsdp": "FSDP2", "tp": "TP", "fsdp_tp": "FSDP2 × TP",
         "gpipe": "pipeline, GPipe", "1f1b": "pipeline, 1F1B"}
PARTS = dict(zip([*predict.memory.PARTS, "gathered"], [COLOURS[i] for i in (0, 5, 2, 1, 3)], strict=True))
WAYS = dict(zip(predict.memory.WAYS, [SHARED, *(COLOURS[i] for i in (5, 0, 2, 4, 1))], strict=True))


def memory(found, axes):
    """What each rank was counted to hold, a thin bar a rank: model states on the left, activations on the right.

    `found` is the JSON of scripts/lessons/shard_model.py. "gathered" is what FSDP has whole for a moment, on top of
    the rest.
    """
    y, ticks = 0, {}
    for way, result in found["ways"].items():
        ranks = result["ranks"][:1] if way == "one" else result.get("ranks", [])
        ticks[NAMES[way]] = y + (len(ranks) - 1) / 2
        for held in ranks:
            states = {part: held[part] / 1e6 for part in PARTS if held[part]}
            activations = {"activations": states.pop("activations", 0)}
            for ax, parts in zip(axes, (states, activations), strict=True):
                length = stack(ax, y, parts, PARTS, height=0.9)
                ax.text(length, y, f" {length:.2f}", va="center", fontsize=15)
            y += 1
        if not ranks:
            axes[0].text(0, y, f" {result['unsupported'][:60]}", va="center", color=WARNING)
            y += 1
        y += 0.7
    for ax in axes:
        name_rows(ax, ticks, ticks.values(), bottom=y - 1)
        ax.margins(x=0.13)
    axes[1].set_yticklabels([])
    axes[0].set(xlabel="MB a rank", title=f"Model states, {found['world_size']} ranks: a bar each")
    axes[1].set(xlabel="MB a rank", title="Activations")
    key_below(axes[0].figure, PARTS)
    return axes


def pieces(found, ways, names):
    """A figure: which rank has which piece of each weight (columns), under each way (rows). Drawn to scale."""
    shapes = [found["shapes"][name] for name in names]
    tallest = max(shape[0] for shape in shapes)
    size = 3.4 * len(names) + 2, 0.6 + 2.5 * len(ways)
    fig, axes = plt.subplots(len(ways), len(names), squeeze=False, figsize=size,
                             width_ratios=[max(shape[1], tallest / 3) for shape in shapes])
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


def states(rows, limit, ax):
    """Predicted bytes a device: {name: {part: bytes}}, stacked and dotted, and the device's memory as a line."""
    bars = [{part: size / 1e9 for part, size in parts.items()} for parts in rows.values()]
    key_below(ax.figure, stacked(ax, list(rows), bars, PARTS, "GB", predicted=range(len(rows))))
    ax.axvline(limit / 1e9, color="black", linewidth=3)
    ax.text(limit / 1e9, -0.62, f" {limit / 1e9:.0f} GB: a device ", va="bottom", ha="center", fontweight="bold")
    ax.set_xlabel("GB a device (predicted)")
    return ax


def grid(cluster_of, devices, parameters, **options):
    """[parameter][device] -> name of the way that predict.memory.choose takes, or None; `cluster_of(devices)`."""
    chosen = [[predict.memory.choose(size, cluster_of(count), **options)[0] for count in devices]
              for size in parameters]
    return [[plan and plan.way for plan in row] for row in chosen]


def chart(ways, devices, parameters, ax, title):
    """The map: a cell's colour is the way to choose; white: it does not fit. A large region has its name in it."""
    names = [None, *WAYS]
    numbers = [[names.index(way) for way in row] for row in ways]
    colours = ListedColormap(["white", *WAYS.values()])
    ax.pcolormesh(range(len(devices) + 1), range(len(parameters) + 1), numbers, cmap=colours, vmin=0,
                  vmax=len(names) - 1, edgecolors="white", linewidth=0.5)
    for number, name in enumerate(names):
        cells = [(x, y) for y, row in enumerate(numbers) for x, one in enumerate(row) if one == number]
        if len(cells) > 6:
            x, y = middle(cells)
            ax.text(x + 0.5, y + 0.5, (name or "does not fit").replace(" + ", "\n+ "), ha="center", va="center",
                    fontweight="bold", fontsize=15, rotation=90 if len({cell[0] for cell in cells}) == 1 else 0,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "boxstyle": "round,pad=0.15"})
    ax.set_xticks([x + 0.5 for x in range(0, len(devices), 2)], [f"{count:,}" for count in devices[::2]])
    marks = [(i, size) for i, size in enumerate(parameters) if abs(math.log10(size) % 1) < 1e-6]
    ax.set_yticks([i + 0.5 for i, _ in marks], [short(size) for _, size in marks])
    ax.grid(visible=False)
    ax.set(xlabel="devices", title=title)
    return ax


def legend(fig, *maps):
    """Below the maps: the colours of the ways that they choose."""
    used = {way for ways in maps for row in ways for way in row}
    key_below(fig, {way: colour for way, colour in WAYS.items() if way in used})


def middle(cells):
    """The cell of a region that is farthest from its edge, so that a name there stands inside."""
    region = set(cells)

    def room(cell):
        size = 0
        while all((cell[0] + dx, cell[1] + dy) in region for dx in (-size, size) for dy in (-2 * size, 2 * size)):
            size += 1
        return size, -abs(cell[0] - mean_x) - abs(cell[1] - mean_y) / 3

    mean_x, mean_y = (sum(axis) / len(cells) for axis in zip(*cells, strict=True))
    return max(cells, key=room)


def short(number):
    """"70 B" for 70e9."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= 0.999 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:g}"
