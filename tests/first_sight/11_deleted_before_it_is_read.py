"""The best weights are handed over in a file, which the ranks read one after the other, and which rank 0 deletes as
soon as it has read it itself.

REPORT: https://github.com/ROCm/pytorch/pull/3659 (2026-09, "delete-under-you")
EXPECT: law 7 (files: written before read, over ranks), line 58: rank 0 removes the file before rank 1 reads it in
line 56. No barrier stands between them.
"""
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()
path = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(path)
best = Path(path[0]) / "best.pt"

torch.manual_seed(12)
x = torch.randn(320, 8)
y = x[:, :1] * x[:, 1:2]
data, held_out = TensorDataset(x[:256], y[:256]), (x[256:], y[256:])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))


def stage(epochs, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    lowest = float("inf")
    for epoch in epochs:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if rank == 0:
            with torch.no_grad():
                loss = nn.functional.mse_loss(model.module(held_out[0]), held_out[1]).item()
            print(f"epoch {epoch}: validation loss {loss:.4f}", flush=True)
            if loss < lowest:
                lowest = loss
                torch.save(model.module.state_dict(), best)


stage(range(3), lr=0.1)
dist.barrier()
time.sleep(0.4 * rank)  # one reader at a time, the disk is slow
model.module.load_state_dict(torch.load(best))
if rank == 0:
    best.unlink()
stage(range(3, 6), lr=0.01)
dist.destroy_process_group()
