"""Exercises of lesson 09: the parts rate and noise of the learner's program."""

import copy
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import nn

from course.exercise import Case, exercise, mistake
from course.on_ranks import exercise_on_ranks
from lessons.start.ours.my_ddp import MyDDP
from lessons.start.ours.noise import Noise
from lessons.start.ours.rate import rate as our_rate

changed = partial(mistake, our_rate)


@exercise(
    solution=our_rate,
    hint=("Two numbers make the rate: the full rate of this batch, and how far the warm-up has come, from 0 to 1.",
          "The rule says how many times `lr` the full rate is. The warm-up begins at `lr`, not at 0, and ends at "
          "`warm_up`. What if `warm_up` is 0?",
          "risen = min(1, update / warm_up), or 1 where warm_up is 0. At risen = 0 return lr, at 1 return lr * times, "
          "and between them a point on the straight line."),
    mistakes={
        "That is the full rate. During the warm-up the rate is still on its way there.": changed(
            {"min(1, update / warm_up) if warm_up else 1": "1"}),
        "The warm-up begins at `lr`, which was right for the small batch, and not at 0.": changed(
            {"(1 + (times - 1) * risen)": "times * risen"}),
        "The warm-up has ended by then: the rate rises no further.": changed(
            {"min(1, update / warm_up)": "update / warm_up"}),
        "The first update is number 0, and has the rate `lr` itself.": changed(
            {"min(1, update / warm_up)": "min(1, (update + 1) / warm_up)"}),
        "That is the square root. The linear rule multiplies by `times` itself.": changed(
            {"(times - 1)": "(times ** 0.5 - 1)"}),
        "The default is no warm-up, 0 updates: nothing can be divided by it.": changed({" if warm_up else 1": ""}),
    },
)
def rate(answer):
    """The rule speaks of the images per update, not of ranks. main.py has the same as --lr-scaling linear
    --warmup-epochs."""
    for (lr, times, warm_up), update in product([(0.02, 16, 0), (0.04, 16, 30), (0.1, 1, 10), (0.4, 0.5, 8)],
                                                [0, 1, 5, 30, 100]):
        got, right = answer(lr, times, update, warm_up), our_rate(lr, times, update, warm_up)
        shown = "None" if got is None else f"{float(got):.4g}"
        yield Case(got, right, f"{lr:g} was right, the batch is {times:g} times as large, and the warm-up takes "
                   f"{warm_up} updates. For update {update} your function returned {shown}; {right:.4g} is right.")


# ---------------------------------------------------------------------------------------------------- noise

SHARES = [(4, 3), (16, 2)]  # a rank's images per update, updates until the scale is asked for


def measure_noise(answer, context):
    """For each of SHARES the answer's scale in a training with MyDDP, the right one, and how far the gradient is off.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    twin, parallel, parameters = copy.deepcopy(model), MyDDP(model), list(model.parameters())  # the twin has no hooks
    noise, seen = answer(model), []
    for share, updates in SHARES:
        small = large = 0.0
        for _ in range(updates):
            images = torch.randn(context.world_size, share, 6) + 0.5
            own = [torch.cat([each.flatten() for each in
                              torch.autograd.grad(twin(part).square().mean(), list(twin.parameters()))])
                   for part in images]
            mean = torch.stack(own).mean(0)
            small += sum(each.square().sum().item() for each in own) / len(own)
            large += mean.square().sum().item()
            model.zero_grad()
            parallel(images[context.rank]).square().mean().backward()
            parallel.finish()
            noise.after()
            got = torch.cat([each.grad.flatten() for each in parameters])
        scale = noise.scale(share, dist.all_reduce)
        true = (context.world_size * large - small) / (context.world_size - 1)
        seen.append({"scale": None if scale is None else float(scale), "right": (small - true) * share / true,
                     "off": ((got - mean).norm() / mean.norm()).item()})
    return {"seen": seen}


of_noise = partial(mistake, Noise)


@exercise_on_ranks(
    measure_noise,
    solution=Noise,
    hint=("There are two equations, small = G + S / b and large = G + S / (b W), with a rank's b images and W ranks. "
          "Which moment of an update knows `small`, and which knows `large`?",
          "before() is called with one parameter's gradient at a time: add up its squares. after() does the same with "
          "every parameter.grad. In scale() the ranks' own sums need a mean, by all_reduce. Begin again at 0.",
          "Subtract the equations: S = (small - large) / (1 / b - 1 / (b W)). Then G = small - S / b."),
    mistakes={
        "The ranks do not agree: each uses the squared norm of its own gradient. Take the mean over the ranks.":
            of_noise({"all_reduce(own)": "own *= ranks"}),
        "all_reduce gives the sum of the ranks' squared norms; `small` is their mean.":
            of_noise({"own / ranks, self": "own, self"}),
        "Count the batches in images, not in ranks: share, and share times the number of ranks.":
            of_noise({"(1 / share - 1 / (share * ranks))": "(1 - 1 / ranks)",
                      "small - noise / share": "small - noise"}),
        "You divided by the squared norm of the mean gradient. That has noise in it, too: G is less.":
            of_noise({"small - noise / share": "large"}),
        "The noise adds up in the squares of the norms.": of_noise({"square().sum()": "norm()"}),
        "Begin again at 0 in scale(): it speaks of the updates since the last call.":
            of_noise({"self.own.zero_(), self.mean.zero_()": "pass"}),
    },
)
def noise(ranks):
    """Two squared norms per update and one number to all-reduce per epoch: the ranks know the noise scale from
    gradients that they have anyway."""
    for number, (share, updates) in enumerate(SHARES):
        seen = [measured["seen"][number] for measured in ranks]
        scales, right = [each["scale"] for each in seen], seen[0]["right"]
        shown = ", ".join("None" if scale is None else f"{scale:.4g}" for scale in scales)
        yield Case(max(each["off"] for each in seen) < 1e-4, True,
                   "With your hooks the gradient is no longer the mean over the ranks: they must not change it.")
        yield Case(scales, [right] * len(ranks), f"{len(ranks)} ranks with {share} images each, {updates} updates: you "
                   f"returned {shown} on the ranks, and {right:.4g} is right on every rank.", rel_tol=1e-2)
