"""Pictures of notebook 08: predictions beside measurements, where DDP loses, and far more ranks than there are here.

As in scripts/plots.py: measured is solid and filled, published elsewhere hollow and dashed, predicted dotted.
"""

import math

import numpy as np
from matplotlib import patheffects
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator, PercentFormatter

from scripts import plots

AIM = 0.15  # relative error that the course hopes for
PARTS = {"a step alone": plots.COLOURS[0], "slower together": plots.COLOURS[5],
         "waiting for the other": plots.COLOURS[3], "all-reduce": plots.COLOURS[1], "the whole step": plots.GREY}
MEASURED, PREDICTED = plots.COLOURS[0], [plots.COLOURS[1], plots.COLOURS[2]]
# From orange (DDP is slower) through white (as fast as one process) to blue; its ends differ in lightness, too.
FASTER = LinearSegmentedColormap.from_list("slower to faster", ["#B04A00", "#F2B98A", "#FFFFFF", "#9CCBE8", "#005A96"])


def overlay(measured, predictions, ax, title):
    """Seconds an epoch for each world size, with the error of each prediction in percent of the measured time.

    `measured`: {world size: (seconds, fastest, slowest epoch)}; `predictions`: {name: {world size: seconds}}, two at
    most. The grey box is the measured time, AIM up and down.
    """
    places = {ranks: x for x, ranks in enumerate(measured)}
    text = {"textcoords": "offset points", "fontsize": 16, "fontweight": "bold",
            "path_effects": [patheffects.withStroke(linewidth=4, foreground="white")]}  # lines pass behind it
    for ranks, (seconds, low, high) in measured.items():
        x = places[ranks] - 0.12  # the three stand side by side, so that none hides another
        ax.add_patch(Rectangle((x - 0.3, (1 - AIM) * seconds), 0.84, 2 * AIM * seconds, color="#E8E8E8", zorder=0))
        ax.vlines(x, low, high, color=MEASURED, linewidth=3)
        ax.plot(x, seconds, "o", color=MEASURED, markersize=14)
        ax.annotate(f"{seconds:.2f} s", (x, seconds), (-12, 0), ha="right", va="center", color=MEASURED, **text)
    handles = [Line2D([], [], marker="o", color=MEASURED, markersize=12, label="measured (line: fastest to slowest)")]
    for number, (name, seconds) in enumerate(predictions.items()):
        colour, marker = PREDICTED[number], plots.MARKERS[1 + number]
        look = {"marker": marker, "color": colour, "markerfacecolor": "white", "linestyle": ":"}
        xs = [places[ranks] + 0.18 * number for ranks in seconds]
        ax.plot(xs, list(seconds.values()), markersize=12, **look)
        handles.append(Line2D([], [], label=name, **look))
        for x, (ranks, predicted) in zip(xs, seconds.items(), strict=True):
            ax.annotate(f"{predicted / measured[ranks][0] - 1:+.0%}", (x, predicted), (0, (-16, 14)[number]),
                        ha="center", va=("top", "bottom")[number], color=colour, **text)
    handles.append(Patch(color="#E8E8E8", label=f"measured ± {AIM:.0%}"))
    top = max(*(high for _, _, high in measured.values()), *(max(found.values()) for found in predictions.values()))
    ax.set(xlabel="world size (ranks)", xlim=(-0.75, len(places) - 0.4), ylabel="seconds an epoch", ylim=(0, 1.2 * top))
    ax.set_xticks(list(places.values()), [str(ranks) for ranks in places])
    ax.grid(axis="x", visible=False)
    ax.legend(handles=handles, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=16,
              borderaxespad=0.2)
    ax.set_title(title, pad=14 + 26 * math.ceil(len(handles) / 2))
    return ax


def parts(bars, ax, title):
    """A bar for each (name, whether it was measured, {part of PARTS: milliseconds}): what a step is made of.

    What is predicted is pale, with a dotted edge.
    """
    widest = max(sum(of_bar.values()) for _, _, of_bar in bars)
    for y, (_, is_measured, of_bar) in enumerate(bars):
        left = 0.0
        for part, width in of_bar.items():
            ax.barh(y, width, left=left, height=0.6, edgecolor="white" if is_measured else PARTS[part],
                    facecolor=(PARTS[part], 1.0 if is_measured else 0.35), linestyle="-" if is_measured else ":",
                    linewidth=1 if is_measured else 3)
            if width > 0.06 * widest:
                ax.text(left + width / 2, y, f"{width:.1f}", ha="center", va="center", fontsize=16, fontweight="bold",
                        color="white" if is_measured else "black")
            left += width
        ax.text(left, y, f"  {left:.1f} ms", va="center", fontweight="bold")
    ax.set_yticks(range(len(bars)), [f"{name}\n({'measured' if is_measured else 'predicted'})"
                                     for name, is_measured, _ in bars])
    ax.set(ylim=(len(bars) - 0.5, -0.5), xlim=(0, 1.15 * widest), xlabel="milliseconds a step")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    names = [part for part in PARTS if any(part in of_bar for _, _, of_bar in bars)]
    ax.legend(handles=[Patch(color=PARTS[part], label=part) for part in names], ncols=3, loc="lower left",
              bbox_to_anchor=(0, 1), frameon=False, fontsize=16, borderaxespad=0.2)
    ax.set_title(title, pad=14 + 26 * math.ceil(len(names) / 3))
    return ax


def heat_map(rows, ax, title):
    """Speed-up against one process: a column a world size, a row a batch size of each rank.

    `rows`: dicts with `world_size`, `batch_size`, `speedup` and `measured`, one for each cell. A measured cell has a
    thick solid frame and bold figures, a predicted one a dotted frame, hatching and the word.
    """
    worlds, batches = (sorted({row[name] for row in rows}) for name in ("world_size", "batch_size"))
    most = max(abs(math.log2(row["speedup"])) for row in rows)
    shade = Normalize(-max(most, 0.5), max(most, 0.5))
    for row in sorted(rows, key=lambda row: row["measured"]):  # thick frames last, on top
        x, y = worlds.index(row["world_size"]), batches.index(row["batch_size"])
        colour = FASTER(shade(math.log2(row["speedup"])))
        ax.add_patch(Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, facecolor=colour,
                               hatch=None if row["measured"] else "..", edgecolor="black" if row["measured"]
                               else plots.GREY, linestyle="-" if row["measured"] else ":",
                               linewidth=4 if row["measured"] else 2))
        dark = np.dot(colour[:3], [0.30, 0.59, 0.11]) < 0.5
        halo = [patheffects.withStroke(linewidth=5, foreground=colour)]
        ax.text(x, y - 0.08, f"{row['speedup']:.2f}×", ha="center", va="center", color="white" if dark else "black",
                fontsize=20, fontweight="bold" if row["measured"] else "normal", path_effects=halo)
        said = ("measured" if row["measured"] else "predicted") + (", slower" if row["speedup"] < 1 else "")
        ax.text(x, y + 0.24, said, ha="center", va="center", color="white" if dark else "black", fontsize=14,
                path_effects=halo)
    ax.set(xlim=(-0.5, len(worlds) - 0.5), ylim=(-0.5, len(batches) - 0.5), xlabel="world size (ranks)",
           ylabel="batch size of each rank")
    ax.set_xticks(range(len(worlds)), worlds)
    ax.set_yticks(range(len(batches)), batches)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_title(title)
    return ax


def to_many(predicted, published, ax, title):
    """Efficiency against the number of GPUs: predicted curves, and the points that others have published.

    `predicted`: {name: {GPUs: efficiency}}; `published`: the same names, {GPUs: efficiency}. 1 is the smallest point
    published, for both.
    """
    sizes = sorted({gpus for curve in predicted.values() for gpus in curve})
    below = math.inf
    labels = {}  # heights of the names at the right end, kept apart
    for name in sorted(predicted, key=lambda name: -predicted[name][max(predicted[name])]):
        below = labels[name] = min(below - 0.05, predicted[name][max(predicted[name])] + 0.02)
    for number, (name, curve) in enumerate(predicted.items()):
        colour, marker, points = plots.COLOURS[number], plots.MARKERS[number], published[name]
        ax.plot(list(curve), list(curve.values()), ":", color=colour, linewidth=4)
        ax.plot(list(points), list(points.values()), "--", marker=marker, color=colour, markerfacecolor="white",
                linewidth=1.5, markersize=14)
        ax.annotate(f"{name}: {curve[max(curve)]:.0%}", (max(curve), labels[name]), (12, 0), va="center",
                    textcoords="offset points", fontsize=16, fontweight="bold", color=colour)
        last = max(points)
        ax.annotate(f"published: {points[last]:.0%} on {last}", (last, points[last]), (0, -14), ha="center", va="top",
                    textcoords="offset points", fontsize=16, fontweight="bold", color=colour,
                    path_effects=[patheffects.withStroke(linewidth=4, foreground="white")])
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    ax.set(xlabel="GPUs", ylabel="efficiency (%), against the smallest run published", ylim=(0, 1.08))
    ax.legend(handles=[Line2D([], [], linestyle=":", color=plots.GREY, linewidth=4, label="predicted by the model"),
                       Line2D([], [], linestyle="--", marker="o", color=plots.GREY, markerfacecolor="white",
                              label="published elsewhere, not measured here")], loc="lower left", frameon=False)
    ax.set_title(title)
    return ax
