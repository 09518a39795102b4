"""Four batches on two ranks, one update. The gradient is clipped to a norm of 0.1, as one process would do it."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
batches, model = torch.randn(4, 8, 4), nn.Linear(4, 1, bias=False)
model(batches).square().mean().backward()
nn.utils.clip_grad_norm_(model.parameters(), 0.1)
expected = model.weight.grad.clone()

model.zero_grad()
ddp, mine = DistributedDataParallel(model), batches[rank::ranks]
for step, batch in enumerate(mine, 1):
    with nullcontext() if step == len(mine) else ddp.no_sync():
        (ddp(batch).square().mean() / len(mine)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
if rank == 0:
    print(f"off from one process's clipped gradient by {(model.weight.grad - expected).abs().max():.4f}")
dist.destroy_process_group()
