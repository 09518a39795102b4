"""The machines of a room in one table: what lesson 07's logs say, recomputed, and what is not believed, named.

A learner is an entry of the folder, as for scripts/grade: a subfolder with run logs, or with a notebook of lesson 07,
whose outputs hold the console of its commands. A log proves nothing by itself; one that contradicts itself is left out.
"""

import ast
import itertools
import json
import re
import statistics
import tempfile
import time
from pathlib import Path

import pandas as pd

from course import runs
from course.lesson import some
from teach import handed_in

GOAL, TEST_IMAGES = 0.55, 10_000
RULES = (f"The race: the least training time until an epoch ends with {GOAL:.0%} of CIFAR-10's {TEST_IMAGES:,} test "
         "images right. Any options of main.py, any number of ranks and threads. Evaluation and start do not count. "
         "Recomputed from the epochs of a log (JSON lines) that has come to its end.")
BELIEVED = 1.5  # times as fast as so many devices: more is no cache, but another baseline
SAME = ["model", "dataset", "samples", "batch_size", "global_batch_size", "optimizer", "device", "threads", "bf16",
        "compile", "channels_last"]  # what runs of one line have in common: all but the ranks


def read(folder):
    """(runs, refused): a row an epoch, with `who` and `name` of the machine; [(file, machine, why)] left out.
    """
    with tempfile.TemporaryDirectory() as scratch:  # for what notebooks hold
        told, refused = read_all(folder, Path(scratch))
    owners = told.dropna(subset="run_id").groupby("run_id").who.nunique()
    copied = told["run_id"].isin(owners[owners > 1].index)
    columns = ["file", "run_id", "name", "label"]
    for file, run_id, name, label in told[copied][columns].drop_duplicates().itertuples(index=False):
        refused.append((Path(file), name or label, f"run {run_id} was handed in by {owners[run_id]} learners"))
    return told[~copied], refused


def read_all(folder, scratch):
    frames, refused, number = [], [], 0
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    taken = {f"machine {place}" for place in range(len(entries) + 1)}  # nobody signs as another's machine
    for entry in entries:
        try:
            logs, name = of_learner(entry, scratch)
        except Exception as problem:  # a link, code too deep for Python to read, a file that has just gone
            refused.append((entry, "no machine", why_not(problem)))
            continue
        number += bool(logs)
        label, name = f"machine {number}", unlike(name, taken) if name and logs else ""
        for path, log in logs:
            try:
                run = runs.read_run(log)
                why = contradiction(run)
            except Exception as problem:  # whatever a log holds
                why = why_not(problem)
            if why:
                refused.append((path, name or label, why))
            else:
                frames.append(run.assign(who=entry.name, name=name, file=str(log), label=label,
                                         json=log.suffix == ".jsonl"))
    columns = ["who", "run_id", "file", "name", "label"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns), refused


def why_not(problem):
    """In a line, without the file's path: it has the learner's name."""
    said = problem.strerror if isinstance(problem, OSError) else str(problem)
    return said.rpartition(": ")[2] if isinstance(problem, runs.RunError) else said or type(problem).__name__


def unlike(name, taken):
    """The name, or where it is taken with a number behind it; now it is taken."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    taken.add(new := next(each for each in itertools.chain([name], numbered) if each not in taken))
    return new


def of_learner(entry, scratch):
    """([(file, the log to read)], the name that the learner wrote or None)."""
    if entry.is_dir() and entry.is_symlink():
        raise handed_in.NotGraded(handed_in.LINK)
    paths = [path for path in (sorted(entry.rglob("*")) if entry.is_dir() else [entry])
             if path.is_file() and not path.is_symlink()
             and "recorded" not in path.relative_to(entry.parent).parts]  # as a learner's whole copy has it
    logs = [(path, path) for path in paths if path.suffix in runs.LOG_ENDINGS and is_log(path)]
    name = next((path.read_text(errors="replace") for path in paths if path.name == "name.txt"), None)
    for path in paths if not logs else []:  # a notebook says less than its logs
        if path.suffix == ".ipynb" and ".ipynb_checkpoints" not in path.parts:
            try:
                notebook = handed_in.read(path)
                logs += [(path, kept(text, scratch)) for text in consoles(notebook)]
            except handed_in.NotGraded:  # no notebook, or none of a lesson
                continue
            name = name or signed(notebook)
    return logs, clean(name)


def is_log(path):
    with path.open("rb") as file:
        return path.suffix == ".jsonl" or b"Epoch: " in file.read(10_000)


def consoles(notebook):
    """What main.py printed in a lesson 07, as text that runs.read_run() takes: of each cell that started it."""
    about = {}
    for cell in notebook.cells if handed_in.lesson_of(notebook) == "07" else []:
        text = "".join(output.get("text", "") for output in cell.get("outputs", []))
        if begun := re.search(r"PyTorch (\S+), (\d+) cores? of ([^,\n]+)", text if not about else ""):
            about = {"torch": begun[1], "cores": begun[2], "device_name": begun[3]}
        if who := re.search(r"^(\w+), \w+: (\d+) rank\(s\) x batch (\d+) .*; .*\b(\d+) thread\(s\)", text, re.M):
            images = re.search(r"^(\w+): (\d+) training", text, re.M)
            told = dict(zip(("model", "world_size", "batch_size", "threads"), who.groups(), strict=True))
            told |= dict(zip(("dataset", "samples"), images.groups(), strict=True)) if images else {}
            yield "".join(f"# {name}: {value}\n" for name, value in (about | told).items()) + text


def kept(text, folder):
    path = folder / f"{len(list(folder.iterdir()))}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def signed(notebook):
    """What the notebook gives to `board_name`, a text; None where it gives nothing."""
    statements, _ = handed_in.taken_apart(notebook)
    for statement in statements:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "board_name":
            name = getattr(statement.value, "value", None)
            return name if isinstance(name, str) else None
    return None


def clean(name):
    """At most 40 characters of one line; None for nothing."""
    line = "".join(letter for letter in (name or "").strip().partition("\n")[0] if letter.isprintable())
    return line[:40].strip() or None


def contradiction(run):
    """Why the run is not believed, or None."""
    epochs, one = run.dropna(subset=["epoch"]), run.iloc[0]
    if epochs.empty:
        return "no epoch in it"
    if damage := re.search(r"damaged line|cut off|not read in full|of the run record|is not a", one["note"]):
        return f"damaged ({damage[0]})"
    if one["status"] not in ("completed", "unknown"):
        return f"not at its end: {one['status']}"
    if one.get("synthetic") is True or one.get("dataset") == "synthetic":
        return "synthetic images"
    for name in ("seconds", "images_per_second"):
        if not (epochs[name] > 0).all():
            return f"{name} of an epoch is not above 0"
    phases = epochs[[name for name in epochs if name.endswith("_seconds") and name != "total_seconds"]].sum(axis=1)
    if (phases > 1.01 * epochs["seconds"]).any():
        return "the phases of an epoch take longer than the epoch"
    images = (epochs["seconds"] * epochs["images_per_second"]).dropna()
    if images.max() > 1.02 * images.min():
        return "seconds and images/s of its epochs do not fit"
    if pd.notna(tested := one.get("test_samples")) and one["status"] == "completed":
        right = (epochs["val_accuracy"] * tested).dropna()
        if ((right - right.round()).abs() > 1e-3).any():
            return f"an accuracy is no whole number of {some(int(tested), 'test image')}"
    whole = one.get("total_seconds")
    if pd.notna(whole) and not one["restarts"] and epochs["seconds"].sum() > 1.01 * whole:
        return "its epochs take longer than the whole run"
    if pd.notna(one.get("time")) and one["time"] > time.time() + 86_400:
        return "it lies in the future"
    return None


def speedups(told):
    """A row for each machine and number of ranks: label, name, ranks, speedup, and what the machine is. Plus refusals.

    Of each machine the line with the most numbers of ranks among runs that differ in nothing else, one rank among them.
    """
    rows, refused = [], []
    for label, of_machine in told.groupby("label", sort=False):
        table = runs.seconds_per_epoch(of_machine.assign(label=of_machine["file"]))
        about = of_machine.drop_duplicates("file").set_index("file")
        table = table.join(about[[c for c in ("name", "cores", "device_name", "torch", "time", *SAME)
                                  if c in about and c not in table]], on="label")
        same = [column for column in SAME if column in table]
        lines = [line for _, line in table.groupby(same, dropna=False) if (line["world_size"] == 1).any()]
        if not lines:
            refused.append((label, of_machine["name"].iloc[0] or label, "no run of one rank to compare with"))
            continue
        line = max(lines, key=lambda one: one["world_size"].nunique()).drop_duplicates("world_size", keep="last")
        alone = line.loc[line["world_size"] == 1, "images_per_second"].iloc[0]
        for _, run in line.sort_values("world_size").iterrows():
            ranks, speedup = int(run["world_size"]), run["images_per_second"] / alone
            on_cores = str(run.get("device")) == "cpu" and pd.notna(run.get("cores"))
            devices = min(ranks, run["cores"]) if on_cores else ranks
            if speedup > BELIEVED * devices:
                refused.append((Path(run["label"]), run["name"] or label, f"{speedup:.1f} times as fast with "
                                f"{some(ranks, 'rank')} on {some(int(devices), 'device')} is not believed"))
                continue
            rows.append({"label": run["name"] or label, "named": run["name"] != "", "ranks": ranks, "speedup": speedup,
                         "machine": described(run)})
    return pd.DataFrame(rows, columns=["label", "named", "ranks", "speedup", "machine"]), refused


def described(run):
    cores = some(int(run["cores"]), "core") if pd.notna(run.get("cores")) else "cores not told"
    kind = run.get("device_name") if pd.notna(run.get("device_name")) else ""
    version = f"PyTorch {run['torch'].partition('+')[0]}" if pd.notna(run.get("torch")) else ""
    return ", ".join(filter(None, [cores, kind, version]))


def race(told):
    """Who reached GOAL, the fastest first: label, seconds, accuracy, ranks, machine, file."""
    rows = []
    for file, run in told[told["json"]].groupby("file", sort=False):
        one = run.iloc[0]
        all_tested = pd.isna(one.get("test_samples")) or one["test_samples"] == TEST_IMAGES
        if one.get("dataset") != "cifar10" or not all_tested or one["status"] != "completed":
            continue
        run = run.sort_values("epoch")
        there = run[run["val_accuracy"] >= GOAL]
        if not there.empty:
            seconds = run.loc[run["epoch"] <= there["epoch"].iloc[0], "seconds"].sum()
            rows.append({"label": one["name"] or one["label"], "seconds": seconds,
                         "accuracy": there["val_accuracy"].iloc[0], "ranks": int(one["world_size"]),
                         "machine": described(one), "file": file})
    columns = ["label", "seconds", "accuracy", "ranks", "machine", "file"]
    return pd.DataFrame(rows, columns=columns).sort_values("seconds", ignore_index=True)


def median(table):
    """{ranks: the median of all machines' speed-ups}, where at least three tell."""
    return {ranks: statistics.median(group) for ranks, group in table.groupby("ranks").speedup if len(group) >= 3}


def run_record(file):
    """The first record of a log, as it was written."""
    with open(file, encoding="utf-8") as lines:
        return next(record for record in map(json.loads, lines) if record.get("kind") == "run")
