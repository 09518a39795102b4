"""Rank 0 prints the loss of the epoch. Its shard is easier than rank 1's."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
losses = torch.linspace(0.1, 0.8, 8)  # of all images
mine = losses.chunk(dist.get_world_size())[rank]
sums = torch.stack([mine.sum(), torch.tensor(float(len(mine)))])
if rank == 0:
    print(f"loss printed: {sums[0] / sums[1]:.4f}, of {sums[1]:.0f} images")
    print(f"loss of all {len(losses)}: {losses.mean():.4f}")
dist.barrier()  # rank 0 must not leave while rank 1 still connects
dist.destroy_process_group()
