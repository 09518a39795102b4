"""Ways to train one model on several ranks that talk less than DDP. Each is a few lines; talk_less.py compares them.

A way takes the model, the same on every rank, and `every`, the number of batches after which the ranks talk. It returns
`update(images, labels)`, which learns from one batch of this rank.
"""

import contextlib
import itertools
from functools import partial

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from lessons.l15_talk_less.solution import my_outer_step

RATE = 0.001  # of AdamW, in all ways


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)


def learn(model, optimizer, images, labels):
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()


def never(model, every):
    """Nobody talks: as fast as the machine can be, and as many models as ranks."""
    return partial(learn, model, adamw(model))


def ddp(model, every, hook=None, state=None):
    """The mean of the gradients, in each step."""
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if hook:
        parallel.register_comm_hook(state, hook)
    return partial(learn, parallel, adamw(model))


def powersgd(model, every):
    """DDP, which sends two thin matrices for each large one, and adds the error to the next gradient."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
    return ddp(model, every, powerSGD_hook.powerSGD_hook, state)


def accumulate(model, every):
    """DDP with gradients summed over `every` batches: one message and one update for all of them."""
    parallel, optimizer = DistributedDataParallel(model, gradient_as_bucket_view=True), adamw(model)
    batches = itertools.count(1)

    def update(images, labels):
        last = next(batches) % every == 0
        with contextlib.nullcontext() if last else parallel.no_sync():
            (cross_entropy(parallel(images), labels) / every).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return update


def local_sgd(model, every):
    """Each rank learns alone; after `every` batches all take the mean of their weights."""
    # It counts steps from 0, and averages in step `warmup_steps`, then each `period`: after N batches is in step N - 1.
    averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)
    return partial(learn, model, PostLocalSGDOptimizer(adamw(model), averager))


def diloco(model, every, outer_step=my_outer_step):
    """Each rank learns alone; the gradient of an outer optimizer is the ranks' mean change of the weights, negated."""
    inner, batches = adamw(model), itertools.count(1)
    agreed = parameters_to_vector(model.parameters()).detach().clone()  # the weights that all ranks had last
    outer = torch.optim.SGD([agreed], lr=0.7, momentum=0.9, nesterov=True)

    def update(images, labels):
        learn(model, inner, images, labels)
        if next(batches) % every == 0:
            outer_step(model, agreed, outer)
    return update


WAYS = {
    "never": never, "ddp": ddp, "accumulate": accumulate, "local": local_sgd, "diloco": diloco,
    "bf16": partial(ddp, hook=default_hooks.bf16_compress_hook), "powersgd": powersgd,
}
