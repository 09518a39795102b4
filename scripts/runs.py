"""Prints how much faster each run is than its baseline, and draws the runs.

    python scripts/runs.py results/live
    python scripts/runs.py results/live results/recorded/tutorial-one-gpu-vs-eight
    python scripts/runs.py results/live --baseline single --csv build/speedup.csv --plots build/plots

With --plots, runs that have no baseline are drawn, too: without speed-up and efficiency.
"""

import sys
import warnings
from functools import partial

import numpy as np
import pandas as pd

from course import rank_program, runs
from trainer import files, options


def format_table(table: pd.DataFrame) -> str:
    """A table of `runs.speedup_table` or `runs.seconds_per_epoch` as text, rounded, with the notes below it."""
    table = table.reindex(columns=[*dict.fromkeys([*table, "speedup", "efficiency", "oversubscribed"])])

    def column(name, form="{}"):
        return ["-" if pd.isna(value) else form.format(value) for value in table[name]]

    shown = pd.DataFrame({
        "run": column("label"),
        "source": table["source"].where(table["source"] == "live", table["source"] + ": " + table["machine"]),
        "data": np.where(table["synthetic"].fillna(False), "synthetic", column("dataset")),
        "ranks": column("world_size"),
        "threads": column("threads"),
        "epochs": column("epochs"),
        "s/epoch": column("seconds", "{:,.2f}"),
        "images/s": column("images_per_second", "{:,.0f}"),
        "speed-up": column("speedup", "{:,.2f}"),
        "efficiency": column("efficiency", "{:.0%}"),
        "status": column("status"),
    })
    lines = [shown.to_string(index=False), ""]
    for _, run in table.iterrows():
        notes = [f"more ranks than cores ({run['cores']})"] if run["oversubscribed"] is True else []
        notes += [run["note"]] if run["note"] else []
        lines += [f"{run['label']}: {'; '.join(notes)}"] if notes else []
    return "\n".join(lines).rstrip()


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("logs", nargs="+", help="run logs, folders of them, or globs")
    parser.add_argument("--baseline", action="append", help="label of the run to compare with (default: world size 1)")
    parser.add_argument("--csv", type=options.nonempty_path, help="write the table, unrounded, to this file as well")
    parser.add_argument("--plots", type=options.nonempty_path, metavar="FOLDER",
                        help="draw the runs: a PNG for each picture")
    args = parser.parse_args()
    say = partial(print, "runs.py:", file=sys.stderr)
    warnings.showwarning = lambda message, *rest: say(message)
    drawn = []
    with parser.one_line():
        df = runs.read_runs(args.logs).sort_values(["source", "machine", "world_size"], kind="stable")
        try:
            table = runs.speedup_table(df, args.baseline)
        except runs.RunError as error:
            if args.baseline or not args.plots:
                raise
            say(f"no speed-up, no efficiency: {error}")
            table = runs.seconds_per_epoch(df)
        if args.csv:
            files.check_output("--csv", args.csv)
        if args.plots:
            files.check_writable("--plots", args.plots)
        if args.csv:
            with files.whole(args.csv) as part:
                table.to_csv(part, index=False)
        if args.plots:
            from course import plots  # late: matplotlib takes a second

            drawn = plots.write_all(df, table, args.plots, say)
            if not drawn:
                raise ValueError("nothing could be drawn")
    print(format_table(table), *drawn, sep="\n")


if __name__ == "__main__":
    main()
