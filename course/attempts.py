"""What a learner has written into a file, for the programs that train with it."""

import runpy
from collections.abc import Callable
from pathlib import Path

from course import on_ranks


def theirs_or_ours(path: Path, name: str, ours: Callable) -> tuple[Callable, str]:
    """(the function `name` of the learner's file, "yours"); (ours, "ours") where there is no file, or only the stub.

    Raises ValueError, one line, for a file that is not Python or has no such function.
    """
    problem = on_ranks._unreadable(path, name)
    if isinstance(problem, NotImplementedError):
        return ours, "ours"
    if problem is not None:
        raise ValueError(f"{path}: {problem}")
    return runpy.run_path(str(path))[name], "yours"
