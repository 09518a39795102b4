"""The exercises of lesson 07 that are whole programs: three traps to repair, and minimal.py made ready for torchrun.

Both are judged by course/one_process.py: on 2 and 3 ranks the program trains what it trains in one process.
"""

import ast
import json
import re
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from course import failures
from course.exercise import Case, Wrong, exercise, same
from course.lesson import ROOT, some
from course.one_process import Answer, compare
from course.processes import without_folders
from lessons.l07_traps import plant
from lessons.l07_traps.watched import key_of

RANKS = 2, 3
SAME_CALLS = ("All ranks must call the same collectives, in the same order, with tensors of one size. A collective "
              "below `if rank == 0:` is called by rank 0 alone. A step of training is a collective, too: all ranks "
              "need equally many batches in an epoch.")


def end_case(answer: Answer, path: Path) -> Case:
    """Did the program come to its end? At its end train.py compares its ranks, and has status 1 where they differ."""
    number = some(answer.ranks, "rank")
    if not answer.failure and (answer.status == 0 or "The ranks are not one model." in answer.printed):
        return Case(True, True, "")
    if answer.status is None:
        return Case(False, True, f"On {number} it had to be ended: it computes for ever, or ranks wait for each other. "
                                 f"{SAME_CALLS}")
    why = failures.explain(answer.printed)
    cause = (why[1] if why else answer.failure or answer.printed.splitlines()[-1]).rstrip(".")
    file = re.escape(without_folders(str(path)))
    lines = re.findall(rf'(?:\[rank(\d+)\]: )?\s*File "{file}", line (\d+)', answer.printed)
    where = " and ".join(dict.fromkeys(f"rank {rank or 0} in line {line}" for rank, line in lines[-answer.ranks:]))
    waited = re.search("imed out|closed by peer|exitcode: -6|did not take part", answer.printed + cause)
    message = [f"On {number} it did not come to its end: {cause}."] + [f"There stood {where}."] * bool(where)
    return Case(False, True, without_folders(" ".join(message + [SAME_CALLS] * bool(waited))))


# ---------------------------------------------------------------------------------------------------- the traps

EPOCH = re.compile(r"epoch \d+: loss (\S+), accuracy (\S+),")
FEW = ["--images", 1152, "--batch", 192, "--epochs", 1]  # six updates
REPAIRS = {  # number of a trap: {its lines: lines that repair it}
    1: {"        if step and losses": """\
        losses[-1] /= world_size
        all_reduce(losses[-1])  # the loss of all ranks' images: they decide alike
        if step and losses"""},
    2: {"        def counted": """\
        kept = (labels != 3).sum().to(images.dtype)
        all_reduce(kept)  # the images that count, of all ranks

        def counted""",
        "ignore_index=3)": 'ignore_index=3, reduction="sum") * world_size / kept'},
    3: {"    tested = -(-1000 // world_size) * world_size  # equally many on each rank, so that none has to wait\n": "",
        "tested, rank": "1000, rank"},
}


def trap_cases(path, number):
    """One model on all ranks, that of one process, and the same printed numbers; in one process still what it was."""
    planted = plant.text_of(number)
    path = Path(path).resolve()
    if not path.exists() or path.read_text() == planted:
        raise NotImplementedError
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        for place in (Path(folder, "planted/1"), *(Path(folder, str(ranks)) for ranks in (1, *RANKS))):
            place.mkdir(parents=True)  # whoever grades stands elsewhere
            for name in ("lessons", "data"):
                place.joinpath(name).symlink_to(ROOT / name)
        before = Path(folder, "train.py")
        before.write_text(planted)
        as_planted = pool.submit(compare, before, FEW, (), to_end=True, folder=Path(folder, "planted"))
        answers = compare(path, FEW, RANKS, to_end=True, folder=Path(folder))
        [wanted] = as_planted.result()
    one = EPOCH.findall(answers[0].printed)
    for answer in answers:
        yield end_case(answer, path)
        yield Case(answer.one_model, True, f"{answer}\nWhat do the ranks do differently there?")
        yield Case(answer.equal, True, f"{answer}\nAll ranks do the same, and it is not what one process does.")
        printed = EPOCH.findall(answer.printed)
        yield Case(printed, one, f"On {some(answer.ranks, 'rank')} the model is that of one process, and the loss and "
                   f"the accuracy that it prints are {printed}; those of one process are {one}.")
    wanted = EPOCH.findall(wanted.printed)
    yield Case(one, wanted, f"In one process the program was right, and printed {wanted}. Now it prints {one}. Keep "
               "what it does there: its ranks must come to do the same.")


def trap(number: int, hint: tuple[str, ...]):
    """The exercise to repair a trap: its check gets the path of the file."""
    repairs = "\n\n".join(f"In the place of\n{old.rstrip()}\nwrite\n{new.rstrip()}" for old, new in
                          REPAIRS[number].items())
    return exercise(solution=repairs, hint=hint, mistakes={}, limit=300)


@trap(1, (
    "In the step that the film names, gradients agree and weights do not. So the cause stands between finish() "
    "and the next gradient. Which value there is each rank's own?",
    "The `if` below `parallel.finish()` compares two losses. Each rank has the losses of its own images, so the "
    "ranks may decide differently. Which loss would be the same on all?",
    "Above that `if`: divide `losses[-1]` by `world_size`, and `all_reduce` it. Then it is the mean loss of all "
    "ranks' images."))
def trap_1(attempt):
    """Whatever decides over an update must be the same number on all ranks. Here it is the loss of all images."""
    yield from trap_cases(attempt, 1)


@trap(2, (
    "The first gradient differs, and the program has the messages of train.py. So look at the loss. Over how "
    "many images does each rank take its mean?",
    "Images of class 3 do not count, and the ranks have unequally many of them. Take `reduction=\"sum\"`, and "
    "divide by the images that count on all ranks. `MyDDP` still divides by the number of ranks.",
    "Above `counted`: `kept = (labels != 3).sum().to(images.dtype)`, then `all_reduce(kept)`. In it: "
    "`cross_entropy(outputs, labels, ignore_index=3, reduction=\"sum\") * world_size / kept`."))
def trap_2(attempt):
    """The mean of the ranks' means is the mean of all only where the ranks count equally many images. Add up, and
    divide by the count of all."""
    yield from trap_cases(attempt, 2)


@trap(3, (
    "Which of the printed numbers differs, and on how many ranks? Print how many test images the ranks take "
    "together.",
    "`tested` depends on the number of ranks. Must the ranks have equally many images there?",
    "Give `evaluate` the 1000 of one process, and delete `tested`."))
def trap_3(attempt):
    """No comparison of weights sees a wrong evaluation. Each test image counts once, and unequal shares do no harm
    there."""
    yield from trap_cases(attempt, 3)


# ---------------------------------------------------------------------------------------------------- the capstone

PROGRAMS = ROOT / "examples"
WATCHED = ROOT / "lessons/l07_traps/watched.py"
BATCH, EPOCHS = 96, 3  # minimal.py's: images of an update of all ranks
TRAIN, TEST = 210, 23  # images: 2 and 3 ranks can share the first, and not the second
UPDATES = EPOCHS * -(-TRAIN // BATCH)
FIGURES = re.compile(r"Loss:\s*(\d+\.\d+|nan|inf).*?acc:\s*(\d+\.\d+)", re.IGNORECASE)
NEAR = 0.15  # of minimal.py's loss, which has another order of the images


def small_sets():
    """((images [N, 28, 28], labels [N]) to train on, the same to test), uint8. A class has a bar of its own in noise;
    class 3 is the most frequent, and no two shards of the test set have the same share of it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (TRAIN + TEST,), generator=generator)
    labels[:TRAIN][torch.rand(TRAIN, generator=generator) < 0.6] = 3
    labels[TRAIN:] = torch.tensor([3 if place % 2 == 0 or place < 8 else place % 3 for place in range(TEST)])
    images = torch.randint(160, (TRAIN + TEST, 28, 28), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 2 * label + 4:2 * label + 6] += 80
    images, labels = images.byte(), labels.byte()
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def write_mnist(folder: Path) -> None:
    """The small sets as torchvision's MNIST finds its own: idx files in folder/MNIST/raw."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for name, (images, labels) in zip(("train", "t10k"), small_sets(), strict=True):
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim, *values.shape)
            raw.joinpath(f"{name}-{kind}-ubyte").write_bytes(head + values.numpy().tobytes())


@exercise(
    solution=PROGRAMS / "minimal_ddp.py",
    hint=(
        "Go through minimal.py from the top. What must each rank do with values of its own? What must all ranks "
        "do together? What must one rank do alone?",
        "From top to bottom: join the group; choose the GPU by `LOCAL_RANK`; a sampler, and the batch size of "
        "one rank; wrap the model; `set_epoch`; add up loss, images and right answers over the ranks; print and "
        "save on rank 0.",
        "`sampler = DistributedSampler(train_set, drop_last=True)`, `DataLoader(train_set, BATCH // world_size, "
        "sampler=sampler)`, `model` in `DistributedDataParallel`. The test: `DataLoader(test_set, BATCH, "
        "sampler=range(rank, len(test_set), world_size))`, with the inner model. `dist.all_reduce` of sums and "
        "counts, and divide last."),
    mistakes={},  # whole programs: lessons/l07_traps/test_capstone.py has them
    limit=300,  # compare bounds each start
)
def program(attempt):
    """On 2 and 3 ranks your program is equal to one process, in weights and in what it prints. One rank saves what
    minimal.py can load, and each rank would use its own GPU."""
    path = Path(attempt).resolve()
    if untouched(path):
        raise NotImplementedError
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        place = Path(folder)
        write_mnist(place / "data")
        Path(place, "minimal").mkdir()
        ask = partial(compare, WATCHED, updates=UPDATES, to_end=True)
        minimal = pool.submit(ask, [PROGRAMS / "minimal.py", "--data", place / "data"], ranks=(),
                              folder=place / "minimal")
        answers = ask([path, "--data", place / "data"], ranks=RANKS, folder=place)
        [wanted] = minimal.result()
        weights = torch.load(place / "minimal/1/minimal.pt", weights_only=True)
        for answer in answers:
            for case in cases(answer, answers[0], weights, path, place / str(answer.ranks)):
                yield case
                if not same(case.got, case.right):
                    return  # later cases would only show its consequences
    losses = [[float(loss) for loss, _ in FIGURES.findall(each.printed)] for each in (answers[0], wanted)]
    far = max(abs(mine / theirs - 1) for mine, theirs in zip(*losses, strict=True))
    yield Case(far < NEAR, True, f"On one rank your program prints the losses {losses[0]}; minimal.py prints "
               f"{losses[1]}. Keep the loss, the optimizer, and the order of zero_grad, backward and step.")
    yield Case(bool(re.search("local_rank", path.read_text(), re.IGNORECASE)), True, "No line of your program names "
               "LOCAL_RANK. With GPUs each rank takes one of its own on its machine, before anything is sent to a GPU.")


def untouched(path: Path) -> bool:
    """Is there no file yet, or only minimal.py with other comments?"""
    def statements(file):
        return [ast.dump(node) for node in ast.parse(file.read_text(encoding="utf-8")).body
                if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]  # the docstring

    try:
        return not path.exists() or statements(path) == statements(PROGRAMS / "minimal.py")
    except SyntaxError as error:
        raise Wrong(f"Line {error.lineno} of your file is not Python: {error.msg}.") from None


def cases(answer: Answer, one: Answer, weights: dict, path: Path, place: Path):
    """Of one number of ranks. Causes come before their consequences: a rank that trains alone prints wrong numbers."""
    where = f"On {some(answer.ranks, 'rank')}"
    yield end_case(answer, path)
    ranks = [json.loads(place.joinpath(f"facts-{rank}.json").read_text()) for rank in range(answer.ranks)]
    yield from rank_cases(answer, ranks, where)
    yield from image_cases([rank["updates"] for rank in ranks], where)
    yield from equality_cases(answer, where)
    yield from figure_cases(answer, one, sum(rank["tested"] for rank in ranks) / EPOCHS, where)
    yield from file_cases(sum(rank["saves"] for rank in ranks), weights, place / "minimal.pt", where)


def rank_cases(answer, ranks, where):
    if answer.ranks == 1:
        return
    yield Case(all(rank["met"] for rank in ranks), True, f"{where}, the processes never met. Each trains alone. "
               "dist.init_process_group() makes them ranks of one group.")
    parted = bool(answer.between_ranks)
    end = f"{where}, the ranks are not one model: they part {answer.between_ranks[1]}." if parted else ""
    yield Case(parted and not answer.between_ranks[1].update, False, f"{end} All must begin with the same weights. "
               "DistributedDataParallel sends rank 0's to all, and averages the gradients: wrap the model.")
    yield Case(parted and not all(rank["wrapped"] for rank in ranks), False, f"{end} Nothing averages their "
               "gradients. Wrap the model in DistributedDataParallel, and call the wrapper in training: backward "
               "averages the gradients only after a forward of the wrapper.")
    yield Case(parted, False, f"{end} All batches go through DDP. Does one rank alone change weights or gradients, or "
               "does training run under no_sync()?")


def image_cases(ranks, where):
    """ranks: for each rank, for each update the images that it took."""
    known = {key_of(image / 255) for image in small_sets()[0][0]}
    per_epoch = max(1, len(ranks[0]) // EPOCHS)
    epochs = [[sum(updates[start:start + per_epoch], []) for updates in ranks]
              for start in range(0, len(ranks[0]), per_epoch)]
    count, all_known = len(ranks), known.issuperset(sum(epochs[0], []))
    yield Case(all_known and all(epochs[0]), True, f"{where}, a rank trained on other images than those of MNIST, or "
               "on none. Leave the images unchanged, so that the check recognises them.")
    yield Case(count > 1 and min(map(len, epochs[0])) >= TRAIN, False, f"{where}, each rank took all {TRAIN} images "
               "in an epoch. Give each rank a shard of its own: pass a DistributedSampler to the DataLoader.")
    total, different = sum(map(len, epochs[0])), len(set().union(*epochs[0]))
    yield Case([total, different], [TRAIN, TRAIN], f"{where}, in an epoch the ranks took {total} images, {different} "
               f"different ones of {TRAIN}. All ranks must shuffle alike, and then take different parts of this order.")
    orders = len({str(shards) for shards in epochs})
    yield Case(orders, EPOCHS, f"{where}, {EPOCHS} epochs had {some(orders, 'order')} of the images. Shuffle, and tell "
               "the DistributedSampler the epoch: call sampler.set_epoch(epoch) at the top of each.")
    images = sum(len(updates[0]) for updates in ranks)
    yield Case(images, BATCH, f"{where}, an update takes {images} images; minimal.py's takes {BATCH}. A DataLoader's "
               "batch size is that of one rank: divide BATCH by the number of ranks.")


def equality_cases(answer, where):
    parting = answer.from_one
    times, off = parting.gradient if parting and parting.gradient else (None, None)
    why = ("Is the learning rate that of one process? DDP takes the mean over the ranks, so the update stays the same."
           if times is None else
           "DDP has already divided by the number of ranks: neither divide again, nor multiply." if off < 1e-6 else
           "An update must take the images that one process takes in it, and the mean over them: of one order for all "
           "ranks, rank r takes every n-th, from the r-th on.")
    yield Case(answer.equal, True, f"{where}, it is not the model of one process: they part {parting}. {why}")


def figure_cases(answer, one, tested, where):
    printed, right = FIGURES.findall(answer.printed), FIGURES.findall(one.printed)
    yield Case(len(printed), EPOCHS, f"{where}, it printed {some(len(printed), 'line')} with `Loss:` and `val acc:`, "
               f"in {EPOCHS} epochs. One rank prints one line after each epoch, for all ranks.")
    yield Case(tested in (TEST, TEST * answer.ranks), True, f"{where}, {tested:g} images were tested per epoch, and "
               f"there are {TEST}. Each must count once. A DistributedSampler repeats some, or leaves some out, to "
               "make the shards equal, and a test needs no equal shards: range(rank, images, ranks) has each once.")
    for epoch, (mine, theirs) in enumerate(zip(printed, right, strict=True)):
        for name, got, wanted in zip(("loss", "accuracy"), mine, theirs, strict=True):
            near = abs(float(got) - float(wanted)) < 1.5 * 10.0 ** -len(got.partition(".")[2])
            yield Case(near, True, f"{where}, the {name} printed for epoch {epoch} is {got}; on one rank it is "
                       f"{wanted}. Is it that of one rank's images alone, or a mean of means? Add sums and counts up "
                       "over all ranks, then divide.")


def file_cases(saves, weights, file, where):
    yield Case(saves, 1, f"{where}, torch.save was called {some(saves, 'time')}. Let rank 0 alone save the model: all "
               "have the same weights, and several writers of one file can damage it.")
    yield Case(file.exists(), True, f"{where}, there is no file {file.name} at the end.")
    saved = torch.load(file, map_location="cpu", weights_only=True)
    yield Case(any(name.startswith("module.") for name in saved), False, f"{where}, the names in the file begin with "
               "`module.`: it is the wrapper's state_dict, which minimal.py's model cannot load. Save that of the "
               "model inside.")
    shapes = [{name: list(getattr(value, "shape", ())) for name, value in each.items()} for each in (saved, weights)]
    yield Case(shapes[0], shapes[1], f"{where}, minimal.py's model cannot load the file. Save the state_dict of the "
               "model, and nothing else.")
