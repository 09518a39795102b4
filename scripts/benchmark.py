"""Measure what the README quotes: ratios of whole runs, interleaved within one session, as medians with their spread.

    python scripts/benchmark.py                     all three, about 6 minutes on two cores
    python scripts/benchmark.py --only start --rounds 5

epoch   an epoch of CIFAR-10 (LeNet, batch 64, one thread): main.py against scripts/textbook.py; main.py's data share
ranks   images a second of main.py, LeNet and the small ResNet: two ranks against one, one thread each
start   torchrun typed to the first training step done, 8 ranks: main.py against scripts/textbook.py

Each epoch is the second of its run: the first one warms up. Ratios of the same round are comparable; seconds on a
shared machine are not.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
LIMIT = 600  # seconds, for one run


def run(command, threads=None):
    """Run `command` in the repository; its standard output. Ends this program with one line if the run fails."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        sys.exit(f"benchmark: {' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-1000:]}")
    return done.stdout


def last_epoch(text):
    return [record for record in map(json.loads, text.splitlines()) if record["kind"] == "epoch"][-1]


def main_py(launcher, *options, threads=None):
    """The last epoch record of a run of main.py."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.jsonl")
        run([*launcher, "main.py", "--dataset", "cifar10", "--log-file", str(log), *options], threads)
        return last_epoch(log.read_text())


def textbook(launcher, *options, threads=None):
    return last_epoch(run([*launcher, "scripts/textbook.py", *options], threads))


def epoch_round():
    ours = main_py(PYTHON, "--epochs", "2", "--test-samples", "100", threads=1)
    theirs = textbook(PYTHON, "--epochs", "2", threads=1)
    return {"main.py s": ours["seconds"], "textbook s": theirs["seconds"],
            "main.py / textbook": ours["seconds"] / theirs["seconds"],
            "main.py data share": ours["data_seconds"] / ours["seconds"]}


def ranks_round():
    figures = {}
    for model, samples in (("lenet", 50_000), ("resnet", 10_000)):
        one, two = (main_py(launcher, "--model", model, "--samples", str(samples), "--epochs", "2", "--test-samples",
                            "100", threads=1)["images_per_second"]
                    for launcher in (PYTHON, [*TORCHRUN, "--nproc_per_node=2"]))
        figures |= {f"{model} 1 rank img/s": one, f"{model} 2 ranks img/s": two, f"{model} 2 ranks / 1": two / one}
    return figures


def start_round():
    eight = [*TORCHRUN, "--nproc_per_node=8"]
    began = time.time()
    one_step = ["--epochs", "1", "--samples", str(8 * 64), "--test-samples", "8"]  # 64 images a rank: one step
    ours = main_py(eight, *one_step)["time"] - began
    began = time.time()
    theirs = textbook(eight, "--steps", "1")["time"] - began
    return {"main.py s": ours, "textbook s": theirs, "main.py / textbook": ours / theirs}


ROUNDS = {"epoch": epoch_round, "ranks": ranks_round, "start": start_round}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROUNDS, action="append", help="measure this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="how often each pair is run (default: %(default)s)")
    parser.add_argument("--json", default="build/benchmark.json", help="also write every figure here")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:
        target = Path(args.json)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.open("a").close()
    except OSError as error:
        parser.error(f"--json {args.json}: {error.strerror}")

    figures = {name: [] for name in args.only or ROUNDS}
    for number in range(args.rounds):
        for name, rounds in figures.items():
            print(f"round {number + 1} of {args.rounds}: {name} ...", file=sys.stderr, flush=True)
            rounds.append(ROUNDS[name]())
    print(f"{'':7}{'figure':22}{'median':>10}{'lowest':>10}{'highest':>10}   ({args.rounds} rounds)")
    for name, rounds in figures.items():
        for figure in rounds[0]:
            values = [values[figure] for values in rounds]
            print(f"{name:7}{figure:22}" + "".join(f"{f(values):10.4g}" for f in (statistics.median, min, max)))
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    target.write_text(json.dumps({"time": time.time(), "machine": machine, "rounds": figures}, indent=1) + "\n")
    print(f"every figure: {args.json}")


if __name__ == "__main__":
    main()
