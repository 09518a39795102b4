"""Every collective once, on a few numbers, and what each rank held before and after. Notebook 04 draws it.

    torchrun --nproc_per_node=4 lessons/l04_collectives/collectives_shown.py --out results/live/04_collectives.json

Rank 0 starts with 1 2 3 ..., rank 1 with 10 20 30 ..., rank 2 with 100 200 300 ..., and so on: each digit of a number
tells which rank it came from, also in a sum. The ranks run on CPUs with gloo, so that every machine shows the same.
"""

import time

import torch
import torch.distributed as dist

from course import rank_program
from trainer import launch
from trainer.files import check_output

MOST_RANKS = 7  # the pictures have a colour for each


def numbers(rank, count):
    """int64 [count]: cell i holds the digit 1 + i % 9 in the rank's place, ones for rank 0, tens for rank 1, ...

    A sum with one number of each rank never carries.
    """
    return torch.tensor([(1 + i % 9) * 10**rank for i in range(count)])


# ------------------------------------------------------------------------------------------ the collectives
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


def shift(mine, rank, ranks):
    arriving = torch.zeros_like(mine)
    to_the_right = dist.P2POp(dist.isend, mine, (rank + 1) % ranks)
    from_the_left = dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks)
    for transfer in dist.batch_isend_irecv([to_the_right, from_the_left]):
        transfer.wait()
    return arriving


COLLECTIVES = {demo.__name__: demo for demo in (broadcast, scatter, gather, all_gather, reduce, all_reduce,
                                                reduce_scatter, all_to_all, shift)}


def states(name):
    """What each rank held before and after a collective: [{"label", "cells": a list of numbers for each rank}]."""
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
    return [{"label": label, "cells": launch.gathered(cells)}
            for label, cells in (("before", before), ("after", after))]


# ------------------------------------------------------------------------------------------ who waits for whom
# Each function returns at what times a rank came to which point.


def barrier(mine, rank, ranks):
    times = {"start": time.perf_counter()}
    time.sleep(0.1 * (rank + 1))  # stands for work that takes each rank another time
    times["arrives"] = time.perf_counter()
    dist.barrier()
    times["leaves"] = time.perf_counter()
    return times


def async_handle(mine, rank, ranks):
    times = {"start": time.perf_counter()}
    if rank == ranks - 1:
        time.sleep(0.3)  # this rank comes late
    times["before the call"] = time.perf_counter()
    handle = dist.all_reduce(mine, async_op=True)
    times["after the call"] = time.perf_counter()
    time.sleep(0.1)  # stands for work that does not need the sum
    times["before wait()"] = time.perf_counter()
    handle.wait()
    times["after wait()"] = time.perf_counter()
    return times


TIMED = {demo.__name__: demo for demo in (barrier, async_handle)}


def times(name):
    """{point: the seconds after the first rank's start at which each rank came to it}."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    of_ranks = launch.gathered(TIMED[name](numbers(rank, ranks), rank, ranks))
    start = min(own["start"] for own in of_ranks)  # the ranks of one machine share a clock
    return {point: [own[point] - start for own in of_ranks] for point in of_ranks[0]}


# ------------------------------------------------------------------------------------------ the ring


def ring_steps(tensor):
    """Sum a one-dimensional tensor over all ranks, in place, by messages between neighbours only.

    Yields (chunk, bytes) that this rank has sent, after each of 2 (n - 1) steps (Patarasuk and Yuan 2009).
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    chunks = tensor.tensor_split(ranks)  # views; their lengths differ by one value at most
    for step in range(2 * (ranks - 1)):
        chunk = (rank - step) % ranks
        outgoing, incoming = chunks[chunk], chunks[(chunk - 1) % ranks]
        arriving = torch.empty_like(incoming)
        for transfer in dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, right),
                                                dist.P2POp(dist.irecv, arriving, left)]):
            transfer.wait()
        if step < ranks - 1:  # reduce-scatter: in the end each rank has one chunk of the whole sum
            incoming += arriving
        else:  # all-gather: the whole sums travel round
            incoming.copy_(arriving)
        yield chunk, outgoing.nbytes


def ring():
    """The ring on a number for each rank, step by step, and compared with all_reduce; then on floats."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, sums = numbers(rank, ranks), numbers(rank, ranks)
    dist.all_reduce(sums)
    steps = [{"cells": launch.gathered(mine.tolist())}]
    for chunk, sent in ring_steps(mine):
        step = launch.gathered({"cells": mine.tolist(), "sent": chunk, "bytes": sent})
        steps.append({key: [own[key] for own in step] for key in ("cells", "sent", "bytes")})

    floats = torch.randn(10_001, generator=torch.Generator().manual_seed(rank))
    reference = floats.clone()
    list(ring_steps(floats))  # to its end
    dist.all_reduce(reference)
    return {"steps": steps, "bytes": mine.nbytes, "equal": launch.gathered(torch.equal(mine, sums)),
            "floats": {"off": max(launch.gathered((floats - reference).abs().max().item())),
                       "ranks_agree": len(set(launch.gathered(tuple(floats.tolist())))) == 1}}


# ------------------------------------------------------------------------------------------ command


def main():
    parser = rank_program.parser(__doc__, out="write {collective: what its ranks held} to this file, as JSON",
                                 timeout=30)
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if not 2 <= placement.world_size <= MOST_RANKS or placement.nodes > 1:
            raise ValueError(f"this shows 2 to {MOST_RANKS} ranks of one machine: "
                             "torchrun --nproc_per_node=4 lessons/l04_collectives/collectives_shown.py")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        results = {name: states(name) for name in COLLECTIVES} | {name: times(name) for name in TIMED}
        results["ring"] = ring()
    if placement.rank == 0:  # all have come this far: the results are whole
        rank_program.write_json(args.out, results)
        print(f"{placement.world_size} ranks, {len(results)} examples: written")


if __name__ == "__main__":
    rank_program.start(main)
