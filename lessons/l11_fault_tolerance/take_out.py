"""What differs in a training that goes on from a checkpoint from which one item was taken.

    torchrun --nproc_per_node=2 -m lessons.l11_fault_tolerance.take_out --out results/live/taken_out.json \\
        mine/train.py --checkpoint results/live/kept.pt ...

The program goes on from the file once with all of it, and once without each item: restore() puts everything back, and
then the item is made again what a new process has. The file stays as it is. The results are {item: {"lines": what the
program printed of its epochs, "weights": the largest difference from those of the run with all items}}.
"""

import argparse
import contextlib
import copy
import io
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from course import rank_program, shortcuts

OBJECTS = ("model", "optimizer", "scheduler")
ITEMS = ("nothing", *OBJECTS, "epoch", "step", "losses", "rng")


def lacking(item, whole):
    """The class `whole`, a Checkpoint, as if nobody had saved the item."""
    class Lacking(whole):
        def __init__(self, file, model, optimizer, scheduler, replace):
            super().__init__(file, model, optimizer, scheduler, replace)
            self.objects = dict(zip(OBJECTS, (model, optimizer, scheduler), strict=True))

        def restore(self):
            fresh = {name: copy.deepcopy(part.state_dict()) for name, part in self.objects.items()}
            random = torch.get_rng_state()
            place = dict(zip(("epoch", "step", "losses"), super().restore(), strict=True))
            if item in OBJECTS:
                self.objects[item].load_state_dict(fresh[item])
            if item == "rng":
                torch.set_rng_state(random)
            place |= {"epoch": {"epoch": 0}, "step": {"step": 0}, "losses": {"losses": []}}.get(item, {})
            return tuple(place.values())
    return Lacking


def run(args):
    """(the trained model's weights, the lines of its epochs, without the time that they took) of the program."""
    sys.argv = [args.program, *args.arguments, "--every", str(10**9)]  # nothing is saved
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        left = runpy.run_path(args.program, run_name="__main__")
    return left["model"].state_dict(), [line.rpartition(",")[0] for line in said.getvalue().splitlines()
                                        if line.startswith("epoch")]


def main():
    parser = rank_program.parser(__doc__, out="the results, as JSON")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    sys.path[:0] = [str(Path(args.program).resolve().parent), os.path.abspath("lessons/start/ours")]
    import checkpoint  # the learner's part, or the course's

    join, dist.destroy_process_group = dist.init_process_group, lambda: None  # the ranks meet once
    dist.init_process_group = lambda *words, **given: dist.is_initialized() or join(*words, **given)
    outcomes, whole = {}, checkpoint.Checkpoint
    for item in ITEMS:
        checkpoint.Checkpoint = lacking(item, whole)
        outcomes[item] = run(args)
    if dist.get_rank() == 0:
        right = outcomes["nothing"][0]
        rank_program.write_json(args.out, {item: {"lines": lines, "weights": max(
            (weights[name] - right[name]).abs().max().item() for name in right)}
            for item, (weights, lines) in outcomes.items()})
    dist.barrier()
    shortcuts.exit_now()


if __name__ == "__main__":
    main()
