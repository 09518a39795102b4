"""Every exercise: its solution is right, its stub is untried, and each typical mistake is named."""

import importlib
from pathlib import Path

import launch
import pytest

from course import checks
from course.checks import answer

LESSONS = sorted(path.stem for path in Path(launch.ROOT, "course", "checks").glob("lesson_*.py"))
EXERCISES = [(lesson, name) for lesson in LESSONS
             for name, thing in vars(importlib.import_module(f"course.checks.{lesson}")).items()
             if isinstance(thing, checks.Exercise)]
each_exercise = pytest.mark.parametrize(("lesson", "name"), EXERCISES, ids=lambda part: part)


def get(lesson, name):
    return getattr(importlib.import_module(f"course.checks.{lesson}"), name)


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


# ------------------------------------------------------------------------------------------ course/checks/answer.py


@pytest.mark.parametrize(("world_size", "options", "said"), [
    (2, [], "--answer none.py: no such file"),
    (1, [], "two ranks or more"),
    (2, ["--lesson", "05"], "invalid choice: '05'"),
    (2, ["--limit", "0"], "0 is not a positive number"),
    (2, ["--answer", "README.md", "--out", "."], "is a folder"),
])
def test_bad_input_is_one_line_and_nothing_is_written(world_size, options, said, tmp_path, monkeypatch, capfd):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["answer.py", "--lesson", "06", "--answer", "none.py", "--out",
                                     str(tmp_path / "found.json"), *options])
    with pytest.raises(SystemExit, match="2"):
        answer.main()
    stderr = capfd.readouterr().err
    assert said in stderr and len(stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_the_limit_ends_ranks_that_never_end(tmp_path):
    (tmp_path / "answer.py").write_text("def my_all_reduce(tensor):\n    while True: pass\n")
    done = launch.run(2, "--lesson", "04", "--limit", 5, "--answer", tmp_path / "answer.py", "--out",
                      tmp_path / "found.json", script="course/checks/answer.py")
    assert done.returncode == 1 and "Timeout (0:00:05)!" in done.stderr and "in my_all_reduce" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["answer.py"]
