"""Runs the cells that a learner wrote, in their order, and then answers the judge's calls of what they define.

    python -m teach.answers DESCRIPTOR          teach/judge.py starts it, behind the shield

The answers are what the notebook's namespace then holds. For each the process makes a fork of itself, which may hang or
die. The course's checks are not here, but a stand-in: no solution and no seed. The exception is a check whose arguments
cannot leave its process (`inside`): the fork gets it and the seed, and could forge its verdict; "look at this" names
what such an answer would use.
"""

import ast
import contextlib
import copy
import importlib
import inspect
import itertools
import numbers
import os
import pickle
import signal
import symtable
import sys
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection

from course import exercise

SCALARS = (bool, int, float, str, bytes, type(None), set, frozenset)
MOST, CELLS = 10**6, 200  # items of what an answer returns, seconds of all cells
CELL = {signal.ITIMER_PROF: 20, signal.ITIMER_REAL: 50}  # seconds of work, and by the clock: a busy machine is slow


class StandIn:
    """Takes the place of a module with checks: a learner's cell may call them."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_, **__):
        return None

    def or_ours(self, attempt):
        return attempt, "your"


class Namespace(dict):
    """The notebook's. It runs a cell of the lesson when a learner's cell needs a name that the cell defines; the last
    such cell above it counts."""

    place = 0
    """of the learner's cell, or of an answer's check: the number of the lesson's cells above it"""

    def __init__(self, cells):
        super().__init__()
        self.lesson, self.given = {}, {}  # {name: [(place, Python)]}, {name: value that the lesson has bound}
        for place, source in enumerate(cells):
            for text in map(ast.unparse, pieces(source)):
                for symbol in symtable.symtable(text, "", "exec").get_symbols():
                    if symbol.is_assigned() or symbol.is_imported():
                        self.lesson.setdefault(symbol.get_name(), []).append((place, text))

    def __missing__(self, name):
        above = [text for place, text in self.lesson.get(name, ()) if place < self.place]
        if not above:
            raise KeyError(name)
        del self.lesson[name]
        mine = {name: value for name, value in self.items() if self.given.get(name, self) is not value}
        exec(above[-1], self)
        self.given |= {name: value for name, value in self.items() if mine.get(name, self) is not value}
        self.update(mine)  # the piece may have bound these, too: the learner's stay
        return self[name]


def pieces(source):
    """A cell in pieces: an import for each name that it imports, then the rest. So only what is needed runs: the import
    of matplotlib alone takes seconds, and few answers need it."""
    from IPython.core.inputtransformer2 import TransformerManager

    tree = ast.parse(TransformerManager().transform_cell(source))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        for alias in node.names:
            one = copy.copy(node)
            one.names = [alias]
            yield one
    yield ast.Module([node for node in tree.body if node not in imports], [])


def run(own, namespace, tell, seconds):
    """The learner's cells, as a notebook runs them, magics and all; none begins after so many seconds. Commands of the
    shell are left out: they train."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.text import SList
    from traitlets.config import Config

    shell = InteractiveShell.instance(user_ns=namespace, config=Config(HistoryManager={"enabled": False}))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, too_long)
    shell.system, shell.enable_gui = lambda command: None, lambda *_: None
    shell.getoutput = lambda command, **_: SList()
    for name in ("bash", "sh", "script", "!"):
        shell.register_magic_function(lambda line, cell: None, "cell", name)
    end = time.monotonic() + seconds
    for number, (place, source) in enumerate(own):
        if time.monotonic() > end:
            tell("failed", number, "the time for all cells was over")
            continue
        tell("cell", number)
        namespace.place = place
        for timer, most in CELL.items():
            signal.setitimer(timer, most)
        ran = shell.run_cell(source)
        for timer in CELL:
            signal.setitimer(timer, 0)
        if error := ran.error_before_exec or ran.error_in_exec:
            tell("failed", number, exercise.first_line(error))
    tell("ran")


def too_long(*_):
    raise TimeoutError("no end within {} s of work, or {} s in all".format(*CELL.values()))


def answer(hear, tell, value, inside, checks):
    """Describe the value of an answer to the judge, and call it as the judge asks. `inside`: (module, name of the
    exercise, seed) of a check whose arguments cannot leave the process that it runs in; then it runs here."""
    if inside:
        module, name, exercise.seed = inside
        for each in checks:
            del sys.modules[each]
        check = getattr(importlib.import_module(module), name)
        for each in checks:  # an answer that imports them meets the stand-in all the same
            package, _, child = each.rpartition(".")
            sys.modules[each] = StandIn()
            setattr(sys.modules[package], child, sys.modules[each])
        return tell("verdict", *check.verdict(value))
    if not callable(value):
        return tell("value", plain(value))
    text = ""
    with contextlib.suppress(OSError, TypeError):
        text = inspect.getsource(value)
    tell("function", getattr(value, "__name__", ""), text)
    while True:
        asked = [of_the_judge(hear, tell, *given) for given in hear()]
        try:
            tell("returned", plain(value(*asked)))
        except BaseException as error:  # SystemExit too: whatever an answer raises
            tell("raised", type(error).__name__, plain(error.args))


def of_the_judge(hear, tell, kind, value):
    """An argument, or a function that stays with the judge, and is called there."""
    def call(*arguments):
        tell("call", value, plain(arguments))
        return hear()[0]

    return call if kind == "ours" else value


def plain(value):
    """The value in Python's own types: of a tensor, an array, a range or a generator the items."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if type(value) in SCALARS:
        return value
    if isinstance(value, Iterable):
        return list(map(plain, itertools.islice(value.tolist() if hasattr(value, "tolist") else value, MOST)))
    if isinstance(value, numbers.Number) and hasattr(value, "__float__"):  # a Fraction or a Decimal
        return float(value)
    return f"<{type(value).__name__}>"


def main(descriptor: int) -> None:
    judge = Connection(descriptor)

    def hear():
        return pickle.loads(judge.recv_bytes())

    def tell(*words):
        judge.send_bytes(pickle.dumps(words))

    cells, own, checks, seconds = hear()
    sys.modules.update({name: StandIn() for name in checks})
    namespace = Namespace(cells)
    run(own, namespace, tell, seconds)
    while True:
        name, namespace.place, inside = hear()
        child = os.fork()
        if child == 0:
            answer(hear, tell, namespace.get(name), inside, checks)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        tell("ended", signal.Signals(-status).name if status < 0 else f"status {status}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
