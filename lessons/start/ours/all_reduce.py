"""An all-reduce of messages between neighbours, on a ring."""

import torch
import torch.distributed as dist


def all_reduce(tensor):
    """Make `tensor` the sum of all ranks' tensors, in place. All ranks call it, with the same shape and type."""
    if not dist.is_initialized():
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(ranks)  # parts of the same memory
    for step in range(2 * (ranks - 1)):
        outgoing, incoming = chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]
        arriving = torch.empty_like(incoming)
        receipt = dist.irecv(arriving, (rank - 1) % ranks)
        dist.send(outgoing, (rank + 1) % ranks)
        receipt.wait()
        if step < ranks - 1:
            incoming += arriving  # the first round trip adds up ...
        else:
            incoming.copy_(arriving)  # ... and the second one gives every rank the sums
