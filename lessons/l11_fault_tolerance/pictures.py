"""Trainings that were killed and went on, what checkpoints and failures cost, what lies in their files.

Logs are lists of the records that main.py writes; moments are seconds since 1970, as in the logs.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, GREY, LINES, MARKERS, PALE, darker, halo, head, line_key, name_rows, write_in
from course.predict.checkpoints import drawn, lost

SHARES = {"writing": COLOURS[0], "work made again": COLOURS[1], "restarts": COLOURS[3]}


def of_kind(log, kind):
    return [record for record in log if record["kind"] == kind]


def killed(undisturbed, disturbed, rank, epoch, moment):
    """Two axes: the loss of both trainings by epoch, and by time. `rank` was killed in `epoch`, at `moment`."""
    left, right = plt.subplots(1, 2, figsize=(18, 7), sharey=True)[1]
    ends, looks = [], {"undisturbed": {"color": COLOURS[0], "linewidth": 9, "alpha": 0.35},
             "killed": {"color": COLOURS[1], "marker": "o"}}
    for (name, look), log in zip(looks.items(), (undisturbed, disturbed), strict=True):
        epochs = of_kind(log, "epoch")
        losses = [record["loss"] for record in epochs]
        left.plot([record["epoch"] + 1 for record in epochs], losses, **look)
        right.plot([record["time"] - log[0]["time"] for record in epochs], losses, **look)
        ends.append((*right.lines[-1].get_xydata()[-1], name, look["color"]))
    begin, again = moment - disturbed[0]["time"], of_kind(disturbed, "restart")[0]["time"] - disturbed[0]["time"]
    right.axvspan(begin, again, color=PALE)
    right.text((begin + again) / 2, 0.98, "killed, and started again", transform=right.get_xaxis_transform(),
               ha="center", va="top", path_effects=halo(PALE))
    left.axvline(epoch, color="black", linestyle=":")
    left.text(epoch, 0.98, f" rank {rank} is killed", transform=left.get_xaxis_transform(), va="top")
    left.set(xlabel="epochs done", ylabel="loss (cross-entropy)")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="seconds since the first step")
    head(left, "By epoch: wide undisturbed, dots killed", pd.DataFrame(undisturbed[:1]), [])
    head(right, "By time", key=[])
    write_beside(right, ends, BESIDE_A_POINT)
    return left, right


def recoveries(ways, batch, recorded):
    """Three axes: steps done by the seconds since the kill; by step, the images of it, and which were made twice.
    `ways`: {name: what started_again and went_on of lessons/l11_fault_tolerance/show.py give}; one of them has
    `images`.
    `batch`: images of a whole step."""
    fig = plt.figure(figsize=(19, 8))
    grid = fig.add_gridspec(2, 2, height_ratios=(3, 2))
    left, images, twice = (fig.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))
    line, ends = LINES["recorded" if recorded else "live"], []
    for number, (name, way) in enumerate(ways.items()):
        for piece in way["pieces"]:
            left.plot(*zip(*piece, strict=True), line, color=COLOURS[number], marker=MARKERS[number],
                      markevery=max(1, len(piece) // 8))
        ends.append((*way["pieces"][-1][-1], name, COLOURS[number]))
        if "images" in way:
            images.plot(*zip(*way["images"], strict=True), line, color=COLOURS[number], drawstyle="steps-mid")
            write_beside(images, [(*way["images"][-1], name, COLOURS[number])], [(0, -14, "right", "top")])
        last = way["done"]
        twice.barh(number, way["again"], left=last - way["again"], height=0.6, color=COLOURS[number])
        twice.text(last, number, f"  {way['again']}", va="center", color=darker(COLOURS[number]), fontweight="bold")
    left.axvline(0, color="black", linestyle=":")
    left.text(0, 0.02, " the kill", transform=left.get_xaxis_transform())
    left.set(xlabel="seconds since the kill", ylabel="steps done")
    left.margins(y=0.12)
    write_beside(left, ends, BESIDE_A_POINT)
    images.set(ylabel="images", ylim=(0, 1.15 * batch))
    twice.set(xlabel="step", xlim=images.get_xlim())
    name_rows(twice, ways)
    head(left, "Steps done" + " (recorded)" * recorded, key=[])
    head(images, "Images of each step", key=[])
    head(twice, "Steps made twice", key=[])
    return left, images, twice


def interval(write, between, restart, best):
    """The share of time that is lost, against the seconds between two checkpoints: what is predicted, and by chance."""
    ax = plt.subplots(figsize=(14, 8))[1]
    every = np.geomspace(best / 100, min(100 * best, between), 200)
    shares = {name: 100 * share * np.ones_like(every) for name, share in lost(every, write, between, restart).items()}
    ends = []
    for name, share in shares.items():
        ax.plot(every, share, LINES["predicted"], color=SHARES[name])
        at = {"writing": 150, "work made again": 60, "restarts": 5}[name]
        ends.append((every[at], share[at], name, SHARES[name]))
    ax.plot(every, sum(shares.values()), LINES["predicted"], color="black", linewidth=5)
    ax.plot(every[::15], [100 * drawn(one, write, between, restart) for one in every[::15]], "D",
            markerfacecolor="white", color=COLOURS[2])
    lowest = 100 * sum(lost(best, write, between, restart).values())
    ax.plot(best, lowest, "o", color="black", markersize=16)
    ax.set(xscale="log", yscale="log", xlabel="seconds between two checkpoints", ylabel="time that is lost (%)")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    head(ax, f"A write of {1000 * write:.0f} ms, a failure every {between / 3600:.2g} h", columns=2, key=[
        line_key("predicted: all three together", linestyle=":", color="black", linewidth=5),
        line_key("5,000 random failures", linestyle="", marker="D", markerfacecolor="white", color=COLOURS[2])])
    write_beside(ax, [*ends, (best, lowest, f"best: every {best:.0f} s", "#000000")], BESIDE_A_POINT)
    return ax


def elastic(log, moments, recorded):
    """The loss by time of a job whose number of nodes changes, and what befell it: {what: moment}."""
    ax = plt.subplots(figsize=(15, 7.5))[1]
    pieces = []  # (nodes, [(seconds, loss), ...]) between two restarts
    for record in log:
        if record["kind"] in ("run", "restart"):
            pieces.append((record["world_size"], []))
        elif record["kind"] == "epoch":
            pieces[-1][1].append((record["time"] - log[0]["time"], record["loss"]))
    pieces, line = [piece for piece in pieces if piece[1]], LINES["recorded" if recorded else "live"]
    points = [point for _, those in pieces for point in those]
    ax.plot(*zip(*points, strict=True), line, color=GREY, linewidth=1.5)
    for nodes, those in pieces:
        colour = COLOURS[nodes - 1]
        ax.plot(*zip(*those, strict=True), line, color=colour, marker=MARKERS[nodes - 1], markersize=12,
                markerfacecolor="white" if recorded else colour)
        ax.annotate(f"{nodes} node{'s' * (nodes > 1)}", those[0], (12, 6), textcoords="offset points", color=colour,
                    fontweight="bold", path_effects=halo())
    befell = [(what, moment - log[0]["time"]) for what, moment in moments.items() if what != "began"]
    for number, (what, at) in enumerate(befell):
        ax.axvline(at, color="black", linestyle=":")
        ax.text(at, 0.99 - 0.07 * number, f" {what} ", transform=ax.get_xaxis_transform(), va="top",
                ha="right" if number == len(befell) - 1 else "left")
    losses = [loss for _, loss in points]
    ax.set(xlabel="seconds since the first step", ylabel="loss (cross-entropy)")
    ax.set_xlim(0, 1.04 * max(at for _, at in befell))
    ax.set_ylim(min(losses) - 0.15 * np.ptp(losses), max(losses) + 0.3 * np.ptp(losses))
    head(ax, "Two nodes, one, two" + " (recorded)" * recorded, pd.DataFrame(log[:1]), [])
    return ax


def stored(pieces):
    """What each file of a DCP checkpoint holds: `pieces` as lessons/l11_fault_tolerance/sharded_checkpoint.py finds
    them."""
    files = sorted({piece["file"] for piece in pieces})
    ax = plt.subplots(figsize=(15, 4.8))[1]
    ends = dict.fromkeys(files, 0.0)
    for piece in sorted(pieces, key=lambda piece: piece["name"]):
        divided, kib, y = piece["name"] == "table", piece["bytes"] / 1024, files.index(piece["file"])
        colour = COLOURS[1 if divided else 0]
        ax.barh(y, kib, left=ends[piece["file"]], height=0.62, color=colour, edgecolor="white", linewidth=2)
        if kib > 30:  # there is room to write
            text = f"table, from row {piece['first']}" if divided else piece["name"]
            write_in(ax, ends[piece["file"]] + kib / 2, y, text, colour, fontsize=15)
        ends[piece["file"]] += kib
    name_rows(ax, files)
    ax.set_xlabel("KiB")
    head(ax, "What stands in each file", key={"LeNet": COLOURS[0], "the divided table": COLOURS[1]}, columns=2)
    return ax
