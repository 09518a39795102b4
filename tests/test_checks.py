"""Every exercise: its solution is right, its stub is untried, and each typical mistake is named."""

import ast
import importlib
import os
import re
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course import cases, on_ranks
from course import exercise as checks
from lessons.l00_start_here import check as lesson_00
from lessons.l01_one_device import check as lesson_01
from lessons.l02_data_parallel import check as lesson_02
from lessons.l03_processes_and_ranks import check as lesson_03
from lessons.l04_collectives import check as lesson_04
from lessons.l05_distributed_sampler import check as lesson_05
from lessons.l06_ddp import check as lesson_06
from lessons.l07_performance import check as lesson_07
from lessons.l08_predict_scaling import check as lesson_08
from lessons.l09_large_batch import check as lesson_09
from lessons.l10_launchers import check as lesson_10
from lessons.l11_fault_tolerance import check as lesson_11
from lessons.l12_break_it import check as lesson_12
from lessons.l13_beyond_ddp import check as lesson_13
from lessons.l14_make_it_faster import check as lesson_14
from lessons.l15_talk_less import check as lesson_15
from tests import runner

LESSONS = sorted(path.stem for path in Path(runner.ROOT, "course", "checks").glob("lesson_*.py"))
EXERCISES = [(lesson, name) for lesson in LESSONS
             for name, thing in vars(importlib.import_module(f"course.exercise.{lesson}")).items()
             if isinstance(thing, checks.Exercise)]
pytestmark = pytest.mark.usefixtures("ranks_find_all_modules_imported")
each_exercise = pytest.mark.parametrize(("lesson", "name"), EXERCISES, ids=lambda part: part)


def get(lesson, name):
    return getattr(importlib.import_module(f"course.exercise.{lesson}"), name)


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


class Agrees(int):
    """As a cheat writes it."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(("got", "right", "expected"), [
    (Agrees(5), 7, False), (Agrees(7), 7, False), ([Agrees(5)], [7], False), ((1.0, Agrees(5)), (1.0, 7), False),
    ({"a": Agrees(5)}, {"a": 7}, False), (mock.ANY, None, False), (torch.tensor(7), 7, True),
    (torch.tensor(7), 8, False), (np.float32(0.1), 0.1, True), (np.int64(7), 7, True), ([1], (1,), False),
    ((1.0, 2), (1.0 + 1e-8, 2), True), (True, 1, True), (None, None, True), ("a", "a", True),
    ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False)])
def test_an_answer_is_compared_and_does_not_compare_itself(got, right, expected):
    assert cases.same(got, right) is expected


# ------------------------------------------------------------------------------------------- cases drawn for a grader

# Their question is one fixed text with one truth: a code, a table, recorded runs or consoles, a line for two hosts.
NOTHING_TO_DRAW = (("lesson_04", "choices"), ("lesson_07", "diagnosis"), ("lesson_10", "failures"),
                   ("lesson_10", "line"), ("lesson_12", "five_runs"))


@pytest.mark.parametrize(("lesson", "name"), NOTHING_TO_DRAW)
def test_the_teacher_is_told_where_a_copied_answer_passes(lesson, name):
    readme = (runner.ROOT / "teach" / "README.md").read_text(encoding="utf-8")
    number = lesson.removeprefix("lesson_")
    assert re.search(rf"\b{number} [^;.]*`{name}`", readme), "its list of exercises whose cases are not drawn"


# Their mistakes hang until a wait ends, sleep, or are many: with a seed too they would take as long as all tests above.
SLOW_MISTAKES = {"ceiling", "exact", "fetched", "logged", "repaired", "resumed", "ring_half", "saved", "shards",
                 "slowest", "spawned", "stopped", "timing", "update"}


def on_ranks_of(exercise):
    return bool({"answers", "alone", "together"} & set(exercise.check.__code__.co_names))


@each_exercise
def test_with_cases_drawn_for_a_grader_too_right_is_right_and_a_mistake_is_none(lesson, name, monkeypatch):
    exercise = get(lesson, name)
    slow = on_ranks_of(exercise) or name == "never_half" or (lesson, name) in NOTHING_TO_DRAW
    for seed in ("1",) if slow else map(str, range(10)):
        monkeypatch.setattr(cases, "seed", seed)
        outcome, message = exercise.verdict(exercise.answer)
        assert outcome == "right", (seed, message)
        for mistake, attempt in exercise.mistakes.items() if name not in SLOW_MISTAKES else ():
            outcome, message = exercise.verdict(attempt)
            assert outcome == "wrong" and "It raised" not in message, (seed, mistake, message)


# Answers that know the cases of a lesson, and no more. They cannot just remember: they are judged by what they do.


def with_three_ranks(answer, *asked):
    with mock.patch.object(dist, "get_world_size", lambda *_: 3):
        return answer(*asked)


def first_says(said, answer, *asked):
    """What the answer does, and the next of what it is known to say."""
    answer(*asked)
    return next(said)


def four_milliseconds(step, wait, clock):
    return 0.004 + 0 * lesson_01.my_step_seconds(step, wait, clock)


def four_devices(model, batch, labels, devices):
    return lesson_02.step_solution(model, batch, labels, 4)


def two_hosts_of_two(node, local_rank, hosts, per_node, port):
    return lesson_03.join(node, local_rank, ["localhost", "node1.invalid"], 2, port)


def ranks_0_and_2_download(local_rank, file, download):
    return lesson_03.fetch(0 if dist.get_rank() in (0, 2) else 1, file, download)


def after_three_batches(ddp, batches, optimizer, every):
    return lesson_06.train(ddp, batches, optimizer, 3)


def one_layer(ddp, file):
    if dist.get_rank() == 0:
        torch.save({"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}, file)
    dist.barrier()


def five_rounds(work, talk, rounds):
    return lesson_07.my_slowest(work, talk, 5)


def eight_steps(train, steps):
    return lesson_08.my_ceiling(train, 8)


def six(rank, world_size, port, file):
    lesson_10.be_rank(rank, world_size, port, file)
    if rank == 0:
        file.write_text("6")


def new_written(path, data):
    with open(f"{path}.part", "wb") as file:
        file.write(b"new" * (len(data) // 3))
    os.replace(f"{path}.part", path)


def two_epochs(ddp, optimizer, images, labels, epochs):
    return lesson_12.train(ddp, optimizer, images, labels, 2)


def twelve_weights(weights, gradient, state):
    lesson_13.my_step(weights[:12], gradient[:12], state)


def two_columns(model, mesh):
    shapes = lesson_13.my_shards(model, mesh)
    columns = {"0.weight": 5, "2.weight": 8, "4.weight": 4}
    return {name: (shape[0], columns[name]) if name in columns else shape for name, shape in shapes.items()}


def sixteen_tenths(before, after, rounds, now):
    return 1.6 + 0 * lesson_14.my_gain(before, after, rounds, now)


def each_third_batch(ddp, batches, optimizer, every):
    return lesson_14.my_train(ddp, batches, optimizer, 3)


def saying(said, answer):
    return partial(first_says, iter(said), answer)


KNOWING = {
    lesson_00.hello: partial(with_three_ranks, lesson_00.my_hello),
    lesson_01.step_seconds: four_milliseconds,
    lesson_02.step: four_devices,
    lesson_03.joined: two_hosts_of_two,
    lesson_03.fetched: ranks_0_and_2_download,
    lesson_04.joined: partial(with_three_ranks, lesson_04.my_join),
    lesson_04.ring_half: partial(with_three_ranks, lesson_04.my_reduce_scatter),
    lesson_04.stopped: saying([False, True, True, True], lesson_04.my_stop),
    lesson_05.gradient: partial(with_three_ranks, lesson_05.backward),
    lesson_05.exact: saying([0.4, 0.5, 0.5], lesson_05.accuracy),
    lesson_06.drift: saying([0.0, 0.25, 0.25], lesson_06.apart),
    lesson_06.accumulate: after_three_batches,
    lesson_06.saved: one_layer,
    lesson_07.slowest: five_rounds,
    lesson_08.timing: saying([0.162], lesson_08.my_timing),
    lesson_08.ceiling: eight_steps,
    lesson_09.update: partial(with_three_ranks, lesson_09.my_update),
    lesson_09.noise_scale: partial(with_three_ranks, lesson_09.my_noise_scale),
    lesson_10.spawned: six,
    lesson_11.never_half: new_written,
    lesson_11.newest: saying([30, 20, None, None], lesson_11.my_newest),
    lesson_11.resumed: partial(with_three_ranks, lesson_11.my_resume),
    lesson_12.repaired: two_epochs,
    lesson_12.instrument: saying([[], ["0.bias", "3.weight"]], lesson_12.drifted),
    lesson_13.zero1: twelve_weights,
    lesson_13.shards: two_columns,
    lesson_13.mlp: partial(with_three_ranks, lesson_13.my_mlp),
    lesson_14.fair: sixteen_tenths,
    lesson_14.hook: partial(with_three_ranks, lesson_14.my_hook),
    lesson_14.logged: each_third_batch,
    lesson_15.outer: partial(with_three_ranks, lesson_15.my_outer_step),
    lesson_15.average: partial(with_three_ranks, lesson_15.my_average),
}


@pytest.mark.parametrize("exercise", KNOWING, ids=lambda exercise: exercise.__name__)
def test_an_answer_made_for_the_cases_of_a_lesson_is_wrong_for_a_grader(exercise, monkeypatch):
    outcome, message = exercise.verdict(KNOWING[exercise])
    assert outcome == "right", message
    monkeypatch.setattr(cases, "seed", "1")
    assert exercise.verdict(KNOWING[exercise])[0] == "wrong"


@pytest.mark.parametrize(("lesson", "name"), [
    each for each in EXERCISES if each not in NOTHING_TO_DRAW and get(*each) not in KNOWING], ids=lambda part: part)
def test_an_answer_that_remembers_the_cases_of_a_lesson_is_wrong_for_a_grader(lesson, name, monkeypatch):
    exercise, known = get(lesson, name), {}

    def told(case):  # without the model: what it is asked with tells the cases apart
        return repr([part for part in case if not callable(part)])

    def learn(*case):
        return known.setdefault(told(case), exercise.answer(*case))

    def remembered(*case):
        return known.get(told(case), next(iter(known.values())))

    for answer in (learn, remembered):
        outcome, message = exercise.verdict(answer)
        assert outcome == "right", message
    for seed in map(str, range(10)):
        monkeypatch.setattr(cases, "seed", seed)
        assert exercise.verdict(remembered)[0] == "wrong", seed


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_check_learns_from_misses_alone_what_a_solution_or_a_mistake_answers(lesson):
    """A learner's copy has neither: see teach/learner_copy.py, which says what the checks reach."""
    from teach import learner_copy  # here: the ranks import this file, and would wait for notebooks' tools

    reached, _ = learner_copy.stripped(Path(runner.ROOT, "course", "checks", f"{lesson}.py").read_text())
    module = importlib.import_module(f"course.exercise.{lesson}")
    answers = [getattr(answer, "func", answer) for each, name in EXERCISES if each == lesson
               for answer in (get(each, name).answer, *get(each, name).mistakes.values())]
    nodes = list(ast.walk(ast.parse(reached)))
    for node in nodes:
        assert not isinstance(node, ast.FunctionDef) or vars(module).get(node.name) not in answers, node.name
    assert not {"answer", "mistakes"} & {node.attr for node in nodes if isinstance(node, ast.Attribute)}


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


def test_a_machine_that_takes_long_to_start_ranks_is_not_the_answer_s_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ranks, "START", 0)
    verdict = get("lesson_04", "stopped").verdict(in_a_file(tmp_path, "import time; time.sleep(5)"))
    assert verdict[0] == "wrong" and "Your answer is not at fault" in verdict[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_right_is_right_on_two_ranks_and_on_three(ranks):
    for name, function in (("apart", lesson_06.apart), ("train", lesson_06.train), ("save", lesson_06.save)):
        assert len(lesson_06.answers.findings(name, function, ranks)) == ranks
