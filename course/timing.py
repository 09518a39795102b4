"""The time of a call, and of a collective, on all ranks; and programs in turns, so that they can be compared."""

import math
import time
from collections.abc import Callable, Hashable, Mapping

import torch
import torch.distributed as dist

from course.rank_program import meet, synchronise

VALUE = 4  # bytes: messages are float32

# The names of torch 2.14, and those of before.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def exchange(outgoing, incoming):
    """Each rank sends to the next and receives from the one before: a step of a ring."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for transfer in dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks),
                                            dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)]):
        transfer.wait()


def prepare(op, size, device):
    """(a function that does `op` once, the bytes of its message): `size`, or a little more: whole values, equal pieces.

    The values stay 0, however often it is called.
    """
    ranks = dist.get_world_size()
    piece = max(1, math.ceil(size / VALUE / ranks))
    count = piece * ranks if op in ("reduce_scatter", "all_gather", "all_to_all") else math.ceil(size / VALUE)
    whole, part = torch.full((count,), 0.0, device=device), torch.full((piece,), 0.0, device=device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: reduce_scatter_single(part, whole),
        "all_gather": lambda: all_gather_single(whole, part),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "reduce": lambda: dist.reduce(whole, dst=0),
        "send_recv": lambda: exchange(whole, other),
    }
    other = torch.full_like(whole, 0.0) if op in ("all_to_all", "send_recv") else None
    return calls[op], count * VALUE


def interleave(programs: Mapping[Hashable, Callable[[], object]], rounds: int) -> dict[Hashable, list]:
    """Call each of the named `programs` once a round; {name: [its result in each round]}.

    A disturbance then meets all of them. Every second round has the other order: the first program may meet a cooler
    machine, or one that is still busy with an earlier program. Results of the same round may be compared. Ranks that
    measure together pass the same names in the same order.
    """
    results = {name: [] for name in programs}
    for number in range(rounds):
        for name in list(programs)[::-1 if number % 2 else 1]:
            results[name].append(programs[name]())
    return results


def timed(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds for each of `calls` calls in a row, with everything done, not only begun."""
    meet(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / calls


def slowest(seconds: list[float]) -> list[float]:
    """Elementwise maximum over the ranks of a list: an operation has ended when the last rank has its result."""
    values = torch.tensor(seconds, dtype=torch.float64)
    if dist.is_initialized():
        values = values.cuda() if dist.get_backend() == "nccl" else values
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values.tolist()
