"""Exercises of lesson 14: two layers, their backward, and an order of work. What is right comes from one process."""

import inspect
import shutil
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from course.exercise import PACKED, Case, Wrong, edited, exercise, mistake
from course.lesson import some
from course.on_ranks import ExerciseOnRanks, Measurement, patched
from examples.minimal_gpt import GPT, loss_of
from lessons.l14_shard_computed.schedule import computed, most_kept
from lessons.start.ours import tensor
from lessons.start.ours.gpipe import my_order as gpipe
from lessons.start.ours.pipe import my_order
from lessons.start.ours.tensor import Column, Copy, Row, Sum, parallelize

CONTEXT, WIDTH, LAYERS, CROPS = 8, 16, 2, 3
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce",
               "all_gather_object", "all_to_all_single")


# ------------------------------------------------------------------------------- exercises 1 and 2: mine/tensor.py


def wrong(edits):
    """A typical mistake: the course's tensor.py with other lines."""
    return mistake(parallelize, edits, whole_file=True)


PIECES = {name: f"whole.weight.chunk(dist.get_world_size(group), dim={dim})[dist.get_rank(group)]"
          for name, dim in (("Column", 0), ("Row", 1))}
BOTH = "piece.detach().clone()"
SUMMED = "        dist.all_reduce(x, group=group)\n"
BACK = "        gradient = gradient.clone()  # autograd may hand the same memory to others\n" \
       "        dist.all_reduce(gradient, group=ctx.group)\n"
OF_SUM = "    def backward(ctx, gradient):  # each part is in the sum once\n"
NO_BACKWARD = {BACK: ""}  # tensor.py as exercise 1 leaves it


def measure_tensor(step, function, context):
    """What parallelize() makes of a GPT, beside the same GPT in one process."""
    torch.manual_seed(0)
    whole = GPT(CONTEXT, WIDTH, LAYERS).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.mul_(5)  # as after some training: an MLP then changes the scores by more than rounding
    model = GPT(CONTEXT, WIDTH, LAYERS).double()
    model.load_state_dict(whole.state_dict())
    windows, calls = torch.randint(256, (CROPS, CONTEXT + 1)), []

    def noted(name):
        call = getattr(dist, name)
        return lambda *args, **options: calls.append(name) or call(*args, **options)

    with patched(function, **{name: noted(name) for name in COLLECTIVES}):
        parallel, _ = function(model, partial(torch.optim.SGD, lr=0.1))
        calls.clear()
        scores, right = parallel(windows[:, :-1]), whole(windows[:, :-1])
        if not torch.is_tensor(scores) or scores.shape != right.shape:
            raise Wrong("The model with your two layers returned no scores.")
        seen = {"forward": list(calls), "off": (scores - right).abs().max().item() / right.abs().max().item(),
                "pieces": [len(getattr(block, name).weight.flatten()) / (4 * WIDTH**2)
                           for block in parallel.module.blocks for name in ("up", "down")],
                "memory": max(getattr(block, name).weight.untyped_storage().nbytes() / (8 * 4 * WIDTH**2)
                              for block in parallel.module.blocks for name in ("up", "down"))}
        if step == 1 or not all(context.gather("forward", seen["off"] < 1e-9)):
            return seen
        loss_of(whole, windows).backward()
        loss = loss_of(parallel, windows)
        calls.clear()
        loss.backward()
    seen |= {"backward": list(calls), "gradients": {}}
    for name, parameter in whole.named_parameters():
        wanted = parameter.grad
        if name.endswith(("up.weight", "down.weight")):
            wanted = wanted.chunk(context.world_size, dim=int(name.endswith("down.weight")))[context.rank]
        got = dict(parallel.module.named_parameters())[name].grad
        if got is None or got.shape != wanted.shape:
            raise Wrong(f"After backward {name} has no gradient of its shape.")
        times = (got.flatten() @ wanted.flatten() / wanted.square().sum()).item()
        seen["gradients"][name] = [round(times, 6), round(((got - times * wanted).norm() / wanted.norm()).item(), 6)]
    return seen


def tensor_cases(step, ranks):
    on, share = f"On {len(ranks)} ranks", 1 / len(ranks)
    for rank, seen in enumerate(ranks):
        yield Case(round(max(seen["off"], 1e-9), 9), 1e-9, f"{on}: the scores of rank {rank} are not those of one "
                   f"process, off by {seen['off']:.1%} of the largest." + ("" if seen["forward"] else " Nothing was "
                   "sent."))
        yield Case(seen["forward"], ["all_reduce"] * LAYERS, f"{on}: the scores are right. In a forward rank {rank} "
                   f"called {', '.join(seen['forward']) or 'no collective'}; the model has {some(LAYERS, 'block')}, "
                   "and one all_reduce for each is enough.")
        yield Case(seen["pieces"], [share] * 2 * LAYERS, f"{on}: the scores are right, but of the weights of `up` and "
                   f"`down` rank {rank} has {', '.join(f'{each:.0%}' for each in seen['pieces'])}.")
        yield Case(max(seen["memory"], share), share, f"{on}: a piece of a weight still takes the memory of "
                   f"{seen['memory']:.0%} of the weight on rank {rank}. A view keeps what it is a view of.")
    if step == 1:
        return
    for rank, seen in enumerate(ranks):
        for name, (times, off) in seen["gradients"].items():
            how = (f"points elsewhere, off by {off:.1%}" if off else f"is {times:.4g} times as large")
            yield Case([times, off], [1, 0], f"{on}: the scores are right. After backward rank {rank}'s gradient of "
                       f"{name} {how}.", rel_tol=1e-5)
        yield Case(seen["backward"], ["all_reduce"] * LAYERS, f"{on}: the gradients are right. In a backward rank "
                   f"{rank} called {', '.join(seen['backward'])}; one all_reduce for each of the "
                   f"{some(LAYERS, 'block')} is enough.")


class OfTensor(ExerciseOnRanks):
    def __init__(self, step, shown, hint, mistakes, solution):
        def check(ranks):
            yield from tensor_cases(step, ranks)

        check.__doc__, check.__name__ = shown, f"tensor_{step}"
        measurement = Measurement(partial(measure_tensor, step), "parallelize", preload=(__name__,))
        super().__init__(check, parallelize, hint, mistakes, measurement, (2, 4))
        self.shown = solution

    def solution(self):
        if self.check.__code__.co_filename.startswith(PACKED):  # a learner's copy
            return super().solution()
        print("\n\n".join(inspect.getsource(each) for each in self.shown))


layers = OfTensor(
    1, "Each rank has its piece of both weights, and one all-reduce per MLP makes the output whole. The hidden values "
       "are never whole anywhere.",
    ("Write down x·A, then gelu, then ·B for two ranks, with A cut once by its rows and once by its columns. After "
     "which of the two can gelu be computed before anything is sent?",
     "Column keeps some of the outputs of `up`. PyTorch's weight is [outputs, inputs]: these are rows of the tensor. "
     "Row keeps, of `down`, the inputs that belong to the same hidden values. What a rank then has is a part of a sum.",
     "`whole.weight.chunk(dist.get_world_size(group), dim=…)[dist.get_rank(group)]`, dim 0 in Column and 1 in Row, as "
     "`nn.Parameter(piece.detach().clone())`. Sum.forward: `x = x.clone()`, `dist.all_reduce(x, group=group)`, "
     "`return x`."),
    {"What a rank has after `down` is its part of a sum. Sum.forward must add up the parts.": wrong({SUMMED: ""}),
     "The parts were averaged. They are parts of a sum.":
         wrong({SUMMED: f"{SUMMED}        x /= dist.get_world_size(group)\n"}),
     "PyTorch's weight is [outputs, inputs]. Which of its dimensions are the hidden values, in `up` and in `down`?":
         wrong({PIECES["Column"]: PIECES["Column"].replace("dim=0", "dim=1"),
                PIECES["Row"]: PIECES["Row"].replace("dim=1", "dim=0")}),
     "Rows of `up` and columns of `down` must belong to the same hidden values. Here one takes every n-th, the other a "
     "block.": wrong({PIECES["Column"]: "whole.weight[dist.get_rank(group)::dist.get_world_size(group)]"}),
     "Nothing was cut: each rank has both weights whole, and the sum has each of them once per rank.":
         wrong({PIECES["Column"]: "whole.weight", PIECES["Row"]: "whole.weight"}),
     "A piece that is a view keeps the whole weight in memory: make a copy, with clone().":
         wrong({BOTH: "piece.detach()"})},
    (Sum.forward, Column.__init__, Row.__init__))
pair = OfTensor(
    2, "Forward has one all-reduce per MLP, and backward has one. Copy and Sum are each other's backward: the "
       "conjugate pair.",
    ("x goes into `up` on each rank. Through how many products did it come into the loss, and which of them does this "
     "rank's gradient know?",
     "One of the two backward must bring together what the ranks know; the other has all it needs. The gradient of a "
     "sum y = a + b is, for a, that of y.",
     "Copy.backward: `gradient = gradient.clone()`, `dist.all_reduce(gradient, group=ctx.group)`, "
     "`return gradient, None`. Sum.backward: `return gradient, None`."),
    {"x went into the products of all ranks, and this rank's gradient of x knows its own alone. Copy.backward must add "
     "up.": wrong(NO_BACKWARD),
     "Each rank's part is in the sum once, so its gradient is the gradient of the sum: Sum.backward has nothing to add "
     "up. Copy.backward has.": wrong(NO_BACKWARD | {OF_SUM: f"{OF_SUM}{BACK.replace('ctx.group', 'None')}"}),
     "Copy.backward is right. Sum.backward adds up what is the same on all ranks: the pieces' gradients are too large, "
     "once for each MLP behind them.": wrong({OF_SUM: f"{OF_SUM}{BACK.replace('ctx.group', 'None')}"}),
     "Copy.backward takes the mean. The gradient of x is the sum: each rank had other hidden values.":
         wrong({BACK: f"{BACK}        gradient /= dist.get_world_size(ctx.group)\n"}),
     "Sum.backward divides by the number of ranks. This is no mean: each part counts with 1.":
         wrong({OF_SUM: f"{OF_SUM}        gradient = gradient / dist.get_world_size()\n"})},
    (Copy.backward, Sum.backward))


def first_program():
    """Path of a train_gpt.py with tensor.py as of exercise 1: the learner's where its check has found it right."""
    folder = Path("results/live/14_step_1")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy("mine/train_gpt.py", folder)
    own = Path(layers.file).read_text() if layers.file else edited(inspect.getsource(tensor), NO_BACKWARD)
    Path(folder, "tensor.py").write_text(own)
    return folder / "train_gpt.py"


# ------------------------------------------------------------------------------------ exercise 3: mine/pipe.py


@exercise(
    solution=my_order,
    hint=("Draw two ranks and four micro-batches. What can rank 0 do while its first micro-batch is on rank 1? And "
          "what should the last rank do as soon as a forward has ended?",
          "Rank r begins with as many forwards as there are ranks from it to the end, if there are so many "
          "micro-batches. Then it takes turns: a backward, a forward, until no forward is left.",
          "`ahead = min(ranks - rank, micro_batches)` forwards. Then for each number: `(\"backward\", number)`, and "
          "where `ahead + number < micro_batches` `(\"forward\", ahead + number)`."),
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
    for ranks, micro_batches in [(2, 4), (3, 5), (4, 2), (4, 8)]:
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
        yield Case(length, shortest, f"{on} an update takes as long as {length} forwards; {shortest} are enough. A "
                                     f"rank waits {1 - 2 * micro_batches / length:.0%} of the time, in place of "
                                     f"{1 - 2 * micro_batches / shortest:.0%}.")
        for rank, work in enumerate(orders):
            kept, fewest = most_kept(work), min(micro_batches, ranks - rank)
            yield Case(max(kept, fewest), fewest,
                       f"{on} your order is as short as can be, but rank {rank} keeps the activations of {kept} "
                       f"micro-batches at one time ({shown(work)}); {fewest} would do.")


def shown(work):
    return " ".join(f"{kind[:1].upper()}{number}" for kind, number in work) or "nothing"
