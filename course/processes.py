"""Run a command within a time limit, and leave no process behind."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "COURSE_BOUNDED_RUN"
GRACE = 20  # seconds that a command has after Ctrl-C, for main.py to end its log


def run(command: list[str], seconds: float, mark: object, env: Mapping[str, str] | None = None, **popen) -> int | None:
    """The exit status of `command`; None where it took longer than `seconds` and was killed.

    No process that it started is left, whatever happens. torchrun's ranks are sessions of their own and outlive it, so
    they are found by `mark`, any text, in their environment. Ctrl-C reaches the command before it is raised here.
    `popen`: options of subprocess.Popen, which also raises its errors.
    """
    process = None
    try:
        process = subprocess.Popen(command, env=environment(mark, env), start_new_session=True, **popen)
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut this short
        if process:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        else:  # it came before Popen had returned, and its child, if there is one, has done nothing yet
            wait_for_marks()
        end(mark)
        signal.signal(signal.SIGINT, impatient)
        raise
    finally:
        end(mark)
        if process:
            process.wait()


def environment(mark: object, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env`, or this process's environment, with `mark` added to the marks of the processes that started this one."""
    env = os.environ if env is None else env
    return {**env, MARK: f"{env.get(MARK, '')}\n{mark}"}


def wait_for_marks(seconds: float = 5) -> None:
    """Wait until each child of this process can be found by its mark, at most `seconds`: while the system loads a
    program, its environment reads as empty."""
    give_up = time.monotonic() + seconds
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            while not child.environ() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < give_up:
                time.sleep(0.01)


def marked(mark: object) -> list[psutil.Process]:
    """The processes with this mark, without this one. `info["environ"]` of each is its environment."""
    readable = psutil.process_iter(["environ"], ad_value={})  # {}: another user's
    return [process for process in readable if process.pid != os.getpid()
            and str(mark) in filter(None, process.info["environ"].get(MARK, "").split("\n"))]


def end(mark: object, seconds: float = 10) -> int:
    """Kill every process with this mark, and return their number. RuntimeError where a process is still there after
    `seconds`."""
    give_up, killed = time.monotonic() + seconds, set()
    while left := set(marked(mark)):
        if time.monotonic() > give_up:
            raise RuntimeError(f"waited {seconds} s for killed processes to end: {[process.pid for process in left]}")
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        killed |= left
        time.sleep(0.1)
    return len(killed)


def run_and_read(command: list[str], seconds: float, mark: object, **settings) -> tuple[int | None, str]:
    """(the exit status as a shell gives it, or None; the output without this machine's folders) of `run`."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:  # a pipe stays open as long as a stray rank holds it
        status = run(command, seconds, mark, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                     **settings)
        output.seek(0)
        return 128 - status if status and status < 0 else status, without_folders(output.read())


def said(command: str, seconds: float = 100) -> str:
    """The output of a command line. RuntimeError where it failed, or took longer than `seconds`."""
    status, text = run_and_read(shlex.split(command), seconds, uuid.uuid4().hex)
    if status != 0:
        how = f"not done within {seconds} s" if status is None else f"exit status {status}"
        raise RuntimeError(f"{command}: {how}\n{text[-2000:]}")
    return text


def without_folders(text: str) -> str:
    """The text with paths relative to this folder: each line of a traceback has a path, and names this machine."""
    return text.replace(f"{Path.cwd()}/", "").replace(sys.prefix, "(python)")
