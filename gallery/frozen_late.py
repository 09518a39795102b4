"""Fine-tuning: the body of the model is frozen, its head is trained."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
body, head = nn.Linear(4, 4), nn.Linear(4, 1)
model = DistributedDataParallel(nn.Sequential(body, head))
body.requires_grad_(False)
for _ in range(2):
    model(torch.ones(8, 4)).sum().backward()
if dist.get_rank() == 0:
    print("2 steps done, with the body frozen")
dist.destroy_process_group()
