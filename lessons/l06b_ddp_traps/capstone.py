"""The exercise of lesson 06b that is a program: minimal.py, made ready for torchrun.

The check runs the program on 2, 3 and 1 ranks; the 3 ranks are told that they have GPUs, on two machines. On each rank
capstone_rank.py notes what the program does. Here these facts become cases, one for each kind of mistake.
"""

import ast
import re
import runpy
from functools import partial
from pathlib import Path
from statistics import mean

from course.exercise import Case, Wrong, exercise, same
from course.lesson import ROOT, some
from course.on_ranks import Measurement
from lessons.l06b_ddp_traps.capstone_rank import TEST, TRAIN, watch

PROGRAMS = ROOT / "examples"
BATCH, LR = 96, 0.01  # minimal.py's: images of an update, learning rate
NAMES = [f"{layer}.{name}" for layer in (0, 3, 7) for name in ("bias", "weight")]  # of its state_dict
LIMIT = 20  # seconds that a rank may run without meeting another
GPUS = 2  # of each pretended machine
RUNS = (2, 0), (3, GPUS), (1, 0)  # ranks, GPUs of each machine
NEAR = 0.05  # relative difference, of weights and gradients, that unequal last batches may cause
FIGURES = re.compile(r"Loss:\s*(\d+\.\d+|nan|inf).*?acc:\s*(\d+\.\d+)", re.IGNORECASE)


@exercise(
    solution=PROGRAMS / "minimal_ddp.py",
    hint="Go through minimal.py from the top. What must each rank do with values of its own (GPU, random numbers, "
    "images)? What must all ranks do together (meet, wrap the model, add up)? What must one rank do alone (print, "
    "save)? Begin with init_process_group, DistributedDataParallel and DistributedSampler, and call the check: it says "
    "what comes next.",
    mistakes={},  # whole programs: lessons/l06b_ddp_traps/test_capstone.py has them
    limit=300,  # each of the RUNS bounds itself (course/on_ranks.py); a busy machine takes minutes to start so many
)
def program(attempt):
    """On 1, 2 and 3 ranks your program trains the model that minimal.py trains, from the same images an update. What it
    prints is true of all images, one rank saves what minimal.py can load, and each rank would use its own GPU."""
    path = Path(attempt).resolve()
    if untouched(path):
        raise NotImplementedError
    for number, gpus in RUNS:
        where = f"On {some(number, 'rank')}"
        where += f", on two machines with {gpus} pretended GPUs each" if gpus else ""
        for case in cases(run(path, number, gpus), gpus, where):
            yield case
            if not same(case.got, case.right, case.rel_tol):
                return  # later cases and runs would only show its consequences


def untouched(path):
    """Is there no file yet, or only minimal.py with other comments?"""
    def statements(file):
        return [ast.dump(node) for node in ast.parse(file.read_text(encoding="utf-8")).body
                if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]  # the docstring

    try:
        return not path.exists() or statements(path) == statements(PROGRAMS / "minimal.py")
    except SyntaxError as error:
        raise Wrong(f"Line {error.lineno} of your file is not Python: {error.msg}.") from None


def run(path, ranks, gpus=0):
    """The facts that capstone_rank.py noted on each rank."""
    watching = Measurement(partial(watch, gpus=gpus, limit=LIMIT), "program", group=False, preload=(watch.__module__,))
    [outcome] = watching.run([(partial(runpy.run_path, str(path), run_name="__main__"), ranks)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def meeting_cases(ranks, where):
    """Did all ranks come to the same end?"""
    places = [f"rank {rank} {state}" + (f" (line {line})" if line else "")
              for rank, (state, line) in enumerate(ranks[0]["places"])]
    raised = [place for place in places if " raised " in place]
    cause = min(raised, key=lambda place: bool(re.search("timed out|closed by peer", place, re.I)), default="")
    yield Case(cause, "", f"{where}, {cause}.")
    yield Case(any("met no other" in place for place in places), False, f"{where}, {'; '.join(places)}. The program "
               "computes too long there, or hangs by itself.")
    together = len({state for state, _ in ranks[0]["places"]}) == 1
    yield Case(together, True, f"{where}, the ranks do not meet: {'; '.join(places)}. They would wait forever. All "
               "ranks must call the same collectives, in the same order, with tensors of one size. A collective below "
               "`if rank == 0:` is called by rank 0 alone. A step of training is a collective, too: all ranks need "
               "equally many batches in an epoch.")


def cases(ranks, gpus, where):
    """One run's cases. Causes come before their consequences: a rank that trains alone has wrong figures, too."""
    yield from meeting_cases(ranks, where)
    yield Case(all(rank["met"] for rank in ranks), True, f"{where}, the processes never met. Each trains alone. "
               "dist.init_process_group() makes them ranks of one group.")
    yield Case(all(rank["batches"] for rank in ranks), True, f"{where}, a rank trained on no image of "
               "MNIST. Every rank must train on these images, unchanged, so that the check recognises them.")
    yield from wrapping_cases(ranks, where)
    epochs = range(1 + max(batch["epoch"] for rank in ranks for batch in rank["batches"]))
    batches = [[[batch for batch in rank["batches"] if batch["epoch"] == epoch] for rank in ranks] for epoch in epochs]
    yield from shard_cases([[sum((batch["images"] for batch in shard), []) for shard in shards] for shards in batches],
                           where)
    yield from update_cases(ranks, where)
    yield Case(len({rank["random"] for rank in ranks}), len(ranks), f"{where}, ranks begin to train with the same "
               "random numbers. Dropout would drop the same places on each of them. Give each rank a seed of its own, "
               "such as its rank. The first weights may differ then: DDP sends rank 0's to all.")
    yield from figure_cases(ranks, batches, where)
    yield from file_cases(ranks, where)
    if gpus:
        yield gpu_case(ranks, gpus, where)


def wrapping_cases(ranks, where):
    differ = max(rank["apart"] for rank in ranks) > NEAR
    through = all(batch["ddp"] for rank in ranks for batch in rank["batches"])  # or gradients are averaged by hand
    end = f"{where}, the ranks end with different weights"
    yield Case(differ and not any(rank["wrapped"] for rank in ranks), False, f"{end}: nothing averages their "
               "gradients. Wrap the model: DistributedDataParallel(model).")
    yield Case(differ and not through, False, f"{end}. The model is wrapped, but training calls the unwrapped one. "
               "Backward averages the gradients only after a forward of the wrapper.")
    yield Case(differ, False, f"{end}, although all batches go through DDP. Does one rank alone change weights or "
               "gradients, or does training run under no_sync()?")


def shard_cases(taken, where):
    """taken: for each epoch, for each rank the images that it trained on."""
    count = len(taken[0])
    yield Case(len(taken) > 1, True, f"{where}, training has one epoch. Leave EPOCHS as it is.")
    yield Case(count > 1 and min(map(len, taken[0])) >= TRAIN, False, f"{where}, each rank took all {TRAIN} images in "
               "an epoch. Give each rank a shard of its own: pass a DistributedSampler to the DataLoader.")
    for epoch, shards in enumerate(taken):
        total, different = sum(map(len, shards)), len(set().union(*shards))
        yield Case(total - count < TRAIN < different + count, True, f"{where}, in epoch {epoch} the ranks took {total} "
                   f"images, {different} different ones of {TRAIN}. Only as many may be missing or taken twice as make "
                   "the shards equal. All ranks must shuffle alike, and then take different parts of this order.")
    orders = len({str(shards) for shards in taken})
    yield Case(orders, len(taken), f"{where}, {len(taken)} epochs had {some(orders, 'order')} of the images. Shuffle, "
               "and tell the DistributedSampler the epoch: call sampler.set_epoch(epoch) at the top of each.")


def update_cases(ranks, where):
    images = sum(len(batch["images"]) for rank in ranks for batch in rank["batches"] if batch["update"] == 0)
    rate = max(rank["rate"] for rank in ranks)
    yield Case([abs(images - BATCH) < len(ranks), rate], [True, LR], f"{where}, an update takes {images} images at "
               f"learning rate {rate:g}; minimal.py's takes {BATCH} at {LR:g}. A DataLoader's batch size is that of "
               "one rank: divide BATCH by the number of ranks, and leave the learning rate. DDP takes the mean over "
               "the ranks, so the update stays the same.")
    times, off = ranks[0]["times"], max(rank["off"] for rank in ranks)
    yield Case(off < NEAR, True, f"{where}, the gradient is not that of one process with the same images. Keep the "
               "loss, and the order of zero_grad, backward and step.")
    yield Case(times, 1.0, f"{where}, the gradient is {times:.3g} times that of one process with the same images. DDP "
               "has already divided by the number of ranks: neither divide again, nor multiply.", rel_tol=NEAR)


def figure_cases(ranks, batches, where):
    printed = {rank: figures for rank, facts in enumerate(ranks) if (figures := FIGURES.findall(facts["printed"]))}
    lines = max(map(len, printed.values()), default=0)
    yield Case([len(printed), lines], [1, len(batches)], f"{where}, {some(len(printed), 'rank')} printed "
               f"{some(lines, 'line')} with `Loss:` and `val acc:`, in {len(batches)} epochs. One rank prints one line "
               "after each epoch, for all ranks.")
    [printing] = printed
    losses, accuracies = zip(*printed[printing], strict=True)
    parts = [[[(batch["loss"], len(batch["images"])) for batch in shard] for shard in shards] for shards in batches]
    yield figure_case("loss", losses, [ratio(sum(shards, [])) for shards in parts], parts, printing, where)

    tests = [[[test["hits"] for test in rank["tests"] if test["epoch"] == epoch] for rank in ranks]
             for epoch in range(len(batches))]
    tested = [dict(tuple(hit) for shard in shards for hits in shard for hit in hits) for shards in tests]
    fewest = min(map(len, tested))
    yield Case(fewest, TEST, f"{where}, the ranks tested {fewest} of the {TEST} test images. A test needs no equal "
               "shards, so leave none out: range(rank, images, ranks) has each image once.")
    right = [sum(hits.values()) / TEST for hits in tested]
    parts = [[[(sum(hit for _, hit in hits), len(hits)) for hits in shard] for shard in shards] for shards in tests]
    hits, images = map(sum, zip(*sum(parts[0], []), strict=True))
    counted = any(near(accuracies[0], hits / divisor) for divisor in (TEST, images))
    yield Case(counted and images > TEST and not near(accuracies[0], right[0]), False, f"{where}, the accuracy counts "
               f"{images} test images, although there are {TEST}. Count each once: range(rank, images, ranks). A "
               "DistributedSampler repeats images to make the shards equal, and a test needs no equal shards.")
    yield figure_case("accuracy", accuracies, right, parts, printing, where)


def figure_case(name, printed, right, parts, printing, where):
    """parts: for each epoch, for each rank, (sum, images) of its batches."""
    wrong = [epoch for epoch, (text, value) in enumerate(zip(printed, right, strict=True)) if not near(text, value)]
    epoch = wrong[0] if wrong else 0
    shards = [shard for shard in parts[epoch] if shard]
    own, every = parts[epoch][printing], sum(shards, [])
    mistakes = {
        f"This is the figure of rank {printing}'s images alone. Add sums and counts up over all ranks, then divide.":
            [ratio(own), sum(value for value, _ in own) / sum(images for _, images in every)],
        "This is a mean of means: a small batch or shard weighs as much as a large one. Add sums and counts up over "
        "all ranks, then divide.":
            [mean(ratio([part]) for part in every), mean(ratio([part]) for part in own), mean(map(ratio, shards))],
    }
    reason = next((reason for reason, values in mistakes.items()
                   if any(near(printed[epoch], value) for value in values)), "")
    return Case(wrong, [], f"{where}, the {name} printed for epoch {epoch} is {printed[epoch]}; over the images of all "
                f"ranks, each counted once, it is {right[epoch]:.4f}. {reason}".strip())


def ratio(parts):
    return sum(value for value, _ in parts) / max(1, sum(images for _, images in parts))


def near(text, value):
    """Is this the value, to the digits that were printed?"""
    return abs(float(text) - value) <= 0.52 * 10.0 ** -len(text.partition(".")[2]) + 3e-6 * abs(value)


def file_cases(ranks, where):
    saving = [rank for rank in ranks if rank["saves"]]
    yield Case(len(saving), 1, f"{where}, {some(len(saving), 'rank')} saved the model with torch.save. Let rank 0 "
               "alone save it: all have the same weights, and several writers of one file can damage it.")
    names = saving[0]["saves"][-1]
    yield Case(any(name.startswith("module.") for name in names), False, f"{where}, the names in the file begin with "
               "`module.`: it is the wrapper's state_dict, which minimal.py's model cannot load. Save that of the "
               "model inside: ddp_model.module.state_dict().")
    yield Case(sorted(names), NAMES, f"{where}, minimal.py's model cannot load the file. Save the state_dict of the "
               "model, and nothing else.")


def gpu_case(ranks, gpus, where):
    used = [sorted(set(rank["gpus"])) for rank in ranks]
    list_of_used = "; ".join(f"rank {rank} uses {'GPU ' + ' and '.join(map(str, numbers)) if numbers else 'no GPU'}"
                             for rank, numbers in enumerate(used))
    return Case(used, [[rank % gpus] for rank in range(len(ranks))], f"{where}, {list_of_used}. Each rank takes a GPU "
                "of its own on its machine, the one that LOCAL_RANK names: set it before anything is sent to a GPU.")
