"""The gradient of one batch: on one process, and on ranks that have a part of it each."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def gradient(images, ranks):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 1))
    model(images).square().mean().backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    if ranks > 1:  # what DDP does in backward()
        dist.all_reduce(gradient)
    return gradient / ranks, getattr(norm, "running_mean", None)


torch.manual_seed(1)
batch = torch.randn(8, 4) + torch.arange(8).view(8, 1)  # sorted: rank 0's images are smaller
(one, _), (many, mean) = gradient(batch, 1), gradient(batch.chunk(ranks)[rank], ranks)
means = [None] * ranks
dist.all_gather_object(means, mean)
if rank == 0:
    for number, mean in enumerate(means):
        print(f"rank {number}: running_mean {[] if mean is None else [round(m, 3) for m in mean.tolist()]}")
    print(f"off from one process's gradient by {(one - many).abs().max() / one.abs().max():.4f} of its largest")
dist.destroy_process_group()
