"""Images per second of main.py's training: one process, processes that never communicate, and DDP, interleaved.

    torchrun --nproc_per_node=8 lessons/l08_performance/losses.py --out results/live/08_losses.json
    torchrun --nproc_per_node=2 lessons/l08_performance/losses.py --global-batches 64 512 \\
        --out results/live/08_batches.json

A round measures each of them once, for 2, 4, 8 ranks and so on. Without --global-batches each rank has 64 images per
step; with it all ranks together have that many, and one process has them alone. The file is one JSON object: the
machine, and `speeds`, a list of {"way", "ranks", "batch", "rounds"}. `batch`: images per step of each rank; `rounds`:
images per second of all ranks together.
"""

import itertools
import time
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import utils
from course import rank_program, shortcuts
from course.rank_program import meet, synchronise
from course.timing import interleave
from trainer import data, launch, models
from trainer.files import check_output
from trainer.options import positive

SAMPLES, WARM_UP, MOST = 8192, 5, 10**6


class Training:
    """main.py's step on this rank."""

    def __init__(self, batch, train_set, placement):
        torch.manual_seed(0)
        info = data.DATASETS[train_set.name]
        memory_format = torch.channels_last if placement.device.type == "cpu" else torch.preserve_format
        self.model = self.raw = models.MODELS["lenet"](info.shape[0], len(info.classes), info.shape[1]).to(
            placement.device, memory_format=memory_format)
        self.optimizer = torch.optim.Adam(self.raw.parameters(), lr=0.001, fused=True)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1)  # main.py steps one, too
        self.sums = torch.zeros(3, dtype=utils.sum_type(placement.device), device=placement.device)
        sampler = DistributedSampler(range(len(train_set)), placement.world_size, placement.rank)
        self.batches = endless(DataLoader(train_set, batch, sampler=sampler, drop_last=True,
                                          collate_fn=train_set.collate), placement.device)

    def update(self):
        images, labels = next(self.batches)
        logits = self.model(images)
        loss = cross_entropy(logits, labels)
        self.sums += utils.count(logits, labels, loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()


def endless(loader, device):
    """Batches on the device, epoch after epoch."""
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            yield images.to(device), labels.to(device)


class Way:
    """One of the things that are compared. `alone`: rank 0; `apart`: each rank a model of its own; `ddp`."""

    def __init__(self, way, ranks, batch, train_set, placement, seconds):
        self.way, self.ranks, self.batch, self.placement = way, ranks, batch, placement
        group = dist.new_group(range(ranks)) if way == "ddp" else None  # every rank calls it
        self.trains, self.device, self.steps = placement.rank < ranks, placement.device, WARM_UP
        if self.trains:
            self.training = Training(batch, train_set, placement)
            if way == "ddp":
                device = [self.device] if self.device.type == "cuda" else None
                self.training.model = DistributedDataParallel(self.training.raw, device_ids=device, process_group=group,
                                                              gradient_as_bucket_view=True)
        warm = self.speed(seconds=None) / ranks / batch  # steps per second; the same on all ranks
        self.steps = max(3, int(warm * seconds))
        self.seconds = None if way == "ddp" else seconds  # ranks of DDP make equally many steps

    def round(self):
        return self.speed(self.seconds)

    def speed(self, seconds):
        """Images per second of all its ranks, in so many seconds or self.steps; every rank calls it."""
        meet(self.device)
        own, start, done = 0.0, time.perf_counter(), 0
        while self.trains and done < (MOST if seconds else self.steps) and (
                not seconds or time.perf_counter() < start + seconds):
            self.training.update()
            synchronise(self.device)
            done += 1
        if self.trains:
            own = done * self.batch / (time.perf_counter() - start)
        return utils.all_sum(torch.tensor([own], dtype=utils.sum_type(self.device), device=self.device))[0]


def ways(args, world_size):
    """(way, ranks, images per step of each rank)"""
    if args.global_batches:
        return [each for batch in args.global_batches
                for each in (("alone", 1, batch), ("ddp", world_size, batch // world_size))]
    counts = sorted({world_size, *(2**power for power in range(1, world_size.bit_length()))})
    return [("alone", 1, 64), *((way, ranks, 64) for ranks in counts for way in ("apart", "ddp"))]


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", dataset=True, timeout=60)
    parser.add_argument("--rounds", type=positive(int), default=7, help="default: 7")
    parser.add_argument("--seconds", type=positive(float, 60), default=0.4, help="of each in a round; default: 0.4")
    parser.add_argument("--global-batches", type=positive(int), nargs="+", metavar="B", help="images per step of all")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement()
        if placement.world_size < 2:
            raise ValueError("one rank is alone: torchrun --nproc_per_node=2 losses.py")
        if any(batch % placement.world_size or batch > SAMPLES // placement.world_size
               for batch in args.global_batches or ()):
            raise ValueError(f"--global-batches: each must be a multiple of the {placement.world_size} ranks, and at "
                             f"most {SAMPLES // placement.world_size}")
        check_output("--out", args.out)
        train_set = rank_program.dataset(args)[0].first(SAMPLES, placement.device)
    shortcuts.keep_memory()
    shortcuts.defer_compiler()
    with rank_program.ranks(placement, args.timeout):
        made = {key: Way(*key, train_set, placement, args.seconds) for key in ways(args, placement.world_size)}
        measured = interleave({key: partial(Way.round, each) for key, each in made.items()}, args.rounds)
        if placement.rank == 0:
            rank_program.write_json(args.out, rank_program.measured_on(placement) | {
                "dataset": train_set.name, "speeds": [
                    {"way": way, "ranks": ranks, "batch": batch, "rounds": [float(each) for each in rounds]}
                    for (way, ranks, batch), rounds in measured.items()]})


if __name__ == "__main__":
    rank_program.start(main)
