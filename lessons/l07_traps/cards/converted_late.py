"""A model that changes its type after DDP has wrapped it: nothing averages its gradients any more, and nothing says so.

    torchrun --nproc_per_node=2 lessons/l07_traps/cards/converted_late.py

DDP hangs its hooks on each parameter's gradient accumulator, a node of autograd. `.double()` gives the parameter other
data, and autograd makes it a new accumulator, without a hook. So wrap last.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
images = torch.full((8, 4), rank + 1.0, dtype=torch.float64)
for name, make in (("DDP(model).double()", lambda model: DistributedDataParallel(model).double()),
                   ("DDP(model.double())", lambda model: DistributedDataParallel(model.double()))):
    torch.manual_seed(0)
    model = make(nn.Linear(4, 1))
    model(images).mean().backward()
    gradients = [torch.empty(1, 4, dtype=torch.float64) for _ in range(ranks)]
    dist.all_gather(gradients, model.module.weight.grad)
    if rank == 0:
        apart = max((gradient - gradients[0]).abs().max().item() for gradient in gradients)
        print(f"{name}: the ranks' gradients are apart by {apart:g}", flush=True)
dist.destroy_process_group()
