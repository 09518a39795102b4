"""Every collective once, on a few numbers, and a ring step by step: what each rank held before and after.

Live ranks run it (notebook 04): each calls write(file). Rank 0 starts with 1 2 3 ..., rank 1 with 10 20 30 ..., rank 2
with 100 200 300 ..., and so on: each digit of a number tells which rank it came from, also in a sum.
"""

from unittest import mock

import torch
import torch.distributed as dist

from course import rank_program
from lessons.start.ours.all_reduce import all_reduce as ring_all_reduce
from trainer import launch


def numbers(rank, count):
    """int64 [count]: cell i holds the digit 1 + i % 9 in the rank's place, ones for rank 0, tens for rank 1, ...

    A sum with one number of each rank never carries.
    """
    return torch.tensor([(1 + i % 9) * 10**rank for i in range(count)])


# Each function gets the numbers that a rank begins with, and returns what the rank holds afterwards: a tensor, a list
# of tensors, or None.


def broadcast(mine, rank, ranks):
    dist.broadcast(mine, src=0)
    return mine


def scatter(mine, rank, ranks):
    pieces = list(mine.split(1)) if rank == 0 else None
    piece = torch.zeros(1, dtype=torch.int64)
    dist.scatter(piece, pieces, src=0)
    return piece


def gather(mine, rank, ranks):
    pieces = [torch.zeros_like(mine) for _ in range(ranks)] if rank == 0 else None
    dist.gather(mine, pieces, dst=0)
    return pieces


def all_gather(mine, rank, ranks):
    pieces = [torch.zeros_like(mine) for _ in range(ranks)]
    dist.all_gather(pieces, mine)
    return pieces


def reduce(mine, rank, ranks):
    dist.reduce(mine, dst=0)
    return mine if rank == 0 else None  # on the others it may be anything


def all_reduce(mine, rank, ranks):
    dist.all_reduce(mine)
    return mine


def reduce_scatter(mine, rank, ranks):
    part = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter(part, list(mine.split(1)))
    return part


def all_to_all(mine, rank, ranks):
    pieces = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_to_all(pieces, list(mine.split(1)))
    return pieces


def all_to_all_from_scatters(mine, rank, ranks):
    """The same as all_to_all, for gloo of PyTorch 2.10, which lacks it."""
    pieces = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    for source in range(ranks):
        dist.scatter(pieces[source], list(mine.split(1)) if source == rank else None, src=source)
    return pieces


COLLECTIVES = {demo.__name__: demo for demo in (broadcast, scatter, gather, all_gather, reduce, all_reduce,
                                                reduce_scatter, all_to_all)}


def states(name: str) -> list[list[list[int]]]:
    """What each rank held before a collective, and after it: a list of numbers for each rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = numbers(rank, 1 if name in ("gather", "all_gather") else ranks)
    before = [] if name == "scatter" and rank else mine.tolist()
    try:
        held = COLLECTIVES[name](mine, rank, ranks)
    except RuntimeError as error:
        if name != "all_to_all" or "does not support" not in str(error):
            raise
        held = all_to_all_from_scatters(mine, rank, ranks)
    after = [] if held is None else torch.cat(held).tolist() if isinstance(held, list) else held.tolist()
    return [launch.gathered(before), launch.gathered(after)]


def ring() -> list[dict]:
    """The program's ring on a number for each rank, step by step: {"cells": what each rank holds, "sent": the chunk
    that each has sent before}."""
    mine, steps, sent = numbers(dist.get_rank(), dist.get_world_size()), [], []
    send = dist.send

    def noted(chunk, to):
        steps.append(mine.tolist())
        sent.append(chunk.storage_offset())  # a chunk is one number
        send(chunk, to)

    with mock.patch.object(dist, "send", noted):
        ring_all_reduce(mine)
    steps.append(mine.tolist())
    return [{"cells": launch.gathered(cells), "sent": launch.gathered(chunk)}
            for cells, chunk in zip(steps, [None, *sent], strict=True)]


def write(path: str) -> None:
    """Every rank of a group calls it; rank 0 writes {collective: states(), "ring": ring()}, as JSON."""
    results = {name: states(name) for name in COLLECTIVES} | {"ring": ring()}
    if dist.get_rank() == 0:
        rank_program.write_json(path, results)
