"""Measure what site/pages/measured.md quotes: ratios of whole runs, interleaved, as medians with their range.

    python scripts/measure/benchmark.py                     everything, about 5 minutes a round on two cores
    python scripts/measure/benchmark.py --only start --rounds 3
    python scripts/measure/benchmark.py --only frameworks --out build/frameworks.json

epoch       an epoch of CIFAR-10 (LeNet, batch 64, one thread): main.py against textbook.py; its share of data
ranks       images a second of main.py, LeNet and the small ResNet, one thread each: two ranks against one, and against
            two processes that train at the same time and never talk, which is what the machine can give
start       torchrun typed to the first training step done, 8 ranks: main.py against textbook.py, and against 8 ranks of
            a line that only imports torch, start to finish
frameworks  an epoch of LeNet and of the small ResNet on one and on two ranks, one thread each: main.py against the
            same training under Lightning Fabric and Accelerate, where they are installed (pip install -e '.[rivals]')
ray         typed to the first training step done, and typed to the prompt again, 2 ranks of main.py: under torchrun,
            and under Ray Train, where it is installed
doctor      an epoch of LeNet on two ranks: main.py under doctor/ against main.py
logs        1,000 run logs of 100 epochs into one table: course/runs.py against no more than json.loads

Each epoch is the second of its run: the first one warms up. The programs of a comparison go in the other order in every
second round. Ratios of the same round are comparable; seconds on a shared machine are not.
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

from course import processes, rank_program
from files import check_output
from options import nonempty_path, positive

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
RANKS = {1: PYTHON, 2: [*TORCHRUN, "--nproc_per_node=2"]}
LIMIT = 600  # seconds, for one run
OURS = f"benchmark {os.getpid()}"  # the mark of all runs; each has one of its own, too
FRAMEWORKS = {"fabric": "lightning_fabric", "accelerate": "accelerate"}
MODELS = {"lenet": 50_000, "resnet": 10_000}  # images of an epoch: about as many seconds for each
AIMS = {("epoch", "main.py / textbook"): 0.5, ("start", "main.py / import torch"): 1.0,  # {(round, figure): at most}
        ("doctor", "with / without"): 1.3,
        **{("frameworks", f"{model} x{ranks} main.py / {name}"): 0.9
           for model, ranks, name in itertools.product(MODELS, (1, 2), FRAMEWORKS)}}


def run(command, threads=None):
    """Run `command` in the repository; its standard output. Ends this program with one line if the run fails."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        status = processes.run(command, LIMIT, f"{OURS}: {uuid.uuid4()}", processes.environment(OURS, env), cwd=ROOT,
                               stdout=out, stderr=err)
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


def second_epoch(launcher, model, images, script="main.py"):
    return main_py(launcher, "--model", model, "--samples", images, "--epochs", 2, "--test-samples", 100, threads=1,
                   script=script)


def textbook(launcher, *options, threads=None):
    return last_epoch(run([*launcher, "lessons/l01_one_device/textbook.py", *map(str, options)], threads))


def import_torch(launcher):
    """The least that ranks of torch can do; its record holds when they had ended."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write("import torch\n")
        script.flush()
        run([*launcher, script.name])
    return {"time": time.time()}


def in_turn(number, programs):
    """{name: result} of functions by name, in the other order every second round: whoever goes first may meet a machine
    that is cooler, or still busy with what ran before."""
    return {name: programs[name]() for name in list(programs)[::-1 if number % 2 else 1]}


def against(seconds, prefix=""):
    """{figure: value}: the seconds of each program, by name, and main.py's divided by those of each other."""
    ratios = {f"{prefix}main.py / {name}": seconds["main.py"] / value for name, value in seconds.items()}
    del ratios[f"{prefix}main.py / main.py"]
    return {**{f"{prefix}{name} s": value for name, value in seconds.items()}, **ratios}


def epoch_round(number, samples):
    images = samples or MODELS["lenet"]
    did = in_turn(number, {"main.py": partial(second_epoch, PYTHON, "lenet", images),
                           "textbook": partial(textbook, PYTHON, "--epochs", 2, "--samples", images, threads=1)})
    return {**against({name: one["seconds"] for name, one in did.items()}),
            "main.py data share": did["main.py"]["data_seconds"] / did["main.py"]["seconds"]}


def apart(model, images):
    """Images a second of two processes together that train at the same time and never talk."""
    with ThreadPoolExecutor() as at_once:
        try:
            return sum(at_once.map(partial(speed, PYTHON, model), [images, images]))
        except KeyboardInterrupt:  # it comes to this thread alone
            processes.end(OURS)
            raise


def speed(launcher, model, images):
    return second_epoch(launcher, model, images)["images_per_second"]


def ranks_round(number, samples):
    figures = {}
    for model, images in MODELS.items():
        did = in_turn(number, {"1 rank": partial(speed, PYTHON, model, samples or images),
                               "2 ranks": partial(speed, RANKS[2], model, samples or images),
                               "2 apart": partial(apart, model, samples or images)})
        figures |= {f"{model} {name} img/s": value for name, value in did.items()}
        for one, other in (("2 ranks", "1 rank"), ("2 apart", "1 rank"), ("2 ranks", "2 apart")):
            figures[f"{model} {one} / {other}"] = did[one] / did[other]
    return figures


def start_round(number, samples):
    def seconds(program, *options):
        began = time.time()
        return program([*TORCHRUN, "--nproc_per_node=8"], *options)["time"] - began

    one_step = ["--epochs", 1, "--samples", 8 * 64, "--test-samples", 8]  # 64 images a rank
    return against(in_turn(number, {"main.py": partial(seconds, main_py, *one_step),
                                    "textbook": partial(seconds, textbook, "--steps", 1),
                                    "import torch": partial(seconds, import_torch)}))


def frameworks_round(number, samples):
    figures = {}
    loops = {"main.py": "main.py", **{name: f"scripts/rivals/{name}_loop.py" for name in installed()}}
    for model, (ranks, launcher) in itertools.product(MODELS, RANKS.items()):
        images = samples or MODELS[model] // 2  # twelve runs a round are enough
        did = in_turn(number, {name: partial(second_epoch, launcher, model, images, script)
                               for name, script in loops.items()})
        figures |= against({name: one["seconds"] for name, one in did.items()}, f"{model} x{ranks} ")
    return figures


def ray_round(number, samples):
    def seconds(launcher, script):
        began = time.time()
        one_step = ["--epochs", 1, "--samples", 2 * 64, "--test-samples", 2]  # 64 images a rank
        record = main_py(launcher, *one_step, threads=1, script=script)
        return {"start": record["time"] - began, "whole": time.time() - began}

    did = in_turn(number, {"torchrun": partial(seconds, RANKS[2], "main.py"),
                           "ray": partial(seconds, PYTHON, "scripts/rivals/ray_loop.py")})
    figures = {}
    for what in ("start", "whole"):
        figures |= {f"{name} {what} s": took[what] for name, took in did.items()}
        figures[f"ray / torchrun {what}"] = did["ray"][what] / did["torchrun"][what]
    return figures


def doctor_round(number, samples):
    images = samples or MODELS["lenet"] // 2
    did = in_turn(number, {"without": partial(second_epoch, RANKS[2], "lenet", images),
                           "with": partial(second_epoch, [*RANKS[2], "-m", "doctor"], "lenet", images)})
    seconds = {f"{name} s": one["seconds"] for name, one in did.items()}
    return {**seconds, "with / without": seconds["with s"] / seconds["without s"]}


def logs_round(number, samples):
    import run_log
    from course import runs

    lines = next((ROOT / "results/recorded/two-cpu-cores").glob("*.jsonl")).read_text().splitlines()
    fields = [{name: value for name, value in json.loads(line).items() if name not in ("kind", "time", "run_id")}
              for line in lines[:2]]
    with tempfile.TemporaryDirectory() as folder:
        for each in range(1000):
            with run_log.RunLog(Path(folder, f"{each}.jsonl")) as log:
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


def missing(name):
    """What a comparison lacks here, or None."""
    if name == "frameworks" and not installed():
        return "neither Fabric nor Accelerate is installed: pip install -e '.[rivals]'"
    if name == "ray" and not importlib.util.find_spec("ray"):
        return "Ray is not installed: pip install -e '.[rivals]'"
    return None


def versions():
    """Of what was compared, as the JSON file names them."""
    found = {}
    for package in ("torch", "torchvision", "lightning-fabric", "accelerate", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


ROUNDS = {"epoch": epoch_round, "ranks": ranks_round, "start": start_round, "frameworks": frameworks_round,
          "ray": ray_round, "doctor": doctor_round, "logs": logs_round}


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--only", choices=ROUNDS, action="append", help="measure this one; may be repeated")
    add("--rounds", type=positive(int), default=5, help="how often each comparison is run (default: %(default)s)")
    add("--samples", type=positive(int), help="images of an epoch, to try this out: so few measure the warming up")
    add("--out", type=nonempty_path, default="build/benchmark.json",
        help="also write every figure here (default: %(default)s)")
    args = parser.parse_args()
    wanted = args.only or list(ROUNDS)
    with parser.one_line():
        check_output("--out", args.out)
        for name, why in [(name, missing(name)) for name in wanted if missing(name)]:
            if args.only:
                raise ValueError(f"--only {name}: {why}")
            print(f"left out: {name}: {why}", file=sys.stderr)
            wanted.remove(name)
    try:
        figures = measure(wanted, args)
    except KeyboardInterrupt:
        print("\nbenchmark: stopped; nothing was written", file=sys.stderr)
        sys.exit(130)
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    rank_program.write_json(args.out, {"time": time.time(), "machine": machine, "versions": versions(),
                                  "samples": args.samples, "rounds": figures})
    print(f"every figure: {args.out}")


def measure(wanted, args):
    """{comparison: [{figure: value} of each round]}; their medians are printed as a table, with their aims."""
    figures = {name: [] for name in wanted}
    for number in range(args.rounds):
        for name, rounds in figures.items():
            print(f"round {number + 1} of {args.rounds}: {name} ...", file=sys.stderr, flush=True)
            rounds.append(ROUNDS[name](number, args.samples))
    print(f"{'':12}{'figure':32}{'median':>10}{'lowest':>10}{'highest':>10}   aim ({args.rounds} rounds)")
    for name, rounds in figures.items():
        for figure in rounds[0]:
            values = [values[figure] for values in rounds]
            told = "".join(f"{f(values):10.4g}" for f in (statistics.median, min, max))
            if aim := AIMS.get((name, figure)):
                told += f"   at most {aim:g}: {'reached' if statistics.median(values) <= aim else 'not reached'}"
            print(f"{name:12}{figure:32}{told}")
    return figures


if __name__ == "__main__":
    main()
