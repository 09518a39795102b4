# ---
# jupyter:
#   course:
#     minutes: 60
#     quick:
#       parameters:
#         epochs: 1
#         images: 1152
#         ranks: 4
#       seconds: 40
#     seconds: 75
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · Who sees which image
#
# **The question.** Many ranks train on one set of images, and no rank tells another one which images it takes. Who sees
# which image? And who counts the right answers?
#
# **At the end** your program has two more parts of your own, `mine/shard.py` and `mine/evaluate.py`. With them two and
# three ranks train what one process trains, and print the accuracy that one process prints. You show it in float64,
# where rounding does not reach the printed digits.
#
# **You will be able to**
#
# - say which rank sees which image in which step, and why all ranks agree on it;
# - set up `DistributedSampler`, loader and epochs, for one process and for many;
# - say what padding repeats and what dropping leaves out;
# - evaluate on many ranks so that each image counts once.
#
# **You need** [lesson 03](03_processes_and_ranks.ipynb) for ranks and [lesson 04](04_collectives.ipynb) for
# `all_reduce`.
#
# **Time.** About 60 minutes for you, 2 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler

from course import one_process
from lessons.l05_distributed_sampler import check, program, show
from trainer import data

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
ranks = 8  # that wait for cells
images = 6144  # of the training
epochs = 3
test_images = 97  # one more than 12 × 8

# %% [markdown]
# ## What your program asks
#
# Two functions of your program decide which images are seen. These lines call them:

# %%
# !grep -nE "shard\(|mine\[|evaluate\(" mine/train.py

# %% [markdown]
# `shard` gives a rank the indices of its images, for one epoch. In each step the rank takes the next `share` of them:
# the global batch divided by the number of ranks. After the epoch `evaluate` computes the accuracy on the first 1,000
# test images. So far both are the course's. Now you write them.
#
# ## Which items does a rank get?
#
# The images that one rank sees are its **shard**. Two ranks train what one process trains if in each step they see,
# together, the images that one process sees in that step. So `shard` has a contract:
#
# - The k-th shares of all ranks are, together, the k-th batch of one process. This holds for every batch size.
# - Each epoch has another order.
# - No rank asks another one.
#
# ### Exercise 1: your shard
#
# The `n` images have the indices 0 to `n - 1`. Return the indices of this rank in this epoch, a list. Shuffle with
# `torch.randperm`. Where the number of ranks does not divide `n`, you decide what happens to the rest. Do not use
# `DistributedSampler`: you will compare your function with it.

# %%
# %%mine shard.py
import torch


def shard(n, rank, world_size, epoch):
    raise NotImplementedError


# %%
check.shard("mine/shard.py")
# check.shard.hint()
# check.shard.solution()

# %% [markdown]
# The cells below use your function. Until you have written it, they use the course's. Here are the shards of two ranks,
# along the order of one process:

# %%
shard, _ = program.part("shard")
one_process_order = shard(20, 0, 1, epoch=0)
show.sampler_map([shard(20, rank, 2, epoch=0) for rank in range(2)], 20, "20 items on two ranks",
                 order=one_process_order)
lesson.figure("A column is an item, and a cell says when its rank sees it. The ranks take turns along the order.")

# %% [markdown]
# The shards are **strides**, not blocks: the order is dealt like cards. Take a global batch of 10. Each rank takes the
# next 5 items of its shard, and together these are the next 10 of one process:

# %%
rows = []
for step in range(2):
    shares = [shard(20, rank, 2, epoch=0)[5 * step:5 * step + 5] for rank in range(2)]
    batch = one_process_order[10 * step:10 * step + 10]
    rows.append({"step": step, "rank 0": shares[0], "rank 1": shares[1], "one process": batch,
                 "same items": sorted(shares[0] + shares[1]) == sorted(batch)})
lesson.table(rows)

# %% [markdown]
# ## Shuffled from a seed
#
# The ranks have sent nothing, and yet they agree. Each of them shuffles **all** images, with a random generator that
# begins from the same seed. So all ranks have the same order, and each takes its strides.
#
# **Predict.** Now let each of 8 ranks shuffle 1,000 images from a seed of its own, and take its strides. How many
# images are seen by no rank?

# %%
my_unseen = None  # images

# %% [markdown]
# Try it with live ranks. They need some seconds to start.

# %%
lesson.live_ranks(ranks)

# %%
# %%px
from collections import Counter

import torch
import torch.distributed as dist

from lessons.l05_distributed_sampler.program import part

rank, ranks = dist.get_rank(), dist.get_world_size()


def seen_by(mine):
    """{number of ranks: images that so many ranks see}"""
    times = torch.zeros(1000)
    times[mine] = 1
    dist.all_reduce(times)
    return dict(sorted(Counter(times.int().tolist()).items()))


own = seen_by(torch.randperm(1000)[rank::ranks])  # a new process has a seed of its own
shard, whose = part("shard")
dealt = seen_by(shard(1000, rank, ranks, epoch=0))
if rank == 0:
    print("seeds of their own:", own)
    print(f"shard of your program ({whose}):", dealt)

# %%
lesson.predicted(my_unseen, 1000 * (1 - 1 / ranks) ** ranks, "images, on average", what="images never drawn")

# %% [markdown]
# Rank 0 prints how many images no rank sees, how many one rank sees, and so on. With seeds of their own the ranks miss
# about a third of the images, and see others more than once. Nothing warns you, since every shard has the right length.
#
# ## `DistributedSampler` beside your shard
#
# In PyTorch
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
# does this job. It gets the number of ranks and the rank, or asks the process group for both. Index for index:

# %%
rows = []
for epoch in range(2):
    for rank in range(2):
        sampler = DistributedSampler(range(20), num_replicas=2, rank=rank)
        sampler.set_epoch(epoch)
        mine, theirs = shard(20, rank, 2, epoch), list(sampler)
        rows.append({"epoch": epoch, "rank": rank, "shard": mine, "DistributedSampler": theirs, "same": mine == theirs})
lesson.table(rows)


# %% [markdown]
# The sampler shuffles with `torch.randperm` and a generator whose seed is `seed + epoch`. The argument `seed` is 0
# unless you say otherwise. If your generator begins with the epoch, all indices agree. If your shuffle is another one,
# the order differs, and the rule is the same: all ranks deal one order.
#
# `seed + epoch` has a consequence that few expect. Two trainings with the seeds 0 and 1 do not have different orders
# throughout. The second training begins with the order of the first one's epoch 1:

# %%
def dealt(n, ranks, epoch=0, **options):
    """The items of each rank, as DistributedSampler deals them."""
    samplers = [DistributedSampler(range(n), ranks, rank, **options) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


print(dealt(20, 2, epoch=1, seed=0) == dealt(20, 2, epoch=0, seed=1))

# %% [markdown]
# `shuffle=False` leaves the order at 0, 1, 2 and so on. Now the strides are plain to see:

# %%
dealt(20, 2, shuffle=False)

# %% [markdown]
# ## `set_epoch`
#
# Your `shard` gets the epoch from the program. The sampler does not know it. `sampler.set_epoch(epoch)` tells it, at
# the start of each epoch. If you forget the call, no error reminds you.
#
# **Predict.** Rank 0 of 2 trains for 6 epochs on 20 items, and nobody calls `set_epoch`. How many *different* items has
# it seen?

# %%
my_seen = None  # different items

# %%
called = {epoch: dealt(20, 2, epoch) for epoch in range(6)}
samplers = [DistributedSampler(range(20), 2, rank) for rank in range(2)]
forgotten = {epoch: [list(sampler) for sampler in samplers] for epoch in range(6)}
lesson.predicted(my_seen, len(set().union(*(of_ranks[0] for of_ranks in forgotten.values()))), "items",
                 what="items seen without set_epoch")

# %%
show.sampler_map(called, 20, title="set_epoch called")
show.sampler_map(forgotten, 20, title="set_epoch forgotten")
lesson.figure("Above, an item changes its rank and its turn from epoch to epoch. Below, each "
              "column stays as it is: every rank sees the same items in the same order, again and "
              "again.")

# %% [markdown]
# All ranks together still see the whole set, so the loss goes down. The ranks stay one model. One process that forgets
# the call has the same batches, so a comparison with one process does not find the mistake either. To find it, print the
# first indices of two epochs.
#
# ## Sampler and loader
#
# Your program slices a list. Most programs give the sampler to a `DataLoader`. The sampler decides the order, so the
# loader refuses `shuffle=True` beside it:

# %%
items = range(20)
try:
    DataLoader(items, sampler=DistributedSampler(items, 2, rank=0), shuffle=True)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# If you delete the sampler to silence the error, the program runs, and every rank trains on everything. A program for
# one process and for many keeps both cases:

# %%
for sampler in (None, DistributedSampler(items, 2, rank=0)):
    loader = DataLoader(items, batch_size=5, sampler=sampler, shuffle=(sampler is None))
    print(len(loader), "steps:", [batch.tolist() for batch in loader])

# %% [markdown]
# `batch_size` is **per process**, while `--batch` of your program is the **global batch**: batch size × world size.
# With a fixed batch size more ranks make fewer steps per epoch. With the 50,000 images of CIFAR-10:

# %%
rows = []
for world_size in (1, 2, 4, 8):
    sampler = DistributedSampler(range(50_000), world_size, rank=0)
    loader = DataLoader(range(50_000), batch_size=64, sampler=sampler)
    rows.append({"ranks": world_size, "global batch": world_size * 64, "steps per epoch": len(loader)})
lesson.table(rows)

# %% [markdown]
# Fewer steps are fewer updates. To keep the global batch, divide the batch size by the number of ranks. [Lesson
# 09](09_large_batch.ipynb) measures what to do where the global batch grows.
#
# ## When the set does not divide
#
# Take 21 items on 2 ranks, and on 8. How long are the shards? By default the sampler **pads**: the order begins again,
# and some items are dealt twice. With `drop_last=True` it **drops** the items that are left over.

# %%
rows = []
for world_size in (2, 8):
    dealers = {"your shard": [shard(21, rank, world_size, epoch=0) for rank in range(world_size)],
               "padded": dealt(21, world_size), "drop_last=True": dealt(21, world_size, drop_last=True)}
    for name, shards in dealers.items():
        rows.append({"ranks": world_size, "who deals": name, "lengths of the shards": list(map(len, shards)),
                     "items dealt": sum(map(len, shards)), "different items": len(set().union(*shards))})
lesson.table(rows)

# %%
show.sampler_map(dealt(21, 8, shuffle=False), 21, title="21 items on 8 ranks: padded")
show.sampler_map(dealt(21, 8, shuffle=False, drop_last=True), 21, title="drop_last=True: dropped")
lesson.figure("Without shuffle, so that the rest stands at the end. Padded, the last ranks see the first items again "
              "(hatched). Dropped, no rank sees the last items. Either way all shards are equally long.")

# %% [markdown]
# Training needs equally long shards. In each step all ranks take part in an all-reduce, and a rank with one step more
# would wait for the others. Your program takes whole batches only, so in each epoch it leaves out what remains of the
# order. In the next epoch these are other images.
#
# The loader has a `drop_last`, too, with another meaning: it leaves out the last batch of a shard if that batch is not
# full. And with fewer items than ranks, here 3 on 8, dropping leaves nothing at all:

# %%
print([len(mine) for mine in dealt(3, 8)])
print([len(mine) for mine in dealt(3, 8, drop_last=True)])

# %% [markdown]
# With `drop_last=True` there is no step and no error: nothing is trained.
#
# **Predict.** 21 items, and 2 to 8 ranks. Which number of ranks repeats most items? And which leaves out most with
# `drop_last=True`?

# %%
my_worst = None  # [ranks that repeat most, ranks that leave out most]

# %%
repeated = {r: sum(map(len, dealt(21, r))) - 21 for r in range(2, 9)}
left_out = {r: 21 - sum(map(len, dealt(21, r, drop_last=True))) for r in range(2, 9)}
worst = [max(counts, key=counts.get) for counts in (repeated, left_out)]
lesson.predicted(my_worst, worst, "ranks", what="ranks that repeat, and leave out, most")

# %% [markdown]
# Can you change your `shard` so that it pads? Try it on simulated ranks. The page gives you the result as a file for
# `mine/`, and the check of exercise 1 still finds it right if you deal in strides.

# %%
lesson.puzzle("shard")

# %% [markdown]
# ## Evaluation
#
# In training one image more or less hardly matters. An **accuracy** is a count, and it gets published. Whoever reads it
# expects that each test image counts once, on however many ranks.
#
# ### Exercise 2: your evaluate
#
# Return the share of the first `n` test images on which the model is right. Each image is evaluated by one rank, and
# every rank returns the same number. `n` need not be a multiple of `world_size`.
#
# - `batch(indices)` gives the images [B, 3, 32, 32] and the labels [B] of a list of indices.
# - `model(images)` gives logits [B, 10].
# - `all_reduce(tensor)` adds up over the ranks, in place. It is the part that you wrote in lesson 04.

# %%
# %%mine evaluate.py
import torch


@torch.no_grad()
def evaluate(model, batch, n, rank, world_size, all_reduce):
    raise NotImplementedError


# %%
check.evaluate("mine/evaluate.py")
# check.evaluate.hint()
# check.evaluate.solution()

# %% [markdown]
# Now train a model with your program, on two ranks. The line `parts` says whose functions it takes.

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 mine/train.py --images {images} --epochs {epochs} \
#     --save results/live/05_model.pt

# %% [markdown]
# We evaluate this model on a small test set of 97 images, on 1, 2, 3 and 8 live ranks.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.live_ranks(ranks)
test_set = data.get_dataset("auto", verify=False)[1]
network = program.network("results/live/05_model.pt")
torch.save((network, test_set.images[:test_images] / 127.5 - 1, test_set.labels[:test_images]),
           "results/live/05_test.pt")

# %%
# %%px
from functools import partial

import torch
import torch.distributed as dist

from lessons.l05_distributed_sampler.program import part

rank = dist.get_rank()
network, images, labels = torch.load("results/live/05_test.pt", weights_only=False)
(evaluate, whose), accuracies = part("evaluate"), {}


def batch(indices):
    return images[indices], labels[indices]


for ranks in (1, 2, 3, dist.get_world_size()):
    group = dist.new_group(range(ranks))  # of these ranks alone
    if rank < ranks:
        accuracies[ranks] = evaluate(network, batch, len(labels), rank, ranks, partial(dist.all_reduce, group=group))
print({ranks: round(accuracy, 4) for ranks, accuracy in accuracies.items()})

# %% [markdown]
# The number is the same on every rank, and on every number of ranks.
#
# What would other programs print of this model? Many let each rank compute the accuracy of its own images, and rank 0
# prints its own.
#
# **Predict.** Each of 8 ranks evaluates its 12 or 13 images. How many percentage points lie between the highest of the
# eight accuracies and the lowest one?

# %%
my_spread = None  # percentage points

# %%
# %%px
import json
from pathlib import Path

from torch.utils.data import DistributedSampler

with torch.no_grad():
    right = (network(images).argmax(1) == labels).double()  # 1 where the model is right, 0 where it is wrong


def over_ranks(mine):
    """Right answers of all ranks, divided by the images of all ranks."""
    sums = torch.tensor([right[mine].sum(), len(mine)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


own = right[rank::ranks].mean().item()  # without any message
print(f"on my own images: {own:.4f}")
owns = [None] * ranks
dist.all_gather_object(owns, own)
counted = {
    "own": owns, "mean of means": sum(owns) / ranks,
    "padded": over_ranks(list(DistributedSampler(right, ranks, rank, shuffle=False))),
    "dropped": over_ranks(list(DistributedSampler(right, ranks, rank, shuffle=False, drop_last=True))),
    "evaluate": accuracies, "whose": whose, "truth": right.mean().item(), "images": len(right)}
if rank == 0:
    Path("results/live/05_accuracies.json").write_text(json.dumps(counted))

# %%
counted = json.loads(Path("results/live/05_accuracies.json").read_text())
lesson.predicted(my_spread, 100 * (max(counted["own"]) - min(counted["own"])), "points",
                 what="spread of eight accuracies")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.accuracies(counted)
lesson.figure(f"{lesson.some(len(counted['own']), 'rank')} and one model, which is right on "
              f"{100 * counted['truth']:.1f} % of the {test_images} test images. Rank 0 alone would print "
              f"{100 * counted['own'][0]:.1f} %. Only the last row prints what one process prints.")

# %% [markdown]
# - **Each rank, its own images**: rank 0 prints the accuracy on an eighth of the test set.
# - **Mean of the ranks' accuracies**: an image counts more on a rank that has fewer of them.
# - **Padded**: the shards of `DistributedSampler`. Its repeated images count twice.
# - **Dropped**: `drop_last=True`. The images left over do not count.
# - **Your `evaluate`**: unequal shards, and counts that are added up and divided last.
#
# All of CIFAR-10 has 10,000 test images, a multiple of 8. The three rows in the middle would be exact there. The same
# code is slightly wrong with another test set, or on 3 ranks, and few people notice.
#
# The ranks evaluate unequal numbers of images, and yet none waits for ever. The loop calls the model itself, not the
# wrapped one, so it sends nothing. The ranks meet once, after the loop, in `all_reduce`.
#
# ## Your program, once more
#
# Do two and three ranks train what one process trains? In float32 a sum in another order differs in its last bits, and
# training makes such a difference grow. After some updates a digit of the loss may differ, and the model may take one
# test image for another class. So `course.one_process` runs your program in float64, on 1, 2 and 3 ranks at the same
# time. It compares the gradients and weights of the first updates.

# %%
options = ["--images", "768", "--batch", "48", "--lr", "0.1", "--epochs", "2"]
answers = one_process.compare("mine/train.py", options, ranks=(2, 3), to_end=True)
print(*answers[1:], sep="\n")
lesson.table(show.same_training(answers))

# %% [markdown]
# The losses and accuracies are the same to the last printed digit. Three ranks do not divide the 1,000 test images, and
# their accuracy is exact all the same. You can ask this of any program that states its global batch:
#
#     python -m course.one_process mine/train.py --images 768 --batch 48
#
# ## For reference
#
# | `DistributedSampler` | what it does |
# |:--|:--|
# | `num_replicas`, `rank` | the number of ranks, and which this is; left out, it asks the process group |
# | `shuffle=True` | shuffles all items with a generator whose seed is `seed + epoch`; the same seed on all ranks |
# | `seed=0` | must be the same on all ranks. Augmentation and dropout need another one on each rank |
# | `drop_last=False` | pads all shards to one length; with `True` it drops the rest |
# | `set_epoch(epoch)` | at the start of each epoch |
#
# **Streams.** A sampler chooses items by number. A stream has no numbers: a compressed file, for instance, can only be
# read from its beginning. Its class is
# [`IterableDataset`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset), and a
# `DataLoader` refuses a sampler for it. Each loader worker of each rank is a **reader** with a copy of the data set, and
# reads all of it: with 8 ranks and 4 loader workers each image comes 32 times per epoch, without an error. [Entry
# 25](../TROUBLESHOOTING.md#25-a-stream-that-every-rank-reads-whole) has a program with the mistake, and its repair.
#
# - Deal the items in `__iter__`, as a sampler does. With W loader workers per rank there are world size × W readers, and
#   a worker's number among them is rank × W + its `id`. In a worker `get_worker_info()` has `id` and `num_workers`.
#   Without workers it is `None`.
# - Ask for the rank in `__init__`, which runs in the rank. A worker that is not forked is in no process group.
# - A reader still goes through the whole source. If that costs too much, deal file names in place of items.
# - A stream has no shuffle. Keep a buffer of items and draw from it at random, from a seed with the epoch in it.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. All ranks shuffle all items from one seed, and take strides. Another epoch needs another seed: `set_epoch`.
# 2. Training wants shards of one length. `DistributedSampler` repeats images for that, or leaves some out.
# 3. Evaluation wants each image once. Add up counts over the ranks, and divide last.
#
# **Next:** [06 · DistributedDataParallel](06_ddp.ipynb). Each rank has its own images and computes its own gradient.
# How does DDP turn these gradients into one?
