"""Exercises of lesson 06. All run on ranks: course/on_ranks.py says how."""

import copy
import filecmp
import pickle
import shutil
import time
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from course.exercise import Case, Wrong, drawn_one, generator_seed
from course.on_ranks import ExerciseOnRanks, Measurement, exercise_on_ranks
from lessons.l06_ddp.buckets import make_buckets, pack, unpack
from lessons.l06_ddp.my_ddp import MyDDP
from lessons.l06_ddp.wrapped_training import Collectives


# The five steps to MyDDP: our answers, each a small difference from another, then the typical mistakes.
class SameWeights(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():  # parameters and buffers
            dist.broadcast(tensor, src=0)

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        pass


class MeanGradients(SameWeights):
    def finish(self):
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


class OneMessage(SameWeights):
    def finish(self):
        bucket = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        flat = pack(bucket)
        dist.all_reduce(flat)
        unpack(flat / dist.get_world_size(), bucket)


class Overlapped(SameWeights):
    def __init__(self, module):
        super().__init__(module)
        self.underway = []
        for bucket in make_buckets(module):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.send_if_full, bucket))

    def send_if_full(self, bucket, parameter):
        if all(other.grad is not None for other in bucket):
            flat = pack(bucket)
            self.underway.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for bucket, flat, work in self.underway:
            work.wait()
            unpack(flat / dist.get_world_size(), bucket)
        self.underway.clear()


class OwnWeights(SameWeights):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module


class NoBuffers(OwnWeights):
    def __init__(self, module):
        super().__init__(module)
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)


class Rank0Alone(OwnWeights):
    def __init__(self, module):
        super().__init__(module)
        if dist.get_rank() == 0:
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)


class ForgetsResult(SameWeights):
    def forward(self, *inputs):
        self.module(*inputs)


class Summed(SameWeights):
    def finish(self):
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class AveragesWeights(SameWeights):
    def finish(self):
        for tensor in self.module.state_dict().values():
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()


class BucketsInFinish(SameWeights):
    def finish(self):
        for bucket in make_buckets(self.module):
            flat = pack(bucket)
            dist.all_reduce(flat)
            unpack(flat / dist.get_world_size(), bucket)


class NeverUnpacked(SameWeights):
    def finish(self):
        flat = pack([parameter for parameter in self.module.parameters() if parameter.requires_grad])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()


class SummedFlat(SameWeights):
    def finish(self):
        bucket = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        flat = pack(bucket)
        dist.all_reduce(flat)
        unpack(flat, bucket)


class Blocking(Overlapped):
    def send_if_full(self, bucket, parameter):
        if all(other.grad is not None for other in bucket):
            flat = pack(bucket)
            dist.all_reduce(flat)
            unpack(flat / dist.get_world_size(), bucket)


class NeverWaits(Overlapped):
    def finish(self):
        for bucket, flat, _ in self.underway:
            unpack(flat / dist.get_world_size(), bucket)
        self.underway.clear()


class MessageEach(Overlapped):
    def send_if_full(self, bucket, parameter):
        super().send_if_full([parameter], parameter)


class FullFirst(MyDDP):
    def arrived(self, number, parameter):
        self.missing[number] -= 1
        if not self.missing[number]:
            self.send_number(number)

    def begin(self):
        super().begin()
        self.sent = {}

    def send_number(self, number):
        flat = pack(self.buckets[number])
        self.sent[number] = flat, dist.all_reduce(flat, async_op=True)
        self.missing[number] = len(self.buckets[number])

    def finish(self):
        for number, bucket in enumerate(self.buckets):
            if number not in self.sent:
                self.send_number(number)
            flat, work = self.sent[number]
            work.wait()
            unpack(flat / dist.get_world_size(), bucket)
        self.begin()


class FirstBackwardOnly(MyDDP):
    def arrived(self, number, parameter):
        self.missing[number] -= 1
        while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] <= 0:
            self.send()


WIDTH, ROWS = 400, 6  # of the network below: each wide layer fills a bucket
UPDATES = ("the first update", "an update that two backward() prepared",
           "an update in which rank 0 alone has a gradient for one layer")
PARTS = (1, 2, 1)  # backward() of each
PATIENCE = 3  # seconds that the late rank gives the others' backward to return
ROUNDING, ENOUGH = 1e-9, 1.01  # of float64; bytes sent in a backward, in those of all gradients


class Network(nn.Module):
    """A frozen layer, a buffer, a weight that two layers share, and perhaps a layer `spare` that can be skipped."""

    def __init__(self, spare):
        super().__init__()
        self.frozen = nn.Linear(5, WIDTH).requires_grad_(False)
        self.first, self.shared, self.again = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.again.weight = self.shared.weight
        self.spare, self.skip = nn.Linear(WIDTH, WIDTH) if spare else None, False
        self.last = nn.Linear(WIDTH, 3)
        self.register_buffer("offset", torch.rand(WIDTH))
        self.double()

    def forward(self, inputs):
        hidden = self.frozen(inputs) + self.offset
        for layer in (self.first, self.shared, self.again, None if self.skip else self.spare):
            hidden = layer(hidden).tanh() if layer else hidden
        return self.last(hidden)


def measure_ddp(step, cls, context):
    """What the wrapper `cls` does on this rank, as `ddp_cases` reads it."""
    rank, ranks = context.rank, context.world_size
    torch.manual_seed(generator_seed())
    whole = Network(spare=step == 5)  # one process, which begins with rank 0's weights
    inputs = torch.randn(len(UPDATES), 2, ranks, ROWS, 5, dtype=torch.float64)
    labels = torch.randint(3, inputs.shape[:4])
    torch.manual_seed(rank)
    own = Network(spare=step == 5) if rank else copy.deepcopy(whole)
    sent, first_layer = Collectives(), []
    own.first.weight.register_post_accumulate_grad_hook(lambda _: first_layer.append(sent.calls.total()))
    wrapped = cls(own)
    output = wrapped(inputs[0, 0, 0])
    seen = {"forward": isinstance(output, torch.Tensor) and torch.equal(output, own(inputs[0, 0, 0])),
            "parameters": all(map(torch.equal, own.parameters(), whole.parameters())),
            "buffers": all(map(torch.equal, own.buffers(), whole.buffers()))}
    if step == 1 or not all(seen.values()):
        return seen

    def backward(model, network, update, of_ranks):
        """The gradient of the mean loss over the rows of these ranks."""
        for part in range(PARTS[update]):
            for each in of_ranks:
                network.skip = update == 2 and each > 0
                loss = cross_entropy(model(inputs[update, part, each]), labels[update, part, each])
                (loss / PARTS[update] / len(of_ranks)).backward()

    start = parameters_to_vector(whole.parameters()).detach()
    gradients = sum(each.nbytes for each in own.parameters() if each.requires_grad)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in (whole, own)]
    for update in range(len(UPDATES) if step == 5 else 1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(whole, whole, update, range(ranks))
        if update == 0 and step >= 4 and rank == ranks - 1:  # late: it begins when the others' backward has returned
            try:
                context.store.wait([f"returned {other}" for other in range(rank)], timedelta(seconds=PATIENCE))
            except RuntimeError:
                seen["blocked"] = True
        before = sent.bytes
        with sent:
            backward(wrapped, own, update, [rank])
            context.store.set(f"returned {rank}", "yes")
            wrapped.finish()
        seen["bytes"] = round((sent.bytes - before) / PARTS[update] / gradients, 2)
        if update == 0:
            seen |= {"messages": sent.calls.total(), "early": first_layer[0], "buckets": len(make_buckets(own))}
        for optimizer in optimizers:
            optimizer.step()
        moved, right = (parameters_to_vector(network.parameters()).detach() - start for network in (own, whole))
        seen[UPDATES[update]] = ((moved - right).abs().max() / right.abs().max()).item()
        seen.setdefault("times as far", (moved @ right / (right @ right)).item())
        if seen[UPDATES[update]] > ROUNDING or seen["bytes"] > ENOUGH:
            break  # the following updates would be wrong for the same reason
    return seen


def ddp_cases(step, ranks):
    """Of each step: its own demands after those of the steps before it."""
    on = f"On {len(ranks)} ranks"
    yield Case([seen["forward"] for seen in ranks], [True] * len(ranks),
               f"{on}: forward must return what the module returns for the same inputs.")
    for kind in ("parameters", "buffers"):
        other = [rank for rank, seen in enumerate(ranks) if not seen[kind]]
        yield Case(other, [], f"{on}: after MyDDP(module) the {kind} of rank {' and rank '.join(map(str, other))} are "
                   "not rank 0's.")
    if step == 1:
        return
    if step == 3:
        yield Case(ranks[0]["messages"], 1, f"{on}: an update took {ranks[0]['messages']} messages, not one.")
    if step >= 4:
        least = min(seen["messages"] for seen in ranks)
        yield Case(2 <= least <= ranks[0]["buckets"], True, f"{on}: an update took {least} messages, and make_buckets "
                   f"makes {ranks[0]['buckets']} buckets of the network.")
        yield Case(min(seen["early"] for seen in ranks) > 0, True, f"{on}: no message had left when backward came to "
                   "the first layer. A hook must send a bucket as soon as its last gradient is there.")
        yield Case(any("blocked" in seen for seen in ranks), False, f"{on}: backward did not go on while a message was "
                   "under way. We let one rank be late, and the others' backward() waited for it.")
    yield Case(round(ranks[0]["times as far"], 2), 1.0, f"{on}: in the first update the weights moved "
               f"{ranks[0]['times as far']:.2f} times as far as those of one process.", rel_tol=0.02)
    for update in [update for update in UPDATES if update in ranks[0]]:
        off = max(seen[update] for seen in ranks)
        yield Case(off < ROUNDING, True, f"{on}: after {update} the weights are not those of one process: they "
                   f"differ by {off:.0e} of the way that they moved.")
    most = max(seen["bytes"] for seen in ranks)
    yield Case(most <= ENOUGH, True, f"{on}: {most:.1f} times the bytes of all gradients were sent in a backward(). "
               "Each gradient needs to go once.")


OURS, MINE = "lessons/l06_ddp/my_ddp.py", Path("results/live/06_my_ddp.py")


class Step(ExerciseOnRanks):
    """A step of MyDDP. `trains` is a wrapper for main.py, FILE.py:CLASS: the learner's, once it is right, else ours."""

    def __init__(self, number, solution, shown, hint, mistakes):
        def check(ranks):
            yield from ddp_cases(number, ranks)

        check.__doc__, check.__name__ = shown, f"step_{number}"
        measurement = Measurement(partial(measure_ddp, number), "MyDDP", preload=(__name__,))
        super().__init__(check, solution, hint, mistakes, measurement, lambda: (2, 3))
        self.number = number
        self.ours = f"{OURS if number == 5 else 'lessons/l06_ddp/check.py'}:{solution.__name__}"

    @property
    def trains(self):
        return f"{self.file}:MyDDP" if self.file else self.ours

    @property
    def whose(self):
        return "yours" if self.file else "ours"

    def judged(self, attempt, status):
        super().judged(attempt, status)
        if self.file and self.number > 1:  # it trains: MINE is the last step that was right
            shutil.copy(attempt, MINE)


same_weights = Step(
    1, SameWeights,
    "All ranks begin with rank 0's parameters and buffers. state_dict() has both, and its tensors are the model's own.",
    "module.state_dict().values() are all tensors of the model. dist.broadcast(tensor, src=0) gives each rank the "
    "values of rank 0, in place.",
    {"Nothing was sent. A call on every rank, for each tensor: dist.broadcast(tensor, src=0).": OwnWeights,
     "parameters() has no buffers, such as BatchNorm's running means. state_dict() has both.": NoBuffers,
     "broadcast is a collective: every rank calls it, those that receive, too.": Rank0Alone,
     "Is there a return in forward?": ForgetsResult})
mean_gradients = Step(
    2, MeanGradients,
    "The ranks train as one process does with all their images. A message a parameter; a frozen one has no gradient.",
    "For each parameter whose .grad is not None: dist.all_reduce adds it up over the ranks, in place; then divide by "
    "dist.get_world_size().",
    {"Every rank made the update of its own images. finish() must bring the gradients together.": SameWeights,
     "That is the sum over the ranks. The loss is a mean over images, so the gradient is a mean over ranks.": Summed,
     "You averaged weights: but the gradient is what the update needs. Average parameter.grad.": AveragesWeights})
one_message = Step(
    3, OneMessage,
    "One flat tensor, one message. It leaves when all gradients are there: nothing overlaps yet.",
    "bucket = the parameters with requires_grad; flat = pack(bucket); all_reduce; divide; unpack(flat, bucket).",
    {"Pack the gradients of all parameters into one bucket.": MeanGradients,
     "make_buckets makes several buckets. For one message put all parameters into one list.": BucketsInFinish,
     "The mean is in the flat tensor, and the optimizer reads parameter.grad: unpack it.": NeverUnpacked,
     "That is the sum over the ranks: divide by dist.get_world_size().": SummedFlat})
overlapped = Step(
    4, Overlapped,
    "A bucket leaves when its last gradient is there, backward goes on, and finish() waits before the update.",
    "In __init__: parameter.register_post_accumulate_grad_hook(function) for each parameter of each bucket of "
    "make_buckets(module). The function looks whether all gradients of its bucket are there; then pack, and "
    "dist.all_reduce(flat, async_op=True) returns a handle at once. Keep bucket, flat tensor and handle for finish().",
    {"finish() runs after backward(). Send from a hook.": BucketsInFinish,
     "all_reduce returns when the message is through. With async_op=True it returns at once: wait in finish().":
         Blocking,
     "The tensors were unpacked before the messages had come. Call wait() on each handle first.": NeverWaits,
     "A message for each parameter: send a bucket when all of its gradients are there.": MessageEach})
any_backward = Step(
    5, MyDDP,
    "Right after any backward: every bucket leaves, in the same order on all ranks, also where a gradient is missing "
    "or a second backward adds to the first.",
    "Count for each bucket the gradients that are missing. Send in the order of the buckets: the next one, while none "
    "of its gradients is missing. finish() sends those that are left. A gradient for a bucket that has left belongs to "
    "another backward: then begin to count anew, and send all again.",
    {"`.grad is not None` says that a gradient is there, of this backward or of an earlier one; and a bucket with an "
     "unused parameter never leaves. Count, and let finish() send what is left.": Overlapped,
     "The ranks sent their buckets in different orders, so that a bucket met another one. Send the next bucket only "
     "when the one before it has left.": FullFirst,
     "After the second backward the mean of the first one took the place of the sum. A gradient for a bucket that has "
     "left means: count anew, and send again.": FirstBackwardOnly})


def compare():
    """Print our MyDDP, where the learner's is right."""
    if any_backward.whose == "yours":
        any_backward.solution()


def kept():
    """Whose class is in MINE: "yours", or "ours", put there where no step has been right."""
    if not MINE.exists():
        shutil.copy(OURS, MINE)
    return "ours" if filecmp.cmp(OURS, MINE, shallow=False) else "yours"


# Exercise 1: how far apart are the ranks?
def apart(model):
    most = 0.0
    for parameter in model.parameters():
        high, low = parameter.detach().clone(), parameter.detach().clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        most = max(most, (high - low).max().item())
    return most


def apart_in_place(model):
    most = 0.0
    for parameter in model.parameters():
        low = parameter.detach().clone()
        dist.all_reduce(parameter.data, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        most = max(most, (parameter.data - low).max().item())
    return most


def from_rank_0(model):
    most = 0.0
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, src=0)
        most = max(most, (parameter.detach() - first).abs().max().item())
    return most


def from_the_mean(model):
    most = torch.tensor(0.0)
    for parameter in model.parameters():
        mean = parameter.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        most = torch.maximum(most, (parameter.detach() - mean).abs().max())
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()


def of_norms(model):
    norms = torch.stack([parameter.detach().norm() for parameter in model.parameters()])
    return apart(nn.ParameterList([norms.norm()]))


def of_the_last(model):
    return apart(nn.ParameterList(list(model.parameters())[-1:]))


def deviation(ranks):
    """(the rank of which one weight is larger, by how much)."""
    return drawn_one((1, 0.25), lambda random: (random.randrange(2, ranks), random.randint(3, 9) / 8))


def measure_apart(function, context):
    """The function's answers for three models, and whether it changed a weight: all ranks have the same model; one
    value of the first layer differs on one rank; another value differs on each rank, so that all norms agree."""
    answers, changed, (deviating, amount) = [], False, deviation(context.world_size)
    for case in ("same", "one value", "same norm"):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
        first = model[0].weight.data.view(-1)
        if case == "one value":
            first[2] += amount * (context.rank == deviating)
        elif case == "same norm":
            first[context.rank] += amount
        before = copy.deepcopy(model.state_dict())
        answer = function(model)
        if answer is None:
            raise Wrong(f"On rank {context.rank} it returned None. Every rank needs the number.")
        answers.append(round(float(answer), 5))
        changed |= any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return {"answers": answers, "changed": changed}


@exercise_on_ranks(
    measure_apart,
    solution=apart,
    hint="dist.all_reduce(tensor, op=dist.ReduceOp.MAX) leaves each place's largest value on every rank, and "
         "ReduceOp.MIN its smallest. Both overwrite the tensor: give them a clone.",
    mistakes={
        "A collective overwrites the tensor that it gets. Give it a clone of parameter.detach().": apart_in_place,
        "Each rank compared itself with rank 0, so rank 0 has seen nothing. The ranks must learn one another's "
        "result.": from_rank_0,
        "This is the distance from the mean, not the largest difference between any two ranks.": from_the_mean,
        "Different weights can have the same norm, or the same sum. Compare them place by place.": of_norms,
        "Is every parameter compared, the first too?": of_the_last,
    },
)
def drift(ranks):
    """The answer is 0 only where every weight is the same on all ranks, and every rank knows it: a test that DDP does
    its work. It costs two all-reduces a tensor. main.py compares one norm of all weights, after each epoch: cheaper,
    and blind only to differences that leave the norm as it is."""
    deviating, amount = deviation(len(ranks))
    yield Case(any(measured["changed"] for measured in ranks), False, "Your function changed the weights.")
    models = {"All ranks had the same weights": 0.0,
              f"One weight of rank {deviating} was {amount:g} larger than on the other ranks": amount,
              f"On each rank another weight was {amount:g} larger": amount}
    for number, (description, right) in enumerate(models.items()):
        answers = [measured["answers"][number] for measured in ranks]
        yield Case(answers, [right] * len(ranks),
                   f"{description}, so {right:g} is right on every rank. You gave "
                   f"{', '.join(f'{value:.3g}' for value in answers)}.")


# Exercise 2: where no_sync goes
def train(ddp, batches, optimizer, every):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        with nullcontext() if update else ddp.no_sync():
            (cross_entropy(ddp(inputs), labels) / every).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()


def around_backward(ddp, batches, optimizer, every):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        loss = cross_entropy(ddp(inputs), labels) / every
        with nullcontext() if update else ddp.no_sync():
            loss.backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()


def around_everything(ddp, batches, optimizer, every):
    with ddp.no_sync():
        train(ddp, batches, optimizer, every)


def one_large_batch(ddp, batches, optimizer, every):
    inputs, labels = (torch.cat(parts).split(every * len(parts[0])) for parts in zip(*batches, strict=True))
    train(ddp, zip(inputs, labels, strict=True), optimizer, every=1)


def careless(ddp, batches, optimizer, every, divide=True, zero=True):
    for number, (inputs, labels) in enumerate(batches, start=1):
        update = number % every == 0
        with nullcontext() if update else ddp.no_sync():
            (cross_entropy(ddp(inputs), labels) / (every if divide else 1)).backward()
        if update:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


def given():
    """(batches of each rank, rows of a batch, batches for an update)."""
    return drawn_one((6, 4, 3), lambda random: (
        (every := random.choice((2, 4))) * random.choice((2, 3)), random.randint(5, 9), every))


def measure_train(function, context):
    """All-reduces, the rows that a forward saw, and how the weights moved, compared with one process that has the
    batches of all ranks."""
    count, size, every = given()
    generator = torch.Generator().manual_seed(generator_seed())
    inputs = torch.randn(count, context.world_size, size, 5, generator=generator)
    labels = torch.randint(3, inputs.shape[:3], generator=generator)
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    start, alone = model.weight.detach().clone(), copy.deepcopy(model)
    sgd = torch.optim.SGD(alone.parameters(), lr=0.01)
    for batch, truth in zip(inputs.split(every), labels.split(every), strict=True):
        sgd.zero_grad()
        cross_entropy(alone(batch.flatten(0, -2)), truth.flatten()).backward()
        sgd.step()

    buckets, rows = [], []

    def counted(group, bucket):
        buckets.append(bucket.index())
        return allreduce_hook(group, bucket)

    model.register_forward_pre_hook(lambda _, arguments: rows.extend(map(len, arguments)))
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, counted)
    batches = list(zip(inputs[:, context.rank], labels[:, context.rank], strict=True))
    function(parallel, batches, torch.optim.SGD(model.parameters(), lr=0.01), every)
    moved, right = (model.weight.detach() - start).flatten(), (alone.weight.detach() - start).flatten()
    return {"all_reduces": len(buckets), "rows": max(rows, default=0),
            "times as far": (moved @ right / (right @ right)).item(),
            "relative error": ((moved - right).abs().max() / right.abs().max()).item()}


@exercise_on_ranks(
    measure_train,
    solution=train,
    hint="`with ddp.no_sync():` around forward and backward of every batch but each `every`-th. "
         "contextlib.nullcontext() is a `with` that does nothing.",
    mistakes={
        "Nothing was saved: outside no_sync each backward makes an all-reduce. And around backward alone no_sync does "
        "nothing: the forward decides whether DDP will synchronise, so it must be inside, too.": around_backward,
        "Without an all-reduce the ranks' weights drift apart. The last batch before each update must be outside "
        "no_sync: its backward adds up the gradients of all batches over the ranks.": around_everything,
        "Batches are accumulated because the large batch does not fit in memory: give ddp one batch at a time.":
            one_large_batch,
        "Gradients add up over the batches of an update: divide each loss by `every`.": partial(careless, divide=False),
        "Old gradients are still in .grad after an update: zero_grad belongs behind each step.":
            partial(careless, zero=False),
    },
)
def accumulate(ranks):
    """One all-reduce an update, not one a batch, and the weights are those of one process with the large batch."""
    measured, (batches, size, every) = ranks[0], given()
    yield Case(measured["rows"] > size, False,
               f"A forward saw {measured['rows']} rows, and a batch has {size}.")
    yield Case(measured["all_reduces"], batches // every,
               f"You made {measured['all_reduces']} all-reduces for {batches} batches. With an update after each "
               f"{every} batches, {batches // every} are right.")
    yield Case(round(measured["times as far"], 1), 1.0,
               f"The number of all-reduces is right, but the weights moved {measured['times as far']:.1f} times as far "
               "as those of one process with the large batch.")
    error = max(measured["relative error"] for measured in ranks)
    yield Case(error < 1e-4, True,
               "The number of all-reduces is right, but the weights are not those of one process with the large batch: "
               f"they differ by {error:.1%} of the way that they moved.")


# Exercise 3: one file, which all can read
def save(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)
    dist.barrier()


def by_all(ddp, file):
    torch.save(ddp.module.state_dict(), file)
    dist.barrier()


def with_prefix(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), file)
    dist.barrier()


def without_barrier(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)


def barrier_for_one(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), file)
        dist.barrier()


def whole_model(ddp, file):
    if dist.get_rank() == 0:
        torch.save(ddp.module, file)
    dist.barrier()


def layers():
    """Widths before and behind each layer of the model to save."""
    return drawn_one([4, 3], lambda random: random.choices(range(2, 9), k=random.choice((3, 4))))


def measure_save(function, context):
    """How often this rank wrote, whether the file was there when the function returned, and the names in it. Writing
    takes a while, as with a model of some gigabytes."""
    torch.manual_seed(context.rank)
    model = nn.Sequential(*[nn.Linear(*widths) for widths in pairwise(layers())])
    parallel, file, own = DistributedDataParallel(model), Path(context.folder, "model.pt"), list(model.state_dict())
    writes, save, names = [], torch.save, None

    def slowly(*args, **kwargs):
        writes.append(context.rank)
        time.sleep(0.5)
        save(*args, **kwargs)

    torch.save = slowly
    try:
        function(parallel, file)
    finally:  # also where it raised: else the others would wait for this rank
        there = file.exists()
        all_writes = sum(context.gather("writes", len(writes)))
    if file.exists() and all_writes < 2:  # a file that two ranks write at a time may not be readable
        try:
            names = list(torch.load(file, map_location="cpu", weights_only=True))
        except pickle.UnpicklingError:
            raise Wrong("The file holds Python objects. To load it, a program must have the code behind them, and "
                        "trust it.") from None
    return {"writes": len(writes), "there": there, "exists": file.exists(), "names": names, "own": own}


@exercise_on_ranks(
    measure_save,
    solution=save,
    hint="Three questions: whose turn is it to write, which state_dict() has the model's own names, and how do the "
         "other ranks learn that the file is there?",
    mistakes={
        "All ranks have the same weights: one writer is enough, and several that write to one file at a time can break "
        "it.": by_all,
        "Which model is inside the wrapper?": with_prefix,
        "Where can the ranks wait for each other?": without_barrier,
        "Your barrier is called by rank 0 alone, so it never ends.": barrier_for_one,
        "Save a state_dict(), not the model itself.": whole_model,
    },
)
def saved(ranks):
    """One rank wrote, a model without DDP can load the file, and no rank went on before it was there."""
    writes = sum(measured["writes"] for measured in ranks)
    yield Case(writes > 1, False, f"The file was written {writes} times.")
    yield Case(ranks[0]["exists"], True, "After your function there is no such file.")
    late = [rank for rank, measured in enumerate(ranks) if not measured["there"]]
    yield Case(late, [],
               f"When rank {' and rank '.join(map(str, late))} returned, the file was not there yet. The next line of "
               "the program may want to read it.")
    names, own = ranks[0]["names"] or [], ranks[0]["own"]
    yield Case(names, own,
               f"The names in the file are {', '.join(names)}; the model's own are {', '.join(own)}. A model without "
               "DDP refuses the file.")
