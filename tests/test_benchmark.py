"""The benchmark runs its programs in turns. test_record.py runs a round. No test looks at how long anything took."""

import sys

import pytest

from course import timing
from scripts.measure import benchmark


def test_programs_take_turns_in_alternating_order():
    order = []
    results = timing.interleave({name: lambda name=name: order.append(name) or len(order) for name in "abc"}, 3)
    assert "".join(order) == "abc" "cba" "abc"
    assert results == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_ratios_are_of_one_round_and_one_group(monkeypatch):
    times = iter([2, 4, 4, 3])  # the second round begins with the other program
    monkeypatch.setitem(benchmark.COMPARISONS, "two", lambda samples: (
        {("", name): lambda: {"start s": next(times)} for name in ("a", "b")}, [("a", "b")]))
    assert [figures["a / b start"] for figures in benchmark.measure("two", 2)] == [0.5, 0.75]
    figures = benchmark.figures({("x1", "a"): {"s": 1}, ("x1", "b"): {"s": 2}, ("x2", "a"): {"s": 3, "share": 0.1},
                                 ("x2", "b"): {"s": 1}}, [("a", "b")])
    assert figures == {"x1 a s": 1, "x1 b s": 2, "x2 a s": 3, "x2 a share": 0.1, "x2 b s": 1, "x1 a / b": 0.5,
                       "x2 a / b": 3}


@pytest.mark.weekly
def test_the_frameworks_are_compared_on_one_and_two_ranks(cifar10, monkeypatch):
    if not benchmark.installed():
        pytest.skip("neither Fabric nor Accelerate is installed (pip install -e '.[rivals]')")
    monkeypatch.setattr(benchmark, "MODELS", {"lenet": 512})
    (figures,) = benchmark.measure("frameworks", 1)
    assert all(figures[f"lenet {ranks} main.py / {name}"] > 0
               for name in benchmark.installed() for ranks in ("x1", "x2"))


def test_a_framework_that_is_not_installed_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda package: None)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--only", "ray"])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert "Ray is not installed" in line


def test_a_failed_run_is_named_and_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--only", "start", "--out", str(tmp_path / "figures.json")])
    monkeypatch.setattr(benchmark, "TORCHRUN", [sys.executable, "-c", "raise ZeroDivisionError"])
    with pytest.raises(SystemExit, match="(?s)ended with status 1:.*ZeroDivisionError"):
        benchmark.main()
    assert list(tmp_path.iterdir()) == []
