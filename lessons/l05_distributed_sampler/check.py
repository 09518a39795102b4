"""Exercises of lesson 05: the parts shard and evaluate of the learner's program. What is right is what one process
sees, or counts."""

from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import exercise_on_ranks
from lessons.start.ours.evaluate import evaluate as our_evaluate
from lessons.start.ours.shard import shard as our_shard


# Exercise 1: the shard of a rank
def not_shuffled(n, rank, world_size, epoch):
    return list(range(rank, n, world_size))


def shuffled_within(n, rank, world_size, epoch):
    mine = torch.arange(rank, n, world_size)
    return mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch))].tolist()


def blocks(n, rank, world_size, epoch):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()
    return order[rank * n // world_size:(rank + 1) * n // world_size]


def refuse(*args, **kwargs):
    raise Wrong("Your function asks the sampler, and the exercise is to do without it.")


@exercise(
    solution=our_shard,
    hint=(
        "No rank can ask another one. So each must work out the same order of all n images by itself, another "
        "one in each epoch. What do all ranks know, and what can a random generator begin with?",
        "Write down an order of 12 images, and cut it into batches of 6, as one process does. Which places of it "
        "can rank 0 of 2 take, if each batch is to be shared, whatever its size?",
        "`torch.randperm(n, generator=torch.Generator().manual_seed(…)).tolist()`, with the argument that is the "
        "same on all ranks and new in each epoch. Of that order every `world_size`-th image, beginning with the "
        "place `rank`."),
    mistakes={
        "Look at train.py: nothing else shuffles. torch.randperm(n) is an order of n images.": not_shuffled,
        "A random generator without a seed begins differently in each process, and the ranks are processes. They need "
        "one order: which seed do all ranks know?":
            mistake(our_shard, {"torch.Generator().manual_seed(epoch)": "None"}),
        "The seed is the same in each epoch. Which of the four arguments says that a new one has begun?":
            mistake(our_shard, {"manual_seed(epoch)": "manual_seed(0)"}),
        "Each rank takes the whole order. Which part of it is this rank's?":
            mistake(our_shard, {"[rank::world_size]": ""}),
        "Each rank has an order of its own, so what one leaves to the others is not what they take. The seed must not "
        "depend on the rank.": mistake(our_shard, {"manual_seed(epoch)": "manual_seed(1000 * rank + epoch)"}),
        "First you share out the images, and then each rank shuffles its own. So it never sees those of the others. "
        "Shuffle all n first.": shuffled_within,
        "These are blocks: rank 0 has the first part of the order. One process comes to the second part when half of "
        "the epoch is over. Deal the order like cards: one image to each rank in turn.": blocks,
    },
)
def shard(answer):
    """The ranks agree on an order without a message, and it is another one in each epoch. Whatever the batch size,
    the k-th shares of all ranks are the k-th batch of one process."""

    def images(n, rank, world_size, epoch):
        return [int(image) for image in answer(n, rank, world_size, epoch)]

    with mock.patch.object(DistributedSampler, "__init__", refuse), torch.random.fork_rng([]):
        state = torch.get_rng_state()
        one, again = images(24, 0, 1, 0), images(24, 0, 1, 0)
        reseeded = not torch.equal(state, torch.get_rng_state())
        yield Case(sorted(one), list(range(24)),
                   f"With n=24, rank=0, world_size=1, epoch=0 you gave {one}. One process alone sees each image once.")
        yield Case(one == list(range(24)), False,
                   "With world_size=1 you gave 0 to 23 in their own order. The images must be shuffled.")
        yield Case(one == again, True, f"Asked twice for n=24, rank=0, world_size=1, epoch=0 you gave {one}, then "
                                       f"{again}. Two ranks would be as far apart.")
        yield Case(one == images(24, 0, 1, 1), False,
                   f"In epochs 0 and 1 you gave the same order, {one}. Each epoch needs another one.")
        ranks = [images(24, rank, 2, 0) for rank in range(2)]
        seen = sum(ranks, [])
        yield Case(len(seen), 24, f"Of n=24 images two ranks together took {len(seen)}.")
        yield Case(sorted(seen) == list(range(24)), True,
                   f"With n=24, world_size=2, epoch=0 rank 0 took {ranks[0]} and rank 1 {ranks[1]}: "
                   f"{24 - len(set(seen))} of the images are seen by nobody.")
        yield Case({*ranks[0]} == {*images(24, 0, 2, 1)}, False,
                   f"With n=24, world_size=2 rank 0 takes the images {sorted(ranks[0])} in epochs 0 and 1 alike.")
        for n, world_size, epoch in [(24, 2, 0), (24, 4, 3), (21, 8, 1)]:
            one, places = images(n, 0, 1, epoch), n // world_size  # beyond these it is yours to pad or to drop
            ranks = [images(n, rank, world_size, epoch) for rank in range(world_size)]
            got = [sorted(one.index(rank[k]) for rank in ranks) for k in range(places)]
            right = [list(range(k * world_size, (k + 1) * world_size)) for k in range(places)]
            yield Case(got, right, f"With n={n}, epoch={epoch} one process takes {one[:world_size]} first, and then "
                                   f"{one[world_size:2 * world_size]}. The ranks' first images are "
                                   f"{[rank[0] for rank in ranks]}, their second ones {[rank[1] for rank in ranks]}.",
                       remark=reseeded * "One thing to mend: it gives torch's own generator a seed, from which "
                       "dropout draws. A torch.Generator() is one of your own." if n == 21 else "")


# Exercise 2: each test image counts once
N, RIGHT = 7, {0, 3, 5}  # test images, and those on which the model is right


class Answers(nn.Module):
    """Logits [B, 2] for images [B, 1] that hold their own number: class 1 for those in RIGHT. All labels are 1."""

    def forward(self, images):
        return nn.functional.one_hot(torch.tensor([int(image) in RIGHT for image in images]).long(), 2).float()


def measure_evaluate(evaluate, context):
    """This rank's images, and the accuracy that it returned."""
    seen = []

    def batch(indices):
        numbers = [int(index) for index in indices]
        seen.extend(numbers)
        return torch.tensor(numbers, dtype=torch.float32)[:, None], torch.ones(len(numbers), dtype=torch.long)

    accuracy = evaluate(Answers(), batch, N, context.rank, context.world_size, dist.all_reduce)
    return {"seen": seen, "accuracy": None if accuracy is None else float(accuracy)}


SHARE = "range(rank, n, world_size)"
MEAN = {"    all_reduce(right)": "    right = right / len(mine)\n    all_reduce(right)"}


@exercise_on_ranks(
    measure_evaluate,
    solution=our_evaluate,
    hint=(
        "Each rank takes some of the n images: none is left out, and none comes twice. So the ranks need not "
        "have equally many.",
        "Two numbers make an accuracy. Which of them does each rank know from the start, and which has to come "
        "from all ranks? `all_reduce(tensor)` changes the tensor that it is given.",
        "`images, labels = batch(list(range(rank, n, world_size)))`, `right = (model(images).argmax(1) == "
        "labels).sum()`, `all_reduce(right)`. Then divide by the images of all ranks, and return a number: "
        "`right.item() / …`."),
    mistakes={
        "The sampler makes all shares equally long, and repeats images for that. In training nobody notices. Here they "
        "count twice.": mistake(our_evaluate, {
            f"mine = {SHARE}": "mine = [place % n for place in range(rank, n + -n % world_size, world_size)]",
            "right.item() / n": "right.item() / (n + -n % world_size)"}),
        "You leave out the images that do not make a full round.": mistake(our_evaluate, {
            SHARE: "range(rank, n // world_size * world_size, world_size)",
            "right.item() / n": "right.item() / (n // world_size * world_size)"}),
        "Each rank evaluates all images. The ranks are there to share them.": mistake(our_evaluate, {
            SHARE: "range(n)", "    all_reduce(right)": "    "}),
        "Each rank gives the accuracy on its own images: nothing has come from the other ranks.":
            mistake(our_evaluate, {"    all_reduce(right)": "    ", "right.item() / n": "right.item() / len(mine)"}),
        "Each rank divides its own right answers by the images of all ranks. The right answers of the others are "
        "missing.": mistake(our_evaluate, {"    all_reduce(right)": "    "}),
        "This is the mean of the ranks' accuracies. An image counts more there if its rank has few: add up the right "
        "answers, and divide last.": mistake(our_evaluate, {**MEAN, "right.item() / n": "right.item() / world_size"}),
        "You add up the ranks' accuracies. Add up the right answers, and divide last.":
            mistake(our_evaluate, {**MEAN, "right.item() / n": "right.item()"}),
        "The right answers are those of all ranks, and you divide them by the images of one.":
            mistake(our_evaluate, {"right.item() / n": "right.item() / len(mine)"}),
    },
    ranks=(2, 3),
)
def evaluate(ranks):
    """Each image counts once, also where the ranks have unequal numbers of them, and every rank has the accuracy of one
    process."""
    seen = sum((rank["seen"] for rank in ranks), [])
    yield Case(sorted(seen), list(range(N)),
               f"Of n={N} images on {len(ranks)} ranks the ranks evaluated {[rank['seen'] for rank in ranks]}: "
               f"{len(seen) - len(set(seen))} more than once, {N - len(set(seen))} left out.")
    got = [rank["accuracy"] for rank in ranks]
    shown = ", ".join("None" if each is None else f"{each:.4f}" for each in got)
    yield Case(got, [len(RIGHT) / N] * len(ranks),
               f"The model is right on {len(RIGHT)} of n={N} images, an accuracy of {len(RIGHT) / N:.4f}. On "
               f"{len(ranks)} ranks your function returned {shown}.")
