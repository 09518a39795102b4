"""Exercises of notebook 12. The first is about the five runs of scripts/broken/detective.py, and owns their letters."""

import random
from itertools import zip_longest

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses

# Exercise 1: five runs
# What the log of a run with this mistake shows, and where to look for it.
SIGNS = {
    "set_epoch": ("the first images of epoch 1 are those of epoch 0", "the first images of both epochs"),
    "rank_0_loss": ("the loss of the epoch is the very loss of rank 0, and not between those of the ranks",
                    "the three losses of an epoch"),
    "batch_per_process": ("an epoch has half as many updates as the others", "the number of updates"),
    "ddp_module": ("the weight norms of the ranks differ", "the weight norms"),
    "padded_evaluation": ("more test images are counted than there are", "the test"),
}
TRUTH = dict(zip("ABCDE", random.Random(12).sample(list(SIGNS), len(SIGNS)), strict=True))  # which run has which


def swapped(one, other):
    """The truth with two letters changed for each other: a typical wrong answer."""
    where = {fault: letter for letter, fault in TRUTH.items()}
    return TRUTH | {where[one]: other, where[other]: one}


@exercise(
    solution=TRUTH,
    hint="Compare the runs line by line. Which one has another number of updates? In which one do the ranks' weights "
    "differ? What do the two epochs of a run have in common? How many test images are there?",
    mistakes={"no drift seen": swapped("ddp_module", "set_epoch"),
              "the loss and the test": swapped("rank_0_loss", "padded_evaluation"),
              "all the same": dict.fromkeys("ABCDE", "set_epoch")},
)
def five_runs(attempt):
    """All five are found: the order that repeats, the loss of one rank, the batch that has doubled, the models that
    drift apart, the image that counts twice. None of the runs gave a warning; the lines that show it were printed on
    purpose. Print them in your own runs, too."""
    if callable(attempt):
        attempt = attempt()
    if not isinstance(attempt, dict) or set(attempt) != set(TRUTH):
        raise Wrong('Answer with a dict that has the letters A to E, such as {"A": "set_epoch", ...}.')
    if unknown := set(attempt.values()) - set(SIGNS):
        raise Wrong(f"There is no mistake {unknown.pop()!r}. The five are: {', '.join(SIGNS)}.")
    for letter, fault in attempt.items():
        if fault != TRUTH[letter]:
            raise Wrong(f"Run {letter} is not {fault}: with that {SIGNS[fault][0]}, and that is not so here. Compare "
                        f"{SIGNS[TRUTH[letter]][1]} with those of the other runs. "
                        f"({sum(attempt[one] == TRUTH[one] for one in TRUTH)} of 5 are right.)")


# Exercise 2: who hangs
def first_difference(calls):
    for number, one_each in enumerate(zip_longest(*calls)):
        if len(set(one_each)) > 1:
            return number
    return None


@exercise(
    solution=first_difference,
    hint="Go through the calls side by side: itertools.zip_longest(*calls) gives one of each rank, and None for a rank "
    "that has no more.",
    mistakes={
        "Rank 0 is done and calls nothing, but another rank goes on, and waits for it.":
            lambda calls: first_difference([one[:len(calls[0])] for one in calls]),
        "A rank that is done calls nothing, and the others wait for it.":
            lambda calls: first_difference([one[:min(map(len, calls))] for one in calls]),
        "They call the same things, but not in the same order. Each waits for the other.":
            lambda calls: None if len(set(map(frozenset, calls))) == 1 else first_difference(calls),
        "Compare all ranks, not only ranks 0 and 1.": lambda calls: first_difference(calls[:2]),
        "Compare all ranks, not only the first and the last.": lambda calls: first_difference([calls[0], calls[-1]]),
        "Count from 0.": lambda calls: None if (found := first_difference(calls)) is None else found + 1,
    },
)
def hangs_at(attempt):
    """The first call that is not the same on all ranks is where a job hangs, whatever comes later. This is how
    TORCH_DISTRIBUTED_DEBUG=DETAIL finds it: before each collective the ranks compare what they are about to call."""
    cases = [[["all_reduce", "barrier"], ["all_reduce", "barrier"]],
             [["all_reduce", "barrier"], ["barrier", "all_reduce"]],
             [["broadcast", "all_reduce", "all_reduce"], ["broadcast", "all_reduce"]],
             [["broadcast"], ["broadcast", "all_reduce"]],
             [["all_reduce", "barrier"], ["all_reduce", "barrier"], ["all_reduce", "broadcast"]],
             [["all_reduce", "barrier"], ["all_reduce", "broadcast"], ["all_reduce", "barrier"]]]
    for miss in misses(hangs_at, attempt, [(calls,) for calls in cases], read=exactly):
        (calls,) = miss.asked
        miss.tell("The ranks call {listed}. You gave {got}; it is {right}.",
                  listed=" | ".join(", ".join(one) for one in calls))


# Exercise 3: undo the padding
def exact(hits, images):
    in_order = [hit for one_each in zip(*hits, strict=True) for hit in one_each]
    return sum(in_order[:images]) / images


@exercise(
    solution=exact,
    hint="DistributedSampler deals images out like cards: rank 0 gets image 0, rank 1 image 1, and so on. Put them "
    "back in order; the copies are at the end.",
    mistakes={
        "You counted {counted} images: the copies must go.":
            lambda hits, images: sum(map(sum, hits)) / sum(map(len, hits)),
        "You divided by the right number, but the hits of the copies are still in the sum.":
            lambda hits, images: sum(map(sum, hits)) / images,
        "You joined the shards one behind the other. The sampler deals the images out in turn, so the copy is not at "
        "the end of the last shard alone.": lambda hits, images: sum(sum(hits, [])[:images]) / images,
    },
)
def unpadded(attempt):
    """The copies stand at the end of the order that the shards were dealt from, so a gathered result can be cut to the
    true length. Frameworks do it this way, for instance Accelerate's gather_for_metrics."""
    cases = [([[1, 1, 0, 0, 0], [1, 1, 0, 0, 1]], 9), ([[1, 0, 1], [0, 1, 1], [1, 0, 1]], 7),
             ([[1, 0], [0, 0]], 4)]
    for miss in misses(unpadded, attempt, cases):
        miss.tell("With the hits {hits} of {images} images you gave {got:.4f}; it is {right:.4f}.",
                  counted=sum(map(len, miss.asked[0])))
