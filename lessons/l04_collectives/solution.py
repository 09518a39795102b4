"""Lesson 04's own collectives, made of messages between two ranks. All change `tensor` in place."""

import torch
import torch.distributed as dist


def my_broadcast(tensor, src):
    ranks = dist.get_world_size()
    place = (dist.get_rank() - src) % ranks  # counted from src
    have = 1  # how many places have the tensor: twice as many after each round
    while have < ranks:
        if place < have and place + have < ranks:
            dist.send(tensor, (place + have + src) % ranks)
        elif have <= place < 2 * have:
            dist.recv(tensor, (place - have + src) % ranks)
        have *= 2


def my_all_reduce(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        part = torch.empty_like(tensor)
        for other in range(1, ranks):
            dist.recv(part, other)
            tensor += part
        for other in range(1, ranks):
            dist.send(tensor, other)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


def my_ring(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    for step in range(2 * (ranks - 1)):
        outgoing, incoming = chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]
        arriving = torch.empty_like(incoming)
        for transfer in dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks),
                                                dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks)]):
            transfer.wait()
        if step < ranks - 1:
            incoming += arriving
        else:
            incoming.copy_(arriving)
