"""scripts/grade: a right, wrong, half or hostile hand-in costs its own points, and nothing else."""

import ast
import contextlib
import csv
import doctest
import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import nbformat
import pandas as pd
import psutil
import pytest

from course.lesson import ROOT
from lessons._template import check as template
from lessons.l01_one_device import check as lesson_01
from lessons.l05_distributed_sampler import check as lesson_05
from teach import grade as grading
from teach import handed_in, judge, questions, shield
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
    notebook = nbformat.read(handed_in.lessons()[lesson], as_version=4)
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


def test_an_answer_is_its_definition_and_the_names_that_it_uses():
    notebook = nbformat.v4.new_notebook(cells=cells(
        "import math, time\nfrom statistics import mean, median\nfrom lessons.l05_x import check, uneven_shards",
        "!torchrun main.py\nslow = time.sleep(1000)",
        "FACTOR = math.pi\ntotal = slow",
        "def helper(x):\n    total = FACTOR * x\n    return mean([total])",
        "def my_answer(x):\n    return helper(x)",
        "def my_answer(x):\n    return helper(2 * x)",
        "%%writefile results/live/05_backward.py\nimport torch\n",
        "def broken(:\n    pass"))
    statements, files = handed_in.taken_apart(notebook)
    source = handed_in.needed("my_answer", statements)
    exec(source, namespace := {})
    assert namespace["my_answer"](1) == pytest.approx(6.2832, abs=1e-3)
    assert not any(word in source for word in ("sleep", "torchrun", "median", "time", "check"))
    assert files == {"05_backward.py": "import torch\n"}
    assert handed_in.needed("broken", statements).startswith("raise SyntaxError")
    assert handed_in.needed("nothing", statements).strip() == ""


@pytest.mark.parametrize("lesson", handed_in.lessons())
def test_a_lesson_s_own_notebook_has_each_question_and_no_answer(lesson):
    asked = handed_in.asked_in(lesson)
    paper = handed_in.paper(handed_in.read(handed_in.lessons()[lesson]), ROOT / "tests")
    assert len(asked) >= 2 and handed_in.from_json(handed_in.as_json(paper)) == paper
    for question in asked:
        text = (paper.files if question.is_file else paper.source).get(question.given, "raise NotImplementedError")
        assert "raise NotImplementedError" in text or f"{question.given} = None" in text or "..." in text


def test_the_capstone_of_a_copy_is_found_where_lessons_write_it_and_never_another_learner_s(tmp_path):
    notebooks, live = tmp_path / "ada" / "notebooks", tmp_path / "ada" / "results" / "live"
    live.mkdir(parents=True)
    (live / "06b_program.py").write_text("import torch\n")
    lesson = handed_in.read(handed_in.lessons()["06b"])
    assert handed_in.paper(lesson, notebooks).files["06b_program.py"] == "import torch\n"
    (tmp_path / "eve").mkdir()
    (tmp_path / "eve" / "results").symlink_to(tmp_path / "ada" / "results")
    assert "06b_program.py" not in handed_in.paper(lesson, tmp_path / "eve" / "notebooks").files


# --------------------------------------------------------------------------------------------------- a folder, graded

BAD = {  # code of a notebook, and what is said of it
    "deep": ("from lessons.l01_one_device import check\nx = " + "1+" * 20_000 + "1", "RecursionError"),
    "half-a-character": ("from lessons.l01_one_device import check\nx = '\ud800'", "UnicodeEncodeError"),
    "long-number": ('test = "before"\nmy_01 = 0x' + "f" * 10_000, "ValueError"),
    "no-lesson": ("x = 1", "no lesson of this course"),
}


@needs_shield
def test_a_folder_is_graded_and_each_file_that_cannot_be_is_named_in_a_line(tmp_path):
    folder = tmp_path / "in"
    for name in ("01", "older", "other"):
        hand_in("01" if name != "other" else "05", folder / "ada" / "notebooks" / f"{name}.ipynb")
    os.utime(folder / "ada" / "notebooks" / "older.ipynb", (1000, 1000))
    shutil.copy(handed_in.lessons()["04"], folder / "dan.ipynb")
    (folder / "ivy").symlink_to("ada")
    hand_in("01", folder / "words.ipynb", my_gain="def my_gain(*asked):\n    raise ValueError('\\ud800')",
            my_step_seconds="def my_step_seconds(*asked):\n    raise ValueError('x' * 8_000_000)")
    (folder / "ben").mkdir()
    whole = handed_in.lessons()["05"].read_text()
    (folder / "cleo.ipynb").write_text(whole[:len(whole) // 2])
    (folder / "eve.ipynb").write_text('{"cells": 5}')
    with (folder / "fay.ipynb").open("wb") as huge:
        huge.truncate(10**9)  # a gigabyte printed, and saved
    os.mkfifo(folder / "gil.ipynb")  # whoever opens it waits
    (folder / "hal.ipynb").symlink_to(folder / "ada" / "notebooks" / "01.ipynb")
    (folder / "readme.txt").write_text("no notebook, and nobody's")
    for name, (source, _) in BAD.items():  # nbformat writes no half character
        (folder / f"{name}.ipynb").write_text(json.dumps(nbformat.v4.new_notebook(cells=cells(source))))
    os.mkdir(os.fsencode(folder) + b"/J\xf6rg")
    (tmp_path / "class.txt").write_text("ada\nben\n zoe\n\n", encoding="utf-8-sig")  # as Windows' editor saves it
    printed = grade(folder, "--seed", "1", "--out", tmp_path / "out", "--class", tmp_path / "class.txt",
                    "--lesson", "01", "--lesson", "before")
    lines = printed.splitlines()
    expected = {"ben/": "no notebook was handed in", "cleo.ipynb": "no notebook", "eve.ipynb": "no notebook",
                "fay.ipynb": "1,000 MB", "gil.ipynb": "no file of its own", "hal.ipynb": "no file of its own",
                "J\\udcf6rg/": "no notebook was handed in", "zoe/": "no notebook was handed in",
                "ada/notebooks/01.ipynb": "2 of 2 answers right", "ada/notebooks/older.ipynb": "same lesson, and newer",
                "dan.ipynb": "this is 04, and 01 or before was asked for", "ivy": "no file of its own",
                **{f"{name}.ipynb": words for name, (_, words) in BAD.items()}}
    for name, words in expected.items():
        assert sum(line.startswith(f"{name}: ") and words in line for line in lines) == 1, (name, lines)
    assert "2 notebooks graded, 15 not" in lines[-1]
    verdicts = outcomes(tmp_path / "out")
    clock, gain = (verdicts["words", question.name] for question in handed_in.asked_in("01"))
    assert gain == ("wrong", "Not yet. It raised ValueError: \\ud800")
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
    hand_in("05", tmp_path / "in" / "ada.ipynb", **{
        "my_shard": table, "05_backward": on_a_rank + inspect.getsource(lesson_05.backward)})
    grade(tmp_path / "in", "--seed", "1", "--out", tmp_path / "out")
    verdicts = outcomes(tmp_path / "out")
    assert verdicts["ada", "shard"][0] == "wrong" and verdicts["ada", "stream"][0] == "untried"
    assert verdicts["ada", "gradient"][0] == "right", verdicts["ada", "gradient"]


# -------------------------------------------------------------------------------------------------------- hostile

PATIENCE = 8  # seconds of an answer
HOSTILE = {
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "ends its process": ("import os; os._exit(0)", "ended before the check had an answer"),
    "never ends": ("while True: pass", f"No end within {PATIENCE} s"),
    "forks": ("import os, time\n    while True: os.fork() or time.sleep(1000)", "started more than"),
    "fills the disk": ("out = open('big', 'wb')\n    while True: out.write(bytes(10**7))", "No space left"),
    "prints": ("for _ in range(1000): print('x' * 10**6)", "printed more than 1 MB"),
    "eats memory": ("kept = []\n    while True: kept.append(bytearray(b'x') * 10**8)", "GB of memory"),
    "asks the checks": ("from lessons.l01_one_device import check\n    return check.my_mean(*asked)", "looks into"),
    "changes the checks": ("import sys\n    sys.modules['course.' + 'exer' + 'cise'].same = lambda *_: True\n"
                           "    return 1", "changes the course's checks"),
    "changes Python": ("import math\n    math.isclose = lambda *_, **__: True\n    return 1", "or what they call"),
    "forges verdicts": ("import os\n    there = f'/proc/{os.getppid()}/fd/'\n    for number in os.listdir(there):\n"
                        "        if 'pipe' in os.readlink(there + number) and int(number) > 2:\n"
                        "            os.write(os.open(there + number, os.O_WRONLY), b'[\"mean\", \"right\", \"\"]\\n')",
                        "It was stopped"),
    "fills devices": ("open('/dev/big', 'wb')", "Read-only file system"),
    "reads a neighbour": ("return open(NEIGHBOUR).read()", "FileNotFoundError"),
    "writes elsewhere": ("open(HACKED, 'w').write('here')", "Read-only file system"),
    "calls home": ("import socket; socket.create_connection(('192.0.2.1', 80), 3)", "unreachable"),
}
LOOKS = """    import glob
    seen = [open(file, "rb").read() for name in ("environ", "cmdline") for file in glob.glob(f"/proc/[0-9]*/{name}")]
    assert seen and not any(b"tell-tale" in each for each in seen), "the seed"
"""


@pytest.mark.promise("shield")
@needs_shield
@pytest.mark.timeout(400)
def test_a_hostile_answer_costs_its_own_point_and_is_named(tmp_path, monkeypatch):
    """All in one hand-in, to a check that needs no torch: each room that an answer ends is made again. A right answer,
    which looks for the seed and finds it nowhere, stands after the first, after one that ends its room, and after the
    last."""
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
        paper.questions.append(Question("lessons._template.check", "mean", name))
        paper.source[name] = source.replace("def my_mean", "def answer") + f"\nglobals()[{name!r}] = answer\n"
    verdicts = shield.judged(paper, [tmp_path / "in"], "tell-tale", PATIENCE, shielded=True)
    for name, (_, outcome, message) in zip(asked, verdicts, strict=True):
        if name in HOSTILE:
            assert outcome == "wrong" and HOSTILE[name][1] in message, (name, message)
        else:
            assert outcome == "right", (name, message)
    assert not (ROOT / "course/hacked.py").exists()


@pytest.mark.promise("shield")
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
    first, second, _ = (question.name for question in paper.questions)
    lines = [f'["{first}", "right", ""]', f'other ["{first}", "right", ""]', "boom", "[" * 10_000,
             f'seal ["{second}", "right", ""]', f'seal ["{first}", "excellent", ""]', f'seal ["{first}", "wrong", "a"]',
             f'seal ["{first}", "right", ""]', f'seal ["{second}", "untr']
    assert shield.authentic("\n".join(lines).encode(), paper) == [(first, "wrong", "a")]


@pytest.mark.parametrize(("source", "named"), [
    ("import lessons as c", True), ("import lessons.l01_one_device", True), ("import course.exercise as e", True),
    ("from lessons import l00_start_here, l01_one_device as k", True), ("from lessons.l01_one_device import *", True),
    ("from course.exercise import same", True), ("sys.modules['lessons.l01_one_device.check']", True),
    ("from lessons.l02_data_parallel.pretend_devices import replicate", False), ("checks = {'check': 1}", False),
    ("path = 'lessons/l10_launchers/hello_rank.py'", False), ("from course import lesson, plots", False),
    ("def answer():\n    '''As lessons.l01_one_device.check wants it.'''", False)])
def test_an_answer_may_use_a_lesson_s_programs_and_not_its_checks(source, named):
    assert judge.names_the_checks(source) is named


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
    statements, _ = handed_in.taken_apart(answered("before", {1: text}))
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


# ------------------------------------------------------------------------------------------------- the command, otter


@pytest.mark.parametrize(("arguments", "message"), [
    (["{}"], "holds this course"), (["{}/notebooks", "--out", "{}/notebooks/grades"], "would count as handed in")])
def test_a_folder_that_cannot_be_graded_is_refused_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        grade(*(word.format(ROOT) for word in arguments))
    err = capsys.readouterr().err
    assert end.value.code == 2 and message in err and err.count("\n") == 1


def test_a_test_for_otter_asks_the_check(tmp_path):
    grade("--otter", tmp_path)
    assert len(list(tmp_path.rglob("*.py"))) == sum(len(handed_in.asked_in(lesson)) for lesson in handed_in.lessons())
    exec((tmp_path / "05" / "tests" / "shard.py").read_text(), namespace := {})
    code = namespace["test"]["suites"][0]["cases"][0]["code"]
    for answer, failures in ((lesson_05.my_shard, 0), (lesson_05.blocks, 1)):
        test = doctest.DocTestParser().get_doctest(code, {"my_shard": answer}, "shard", None, 0)
        assert doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None).failed == failures
