"""Exercises that check themselves: one module a lesson, one `Exercise` each.

In a notebook:

    from scripts.checks import lesson_05 as check

    def my_shard(n, rank, world_size):
        ...                                  # the learner's answer

    check.shard(my_shard)                    # says what is wrong, or what was shown; never breaks run-all
    check.shard.hint()
    check.shard.solution()

A lesson's module makes an exercise with the decorator:

    @exercise(solution=..., hint="...", mistakes={"blocks instead of strides": wrong_function})
    def shard(attempt):
        '''What the learner has shown, as one sentence: printed after "Right."'''
        if attempt(20, 0, 2) == list(range(10)):
            raise Wrong("These are blocks ...")

`mistakes` are the typical wrong answers; the tests hold that each gets a message of its own.
"""

import inspect
import json
import multiprocessing
import tempfile
import textwrap
from pathlib import Path


class Wrong(Exception):
    """Raised by a check. The message explains the mistake to the learner."""


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
        """Print the solution."""
        print(textwrap.dedent(inspect.getsource(self.answer)) if callable(self.answer) else self.answer)


def exercise(*, solution, hint, mistakes):
    return lambda check: Exercise(check, solution, hint, mistakes)


def on_ranks(be_rank, *arguments, ranks, limit, all_tell=False, question=""):
    """Run be_rank(rank, folder, *arguments), importable by name, on processes of this machine; what rank 0 told.

    A rank tells with `tell`. With `all_tell` a list, what each rank told. Processes end after `limit` seconds; where
    one had not told by then: Wrong, with the reason and `question`.
    """
    context = multiprocessing.get_context("forkserver")  # forks from a process that has torch, and no threads
    context.set_forkserver_preload(["torch", "torch.nn.parallel"])
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=be_rank, args=(rank, folder, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(limit)
        late = any(process.is_alive() for process in processes)
        for process in processes:
            process.kill()
            process.join()
        try:
            told = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(ranks if all_tell else 1)]
        except FileNotFoundError:
            how = f"No end within {limit} s" if late else "A rank broke off, and said why above"
            raise Wrong(f"{how}. {question}".strip()) from None
    return told if all_tell else told[0]


def tell(folder, rank, found):
    """Hand `found`, JSON, to the process that called `on_ranks`; whole or not at all."""
    Path(folder, f"{rank}.part").write_text(json.dumps(found))
    Path(folder, f"{rank}.part").rename(Path(folder, str(rank)))
