"""Ten small layers, trained by one process and by two ranks that all-reduce each gradient."""

import time

import torch
import torch.distributed as dist
from torch import nn


def samples_per_second(batch_size, ranks):
    seconds = []
    for _ in range(max(5, 40 // batch_size)):
        start = time.perf_counter()
        model.zero_grad()
        model(torch.ones(batch_size, 64)).sum().backward()
        if ranks > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        seconds.append(time.perf_counter() - start)
    return batch_size * ranks / min(seconds)  # what other programs disturb is slower


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(10)))
batch_size = 32_768
alone = samples_per_second(batch_size, 1) if rank == 0 else None
dist.barrier()
together = samples_per_second(batch_size, ranks)
if rank == 0:
    messages, samples = len(list(model.parameters())), batch_size * ranks
    print(f"{messages} all-reduces for {samples} samples: {messages / samples:.2g} a sample")
    print(f"1 process: {alone:.0f} samples/s, {ranks} ranks: {together:.0f}, {together / alone:.2f} times as fast")
dist.destroy_process_group()
