"""Lesson 08: what a message costs, what a step of several ranks is made of, how far a prediction was off, and published
series: the tables, sentences and pictures of the lesson."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatter, NullLocator

from course.compare import FEWEST, NOT_SHOWN, ratio
from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, halo, head, line_key, line_style, name_rows, percent, ticks
from course.predict.fit import BUS_FACTORS, size_name
from lessons.l08_performance.scaling import ddp_buckets

PARTS = ["a step alone", "slower together", "waiting", "all-reduce", "DDP itself"]
PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "recorded" / "published"

# ---------------------------------------------------------------- what a message costs


def _log_axes(ax, sizes, ylabel):
    ax.set(xscale="log", yscale="log", xlabel="message (bytes)", ylabel=ylabel)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_name(size)))
    ax.yaxis.set_major_formatter("{x:,.12g}")
    ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))  # as by default, but without powers of ten
    ax.xaxis.set_minor_locator(NullLocator())


def worst_error(predict: Callable, points: pd.DataFrame, known: list[tuple]) -> tuple[float, float]:
    """(bytes, predicted / measured - 1) where predict(bytes, known) is furthest off, among the points that it was not
    given."""
    others = points[~points["bytes"].isin([size for size, _ in known])]
    errors = {size: predict(size, known) / seconds - 1
              for size, seconds in zip(others["bytes"], others["seconds"], strict=True)}
    size = max(errors, key=lambda size: abs(errors[size]))
    return size, errors[size]


def time_by_size(points: pd.DataFrame, predict: Callable, known: list[tuple], name: str, ax: Axes, title: str) -> Axes:
    """Microseconds of each message, a DataFrame of message_time.py's points, and what predict(bytes, known) says, a
    line called `name`. `known`: the points that it is given, (bytes, seconds)."""
    sizes = points["bytes"].to_numpy()
    many = np.geomspace(sizes[0], sizes[-1], 100)
    given = points["bytes"].isin([size for size, _ in known])
    ax.vlines(sizes, 1e6 * points["low"], 1e6 * points["high"], color=COLOURS[0], linewidth=2)
    for rows, colour in ((points[~given], COLOURS[0]), (points[given], GREY)):
        ax.plot(rows["bytes"], 1e6 * rows["seconds"], "o", color=colour, markersize=13)
    bottom = 5e5 * points["low"].min()  # µs: a line through noise may fall below 0, which no logarithmic axis has
    line = [max(bottom, 1e6 * predict(size, known)) for size in many]
    ax.plot(many, line, ":", color=COLOURS[1], linewidth=4)
    size, error = worst_error(predict, points, known)
    measured = points.loc[points["bytes"] == size, "seconds"].item()
    ax.plot([size, size], [1e6 * measured, max(bottom, 1e6 * predict(size, known))], color="black", linewidth=2)
    _log_axes(ax, sizes[::2], "time (µs)")
    head(ax, title, columns=2, key=[
        line_key("measured (median; line: all rounds)", marker="o", linestyle="-", color=COLOURS[0]),
        line_key("measured, and given to the prediction", marker="o", linestyle="", color=GREY)])
    write_beside(ax, [(many[-1], line[-1], name, COLOURS[1])], BESIDE_AN_END)
    write_beside(ax, [(size, 1e6 * measured, f"worst: {error:+.0%}", "#000000")], BESIDE_A_POINT)
    return ax


def bus_bandwidth(points: pd.DataFrame, published: pd.DataFrame, name: str, ax: Axes) -> Axes:
    """busbw against the bytes of a message: `points` as above, called `name`, and those of `published`, a DataFrame
    with system, bytes and busbw (GB/s)."""
    curves = [(name, points["bytes"], points["busbw"] / 1e9, "live")]
    curves += [(system, of["bytes"], of["busbw"], "recorded") for system, of in published.groupby("system", sort=False)]
    ends = []
    for number, (name, sizes, busbw, source) in enumerate(curves):
        ax.plot(sizes, busbw, **line_style(number, source))
        ends.append((sizes.iloc[-1], busbw.iloc[-1], name, COLOURS[number]))
    _log_axes(ax, [2**10, 2**15, 2**20, 2**25, 2**30, 2**34], "busbw (GB/s)")
    head(ax, "Bus bandwidth of all-reduce", columns=2, key=[
        line_key("measured here", **line_style(0, "live", GREY)),
        line_key("published elsewhere", **line_style(0, "recorded", GREY))])
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


# ---------------------------------------------------------------- the parts of a step


def parts(points: list[dict]) -> pd.DataFrame:
    """A row for each batch size and round: the PARTS in seconds, their `sum`, and `ddp`, which the sum should be; also
    `side_by_side`, a step of ranks that never talk.

    `points` of step_time.py, of all its ways. A part is the difference of two measurements, so noise can make a small
    part negative. It stays so: a part cut off at 0 would be missing in the sum.
    """
    rounds = {(point["way"], point["batch_size"]): point["rounds"] for point in points}
    rows = []
    for batch in dict.fromkeys(point["batch_size"] for point in points):
        of_ways = [rounds[way, batch] for way in ("alone", "side_by_side", "silent", "ddp", "by_hand")]
        for number, (*others, by_hand) in enumerate(zip(*of_ways, strict=True)):
            alone, beside, silent, ddp = (seconds["step"] for seconds in others)
            own = by_hand["step"] - by_hand["wait"] - by_hand["all_reduce"]
            values = [alone, own - alone, by_hand["wait"], by_hand["all_reduce"], silent - beside]
            rows.append({"batch_size": batch, "round": number, **dict(zip(PARTS, values, strict=True)),
                         "sum": sum(values), "ddp": ddp, "side_by_side": beside})
    return pd.DataFrame(rows)


def between(table: pd.DataFrame, batch: float) -> pd.Series:
    """The PARTS, in seconds, at a batch size between those of the table: on the lines that join their medians."""
    medians = table.groupby("batch_size")[PARTS].median()
    if not medians.index.min() <= batch <= medians.index.max():
        raise ValueError(f"batch {batch} is not between the batch sizes that were timed: {list(medians.index)}")
    return pd.Series({part: float(np.interp(batch, medians.index, medians[part])) for part in PARTS}, name=batch)


def speedups(table: pd.DataFrame, ranks: int, way: str = "ddp") -> pd.DataFrame:
    """Images a second of so many ranks against one rank alone, with DDP or `side_by_side`: by the `pairs` of rounds the
    median ratio, `speedup`, and its interval from `low` to `high` (compare.ratio)."""
    return pd.DataFrame([(batch, *ratio(ranks * rounds["a step alone"], rounds[way]))
                         for batch, rounds in table.groupby("batch_size")],
                        columns=["batch_size", "speedup", "low", "high", "pairs"])


def parts_table(table):
    """A row for each batch size: medians of the parts, their sum, and by how much each round's own sum was off."""
    rows = []
    for batch, rounds in table.groupby("batch_size"):
        medians = 1e3 * rounds.median()
        rows.append({"batch of each rank": batch, **{f"{part}, ms": f"{medians[part]:.2f}" for part in PARTS},
                     "sum": f"{medians[PARTS].sum():.2f}", "DDP, measured": f"{medians['ddp']:.2f}",
                     "each round's sum is off by": span(rounds["sum"] / rounds["ddp"] - 1)})
    return rows


def errors_table(measured, ones, first, summed, alone, name):
    """A row for each prediction of main.py's step: its error over several runs. All in seconds: `measured` steps of
    several ranks and `ones` of one rank in the same minutes, Series; `first` and `summed`, predicted by the first
    model, which is called `name`, and with the parts; `alone`, predicted for one rank."""
    ratios = measured.to_numpy() / ones.to_numpy()
    rows = [{"prediction": name, "ms": f"{1e3 * predicted:.2f}", "off by": span(predicted / measured - 1),
             "off by, as a ratio to one rank": span(predicted / alone / ratios - 1)}
            for name, predicted in ((name, first), ("sum of the parts", summed))]
    return [*rows, {"prediction": "one rank alone", "ms": f"{1e3 * alone:.2f}", "off by": span(alone / ones - 1),
                    "off by, as a ratio to one rank": "–"}]


def worst_speedup(curve: dict[float, float], speedups: pd.DataFrame) -> float:
    """Predicted / measured - 1 at the batch size where the prediction is furthest off. `curve`: {batch: speed-up}."""
    predicted = np.interp(speedups["batch_size"], list(curve), list(curve.values()))
    return max(predicted / speedups["speedup"] - 1, key=abs)


def pays(speedups):
    """At which batch sizes several ranks were slower than one, or faster, or without a significant difference."""
    if speedups["pairs"].min() < FEWEST:
        return f"With fewer than {FEWEST} rounds no winner is named."
    batches, slower, faster = speedups["batch_size"], speedups["high"] < 1, speedups["low"] > 1
    kinds = {"DDP was slower than one process": slower, "No significant difference": ~(slower | faster),
             "DDP was faster": faster}
    return " ".join(f"{kind}: batch size {', '.join(map(str, batches[which]))}."
                    for kind, which in kinds.items() if which.any()) + f" {NOT_SHOWN}" * (not faster.any())


def smaller_batch(table):
    """Is the ceiling of the smallest batch "higher" or "lower" than that of the largest, or is there "no significant
    difference"? `table` of `parts`: each round has both."""
    ceiling = (table["a step alone"] / table["side_by_side"]).groupby(table["batch_size"]).apply(list)  # for each rank
    found = ratio(ceiling.iloc[0], ceiling.iloc[-1])
    return "no significant difference" if not found.significant else "higher" if found.low > 1 else "lower"


def smallest(speedups):
    """The smallest batch size from which on DDP was faster; None if it never was, or the rounds were too few to say."""
    slower = speedups.loc[(speedups["low"] <= 1) | (speedups["pairs"] < FEWEST), "batch_size"].max()
    faster = speedups.loc[~(speedups["batch_size"] <= slower), "batch_size"]  # all, if all were faster (NaN)
    return min(faster, default=None)


def span(errors):
    """"-3 % to +12 %"."""
    low, high = (f"{100 * value:+.0f} %" for value in (min(errors), max(errors)))
    return low if low == high else f"{low} to {high}"


def staircase(parts: pd.Series, first: float, measured: pd.Series, name: str, ax: Axes, title: str) -> Axes:
    """Milliseconds of each part, a Series: a bar begins where the last one ended; one below 0 goes back, hatched.

    Below: their sum, what a `first` model predicted, which is called `name`, and steps of main.py as `measured` in
    several runs, a Series.
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
    others = {"sum of the parts": (left, predicted), name: (first, predicted),
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

    `measured`: a DataFrame of `speedups`. `predictions`: {name: {batch size: speed-up}}.
    `ceiling`: a DataFrame as `measured`, of ranks that never talk: what no training together can pass.
    """
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
        ax.text(left / 1.28, y, name, va=side, color=dark, fontweight="bold", path_effects=halo())
    for number, (name, curve) in enumerate(predictions.items(), start=1):
        ax.plot(list(curve), list(curve.values()), **line_style(number, "predicted") | {"marker": "", "linewidth": 4})
        ends.append((max(curve), curve[max(curve)], name, COLOURS[number]))
    ax.set_xscale("log", base=2)
    ticks(ax, sorted(batches))
    ax.set(xlabel="batch size of each rank", ylabel=f"images/s of {ranks} ranks / of one",
           xlim=(left / 1.3, right * 1.2), ylim=(0, 1.1 * max(ranks, *ceiling["speedup"], *measured["high"])))
    head(ax, title, columns=2, key=[
        line_key("DDP, measured (median; line: its interval)", **line_style(0, "live") | {"linestyle": "-"}),
        line_key("predicted", color=GREY, linestyle=":", linewidth=4)])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


# ---------------------------------------------------------------- far more ranks than there are here


def series() -> dict[str, dict]:
    """{name: the figures of a published series of runs}; results/recorded/published/README.md has sources and units.

    Where they suffice for the model, also `step`, seconds of a step of the smallest run, and `buckets`, DDP's."""
    runs = json.loads((PUBLISHED / "scaling.json").read_text(encoding="utf-8"))
    for run in (run for run in runs.values() if "network" in run):
        run["step"] = run["batch_size"] * min(efficiency(run)) / run["images_per_second"]
        run["buckets"] = ddp_buckets(4 * run["parameters"])
    return runs


def efficiency(run: dict) -> dict[int, float]:
    """{GPUs: efficiency} as published; 1 at the smallest run."""
    return {int(gpus): reached for gpus, reached in run["efficiency"].items()}


def latencies(links: pd.DataFrame, message: int, one_node: str, all_nodes: str, nodes: int) -> tuple[float, float]:
    """(within, between): seconds that a message costs however short, in a node and between nodes.

    From the busbw of one short message of `message` bytes, in a table with `system`, `ranks`, `bytes` and `busbw`
    (GB/s): as if its whole time were the latencies of a ring within each node and of one over the nodes.
    """
    def seconds(system):
        row = links[(links["system"] == system) & (links["bytes"] == message)].iloc[0]
        return BUS_FACTORS["all_reduce"](row["ranks"]) * message / (1e9 * row["busbw"]), row["ranks"]

    (in_node, local), (in_all, _) = seconds(one_node), seconds(all_nodes)
    return in_node / (2 * (local - 1)), (in_all - in_node) / (2 * (nodes - 1))


def band(run: dict, step: Callable, latency: float, share: float, most: int = 1024) -> dict:
    """{GPUs: (lowest, highest efficiency)}, 1 at the smallest run. `step(run, GPUs, latency, share)`: a step's seconds.

    At the highest, messages between nodes cost nothing but their bytes. At the lowest each costs `latency` seconds,
    too, and the network reaches `share` of its nominal bandwidth.
    """
    gpus = smallest = min(efficiency(run))
    efficiencies = {}
    while gpus <= most:
        efficiencies[gpus] = tuple(step(run, smallest, *network) / step(run, gpus, *network)
                                   for network in ((latency, share), (0, 1)))
        gpus *= 2
    return efficiencies


def to_many(bands: dict, published: dict, ax: Axes, title: str) -> Axes:
    """Efficiency against the number of GPUs: predicted bands, and the points that others have published.

    `published`: {name: {GPUs: efficiency}}, 1 at the smallest run; `bands`, of some of these names: {name: {GPUs:
    (lowest, highest efficiency)}}.
    """
    ends, lasts = [], []
    for number, (name, points) in enumerate(published.items()):
        colour, band = COLOURS[number], bands.get(name, {})
        if band:
            gpus, (lows, highs) = list(band), zip(*band.values(), strict=True)
            ax.fill_between(gpus, lows, highs, color=colour, alpha=0.2, linewidth=0)
            ax.plot(gpus, highs, color=colour, linestyle=":", linewidth=4)
            ends.append((gpus[-1], highs[-1], f"{name}:\nat most {highs[-1]:.0%}", colour))
        last = max(points)
        lasts.append((last, points[last], f"{name}: {points[last]:.0%} on {last}", colour))
        ax.plot(list(points), list(points.values()), **line_style(number, "recorded") | {
            "linewidth": 1.5, "markersize": 14} | ({"linestyle": ""} if len(points) < 3 else {}))
    ax.set_xscale("log", base=2)
    ticks(ax, sorted({gpus for band in bands.values() for gpus in band}), "{:,}")
    percent(ax)
    ax.set(xlabel="GPUs", ylabel="efficiency (%), against\nthe smallest run published", ylim=(0, 1.06))
    head(ax, title, columns=2, key=[
        line_key("predicted: upper bound", color=GREY, linestyle=":", linewidth=4),
        line_key("published, not measured here", **line_style(0, "recorded", GREY) | {"linestyle": ""}),
        Patch(facecolor=PALE, label="predicted: a slower network")])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, lasts, BESIDE_A_POINT)
    return ax
