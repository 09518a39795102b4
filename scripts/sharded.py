"""One small transformer trained in seven ways on the same ranks, and what each rank held. Notebook 13 draws it.

    torchrun --nproc_per_node=2 scripts/sharded.py --out results/live/13_two.json
    torchrun --nproc_per_node=4 scripts/sharded.py --way fsdp tp fsdp_tp --out results/live/13_four.json

Each way starts from the same weights, trains on the same batches with Adam, and is compared with one process that
has the whole batches: the greatest difference of any weight, and of the loss. Bytes are counted on each rank, of
parameters, gradients, optimizer state, and what autograd keeps for backward. All on CPUs with gloo, in float32, so
that every machine shows the same. What this torch or gloo lacks is reported as such, and the next way is tried.
"""

import argparse
import contextlib
import logging
import sys
import threading
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root
import utils
from options import Parser, check_out, positive
from scripts.sharded_ways import MICRO_BATCHES, WAYS, limits
from scripts.tiny_transformer import (
    BATCH,
    SHAPE,
    SavedForBackward,
    TinyTransformer,
    batches,
    bytes_of,
    optimizer_bytes,
    plain,
)

MOST_RANKS = 4  # the model has four layers, one a stage
TIMED = 4  # steps of a pipeline with the model LARGER, of which the shortest is drawn
LARGER = replace(SHAPE, hidden=144, sequence=64)


# ------------------------------------------------------------------------------------------------ train and count


class Watchdog:
    """Ends this process where `beat` is not called for so many seconds: a mesh's groups would wait half an hour."""

    def __init__(self, here, seconds):
        self.here, self.seconds, self.timer = here, seconds, None

    def beat(self, doing):
        self.stop()
        who = f"rank {self.here.rank} of {self.here.world_size}"
        self.timer = threading.Timer(self.seconds, utils.give_up,
                                     [f"{who} has waited {self.seconds:g} s for the others in: {doing}"])
        self.timer.daemon = True
        self.timer.start()

    def stop(self):
        if self.timer:
            self.timer.cancel()


def train(way, here, steps, watchdog):
    """(the trained Setup, the losses, {part: bytes} of this rank)."""
    torch.manual_seed(0)  # the same weights for each way, and on each rank
    setup, losses = WAYS[way](TinyTransformer(), here), []
    saved = SavedForBackward(setup.model)
    for step, (tokens, targets) in enumerate(batches(steps), start=1):
        watchdog.beat(f"{way}, step {step}")
        setup.optimizer.zero_grad()
        with saved if step == steps else contextlib.nullcontext():  # each step keeps as much as the last
            losses.append(setup.backward(tokens, targets).item())
        gradients = [parameter.grad for parameter in setup.model.parameters()]
        setup.optimizer.step()
    held = {"parameters": bytes_of(setup.model.parameters()), "gradients": bytes_of(gradients),
            "optimizer state": optimizer_bytes(setup.optimizer), "activations": saved.most, "gathered": saved.gathered}
    return setup, losses, held


def whole(parameter):
    """The value that all ranks hold together, on each of them."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # "two all-gathers are slow"
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach()


def compare(way, here, steps, watchdog, reference, expected_losses):
    """What the JSON says of one way."""
    setup, losses, held = train(way, here, steps, watchdog)
    weights = {name: whole(parameter) for name, parameter in setup.model.named_parameters()}
    off = max((weights[name] - reference[name]).abs().max().item() for name in weights)
    names = {parameter: name for name, parameter in setup.model.named_parameters()}
    state = getattr(setup.optimizer, "optim", setup.optimizer).state
    own = {"held": held, "off": off, "state_of": [names[parameter] for parameter in state],
           "pieces": {name: piece(plain(parameter).detach(), weights[name]) for parameter, name in names.items()}}
    of_ranks = gathered(own)
    if set().union(*(rank["pieces"] for rank in of_ranks)) != set(reference):
        raise RuntimeError(f"{way}: no rank has {set(reference) - set().union(*(r['pieces'] for r in of_ranks))}")
    return {"ranks": [rank["held"] for rank in of_ranks], "losses": losses,
            "weights_off": max(rank["off"] for rank in of_ranks),
            "loss_off": max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)),
            "pieces": {name: [rank["pieces"].get(name) for rank in of_ranks] for name in reference},
            "state_of": [rank["state_of"] for rank in of_ranks],
            "timeline": timeline(way, here, watchdog) if setup.events else []}


def compare_or_say(*arguments):
    """The same; {"unsupported": ...} where this torch or gloo has not what the way needs, on all ranks alike."""
    try:
        return compare(*arguments)
    except (ImportError, RuntimeError) as error:
        lacking = isinstance(error, ImportError | NotImplementedError) or "does not support" in str(error)
        if not lacking:
            raise
        return {"unsupported": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def piece(mine, everything):
    """{shape, first}: what this rank has of a weight, and where its first value stands there; found by the values.

    A vector's `first` is None: its values may be all alike.
    """
    if mine.dim() != 2 or mine.numel() == 0:
        return {"shape": list(mine.shape), "first": None}
    for first in (everything == mine[0, 0]).nonzero().tolist():
        if torch.equal(everything[first[0]:, first[1]:][:mine.shape[0], :mine.shape[1]], mine):
            return {"shape": list(mine.shape), "first": first}
    raise RuntimeError("what this rank holds is nowhere in the whole weight")


def timeline(way, here, watchdog):
    """The events of all ranks in one step of a larger model, with `rank`, in ms since the first.

    The shortest of a few steps: on a busy machine a rank may lose its core in the middle. The small model's
    micro-batches would take no longer than it takes to send them.
    """
    steps, setup = [], WAYS[way](TinyTransformer(LARGER), here)
    for tokens, targets in batches(TIMED, LARGER):
        watchdog.beat(f"{way}, timed")
        setup.events.clear()
        dist.barrier()
        setup.backward(tokens, targets)
        steps.append([{"rank": rank, **event} for rank, own in enumerate(gathered(setup.events)) for event in own])

    def begin_and_end(events):  # the ranks of one machine share a clock
        return min(event["start"] for event in events), max(event["end"] for event in events)

    events = min(steps, key=lambda events: begin_and_end(events)[1] - begin_and_end(events)[0])
    first, _ = begin_and_end(events)
    return [{**event, "start": 1000 * (event["start"] - first), "end": 1000 * (event["end"] - first)}
            for event in events]


def gathered(mine):
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    return of_ranks


# ------------------------------------------------------------------------------------------------ command


def get_parser():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    names = [*WAYS, "limits"]
    add("--way", nargs="+", choices=names, metavar="NAME",
        help=f"one or more of: {', '.join(names)}; default: all that fit the ranks (fsdp_tp needs four)")
    add("--steps", type=positive(int), default=4, help="updates of each way; default: 4")
    add("--out", type=Path, required=True, help="write what was found to this file, as JSON")
    add("--timeout", type=positive(float), default=60, help="longest wait for another rank, seconds; default: 60")
    return parser


def check(args, here):
    """ValueError, one line, for what cannot work; before any rank waits for another."""
    if not 2 <= here.world_size <= MOST_RANKS or here.nodes > 1:
        raise ValueError(f"this is for 2 to {MOST_RANKS} ranks of one machine: "
                         "torchrun --nproc_per_node=2 scripts/sharded.py")
    if args.way is None:
        args.way = [way for way in (*WAYS, "limits") if way != "fsdp_tp" or here.world_size == 4]
    if "fsdp_tp" in args.way and here.world_size != 4:
        raise ValueError(f"--way fsdp_tp is a mesh of 2 x 2 ranks, and there are {here.world_size}: "
                         "torchrun --nproc_per_node=4")
    check_out(args.out)


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = get_parser()
    args = parser.parse_args()
    with parser.one_line():
        here = utils.find_placement("cpu", "gloo")
        check(args, here)
        torch.set_num_threads(1)
        utils.init_distributed_mode(here, timeout=args.timeout)
    watchdog = Watchdog(here, args.timeout + 30)  # later than the collective's own timeout, which says more
    setup, losses, _ = train("one", here, args.steps, watchdog)
    reference = {name: parameter.detach() for name, parameter in setup.model.named_parameters()}
    found = {"world_size": here.world_size, "torch": torch.__version__, "steps": args.steps, "batch": BATCH,
             "micro_batches": MICRO_BATCHES, "shapes": {name: list(value.shape) for name, value in reference.items()},
             "ways": {}}
    for way in args.way:
        watchdog.beat(way)
        if way == "limits":
            found["limits"] = limits(here)
        else:
            found["ways"][way] = compare_or_say(way, here, args.steps, watchdog, reference, losses)
        dist.barrier()
    watchdog.stop()
    if here.rank == 0:
        utils.write_json(args.out, found)
        for way, result in found["ways"].items():
            print(f"{way:8}", result.get("unsupported") or f"weights off by {result['weights_off']:.1e}, loss by "
                  f"{result['loss_off']:.1e}")
    utils.end_distributed_mode()


if __name__ == "__main__":
    main()
    utils.exit_now()
