"""An all-reduce and a barrier, not in the same order on both ranks. Each waits 6 seconds, in place of 30 minutes."""

import faulthandler
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=6))
rank, loss = dist.get_rank(), torch.ones(1)
faulthandler.dump_traceback_later(3)  # says where this process stands, while it waits
if rank == 1:
    dist.barrier()
    dist.all_reduce(loss)
else:
    dist.all_reduce(loss)
    dist.barrier()
faulthandler.cancel_dump_traceback_later()
if rank == 0:
    print(f"the sum is {loss.item():g}")
dist.destroy_process_group()
