"""Exercises of lesson 05. What is right comes from PyTorch's own sampler, or from one process with all images.

The last two run on ranks: course/on_ranks.py says how.
"""

import copy
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course.cases import drawn, drawn_one, generator_seed, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

HITS = {10: (0, 3, 4, 9), 4: (0, 2), 2: (1,)}  # of so many images, which are right


def image_sets(ranks):
    """HITS; or for a grader another set, and one that is smaller than the world."""
    def other(random):
        many, few = ranks * random.randint(2, 7) - 1, random.randrange(2, ranks)
        # Of many images the first is copied. It and the next are right, on two ranks: so each mistake shows.
        return {many: (0, 1), few: tuple(random.sample(range(few), random.randint(1, few)))}

    return drawn_one(HITS, other)


def batches(ranks):
    """Images of each rank's batch, no two alike."""
    return drawn_one([1 + 2 * rank for rank in range(ranks)], lambda random: random.sample(range(1, 13), ranks))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure_backward(function, here):
    """Gradients after it, beside those of one process with the images of all ranks, and the mean of the ranks' own."""
    sizes = batches(here.world_size)
    numbers = torch.Generator().manual_seed(generator_seed())
    inputs = torch.randn(sum(sizes), 4, generator=numbers).split(sizes)
    labels = torch.randint(3, (sum(sizes),), generator=numbers).split(sizes)
    torch.manual_seed(0)
    model, rows = nn.Linear(4, 3), []
    alone = copy.deepcopy(model)

    def gradient(inputs, labels):
        cross_entropy(alone(inputs), labels).backward()
        found, alone.weight.grad = alone.weight.grad.flatten(), None
        return found

    own = torch.stack([gradient(*batch) for batch in zip(inputs, labels, strict=True)])
    wanted = gradient(torch.cat(inputs), torch.cat(labels))
    model.register_forward_pre_hook(lambda _, arguments: rows.extend(map(len, arguments)))
    function(DistributedDataParallel(model), inputs[here.rank], labels[here.rank])
    if model.weight.grad is None:
        raise Wrong("After your function the weights have no gradient. Did you call backward() on the loss?")
    return {"got": model.weight.grad.flatten().tolist(), "wanted": wanted.tolist(), "own": own[here.rank].tolist(),
            "mean": own.mean(0).tolist(), "images": sum(sizes), "rows": sum(rows), "batch": sizes[here.rank]}


def measure_accuracy(function, here):
    """What the function makes of this rank's padded shard, for each of the image_sets()."""
    got = []
    for n, hits in image_sets(here.world_size).items():
        value = function([item in hits for item in sampler_shard(n, here.rank, here.world_size)], n)
        if value is None:
            raise Wrong(f"On rank {here.rank} it returned None. Every rank needs the number.")
        got.append(float(value))
    return {"got": got}


answers = Answers({"backward": measure_backward, "accuracy": measure_accuracy})


def sampler_shard(n, rank, world_size):
    return list(DistributedSampler(range(n), world_size, rank, shuffle=False))


def close(got, wanted):
    return all(abs(a - b) < 1e-5 for a, b in zip(got, wanted, strict=True))


def times(got, factor):
    return [factor * value for value in got]


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
    sizes = drawn([(20, 2), (21, 2), (10, 1), (7, 4), (3, 8), (1, 3)],
                  lambda random: (random.randint(22, 60), random.randint(2, 9)))
    cases = [(n, rank, world_size) for n, world_size in sizes for rank in range(world_size)]
    for miss in misses(shard, attempt, cases, sampler_shard, lambda items: [int(item) for item in items]):
        only_the_last = len(miss.got) == len(miss.right) and miss.got[:-1] == miss.right[:-1]
        miss.tell("With n={n}, rank={rank}, world_size={world_size} you gave {got}, the sampler gives {right}.",
                  "The length is right. The padding begins again at the first item of the order." * only_the_last)


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


@exercise(
    solution=backward,
    hint="DDP adds up the ranks' gradients and divides by the world size. So which number must each rank multiply the "
    "sum of its losses with? It needs the number of images of all ranks: an all-reduce of len(labels).",
    mistakes={"the mean of each rank": mean_of_own, "no world size": without_world_size, "only summed": only_summed,
              "the raw model": of_the_raw_model, "cut to the shortest": cut_to_the_shortest},
)
def gradient(attempt):
    """Every rank has the gradient of one process with the images of all ranks: each image counts once, although the
    batches are unequal."""
    ranks = answers.findings("backward", attempt)
    one, n = ranks[0], len(ranks)
    for number, rank in enumerate(ranks):
        if rank["rows"] != rank["batch"]:
            raise Wrong(f"On rank {number} the batch has {rank['batch']} images, and the model saw {rank['rows']}. "
                        "Each image must be seen, and once.")
    if not all(close(rank["got"], one["wanted"]) for rank in ranks):
        raise because(
            f"The ranks have batches of {', '.join(str(rank['batch']) for rank in ranks)} images, and your gradient is "
            f"not that of one process with all {one['images']}.",
            (all(close(rank["got"], rank["own"]) for rank in ranks), "Each rank has the gradient of its own batch: "
             "nothing was averaged. Call ddp_model, not ddp_model.module."),
            (close(one["got"], one["mean"]), "It is the mean of the ranks' means: an image in a small batch counts "
             "more. Begin with the sum of the losses, and divide by a number that is the same on all ranks."),
            (close(times(one["got"], n), one["wanted"]), f"It is {n} times too small. You have divided by all images, "
             "and then DDP has divided by the world size."),
            (close(times(one["got"], n / one["images"]), one["wanted"]), "You have the sum over all images, divided by "
             "the world size, which is DDP's part. What turns a sum over all images into their mean?"))


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


def real_part(right, n):
    return right[:len(range(dist.get_rank(), n, dist.get_world_size()))]


def mean_of_means(right, n):
    mine = real_part(right, n)
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
    mine = real_part(right, n)
    sums = torch.tensor([sum(mine), len(mine)], dtype=torch.float64)
    dist.reduce(sums, dst=0)
    return (sums[0] / max(1, sums[1])).item()


@exercise(
    solution=accuracy,
    hint="Rank r has the items r, r + world_size, r + 2 * world_size ... below n: count them with len(range(...)). "
    "What its shard holds beyond that is padding, at the end. Then add up hits and images over the ranks; divide last.",
    mistakes={"padding counted": with_padding, "hits of the padding": padding_among_the_hits,
              "mean of means": mean_of_means, "one length for all": cut_to_one_length, "own shard": of_this_rank,
              "own hits": own_hits_of_all,
              "returned on rank 0 alone": on_rank_0, "reduce instead of all_reduce": reduced_to_rank_0},
)
def exact(attempt):
    """On every rank your accuracy is the true one, although the shards are padded: each image counts once, and sums
    are added up before anything is divided."""
    ranks = answers.findings("accuracy", attempt)
    for case, (n, hits) in enumerate(image_sets(len(ranks)).items()):
        got, true = [rank["got"][case] for rank in ranks], len(hits) / n
        if close(got, [true] * len(ranks)):
            continue
        shards = [[item in hits for item in sampler_shard(n, rank, len(ranks))] for rank in range(len(ranks))]
        real = [right[:len(range(rank, n, len(ranks)))] for rank, right in enumerate(shards)]
        cut = [right[:n // len(ranks)] for right in shards]
        all_hits, all_seen = sum(map(sum, shards)), sum(map(len, shards))
        raise because(
            f"{len(hits)} of {n} images are right: {true:.3f}, on every rank. On {len(ranks)} ranks you have "
            f"{', '.join(f'{value:.3f}' for value in got)}.",
            (close(got, [sum(right) / len(right) for right in shards]), "Each rank tells of its own shard alone."),
            (close(got, [sum(right) / n for right in shards]) or close(got, [sum(right) / n for right in real]),
             "Each rank divides its own hits by all images. Add the hits up over the ranks first."),
            (close(got[:1], [true]), "Only rank 0 is right: dist.reduce leaves the sum on one rank; dist.all_reduce "
             "leaves it on each."),
            (close(got, [all_hits / all_seen] * len(ranks)), "The padding is counted: some images count twice. (The "
             "mean of the ranks' accuracies does the same: padded shards are equally long.)"),
            (close(got, [all_hits / n] * len(ranks)), "The hits of the padding are counted, but n leaves it out."),
            (close(got, [sum(sum(right) / max(1, len(right)) for right in real) / len(ranks)] * len(ranks)),
             "This is the mean of the ranks' accuracies. Without padding the shards are not equally long, and an "
             "image in a short one counts more: add hits and images up, then divide."),
            (close(got, [sum(map(sum, cut)) / max(1, sum(map(len, cut)))] * len(ranks)), "Every shard is cut to one "
             "length. Some lose a real image by that, as with drop_last: only what is padding must go."))
