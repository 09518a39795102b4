"""Each rank names the folder of the run by its own clock, and rank 0 comes to it a second later: there are two folders,
and each holds a part of every checkpoint.

REPORT: https://github.com/TensorAuto/OpenTau/pull/396 (2026-06)
EXPECT: law 7 (files: one thing, one place), line 38: the ranks write their parts of one checkpoint (line 55)
below two different names.
"""
import tempfile
import time
from datetime import datetime
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
root = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(root)


def describe(data):
    started = time.monotonic()
    while time.monotonic() - started < 1.3:
        figures = torch.std_mean(data.tensors[0])
    return figures


torch.manual_seed(11)
x = torch.randn(256, 6)
data = TensorDataset(x, x.square().sum(1, keepdim=True).log())
if rank == 0:
    print("spread and mean:", *(f"{figure:.3f}" for figure in describe(data)), flush=True)
run = Path(root[0]) / f"{datetime.now():%Y-%m-%d/%H-%M-%S}_forecast"
dist.barrier()

sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
torch.manual_seed(11 + rank)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs + 0.05 * torch.randn_like(inputs)), targets)
        loss.backward()
        optimizer.step()
    folder = run / f"epoch_{epoch}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(torch.get_rng_state(), folder / f"random_states_{rank}.pt")
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "model.pt")
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.barrier()
dist.destroy_process_group()
