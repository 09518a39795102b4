"""Exercises of lesson 12. The first is about the five runs of detective.py, and owns their letters."""

import copy
import random
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course.exercise import Case, Wrong, drawn, drawn_one, exercise, generator_seed
from course.on_ranks import exercise_on_ranks

# Exercise 1: five runs
# What the log of a run with this fault shows, and where to look for it.
SIGNS = {
    "set_epoch": ("the first images of epoch 1 are those of epoch 0", "the first images of both epochs"),
    "rank_0_loss": ("the loss of the epoch is the very loss of rank 0, and not between those of the ranks",
                    "the three losses of an epoch"),
    "batch_per_process": ("an epoch has half as many updates as the others", "the number of updates"),
    "ddp_module": ("the weight norms of the ranks differ", "the weight norms"),
    "padded_evaluation": ("more test images are counted than there are", "the test"),
}
TRUTH = dict(zip("ABCDE", random.Random(12).sample(list(SIGNS), len(SIGNS)), strict=True))  # which run has which fault


def swapped(fault, other):
    """TRUTH with the letters of two faults exchanged."""
    letters = {fault: letter for letter, fault in TRUTH.items()}
    return TRUTH | {letters[fault]: other, letters[other]: fault}


@exercise(
    solution=TRUTH,
    hint="Compare the runs line by line. Which one has another number of updates? In which one do the ranks' weights "
    "differ? What do the two epochs of a run have in common? How many test images are there?",
    mistakes={
        "You exchanged the run whose models drift apart and the run whose order repeats.":
            swapped("ddp_module", "set_epoch"),
        "You exchanged the run with the loss of rank 0 and the run that counts test images twice.":
            swapped("rank_0_loss", "padded_evaluation"),
        "Each mistake is in one run only.": dict.fromkeys("ABCDE", "set_epoch"),
    },
)
def five_runs(answer):
    """All five are found: the order that repeats, the loss of one rank, the batch that has doubled, the models that
    drift apart, the image that counts twice. None of the runs gave a warning; the lines that show it were printed on
    purpose. Print them in your own runs, too."""
    if callable(answer):
        answer = answer()
    if not isinstance(answer, dict) or set(answer) != set(TRUTH):
        raise Wrong('Answer with a dict that has the letters A to E, such as {"A": "set_epoch", ...}.')
    if unknown := set(answer.values()) - set(SIGNS):
        raise Wrong(f"There is no mistake {unknown.pop()!r}. The five are: {', '.join(SIGNS)}.")
    found = sum(answer[letter] == TRUTH[letter] for letter in TRUTH)
    for letter, fault in TRUTH.items():
        yield Case(answer[letter], fault,
                   f"Run {letter} is not {answer[letter]}: with that {SIGNS[answer[letter]][0]}. It is not so here. "
                   f"Compare {SIGNS[fault][1]} with those of the other runs. ({found} of 5 are right.)")


# Exercise 2: a patient with three mistakes
def train(ddp, optimizer, images, labels, epochs):
    sampler, means = DistributedSampler(images, shuffle=True), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2)
        for batch in torch.tensor(list(sampler)).split(4):
            loss = cross_entropy(ddp(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(batch), len(batch)])
        dist.all_reduce(sums)
        if dist.get_rank() == 0:
            means.append((sums[0] / sums[1]).item())
    return means


def flawed(ddp, optimizer, images, labels, epochs, raw=False, reshuffled=True, reduced=True, alone=False):
    """train with mistakes."""
    sampler, means = DistributedSampler(images, shuffle=True), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch if reshuffled else 0)
        sums = torch.zeros(2)
        for batch in torch.tensor(list(sampler)).split(4):
            loss = cross_entropy((ddp.module if raw else ddp)(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(batch), len(batch)])
        if reduced and (not alone or dist.get_rank() == 0):
            dist.all_reduce(sums)
        means.append((sums[0] / sums[1]).item())
    return means


def sizes(ranks):
    """(images, epochs) that `train` is given; the ranks' shards are equal."""
    return drawn_one((24, 2), lambda random: (ranks * random.choice((7, 9, 11)), random.choice((3, 4))))


def measure_train(function, context):
    """For each epoch the images that this rank took and the sum of their losses; how many gradients were all-reduced;
    what the function returned."""
    torch.manual_seed(generator_seed())
    size, epochs = sizes(context.world_size)
    images, labels = torch.randn(size, 5), torch.randint(3, (size,))
    model, taken, sums, reduced = nn.Linear(5, 3), [], [], []

    def note(module, inputs, scores):
        rows = (inputs[0].unsqueeze(1) == images).all(2).int().argmax(1)
        taken.extend(rows.tolist())
        sums.append(cross_entropy(scores.detach(), labels[rows], reduction="sum").item())

    def count(state, bucket):
        reduced.append(bucket.index())
        return allreduce_hook(None, bucket)

    model.register_forward_hook(note)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, count)
    returned = function(ddp, torch.optim.SGD(model.parameters(), lr=0.5), images, labels, epochs)

    def by_epoch(values):
        length = len(values) // epochs
        return [values[epoch * length:(epoch + 1) * length] for epoch in range(epochs)]

    return {"taken": by_epoch(taken), "loss sums": [sum(losses) for losses in by_epoch(sums)],
            "all-reduces": len(reduced), "returned": None if returned is None else list(returned)}


@exercise_on_ranks(
    measure_train,
    solution=train,
    hint="One mistake makes it hang, one leaves the ranks' models to themselves, one repeats an order. You have met "
    "all three: patients 3, 4 and 6.",
    mistakes={
        "Rank 0 alone all-reduces the sums, and the others do not take part.":
            partial(flawed, raw=True, reshuffled=False, alone=True),
        "Which object must the images go through, so that the gradients are all-reduced?": partial(flawed, raw=True),
        "The sampler does not know which epoch it is.": partial(flawed, reshuffled=False),
        "Yours is the loss of rank 0's images alone.": partial(flawed, reduced=False),
    },
)
def repaired(ranks):
    """All three are mended: the gradients are all-reduced, each epoch has an order of its own, and the loss is that of
    all images. Only one of the three had stopped the program."""
    returned, (images, epochs) = ranks[0]["returned"], sizes(len(ranks))
    if not returned or len(returned) != epochs:
        raise Wrong(f"Rank 0 returned {returned}. Return a list with the loss of each of the {epochs} epochs.")
    yield Case(all(measured["all-reduces"] for measured in ranks), True,
               "It ends, but no gradient was ever all-reduced: each rank trained a model of its own.")
    taken = [[measured["taken"][epoch] for measured in ranks] for epoch in range(epochs)]
    yield Case(all(sorted(sum(shards, [])) == list(range(images)) for shards in taken), True,
               "In an epoch each image must be taken once, by one of the ranks. Leave that to the sampler.")
    yield Case(taken[0] == taken[1], False,
               f"The models stay together now. But {'both' if epochs == 2 else 'the first two'} epochs take the images "
               f"in the same order: rank 0 begins with {', '.join(map(str, taken[0][0][:4]))} each time.")
    for epoch, loss in enumerate(returned):
        right = sum(measured["loss sums"][epoch] for measured in ranks) / images
        yield Case(loss, right, f"Epoch {epoch}: rank 0 returned the loss {loss:.4f}; that of all {images} images is "
                                f"{right:.4f}.", rel_tol=1e-4)


# Exercise 3: an instrument
def drifted(model):
    names = []
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        differs = (of_rank_0 != parameter).any().int()
        dist.all_reduce(differs, op=dist.ReduceOp.MAX)
        if differs:
            names.append(name)
    return names


def compared(model, copied=True, shared=True):
    """drifted with mistakes."""
    names = []
    for name, parameter in model.named_parameters():
        own = parameter.detach().clone()
        of_rank_0 = own.clone() if copied else parameter.data
        dist.broadcast(of_rank_0, src=0)
        differs = (of_rank_0 != own).any().int()
        if shared:
            dist.all_reduce(differs, op=dist.ReduceOp.MAX)
        if differs:
            names.append(name)
    return names


def by_the_norm(model):
    names = []
    for name, parameter in model.named_parameters():
        norms = [None] * dist.get_world_size()
        dist.all_gather_object(norms, round(parameter.norm().item(), 6))
        if len(set(norms)) > 1:
            names.append(name)
    return names


def all_names(model):
    return [name for name, _ in model.named_parameters()]


def returned_by_rank_0(model):
    names = drifted(model)
    return names if dist.get_rank() == 0 else None


def drifting():
    """(the parameter that one rank adds something to, the parameter whose rows it exchanges)."""
    return drawn_one(("0.bias", "3.weight"), lambda random: (
        random.choice(("0.weight", "2.bias")), random.choice(("2.weight", "3.weight"))))


def measure_drifted(function, context):
    """What the function says of two models: one the same on all ranks, one with weights that are not."""
    measured = []
    for drift in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2, bias=False))
        with torch.no_grad():
            if drift and context.rank == context.world_size - 1:
                added, flipped = map(model.get_parameter, drifting())
                added += 0.001
                flipped.copy_(flipped.flip(0))  # the sum and the norm stay
        before = copy.deepcopy(model).parameters()
        names = function(model)
        measured.append({"names": names if names is None else sorted(map(str, names)),
                         "changed": not all(map(torch.equal, before, model.parameters()))})
    return {"models": measured}


@exercise_on_ranks(
    measure_drifted,
    solution=drifted,
    hint="For each parameter: a copy, into which rank 0's values are broadcast; does it differ from your own? Then one "
    "more collective, so that every rank knows whether it does on any: dist.ReduceOp.MAX.",
    mistakes={
        "They do not agree: each knows its own comparison alone, and rank 0 has nothing to compare with but itself. "
        "Tell each other.": partial(compared, shared=False),
        "An instrument must not change what it measures: receive into a copy.": partial(compared, copied=False),
        "In a parameter that you did not name two rows had changed places: the sum and the norm are the same, the "
        "weights are not. Compare every number.": by_the_norm,
        "You named all parameters. Which of them differ?": all_names,
        "Every rank must return the list, not rank 0 alone.": returned_by_rank_0,
    },
)
def instrument(ranks):
    """The same list on every rank, and the model as it was. A few lines to keep: call it after the first step of each
    new script. (TORCH_DISTRIBUTED_DEBUG=DETAIL compares what ranks call, not what they hold.)"""
    for number, differing in enumerate(([], sorted(drifting()))):
        results = [measured["models"][number] for measured in ranks]
        changed = [rank for rank, result in enumerate(results) if result["changed"]]
        yield Case(changed, [], f"Your function changed the weights, on rank {' and '.join(map(str, changed))}.")
        weights = f"{' and '.join(differing)} differed on the last rank" if differing else "All weights were the same"
        got = [result["names"] for result in results]
        returned = "; ".join(f"rank {rank} returned {names}" for rank, names in enumerate(got))
        yield Case(got, [differing] * len(ranks), f"{weights}: {differing} is right, on every rank. But {returned}.")


# Exercise 4: undo the padding
def exact(hits, images):
    in_order = [hit for one_each in zip(*hits, strict=True) for hit in one_each]
    return sum(in_order[:images]) / images


def with_the_copies(hits, images):
    return sum(map(sum, hits)) / sum(map(len, hits))


def copies_among_the_hits(hits, images):
    return sum(map(sum, hits)) / images


def shards_joined(hits, images):
    return sum(sum(hits, [])[:images]) / images


def dealt(random):
    """Hits of each rank, as the sampler deals them, and the number of images: a prime, so that no fixed case has the
    same share of hits."""
    images, ranks = random.choice((11, 13, 17, 19, 23)), random.randint(2, 5)
    right = [1, *random.choices((0, 1), k=images - 2), 0]
    return [[right[place % images] for place in range(rank, -(-images // ranks) * ranks, ranks)]
            for rank in range(ranks)], images


@exercise(
    solution=exact,
    hint="DistributedSampler deals images out like cards: rank 0 gets image 0, rank 1 image 1, and so on. Put them "
    "back in order; the copies are at the end.",
    mistakes={
        "You counted the copies among the images: they must go.": with_the_copies,
        "You divided by the right number, but the hits of the copies are still in the sum.": copies_among_the_hits,
        "You joined the shards one behind the other. The sampler deals the images out in turn, so the copy is not at "
        "the end of the last shard alone.": shards_joined,
    },
)
def unpadded(answer):
    """The copies stand at the end of the order that the shards were dealt from, so a gathered result can be cut to the
    true length. Frameworks do it this way, for instance Accelerate's gather_for_metrics."""
    cases = [([[1, 1, 0, 0, 0], [1, 1, 0, 0, 1]], 9), ([[1, 0, 1], [0, 1, 1], [1, 0, 1]], 7),
             ([[1, 0], [0, 0]], 4)]
    for hits, images in drawn(cases, dealt):
        got, right = answer(copy.deepcopy(hits), images), exact(hits, images)
        yield Case(got, right, f"With the hits {hits} of {images} images you gave {got}; {right:.4f} is right.")
