"""The five steps to MyDDP, each checked on 2 and on 3 ranks: course/on_ranks.py says how. The file that a step's check
gets goes on growing, so a check finds right what a later step has made of it."""

import contextlib
import copy
import gc
import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course.exercise import Case, mistake
from course.lesson import some
from course.on_ranks import KeptExercise, Measurement
from course.one_process import Recorder, parting
from course.sent import Sent
from lessons.l06_ddp.solution import MeanGradients, OneMessage, Overlapped, SameWeights
from lessons.start.ours.my_ddp import MyDDP


# Typical mistakes that are more than another line
class WrapsCopy(MeanGradients):
    def __init__(self, module, all_reduce):
        super().__init__(module, all_reduce)
        self.module = copy.deepcopy(module)


class FromOwnWeights(MeanGradients):
    def same_weights(self):
        pass


class AveragesWeights(SameWeights):
    def finish(self):
        for tensor in self.module.state_dict().values():
            self.all_reduce(tensor)
            tensor /= self.ranks


class BucketsInFinish(OneMessage):
    def finish(self):
        for bucket in MyDDP.make_buckets(self.module):
            flat = self.pack(bucket)
            self.all_reduce(flat)
            self.unpack(flat / self.ranks, bucket)


class FullFirst(Overlapped):
    def finish(self):
        for number, bucket in enumerate(self.buckets):
            if not any(each is bucket for each, _, _ in self.underway):
                self.missing[number] = 1
                self.arrived(number, None)
        super().finish()


WIDTH, ROWS = 100, 6  # of the network below: each wide layer fills a bucket
ALONE = "rank 0 alone has a gradient for one layer"
# Name; how many backward() it has; whether all ranks but 0 leave out a layer; whether its first backward() is in
# no_sync(). Step 5 makes all of them, step 4 the first three, the others the first two.
UPDATES = [("the first update", 1, False, False), ("the second update", 1, False, False),
           ("an update of two backward(), the first in no_sync()", 2, False, True),
           ("an update of two backward()", 2, False, False),
           (f"an update in which {ALONE}", 1, True, False), (f"the update after one in which {ALONE}", 1, False, False),
           (f"an update of two backward(), in which {ALONE}", 2, True, False)]
PATIENCE = 3  # seconds that the late rank gives the others' backward to return
ENOUGH = 1.01  # bytes sent in a backward, in those of one all-reduce of all gradients
GROWN = 0.5  # memory that an update adds to a rank's tensors, in that of all gradients


class Network(nn.Module):
    """A frozen layer, a buffer, a weight that two layers share, a parameter that stands first and is used last, and
    perhaps a layer `spare` that can be skipped. All buckets but the first are equally large: gloo ends no process that
    mixes them up, and what it computes tells."""

    def __init__(self, spare):
        super().__init__()
        self.frozen = nn.Linear(5, WIDTH).requires_grad_(False)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.spare, self.skip = nn.Linear(WIDTH, WIDTH) if spare else None, False
        self.shared, self.again = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.again.weight = self.shared.weight
        self.last = nn.Linear(WIDTH, 3)
        self.scale, self.shift = (nn.Parameter(torch.rand(size)) for size in ((WIDTH, WIDTH), WIDTH))
        self.register_buffer("offset", torch.rand(WIDTH))
        self.double()

    def forward(self, inputs):
        hidden = self.frozen(inputs) + self.offset + self.shift
        for layer in (self.first, None if self.skip else self.spare, self.shared, self.again):
            hidden = layer(hidden).tanh() if layer else hidden
        return self.last(hidden * self.scale.mean(0))


def bytes_of_tensors():
    """Of all that live in this process; each memory counts once."""
    gc.collect()
    memory = [each.untyped_storage() for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return sum({each.data_ptr(): each.nbytes() for each in memory}.values())


def measure_ddp(step, cls, context):
    """What the wrapper `cls` does on this rank, as `ddp_cases` reads it."""
    rank, ranks = context.rank, context.world_size
    updates = UPDATES[:{4: 3, 5: len(UPDATES)}.get(step, 2)]
    torch.manual_seed(0)
    whole = Network(spare=step == 5)  # one process, which begins with rank 0's weights
    inputs = torch.randn(len(updates), 2, ranks, ROWS, 5, dtype=torch.float64)
    labels = torch.randint(3, inputs.shape[:4])
    torch.manual_seed(rank)
    own = Network(spare=step == 5)
    sent, given, first_layer = Sent(), [], []
    own.first.weight.register_post_accumulate_grad_hook(lambda _: first_layer.append(sent.calls.total()))

    def all_reduce(tensor):
        given.append(True)
        dist.all_reduce(tensor)

    wrapped = cls(own, all_reduce)
    output = wrapped(inputs[0, 0, 0])
    seen = {"forward": isinstance(output, torch.Tensor) and torch.equal(output, own(inputs[0, 0, 0])),
            "parameters": all(map(torch.equal, own.parameters(), whole.parameters())),
            "buffers": all(map(torch.equal, own.buffers(), whole.buffers()))}
    if step == 1 or not all(context.gather("begun", all(seen.values()))):  # all ranks go on, or none
        return seen

    def backward(model, network, number, of_ranks):
        """The gradient of the mean loss over the rows of these ranks."""
        _, parts, skips, quiet = updates[number]
        for part in range(parts):
            with model.no_sync() if quiet and part == 0 and model is wrapped else contextlib.nullcontext():
                for each in of_ranks:
                    network.skip = skips and each > 0
                    loss = cross_entropy(model(inputs[number, part, each]), labels[number, part, each])
                    (loss / parts / len(of_ranks)).backward()

    gradients = sum(each.nbytes for each in own.parameters() if each.requires_grad)
    one_process, ours = ((Recorder(), torch.optim.SGD(each.parameters(), lr=0.1)) for each in (whole, own))
    seen |= {"parting": None, "bytes": 0, "given": 0, "frozen": False}
    for number, (_, parts, _, quiet) in enumerate(updates):
        recorder, optimizer = one_process
        with recorder:
            optimizer.zero_grad()
            backward(whole, whole, number, range(ranks))
            optimizer.step()
        if number < 2 and step >= 4 and rank == ranks - 1 and "blocked" not in seen:
            try:  # late: it begins when the others' backward has returned
                context.store.wait([f"returned {number} {other}" for other in range(rank)],
                                   timedelta(seconds=PATIENCE))
            except RuntimeError:
                seen["blocked"] = True
        sent.calls.clear(), sent.bytes.clear(), first_layer.clear()
        recorder, optimizer = ours
        with recorder:
            optimizer.zero_grad()
            with sent:
                backward(wrapped, own, number, [rank])
                context.store.set(f"returned {number} {rank}", "yes")
                wrapped.finish()
            optimizer.step()
        sends = 1 if quiet else parts
        seen["bytes"] = max(seen["bytes"], round(sent.bytes.total() / sends / (2 * (ranks - 1) / ranks * gradients), 2))
        if number < 2:  # the second counts: as in DDP, the first may be another
            seen |= {"calls": sent.calls.total(), "all-reduces": sent.all_reduces, "early": sum(first_layer[:1]),
                     "given": len(given), "gradients": sum(each.grad is not None for each in own.parameters())}
        seen["frozen"] = seen["frozen"] or any(each.grad is not None for each in own.frozen.parameters())
        parted = parting(one_process[0].record(), ours[0].record())
        if parted:
            seen["parting"] = [number, parted.update, parted.tensor, round((parted.gradient or [0])[0], 2), str(parted)]
        late = step >= 4 and (seen["bytes"] > ENOUGH or number == 1 and not seen["early"])
        if any(context.gather(f"off {number}", bool(parted or seen["frozen"] or late))):
            return seen  # the following updates would be wrong for the same reason
    if step == 4:
        for held in ("before", "after"):
            optimizer.zero_grad()
            backward(wrapped, own, 1, [rank])
            wrapped.finish()
            seen[held] = bytes_of_tensors() / gradients
    return seen


def ddp_cases(step, ranks):
    """Of each step: its own demands after those of the steps before it."""
    on = f"On {len(ranks)} ranks"
    yield Case([seen["forward"] for seen in ranks], [True] * len(ranks),
               f"{on}: forward must return what the module returns for the same inputs.")
    for kind in ("parameters", "buffers"):
        other = [rank for rank, seen in enumerate(ranks) if not seen[kind]]
        yield Case(other, [], f"{on}: after MyDDP(module) the {kind} of rank {' and rank '.join(map(str, other))} are "
                   "not those with which rank 0 began.")
    if step == 1:
        return
    first, calls = ranks[0], min(seen["calls"] for seen in ranks)
    early = min(seen["early"] for seen in ranks) > 0
    yield Case(calls > 0, True, f"{on}: backward() and finish() sent nothing.")
    if step <= 3:
        yield Case(early or all(seen["given"] for seen in ranks), True, f"{on}: finish() did not call "
                   "self.all_reduce, which the program passes in.")
    if step == 3:
        yield Case(1 if early or first["all-reduces"] == 1 else calls, 1, f"{on}: an update took "
                   f"{some(calls, 'message')}, not one.")
    if step >= 4:
        few = calls >= 2 and first["all-reduces"] < first["gradients"]
        yield Case(few or first["parting"] is not None, True, f"{on}: an update took {some(calls, 'message')} for "
                   f"{first['gradients']} gradients. make_buckets makes several buckets of this network, and each is a "
                   "message.")
        yield Case(early, True, f"{on}: no message had left when backward came to the first layer. A hook must send a "
                   "bucket as soon as its last gradient is there.")
        yield Case(any("blocked" in seen for seen in ranks), False, f"{on}: backward did not go on while a message was "
                   "under way. We let one rank be late, and the others' backward() waited for it.")
    off = [(seen["parting"], rank) for rank, seen in enumerate(ranks) if seen["parting"]]
    (number, *where, how), rank = min(off, default=([None, ""], 0))
    yield Case([number, *where], [None], f"{on}: after {UPDATES[number or 0][0]} rank {rank} is not the model of one "
               f"process. They part {how}.")
    yield Case(any(seen["frozen"] for seen in ranks), False, f"{on}: after finish() the frozen layer has a gradient. "
               "An optimizer with weight decay would now change the layer: leave its .grad None.")
    if step >= 4:
        most = max(seen["bytes"] for seen in ranks)
        yield Case(most if most > ENOUGH else 1, 1, f"{on}: a backward() sent {most:.1f} times the bytes of one "
                   "all-reduce of all gradients. Each gradient needs to go once, and in no_sync() none.")
    if step == 4:
        grown = max(seen.get("after", 0) - seen.get("before", 0) for seen in ranks)
        yield Case(grown < GROWN, True, f"{on}: with each update the tensors of a rank take more memory, {grown:.1f} "
                   "times that of all gradients.")


MINE = Path("mine/my_ddp.py")


class Step(KeptExercise):
    """A step of MyDDP."""

    def __init__(self, number, solution, shown, hint, mistakes):
        def check(ranks):
            yield from ddp_cases(number, ranks)

        check.__doc__, check.__name__ = shown, f"step_{number}"
        measurement = Measurement(partial(measure_ddp, number), "MyDDP", preload=(__name__,))
        super().__init__(check, solution, hint, mistakes, measurement, (2, 3),
                         kept=f"results/live/06_step_{number}/my_ddp.py")
        self.number = number

    def program(self):
        """Path of a train.py with MyDDP as of this step: the learner's where the check has found it right, else ours.

        Its other parts are those in mine/.
        """
        folder = Path(f"results/live/06_program_{self.number}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MINE.parent, folder, ignore=shutil.ignore_patterns("__pycache__", MINE.name))
        if self.kept.exists():
            shutil.copy(self.kept, folder)
        else:
            ours = f"from {self.answer.__module__} import {self.answer.__name__} as MyDDP\n"
            Path(folder, MINE.name).write_text(ours)
        return Path(folder, "train.py")


def parts():
    """What mine/train.py is to run with, --parts: "mine", unless mine/my_ddp.py is there, and not found right."""
    right = [step.kept.read_bytes() for step in (mean_gradients, one_message, overlapped, any_backward)
             if step.kept.exists()]
    return "mine" if not MINE.exists() or MINE.read_bytes() in right else "ours"


same_weights = Step(
    1, SameWeights,
    "All ranks begin with rank 0's parameters and buffers.",
    ("A model is more than its parameters: which method gives all of its tensors? And who must call a "
     "collective?",
     "Every rank calls it, those that receive, too: once for each tensor in the values of "
     "`self.module.state_dict()`.",
     "`for tensor in self.module.state_dict().values():` call `dist.broadcast(tensor, src=…)`. Whose weights are "
     "they?"),
    {"Every rank must call dist.broadcast(tensor, src=0) for each tensor: for the model's own, not for a copy.":
         mistake(SameWeights, {"dist.broadcast(tensor, src=0)": "pass"}),
     "parameters() has no buffers, such as BatchNorm's running means. state_dict() has both.":
         mistake(SameWeights, {"self.module.state_dict().values()":
                               "[each.detach() for each in self.module.parameters()]"}),
     "broadcast is a collective: every rank calls it, those that receive, too, and all with the same src.":
         mistake(SameWeights, {"dist.broadcast": "if dist.get_rank() == 0: dist.broadcast"}),
     "Is there a return in forward?": mistake(SameWeights, {"return self.module(*inputs)": "self.module(*inputs)"})})
mean_gradients = Step(
    2, MeanGradients,
    "The ranks train as one process does with all their images. A message per parameter; a frozen one has no gradient.",
    ("An all-reduce leaves the sum in each `.grad`. What is still to be done to make it the mean?",
     "Go through `self.module.parameters()`. Which of them have no gradient at all? `self.ranks` is the number "
     "of ranks.",
     "For each parameter whose `.grad` is not None: `self.all_reduce(parameter.grad)`, and then divide it in "
     "place, with `/=`."),
    {"Every rank made the update of its own images. finish() must bring the gradients together.": SameWeights,
     "The loss is a mean over images, so the gradient is a mean over ranks: divide.":
         mistake(MeanGradients, {"parameter.grad /= self.ranks": "pass"}),
     "dist.reduce gives the sum to one rank. Every rank makes the update, so every rank needs it.":
         mistake(MeanGradients, {"self.all_reduce(parameter.grad)": "dist.reduce(parameter.grad, dst=0)"}),
     "Right, but with torch's own: self.all_reduce is the ring of lesson 04.":
         mistake(MeanGradients, {"self.all_reduce": "dist.all_reduce"}),
     "The gradients arrive in the module that you were given: wrap it, and not a copy.": WrapsCopy,
     "All ranks must begin with rank 0's weights and buffers, as in step 1.": FromOwnWeights,
     "The .grad of a frozen parameter is None: leave it out.":
         mistake(MeanGradients, {"if parameter.grad is not None": "if True"}),
     "You averaged weights: but the gradient is what the update needs. Average parameter.grad.": AveragesWeights})
one_message = Step(
    3, OneMessage,
    "One flat tensor, one message. It leaves when all gradients are there: nothing overlaps yet.",
    ("Which parameters belong into the one bucket? The mean that you compute lies in the flat tensor. Where does "
     "the optimizer look?",
     "Four lines: make the bucket, a list; `pack` it; add up the flat tensor over the ranks; `unpack` the mean.",
     "`bucket = [each for each in self.module.parameters() if each.requires_grad]`, `flat = self.pack(bucket)`, "
     "`self.all_reduce(flat)`. Then `self.unpack(…, bucket)`, with what makes the sum a mean."),
    {"Pack the gradients of all parameters into one bucket.": MeanGradients,
     "Several buckets are several messages. For one message put all parameters into one list.": BucketsInFinish,
     "Only the parameters with requires_grad belong into the bucket.":
         mistake(OneMessage, {" if parameter.requires_grad": ""}),
     "The mean is in the flat tensor, and the optimizer reads parameter.grad: unpack it.":
         mistake(OneMessage, {"self.unpack(flat / self.ranks, bucket)": "pass"}),
     "Divide by the number of ranks.": mistake(OneMessage, {"flat / self.ranks": "flat"})})
overlapped = Step(
    4, Overlapped,
    "A bucket leaves when its last gradient is there, backward goes on, and finish() waits before the update.",
    ("A bucket can leave when its last gradient is there. So count what each bucket still misses. What must the "
     "counts be when the next backward begins?",
     "In `__init__` each parameter gets a hook that knows its bucket's number: `partial(self.arrived, number)`. "
     "`arrived` keeps what `finish()` will need: the bucket, its flat tensor, and the handle. In `no_sync()` it "
     "returns at once.",
     "`arrived`: `self.missing[number] -= 1`, and where that leaves 0: `flat = self.pack(self.buckets[number])`, "
     "`work = dist.all_reduce(flat, async_op=True)`, and append the three to a list. `finish`: for each of the "
     "list `work.wait()` and `self.unpack(flat / self.ranks, bucket)`; then empty the list, and let each bucket "
     "miss all of its parameters again."),
    {"finish() runs after backward(). Send from a hook.": BucketsInFinish,
     "all_reduce returns when the message is through. With async_op=True it returns at once: wait in finish().":
         mistake(Overlapped, {"self.underway.append((bucket, flat, dist.all_reduce(flat, async_op=True)))":
                              "dist.all_reduce(flat)\n            self.unpack(flat / self.ranks, bucket)"}),
     "Is a bucket packed before its last gradient is there, or unpacked before its message has come? Call wait() on "
     "each handle first.": mistake(Overlapped, {"work.wait()": "pass"}),
     "A message for each parameter: send a bucket when all of its gradients are there.":
         mistake(Overlapped, {"if self.missing[number] == 0": "if True", "self.buckets[number]": "[parameter]"}),
     "The counts of the first update were still there in the second. Begin to count anew.":
         mistake(Overlapped, {"self.missing[number] = len(bucket)": "pass"}),
     "After a backward in no_sync() each .grad is there already when the next one begins. So `.grad is not None` says "
     "nothing about this backward: count the gradients that arrive.":
         mistake(Overlapped, {"self.missing[number] == 0":
                              "all(each.grad is not None for each in self.buckets[number])"}),
     "In no_sync() nothing may leave: the hook returns at once.":
         mistake(Overlapped, {"not self.communicate": "False"}),
     "finish() must forget the messages that it has waited for: empty the list. Otherwise each update keeps one more "
     "copy of all gradients, and unpacks all the old ones again.":
         mistake(Overlapped, {"self.underway.clear()": "pass"})})
any_backward = Step(
    5, MyDDP,
    "Right after any backward: every bucket leaves, in the same order on all ranks, also where a gradient is missing "
    "or a second backward adds to the first.",
    ("On which ranks is a bucket full, and when? Write down for two ranks which buckets each sends, in their "
     "order. And what must every rank have sent when a second forward() begins?",
     "Send in the order of `self.buckets`: the next one only when the one before it has left. `finish()` sends "
     "what is left, and `pack()` puts zeros where a gradient is missing. `forward()` sends what is left of a "
     "backward that `finish()` has not followed yet.",
     "Keep a list `sent` and a flag `begun`. `arrived`: `if number < len(self.sent)`, this is a second backward: "
     "forget what was sent, and count anew, as after `finish()`. Then set the flag, count, and `while` the next "
     "bucket misses nothing: send it. `forward`: `if self.begun and self.communicate:` send the rest. `finish`: "
     "send the rest, wait, unpack, count anew."),
    {"A bucket with a parameter that got no gradient never leaves. Let finish() send what is left.": Overlapped,
     "A bucket met another one: the ranks sent their buckets in different orders. Send the next bucket only when the "
     "one before it has left.": FullFirst,
     "Of the first of two backward() one rank had sent all buckets, and another only some, when the second began. "
     "forward() must send what is left.": mistake(MyDDP, {"if self.begun and self.communicate": "if False"}),
     "After the second backward the mean of the first one took the place of the sum. The second one must count anew, "
     "and send all again.": mistake(MyDDP, {"if number < len(self.sent)": "if False"})})
