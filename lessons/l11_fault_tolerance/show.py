"""Lesson 11: what a kill cost, what a missing item changes, how often to save, and the lesson's pictures.

Events are lists of what killed.py writes. Moments are seconds since 1970.
"""

import json
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, LINES, PALE, bare, head, line_key, name_rows, stacked, ticks, write_in
from course.predict.checkpoints import drawn, lost

SHARES = {"writing": COLOURS[0], "work made again": COLOURS[1], "restarts": COLOURS[3]}
COST = {"notice": COLOURS[3], "end and start processes": COLOURS[0], "import, data, first update": COLOURS[5],
        "updates made again": COLOURS[1]}
NAMES = {"model": "model", "optimizer": "optimizer", "scheduler": "scheduler", "epoch": "epoch",
         "step": "update number", "losses": "losses of the epoch", "rng": "random states"}


def events(file: str | Path) -> list[dict]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def first(log: list[dict], what: str, **of) -> float:
    """When it happened first, among the events that have these values."""
    return min(each["time"] for each in log
               if each["what"] == what and all(each[key] == value for key, value in of.items()))


def again(log: list[dict], total: int) -> int:
    """Updates that were made twice, of a training that has `total` and was killed once."""
    return sum(each["what"] == "update" and each["rank"] == 0 for each in log) - total


def cost(log: list[dict], total: int) -> dict[str, float]:
    """{part: seconds} of a kill, from the signal until the training was again where it had been."""
    killed, noticed = first(log, "KILL"), first(log, "noticed")
    began = max(first(log, "began", attempt=1, rank=rank) for rank in (0, 1))
    update, made = first(log, "update", attempt=1, rank=0), again(log, total)
    second = [each["time"] for each in log if each["what"] == "update" and each["attempt"] == 1 and each["rank"] == 0]
    until = second[max(made - 1, 0)]
    return dict(zip(COST, (noticed - killed, began - noticed, update - began, until - update), strict=True))


def bar(parts: dict[str, float]):
    """One bar of the seconds that a kill cost."""
    ax = plt.subplots(figsize=(14, 3))[1]
    head(ax, "What one kill costs", key=stacked(ax, [""], [parts], COST, "seconds", "s"), columns=4)
    return ax


# ------------------------------------------------------------------------------------------------ one item is missing


def numbers(line: str) -> tuple[str, str]:
    """(loss, accuracy) of a line of train.py."""
    return tuple(re.search(r"loss (\S+), accuracy (\S+)", line).groups())


def differences(results: dict) -> dict[str, list[str]]:
    """{item: what differs without it}: the loss of the epoch in which the killed ranks were, the last loss, the last
    accuracy, the largest difference of a weight; "the same" where nothing does. `results`: of take_out.py."""
    whole, rows = results["nothing"]["lines"], {}
    for item in NAMES:
        lines = results[item]["lines"]
        pairs = [(numbers(lines[-len(whole)])[0], numbers(whole[0])[0]),
                 *zip(numbers(lines[-1]), numbers(whole[-1]), strict=True)]
        rows[item] = ["the same" if mine == right else f"{mine}, not {right}" for mine, right in pairs]
        off = results[item]["weights"]
        rows[item].append(f"{off:.2g}" if off else "0: the same bits")
    return rows


def missing(results: dict):
    """A row for each item of a checkpoint; its cells say what differs in a training that went on without it."""
    rows, ax = differences(results), plt.subplots(figsize=(15, 7))[1]
    epoch = results["nothing"]["lines"][0].partition(":")[0]  # in which the killed ranks were, "epoch 1"
    columns = [f"loss of {epoch}", "last loss", "last accuracy", "largest difference\nof a weight"]
    for y, cells in enumerate(rows.values()):
        for x, cell in enumerate(cells):
            colour = PALE if "the same" in cell else COLOURS[1]
            ax.barh(y, 0.96, left=x - 0.48, height=0.86, color=colour)
            write_in(ax, x, y, cell, colour, fontsize=15)
    bare(ax)
    name_rows(ax, [f"without the {NAMES[item]}" for item in rows])
    ax.set_xticks(range(len(columns)), columns)
    ax.xaxis.tick_top()
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_title("What differs when one item is missing", pad=12)
    return ax


# ------------------------------------------------------------------------------------------------ how often to save


def by_nodes(counts, write: float, node_hours: float, restart: float, interval) -> list[dict]:
    """A row for each number of nodes: any node that fails stops the job. `interval(write, between)`: the learner's."""
    rows = []
    for nodes in counts:
        between = 3600 * node_hours / nodes
        best = interval(write, between)
        shares = lost(best, write, between, restart)
        rows.append({"nodes": f"{nodes:,}", "a failure every, h": f"{between / 3600:,.1f}",
                     "interval, min": f"{best / 60:,.0f}",
                     **{f"{name}, %": f"{100 * share:.2g}" for name, share in shares.items()}})
    return rows


def interval(write, between, restart, chosen, whose):
    """The share of time that is lost, against the minutes between two checkpoints: what is predicted, what came of
    random failures, and where the learner's formula stands, which gives `chosen` seconds."""
    ax = plt.subplots(figsize=(14, 8))[1]
    best = math.sqrt(2 * write * between)
    every = np.geomspace(best / 12, min(12 * best, between), 120)
    shares = {name: 100 * share * np.ones_like(every) for name, share in lost(every, write, between, restart).items()}
    ends = []
    for name, share in shares.items():
        ax.plot(every / 60, share, LINES["predicted"], color=SHARES[name])
        at = {"writing": 90, "work made again": 40, "restarts": 6}[name]
        ends.append((every[at] / 60, share[at], name, SHARES[name]))
    ax.plot(every / 60, sum(shares.values()), LINES["predicted"], color="black", linewidth=5)
    ax.plot(every[::10] / 60, [100 * drawn(seconds, write, between, restart) for seconds in every[::10]], "D",
            markerfacecolor="white", color=COLOURS[2])
    share = 100 * drawn(chosen, write, between, restart)
    ax.plot(chosen / 60, share, "D", color=COLOURS[2], markersize=16)
    ax.set(xscale="log", yscale="log", xlabel="minutes between two checkpoints", ylabel="time that is lost (%)")
    ticks(ax, (2, 5, 10, 20, 50, 100))
    ax.set_yticks((1, 2, 5, 10, 20, 50))
    ax.yaxis.set_major_formatter("{x:g}")
    head(ax, f"A write of {write:.0f} s, a restart of {restart:.0f} s, a failure every {between / 3600:.2g} h",
         columns=2, key=[
             line_key("predicted: all three together", linestyle=":", color="black", linewidth=5),
             line_key("simulated: 5,000 failures", linestyle="", marker="D", markerfacecolor="white",
                      color=COLOURS[2])])
    write_beside(ax, ends, BESIDE_A_POINT)
    write_beside(ax, [(chosen / 60, share, f"{whose} formula: every {chosen / 60:.0f} min", COLOURS[2])],
                 [(0, 50, "center", "bottom")])  # above the valley, which is full of marks
    return ax


# ------------------------------------------------------------------------------------------------ groups


def without_a_group(folder: Path, heartbeat: float) -> list[dict]:
    """A row for each part of the time after a group of torchft was killed, from the log of the other, in seconds;
    `heartbeat`: after how much silence a group counts as dead."""
    killed = json.loads((folder / "moments.json").read_text())["killed"]
    steps = [each for each in events(folder / "group0.jsonl") if each["kind"] == "step"]
    alone = [each["time"] - killed for each in steps if each["time"] > killed and each["groups"] == 1]
    back = min(each["time"] - killed for each in steps if each["time"] > killed + heartbeat and each["groups"] == 2)
    typical = np.median(np.diff(alone))
    return [{"after the kill": what, "seconds": f"{seconds:.3f}"} for what, seconds in (
        ("silence, until the group counts as dead: a setting", heartbeat),
        ("a new quorum, and the first step alone", alone[0] - heartbeat),
        (f"the other goes on alone, for {len(alone):,} steps, while the dead group starts again", alone[-1] - alone[0]),
        ("the quorum of two, the weights sent, and the first step together", back - alone[-1]),
        ("for comparison: a step alone", typical))]
