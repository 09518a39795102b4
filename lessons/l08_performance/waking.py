"""Why does an all-reduce take longer in training than alone?

    torchrun --nproc_per_node=2 lessons/l08_performance/waking.py --out results/live/08_waking.json

The same all-reduce, of LeNet's gradients and of 400 bytes, in four situations: `at once` after another one; after a
`pause`, in which the cores sleep; after the ranks have `computed` products of matrices; and in `training`, after
LeNet's backward. The file is one JSON object: the machine, and `rounds`, {"BYTES situation": [milliseconds from the
arrival of the last rank until the last has its result, a median per round]}.
"""

import time
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course import rank_program, shortcuts
from course.timing import interleave, slowest
from trainer import launch, models
from trainer.files import check_output
from trainer.options import positive

PAUSE = 0.008  # seconds: about what LeNet computes in a step


def situations():
    """{name: what a rank does before the all-reduce}"""
    model, matrix = models.ConvNet(), torch.rand(300, 300)
    images, labels = torch.rand(64, 3, 32, 32), torch.randint(10, (64,))

    def computed():
        end = time.perf_counter() + PAUSE
        while time.perf_counter() < end:
            matrix @ matrix  # noqa: B018

    return {"at once": lambda: None, "pause": partial(time.sleep, PAUSE), "computed": computed,
            "training": lambda: cross_entropy(model(images), labels).backward()}


def milliseconds(before, size, calls):
    """Of an all-reduce, from the last arrival to the last result. All ranks of a machine have one clock."""
    tensor, spans = torch.zeros(size // 4), []
    dist.all_reduce(tensor)
    for _ in range(calls):
        before()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        spans.append((start, time.perf_counter()))
    starts, ends = (slowest(list(times)) for times in zip(*spans, strict=True))
    return 1e3 * median(end - start for start, end in zip(starts, ends, strict=True))


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--rounds", type=positive(int), default=12, help="default: 12")
    parser.add_argument("--calls", type=positive(int), default=15, help="of each in a round; default: 15")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this compares ranks: torchrun --nproc_per_node=2 waking.py")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        sizes = [400, sum(parameter.nbytes for parameter in models.ConvNet().parameters())]
        rounds = interleave({f"{size} {name}": partial(milliseconds, before, size, args.calls)
                             for name, before in situations().items() for size in sizes}, args.rounds)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | {"rounds": rounds})


if __name__ == "__main__":
    rank_program.start(main)
