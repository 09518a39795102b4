"""The exam of lesson 16: minimal_gpt.py, made data-parallel, with DDP and then with FSDP2.

The learner's `train(args)` and minimal_gpt.py's run on the same small text, in float64. What each update takes,
computes and sends is noted; `exam_cases` compares.
"""

import inspect
import io
import math
import re
import zlib
from collections import Counter
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from random import Random
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course.exercise import Case, edited, exercise
from course.lesson import some
from course.on_ranks import ExerciseOnRanks, Measurement
from course.one_process import Recorder, times
from course.sent import Sent
from examples import minimal_gpt, minimal_gpt_ddp

UPDATES, CONTEXT, WINDOWS = 3, 8, 5  # windows of held-out text: neither 2 nor 3 ranks can share them equally
NEAR = 1e-6  # relative, of float64: rounding is far below, each mistake far above
FIGURES = re.compile(r"update (\d+),(?: loss (\d+\.\d+|nan),)? val loss (\d+\.\d+|nan)")


# How busy a device is
def my_mfu(speed, parameters, layers, width, context, peak):
    return speed * (6 * parameters + 12 * layers * width * context) / peak


@exercise(
    solution=my_mfu,
    hint="Operations for a token: 2 for each parameter in forward, twice as many in backward; and 12 · layers · width "
    "· context for the attention. Times tokens a second, over the operations a second at best.",
    mistakes={
        "That is forward alone. Backward has two products for each product of forward: 6 operations for a parameter.":
            lambda speed, parameters, layers, width, context, peak:
                speed * (2 * parameters + 12 * layers * width * context) / peak,
        "The products of the attention have no parameters: they add 12 · layers · width · context for a token.":
            lambda speed, parameters, layers, width, context, peak: speed * 6 * parameters / peak,
        "`speed` counts tokens, not sequences: do not multiply by the context.":
            lambda speed, parameters, layers, width, context, peak:
                speed * context * (6 * parameters + 12 * layers * width * context) / peak,
    },
)
def mfu(answer):
    """You count as the field does: what the model needs, over what the device could do. Operations that a program adds,
    such as recomputed activations, count as nothing."""
    for numbers in [(1.2e4, 4e5, 2, 128, 64, 6e10), (4e5, 7e9, 32, 4096, 4096, 8 * 989e12)]:
        got, right = answer(*numbers), numbers[0] * (6 * numbers[1] + 12 * math.prod(numbers[2:5])) / numbers[5]
        yield Case(got, right, f"For (speed, parameters, layers, width, context, peak) = {numbers} you gave {got}; "
                               f"the MFU is {right:.4g}.")


# The exam
class Watch:
    """Within `with`: what a training takes, computes, sends, prints and saves. `rows`: a dict for each update."""

    def __init__(self):
        self.model, self.wrapped = None, False  # called by DDP
        self.rows, self.crops, self.parts, self.saved = [], [], 0, []
        self.printed, self.sent, self.values = io.StringIO(), Sent(), Recorder(self.after)

    def __enter__(self):
        self.hooks = [register_module_forward_pre_hook(self.forward), register_optimizer_step_pre_hook(self.before)]
        self.others = [mock.patch.object(torch, "save", self.save), redirect_stdout(self.printed), self.sent,
                       self.values]
        for other in self.others:
            other.__enter__()
        return self

    def __exit__(self, *error):
        for other in reversed(self.others):
            other.__exit__(*error)
        for hook in self.hooks:
            hook.remove()

    def save(self, saved, file):
        names = saved.keys() if isinstance(saved, dict) else ()
        self.saved.append({name: list(saved[name].shape) for name in names if torch.is_tensor(saved[name])}
                          if not any(hasattr(saved[name], "full_tensor") for name in names) else {"a shard": []})

    def forward(self, module, inputs):
        self.wrapped |= isinstance(module, DistributedDataParallel)
        is_gpt = any(each.__name__ == "GPT" for each in type(module).__mro__)  # each program has a class of its own
        if is_gpt and torch.is_grad_enabled():
            self.model = self.model or module
            self.parts += 1
            self.crops += [zlib.crc32(bytes(crop.tolist())) for crop in inputs[0]]

    def before(self, optimizer, args, kwargs):
        gradients = sum(size for (_, name, _), size in self.sent.bytes.items() if "reduce" in name)
        decayed = sum(parameter.numel() for group in optimizer.param_groups if group["weight_decay"]
                      for parameter in group["params"])
        self.rows.append({"rate": optimizer.param_groups[0]["lr"], "decayed": decayed, "parts": self.parts,
                          "crops": self.crops, "sent": gradients})

    def after(self):
        self.crops, self.parts = [], 0
        self.sent.bytes.clear()


def measure(train, context, fsdp=False):
    """What this rank saw of the learner's training, each update beside that of one process."""
    accumulate, random, path = 3, Random(0), Path(context.folder, f"text{context.rank}")
    path.write_text("".join(chr(random.randint(1, 127)) for _ in range(10 * (WINDOWS * CONTEXT + 1))))
    values = {"updates": UPDATES, "report": UPDATES, "batch": 12 * accumulate, "accumulate": accumulate, "clip": 0.4,
              "width": 8, "context": CONTEXT, "lr": 0.03,
              "text": path, "write": 2, "save": Path(context.folder, "saved.pt")}
    args = minimal_gpt.options().parse_args([f"--{name}={value}" for name, value in values.items()])
    args.fsdp = fsdp
    torch.set_default_dtype(torch.float64)
    with Watch() as one:
        minimal_gpt.train(args)
    with Watch() as mine:
        train(args)
    theirs, right = mine.values.record(), one.values.record()
    norms = context.gather("weights", [flat(weights).norm().item() for weights in theirs.weights])
    seen = {"batch": args.batch, "accumulate": accumulate, "updates": [len(mine.rows), UPDATES],
            "printed": [FIGURES.findall(each.printed.getvalue()) for each in (mine, one)],
            "saved": [mine.saved, one.saved], "rows": []}
    if min(map(len, norms)) != UPDATES or len(mine.rows) != UPDATES:
        return seen
    seen["tied"] = mine.model.head.weight is mine.model.embedding.weight
    if theirs.first.keys() != right.first.keys():
        return seen
    each_sends = 2 - fsdp  # an all-reduce sends what two reduce-scatters send
    once = each_sends * (context.world_size - 1) / context.world_size * flat(right.first).nbytes
    return seen | {
        "sent": mine.rows[1]["sent"] / (once or 1), "wrapped": fsdp or mine.wrapped,
        "sharded": all(hasattr(each, "full_tensor") for each in mine.model.parameters()),
        "first": off(theirs.first, right.first, flat(right.first).norm()),
        "rows": [{name: [row[name], of_one[name]] for name in ("rate", "decayed", "parts", "crops")}
                 | {"apart": max(of_ranks) - min(of_ranks) > NEAR * max(of_ranks)}
                 | compared(theirs, right, update)
                 for update, (row, of_one, of_ranks) in enumerate(
                     zip(mine.rows, one.rows, zip(*norms, strict=True), strict=True))]}


def flat(values):
    return torch.cat([value.flatten() for value in values.values()])


def off(these, those, length):
    return ((flat(these) - flat(those)).norm() / length).item()


def compared(theirs, right, update):
    factor, rest = times(right.gradients[update], theirs.gradients[update])
    way = flat(right.weights[update]) - flat(right.first)
    return {"times": factor, "off": rest, "weights": off(theirs.weights[update], right.weights[update], way.norm())}


def exam_cases(ranks, fsdp=False):
    """Causes come before their consequences."""
    on, first, wrap = f"On {some(len(ranks), 'rank')}", ranks[0], "fully_shard" if fsdp else "DDP"
    yield Case([seen["updates"][0] for seen in ranks], [UPDATES] * len(ranks),
               f"{on}, rank by rank, the optimizer made {[seen['updates'][0] for seen in ranks]} updates of the model "
               f"that was trained, and --updates said {UPDATES}.")
    yield Case(all(seen["tied"] for seen in ranks), True, f"{on}, `head` and `embedding` no longer share one weight.")
    yield Case([rank for rank, seen in enumerate(ranks) if seen["first"] > NEAR], [],
               f"{on}, training does not begin with the weights of one process on each rank.")
    yield Case([rank for rank, seen in enumerate(ranks) if fsdp and not seen["sharded"]], [],
               f"{on}, the model that was trained is not sharded: fully_shard has not taken all its parameters.")
    for update, rows in enumerate(zip(*(seen["rows"] for seen in ranks), strict=True), 1):
        drawn, wanted = sum((Counter(row["crops"][0]) for row in rows), Counter()), Counter(rows[0]["crops"][1])
        at = f"{on}, in update {update}"
        yield Case([drawn.total(), len(drawn), drawn == wanted], [wanted.total(), len(wanted), True],
                   f"{at} the ranks together took {drawn.total()} crops, {len(drawn)} of them different. One process "
                   f"takes {wanted.total()}" + (", and other ones." if drawn.total() == wanted.total() else "."))
        yield Case([row["parts"][0] for row in rows], [row["parts"][1] for row in rows],
                   f"{at} the ranks made {[row['parts'][0] for row in rows]} micro-batches, and --accumulate said "
                   f"{first['accumulate']}.")
        yield Case([row["decayed"][0] for row in rows], [row["decayed"][1] for row in rows],
                   f"{at} weight decay acts on {rows[0]['decayed'][0]} values. The matrices have "
                   f"{rows[0]['decayed'][1]}.")
        rate, right = rows[0]["rate"]
        yield Case(rate, right, f"{at} the learning rate is {rate:.4g}, and {right:.4g} with one process.")
        yield Case(rows[0]["apart"] and not first["wrapped"], False, f"{at} the ranks' weights drift apart: training "
                   "does not call the wrapper that DistributedDataParallel() has made.")
        yield Case(rows[0]["apart"], False, f"{at} the ranks' weights drift apart: they "
                   "made their update with different gradients. A mean gradient is the same on all.")
        factor, rest = rows[0]["times"], rows[0]["off"]
        yield Case([round(factor, 5), round(rest, 5)], [1.0, 0.0],
                   f"{at} the gradient that the optimizer sees is {factor:.3f} times that of one process"
                   + (f", and points elsewhere: off by {rest:.0%}." if rest > NEAR else "."))
        yield Case(rows[0]["weights"] < NEAR, True, f"{at} the gradient is that of one process, but the weights move "
                   f"elsewhere, off by {rows[0]['weights']:.0%}.")
    printing = [rank for rank, seen in enumerate(ranks) if seen["printed"][0]]
    yield Case(printing, [0], f"{on}, {some(len(printing), 'rank')} printed lines with `update`, `loss` and `val loss`."
               " Rank 0 prints, for all.")
    mine, one = first["printed"]
    for name, place in (("val loss", 2), ("loss", 1)):
        got, right = ([float(line[place]) for line in lines if line[place]] for lines in (mine, one))
        yield Case(got, right, f"{on}, the {name} that rank 0 printed last is {(got or ['missing'])[-1]}, and "
                   f"{right[-1]} with one process.", rel_tol=5e-5)
    saved = [len(seen["saved"][0]) for seen in ranks]
    yield Case(saved, [1] + [0] * (len(ranks) - 1), f"{on}, {sum(saved)} files were written, rank by rank {saved}. "
               "Rank 0 alone writes one.")
    [names], [right] = first["saved"]
    yield Case(names, right, f"{on}, minimal_gpt.py's model cannot load the file: its first names are "
               f"{', '.join(list(names)[:2])}. It needs {', '.join(list(right)[:2])}, all whole.",
               remark=f"{on} the gradients were sent {round(first['sent'])} times an update, and once would do: {wrap} "
               "may keep still in all micro-batches but the last"
               + (", where memory allows." if fsdp else ". The forward belongs under no_sync(), too.")
               if round(first["sent"]) > 1 else "")


def ddp(ranks):
    """With DDP on 1, 2 and 3 ranks your program trains, to rounding, what minimal_gpt.py trains, from the same crops.
    It judges the whole held-out text, prints and saves once."""
    yield from exam_cases(ranks)


def fsdp(ranks):
    """With fully_shard on 1, 2 and 3 ranks your program trains, to rounding, what minimal_gpt.py trains."""
    yield from exam_cases(ranks, fsdp=True)


def changed(*edits_and_args):
    """minimal_gpt_ddp.py's train, with some of its text replaced: {old: new}."""
    edits, args = edits_and_args
    namespace = {"__name__": "changed"}
    exec(edited(inspect.getsource(minimal_gpt_ddp), edits), namespace)
    namespace["train"](args)


def mistake(edits):
    return partial(changed, edits)


SHARE, DRAWN, STEP = "begins[rank::ranks].chunk", "(args.batch,)", "        schedule.step()\n"
WRAPPED = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
SYNC, NO_SYNC = "if last or args.fsdp", " else wrapped.no_sync()"
SHARD = (
    "    if args.fsdp:\n"
    "        policy = MixedPrecisionPolicy("
    "  # halves what is gathered; gradients add up in float32, as DDP's do\n"
    "            param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if args.bf16 else MixedPrecisionPolicy()\n"
    "        for part in (*model.blocks, model):  # a block's weights are gathered together; the rest with the model\n"
    "            fully_shard(part, mp_policy=policy)\n")
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # of the mean gradient"
OWN_WEIGHTS = {"manual_seed(0)  # the": "manual_seed(rank)  # the"}
OWN = {"crops = torch.Generator().manual_seed(0)": "crops = torch.Generator().manual_seed(rank)"}
CLIPPED_EARLY = {"                micro.backward()": "                micro.backward()\n            "
                 "nn.utils.clip_grad_norm_(model.parameters(), args.clip)", f"        {CLIP}\n": ""}
MISTAKES = {
    "Each rank took the whole batch, the same on all: as many tokens an update as one process, computed by every rank. "
    "Take the rank's own share of `begins`, such as begins[rank::ranks].": mistake({SHARE: "begins.chunk"}),
    "All ranks took the same part of the batch, so that the rest is never learnt from. begins[rank::ranks] is another "
    "part on each rank.": mistake({SHARE: "begins[::ranks].chunk"}),
    "Each rank drew a batch of its own, so that an update holds more tokens on more ranks, at the same learning rate. "
    "--batch is that of the update: divide it by the ranks.": mistake(OWN | {SHARE: "begins.chunk"}),
    "The ranks drew their crops with seeds of their own. A training may do so (nanoGPT does), but nobody can compare "
    "it with one process. Draw the same on all ranks, and take a share.":
        mistake(OWN | {SHARE: "begins.chunk", DRAWN: "(args.batch // ranks,)"}),
    "Divide the loss of each micro-batch by their number: backward adds gradients up. Adam divides by the gradient's "
    "length, and so does the clip: the curve of the loss hardly shows this mistake.":
        mistake({" / args.accumulate\n": "\n"}),
    "You divided by the number of ranks, too. The mean over the ranks is taken for you.":
        mistake({"/ args.accumulate\n": "/ args.accumulate / ranks\n"}),
    "The clip came before the average: each micro-batch was clipped on its own rank. Clip once an update, after the "
    "last backward, when the gradient is the mean of all.": mistake(CLIPPED_EARLY),
    "The schedule counts micro-batches. It counts updates: call schedule.step() once after optimizer.step().":
        mistake({STEP: "        for _ in range(args.accumulate):\n            schedule.step()\n"}),
    "The schedule counts updates times ranks. An update is one step, on however many ranks.":
        mistake({STEP: "        for _ in range(ranks):\n            schedule.step()\n"}),
    "Weight decay acts on LayerNorm's weights and biases, too. Only parameters of two dimensions decay.":
        mistake({'"weight_decay": 0.0': '"weight_decay": 0.1'}),
    "That is the val loss of the rank's own share. Add the sums up over the ranks, then divide by all predictions.":
        mistake({"    dist.all_reduce(total)\n    return total.item() / held_out[:, 1:].numel()":
                 "    return total.item() / held_out[rank::ranks, 1:].numel()"}),
    "That is the mean of the ranks' means, where a window on a rank with few weighs more. Add up sums over the ranks, "
    "and divide once.": mistake({"    dist.all_reduce(total)\n    return total.item() / held_out[:, 1:].numel()":
                                "    total /= held_out[rank::ranks, 1:].numel()\n    dist.all_reduce(total)\n"
                                "    return total.item() / ranks"}),
    "The training loss that you print is that of rank 0's crops. Average it over the ranks, as you print it for all.":
        mistake({"            dist.all_reduce(loss)\n": "            loss *= ranks\n"}),
    "Every rank prints. Let rank 0 print alone, what is true of all.":
        mistake({"            if rank == 0:\n                print": "            if True:\n                print"}),
    "Every rank writes the file, at the same time. Let rank 0 write.":
        mistake({"    if rank == 0:\n        print(written)": "    if True:\n        print(written)"}),
    "The output layer got a weight of its own, so that the model has other parameters and learns otherwise. "
    "head.weight and embedding.weight must stay one parameter: wrap or shard the model that GPT() has made.":
        mistake({"GPT(args.context, args.width, args.layers).to(args.device)\n":
                 "GPT(args.context, args.width, args.layers).to(args.device)\n"
                 "    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())\n"}),
}
HINT = (
    "Go through the loop from the top. Which lines must do the same on all ranks (the seed, the draw of `begins`)? "
    "Which take the rank's own share (crops, held-out windows)? Where does the mean over the ranks arise, and what "
    "must come after it (the clip)? What does one rank do alone (print, save)? ")
exam = partial(ExerciseOnRanks, solution=minimal_gpt_ddp.train, ranks=(2, 3, 1))
PRELOAD = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")
ddp = exam(
    ddp,
    hint=HINT + "DDP averages in the backward that follows a forward outside of no_sync(): only in that of the last "
    "micro-batch.",
    mistakes=MISTAKES | {
        "No backward was synchronised: the last micro-batch, too, ran under no_sync(). It must run outside, and then "
        "sends what all have added up.": mistake({SYNC: "if args.fsdp"}),
        "no_sync() is the wrong way round: the last micro-batch ran under it, and its gradients were never averaged. "
        "All micro-batches but the last belong under it.": mistake({SYNC: "if not last or args.fsdp"}),
        "Training calls the model, and not DDP's wrapper around it: then backward sends nothing.":
            mistake({"loss_of(wrapped, windows)": "loss_of(model, windows)"}),
        "Each rank has its own first weights, and nothing made them equal. DDP would send rank 0's.":
            mistake(OWN_WEIGHTS | {"loss_of(wrapped, windows)": "loss_of(model, windows)", WRAPPED: "model",
                                   SYNC + NO_SYNC: ""}),
        "The names begin with `module.`: that is the wrapper's state_dict. Save that of the model inside.":
            mistake({"weights = get_": "weights = wrapped.state_dict() or get_"}),
    },
    measurement=Measurement(measure, "train", preload=PRELOAD))
fsdp = exam(
    fsdp,
    hint=HINT + "fully_shard takes each block, then the model, before the optimizer is made. It sends no first "
    "weights, so seed alike. model.set_requires_gradient_sync(last) stands in place of no_sync(). Each forward "
    "gathers, so all ranks need equally many, in validation, too. get_model_state_dict makes "
    "the weights whole, on all ranks.",
    mistakes={
        "A forward of a sharded model gathers its weights, and get_model_state_dict, too: all ranks must call both "
        "equally often. Shares of the held-out text that differ by a window may differ by a forward.":
            mistake({"held_out.split(ROWS * ranks)": "held_out[rank::ranks].split(1)",
                     "windows[rank::ranks]": "windows"}),
        "That is the DDP program: fully_shard was never called. Where args.fsdp is true, it takes each block, then the "
        "model, before the optimizer is made.": mistake({SHARD: f"    args.fsdp = False\n{SHARD}"}),
        "The gradients were never reduced: set_requires_gradient_sync(True) belongs before the last micro-batch.":
            mistake({"set_requires_gradient_sync(last)": "set_requires_gradient_sync(False)"}),
        "set_requires_gradient_sync is the wrong way round: True before the last micro-batch, False before the others.":
            mistake({"set_requires_gradient_sync(last)": "set_requires_gradient_sync(not last)"}),
        "Each rank seeded its own first weights, and fully_shard sends none: the model is put together of pieces of "
        "different ones. Seed alike on all ranks, or broadcast first.":
            mistake(OWN_WEIGHTS),
        "The optimizer was made before fully_shard, which puts other parameters in place: it updates those that nobody "
        "uses any more.": mistake({
            SHARD: "", "    crops = torch": f"{SHARD}    crops = torch"}),
        "fully_shard was called for the blocks alone. What stands outside, the embedding and the last norm, stays "
        "whole on each rank, and nobody averages its gradients.":
            mistake({"(*model.blocks, model)": "model.blocks",
                     "model.set": "for part in model.blocks:\n                    part.set"}),
        "The file holds a shard, as state_dict() of a sharded model does. get_model_state_dict with "
        "full_state_dict=True makes it whole. All ranks call it.":
            mistake({"weights = get_": "weights = model.state_dict() or get_"}),
    },
    measurement=Measurement(partial(measure, fsdp=True), "train", preload=PRELOAD))
