"""The one rule of this course for "faster" and "slower". Lesson 01 explains it.

Two programs run in turns; a round of the one and the round of the other beside it are a pair. Of each pair the ratio is
taken: what disturbs both rounds of a pair falls out. The interval holds the median of all such ratios with a
probability of at least 95 %, whatever their distribution: each ratio lies below that median with probability 1/2, so
the number of those below it is binomial, and of n sorted ratios the k-th and the k-th from the end enclose it with
probability 1 - 2 P(B(n, 1/2) < k). (Conover, Practical Nonparametric Statistics, 3rd ed., 1999, section 3.2.)

    pairs          6        7        8        9        12       15       20       24
    from, to       1, 6     1, 7     1, 8     2, 8     3, 10    4, 12    6, 15    7, 18
    probability    0.969    0.984    0.992    0.961    0.961    0.965    0.959    0.977
"""

from collections.abc import Iterable
from math import comb
from statistics import median
from typing import NamedTuple

LEVEL = 0.95
FEWEST = 6  # pairs: of fewer even the smallest and the largest ratio enclose the median with less than LEVEL

# A section's own verdict on itself; no committed output has it.
NOT_SHOWN = ("**This run does not show it: perhaps other programs took the cores.** Close them, and run the section "
             "again, from its first command.")


class Ratio(NamedTuple):
    """How many times as large one quantity is as another: the median of the pairs' ratios, and its interval."""

    median: float
    low: float
    high: float
    """the interval of at least 95 %; of fewer than 6 pairs the least and the largest ratio"""
    pairs: int

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 1. Only then does a verdict name a winner."""
        return self.pairs >= FEWEST and (self.low > 1 or self.high < 1)

    def __str__(self) -> str:
        low, high = (f"{end:.3f}" if f"{end:.2f}" == "1.00" else f"{end:.2f}" for end in (self.low, self.high))
        spread = f"{self.median:.2f} ({low} to {high})"  # on which side of 1 an end lies is what counts
        if self.pairs < FEWEST:
            return f"{spread}, of {self.pairs} pair{'s' * (self.pairs > 1)}: no winner named"
        return spread if self.significant else f"{spread}: **no significant difference**"


def outside(pairs: int) -> int:
    """How many ratios lie outside of the interval at each end: the table above, from 0. -1 for fewer than 6 pairs."""
    tail, number = 0.0, 0
    while (tail := tail + comb(pairs, number) / 2**pairs) <= (1 - LEVEL) / 2:
        number += 1
    return number - 1


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """(median, low, high): of 6 values and more the interval of at least 95 %, of fewer all that there are."""
    ordered = sorted(values)
    out = max(0, outside(len(ordered)))
    return median(ordered), ordered[out], ordered[-1 - out]


def ratio(mine: Iterable[float], theirs: Iterable[float]) -> Ratio:
    """`mine` over `theirs`: the same positive quantity of two programs that took turns, a value per round.

    ValueError where the rounds are no pairs: as many of the one as of the other.
    """
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    return Ratio(*interval(ratios), len(ratios))
