"""Lesson 11: what a kill cost, how often to save, how groups went on, what nodes did; and the lesson's pictures.

Logs are lists of the records that main.py writes. Moments are seconds since 1970, as in the logs.
"""

import math
import re
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from course.interrupted import of_kind
from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, LINES, PALE, halo, head, line_key, name_rows, write_in
from course.predict.checkpoints import drawn, lost

SHARES = {"writing": COLOURS[0], "work made again": COLOURS[1], "restarts": COLOURS[3]}


# ------------------------------------------------------------------------------------------------ a kill


def stopped(log: list[dict], note: dict, steps: int) -> tuple[int, float]:
    """(steps made again, seconds from the signal to the end of the run) of a run that a signal stopped: from its log,
    and what kill_rank.py wrote; `steps` of an epoch."""
    epoch, step = map(int, re.search(r"stopped in epoch (\d+) after step (\d+)", "\n".join(note["said"])).groups())
    back, end = of_kind(log, "restart")[0], of_kind(log, "end")[0]
    return (epoch - back["epoch"]) * steps + step - back["step"], end["time"] - note["kills"][0]["time"]


# ------------------------------------------------------------------------------------------------ how often to save


def by_nodes(counts, write: float, node_hours: float, restart: float, interval) -> list[dict]:
    """A row for each number of nodes: any node that fails stops the job. `interval(write, between)`: the learner's."""
    rows = []
    for nodes in counts:
        between = 3600 * node_hours / nodes
        best = interval(write, between)
        shares = lost(best, write, between, restart)
        rows.append({"nodes": f"{nodes:,}", "a failure every, h": f"{between / 3600:,.1f}",
                     "interval, s": f"{best:,.0f}",
                     **{f"{name}, %": f"{100 * share:.2g}" if share >= 1e-5 else "< 0.001"
                        for name, share in shares.items()}})
    return rows


# ------------------------------------------------------------------------------------------------ pictures


def killed(undisturbed, disturbed, rank, moment):
    """The losses of both trainings by time. `rank` was killed at `moment`."""
    ax, ends = plt.subplots(figsize=(14, 7))[1], []
    for log, name, look in ((undisturbed, "undisturbed", {"color": COLOURS[0], "marker": "s"}),
                            (disturbed, "killed", {"color": COLOURS[1], "marker": "o"})):
        ax.plot(*zip(*((record["time"] - log[0]["time"], record["loss"]) for record in of_kind(log, "epoch")),
                     strict=True), **look)
        ends.append((*ax.lines[-1].get_xydata()[-1], name, look["color"]))
    begin, again = moment - disturbed[0]["time"], of_kind(disturbed, "restart")[0]["time"] - disturbed[0]["time"]
    ax.axvspan(begin, again, color=PALE)
    ax.text((begin + again) / 2, 0.98, f"rank {rank} is killed,\nall start again", ha="center", va="top",
            transform=ax.get_xaxis_transform(), path_effects=halo(PALE))
    ax.set(xlabel="seconds since the first step", ylabel="loss (cross-entropy)")
    head(ax, "The loss after each epoch", pd.DataFrame(undisturbed[:1]), [])
    write_beside(ax, ends, BESIDE_A_POINT)
    return ax


def interval(write, between, restart, chosen, whose):
    """The share of time that is lost, against the seconds between two checkpoints: what is predicted, what came of
    random failures, and where the learner's formula stands, which gives `chosen`."""
    ax = plt.subplots(figsize=(14, 8))[1]
    best = math.sqrt(2 * write * between)
    every = np.geomspace(best / 100, min(100 * best, between), 200)
    shares = {name: 100 * share * np.ones_like(every) for name, share in lost(every, write, between, restart).items()}
    ends = []
    for name, share in shares.items():
        ax.plot(every, share, LINES["predicted"], color=SHARES[name])
        at = {"writing": 150, "work made again": 60, "restarts": 5}[name]
        ends.append((every[at], share[at], name, SHARES[name]))
    ax.plot(every, sum(shares.values()), LINES["predicted"], color="black", linewidth=5)
    ax.plot(every[::15], [100 * drawn(seconds, write, between, restart) for seconds in every[::15]], "D",
            markerfacecolor="white", color=COLOURS[2])
    share = 100 * drawn(chosen, write, between, restart)
    ax.plot(chosen, share, "D", color=COLOURS[2], markersize=16)
    ax.set(xscale="log", yscale="log", xlabel="seconds between two checkpoints", ylabel="time that is lost (%)")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    head(ax, f"A write of {1000 * write:.0f} ms, a failure every {between / 3600:.2g} h", columns=2, key=[
        line_key("predicted: all three together", linestyle=":", color="black", linewidth=5),
        line_key("simulated: 5,000 failures", linestyle="", marker="D", markerfacecolor="white", color=COLOURS[2])])
    write_beside(ax, [*ends, (chosen, share, f"{whose} formula: every {chosen:.0f} s", COLOURS[2])], BESIDE_A_POINT)
    return ax


def nodes(log, moments, recorded):
    """A lane for each of two nodes: when it started, trained with the other or alone, and was lost. `moments`: {what
    happened: when}, as lose_node.py notes them."""
    ax, (began, killed, back, _) = plt.subplots(figsize=(15, 5))[1], moments.values()
    trained = []  # [from, to, nodes] between two starts
    for record in log:
        if record["kind"] in ("run", "restart"):
            trained.append([record["time"], record["time"], record["world_size"]])
        elif record["kind"] == "end":
            trained[-1][1] = record["time"]
    pauses = pairwise([began, *(moment for start, end, _ in trained for moment in (start, end))])
    both = [span for span in trained if span[2] == 2]
    bars = [(0, start, end, "starts") for start, end in list(pauses)[::2]]
    bars += [(0, start, end, "trains" if nodes == 2 else "trains alone") for start, end, nodes in trained]
    bars += [(1, start, min(end, killed) if start < killed else end, "trains") for start, end, _ in both]
    bars += [(1, began, both[0][0], "starts"), (1, killed, back, "is lost"), (1, back, both[-1][0], "starts")]
    colours = {"starts": PALE, "trains": COLOURS[0], "trains alone": COLOURS[1], "is lost": "white"}
    for node, start, end, what in bars:
        ax.barh(node, end - start, left=start - began, height=0.7, facecolor=colours[what], edgecolor=PALE)
        if end - start > 0.09 * (log[-1]["time"] - began):  # there is room to write
            write_in(ax, (start + end) / 2 - began, node, what, colours[what])
    for number, what in enumerate(list(moments)[1:]):
        ax.axvline(moments[what] - began, color="black", linestyle=":")
        ax.text(moments[what] - began, -1.15 + 0.28 * number, f" {what} ", va="center",
                ha="right" if number == 2 else "left")
    ax.set_xlabel("seconds since the job was started")
    name_rows(ax, ["node0", "node1"])
    ax.set_ylim(1.5, -1.4)
    head(ax, "What each node did" + " (recorded)" * recorded, pd.DataFrame(log[:1]),
         {"the two train together": COLOURS[0], "node0 trains alone": COLOURS[1]}, columns=2)
    return ax
