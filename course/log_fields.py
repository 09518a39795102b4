"""What a run log holds, in JSON lines and in console text alike: the names, the kind of each value, and its limits."""

import math
import sys

# What a run record holds, and as what. Anything else it holds becomes a column too.
TEXT, COUNT, WHOLE, REAL, FLAG = "text", "count (1, 2, 3, …)", "whole number", "number", "true or false"
COLUMNS = {TEXT: "string", COUNT: "Int64", WHOLE: "Int64", REAL: "float64", FLAG: "boolean"}  # pandas' name of each
RUN = {
    "label": TEXT, "strategy": TEXT, "world_size": COUNT, "local_world_size": COUNT, "nodes": COUNT, "device": TEXT,
    "device_name": TEXT, "device_count": WHOLE, "backend": TEXT, "cores": COUNT, "threads": COUNT, "dataset": TEXT,
    "synthetic": FLAG, "samples": COUNT, "test_samples": COUNT, "model": TEXT, "epochs": COUNT, "batch_size": COUNT,
    "lr": REAL, "seed": WHOLE, "shuffle": FLAG, "sync_bn": FLAG, "run_id": TEXT, "started": TEXT, "launcher": TEXT,
    "host": TEXT, "torch": TEXT, "python": TEXT, "origin": TEXT, "restarts": WHOLE,
}
STATUSES = ("completed", "failed", "resumable")
END = {"total_seconds": REAL, "peak_memory_bytes": WHOLE, "error": TEXT}

# What an epoch record holds: all of them numbers.
EPOCH = ["loss", "accuracy", "seconds", "images_per_second", "data_seconds", "forward_seconds", "backward_seconds",
         "update_seconds", "val_loss", "val_accuracy"]
LIMITS = {name: (0, 1 if "accuracy" in name else sys.float_info.max)
          for name in ["epoch", *EPOCH] if "loss" not in name}
LARGEST_INT = 2**53  # beyond it a float64 column would change the number


def is_a(value, kind: str) -> bool:
    if kind in (COUNT, WHOLE):  # type() and not isinstance(): a bool is no number
        return type(value) is int and (1 if kind == COUNT else -LARGEST_INT) <= value < LARGEST_INT
    if kind == REAL:
        return type(value) in (int, float) and abs(value) < LARGEST_INT
    return type(value) is (bool if kind == FLAG else str)


def put(info: dict, name: str, value, notes: list[str]) -> None:
    """A field of RUN into `info`; where its value cannot be one, a note instead."""
    if is_a(value, RUN[name]):
        info[name] = value
    else:
        notes.append(f"{name} is not a {RUN[name]}")


def epoch_row(record: dict) -> dict | None:
    """The numbers of an epoch record; None if one of them cannot be what it says."""
    row = {}
    for name, value in record.items():
        if type(value) in (int, float):
            lowest, highest = LIMITS.get(name, (-math.inf, math.inf))
            # "not a number" is in no range, and is what a diverged loss is
            if value < lowest or value > highest or type(value) is int and abs(value) >= LARGEST_INT:
                return None
            if name.isidentifier():
                row[name] = value
        elif name in ("epoch", *EPOCH) and value is not None:
            return None
    return row if type(row.get("epoch")) is int else None
