"""DDP whose gradients travel in 16 bits: a communication hook."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def sixteen_bits(state, bucket):
    """bucket.buffer(): a flat tensor of gradients. Returns a future of their mean over the ranks."""
    gradients = bucket.buffer()
    short = gradients.to(torch.bfloat16)
    work = dist.all_reduce(short, async_op=True)
    return work.get_future().then(lambda _: gradients.copy_(short).div_(dist.get_world_size()))


def parallelize(model, make_optimizer):
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.register_comm_hook(None, sixteen_bits)
    return parallel, make_optimizer(model.parameters())
