"""Exercises whose answers run on ranks.

    @exercise_on_ranks(measure_backward, solution=backward, hint="...", mistakes={"...": mean_of_own, ...})
    def gradient(ranks):
        '''What the learner has shown.'''
        for rank, measured in enumerate(ranks):
            yield Case(measured["gradient"], measured["of one process"], f"On rank {rank} ...")

On each rank `measure(answer, context)` calls the learner's function and returns what it saw, a dict for JSON; the check
turns the list of these dicts, rank 0's first, into cases. The learner's function, or class, stands in a file, which a
cell has written with %%writefile; tests give the function itself. Each check starts the ranks anew, forked from a
process that has torch, so an answer that hangs or dies disturbs no other. If the answer is wrong, all typical mistakes
run at the same time, each on ranks of its own: one that hangs keeps no other waiting.

Ranks report through the store where they met, since an answer may break a process group, but not the store.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course import shortcuts
from course.exercise import Case, Ended, Exercise, Wrong, error_and_line, same, unreadable
from trainer.files import check_input

# For a check on ranks: the number of ranks; seconds for the whole run; for one wait; and for all ranks to start, which
# a busy machine delays.
RANKS, LIMIT, WAIT, START = 3, 40, 5, 60
PRELOAD = ("torch", "torch.nn.parallel")  # in the process that ranks are forked from
SAME_CALLS = "Every rank must call the same collectives, in the same order"


@dataclass
class RankContext:
    """The rank that an answer runs on."""

    rank: int
    world_size: int
    store: dist.Store
    """where the ranks met"""
    folder: str
    """new, empty, and the same for all ranks; an absolute path"""
    timeout: float
    """longest wait of the learner's function for another rank, seconds"""

    def gather(self, name: str, value, patience: float = 15) -> list:
        """Every rank's value, rank 0's first, after waiting for all of them, `patience` seconds at most. Each `name`
        serves once."""
        keys = [f"{name} {rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], json.dumps(value))
        self.store.wait(keys, timedelta(seconds=patience))
        return [json.loads(self.store.get(key)) for key in keys]

    def join(self, name: str = "group", rank: int | None = None, world_size: int | None = None) -> None:
        """Join the process group `name`: as this rank of all ranks, or as `rank` of `world_size`."""
        dist.init_process_group("gloo", store=dist.PrefixStore(name, self.store),
                                rank=self.rank if rank is None else rank, world_size=world_size or self.world_size,
                                timeout=timedelta(seconds=self.timeout))


@dataclass
class Measurement:
    """What to measure of a learner's function, and on which ranks."""

    measure: Callable[[Callable, RankContext], dict]
    name: str
    """of the learner's function"""
    group: bool = True
    """the ranks are one process group (gloo) before the function is called"""
    preload: tuple[str, ...] = ()
    """modules that the ranks find imported: what takes seconds, once for all"""
    wait: float = WAIT
    """longest wait of the learner's function for another rank, seconds"""

    def run(self, attempts: list[tuple[Any, int]]) -> list[list[dict] | Exception]:
        """For each attempt what each rank measured, or the error that says how it ended. All attempts run at once.

        An attempt is a function or class that can be imported by name, or the path of a file; and a number of ranks.
        """
        context = multiprocessing.get_context("forkserver")  # forks from a process that has torch, and no threads
        context.set_forkserver_preload([*PRELOAD, self.measure.__module__, *self.preload])
        with tempfile.TemporaryDirectory() as folder:
            groups = [_Group(self, attempt, ranks, Path(folder, str(number)), context)
                      for number, (attempt, ranks) in enumerate(attempts)]
            try:
                while running := [group for group in groups if group.outcome is None]:
                    wait([process.sentinel for group in running for process in group.running.values()], 0.2)
                    for group in running:
                        group.look()
            finally:
                for group in groups:
                    group.end()
            return [group.outcome for group in groups]


class _Group:
    """The ranks of one attempt. `outcome` is None until they have ended."""

    def __init__(self, measurement, attempt, ranks, folder, context):
        folder.mkdir()
        self.begun, self.result, self.outcome = folder / "begun", folder / "result.json", None
        self.processes = [context.Process(target=be_rank, args=(measurement, attempt, rank, ranks, str(folder)))
                          for rank in range(ranks)]
        for process in self.processes:
            process.start()
        self.running = dict(enumerate(self.processes))
        self.answering, self.give_up = False, time.monotonic() + START

    def look(self):
        """Set the outcome if a rank has died, if all have ended, or if time is up."""
        if not self.answering and self.begun.exists():
            self.answering, self.give_up = True, time.monotonic() + LIMIT
        for rank, process in list(self.running.items()):
            if process.exitcode:
                status = process.exitcode
                how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
                why = (f"gloo ends a process whose call does not fit those of the others, in size too. {SAME_CALLS}. "
                       "A tensor whose memory was given back ends it, too."
                       if status < 0 else "Does your function leave the process?")
                self.outcome = Ended(f"The process of rank {rank} died ({how}). {why}", "died")
                return
            if process.exitcode == 0:
                del self.running[rank]
        if not self.running:
            self.outcome = (_outcome(json.loads(self.result.read_text())) if self.result.exists() else Ended(
                "The ranks ended before the check had their results. Does your function leave the process?", "left"))
        elif time.monotonic() > self.give_up and self.answering:
            self.outcome = Ended(f"No end within {LIMIT} s: rank {' and '.join(map(str, self.running))} still ran. "
                                 f"{SAME_CALLS}.", "never ended")
        elif time.monotonic() > self.give_up:
            self.outcome = Ended(f"The ranks had not begun after {START} s. Your answer is not at fault: the machine "
                                 "is too busy. Run this again.", None)

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def _outcome(measured):
    """What the ranks measured, a list; or the NotImplementedError, or the Wrong, that explains why they could not."""
    if any("untried" in rank_result for rank_result in measured):
        return NotImplementedError()
    if wrong := [rank_result["wrong"] for rank_result in measured if "wrong" in rank_result]:
        return Wrong(wrong[0])
    raised = [(rank_result["broken"], rank, rank_result["raised"]) for rank, rank_result in enumerate(measured)
              if "raised" in rank_result]
    if not raised:
        return measured
    _, rank, error = min(raised)  # a rank that raised explains those that waited for it
    if re.search("timed out|wait timeout|closed by peer", error, re.IGNORECASE):
        return Ended(f"On rank {rank} it waited in vain for another rank. {SAME_CALLS}: none for rank 0 alone.", "hung")
    return Ended(f"On rank {rank} it raised {error.rstrip('.')}.", f"raised {error.split(':')[0]}")


class ExerciseOnRanks(Exercise):
    """An Exercise whose check gets what was measured on the ranks. `ranks` says on how many: a number, or several
    numbers, of which each gets a run and a check of its own, up to the first that finds something wrong."""

    def __init__(self, check, solution, hint, mistakes, measurement: Measurement, ranks: int | tuple[int, ...]):
        super().__init__(check, solution, hint, mistakes)
        self.measurement, self.ranks = measurement, ranks

    def observe(self, answers: list) -> list[tuple[list[Case], Exception | None]]:
        problems = [None if callable(answer) else unreadable(Path(answer), self.measurement.name)
                    for answer in answers]
        counts = self.ranks if isinstance(self.ranks, tuple) else (self.ranks,)
        observed: list[tuple[list[Case], Exception | None]] = [([], problem) for problem in problems]
        for count in counts:
            going = [number for number, (cases, error) in enumerate(observed)
                     if not error and all(same(case.got, case.right, case.rel_tol) for case in cases)]
            attempts = [(each if callable(each := answers[number]) else str(Path(each).resolve()), count)
                        for number in going]
            for number, outcome in zip(going, self.measurement.run(attempts) if attempts else (), strict=True):
                more, error = ([], outcome) if isinstance(outcome, Exception) else super().observe([outcome])[0]
                observed[number] = observed[number][0] + more, error
        return observed


def exercise_on_ranks(measure: Callable[[Callable, RankContext], dict], *, solution: Callable,
                      hint: str | tuple[str, ...], mistakes: dict[str, Callable], ranks: int | tuple[int, ...] = RANKS,
                      group: bool = True, preload: tuple[str, ...] = ()) -> Callable[[Callable], ExerciseOnRanks]:
    """Make an exercise of the decorated check. The learner's function has the name of the solution."""
    measurement = Measurement(measure, solution.__name__, group, preload)
    return lambda check: ExerciseOnRanks(check, solution, hint, mistakes, measurement, ranks)


@contextlib.contextmanager
def patched(function: Callable, **others: Callable):
    """Within `with`: `others` in the place of torch.distributed's functions of these names, also where the file of
    `function` has imported one itself."""
    spaces = vars(dist), getattr(function, "__globals__", {})
    places = [(space, key, value, others[name]) for name in others for space in spaces
              for key, value in space.items() if value is getattr(dist, name)]
    for space, key, _, other in places:
        space[key] = other
    try:
        yield
    finally:
        for space, key, value, _ in places:
            space[key] = value


class KeptExercise(ExerciseOnRanks):
    """What a notebook's check has last found right stays in the file `kept`, also when the learner's changes: later
    cells run it."""

    def __init__(self, *args, kept: str, **options):
        super().__init__(*args, **options)
        self.kept = Path(kept)

    @property
    def parts(self) -> str:
        return "mine" if self.kept.exists() else "ours"

    def judged(self, attempt, status):
        super().judged(attempt, status)
        shutil.rmtree(self.kept.parent, ignore_errors=True)
        if self.file:
            self.kept.parent.mkdir(parents=True)
            shutil.copy(attempt, self.kept)


def theirs_or_ours(path: Path, name: str, ours: Callable) -> tuple[Callable, str]:
    """For a program that runs it: (the function `name` of the learner's file, "yours"); (ours, "ours") where there is
    no file, or only the stub.

    Raises ValueError, one line, for a file that is not Python or has no such function.
    """
    if path.exists():
        check_input("the learner's file", path)  # a pipe or /dev/zero would be read for ever
    problem = unreadable(path, name)
    if isinstance(problem, NotImplementedError):
        return ours, "ours"
    if problem is not None:
        raise ValueError(f"{path}: {problem}")
    return runpy.run_path(str(path))[name], "yours"


def see(measurement, attempt, context):
    """What this rank measured; or {"untried"}, or {"wrong": message}, or {"raised": what the function raised,
    "broken": whether the process group may be}."""
    try:
        answer = attempt if callable(attempt) else runpy.run_path(attempt)[measurement.name]
        return measurement.measure(answer, context)
    except Wrong as wrong:
        return {"wrong": str(wrong)}
    except (Exception, SystemExit) as error:  # the learner's: to be reported, not to end the rank
        if isinstance(error, NotImplementedError) and not str(error):  # the stub's own
            return {"untried": True}
        return {"raised": error_and_line(error, str(attempt)), "broken": isinstance(error, RuntimeError)}


def be_rank(measurement, attempt, rank, ranks, folder):
    """Rank 0 writes down what all ranks measured, for the process that started them."""
    for module in measurement.preload:  # missing where another exercise has started the process that ranks fork from
        importlib.import_module(module)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))  # as torchrun: answers ask
    context = RankContext(rank, ranks, dist.FileStore(f"{folder}/store", ranks), folder, measurement.wait)
    context.gather("ready", True, START)
    if rank == 0:
        Path(folder, "begun").touch()
    if measurement.group:
        context.join()
        shortcuts.defer_compiler()  # after it: joining the group brings in the real one
    measured = context.gather("measured", see(measurement, attempt, context), LIMIT + START)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(measured))
    context.gather("written", True)
    sys.stdout.flush()
    os._exit(0)  # an answer may have left threads of gloo's that abort when Python ends
