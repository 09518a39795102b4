"""Every exercise: its solution is right, its stub is untried, and each typical mistake is named."""

import importlib
from pathlib import Path

import launch
import pytest

from scripts import checks

LESSONS = sorted(path.stem for path in Path(launch.ROOT, "scripts", "checks").glob("lesson_*.py"))
EXERCISES = [(lesson, name) for lesson in LESSONS
             for name, thing in vars(importlib.import_module(f"scripts.checks.{lesson}")).items()
             if isinstance(thing, checks.Exercise)]
each_exercise = pytest.mark.parametrize(("lesson", "name"), EXERCISES, ids=lambda part: part)


def get(lesson, name):
    return getattr(importlib.import_module(f"scripts.checks.{lesson}"), name)


def stub(*args, **kwargs):
    raise NotImplementedError


@each_exercise
def test_solution_is_right(lesson, name):
    exercise = get(lesson, name)
    outcome, message = exercise.verdict(exercise.answer)
    assert outcome == "right", message
    assert len(message) > 30, "a right answer says what was shown"


@each_exercise
def test_stub_is_untried(lesson, name, capsys):
    for untried in (stub, None, ...):
        assert get(lesson, name).verdict(untried) == ("untried", "Not tried yet.")
        get(lesson, name)(untried)
    assert capsys.readouterr().out == "Not tried yet.\n" * 3


@each_exercise
def test_each_typical_mistake_gets_a_message_of_its_own(lesson, name):
    exercise = get(lesson, name)
    assert len(exercise.mistakes) >= 2
    verdicts = {mistake: exercise.verdict(attempt) for mistake, attempt in exercise.mistakes.items()}
    assert all(outcome == "wrong" for outcome, _ in verdicts.values()), verdicts
    assert not any("It raised" in message for _, message in verdicts.values()), verdicts
    assert len({message for _, message in verdicts.values()}) == len(verdicts), verdicts


@each_exercise
def test_an_answer_that_raises_is_wrong_and_not_an_error(lesson, name):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("oops")

    assert get(lesson, name).verdict(broken)[0] == "wrong"


@each_exercise
def test_hint_and_solution_are_one_call_away(lesson, name, capsys):
    get(lesson, name).hint()
    assert len(capsys.readouterr().out) > 20
    get(lesson, name).solution()
    assert capsys.readouterr().out.strip()
