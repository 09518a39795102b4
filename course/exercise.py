"""Exercises that check themselves: one module a lesson, one `Exercise` each.

In a notebook:

    from lessons.l05_distributed_sampler import check

    def my_shard(n, rank, world_size):
        ...                                  # the learner's answer

    check.shard(my_shard)                    # says what is wrong, or what was shown; never breaks run-all
    check.shard.hint()
    check.shard.solution()

A lesson's module makes an exercise with the decorator:

    @exercise(solution=..., hint="...", mistakes={"These are blocks ...": wrong_function})
    def shard(attempt):
        '''What the learner has shown, as one sentence: printed after "Right."'''
        for miss in misses(shard, attempt, [(20, 0, 2), (21, 1, 2)]):
            miss.tell("With n={n}, rank={rank}, world_size={world_size} you gave {got}.")

`mistakes` are the typical wrong answers, {what to say: the answer}; the tests hold that each gets a message of its own.
`misses` (cases.py) finds the one behind an answer. A check that judges without it raises Wrong, with the first reason
that fits, and its mistakes have short names:

        raise because("Rank 5: you gave (2, 1).", (got == expected[::-1], "The two are swapped."), ...)
"""

import base64
import inspect
import pickle
import textwrap
import zlib


class Wrong(Exception):
    """Raised by a check. The message explains the mistake to the learner."""


def because(said, *reasons):
    """The Wrong that says what came out, and why: the first of `reasons`, (whether it holds, its words), that holds."""
    return Wrong(" ".join([said, *[reason for holds, reason in reasons if holds][:1]]))


class Exercise:
    """A check, its solution, its hint and the typical mistakes."""

    def __init__(self, check, solution, hint, mistakes):
        self.check, self.answer, self.hint_text, self.mistakes = check, solution, hint, mistakes
        self.__name__, self.__doc__ = check.__name__, check.__doc__

    def verdict(self, attempt):
        """("untried" | "wrong" | "right", message) for the learner's function or value."""
        if attempt is None or attempt is Ellipsis:
            return "untried", "Not tried yet."
        try:
            self.check(attempt)
        except NotImplementedError as error:
            if not str(error):  # the stub's own
                return "untried", "Not tried yet."
            return "wrong", f"Not yet. It raised NotImplementedError: {error}"
        except Wrong as wrong:
            return "wrong", f"Not yet. {wrong}"
        except Exception as error:  # whatever the learner's code does, run-all goes on
            return "wrong", f"Not yet. It raised {type(error).__name__}: {error}"
        return "right", f"Right. {' '.join(self.__doc__.split())}"

    def __call__(self, attempt):
        print(textwrap.fill(self.verdict(attempt)[1], 100))

    def hint(self):
        print(textwrap.fill(self.hint_text, 100))

    def solution(self):
        print(textwrap.dedent(inspect.getsource(self.answer)) if callable(self.answer) else self.answer)


def exercise(*, solution, hint, mistakes):
    return lambda check: Exercise(check, solution, hint, mistakes)


def unpack(namespace, text):
    """Run the packed source of a check.py in the namespace of the module that holds it: teach/learner_copy.py."""
    source = pickle.loads(zlib.decompress(base64.b85decode("".join(text.split()))))
    exec(compile(source, namespace["__file__"], "exec"), namespace)
