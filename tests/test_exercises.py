"""Every exercise: its solution is right, its stub is untried, and each typical mistake is recognised."""

import importlib
import re
import runpy
import time
from multiprocessing import forkserver
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from course import on_ranks
from course.exercise import NOTHING, Case, Exercise, exercise, same
from course.on_ranks import ExerciseOnRanks, exercise_on_ranks
from tests import runner

LESSONS = sorted(f"lessons.{path.parent.name}.check" for path in runner.ROOT.glob("lessons/l*/check.py"))
EXERCISES = {f"{re.search('[0-9]{2}[a-z]?', lesson)[0]}-{name}": value for lesson in LESSONS
             for name, value in vars(importlib.import_module(lesson)).items() if isinstance(value, Exercise)}


@pytest.fixture(scope="module", autouse=True)
def ranks_find_modules_imported():
    """Checks fork their ranks from a process that begins with the modules of whoever needs it first. Here it begins
    with those of all, which the slowest would import for seconds."""
    forkserver.set_forkserver_preload([*on_ranks.PRELOAD, "torch._dynamo", "torch._inductor", "torch.distributed.fsdp",
                                       *LESSONS, __name__])
    forkserver.ensure_running()


def stub(*args, **kwargs):
    raise NotImplementedError


def broken(*args, **kwargs):
    raise ZeroDivisionError("oops")


def mistakes_in(asked, text):
    """Of which typical mistakes a verdict has the message."""
    return [message for message in asked.mistakes if message in text]


ON_RANKS = sorted(name for name, each in EXERCISES.items() if isinstance(each, ExerciseOnRanks))
WEEKLY = [*ON_RANKS, "03-launch", "10-job", "10-line"]  # the answers of the last three start processes


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.weekly if name in WEEKLY else ())
                                  for name in sorted(EXERCISES)])
def test_solution_is_right_and_stub_is_untried_and_each_mistake_gets_its_own_message(name, capsys, monkeypatch):
    asked = EXERCISES[name]
    if isinstance(asked, ExerciseOnRanks):  # here dozens of ranks share the cores
        monkeypatch.setattr(asked.measurement, "wait", 20)
    mistakes = list(asked.mistakes.values())
    assert len(mistakes) >= 2
    # All at once, since on ranks each start takes its time, and a verdict would run the mistakes once more. What starts
    # no ranks runs twice: as a learner's attempt, and to be compared with it.
    right, untried, *observed = asked.observe([asked.answer, stub, *mistakes])
    attempts = observed if isinstance(asked, ExerciseOnRanks) else asked.observe(mistakes)

    def verdict(attempt):
        with mock.patch.object(asked, "observe", side_effect=[[attempt], observed]):
            return asked.verdict("an attempt")

    assert verdict(right)[0] == "right"
    for attempt, message in zip(attempts, asked.mistakes, strict=True):
        outcome, text = verdict(attempt)
        assert outcome == "wrong" and message in mistakes_in(asked, text), message
    assert verdict(untried)[0] == asked.verdict(None)[0] == asked.verdict(...)[0] == "untried"
    asked.hint()
    asked.solution()
    assert capsys.readouterr().out.count("\n") > 1


def test_what_the_answer_s_file_has_imported_is_replaced_too(tmp_path):
    (tmp_path / "answer.py").write_text("from torch.distributed import barrier as wait\ndef answer(): return wait()\n")
    answer, barrier = runpy.run_path(str(tmp_path / "answer.py"))["answer"], dist.barrier
    with on_ranks.patched(answer, barrier=lambda: 7):
        assert answer() == dist.barrier() == 7
    assert answer.__globals__["wait"] is dist.barrier is barrier


def test_the_sampler_is_refused_where_it_is_to_be_done_without_and_a_tuple_will_do_for_a_list():
    shard, init = EXERCISES["05-shard"], DistributedSampler.__init__
    assert shard.verdict(lambda n, rank, ranks, epoch: list(DistributedSampler(range(n), ranks, rank)))[0] == "wrong"
    assert shard.verdict(lambda *case: tuple(shard.answer(*case)))[0] == "right"
    assert DistributedSampler.__init__ is init


# ---------------------------------------------------------------------------------------------- course/exercise.py


@exercise(solution=[1, 2, 3].__getitem__, hint="Count.", mistakes={
    "Alike in the first.": [1, 9, 9].__getitem__, "Alike in all.": [1, 9, 8].__getitem__, "No key.": {}.__getitem__})
def count(answer):
    """You can count."""
    for place, right in enumerate([1, 2, 3]):
        got = answer(place)
        yield Case(got, right, f"At {place} you gave {got}.")


@pytest.mark.parametrize(("answer", "outcome", "words", "mistake"), [
    ([1, 2, 3], "right", "You can count.", []), ([1, 9, 8], "wrong", "At 1 you gave 9.", ["Alike in all."]),
    ([1, 9, 7], "wrong", "At 1 you gave 9.", ["Alike in the first."]),
    ([1, 9], "wrong", "At 1 you gave 9.", ["Alike in the first."]), ([1, 7, 8], "wrong", "At 1 you gave 7.", []),
    ({5: 1}, "wrong", "KeyError", ["No key."]), ([], "wrong", "IndexError", [])])
def test_a_wrong_answer_gets_the_case_and_the_mistake_that_behaves_alike(answer, outcome, words, mistake):
    verdict = count.verdict(answer.__getitem__)
    assert (verdict[0], mistakes_in(count, verdict[1])) == (outcome, mistake) and words in verdict[1]


def counted_too_far(place):
    return [1, 2, 3][place + 3]


def counted_for_ever(place):
    while True:
        place += 1


@pytest.mark.parametrize(("body", "outcome", "words"), [
    ("double(n):\n    return 2 * n", "right", ""), (None, "untried", ""),
    ("double(n):\n    raise NotImplementedError", "untried", ""), ("double(n)", "wrong", "SyntaxError"),
    ("twice(n):\n    return 2 * n", "wrong", "defines no double"),
    ("double(n):\n    return n / 0", "wrong", "In line 2: `return n / 0`.")])
def test_an_answer_may_stand_in_a_file(body, outcome, words, tmp_path):
    def double(n):
        return 2 * n

    @exercise(solution=double, hint="", mistakes={})
    def doubled(answer):
        """Shown."""
        yield Case(answer(3), 6, "not 6")

    file = tmp_path / "double.py"
    if body:
        file.write_text(f"def {body}\n")
    got, message = doubled.verdict(str(file))
    assert got == outcome and words in message


def test_an_error_has_its_line_and_a_loop_without_an_end_has_one(monkeypatch):
    monkeypatch.setattr(count, "limit", 1)
    assert "`return [1, 2, 3][place + 3]`" in count.verdict(counted_too_far)[1]
    assert count.verdict(counted_for_ever)[0] == "wrong"


def counted_and_printed(place):
    print(place + 1)


def counted_on_one_way(place):
    if place:
        return place + 1


@exercise(solution=lambda place: place + 1, hint="Count.", mistakes={"It stays.": lambda place: place})
def counts(answer):
    """You can count."""
    for place in range(3):
        got = answer(place)
        yield Case(got + 0, place + 1, f"At {place} you gave {got}.")


@pytest.mark.parametrize(("answer", "told"), [(counted_and_printed, True), (counted_on_one_way, False)])
def test_a_forgotten_return_is_told_as_that(answer, told):
    outcome, message = counts.verdict(answer)
    assert outcome == "wrong" and (NOTHING in message) == told


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
    assert ["one step" in asked.verdict(answer)[1] for answer in (3, 4)] == [True, False]


@pytest.mark.parametrize(("got", "right", "expected"), [
    (torch.tensor(7), 7, True), (torch.tensor(7), 8, False), (torch.ones(2), [1, 1], False),
    (np.float32(0.1), 0.1, True), (np.int64(7), 7, True), ([1], (1,), True), ((1, [2]), [1, (3,)], False),
    ((1.0, 2), (1.0 + 1e-8, 2), True), (True, 1, True), (None, None, True), ("a", "a", True),
    ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False)])
def test_an_answer_is_the_same_up_to_rounding(got, right, expected):
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


@pytest.mark.parametrize(("body", "outcome", "words", "mistake"), [
    ("total = torch.tensor(number); dist.all_reduce(total); return total.item()", "right", "", []),
    ("return number", "wrong", "[1, 2, 3]", ["That is your own number."]),
    ("if dist.get_rank() == 0: dist.barrier()\n    return number", "wrong", "", []),
    ("1 / 0", "wrong", "In line 4: `1 / 0`", ["It cannot divide."]), ("dist.barrier()", "wrong", NOTHING, []),
    ("dist.barrier(", "wrong", "SyntaxError", []), ("time.sleep(1000)", "wrong", "rank 0 and 1 and 2", []),
    ("os.abort()", "wrong", "SIGABRT", []), ("os._exit(0)", "wrong", "", []),
    ("if dist.get_rank() == 1: os._exit(3)\n    dist.barrier()", "wrong", "rank 1 died (exit status 3)", [])])
def test_an_answer_in_a_file_runs_on_ranks_and_a_hang_or_a_death_ends(body, outcome, words, mistake, tmp_path,
                                                                       monkeypatch):
    monkeypatch.setattr(on_ranks, "LIMIT", 6)
    verdict = total.verdict(in_a_file(tmp_path, body))
    assert (verdict[0], mistakes_in(total, verdict[1])) == (outcome, mistake) and words in verdict[1], verdict
    assert [file.name for file in tmp_path.iterdir()] == ["answer.py"]


@pytest.mark.parametrize("body", [
    "raise NotImplementedError", '"""In place."""\n    raise NotImplementedError', None])
def test_for_a_stub_or_no_file_no_rank_is_started(body, tmp_path, monkeypatch):
    monkeypatch.delattr(on_ranks.multiprocessing, "get_context")
    assert total.verdict(in_a_file(tmp_path, body) if body else tmp_path / "none.py")[0] == "untried"


def never_begins(*_):
    time.sleep(60)


def test_a_machine_that_takes_long_to_start_ranks_ends_the_check_and_is_nobody_s_mistake(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ranks, "START", 1)
    monkeypatch.setattr(on_ranks, "be_rank", never_begins)
    outcome, message = total.verdict(in_a_file(tmp_path, "return 0"))
    assert outcome == "wrong" and mistakes_in(total, message) == []
