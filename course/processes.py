"""Run a command, wait so long and no longer, and leave no process behind."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "COURSE_BOUNDED_RUN"
GRACE = 20  # seconds that a command has after Ctrl-C, for main.py to end its log


def run(command, seconds, mark, env=None, **popen):
    """Exit status of `command`; None where it took longer than `seconds` and was killed.

    Nothing that it started is left, whatever happens. torchrun's ranks are sessions of their own, which outlive it: a
    `mark`, any text, in their environment finds them. Ctrl-C is passed on before it goes on here.
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


def environment(mark, env=None):
    """`env`, or else this process's environment, with `mark`: beside the marks of whoever started this process."""
    env = os.environ if env is None else env
    return {**env, MARK: f"{env.get(MARK, '')}\n{mark}"}


def wait_for_marks(seconds=5):
    """Until each child of this process can be found by its mark, but no longer: while a program is being loaded, its
    environment reads as empty."""
    give_up = time.monotonic() + seconds
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            while not child.environ() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < give_up:
                time.sleep(0.01)


def marked(mark):
    """The processes with this mark, but for this one. `info["environ"]` of each is its environment."""
    found = psutil.process_iter(["environ"], ad_value={})  # {}: another user's
    return [process for process in found if process.pid != os.getpid()
            and str(mark) in filter(None, process.info["environ"].get(MARK, "").split("\n"))]


def find_rank(mark, rank):
    """The process with this mark that its launcher told to be this rank; None where there is none."""
    return next((process for process in marked(mark) if process.info["environ"].get("RANK") == str(rank)), None)


def end(mark, seconds=10, spared=()):
    """Kill every process with this mark, but for those `spared`; their number. RuntimeError where one is still there
    after `seconds`."""
    give_up, killed = time.monotonic() + seconds, set()
    while left := set(marked(mark)) - set(spared):
        if time.monotonic() > give_up:
            raise RuntimeError(f"waited {seconds} s for killed processes to end: {[process.pid for process in left]}")
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        killed |= left
        time.sleep(0.1)
    return len(killed)


def run_and_read(command, seconds, mark):
    """(exit status as a shell gives it, or None; what was printed, without folders) of `run`."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:  # a pipe stays open as long as a stray rank holds it
        status = run(command, seconds, mark, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        said.seek(0)
        return 128 - status if status and status < 0 else status, without_folders(said.read())


def said(command, seconds=100):
    """What a command, one line, printed. RuntimeError where it failed, or was not done in time."""
    status, text = run_and_read(shlex.split(command), seconds, uuid.uuid4().hex)
    if status != 0:
        how = f"not done within {seconds} s" if status is None else f"exit status {status}"
        raise RuntimeError(f"{command}: {how}\n{text[-2000:]}")
    return text


def without_folders(text):
    """Paths as seen from here, and shorter: every line of a traceback has one."""
    return text.replace(f"{Path.cwd()}/", "").replace(sys.prefix, "(python)")
