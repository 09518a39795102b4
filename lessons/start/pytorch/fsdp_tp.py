"""Tensor parallelism between two neighbours, and FSDP across, on a mesh of ranks / 2 x 2: PyTorch's own."""

import sys
from functools import partial

import torch.distributed as dist
from clip import clip_grad_norm
from tensor import cut
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def parallelize(model, make_optimizer):
    if dist.get_world_size() % 2:
        sys.exit(f"{dist.get_world_size()} ranks make no mesh of pairs")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    cut(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    model.share = mesh["data"].get_local_rank(), mesh["data"].size()
    model.clip = partial(clip_grad_norm, model)
    return model, make_optimizer(model.parameters())
