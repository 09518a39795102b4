"""Exercises of notebook 06. All run on ranks: course/on_ranks.py says how."""

import copy
import pickle
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course.cases import drawn_one, generator_seed
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers


def given():
    """(batches, rows of each, after how many to update): what `train` has on each rank."""
    return drawn_one((6, 4, 3), lambda random: (
        (every := random.choice((2, 4))) * random.choice((2, 3)), random.randint(5, 9), every))


def lone(ranks):
    """(the rank of which one weight is larger, by how much)."""
    return drawn_one((1, 0.25), lambda random: (random.randrange(2, ranks), random.randint(3, 9) / 8))


def layers():
    """Widths before and behind each layer of the model to save."""
    return drawn_one([4, 3], lambda random: random.choices(range(2, 9), k=random.choice((3, 4))))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure_apart(function, here):
    """What the function says of three models, and by how much it moved their weights: all ranks have the same one; one
    value of the first layer is another on one rank; a value stands elsewhere on each rank, so that all norms agree."""
    found, (other, far) = {"got": [], "moved": 0.0}, lone(here.world_size)
    for case in ("same", "one value", "same norm"):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
        first = model[0].weight.data.view(-1)
        if case == "one value":
            first[2] += far * (here.rank == other)
        elif case == "same norm":
            first[here.rank] += far
        before = copy.deepcopy(model.state_dict())
        got = function(model)
        if got is None:
            raise Wrong(f"On rank {here.rank} it returned None. Every rank needs the number.")
        found["got"].append(float(got))
        moved = [(value - before[name]).abs().max().item() for name, value in model.state_dict().items()]
        found["moved"] = max(found["moved"], *moved)
    return found


def measure_save(function, here):
    """Who wrote, whether the file was there when the function returned, and what it holds. Writing takes a while, as
    that of a model of some gigabytes does."""
    torch.manual_seed(here.rank)
    model = nn.Sequential(*[nn.Linear(*widths) for widths in pairwise(layers())])
    parallel, file, own = DistributedDataParallel(model), Path(here.folder, "model.pt"), list(model.state_dict())
    writes, save = [], torch.save

    def slowly(*what, **how):
        writes.append(here.rank)
        time.sleep(0.5)
        save(*what, **how)

    torch.save = slowly
    function(parallel, file)
    found = {"writes": len(writes), "there": file.exists(), "names": None, "own": own}
    here.gather("returned", True)
    if file.exists():
        try:
            found["names"] = list(torch.load(file, map_location="cpu", weights_only=True))
        except pickle.UnpicklingError:
            raise Wrong("The file holds Python objects: whoever loads it must have, and trust, the code behind them. "
                        "Save a state_dict().") from None
    return found


def measure_train(function, here):
    """All-reduces and weights after the updates, beside one process on all ranks' batches."""
    batches, size, every = given()
    numbers = torch.Generator().manual_seed(generator_seed())
    inputs = torch.randn(batches, here.world_size, size, 5, generator=numbers)
    labels = torch.randint(3, inputs.shape[:3], generator=numbers)
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    start, reference = model.weight.detach().clone(), copy.deepcopy(model)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.01)
    for batch, truth in zip(inputs.split(every), labels.split(every), strict=True):
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
    function(parallel, batches, torch.optim.SGD(model.parameters(), lr=0.01), every)
    path, wanted = (model.weight.detach() - start).flatten(), (reference.weight.detach() - start).flatten()
    return {"all_reduces": len(buckets), "rows": max(rows, default=0), "weights": model.weight.flatten().tolist(),
            "off": (path - wanted).abs().max().item(), "size": wanted.abs().max().item(),
            "times": (path @ wanted / (wanted @ wanted)).item()}


answers = Answers({"apart": measure_apart, "train": measure_train, "save": measure_save})


def close(got, wanted):
    return all(abs(a - b) < 1e-5 for a, b in zip(got, wanted, strict=True))


# Exercise 1: how far apart are the ranks?
def apart(model):
    most = 0.0
    for parameter in model.parameters():
        high, low = parameter.detach().clone(), parameter.detach().clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        most = max(most, (high - low).max().item())
    return most


def apart_in_place(model):
    most = 0.0
    for parameter in model.parameters():
        low = parameter.detach().clone()
        dist.all_reduce(parameter.data, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        most = max(most, (parameter.data - low).max().item())
    return most


def from_rank_0(model):
    most = 0.0
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, src=0)
        most = max(most, (parameter.detach() - first).abs().max().item())
    return most


def from_the_mean(model):
    most = torch.tensor(0.0)
    for parameter in model.parameters():
        mean = parameter.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        most = torch.maximum(most, (parameter.detach() - mean).abs().max())
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()


def of_norms(model):
    norm = torch.stack([parameter.detach().norm() for parameter in model.parameters()]).norm()
    high, low = norm.clone(), norm.clone()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    return (high - low).item()


def of_the_last(model):
    for parameter in model.parameters():
        high, low = parameter.detach().clone(), parameter.detach().clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
    return (high - low).max().item()


@exercise(
    solution=apart,
    hint="dist.all_reduce(tensor, op=dist.ReduceOp.MAX) leaves each place's largest value on every rank, and "
         "ReduceOp.MIN its smallest. Both overwrite the tensor: give them a clone.",
    mistakes={"in place": apart_in_place, "from rank 0, on each rank": from_rank_0, "from the mean": from_the_mean,
              "of the norms": of_norms, "of the last parameter": of_the_last},
)
def drift(attempt):
    """0 only where every weight is the same on all ranks, and every rank knows it: a test that DDP does its work. It
    costs two all-reduces a tensor. main.py compares one norm of all weights, after each epoch: cheaper, and blind only
    to differences that leave the norm as it is."""
    ranks = answers.findings("apart", attempt)
    if any(rank["moved"] for rank in ranks):
        raise Wrong("Your function changed the weights: a collective overwrites the tensor that it gets. Give it a "
                    "clone of parameter.detach().")
    other, far = lone(len(ranks))
    for case, (said, wanted) in enumerate((("All ranks had the same weights", 0.0),
                                           (f"One weight of rank {other} was {far:g} larger than the others'", far),
                                           (f"On each rank another weight was {far:g} larger", far))):
        got = [rank["got"][case] for rank in ranks]
        if not close(got, [wanted] * len(got)):
            raise because(
                f"{said}, so the answer is {wanted:g} on every rank. Yours: "
                f"{', '.join(f'{value:.3g}' for value in got)}.",
                (case == 1 and close(got, [0] * len(got)), "Is every parameter compared, the first too?"),
                (close(got[:1], [0]) and not close(got, got[:1] * len(got)), "Each rank compared itself with rank 0, "
                 "so rank 0 has seen nothing. The ranks must learn of one another's result."),
                (close([rank["got"][2] for rank in ranks], [0] * len(got)), "Different weights can have one norm, or "
                 "one sum. Compare them place by place."),
                (close(got, got[:1] * len(got)), "That is the distance from the mean. Asked for: the "
                 "largest difference between any two ranks."))


# Exercise 2: where no_sync goes
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
    one, off, (batches, rows, every) = ranks[0], max(rank["off"] for rank in ranks), given()
    if one["rows"] > rows:
        raise Wrong(f"A forward saw {one['rows']} rows, and a batch has {rows}. Batches are accumulated because the "
                    "large one does not fit in memory: give ddp one batch at a time.")
    if one["all_reduces"] == 0:
        apart = max(abs(a - b) for a, b in zip(one["weights"], ranks[-1]["weights"], strict=True))
        raise Wrong(f"No all-reduce at all: the ranks' weights differ by {apart:.1e}. The last batch before each "
                    "update must be outside no_sync: its backward brings the gradients of all of them together.")
    if one["all_reduces"] == batches:
        raise Wrong(f"{batches} all-reduces for {batches} batches: nothing was saved. Outside no_sync each backward "
                    "makes one. And around backward alone no_sync does nothing: the forward decides whether DDP will "
                    "synchronise, so it must be inside, too.")
    if one["all_reduces"] != batches // every:
        raise Wrong(f"{one['all_reduces']} all-reduces for {batches} batches. With an update each {every} batches, "
                    f"{batches // every} are enough.")
    if abs(one["times"] - every) < 0.1:
        raise Wrong(f"The all-reduces are right, but the weights moved {one['times']:.1f} times as far as with one "
                    f"large batch. Gradients of {every} batches add up: divide each loss by {every}.")
    if off > 1e-4 * one["size"]:
        raise Wrong("The all-reduces are right, but the weights are not those of one process with the large batch: "
                    f"they differ by {off:.1e}. Is there an update, then a zero_grad, after each {every} batches?")


# Exercise 3: one file, which all can read
def save(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)
    dist.barrier()


def by_all(ddp, file):
    torch.save(ddp.module.state_dict(), file)
    dist.barrier()


def with_prefix(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), file)
    dist.barrier()


def without_barrier(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)


def barrier_for_one(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)
        dist.barrier()


def whole_model(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module, file)
    dist.barrier()


@exercise(
    solution=save,
    hint="Three questions: whose turn is it to write, which state_dict() has the model's own names, and how do the "
         "other ranks learn that the file is there?",
    mistakes={"all ranks write": by_all, "DDP's names": with_prefix, "no barrier": without_barrier,
              "a barrier for rank 0 alone": barrier_for_one, "the whole model": whole_model},
)
def saved(attempt):
    """One rank wrote, a model without DDP can load it, and no rank went on before the file was there."""
    ranks = answers.findings("save", attempt)
    writes = sum(rank["writes"] for rank in ranks)
    if writes > 1:
        raise Wrong(f"{writes} ranks wrote. All have the same weights: one is enough, and several that write to one "
                    "file at a time can break it.")
    if ranks[0]["names"] is None:
        raise Wrong("After your function there is no such file.")
    late = [rank for rank, found in enumerate(ranks) if not found["there"]]
    if late:
        raise Wrong(f"When rank {late[0]} returned the file was not there yet: what it does next may be to read it. "
                    "Where can the ranks wait for each other?")
    if ranks[0]["names"] != (own := ranks[0]["own"]):
        raise Wrong(f"The names in the file are {', '.join(ranks[0]['names'])}; the model's own are "
                    f"{', '.join(own[:-1])} and {own[-1]}. A model without DDP refuses the file. Which model is "
                    "inside the wrapper?")
