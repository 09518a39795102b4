"""Hybrid sharding (HSDP): the ranks of a node share one copy of the weights, and each node has a copy of its own."""

import os
import sys

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS_PER_NODE = int(os.environ.get("RANKS_PER_NODE", "2"))


def parallelize(model, make_optimizer):
    if RANKS_PER_NODE < 1 or dist.get_world_size() % RANKS_PER_NODE:
        sys.exit(f"{dist.get_world_size()} ranks make no nodes of {RANKS_PER_NODE}")
    shape = dist.get_world_size() // RANKS_PER_NODE, RANKS_PER_NODE
    mesh = init_device_mesh(next(model.parameters()).device.type, shape, mesh_dim_names=("copies", "shards"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, make_optimizer(model.parameters())
