"""Lesson 11: who failed and why, what a kill cost, how often to save, what nodes and a cut link did.

Logs are lists of the records that main.py writes; moments are seconds since 1970, as in the logs.
"""

import importlib.util
import json
import math
import re
from pathlib import Path
from statistics import median

from course.hosts import where
from course.predict.checkpoints import alone, lost

RESTART, QUEUE, ALONE = "torchrun: all again", "queue: all again", "torchft: one again"


def error_files(processes, said):
    """A row a process, "attempt_0/1": what its error file holds. `said`: {process: message}, of those that left one."""
    return [{"attempt": process[8], "rank": process.rpartition("/")[2],
             "`error.json` says": said.get(process, "(there is none)")} for process in processes]


def second_attempt(said):
    return "fails" if any(process.startswith("attempt_1/") for process in said) else "ends well"


def kill_cost(log, kill, steps):
    """(steps made again, {part: seconds}) of one kill, all of it from the run that was killed.

    `kill`: what kill_rank.py wrote; `steps` of an epoch. The survivor's last words tell how far the run had come;
    None where it left none. Where rank 0 is killed, which writes the log, nobody notes when the others noticed.
    """
    at = kill["kills"][0]["time"]
    restart = next(record for record in log if record["kind"] == "restart")
    noticed = next((record["time"] for record in log if record["kind"] == "end" and record["status"] == "failed"), None)
    parts = {"noticed, ended, and started again": restart["time"] - at}
    if noticed is not None:
        parts = {"until the others notice": max(0, noticed - at),
                 "all are ended, and started again": restart["time"] - max(noticed, at)}
    found = re.search(r"waited in epoch (\d+), step (\d+)", "\n".join(kill["said"]))
    if not found:
        return None, parts
    again = (int(found[1]) - restart["epoch"]) * steps + int(found[2]) - 1 - restart["step"]
    step = median(record["seconds"] for record in log if record["kind"] == "epoch") / steps
    return again, parts | {"steps made again": again * step}


def started_again(log, kill, steps):
    """How all ranks were started again. `pieces`: lists of (seconds since the kill, steps done), before it and after;
    `speed`, steps a second before it, and `done`, how many; `gap`: seconds until they trained again; `again`, steps
    made twice; `unseen`, images that nobody took.
    """
    at = kill["kills"][0]["time"]
    back = next(record for record in log if record["kind"] == "restart")
    again = kill_cost(log, kill, steps)[0]
    kept = back["epoch"] * steps + back["step"]
    done = round(kill["kills"][0]["epoch"] * steps) if again is None else kept + again  # None: nobody noted the step
    ends = [(record["time"] - at, (record["epoch"] + 1) * steps) for record in log if record["kind"] == "epoch"]
    gap = back["time"] - at
    return {"pieces": [[(log[0]["time"] - at, 0), *(one for one in ends if one[0] < 0), (0, done)],
                       [(gap, kept), *(one for one in ends if one[0] > gap)]],
            "speed": done / (at - log[0]["time"]), "done": done, "gap": gap, "again": done - kept, "unseen": 0}


def went_on(log, killed, batch, groups=2):
    """The same of the log of a group that was left under torchft. `alone`: for how many steps; `back`: seconds from the
    kill to the first step with all groups again, None where it came to none. `images`: (step, images of it)."""
    steps = [record for record in log if record["kind"] == "step"]
    first = next(place for place, record in enumerate(steps) if record["time"] > killed and record["groups"] < groups)
    before, after = steps[:first], steps[first:]
    lonely = [record for record in after if record["groups"] < groups]
    back = next((record["time"] - killed for record in after if record["groups"] == groups), None)
    return {"pieces": [[(record["time"] - killed, record["step"]) for record in steps]],
            "speed": len(before) / (before[-1]["time"] - log[0]["time"]), "done": before[-1]["step"],
            "gap": after[0]["time"] - before[-1]["time"],
            "again": sum(record["kind"] == "attempt" and record["time"] > killed for record in log),
            "back": back, "alone": len(lonely),
            "unseen": batch * sum(groups - record["groups"] for record in steps),
            "images": [(record["step"], batch * record["groups"]) for record in steps]}


def without_torchft():
    """Why groups cannot be run here, None where they can."""
    return None if importlib.util.find_spec("torchft") else "torchft is not installed"


def which_groups(why_not, kept):
    """Whose runs stand below."""
    if why_not:
        epochs = json.loads(Path(kept, "11_whole.jsonl").read_text().splitlines()[0])["epochs"]
        return f"{where(why_not, kept)} There each run had {epochs} epochs."
    return "Live, on this machine, one after the other."


def ways(folder, batch):
    """({way: started_again or went_on, and `loss`, on the test set in the end}, what restart_nothing.py noted).
    ValueError where a log is cut short."""
    def records(path):
        lines = Path(folder, path).read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        if not found or found[-1]["kind"] != "end":
            raise ValueError(f"{folder}/{path} is cut short: it does not tell how its run ended")
        return found

    noted = json.loads(Path(folder, "11_groups/moments.json").read_text())
    left = records(f"11_groups/group{1 - noted['victim']}.jsonl")
    found = {}
    for name, run, note in ((RESTART, "11_killed", "11_kill"), (QUEUE, "11_again", "11_again")):
        log, kill = records(f"{run}.jsonl"), json.loads(Path(folder, f"{note}.json").read_text())
        steps = math.ceil(log[0]["samples"] / log[0]["batch_size"] / log[0]["world_size"])
        found[name] = {**started_again(log, kill, steps), "loss": last_loss(log)}
    found[ALONE] = {**went_on(left, noted["killed"], batch), "loss": last_loss(left)}
    return found, {**noted, "loss": last_loss(records("11_whole.jsonl"))}


def last_loss(log):
    return [record["val_loss"] for record in log if "val_loss" in record][-1]


def recovery_rows(ways, undisturbed):
    """A row a way; `undisturbed`: the test loss at the end of the run that nobody killed."""
    rows = [{"after the kill": name, "steps/s before it": f"{way['speed']:.0f}", "no step for, s": f"{way['gap']:.1f}",
             "steps made twice": way["again"], "images never seen": f"{way['unseen']:,}",
             "test loss, end": f"{way['loss']:.6f}"} for name, way in ways.items()]
    return [*rows, {"after the kill": "(undisturbed)", "steps/s before it": "–", "no step for, s": "–",
                    "steps made twice": "–", "images never seen": "–", "test loss, end": f"{undisturbed:.6f}"}]


def came_back(way, noted):
    """Whether the killed group trained again, both groups ended with one model, and with which. `noted`: what
    restart_nothing.py wrote."""
    if way["back"] is None:
        return ("**The killed group came back too late**: the other had made the last step. Take more epochs, or a "
                "quieter machine.")
    apart, off = noted["apart"], noted["off"] / noted["largest"]
    same = "the same weights, **bit for bit**" if apart == 0 else f"weights that differ by up to {apart:.1e}"
    return (f"The killed group trained again {way['back']:.1f} s after the kill. In between the other made "
            f"{way['alone']:,} steps alone. Both ended with {same}. From those of the undisturbed run they are off by "
            f"up to {noted['off']:.2g}: {100 * off:.0f} % of the largest weight there.")


def costs(write, restart):
    return f"**δ = {write:.2g} s, R = {restart:.3g} s**"


def both_ways(counts, write, restart, node_hours, gap):
    """A row for each number of nodes, a group each: the time that is lost where all start again, and where one does."""
    rows = []
    for nodes in counts:
        between = 3600 * node_hours / nodes
        everyone, one = (100 * sum(shares.values()) for shares in (
            lost(math.sqrt(2 * write * between), write, between, restart), alone(between, restart, gap, nodes)))
        rows.append({"nodes": f"{nodes:,}", "a failure every, h": f"{between / 3600:,.1f}",
                     "all start again: lost, %": f"{everyone:.2g}", "one group does: lost, %": f"{one:.2g}"})
    return rows


def cost_rows(again, parts):
    rows = [{"after the kill": name, "seconds": f"{seconds:.2f}"} for name, seconds in parts.items()]
    how = f"together, with {again} steps made again" if again is not None else "together; steps made again: not known"
    return [*rows, {"after the kill": f"**{how}**", "seconds": f"{sum(parts.values()):.2f}"}]


def apart(ours, theirs, largest):
    """Whether two trainings, of which we have the logs, ended with the same weights; `largest`: their difference."""
    ours, theirs = ([record["loss"] for record in log if record["kind"] == "epoch"] for log in (ours, theirs))
    losses = "the losses of all epochs are equal, too" if ours == theirs else "**the losses of their epochs differ**"
    if largest == 0:
        return f"All weights of both trainings are equal, **bit for bit**; {losses}."
    return f"**The weights differ by up to {largest:.1e}**; {losses}. Were both trained in the same way?"


def write_seconds(log, steps, every):
    """Mean seconds of a checkpoint that was written within an epoch. Epochs that were begun twice do not count."""
    twice = [record["epoch"] for record in log if record["kind"] == "restart"]
    epochs = [record for record in log if record["kind"] == "epoch" and record["epoch"] not in twice]
    writes = sum((record["epoch"] + 1) * steps // every - record["epoch"] * steps // every for record in epochs)
    return sum(record.get("checkpoint_seconds", 0) for record in epochs) / writes  # none: an epoch without a write


def three(write, restart, between):
    """The three times of which the best interval is made, in seconds."""
    return f"δ = {1000 * write:.0f} ms, R = {restart:.1f} s, M = {between / 3600:.1f} h"


def by_nodes(counts, write, node_hours, restart):
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


def essential(console):
    """The lines of a node's console that tell the story: who trains, who is missing, what it goes on from."""
    kept = re.findall(r"^(?:Going on|SIGTERM|.*rank\(s\) (?:x batch|\d+ waited)).*", console, re.MULTILINE)
    return "\n".join(line.split(" (/")[0].split(" ([")[0] for line in kept)


def images_alone(consoles):
    """Images a step of the only rank, as main.py said it; None where no rank was ever alone."""
    found = re.search(r"\b1 rank\(s\) x batch (\d+)", consoles)
    return int(found[1]) if found else None


def changes(log, moments):
    """A row for each change of the number of nodes: where the training went on, and after how long."""
    restarts = [record for record in log if record["kind"] == "restart"][-2:]
    return [{"": what, "trains again after, s": f"{record['time'] - moments[what]:.1f}", "nodes": record["world_size"],
             "goes on in epoch": record["epoch"], "after step": record["step"]}
            for what, record in zip(("node1 is killed", "node1 is started again"), restarts, strict=True)]


def waits(seconds):
    """A row for each timeout, {whose: seconds}: what a job of 64 GPUs loses while all wait."""
    return [{"timeout": whose, "seconds": f"{wait:,.1f}", "GPU hours, 64 GPUs wait": f"{64 * wait / 3600:.2g}"}
            for whose, wait in seconds.items() if wait is not None]
