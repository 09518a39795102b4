"""Save a table that is divided among ranks, by the learner's calls of torch.distributed.checkpoint (DCP), and load it
on another number of ranks. Without the learner's file it takes the course's calls.

    torchrun --nproc_per_node=4 lessons/l11_fault_tolerance/sharded.py --save results/live/table
    torchrun --nproc_per_node=2 lessons/l11_fault_tolerance/sharded.py --load results/live/table

All values come from a seed, so --load knows what must come back. Exit status 0 if it does, bit for bit.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from course import rank_program
from course.on_ranks import theirs_or_ours
from trainer import launch
from trainer.options import nonempty_path

ROWS, COLUMNS = 1001, 64  # a number of rows that neither two nor four ranks can share equally


class Sharded:
    def save(self, state, folder):
        dcp.save(state, checkpoint_id=folder)

    def load(self, state, folder):
        dcp.load(state, checkpoint_id=folder)


def table(whole):
    """{name: DTensor}: a table [ROWS, COLUMNS] and its momentum, each rank with its rows; zeros unless `whole`."""
    mesh, generator = init_device_mesh("cpu", (dist.get_world_size(),)), torch.Generator().manual_seed(0)
    return {name: distribute_tensor(torch.randn(ROWS, COLUMNS, generator=generator) * whole, mesh, [Shard(0)])
            for name in ("table", "momentum")}


def contents(folder):
    """What each file holds, from .metadata, and which of two ranks have rows in it: a dict per file."""
    pieces = dcp.FileSystemReader(folder).read_metadata().storage_data
    first = {place.relative_path: (list(index.offset or []) or [0])[0] for index, place in pieces.items()}
    files, half = sorted(first, key=first.get), -(-ROWS // 2)
    ends = [*(first[file] for file in files[1:]), ROWS]
    return [{"file": file, "written by": f"rank {file[2]} of 4", "rows, of table and momentum":
             f"{first[file]} to {end - 1}", "read by, of two": " and ".join(
                 f"rank {rank}" for rank in (0, 1) if first[file] < (rank + 1) * half and rank * half < end)}
            for file, end in zip(files, ends, strict=True)]


def main():
    parser = rank_program.parser(__doc__, timeout=60)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", type=nonempty_path, metavar="FOLDER", help="write it there")
    what.add_argument("--load", type=nonempty_path, metavar="FOLDER", help="read it from there")
    args = parser.parse_args()
    with parser.one_line():
        made, whose = theirs_or_ours(Path("mine/sharded.py"), "Sharded", Sharded)
        placement = launch.find_placement("cpu", "gloo")
    with rank_program.ranks(placement, args.timeout):
        right = table(whole=True)
        if args.save:
            made().save(right, str(args.save))
        else:
            state = table(whole=False)
            made().load(state, str(args.load))
            for name, value in state.items():
                if not torch.equal(value.to_local(), right[name].to_local()):
                    raise RuntimeError(f"rank {placement.rank}: {name} is not what was saved")
        rows = len(right["table"].to_local())
        did = "saved" if args.save else "has, bit for bit,"
        sys.stdout.write(f"rank {placement.rank} of {os.environ['WORLD_SIZE']} {did} {rows} of {ROWS} rows ({whose})\n")


if __name__ == "__main__":
    rank_program.start(main)
