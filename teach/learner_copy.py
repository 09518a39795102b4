"""Make copies of the course for learners: no outputs, nothing of the teacher's. scripts/learner starts it.

    scripts/learner class/ada class/ben       a copy in each of these new folders

The checks in a copy are those of the course, packed: that keeps the solutions out of the way, no more. A class on one
machine can share one environment and one data folder: teach/README.md says how.

Exit status: 0 made, 2 bad input (no unfinished copy is left), 130 stopped by Ctrl-C.
"""

import base64
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zlib
from pathlib import Path

import nbformat

from course import rank_program, twins
from course.lesson import ROOT, notebooks
from teach import questions
from trainer.options import nonempty_path

# Files and folders that only teachers and authors need. The files that remain import none of these:
# tests/test_learner_copy.py.
LEFT_OUT = ("teach", "tests", "conftest.py", "site/build_site.py", "site/cards.py", "site/conf.py", "site/layout.py",
            "site/static", "notebooks/text", "notebooks/jupytext.toml",
            "scripts/test", "scripts/run", "scripts/run_notebooks.py", "scripts/notebook_runs.py",
            "scripts/my_notebooks.py", "course/twins.py", "scripts/site", "scripts/record",
            "scripts/record_machine.py", "scripts/grade", "scripts/learner", "scripts/class_board", "scripts/release",
            "examples/minimal_ddp.py",  # the capstone's solution
            "results/recorded/failed-launches/README.md",  # their causes
            "site/pages/measured.md", "site/pages/survives.md", "site/pages/doctor.md", "site/pages/others.md",
            "site/pages/cluster.md",
            "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lessons/_template", "lessons/conftest.py", ".ci",
            ".github", ".pre-commit-config.yaml", ".binder", ".devcontainer")
OF_A_LESSON = re.compile(r"lessons/l\d\d[a-z]?_\w+/(teach\.md|test_\w+\.py)")  # left out, too
# Packed as they stand: the checks and their solutions.
PACKED = re.compile(r"(lessons/l\d\d[a-z]?_\w+/(check|solution|capstone|my_ddp|notes)|lessons/start/ours/\w+|"
                    r"examples/minimal_gpt_ddp)\.py")
MODULE = '''"""Holds solutions of the course's exercises, packed."""

from course.exercise import unpack

unpack(globals(), """
{text}
""")
'''
SOLUTION = re.compile(r"^(# \w+\.\w+\.solution\(\)|`solution\(\)` .*)\n?", re.M)  # a call, and what lesson 00 says
# From this heading on, the page is about things that a copy lacks.
CUT = {"AGENTS.md": "## For a contributor"}


def make(targets: list[Path]) -> None:
    """Make the copies, each whole or not at all. FileExistsError, before any, if a target is not an empty folder."""
    for target in targets:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(f"{target} is there already, and not empty: name a new folder")
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
            fill(made := Path(beside, "copy"))
            made.rename(target)


def fill(folder: Path) -> None:
    """Write a learner's copy of the course into a new folder."""
    for name in tracked():
        if not OF_A_LESSON.fullmatch(name) and not any(f"{name}/".startswith(f"{out}/") for out in LEFT_OUT):
            write(name, folder / name)
    lessons = "\n".join(f"- [{twins.title_of(nbformat.read(path, as_version=4), path.stem)}](notebooks/{path.name})"
                        for path in notebooks().values())
    ours, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "teach/for_learners.md"))
    doctor = re.search(r"^## The doctor\n.+?^```\n.+?^```$", ours, re.M | re.S)[0]  # up to its commands
    readme = readme.replace("{lessons}", lessons).replace("{doctor}", doctor)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    for name, end in CUT.items():
        lines = (ROOT / name).read_text(encoding="utf-8").partition(end)[0].rstrip().splitlines()
        kept = [line for line in lines if "`check.NAME.solution()`" not in line]  # a copy shows no solution
        (folder / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    for when, name in questions.NAMES.items():
        nbformat.write(questions.notebook(when), folder / "notebooks" / f"{name}.ipynb")


def tracked() -> list[str]:
    """The course's own files, without any that somebody has put beside them. OSError if git cannot list them."""
    try:
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise OSError("git does not list the course's files: copies are made from a clone") from None
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def write(name: str, path: Path) -> None:
    """Write the course's file `name` to `path`, as learners get it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("notebooks/"):
        notebook = twins.without_outputs(nbformat.read(ROOT / name, as_version=4))
        for cell in notebook.cells:
            cell.source = SOLUTION.sub("", cell.source).rstrip("\n")
        nbformat.write(notebook, path)
    elif PACKED.fullmatch(name):
        path.write_text(packed((ROOT / name).read_text(encoding="utf-8")), encoding="utf-8")
    else:
        shutil.copy2(ROOT / name, path)


def packed(source: str) -> str:
    """A module that course.exercise.unpack() fills with what `source` defines."""
    text = base64.b85encode(zlib.compress(source.encode(), 9)).decode()
    return MODULE.format(text=textwrap.fill(text, 118, break_on_hyphens=False))


def main() -> int:
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/learner"
    parser.add_argument("folders", nargs="+", type=nonempty_path, metavar="DIR", help="a new folder, or an empty one")
    args = parser.parse_args()
    with rank_program.stoppable(parser):
        make(args.folders)
    print(f"made: {', '.join(map(str, args.folders))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
