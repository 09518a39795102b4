"""Exercises of notebook 06. Three of them run on ranks: course/checks/on_ranks.py says how."""

import copy
import operator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course.checks import Wrong, because, exercise
from course.checks.on_ranks import Answers

BATCHES, ROWS, EVERY = 6, 4, 3  # what `train` is given on each rank: batches of so many rows, and when to update

# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure_average_gradients(function, here):
    """Gradients before and after; and by how much the weights moved, which differ between the ranks."""
    model = nn.Linear(2, 1, bias=False)
    before = torch.tensor([[10.0 + here.rank, 20.0 - here.rank]])
    own = torch.tensor([[1.0 + 2 * here.rank, 6.0 - 4 * here.rank]])
    model.weight.data, model.weight.grad = before.clone(), own.clone()
    function(model)
    return {"own": own.flatten().tolist(), "got": model.weight.grad.flatten().tolist(),
            "weights_moved": (model.weight.detach() - before).abs().max().item()}


def measure_accuracy(function, here):
    """What the function makes of each rank's hits and images: the shards are unequal."""
    images = 10 * (1 + 2 * here.rank)
    hits = images - 1 - 8 * here.rank
    got = function(hits, images)
    if got is None:
        raise Wrong(f"On rank {here.rank} it returned None. Every rank needs the number.")
    return {"hits": hits, "images": images, "got": float(got)}


def measure_train(function, here):
    """All-reduces and weights after the updates of BATCHES, beside one process on all ranks' batches."""
    numbers = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCHES, here.world_size, ROWS, 5, generator=numbers)
    labels = torch.randint(3, (BATCHES, here.world_size, ROWS), generator=numbers)
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    start, reference = model.weight.detach().clone(), copy.deepcopy(model)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.01)
    for batch, truth in zip(inputs.split(EVERY), labels.split(EVERY), strict=True):
        sgd.zero_grad()
        cross_entropy(reference(batch.flatten(0, -2)), truth.flatten()).backward()
        sgd.step()

    buckets, rows = [], []

    def count(group, bucket):
        buckets.append(bucket.index())
        return allreduce_hook(group, bucket)

    model.register_forward_pre_hook(lambda _, arguments: rows.extend(map(len, arguments)))
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, count)
    batches = list(zip(inputs[:, here.rank], labels[:, here.rank], strict=True))
    function(parallel, batches, torch.optim.SGD(model.parameters(), lr=0.01), EVERY)
    path, wanted = (model.weight.detach() - start).flatten(), (reference.weight.detach() - start).flatten()
    return {"all_reduces": len(buckets), "rows": max(rows, default=0), "weights": model.weight.flatten().tolist(),
            "off": (path - wanted).abs().max().item(), "size": wanted.abs().max().item(),
            "times": (path @ wanted / (wanted @ wanted)).item()}


answers = Answers({"average_gradients": measure_average_gradients, "accuracy": measure_accuracy,
                   "train": measure_train})


def close(got, wanted):
    return all(abs(a - b) < 1e-5 for a, b in zip(got, wanted, strict=True))


# Exercise 1: average the gradients
def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def sum_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def average_weights(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def divide_only(model):
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()


@exercise(
    solution=average_gradients,
    hint="dist.all_reduce(tensor) puts the sum over the ranks in the tensor's place. What turns a sum into a mean?",
    mistakes={"sum, not divided": sum_gradients, "weights instead of gradients": average_weights,
              "divided, not summed": divide_only},
)
def average(attempt):
    """After your function every rank has the same gradient, the mean over the ranks: that of one process on the
    whole batch, as long as the shards are equal."""
    ranks = answers.findings("average_gradients", attempt)
    total = [sum(values) for values in zip(*(rank["own"] for rank in ranks), strict=True)]
    mean = [value / len(ranks) for value in total]
    if any(rank["weights_moved"] for rank in ranks):
        raise Wrong("Your function changed the weights. What the ranks share is the gradients: parameter.grad. The "
                    "optimizer then changes the weights, on every rank alike.")
    if all(close(rank["got"], total) for rank in ranks):
        raise Wrong(f"That is the sum over the ranks, {len(ranks)} times the mean: it is as if the learning rate were "
                    f"{len(ranks)} times as large. Divide by dist.get_world_size().")
    if not all(close(rank["got"], ranks[0]["got"]) for rank in ranks):
        raise Wrong("The ranks still have different gradients, so their weights will drift apart. Have you called "
                    "dist.all_reduce on each gradient?")
    if not close(ranks[0]["got"], mean):
        raise Wrong(f"The ranks had the gradients {' and '.join(str(rank['own']) for rank in ranks)}. Their mean is "
                    f"{mean}; you have {ranks[0]['got']}.")


# Exercise 2: accuracy over all ranks
def accuracy(hits, images):
    sums = torch.tensor([hits, images], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def average_of_averages(hits, images):
    mean = torch.tensor(hits / images, dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def own_hits_of_all_images(hits, images):
    total = torch.tensor(float(images))
    dist.all_reduce(total)
    return hits / total.item()


def reduced_to_rank_0(hits, images):
    sums = torch.tensor([hits, images], dtype=torch.float64)
    dist.reduce(sums, dst=0)
    return (sums[0] / sums[1]).item()


def returned_on_rank_0(hits, images):
    over_all = accuracy(hits, images)
    return over_all if dist.get_rank() == 0 else None


@exercise(
    solution=accuracy,
    hint="Put hits and images into one tensor, all-reduce it, and divide last.",
    mistakes={"average of averages": average_of_averages, "own hits of all images": own_hits_of_all_images,
              "own accuracy": operator.truediv, "reduce instead of all_reduce": reduced_to_rank_0,
              "returned on rank 0 alone": returned_on_rank_0},
)
def overall(attempt):
    """Sums and counts, added up over the ranks, and divided last: the same number on every rank, and that of one
    process, whatever the shards."""
    ranks = answers.findings("accuracy", attempt)
    hits, images, got = ([rank[name] for rank in ranks] for name in ("hits", "images", "got"))
    averages, right = [hit / image for hit, image in zip(hits, images, strict=True)], sum(hits) / sum(images)
    if not close(got, [right] * len(ranks)):
        shards = " and ".join(f"{hit} of {image}" for hit, image in zip(hits, images, strict=True))
        raise because(
            f"The hits were {shards}, so {sum(hits)} of {sum(images)} = {right:.3f} on every rank. You have "
            f"{' and '.join(f'{value:.3f}' for value in got)}.",
            (close(got, [hit / sum(images) for hit in hits]), "You divided each rank's own hits by all images. The "
             "hits must be added up over the ranks, too. This is the tutorial's 0.06."),
            (close(got, averages), "Each rank tells of its own shard alone: rank 0's number is that of rank 0's "
             "images."),
            (close(got[:1], [right]), "Only rank 0 is right: dist.reduce leaves the sum on one rank; dist.all_reduce "
             "leaves it on each."),
            (close(got, [sum(averages) / len(ranks)] * len(ranks)), "This is the average of the ranks' averages. But "
             "the shards are unequal: an image in a small shard would count for more. Add hits and images up first, "
             "and divide last."))


# Exercise 3: where no_sync goes
def train(ddp, batches, optimizer, every):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        with nullcontext() if update else ddp.no_sync():
            (cross_entropy(ddp(inputs), labels) / every).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()


def around_backward(ddp, batches, optimizer, every):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        loss = cross_entropy(ddp(inputs), labels) / every
        with nullcontext() if update else ddp.no_sync():
            loss.backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()


def around_everything(ddp, batches, optimizer, every):
    with ddp.no_sync():
        train(ddp, batches, optimizer, every)


def one_large_batch(ddp, batches, optimizer, every):
    inputs, labels = (torch.cat(parts).split(every * len(parts[0])) for parts in zip(*batches, strict=True))
    train(ddp, zip(inputs, labels, strict=True), optimizer, every=1)


def not_divided(ddp, batches, optimizer, every):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        with nullcontext() if update else ddp.no_sync():
            cross_entropy(ddp(inputs), labels).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()


@exercise(
    solution=train,
    hint="`with ddp.no_sync():` around forward and backward of every batch but each `every`-th. "
         "contextlib.nullcontext() is a `with` that does nothing.",
    mistakes={"only around backward": around_backward, "around everything": around_everything,
              "loss not divided": not_divided, "one large batch": one_large_batch},
)
def accumulate(attempt):
    """One all-reduce an update, not one a batch, and the weights are those of one process with the large batch."""
    ranks = answers.findings("train", attempt)
    one, off = ranks[0], max(rank["off"] for rank in ranks)
    if one["rows"] > ROWS:
        raise Wrong(f"A forward saw {one['rows']} rows, and a batch has {ROWS}. Batches are accumulated because the "
                    "large one does not fit in memory: give ddp one batch at a time.")
    if one["all_reduces"] == 0:
        apart = max(abs(a - b) for a, b in zip(one["weights"], ranks[-1]["weights"], strict=True))
        raise Wrong(f"No all-reduce at all: the ranks' weights differ by {apart:.1e}. The last batch before each "
                    "update must be outside no_sync: its backward brings the gradients of all of them together.")
    if one["all_reduces"] == BATCHES:
        raise Wrong(f"{BATCHES} all-reduces for {BATCHES} batches: nothing was saved. Outside no_sync each backward "
                    "makes one. And around backward alone no_sync does nothing: the forward decides whether DDP will "
                    "synchronise, so it must be inside, too.")
    if one["all_reduces"] != BATCHES // EVERY:
        raise Wrong(f"{one['all_reduces']} all-reduces for {BATCHES} batches. With an update each {EVERY} batches, "
                    f"{BATCHES // EVERY} are enough.")
    if abs(one["times"] - EVERY) < 0.1:
        raise Wrong(f"The all-reduces are right, but the weights moved {one['times']:.1f} times as far as with one "
                    f"large batch. Gradients of {EVERY} batches add up: divide each loss by {EVERY}.")
    if off > 1e-4 * one["size"]:
        raise Wrong("The all-reduces are right, but the weights are not those of one process with the large batch: "
                    f"they differ by {off:.1e}. Is there an update, then a zero_grad, after each {EVERY} batches?")


# Exercise 4: the global batch
def settings(ranks, batch_size, lr):
    return ranks * batch_size, lr * ranks


@exercise(
    solution=settings,
    hint="How many images does one update see? The rule: the learning rate grows as that number does.",
    mistakes={"the batch of one rank": lambda ranks, batch_size, lr: (batch_size, lr),
              "the rate left alone": lambda ranks, batch_size, lr: (ranks * batch_size, lr),
              "the rate divided": lambda ranks, batch_size, lr: (ranks * batch_size, lr / ranks)},
)
def scaled(attempt):
    """The batch size is per process, so the global batch grows with the ranks; and by the linear scaling rule the
    learning rate grows with it (Goyal et al. 2017, arXiv 1706.02677, who warm up to it). It is a rule of thumb for
    SGD."""
    for ranks, batch_size, lr in ((8, 64, 0.1), (2, 32, 0.05)):
        batch, rate = attempt(ranks, batch_size, lr)
        case = f"With {ranks} ranks, batch {batch_size} a process and lr {lr} for one of them"
        if batch != ranks * batch_size:
            raise because(
                f"{case}, an update sees {ranks * batch_size} images, not {batch}.",
                (batch == batch_size, "That is what one rank sees. The update is made of all ranks' images."))
        if not close([rate], [lr * ranks]):
            raise because(
                f"{case}, the linear scaling rule gives {lr * ranks:g}; you have {rate:g}.",
                (close([rate], [lr]), f"You left the learning rate alone. Each epoch now has {ranks} times fewer "
                 "updates, each as long as before: it gets less far. The rule makes the updates longer."),
                (close([rate], [lr / ranks]), "You divided the learning rate. But DDP has divided already: it "
                 f"averages. There are {ranks} times fewer updates, so each must be longer, not shorter."))
