"""Exercises of notebook 13. Right is what torch.chunk, a simulated pipeline and the ZeRO paper's equations say."""

import math

import torch

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses


# Exercise 1: bytes a rank
def states(parameters, ranks, stage):
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    gradients = 2 * parameters / (ranks if stage >= 2 else 1)
    optimizer = 12 * parameters / (ranks if stage >= 1 else 1)
    return weights + gradients + optimizer


@exercise(
    solution=states,
    hint="Stage 1 shares out the optimizer state, 12 bytes a parameter. Stage 2 shares out the gradients, too, and "
    "stage 3 the parameters, too. What is not shared out every rank has whole.",
    mistakes={
        "You shared out all of it. That is stage 3 alone; the stages before leave parameters, or parameters and "
        "gradients, whole on each rank.": lambda parameters, ranks, stage: 16 * parameters / (ranks if stage else 1),
        "4 bytes a parameter are missing: Adam in mixed precision keeps a float32 copy of the parameters beside its "
        "two averages.":
            lambda parameters, ranks, stage: (
                states(parameters, ranks, stage) - 4 * parameters / (ranks if stage >= 1 else 1)),
        "You shared out one part alone. Each stage also shares what the stages before share.":
            lambda parameters, ranks, stage: sum(
                size * parameters / (ranks if stage == needed else 1) for size, needed in ((12, 1), (2, 2), (2, 3))),
        "The order is the other way round: the largest part, the optimizer state, comes first.":
            lambda parameters, ranks, stage: sum(
                size * parameters / (ranks if stage >= needed else 1) for size, needed in ((2, 1), (2, 2), (12, 3))),
    },
)
def zero(attempt):
    """What a stage shares out shrinks with the ranks, and what it leaves whole does not: that part is the floor which
    no number of ranks gets below."""
    cases = (7.5e9, 64, 0), (7.5e9, 64, 1), (7.5e9, 64, 2), (7.5e9, 64, 3), (1e9, 3, 1)
    for miss in misses(zero, attempt, cases):
        miss.tell("With {parameters:g} parameters on {ranks} ranks, stage {stage}, you gave {said:.2f} GB; it is "
                  "{needed:.2f} GB.", said=miss.got / 1e9, needed=miss.right / 1e9)


# Exercise 2: does it fit
def fewest(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    shared = 16 * parameters - whole
    if whole + shared <= memory:
        return 1
    return math.ceil(shared / (memory - whole)) if shared and whole < memory else None


@exercise(
    solution=fewest,
    hint="Split the 16 bytes a parameter into what each rank has whole (16, 4, 2 or 0 of them at stage 0 to 3) and "
    "what is shared out. The shared part must fit into the memory that the whole part leaves: shared / N <= "
    "memory - whole.",
    mistakes={
        "all bytes over the memory": lambda parameters, memory, stage: math.ceil(16 * parameters / memory),
        "rounded down": lambda *asked: fewest(*asked) and max(1, fewest(*asked) - 1),
        "a number although it never fits": lambda *asked: fewest(*asked) or 1_000_000,
        "at least two": lambda *asked: fewest(*asked) and max(2, fewest(*asked)),
    },
)
def fits(attempt):
    """A model of 7 billion parameters needs 112 GB: no number of 80 GB devices is enough for DDP, two are for the
    states of each ZeRO stage (activations not counted). And at stage 1 and 2 there is a model that never fits."""
    cases = ((7e9, 80e9, 0), (7e9, 80e9, 1), (7e9, 80e9, 3), (1e9, 80e9, 0), (18e9, 80e9, 1), (20e9, 80e9, 1),
             (30e9, 80e9, 1), (30e9, 80e9, 2), (70e9, 80e9, 3))
    for miss in misses(fits, attempt, cases, read=exactly):
        (parameters, memory, stage), got, right = miss.asked, miss.got, miss.right
        call = (f"{parameters / 1e9:g} billion parameters, devices of {memory / 1e9:g} GB, stage {stage}: you gave "
                f"{got}; it is {right}.")
        if right is None:
            raise Wrong(f"{call} What every rank has whole does not fit by itself, or nothing is shared out. More "
                        "devices do not help: return None.")
        if got is None:
            raise Wrong(f"{call} It does fit: {right} device(s) have room for it.")
        if got == math.ceil(16 * parameters / memory):
            raise Wrong(f"{call} You divided all bytes by the memory of a device. That is right for stage 3 only: at "
                        "the other stages each device also has some of it whole.")
        if right == 1:
            raise Wrong(f"{call} All 16 bytes a parameter fit into one device. It needs no other.")
        if got < right:
            raise Wrong(f"{call} That many do not suffice: {got} device(s) would hold more than they can. Round up.")
        raise Wrong(call)


# Exercise 3: the bubble
def bubble(stages, micro_batches):
    return (stages - 1) / (micro_batches + stages - 1)


def idle_share(stages, micro_batches):
    """By going through the slots: forward, each stage starts a micro-batch as soon as the stage before has done it."""
    free = [0] * stages
    for _ in range(micro_batches):
        ready = 0
        for stage in range(stages):
            ready = free[stage] = max(ready, free[stage]) + 1
    return 1 - micro_batches / free[-1]


@exercise(
    solution=bubble,
    hint="Count slots. The last stage cannot start before the stages - 1 others have each done the first micro-batch. "
    "Then it is busy for micro_batches slots. Which share of all these slots did it wait?",
    mistakes={
        "That is idle time against busy time. The share is of all slots, idle and busy.":
            lambda stages, micro_batches: (stages - 1) / micro_batches,
        "A stage waits for the other stages, not for itself: stages - 1 slots.":
            lambda stages, micro_batches: stages / (micro_batches + stages - 1),
        "That is one micro-batch, or one large batch: then only one stage works at a time. With several, stage 0 goes "
        "on with the next while stage 1 has the first.": lambda stages, micro_batches: 1 - 1 / stages,
    },
)
def idle(attempt):
    """The bubble is (p - 1) / (m + p - 1): more micro-batches make it small, more stages make it large. Backward has
    the same, mirrored. 1F1B has it too: it saves memory, not time."""
    for miss in misses(idle, attempt, [(2, 4), (4, 4), (4, 32), (8, 1), (1, 4)], idle_share):
        miss.tell("With {stages} stages and {micro_batches} micro-batches you gave {got:.3f}; the share is "
                  "{right:.3f}.")


# Exercise 4: whose row is it
def owned(rows, rank, ranks):
    chunk = math.ceil(rows / ranks)
    return list(range(rows))[rank * chunk:(rank + 1) * chunk]


def in_chunks(rows, rank, ranks):
    """What torch.chunk gives to the rank; there may be fewer chunks than ranks."""
    found = torch.arange(rows).chunk(ranks)
    return found[rank] if rank < len(found) else []


@exercise(
    solution=owned,
    hint="A chunk has ceil(rows / ranks) rows, and rank 0 has the first chunk. What is left for the last ranks may be "
    "a shorter chunk, or nothing.",
    mistakes={
        "DistributedSampler deals rows like cards. FSDP cuts blocks: they can be gathered into one piece of memory "
        "without sorting.": lambda rows, rank, ranks: range(rank, rows, ranks),
        "Yours are as equal as can be. FSDP rounds up for all, so that the last ranks may have less, or nothing.":
            lambda rows, rank, ranks: torch.arange(rows).tensor_split(ranks)[rank],
        "You rounded down and left the rest to the last rank, which would have the most. FSDP rounds up.":
            lambda rows, rank, ranks: range(
                rank * (rows // ranks), rows if rank == ranks - 1 else (rank + 1) * (rows // ranks)),
    },
)
def rows(attempt):
    """These are FSDP2's shards: blocks of rows, all of one length but the last, and an empty shard where the rows have
    run out. A bias of 4 values on 3 ranks is 2, 2 and none."""
    cases = [(count, rank, ranks) for count, ranks in [(8, 2), (97, 4), (7, 3), (4, 3), (10, 4), (2, 4)]
             for rank in range(ranks)]
    for miss in misses(rows, attempt, cases, in_chunks, lambda found: [int(row) for row in found]):
        miss.tell("{rows} rows on {ranks} ranks: rank {rank} has {theirs}, and you gave {yours}.",
                  theirs=told(miss.right), yours=told(miss.got))


def told(block):
    return f"{block[0]} to {block[-1]} ({len(block)})" if len(block) > 6 else str(block)
