"""Lesson 11b: how all ranks were started again, and how one group went on; what a sharded checkpoint's files hold.

Logs are lists of the records that main.py writes. Moments are seconds since 1970, as in the logs.
"""

import json
import math
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt

from course import lesson
from course.interrupted import kill_cost, of_kind
from course.plots.style import COLOURS, LINES, MARKERS, head, name_rows, write_in
from course.predict.checkpoints import lost

RESTART, ALONE = "torchrun: all again", "torchft: one again"


def both_ways(sizes, write: float, restart: float, between: float, gap: float, nodes=2048) -> list[dict]:
    """A row for groups of each size, in nodes: the time that is lost where only the group that failed starts again, and
    as the last row where all do. `between` two failures; `gap`: seconds until the others go on without the group."""
    everyone = sum(lost(math.sqrt(2 * write * between), write, between, restart).values())
    shares = {f"one of {nodes // size:,} groups of {lesson.some(size, 'node')}":
              (gap + restart * size / nodes) / between for size in sizes} | {"all ranks": everyone}
    return [{"started again": who, "time that is lost, %": f"{100 * share:.2g}"} for who, share in shares.items()]


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
    kill to the first step with all groups again, None where it came to none."""
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
            "unseen": batch * sum(groups - record["groups"] for record in steps)}


def ways(folder: Path, batch: int) -> tuple[dict[str, dict], dict]:
    """({way: started_again or went_on, and `loss`, on the test set in the end}, what restart_nothing.py noted).
    ValueError where a log is cut short."""
    def records(path):
        lines = Path(folder, path).read_text().splitlines(keepends=True)
        log = [json.loads(line) for line in lines if line.endswith("\n")]
        if not log or log[-1]["kind"] != "end":
            raise ValueError(f"{folder}/{path} is cut short: it does not tell how its run ended")
        return log

    noted = json.loads(Path(folder, "11b_groups/moments.json").read_text())
    survivor, tables = records(f"11b_groups/group{1 - noted['victim']}.jsonl"), {}
    log, kill = records("11b_killed.jsonl"), json.loads(Path(folder, "11b_kill.json").read_text())
    steps = math.ceil(log[0]["samples"] / log[0]["batch_size"] / log[0]["world_size"])
    tables[RESTART] = {**started_again(log, kill, steps), "loss": last_loss(log)}
    tables[ALONE] = {**went_on(survivor, noted["killed"], batch), "loss": last_loss(survivor)}
    return tables, {**noted, "loss": last_loss(records("11b_whole.jsonl"))}


def last_loss(log: list[dict]) -> float:
    return [record["val_loss"] for record in log if "val_loss" in record][-1]


# ------------------------------------------------------------------------------------------------ pictures


def recoveries(ways, recorded):
    """Steps done by the seconds since the kill. `ways`: {name: what started_again or went_on gives}."""
    ax = plt.subplots(figsize=(14, 8))[1]
    line, key = LINES["recorded" if recorded else "live"], {}
    for number, (name, way) in enumerate(ways.items()):
        for piece in way["pieces"]:
            ax.plot(*zip(*piece, strict=True), line, color=COLOURS[number], marker=MARKERS[number],
                    markevery=max(1, len(piece) // 8))
        for before, after in pairwise(way["pieces"]):  # nothing is done; then the checkpoint's step, or the group's
            (stopped, done), (at, again) = before[-1], after[0]
            ax.plot([stopped, at, at], [done, done, again], line, color=COLOURS[number])
        key[f"{name}, no step for {way['gap']:.1f} s"] = COLOURS[number]
    ax.axvline(0, color="black", linestyle=":")
    ax.text(0, 0.98, "the kill ", ha="right", va="top", transform=ax.get_xaxis_transform())
    ax.set(xlabel="seconds since the kill", ylabel="steps done")
    head(ax, "Steps before and after the kill" + " (recorded)" * recorded, key=key)
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
    name_rows(ax, [f"rank {file[2]} wrote\n{file}" for file in files])
    ax.set_xlabel("KiB")
    head(ax, "What stands in each file", key={"LeNet": COLOURS[0], "the divided table": COLOURS[1]}, columns=2)
    return ax
