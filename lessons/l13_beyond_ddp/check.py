"""Exercises of notebook 13. All but the first run on ranks: course/on_ranks.py says how."""

import math
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from course.cases import drawn, drawn_one, exactly, generator_seed, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

RATE, MOMENTUM = 0.1, 0.9  # of the updates


def updates(ranks):
    """(values of the weights, updates, a number that the gradients are made with)."""
    return drawn_one((12, 3, 7), lambda random: (
        ranks * random.choice((5, 7)), random.choice((4, 5)), random.choice((9, 11, 13))))


def widths(ranks):
    """Of the layers to shard: what goes in, and what comes out of each; not all of it is shared out evenly."""
    return drawn_one((5, 8, 4, 2), lambda random: (
        random.choice((6, 7, 9)), random.choice((9, 10, 11)), ranks + 1, random.choice((3, 6))))


def mlp_sizes(ranks):
    """(rows of x, values of each, hidden values)."""
    return drawn_one((4, 6, 12), lambda random: (
        random.randint(5, 9), random.randint(7, 11), ranks * random.choice((4, 5, 7))))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure_my_step(function, here):
    """The gradients that a rank had in each step, its weights in the end, and how many values it keeps in `state`."""
    values, steps, modulus = updates(here.world_size)
    weights, state, gradients = torch.arange(1.0, values + 1), {}, []
    for step in range(steps):
        gradient = torch.tensor([float((value * (here.rank + 2) + step) % modulus) for value in range(values)])
        gradients.append(gradient.tolist())
        function(weights, gradient, state)
    return {"gradients": gradients, "weights": weights.tolist(),
            "state": sum(kept.numel() for kept in state.values() if torch.is_tensor(kept))}


def measure_my_shards(function, here):
    """The shapes that a rank was told to expect, those that it has, and how many layers are whole in each layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule

    given, first, second, last = widths(here.world_size)
    model = nn.Sequential(nn.Linear(given, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(),
                          nn.Linear(second, last))
    whole = {name: list(weight.shape) for name, weight in model.named_parameters()}
    try:
        told = function(model, init_device_mesh("cpu", (here.world_size,)))
    except (TypeError, AssertionError) as error:  # PyTorch's own, which does not say why
        if isinstance(model, FSDPModule):
            raise Wrong(f'PyTorch stopped: "{error}" Was fully_shard called for the model, and then for its layers? It '
                        "goes from the inside out: the model comes last.") from None
        raise
    if not isinstance(told, dict) or told.keys() != whole.keys():
        raise Wrong(f"On rank {here.rank} you returned {told!r}. Return a dict with a shape for each name of "
                    "model.named_parameters().")
    has = {name: list(getattr(weight, "to_local", lambda weight=weight: weight)().shape)
           for name, weight in model.named_parameters()}
    if has == whole:
        raise Wrong(f"Rank {here.rank} has all weights whole: nothing was shared out. Which call does that?")
    seen = []

    def look(*_):
        seen.append(sum(not hasattr(layer.weight, "to_local") for layer in model if isinstance(layer, nn.Linear)))

    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(look)
    model(torch.ones(2, given))
    return {"told": {name: list(map(int, shape)) for name, shape in told.items()}, "has": has, "whole": whole,
            "seen": seen}


def measure_my_mlp(function, here):
    """How far the output is off, what else it equals, the operations of this rank, and its collectives."""
    from torch.utils.flop_counter import FlopCounterMode

    def noted(name):
        call = getattr(dist, name)
        return lambda *args, **kwargs: calls.append(name) or call(*args, **kwargs)

    torch.manual_seed(generator_seed())
    rows, size, hidden = mlp_sizes(here.world_size)
    mlp = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))
    x, calls, counters = torch.randn(rows, size), [], []
    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce")
    with torch.no_grad():
        for run in (function, lambda mlp, x: mlp(x)):
            with mock.patch.multiple(dist, **{name: noted(name) for name in names}), \
                    FlopCounterMode(display=False) as counter:
                out = run(mlp, x)
            counters.append(counter.get_total_flops())
            if run is function:
                got = out
        if not torch.is_tensor(got) or got.shape != out.shape:
            raise Wrong(f"On rank {here.rank} you returned {got!r}. Every rank needs the output, {list(out.shape)}.")
        bias, n = mlp[2].bias, here.world_size
        hidden = mlp[1](mlp[0](x)).chunk(n, 1)[here.rank]
        part = hidden @ mlp[2].weight.chunk(n, 1)[here.rank].T
        others = {"bias": out + (n - 1) * bias, "no bias": out - bias, "part": part, "part and bias": part + bias,
                  "mean": out / n, "mean and bias": (out - bias) / n + bias}
    return {"off": (got - out).abs().max().item(), "calls": calls, "operations": counters[0], "whole": counters[1],
            "is": [name for name, other in others.items() if torch.allclose(got, other, atol=1e-5)]}


answers = Answers({"my_step": measure_my_step, "my_shards": measure_my_shards, "my_mlp": measure_my_mlp},
                  preload=("torch._dynamo", "torch._inductor", "torch.distributed.fsdp"))  # FSDP brings in all of them


# Exercise 1: does it fit
def fewest(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    shared = 16 * parameters - whole
    if whole + shared <= memory:
        return 1
    return math.ceil(shared / (memory - whole)) if shared and whole < memory else None


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
        "all bytes over the memory": lambda parameters, memory, stage: math.ceil(16 * parameters / memory),
        "rounded down": lambda *asked: fewest(*asked) and max(1, fewest(*asked) - 1),
        "a number although it never fits": lambda *asked: fewest(*asked) or 1_000_000,
        "at least two": lambda *asked: fewest(*asked) and max(2, fewest(*asked)),
    },
)
def fits(attempt):
    """A model of 7 billion parameters needs 112 GB: no number of 80 GB devices is enough for DDP, two are for the
    states of each ZeRO stage (activations not counted). And at stage 1 and 2 there is a model that never fits."""
    cases = ((7e9, 80e9, 0), (7e9, 80e9, 1), (7e9, 80e9, 3), (1e9, 80e9, 0), (18e9, 80e9, 1), (20e9, 80e9, 1),
             (30e9, 80e9, 1), (30e9, 80e9, 2), (70e9, 80e9, 3))
    for miss in misses(fits, attempt, drawn(cases, fitting), read=exactly):
        (parameters, memory, stage), got, right = miss.asked, miss.got, miss.right
        call = (f"{parameters / 1e9:g} billion parameters, devices of {memory / 1e9:g} GB, stage {stage}: you gave "
                f"{got}; it is {right}.")
        if right is None:
            raise Wrong(f"{call} What every rank has whole does not fit by itself, or nothing is shared out. More "
                        "devices do not help: return None.")
        if got is None:
            raise Wrong(f"{call} It does fit: {right} device(s) have room for it.")
        if got == math.ceil(16 * parameters / memory):
            raise Wrong(f"{call} You divided all bytes by the memory of a device. That is right for stage 3 only: at "
                        "the other stages each device also has some of it whole.")
        if right == 1:
            raise Wrong(f"{call} All 16 bytes a parameter fit into one device. It needs no other.")
        if got < right:
            raise Wrong(f"{call} That many do not suffice: {got} device(s) would hold more than they can. Round up.")
        raise Wrong(call)


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


def simulated(gradients, momentum=MOMENTUM):
    """The weights after these gradients, one for each step, in one process."""
    weights, average = torch.arange(1.0, gradients.shape[-1] + 1), torch.zeros(gradients.shape[-1])
    for gradient in gradients:
        average = momentum * average + gradient
        weights -= RATE * average
    return weights


@exercise(
    solution=my_step,
    hint="Four lines: add up the gradients of all ranks (all_reduce, or reduce_scatter for less to send); update the "
    "momentum of your own piece; change your own piece of the weights; all_gather the pieces. weights.chunk(n) shares "
    "the memory of weights.",
    mistakes={"its own gradient": partial(stepped, reduced=False, divided=False),
              "the sum": partial(stepped, divided=False), "no momentum": partial(stepped, remembered=False),
              "all of the state": partial(stepped, whole=True), "not gathered": partial(stepped, gathered=False),
              "rank 0 for all": rank_0_updates},
)
def zero1(attempt):
    """Each rank keeps the state of its own piece, and all ranks have all weights: this is stage 1 of ZeRO. With
    reduce_scatter in place of all_reduce it sends no more than DDP's all_reduce."""
    ranks = answers.findings("my_step", attempt)
    gradients = torch.tensor([rank["gradients"] for rank in ranks])  # [rank, step, value]
    values, steps = gradients.shape[-1], gradients.shape[1]
    piece, right = values // len(ranks), simulated(gradients.mean(0))
    its_own = torch.cat([simulated(own).split(piece)[rank] for rank, own in enumerate(gradients)])
    for number, rank in enumerate(ranks):
        got = torch.tensor(rank["weights"])
        if not torch.allclose(got, right, atol=1e-4):
            value = (got - right).abs().argmax().item()
            raise because(
                f"After {steps} steps value {value} of rank {number}'s weights is {got[value]:.3f}; it should be "
                f"{right[value]:.3f}.",
                (torch.allclose(got, its_own, atol=1e-4), "Each piece was updated with the gradient of one rank alone. "
                 "It needs the mean over all ranks."),
                (torch.allclose(got, simulated(gradients.sum(0)), atol=1e-4), "That is what the sum of the gradients "
                 "gives. DDP takes their mean."),
                (torch.allclose(got, simulated(gradients.mean(0), momentum=0), atol=1e-4), "The momentum was forgotten "
                 "between two steps: keep it in `state`."),
                (torch.allclose(got.split(piece)[number], right.split(piece)[number], atol=1e-4), "Its own piece is "
                 "right, and the others are old: the ranks did not tell each other what they had updated."))
        if rank["state"] != piece:
            raise because(
                f"The weights are right, and rank {number} keeps {rank['state']} values in `state`. It should keep the "
                f"momentum of its own piece, {piece} values.",
                (all(other["state"] == values for other in ranks), "Every rank keeps all of it: this is DDP, and saves "
                 "no memory."),
                (ranks[0]["state"] == values, "Rank 0 keeps and updates everything, and the others wait for it."))


# Exercise 3: what FSDP keeps where
def my_shards(model, mesh):
    from torch.distributed.fsdp import fully_shard

    rank, ranks, shapes = dist.get_rank(), dist.get_world_size(), {}
    for name, weight in model.named_parameters():
        rows = math.ceil(len(weight) / ranks)
        mine = min(rows, max(0, len(weight) - rank * rows))  # the last ranks may get nothing
        shapes[name] = (mine, *weight.shape[1:])
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return shapes


def foretold(model, mesh, pieces, **options):
    """my_shards with another prediction: pieces(weight, ranks) are those of all ranks."""
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

    shapes = {name: tuple(weight.to_local().shape) for name, weight in fully_shard(model, mesh=mesh).named_parameters()}
    return shapes


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


@exercise(
    solution=my_shards,
    hint="FSDP2 cuts the first dimension as torch.chunk does: blocks of ceil(rows / ranks) rows, as long as there are "
    "rows. A bias is cut, too. Call fully_shard from the inside out: each Linear, then the model.",
    mistakes={"whole": partial(foretold, pieces=on_each),
              "as equal as can be": partial(foretold, pieces=torch.Tensor.tensor_split),
              "rounded down": partial(foretold, pieces=rounded_down),
              "columns": partial(foretold, pieces=torch.Tensor.tensor_split, dim=-1),
              "all at once": sharded_at_once, "layers alone": layers_alone, "model first": model_first,
              "not sharded": not_sharded},
)
def shards(attempt):
    """FSDP2's shards are blocks of rows, all of one height but the last, and empty where the rows have run out: the
    4 rows of a weight on 3 ranks are 2, 2 and none. And at each moment one layer is whole, on a CPU."""
    ranks = answers.findings("my_shards", attempt)
    seen, layers = ranks[0]["seen"], len(ranks[0]["seen"])
    if max(seen) > 1:
        raise because(
            f"While the {layers} layers compute, {', '.join(map(str, seen))} of them are whole. It should be one.",
            (min(seen) == layers, "All are gathered together: fully_shard was called for the model alone."),
            (seen == sorted(seen), "What was gathered stays after forward. A module that stands in no other with "
             "fully_shard takes itself for the outermost, and the outermost is not given back."))
    for name, shape in ranks[0]["whole"].items():
        has, told = ([tuple(rank[which][name]) for rank in ranks] for which in ("has", "told"))
        if has != told:
            weight, n = torch.empty(shape, device="meta"), len(ranks)
            others = {"Those are whole. What does a rank keep between two uses?": [weight] * n,
                      "Yours are as equal as can be. FSDP2 rounds up for all, so that the last ranks may have less, or "
                      "nothing.": weight.tensor_split(n),
                      "You rounded down, and the rest went to the last rank, which would have the most. FSDP2 rounds "
                      "up.": rounded_down(weight, n),
                      "You cut the last dimension. FSDP2 cuts the first.": weight.tensor_split(n, dim=-1)}
            raise because(
                f"{name}, {tuple(shape)}: the ranks hold {', '.join(map(str, has))}; you said "
                f"{', '.join(map(str, told))}.",
                *[(told == [tuple(piece.shape) for piece in pieces], why) for why, pieces in others.items()])


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


@exercise(
    solution=my_mlp,
    hint="A Linear's weight is [outputs, inputs]. Take some rows of the first (and of its bias), and of the second the "
    "columns that belong to the same hidden values. The product is a part of a sum. The second bias belongs to the "
    "sum, not to each part.",
    mistakes={"bias on each rank": partial(multiplied, bias="each"), "no bias": partial(multiplied, bias="none"),
              "no all_reduce": partial(multiplied, reduced=False), "the mean": partial(multiplied, mean=True),
              "all of the first": partial(multiplied, whole=True), "all on each rank": all_of_it,
              "two all_reduces": two_all_reduces},
)
def mlp(attempt):
    """Each rank multiplies its own part, and one all_reduce gives all of them the output: this is how tensor
    parallelism shares out an MLP. Backward needs a second one, for the gradient of x."""
    ranks = answers.findings("my_mlp", attempt)
    for number, rank in enumerate(ranks):
        if rank["off"] > 1e-4:
            name = rank["is"][0] if rank["is"] else ""
            raise because(
                f"The output of rank {number} is off by {rank['off']:.3f} from that of the whole MLP.",
                (name == "bias", "The second bias is in it once for each rank. Add it after the sum."),
                (name == "no bias", "The second bias is missing."),
                (name.startswith("part"), "It is this rank's part of a sum. Who adds up the parts?"),
                (name.startswith("mean"), "The parts were averaged. They are parts of a sum."))
        if rank["operations"] > rank["whole"] / len(ranks):
            share = rank["operations"] / rank["whole"]
            raise because(
                f"The output is right, but rank {number} did {share:.0%} of all multiplications, with {len(ranks)} "
                "ranks.",
                (share >= 1, "Nothing was shared out."),
                (True, "One of the two matrices is multiplied whole on each rank."))
        if rank["calls"] != ["all_reduce"]:
            raise Wrong(f"The output is right, but rank {number} called {', '.join(rank['calls'])}. One all_reduce is "
                        "enough: between the two matrices nothing has to be sent.")
