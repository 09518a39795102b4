"""hello.py counts each number once, and the exercise tells each mistake apart."""

import json

import pytest

from lessons._template import check, show
from tests import runner

PROGRAM = "lessons/_template/hello.py"


@pytest.mark.parametrize(("ranks", "means", "mean"), [(2, [0, 0.5], 1 / 3), (3, [0, 0.5, 1], 2 / 3)])
def test_each_number_counts_once(ranks, means, mean, tmp_path):
    done = runner.run(ranks, "--out", tmp_path / "hello.json", script=PROGRAM)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "hello.json").read_text())
    assert measured["means"] == means and measured["mean"] == pytest.approx(mean)
    drawn = show.means(measured)
    assert [bar.get_width() for bar in drawn.patches] == means
    assert drawn.lines[0].get_xdata()[0] == pytest.approx(mean)


def test_one_process_is_refused_in_one_line(tmp_path):
    done = runner.run(0, "--out", tmp_path / "hello.json", script=PROGRAM)
    assert done.returncode == 2 and "start this with torchrun" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "hello.json").exists()


def test_the_exercise_names_each_mistake():
    assert check.mean.verdict(check.my_mean)[0] == "right"
    for message, mistake in check.mean.mistakes.items():
        outcome, told = check.mean.verdict(mistake)
        assert outcome == "wrong" and told.endswith(message)
