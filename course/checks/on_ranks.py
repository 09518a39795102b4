"""A learner's functions on ranks: what the checks of lessons 03, 04 and 06 look at.

Such a lesson has `answers = Answers({name of a function: measure})`. On each rank `measure(function, here)` calls the
learner's function and returns what it saw, a dict for JSON. The functions stand in a file, which answer.py runs under
torchrun; or a check is given one of them, and starts ranks for it itself.

Ranks tell each other what they saw through the store where they met: an answer may break a process group, but not that.
"""

import json
import multiprocessing
import re
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import shortcuts
from course.checks import Wrong

RANKS, LIMIT, WAIT = 3, 40, 5  # of a check that starts ranks: seconds for all they do, and to wait for one another
SAME_CALLS = "Every rank must call the same collectives, in the same order"


@dataclass
class Here:
    """One of the ranks that an answer runs on."""

    rank: int
    world_size: int
    store: dist.Store  # where they met
    folder: str  # new, empty, and the same for all; an absolute path
    timeout: float  # longest wait of the learner's function for another rank, seconds

    def gather(self, name, mine):
        """What every rank has, rank 0's first: it waits for all of them. Each `name` serves once."""
        keys = [f"{name} {rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], json.dumps(mine))
        self.store.wait(keys, timedelta(seconds=self.timeout + 30))
        return [json.loads(self.store.get(key)) for key in keys]


@dataclass
class Answers:
    """The functions of a lesson that run on ranks."""

    measures: dict  # {name of the learner's function: measure}
    group: bool = True  # the ranks are one process group (gloo) before a function is called

    def look(self, functions, here):
        """{name: what each rank saw, a list; or why the function was not run}, of functions {name: function}.

        After a function that may have left the ranks in different places no other is run.
        """
        here.gather("ready", True)
        if self.group:
            dist.init_process_group("gloo", store=dist.PrefixStore("group", here.store), rank=here.rank,
                                    world_size=here.world_size, timeout=timedelta(seconds=here.timeout))
            shortcuts.defer_compiler()  # after it: joining the group brings in the real one
        found, broken = {}, None
        for name, measure in self.measures.items():
            if broken and name in functions:
                found[name] = f"It was not run, because {broken} left the ranks waiting: mend that first."
                continue
            found[name] = here.gather(name, see(measure, functions.get(name), here))
            if any(rank.get("broken") for rank in found[name]):
                broken = name
        return found

    def findings(self, name, attempt):
        """What each rank saw, a list. `attempt` is a function, or the JSON file that answer.py wrote.

        NotImplementedError where one did not try; Wrong where the function was not run, or raised, or cannot be right.
        """
        if callable(attempt):
            found = self.start_ranks(name, attempt)
        else:
            file, functions = Path(attempt), Path(attempt).with_suffix(".py")
            if not file.exists():
                raise NotImplementedError
            if functions.exists() and functions.stat().st_mtime > file.stat().st_mtime:
                raise Wrong("Your functions are newer than what the ranks found: run the cell with !torchrun again.")
            found = json.loads(file.read_text())[name]
        if isinstance(found, str):
            raise Wrong(found)
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

    def start_ranks(self, name, function):
        """What each of RANKS new processes of this machine saw of a function that can be imported by name."""
        context = multiprocessing.get_context("forkserver")  # forks from a process that has torch, and no threads
        context.set_forkserver_preload(["torch", "torch.nn.parallel"])
        with tempfile.TemporaryDirectory() as folder, context.Pool(RANKS) as pool:  # its end ends the processes
            ranks = [(self, name, function, rank, folder) for rank in range(RANKS)]
            try:
                return pool.starmap_async(be_rank, ranks, chunksize=1).get(LIMIT)[0]
            except multiprocessing.TimeoutError:
                raise Wrong(f"No end within {LIMIT} s: a rank waits, or its process died. {SAME_CALLS}.") from None


def see(measure, function, here):
    """What this rank saw; or {"untried"}, or {"wrong": what to tell}, or {"raised": what the function raised, "broken":
    whether the group may be}."""
    try:
        return measure(function, here) if function else {"untried": True}
    except NotImplementedError:
        return {"untried": True}
    except Wrong as wrong:
        return {"wrong": str(wrong)}
    except (Exception, SystemExit) as error:  # the learner's: to be told, not to end the rank
        return {"raised": first_line(error), "broken": isinstance(error, RuntimeError)}


def first_line(error):
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def be_rank(answers, name, function, rank, folder):
    torch.set_num_threads(1)
    here = Here(rank, RANKS, dist.FileStore(f"{folder}/store", RANKS), folder, WAIT)
    return answers.look({name: function}, here)[name]
