"""Lesson 05: pictures of which rank sees which item, and of accuracies that count other images than they should."""

import re

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from course.one_process import Answer
from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, bare, colour_of, darker, handles, head, line_key, name_rows, write_in


def sampler_map(shards: list | dict, n: int, title="Which rank sees which item", order: list | None = None) -> Axes:
    """A column for each of the items 0 to n - 1, and a row for each rank. For several epochs: a row for each epoch, a
    colour for each rank.

    `shards` is a list with the items of each rank, in its order; for several epochs {epoch: such a list}. A cell shows
    the item's turn in the shard. It is hatched if the item was seen before in this epoch. `order`: of the columns, if
    it is not 0, 1, 2 ...
    """
    rows = "epoch" if isinstance(shards, dict) else "rank"
    epochs = shards if rows == "epoch" else {0: shards}
    columns = {item: column for column, item in enumerate(order or range(n))}
    seen = pd.DataFrame([(epoch, rank, place, item) for epoch, of_ranks in epochs.items()
                         for rank, shard in enumerate(of_ranks) for place, item in enumerate(shard)],
                        columns=["epoch", "rank", "place", "item"]).sort_values(["place", "rank"])  # as they are dealt
    seen["again"] = seen.duplicated(["epoch", "item"])
    ys = {row: y for y, row in enumerate(shards if rows == "epoch" else range(len(shards)))}
    ax = plt.subplots(figsize=(14, 1.9 + 0.5 * len(ys)))[1]
    for (row, item), cell in seen.groupby([rows, "item"]):
        height = 0.9 / len(cell)  # an epoch's cell is shared by all ranks that see the item
        for slot, view in enumerate(cell.itertuples()):
            colour, bottom = colour_of(view.rank), ys[row] - 0.45 + slot * height
            look = {"facecolor": "white", "hatch": "//"} if view.again else {"facecolor": colour}
            ax.add_patch(Rectangle((columns[item] - 0.45, bottom), 0.9, height, edgecolor=colour, linewidth=2, **look))
            if len(cell) == 1:
                write_in(ax, columns[item], bottom + height / 2, ordinal(view.place + 1), look["facecolor"],
                         fontsize=13)
    missed = {epoch: set(range(n)).difference(*of_ranks) for epoch, of_ranks in epochs.items()}
    for epoch, items in missed.items():
        for y in [ys[epoch]] if rows == "epoch" else ys.values():
            for item in items:
                write_in(ax, columns[item], y, "×", "white", fontsize=22)
    ax.set(xlim=(-0.6, n - 0.4), ylim=(len(ys) - 0.4, -0.6), xlabel="item (in the cell: when its rank sees it)")
    ax.set_yticks(list(ys.values()), [f"{rows} {row}" for row in ys])
    if order:
        ax.set_xticks(range(n), order)
        ax.set_xlabel("item, in the order of one process (in the cell: when its rank sees it)")
    else:
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


def accuracies(counted: dict) -> Axes:
    """A row for each way to evaluate: the accuracy that it prints, beside the line of one process.

    `counted`: shares from 0 to 1: "truth" (one process), "own" (a list, of each rank's own images), "mean of means",
    "padded", "dropped", and "evaluate" {number of ranks: of the function}; "whose" that is, "yours" or "ours".
    """
    truth, counts = 100 * counted["truth"], list(counted["evaluate"])
    judged = f"evaluate ({counted['whose']}), on\n{', '.join(counts[:-1])} and {counts[-1]} ranks"
    rows = {"each rank,\nits own images": counted["own"], "mean of the\nranks' accuracies": [counted["mean of means"]],
            "padded": [counted["padded"]], "dropped": [counted["dropped"]],
            judged: [*counted["evaluate"].values()]}
    ax, notes = plt.subplots(figsize=(14, 6.5))[1], []
    ax.axvline(truth, color="black", zorder=1)
    for y, shares in enumerate(rows.values()):
        colour, percent = COLOURS[2] if y == len(rows) - 1 else COLOURS[1], [100 * share for share in shares]
        heights = [y] * len(percent) if y else [-0.2 * percent[:rank].count(each) for rank, each in enumerate(percent)]
        ax.plot(percent, heights, "o", color=colour, markersize=14, markeredgecolor="white", clip_on=False)
        off = max(percent, key=lambda value: abs(value - truth)) - truth
        exact = "exact" if abs(off) < 1e-6 else f"{off:+.2f} points".replace("-", "−")
        if y:
            notes.append((percent[0], y, exact, colour))
        else:
            ax.annotate("rank 0", (percent[0], y), (0, -14), textcoords="offset points", ha="center", va="top",
                        color=darker(colour), fontweight="bold")
    name_rows(ax, list(rows))
    ax.set_xlabel(f"accuracy that is printed, %, on {counted['images']} test images")
    head(ax, "One model, and what is printed of it", key=[line_key("one process", color="black")])
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def same_training(answers: list[Answer]) -> list[dict]:
    """A row for each number of ranks: what mine/train.py printed of its epochs, and whether its weights are those of
    one process."""
    rows = []
    for answer in answers:
        epochs = re.findall(r"^epoch (\d+): loss (\S+), accuracy (\S+),", answer.printed, re.M)
        rows.append({"ranks": answer.ranks} | {f"epoch {epoch}": f"loss {loss}, accuracy {accuracy}"
                                               for epoch, loss, accuracy in epochs}
                    | {"equal to one process": "–" if answer.ranks == 1 else "yes" if answer.equal else "no"})
    return rows
