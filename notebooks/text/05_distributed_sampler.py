# ---
# jupyter:
#   course:
#     minutes: 65
#     quick:
#       parameters:
#         patience: 2
#         samples: 640
#         stream_steps: 12
#       seconds: 38
#     seconds: 60
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · Who sees which image
#
# **The question.** Many ranks train on one set of images. How do they share it without sending a message? And what
# happens when the number of ranks does not divide it?
#
# **You will be able to**
#
# - say which rank sees which image, and why all ranks agree on it;
# - set up sampler, loader and epochs, for one process and for many;
# - share a stream, which has no sampler, among ranks and their loader workers;
# - say what padding, dropping and `Join` do to the gradient;
# - evaluate on many ranks so that each image counts once.
#
# **You need** [lesson 03](03_processes_and_ranks.ipynb) for ranks and [lesson 04](04_collectives.ipynb) for
# `all_reduce`.
#
# **Time.** About 65 minutes for you, 1 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import math
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler

from trainer import data
from trainer import models
import utils
from lessons.l05_distributed_sampler import check, show, uneven_shards

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
patience = 3  # seconds that a rank waits until it gives up
samples = 10_000  # training images of the model that we evaluate
test_images = 97  # its test images: one more than 12 × 8
stream_steps = 72  # of the training with a stream: a multiple of 6

# %% [markdown]
# ## Which items does a rank get?
#
# The images that one rank sees are its **shard**.
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
# chooses them. Usually it asks the process group for the rank and the number of ranks. Here we name both, so that this
# one notebook can ask for every rank. Our items are the numbers 0 to 19.
#
# **Predict.** 20 items, 2 ranks, no shuffle. Which items does rank 1 get?

# %%
my_items = None  # a list of ten numbers

# %%
items = range(20)
rank_0 = list(DistributedSampler(items, num_replicas=2, rank=0, shuffle=False))
rank_1 = list(DistributedSampler(items, num_replicas=2, rank=1, shuffle=False))
lesson.predicted(my_items, rank_1)

# %%
show.sampler_map([rank_0, rank_1], 20)
lesson.figure("A column is an item, and a cell says whether its rank sees it 1st, 2nd, and so on. "
              "The ranks take turns along the order.")

# %% [markdown]
# The sampler gives no blocks, but **strides**. It deals the items like cards: one to each rank in turn.
#
# Why? Look at one training step. Each rank takes a batch of 5 items. Together these are the next 10 items of the order:
# the items that one process with a batch of 10 takes.

# %%
loaders = [DataLoader(items, batch_size=5, sampler=shard) for shard in (rank_0, rank_1)]
batches = zip(*loaders, DataLoader(items, batch_size=10), strict=True)
lesson.table([{"rank 0": first.tolist(), "rank 1": second.tolist(), "one process": whole.tolist()}
              for first, second, whole in batches])

# %% [markdown]
# ## Shuffled from a seed
#
# By default the sampler shuffles. The ranks do not send each other the order, and yet the ranks see every item once.
# How?
#
# Each rank shuffles the **whole** set with a random generator of its own. The generator's seed is `seed + epoch`, the
# same on every rank, and so the order is the same, too. Then each rank takes its strides. By hand:

# %%
order = torch.randperm(20, generator=torch.Generator().manual_seed(0)).tolist()
print(order[1::2])
print(list(DistributedSampler(items, 2, rank=1, seed=0)))

# %% [markdown]
# So the seed must be the same on all ranks. If each rank had a seed of its own, each would take its strides from
# another order. Of 1,000 items on 4 ranks each rank sees a quarter. Then about (3/4)⁴ = 32 % of the items would be seen
# by no rank. Counted:

# %%
seen = {item for r in range(4) for item in DistributedSampler(range(1000), 4, rank=r, seed=r)}
1000 - len(seen)

# %% [markdown]
# ## `set_epoch`
#
# The sampler does not know the number of the epoch. `sampler.set_epoch(epoch)` sets it. If you forget the call, no
# error tells you.
#
# **Predict.** Rank 0 of 2 trains for 6 epochs on 20 items, and nobody calls `set_epoch`. How many *different* items has
# it seen?

# %%
my_seen = None  # different items


# %%
def dealt(n, ranks, epoch=0, **options):
    samplers = [DistributedSampler(range(n), ranks, rank, **options) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


called = {epoch: dealt(20, 2, epoch) for epoch in range(6)}
forgotten = {epoch: dealt(20, 2) for epoch in range(6)}
lesson.predicted(my_seen, len(set().union(*(shards[0] for shards in forgotten.values()))), "items")

# %%
show.sampler_map(called, 20, title="set_epoch called")
show.sampler_map(forgotten, 20, title="set_epoch forgotten")
lesson.figure("Above, an item changes its rank and its turn from epoch to epoch. Below, each "
              "column stays as it is: every rank sees the same items in the same order, again and "
              "again.")

# %% [markdown]
# All ranks together still see the whole set, so the loss goes down and nothing warns you. But the same images always
# stand in the same batch.
#
# `main.py` calls `set_epoch` at the start of each epoch. Its sampler is `Shard`, a DistributedSampler that can also
# begin in the middle of an epoch, for a run that continues from a checkpoint. (The order needs the same seed on all
# ranks. Augmentation and dropout need a different seed on each rank: there `main.py` adds the rank.)

# %%
# !grep -n "sampler" main.py

# %% [markdown]
# ## Sampler and loader
#
# The sampler decides the order. So a `DataLoader` refuses `shuffle=True` beside a sampler:

# %%
try:
    DataLoader(items, sampler=DistributedSampler(items, 2, rank=0), shuffle=True)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# A program that runs with one process or with many needs both cases. People usually write them so:

# %%
for sampler in (None, DistributedSampler(items, 2, rank=0)):
    loader = DataLoader(items, batch_size=5, sampler=sampler, shuffle=(sampler is None))
    print(len(loader), "steps:", [batch.tolist() for batch in loader])

# %% [markdown]
# Both are shuffled. Whoever removes the sampler because of the error gets a program that runs: every rank trains on the
# whole set.
#
# `batch_size` is **per process**. A step of all ranks takes the **global batch**: batch size × world size. So more
# ranks make fewer steps in an epoch. With the 50,000 images of CIFAR-10:

# %%
rows = []
for ranks in (1, 2, 4, 8):
    sampler = DistributedSampler(range(50_000), ranks, rank=0)
    loader = DataLoader(range(50_000), batch_size=64, sampler=sampler)
    rows.append({"ranks": ranks, "global batch": ranks * 64, "steps per epoch": len(loader)})
lesson.table(rows)

# %% [markdown]
# Eight ranks update the weights less often, each time after more images. To keep the global batch, divide the batch
# size by the number of ranks. If the global batch grows, the learning rate may have to grow, too. [Lesson
# 09](09_large_batch.ipynb) measures by how much, for several optimizers.
#
# ## When the set does not divide
#
# With 21 items on 2 ranks one item is left over. By default the sampler **pads**: the order begins again, and the ranks
# see some items twice. With `drop_last=True` it **drops** the items that are left over.

# %%
show.sampler_map(dealt(21, 2, shuffle=False), 21, title="21 items on 2 ranks: padded")
show.sampler_map(dealt(21, 2, shuffle=False, drop_last=True), 21, title="drop_last=True: dropped")
lesson.figure("Padded, both ranks see item 0 (hatched the second time). Dropped, no rank sees "
              "item 20. Either way both shards are equally long.")

# %% [markdown]
# (With shuffle, the sampler repeats or drops other items in each epoch.) The loader has a `drop_last`, too, with
# another meaning: it leaves out the last batch of a shard if that batch is not full.
#
# What if there are fewer items than ranks? The lengths of the shards for 3 items on 8 ranks:

# %%
print([len(shard) for shard in dealt(3, 8)])
print([len(shard) for shard in dealt(3, 8, drop_last=True)])

# %% [markdown]
# With `drop_last=True` there is no step and no error: nothing is trained.
#
# ### Try it
#
# **Predict.** 21 items, and 2 to 8 ranks. Which number of ranks repeats most items? And which leaves out most with
# `drop_last=True`? Then look for both in the page below. It deals as torch's sampler does.

# %%
my_worst = None  # [ranks that repeat most, ranks that leave out most]

# %%
lesson.interactive("sampler")

# %%
repeated = {r: sum(map(len, dealt(21, r))) - 21 for r in range(2, 9)}
left_out = {r: 21 - sum(map(len, dealt(21, r, drop_last=True))) for r in range(2, 9)}
worst = [max(counts, key=counts.get) for counts in (repeated, left_out)]
lesson.predicted(my_worst, worst, "ranks")


# %% [markdown]
# ### Exercise 1: the shard of a rank
#
# Return the list of items that the sampler gives to this rank, padded and without shuffle. `n` is the number of items,
# and may be smaller than the world size. Do not use the sampler.

# %%
def my_shard(n, rank, world_size):
    raise NotImplementedError


# %%
check.shard(my_shard)
# check.shard.hint()
# check.shard.solution()

# %% [markdown]
# ## A stream
#
# A sampler chooses items by their numbers. A **stream** has no numbers: you can read a compressed file, for instance,
# only from its beginning. PyTorch's class for streams is
# [`IterableDataset`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset). A `DataLoader`
# refuses a sampler for it. The simplest stream:

# %%
lesson.code(check.WholeStream)

# %% [markdown]
# `DataLoader(…, num_workers=2)` starts two processes for each rank. These **loader workers** prepare the next batches
# while the rank computes.
#
# **Predict.** 20 items, 3 ranks, 2 loader workers for each rank. How many items do all ranks together get in one epoch?

# %%
my_reads = None  # items

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node=3 lessons/l05_distributed_sampler/stream_readers.py \
#     --workers 2 --out results/live/05_readers.json
reads = json.loads(Path("results/live/05_readers.json").read_text())
lesson.predicted(my_reads, sum(map(len, reads["readers"])), "items")

# %%
show.sampler_map(reads["readers"], 20, "Every reader reads all", workers=2)
lesson.figure("A row is a loader worker. All cells but those of the first row are hatched: "
              "another worker has read that item already.")

# %% [markdown]
# Each worker is a **reader** with its own copy of the data set. Each reader calls `__iter__` and reads the whole
# stream. There is no error, but the epoch is six times as long ([entry
# 25](../TROUBLESHOOTING.md#25-a-stream-that-every-rank-reads-whole)). What does this do to a training? You will measure
# it as soon as you have written a better stream.
#
# ### Exercise 2: each item once
#
# Write `__iter__` so that all readers together read each item once, for any number of ranks and of loader workers. In a
# worker `get_worker_info()` returns an object with its `id` and `num_workers`. Without workers it returns `None`. The
# check starts 2 and 3 ranks with 0, 1 and 2 loader workers each. Its source has no length and no index.

# %%
# %%writefile results/live/05_stream.py
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, source):
        self.source = source
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        raise NotImplementedError


# %%
check.stream("results/live/05_stream.py")
# check.stream.hint()
# check.stream.solution()

# %% [markdown]
# ## The stream trains
#
# A network trains with your stream, on 3 ranks with 2 loader workers each. (Until your stream is right, ours stands in
# its place, and the picture says so.) A second network trains with `WholeStream`, and a third one with
# `DistributedSampler`, which asks for images by number. All three begin with the same weights and make the same number
# of steps, with 64 images on each rank. If the ranks share well, they see every image once in these steps.
#
# **Predict.** With `WholeStream`, what share of all images is seen?

# %%
my_share = None  # % of the images

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node=3 lessons/l05_distributed_sampler/stream_readers.py \
#     --workers 2 --steps {stream_steps} --yours {check.stream.file} --out results/live/05_stream.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
stream = json.loads(Path("results/live/05_stream.json").read_text())
whole, mine, _ = show.stream_ways(stream).values()
lesson.predicted(my_share, 100 * whole["different"] / whole["images"], "%")
show.sampler_map(stream["readers"], 20, f"Who reads which item ({stream['whose']})", workers=2)
show.stream_curves(stream)
lesson.figure("The readers of the shared stream take turns, so no cell is hatched (above). The "
              "three networks make equally many steps (below): compare the orange line with the "
              "others.")
lesson.table(show.stream_table(stream))

# %% [markdown]
# In each step of `WholeStream` all ranks compute the gradient of the same images, and each loader worker repeats the
# images of the other one. No step is slower, no error comes, and the accuracy rises: here it rises less. (This is one
# run each. The shared stream and `DistributedSampler` show the same images in different orders, and the order alone
# moves the accuracy. So a gap of one or two points between these two says nothing.)
#
# - Every reader still goes through the whole source, and throws away the items of the others. Where this costs too
#   much, let the source be a list of file names: the same lines then share out whole files.
# - The class asks for the rank in `__init__`, which runs in the rank. A loader worker that is not forked (on macOS, for
#   instance) belongs to no process group.
# - Each worker makes batches of its own items, and its last batch may not be full. So the number of steps depends on
#   `num_workers`, too.
# - A stream has no shuffle: keep a buffer of items, and draw from it at random. Its seed needs the epoch. Loader
#   workers with `persistent_workers=True` keep their old copy of the data set: an epoch that you set on the data set
#   does not reach them.
#
# ## Uneven shards
#
# The sampler makes all shards equally long. A stream does not; nor are shards equal if each rank reads files of its
# own. Then the ranks make different numbers of steps.
#
# A small case: 3 ranks share 10 images without padding, and a step takes one image. This is the loop. `ddp_model` is a
# model wrapped in DDP, which lesson [06](06_ddp.ipynb) builds. One fact about it suffices here: its `backward()`
# averages the gradients of the ranks by all-reduces (one, for this small model). `around` is a `with` block: at first
# `nullcontext`, which does nothing, later `Join`:

# %%
lesson.code(uneven_shards.epoch)

# %% [markdown]
# **Predict.** One rank will wait for ever. Which rank is it, and in which of its steps? (The first step is step 1.)

# %%
my_waiting = None  # [rank, step]

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node=3 lessons/l05_distributed_sampler/uneven_shards.py \
#     --timeout {patience} --out results/live/05_uneven.json
results = json.loads(Path("results/live/05_uneven.json").read_text())
lesson.predicted(my_waiting, [*results["uneven"]["ranks"], results["uneven"]["step"]])

# %% [markdown]
# In step 4 rank 0 has an image, and its `backward()` averages gradients with all ranks. But the others have left the
# loop, and no rank answers. The wait ended because this program allows only a few seconds.
#
# This program ends after one epoch. More epochs make it worse: ranks 1 and 2 begin the next epoch, and their first
# `backward()` answers rank 0's fourth. No rank waits, and no message comes. After each epoch the ranks are one step
# further apart, until at the end no rank answers rank 0, or another rank is in a different collective.
#
# There are three repairs: pad, drop, or
# **[`Join`](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html)**. The same
# [program](../lessons/l05_distributed_sampler/uneven_shards.py) tries all three.
#
# Inside `with Join([ddp_model]):` a rank that has no more images stays and answers DDP's all-reduces with zeros.
# `ddp_model.join()` is the same for one model. In the last step only rank 0 has an image, so DDP adds up one gradient
# and zeros. By default DDP then divides by the number of all ranks, 3. With `divide_by_initial_world_size=False` it
# divides by the number of ranks that still have images.
#
# How often does each image count? The program compares the gradient of the ranks with the gradients of the single
# images, and so finds the weight of each image. The normal weight, 1×, is the weight of an image in a full step, in
# which every rank has an image.
#
# **Predict.** Image 9 is alone in the last step. With `divide_by_initial_world_size=False`, is its weight 0, 1, 2 or 3
# times the normal one?

# %%
my_times = None  # times the normal weight

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_times, round(results["Join, False"]["counts"][9], 2), "times")
counts = {name: results[way]["counts"] for way, name in show.ROWS.items()}
counts = {"one process, batches of 3": results["one process"]} | counts
show.counts_map(counts)
lesson.figure("Only in the row of `Join` does every image count once. Orange images count too "
              "much, and × marks an image that never counts.")

# %% [markdown]
# - **Padded**: the images that fill the last step count twice.
# - **Dropped**: the image that is left over never counts.
# - **Join**: each image counts once.
# - **Join, divided by the ranks left**: in the last step one rank is left, and its gradient is divided by 1, not by 3.
#   So its image counts 3 times. One process with batches of 3 does the same: its last batch is one image alone.
#
# What does this do to the averages? The table compares each way with the true mean, in which each of the 10 images
# counts once. The model's weights are the same everywhere. An error is a percentage of the true value. (For gradients
# it is the length of the difference, as a percentage of the length.)

# %%
lesson.table(show.averages(results))

# %% [markdown]
# - Of these four ways, only `Join` with its default has the mean loss **and** the gradient of all 10 images. One image
#   is a large part of ten. But padding never adds more than world size − 1 images, which is little in a large set. So
#   padding is fine for training, and `main.py` pads.
# - *Mean of the ranks' means*: each rank averages its own losses, then we average the ranks. With unequal shards this
#   is not the mean of the images, even with `Join`: an image of a short shard counts more.
#
# `Join` has limits. It answers the collectives of DDP and no others: your own `all_reduce` in the loop, or
# `SyncBatchNorm`, would still wait. (`throw_on_early_termination=True` ends the loop on all ranks, by an exception, as
# soon as one rank has no more images.) It adds small all-reduces to every step. And it does not repair the optimizer: a
# rank without images makes no step, so its momentum differs from the momentum of the others. With momentum or Adam, pad
# or drop.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
plain, momentum = results["apart"]["plain SGD"], results["apart"]["momentum"]
lesson.verdict("One step after an epoch with `Join`, the largest difference of a weight between "
               f"two ranks is **{plain:.2g}** with plain SGD and **{momentum:.2g}** with momentum.")

# %% [markdown]
# At its end `Join` sends the weights of a rank that made every step to all ranks. It does not send that rank's
# momentum.
#
# ### Exercise 3: batches of unequal size
#
# `Join` counts steps, not images. If the ranks' batches differ in size, DDP's average is not the mean over the images.
# Repair it: compute the loss and call `backward()` so that every rank has the gradient of **one process with the images
# of all ranks**. The check starts three ranks with batches of 1, 3 and 5 images.

# %%
# %%writefile results/live/05_backward.py
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def backward(ddp_model, images, labels):
    raise NotImplementedError


# %%
check.gradient("results/live/05_backward.py")
# check.gradient.hint()
# check.gradient.solution()

# %% [markdown]
# ## Evaluation
#
# In training a repeated image is one of thousands. In **evaluation** it counts twice, and makes the accuracy wrong. By
# how much? We train a model on two ranks, and evaluate it on a small test set.

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 main.py --epochs 2 --samples {samples} \
#     --test-samples {test_images} --save-model results/live/05_model.pt

# %% [markdown]
# The model's answer to a test image is right (1) or wrong (0), whichever rank computes it. So this one process can
# evaluate as any number of ranks would.

# %%
test_set = data.get_dataset("auto")[1]
model = models.ConvNet()
model.load_state_dict(torch.load("results/live/05_model.pt", weights_only=True))
with torch.no_grad():
    images, labels = test_set.__getitems__(range(test_images))
    right = (model(images).argmax(1) == labels).double()
print(test_set.name, f"accuracy: {right.mean():.4f}")

# %% [markdown]
# This is the true accuracy. It equals the last `val acc` that `main.py` printed for its two ranks, because `main.py`
# counts each image once. Here are four ways to evaluate on 8 ranks:
#
# - **padded** and **dropped**: the shards of `DistributedSampler`; right answers of all ranks / images of all ranks;
# - **mean of means**: the unequal shards `range(rank, n, 8)`, and the mean of the ranks' accuracies;
# - **exact**: the same unequal shards; right answers of all ranks / images of all ranks.
#
# **Predict.** With padding 8 ranks see 104 images: 7 of the 97 test images come twice. In the worst case the model is
# wrong for these 7 and right for the other 90 (or the other way round). By how many percentage points is the padded
# accuracy then off?

# %%
my_error = None  # percentage points

# %%
padded = sum(dealt(test_images, 8, shuffle=False), [])  # the shards, one after the other
dropped = sum(dealt(test_images, 8, shuffle=False, drop_last=True), [])
shards = [right[rank::8] for rank in range(8)]
accuracies = {
    "padded": right[padded].mean().item(),
    "dropped": right[dropped].mean().item(),
    "mean of means": torch.stack([shard.mean() for shard in shards]).mean().item(),
    "exact": (sum(shard.sum() for shard in shards) / sum(len(shard) for shard in shards)).item(),
}
truth = right.mean().item()
once = 2 * test_images - len(padded)  # images that count once
lesson.predicted(my_error, 100 * (once / test_images - once / len(padded)), "points")
lesson.table([{"way": way, "accuracy": f"{100 * accuracy:.2f} %",
               "points off": f"{100 * (accuracy - truth):+.2f}"}
              for way, accuracy in accuracies.items()])

# %% [markdown]
# Dropping is no repair: it is wrong in another way. If padding repeats d of N images, the accuracy is off by at most (N
# − d)/N − (N − d)/(N + d); if d images are dropped, by at most d/N. And d is at most world size − 1. Dropping leaves
# out the remainder of N / world size, and padding fills up to the next multiple.
#
# In a large test set few people notice. On 8 ranks, for test sets of several sizes:

# %%
rows = []
for n in (test_images, 993, 9_993, 10_000):
    d = -n % 8  # images that padding repeats
    limit = 100 * ((n - d) / n - (n - d) / (n + d))
    rows.append({"test images": f"{n:,}", "seen twice": d,
                 "accuracy off by at most": f"{limit:.2f} points"})
lesson.table(rows)

# %% [markdown]
# CIFAR-10 has 10,000 test images, a multiple of 8. The same code is wrong on a small test set whose size is no multiple
# of the number of ranks.
#
# `main.py` evaluates exactly. Its shard is a plain range, and it adds up sums and counts over the ranks, and divides
# last:

# %%
lesson.code(utils.shard_loader, utils.evaluate)

# %% [markdown]
# These shards are unequal, and no rank hangs. The loop calls the raw model, not DDP, so it has no collective in which a
# rank could wait. The ranks meet after it, in `all_sum`. (If the model has buffers, they also meet before it: see
# [07](07_traps.ipynb).)
#
# ## What to remember
#
# 1. All ranks shuffle with the same seed and take strides; call `set_epoch` in every epoch, and leave `shuffle` to the
#    sampler.
# 2. A stream is shared in `__iter__`, among ranks × loader workers. In DDP every rank takes part in every step, so
#    uneven shards hang, at once or much later: pad, drop, or use `Join`.
# 3. Evaluate with exact shards: add up sums and counts over the ranks, and divide last.
#
# **Next:** [06 · DistributedDataParallel](06_ddp.ipynb). Each rank has its own images and computes its own gradient:
# how does DDP turn these gradients into one?
