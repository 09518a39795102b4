"""Without DDP: each rank seeds, makes the model, and averages gradients by hand."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Linear(4, 1)
for batch in torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(rank)):  # each rank has its own images
    model.zero_grad()
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data -= 0.1 * parameter.grad / ranks
norms = [None] * ranks
dist.all_gather_object(norms, model.weight.norm().item())
if rank == 0:
    print("weight norm after 3 updates:", *(f"rank {number}: {norm:.6f}" for number, norm in enumerate(norms)))
dist.destroy_process_group()
