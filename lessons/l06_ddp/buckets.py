"""Given to the learner of lesson 06: gradients packed into buckets, and back."""

import torch
from torch import nn

BUCKET_BYTES = 2**20  # as DDP's first bucket


def make_buckets(module: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> list[list[nn.Parameter]]:
    """The parameters that train, in lists of about `bucket_bytes`; the last layer first, as backward reaches it first.
    A parameter that two layers share stands in one bucket."""
    buckets, filled = [[]], 0
    for parameter in reversed([parameter for parameter in module.parameters() if parameter.requires_grad]):
        if filled >= bucket_bytes:
            buckets, filled = [*buckets, []], 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


def pack(bucket: list[nn.Parameter]) -> torch.Tensor:
    """One flat tensor [values] of the bucket's gradients; zeros for a parameter without gradient."""
    return torch.cat([(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
                      for parameter in bucket])


def unpack(flat: torch.Tensor, bucket: list[nn.Parameter]) -> None:
    """Copy the parts of the flat tensor into the bucket's gradients."""
    for parameter, part in zip(bucket, flat.split([parameter.numel() for parameter in bucket]), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)  # with its strides: a fused optimizer reads memory in order
        parameter.grad.copy_(part.view_as(parameter))
