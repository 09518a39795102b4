"""Lesson 08: its tables and pictures."""

from collections.abc import Callable
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.compare import Ratio, ratio
from course.dial import bits
from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, bare, halo, head, line_key, line_style, name_rows, percent, ticks
from course.predict.fit import size_name

# ---------------------------------------------------------------- first sitting


def two_consoles(one: pd.DataFrame, eight: pd.DataFrame) -> list[Axes]:
    """The two consoles of a tutorial: seconds of each epoch, and the accuracies as printed; eight's once more, × 8."""
    left, right = plt.subplots(1, 2, figsize=(18, 6.5))[1]
    lines = [("one GPU", one, 1), ("eight GPUs", eight, 1), ("eight GPUs, × 8", eight, 8)]
    notes: list[list[tuple]] = [[], []]
    for number, (name, run, times) in enumerate(lines):
        style = line_style(number, "recorded")
        for ax, values, ends in ((left, run["seconds"], notes[0]), (right, times * run["accuracy"], notes[1])):
            if ax is right or times == 1:
                ax.plot(run["epoch"], values, **style)
                ends.append((run["epoch"].iloc[-1], values.iloc[-1], name, style["color"]))
    percent(right)
    for ax, label, title, ends in ((left, "seconds", "Seconds per epoch", notes[0]),
                                   (right, "accuracy (%)", "Accuracy, as printed", notes[1])):
        ax.set(xlabel="epoch", ylabel=label, ylim=(0, None), xlim=(-0.3, 12.5))
        ticks(ax, range(10))
        head(ax, f"{title} (published)", key=[])
        write_beside(ax, ends, BESIDE_AN_END)
    return [left, right]


def compared(speeds: list[dict]) -> dict[int, tuple[Ratio, Ratio]]:
    """{ranks: (ceiling, speed-up)} of losses.py: processes that never communicate, and DDP, against one process."""
    rounds = {(each["way"], each["ranks"]): each["rounds"] for each in speeds}
    alone = rounds["alone", 1]
    return {ranks: (ratio(rounds["apart", ranks], alone), ratio(rounds["ddp", ranks], alone))
            for way, ranks in rounds if way == "ddp"}


def losses(measured: dict[int, tuple[Ratio, Ratio]], speeds: list[dict], devices: int) -> list[dict]:
    """From the ideal to the speed-up, a row for each number of ranks."""
    rounds = {(each["way"], each["ranks"]): each["rounds"] for each in speeds}
    rows = []
    for ranks, (ceiling, speedup) in measured.items():
        limit = min(ranks, devices)
        together = ratio(rounds["ddp", ranks], rounds["apart", ranks])
        shared = (f"{limit - ceiling.median:.2f} ({limit - ceiling.high:.2f} to {limit - ceiling.low:.2f})")
        rows.append({"ranks = ideal": ranks, "lost to oversubscription": ranks - limit, "to contention": shared,
                     "to communication": f"{ceiling.median - speedup.median:.2f}", "speed-up": f"{speedup.median:.2f}",
                     "DDP ÷ no communication": str(together)})
    return rows


def exposed(film: dict) -> list[dict]:
    """A row for each step and rank of a film, in milliseconds: computing, messages under way, and waiting for them."""
    rows: dict[tuple, dict] = {}
    for each in film["spans"] + film["messages"]:
        row = rows.setdefault((each["step"], each["rank"]), {"compute": 0.0, "wait": 0.0, "messages": []})
        if each.get("lane") in ("compute", "wait"):
            row[each["lane"]] += each["d"] / 1000
        elif "bytes" in each and each["end"]:
            row["messages"] += [each["t"] / 1000, each["end"] / 1000]
    return [{"step": step, "rank": rank, "computing, ms": f"{row['compute']:.1f}",
             "communication, ms": f"{max(row['messages']) - min(row['messages']):.1f}",
             "of it exposed, ms": f"{row['wait']:.1f}"}
            for (step, rank), row in sorted(rows.items()) if row["messages"]]


def computed(film: dict) -> list[list[float]]:
    """Seconds that each rank computes in each step of a film: a list per step, a number per rank."""
    seconds: dict[int, dict[int, float]] = {}
    for each in film["spans"]:
        if each["lane"] == "compute":
            of_step = seconds.setdefault(each["step"], {})
            of_step[each["rank"]] = of_step.get(each["rank"], 0.0) + each["d"] / 1e6
    return [[of_step[rank] for rank in sorted(of_step)] for _, of_step in sorted(seconds.items())]


def by_batch(speeds: list[dict]) -> dict[int, Ratio]:
    """{images per step of all ranks: speed-up of DDP over one process}"""
    alone = {each["batch"]: each["rounds"] for each in speeds if each["way"] == "alone"}
    return {batch: ratio(each["rounds"], alone[batch]) for each in speeds if each["way"] == "ddp"
            for batch in [each["batch"] * each["ranks"]]}


def paying(speedups: dict[int, Ratio], wanted: float) -> int:
    """The smallest batch whose speed-up reaches `wanted`; the one with the largest speed-up if none does."""
    return next((batch for batch, each in sorted(speedups.items()) if each.median >= wanted),
                max(speedups, key=lambda batch: speedups[batch].median))


def speedups(measured: dict[int, Ratio], wanted: float) -> Axes:
    """Speed-up of two ranks against the images per step, with the interval of each."""
    ax = plt.subplots(figsize=(12, 6))[1]
    sizes, ends = sorted(measured), []
    ax.plot(sizes, [measured[size].median for size in sizes], **line_style(0) | {"linewidth": 1.5, "markersize": 13})
    ax.vlines(sizes, [measured[size].low for size in sizes], [measured[size].high for size in sizes], linewidth=3,
              color=COLOURS[0])
    for y, name, colour in ((2, "ideal", GREY), (wanted, f"{wanted:g}×", COLOURS[1]), (1, "one process", "#000000")):
        ax.axhline(y, color=colour, linewidth=2, linestyle="-" if y == 1 else "--")
        ends.append((1.4 * sizes[-1], y, name, colour))
    ax.set_xscale("log", base=2)
    ticks(ax, sizes, "{:,}")
    ax.set(xlabel="images per step, both ranks together", ylabel="times as fast as one process", ylim=(0, 2.2),
           xlim=(sizes[0] / 1.4, 1.4 * sizes[-1]))
    head(ax, "The same step, on one process and on two ranks", key=[
        line_key("measured, interleaved (bar: 95 % interval)", **line_style(0))])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, [(size, each.median, f"{each.median:.2f}×", COLOURS[0]) for size, each in measured.items()],
                 BESIDE_A_POINT)
    return ax


# ---------------------------------------------------------------- second sitting


def messages(points: list[tuple], given: list[tuple], seconds_of: Callable, whose: str) -> Axes:
    """Milliseconds of messages, (bytes, seconds) each; a line through what `seconds_of` makes of the `given` ones."""
    ax = plt.subplots(figsize=(12, 6))[1]
    many = np.geomspace(points[0][0], points[-1][0], 200)
    ax.plot(many, [1e3 * seconds_of(size, given) for size in many], ":", color=COLOURS[1])
    for chosen, colour, size in (([each for each in points if each not in given], COLOURS[0], 14), (given, GREY, 11)):
        ax.plot(*zip(*[(bytes, 1e3 * seconds) for bytes, seconds in chosen], strict=True), "o", color=colour,
                markersize=size)
    notes = [(bytes, 1e3 * seconds, f"{seconds_of(bytes, given) / seconds - 1:+.0%}", COLOURS[0])
             for bytes, seconds in points if (bytes, seconds) not in given]
    ax.set(xscale="log", yscale="log", xlabel="message (bytes)", ylabel="milliseconds")
    ticks(ax, [size for size, _ in points])
    ax.set_xticklabels([size_name(size) for size, _ in points])
    ax.yaxis.set_major_formatter("{x:g}")
    head(ax, "All-reduce of two ranks", columns=3, key=[
        line_key("measured", marker="o", linestyle="", color=COLOURS[0]),
        line_key(f"given to {whose} function", marker="o", linestyle="", color=GREY),
        line_key("predicted", linestyle=":", color=COLOURS[1])])
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def steps(predict: Callable, seconds_of: Callable, corners: dict) -> Callable:
    """A function (images per rank, rate, parts) that predicts (seconds of a step, seconds of exposed communication).

    `predict` and `seconds_of` are those of the exercises. `corners` and `parts` are what step_map.py --parts wrote: its
    smallest and its largest batch are two points of a line for computing, and its messages, by their bits / rate, are
    the points for a message.
    """
    on_wire = sorted((8 * int(size) / bits(rate), median(seconds)) for rate, of_rate in corners["messages"].items()
                     for size, seconds in of_rate.items())
    sizes = min(map(int, corners["computing"])), max(map(int, corners["computing"]))

    def step_of(batch: int, rate: str, parts: dict) -> tuple[float, float]:
        first, last = ([median(moments) for moments in zip(*parts["computing"][str(each)], strict=True)]
                       for each in sizes)  # buckets full, backward's end, the step's
        *ready, backward, step = (seconds_of(batch, [(sizes[0], each), (sizes[1], other)])
                                  for each, other in zip(first, last, strict=True))
        return predict(ready, backward, step,
                       [seconds_of(8 * size / bits(rate), on_wire) for size in corners["buckets"]])

    return step_of


def the_map(batches: list[int], rates: list[str], predicted: dict, measured: dict, corners: list) -> list[Axes]:
    """Two maps of batch × rate: predicted and measured milliseconds, {(batch, rate): seconds}; and the error."""
    axes = plt.subplots(1, 3, figsize=(19, 1.6 + 1.1 * len(batches)), sharey=True)[1]
    errors = {cell: predicted[cell] / measured[cell] - 1 for cell in predicted}
    panels = [("Predicted, ms per step", {cell: 1e3 * value for cell, value in predicted.items()}, "{:.0f}"),
              ("Measured, ms per step", {cell: 1e3 * value for cell, value in measured.items()}, "{:.0f}"),
              ("Error of the prediction", errors, "{:+.0%}")]
    for ax, (title, values, form) in zip(axes, panels, strict=True):
        grid = np.array([[values[batch, rate] for rate in rates] for batch in batches])
        if ax is axes[2]:
            ax.imshow(grid, cmap="PuOr", vmin=-0.5, vmax=0.5, aspect="auto")
        else:
            ax.imshow(np.log(grid), cmap="Blues", vmin=np.log(10), vmax=np.log(400), aspect="auto")
        for (y, batch), (x, rate) in ((row, column) for row in enumerate(batches) for column in enumerate(rates)):
            ax.text(x, y, form.format(values[batch, rate]), ha="center", va="center", fontweight="bold",
                    path_effects=halo())
            if (batch, rate) in corners:
                ax.add_patch(Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, edgecolor=GREY, linewidth=3,
                                       linestyle="--"))
        bare(ax)
        ticks(ax, range(len(rates)), "")
        ax.set_xticklabels([f"{bits(rate) / 1e6:g}" for rate in rates])
        ax.set(xlabel="Mbit/s", title=title)
    name_rows(axes[0], [f"{batch} images per rank" for batch in batches], bottom=len(batches) - 0.5)
    return list(axes)


SITUATIONS = {"at once": "after another all-reduce", "pause": "after a pause", "computed": "after products of matrices",
              "training": "after LeNet's backward"}


def waking(rounds: dict[str, list[float]]) -> Axes:
    """Milliseconds of an all-reduce in four situations, for two sizes: the median of the rounds, and their range."""
    ax = plt.subplots(figsize=(12, 5.5))[1]
    sizes = list(dict.fromkeys(int(name.split()[0]) for name in rounds))
    for number, size in enumerate(sizes):
        for y, situation in enumerate(SITUATIONS):
            values = rounds[f"{size} {situation}"]
            place = y + 0.38 * (number - 0.5)
            ax.barh(place, median(values), height=0.34, color=COLOURS[number], label=f"{size:,} bytes" * (y == 0))
            ax.plot([min(values), max(values)], [place, place], color="black", linewidth=1.5, marker="|")
            ax.text(1.01, place, f"median {median(values):.2f} ms", va="center", fontweight="bold",
                    transform=ax.get_yaxis_transform())
    name_rows(ax, list(SITUATIONS.values()))
    ax.set_xlabel("milliseconds, from the arrival of the last rank (line: all rounds)")
    head(ax, "The same all-reduce", key={f"{size:,} bytes": COLOURS[number] for number, size in enumerate(sizes)},
         columns=2)
    return ax


def cause(rounds: dict[str, list[float]]) -> str:
    """What makes an all-reduce of all gradients significantly longer: a "pause" before it, having "computed", "either"
    of them or "neither"."""
    size = max(int(name.split()[0]) for name in rounds)
    longer = {name: ratio(rounds[f"{size} {name}"], rounds[f"{size} at once"]) for name in ("pause", "computed")}
    causes = [name for name, each in longer.items() if each.significant and each.median > 1]
    return causes[0] if len(causes) == 1 else "either" if causes else "neither"


def claims(rounds: dict[str, list[float]]) -> list[str]:
    """For each size, how many times as long each situation takes as one all-reduce after another."""
    return [f"{int(size):,} bytes, {SITUATIONS[situation]} ÷ {SITUATIONS['at once']}: "
            f"{ratio(values, rounds[f'{size} at once'])}"
            for name, values in rounds.items() for size, situation in [name.split(maxsplit=1)]
            if situation != "at once"]


def published(gpus: list[int], measured: list[float], predicted: list[float], given: list[int]) -> Axes:
    """Efficiency of a published series against the number of GPUs, and the model's line through the `given` points."""
    ax = plt.subplots(figsize=(12, 6))[1]
    ax.plot(gpus, predicted, **line_style(1, "predicted") | {"marker": ""})
    ax.plot(gpus, measured, **line_style(0, "recorded") | {"linestyle": "", "markersize": 13})
    chosen = [gpus.index(each) for each in given]
    ax.plot(given, [measured[each] for each in chosen], "o", color=GREY, markersize=13)
    ax.set_xscale("log", base=2)
    ticks(ax, gpus)
    percent(ax)
    ax.set(xlabel="H100s, 8 per node", ylabel="tokens per second per GPU,\n% of those on 8 GPUs", ylim=(0, 1.1))
    head(ax, "A language model, data parallel", columns=2, key=[
        line_key("published, not measured here", **line_style(0, "recorded") | {"linestyle": ""}),
        line_key("published, and given to the model", marker="o", linestyle="", color=GREY),
        line_key("predicted", linestyle=":", color=COLOURS[1])])
    write_beside(ax, [(size, here, f"{there / here - 1:+.0%}".replace("+-", "-"), COLOURS[1])
                      for size, here, there in zip(gpus, measured, predicted, strict=True) if size not in given],
                 BESIDE_A_POINT)
    return ax
