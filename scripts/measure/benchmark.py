"""Measure what site/pages/measured.md quotes: ratios of whole runs, interleaved, as medians with their range.

    python scripts/measure/benchmark.py                     everything, about 5 minutes a round on two cores
    python scripts/measure/benchmark.py --only start --rounds 3
    python scripts/measure/benchmark.py --only frameworks --out build/frameworks.json

epoch       an epoch of CIFAR-10 (LeNet, batch 64, one thread): main.py against textbook.py; its share of data
ranks       images per second of main.py, LeNet and the small ResNet, one thread each: two ranks against one, and
            against two processes that train at the same time and never talk, which is what the machine can give
start       torchrun typed to the first training step done, 8 ranks: main.py against textbook.py, and against 8 ranks of
            a line that only imports torch, start to finish
frameworks  an epoch of LeNet and of the small ResNet on one and on two ranks, one thread each: main.py against the
            same training under Lightning Fabric and Accelerate, where they are installed (pip install -e '.[rivals]')
ray         typed to the first training step done, and typed to the prompt again, 2 ranks of main.py: under torchrun,
            and under Ray Train, where it is installed
doctor      an epoch of LeNet on two ranks: main.py under doctor/ against main.py
logs        1,000 run logs of 100 epochs into one table: course/runs.py against no more than json.loads

Each epoch is the second of its run: the first one warms up. The programs of a comparison take turns. Ratios of the same
round are comparable; seconds on a shared machine are not.
"""

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
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from course import processes, rank_program, runs, timing
from trainer import run_log
from trainer.files import check_output
from trainer.options import nonempty_path, positive

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
RANKS = {1: PYTHON, 2: [*TORCHRUN, "--nproc_per_node=2"]}
LIMIT = 600  # seconds, for one run
OURS = f"benchmark {os.getpid()}"  # the mark of all runs; each has one of its own, too
FRAMEWORKS = {"fabric": "lightning_fabric", "accelerate": "accelerate"}
MODELS = {"lenet": 50_000, "resnet": 10_000}  # images of an epoch: about as many seconds for each


def run(command, threads=None):
    """Run `command` in the repository; what it printed. Ends this program with one line if the run fails."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    status, text = processes.run_and_read(command, LIMIT, f"{OURS}: {uuid.uuid4()}", cwd=ROOT,
                                          env=processes.environment(OURS, env))
    if status != 0:
        how = f"was killed after {LIMIT} s" if status is None else f"ended with status {status}:\n{text[-1000:]}"
        sys.exit(f"benchmark: {' '.join(command)} {how}")
    return text


def last_epoch(text):
    records = (json.loads(line) for line in text.splitlines() if line.startswith("{"))  # else a warning
    return [record for record in records if record["kind"] == "epoch"][-1]


def main_py(launcher, *options, threads=None, script="main.py"):
    """The last epoch record of a run of main.py, or of a script with its options and log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.jsonl")
        run([*launcher, script, "--dataset", "cifar10", "--log-file", str(log), *map(str, options)], threads)
        return last_epoch(log.read_text())


def textbook(launcher, *options, threads=None):
    return last_epoch(run([*launcher, "scripts/measure/textbook.py", *map(str, options)], threads))


def import_torch(launcher):
    """The least that ranks of torch can do; its record holds when they had ended."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write("import torch\n")
        script.flush()
        run([*launcher, script.name])
    return {"time": time.time()}


def second_epoch(launcher, model, images, script="main.py"):
    return main_py(launcher, "--model", model, "--samples", images, "--epochs", 2, "--test-samples", 100, threads=1,
                   script=script)


# ---------------------------------------------------------------------------------------------- the comparisons
# Each is a function of --samples. It returns {(group, name): program} and the pairs of names whose figures are divided
# in each group. A program returns its figures, {unit: value}.


def seconds(*arguments):
    """Of the second epoch."""
    return {"s": second_epoch(*arguments)["seconds"]}


def speed(*arguments):
    return {"img/s": second_epoch(*arguments)["images_per_second"]}


def apart(model, images):
    """Images per second of two processes together that train at the same time and never talk."""
    with ThreadPoolExecutor() as at_once:
        try:
            return {"img/s": sum(each["img/s"] for each in at_once.map(partial(speed, PYTHON, model), [images] * 2))}
        except KeyboardInterrupt:  # it comes to this thread alone
            processes.end(OURS)
            raise


def one_step(program, launcher, *options, **settings):
    """Seconds from typing the command until its first step is done, and until the prompt is back."""
    began = time.time()
    record = program(launcher, *options, **settings)
    return {"start s": record["time"] - began, "whole s": time.time() - began}


def epoch(samples):
    images = samples or MODELS["lenet"]

    def ours():
        record = second_epoch(PYTHON, "lenet", images)
        return {"s": record["seconds"], "data share": record["data_seconds"] / record["seconds"]}

    def theirs():
        return {"s": textbook(PYTHON, "--epochs", 2, "--samples", images, threads=1)["seconds"]}

    return {("", "main.py"): ours, ("", "textbook"): theirs}, [("main.py", "textbook")]


def ranks(samples):
    programs = {}
    for model, images in MODELS.items():
        programs |= {(model, "1 rank"): partial(speed, PYTHON, model, samples or images),
                     (model, "2 ranks"): partial(speed, RANKS[2], model, samples or images),
                     (model, "2 apart"): partial(apart, model, samples or images)}
    return programs, [("2 ranks", "1 rank"), ("2 apart", "1 rank"), ("2 ranks", "2 apart")]


def start(samples):
    launcher = [*TORCHRUN, "--nproc_per_node=8"]
    options = ["--epochs", 1, "--samples", 8 * 64, "--test-samples", 8]  # 64 images a rank
    programs = {"main.py": partial(one_step, main_py, launcher, *options),
                "textbook": partial(one_step, textbook, launcher, "--steps", 1),
                "import torch": partial(one_step, import_torch, launcher)}
    return {("", name): program for name, program in programs.items()}, [
        ("main.py", "textbook"), ("main.py", "import torch")]


def frameworks(samples):
    loops = {"main.py": "main.py", **{name: f"scripts/rivals/{name}_loop.py" for name in installed()}}
    programs = {(f"{model} x{count}", name): partial(seconds, launcher, model, samples or images // 2, loop)
                for (model, images), (count, launcher), (name, loop)
                in itertools.product(MODELS.items(), RANKS.items(), loops.items())}
    return programs, [("main.py", name) for name in installed()]


def ray(samples):
    options = ["--epochs", 1, "--samples", 2 * 64, "--test-samples", 2]  # 64 images a rank
    return {("", "torchrun"): partial(one_step, main_py, RANKS[2], *options, threads=1),
            ("", "ray"): partial(one_step, main_py, PYTHON, *options, threads=1, script="scripts/rivals/ray_loop.py")
            }, [("ray", "torchrun")]


def doctor(samples):
    images = samples or MODELS["lenet"] // 2
    return {("", "without"): partial(seconds, RANKS[2], "lenet", images),
            ("", "with"): partial(seconds, [*RANKS[2], "-m", "doctor"], "lenet", images)}, [("with", "without")]


def logs(samples):
    folder = tempfile.TemporaryDirectory()
    lines = next((ROOT / "results/recorded/two-cpu-cores").glob("*.jsonl")).read_text().splitlines()
    run_fields, epoch_fields = ({name: value for name, value in json.loads(line).items()
                                 if name not in ("kind", "time", "run_id")} for line in lines[:2])
    for number in range(1000):
        with run_log.RunLog(Path(folder.name, f"{number}.jsonl")) as log:
            log.write("run", **run_fields | {"epochs": 100})
            for each in range(100):
                log.write("epoch", **epoch_fields | {"epoch": each})

    def read():
        began = time.perf_counter()
        table = runs.read_runs(folder.name)
        if len(table) != 100_000 or (table["note"] != "").any():
            sys.exit(f"benchmark: {len(table)} rows read of 100,000; {table['note'].iloc[0]}")
        return {"s": time.perf_counter() - began}

    def parse():
        began = time.perf_counter()
        for path in Path(folder.name).iterdir():
            for line in path.read_text().splitlines():
                json.loads(line)
        return {"s": time.perf_counter() - began}

    return {("", "runs.py"): read, ("", "json.loads"): parse}, [("runs.py", "json.loads")]


COMPARISONS = {function.__name__: function for function in (epoch, ranks, start, frameworks, ray, doctor, logs)}


def measure(name, rounds, samples=None):
    """[{figure: value} of each round] of a comparison: what each program returned, and the ratios of the same round."""
    programs, pairs = COMPARISONS[name](samples)
    results = timing.interleave(programs, rounds)
    return [figures(dict(zip(results, values, strict=True)), pairs) for values in zip(*results.values(), strict=True)]


def figures(results, pairs):
    """{figure: value} of a round, from {(group, name): {unit: value}}."""
    table = {f"{group} {name} {unit}".strip(): value
             for (group, name), values in results.items() for unit, value in values.items()}
    for group, (name, other) in itertools.product(dict.fromkeys(group for group, _ in results), pairs):
        for unit in [unit for unit in results[group, name] if unit in results[group, other]]:
            kind = unit.rpartition(" ")[0]  # `start` of `start s`
            table[f"{group} {name} / {other} {kind}".strip()] = results[group, name][unit] / results[group, other][unit]
    return table


def installed():
    return [name for name, package in FRAMEWORKS.items() if importlib.util.find_spec(package)]


def missing(name):
    """What a comparison lacks here, or None."""
    if name == "frameworks" and not installed():
        return "neither Fabric nor Accelerate is installed: pip install -e '.[rivals]'"
    if name == "ray" and not importlib.util.find_spec("ray"):
        return "Ray is not installed: pip install -e '.[rivals]'"
    return None


def versions():
    """{package: its version} of the packages that are compared here."""
    by_package = {}
    for package in ("torch", "torchvision", "lightning-fabric", "accelerate", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            by_package[package] = importlib.metadata.version(package)
    return by_package


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--only", choices=COMPARISONS, action="append", help="measure this one; may be repeated")
    add("--rounds", type=positive(int), default=5, help="how often each comparison is run (default: %(default)s)")
    add("--samples", type=positive(int), help="images of an epoch, to try this out: so few measure the warming up")
    add("--out", type=nonempty_path, default="build/benchmark.json",
        help="also write every figure here (default: %(default)s)")
    args = parser.parse_args()
    wanted = args.only or list(COMPARISONS)
    with parser.one_line():
        check_output("--out", args.out)
        for name, why in [(name, missing(name)) for name in wanted if missing(name)]:
            if args.only:
                raise ValueError(f"--only {name}: {why}")
            print(f"left out: {name}: {why}", file=sys.stderr)
            wanted.remove(name)
    comparisons = {}
    print(f"{'':12}{'figure':32}{'median':>10}{'lowest':>10}{'highest':>10}   ({args.rounds} rounds)", flush=True)
    try:
        for name in wanted:
            comparisons[name] = measure(name, args.rounds, args.samples)
            report(name, comparisons[name])
    except KeyboardInterrupt:
        print("\nbenchmark: stopped; nothing was written", file=sys.stderr)
        sys.exit(130)
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    rank_program.write_json(args.out, {"time": time.time(), "machine": machine, "versions": versions(),
                                       "samples": args.samples, "rounds": comparisons})
    print(f"every figure: {args.out}")


def report(name, rounds):
    """A line for each figure: its median, its lowest and its highest round."""
    for figure in rounds[0]:
        values = [values[figure] for values in rounds]
        middle = statistics.median(values)
        print(f"{name:12}{figure:32}{middle:10.4g}{min(values):10.4g}{max(values):10.4g}", flush=True)


if __name__ == "__main__":
    main()
