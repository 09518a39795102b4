"""What a learner has handed in: from a notebook to the answers in it. Nothing of it is run here.

Of all that stands in a notebook an answer needs little: its own definition, and what that names. So the lesson's runs
and pictures are left out, and grading takes seconds.
"""

import ast
import dis
import inspect
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

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
    """An exercise of a lesson, and what its check is given: a name in the notebook, or a file."""

    module: str
    """that the check stands in, such as lessons.l05_distributed_sampler.check"""
    name: str
    given: str
    """the name of a function or a value, such as my_shard; or of a file, such as 05_backward.py"""

    @property
    def is_file(self):
        return self.given.endswith(".py")


@dataclass
class Paper:
    """What is to be judged of one notebook. It travels as JSON."""

    lesson: str
    """two digits"""
    questions: list
    source: dict = field(default_factory=dict)
    """{name that a question is given: the Python that defines it}"""
    files: dict = field(default_factory=dict)
    """{name of a file that a question is given: its text}"""
    seed: str = ""
    """of the cases; an answer would find it in the environment, and in a command line"""
    seal: str = ""
    """begins each line of the judge: without it what an answer writes among these is no verdict"""


def lessons():
    """{two digits: path of the lesson's notebook} in this course."""
    return {path.name[:2]: path for path in sorted(ROOT.glob("notebooks/[0-9][0-9]_*.ipynb"))}


@cache
def asked_in(lesson):
    """The exercises of a lesson, in their order, as its own notebook calls their checks."""
    found = []
    for cell in code_cells(nbformat.read(lessons()[lesson], as_version=4)):
        for module, name, argument in CALL.findall(cell):
            given = re.search(r'"([^"]+)"', argument)
            found.append(Question(f"lessons.l{lessons()[lesson].stem}.{module}", name,
                                  PurePosixPath(given[1]).name if given else argument))
    return found


def read(path):
    """The notebook in the file. NotGraded where there is none in it."""
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
    except Exception as problem:  # half a file, or another's: nbformat raises what it comes upon
        line = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise NotGraded(f"no notebook: {line[:120]}") from None


def plain(text, most=WORDS):
    """The text as any file, page or console takes it: not endless, and without the halves of characters."""
    text = str(text)
    text = text if len(text) <= most else f"{text[:most - 2]} …"
    return text.encode("utf-8", "backslashreplace").decode()


def own_file(path):
    """No link, which may lead to another's work, and no pipe, which is waited for without end."""
    return path.is_file() and not path.is_symlink()


def code_cells(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def lesson_of(notebook):
    """Two digits, of the lesson whose checks the notebook imports; "before" or "after" for a test. NotGraded for any
    other notebook."""
    code = "\n".join(code_cells(notebook))
    said = (re.findall(r"^from lessons\.l(\d\d)_\w+ import .*\bcheck\b", code, re.M)
            or re.findall(r'^test = "(before|after)"', code, re.M))
    if not said or said[0] not in (*lessons(), *questions.NAMES):
        raise NotGraded("no lesson of this course: no cell imports a lesson's checks")
    return said[0]


def paper(notebook, beside):
    """The Paper of a notebook. `beside`: its folder. A file that no cell writes (the capstone's) may stand there, or
    where lessons write, if that folder is the `notebooks` of a learner's copy."""
    lesson = lesson_of(notebook)
    asked = asked_in(lesson)
    statements, files = taken_apart(notebook)
    made = Paper(lesson, asked)
    for question in asked:
        if question.is_file:
            live = beside.parent / "results" / "live"
            led_away = live.resolve() != beside.resolve().parent / "results" / "live"  # to another's, by a link
            places = [beside] + ([live] if beside.name == "notebooks" and not led_away else [])
            stands = [place / question.given for place in places if own_file(place / question.given)]
            if question.given in files:
                made.files[question.given] = files[question.given]
            elif stands and stands[0].stat().st_size < LARGEST:
                made.files[question.given] = stands[0].read_text(encoding="utf-8", errors="replace")
        else:
            made.source[question.given] = needed(question.given, statements)
    return made


def taken_apart(notebook):
    """(the statements of all cells, as syntax trees; {name of a file that a cell writes: its text})."""
    statements, files, transform = [], {}, TransformerManager()
    for source in code_cells(notebook):
        writes = re.match(r"\s*%%writefile +(?:-a +)?(\S+)\n(.*)", source, re.S)
        if writes:
            files[PurePosixPath(writes[1]).name] = writes[2]
            continue
        try:
            statements += ast.parse(transform.transform_cell(source)).body
        except SyntaxError as error:  # its names stay undefined, but for what the learner reads
            statements += ast.parse(f"raise SyntaxError({f'in line {error.lineno} of its cell: {error.msg}'!r})").body
            statements[-1].names = set(re.findall(r"^(?:def )?(\w+)\b *[(=]", source, re.M))
    return statements, files


def needed(name, statements):
    """The Python that defines `name`: the statements that bind it or a name which they use, in their order."""
    wanted, kept = {name}, set()
    while more := [number for number, statement in enumerate(statements)
                   if number not in kept and bound(statement) & wanted]:
        kept.update(more)
        wanted.update(*(used(statements[number]) for number in more))
    return "\n\n".join(ast.unparse(statements[number]) for number in sorted(kept)) + "\n"


def bound(statement):
    """Names that the statement gives a value, at the top level of the notebook."""
    if hasattr(statement, "names") and isinstance(statement.names, set):
        return statement.names
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            } | {(alias.asname or alias.name).split(".")[0] for node in ast.walk(statement)
                 if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}


def used(statement):
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


def as_json(made):
    return json.dumps(made, default=lambda thing: thing.__dict__)


def from_json(text):
    told = json.loads(text)
    return Paper(**told | {"questions": [Question(**question) for question in told["questions"]]})
