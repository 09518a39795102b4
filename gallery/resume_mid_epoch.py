"""An epoch of eight batches a rank: the job ends after the third, and goes on from its checkpoint."""

from itertools import islice

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
images, trained = torch.arange(32), torch.zeros(32)
sampler = DistributedSampler(images)
loader, checkpoint = DataLoader(images, 2, sampler=sampler), {"epoch": 5, "step": 0}
for end in (3, None):
    sampler.set_epoch(checkpoint["epoch"])
    for step, batch in islice(enumerate(loader), end):
        trained[batch] += 1
        checkpoint["step"] = step + 1
dist.all_reduce(trained)
if dist.get_rank() == 0:
    print(f"of {len(images)} images {sum(trained > 1)} were trained twice in this epoch, {sum(trained == 0)} never")
dist.destroy_process_group()
