"""Lesson 05: pictures of which rank sees which item, and of what repeated and dropped items do."""

import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, bare, colour_of, handles, head, line_key, line_style, name_rows, write_in

ROWS = {"padded": "padded", "dropped": "dropped", "Join": "Join", "Join, False": "Join, divided by the ranks left"}


def sampler_map(shards: list | dict, n: int, title="Which rank sees which item", workers=1) -> Axes:
    """A column for each of the items 0 to n - 1, and a row for each rank. For several epochs: a row for each epoch, a
    colour for each rank. For several loader `workers` of each rank: a row for each worker, a colour for each rank.

    `shards` is a list with the items of each rank (or worker), in its order; for several epochs {epoch: such a list}. A
    cell shows the item's turn in the shard. It is hatched if the item was seen before in this epoch.
    """
    rows = "epoch" if isinstance(shards, dict) else "rank"
    epochs = shards if rows == "epoch" else {0: shards}
    seen = pd.DataFrame([(epoch, rank, place, item) for epoch, of_ranks in epochs.items()
                         for rank, shard in enumerate(of_ranks) for place, item in enumerate(shard)],
                        columns=["epoch", "rank", "place", "item"]).sort_values(["place", "rank"])  # as they are dealt
    seen["again"] = seen.duplicated(["epoch", "item"])
    ys = {row: y for y, row in enumerate(shards if rows == "epoch" else range(len(shards)))}
    ax = plt.subplots(figsize=(14, 1.9 + 0.5 * len(ys)))[1]
    for (row, item), cell in seen.groupby([rows, "item"]):
        height = 0.9 / len(cell)  # an epoch's cell is shared by all ranks that see the item
        for slot, view in enumerate(cell.itertuples()):
            colour, bottom = colour_of(view.rank // workers), ys[row] - 0.45 + slot * height
            look = {"facecolor": "white", "hatch": "//"} if view.again else {"facecolor": colour}
            ax.add_patch(Rectangle((item - 0.45, bottom), 0.9, height, edgecolor=colour, linewidth=2, **look))
            if len(cell) == 1:
                write_in(ax, item, bottom + height / 2, ordinal(view.place + 1), look["facecolor"], fontsize=13)
    missed = {epoch: set(range(n)).difference(*of_ranks) for epoch, of_ranks in epochs.items()}
    for epoch, items in missed.items():
        for y in [ys[epoch]] if rows == "epoch" else ys.values():
            for item in items:
                write_in(ax, item, y, "×", "white", fontsize=22)
    ax.set(xlim=(-0.6, n - 0.4), ylim=(len(ys) - 0.4, -0.6), xlabel="item (in the cell: when its rank sees it)")
    ax.set_yticks(list(ys.values()), [f"{rows} {row // workers}" + f", worker {row % workers}" * (workers > 1)
                                      for row in ys])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=25, steps=[1, 5, 10]))
    bare(ax)
    ranks = sorted(seen["rank"].unique()) if rows == "epoch" else []
    key = handles({f"rank {rank}": colour_of(rank) for rank in ranks})
    if seen["again"].any():
        key.append(Patch(facecolor="white", edgecolor="black", hatch="//", label="seen again"))
    if any(missed.values()):
        key.append(line_key("seen by nobody", linestyle="", marker="x", color="black"))
    head(ax, title, key=key, columns=max(1, len(key)))
    return ax


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st: it cannot be taken for the number of an item."""
    return f"{number}{'th' if number // 10 % 10 == 1 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def stream_ways(results: dict) -> dict:
    """{way: what stream_readers.py --steps measured}: the whole stream, the learner's or ours, and torch's sampler."""
    names = {"whole": "every reader reads all", "mine": f"{results['whose']}: each item once",
             "sampler": "DistributedSampler"}
    return {name: results["trained"][way] for way, name in names.items()}


def stream_curves(results: dict) -> Axes:
    """Accuracy on test images by step, a line a way."""
    ax, ends = plt.subplots(figsize=(14, 6))[1], []
    for number, (name, way) in enumerate(stream_ways(results).items()):
        colour, points = (COLOURS[1], COLOURS[0], GREY)[number], len(way["accuracy"])
        steps = [results["steps"] * (point + 1) // points for point in range(points)]
        percent = [100 * share for share in way["accuracy"]]
        ax.plot(steps, percent, **line_style(number, colour=colour))
        ends.append((steps[-1], percent[-1], name, colour))
    ax.set(xlabel="steps", ylabel=f"test images right, %\n({results['dataset']})", ylim=(0, None),
           xlim=(0, 1.5 * results["steps"]), title="The same number of steps, and of images in each")
    ax.set_xticks([0, *steps])
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def stream_table(results: dict) -> list[dict]:
    return [{"way": name, "images computed": f"{way['images']:,}", "different images": f"{way['different']:,}",
             "seconds": f"{way['seconds']:.1f}", "test images right": f"{way['accuracy'][-1]:.1%}".replace("%", " %")}
            for name, way in stream_ways(results).items()]


def counts_map(counts: dict) -> Axes:
    """A row for each way of {way: how often each image counts}: orange where this is more than once, × where never."""
    ax = plt.subplots(figsize=(14, 1.7 + 0.62 * len(counts)))[1]
    for y, times in enumerate(counts.values()):
        for image, value in enumerate(times):
            often = round(value, 2)
            colour = "white" if often <= 0 else COLOURS[0] if often <= 1 else COLOURS[1]
            ax.add_patch(Rectangle((image - 0.45, y - 0.42), 0.9, 0.84, facecolor=colour, edgecolor="white"))
            write_in(ax, image, y, f"{often:g}×" if often > 0 else "×", colour)
    ax.set(xlim=(-0.6, max(map(len, counts.values())) - 0.4), xlabel="image")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=25, steps=[1, 5, 10]))
    bare(ax)
    name_rows(ax, [textwrap.fill(name, 20) for name in counts])
    key = [Patch(color=COLOURS[0], label="once"), Patch(color=COLOURS[1], label="more than once"),
           line_key("never", linestyle="", marker="x", color="black")]
    head(ax, "How often each image counts in the gradient", key=key, columns=3)
    return ax


def averages(results: dict) -> list[dict]:
    """A row for each way of uneven_shards.py: its mean loss and average gradient against those of one process."""
    def off(value):
        return f"{100 * (value / results['loss'] - 1):+.1f} %".replace("-0.0", "0.0").replace("+0.0", "0.0")

    rows = [{"way": "one process, each image once", "images": results["images"], "mean loss": f"{results['loss']:.4f}",
             "its error": "–", "mean of the ranks' means, error": "–", "average gradient, error": "–"}]
    for way, name in ROWS.items():
        losses = results[way]["losses"]
        mean = sum(map(sum, losses)) / sum(map(len, losses))
        mean_of_means = sum(sum(of_rank) / len(of_rank) for of_rank in losses) / len(losses)
        rows.append({"way": name, "images": sum(map(len, losses)), "mean loss": f"{mean:.4f}", "its error": off(mean),
                     "mean of the ranks' means, error": off(mean_of_means),
                     "average gradient, error": f"{results[way]['gradient_off']:.0%}".replace("%", " %")})
    return rows
