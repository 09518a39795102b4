"""scripts/grade: what stands in its tables for a solved, a wrong, an empty, a hanging and a broken notebook."""

import inspect
import os
import shutil
import signal
import subprocess
import sys

import nbformat
import pandas as pd
import psutil
import pytest

from course.lesson import ROOT, notebooks
from lessons.l05_distributed_sampler import check as lesson_05
from lessons.l06_ddp import check as lesson_06
from teach import grade as grading
from teach import handed_in, questions, shield
from tests import runner


def can_shield():
    try:
        shield.check()
    except OSError:
        return False
    return True


needs_shield = pytest.mark.skipif(not can_shield(), reason="bubblewrap makes no room here")
SHARD, EVALUATE = (f"%%mine {part}.py\n" + (ROOT / f"lessons/start/ours/{part}.py").read_text(encoding="utf-8")
                   for part in ("shard", "evaluate"))
BLOCKS = "%%mine shard.py\nimport torch\n\n\n" + inspect.getsource(lesson_05.blocks).replace("def blocks", "def shard")
ONE = "%%mine evaluate.py\ndef evaluate(model, batch, n, rank, world_size, all_reduce):\n    return 1"
HANGING = "%%mine shard.py\nimport time\n\n\ndef shard(*asked):\n    while True:\n        time.sleep(1)"


def hand_in(path, *shard, evaluate=None):
    """A notebook of lesson 05 with these cells in place of the first stub, and this one in place of the second."""
    notebook = nbformat.read(notebooks()["05"], as_version=4)
    for part, cells in (("shard", shard), ("evaluate", [evaluate] if evaluate else [])):
        stub = next(number for number, cell in enumerate(notebook.cells) if cell.source.startswith(f"%%mine {part}.py"))
        if cells:
            notebook.cells[stub:stub + 1] = map(nbformat.v4.new_code_cell, cells)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def grade(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["grade", *map(str, arguments)])
    return grading.main()


def tables(folder):
    """(grades, answers)"""
    answers = pd.read_csv(folder / "answers.csv", dtype=str).set_index(["learner", "exercise"])
    return pd.read_csv(folder / "grades.csv", dtype={"lesson": str}).set_index(["learner", "lesson"]), answers


@needs_shield
@pytest.mark.timeout(600)
def test_the_tables_of_a_class(tmp_path, monkeypatch):
    monkeypatch.setattr(shield, "LIMIT", 10)
    folder, out = tmp_path / "in", tmp_path / "out"
    hand_in(folder / "solved" / "notebooks" / "05.ipynb", SHARD, evaluate=EVALUATE)
    hand_in(folder / "wrong.ipynb", BLOCKS, evaluate=ONE)
    hand_in(folder / "empty.ipynb")
    hand_in(folder / "hanging.ipynb", HANGING, evaluate=EVALUATE)
    hand_in(folder / "leaving.ipynb", "%%mine shard.py\nimport os\n\n\ndef shard(*asked):\n    os._exit(3)",
            evaluate=EVALUATE)
    (folder / "broken.ipynb").write_text(notebooks()["05"].read_text()[:5000])
    (tmp_path / "class.txt").write_text("solved\nzoe\n")
    assert grade(monkeypatch, folder, "--lesson", "05", "--class", tmp_path / "class.txt", "--out", out) == 0
    grades, answers = tables(out)
    expected = {"solved": (2, 0, 0), "wrong": (0, 2, 0), "empty": (0, 0, 2), "hanging": (1, 1, 0), "leaving": (1, 1, 0)}
    for name, counts in expected.items():
        row = grades.loc[(name, "05")]
        assert (row.right, row.wrong, row.untried) == counts and row["of"] == 2, name
    assert [grades.loc[(name, "05"), "percent"] for name in ("solved", "hanging", "wrong")] == [100, 50, 0]
    assert grades.loc[[("broken", "05"), ("zoe", "05")], "percent"].isna().all()
    assert set(grades.index.get_level_values(0)) == {*expected, "broken", "zoe"}
    assert dict(answers.loc["solved"].outcome) == {"shard": "right", "evaluate": "right"}
    assert answers.loc[("hanging", "shard"), "outcome"] == answers.loc[("leaving", "shard"), "outcome"] == "wrong"
    [reason] = [message for message, wrong in lesson_05.shard.mistakes.items() if wrong is lesson_05.blocks]
    assert reason in answers.loc[("wrong", "shard"), "why"]
    pages = {path.name: path.read_text() for path in out.glob("*.html")}
    assert len(pages) == 1 + len(expected) + 2 and sum("hanging.ipynb" in page for page in pages.values()) == 1


def test_grades_csv_has_a_row_of_each_learner_where_nothing_could_be_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(shield, "check", lambda: None)
    (tmp_path / "in" / "zoe").mkdir(parents=True)
    (tmp_path / "in" / "ada.ipynb").write_text("{")
    assert grade(monkeypatch, tmp_path / "in", "--out", tmp_path / "out") == 0
    grades = pd.read_csv(tmp_path / "out" / "grades.csv")
    assert grades.learner.tolist() == ["ada", "zoe"] and grades[["lesson", "percent"]].isna().all(axis=None)
    assert grades["why not"].notna().all() and (tmp_path / "out" / "index.html").exists()


# What stands in a notebook in place of the stub, cell by cell. Each is right in the learner's own notebook.
HABITS = {
    "a cell that raises": ["1 / 0", SHARD], "a cell that hangs": ["while True: pass", SHARD],
    "half a cell, mended below": ["%%mine shard.py\ndef shard(n, rank:", SHARD],
    "sys.exit": ["import sys\nsys.exit()", SHARD],
    "magics and commands": ["%load_ext autoreload\n%cd results\n%cd ..\nfiles = !ls\n!exit 1", "%%bash\nexit 1",
                            "%%time\n" + SHARD],
    "a file written by hand, with the lesson's import": [
        f"text = {SHARD.partition(chr(10))[2]!r}", "Path('mine/shard.py').write_text(text)"],
    "a check called": [SHARD, 'check.shard("mine/shard.py")\ncheck.shard.hint()'],
}


@needs_shield
@pytest.mark.parametrize("habit", runner.sampled(HABITS))
def test_a_habit_keeps_its_answer(habit, tmp_path, monkeypatch):
    monkeypatch.setattr(shield, "LIMIT", 10)
    hand_in(tmp_path / "05.ipynb", *HABITS[habit])
    _, paper = handed_in.opened(tmp_path / "05.ipynb")
    paper.questions = paper.questions[:1]
    [(_, outcome, message)] = shield.judged(paper)
    assert outcome == "right", message


@needs_shield
def test_what_an_answer_can_reach(tmp_path, monkeypatch):
    """No file of the teacher's or of another learner, no network, no place to write but its desk."""
    monkeypatch.setattr(shield, "LIMIT", 20)
    (tmp_path / "mine.txt").write_text("mine")
    reach = f"""%%mine shard.py
import os, socket
def shard(*asked):
    assert not os.path.exists({str(tmp_path / "mine.txt")!r}) and not os.path.exists({str(ROOT / "results")!r})
    for name in ({str(ROOT / "course" / "new.py")!r}, "/usr/new"):
        try:
            open(name, "w")
        except OSError:
            continue
        raise AssertionError(name)
    try:
        socket.create_connection(("192.0.2.1", 80), 3)
    except OSError as error:
        raise SystemExit(f"shielded: {{error}}")
"""
    hand_in(tmp_path / "05.ipynb", reach)
    _, paper = handed_in.opened(tmp_path / "05.ipynb")
    paper.questions = paper.questions[:1]
    [(_, outcome, message)] = shield.judged(paper)
    assert outcome == "wrong" and "SystemExit: shielded" in message


@pytest.mark.weekly
@needs_shield
def test_an_answer_counts_that_was_right_at_its_check_and_was_changed_later():
    first = inspect.getsource(lesson_06.SameWeights).replace("SameWeights", "MyDDP")
    paper = handed_in.Paper("06", [handed_in.Question("lessons.l06_ddp.check", name, "mine/my_ddp.py", place)
                                   for name, place in (("same_weights", 3), ("mean_gradients", 6))])
    paper.own = [(2, f"%%mine my_ddp.py\nimport torch.distributed as dist\nfrom torch import nn\n\n\n{first}"),
                 (5, "%%mine my_ddp.py MyDDP\ndef same_weights(self):\n    pass\n")]
    assert [outcome for _, outcome, _ in shield.judged(paper)] == ["right", "wrong"]


@pytest.mark.parametrize("lesson", notebooks())
def test_a_lesson_s_own_notebook_has_each_question_and_nothing_of_a_learner(lesson):
    number, paper = handed_in.opened(notebooks()[lesson])
    assert paper.questions and number == lesson and paper.own == []


def test_the_capstone_of_a_copy_is_found_where_lessons_write_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/capstone.py").write_text("import torch\n")
    paper = handed_in.paper(handed_in.read(notebooks()["07"]), "07", tmp_path / "notebooks")
    assert paper.files == {"mine/capstone.py": "import torch\n"}


@needs_shield
def test_ctrl_c_ends_the_answers_that_are_judged_and_leaves_no_process(tmp_path):
    hand_in(tmp_path / "in" / "ada.ipynb", HANGING)
    going = subprocess.Popen([sys.executable, "teach/grade.py", tmp_path / "in", "--out", tmp_path / "out"], cwd=ROOT,
                             env=runner.environment(PYTHONPATH=str(ROOT)), stdout=subprocess.DEVNULL)
    try:
        ours = psutil.Process(going.pid)
        runner.wait_for(lambda: len(ours.children(recursive=True)) >= 3, "a room")  # bubblewrap is two
        started = ours.children(recursive=True)
        going.send_signal(signal.SIGINT)
        assert going.wait(60) == 130
        _, left = psutil.wait_procs(started, timeout=10)
        assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]  # none but what nobody reaps
    finally:
        going.kill()


def test_both_tests_ask_ten_questions_and_their_answers_are_judged(tmp_path):
    for when, name in questions.NAMES.items():
        notebook, ideas = questions.notebook(when), questions.ideas()
        assert len(ideas) == 10 and all(set(idea[when]["reveals"]) == set(idea[when]["options"]) - {idea[when]["right"]}
                                        for idea in ideas)
        letters = [repr(ideas[0][when]["right"]), repr(min(ideas[1][when]["reveals"]))]
        for cell in notebook.cells:
            if cell.source.endswith(" = None") and int(cell.source[3:5]) <= 2:
                cell.source = cell.source.replace("None", letters[int(cell.source[3:5]) - 1])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
        lesson, work = handed_in.opened(tmp_path / f"{name}.ipynb")
        assert lesson == when
        assert [row["outcome"] for row in grading.answers_in("ada", name, lesson, work)] == ["right", "wrong",
                                                                                             *8 * ["untried"]]


@pytest.mark.parametrize(("folder", "more"), [
    (ROOT, []), ("no", []), ("in", ["--out", "in/out"]), ("out", []), ("in", ["--class", "no"]),
    ("in", ["--lesson", "99"]), ("in", [])])  # the last: bubblewrap is not there
def test_bad_input_is_one_line_with_status_2(folder, more, tmp_path, monkeypatch, capsys):
    hand_in(tmp_path / "in" / "ada.ipynb")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert shutil.which("bwrap") is None
    with pytest.raises(SystemExit) as end:
        grade(monkeypatch, folder, *more)
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1
