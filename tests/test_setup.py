"""scripts/setup, with a Python that plays venv and pip."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from course.lesson import ROOT

# Stands for python3: real for everything but venv and pip, which it notes in `calls`.
PYTHON_STUB = f"""#!/usr/bin/env bash
case "$1 $2 $3" in
  "-m venv "*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo venv >> calls ;;
  "-m pip install")
    if [[ "$*" == *"--upgrade pip" ]]; then echo new-pip >> calls; exit "${{NEW_PIP_STATUS:-0}}"; fi
    if [[ "$*" == *--index-url* ]]; then echo "$*" > index; exit "${{INDEX_STATUS:-0}}"; fi
    echo pip >> calls; sleep "${{PIP_SECONDS:-0}}"; exit "${{PIP_STATUS:-0}}" ;;
  "scripts/prepare_data.py "*) echo data >> calls; exit "${{DATA_STATUS:-0}}" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
TOOLS = ["bash", "cat", "cksum", "cp", "dirname", "env", "flock", "grep", "mkdir", "rm", "sed", "sleep", "tail", "tr"]


@pytest.fixture
def clone(tmp_path):
    """A fresh clone, and a `bin` with the few programs that scripts/setup may use and a python3 that is played."""
    for place in ("scripts", "bin"):
        (tmp_path / place).mkdir()
    shutil.copy2(ROOT / "scripts/setup", tmp_path / "scripts")
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    for tool in TOOLS:
        if found := shutil.which(tool):  # flock is not everywhere
            (tmp_path / "bin" / tool).symlink_to(found)
    play(tmp_path, "python3", PYTHON_STUB)
    return tmp_path


def play(clone, program, text):
    (clone / "bin" / program).write_text(text)
    (clone / "bin" / program).chmod(0o755)


def start_setup(clone, *arguments, cwd=None, **changes):
    return subprocess.Popen([str(clone / "scripts/setup"), *arguments], cwd=cwd or clone, text=True,
                            env={"PATH": str(clone / "bin"), "HOME": str(clone)} | changes, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True)


def set_up(clone, *arguments, **changes):
    process = start_setup(clone, *arguments, **changes)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def calls(clone):
    return (clone / "calls").read_text().split()


def test_it_does_nothing_twice_and_installs_what_the_list_gained(clone):
    assert set_up(clone)[0] == 0
    assert calls(clone) == ["venv", "new-pip", "pip", "data"]
    (clone / "data/MNIST/raw").mkdir(parents=True)
    for name in ("cifar10.pt", "mnist.pt", "MNIST/raw/t10k-labels-idx1-ubyte"):
        (clone / "data" / name).touch()
    elsewhere = clone / "bin"
    assert set_up(clone, "--print-python", cwd=elsewhere) == (0, f"{clone.resolve()}/.venv/bin/python\n", "")
    assert calls(clone) == ["venv", "new-pip", "pip", "data"]
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# another version\n")
    assert set_up(clone)[0] == 0
    assert calls(clone) == ["venv", "new-pip", "pip", "data", "pip"]


def test_it_repairs_an_interrupted_one(clone):
    process = start_setup(clone, PIP_SECONDS="60")
    while "\npip\n" not in ((clone / "calls").read_text() if (clone / "calls").exists() else ""):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert set_up(clone)[0] == 0
    assert calls(clone) == ["venv", "new-pip", "pip", "venv", "new-pip", "pip", "data"]


def test_failures_are_one_line_and_missing_data_is_none(clone):
    status, out, err = set_up(clone, PIP_STATUS="1")
    assert status == 1 and out == "" and "build/setup.log" in err.splitlines()[-1]
    status, out, err = set_up(clone, NEW_PIP_STATUS="1", DATA_STATUS="1")
    assert "using the pip of Python" in err
    assert status == 0 and "synthetic" in err and "ready" in out
    play(clone, "python3", '#!/usr/bin/env bash\nif [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi\n')
    shutil.rmtree(clone / ".venv")
    status, _, err = set_up(clone)
    assert status == 1 and "Python 3.11 or newer" in err and "3.9.2" in err
    play(clone, "python3.12", PYTHON_STUB)
    assert set_up(clone)[0] == 0


def test_torch_for_the_cpu_comes_with_its_torchvision_from_one_index(clone):
    status, out, err = set_up(clone, "--cpu", INDEX_STATUS="1")
    assert status == 0 and "does not answer" in err and calls(clone) == ["venv", "new-pip", "pip", "data"]
    packages = (clone / "index").read_text().partition("--index-url ")[2]
    index, *packages = packages.split()
    assert index.endswith("/cpu") and [package.partition(">")[0] for package in packages] == ["torch", "torchvision"]
    shutil.rmtree(clone / ".venv")
    assert "does not answer" not in set_up(clone, "--cpu")[2]
    assert "stay as they are" in set_up(clone, "--cpu")[2]
