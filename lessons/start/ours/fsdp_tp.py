"""Tensor parallelism between two neighbours, and FSDP across: a mesh of ranks / 2 x 2.

    torchrun --nproc_per_node=4 mine/train_gpt.py --strategy fsdp_tp
"""

import sys

import torch.distributed as dist
from tensor import Column, Row
from tensor_parallel import TensorParallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def parallelize(model, make_optimizer):
    if dist.get_world_size() % 2:
        sys.exit(f"{dist.get_world_size()} ranks make no mesh of pairs")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    parallel = TensorParallel(model, Column, Row, mesh["tensor"].get_group())
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])  # of the pieces that tensor parallelism has left
    fully_shard(parallel, mesh=mesh["data"])
    parallel.share = mesh["data"].get_local_rank(), mesh["data"].size()
    return parallel, make_optimizer(parallel.parameters())
