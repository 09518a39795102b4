"""Lesson 15: how fast ways that talk less are, and what they learn."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, PREDICTED, handles, head, key_below, line_key, line_style, name_rows


def fast_and_good(ways, forecast, title: str) -> Figure:
    """A line a way. Left: images a second, in percent of ranks that never talk; right: test accuracy after the same
    images, and DDP's band. `ways` has name, share, low, high, accuracy, sd and synthetic; `forecast` name and share."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(18, 3 + 0.65 * len(ways)), sharey=True)
    expected, ddp = forecast.set_index("name")["share"], ways.set_index("name").loc["DDP"]
    left.axvline(100, color=GREY, linewidth=2, zorder=1)
    right.axvspan(ddp["accuracy"] - ddp["sd"], ddp["accuracy"] + ddp["sd"], color=PALE, zorder=0, linewidth=0)
    for y, row in enumerate(ways.itertuples(index=False)):
        left.plot([100 * row.low, 100 * row.high], [y, y], color=COLOURS[0], linewidth=2)
        left.plot(100 * row.share, y, "o", color=COLOURS[0], markersize=13)
        if row.name in expected:
            left.plot(100 * expected[row.name], y, **PREDICTED)
        right.plot([row.accuracy - row.sd, row.accuracy + row.sd], [y, y], color=COLOURS[2], linewidth=4)
        right.plot(row.accuracy, y, "s", color=COLOURS[2], markersize=12)
        right.text(1.02, y, f"{row.accuracy:.3f}", va="center", transform=right.get_yaxis_transform())
    name_rows(left, ways["name"])
    left.set(xlabel="images a second, % of ranks that never talk")
    head(left, title, ways.rename(columns={"name": "label"}), key=[])
    right.set(xlabel="test accuracy after the same images")
    key_below(fig, [line_key("predicted", **PREDICTED),
                    line_key("measured: median, all rounds", marker="o", color=COLOURS[0], markersize=13),
                    line_key("mean and deviation of the seeds", marker="s", color=COLOURS[2], markersize=12),
                    *handles({"DDP's deviation": PALE})])
    return fig


def by_time(rounds, names, ax: Axes, title: str) -> Axes:
    """Test accuracy by seconds of training, of the ways with these names: the mean over the seeds of each round."""
    means = rounds.groupby(["name", "round"], sort=False)[["elapsed", "accuracy"]].mean()
    notes = []
    for number, name in enumerate(names):
        of_way = means.loc[name]
        style = line_style(number)
        ax.plot(of_way["elapsed"], of_way["accuracy"], **style)
        notes.append((of_way["elapsed"].iloc[-1], of_way["accuracy"].iloc[-1], name, style["color"]))
    ax.set(xlabel="seconds of training (a marker is a round)", ylabel="test accuracy", xlim=(0, None))
    head(ax, title, rounds.rename(columns={"name": "label"}), key=[])
    write_beside(ax, notes, BESIDE_AN_END)
    return ax
