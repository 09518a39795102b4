"""Pretend devices, threads on the CPU: what nn.DataParallel does on GPUs, where there are none.

Two of its four steps need GPUs in PyTorch, and stand here under the names that they have in torch.nn.parallel:
replicate and parallel_apply. The others are `chunk` and `cat` of a tensor.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.autograd.graph import saved_tensors_hooks


class Broadcast(torch.autograd.Function):
    """Forward: a copy of each weight for each device. Backward: the gradients of the copies, added up."""

    @staticmethod
    def forward(ctx, devices, *weights):
        ctx.devices = devices
        return tuple(weight.clone() for _ in range(devices) for weight in weights)

    @staticmethod
    def backward(ctx, *gradients):
        each = len(gradients) // ctx.devices
        return None, *(sum(gradients[place::each]) for place in range(each))


def replicate(module, devices):
    """A copy of the module for each device. As in PyTorch its weights are no parameters but copies of the module's,
    through which gradients come back to it; and the first device works on the module's own buffers."""
    weights, replicas = list(module.parameters()), []
    copies = iter(Broadcast.apply(devices, *weights))
    for device in range(devices):
        kept = weights if device else [*weights, *module.buffers()]
        replica = copy.deepcopy(module, {id(tensor): tensor for tensor in kept})
        mine = {id(weight): next(copies) for weight in weights}
        for part in replica.modules():
            for name, weight in [*part._parameters.items()]:
                del part._parameters[name]
                setattr(part, name, mine[id(weight)])
        replicas.append(replica)
    return replicas


def parallel_apply(replicas, pieces):
    """What each replica gives for its piece, computed in a thread each."""
    with ThreadPoolExecutor(len(replicas)) as threads:
        return list(threads.map(lambda replica, piece: replica(piece), replicas, pieces))


def bytes_of(tensors):
    """Bytes of all values of the tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def kept_for_backward(function, *inputs, weights=()):
    """(what the function gives, the bytes that autograd keeps for its backward). Memory that two operations keep counts
    once, the weights not at all."""
    known, kept = {weight.untyped_storage().data_ptr() for weight in weights}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function(*inputs)
    return result, sum(size for address, size in kept.items() if address not in known)
