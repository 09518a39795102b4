"""Exercises of lesson 09. All but the rate run on ranks: course/on_ranks.py says how."""

import copy
import math
from contextlib import nullcontext
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from course.cases import drawn, drawn_one, generator_seed, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

SIZES = [5, 2, 1], [1, 1, 6], [2, 2, 9]  # rows of each micro-batch, a list for each rank
FREE, TIGHT = 1e9, 0.05  # a norm that no gradient has, and one that every gradient has
IMAGES = (4, 0.5), (16, 2.0), (64, 0.1)  # cases of the noise scale: images of each rank, and how noisy one is


def rows_of_ranks(ranks):
    """SIZES; or for a grader others: no two alike on a rank, and more on the last rank than on the first."""
    def other(random):
        batches = random.choice((2, 4))
        rest = [random.sample(range(1, 10), batches) for _ in range(ranks - 2)]
        return random.sample(range(1, 5), batches), *rest, random.sample(range(6, 10), batches)

    return drawn_one(SIZES, other)


def learning_rate():
    return drawn_one(0.1, lambda random: random.choice((0.05, 0.2, 0.4)))


def images():
    """IMAGES; or for a grader others, as noisy as the true gradient is long: else G could come out as nearly 0."""
    return drawn_one(IMAGES, lambda random: [(size, round(math.sqrt(size * random.uniform(0.5, 4) / 200), 2))
                                             for size in random.sample((8, 24, 32, 128), 3)])

# ---------------------------------------------------------------------------------- on each rank: what a function does


def gradients_of_rows(model, data):
    """The sum of the gradients over the rows of each micro-batch, flat, and its rows: two lists of lists."""
    sums = [[torch.cat([part.flatten() for part in torch.autograd.grad(
        cross_entropy(model(inputs), labels, reduction="sum"), list(model.parameters()))])
        for inputs, labels in of_rank] for of_rank in data]
    return sums, [[len(labels) for _, labels in of_rank] for of_rank in data]


def directions(sums, rows):
    """{name: the gradient that an update follows}: the right one, and those of the typical mistakes."""
    everyone, all_rows = sum(map(sum, sums)), sum(map(sum, rows))
    means = [[total / count for total, count in zip(*of_rank, strict=True)] for of_rank in zip(sums, rows, strict=True)]
    each = len(sums), len(sums[0])
    return {"right": everyone / all_rows,
            "mean of means": sum(map(sum, means)) / math.prod(each), "sum of means": sum(map(sum, means)) / each[0],
            "own rows": sum(sum(of_rank) / sum(counts) for of_rank, counts in zip(sums, rows, strict=True)) / each[0],
            "not times the ranks": everyone / all_rows / each[0], "sum": everyone / each[0]}


def measure_update(function, here):
    """The name of the gradient that the function's update followed, where nothing is clipped and where it is; and how
    it got there."""
    found, rate = {"all_reduces": 0, "rows": 0, "steps": 0, "followed": [], "unlimited": []}, learning_rate()
    numbers = torch.Generator().manual_seed(generator_seed())
    data = [[(torch.randn(size, 5, generator=numbers), torch.randint(3, (size,), generator=numbers))
             for size in of_rank] for of_rank in rows_of_ranks(here.world_size)]
    torch.manual_seed(0)
    first = nn.Linear(5, 3)
    known = directions(*gradients_of_rows(first, data))
    for limit in (FREE, TIGHT):
        model = copy.deepcopy(first)
        seen = {"all_reduces": 0, "rows": 0, "steps": 0}

        def count(group, bucket, seen=seen):
            seen["all_reduces"] += 1
            return allreduce_hook(group, bucket)

        def forward(_, arguments, seen=seen):
            seen["rows"] = max(seen["rows"], len(arguments[0]))

        def stepped(*_, seen=seen):
            seen["steps"] += 1

        model.register_forward_pre_hook(forward)
        parallel, optimizer = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=rate)
        parallel.register_comm_hook(None, count)
        optimizer.register_step_post_hook(stepped)
        function(parallel, data[here.rank], optimizer, limit)
        path = torch.cat([(before - after).detach().flatten() for before, after in
                          zip(first.parameters(), model.parameters(), strict=True)]) / rate
        limited = {name: way * min(1, limit / way.norm().item()) for name, way in known.items()}
        found["followed"].append([name for name, way in limited.items() if near(path, way)])
        found["unlimited"].append([name for name, way in known.items() if near(path, way)])
        found |= {name: max(found[name], value) for name, value in seen.items()}
    return found


def near(path, way):
    return ((path - way).norm() <= 1e-3 * way.norm()).item()


def gradient_of(rank, batch_size, noise):
    """A rank's gradient: the true one, and what the mean over `batch_size` images has left of an image's noise."""
    true, own = (torch.randn(200, generator=torch.Generator().manual_seed(number + generator_seed()))
                 for number in (7, rank))
    return true / 10 + noise * own / math.sqrt(batch_size)


def measure_noise(function, here):
    """What the function says in each case, and whether it changed the gradient that it was given."""
    found = {"got": [], "changed": False}
    for batch_size, noise in images():
        gradient = gradient_of(here.rank, batch_size, noise)
        before = gradient.clone()
        got = function(gradient, batch_size)
        if got is None:
            raise Wrong(f"On rank {here.rank} it returned None. Every rank needs the number.")
        found["got"].append(float(got))
        found["changed"] |= not torch.equal(before, gradient)
    return found


answers = Answers({"my_update": measure_update, "my_noise_scale": measure_noise})


# Exercise 1: the rate of each update
def my_rate(lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs):
    times = ranks * batch_size / batch  # how many times as large the batch of an update is
    risen = min(1, update / (warmup_epochs * per_epoch))
    return lr * (1 + (times - 1) * risen)


@exercise(
    solution=my_rate,
    hint="How high does it rise? All ranks together take ranks * batch_size images an update: how many times as many "
    "as `batch`? How far has it risen? From 0 at the first update to 1 after warmup_epochs * per_epoch, no further. "
    "The rise begins at lr, not at 0.",
    mistakes={
        "You went by the number of ranks. An update now sees {images} images: {times:g} times as many as before.":
            lambda lr, batch, ranks, batch_size, *when: my_rate(lr, batch, ranks, batch, *when),
        "The warm-up begins at the old rate, `lr`, not at 0.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                lr * ranks * batch_size / batch * min(1, update / (warmup_epochs * per_epoch))),
        "The warm-up has ended by then: the rate rises no further.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                lr * (1 + (ranks * batch_size / batch - 1) * update / (warmup_epochs * per_epoch))),
        "It rises once an epoch. From each update to the next it shall rise a little.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                my_rate(lr, batch, ranks, batch_size, update // per_epoch, 1, warmup_epochs)),
        "You took `update` as if it counted epochs. An epoch has {per_epoch} updates.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                my_rate(lr, batch, ranks, batch_size, update, 1, warmup_epochs)),
        "That is the full rate. In the warm-up it is still on its way there.":
            lambda lr, batch, ranks, batch_size, *when: lr * ranks * batch_size / batch,
    },
)
def rate(attempt):
    """The rule speaks of the images an update sees, not of ranks: 8 ranks of 8 images each change nothing where 64 were
    right. main.py does the same with --lr-scaling linear --warmup-epochs."""
    sizes = (0.01, 64, 8, 64), (0.01, 64, 8, 8), (0.1, 256, 256, 32), (0.4, 128, 2, 32)
    times = (1, 20, 2), (10, 20, 1), (0, 20, 1), (30, 20, 2), (40, 20, 2), (100, 20, 2)
    sizes = drawn(sizes, lambda random: (random.randint(1, 40) / 100, random.choice([32, 64, 128]),
                                         random.randint(2, 64), random.choice([8, 16, 32, 48])))
    times = drawn(times, lambda random: (random.randint(0, 90), random.randint(5, 40), random.randint(1, 4)))
    for miss in misses(rate, attempt, [(*size, *when) for size, when in product(sizes, times)]):
        _, batch, ranks, batch_size, *_ = miss.asked
        images = ranks * batch_size
        miss.tell("{lr:g} was right for {batch} images an update. {ranks} ranks of {batch_size} each, update number "
                  "{update}, {per_epoch} updates an epoch, {warmup_epochs} epoch(s) of warm-up: you said {got:.4g}.",
                  "It is {right:.4g}.",
                  images=images, times=images / batch)


# Exercise 3: one update from micro-batches of unequal size
def my_update(ddp, micro_batches, optimizer, max_norm):
    device = micro_batches[0][1].device  # NCCL adds up what lies on a GPU
    rows = torch.tensor(float(sum(len(labels) for _, labels in micro_batches)), device=device)
    dist.all_reduce(rows)  # of all ranks
    for number, (inputs, labels) in enumerate(micro_batches, start=1):
        last = number == len(micro_batches)
        with nullcontext() if last else ddp.no_sync():
            loss = cross_entropy(ddp(inputs), labels, reduction="sum") / rows
            (loss * dist.get_world_size()).backward()  # DDP divides by it
    clip_grad_norm_(ddp.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()


WEIGHTS = {  # by what the sum of a micro-batch's losses is multiplied
    "right": lambda size, batches, own, rows, ranks: ranks / rows,
    "mean of means": lambda size, batches, own, rows, ranks: 1 / size / batches,
    "sum of means": lambda size, batches, own, rows, ranks: 1 / size,
    "own rows": lambda size, batches, own, rows, ranks: 1 / own,
    "not times the ranks": lambda size, batches, own, rows, ranks: 1 / rows,
    "sum": lambda size, batches, own, rows, ranks: 1,
}


def wrong_update(ddp, micro_batches, optimizer, max_norm, weight="right", clip="after", sync="last", step="after"):
    """An update with one mistake."""
    own = sum(len(labels) for _, labels in micro_batches)
    rows = torch.tensor(float(own))
    dist.all_reduce(rows)
    for number, (inputs, labels) in enumerate(micro_batches, start=1):
        synced = {"last": number == len(micro_batches), "all": True, "none": False}[sync]
        with nullcontext() if synced else ddp.no_sync():
            counts = len(labels), len(micro_batches), own, rows.item(), dist.get_world_size()
            (cross_entropy(ddp(inputs), labels, reduction="sum") * WEIGHTS[weight](*counts)).backward()
        if clip == "each":
            clip_grad_norm_(ddp.parameters(), max_norm)
        if step == "each":
            optimizer.step()
    if clip == "after":
        clip_grad_norm_(ddp.parameters(), max_norm)
    if step == "after":
        optimizer.step()
    optimizer.zero_grad()


def one_large_batch(ddp, micro_batches, optimizer, max_norm):
    inputs, labels = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    my_update(ddp, [(inputs, labels)], optimizer, max_norm)


@exercise(
    solution=my_update,
    hint="Let each micro-batch give the sum of its losses, cross_entropy(..., reduction=\"sum\"). By what number must "
    "the sum over all ranks be divided, how does a rank learn it, and what does DDP divide by already? "
    "clip_grad_norm_ comes when .grad holds the mean over all ranks.",
    mistakes={
        **{name: partial(wrong_update, weight=name) for name in WEIGHTS if name != "right"},
        "clipped after each backward": partial(wrong_update, clip="each"),
        "not clipped": partial(wrong_update, clip="never"), "no no_sync": partial(wrong_update, sync="all"),
        "no_sync around all": partial(wrong_update, sync="none"), "a step each": partial(wrong_update, step="each"),
        "one large batch": one_large_batch,
    },
)
def update(attempt):
    """One all-reduce of the gradients, and the update of one process with all rows in one batch, clipped or not:
    batches of any size can be taken together. Language models need this, because their texts have unequal numbers
    of words."""
    ranks = answers.findings("my_update", attempt)
    one, sizes = ranks[0], rows_of_ranks(len(ranks))
    if (rows := max(rank["rows"] for rank in ranks)) > max(map(max, sizes)):
        raise Wrong(f"A forward saw {rows} rows, and the largest micro-batch has {max(map(max, sizes))}. They "
                    "are small because more does not fit in memory: give ddp one of them at a time.")
    if one["steps"] != 1:
        raise Wrong(f"The optimizer made {one['steps']} steps. All micro-batches together are one update.")
    if one["all_reduces"] != 1:
        raise because(f"{one['all_reduces']} all-reduces of the gradients for {len(sizes[0])} micro-batches.",
                      (one["all_reduces"] == 0, "So each rank followed its own rows, and the weights differ. The "
                       "forward and backward of the last micro-batch must be outside no_sync."),
                      (True, "One is enough: all forwards and backwards but the last belong inside `with "
                       "ddp.no_sync():`."))
    free, tight = one["followed"]
    if "right" not in free:
        raise because(
            "Not clipped, the update is not that of one process with all rows in one batch.",
            ("mean of means" in free, "You took the mean over the micro-batches: a row of a small one counts for more "
             "than a row of a large one."),
            ("sum of means" in free, "You added up the means of the micro-batches: it goes too far, and a row of a "
             "small one counts for more."),
            ("own rows" in free, "Each rank divided by its own rows, and DDP took the mean: the rows of a rank "
             "that has few count for more. The ranks must learn how many rows there are in all."),
            ("not times the ranks" in free, f"It has the right direction, but is {len(ranks)} times too short: DDP "
             "divides the sum over the ranks by their number, too."),
            ("sum" in free, "It has the right direction, but is too long: the sum over all rows "
             "is to be divided by their number."),
            (True, "Are the gradients of all micro-batches in it, each row with the same weight?"))
    if "right" not in tight:
        raise because(
            "Not clipped, the update is right. With a small max_norm it is not.",
            ("right" in one["unlimited"][1], "There you went as far as without a limit: clip_grad_norm_ is missing, or "
             "comes after the step."),
            (True, "Clipping is not linear: parts that were clipped, added up, are not their sum, clipped. Do it once, "
             "when .grad holds the mean over all ranks."))


# Exercise 2: the noise scale, from the gradients of the ranks
def my_noise_scale(gradient, batch_size):
    ranks = dist.get_world_size()
    mean, small = gradient.clone(), gradient.square().sum()
    dist.all_reduce(mean)
    dist.all_reduce(small)
    small, large = small / ranks, (mean / ranks).square().sum()  # of batch_size images, and of `many`
    many = ranks * batch_size
    noise = (small - large) / (1 / batch_size - 1 / many)
    true = small - noise / batch_size
    return (noise / true).item()


def solved(small, large, batch_size, many):
    noise = (small - large) / (1 / batch_size - 1 / many)
    return noise / (small - noise / batch_size)


SCALES = {  # from a squared norm of one rank, or the mean of all, and that of the mean gradient
    "right": lambda small, large, b, ranks: solved(small, large, b, b * ranks),
    "norms": lambda small, large, b, ranks: solved(small.sqrt(), large.sqrt(), b, b * ranks),
    "sum": lambda small, large, b, ranks: solved(small, large * ranks**2, b, b * ranks),
    "squares": lambda small, large, b, ranks: solved(small * ranks, large, b, b * ranks),
    "ranks": lambda small, large, b, ranks: solved(small, large, 1, ranks),
    "by the mean gradient": lambda small, large, b, ranks: (small - large) / (1 / b - 1 / (b * ranks)) / large,
}


def wrong_noise_scale(gradient, batch_size, name="right", own=False):
    ranks = dist.get_world_size()
    mean, squares = gradient.clone(), gradient.square().sum()
    dist.all_reduce(mean)
    if not own:
        dist.all_reduce(squares)
        squares /= ranks
    return SCALES[name](squares, (mean / ranks).square().sum(), batch_size, ranks).item()


def noise_in_place(gradient, batch_size):
    kept = gradient.clone()
    dist.all_reduce(gradient)
    return my_noise_scale(kept, batch_size)


@exercise(
    solution=my_noise_scale,
    hint="Two equations, two unknowns: small = G + S / b and large = G + S / (b * W). Subtract them to get S, then G. "
    "`small` is the mean of the ranks' squared norms; `large` is the squared norm of the ranks' mean gradient.",
    mistakes={
        **{name: partial(wrong_noise_scale, name=name) for name in SCALES if name != "right"},
        "its own norm": partial(wrong_noise_scale, own=True), "in place": noise_in_place,
    },
)
def noise_scale(attempt):
    """The ranks know the noise scale from gradients that they have anyway, for one more all-reduce of a single number.
    One step gives a poor estimate: take the means of both unknowns over many steps, then divide."""
    ranks = answers.findings("my_noise_scale", attempt)
    for case, (batch_size, noise) in enumerate(images()):
        got = [rank["got"][case] for rank in ranks]
        each = torch.stack([gradient_of(rank, batch_size, noise) for rank in range(len(ranks))])
        norms = each.square().sum(1).mean(), each.mean(0).square().sum()
        known = {name: of(*norms, batch_size, len(ranks)).item() for name, of in SCALES.items()}
        said = (f"{len(ranks)} ranks, {batch_size} images each: you said {', '.join(f'{value:.4g}' for value in got)}; "
                f"it is {known['right']:.4g}.")

        def is_of(name, got=got, known=known):
            return all(math.isclose(value, known[name], rel_tol=1e-3) for value in got)

        if not is_of("right"):
            raise because(
                said,
                (max(got) - min(got) > 1e-3 * abs(got[0]), "The ranks do not agree: the squared norm of one rank's "
                 "gradient is a rank's own. Take the mean over the ranks."),
                (is_of("norms"), "These are norms. The noise adds up in their squares."),
                (is_of("sum"), "That is the sum of the ranks' gradients. The global batch has their mean."),
                (is_of("squares"), "You added up the squared norms of the ranks: `small` is their mean."),
                (is_of("ranks"), f"You counted in ranks, and the batches are of images: {batch_size} and "
                 f"{len(ranks) * batch_size}."),
                (is_of("by the mean gradient"), "You divided by the squared norm of the mean gradient. "
                 "That has noise in it, too: G is less."))
    if any(rank["changed"] for rank in ranks):
        raise Wrong("The numbers are right, but your function changed the gradient: all_reduce overwrites the tensor "
                    "that it gets. The optimizer still needs it: give it a clone.")
