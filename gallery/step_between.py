"""A step of a GAN: the judge learns from a fake image, and then the generator from what the judge says of it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
generator, judge = (DistributedDataParallel(nn.Linear(4, outputs)) for outputs in (4, 1))
steps = [torch.optim.SGD(model.parameters(), lr=0.1).step for model in (generator, judge)]

fake = generator(torch.ones(8, 4))
verdict, next_verdict = judge(fake.detach()), judge(fake)
verdict.mean().backward()
steps[1]()
next_verdict.mean().neg().backward()
steps[0]()
if dist.get_rank() == 0:
    print("1 step done, of judge and generator")
dist.destroy_process_group()
