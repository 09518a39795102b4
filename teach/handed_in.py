"""From a notebook that a learner handed in to the cells that are the learner's. Nothing of it runs here."""

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from course.lesson import notebooks

LARGEST = 20_000_000  # bytes of a notebook; those of this course have less than a million, with all outputs
CALL = re.compile(r"^(check|capstone)\.(\w+)\((.+)\)$", re.M)


class NotGraded(ValueError):
    """Why a file cannot be graded, in one line."""


@dataclass
class Question:
    """An exercise of a lesson, and the argument of its check: a name in the notebook, or a file."""

    module: str
    """with the check, such as lessons.l05_distributed_sampler.check"""
    name: str
    given: str
    """the name of a function or a value, such as my_gain; or the path of a file, such as mine/shard.py"""
    place: int
    """of its check: the number of the lesson's cells above it"""

    @property
    def is_file(self) -> bool:
        return PurePosixPath(self.given).suffix in (".py", ".sh", ".sbatch")

    @property
    def in_a_cell(self) -> str:
        """What a cell that answers it names: `%%mine shard.py` writes mine/shard.py."""
        return self.given.removeprefix("mine/")


@dataclass
class Paper:
    """The answers of one notebook, to be judged. It travels as JSON."""

    lesson: str
    """its number, such as 13"""
    questions: list[Question]
    cells: list[str] = field(default_factory=list)
    """the lesson's own, of which the learner's may use names"""
    own: list[tuple[int, str]] = field(default_factory=list)
    """what the learner changed or added, in the notebook's order: (number of the lesson's cells above it, source)"""
    files: dict[str, str] = field(default_factory=dict)
    """{path of a file that no cell has written: its text}"""


@cache
def cells_of(lesson: str) -> list[str]:
    return code_cells(nbformat.read(notebooks()[lesson], as_version=4))


@cache
def given_in(lesson: str) -> dict[str, int]:
    """{a cell of the lesson: its number}"""
    return {bare(cell): number for number, cell in enumerate(cells_of(lesson)) if bare(cell)}


def asked_in(lesson: str) -> list[Question]:
    """The exercises of a lesson, in their order, as its own notebook calls their checks."""
    asked = []
    for place, cell in enumerate(cells_of(lesson)):
        for module, name, argument in CALL.findall(cell):
            file = re.search(r'"([^"]+)"', argument)
            asked.append(Question(f"lessons.l{notebooks()[lesson].stem}.{module}", name,
                                  file[1] if file else argument, place))
    return asked


def opened(path: Path) -> tuple[str, Paper | list[ast.stmt]]:
    """(its lesson, what is to be judged: a Paper, or of a test the statements). NotGraded if it is none of ours."""
    notebook = read(path)
    lesson = lesson_of(notebook)
    if lesson not in ("before", "after"):
        return lesson, paper(notebook, lesson, path.parent)
    found = []
    for cell in code_cells(notebook):
        with suppress(SyntaxError):
            found += ast.parse(TransformerManager().transform_cell(cell)).body
    return lesson, found


def code_cells(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def bare(source: str) -> str:
    """A cell without comments and blank lines: they change no answer, and a learner's copy lacks some."""
    return "\n".join(line.rstrip() for line in source.splitlines() if not re.match(r"\s*(#|$)", line))


def read(path: Path) -> NotebookNode:
    """The notebook in the file. NotGraded if it holds none."""
    if path.is_symlink() or not path.is_file():
        raise NotGraded("no file of its own")
    if (size := path.stat().st_size) > LARGEST:
        raise NotGraded(f"{size / 1e6:,.0f} MB: hand it in without its outputs")
    try:
        notebook = nbformat.convert(nbformat.reader.reads(path.read_text(encoding="utf-8-sig")), 4)
        "".join(cell.cell_type + cell.source for cell in notebook.cells)  # raises where a cell has no such text
        return notebook
    except Exception as problem:  # half a file, or no notebook: nbformat raises many kinds
        line = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise NotGraded(f"no notebook: {line[:120]}") from None


def lesson_of(notebook: NotebookNode) -> str:
    """The number of the lesson of which most cells are there; or "before" or "after" of a test. NotGraded for any other
    notebook."""
    there = code_cells(notebook)
    if test := re.search(r'^test = "(before|after)"', "\n".join(there), re.M):
        return test[1]
    shared = {lesson: len(given_in(lesson).keys() & set(map(bare, there))) for lesson in notebooks()}
    lesson = max(shared, key=shared.get)
    if shared[lesson] <= 3:  # the first cells are alike in all
        raise NotGraded("no lesson of this course")
    return lesson


def paper(notebook: NotebookNode, lesson: str, beside: Path) -> Paper:
    """The Paper of a lesson's notebook. `beside`: its folder. A file that no cell writes (the capstone) may lie there,
    or where its check looks for it, in the copy in whose `notebooks` the notebook lies."""
    made, place, given = Paper(lesson, asked_in(lesson), cells_of(lesson)), 0, given_in(lesson)
    for cell in code_cells(notebook):
        if bare(cell) in given:
            place = given[bare(cell)] + 1
        elif bare(cell):
            made.own.append((place, cell))
    for name in [question.given for question in made.questions if question.is_file]:
        for path in (beside.parent / name, beside / PurePosixPath(name).name):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < LARGEST:
                made.files[name] = path.read_text(encoding="utf-8", errors="replace")
    return made


def shown(made: Paper, question: Question) -> str:
    """What was handed in for a question, and the cells that name none."""
    names = {each.in_a_cell for each in made.questions}
    answer = [cell for _, cell in made.own if question.in_a_cell in cell] or [made.files.get(question.given, "")]
    return "\n\n".join(answer + [cell for _, cell in made.own if not any(name in cell for name in names)])
