"""Lesson 11: how the ranks agree to stop after the same step."""

import torch
import torch.distributed as dist

ASK = 10  # steps from one question to the next


def must_stop(signalled, step):
    if step % ASK:
        return False
    flag = torch.tensor(int(signalled))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)
