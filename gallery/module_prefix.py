"""Weights saved by a run with DDP, and loaded for a run without."""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Linear(4, 2))
file = io.BytesIO()
torch.save(model.state_dict(), file)

file.seek(0)
saved = torch.load(file, weights_only=True)
print("names in the file:", *saved, flush=True)
nn.Linear(4, 2).load_state_dict(saved)
print("loaded")
dist.destroy_process_group()
