"""course/lesson.py: what the first cell of every lesson does, and the tables that lessons show."""

import json
import os
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
import yaml

from course import compare, lesson, twins
from tests import runner

TWIN = sorted(Path(runner.ROOT, "notebooks/text").glob("*.py"))[0]
FIRST_CELL = next(cell.source for cell in jupytext.read(TWIN).cells if cell.cell_type == "code")
SURROUNDINGS = """
import json, os, shutil
print(json.dumps([os.getcwd(), sys.path[0], sys.path.count(os.getcwd()), sys.executable, shutil.which("python"),
                  os.environ["PATH"].split(os.pathsep), os.environ["PYTHONPATH"].split(os.pathsep),
                  get_ipython().system_raise_on_error]))
"""


@pytest.mark.parametrize("place", ["notebooks", "the folder that holds the clone"])
def test_a_lesson_begins_from_anywhere_any_number_of_times(place, tmp_path):
    (tmp_path / "clone").symlink_to(runner.ROOT)
    folder = runner.ROOT / "notebooks" if place == "notebooks" else tmp_path
    code = (FIRST_CELL + "\n") * 2 + SURROUNDINGS
    env = runner.environment(PYTHONPATH="/elsewhere", PATH="/usr/bin:/bin", IPYTHONDIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "IPython", "--colors=NoColor", "-c", code], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=runner.LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    folder, first, count, python, program, paths, python_paths, raises = json.loads(done.stdout.splitlines()[-1])
    assert folder == first == str(runner.ROOT) and count == 1
    assert Path(program).parent == Path(python).parent, "commands of cells are this environment's"
    assert paths == [str(Path(python).parent), "/usr/bin", "/bin"]
    assert python_paths == [str(runner.ROOT), "/elsewhere"]
    assert raises is True


CITED = yaml.safe_load((runner.ROOT / "CITATION.cff").read_text())
STATE = "README.md", "doctor/__init__.py"


def first_cell(folder, code=FIRST_CELL, **env):
    """The finished first cell in `folder`, in a Python that knows no course."""
    # -S: without .venv's course_root.pth; what is installed it finds by PYTHONPATH
    env = runner.environment(PYTHONPATH=os.pathsep.join(path for path in sys.path if "site-packages" in path),
                             IPYTHONDIR=str(folder / "ipython"), **env)
    return subprocess.run([sys.executable, "-S", "-m", "IPython", "--colors=NoColor", "-c", code], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=runner.LIMIT)


def pages(folder):
    """The README, the doctor's version and all twins in this folder."""
    return [(folder / page).read_text() for page in (*STATE, *twins.TWINS.iterdir())]


def cite(version, address):
    """The pages in this folder, once CITATION.cff says this."""
    Path("CITATION.cff").write_text(f'version: "{version}"\nrepository-code: "{address}"\n')
    twins.set_address()
    return pages(Path())


def test_a_lone_notebook_gets_the_course(tmp_path, monkeypatch):
    """As on Colab and Kaggle. A bare repository of this tree, with two commits, is where the course is published."""
    runner.clone(tmp_path / "tree")
    monkeypatch.chdir(tmp_path / "tree")
    cite(CITED["version"], (tmp_path / "course.git").as_uri())
    (folder := tmp_path / "empty").mkdir()
    for command in ("init -q", "add .", "commit -qm one", "commit -qm two --allow-empty", f"tag v{CITED['version']}",
                    "clone -q --bare . ../course.git"):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *command.split()], check=True)
    cells = [cell.source for cell in jupytext.read(twins.TWINS / "03_processes_and_ranks.py").cells
             if cell.cell_type == "code"]
    run = "for cell in {}: get_ipython().run_cell(cell).raise_error()\n"
    began = first_cell(folder, run.format([cells[0], *cells[:5], SURROUNDINGS]))
    assert began.returncode == 0, began.stdout + began.stderr
    assert began.stderr.startswith("Note: switching to "), "git says that a release is not a branch"
    (clone,) = (path for path in folder.iterdir() if path.name != "ipython")
    assert json.loads(began.stdout.splitlines()[-1])[0] == str(clone)
    assert sorted(re.findall("^rank (.) of 4", began.stdout, re.M)) == ["0", "1", "2", "3"], "the lesson goes on"
    assert (clone / ".git/shallow").exists(), "one commit is enough"
    again = first_cell(folder, cells[0])  # a new kernel in the same folder
    assert (again.returncode, again.stderr) == (0, "")


def test_where_the_course_cannot_be_had_one_line_says_why(tmp_path):
    failed = first_cell(tmp_path, https_proxy="http://127.0.0.1:1")
    assert failed.returncode == 1
    assert re.fullmatch(f"fatal: .*{CITED['repository-code']}.*\n", failed.stderr)
    lines = failed.stdout.strip().splitlines()
    assert lines[-1] == "ModuleNotFoundError: No module named 'course'" and len(lines) < 10, "no flood of frames"


def test_an_exercise_s_cell_becomes_a_part_of_the_program_once_it_is_tried(tmp_path, monkeypatch, capsys):
    (tmp_path / "lessons/start").mkdir(parents=True)
    shutil.copy(runner.ROOT / "lessons/start/train.py", tmp_path / "lessons/start")
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
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runner.ROOT / twins.TWINS, twins.TWINS)
    Path("doctor").mkdir()
    for part in ("notebooks/00_start_here.ipynb", *STATE):
        shutil.copy2(runner.ROOT / part, part)
    assert cite(CITED["version"], CITED["repository-code"]) == pages(runner.ROOT)
    outputs = twins.build("00_start_here").cells[1].outputs
    readme, doctor, *twin_texts = cite("2.3", "https://github.com/ann/course")
    assert '\n__version__ = "2.3"  # ' in doctor
    assert all('-qb v2.3 --depth 1 https://github.com/ann/course"' in text for text in twin_texts)
    assert "pip" not in FIRST_CELL, "the torch that is there stays"
    assert re.findall(r"Open in (\w+)", readme) == ["Colab", "Kaggle", "Binder"]
    assert "github/ann/course/blob/v2.3/notebooks/00_start_here.ipynb" in readme
    assert twins.build("00_start_here").cells[1].outputs == outputs != [], "another address makes no output stale"
    assert "Open in" not in cite("2.3", "https://course.invalid/ann")[0], "only from GitHub can they open a notebook"


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


@pytest.mark.parametrize(("mine", "measured", "unit", "message"), [
    (None, 1.5, "ms", f"{lesson.NOTHING_PREDICTED}<details><summary>What came out</summary>1.5 ms</details>"),
    (3, 1234.5678, "µs", "You predicted **3 µs**. Here it is **1,235 µs**."),
    (19, "19", "", "You predicted **19**, and that is what came out."),
    ((10, 20), [10, 20], "", "You predicted **(10, 20)**, and that is what came out."),
])
def test_a_prediction_stands_beside_what_came_out(mine, measured, unit, message, shown):
    lesson.predicted(mine, measured, unit)
    assert shown == [message]


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


def test_columns_of_figures_stand_to_the_right(shown):
    lesson.table([{"figure": figure, "word": "ddp2", "mixed": mixed}
                  for figure, mixed in (("1,024", "1"), ("<0.1", "one"), ("+2 %", "2"), ("nan", "3"), (".5", "4"))])
    assert shown[0].splitlines()[1] == "| --: | :-- | :-- |"


def test_a_difference_shows_what_a_function_adds_and_what_it_keeps(shown):
    def old(x):
        return x

    def new(x):
        x += 1
        return x

    lesson.difference(old, new)
    assert shown == ["```diff\n-    def old(x):\n+    def new(x):\n+        x += 1\n         return x\n```"]


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


def test_five_pairs_or_separate_runs_name_no_winner():
    for pairs in range(1, 6):
        few = compare.ratio([2] * pairs, [1] * pairs)
        assert few == (2, 2, 2, pairs) and not few.significant and not few.undecided
    apart = compare.of_separate_runs([2, 3, 4, 5, 6, 7, 8], [1, 1.5, 1.6])
    assert apart == (5 / 1.5, 2 / 1.6, 8, 0) and not apart.significant and not apart.undecided
    equal = compare.ratio([1, 2, 3, 1, 2, 3], [2, 2, 2, 2, 2, 2])
    assert equal.undecided and (equal.low, equal.high) == (0.5, 1.5)


def test_rounds_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="zip"):
        compare.ratio([1, 2, 3], [1, 2])
