TITLE = "Equal to one process"
TASK = """Train one weight on all ranks: one step that gives exactly what one process would get from all images and from
rank 0's weight. The ranks start with different weights. Each has its own images, equally many, and its
<code>gradient</code> is the mean over these. Write both parts. After <code>same_weights</code> all ranks have one
weight. After <code>mean_gradient</code> all have the mean over all images; send by the <code>all_reduce</code> that it
is given."""
NAME, RANKS, USES = "step", (2, 3, 5), ("broadcast", "reduce_scatter", "all_gather", "all_reduce")
FILE = "my_ddp.py"
SOLUTION = """
import torch.distributed as dist
from all_reduce import all_reduce
from broadcast import broadcast


def same_weights(weight):
    # >>>
    broadcast(weight)
    # <<<


def mean_gradient(gradient, all_reduce):
    # >>>
    all_reduce(gradient)
    gradient /= dist.get_world_size()
    # <<<


def step(weight, inputs, targets):
    same_weights(weight)  # the loss is the mean of (weight * input - target) ** 2
    gradient = (2 * (weight * inputs - targets) * inputs).mean().view(-1)
    mean_gradient(gradient, all_reduce)
    weight -= 0.1 * gradient
"""
AT_HOME = '''

import contextlib
from functools import partial

import torch
from torch import nn


class MyDDP(nn.Module):
    """The two functions, for a module of many parameters: steps 1 and 2 of lesson 06."""

    def __init__(self, module, all_reduce=dist.all_reduce):
        super().__init__()
        self.module, self.all_reduce = module, all_reduce
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.ranks > 1:
            self.same_weights()

    def same_weights(self):
        for tensor in self.module.state_dict().values():
            same_weights(tensor)

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        for parameter in self.module.parameters():
            if self.ranks > 1 and parameter.grad is not None:
                mean_gradient(parameter.grad, self.all_reduce)

    def no_sync(self):
        return contextlib.nullcontext()
'''
MISTAKES = [
    ([("    broadcast(weight)\n", "    pass\n")],
     "The ranks start with different weights, and equal gradients keep them different. Begin with rank 0's weight."),
    ([("    gradient /= dist.get_world_size()\n", "")],
     "all_reduce gives the sum of the ranks' gradients. The step needs their mean."),
    ([("    all_reduce(gradient)\n    gradient /= dist.get_world_size()\n", "    pass\n")],
     "Each rank takes a step with the gradient of its own images, and the weights drift apart."),
    ([("    all_reduce(gradient)\n", "")],
     "You divide a gradient that has not been added up yet: all_reduce comes first."),
]
LEARNED = """The same weights at the start and the mean of the gradients: that is DistributedDataParallel. The file
below is one for a whole network. It trains in the course's <code>mine/</code>."""


def case(ranks):
    inputs = [[1.0 + rank, 0.5 * rank] for rank in range(ranks)]
    targets = [[2.0, 1.0 - rank] for rank in range(ranks)]
    start = 0.5
    pairs = [(x, y) for xs, ys in zip(inputs, targets) for x, y in zip(xs, ys)]
    gradient = sum([2 * (start * x - y) * x for x, y in pairs]) / len(pairs)
    given = [[torch.tensor([start + rank]), torch.tensor(inputs[rank]), torch.tensor(targets[rank])]
             for rank in range(ranks)]
    return given, [[start - 0.1 * gradient]] * ranks
