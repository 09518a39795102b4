"""Reads run logs into pandas, and compares runs: speed-up and efficiency.

    python scripts/runs.py results/live
    python scripts/runs.py results/live results/recorded/tutorial-one-gpu-vs-eight
    python scripts/runs.py results/live --baseline single --csv build/speedup.csv

A log is what `main.py --log-file F` wrote (JSON lines), or the console text of a run. A figure that cannot be
read is missing, never guessed, and the column `note` says what was left out. Needs no torch.
"""

import argparse
import functools
import glob
import json
import math
import os
import re
import sys
import warnings
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd

# What a run record holds, and as what. Anything else it holds becomes a column too.
TEXT, COUNT, WHOLE, REAL, FLAG = "text", "count (1, 2, 3, …)", "whole number", "number", "true or false"
RUN_FIELDS = {
    "label": TEXT, "strategy": TEXT, "world_size": COUNT, "local_world_size": COUNT, "nodes": COUNT,
    "device": TEXT, "device_name": TEXT, "device_count": WHOLE, "backend": TEXT, "cores": COUNT,
    "threads": COUNT, "dataset": TEXT, "synthetic": FLAG, "samples": COUNT, "test_samples": COUNT,
    "model": TEXT, "epochs": COUNT, "batch_size": COUNT, "lr": REAL, "seed": WHOLE, "shuffle": FLAG,
    "sync_bn": FLAG, "run_id": TEXT, "started": TEXT, "launcher": TEXT, "host": TEXT, "torch": TEXT,
    "python": TEXT, "origin": TEXT, "restarts": WHOLE,
}  # fmt: skip
STATUSES = ("completed", "failed", "resumable")
END_FIELDS = {"total_seconds": REAL, "peak_memory_bytes": WHOLE, "error": TEXT}
READER_FIELDS = dict.fromkeys(["path", "source", "machine", "status", "note"], TEXT)
DTYPES = {TEXT: "string", COUNT: "Int64", WHOLE: "Int64", REAL: "float64", FLAG: "boolean"}

# What an epoch record holds: all of them numbers.
EPOCH_FIELDS = [
    "loss", "accuracy", "seconds", "images_per_second", "data_seconds", "forward_seconds", "backward_seconds",
    "update_seconds", "val_loss", "val_accuracy",
]  # fmt: skip
LOWEST = {name: 0 for name in ["epoch", *EPOCH_FIELDS] if "loss" not in name}
HIGHEST = {name: sys.float_info.max for name in LOWEST} | {"accuracy": 1, "val_accuracy": 1}
LARGEST_INT = 2**53  # beyond it a float64 column would change the number

LOG_ENDINGS = {".jsonl", ".txt", ".log"}
RUN_KEYS = ["label", "path"]  # together they name one run


class RunError(ValueError):
    """A log, or a comparison of runs, that cannot be made sense of. One line says why."""


# ---------------------------------------------------------------- reading


def read_run(path: str | os.PathLike, label: str | None = None) -> pd.DataFrame:
    """Reads the last run of a log: one row an epoch, what belongs to the whole run repeated in each row.

    `label` names the run; without it the log's own `label`, or else the file's name, does.

    Epoch columns: `epoch` (from 0), `loss`, `accuracy` (0 to 1), `seconds` (training alone),
    `images_per_second` (all ranks), `data_seconds`, `forward_seconds`, `backward_seconds`, `update_seconds`,
    `val_loss`, `val_accuracy`, and whatever other number the epoch records hold.
    Run columns: every field of the run record, and
    `source`  "live", or "recorded" for a log under results/recorded;
    `machine` the folder under results/recorded, else "this machine";
    `status`  "completed", "failed", "resumable" (stopped by a signal, its checkpoint written), "unfinished", or
              "unknown" for console text that cannot say;
    `restarts` how often the run went on from a checkpoint;
    `note`    what could not be read or was left out; "" if nothing;
    `origin`  the `# source:` header of console text.

    A run without any epoch gives one row whose epoch is missing. Raises RunError if nothing can be read.
    """
    return _frame([_parse(path, label)])


def read_runs(paths: str | os.PathLike | Iterable | Mapping) -> pd.DataFrame:
    """Reads many logs into one table, see `read_run`.

    `paths`: a file, a folder (every *.jsonl, *.txt and *.log in it and below, READMEs aside), a glob, a list
    of these, or `{label: path}`. Two runs with one label are told apart by their folder. A log that cannot be
    read is left out with a warning. Raises RunError when none can be read.
    """
    if isinstance(paths, Mapping):
        wanted = [(path, label) for label, path in paths.items()]
    else:
        many = [paths] if isinstance(paths, str | os.PathLike) else paths
        wanted = [(path, None) for path in dict.fromkeys(p for one in many for p in _files(one))]
    parsed, problems = [], []
    for path, label in wanted:
        try:
            parsed.append(_parse(path, label))
        except RunError as error:
            problems.append(str(error))
    if not parsed:
        raise RunError(problems[0] if problems else "no run log named")
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    _make_labels_unique([info for info, _ in parsed])
    return _frame(parsed)


def _files(path) -> list[str]:
    """The logs that a path, folder or glob stands for."""
    name = os.fsdecode(path)
    if os.path.isdir(name):
        logs = [p for p in sorted(Path(name).rglob("*")) if p.suffix in LOG_ENDINGS and p.is_file()]
        found = [str(p) for p in logs if not p.name.lower().startswith("readme")]
        return found or [name]  # reading the folder itself then says what is wrong
    if os.path.lexists(name):  # before globbing: a file's name may hold a bracket
        return [name]
    return sorted(glob.glob(name, recursive=True)) or [name]


def _make_labels_unique(infos: list[dict]) -> None:
    for tell_apart in (
        lambda info, n: f"{Path(info['path']).absolute().parent.name}/{info['label']}",
        lambda info, n: f"{info['label']} #{n}",
    ):
        groups: dict[str, list[dict]] = {}
        for info in infos:
            groups.setdefault(info["label"], []).append(info)
        for group in groups.values():
            for n, info in enumerate(group if len(group) > 1 else [], 1):
                info["label"] = tell_apart(info, n)


def _parse(path, label) -> tuple[dict, list[dict]]:
    """One log as (what belongs to the run, one dict an epoch)."""
    name = os.fsdecode(path)
    text = _text(name)
    notes: list[str] = []
    records, looks_like_json = _json_records(text, notes)
    info, rows = _read_json(records, notes) if looks_like_json else _read_console(text, notes)
    if not info and not rows:
        raise RunError(f"{name}: neither a run record nor an epoch line in it; is it a run log?")

    rows = [rows[epoch] for epoch in sorted(rows)]
    if not rows:
        notes.append("no epoch")
    elif info.get("epochs", len(rows)) != len(rows):
        notes.append(f"{len(rows)} of {info['epochs']} epochs")
    diverged = [row["epoch"] for row in rows if not math.isfinite(row.get("loss", 0))]
    if diverged:
        notes.append(f"loss is not finite from epoch {diverged[0]}")

    parts = Path(name).absolute().parts
    recorded = next((i for i in range(len(parts) - 1) if parts[i : i + 2] == ("results", "recorded")), None)
    machine = "this machine" if recorded is None else (*parts[recorded + 2 : -1], "unnamed machine")[0]
    info |= {"path": name, "source": "live" if recorded is None else "recorded", "machine": machine}
    info |= {"label": label or info.get("label") or Path(name).stem, "note": "; ".join(notes)}
    if info.get("dataset") == "synthetic":
        info["synthetic"] = True
    return info, rows


def _text(name: str) -> str:
    if os.path.isdir(name):
        empty = _files(name) == [name]
        what = "no run log (*.jsonl, *.txt, *.log) in this folder" if empty else "a folder, not a log"
        raise RunError(f"{name}: {what}")
    if os.path.exists(name) and not os.path.isfile(name):  # a pipe or a device could make us wait for ever
        raise RunError(f"{name}: not a regular file")
    try:
        raw = Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise RunError(f"{name}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if not raw.strip():
        raise RunError(f"{name}: empty: the run wrote nothing, or has not begun")
    # PowerShell's `>` writes UTF-16.
    return raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors="replace")


def _frame(parsed: list[tuple[dict, list[dict]]]) -> pd.DataFrame:
    """All runs in one go: a table a run, concatenated, would take most of the time."""
    infos = [info for info, _ in parsed]
    rows = [row for _, rows in parsed for row in rows or [{}]]
    run_of_row = np.repeat(np.arange(len(parsed)), [max(1, len(rows)) for _, rows in parsed])
    known = READER_FIELDS | RUN_FIELDS | END_FIELDS
    run_columns = {}
    for name in [*known, *dict.fromkeys(key for info in infos for key in info if key not in known)]:
        values = [info.get(name) for info in infos]
        if name in known:
            column = pd.array(values, dtype=DTYPES[known[name]])
        else:
            column = pd.Series(values, dtype=object).convert_dtypes().array
        run_columns[name] = column.take(run_of_row)

    columns = {"label": run_columns.pop("label")}
    columns["epoch"] = pd.array([row.get("epoch") for row in rows], dtype="Int64")
    seen = dict.fromkeys(map(tuple, rows))  # the rows of a log have the same keys, nearly all
    names = list(dict.fromkeys([*EPOCH_FIELDS, *(key for keys in seen for key in keys if key != "epoch")]))
    empty = dict.fromkeys(names)
    table = np.array([*map(itemgetter(*names), (empty | row for row in rows))], dtype=float)  # rows: faster
    for name, values in zip(names, table.T, strict=True):
        # a field that both records hold, such as a learning rate that changes, stands beside the run's own
        columns[f"epoch_{name}" if name in run_columns else name] = values
    return pd.DataFrame(columns | run_columns)


# ---------------------------------------------------------------- JSON lines

DECODER = json.JSONDecoder()
RECORD_START = re.compile(r'\{\s*"kind"')
NAME = re.compile(r"[A-Za-z]\w*")


def _json_records(text: str, notes: list[str]) -> tuple[list[dict], bool]:
    """Every whole record of the log, and whether this is a JSON log at all."""
    found, damaged = [], []  # (line number, record)
    lines = text.split("\n")  # not splitlines(): a JSON string may hold other line separators
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        try:
            whole = line.strip(" \t\r")  # decode() does it with regular expressions, which is slower
            record, end = DECODER.raw_decode(whole)
            if end != len(whole) or type(record) is not dict or type(record.get("kind")) is not str:
                raise ValueError
            if not _is_intact(line, record):
                raise ValueError
            found.append((number, record))
        except (ValueError, RecursionError):
            damaged.append(number)
            found += [(number, record) for record in _whole_records_inside(line)]
    if not found and not text.lstrip().startswith("{"):
        return [], False
    if any("crc" in record for _, record in found):  # then one without it is damaged, too
        damaged = sorted({*damaged, *(number for number, record in found if "crc" not in record)})
        found = [(number, record) for number, record in found if record.pop("crc", None) is not None]
    records = [record for _, record in found]
    if damaged and damaged[-1] == len(lines):
        notes.append("last line cut off")
        damaged.pop()
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        notes.append(f"{_count(len(damaged), 'damaged line')} ({shown})")
    return records, True


def _whole_records_inside(line: str) -> list[dict]:
    """A run that was killed leaves half a record; the next run's first one is then glued to it."""
    found, end = [], 0
    for start in (match.start() for match in RECORD_START.finditer(line)):
        if start >= end:
            try:
                record, end = DECODER.raw_decode(line, start)
            except (ValueError, RecursionError):
                continue
            if type(record["kind"]) is str and _is_intact(line[start:end], record):
                found.append(record)
    return found


CHECKSUM = re.compile(r', "crc": (\d+)\}\s*$')


def _is_intact(line: str, record: dict) -> bool:
    """A flipped digit is still JSON: main.py's records end with a CRC-32 of what stands before it."""
    found = CHECKSUM.match(line, max(0, line.rfind(', "crc"')))
    return "crc" not in record if not found else int(found[1]) == zlib.crc32(line[: found.start()].encode())


def _read_json(records: list[dict], notes: list[str]) -> tuple[dict, dict[int, dict]]:
    starts = [i for i, record in enumerate(records) if record["kind"] == "run"]
    head, body = (records[starts[-1]], records[starts[-1] + 1 :]) if starts else ({}, records)
    epochs = [record for record in body if record["kind"] == "epoch"]
    if not starts:
        if not body:
            return {}, {}
        notes.append("no run record")
    earlier = len(starts) - 1 + any(record["kind"] == "epoch" for record in records[: starts[0]]) if starts else 0
    if earlier:
        notes.append(f"{_count(earlier, 'earlier run')} in this file left out")

    run_id = head.get("run_id", epochs[-1].get("run_id") if epochs else None)
    info = _run_fields(head, notes)
    if "started" not in info and _is(head.get("time"), REAL) and 0 <= head["time"] < 1e10:
        info["started"] = datetime.fromtimestamp(int(head["time"]), UTC).isoformat()
    info |= {"status": "unfinished", "restarts": 0}
    end, sizes = None, [info.get("world_size")]
    rows: dict[int, dict] = {}
    left_out = dict.fromkeys(["of another run", "with an impossible value", "repeating an epoch", "of unknown kind"], 0)
    for record in body:
        kind = record["kind"]
        if run_id is not None and record.get("run_id", run_id) != run_id:
            left_out["of another run"] += 1
        elif kind == "epoch":
            row = _epoch_row(record)
            if row is None:
                left_out["with an impossible value"] += 1
            elif row["epoch"] in rows:
                left_out["repeating an epoch"] += 1
            else:
                rows[row["epoch"]] = row
        elif kind == "end":
            end = record
        elif kind == "restart":  # the run went on: what ended before was not its end
            end, info["restarts"] = None, info["restarts"] + 1
            sizes.append(record.get("world_size"))
            if _is(record.get("epochs"), COUNT):
                info["epochs"] = record["epochs"]  # a run that goes on may be asked for more
        else:
            left_out["of unknown kind"] += 1
    notes += [f"left out {_count(n, 'record')} {why}" for why, n in left_out.items() if n]
    if info["restarts"]:
        notes.append(f"went on from a checkpoint {_count(info['restarts'], 'time')}")
    if len(set(sizes)) > 1:
        notes.append(f"world size changed: {', '.join(map(str, sizes))}")
    if end:
        _end_fields(end, info, notes)
    else:
        notes.append("no end record")
    return info, rows


def _run_fields(head: dict, notes: list[str]) -> dict:
    info = {}
    for name, value in head.items():
        if name in ("kind", "time") or value is None:
            continue
        if name in RUN_FIELDS:
            if _is(value, RUN_FIELDS[name]):
                info[name] = value
            else:
                notes.append(f"{name} is not a {RUN_FIELDS[name]}")
        elif name in READER_FIELDS or name in END_FIELDS or name in EPOCH_FIELDS or name == "epoch":
            notes.append(f"field {name} of the run record left out")
        elif NAME.fullmatch(name):
            if type(value) in (dict, list):
                info[name] = json.dumps(value)
            elif type(value) is not int or abs(value) < LARGEST_INT:
                info[name] = value
    return info


def _end_fields(record: dict, info: dict, notes: list[str]) -> None:
    if record.get("status") in STATUSES:
        info["status"] = record["status"]
    else:
        notes.append("the end record has no known status")
    for name, kind in END_FIELDS.items():
        value = record.get("seconds" if name == "total_seconds" else name)
        if value is not None and _is(value, kind) and (kind == TEXT or value >= 0):
            info[name] = value
    if info["status"] == "failed" and "error" in info:
        notes.append(" ".join(info["error"].split())[:200])


def _is(value, kind: str) -> bool:
    if kind in (COUNT, WHOLE):  # type() and not isinstance(): a bool is no number
        return type(value) is int and (1 if kind == COUNT else -LARGEST_INT) <= value < LARGEST_INT
    if kind == REAL:
        return type(value) in (int, float) and abs(value) < LARGEST_INT
    return type(value) is (bool if kind == FLAG else str)


@functools.lru_cache(maxsize=1000)  # records of the same few kinds come a hundred thousand times
def _bounds(names: tuple[str, ...]) -> list[tuple[str, float, float, bool, bool]]:
    """(name, lowest, highest, whether it is one of ours, whether it can name a column) of each field of a record."""
    ours = {*EPOCH_FIELDS, "epoch"}
    return [(name, LOWEST.get(name, -math.inf), HIGHEST.get(name, math.inf), name in ours, name.isidentifier())
            for name in names]


def _epoch_row(record: dict) -> dict | None:
    """The numbers of an epoch record; None if one of them cannot be what it says."""
    row = {}
    for (name, lowest, highest, ours, usable), value in zip(_bounds(tuple(record)), record.values(), strict=True):
        kind = type(value)
        if kind is float or kind is int:
            # "not a number" is in no range, and is what a diverged loss is
            if not lowest <= value <= highest and value == value or kind is int and abs(value) >= LARGEST_INT:
                return None
            if usable:
                row[name] = value
        elif ours and value is not None:
            return None
    epoch = row.get("epoch")
    return row if type(epoch) is int else None


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


# ---------------------------------------------------------------- console text

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\))")
HEADER = re.compile(r"#[ \t]*([A-Za-z][\w ]*?)[ \t]*:[ \t]*(.*?)[ \t]*\n")
# `[rank0]:` (PyTorch), `[default0]:` (torchrun --tee), `0: ` (srun --label), alone or one after the other
PREFIX = r"\[[A-Za-z]+[0-9]+\]:?[ \t]*|[0-9]+:[ \t]+"
RANK = re.compile(rf"(?:^[ \t]*|(?<=[0-9]s)|(?<=[0-9])(?=\[))((?:{PREFIX})+)")
EPOCH = re.compile(r"[ \t]*([0-9]{1,9}),")
NUMBER = r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,3})?|[nN]a[nN]|inf|Infinity)"
# A number counts only with what shows that it was written to its end: its unit, a comma, or the line's end.
FIELD = re.compile(
    rf",[ \t]+([A-Za-z][A-Za-z /_]{{0,30}}?)[ \t]*:[ \t]*({NUMBER})"
    rf"(?:(s)(?=,?\s|\Z|Epoch:|\[|{PREFIX})|(?=(,\s|[ \t]*\n)))"
)
CONSOLE_NAMES = {
    "loss": "loss", "acc": "accuracy", "accuracy": "accuracy", "time cost": "seconds", "val loss": "val_loss",
    "val acc": "val_accuracy", "images/s": "images_per_second",
}  # fmt: skip
ALWAYS_THERE = ["loss", "accuracy", "seconds"]


def _read_console(text: str, notes: list[str]) -> tuple[dict, dict[int, dict]]:
    text = ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    info, body = _header(text, notes)
    printed = []  # (rank or None, row), as they stand in the file
    in_part = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        before, *pieces = line.split("Epoch:")
        rank = _rank(before)
        for i, piece in enumerate(pieces):
            last = i == len(pieces) - 1
            row = _console_row(piece + ("Epoch:" if not last else "\n" if number < len(lines) else ""))
            if len(row) > 1:  # an epoch number without any figure says nothing
                printed.append((rank, row))
            if not row.keys() >= {"epoch", *ALWAYS_THERE}:
                in_part += 1
            rank = _rank(piece) if RANK.search(piece) else rank
    cut_off = "Epoch:" in lines[-1] and not re.search(r"[0-9]s\s*$", lines[-1])
    if cut_off:
        notes.append("last line cut off")
        in_part -= not _console_row(lines[-1].rsplit("Epoch:", 1)[1]).keys() >= {"epoch", *ALWAYS_THERE}
    if in_part:
        notes.append(f"{_count(in_part, 'epoch line')} not read in full")

    rows = _one_row_an_epoch(printed, notes)
    if rows:
        _count_ranks(body, info, notes)
        if re.search(r"\bSYNTHETIC\b", body):  # main.py says so at the start
            info.setdefault("synthetic", True)
    if info or rows:
        expected = info.get("epochs")
        finished = "unknown" if expected is None else "completed" if len(rows) >= expected else "unfinished"
        info["status"] = "unfinished" if cut_off else finished
    return info, rows


def _header(text: str, notes: list[str]) -> tuple[dict, str]:
    """Lines `# key: value` at the top of a text file fill the run's fields."""
    info, end = {}, 0
    while match := HEADER.match(text, end):
        end = match.end()
        name, value = match[1].lower().replace(" ", "_"), match[2]
        name = "origin" if name == "source" else name
        kind = RUN_FIELDS.get(name)
        if kind in (COUNT, WHOLE) and re.fullmatch(r"[-+]?[0-9]{1,15}", value):
            value = int(value)
        elif kind == REAL and re.fullmatch(NUMBER, value):
            value = float(value)
        elif kind == FLAG and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if kind is None:
            notes.append(f"header {name} is not a field of a run")
        elif _is(value, kind):
            info[name] = value
        else:
            notes.append(f"{name} is not a {kind}")
    return info, text[end:]


def _rank(before: str) -> tuple[int, ...] | None:
    """The rank that a line says it came from; with srun and torchrun both at work, (node, local rank)."""
    prefixes = RANK.findall(before)
    return tuple(int(n[-9:]) for n in re.findall(r"[0-9]+", prefixes[-1])) if prefixes else None


def _console_row(piece: str) -> dict:
    """The figures between one `Epoch:` and the next, found by name; empty if they make no epoch."""
    epoch = EPOCH.match(piece)
    if not epoch:
        return {}
    row = {"epoch": int(epoch[1])}
    for name, value, unit, after in FIELD.findall(piece, epoch.end() - 1):
        column = CONSOLE_NAMES.get(name.lower())
        whole = unit if column == "seconds" else not unit and (after[0] == "," or column not in ALWAYS_THERE)
        if column and whole:
            row.setdefault(column, float(value))
    return _epoch_row(row) or {}


def _one_row_an_epoch(printed: list[tuple], notes: list[str]) -> dict[int, dict]:
    """Rank 0's line of each epoch; the first line where lines do not say their rank."""
    ranks = {rank for rank, _ in printed if rank is not None}
    speaker = min(ranks, key=lambda rank: (any(rank), rank), default=None)
    if ranks and any(speaker):
        notes.append(f"rank 0 is not in this file: rank {'.'.join(map(str, speaker))} read instead")
    rows: dict[int, dict] = {}
    disagree = set()
    for rank, row in printed:
        if rank in (None, speaker) and repr(rows.setdefault(row["epoch"], row)) != repr(row):
            disagree.add(row["epoch"])
    if disagree:
        notes.append(f"{_count(len(disagree), 'epoch')} printed more than once with other values: first kept")
    return rows


def _count_ranks(body: str, info: dict, notes: list[str]) -> None:
    said = re.findall(r"distributed init \(rank ([0-9]{1,6})\): (\w+://)", body)
    if not said:
        return
    distinct = {int(rank) for rank, _ in said}
    # A line that other output has torn apart leaves one of these without the others.
    whole = all(body.count(piece) == len(said) for piece in ("distributed init", "(rank ", said[0][1]))
    if not whole or distinct != set(range(len(distinct))):
        notes.append("the list of ranks is not whole")
    elif info.setdefault("world_size", len(distinct)) != len(distinct):
        notes.append(f"{_count(len(distinct), 'rank')} announced themselves")


# ---------------------------------------------------------------- comparing

TABLE_COLUMNS = [
    "label", "strategy", "world_size", "source", "machine", "synthetic", "status", "epochs", "seconds",
    "images_per_second", "loss", "accuracy", "val_accuracy", "device", "device_name", "device_count", "nodes",
    "local_world_size", "cores", "threads", "dataset", "model", "samples", "batch_size", "path", "note",
]  # fmt: skip


def seconds_per_epoch(df: pd.DataFrame) -> pd.DataFrame:
    """One row a run, from a table of `read_run` or `read_runs`.

    `epochs`: how many were read. `seconds` (training, an epoch) and `images_per_second` (all ranks): the
    median over the epochs, without the first one, which warms up, if there are more. `images_per_second`
    is samples / seconds where the log does not hold it. `loss`, `accuracy`, `val_accuracy`: the last epoch's.
    """
    df = df.reset_index(drop=True)
    per_run = df.groupby(RUN_KEYS, sort=False, dropna=False)
    table = per_run.tail(1).set_index(RUN_KEYS)
    timed = df[df["seconds"].notna()]
    of_run = timed.groupby(RUN_KEYS, sort=False, dropna=False)["seconds"]
    warm_up = (of_run.cumcount() == 0) & (of_run.transform("size") > 1)
    speeds = ["seconds", "images_per_second"]
    medians = timed[~warm_up].groupby(RUN_KEYS, sort=False, dropna=False)[speeds].median()
    table[speeds] = medians.reindex(table.index)
    table["epochs"] = per_run["epoch"].count()
    computed = table["samples"].astype("Float64").to_numpy(float, na_value=np.nan) / table["seconds"]
    table["images_per_second"] = table["images_per_second"].fillna(computed.replace(np.inf, np.nan))
    return table.reset_index().reindex(columns=TABLE_COLUMNS)


def speedup_table(df: pd.DataFrame, baseline: str | Iterable[str] | None = None) -> pd.DataFrame:
    """How each run compares with its baseline: the table of `seconds_per_epoch` (or `df`, if it is one) and

    `speedup`: the baseline's seconds an epoch / the run's, for the same number of images (strong scaling).
    Where the two runs' `samples` differ, or only one is known, it is the ratio of their images/s. Where
    neither is known (console text) the same number is assumed, and `note` says so. Missing when dataset or
    model differ.
    `efficiency`: speedup / world size; missing for DataParallel, where one rank drives several devices.
    `oversubscribed`: more ranks on a node than it has cores; missing on GPUs, and where the log cannot say.

    `baseline`: the label of the run to compare with, or several, one a machine. Otherwise it is the machine's
    only timed run with world size 1 (DataParallel aside). Runs are compared only with runs of the same source
    and machine. Unfinished and failed runs stay, with what epochs they have; `note` says so. Raises RunError
    when a machine has no baseline, or several.
    """
    table = (seconds_per_epoch(df) if "epoch" in df else df).reset_index(drop=True)
    if table.empty:
        raise RunError("no runs to compare")
    named = [baseline] if isinstance(baseline, str) else list(baseline or [])
    unknown = [name for name in named if name not in set(table["label"])]
    if unknown:
        raise RunError(f"no run is called {unknown[0]!r}; there are: {', '.join(table['label'])}")
    ranks = table["local_world_size"].fillna(table["world_size"].astype("Float64") / table["nodes"].astype("Float64"))
    table["oversubscribed"] = (ranks > table["cores"]).astype("boolean").where(table["device"].eq("cpu").fillna(False))

    compared = {}
    for (source, machine), runs in table.groupby(["source", "machine"], sort=False, dropna=False):
        base = _baseline(runs, named, f"{source} runs on {machine}")
        compared |= {index: _compare(run, base) for index, run in runs.iterrows()}
    columns = ["speedup", "efficiency", "baseline", "note"]
    table[columns] = pd.DataFrame.from_dict(compared, orient="index", columns=columns)
    return table[[name for name in table if name != "note"] + ["note"]]


def _baseline(runs: pd.DataFrame, named: list[str], where: str) -> pd.Series:
    chosen = runs[runs["label"].isin(named)]
    if chosen.empty:
        one_rank = runs["world_size"].eq(1).fillna(False) & runs["strategy"].ne("dp").fillna(True)
        chosen = runs[one_rank & runs["seconds"].notna()]
    if len(chosen) != 1:
        found = f"several baselines ({', '.join(chosen['label'])})" if len(chosen) else "no timed run with world size 1"
        raise RunError(f"{where}: {found}; name the one to compare with, out of: {', '.join(runs['label'])}")
    if chosen["seconds"].isna().all():
        raise RunError(f"baseline {chosen['label'].iloc[0]!r} has no timed epoch")
    return chosen.iloc[0]


def _compare(run: pd.Series, base: pd.Series) -> tuple[float, float, str, str]:
    notes = [run["note"]] if pd.notna(run["note"]) and run["note"] else []
    unlike = [k for k in ("dataset", "model") if pd.notna(run[k]) and pd.notna(base[k]) and run[k] != base[k]]
    before, after = base["seconds"], run["seconds"]
    if unlike:
        notes.append(f"not comparable with {base['label']}: another {' and '.join(unlike)}")
        before = after = math.nan
    elif pd.isna(run["samples"]) and pd.isna(base["samples"]):
        if run["label"] != base["label"]:
            notes.append("number of images unknown, taken as the baseline's")
    elif pd.isna(run["samples"]) or pd.isna(base["samples"]) or run["samples"] != base["samples"]:
        before, after = 1 / base["images_per_second"], 1 / run["images_per_second"]
    speedup = before / after if after else math.nan
    for one, whose in [(run, "this run"), (base, "the baseline")]:
        if one["status"] in ("unfinished", "failed", "resumable") and (one is run or run["label"] != base["label"]):
            notes.append(f"{whose} {one['status']}: from {_count(one['epochs'], 'epoch')}")
    spread = pd.isna(run["world_size"]) or (pd.notna(run["strategy"]) and run["strategy"] == "dp")
    efficiency = math.nan if spread else speedup / run["world_size"]
    return speedup, efficiency, base["label"], "; ".join(notes)


# ---------------------------------------------------------------- command


def format_table(table: pd.DataFrame) -> str:
    """A speed-up table as text for people, rounded, the notes below it."""

    def rounded(column, digits):
        return ["-" if pd.isna(v) else f"{v:,.{digits}f}" for v in table[column]]

    def plain(column):
        return ["-" if pd.isna(v) else str(v) for v in table[column]]

    shown = pd.DataFrame(
        {
            "run": plain("label"),
            "source": table["source"].where(table["source"] == "live", table["source"] + ": " + table["machine"]),
            "data": np.where(table["synthetic"].fillna(False), "synthetic", plain("dataset")),
            "ranks": plain("world_size"),
            "threads": plain("threads"),
            "epochs": plain("epochs"),
            "s/epoch": rounded("seconds", 2),
            "images/s": rounded("images_per_second", 0),
            "speed-up": rounded("speedup", 2),
            "efficiency": ["-" if pd.isna(v) else f"{v:.0%}" for v in table["efficiency"]],
            "status": plain("status"),
        }
    )
    lines = [shown.to_string(index=False), ""]
    for _, run in table.iterrows():
        notes = [run["note"]] if run["note"] else []
        if run["oversubscribed"] is True:
            notes.insert(0, f"more ranks than cores ({run['cores']})")
        lines += [f"{run['label']}: {'; '.join(notes)}"] if notes else []
    return "\n".join(lines).rstrip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prints how much faster each run is than its baseline.")
    parser.add_argument("logs", nargs="+", help="run logs, folders of them, or globs")
    parser.add_argument("--baseline", action="append", help="label of the run to compare with (default: world size 1)")
    parser.add_argument("--csv", type=Path, help="write the table, unrounded, to this file as well")
    args = parser.parse_args(argv)
    warnings.showwarning = lambda message, *rest: print(f"runs.py: {message}", file=sys.stderr)
    try:
        table = speedup_table(read_runs(args.logs), args.baseline)
        table = table.sort_values(["source", "machine", "world_size"], kind="stable")
        if args.csv:
            args.csv.parent.mkdir(parents=True, exist_ok=True)
            unfinished = args.csv.with_name(args.csv.name + ".part")
            table.to_csv(unfinished, index=False)
            os.replace(unfinished, args.csv)
    except (RunError, OSError) as error:
        print(f"runs.py: {error}", file=sys.stderr)
        return 2
    print(format_table(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
