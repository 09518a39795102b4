"""What one rank has done so far: facts that fit into JSON, each with the place in the user's file."""

import os
import sys
import sysconfig
import threading
import time
import traceback
from array import array
from pathlib import Path

import torch

HERE = str(Path(__file__).parent)
NOT_THEIRS = ("<", HERE, str(Path(torch.__file__).parent),
              *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MOST = 1_000_000  # collectives and indices that are kept; what comes later is counted only


def innermost(lines):
    """`my_train.py:42`: the first of these (frame, line number), innermost first, in a file of the user's, else ""."""
    for frame, number in lines:
        if not frame.f_code.co_filename.startswith(NOT_THEIRS):
            return f"{os.path.relpath(frame.f_code.co_filename)}:{number}"
    return ""


def place(frame):
    return innermost(traceback.walk_stack(frame)) if frame else ""


def where():
    """The user's line that has called us."""
    return place(sys._getframe(1))


class Diary:
    """One rank's. The main thread writes, the watching thread reads."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.facts = {}  # {kind: [facts]}, each a dict
        self.kinds, self.order = [], array("i")  # of collectives: [what and where], and the numbers of these, in order
        self.known = {}
        self.steps = self.forwards = self.outer = self.backwards = self.passes = 0
        self.inside = []  # what the main thread is in: [(what, where, since)]
        self.alive = self.began = time.monotonic()
        self.seconds = {}
        self.ended = None  # how the script ended on this rank
        self.main = threading.main_thread().ident

    def note(self, kind, most=100, **fact):
        """Keep a fact, if there are fewer than `most` of its kind."""
        self.alive = time.monotonic()
        facts = self.facts.setdefault(kind, [])
        if len(facts) < most:
            facts.append(fact)

    def once(self, kind, **fact):
        """Keep a fact that is not known yet."""
        if fact not in self.facts.get(kind, []):
            self.note(kind, **fact)

    def collective(self, what, line):
        """A collective begins."""
        number = self.known.setdefault((what, line), len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append([what, line])
        if len(self.order) < MOST:
            self.order.append(number)

    def enter(self, what, line):
        self.alive = time.monotonic()
        self.inside.append((what, line, self.alive))

    def leave(self):
        what, _, since = self.inside.pop()
        self.alive = time.monotonic()
        self.seconds[what] = self.seconds.get(what, 0) + self.alive - since

    def position(self):
        """Where the main thread is: what it waits in, the line, for how many seconds, and the stack of the user's."""
        frame = sys._current_frames().get(self.main)
        stack = [f"{os.path.relpath(one.filename)}:{one.lineno} in {one.name}" for one in
                 traceback.extract_stack(frame) if not one.filename.startswith(NOT_THEIRS)] if frame else []
        what, line, since = self.inside[-1] if self.inside else (None, place(frame), self.alive)
        return {"in": what, "where": line or place(frame), "seconds": time.monotonic() - since, "stack": stack}

    def pages(self):
        """All of it, as JSON has it."""
        return {"rank": self.rank, "world_size": self.world_size, "facts": self.facts, "kinds": self.kinds,
                "order": self.order.tolist(), "steps": self.steps, "forwards": self.forwards,
                "backwards": self.backwards, "seconds": {**self.seconds, "all": time.monotonic() - self.began},
                "ended": self.ended, "position": self.position()}
