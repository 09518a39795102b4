"""Does a program train on several ranks what it trains in one process?

    python -m course.one_process mine/train.py --images 1152 --batch 192
    python -m course.one_process --ranks 2,3,4 --updates 12 PROGRAM ARGS…

It starts the program on one rank, on 2 and on 3, all in float64 (torch's default dtype, which the program must follow),
notes the weights and gradients of the first updates, and answers two questions of each number of ranks. Are all ranks
one model? Is it the model of one process, to a relative 1e-10? If not: in which update and which tensor they part, and
by how much. Status 0: yes to all; 1: no; 2: it could not be asked.

The program states its *global* batch, the images per update of all ranks together, and the ranks share it. The batch
and the number of images can be divided by each number of ranks. Dropout, BatchNorm and random augmentation are not
those of one process, by definition: where the program has a module of the first two, the answer says so.

In a program of one's own: `with Recorder() as record: train()`, and `parting(one, other)` of two records.
"""

import argparse
import os
import runpy
import sys
import tempfile
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course import failures, processes, shortcuts
from course.lesson import ROOT, some
from trainer import files, options

NEAR = 1e-10  # of the largest value of a tensor: float64 rounds at 1e-16, and some updates add up
LIMIT = 120  # seconds for all starts of a program
Values = dict[str, torch.Tensor]


class Recorder:
    """Within `with`: a training's weights before its first update, and the gradients and weights of each update.

    Tensors by the names of the module that is called first, without the `module.` of a wrapper; float64 copies on the
    CPU, of a DTensor the whole (then all ranks must record). A module that shards its parameters itself has `whole()`,
    which returns {name: tensor} on all ranks: then its weights are those, and its gradients are not noted; nor are they
    where one optimizer's step() calls another's. An update is an optimizer.step() that stands in no other;
    `after` is called after each. `apart`: the modules by whose definition ranks are not one process.
    """

    def __init__(self, after=lambda: None):
        self.first: Values = {}
        self.gradients: list[Values] = []
        self.weights: list[Values] = []
        self.apart: list[str] = []
        self.over = False
        """set it, and no later update is noted; hooks of others may not change while they run"""
        self._done, self._depth = after, 0
        self._modules: set[nn.Module] = set()
        self._parameters: dict[int, tuple[str, nn.Parameter]] = {}
        self._whole = None

    def __enter__(self):
        self._hooks = [register_module_forward_pre_hook(self._forward), register_optimizer_step_pre_hook(self._before),
                       register_optimizer_step_post_hook(self._after)]
        return self

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()

    def _forward(self, module, inputs):
        if self.gradients:
            return  # all modules are known
        if (isinstance(module, _DropoutNd) and module.p or isinstance(module, _BatchNorm)) and module.training:
            self.apart = sorted({*self.apart, type(module).__name__})
        if module in self._modules:  # a part of another: while FSDP computes, it holds tensors of a moment
            return
        self._modules.update(module.modules())
        self._whole = self._whole or getattr(module, "whole", None)
        for name, parameter in module.named_parameters():
            while name.startswith(("module.", "_orig_mod.")):  # of DDP and its like, of torch.compile
                name = name.partition(".")[2]
            self._parameters.setdefault(id(parameter), (name, parameter))

    def _before(self, optimizer, *_):
        if self.over:
            return
        self._depth += 1
        if self._depth == 1:
            self.first = self.first or self._weights()
            self.gradients.append({} if self._whole else self._copies(
                lambda parameter: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad))
        else:
            self.gradients[-1] = {}  # the gradients are the business of the optimizer outside

    def _after(self, *_):
        if self.over:
            return
        self._depth -= 1
        if not self._depth:
            self.weights.append(self._weights())
            self._done()

    def _weights(self) -> Values:
        if self._whole:
            return {name: value.detach().to("cpu", torch.float64, copy=True) for name, value in self._whole().items()}
        return self._copies(lambda parameter: parameter)

    def _copies(self, of) -> Values:
        copies = {}
        for name, parameter in self._parameters.values():
            value = of(parameter).detach()
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            copies[name] = value.to("cpu", torch.float64, copy=True)
        return copies

    def record(self) -> "Record":
        dtypes = {str(parameter.dtype).removeprefix("torch.") for _, parameter in self._parameters.values()}
        return Record(self.first, self.gradients, self.weights, self.apart, sorted(dtypes))


@dataclass
class Record:
    """What a Recorder has noted."""

    first: Values
    gradients: list[Values]
    weights: list[Values]
    apart: list[str]
    dtypes: list[str]
    """of the parameters"""


@dataclass
class Parting:
    """Where two trainings part first."""

    update: int
    """1 is the first; 0: their weights differ before it"""
    tensor: str
    by: float
    """largest difference of a value, in the largest value of the tensor"""
    gradient: tuple[float, float] | None = None
    """where it is the update's gradient that differs, all tensors together: how many times as large, and how far off
    the rest is, both in the length of the first training's gradient"""
    agreed: bool = False
    """were the update's gradients noted, and the same?"""

    def __str__(self):
        if not self.tensor:
            return f"in update {self.update}, which one of them did not make"
        if not self.update:
            return f"before the first update: {self.tensor} differs by {_share(self.by)}"
        if not self.gradient:
            how = f"the gradients agree, and {self.tensor} then" if self.agreed else self.tensor
            return f"in update {self.update}: {how} differs by {_share(self.by)}"
        factor, off = self.gradient
        how = (f"the gradient is {factor:.4g} times as large" if off < 1e-6 else
               f"the gradient points elsewhere, off by {_share(off)}")
        return f"in update {self.update}: {how}; {self.tensor} is the first tensor that differs, by {_share(self.by)}"


def _share(part: float) -> str:
    return f"{part:.1%}" if part >= 1e-3 else f"a relative {part:.0e}"


def parting(one: Record, other: Record, near: float = NEAR) -> Parting | None:
    """Where `other` parts from `one`; None where it does not. One that made fewer updates parts in the next."""
    pairs = [(0, one.first, other.first, False)]
    for update, (gradients, weights) in enumerate(zip(one.gradients, one.weights, strict=False), 1):
        if update > len(other.weights):
            return Parting(update, "", float("nan"))
        pairs += [(update, gradients, other.gradients[update - 1], True),
                  (update, weights, other.weights[update - 1], False)]
    agreed = False
    for update, these, those, are_gradients in pairs:
        if are_gradients and not those:
            continue  # they were not noted, and the weights tell
        for name, value in these.items():
            if name not in those or those[name].shape != value.shape:
                return Parting(update, name, float("inf"))
            by = ((those[name] - value).abs().max() / value.abs().max()).item() if value.numel() else 0.0
            if by > near or by != by and not torch.equal(value, those[name]):  # 0 / 0: both are all zeros
                return Parting(update, name, by, times(these, those) if are_gradients else None, agreed)
        agreed = are_gradients
    return None


def times(these: Values, those: Values) -> tuple[float, float]:
    """(how many times as large as `these` `those` are, all tensors together; how far off the rest is), both in the
    length of `these`."""
    wanted, got = (torch.cat([values[name].flatten() for name in these]) for values in (these, those))
    factor = (got @ wanted / (wanted @ wanted)).item()
    return factor, ((got - factor * wanted).norm() / wanted.norm()).item()


@dataclass
class Answer:
    """Of one number of ranks."""

    ranks: int
    status: int | None
    """of the program; None: it had to be ended"""
    printed: str
    """what it said, stderr too"""
    failure: str = ""
    """why a rank made no update, in one line; all below is then unknown"""
    between_ranks: tuple[int, Parting] | None = None
    """a rank, and where it parts from rank 0; None: they are one model"""
    from_one: Parting | None = None
    """where rank 0 parts from one process"""
    updates: int = 0
    apart: list[str] = field(default_factory=list)
    """modules by whose definition ranks are not one process"""
    records: list[Record] = field(default_factory=list)
    """what each rank has noted, rank 0 first"""

    @property
    def one_model(self) -> bool:
        return not self.failure and self.between_ranks is None

    @property
    def equal(self) -> bool:
        """Are the ranks one model, and that of one process?"""
        return self.one_model and self.from_one is None

    def __str__(self):
        if self.failure:
            return f"{some(self.ranks, 'rank')}: not known. {self.failure}"
        lines = [f"{some(self.ranks, 'rank')}, {some(self.updates, 'update')}"]
        if self.between_ranks:
            rank, where = self.between_ranks
            lines.append(f"  one model on all ranks?  no: ranks 0 and {rank} part {where}")
        else:
            lines.append("  one model on all ranks?  yes")
        lines.append(f"  equal to one process?    {f'no: they part {self.from_one}' if self.from_one else 'yes'}")
        if self.apart and self.from_one:
            lines.append(f"  It has {' and '.join(self.apart)}, which on ranks is not that of one process.")
        return "\n".join(lines)


def distances(one: Answer, many: Answer) -> list[float]:
    """After each update: the norm of the difference of all weights, of the farthest rank, in the norm of those of one
    process."""
    def distance(these: Values, those: Values) -> float:
        flat, other = (torch.cat([each[name].flatten() for name in those]) for each in (these, those))
        return ((flat - other).norm() / other.norm()).item()

    return [max(distance(each.weights[update], weights) for each in many.records)
            for update, weights in enumerate(one.records[0].weights)]


def compare(program: str | Path, arguments: Sequence[str] = (), ranks: Sequence[int] = (2, 3), updates: int = 6,
            seconds: float = LIMIT, to_end: bool = False, folder: Path | None = None) -> list[Answer]:
    """An Answer for one process, then for each number of ranks.

    to_end: the program goes on to its end, rather than to be ended after `updates`. folder: the program runs in
    folder/1, folder/2 ..., made here, and what it writes stays there; its own path and `arguments` are then absolute.
    Raises ValueError, one line, where the program follows no default dtype.
    """
    counts = [1, *ranks]
    with tempfile.TemporaryDirectory() as noted, ThreadPoolExecutor(len(counts)) as pool:
        def run(count):
            own = Path(noted, str(count))
            own.mkdir()
            place = Path.cwd() if folder is None else folder / str(count)
            place.mkdir(exist_ok=True)
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}",
                       "-m", "course.one_process", "--record", str(own), "--updates", str(updates),
                       *(["--to-end"] if to_end else []), str(program), *map(str, arguments)]
            path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
            status, printed = processes.run_and_read(command, seconds, uuid.uuid4().hex, env=env, cwd=place)
            files = [file for rank in range(count) if (file := own / f"{rank}.pt").exists()]
            return count, status, printed, [Record(**torch.load(file)) for file in files]

        runs = list(pool.map(run, counts))
    one = runs[0][3]
    return [_answer(*each, one[0] if one else None, seconds) for each in runs]


def _answer(count, status, printed, records, one, seconds) -> Answer:
    answer = Answer(count, status, printed)
    if len(records) < count:
        explained = failures.explain(printed)
        answer.failure = (f"It had not made an update after {seconds:g} s." if status is None else
                          "No optimizer of torch.optim made an update." if status == 0 else
                          explained[1] if explained else (printed.splitlines() or ["It said nothing."])[-1])
        return answer
    if records[0].dtypes != ["float64"]:
        raise ValueError(f"the program computes in {' and '.join(records[0].dtypes)}: make its tensors in "
                         "torch.get_default_dtype(), which is float64 here")
    apart = [(rank, where) for rank in range(1, count) if (where := parting(records[0], records[rank]))]
    answer.between_ranks = min(apart, key=lambda each: each[1].update) if apart else None
    answer.from_one = parting(one, records[0]) if one else None
    answer.updates, answer.apart, answer.records = len(records[0].weights), records[0].apart, records
    return answer


# -------------------------------------------------------------------------------------------------- on each rank


def record(args) -> None:
    """Run the program as python would, and leave in the folder `args.record` what it computed, update by update."""
    def after_update():
        file = Path(args.record, f"{os.environ['RANK']}.pt")
        torch.save(vars(recorder.record()), file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)  # whole, whenever the rank is ended
        if len(recorder.weights) == args.updates:
            recorder.over = True
            if not args.to_end:
                shortcuts.exit_now()

    def join(*args, **options):
        original(*args, **options)
        shortcuts.defer_compiler()  # a program that compiles finds the real one

    original, dist.init_process_group = dist.init_process_group, join
    torch.set_default_dtype(torch.float64)
    sys.argv = [args.program, *args.arguments]
    sys.path.insert(0, str(Path(args.program).resolve().parent))
    with Recorder(after_update) as recorder:
        runpy.run_path(args.program, run_name="__main__")
    shortcuts.exit_now()  # a thread of gloo may abort a process that takes its time to end


def numbers(text: str) -> list[int]:
    return [options.positive(int)(part) for part in text.split(",")]


def main() -> None:
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 3], help="with commas between them; default: 2,3")
    parser.add_argument("--updates", type=options.positive(int), default=6, help="so many, then the program ends")
    parser.add_argument("--timeout", type=options.positive(float), default=LIMIT, help="seconds of a start")
    parser.add_argument("--to-end", action="store_true", help="let the program go on to its end")
    parser.add_argument("--record", help=argparse.SUPPRESS)  # the ranks of the program
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.record:
        return record(args)
    with parser.one_line():
        files.check_input("PROGRAM", args.program)
        answers = compare(args.program, args.arguments, args.ranks, args.updates, args.timeout, args.to_end)
    if answers[0].failure:
        print(answers[0].printed[-3000:], file=sys.stderr)
        parser.error(f"one process alone: {answers[0].failure}")
    for answer in answers[1:]:
        print(answer)
    sys.exit(0 if all(answer.equal for answer in answers[1:]) else 1)


if __name__ == "__main__":
    main()
