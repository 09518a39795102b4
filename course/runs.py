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
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from course import console, log_fields
from course.lesson import some

LOG_ENDINGS = {".jsonl", ".txt", ".log"}
RUN_KEYS = ["label", "path"]  # together they name one run
UNREAD = {"kind", "time", "crc"}  # of a run record; logs of earlier versions have a checksum


class RunError(ValueError):
    """A log that cannot be read, or runs that cannot be compared. The message is one line and says why."""


# ---------------------------------------------------------------- reading


def read_run(path: str | os.PathLike) -> pd.DataFrame:
    """Read the last run of a log: one row per epoch; the fields of the whole run are repeated in each row.

    Columns: `label`, the log's own or else the file's name; every number of the epoch records (`epoch` from 0,
    `accuracy` from 0 to 1, `seconds` of training alone, `images_per_second` of all ranks); every field of the run
    record; and
    `source`  "live", or "recorded" for a log under results/recorded;
    `machine` the folder under results/recorded, else "this machine";
    `status`  "completed", "failed", "resumable" (stopped by a signal, its checkpoint written), "unfinished", or
              "unknown" for console text that cannot say;
    `restarts` how often the run went on from a checkpoint;
    `note`    what could not be read or was left out; "" if nothing.

    A run without any epoch gives one row whose epoch is missing. Raises RunError if nothing can be read.
    """
    return _frame([_parse(path)])


def read_runs(paths: str | os.PathLike | Iterable | Mapping) -> pd.DataFrame:
    """Read many logs into one table, see `read_run`.

    `paths`: a file, a folder (every *.jsonl, *.txt and *.log in it and below, READMEs aside), a glob, a list
    of these, or `{label: path}`. Two runs with one label are told apart by their folder. A log that cannot be
    read is left out with a warning. Raises RunError when none can be read.
    """
    if isinstance(paths, Mapping):
        wanted = [(path, label) for label, path in paths.items()]
    else:
        names = [paths] if isinstance(paths, str | os.PathLike) else paths
        wanted = [(path, None) for path in dict.fromkeys(path for name in names for path in _files(name))]
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
    """The logs that a path, folder or glob stands for; the path itself where there are none, for _parse to refuse."""
    name = os.fsdecode(path)
    if os.path.isdir(name):
        logs = [str(p) for p in sorted(Path(name).rglob("*"))
                if p.suffix in LOG_ENDINGS and not p.name.lower().startswith("readme")]
    else:
        logs = [] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
    return logs or [name]


def _make_labels_unique(infos: list[dict]) -> None:
    for form in ("{folder}/{label}", "{label} #{number}"):
        runs_of, number = Counter(info["label"] for info in infos), Counter()
        for info in infos:
            label, folder = info["label"], Path(info["path"]).absolute().parent.name
            if runs_of[label] > 1:
                number[label] += 1
                info["label"] = form.format(folder=folder, label=label, number=number[label])


def _parse(path, label=None) -> tuple[dict, list[dict]]:
    """One log as (the fields of the whole run, one dict per epoch)."""
    name = os.fsdecode(path)
    if os.path.isdir(name):
        raise RunError(f"{name}: no run log in it (*.jsonl, *.txt, *.log)")
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"{name}: cannot be read: {error.strerror}") from error
    if not text.strip():
        raise RunError(f"{name}: empty: the run wrote nothing, or has not begun")
    notes: list[str] = []
    info, rows = (_read_json if text.lstrip().startswith("{") else console.read)(text, notes)
    if not info and not rows:
        raise RunError(f"{name}: neither a run record nor an epoch line in it; is it a run log?")
    for field, kind in (log_fields.RUN | log_fields.END).items():
        if info.get(field) is not None and not _fits(info[field], kind):
            raise RunError(f"{name}: cannot be read: its field {field} is {info[field]!r:.50}")

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


def _frame(parsed: list[tuple[dict, list[dict]]]) -> pd.DataFrame:
    """All runs in one go: building a table for each run and concatenating them would take most of the time."""
    known = log_fields.READER | log_fields.RUN | log_fields.END
    infos = pd.DataFrame([info for info, _ in parsed], dtype=object)
    others = infos[[name for name in infos if name not in known]].convert_dtypes()
    infos = infos.reindex(columns=[*known]).astype(known).join(others)

    epochs = pd.DataFrame([row for _, rows in parsed for row in rows or [{}]])
    names = dict.fromkeys(["epoch", *log_fields.EPOCH, *epochs])
    epochs = epochs.reindex(columns=[*names]).astype(dict.fromkeys(names, float) | {"epoch": "Int64"})
    # a field that both records hold, such as a learning rate that changes, stands beside the run's own
    epochs = epochs.rename(columns={name: f"epoch_{name}" for name in names if name in infos})
    infos = infos.take(np.repeat(range(len(parsed)), [max(1, len(rows)) for _, rows in parsed])).reset_index(drop=True)
    return pd.concat([infos.pop("label"), epochs, infos], axis=1)


def _records(text: str, notes: list[str]) -> list[dict]:
    """Every whole record of the log; other lines are noted."""
    records, unread = [], set()
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        # A run that was killed leaves half a record; the next run's first record is then glued to it.
        for piece in filter(None, re.split(r'(?=\{"kind")', line.strip())):
            try:
                records.append(_checked(json.loads(piece)))
            except ValueError:
                unread.add(number)
    if len(lines) in unread:
        notes.append("last line cut off")
        unread.remove(len(lines))
    if unread:
        notes.append(some(len(unread), "damaged line"))
    return [record for record in records if isinstance(record, dict) and "kind" in record]


def _checked(record):
    """The record. ValueError where an epoch has no number, or an end no status."""
    if isinstance(record, dict):
        if record.get("kind") == "epoch" and not _fits(record.get("epoch"), "Int64"):
            raise ValueError("an epoch without its number")
        if record.get("kind") == "end" and not isinstance(record.get("status"), str):
            raise ValueError("an end without its status")
    return record


def _fits(value, kind: str) -> bool:
    """Whether a value of a log can stand in a column of this type of pandas. Each can be a text."""
    if kind == "Int64":
        return isinstance(value, int) and abs(value) < 2 ** 63
    return isinstance(value, {"float64": int | float, "boolean": bool}.get(kind, object))


def _read_json(text: str, notes: list[str]) -> tuple[dict, dict[int, dict]]:
    """(the fields of the last run in the file, {epoch: its numbers})"""
    records = _records(text, notes)
    starts = [i for i, record in enumerate(records) if record["kind"] == "run"]
    if not starts:
        return {}, {}
    if len(starts) > 1:
        notes.append(f"{some(len(starts) - 1, 'earlier run')} in this file left out")
    head, *body = records[starts[-1]:]

    info = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in head.items()
            if name not in UNREAD and value is not None}
    info |= {"status": "unfinished", "restarts": 0}
    end, sizes = None, [info.get("world_size")]
    rows: dict[int, dict] = {}
    for record in body:
        if record["kind"] == "epoch":
            row = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "crc"}
            rows.setdefault(row["epoch"], row)
        elif record["kind"] == "end":
            end = record
        elif record["kind"] == "restart":  # the run went on: an earlier `end` was not its end
            end, info["restarts"] = None, info["restarts"] + 1
            sizes.append(record.get("world_size", sizes[-1]))
            info |= {"epochs": record["epochs"]} if "epochs" in record else {}  # it may be asked for more of them
    if info["restarts"]:
        notes.append(f"went on from a checkpoint {some(info['restarts'], 'time')}")
    if len(set(map(str, sizes))) > 1:
        notes.append(f"world size changed: {', '.join(map(str, sizes))}")
    if not end:
        notes.append("no end record")
        return info, rows
    info |= {"status": end["status"], "total_seconds": end.get("seconds"), "error": end.get("error")}
    if info["error"]:
        notes.append(" ".join(str(info["error"]).split())[:200])
    return info, rows


# ---------------------------------------------------------------- comparing

TABLE_COLUMNS = [
    "label", "strategy", "world_size", "source", "machine", "synthetic", "status", "epochs", "seconds",
    "images_per_second", "loss", "accuracy", "val_accuracy", "device", "device_name", "device_count", "nodes",
    "local_world_size", "cores", "threads", "dataset", "model", "samples", "batch_size", "path", "note",
]


def seconds_per_epoch(df: pd.DataFrame) -> pd.DataFrame:
    """One row per run, from a table of `read_run` or `read_runs`; its columns are TABLE_COLUMNS.

    `epochs`: how many were read. `seconds` (training, per epoch) and `images_per_second` (all ranks): the
    median over the epochs, without the first epoch, which warms up, if there are more. `images_per_second`
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


def speedup_table(df: pd.DataFrame, baseline: str | Iterable[str] | None = None) -> pd.DataFrame:
    """How each run compares with its baseline: the table of `seconds_per_epoch` (or `df`, if it is one) and

    `speedup`: the baseline's seconds per epoch / the run's, for the same number of images. Where the two runs'
    `samples` differ, or are not known, it is the ratio of their images/s. Missing when dataset or model differ.
    `efficiency`: speedup / world size; missing for DataParallel, where one rank drives several devices.
    `oversubscribed`: more ranks on a node than it has cores; missing on GPUs, and where the log cannot say.

    `baseline`: the label of the run to compare with, or several, one per machine. Otherwise it is the machine's
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
        problem = "several baselines" if len(chosen) else "no timed run with world size 1"
        raise RunError(f"{where}: {problem}; name the run to compare with, out of: {', '.join(runs['label'])}")
    if chosen["seconds"].isna().all():
        raise RunError(f"baseline {chosen['label'].iloc[0]!r} has no timed epoch")
    return chosen.iloc[0]


def _compare(run: pd.Series, base: pd.Series) -> tuple[float, float, str, str]:
    """(speed-up, efficiency, the baseline's label, the run's notes and those on the comparison)"""
    notes = [run["note"]] if pd.notna(run["note"]) and run["note"] else []
    unlike = [k for k in ("dataset", "model") if pd.notna(run[k]) and pd.notna(base[k]) and run[k] != base[k]]
    before, after = base["seconds"], run["seconds"]
    if unlike:
        notes.append(f"not comparable with {base['label']}: another {' and '.join(unlike)}")
        before = after = math.nan
    elif pd.isna(run["samples"]) or pd.isna(base["samples"]) or run["samples"] != base["samples"]:
        before, after = 1 / base["images_per_second"], 1 / run["images_per_second"]
    speedup = before / after if after else math.nan
    both = {"this run": run} | ({"the baseline": base} if run["label"] != base["label"] else {})
    for whose, compared in both.items():
        if compared["status"] in ("unfinished", "failed", "resumable"):
            notes.append(f"{whose} {compared['status']}: from {some(compared['epochs'], 'epoch')}")
    no_ranks = pd.isna(run["world_size"]) or (pd.notna(run["strategy"]) and run["strategy"] == "dp")
    return speedup, math.nan if no_ranks else speedup / run["world_size"], base["label"], "; ".join(notes)
