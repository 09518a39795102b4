"""Time five all-reduces on a slow network.

    torchrun --nproc_per_node=4 scripts/measure/network.py --rate 200mbit --out FILE
    scripts/cluster/lab_cluster.py --nodes 4 --rate 200mbit -- 'torchrun --nnodes=4 --node-rank=$NODE \\
        --nproc-per-node=1 --master-addr=$MASTER --master-port=29500 scripts/measure/network.py \\
        --cards --rate 200mbit --out FILE'

The first sets the dial (course/dial.py): a cable of that rate for each pair of ranks. In the second the rate is that of
one network card per host, which lab_cluster.py makes; --cards says so. The ways take turns, and a time is that of the
slowest rank: the median, and in brackets its interval of at least 95 % (course/compare.py). FILE is JSON with the same,
and with the seconds of each round.
"""

from functools import partial

import torch
import torch.distributed as dist

from course import compare, dial, rank_program
from course.timing import interleave, slowest, timed
from lessons.l04_collectives.solution import direct, star
from lessons.start.ours.all_reduce import all_reduce
from trainer import launch
from trainer.files import check_output
from trainer.options import positive

SIZE, RANKS = 4 * 1024**2, 4  # bytes of the message, and who reduces it


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


def measure(args):
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


def in_ms(seconds):
    return "{:.0f} ({:.0f} to {:.0f})".format(*(1e3 * each for each in compare.interval(seconds)))


def main():
    parser = rank_program.parser(__doc__, out="write the measurement to this file, as JSON", timeout=120)
    add = parser.add_argument
    add("--rate", required=True, help="200mbit, say")
    add("--cards", action="store_true", help="the rate is that of a card per host, made outside")
    add("--rounds", type=positive(int), default=9, help="default: 9")
    args = parser.parse_args()
    with parser.one_line():
        dial.bits(args.rate)
        if not args.cards and (reason := dial.missing()):
            raise OSError(reason)
        check_output("--out", args.out)
        placement = launch.find_placement(device="cpu", backend="gloo")
        if placement.world_size != RANKS:
            raise ValueError(f"this needs {RANKS} ranks: torchrun --nproc_per_node={RANKS}")
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        measured, lines = measure(args)
        if placement.rank == 0:
            rank_program.write_json(args.out, {**rank_program.measured_on(placement), **measured})
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    rank_program.start(main)
