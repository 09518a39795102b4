"""Every collective once, on a few numbers, and what each rank held before and after. Notebook 04 draws it.

    torchrun --nproc_per_node=4 lessons/l04_collectives/collectives_shown.py --out results/live/04_collectives.json

Rank 0 starts with 1 2 3 ..., rank 1 with 10 20 30 ..., rank 2 with 100 200 300 ..., and so on: each digit of a number
tells which rank it came from, also in a sum. All of it runs on CPUs with gloo, so that every machine shows the same.
"""

import time

import torch
import torch.distributed as dist

import launch
from course import rank_program
from course.rank_program import gathered
from files import check_output

MOST_RANKS = 7  # the pictures have a colour for each


def numbers(rank, count):
    """int64 [count]: cell i holds the digit 1 + i % 9 in the rank's place, ones for rank 0, tens for rank 1, ...

    A sum with one number of each rank never carries.
    """
    return torch.tensor([(1 + i % 9) * 10**rank for i in range(count)])


def zeros(count):
    return [torch.zeros(1, dtype=torch.int64) for _ in range(count)]


# ------------------------------------------------------------------------------------------ the collectives
# Each yields (a label, the tensors that the rank holds) before and after.


def broadcast(rank, ranks):
    mine = numbers(rank, ranks)
    yield "before", mine
    dist.broadcast(mine, src=0)
    yield "after", mine


def scatter(rank, ranks):
    pieces = list(numbers(rank, ranks).split(1)) if rank == 0 else None
    (mine,) = zeros(1)
    yield "before", pieces
    dist.scatter(mine, pieces, src=0)
    yield "after", mine


def gather(rank, ranks):
    mine = numbers(rank, 1)
    pieces = zeros(ranks) if rank == 0 else None
    yield "before", mine
    dist.gather(mine, pieces, dst=0)
    yield "after", pieces


def all_gather(rank, ranks):
    mine, pieces = numbers(rank, 1), zeros(ranks)
    yield "before", mine
    dist.all_gather(pieces, mine)
    yield "after", pieces


def reduce(rank, ranks):
    mine = numbers(rank, ranks)
    yield "before", mine
    dist.reduce(mine, dst=0)
    yield "after", mine


def all_reduce(rank, ranks):
    mine = numbers(rank, ranks)
    yield "before", mine
    dist.all_reduce(mine)
    yield "after", mine


def reduce_scatter(rank, ranks):
    mine = numbers(rank, ranks)
    (total,) = zeros(1)
    yield "before", mine
    dist.reduce_scatter(total, list(mine.split(1)))
    yield "after", total


def all_to_all(rank, ranks):
    mine, pieces = numbers(rank, ranks), zeros(ranks)
    yield "before", mine
    dist.all_to_all(pieces, list(mine.split(1)))
    yield "after", pieces


def send_recv(rank, ranks):
    mine = numbers(rank, ranks)
    yield "before", mine
    if rank == 0:
        dist.send(mine, dst=ranks - 1)
    elif rank == ranks - 1:
        dist.recv(mine, src=0)
    yield "after", mine


def shift(rank, ranks):
    mine, arriving = numbers(rank, ranks), torch.zeros(ranks, dtype=torch.int64)
    yield "before", mine
    to_the_right = dist.P2POp(dist.isend, mine, (rank + 1) % ranks)
    from_the_left = dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks)
    for transfer in dist.batch_isend_irecv([to_the_right, from_the_left]):
        transfer.wait()
    yield "after", arriving


def barrier(rank, ranks):
    yield "start", None
    time.sleep(0.1 * (rank + 1))  # stands for work that takes each rank another time
    yield "arrives", None
    dist.barrier()
    yield "leaves", None


def async_handle(rank, ranks):
    mine = numbers(rank, ranks)
    yield "start", mine
    if rank == ranks - 1:
        time.sleep(0.3)  # this rank comes late
    yield "before the call", mine
    handle = dist.all_reduce(mine, async_op=True)
    yield "after the call", mine
    time.sleep(0.1)  # stands for work that does not need the sum
    yield "before wait()", mine
    handle.wait()
    yield "after wait()", mine


# Gloo of PyTorch 2.10 cannot do this one. Then it is built from what it can do.


def all_to_all_from_scatters(rank, ranks):
    mine, pieces = numbers(rank, ranks), zeros(ranks)
    yield "before", mine
    for source in range(ranks):
        dist.scatter(pieces[source], list(mine.split(1)) if source == rank else None, src=source)
    yield "after", pieces


COLLECTIVES = {demo.__name__: demo for demo in (broadcast, scatter, gather, all_gather, reduce, all_reduce,
                                                reduce_scatter, all_to_all, send_recv, shift, barrier, async_handle)}
INSTEAD = {"all_to_all": all_to_all_from_scatters}


def states(demo):
    """What each rank held, and when: a list of {"label", "cells": a list a rank, "seconds": a number a rank}."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    mine = []
    for label, held in demo(rank, ranks):
        now = time.perf_counter()
        held = [] if held is None else [held] if torch.is_tensor(held) else held
        mine.append((label, [value for tensor in held for value in tensor.tolist()], now))
    of_ranks = gathered(mine)
    start = min(own[0][2] for own in of_ranks)  # the ranks of one machine share a clock
    return [{"label": step[0][0], "cells": [cells for _, cells, _ in step],
             "seconds": [now - start for _, _, now in step]} for step in zip(*of_ranks, strict=True)]


def show(name):
    """{"states": ...}, and "unsupported": what gloo said, if the collective had to be built from others."""
    try:
        return {"states": states(COLLECTIVES[name])}
    except RuntimeError as error:
        if name not in INSTEAD or "does not support" not in str(error):
            raise
        return {"states": states(INSTEAD[name]), "unsupported": str(error).splitlines()[0]}


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
    chunks = [len(chunk) for chunk in mine.tensor_split(ranks)]
    steps = [{"cells": gathered(mine.tolist())}]
    for chunk, sent in ring_steps(mine):
        step = gathered({"cells": mine.tolist(), "sent": chunk, "bytes": sent})
        steps.append({key: [own[key] for own in step] for key in ("cells", "sent", "bytes")})

    floats = torch.randn(10_001, generator=torch.Generator().manual_seed(rank))
    reference = floats.clone()
    list(ring_steps(floats))  # to its end
    dist.all_reduce(reference)
    return {"chunks": chunks, "steps": steps, "bytes": mine.nbytes, "equal": gathered(torch.equal(mine, sums)),
            "floats": {"values": len(floats), "off": max(gathered((floats - reference).abs().max().item())),
                       "ranks_agree": len(set(gathered(tuple(floats.tolist())))) == 1}}


# ------------------------------------------------------------------------------------------ command


def main():
    parser = rank_program.parser(__doc__, out="write what was found to this file: {name: findings}", timeout=30)
    names = [*COLLECTIVES, "ring"]
    parser.add_argument("--show", nargs="+", choices=names, default=names, metavar="NAME",
                        help=f"one or more of: {', '.join(names)}; default: all")
    args = parser.parse_args()
    with parser.one_line():
        here = launch.find_placement("cpu", "gloo")
        if not 2 <= here.world_size <= MOST_RANKS or here.nodes > 1:
            raise ValueError(f"this shows 2 to {MOST_RANKS} ranks of one machine: "
                             "torchrun --nproc_per_node=4 lessons/l04_collectives/collectives_shown.py")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    found = {"world_size": here.world_size, "torch": torch.__version__}
    with rank_program.ranks(here, args.timeout):
        for name in args.show:
            found[name] = ring() if name == "ring" else show(name)
    if here.rank == 0:  # all have come this far: the findings are whole
        rank_program.write_json(args.out, found)
        print(f"{here.world_size} ranks, {len(args.show)} examples: written")


if __name__ == "__main__":
    rank_program.start(main)
