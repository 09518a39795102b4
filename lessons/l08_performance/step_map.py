"""Steps of train.py's model on two ranks, at several batches and rates of the dial, interleaved.

    torchrun --nproc_per_node=2 lessons/l08_performance/step_map.py --cells 32@100mbit 256@400mbit --parts \\
        --out results/live/08_corners.json

A cell is images per step of each rank @ rate. MyDDP sends the gradients in buckets: yours, where mine/my_ddp.py has
buckets, else the course's. --parts also measures what a step is made of. The file is one JSON object: the machine;
`whose`; `buckets`, bytes of each; `steps`, {cell: [seconds per step, of the slowest rank]}. With --parts: `computing`,
{batch: [[seconds from the step's start until each bucket has its gradients, until backward has ended, until the step
has]]}, where both ranks compute and nothing is sent; `messages`, {rate: {bytes: [seconds of an all-reduce]}}, where
nothing is computed.
"""

import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from course import dial, rank_program, shortcuts
from course.on_ranks import theirs_or_ours
from course.rank_program import meet
from course.timing import interleave, slowest, timed
from course.train_step import TrainStep
from lessons.start.ours.my_ddp import MyDDP
from trainer import files, launch
from trainer.options import positive

CPU, WARM_UP, EXTRA = torch.device("cpu"), 3, 4  # EXTRA: one more message, so many times the largest bucket


class Step(TrainStep):
    """A step at a time, with MyDDP; or alone, noting when each bucket has its gradients."""

    def __init__(self, batch, wrap=None):
        super().__init__(batch, wrap)
        self.buckets = MyDDP.make_buckets(self.model)
        self.ready = [0.0] * len(self.buckets)
        if not wrap:
            for number, bucket in enumerate(self.buckets):
                for parameter in bucket:
                    parameter.register_post_accumulate_grad_hook(partial(self.arrived, number))

    def arrived(self, number, _):
        self.ready[number] = time.perf_counter()  # of the bucket's last gradient, in the end

    def parts(self, steps):
        """Seconds from a step's start: each bucket's gradients, backward's end, the step's. Medians; slowest rank."""
        rows = []
        for _ in range(steps):
            meet(CPU)
            start = time.perf_counter()
            ended = self.update()
            rows.append([moment - start for moment in (*self.ready, ended, time.perf_counter())])
        return slowest([median(column) for column in zip(*rows, strict=True)])


def on_link(rate, call, steps):
    """Seconds of a call on a link of that rate, of the slowest rank. One call goes first: its last bytes would delay
    the others', as in a training the step before."""
    dial.pace(rate)
    call()
    return slowest([timed(call, steps, CPU)])[0]


def measure(args, cells, wrap):
    steps = {batch: Step(batch, wrap) for batch in dict.fromkeys(batch for batch, _ in cells)}
    alone = {batch: Step(batch) for batch in (steps if args.parts else ())}
    for step in (*steps.values(), *alone.values()):
        for _ in range(WARM_UP):
            step.update()
    sizes = [sum(parameter.nbytes for parameter in bucket) for bucket in next(iter(steps.values())).buckets]
    programs = {("steps", cell): partial(on_link, cell[1], steps[cell[0]].update, args.steps) for cell in cells}
    programs |= {("computing", batch): partial(step.parts, args.steps) for batch, step in alone.items()}
    if args.parts:
        for rate in dict.fromkeys(rate for _, rate in cells):
            for size in (*sizes, EXTRA * max(sizes)):
                tensor = torch.zeros(size // 4)
                programs["messages", (rate, size)] = partial(
                    on_link, rate, partial(dist.all_reduce, tensor), args.steps)
    results = {"buckets": sizes, "steps": {}, "computing": {}, "messages": {}}
    for (kind, key), rounds in interleave(programs, args.rounds).items():
        if kind == "messages":
            results[kind].setdefault(key[0], {})[key[1]] = rounds
        else:
            results[kind]["@".join(map(str, key)) if kind == "steps" else key] = rounds
    return results


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--cells", nargs="+", required=True, metavar="BATCH@RATE")
    parser.add_argument("--parts", action="store_true", help="also what a step is made of")
    parser.add_argument("--rounds", type=positive(int), default=7, help="default: 7")
    parser.add_argument("--steps", type=positive(int), default=3, help="of each in a round; default: 3")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this needs ranks: torchrun --nproc_per_node=2 step_map.py")
        cells = []
        for cell in args.cells:
            batch, _, rate = cell.partition("@")
            if not rate or not batch.isdecimal() or not int(batch):
                raise ValueError(f"--cells {cell}: write BATCH@RATE, such as 64@200mbit")
            dial.bits(rate)
            cells.append((int(batch), rate))
        if why := dial.missing():
            raise OSError(why)
        files.check_output("--out", args.out)
        wrap, whose = theirs_or_ours(Path("mine/my_ddp.py"), "MyDDP", MyDDP)
        if not hasattr(wrap, "make_buckets"):
            wrap, whose = MyDDP, "ours"
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        results = measure(args, cells, wrap)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | {"whose": whose} | results)


if __name__ == "__main__":
    rank_program.start(main)
