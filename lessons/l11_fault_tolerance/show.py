"""Lesson 11: what a kill cost, how often to save, how groups went on, what nodes did; and the lesson's pictures.

Logs are lists of the records that main.py writes. Moments are seconds since 1970, as in the logs.
"""

import math
import re
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, GREY, LINES, MARKERS, PALE, halo, head, line_key
from course.predict.checkpoints import drawn, lost

SHARES = {"writing": COLOURS[0], "work made again": COLOURS[1], "restarts": COLOURS[3]}


def of_kind(log: list[dict], kind: str) -> list[dict]:
    return [record for record in log if record["kind"] == kind]


# ------------------------------------------------------------------------------------------------ a kill


def kill_cost(log: list[dict], kill: dict, steps: int) -> tuple[int | None, dict[str, float]]:
    """(steps made again, {part: seconds}) of one kill, all of it from the run that was killed.

    `kill`: what kill_rank.py wrote; `steps` of an epoch. The survivor's last words tell how far the run had come;
    None where it left none. Where rank 0 is killed, which writes the log, nobody notes when the others noticed.
    """
    at, restart = kill["kills"][0]["time"], of_kind(log, "restart")[0]
    noticed = next((record["time"] for record in of_kind(log, "end") if record["status"] == "failed"), None)
    parts = {"noticed, ended, and started again": restart["time"] - at}
    if noticed is not None:
        parts = {"until the others notice": max(0, noticed - at),
                 "all are ended, and started again": restart["time"] - max(noticed, at)}
    last_words = re.search(r"waited in epoch (\d+), step (\d+)", "\n".join(kill["said"]))
    if not last_words:
        return None, parts
    again = (int(last_words[1]) - restart["epoch"]) * steps + int(last_words[2]) - 1 - restart["step"]
    step = median(record["seconds"] for record in of_kind(log, "epoch")) / steps
    return again, parts | {"steps made again": again * step}


def stopped(log: list[dict], note: dict, steps: int) -> tuple[int, float]:
    """(steps made again, seconds from the signal to the end of the run) of a run that a signal stopped: from its log,
    and what kill_rank.py wrote; `steps` of an epoch."""
    epoch, step = map(int, re.search(r"stopped in epoch (\d+) after step (\d+)", "\n".join(note["said"])).groups())
    back, end = of_kind(log, "restart")[0], of_kind(log, "end")[0]
    return (epoch - back["epoch"]) * steps + step - back["step"], end["time"] - note["kills"][0]["time"]


def write_seconds(log: list[dict], steps: int, every: int) -> float:
    """Mean seconds of a checkpoint that was written within an epoch. Epochs that were begun twice do not count."""
    twice = [record["epoch"] for record in of_kind(log, "restart")]
    epochs = [record for record in of_kind(log, "epoch") if record["epoch"] not in twice]
    writes = sum((record["epoch"] + 1) * steps // every - record["epoch"] * steps // every for record in epochs)
    return sum(record.get("checkpoint_seconds", 0) for record in epochs) / writes  # none: an epoch without a write


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


def essential(console: str) -> str:
    """The lines of a node's console that tell the story: who trains, who is missing, what it goes on from."""
    lines = re.findall(r"^(?:Going on|SIGTERM|.*rank\(s\) (?:x batch|\d+ waited)).*", console, re.MULTILINE)
    return "\n".join(line.split(" (/")[0].split(" ([")[0] for line in lines)


# ------------------------------------------------------------------------------------------------ pictures


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
    head(left, "By epoch (wide: undisturbed; dots: killed)", pd.DataFrame(undisturbed[:1]), [])
    head(right, "By time", key=[])
    write_beside(right, ends, BESIDE_A_POINT)
    return left, right


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
    points = [point for _, epochs in pieces for point in epochs]
    ax.plot(*zip(*points, strict=True), line, color=GREY, linewidth=1.5)
    for nodes, epochs in pieces:
        colour = COLOURS[nodes - 1]
        ax.plot(*zip(*epochs, strict=True), line, color=colour, marker=MARKERS[nodes - 1], markersize=12,
                markerfacecolor="white" if recorded else colour)
        ax.annotate(f"{nodes} node{'s' * (nodes > 1)}", epochs[0], (-8, -10), textcoords="offset points", color=colour,
                    fontweight="bold", path_effects=halo(), ha="right", va="top", zorder=5)
    befell = [(what, moment - log[0]["time"]) for what, moment in moments.items() if what != "began"]
    for number, (what, at) in enumerate(befell):
        ax.axvline(at, color="black", linestyle=":")
        ax.text(at, 0.99 - 0.07 * number, f" {what} ", transform=ax.get_xaxis_transform(), va="top",
                ha="right" if number == len(befell) - 1 else "left")
    losses = [loss for _, loss in points]
    ax.set(xlabel="seconds since the first step", ylabel="loss (cross-entropy)")
    ax.set_xlim(-0.1 * max(at for _, at in befell), 1.04 * max(at for _, at in befell))
    ax.set_ylim(min(losses) - 0.15 * np.ptp(losses), max(losses) + 0.3 * np.ptp(losses))
    head(ax, "Two nodes, one, two" + " (recorded)" * recorded, pd.DataFrame(log[:1]), [])
    return ax
