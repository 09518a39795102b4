"""Run a command, wait so long and no longer, and leave no process behind. scripts/sweep.py and benchmark.py use it."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import psutil

MARK = "COURSE_BOUNDED_RUN"
GRACE = 20  # seconds that a command has after Ctrl-C, for main.py to end its log


def run(command, seconds, mark, env=None, **popen):
    """Exit status of `command`; None where it took longer than `seconds` and was killed.

    Nothing that it started is left, whatever happens. torchrun's ranks are sessions of their own, which outlive it: a
    `mark`, any text, in their environment finds them. Ctrl-C is passed on before it goes on here.
    """
    environment = {**(os.environ if env is None else env), MARK: str(mark)}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **popen)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut this short
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        end(mark)
        signal.signal(signal.SIGINT, impatient)
        raise
    finally:
        end(mark)
        process.wait()


def marked(mark):
    """The processes with this mark, but for this one."""
    def has_it(process):
        try:
            return process.pid != os.getpid() and process.environ().get(MARK) == str(mark)
        except (psutil.Error, OSError):  # gone, or another user's
            return False

    return [process for process in psutil.process_iter() if has_it(process)]


def end(mark, seconds=10):
    """Kill every process with this mark. RuntimeError where one is still there after `seconds`."""
    give_up = time.monotonic() + seconds
    while left := marked(mark):
        if time.monotonic() > give_up:
            raise RuntimeError(f"waited {seconds} s for killed processes to end: {[process.pid for process in left]}")
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)
