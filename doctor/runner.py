"""One rank's run of the script under the doctor, and the report at its end."""

import argparse
import faulthandler
import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from . import report
from .hooks import Enough, Hooks
from .lines import Lines
from .log import Log, Record, innermost, users, where
from .store import Store

KILLED = 128 + signal.SIGTERM  # torchrun does so to the others when a rank has failed
PACKAGE = str(Path(__file__).parents[1])  # the folder that this package is imported from


class Runner:
    """`statuses`: a folder in which processes that the script spawned leave theirs; `inner`: this is such a process."""

    def __init__(self, args: argparse.Namespace, statuses: Path, inner: bool = False):
        self.args, self.statuses, self.inner = args, statuses, inner
        self.pid, self.leave = os.getpid(), os._exit
        self.error: BaseException | None = None
        self.reporting = threading.Lock()
        self.status: int | None = None
        self.lines: Lines | None = None
        self.log = Log(int(os.environ.get("RANK", 0)))
        self.store = Store(self.log, args.timeout)
        self.hooks = Hooks(self.log, args.steps, self.met)
        self.store.watch(self.stalled)
        os._exit = self.left_early  # type: ignore[assignment]
        if not faulthandler.is_enabled():
            faulthandler.enable(2)  # gloo aborts a process that gets more numbers than it waits for: say where

    def met(self) -> None:
        """Called when a process group was made: from here on ranks can go different ways."""
        if not self.store.store:
            self.store.join_group()
        if not self.lines:
            self.lines = Lines(self.log, self.args.lines)

    def run(self, training: Callable[[], Any]) -> int:
        """Call `training()`, whatever it does, and report. Returns the exit status; `error` keeps its exception."""
        status = 0
        try:
            signal.signal(signal.SIGTERM, self.told_to_end)
            kept = training()  # noqa: F841  the script's variables live until the report
            self.log.ended = {"how": "done"}
        except Enough:
            self.log.ended = {"how": f"ended after {self.args.steps} steps, as asked"}
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
            self.error, status = end, end.code if isinstance(end.code, int) else int(end.code is not None)
            self.log.ended = {"how": f"exit status {status}", "status": status if status != KILLED else 0,
                                "where": raised_at(end)}
        except BaseException as error:
            self.error, status = error, 130 if isinstance(error, KeyboardInterrupt) else 1
            if not self.inner:  # torch.multiprocessing.spawn prints it
                traceback.print_exc()
            told = status if status != 130 else 0  # Ctrl-C is no crash
            self.log.ended = {"how": type(error).__name__, "status": told, "error": str(error)[:5000],
                                "where": raised_at(error)}
        return self.report(status, patient=not status)

    def report(self, status: int, patient: bool) -> int:
        """Report once, from the main thread or the watching one. Returns the exit status."""
        with self.reporting:
            if self.status is None:
                self.hooks.close()
                spawned = [file.read_text() for file in self.statuses.iterdir()] if not self.inner else []
                alone = self.inner and not self.log.counts.get("group")  # no rank, but a helper of the script's
                records = None if spawned or alone else self.store.collect(patient)
                wrong = self.tell(records) > 0 if records else "1" in spawned
                self.status = status or int(wrong)
                if self.inner and not alone:
                    (self.statuses / str(os.getpid())).write_text(str(self.status))
                self.store.end()
            return self.status

    def tell(self, records: dict[int, Record]) -> int:
        """Write the report; the number of its findings."""
        return report.publish(report.judge(records, self.store.size), self.args.json)

    def stalled(self) -> None:
        """Called by the watching thread: no rank has moved for the timeout."""
        self.log.note("stalled", seconds=self.args.timeout)
        try:
            self.report(1, patient=False)
        finally:  # the hang ends even if the report fails
            self.leave_nothing()
            self.leave(1)

    def told_to_end(self, number: int, _: Any) -> None:
        if os.getpid() != self.pid:  # a process that the script has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.store.hurried = True
        if not self.reporting.locked() and not self.error:  # else a report is under way, or comes, and ends soon
            sys.exit(KILLED)

    def left_early(self, status: int) -> None:
        """In place of os._exit, which ends a process at once: report first."""
        if os.getpid() == self.pid and self.log.ended is None:
            self.log.ended = {"how": f"os._exit({status})", "status": status, "where": where()}
            status = self.report(status, patient=not status)
            self.leave_nothing()
        self.leave(status)

    def leave_nothing(self) -> None:
        if not self.inner:
            shutil.rmtree(self.statuses, ignore_errors=True)


def raised_at(error: BaseException) -> str:
    return innermost(reversed(list(traceback.walk_tb(error.__traceback__))))


def script(args: argparse.Namespace) -> int:
    """Run the script as it is, with the processes that it starts by multiprocessing. Returns the exit status."""
    sys.argv = [str(args.script), *args.options]
    sys.path[0] = str(args.script.resolve().parent)
    sys.path.append(PACKAGE)  # for Spawned's processes
    with tempfile.TemporaryDirectory() as folder:
        runner, spawn = Runner(args, Path(folder)), torch.multiprocessing.spawn

        def spawned(fn: Callable, *given: Any, **options: Any) -> Any:
            with runner.log.during("spawn", where()):
                return spawn(Spawned(fn, args, folder), *given, **options)

        def begin(process: BaseProcess, group: Any = None, target: Any = None, *given: Any, **options: Any) -> None:
            theirs = users(sys._getframe(1))  # no worker of a DataLoader, say
            process_begin(process, group, Spawned(target, args, folder) if target and theirs else target,
                          *given, **options)

        process_begin: Any = BaseProcess.__init__
        BaseProcess.__init__ = begin  # type: ignore[method-assign,assignment]
        torch.multiprocessing.spawn = sys.modules["torch.multiprocessing.spawn"].spawn = spawned  # type: ignore
        return runner.run(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))


class Spawned:
    """The function that a process of the script's calls, under a doctor of its own."""

    def __init__(self, function: Callable, args: argparse.Namespace, statuses: str):
        self.function, self.args, self.statuses = function, args, statuses

    def __call__(self, *given: Any, **options: Any) -> None:
        runner = Runner(self.args, Path(self.statuses), inner=True)
        hooked = {id(value.__wrapped__): value for module in (torch, torch.distributed, torch.nn.utils)
                  for value in vars(module).values()
                  if type(value) is FunctionType and hasattr(value, "__wrapped__")}  # dist.reduce_op warns of each look
        names = getattr(self.function, "__globals__", {})  # its file was read before the hooks were there
        names.update({name: hooked[id(value)] for name, value in names.items() if id(value) in hooked})
        runner.run(lambda: self.function(*given, **options))
        if runner.error:
            raise runner.error
