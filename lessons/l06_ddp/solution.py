"""Steps 1 to 4 to MyDDP: each class is the one before it, with the methods of a cell in their places. Step 5 is
lessons/start/ours/my_ddp.py."""

from functools import partial

import torch.distributed as dist
from torch import nn

from lessons.start.ours.my_ddp import MyDDP


class SameWeights(nn.Module):
    def __init__(self, module, all_reduce=dist.all_reduce):
        super().__init__()
        self.module, self.all_reduce = module, all_reduce
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.ranks > 1:
            self.same_weights()

    def same_weights(self):
        for tensor in self.module.state_dict().values():  # parameters and buffers
            dist.broadcast(tensor, src=0)

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        pass


class MeanGradients(SameWeights):
    def finish(self):
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                self.all_reduce(parameter.grad)
                parameter.grad /= self.ranks


class OneMessage(SameWeights):
    pack, unpack = staticmethod(MyDDP.pack), staticmethod(MyDDP.unpack)  # given in the cell

    def finish(self):
        bucket = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        flat = self.pack(bucket)
        self.all_reduce(flat)
        self.unpack(flat / self.ranks, bucket)


class Overlapped(OneMessage):
    make_buckets, no_sync = staticmethod(MyDDP.make_buckets), MyDDP.no_sync  # given in the cell

    def __init__(self, module, all_reduce=dist.all_reduce):
        super().__init__(module, all_reduce)
        self.communicate, self.underway = True, []
        self.buckets = self.make_buckets(module) if self.ranks > 1 else []
        self.missing = [len(bucket) for bucket in self.buckets]
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.arrived, number))

    def arrived(self, number, parameter):
        if not self.communicate:
            return
        self.missing[number] -= 1
        if self.missing[number] == 0:
            bucket = self.buckets[number]
            flat = self.pack(bucket)
            self.underway.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
            self.missing[number] = len(bucket)

    def finish(self):
        for bucket, flat, work in self.underway:
            work.wait()
            self.unpack(flat / self.ranks, bucket)
        self.underway.clear()
