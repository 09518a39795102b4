"""A learner's functions on ranks, which the checks of a lesson read.

Such a lesson has `answers = Answers({name of a function: measure})`. On each rank `measure(function, here)` calls the
learner's function and returns what it saw, a dict for JSON. The function stands in a file, which a cell has written
with %%writefile; tests give the function itself. Each check starts the ranks anew, forked from a process that has
torch: so an answer that hangs or dies disturbs no other.

Ranks tell each other what they saw through the store where they met: an answer may break a process group, but not that.
"""

import ast
import json
import multiprocessing
import os
import re
import runpy
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

import shortcuts
from course import cases
from course.cases import drawn_one
from course.exercise import Wrong

# Of a check that starts ranks: how many; seconds for all they do, and to wait for one another; and until all of them
# have begun, for which a busy machine takes long.
RANKS, LIMIT, WAIT, START = 3, 40, 5, 60
PRELOAD = ("torch", "torch.nn.parallel")  # in the process that ranks are forked from
SAME_CALLS = "Every rank must call the same collectives, in the same order"


@dataclass
class Here:
    """One of the ranks that an answer runs on."""

    rank: int
    world_size: int
    store: dist.Store  # where they met
    folder: str  # new, empty, and the same for all; an absolute path
    timeout: float  # longest wait of the learner's function for another rank, seconds

    def gather(self, name, mine, patience=15):
        """What every rank has, rank 0's first: it waits for all of them, `patience` seconds at most. Each `name` serves
        once."""
        keys = [f"{name} {rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], json.dumps(mine))
        self.store.wait(keys, timedelta(seconds=patience))
        return [json.loads(self.store.get(key)) for key in keys]


@dataclass
class Answers:
    """The functions of a lesson that run on ranks."""

    measures: dict  # {name of the learner's function: measure}
    group: bool = True  # the ranks are one process group (gloo) before a function is called
    preload: tuple = ()  # modules that the ranks find imported: what takes seconds, once for all

    def findings(self, name, attempt, ranks=None):
        """What each rank saw, a list: of `ranks`, RANKS if left out, or then for a grader one or two more.

        `attempt` is a function that can be imported by name, or the path of a file.
        NotImplementedError where one did not try; Wrong where the function was not run, or raised, or cannot be right.
        """
        ranks = ranks or drawn_one(RANKS, lambda random: RANKS + random.randint(1, 2))
        if not callable(attempt) and untouched(Path(attempt), name):
            raise NotImplementedError
        found = self.on_each(name, attempt if callable(attempt) else str(Path(attempt).resolve()), ranks)
        if any("untried" in rank for rank in found):
            raise NotImplementedError
        if wrong := [rank["wrong"] for rank in found if "wrong" in rank]:
            raise Wrong(wrong[0])
        raised = [(one["broken"], rank, one["raised"]) for rank, one in enumerate(found) if "raised" in one]
        if raised:
            _, rank, error = min(raised)  # a rank that raised explains those that waited for it
            said = f"it raised {error}."
            if re.search("timed out|closed by peer", error, re.IGNORECASE):
                said = f"it waited in vain for another rank. {SAME_CALLS}: none for rank 0 alone."
            raise Wrong(f"On rank {rank} {said}")
        return found

    def on_each(self, name, attempt, ranks):
        """What each rank saw, a list. Wrong where a process died, or not all came to an end in time."""
        context = multiprocessing.get_context("forkserver")  # forks from a process that has torch, and no threads
        context.set_forkserver_preload([*PRELOAD, *self.preload])
        with tempfile.TemporaryDirectory() as folder:
            processes = [context.Process(target=be_rank, args=(self, name, attempt, rank, ranks, folder, cases.seed))
                         for rank in range(ranks)]
            for process in processes:
                process.start()
            try:
                died = first_to_die(processes, Path(folder, "begun"))
            finally:
                for process in processes:
                    process.kill()
                    process.join()
            if died is not None:
                status = processes[died].exitcode
                how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
                raise Wrong(f"The process of rank {died} died ({how}). gloo ends a process whose call does not fit "
                            f"those of the others, in size too. {SAME_CALLS}.")
            return json.loads(Path(folder, "found.json").read_text())


def first_to_die(processes, begun):
    """The number of the process that ended first with a status other than 0; None where all of them end well. `begun`:
    a file that is there once all ranks are."""
    give_up, answering, running = time.monotonic() + START, False, dict(enumerate(processes))
    while running:
        if not answering and begun.exists():
            give_up, answering = time.monotonic() + LIMIT, True
        if not wait([process.sentinel for process in running.values()], 0.2) and time.monotonic() > give_up:
            if not answering:
                raise Wrong(f"The ranks had not begun after {START} s. Your answer is not at fault: the machine has "
                            "too much to do. Run this again.")
            raise Wrong(f"No end within {LIMIT} s: rank {' and '.join(map(str, running))} still ran. {SAME_CALLS}.")
        for rank, process in list(running.items()):
            if process.exitcode:
                return rank
            if process.exitcode == 0:
                del running[rank]
    return None


def untouched(file, name):
    """Does the function in the file begin with the stub's line, or is there none? No rank is started for that."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except SyntaxError as error:
        raise Wrong(f"Your file cannot be run: {first_line(error)}.") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    first = functions and functions[-1].body[ast.get_docstring(functions[-1]) is not None:][:1]
    return not functions or [ast.unparse(one) for one in first] == ["raise NotImplementedError"]


def see(measure, attempt, name, here):
    """What this rank saw; or {"untried"}, or {"wrong": what to tell}, or {"raised": what the function raised, "broken":
    whether the group may be}."""
    try:
        return measure(attempt if callable(attempt) else runpy.run_path(attempt)[name], here)
    except NotImplementedError:
        return {"untried": True}
    except Wrong as wrong:
        return {"wrong": str(wrong)}
    except (Exception, SystemExit) as error:  # the learner's: to be told, not to end the rank
        return {"raised": first_line(error), "broken": isinstance(error, RuntimeError)}


def first_line(error):
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def be_rank(answers, name, attempt, rank, ranks, folder, seed):
    """Rank 0 writes down what all ranks saw, for the process that started them."""
    cases.seed = seed
    torch.set_num_threads(1)
    here = Here(rank, ranks, dist.FileStore(f"{folder}/store", ranks), folder, WAIT)
    here.gather("ready", True, START)
    if rank == 0:
        Path(folder, "begun").touch()
    if answers.group:
        dist.init_process_group("gloo", store=dist.PrefixStore("group", here.store), rank=rank, world_size=ranks,
                                timeout=timedelta(seconds=WAIT))
        shortcuts.defer_compiler()  # after it: joining the group brings in the real one
    found = here.gather(name, see(answers.measures[name], attempt, name, here), LIMIT)
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    here.gather("written", True)
    sys.stdout.flush()
    os._exit(0)  # an answer may have left threads of gloo's that abort when Python ends
