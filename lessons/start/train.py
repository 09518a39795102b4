"""Your training program: a small network learns CIFAR-10, on one process or on many. It is yours: change any line.

    python mine/train.py                                                        one process
    torchrun --nproc_per_node=2 mine/train.py                                   two ranks share every batch
    torchrun --nproc_per_node=2 -m course.dial --rate 150mbit mine/train.py     ... over a slow network
    torchrun --nproc_per_node=2 mine/train.py --parts torch                     with PyTorch's own parts

Its parts are files in mine/, which you write lesson by lesson. A part that is not there yet is the course's.
"""

import argparse
import math
import os
import signal
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--images", type=int, default=6144, help="training images used; default: 6144")
parser.add_argument("--batch", type=int, default=192, help="images per update, of all ranks together; default: 192")
parser.add_argument("--micro-batches", type=int, default=1, help="parts of each rank's batch, one after another")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05, help="learning rate; default: 0.05")
parser.add_argument("--lr-for", type=int, metavar="BATCH", help="the batch that --lr was right for; default: --batch")
parser.add_argument("--warm-up", type=int, default=0, help="updates until the full rate is reached; default: 0")
parser.add_argument("--noise", action="store_true", help="measure the noise scale of the gradient, on 2 ranks or more")
parser.add_argument("--small", action="store_true", help="a network with an eighth of the arithmetic")
parser.add_argument("--until", type=float, default=math.inf, metavar="ACCURACY", help="stop when an epoch reaches it")
parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of the images; default: 0")
parser.add_argument("--cosine", action="store_true", help="the learning rate falls to 0 along a cosine")
parser.add_argument("--flip", action="store_true", help="mirror half of the training images, drawn at random")
parser.add_argument("--checkpoint", metavar="FILE", help="keep there what the next update needs, and go on from it")
parser.add_argument("--every", type=int, default=10, help="updates from one checkpoint to the next; default: 10")
parser.add_argument("--save", metavar="FILE", help="write the trained weights")
parser.add_argument("--parts", choices=("mine", "ours", "torch"), default="mine", help="whose parts: yours where you "
                    "have written one, the course's, or PyTorch's own; default: mine")
args = parser.parse_args()

if not os.path.isdir("lessons/start"):
    parser.exit(2, "start train.py in the course's folder: the parts that you have not written stand there\n")
ours, pytorch = os.path.abspath("lessons/start/ours"), os.path.abspath("lessons/start/pytorch")
sys.path[:1] = {"mine": [sys.path[0], ours], "ours": [ours], "torch": [pytorch, ours]}[args.parts] + [os.getcwd()]

from stopwatch import now  # lesson 01: the time, when all work is done
from join import join, leave  # lesson 03: the processes become ranks
from all_reduce import all_reduce  # lesson 04: the sum of all ranks' tensors
from shard import shard  # lesson 05: which images, in which order
from evaluate import evaluate  # lesson 05: each test image counts once
from my_ddp import MyDDP  # lesson 06: the same weights, the mean of the gradients
from backward import backward  # lesson 07: the gradient of a batch, from its micro-batches
from save import save  # lesson 07: a file that any program can load
from rate import rate  # lesson 09: the learning rate of an update
from noise import Noise  # lesson 09: from how many images on is a gradient more than noise?
from replace import replace  # lesson 11: a file's content, all old or all new
from checkpoint import Checkpoint  # lesson 11: everything that the next update depends on
from must_stop import must_stop  # lesson 11: all ranks leave after the same update
from trainer.data import get_dataset  # CIFAR-10, or images made from a seed where it cannot be had

PARTS = ("stopwatch", "join", "all_reduce", "shard", "evaluate", "my_ddp", "backward", "save", "rate", "noise",
         "replace", "checkpoint", "must_stop")
torch.set_num_threads(1)  # a process computes on one core, as in a cluster on one GPU
rank, world_size, device = join()
if args.batch < 1 or args.batch % world_size or args.images < args.batch:
    parser.exit(2, f"--batch {args.batch} must be a multiple of the {world_size} ranks, and at most --images\n")
if args.every < 1:
    parser.exit(2, f"--every {args.every} must be at least 1\n")
for option, file in (("--checkpoint", args.checkpoint), ("--save", args.save)):
    if file is not None and (not file or os.path.isdir(file) or not os.path.isdir(os.path.dirname(file) or ".")):
        parser.exit(2, f"{option} {file!r} must be a file in a folder that is there\n")
if args.noise and (world_size == 1 or args.micro_batches > 1 or args.checkpoint):
    parser.exit(2, "--noise compares the gradients of 2 ranks or more, each of one backward(), without --checkpoint\n")
if rank == 0:
    whose = {part: os.path.basename(os.path.dirname(sys.modules[part].__spec__.origin)) for part in PARTS}
    print("parts:", ", ".join(f"{part} ({folder})" for part, folder in whose.items()), flush=True)

train_set, test_set = get_dataset("auto", verify=False)
torch.manual_seed(args.seed)
model = nn.Sequential(  # 156,074 parameters
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # [B, 3, 32, 32] to [B, 16, 16, 16]
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 32, 8, 8]
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 64, 4, 4]
    nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
if args.small:  # 10,570 parameters
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(),  # to [B, 16, 8, 8]
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 32, 4, 4]
        nn.Flatten(), nn.Linear(512, 10)).to(device)
parallel = MyDDP(model, all_reduce)
noise = Noise(model) if args.noise else None
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
updates = args.images // args.batch  # per epoch
times = args.batch / (args.lr_for or args.batch)
changes = args.cosine or args.warm_up or times != 1  # the learning rate, from update to update
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: (
    rate(args.lr, times, update, args.warm_up) / args.lr
    * ((1 + math.cos(math.pi * update / (args.epochs * updates))) / 2 if args.cosine else 1)))


def batch(dataset, indices):
    """Images [B, 3, 32, 32] between -1 and 1, in torch's default dtype, and labels [B], on the device."""
    pixels = dataset.images[indices].to(device, torch.get_default_dtype())
    return pixels / 127.5 - 1, dataset.labels[indices].to(device)


torch.manual_seed(rank)  # the weights are made: from here on each rank draws numbers of its own
first, done, losses = 0, 0, []  # the epoch, its updates so far and their losses
if args.checkpoint:
    kept = Checkpoint(args.checkpoint, model, optimizer, scheduler, replace)
    if os.path.exists(args.checkpoint):
        first, done, losses = kept.restore()
        if rank == 0:
            print(f"going on in epoch {first} after update {done} of {updates}", flush=True)
signals = []  # whoever wants the machine back sends SIGUSR1 first
signal.signal(signal.SIGUSR1, lambda *_: signals.append(True))

share = args.batch // world_size  # images per update of this rank
for epoch in range(first, args.epochs):
    drawn = torch.get_rng_state()  # a shard() may seed torch's own generator
    mine = shard(args.images, rank, world_size, epoch + 1000 * args.seed)
    torch.set_rng_state(drawn)
    start = now(device)
    for step in range(done, updates):
        images, labels = batch(train_set, mine[step * share:(step + 1) * share])
        if args.flip:
            images = torch.where(torch.rand(len(images), 1, 1, 1).to(device) < 0.5, images.flip(3), images)
        optimizer.zero_grad()
        losses.append(backward(parallel, cross_entropy, images, labels, args.micro_batches))
        parallel.finish()  # waits until the mean gradients are there
        if noise:
            noise.after()
        optimizer.step()
        if changes:
            scheduler.step()
        update = epoch * updates + step + 1
        stop = args.checkpoint and (bool(signals) if world_size == 1 else must_stop(bool(signals), update))
        if args.checkpoint and (stop or update % args.every == 0):
            kept.save(epoch, step + 1, losses)
        if stop:
            print(f"rank {rank} stops after update {update}", flush=True)
            leave()
            sys.exit(75)  # as sysexits.h has it: try again later
    seconds = now(device) - start
    loss = torch.stack(losses).mean() / world_size
    all_reduce(loss)
    accuracy = evaluate(model, lambda indices: batch(test_set, indices), 1000, rank, world_size, all_reduce)
    scale = f", noise scale {noise.scale(share, all_reduce):.0f}" if noise else ""
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}, "
              f"{1000 * seconds / max(1, updates - done):.1f} ms per update{scale}", flush=True)
    if accuracy >= args.until:  # the same on all ranks
        break
    done, losses = 0, []

# Are all ranks still one model? A rank with other weights has another sum.
sums = torch.zeros(world_size, dtype=torch.float64, device=device)
sums[rank] = sum(parameter.detach().double().abs().sum() for parameter in model.parameters())
all_reduce(sums)
if (sums - sums[0]).abs().max() > 0:
    sys.exit(f"The ranks are not one model. The sums of their weights are {sums.tolist()}.")
if args.save:
    save(parallel, args.save)
leave()
