"""Measure the ceiling: how many times one process's images a second do several processes reach that never talk?

    torchrun --nproc_per_node=8 scripts/measure/side_by_side.py --out results/live/ceiling.json

Each process trains a model of its own, as main.py does on one rank. They start together, and share what a machine's
processes share: memory, caches, heat. With this model and this batch no way of training together can be faster. A round
measures 2, 4, 8 and so on up to all of them, and rank 0 alone before and after each; who does not train waits. The file
is one JSON object: the machine, `model`, `batch_size`, images a second of one process `alone`, the median over the
rounds, and `ceilings`, one for each number of processes: `ranks`, `together` (images a second of all), the `rounds`'
together / alone, their median, `ceiling`, and `low` and `high`, the lowest and the highest of them.
"""

import statistics
import time
from functools import partial

import torch

import utils
from course import rank_program, shortcuts
from course.adjustable_training import Setting, Training
from course.rank_program import meet, synchronise
from course.timing import interleave
from trainer import launch, models
from trainer.files import check_output
from trainer.options import positive

WARM_UP = 5  # steps


def images_a_second(training, seconds, device):
    """Of this process, which trains for so long."""
    images, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        training.update()
        synchronise(device)
        images += training.setting.batch_size
    return images / (time.perf_counter() - start)


def up_to(ranks):
    """2, 4, 8 and so on, and all `ranks`."""
    return sorted({ranks, *(2**power for power in range(1, ranks.bit_length()))})


def speed(training, count, seconds, placement):
    """Images a second of the first `count` ranks together, while the others wait; every rank must call it."""
    meet(placement.device)
    own = images_a_second(training, seconds, placement.device) if placement.rank < count else 0.0
    (together,) = utils.all_sum(torch.tensor([own], dtype=utils.sum_type(placement.device), device=placement.device))
    return together


def ceiling(ranks, before, together, after):
    """Of so many processes, from what they reached in each round, and one alone before and after them."""
    ratios = [2 * many / (first + last) for first, many, last in zip(before, together, after, strict=True)]
    return {"ranks": ranks, "together": statistics.median(together), "rounds": ratios,
            "ceiling": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def check(args, placement):
    """The training set; ValueError, one line, for what cannot work, before any rank waits for another."""
    check_output("--out", args.out)
    if placement.world_size < 2:
        raise ValueError("one process has nobody beside it: torchrun --nproc_per_node=2 side_by_side.py")
    if args.timeout < 2 * args.seconds:
        raise ValueError(f"--timeout {args.timeout:g} is too short: the ranks wait for --seconds {args.seconds:g}")
    train_set = rank_program.dataset(args)[0].first(args.samples, placement.device)
    if len(train_set) // placement.world_size < args.batch_size:
        raise ValueError(f"--samples {len(train_set)} are no batch of {args.batch_size} for each of "
                         f"{placement.world_size} ranks")
    return train_set


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", dataset=True, timeout=60)
    add = parser.add_argument
    add("--model", choices=models.MODELS, default="lenet", help="default: lenet")
    add("--batch-size", type=positive(int), default=64, help="images a step of each rank; default: 64")
    add("--seconds", type=positive(float, 2**31), default=1, help="how long a round trains each; default: 1")
    add("--rounds", type=positive(int), default=5, help="default: 5")
    add("--samples", type=positive(int), default=8192, help="images that the steps draw from; default: 8192")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement()
        train_set = check(args, placement)
    shortcuts.keep_memory()
    shortcuts.defer_compiler()
    with rank_program.ranks(placement, args.timeout):
        training = Training(Setting(args.batch_size, ddp=False), args.model, train_set, placement)
        for _ in range(WARM_UP):
            training.update()
        counts = [1, *(count for ranks in up_to(placement.world_size) for count in (ranks, 1))]
        speeds = list(interleave({place: partial(speed, training, count, args.seconds, placement)
                                  for place, count in enumerate(counts)}, args.rounds).values())
        ceilings = [ceiling(counts[place], *speeds[place - 1:place + 2]) for place in range(1, len(counts), 2)]
        alone = [one for of_rounds in speeds[::2] for one in of_rounds]
        if placement.rank == 0:
            rank_program.write_json(args.out, {
                **rank_program.measured_on(placement), "dataset": train_set.name, "model": args.model,
                "batch_size": args.batch_size, "rounds": args.rounds, "alone": statistics.median(alone),
                "ceilings": ceilings, "time": time.time()})
            print(f"{args.model}, batch {args.batch_size}: one process alone {statistics.median(alone):,.0f} images/s")
            for row in ceilings:
                print(f"  {row['ranks']} side by side {row['together']:,.0f} images/s: {row['ceiling']:.2f} times "
                      f"({row['low']:.2f} to {row['high']:.2f})", flush=True)


if __name__ == "__main__":
    rank_program.start(main)
