"""One task of a Slurm step: where do the tasks meet? It reads three variables that srun sets."""

import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist

rank, ranks, job = (int(os.environ[f"SLURM_{name}"]) for name in ("PROCID", "NTASKS", "JOB_ID"))
port = random.randint(20_000, 32_000)
print(f"task {rank} of {ranks}: meets at port {port}", flush=True)
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=6), ranks, rank)
total = torch.tensor(rank)
dist.all_reduce(total)
if rank == 0:
    print(f"{ranks} tasks have met, the sum of their ranks is {total}")
dist.destroy_process_group()
