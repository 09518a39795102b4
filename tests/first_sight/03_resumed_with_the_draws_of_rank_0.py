"""A checkpoint holds the state of rank 0's random numbers, and a resume gives it to all ranks: from then on their
dropout masks and their noise are equal.

REPORT: https://github.com/radixark/miles/pull/3187 (2026-09)
EXPECT: law 2 (different where it must be: random draws at any time), line 39: after the resume both ranks draw the
same noise and the same masks. Before it they did not.
"""
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

torch.manual_seed(5)
x = torch.randn(256, 12)
data = TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())
folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
path = Path(folder[0]) / "last.pt"


def train(first, last):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(100 + rank)
    if path.exists():
        saved = torch.load(path)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            noisy = inputs + 0.1 * torch.randn_like(inputs)
            loss = nn.functional.cross_entropy(model(noisy), labels)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                    "rng": torch.get_rng_state()}, path)
    dist.barrier()


train(0, 2)
train(2, 4)
dist.destroy_process_group()
