"""Time main.py's training step for several batch sizes: one rank alone, ranks side by side, ranks that talk.

    python lessons/l08_predict_scaling/step_time.py --out one.json
    torchrun --nproc_per_node=2 lessons/l08_predict_scaling/step_time.py --ways alone side_by_side by_hand --out \\
        two.json
    torchrun --nproc_per_node=2 lessons/l08_predict_scaling/step_time.py --ways alone ddp --models lenet resnet \\
        --out ddp.json

alone         rank 0 trains, the others wait
side_by_side  each rank trains a model of its own; nobody talks
by_hand       so it does, but after each backward all ranks all-reduce as many bytes as there are gradients. What this
              takes the rank that comes last, who waits for nobody, is `all_reduce`; what it takes longer is `wait`
silent        DDP, whose hook sends nothing: what DDP costs by itself
ddp           as main.py: DistributedDataParallel

The file is one JSON object: who measured, and `models`, which holds for each model `gradient_bytes` and `points`, one
for each way and batch size (images a step of each rank). Seconds a step, means over the ranks: `seconds` (median over
the rounds; of an even number the faster of the middle two), `low` and `high` (fastest and slowest round), `phases`,
what the median round is made of, and `rounds`, the phases of each. A round measures every way and batch size once, one
after another. It is a mean over many steps: an epoch is a sum, and slow steps count in it as they are.
"""

import time
from functools import partial

import torch
import torch.distributed as dist

import launch
import models
import shortcuts
import utils
from course import rank_program
from course.adjustable_training import Setting, Training
from course.rank_program import meet
from course.timing import interleave
from files import check_output
from options import positive

WAYS = ["alone", "side_by_side", "by_hand", "silent", "ddp"]
BLOCK = 0.2  # seconds: a round times about this much of each, MOST steps at most
LEAST, MOST = 4, 200  # steps
WARM_UP = 5  # steps: DDP orders its buckets anew after the first
PHASES = ["data", "forward", "backward", "wait", "all_reduce", "update"]


class Timer(utils.PhaseTimer):
    """That keeps each all-reduce, too."""

    def __init__(self, device):
        self.all_reduces = []
        super().__init__(device)

    def add(self, phase, seconds):
        super().add(phase, seconds)
        if phase == "all_reduce":
            self.all_reduces.append(seconds)


class Trainer:
    """One model, one batch size, one way."""

    def __init__(self, model, way, batch_size, args, train_set, placement):
        setting = Setting(batch_size, ddp=way in ("silent", "ddp"), bucket_cap_mb=args.bucket_cap_mb,
                          hook="silent" if way == "silent" else "none")
        self.way, self.placement, self.training = way, placement, Training(setting, model, train_set, placement)
        self.gradients = torch.zeros(sum(p.numel() for p in self.training.raw.parameters()), device=placement.device)

    def block(self, count):
        """{phase: seconds a step} of `count` steps, mean over the ranks that train; every rank must call it."""
        device, trains = self.placement.device, self.way != "alone" or self.placement.rank == 0
        meet(device)
        timer = Timer(device)

        def mark(phase):
            timer.mark(phase)
            if phase == "backward" and self.way == "by_hand":
                dist.all_reduce(self.gradients)
                timer.mark("all_reduce")

        for _ in range(count if trains else 0):
            self.training.update(mark)
        phases = timer.totals()
        if self.way == "by_hand":
            last = torch.tensor(timer.all_reduces, device=device)
            dist.all_reduce(last, dist.ReduceOp.MIN)  # of each step
            phases["wait"], phases["all_reduce"] = phases["all_reduce"] - sum(last.tolist()), sum(last.tolist())
        # Who did not train waits in the sum: it takes nothing from the others.
        sums = [*(phases.get(name, 0.0) for name in PHASES), trains]
        *seconds, ranks = utils.all_sum(torch.tensor(sums, dtype=utils.sum_type(device), device=device))
        return {name: value / ranks / count for name, value in zip(PHASES, seconds, strict=True)}


def measure(trainers, rounds):
    """A `point` for each of {(way, batch size): Trainer}."""
    for trainer in trainers.values():
        trainer.block(WARM_UP)
    steps = {key: sum(trainer.block(LEAST).values()) for key, trainer in trainers.items()}  # the same on all ranks
    counts = {key: int(min(MOST, max(LEAST, BLOCK / seconds))) for key, seconds in steps.items()}
    blocks = interleave({key: partial(trainer.block, counts[key]) for key, trainer in trainers.items()}, rounds)
    points = []
    for (way, batch_size), phases_of_rounds in blocks.items():
        by_time = sorted(phases_of_rounds, key=lambda phases: sum(phases.values()))
        middle = by_time[(len(by_time) - 1) // 2]
        points.append({"way": way, "batch_size": batch_size, "steps": counts[way, batch_size],
                       "seconds": sum(middle.values()), "low": sum(by_time[0].values()),
                       "high": sum(by_time[-1].values()), "phases": middle, "rounds": phases_of_rounds})
    return points


def check(args, placement):
    """The training set; ValueError, one line, for what cannot work, before any rank waits for another."""
    if placement.world_size < 2 and set(args.ways) != {"alone"}:
        raise ValueError("one rank is alone: torchrun --nproc_per_node=2 step_time.py for the other --ways")
    check_output("--out", args.out)
    train_set = rank_program.dataset(args)[0].first(args.samples, placement.device)
    if len(train_set) // placement.world_size < max(args.batch_sizes):
        raise ValueError(f"--samples {len(train_set)} are no batch of {max(args.batch_sizes)} for each of "
                         f"{placement.world_size} rank(s)")
    return train_set


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", dataset=True, timeout=60)
    add = parser.add_argument
    add("--models", nargs="+", choices=models.MODELS, default=["lenet"], help="default: lenet")
    add("--batch-sizes", type=positive(int), nargs="+", default=[16, 32, 64, 128], metavar="B",
        help="images a step of each rank (default: 16 32 64 128)")
    add("--ways", nargs="+", choices=WAYS, default=["alone"], help="default: alone")
    add("--rounds", type=positive(int), default=5, help="times that each is measured; default: 5")
    add("--bucket-cap-mb", type=positive(float), default=25, help="size of DDP's gradient buckets, MiB")
    add("--samples", type=positive(int), default=8192, help="images that the steps draw from; default: 8192")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: a GPU where there is one")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement(args.device)
        train_set = check(args, placement)
    shortcuts.keep_memory()
    shortcuts.defer_compiler()
    with rank_program.ranks(placement, args.timeout):
        measured = {**rank_program.measured_on(placement), "dataset": train_set.name, "rounds": args.rounds,
                    "backend": placement.backend if placement.world_size > 1 else None, "time": time.time(),
                    "models": {}}
        for model in args.models:
            trainers = {(way, size): Trainer(model, way, size, args, train_set, placement)
                        for size in args.batch_sizes for way in args.ways}
            points = measure(trainers, args.rounds)
            size = sum(weight.nbytes for weight in next(iter(trainers.values())).training.raw.parameters())
            measured["models"][model] = {"gradient_bytes": size, "points": points}
            if placement.rank == 0:
                print(f"{model}, {size:,} bytes of gradients, {placement.world_size} rank(s)")
                for point in points:
                    print(f"  {point['way']:13} batch {point['batch_size']:4}: {1e3 * point['seconds']:8.2f} ms a step "
                          f"({1e3 * point['low']:.2f} to {1e3 * point['high']:.2f})", flush=True)
        if placement.rank == 0:
            rank_program.write_json(args.out, measured)


if __name__ == "__main__":
    rank_program.start(main)
