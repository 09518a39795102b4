"""What a message costs: both bandwidths of an all-reduce."""

import math
from functools import partial

from course.checks import Wrong, because, exercise


def my_bandwidths(bytes, seconds, ranks):
    algbw = bytes / seconds / 1e9
    return algbw, algbw * 2 * (ranks - 1) / ranks


@exercise(
    solution=my_bandwidths,
    hint="algbw is bytes / seconds. busbw counts what each rank sends in the ring: 2 (n - 1) / n times the bytes of "
    "the tensor. 1 GB is 1e9 bytes.",
    mistakes={"no factor": lambda bytes, seconds, ranks: (bytes / seconds / 1e9, bytes / seconds / 1e9),
              "one phase only": lambda bytes, seconds, ranks: (
                  bytes / seconds / 1e9, bytes / seconds / 1e9 * (ranks - 1) / ranks),
              "GiB": lambda bytes, seconds, ranks: my_bandwidths(bytes * 1e9 / 2**30, seconds, ranks),
              "bits": lambda bytes, seconds, ranks: my_bandwidths(8 * bytes, seconds, ranks),
              "one number": lambda bytes, seconds, ranks: my_bandwidths(bytes, seconds, ranks)[1]},
)
def bandwidths(attempt):
    """Both are right for 2, 4 and 8 ranks. algbw tells how long your message takes; busbw tells how well the links are
    used, whatever the number of ranks."""
    for bytes, seconds, ranks in ((10**9, 0.5, 8), (4_000_000, 0.002, 4), (1_000_000, 0.001, 2)):
        got = attempt(bytes, seconds, ranks)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong(f"You gave {got!r}. Return two numbers: algbw, busbw.")
        algbw, busbw = (float(value) for value in got)
        right = my_bandwidths(bytes, seconds, ranks)
        case = f"{bytes:,} bytes in {seconds} s on {ranks} ranks"
        if not near(algbw, right[0]):
            raise because(
                f"{case}: algbw is bytes / seconds, {right[0]:g} GB/s; you have {algbw:.4g}.",
                (near(algbw, right[0] * 1e9 / 2**30), "These are GiB (2^30 bytes); network speeds are given in GB "
                 "(1e9)."),
                (near(algbw, 8 * right[0]), "These are gigabits. A link of 400 Gbit/s carries 50 GB/s."))
        if not near(busbw, right[1]):
            raise because(
                f"{case}: busbw is {right[1]:.4g} GB/s; you have {busbw:.4g}.",
                (near(busbw, algbw), f"That is algbw. But each rank has to send {2 * (ranks - 1) / ranks:g} times the "
                 "bytes of the tensor."),
                (near(busbw, right[1] / 2), "That is half. The ring goes round twice: once adding, once copying."))


near = partial(math.isclose, rel_tol=1e-6)
