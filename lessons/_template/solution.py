"""The answer to the exercise. A program that computes with it imports it from here, and never from check.py."""


def my_mean(sums, counts):
    return sum(sums) / sum(counts)
