"""Exercises of lesson 14: Amdahl's bound, a fair comparison, a communication hook, and losses that are seldom read."""

import copy
import math
import statistics
from contextlib import ExitStack
from itertools import pairwise
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import exercise_on_ranks, patched
from lessons.l14_make_it_faster.solution import my_hook


# Exercise 1: Amdahl's bound
def my_bound(profile, part, times):
    whole = sum(profile.values())
    return whole / (whole - profile[part] + profile[part] / times)


@exercise(
    solution=my_bound,
    hint="Compute two times: of the step as it is, and of the step in which the part takes profile[part] / times. The "
    "other parts take as long as before. Divide the first by the second.",
    mistakes={
        "That is the bound for a part that takes no time at all. This one still takes profile[part] / times.":
            mistake(my_bound, {" + profile[part] / times": ""}),
        "That is the part of the time that is left. Divide the old time by the new one.":
            lambda profile, part, times: 1 / my_bound(profile, part, times),
        "So fast does the part become. The others take as long as before.": lambda profile, part, times: times,
        "A share of the time, multiplied by a gain, is no gain. Add up what the step takes afterwards.":
            lambda profile, part, times: profile[part] / sum(profile.values()) * times,
        "You have averaged speeds. Times add up: a part that takes the share p of the time takes p / times afterwards.":
            lambda profile, part, times: 1 + profile[part] / sum(profile.values()) * (times - 1),
        "These are the milliseconds that are saved. How many times as fast is the step?":
            lambda profile, part, times: profile[part] - profile[part] / times,
    },
)
def bound(answer):
    """This is Amdahl's law (1967): if a part takes the share p of the time and becomes k times as fast, the whole
    becomes 1 / (1 - p + p / k) times as fast. A part that takes a tenth gives 1.11 at most, however fast it becomes."""
    step = {"data": 1, "convolution": 6, "optimizer": 1, "everything else": 2}
    cases = [(step, "convolution", 2), (step, "data", math.inf), (step, "optimizer", 4),
             (step, "convolution", 0.5)]
    for profile, part, times in cases:
        got, right = answer(dict(profile), part, times), my_bound(profile, part, times)
        parts, whole = ", ".join(f"{name} {ms} ms" for name, ms in profile.items()), sum(profile.values())
        yield Case(got, right, f"A step has {parts}, and `{part}` becomes {times} times as fast. You returned {got}; "
                               f"the step takes {whole / right:.3g} ms in place of {whole:g}, and is {right:.3f} times "
                               "as fast.")


# Exercise 2: a fair comparison
def my_gain(before, after, rounds, now):
    def seconds(train):
        start = now()
        train()
        return now() - start

    seconds(before), seconds(after)  # the first of each brings libraries in, or compiles
    ratios = []
    for number in range(rounds):
        if number % 2 == 0:
            slow, fast = seconds(before), seconds(after)
        else:
            fast, slow = seconds(after), seconds(before)
        ratios.append(slow / fast)
    return statistics.median(ratios)


def one_after_the_other(before, after, rounds, now):
    before(), after()
    seconds = []
    for train in (before, after):
        moments = [now()]
        for _ in range(rounds):
            train()
            moments.append(now())
        seconds.append(statistics.median(end - start for start, end in pairwise(moments)))
    return seconds[0] / seconds[1]


PAIRS = {"ratios.append(slow / fast)": "ratios.append((slow, fast))",
         "return statistics.median(ratios)":
             "slow, fast = zip(*ratios, strict=True)\n    return function(slow) / function(fast)"}


class Machine:
    """Two trainings on a machine with a clock of its own. `after` is `gain` times as fast."""

    def __init__(self, first=0.0, second=1.0, slow_from=99, disturbed=None):
        self.gain = 1.6
        self.clock, self.calls, self.trained = 0.0, 0, {"before": 0, "after": 0}
        self.first, self.second, self.slow_from, self.disturbed = first, second, slow_from, disturbed

    def train(self, name):
        seconds = {"before": self.gain, "after": 1.0}[name] * (self.second if self.calls % 2 else 1)
        seconds *= (2 if self.calls >= self.slow_from else 1) * (20 if self.calls == self.disturbed else 1)
        self.clock += seconds + (0 if self.trained[name] else self.first)
        self.calls, self.trained[name] = self.calls + 1, self.trained[name] + 1

    def before(self):
        self.train("before")

    def after(self):
        self.train("after")

    def now(self):
        return self.clock


DISTURBANCES = (
    ({}, "Nothing disturbs the machine"),
    ({"first": 30.0}, "The first call of each takes 30 s more, as if it compiled"),
    ({"slow_from": 9}, "From the tenth call on everything takes twice as long, because another program has started"),
    ({"disturbed": 8}, "One call was disturbed, and took 20 times as long"),
    ({"second": 1.2}, "The second of each two calls takes 1.2 times as long: in turns, half of the ratios are too "
                       "high, and half too low"),
)


@exercise(
    solution=my_gain,
    hint="Train each once. Then rounds: in those with an even number before first, in the others after first. A round "
    "gives one ratio. Return statistics.median of the ratios.",
    mistakes={
        "How many times as fast is `after`? Divide the seconds of `before` by those of `after`.":
            mistake(my_gain, {"slow / fast": "fast / slow"}),
        "The sums hold the slow first call of each. Let each train once before you time it, and take the median of the "
        "rounds' ratios: one bad round does not move it.":
            mistake(my_gain, PAIRS | {"    seconds(before), seconds(after)  #": "    #", "function(": "sum("}),
        "Only one of the two had the bad time. Let them take turns, so that both have it.": one_after_the_other,
        "One bad round carries a mean away. It hardly moves a median.":
            mistake(my_gain, {"statistics.median": "statistics.mean"}),
        "The two medians may be of different times. Divide within each round, whose two trainings ran one after the "
        "other, and take the median of these ratios.":
            mistake(my_gain, PAIRS | {"function(": "statistics.median("}),
        "In every round the same training came second: change their order from round to round. (Do you, with "
        "torch.median? Of two in the middle it takes the lower; statistics.median takes their mean.)":
            mistake(my_gain, {"number % 2 == 0": "True"}),
    },
)
def fair(answer):
    """The trainings take turns, in changing order. The first call of each is left out, and the median of the ratios
    counts. A disturbance of the machine then meets both, or only one round. The spread of the rounds tells how much of
    a gain is noise."""
    rounds = 6
    for disturbance, description in DISTURBANCES:
        machine = Machine(**disturbance)
        got = answer(machine.before, machine.after, rounds, machine.now)
        yield Case(min(machine.trained.values()) >= rounds, True,
                   f"You were asked for {rounds} rounds, and trained {machine.trained['before']} times without the "
                   f"change and {machine.trained['after']} times with it.")
        yield Case(got, machine.gain,
                   f"{description}. You returned {got if got is None else round(got, 2)}. The change makes the "
                   f"training {machine.gain:g} times as fast.", rel_tol=0.08)


# For the exercises on ranks: a small model, and batches of each rank
def sizes():
    """(batches, images of each, batches for each loss that is logged, values of an image)"""
    return 6, 4, 3, 20


def small_ddp():
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(sizes()[3], 8))


def small_batches(context):
    generator = torch.Generator().manual_seed(context.rank)
    batches, images, _, values = sizes()
    return [(torch.randn(images, values, generator=generator), torch.randint(8, (images,), generator=generator))
            for _ in range(batches)]


# Exercise 4: gradients in 16 bits
SENDING, FUTURE = "dist.all_reduce(short, async_op=True)", "sending.get_future()"
THEN = ".then(lambda _: short.to(torch.float32))"


def measure_hook(function, context):
    """What the hook's all-reduces carry, and how far the gradient is from the mean over the ranks in float32."""
    images, labels = small_batches(context)[0]
    ddp, sent, all_reduce = small_ddp(), [], dist.all_reduce

    def recorded_all_reduce(tensor, *args, **options):
        sent.append((str(tensor.dtype).removeprefix("torch."), tensor.nbytes, not options.get("async_op", False)))
        return all_reduce(tensor, *args, **options)

    def checked_hook(state, bucket):
        future = function(state, bucket)
        if not hasattr(future, "then"):  # PyTorch has two classes of Future
            raise Wrong(f"Your hook returned {'None' if future is None else f'a {type(future).__name__}'}. DDP needs a "
                        "Future of the gradient.")
        return future

    own = copy.deepcopy(ddp.module)
    cross_entropy(own(images), labels).backward()
    own_gradient = torch.cat([parameter.grad.flatten() for parameter in own.parameters()])
    mean = torch.tensor(context.gather("gradient", own_gradient.tolist())).mean(0)
    ddp.register_comm_hook(None, checked_hook)
    with patched(function, all_reduce=recorded_all_reduce):
        cross_entropy(ddp(images), labels).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()])
    return {"sent": {"types": sorted({dtype for dtype, _, _ in sent}), "bytes": sum(size for _, size, _ in sent)},
            "waits": any(waits for _, _, waits in sent), "float32 bytes": gradient.nbytes,
            "times": (gradient @ mean / (mean @ mean)).item(), "off": ((gradient - mean).norm() / mean.norm()).item()}


@exercise_on_ranks(
    measure_hook,
    solution=my_hook,
    hint="Four steps: bucket.buffer() divided by dist.get_world_size(); .to(torch.bfloat16); dist.all_reduce(..., "
    "async_op=True), whose result has get_future(); and future.then(function), which calls function(future) when the "
    "sum is there. What that function returns is DDP's gradient, in float32.",
    mistakes={
        "Cast before the all-reduce, and back after it.":
            mistake(my_hook, {"(torch.bfloat16)": "(torch.bfloat16).float()"}),
        "float16 has half the bytes, too, but a value above 65,504 becomes infinite; bfloat16 has float32's range.":
            mistake(my_hook, {"bfloat16": "float16"}),
        "Each rank keeps its own gradient, and the ranks' weights drift apart.":
            mistake(my_hook, {".div(dist.get_world_size())": "", FUTURE: "sending",
                              SENDING: "torch.futures.Future()\n    sending.set_result(None)"}),
        "all_reduce adds up. With a hook DDP no longer divides: your hook must.":
            mistake(my_hook, {".div(dist.get_world_size())": ""}),
        "You divided by the number of ranks more than once.":
            mistake(my_hook, {"(torch.float32)": "(torch.float32) / dist.get_world_size()"}),
        "A Future is the promise of a result: backward goes on while the message is on its way.":
            mistake(my_hook, {", async_op=True": "", f"{FUTURE}{THEN}": "short.float()"}),
        "DDP needs a Future of one tensor in float32. That of an all_reduce has a list of tensors: future.value()[0], "
        "in the function that `then` gets.": mistake(my_hook, {THEN: ""}),
        "Backward waits with it, so nothing overlaps. async_op=True returns at once, with get_future().":
            mistake(my_hook, {FUTURE: "sending", SENDING: "torch.futures.Future()\n    sending.set_result(None)\n"
                                                          "    dist.all_reduce(short)"}),
    },
)
def hook(ranks):
    """Your hook sends half the bytes, and the gradient is off by some thousandths. Only a measurement tells whether
    that is faster: casting costs time, too."""
    for rank, measured in enumerate(ranks):
        sent, whole = measured["sent"], measured["float32 bytes"]
        yield Case(sent, {"types": ["bfloat16"], "bytes": whole // 2},
                   f"On rank {rank} dist.all_reduce sent {sent['bytes']:,} bytes of "
                   f"{' and '.join(sent['types']) or 'nothing'}. The gradients are {whole:,} bytes in float32, so in "
                   f"bfloat16 they are {whole // 2:,}.")
        message = (f"On rank {rank} the gradient is {measured['times']:.2f} times the mean over the ranks, and off by "
                   f"{measured['off']:.0%}.")
        yield Case(measured["times"], 1.0, message, rel_tol=0.02)
        yield Case(measured["off"] < 0.02, True, message)
        yield Case(measured["waits"], False, "The gradient is right, but all_reduce waited inside the hook.")


# Exercise 5: losses that are seldom read
def my_train(ddp, batches, optimizer, every):
    losses, total = [], 0
    for number, (images, labels) in enumerate(batches, start=1):
        loss = cross_entropy(ddp(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss.detach()  # where the loss is: on a GPU it stays there
        if number % every == 0:
            dist.all_reduce(total)
            losses.append(total.item() / every / dist.get_world_size())
            total = 0
    return losses


ALL_REDUCE = "            dist.all_reduce(total)\n"


def measure_log(function, context):
    """The returned losses, the loss of each batch over all ranks, how often the function read and sent a tensor, and
    whether a sent tensor held a graph."""
    batches, every = small_batches(context), sizes()[2]
    counts = {"read": 0, "sent": 0, "graphs": 0}

    def counted(what, call):
        def counting(tensor, *args, **options):
            counts[what] += 1
            counts["graphs"] += what == "sent" and tensor.requires_grad
            return call(tensor, *args, **options)
        return counting

    reference, ddp = small_ddp(), small_ddp()
    losses = my_train(reference, batches, torch.optim.SGD(reference.parameters(), lr=0.1), 1)
    with ExitStack() as patches:
        patches.enter_context(patched(function, all_reduce=counted("sent", dist.all_reduce)))
        for name in ("item", "tolist", "__float__"):
            patches.enter_context(mock.patch.object(torch.Tensor, name, counted("read", getattr(torch.Tensor, name))))
        returned = function(ddp, batches, torch.optim.SGD(ddp.parameters(), lr=0.1), every)
    if not isinstance(returned, list) or not all(isinstance(loss, float) for loss in returned):
        raise Wrong(f"On rank {context.rank} you returned {returned!r}. For {len(batches)} batches and every={every} "
                    f"it must be a list of {len(batches) // every} Python floats.")
    return {"returned": returned, "losses": losses, **counts}


def three_digits(losses):
    return "[" + ", ".join(f"{loss:.3f}" for loss in losses) + "]"


@exercise_on_ranks(
    measure_log,
    solution=my_train,
    hint="Add up loss.detach() in a tensor. Only after each `every` batches all-reduce it, read it with item(), divide "
    "by the batches and the ranks, and begin anew.",
    mistakes={
        "Each update also followed the gradients of the batches before: optimizer.zero_grad() is missing.":
            mistake(my_train, {"        optimizer.zero_grad()\n": ""}),
        "Nothing was sent, so a rank knows its own losses only.":
            mistake(my_train, {ALL_REDUCE: "", " / dist.get_world_size()": ""}),
        "These are sums over the ranks. Divide by their number, too.":
            mistake(my_train, {" / dist.get_world_size()": ""}),
        "These are the losses of single batches, the last before each report. The mean is over all batches since the "
        "report before.": mistake(my_train, {"total + loss": "loss", " / every": ""}),
        "It holds the graphs of all its steps, and all their activations with them: on a GPU memory grows with every "
        "step. Which method of a tensor cuts it off?": mistake(my_train, {"loss.detach()": "loss"}),
        "Add the losses up on each rank, and send only the sum.":
            mistake(my_train, {ALL_REDUCE: "",
                               "total = total": "dist.all_reduce(loss.detach())\n        total = total"}),
        "Add the losses up in a tensor, and read only the sum.":
            mistake(my_train, {"loss.detach()": "loss.item()", "(total)\n": "(total := torch.tensor(total))\n"}),
    },
)
def logged(ranks):
    """You return the same figures as if each loss were read and sent at once. On a GPU each item() makes the program
    wait until the GPU has done all its work. Here that happens once in `every` steps."""
    batches, _, every, _ = sizes()
    reports = batches // every
    losses = ranks[0]["losses"]
    right = [statistics.mean(losses[start:start + every]) for start in range(0, batches, every)]
    for rank, measured in enumerate(ranks):
        yield Case(measured["returned"], right,
                   f"On rank {rank} you returned {three_digits(measured['returned'])}; the means over all ranks and "
                   f"{every} batches are {three_digits(right)}.", rel_tol=1e-5)
    for measured in ranks:
        yield Case(measured["graphs"] > 0, False,
                   "The losses are right, but you sent a tensor that requires a gradient.")
        yield Case(measured["sent"] > reports, False,
                   f"The losses are right, but you made {measured['sent']} all-reduces for {batches} batches: each "
                   f"costs its latency, however small it is. {reports} are enough.")
        yield Case(measured["read"] > reports, False,
                   f"The losses are right, but you read a tensor {measured['read']} times (item, tolist, float). On a "
                   f"GPU each read waits for all work that is under way. {reports} are enough.")
