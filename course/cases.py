"""The cases of an exercise: an answer is tried on each, and where it is wrong, the mistake behind it is looked for."""

import copy
import inspect
import math
from dataclasses import dataclass
from random import Random
from typing import Any

from course.exercise import Exercise, Wrong

PLAIN = (bool, int, float, str, bytes, tuple, list, dict, set, type(None))
seed = ""  # for a grader judge.py sets it: an answer that was made for the cases a learner saw must not do


def drawn(fixed, draw):
    """The cases that every learner meets; and for a grader, by `seed`, as many new ones: draw(random) makes one.

    The same on every rank, and in every call: `random` begins anew each time.
    """
    fixed = list(fixed)
    if not seed:
        return fixed
    random = Random(seed)
    return fixed + [draw(random) for _ in fixed]


def drawn_one(fixed, draw):
    """Of a value that a check tries once: the fixed one, or for a grader what draw(random) makes in its place."""
    return drawn([fixed], draw)[-1]


def generator_seed():
    """Of the tensors that a check makes: 0, or for a grader another."""
    return drawn_one(0, lambda random: random.randrange(1, 10**6))


def same(got, right, rel_tol=1e-6):
    """Are the two answers the same? Floats nearly, so that a float32 will do, also in a tuple; all else exactly.

    Only Python's own types are, and a number of torch or NumPy: another class says of itself what it equals.
    """
    got = got.item() if getattr(got, "shape", None) == () else got
    if type(got) not in PLAIN:
        return False
    if isinstance(got, tuple | list) and type(got) is type(right):
        return len(got) == len(right) and all(same(*pair, rel_tol) for pair in zip(got, right, strict=True))
    if isinstance(got, dict) and isinstance(right, dict):
        return got.keys() == right.keys() and all(same(got[name], right[name], rel_tol) for name in right)
    if isinstance(got, float) and isinstance(right, int | float):
        return math.isclose(got, right, rel_tol=rel_tol, abs_tol=1e-9)
    return got == right


@dataclass
class Miss:
    """A case of an exercise, as its arguments, and the answer that is wrong there."""

    exercise: Exercise
    asked: tuple
    got: Any
    right: Any
    read: Any = float
    rel_tol: float = 1e-6

    def is_of(self, mistake):
        """Does this typical mistake of the exercise give the same answer here?"""
        return same(self.got, self.read(self.exercise.mistakes[mistake](*self.asked)), self.rel_tol)

    def tell(self, said, otherwise="", /, **words):
        """Raise Wrong: what is `said`, and the first of the typical mistakes, messages, that gives this answer too.

        otherwise: for an answer that is none of them. In all three {name} stands for an argument, as the solution calls
        it, for {got} and {right}, or for one of `words`.
        """
        message = next(filter(self.is_of, self.exercise.mistakes), otherwise)
        arguments = dict(zip(inspect.signature(self.exercise.answer).parameters, self.asked, strict=True))
        raise Wrong(f"{said} {message}".strip().format(got=self.got, right=self.right, **arguments, **words))

    def explain(self, said, messages, otherwise=""):
        """tell() for mistakes that have short names, messages: {name: message}. All is said as it is, braces too."""
        raise Wrong(f"{said} {next((messages[name] for name in messages if self.is_of(name)), otherwise)}".strip())


def exactly(answer):
    """An answer as it is."""
    return answer


def misses(exercise, attempt, cases, right=None, read=float, rel_tol=1e-6):
    """Yield a Miss for each of the cases, tuples of arguments, in which the attempt is not right.

    right: says what is, given the same arguments; the exercise's solution, if left out. read: makes of an answer what
    is compared, such as a float.
    """
    for asked in cases:
        got = read(attempt(*copy.deepcopy(asked)))  # what an attempt does to its arguments, the message must not see
        truth = read((right or exercise.answer)(*asked))
        if not same(got, truth, rel_tol):
            yield Miss(exercise, asked, got, truth, read, rel_tol)
