"""Fine-tuning on two classes: the model gets a new head, and trains."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[2] = nn.Linear(4, 2)
before = {name: value.clone() for name, value in model.named_parameters()}
ddp = DistributedDataParallel(model)
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(torch.ones(8, 4)), torch.ones(8, dtype=torch.long)).backward()
    optimizer.step()
if dist.get_rank() == 0:
    for name, value in model.named_parameters():
        print(f"{name} moved by {(value - before[name]).abs().max():.4f}")
dist.destroy_process_group()
