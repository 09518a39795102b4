"""Exercises of lesson 15: DiLoCo's outer step, and what local training leaves different on the ranks."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

from course.exercise import Case, mistake
from course.on_ranks import exercise_on_ranks
from lessons.l15_talk_less.solution import my_outer_step


# For the exercises on ranks: a model after local training
def weights_of(model):
    return parameters_to_vector(model.parameters()).detach()


def trained_alone(rank):
    """A model after three local steps, its first weights, which all ranks had, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    first = weights_of(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=generator)).pow(2).mean().backward()
        optimizer.step()
    return model, first, optimizer


def all_equal(lists):
    first = torch.tensor(lists[0])
    return all(torch.allclose(torch.tensor(values), first, rtol=1e-4, atol=1e-6) for values in lists)


# Exercise 1: the outer step
MINE, ALL_REDUCE, DIVIDE, GIVE = "parameters_to_vector(model.parameters())", *(f"    {line}\n" for line in (
    "dist.all_reduce(agreed.grad)", "agreed.grad /= dist.get_world_size()",
    "vector_to_parameters(agreed.clone(), model.parameters())"))


def outer_optimizer(agreed):
    return torch.optim.SGD([agreed], lr=0.7, momentum=0.9, nesterov=True)


def measure_outer(function, context):
    """The weights of this rank before two outer steps, and after each the weights and `agreed`."""
    model, agreed, _ = trained_alone(context.rank)
    outer = outer_optimizer(agreed)
    measured = {"first": agreed.tolist(), "before": [], "model": [], "agreed": []}
    for _ in range(2):  # the second shows whether the outer optimizer keeps its momentum
        measured["before"].append(weights_of(model).tolist())
        function(model, agreed, outer)
        measured["model"].append(weights_of(model).tolist())
        measured["agreed"].append(agreed.tolist())
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter += 0.01 * (context.rank + 1) * (number + 1)  # each rank learns something else
    measured["shared"] = measured["agreed"][-1] != agreed.tolist()
    return measured


def right_agreed(ranks):
    """The agreed weights after each of two right outer steps from the ranks' weights before them."""
    agreed = torch.tensor(ranks[0]["first"])
    outer = outer_optimizer(agreed)
    for step in range(2):
        agreed.grad = agreed - torch.tensor([measured["before"][step] for measured in ranks]).mean(0)
        outer.step()
        yield agreed.clone()


@exercise_on_ranks(
    measure_outer,
    solution=my_outer_step,
    hint="parameters_to_vector(model.parameters()) is one long vector. agreed.grad = agreed - that vector; sum it over "
    "the ranks and divide by their number; outer.step() changes agreed; vector_to_parameters(agreed.clone(), "
    "model.parameters()) gives it to the model. All under torch.no_grad().",
    mistakes={
        "The model's parameters are views of `agreed`. Give the model a copy: agreed.clone().":
            mistake(my_outer_step, {"agreed.clone()": "agreed"}),
        "The models are as they were: `agreed` has the new weights, and the model never received them.":
            mistake(my_outer_step, {GIVE: ""}),
        "Each rank took its own difference. All ranks must take the mean over the ranks.":
            mistake(my_outer_step, {ALL_REDUCE: "", DIVIDE: ""}),
        "That is the mean of the ranks' weights, as in local SGD: the outer optimizer did nothing. Its gradient is the "
        "mean of agreed - weights.":
            mistake(my_outer_step, {"agreed - ": "", "outer.step()": "agreed.copy_(agreed.grad)"}),
        "The ranks had gone the other way. An optimizer walks against its gradient, so the gradient is agreed - "
        "weights.": mistake(my_outer_step, {f"agreed - {MINE}": f"{MINE} - agreed"}),
        "all_reduce adds up: divide by the number of ranks.": mistake(my_outer_step, {DIVIDE: ""}),
        "The mean of the weights is no gradient. The gradient is the mean over the ranks of agreed - weights.":
            mistake(my_outer_step, {"agreed - ": ""}),
    },
)
def outer(ranks):
    """The ranks' mean way is a gradient like any other, so momentum works on it. A rank sent the bytes of its weights
    once, however many batches it had learnt from before."""
    yield Case(any(measured["shared"] for measured in ranks), False,
               "After your outer step whatever changes the model's weights changes `agreed`, too.")
    start = torch.tensor(ranks[0]["first"])
    for step, right in enumerate(right_agreed(ranks)):
        for name in ("agreed", "model"):
            yield Case(all_equal([measured[name][step] for measured in ranks]), True,
                       f"After outer step {step + 1} the weights of `{name}` differ between the ranks.")
            moved, wanted = torch.tensor(ranks[0][name][step]) - start, right - start
            times, off = (moved @ wanted / (wanted @ wanted)).item(), ((moved - wanted).norm() / wanted.norm()).item()
            message = (f"In outer step {step + 1} the weights of `{name}` moved {times:.2f} times as far as they must, "
                       f"and are off by {off:.0%} of the right way."
                       + step * " Step 1 was right. Step 2 needs a new gradient, and the momentum that `outer` kept.")
            yield Case(times, 1.0, message, rel_tol=1e-3)
            yield Case(off < 1e-3, True, message)
        start = right


# Exercise 2: what is not averaged?
@torch.no_grad()
def my_average(model, optimizer):
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    for state in optimizer.state.values():
        tensors += [state["exp_avg"], state["exp_avg_sq"]]
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


BUFFERS, MOMENTS = ", *(buffer for buffer in model.buffers() if buffer.is_floating_point())", """\
    for state in optimizer.state.values():
        tensors += [state["exp_avg"], state["exp_avg_sq"]]
"""


def measure_average(function, context):
    """{part of what a rank holds: this rank's values} before and after."""
    model, _, optimizer = trained_alone(context.rank)
    before = copy.deepcopy(parts(model, optimizer))
    function(model, optimizer)
    return {"before": before, "after": parts(model, optimizer)}


def parts(model, optimizer):
    states = [optimizer.state[parameter] for parameter in model.parameters()]
    return {"the counters": [int(model[1].num_batches_tracked), *(float(state["step"]) for state in states)],
            "the weights": weights_of(model).tolist(),
            "BatchNorm's running mean and variance": torch.cat([model[1].running_mean, model[1].running_var]).tolist(),
            "Adam's exp_avg": torch.cat([state["exp_avg"].flatten() for state in states]).tolist(),
            "Adam's exp_avg_sq": torch.cat([state["exp_avg_sq"].flatten() for state in states]).tolist()}


@exercise_on_ranks(
    measure_average,
    solution=my_average,
    hint="Three kinds of tensors: model.parameters(), those of model.buffers() that are floating point, and for each "
    "value of optimizer.state its exp_avg and exp_avg_sq. Counters are the same on all ranks: leave them.",
    mistakes={
        "Adam corrects its averages by the number of steps, and all ranks have the same number anyway.":
            mistake(my_average, {"tensors += ": "dist.all_reduce(state['step'])\n        tensors += "}),
        "One of BatchNorm's buffers counts batches, in a whole number that is the same on all ranks: leave it.":
            mistake(my_average, {BUFFERS: ", *model.buffers()", MOMENTS: ""}),
        "BatchNorm's statistics are buffers, which model.parameters() does not have. And an optimizer keeps averages "
        "of its own.": mistake(my_average, {BUFFERS: "", MOMENTS: ""}),
        "model.parameters() does not have BatchNorm's statistics: they are buffers. So two ranks would judge the same "
        "image differently.": mistake(my_average, {BUFFERS: ""}),
        "The optimizer keeps them: the next step of each rank goes another way, from the same weights.":
            mistake(my_average, {MOMENTS: ""}),
        "The optimizer's averages were added up. Divide them, too, by the number of ranks.":
            mistake(my_average, {"tensors += [": "for moment in (",
                                 '_sq"]]': '_sq"]):\n            dist.all_reduce(moment)'}),
        "all_reduce adds up: divide by the number of ranks.":
            mistake(my_average, {"        tensor /= dist.get_world_size()\n": ""}),
    },
)
def average(ranks):
    """You average the weights, BatchNorm's statistics and the optimizer's state: a little more than three times the
    bytes of the weights. DiLoCo leaves the optimizer's state on each rank, and then each rank must save its own."""
    before, after = ({part: [measured[when][part] for measured in ranks] for part in ranks[0][when]}
                     for when in ("before", "after"))
    yield Case(after.pop("the counters") == before.pop("the counters"), True, "You changed the counters of steps.")
    different = [part for part in after if not all_equal(after[part])]
    yield Case(different, [], f"After your average the ranks still differ in {', '.join(different)}.")
    for part in after:
        got, mean = torch.tensor(after[part][0]), torch.tensor(before[part]).mean(0)
        times, off = ((vector.norm() / mean.norm()).item() for vector in (got, got - mean))
        message = (f"The ranks agree, but {part} is not the mean of what the ranks had: {times:.2f} times as long, off "
                   f"by {off:.0%}.")
        yield Case(times, 1.0, message, rel_tol=1e-3)
        yield Case(off < 1e-3, True, message)
