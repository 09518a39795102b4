"""The second kernel of notebook 10: what an attempt there gives back, and that nothing it started is left."""

import os
import signal
import subprocess
import sys

import pytest

from course import processes
from lessons.l10_launchers import notebook_kernel
from tests import runner


@pytest.fixture
def second():
    kernel = notebook_kernel.SecondKernel(number=3)
    yield kernel
    kernel.end()


def marked(mark):
    return [process.pid for process in processes.marked(mark)]


def test_an_attempt_that_works_and_one_that_fails(second):
    worked = second.attempt("a", "import sys\nprint('hello', file=sys.stderr)\nprint('there')\nnumber + 1", 60)
    assert (worked.end, worked.printed, worked.said, worked.returned) == ("worked", "there\n", "hello\n", "4")
    assert str(worked).startswith("→ worked, ")
    failed = second.attempt("b", "1 / 0", 60)
    assert (failed.end, failed.essential) == ("failed", "ZeroDivisionError: division by zero")
    assert "Traceback" in failed.trace and "\x1b" not in failed.trace
    assert second.attempt("c", "number", 60).returned == "3", "the kernel goes on after an error"
    assert list(second.outcomes) == ["a", "b", "c"]


def test_a_hang_is_killed_with_all_that_it_started_and_the_next_attempt_has_the_set_up(second):
    second.setup = "mine = 'set up'\n"
    hang = ("import subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
            "while True: pass")
    second.attempt("first", "mine", 60)
    mark = second.mark
    assert len(marked(mark)) >= 1
    killed = second.attempt("hang", hang, 3)
    assert (killed.end, killed.left) == ("killed", 2) and "killed, with 1 processes" in str(killed)
    assert marked(mark) == []
    assert second.attempt("after", "mine", 60).returned == "'set up'" and second.mark != mark


def test_what_an_attempt_leaves_running_is_killed(second):
    code = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    outcome = second.attempt("left", code, 60)
    assert (outcome.end, outcome.left) == ("worked", 1)
    assert int(outcome.returned) not in marked(second.mark)


def test_ctrl_c_ends_the_second_kernel(second, monkeypatch):
    second.attempt("a", "1", 60)
    mark = second.mark

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(second, "_execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        second.attempt("b", "1", 60)
    assert marked(mark) == [] and second.manager is None


def test_nothing_is_left_where_the_notebook_is_killed(tmp_path):
    code = ("from lessons.l10_launchers.notebook_kernel import SecondKernel\nsecond = SecondKernel()\nsecond.start()\n"
            "print(second.mark, flush=True)\n"
            "second.attempt('hang', 'import os, time\\nif os.fork() == 0: os.setsid()\\ntime.sleep(600)', 600)")
    notebook = subprocess.Popen([sys.executable, "-c", code], cwd=runner.ROOT, stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.DEVNULL)
    mark = notebook.stdout.readline().strip()
    runner.wait_for(lambda: len(marked(mark)) >= 2, "the attempt to fork", 60)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.communicate()
    runner.wait_for(lambda: not marked(mark), "the guard to kill what is left", 30)


def test_a_set_up_that_fails_says_why(second):
    second.setup = "import nothing_of_that_name\n"
    with pytest.raises(RuntimeError, match="could not be set up: ModuleNotFoundError: No module named 'nothing"):
        second.attempt("a", "1", 60)
    assert second.manager is None


@pytest.mark.parametrize(("said", "error", "essential"), [
    ("Traceback\n  File x\nAttributeError: no work\nTraceback\nAttributeError: no work 2\n", "Ended: exit code 1",
     "AttributeError: no work"),
    ("[W1121 socket.cpp:764] warning\nframe #0: c10::Error::Error()\n", "DistStoreError: Timed out",
     "DistStoreError: Timed out"),
    ("", "ProcessRaisedException: \n\n-- Process 0 terminated:\nTraceback\nRuntimeError: [x.cc:1] Timed out\n",
     "RuntimeError: [x.cc:1] Timed out"),
    ("[rank1]: Traceback\n[rank1]: ValueError: bad\n", "CalledProcessError: 1", "ValueError: bad"),
])
def test_the_line_to_look_at(said, error, essential):
    outcome = notebook_kernel.Outcome("failed", 1, "", said, "trace\n", error, "", 0)
    assert outcome.essential == essential
    assert str(outcome).splitlines()[1] == essential
