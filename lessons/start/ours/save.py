"""The trained weights, as a file that any program can load."""

import torch
import torch.distributed as dist


def save(parallel, file):
    """One rank writes the weights of the module itself: the wrapper's names begin with `module.`"""
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(parallel.module.state_dict(), file)
