"""Exercises of lesson 13. What is right comes from one process, or from what FSDP2 leaves on each rank."""

import math
import re
import traceback
from itertools import product

import torch
import torch.distributed as dist
from torch import nn

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import ExerciseOnRanks, Measurement, exercise_on_ranks, patched
from course.sent import Sent
from course.sharding import FSDP_IMPORTS
from lessons.l13_beyond_ddp.pipeline import computed, gpipe, most_kept


# Exercise 1: does it fit
def fewest(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    shared = 16 * parameters - whole
    if whole + shared <= memory:
        return 1
    return math.ceil(shared / (memory - whole)) if shared and whole < memory else None


@exercise(
    solution=fewest,
    hint="Split the 16 bytes a parameter into what each rank has whole (16, 4, 2 or 0 of them at stage 0 to 3) and "
    "what is sharded. The sharded part must fit into the memory that the whole part leaves: shared / N <= "
    "memory - whole.",
    mistakes={
        "The part that every rank has whole does not fit by itself, or nothing is sharded. More devices do not "
        "help: return None.": mistake(fewest, {"else None": "else 1_000_000"}),
        "You divided all bytes by the memory of a device. That is right for stage 3 only: at the other stages each "
        "device also has some of it whole.": lambda parameters, memory, stage: math.ceil(16 * parameters / memory),
        "Each device would hold more than it can. Round up.": mistake(fewest, {"math.ceil": "math.floor"}),
        "A number of devices is whole: round up.": mistake(fewest, {"math.ceil": ""}),
        "You divided the part that is sharded by the whole memory. On each device it shares the memory with the part "
        "that is not sharded.": mistake(fewest, {"shared / (memory - whole)": "shared / memory"}),
        "You counted as autocast does: 4 + 4 + 8 bytes. The paper counts 2 + 2 + 12.":
            mistake(fewest, {"1: 4, 2: 2": "1: 8, 2: 4"}),
        "All 16 bytes a parameter fit into one device. It needs no other.": mistake(fewest, {"return 1": "return 2"}),
    },
)
def fits(answer):
    """A model of 7 billion parameters needs 112 GB: no number of 80 GB devices is enough for DDP, two are for the
    states of each ZeRO stage (activations not counted). And at stage 1 and 2 there is a model that never fits."""
    cases = ((7e9, 80e9, 0), (7e9, 80e9, 1), (7e9, 80e9, 3), (1e9, 80e9, 0), (18e9, 80e9, 1), (20e9, 80e9, 1),
             (30e9, 80e9, 1), (30e9, 80e9, 2), (70e9, 80e9, 3))
    for parameters, memory, stage in cases:
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
        ranks = dist.get_world_size()
        gradients = self.flat([torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters])
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter(self.own.grad, list(gradients.chunk(ranks)))
        self.own.grad /= ranks
        self.optimizer.step()
        self.own.grad = None  # not needed any more
        dist.all_gather(list(self.weights.chunk(ranks)), self.own.clone())


REDUCE, DIVIDE, GATHER = (f"        {line}\n" for line in (
    "dist.reduce_scatter(self.own.grad, list(gradients.chunk(ranks)))", "self.own.grad /= ranks",
    "dist.all_gather(list(self.weights.chunk(ranks)), self.own.clone())"))
OF_ONE_RANK = "        self.own.grad.copy_(gradients.chunk(ranks)[dist.get_rank()])\n"


class WholeTensors:
    """Each rank updates some of the tensors, which are dealt out in turn."""

    def __init__(self, parameters, optimizer_class, **options):
        trained = [each for each in parameters if each.requires_grad]
        self.owners = {each: number % dist.get_world_size() for number, each in enumerate(trained)}
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
        torch.manual_seed(0)
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

    sizes = (5, 9, 4)
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
            mistake(MyZero, {REDUCE: OF_ONE_RANK, DIVIDE: ""}),
        "That is the result with the sum of the gradients: reduce_scatter adds up. Divide by the number of ranks.":
            mistake(MyZero, {DIVIDE: ""}),
        "The optimizer forgets its averages between two steps. Make it once, in __init__.":
            mistake(MyZero, {GATHER: f"{GATHER}        self.optimizer.state.clear()\n"}),
        "Each rank's own piece is right, and the others are old: the ranks did not tell each other what they had "
        "updated.": mistake(MyZero, {GATHER: ""}),
        "The model still has its first weights. You updated a copy: bring the values back into the parameters.":
            mistake(MyZero, {"each.data = values": "values"}),
        "The gradient of a piece adds up from step to step. Set it anew, or clear it after the update.":
            mistake(MyZero, {DIVIDE: f"{DIVIDE}        self.sum = self.own.grad = self.own.grad + "
                                     "getattr(self, 'sum', 0)\n"}),
        "A whole is N times as long as a piece, on every rank. Fill it up with zeros, and count a gradient that is "
        "None as zeros, too.": mistake(MyZero, {"-sum(self.sizes) % ranks": "0"}),
        "A parameter that took no part in the loss has no gradient: its grad is None. Count it as zeros, for on "
        "another rank it may have taken part.":
            mistake(MyZero, {"torch.zeros_like(each) if each.grad is None else ": ""}),
        "The update is no part of the model: put @torch.no_grad() before step().":
            mistake(MyZero, {GATHER: f"{GATHER}        with torch.enable_grad():\n"
                                     "            self.parameters[0] *= 1\n"}),
        "Every rank keeps the state of all weights: this is DDP, and saves no memory.":
            mistake(MyZero, {"self.weights.chunk(ranks)[rank]": "self.weights", GATHER: "",
                             REDUCE: "        dist.all_reduce(self.own.grad.copy_(gradients))\n"}),
        "Frozen parameters (requires_grad is False) were sharded, too. They need no state and no message.":
            mistake(MyZero, {" if each.requires_grad": ""}),
        "You dealt out whole tensors, as PyTorch's ZeroRedundancyOptimizer does: the rank with the largest keeps the "
        "most. Cut the values, not the list of tensors.": WholeTensors,
        "all_reduce gives each rank the sums of all gradients, and a rank needs those of its own piece. That is what "
        "reduce_scatter gives it, for half of the bytes.":
            mistake(MyZero, {REDUCE: f"        dist.all_reduce(gradients)\n{OF_ONE_RANK}"}),
    },
    measurement=Measurement(measure_my_zero, "MyZero", preload=FSDP_IMPORTS),
    ranks=(2, 3),
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


SHAPE, OF_LAYERS, OF_MODEL = "(mine, *weight.shape[1:])", """    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
""", "    fully_shard(model, mesh=mesh)\n"


def widths(ranks):
    """Of the layers to shard: the inputs of the first, then the outputs of each; not all can be cut evenly."""
    return 5, 8, 4, 2


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
        "Those are whole. What does a rank keep between two uses?": mistake(my_shards, {SHAPE: "weight.shape"}),
        "Yours are as equal as can be. FSDP2 rounds up for all, so that the last ranks may have less, or nothing.":
            mistake(my_shards, {SHAPE: "weight.tensor_split(ranks)[rank].shape"}),
        "You rounded down, and the rest went to the last rank, which would have the most. FSDP2 rounds up.":
            mistake(my_shards, {"-(-len(weight) // ranks)": "len(weight) // ranks",
                                "(mine, ": "(rows + (rank == ranks - 1) * (len(weight) - rows * ranks), "}),
        "A bias is cut, too.": mistake(my_shards, {SHAPE: f"{SHAPE} if weight.dim() > 1 else weight.shape"}),
        "You cut the last dimension. FSDP2 cuts the first.":
            mistake(my_shards, {SHAPE: "weight.tensor_split(ranks, -1)[rank].shape"}),
        "All are gathered together: fully_shard was called for the model alone.": mistake(my_shards, {OF_LAYERS: ""}),
        "A gathered layer stays whole after forward. A module that stands in no other with fully_shard takes itself "
        "for the outermost, and the outermost is not given back.": mistake(my_shards, {OF_MODEL: ""}),
        "Was fully_shard called for the model, and then for its layers? It goes from the inside out: the model comes "
        "last.": mistake(my_shards, {OF_LAYERS: f"{OF_MODEL}{OF_LAYERS}"}),
        "Which call shards a module?": mistake(my_shards, {SHAPE: "weight.shape", OF_LAYERS: "", OF_MODEL: ""}),
    },
    preload=FSDP_IMPORTS,
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


ALL_REDUCE = "    dist.all_reduce(out)\n"


def own_rows_of_x(mlp, x):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, mlp(x.tensor_split(len(rows))[dist.get_rank()]))
    return torch.cat(rows)


def mlp_sizes(ranks):
    """(rows of x, values of each, hidden values)."""
    return 4, 6, 12


def measure_my_mlp(function, context):
    """The output, that of the whole MLP, this rank's share of the operations, and its collectives."""
    from torch.utils.flop_counter import FlopCounterMode

    collectives = []

    def noted(name):
        call = getattr(dist, name)
        return lambda *args, **kwargs: collectives.append(name) or call(*args, **kwargs)

    torch.manual_seed(0)
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
        "The second bias is in it once for each rank. Add it after the sum.":
            mistake(my_mlp, {"@ columns.T": "@ columns.T + down.bias", "out + down.bias": "out"}),
        "The second bias is missing.": mistake(my_mlp, {"out + down.bias": "out"}),
        "It is this rank's part of a sum. A collective must add up the parts.": mistake(my_mlp, {ALL_REDUCE: ""}),
        "The parts were averaged. They are parts of a sum.": mistake(my_mlp, {"return out": "return out / ranks"}),
        "One of the two matrices is multiplied whole on each rank.":
            mistake(my_mlp, {"x @ rows.T + row_biases": "up(x).chunk(ranks, 1)[rank]"}),
        "The first bias is missing. Its pieces belong to the rows of the first weight.":
            mistake(my_mlp, {" + row_biases": ""}),
        "GELU comes between the two products: apply it to this rank's hidden values.":
            mistake(my_mlp, {"act(x @": "(x @", "return out": "return act(out)"}),
        "Each rank took some rows of x: that is data parallelism. Cut the hidden values, and give each rank all of x.":
            own_rows_of_x,
        "Nothing was sharded.": mistake(my_mlp, {"    rank, ranks": "    return mlp(x)\n    rank, ranks"}),
        "One all_reduce is enough: between the two matrices nothing has to be sent.":
            mistake(my_mlp, {ALL_REDUCE: f"{ALL_REDUCE}    dist.all_reduce(torch.zeros(1))\n"}),
    },
    preload=FSDP_IMPORTS,
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


@exercise(
    solution=my_order,
    hint="Rank r begins with as many forwards as there are ranks from it to the end: ranks - r, if there are so many "
    "micro-batches. Then it takes turns: a backward, a forward, until no forward is left. Then the backwards that are "
    "left. Draw it for two ranks first.",
    mistakes={
        "That is GPipe: all forwards, then all backwards. It is as fast, but every micro-batch waits for its backward.":
            gpipe,
        "Each rank finishes one micro-batch before it begins the next, so that one rank works and the others wait. The "
        "first ranks need some forwards ahead.": mistake(my_order, {"min(ranks - rank, micro_batches)": "1"}),
        "The last rank needs no forwards ahead: it can go back at once. Rank 0 needs the most.":
            mistake(my_order, {"ranks - rank,": "rank + 1,"}),
        "Rank 0 is one forward short: until its first backward can begin, each rank behind it needs a micro-batch.":
            mistake(my_order, {"ranks - rank,": "max(1, ranks - rank - 1),"}),
        "All ranks have as many forwards ahead as rank 0. How many does the last rank need?":
            mistake(my_order, {"ranks - rank,": "ranks,"}),
        "When no forward is left, some backwards still are.":
            mistake(my_order, {"return work": "return work[:len(work) - ahead + 1]"}),
        "Micro-batches are numbered from 0.":
            mistake(my_order, {"return work": "return [(kind, number + 1) for kind, number in work]"}),
    },
)
def order(answer):
    """Your order is as short as GPipe's, and a rank keeps at most as many micro-batches as there are ranks from it to
    the end: 1F1B."""
    for ranks, micro_batches in [(2, 4), (3, 5), (4, 2)]:
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
