"""A tutorial's trainer for `mp.spawn`: a class, Adam at 0.001, batches of 8 per process, ten epochs, its small CNN.

    python lessons/l10_launchers/cards/spawn_trainer.py --n_gpus 2
    python lessons/l10_launchers/cards/spawn_trainer.py --n_gpus 2 --images 640 --epochs 1

Two things are changed. Tutorials write a fixed port, which the second job on the machine finds taken: here the ranks
meet in a file. And where there are too few GPUs the processes use gloo on the CPU.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainer.data import get_dataset


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 64, 12, 12]
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


class Trainer:
    def __init__(self, rank, args):
        gpu = args.n_gpus <= torch.cuda.device_count()
        self.rank, self.device = rank, torch.device("cuda", rank) if gpu else torch.device("cpu")
        torch.manual_seed(0)
        self.model = DistributedDataParallel(cnn().to(self.device), [rank] if gpu else None)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001)
        images, labels = get_dataset("mnist")[0].first(args.images).__getitems__(range(args.images))
        self.sampler = DistributedSampler(data := TensorDataset(images, labels))
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)

    def train(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            losses = []
            for images, labels in self.loader:
                loss = nn.functional.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            if self.rank == 0:
                print(f"epoch {epoch}: mean loss of rank 0's batches {torch.stack(losses).mean():.4f}", flush=True)


def run(rank, args, meet):
    dist.init_process_group("nccl" if args.n_gpus <= torch.cuda.device_count() else "gloo", init_method=meet,
                            rank=rank, world_size=args.n_gpus)
    Trainer(rank, args).train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_gpus", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=60_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (args, f"file://{folder}/meet"), nprocs=args.n_gpus)
