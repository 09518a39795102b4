"""The exercise of this lesson. What is right is computed from the numbers themselves, not by the solution."""

import statistics

from course.exercise import Case, exercise
from lessons._template.solution import my_mean


def mean_of_means(sums, counts):
    return sum(total / count for total, count in zip(sums, counts, strict=True)) / len(sums)


def divided_by_ranks(sums, counts):
    return sum(sums) / len(sums)


@exercise(
    solution=my_mean,
    hint="Each number must count once, on whichever rank it is. How many numbers are there on all ranks? Add up first, "
    "and divide once, at the end.",
    mistakes={
        "This is the mean of the ranks' means. A number counts more there if its rank has few numbers: add up sums and "
        "counts, then divide.": mean_of_means,
        "You divided by the number of ranks. Divide by the number of numbers on all ranks.": divided_by_ranks,
    },
)
def mean(answer):
    """Your mean counts each number once, also where some ranks have more numbers than others."""
    for ranks in [[[0], [0, 1], [0, 1, 2]], [[5], [1, 1, 1, 1]]]:
        sums, counts = [sum(numbers) for numbers in ranks], [len(numbers) for numbers in ranks]
        got, right = answer(sums, counts), statistics.fmean(number for numbers in ranks for number in numbers)
        yield Case(got, right, f"The ranks have the numbers {ranks}, so sums={sums} and counts={counts}. Your mean is "
                               f"{got}; the mean is {right:.4g}.")
