"""A model that is to fit into a given memory: a learner's choice trains it beside FSDP2 as it comes.

    torchrun --nproc_per_node=2 lessons/l13b_fsdp2/fit.py --choice results/live/13b_my_fsdp.py:my_fsdp --limit 8e6 \\
        --out results/live/13b_fit.json

Each way starts from the same weights, sees the same text and is compared with one process. Counted on each rank: the
shards of the parameters and of Adam's averages, and the most bytes of all other tensors at one time of a step. On CPUs
with gloo.
"""

from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh

from course import memory, rank_program
from course import tiny_transformer as tiny
from course.sharding import MOST_RANKS, Watchdog
from lessons.l13b_fsdp2.shard_in_use import WAYS, compared, ready
from trainer import launch
from trainer.files import check_output, from_file
from trainer.options import address, positive

SHAPE = memory.Transformer(layers=8, hidden=48, heads=4, sequence=32, vocabulary=tiny.SHAPE.vocabulary)


def kept_by(shape, sequences):
    """{part: bytes that it keeps for backward in 32 bits, of so many sequences}: a block, a block that keeps its input
    alone, and what stands behind the blocks."""
    tokens = sequences * shape.sequence
    block = memory.activations(shape, sequences, dropout=False, size=4, stats=True)
    its_input = memory.activations(shape, sequences, recompute="all", size=4)
    return {"block": block, "input": its_input, "head": 4 * tokens * (2 * shape.hidden + 2 + shape.vocabulary)}


def chosen(model, placement, choice, limit, predictions):
    """As the choice shares it out. Its prediction is added to the list."""
    kept = kept_by(SHAPE, tiny.BATCH // placement.world_size)
    predictions.append(float(choice(model, init_device_mesh("cpu", (placement.world_size,)), limit, kept)))
    return ready(model, placement)


def main():
    parser = rank_program.parser(__doc__, out="write the results to this file, as JSON", timeout=60)
    parser.add_argument("--choice", type=address, required=True, metavar="FILE.py:FUNCTION",
                        help="called on each rank, FUNCTION(model, mesh, limit, kept); returns the bytes it predicts")
    parser.add_argument("--limit", type=positive(float), required=True, help="bytes of memory of a rank")
    parser.add_argument("--steps", type=positive(int), default=4, help="updates of each way, two or more; default: 4")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if args.steps < 2 or not 2 <= placement.world_size <= MOST_RANKS or placement.nodes > 1:
            raise ValueError(f"this is for 2 to {MOST_RANKS} ranks of one machine, and two or more steps: "
                             "torchrun --nproc_per_node=2")
        check_output("--out", args.out)
        predictions = []
        mine = partial(chosen, choice=from_file(args.choice), limit=args.limit, predictions=predictions)
    torch.set_num_threads(1)
    ways = {way: WAYS[way] for way in ("one", "fsdp", "mixed", "recomputed")} | {"mine": mine}
    with rank_program.ranks(placement, args.timeout):
        watchdog = Watchdog(placement, args.timeout + 30)  # later than the collective's own timeout, which says more
        results = compared(placement, args.steps, watchdog, ways, SHAPE)
        results["mine"]["predicted"] = launch.gathered(predictions[0])
    if placement.rank == 0:
        rank_program.write_json(args.out, {"limit": args.limit, "choice": args.choice, "ways": results})
        for way, result in results.items():
            print(f"{args.choice if way == 'mine' else way}: weights off by {result['weights_off']:.1e}")


if __name__ == "__main__":
    rank_program.start(main)
