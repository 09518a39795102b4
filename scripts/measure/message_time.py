"""Measure how long a collective takes for messages of many sizes, and fit time = α + β · bytes.

    torchrun --nproc_per_node=4 scripts/measure/message_time.py --out results/live/collectives.json
    torchrun --nproc_per_node=8 scripts/measure/message_time.py --op all_reduce all_gather --max-bytes 1G --out x.json

Between GPUs with NCCL where each rank has one of its own, else between CPUs with gloo. The file is one JSON object: who
measured (`world_size`, `backend`, `device_name`, `cores`, ...) and `ops`, which holds for each operation `alpha`
(seconds), `beta` (seconds a byte) and `points`, one for each message size: `bytes`, `seconds` (median over the rounds),
`low` and `high` (fastest and slowest round), `algbw` and `busbw` (bytes a second).
"""

import argparse
import math
import re
import statistics
import time
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

from course import rank_program
from course.predict.fit import BUS_FACTORS, bandwidth, fit
from course.timing import interleave, prepare, slowest, timed
from trainer import launch
from trainer.files import check_output
from trainer.options import positive

SMALLEST, FACTOR = 1024, 4  # bytes of the first message; each next message is FACTOR times as large
WARM_UP = 3  # calls for each size, before any is timed
BLOCK = 0.02  # seconds: calls are timed in blocks of about this length, 50 calls at most


def measure(op, sizes, rounds, device):
    """`points` of one operation."""
    prepared = [prepare(op, size, device) for size in sizes]
    for call, _ in prepared:
        timed(call, WARM_UP, device)
    calls = [int(min(50, max(1, BLOCK / seconds)))  # the same on all ranks
             for seconds in slowest([timed(call, 1, device) for call, _ in prepared])]
    blocks = interleave({index: partial(timed, call, calls[index], device)
                         for index, (call, _) in enumerate(prepared)}, rounds)
    points = []
    for index, (_, size) in enumerate(prepared):
        times = slowest(blocks[index])
        seconds = statistics.median(times)
        algbw, busbw = bandwidth(size, seconds, dist.get_world_size(), op)
        points.append({"bytes": size, "seconds": seconds, "low": min(times), "high": max(times), "algbw": algbw,
                       "busbw": busbw})
    return points


def report(op, points, alpha, beta):
    print(f"{op}\n{'bytes':>12}{'µs':>12}{'algbw GB/s':>12}{'busbw GB/s':>12}")
    for point in points:
        print(f"{point['bytes']:12}{1e6 * point['seconds']:12.1f}{point['algbw'] / 1e9:12.3g}"
              f"{point['busbw'] / 1e9:12.3g}")
    speed = f" (1/β: {1e-9 / beta:.2f} GB/s)" if beta else ""
    print(f"fit: α = {1e6 * alpha:.0f} µs, β = {1e9 * beta:.3f} ns a byte{speed}", flush=True)


# ------------------------------------------------------------------------------------------ command


def size(text):
    """Bytes from 4096, 4K, 64M or 1G (K is 1024)."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a size: write bytes, or 4K, 64M, 1G")
    return int(match[1]) * 1024 ** " KMG".index(match[2] or " ")


def check(args, placement):
    """The message sizes; ValueError or OSError, one line, for what cannot work, before any rank waits for another."""
    if placement.world_size < 2:
        raise ValueError("a message needs two ranks: torchrun --nproc_per_node=2 scripts/measure/message_time.py")
    if args.max_bytes < FACTOR * SMALLEST:
        raise ValueError(f"--max-bytes {args.max_bytes}: a line needs two sizes; take {FACTOR * SMALLEST} or more")
    check_output("--out", args.out)
    steps = int(math.log(args.max_bytes / SMALLEST, FACTOR) + 1e-9)
    return [SMALLEST * FACTOR**step for step in range(steps + 1)]


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", timeout=60)
    add = parser.add_argument
    add("--op", nargs="+", choices=BUS_FACTORS, default=["all_reduce"], metavar="NAME",
        help=f"one or more of: {', '.join(BUS_FACTORS)}; default: all_reduce")
    add("--max-bytes", type=size, default=64 * 1024**2,
        help="largest message; K, M and G may follow; default: 64M. Sizes begin at 1K and grow by a factor of 4")
    add("--rounds", type=positive(int), default=7, help="times that each size is measured; default: 7")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement()
        sizes = check(args, placement)
    if placement.backend == "gloo":
        placement = replace(placement, device=torch.device("cpu"))
    with rank_program.ranks(placement, args.timeout):
        measured = {**rank_program.measured_on(placement), "nodes": placement.nodes, "backend": placement.backend,
                    "rounds": args.rounds, "time": time.time(), "ops": {}}
        for op in args.op:
            points = measure(op, sizes, args.rounds, placement.device)
            alpha, beta = fit([point["bytes"] for point in points], [point["seconds"] for point in points])
            measured["ops"][op] = {"alpha": alpha, "beta": beta, "points": points}
            if placement.rank == 0:
                report(op, points, alpha, beta)
        if placement.rank == 0:
            rank_program.write_json(args.out, measured)


if __name__ == "__main__":
    rank_program.start(main)
