"""One small transformer trained in several ways on the same ranks, and what each rank held. Notebook 13 draws it.

    torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py --out results/live/13_two.json
    torchrun --nproc_per_node=4 lessons/l13_beyond_ddp/shard_model.py --way fsdp tp fsdp_tp --out \\
        results/live/13_four.json
    torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py --order results/live/13_order.json --out \\
        results/live/13_pipeline.json

The last runs a pipeline in the order of a file, beside PyTorch's GPipe and 1F1B, and times all three. Each way starts
from the same weights, trains on the same batches with Adam, and is compared with one process that has the whole
batches: the greatest difference of any weight, and of the loss. Bytes are counted on each rank, of parameters,
gradients, optimizer state, and what autograd keeps for backward. All on CPUs with gloo, in float32, so that every
machine shows the same.
"""

import contextlib
import json
import logging
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median

import torch
import torch.distributed as dist

from course import rank_program
from course import tiny_transformer as tiny
from course.sharding import MOST_RANKS, Watchdog, apart, whole
from lessons.l13_beyond_ddp import pipeline
from lessons.l13_beyond_ddp.shard_ways import MICRO_BATCHES, WAYS, limits
from trainer import launch
from trainer.files import check_input, check_output
from trainer.options import nonempty_path, positive

PIPELINES = ("gpipe", "1f1b", "mine")
LARGER = replace(tiny.SHAPE, hidden=144, sequence=64)  # for times
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # "two all-gathers are slow"


# ------------------------------------------------------------------------------------------------ train and count


def train(way, placement, steps, watchdog, ways=WAYS, shape=tiny.SHAPE):
    """(the trained Setup, the losses, {part: bytes} of this rank)."""
    torch.manual_seed(0)  # the same weights for each way, and on each rank
    setup, losses = ways[way](tiny.TinyTransformer(shape), placement), []
    saved = tiny.SavedForBackward(setup.model)
    for step, (tokens, targets) in enumerate(tiny.batches(steps, shape), start=1):
        watchdog.beat(f"{way}, step {step}")
        setup.model.zero_grad()
        with saved if step == steps else contextlib.nullcontext():  # each step keeps as much as the last
            losses.append(setup.backward(tokens, targets).item())
        setup.optimizer.step()
    return setup, losses, tiny.held(setup.model, setup.optimizer, saved)


def compare(trained, reference, expected_losses):
    """{ranks, losses, weights_off, loss_off, pieces, timeline}: what `train` returns, compared with one
    process's weights and losses."""
    setup, losses, held = trained
    names = {parameter: name for name, parameter in setup.model.named_parameters()}
    weights = {name: whole(parameter) for parameter, name in names.items()}
    pieces = {name: piece(tiny.plain(parameter).detach(), weights[name]) for parameter, name in names.items()}
    held, off, pieces = zip(*launch.gathered((held, apart(weights, reference), pieces)), strict=True)
    return {"ranks": held, "losses": losses, "weights_off": max(off),
            "loss_off": max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)),
            "pieces": {name: [of_rank.get(name) for of_rank in pieces] for name in reference},
            "timeline": []}


def piece(mine, whole_weight):
    """{shape, first}: this rank's piece of a weight, and where it begins in the whole, found by the values.

    A vector's `first` is None: its values may be all alike. RuntimeError if the piece is nowhere in the whole weight.
    """
    if mine.dim() != 2 or mine.numel() == 0:
        return {"shape": list(mine.shape), "first": None}
    for first in (whole_weight == mine[0, 0]).nonzero().tolist():
        if torch.equal(whole_weight[first[0]:, first[1]:][:mine.shape[0], :mine.shape[1]], mine):
            return {"shape": list(mine.shape), "first": first}
    raise RuntimeError("this rank's piece is nowhere in the whole weight")


def timelines(ways, placement, steps, watchdog):
    """{pipeline: the events of all ranks in one step of a larger model, with `rank`, in ms since the first}.

    Each event begins and ends at its medians over `steps` steps: on a busy machine a rank may lose its core in the
    middle of any of them. (Events that overlap in no step do not overlap in the medians.) The ways take turns, so that
    a disturbance of one disturbs the others, too. To compute the small model's micro-batches takes no longer than to
    send them.
    """
    setups = {way: ways[way](tiny.TinyTransformer(LARGER), placement) for way in PIPELINES}
    timed = {way: [] for way in PIPELINES}
    for (tokens, targets), way in product(tiny.batches(1 + steps, LARGER), PIPELINES):
        watchdog.beat(f"{way}, timed")
        events = setups[way].events
        events.clear()
        dist.barrier()
        setups[way].backward(tokens, targets)
        events = [{"rank": rank, **event} for rank, own in enumerate(launch.gathered(events)) for event in own]
        first = min(event["start"] for event in events)  # the ranks of one machine share a clock
        timed[way].append([{**event, "start": 1000 * (event["start"] - first), "end": 1000 * (event["end"] - first)}
                           for event in events])
    return {way: [{**same[0], **{moment: median(event[moment] for event in same) for moment in ("start", "end")}}
                  for same in zip(*timed[way][1:], strict=True)] for way in PIPELINES}  # the first step is slower


# ------------------------------------------------------------------------------------------------ command


def check(args, placement):
    """ValueError, one line, for options that cannot work; before any rank waits for another."""
    if not 2 <= placement.world_size <= MOST_RANKS or placement.nodes > 1:
        raise ValueError(f"this is for 2 to {MOST_RANKS} ranks of one machine: "
                         "torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py")
    if args.order:
        check_input("--order", args.order)
        args.way, orders = list(PIPELINES), json.loads(args.order.read_text(encoding="utf-8"))
        if len(orders) != placement.world_size:
            raise ValueError(f"--order {args.order}: lists for {len(orders)} ranks, and there are "
                             f"{placement.world_size}")
        pipeline.computed(orders)  # else the ranks would wait for each other
        args.ways = WAYS | {"mine": partial(pipeline.in_order, orders=orders)}
    if args.way is None:
        args.way = [way for way in (*WAYS, "limits") if way != "fsdp_tp" or placement.world_size == 4]
    if "fsdp_tp" in args.way and placement.world_size != 4:
        raise ValueError(f"--way fsdp_tp is a mesh of 2 x 2 ranks, and there are {placement.world_size}: "
                         "torchrun --nproc_per_node=4")
    check_output("--out", args.out)


def main():
    parser = rank_program.parser(__doc__, out="write the results to this file, as JSON", timeout=60)
    names = [*WAYS, "limits"]
    parser.set_defaults(ways=WAYS)
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--order", type=nonempty_path, metavar="FILE", help="JSON, a list for each rank of "
                      '["forward", i] and ["backward", i]: train a pipeline in this order, and time it and PyTorch\'s')
    task.add_argument("--way", nargs="+", choices=names, metavar="NAME", help="one or more of: "
                      f"{', '.join(names)}; default: all that fit the ranks (fsdp_tp needs four)")
    parser.add_argument("--steps", type=positive(int), default=4, help="updates N of each way; with "
                        "--order, 2 N - 1 steps of each pipeline are timed; default: 4")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        check(args, placement)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        watchdog = Watchdog(placement, args.timeout + 30)  # later than the collective's own timeout, which says more
        setup, losses, _ = alone = train("one", placement, args.steps, watchdog)
        reference = {name: parameter.detach() for name, parameter in setup.model.named_parameters()}
        shapes = {name: list(value.shape) for name, value in reference.items()}
        ways, results = {}, {"world_size": placement.world_size, "batch": tiny.BATCH, "micro_batches": MICRO_BATCHES,
                             "shapes": shapes}
        for way in args.way:
            if way == "limits":
                watchdog.beat(way)
                results["limits"] = limits(placement)
            else:
                trained = alone if way == "one" else train(way, placement, args.steps, watchdog, args.ways)
                ways[way] = compare(trained, reference, losses)
            dist.barrier()
        if args.order:
            for way, events in timelines(args.ways, placement, 2 * args.steps - 1, watchdog).items():
                ways[way]["timeline"] = events
    if placement.rank == 0:
        rank_program.write_json(args.out, results | {"ways": ways})
        for way, result in ways.items():
            print(f"{way:8} weights off by {result['weights_off']:.1e}, loss by {result['loss_off']:.1e}")


if __name__ == "__main__":
    rank_program.start(main)
