"""Reads run logs into pandas, and compares runs: speed-up and efficiency. scripts/runs.py is the command of it.

A log is what `main.py --log-file F` wrote (JSON lines), or the console text of a run. A figure that cannot be
read is missing, never guessed, and the column `note` says what was left out. Needs no torch.
"""

import glob
import json
import math
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from course import console, log_fields
from course.lesson import some

READER_FIELDS = dict.fromkeys(["path", "source", "machine", "status", "note"], log_fields.TEXT)
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
    for told_apart in ("{folder}/{label}", "{label} #{number}"):
        runs_of, number = Counter(info["label"] for info in infos), Counter()
        for info in infos:
            label, folder = info["label"], Path(info["path"]).absolute().parent.name
            if runs_of[label] > 1:
                number[label] += 1
                info["label"] = told_apart.format(folder=folder, label=label, number=number[label])


def _parse(path, label) -> tuple[dict, list[dict]]:
    """One log as (what belongs to the run, one dict an epoch)."""
    name = os.fsdecode(path)
    text = _text(name)
    notes: list[str] = []
    records, looks_like_json = _json_records(text, notes)
    info, rows = _read_json(records, notes) if looks_like_json else console.read(text, notes)
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

    recorded = re.search(r"/results/recorded/(?:([^/]+)/)?", Path(name).absolute().as_posix())
    info |= {"path": name, "source": "recorded" if recorded else "live", "note": "; ".join(notes),
             "machine": recorded[1] or "unnamed machine" if recorded else "this machine",
             "label": label or info.get("label") or Path(name).stem}
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
    known = READER_FIELDS | log_fields.RUN | log_fields.END
    infos = pd.DataFrame([info for info, _ in parsed], dtype=object)
    others = infos[[name for name in infos if name not in known]].convert_dtypes()
    infos = infos.reindex(columns=[*known]).astype({name: log_fields.COLUMNS[kind] for name, kind in known.items()})
    infos = infos.join(others)

    epochs = pd.DataFrame([row for _, rows in parsed for row in rows or [{}]])
    names = dict.fromkeys(["epoch", *log_fields.EPOCH, *epochs])
    epochs = epochs.reindex(columns=[*names]).astype(dict.fromkeys(names, float) | {"epoch": "Int64"})
    # a field that both records hold, such as a learning rate that changes, stands beside the run's own
    epochs = epochs.rename(columns={name: f"epoch_{name}" for name in names if name in infos})
    infos = infos.take(np.repeat(range(len(parsed)), [max(1, len(rows)) for _, rows in parsed])).reset_index(drop=True)
    return pd.concat([infos.pop("label"), epochs, infos], axis=1)


# ---------------------------------------------------------------- JSON lines

DECODER = json.JSONDecoder()
RECORD_START = re.compile(r'\{\s*"kind"')
CHECKSUM = re.compile(r', "crc": (\d+)\}\s*$')
NAME = re.compile(r"[A-Za-z]\w*")


def _json_records(text: str, notes: list[str]) -> tuple[list[dict], bool]:
    """Every whole record of the log, and whether this is a JSON log at all."""
    found, damaged = [], []  # (line number, record)
    lines = text.split("\n")  # not splitlines(): a JSON string may hold other line separators
    for number, line in enumerate(lines, 1):
        line = line.strip()
        inside = _whole_records(line)
        found += [(number, record) for record, _ in inside]
        if line and [length for _, length in inside] != [len(line)]:
            damaged.append(number)
    if not found and not text.lstrip().startswith("{"):
        return [], False
    if any("crc" in record for _, record in found):  # then one without it is damaged, too
        damaged = sorted({*damaged, *(number for number, record in found if "crc" not in record)})
        found = [(number, record) for number, record in found if record.pop("crc", None) is not None]
    if damaged and damaged[-1] == len(lines):
        notes.append("last line cut off")
        damaged.pop()
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        notes.append(f"{some(len(damaged), 'damaged line')} ({shown})")
    return [record for _, record in found], True


def _whole_records(line: str) -> list[tuple[dict, int]]:
    """Each record in the line, and its length. A run that was killed leaves half a record; the next run's first one is
    then glued to it."""
    found, end = [], 0
    for start in (0, *(match.start() for match in RECORD_START.finditer(line, 1))):
        if start >= end:
            with suppress(ValueError, RecursionError):
                record, stop = DECODER.raw_decode(line, start)
                if type(record) is dict:
                    end = stop
                    if _is_record(line[start:end], record):
                        found.append((record, end - start))
    return found


def _is_record(line: str, record: dict) -> bool:
    """A flipped digit is still JSON: main.py's records end with a CRC-32 of what stands before it."""
    found = CHECKSUM.match(line, max(0, line.rfind(', "crc"')))
    intact = "crc" not in record if not found else int(found[1]) == zlib.crc32(line[: found.start()].encode())
    return intact and type(record.get("kind")) is str


def _read_json(records: list[dict], notes: list[str]) -> tuple[dict, dict[int, dict]]:
    if not records:
        return {}, {}
    starts = [i for i, record in enumerate(records) if record["kind"] == "run"]
    if not starts:
        notes.append("no run record")
    elif earlier := len(starts) - 1 + any(record["kind"] == "epoch" for record in records[: starts[0]]):
        notes.append(f"{some(earlier, 'earlier run')} in this file left out")
    head, *body = records[starts[-1] :] if starts else [{}, *records]
    epochs = [record for record in body if record["kind"] == "epoch"]
    run_id = head.get("run_id", epochs[-1].get("run_id") if epochs else None)

    info = _run_fields(head, notes) | {"status": "unfinished", "restarts": 0}
    if "started" not in info and log_fields.is_a(head.get("time"), log_fields.REAL) and 0 <= head["time"] < 1e10:
        info["started"] = datetime.fromtimestamp(int(head["time"]), UTC).isoformat()
    end, sizes = None, [info.get("world_size")]
    rows: dict[int, dict] = {}
    left_out = Counter()
    for record in body:
        kind = record["kind"]
        if run_id is not None and record.get("run_id", run_id) != run_id:
            left_out["of another run"] += 1
        elif kind == "epoch":
            row = log_fields.epoch_row(record)
            if row is None:
                left_out["with an impossible value"] += 1
            elif rows.setdefault(row["epoch"], row) is not row:
                left_out["repeating an epoch"] += 1
        elif kind == "end":
            end = record
        elif kind == "restart":  # the run went on: what ended before was not its end
            end, info["restarts"] = None, info["restarts"] + 1
            sizes += [size] if log_fields.is_a(size := record.get("world_size"), log_fields.COUNT) else []
            if log_fields.is_a(record.get("epochs"), log_fields.COUNT):
                info["epochs"] = record["epochs"]  # a run that goes on may be asked for more
        else:
            left_out["of unknown kind"] += 1
    notes += [f"left out {some(n, 'record')} {why}" for why, n in left_out.items()]
    if info["restarts"]:
        notes.append(f"went on from a checkpoint {some(info['restarts'], 'time')}")
    if len(set(sizes)) > 1:
        notes.append(f"world size changed: {', '.join(map(str, sizes))}")
    if end:
        _put_end(end, info, notes)
    else:
        notes.append("no end record")
    return info, rows


def _run_fields(head: dict, notes: list[str]) -> dict:
    info = {}
    for name, value in head.items():
        if name in ("kind", "time") or value is None:
            continue
        if name in log_fields.RUN:
            log_fields.put(info, name, value, notes)
        elif name in {"epoch", *READER_FIELDS, *log_fields.END, *log_fields.EPOCH}:
            notes.append(f"field {name} of the run record left out")
        elif NAME.fullmatch(name) and (type(value) is not int or abs(value) < log_fields.LARGEST_INT):
            info[name] = json.dumps(value) if type(value) in (dict, list) else value
    return info


def _put_end(record: dict, info: dict, notes: list[str]) -> None:
    if record.get("status") in log_fields.STATUSES:
        info["status"] = record["status"]
    else:
        notes.append("the end record has no known status")
    for name, kind in log_fields.END.items():
        value = record.get("seconds" if name == "total_seconds" else name)
        if log_fields.is_a(value, kind) and (kind == log_fields.TEXT or value >= 0):
            info[name] = value
    if info["status"] == "failed" and "error" in info:
        notes.append(" ".join(info["error"].split())[:200])


# ---------------------------------------------------------------- comparing

TABLE_COLUMNS = [
    "label", "strategy", "world_size", "source", "machine", "synthetic", "status", "epochs", "seconds",
    "images_per_second", "loss", "accuracy", "val_accuracy", "device", "device_name", "device_count", "nodes",
    "local_world_size", "cores", "threads", "dataset", "model", "samples", "batch_size", "path", "note",
]


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
    computed = table["samples"].astype(float) / table["seconds"]
    table["images_per_second"] = table["images_per_second"].fillna(computed.replace(np.inf, np.nan))
    return table.reset_index().reindex(columns=TABLE_COLUMNS)


def command_parts(df: pd.DataFrame) -> pd.DataFrame:
    """Where the seconds of whole commands went, one row a run. `df`, of `read_runs`, needs one more column:
    `command_seconds`, what the clock said of the whole command, for a log knows nothing of what was before it.

    `training`, `evaluating` (and logging): of all epochs; `once`: the rest, start and end; `epoch`: the median of an
    epoch with its evaluation. Missing where the log holds fewer than two epochs.
    """
    rows = []
    for _, epochs in df.groupby([key for key in RUN_KEYS if key in df], sort=False, dropna=False):
        between = epochs["time"].diff()  # from the end of an epoch to that of the next
        training = epochs["seconds"].sum(min_count=1)
        evaluating = (between - epochs["seconds"]).median() * len(epochs)
        whole = epochs["command_seconds"].iloc[-1]
        rows.append({"label": epochs["label"].iloc[-1], "once": whole - training - evaluating, "training": training,
                     "evaluating": evaluating, "whole": whole, "epoch": between.median()})
    return pd.DataFrame(rows)


def speedup_table(df: pd.DataFrame, baseline: str | Iterable[str] | None = None) -> pd.DataFrame:
    """How each run compares with its baseline: the table of `seconds_per_epoch` (or `df`, if it is one) and

    `speedup`: the baseline's seconds an epoch / the run's, for the same number of images.
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
    return table.drop(columns="note").join(pd.DataFrame.from_dict(compared, orient="index", columns=columns))


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
    """(speed-up, efficiency, the baseline's label, the run's notes and those on the comparison)"""
    is_base = run["label"] == base["label"]
    notes = [run["note"]] if pd.notna(run["note"]) and run["note"] else []
    unlike = [k for k in ("dataset", "model") if pd.notna(run[k]) and pd.notna(base[k]) and run[k] != base[k]]
    before, after = base["seconds"], run["seconds"]
    if unlike:
        notes.append(f"not comparable with {base['label']}: another {' and '.join(unlike)}")
        before = after = math.nan
    elif pd.isna(run["samples"]) and pd.isna(base["samples"]):
        notes += [] if is_base else ["number of images unknown, taken as the baseline's"]
    elif pd.isna(run["samples"]) or pd.isna(base["samples"]) or run["samples"] != base["samples"]:
        before, after = 1 / base["images_per_second"], 1 / run["images_per_second"]
    speedup = before / after if after else math.nan
    for one, whose in [(run, "this run")] + [(base, "the baseline")] * (not is_base):
        if one["status"] in ("unfinished", "failed", "resumable"):
            notes.append(f"{whose} {one['status']}: from {some(one['epochs'], 'epoch')}")
    spread = pd.isna(run["world_size"]) or (pd.notna(run["strategy"]) and run["strategy"] == "dp")
    return speedup, math.nan if spread else speedup / run["world_size"], base["label"], "; ".join(notes)


def format_table(table: pd.DataFrame) -> str:
    """A table of `speedup_table` or `seconds_per_epoch` as text for people, rounded, the notes below it."""
    table = table.reindex(columns=[*dict.fromkeys([*table, "speedup", "efficiency", "oversubscribed"])])

    def told(column, form="{}"):
        return ["-" if pd.isna(value) else form.format(value) for value in table[column]]

    shown = pd.DataFrame({
        "run": told("label"),
        "source": table["source"].where(table["source"] == "live", table["source"] + ": " + table["machine"]),
        "data": np.where(table["synthetic"].fillna(False), "synthetic", told("dataset")),
        "ranks": told("world_size"),
        "threads": told("threads"),
        "epochs": told("epochs"),
        "s/epoch": told("seconds", "{:,.2f}"),
        "images/s": told("images_per_second", "{:,.0f}"),
        "speed-up": told("speedup", "{:,.2f}"),
        "efficiency": told("efficiency", "{:.0%}"),
        "status": told("status"),
    })
    lines = [shown.to_string(index=False), ""]
    for _, run in table.iterrows():
        notes = [f"more ranks than cores ({run['cores']})"] if run["oversubscribed"] is True else []
        notes += [run["note"]] if run["note"] else []
        lines += [f"{run['label']}: {'; '.join(notes)}"] if notes else []
    return "\n".join(lines).rstrip()
