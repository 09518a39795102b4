"""Exercises of lesson 15, each a file of mine/, on ranks: a hook in 16 bits, an all-reduce that knows the nodes, local
SGD, and DiLoCo's outer step."""

import sys
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from course.exercise import Case, mistake
from course.lesson import ROOT
from course.on_ranks import ExerciseOnRanks, Measurement
from course.sent import Sent

sys.path.append(str(ROOT / "lessons/start/ours"))  # as train_gpt.py does: DiLoCo imports local.py, whosever it is

from diloco import DiLoCo  # noqa: E402
from hierarchical import all_reduce  # noqa: E402
from hook import sixteen_bits  # noqa: E402
from local import Local  # noqa: E402

float64 = partial(torch.tensor, dtype=torch.float64)


class Part(ExerciseOnRanks):
    """An exercise whose file is a part of the learner's train_gpt.py."""

    def __init__(self, check, measure, solution, hint, mistakes, ranks):
        super().__init__(check, solution, hint, mistakes, Measurement(measure, solution.__name__, preload=(__name__,)),
                         ranks)


# ------------------------------------------------------------------------------------------------ 16 bits

SIZES = {"all gradients are 40,000": 4e4, "all gradients are 0.00000002": 2e-8, "ordinary gradients": 1.0}
VALUES = 3 * 7  # of the network below


def measure_hook(hook, context):
    """{name of a case: gradients after backward()}, and `sent`, the bytes of a rank per value, in a ring."""
    measured = {}
    for name, size in SIZES.items():
        network = nn.Linear(7, 3, bias=False)
        parallel = DistributedDataParallel(network)
        parallel.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
        torch.manual_seed(context.rank)
        own = size * (torch.randn(3, 7) if size == 1 else torch.ones(3, 7))
        with Sent() as sent:
            (parallel(torch.eye(7)) * own.T).sum().backward()  # so the gradient of the weights is `own`
        gradient = network.weight.grad
        measured[name] = {"got": gradient.double().flatten().tolist(), "own": own.double().flatten().tolist(),
                          "sent": sent.bytes.total() * context.world_size / (context.world_size - 1) / 2 / VALUES}
    return measured


def hook_cases(ranks):
    """The sum travels in bfloat16: half the bytes, the range of float32, and two to three decimal digits."""
    on = f"On {len(ranks)} ranks"
    for name in SIZES:
        got = float64([measured[name]["got"] for measured in ranks])
        right = float64([measured[name]["own"] for measured in ranks]).mean(0)
        times = (got[0] @ right / (right @ right)).item()
        off = ((got - right).norm(dim=1).max() / right.norm()).item()
        message = (f"{on}, where {name}: what DDP leaves in .grad is {times:.3g} times the ranks' mean, and off by "
                   f"{off:.0%} of it.")
        yield Case(times, 1.0, message, rel_tol=0.02)
        yield Case(off < 0.02, True, message)
        if name == "ordinary gradients":
            yield Case(off > 0 and max(measured[name]["sent"] for measured in ranks), 2.0, f"{on}: a gradient takes "
                       f"{max(measured[name]['sent'] for measured in ranks):.1f} bytes on its way. It is to be 2.")


TO_16, ADD, MEAN = ("gradients.to(torch.bfloat16)", "work = dist.all_reduce(short, async_op=True)",
                    "div_(dist.get_world_size())")
hook = Part(
    hook_cases, measure_hook, sixteen_bits,
    ("What must a hook return, and what does DDP do with it? It puts the future's tensor into .grad. So what must that "
     "tensor be, on each rank?",
     "`bucket.buffer().to(…)` is a copy with fewer bits. Add that up over the ranks with `async_op=True`. The handle's "
     "`get_future()` has a method `then(function)`: the function gets the finished future, and what it returns is in "
     "the future that `then` returns. There are two types of 16 bits. Which of them holds the largest and the smallest "
     "gradient?",
     "`short = bucket.buffer().to(torch.bfloat16)`, `work = dist.all_reduce(short, async_op=True)`, and `return "
     "work.get_future().then(lambda _: …)`, where … is bucket.buffer() with the mean in it: `copy_`, then `div_`."),
    {"That is the sum. DDP divides by the number of ranks only where there is no hook.":
         mistake(sixteen_bits, {f".{MEAN}": ""}),
     "float16 ends at 65,504: a sum of large gradients is inf. bfloat16 has fewer digits, and the range of float32.":
         mistake(sixteen_bits, {"torch.bfloat16": "torch.float16"}),
     "Below 0.00000006 float16 has nothing: small gradients become 0. bfloat16 has fewer digits, and the range of "
     "float32.": mistake(sixteen_bits, {TO_16: "(gradients / dist.get_world_size()).to(torch.float16)",
                                        f".{MEAN}": ""}),
     "Nothing was sent: each rank has its own gradients.":
         mistake(sixteen_bits, {ADD: "", "work.get_future().then(lambda _: gradients.copy_(short)":
                                "torch.futures.collect_all([]).then(lambda _: gradients.copy_(short)", f".{MEAN}": ""}),
     "All 32 bits were sent. Convert first, and send what you have converted.":
         mistake(sixteen_bits, {TO_16: "gradients.clone()"})},
    (2, 3))


# ------------------------------------------------------------------------------------------------ nodes

PER_NODE, MESSAGE = 2, 1001  # ranks; values


def measure_hierarchical(function, context):
    """The tensor after the call, on this rank, and the bytes that it sent in groups that span nodes."""
    rank, ranks = context.rank, context.world_size
    wait = timedelta(seconds=context.timeout)
    node, _ = dist.new_subgroups(PER_NODE, timeout=wait)
    leaders = dist.new_group(range(0, ranks, PER_NODE), timeout=wait)
    tensor = torch.arange(MESSAGE, dtype=torch.float64) * (rank + 1)
    with Sent() as sent:
        function(tensor, node, leaders)
    between = sum(size for (group, *_), size in sent.bytes.items() if len({each // PER_NODE for each in group}) > 1)
    return {"times": (tensor[1:] / torch.arange(1, MESSAGE)).unique().tolist(), "between": between}


def hierarchical_cases(ranks):
    """All ranks have the sum, and only one message per node goes over the link between nodes."""
    on = f"On {len(ranks)} ranks, {PER_NODE} per node"
    right = len(ranks) * (len(ranks) + 1) / 2
    for rank, measured in enumerate(ranks):
        yield Case(measured["times"], [right], f"{on}: rank r gives r + 1 for each value, so the sum is {right:g}. "
                   f"Rank {rank} has {' and '.join(f'{each:g}' for each in measured['times'])}.")
    nodes, size = len(ranks) // PER_NODE, 8 * MESSAGE
    between, least = sum(measured["between"] for measured in ranks), 2 * (nodes - 1) * size
    yield Case(between <= 1.01 * least, True, f"{on}: the groups that span nodes have sent {between / size:.1f} times "
               f"the tensor. {least / size:.0f} times is enough.")


WITHIN, BETWEEN, BACK = ("dist.reduce(tensor, dst=leader, group=node)", "dist.all_reduce(tensor, group=leaders)",
                         "    dist.broadcast(tensor, src=leader, group=node)\n")
hierarchical = Part(
    hierarchical_cases, measure_hierarchical, all_reduce,
    ("Three collectives, one after another. What must be known within a node before anything leaves it? Who sends it "
     "to the other nodes? And what do the others of the node lack then?",
     "`dist.reduce` within the node, `dist.all_reduce` between the leaders, `dist.broadcast` within the node. Only "
     "leaders are in the group `leaders`. `dst` and `src` are ranks of the whole job: `dist.get_global_rank(node, 0)` "
     "is the first of this node.",
     "`leader = dist.get_global_rank(node, 0)`; `dist.reduce(tensor, dst=leader, group=node)`; `if dist.get_rank() == "
     "leader:` the all-reduce with `group=leaders`; then the broadcast, with `src=leader` and `group=node`."),
    {"Right sums, by an all-reduce of all ranks: it does not know the nodes. Add up within the node first.":
         mistake(all_reduce, {WITHIN: "dist.all_reduce(tensor)", f"        {BETWEEN}": "        pass", BACK: ""}),
     "Only the leaders have the sum of all. They must give it to the ranks of their node.":
         mistake(all_reduce, {BACK: ""}),
     "Each node has its own sum: nothing went from node to node.":
         mistake(all_reduce, {f"        {BETWEEN}": "        pass"}),
     "Each leader gave its own gradients alone: add up within the node first.": mistake(all_reduce, {WITHIN: "pass"}),
     "dst and src are ranks of the whole job, also in a group: rank 0 is not in the second node.":
         mistake(all_reduce, {"dist.get_global_rank(node, 0)": "0"})},
    (4, 6))


# ------------------------------------------------------------------------------------------------ local SGD, DiLoCo

EVERY, ROUNDS = 3, 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()


def learn(model, optimizer, rank, update):
    """An update with a batch of this rank's own."""
    numbers = torch.Generator().manual_seed(1000 * update + rank)
    optimizer.zero_grad()
    model(torch.randn(8, 5, generator=numbers, dtype=torch.float64)).pow(2).mean().backward()
    optimizer.step()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def weights(model):
    return parameters_to_vector(model.parameters()).detach().clone()


def expected(ranks, outer_options):
    """[[the weights of each rank] after each update]. outer_options: of SGD."""
    models = [network() for _ in range(ranks)]
    optimizers, agreed, after = [adamw(each) for each in models], weights(models[0]), []
    outer = torch.optim.SGD([agreed], **outer_options)
    for update in range(1, EVERY * ROUNDS + 1):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            learn(model, optimizer, rank, update)
        if update % EVERY == 0:
            agreed.grad = agreed - torch.stack([weights(each) for each in models]).mean(0)
            outer.step()
            for model in models:
                nn.utils.vector_to_parameters(agreed.clone(), model.parameters())
        after.append([weights(each).tolist() for each in models])
    return after


def trace(cls, context, outer=None):
    """The weights of this rank after each update, and how many bytes all its messages had."""
    model = network()
    optimizer, after = cls(adamw(model), model, EVERY), []
    if outer:
        optimizer.outer = torch.optim.SGD([optimizer.agreed], **outer)
    with Sent() as sent:
        for update in range(1, EVERY * ROUNDS + 1):
            learn(model, optimizer, context.rank, update)
            after.append(weights(model).tolist())
    size = 8 * len(after[0]) * 2 * (context.world_size - 1) / context.world_size
    return {"after": after, "messages": sent.bytes.total() / size}


def walk_cases(ranks, outer, key, said):
    on = f"On {len(ranks)} ranks, a message after every {EVERY} updates{said}"
    right = expected(len(ranks), outer)
    first = weights(network())
    for update, of_ranks in enumerate(right, 1):
        got = float64([measured[key]["after"][update - 1] for measured in ranks])
        wanted = float64(of_ranks)
        moved, want = got[0] - first, wanted[0] - first
        times = (moved @ want / (want @ want)).item()
        off = ((got - wanted).norm(dim=1).max() / want.norm()).item()
        message = (f"{on}: after update {update} the weights of rank 0 are {times:.2f} times as far from the first "
                   f"weights as they must be, and a rank is off by {off:.0%} of that way.")
        yield Case(round(times, 4), 1.0, message, rel_tol=1e-3)
        yield Case(off < 1e-6, True, message)
    sent = max(measured[key]["messages"] for measured in ranks)
    yield Case(sent, float(ROUNDS), f"{on}: in {EVERY * ROUNDS} updates {sent:g} times the bytes of the weights were "
               f"all-reduced. It is to be {ROUNDS} times.", rel_tol=0.01)


AVERAGE = {"lr": 1.0}
PAPER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def measure_local(cls, context):
    return {"local": trace(cls, context)}


def local_cases(ranks):
    """Between two messages each rank trains alone; then all have the mean of their weights."""
    yield from walk_cases(ranks, AVERAGE, "local", "")


local = Part(
    local_cases, measure_local, Local,
    ("What does a rank do in each step(), and what only in every `every`-th? What of the ranks' models must be brought "
     "together, when no gradient of the others is known?",
     "Count the calls of step() in `self.updates`. `parameters_to_vector(self.model.parameters())` is all weights in "
     "one tensor, so one message. `vector_to_parameters(vector, self.model.parameters())` gives them back.",
     "`self.inner.step()`, then `self.updates += 1`, and where `self.updates % self.every == 0`: `self.agree()`. "
     "There: the vector, `dist.all_reduce`, `/= dist.get_world_size()`, and back into the model."),
    {"all_reduce adds up: divide by the number of ranks.":
         mistake(Local, {"        mean /= dist.get_world_size()\n": ""}),
     "The mean is in a vector of its own. The models did not get it.":
         mistake(Local, {"        vector_to_parameters(mean, self.model.parameters())\n": ""}),
     "Every update ended with a message. Count them.": mistake(Local, {"if self.updates % self.every == 0": "if True"}),
     "The message came one update too early. Count the update before you ask.":
         mistake(Local, {"self.updates % self.every == 0": "self.updates % self.every == self.every - 1"}),
     "No update of this rank was made: where is self.inner.step()?":
         mistake(Local, {"        self.inner.step()\n": ""}),
     "The ranks never communicated.": mistake(Local, {"            self.agree()": "            pass"})},
    (2, 3))


def measure_outer(cls, context):
    return {"average": trace(cls, context, AVERAGE), "paper": trace(cls, context, PAPER)}


def outer_cases(ranks):
    """With rate 1 and no momentum the outer step is local SGD. With momentum it goes on along the steps before it."""
    yield from walk_cases(ranks, AVERAGE, "average", ", outer rate 1, no momentum")
    yield from walk_cases(ranks, PAPER, "paper", ", outer rate 0.7, Nesterov momentum 0.9")


PSEUDO = "self.agreed - parameters_to_vector(self.model.parameters())"
outer = Part(
    outer_cases, measure_outer, DiLoCo,
    ("SGD with rate 1 and no momentum changes `agreed` to `agreed - agreed.grad`. It is to become the mean of the "
     "ranks' weights. So what must agreed.grad be?",
     "`self.agreed.grad` is a vector, which may be assigned. Each rank computes its own part of it, from `agreed` and "
     "from its model; the mean over the ranks is one all-reduce. Then `self.outer.step()` changes `agreed`. Who does "
     "not have the new weights yet?",
     f"`self.agreed.grad = {PSEUDO}`; all-reduce it, divide by the number of ranks; `self.outer.step()`; then "
     "`vector_to_parameters(self.agreed.clone(), self.model.parameters())`: a copy, or the next local updates would "
     "change `agreed`, too."),
    {"The ranks went the other way. An optimizer walks against its gradient.":
         mistake(DiLoCo, {PSEUDO: "parameters_to_vector(self.model.parameters()) - self.agreed"}),
     "The models are views of `agreed` now: the next local updates change it, too. Give them a copy.":
         mistake(DiLoCo, {"self.agreed.clone()": "self.agreed"}),
     "all_reduce adds up: divide by the number of ranks.":
         mistake(DiLoCo, {"        self.agreed.grad /= dist.get_world_size()\n": ""}),
     "Each rank made the outer step of its own updates. The gradient is the mean over the ranks.":
         mistake(DiLoCo, {"        dist.all_reduce(self.agreed.grad)\n": "",
                          "        self.agreed.grad /= dist.get_world_size()\n": ""}),
     "The mean of the weights is no gradient: where SGD with rate 1 must arrive is not the step that it must make.":
         mistake(DiLoCo, {PSEUDO: "parameters_to_vector(self.model.parameters())"}),
     "The models did not get the new weights.":
         mistake(DiLoCo, {"        vector_to_parameters(self.agreed.clone(), self.model.parameters())\n": ""}),
     "That is the mean of the weights, whatever the outer optimizer is: let self.outer make the step.":
         mistake(DiLoCo, {"self.outer.step()": "self.agreed -= self.agreed.grad"})},
    (2, 3))


def measure_both(cls, context):
    return {"outer": trace(cls, context, AVERAGE)["after"], "local": trace(Local, context)["after"]}


def same_as_local_sgd(ranks: int = 4) -> float:
    """The largest difference of a weight, relative to the largest weight, after any update of so many ranks: between
    local SGD and the learner's outer step with rate 1 and no momentum. Ours where the learner's is not right."""
    measurement = Measurement(measure_both, "DiLoCo", preload=(__name__,))
    [measured] = measurement.run([(str(ROOT / outer.file) if outer.file else DiLoCo, ranks)])
    pairs = [(float64(each["outer"]), float64(each["local"])) for each in measured]
    return max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
