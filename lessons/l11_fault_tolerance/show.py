"""Lesson 11: what a kill cost, how often to save, how groups went on, what nodes did; and the lesson's pictures.

Logs are lists of the records that main.py writes. Moments are seconds since 1970, as in the logs.
"""

import json
import math
import re
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from course.plots.labels import BESIDE_A_POINT, write_beside
from course.plots.style import COLOURS, GREY, LINES, MARKERS, PALE, darker, halo, head, line_key, name_rows, write_in
from course.predict.checkpoints import drawn, lost

RESTART, QUEUE, ALONE = "torchrun: all again", "queue: all again", "torchft: one again"
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


def write_seconds(log: list[dict], steps: int, every: int) -> float:
    """Mean seconds of a checkpoint that was written within an epoch. Epochs that were begun twice do not count."""
    twice = [record["epoch"] for record in of_kind(log, "restart")]
    epochs = [record for record in of_kind(log, "epoch") if record["epoch"] not in twice]
    writes = sum((record["epoch"] + 1) * steps // every - record["epoch"] * steps // every for record in epochs)
    return sum(record.get("checkpoint_seconds", 0) for record in epochs) / writes  # none: an epoch without a write


# ------------------------------------------------------------------------------------------------ how often to save


def by_nodes(counts, write: float, node_hours: float, restart: float) -> list[dict]:
    """A row for each number of nodes: any node that fails stops the job."""
    rows = []
    for nodes in counts:
        between = 3600 * node_hours / nodes
        best = math.sqrt(2 * write * between)
        shares = lost(best, write, between, restart)
        rows.append({"nodes": f"{nodes:,}", "a failure every, h": f"{between / 3600:,.1f}",
                     "best interval, s": f"{best:,.0f}",
                     **{f"{name}, %": f"{100 * share:.2g}" if share >= 1e-5 else "< 0.001"
                        for name, share in shares.items()}})
    return rows


def both_ways(counts, write: float, restart: float, node_hours: float, gap: float) -> list[dict]:
    """A row for each number of nodes, a group each: the time that is lost where all start again, and where only the
    group that failed does. `gap`: seconds until the others go on without it; what it would have done is lost, too."""
    rows = []
    for nodes in counts:
        between = 3600 * node_hours / nodes
        everyone = sum(lost(math.sqrt(2 * write * between), write, between, restart).values())
        rows.append({"nodes": f"{nodes:,}", "a failure every, h": f"{between / 3600:,.1f}",
                     "all start again: lost, %": f"{100 * everyone:.2g}",
                     "one group does: lost, %": f"{100 * (gap + restart / nodes) / between:.2g}"})
    return rows


# ------------------------------------------------------------------------------------------------ who is started again


def started_again(log: list[dict], kill: dict, steps: int) -> dict:
    """How all ranks were started again. `pieces`: lists of (seconds since the kill, steps done), before it and after;
    `speed`, steps a second before it, and `done`, how many; `gap`: seconds until they trained again; `again`, steps
    made twice; `unseen`, images that nobody took.
    """
    at = kill["kills"][0]["time"]
    back = of_kind(log, "restart")[0]
    again = kill_cost(log, kill, steps)[0]
    kept = back["epoch"] * steps + back["step"]
    done = round(kill["kills"][0]["epoch"] * steps) if again is None else kept + again  # None: nobody noted the step
    ends = [(record["time"] - at, (record["epoch"] + 1) * steps) for record in of_kind(log, "epoch")]
    gap = back["time"] - at
    return {"pieces": [[(log[0]["time"] - at, 0), *(end for end in ends if end[0] < 0), (0, done)],
                       [(gap, kept), *(end for end in ends if end[0] > gap)]],
            "speed": done / (at - log[0]["time"]), "done": done, "gap": gap, "again": done - kept, "unseen": 0}


def went_on(log: list[dict], killed: float, batch: int, groups=2) -> dict:
    """The same of the log of a group that was left under torchft. `alone`: for how many steps; `back`: seconds from the
    kill to the first step with all groups again, None where it came to none. `images`: (step, images of it)."""
    steps = of_kind(log, "step")
    first = next(place for place, record in enumerate(steps) if record["time"] > killed and record["groups"] < groups)
    before, after = steps[:first], steps[first:]
    lonely = [record for record in after if record["groups"] < groups]
    back = next((record["time"] - killed for record in after if record["groups"] == groups), None)
    return {"pieces": [[(record["time"] - killed, record["step"]) for record in steps]],
            "speed": len(before) / (before[-1]["time"] - log[0]["time"]), "done": before[-1]["step"],
            "gap": after[0]["time"] - before[-1]["time"],
            "again": sum(record["time"] > killed for record in of_kind(log, "attempt")),
            "back": back, "alone": len(lonely),
            "unseen": batch * sum(groups - record["groups"] for record in steps),
            "images": [(record["step"], batch * record["groups"]) for record in steps]}


def ways(folder: Path, batch: int) -> tuple[dict[str, dict], dict]:
    """({way: started_again or went_on, and `loss`, on the test set in the end}, what restart_nothing.py noted).
    ValueError where a log is cut short."""
    def records(path):
        lines = Path(folder, path).read_text().splitlines(keepends=True)
        log = [json.loads(line) for line in lines if line.endswith("\n")]
        if not log or log[-1]["kind"] != "end":
            raise ValueError(f"{folder}/{path} is cut short: it does not tell how its run ended")
        return log

    noted = json.loads(Path(folder, "11_groups/moments.json").read_text())
    survivor, tables = records(f"11_groups/group{1 - noted['victim']}.jsonl"), {}
    for name, run, note in ((RESTART, "11_killed", "11_kill"), (QUEUE, "11_again", "11_again")):
        log, kill = records(f"{run}.jsonl"), json.loads(Path(folder, f"{note}.json").read_text())
        steps = math.ceil(log[0]["samples"] / log[0]["batch_size"] / log[0]["world_size"])
        tables[name] = {**started_again(log, kill, steps), "loss": last_loss(log)}
    tables[ALONE] = {**went_on(survivor, noted["killed"], batch), "loss": last_loss(survivor)}
    return tables, {**noted, "loss": last_loss(records("11_whole.jsonl"))}


def last_loss(log: list[dict]) -> float:
    return [record["val_loss"] for record in log if "val_loss" in record][-1]


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
    head(left, "By epoch: wide undisturbed, dots killed", pd.DataFrame(undisturbed[:1]), [])
    head(right, "By time", key=[])
    write_beside(right, ends, BESIDE_A_POINT)
    return left, right


def recoveries(ways, batch, recorded):
    """Three axes: steps done by the seconds since the kill; by step, the images of it, and which were made twice.
    `ways`: {name: what started_again or went_on gives}; one of them has `images`. `batch`: images of a whole step."""
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
    ax.plot(every[::15], [100 * drawn(seconds, write, between, restart) for seconds in every[::15]], "D",
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
    points = [point for _, epochs in pieces for point in epochs]
    ax.plot(*zip(*points, strict=True), line, color=GREY, linewidth=1.5)
    for nodes, epochs in pieces:
        colour = COLOURS[nodes - 1]
        ax.plot(*zip(*epochs, strict=True), line, color=colour, marker=MARKERS[nodes - 1], markersize=12,
                markerfacecolor="white" if recorded else colour)
        ax.annotate(f"{nodes} node{'s' * (nodes > 1)}", epochs[0], (12, 6), textcoords="offset points", color=colour,
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
    """What each file of a DCP checkpoint holds: `pieces` as sharded_checkpoint.contents gives them."""
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
