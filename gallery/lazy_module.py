"""A model with a lazy layer, which learns the size of its input from the first batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
model = DistributedDataParallel(model)
model(torch.ones(8, 3, 4)).sum().backward()
if dist.get_rank() == 0:
    print("1 step done, with weights of", *model.module[1].weight.shape)
dist.destroy_process_group()
