"""All ranks reach the end of the epoch, and the checkpoint is saved."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, writes = dist.get_rank(), 0
file = Path(tempfile.gettempdir(), f"checkpoint-{os.environ['MASTER_PORT']}.pt")
torch.save({"epoch": 3, "written by rank": rank}, file)
writes += 1
dist.barrier()
all_writes = [None] * dist.get_world_size()
dist.all_gather_object(all_writes, writes)
if rank == 0:
    print(f"one file, written {sum(all_writes)} time(s)")
    file.unlink()
dist.destroy_process_group()
