"""DDP whose all-reduce knows the nodes: within each node, between one leader per node, within each node."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS_PER_NODE = int(os.environ.get("RANKS_PER_NODE", "2"))


def all_reduce(tensor, node, leaders):
    """The sum over all ranks, in place. node: the group of this rank's node; leaders: of the first rank of each."""
    leader = dist.get_global_rank(node, 0)
    dist.reduce(tensor, dst=leader, group=node)
    if dist.get_rank() == leader:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, src=leader, group=node)


def hook(groups, bucket):
    gradients, done = bucket.buffer(), torch.futures.Future()
    all_reduce(gradients, *groups)
    done.set_result(gradients.div_(dist.get_world_size()))
    return done


def parallelize(model, make_optimizer):
    if RANKS_PER_NODE < 1 or dist.get_world_size() % RANKS_PER_NODE:
        sys.exit(f"{dist.get_world_size()} ranks make no nodes of {RANKS_PER_NODE}")
    node, _ = dist.new_subgroups(RANKS_PER_NODE)
    leaders = dist.new_group(range(0, dist.get_world_size(), RANKS_PER_NODE))
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.register_comm_hook((node, leaders), hook)
    return parallel, make_optimizer(model.parameters())
