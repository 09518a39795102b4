"""hello.py counts each number once, and the exercise tells each mistake apart."""

import json

import pytest

from lessons._template import check, hello
from tests import runner


def test_each_number_counts_once(tmp_path):
    done = runner.run(3, "--out", tmp_path / "hello.json", script="lessons/_template/hello.py")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "hello.json").read_text())
    assert measured == {"means": [0, 0.5, 1], "mean": pytest.approx(2 / 3)}


def test_one_process_is_refused(tmp_path, refused):
    assert "start this with torchrun" in refused(hello, "--out", tmp_path / "hello.json")
    assert not (tmp_path / "hello.json").exists()


def test_the_exercise_names_each_mistake():
    assert check.mean.verdict(check.my_mean)[0] == "right"
    for message, mistake in check.mean.mistakes.items():
        outcome, text = check.mean.verdict(mistake)
        assert outcome == "wrong" and text.endswith(message)
