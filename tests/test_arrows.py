"""Arrows run one way. A breach is one line: `file:line imports what: rule`. Imports inside functions count, too."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ARROWS = {  # a room imports these, and what these import; tests import all
    "notebooks": {"lessons"}, "scripts": {"lessons"}, "teach": {"lessons"}, "site": {"lessons", "teach", "gallery"},
    "lessons": {"course", "examples"}, "gallery": {"course"}, "course": {"trainer"},
    "trainer": {"root"}, "root": {"trainer"}, "examples": set(), "doctor": set()}
TORCHLESS = ["trainer.files", "trainer.options", "course.console", "course.interactive", "course.lesson",
             "course.plots", "course.predict", "course.processes", "course.rank_program", "course.runs",
             "lessons.l03_processes_and_ranks.acting"]


def our_modules(root):
    """{dotted name: path} of every Python file in the rooms; a package is its __init__.py."""
    paths = sorted(path for place in ("*.py", *(f"{room}/**/*.py" for room in [*ARROWS, "tests"]))
                   for path in root.glob(place))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(name, path, modules):
    """(line, what is imported) of each import; of ours, the module's dotted name."""
    here = (name if path.stem == "__init__" else name.rpartition(".")[0]).split(".")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[:len(here) + 1 - node.level] if node.level else []
            package = ".".join([*above, *filter(None, [node.module])])
            # `from a import b`: the module a.b where there is one, else a name of a
            names = [f"{package}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, each) for each in {each if each in modules else package for each in names})


def room(name, modules):
    """The folder at the top; "root" for a file there; None for a module that is not ours."""
    first = name.split(".")[0]
    return first if first in ARROWS or first == "tests" else "root" if first in modules else None


def within_reach(mine):
    """The rooms that a room may import, itself among them."""
    reached, new = {mine}, {mine}
    while new := set().union(*(ARROWS[each] for each in new)) - reached:
        reached |= new
    return reached


def rules_broken(name, wanted, modules):
    mine, there, file = room(name, modules), room(wanted, modules), name.split(".")[-1]
    is_test = mine == "tests" or file.startswith("test_") or file == "conftest"
    judges = is_test or mine in ("notebooks", "teach") or file == "notebook_text"  # they ask a check
    if not is_test and there not in (None, *within_reach(mine)):
        yield f"{mine} does not import {there}"
    if not is_test and wanted == "main":
        yield "nothing imports main.py"
    if mine == there == "lessons" and wanted.split(".")[1] not in (name.split(".")[1], "start"):
        yield "no lesson imports another"
    if not judges and there == "lessons" and wanted.endswith(".check"):
        yield "a program imports solution.py, never check.py"


def breaches(root):
    """One line for each import that breaks a rule, and one for a circle."""
    modules, lines, ours = our_modules(root), [], {}
    for name, path in modules.items():
        found = list(imports(name, path, modules))
        lines += [f"{path.relative_to(root)}:{line} imports {wanted}: {rule}"
                  for line, wanted in found for rule in rules_broken(name, wanted, modules)]
        ours[name] = {wanted for _, wanted in found if wanted in modules}
    try:
        graphlib.TopologicalSorter(ours).prepare()
    except graphlib.CycleError as error:
        lines.append(f"a circle: {' -> '.join(error.args[1][::-1])}")
    return lines


def test_arrows_run_one_way():
    found = breaches(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_what_only_reads_and_draws_starts_without_torch():
    program = f"import {', '.join(TORCHLESS)}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(("file", "text", "line"), [
    ("scripts/runs.py", "import os\nfrom main import train", "scripts/runs.py:2 imports main: nothing imports main.py"),
    ("course/hosts.py", "def late():\n    from lessons.l01_a import show",
     "course/hosts.py:2 imports lessons.l01_a.show: course does not import lessons"),
    ("examples/minimal.py", "import utils", "examples/minimal.py:1 imports utils: examples does not import root"),
    ("doctor/report.py", "from course import runs",
     "doctor/report.py:1 imports course.runs: doctor does not import course"),
    ("gallery/hang.py", "import scripts.runs",
     "gallery/hang.py:1 imports scripts.runs: gallery does not import scripts"),
    ("lessons/l01_b/test_b.py", "from lessons.l01_a import show",
     "lessons/l01_b/test_b.py:1 imports lessons.l01_a.show: no lesson imports another"),
    ("lessons/l01_a/program.py", "from .check import mine",
     "lessons/l01_a/program.py:1 imports lessons.l01_a.check: a program imports solution.py, never check.py"),
    ("trainer/data.py", "from . import files", "a circle: trainer.data -> trainer.files -> trainer.data"),
])
def test_a_breach_of_each_rule_is_one_line(tmp_path, file, text, line):
    sound = {"main.py": "import utils", "utils.py": "import torch", "course/runs.py": "from trainer import data",
             "lessons/l01_a/show.py": "from course.runs import read", "lessons/l01_a/check.py": "",
             "scripts/runs.py": "", "trainer/data.py": "", "trainer/files.py": "def late():\n    import trainer.data",
             "notebooks/text/01.py": "from lessons.l01_a import check", "tests/test_main.py": "import main"}
    for path, content in {**sound, file: text}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert breaches(tmp_path) == [line]
