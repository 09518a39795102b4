"""Exercises of notebook 14: self time in a trace, a fair comparison, a communication hook, losses that are seldom
read. The last two run on ranks: course/on_ranks.py says how."""

import copy
import statistics
from contextlib import ExitStack
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course.cases import drawn, drawn_one, exactly, generator_seed, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

BATCHES, ROWS, EVERY, ROUNDS = 6, 4, 3, 6


def sizes():
    """(batches, rows of each, after how many to log, values of an image)"""
    return drawn_one((BATCHES, ROWS, EVERY, 20), lambda random: (
        (every := random.choice((4, 5))) * random.choice((2, 3)), random.randint(5, 9), every, random.randint(24, 40)))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def small_ddp():
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(sizes()[3], 8))


def small_batches(here):
    numbers = torch.Generator().manual_seed(here.rank + generator_seed())
    batches, rows, _, values = sizes()
    return [(torch.randn(rows, values, generator=numbers), torch.randint(8, (rows,), generator=numbers))
            for _ in range(batches)]


def measure_hook(function, here):
    """What the hook's all-reduces carry, and how far the gradient is from the mean over the ranks in float32."""
    images, labels = small_batches(here)[0]
    parallel, sent, all_reduce = small_ddp(), [], dist.all_reduce

    def noted(tensor, *args, **options):
        sent.append({"type": str(tensor.dtype), "bytes": tensor.nbytes, "waits": not options.get("async_op", False)})
        return all_reduce(tensor, *args, **options)

    def asked(state, bucket):
        future = function(state, bucket)
        if not hasattr(future, "then"):  # there are two kinds of Future
            raise Wrong(f"Your hook returned {type(future).__name__}. DDP needs a Future: the promise of a result, so "
                        "that backward goes on while the message is on its way.")
        return future

    own = copy.deepcopy(parallel.module)
    cross_entropy(own(images), labels).backward()
    gradient = torch.cat([p.grad.flatten() for p in own.parameters()])
    mean = torch.tensor(here.gather("own", gradient.tolist())).mean(0)
    parallel.register_comm_hook(None, asked)
    with mock.patch.object(dist, "all_reduce", noted):
        cross_entropy(parallel(images), labels).backward()
    got = torch.cat([p.grad.flatten() for p in parallel.parameters()])
    return {"sent": sent, "whole": got.nbytes, "off": ((got - mean).norm() / mean.norm()).item(),
            "own": torch.allclose(got, gradient, rtol=0.02, atol=1e-3), "times": (got @ mean / (mean @ mean)).item()}


def measure_log(function, here):
    """The losses that it returns, those of a loop that reads each of them, and how often it read and sent any."""
    batches, counts, every = small_batches(here), {"read": 0, "sent": 0}, sizes()[2]
    parallel, wanted = small_ddp(), []
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for images, labels in batches:
        loss = cross_entropy(parallel(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())

    def counted(what, call):
        def counting(tensor, *args, **options):
            if what == "sent" and tensor.requires_grad:
                raise Wrong("What you add up still holds the graphs of all its steps, and all their activations with "
                            "them: on a GPU memory grows with every step. Which method of a tensor cuts it off?")
            counts[what] += 1
            return call(tensor, *args, **options)
        return counting

    parallel = small_ddp()
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(dist, "all_reduce", counted("sent", dist.all_reduce)))
        for name in ("item", "tolist", "__float__"):
            patches.enter_context(mock.patch.object(torch.Tensor, name, counted("read", getattr(torch.Tensor, name))))
        got = function(parallel, batches, torch.optim.SGD(parallel.parameters(), lr=0.1), every)
    if not isinstance(got, list) or len(got) != len(batches) // every or not all(isinstance(one, float) for one in got):
        raise Wrong(f"On rank {here.rank} you returned {got!r}. For {len(batches)} batches and every={every} it is a "
                    f"list of {len(batches) // every} Python floats.")
    return {"got": got, "own": wanted, **counts}


answers = Answers({"my_hook": measure_hook, "my_train": measure_log})


# Exercise 1: self time
def my_largest(events):
    own = {}
    for event in events:
        inside = [e for e in events if event["start"] <= e["start"] and e["end"] <= event["end"] and e is not event]
        children = [e for e in inside if not any(o["start"] <= e["start"] and e["end"] <= o["end"]
                                                 for o in inside if o is not e)]
        self_time = event["end"] - event["start"] - sum(e["end"] - e["start"] for e in children)
        own[event["name"]] = own.get(event["name"], 0) + self_time
    return max(own, key=own.get)


def inside(event, events):
    """The events that this one holds, however deep."""
    return [e for e in events if event["start"] <= e["start"] and e["end"] <= event["end"] and e is not event]


def seconds(event):
    return event["end"] - event["start"]


def most_of(own, events):
    """The name that has the most, added up over its events, of what `own` gives for each."""
    total = {}
    for event in events:
        total[event["name"]] = total.get(event["name"], 0) + own(event)
    return max(total, key=total.get)


def spans(*rows):
    return [{"name": name, "start": start, "end": end} for name, start, end in rows]


TRACES = [
    # what lies between the operators of `backward` is the most: waiting, say
    spans(("step", 0, 50), ("forward", 1, 15), ("conv", 2, 14), ("backward", 15, 49), ("conv", 16, 22),
          ("copy", 23, 24), ("copy", 25, 26), ("copy", 27, 28)),
    # conv is the longest call, and the three of relu together are longer
    spans(("step", 0, 100), ("forward", 2, 60), ("conv", 4, 29), ("relu", 30, 44), ("relu", 45, 58),
          ("backward", 61, 98), ("relu", 62, 74), ("mm", 75, 97)),
    # three deep
    spans(("backward", 0, 50), ("engine", 10, 40), ("mm", 15, 33)),
]


OTHER_NAMES = ("train", "encode", "decode", "norm", "pool", "embed", "gather", "softmax")


def renamed(random):
    """One of TRACES, with names that none has, and each time so many times as long."""
    events, times = random.choice(TRACES), random.randint(2, 9)
    others = dict(zip(sorted({event["name"] for event in events}), random.sample(OTHER_NAMES, 8), strict=False))
    return spans(*((others[event["name"]], times * event["start"], times * event["end"]) for event in events))


@exercise(
    solution=my_largest,
    hint="The self time of an event is its length minus that of its children: the events directly inside it. What is "
    "inside a child has been taken off with the child. Then add up the calls of each name.",
    mistakes={
        "{got} has the largest total time, but that holds the time of all that it calls. Take the children's time off.":
            lambda events: most_of(seconds, events),
        "{got} is called most often. Many short calls can be cheap: add up their time.":
            lambda events: most_of(lambda event: 1, events),
        "{got} has the longest single call. Calls of one name belong together: add them up.":
            lambda events: events[my_largest([{**event, "name": n} for n, event in enumerate(events)])]["name"],
        "You said {got}. If a child holds a grandchild, the grandchild's time is part of the child's: you took it off "
        "twice. Take off the direct children only.":
            lambda events: most_of(lambda event: seconds(event) - sum(map(seconds, inside(event, events))), events),
        "{got} is the longest call with nothing inside. But an event that holds others has time of its own, too: here "
        "backward has gaps in which no operator runs.":
            lambda events: max((event for event in events if not inside(event, events)), key=seconds)["name"],
    },
)
def largest(attempt):
    """Self time, added up over the calls: this is how a profiler sorts its table. Total time would always name the
    outermost label, and a part that nobody named, as waiting in backward, shows as the self time of what is around."""
    for miss in misses(largest, attempt, [(events,) for events in drawn(TRACES, renamed)], read=exactly):
        miss.tell("", "You said {got!r}. The largest self time, over all its calls, has {right!r}.")


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


def timed(train, now):
    start = now()
    train()
    return now() - start


def same_order(before, after, rounds, now):
    before(), after()
    return statistics.median([timed(before, now) / timed(after, now) for _ in range(rounds)])


def one_after_the_other(before, after, rounds, now):
    before(), after()
    both = [[timed(train, now) for _ in range(rounds)] for train in (before, after)]
    return statistics.median(both[0]) / statistics.median(both[1])


def in_turns(before, after, rounds, now):
    for number in range(rounds):
        pair = {train: timed(train, now) for train in ((before, after) if number % 2 == 0 else (after, before))}
        yield pair[before], pair[after]


def mean_of_all(before, after, rounds, now):
    before(), after()
    return statistics.mean(slow / fast for slow, fast in in_turns(before, after, rounds, now))


def sums(before, after, rounds, now):
    slow, fast = zip(*in_turns(before, after, rounds, now), strict=True)
    return sum(slow) / sum(fast)


def upside_down(*asked):
    return 1 / my_gain(*asked)


class Machine:
    """Two trainings on a machine with a clock of its own. `after` is `gain` times as fast."""

    def __init__(self, first=0.0, second=1.0, slow_from=99, disturbed=None):
        self.gain = drawn_one(1.6, lambda random: random.randint(18, 30) / 10)
        self.clock, self.calls, self.seen = 0.0, 0, {"before": 0, "after": 0}
        self.first, self.second, self.slow_from, self.disturbed = first, second, slow_from, disturbed

    def train(self, name):
        length = {"before": self.gain, "after": 1.0}[name] * (self.second if self.calls % 2 else 1)
        length *= (2 if self.calls >= self.slow_from else 1) * (20 if self.calls == self.disturbed else 1)
        self.clock += length + (0 if self.seen[name] else self.first)
        self.calls, self.seen[name] = self.calls + 1, self.seen[name] + 1

    def before(self):
        self.train("before")

    def after(self):
        self.train("after")

    def now(self):
        return self.clock


CASES = (
    ({}, "On a machine that nothing disturbs", "How many times as fast is `after`? Seconds before by seconds after."),
    ({"first": 30.0}, "The first call of each takes 30 s more, as if it compiled",
     "Let each train once before you time it; and the median is not moved by one bad round."),
    ({"slow_from": 9}, "From the tenth call on all takes twice as long, because another program has started",
     "One of the two had the bad time for itself. Let them take turns, so that both have it."),
    ({"disturbed": 8}, "One call was disturbed, and took 20 times as long",
     "A mean, or a sum, is carried away by one bad round. What is not?"),
    ({"second": 1.2}, "The second of each two calls takes 1.2 times as long",
     "In every round the same one came second. Change their order from round to round."),
)


@exercise(
    solution=my_gain,
    hint="Train each once. Then rounds: in those with an even number before first, in the others after first. A round "
    "gives one ratio. Return statistics.median of the ratios.",
    mistakes={"the same order": same_order, "one after the other": one_after_the_other, "the mean": mean_of_all,
              "sums": sums, "upside down": upside_down},
)
def fair(attempt):
    """In turns, in changing order, the first of each left out, the median of the ratios. What disturbs the machine then
    disturbs both, or only a round. How far the rounds are apart tells how much of a gain is noise."""
    rounds = drawn_one(ROUNDS, lambda random: 8)
    for disturbance, said, reason in CASES:
        machine = Machine(**disturbance)
        got = attempt(machine.before, machine.after, rounds, machine.now)
        if min(machine.seen.values()) < rounds:
            raise Wrong(f"You were asked for {rounds} rounds, and trained {machine.seen['before']} times without the "
                        f"change and {machine.seen['after']} times with it.")
        if abs(got / machine.gain - 1) > 0.08:
            raise Wrong(f"{said}, you said {got:.2f}. The change makes it {machine.gain:g} times as fast. {reason}")


# Exercise 3: gradients in 16 bits
def my_hook(state, bucket):
    short = bucket.buffer().div(dist.get_world_size()).to(torch.bfloat16)
    sending = dist.all_reduce(short, async_op=True)
    return sending.get_future().then(lambda _: short.to(torch.float32))


def whole(state, bucket):
    mean = bucket.buffer().to(torch.bfloat16).to(torch.float32) / dist.get_world_size()
    return dist.all_reduce(mean, async_op=True).get_future().then(lambda _: mean)


def not_divided(state, bucket):
    short = bucket.buffer().to(torch.bfloat16)
    return dist.all_reduce(short, async_op=True).get_future().then(lambda _: short.float())


def divided_twice(state, bucket):
    n = dist.get_world_size()
    short = bucket.buffer().div(n).to(torch.bfloat16)
    return dist.all_reduce(short, async_op=True).get_future().then(lambda _: short.float() / n)


def no_future(state, bucket):
    short = bucket.buffer().div(dist.get_world_size()).to(torch.bfloat16)
    dist.all_reduce(short)
    return short.float()


def at_once(state, bucket):
    short = bucket.buffer().div(dist.get_world_size()).to(torch.bfloat16)
    dist.all_reduce(short)
    future = torch.futures.Future()
    future.set_result(short.float())
    return future


def half(state, bucket):
    short = bucket.buffer().div(dist.get_world_size()).to(torch.float16)
    return dist.all_reduce(short, async_op=True).get_future().then(lambda _: short.float())


def only_cast(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer().to(torch.bfloat16).float())
    return future


@exercise(
    solution=my_hook,
    hint="Four steps: bucket.buffer() divided by dist.get_world_size(); .to(torch.bfloat16); dist.all_reduce(..., "
    "async_op=True), whose result has get_future(); and future.then(function), which calls function(future) when the "
    "sum is there. What that function returns is DDP's gradient, in float32.",
    mistakes={"float32 is sent": whole, "not divided": not_divided, "divided twice": divided_twice,
              "no future": no_future, "it waits": at_once, "fp16": half, "nothing is sent": only_cast},
)
def hook(attempt):
    """Half the bytes, and a gradient that is off by some thousandths. Whether that is faster, only a measurement tells:
    casting costs, too."""
    one = answers.findings("my_hook", attempt)[0]
    if one["own"] and not one["sent"]:
        raise Wrong("Nothing was sent: each rank keeps its own gradient, and the ranks' weights drift apart. (Is it "
                    "dist.all_reduce that you call? The check counts those.)")
    types = {sent["type"].removeprefix("torch.") for sent in one["sent"]}
    size = sum(sent["bytes"] for sent in one["sent"])
    if types != {"bfloat16"} or size * 2 != one["whole"]:
        raise because(f"Sent: {size:,} bytes of {' and '.join(sorted(types)) or 'nothing'}. The gradients are "
                      f"{one['whole']:,} bytes in float32, so in bfloat16 they are {one['whole'] // 2:,}.",
                      (types == {"float32"}, "Cast before the all-reduce, and back after it."),
                      (types == {"float16"}, "float16 has half the bytes, too, but a value above 65,504 becomes "
                       "infinite; bfloat16 has float32's range."))
    if one["off"] > 0.02:
        raise because(f"The gradient is {one['times']:.2f} times the mean over the ranks, and off by {one['off']:.0%}.",
                      (one["times"] > 1.5, "all_reduce adds up. DDP divides no more once a hook is there: that is your "
                       "job now."),
                      (one["times"] < 0.7, "It was divided more than once."))
    if any(sent["waits"] for sent in one["sent"]):
        raise Wrong("The gradient is right, but all_reduce waited inside the hook, and backward waited with it: "
                    "nothing overlaps. async_op=True returns at once, with get_future().")


# Exercise 4: losses that are seldom read
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


def updates(ddp, batches, optimizer):
    """The loss of each batch, once its update is made."""
    for images, labels in batches:
        loss = cross_entropy(ddp(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def item_each_step(ddp, batches, optimizer, every):
    losses = [loss.item() for loss in updates(ddp, batches, optimizer)]
    mean = torch.tensor(losses).view(-1, every).mean(1) / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.tolist()


def send_each_step(ddp, batches, optimizer, every):
    losses = []
    for loss in updates(ddp, batches, optimizer):
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())
        losses.append(mean)
    return torch.stack(losses).view(-1, every).mean(1).tolist()


def own_losses(ddp, batches, optimizer, every):
    losses = [loss.detach() for loss in updates(ddp, batches, optimizer)]
    return torch.stack(losses).view(-1, every).mean(1).tolist()


def last_losses(ddp, batches, optimizer, every):
    losses = torch.stack([loss.detach() for loss in updates(ddp, batches, optimizer)])[every - 1::every]
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()


def sums_of_ranks(ddp, batches, optimizer, every):
    means = torch.stack([loss.detach() for loss in updates(ddp, batches, optimizer)]).view(-1, every).mean(1)
    dist.all_reduce(means)
    return means.tolist()


def graphs_kept(ddp, batches, optimizer, every):
    means = torch.stack(list(updates(ddp, batches, optimizer))).view(-1, every).mean(1) / dist.get_world_size()
    dist.all_reduce(means)
    return means.tolist()


@exercise(
    solution=my_train,
    hint="Add up loss.detach() in a tensor. Only after each `every` batches all-reduce it, read it with item(), divide "
    "by the batches and the ranks, and begin anew.",
    mistakes={"item() each step": item_each_step, "a message each step": send_each_step, "own losses": own_losses,
              "the last loss": last_losses, "not divided": sums_of_ranks, "graphs are kept": graphs_kept},
)
def logged(attempt):
    """The same figures as if each loss were read and sent at once. On a GPU each item() makes the program wait until
    the GPU has done all that it was given; here that happens once in `every` steps."""
    ranks = answers.findings("my_train", attempt)
    batches, _, every, _ = sizes()
    windows = batches // every
    each = [statistics.mean(step) for step in zip(*(rank["own"] for rank in ranks), strict=True)]
    wanted = [statistics.mean(each[start:start + every]) for start in range(0, batches, every)]
    for number, rank in enumerate(ranks):
        if not close(rank["got"], wanted):
            raise because(f"On rank {number} you returned {show(rank['got'])}; the means over all ranks and {every} "
                          f"batches are {show(wanted)}.",
                          (not rank["sent"], "Nothing was sent, so a rank knows its own losses only."),
                          (close(rank["got"], [value * len(ranks) for value in wanted]),
                           "That is the sum over the ranks."),
                          (close(rank["got"], each[every - 1::every]),
                           f"That is the loss of each {every}{'rd' if every == 3 else 'th'} batch. All "
                           "of them belong to the mean."))
        if rank["sent"] > windows:
            raise Wrong(f"The losses are right, but {rank['sent']} all-reduces for {batches} batches: every one costs "
                        f"its latency, however small it is. {windows} are enough.")
        if rank["read"] > windows:
            raise Wrong(f"The losses are right, but a tensor was read {rank['read']} times (item, tolist, float). On a "
                        f"GPU each of them waits for all work that is under way. {windows} are enough.")


def close(got, wanted):
    return all(abs(a - b) < 1e-5 for a, b in zip(got, wanted, strict=True))


def show(values):
    return ", ".join(f"{value:.4f}" for value in values)
