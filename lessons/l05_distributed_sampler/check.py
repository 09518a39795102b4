"""Exercises of lesson 05. What is right comes from PyTorch's own sampler, or from one process with all images."""

import copy
import math
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course.exercise import Case, Wrong, drawn, drawn_one, exercise, generator_seed
from course.on_ranks import exercise_on_ranks


# Exercise 1: the shard of a rank
def my_shard(n, rank, world_size):
    total = math.ceil(n / world_size) * world_size  # all shards are equally long
    return [place % n for place in range(rank, total, world_size)]  # % n: padding begins again at item 0


def blocks(n, rank, world_size):
    size = math.ceil(n / world_size)
    return [place % n for place in range(rank * size, (rank + 1) * size)]


def padded_once(n, rank, world_size):
    return [*range(n), *range(min(n, -n % world_size))][rank::world_size]


def not_padded(n, rank, world_size):
    return list(range(rank, n, world_size))


def padded_with_the_last(n, rank, world_size):
    return [min(place, n - 1) for place in range(rank, math.ceil(n / world_size) * world_size, world_size)]


def last_dropped(n, rank, world_size):
    return list(range(rank, n // world_size * world_size, world_size))


def sampler_shard(n, rank, world_size):
    return list(DistributedSampler(range(n), world_size, rank, shuffle=False))


def refuse(*args, **kwargs):
    raise Wrong("Your function asks the sampler, and the exercise is to do without it. A range with a step suffices.")


@exercise(
    solution=my_shard,
    hint="A range has a step. Think of the whole order, made longer until world_size divides it: total = "
    "ceil(n / world_size) * world_size. Rank r takes the places r, r + world_size, r + 2 * world_size ... below total. "
    "Which item stands at a place beyond n?",
    mistakes={
        "These are blocks: neighbours stay together. The sampler deals like cards, one item to each rank in turn, so "
        "that a step of all ranks takes the next items of the order.": blocks,
        "The set is smaller than the world, and one more round through it does not suffice: go round as often as it "
        "takes.": padded_once,
        "The strides are right, but the shards are not equally long. A rank with one step less would leave the others "
        "waiting in an all-reduce: pad.": not_padded,
        "You padded with the last item of the order. The padding begins again at the first.": padded_with_the_last,
        "You dropped what is left over, as drop_last=True does. The default pads.": last_dropped,
    },
)
def shard(answer):
    """Your shards are those of DistributedSampler for every set and world size tried: strided, all of one length,
    padded from the first item on, and for sets smaller than the world too."""
    sizes = drawn([(20, 2), (21, 2), (10, 1), (7, 4), (3, 8), (1, 3)],
                  lambda random: (random.randint(22, 60), random.randint(2, 9)))
    for n, world_size in sizes:
        for rank in range(world_size):
            right = sampler_shard(n, rank, world_size)
            with mock.patch.object(DistributedSampler, "__init__", refuse):
                items = answer(n, rank, world_size)
            if items is None:
                raise Wrong("Your function returned None. Is its return missing?")
            got = [int(item) for item in items]
            yield Case(got, right, f"With n={n}, rank={rank}, world_size={world_size} you gave {got}; the sampler "
                                   f"gives {right}.")


# Exercise 2: batches of unequal size
def backward(ddp_model, images, labels):
    count = torch.tensor(float(len(labels)), device=images.device)
    dist.all_reduce(count)  # images of all ranks
    loss = cross_entropy(ddp_model(images), labels, reduction="sum")
    (loss * dist.get_world_size() / count).backward()  # DDP divides by the world size


def mean_of_own(ddp_model, images, labels):
    cross_entropy(ddp_model(images), labels).backward()


def without_world_size(ddp_model, images, labels):
    count = torch.tensor(float(len(labels)), device=images.device)
    dist.all_reduce(count)
    (cross_entropy(ddp_model(images), labels, reduction="sum") / count).backward()


def only_summed(ddp_model, images, labels):
    cross_entropy(ddp_model(images), labels, reduction="sum").backward()


def of_the_raw_model(ddp_model, images, labels):
    mean_of_own(ddp_model.module, images, labels)


def cut_to_the_shortest(ddp_model, images, labels):
    shortest = torch.tensor(len(labels))
    dist.all_reduce(shortest, op=dist.ReduceOp.MIN)
    mean_of_own(ddp_model, images[:shortest], labels[:shortest])


def batch_sizes(ranks):
    """Images of each rank's batch, no two alike."""
    return drawn_one([1 + 2 * rank for rank in range(ranks)], lambda random: random.sample(range(1, 13), ranks))


def measure_backward(function, context):
    """The gradient that it leaves, and that of one process with the images of all ranks."""
    sizes = batch_sizes(context.world_size)
    generator = torch.Generator().manual_seed(generator_seed())
    inputs = torch.randn(sum(sizes), 4, generator=generator)
    labels = torch.randint(3, (sum(sizes),), generator=generator)
    torch.manual_seed(0)
    model, rows = nn.Linear(4, 3), []
    alone = copy.deepcopy(model)
    cross_entropy(alone(inputs), labels).backward()
    model.register_forward_pre_hook(lambda _, arguments: rows.extend(map(len, arguments)))
    function(DistributedDataParallel(model), inputs.split(sizes)[context.rank], labels.split(sizes)[context.rank])
    if model.weight.grad is None:
        raise Wrong("After your function the weights have no gradient. Did you call backward() on the loss?")
    return {"images": sum(rows), "batch": sizes[context.rank], "gradient": model.weight.grad.flatten().tolist(),
            "of one process": alone.weight.grad.flatten().tolist()}


@exercise_on_ranks(
    measure_backward,
    solution=backward,
    hint="DDP adds up the ranks' gradients and divides by the world size. So which number must each rank multiply the "
    "sum of its losses with? It needs the number of images of all ranks: an all-reduce of len(labels).",
    mistakes={
        "It is the mean of the ranks' means: an image in a small batch counts more. Begin with the sum of the losses, "
        "and divide by a number that is the same on all ranks.": mean_of_own,
        "It is too small by a factor of the world size. You have divided by all images, and then DDP has divided by "
        "the world size.": without_world_size,
        "You have the sum over all images, divided by the world size, which is DDP's part. What turns a sum over all "
        "images into their mean?": only_summed,
        "Each rank has the gradient of its own batch: nothing was averaged. Call ddp_model, not ddp_model.module.":
            of_the_raw_model,
        "You cut every batch to the shortest.": cut_to_the_shortest,
    },
)
def gradient(ranks):
    """Every rank has the gradient of one process with the images of all ranks: each image counts once, although the
    batches are unequal."""
    for rank, measured in enumerate(ranks):
        yield Case(measured["images"], measured["batch"],
                   f"On rank {rank} the batch has {measured['batch']} images, and the model saw {measured['images']}. "
                   "Each image must be seen, and once.")
    sizes = ", ".join(str(measured["batch"]) for measured in ranks)
    for measured in ranks:
        yield Case(measured["gradient"], measured["of one process"],
                   f"The ranks have batches of {sizes} images, and your gradient is not that of one process with all "
                   f"{sum(measured['batch'] for measured in ranks)}.", rel_tol=1e-4)


# Exercise 3: exact accuracy from padded shards
def accuracy(right, n):
    mine = len(range(dist.get_rank(), n, dist.get_world_size()))  # without padding, which stands at the end
    sums = torch.tensor([sum(right[:mine]), mine], dtype=torch.float64)  # with NCCL also device=…
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()  # divided once, at the end


def summed(*values):
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def with_padding(right, n):
    hits, images = summed(sum(right), len(right))
    return hits / images


def padding_among_the_hits(right, n):
    return summed(sum(right))[0] / n


def without_padding(right, n):
    return right[:len(range(dist.get_rank(), n, dist.get_world_size()))]


def mean_of_means(right, n):
    mine = without_padding(right, n)
    return summed(sum(mine) / max(1, len(mine)))[0] / dist.get_world_size()


def cut_to_one_length(right, n):
    hits, images = summed(sum(right[:n // dist.get_world_size()]), n // dist.get_world_size())
    return hits / max(1, images)


def of_this_rank(right, n):
    return sum(right) / len(right)


def own_hits_of_all(right, n):
    return sum(right) / n


def on_rank_0(right, n):
    exact = accuracy(right, n)
    return exact if dist.get_rank() == 0 else None


def reduced_to_rank_0(right, n):
    mine = without_padding(right, n)
    sums = torch.tensor([sum(mine), len(mine)], dtype=torch.float64)
    dist.reduce(sums, dst=0)
    return (sums[0] / max(1, sums[1])).item()


def image_sets(ranks):
    """{number of test images: those that the model gets right}; a grader's are others, one set smaller than the
    world."""
    def other(random):
        many, few = ranks * random.randint(2, 7) - 1, random.randrange(2, ranks)
        # Padding repeats the first of many images. It and the next are right, on two ranks, so each mistake shows.
        return {many: (0, 1), few: tuple(random.sample(range(few), random.randint(1, few)))}

    return drawn_one({10: (0, 3, 4, 9), 4: (0, 2), 2: (1,)}, other)


def measure_accuracy(function, context):
    """What the function makes of this rank's padded shard, for each of the image_sets()."""
    accuracies = []
    for n, hits in image_sets(context.world_size).items():
        value = function([item in hits for item in sampler_shard(n, context.rank, context.world_size)], n)
        accuracies.append(None if value is None else float(value))
    return {"accuracies": accuracies}


@exercise_on_ranks(
    measure_accuracy,
    solution=accuracy,
    hint="Rank r has the items r, r + world_size, r + 2 * world_size ... below n: count them with len(range(...)). "
    "What its shard holds beyond that is padding, at the end. Then add up hits and images over the ranks; divide last.",
    mistakes={
        "The padding is counted: some images count twice. (The mean of the ranks' accuracies does the same: padded "
        "shards are equally long.)": with_padding,
        "The hits of the padding are counted, but n leaves it out.": padding_among_the_hits,
        "This is the mean of the ranks' accuracies. Without padding the shards are not equally long, and an image in a "
        "short one counts more: add hits and images up, then divide.": mean_of_means,
        "Every shard is cut to one length. Some lose a real image by that, as with drop_last: only padding must go.":
            cut_to_one_length,
        "Each rank reports its own shard alone.": of_this_rank,
        "Each rank divides its own hits by all images. Add the hits up over the ranks first.": own_hits_of_all,
        "Every rank needs the number, and only rank 0 returns it.": on_rank_0,
        "Only rank 0 is right: dist.reduce leaves the sum on one rank; dist.all_reduce leaves it on each.":
            reduced_to_rank_0,
    },
)
def exact(ranks):
    """On every rank your accuracy is the true one, although the shards are padded: each image counts once, and sums
    are added up before anything is divided."""
    for case, (n, hits) in enumerate(image_sets(len(ranks)).items()):
        got, right = [measured["accuracies"][case] for measured in ranks], len(hits) / n
        yield Case(got, [right] * len(ranks),
                   f"{len(hits)} of {n} images are right: {right:.3f}, on every rank. On {len(ranks)} ranks you have "
                   f"{', '.join('None' if value is None else f'{value:.3f}' for value in got)}.")
