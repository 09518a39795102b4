"""Which images a rank trains on, and in which order."""

import torch


def shard(n, rank, world_size, epoch):
    """The indices of this rank, a list: all ranks shuffle the same n images alike, anew in each epoch, and rank r takes
    every world_size-th of them, from the r-th on."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()
    return order[rank::world_size]
