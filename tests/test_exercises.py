"""Every exercise: its solution is right, its stub is untried, and each typical mistake is recognised."""

import importlib
import inspect
import re
import runpy
import time
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from course import on_ranks
from course.exercise import NOTHING, Case, Exercise, Shown, exercise, same
from course.on_ranks import ExerciseOnRanks, exercise_on_ranks
from tests import runner

EXERCISES = {f"{re.search('[0-9]{2}[a-z]?', lesson)[0]}-{name}": value for lesson in runner.LESSONS
             for name, value in vars(importlib.import_module(lesson)).items() if isinstance(value, Exercise)}
# Their question is one fixed text with one right answer: a code, a table, recorded runs or consoles, a command line.
NOTHING_TO_DRAW = {"04-choices", "10-failures", "10-job", "10-line"}
# They are judged by what they do, not by what they return.
NOTHING_TO_REMEMBER = {"02-step", "11-never_half"}
ON_RANKS = {name for name, each in EXERCISES.items() if isinstance(each, ExerciseOnRanks)}


def each_of(names):
    return pytest.mark.parametrize("name", sorted(names))


def stub(*args, **kwargs):
    raise NotImplementedError


def broken(*args, **kwargs):
    raise ZeroDivisionError("oops")


@each_of(EXERCISES)
def test_solution_is_right_and_stub_is_untried_and_each_mistake_gets_its_own_message(name, capsys):
    asked = EXERCISES[name]
    mistakes = list(asked.mistakes.values())
    assert len(mistakes) >= 2
    # All at once, since on ranks each start takes its time, and a verdict would run the mistakes once more. What starts
    # no ranks runs twice: as a learner's attempt, and to be compared with it.
    right, untried, *observed = asked.observe([asked.answer, stub, *mistakes])
    attempts = observed if name in ON_RANKS else asked.observe(mistakes)

    def verdict(attempt):
        with mock.patch.object(asked, "observe", side_effect=[[attempt], observed]):
            return asked.verdict("an attempt")

    outcome, message = verdict(right)
    assert outcome == "right" and len(message) > 30, message
    for attempt, message in zip(attempts, asked.mistakes, strict=True):
        outcome, text = verdict(attempt)
        assert outcome == "wrong" and message in text, message
    assert verdict(untried) == asked.verdict(None) == asked.verdict(...) == ("untried", "Not tried yet.")
    asked(None)
    asked.hint()
    asked.solution()
    assert re.match(r"○ Not tried yet\.\n[^\n]{20}(.*\n){2}", capsys.readouterr().out)


def test_what_the_answer_s_file_has_imported_is_replaced_too(tmp_path):
    (tmp_path / "answer.py").write_text("from torch.distributed import barrier as wait\ndef answer(): return wait()\n")
    answer, barrier = runpy.run_path(str(tmp_path / "answer.py"))["answer"], dist.barrier
    with on_ranks.patched(answer, barrier=lambda: 7):
        assert answer() == dist.barrier() == 7
    assert answer.__globals__["wait"] is dist.barrier is barrier


# ------------------------------------------------------------------------------------------------ a grader's cases


def in_a_world_of(ranks, answer, *case):
    with mock.patch.object(dist, "get_world_size", lambda *_: ranks):
        return answer(*case)


@pytest.mark.parametrize(("name", "mistaken"), [
    *((name, name not in ON_RANKS) for name in sorted(EXERCISES)),
    *(pytest.param(name, True, marks=pytest.mark.weekly) for name in sorted(ON_RANKS))])  # ranks cost seconds
def test_with_drawn_cases_right_is_right_and_a_mistake_is_wrong(name, mistaken, monkeypatch):
    asked = EXERCISES[name]
    wrong = list(asked.mistakes.values()) if mistaken else []
    # What runs on several numbers of ranks is tried with another one by every check.
    if name in ON_RANKS and isinstance(asked.ranks(), int) and "get_world_size" in inspect.getsource(asked.answer):
        wrong.append(partial(in_a_world_of, asked.ranks(), asked.answer))  # right for the lesson's number of ranks
    for seed in ("1",) if name in ON_RANKS | NOTHING_TO_DRAW | {"11-never_half"} else ("1", "2", "3"):
        monkeypatch.setattr("course.exercise.seed", seed)
        answers = [asked.answer, *wrong]  # at once, as above
        for answer, (cases, error) in zip(answers, asked.observe(answers), strict=True):
            right = not error and all(same(case.got, case.right, case.rel_tol) for case in cases)
            assert right == (answer is asked.answer), (seed, answer, error, cases)


@each_of(EXERCISES.keys() - ON_RANKS - NOTHING_TO_DRAW - NOTHING_TO_REMEMBER)
def test_an_answer_that_remembers_the_lesson_s_cases_is_wrong(name, monkeypatch):
    asked, known = EXERCISES[name], []

    def learn(*case):
        known.append(asked.answer(*case))
        return known[-1]

    def remembering():
        values = iter(known)

        def remembered(*case):
            asked.answer(*case)  # what it does is right
            return next(values, known[0])
        return remembered

    assert asked.verdict(learn)[0] == asked.verdict(remembering())[0] == "right"
    for seed in ("1", "2", "3"):
        monkeypatch.setattr("course.exercise.seed", seed)
        assert asked.verdict(remembering())[0] == "wrong", seed


@each_of(NOTHING_TO_DRAW)
def test_the_teacher_is_told_where_a_copied_answer_passes(name):
    readme = (runner.ROOT / "teach" / "README.md").read_text(encoding="utf-8")
    number, name = name.split("-")
    assert re.search(rf"\b{number} [^;.]*`{name}`", readme), "its list of exercises whose cases are not drawn"


# ---------------------------------------------------------------------------------------------- course/exercise.py


@exercise(solution=[1, 2, 3].__getitem__, hint="Count.", mistakes={
    "Alike in the first.": [1, 9, 9].__getitem__, "Alike in all.": [1, 9, 8].__getitem__, "No key.": {}.__getitem__})
def count(answer):
    """You can count."""
    for place, right in enumerate([1, 2, 3]):
        got = answer(place)
        yield Case(got, right, f"At {place} you gave {got}.")


@pytest.mark.parametrize(("answer", "outcome", "message"), [
    ([1, 2, 3], "right", "Right. You can count."),
    ([1, 9, 8], "wrong", "Not yet. At 1 you gave 9. Alike in all."),
    ([1, 9, 7], "wrong", "Not yet. At 1 you gave 9. Alike in the first."),
    ([1, 9], "wrong", "Not yet. At 1 you gave 9. Alike in the first."),
    ([1, 7, 8], "wrong", "Not yet. At 1 you gave 7."),
    ({5: 1}, "wrong", "Not yet. It raised KeyError: 0. No key."),
    ([], "wrong", "Not yet. It raised IndexError: list index out of range."),
])
def test_a_wrong_answer_gets_the_case_and_the_mistake_that_behaves_alike(answer, outcome, message):
    assert count.verdict(answer.__getitem__) == (outcome, message)


def counted_too_far(place):
    return [1, 2, 3][place + 3]


def counted_for_ever(place):
    while True:
        place += 1


def test_an_error_has_its_line_and_a_loop_without_an_end_has_one(monkeypatch):
    monkeypatch.setattr("course.exercise.LIMIT", 1)
    assert re.search(r"range\. In line \d+: `return \[1, 2, 3\]\[place \+ 3\]`\.$", count.verdict(counted_too_far)[1])
    assert count.verdict(counted_for_ever)[1].startswith("Not yet. Your function had not come to its end after 1 s.")


def counted_and_printed(place):
    print(place + 1)


def counted_in_place(place):
    def inner():
        return place
    inner()


def counted_on_one_way(place):
    if place:
        return place + 1


@exercise(solution=lambda place: place + 1, hint="Count.", mistakes={"It stays.": lambda place: place})
def counts(answer):
    """You can count."""
    for place in range(3):
        got = answer(place)
        yield Case(got + 0, place + 1, f"At {place} you gave {got}.")


@pytest.mark.parametrize(("answer", "message"), [
    (counted_and_printed, NOTHING), (counted_in_place, NOTHING), (counted_on_one_way, "It raised TypeError"),
    (lambda place: print(place), "It raised TypeError"), (lambda place: place, "At 0 you gave 0. It stays.")])
def test_a_forgotten_return_is_told_as_that(answer, message):
    assert counts.verdict(answer)[1].startswith(f"Not yet. {message}")


@pytest.mark.parametrize(("answer", "outcome", "said"), [
    (lambda place: place + 1, "right", "✔ Right. You can count."),
    (lambda place: place, "wrong", "✘ Not yet. At 0 you gave 0. It stays."), (None, "untried", "○ Not tried yet.")])
def test_a_verdict_has_a_mark_in_text_and_a_mark_and_a_colour_in_a_notebook(answer, outcome, said, capsys):
    counts(answer)
    assert capsys.readouterr().out == f"{said}\n"
    page = Shown(outcome, f"{said[2:]} `a < b`")._repr_html_()
    mark, colour = Shown.MARKS[outcome]
    assert f"background:{colour}" in page and f">{mark} {said[2:].partition('.')[0]}.</b>" in page
    assert page.endswith("<code>a &lt; b</code></div>")
    assert len({colour for _, colour in Shown.MARKS.values()}) == 3


def asks_the_sampler(n, rank, world_size):
    return list(DistributedSampler(range(n), world_size, rank, shuffle=False))


def test_what_an_exercise_excludes_is_refused_and_a_tuple_will_do_for_a_list():
    shard, init = EXERCISES["05-shard"], DistributedSampler.__init__
    assert "to do without it" in shard.verdict(asks_the_sampler)[1]
    assert "to do without it" in shard.verdict(partial(DistributedSampler, shuffle=False))[1]
    assert shard.verdict(lambda *case: tuple(shard.answer(*case)))[0] == "right"
    assert DistributedSampler.__init__ is init


def test_a_lesson_goes_on_with_the_learner_s_answer_only_where_it_is_right():
    right = [1, 2, 3].__getitem__
    assert count.or_ours(right) == (right, "your")
    for attempt in ([1, 9, 8].__getitem__, {}.__getitem__, stub, None):
        assert count.or_ours(attempt) == (count.answer, "our")


def test_a_right_answer_gets_what_its_cases_remark_and_a_wrong_one_does_not():
    def remarked(answer):
        """You can count."""
        yield Case(answer, 3, f"You gave {answer}.", remark="It took one step.")

    asked = exercise(solution=3, hint="Count.", mistakes={})(remarked)
    assert asked.verdict(3) == ("right", "Right. It took one step. You can count.")
    assert asked.verdict(4) == ("wrong", "Not yet. You gave 4.")


class Agrees(int):
    """As a cheat writes it."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(("got", "right", "expected"), [
    (Agrees(5), 7, False), (Agrees(7), 7, False), ([Agrees(5)], [7], False), ((1.0, Agrees(5)), (1.0, 7), False),
    ({"a": Agrees(5)}, {"a": 7}, False), (mock.ANY, None, False), (torch.tensor(7), 7, True),
    (torch.tensor(7), 8, False), (np.float32(0.1), 0.1, True), (np.int64(7), 7, True), ([1], (1,), True),
    ((1, [2]), [1, (3,)], False), ((1.0, 2), (1.0 + 1e-8, 2), True), (True, 1, True), (None, None, True),
    ("a", "a", True), ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False)])
def test_an_answer_is_compared_and_does_not_compare_itself(got, right, expected):
    assert same(got, right) is expected


# --------------------------------------------------------------------------------------- a learner's file, on ranks


def my_total(number):
    total = torch.tensor(float(number))
    dist.all_reduce(total)
    return total.item()


def own_number(number):
    return float(number)


def measure_total(function, context):
    return {"total": function(context.rank + 1)}


@exercise_on_ranks(measure_total, solution=my_total, hint="Add up.",
                   mistakes={"That is your own number.": own_number, "It cannot divide.": broken})
def total(ranks):
    """All ranks have the sum."""
    got = [measured["total"] for measured in ranks]
    yield Case(got, [sum(range(len(ranks) + 1))] * len(ranks), f"You gave {got}.")


def in_a_file(folder, body):
    path = folder / "answer.py"
    path.write_text(f"import os, time, torch\nimport torch.distributed as dist\ndef my_total(number):\n    {body}\n")
    return path


@pytest.mark.parametrize(("body", "outcome", "message"), [
    ("total = torch.tensor(number); dist.all_reduce(total); return total.item()", "right", "Right. All ranks"),
    ("return number", "wrong", "Not yet. You gave [1, 2, 3]. That is your own number."),
    ("if dist.get_rank() == 0: dist.barrier()\n    return number", "wrong", "same collectives"),
    ("1 / 0", "wrong", "it raised ZeroDivisionError: division by zero. In line 4: `1 / 0`. It cannot divide."),
    ("dist.barrier()", "wrong", f"Not yet. {NOTHING}"),
    ("dist.barrier(", "wrong", "cannot be run: SyntaxError"),
    ("time.sleep(1000)", "wrong", "No end within 6 s: rank 0 and 1 and 2 still ran"),
    ("os.abort()", "wrong", "died (SIGABRT)"),
    ("if dist.get_rank() == 1: os._exit(3)\n    dist.barrier()", "wrong", "rank 1 died (exit status 3). Does"),
    ("os._exit(0)", "wrong", "leave the process?"),
])
def test_an_answer_in_a_file_runs_on_ranks(body, outcome, message, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ranks, "LIMIT", 6)
    verdict = total.verdict(in_a_file(tmp_path, body))
    assert verdict[0] == outcome and message in verdict[1]
    assert [file.name for file in tmp_path.iterdir()] == ["answer.py"]


@pytest.mark.parametrize("body", [
    "raise NotImplementedError", '"""In place."""\n    raise NotImplementedError', None])
def test_for_a_stub_or_no_file_no_rank_is_started(body, tmp_path, monkeypatch):
    monkeypatch.delattr(on_ranks.multiprocessing, "get_context")
    path = in_a_file(tmp_path, body) if body else tmp_path / "none.py"
    assert total.verdict(path) == ("untried", "Not tried yet.")


def never_begins(*_):
    time.sleep(60)


def test_a_machine_that_takes_long_to_start_ranks_is_not_the_answer_s_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ranks, "START", 1)
    monkeypatch.setattr(on_ranks, "be_rank", never_begins)
    outcome, message = total.verdict(in_a_file(tmp_path, "return 0"))
    assert outcome == "wrong" and message.endswith("Run this again.") and "Your answer is not at fault" in message
