"""Time main.py's training step of LeNet for several batch sizes: one rank alone, ranks side by side, ranks that talk.

    torchrun --nproc_per_node=2 lessons/l08_performance/step_time.py --out results/live/steps.json

alone         rank 0 trains, the others wait
side_by_side  each rank trains a model of its own; nobody talks
by_hand       so it does, but after each backward all ranks all-reduce as many bytes as there are gradients. What this
              takes the rank that comes last, who waits for nobody, is `all_reduce`; what it takes longer is `wait`
silent        DDP, whose hook sends nothing: what DDP costs by itself
ddp           as main.py: DistributedDataParallel

The file is one JSON object: the machine, and models.lenet.points, a point for each way and batch size (images a step
of each rank). `rounds` of a point are seconds a step, means over the ranks: `step`, and the parts `wait` and
`all_reduce` of it. A round measures every way and batch size once, one after another. It is a mean over many steps: an
epoch is a sum, and slow steps count in it as they are.
"""

import statistics
from functools import partial

import torch
import torch.distributed as dist

import utils
from course import rank_program, shortcuts
from course.adjustable_training import Setting, Training
from course.rank_program import meet
from course.timing import interleave
from trainer import launch
from trainer.files import check_output
from trainer.options import positive

WAYS = ["alone", "side_by_side", "by_hand", "silent", "ddp"]
SAMPLES = 8192  # images that the steps draw from
BLOCK = 0.2  # seconds: a round times about this much of each, MOST steps at most
LEAST, MOST = 4, 200  # steps
WARM_UP = 5  # steps: DDP orders its buckets anew after the first


class Trainer:
    """One batch size, one way."""

    def __init__(self, way, batch_size, train_set, placement):
        setting = Setting(batch_size, ddp=way in ("silent", "ddp"), hook="silent" if way == "silent" else "none")
        self.way, self.placement, self.training = way, placement, Training(setting, "lenet", train_set, placement)
        self.gradients = torch.zeros(sum(p.numel() for p in self.training.raw.parameters()), device=placement.device)

    def block(self, count):
        """{"step", "wait", "all_reduce"}: seconds a step of `count` steps, mean over the ranks that train; every rank
        must call it."""
        device, trains = self.placement.device, self.way != "alone" or self.placement.rank == 0
        meet(device)
        timer, all_reduces = utils.PhaseTimer(device), []  # of the block, and of each all-reduce

        def mark(phase):
            timer.mark(phase)
            if phase == "backward" and self.way == "by_hand":
                all_reduces.append(utils.PhaseTimer(device))
                dist.all_reduce(self.gradients)
                all_reduces[-1].mark("all_reduce")
                timer.mark("all_reduce")

        for _ in range(count if trains else 0):
            self.training.update(mark)
        step, wait, all_reduce = sum(timer.totals().values()), 0.0, 0.0
        if self.way == "by_hand":
            own = torch.tensor([each.totals()["all_reduce"] for each in all_reduces], device=device)
            last = own.clone()
            dist.all_reduce(last, dist.ReduceOp.MIN)  # of each step
            wait, all_reduce = (own - last).sum().item(), last.sum().item()
        # Who did not train waits in the sum: it takes nothing from the others.
        sums = torch.tensor([step, wait, all_reduce, trains], dtype=utils.sum_type(device), device=device)
        step, wait, all_reduce, ranks = utils.all_sum(sums)
        return {"step": step / ranks / count, "wait": wait / ranks / count, "all_reduce": all_reduce / ranks / count}


def measure(trainers, rounds):
    """A `point` for each of {(way, batch size): Trainer}."""
    for trainer in trainers.values():
        trainer.block(WARM_UP)
    steps = {key: trainer.block(LEAST)["step"] for key, trainer in trainers.items()}  # the same on all ranks
    counts = {key: int(min(MOST, max(LEAST, BLOCK / seconds))) for key, seconds in steps.items()}
    blocks = interleave({key: partial(trainer.block, counts[key]) for key, trainer in trainers.items()}, rounds)
    return [{"way": way, "batch_size": batch_size, "rounds": of_rounds}
            for (way, batch_size), of_rounds in blocks.items()]


def check(args, placement):
    """The training set; ValueError, one line, for what cannot work, before any rank waits for another."""
    if placement.world_size < 2:
        raise ValueError("one rank is alone: torchrun --nproc_per_node=2 step_time.py")
    if max(args.batch_sizes) > SAMPLES // placement.world_size:
        raise ValueError(f"--batch-sizes {max(args.batch_sizes)}: each of {placement.world_size} ranks has "
                         f"{SAMPLES // placement.world_size} images")
    check_output("--out", args.out)
    return rank_program.dataset(args)[0].first(SAMPLES, placement.device)


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", dataset=True, timeout=60)
    add = parser.add_argument
    add("--batch-sizes", type=positive(int), nargs="+", default=[16, 32, 64, 128], metavar="B",
        help="images a step of each rank (default: 16 32 64 128)")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all of them")
    add("--rounds", type=positive(int), default=5, help="times that each is measured; default: 5")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement()
        train_set = check(args, placement)
    shortcuts.keep_memory()
    shortcuts.defer_compiler()
    with rank_program.ranks(placement, args.timeout):
        points = measure({(way, size): Trainer(way, size, train_set, placement)
                          for size in args.batch_sizes for way in args.ways}, args.rounds)
        if placement.rank == 0:
            for point in points:
                steps = [1e3 * of_round["step"] for of_round in point["rounds"]]
                print(f"{point['way']:13} batch {point['batch_size']:4}: {statistics.median(steps):8.2f} ms a step "
                      f"({min(steps):.2f} to {max(steps):.2f})", flush=True)
            rank_program.write_json(args.out, {
                **rank_program.measured_on(placement), "dataset": train_set.name,
                "models": {"lenet": {"points": points}}})


if __name__ == "__main__":
    rank_program.start(main)
