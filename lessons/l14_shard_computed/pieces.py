"""Which rank holds which piece of which weight, with each of some strategies of train_gpt.py?

    torchrun --nproc_per_node=4 lessons/l14_shard_computed/pieces.py --strategies tensor fsdp_tp pipe \\
        --out results/live/14_pieces.json

Before a strategy gets the model, each value of a weight is set to its own number, row by row. So what a rank holds
afterwards tells which piece it is. The file is one JSON object: the machine; `shapes`, {weight: [rows, columns]};
`pieces`, {strategy: {weight: [per rank null, or {"first": [row, column], "shape": [rows, columns]}]}}.
"""

import importlib
from functools import partial

import torch
import torch.distributed as dist

from course import rank_program, shortcuts
from examples.minimal_gpt import GPT
from lessons.start.gpt_step import use_strategies
from trainer import files, launch

WEIGHTS = ["blocks.0.qkv.weight", "blocks.0.up.weight", "blocks.0.down.weight", "blocks.3.up.weight"]
CONTEXT, WIDTH, LAYERS = 16, 32, 4


def held(strategy):
    """{weight: this rank's piece}, and {weight: shape}."""
    model = GPT(CONTEXT, WIDTH, LAYERS).double()
    shapes = {name: list(weight.shape) for name, weight in model.named_parameters() if name in WEIGHTS}
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.arange(weight.numel()).view_as(weight))
    parallel, _ = importlib.import_module(strategy).parallelize(model, partial(torch.optim.SGD, lr=0.1))
    pieces = dict.fromkeys(WEIGHTS)
    for name, weight in parallel.named_parameters():
        name = name.removeprefix("module.")
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        if name in pieces and local.numel():
            columns = shapes[name][1]
            first, last = (divmod(int(end), columns) for end in (local.min(), local.max()))
            pieces[name] = {"first": first, "shape": [last[0] - first[0] + 1, last[1] - first[1] + 1]}
    return pieces, shapes


def main():
    parser = rank_program.parser(__doc__, out="write the pieces to this file, as JSON", timeout=60)
    parser.add_argument("--strategies", nargs="+", required=True, metavar="NAME", help="as train_gpt.py's --strategy")
    parser.add_argument("--parts", choices=("mine", "ours"), default="ours", help="whose (%(default)s)")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        files.check_output("--out", args.out)
        use_strategies(args.strategies, args.parts)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        pieces = {}
        for strategy in args.strategies:
            own, shapes = held(strategy)
            of_ranks = [None] * placement.world_size
            dist.all_gather_object(of_ranks, own)
            pieces[strategy] = {name: [each[name] for each in of_ranks] for name in WEIGHTS}
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | {"shapes": shapes, "pieces": pieces})


if __name__ == "__main__":
    rank_program.start(main)
