"""Judges one notebook's answers, behind the shield: it reads a Paper from stdin, as JSON.

    python -P -m teach.judge DESCRIPTOR SECONDS        -P: an answer may write modules where it starts

It runs the cells that the learner wrote, in their order, as a notebook does, and then each exercise's check on what
they have defined or written. An answer that is wrong in the end, in a file that later cells have changed, is judged as
it was at its check. Each cell gets so many seconds. To the descriptor it writes lines of JSON: first "ran", once all
cells have, then [name, outcome, message] for each exercise.
"""

import ast
import importlib
import json
import os
import re
import resource
import shutil
import signal
import symtable
import sys
import time
from pathlib import Path

from course import exercise as exercises
from course import lesson
from teach.handed_in import Paper, Question

CELLS, MEMORY = 200, 4 * 10**9  # seconds of all cells; bytes of a process
FOLDERS = Path("results/live"), Path("mine")  # where cells write the files that are answers
NO_FAULT = "Your answer is not at fault"  # course/on_ranks.py, of ranks that could not start
WORDS = 2000  # characters of a message


class Namespace(dict):
    """The notebook's. It runs a cell of the lesson when a learner's cell needs a name that the cell defines; the last
    such cell above it counts. So the lesson's own trainings do not run."""

    place = 0
    """of the learner's cell, or of an answer's check: the number of the lesson's cells above it"""

    def __init__(self, cells: list[str]):
        super().__init__()
        self.lesson = {}  # {name: [(place, Python that binds it)]}
        for place, source in enumerate(cells):
            for text in pieces(source):
                for symbol in symtable.symtable(text, "", "exec").get_symbols():
                    if symbol.is_assigned() or symbol.is_imported():
                        self.lesson.setdefault(symbol.get_name(), []).append((place, text))

    def __missing__(self, name):
        above = [text for place, text in self.lesson.pop(name, ()) if place < self.place]
        if not above:
            raise KeyError(name)
        mine = dict(self)
        exec(above[-1], self)
        self.update(mine)  # the piece may have bound these, too: the learner's stay
        return self[name]


def pieces(source: str) -> list[str]:
    """A cell in pieces, its imports one by one and then the rest: so only what is needed runs."""
    from IPython.core.inputtransformer2 import TransformerManager

    tree = ast.parse(TransformerManager().transform_cell(source))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return [*map(ast.unparse, imports), ast.unparse([node for node in tree.body if node not in imports])]


def run(own: list[tuple[int, str]], namespace: Namespace, limit: float,
        questions: list[Question]) -> tuple[dict[int, str], dict[str, Path]]:
    """Run the learner's cells, magics and all; {number of a cell: why it could not be run}, and {name of a question:
    its file as it was at its check}. Commands of the shell are left out: they train. Calls of checks judge nothing yet.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.text import SList
    from traitlets.config import Config

    shell = InteractiveShell.instance(user_ns=namespace, config=Config(HistoryManager={"enabled": False}))
    shell.system, shell.enable_gui = lambda command: None, lambda *_: None
    shell.register_magic_function(lesson.mine, "cell")
    shell.getoutput = lambda command, **_: SList()
    for name in ("bash", "sh", "script", "!"):
        shell.register_magic_function(lambda line, cell: None, "cell", name)
    signal.signal(signal.SIGALRM, too_long)
    judging = exercises.Exercise.__call__
    exercises.Exercise.__call__ = lambda *_: None
    failed, then, end = {}, {}, time.monotonic() + CELLS
    for number, (namespace.place, source) in enumerate(own):
        for question in questions:
            if question.is_file and question.place < namespace.place and question.name not in then:
                then[question.name] = Path("then", question.name, Path(question.given).name)
                then[question.name].parent.mkdir(parents=True)
                if Path(question.given).exists():
                    shutil.copy(question.given, then[question.name])
        signal.setitimer(signal.ITIMER_REAL, max(0.1, min(limit, end - time.monotonic())))
        ran = shell.run_cell(source)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if error := ran.error_before_exec or ran.error_in_exec:
            failed[number] = exercises.first_line(error)
    exercises.Exercise.__call__ = judging
    return failed, then


def content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def too_long(*_):
    raise TimeoutError("it came to no end")


def verdict(question: Question, namespace: Namespace, file: Path) -> tuple[str, str]:
    """(outcome, message). "again": the machine was too busy to start the ranks, twice."""
    exercise = getattr(importlib.import_module(question.module), question.name)
    namespace.place = question.place
    for _ in range(2):
        outcome, message = exercise.verdict(file if question.is_file else namespace.get(question.given))
        if NO_FAULT not in message:
            return outcome, message
    return "again", message


def main(descriptor: int, limit: int) -> None:
    def tell(words):
        os.write(descriptor, f"{json.dumps(words)}\n".encode())

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    paper = Paper(**json.load(sys.stdin))
    for folder in FOLDERS:
        folder.mkdir(parents=True)
    for name, text in paper.files.items():
        Path(name).write_text(text, encoding="utf-8")
    desk, namespace = Path.cwd(), Namespace(paper.cells)
    questions = [Question(**each) for each in paper.questions]
    failed, then = run(paper.own, namespace, limit, questions)
    os.chdir(desk)  # a cell may have gone elsewhere
    tell("ran")
    for question in questions:
        now = Path(question.given)
        outcome, message = verdict(question, namespace, now)
        if outcome == "wrong" and question.name in then and content(then[question.name]) != content(now):
            earlier = verdict(question, namespace, then[question.name])
            outcome, message = earlier if earlier[0] == "right" else (outcome, message)
        if outcome == "untried" or "NameError" in message:  # a cell that could not be run is why
            for number, why in failed.items():
                source = paper.own[number][1].strip()
                if re.search(rf"\b{re.escape(question.in_a_cell)}", source):
                    outcome = "wrong"
                    message += f" The cell `{source.splitlines()[0][:60]}` could not be run: {why}"
        tell([question.name, outcome, message[:WORDS]])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
