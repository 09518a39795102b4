"""Measure how long a collective takes for messages of many sizes, and fit time = α + β · bytes.

    torchrun --nproc_per_node=4 scripts/collectives.py --out results/live/collectives.json
    torchrun --nproc_per_node=8 scripts/collectives.py --op all_reduce all_gather --max-bytes 1G --out nccl.json

Between GPUs with NCCL where each rank has one of its own, else between CPUs with gloo. The file is one JSON object: who
measured (`world_size`, `backend`, `device_name`, `cores`, ...) and `ops`, which holds for each operation `alpha`
(seconds), `beta` (seconds a byte) and `points`, one for each message size: `bytes`, `seconds` (median over the rounds),
`low` and `high` (fastest and slowest round), `algbw` and `busbw` (bytes a second).
"""

import argparse
import math
import platform
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root
import utils
from options import Parser, check_out, cpu_name, positive

WARM_UP = 3  # calls for each size, before any is timed
BLOCK = 0.02  # seconds: calls are timed in blocks of about this length, 50 calls at most
VALUE = 4  # bytes: messages are float32

# ------------------------------------------------------------------------------------------ without a process group

# What busbw is, in units of algbw, on n ranks: bytes through the busiest link of the best algorithm for links of equal
# speed, divided by the bytes of the message (NVIDIA nccl-tests, doc/PERFORMANCE.md).
BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "send_recv": lambda n: 1,
}


def bandwidth(bytes, seconds, ranks, op="all_reduce"):
    """(algbw, busbw) in bytes a second, for a message of `bytes` on `ranks` ranks.

    algbw = bytes / seconds. busbw = algbw · factor(op, ranks), to be compared with the speed of one link, whatever the
    number of ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md). `bytes` as there: the tensor of a rank; for all_gather the
    result of a rank, for reduce_scatter and all_to_all what a rank puts in. Arrays work, too.
    """
    algbw = bytes / seconds
    return algbw, algbw * BUS_FACTORS[op](ranks)


def fit(sizes, seconds):
    """(α, β) of seconds ≈ α + β · bytes: latency in seconds, and seconds a byte. Both are 0 or more.

    It minimises the sum of |predicted / measured - 1|. Relative errors, so that microseconds count as much as
    seconds; not squared, so that one disturbed point moves nothing. Two numbers are sought, so the best line goes
    through two of the points, or through one of them and has α = 0 or β = 0 (it is a linear program): all are tried.
    Raises ValueError for less than two different sizes, and for what is not a positive number.
    """
    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)
    if sizes.shape != seconds.shape or sizes.ndim != 1 or len(np.unique(sizes)) < 2:
        raise ValueError("a fit needs as many times as sizes, and at least two different sizes")
    if not all(np.isfinite(values).all() and (values > 0).all() for values in (sizes, seconds)):
        raise ValueError("a fit needs sizes and times that are positive numbers")
    first, second = np.nonzero(sizes[:, None] < sizes)
    slope = (seconds[second] - seconds[first]) / (sizes[second] - sizes[first])
    none = np.zeros_like(seconds)
    alpha = np.concatenate([seconds[first] - slope * sizes[first], seconds, none])
    beta = np.concatenate([slope, none, seconds / sizes])
    possible = (alpha >= 0) & (beta >= 0)
    alpha, beta = alpha[possible], beta[possible]
    errors = np.abs((alpha[:, None] + beta[:, None] * sizes) / seconds - 1).sum(axis=1)
    best = errors.argmin()
    return float(alpha[best]), float(beta[best])


def ring_seconds(bytes, ranks, alpha, beta):
    """Time of a ring all-reduce, from one step between neighbours that takes α + β · bytes seconds (`send_recv`).

    2 (n - 1) steps, each with a message of bytes / n (Patarasuk and Yuan 2009; the additions cost nothing here). So
    the all-reduce itself has α(n) = 2 (n - 1) α, and β(n) = 2 (n - 1) / n · β.
    """
    return 2 * (ranks - 1) * (alpha + beta * bytes / ranks)


# ------------------------------------------------------------------------------------------ on the ranks

# The names of torch 2.14, and those of before.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def exchange(outgoing, incoming):
    """Each rank sends to the next and receives from the one before: a step of a ring."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for transfer in dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks),
                                            dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)]):
        transfer.wait()


def prepare(op, size, device):
    """(a function that does `op` once, the bytes of its message): `size`, or a little more: whole values, equal pieces.

    The values stay 0, however often it is called.
    """
    ranks = dist.get_world_size()
    piece = max(1, math.ceil(size / VALUE / ranks))
    count = piece * ranks if op in ("reduce_scatter", "all_gather", "all_to_all") else math.ceil(size / VALUE)
    whole, part = torch.full((count,), 0.0, device=device), torch.full((piece,), 0.0, device=device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: reduce_scatter_single(part, whole),
        "all_gather": lambda: all_gather_single(whole, part),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "reduce": lambda: dist.reduce(whole, dst=0),
        "send_recv": lambda: exchange(whole, other),
    }
    other = torch.full_like(whole, 0.0) if op in ("all_to_all", "send_recv") else None
    return calls[op], count * VALUE


def timed(call, calls, device):
    """Seconds for each of `calls` calls in a row, with everything done, not only begun."""
    dist.barrier()
    synchronise(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / calls


def synchronise(device):
    if device.type == "cuda":  # a collective on a GPU has only been queued when the call returns
        torch.cuda.synchronize(device)


def slowest(seconds):
    """Elementwise maximum over the ranks of a list: an operation has ended when the last rank has its result."""
    values = torch.tensor(seconds, dtype=torch.float64)
    if dist.get_backend() == "nccl":
        values = values.cuda()
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values.tolist()


def measure(op, sizes, rounds, device):
    """`points` of one operation. A round measures every size once: what disturbs a while, disturbs all sizes."""
    prepared = [prepare(op, size, device) for size in sizes]
    for call, _ in prepared:
        timed(call, WARM_UP, device)
    calls = [int(min(50, max(1, BLOCK / seconds)))  # the same on all ranks
             for seconds in slowest([timed(call, 1, device) for call, _ in prepared])]
    blocks = [slowest([timed(call, number, device) for (call, _), number in zip(prepared, calls, strict=True)])
              for _ in range(rounds)]
    points = []
    for (_, size), times in zip(prepared, zip(*blocks, strict=True), strict=True):
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
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not found or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a size: write bytes, or 4K, 64M, 1G")
    return int(found[1]) * 1024 ** " KMG".index(found[2] or " ")


def get_parser():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="write the figures to this file, as JSON")
    add("--op", nargs="+", choices=BUS_FACTORS, default=["all_reduce"], metavar="NAME",
        help=f"one or more of: {', '.join(BUS_FACTORS)}; default: all_reduce")
    add("--min-bytes", type=size, default=1024, help="smallest message; K, M and G may follow; default: 1K")
    add("--max-bytes", type=size, default=64 * 1024**2, help="largest message; default: 64M")
    add("--factor", type=positive(int), default=4, help="each message is so many times the last; default: 4")
    add("--rounds", type=positive(int), default=7, help="times that each size is measured; default: 7")
    add("--backend", choices=["auto", "nccl", "gloo"], default="auto",
        help="nccl: between GPUs; gloo: between CPUs; auto: nccl where each rank has a GPU of its own, else gloo")
    add("--timeout", type=positive(float), default=60, help="longest wait for another rank, seconds")
    return parser


def check(args, here):
    """The message sizes; ValueError or OSError, one line, for what cannot work, before any rank waits for another."""
    if here.world_size < 2:
        raise ValueError("a message needs two ranks: torchrun --nproc_per_node=2 scripts/collectives.py")
    if args.factor < 2:
        raise ValueError("--factor 1 makes no other size: take 2 or more")
    if args.min_bytes < VALUE or args.max_bytes < args.factor * args.min_bytes:
        raise ValueError(f"--min-bytes {args.min_bytes} --max-bytes {args.max_bytes}: the smallest message has {VALUE} "
                         f"bytes or more, and the largest at least --factor ({args.factor}) times as many")
    check_out(args.out)
    steps = int(math.log(args.max_bytes / args.min_bytes, args.factor) + 1e-9)
    return [args.min_bytes * args.factor**step for step in range(steps + 1)]


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = get_parser()
    args = parser.parse_args()
    with parser.one_line():
        here = utils.find_placement(backend=args.backend)
        sizes = check(args, here)
        torch.set_num_threads(utils.threads_per_rank(here))
        utils.init_distributed_mode(here, timeout=args.timeout)
    device = here.device if here.backend == "nccl" else torch.device("cpu")
    found = {"world_size": here.world_size, "nodes": here.nodes, "backend": here.backend, "device": device.type,
             "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
             "cores": utils.cores(), "threads": torch.get_num_threads(), "torch": torch.__version__,
             "host": f"{platform.system()} {platform.machine()}", "rounds": args.rounds, "time": time.time(), "ops": {}}
    for op in args.op:
        points = measure(op, sizes, args.rounds, device)
        alpha, beta = fit([point["bytes"] for point in points], [point["seconds"] for point in points])
        found["ops"][op] = {"alpha": alpha, "beta": beta, "points": points}
        if here.rank == 0:
            report(op, points, alpha, beta)
    if here.rank == 0:
        utils.write_json(args.out, found)
    dist.barrier()
    utils.end_distributed_mode()


if __name__ == "__main__":
    main()
    utils.exit_now()
