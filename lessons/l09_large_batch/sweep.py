"""Run main.py over a grid: world sizes x strategies x models x batch sizes x rates x seeds. Start it again to go on.

    python lessons/l09_large_batch/sweep.py --out results/live/sweep --world-sizes 1 2 4 --models lenet resnet \\
        --seeds 0 1 \\
        -- --epochs 2 --samples 5000
    python lessons/l09_large_batch/sweep.py --world-sizes 1 2 --seeds 0 1 2 --threads 1 -- --epochs 2
    python lessons/l09_large_batch/sweep.py --world-sizes 1 --batch-sizes 64 512 --lrs 0.01 0.02 -- --optimizer sgd

What follows `--` goes to main.py. One process is plain python, more are torchrun's. Each run has a log of its own,
NAME.jsonl, which course/runs.py reads, and beside it NAME.out, what it said on the console. A run whose log says that
it was completed with these options is not run again; any other gets a new record at the end of its log, and nothing is
overwritten. Seeds are interleaved (all runs of the first, then all of the second), so that a machine that slows down
meets every configuration alike.

Exit status: 0 every run is finished, 1 some failed (named at the end), 2 bad input, 130 stopped (Ctrl-C, kill).
"""

import fcntl
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pandas as pd

import data
import models
from course import processes, rank_program, runs
from options import from_zero, get_parser, nonempty_path, positive

MAIN = Path(__file__).resolve().parent.parent.parent / "main.py"
BY_SWEEP = ["model", "strategy", "batch_size", "seed", "log_file", "save_model"]  # options that it sets, or cannot
NO_MATTER = ["log_file", "save_model", "data_path", "dist_url", "timeout"]  # where, and how long to wait at most


class Cell(NamedTuple):
    """One run of the grid."""

    model: str
    strategy: str
    world_size: int
    batch_size: int
    seed: int
    lr: float | None = None  # None: main.py's own, or what follows `--`

    def __str__(self):
        ranks = self.world_size if self.strategy == "ddp" else ""
        lr = f"-lr{self.lr:g}" if self.lr else ""
        return f"{self.model}-{self.strategy}{ranks}-batch{self.batch_size}{lr}-seed{self.seed}"

    def options(self):
        return [f"--{name}={getattr(self, name.replace('-', '_'))}" for name in
                ("model", "strategy", "batch-size", "seed", *(["lr"] if self.lr else []))]


def make_grid(args):
    """The cells, in the order of running. single and dp are for one process: they have no cell with more."""
    cells = []
    for seed, model, batch_size, world_size, strategy, lr in itertools.product(
            args.seeds, args.models, args.batch_sizes, args.world_sizes, args.strategies, args.lrs):
        if strategy == "auto":
            strategy = "ddp" if world_size > 1 else "single"
        if strategy == "ddp" or world_size == 1:
            cells.append(Cell(model, strategy, world_size, batch_size, seed, lr))
    return list(dict.fromkeys(cells))  # `auto ddp` names some twice


def wanted_options(cell, args, passed_on):
    """{name: value, or several that will do} that the log of this cell must have."""
    wanted = get_parser().parse_args([*cell.options(), *passed_on])
    sizes = data.DATASETS["cifar10" if wanted.dataset == "auto" else wanted.dataset].sizes
    wanted.samples, wanted.test_samples = wanted.samples or sizes[0], wanted.test_samples or sizes[1]
    if wanted.dataset == "auto":
        wanted.dataset = ("cifar10", "synthetic")
    if wanted.channels_last is None:
        wanted.channels_last = "auto"
    if args.threads:
        wanted.threads = args.threads
    wanted.world_size = cell.world_size
    return {name: value for name, value in vars(wanted).items() if name not in NO_MATTER}


def look(log, wanted):
    """(finished, seconds it took, why this log cannot be used) of a run, from its log alone."""
    if log.is_file() and not log.stat().st_size or not log.exists():  # empty: killed before it wrote anything
        return False, None, None
    try:
        run = runs.read_run(log).iloc[0]
    except runs.RunError as error:
        return False, None, f"{error}: move it away, or choose another --out"
    logged = {name: run[name] for name in wanted if name in run and pd.notna(run[name])}
    defaults, differ = vars(get_parser().parse_args([])), []
    for name, value in wanted.items():
        will_do = value if isinstance(value, tuple) else (value,)
        # not in the log: younger than it, or of no use to this run. auto: became what suits this machine.
        if logged.get(name, defaults.get(name)) not in will_do and "auto" not in will_do:
            differ.append(f"{name} {logged.get(name)}, not {value}")
    if differ:
        return False, None, f"{log} is of a run with other options ({'; '.join(differ)}): choose another --out"
    return run["status"] == "completed", run["total_seconds"], None


def time_left(cells, seconds):
    """'; about N s left', from the runs that differ in seed and rate alone; where there are none, from all."""
    if not cells or not seconds:
        return ""
    alike = {cell[:4]: mean(took for other, took in seconds.items() if other[:4] == cell[:4]) for cell in seconds}
    return f"; about {sum(alike.get(cell[:4], mean(seconds.values())) for cell in cells):.0f} s left"


def run_cell(cell, args, passed_on, log):
    """Run main.py once; a line that says why the run did not finish, should its log say that it did not."""
    launcher = [sys.executable]
    if cell.world_size > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={cell.world_size}"]
    command, output = [*launcher, str(MAIN), *cell.options(), *passed_on, f"--log-file={log}"], log.with_suffix(".out")
    env = {**os.environ, **({"OMP_NUM_THREADS": str(args.threads)} if args.threads else {})}
    with output.open("ab") as console:
        begin = console.tell()
        status = processes.run(command, args.run_timeout, args.out.resolve(), env=env, stdin=subprocess.DEVNULL,
                             stdout=console, stderr=console)
    if status is None:
        return f"killed after {args.run_timeout:g} s (--run-timeout), see {output}"
    said = re.findall(r"^(?:\[\w+\]:? *)*(\S+: error: .+|\w+(?:Error|Exception): .+)$",
                      output.read_bytes()[begin:].decode(errors="replace"), re.M)
    return f"{said[0][:200] if said else f'exit status {status}'}, see {output}"


def sweep(cells, args, passed_on):
    """Run what is not finished; {cell: why} of what failed. KeyboardInterrupt, after saying how to go on."""
    wanted = {cell: wanted_options(cell, args, passed_on) for cell in cells}
    seen = {cell: look(args.out / f"{cell}.jsonl", wanted[cell]) for cell in cells}
    failed = {cell: why for cell, (_, _, why) in seen.items() if why}
    seconds = {cell: took for cell, (finished, took, _) in seen.items() if finished}
    to_do, before = [cell for cell in cells if cell not in seconds and cell not in failed], len(seconds)
    print(f"{len(cells)} runs in {args.out}: {before} finished before, {len(to_do)} to do, "
          f"{len(failed)} cannot be run{time_left(to_do, seconds)}", flush=True)
    try:
        for number, cell in enumerate(to_do, 1):
            print(f"[{number}/{len(to_do)}] {cell} ... ", end="", flush=True)
            log, began = args.out / f"{cell}.jsonl", time.monotonic()
            why = run_cell(cell, args, passed_on, log)
            took, (finished, _, unusable) = time.monotonic() - began, look(log, wanted[cell])
            if finished:
                seconds[cell] = took
            else:
                failed[cell] = unusable or why
            print(f"{'' if finished else 'FAILED after '}{took:.1f} s; done {len(seconds) - before}, "
                  f"failed {len(failed)}{time_left(to_do[number:], seconds)}", flush=True)
    except KeyboardInterrupt:
        print(f"\nstopped: done {len(seconds) - before}, failed {len(failed)}; the same command goes on from here")
        raise
    return failed


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--out", type=nonempty_path, default="results/live/sweep", help="folder of the logs (default: %(default)s)")
    add("--world-sizes", type=positive(int), nargs="+", default=[1, 2], metavar="W", help="ranks (default: 1 2)")
    add("--strategies", choices=["auto", "single", "dp", "ddp"], nargs="+", default=["auto"],
        help="auto (default): single for one rank, else ddp; single and dp run with world size 1 alone")
    add("--models", choices=models.MODELS, nargs="+", default=["lenet"], help="default: lenet")
    add("--batch-sizes", type=positive(int), nargs="+", default=[64], metavar="B", help="of each rank (default: 64)")
    add("--lrs", type=positive(float), nargs="+", default=[None], metavar="LR",
        help="learning rates (default: main.py's)")
    add("--seeds", type=from_zero, nargs="+", default=[0], metavar="S", help="default: 0")
    add("--threads", type=positive(int), metavar="N", help="of each rank (default: cores / ranks)")
    add("--run-timeout", type=positive(float), default=3600, metavar="S",
        help="seconds; a run that takes longer is killed, and counts as failed (default: 3600)")
    args = rank_program.before_dashes(parser)
    passed_on = args.options
    options = get_parser()
    by_sweep = BY_SWEEP + ["lr"] * (args.lrs != [None])
    options.set_defaults(**dict.fromkeys(by_sweep))
    for name, value in vars(options.parse_args(passed_on)).items():
        if name in by_sweep and value is not None:
            parser.error(f"--{name.replace('_', '-')} after `--`: the runs would share it; see --help for the grid")
    cells = make_grid(args)
    if not cells:
        parser.error(f"--strategies {' '.join(args.strategies)} need --world-sizes 1: they are for one process")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        lock = (args.out / ".sweep.lock").open("a")  # the system lets go of it when this process ends, however
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error(f"--out {args.out}: another sweep is running there")
    except OSError as error:
        parser.error(f"--out {args.out}: {error.strerror}")
    for other in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(other) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(other, signal.default_int_handler)
    try:
        processes.end(args.out.resolve())  # what a sweep that was killed here left behind
        failed = sweep(cells, args, passed_on)
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell expects after Ctrl-C
    except (OSError, RuntimeError) as error:
        sys.exit(f"{parser.prog}: {error}")
    for cell, why in failed.items():
        print(f"failed: {cell}: {why}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
