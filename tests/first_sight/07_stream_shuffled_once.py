"""A stream that shuffles by the epoch stands inside another stream, which keeps the epoch for itself: all epochs have
one order.

REPORT: https://github.com/huggingface/trl/pull/6351 (2026-07, review of the stream's shuffle)
EXPECT: law 4 (each sample once: orders change between epochs), line 37: set_epoch() of Prepared does not reach
Shuffled, so that line 27 draws epoch 0's order each time.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class Shuffled(IterableDataset):
    def __init__(self, rows, seed):
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for index in order[rank::ranks]:
            yield self.rows[index]


class Prepared(IterableDataset):
    def __init__(self, stream):
        self.stream, self.epoch = stream, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for row in self.stream:
            yield row[:-1] / 3, row[-1:]


torch.manual_seed(8)
rows = torch.randn(240, 9)
rows[:, -1] = rows[:, 0] - rows[:, 1] * rows[:, 2]
stream = Prepared(Shuffled(rows, seed=42))
loader = DataLoader(stream, batch_size=15)
model = DDP(nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(4):
    stream.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
