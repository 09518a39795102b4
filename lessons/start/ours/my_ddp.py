"""DistributedDataParallel by hand: one model on all ranks, and the mean of their gradients.

    torchrun --nproc_per_node=2 mine/train.py --parts ours
    torchrun --nproc_per_node=2 main.py --device cpu --wrapper lessons/start/ours/my_ddp.py:MyDDP

It lacks what DDP has: buffers before each forward, and gradients that stay None where no rank has one. Two forward()
and then two backward() are right only where all ranks use the same parameters.
"""

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
        self.module, self.all_reduce, self.communicate = module, all_reduce, True
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.buckets = []
        if self.ranks > 1:
            self.same_weights()
            self.buckets = self.make_buckets(module)
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.arrived, number))
        self.begin()

    def same_weights(self):
        for tensor in self.module.state_dict().values():  # parameters and buffers
            dist.broadcast(tensor, src=0)

    def forward(self, *inputs):
        if self.begun and self.communicate:  # another backward comes before the update: all ranks send the one before
            self.send_rest()
        return self.module(*inputs)

    @contextlib.contextmanager
    def no_sync(self):
        """Within it backward() only adds up: nothing is sent."""
        self.communicate = False
        try:
            yield
        finally:
            self.communicate = True

    @staticmethod
    def make_buckets(module, bucket_bytes=BUCKET):
        """The parameters that train, in lists of about bucket_bytes; the last layer first, as backward reaches it."""
        buckets, filled = [[]], 0
        for parameter in reversed([each for each in module.parameters() if each.requires_grad]):
            if filled >= bucket_bytes:
                buckets, filled = [*buckets, []], 0
            buckets[-1].append(parameter)
            filled += parameter.nbytes
        return buckets

    @staticmethod
    def pack(bucket):
        """One flat tensor [values] of the bucket's gradients; zeros for a parameter without one."""
        return torch.cat([(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
                          for parameter in bucket])

    @staticmethod
    def unpack(flat, bucket):
        """Copy the parts of the flat tensor into the bucket's gradients."""
        for parameter, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)  # with its strides: a fused optimizer reads both in order
            parameter.grad.copy_(part.view_as(parameter))

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent, self.begun = [], False

    def arrived(self, number, parameter):
        """A gradient is there. The buckets that are full leave, and backward() goes on."""
        if not self.communicate:
            return
        if number < len(self.sent):  # another backward: what was sent lacks its gradients
            self.begin()
        self.begun = True
        self.missing[number] -= 1
        while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] <= 0:
            self.send()

    def send(self):
        """Send the next bucket: on all ranks in the same order, whichever is full first."""
        flat = self.pack(self.buckets[len(self.sent)])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def send_rest(self):
        while len(self.sent) < len(self.buckets):  # a parameter got no gradient
            self.send()

    def finish(self):
        """Wait for all messages, and leave the mean over the ranks in each parameter.grad."""
        self.send_rest()
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            self.unpack(flat / self.ranks, bucket)
        self.begin()
