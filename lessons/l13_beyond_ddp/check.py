"""Exercises of lesson 13. What is right comes from one process, or from what FSDP2 leaves on each rank."""

import math
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from course.exercise import Case, Wrong, drawn, drawn_one, exercise, generator_seed
from course.on_ranks import exercise_on_ranks

MOMENTUM, RATE = 0.9, 0.1  # of exercise 2's updates
# What FSDP imports. All exercises name it, because the first one starts the process that all ranks are forked from.
FSDP = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp")


# Exercise 1: does it fit
def fewest(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    shared = 16 * parameters - whole
    if whole + shared <= memory:
        return 1
    return math.ceil(shared / (memory - whole)) if shared and whole < memory else None


def a_number_always(parameters, memory, stage):
    return fewest(parameters, memory, stage) or 1_000_000


def all_over_memory(parameters, memory, stage):
    return math.ceil(16 * parameters / memory)


def rounded_to_too_few(parameters, memory, stage):
    devices = fewest(parameters, memory, stage)
    return devices and max(1, devices - 1)


def at_least_two(parameters, memory, stage):
    devices = fewest(parameters, memory, stage)
    return devices and max(2, devices)


def fitting(random):
    """A model that fits, once it is shared out."""
    gigabytes, stage = random.choice((24, 40, 48, 96)), random.randint(1, 3)
    most = {1: gigabytes // 4 - 1, 2: gigabytes // 2 - 1, 3: 4 * gigabytes}[stage]
    return random.randint(most // 3, most) * 1e9, gigabytes * 1e9, stage


@exercise(
    solution=fewest,
    hint="Split the 16 bytes a parameter into what each rank has whole (16, 4, 2 or 0 of them at stage 0 to 3) and "
    "what is shared out. The shared part must fit into the memory that the whole part leaves: shared / N <= "
    "memory - whole.",
    mistakes={
        "The part that every rank has whole does not fit by itself, or nothing is shared out. More devices do not "
        "help: return None.": a_number_always,
        "You divided all bytes by the memory of a device. That is right for stage 3 only: at the other stages each "
        "device also has some of it whole.": all_over_memory,
        "Each device would hold more than it can. Round up.": rounded_to_too_few,
        "All 16 bytes a parameter fit into one device. It needs no other.": at_least_two,
    },
)
def fits(answer):
    """A model of 7 billion parameters needs 112 GB: no number of 80 GB devices is enough for DDP, two are for the
    states of each ZeRO stage (activations not counted). And at stage 1 and 2 there is a model that never fits."""
    cases = ((7e9, 80e9, 0), (7e9, 80e9, 1), (7e9, 80e9, 3), (1e9, 80e9, 0), (18e9, 80e9, 1), (20e9, 80e9, 1),
             (30e9, 80e9, 1), (30e9, 80e9, 2), (70e9, 80e9, 3))
    for parameters, memory, stage in drawn(cases, fitting):
        got, right = answer(parameters, memory, stage), fewest(parameters, memory, stage)
        message = (f"{parameters / 1e9:g} billion parameters, devices of {memory / 1e9:g} GB, stage {stage}: you gave "
                   f"{got}; {right} is right.")
        # Where no number is right, all numbers are the same mistake.
        yield Case("a number" if right is None and got is not None else got, right, message)


# Exercise 2: the optimizer's state, shared out by hand
def my_step(weights, gradient, state):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(gradient)
    mine, own = weights.chunk(ranks)[rank], gradient.chunk(ranks)[rank] / ranks
    state["momentum"] = 0.9 * state.get("momentum", 0) + own
    mine -= 0.1 * state["momentum"]
    dist.all_gather(list(weights.chunk(ranks)), mine.clone())


def stepped(weights, gradient, state, reduced=True, divided=True, remembered=True, whole=False, gathered=True):
    """my_step with one thing another way."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if reduced:
        dist.all_reduce(gradient)
    chunks = [weights] if whole else weights.chunk(ranks)
    own = (gradient if whole else gradient.chunk(ranks)[rank]) / (ranks if divided else 1)
    state["momentum"] = (MOMENTUM * state.get("momentum", 0) if remembered else 0) + own
    mine = chunks[0 if whole else rank]
    mine -= RATE * state["momentum"]
    if gathered and not whole:
        dist.all_gather(list(chunks), mine.clone())


def rank_0_updates(weights, gradient, state):
    dist.all_reduce(gradient)
    if dist.get_rank() == 0:
        state["momentum"] = MOMENTUM * state.get("momentum", 0) + gradient / dist.get_world_size()
        weights -= RATE * state["momentum"]
    dist.broadcast(weights, src=0)


def updates(ranks):
    """(values of the weights, updates, a number that the gradients are made with)."""
    return drawn_one((12, 3, 7), lambda random: (
        ranks * random.choice((5, 7)), random.choice((4, 5)), random.choice((9, 11, 13))))


def first_weights(values):
    return torch.arange(100.0, 100 + values)  # far from 0, so that a relative tolerance suits all of them


def in_one_process(gradients):
    """The weights after these gradients, one for each step."""
    weights, momentum = first_weights(gradients.shape[-1]), 0
    for gradient in gradients:
        momentum = MOMENTUM * momentum + gradient
        weights -= RATE * momentum
    return weights.tolist()


def measure_my_step(function, context):
    """This rank's gradient in each step, its weights in the end, and how many values it keeps in `state`."""
    values, steps, modulus = updates(context.world_size)
    weights, state, gradients = first_weights(values), {}, []
    for step in range(steps):
        gradient = torch.tensor([float((value * (context.rank + 2) + step) % modulus) for value in range(values)])
        gradients.append(gradient.tolist())
        function(weights, gradient, state)
    return {"gradients": gradients, "weights": weights.tolist(),
            "state": sum(kept.numel() for kept in state.values() if torch.is_tensor(kept))}


@exercise_on_ranks(
    measure_my_step,
    solution=my_step,
    hint="Four lines: add up the gradients of all ranks (all_reduce, or reduce_scatter for less to send); update the "
    "momentum of your own piece; change your own piece of the weights; all_gather the pieces. weights.chunk(n) shares "
    "the memory of weights.",
    mistakes={
        "Each piece was updated with the gradient of one rank alone. It needs the mean over all ranks.":
            partial(stepped, reduced=False, divided=False),
        "That is the result with the sum of the gradients. DDP takes their mean.": partial(stepped, divided=False),
        "The momentum was forgotten between two steps: keep it in `state`.": partial(stepped, remembered=False),
        "Each rank's own piece is right, and the others are old: the ranks did not tell each other what they had "
        "updated.": partial(stepped, gathered=False),
        "Every rank keeps all of it: this is DDP, and saves no memory.": partial(stepped, whole=True),
        "Rank 0 keeps and updates everything, and the others wait for it.": rank_0_updates,
    },
    preload=FSDP,
)
def zero1(ranks):
    """Each rank keeps the state of its own piece, and all ranks have all weights: this is stage 1 of ZeRO. With
    reduce_scatter in place of all_reduce it sends no more than DDP's all_reduce."""
    gradients = torch.tensor([measured["gradients"] for measured in ranks])  # [rank, step, value]
    _, steps, values = gradients.shape
    right, piece = in_one_process(gradients.mean(0)), values // len(ranks)
    for rank, measured in enumerate(ranks):
        got = measured["weights"]
        worst = max(range(values), key=lambda value: abs(got[value] - right[value]))
        yield Case(got, right, f"After {steps} steps value {worst} of rank {rank}'s weights is {got[worst]:.3f}; "
                               f"{right[worst]:.3f} is right.", rel_tol=1e-5)
    kept = [measured["state"] for measured in ranks]
    yield Case(kept, [piece] * len(ranks),
               f"The weights are right, and the ranks keep {', '.join(map(str, kept))} values in `state`. Each should "
               f"keep the momentum of its own piece, {piece} values.")


# Exercise 3: what FSDP keeps where
def my_shards(model, mesh):
    from torch.distributed.fsdp import fully_shard

    rank, ranks, shapes = dist.get_rank(), dist.get_world_size(), {}
    for name, weight in model.named_parameters():
        rows = -(-len(weight) // ranks)  # rounded up
        mine = min(rows, max(0, len(weight) - rank * rows))  # the last ranks may get nothing
        shapes[name] = (mine, *weight.shape[1:])
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return shapes


def foretold(model, mesh, pieces, **options):
    """my_shards with another prediction: pieces(weight, ranks, **options), one for each rank."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    shapes = {name: tuple(pieces(weight, ranks, **options)[rank].shape) for name, weight in model.named_parameters()}
    my_shards(model, mesh)
    return shapes


def on_each(weight, ranks):
    return [weight] * ranks


def rounded_down(weight, ranks):
    rows = len(weight) // ranks
    return [*weight.split([rows] * (ranks - 1) + [len(weight) - rows * (ranks - 1)])]


def sharded_at_once(model, mesh):
    from torch.distributed.fsdp import fully_shard

    return {name: tuple(weight.to_local().shape) for name, weight in fully_shard(model, mesh=mesh).named_parameters()}


def layers_alone(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return {name: tuple(weight.to_local().shape) for name, weight in model.named_parameters()}


def model_first(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh)
    return my_shards(model, mesh)


def not_sharded(model, mesh):
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def widths(ranks):
    """Of the layers to shard: the inputs of the first, then the outputs of each; not all can be cut evenly."""
    return drawn_one((5, 8, 4, 2), lambda random: (
        random.choice((6, 7, 9)), random.choice((9, 10, 11)), ranks + 1, random.choice((3, 6))))


def measure_my_shards(function, context):
    """The shapes that the function predicts for this rank, the shapes that it has, those of the whole parameters; and
    how many layers are whole while each layer computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule

    inputs, first, second, last = widths(context.world_size)
    model = nn.Sequential(nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(),
                          nn.Linear(second, last))
    whole = {name: list(weight.shape) for name, weight in model.named_parameters()}
    try:
        predicted = function(model, init_device_mesh("cpu", (context.world_size,)))
    except (TypeError, AssertionError) as error:
        if isinstance(model, FSDPModule):  # only then is it PyTorch's own, and no bug of the learner's
            raise Wrong(f'PyTorch stopped: "{error}"') from None
        raise
    if not isinstance(predicted, dict) or predicted.keys() != whole.keys():
        raise Wrong(f"On rank {context.rank} you returned {predicted!r}. Return a dict with a shape for each name of "
                    "model.named_parameters().")
    held = {name: list(getattr(weight, "to_local", lambda weight=weight: weight)().shape)
            for name, weight in model.named_parameters()}
    layers, whole_layers = [layer for layer in model if isinstance(layer, nn.Linear)], []
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: whole_layers.append(
            sum(not hasattr(layer.weight, "to_local") for layer in layers)))
    model(torch.ones(2, inputs))
    return {"predicted": {name: list(map(int, shape)) for name, shape in predicted.items()}, "held": held,
            "whole": whole, "whole layers": whole_layers}


@exercise_on_ranks(
    measure_my_shards,
    solution=my_shards,
    hint="FSDP2 cuts the first dimension as torch.chunk does: blocks of ceil(rows / ranks) rows, as long as there are "
    "rows. A bias is cut, too. Call fully_shard from the inside out: each Linear, then the model.",
    mistakes={
        "Those are whole. What does a rank keep between two uses?": partial(foretold, pieces=on_each),
        "Yours are as equal as can be. FSDP2 rounds up for all, so that the last ranks may have less, or nothing.":
            partial(foretold, pieces=torch.Tensor.tensor_split),
        "You rounded down, and the rest went to the last rank, which would have the most. FSDP2 rounds up.":
            partial(foretold, pieces=rounded_down),
        "You cut the last dimension. FSDP2 cuts the first.":
            partial(foretold, pieces=torch.Tensor.tensor_split, dim=-1),
        "All are gathered together: fully_shard was called for the model alone.": sharded_at_once,
        "A gathered layer stays whole after forward. A module that stands in no other with fully_shard takes itself "
        "for the outermost, and the outermost is not given back.": layers_alone,
        "Was fully_shard called for the model, and then for its layers? It goes from the inside out: the model comes "
        "last.": model_first,
        "Which call shares a module out?": not_sharded,
    },
    preload=FSDP,
)
def shards(ranks):
    """FSDP2's shards are blocks of rows, all of one height but the last, and empty where the rows have run out: the
    4 rows of a weight on 3 ranks are 2, 2 and none. And at each moment one layer is whole, on a CPU."""
    for rank, measured in enumerate(ranks):
        yield Case(measured["held"] == measured["whole"], False,
                   f"Rank {rank} has all weights whole: nothing was shared out.")
    whole_layers = ranks[0]["whole layers"]
    yield Case(whole_layers, [1] * len(whole_layers),
               f"While the {len(whole_layers)} layers compute, {', '.join(map(str, whole_layers))} of them are whole. "
               "One is right.")
    for name, shape in ranks[0]["whole"].items():
        predicted, held = ([tuple(measured[shapes][name]) for measured in ranks] for shapes in ("predicted", "held"))
        yield Case(predicted, held, f"{name}, {tuple(shape)}: the ranks hold {', '.join(map(str, held))}; you "
                                    f"predicted {', '.join(map(str, predicted))}.")


# Exercise 4: two matrices shared out
def my_mlp(mlp, x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    up, act, down = mlp
    rows, row_biases = up.weight.chunk(ranks)[rank], up.bias.chunk(ranks)[rank]
    columns = down.weight.chunk(ranks, dim=1)[rank]
    out = act(x @ rows.T + row_biases) @ columns.T
    dist.all_reduce(out)
    return out + down.bias


def multiplied(mlp, x, bias="once", reduced=True, mean=False, whole=False):
    """my_mlp with one thing another way."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    up, act, down = mlp
    hidden = act(up(x)).chunk(ranks, 1)[rank] if whole else act(
        x @ up.weight.chunk(ranks)[rank].T + up.bias.chunk(ranks)[rank])
    out = hidden @ down.weight.chunk(ranks, dim=1)[rank].T + (down.bias if bias == "each" else 0)
    if reduced:
        dist.all_reduce(out)
    return (out / ranks if mean else out) + (down.bias if bias == "once" else 0)


def all_of_it(mlp, x):
    return mlp(x)


def two_all_reduces(mlp, x):
    out = multiplied(mlp, x)
    dist.all_reduce(torch.zeros(1))
    return out


def mlp_sizes(ranks):
    """(rows of x, values of each, hidden values)."""
    return drawn_one((4, 6, 12), lambda random: (
        random.randint(5, 9), random.randint(7, 11), ranks * random.choice((4, 5, 7))))


def measure_my_mlp(function, context):
    """The output, that of the whole MLP, this rank's share of the operations, and its collectives."""
    from torch.utils.flop_counter import FlopCounterMode

    collectives = []

    def noted(name):
        call = getattr(dist, name)
        return lambda *args, **kwargs: collectives.append(name) or call(*args, **kwargs)

    torch.manual_seed(generator_seed())
    rows, size, hidden = mlp_sizes(context.world_size)
    mlp = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))
    nn.init.uniform_(mlp[2].bias, 10, 20)  # so that no output is near 0, and a relative tolerance suits all of them
    x = torch.randn(rows, size)
    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce")
    with torch.no_grad():
        with FlopCounterMode(display=False) as of_all:
            right = mlp(x)
        with mock.patch.multiple(dist, **{name: noted(name) for name in names}), \
                FlopCounterMode(display=False) as of_rank:
            out = function(mlp, x)
    if not torch.is_tensor(out) or out.shape != right.shape:
        returned = f"a tensor of shape {list(out.shape)}" if torch.is_tensor(out) else repr(out)
        raise Wrong(f"On rank {context.rank} you returned {returned}. Every rank needs the output, a tensor of shape "
                    f"{list(right.shape)}.")
    return {"out": out.flatten().tolist(), "right": right.flatten().tolist(), "collectives": collectives,
            "share": of_rank.get_total_flops() / of_all.get_total_flops()}


@exercise_on_ranks(
    measure_my_mlp,
    solution=my_mlp,
    hint="A Linear's weight is [outputs, inputs]. Take some rows of the first (and of its bias), and of the second the "
    "columns that belong to the same hidden values. The product is a part of a sum. The second bias belongs to the "
    "sum, not to each part.",
    mistakes={
        "The second bias is in it once for each rank. Add it after the sum.": partial(multiplied, bias="each"),
        "The second bias is missing.": partial(multiplied, bias="none"),
        "It is this rank's part of a sum. A collective must add up the parts.": partial(multiplied, reduced=False),
        "The parts were averaged. They are parts of a sum.": partial(multiplied, mean=True),
        "One of the two matrices is multiplied whole on each rank.": partial(multiplied, whole=True),
        "Nothing was shared out.": all_of_it,
        "One all_reduce is enough: between the two matrices nothing has to be sent.": two_all_reduces,
    },
    preload=FSDP,
)
def mlp(ranks):
    """Each rank multiplies its own part, and one all_reduce gives all of them the output: this is how tensor
    parallelism shares out an MLP. Backward needs a second one, for the gradient of x."""
    for rank, measured in enumerate(ranks):
        off = max(abs(out - right) for out, right in zip(measured["out"], measured["right"], strict=True))
        yield Case(measured["out"], measured["right"],
                   f"The output of rank {rank} is off by {off:.3f} from that of the whole MLP.", rel_tol=1e-5)
    for rank, measured in enumerate(ranks):
        yield Case(max(measured["share"], 1 / len(ranks)), 1 / len(ranks),
                   f"The output is right, but rank {rank} did {measured['share']:.0%} of all multiplications, with "
                   f"{len(ranks)} ranks.")
        yield Case(measured["collectives"], ["all_reduce"],
                   f"The output is right, but rank {rank} called {', '.join(measured['collectives']) or 'nothing'}.")
