"""Time main.py's training step for several batch sizes: one rank alone, ranks side by side, ranks that talk.

    python scripts/step_time.py --out results/live/one.json
    torchrun --nproc_per_node=2 scripts/step_time.py --ways alone side_by_side by_hand --out results/live/two.json
    torchrun --nproc_per_node=2 scripts/step_time.py --ways alone ddp --models lenet resnet --out results/live/ddp.json

alone         rank 0 trains, the others wait
side_by_side  each rank trains a model of its own; nobody talks
by_hand       so it does, but after each backward all ranks all-reduce one number (`wait`: the first waits for the
              last), and then as many bytes as there are gradients (`all_reduce`)
ddp           as main.py: DistributedDataParallel

The file is one JSON object: who measured, and `models`, which holds for each model `gradient_bytes` and `points`, one
for each way and batch size (images a step of each rank). Seconds a step, means over the ranks: `seconds` (median over
the rounds; of an even number the faster of the middle two), `low` and `high` (fastest and slowest round), and `phases`,
what the median round is made of. A round is a mean over many steps: an epoch is a sum, and slow steps count in it as
they are.
"""

import argparse
import platform
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root
import checkpoint
import main as course
import options
import utils
from options import Parser, check_out, cpu_name, positive
from scripts.collectives import synchronise

WAYS = ["alone", "side_by_side", "by_hand", "ddp"]
BLOCK = 0.2  # seconds: a round times about this much of each, MOST steps at most
LEAST, MOST = 4, 200  # steps
WARM_UP = 5  # steps: DDP orders its buckets anew after the first
PHASES = ["data", "forward", "backward", "wait", "all_reduce", "update"]


class Trainer:
    """One model, one batch size, one way: `steps(n)` trains n steps."""

    def __init__(self, model, way, batch_size, args, train_set, here):
        info = utils.DATASETS[train_set.name]
        torch.manual_seed(0)
        raw_model = utils.MODELS[model](info.shape[0], len(info.classes), info.shape[1]).to(here.device)
        self.way, self.here = way, here
        self.settings = options.get_parser().parse_args(["--strategy", "ddp" if way == "ddp" else "single",
                                                         "--bucket-cap-mb", str(args.bucket_cap_mb)])
        self.settings.device = here.device.type
        self.model = course.parallelise(raw_model, self.settings, here)
        self.optimizer = course.make_optimizer(self.model.parameters(), self.settings)
        sampler = checkpoint.Shard(train_set, here.world_size, here.rank)
        self.loader = DataLoader(train_set, batch_size, sampler=sampler, collate_fn=train_set.collate, drop_last=True)
        self.scheduler = course.scale_rate(self.optimizer, self.settings, here.world_size, len(self.loader))
        self.gradients = torch.cat([torch.zeros_like(p).flatten() for p in raw_model.parameters()])
        self.one_number, self.batches = torch.zeros(1, device=here.device), self.endless()

    def endless(self):
        while True:
            yield from self.loader

    def steps(self, count):
        """{phase: seconds} of `count` steps as in main.train_one_epoch; `wait` and `all_reduce` are those by hand."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.here.device)
        timer = utils.PhaseTimer(self.here.device)
        for _ in range(count):
            images, labels = next(self.batches)
            timer.mark("data")
            logits = self.model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            sums += course.count(logits, labels, loss)
            timer.mark("forward")
            self.optimizer.zero_grad()
            loss.backward()
            timer.mark("backward")
            if self.way == "by_hand":
                dist.all_reduce(self.one_number)
                timer.mark("wait")
                dist.all_reduce(self.gradients)
                timer.mark("all_reduce")
            self.optimizer.step()
            self.scheduler.step()
            timer.mark("update")
        return timer.totals()

    def block(self, count):
        """{phase: seconds a step} of `count` steps, mean over the ranks that train; every rank must call it."""
        if dist.is_initialized():
            dist.barrier()
        synchronise(self.here.device)
        trains = self.way != "alone" or self.here.rank == 0
        phases = self.steps(count) if trains else {}
        sums = torch.tensor([*(phases.get(name, 0.0) for name in PHASES), float(trains)], dtype=torch.float64)
        if self.here.backend == "nccl":
            sums = sums.cuda()
        *seconds, ranks = utils.all_sum(sums)  # who waits here did not train: it takes nothing from the others
        return {name: value / ranks / count for name, value in zip(PHASES, seconds, strict=True)}


def measure(trainers, rounds):
    """A `point` for each trainer. A round measures every trainer once: what disturbs a while, disturbs all."""
    for trainer in trainers:
        trainer.block(WARM_UP)
    counts = []
    for trainer in trainers:
        step = sum(trainer.block(LEAST).values())  # the same on all ranks
        counts.append(int(min(MOST, max(LEAST, BLOCK / step))))
    blocks = [[trainer.block(count) for trainer, count in zip(trainers, counts, strict=True)] for _ in range(rounds)]
    points = []
    for trainer, count, found in zip(trainers, counts, zip(*blocks, strict=True), strict=True):
        by_time = sorted(found, key=lambda phases: sum(phases.values()))
        middle = by_time[(len(by_time) - 1) // 2]
        points.append({"way": trainer.way, "batch_size": trainer.loader.batch_size, "steps": count,
                       "seconds": sum(middle.values()), "low": sum(by_time[0].values()),
                       "high": sum(by_time[-1].values()), "phases": middle})
    return points


def get_parser():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="write the figures to this file, as JSON")
    add("--models", nargs="+", choices=utils.MODELS, default=["lenet"], help="default: lenet")
    add("--batch-sizes", type=positive(int), nargs="+", default=[16, 32, 64, 128], metavar="B",
        help="images a step of each rank (default: 16 32 64 128)")
    add("--ways", nargs="+", choices=WAYS, default=["alone"], help="default: alone")
    add("--rounds", type=positive(int), default=5, help="times that each is measured; default: 5")
    add("--bucket-cap-mb", type=positive(float), default=25, help="size of DDP's gradient buckets, MiB")
    add("--dataset", choices=["auto", *utils.DATASETS], default="auto", help="default: auto, as main.py")
    add("--data-path", default="./data", help="folder of the data files")
    add("--samples", type=positive(int), default=8192, help="images that the steps draw from; default: 8192")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: a GPU where there is one")
    add("--timeout", type=positive(float), default=60, help="longest wait for another rank, seconds")
    return parser


def check(args, here):
    """ValueError, one line, for what cannot work, before any rank waits for another."""
    if here.world_size < 2 and set(args.ways) != {"alone"}:
        raise ValueError("one rank is alone: torchrun --nproc_per_node=2 scripts/step_time.py for the other --ways")
    if args.samples // here.world_size < max(args.batch_sizes):
        raise ValueError(f"--samples {args.samples} are no batch of {max(args.batch_sizes)} for each of "
                         f"{here.world_size} rank(s)")
    check_out(args.out)


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = get_parser()
    args = parser.parse_args()
    with parser.one_line():
        here = utils.find_placement(args.device)
        check(args, here)
        torch.set_num_threads(utils.threads_per_rank(here))
        utils.keep_memory()
        if here.world_size > 1:
            utils.init_distributed_mode(here, timeout=args.timeout)
        args.test_samples = 1  # main.py's loader wants a number of both
        train_set, _ = course.load_data(args, here)
        if len(train_set) // here.world_size < max(args.batch_sizes):
            raise ValueError(f"--batch-sizes {max(args.batch_sizes)}: {train_set.name} has {len(train_set)} images for "
                             f"{here.world_size} rank(s), no whole batch for each")
    utils.defer_compiler()
    found = {"world_size": here.world_size, "backend": here.backend if here.world_size > 1 else None,
             "device": here.device.type, "cores": utils.cores(), "threads": torch.get_num_threads(),
             "device_name": torch.cuda.get_device_name(here.device) if here.device.type == "cuda" else cpu_name(),
             "dataset": train_set.name, "torch": torch.__version__, "host": f"{platform.system()} {platform.machine()}",
             "rounds": args.rounds, "time": time.time(), "models": {}}
    for model in args.models:
        trainers = [Trainer(model, way, size, args, train_set, here) for size in args.batch_sizes for way in args.ways]
        points = measure(trainers, args.rounds)
        gradients = trainers[0].gradients
        found["models"][model] = {"gradient_bytes": gradients.nbytes, "points": points}
        if here.rank == 0:
            print(f"{model}, {gradients.nbytes:,} bytes of gradients, {here.world_size} rank(s)")
            for point in points:
                print(f"  {point['way']:13} batch {point['batch_size']:4}: {1e3 * point['seconds']:8.2f} ms a step "
                      f"({1e3 * point['low']:.2f} to {1e3 * point['high']:.2f})", flush=True)
    if here.rank == 0:
        utils.write_json(args.out, found)
    if dist.is_initialized():
        dist.barrier()
    utils.end_distributed_mode()


if __name__ == "__main__":
    main()
    utils.exit_now()
