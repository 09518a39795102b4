"""Ranks that wait for each other for ever, on purpose, and three ways to see who waits where. Notebook 04 shows it.

    torchrun --nproc_per_node=3 lessons/l04_collectives/hang_on_purpose.py --out results/live/04_hang.json

"For ever" is --timeout seconds here. Every try has a process group of its own, so that a try that breaks its group
leaves the next one alone. The ranks run on CPUs with gloo.
"""

import faulthandler
import re
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from course import rank_program
from trainer import launch
from trainer.files import check_output


def different(rank, ranks, tensor, group, timeout):
    if rank == ranks - 1:
        dist.broadcast(tensor, src=0, group=group)
    else:
        dist.all_reduce(tensor, group=group)


def one_stays_away(rank, ranks, tensor, group, timeout):
    if rank == 1:
        return
    dist.monitored_barrier(group, timeout, wait_all_ranks=True)
    dist.all_reduce(tensor, group=group)


# What went wrong, and whether TORCH_DISTRIBUTED_DEBUG=DETAIL was set.
TRIES = {"stack": (different, False), "barrier": (one_stays_away, False), "detail": (different, True)}


def attempt(name, timeout):
    """What this rank saw: {"start", "end" (seconds), "error" (None if the call returned), "stack": list of lines}."""
    fault, detail = TRIES[name]
    timeout = timedelta(seconds=timeout)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if detail:  # as the environment variable does, for groups that are made from now on
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(timeout=timeout)
    if detail:
        dist.set_debug_level(dist.DebugLevel.OFF)
    tensor, error = torch.ones(4), None
    with tempfile.TemporaryFile("w+") as stack:
        dist.barrier()
        faulthandler.dump_traceback_later(timeout.total_seconds() / 2, file=stack)  # by a thread, while this one waits
        start = time.perf_counter()
        try:
            fault(rank, ranks, tensor, group, timeout)
        except RuntimeError as raised:
            error = str(raised)
        end = time.perf_counter()
        faulthandler.cancel_dump_traceback_later()
        stack.seek(0)
        lines = [re.sub(r'"[^"]*/((torch|course|lessons)/)', r'"\1', line) for line in stack.read().splitlines()[1:]]
    return {"start": start, "end": end, "error": error, "stack": lines}


def main():
    parser = rank_program.parser(__doc__, out="write to this file what each rank saw", timeout=3)  # of each try
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 3 or placement.nodes > 1:
            raise ValueError("this needs three ranks or more of one machine: "
                             "torchrun --nproc_per_node=3 lessons/l04_collectives/hang_on_purpose.py")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    results = {}
    with rank_program.ranks(placement, 30 + 2 * args.timeout):
        for name in TRIES:
            seen = launch.gathered(attempt(name, args.timeout))
            first = min(rank["start"] for rank in seen)  # the ranks of one machine share a clock
            results[name] = [{**rank, "start": rank["start"] - first, "end": rank["end"] - first} for rank in seen]
            if not any(rank["error"] for rank in seen):
                raise RuntimeError(f"{name}: no rank failed, though one of them called another collective or none")
    if placement.rank == 0:
        rank_program.write_json(args.out, results)


if __name__ == "__main__":
    rank_program.start(main)
