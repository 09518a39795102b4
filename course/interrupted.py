"""What a training that was killed or cut off left behind: the records of its log, what the kill cost, its console.

A log is a list of the records that main.py writes. Moments are seconds since 1970, as in the logs.
"""

import json
import re
from pathlib import Path
from statistics import median


def records(log: Path, begin: int = 0) -> list[dict]:
    """The log's whole records from byte `begin` on: the records of an earlier run stand before it."""
    raw = log.read_bytes()[begin:] if log.exists() else b""
    return [json.loads(line) for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]


def of_kind(log: list[dict], kind: str) -> list[dict]:
    return [record for record in log if record["kind"] == kind]


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


def essential(console: str) -> str:
    """The lines of a node's console that tell the story: who trains, who is missing, what it goes on from."""
    lines = re.findall(r"^(?:Going on|SIGTERM|.*rank\(s\) (?:x batch|\d+ waited)).*", console, re.MULTILINE)
    return "\n".join(line.split(" (/")[0].split(" ([")[0] for line in lines)
