"""What ways of training send, and how long a batch then takes: lesson 08's first model, with fewer or shorter messages.

A way is a dict with its name `way` and `every`, the number of batches after which its ranks talk (scripts/lessons/
talk_ways.py has the ways themselves).
"""

import math

from course.predict.fit import BUS_FACTORS

FLOAT = 4  # bytes
POWERSGD_RANK = 2  # columns, as talk_ways.py asks for


def messages(way, shapes):
    """(how many all-reduces, the bytes of all of them) that a rank takes part in when it talks. `shapes` of the model's
    tensors, a list."""
    whole = FLOAT * sum(map(math.prod, shapes))
    if way == "never":
        return 0, 0
    if way in ("fp16", "bf16"):
        return 1, whole // 2
    if way == "powersgd":
        return 3, FLOAT * sum(map(thin, shapes))  # what stays whole, all P, all Q
    return 1, whole


def thin(shape):
    """Values that PowerSGD sends for a tensor: an n x m matrix as n x r and m x r, where that halves it; one of one
    dimension whole (Vogels et al. 2019, arXiv 1905.13727; torch's min_compression_rate is 2)."""
    rows, columns = shape[0], math.prod(shape[1:])
    rank = min(rows, columns, POWERSGD_RANK)
    short = (rows + columns) * rank
    return short if len(shape) > 1 and 2 * short < rows * columns else rows * columns


def sent(one, shapes, ranks):
    """Bytes that each rank sends a batch, by a ring's formula: 2 (W - 1) / W times the message."""
    return BUS_FACTORS["all_reduce"](ranks) * messages(one["way"], shapes)[1] / one["every"]


def seconds(one, shapes, batch_seconds, alpha, beta):
    """Of a batch: that of ranks that never talk, and its part of the messages, of α + β · bytes each."""
    count, size = messages(one["way"], shapes)
    return batch_seconds + (count * alpha + beta * size) / one["every"]
