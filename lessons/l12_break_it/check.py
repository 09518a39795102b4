"""Exercises of notebook 12. The first is about the five runs of lessons/l12_break_it/detective.py, and owns their
letters;
two run on ranks, and course/on_ranks.py says how."""

import random
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course.cases import drawn, drawn_one, generator_seed, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

IMAGES, EPOCHS = 24, 2  # what `train` is given: shards are equal

# Exercise 1: five runs
# What the log of a run with this mistake shows, and where to look for it.
SIGNS = {
    "set_epoch": ("the first images of epoch 1 are those of epoch 0", "the first images of both epochs"),
    "rank_0_loss": ("the loss of the epoch is the very loss of rank 0, and not between those of the ranks",
                    "the three losses of an epoch"),
    "batch_per_process": ("an epoch has half as many updates as the others", "the number of updates"),
    "ddp_module": ("the weight norms of the ranks differ", "the weight norms"),
    "padded_evaluation": ("more test images are counted than there are", "the test"),
}
TRUTH = dict(zip("ABCDE", random.Random(12).sample(list(SIGNS), len(SIGNS)), strict=True))  # which run has which


def swapped(one, other):
    """The truth with two letters changed for each other: a typical wrong answer."""
    where = {fault: letter for letter, fault in TRUTH.items()}
    return TRUTH | {where[one]: other, where[other]: one}


@exercise(
    solution=TRUTH,
    hint="Compare the runs line by line. Which one has another number of updates? In which one do the ranks' weights "
    "differ? What do the two epochs of a run have in common? How many test images are there?",
    mistakes={"no drift seen": swapped("ddp_module", "set_epoch"),
              "the loss and the test": swapped("rank_0_loss", "padded_evaluation"),
              "all the same": dict.fromkeys("ABCDE", "set_epoch")},
)
def five_runs(attempt):
    """All five are found: the order that repeats, the loss of one rank, the batch that has doubled, the models that
    drift apart, the image that counts twice. None of the runs gave a warning; the lines that show it were printed on
    purpose. Print them in your own runs, too."""
    if callable(attempt):
        attempt = attempt()
    if not isinstance(attempt, dict) or set(attempt) != set(TRUTH):
        raise Wrong('Answer with a dict that has the letters A to E, such as {"A": "set_epoch", ...}.')
    if unknown := set(attempt.values()) - set(SIGNS):
        raise Wrong(f"There is no mistake {unknown.pop()!r}. The five are: {', '.join(SIGNS)}.")
    for letter, fault in attempt.items():
        if fault != TRUTH[letter]:
            raise Wrong(f"Run {letter} is not {fault}: with that {SIGNS[fault][0]}, and that is not so here. Compare "
                        f"{SIGNS[TRUTH[letter]][1]} with those of the other runs. "
                        f"({sum(attempt[one] == TRUTH[one] for one in TRUTH)} of 5 are right.)")


def given(ranks):
    """(images, epochs) of `train`."""
    return drawn_one((IMAGES, EPOCHS), lambda random: (ranks * random.choice((7, 9, 11)), random.choice((3, 4))))


def drifting():
    """(the parameter to which something is added, the one whose rows change places)."""
    return drawn_one(("0.bias", "3.weight"), lambda random: (
        random.choice(("0.weight", "2.bias")), random.choice(("2.weight", "3.weight"))))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure_train(function, here):
    """Which images each epoch took, the all-reduces of gradients, the losses, and what the function returned."""
    torch.manual_seed(generator_seed())
    size, epochs = given(here.world_size)
    images, labels = torch.randn(size, 5), torch.randint(3, (size,))
    model, taken, sums, sent = nn.Linear(5, 3), [], [], []

    def note(module, inputs, scores):
        rows = (inputs[0].unsqueeze(1) == images).all(2).int().argmax(1)
        taken.extend(rows.tolist())
        sums.append(cross_entropy(scores.detach(), labels[rows], reduction="sum").item())

    def count(state, bucket):
        sent.append(bucket.index())
        return allreduce_hook(None, bucket)

    model.register_forward_hook(note)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, count)
    got = function(ddp, torch.optim.SGD(model.parameters(), lr=0.5), images, labels, epochs)
    one_epoch = len(sums) // epochs
    return {"taken": taken, "all_reduces": len(sent), "steps": len(sums), "got": None if got is None else list(got),
            "sums": [sum(sums[epoch * one_epoch:(epoch + 1) * one_epoch]) for epoch in range(epochs)]}


def measure_drifted(function, here):
    """What the function says of two models: one the same on all ranks, one in which some weights are not."""
    found = []
    for drift in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2, bias=False))
        with torch.no_grad():
            if drift and here.rank == here.world_size - 1:
                added, flipped = map(model.get_parameter, drifting())
                added += 0.001
                flipped.copy_(flipped.flip(0))  # the sum and the norm stay
        before = [parameter.detach().clone() for parameter in model.parameters()]
        got = function(model)
        moved = any(not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        found.append({"got": got if got is None else sorted(map(str, got)), "moved": moved})
    return {"models": found}


answers = Answers({"train": measure_train, "drifted": measure_drifted})


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


def flawed(ddp, optimizer, images, labels, epochs, raw=False, told=True, reduced=True, alone=False):
    """The solution with mistakes."""
    sampler, means = DistributedSampler(images, shuffle=True), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch if told else 0)
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


@exercise(
    solution=train,
    hint="One mistake makes it hang, one leaves the ranks' models to themselves, one repeats an order. You have met "
    "all three: patients 3, 4 and 6.",
    mistakes={"as it was given": partial(flawed, raw=True, told=False, alone=True),
              "the raw model": partial(flawed, raw=True), "the same order": partial(flawed, told=False),
              "the loss of rank 0": partial(flawed, reduced=False)},
)
def repaired(attempt):
    """All three are mended: the gradients are all-reduced, each epoch has an order of its own, and the loss is that of
    all images. Only one of the three had stopped the program."""
    ranks = answers.findings("train", attempt)
    got, took, (images, asked) = ranks[0]["got"], [rank["taken"] for rank in ranks], given(len(ranks))
    if not got or len(got) != asked:
        raise Wrong(f"Rank 0 returned {got}. It must return a list with the loss of each of {asked} epochs.")
    if not all(rank["all_reduces"] for rank in ranks):
        raise Wrong("It ends, but no gradient was ever all-reduced: each rank trained a model of its own. Which object "
                    "must the images go through?")
    epochs = [[order[number * len(order) // asked:(number + 1) * len(order) // asked] for order in took]
              for number in range(asked)]
    if any(sorted(sum(orders, [])) != list(range(images)) for orders in epochs):
        raise Wrong("In an epoch each image must be taken once, by one of the ranks. Leave that to the sampler.")
    if epochs[0] == epochs[1]:
        raise Wrong(f"The models stay together now. But {'both' if asked == 2 else 'the first two'} epochs take the "
                    "images in the same order: rank 0 begins "
                    f"with {', '.join(map(str, epochs[0][0][:4]))} each time.")
    for epoch, loss in enumerate(got):
        own = ranks[0]["sums"][epoch] / len(epochs[epoch][0])
        right = sum(rank["sums"][epoch] for rank in ranks) / images
        if abs(loss - right) > 1e-4:
            raise because(f"Epoch {epoch}: rank 0 returned the loss {loss:.4f}; of all {images} images it is "
                          f"{right:.4f}.", (abs(loss - own) < 1e-4, "Yours is that of rank 0's images alone."))


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


def each_for_itself(model):
    names = []
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        if (of_rank_0 != parameter).any():
            names.append(name)
    return names


def into_the_model(model):
    names = []
    for name, parameter in model.named_parameters():
        before = parameter.detach().clone()
        dist.broadcast(parameter.data, src=0)
        differs = (before != parameter).any().int()
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


@exercise(
    solution=drifted,
    hint="For each parameter: a copy, into which rank 0's values are broadcast; does it differ from your own? Then one "
    "more collective, so that every rank knows whether it does on any: dist.ReduceOp.MAX.",
    mistakes={"each rank for itself": each_for_itself, "it repairs, and does not tell": into_the_model,
              "by the norm": by_the_norm, "all of them": all_names},
)
def instrument(attempt):
    """The same list on every rank, and the model as it was. A few lines to keep: call it after the first step of each
    new script. (TORCH_DISTRIBUTED_DEBUG=DETAIL compares what ranks call, not what they hold.)"""
    models = list(zip(*(rank["models"] for rank in answers.findings("drifted", attempt)), strict=True))
    if any(one["moved"] for of_model in models for one in of_model):
        raise Wrong("Your function changed the weights. An instrument must not: receive into a copy.")
    added, flipped = drifting()
    for of_model, right in zip(models, ([], sorted(drifting())), strict=True):
        told = [one["got"] for one in of_model]
        if told == [right] * len(told):
            continue
        case = "All ranks had the same weights" if not right else f"{' and '.join(right)} differed on the last rank"
        said = "; ".join(f"rank {rank}: {names}" for rank, names in enumerate(told))
        raise because(
            f"{case}. What the ranks returned: {said}.",
            (None in told, "Every rank must return a list."),
            (any(names != told[0] for names in told), "They do not agree: each knows its own comparison alone, and "
             "rank 0 has nothing to compare with but itself. Tell each other."),
            (not right, "None of them may be named."),
            (told[0] == [added], f"In {flipped} two rows had changed places: the sum and the norm are the same, the "
             "weights are not. Compare every number."))


# Exercise 4: undo the padding
def dealt(random):
    """Hits of each rank, as the sampler deals them, and the number of images: a prime, so that no fixed case's share of
    hits is this one's."""
    images, ranks = random.choice((11, 13, 17, 19, 23)), random.randint(2, 5)
    right = [1, *random.choices((0, 1), k=images - 2), 0]
    return [[right[place % images] for place in range(rank, -(-images // ranks) * ranks, ranks)]
            for rank in range(ranks)], images


def exact(hits, images):
    in_order = [hit for one_each in zip(*hits, strict=True) for hit in one_each]
    return sum(in_order[:images]) / images


@exercise(
    solution=exact,
    hint="DistributedSampler deals images out like cards: rank 0 gets image 0, rank 1 image 1, and so on. Put them "
    "back in order; the copies are at the end.",
    mistakes={
        "You counted {counted} images: the copies must go.":
            lambda hits, images: sum(map(sum, hits)) / sum(map(len, hits)),
        "You divided by the right number, but the hits of the copies are still in the sum.":
            lambda hits, images: sum(map(sum, hits)) / images,
        "You joined the shards one behind the other. The sampler deals the images out in turn, so the copy is not at "
        "the end of the last shard alone.": lambda hits, images: sum(sum(hits, [])[:images]) / images,
    },
)
def unpadded(attempt):
    """The copies stand at the end of the order that the shards were dealt from, so a gathered result can be cut to the
    true length. Frameworks do it this way, for instance Accelerate's gather_for_metrics."""
    cases = [([[1, 1, 0, 0, 0], [1, 1, 0, 0, 1]], 9), ([[1, 0, 1], [0, 1, 1], [1, 0, 1]], 7),
             ([[1, 0], [0, 0]], 4)]
    cases = drawn(cases, dealt)
    for miss in misses(unpadded, attempt, cases):
        miss.tell("With the hits {hits} of {images} images you gave {got:.4f}; it is {right:.4f}.",
                  counted=sum(map(len, miss.asked[0])))
