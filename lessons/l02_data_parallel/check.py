"""The exercise of notebook 02: a step of DataParallel by hand."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course.exercise import Case, Wrong, exercise, mistake


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


def my_step(model, batch, labels, devices):
    pieces = batch.chunk(devices)
    replicas = [copy.deepcopy(model) for _ in pieces]
    outputs = [replica(piece) for replica, piece in zip(replicas, pieces, strict=True)]
    loss = cross_entropy(torch.cat(outputs), labels)
    loss.backward()
    for weight, *copies in zip(model.parameters(), *(replica.parameters() for replica in replicas), strict=True):
        weight.grad = sum(copied.grad for copied in copies)
    return loss


CUT, COPY = "batch.chunk(devices)", "[copy.deepcopy(model) for _ in pieces]"
SUM, LOSS = "sum(copied.grad for copied in copies)", "cross_entropy(torch.cat(outputs), labels)"
MEAN_OF_MEANS = {LOSS: "sum(map(cross_entropy, outputs, labels.chunk(devices))) / len(outputs)"}


@exercise(
    solution=my_step,
    hint=(
        "After the four steps above comes one loss, of all rows together. `loss.backward()` leaves a gradient in "
        "each copy. By how many rows has it been divided already?",
        "The weights of the model and of its copies come in the same order: `zip(model.parameters(), "
        "*(replica.parameters() for replica in replicas))`.",
        "`loss = cross_entropy(torch.cat(outputs), labels)`. After backward, for each weight and its `copies`: "
        "`weight.grad` is made of `[copied.grad for copied in copies]`. All rows have been divided by once: so "
        "is it their sum, or their mean?"),
    mistakes={
        "The gradients are in the copies' weights, and the optimizer knows only those of the model.":
            mistake(my_step, {SUM: "None"}),
        "This is the mean of the copies' gradients. The loss was divided by all rows already.":
            mistake(my_step, {SUM: f"{SUM} / len(copies)"}),
        "This is the gradient of one copy. What do the other copies know that this one does not?":
            mistake(my_step, {SUM: "copies[0].grad"}),
        "A mean of the pieces' means counts the rows of a short piece more. Join the outputs first, then take one "
        "mean.": mistake(my_step, MEAN_OF_MEANS),
        "The size of a piece was rounded down: the rest of the batch is never trained on.": mistake(my_step, {
            CUT: "batch.split(max(1, len(batch) // devices))[:devices]",
            "labels)\n": "labels[:sum(map(len, pieces))])\n"}),
        "Joined in another order, the outputs stand beside the labels of other rows.":
            mistake(my_step, {CUT: "[batch[i::devices] for i in range(min(devices, len(batch)))]"}),
        "Every copy computed the whole batch: cut it.":
            mistake(my_step, {CUT: "[batch] * devices", LOSS: "cross_entropy(sum(outputs) / devices, labels)"}),
        "On another device the model has no weights: each piece needs a copy, made by copy.deepcopy.":
            mistake(my_step, {COPY: "[model for _ in pieces]"}),
        "Each copy's gradient is that of a mean over its own rows, and you added them up: divide each loss by the rows "
        "of the whole batch.": mistake(my_step, {**MEAN_OF_MEANS, SUM: f"len(copies) * {SUM}"}),
        "Devices that work at the same time need a copy each.":
            mistake(my_step, {COPY: "[copy.deepcopy(model)] * len(pieces)"}),
        "There may be fewer pieces than devices, and a copy without a piece has no gradient: make one for each piece.":
            mistake(my_step, {"in pieces]": "in range(devices)]", "zip(replicas, pieces, strict=True)":
                              "zip(replicas, pieces, strict=False)"}),
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
        yield Case(pieces if fitting else rows, pieces, f"{case} the copies computed {rows} rows. Each row should be "
                                                      f"computed once, as in {pieces}.")
        yield Case(loss.item(), right.item(), f"{case} the loss is {right.item():.4f}; yours is {loss.item():.4f}.")
        for (name, weight), gradient in zip(model.named_parameters(), right_gradients, strict=True):
            got = weight.grad
            length = "no .grad" if got is None else f"a gradient of length {got.norm().item():.4f}"
            yield Case(None if got is None else got.tolist(), gradient.tolist(),
                       f"{case} the model's {name} has {length}. The gradient of the whole batch has length "
                       f"{gradient.norm().item():.4f}.")
