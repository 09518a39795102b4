"""All-reduces made of messages between two ranks, and a broadcast. All change `tensor` in place, on every rank.

The ring is the learner's part of the program: lessons/start/ours/all_reduce.py.
"""

import torch
import torch.distributed as dist


def star(tensor):
    """Rank 0 receives from all at the same time, and sends the sum to all."""
    others = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        parts = [torch.empty_like(tensor) for _ in others]
        for receipt in [dist.irecv(part, other) for part, other in zip(parts, others, strict=True)]:
            receipt.wait()
        for part in parts:
            tensor += part
        for sending in [dist.isend(tensor, other) for other in others]:
            sending.wait()
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


def broadcast(tensor):
    """In each round every rank that has rank 0's tensor sends it on: a tree."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    have = 1  # ranks 0 to have - 1 have it
    while have < ranks:
        if rank < have and rank + have < ranks:
            dist.send(tensor, rank + have)
        elif have <= rank < 2 * have:
            dist.recv(tensor, rank - have)
        have *= 2


def tree(tensor):
    """In each round half of the ranks send their sums to the other half; a broadcast brings the whole sum back."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part, distance = torch.empty_like(tensor), 1
    while distance < ranks and rank % distance == 0:  # whoever has sent its sum is done
        if rank % (2 * distance):
            dist.send(tensor, rank - distance)
        elif rank + distance < ranks:
            dist.recv(part, rank + distance)
            tensor += part
        distance *= 2
    broadcast(tensor)


def direct(tensor):
    """Each rank adds up one chunk, which all others send it at the same time, and sends the sum to all of them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    others = [(rank + distance) % ranks for distance in range(1, ranks)]  # not all begin with the same rank
    chunks = tensor.tensor_split(ranks)
    parts = {other: torch.empty_like(chunks[rank]) for other in others}
    for message in [dist.irecv(parts[other], other) for other in others] + [
            dist.isend(chunks[other], other) for other in others]:
        message.wait()
    for part in parts.values():
        chunks[rank].add_(part)
    for message in [dist.irecv(chunks[other], other) for other in others] + [
            dist.isend(chunks[rank], other) for other in others]:
        message.wait()
