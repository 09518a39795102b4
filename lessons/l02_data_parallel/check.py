"""Exercises of notebook 02: a step of DataParallel by hand, and the loss on each device."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course.cases import drawn
from course.exercise import Wrong, because, exercise


# Exercise 1: a step by hand
def step_solution(model, batch, labels, devices):
    pieces = batch.chunk(devices)
    replicas = [copy.deepcopy(model) for _ in pieces]
    scores = torch.cat([replica(piece) for replica, piece in zip(replicas, pieces, strict=True)])
    loss = cross_entropy(scores, labels)
    loss.backward()
    for weight, *copies in zip(model.parameters(), *(replica.parameters() for replica in replicas), strict=True):
        weight.grad = sum(copied.grad for copied in copies)
    return loss


CUTS = (12, 4), (10, 4), (5, 4)  # rows, devices


def other_cut(random):
    """Cut for four devices, 13 rows and more make four pieces: more than these devices are."""
    return random.randint(13, 60), random.randint(2, 3)


class Noting(nn.Module):
    """Notes which of its copies computes how many rows: deepcopy leaves the list of notes as it is."""

    def __init__(self, notes):
        super().__init__()
        seeded = torch.Generator().manual_seed(0)  # leaves the learner's seed alone
        self.layer, self.note = nn.Linear(6, 3, dtype=torch.double), notes.append
        for weight in self.parameters():
            weight.data.normal_(generator=seeded)

    def forward(self, rows):
        self.note((self, len(rows)))
        return self.layer(rows)


def problem(rows):
    """(the model, its notes, a batch, labels)"""
    seeded, notes = torch.Generator().manual_seed(rows), []
    batch = torch.randn(rows, 6, generator=seeded, dtype=torch.double)
    return Noting(notes), notes, batch, torch.randint(3, (rows,), generator=seeded)


def step_by(*, cut=torch.chunk, copies=copy.deepcopy, loss_of=None, combined=sum):
    """The solution with one part done otherwise."""
    def step(model, batch, labels, devices):
        pieces, cut_labels = cut(batch, devices), cut(labels, devices)
        replicas = [copies(model) for _ in pieces]
        outputs = [replica(piece) for replica, piece in zip(replicas, pieces, strict=True)]
        loss = loss_of(outputs, cut_labels) if loss_of else cross_entropy(torch.cat(outputs), labels)
        loss.backward()
        for weight, *copied in zip(model.parameters(), *(each.parameters() for each in replicas), strict=True):
            weight.grad = combined([each.grad for each in copied])
        return loss
    return step


def mean_of_means(outputs, labels):
    return sum(map(cross_entropy, outputs, labels)) / len(outputs)


def rounded_down(tensor, devices):
    size = max(1, len(tensor) // devices)
    return [tensor[start:start + size] for start in range(0, min(len(tensor), size * devices), size)]


def losses_rounded_down(model, batch, labels, devices):
    seen = sum(map(len, rounded_down(batch, devices)))
    return step_by(cut=rounded_down)(model, batch[:seen], labels[:seen], devices)


@exercise(
    solution=step_solution,
    hint="Cut the batch with chunk: there may be fewer pieces than devices. Make a copy.deepcopy of the model for each "
         "piece, join the outputs with torch.cat, and compute one loss. After loss.backward() walk through "
         "model.parameters() and through those of the copies at the same time, and set weight.grad.",
    mistakes={
        "the gradients stay in the copies": step_by(combined=lambda gradients: None),
        "the mean of the gradients": step_by(combined=lambda gradients: sum(gradients) / len(gradients)),
        "the first copy's gradient": step_by(combined=lambda gradients: gradients[0]),
        "a mean of means": step_by(loss_of=mean_of_means),
        "the rest of the batch is lost": losses_rounded_down,
        "strides: outputs and labels in another order": step_by(
            cut=lambda tensor, devices: [tensor[i::devices] for i in range(min(devices, len(tensor)))]),
        "every copy gets the whole batch": step_by(
            cut=lambda tensor, devices: [tensor] * devices, loss_of=mean_of_means),
        "the model itself computes": step_by(copies=lambda model: model, combined=lambda gradients: gradients[0]),
        "one copy for all pieces": lambda model, *rest: (lambda one: step_by(copies=lambda _: one)(model, *rest))(
            copy.deepcopy(model)),
    },
)
def step(attempt):
    """The gradient of each weight is that of the whole batch, also where the batch does not divide. The division by the
    rows was done once, in the loss, so the copies' gradients are shares, and are added up."""
    for rows, devices in drawn(CUTS, other_cut):
        model, notes, batch, labels = problem(rows)
        right = cross_entropy(model.layer(batch), labels)
        wanted = torch.autograd.grad(right, list(model.parameters()))
        loss = attempt(model, batch.clone(), labels.clone(), devices)
        case, seen = f"With {rows} rows on {devices} devices", [size for _, size in notes]
        if any(which is model for which, _ in notes):
            raise Wrong(f"{case} the model itself computed. On another device it has no weights: each piece needs a "
                        "copy, made by copy.deepcopy.")
        if len(notes) > 1 and len({id(which) for which, _ in notes}) < len(notes):
            raise Wrong(f"{case} one copy computed several pieces. Devices that work at one time need a copy each.")
        if sum(seen) != rows or not len(batch.chunk(devices)) <= len(seen) <= devices:
            raise because(f"{case} the copies computed {seen} rows.", (
                sum(seen) > rows, "Each row belongs to one of them only: cut the batch."), (
                sum(seen) < rows, "The size of a piece was rounded down: the rest of the batch is never trained on."), (
                True, "Each device with rows gets one piece."))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Wrong(f"Return the loss, one number; this is {type(loss).__name__}.")
        if not torch.allclose(loss, right):
            means = mean_of_means([model.layer(piece) for piece in batch.split(seen)], labels.split(seen))
            raise because(f"{case} the loss is {right.item():.4f}; yours is {loss.item():.4f}.", (
                torch.allclose(loss, means), "A mean of the pieces' means counts the rows of a short piece more. Join "
                "the outputs first, then take one mean."), (
                True, "Each row was computed once. Joined in another order, the outputs stand beside the labels of "
                "other rows."))
        gradients = [weight.grad for weight in model.parameters()]
        if any(gradient is None for gradient in gradients):
            raise Wrong(f"{case} a weight of the model has no .grad. The gradients are in the copies' weights, and the "
                        "optimizer knows only those of the model.")
        ratio = (gradients[0].norm() / wanted[0].norm()).item()
        if not all(map(torch.allclose, gradients, wanted)):
            share = all(torch.allclose(mine * len(seen), whole) for mine, whole in zip(gradients, wanted, strict=True))
            raise because(f"{case} the gradient of the first weight is {ratio:.3f} times as long as it should be.", (
                share, f"{len(seen)} times too small: a mean. The loss was divided by all {rows} rows already."),
                (True, "What do the other copies know that this one does not?"))


# Exercise 2: the loss on each device
def losses_solution(model, batch, labels):
    return cross_entropy(model(batch), labels, reduction="none")


@exercise(
    solution=losses_solution,
    hint="If each device returns one number, a short piece counts as much as a long one. What could a device return so "
         "that each row counts once? See the argument `reduction` of cross_entropy.",
    mistakes={
        "the mean of the piece": lambda model, batch, labels: cross_entropy(model(batch), labels),
        "the sum of the piece": lambda model, batch, labels: cross_entropy(model(batch), labels, reduction="sum"),
        "the scores": lambda model, batch, labels: model(batch),
        "no gradient": lambda model, batch, labels: losses_solution(model, batch, labels).detach(),
    },
)
def losses(attempt):
    """A loss for each row: its mean is the loss of the whole batch, however the batch was cut. One number a row is
    gathered on device 0, and no score. The loss and what it keeps for backward are on the device of the piece."""
    for rows, devices in drawn(CUTS, other_cut):
        model, _, batch, labels = problem(rows)
        right = cross_entropy(model(batch), labels)
        returned = [attempt(model, *piece) for piece in
                    zip(batch.chunk(devices), labels.chunk(devices), strict=True)]
        if not all(isinstance(each, torch.Tensor) for each in returned):
            raise Wrong(f"Return a tensor: only tensors are gathered. This is {type(returned[0]).__name__}.")
        if any(each.ndim > 1 for each in returned):
            raise Wrong(f"A device returned the shape {list(returned[0].shape)}: these are the scores. They would all "
                        "be gathered on device 0. Return losses.")
        joined = torch.cat([each.reshape(-1) for each in returned])
        if not joined.requires_grad:
            raise Wrong("What you return knows no way back: no gradient can reach the model.")
        if not torch.allclose(joined.mean(), right):
            raise because(
                f"With {rows} rows on {devices} devices the mean of what is gathered is {joined.mean().item():.4f}; "
                f"the loss of the whole batch is {right.item():.4f}.",
                (len(joined) == len(returned) and torch.allclose(joined.sum(), rows * right),
                 "Each device returned a sum: their mean grows with the rows of a piece."),
                (len(joined) == len(returned), "One number from each device: the row of a short piece counts more than "
                 "that of a long one."))
