"""The benchmark runs what it says, in turns, and writes what it printed. No test looks at how long anything took."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from scripts.measure import benchmark
from tests import runner


def run(*arguments):
    return runner.torchrun(0, *arguments, script="scripts/measure/benchmark.py")


def test_each_round_begins_with_another_program():
    order = []
    for number in range(4):
        did = benchmark.in_turn(number, {name: lambda name=name: order.append(name) or name * 2 for name in "abc"})
        assert did == {"a": "aa", "b": "bb", "c": "cc"}
    assert "".join(order) == "abc" "cba" "abc" "cba"


def test_a_round_is_run_and_written(cifar10, tmp_path):
    done = run("--only", "epoch", "--rounds", 2, "--samples", 256, "--out", tmp_path / "new" / "figures.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "new" / "figures.json").read_text())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["figures.json"]
    assert found["samples"] == 256 and found["versions"]["torch"]
    (name, rounds), = found["rounds"].items()
    assert (name, len(rounds)) == ("epoch", 2)
    assert all(0 < figures["main.py data share"] < 1 for figures in rounds)


@pytest.mark.parametrize(("seconds", "told"), [
    ([(2, 4), (3, 4), (1, 4)], "0.5       0.25       0.75   at most 0.5: reached"),
    ([(2, 4), (3, 4)], "0.625        0.5       0.75   at most 0.5: not reached"),
])
def test_ratios_are_of_one_round_and_their_median_is_told(seconds, told, monkeypatch, capsys):
    ours, theirs = zip(*seconds, strict=True)
    for name, values in (("second_epoch", iter(ours)), ("textbook", iter(theirs))):
        monkeypatch.setattr(benchmark, name, lambda *_, values=values, **__: {"seconds": next(values),
                                                                              "data_seconds": 1})
    benchmark.measure(["epoch"], argparse.Namespace(rounds=len(seconds), samples=None))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "main.py / textbook" in line]
    assert line.split("textbook")[1].split() == told.split()


def test_a_start_is_held_against_ranks_that_only_import_torch(monkeypatch):
    for name, seconds in (("main_py", 3), ("textbook", 6)):
        monkeypatch.setattr(benchmark, name, lambda *_, seconds=seconds: {"time": time.time() + seconds})
    monkeypatch.setattr(benchmark, "TORCHRUN", [sys.executable, "-c", "import runpy, sys; runpy.run_path(sys.argv[2])"])
    figures = benchmark.start_round(1, None)
    assert figures["main.py / textbook"] == pytest.approx(0.5, rel=0.01)
    assert figures["main.py / import torch"] > 0
    assert {figure for name, figure in benchmark.AIMS if name == "start"} <= set(figures)


def test_ray_is_held_against_torchrun(monkeypatch):
    started = []

    def main_py(launcher, *options, script, **_):
        started.append((*launcher[1:], script))
        return {"time": time.time() + (30 if "ray" in script else 10)}

    monkeypatch.setattr(benchmark, "main_py", main_py)
    figures = benchmark.ray_round(0, None)
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", "main.py")
    assert started == [torchrun, ("scripts/rivals/ray_loop.py",)]
    assert figures["ray start s"] == pytest.approx(30, abs=0.1)
    assert figures["ray / torchrun start"] == pytest.approx(3, rel=0.01)
    assert figures["ray whole s"] < 1


def test_the_frameworks_are_compared_on_one_and_two_ranks(cifar10, tmp_path, monkeypatch, forked_python):
    if not benchmark.installed():
        pytest.skip("neither Fabric nor Accelerate is installed (pip install -e '.[rivals]')")
    monkeypatch.setattr(benchmark, "MODELS", {"lenet": 512})
    monkeypatch.setenv("PYTHON_EXEC", forked_python)
    figures = benchmark.frameworks_round(0, None)
    for name, ranks in itertools.product(benchmark.installed(), ("x1", "x2")):
        assert figures[f"lenet {ranks} main.py / {name}"] > 0
        assert ("frameworks", f"lenet {ranks} main.py / {name}") in benchmark.AIMS


def test_a_thousand_logs_are_read():
    benchmark.logs_round(0, None)  # ends the program where a row is missing or a note says something


@pytest.mark.parametrize(("arguments", "said"), [
    (["--rounds", "0"], "--rounds: 0 is not a positive number"),
    (["--samples", "-1"], "--samples: -1 is not a positive number"),
    (["--only", "all"], "invalid choice: 'all'"),
    (["--out", "/dev/null/x.json"], "--out: cannot write in /dev/null (Not a directory)"),
    (["--only", "frameworks"], "neither Fabric nor Accelerate is installed"),
    (["--only", "ray"], "Ray is not installed"),
])
def test_bad_input_is_one_line_and_status_2(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda package: None)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and len(told.err.splitlines()) == 1 and said in told.err


def test_a_failed_run_is_named_and_nothing_is_written(monkeypatch, tmp_path):
    target = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--only", "start", "--out", str(target)])
    monkeypatch.setattr(benchmark, "TORCHRUN", [sys.executable, "-c", "raise ZeroDivisionError"])
    with pytest.raises(SystemExit, match="(?s)ended with status 1:.*ZeroDivisionError"):
        benchmark.main()
    assert list(tmp_path.iterdir()) == []


TWO_AT_ONCE = """import sys
from scripts.measure import benchmark
benchmark.ROUNDS["ranks"] = lambda *_: benchmark.apart("lenet", 50_000)
sys.argv[0] = benchmark.__file__
benchmark.main()
"""


@pytest.mark.parametrize(("program", "runs"), [(["scripts/measure/benchmark.py"], 1), (["-c", TWO_AT_ONCE], 2)])
def test_ctrl_c_ends_what_is_running(program, runs, tmp_path):
    command = runner.command(0, *program, "--only", "ranks", "--out", tmp_path / "figures.json")
    going = subprocess.Popen(command, cwd=runner.ROOT, env=runner.environment(), stderr=subprocess.PIPE, text=True)
    family = psutil.Process(going.pid)
    runner.wait_for(lambda: len(family.children(recursive=True)) >= runs, "the first run")
    children = family.children(recursive=True)
    os.kill(going.pid, signal.SIGINT)
    _, said = going.communicate(timeout=60)
    assert going.returncode == 130 and "stopped; nothing was written" in said and "Traceback" not in said
    assert psutil.wait_procs(children, timeout=30)[1] == [] and list(tmp_path.iterdir()) == []
