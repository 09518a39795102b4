"""Record the trainings of lesson 09: train.py, its small network, the course's parts, three seeds.

    python lessons/l09_large_batch/record.py --jobs 2

Nothing recorded depends on the machine's speed, so it may be busy. A training that is in the file already is not run
again.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import re
import runpy
import subprocess
import sys
from pathlib import Path

import torch  # noqa: F401  once, before the processes are forked

from trainer.options import positive

FILE = Path("results/recorded/large-batch/trainings.jsonl")
COMMAND = ["lessons/start/train.py", "--parts", "ours", "--small"]
EPOCH = re.compile(r"epoch \d+: loss (\S+), accuracy ([\d.]+), ([\d.]+) ms per update(?:, noise scale (\S+))?")
SEEDS, TARGET = (0, 1, 2), 0.45
# {images per update: rates}
RATES = {16: (0.005, 0.01, 0.02), 32: (0.01, 0.02, 0.04), 64: (0.01, 0.02, 0.04, 0.08), 128: (0.02, 0.04, 0.08, 0.16),
         256: (0.04, 0.08, 0.16), 512: (0.04, 0.08, 0.16, 0.32, 0.64), 1024: (0.08, 0.16, 0.32),
         2048: (0.08, 0.16, 0.32), 3072: (0.08, 0.16, 0.32)}


def trainings():
    """(name of the experiment, ranks, options of train.py)."""
    large = "--batch 1024 --lr 0.02 --epochs 30"
    yield "noise", 2, "--batch 256 --lr 0.04 --epochs 30 --noise"
    yield "linear, warm-up", 1, f"{large} --lr-for 64 --warm-up 60"
    yield "linear, warm-up, twice the rate", 1, "--batch 1024 --lr 0.04 --epochs 30 --lr-for 64 --warm-up 60"
    yield "linear", 1, f"{large} --lr-for 64"
    yield "64 images", 1, "--batch 64 --lr 0.02 --epochs 30"
    yield "same rate", 1, large
    yield "square root", 1, "--batch 1024 --lr 0.08 --epochs 30"
    for batch, rates in RATES.items():
        for lr in rates:
            yield "steps", 1, f"--batch {batch} --lr {lr} --epochs 60 --until {TARGET}"


def epochs(printed: str) -> dict[str, list[float]]:
    """What train.py has printed, a value per epoch: loss, accuracy, ms per update and, where measured, the noise scale.
    """
    columns = zip(*EPOCH.findall(printed), strict=True)
    return {name: [float(value) for value in values if value]
            for name, values in zip(("loss", "accuracy", "ms", "noise"), columns, strict=True)}


def train(job):
    experiment, ranks, options = job
    out = io.StringIO()
    if ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", *COMMAND]
        out.write(subprocess.run([*command, *options.split()], check=True, capture_output=True, text=True).stdout)
    else:
        sys.argv = [*COMMAND, *options.split()]
        with contextlib.redirect_stdout(out):
            runpy.run_path(COMMAND[0], run_name="__main__")
    columns = epochs(out.getvalue())
    del columns["ms"]
    return {"experiment": experiment, "ranks": ranks, "options": options, **columns}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=positive(int), default=2, help="trainings at a time; default: 2")
    args = parser.parse_args()
    there = {json.loads(line)["options"] for line in FILE.read_text().splitlines()} if FILE.exists() else set()
    jobs = [(name, ranks, f"{options} --seed {seed}") for seed in SEEDS for name, ranks, options in trainings()]
    with multiprocessing.Pool(args.jobs) as pool, FILE.open("a") as file:
        for record in pool.imap_unordered(train, [job for job in jobs if job[2] not in there]):
            print(json.dumps(record), file=file, flush=True)


if __name__ == "__main__":
    main()
