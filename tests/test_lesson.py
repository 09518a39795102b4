"""course/lesson.py: what the first cell of every lesson does, and the tables that lessons show."""

import json
import re
import shutil
import socket
import subprocess
import sys
from math import comb
from pathlib import Path

import jupytext
import pandas as pd
import pytest

from course import compare, lesson, twins
from tests import runner

TWIN = sorted(Path(runner.ROOT, "notebooks/text").glob("*.py"))[0]
FIRST_CELL = next(cell.source for cell in jupytext.read(TWIN).cells if cell.cell_type == "code")
SURROUNDINGS = """
import json, os, shutil, sys
print(json.dumps([os.getcwd(), sys.path[0], sys.path.count(os.getcwd()), sys.executable, shutil.which("python"),
                  os.environ["PATH"].split(os.pathsep), os.environ["PYTHONPATH"].split(os.pathsep),
                  get_ipython().system_raise_on_error]))
"""


@pytest.mark.parametrize("place", ["notebooks", "."])
def test_a_lesson_begins_in_its_own_copy_any_number_of_times(place, tmp_path):
    """Also where another copy of the course is installed, as in a class."""
    shutil.copytree(runner.ROOT / "course", tmp_path / "other/course", ignore=shutil.ignore_patterns("__pycache__"))
    code = (FIRST_CELL + "\n") * 2 + SURROUNDINGS
    env = runner.environment(PYTHONPATH=str(tmp_path / "other"), PATH="/usr/bin:/bin", IPYTHONDIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "IPython", "--colors=NoColor", "-c", code], cwd=runner.ROOT / place,
                          env=env, capture_output=True, text=True, timeout=runner.LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    folder, first, count, python, program, paths, python_paths, raises = json.loads(done.stdout.splitlines()[-1])
    assert folder == first == str(runner.ROOT) and count == 1
    assert Path(program).parent == Path(python).parent, "commands of cells are this environment's"
    assert paths == [str(Path(python).parent), "/usr/bin", "/bin"]
    assert python_paths == [str(runner.ROOT), str(tmp_path / "other")]
    assert raises is True


def test_an_exercise_s_cell_becomes_a_part_of_the_program_once_it_is_tried(tmp_path, monkeypatch, capsys):
    (tmp_path / "lessons/start").mkdir(parents=True)
    for name in ("train.py", "train_gpt.py"):
        shutil.copy(runner.ROOT / "lessons/start" / name, tmp_path / "lessons/start")
    monkeypatch.chdir(tmp_path)
    lesson.begin_program()
    program, part = Path("mine/train.py"), Path("mine/shard.py")
    assert program.read_text() == Path("lessons/start/train.py").read_text()
    lesson.mine("shard.py", "def shard(n):\n    raise NotImplementedError\n")
    assert not part.exists() and "course's part" in capsys.readouterr().out
    lesson.mine("shard.py", "def shard(n):\n    return n\n")
    lesson.mine("shard.py", "def shard(n):\n    raise NotImplementedError\n")
    assert part.read_text() == "def shard(n):\n    return n\n", "a stub does not take its place"
    lesson.mine("my_ddp.py", "class MyDDP:\n    def finish(self):\n        pass\n\n\nlast = 1\n")
    methods = "import math\n@staticmethod\ndef pack():\n    return 2\n\n\ndef finish(self):  # mine\n    return 3\n"
    lesson.mine("my_ddp.py MyDDP", methods)
    assert Path("mine/my_ddp.py").read_text() == (
        "import math\nclass MyDDP:\n    def finish(self):  # mine\n        return 3\n\n"
        "    @staticmethod\n    def pack():\n        return 2\n\n\nlast = 1\n")
    program.write_text("changed")
    lesson.begin_program()
    assert program.read_text() == "changed", "it is the learner's"


def test_build_writes_the_cited_address_and_version_wherever_they_stand(tmp_path, monkeypatch):
    state = "README.md", "doctor/__init__.py", "site/pages/systems.md"
    monkeypatch.chdir(tmp_path)
    for page in (*state, "CITATION.cff"):
        Path(page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(runner.ROOT / page, page)

    def cite(*lines):
        Path("CITATION.cff").write_text("\n".join([*lines, ""]))
        twins.set_address()
        return [Path(page).read_text() for page in state]

    twins.set_address()
    assert [Path(page).read_text() for page in state] == [(runner.ROOT / page).read_text() for page in state]
    readme, doctor, systems = cite('version: "2.3"', 'repository-code: "https://github.com/ann/course"')
    assert '\n__version__ = "2.3"  # ' in doctor
    assert "-b v2.3 https://github.com/ann/course course-files" in systems
    assert re.findall(r"Open in (\w+)", readme) == ["Colab", "Kaggle", "Binder"]
    assert "github/ann/course/blob/v2.3/notebooks/00_start_here.ipynb" in readme
    readme, _, systems = cite('version: "2.3"', 'repository-code: "https://elsewhere.org/ann"')
    assert "Open in" not in readme and "https://elsewhere.org/ann course-files" in systems


def test_a_lesson_says_on_what_it_ran_and_names_no_machine(monkeypatch, tmp_path):
    gpus = tmp_path / "nvidia-smi"
    gpus.write_text("#!/bin/sh\necho Tesla T4\necho Tesla T4\n")
    gpus.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    without = lesson._machine()
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = lesson._machine()
    assert re.fullmatch(r"Python 3[.\d]+, PyTorch 2\S+, \d+ cores? of [^,]+, 2 × Tesla T4, 20\d\d-\d\d-\d\d", machine)
    assert without == machine.replace("2 × Tesla T4", "no NVIDIA GPU")
    gpus.write_text("#!/bin/sh\necho no driver\nexit 9\n")
    assert lesson._machine() == without
    assert socket.gethostname() not in machine and "/" not in machine


@pytest.mark.parametrize(("mine", "measured", "hit"), [
    (3, 1234.5678, "no"), (19, "19", "yes"), ((10, 20), [10, 20], "yes"), ((20, 10), 15, "yes"), ([1, 1.5], 1.6, "no"),
    ("lower", "higher", "no")])
def test_a_prediction_hits_or_does_not(mine, measured, hit, shown):
    lesson.predicted(mine, measured, what="a figure")
    assert lesson._predictions.pop("a figure")[2] == hit


def test_predictions_are_listed_and_one_that_is_taken_back_is_not(shown):
    lesson._predictions.clear()
    for mine in (9, None):
        lesson.predicted(mine, 1, what="ranks")
        lesson.predictions()
    assert shown[1].endswith("| ranks | 9 | 1 | no |") and "<details>" in shown[2]
    assert shown[3] == lesson.NONE_PREDICTED


@pytest.fixture
def shown(monkeypatch):
    """What was shown, as Markdown."""
    texts = []
    monkeypatch.setattr(lesson, "_show", texts.append)
    return texts


def test_a_table_of_dicts_and_one_of_a_frame_are_the_same(shown):
    rows = [{"run": "one | two", "s": 1.5, "change": "−3 %"}, {"run": "three", "s": 2, "change": "–"}]
    lesson.table(rows)
    lesson.table(pd.DataFrame(rows, dtype=object))
    assert shown[0] == shown[1] == "\n".join([
        r"| run | s | change |",
        r"| :-- | --: | --: |",
        r"| one \| two | 1.5 | −3 % |",
        r"| three | 2 | – |",
    ])


@pytest.mark.parametrize(("pairs", "first", "last", "probability"), [
    (6, 1, 6, 0.969), (7, 1, 7, 0.984), (8, 1, 8, 0.992), (9, 2, 8, 0.961), (12, 3, 10, 0.961), (15, 4, 12, 0.965),
    (20, 6, 15, 0.959), (24, 7, 18, 0.977)])
def test_the_interval_is_the_narrowest_of_at_least_95_percent(pairs, first, last, probability):
    found = compare.ratio(range(pairs, 0, -1), [1] * pairs)  # the k-th of the sorted ratios is k
    assert found == ((pairs + 1) / 2, first, last, pairs)
    beyond, narrower = (2 * sum(comb(pairs, below) for below in range(k)) / 2**pairs for k in (first, first + 1))
    assert 1 - beyond == pytest.approx(probability, abs=5e-4) and beyond <= 0.05 < narrower


def test_a_difference_is_significant_if_the_interval_of_the_pairs_ratios_excludes_1():
    theirs = [1, 2, 4, 8, 16, 32]
    assert compare.ratio([1.1 * each for each in theirs], theirs).significant, "though the rounds overlap"
    assert compare.ratio(theirs, [1.1 * each for each in theirs]).significant
    assert not compare.ratio([1.1, *theirs[1:]], theirs).significant
    nine = compare.ratio([0.5, *[1.1] * 8], [1] * 9)
    assert nine.significant and (nine.low, nine.high) == (1.1, 1.1), "one disturbed pair of nine falls out"


def test_five_pairs_name_no_winner():
    for pairs in range(1, 6):
        few = compare.ratio([2] * pairs, [1] * pairs)
        assert few == (2, 2, 2, pairs) and not few.significant


def test_rounds_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="zip"):
        compare.ratio([1, 2, 3], [1, 2])
