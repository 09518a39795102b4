"""Exercises of notebook 15: DiLoCo's outer step, how seldom to talk over a link, and what local training leaves
different. The first and the last run on ranks: course/on_ranks.py says how."""

import copy
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course.cases import drawn, drawn_one, exactly, generator_seed, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

RATE, MOMENTUM = 0.7, 0.9  # of the outer optimizer
BUFFERS = "BatchNorm's running mean and variance"


def values():
    """How many values an input of the small models has."""
    return drawn_one(5, lambda random: random.randint(6, 12))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def weights_of(model):
    return parameters_to_vector(model.parameters()).detach()


def apart(rank):
    """A model that has learnt alone: the same first weights on each rank, then a way of its own."""
    torch.manual_seed(generator_seed())
    model = nn.Sequential(nn.Linear(values(), 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    before = weights_of(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    numbers = torch.Generator().manual_seed(100 + rank + generator_seed())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, values(), generator=numbers)).pow(2).mean().backward()
        optimizer.step()
    return model, before, optimizer


def measure_outer(function, here):
    """The weights of this rank before two outer steps and after each, and what `agreed` held then."""
    model, agreed, _ = apart(here.rank)
    outer = torch.optim.SGD([agreed], lr=RATE, momentum=MOMENTUM, nesterov=True)
    seen = {"first": agreed.tolist(), "own": [], "after": [], "agreed": []}
    for _ in range(2):  # the second shows whether the outer optimizer keeps its momentum
        seen["own"].append(weights_of(model).tolist())
        function(model, agreed, outer)
        seen["after"].append(weights_of(model).tolist())
        seen["agreed"].append(agreed.tolist())
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter += 0.01 * (here.rank + 1) * (number + 1)  # each rank learns something else
    seen["shared"] = seen["agreed"][-1] != agreed.tolist()  # what the model learns changes `agreed`, too
    return seen


def measure_average(function, here):
    """{part of a training's state: this rank's values} before and after."""
    model, _, optimizer = apart(here.rank)
    before = copy.deepcopy(state(model, optimizer))
    function(model, optimizer)
    return {"before": before, "after": state(model, optimizer)}


def state(model, optimizer):
    kept = [optimizer.state[parameter] for parameter in model.parameters()]
    return {"weights": weights_of(model).tolist(),
            BUFFERS: torch.cat([model[1].running_mean, model[1].running_var]).tolist(),
            "Adam's exp_avg": torch.cat([one["exp_avg"].flatten() for one in kept]).tolist(),
            "Adam's exp_avg_sq": torch.cat([one["exp_avg_sq"].flatten() for one in kept]).tolist(),
            "counters": [int(model[1].num_batches_tracked), *(float(one["step"]) for one in kept)]}


answers = Answers({"my_outer_step": measure_outer, "my_average": measure_average})


def near(one, other):
    return torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-6)


def the_same(lists):
    return all(near(one, lists[0]) for one in lists)


# Exercise 1: the outer step
@torch.no_grad()
def my_outer_step(model, agreed, outer):
    agreed.grad = agreed - parameters_to_vector(model.parameters())
    dist.all_reduce(agreed.grad)
    agreed.grad /= dist.get_world_size()
    outer.step()
    vector_to_parameters(agreed.clone(), model.parameters())


def added_up(tensor):
    dist.all_reduce(tensor)
    return tensor


@torch.no_grad()
def step_along(gradient, model, agreed, outer):
    agreed.grad = gradient
    outer.step()
    vector_to_parameters(agreed.clone(), model.parameters())


def downhill_is_up(model, agreed, outer):
    step_along(added_up(weights_of(model) - agreed) / dist.get_world_size(), model, agreed, outer)


def sum_of_all(model, agreed, outer):
    step_along(added_up(agreed - weights_of(model)), model, agreed, outer)


def own_difference(model, agreed, outer):
    step_along(agreed - weights_of(model), model, agreed, outer)


def weights_for_a_gradient(model, agreed, outer):
    step_along(added_up(weights_of(model)) / dist.get_world_size(), model, agreed, outer)


def model_left_alone(model, agreed, outer):
    agreed.grad = added_up(agreed - weights_of(model)) / dist.get_world_size()
    outer.step()


@torch.no_grad()
def one_memory(model, agreed, outer):
    agreed.grad = added_up(agreed - weights_of(model)) / dist.get_world_size()
    outer.step()
    vector_to_parameters(agreed, model.parameters())


@torch.no_grad()
def only_the_mean(model, agreed, outer):
    agreed.copy_(added_up(weights_of(model)) / dist.get_world_size())
    vector_to_parameters(agreed.clone(), model.parameters())


@exercise(
    solution=my_outer_step,
    hint="parameters_to_vector(model.parameters()) is one long vector. agreed.grad = agreed - that vector; sum it over "
    "the ranks and divide by their number; outer.step() changes agreed; vector_to_parameters(agreed.clone(), "
    "model.parameters()) gives it to the model. All under torch.no_grad().",
    mistakes={"the other sign": downhill_is_up, "a sum": sum_of_all, "nothing sent": own_difference,
              "the model keeps its own": model_left_alone, "one memory": one_memory,
              "the mean of the weights": only_the_mean, "weights for a gradient": weights_for_a_gradient},
)
def outer(attempt):
    """How far the ranks came, on average, is a gradient like any other: so momentum works on it. A rank sent its
    weights' bytes once, however many batches it had learnt from before."""
    found = answers.findings("my_outer_step", attempt)
    for step in range(2):
        after, agreed = ([one[kind][step] for one in found] for kind in ("after", "agreed"))
        begun = torch.tensor(found[0]["first"] if step == 0 else found[0]["agreed"][0])
        mean = torch.tensor([one["own"][step] for one in found]).mean(0)
        if not the_same(after) or not the_same(agreed):
            raise because("After your outer step the ranks' weights differ.",
                          (found[0]["shared"], "The model's parameters are views of `agreed`: what a rank learns "
                           "changes `agreed` at once. Give the model a copy: agreed.clone()."),
                          (all(near(one["after"][step], one["own"][step]) for one in found), "The models are as they "
                           "were: `agreed` has the new weights, and nobody gave them to the model."),
                          (True, "Each took its own difference. The mean over the ranks is what all must take."))
        if near(after[0], mean.tolist()) and not near(mean.tolist(), begun.tolist()):
            raise Wrong("That is the mean of the ranks' weights: local SGD. The outer optimizer did not work. Its "
                        "gradient is how far the ranks came: agreed - weights.")
        expected = outer_steps(found, step + 1)
        if not near(after[0], expected):
            moved = torch.tensor(after[0]) - begun
            right = torch.tensor(expected) - begun
            times = (moved @ right / (right @ right)).item()
            raise because(f"Outer step {step + 1}: the weights moved {times:.2f} times as far as they must.",
                          (found[0]["shared"], "The model's parameters are views of `agreed`: give the model a copy."),
                          (times < 0, "They moved away from where the ranks had come. An optimizer walks against its "
                           "gradient: it is agreed - weights."),
                          (near((moved / len(found)).tolist(), right.tolist()), "all_reduce adds up: divide by the "
                           "number of ranks."),
                          (True, "The gradient is the mean over the ranks of agreed - weights, and nothing else; "
                           "outer.step() does the rest."))


def outer_steps(found, count):
    """The agreed weights after so many right outer steps from what the ranks had before each."""
    agreed = torch.tensor(found[0]["first"])
    optimizer = torch.optim.SGD([agreed], lr=RATE, momentum=MOMENTUM, nesterov=True)
    for step in range(count):
        agreed.grad = agreed - torch.tensor([one["own"][step] for one in found]).mean(0)
        optimizer.step()
    return agreed.tolist()


# Exercise 2: how seldom?
def my_every(step, alpha, beta, bytes, most):
    return max(1, math.ceil((alpha + beta * bytes) / (most * step)))


def rounded_down(step, alpha, beta, bytes, most):
    return max(1, math.floor((alpha + beta * bytes) / (most * step)))


def of_one_batch(step, alpha, beta, bytes, most):
    return max(1, math.ceil((alpha + beta * bytes) / step))


def no_latency(step, alpha, beta, bytes, most):
    return max(1, math.ceil(beta * bytes / (most * step)))


def seldom(random):
    """A case in which the message is long enough for the mistakes to differ from the answer."""
    return (random.randint(4, 12) / 1000, random.randint(20, 90) / 1000, random.randint(30, 90) / 1e9,
            random.randint(3, 9) * 10**6, random.choice((0.04, 0.05, 0.08)))


@exercise(
    solution=my_every,
    hint="Talking takes alpha + beta · bytes once in N batches, so each batch pays a part of it. Which whole N makes "
    "that part at most `most` times `step`? Round up; and nobody can talk more often than after each batch.",
    mistakes={
        "With that the message takes more than it may: round up.": rounded_down,
        "`most` is missing: so the message takes as long as all the batches together.": of_one_batch,
        "A message also has a latency, however short it is: alpha.": no_latency,
    },
)
def every(attempt):
    """N grows with the message and with the latency of the link, and falls as a batch takes longer. What it does to
    learning is another question: no formula of times answers it."""
    cases = drawn([(0.005, 0.05, 8e-9, 9_999_000, 0.05), (0.005, 0.0002, 1e-9, 248_024, 0.05),
                   (0.25, 0.05, 0.8e-9, 400_100_000, 0.1), (0.25, 0.0001, 1e-9, 248_024, 0.1)], seldom)
    for miss in misses(every, attempt, cases, read=exactly):
        miss.tell("A batch takes {step} s, a message {alpha} s + {beta} s · {bytes:,}. So that talking takes at most "
                  "{most:.0%} of the batches' time, you talk after {got} batches; it should be {right}.")


# Exercise 3: what is not averaged?
@torch.no_grad()
def my_average(model, optimizer):
    tensors = [*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())]
    for kept in optimizer.state.values():
        tensors += [kept["exp_avg"], kept["exp_avg_sq"]]
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def mean_of(tensors):
    for tensor in tensors:
        added_up(tensor).div_(dist.get_world_size())


@torch.no_grad()
def weights_alone(model, optimizer):
    mean_of(model.parameters())


@torch.no_grad()
def weights_and_buffers(model, optimizer):
    mean_of([*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())])


@torch.no_grad()
def weights_and_optimizer(model, optimizer):
    mean_of([*model.parameters(), *(kept[name] for kept in optimizer.state.values()
                                    for name in ("exp_avg", "exp_avg_sq"))])


@torch.no_grad()
def all_added_up(model, optimizer):
    mean_of([*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())])
    for kept in optimizer.state.values():
        dist.all_reduce(kept["exp_avg"])
        dist.all_reduce(kept["exp_avg_sq"])


@torch.no_grad()
def counters_too(model, optimizer):
    my_average(model, optimizer)
    for kept in optimizer.state.values():
        dist.all_reduce(kept["step"])


@exercise(
    solution=my_average,
    hint="Three kinds of tensors: model.parameters(), those of model.buffers() that are floating point, and for each "
    "value of optimizer.state its exp_avg and exp_avg_sq. Counters are the same on all ranks: leave them.",
    mistakes={"weights alone": weights_alone, "no optimizer": weights_and_buffers, "no BatchNorm":
              weights_and_optimizer, "sums": all_added_up, "counters": counters_too},
)
def average(attempt):
    """Weights, BatchNorm's statistics, the optimizer's memory: three times the bytes of the weights and a little. Who
    leaves the optimizer's state on each rank, as DiLoCo does, must save it on each rank, too."""
    found = answers.findings("my_average", attempt)
    before, after = ({part: [one[when][part] for one in found] for part in found[0]["after"]}
                     for when in ("before", "after"))
    if after.pop("counters") != before.pop("counters"):
        raise Wrong("You changed what counts steps: Adam corrects its averages by it, and all ranks have the same "
                    "number anyway.")
    if different := [part for part in after if not the_same(after[part])]:
        raise because(f"After it the ranks still differ in {', in '.join(different)}.",
                      (BUFFERS in different, "model.parameters() does not have BatchNorm's: they are buffers. So two "
                       "ranks would judge the same image differently."),
                      ("weights" not in different, "The optimizer keeps them: the next step of each rank goes another "
                       "way, from the same weights."))
    for part in after:
        if not near(after[part][0], torch.tensor(before[part]).mean(0).tolist()):
            raise Wrong(f"{part}: the ranks agree, but not on the mean of what they had. all_reduce adds up.")
