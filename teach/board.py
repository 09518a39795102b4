"""Draws the machines of a class in one picture, from the logs that lesson 07 left: scripts/class_board starts it.

    scripts/class_board handed-in               a folder with a subfolder, or a notebook of lesson 07, for each learner
    scripts/class_board handed-in --watch 10    again whenever a file has changed, until Ctrl-C
    scripts/class_board handed-in --rerun       then repeat the winner's command here, and say how far off it is

A line of the first picture joins runs of one folder that differ only in their number of ranks. The board shows
machines, not people: a name is shown only if its learner wrote one (lesson 07, board_name). Each log that is not drawn
is named, and why. A log proves nothing by itself: it is a text file.

Into --out go board.png, race.png, board.csv and race.csv, and index.html, which shows them.

Exit status: 0 drawn, 1 nothing to draw, 2 bad input, 130 stopped by Ctrl-C.
"""

import ast
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from course import processes, rank_program, runs
from course.lesson import ROOT, alt_text, some
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, bar_style, head, line_key, line_style, name_rows, ticks
from teach import handed_in, report
from trainer import files, options

GOAL, TEST_IMAGES = 0.55, 10_000
RULES = (f"The race: the least training time until an epoch ends with {GOAL:.0%} of CIFAR-10's {TEST_IMAGES:,} test "
         "images right. Any options of main.py, any number of ranks and threads. Evaluation and start do not count. "
         "Recomputed from the epochs of a log (JSON lines) that has come to its end.")
BELIEVED = 1.5  # times as fast as so many devices: more is no cache, but another baseline
SAME = ["model", "dataset", "samples", "batch_size", "global_batch_size", "optimizer", "device", "threads", "bf16",
        "compile", "channels_last", "DataParallel"]  # what runs of one line have in common: all but the ranks
NO_LINE = "no run of one rank and one of more, alike in all else"
FEW, MOST_IN_RACE = 6, 10  # machines whose lines all have colours and labels of their own; bars of the race
# What --rerun takes over from a log: how it trained, and nothing that names a path.
REPEATED = ("samples", "model", "epochs", "batch_size", "global_batch_size", "optimizer", "lr",
            "lr_scaling", "schedule", "warmup_epochs", "accumulate", "clip", "weight_decay", "seed", "bucket_cap_mb",
            "comm_hook")
NEEDED = {"world_size": int, "threads": int, "device": str, "global_batch_size": int | None,
          "lr_scale": int | float | None}
LONGEST, MOST = 3600, 64  # seconds of a repetition; ranks, and threads of each


def read(folder: Path) -> tuple[pd.DataFrame, list[tuple]]:
    """(a row for each epoch of a run, with `file` and the `label` of its machine; [(file, machine, why)] left out).

    A learner is an entry of the folder, as for scripts/grade: a subfolder with run logs, or with a notebook of lesson
    07, whose outputs hold the consoles of its commands.
    """
    frames, refused, number = [], [], 0
    with tempfile.TemporaryDirectory() as scratch:  # for the consoles of notebooks
        for entry in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
            try:
                logs, name = of_learner(entry, Path(scratch))
            except Exception as problem:  # a link, code too deep for Python to read, a file that has just gone
                refused.append((entry, "no machine", why_not(problem)))
                continue
            number += bool(logs)
            label = f"{name} ({number})" if name else f"machine {number}"  # nobody signs as another's machine
            for path, log in logs:
                try:
                    run = runs.read_run(log)
                    why = handed_in.LINK if log.is_symlink() else contradiction(run)
                except Exception as problem:  # whatever a log holds
                    why = why_not(problem)
                if why:
                    refused.append((path, label, why))
                else:
                    frames.append(run.assign(named=bool(name), file=str(path), label=label, json=log.suffix == ".jsonl",
                                             changed=log.stat().st_mtime))
    if not frames:
        return pd.DataFrame(columns=["file", "label"]), refused
    epochs = pd.concat(frames, ignore_index=True)
    files_of = epochs.drop_duplicates("file").sort_values("changed", kind="stable").groupby("run_id")
    for original, *copies in (list(of_run.itertuples()) for _, of_run in files_of):
        refused += [(Path(copy.file), copy.label, f"the same run as a log of {original.label}, which counts")
                    for copy in copies]
        epochs = epochs[~epochs["file"].isin([copy.file for copy in copies])]
    return epochs, refused


def why_not(problem):
    """In a line, without the file's path, which holds the learner's name."""
    text = problem.strerror if isinstance(problem, OSError) else str(problem)
    return text.rpartition(": ")[2] if isinstance(problem, runs.RunError) else text or type(problem).__name__


def of_learner(entry, scratch):
    """([(file, the log to read)], the name that the learner wrote or None)."""
    if entry.is_dir() and entry.is_symlink():
        raise handed_in.NotGraded(handed_in.LINK)
    paths = [path for path in (sorted(entry.rglob("*")) if entry.is_dir() else [entry])
             if path.is_file() and "recorded" not in path.relative_to(entry.parent).parts]  # as a whole copy has it
    logs = [(path, path) for path in paths if path.suffix in runs.LOG_ENDINGS and is_log(path)]
    paths = [path for path in paths if not path.is_symlink()]
    name = next((path.read_text(errors="replace") for path in paths if path.name == "name.txt"), None)
    for path in paths if not logs else []:  # a notebook says less than its logs
        if path.suffix == ".ipynb" and ".ipynb_checkpoints" not in path.parts:
            with contextlib.suppress(handed_in.NotGraded):  # no notebook, or none of a lesson
                notebook = handed_in.read(path)
                of_lesson_07 = handed_in.lesson_of(notebook) == "07"
                for number, console in enumerate(consoles(notebook) if of_lesson_07 else (), 1):
                    log = scratch / f"{len(list(scratch.iterdir()))}.txt"
                    log.write_text(console, encoding="utf-8")
                    logs.append((path.with_name(f"{path.name}, run {number}"), log))
                name = name or signed(notebook)
    line = "".join(letter for letter in (name or "").strip().partition("\n")[0] if letter.isprintable())
    return logs, line[:40].strip() or None


def is_log(path):
    with path.open("rb") as file:
        return path.suffix == ".jsonl" or b"Epoch: " in file.read(10_000)


def consoles(notebook):
    """The output of each time that a lesson 07 started main.py, as text that runs.read_run() takes."""
    machine = {}
    for cell in notebook.cells:
        text = "".join(output.get("text", "") for output in cell.get("outputs", []))
        if begun := re.search(r"PyTorch (\S+), (\d+) cores? of ([^,\n]+)", text if not machine else ""):
            machine = {"torch": begun[1], "cores": begun[2], "device_name": begun[3]}
        for run in re.split(r"^(?=\w+: \d+ training)", text, flags=re.M):  # a cell may start several
            if about := re.match(r"(\w+): (\d+) training.*\n(?:.*\n)*?(\w+), \w+: (\d+) rank\(s\) x batch (\d+) .*; "
                                 r".*\b(\d+) thread\(s\)", run):
                names = "dataset", "samples", "model", "world_size", "batch_size", "threads"
                fields = machine | dict(zip(names, about.groups(), strict=True))
                yield "".join(f"# {name}: {value}\n" for name, value in fields.items()) + run


def signed(notebook):
    """The text that the notebook gives to `board_name`; None if it gives none."""
    given = [getattr(each.value, "value", None) for each in handed_in.statements(notebook)
             if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "board_name"]
    return given[0] if given and isinstance(given[0], str) else None


def contradiction(run: pd.DataFrame) -> str | None:
    """Why the run is not believed, or None."""
    epochs, record = run.dropna(subset=["epoch"]), run.iloc[0]
    if epochs.empty:
        return "no epoch in it"
    if damage := re.search(r"damaged line|cut off|not read in full", record["note"]):
        return f"damaged ({damage[0]})"
    if record["status"] not in ("completed", "unknown"):
        return f"not at its end: {record['status']}"
    if record.get("synthetic") is True or record.get("dataset") == "synthetic":
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
    if pd.notna(tested := record.get("test_samples")) and record["status"] == "completed":
        right = (epochs["val_accuracy"] * tested).dropna()
        if ((right - right.round()).abs() > 1e-3).any():
            return f"an accuracy is no whole number of {some(int(tested), 'test image')}"
    whole = record.get("total_seconds")
    if pd.notna(whole) and not record["restarts"] and epochs["seconds"].sum() > 1.01 * whole:
        return "its epochs take longer than the whole run"
    return None


def speedups(epochs: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple]]:
    """(a row for each machine and number of ranks: label, named, ranks, threads, speedup, machine; [(file, machine,
    why)] of the runs that are not drawn).

    A machine's line has the most numbers of ranks among runs that differ in nothing else, one rank among them; or, if
    that makes it longer, in nothing but the threads: torchrun gives a rank one.
    """
    rows, refused = [], []
    for label, of_machine in epochs.groupby("label", sort=False):
        table = runs.seconds_per_epoch(of_machine.assign(label=of_machine["file"])).set_index("label")
        about = of_machine.drop_duplicates("file").set_index("file")
        table = table.join(about[[name for name in ("named", "torch", *SAME) if name in about and name not in table]])
        table["DataParallel"] = table["strategy"].eq("dp").fillna(False)  # it has one rank, and many devices
        if "global_batch_size" in table:  # then batch_size is the share of a rank
            table["batch_size"] = table["batch_size"].mask(table["global_batch_size"].notna())
        same = [name for name in SAME if name in table]
        lines = [line for alike in (same, [name for name in same if name != "threads"])
                 for _, line in table[~table["DataParallel"]].groupby(alike, dropna=False)
                 if line["world_size"].eq(1).any() and line["world_size"].nunique() > 1]
        line = max(lines, key=lambda line: line["world_size"].nunique(), default=table[:0])
        line = line.drop_duplicates("world_size", keep="last").sort_values("world_size")
        fixed = [name for name in same if line[name].nunique(dropna=False) == 1]
        for file, run in table.drop(line.index).iterrows():
            other = [f"{name} {run[name]}, not {line[name].iloc[0]}" for name in fixed
                     if str(run[name]) != str(line[name].iloc[0])]
            another = f"another run with world size {run['world_size']} counts"
            refused.append((Path(file), label, "; ".join(other) or another if lines else NO_LINE))
        for file, run in line.iterrows():
            ranks, speedup = int(run["world_size"]), run["images_per_second"] / line["images_per_second"].iloc[0]
            on_cores = str(run["device"]) == "cpu" and pd.notna(run["cores"])
            devices = min(ranks, run["cores"]) if on_cores else ranks
            if speedup > BELIEVED * devices:
                refused.append((Path(file), label, f"{speedup:.1f} times as fast with {some(ranks, 'rank')} on "
                                f"{some(int(devices), 'device')} is not believed"))
                continue
            rows.append([label, run["named"], ranks, run["threads"], speedup, described(run)])
    return pd.DataFrame(rows, columns=["label", "named", "ranks", "threads", "speedup", "machine"]), refused


def described(run):
    cores = some(int(run["cores"]), "core") if pd.notna(run.get("cores")) else "unknown cores"
    kind = run.get("device_name") if pd.notna(run.get("device_name")) else ""
    version = f"PyTorch {run['torch'].partition('+')[0]}" if pd.notna(run.get("torch")) else ""
    return ", ".join(filter(None, [cores, kind, version]))


def race(epochs: pd.DataFrame) -> pd.DataFrame:
    """The runs that reached GOAL, the fastest first: label, seconds, accuracy, ranks, machine, file."""
    rows = []
    for file, run in epochs[epochs["json"]].groupby("file", sort=False):
        record = run.iloc[0]
        all_tested = pd.isna(record.get("test_samples")) or record["test_samples"] == TEST_IMAGES
        if record.get("dataset") != "cifar10" or not all_tested or record["status"] != "completed":
            continue
        reached = run[run["val_accuracy"] >= GOAL]
        if not reached.empty:
            seconds = run.loc[run["epoch"] <= reached["epoch"].iloc[0], "seconds"].sum()
            rows.append([record["label"], seconds, reached["val_accuracy"].iloc[0], int(record["world_size"]),
                         described(record), file])
    columns = ["label", "seconds", "accuracy", "ranks", "machine", "file"]
    return pd.DataFrame(rows, columns=columns).sort_values("seconds", ignore_index=True)


def plot_speedups(table: pd.DataFrame, ax: Axes, title: str, source: str = "live") -> Axes:
    """A line a machine, from speedups(), and the class's median where at least three machines ran so many ranks.

    Of many machines the fastest, the slowest and the named ones have labels. `source`: "live" or "recorded".
    """
    table = table.assign(label=table["label"].str.replace("$", r"\$", regex=False))  # no formula of matplotlib's
    median = {ranks: statistics.median(group) for ranks, group in table.groupby("ranks").speedup if len(group) >= 3}
    machines = [rows.sort_values("ranks") for _, rows in table.groupby("label", sort=False)]
    last = {rows["label"].iloc[0]: rows["speedup"].iloc[-1] for rows in machines}
    shown = set(last) if len(machines) <= FEW else {max(last, key=last.get), min(last, key=last.get)}
    ends, number = [], 0
    for rows in machines:
        label, machine = rows["label"].iloc[0], rows["machine"].iloc[0]
        if label in shown or rows["named"].iloc[0]:
            style = line_style(number, source)
            ends.append((rows["ranks"].iloc[-1], rows["speedup"].iloc[-1],
                         f"{label}: {machine.partition(',')[0]}", style["color"]))
            number += 1
        else:
            style = {"color": GREY, "linewidth": 1, "alpha": 0.6}
        ax.plot(rows["ranks"], rows["speedup"], **style)
    sizes = sorted(table["ranks"].unique())
    ax.plot(sizes, sizes, "--", color=GREY, linewidth=2, zorder=1)
    keys = [line_key("ideal", color=GREY, linestyle="--", linewidth=2)]
    if median:
        ax.plot(list(median), list(median.values()), color="black", linewidth=6, zorder=2.5)
        ends.append((max(median), median[max(median)], f"median: {median[max(median)]:.2f}", "#000000"))
        keys.append(line_key("the class's median", color="black", linewidth=6))
    ticks(ax, sizes)
    ax.set(xlabel="world size (ranks)", ylabel="times as fast as one rank",
           ylim=(0, 1.25 * max(1, table["speedup"].max())), xlim=(sizes[0] - 0.3, sizes[-1] + 0.3))
    head(ax, title, columns=2, key=keys)
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def plot_race(table: pd.DataFrame, ax: Axes, source: str = "live") -> Axes:
    """Seconds of training until GOAL, a bar a run, the fastest above, from race()."""
    table = table.head(MOST_IN_RACE)
    for y, row in enumerate(table.itertuples()):
        ax.barh(y, row.seconds, height=0.6, **bar_style(source, COLOURS[0] if y else COLOURS[2]))
        ax.text(row.seconds, y, f"  {row.seconds:.1f} s, {some(row.ranks, 'rank')}", va="center", fontweight="bold")
    name_rows(ax, [label.replace("$", r"\$") for label in table["label"]])
    ax.margins(x=0.3)
    ax.set_xlabel("seconds of training")
    head(ax, f"The race: {GOAL:.0%} of the test images right", key=[])
    return ax


def draw(folder: Path, out: Path, refresh: float | None) -> tuple[pd.DataFrame, list[str], bool]:
    """Write the board to `out`: (race()'s table, lines to print, whether there was anything to draw).

    The lines name files, and so folders with learners' names; the page does not. `refresh`: seconds after which a
    browser loads the page again.
    """
    epochs, refused = read(folder)
    table, more = speedups(epochs) if len(epochs) else (epochs, [])
    won = race(epochs) if len(epochs) else epochs
    source = "recorded" if len(epochs) and (epochs["source"] == "recorded").all() else "live"
    drawn, lines = {}, []
    if len(table):
        title = f"Speed-up{', recorded' if source == 'recorded' else ' of the machines in this room'}"
        drawn["board"] = table, plot_speedups(table, plt.subplots(figsize=(14, 8))[1], title, source)
        for label, rows in table.groupby("label", sort=False):
            mixed = rows["threads"].nunique() > 1
            speeds = ", ".join(f"{row.ranks}: {row.speedup:.2f}" + mixed * f" ({some(row.threads, 'thread')} each)"
                               for row in rows.itertuples())
            lines.append(f"{label}: {rows['machine'].iloc[0]}: {speeds}")
    if len(won):
        ax = plt.subplots(figsize=(14, 2 + 0.8 * min(MOST_IN_RACE, len(won))))[1]
        drawn["race"] = won.drop(columns="file"), plot_race(won, ax, source)
        lines.append(f"the race: {won['label'][0]}, {won['seconds'][0]:.1f} s, {some(won['ranks'][0], 'rank')}")
    pictures = {f"{name}.png": alt_text(ax.figure) for name, (_, ax) in drawn.items()}
    for name, (rows, ax) in drawn.items():
        report.write_text(out / f"{name}.csv", report.csv(rows))
        with files.whole(out / f"{name}.png") as part:
            ax.figure.savefig(part, format="png", dpi=100)
        plt.close(ax.figure)
    nothing = [] if drawn else ["nothing to draw: " + (f"{NO_LINE}; and no run reached the goal" if len(epochs) else
                                                       "no log of main.py lies there")]
    left_out = [each for each in [*refused, *more] if str(each[0]) not in set(won["file"])]
    counted = Counter((machine, why) for _, machine, why in left_out)
    page = [f"left out: {machine}: {why}" + (logs > 1) * f" ({logs} logs)" for (machine, why), logs in counted.items()]
    report.render(out / "index.html", "board.html", title="The class's machines", refresh=refresh,
                  pictures=pictures.items(), rules=RULES, lines=[*lines, *page, *nothing])
    lines += [f"left out: {os.path.relpath(path, folder)} ({machine}): {why}" for path, machine, why in left_out]
    return won, [*map(handed_in.plain, lines), *nothing], bool(drawn)


def command_of(record: dict, log: Path) -> tuple[list[str], dict[str, str]]:
    """(the command of a log's first record, writing to `log`; its environment). ValueError, or main.py's own refusal,
    if it cannot be repeated."""
    if wrong := [name for name, kind in NEEDED.items() if not isinstance(record.get(name), kind)]:
        raise ValueError(f"the winner's command cannot be repeated: its log does not say {', '.join(wrong)}")
    ranks = record["world_size"]
    if whole := record.get("global_batch_size"):  # then main.py has put the share of a rank into batch_size, and the
        scale = record.get("lr_scale") or 1  # batch that was typed tells only in the scale of the learning rate
        record = {**record, "batch_size": round(whole / scale ** (1 + (record.get("lr_scaling") == "sqrt")))}
    given = [word for name in REPEATED if record.get(name) is not None
             for word in (f"--{name.replace('_', '-')}", str(record[name]))]
    given += [f"--{name}" for name in ("bf16", "compile") if record.get(name)]
    given += ["--dataset", "cifar10", "--device", record["device"], "--log-file", str(log)]
    if any(word.startswith("@") for word in given):  # a file of options, which may name code to run
        raise ValueError("the winner's command cannot be repeated: its log holds a value with @")
    args = options.get_parser().parse_args(given)
    if not 1 <= ranks <= MOST or not 1 <= record["threads"] <= MOST:
        raise ValueError(f"{ranks} ranks with {record['threads']} threads are not repeated here: at most {MOST}")
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"] * (ranks > 1 or args.strategy == "ddp")
    return [sys.executable, *torchrun, "main.py", *given], os.environ | {"OMP_NUM_THREADS": str(record["threads"])}


def rerun(won: pd.DataFrame, out: Path) -> str:
    """Repeat the winner's command here; a line that says how far off it is."""
    winner, log = won.iloc[0], (out / "rerun.jsonl").resolve()
    log.unlink(missing_ok=True)
    with open(winner["file"], encoding="utf-8") as lines:
        record = next(record for record in map(json.loads, lines) if record.get("kind") == "run")
    command, environment = command_of(record, log)
    print(f"repeating {winner['label']}: {' '.join(command[1:-2])}", flush=True)
    status = processes.run(command, LONGEST, uuid.uuid4().hex, env=environment, cwd=ROOT)
    if status != 0:
        return f"it did not end well here (status {status}): its {winner['seconds']:.1f} s are not confirmed"
    repeated = race(runs.read_run(log).assign(file=str(log), json=True))
    if repeated.empty:
        return f"here it did not reach {GOAL:.0%}: its {winner['seconds']:.1f} s are not confirmed"
    logged, here = (f"{run['seconds']:.1f} s, {run['accuracy']:.3f} ({run['machine']})" for run in (
        winner, repeated.iloc[0]))
    return f"logged: {logged}; here: {here}: {repeated['seconds'][0] / winner['seconds']:.2f} times as long"


def get_parser():
    parser = rank_program.parser(f"{__doc__}\n{RULES}")
    parser.prog = "scripts/class_board"
    parser.add_argument("folder", type=options.nonempty_path, metavar="DIR", help="with what was handed in")
    parser.add_argument("--out", type=options.nonempty_path, default=Path("build/class-board"),
                        help="folder (default: %(default)s)")
    parser.add_argument("--watch", type=options.positive(float, 86_400), metavar="SECONDS",
                        help="look for changes so often, and draw again")
    parser.add_argument("--rerun", action="store_true", help="repeat the winner's command on this machine")
    return parser


def main() -> int:
    parser = get_parser()
    args = parser.parse_args()
    if args.watch and args.rerun:
        parser.error("--watch draws until Ctrl-C, and --rerun comes after the drawing: one of the two")
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is no folder")
    if args.out.resolve().is_relative_to(args.folder.resolve()):
        parser.error(f"--out {args.out} lies in {args.folder}, and would count as handed in: name one outside")
    with rank_program.stoppable(parser):
        files.check_writable("--out", args.out)
        before, now = None, []
        while True:
            with contextlib.suppress(FileNotFoundError):  # a file went between two looks: the next will do
                now = [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in args.folder.rglob("*")]
            if now != before:
                won, lines, drawn = draw(args.folder, args.out, args.watch)
                print("\n".join([*lines, f"the board: {(args.out / 'index.html').resolve().as_uri()}"]), flush=True)
                before = now
            if not args.watch:
                break
            time.sleep(args.watch)
        if args.rerun and len(won):
            print(rerun(won, args.out))
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
