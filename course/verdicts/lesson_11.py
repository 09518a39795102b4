"""Lesson 11: who failed and why, what a kill cost, how often to save, what nodes and a cut link did.

Logs are lists of the records that main.py writes; moments are seconds since 1970, as in the logs.
"""

import math
import re
from statistics import median

from course.predict.checkpoints import lost
from course.verdicts.lesson_10 import where  # noqa: F401 - the notebook's


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
