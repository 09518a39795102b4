"""The arithmetic of messages: bandwidths, the line α + β · bytes through measured times, a ring. No torch in here."""

import numpy as np

# What busbw is, in units of algbw, on n ranks: bytes through the busiest link of the best algorithm for links of equal
# speed, divided by the bytes of the message (NVIDIA nccl-tests, doc/PERFORMANCE.md).
BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "send_recv": lambda n: 1,
}


def bandwidth(bytes, seconds, ranks, op="all_reduce"):
    """(algbw, busbw) in bytes a second, for a message of `bytes` on `ranks` ranks.

    algbw = bytes / seconds. busbw = algbw · factor(op, ranks), to be compared with the speed of one link, whatever the
    number of ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md). `bytes` as there: the tensor of a rank; for all_gather the
    result of a rank, for reduce_scatter and all_to_all what a rank puts in. Arrays work, too.
    """
    algbw = bytes / seconds
    return algbw, algbw * BUS_FACTORS[op](ranks)


def fit(sizes, seconds):
    """(α, β) of seconds ≈ α + β · bytes: latency in seconds, and seconds a byte. Both are 0 or more.

    It minimises the sum of |predicted / measured - 1|. Relative errors, so that microseconds count as much as
    seconds; not squared, so that one disturbed point moves nothing. Two numbers are sought, so the best line goes
    through two of the points, or through one of them and has α = 0 or β = 0 (it is a linear program): all are tried.
    Raises ValueError for less than two different sizes, and for what is not a positive number.
    """
    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)
    if sizes.shape != seconds.shape or sizes.ndim != 1 or len(np.unique(sizes)) < 2:
        raise ValueError("a fit needs as many times as sizes, and at least two different sizes")
    if not all(np.isfinite(values).all() and (values > 0).all() for values in (sizes, seconds)):
        raise ValueError("a fit needs sizes and times that are positive numbers")
    first, second = np.nonzero(sizes[:, None] < sizes)
    slope = (seconds[second] - seconds[first]) / (sizes[second] - sizes[first])
    none = np.zeros_like(seconds)
    alpha = np.concatenate([seconds[first] - slope * sizes[first], seconds, none])
    beta = np.concatenate([slope, none, seconds / sizes])
    possible = (alpha >= 0) & (beta >= 0)
    alpha, beta = alpha[possible], beta[possible]
    errors = np.abs((alpha[:, None] + beta[:, None] * sizes) / seconds - 1).sum(axis=1)
    best = errors.argmin()
    return float(alpha[best]), float(beta[best])


def ring_seconds(bytes, ranks, alpha, beta):
    """Time of a ring all-reduce, from one step between neighbours that takes α + β · bytes seconds (`send_recv`).

    A reduce-scatter and an all-gather, n - 1 steps each, with messages of bytes / n (Thakur, Rabenseifner, Gropp 2005,
    Int. J. High Performance Computing Applications 19:1; Patarasuk and Yuan 2009; the additions cost nothing here). So
    the all-reduce itself has α(n) = 2 (n - 1) α, and β(n) = 2 (n - 1) / n · β.
    """
    return 2 * (ranks - 1) * (alpha + beta * bytes / ranks)


def size_name(size):
    """"1 KiB", "16 MiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} B"


def line(points, alpha, beta):
    """What the fit α + β · bytes says, how far it is off at worst, and what it cannot say."""
    off = max(((alpha + beta * point["bytes"]) / point["seconds"] - 1 for point in points), key=abs)
    latency = f"α = **{1e6 * alpha:,.0f} µs**"
    largest = max(point["bytes"] for point in points)
    if beta * largest < alpha:  # so little that the noise may hide it
        return (f"{latency}. **β cannot be measured here**: by the fit, even a message of {size_name(largest)} takes "
                f"less than twice as long as the shortest. Time larger ones. The line is {off:+.0%} off at worst.")
    return (f"{latency}, β = **{1e9 * beta:.2g} ns a byte**, that is {1e-9 / beta:.2g} GB/s. At α / β = "
            f"{size_name(alpha / beta)} latency is half of the time; below, it is more. The line is {off:+.0%} off at "
            "worst.")
