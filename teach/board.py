"""Draws the machines of a class in one picture, from the logs that lesson 08 left: scripts/class_board starts it.

    scripts/class_board handed-in               a folder with a subfolder for each learner
    scripts/class_board handed-in --watch 10    again whenever a file has changed, until Ctrl-C

A line of the picture joins runs of one folder that differ only in their number of ranks. The board shows
machines, not people: a name is shown only if its learner wrote one (lesson 08, board_name). Each log that is not drawn
is named, and why.

Into --out go board.png, board.csv, and index.html, which shows the picture.

Exit status: 0 drawn, 1 nothing to draw, 2 bad input, 130 stopped by Ctrl-C.
"""

import statistics
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from course import rank_program, runs
from course.lesson import alt_text, some
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import GREY, head, line_key, line_style, ticks
from teach import report
from trainer import files, options

SAME = ["model", "dataset", "samples", "batch_size", "global_batch_size", "optimizer", "device", "threads", "bf16",
        "compile", "channels_last"]  # what runs of one line have in common: all but the ranks
FEW = 6  # machines whose lines all have colours and labels of their own


def read(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """(a row for each epoch of a run, with `file` and the `label` of its machine; a line for each log that is left
    out). A learner is a subfolder with run logs."""
    frames, left_out, number = [], [], 0
    for entry in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        inside = [path for path in sorted(entry.rglob("*")) if "recorded" not in path.relative_to(folder).parts]
        logs = [path for path in inside if path.suffix == ".jsonl" and path.is_file()]
        names = [path for path in inside if path.name == "name.txt"]
        name = names[0].read_text(errors="replace").strip()[:40] if names else ""
        number += bool(logs)
        label = f"{name} ({number})" if name else f"machine {number}"  # nobody signs as another's machine
        for path in logs:
            try:
                run = runs.read_run(path)
                why = unfit(run)
            except runs.RunError as problem:
                why = str(problem).rpartition(": ")[2]
            if why:
                left_out.append(f"{path.relative_to(folder)}: {why}")
            else:
                frames.append(run.assign(file=str(path), label=label))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), left_out


def unfit(run: pd.DataFrame) -> str | None:
    """Why a run is not drawn, or None."""
    record = run.iloc[0]
    if run["epoch"].isna().all():
        return "no epoch in it"
    if record["status"] not in ("completed", "unknown"):
        return f"not at its end: {record['status']}"
    return "synthetic images" if record.get("dataset") == "synthetic" else None


def speedups(epochs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """(a row for each machine and number of ranks: label, ranks, threads, speedup, machine; a line for each
    machine that has none).

    A machine's line has the most numbers of ranks among runs that differ in nothing else, one rank among them; or, if
    that makes it longer, in nothing but the threads: torchrun gives a rank one.
    """
    rows, without = [], []
    for label, of_machine in epochs.groupby("label", sort=False):
        table = runs.seconds_per_epoch(of_machine.assign(label=of_machine["file"])).set_index("label")
        about = of_machine.drop_duplicates("file").set_index("file")
        table = table.join(about[[name for name in ("torch", *SAME) if name in about and name not in table]])
        table = table[table["strategy"].ne("dp").fillna(True)]  # one rank, and many devices
        if "global_batch_size" in table:  # then batch_size is the share of a rank
            table["batch_size"] = table["batch_size"].mask(table["global_batch_size"].notna())
        same = [name for name in SAME if name in table]
        lines = [line for alike in (same, [name for name in same if name != "threads"])
                 for _, line in table.groupby(alike, dropna=False)
                 if line["world_size"].eq(1).any() and line["world_size"].nunique() > 1]
        if not lines:
            without.append(f"{label}: no run of one rank and one of more, alike in all else")
            continue
        line = max(lines, key=lambda line: line["world_size"].nunique())
        line = line.drop_duplicates("world_size", keep="last").sort_values("world_size")
        rows += [[label, int(run["world_size"]), run["threads"],
                  run["images_per_second"] / line["images_per_second"].iloc[0], described(run)]
                 for _, run in line.iterrows()]
    return pd.DataFrame(rows, columns=["label", "ranks", "threads", "speedup", "machine"]), without


def described(run: pd.Series) -> str:
    """The machine of a run: "2 cores, AMD EPYC, PyTorch 2.14.1"."""
    cores = some(int(run["cores"]), "core") if pd.notna(run.get("cores")) else "unknown cores"
    kind = run.get("device_name") if pd.notna(run.get("device_name")) else ""
    version = f"PyTorch {run['torch'].partition('+')[0]}" if pd.notna(run.get("torch")) else ""
    return ", ".join(filter(None, [cores, kind, version]))


def plot_speedups(table: pd.DataFrame, ax: Axes, title: str, source: str) -> Axes:
    """A line per machine, from speedups(), and the class's median where at least three machines ran so many ranks.

    Of many machines the fastest and the slowest have labels. `source`: "live" or "recorded".
    """
    table = table.assign(label=table["label"].str.replace("$", r"\$", regex=False))  # no formula of matplotlib's
    median = {ranks: statistics.median(group) for ranks, group in table.groupby("ranks").speedup if len(group) >= 3}
    machines = [rows.sort_values("ranks") for _, rows in table.groupby("label", sort=False)]
    last = {rows["label"].iloc[0]: rows["speedup"].iloc[-1] for rows in machines}
    shown = set(last) if len(machines) <= FEW else {max(last, key=last.get), min(last, key=last.get)}
    ends, number = [], 0
    for rows in machines:
        label, machine = rows["label"].iloc[0], rows["machine"].iloc[0]
        if label in shown:
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
    ax.set(xlabel="world size (ranks)", ylabel="speed-up",
           ylim=(0, 1.25 * max(1, table["speedup"].max())), xlim=(sizes[0] - 0.3, sizes[-1] + 0.3))
    head(ax, title, columns=2, key=keys)
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def draw(folder: Path, out: Path, refresh: float | None) -> tuple[list[str], bool]:
    """Write the board to `out`: (lines to print, whether there was anything to draw). `refresh`: seconds after which a
    browser loads the page again."""
    epochs, left_out = read(folder)
    table, without = speedups(epochs) if len(epochs) else (epochs, [])
    source = "recorded" if len(epochs) and (epochs["source"] == "recorded").all() else "live"
    lines, pictures = without or ["nothing to draw: no runs of main.py with one rank and with more"], {}
    if len(table):
        title = f"Speed-up{', recorded' if source == 'recorded' else ' of the machines in this room'}"
        ax = plot_speedups(table, plt.subplots(figsize=(14, 8))[1], title, source)
        lines = []
        for label, rows in table.groupby("label", sort=False):
            mixed = rows["threads"].nunique() > 1
            speeds = ", ".join(f"{row.ranks}: {row.speedup:.2f}" + mixed * f" ({some(row.threads, 'thread')} each)"
                               for row in rows.itertuples())
            lines.append(f"{label}: {rows['machine'].iloc[0]}: {speeds}")
        lines += without
        pictures = {"board.png": alt_text(ax.figure)}
        report.write_text(out / "board.csv", table.to_csv(index=False))
        with files.whole(out / "board.png") as part:
            ax.figure.savefig(part, format="png", dpi=100)
        plt.close(ax.figure)
    report.render(out / "index.html", "board.html", title="The class's machines", refresh=refresh,
                  pictures=pictures.items(), lines=lines)
    return [*lines, *(f"left out: {line}" for line in left_out)], len(table) > 0  # folders are names: not on the page


def main() -> int:
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/class_board"
    parser.add_argument("folder", type=options.nonempty_path, metavar="DIR", help="with what was handed in")
    parser.add_argument("--out", type=options.nonempty_path, default=Path("build/class-board"),
                        help="folder (default: %(default)s)")
    parser.add_argument("--watch", type=options.positive(float, 86_400), metavar="SECONDS",
                        help="look for changes so often, and draw again")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is no folder")
    if args.out.resolve().is_relative_to(args.folder.resolve()):
        parser.error(f"--out {args.out} lies in {args.folder}, and would count as handed in: name one outside")
    with rank_program.stoppable(parser):
        files.check_writable("--out", args.out)
        before = None
        while True:
            now = [(path, path.stat().st_mtime_ns) for path in args.folder.rglob("*.jsonl")]
            if now != before:
                lines, drawn = draw(args.folder, args.out, args.watch)
                print("\n".join([*lines, f"the board: {(args.out / 'index.html').resolve().as_uri()}"]), flush=True)
                before = now
            if not args.watch:
                return 0 if drawn else 1
            time.sleep(args.watch)


if __name__ == "__main__":
    sys.exit(main())
