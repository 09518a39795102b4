"""The exercises of lesson 13: MyZero, five steps to MyFSDP, and a choice that fits. course/on_ranks.py says how."""

import copy
import json
import math
import re
import traceback
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import KeptExercise, Measurement, patched
from course.sent import Sent
from lessons.l13_shard_kept.solution import OwnNorm, WhenNeeded
from lessons.start.ours.fsdp import MyFSDP
from lessons.start.ours.zero import MyZero


class Strategy(KeptExercise):
    """A file of mine/ that train_gpt.py runs, as long as it is the one found right."""

    @property
    def parts(self):
        mine = Path("mine", self.kept.name)
        same = self.kept.exists() and mine.exists() and mine.read_bytes() == self.kept.read_bytes()
        return "mine" if same else "ours"


# ------------------------------------------------------------------------------------------------------------ MyZero

REDUCE, DIVIDE, GATHER = (f"        {line}\n" for line in (
    "reduce_scatter_single(self.own.grad, gradients)", "self.own.grad /= self.ranks",
    "all_gather_single(self.weights, self.own)"))
OF_ONE_RANK = "        self.own.grad.copy_(gradients.chunk(self.ranks)[dist.get_rank()])\n"
STAGES = ["all values train", "N does not divide the number of values", "a gradient is None, on some ranks or on all",
          "a parameter is frozen"]  # each has what those before it have


class WholeTensors:
    """Each rank updates some of the tensors, which are dealt out in turn."""

    def __init__(self, parameters, make_optimizer):
        trained = [each for each in parameters if each.requires_grad]
        self.owners = {each: number % dist.get_world_size() for number, each in enumerate(trained)}
        own = [each for each, owner in self.owners.items() if owner == dist.get_rank()]
        self.optimizer = make_optimizer(own)

    @torch.no_grad()
    def step(self):
        for each, owner in self.owners.items():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad / dist.get_world_size()
            dist.reduce(each.grad, owner)
        self.optimizer.step()
        for each, owner in self.owners.items():
            dist.broadcast(each, owner)


class Judged(nn.Module):
    """In 64 bits. From stage 1 on 2 to 6 ranks cannot share its values evenly; from stage 2 on `never` takes part in no
    loss, and `sometimes` in rank 0's alone; from stage 3 on `frozen` is not trained."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(5, 9), nn.Linear(9, 4)
        self.sometimes, self.stage = nn.Parameter(torch.randn(4)), stage
        self.frozen = nn.Parameter(torch.randn(9, 9), requires_grad=stage < 3)
        others = sum(each.numel() for each in self.parameters() if each.requires_grad)
        divisor = 1 if stage else 60
        self.never = nn.Parameter(torch.randn(
            next(size for size in range(1, 99) if math.gcd(others + size, 60) == divisor)))
        self.double()

    def loss(self, rank, step):
        """Of a rank's own batch of this step."""
        random = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(5, 5, generator=random, dtype=torch.float64)
        out = self.down(torch.tanh(self.up(x)) @ self.frozen)
        if self.stage < 2:
            return (out + self.sometimes + self.never.mean()).square().mean()
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
    """Of each stage, up to the first that is wrong: the weights that `function` trains and those of one process; the
    bytes of its optimizers' state, what a step sends, and the most that each may be."""
    rank, ranks, stepped, stages = context.rank, context.world_size, {}, []

    class Adam(torch.optim.Adam):
        def step(self, *args, **kwargs):
            stepped[self] = None
            return super().step(*args, **kwargs)

    options = {"lr": 0.05, "eps": 0.1}  # with a small eps Adam would divide out whether it is a sum or a mean
    for stage in range(len(STAGES)):
        model, alone = Judged(stage), Judged(stage)
        try:
            optimizer = function(model.parameters(), lambda parameters: Adam(parameters, **options))
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
        stages.append({
            "weights": {name: each.flatten().tolist() for name, each in model.named_parameters()},
            "right": {name: each.flatten().tolist() for name, each in alone.named_parameters()},
            "optimizer": isinstance(optimizer, torch.optim.Optimizer),
            "state": sum(value.nbytes for each in stepped for state in each.state.values() for value in state.values()
                         if torch.is_tensor(value) and value.dim()),
            "whole state": 2 * 8 * sum(values), "most state": 2 * piece, "sent": sent.rows(),
            "most sent": 2 * (ranks - 1) * piece + 100})  # and a few numbers, should they be needed
        off = not all(map(partial(torch.allclose, rtol=1e-8), model.parameters(), alone.parameters()))
        if any(context.gather(f"off {stage}", off)):
            break
    return {"stages": stages}


def zero_cases(ranks):
    """On 2 and on 3 ranks all have the weights of one process (in 64 bits, to rounding), each keeps its share of Adam's
    averages, and a step sends no more than DDP's all-reduce: this is stage 1 of ZeRO."""
    stages = list(zip(*(rank["stages"] for rank in ranks), strict=True))
    for kind, measured in zip(STAGES, stages, strict=False):
        on = f"On {len(ranks)} ranks, where {kind}"
        for rank, seen in enumerate(measured):
            got, right = seen["weights"], seen["right"]
            name, place = max(((name, place) for name in right for place in range(len(right[name]))),
                              key=lambda which: abs(got[which[0]][which[1]] - right[which[0]][which[1]]))
            yield Case(got, right, f"{on}: after 4 steps value {place} of `{name}` on rank {rank} is "
                                   f"{got[name][place]:.4f}; one process has {right[name][place]:.4f}."
                                   + ("" if seen["sent"] else " In a step it sent nothing."), rel_tol=1e-8)
    for measured in (stages[0], stages[-1]):
        on = f"On {len(ranks)} ranks"
        kept, most, whole = ([seen["state"] for seen in measured], measured[0]["most state"],
                             measured[0]["whole state"])
        yield Case([max(kept) > most, round(sum(kept) / whole)], [False, 1],
                   f"{on} the weights are right. Of Adam's averages, {whole:,} bytes in all, the ranks keep "
                   f"{', '.join(f'{each:,}' for each in kept)} bytes in make_optimizer's optimizers: at most {most:,} "
                   "each are right.")
        for rank, seen in enumerate(measured):
            sent, most = sum(row["bytes"] for row in seen["sent"]), seen["most sent"]
            names = ", ".join(f"{row['calls']} {row['collective']}" for row in seen["sent"])
            yield Case(round(2 * max(sent, most) / most), 2,
                       f"{on} the weights and the state are right. In a step rank {rank} sends {sent:,} bytes "
                       f"({names}); at most {most:,} are right.")
    yield Case(stages[-1][0]["optimizer"], True, "MyZero must go on being a torch.optim.Optimizer.")


zero = Strategy(
    zero_cases,
    solution=MyZero,
    hint=(
        "Which part of all values does this rank update? Cut the values, not the list of tensors: one tensor may have "
        "most of them. So put all values into one flat vector first.",
        "Rank r owns the r-th piece, `weights.chunk(n)[r]`, which shares the vector's memory: make the optimizer for "
        "this tensor alone. If each parameter's `.data` is a view of the vector, what is gathered there is in the "
        "model.",
        "step(): the gradients as such a vector; `self.own.grad = torch.empty_like(self.own)`; reduce_scatter_single "
        "into it; divide; self.optimizer.step(); all_gather_single into the weights."),
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
            mistake(MyZero, {"each.data = values.view_as(each)": "pass"}),
        "The gradient of a piece adds up from step to step. Set it anew, or clear it after the update.":
            mistake(MyZero, {DIVIDE: f"{DIVIDE}        self.sum = self.own.grad = self.own.grad + "
                                     "getattr(self, 'sum', 0)\n"}),
        "A whole is N times as long as a piece, on every rank. Fill it up with zeros, and count a gradient that is "
        "None as zeros, too.": mistake(MyZero, {"-sum(self.sizes) % self.ranks": "0"}),
        "A parameter that took no part in the loss has no gradient: its grad is None. Count it as zeros, for on "
        "another rank it may have taken part.":
            mistake(MyZero, {"torch.zeros_like(each) if each.grad is None else ": ""}),
        "The update is no part of the model: put @torch.no_grad() before step().":
            mistake(MyZero, {GATHER: f"{GATHER}        with torch.enable_grad():\n"
                                     "            self.trained[0] *= 1\n"}),
        "Every rank keeps the state of all weights: this is DDP, and saves no memory.":
            mistake(MyZero, {"self.weights.chunk(self.ranks)[rank]": "self.weights", GATHER: "",
                             REDUCE: "        dist.all_reduce(self.own.grad.copy_(gradients))\n"}),
        "Frozen parameters (requires_grad is False) were sharded, too. They need no state and no message.":
            mistake(MyZero, {" if each.requires_grad": ""}),
        "You dealt out whole tensors, as PyTorch's ZeroRedundancyOptimizer does: the rank with the largest keeps the "
        "most. Cut the values, not the list of tensors.": WholeTensors,
        "all_reduce gives each rank the sums of all gradients, and a rank needs those of its own piece. That is what "
        "reduce_scatter gives it, for half of the bytes.":
            mistake(MyZero, {REDUCE: f"        dist.all_reduce(gradients)\n{OF_ONE_RANK}"}),
    },
    measurement=Measurement(measure_my_zero, "MyZero", preload=(__name__,)), ranks=(2, 3),
    kept="results/live/13_zero/zero.py")


# ------------------------------------------------------------------------------------------------------------ MyFSDP

WIDTH = 7  # of the network below: 2 and 3 ranks divide none of its units
LAYERS = 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh()


class Network(nn.Module):
    """Blocks between two layers that share their weight, as in a GPT."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.blocks = nn.Embedding(5, WIDTH), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


class Gathering:
    """The work of an all-gather into `memory`, which stays in `under_way` until the learner waits for it. In truth it
    has ended: what nobody waits for would come in time on one run, and not on another."""

    def __init__(self, work, memory, under_way):
        work.wait()
        under_way.add(memory)
        self.work, self.memory, self.under_way = work, memory, under_way

    def wait(self, *args):
        self.under_way.discard(self.memory)
        return self.work.wait(*args)

    def __getattr__(self, name):
        return getattr(self.work, name)


def memory_of(tensor):
    return tensor.untyped_storage()._cdata


def measure_fsdp(step, cls, context):
    """What `cls` does on this rank, as `fsdp_cases` reads it."""
    under_way = set()

    def noted(gather):
        def call(*args, **options):
            work = gather(*args, **options)
            return work and Gathering(work, memory_of(args[0] if args else options["output_tensor"]), under_way)
        return call

    names = [name for name in ("all_gather_single", "all_gather_into_tensor") if hasattr(dist, name)]
    with patched(cls.__init__, **{name: noted(getattr(dist, name)) for name in names}):
        return observe_fsdp(step, cls, context, under_way)


def observe_fsdp(step, cls, context, under_way):
    rank, ranks = context.rank, context.world_size
    alone = Network()
    model = copy.deepcopy(alone)
    rest = [each for each in model.parameters() if not any(each is of for part in model.blocks
                                                           for of in part.parameters())]
    parts = [rest, *(list(part.parameters()) for part in model.blocks)]

    def held():
        """The units that have memory."""
        return [number for number, part in enumerate(parts) if any(each.untyped_storage().nbytes() for each in part)]

    def allowed(number, ahead):
        """As few as can be; before step 4 the next one may be there, too: later steps go on with the file."""
        fewest, one_ahead = [0, number], sorted({0, number, min(ahead, LAYERS)})
        return one_ahead if step >= 4 or held() == one_ahead else fewest

    def note(phase, number, ahead):
        """Before step 4 the next unit may be under way, or not."""
        travels = [number for number, part in enumerate(parts) if memory_of(part[0]) in under_way]
        next_one = [ahead] if 0 < ahead <= LAYERS and (step >= 4 or ahead in travels) else []
        during.append([phase, number, held(), allowed(number, ahead), travels, next_one])

    during = []  # [forward or backward, unit, those that have memory, that should, that are under way, that should]
    for number, block in enumerate(model.blocks, 1):
        block.linear.register_forward_hook(lambda *_, number=number: note("forward", number, number + 1))
        block.linear.register_full_backward_pre_hook(lambda *_, number=number: note("backward", number, number - 1))
    wrapped = cls(model, model.blocks)
    seen = {"held": held(), "shards": [len(each) for each in wrapped.shards],
            "sizes": [math.ceil(sum(each.numel() for each in part) / ranks) for part in parts]}
    if any(context.gather("held", bool(seen["held"]))):
        return seen
    right = alone.state_dict()
    for time in ("first", "second"):
        got = wrapped.whole()
        seen[time] = [name for name in right if not torch.equal(got[name], right[name])]
    seen |= {"freed": held(), "unwaited": len(under_way)}
    under_way.clear()
    if step == 1:
        return seen
    x, y = (torch.randint(5, (3, 2, ranks, 4), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    with torch.no_grad():
        output = wrapped(x[0, 0, rank])
        seen |= {"output": torch.allclose(output, alone(x[0, 0, rank])), "during": list(during), "after": held()}
    # From step 4 on, what is wrong with the next unit is shown of backward, too.
    placed_right = step > 3 or all(each[2::2] == each[3::2] for each in during)
    if step == 2 or not all(context.gather("forward", seen["output"] and placed_right)):
        return seen
    optimizers = torch.optim.SGD(alone.parameters(), lr=0.5), torch.optim.SGD(wrapped.shards, lr=0.5)
    seen["updates"] = []
    for update, micro_batches in enumerate((1, 1, 2)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        during.clear()
        with Sent() as sent:
            for part in range(micro_batches):
                for each in range(ranks):
                    loss = nn.functional.cross_entropy(alone(x[update, part, each]), y[update, part, each])
                    (loss / ranks / micro_batches).backward()
                loss = nn.functional.cross_entropy(wrapped(x[update, part, rank]), y[update, part, rank])
                (loss / micro_batches).backward()
            wrapped.finish()
        seen |= {"gradients": sum(each.grad is not None for part in parts for each in part), "left": held(),
                 "backward": list(during)}
        if step == 5:
            norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            wrapped.clip(0.05)
            seen["norm"] = norm.item()
        for optimizer in optimizers:
            optimizer.step()
        got, right = wrapped.whole(), alone.state_dict()
        off = max(((got[name] - right[name]).abs().max() / right[name].abs().max()).item() for name in right)
        seen["updates"].append(0.0 if off < 1e-10 else off)  # how far: it tells mistakes apart
        whole = [8 * ranks * size for size in seen["sizes"]]
        most = (2 * sum(whole) + sum(whole[1:])) * (ranks - 1) // ranks * micro_batches
        seen["bytes"] = round(sum(sent.bytes.values()) / most, 2)
        if not all(context.gather(f"off {update}", off < 1e-10)):
            break
    return seen


UPDATES = ["the first update", "the second update", "an update of two micro-batches"]


def fsdp_cases(step, ranks):
    """Of each step: its own demands after those of the steps before it."""
    on = f"On {len(ranks)} ranks"
    for rank, seen in enumerate(ranks):
        yield Case(seen["held"], [], f"{on}: after MyFSDP(module, blocks) the parameters of unit "
                   f"{' and '.join(map(str, seen['held']))} still have memory on rank {rank}. free() gives it back.")
        yield Case(seen["shards"], seen["sizes"], f"{on}: rank {rank} has shards of {seen['shards']} values, and "
                   f"{seen['sizes']} are right.")
        if "first" not in seen:
            return
        yield Case([seen["first"], seen["second"]], [[], []], f"{on}: whole() must gather the first weights, and "
                   f"again when called again. On rank {rank} {', '.join(seen['first'] or seen['second'])} differ.")
        yield Case(seen["unwaited"], 0, f"{on}: whole() has not waited for {seen['unwaited']} of its gathers on rank "
                   f"{rank}. gather() only begins; work.wait() waits.")
        yield Case(seen["freed"], [], f"{on}: after whole() has freed them, units {seen['freed']} have memory.")
    if step == 1:
        return
    for rank, seen in enumerate(ranks):
        yield Case(seen["output"], True, f"{on}: the output of rank {rank} is not that of the whole model. Are a "
                   "block's weights there when it computes? gather() only begins; work.wait() waits.")
        yield from placed(on, rank, seen["during"])
        yield Case(seen["after"], [0], f"{on}: after forward units {seen['after']} have memory on rank {rank}. Unit 0 "
                   "alone is to stay, until backward has used it.")
    if step == 2:
        return
    for rank, seen in enumerate(ranks):
        if "updates" not in seen:
            return
        updates = seen["updates"]
        wrong = UPDATES[min(len(updates), 3) - 1]
        yield Case(seen["gradients"], 0, f"{on}: after finish() {seen['gradients']} whole gradients are left on rank "
                   f"{rank}. Its own part, in shard.grad, is all it needs.")
        yield from placed(on, rank, seen["backward"])
        yield Case(seen["left"], [], f"{on}: after finish() units {seen['left']} have memory on rank {rank}.")
        must = ("It clips to a norm of 0.05 with clip_grad_norm_." if step == 5 else
                "It has the mean over the ranks, and the sum over micro-batches since zero_grad().")
        yield Case(updates, [0.0] * 3, f"{on}: after {wrong} rank {rank} does not have the weights of one "
                   f"process. {must}")
        yield Case(max(seen["bytes"], 1), 1, f"{on}: rank {rank} sent {seen['bytes']:.2f} times the bytes of two "
                   "gathers of each block, one of unit 0, and one reduce-scatter of all.")


def placed(on, rank, during):
    for phase, number, held, right, under_way, right_under_way in during:
        yield Case(held, right, f"{on}: during the {phase} of unit {number} the units that have memory on rank {rank} "
                   f"are {held}; {right} are right.")
        yield Case(under_way, right_under_way, f"{on}: while unit {number} computes its {phase}, rank {rank} has begun "
                   f"to gather the units {under_way} with all_gather_single and has not waited for them; "
                   f"{right_under_way} are right.")


class Step(Strategy):
    def __init__(self, number, solution, shown, hint, mistakes):
        def check(ranks):
            yield from fsdp_cases(number, ranks)

        check.__doc__, check.__name__ = shown, f"step_{number}"
        super().__init__(check, solution, hint, mistakes, Measurement(partial(measure_fsdp, number), "MyFSDP",
                         preload=(__name__,)), (2, 3), kept=f"results/live/13_step_{number}/fsdp.py")


WAIT = "        self.units[number].work.wait()\n"
AHEAD = ("        if number + 1 < len(self.units):\n"
         "            self.units[number + 1].gather()  # travels while this unit computes\n",
         "        self.units[number - 1].gather()  # the next in backward; unit 0 is whole\n")


def edit(edits):
    """MyFSDP with its file edited."""
    return mistake(MyFSDP, edits, whole_file=True)


def edit_when_needed(edits):
    """The same before step 4."""
    return edit(edits | dict.fromkeys(AHEAD, ""))


pieces = Step(
    1, WhenNeeded,
    "Between two uses a rank keeps its shard alone, and whole() brings all weights back.",
    ("A tensor's memory is its untyped_storage(). Views share it. What does `resize_` do to it?",
     "free: the storage of `self.flat` gets 0 bytes. gather: where it has none it gets `self.bytes`, and then the "
     "shards of all ranks are gathered into `self.flat`. A collective takes `self.shard.detach()`.",
     "`self.flat.untyped_storage().resize_(0)`; and `self.work = all_gather_single(self.flat, self.shard.detach(), "
     "async_op=True)`."),
    {"free() must give the memory back: the views keep their shapes, and the storage gets 0 bytes.":
         edit({"        self.flat.untyped_storage().resize_(0)": "        pass"}),
     "gather() makes room, and then the shards must come: call all_gather_single.":
         edit({"            self.work = all_gather_single(self.flat, self.shard.detach(), async_op=True)":
               "            self.work = dist.barrier(async_op=True)"})})
in_forward = Step(
    2, WhenNeeded,
    "A block is whole while it computes, and no other block is.",
    ("What does a block need before its forward, and what can go after it?",
     "Two methods: one gathers unit `number` and waits, one frees it. `gather()` only begins.",
     "before_forward: `self.units[number].gather()`, `self.units[number].work.wait()`. after_forward: "
     "`self.units[number].free()`."),
    {"After its forward a block must be freed, or all of them are whole at the end.":
         mistake(WhenNeeded, {"    def before_backward": "    def after_forward(self, number, *_):\n        pass\n\n"
                              "    def before_backward"}),
     "gather() only begins. Wait for the unit before it computes.":
         mistake(WhenNeeded, {f"{WAIT}\n    def before_backward": "\n    def before_backward"}),
     "Gather the block's own unit alone: all at once is the whole model.":
         mistake(WhenNeeded, {"self.units[number].gather()": "[each.gather() for each in self.units]"})})
in_backward = Step(
    3, WhenNeeded,
    "Gather, compute, free; gather again, compute, reduce-scatter, free: FSDP. It trains what one process trains.",
    ("What has the block lost since its forward? And who needs the block's gradients, which parts of them?",
     "before_backward gathers again, as before_forward does. arrived: when each parameter of the unit has a .grad, "
     "pack the gradients, forget them, and reduce-scatter. finish: wait, and *add* the mean to shard.grad.",
     "arrived: `if all(each.grad is not None for each in unit.parameters)`: unit.free(); `gradients = unit.pack([…])`; "
     "each.grad = None; `piece = torch.empty_like(unit.shard)`; append (unit, piece, gradients, "
     "reduce_scatter_single(piece, gradients, async_op=True)) to self.reducing."),
    {"The ranks' gradients are added up. One process has their mean: divide.":
         edit_when_needed({"piece / unit.ranks": "piece"}),
     "A second micro-batch took the place of the first. Add its gradient to that of the shard.":
         edit_when_needed({"(0 if unit.shard.grad is None else unit.shard.grad)": "0"}),
     "A rank took its part of its own gradient. It needs that of all ranks: reduce-scatter.":
         edit_when_needed({"reduce_scatter_single(piece, gradients, async_op=True)))":
               "(piece.copy_(gradients.chunk(unit.ranks)[dist.get_rank()]), dist.barrier(async_op=True))[1]))"}),
     "After its gradients have left, the unit's weights are not needed: free them.":
         edit_when_needed({"            unit.free()\n            self.finish()": "            self.finish()"}),
     "The whole gradients must go when they have been packed: set each .grad to None.":
         edit_when_needed({"                each.grad = None": "                pass"})})
ahead = Step(
    4, MyFSDP,
    "While a block computes, the next one travels, in forward and in backward.",
    ("Which unit comes after this one in forward? And in backward? When must its gather begin, so that it travels "
     "while this one computes?",
     "Gather this unit, gather the next, wait for this one alone. After the last block of forward there is none.",
     "before_forward: gather `number`, then, `if number + 1 < len(self.units)`, gather `number + 1`, then wait for "
     "`number`. before_backward: the same with `number - 1`."),
    {"Each block is gathered when it is needed. Begin with the next one, too, before you wait.": WhenNeeded,
     "In backward the next block is the one before.": edit({"number - 1].gather()": "number].gather()"}),
     "In backward you gather ahead, and in forward not.":
         edit({"number + 1 < len(self.units)": "False"}),
     "You wait for the next unit, too, before this one computes, so that nothing travels meanwhile. Wait for this one "
     "alone.": edit({AHEAD[0]: f"{AHEAD[0]}            self.units[number + 1].work.wait()\n",
                    AHEAD[1]: f"{AHEAD[1]}        self.units[number - 1].work.wait()\n"})})
clip = Step(
    5, MyFSDP,
    "The norm is that of the whole gradient, on all ranks the same, for one all-reduce of one number.",
    ("Each rank has a part of the gradient. What do the ranks know together of its length?",
     "The square of a length is the sum of the squares of its parts. Which collective adds up over the ranks?",
     "`squares = sum(shard.grad.square().sum() for shard in self.shards)`, `dist.all_reduce(squares)`. The factor is "
     "`(max_norm / (squares.sqrt() + 1e-6)).clamp(max=1)`, as in clip_grad_norm_."),
    {"Each rank has clipped by the norm of its own shards, so each by another factor. The norm is that of all.":
         OwnNorm,
     "A norm is no sum of norms: add up squares, then take the root.":
         edit({"sum(shard.grad.square().sum() for": "sum(shard.grad.norm() for", "squares.sqrt()": "squares"}),
     "A gradient that is short enough must stay as it is, and a longer one gets that norm.":
         edit({"        dist.all_reduce(squares)": "        dist.all_reduce(squares)\n        squares *= 0"})})


# ---------------------------------------------------------------------------------------------------- the choice

FITTED = Path("results/live/13_fit.json")  # of this machine; where the lesson has not measured yet, a recorded one
RECORDED = Path("results/recorded/lessons/13_fit.json")


def my_choice():
    return 2, 3


@exercise(
    solution=my_choice,
    hint=("Halving what a rank computes at one time nearly halves the activations, and sends everything once more.",
          "A recomputed block keeps its input alone. Try a number of micro-batches, then the fewest blocks with which "
          "it fits.",
          "The next cell draws all choices: each point below the line fits. Of those, which has no cheaper neighbour "
          "that fits?"),
    mistakes={
        "Recomputing alone leaves the whole batch's logits and one block's activations: make the micro-batches "
        "smaller, too.": lambda: (1, 4),
        "Each micro-batch sends everything once more, and each recomputed block computes once more: take as few as "
        "fit.": lambda: (4, 4)})
def fit(answer):
    """It fits, and neither fewer micro-batches nor fewer recomputed blocks would."""
    measured = json.loads((FITTED if FITTED.exists() else RECORDED).read_text())
    answer = answer()
    most = {(row["micro_batches"], row["recomputed"]): row["most"] for row in measured["choices"]}
    if not isinstance(answer, tuple | list) or tuple(answer) not in most:
        raise Wrong(f"Give (micro-batches, recomputed blocks), such as {next(iter(most))}.")
    micro_batches, recomputed = answer
    budget = measured["budget"]
    yield Case(most[micro_batches, recomputed] <= budget, True,
               f"At its most a rank holds {most[micro_batches, recomputed] / 1e6:.1f} MB: more than "
               f"{budget / 1e6:g}.")
    for other, what in [((micro_batches // 2, recomputed), "fewer micro-batches"),
                        ((micro_batches, recomputed - 1), "fewer recomputed blocks")]:
        yield Case(most.get(other, math.inf) <= budget, False, f"It fits, and so does {other}, with {what}.")
