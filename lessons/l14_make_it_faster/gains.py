"""The gain of a change, predicted from a profile alone; and the verdict on a measured gain. Notebook 14 compares both.

A `profile` is the record of one model in step_profile.py's JSON, with `world_size` and `cores` beside it. No torch.
A gain is how many times as fast a step becomes: 1 is no gain.
"""

import math

from course.compare import FEWEST, Ratio, ratio
from course.predict.fit import powersgd_values

SPLIT = 0.05  # ms: an operator whose calls are shorter is not worth cutting up for threads
LABELS = ("data", "forward", "backward", "update")  # self time of these: Python, autograd's engine, waiting


def step(profile):
    """Milliseconds of an update, without the profiler."""
    return sum(profile["phases"].values())


def is_product(name):
    """Convolutions and matrix products, forward or backward."""
    return "conv" in name or name in ("aten::mm", "aten::addmm", "aten::bmm")


def is_operator(name):
    return name.startswith("aten::")


def share(profile, counts):
    """Part of all self time that lies in operators with counts(row)."""
    rows = profile["operators"]
    return sum(row["ms"] for row in rows if is_operator(row["name"]) and counts(row)) / sum(row["ms"] for row in rows)


def amdahl(part, times):
    """Gain of the whole when a part (0 to 1) of its time becomes `times` times as fast (Amdahl 1967); math.inf: none of
    it is left."""
    return 1 / (1 - part + part / times)


def fill(shapes, cap):
    """Bytes of each of DDP's buckets: last layer first, a bucket is full when it holds `cap` bytes or more."""
    buckets = [0]
    for shape in reversed(shapes):
        if buckets[-1] >= cap:
            buckets.append(0)
        buckets[-1] += 4 * math.prod(shape)
    return buckets


# ------------------------------------------------------------------------------- one model for each change


def save(profile, ms):
    return step(profile) / max(step(profile) - ms, 0.1 * step(profile))  # parts timed in a bad moment: 10 times at most


def least_wait(profile):
    """ms of a step without the profiler, which makes waits and work longer: only their ratio is taken from it."""
    medians = profile["medians"]
    return step(profile) * medians["least wait"] / sum(medians[name] for name in (*LABELS, "wait"))


def send_less(profile, size, more_messages=0):
    """An all-reduce takes α + β · bytes. No change of it can save more than the rank that comes last waits."""
    return save(profile, min(profile["beta"] * size - profile["alpha"] * more_messages, least_wait(profile)))


def hidden(profile, cap):
    """All buckets but the last are sent during backward. Each bucket more costs α."""
    *below, _ = fill(profile["shapes"], cap)
    return send_less(profile, sum(below), more_messages=len(below))


def threads(profile):
    part = share(profile, lambda row: row["ms"] / row["calls"] >= SPLIT)
    return amdahl(part, max(1, min(2, profile["cores"] / profile["world_size"])))


def larger_batch(profile, size=256):
    """The line a + b · images through a small batch and the usual one, continued."""
    usual, ms = profile["batch_size"], step(profile)
    b = max(0.0, (ms - profile["small_batch_step"]) / (usual - profile["small_batch"]))
    a = max(0.0, ms - b * usual)
    return (ms / usual) / ((a + b * size) / size)


def whole_batches(profile):
    return (step(profile) - profile["phases"]["data"] + profile["one_by_one_data"]) / step(profile)


MODELS = {
    "nothing": (lambda p: 1.0, "nothing changed"),
    "whole-batches": (whole_batches, "a batch fetched singly, timed alone, in place of `data`"),
    "threads": (threads, f"Amdahl: operators with calls of {SPLIT} ms or more are shared by min(2, cores a rank)"),
    "batch": (larger_batch, "a step takes a + b · images: the line through batch 16 and 64, continued"),
    "bf16": (lambda p: amdahl(share(p, lambda row: is_product(row["name"])), 2),
             "if products took half the time, and casting none"),
    "compile": (lambda p: amdahl(1 - share(p, lambda row: is_product(row["name"])), math.inf),
                "at most: all but the products vanishes"),
    "bucket-view": (lambda p: save(p, 2 * p["copy"]), "the gradients are not copied twice"),
    "small-buckets": (lambda p: hidden(p, p["gradient_bytes"] / 4),
                      "α + β · bytes; backward hides all but the last bucket"),
    "bf16-hook": (lambda p: send_less(p, p["gradient_bytes"] / 2), "half the bytes, casting costs nothing"),
    "powersgd": (lambda p: send_less(p, p["gradient_bytes"] - 4 * powersgd_values(p["shapes"], 1), more_messages=2),
                 "three small messages, compressing costs nothing"),
    "accumulate": (lambda p: save(p, 3 / 4 * (least_wait(p) + p["phases"]["update"])),
                   "three of four batches neither wait nor update"),
}


def predict(name, profile):
    """(gain, how it was computed) of a change of compare_changes.py; (None, why not) where there is no honest model."""
    if name not in MODELS:
        return None, "no prediction: the profile does not tell how fast other code would be"
    model, reason = MODELS[name]
    return model(profile), reason


# ------------------------------------------------------------------------------- the verdict on a measurement


def against(change, nothing) -> Ratio:
    """How many times as fast a change makes the training: each round's gain, by the control's in the round of the same
    number. Of the control itself: its own gains.

    A gain is the ratio of a pair already, before and after in turns. What the second place in such a pair gains or
    costs, the control gains or costs, too, so it falls out.
    """
    return ratio(change["gains"], [1] * len(change["gains"]) if change is nothing else nothing["gains"])


def verdict(gain: Ratio) -> str:
    """pays, costs, or no significant difference from no change."""
    if gain.pairs < FEWEST:
        return "no winner named"
    return ("pays" if gain.low > 1 else "costs") if gain.significant else "no significant difference"
