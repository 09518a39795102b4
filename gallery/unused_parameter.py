"""A model with two heads, trained on the loss of one of them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


dist.init_process_group("gloo")
model = DistributedDataParallel(Net())
for _ in range(2):
    model(torch.ones(8, 4)).sum().backward()
if dist.get_rank() == 0:
    print("2 steps done")
dist.destroy_process_group()
