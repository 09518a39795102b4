"""Exercises of lesson 05. What is right comes from PyTorch's own sampler and loader, not from a copy of their rules."""

import math
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses


def sampler_shard(n, rank, world_size):
    return list(DistributedSampler(range(n), world_size, rank, shuffle=False))


# Exercise 1: the shard of a rank
def my_shard(n, rank, world_size):
    total = math.ceil(n / world_size) * world_size  # all shards are equally long
    return [place % n for place in range(rank, total, world_size)]  # % n: padding begins again at item 0


def blocks(n, rank, world_size):
    size = math.ceil(n / world_size)
    return [place % n for place in range(rank * size, (rank + 1) * size)]


@exercise(
    solution=my_shard,
    hint="A range has a step. Think of the whole order, made longer until world_size divides it: total = "
    "ceil(n / world_size) * world_size. Rank r takes the places r, r + world_size, r + 2 * world_size ... below total. "
    "Which item stands at a place beyond n?",
    mistakes={
        "These are blocks: neighbours stay together. The sampler deals like cards, one item to each rank in turn, so "
        "that a step of all ranks takes the next items of the order.": blocks,
        "The set is smaller than the world, and one more round through it does not suffice: go round as often as it "
        "takes.": lambda n, rank, world_size: [*range(n), *range(min(n, -n % world_size))][rank::world_size],
        "The strides are right, but the shards are not equally long. A rank with one step less would leave the others "
        "waiting in an all-reduce: pad.": lambda n, rank, world_size: range(rank, n, world_size),
        "You padded with the last item of the order. The padding begins again at the first.":
            lambda n, rank, world_size: [min(place, n - 1) for place in
                                         range(rank, math.ceil(n / world_size) * world_size, world_size)],
        "You dropped what is left over, as drop_last=True does. The default pads.":
            lambda n, rank, world_size: range(rank, n // world_size * world_size, world_size),
    },
)
def shard(attempt):
    """Your shards are those of DistributedSampler for every set and world size tried: strided, all of one length,
    padded from the first item on, and for sets smaller than the world too."""
    cases = [(n, rank, world_size) for n, world_size in [(20, 2), (21, 2), (10, 1), (7, 4), (3, 8), (1, 3)]
             for rank in range(world_size)]
    for miss in misses(shard, attempt, cases, sampler_shard, lambda items: [int(item) for item in items]):
        only_the_last = len(miss.got) == len(miss.right) and miss.got[:-1] == miss.right[:-1]
        miss.tell("With n={n}, rank={rank}, world_size={world_size} you gave {got}, the sampler gives {right}.",
                  "The length is right. The padding begins again at the first item of the order." * only_the_last)


# Exercise 2: an order for each epoch
def my_order(n, seed, epoch, rank):
    generator = torch.Generator().manual_seed(seed + epoch)  # the rank is left out: all ranks need one order
    return torch.randperm(n, generator=generator).tolist()


def order_that_reseeds(n, seed, epoch, rank):
    torch.manual_seed(seed + epoch)
    return torch.randperm(n).tolist()


@exercise(
    solution=my_order,
    hint="torch.randperm takes generator=torch.Generator().manual_seed(number). The number must depend on seed and "
    "epoch, and on nothing that differs from rank to rank.",
    mistakes={
        "the seed without the epoch": lambda n, seed, epoch, rank: my_order(n, seed, 0, rank),
        "a different seed on each rank": lambda n, seed, epoch, rank: my_order(n, seed, epoch + rank, rank),
        "no seed": lambda n, seed, epoch, rank: torch.randperm(n).tolist(),
        "the global generator": order_that_reseeds,
    },
)
def order(attempt):
    """Your order is a permutation that all ranks agree on without a message, that any run can repeat, and that is new
    in each epoch. It leaves the global random generators alone."""
    n = 50

    def ask(seed=0, epoch=0, rank=0):
        got = [int(item) for item in attempt(n, seed, epoch, rank)]
        if sorted(got) != list(range(n)):
            raise Wrong(f"This is no order of the items 0 to {n - 1}, each once: {got}.")
        return got

    def global_generators():
        return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())

    with torch.random.fork_rng(devices=[]):  # a wrong answer must not change what the notebook draws later
        first = ask()
        if first == list(range(n)):
            raise Wrong("The items are in their first order: nothing is shuffled.")
        if ask() != first:
            raise Wrong("Called twice with the same arguments it gives two orders. Ranks do not talk to each other "
                        "about the order, so each must compute the same one: from the seed.")
        if any(ask(epoch=epoch, rank=1) != ask(epoch=epoch) for epoch in (0, 1)):
            raise Wrong("Rank 0 and rank 1 have different orders. Each takes its strides from its own, so that some "
                        "items are seen twice and others by nobody. The seed must be the same on all ranks.")
        if ask(epoch=1) == first:
            raise Wrong("Epoch 1 has the order of epoch 0: this is what happens when set_epoch is forgotten. The "
                        "epoch must change the seed.")
        if ask(seed=5) == first:
            raise Wrong("Seed 5 gives the order of seed 0: the seed is not used.")
        before = global_generators()
        ask(epoch=2)
        if global_generators() != before:
            raise Wrong("The order is right, but a global random generator was changed. Dropout and augmentation draw "
                        "from it, and would repeat their numbers after each shuffle. Use a generator of your own.")


# Exercise 3: steps an epoch
def my_steps(n, world_size, batch_size, drop_last):
    if drop_last:
        return n // world_size // batch_size
    return math.ceil(math.ceil(n / world_size) / batch_size)


@exercise(
    solution=my_steps,
    hint="First how many items a rank gets, then how many batches that makes. Without drop_last both are rounded up "
    "(the shard is padded, the last batch is small), with it both are rounded down.",
    mistakes={
        "This is the count of one process. Each rank has only its shard of the items.":
            lambda n, world_size, *others: my_steps(n, 1, *others),
        "It is rounded down. Without drop_last what is left over makes a smaller batch.":
            lambda n, world_size, batch_size, drop_last: n // world_size // batch_size,
        "You took padded shards. The sampler has drop_last, too: its shards are shorter.":
            lambda n, world_size, *others: my_steps(math.ceil(n / world_size) * world_size, world_size, *others),
        "It is rounded up. With drop_last what is left over is not used.":
            lambda n, world_size, batch_size, drop_last: my_steps(n, world_size, batch_size, False),
    },
)
def steps(attempt):
    """Your count is the length of the DataLoader for every set, world size and batch size tried, with drop_last and
    without. All ranks make this many steps: none has to wait for a step that another does not make."""
    def length(n, world_size, batch_size, drop_last):
        sampler = DistributedSampler(range(n), world_size, 0, drop_last=drop_last)
        return len(DataLoader(range(n), batch_size, sampler=sampler, drop_last=drop_last))

    sizes = [(50_000, 8, 64), (40, 2, 5), (21, 2, 4), (10_001, 8, 100), (3, 8, 2), (43, 4, 11)]
    cases = [(*size, drop_last) for size in sizes for drop_last in (False, True)]
    for miss in misses(steps, attempt, cases, length, exactly):
        miss.tell("With n={n}, world_size={world_size}, batch_size={batch_size}, drop_last={drop_last} you gave {got}, "
                  "and the loader makes {right}.")


# Exercise 4: exact accuracy from padded shards
def my_accuracy(n, shards):
    hits = images = 0
    for rank, right in enumerate(shards):
        mine = len(range(rank, n, len(shards)))  # without padding; the padding stands at the end
        hits += sum(right[:mine])
        images += mine
    return hits / images  # divided once, at the end


def mean_of_means(n, shards):
    real = [right[: len(range(rank, n, len(shards)))] for rank, right in enumerate(shards)]
    return sum(sum(right) / len(right) for right in real if right) / sum(map(bool, real))


def longest_cut_off(n, shards):
    size = n // len(shards)
    return sum(sum(right[:size]) for right in shards) / (size * len(shards)) if size else 0.0


def each_item_once(n, shards):
    """What is right: an item's padding says of it what the item says."""
    ranks = len(shards)
    hits = {item: hit for rank, right in enumerate(shards)
            for item, hit in zip(sampler_shard(n, rank, ranks), right, strict=True)}
    return sum(hits.values()) / n


@exercise(
    solution=my_accuracy,
    hint="Rank r has the real items r, r + world_size, r + 2 * world_size ... below n: len(range(r, n, world_size)) of "
    "them. What its shard holds beyond that is padding. Add hits and images over the ranks, and divide once.",
    mistakes={
        "Here the padding is counted: some items count twice. (The mean of the ranks' accuracies has the same fault: "
        "padded shards are equally long.)": lambda n, shards: sum(map(sum, shards)) / sum(map(len, shards)),
        "This is the mean of the ranks' accuracies. Without padding the shards are not equally long, and an item in a "
        "short one weighs more. Add hits and images, then divide.": mean_of_means,
        "Here hits of the padding are counted, but n leaves it out. This can come to more than 1.":
            lambda n, shards: sum(map(sum, shards)) / n,
        "This is rank 0's accuracy, on its own shard. It says nothing of the others' images.":
            lambda n, shards: sum(shards[0]) / len(shards[0]),
        "You cut off the end of all shards in a row. But the padding stands at the end of each shard that has one: "
        "strides deal it to several ranks.": lambda n, shards: sum(sum(shards, [])[:n]) / n,
        "You cut every shard to one length. Some lose a real item by that, as with drop_last.": longest_cut_off,
    },
)
def accuracy(attempt):
    """Your accuracy is the true one on every case tried, although shards were padded: each item counts once, and sums
    are added before anything is divided."""
    sets = [(4, [0, 0, 1, 0, 1, 1, 1, 1, 0])]  # all typical mistakes come to different values here
    sets += [(w, [int(i % 5 in (0, 3)) for i in range(n)]) for n, w in [(20, 2), (21, 2), (97, 8), (10, 1), (3, 8)]]
    cases = [(len(right), [[bool(right[item]) for item in sampler_shard(len(right), rank, world_size)]
                           for rank in range(world_size)]) for world_size, right in sets]
    for miss in misses(accuracy, attempt, cases, each_item_once):
        n, shards = miss.asked
        miss.tell("With {n} items on {ranks} ranks you gave {got:.4f}; the truth is {hits}/{n} = {right:.4f}.",
                  ranks=len(shards), hits=round(n * miss.right))
