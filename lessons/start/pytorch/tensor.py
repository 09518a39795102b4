"""Tensor parallelism of the MLPs: PyTorch's own.

Attention stays whole: `qkv` is one matrix of queries, keys and values, whose rows ColwiseParallel would cut across the
three. ColwiseParallel's input is whole on each rank, and its gradient is all-reduced: once a block, as here one layer
reads it.
"""

import sys
from functools import partial

import torch.distributed as dist
from clip import clip_grad_norm
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def cut(model, mesh):
    for block in model.blocks:
        if block.up.out_features % mesh.size():
            sys.exit(f"An MLP of {block.up.out_features} hidden values has no {mesh.size()} equal pieces: another "
                     "--width, or another number of ranks")
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def parallelize(model, make_optimizer):
    cut(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    model.share, model.clip = (0, 1), partial(clip_grad_norm, model)
    return model, make_optimizer(model.parameters())
