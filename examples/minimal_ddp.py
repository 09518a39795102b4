"""minimal.py in many processes: each rank has a copy of the model, and takes its share of every batch.

    torchrun --nproc_per_node=2 minimal_ddp.py      # one GPU per rank; with fewer GPUs, on the CPU
    torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=FIRST_NODE:29400 \\
        minimal_ddp.py --data DIR                   # the same command on both nodes

Needs torchvision, and torch 2.6 or newer.
"""

import argparse
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import MNIST, FakeData
from torchvision.transforms import ToTensor

EPOCHS = 3
BATCH = 96  # images per update, of all ranks together: more ranks train the same model, faster
SAVE = "minimal.pt"

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="./data", help="the folder that holds MNIST/raw (%(default)s)")
args = parser.parse_args()

if "LOCAL_WORLD_SIZE" not in os.environ:
    parser.exit(2, "start with torchrun --nproc_per_node=2 minimal_ddp.py\n")
rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))  # by torchrun
if BATCH % world_size and rank == 0:  # with unequal shares, the mean over the ranks is not the mean over the images
    parser.exit(2, f"BATCH = {BATCH} cannot be divided by {world_size} ranks\n")  # torchrun then ends the others
cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # two ranks of NCCL cannot share a GPU
if cuda:
    torch.cuda.set_device(local_rank)  # before the ranks meet: from now on "cuda" is this rank's own GPU
elif rank == 0 and torch.cuda.is_available():
    print("fewer GPUs than ranks: training on the CPU", flush=True)
dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=5))  # if a rank is missing
device = torch.device("cuda" if cuda else "cpu")
torch.manual_seed(rank)  # dropout must differ between ranks. The first weights will not: DDP sends rank 0's to all

socket.setdefaulttimeout(10)  # seconds; torchvision sets none, so a download that stalls would never end
have_mnist = torch.ones(1, device=device)
for my_turn in (rank == 0, rank > 0 and local_rank == 0):  # on a shared file system the other nodes find rank 0's files
    if my_turn and have_mnist:  # one rank per node: several would write to the same files at the same time
        try:
            MNIST(args.data, download=True)
        except (OSError, RuntimeError) as error:  # no network, or no permission to write
            have_mnist.zero_()
            cause = str(error).strip().split("\n")[-1]  # of several lines, the last says why
            print(f"MNIST is not in {args.data} and cannot be downloaded ({cause}): "
                  "training on FakeData, random images", flush=True)
    dist.all_reduce(have_mnist, dist.ReduceOp.MIN)  # the others wait; all take the same images if one node has none
if have_mnist:
    train_set, test_set = (MNIST(args.data, train, ToTensor()) for train in (True, False))
else:
    train_set = FakeData(6000, (1, 28, 28), transform=ToTensor())
    test_set = FakeData(1000, (1, 28, 28), transform=ToTensor(), random_offset=6000)
sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)  # leave out a few images, not repeat some
train_loader = DataLoader(train_set, BATCH // world_size, sampler=sampler)  # a loader's batch is that of one rank
shard = range(rank, len(test_set), world_size)  # each image once: DistributedSampler would repeat some, or leave some
test_loader = DataLoader(test_set, BATCH, sampler=shard)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # [B, 1, 28, 28] to [B, 16, 14, 14]
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 32, 7, 7]
    nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
).to(device)
# The same weights, whose gradients backward() averages over all ranks.
ddp_model = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)  # without it every epoch has the order of the first
    sums = torch.zeros(3, device=device)  # training loss, training images, correct test images
    model.train()
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(ddp_model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)  # stays on the device: .item() would wait for the GPU in each step
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
