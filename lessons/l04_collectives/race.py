"""All-reduces made of messages: counted, and raced beside PyTorch's own. Notebook 04 shows it.

    torchrun --nproc_per_node=8 lessons/l04_collectives/race.py --count --out results/live/04_count.json
    torchrun --nproc_per_node=4 lessons/l04_collectives/race.py --rates 100mbit 200mbit 400mbit \\
        --yours mine/star.py mine/all_reduce.py --out results/live/04_race.json

Counted: the messages of each way on 2 ranks, on 3, and on all. Raced: all ways in turns, with a message of 4 MiB, at
each of the rates, which is that of a cable per pair of ranks (course/dial.py); then of 1 KiB and 4 MiB without a limit,
on all ranks and on two of them. A time is that of the slowest rank. The files after --yours replace our star and our
ring. gloo, on CPUs. The race with one network card per host: scripts/measure/network.py.
"""

import runpy
import statistics
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from course import dial, rank_program
from course.timing import interleave, slowest, timed
from lessons.l04_collectives import messages, solution
from lessons.start.ours.all_reduce import all_reduce
from trainer import launch
from trainer.files import check_output
from trainer.options import nonempty_path, positive

OURS = {"star": solution.star, "tree": solution.tree, "ring": all_reduce, "direct": solution.direct}
YOURS = {"star.py": "star", "all_reduce.py": "ring"}  # the file of a way
SIZE = 4 * 1024**2  # bytes of the message of a race with a limit
SIZES = [1024, SIZE]  # of the messages of those without
COUNTED = 3360 * 8  # bytes of a message that is counted: 2 to 8 ranks have equal chunks of it
BLOCK = 0.1  # seconds: without a limit calls are timed in blocks of about this length, 200 calls at most
CPU = torch.device("cpu")


def nothing(tensor):
    """The barrier and the reports around a call: they are messages, too."""


def counted(calls: dict, kernel: bool) -> dict:
    """{way: what messages.count() says of a call}; and "sent", the bytes that each rank sends in a call, as the kernel
    counts them: with torch's own all-reduce, which is not made of messages that a Python program sees."""
    counts = {name: {} for name in calls}
    for name, call in calls.items():
        if name != "torch":
            with messages.recorded() as events:
                call(torch.zeros(COUNTED // 4))
            counts[name] = messages.count(launch.gathered(events), COUNTED)
    if kernel:
        around = bytes_sent(nothing)
        for name, call in calls.items():
            counts[name]["sent"] = [whole - own for whole, own in zip(bytes_sent(call), around, strict=True)]
    return counts


def bytes_sent(call, times=10):
    """By each rank, in a call, by the kernel's count."""
    tensor = torch.zeros(COUNTED // 4)
    dist.barrier()
    before = dial.counted()
    for _ in range(times):
        call(tensor)
    dist.barrier()
    received = launch.gathered([new - old for new, old in zip(dial.counted(), before, strict=True)])
    return [sum(column) / times for column in zip(*received, strict=True)][:len(received)]


def once(call, tensor, repeats):
    """Of a call: seconds; seconds computed by this rank."""
    before = time.process_time()
    seconds = timed(partial(call, tensor), repeats, CPU)
    return seconds, (time.process_time() - before) / repeats


def race(calls: dict, size: int, rounds: int, block: float) -> dict:
    """{way: {"seconds" of each round; "computed", seconds of each rank, medians of a call}}."""
    tensor = torch.zeros(size // 4)  # zeros stay zeros, however often they are added
    for call in calls.values():
        once(call, tensor, 1)  # memory is touched
    first = slowest([once(call, tensor, 1)[0] for call in calls.values()])
    repeats = {name: int(min(200, max(1, block / seconds))) for name, seconds in zip(calls, first, strict=True)}
    measured = interleave({name: partial(once, call, tensor, repeats[name]) for name, call in calls.items()}, rounds)
    results = {}
    for name, of_rounds in measured.items():
        seconds, computed = zip(*of_rounds, strict=True)
        results[name] = {"seconds": slowest(list(seconds)), "computed": launch.gathered(statistics.median(computed))}
    return results


def main():
    parser = rank_program.parser(__doc__, out="write counts and times to this file, as JSON", timeout=120)
    add = parser.add_argument
    add("--count", action="store_true", help="count, and race not")
    add("--rates", nargs="*", default=[], help="of a race on cables each: 200mbit")
    add("--rounds", type=positive(int), default=7, help="of each race; default: 7")
    add("--yours", nargs="*", type=nonempty_path, default=[], metavar="FILE", help=f"{' or '.join(YOURS)}")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2 or placement.nodes > 1:
            raise ValueError("messages need two ranks or more of one machine: "
                             "torchrun --nproc_per_node=4 lessons/l04_collectives/race.py")
        if unknown := [path for path in args.yours if Path(path).name not in YOURS or not Path(path).is_file()]:
            raise ValueError(f"--yours {unknown[0]}: no such file, or none of {' and '.join(YOURS)}")
        for rate in args.rates:
            dial.bits(rate)
        kernel = not dial.missing()
        if args.rates and not kernel:
            raise OSError(dial.missing())
        check_output("--out", args.out)
    torch.set_num_threads(1)
    yours = {YOURS[Path(path).name]: path for path in args.yours}
    calls = {name: runpy.run_path(yours[name])[Path(yours[name]).stem] if name in yours else call
             for name, call in OURS.items()} | {"torch": dist.all_reduce}
    races = []
    with rank_program.ranks(placement, args.timeout):
        if kernel:
            dial.pace(None)  # from here on the dial knows all connections
        worlds = {ranks: dist.new_group(list(range(ranks))) for ranks in range(2, placement.world_size)}
        worlds[placement.world_size] = dist.group.WORLD

        def on(ranks, measure, *arguments):
            """Its result on the first so many ranks. The others wait, and compute nothing."""
            result = None
            if placement.rank < ranks:
                with messages.world(worlds[ranks]):
                    result = measure(*arguments)
            dist.barrier()
            return result

        counts = {ranks: on(ranks, counted, calls, kernel) for ranks in worlds}
        rates, sizes = ([], []) if args.count else (args.rates, SIZES)
        for rate in rates:
            dial.pace(rate)
            races.append({"ranks": placement.world_size, "rate": rate, "bytes": SIZE,
                          "ways": race(calls, SIZE, args.rounds, 0)})
        if kernel:
            dial.pace(None)
        for ranks in sorted({2, placement.world_size}):
            races += [{"ranks": ranks, "rate": None, "bytes": size,
                       "ways": on(ranks, race, calls, size, args.rounds, BLOCK)} for size in sizes]
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | {
            "whose": {name: "yours" if name in yours else "ours" for name in OURS} | {"torch": "torch"},
            "counted_bytes": COUNTED, "counts": counts, "races": races})
        print(f"{placement.world_size} ranks: written")


if __name__ == "__main__":
    rank_program.start(main)
