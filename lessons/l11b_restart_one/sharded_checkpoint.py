"""Save a model with torch.distributed.checkpoint (DCP) on many ranks, and load it on another number of them.

    torchrun --nproc_per_node=2 lessons/l11b_restart_one/sharded_checkpoint.py --save build/dcp
    python lessons/l11b_restart_one/sharded_checkpoint.py --load build/dcp
    torchrun --nproc_per_node=3 lessons/l11b_restart_one/sharded_checkpoint.py --load build/dcp

The model is LeNet, the same on every rank, as DDP has it; and a table of which each rank keeps and writes only its own
rows, as FSDP does with every weight. Each rank writes a file of its own, and .metadata says what is where.
All values are made from a seed, so --load knows what must come back. Exit status 0 if it does, bit for bit.
"""

import json
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from course import rank_program
from trainer import launch, models
from trainer.files import check_writable
from trainer.options import nonempty_path

ROWS, COLUMNS = 1001, 64  # a number of rows that two ranks cannot share equally


def expected():
    """{name: tensor}, whole: LeNet's weights and the table [ROWS, COLUMNS]."""
    torch.manual_seed(0)
    weights = models.ConvNet().state_dict()
    return {**weights, "table": torch.randn(ROWS, COLUMNS)}


def state_of_this_rank(values):
    """The same, as a rank of many holds it: the weights whole, and its rows of the table."""
    if not dist.is_initialized():
        return values
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {**values, "table": distribute_tensor(values["table"], mesh, [Shard(0)])}


def load(folder):
    """{name: tensor} that this process holds, read from the folder; the other ranks must call it, too.

    DCP reads into tensors that are there: what this rank has room for, it gets. Without a process group it is alone.
    """
    room = state_of_this_rank({name: torch.full_like(value, torch.nan) for name, value in expected().items()})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process is what we mean
        dcp.load(room, storage_reader=dcp.FileSystemReader(folder))
    return room


def local(value):
    return value.to_local() if hasattr(value, "to_local") else value


def contents(folder):
    """What each file holds, from .metadata: a dict a piece, {"file", "name", "first" (row), "bytes"}."""
    pieces = dcp.FileSystemReader(folder).read_metadata().storage_data
    return [{"file": place.relative_path, "name": index.fqn, "first": (list(index.offset or []) or [0])[0],
             "bytes": place.length} for index, place in pieces.items()]


def main():
    parser = rank_program.parser(__doc__, timeout=60)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", type=nonempty_path, metavar="FOLDER", help="write it there")
    what.add_argument("--load", type=nonempty_path, metavar="FOLDER", help="read it from there")
    args = parser.parse_args()
    with parser.one_line():
        if args.load and not (args.load / ".metadata").is_file():
            raise ValueError(f"--load {args.load}: no checkpoint there (no .metadata); write one with --save")
        if args.save and (args.save / ".metadata").exists():  # overwritten file by file, it would be neither in between
            raise ValueError(f"--save {args.save}: holds a checkpoint already; name a folder of its own for each")
        placement = launch.find_placement("cpu", "gloo")
        if args.save:
            check_writable("--save", args.save)
    with rank_program.ranks(placement, args.timeout):
        state = state_of_this_rank(expected())
        if args.save:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(args.save))
        else:
            loaded = load(args.load)
            for name, value in state.items():
                if not torch.equal(local(loaded[name]), local(value)):
                    raise RuntimeError(f"rank {placement.rank}: {name} is not what was saved")
        held = {"rank": placement.rank, "rows of the table": len(local(state["table"])), "of": ROWS}
        print(("saved " if args.save else "loaded, bit for bit the same: ") + json.dumps(held), flush=True)


if __name__ == "__main__":
    rank_program.start(main)
