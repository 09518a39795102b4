"""Broadcast and all_reduce made of messages: recorded, and timed beside PyTorch's. Notebook 04 draws it.

    torchrun --nproc_per_node=4 lessons/l04_collectives/own_collectives.py --out results/live/04_own_4.json \
        --yours results/live/04_all_reduce.py

The functions are those of the files after --yours (04_broadcast.py, 04_all_reduce.py, 04_ring.py), else ours, the
solutions of the exercises. The ranks run on CPUs with gloo.
"""

import runpy
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from course import rank_program
from course.timing import interleave, slowest, timed
from lessons.l04_collectives import messages, solution
from trainer import launch
from trainer.files import check_output
from trainer.options import nonempty_path, positive

OURS = {"04_broadcast": ("broadcast", solution.my_broadcast), "04_all_reduce": ("all_reduce", solution.my_all_reduce),
        "04_ring": ("all_reduce", solution.my_ring)}
SIZES = [1024 * 32**power for power in range(4)]  # bytes: 1 KiB to 32 MiB
BLOCK = 0.1  # seconds: calls are timed in blocks of about this length, 200 calls at most
CPU = torch.device("cpu")


def programs(yours):
    """[{"operation", "name" (of its file, or "torch"), "whose", "call" (of a tensor)}]. Rank 0 broadcasts."""
    found = []
    for name, (operation, ours) in OURS.items():
        path = next((path for path in yours if Path(path).stem == name), None)
        call = runpy.run_path(path)[ours.__name__] if path else ours
        found.append({"operation": operation, "name": name, "whose": "yours" if path else "ours", "call": call})
    found += [{"operation": operation, "name": "torch", "whose": "torch", "call": getattr(dist, operation)}
              for operation in ("broadcast", "all_reduce")]
    for program in found:
        if program["operation"] == "broadcast":
            program["call"] = lambda tensor, broadcast=program["call"]: broadcast(tensor, 0)
    return found


def in_rounds(call, ranks):
    """The messages of one call, in rounds, and their figures. Each rank's chunk has the same length."""
    tensor = torch.zeros(12 * ranks)
    with messages.recorded() as events:
        call(tensor)
    rounds = messages.rounds(launch.gathered(events))
    return {"in_rounds": rounds, "bytes": tensor.nbytes} | messages.figures(rounds, ranks, tensor.nbytes)


def times(calls, rounds):
    """For each (program, bytes) its rounds and their median, in seconds for the slowest rank."""
    for call in calls.values():
        timed(call, 2, CPU)  # connections are made, memory is touched
    once = slowest([timed(call, 1, CPU) for call in calls.values()])
    repeats = {key: int(min(200, max(1, BLOCK / seconds))) for key, seconds in zip(calls, once, strict=True)}
    blocks = interleave({key: partial(timed, call, repeats[key], CPU) for key, call in calls.items()}, rounds)
    of_ranks = {key: slowest(seconds) for key, seconds in blocks.items()}
    return {key: {"seconds": statistics.median(seconds), "rounds": seconds} for key, seconds in of_ranks.items()}


def main():
    parser = rank_program.parser(__doc__, out="write messages and times to this file, as JSON", timeout=60)
    add = parser.add_argument
    add("--yours", nargs="*", type=nonempty_path, default=[], metavar="FILE",
        help=f"take the functions of these files: {', '.join(f'{name}.py' for name in OURS)}")
    add("--rounds", type=positive(int), default=7, help="times that each size is measured; default: 7")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2 or placement.nodes > 1:
            raise ValueError("messages need two ranks or more of one machine: "
                             "torchrun --nproc_per_node=4 lessons/l04_collectives/own_collectives.py")
        if unknown := [path for path in args.yours if Path(path).stem not in OURS or not Path(path).is_file()]:
            raise ValueError(f"--yours {unknown[0]}: the files are {', '.join(f'{name}.py' for name in OURS)}")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        found = programs(args.yours)
        for program in found:
            if program["whose"] != "torch":
                program |= in_rounds(program["call"], placement.world_size)
        tensors = {size: torch.zeros(size // 4) for size in SIZES}  # zeros stay zeros, however often they are added
        measured = times({(number, size): partial(program["call"], tensor) for number, program in enumerate(found)
                          for size, tensor in tensors.items()}, args.rounds)
        for number, program in enumerate(found):
            del program["call"]
            program["times"] = [{"bytes": size, **measured[number, size]} for size in SIZES]
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | {"programs": found})
        print(f"{placement.world_size} ranks:", *(f"{each['name']} ({each['whose']})" for each in found))


if __name__ == "__main__":
    rank_program.start(main)
