"""Exercises of lesson 05. What is right comes from PyTorch's own sampler, or from one process with all images."""

import copy
import math
from collections import Counter
from functools import partial
from itertools import islice
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, get_worker_info

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import exercise_on_ranks
from lessons.l05_distributed_sampler.solution import Stream, WholeStream


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
        "You padded with the last item of the order. The padding begins again at the first.":
            mistake(my_shard, {"place % n": "min(place, n - 1)"}),
        "You repeat item 0 each time. The padding goes on through the order: 0, 1, 2 ...":
            mistake(my_shard, {"place % n": "place * (place < n)"}),
        "You dropped what is left over, as drop_last=True does. The default pads.": last_dropped,
    },
)
def shard(answer):
    """Your shards are those of DistributedSampler for every set and world size tried: strided, all of one length,
    padded from the first item on, and for sets smaller than the world too."""
    for n, world_size in [(20, 2), (21, 2), (10, 1), (7, 4), (3, 8), (1, 3)]:
        for rank in range(world_size):
            right = sampler_shard(n, rank, world_size)
            with mock.patch.object(DistributedSampler, "__init__", refuse):
                items = answer(n, rank, world_size)
            if items is None:
                raise Wrong("Your function returned None. Is its return missing?")
            got = [int(item) for item in items]
            yield Case(got, right, f"With n={n}, rank={rank}, world_size={world_size} you gave {got}; the sampler "
                                   f"gives {right}.")


# Exercise 2: a stream, read by ranks and their loader workers
class EquallyMany(Stream):
    def __iter__(self):
        worker = get_worker_info()
        readers = self.world_size * (worker.num_workers if worker else 1)
        return islice(super().__iter__(), len(list(self.source)) // readers)


class Strided(Stream):
    """Takes every `step`-th item from `first` on, as the wrong rule of this name says."""

    def __init__(self, rule, source):
        super().__init__(source)
        self.rule = rule

    def __iter__(self):
        worker = get_worker_info()
        of_worker = (worker.id, worker.num_workers) if worker else (0, 1)
        first, step = WRONG_RULES[self.rule](self.rank, self.world_size, *of_worker)
        return islice(self.source, first, None, step)


WRONG_RULES = {  # (first item, step) of a reader
    "ranks alone": lambda rank, ranks, worker, workers: (rank, ranks),
    "workers alone": lambda rank, ranks, worker, workers: (worker, workers),
    "begins at the worker": lambda rank, ranks, worker, workers: (worker, ranks * workers),
    "rank + worker": lambda rank, ranks, worker, workers: (rank + worker, ranks * workers),
    "rank × ranks": lambda rank, ranks, worker, workers: (rank * ranks + worker, ranks * workers),
}


class Source:
    """n items that can only be read from the first on, as from a compressed file: no length, no index."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def readings():
    """(loader workers of each rank, items): as many items as no number of readers divides, and fewer than readers.
    A loader worker costs a core 0.05 s, and all mistakes run at once: hence no more cases."""
    return [(0, 23), (1, 2), (2, 23)]


def measure_reading(stream, context):
    """What this rank's loader gives, for each of the readings()."""
    read = []
    for workers, n in readings():
        # Forked workers: a class of a learner's file cannot be sent to spawned ones. The loader ends one that hangs.
        of_workers = {"multiprocessing_context": "fork", "timeout": 4 * context.timeout} if workers else {}
        loader = DataLoader(stream(Source(n)), batch_size=None, num_workers=workers, **of_workers)
        try:
            read.append([int(item) for item in islice(loader, 10 * n)])  # it may have no end
        except (AttributeError, TypeError) as error:
            if "non-iterator of type 'NoneType'" in str(error):
                raise Wrong("Your __iter__ returned None. Is its return missing?") from None
            if workers or "'NoneType'" not in str(error):
                raise
            raise Wrong("With num_workers=0 the rank itself reads, and get_worker_info() returns None. Count the rank "
                        "as the only worker then: number 0 of 1.") from None
    return {"read": read}


@exercise_on_ranks(
    measure_reading,
    solution=Stream,
    hint="There are world_size * num_workers readers. Give each a number of its own, from 0 on: rank * num_workers + "
    "worker id. Then deal like the sampler: itertools.islice(source, first, None, step). With num_workers=0 "
    "get_worker_info() returns None, and the rank is the only reader.",
    mistakes={
        "Every rank and every worker reads all of it. Which of them is this one, and how many are there?":
            WholeStream,
        "The ranks share the items, but each loader worker of a rank reads the whole part of its rank: "
        "get_worker_info() says which worker this is.": partial(Strided, "ranks alone"),
        "The loader workers of a rank share the items, but all ranks read the same ones.":
            partial(Strided, "workers alone"),
        "The step is right. But worker 0 of every rank begins at item 0: the first item depends on the rank, too.":
            partial(Strided, "begins at the worker"),
        "Two readers have the same rank + worker id, for instance worker 1 of rank 0 and worker 0 of rank 1. Before "
        "rank r there are r * num_workers readers.": partial(Strided, "rank + worker"),
        "Each rank before yours has num_workers readers, not world_size readers: rank * num_workers + worker id.":
            partial(Strided, "rank × ranks"),
        "You drop the last items, so that all readers have equally many. DDP needs equally many steps, as the next "
        "section shows, but here every item must be read.": EquallyMany,
    },
    ranks=(2, 3),
)
def stream(ranks):
    """Each item is read once, for every number of ranks and loader workers tried, also where they do not divide the
    items, and where there are fewer items than readers."""
    for number, (workers, n) in enumerate(readings()):
        read = sorted(item for measured in ranks for item in measured["read"][number])
        times = Counter(read)
        yield Case(read, list(range(n)),
                   f"A stream of {n} items, {len(ranks)} ranks, num_workers={workers}: "
                   f"{sum(count > 1 for count in times.values())} items are read more than once, "
                   f"{len(set(range(n)) - times.keys())} by nobody.")


# Exercise 3: batches of unequal size
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
    return [1 + 2 * rank for rank in range(ranks)]


def measure_backward(function, context):
    """The gradient that it leaves, and that of one process with the images of all ranks."""
    sizes = batch_sizes(context.world_size)
    generator = torch.Generator().manual_seed(0)
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
