"""The processes that torchrun has started become ranks."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

WAIT = timedelta(seconds=30)  # the longest wait for another rank


def join():
    """(rank, world_size, device) of this process; a process that was started alone is rank 0 of 1."""
    rank, world_size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=WAIT)  # MASTER_ADDR and MASTER_PORT say where the ranks meet
    return rank, world_size, torch.device("cpu")


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()
