"""The plan "Four hours" as a learner walks it: in a copy of the course, the cells that its path shows and no
others, every exercise solved. The program that grew on the way is equal to one process. So is the capstone, for
which examples/minimal_ddp.py stands from the beginning."""

import importlib
import inspect
import itertools
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest

from course.lesson import ROOT, notebooks
from scripts import my_notebooks
from teach import learner_copy
from tests import runner

pytestmark = pytest.mark.weekly
PATH = [slot for slot in my_notebooks.plans()["four-hours"] if "lesson" in slot]
EXERCISES = ["hello", "ring", "shard", "evaluate", "same_weights", "mean_gradients", "one_message", "program"]
PARTS = {"train.py", "hello.py", "all_reduce.py", "shard.py", "evaluate.py", "my_ddp.py", "capstone.py"}


def solve(stub, asked):
    """Write the answer into an exercise's cell. `asked`: its Exercise."""
    name = re.match(r"%%mine (\S+)", stub.source)[1]
    if not inspect.isclass(asked.answer):
        stub.source = f"%%mine {name}\n" + (ROOT / "lessons/start/ours" / name).read_text(encoding="utf-8")
        return
    stub.source = re.sub(  # in a cell with a class, or with methods of one
        r"^( *)def (\w+)\(self\):\n +raise NotImplementedError", lambda match: textwrap.indent(
            textwrap.dedent(inspect.getsource(getattr(asked.answer, match[2]))), match[1]), stub.source, flags=re.M)


@pytest.mark.timeout(900)
def test_every_cell_of_the_path_runs_and_the_programs_are_those_of_one_process(tmp_path):
    copy = tmp_path / "ada"
    learner_copy.make([copy])
    (copy / "mine").mkdir()
    shutil.copy(ROOT / "examples/minimal_ddp.py", copy / "mine/capstone.py")
    env = runner.environment(PYTHONPATH=str(copy), COURSE_DATA=str((ROOT / "data").resolve()), IPYTHONDIR=str(tmp_path))

    def run(*command):
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    verdicts = {}
    for number in dict.fromkeys(slot["lesson"] for slot in PATH):
        file = copy / "notebooks" / notebooks()[number].name
        notebook = nbformat.read(file, as_version=4)
        my_notebooks.fold(notebook, [slot for slot in PATH if slot["lesson"] == number])
        notebook.cells = list(runner.shown(notebook))
        check = importlib.import_module(f"lessons.{next(ROOT.glob(f'lessons/l{number}_*')).name}.check")
        for cell, after in itertools.pairwise(cell for cell in notebook.cells if cell.cell_type == "code"):
            if "raise NotImplementedError" in cell.source:
                solve(cell, getattr(check, re.match(r"check\.(\w+)", after.source)[1]))
        nbformat.write(notebook, file)
        quick = notebook.metadata.course.quick.parameters
        run(Path(sys.executable).with_name("papermill"), file, file, "--cwd", copy / "notebooks", "--execution-timeout",
            "300", *(word for name, value in quick.items() for word in ("-p", name, str(value))))
        for cell in nbformat.read(file, as_version=4).cells:
            if asked := re.match(r"(?:check|capstone)\.(\w+)\(", cell.source):
                verdicts[asked[1]] = cell.outputs[0].data["text/plain"]
    assert [name for name, said in verdicts.items() if said.startswith("✔")] == EXERCISES, verdicts
    assert {path.name for path in copy.glob("mine/*.py")} >= PARTS

    for program in (["mine/train.py", "--images", "768", "--batch", "48"],
                    ["mine/capstone.py", "--data", ROOT / "data"]):
        said = run(sys.executable, "-m", "course.one_process", "--updates", "3", *program)
        assert re.findall(r"(?:ranks|process)\? +(\w+)", said) == 4 * ["yes"], said
