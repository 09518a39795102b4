"""The exam of lesson 16: a program of one process, made data-parallel, with DDP and then with FSDP2.

There are two exam versions, text_a.py and text_b.py. The learner's `train(args)` and that of its text run on the same
small data, in float64. What each update takes, computes and sends is noted; `exam_cases` compares. The solution of text
B is that of text A with the edits that make text B of text A.
"""

import inspect
import io
import re
import textwrap
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

from course import exercise
from course.exercise import PACKED, Case, edited
from course.lesson import some
from course.on_ranks import ExerciseOnRanks, Measurement
from course.one_process import Recorder, times
from course.sent import Sent
from examples import minimal_gpt
from lessons.l16_language_model import notes, solution, text_a, text_b

OURS = "lessons/l16_language_model/solution.py"  # trains where no file of the learner's has been found right
UPDATES, CONTEXT, WINDOWS = 3, 8, 5  # windows of held-out text: neither 2 nor 3 ranks can share them equally
NEAR = 1e-6  # relative, of float64: rounding is far below, each mistake far above
FIGURES = re.compile(r"update (\d+),(?: loss (\d+\.\d+|nan),)? val loss (\d+\.\d+|nan)")


TEXTS = {"a": text_a, "b": text_b}


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


def measure(train, context, text, fsdp=False):
    """What this rank saw of the learner's training, each update beside that of one process. `text`: "a" or "b"."""
    accumulate, random, path = 3, Random(0), Path(context.folder, f"text{context.rank}")
    letters = [*map(chr, range(32, 127)), *["\n"] * 40]  # line breaks, and blank lines, in most crops
    path.write_text("".join(random.choices(letters, k=10 * (WINDOWS * CONTEXT + 1))))
    values = {"updates": UPDATES, "report": UPDATES, "batch": 12 * accumulate, "accumulate": accumulate, "clip": 0.4,
              "width": 8, "context": CONTEXT, "lr": 0.03,
              "text": path, "write": 2, "save": Path(context.folder, "saved.pt")}
    args = minimal_gpt.options().parse_args([f"--{name}={value}" for name, value in values.items()])
    args.fsdp = fsdp
    torch.set_default_dtype(torch.float64)
    with Watch() as one:
        TEXTS[text].train(args)
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
        yield Case([row["parts"][0] for row in rows], [first["accumulate"]] * len(rows),
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
    yield Case(names, right, f"{on}, `GPT` cannot load the file: its first names are "
               f"{', '.join(list(names)[:2])}. It needs {', '.join(list(right)[:2])}, all whole.",
               remark=f"{on} the gradients were sent {round(first['sent'])} times an update, and once would do: {wrap} "
               "may keep still in all micro-batches but the last"
               + (", where memory allows." if fsdp else ". The forward belongs under no_sync(), too.")
               if round(first["sent"]) > 1 else "")


class Exam(ExerciseOnRanks):
    """An exam about text A, whose check judges a file that imports text B's targets by text B."""

    def __init__(self, cases, hint, mistakes, fsdp=False, text="a"):
        measurement = Measurement(partial(measure, text=text, fsdp=fsdp), "train", preload=PRELOAD)
        solved = solution.train if text == "a" else mistake({}, text)
        super().__init__(cases, solved, hint, {
            message: mistake(edits, text) for message, edits in mistakes.items()}, measurement, (2, 3, 1))
        self.text = text
        self.of_b = Exam(cases, hint, mistakes, fsdp, "b") if text == "a" else None

    def verdict(self, attempt):
        if self.of_b and isinstance(attempt, str | Path) and Path(attempt).is_file() and re.search(
                r"import .*\banswer\b", Path(attempt).read_text(encoding="utf-8")):
            return self.of_b.verdict(attempt)
        outcome, message = super().verdict(attempt)
        return outcome, message.replace("Right.", f"Right, exam version {self.text.upper()}.", 1)

    def solution(self) -> None:
        if self.check.__code__.co_filename.startswith(PACKED):  # a learner's copy
            return super().solution()
        print(edited(inspect.getsource(solution), OF_TEXT[self.text]))


def mistake(edits, text="a"):
    """The solution of that text, with some of it replaced, {old: new}."""
    return exercise.mistake(solution.train, edits | OF_TEXT[text], whole_file=True)


def note(name: str | None = None) -> None:
    """Print what the course says about one of the exam's decisions; without a name, the names."""
    if name not in notes.NOTES:
        print("Notes: " + ", ".join(f'check.note("{each}")' for each in notes.NOTES))
        return
    paragraphs = textwrap.dedent(notes.NOTES[name]).strip().split("\n\n")
    print("\n\n".join(each if each.startswith("    ") else textwrap.fill(each, 100) for each in paragraphs))


def write_mean_of_means(path: str) -> str:
    """Write the solution with one deliberate mistake: each rank divides by its own number of targets."""
    Path(path).write_text(edited(inspect.getsource(solution), OWN_COUNT), encoding="utf-8")
    return path


def ddp(ranks):
    """With DDP on 1, 2 and 3 ranks your program trains, to rounding, what one process trains, from the same crops. It
    judges the whole held-out text, prints and saves once."""
    yield from exam_cases(ranks)


def fsdp(ranks):
    """With fully_shard on 1, 2 and 3 ranks your program trains, to rounding, what one process trains."""
    yield from exam_cases(ranks, fsdp=True)


OF_TEXT = {"a": {}, "b": {
    "from lessons.l16_language_model.targets import loss_of\n"
    "from lessons.l16_language_model.targets import paragraph as targets_of\n":
        "from lessons.l16_language_model.targets import answer as targets_of\n"
        "from lessons.l16_language_model.targets import loss_of\n",
    "    val_loss = validate(model, held_out)  # on":
        "    pieces, order = learnt.unfold(0, args.context + 1, args.context), []  # each is learnt once per epoch\n"
        "    val_loss = validate(model, held_out)  # on",
    "        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)\n"
    "        windows = learnt[begins[:, None] + torch.arange(args.context + 1)]\n":
        "        if len(order) < args.batch:\n"
        "            order = torch.randperm(len(pieces), generator=crops)\n"
        "        windows, order = pieces[order[:args.batch]], order[args.batch:]\n"}}
PRELOAD = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")

# The lines of the solution that mistakes replace.
SHARE, STEP = "windows[rank::ranks].chunk", "        schedule.step()\n"
WRAPPED = "DistributedDataParallel(model)"
SYNC, NO_SYNC = "if last or args.fsdp", " else wrapped.no_sync()"
SHARD = ("    if args.fsdp:\n"
         "        for part in (*model.blocks, model):"
         "  # a block's weights are gathered together; the rest with the model\n"
         "            fully_shard(part)\n")
MICRO = 'loss_of(wrapped, part, targets_of(part), "sum") / count'
BACKWARD = "(micro * ranks).backward()"
OWN_COUNT = {"        loss = 0\n": "        count = (targets_of(windows[rank::ranks]) >= 0).sum()\n        loss = 0\n",
             BACKWARD: "micro.backward()"}
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # of the mean gradient\n"
OWN_WEIGHTS = {"manual_seed(0)  # the": "manual_seed(rank)  # the"}
OWN_CROPS = {"crops = torch.Generator().manual_seed(0)": "crops = torch.Generator().manual_seed(rank)",
             SHARE: "windows.chunk"}
SUMMED = ("    dist.all_reduce(total)\n    return total.item() / (targets_of(held_out) >= 0).sum().item()")
OWN_WINDOWS = "(targets_of(held_out[rank::ranks]) >= 0).sum().item()"
MISTAKES = {
    "Each rank took the whole batch, the same on all: as many tokens per update as one process, computed by every "
    'rank. Give each rank a share of the crops, such as windows[rank::ranks]. More: `check.note("crops")`.':
        {SHARE: "windows.chunk"},
    "All ranks took the same part of the batch, so that the rest is never learnt from. windows[rank::ranks] is another "
    "part on each rank.": {SHARE: "windows[::ranks].chunk"},
    "Each rank drew a batch of its own, so that an update holds more tokens on more ranks, at the same learning rate. "
    '--batch is that of the update, of all ranks together. More: `check.note("crops")`.': OWN_CROPS,
    "The ranks drew their crops with seeds of their own. A training may do so (nanoGPT does), but nobody can compare "
    'it with one process. Draw the same on all ranks, and take a share. More: `check.note("crops")`.':
        OWN_CROPS | {"    for update in range(1,": "    args.batch //= ranks\n    for update in range(1,"},
    "Your program knows no micro-batches. Each rank divides its share into --accumulate of them, whose gradients add "
    "up.": {"chunk(args.accumulate)": "chunk(1)"},
    "That is the mean of the micro-batches' means. They hold unequal numbers of targets, so a target in a short one "
    "weighs more. Add the loss up, and divide by all targets of the update, those of the other ranks, too. More: "
    '`check.note("loss")`.': {MICRO: "loss_of(wrapped, part, targets_of(part)) / args.accumulate",
                              BACKWARD: "micro.backward()"},
    "Each rank divided by its own number of targets: the mean over the ranks is then a mean of means, and a target on "
    "a rank with few weighs more. Divide by the number of all ranks' targets. More: `check.note(\"loss\")`.": OWN_COUNT,
    "You divided by all targets of the update, and the mean over the ranks then divided once more by their number. "
    "Multiply the loss by the number of ranks before backward. Adam and the clip hide this mistake: the curve of the "
    'loss hardly shows it. More: `check.note("loss")`.': {BACKWARD: "micro.backward()"},
    "The gradients of the micro-batches added up as if each were a whole update: the gradient is as many times too "
    'large. More: `check.note("loss")`.': {MICRO: "loss_of(wrapped, part, targets_of(part))",
                                           BACKWARD: "micro.backward()"},
    'The clip is gone. It belongs behind the last backward, once per update. More: `check.note("clip")`.': {CLIP: ""},
    "The schedule counts micro-batches. It counts updates: call schedule.step() once after optimizer.step().":
        {STEP: "        for _ in range(args.accumulate):\n            schedule.step()\n"},
    "The schedule counts updates times ranks. An update is one step, on however many ranks.":
        {STEP: "        for _ in range(ranks):\n            schedule.step()\n"},
    "Weight decay acts on LayerNorm's weights and biases, too. Only parameters of two dimensions decay.":
        {'"weight_decay": 0.0': '"weight_decay": 0.1'},
    "That is the val loss of the rank's own share. Add the sums up over the ranks, then divide by all targets. More: "
    '`check.note("validation")`.': {SUMMED: f"    return total.item() / {OWN_WINDOWS}"},
    "That is the mean of the ranks' means, where a target on a rank with few weighs more. Add up sums over the ranks, "
    'and divide once. More: `check.note("validation")`.':
        {SUMMED: f"    total /= {OWN_WINDOWS}\n    dist.all_reduce(total)\n    return total.item() / ranks"},
    "The training loss that you print is that of rank 0's crops. Add it up over the ranks, as you print it for all. "
    'More: `check.note("rank 0")`.': {"            dist.all_reduce(loss)\n": ""},
    'Every rank prints. Let rank 0 print alone, what is true of all. More: `check.note("rank 0")`.':
        {"            if rank == 0:\n                print": "            if True:\n                print"},
    'Every rank writes the file, at the same time. Let rank 0 write. More: `check.note("rank 0")`.':
        {"    if rank == 0:\n        print(written)": "    if True:\n        print(written)"},
    "The output layer got a weight of its own, so that the model has other parameters and learns otherwise. "
    "head.weight and embedding.weight must stay one parameter: wrap or shard the model that GPT() has made.":
        {"GPT(args.context, args.width, args.layers)\n":
         "GPT(args.context, args.width, args.layers)\n"
         "    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())\n"},
}
FIRST = ("Mark each line of the loop: the same on all ranks, a share on each rank, or rank 0 alone. The seeds, the "
         "crops, the loss, the clip, the held-out windows, what is printed and what is saved: each is one of these.")
ddp = Exam(
    ddp,
    (FIRST,
     "The draw is the same on all ranks, and windows[rank::ranks] is a rank's share, in args.accumulate chunks. Each "
     "target of the update must weigh the same, on whatever rank and in whatever micro-batch it is: sum, and divide by "
     "the number of all. DDP averages in backward, but not under no_sync(). What needs the mean gradient comes later.",
     "count = (targets_of(windows) >= 0).sum() before you take the share. For each chunk: loss_of(wrapped, part, "
     "targets_of(part), \"sum\") / count * ranks, backward, all but the last under wrapped.no_sync(), forward too. "
     "Then clip, step, schedule. Validate: sum over held_out[rank::ranks], all_reduce, divide by all targets. "
     "Rank 0 prints the all-reduced loss, and saves model.state_dict(), not wrapped's."),
    MISTAKES | {
        "The clip came before the average: each micro-batch was clipped on its own rank. Clip once per update, after "
        'the last backward, when the gradient is the mean of all. More: `check.note("clip")`.':
            {BACKWARD: f"{BACKWARD}\n            nn.utils.clip_grad_norm_(model.parameters(), args.clip)", CLIP: ""},
        "No backward was synchronised: the last micro-batch, too, ran under no_sync(). It must run outside, and then "
        'sends what all have added up. More: `check.note("no_sync")`.': {SYNC: "if args.fsdp"},
        "no_sync() is the wrong way round: the last micro-batch ran under it, and its gradients were never averaged. "
        'All micro-batches but the last belong under it. More: `check.note("no_sync")`.':
            {SYNC: "if not last or args.fsdp"},
        "Training calls the model, and not DDP's wrapper around it: then backward sends nothing.":
            {"loss_of(wrapped, part": "loss_of(model, part"},
        "Each rank has its own first weights, and nothing made them equal. DDP would send rank 0's.":
            OWN_WEIGHTS | {"loss_of(wrapped, part": "loss_of(model, part", WRAPPED: "model", SYNC + NO_SYNC: ""},
        "The names begin with `module.`: that is the wrapper's state_dict. Save that of the model inside.":
            {"weights = get_": "weights = wrapped.state_dict() or get_"},
    })
fsdp = Exam(
    fsdp,
    ("What does fully_shard put in place of the parameters, and who holds the old ones? Which lines of the loop are "
     "collectives now, and does every rank come to each of them equally often?",
     "fully_shard takes each block, then the model, before the optimizer is made. It sends no first weights, so seed "
     "alike. Each forward gathers, so all ranks need equally many, in validation, too, and write() belongs on all. A "
     "sharded model has no no_sync(): look for set_requires_gradient_sync.",
     "for part in (*model.blocks, model): fully_shard(part). Before each micro-batch "
     "model.set_requires_gradient_sync(last). Validate on held_out.split(ROWS * ranks), of each the share "
     "[rank::ranks], which may be empty. On all ranks: get_model_state_dict(model, options=StateDictOptions("
     "full_state_dict=True, cpu_offload=True)); rank 0 saves it."),
    MISTAKES | {
        "A forward of a sharded model gathers its weights, and get_model_state_dict, too: all ranks must call both "
        "equally often. Shares of the held-out text that differ by a window may differ by a forward. More: "
        '`check.note("validation")`.':
            {"held_out.split(ROWS * ranks)": "held_out[rank::ranks].split(1)",
             "windows[rank::ranks]\n": "windows\n"},
        "That is the DDP program: fully_shard was never called. Where args.fsdp is true, it takes each block, then the "
        "model, before the optimizer is made.": {SHARD: f"    args.fsdp = False\n{SHARD}"},
        "The gradients were never reduced: set_requires_gradient_sync(True) belongs before the last micro-batch.":
            {"set_requires_gradient_sync(last)": "set_requires_gradient_sync(False)"},
        "set_requires_gradient_sync is the wrong way round: True before the last micro-batch, False before the others.":
            {"set_requires_gradient_sync(last)": "set_requires_gradient_sync(not last)"},
        "Each rank seeded its own first weights, and fully_shard sends none: the model is put together of pieces of "
        "different ones. Seed alike on all ranks, or broadcast first.": OWN_WEIGHTS,
        "The optimizer was made before fully_shard, which puts other parameters in place: it updates those that nobody "
        "uses any more.": {SHARD: "", "    crops = torch": f"{SHARD}    crops = torch"},
        "fully_shard was called for the blocks alone. What stands outside, the embedding and the last norm, stays "
        "whole on each rank, and nobody averages its gradients.":
            {"(*model.blocks, model)": "model.blocks",
             "model.set": "for part in model.blocks:\n                    part.set"},
        "The file holds a shard, as state_dict() of a sharded model does. get_model_state_dict with "
        "full_state_dict=True makes it whole. All ranks call it.":
            {"weights = get_": "weights = model.state_dict() or get_"},
    }, fsdp=True)
ddp_b, fsdp_b = ddp.of_b, fsdp.of_b
