"""DistributedSampler's share."""

from torch.utils.data import DistributedSampler


def shard(n, rank, world_size, epoch):
    sampler = DistributedSampler(range(n), num_replicas=world_size, rank=rank, shuffle=True, seed=0)
    sampler.set_epoch(epoch)
    return list(sampler)
