"""A copy of the course for a learner: no outputs, nothing of the teacher's, and the solutions out of the way.

The checks of a copy are those of the course, packed, so that nobody reads a solution by accident; so is SOLVES.
"""

import base64
import pickle
import re
import shutil
import subprocess
import tempfile
import textwrap
import zlib
from pathlib import Path

import nbformat

from course.lesson import ROOT
from teach import handed_in, questions

# Files and folders that only teachers and authors need. What is left imports none of them: tests/test_learner_copy.py.
LEFT_OUT = ("teach", "tests", "conftest.py", "site/build_site.py", "site/conf.py", "site/layout.py",
            "site/slides.html.j2", "site/slides.py", "site/static", "notebooks/text", "scripts/test", "scripts/run",
            "scripts/run_notebooks.py", "scripts/notebook_runs.py", "course/twins.py", "scripts/site", "scripts/record",
            "scripts/record_machine.py", "scripts/grade", "scripts/learner", "scripts/class_board",
            "scripts/minimal_ddp.py",  # the capstone's solution
            "results/recorded/failed-launches/README.md", "results/recorded/went-wrong/README.md",  # their causes
            "site/pages/measured.md", "site/pages/survives.md", "site/pages/doctor.md", "site/pages/others.md",
            "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lessons/_template", ".ci", ".github",
            ".pre-commit-config.yaml", ".binder", ".devcontainer")
OF_A_LESSON = re.compile(r"lessons/l\d\d_\w+/(teach\.md|test_\w+\.py)")  # left out, too
SOLVES = "lessons/l15_talk_less/outer_step.py"  # lesson 15 runs it, and asks for it
PACKED = '''"""{about}"""

from course.exercise import unpack

unpack(globals(), """
{text}
""")
'''
SOLUTION = re.compile(r"^(# \w+\.\w+\.solution\(\)|`solution\(\)` .*)\n?", re.M)  # a call, and what lesson 00 says
# From these words on a page speaks of what a copy has not.
CUT = {"AGENTS.md": "## For a contributor", "site/pages/kaggle.md": "## Send what you saw"}


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
        if not left_out(name):
            write(name, folder / name)
    lessons = "\n".join(f"- [{title(path)}](notebooks/{path.name})" for path in handed_in.lessons().values())
    ours, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "teach/for_learners.md"))
    doctor = re.search(r"^## The doctor\n.+?^```\n.+?^```$", ours, re.M | re.S)[0]  # up to its commands
    readme = readme.replace("{lessons}", lessons).replace("{doctor}", doctor)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    for name, end in CUT.items():
        told = (ROOT / name).read_text(encoding="utf-8").partition(end)[0].rstrip().splitlines()
        kept = [line for line in told if "`check.NAME.solution()`" not in line]  # here is none
        (folder / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    for when, name in questions.NAMES.items():
        nbformat.write(questions.notebook(when), folder / "notebooks" / f"{name}.ipynb")


def left_out(name):
    return (any(name == out or name.startswith(f"{out}/") for out in LEFT_OUT)
            or OF_A_LESSON.fullmatch(name) is not None)


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
    elif re.fullmatch(r"lessons/l\d\d_\w+/(check|capstone)\.py", name) or name == SOLVES:
        about = "A step that lesson 15 asks you for" if name == SOLVES else "Exercises of this lesson with solutions"
        path.write_text(packed(f"{about}, packed.", (ROOT / name).read_text(encoding="utf-8")), encoding="utf-8")
    else:
        shutil.copy2(ROOT / name, path)


def title(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    return re.search(r"^# +(.+)", text, re.M)[1]


def without_outputs(notebook):
    for cell in notebook.cells:
        cell.source = SOLUTION.sub("", cell.source).rstrip("\n")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def packed(about, source):
    """A module that course.exercise.unpack() fills."""
    text = base64.b85encode(zlib.compress(pickle.dumps(source), 9)).decode()
    return PACKED.format(about=about, text=textwrap.fill(text, 118, break_on_hyphens=False))
