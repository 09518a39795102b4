"""The one rule of this course for "faster" and "slower". Lesson 01 explains it."""

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

# A section's own verdict on itself; no committed output has it.
NOT_SHOWN = ("**This run does not show it: perhaps other programs took the cores.** Close them, and run the section "
             "again, from its first command.")


class Ratio(NamedTuple):
    """How many times as large one quantity is as another: by the medians, and the least and most by single rounds."""

    median: float
    low: float
    high: float
    rounds: int  # of the one that has fewer

    @property
    def apart(self) -> bool:
        """Whether no round of one lies among three or more of the other. Only then does a verdict name a winner."""
        return self.rounds > 2 and (self.low > 1 or self.high < 1)

    def __str__(self) -> str:
        spread = f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"
        return spread if self.apart else f"{spread}: **not told apart**"


def ratio(mine: Iterable[float], theirs: Iterable[float]) -> Ratio:
    """`mine` over `theirs`: the same positive quantity of two programs, a value a round, the rounds interleaved."""
    mine, theirs = list(mine), list(theirs)
    return Ratio(median(mine) / median(theirs), min(mine) / max(theirs), max(mine) / min(theirs),
                 min(len(mine), len(theirs)))
