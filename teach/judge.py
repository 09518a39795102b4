"""Judges one notebook's answers, behind the shield: it reads a Paper from stdin.

    python -m teach.judge DESCRIPTOR SECONDS

For each exercise a line goes to the descriptor, the paper's seal and JSON, [name, outcome, why]; one answer gets so
many seconds. What an answer prints goes to stdout, where the shield counts it. An answer that is a function or a value
is judged in a process of its own, which may hang or die; one that is a file runs on ranks, which are processes of their
own already.
"""

import ast
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import psutil

from course import exercise as exercises
from course import on_ranks
from course.exercise import Exercise
from teach import handed_in

ROOM, MESSAGE = 100_000_000, 100_000  # bytes that an answer finds free, and of a verdict
CALLED = ("builtins", "copy", "inspect", "math", "statistics")  # by the checks, in the answer's own process
JUDGE = ("course.exercise", "course.on_ranks", "lessons.")
FORK = multiprocessing.get_context("fork")
CHECKS = re.compile(r"\blessons\W+l\d\d_|\bcourse\W+(exercise|on_ranks)\b")  # imported, or looked up in sys.modules


def main(says, limit):
    paper = handed_in.from_json(sys.stdin.read())
    exercises.seed = paper.seed
    for name, text in paper.files.items():
        Path(name).write_text(text, encoding="utf-8")
    modules = {question.module: importlib.import_module(question.module)
               for question in paper.questions}
    for question in paper.questions:
        exercise = getattr(modules[question.module], question.name)
        answer = (paper.files if question.is_file else paper.source).get(question.given, "")
        if names_the_checks(answer):
            said = "wrong", "Not yet. It looks into the course's checks. An answer stands on its own."
        elif question.is_file:
            said = exercise.verdict(question.given)
        else:
            said = in_a_process(exercise, question.given, answer, says, limit)
        outcome, why = said
        os.write(says, f"{paper.seal} {json.dumps([question.name, outcome, handed_in.plain(why)])}\n".encode())
        if shutil.disk_usage(".").free < ROOM:
            return  # somebody has filled the disk: what comes next is judged in another room


def names_the_checks(source):
    """Does the Python import the course's checks, or look them up, under any name? Comments and docstrings may."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # it will not run, and its check says so
        return False
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                text = ast.unparse(node)
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                pass
            case _:
                continue
        if CHECKS.search(text):
            return True
    return False


def in_a_process(exercise, name, source, closed, limit):
    """The verdict on what `source` calls `name`: wrong, too, where it comes to no end, or ends its process."""
    heard, says = FORK.Pipe(duplex=False)
    child = FORK.Process(target=tell, args=(says, exercise, name, source, closed))
    child.start()
    says.close()
    family = psutil.Process(child.pid)
    try:
        if not heard.poll(limit):
            return "wrong", f"Not yet. No end within {limit:g} s."
        return json.loads(heard.recv_bytes(MESSAGE))  # of any other form: it ends the judge, and costs this answer
    except EOFError:
        child.join()
        how = signal.Signals(-child.exitcode).name if child.exitcode < 0 else f"status {child.exitcode}"
        return "wrong", f"Not yet. Its process ended before the check had an answer ({how})."
    finally:
        for process in [*family.children(recursive=True), family] if family.is_running() else []:
            process.kill()
        child.join()


def tell(says, exercise, name, source, closed):
    os.close(closed)
    before = fingerprint()
    path = Path(f"{name}.py")  # a real file: some checks read a function's text
    path.write_text(source, encoding="utf-8")
    found = {"__name__": "answers"}
    try:
        exec(compile(source, str(path.resolve()), "exec"), found)
        said = exercise.verdict(found.get(name))
    except BaseException as error:  # SystemExit too: whatever an answer raises
        said = "wrong", f"Not yet. It raised {on_ranks.first_line(error)}"
    if fingerprint() != before:
        said = "wrong", "Not yet. It changes the course's checks, or what they call."
    outcome, why = said
    says.send_bytes(json.dumps([outcome, handed_in.plain(why)]).encode())
    sys.stdout.flush()
    os._exit(0)


def fingerprint():
    """What the names in all checks, and Python's own that they call, stand for, and the code behind them: another one
    says that somebody changed them."""
    return {(module, name, part): (id(value), id(getattr(value, "__code__", None)))
            for module, loaded in list(sys.modules.items()) if module.startswith(JUDGE) or module in CALLED
            for name, thing in vars(loaded).items() if not name.startswith("__")
            for part, value in [("", thing), *(vars(thing).items() if isinstance(thing, type | Exercise) else [])]}


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
