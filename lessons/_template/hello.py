"""Take the mean of numbers that are spread over ranks: rank r has the numbers 0 to r.

    torchrun --nproc_per_node=3 lessons/_template/hello.py --out results/live/hello.json
"""

import torch
import torch.distributed as dist

from course import rank_program
from trainer import launch
from trainer.files import check_output


def mean_over_ranks(numbers: torch.Tensor) -> float:
    """The mean of all ranks' numbers, the same on every rank. `numbers`: those of this rank, 1-D."""
    sums = torch.stack([numbers.sum(), torch.tensor(float(len(numbers)))])
    dist.all_reduce(sums)
    total, count = sums.tolist()
    return total / count


def main():
    parser = rank_program.parser(__doc__, out="write each rank's mean and that of all here, as JSON", timeout=30)
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("one process has no other rank: start this with torchrun --nproc_per_node=2")
        check_output("--out", args.out)
    with rank_program.ranks(placement, args.timeout):
        numbers = torch.arange(placement.rank + 1.0)
        means, mean = launch.gathered(numbers.mean().item()), mean_over_ranks(numbers)
    if placement.rank == 0:
        print(f"means of the {placement.world_size} ranks: {means}; of all numbers: {mean:.3f}")
        rank_program.write_json(args.out, {"means": means, "mean": mean})


if __name__ == "__main__":
    rank_program.start(main)
