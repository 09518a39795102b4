"""The tiny transformer made ready to train on several ranks, and compared with one process.

A way takes the whole model, the same on every rank, and the rank's `placement` (rank, world_size). It keeps of the
model what this rank needs, and returns a `Setup`. Then `setup.backward(tokens, targets)` leaves the gradients of the
whole batch, and `setup.optimizer.step()` updates.
"""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from course.tiny_transformer import ADAM, loss_of

MOST_RANKS = 4  # the model has four layers, one a stage
# What FSDP imports. All exercises of a lesson name it, because the first one starts the process that all ranks are
# forked from. It cannot be imported any more after shortcuts.defer_compiler().
FSDP_IMPORTS = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp")


@dataclass
class Setup:
    """A model made ready for one way of training it."""

    model: nn.Module
    """Its parameters are what this rank keeps."""
    optimizer: torch.optim.Optimizer
    backward: Callable
    """(tokens, targets) of the whole batch -> the loss, over all ranks; afterwards the gradients are there."""
    events: list = field(default_factory=list)
    """The work of this rank of a pipeline, as `timed` notes it."""


def adam(model):
    return torch.optim.Adam(model.parameters(), **ADAM)


def whole_batch(model):
    def backward(tokens, targets):
        loss = loss_of(model(tokens), targets)
        loss.backward()
        return loss.detach()
    return backward


def own_share(model, rank, ranks):
    """Each rank has some of the sequences, as many as the others: the mean of the ranks' losses is that of all."""
    def backward(tokens, targets):
        loss = loss_of(model(tokens[rank::ranks]), targets[rank::ranks])
        loss.backward()
        sum_of_losses = loss.detach()
        dist.all_reduce(sum_of_losses)
        return sum_of_losses / dist.get_world_size()
    return backward


def one_process(model, placement):
    return Setup(model, adam(model), whole_batch(model))


def fsdp(model, placement):
    shard_blocks(model, init_device_mesh("cpu", (placement.world_size,)))
    return Setup(model, adam(model), own_share(model, placement.rank, placement.world_size))


def shard_blocks(model, mesh, **options):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, **options)  # gathered, used and given back one by one
    fully_shard(model, mesh=mesh, **options)  # what stands outside the blocks


def give_up(message):
    """End this process at once, from a thread: the main thread is in a wait that has no bound."""
    print(message, file=sys.stderr, flush=True)
    os._exit(2)


class Watchdog:
    """Ends this process if `beat` is not called for so many seconds: a mesh's groups would wait half an hour."""

    def __init__(self, placement, seconds):
        self.seconds, self.timer = seconds, threading.Timer(seconds, give_up)
        self.who = f"rank {placement.rank} of {placement.world_size} has waited {seconds:g} s for the others in"

    def beat(self, doing):
        self.timer.cancel()
        self.timer = threading.Timer(self.seconds, give_up, [f"{self.who}: {doing}"])
        self.timer.daemon = True
        self.timer.start()


def whole(parameter):
    """The value that all ranks hold together, on each rank."""
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach()


def apart(values, reference):
    """The largest difference of any value, of two {name: tensor}."""
    return max((value - reference[name]).abs().max().item() for name, value in values.items())
