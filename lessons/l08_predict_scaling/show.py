"""Lesson 08: what a message costs, what a step of several ranks is made of, and how far a prediction was off."""

from lessons.l08_predict_scaling.step_parts import PARTS


def first(step, all_reduce, gradient_bytes, seconds, ranks, batch):
    """The row of the first model: a step of one rank, an all-reduce, and the step of several that is predicted."""
    return [{"a, ms": f"{1e3 * step.fixed:.2f}", "b, µs an image": f"{1e6 * step.per_image:.0f}",
             "bytes of gradients": f"{gradient_bytes:,}", "all-reduce, ms": f"{1e3 * all_reduce:.2f}",
             f"predicted: a step of {ranks} ranks, ms": f"{1e3 * seconds:.2f}",
             "an epoch, in those of one rank": f"{seconds / step.seconds(batch) / ranks:.2f}"}]


def parts(table):
    """A row for each batch size: the parts in ms, medians over the rounds, and their sum; the range over the rounds of
    how far each round's own sum was off."""
    rows = []
    for batch, rounds in table.groupby("batch_size"):
        medians = 1e3 * rounds.median()
        off = rounds["sum"] / rounds["ddp"] - 1
        rows.append({"batch of each rank": batch, **{f"{part}, ms": f"{medians[part]:.2f}" for part in PARTS},
                     "sum": f"{medians[PARTS].sum():.2f}", "DDP, measured": f"{medians['ddp']:.2f}",
                     "each round's sum is off by": span(off)})
    return rows


def missing(at_batch, first):
    """What both models predict, seconds; which part beside the step itself is the largest, and which is less than 0.
    `at_batch`: the PARTS, a Series named after its batch size."""
    added = at_batch[PARTS[1:]]
    lines = [f"For batch {at_batch.name} the sum of the parts predicts **{1e3 * at_batch.sum():.2f} ms** a step, the "
             f"first model {1e3 * first:.2f} ms. Beside the step itself the largest part is **{added.idxmax()}**, "
             f"{1e3 * added.max():.2f} ms."]
    if below := [part for part in added.index if added[part] < 0]:
        lines.append(f"Less than 0: {', '.join(below)}. That is noise: what this part costs is too little to be "
                     "measured here.")
    return lines


def held(measured, ones, first, summed, alone):
    """A row for each prediction of main.py's step: how far it was off, over several runs. All in seconds: `measured`
    steps of several ranks and `ones` of one rank in the same minutes, lists; `first` and `summed`, predicted with α and
    β, and with the parts; `alone`, predicted for one rank."""
    def errors(predicted, of):
        return [predicted / value - 1 for value in of]

    ratios = [many / one for many, one in zip(measured, ones, strict=True)]
    return [{"prediction": name, "ms": f"{1e3 * predicted:.2f}", "off by": span(errors(predicted, of)),
             "off by, as a ratio to one rank": span(errors(predicted / alone, ratios)) if of is measured else "–"}
            for name, predicted, of in (("first model", first, measured), ("sum of the parts", summed, measured),
                                        ("one rank alone", alone, ones))]


def pays(speedups):
    """At which batch sizes several ranks were slower than one, in each round, in some, in none."""
    batches = speedups["batch_size"]
    kinds = {"slower than one process in every round": batches[speedups["high"] < 1],
             "slower in some rounds and faster in others": batches[(speedups["low"] < 1) & (speedups["high"] >= 1)],
             "faster in every round": batches[speedups["low"] >= 1]}
    return "DDP was " + "; ".join(f"{said}: batch size {', '.join(map(str, found))}"
                                  for said, found in kinds.items() if len(found)) + "."


def smaller_batch(ceiling):
    """Is the ceiling of the smallest batch "higher" or "lower" than that of the largest, or do their rounds overlap?"""
    by_size = ceiling.sort_values("batch_size")
    small, large = by_size.iloc[0], by_size.iloc[-1]
    return "higher" if small["low"] > large["high"] else "lower" if small["high"] < large["low"] else "equal"


def smallest(speedups):
    """The smallest batch size from which on DDP was faster in the median; None where it never was."""
    found = None
    for row in speedups.sort_values("batch_size", ascending=False).itertuples():
        if row.speedup <= 1:
            break
        found = row.batch_size
    return found


def far(bands, published):
    """A row for each published point but the first, which is 100 %."""
    rows = []
    for name, points in published.items():
        for gpus, real in points.items():
            low, high = bands[name][gpus]
            if gpus > min(points):
                rows.append({"": name, "GPUs": gpus, "predicted": f"{low:.0%} to {high:.0%}",
                             "published": f"{real:.0%}", "more than was reached": "yes" if low > real else
                             "no" if high < real else "within"})
    return rows


def span(errors):
    """"-3 % to +12 %"."""
    low, high = (f"{100 * value:+.0f} %" for value in (min(errors), max(errors)))
    return low if low == high else f"{low} to {high}"
