"""A `print` that only rank 0 obeys, as in many published trainers, and what it hides.

    torchrun --nproc_per_node=2 lessons/l10_launchers/cards/quiet_print.py

Replacing print for all modules is DETR's idea: setup_for_distributed in
https://github.com/facebookresearch/detr/blob/main/util/misc.py. With force=True a line passes on every rank.
"""

import builtins

import torch
import torch.distributed as dist


def setup_for_distributed(is_master):
    plain = builtins.print

    def obedient(*args, force=False, **options):
        if is_master or force:
            plain(*args, **options)

    builtins.print = obedient


dist.init_process_group("gloo")
rank = dist.get_rank()
setup_for_distributed(rank == 0)
images = torch.full((4,), 1.0 if rank == 0 else float("nan"))  # rank 1 has read a damaged file
for step in range(2):
    if images.isnan().any():
        print(f"rank {rank}, step {step}: images that are no numbers", flush=True)  # nobody reads it
    loss = images.mean()
    dist.all_reduce(loss)
    print(f"step {step}: loss {loss / dist.get_world_size()}", flush=True)
print(f"rank {rank} ends", force=True, flush=True)
dist.destroy_process_group()
