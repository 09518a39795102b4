"""Arrows run one way: notebooks -> lessons -> course -> root; scripts, teach and site -> lessons -> course -> root.

The imports are read, lazy ones inside functions too. A breach is one line: `file:line`, what is imported, the rule.
"""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("*.py", "course/**/*.py", "doctor/*.py", "examples/*.py", "lessons/*/*.py", "scripts/**/*.py", "site/*.py",
          "teach/*.py", "trainer/*.py", "notebooks/text/*.py", "tests/*.py")
MAY_IMPORT = {  # of the other rooms; tests may import all
    "root": ("trainer",), "trainer": ("root",), "doctor": (), "course": ("trainer", "root"),
    "examples": (), "lessons": ("examples", "course", "trainer", "root"),
    "scripts": ("lessons", "examples", "course", "trainer", "root"),
    "teach": ("lessons", "course", "trainer", "root"), "site": ("teach", "lessons", "course", "trainer", "root"),
    "notebooks": ("lessons", "examples", "course", "trainer", "root")}
LEAVES = {"trainer.files"}
TORCHLESS = ("trainer.files", "trainer.options", "course.console", "course.interactive", "course.log_fields", "course.lesson",
             "course.plots", "course.predict", "course.processes", "course.rank_program", "course.runs",
             "lessons.l03_processes_and_ranks.ranks_meet")  # and below


def our_modules(root):
    """{dotted name: path} of every Python file of the course; a package is its __init__.py."""
    paths = sorted(path for place in PLACES for path in root.glob(place))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(name, path, modules):
    """(line, what is imported, whether it is at module level) of each import; of ours, the module's dotted name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)}
    here = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(here.split(".")[:len(here.split(".")) + 1 - node.level]) if node.level else ""
            package = ".".join(filter(None, (above, node.module)))
            # `from a import b`: the module a.b where there is one, else a name of a
            wanted = [f"{package}.{alias.name}" if f"{package}.{alias.name}" in modules else package
                      for alias in node.names]
        else:
            continue
        for each in dict.fromkeys(wanted):
            yield node.lineno, each, id(node) not in lazy


def room(name):
    """root, or the folder at the top, with that of the lesson: lessons.l05_distributed_sampler"""
    first, *rest = name.split(".")
    return ".".join([first, *rest[:first == "lessons"]]) if rest or first in MAY_IMPORT else "root"


def inside(name, *packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def breaches(root):
    """One line for each import that breaks a rule, and for each circle."""
    modules = our_modules(root)
    found = {name: list(imports(name, path, modules)) for name, path in modules.items()}
    with_torch, before = {"torch", "torchvision"}, 0  # and all of ours that import one of these as they are imported
    while before < len(with_torch):
        before = len(with_torch)
        with_torch |= {name for name, those in found.items()
                       if any(early and inside(wanted, *with_torch) for _, wanted, early in those)}
    lines = []
    for name, those in found.items():
        mine = room(name)
        for number, wanted, early in those:
            there = room(wanted) if wanted in modules else mine
            tests = "tests" in mine or "test_" in name or name == "conftest"
            first = mine.split(".")[0]
            rules = {
                "nothing imports main": wanted == "main" and not tests,
                "a lesson imports none of another": mine[:11] != there[:11]  # lessons.l06: of 06 and 06b
                                                    and first == there.split(".")[0] == "lessons" and not tests,
                f"{first} does not import {there.split('.')[0]}": first != there.split(".")[0] and not tests
                                                    and there.split(".")[0] not in MAY_IMPORT[first],
                "a leaf imports none of ours": wanted in modules and name in LEAVES,
                "needs no torch": early and inside(wanted, *with_torch) and inside(name, *TORCHLESS),
            }
            where = f"{modules[name].relative_to(root)}:{number} imports {wanted}"
            lines += [f"{where}: {rule}" for rule, broken in rules.items() if broken]
    ours = {name: {wanted: line for line, wanted, _ in reversed(those) if wanted in modules}
            for name, those in found.items()}
    if way := circle(ours):
        lines.append(f"{modules[way[-2]].relative_to(root)}:{ours[way[-2]][way[-1]]} imports {way[-1]}: a circle: "
                     + " -> ".join(way))
    return lines


def circle(edges):
    """A circle in {module: the modules that it imports}, as a way [a, …, a]; [] where there is none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def test_arrows_run_one_way():
    found = breaches(ROOT)
    assert not found, "\n" + "\n".join(found)


SOUND = {
    "main.py": "import torch, utils",
    "utils.py": "import torch",
    "trainer/__init__.py": "",
    "trainer/data.py": "import torch\nfrom trainer import files",
    "trainer/files.py": "import os",
    "trainer/options.py": "def late():\n    import torch, utils\n    from trainer import data",
    "course/__init__.py": "",
    "course/runs.py": "import pandas\nfrom course import console\nfrom course.plots import common",
    "course/console.py": "import re",
    "course/plots/__init__.py": "from course.plots.style import draw",
    "course/plots/style.py": "def draw():\n    import torch",
    "lessons/l01_hello/__init__.py": "",
    "lessons/l01_hello/check.py": "import torch\nfrom . import shapes\nfrom course.runs import read_run",
    "lessons/l01_hello/shapes.py": "import torch",
    "lessons/l02_next/show.py": "import utils",
    "lessons/l02_next/test_show.py": "from lessons.l01_hello import shapes",
    "doctor/seams.py": "from . import diary",
    "doctor/diary.py": "import torch",
    "scripts/runs.py": "from trainer import options\nfrom lessons.l01_hello import shapes",
    "teach/grade.py": "from lessons.l01_hello import check",
    "site/pages.py": "from teach import grade",
    "notebooks/text/00_start.py": "from lessons.l01_hello import check\nimport utils",
    "tests/test_x.py": "import main\nfrom scripts import runs",
}


def tree(folder, **files):
    for name, text in {**SOUND, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_tree_that_keeps_the_rules_has_no_breach(tmp_path):
    assert breaches(tree(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("scripts/runs.py", "import os\nfrom main import train",
         "scripts/runs.py:2 imports main: nothing imports main"),
        ("course/console.py", "from lessons.l01_hello.shapes import SIZE",
         "course/console.py:1 imports lessons.l01_hello.shapes: course does not import lessons"),
        ("utils.py", "def late():\n    import course.console",
         "utils.py:2 imports course.console: root does not import course"),
        ("lessons/l02_next/show.py", "from lessons.l01_hello import shapes",
         "lessons/l02_next/show.py:1 imports lessons.l01_hello.shapes: a lesson imports none of another"),
        ("doctor/seams.py", "from course import runs",
         "doctor/seams.py:1 imports course.runs: doctor does not import course"),
        ("trainer/files.py", "from trainer import options",
         "trainer/files.py:1 imports trainer.options: a leaf imports none of ours"),
        ("course/console.py", "if True:\n    import torch.nn",
         "course/console.py:2 imports torch.nn: needs no torch"),
        ("course/plots/style.py", "from utils import MODELS",
         "course/plots/style.py:1 imports utils: needs no torch"),
        ("course/console.py", "def late():\n    from .runs import read_run",
         "course/runs.py:2 imports course.console: a circle: course.console -> course.runs -> course.console"),
    ],
)
def test_a_breach_of_each_rule_is_one_line(tmp_path, file, text, line):
    assert line in breaches(tree(tmp_path, **{file: text}))
