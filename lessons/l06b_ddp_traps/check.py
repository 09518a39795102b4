"""Exercises of lesson 06b. All run on ranks: course/on_ranks.py says how."""

import copy
import pickle
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course.exercise import Case, Wrong
from course.on_ranks import exercise_on_ranks


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


def the_largest_from_rank_0(model):
    most = torch.tensor(from_rank_0(model))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()


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
    norms = torch.stack([parameter.detach().norm() for parameter in model.parameters()])
    return apart(nn.ParameterList([norms.norm()]))


def of_the_last(model):
    return apart(nn.ParameterList(list(model.parameters())[-1:]))


def measure_apart(function, context):
    """The function's answers for four models, and whether it changed a weight: all ranks have the same model; one value
    of the first layer is smaller on rank 1, or on rank 0, and larger on another rank; another value differs on each
    rank, so that all norms agree."""
    answers, changed = [], False
    for case in ("same", 1, 0, "same norm"):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
        model[1].weight.data += torch.arange(3)
        first = model[0].weight.data.view(-1)
        if case in (0, 1):
            first[2] += 0.25 * ((context.rank == 2) - (context.rank == case))
        elif case == "same norm":
            first[context.rank] += 0.25
        before = copy.deepcopy(model.state_dict())
        answer = function(model)
        if answer is None:
            raise Wrong(f"On rank {context.rank} it returned None. Every rank needs the number.")
        answers.append(round(float(answer), 5))
        changed |= any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return {"answers": answers, "changed": changed}


@exercise_on_ranks(
    measure_apart,
    solution=apart,
    hint="dist.all_reduce(tensor, op=dist.ReduceOp.MAX) leaves each place's largest value on every rank, and "
         "ReduceOp.MIN its smallest. Both overwrite the tensor: give them a clone.",
    mistakes={
        "A collective overwrites the tensor that it gets. Give it a clone of parameter.detach().": apart_in_place,
        "Each rank compared itself with rank 0, so rank 0 has seen nothing. The ranks must learn one another's "
        "result.": from_rank_0,
        "That is the largest distance from rank 0. Two other ranks can be further apart: one lower than rank 0, one "
        "higher.": the_largest_from_rank_0,
        "This is the distance from the mean, or a neighbour, not the largest between any two ranks.": from_the_mean,
        "Different weights can have the same norm, or the same sum. Compare them place by place.": of_norms,
        "Is every parameter compared, the first too?": of_the_last,
    },
)
def drift(ranks):
    """The answer is 0 only where every weight is the same on all ranks, and every rank knows it: a test that DDP does
    its work. It costs two all-reduces a tensor. main.py compares one norm of all weights, after each epoch: cheaper,
    and blind only to differences that leave the norm as it is."""
    yield Case(any(measured["changed"] for measured in ranks), False, "Your function changed the weights.")
    models = {"All ranks had the same weights": 0.0,
              "One weight was 0.25 smaller on rank 1 than on rank 0, and 0.25 larger on rank 2": 0.5,
              "One weight was 0.25 smaller on rank 0 than on rank 1, and 0.25 larger on rank 2": 0.5,
              "On each rank another weight was 0.25 larger": 0.25}
    for number, (description, right) in enumerate(models.items()):
        answers = [measured["answers"][number] for measured in ranks]
        yield Case(answers, [right] * len(ranks),
                   f"{description}, so {right:g} is right on every rank. You gave "
                   f"{', '.join(f'{value:.3g}' for value in answers)}.")


# Exercise 2: where no_sync goes
def train(ddp, batches, optimizer, every):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        with nullcontext() if update else ddp.no_sync():
            (cross_entropy(ddp(inputs), labels) / every).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()


def around_everything(ddp, batches, optimizer, every):
    with ddp.no_sync():
        train(ddp, batches, optimizer, every)


def one_large_batch(ddp, batches, optimizer, every):
    inputs, labels = (torch.cat(parts).split(every * len(parts[0])) for parts in zip(*batches, strict=True))
    train(ddp, zip(inputs, labels, strict=True), optimizer, every=1)


def careless(ddp, batches, optimizer, every, divide=True, zero=True, of_each=False, start=1, forward_outside=False):
    for number, (inputs, labels) in enumerate(batches, start):
        update = number % every == 0
        if of_each:
            optimizer.zero_grad()
        output = ddp(inputs) if forward_outside else None
        with nullcontext() if update else ddp.no_sync():
            output = ddp(inputs) if output is None else output
            (cross_entropy(output, labels) / (every if divide else 1)).backward()
        if update:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


BATCHES, SIZE, EVERY = 6, 4, 3  # batches of each rank, rows of a batch, batches for an update


def measure_train(function, context):
    """All-reduces, the rows that a forward saw, and how the weights moved, compared with one process that has the
    batches of all ranks."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCHES, context.world_size, SIZE, 5, generator=generator)
    labels = torch.randint(3, inputs.shape[:3], generator=generator)
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    start, alone = model.weight.detach().clone(), copy.deepcopy(model)
    sgd = torch.optim.SGD(alone.parameters(), lr=0.01)
    for batch, truth in zip(inputs.split(EVERY), labels.split(EVERY), strict=True):
        sgd.zero_grad()
        cross_entropy(alone(batch.flatten(0, -2)), truth.flatten()).backward()
        sgd.step()

    buckets, rows = [], []

    def counted(group, bucket):
        buckets.append(bucket.index())
        return allreduce_hook(group, bucket)

    model.register_forward_pre_hook(lambda _, arguments: rows.extend(map(len, arguments)))
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, counted)
    batches = list(zip(inputs[:, context.rank], labels[:, context.rank], strict=True))
    function(parallel, batches, torch.optim.SGD(model.parameters(), lr=0.01), EVERY)
    moved, right = (model.weight.detach() - start).flatten(), (alone.weight.detach() - start).flatten()
    return {"all_reduces": len(buckets), "rows": max(rows, default=0),
            "times as far": (moved @ right / (right @ right)).item(),
            "relative error": ((moved - right).abs().max() / right.abs().max()).item()}


@exercise_on_ranks(
    measure_train,
    solution=train,
    hint="`with ddp.no_sync():` around forward and backward of every batch but each `every`-th. "
         "contextlib.nullcontext() is a `with` that does nothing.",
    mistakes={
        "Nothing was saved: outside no_sync each backward makes an all-reduce. And around backward alone no_sync does "
        "nothing: the forward decides whether DDP will synchronise, so it must be inside, too.":
            partial(careless, forward_outside=True),
        "Without an all-reduce the ranks' weights drift apart. The last batch before each update must be outside "
        "no_sync: its backward adds up the gradients of all batches over the ranks.": around_everything,
        "Batches are accumulated because the large batch does not fit in memory: give ddp one batch at a time.":
            one_large_batch,
        "Gradients add up over the batches of an update: divide each loss by `every`.": partial(careless, divide=False),
        "Old gradients are still in .grad after an update: zero_grad belongs behind each step.":
            partial(careless, zero=False),
        "zero_grad() before each batch throws away the gradients of the batches before it: call it once an update.":
            partial(careless, of_each=True),
        "The first batch of each update made the step. The last must, when the gradients of all are there.":
            partial(careless, start=0),
    },
)
def accumulate(ranks):
    """One all-reduce an update, not one a batch, and the weights are those of one process with the large batch."""
    measured = ranks[0]
    yield Case(measured["rows"] > SIZE, False,
               f"A forward saw {measured['rows']} rows, and a batch has {SIZE}.")
    yield Case(measured["all_reduces"], BATCHES // EVERY,
               f"You made {measured['all_reduces']} all-reduces for {BATCHES} batches. With an update after each "
               f"{EVERY} batches, {BATCHES // EVERY} are right.")
    yield Case(round(measured["times as far"], 1), 1.0,
               f"The number of all-reduces is right, but the weights moved {measured['times as far']:.1f} times as far "
               "as those of one process with the large batch.")
    error = max(measured["relative error"] for measured in ranks)
    yield Case(error < 1e-4, True,
               "The number of all-reduces is right, but the weights are not those of one process with the large batch: "
               f"they differ by {error:.1%} of the way that they moved.")


# Exercise 3: one file, which all can read
def save(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)
    dist.barrier()


def save_with(ddp, file, all_write=False, prefix=False, state=True, waits="all"):
    """The solution with one thing changed: who writes what, and who waits at the barrier."""
    writes, model = all_write or dist.get_rank() == 0, ddp if prefix else ddp.module
    if writes:
        torch.save(model.state_dict() if state else model, file)
    if {"all": True, "writer": writes, "none": False}[waits]:
        dist.barrier()


def measure_save(function, context):
    """How often this rank wrote, whether the file was there when the function returned, and the names in it. Writing
    takes a while, as with a model of some gigabytes."""
    torch.manual_seed(context.rank)
    model = nn.Sequential(nn.Linear(4, 3))
    parallel, file, own = DistributedDataParallel(model), Path(context.folder, "model.pt"), list(model.state_dict())
    writes, save, names = [], torch.save, None

    def slowly(*args, **kwargs):
        writes.append(context.rank)
        time.sleep(0.5)
        save(*args, **kwargs)

    torch.save = slowly
    try:
        function(parallel, file)
    finally:  # also where it raised: else the others would wait for this rank
        there = file.exists()
        all_writes = sum(context.gather("writes", len(writes)))
    if file.exists() and all_writes < 2:  # a file that two ranks write at a time may not be readable
        try:
            names = list(torch.load(file, map_location="cpu", weights_only=True))
        except pickle.UnpicklingError:
            raise Wrong("The file holds Python objects. To load it, a program must have the code behind them, and "
                        "trust it.") from None
    return {"writes": len(writes), "there": there, "exists": file.exists(), "names": names, "own": own}


@exercise_on_ranks(
    measure_save,
    solution=save,
    hint="Three questions: whose turn is it to write, which state_dict() has the model's own names, and how do the "
         "other ranks learn that the file is there?",
    mistakes={
        "All ranks have the same weights: one writer is enough, and several that write to one file at a time can break "
        "it.": partial(save_with, all_write=True),
        "Which model is inside the wrapper?": partial(save_with, prefix=True),
        "Where can the ranks wait for each other?": partial(save_with, waits="none"),
        "Your barrier is called by rank 0 alone, so it never ends.": partial(save_with, waits="writer"),
        "Save a state_dict(), not the model itself.": partial(save_with, state=False),
    },
)
def saved(ranks):
    """One rank wrote, a model without DDP can load the file, and no rank went on before it was there."""
    writes = sum(measured["writes"] for measured in ranks)
    yield Case(writes > 1, False, f"torch.save was called {writes} times.")
    yield Case(ranks[0]["exists"], True, "After your function there is no such file.")
    late = [rank for rank, measured in enumerate(ranks) if not measured["there"]]
    yield Case(late, [],
               f"When rank {' and rank '.join(map(str, late))} returned, the file was not there yet. The next line of "
               "the program may want to read it.")
    names, own = ranks[0]["names"] or [], ranks[0]["own"]
    yield Case(names, own,
               f"The names in the file are {', '.join(names)}; the model's own are {', '.join(own)}. A model without "
               "DDP refuses the file.")
