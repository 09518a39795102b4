"""The facts that one rank has noted so far. They fit into JSON; each has its line in the user's file."""

import functools
import json
import mmap
import os
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from array import array
from contextlib import contextmanager
from pathlib import Path

import torch

HERE, TORCH = (str(path) + os.sep for path in (Path(__file__).parent, Path(torch.__file__).parent))
NOT_THEIRS = ("<", HERE, TORCH, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
PACKAGES = [f"{os.sep}{kind}-packages{os.sep}" for kind in ("site", "dist")]  # of any environment
PAGE = 4096  # bytes: what is left of a rank that is killed
MOST = 1_000_000  # collectives and indices that are kept; later ones are not compared


relative = functools.cache(os.path.relpath)


def users(frame):
    """Is this frame in a file of the user's?"""
    name = frame.f_code.co_filename
    return not name.startswith(NOT_THEIRS) and not any(folder in name for folder in PACKAGES)


def innermost(lines):
    """`my_train.py:42`: the first of these (frame, line number) that is in a file of the user's; else ""."""
    for frame, number in lines:
        if users(frame):
            return f"{relative(frame.f_code.co_filename)}:{number}"
    return ""


def where():
    """The line of the user's that has called the doctor."""
    return innermost(traceback.walk_stack(sys._getframe(1)))


class Diary:
    """The diary of one rank. The main thread writes, the watching thread reads."""

    def __init__(self, rank):
        self.rank = rank
        self.facts = {}  # {kind: [facts]}, each a dict
        self.kinds, self.known = [], {}  # of collectives: [what, where], and their numbers
        self.order = array("i")  # the numbers of all that were called
        self.steps = self.forwards = self.backwards = self.passes = 0
        self.skipped = {"times": 0, "where": ""}  # forwards of DDP that no backward followed, and the last line
        self.tested = 0  # forwards of DDP in evaluation
        self.sent = None  # the last collective: [what, where, how many numbers]
        handle, self.page = tempfile.mkstemp(prefix="doctor_")
        os.truncate(handle, PAGE)
        self.mapped = mmap.mmap(handle, PAGE)
        os.close(handle)
        self.inside = []  # what the main thread is in: [(what, where)]
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
        """Keep a fact, unless it is known."""
        if fact not in self.facts.get(kind, []):
            self.note(kind, **fact)

    def collective(self, what, line):
        """A collective begins."""
        number = self.known.setdefault((what, line), len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append([what, line])
        if len(self.order) < MOST:
            self.order.append(number)

    @contextmanager
    def during(self, what, line):
        """A block in which the main thread may wait, in `what`."""
        begin = self.alive = time.monotonic()
        self.inside.append((what, line))
        try:
            yield
        finally:
            self.inside.pop()
            self.alive = time.monotonic()
            self.seconds[what] = self.seconds.get(what, 0) + self.alive - begin

    def position(self):
        """{"in": what the main thread waits in, or None, "where": its line}."""
        what, line = self.inside[-1] if self.inside else (None, "")
        frame = sys._current_frames().get(self.main)
        return {"in": what, "where": line or (innermost(traceback.walk_stack(frame)) if frame else "")}

    def moment(self):
        """A value that changes while the main thread works. (A thread that waits for a GPU may compute, too.)"""
        frame = sys._current_frames().get(self.main)
        clock = hasattr(time, "pthread_getcpuclockid") and not torch.cuda.is_initialized()
        computed = round(time.clock_gettime(time.pthread_getcpuclockid(self.main)), 1) if clock else 0
        return (self.alive, id(frame), frame.f_lasti if frame else None, computed)

    def counts(self):
        return {"forwards": self.forwards, "backwards": self.backwards, "skipped": self.skipped, "sent": self.sent,
                "tested": self.tested, "calls": len(self.order)}

    def keep_counts(self):
        """Write the counts to a page that others can read when this rank is gone: gloo may abort it at any moment."""
        self.mapped[:] = json.dumps(self.counts()).encode().ljust(PAGE)

    def last_words(self):
        """What the others hear of a rank that is killed: little, and so often."""
        return {"rank": self.rank, "steps": self.steps, "ended": self.ended, "position": self.position(),
                "page": self.page, **self.counts()}

    def pages(self):
        """The whole diary, ready for JSON."""
        return {"facts": self.facts, "kinds": self.kinds, "order": self.order.tolist(), **self.last_words(),
                "seconds": {**self.seconds, "all": time.monotonic() - self.began}}
