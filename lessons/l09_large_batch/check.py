"""Exercises of lesson 09: the rate of an update, the noise scale, and one update from unequal micro-batches."""

import copy
import math
from contextlib import nullcontext
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from course.exercise import Case, exercise
from course.on_ranks import exercise_on_ranks


# Exercise 1: the rate of each update
def my_rate(lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs):
    times = ranks * batch_size / batch  # how many times as large the batch of an update is
    risen = min(1, update / (warmup_epochs * per_epoch))
    return lr * (1 + (times - 1) * risen)


def shown(value):
    """A learner's number, short, or None."""
    return "None" if value is None else f"{float(value):.4g}"


@exercise(
    solution=my_rate,
    hint="How high does it rise? All ranks together take ranks * batch_size images an update: how many times as many "
    "as `batch`? How far has it risen? From 0 at the first update to 1 after warmup_epochs * per_epoch, no further. "
    "The rise begins at lr, not at 0.",
    mistakes={
        "You went by the number of ranks. Go by the number of images: how many times as many does an update see now?":
            lambda lr, batch, ranks, batch_size, *when: my_rate(lr, batch, ranks, batch, *when),
        "The warm-up begins at the old rate, `lr`, not at 0.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                lr * ranks * batch_size / batch * min(1, update / (warmup_epochs * per_epoch))),
        "The warm-up has ended by then: the rate rises no further.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                lr * (1 + (ranks * batch_size / batch - 1) * update / (warmup_epochs * per_epoch))),
        "Your rate rises once an epoch. It must rise a little from each update to the next.":
            lambda lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs: (
                my_rate(lr, batch, ranks, batch_size, update // per_epoch, 1, warmup_epochs)),
        "You took `update` as if it counted epochs. An epoch has `per_epoch` updates.":
            lambda *case: my_rate(*case[:-2], 1, case[-1]),
        "That is the full rate. During the warm-up the rate is still on its way there.":
            lambda lr, batch, ranks, batch_size, *when: lr * ranks * batch_size / batch,
    },
)
def rate(answer):
    """The rule speaks of the images an update sees, not of ranks: 8 ranks of 8 images each change nothing where 64 were
    right. main.py does the same with --lr-scaling linear --warmup-epochs."""
    sizes = [(0.01, 64, 8, 64), (0.01, 64, 8, 8), (0.1, 256, 256, 32), (0.4, 128, 2, 32)]
    times = [(1, 20, 2), (10, 20, 1), (0, 20, 1), (30, 20, 2), (40, 20, 2), (100, 20, 2)]
    for (lr, batch, ranks, batch_size), (update, per_epoch, warmup_epochs) in product(sizes, times):
        got = answer(lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs)
        right = lr + lr * (ranks * batch_size / batch - 1) * min(1, update / (warmup_epochs * per_epoch))
        yield Case(got, right,
                   f"{lr:g} was right for {batch} images an update. Now there are {ranks} ranks with {batch_size} "
                   f"images each, {per_epoch} updates an epoch, and a warm-up of {warmup_epochs} epoch(s). For update "
                   f"{update} your function returned {shown(got)}; {right:.4g} is right. It rises in "
                   f"{warmup_epochs * per_epoch} equal steps from {lr:g} to {lr * ranks * batch_size / batch:g}.")


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
    """The noise scale, from the squared norms of gradients of `batch_size` and of `many` images."""
    noise = (small - large) / (1 / batch_size - 1 / many)
    return (noise / (small - noise / batch_size)).item()


def squared_norms(gradient):
    """The mean of the ranks' squared norms, and that of the mean gradient."""
    mean, small = gradient.clone(), gradient.square().sum()
    dist.all_reduce(mean)
    dist.all_reduce(small)
    return small / dist.get_world_size(), (mean / dist.get_world_size()).square().sum()


def from_other_norms(mistake, gradient, batch_size):
    small, large = squared_norms(gradient)
    ranks = dist.get_world_size()
    norms = {"own norm": (gradient.square().sum(), large), "not squared": (small.sqrt(), large.sqrt()),
             "gradients summed": (small, large * ranks**2), "squares summed": (small * ranks, large)}
    return solved(*norms[mistake], batch_size, batch_size * ranks)


def counted_in_ranks(gradient, batch_size):
    return solved(*squared_norms(gradient), 1, dist.get_world_size())


def by_the_mean_gradient(gradient, batch_size):
    small, large = squared_norms(gradient)
    return ((small - large) / (1 / batch_size - 1 / (batch_size * dist.get_world_size())) / large).item()


def noise_in_place(gradient, batch_size):
    kept = gradient.clone()
    dist.all_reduce(gradient)
    return my_noise_scale(kept, batch_size)


NOISY = [(4, 0.5), (16, 2.0), (64, 0.1)]  # (images of a rank's batch, how noisy the gradient of one image is)


def gradient_of(rank, batch_size, noise):
    """A rank's gradient: the true one, and the noise that the mean over `batch_size` images has left."""
    true, own = (torch.randn(200, generator=torch.Generator().manual_seed(number)) for number in (7, rank))
    return true / 10 + noise * own / math.sqrt(batch_size)


def measure_noise(function, context):
    """The function's result for each of the NOISY batches, and whether it changed the gradient."""
    measured = []
    for batch_size, noise in NOISY:
        gradient = gradient_of(context.rank, batch_size, noise)
        before = gradient.clone()
        scale = function(gradient, batch_size)
        measured.append({"scale": None if scale is None else float(scale),
                         "changed": not torch.equal(before, gradient)})
    return measured


@exercise_on_ranks(
    measure_noise,
    solution=my_noise_scale,
    hint="Two equations, two unknowns: small = G + S / b and large = G + S / (b * W). Subtract them to get S, then G. "
    "`small` is the mean of the ranks' squared norms; `large` is the squared norm of the ranks' mean gradient.",
    mistakes={
        "The ranks do not agree, because each uses the squared norm of its own gradient. Take the mean over the ranks.":
            partial(from_other_norms, "own norm"),
        "You used norms. The noise adds up in their squares.":
            partial(from_other_norms, "not squared"),
        "You used the sum of the ranks' gradients. The gradient of the global batch is their mean.":
            partial(from_other_norms, "gradients summed"),
        "You added up the squared norms of the ranks: `small` is their mean.":
            partial(from_other_norms, "squares summed"),
        "You counted the batches in ranks. Count them in images: batch_size, and the world size times batch_size.":
            counted_in_ranks,
        "You divided by the squared norm of the mean gradient. That has noise in it, too: G is less.":
            by_the_mean_gradient,
        "all_reduce overwrites the tensor that it gets, and the optimizer still needs the gradient: pass a clone.":
            noise_in_place,
    },
)
def noise_scale(ranks):
    """The ranks know the noise scale from gradients that they have anyway, for one more all-reduce of a single number.
    One step gives a poor estimate: take the means of both unknowns over many steps, then divide."""
    for results, (batch_size, noise) in zip(zip(*ranks, strict=True), NOISY, strict=True):
        gradients = torch.stack([gradient_of(rank, batch_size, noise) for rank in range(len(ranks))])
        small, large = gradients.square().sum(1).mean(), gradients.mean(0).square().sum()
        right = solved(small, large, batch_size, len(ranks) * batch_size)
        scales = [result["scale"] for result in results]
        yield Case(scales, [right] * len(ranks),
                   f"With {len(ranks)} ranks of {batch_size} images each, your function returned "
                   f"{', '.join(map(shown, scales))} on the ranks; {right:.4g} is right on every rank. Squared norm: "
                   f"{small:.4g} for the images of one rank (the mean of all ranks) and {large:.4g} for those of all.",
                   rel_tol=1e-3)
    yield Case(any(result["changed"] for measured in ranks for result in measured), False,
               "The numbers are right, but your function changed the gradient.")


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


WEIGHTS = {  # of a micro-batch with `size` rows: the number that multiplies the sum of its losses
    "right": lambda size, batches, own_rows, rows, ranks: ranks / rows,
    "mean of means": lambda size, batches, own_rows, rows, ranks: 1 / size / batches,
    "sum of means": lambda size, batches, own_rows, rows, ranks: 1 / size,
    "own rows": lambda size, batches, own_rows, rows, ranks: 1 / own_rows,
    "not times the ranks": lambda size, batches, own_rows, rows, ranks: 1 / rows,
    "sum": lambda size, batches, own_rows, rows, ranks: 1,
}


def wrong_update(ddp, micro_batches, optimizer, max_norm, weight="right", clip="after", sync="last", step="after"):
    """An update with one mistake."""
    own_rows = sum(len(labels) for _, labels in micro_batches)
    rows = torch.tensor(float(own_rows))
    dist.all_reduce(rows)
    for number, (inputs, labels) in enumerate(micro_batches, start=1):
        synced = {"last": number == len(micro_batches), "all": True, "none": False}[sync]
        with nullcontext() if synced else ddp.no_sync():
            factor = WEIGHTS[weight](len(labels), len(micro_batches), own_rows, rows.item(), dist.get_world_size())
            (cross_entropy(ddp(inputs), labels, reduction="sum") * factor).backward()
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


MICRO_BATCHES = [5, 2, 1], [1, 1, 6], [2, 2, 9]  # rows of each, a list for each rank
RATE = 0.1


def measure_update(function, context):
    """The function's update of a model, with a max_norm that no gradient reaches and with one that each exceeds."""
    generator = torch.Generator().manual_seed(0)
    data = [[(torch.randn(size, 5, generator=generator, dtype=torch.double),
              torch.randint(3, (size,), generator=generator)) for size in sizes]
            for sizes in MICRO_BATCHES]
    torch.manual_seed(0)
    first, measured = nn.Linear(5, 3).double(), []  # double: the update is the difference of two weights
    for max_norm in (1e9, 0.05):
        model, alone = copy.deepcopy(first), copy.deepcopy(first)
        inputs, labels = map(torch.cat, zip(*sum(data, []), strict=True))
        cross_entropy(alone(inputs), labels).backward()
        clip_grad_norm_(alone.parameters(), max_norm)
        largest_forward, steps, all_reduces = [], [], []

        def count(group, bucket, all_reduces=all_reduces):
            all_reduces.append(1)
            return allreduce_hook(group, bucket)

        model.register_forward_pre_hook(lambda _, arguments, rows=largest_forward: rows.append(len(arguments[0])))
        ddp, optimizer = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=RATE)
        ddp.register_comm_hook(None, count)
        optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(1))
        function(ddp, data[context.rank], optimizer, max_norm)
        measured.append({
            "rows": max(largest_forward, default=0), "steps": len(steps), "all-reduces": len(all_reduces),
            "followed": flat((before - after) / RATE for before, after in
                             zip(first.parameters(), model.parameters(), strict=True)),
            "of one process": flat(parameter.grad for parameter in alone.parameters())})
    return measured


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


@exercise_on_ranks(
    measure_update,
    solution=my_update,
    hint="Let each micro-batch give the sum of its losses, cross_entropy(..., reduction=\"sum\"). By what number must "
    "the sum over all ranks be divided, how does a rank learn it, and what does DDP divide by already? "
    "clip_grad_norm_ comes when .grad holds the mean over all ranks.",
    mistakes={
        "The micro-batches are small because more does not fit in memory: give ddp one of them at a time.":
            one_large_batch,
        "All micro-batches together are one update: step once, after the last backward.":
            partial(wrong_update, step="each"),
        "Each rank followed its own rows, so the weights of the ranks differ. The forward of the last micro-batch must "
        "go through `ddp`, and with its backward be outside no_sync.": partial(wrong_update, sync="none"),
        "All forwards and backwards but the last belong inside `with ddp.no_sync():`.":
            partial(wrong_update, sync="all"),
        "You took the mean over the micro-batches: a row of a small one counts for more than a row of a large one.":
            partial(wrong_update, weight="mean of means"),
        "You added up the means of the micro-batches: the update goes too far, and a row of a small micro-batch counts "
        "for more.": partial(wrong_update, weight="sum of means"),
        "Each rank divided by its own rows, and DDP took the mean: the rows of a rank that has few count for more. The "
        "ranks must learn how many rows there are in all.": partial(wrong_update, weight="own rows"),
        "The update is too short by a factor of the world size: DDP divides the sum over the ranks by their number, "
        "too.": partial(wrong_update, weight="not times the ranks"),
        "The update has the right direction, but goes too far. Divide the sum over all rows by their number.":
            partial(wrong_update, weight="sum"),
        "Your update goes as far as without a limit: clip_grad_norm_ is missing, or comes after the step.":
            partial(wrong_update, clip="never"),
        "Clipping is not linear: clipped parts do not add up to the clipped sum. Clip once, when .grad holds the mean "
        "over all ranks.": partial(wrong_update, clip="each"),
    },
)
def update(ranks):
    """One all-reduce of the gradients, and the update of one process with all rows in one batch, clipped or not:
    batches of any size can be taken together. Language models need this, because their texts have unequal numbers
    of words."""
    conditions = "With a max_norm that no gradient reaches,", "Not clipped, the update is right. With a small max_norm,"
    for results, condition in zip(zip(*ranks, strict=True), conditions, strict=True):
        for rank, (result, own_sizes) in enumerate(zip(results, MICRO_BATCHES, strict=True)):
            yield Case(result["rows"], max(own_sizes),
                       f"On rank {rank} a forward saw {result['rows']} rows at most; the largest micro-batch has "
                       f"{max(own_sizes)}.")
        for result in results:
            yield Case(result["steps"], 1, f"The optimizer made {result['steps']} steps; 1 is right.")
            yield Case(result["all-reduces"], 1,
                       f"DDP made {result['all-reduces']} all-reduces of the gradients for {len(MICRO_BATCHES[0])} "
                       "micro-batches; 1 is right.")
        for result in results:
            followed, right = (torch.tensor(result[name]) for name in ("followed", "of one process"))
            angle = math.degrees(math.acos(min(1, cosine_similarity(followed, right, dim=0).item())))
            yield Case(result["followed"], result["of one process"],
                       f"{condition} your update is {(followed.norm() / right.norm()).item():.2f} times as long as "
                       f"that of one process with all rows in one batch, and points {angle:.0f}° away from it.",
                       rel_tol=1e-4)
