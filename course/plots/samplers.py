"""Which rank sees which item of a data set."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from course.plots.style import bare, colour_of, handles, head, line_key, write_in
from course.plots.tables import need


def sampler_map(df: pd.DataFrame, ax: Axes | None = None, rows="rank", title="Which rank sees which item") -> Axes:
    """A column an item, a row a rank; with `rows="epoch"` a row an epoch, and the ranks are colours.

    `df` has a line each time an item is seen: `epoch`, `rank`, `item`, and `place`, the item's place in the rank's
    shard, which is written into the cell. What is seen again in an epoch is hatched. An item that nobody sees has a
    line without `rank`, a rank that sees nothing a line without `item`.
    """
    need(df, "item")
    if rows == "rank" and df["epoch"].nunique() > 1:
        raise ValueError('nothing to draw: there are several epochs; choose one, or rows="epoch"')
    ax = ax or plt.subplots()[1]
    seen = df.dropna(subset=["rank", "item"]).sort_values(["place", "rank"])  # the order in which they are dealt
    seen = seen.assign(again=seen.duplicated(["epoch", "item"]))
    missed = df[df["rank"].isna()]
    ys = {value: y for y, value in enumerate(sorted(df[rows].dropna().unique()))}
    last = int(df["item"].max())
    for (line, item), cell in seen.groupby([rows, "item"]):
        height = 0.9 / len(cell)  # an epoch's cell is shared by all ranks that see the item
        for slot, view in enumerate(cell.itertuples()):
            colour, bottom = colour_of(view.rank), ys[line] - 0.45 + slot * height
            look = {"facecolor": "white", "hatch": "//"} if view.again else {"facecolor": colour}
            ax.add_patch(Rectangle((item - 0.45, bottom), 0.9, height, edgecolor=colour, linewidth=2, **look))
            if last < 42 and len(cell) == 1:
                write_in(ax, item, bottom + height / 2, f"{view.place:.0f}", look["facecolor"],
                         fontsize=17 if last < 25 else 12)
    for item, epoch in zip(missed["item"], missed["epoch"], strict=True):
        for y in [ys[epoch]] if rows == "epoch" else ys.values():
            write_in(ax, item, y, "×", "white", fontsize=22)
    ax.set(xlim=(-0.6, last + 0.6), ylim=(len(ys) - 0.4, -0.6), xlabel="item (in the cell: place in the shard)")
    ax.set_yticks(list(ys.values()), [f"{rows} {value:.0f}" for value in ys])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=25, steps=[1, 5, 10]))
    bare(ax)
    ranks = sorted(seen["rank"].unique()) if rows == "epoch" else []
    key = handles({f"rank {rank:.0f}": colour_of(rank) for rank in ranks})
    if seen["again"].any():
        key.append(Patch(facecolor="white", edgecolor="black", hatch="//", label="seen again (padding)"))
    if not missed.empty:
        key.append(line_key("seen by nobody", linestyle="", marker="x", color="black"))
    head(ax, title, df, key, columns=max(1, len(key)))
    return ax
