"""Each rank seeds, makes the model, and draws noise for its images (augmentation, or dropout)."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(4, 1)
mine = [model.weight[0].tolist(), torch.randn(4).tolist()]
both = [None] * ranks
dist.all_gather_object(both, mine)
if rank == 0:
    drawn = [value for _, noise in both for value in noise]
    print(f"{len(drawn)} images augmented, in {len(set(drawn))} different ways")
    for number, (weights, noise) in enumerate(both):
        weights, noise = (" ".join(f"{value:+.3f}" for value in values) for values in (weights, noise))
        print(f"rank {number}: weights {weights}, noise {noise}")
    print(f"weights the same: {both[0][0] == both[1][0]}; noise the same: {both[0][1] == both[1][1]}")
dist.destroy_process_group()
