"""From a notebook that a learner handed in to the cells that are the learner's. Nothing of it runs here."""

import ast
import builtins
import hashlib
import json
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
WORDS, TEXT = 2000, 50_000  # characters that the pages show of a message or a name, and of an answer
COMMON = 45  # nodes that a syntax tree must have beyond its stub's, before equal answers are news: 05 `my_shard` has 35
LINK = "no file of its own: a link, or nothing that can be read"
CALL = re.compile(r"^(check|capstone)\.(\w+)\((.+)\)$", re.M)
RIGHT = "✔ Right."  # in the output of a check
# Names by which an answer could reach the checks or its judge. Nobody is accused: a teacher looks.
UNUSUAL = re.compile(
    r"\b(?:gc|ctypes|inspect|_getframe|_current_frames|walk_stack|settrace|setprofile|f_back|tb_frame|sys\.modules|"
    r"__(?:globals|closure|code|subclasses|import|dict)__|importlib|runpy|marshal|FunctionType|CodeType|attrgetter|"
    r"getattr|setattr|builtins|__builtins__|getppid|_exit|os\.kill|os\.write|fdopen|from_file|atexit|mock|Connection|"
    r"multiprocessing|subprocess|popen|os\.system|posix_spawnp?|execv\w*)\b|(?<!\.)\b(?:eval|exec)\b|/proc\b|"
    r"\bvars\((?:sys|os|dist|torch)\)|result\.json|\bimport +torch +as\b|\blessons\W+\w+\W+(?:check|capstone)\b|"
    r"\bcourse(?:\W+| +import\b.*)\b(?:exercise|on_ranks)\b|"
    r"\bimport\b[^\n.]*\bmodules\b|\.modules\b(?! *\()|\b__file__\b|"
    r"\b(?:torch|dist|nn|F|math|statistics|os|[A-Z]\w*)(?:\.\w+)+ *=[^=]")
# And in an answer that is a file: it runs where the checks and the solutions can be imported.
OURS = re.compile(r"\b(?:lessons|course)[./][\w./]+|\b(?:from|import)\s+(?:lessons|course)\b(?!\.)")


class NotGraded(ValueError):
    """Why a file cannot be graded, in one line."""


@dataclass
class Question:
    """An exercise of a lesson, and the argument of its check: a name in the notebook, or a file."""

    module: str
    """with the check, such as lessons.l05_distributed_sampler.check"""
    name: str
    given: str
    """the name of a function or a value, such as my_shard; or of a file, such as 05_backward.py"""

    place: int
    """of its check: the number of the lesson's cells above it"""

    @property
    def is_file(self) -> bool:
        return PurePosixPath(self.given).suffix in (".py", ".sh", ".sbatch")


@dataclass
class Paper:
    """The answers of one notebook, to be judged. It travels as JSON."""

    lesson: str
    """its number, such as 06b"""
    questions: list[Question]
    cells: list[str] = field(default_factory=list)
    """the lesson's own, of which the learner's may use names"""
    own: list[tuple[int, str]] = field(default_factory=list)
    """what the learner changed or added, in the notebook's order: (number of the lesson's cells above it, source)"""
    files: dict[str, str] = field(default_factory=dict)
    """{name of a file that no cell has written: its text}"""
    said_right: list[str] = field(default_factory=list)
    """exercises that are right in the notebook's saved outputs"""
    seed: str = ""
    """of the cases; in the environment or a command line an answer would find it"""
    seal: str = ""
    """begins each verdict of the judge, so that a line which an answer writes among them is none"""
    modules: list[str] = field(default_factory=list)
    """with the checks of all questions, of those too that are judged already"""

    def __post_init__(self):
        self.modules = self.modules or sorted({question.module for question in self.questions})


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
                                  PurePosixPath(file[1]).name if file else argument, place))
    return asked


def bare(source: str) -> str:
    """A cell without comments and blank lines: they change no answer, and a learner's copy lacks some."""
    return "\n".join(line.rstrip() for line in source.splitlines() if not re.match(r"\s*(#|$)", line))


def read(path: Path) -> NotebookNode:
    """The notebook in the file. NotGraded if it holds none."""
    if not own_file(path):
        raise NotGraded(LINK)
    size = path.stat().st_size
    if size > LARGEST:
        raise NotGraded(f"{size / 1e6:,.0f} MB: hand it in without its outputs")
    try:
        notebook = nbformat.reader.reads(path.read_text(encoding="utf-8-sig"))
        notebook = nbformat.convert(notebook, 4)
        "".join(cell.cell_type + cell.source for cell in notebook.cells)  # raises where a cell has no such text
        return notebook
    except Exception as problem:  # half a file, or no notebook: nbformat raises many kinds
        line = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise NotGraded(f"no notebook: {line[:120]}") from None


def plain(text: object, most: int = WORDS) -> str:
    """The text as any file, page or console takes it: at most so many characters, and no lone surrogates."""
    text = str(text)
    text = (text if len(text) <= most else f"{text[:most - 2]} …").replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()


def own_file(path: Path) -> bool:
    """Is it a regular file? A link may lead to somebody else's work, and a pipe keeps its reader waiting."""
    return path.is_file() and not path.is_symlink()


def code_cells(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def lesson_of(notebook: NotebookNode) -> str:
    """The number of the lesson of which most cells are there; or of which a program is imported; or "before" or "after"
    of a test. NotGraded for any other notebook."""
    code = "\n".join(code_cells(notebook))
    if test := re.search(r'^test = "(before|after)"', code, re.M):
        return test[1]
    there = set(map(bare, code_cells(notebook)))
    shared = {lesson: len(there & given_in(lesson).keys()) for lesson in notebooks()}
    lesson = max(shared, key=shared.get)
    imported = re.search(r"\blessons\.l(\d\d[a-z]?)_", code)
    if shared[lesson] > 3:  # the first cells are alike in all
        return lesson
    if not imported or imported[1] not in shared:
        raise NotGraded("no lesson of this course: hardly a cell of one, and none imports a lesson's checks")
    return imported[1]


def paper(notebook: NotebookNode, beside: Path) -> Paper:
    """The Paper of a notebook. `beside`: its folder. A file that no cell writes (the capstone) may lie there, or in
    results/live of the copy or clone in whose `notebooks` or `my-notebooks` it lies."""
    lesson = lesson_of(notebook)
    made, place, given = Paper(lesson, asked_in(lesson), cells_of(lesson)), 0, given_in(lesson)
    # By scripts/my_notebooks.py: the cells of the course as it was when they were handed out.
    handed_out = {digest for _, digest in notebook.metadata.get("made_of", ())}
    for cell in notebook.cells:
        if cell.cell_type != "code" or not (source := bare(cell.source)):
            continue
        if source in given:
            place = given[source] + 1
        elif hashlib.sha256(cell.source.encode(errors="replace")).hexdigest()[:16] not in handed_out:
            made.own.append((place, cell.source))
        if RIGHT in json.dumps(cell.get("outputs", []), ensure_ascii=False):
            made.said_right += [name for _, name, _ in CALL.findall(cell.source)]
    live = beside.parent / "results" / "live"
    led_away = live.resolve() != beside.resolve().parent / "results" / "live"  # to another's, by a link
    places = [beside] + ([live] if beside.name in ("notebooks", "my-notebooks") and not led_away else [])
    for name in [question.given for question in made.questions if question.is_file]:
        for path in [place / name for place in places if own_file(place / name)][:1]:
            if path.stat().st_size < LARGEST:
                made.files[name] = path.read_text(encoding="utf-8", errors="replace")
    return made


def answer(made: Paper, question: Question) -> list[str]:
    """The learner's cells that name a question, or else its file."""
    return [cell for _, cell in made.own if question.given in cell] or [made.files.get(question.given, "")]


def shown(made: Paper, question: Question) -> str:
    """What was handed in for a question, and the cells that name none."""
    names = {each.given for each in made.questions}
    helpers = [cell for _, cell in made.own if not any(name in cell for name in names)]
    return "\n\n".join(answer(made, question) + helpers)


def tree_of(made: Paper, question: Question) -> str:
    """A digest of an answer's syntax, without comments and the names that it gives. "" if it has little more than its
    stub: many write that alike."""
    stub = [cell for cell in made.cells if re.match(rf"%%writefile .*{question.given}|def {question.given}\b", cell)]
    try:
        (_, least), (body, size) = nodes_of(stub, question.given), nodes_of(answer(made, question), question.given)
        text = "".join(map(ast.dump, body))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest() if size > least + COMMON else ""


def nodes_of(cells, name):
    """(the definition of `name`, or else all statements, with numbers for names; how many nodes they have)"""
    tree = ast.parse(TransformerManager().transform_cell("\n".join(re.sub(r"\A\s*%%.*\n", "", cell) for cell in cells)))
    body = [node for node in tree.body if getattr(node, "name", "") == name] or tree.body
    nodes, names = list(ast.walk(ast.Module(body, []))), {}
    for node in nodes:
        for kind in ("id", "arg", "name"):
            if isinstance(text := getattr(node, kind, None), str) and not hasattr(builtins, text):
                setattr(node, kind, names.setdefault(text, str(len(names))))
    return body, len(nodes)


def to_look_at(made: Paper, question: Question, outcome: str) -> str:
    """What a teacher should look at, or ""."""
    if outcome != "right":
        return "right in the learner's notebook" if question.name in made.said_right else ""
    stub = "".join(cell for cell in made.cells if cell.startswith("%%writefile") and question.given in cell)
    found, given = ([each for pattern in (UNUSUAL, OURS)[:1 + question.is_file] for each in pattern.findall(text)]
                    for text in (shown(made, question), stub))
    return ", ".join(dict.fromkeys(each for each in found if each not in given))


def statements(notebook: NotebookNode) -> list[ast.stmt]:
    """Of all cells that are Python: no lesson, but a test, or a name for the board."""
    found = []
    for cell in code_cells(notebook):
        with suppress(SyntaxError):
            found += ast.parse(TransformerManager().transform_cell(cell)).body
    return found


def as_json(made: Paper) -> str:
    return json.dumps(made, default=vars)


def from_json(text: str) -> Paper:
    values = json.loads(text)
    return Paper(**values | {"questions": [Question(**question) for question in values["questions"]]})
