"""The exercise of notebook 02: a step of DataParallel by hand."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course.exercise import Case, Wrong, exercise


class Recording(nn.Module):
    """Records which of its copies computes how many rows: deepcopy leaves the list of records as it is."""

    def __init__(self, records):
        super().__init__()
        generator = torch.Generator().manual_seed(0)  # leaves the learner's seed alone
        self.layer, self.record = nn.Linear(6, 3, dtype=torch.double), records.append
        for weight in self.parameters():
            weight.data.normal_(generator=generator)

    def forward(self, rows):
        self.record((self, len(rows)))
        return self.layer(rows)


def problems():
    """For each case its words, the number of devices, the model, its records, a batch and labels."""
    for rows, devices in [(12, 4), (10, 4), (5, 4)]:
        generator, records = torch.Generator().manual_seed(rows), []
        batch = torch.randn(rows, 6, generator=generator, dtype=torch.double)
        labels = torch.randint(3, (rows,), generator=generator)
        yield f"With {rows} rows on {devices} devices", devices, Recording(records), records, batch, labels


def step_solution(model, batch, labels, devices):
    pieces = batch.chunk(devices)
    replicas = [copy.deepcopy(model) for _ in pieces]
    scores = torch.cat([replica(piece) for replica, piece in zip(replicas, pieces, strict=True)])
    loss = cross_entropy(scores, labels)
    loss.backward()
    for weight, *copies in zip(model.parameters(), *(replica.parameters() for replica in replicas), strict=True):
        weight.grad = sum(copied.grad for copied in copies)
    return loss


def step_with(*, cut=torch.chunk, copies=copy.deepcopy, loss_of=None, combined=sum):
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


def one_copy_for_all(model, batch, labels, devices):
    replica = copy.deepcopy(model)
    return step_with(copies=lambda _: replica)(model, batch, labels, devices)


def a_copy_for_each_device(model, batch, labels, devices):
    pieces = len(batch.chunk(devices))
    return step_with(combined=lambda gradients: sum([*gradients, *[None] * (devices - pieces)]))(
        model, batch, labels, devices)


def rounded_down(tensor, devices):
    size = max(1, len(tensor) // devices)
    return [tensor[start:start + size] for start in range(0, min(len(tensor), size * devices), size)]


def rest_of_the_batch_lost(model, batch, labels, devices):
    rows = sum(map(len, rounded_down(batch, devices)))
    return step_with(cut=rounded_down)(model, batch[:rows], labels[:rows], devices)


@exercise(
    solution=step_solution,
    hint="Cut the batch with chunk: there may be fewer pieces than devices. Make a copy.deepcopy of the model for each "
         "piece, join the outputs with torch.cat, and compute one loss. After loss.backward() walk through "
         "model.parameters() and through those of the copies at the same time, and set weight.grad.",
    mistakes={
        "The gradients are in the copies' weights, and the optimizer knows only those of the model.":
            step_with(combined=lambda gradients: None),
        "This is the mean of the copies' gradients. The loss was divided by all rows already.":
            step_with(combined=lambda gradients: sum(gradients) / len(gradients)),
        "This is the gradient of one copy. What do the other copies know that this one does not?":
            step_with(combined=lambda gradients: gradients[0]),
        "A mean of the pieces' means counts the rows of a short piece more. Join the outputs first, then take one "
        "mean.": step_with(loss_of=mean_of_means),
        "The size of a piece was rounded down: the rest of the batch is never trained on.": rest_of_the_batch_lost,
        "Joined in another order, the outputs stand beside the labels of other rows.": step_with(
            cut=lambda tensor, devices: [tensor[i::devices] for i in range(min(devices, len(tensor)))]),
        "Every copy computed the whole batch: cut it.": step_with(
            cut=lambda tensor, devices: [tensor] * devices, loss_of=mean_of_means),
        "On another device the model has no weights: each piece needs a copy, made by copy.deepcopy.": step_with(
            copies=lambda model: model, combined=lambda gradients: gradients[0]),
        "Each copy's gradient is that of a mean over its own rows, and you added them up: divide each loss by the rows "
        "of the whole batch.": step_with(loss_of=mean_of_means, combined=lambda grads: len(grads) * sum(grads)),
        "Devices that work at the same time need a copy each.": one_copy_for_all,
        "There may be fewer pieces than devices, and a copy without a piece has no gradient: make one for each piece.":
            a_copy_for_each_device,
    },
)
def step(answer):
    """The gradient of each weight is that of the whole batch, also where the batch does not divide. The division by the
    rows was done once, in the loss, so the copies' gradients are shares, and are added up."""
    for case, devices, model, records, batch, labels in problems():
        right = cross_entropy(model.layer(batch), labels)
        right_gradients = torch.autograd.grad(right, list(model.parameters()))
        loss = answer(model, batch.clone(), labels.clone(), devices)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Wrong(f"Your function returned {'None' if loss is None else type(loss).__name__}. Return the loss, "
                        "a tensor with one number.")
        rows, copies = [size for _, size in records], len({id(computing) for computing, _ in records})
        yield Case(any(computing is model for computing, _ in records), False, f"{case} the model itself computed.")
        yield Case(copies, len(rows), f"{case} the number of pieces was {len(rows)}, and the number of copies that "
                                      f"computed them {copies}.")
        pieces = [len(piece) for piece in batch.chunk(devices)]
        fitting = sum(rows) == len(batch) and len(pieces) <= len(rows) <= devices  # cut in another way, but well
        yield Case(rows, rows if fitting else pieces, f"{case} the copies computed {rows} rows. Each row should be "
                                                      f"computed once, as in {pieces}.")
        yield Case(loss.item(), right.item(), f"{case} the loss is {right.item():.4f}; yours is {loss.item():.4f}.")
        for (name, weight), gradient in zip(model.named_parameters(), right_gradients, strict=True):
            got = weight.grad
            length = "no .grad" if got is None else f"a gradient of length {got.norm().item():.4f}"
            yield Case(None if got is None else got.tolist(), gradient.tolist(),
                       f"{case} the model's {name} has {length}. The gradient of the whole batch has length "
                       f"{gradient.norm().item():.4f}.")
