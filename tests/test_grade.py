"""scripts/grade: what is handed in, right, wrong, half, or hostile, costs its own points, and nothing else."""

import ast
import csv
import inspect
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import nbformat
import psutil
import pytest

from course.lesson import ROOT
from lessons.l01_one_device import check as lesson_01
from lessons.l05_distributed_sampler import check as lesson_05
from teach import grade as classroom_grade
from teach import handed_in, otter, questions, shield
from tests import runner


def no_shield():
    try:
        shield.check()
    except shield.NoShield as reason:
        return str(reason)
    return None


without = no_shield()
needs_shield = pytest.mark.skipif(bool(without), reason=str(without))
SOLVED = {
    "01": {"def my_step_seconds": lesson_01.my_step_seconds, "def my_gain": lesson_01.my_gain,
           "def my_loss": lesson_01.my_loss},
    "05": {"def my_shard": lesson_05.my_shard},
}
IMPORTS = "import math\nfrom torch import nn\n\n"


def solved(lesson, path, **changed):
    """Hand in a lesson's notebook with all functions right, but for those `changed`, {name: Python}."""
    notebook = nbformat.read(handed_in.lessons()[lesson], as_version=4)
    for cell in notebook.cells:
        for start, function in SOLVED[lesson].items():
            if cell.source.startswith(start):
                name = start.removeprefix("def ")
                cell.source = changed.get(name) or IMPORTS + inspect.getsource(function)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def grade(*arguments, timeout=runner.LIMIT):
    return subprocess.run([sys.executable, "teach/grade_notebooks.py", *map(str, arguments)], cwd=ROOT, text=True,
                          env=runner.environment(PYTHONPATH=str(ROOT)), capture_output=True, timeout=timeout)


def outcomes(folder):
    with (folder / "answers.csv").open() as file:
        return {(row["learner"], row["exercise"]): (row["outcome"], row["why"]) for row in csv.DictReader(file)}


# ------------------------------------------------------------------------------------------------ what is handed in


def test_an_answer_is_its_definition_and_what_that_names():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (
        "import math, time\nfrom statistics import median",
        "!torchrun main.py\nslow = time.sleep(1000)",
        "FACTOR = math.pi\ntotal = slow",
        "def helper(x):\n    total = FACTOR * x\n    return total",
        "def my_answer(x):\n    return helper(x)",
        "def my_answer(x):\n    return helper(2 * x)",
        "%%writefile results/live/05_backward.py\nimport torch\n",
        "def broken(:\n    pass",
    )])
    statements, files = handed_in.taken_apart(notebook)
    source = handed_in.needed("my_answer", statements)
    assert files == {"05_backward.py": "import torch\n"}
    found = {}
    exec(source, found)
    assert found["my_answer"](1) == pytest.approx(6.2832, abs=1e-3)
    assert "sleep" not in source and "torchrun" not in source and "median" not in source
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


def test_a_file_of_a_copy_is_found_where_lessons_write_it(tmp_path):
    notebooks, live = tmp_path / "ada" / "notebooks", tmp_path / "ada" / "results" / "live"
    live.mkdir(parents=True)
    (live / "my_ddp.py").write_text("import torch\n")
    lesson = handed_in.read(handed_in.lessons()["06"])
    assert handed_in.paper(lesson, notebooks).files["my_ddp.py"] == "import torch\n"
    assert "my_ddp.py" not in handed_in.paper(lesson, tmp_path / "ada" / "elsewhere").files
    (tmp_path / "eve").mkdir()
    (tmp_path / "eve" / "results").symlink_to(tmp_path / "ada" / "results")
    assert "my_ddp.py" not in handed_in.paper(lesson, tmp_path / "eve" / "notebooks").files, "another learner's"


def test_of_two_files_with_one_lesson_the_newer_is_graded(tmp_path):
    paths = [tmp_path / "ada" / name for name in ("pre_test (1).ipynb", "pre_test.ipynb")]
    paths[0].parent.mkdir()
    for age, path in enumerate(paths):
        notebook = questions.notebook("before")
        notebook.cells[-1].source = f"my_10 = {'ba'[age]}"  # without quotes: a letter all the same
        nbformat.write(notebook, path)
        os.utime(path, (1000 - age, 1000 - age))
    done = grade(tmp_path, "--out", f"{tmp_path}-out", "--no-shield")
    assert done.returncode == 0, done.stderr
    rows = outcomes(Path(f"{tmp_path}-out"))
    assert len(rows) == 10 and sum(outcome != "untried" for outcome, _ in rows.values()) == 1
    assert "ada/pre_test (1).ipynb is the same lesson, and newer" in Path(f"{tmp_path}-out", "index.html").read_text()


@needs_shield
def test_half_a_notebook_none_and_another_lesson_s_cost_a_line_each(tmp_path):
    solved("05", tmp_path / "in" / "ada" / "notebooks" / "05_distributed_sampler.ipynb")
    (tmp_path / "in" / "ben").mkdir()
    whole = handed_in.lessons()["05"].read_text()
    (tmp_path / "in" / "cleo.ipynb").write_text(whole[:len(whole) // 2])
    shutil.copy(handed_in.lessons()["04"], tmp_path / "in" / "dan.ipynb")
    (tmp_path / "in" / "eve.ipynb").write_text('{"cells": 5}')
    with (tmp_path / "in" / "fay.ipynb").open("wb") as huge:
        huge.truncate(10**9)  # a gigabyte printed, and saved
    (tmp_path / "in" / "readme.txt").write_text("no notebook, and nobody's")
    os.mkfifo(tmp_path / "in" / "gil.ipynb")  # whoever opens it waits
    (tmp_path / "in" / "hal.ipynb").symlink_to(tmp_path / "in" / "ada" / "notebooks" / "05_distributed_sampler.ipynb")
    (tmp_path / "class.txt").write_text("ada\nben\n zoe\n\n", encoding="utf-8-sig")  # as Windows' editor saves it
    done = grade(tmp_path / "in", "--lesson", "05", "--seed", "1", "--out", tmp_path / "out",
                 "--class", tmp_path / "class.txt")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "1 notebook graded, 8 not" in lines[-1]
    for name, said in (("ben/", "no notebook was handed in"), ("cleo.ipynb", "no notebook"),
                       ("dan.ipynb", "this is 04"), ("eve.ipynb", "no"), ("fay.ipynb", "1,000 MB"),
                       ("gil.ipynb", "no file of its own"), ("hal.ipynb", "no file of its own"),
                       ("zoe/", "no notebook was handed in")):
        assert sum(line.startswith(f"{name}: ") and said in line for line in lines) == 1, (name, lines)
    assert outcomes(tmp_path / "out")["ada", "shard"][0] == "right"
    pages = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.html")}
    assert len(pages) == 10 and "dan.ipynb: this is 04" in pages["index.html"]
    assert "Each" not in pages["learner-002.html"] and "no notebook was handed in" in pages["learner-002.html"]


def test_in_a_folder_of_copies_other_lessons_count_only_where_the_one_asked_for_is_missing(tmp_path):
    for learner, lessons in (("ada", ("00", "04", "05")), ("dan", ("00", "04"))):
        (tmp_path / learner / "notebooks").mkdir(parents=True)
        for lesson in lessons:
            shutil.copy(handed_in.lessons()[lesson], tmp_path / learner / "notebooks")
    (tmp_path / "eve").symlink_to("ada")  # would be graded as Eve's work
    taken, refused = classroom_grade.sorted_out(classroom_grade.found([tmp_path]), ["05"])
    assert [(one.learner, which) for one, which, _ in taken] == [("ada", "05")]
    assert sorted((one.file, why) for one, why in refused) == [
        ("dan/", "this is 00, 04, and 05 was asked for"), ("eve", handed_in.LINK)]


def cells(*sources):
    return [nbformat.v4.new_code_cell(source) for source in sources]


BAD = {  # code of a notebook, and what is said of it
    "deep": ("from course.exercise import lesson_01 as check\nx = " + "1+" * 20_000 + "1", "RecursionError"),
    "deeper": ("from course.exercise import lesson_01 as check\nx = " + "-" * 20_000 + "1", "MemoryError"),
    "half a character": ("from course.exercise import lesson_01 as check\nx = '\ud800'", "UnicodeEncodeError"),
    "long number": ('test = "before"\nmy_01 = 0x' + "f" * 10_000, "ValueError"),
    "without source": (None, "no notebook"),
}


def test_no_notebook_and_no_name_ends_the_grading_of_all(tmp_path):
    for name, (source, _) in BAD.items():
        notebook = nbformat.v4.new_notebook(cells=cells(source or ""))
        if source is None:
            del notebook.cells[0]["source"]
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "a.ipynb").write_text(json.dumps(notebook))  # nbformat writes no half character
    test = questions.notebook("before")
    test.cells += cells("my_01 = {[1]}", "my_02 = {[]: 1}", "my_03 = " + "-" * 500 + "1", f"my_04 = {'x' * 9000!r}")
    latin = os.fsencode(tmp_path / "in") + b"/J\xf6rg"
    os.mkdir(latin)
    nbformat.write(test, os.path.join(os.fsdecode(latin), "pre.ipynb"))
    solved("01", tmp_path / "in" / "words" / "01.ipynb",
           my_gain="def my_gain(*asked):\n    raise ValueError('\\ud800')",
           my_loss="def my_loss(*asked):\n    raise ValueError('x' * 8_000_000)")
    done = grade(tmp_path / "in", "--no-shield", "--seed", "1", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for name, (_, said) in BAD.items():
        assert sum(line.startswith(f"{name}/a.ipynb: ") and said in line for line in done.stdout.splitlines()) == 1
    found = outcomes(tmp_path / "out")
    right, halves, long = (found["words", question.name] for question in handed_in.asked_in("01"))
    assert right[0] == "right" and halves == ("wrong", "Not yet. It raised ValueError: \\ud800")
    assert long[0] == "wrong" and len(long[1]) == handed_in.WORDS
    assert [outcome for (learner, _), (outcome, _) in found.items() if learner.startswith("J")] == [
        "untried", "untried", "untried", "wrong"] + 6 * ["untried"]


def test_only_whole_lines_of_the_judge_are_verdicts_and_each_in_its_turn():
    paper = handed_in.Paper("01", handed_in.asked_in("01"), seal="seal")
    first, second, _ = (question.name for question in paper.questions)
    said = [f'["{first}", "right", ""]', f'other ["{first}", "right", ""]', "boom", "[" * 10_000,
            f'seal ["{second}", "right", ""]', f'seal ["{first}", "excellent", ""]', f'seal ["{first}", "wrong", "a"]',
            f'seal ["{first}", "right", ""]', f'seal ["{second}", "untr']
    assert shield.authentic("\n".join(said).encode(), paper) == [(first, "wrong", "a")]


# --------------------------------------------------------------------------------------------------------- hostile

HOSTILE = {
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "ends_its_process": ("import os; os._exit(0)", "ended before the check had an answer"),
    "forks": ("import os\n    while True: os.fork()", "It was stopped"),
    "fills_the_disk": ("out = open('big', 'wb')\n    while True: out.write(bytes(10**7))", "No space left"),
    "prints": ("for _ in range(1000): print('x' * 10**6)", "printed more than 1 MB"),
    "eats_memory": ("kept = []\n    while True: kept.append(bytearray(b'x') * 10**8)", "GB of memory"),
    "asks_the_checks": ("from course.exercise import lesson_01\n    return lesson_01.my_loss(*asked)", "looks into"),
    "asks_by_another_name": ("import course as c\n    return c.checks.lesson_01.my_loss(*asked)", "looks into"),
    "asks_by_a_list": ("from course import lesson, checks as k\n    return k.lesson_01.my_loss(*asked)", "looks into"),
    "changes_the_checks": ("import sys\n    checks = sys.modules['course.' + 'che' + 'cks.cases']\n"
                           "    checks.same = lambda *_: True\n    return 1", "changes the course's checks"),
    "changes_python": ("import math\n    math.isclose = lambda *_, **__: True\n    return 1", "or what they call"),
    "writes_verdicts": ("import os\n    there = f'/proc/{{os.getppid()}}/fd/'\n    for number in os.listdir(there):\n"
                        "        if 'pipe' in os.readlink(there + number) and int(number) > 2:\n"
                        "            os.write(os.open(there + number, os.O_WRONLY), b'[\"loss\", \"right\", \"\"]\\n')",
                        "It was stopped"),
    "fills_devices": ("open('/dev/big', 'wb')", "Read-only file system"),
    "reads_a_neighbour": ("return open({neighbour!r}).read()", "FileNotFoundError"),
    "writes_elsewhere": ("open({home!r}, 'w').write('here')", "Read-only file system"),
    "calls_home": ("import socket; socket.create_connection(('192.0.2.1', 80), 3)", "unreachable"),
}


@needs_shield
def test_an_answer_that_never_ends_costs_its_own_point(tmp_path):
    solved("01", tmp_path / "in/one/01.ipynb", my_step_seconds="def my_step_seconds(*asked):\n    while True: pass\n")
    done = grade(tmp_path / "in", "--seed", "1", "--limit", "10", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (first, why), *others = outcomes(tmp_path / "out").values()
    assert (first, others[0][0], others[1][0]) == ("wrong", "right", "right") and "No end within 10 s" in why


@pytest.mark.promise("shield")
@needs_shield
@pytest.mark.timeout(400)
def test_a_hostile_answer_costs_its_own_point_and_is_named(tmp_path):
    """Three in a notebook: what comes after one is judged all the same. The time limit is long, so that the answer that
    takes memory meets the limit of memory first: on a busy machine 15 s were too short for 4 GB."""
    everybody = tmp_path / "in"
    neighbour = everybody / "good" / "01.ipynb"
    solved("01", neighbour)
    places = {"neighbour": str(neighbour), "home": str(ROOT / "course" / "hacked.py")}
    given = [question.given for question in handed_in.asked_in("01")]
    bodies = {name: f"(*asked):\n    {body.format(**places)}\n" for name, (body, _) in HOSTILE.items()}
    names = list(bodies)
    for first in range(0, len(names), len(given)):
        solved("01", everybody / f"learner {first}" / "01.ipynb", **{
            answer: f"def {answer}{bodies[name]}" for answer, name in zip(given, names[first:], strict=False)})
    solved("01", everybody / "one of three" / "01.ipynb", my_step_seconds=f"def my_step_seconds{bodies['forks']}")
    done = grade(everybody, "--seed", "1", "--limit", "200", "--out", tmp_path / "out", timeout=280)
    assert done.returncode == 0, done.stderr
    found = outcomes(tmp_path / "out")
    exercises = [question.name for question in handed_in.asked_in("01")]
    for number, (name, (_, said)) in enumerate(HOSTILE.items()):
        outcome, why = found[f"learner {number - number % len(given)}", exercises[number % len(given)]]
        assert outcome == "wrong" and said in why, (name, why)
    assert [found["one of three", name][0] for name in exercises] == ["wrong", "right", "right"]
    assert [found["good", name][0] for name in exercises] == ["right"] * 3
    assert not (ROOT / "course" / "hacked.py").exists()


@pytest.mark.promise("shield")
@needs_shield
def test_what_can_be_seen_and_written_in_a_room(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    hand_ins = Path(sys.prefix) / "lib"  # a folder that is shown: what is handed in there is not
    inside = f"""
import os
assert os.listdir({str(hand_ins)!r}) == []
there = [path for path in {[str(tmp_path / "mine.txt"), str(ROOT / "teach"), str(ROOT / "results"), "/etc/shadow",
                            "/var/log"]} if os.path.exists(path)]
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


@needs_shield
def test_no_environment_and_no_command_line_tells_an_answer_the_seed(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a tell-tale word")  # nor anything else of whoever grades
    looks = inspect.getsource(lesson_01.my_gain).replace("    ", """    import glob
    told = [open(file, "rb").read() for name in ("environ", "cmdline") for file in glob.glob(f"/proc/[0-9]*/{name}")]
    assert told and not any(b"tell-tale" in each for each in told), "the seed"
    """, 1)
    solved("01", tmp_path / "in" / "ada.ipynb", my_gain=looks)
    assert grade(tmp_path / "in", "--seed", "tell-tale", "--out", tmp_path / "out").returncode == 0
    assert outcomes(tmp_path / "out")["ada", handed_in.asked_in("01")[1].name] == ("right", mock.ANY)


@needs_shield
def test_ctrl_c_ends_the_answers_that_are_judged_and_leaves_no_process(tmp_path):
    solved("01", tmp_path / "in" / "ada.ipynb", my_gain="def my_gain(*asked):\n    while True: pass")
    going = subprocess.Popen([sys.executable, "teach/grade_notebooks.py", str(tmp_path / "in"), "--limit", "600",
                              "--out", str(tmp_path / "out")], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                             env=runner.environment(PYTHONPATH=str(ROOT)), stderr=subprocess.STDOUT)
    try:
        ours = psutil.Process(going.pid)
        room_judge_and_answer = 4  # bubblewrap is two
        runner.wait_for(lambda: len(ours.children(recursive=True)) >= room_judge_and_answer, "an answer")
        started = ours.children(recursive=True)
        going.send_signal(signal.SIGINT)
        said, _ = going.communicate(timeout=60)
        assert going.returncode == 130 and said == "not done: no table and no page was written\n" and started
        _, left = psutil.wait_procs(started, timeout=10)
        assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]  # none but what nobody reaps
    finally:
        going.kill()


@needs_shield
def test_ranks_are_shielded_too_and_an_answer_for_the_cases_that_a_learner_sees_is_wrong(tmp_path):
    seen = {case: lesson_05.my_shard(*case) for n, world_size in [(20, 2), (21, 2), (10, 1), (7, 4), (3, 8), (1, 3)]
            for case in [(n, rank, world_size) for rank in range(world_size)]}
    table = f"def my_shard(*case):\n    return {seen!r}.get(case, [])\n"
    exec(table, made := {})
    assert lesson_05.shard.verdict(made["my_shard"])[0] == "right"
    solved("05", tmp_path / "in" / "ada.ipynb", my_shard=table)
    notebook = nbformat.read(tmp_path / "in" / "ada.ipynb", as_version=4)
    for cell in notebook.cells:
        if "%%writefile results/live/05_accuracy.py" in cell.source:
            cell.source = cell.source.replace("raise NotImplementedError", "import os; os._exit(0)")
        if "%%writefile results/live/05_backward.py" in cell.source:
            cell.source = cell.source.replace(
                "raise NotImplementedError", "from torch.nn.functional import cross_entropy\n"
                "    cross_entropy(ddp_model(images), labels).backward()")
    nbformat.write(notebook, tmp_path / "in" / "ada.ipynb")
    assert grade(tmp_path / "in", "--seed", "1", "--out", tmp_path / "out").returncode == 0
    found = outcomes(tmp_path / "out")
    assert found["ada", "shard"][0] == "wrong"
    assert found["ada", "gradient"][0] == "wrong" and "mean of the ranks' means" in found["ada", "gradient"][1]
    assert found["ada", "exact"][0] == "wrong"


# --------------------------------------------------------------------------------------------------------- the tests


def test_both_tests_ask_ten_questions_and_give_nothing_away():
    for when in questions.NAMES:
        notebook = questions.notebook(when)
        nbformat.validate(notebook)
        text = "\n".join(cell.source for cell in notebook.cells)
        for idea in questions.ideas():
            asked = idea[when]
            assert asked["right"] in asked["options"] and len(asked["options"]) == 4
            assert set(asked["reveals"]) == set(asked["options"]) - {asked["right"]}
            assert asked["question"].strip() in text and not any(why in text for why in asked["reveals"].values())
        assert len(questions.ideas()) == 10 and text.count("= None") == 10
        assert handed_in.lesson_of(notebook) == when
        assert {outcome for _, outcome, _ in questions.judged(when, handed_in.taken_apart(notebook)[0])} == {"untried"}


def test_a_class_sees_what_it_has_learned(tmp_path):
    for learner in ("ada", "ben"):
        for when, name in questions.NAMES.items():
            notebook = questions.notebook(when)
            for cell in notebook.cells:
                for answer, idea in zip(questions.names(), questions.ideas(), strict=True):
                    wrong = sorted(idea[when]["reveals"])[0]
                    if cell.source == f"{answer} = None" and (when == "after" or answer < "my_04"):
                        cell.source = f"{answer} = {(idea[when]['right'] if learner == 'ada' else wrong)!r}"
            (tmp_path / "in" / learner).mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, tmp_path / "in" / learner / f"{name}.ipynb")
    for learner in ("ada", "ben", "cleo, who handed in nothing", "eve"):
        (tmp_path / "class" / learner).mkdir(parents=True)
    (tmp_path / "names.txt").write_text("ada\neve\n")
    (tmp_path / "in" / "cleo, who handed in nothing").mkdir()
    (tmp_path / "in" / "dan").mkdir()
    page = "graded-before-after.html"
    (tmp_path / "class" / "ada" / page).symlink_to(tmp_path / "teacher's")  # a learner's trick
    done = grade(tmp_path / "in", "--out", tmp_path / "out", "--give-back", tmp_path / "class", "--lesson", "before",
                 "--lesson", "after", "--class", tmp_path / "names.txt", "--no-shield")  # nothing of a test is run
    assert done.returncode == 0, done.stderr
    assert f"3 pages given back as {page}; no folder in {tmp_path / 'class'}: dan\n" in done.stdout
    assert not (tmp_path / "class" / "eve" / page).exists(), "her name stands in the list alone: it may be misspelt"
    for learner in ("ada", "ben", "cleo, who handed in nothing"):
        assert f"<h1>{learner}</h1>" in (tmp_path / "class" / learner / page).read_text()
    assert not (tmp_path / "teacher's").exists()
    first = questions.ideas()[0]
    with (tmp_path / "out" / "answers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["exercise"] == first["name"]]
    assert sorted((row["learner"], row["lesson"], row["outcome"]) for row in rows) == [
        ("ada", "after", "right"), ("ada", "before", "right"), ("ben", "after", "wrong"), ("ben", "before", "wrong")]
    assert any(why in row["why"] for row in rows for why in first["before"]["reveals"].values())
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Before and after" in page and "0 of 2" in page and "1 of 2" in page


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "name the folder"), (["no-such-folder"], "no folder"), (["README.md"], "no folder"),
    ([".."], "holds this course"), ([".", "--lesson", "99"], "--lesson"), ([".", "--limit", "0"], "--limit"),
    ([""], "empty"), (["{}/empty"], "no notebook"),
    (["{}/empty", "--out", "{}/empty/grades"], "would count as handed in"),
    (["notebooks", "--no-shield", "--out", "README.md"], "README.md (Not a directory): name another folder"),
    (["notebooks", "--no-shield", "--class", "no-such-file"], "--class no-such-file: No such file"),
    (["notebooks", "--no-shield", "--give-back", "no-such-folder"], "no-such-folder is no folder"),
    (["--otter", "README.md"], "README.md (Not a directory): name another folder"),
])
def test_bad_input_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["grade", *(word.format(tmp_path) for word in arguments)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path("teach/grade_notebooks.py")["main"]()
    err = capsys.readouterr().err
    assert end.value.code == 2 and said in err and len(err.strip().splitlines()) == 1


def test_without_bubblewrap_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(shield.NoShield, match="--no-shield"):
        shield.check()


def test_a_test_for_otter_asks_the_check(tmp_path):
    assert otter.write(tmp_path) == sum(len(handed_in.asked_in(lesson)) for lesson in handed_in.lessons())
    exec((tmp_path / "05" / "tests" / "shard.py").read_text(), found := {})
    import doctest

    code = found["test"]["suites"][0]["cases"][0]["code"]
    for answer, failures in ((lesson_05.my_shard, 0), (lesson_05.blocks, 1)):
        test = doctest.DocTestParser().get_doctest(code, {"my_shard": answer}, "shard", None, 0)
        assert doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None).failed == failures
