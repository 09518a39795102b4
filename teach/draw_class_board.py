"""Draws the machines of a class in one picture, from what lesson 07 left in results/live: scripts/class_board.

    scripts/class_board handed-in               a folder with a subfolder, or a notebook of lesson 07, for each learner
    scripts/class_board handed-in --watch 10    again whenever a file has changed, until Ctrl-C
    scripts/class_board handed-in --rerun       then repeat the winner's command here, and say how far off it is

A line of the first picture is what runs of one folder say that differ in the number of ranks alone. The board knows
machines, not people: a name stands there where a learner wrote one (lesson 07, board_name). Logs that are damaged, or
say what cannot be, are named and left out.

Into --out go board.png, race.png, board.csv and race.csv, and index.html, which shows them.

Exit status: 0 drawn, 1 nothing to draw, 2 bad input, 130 stopped by Ctrl-C.
"""

import contextlib
import os
import sys
import time
import uuid
from pathlib import Path

import matplotlib.pyplot as plt

import files
import options
from course import lesson, processes, rank_program, runs
from course.lesson import ROOT, some
from teach import board, handed_in, report
from teach import board_plots as classroom

# What --rerun takes over from a log: how it trained, and nothing that names a path.
REPEATED = ("samples", "model", "epochs", "batch_size", "global_batch_size", "optimizer", "lr",
            "lr_scaling", "warmup_epochs", "seed", "bucket_cap_mb", "comm_hook")
NEEDED = {"world_size": int, "threads": int, "device": str, "global_batch_size": int | None,
          "lr_scale": int | float | None}
SWITCHES = ("bf16", "compile")
LONGEST, MOST = 3600, 64  # seconds of a repetition; ranks, and threads of each


def get_parser():
    parser = rank_program.parser(f"{__doc__}\n{board.RULES}")
    parser.prog = "scripts/class_board"
    parser.add_argument("folder", type=options.nonempty_path, metavar="DIR", help="with what was handed in")
    parser.add_argument("--out", type=options.nonempty_path, default="build/class-board",
                        help="folder (default: %(default)s)")
    parser.add_argument("--watch", type=options.positive(float, 86_400), metavar="SECONDS",
                        help="look for changes so often, and draw again")
    parser.add_argument("--rerun", action="store_true", help="repeat the winner's command on this machine")
    return parser


def draw(folder, out, refresh):
    """Writes the board; (board.race's table, lines to print, whether there was anything). Files, and so folders with
    learners' names, are named to whoever types the command, and not on the page."""
    told, refused = board.read(folder)
    table, more = board.speedups(told) if len(told) else (told, [])
    won = board.race(told) if len(told) else told
    source = "recorded" if len(told) and (told["source"] == "recorded").all() else "live"
    shown, lines = [], []
    if len(table):
        title = "Speed-up, recorded" if source == "recorded" else "Speed-up of the machines in this room"
        ax = classroom.room(table, board.median(table), plt.subplots(figsize=(14, 8))[1], title, source)
        shown.append(save(ax.figure, out / "board.png"))
        table.to_csv(out / "board.csv", index=False)
        for label, rows in table.groupby("label", sort=False):
            speeds = ", ".join(f"{row.ranks}: {row.speedup:.2f}" for row in rows.itertuples())
            lines.append(f"{label}: {rows['machine'].iloc[0]}: {speeds}")
    if len(won):
        ax = classroom.race(won, plt.subplots(figsize=(14, 2 + 0.8 * min(10, len(won))))[1], board.GOAL, source)
        shown.append(save(ax.figure, out / "race.png"))
        won.drop(columns="file").to_csv(out / "race.csv", index=False)
        lines.append(f"the race: {won['label'][0]}, {won['seconds'][0]:.1f} s, {some(won['ranks'][0], 'rank')}")
    nothing = [] if shown else ["nothing to draw: " + ("no run of one rank, and none that reached the goal" if len(told)
                                                       else "no log of main.py lies there")]
    left_out = [*refused, *more]
    report.render(out / "index.html", "board.html", title="The class's machines", refresh=refresh, pictures=shown,
                  rules=board.RULES, lines=[*lines, *(f"left out: {machine}: {why}" for _, machine, why in left_out),
                                            *nothing])
    lines += [f"left out: {os.path.relpath(where, folder) if isinstance(where, Path) else where}: {why}"
              for where, _, why in left_out]
    return won, [*map(handed_in.plain, lines), *nothing], bool(shown)


def save(figure, path):
    """(the name of the picture, its words)."""
    words = lesson.alt_text(figure)
    with files.whole(path) as part:
        figure.savefig(part, format="png", dpi=100)
    plt.close(figure)
    return path.name, words


def seen(folder):
    """{path: (when it changed, bytes)} of the files. One may go between two looks: then it is none."""
    found = {}
    for path in (Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns, path.stat().st_size
    return found


def command_of(record, log):
    """(the command that a log tells, its environment); ValueError where main.py's parser does not take it."""
    if wrong := [name for name, kind in NEEDED.items() if not isinstance(record.get(name), kind)]:
        raise ValueError(f"the winner's command cannot be repeated: its log does not say {', '.join(wrong)}")
    ranks = record["world_size"]
    if whole := record.get("global_batch_size"):  # then main.py has put the share of a rank into the other, and what
        scale = record.get("lr_scale") or 1  # was given for that tells only in the scale of the learning rate
        times = scale ** 2 if record.get("lr_scaling") == "sqrt" else scale
        record = {**record, "batch_size": round(whole / times)}
    given = [word for name in REPEATED if record.get(name) is not None
             for word in (f"--{name.replace('_', '-')}", str(record[name]))]
    given += [f"--{name}" for name in SWITCHES if record.get(name)]
    given += ["--dataset", "cifar10", "--device", record["device"], "--log-file", str(log)]
    args = options.get_parser().parse_args(given)
    if not 1 <= ranks <= MOST or not 1 <= record["threads"] <= MOST:
        raise ValueError(f"{ranks} ranks with {record['threads']} threads are not repeated here: at most {MOST}")
    launcher = [sys.executable, "main.py"]
    if ranks > 1 or args.strategy == "ddp":
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "main.py"]
    return [*launcher, *given], os.environ | {"OMP_NUM_THREADS": str(record["threads"])}


def rerun(won, out):
    """The winner's command, repeated here; a line that says how far off it is."""
    winner, log = won.iloc[0], (out / "rerun.jsonl").resolve()
    log.unlink(missing_ok=True)
    command, environment = command_of(board.run_record(winner["file"]), log)
    print(f"repeating {winner['label']}: {' '.join(command[1:-2])}", flush=True)
    status = processes.run(command, LONGEST, uuid.uuid4().hex, env=environment, cwd=ROOT)
    if status != 0:
        return f"it did not end well here (status {status}): its {winner['seconds']:.1f} s are not confirmed"
    here = board.race(runs.read_run(log).assign(file=str(log), name="", json=True))
    if here.empty:
        return f"here it did not reach {board.GOAL:.0%}: its {winner['seconds']:.1f} s are not confirmed"
    seconds, accuracy = here["seconds"][0], here["accuracy"][0]
    return (f"told: {winner['seconds']:.1f} s, {winner['accuracy']:.3f} ({winner['machine']}); here: {seconds:.1f} s, "
            f"{accuracy:.3f} ({here['machine'][0]}): {seconds / winner['seconds']:.2f} times as long")


def main():
    parser = get_parser()
    args = parser.parse_args()
    if args.watch and args.rerun:
        parser.error("--watch draws until Ctrl-C, and --rerun comes after the drawing: one of the two")
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is no folder")
    with rank_program.stoppable(parser):
        out = Path(args.out)
        if out.resolve().is_relative_to(args.folder.resolve()):
            raise ValueError(f"--out {out} lies in {args.folder}, and would count as handed in: name one outside")
        files.check_writable("--out", out)
        before = None
        while True:
            now = seen(args.folder)
            if now != before:
                won, lines, drawn = draw(args.folder, out, args.watch)
                print("\n".join([*lines, f"the board: {(out / 'index.html').resolve().as_uri()}"]), flush=True)
                before = now
            if not args.watch:
                break
            time.sleep(args.watch)
        if args.rerun and len(won):
            print(rerun(won, out))
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
