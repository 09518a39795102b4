"""Three updates with DDP, on other images on each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(nn.Linear(4, 1))
torch.manual_seed(rank)
for batch in torch.randn(3, 8, 4):
    model.zero_grad()
    model(batch).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
norms = [None] * ranks
dist.all_gather_object(norms, model.module.weight.norm().item())
if rank == 0:
    print("weight norm after 3 updates:", *(f"rank {number}: {norm:.6f}" for number, norm in enumerate(norms)))
dist.destroy_process_group()
