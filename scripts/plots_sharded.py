"""Pictures of notebook 13: what each rank holds, which piece of a weight is whose, and a map of which way to choose.

Counts are those of scripts/sharded.py, predictions those of scripts/memory_model.py: a predicted bar is dotted.
"""

import math

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.patches import Patch, Rectangle

from scripts import memory_model, plots

NAMES = {"one": "one process", "ddp": "DDP", "zero1": "ZeRO-1", "fsdp": "FSDP2", "tp": "TP", "fsdp_tp": "FSDP2 × TP",
         "gpipe": "pipeline, GPipe", "1f1b": "pipeline, 1F1B"}
PARTS = dict(zip([*memory_model.PARTS, "gathered"], [plots.COLOURS[i] for i in (0, 5, 2, 1, 3)], strict=True))
WAYS = dict(zip(memory_model.WAYS, ["#D9D9D9", *(plots.COLOURS[i] for i in (5, 0, 2, 4, 1))], strict=True))


def memory(found, axes):
    """What each rank was counted to hold, a thin bar a rank: model states on the left, activations on the right.

    `found` is the JSON of scripts/sharded.py. "gathered" is what FSDP has whole for a moment, on top of the rest.
    """
    y, ticks = 0, {}
    for way, result in found["ways"].items():
        ranks = result["ranks"][:1] if way == "one" else result.get("ranks", [])
        ticks[NAMES[way]] = y + (len(ranks) - 1) / 2
        for held in ranks:
            left = 0
            for part, colour in PARTS.items():
                if not held[part]:
                    continue
                ax, start = (axes[1], 0) if part == "activations" else (axes[0], left)
                ax.barh(y, held[part] / 1e6, left=start, color=colour, height=0.9, edgecolor="white", linewidth=1)
                left += 0 if part == "activations" else held[part] / 1e6
            axes[0].text(left, y, f" {left:.2f}", va="center", fontsize=15)
            axes[1].text(held["activations"] / 1e6, y, f" {held['activations'] / 1e6:.2f}", va="center", fontsize=15)
            y += 1
        if not ranks:
            axes[0].text(0, y, f" {result['unsupported'][:60]}", va="center", color=plots.WARNING)
            y += 1
        y += 0.7
    for ax in axes:
        ax.set_yticks(list(ticks.values()), list(ticks))
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.invert_yaxis()
        ax.margins(x=0.13)
    axes[1].set_yticklabels([])
    axes[0].set(xlabel="MB a rank", title=f"Model states, {found['world_size']} ranks: a bar each")
    axes[1].set(xlabel="MB a rank", title="Activations")
    legend = [Patch(color=colour, label=part) for part, colour in PARTS.items()]
    axes[0].figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
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
                colour = "#D9D9D9" if all_have_it else plots.COLOURS[ranks[0]]
                ax.add_patch(Rectangle((left, top), columns, rows, facecolor=colour, edgecolor="white", linewidth=3))
                told = "all" if all_have_it else " ".join(map(str, ranks))
                dark = not all_have_it and sum(to_rgb(colour)) < 1.7
                ax.text(left + columns / 2, top + rows / 2, told, ha="center", va="center", fontweight="bold",
                        fontsize=17, color="white" if dark else "black")
            ax.set(xlim=(-2, width + 2), ylim=(height + 2, -2), xticks=[], yticks=[], aspect="equal")
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
            if ax in axes[0]:
                ax.set_title(f"{name.removesuffix('.weight').replace('blocks.', 'block ').replace('.', ' ')}\n"
                             f"{height} × {width}", fontsize=16, loc="center")
        row[0].set_ylabel(NAMES[way], rotation=0, ha="right", va="center", fontweight="bold", labelpad=12)
    fig.suptitle(f"Which rank has which piece ({found['world_size']} ranks)", x=0.01, ha="left", fontweight="bold")
    return fig


def states(rows, limit, ax):
    """Predicted bytes a device: {name: {part: bytes}}, stacked and dotted, and the device's memory as a line."""
    for y, parts in enumerate(rows.values()):
        left = 0
        for part, size in parts.items():
            ax.barh(y, size / 1e9, left=left, height=0.7, facecolor=(*to_rgb(PARTS[part]), 0.55), edgecolor=PARTS[part],
                    linestyle=":", linewidth=2.5)
            left += size / 1e9
        ax.text(left, y, f"  {left:,.1f} GB", va="center", fontweight="bold")
    ax.axvline(limit / 1e9, color="black", linewidth=3)
    ax.text(limit / 1e9, -0.62, f" {limit / 1e9:.0f} GB: a device ", va="bottom", ha="center", fontweight="bold")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)
    ax.set_xlabel("GB a device (predicted)")
    used = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    ax.legend(handles=[Patch(facecolor=(*to_rgb(PARTS[part]), 0.55), edgecolor=PARTS[part], linestyle=":", label=part)
                       for part in used], loc="lower center", bbox_to_anchor=(0.45, -0.42), ncols=4, frameon=False)
    return ax


def grid(cluster_of, devices, parameters, **options):
    """[parameter][device] -> name of the way that memory_model.choose takes, or None; `cluster_of(devices)`."""
    chosen = [[memory_model.choose(size, cluster_of(count), **options)[0] for count in devices] for size in parameters]
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
    handles = [Patch(color=colour, label=way) for way, colour in WAYS.items() if way in used]
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


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
