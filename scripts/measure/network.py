"""Measure what a slow network makes visible: five all-reduces, DDP's buckets, and layers that are gathered ahead.

    torchrun --nproc_per_node=4 scripts/measure/network.py all_reduces --rate 200mbit --out FILE
    scripts/cluster/lab_cluster.py --nodes 4 --rate 200mbit -- 'torchrun --nnodes=4 --node-rank=$NODE \\
        --nproc-per-node=1 --master-addr=$MASTER --master-port=29500 scripts/measure/network.py \\
        all_reduces --cards --rate 200mbit --out FILE'
    torchrun --nproc_per_node=2 scripts/measure/network.py buckets --out FILE
    torchrun --nproc_per_node=2 scripts/measure/network.py gathers --out FILE

The first and the last two set the dial (course/dial.py): a cable of that rate for each pair of ranks. In the second the
rate is that of one network card per host, which lab_cluster.py makes; --cards says so. All is measured in interleaved
rounds, and a time is that of the slowest rank: the median, and in brackets its interval of at least 95 %
(course/compare.py). FILE is JSON with the same, and with the seconds of each round.
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course import compare, dial, rank_program
from course.timing import all_gather_single, interleave, slowest, timed
from lessons.l04_collectives.solution import direct, star
from lessons.start.ours.all_reduce import all_reduce
from trainer import launch
from trainer.files import check_output
from trainer.options import positive

SIZE = 4 * 1024**2  # bytes of the message of the five all-reduces
WIDTH, ROWS, LAYERS, SHARDED = 512, 3000, 6, 8  # of DDP's model; its rows; layers with DDP, and layers that are sharded
RATES = {"buckets": ("500mbit", "300mbit", None), "gathers": ("500mbit", "250mbit", None)}  # None: without the dial


def star_in_turn(tensor):
    """Rank 0 receives from one rank after the other, then sends the sum to all."""
    if dist.get_rank() == 0:
        part = torch.empty_like(tensor)
        for rank in range(1, dist.get_world_size()):
            dist.recv(part, rank)
            tensor += part
        for message in [dist.isend(tensor, rank) for rank in range(1, dist.get_world_size())]:
            message.wait()
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


# Each all-reduce, and how many times the message goes over the busiest connection (a cable per pair), or through the
# busiest card (one per host), with n ranks.
ALL_REDUCES = {
    "star, in turn": (star_in_turn, lambda n: n, lambda n: 2 * (n - 1)),
    "star, at once": (star, lambda n: 2, lambda n: 2 * (n - 1)),
    "ring": (all_reduce, lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1) / n),
    "direct": (direct, lambda n: 2 / n, lambda n: 2 * (n - 1) / n),
    "dist.all_reduce": (dist.all_reduce, lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1) / n),
}


def seconds_of(call):
    """Of the slowest rank, from a barrier on."""
    return slowest([timed(call, 1, torch.device("cpu"))])[0]


def measure_all_reduces(args):
    """The five on a message of SIZE bytes; each result is compared with dist.all_reduce's."""
    ranks, message = dist.get_world_size(), torch.zeros(SIZE // 4)

    def once(name):
        message.copy_(torch.arange(message.numel()) % 101 + dist.get_rank())
        seconds = seconds_of(lambda: ALL_REDUCES[name][0](message))
        right = (torch.arange(message.numel()) % 101) * ranks + ranks * (ranks - 1) / 2
        if not torch.equal(message, right):
            raise ValueError(f"{name} did not add up")
        return seconds

    if not args.cards:
        dial.pace(args.rate)
    rounds = interleave({name: partial(once, name) for name in ALL_REDUCES}, args.rounds)
    by_bytes = {name: (cards if args.cards else cables)(ranks) * 8 * SIZE / dial.bits(args.rate)
                for name, (_, cables, cards) in ALL_REDUCES.items()}
    lines = [f"{ranks} ranks, {SIZE / 2**20:.0f} MiB, {'one card per host' if args.cards else 'a cable per pair'} of "
             f"{args.rate}, {args.rounds} rounds", f"{'':18}{'measured, ms':>26}{'from the bytes':>17}{'ratio':>8}"]
    for name, seconds in rounds.items():
        ratio = compare.interval(seconds)[0] / by_bytes[name]
        lines.append(f"{name:18}{in_ms(seconds):>26}{1e3 * by_bytes[name]:17.0f}{ratio:8.2f}")
    return {"rate": args.rate, "cards": args.cards, "seconds": rounds, "by_bytes": by_bytes}, lines


def measure_buckets(args):
    """A step of a model alone, in DDP with buckets of 1 MiB, and with one bucket for all."""
    def model():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))

    batch = torch.randn(ROWS, WIDTH)
    models = {"alone": model(), "small buckets": DistributedDataParallel(model(), bucket_cap_mb=1),
              "one bucket": DistributedDataParallel(model(), bucket_cap_mb=1000)}
    for one in models.values():  # DDP makes its buckets anew after the first step
        for _ in range(2):
            one(batch).sum().backward()

    def once(rate, name):
        dial.pace(rate)
        return seconds_of(lambda: models[name](batch).sum().backward())

    rounds = interleave({(rate, name): partial(once, rate, name) for rate in RATES["buckets"] for name in models},
                        args.rounds)
    lines = [f"2 ranks, {LAYERS} layers of {WIDTH} x {WIDTH}, {ROWS} rows, {args.rounds} rounds: ms per step",
             f"{'':10}" + "".join(f"{name:>22}" for name in models) + "   step, small / one; exposed, small / one"]
    for rate in RATES["buckets"]:
        alone, small, one = (rounds[rate, name] for name in models)
        exposed = [[each - base for each, base in zip(of, alone, strict=True)] for of in (small, one)]
        # Without the dial the exposed times are of the size of their noise, and their ratio says nothing.
        halved = str(compare.ratio(*exposed)) if min(exposed[1]) > 0 and rate else "–"
        lines.append(f"{rate or 'no limit':10}" + "".join(f"{in_ms(rounds[rate, name]):>22}" for name in models)
                     + f"   {compare.ratio(small, one)}; {halved}")
    return {"rates": RATES["buckets"], "seconds": {f"{rate}, {name}": of for (rate, name), of in rounds.items()}}, lines


def measure_gathers(args):
    """A forward of layers of which each rank keeps half: each is gathered when it is needed, or one layer ahead."""
    torch.manual_seed(0)
    batch, kept = torch.randn(ROWS, WIDTH), torch.randn(SHARDED, WIDTH // 2, WIDTH) / WIDTH**0.5
    whole = torch.empty(SHARDED, WIDTH, WIDTH)

    def forward(ahead):
        def gather(layer):
            return all_gather_single(whole[layer], kept[layer], async_op=True)

        at, coming = batch, None
        for layer in range(SHARDED):
            (coming or gather(layer)).wait()
            coming = gather(layer + 1) if ahead and layer + 1 < SHARDED else None
            at = F.linear(at, whole[layer])

    def once(rate, ahead):
        dial.pace(rate)
        return seconds_of(lambda: forward(ahead))

    names = {True: "one ahead", False: "in time"}
    with torch.no_grad():
        rounds = interleave({(rate, ahead): partial(once, rate, ahead) for rate in RATES["gathers"] for ahead in names},
                            args.rounds)
    lines = [f"2 ranks, {SHARDED} layers of {WIDTH} x {WIDTH}, {ROWS} rows, {args.rounds} rounds; forward, ms",
             f"{'':10}" + "".join(f"{name:>22}" for name in names.values()) + "   ahead / in time"]
    for rate in RATES["gathers"]:
        ahead, in_time = (rounds[rate, kind] for kind in names)
        lines.append(f"{rate or 'no limit':10}{in_ms(ahead):>22}{in_ms(in_time):>22}   {compare.ratio(ahead, in_time)}")
    return {"rates": RATES["gathers"],
            "seconds": {f"{rate}, {names[ahead]}": of for (rate, ahead), of in rounds.items()}}, lines


def in_ms(seconds):
    return "{:.0f} ({:.0f} to {:.0f})".format(*(1e3 * each for each in compare.interval(seconds)))


WHAT = {"all_reduces": (measure_all_reduces, 4), "buckets": (measure_buckets, 2), "gathers": (measure_gathers, 2)}


def main():
    parser = rank_program.parser(__doc__, out="write the measurement to this file, as JSON", timeout=120)
    add = parser.add_argument
    add("what", choices=WHAT, help="what to measure")
    add("--rate", help="of all_reduces: 200mbit")
    add("--cards", action="store_true", help="of all_reduces: the rate is that of a card per host, made outside")
    add("--rounds", type=positive(int), default=9, help="default: 9")
    args = parser.parse_args()
    measure, ranks = WHAT[args.what]
    with parser.one_line():
        if (args.what == "all_reduces") != (args.rate is not None):
            raise ValueError("--rate is for all_reduces, which needs it")
        if args.rate:
            dial.bits(args.rate)
        if not args.cards and (reason := dial.missing()):
            raise OSError(reason)
        check_output("--out", args.out)
        placement = launch.find_placement(device="cpu", backend="gloo")
        if placement.world_size != ranks:
            raise ValueError(f"{args.what} needs {ranks} ranks: torchrun --nproc_per_node={ranks}")
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        measured, lines = measure(args)
        if placement.rank == 0:
            rank_program.write_json(args.out, {**rank_program.measured_on(placement), **measured})
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    rank_program.start(main)
