"""scripts/grade: a right, wrong, half or hostile hand-in costs its own points, and nothing else."""

import ast
import contextlib
import csv
import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from unittest import mock

import nbformat
import pandas as pd
import psutil
import pytest

from course import on_ranks
from course.exercise import Case, exercise
from course.lesson import ROOT, notebooks
from lessons._template import check as template
from lessons.l01_one_device import check as lesson_01
from lessons.l05_distributed_sampler import check as lesson_05
from lessons.l10_launchers import check as lesson_10
from teach import answers, handed_in, judge, questions, report, shield
from teach import grade as grading
from teach.handed_in import Paper, Question
from tests import runner


def no_shield():
    try:
        shield.check()
    except shield.NoShield as reason:
        return str(reason)
    return None


without = no_shield()
needs_shield = pytest.mark.skipif(bool(without), reason=str(without))
SOLVED = {"01": (lesson_01.my_step_seconds, lesson_01.my_gain), "05": (lesson_05.my_shard,)}
IMPORTS = "import math\nfrom torch import nn\n\n"


def hand_in(lesson, path, **changed):
    """A lesson's notebook with the functions of SOLVED, but for those `changed`, {name or file: Python}."""
    notebook = nbformat.read(notebooks()[lesson], as_version=4)
    for cell in notebook.cells:
        for function in SOLVED[lesson]:
            if cell.source.startswith(f"def {function.__name__}"):
                cell.source = changed.get(function.__name__) or IMPORTS + inspect.getsource(function)
        for name, text in changed.items():
            if cell.source.startswith(f"%%writefile results/live/{name}.py"):
                cell.source = f"%%writefile results/live/{name}.py\n{text}"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def grade(*arguments):
    """What scripts/grade prints."""
    with (mock.patch.object(sys, "argv", ["grade", *map(str, arguments)]),
          contextlib.redirect_stdout(io.StringIO()) as printed):
        assert grading.main() == 0
    return printed.getvalue()


def outcomes(folder):
    with (folder / "answers.csv").open() as file:
        return {(row["learner"], row["exercise"]): (row["outcome"], row["why"]) for row in csv.DictReader(file)}


def cells(*sources):
    return [nbformat.v4.new_code_cell(source) for source in sources]


# ---------------------------------------------------------------------------------------------- what is handed in


SHARD = inspect.getsource(lesson_05.my_shard).replace("math.", "maths.")
HEAD, BODY = SHARD.split("\n", 1)
SHARD, FILE = f"import math as maths\n\n{SHARD}", "results/live/05_backward.py"
TEXT = "import torch\n\n\ndef backward(model, images, labels):\n    return 1\n"
CHOICE = "from lessons.l05_distributed_sampler import check"
# What stands in a notebook in place of the stub, cell by cell. Each is right in the learner's own copy.
HABITS = {
    "plain": [SHARD],
    "time": ["%%time\n" + SHARD], "time of a helper": [
        "%%time\nimport math as maths\ndef each(n, world_size):\n    return maths.ceil(n / world_size)",
        HEAD + "\n    per = each(n, world_size)\n    return [(rank + k * world_size) % n for k in range(per)]"],
    "star": ["from math import *", SHARD.replace("maths.", "")],
    "append": ["kept = []", "kept.append(1)", SHARD.replace("(rank", "(kept[0] - 1 + rank")],
    "attribute": [SHARD + "\nmy_shard.tries = 0", SHARD.replace("(rank", "(my_shard.tries * 0 + rank")
                  + "\nmy_shard.tries = 3"],
    "a name of checks": ["import statistics\nchecks = {'check': 1}\n" + SHARD + "\nmy_shard.checks = checks"],
    "a name of a later cell": ["def padded(n, w):\n    return -(-n // w)\n\nshards = 3",
                               "def my_shard(n, rank, world_size):\n    return [(rank + k * world_size) % n for k in "
                               "range(padded(n, world_size))] if shards == 3 else 0"],
    "the lesson's imports": ["def my_shard(n, rank, world_size):\n    return [int(i) % n for i in torch.arange(rank, "
                             "rank + world_size * -(-n // world_size), world_size)]"],
    "the lesson's values": ["def my_shard(n, rank, world_size):\n    assert patience == 3 and samples\n    return "
                            "[(rank + k * world_size) % n for k in range(-(-n // world_size))]"],
    "a lesson's value, changed": ["patience = patience + 1", SHARD.replace("(rank", "(patience - 4 + rank")],
    "a lesson's value of one's own": ["patience = 10", SHARD.replace(
        "(rank", "(patience - 10 + 0 * bool(samples) + rank")],
    "raises above": ["1 / 0", "raise NotImplementedError", SHARD],
    "exits above": ["import sys\nsys.exit()", SHARD, "exit"],
    "ends the process above": ["import os\nos._exit(1)", SHARD], "not Python above": ["def (", SHARD],
    "lambda": ["my_shard = lambda n, rank, w: [(rank + k * w) % n for k in range(-(-n // w))]"],
    "decorator": ["import functools\n@functools.cache\n" + SHARD.partition("\n\n")[2], "import math as maths"],
    "partial": [SHARD.replace("my_shard(", "shard(extra, "), "from functools import partial\n"
                "my_shard = partial(shard, None)"],
    "callable object": ["class Shard:\n    def __call__(self, n, rank, w):\n        return [(rank + k * w) % n for k "
                        "in range(-(-n // w))]", "my_shard = Shard()"],
    "generator": [HEAD + "\n    for k in range(-(-n // world_size)):\n        yield (rank + k * world_size) % n"],
    "array": ["import numpy as np\n" + HEAD + "\n    return np.arange(rank, rank + world_size * -(-n // world_size), "
              "world_size) % n"],
    "tensor": [HEAD + "\n    return torch.arange(rank, rank + world_size * -(-n // world_size), world_size) % n"],
    "load_ext, ls, help": ["%load_ext autoreload\n%autoreload 2\n!ls\nfiles = !ls\n" + SHARD, "my_shard?"],
    "bash": ["%%bash\nexit 1", SHARD], "pip": ["%pip install torch\n" + SHARD], "cd": ["%cd results\n%cd ..", SHARD],
    "matplotlib": ["%matplotlib inline\n" + SHARD], "input": ["name = input()", SHARD], "await": ["import asyncio\n"
             "await asyncio.sleep(0)\n" + SHARD], "display": ["display(1)\nprint('x' * 3_000_000)", SHARD],
    "hint": [SHARD, "check.shard(my_shard)\ncheck.shard.hint()"], "checks renamed": [
        CHOICE + " as c", SHARD, "c.shard(my_shard)"],
    "the module of checks": ["import lessons.l05_distributed_sampler.check as c", SHARD, "c.shard(my_shard)"],
    "prints": [SHARD.replace(BODY, "    print('x' * 10_000_000)\n" + BODY)],
    "forks that sleep": ["import multiprocessing, time\nbig = bytearray(b'x') * 10**8\nfor _ in range(8):\n    "
                         "multiprocessing.get_context('fork').Process(target=time.sleep, args=(30,), daemon=True)"
                         ".start()", SHARD],
    "no end above": ["import signal\nsignal.alarm(1)\nwhile True: pass", SHARD],
}
FILES = {  # and in place of that with %%writefile
    "file": ["%%file " + FILE + "\n" + TEXT], "trailing blank": ["%%writefile " + FILE + " \n" + TEXT],
    "quoted": [f'%%writefile "{FILE}"\n{TEXT}'],
    "appended": [f"%%writefile {FILE}\nimport torch\n\n", f"%%writefile -a {FILE}\n{TEXT[14:]}"],
    "by Python": [f"from pathlib import Path\nPath({FILE!r}).write_text({TEXT!r})"],
    "in the folder": ["%cd results/live\n", f"%%writefile 05_backward.py\n{TEXT}", "%cd ../.."],
    "by a variable": [f"path = {FILE!r}", "%%writefile $path\n" + TEXT], "at home": [
        f"%%writefile ./{FILE}\n" + TEXT],
}
NAMED = {  # a line is owed: (cells, what the verdict names)
    "another file": (["from my_answers import my_shard"], "my_shard` could not be run: ModuleNotFoundError"),
    "half": (["def my_shard(n, rank, world_size:\n    return []"], "`def my_shard(n, rank, world_size:` could not be"),
    "no end": (["import signal\nsignal.setitimer(signal.ITIMER_PROF, 0.1)\nwhile True: my_shard = 1"], "20 s of work"),
    "a helper that fails": (["per = 1 / 0", "def my_shard(n, rank, w): return [per]"], "NameError"),
}


def answers_of(tmp_path, habit, monkeypatch, instead=None):
    """The process with the learner's cells of a lesson 05 in which they stand in place of a stub, run."""
    notebook = nbformat.read(notebooks()["05"], as_version=4)
    stub = next(number for number, cell in enumerate(notebook.cells)
                if cell.source.startswith(instead or "def my_shard"))
    notebook.cells[stub:stub + 1] = cells(*habit)
    monkeypatch.chdir(tmp_path)
    Path("results/live").mkdir(parents=True)
    learner = judge.Learner(handed_in.paper(notebook, tmp_path), 10)
    assert learner.run_cells() is None
    return learner


@exercise(solution=lesson_05.my_shard, hint="", mistakes={})
def shard(answer):
    """As in lesson 05, without what it patches in the answer's process: that imports torch."""
    for case in [(20, 0, 2), (21, 1, 2), (7, 3, 4), (3, 7, 8)]:
        yield Case([int(item) for item in answer(*case)], lesson_05.sampler_shard(*case), "It differs.")


def shard_of(learner):
    question = learner.paper.questions[0]
    return learner.verdict(shard, question), learner.unread(question.given)


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_keeps_its_answer(habit, tmp_path, monkeypatch):
    learner = answers_of(tmp_path, HABITS[habit], monkeypatch)
    try:
        verdict, unread = shard_of(learner)
        assert verdict[0] == "right", (verdict, learner.failed)
    finally:
        learner.process.kill()


@pytest.mark.parametrize("habit", FILES)
def test_a_habit_keeps_its_file(habit, tmp_path, monkeypatch):
    answers_of(tmp_path, FILES[habit], monkeypatch, f"%%writefile {FILE}").process.kill()
    assert Path(FILE).read_text().split() == TEXT.split()


@pytest.mark.parametrize("habit", NAMED)
def test_a_cell_that_could_not_be_run_is_named(habit, tmp_path, monkeypatch):
    learner = answers_of(tmp_path, NAMED[habit][0], monkeypatch)
    assert NAMED[habit][1] in str(shard_of(learner))
    learner.process.kill()


def test_all_cells_together_have_a_time_and_what_is_left_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "CELLS", 1)
    learner = answers_of(tmp_path, ["import time\ntime.sleep(2)", SHARD], monkeypatch)
    assert "my_shard" in SHARD and "the time for all cells was over" in learner.unread("my_shard")
    learner.process.kill()


def test_a_process_that_tells_no_end_of_an_answer_is_ended(tmp_path, monkeypatch):
    """Its late word would count as the end of the next answer."""
    learner = answers_of(tmp_path, [SHARD], monkeypatch)
    learner.answering = True
    monkeypatch.setattr(learner, "heard", mock.Mock(side_effect=judge.Gone))
    learner.stop()
    assert learner.process.poll() is not None


@pytest.mark.parametrize(("value", "described"), [
    (Fraction(1, 2), 0.5), ([Decimal("0.5")], [0.5]), (3, 3), (True, True), (1j, "<complex>"), (object(), "<object>")])
def test_an_answer_s_value_is_described_in_python_s_own_types(value, described):
    assert repr(answers.plain(value)) == repr(described)


@pytest.mark.parametrize("lesson", notebooks())
def test_a_lesson_s_own_notebook_has_each_question_and_nothing_of_a_learner(lesson):
    asked = handed_in.asked_in(lesson)
    paper = handed_in.paper(handed_in.read(notebooks()[lesson]), ROOT / "tests")
    assert asked and paper.lesson == lesson and paper.own == [] == paper.said_right
    assert replace(paper, questions=[]).modules == paper.modules != [], "each has a stand-in in every room"
    assert [*map(vars, handed_in.from_json(handed_in.as_json(paper)).questions)] == [*map(vars, asked)]


def test_the_capstone_of_a_copy_is_found_where_lessons_write_it_and_never_another_learner_s(tmp_path):
    folder, live = tmp_path / "ada" / "notebooks", tmp_path / "ada" / "results" / "live"
    live.mkdir(parents=True)
    (live / "06b_program.py").write_text("import torch\n")
    lesson = handed_in.read(notebooks()["06b"])
    assert handed_in.paper(lesson, folder).files["06b_program.py"] == "import torch\n"
    (tmp_path / "eve").mkdir()
    (tmp_path / "eve" / "results").symlink_to(tmp_path / "ada" / "results")
    assert "06b_program.py" not in handed_in.paper(lesson, tmp_path / "eve" / "notebooks").files


# --------------------------------------------------------------------------------------------------- a folder, graded

BAD = {  # code of a notebook, and what is said of it
    "deep": ("from lessons.l01_one_device import check\nx = " + "1+" * 20_000 + "1", "0 of 2 answers right"),
    "half-a-character": ("from lessons.l01_one_device import check\nx = '\ud800'", "0 of 2 answers right"),
    "long-number": ('test = "before"\nmy_01 = 0x' + "f" * 10_000, "ValueError"),
    "no-lesson": ("x = 1", "no lesson of this course"),
}


@needs_shield
def test_a_folder_is_graded_and_each_file_that_cannot_be_is_named_in_a_line(tmp_path):
    folder = tmp_path / "in"
    for name in ("01", "older", "other"):
        hand_in("01" if name != "other" else "05", folder / "ada" / "notebooks" / f"{name}.ipynb")
    os.utime(folder / "ada" / "notebooks" / "older.ipynb", (1000, 1000))
    (folder / "dan.ipynb").write_text(notebooks()["04"].read_text(), encoding="utf-8-sig")  # with a byte-order mark
    (folder / "ivy").symlink_to("ada")
    hand_in("01", folder / "words.ipynb", my_gain="def my_gain(*asked):\n    raise ValueError('\\ud800\\0')",
            my_step_seconds="def my_step_seconds(*asked):\n    raise ValueError('x' * 8_000_000)")
    (folder / "ben").mkdir()
    whole = notebooks()["05"].read_text()
    (folder / "cleo.ipynb").write_text(whole[:len(whole) // 2])
    (folder / "eve.ipynb").write_text('{"cells": 5}')
    with (folder / "fay.ipynb").open("wb") as huge:
        huge.truncate(10**9)  # a gigabyte printed, and saved
    os.mkfifo(folder / "gil.ipynb")  # whoever opens it waits
    (folder / "hal.ipynb").symlink_to(folder / "ada" / "notebooks" / "01.ipynb")
    for name in ("readme.txt", "kim.zip"):
        (folder / name).write_text("no notebook, and nobody's")
    for name, (source, _) in BAD.items():  # nbformat writes no half character
        (folder / f"{name}.ipynb").write_text(json.dumps(nbformat.v4.new_notebook(cells=cells(source))))
    os.mkdir(os.fsencode(folder) + b"/J\xf6rg")
    (tmp_path / "class.txt").write_text("ada\nben\n zoe\n\n", encoding="utf-8-sig")  # as Windows' editor saves it
    printed = grade(folder, "--seed", "1", "--out", tmp_path / "out", "--class", tmp_path / "class.txt",
                    "--lesson", "01", "--lesson", "before")
    lines = printed.splitlines()
    expected = {"ben/": "no notebook was handed in", "cleo.ipynb": "no notebook", "eve.ipynb": "no notebook",
                "fay.ipynb": "1,000 MB", "gil.ipynb": "no file of its own", "hal.ipynb": "no file of its own",
                "J\\udcf6rg/": "no notebook was handed in", "kim.zip": "no notebook: ", "zoe/": "nothing was handed in",
                "ada/notebooks/01.ipynb": "2 of 2 answers right", "ada/notebooks/older.ipynb": "is the same",
                "dan.ipynb": "this is 04, and 01 or before was asked for", "ivy": "no file of its own",
                **{f"{name}.ipynb": words for name, (_, words) in BAD.items()}}
    for name, words in expected.items():
        assert sum(line.startswith(f"{name}: ") and words in line for line in lines) == 1, name + " in " + printed
    assert "4 notebooks graded, 14 not" in lines[-1]
    verdicts = outcomes(tmp_path / "out")
    clock, gain = (verdicts["words", question.name] for question in handed_in.asked_in("01"))
    assert gain == ("wrong", "Not yet. It raised ValueError: \\ud800\\0.")
    assert clock[0] == "wrong" and len(clock[1]) == handed_in.WORDS
    pages = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.html")}
    assert len(pages) == 1 + len(expected) and "cleo.ipynb: no notebook" in pages["index.html"]
    assert sum("hal.ipynb" in page for page in pages.values()) == 2, "the teacher's page, and hal's"


@needs_shield
def test_ranks_are_shielded_too_and_an_answer_for_the_cases_that_a_learner_sees_is_wrong(tmp_path):
    seen = {case: lesson_05.my_shard(*case) for n, world_size in [(20, 2), (21, 2), (10, 1), (7, 4), (3, 8), (1, 3)]
            for case in [(n, rank, world_size) for rank in range(world_size)]}
    table = f"def my_shard(*case):\n    return {seen!r}.get(case, [])\n"
    exec(table, namespace := {})
    assert lesson_05.shard.verdict(namespace["my_shard"])[0] == "right"
    on_a_rank = ("import os\nimport torch\nimport torch.distributed as dist\n"
                 "from torch.nn.functional import cross_entropy\n\n"
                 f"assert not os.path.exists({str(ROOT / 'results')!r}), 'seen from a rank'\n")
    clone = tmp_path / "in" / "=ada"
    hand_in("05", clone / "my-notebooks" / "05_distributed_sampler.ipynb", **{
        "my_shard": "open('selectors.py', 'w').write('1 / 0')  # no rank imports it\n" + table.replace(
            "    return", "    import gc, shutil; shutil.rmtree('results/live')\n    return"),
        "05_backward": on_a_rank + inspect.getsource(lesson_05.backward)})
    (clone / "notebooks").mkdir()
    shutil.copy(notebooks()["05"], clone / "notebooks")  # newer, and nothing in it is hers
    notebook = nbformat.read(next(clone.rglob("my-notebooks/*.ipynb")), as_version=4)
    for cell in notebook.cells:
        if cell.source.startswith("check.shard("):
            cell.outputs = [nbformat.v4.new_output("display_data", {"text/plain": "✔ Right. Your shards …"})]
    nbformat.write(notebook, next(clone.rglob("my-notebooks/*.ipynb")))
    printed = grade(tmp_path / "in", "--seed", "1", "--out", tmp_path / "out", "--lesson", "5")
    assert "notebooks/05_distributed_sampler.ipynb: =ada/my-notebooks/" in printed
    verdicts = outcomes(tmp_path / "out")  # no cell of it begins a formula
    assert verdicts["'=ada", "shard"][0] == "wrong" and verdicts["'=ada", "stream"][0] == "untried"
    assert verdicts["'=ada", "gradient"][0] == "right", verdicts["'=ada", "gradient"]
    assert "(wrong): right in the learner&#39;s notebook" in (tmp_path / "out" / "index.html").read_text()


def test_ranks_that_could_not_start_are_no_wrong_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    busy = mock.Mock(verdict=mock.Mock(return_value=("wrong", f"Not yet. {judge.NO_FAULT}: the machine is too busy.")))
    assert judge.of_a_file(busy, "a.py", {"a.py": b"x = 1"})[0] == "again" and busy.verdict.call_count == 2
    assert judge.NO_FAULT in inspect.getsource(on_ranks) and Path("results/live/a.py").read_text() == "x = 1"


@pytest.mark.parametrize(("name", "text", "outcome"), [
    ("line", lesson_10.LINE, "right"), ("job", lesson_10.JOB, "right"), ("line", "torchrun main.py", "wrong")])
def test_a_file_of_the_shell_is_judged_too(name, text, outcome, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lesson_10, "really", lambda cases, *_: cases)  # nothing starts
    question = next(each for each in handed_in.asked_in("10") if each.name == name)
    assert question.is_file
    assert judge.of_a_file(getattr(lesson_10, name), question.given, {question.given: text.encode()})[0] == outcome


@pytest.mark.parametrize(("place", "text", "look"), [
    ("cell", "import gc\n" + SHARD, "gc"), ("cell", "from lessons.l05_distributed_sampler import check as c", ""),
    ("cell", SHARD, ""), ("cell", "import statistics\ncheck = sum", ""),
    ("cell", "from lessons.l05_distributed_sampler.check import my_shard", "lessons.l05_distributed_sampler.check"),
    ("cell", "from multiprocessing.connection import Connection as C\nC(3).send(1)", "multiprocessing, Connection"),
    ("cell", "__builtins__.exec('1')", "__builtins__"), ("cell", "model.eval()", ""), ("cell", "eval('1')", "eval"),
    ("cell", "from course import exercise as e\ne.same = max", "course import exercise"),
    ("cell", "from sys import modules", "import modules"), ("cell", "model.modules()", ""),
    ("cell", "import torch as t", "torch as"), ("cell", "Tensor.item = None", "Tensor.item ="),
    ("cell", "import runpy\nfrom os import _exit", "runpy, _exit"), ("cell", "self.Sum = 1\nshape = Shard()", ""),
    ("cell", "import torch\ntorch.Tensor.item = lambda _: 1", "torch.Tensor.item ="),
    ("cell", "open('lessons/l05_distributed_sampler/check.py')", "lessons/l05_distributed_sampler/check"),
    ("file", "from lessons.l06_ddp.buckets import make_buckets  # of course. As in lesson 06", ""),  # as the stub does
    ("file", "model.eval()", ""), ("file", "import torch.multiprocessing as mp", "multiprocessing"),
    ("file", "from lessons.l06_ddp.check import step as ours", "lessons.l06_ddp.check"),
    ("file", "from lessons.l06_ddp import check", "lessons.l06_ddp"),
    ("file", "import lessons.l06_ddp.my_ddp as m", "lessons.l06_ddp.my_ddp"),
    ("file", "from course import exercise", "from course"), ("file", "from lessons import l06_ddp", "from lessons")])
def test_what_a_teacher_is_asked_to_look_at(place, text, look):
    asked = handed_in.asked_in("05" if place == "cell" else "06")
    question = next(each for each in asked if each.given in ("my_shard", "06_step_3.py"))
    cell = text if place == "cell" else f"%%writefile results/live/{question.given}\n{text}"
    paper = Paper("06", [question], handed_in.cells_of("06") if place == "file" else [], [(0, cell)])
    seen = handed_in.to_look_at(paper, question, "right")
    assert look in seen and bool(look) == bool(seen)


LONG = "def my_shard(n, rank, world_size):\n" + "".join(
    f"    part{k} = n * {k} + rank  # {k}\n" for k in range(9)) + "    return part0\n"


@pytest.mark.parametrize(("other", "same"), [
    (LONG.replace("part", "p").replace("rank", "r") + "\nmy_shard(2, 0, 1)", True),
    (LONG.replace("  # 3", ""), True), (LONG.replace("* 3", "* 4"), False), (LONG + "def (", False)])
def test_equal_answers_are_listed_and_short_ones_are_no_news(other, same):
    question = handed_in.asked_in("05")[0]
    trees = [handed_in.tree_of(Paper("05", [question], handed_in.cells_of("05"), [(0, text)]), question)
             for text in (LONG, other, SHARD)]
    assert (trees[0] == trees[1], trees[2]) == (same, "") and trees[0]
    rows = [{"learner": learner, "lesson": "05", "exercise": "shard", "look at this": "", "code": text, "tree": tree}
            for learner, text, tree in zip(("ada", "ben", "cleo"), (LONG, other, SHARD), trees, strict=True)]
    seen = "the same as {}, but for names and comments"
    assert list(report.tabled(rows)["look at this"]) == [seen.format("ben") * same, seen.format("ada") * same, ""]


# -------------------------------------------------------------------------------------------------------- hostile

PATIENCE = 8  # seconds of an answer
HOSTILE = {
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "ends its process": ("import os; os._exit(0)", "ended before the check had an answer"),
    "never ends": ("while True: pass", f"No end within {PATIENCE} s"),
    "forks": ("import os, time\n    while True: os.fork() or time.sleep(1000)", "started more than"),
    "fills the disk": ("out = open('big', 'wb')\n    while True: out.write(bytes(10**7))", "No space left"),
    "prints": ("for _ in range(100): print('x' * 10**6)", "returned nothing"),
    "eats memory": ("kept = []\n    while True: kept.append(bytearray(b'x') * 10**8)", "GB of memory"),
    "asks the checks": ("from lessons._template import check\n    return check.my_mean(*asked)", "Not yet. "),
    "changes the checks": ("import sys\n    sys.modules['course.' + 'exer' + 'cise'].same = lambda *_: True\n"
                           "    return 1", "Your mean is 1"),
    "changes Python": ("import math\n    math.isclose = lambda *_, **__: True\n    return 1", "Your mean is 1"),
    "looks for the solution": ("import gc, sys\n    found = [each for each in gc.get_objects() if getattr(each, "
                               "'__name__', '') == 'my_mean' and each.__module__ != '__main__']\n"
                               "    assert found and not any('template' in name for name in sys.modules)\n"
                               "    return found[0](*asked)", "AssertionError"),
    "equals everything": ("class All(float):\n        def __eq__(self, other): return True\n    return All(1)",
                          "Not yet. "),
    "sends code": ("import pickle, gc\n    from multiprocessing.connection import Connection\n"
                   "    class Code:\n        def __reduce__(self): return exec, ('import os; os._exit(0)',)\n"
                   "    [each.send_bytes(pickle.dumps(Code())) for each in gc.get_objects() "
                   "if isinstance(each, Connection)]", "cannot be read"),
    "forges the end": ("import pickle, gc\n    from multiprocessing.connection import Connection\n"
                       "    [each.send_bytes(pickle.dumps(('verdict', 'right', 'Right.'))) for each in gc.get_objects()"
                       " if isinstance(each, Connection)]", "Not yet. "),
    "forges verdicts": ("import glob, os\n    for file in glob.glob('/proc/[0-9]*/fd/*'):\n        try:\n"
                        "            if 'pipe' in os.readlink(file):\n                os.write(os.open(file, "
                        "os.O_WRONLY | os.O_NONBLOCK), b'[\"mean\", \"right\", \"\"]\\n')\n"
                        "        except OSError: pass", "Not yet. "),
    "reads the judge's memory": ("import os\n    judge = open(f'/proc/{os.getppid()}/stat').read().split()[3]\n"
                                 "    return open(f'/proc/{judge}/mem', 'rb')", "PermissionError"),
    "fills devices": ("open('/dev/big', 'wb')", "Read-only file system"),
    "reads a neighbour": ("return open(NEIGHBOUR).read()", "FileNotFoundError"),
    "writes elsewhere": ("open(HACKED, 'w').write('here')", "Read-only file system"),
    "calls home": ("import socket; socket.create_connection(('192.0.2.1', 80), 3)", "unreachable"),
}
LOOKS = """    import glob, os, time
    if "big" not in globals():  # 500 MB, if each process counts what it shares
        globals()["big"] = bytearray(b"x") * 10**8
        for _ in range(5):
            os.fork() or (time.sleep(60), os._exit(0))
        time.sleep(1)
    seen = []
    for file in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            seen.append(open(file, "rb").read())
        except OSError:  # the judge's, or that of a process which has just ended
            pass
    assert seen and not any(b"tell-tale" in each for each in seen), "the seed"
"""


@needs_shield
@pytest.mark.timeout(400)
def test_a_hostile_answer_costs_its_own_point_and_is_named(tmp_path, monkeypatch):
    """All in one hand-in, to a check that needs no torch: each room that an answer ends is made again. A right answer,
    which forks sleepers that share its memory, and finds the seed nowhere, stands after the first, after one that ends
    its room, and after the last."""
    monkeypatch.setenv("MY_TOKEN", "a tell-tale word")  # of whoever grades
    monkeypatch.setattr(shield, "MEMORY", 3 * 10**8)
    places = {"NEIGHBOUR": repr(str(tmp_path / "in" / "neighbour.txt")), "HACKED": repr(str(ROOT / "course/hacked.py"))}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "neighbour.txt").write_text("def my_mean(): ...")
    right = inspect.getsource(template.my_mean).replace("\n", f"\n{LOOKS}", 1)
    asked, paper = {}, Paper("", [])
    for name, (body, _) in HOSTILE.items():
        for word, text in places.items():
            body = body.replace(word, text)
        asked[name] = f"def my_mean(*asked):\n    {body}\n"
        if name in ("exits", "forks", "calls home"):
            asked[f"after: {name}"] = right
    for name, source in asked.items():
        paper.questions.append(Question("lessons._template.check", "mean", name, 0))
        paper.own.append((0, source.replace("def my_mean", "def answer") + f"\nglobals()[{name!r}] = answer\n"))
    verdicts = shield.judged(paper, [tmp_path / "in"], "tell-tale", PATIENCE, shielded=True)
    for name, (_, outcome, message) in zip(asked, verdicts, strict=True):
        if name in HOSTILE:
            assert outcome == "wrong" and HOSTILE[name][1] in message, (name, message)
        else:
            assert outcome == "right", (name, message)
    assert not (ROOT / "course/hacked.py").exists()


@needs_shield
def test_what_can_be_seen_and_written_in_a_room(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    hand_ins = Path(sys.prefix) / "lib"  # a folder that is shown: what is handed in there is not
    inside = f"""
import os
assert os.listdir({str(hand_ins)!r}) == []
there = [path for path in {[str(tmp_path / "mine.txt"), str(ROOT / "teach" / "tests.toml"), str(ROOT / "results"),
                            "/etc/shadow", "/var/log"]} if os.path.exists(path)]
free = {{}}
for path in [line.split()[1] for line in open("/proc/mounts")]:
    try:
        open(os.path.join(path, "new"), "w").close()
        free[path] = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    except OSError:
        free[path] = 0
print(there, sorted((path, size) for path, size in free.items() if size))
"""
    done = subprocess.run([*shield.room([hand_ins]), Path(sys.base_prefix, "bin", "python3"), "-c", inside], text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    there, writable = ast.literal_eval(done.stdout.replace("] [", "], ["))
    assert there == [] and [path for path, _ in writable] == ["/dev/shm", "/tmp"], done.stdout + done.stderr
    assert all(size < 1.01 * shield.DISK for _, size in writable)


def test_only_whole_lines_of_the_judge_are_verdicts_and_each_in_its_turn():
    paper = Paper("01", handed_in.asked_in("01"), seal="seal")
    first, second = (question.name for question in paper.questions)
    lines = [f'["{first}", "right", ""]', f'other ["{first}", "right", ""]', "boom", "[" * 10_000,
             f'seal ["{second}", "right", ""]', f'seal ["{first}", "excellent", ""]', f'seal ["{first}", "wrong", "a"]',
             f'seal ["{first}", "right", ""]', f'seal ["{second}", "untr']
    assert shield.authentic("\n".join(lines).encode(), paper) == [(first, "wrong", "a")]


@needs_shield
def test_ctrl_c_ends_the_answers_that_are_judged_and_leaves_no_process(tmp_path):
    hand_in("01", tmp_path / "in" / "ada.ipynb", my_gain="def my_gain(*asked):\n    while True: pass")
    going = subprocess.Popen([sys.executable, "teach/grade.py", str(tmp_path / "in"), "--limit", "600", "--out",
                              str(tmp_path / "out")], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                             env=runner.environment(PYTHONPATH=str(ROOT)), stderr=subprocess.STDOUT)
    try:
        ours = psutil.Process(going.pid)
        room_judge_and_answer = 4  # bubblewrap is two
        runner.wait_for(lambda: len(ours.children(recursive=True)) >= room_judge_and_answer, "an answer")
        started = ours.children(recursive=True)
        going.send_signal(signal.SIGINT)
        printed, _ = going.communicate(timeout=60)
        assert going.returncode == 130 and printed == "not done: no table and no page was written\n" and started
        _, left = psutil.wait_procs(started, timeout=10)
        assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]  # none but what nobody reaps
    finally:
        going.kill()


def test_without_bubblewrap_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(shield.NoShield, match="--no-shield"):
        shield.check()


# --------------------------------------------------------------------------------------------------------- the tests


def answered(when, letters):
    """A test as a notebook, with {number of the question: Python}."""
    notebook = questions.notebook(when)
    for cell in notebook.cells:
        if cell.source.endswith(" = None") and (number := int(cell.source[3:5])) in letters:
            cell.source = f"my_{number:02} = {letters[number]}"
    return notebook


def test_both_tests_ask_ten_questions_and_give_nothing_away():
    for when in questions.NAMES:
        notebook = questions.notebook(when)
        nbformat.validate(notebook)
        text = "\n".join(cell.source for cell in notebook.cells)
        for idea in questions.ideas():
            asked = idea[when]
            assert set(asked["reveals"]) == set(asked["options"]) - {asked["right"]} and len(asked["options"]) == 4
            assert asked["question"].strip() in text and not any(why in text for why in asked["reveals"].values())
        assert len(questions.ideas()) == 10 and text.count("= None") == 10
        assert handed_in.lesson_of(notebook) == when


@pytest.mark.parametrize(("given", "outcome"), [
    ("None", "untried"), ("{[1]}", "untried"), ("{[]: 1}", "untried"), ("-" * 500 + "1", "untried"),
    ("LETTER", "right"), ("'LETTER '", "right"), (f"{'x' * 9000!r}", "wrong"), ("1", "wrong")])
def test_an_answer_of_a_test_is_a_letter_and_is_not_run(given, outcome):
    """The letter without quotes, and with a space behind it, are right. Some Python has no value."""
    text = given.replace("LETTER", questions.ideas()[0]["before"]["right"])
    statements = handed_in.statements(answered("before", {1: text}))
    assert [outcome for _, outcome, _ in questions.judged("before", statements)] == [outcome] + 9 * ["untried"]


def test_a_class_sees_what_it_has_learned_and_gets_its_pages_back(tmp_path):
    for learner in ("ada", "ben"):
        (tmp_path / "in" / learner).mkdir(parents=True)
        for when, name in questions.NAMES.items():
            letters = {number: repr(idea[when]["right"] if learner == "ada" else min(idea[when]["reveals"]))
                       for number, idea in enumerate(questions.ideas(), 1) if when == "after" or number < 4}
            nbformat.write(answered(when, letters), tmp_path / "in" / learner / f"{name}.ipynb")
    for learner in ("ada", "ben", "cleo, who handed in nothing", "eve"):
        (tmp_path / "class" / learner).mkdir(parents=True)
    (tmp_path / "names.txt").write_text("ada\neve\n")
    (tmp_path / "in" / "cleo, who handed in nothing").mkdir()
    (tmp_path / "in" / "dan").mkdir()
    page = "graded-before-after.html"
    (tmp_path / "class" / "ada" / page).symlink_to(tmp_path / "teacher's")  # a learner's trick
    printed = grade(tmp_path / "in", "--out", tmp_path / "out", "--give-back", tmp_path / "class", "--lesson", "before",
                    "--lesson", "after", "--class", tmp_path / "names.txt", "--no-shield")  # nothing of a test is run
    assert f"3 pages given back as {page}; no folder in {tmp_path / 'class'}: dan\n" in printed
    assert not (tmp_path / "class" / "eve" / page).exists(), "her name stands in the list alone: it may be misspelt"
    for learner in ("ada", "ben", "cleo, who handed in nothing"):
        assert f"<h1>{learner}</h1>" in (tmp_path / "class" / learner / page).read_text()
    assert not (tmp_path / "teacher's").exists()
    answers = pd.read_csv(tmp_path / "out" / "answers.csv").set_index(["learner", "lesson", "exercise"])
    first = questions.ideas()[0]
    assert answers.loc[("ada", "after", first["name"]), "outcome"] == "right"
    assert first["before"]["reveals"][min(first["before"]["reveals"])] in answers.loc[("ben", "before", first["name"]),
                                                                                      "why"]
    index = (tmp_path / "out" / "index.html").read_text()
    assert "Before and after" in index and "0 of 2" in index and "1 of 2" in index


# -------------------------------------------------------------------------------------------------------- the office


RIGHT = [repr(idea["before"]["right"]) for idea in questions.ideas()]


def pre_test(path, right):
    """The pre-test with so many right answers, as a file; its text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(answered("before", dict(enumerate(RIGHT[:right], 1))), path)
    return path.read_text()


@pytest.mark.parametrize(("names", "listed", "imported", "late"), [
    (("doejane_LATE_11_901_pre_test.ipynb", "doejohn_12_902_pre_test-1.ipynb", "doejohn_12_903_notes.txt"),
     'Student,ID,SIS Login ID,Section,Quiz (7)\n    Points Possible,,,,9\n"Doe, Jane",11,j,A,\n"Doe, John",12,o,A,5\n'
     "=Roe,13,r,A,\n",
     'Student,ID,SIS Login ID,Section,lesson before\n    Points Possible,,,,100.0\n"Doe, Jane",11,j,A,70.0\n'
     '"Doe, John",12,o,A,100.0\n\'=Roe,13,r,A,\n', "LATE"),
    (("Jane Doe_11_assignsubmission_file/pre_test.ipynb", "John Doe_12_assignsubmission_file_pre_test.ipynb",
      "Jane Doe_11_assignsubmission_onlinetext/onlinetext.html"),
     "Identifier;Full name;Grade;Last modified (grade)\nParticipant 11;Jane Doe;;-\nParticipant 12;John Doe;;-\n"
     "Participant 13;Max Roe;;-\n",
     "Identifier,Full name,Grade,Last modified (grade)\nParticipant 11,Jane Doe,70.0,-\nParticipant 12,John Doe,100.0,-"
     "\nParticipant 13,Max Roe,,-\n", ""),
    (("Jane Doe_11_assignsubmission_file_/work.zip", "John Doe_12_assignsubmission_file_/notebooks/pre_test.ipynb",
      "__MACOSX/._pre_test.ipynb"),
     "First name,Last name,Email address\nJane,Doe,j@x.org\nJohn,Doe,o@x.org\nMax,Roe,r@x.org\n",
     "First name,Last name,Email address,lesson before\nJane,Doe,j@x.org,70.0\nJohn,Doe,o@x.org,100.0\nMax,Roe,"
     "r@x.org,\n", "")], ids=["Canvas", "Moodle's worksheet", "Moodle's export"])
def test_what_an_lms_downloads_is_graded_and_what_it_imports_is_written(names, listed, imported, late, tmp_path):
    jane, john = pre_test(tmp_path / "jane.ipynb", 7), pre_test(tmp_path / "john.ipynb", 10)
    if names[0].endswith(".zip"):
        with zipfile.ZipFile(tmp_path / "work.zip", "w") as work:
            work.writestr("notebooks/pre_test.ipynb", jane)
        jane = (tmp_path / "work.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as download:
        for name, text in zip(names, (jane, john, "text"), strict=True):
            download.writestr(name, text)
    (tmp_path / "class.csv").write_text(listed, encoding="utf-8-sig")
    (back := tmp_path / "back" / "Jane Doe_11_assignsubmission_file").mkdir(parents=True)
    grade(tmp_path / "in.zip", "--lesson", "before", "--class", tmp_path / "class.csv", "--out", tmp_path / "out",
          "--give-back", tmp_path / "back")
    assert "70 %" in (back / "graded-before.html").read_text()
    assert (tmp_path / "out" / "import.csv").read_text() == imported
    grades = pd.read_csv(tmp_path / "out" / "grades.csv", keep_default_na=False).sort_values("percent")
    assert list(grades.percent) == ["", "100.0", "70.0"] and list(grades.late) == ["", "", late]
    assert list(grades["why not"]) == ["nothing was handed in", "", ""]


def test_marks_are_kept_and_one_learner_is_graded_again(tmp_path):
    for learner, right in (("ada", 10), ("ben", 3)):
        pre_test(tmp_path / "in" / learner / "pre_test.ipynb", right)
    os.utime(tmp_path / "in" / "ben" / "pre_test.ipynb", (1e9, 1e9))
    first, second, *_ = (idea["name"] for idea in questions.ideas())
    (tmp_path / "marks.csv").write_text(f"learner;lesson;exercise;weight;points;comment\n;before;{first};11;;\n"
                                        f"ben;before;{first};;0,5;=half of it\ncleo;before;{second};;1;\n")
    arguments = ["--out", tmp_path / "out", "--lesson", "before", "--marks", tmp_path / "marks.csv"]

    def grades():
        with (tmp_path / "out" / "grades.csv").open() as file:
            return {row["learner"]: (float(row["percent"]), row["late"]) for row in csv.DictReader(file)}

    printed = grade(tmp_path / "in", *arguments, "--deadline", "2020-01-01T00:00")
    assert f"no such answer, for --marks: cleo before {second}\n" in printed
    now = grades()
    assert now["ben"] == (37.5, "") and now["ada"][0] == 100 and now["ada"][1].startswith("20")
    assert "=half of it (0.5 of 1)" in (tmp_path / "out" / "learner-002.html").read_text()
    assert "'=half of it" in (tmp_path / "out" / "answers.csv").read_text()
    pre_test(tmp_path / "in" / "ben" / "pre_test.ipynb", 4)
    (tmp_path / "in" / "ada" / "pre_test.ipynb").write_text("lost")
    grade(tmp_path / "in", *arguments, "--only", "ben")
    assert grades() == {**now, "ben": (42.5, "")}
    (tmp_path / "marks.csv").write_text("learner,points\nada,0\n")
    grade(*arguments)
    assert grades()["ada"][0] == 0 and grades()["ben"][0] == 40


# ------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(("arguments", "written", "message"), [
    (["{ROOT}"], "", "holds this course"), (["{ROOT}/notebooks", "--out", "{ROOT}/notebooks/o"], "", "as handed in"),
    (["{}/no.zip"], "", "no folder and no .zip"), (["{}/made.zip"], "half", "made.zip cannot be unpacked"),
    (["--out", "{}/out"], "", "last grading, {}/out/graded.json: No such file"), (["--only", "ada"], "", "name the f"),
    (["{}/in", "--only", "eve", "--out", "{}/out"], "", "nothing was handed in by eve, but by ada"),
    (["{}/in", "--class", "{}/made.csv"], "learner,Section\nada,1\nada,2\n", "two are called ada"),
    (["--marks", "{}/made.csv"], "comment\n\udce9\n", "save it as CSV UTF-8"),
    (["--marks", "{}/made.csv"], "lesson,points\n5,1\n5,2\n", "line 3: points must be a number from 0 to 1")])
def test_what_cannot_be_graded_is_refused_in_one_line(arguments, written, message, tmp_path, capsys):
    pre_test(tmp_path / "in" / "ada.ipynb", 1)
    for name in ("made.csv", "made.zip") if written else ():
        (tmp_path / name).write_text(written, errors="surrogateescape")
    with pytest.raises(SystemExit) as end:
        grade(*(word.format(tmp_path, ROOT=ROOT) for word in arguments))
    err = capsys.readouterr().err
    assert end.value.code == 2 and message.format(tmp_path) in err and err.count("\n") == 1
