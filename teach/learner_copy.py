"""A copy of the course for a learner: no outputs, no solutions, nothing of the teacher's.

The checks still judge and explain. What a check computes by itself it computes in the copy, too. Where it asks the
solution, or a typical mistake, the copy has what those answered in the cases that the check tries, and not the
functions. The checks are packed, so that nobody reads by accident which letter is right; so is SOLVES.
"""

import ast
import base64
import copy
import importlib
import inspect
import pickle
import re
import shutil
import subprocess
import tempfile
import textwrap
import zlib
from pathlib import Path

import nbformat

from course import pages
from course.classroom import handed_in, questions
from course.classroom.handed_in import bound, used
from course.lesson import ROOT

# Files and folders that only teachers and authors need. What is left imports none of them: tests/test_learner_copy.py.
LEFT_OUT = ("teach", "tests", "site/conf.py", "site/static", "site/glossary.toml", "notebooks/text", "course/classroom",
            "course/pages.py", "course/slides.py", "site/slides.html", "course/notebook_runs.py", "course/twins.py",
            "scripts/test", "scripts/run", "scripts/run_notebooks.py", "scripts/site", "scripts/build_site.py",
            "scripts/record", "scripts/record_machine.py", "scripts/grade", "scripts/grade_notebooks.py",
            "scripts/learner", "scripts/make_learner_copies.py", "scripts/class_board", "scripts/draw_class_board.py",
            "scripts/lessons/minimal_ddp.py",  # the capstone's solution
            "results/recorded/failed-launches/README.md", "results/recorded/went-wrong/README.md",  # their causes
            "README.md", "CONTRIBUTING.md", ".ci", ".github", ".pre-commit-config.yaml", ".binder", ".devcontainer")
SOLVES = "scripts/lessons/outer_step.py"  # lesson 15 runs it, and asks for it
PACKED = '''"""{about}"""

from course.checks import unpack

unpack(globals(), """
{text}
""")
'''
SOLUTION = re.compile(r"^(# \w+\.\w+\.solution\(\)|`solution\(\)` .*)\n?", re.M)  # a call, and what lesson 00 says
# From these words on a page speaks of what a copy has not.
CUT = {"AGENTS.md": "## Whoever changes it", "site/pages/kaggle.md": "## Send what you saw"}


def make(targets):
    """Makes the copies, each whole or not at all. FileExistsError, before any, where a target has something in it."""
    targets = [Path(target) for target in targets]
    for target in targets:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(f"{target} is there already, and not empty: name a new folder")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "copy")
        made.mkdir()
        fill(made)
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
                shutil.copytree(made, Path(beside, "copy")).rename(target)


def fill(folder):
    for name in tracked():
        if not any(name == out or name.startswith(f"{out}/") for out in LEFT_OUT):
            write(name, folder / name)
    lessons = "\n".join(f"- [{pages.Lesson(path, executed=False).title}](notebooks/{path.name})"
                        for path in handed_in.lessons().values())
    ours, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "teach/for_learners.md"))
    doctor = re.search(r"^## The doctor\n.+?(?=\n\nIt hooks)", ours, re.M | re.S)[0]  # how it is used
    readme = readme.replace("{lessons}", lessons).replace("{doctor}", doctor)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    for name, end in CUT.items():
        told = (ROOT / name).read_text(encoding="utf-8").partition(end)[0].rstrip().splitlines()
        kept = [line for line in told if "`check.NAME.solution()`" not in line]  # here is none
        (folder / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    for when, name in questions.NAMES.items():
        nbformat.write(questions.notebook(when), folder / "notebooks" / f"{name}.ipynb")


def tracked():
    """The files of the course, without what somebody has put beside them."""
    try:
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise OSError("git does not list the course's files: copies are made from a clone") from None
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def write(name, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("notebooks/"):
        nbformat.write(without_outputs(nbformat.read(ROOT / name, as_version=4)), path)
    elif re.fullmatch(r"course/checks/(lesson_\d\d|capstone)\.py", name):
        path.write_text(packed_checks(Path(name).stem), encoding="utf-8")
    elif name == SOLVES:
        source = (ROOT / name).read_text(encoding="utf-8")
        path.write_text(packed("A step that lesson 15 asks you for, packed.", source, {}), encoding="utf-8")
    else:
        shutil.copy2(ROOT / name, path)


def without_outputs(notebook):
    for cell in notebook.cells:
        cell.source = SOLUTION.sub("", cell.source).rstrip("\n")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


# ------------------------------------------------------------------------------------------------------------ checks


def packed_checks(name):
    """The text of course/checks/NAME.py for a learner."""
    module = importlib.import_module(f"course.checks.{name}")
    source, exercises = stripped((ROOT / "course" / "checks" / f"{name}.py").read_text(encoding="utf-8"))
    told = {each: recorded(getattr(module, each)) for each, asks in exercises.items() if asks}
    return packed(f"The checks of {name.replace('_', ' ')}, packed: they judge and explain, and hold no solution.",
                  source, told)


def packed(about, source, told):
    """A module that course.checks.unpack() fills."""
    text = base64.b85encode(zlib.compress(pickle.dumps((source, told)), 9)).decode()
    return PACKED.format(about=about, text=textwrap.fill(text, 118, break_on_hyphens=False))


def stripped(source):
    """(the module without solutions, mistakes, and what only they need; {exercise: does its check ask them}).

    ValueError where a check reaches its solution otherwise than by asking the exercise, as misses() does.
    """
    tree = ast.parse(source)
    exercises, secret = {}, set()
    for node in tree.body:
        for call in decorators(node):
            for keyword in call.keywords:
                if keyword.arg == "solution":
                    secret |= {keyword.value.id} if isinstance(keyword.value, ast.Name) else set()
                    keyword.value = ast.Constant(None)
                elif keyword.arg == "mistakes":
                    keyword.value = ast.Dict([], [])
            ast.fix_missing_locations(node)
            exercises[node.name] = node.name in used(node)  # it names itself to ask its solution: misses(shard, ...)
    binds = [bound(node) for node in tree.body]
    kept = {number for number, node in enumerate(tree.body) if not binds[number] or decorators(node)
            or isinstance(node, ast.Import | ast.ImportFrom)}
    while more := {number for number, names in enumerate(binds) if number not in kept
                   and names & set().union(*(used(tree.body[each]) for each in kept))}:
        kept |= more
    reached = secret & set().union(*(binds[number] for number in kept))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if reached & functions:
        raise ValueError(f"a check reaches the solution {', '.join(sorted(reached))}, which must not be in a copy")
    tree.body = [node for number, node in enumerate(tree.body) if number in kept]
    return ast.unparse(tree), exercises


def decorators(node):
    return [call for call in getattr(node, "decorator_list", []) if isinstance(call, ast.Call)
            and getattr(call.func, "id", "") == "exercise"]


def recorded(exercise):
    """(the parameters of the answer, {name: {case: what it answers}}), "" for the solution, else a mistake's.

    The cases are those that the check tries on an answer that is right.
    """
    asked = []

    def answer(*case):
        asked.append(copy.deepcopy(case))
        return exercise.answer(*case)

    exercise.check(answer)
    return (list(inspect.signature(exercise.answer).parameters), {
        name: {repr(case): outcome(function, copy.deepcopy(case)) for case in asked}
        for name, function in {"": exercise.answer, **exercise.mistakes}.items()})


def outcome(function, case):
    """What the function returns, or the error that it raises."""
    try:
        return function(*case)
    except Exception as error:  # a mistake's, as it would be in the check
        return error
