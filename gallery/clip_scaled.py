"""Mixed precision with a GradScaler, and gradients clipped to a norm of 1."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
for step in range(3):
    with torch.autocast("cpu"):
        loss = (model(torch.ones(8, 4)) - 1).square().mean()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss:.4f}")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
