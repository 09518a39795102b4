"""Exercises of lesson 13. What is right comes from one process, or from what FSDP2 leaves on each rank."""

import math
import re
import traceback
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import nn

from course.exercise import Case, Wrong, drawn, drawn_one, exercise, generator_seed
from course.on_ranks import ExerciseOnRanks, Measurement, exercise_on_ranks, patched, some_ranks
from course.sent import Sent
from lessons.l13_beyond_ddp.pipeline import computed, gpipe, most_kept

# What FSDP imports. All exercises name it, because the first one starts the process that all ranks are forked from. It
# cannot be imported any more after shortcuts.defer_compiler().
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


def not_rounded(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    devices = fewest(parameters, memory, stage)
    return devices and max(1, (16 * parameters - whole) / (memory - whole))


def whole_part_forgotten(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    devices = fewest(parameters, memory, stage)
    return devices and max(1, math.ceil((16 * parameters - whole) / memory))


def as_autocast(parameters, memory, stage):
    whole = {0: 16, 1: 8, 2: 4, 3: 0}[stage] * parameters
    if 16 * parameters <= memory:
        return 1
    return math.ceil((16 * parameters - whole) / (memory - whole)) if stage and whole < memory else None


def at_least_two(parameters, memory, stage):
    devices = fewest(parameters, memory, stage)
    return devices and max(2, devices)


def fitting(random):
    """A model that fits, once it is sharded."""
    gigabytes, stage = random.choice((24, 40, 48, 96)), random.randint(1, 3)
    most = {1: gigabytes // 4 - 1, 2: gigabytes // 2 - 1, 3: 4 * gigabytes}[stage]
    return random.randint(most // 3, most) * 1e9, gigabytes * 1e9, stage


@exercise(
    solution=fewest,
    hint="Split the 16 bytes a parameter into what each rank has whole (16, 4, 2 or 0 of them at stage 0 to 3) and "
    "what is sharded. The sharded part must fit into the memory that the whole part leaves: shared / N <= "
    "memory - whole.",
    mistakes={
        "The part that every rank has whole does not fit by itself, or nothing is sharded. More devices do not "
        "help: return None.": a_number_always,
        "You divided all bytes by the memory of a device. That is right for stage 3 only: at the other stages each "
        "device also has some of it whole.": all_over_memory,
        "Each device would hold more than it can. Round up.": rounded_to_too_few,
        "A number of devices is whole: round up.": not_rounded,
        "You divided the part that is sharded by the whole memory. On each device it shares the memory with the part "
        "that is not sharded.": whole_part_forgotten,
        "You counted as autocast does: 4 + 4 + 8 bytes. The paper counts 2 + 2 + 12.": as_autocast,
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


# Exercise 2: an optimizer whose state the ranks shard
class MyZero:
    def __init__(self, parameters, optimizer_class, **options):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.parameters = [each for each in parameters if each.requires_grad]
        self.sizes = [each.numel() for each in self.parameters]
        self.sizes.append(-sum(self.sizes) % ranks)  # zeros at the end, so that the ranks divide the length
        self.weights = self.flat(self.parameters)
        for each, values in zip(self.parameters, self.weights.split(self.sizes), strict=False):
            each.data = values.view_as(each)  # in the vector's memory: what is gathered there is in the model
        self.own = self.weights.chunk(ranks)[rank]
        self.optimizer = optimizer_class([self.own], **options)

    def flat(self, tensors):
        return torch.cat([*(each.detach().flatten() for each in tensors), tensors[0].new_zeros(self.sizes[-1])])

    @torch.no_grad()
    def step(self):
        gradients = self.flat([torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters])
        self.own.grad = self.mean_of_own(gradients)
        self.optimizer.step()
        self.own.grad = None  # not needed any more
        self.gather()

    def mean_of_own(self, gradients):
        own = torch.empty_like(self.own)
        dist.reduce_scatter(own, list(gradients.chunk(dist.get_world_size())))
        return own / dist.get_world_size()

    def gather(self):
        dist.all_gather(list(self.weights.chunk(dist.get_world_size())), self.own.clone())


class OneRanksGradient(MyZero):
    def mean_of_own(self, gradients):
        return gradients.chunk(dist.get_world_size())[dist.get_rank()].clone()


class Sum(MyZero):
    def mean_of_own(self, gradients):
        return super().mean_of_own(gradients) * dist.get_world_size()


class AllReduced(MyZero):
    def mean_of_own(self, gradients):
        dist.all_reduce(gradients)
        return gradients.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()


class Forgetful(MyZero):
    def step(self):
        super().step()
        self.optimizer.state.clear()


class NotGathered(MyZero):
    def gather(self):
        pass


class NotCopied(MyZero):
    def __init__(self, parameters, optimizer_class, **options):
        parameters = list(parameters)
        before = [each.data for each in parameters]
        super().__init__(parameters, optimizer_class, **options)
        for each, values in zip(parameters, before, strict=True):
            each.data = values


class Accumulated(MyZero):
    earlier = 0

    def mean_of_own(self, gradients):
        self.earlier = self.earlier + super().mean_of_own(gradients)
        return self.earlier.clone()


class Unpadded(MyZero):
    def __init__(self, parameters, optimizer_class, **options):
        super().__init__(parameters, optimizer_class, **options)
        self.sizes[-1] = 0


class Watched(MyZero):
    def step(self):
        super().step()
        with torch.enable_grad():
            self.parameters[0] *= 1


class NoneUsed(MyZero):
    def step(self):
        self.flat([each.grad for each in self.parameters])
        super().step()


class WholeState(MyZero):
    def __init__(self, parameters, optimizer_class, **options):
        super().__init__(parameters, optimizer_class, **options)
        self.own = self.weights
        self.optimizer = optimizer_class([self.own], **options)

    def mean_of_own(self, gradients):
        dist.all_reduce(gradients)
        return gradients / dist.get_world_size()

    def gather(self):
        pass


class FrozenToo(MyZero):
    def __init__(self, parameters, optimizer_class, **options):
        parameters = list(parameters)
        frozen = [each.requires_grad_() for each in parameters if not each.requires_grad]
        super().__init__(parameters, optimizer_class, **options)
        for each in frozen:
            each.requires_grad_(False)


class WholeTensors:
    """Each rank updates some of the tensors, the largest dealt out first."""

    def __init__(self, parameters, optimizer_class, **options):
        self.owners, load = {}, [0] * dist.get_world_size()
        for each in sorted((each for each in parameters if each.requires_grad), key=lambda each: -each.numel()):
            self.owners[each] = load.index(min(load))
            load[self.owners[each]] += each.numel()
        own = [each for each, owner in self.owners.items() if owner == dist.get_rank()]
        self.optimizer = optimizer_class(own, **options)

    @torch.no_grad()
    def step(self):
        for each, owner in self.owners.items():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad / dist.get_world_size()
            dist.reduce(each.grad, owner)
        self.optimizer.step()
        for each, owner in self.owners.items():
            dist.broadcast(each, owner)


class Judged(nn.Module):
    """In 64 bits, with more values to train than 2 to 6 ranks can share evenly. Of its parameters `frozen` is not
    trained, `never` takes part in no loss, and `sometimes` in rank 0's alone."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        torch.manual_seed(generator_seed())
        self.up, self.down = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.sometimes = nn.Parameter(torch.randn(outputs))
        others = sum(each.numel() for each in self.parameters())
        self.never = nn.Parameter(torch.randn(next(size for size in range(1, 31) if math.gcd(others + size, 60) == 1)))
        self.frozen = nn.Parameter(torch.randn(hidden, hidden), requires_grad=False)
        self.double()

    def loss(self, rank, step):
        """Of a rank's own batch of this step."""
        random = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(5, self.up.in_features, generator=random, dtype=torch.float64)
        out = self.down(torch.tanh(self.up(x)) @ self.frozen)
        return (out + self.sometimes if rank == 0 else out - 1).square().mean()


def typical(error):
    """The Wrong in place of an error of step() that has one likely cause, whatever PyTorch's words for it; or None."""
    if "NoneType" in str(error):
        return Wrong("step() uses the gradient of a parameter that has none.")
    if "non-leaf" in str(error):
        return Wrong("The vector still belongs to the model's autograd graph. Copy the values with detach().")
    if "in-place" in str(error):
        return Wrong("step() changes weights while autograd is watching them.")
    waited = re.search("timed out|closed by peer", str(error), re.IGNORECASE)
    frames = traceback.extract_tb(error.__traceback__)
    if not waited and any(frame.filename.endswith("distributed_c10d.py") for frame in frames):
        return Wrong("A collective refuses the sizes of its tensors.")
    return None


def measure_my_zero(function, context):
    """The weights that `function` trains and those of one process, {name: values}; the bytes of its optimizers' state,
    what a step sends, and the most that each may be."""
    rank, ranks, stepped = context.rank, context.world_size, {}

    class Adam(torch.optim.Adam):
        def step(self, *args, **kwargs):
            stepped[self] = None
            return super().step(*args, **kwargs)

    sizes = drawn_one((5, 9, 4), lambda random: (random.randint(3, 6), random.choice((8, 10, 11)), 3))
    model, alone = Judged(*sizes), Judged(*sizes)
    options = {"lr": 0.05, "eps": 0.1}  # with a small eps Adam would divide out whether it is a sum or a mean
    try:
        optimizer = function(model.parameters(), Adam, **options)
    except ValueError as error:
        raise (typical(error) or error) from None
    reference = torch.optim.Adam(alone.parameters(), **options)
    for step in range(4):
        model.zero_grad()
        stepped.clear()  # an optimizer that has no part in the last step may have been dropped
        with Sent() as sent:
            model.loss(rank, step).backward()
            try:
                optimizer.step()
            except (AttributeError, TypeError, RuntimeError, ValueError) as error:
                raise (typical(error) or error) from None
        reference.zero_grad()
        (sum(alone.loss(each, step) for each in range(ranks)) / ranks).backward()
        reference.step()
    values = [each.numel() for each in alone.parameters() if each.requires_grad]
    piece = 8 * sum(math.ceil(size / ranks) for size in values)  # bytes, with each tensor cut for itself
    return {"weights": {name: each.flatten().tolist() for name, each in model.named_parameters()},
            "right": {name: each.flatten().tolist() for name, each in alone.named_parameters()},
            "state": sum(value.nbytes for each in stepped for state in each.state.values() for value in state.values()
                         if torch.is_tensor(value) and value.dim()),
            "whole state": 2 * 8 * sum(values), "most state": 2 * piece, "sent": sent.rows(),
            "most sent": 2 * (ranks - 1) * piece + 100}  # and a few numbers, should they be needed


def zero1(ranks):
    """On 3 ranks and on 2 all have the weights of one process (in 64 bits, to rounding), each keeps its share of Adam's
    averages, and a step sends no more than DDP's all-reduce: this is stage 1 of ZeRO."""
    on = f"On {len(ranks)} ranks"
    for rank, measured in enumerate(ranks):
        got, right = measured["weights"], measured["right"]
        name, place = max(((name, place) for name in right for place in range(len(right[name]))),
                          key=lambda which: abs(got[which[0]][which[1]] - right[which[0]][which[1]]))
        yield Case(got, right, f"{on}, after 4 steps, value {place} of `{name}` on rank {rank} is "
                               f"{got[name][place]:.4f}; one process has {right[name][place]:.4f}."
                               + ("" if measured["sent"] else " In a step it sent nothing."), rel_tol=1e-8)
    kept, most, whole = [measured["state"] for measured in ranks], ranks[0]["most state"], ranks[0]["whole state"]
    yield Case([max(kept) > most, round(sum(kept) / whole)], [False, 1],
               f"{on} the weights are right. Of Adam's averages, {whole:,} bytes in all, the ranks keep "
               f"{', '.join(f'{each:,}' for each in kept)} bytes in optimizers of the class that you were given: at "
               f"most {most:,} each are right.")
    for rank, measured in enumerate(ranks):
        sent, most = sum(row["bytes"] for row in measured["sent"]), measured["most sent"]
        names = ", ".join(f"{row['calls']} {row['collective']}" for row in measured["sent"])
        yield Case(round(2 * max(sent, most) / most), 2,
                   f"{on} the weights and the state are right. In a step rank {rank} sends {sent:,} bytes ({names}); "
                   f"at most {most:,} are right.")


zero1 = ExerciseOnRanks(
    zero1,
    solution=MyZero,
    hint="Put the values of all parameters into one flat vector (torch.cat), with zeros at the end until the ranks "
    "divide its length. Rank r owns the r-th piece, weights.chunk(n)[r], which shares the vector's memory: make the "
    "optimizer for this tensor alone. In step(): the gradients as such a vector, reduce_scatter into the .grad of your "
    "piece, divide, update, all_gather the pieces, and see that the values come back into the parameters. (If each "
    "parameter's .data is a view of the vector, they do so by themselves.)",
    mistakes={
        "Each piece was updated with the gradient of one rank alone. It needs the mean over all ranks.":
            OneRanksGradient,
        "That is the result with the sum of the gradients: reduce_scatter adds up. Divide by the number of ranks.": Sum,
        "The optimizer forgets its averages between two steps. Make it once, in __init__.": Forgetful,
        "Each rank's own piece is right, and the others are old: the ranks did not tell each other what they had "
        "updated.": NotGathered,
        "The model still has its first weights. You updated a copy: bring the values back into the parameters.":
            NotCopied,
        "The gradient of a piece adds up from step to step. Set it anew, or clear it after the update.": Accumulated,
        "A whole is N times as long as a piece, on every rank. Fill it up with zeros, and count a gradient that is "
        "None as zeros, too.": Unpadded,
        "A parameter that took no part in the loss has no gradient: its grad is None. Count it as zeros, for on "
        "another rank it may have taken part.": NoneUsed,
        "The update is no part of the model: put @torch.no_grad() before step().": Watched,
        "Every rank keeps the state of all weights: this is DDP, and saves no memory.": WholeState,
        "Frozen parameters (requires_grad is False) were sharded, too. They need no state and no message.":
            FrozenToo,
        "You dealt out whole tensors, as PyTorch's ZeroRedundancyOptimizer does: the rank with the largest keeps the "
        "most. Cut the values, not the list of tensors.": WholeTensors,
        "all_reduce gives each rank the sums of all gradients, and a rank needs those of its own piece. That is what "
        "reduce_scatter gives it, for half of the bytes.": AllReduced,
    },
    measurement=Measurement(measure_my_zero, "MyZero", preload=FSDP),
    ranks=lambda: (2, some_ranks()),
)


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


def biases_whole(weight, ranks):
    rows = math.ceil(len(weight) / ranks)
    return [weight if weight.dim() == 1 else weight[rank * rows:][:rows] for rank in range(ranks)]


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
    except IndexError as error:
        raise Wrong(f"On rank {context.rank} it raised IndexError: {error}. Where the ranks are more than the rows "
                    "torch.chunk gives fewer pieces than there are ranks.") from None
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
        "A bias is cut, too.": partial(foretold, pieces=biases_whole),
        "You cut the last dimension. FSDP2 cuts the first.":
            partial(foretold, pieces=torch.Tensor.tensor_split, dim=-1),
        "All are gathered together: fully_shard was called for the model alone.": sharded_at_once,
        "A gathered layer stays whole after forward. A module that stands in no other with fully_shard takes itself "
        "for the outermost, and the outermost is not given back.": layers_alone,
        "Was fully_shard called for the model, and then for its layers? It goes from the inside out: the model comes "
        "last.": model_first,
        "Which call shards a module?": not_sharded,
    },
    preload=FSDP,
)
def shards(ranks):
    """FSDP2's shards are blocks of rows, all of one height but the last, and empty where the rows have run out: the
    4 rows of a weight on 3 ranks are 2, 2 and none. And at each moment one layer is whole, on a CPU."""
    for rank, measured in enumerate(ranks):
        yield Case(measured["held"] == measured["whole"], False,
                   f"Rank {rank} has all weights whole: nothing was sharded.")
    whole_layers = ranks[0]["whole layers"]
    yield Case(whole_layers, [1] * len(whole_layers),
               f"While the {len(whole_layers)} layers compute, {', '.join(map(str, whole_layers))} of them are whole. "
               "One is right.")
    for name, shape in ranks[0]["whole"].items():
        predicted, held = ([tuple(measured[shapes][name]) for measured in ranks] for shapes in ("predicted", "held"))
        yield Case(predicted, held, f"{name}, {tuple(shape)}: the ranks hold {', '.join(map(str, held))}; you "
                                    f"predicted {', '.join(map(str, predicted))}.")


# Exercise 4: two sharded matrices
def my_mlp(mlp, x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    up, act, down = mlp
    rows, row_biases = up.weight.chunk(ranks)[rank], up.bias.chunk(ranks)[rank]
    columns = down.weight.chunk(ranks, dim=1)[rank]
    out = act(x @ rows.T + row_biases) @ columns.T
    dist.all_reduce(out)
    return out + down.bias


def multiplied(mlp, x, bias="once", reduced=True, mean=False, whole=False, first_bias=True, act_last=False):
    """my_mlp with one thing another way."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    up, act, down = mlp
    hidden = up(x).chunk(ranks, 1)[rank] if whole else (
        x @ up.weight.chunk(ranks)[rank].T + first_bias * up.bias.chunk(ranks)[rank])
    hidden = hidden if act_last else act(hidden)
    out = hidden @ down.weight.chunk(ranks, dim=1)[rank].T + (down.bias if bias == "each" else 0)
    if reduced:
        dist.all_reduce(out)
    out = act(out) if act_last else out
    return (out / ranks if mean else out) + (down.bias if bias == "once" else 0)


def all_of_it(mlp, x):
    return mlp(x)


def own_rows_of_x(mlp, x):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, mlp(x.tensor_split(len(rows))[dist.get_rank()]))
    return torch.cat(rows)


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
        with patched(function, **{name: noted(name) for name in names}), \
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
        "The first bias is missing. Its pieces belong to the rows of the first weight.":
            partial(multiplied, first_bias=False),
        "GELU comes between the two products: apply it to this rank's hidden values.":
            partial(multiplied, act_last=True),
        "Each rank took some rows of x: that is data parallelism. Cut the hidden values, and give each rank all of x.":
            own_rows_of_x,
        "Nothing was sharded.": all_of_it,
        "One all_reduce is enough: between the two matrices nothing has to be sent.": two_all_reduces,
    },
    preload=FSDP,
)
def mlp(ranks):
    """Each rank multiplies its own part, and one all_reduce gives all of them the output: this is how tensor
    parallelism shards an MLP. Backward needs a second one, for the gradient of x."""
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


# Exercise 5: the order of a pipeline
def my_order(rank, ranks, micro_batches):
    ahead = min(ranks - rank, micro_batches)
    work = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        work.append(("backward", number))
        if ahead + number < micro_batches:
            work.append(("forward", ahead + number))
    return work


def one_at_a_time(rank, ranks, micro_batches):
    return [(kind, number) for number in range(micro_batches) for kind in ("forward", "backward")]


def other_way_round(rank, ranks, micro_batches):
    return my_order(ranks - 1 - rank, ranks, micro_batches)


def one_fewer_ahead(rank, ranks, micro_batches):
    return my_order(min(rank + 1, ranks - 1), ranks, micro_batches)


def as_many_on_each(rank, ranks, micro_batches):
    return my_order(0, ranks, micro_batches)


def none_left_for_the_end(rank, ranks, micro_batches):
    work = my_order(rank, ranks, micro_batches)
    while work[-2][0] == "backward":
        work.pop()
    return work


def from_one(rank, ranks, micro_batches):
    return [(kind, number + 1) for kind, number in my_order(rank, ranks, micro_batches)]


@exercise(
    solution=my_order,
    hint="Rank r begins with as many forwards as there are ranks from it to the end: ranks - r, if there are so many "
    "micro-batches. Then it takes turns: a backward, a forward, until no forward is left. Then the backwards that are "
    "left. Draw it for two ranks first.",
    mistakes={
        "That is GPipe: all forwards, then all backwards. It is as fast, but every micro-batch waits for its backward.":
            gpipe,
        "Each rank finishes one micro-batch before it begins the next, so that one rank works and the others wait. The "
        "first ranks need some forwards ahead.": one_at_a_time,
        "The last rank needs no forwards ahead: it can go back at once. Rank 0 needs the most.": other_way_round,
        "Rank 0 is one forward short: until its first backward can begin, each rank behind it needs a micro-batch.":
            one_fewer_ahead,
        "All ranks have as many forwards ahead as rank 0. How many does the last rank need?": as_many_on_each,
        "When no forward is left, some backwards still are.": none_left_for_the_end,
        "Micro-batches are numbered from 0.": from_one,
    },
)
def order(answer):
    """Your order is as short as GPipe's, and a rank keeps at most as many micro-batches as there are ranks from it to
    the end: 1F1B."""
    for ranks, micro_batches in drawn([(2, 4), (3, 5), (4, 2)], lambda random: (random.randint(2, 5),
                                                                                random.randint(2, 9))):
        on = f"With {ranks} ranks and {micro_batches} micro-batches"
        orders = []
        for rank in range(ranks):
            work = answer(rank, ranks, micro_batches)
            if isinstance(work, list | tuple) and all(isinstance(each, list | tuple) and len(each) == 2
                                                      for each in work):
                orders.append([(str(kind), int(number)) for kind, number in work])
            else:
                raise Wrong(f"{on} you returned {work!r} for rank {rank}. Return a list of pairs such as "
                            '("forward", 0).')
        each_once = sorted(product(("backward", "forward"), range(micro_batches)))
        for rank, work in enumerate(orders):
            yield Case(sorted(work), each_once,
                       f"{on} rank {rank} does {shown(work)}. It needs each forward "
                       f"and each backward of 0 to {micro_batches - 1} once.")
        try:
            length = max(event["end"] for event in computed(orders))
        except ValueError as deadlock:
            lists = "; ".join(f"rank {rank}: {shown(work)}" for rank, work in enumerate(orders))
            raise Wrong(f"{on} your lists end in a {deadlock}. ({lists}.)") from None
        shortest = 2 * (micro_batches + ranks - 1)
        yield Case(length, shortest, f"{on} a step takes as long as {length} forwards; {shortest} are enough. A rank "
                                     f"waits {1 - 2 * micro_batches / length:.0%} of the time, in place of "
                                     f"{1 - 2 * micro_batches / shortest:.0%}.")
        for rank, work in enumerate(orders):
            kept, fewest = most_kept(work), min(micro_batches, ranks - rank)
            yield Case(max(kept, fewest), fewest,
                       f"{on} your order is as short as can be, but rank {rank} keeps the activations of {kept} "
                       f"micro-batches at one time ({shown(work)}); {fewest} would do.")


def shown(work):
    return " ".join(f"{kind[:1].upper()}{number}" for kind, number in work) or "nothing"
