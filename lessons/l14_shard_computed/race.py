"""How long does an update take with each of some strategies of train_gpt.py, on networks of chosen speeds?

    torchrun --nproc_per_node=2 lessons/l14_shard_computed/race.py --strategies ddp tensor --batch 4 \\
        --rates 100mbit none --out results/live/14_race.json

All strategies train the same GPT on the same number of crops, in interleaved rounds. `--parts mine` takes the learner's
where they exist. A rate is that of course/dial.py; none: no limit.

The file is one JSON object: the machine; `rounds`, {rate: {strategy: [seconds per update, of the
slowest rank]}}; `cpu` and `faults`, the same of the seconds of CPU time, and of page faults, per update, of all ranks
together; `events` of the fastest of some updates of each pipeline, [{rank, event, text, start, end}] in ms.
"""

import contextlib
import importlib
import resource
import time
from functools import partial

import torch
import torch.distributed as dist

from course import dial, rank_program, shortcuts
from course.timing import slowest, timed
from examples.minimal_gpt import HEADS
from lessons.start.gpt_step import GPTStep, use_strategies
from trainer import files, launch
from trainer.options import positive

CPU, DRAWN = torch.device("cpu"), 5  # updates, of which the fastest is drawn


def measured(update, updates):
    """[seconds, seconds of CPU time, page faults] per update of this rank."""
    faults, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    seconds = timed(update, updates, CPU)
    return [seconds, (time.process_time() - cpu) / updates,
            (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / updates]


def drawn(training):
    """What all ranks did in the fastest of some updates, in ms from its beginning; [] of what is no pipeline."""
    noted = []

    @contextlib.contextmanager
    def note(name):
        start = time.perf_counter()  # CLOCK_MONOTONIC: on this machine the same for all ranks
        yield
        event, number = name.split()
        noted.append({"rank": dist.get_rank(), "event": event, "text": number, "start": 1000 * start,
                      "end": 1000 * time.perf_counter()})

    space, runs = importlib.import_module("pipeline"), []  # the course's, which notes each forward and backward
    original, space.record_function = space.record_function, note
    for _ in range(DRAWN):
        rank_program.meet(CPU)
        training.update()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, noted)
        runs.append([event for part in parts for event in part])
        noted.clear()
    space.record_function = original
    shortest = min(runs, key=lambda run: max((event["end"] for event in run), default=0) - begin(run))
    return [event | {key: event[key] - begin(shortest) for key in ("start", "end")} for event in shortest]


def begin(run):
    return min((event["start"] for event in run), default=0)


def measure(args):
    trainings = {name: GPTStep(args.batch, args.context, args.width, args.layers,
                               importlib.import_module(name).parallelize, args.micro_batches)
                 for name in args.strategies}
    for training in trainings.values():
        for _ in range(3):  # DDP makes its buckets anew after its first update
            training.update()
    rounds, cpu, faults = {}, {}, {}
    programs = {name: partial(measured, training.update, args.updates) for name, training in trainings.items()}
    for rate, results in dial.rounds(args.rates, programs, args.rounds).items():
        rounds[rate], cpu[rate], faults[rate] = {}, {}, {}
        for name, each in results.items():
            sums = torch.tensor(each, dtype=torch.float64)
            rounds[rate][name] = slowest(sums[:, 0].tolist())
            dist.all_reduce(sums)
            cpu[rate][name], faults[rate][name] = sums[:, 1].tolist(), sums[:, 2].tolist()
    return {"rounds": rounds, "cpu": cpu, "faults": faults,
            "events": {name: drawn(training) for name, training in trainings.items() if args.draw}}


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--strategies", nargs="+", required=True, metavar="NAME", help="as train_gpt.py's --strategy")
    parser.add_argument("--parts", choices=("mine", "ours"), default="ours", help="whose (%(default)s)")
    for name, default in {"batch": 8, "micro-batches": 1, "context": 64, "width": 128, "layers": 4}.items():
        parser.add_argument(f"--{name}", type=positive(int), default=default, help="as train_gpt.py's (%(default)s)")
    parser.add_argument("--rates", nargs="+", default=["none"], metavar="RATE", help="such as 100mbit; none: no limit")
    parser.add_argument("--rounds", type=positive(int), default=12, help="of each strategy (%(default)s)")
    parser.add_argument("--updates", type=positive(int), default=3, help="of a round (%(default)s)")
    parser.add_argument("--draw", action="store_true", help="note what each rank did, too")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this compares ranks: start two, torchrun --nproc_per_node=2")
        dial.check_rates(args.rates)
        if args.batch % (placement.world_size * args.micro_batches):
            raise ValueError(f"--batch {args.batch} must be a multiple of {placement.world_size} ranks times "
                             "--micro-batches: DDP shares it")
        if args.width % HEADS:
            raise ValueError(f"--width {args.width} must be a multiple of {HEADS}, the number of heads")
        use_strategies(args.strategies, args.parts)
        files.check_output("--out", args.out)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        results = measure(args)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | results)


if __name__ == "__main__":
    rank_program.start(main)
