"""The event log of one rank: what it did, in order, in a file that outlives it. Each event has its line."""

import functools
import json
import os
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

HERE, TORCH = (str(path) + os.sep for path in (Path(__file__).parent, Path(torch.__file__).parent))
NOT_THEIRS = ("<", HERE, TORCH, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
PACKAGES = [f"{os.sep}{kind}-packages{os.sep}" for kind in ("site", "dist")]  # of any environment
MOST = 20_000_000  # bytes of a rank's log: then it holds no more

Record = dict[str, Any]  # what the others get of a log
relative = functools.cache(os.path.relpath)


@functools.cache
def theirs(name: str) -> bool:
    """Is this a file of the user's?"""
    return not name.startswith(NOT_THEIRS) and not any(folder in name for folder in PACKAGES)


def users(frame: FrameType) -> bool:
    return theirs(frame.f_code.co_filename)


def innermost(lines: Iterable[tuple[FrameType, int]]) -> str:
    """`my_train.py:42`: the first of these (frame, line number) that is in a file of the user's; else ""."""
    for frame, number in lines:
        if users(frame):
            return f"{relative(frame.f_code.co_filename)}:{number}"
    return ""


def where() -> str:
    """The line of the user's that has called the doctor."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not theirs(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


class Log:
    """The main thread writes; the watching thread reads."""

    def __init__(self, rank: int):
        self.rank, self.pid, self.main = rank, os.getpid(), threading.main_thread().ident or 0
        handle, self.path = tempfile.mkstemp(prefix="doctor_")
        self.file = handle
        self.pending: list[dict[str, Any]] = []
        self.size, self.traced = 0, False  # traced: by sys.settrace
        self.known: dict[str, int] = {}  # numbers of events, files, ...
        self.stream: list[int] = []
        self.counts: dict[str, int] = {}
        self.steps = self.forwards = self.backwards = self.passes = self.calls = 0
        self.inside: list[tuple[str, str]] = []  # what the main thread is in: (what, line)
        self.alive = self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.ended: dict[str, Any] | None = None  # how the script ended on this rank

    def note(self, kind: str, most: int = 2000, **fields: Any) -> None:
        """Write an event, if there are fewer than `most` of its kind."""
        self.alive = time.monotonic()
        if self.counts.setdefault(kind, 0) < most and os.getpid() == self.pid:
            self.counts[kind] += 1
            self.pending.append({"k": kind, **fields})

    def once(self, kind: str, **fields: Any) -> None:
        """Write an event, unless it is known."""
        if self.number_of((kind, *fields.values()))[1]:
            self.note(kind, **fields)

    def number_of(self, thing: Any) -> tuple[int, bool]:
        """(a number for this value, whether it is new)"""
        new = (key := repr(thing)) not in self.known
        return self.known.setdefault(key, len(self.known)), new

    def sync(self, what: str, line: str, **more: Any) -> None:
        """The rank does what its partners must do, too: a collective, a backward, an update. It is a negative number
        in the stream of the lines that were executed (lines.py)."""
        number, new = self.number_of((what, line, *more.values()))
        if new:
            self.note("sync", number=number, what=what, where=line, **more)
        self.stream.append(-1 - number)

    def flush(self) -> None:
        """Write what is pending. What is written outlives this process."""
        if os.getpid() != self.pid:
            return
        pending, self.pending, stream, self.stream = self.pending, [], self.stream, []
        if stream:
            pending.append({"k": "stream", "numbers": stream})
        if pending and self.size < MOST:
            text = "".join(f"{encoded(event)}\n" for event in pending).encode()
            self.size += len(text)
            os.write(self.file, text)

    @contextmanager
    def during(self, what: str, line: str) -> Iterator[None]:
        """A block in which the main thread may wait, in `what`. Lines are not traced there: it is a call of torch's,
        which may import a thousand modules."""
        trace = sys.gettrace() if self.traced else None
        if trace:
            sys.settrace(None)
        begin = self.alive = time.monotonic()
        self.inside.append((what, line))
        try:
            yield
        finally:
            self.inside.pop()
            self.alive = time.monotonic()
            self.seconds[what] = self.seconds.get(what, 0) + self.alive - begin
            if trace:
                sys.settrace(trace)

    def position(self) -> dict[str, Any]:
        """{"in": what the main thread waits in, or None, "where": its line, "for": seconds}."""
        what, line = self.inside[-1] if self.inside else (None, "")
        frame = sys._current_frames().get(self.main)
        return {"in": what, "where": line or (innermost(traceback.walk_stack(frame)) if frame else ""),
                "for": time.monotonic() - self.alive}

    def moment(self) -> tuple[Any, ...]:
        """A value that changes while the main thread works. (A thread that waits for a GPU may compute, too.)"""
        frame = sys._current_frames().get(self.main)
        clock = hasattr(time, "pthread_getcpuclockid") and not torch.cuda.is_initialized()
        computed = round(time.clock_gettime(time.pthread_getcpuclockid(self.main)), 1) if clock else 0
        return (self.alive, id(frame), frame.f_lasti if frame else None, computed)

    def state(self) -> dict[str, Any]:
        """What the others hear of a rank while it runs: little, and so often."""
        return {"rank": self.rank, "steps": self.steps, "forwards": self.forwards, "backwards": self.backwards,
                "calls": self.calls, "ended": self.ended, "position": self.position(), "path": self.path,
                "seconds": {**self.seconds, "all": time.monotonic() - self.began}}

    def record(self) -> Record:
        """The whole log, ready for JSON: its state, and "events": {kind: [events]}."""
        self.flush()
        return self.state() | {"events": events_of(Path(self.path))}


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


encoded = json.JSONEncoder(default=plain).encode  # json.dumps() with a default makes an encoder for each call


def events_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """{kind: [its events, in order]} of a log. The last line of a rank that was killed may be torn."""
    events: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.endswith("}"):
            event = json.loads(line)
            events.setdefault(event.pop("k"), []).append(event)
    return events
