"""Judges one notebook's answers, behind the shield: it reads a Paper from stdin.

    python -P -m teach.judge DESCRIPTOR SECONDS        -P: an answer may write modules where it starts

For each exercise it writes a line to the descriptor: the paper's seal, then [name, outcome, message] as JSON. Each
answer gets so many seconds. The learner's cells run in another process, teach/answers.py. This one has the checks: it
calls an answer there, and takes nothing but values of Python's own types. An answer in a file runs on ranks, which are
processes of their own already.
"""

import builtins
import contextlib
import ctypes
import importlib
import io
import json
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import FunctionType, MethodType

import psutil

from course import exercise as exercises
from course.exercise import PLAIN
from teach import answers, handed_in

ROOM, MESSAGE = 100_000_000, 50_000_000  # bytes that an answer finds free, and of what it returns
STARTS = 4  # of the learner's process: a cell that ends it, or never ends, is left out of the next
LIVE = Path("results/live")  # where cells write the files that are answers
DUMPABLE = 4  # PR_SET_DUMPABLE in Linux' sys/prctl.h
NO_FAULT = "Your answer is not at fault"  # course/on_ranks.py, of ranks that could not start


class Here(BaseException):
    """The check's arguments cannot leave its process."""


class Gone(BaseException):
    """The learner's process, or its fork that answers, has ended or takes too long. The message says which."""


class Values(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError("no value of Python's own types")


class Learner:
    """The process of teach/answers.py. `failed`: {number of a cell: why it could not be run}."""

    def __init__(self, paper: handed_in.Paper, limit: float):
        self.paper, self.limit, self.failed = paper, limit, {}
        self.last = time.monotonic() + answers.CELLS
        self.start()

    def start(self):
        self.end, theirs = multiprocessing.Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "teach.answers", str(theirs.fileno())], pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        theirs.close()
        self.left = [number for number in range(len(self.paper.own)) if number not in self.failed]
        self.until = time.monotonic() + self.limit
        self.tell(self.paper.cells, [self.paper.own[number] for number in self.left],
                  self.paper.modules, self.last - time.monotonic())

    def tell(self, *words):
        with contextlib.suppress(OSError):  # that it has ended is heard
            self.end.send_bytes(pickle.dumps(words))  # send() would share a tensor's memory

    def heard(self):
        try:
            if not self.end.poll(max(0.0, self.until - time.monotonic())):
                raise Gone(f"No end within {self.limit:g} s.")
            return Values(io.BytesIO(self.end.recv_bytes(MESSAGE))).load()
        except (EOFError, OSError):
            raise Gone("It ended the process of its notebook.") from None
        except Exception as error:  # whatever it sends
            return "unreadable", exercises.first_line(error)

    def run_cells(self):
        """Returns a reason if they come to no end."""
        for _ in range(STARTS):
            number = None
            try:
                while (words := self.heard())[0] != "ran":
                    self.until, number = time.monotonic() + self.limit, self.left[words[1]]
                    self.failed |= {number: words[2]} if words[0] == "failed" else {}
                return None
            except Gone as why:
                self.process.kill()
                self.failed |= {number: str(why)} if number is not None else {}
                self.start()
        return "Not yet. The cells of this notebook come to no end."

    def unread(self, word):
        """A sentence on each cell that could not be run and has this word."""
        return " ".join(f"The cell `{self.paper.own[number][1].strip().splitlines()[0][:60]}` could not be run: {why}"
                        for number, why in sorted(self.failed.items())
                        if re.search(rf"\b{re.escape(word)}", self.paper.own[number][1]))

    def verdict(self, exercise, question):
        try:
            try:
                reached = self.asked(exercise, question, None)
                patches = "mock" in exercise.check.__code__.co_names  # what an answer must not use, in its own process
                if reached[0] != "right" or not patches:
                    return reached
            except Here:
                pass
            self.stop()
            return self.asked(exercise, question, (question.module, question.name, exercises.seed))
        except Gone as why:
            return "wrong", f"Not yet. {why}"
        finally:
            self.stop()

    def asked(self, exercise, question, here):
        self.until = time.monotonic() + self.limit
        self.tell(question.given, question.place, here)
        self.answering = True
        kind, *words = self.heard_of_fork(*(["verdict"] if here else ["value", "function"]))
        return words if here else exercise.verdict(words[0] if kind == "value" else self.function(*words))

    def heard_of_fork(self, *kinds):
        words = self.heard()
        if words[0] == "ended":
            self.answering = False
            raise Gone(f"Its process ended before the check had an answer ({words[1]}).")
        if words[0] not in kinds:
            raise Gone("Its process told what cannot be read.")
        return words

    def function(self, name, text):
        """The learner's function for a check, with the learner's text: some checks read it."""
        def called(*given):
            ours = [value for value in given if isinstance(value, FunctionType | MethodType)]
            self.tell(*[("ours", ours.index(value)) if isinstance(value, FunctionType | MethodType)
                        else ("value", can_travel(value)) for value in given])
            while (words := self.heard_of_fork("call", "raised", "returned"))[0] == "call":
                self.tell(ours[words[1]](*words[2]))
            if words[0] == "raised":
                raise error_of(*words[1:])
            return words[1]

        path = Path(f"text_of_{len(list(Path().glob('text_of_*')))}.py")
        path.write_text(text, encoding="utf-8", errors="replace")
        code = called.__code__.replace(co_filename=str(path.resolve()), co_firstlineno=1)
        return FunctionType(code, globals(), name, None, called.__closure__)

    def stop(self):
        """End the fork that answers, and all that it has started."""
        if not self.answering:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
        self.until = time.monotonic() + 30
        try:
            while self.heard()[0] != "ended":
                pass
        except Gone:  # that it has ended would be heard as the next answer's end: main() goes to another room
            self.process.kill()
            self.process.wait()


def can_travel(value):
    """The value, of Python's own types or a tensor. Raises Here for any other."""
    items = list(value.items()) if type(value) is dict else value if type(value) in (tuple, list, set) else []
    if type(value) not in PLAIN and type(value).__name__ != "Tensor":
        raise Here
    for item in items:
        can_travel(item)
    return value


def error_of(name, arguments):
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception | SystemExit)):
        kind = type(name, (Exception,), {})
    try:
        return kind(*arguments)
    except TypeError:
        return Exception(*arguments)


def of_a_file(exercise, name, written):
    """The verdict on one of the files {name: bytes}. All are written again: another answer may have cleared them."""
    shutil.rmtree(LIVE, ignore_errors=True)
    LIVE.mkdir(parents=True)
    for each, data in written.items():
        (LIVE / each).write_bytes(data)
    for _ in range(2):
        outcome, message = exercise.verdict(LIVE / name)
        if NO_FAULT not in message:
            return outcome, message
    return "again", message


def main(descriptor: int, limit: float) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DUMPABLE, 0)  # no answer reads the seed and the seal in /proc/ID/mem
    paper = handed_in.from_json(sys.stdin.read())
    LIVE.mkdir(parents=True)
    for name, text in paper.files.items():
        (LIVE / name).write_text(text, encoding="utf-8")
    learner = Learner(paper, limit)  # its cells run while the checks are imported
    exercises.seed = paper.seed
    modules = {question.module: importlib.import_module(question.module) for question in paper.questions}
    endless = learner.run_cells()
    written = {question.given: (LIVE / question.given).read_bytes() for question in paper.questions
               if question.is_file and handed_in.own_file(LIVE / question.given)}
    for question in paper.questions:
        exercise = getattr(modules[question.module], question.name)
        if endless:
            outcome, message = "wrong", endless
        elif question.is_file:
            outcome, message = of_a_file(exercise, question.given, written)
        else:
            outcome, message = learner.verdict(exercise, question)
        unread = learner.unread(question.given) if outcome == "untried" or "NameError" in message else ""
        if unread:
            outcome, message = "wrong", f"{message} {unread}"
        line = f"{paper.seal} {json.dumps([question.name, outcome, handed_in.plain(message)])}\n"
        os.write(descriptor, line.encode())
        if learner.process.poll() is not None or shutil.disk_usage(".").free < ROOM:
            return  # an answer has ended it, or filled the disk: the next ones are judged in another room
    learner.process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
