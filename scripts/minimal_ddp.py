"""minimal.py in many processes: each rank has a copy of the model, and takes its share of every batch.

    torchrun --nproc_per_node=8 scripts/minimal_ddp.py      a GPU for each rank; without GPUs, on the CPU
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainer import data

EPOCHS = 3
BATCH = 64  # images a step
SAVE = "minimal.pt"

cuda, local_rank = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])  # torchrun sets it, and RANK, WORLD_SIZE
if cuda:
    torch.accelerator.set_device_index(local_rank)  # before the ranks meet: "cuda" below is this rank's own GPU
dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=5))  # if a rank is missing
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda" if cuda else "cpu")
torch.manual_seed(rank)  # dropout must differ between ranks. The first weights will not: DDP sends rank 0's to all

# Any Dataset will do, torchvision's too: then leave out collate_fn, which says that ours hands over whole batches.
train_set, test_set = data.get_dataset("auto")
sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)  # leave out a few images, not repeat some
# The same images a step as before. BATCH for each rank would be fewer, larger steps, with another learning rate.
train_loader = DataLoader(train_set, BATCH // world_size, sampler=sampler, collate_fn=train_set.collate)
shard = range(rank, len(test_set), world_size)  # each image once: DistributedSampler would repeat some, or leave some
test_loader = DataLoader(test_set, BATCH, sampler=shard, collate_fn=test_set.collate)

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # [B, 3, 32, 32] to [B, 16, 16, 16]
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 32, 8, 8]
    nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
).to(device)
# The same weights, whose gradients backward() averages over all ranks.
ddp_model = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)  # without it every epoch has the order of the first
    sums = torch.zeros(3, device=device)  # losses and images of training, hits of the test
    model.train()
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(ddp_model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)
        sums[1] += len(labels)
    model.eval()
    with torch.no_grad():  # not ddp_model: shards differ in length, and its forward() may wait for the other ranks
        for images, labels in test_loader:
            sums[2] += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    dist.all_reduce(sums)  # over all ranks: sums can be added up, means of unequal shards cannot
    if rank == 0:
        print(f"Epoch: {epoch}, Loss: {sums[0] / sums[1]:.4f}, val acc: {sums[2] / len(test_set):.4f}", flush=True)
if rank == 0:
    torch.save(model.state_dict(), SAVE)  # not ddp_model's: its names begin with "module."
dist.destroy_process_group()
