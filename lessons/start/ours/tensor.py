"""Tensor parallelism of the MLPs: each rank multiplies by its piece of `up` and of `down`, and all ranks see all crops.

    torchrun --nproc_per_node=2 mine/train_gpt.py --strategy tensor --parts ours

Copy and Sum are each other's backward (Megatron-LM's f and g: Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

import torch
import torch.distributed as dist
from tensor_parallel import TensorParallel
from torch import nn
from torch.nn.functional import linear


class Copy(torch.autograd.Function):
    """x, the same on all ranks, goes into a product with this rank's piece of a weight."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # x went into all ranks' products, so its gradient is the sum of all their gradients
        gradient = gradient.clone()  # autograd may hand the same memory to others
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """x is this rank's part of a sum, which then is the same on all ranks."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):  # each part is in the sum once
        return gradient, None


class Column(nn.Module):
    """Some of the outputs of `whole`, a Linear without bias: columns in the formula x·A, rows of PyTorch's weight."""

    def __init__(self, whole, group=None):
        super().__init__()
        self.group = group
        piece = whole.weight.chunk(dist.get_world_size(group), dim=0)[dist.get_rank(group)]
        self.weight = nn.Parameter(piece.detach().clone())  # a view would keep the whole weight in memory

    def forward(self, x):
        return linear(Copy.apply(x, self.group), self.weight)


class Row(nn.Module):
    """The outputs of `whole`, summed over the ranks: each has the part of its own inputs."""

    def __init__(self, whole, group=None):
        super().__init__()
        self.group = group
        piece = whole.weight.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)]
        self.weight = nn.Parameter(piece.detach().clone())

    def forward(self, x):
        return Sum.apply(linear(x, self.weight), self.group)


def parallelize(model, make_optimizer):
    parallel = TensorParallel(model, Column, Row)
    return parallel, make_optimizer(parallel.parameters())
