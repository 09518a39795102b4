"""Exercises of notebook 08: strong and weak, the batch from which DDP pays, and the link that 64 GPUs need."""

import math

from course import predict
from course.checks import Wrong, exercise
from course.checks.cases import Miss, exactly, misses
from course.predict.scaling import Job, Link, Links, Measured, StepTime

# Exercise 1: strong or weak?
CASES = {  # ranks and batch of each rank: first the small run, then the large one
    "a": ((1, 64), (4, 64)),
    "b": ((1, 64), (4, 16)),
    "c": ((8, 32), (256, 32)),
    "d": ((1, 256), (8, 32)),
}


def my_kinds():
    return {"a": "weak", "b": "strong", "c": "weak", "d": "strong"}


@exercise(
    solution=my_kinds,
    hint="Write down two numbers for each run: the batch of a rank, and the batch of all ranks together. Which of the "
    "two is the same in both runs? The batch of a rank: weak. The batch of all: strong.",
    mistakes={
        "everything is weak": lambda: dict.fromkeys(CASES, "weak"),
        "the two names turned round": lambda: {"a": "strong", "b": "weak", "c": "strong", "d": "weak"},
        "--global-batch-size taken for the batch of a rank": lambda: my_kinds() | {"d": "weak"},
    },
)
def kinds(attempt):
    """Weak scaling keeps the batch of each rank, and with it the work that hides the all-reduce. Strong scaling keeps
    the global batch: the training stays the same, but each rank has less and less to do between two all-reduces."""
    got = attempt()
    if not isinstance(got, dict) or set(got) != set(CASES):
        raise Wrong(f"Return a dict with the keys {', '.join(CASES)}.")
    got = {name: str(said).strip().lower() for name, said in got.items()}
    truth = {name: "strong" if math.prod(small) == math.prod(large) else "weak"
             for name, (small, large) in CASES.items()}
    wrong = [name for name in CASES if got[name] != truth[name]]
    if not wrong:
        return
    if len(wrong) == len(CASES) and set(got.values()) <= {"strong", "weak"}:
        raise Wrong("All four are turned round: weak scaling keeps the batch of each rank.")
    (few, batch), (many, other) = CASES[wrong[0]]
    case = (f"{wrong[0]} is {truth[wrong[0]]}, you said {got[wrong[0]]!r}. From {few} to {many} ranks the batch of a "
            f"rank goes from {batch} to {other}, that of all together from {few * batch} to {many * other}.")
    raise Wrong(case + (" --global-batch-size is shared out among the ranks." if wrong[0] == "d" else ""))


# Exercise 2: from which batch on does it pay?
def my_batch(fixed, per_image, all_reduce, ranks):
    needed = all_reduce / (ranks - 1)  # a step of one rank must take longer than this
    return max(1, math.floor((needed - fixed) / per_image) + 1)


def tried_out(fixed, per_image, all_reduce, ranks):
    """What is right: one batch size after the other."""
    return next(n for n in range(1, 10_000) if speedup((fixed, per_image, all_reduce, ranks), n) > 1 + 1e-9)


def speedup(asked, batch):
    """How many times as fast the model of the lesson says that the ranks of exercise 2 are."""
    fixed, per_image, all_reduce, ranks = asked
    job = Job(StepTime(fixed, per_image), 0, Measured({ranks: (all_reduce, 0)}), overlap=False)
    return predict.scaling.speedup(job, ranks, batch)[0]


@exercise(
    solution=my_batch,
    hint="In the time of one step the ranks do ranks * n images, one rank n. The ranks' step takes fixed + per_image * "
    "n + all_reduce. They are faster where ranks * (fixed + per_image * n) is more than that. Solve for n.",
    mistakes={
        "There the ranks are {ratio:.3f} times as fast as one. Not yet faster: one image more.":
            lambda *asked: max(1, my_batch(*asked) - 1),
        "The step need not take as long as the all-reduce: {ranks} ranks do {ranks} batches in it. There they are "
        "{ratio:.2f} times as fast as one already.":
            lambda fixed, per_image, all_reduce, ranks: my_batch(fixed, per_image, all_reduce, 2),
        "A step also has its fixed part, and the ranks do that side by side, too: it counts for them.":
            lambda fixed, *others: my_batch(0, *others),
        "That is for ranks which share one batch. Here each has a batch of its own.":
            lambda fixed, per_image, all_reduce, ranks: (
                max(1, math.floor(all_reduce / per_image * ranks / (ranks - 1)) + 1)),
    },
)
def break_even(attempt):
    """Your batch size is where the heat map turns: below it the ranks talk longer than they gain. More ranks need less
    of a step each, as long as the all-reduce does not get slower with them, and no rank has to wait for a core."""
    cases = ((1e-3, 6.25e-5, 4e-3, 2), (1e-3, 6.25e-5, 4e-3, 4), (2e-4, 5e-5, 2.01e-2, 8), (1e-3, 6e-5, 5e-4, 2))
    for miss in misses(break_even, attempt, cases, tried_out, exactly):
        if not isinstance(miss.got, int) or miss.got < 1:
            raise Wrong(f"You said {miss.got}. A batch is a whole number of images, 1 or more.")
        fixed, per_image, all_reduce, _ = miss.asked
        ratio = speedup(miss.asked, miss.got)
        miss.tell("Fixed {fixed_ms:g} ms, {image_us:g} µs an image, all-reduce {all_reduce_ms:g} ms, {ranks} ranks: "
                  "you said {got}.", "There the ranks are {ratio:.2f} times as fast as one process. "
                  + ("A smaller batch would do." if ratio > 1 else "They need a larger one."), ratio=ratio,
                  fixed_ms=1e3 * fixed, image_us=1e6 * per_image, all_reduce_ms=1e3 * all_reduce)


# Exercise 3: which link?
def my_bandwidth(step, gradient_bytes, ranks, efficiency):
    allowed = step * (1 / efficiency - 1)  # seconds that may be added to a step
    return 2 * (ranks - 1) / ranks * gradient_bytes / allowed


@exercise(
    solution=my_bandwidth,
    hint="Efficiency is step / (step + all-reduce): how long may the all-reduce take? In a ring each rank sends "
    "2 (ranks - 1) / ranks times the gradients. Bytes by seconds is the bandwidth.",
    mistakes={
        "That is right in bits a second. Return bytes a second.": lambda *asked: 8 * my_bandwidth(*asked),
        "In a ring each rank sends more than its gradients once: reduce-scatter, and then all-gather.":
            lambda step, gradient_bytes, ranks, efficiency: gradient_bytes / (step * (1 / efficiency - 1)),
        "With {efficiency:.0%} the step alone is {efficiency:.0%} of the *whole*. You took the rest as a share of the "
        "step alone.":
            lambda step, gradient_bytes, ranks, efficiency: (
                my_bandwidth(step * efficiency, gradient_bytes, ranks, efficiency)),
        "In each of its 2 (n - 1) steps a ring sends bytes / n, not all bytes.":
            lambda step, gradient_bytes, ranks, efficiency: (
                my_bandwidth(step, ranks * gradient_bytes, ranks, efficiency)),
    },
)
def link(attempt):
    """Your link gives just that efficiency, in the model. The number hardly depends on the ranks, since 2 (n - 1) / n
    goes to 2: what asks for a fast link is many bytes in a short step. Overlap would ask for less, latency for more."""
    for asked in ((0.2, 1e8, 64, 0.9), (0.3, 1e8, 4, 0.5), (0.05, 4e8, 8, 0.8)):
        step, gradient_bytes, ranks, efficiency = asked
        miss = Miss(link, asked, float(attempt(*asked)), my_bandwidth(*asked))
        if not miss.got > 0:
            raise Wrong(f"You said {miss.got:g}. A bandwidth is more than 0.")
        job = Job(StepTime(step, 0), gradient_bytes, Links(Link(0, miss.got)), overlap=False)
        reached = predict.scaling.speedup(job, ranks, 1)[1]
        if not math.isclose(reached, efficiency, rel_tol=1e-6):
            miss.tell("A step of {step:g} s, {megabytes:g} MB, {ranks} ranks, {efficiency:.0%}: you said {said:.4g} "
                      "GB/s.", "The model then gives {reached:.1%}; it would take {needed:.4g} GB/s.", reached=reached,
                      megabytes=gradient_bytes / 1e6, said=miss.got / 1e9, needed=miss.right / 1e9)
