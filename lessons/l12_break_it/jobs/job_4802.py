"""Train a small image classifier on CIFAR-10, and keep the weights of the last epoch.

    python jobs/job_4802.py                                      one process
    torchrun --nproc_per_node=2 jobs/job_4802.py --save last.pt  two ranks
    python jobs/job_4802.py --evaluate last.pt                   the accuracy of a file

A batch that does not fit into memory is taken in micro-batches: an update follows every --accumulate of them.
"""

import argparse
import contextlib
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.append(os.getcwd())  # the course's folder, for its images
from trainer.data import get_dataset


class Images(Dataset):
    """The first `count` images, [3, 32, 32] between -1 and 1, and their labels."""

    def __init__(self, dataset, count):
        self.images, self.labels = dataset.images[:count], dataset.labels[:count]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index].to(torch.get_default_dtype()) / 127.5 - 1, self.labels[index]


class Block(nn.Module):
    """Two convolutions beside a shortcut; the image becomes half as wide and high."""

    def __init__(self, before, after):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.GroupNorm(4, after))
        self.shortcut = nn.Conv2d(before, after, 1, stride=2, bias=False)

    def forward(self, images):
        return torch.relu(self.body(images) + self.shortcut(images))


class Classifier(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(Block(width, width), Block(width, 2 * width), Block(2 * width, 4 * width))
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def parameter_groups(model, decay):
    """Weights decay; biases and the gains of normalisation do not."""
    weights = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def schedule(warm_up, total):
    """The factor of the learning rate by update: a linear warm-up, then half a cosine."""
    def factor(update):
        if update < warm_up:
            return (update + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (update - warm_up) / max(1, total - warm_up)))
    return factor


@torch.no_grad()
def evaluate(model, dataset, rank, world_size):
    """The accuracy over all images, of which each rank takes its share."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64)
    for start in range(rank * 100, len(dataset), 100 * world_size):
        images, labels = zip(*(dataset[index] for index in range(start, min(start + 100, len(dataset)))), strict=True)
        right = model(torch.stack(images)).argmax(1) == torch.stack(labels)
        counts += torch.tensor([right.sum(), len(right)])
    if world_size > 1:
        dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def train_epoch(parallel, loader, optimizer, scheduler, args):
    """One pass over this rank's images. Returns the sum of their losses and their number."""
    sums = torch.zeros(2, dtype=torch.float64)
    for number, (images, labels) in enumerate(loader, 1):
        full = number % args.accumulate == 0
        # Between updates gradients only add up on their rank: no message for a micro-batch.
        quiet = contextlib.nullcontext() if full else parallel.no_sync()
        with quiet:
            loss = cross_entropy(parallel(images), labels)
            (loss / args.accumulate).backward()
        sums += torch.tensor([loss.item() * len(labels), len(labels)])
        if full or number == len(loader):
            nn.utils.clip_grad_norm_(parallel.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return sums


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2976)
    parser.add_argument("--micro-batch", type=int, default=48, help="images of a micro-batch, of all ranks together")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches per update")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="longest gradient")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--evaluate", metavar="FILE", help="only the accuracy of these weights")
    return parser.parse_args()


def main():
    args = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo") if "RANK" in os.environ else None
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    train_set, test_set = get_dataset("auto", verify=False)
    train_set, test_set = Images(train_set, args.images), Images(test_set, 1000)
    torch.manual_seed(0)
    model = Classifier()
    if args.evaluate:
        model.load_state_dict(torch.load(args.evaluate, weights_only=True))
        return print(f"{args.evaluate}: accuracy {evaluate(model, test_set, rank, world_size):.4f}")

    parallel = DistributedDataParallel(model) if world_size > 1 else model
    if world_size == 1:
        model.no_sync = contextlib.nullcontext
    sampler = DistributedSampler(train_set, world_size, rank, shuffle=True)
    loader = DataLoader(train_set, args.micro_batch // world_size, sampler=sampler)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.05), lr=args.lr)
    updates = args.epochs * math.ceil(len(loader) / args.accumulate)
    scheduler = LambdaLR(optimizer, schedule(updates // 10, updates))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        sums = train_epoch(parallel, loader, optimizer, scheduler, args)
        if world_size > 1:
            dist.all_reduce(sums)
        accuracy = evaluate(model, test_set, rank, world_size)
        if rank == 0:
            print(f"epoch {epoch}: loss {sums[0] / sums[1]:.4f}, accuracy {accuracy:.4f}, "
                  f"{time.perf_counter() - start:.1f} s", flush=True)
    if rank == 0 and args.save:
        torch.save(model.state_dict(), args.save)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
