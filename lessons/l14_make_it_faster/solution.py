"""Lesson 14: our example of a change, and a communication hook of DDP. compare_changes.py measures both."""

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import conv2d


def my_change(training):
    """How much does the step gain if each convolution has 3 x 3 weights in place of 5 x 5?"""
    def smaller(conv, x):
        return conv2d(x[..., 1:-1, 1:-1], conv.weight[..., 1:-1, 1:-1], conv.bias)

    for conv in (training.model.conv1, training.model.conv2):
        conv.forward = partial(smaller, conv)


def my_hook(state, bucket):
    short = bucket.buffer().div(dist.get_world_size()).to(torch.bfloat16)
    sending = dist.all_reduce(short, async_op=True)
    return sending.get_future().then(lambda _: short.to(torch.float32))
