"""Every exercise: its solution is right, its stub is untried, and each typical mistake is named."""

import importlib
from pathlib import Path

import launch
import pytest

from course import checks
from course.checks import lesson_06, on_ranks

LESSONS = sorted(path.stem for path in Path(launch.ROOT, "course", "checks").glob("lesson_*.py"))
EXERCISES = [(lesson, name) for lesson in LESSONS
             for name, thing in vars(importlib.import_module(f"course.checks.{lesson}")).items()
             if isinstance(thing, checks.Exercise)]
pytestmark = pytest.mark.usefixtures("ranks_find_all_modules_imported")
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
    get(lesson, name)(None)
    assert capsys.readouterr().out == "Not tried yet.\n"


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


# --------------------------------------------------------------------------------------- a learner's file, on ranks


def in_a_file(folder, body):
    path = folder / "answer.py"
    path.write_text(f"import torch\nimport torch.distributed as dist\n\n\ndef my_stop(want):\n    {body}\n")
    return path


@pytest.mark.parametrize(("body", "outcome", "said"), [
    ("wish = torch.tensor(float(want)); dist.all_reduce(wish); return wish > 0", "right", "Right."),
    ("dist.barrier()", "wrong", "you returned None"),
    ("if dist.get_rank() == 0: dist.barrier()\n    return want", "wrong", "same collectives"),
    ("want / no_such_name", "wrong", "On rank 0 it raised NameError"),
])
def test_an_answer_in_a_file_runs_on_ranks(body, outcome, said, tmp_path):
    verdict = get("lesson_04", "stopped").verdict(in_a_file(tmp_path, body))
    assert verdict[0] == outcome and said in verdict[1]
    assert [file.name for file in tmp_path.iterdir()] == ["answer.py"]


@pytest.mark.parametrize("body", [
    "raise NotImplementedError", '"""In place."""\n    raise NotImplementedError', None])
def test_for_a_stub_or_no_file_no_rank_is_started(body, tmp_path, monkeypatch):
    monkeypatch.delattr(on_ranks.multiprocessing, "get_context")
    path = in_a_file(tmp_path, body) if body else tmp_path / "none.py"
    assert get("lesson_04", "stopped").verdict(path) == ("untried", "Not tried yet.")


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    verdict = get("lesson_04", "stopped").verdict(in_a_file(tmp_path, "dist.barrier("))
    assert verdict[0] == "wrong" and "cannot be run: SyntaxError" in verdict[1]


@pytest.mark.parametrize(("body", "said"), [
    ("import time; time.sleep(1000)", "No end within 6 s: rank 0 and 1 and 2 still ran"),
    ("import os; os.abort()", "died (SIGABRT)"),
    ("import os\n    if dist.get_rank() == 1: os._exit(3)\n    dist.barrier()", "rank 1 died (exit status 3)"),
])
def test_ranks_that_never_end_or_die_are_told(body, said, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ranks, "LIMIT", 6)
    verdict = get("lesson_04", "stopped").verdict(in_a_file(tmp_path, body))
    assert verdict[0] == "wrong" and said in verdict[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_right_is_right_on_two_ranks_and_on_three(ranks):
    for name, function in (("apart", lesson_06.apart), ("train", lesson_06.train), ("save", lesson_06.save)):
        assert len(lesson_06.answers.findings(name, function, ranks)) == ranks
