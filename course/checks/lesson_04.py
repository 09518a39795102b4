"""Exercises of notebook 04. The second runs on ranks: course/checks/on_ranks.py says how."""

import math
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist

from course.checks import Wrong, because, exercise
from course.checks.on_ranks import Answers


# Exercise 2: all_reduce from two others
def my_all_reduce(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def from_another_rank(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=1)


def rank_0_alone_reduces(tensor):
    if dist.get_rank() == 0:
        dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def with_all_reduce(tensor):
    dist.all_reduce(tensor)


def measure(function, here):
    """What this rank held before and after."""
    def forbidden(*args, **kwargs):
        raise Wrong("all_reduce is what you are to build: use dist.reduce and dist.broadcast.")

    tensor = torch.tensor([(1 + cell) * 10**here.rank for cell in range(4)])
    before = tensor.tolist()
    with mock.patch.object(dist, "all_reduce", forbidden):
        function(tensor)
    return {"before": before, "after": tensor.tolist()}


answers = Answers({"my_all_reduce": measure})


@exercise(
    solution=my_all_reduce,
    hint="Two lines. First one rank gets the sum, then all ranks get what this rank has. Every rank calls both.",
    mistakes={"only reduce": partial(dist.reduce, dst=0), "only broadcast": partial(dist.broadcast, src=0),
              "broadcast from another rank": from_another_rank, "rank 0 alone reduces": rank_0_alone_reduces,
              "all_reduce itself": with_all_reduce},
)
def reduced(attempt):
    """Reduce, then broadcast, is an all_reduce: every rank has the sum. But all of it goes through rank 0, whose link
    is then the bottleneck; the ring has none."""
    ranks = answers.findings("my_all_reduce", attempt)
    befores, afters = ([rank[when] for rank in ranks] for when in ("before", "after"))
    total = [sum(values) for values in zip(*befores, strict=True)]
    if afters != [total] * len(ranks):
        raise because(
            f"The sum is {total}; rank 0 has {afters[0]}, rank 1 has {afters[1]}.",
            (afters[0] == total, "After a reduce only `dst` has a result."),
            (afters == [befores[0]] * len(ranks), "That is what rank 0 began with: nothing was added up."),
            (afters == [afters[0]] * len(ranks), "All ranks agree. But which rank has the sum after your reduce, and "
             "which one do you broadcast from?"))


# Exercise 3: which chunk a rank sends
def my_chunk(rank, step, ranks):
    return (rank - step) % ranks


@exercise(
    solution=my_chunk,
    hint="What a rank receives and adds in one step, it sends on in the next. So it sends the chunk that its left "
    "neighbour sent one step before: my_chunk(rank, step) = my_chunk(rank - 1, step - 1). In step 0, let rank r send "
    "chunk r.",
    mistakes={"the other direction": lambda rank, step, ranks: (rank + step) % ranks,
              "no modulo": lambda rank, step, ranks: rank - step,
              "always its own": lambda rank, step, ranks: rank,
              "the second phase begins like the first": lambda rank, step, ranks: (rank - step % (ranks - 1)) % ranks},
)
def chunk(attempt):
    """With your schedule each of 2 to 6 ranks has the whole sum in the end, after 2 (n - 1) steps. Subtraction modulo n
    does both phases: after n - 1 steps the chunk that comes next is just the one that is complete."""
    for ranks in (4, 2, 3, 6):
        before = None
        for step in range(2 * (ranks - 1)):
            sent = [attempt(rank, step, ranks) for rank in range(ranks)]
            at = f"With {ranks} ranks, in step {step}"
            for rank, number in enumerate(sent):
                if number not in range(ranks):
                    raise Wrong(f"{at}, rank {rank} would send chunk {number}. There are the chunks 0 to {ranks - 1}: "
                                "the ring goes round, so take the rest of a division (%).")
                if step and sent == before:
                    raise Wrong(f"{at}, every rank sends the chunk that it sent the step before: rank {rank} chunk "
                                f"{number}. Then each chunk moves one place only. What came in has to go on.")
                if step and number != before[rank - 1]:
                    why = "which is complete: this one must go round" if step >= ranks - 1 else (
                        "and no sum grows unless this is sent on")
                    raise Wrong(f"{at}, rank {rank} sends chunk {number}. But it has just received chunk "
                                f"{before[rank - 1]}, {why}.")
            if len(set(sent)) < ranks:
                raise Wrong(f"{at}, the ranks send the chunks {sent}. Each rank must send another one: a chunk that "
                            "nobody sends is never added up.")
            before = sent


# Exercise 4: algbw and busbw
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


# Exercise 1: which collective fits
def my_choices():
    return {"a": "broadcast", "b": "all_reduce", "c": "reduce", "d": "reduce_scatter", "e": "all_gather",
            "f": "all_to_all"}


@exercise(
    solution=my_choices,
    hint="Two questions. Is something added up over the ranks (reduce)? And who needs the result: one rank, all ranks "
    "the same (all_), or each rank another part (scatter)?",
    mistakes={"all_reduce for everything": lambda: dict.fromkeys("abcdef", "all_reduce"),
              "gather for all_gather": lambda: my_choices() | {"e": "gather"},
              "scatter for reduce_scatter": lambda: my_choices() | {"d": "scatter"},
              "scatter for broadcast": lambda: my_choices() | {"a": "scatter"},
              "gather for reduce": lambda: my_choices() | {"c": "gather"}},
)
def choices(attempt):
    """a and b are what DDP does. d and e together are an all_reduce with an update between its two phases: this is how
    optimizers and models are sharded (ZeRO, FSDP). f carries tokens to the ranks of their experts."""
    why = {
        "a": "Rank 0 has what all others need, the same for each.",
        "b": "All ranks need the same sum.",
        "c": "Something is added up, and one rank needs it: the others need not receive anything.",
        "d": "A sum over the ranks is needed, and each rank needs only its own part of it.",
        "e": "Each rank has a part, nothing is added up, and every rank needs all parts.",
        "f": "Each rank has another message for each other rank.",
    }
    answer = attempt()
    if not isinstance(answer, dict):
        raise Wrong(f"You gave {answer!r}. Return the dict of the stub, with a name for each letter.")
    if missing := sorted(why.keys() - answer):
        raise Wrong(f"There is no answer to {', '.join(missing)}.")
    wrong = [letter for letter, right in my_choices().items() if str(answer[letter]).removeprefix("dist.") != right]
    if wrong:
        letter = wrong[0]
        more = f" ({len(wrong)} of 6 are not right yet.)" if len(wrong) > 1 else ""
        raise Wrong(f"{letter}: {answer[letter]} does not fit, or moves more than is needed. {why[letter]}{more}")
