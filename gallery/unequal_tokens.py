"""Texts of 2, 6, 8 and 4 tokens, two for each rank, one after the other; an update for all of them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
tokens, targets, model = torch.randn(20, 4), torch.randn(20, 1), nn.Linear(4, 1)
(expected,) = torch.autograd.grad(mse_loss(model(tokens), targets), model.weight)
mine = list(zip(tokens.split([2, 6, 8, 4]), targets.split([2, 6, 8, 4]), strict=True))[rank::ranks]
ddp = DistributedDataParallel(model)
for text, target in mine:
    loss = mse_loss(ddp(text), target) / len(mine)
    loss.backward()
if rank == 0:
    print(f"off from the gradient of all 20 tokens in one batch by {(model.weight.grad - expected).abs().max():.4f}")
dist.destroy_process_group()
