"""Exercises of lesson 07 that are parts of the learner's program. They run on ranks: course/on_ranks.py says how. Its
whole programs, the traps and the capstone, are judged in capstone.py."""

import copy
import pickle
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course.exercise import Case, Wrong, mistake
from course.lesson import some
from course.on_ranks import exercise_on_ranks
from lessons.start.ours import backward as backward_part
from lessons.start.ours import save as save_part
from lessons.start.ours.my_ddp import MyDDP

BATCHES = [(8, 4), (7, 3), (6, 4)]  # rows of a rank's batch, micro-batches: 2 2 2 2, then 3 3 1, then 2 2 2


def measure_backward(function, context):
    """For each of BATCHES the messages, the rows of the largest forward, and loss and gradient beside those of one
    process that has the rows of all ranks."""
    return {"batches": [_of_batch(function, context, *batch) for batch in BATCHES]}


def _of_batch(function, context, rows, micro_batches):
    torch.manual_seed(rows)
    images = torch.randn(context.world_size, rows, 5, dtype=torch.float64)
    labels = torch.randint(3, (context.world_size, rows))
    model, messages, seen = nn.Linear(5, 3, dtype=torch.float64), [], []
    alone = copy.deepcopy(model)
    cross_entropy(alone(images.flatten(0, 1)), labels.flatten()).backward()

    def counted(group, bucket):
        messages.append(bucket.index())
        return allreduce_hook(group, bucket)

    model.register_forward_pre_hook(lambda _, arguments: seen.extend(map(len, arguments)))
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, counted)
    mine, truth = images[context.rank], labels[context.rank]
    loss = function(parallel, cross_entropy, mine, truth, micro_batches)
    if not isinstance(loss, torch.Tensor):
        raise Wrong(f"It returned {loss!r}. The program adds up the losses of all updates: return a tensor.")
    if model.weight.grad is None:
        raise Wrong("After it the parameters have no gradient: call backward() of each loss.")
    got, right = model.weight.grad.flatten(), alone.weight.grad.flatten()
    return {"messages": len(messages), "rows": max(seen), "graph": loss.requires_grad, "loss": loss.item(),
            "right loss": cross_entropy(model(mine), truth).item(), "times": (got @ right / (right @ right)).item(),
            "off": ((got - right).abs().max() / right.abs().max()).item()}


changed = partial(mistake, backward_part.backward)
WEIGHT, WHICH = " * (len(some_labels) / len(labels))", "contextlib.nullcontext() if last else parallel.no_sync()"


@exercise_on_ranks(
    measure_backward,
    solution=backward_part.backward,
    hint=(
        "`backward()` adds to `.grad`. So all parts but one can keep their gradients to themselves, and one "
        "backward sends the sum. Which one must it be?",
        "`images.chunk(micro_batches)` may give fewer parts, and a small last one. How much does each part count "
        "in the mean? And DDP decides in forward whether the next backward sends.",
        "For each part: `with contextlib.nullcontext() if last else parallel.no_sync():` `loss = "
        "loss_function(parallel(some_images), some_labels) * len(some_labels) / len(labels)`, then "
        "`loss.backward()`. Return the sum of the losses, each by `detach()`."),
    mistakes={
        "Every backward sent. All but the last belong into no_sync, and their forwards, too: PyTorch's DDP decides in "
        "forward whether the next backward sends.": changed({
            f"        with {WHICH}:\n            loss = loss_function(parallel(some_images), some_labels)":
            f"        outputs = parallel(some_images)\n        with {WHICH}:\n"
            "            loss = loss_function(outputs, some_labels)"}),
        "Nothing was ever sent, so each rank has the gradient of its own images. The last backward must stand outside "
        "no_sync.": changed({WHICH: "parallel.no_sync()"}),
        "The last part is the last that there is: chunk(4) makes three parts of six rows.": changed(
            {"len(parts) - 1": "micro_batches - 1"}),
        "The first backward sends what is there by then. The sum is there after the last.": changed(
            {"number == len(parts) - 1": "number == 0"}),
        "The batch is cut because it does not fit in memory: give `parallel` one part at a time.": changed(
            {"zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True)":
                       "zip([images], [labels], strict=True)"}),
        "Gradients add up over the parts: scale each loss by the share of its part.": changed({WEIGHT: ""}),
        "The parts differ in size. In the mean a row of a small part counts as much as any other.": changed(
            {WEIGHT: " / len(parts)"}),
        "zero_grad() throws away what the parts before have left. The program calls it, once per update.": changed(
            {"            loss.backward()": "            parallel.zero_grad()\n            loss.backward()"}),
        "Add up the losses of the parts.": changed({"total += loss": "total = loss"}),
        "A loss with its graph keeps the activations of its batch: detach it.": changed(
            {"total += loss.detach()": "total += loss"}),
    },
)
def backward(ranks):
    """The gradient is that of one process, and PyTorch's DDP sends it once per update, however many micro-batches there
    are."""
    for number, (rows, micro_batches) in enumerate(BATCHES):
        where = f"{rows} rows per rank in {micro_batches} micro-batches:"
        of_ranks = [rank["batches"][number] for rank in ranks]
        most = -(-rows // micro_batches)
        yield Case(of_ranks[0]["rows"] <= most, True, f"{where} a forward saw {of_ranks[0]['rows']} rows.")
        messages = [measured["messages"] for measured in of_ranks]
        yield Case(messages, [1] * len(ranks), f"{where} each rank sent {some(messages[0], 'message')}. The model has "
                   "one bucket, so one is enough.")
        off = max(measured["off"] for measured in of_ranks)
        yield Case(round(off, 7), 0.0, f"{where} the gradient is not that of one process: in its direction it is "
                   f"{of_ranks[0]['times']:.2f} times as long, and a value is off by {off:.1%} of the largest.")
        for rank, measured in enumerate(of_ranks):
            yield Case(measured["loss"], measured["right loss"], f"{where} on rank {rank} the mean loss is "
                       f"{measured['right loss']:.4f}. You returned {measured['loss']:.4f}.")
        yield Case(of_ranks[0]["graph"], False, f"{where} the loss that you returned still has its graph.")


# ---------------------------------------------------------------------------------------------------- save


def measure_saved(function, context):
    """How often this rank wrote, and the names in the file. A single process has no process group, as in train.py."""
    if context.world_size > 1:
        context.join()
    model = nn.Sequential(nn.Linear(4, 3))
    file, own, writes, write = Path(context.folder, "model.pt"), list(model.state_dict()), [], torch.save
    torch.save = lambda *args, **options: writes.append(args) or context.rank or write(*args, **options)
    function(MyDDP(model), file)
    together = sum(context.gather("writes", len(writes)))
    try:
        names = list(torch.load(file, map_location="cpu", weights_only=True)) if file.exists() else None
    except pickle.UnpicklingError:
        raise Wrong("The file holds Python objects. To load it, a program must have the code behind them, and trust it."
                    ) from None
    return {"writes": together, "names": names, "own": own}


WRITES = "not dist.is_initialized() or dist.get_rank() == 0"


@exercise_on_ranks(
    measure_saved,
    solution=save_part.save,
    hint=(
        "Two questions. Whose turn is it to write, also where a process is alone? And which `state_dict()` has "
        "the names that a program without DDP knows?",
        "`parallel.module` is the model itself. Where a process is alone there is no group, and "
        "`dist.get_rank()` raises an error: ask `dist.is_initialized()` first.",
        "`if not dist.is_initialized() or dist.get_rank() == 0:` call `torch.save(…, file)`, with the "
        "`state_dict()` of the inner model."),
    mistakes={
        "All ranks have the same weights: one writer is enough, and several that write one file at a time can break "
        "it.": mistake(save_part.save, {WRITES: "True"}),
        "A process that was started alone has no process group: ask dist.is_initialized() first.":
            mistake(save_part.save, {WRITES: "dist.get_rank() == 0"}),
        "Which model is inside the wrapper?": mistake(save_part.save, {"parallel.module": "parallel"}),
        "Save a state_dict(), not the model itself.": mistake(save_part.save, {".state_dict()": ""}),
    },
    ranks=(1, 3), group=False,
)
def save(ranks):
    """One rank writes, on any number of ranks, and a model without a wrapper can load the file."""
    where = f"On {some(len(ranks), 'rank')}"
    yield Case(ranks[0]["writes"], 1, f"{where} torch.save was called {some(ranks[0]['writes'], 'time')}.")
    names, own = ranks[0]["names"], ranks[0]["own"]
    yield Case(names is None, False, f"{where} there is no file under the name that was given.")
    yield Case(names, own, f"{where} the names in the file are {', '.join(names)}; the model's own {', '.join(own)}."
               " A model without the wrapper refuses the file.")
