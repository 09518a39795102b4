"""Three updates with DDP, on other images on each rank. A communication hook counts the all-reduces."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model, sent = DistributedDataParallel(nn.Linear(4, 1)), []
model.register_comm_hook(None, lambda state, bucket: sent.append(bucket.index()) or allreduce_hook(None, bucket))
torch.manual_seed(rank)
norms = [[None] * ranks for _ in range(4)]
dist.all_gather_object(norms[0], model.module.weight.norm().item())
for step, batch in enumerate(torch.randn(3, 8, 4), start=1):
    model.zero_grad()
    model.module(batch).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    dist.all_gather_object(norms[step], model.module.weight.norm().item())
if rank == 0:
    for step in (0, 3):
        told = (f"rank {number}: {norm:.6f}" for number, norm in enumerate(norms[step]))
        print(f"weight norm after {step} updates:", *told)
    print(f"{len(sent)} all-reduces in 3 updates")
dist.destroy_process_group()
