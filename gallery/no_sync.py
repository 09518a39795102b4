"""An update for each two batches: one all-reduce for two would do. A communication hook counts them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model, sent = DistributedDataParallel(nn.Linear(4, 1)), []
model.register_comm_hook(None, lambda state, bucket: sent.append(bucket.index()) or allreduce_hook(None, bucket))
for _ in range(2):
    loss = model(torch.ones(8, 4)).mean()
    with model.no_sync():
        loss.backward()
    model(torch.ones(8, 4)).mean().backward()
if dist.get_rank() == 0:
    print(f"{len(sent)} all-reduces for 4 batches and 2 updates")
dist.destroy_process_group()
