"""Lesson 08: predictions beside measurements, where DDP loses, and far more ranks than there are here."""

import math

from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Patch, Rectangle

from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, bare, head, line_key, line_style, percent, stacked, ticks, write_in

AIM = 0.15  # relative error that the course hopes for
PARTS = {"a step alone": COLOURS[0], "slower together": COLOURS[5], "waiting for the other": COLOURS[3],
         "all-reduce": COLOURS[1], "the whole step": GREY}
# From orange (DDP is slower) through white (as fast as one process) to blue; its ends differ in lightness, too.
FASTER = LinearSegmentedColormap.from_list("slower to faster", ["#B04A00", "#F2B98A", "#FFFFFF", "#9CCBE8", "#005A96"])


def overlay(measured, predictions, ax, title):
    """Seconds an epoch for each world size, with the error of each prediction in percent of the measured time.

    `measured`: {world size: (seconds, fastest, slowest epoch)}; `predictions`: {name: {world size: seconds}}, two at
    most. The grey box is the measured time, AIM up and down.
    """
    places = {ranks: x for x, ranks in enumerate(measured)}
    for ranks, (seconds, low, high) in measured.items():
        x = places[ranks] - 0.12  # the three stand side by side, so that none hides another
        ax.bar(places[ranks], 2 * AIM * seconds, 0.84, (1 - AIM) * seconds, color=PALE, zorder=0)
        ax.vlines(x, low, high, color=COLOURS[0], linewidth=3)
        ax.plot(x, seconds, "o", color=COLOURS[0], markersize=14)
        write_beside(ax, [(x, seconds, f"{seconds:.2f} s", COLOURS[0])], [(-12, 0, "right", "center")])
    key = [line_key("measured (line: fastest to slowest)", marker="o", color=COLOURS[0], markersize=12)]
    for number, (name, predicted) in enumerate(predictions.items()):
        style = line_style(1 + number, "predicted")
        xs = [places[ranks] + 0.18 * number for ranks in predicted]
        ax.plot(xs, list(predicted.values()), markersize=12, **style)
        key.append(line_key(name, **style))
        errors = [(x, y, f"{y / measured[ranks][0] - 1:+.0%}", style["color"])
                  for x, (ranks, y) in zip(xs, predicted.items(), strict=True)]
        write_beside(ax, errors, [((0, -16, "center", "top"), (0, 14, "center", "bottom"))[number]])
    key.append(Patch(color=PALE, label=f"measured ± {AIM:.0%}"))
    ax.set(xlabel="world size (ranks)", xlim=(-0.75, len(places) - 0.4), ylabel="seconds an epoch",
           ylim=(0, 1.15 * ax.dataLim.y1))
    ax.set_xticks(list(places.values()), list(places))
    ax.grid(axis="x", visible=False)
    head(ax, title, key=key, columns=2)
    return ax


def parts(bars, ax, title):
    """A bar for each (name, whether it was measured, {part of PARTS: milliseconds}): what a step is made of."""
    names = [f"{name}\n({'measured' if is_measured else 'predicted'})" for name, is_measured, _ in bars]
    predicted = [y for y, (_, is_measured, _) in enumerate(bars) if not is_measured]
    key = stacked(ax, names, [of_bar for _, _, of_bar in bars], PARTS, "milliseconds a step", "ms", predicted)
    head(ax, title, key=key, columns=3)
    return ax


def heat_map(rows, ax, title):
    """Speed-up against one process: a column a world size, a row a batch size of each rank.

    `rows`: dicts with `world_size`, `batch_size`, `speedup` and `measured`, one for each cell. A measured cell has a
    thick solid frame and bold figures, a predicted one a dotted frame, hatching and the word.
    """
    worlds, batches = (sorted({row[name] for row in rows}) for name in ("world_size", "batch_size"))
    most = max(0.5, *(abs(math.log2(row["speedup"])) for row in rows))
    shade = Normalize(-most, most)
    for row in sorted(rows, key=lambda row: row["measured"]):  # thick frames last, on top
        x, y = worlds.index(row["world_size"]), batches.index(row["batch_size"])
        colour = FASTER(shade(math.log2(row["speedup"])))
        said, weight = "predicted", "normal"
        frame = {"edgecolor": GREY, "linestyle": ":", "linewidth": 2, "hatch": ".."}
        if row["measured"]:
            said, weight = "measured", "bold"
            frame = {"edgecolor": "black", "linestyle": "-", "linewidth": 4}
        ax.add_patch(Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, facecolor=colour, **frame))
        write_in(ax, x, y - 0.08, f"{row['speedup']:.2f}×", colour, fontsize=20, fontweight=weight)
        said += ", slower" if row["speedup"] < 1 else ""
        write_in(ax, x, y + 0.24, said, colour, fontsize=14, fontweight="normal")
    ax.set(xlim=(-0.5, len(worlds) - 0.5), ylim=(-0.5, len(batches) - 0.5), xlabel="world size (ranks)",
           ylabel="batch size of each rank", title=title)
    ax.set_xticks(range(len(worlds)), worlds)
    ax.set_yticks(range(len(batches)), batches)
    bare(ax)
    return ax


def to_many(predicted, published, ax, title):
    """Efficiency against the number of GPUs: predicted curves, and the points that others have published.

    `predicted`: {name: {GPUs: efficiency}}; `published`: the same names, {GPUs: efficiency}. 1 is the smallest point
    published, for both.
    """
    ends, lasts = [], []
    model, elsewhere = {"linestyle": ":", "linewidth": 4}, {"linewidth": 1.5, "markersize": 14}
    for number, (name, curve) in enumerate(predicted.items()):
        colour, points = COLOURS[number], published[name]
        end, last = max(curve), max(points)
        ends.append((end, curve[end], f"{name}: {curve[end]:.0%}", colour))
        lasts.append((last, points[last], f"published: {points[last]:.0%} on {last}", colour))
        ax.plot(list(curve), list(curve.values()), color=colour, **model)
        ax.plot(list(points), list(points.values()), **line_style(number, "recorded"), **elsewhere)
    ax.set_xscale("log", base=2)
    ticks(ax, sorted({gpus for curve in predicted.values() for gpus in curve}), "{:,}")
    percent(ax)
    ax.set(xlabel="GPUs", ylabel="efficiency (%), against the smallest run published", ylim=(0, 1.08), title=title)
    ax.legend(loc="lower left", frameon=False, handles=[
        line_key("predicted by the model", color=GREY, **model),
        line_key("published elsewhere, not measured here", **line_style(0, "recorded", GREY))])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, lasts, BESIDE_A_POINT)
    return ax
