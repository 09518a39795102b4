"""Which GPU does each rank take? Without any, the name alone is shown, and nothing is placed."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda")
index = device.index or 0  # PyTorch: none means the current device, and that is 0 at the start
if index < torch.cuda.device_count():
    index = torch.ones(1, device=device).get_device()
chosen = [None] * dist.get_world_size()
dist.all_gather_object(chosen, f"cuda:{index}")
if local_rank == 0:
    print("the ranks' devices:", *chosen, f"({torch.cuda.device_count()} GPUs here)")
dist.destroy_process_group()
