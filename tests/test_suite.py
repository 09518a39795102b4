"""The tests' own rules: none of their processes makes a process group, and a run whose process dies ends, red."""

import ast
import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import runner

XDIST = re.search(r"set -- (--numprocesses.+)", Path(runner.ROOT, "scripts/test").read_text())[1].split()
GROUP_MAKERS = {"init_process_group", "init_distributed_mode"}


def test_no_test_process_makes_a_process_group():
    """gloo may abort a process that has left a group. runner._be_the_rank is a process of its own."""
    made = [f"{file.name}:{node.lineno}" for room in ("tests", "lessons") for file in (runner.ROOT / room).rglob("*.py")
            if file.parent.name == "tests" or file.name.startswith("test_")
            for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in GROUP_MAKERS]
    assert len(made) == 1 and made[0].startswith("runner.py:"), f"{made}: start ranks, or use in_a_group_of_one"


@pytest.mark.weekly
def test_a_test_process_that_dies_ends_the_run_red_within_a_minute(tmp_path):
    (tmp_path / "test_dies.py").write_text("import os\ndef test_dies(): os.abort()\ndef test_never_run(): pass\n")
    (tmp_path / "test_waits.py").write_text("import time\ndef test_waits(): time.sleep(250)\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", *XDIST, f"--rootdir={tmp_path}", tmp_path]
    start = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200,
                          env=runner.environment(PYTHONPATH=os.fspath(runner.ROOT)))
    assert done.returncode not in (0, 5) and time.monotonic() - start < 60, done.stdout
    assert "has died in test_dies.py::test_dies" in done.stdout, done.stdout


@pytest.mark.weekly
def test_a_run_whose_test_is_stuck_ends_with_all_its_processes(tmp_path):
    """In C, and with Python's lock: no signal handler runs, so that pytest-timeout cannot end it."""
    (tmp_path / "test_stuck.py").write_text("import ctypes, os\ndef test_stuck():\n"
                                            f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                                            "    ctypes.PyDLL(None).sleep(250)\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", *XDIST, f"--rootdir={tmp_path}", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100,
                          env=runner.environment(PYTHONPATH=os.fspath(runner.ROOT), TEST_SECONDS="20"))
    assert done.returncode == 1 and "Timeout (0:00:20)!" in done.stderr and "in test_stuck" in done.stderr, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        stuck = psutil.Process(int((tmp_path / "pid").read_text()))
        runner.wait_for(lambda: stuck.status() == psutil.STATUS_ZOMBIE, "the process that was stuck", 20)


@pytest.mark.parametrize(("files", "ci", "status"), [
    (["test_skips", "test_GPU", "test_listed"], "true", 1), (["test_skips"], "", 0)])
def test_a_skip_that_is_not_on_the_list_is_a_failure_in_ci(files, ci, status, tmp_path):
    for file in files:
        reason = "no GPU" if file == "test_listed" else "too lazy"
        (tmp_path / f"{file}.py").write_text(f"import pytest\ndef test_skips(): pytest.skip({reason!r})\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "conftest", f"--rootdir={tmp_path}", tmp_path],
                          cwd=tmp_path, capture_output=True, text=True, timeout=100,
                          env=runner.environment(PYTHONPATH=os.fspath(runner.ROOT), CI=ci))
    assert done.returncode == status, done.stdout
    named = [line for line in done.stdout.splitlines() if "not on the list" in line]
    assert len(named) == 2 * status and all("too lazy" in line for line in named)
