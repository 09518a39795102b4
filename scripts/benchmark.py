"""Measure what the README quotes: ratios of whole runs, interleaved within one session, as medians with their spread.

    python scripts/benchmark.py                     everything, about 12 minutes on two cores
    python scripts/benchmark.py --only start --rounds 5
    python scripts/benchmark.py --only frameworks --json build/frameworks.json

epoch       an epoch of CIFAR-10 (LeNet, batch 64, one thread): main.py against scripts/textbook.py; its share of data
ranks       images a second of main.py, LeNet and the small ResNet: two ranks against one, one thread each
start       torchrun typed to the first training step done, 8 ranks: main.py against scripts/textbook.py
frameworks  an epoch of LeNet and of the small ResNet on one and on two ranks, one thread each: main.py against the
            same training under Lightning Fabric and Accelerate, where they are installed (requirements-optional.txt)
logs        1,000 run logs of 100 epochs into one table: scripts/runs.py against no more than json.loads

Each epoch is the second of its run: the first one warms up. The programs of a comparison take turns in going first.
Ratios of the same round are comparable; seconds on a shared machine are not.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root
from scripts import bounded

ROOT = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO_RANKS = [*TORCHRUN, "--nproc_per_node=2"]
LIMIT = 600  # seconds, for one run
FRAMEWORKS = {"fabric": "lightning_fabric", "accelerate": "accelerate"}
MODELS = {"lenet": 50_000, "resnet": 10_000}  # images of an epoch: about as many seconds for each


def run(command, threads=None):
    """Run `command` in the repository; its standard output. Ends this program with one line if the run fails."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        status = bounded.run(command, LIMIT, f"benchmark {os.getpid()}", env, cwd=ROOT, stdout=out, stderr=err)
        if status:
            err.seek(0)
            sys.exit(f"benchmark: {' '.join(command)} ended with status {status}:\n{err.read()[-1000:]}")
        if status is None:
            sys.exit(f"benchmark: {' '.join(command)} was killed after {LIMIT} s")
        out.seek(0)
        return out.read()


def last_epoch(text):
    return [record for record in map(json.loads, text.splitlines()) if record["kind"] == "epoch"][-1]


def main_py(launcher, *options, threads=None, script="main.py"):
    """The last epoch record of a run of main.py, or of a script with its options and log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.jsonl")
        run([*launcher, script, "--dataset", "cifar10", "--log-file", str(log), *map(str, options)], threads)
        return last_epoch(log.read_text())


def textbook(launcher, *options, threads=None):
    return last_epoch(run([*launcher, "scripts/textbook.py", *map(str, options)], threads))


def in_turn(number, **programs):
    """{name: result} of functions by name. Each round begins with another one: whoever goes first may meet a machine
    that is cooler, or still busy with what ran before."""
    names = list(programs)
    first = number % len(names)
    return {name: programs[name]() for name in names[first:] + names[:first]}


def epoch_round(number, samples):
    options = ["--epochs", 2, "--samples", samples or 50_000]
    did = in_turn(number, ours=partial(main_py, PYTHON, *options, "--test-samples", 100, threads=1),
                  theirs=partial(textbook, PYTHON, *options, threads=1))
    ours, theirs = did["ours"], did["theirs"]
    return {"main.py s": ours["seconds"], "textbook s": theirs["seconds"],
            "main.py / textbook": ours["seconds"] / theirs["seconds"],
            "main.py data share": ours["data_seconds"] / ours["seconds"]}


def second_epoch(launcher, model, samples, script="main.py"):
    return main_py(launcher, "--model", model, "--samples", samples or MODELS[model], "--epochs", 2, "--test-samples",
                   100, threads=1, script=script)


def ranks_round(number, samples):
    figures = {}
    for model in MODELS:
        did = in_turn(number, one=partial(second_epoch, PYTHON, model, samples),
                      two=partial(second_epoch, TWO_RANKS, model, samples))
        one, two = (did[ranks]["images_per_second"] for ranks in ("one", "two"))
        figures |= {f"{model} 1 rank img/s": one, f"{model} 2 ranks img/s": two, f"{model} 2 ranks / 1": two / one}
    return figures


def start_round(number, samples):
    eight = [*TORCHRUN, "--nproc_per_node=8"]

    def seconds(program, *options):
        began = time.time()
        return program(eight, *options)["time"] - began

    one_step = ["--epochs", 1, "--samples", 8 * 64, "--test-samples", 8]  # 64 images a rank
    did = in_turn(number, ours=partial(seconds, main_py, *one_step), theirs=partial(seconds, textbook, "--steps", 1))
    return {"main.py s": did["ours"], "textbook s": did["theirs"], "main.py / textbook": did["ours"] / did["theirs"]}


def frameworks_round(number, samples):
    figures = {}
    loops = {"main.py": "main.py", **{name: f"scripts/{name}_loop.py" for name in installed()}}
    for model, (ranks, launcher) in itertools.product(MODELS, {1: PYTHON, 2: TWO_RANKS}.items()):
        images = samples or MODELS[model] // 2  # twelve runs a round are enough
        did = in_turn(number, **{name: partial(second_epoch, launcher, model, images, script)
                                 for name, script in loops.items()})
        seconds = {name: did[name]["seconds"] for name in loops}
        figures |= {f"{model} x{ranks} {name} s": seconds[name] for name in loops}
        figures |= {f"{model} x{ranks} main.py / {name}": seconds["main.py"] / seconds[name] for name in installed()}
    return figures


def logs_round(number, samples):
    import utils  # here, for it imports torch
    from scripts import runs

    lines = next((ROOT / "results/recorded/two-cpu-cores").glob("*.jsonl")).read_text().splitlines()
    fields = [{name: value for name, value in json.loads(line).items() if name not in ("kind", "time", "run_id")}
              for line in lines[:2]]
    with tempfile.TemporaryDirectory() as folder:
        for each in range(1000):
            with utils.RunLog(Path(folder, f"{each}.jsonl")) as log:
                log.write("run", **fields[0] | {"epochs": 100})
                for epoch in range(100):
                    log.write("epoch", **fields[1] | {"epoch": epoch})
        began = time.perf_counter()
        table = runs.read_runs(folder)
        took = time.perf_counter() - began
        began = time.perf_counter()
        for path in Path(folder).iterdir():
            for line in path.read_text().splitlines():
                json.loads(line)
        parsing = time.perf_counter() - began
    if len(table) != 100_000 or (table["note"] != "").any():
        sys.exit(f"benchmark: {len(table)} rows read of 100,000; {table['note'].iloc[0]}")
    return {"runs.py s": took, "json.loads s": parsing, "runs.py / json.loads": took / parsing}


def installed():
    return [name for name, package in FRAMEWORKS.items() if importlib.util.find_spec(package)]


def versions():
    """Of what was compared, as the JSON file names them."""
    found = {}
    for package in ("torch", "torchvision", "lightning-fabric", "accelerate"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


ROUNDS = {"epoch": epoch_round, "ranks": ranks_round, "start": start_round, "frameworks": frameworks_round,
          "logs": logs_round}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", choices=ROUNDS, action="append", help="measure this one; may be repeated")
    add("--rounds", type=int, default=4, help="how often each comparison is run (default: %(default)s)")
    add("--samples", type=int, help="images of an epoch, to try this out: so few measure the warming up")
    add("--json", default="build/benchmark.json", help="also write every figure here (default: %(default)s)")
    args = parser.parse_args()
    for option in ("rounds", "samples"):
        if getattr(args, option) is not None and getattr(args, option) < 1:
            parser.error(f"--{option} must be at least 1")
    missing = "frameworks: neither Fabric nor Accelerate is installed: pip install -r requirements-optional.txt"
    if "frameworks" in (args.only or ()) and not installed():
        parser.error(f"--only {missing}")
    target = Path(args.json)
    part = target.with_name(f"{target.name}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        parser.error(f"--json {args.json}: {error.strerror}")
    if not args.only and not installed():
        print(f"left out: {missing}", file=sys.stderr)
    try:
        measure(args.only or [name for name in ROUNDS if name != "frameworks" or installed()], args, part)
        os.replace(part, target)
    except KeyboardInterrupt:
        print("\nbenchmark: stopped; nothing was written", file=sys.stderr)
        sys.exit(130)
    finally:
        part.unlink(missing_ok=True)
    print(f"every figure: {args.json}")


def measure(wanted, args, file):
    """Run the rounds, print the table, and write all figures to `file`."""
    figures = {name: [] for name in wanted}
    for number in range(args.rounds):
        for name, rounds in figures.items():
            print(f"round {number + 1} of {args.rounds}: {name} ...", file=sys.stderr, flush=True)
            rounds.append(ROUNDS[name](number, args.samples))
    print(f"{'':12}{'figure':28}{'median':>10}{'lowest':>10}{'highest':>10}   ({args.rounds} rounds)")
    for name, rounds in figures.items():
        for figure in rounds[0]:
            values = [values[figure] for values in rounds]
            print(f"{name:12}{figure:28}" + "".join(f"{f(values):10.4g}" for f in (statistics.median, min, max)))
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    file.write_text(json.dumps({"time": time.time(), "machine": machine, "versions": versions(),
                                "samples": args.samples, "rounds": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
