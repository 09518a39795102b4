"""One rank fails at a broken sample, and before its traceback is printed an orderly end waits for the other rank, which
waits in backward: what is seen is a stall, not the error.

REPORT: https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5283 (2026-08)
EXPECT: law 8 (every rank that fails is told first, with what it said), line 34: rank 1 failed with "ValueError:
sample 130: length -1". In the barrier of line 59 it only waited afterwards.
"""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()


class Clips(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(13)
        self.frames = torch.randn(160, 20, generator=generator)
        self.lengths = torch.randint(5, 21, (160,), generator=generator)
        self.lengths[130] = -1

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        length = int(self.lengths[index])
        if length < 0:
            raise ValueError(f"sample {index}: length {length}")
        frames = self.frames[index].clone()
        frames[length:] = 0
        return frames, frames.sum(0, keepdim=True) / length


def train(model, loader, sampler):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for frames, means in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(frames), means)
            loss.backward()
            optimizer.step()
        print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}", flush=True)


clips = Clips()
sampler = DistributedSampler(clips, seed=2)
loader = DataLoader(clips, batch_size=8, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)))
try:
    train(model, loader, sampler)
finally:
    dist.barrier()
    dist.destroy_process_group()
