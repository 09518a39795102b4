"""How long does an update take, when a block is gathered when it is needed, and when it is gathered one block ahead?

    torchrun --nproc_per_node=2 lessons/l13_shard_kept/ahead.py --rates 300mbit none --out results/live/13_ahead.json

Both train the GPT of train_gpt.py, in turns. They are the learner's classes of steps 3 and 4, where the lesson's checks
have found them right, else ours. `alone` sends nothing. A rate is that of course/dial.py; none: no limit.

The file is one JSON object: the machine; `parameters`; `whose`, {strategy: "yours" or "ours"}; `rounds`,
{rate: {strategy: [seconds per update, of the slowest rank]}}.
"""

from functools import partial
from pathlib import Path

import torch

from course import dial, rank_program
from course.on_ranks import theirs_or_ours
from course.timing import slowest, timed
from lessons.l13_shard_kept.solution import WhenNeeded
from lessons.start.gpt_step import GPTStep
from lessons.start.ours.fsdp import MyFSDP, parallelize
from trainer import files, launch
from trainer.options import positive

STEPS = {"when needed": (3, WhenNeeded), "one block ahead": (4, MyFSDP)}


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--rates", nargs="+", default=["none"], metavar="RATE", help="such as 300mbit; none: no limit")
    parser.add_argument("--rounds", type=positive(int), default=12, help="of each strategy (%(default)s)")
    parser.add_argument("--width", type=positive(int), default=128, help="of the model (%(default)s)")
    parser.add_argument("--layers", type=positive(int), default=4, help="its blocks (%(default)s)")
    parser.add_argument("--context", type=positive(int), default=64, help="bytes per crop (%(default)s)")
    parser.add_argument("--batch", type=positive(int), default=24, help="crops per rank (%(default)s)")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this compares ranks: start two, torchrun --nproc_per_node=2")
        dial.check_rates(args.rates)
        files.check_output("--out", args.out)
        classes = {name: theirs_or_ours(Path(f"results/live/13_step_{step}/fsdp.py"), "MyFSDP", ours)
                   for name, (step, ours) in STEPS.items()}
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        strategies = {"alone": None} | {name: partial(parallelize, wrap=wrap) for name, (wrap, _) in classes.items()}
        trainings = {name: GPTStep(args.batch * placement.world_size, args.context, args.width, args.layers, each)
                     for name, each in strategies.items()}
        for training in trainings.values():
            training.update()
        programs = {name: partial(timed, each.update, 2, placement.device) for name, each in trainings.items()}
        rounds = {rate: {name: slowest(seconds) for name, seconds in each.items()}
                  for rate, each in dial.rounds(args.rates, programs, args.rounds).items()}
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | {
            "parameters": trainings["alone"].parameters, "whose": {name: whose for name, (_, whose) in classes.items()},
            "rounds": rounds})


if __name__ == "__main__":
    rank_program.start(main)
