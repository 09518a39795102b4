"""Local SGD: each rank trains a copy of its own; after every EVERY-th update all take the mean of their weights.

    EVERY=8 torchrun --nproc_per_node=4 mine/train_gpt.py --strategy local --updates 64

Between two messages the ranks have different weights: --updates must be a multiple of EVERY, and so must --report with
--validate.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

EVERY = int(os.environ.get("EVERY", "8"))  # updates between two messages


class Local(torch.optim.Optimizer):
    """An optimizer whose step() is one of `inner`, on this rank alone; every so often the ranks agree."""

    def __init__(self, inner, model, every=EVERY):
        if every < 1:
            sys.exit(f"EVERY={every}: at least 1")
        super().__init__(model.parameters(), {})
        self.inner, self.model, self.every, self.updates = inner, model, every, 0

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.updates += 1
        if self.updates % self.every == 0:
            self.agree()

    def agree(self):
        mean = parameters_to_vector(self.model.parameters())
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        vector_to_parameters(mean, self.model.parameters())


def parallelize(model, make_optimizer):
    return model, Local(make_optimizer(model.parameters()), model)
