"""Lesson 08: what a step of several ranks is made of, when it pays, and far more ranks than there are here."""

from matplotlib.patches import Patch

from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, head, line_key, line_style, name_rows, percent, ticks


def staircase(parts, first, measured, ax, title):
    """Milliseconds of each part, a Series: a bar begins where the last one ended; one below 0 goes back, hatched.

    Below: their sum, what a `first` model predicted, and steps of main.py as `measured` in several runs, a Series.
    """
    left, most = 0.0, max(parts.sum(), first, measured.max())
    for y, width in enumerate(parts):
        ax.barh(y, width, left=left, height=0.7, facecolor=COLOURS[0], edgecolor="white",
                hatch="//" if width < 0 else None)
        ax.plot([left + width] * 2, [y, y + 1], color=GREY, linewidth=1)
        ax.text(max(left, left + width) + 0.01 * most, y, f"{width:+.2f}" if y else f"{width:.2f}", va="center",
                fontweight="bold")
        left += width
    predicted = {"facecolor": "white", "edgecolor": COLOURS[1], "linestyle": ":", "linewidth": 3}
    live = {"facecolor": COLOURS[2], "linestyle": "-"}
    others = {"sum of the parts": (left, predicted), "first model": (first, predicted),
              "main.py": (measured.median(), live)}
    for y, (ms, look) in enumerate(others.values(), start=len(parts)):
        ax.barh(y, ms, height=0.7, **look)
        end = max(ms, measured.max()) if look is live else ms
        ax.text(end + 0.02 * most, y, f"{ms:.2f}", va="center", fontweight="bold")
    ax.plot([measured.min(), measured.max()], [y, y], color="black", marker="|", markersize=14)
    name_rows(ax, [*parts.index, *others])
    ax.set_xlabel("milliseconds a step")
    ax.margins(x=0.1)
    head(ax, title, columns=2, key=[
        Patch(color=COLOURS[0], label="a part, measured"), Patch(label="predicted", **predicted),
        Patch(color=COLOURS[2], label="measured (median; line: all runs)")])
    return ax


def by_batch(measured, predictions, ceiling, ranks, ax, title):
    """Speed-up of `ranks` ranks against one, over the batch size of each rank.

    `measured`: a DataFrame with batch_size, speedup, low and high. `predictions`: {name: {batch size: speed-up}}.
    `ceiling`: a DataFrame as `measured`, of ranks that never talk; its band is what no training together can pass.
    """
    ax.fill_between(ceiling["batch_size"], ceiling["low"], ceiling["high"], color=PALE, zorder=0)
    ax.plot(ceiling["batch_size"], ceiling["speedup"], color=GREY, linewidth=2)
    ax.axhline(1, color="black", linewidth=2)
    ax.axhline(ranks, color=GREY, linewidth=2, linestyle="--")
    colour, batches = COLOURS[0], measured["batch_size"]
    ax.vlines(batches, measured["low"], measured["high"], color=colour)
    ax.plot(batches, measured["speedup"], **line_style(0, "live") | {"linestyle": "none", "markersize": 14})
    notes = [(x, y, f"{y:.2f}×", colour) for x, y in zip(batches, measured["speedup"], strict=True)]
    left, right = batches.min(), batches.max()
    ends = [(right, ceiling["speedup"].iloc[-1], "ceiling", GREY)]
    for y, name, side, dark in ((ranks, "nothing lost", "bottom", GREY), (1, "one process", "top", "#000000")):
        ax.text(left / 1.28, y, name, va=side, color=dark, fontweight="bold")
    for number, (name, curve) in enumerate(predictions.items(), start=1):
        ax.plot(list(curve), list(curve.values()), **line_style(number, "predicted") | {"marker": "", "linewidth": 4})
        ends.append((max(curve), curve[max(curve)], name, COLOURS[number]))
    ax.set_xscale("log", base=2)
    ticks(ax, sorted(batches))
    ax.set(xlabel="batch size of each rank", ylabel=f"images/s of {ranks} ranks / of one",
           xlim=(left / 1.3, right * 1.2), ylim=(0, 1.1 * max(ranks, ceiling["high"].max(), measured["high"].max())))
    head(ax, title, columns=2, key=[
        line_key("DDP, measured (median; line: all rounds)", **line_style(0, "live") | {"linestyle": "-"}),
        line_key("predicted", color=GREY, linestyle=":", linewidth=4)])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def to_many(bands, published, ax, title):
    """Efficiency against the number of GPUs: predicted bands, and the points that others have published.

    `bands`: {name: {GPUs: (lowest, highest efficiency)}}; `published`: the same names, {GPUs: efficiency}. 1 is the
    smallest point published, for both.
    """
    ends, lasts, lowest = [], [], []
    for number, (name, band) in enumerate(bands.items()):
        colour, points, gpus = COLOURS[number], published[name], list(band)
        lows, highs = zip(*band.values(), strict=True)
        ax.fill_between(gpus, lows, highs, color=colour, alpha=0.2, linewidth=0)
        for edge in (lows, highs):
            ax.plot(gpus, edge, color=colour, linestyle=":", linewidth=2.5)
        ends.append((gpus[-1], (lows[-1] + highs[-1]) / 2, f"{name}:\n{lows[-1]:.0%} to {highs[-1]:.0%}", colour))
        lowest += [*lows, *points.values()]
        last = max(points)
        lasts.append((last, points[last], f"published: {points[last]:.0%} on {last}", colour))
        ax.plot(list(points), list(points.values()), **line_style(number, "recorded") | {
            "linewidth": 1.5, "markersize": 14})
    ax.set_xscale("log", base=2)
    ticks(ax, sorted({gpus for band in bands.values() for gpus in band}), "{:,}")
    percent(ax)
    ax.set(xlabel="GPUs", ylabel="efficiency (%), against\nthe smallest run published",
           ylim=(min(lowest) - 0.1, 1.04))
    head(ax, title, columns=2, key=[
        Patch(facecolor=PALE, edgecolor=GREY, linestyle=":", linewidth=2.5, label="predicted by the model"),
        line_key("published elsewhere, not measured here", **line_style(0, "recorded", GREY))])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, lasts, BESIDE_A_POINT)
    return ax
