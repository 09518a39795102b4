"""How long does an update take on each step of the ladder to DDP, on networks of chosen speeds?

    torchrun --nproc_per_node=2 lessons/l06_ddp/ladder.py --rates 150mbit 600mbit none \\
        --out results/live/06_ladder.json

All ways train the model of train.py, in turns, with the images per rank of its default on two ranks. `alone` sends
nothing. `step 2` to `step 4` are the learner's classes, where the lesson's checks have found them right, else ours.
Steps 2 and 3 send by the ring in mine/all_reduce.py, or else ours. `DDP` is torch's own, and `DDP, small buckets` has
buckets of the size of MyDDP's. A rate is that of course/dial.py; none: no limit.

The file is one JSON object: the machine; `parameters`; `batch`, the images per rank; `whose`, {way: "yours" or "ours"};
`all_reduces`, {way: how many an update has}; `rounds`, {rate: {way: [seconds per update, of the slowest rank]}}.
"""

from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from course import dial, rank_program, shortcuts
from course.on_ranks import theirs_or_ours
from course.sent import Sent
from course.timing import slowest, timed
from course.train_step import TrainStep
from lessons.l06_ddp.solution import MeanGradients, OneMessage, Overlapped
from lessons.start.ours.all_reduce import all_reduce
from lessons.start.ours.my_ddp import BUCKET
from trainer import files, launch
from trainer.options import positive

CPU, BATCH, WARM_UP = torch.device("cpu"), 96, 3
STEPS = {2: MeanGradients, 3: OneMessage, 4: Overlapped}


def measure(args, classes, ring):
    calls = []

    def counted_ring(tensor):
        calls.append(tensor.numel())
        ring(tensor)

    ways = {"alone": None}
    ways |= {f"step {step}": partial(cls, all_reduce=counted_ring) for step, (cls, _) in classes.items()}
    ways |= {"DDP": DistributedDataParallel,
             "DDP, small buckets": partial(DistributedDataParallel, bucket_cap_mb=BUCKET / 2**20)}
    trainings, all_reduces = {way: TrainStep(BATCH, wrap) for way, wrap in ways.items()}, {}
    for way, training in trainings.items():
        for _ in range(WARM_UP):  # DDP makes its buckets anew after its first update
            calls.clear()
            with Sent() as sent:
                training.update()
        all_reduces[way] = len(calls) or sent.calls.total()
    programs = {way: partial(timed, training.update, args.updates, CPU) for way, training in trainings.items()}
    rounds = {rate: {way: slowest(seconds) for way, seconds in each.items()}
              for rate, each in dial.rounds(args.rates, programs, args.rounds).items()}
    return {"parameters": sum(each.numel() for each in trainings["alone"].model.parameters()), "batch": BATCH,
            "whose": {f"step {step}": whose for step, (_, whose) in classes.items()}, "all_reduces": all_reduces,
            "rounds": rounds}


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--rates", nargs="+", default=["none"], metavar="RATE", help="such as 150mbit; none: no limit")
    parser.add_argument("--rounds", type=positive(int), default=12, help="of each way (%(default)s)")
    parser.add_argument("--updates", type=positive(int), default=3, help="of a round (%(default)s)")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this compares ranks: start two, torchrun --nproc_per_node=2")
        dial.check_rates(args.rates)
        files.check_output("--out", args.out)
        classes = {step: theirs_or_ours(Path(f"results/live/06_step_{step}/my_ddp.py"), "MyDDP", ours)
                   for step, ours in STEPS.items()}
        ring, _ = theirs_or_ours(Path("mine/all_reduce.py"), "all_reduce", all_reduce)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        results = measure(args, classes, ring)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | results)


if __name__ == "__main__":
    rank_program.start(main)
