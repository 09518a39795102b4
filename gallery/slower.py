"""Ten small layers, trained by one process and by two ranks that all-reduce the gradients."""

import time

import torch
import torch.distributed as dist
from torch import nn


def samples_per_second(ranks):
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        model.zero_grad()
        model(torch.ones(32, 64)).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        messages = gradients
        for message in messages if ranks > 1 else []:
            dist.all_reduce(message)
        seconds.append(time.perf_counter() - start)
    return 32 * ranks / min(seconds), len(messages)  # what other programs disturb is slower


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same first weights on all ranks
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(10)))
alone, _ = samples_per_second(1) if rank == 0 else (None, None)
dist.barrier()
together, messages = samples_per_second(ranks)
if rank == 0:
    print(f"an update: {messages} all-reduces for {32 * ranks} samples")
    print(f"1 process: {alone:.0f} samples/s, {ranks} ranks: {together:.0f}, {together / alone:.2f} times as fast")
dist.destroy_process_group()
