"""DistributedDataParallel by hand: the course's answer to the five steps of lesson 06.

    torchrun --nproc_per_node=2 main.py --wrapper lessons/l06_ddp/my_ddp.py:MyDDP

Not handled, and DDP does: buffers before each forward, no_sync(), and dropping a gradient that no rank has. Two
forward() and then two backward() are right only where all ranks use the same parameters.
"""

from functools import partial

import torch.distributed as dist
from torch import nn

from lessons.l06_ddp.buckets import make_buckets, pack, unpack


class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():  # parameters and buffers
            dist.broadcast(tensor, src=0)
        self.buckets = make_buckets(module)
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.arrived, number))
        self.begin()

    def forward(self, *inputs):
        if self.begun:  # another backward comes before the update: all ranks send all of the one before
            self.send_rest()
        return self.module(*inputs)

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent, self.begun = [], False

    def arrived(self, number, parameter):
        if number < len(self.sent):  # another backward: what was sent lacks its gradients
            self.begin()
        self.begun = True
        self.missing[number] -= 1
        while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] <= 0:
            self.send()

    def send(self):
        """Send the next bucket: on all ranks in the same order, whichever is full first."""
        flat = pack(self.buckets[len(self.sent)])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def send_rest(self):
        while len(self.sent) < len(self.buckets):  # a parameter got no gradient
            self.send()

    def finish(self):
        """Between backward and the update: leave the mean of all ranks' gradients in each parameter."""
        self.send_rest()
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            unpack(flat / dist.get_world_size(), bucket)
        self.begin()
