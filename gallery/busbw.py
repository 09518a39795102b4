"""The bandwidth of an all-reduce among three ranks, to be compared with the speed of the link."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(2**20)  # 4 MiB
dist.all_reduce(tensor)  # warms up
start = time.perf_counter()
for _ in range(3):
    dist.all_reduce(tensor)
seconds = (time.perf_counter() - start) / 3
algbw = tensor.nbytes / seconds / 1e9
busbw = algbw
if rank == 0:
    print(f"all-reduce of {tensor.nbytes / 2**20:.0f} MiB, {ranks} ranks: size / time is {algbw:.3f} GB/s")
    print(f"compared with the link: {busbw:.3f} GB/s, {busbw / algbw:.2f} times that")
dist.destroy_process_group()
