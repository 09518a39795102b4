"""Exercises of notebook 13. Right is what torch.chunk, a simulated pipeline and the ZeRO paper's equations say."""

import math

import torch

from scripts.checks import Wrong, exercise

# ------------------------------------------------------------------------------------------------ 1: bytes a rank


def states(parameters, ranks, stage):
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    gradients = 2 * parameters / (ranks if stage >= 2 else 1)
    optimizer = 12 * parameters / (ranks if stage >= 1 else 1)
    return weights + gradients + optimizer


def all_of_it_shared(parameters, ranks, stage):
    return 16 * parameters / (ranks if stage else 1)


def copy_forgotten(parameters, ranks, stage):
    return states(parameters, ranks, stage) - 4 * parameters / (ranks if stage >= 1 else 1)


def one_stage_at_a_time(parameters, ranks, stage):
    sizes = [2, 2, 12]
    shared = {3: 0, 2: 1, 1: 2}.get(stage)
    return sum(size * parameters / (ranks if i == shared else 1) for i, size in enumerate(sizes))


def from_the_parameters_on(parameters, ranks, stage):
    return sum(size * parameters / (ranks if stage >= needed else 1) for size, needed in ((2, 1), (2, 2), (12, 3)))


@exercise(
    solution=states,
    hint="Stage 1 shares out the optimizer state, 12 bytes a parameter. Stage 2 shares out the gradients, too, and "
    "stage 3 the parameters, too. What is not shared out every rank has whole.",
    mistakes={"everything shared from stage 1 on": all_of_it_shared, "the float32 copy forgotten": copy_forgotten,
              "one part at each stage": one_stage_at_a_time, "in the opposite order": from_the_parameters_on},
)
def zero(attempt):
    """What a stage shares out shrinks with the ranks, and what it leaves whole does not: that part is the floor which
    no number of ranks gets below."""
    for parameters, ranks, stage in [(7.5e9, 64, 0), (7.5e9, 64, 1), (7.5e9, 64, 2), (7.5e9, 64, 3), (1e9, 3, 1)]:
        got, right = float(attempt(parameters, ranks, stage)), states(parameters, ranks, stage)
        if math.isclose(got, right, rel_tol=1e-6):
            continue
        call = (f"With {parameters:g} parameters on {ranks} ranks, stage {stage}, you gave {got / 1e9:.2f} GB; it is "
                f"{right / 1e9:.2f} GB.")
        messages = {
            all_of_it_shared: "You shared out all of it. That is stage 3 alone; the stages before leave parameters, or "
            "parameters and gradients, whole on each rank.",
            copy_forgotten: "4 bytes a parameter are missing: Adam in mixed precision keeps a float32 copy of the "
            "parameters beside its two averages.",
            one_stage_at_a_time: "You shared out one part alone. Each stage also shares what the stages before share.",
            from_the_parameters_on: "The order is the other way round: the largest part, the optimizer state, comes "
            "first.",
        }
        for mistake, message in messages.items():
            if math.isclose(got, mistake(parameters, ranks, stage), rel_tol=1e-6):
                raise Wrong(f"{call} {message}")
        raise Wrong(call)


# ------------------------------------------------------------------------------------------------ 2: does it fit


def fewest(parameters, memory, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    shared = 16 * parameters - whole
    if whole + shared <= memory:
        return 1
    return math.ceil(shared / (memory - whole)) if shared and whole < memory else None


def all_over_memory(parameters, memory, stage):
    return math.ceil(16 * parameters / memory)


def rounded_down(parameters, memory, stage):
    right = fewest(parameters, memory, stage)
    return right and max(1, right - 1)


def always_fits_somehow(parameters, memory, stage):
    return fewest(parameters, memory, stage) or 1_000_000


def never_alone(parameters, memory, stage):
    right = fewest(parameters, memory, stage)
    return right and max(2, right)


@exercise(
    solution=fewest,
    hint="Split the 16 bytes a parameter into what each rank has whole (16, 4, 2 or 0 of them at stage 0 to 3) and "
    "what is shared out. The shared part must fit into the memory that the whole part leaves: shared / N <= "
    "memory - whole.",
    mistakes={"all bytes over the memory": all_over_memory, "rounded down": rounded_down,
              "a number although it never fits": always_fits_somehow, "at least two": never_alone},
)
def fits(attempt):
    """A model of 7 billion parameters needs 112 GB: no number of 80 GB devices is enough for DDP, two are for the
    states of each ZeRO stage (activations not counted). And at stage 1 and 2 there is a model that never fits."""
    for parameters, memory, stage in [(7e9, 80e9, 0), (7e9, 80e9, 1), (7e9, 80e9, 3), (1e9, 80e9, 0), (18e9, 80e9, 1),
                                      (20e9, 80e9, 1), (30e9, 80e9, 1), (30e9, 80e9, 2), (70e9, 80e9, 3)]:
        got, right = attempt(parameters, memory, stage), fewest(parameters, memory, stage)
        if got == right:
            continue
        call = (f"{parameters / 1e9:g} billion parameters, devices of {memory / 1e9:g} GB, stage {stage}: you gave "
                f"{got}; it is {right}.")
        if right is None:
            raise Wrong(f"{call} What every rank has whole does not fit by itself, or nothing is shared out. More "
                        "devices do not help: return None.")
        if got is None:
            raise Wrong(f"{call} It does fit: {right} device(s) have room for it.")
        if got == all_over_memory(parameters, memory, stage):
            raise Wrong(f"{call} You divided all bytes by the memory of a device. That is right for stage 3 only: at "
                        "the other stages each device also has some of it whole.")
        if right == 1:
            raise Wrong(f"{call} All 16 bytes a parameter fit into one device. It needs no other.")
        if got < right:
            raise Wrong(f"{call} That many do not suffice: {got} device(s) would hold more than they can. Round up.")
        raise Wrong(call)


# ------------------------------------------------------------------------------------------------ 3: the bubble


def bubble(stages, micro_batches):
    return (stages - 1) / (micro_batches + stages - 1)


def against_the_work(stages, micro_batches):
    return (stages - 1) / micro_batches


def stages_over_slots(stages, micro_batches):
    return stages / (micro_batches + stages - 1)


def nothing_overlaps(stages, micro_batches):
    return 1 - 1 / stages


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
    mistakes={"against the busy time": against_the_work, "stages instead of stages - 1": stages_over_slots,
              "as if nothing overlapped": nothing_overlaps},
)
def idle(attempt):
    """The bubble is (p - 1) / (m + p - 1): more micro-batches make it small, more stages make it large. Backward has
    the same, mirrored. 1F1B has it too: it saves memory, not time."""
    for stages, micro_batches in [(2, 4), (4, 4), (4, 32), (8, 1), (1, 4)]:
        got, right = float(attempt(stages, micro_batches)), idle_share(stages, micro_batches)
        if math.isclose(got, right, abs_tol=1e-6):
            continue
        call = f"With {stages} stages and {micro_batches} micro-batches you gave {got:.3f}; the share is {right:.3f}."
        if math.isclose(got, against_the_work(stages, micro_batches), abs_tol=1e-6):
            raise Wrong(f"{call} That is idle time against busy time. The share is of all slots, idle and busy.")
        if math.isclose(got, stages_over_slots(stages, micro_batches), abs_tol=1e-6):
            raise Wrong(f"{call} A stage waits for the other stages, not for itself: stages - 1 slots.")
        if math.isclose(got, nothing_overlaps(stages, micro_batches), abs_tol=1e-6):
            raise Wrong(f"{call} That is one micro-batch, or one large batch: then only one stage works at a time. "
                        "With several, stage 0 goes on with the next while stage 1 has the first.")
        raise Wrong(call)


# ------------------------------------------------------------------------------------------------ 4: whose row is it


def owned(rows, rank, ranks):
    chunk = math.ceil(rows / ranks)
    return list(range(rows))[rank * chunk:(rank + 1) * chunk]


def strided(rows, rank, ranks):
    return list(range(rank, rows, ranks))


def balanced(rows, rank, ranks):
    return list(torch.arange(rows).tensor_split(ranks)[rank].tolist())


def floored(rows, rank, ranks):
    chunk = rows // ranks
    return list(range(rank * chunk, rows if rank == ranks - 1 else (rank + 1) * chunk))


def chunks(rows, ranks):
    """What torch.chunk gives to each rank; there may be fewer chunks than ranks."""
    found = [chunk.tolist() for chunk in torch.arange(rows).chunk(ranks)]
    return found + [[]] * (ranks - len(found))


@exercise(
    solution=owned,
    hint="A chunk has ceil(rows / ranks) rows, and rank 0 has the first chunk. What is left for the last ranks may be "
    "a shorter chunk, or nothing.",
    mistakes={"strides": strided, "as equal as can be": balanced, "rounded down, the rest to the last": floored},
)
def rows(attempt):
    """These are FSDP2's shards: blocks of rows, all of one length but the last, and an empty shard where the rows have
    run out. A bias of 4 values on 3 ranks is 2, 2 and none."""
    for count, ranks in [(8, 2), (97, 4), (7, 3), (4, 3), (10, 4), (2, 4)]:
        for rank, right in enumerate(chunks(count, ranks)):
            got = [int(row) for row in attempt(count, rank, ranks)]
            if got == right:
                continue
            call = f"{count} rows on {ranks} ranks: rank {rank} has {told(right)}, and you gave {told(got)}."
            if got == strided(count, rank, ranks):
                raise Wrong(f"{call} DistributedSampler deals rows like cards. FSDP cuts blocks: they can be gathered "
                            "into one piece of memory without sorting.")
            if got == balanced(count, rank, ranks):
                raise Wrong(f"{call} Yours are as equal as can be. FSDP rounds up for all, so that the last ranks may "
                            "have less, or nothing.")
            if got == floored(count, rank, ranks):
                raise Wrong(f"{call} You rounded down and left the rest to the last rank, which would have the most. "
                            "FSDP rounds up.")
            raise Wrong(call)


def told(block):
    return f"{block[0]} to {block[-1]} ({len(block)})" if len(block) > 6 else str(block)
