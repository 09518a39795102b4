"""DistributedDataParallel by hand: one model on all ranks, and the mean of their gradients."""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

BUCKET = 64 * 1024  # bytes from which on a bucket is full


class MyDDP(nn.Module):
    """A module whose weights are rank 0's. Call finish() between backward() and the update.

    all_reduce: not used, since its messages must leave while backward() goes on. For that there is async_op=True.
    """

    def __init__(self, module, all_reduce=dist.all_reduce):
        super().__init__()
        self.module, self.communicate, self.handles = module, True, []
        if not dist.is_initialized():
            self.buckets = []
            return
        for tensor in module.state_dict().values():  # parameters and buffers
            dist.broadcast(tensor, src=0)
        self.buckets, size = [[]], 0
        for parameter in reversed(list(module.parameters())):  # backward comes to the last layer first
            if not parameter.requires_grad:
                continue
            if size > BUCKET:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.nbytes
            parameter.register_post_accumulate_grad_hook(partial(self.arrived, len(self.buckets) - 1))
        self.missing = [len(bucket) for bucket in self.buckets]

    def forward(self, *inputs):
        return self.module(*inputs)

    @contextlib.contextmanager
    def no_sync(self):
        """Within it backward() only adds up: nothing is sent."""
        self.communicate = False
        try:
            yield
        finally:
            self.communicate = True

    def arrived(self, number, parameter):
        """A gradient is there. The bucket whose last one it is leaves, and backward() goes on."""
        if not self.communicate:
            return
        self.missing[number] -= 1
        if not self.missing[number]:
            flat = torch.cat([each.grad.flatten() for each in self.buckets[number]])
            self.handles.append((number, flat, dist.all_reduce(flat, async_op=True)))
            self.missing[number] = len(self.buckets[number])

    def finish(self):
        """Wait for all messages, and leave the mean over the ranks in each parameter.grad."""
        for number, flat, work in self.handles:
            work.wait()
            bucket = self.buckets[number]
            means = (flat / dist.get_world_size()).split([each.numel() for each in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.handles.clear()
