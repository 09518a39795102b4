"""Nine test images on two ranks. The model is right about the first four."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
right = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0])
mine = list(DistributedSampler(right, shuffle=False))
sums = torch.tensor([sum(right[i] for i in mine), len(mine)])
dist.all_reduce(sums)
if rank == 0:
    print(f"one process: {right.sum()} of {len(right)} = {right.float().mean():.3f}")
    print(f"{ranks} ranks: {sums[0]} of {sums[1]} = {sums[0] / sums[1]:.3f}")
dist.destroy_process_group()
