"""Arrows run one way: notebooks -> course -> root, scripts -> course -> root, tests -> all.

The imports are read, lazy ones inside functions too. A breach is one line: `file:line`, what is imported, the rule.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("*.py", "course/**/*.py", "scripts/**/*.py", "notebooks/text/*.py", "tests/*.py")
LEAVES = {"data", "placement"}
TORCHLESS = ("options", "course.console", "course.interactive", "course.log_fields", "course.lesson", "course.plots",
             "course.predict", "course.processes", "course.rank_program", "course.runs",
             "course.verdicts")  # and the modules in them


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
            beside = f"{here}.{each}"  # a script that is started finds what stands in its own folder by its bare name
            found = beside if here.startswith("scripts") and each not in modules and beside in modules else each
            yield node.lineno, found, id(node) not in lazy


def room(name):
    """root, course, scripts (its own files), scripts.ROOM, notebooks or tests"""
    first, *rest = name.split(".")
    if first == "scripts":
        return ".".join([first, *rest[:-1]])
    return first if rest or first == "course" else "root"


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
            of_scripts = inside(wanted, "scripts")
            other_room = of_scripts and inside(mine, "scripts") and room(wanted) != mine
            rules = {
                "nothing imports main": wanted == "main" and mine != "tests",
                f"the {mine} never imports scripts": of_scripts and mine in ("course", "root"),
                "the root never imports course": inside(wanted, "course") and mine == "root",
                "a leaf imports none of ours": wanted in modules and name in LEAVES,
                "a script imports none of another room": other_room,
                "the doctor can be copied alone": inside(name, "course.doctor") and wanted in modules and not inside(
                    wanted, "course.doctor"),
                "needs no torch": early and inside(wanted, *with_torch) and inside(name, *TORCHLESS),
            }
            where = f"{modules[name].relative_to(root)}:{number} imports {wanted}"
            lines += [f"{where}: {rule}" for rule, broken in rules.items() if broken]
    ours = {name: {wanted: line for line, wanted, _ in reversed(those) if wanted in modules}
            for name, those in found.items()}
    return lines + [f"{modules[way[-2]].relative_to(root)}:{ours[way[-2]][way[-1]]} imports {way[-1]}: a circle: "
                    + " -> ".join(way) for way in circles(ours)]


def circles(edges):
    """Circles in {module: the modules that it imports}, as ways [a, …, a]; where there are any, at least one."""
    found, done = [], set()

    def follow(way):
        for wanted in edges[way[-1]]:
            if wanted in way:
                found.append([*way[way.index(wanted):], wanted])
            elif wanted not in done:
                follow([*way, wanted])
        done.add(way[-1])

    for name in edges:
        if name not in done:
            follow([name])
    return found


def test_arrows_run_one_way():
    found = breaches(ROOT)
    assert not found, "\n" + "\n".join(found)


SOUND = {
    "main.py": "import torch, utils",
    "utils.py": "import torch, data",
    "data.py": "import torch",
    "placement.py": "import os",
    "options.py": "def late():\n    import torch, data, utils",
    "course/__init__.py": "",
    "course/runs.py": "import pandas\nfrom course import console\nfrom course.plots import common",
    "course/console.py": "import re",
    "course/plots/__init__.py": "from course.plots.style import draw",
    "course/plots/style.py": "def draw():\n    import torch",
    "course/checks/__init__.py": "",
    "course/checks/lesson_01.py": "import torch\nfrom . import Wrong\nfrom course.runs import read_run",
    "scripts/runs.py": "import options\nfrom course import runs",
    "scripts/lessons/hello.py": "import shapes\nfrom scripts.lessons import shapes as same\nimport utils",
    "scripts/lessons/shapes.py": "import torch",
    "notebooks/text/00_start.py": "from course import runs\nimport utils",
    "tests/test_x.py": "import main\nfrom scripts.lessons import hello",
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
        ("scripts/lessons/hello.py", "import os\nfrom main import train",
         "scripts/lessons/hello.py:2 imports main: nothing imports main"),
        ("course/checks/lesson_01.py", "def check():\n    import main",
         "course/checks/lesson_01.py:2 imports main: nothing imports main"),
        ("notebooks/text/00_start.py", "import main",
         "notebooks/text/00_start.py:1 imports main: nothing imports main"),
        ("course/console.py", "from scripts.lessons.shapes import SIZE",
         "course/console.py:1 imports scripts.lessons.shapes: the course never imports scripts"),
        ("utils.py", "def late():\n    import scripts.lessons.shapes",
         "utils.py:2 imports scripts.lessons.shapes: the root never imports scripts"),
        ("options.py", "from course.console import NUMBER",
         "options.py:1 imports course.console: the root never imports course"),
        ("placement.py", "import options", "placement.py:1 imports options: a leaf imports none of ours"),
        ("scripts/measure/time.py", "from scripts.lessons import shapes",
         "scripts/measure/time.py:1 imports scripts.lessons.shapes: a script imports none of another room"),
        ("scripts/lessons/hello.py", "from scripts import runs",
         "scripts/lessons/hello.py:1 imports scripts.runs: a script imports none of another room"),
        ("course/console.py", "if True:\n    import torch.nn",
         "course/console.py:2 imports torch.nn: needs no torch"),
        ("course/plots/style.py", "from utils import MODELS",
         "course/plots/style.py:1 imports utils: needs no torch"),
        ("course/console.py", "def late():\n    from .runs import read_run",
         "course/console.py:2 imports course.runs: a circle: course.runs -> course.console -> course.runs"),
        ("course/doctor/seams.py", "from course import runs",
         "course/doctor/seams.py:1 imports course.runs: the doctor can be copied alone"),
        ("scripts/lessons/shapes.py", "import hello",
         "scripts/lessons/shapes.py:1 imports scripts.lessons.hello: a circle: scripts.lessons.hello -> "
         "scripts.lessons.shapes -> scripts.lessons.hello"),
    ],
)
def test_a_breach_of_each_rule_is_one_line(tmp_path, file, text, line):
    assert line in breaches(tree(tmp_path, **{file: text}))
