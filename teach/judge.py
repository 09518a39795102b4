"""Judges one notebook's answers, behind the shield: it reads a Paper from stdin.

    python -m teach.judge DESCRIPTOR SECONDS

For each exercise it writes a line to the descriptor: the paper's seal, then [name, outcome, message] as JSON. Each
answer gets so many seconds. Its output goes to stdout, where the shield counts it. An answer that is a function or a
value is judged in a process of its own, which may hang or die. An answer in a file runs on ranks, which are processes
of their own already.
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
from course.exercise import Exercise, first_line
from teach import handed_in

ROOM, MESSAGE = 100_000_000, 100_000  # bytes that an answer finds free, and of a verdict
CALLED = ("builtins", "copy", "inspect", "math", "statistics")  # by the checks, in the answer's own process
FORK = multiprocessing.get_context("fork")
# A module with checks, or a package from which one is reached: as a dotted name, and in any text.
CHECKS = re.compile(r"lessons(\.l\d\d[a-z]?_\w+(\.(check|capstone)(\..+)?)?)?|course(\.(exercise|on_ranks)(\..+)?)?")
CHECKS_IN_TEXT = re.compile(r"\blessons\W+l\d\d[a-z]?_\w+(\W+(check|capstone)\b|$)|\bcourse\W+(exercise|on_ranks)\b")


def main(descriptor: int, limit: float) -> None:
    paper = handed_in.from_json(sys.stdin.read())
    exercises.seed = paper.seed
    for name, text in paper.files.items():
        Path(name).write_text(text, encoding="utf-8")
    modules = {question.module: importlib.import_module(question.module) for question in paper.questions}
    for question in paper.questions:
        exercise = getattr(modules[question.module], question.name)
        answer = (paper.files if question.is_file else paper.source).get(question.given, "")
        if names_the_checks(answer):
            verdict = "wrong", "Not yet. It looks into the course's checks. An answer stands on its own."
        elif question.is_file:
            verdict = exercise.verdict(question.given)
        else:
            verdict = in_a_process(exercise, question.given, answer, descriptor, limit)
        outcome, message = verdict
        line = f"{paper.seal} {json.dumps([question.name, outcome, handed_in.plain(message)])}\n"
        os.write(descriptor, line.encode())
        if shutil.disk_usage(".").free < ROOM:
            return  # an answer has filled the disk: the next ones are judged in another room


def names_the_checks(source: str) -> bool:
    """Does the Python import the course's checks, or look them up, under any name? Comments and docstrings may."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # it will not run, and its check says so
        return False
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):  # `import lessons.x.y` gives `lessons`; with `as z`, lessons.x.y
                modules = [alias.name if alias.asname else alias.name.partition(".")[0] for alias in aliases]
            case ast.ImportFrom(names=aliases):
                modules = [f"{node.module}.{alias.name}".removesuffix(".*") for alias in aliases]
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                if CHECKS_IN_TEXT.search(text):
                    return True
                continue
            case _:
                continue
        if any(CHECKS.fullmatch(module) for module in modules):
            return True
    return False


def in_a_process(exercise: Exercise, name: str, source: str, closed: int, limit: float) -> tuple[str, str]:
    """The verdict on the value that `source` gives `name`. Wrong, too, if it never ends, or ends its process.

    `closed`: a descriptor that the answer's process must not have.
    """
    receiver, sender = FORK.Pipe(duplex=False)
    child = FORK.Process(target=send_verdict, args=(sender, exercise, name, source, closed))
    child.start()
    sender.close()
    family = psutil.Process(child.pid)
    try:
        if not receiver.poll(limit):
            return "wrong", f"Not yet. No end within {limit:g} s."
        return json.loads(receiver.recv_bytes(MESSAGE))  # of any other form: it ends the judge, and costs this answer
    except EOFError:
        child.join()
        how = signal.Signals(-child.exitcode).name if child.exitcode < 0 else f"status {child.exitcode}"
        return "wrong", f"Not yet. Its process ended before the check had an answer ({how})."
    finally:
        for process in [*family.children(recursive=True), family] if family.is_running() else []:
            process.kill()
        child.join()


def send_verdict(sender, exercise, name, source, closed):
    os.close(closed)
    watched = [module for module in sys.modules if module in CALLED
               or module.startswith(("course.exercise", "course.on_ranks", "lessons."))]
    before = fingerprint(watched)
    path = Path(f"{name}.py")  # a real file: some checks read a function's text
    path.write_text(source, encoding="utf-8")
    namespace = {"__name__": "answers"}
    try:
        exec(compile(source, str(path.resolve()), "exec"), namespace)
        outcome, message = exercise.verdict(namespace.get(name))
    except BaseException as error:  # SystemExit too: whatever an answer raises
        outcome, message = "wrong", f"Not yet. It raised {first_line(error)}"
    if fingerprint(watched) != before:
        outcome, message = "wrong", "Not yet. It changes the course's checks, or what they call."
    sender.send_bytes(json.dumps([outcome, handed_in.plain(message)]).encode())
    sys.stdout.flush()
    os._exit(0)


def fingerprint(modules):
    """What the names in these modules stand for, and the code behind them: another fingerprint shows that somebody
    changed them. Submodules do not count: an answer may import a lesson's program."""
    values = {(module, name, part): value for module in modules for name, thing in vars(sys.modules[module]).items()
              if not name.startswith("__") and f"{module}.{name}" not in sys.modules
              for part, value in [("", thing), *(vars(thing).items() if isinstance(thing, type | Exercise) else [])]}
    return {key: (id(value), id(getattr(value, "__code__", None))) for key, value in values.items()}


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
