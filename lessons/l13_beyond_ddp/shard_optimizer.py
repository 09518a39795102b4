"""A sharded optimizer, such as a learner's MyZero, trains the transformer beside PyTorch's ZeRO-1 and plain DDP.

    torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_optimizer.py --optimizer \\
        results/live/13_my_zero.py:MyZero --out results/live/13_zero1.json

Each way starts from the same weights, sees the same text, and is compared with one process. Bytes are counted on each
rank, messages on rank 0. Then the ways take turns, and each of their steps is timed. On CPUs with gloo, in float32.
"""

from functools import partial

import torch

from course import rank_program
from course import tiny_transformer as tiny
from course.sent import Sent
from course.sharding import MOST_RANKS, Watchdog, apart
from course.timing import interleave, slowest, timed
from lessons.l13_beyond_ddp import shard_ways
from lessons.l13_beyond_ddp.shard_model import LARGER, train
from trainer import launch
from trainer.files import check_output, from_file
from trainer.options import address, positive

WAYS = ("ddp", "zero1", "mine")
UPDATES = 3  # in a round


def measured(ways, placement, steps, rounds, watchdog):
    """{way: how far its weights are off, [rank] -> {part: bytes}, what rank 0 sends in a step, ms of its steps}."""
    alone, *_ = train("one", placement, steps, watchdog, ways, LARGER)
    reference, setups, results = dict(alone.model.named_parameters()), {}, {}
    batch = next(tiny.batches(1, LARGER))

    def update(way):
        watchdog.beat(f"{way}, timed")
        setups[way].model.zero_grad()
        setups[way].backward(*batch)
        setups[way].optimizer.step()

    for way in WAYS:
        setups[way], losses, held = train(way, placement, steps, watchdog, ways, LARGER)
        off = apart(dict(setups[way].model.named_parameters()), reference)
        results[way] = {"losses": losses, "weights_off": max(launch.gathered(off)), "ranks": launch.gathered(held)}
    calls = {way: partial(timed, partial(update, way), UPDATES, placement.device) for way in WAYS}
    for way, seconds in interleave(calls, rounds).items():
        results[way]["ms"] = [1000 * second for second in slowest(seconds)]
    for way in WAYS:
        with Sent() as sent:
            update(way)
        results[way]["sent"] = sent.rows()
    return results


def main():
    parser = rank_program.parser(__doc__, out="write the results to this file, as JSON", timeout=60)
    parser.add_argument("--optimizer", type=address, required=True, metavar="FILE.py:CLASS",
                        help="made on each rank, CLASS(parameters, optimizer_class, **options); has step()")
    parser.add_argument("--steps", type=positive(int), default=4, help="updates before weights are compared (4)")
    parser.add_argument("--rounds", type=positive(int), default=7,
                        help=f"of {UPDATES} timed updates of each way; default: 7")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if not 2 <= placement.world_size <= MOST_RANKS or placement.nodes > 1:
            raise ValueError(f"this is for 2 to {MOST_RANKS} ranks of one machine: torchrun --nproc_per_node=2")
        check_output("--out", args.out)
        mine = partial(shard_ways.mine, sharded_optimizer=from_file(args.optimizer))
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        watchdog = Watchdog(placement, args.timeout + 30)  # later than the collective's own timeout, which says more
        results = measured(shard_ways.WAYS | {"mine": mine}, placement, args.steps, args.rounds, watchdog)
    if placement.rank == 0:
        rank_program.write_json(args.out, {"world_size": placement.world_size, "optimizer": args.optimizer,
                                           "ways": results})
        for way, result in results.items():
            print(f"{args.optimizer if way == 'mine' else way}: weights off by {result['weights_off']:.1e}")


if __name__ == "__main__":
    rank_program.start(main)
