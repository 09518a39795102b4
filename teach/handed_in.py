"""From a notebook that a learner handed in to the answers in it. Nothing of it runs here.

An answer needs little of its notebook: its own definition, and the names that this uses. So the lesson's runs and
pictures are left out, and grading takes seconds.
"""

import ast
import copy
import dis
import inspect
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from course.lesson import ROOT
from teach import questions

LARGEST = 20_000_000  # bytes of a notebook; those of this course have less than a million, with all outputs
WORDS, TEXT = 2000, 50_000  # characters that the pages show of a message or a name, and of an answer
LINK = "no file of its own: a link, or nothing that can be read"
CALL = re.compile(r"^(check|capstone)\.(\w+)\((.+)\)$", re.M)


class NotGraded(Exception):
    """Why a file cannot be graded, in one line."""


@dataclass
class Question:
    """An exercise of a lesson, and the argument of its check: a name in the notebook, or a file."""

    module: str
    """with the check, such as lessons.l05_distributed_sampler.check"""
    name: str
    given: str
    """the name of a function or a value, such as my_shard; or of a file, such as 05_backward.py"""

    @property
    def is_file(self) -> bool:
        return self.given.endswith(".py")


@dataclass
class Paper:
    """The answers of one notebook, to be judged. It travels as JSON."""

    lesson: str
    """its number, such as 06b"""
    questions: list[Question]
    source: dict[str, str] = field(default_factory=dict)
    """{name that a question is given: the Python that defines it}"""
    files: dict[str, str] = field(default_factory=dict)
    """{name of a file that a question is given: its text}"""
    seed: str = ""
    """of the cases; in the environment or a command line an answer would find it"""
    seal: str = ""
    """begins each verdict of the judge, so that a line which an answer writes among them is none"""


def lessons() -> dict[str, Path]:
    """{number: path of the lesson's notebook} in this course."""
    return {path.stem.split("_")[0]: path for path in sorted(ROOT.glob("notebooks/[0-9][0-9]*_*.ipynb"))}


@cache
def asked_in(lesson: str) -> list[Question]:
    """The exercises of a lesson, in their order, as its own notebook calls their checks."""
    asked, notebook = [], lessons()[lesson]
    for cell in code_cells(nbformat.read(notebook, as_version=4)):
        for module, name, argument in CALL.findall(cell):
            file = re.search(r'"([^"]+)"', argument)
            asked.append(Question(f"lessons.l{notebook.stem}.{module}", name,
                                  PurePosixPath(file[1]).name if file else argument))
    return asked


def read(path: Path) -> NotebookNode:
    """The notebook in the file. NotGraded if it holds none."""
    if not own_file(path):
        raise NotGraded(LINK)
    size = path.stat().st_size
    if size > LARGEST:
        raise NotGraded(f"{size / 1e6:,.0f} MB: hand it in without its outputs")
    try:
        notebook = nbformat.reader.reads(path.read_text(encoding="utf-8"))
        notebook = nbformat.convert(notebook, 4)
        "".join(cell.cell_type + cell.source for cell in notebook.cells)  # raises where a cell has no such text
        return notebook
    except Exception as problem:  # half a file, or no notebook: nbformat raises many kinds
        line = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise NotGraded(f"no notebook: {line[:120]}") from None


def plain(text: object, most: int = WORDS) -> str:
    """The text as any file, page or console takes it: at most so many characters, and no lone surrogates."""
    text = str(text)
    text = text if len(text) <= most else f"{text[:most - 2]} …"
    return text.encode("utf-8", "backslashreplace").decode()


def own_file(path: Path) -> bool:
    """Is it a regular file? A link may lead to somebody else's work, and a pipe keeps its reader waiting."""
    return path.is_file() and not path.is_symlink()


def code_cells(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def lesson_of(notebook: NotebookNode) -> str:
    """The number of the lesson whose checks the notebook imports, or "before" or "after" of a test. NotGraded for any
    other notebook."""
    code = "\n".join(code_cells(notebook))
    names = (re.findall(r"^from lessons\.l(\d\d[a-z]?)_\w+ import (?:\([^)]*|.*)\bcheck\b", code, re.M)
             or re.findall(r'^test = "(before|after)"', code, re.M))
    if not names or names[0] not in (*lessons(), *questions.NAMES):
        raise NotGraded("no lesson of this course: no cell imports a lesson's checks")
    return names[0]


def paper(notebook: NotebookNode, beside: Path) -> Paper:
    """The Paper of a notebook. `beside`: its folder. A file that no cell writes (the capstone) may lie there, or in
    results/live if that folder is the `notebooks` of a learner's copy."""
    lesson = lesson_of(notebook)
    asked = asked_in(lesson)
    statements, files = taken_apart(notebook)
    made = Paper(lesson, asked)
    for question in asked:
        if question.is_file:
            live = beside.parent / "results" / "live"
            led_away = live.resolve() != beside.resolve().parent / "results" / "live"  # to another's, by a link
            places = [beside] + ([live] if beside.name == "notebooks" and not led_away else [])
            paths = [place / question.given for place in places if own_file(place / question.given)]
            if question.given in files:
                made.files[question.given] = files[question.given]
            elif paths and paths[0].stat().st_size < LARGEST:
                made.files[question.given] = paths[0].read_text(encoding="utf-8", errors="replace")
        else:
            made.source[question.given] = needed(question.given, statements)
    return made


def taken_apart(notebook: NotebookNode) -> tuple[list[ast.stmt], dict[str, str]]:
    """(the statements of all cells, {name of a file that a cell writes: its text})."""
    statements, files, transform = [], {}, TransformerManager()
    for source in code_cells(notebook):
        writes = re.match(r"\s*%%writefile +(?:-a +)?(\S+)\n(.*)", source, re.S)
        if writes:
            files[PurePosixPath(writes[1]).name] = writes[2]
            continue
        try:
            statements += ast.parse(transform.transform_cell(source)).body
        except SyntaxError as error:  # an answer of this cell raises it, and its learner reads where
            statements += ast.parse(f"raise SyntaxError({f'in line {error.lineno} of its cell: {error.msg}'!r})").body
            statements[-1].names = set(re.findall(r"^(?:def )?(\w+)\b *[(=]", source, re.M))
    return statements, files


def needed(name: str, statements: list[ast.stmt]) -> str:
    """The Python that defines `name`: the statements that bind it or a name which they use, in their order.

    Of an import only those names are kept: the line that brings in a lesson's program brings in its checks, too.
    """
    wanted, kept = {name}, set()
    while more := [number for number, statement in enumerate(statements)
                   if number not in kept and bound(statement) & wanted]:
        kept.update(more)
        wanted.update(*(used(statements[number]) for number in more))
    parts = []
    for statement in (statements[number] for number in sorted(kept)):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement = copy.copy(statement)
            statement.names = [alias for alias in statement.names if bound_by(alias) in wanted]
        parts.append(ast.unparse(statement))
    return "\n\n".join(parts) + "\n"


def bound(statement: ast.stmt) -> set[str]:
    """Names that the statement gives a value, at the top level of the notebook."""
    if isinstance(getattr(statement, "names", None), set):  # a cell with a syntax error: taken_apart() guessed them
        return statement.names
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    nodes = list(ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | {
        bound_by(node) for node in nodes if isinstance(node, ast.alias)}


def bound_by(alias: ast.alias) -> str:
    return (alias.asname or alias.name).split(".")[0]


def used(statement: ast.stmt) -> set[str]:
    """Names of the notebook that the statement looks up, now or when its functions are called: no local ones."""
    try:
        waiting = [compile(ast.Module([statement], []), "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)]
    except SyntaxError:  # such as `return` outside of a function: whoever runs it will say so
        return set()
    names = set()
    for code in waiting:
        names.update(step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"))
        waiting += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


def as_json(made: Paper) -> str:
    return json.dumps(made, default=vars)


def from_json(text: str) -> Paper:
    values = json.loads(text)
    return Paper(**values | {"questions": [Question(**question) for question in values["questions"]]})
