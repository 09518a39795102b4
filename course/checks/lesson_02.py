"""Exercises of notebook 02: what DataParallel does to a batch, to gradients, to names and to GPU numbers."""

import torch

from course.checks import Wrong, exercise
from course.checks.cases import Miss, exactly, misses

# ---------------------------------------------------------------- 1. scatter


def split_solution(batch, devices):
    size = -(-len(batch) // devices)  # rounded up
    return [batch[start:start + size] for start in range(0, len(batch), size)]


def pieces_of(size, batch, devices):
    return [batch[i * size:(i + 1) * size] for i in range(devices)]


def split_rest_to_the_last(batch, devices):
    size = max(1, len(batch) // devices)
    starts = [i * size for i in range(devices) if i * size < len(batch)]
    return [batch[a:b] for a, b in zip(starts, [*starts[1:], len(batch)], strict=True)]


@exercise(
    solution=split_solution,
    hint="How many rows may the longest piece have? Divide and round up: -(-rows // devices). Then cut pieces of that "
         "size from the start until no row is left. The last one may be shorter.",
    mistakes={
        "rounded down: the rest is lost": lambda batch, devices: pieces_of(len(batch) // devices, batch, devices),
        "cuts the features, not the rows": lambda batch, devices: list(batch.chunk(devices, dim=1)),
        "strides: gathered in another order": lambda batch, devices: [
            batch[i::devices] for i in range(min(devices, len(batch)))],
        "empty pieces": lambda batch, devices: pieces_of(-(-len(batch) // devices), batch, devices),
        "the last device gets all of the rest": split_rest_to_the_last,
    },
)
def split_batch(attempt):
    """No row is lost or moved, whatever the size of the batch, and joining the pieces gives the batch back.
    With 5 rows on 4 devices three or four pieces are right; DataParallel makes three, and one GPU has no work."""
    for rows, devices in ((64, 4), (10, 4), (5, 4), (3, 4), (1, 4), (7, 2)):
        batch = torch.arange(40.0 * rows).view(rows, 40)
        pieces = attempt(batch, devices)
        if not isinstance(pieces, (list, tuple)) or not all(isinstance(piece, torch.Tensor) for piece in pieces):
            raise Wrong("Return a list of tensors, one for each device that is used.")
        case = f"A batch of {rows} on {devices} devices"
        if other := [list(piece.shape) for piece in pieces if piece.shape[1:] != batch.shape[1:]]:
            raise Wrong(f"{case}: a piece has shape {other[0]}. It was cut along the wrong dimension: each row must "
                        "keep its 40 features.")
        sizes = [len(piece) for piece in pieces]
        case += f": the pieces have {sizes} rows"
        if sum(sizes) < rows:
            raise Wrong(f"{case}, {sum(sizes)} together. The size was rounded down, and the rest of the batch is never "
                        "trained on.")
        if sum(sizes) > rows:
            raise Wrong(f"{case}, {sum(sizes)} together. Some rows are there twice.")
        if not torch.equal(torch.cat(tuple(pieces)), batch):
            raise Wrong(f"{case}. Every row is there, but joining the pieces gives another order. The outputs would "
                        "stand beside the labels of other rows. (DistributedSampler takes strides, scatter does not.)")
        if 0 in sizes:
            raise Wrong(f"{case}. A device without rows must get no piece, or a replica is made for nothing.")
        if len(sizes) > devices:
            raise Wrong(f"{case}. There are more pieces than devices.")
        if max(sizes) > -(-rows // devices):
            raise Wrong(f"{case}. All wait for the longest, and it need have no more than {-(-rows // devices)}: do "
                        "not give all of the rest to one device.")


# ---------------------------------------------------------------- 2. sum or mean


def combine_solution(gradients, rows):
    return sum(gradients)


@exercise(
    solution=combine_solution,
    hint="The loss is (l1 + l2 + … + l10) / 10, and the division by 10 was done once, after the gather. Which terms "
         "depend on the first replica's copy of the weight? What is missing from its gradient?",
    mistakes={
        "mean": lambda gradients, rows: sum(gradients) / len(gradients),
        "mean weighted by rows": lambda gradients, rows: sum(
            gradient * n for gradient, n in zip(gradients, rows, strict=True)) / sum(rows),
        "the first replica's only": lambda gradients, rows: gradients[0],
    },
)
def combine(attempt):
    """The sum is the gradient of the whole batch, to the last digits. The mean over the whole batch is already in the
    loss, so each replica's gradient is only its share. Under DDP each rank takes the mean over its own rows: there the
    ranks' gradients are averaged."""
    seeded = {"dtype": torch.double, "generator": torch.Generator().manual_seed(0)}  # leaves the learner's seed alone
    batch, target = torch.randn(10, 4, **seeded), torch.randn(10, **seeded)
    weight = torch.randn(4, **seeded, requires_grad=True)
    pieces = list(zip(batch.chunk(4), target.chunk(4), strict=True))
    rows = [len(piece) for piece, _ in pieces]
    gradients = [torch.autograd.grad((piece @ weight - part).square().sum() / len(batch), weight)[0]
                 for piece, part in pieces]  # of its terms of the whole batch's mean
    (right,) = torch.autograd.grad((batch @ weight - target).square().mean(), weight)

    answer = attempt([gradient.clone() for gradient in gradients], list(rows))
    if not isinstance(answer, torch.Tensor) or answer.shape != right.shape:
        raise Wrong(f"Return one tensor, of the shape of one gradient: {list(right.shape)}.")
    answer = answer.double()  # a float32 will do
    if torch.allclose(answer, combine.mistakes["mean"](gradients, rows)):
        raise Wrong(f"This is the mean: {len(gradients)} times too small. The loss was divided by the whole batch of "
                    "10 already, so each replica's gradient is a share. DDP averages, because there each rank divides "
                    "by its own rows only.")
    if torch.allclose(answer, combine.mistakes["mean weighted by rows"](gradients, rows)):
        raise Wrong("Weighted by rows: right if each replica had the mean loss of its own rows. Here the loss was "
                    "computed after the gather, and each row counts the same already.")
    if any(torch.allclose(answer, gradient) for gradient in gradients):
        raise Wrong("This is the gradient of one replica. It knows nothing of the rows of the others.")
    if not torch.allclose(answer, right):
        raise Wrong(f"The gradient of the whole batch is {right.numpy().round(4)}, yours is "
                    f"{answer.detach().numpy().round(4)}.")


# ---------------------------------------------------------------- 3. the prefix

def plain_solution(state):
    return {name.removeprefix("module."): value for name, value in state.items()}


def with_names(changed):
    """A typical mistake: each name of a state is changed so."""
    return lambda state: {changed(name): value for name, value in state.items()}


@exercise(
    solution=plain_solution,
    hint="Python's strings have a method that takes a prefix away once, at the beginning, and only where it is there: "
         "look at dir(str).",
    mistakes={
        "replaces it everywhere in the name": with_names(lambda name: name.replace("module.", "")),
        "lstrip takes characters, not a word": with_names(lambda name: name.lstrip("module.")),  # noqa: B005
        "cuts seven characters of every name": with_names(lambda name: name[7:]),
        "drops the names without the prefix": lambda state: plain_solution(
            {name: value for name, value in state.items() if name.startswith("module.")}),
    },
)
def plain_names(attempt):
    """The prefix is gone, once and only at the beginning, and a plain model can load the weights. Still better: save
    wrapped.module.state_dict(), and there is no prefix to take away."""
    names = ["module.layers.0.weight", "module.module.bias", "module.odd.weight", "module.submodule.scale",
             "encoder.module.weight"]
    state = {name: torch.full((2,), float(number)) for number, name in enumerate(names)}
    right, answer = plain_solution(state), attempt(dict(state))
    if not isinstance(answer, dict):
        raise Wrong(f"Return a dictionary from names to tensors; this is {type(answer).__name__}.")
    miss = Miss(plain_names, (state,), set(answer), set(right), set)
    if miss.got < miss.right:
        raise Wrong(f"Missing: {sorted(miss.right - miss.got)}. A name without the prefix stays as it is.")
    if miss.got != miss.right:
        miss.explain("", {
            "replaces it everywhere in the name": "replace takes it away wherever it stands: 'module.submodule.scale' "
            "became 'subscale'. A part of the model may be called module, too.",
            "lstrip takes characters, not a word": "lstrip('module.') takes away any of the characters m, o, d, u, l, "
            "e and '.', as long as it finds one: 'module.odd.weight' became 'weight'. It does not look for the word.",
            "cuts seven characters of every name": "Seven characters were cut from each name: 'encoder.module.weight' "
            f"became {'encoder.module.weight'[7:]!r}. Look first whether the prefix is there.",
        }, f"The names are {sorted(miss.got)}; they should be {sorted(miss.right)}.")
    if any(not isinstance(answer[name], torch.Tensor) or not torch.equal(answer[name], right[name]) for name in right):
        raise Wrong("The names are right, but a tensor stands under another's name.")


# ---------------------------------------------------------------- 4. CUDA_VISIBLE_DEVICES


def physical_solution(visible, index):
    gpus = []
    for number in visible.split(","):
        if number == "" or int(number) < 0:
            break
        gpus.append(int(number))
    return gpus[index] if index < len(gpus) else None


def numbers(visible):
    return [int(number) for number in visible.split(",") if number]


@exercise(
    solution=physical_solution,
    hint="Write the list of visible GPUs first, in the order given, and stop at a negative number. cuda:index is a "
         "place in that list. An empty variable gives an empty list: ''.split(',') is [''].",
    mistakes={
        "the index is the GPU": lambda visible, index: index,
        "looks the index up in the list": lambda visible, index: index if str(index) in visible.split(",") else None,
        "sorts the list": lambda visible, index: dict(enumerate(sorted(numbers(visible)))).get(index),
        "skips a negative number": lambda visible, index: dict(
            enumerate(number for number in numbers(visible) if number >= 0)).get(index),
        "no None": lambda visible, index: [int(number) for number in visible.split(",")][index],
    },
)
def physical_gpu(attempt):
    """The index counts places in the list, in the order of the list. So each process of a job can say cuda:0 and mean
    another GPU, and a scheduler can give you GPUs 4 to 7 that your program calls 0 to 3."""

    def ask(visible, index):
        try:
            return attempt(visible, index)
        except (IndexError, ValueError) as error:
            raise Wrong(f"With {visible!r} and cuda:{index} it raised {type(error).__name__}: {error}. What the "
                        "program cannot see is None, and an empty variable shows nothing.") from None

    cases = [("0,3", 0), ("0,3", 1), ("2", 0), ("0,3", 3), ("0,3", 2), ("3,0", 0), ("3,0", 1), ("0,-1,2", 0),
             ("0,-1,2", 1), ("-1", 0), ("", 0)]
    for miss in misses(physical_gpu, ask, cases, read=exactly):
        visible, index = miss.asked
        right = "not there: None" if miss.right is None else f"GPU {miss.right}"
        miss.explain(f"With {visible!r} cuda:{index} is {right}; you said {miss.got!r}.", {
            "sorts the list": "The order is kept: do not sort.",
            "skips a negative number": "A negative number ends the list, it is not skipped.",
            "the index is the GPU": "The index is not the GPU: the visible GPUs are numbered anew, from 0.",
            "looks the index up in the list": "The index is not looked up among the numbers: it is a place in the "
            "list.",
        })
