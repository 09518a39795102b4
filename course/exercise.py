"""Exercises that check themselves. In a notebook:

    from lessons.l05_distributed_sampler import check

    %%mine shard.py
    def shard(n, rank, world_size, epoch):
        ...                                  # the learner's answer; the cell becomes mine/shard.py

    check.shard("mine/shard.py")             # shows what is wrong, or what was shown; never breaks run-all
    check.shard.hint()
    check.shard.solution()

A lesson's check.py makes an exercise from a generator of cases:

    @exercise(solution=my_gain, hint="...", mistakes={"That is the share ...": share, ...})
    def gain(answer):
        '''What the learner has shown, as one sentence: printed after "Right."'''
        for part, times in [(0.5, 2), (0.9, 10)]:
            got, right = answer(part, times), 1 / (1 - part + part / times)
            yield Case(got, right, f"With {part} ... you gave {got}, and it is {right}.")

The check runs the learner's answer. Only if a case is wrong does it run the typical mistakes on the same cases; the
message of the one that behaves the same explains the error. A mistake is a function or, where a line of the solution
makes the difference, mistake(my_gain, {"this": "that"}). `exercise_on_ranks` in course/on_ranks.py does the same
for answers that run on ranks.
"""

import ast
import base64
import contextlib
import html
import inspect
import itertools
import linecache
import math
import re
import runpy
import signal
import sys
import textwrap
import threading
import traceback
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

NOTHING = "Your function returned nothing. Is its `return` missing?"
PACKED = "<packed "  # begins the file name of code that unpack() ran


class Wrong(Exception):
    """Raised by a check that cannot go on. The message explains the mistake to the learner."""


class Ended(Wrong):
    """An answer that did not come to its end. `how` says in a word or two how it ended, such as "hung".

    None: no typical mistake ends so, and none is run for comparison.
    """

    def __init__(self, message: str, how: str | None):
        super().__init__(message)
        self.how = how


@dataclass
class Case:
    """One case of an exercise."""

    got: Any
    """the answer's result, of Python's own types"""
    right: Any
    message: str
    """printed if the two differ: full sentences that name the case, the result and the right one"""
    rel_tol: float = 1e-6
    """of floats, relative to the larger; whole numbers and all else are compared exactly"""
    remark: str = ""
    """about this answer, printed after "Right." where all cases are"""


class Exercise:
    """A check, its solution, its hint and the typical mistakes.

    check: a generator function, answer -> Cases. solution: the right answer, a function or a value. mistakes:
    {message for the learner who made it: the wrong answer}. hint: a text, or its stages, from the idea to nearly the
    code: each call of .hint() prints the next. limit: seconds for all cases of an answer.
    """

    file: Any = ""
    """what a notebook's check has last found right, such as the path of a file: it can go on to run"""

    def __init__(self, check: Callable[[Any], Iterable[Case]], solution, hint: str | tuple[str, ...],
                 mistakes: dict[str, Any], limit: float = 30):
        self.check, self.answer, self.mistakes, self.limit = check, solution, mistakes, limit
        self.hints, self.hints_shown = (hint,) if isinstance(hint, str) else hint, 0
        self.__name__, self.__doc__ = check.__name__, check.__doc__

    @property
    def parts(self) -> str:
        """What the learner's program is to run with, --parts: "mine" where a check has found their file right."""
        return "mine" if self.file else "ours"

    @property
    def whose(self) -> str:
        """For a caption: "yours" where a check has found it right, else "ours"."""
        return {"mine": "yours", "ours": "ours"}[self.parts]

    def observe(self, answers: list) -> list[tuple[list[Case], Exception | None]]:
        """For each answer its cases, and the exception that ended it early, if any. An answer may be the path of a file
        with a function, or class, of the solution's name."""
        return [_observed(lambda answer: self.check(self._function(answer)), answer, self.limit) for answer in answers]

    def _function(self, answer):
        """The answer itself, or the function that it names by a file."""
        if not (isinstance(answer, str | Path) and callable(self.answer)):
            return answer
        if problem := unreadable(Path(answer), self.answer.__name__):
            raise problem
        return runpy.run_path(str(answer))[self.answer.__name__]

    def verdict(self, attempt) -> tuple[str, str]:
        """("untried" | "wrong" | "right", message) for the learner's function or value."""
        if attempt is None or attempt is Ellipsis:
            return "untried", "Not tried yet."
        [(cases, error)] = self.observe([attempt])
        if isinstance(error, NotImplementedError) and not str(error):  # the stub's own
            return "untried", "Not tried yet."
        wrong = next((number for number, case in enumerate(cases)
                      if not same(case.got, case.right, case.rel_tol)), None)
        if wrong is not None:
            message = cases[wrong].message
        elif error is None:
            remarks = [case.remark for case in cases if case.remark]
            return "right", " ".join(["Right.", *remarks, *self.__doc__.split()])
        else:
            file = getattr(getattr(attempt, "__code__", None), "co_filename", str(attempt))
            message = str(error) if isinstance(error, Wrong) else f"It raised {error_and_line(error, file)}"
        name = getattr(self.answer, "__name__", "")
        is_none = "None" in message and (wrong is None or cases[wrong].right is not None)
        if ((wrong is not None or is_none) and _returns(_function(self.answer, name))
                and not _returns(_function(attempt, getattr(attempt, "__name__", name)))):
            return "wrong", f"Not yet. {NOTHING}"
        no_mistake = isinstance(error, Ended) and error.how is None
        reason = "" if no_mistake else self._mistake_behind(cases, error, wrong)
        return "wrong", f"Not yet. {message} {reason}".strip()

    def _mistake_behind(self, cases, error, wrong) -> str:
        """The message of the mistake that behaves like the attempt, in every case or up to the first wrong one."""
        observed = dict(zip(self.mistakes, self.observe(list(self.mistakes.values())), strict=True))
        for message, (its_cases, its_error) in observed.items():
            if (_end(error) == _end(its_error) and len(cases) == len(its_cases)
                    and all(same(a.got, b.got, a.rel_tol) for a, b in zip(cases, its_cases, strict=True))):
                return message
        for message, (its_cases, _) in observed.items():
            if wrong is not None and wrong < len(its_cases) and all(
                    same(a.got, b.got, a.rel_tol) for a, b in zip(cases[:wrong + 1], its_cases, strict=False)):
                return message
        return ""

    def or_ours(self, attempt) -> tuple[Any, str]:
        """(the learner's answer, "your") where it is right, else (the solution, "our"): for a lesson that goes on with
        it, and says whose it is. Of a file it is the function in it."""
        return (self._function(attempt), "your") if self.verdict(attempt)[0] == "right" else (self.answer, "our")

    def __call__(self, attempt) -> None:
        from IPython.display import display  # late, as in course/lesson.py

        status, message = self.verdict(attempt)
        display(Shown(status, message))
        self.judged(attempt, status)

    def judged(self, attempt, status: str) -> None:
        """What else a notebook's check does with an attempt. A grader does not call this."""
        self.file = attempt if status == "right" else ""

    def hint(self) -> None:
        """Print the next stage of the hint; after the last one, the last again."""
        self.hints_shown = min(self.hints_shown + 1, len(self.hints))
        stage = f"Hint {self.hints_shown} of {len(self.hints)}: " if len(self.hints) > 1 else ""
        print(textwrap.fill(stage + self.hints[self.hints_shown - 1], 100, replace_whitespace=False))

    def solution(self) -> None:
        if self.check.__code__.co_filename.startswith(PACKED):
            print("This copy of the course keeps its solutions packed. Ask whoever teaches you.")
        elif isinstance(self.answer, Path):
            print(self.answer.read_text(encoding="utf-8"))
        else:
            print(textwrap.dedent(inspect.getsource(self.answer)) if callable(self.answer) else self.answer)


class Shown:
    """A verdict, as a notebook shows it: mark and colour tell right, not yet and not tried apart; in text, the mark."""

    MARKS = {"right": ("✔", "#00704f"), "wrong": ("✘", "#b34a00"), "untried": ("○", "#595959")}

    def __init__(self, outcome: str, message: str):
        (self.mark, self.colour), self.message = self.MARKS[outcome], message

    def __repr__(self):
        return textwrap.fill(f"{self.mark} {self.message}", 100)

    def _repr_html_(self):
        verdict, dot, reason = html.escape(self.message).partition(".")
        reason = re.sub("`(.+?)`", r"<code>\1</code>", reason)
        badge = f"background:{self.colour};color:#fff;padding:1px 8px;border-radius:4px"
        return (f'<div style="border-left:4px solid {self.colour};padding:4px 12px;max-width:60em">'
                f'<b style="{badge}">{self.mark} {verdict}{dot}</b>{reason}</div>')


def exercise(*, solution, hint: str | tuple[str, ...], mistakes: dict[str, Any],
             limit: float = 30) -> Callable[[Callable], Exercise]:
    """Make an Exercise of the decorated generator."""
    return lambda check: Exercise(check, solution, hint, mistakes, limit)


def mistake(answer: Callable, edits: dict[str, str], whole_file: bool = False) -> Callable:
    """A typical mistake: the solution, a function or class of a module, with parts of its text replaced, {old: new}.
    It takes the solution's arguments, also on ranks. whole_file: the text is that of its module, whose other classes
    the edits may concern."""
    text = edited(_text(sys.modules[answer.__module__] if whole_file else answer), edits)
    compile(text, answer.__name__, "exec")  # an edit that makes no Python fails here, and not on a rank
    return partial(_of_text, answer, text)


def edited(text: str, edits: dict[str, str]) -> str:
    """The text with each old part, which must be in it, replaced by the new one."""
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


_text = cache(inspect.getsource)


def _of_text(answer, text, *args, **options):
    namespace = dict(vars(sys.modules[answer.__module__]))
    exec(text, namespace)
    return namespace[answer.__name__](*args, **options)


def _observed(check, answer, limit):
    cases = []
    try:
        with _bounded(limit):
            for case in check(answer) or ():
                cases.append(case)
    except (Exception, SystemExit) as error:  # whatever the learner's code raises, run-all goes on
        return cases, error
    return cases, None


@contextlib.contextmanager
def _bounded(limit):
    """Ends what takes longer than `limit` seconds. Only the main thread gets signals: elsewhere nothing is bounded."""
    def give_up(*_):
        raise Ended(f"Your function had not come to its end after {limit} s. Does each of its loops stop, whatever the "
                    "numbers?", "never ended")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, timer = signal.signal(signal.SIGALRM, give_up), signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:  # a test's own limit goes on
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def error_and_line(error: BaseException, file: str) -> str:
    """An error with the last line of `file` through which it came: "KeyError: 3. In line 4: `return shards[rank]`."
    """
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file and frame.line]
    where = f" In line {lines[-1].lineno}: `{lines[-1].line}`." if lines else ""
    return f"{first_line(error).rstrip('.')}.{where}"


def _end(error):
    """How an answer ended, for comparison with a mistake."""
    if isinstance(error, Ended):
        return error.how
    return str(error) if isinstance(error, Wrong) else type(error)


def _function(answer, name: str) -> ast.FunctionDef | None:
    """The function `name`, which is the answer or stands in its file. None where nobody can tell."""
    try:
        text = (Path(answer).read_text(encoding="utf-8") if isinstance(answer, str | Path)
                else textwrap.dedent(inspect.getsource(answer)))
        *_, function = (node for node in ast.parse(text).body
                        if isinstance(node, ast.FunctionDef) and node.name == name)
    except (OSError, TypeError, ValueError, SyntaxError):  # a value, a lambda, a function without a text
        return None
    return function


def _returns(function: ast.FunctionDef | None) -> bool:
    """Does it return a value somewhere?"""
    inside = list(function.body) if function else []
    for node in inside:
        if isinstance(node, ast.Return) and node.value or isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            inside += ast.iter_child_nodes(node)
    return not function


def unreadable(file: Path, name: str) -> Exception | None:
    """NotImplementedError if there is no file, or only the stub; Ended if the file is not Python or lacks the function
    or class `name`; else None. In neither case does anything of it run."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=file.name)
    except FileNotFoundError:
        return NotImplementedError()
    except SyntaxError as error:
        return Ended(f"Your file cannot be run: {first_line(error)}.", None)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    if not found:
        return Ended(f"Your file defines no {name}. Write it with {'class' if name[0].isupper() else 'def'}.", None)
    return NotImplementedError() if is_stub(found[-1]) else None


def is_stub(tree: ast.AST) -> bool:
    """Does a function in it begin or end with the stub's line, `raise NotImplementedError`, or is nothing but comments
    in it?"""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    ends = [function.body[-1] for function in functions
            if not any(isinstance(line, ast.Return) for line in function.body)]  # behind a return it is left over
    lines = [ast.unparse(line) for line in ends + [
        line for function in functions for line in function.body[ast.get_docstring(function) is not None:][:1]]]
    return "raise NotImplementedError" in lines or not getattr(tree, "body", True)


def first_line(error: BaseException) -> str:
    """The first line of an error, `ZeroDivisionError: division by zero`, with lines that are indented below it."""
    first, *rest = f"{type(error).__name__}: {error}".strip().splitlines()
    return " ".join([first, *(line.strip() for line in itertools.takewhile(lambda line: line.startswith(" "), rest))])


def same(got, right, rel_tol: float = 1e-6) -> bool:
    """Are two answers the same? Floats up to rounding, so that a float32 will do; of tuples and lists the items alone;
    all else exactly.

    Of tensors and arrays only those that hold one number are: the others compare item by item.
    """
    got = got.item() if getattr(got, "shape", None) == () else got
    if hasattr(got, "shape"):
        return False
    if isinstance(got, tuple | list) and isinstance(right, tuple | list):
        return len(got) == len(right) and all(same(*pair, rel_tol) for pair in zip(got, right, strict=True))
    if isinstance(got, dict) and isinstance(right, dict):
        return got.keys() == right.keys() and all(same(got[name], right[name], rel_tol) for name in right)
    if isinstance(got, float) and isinstance(right, int | float):
        return math.isclose(got, right, rel_tol=rel_tol, abs_tol=1e-9)
    return got == right


def unpack(namespace: dict, text: str) -> None:
    """Run the packed source of a check.py in the namespace of the module that holds it: teach/learner_copy.py."""
    source = zlib.decompress(base64.b85decode("".join(text.split()))).decode()
    file = f"{PACKED}{namespace['__name__']}>"
    # Some checks read the text of the function that they judge, a typical mistake's too.
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    namespace["__file__"] = file  # here inspect looks for the text of a class
    exec(compile(source, file, "exec"), namespace)
