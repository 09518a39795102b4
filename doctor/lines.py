"""The lines of the user's files that a rank executes, for the point at which ranks went different ways.

They go into the log's stream, between the collectives, backwards and updates: DEPTH * depth + FILE * file + line.
"""

import functools
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .log import Log, relative, theirs, users

FILE, DEPTH = 10**6, 10**9
FREE, SHARE = 0.3, 0.02  # tracing may take this many seconds, or this share of the time; then it ends
CALL, LINE, MONITORED = 2e-6, 2e-6, 5e-7  # seconds: sys.settrace of any call and of a line, sys.monitoring of a line


class Lines:
    """Traces this thread from now on, also the functions under way. `always`: to the end, whatever it costs."""

    def __init__(self, log: Log, always: bool):
        self.log, self.spent = log, 0.0
        self.limit = math.inf if always else FREE
        self.number = functools.cache(self.new_file)
        under_way = [frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if users(frame)]
        self.depth = len(under_way)
        self.end = self.monitor(under_way, sys.monitoring) if hasattr(sys, "monitoring") else self.trace(under_way)

    def new_file(self, name: str) -> int:
        number, _ = self.log.number_of(name)
        self.log.note("file", number=number, path=relative(name), whole=name)
        return number

    def keep(self, code: CodeType, line: int) -> None:
        self.log.stream.append(DEPTH * min(self.depth, 999) + FILE * (self.number(code.co_filename) % 1000) + line)
        if self.spent > self.limit:
            self.enough()

    def enough(self) -> None:
        self.limit = max(FREE, SHARE * (time.monotonic() - self.log.began))
        if self.spent > self.limit:
            self.log.note("untraced")
            self.end()

    def trace(self, under_way: list[FrameType]) -> Callable[[], None]:
        """Trace by sys.settrace, and return what ends it. A debugger, or coverage, keeps it."""
        on = sys.gettrace() is None

        def called(frame: FrameType, *_: Any) -> Any:
            self.spent += CALL
            if self.spent > self.limit:
                self.enough()
            if not theirs(frame.f_code.co_filename):
                return None
            self.depth += 1
            return line

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and on:
                self.spent += LINE
                self.keep(frame.f_code, frame.f_lineno)
            elif event == "return":
                self.depth -= 1
            return line if on else None

        def end() -> None:
            nonlocal on
            on = self.log.traced = False
            sys.settrace(None)

        if on:
            self.log.traced = True
            for frame in under_way:
                frame.f_trace = line
            sys.settrace(called)
        return end

    def monitor(self, under_way: list[FrameType], monitoring: Any) -> Callable[[], None]:
        """The same by sys.monitoring, from Python 3.12 on: only code of the user's is told of, so it costs little."""
        events, tool = monitoring.events, monitoring.PROFILER_ID
        if monitoring.get_tool(tool) is not None:
            return lambda: None

        def moved(by: int, code: CodeType) -> Any:
            if not theirs(code.co_filename):
                return monitoring.DISABLE
            if threading.get_ident() == self.log.main:  # it tells of all threads
                self.depth += by
                monitoring.set_local_events(tool, code, events.LINE)
            return None

        def raised(by: int, code: CodeType) -> None:
            moved(by, code)  # an exception's events cannot be disabled

        def line(code: CodeType, number: int) -> None:
            if threading.get_ident() == self.log.main:
                self.spent += MONITORED
                self.keep(code, number)

        def end() -> None:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, events.LINE, None)  # the events of each function's lines stay on
            monitoring.free_tool_id(tool)

        monitoring.use_tool_id(tool, "doctor")
        monitoring.register_callback(tool, events.LINE, line)
        for event, by in ((events.PY_START, 1), (events.PY_RESUME, 1), (events.PY_RETURN, -1), (events.PY_YIELD, -1)):
            monitoring.register_callback(tool, event, lambda code, *_, by=by: moved(by, code))
        for event, by in ((events.PY_THROW, 1), (events.PY_UNWIND, -1)):
            monitoring.register_callback(tool, event, lambda code, *_, by=by: raised(by, code))
        for frame in under_way:
            monitoring.set_local_events(tool, frame.f_code, events.LINE)
        monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
                              | events.PY_UNWIND | events.PY_THROW)
        return end
