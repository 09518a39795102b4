"""The exercise of lesson 06 that is a program: minimal.py, made ready for torchrun.

It is run as it stands, on 2, 3 and 1 forked ranks, and once more as if each node had two GPUs. capstone_rank.py watches
each rank; here stands what is concluded. What counts is what a program does: what it reads, computes, says and saves.
"""

import ast
import json
import os
import re
import tempfile
from pathlib import Path

from course import forked_ranks
from course.exercise import Wrong, because, exercise
from course.lesson import some
from lessons.l06_ddp.capstone_rank import TEST, TRAIN

PROGRAMS = forked_ranks.ROOT / "scripts"
BATCH, LR = 64, 0.01  # minimal.py's: images an update, learning rate
LIMIT, WAIT = 60, 20  # seconds: of a program with so few images; of a rank for another that shows no sign of life
GPUS = 2  # of each node that is pretended
NEAR = 0.05  # how far from minimal.py's weights, of the way that they go: a last batch that is shared unequally is less
LOST = re.compile("timed out|closed by peer|connectFullMesh", re.IGNORECASE)
TOLD = re.compile(r"Loss:\s*(\d+\.\d+|nan|inf).*?acc:\s*(\d+\.\d+)", re.IGNORECASE)


@exercise(
    solution=(PROGRAMS / "minimal_ddp.py").read_text(encoding="utf-8"),
    hint="Go through minimal.py from the top. What must each rank do with values of its own (GPU, random numbers, "
    "images)? What must all ranks do together (meet, wrap the model, add up)? What must one rank do alone (print, "
    "save)? Begin with init_process_group, DistributedDataParallel and DistributedSampler, and call the check: it says "
    "what comes next.",
    mistakes={},  # whole programs: lessons/l06_ddp/test_capstone.py has them
)
def my_ddp(attempt):
    """On 1, 2 and 3 ranks your program trains the model that minimal.py trains, from the same images an update. What it
    prints is true of all images, one rank saves what minimal.py can load, and each rank would use its own GPU."""
    path = Path(attempt)
    if untouched(path):
        raise NotImplementedError
    for ranks in (2, 3, 1):
        judge(*watched(path, ranks))
    judge_gpus(*watched(path, GPUS + 1, GPUS))


def untouched(path):
    """Is it minimal.py still, but for its comments, or is there none?"""
    def statements(file):
        return [ast.dump(node) for node in ast.parse(file.read_text(encoding="utf-8")).body
                if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]  # without the docstring

    try:
        mine = statements(path)
    except FileNotFoundError:
        return True
    except SyntaxError as error:
        raise Wrong(f"Line {error.lineno} of your file is no Python: {error.msg}.") from None
    return mine == statements(PROGRAMS / "minimal.py")


def watched(path, ranks, gpus=0):
    """(what each rank did, what one process does with these images or None): see capstone_rank.py."""
    with tempfile.TemporaryDirectory() as folder:
        watch = [Path(__file__).with_name("capstone_rank.py"), path.resolve(), folder, gpus, WAIT]
        said = Path(folder, "said.txt")  # by a rank's start; the program's own lines stand in files of their ranks
        status = forked_ranks.run(watch, ranks, {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                                  said, said, LIMIT)
        found = []
        for rank in range(ranks):
            seen, text = Path(folder, f"rank-{rank}.json"), Path(folder, f"said-{rank}.txt")
            found.append(json.loads(seen.read_text()) if seen.exists() else None)
            if found[-1]:
                found[-1]["said"] = TOLD.findall(text.read_text(errors="replace"))
        if not gpus:
            together(f"On {some(ranks, 'rank')},", found, status)
        one = Path(folder, "one.json")
        return found, json.loads(one.read_text()) if one.exists() else None


# ------------------------------------------------------------------------------------------------ to the end, together


def together(on, found, status=0):
    """Wrong, unless every rank came to its end by itself. `status`: of the ranks; None where they were ended."""
    raised = [(bool(LOST.search(seen["raised"]["text"])), rank, seen["raised"]) for rank, seen in enumerate(found)
              if seen and seen["raised"]]  # what a rank raised explains that others lost it
    if raised:
        _, rank, error = min(raised, key=lambda one: one[:2])
        text = f"{error['type']}: {error['text']}"
        at = f" in line {error['line']}" if error["line"] else ""
        raise because(
            f"{on} rank {rank} raised{at} {text[:300].rstrip('.!')}.",
            ("has not been initialized" in text, "The ranks have not met yet: dist.init_process_group() comes before "
             "everything that asks about ranks, and before DistributedSampler and DistributedDataParallel."),
            ("device_ids" in text, "On a CPU DistributedDataParallel takes no device_ids. It finds out by itself where "
             "the model is."),
            (bool(re.search("GPUs found|NCCL|NVIDIA", text)), "On a machine without GPUs the backend is gloo, and no "
             "device may be set: ask torch.cuda.is_available() first."))
    apart = next((seen["apart"] for seen in found if seen and seen["apart"]), None)
    if apart:
        raise apart_because(on, apart)
    if status:
        raise Wrong(f"{on} the process of a rank died, with exit status {status}, and without an error of Python's.")
    if None in found:
        rank = found.index(None)
        raise Wrong(f"{on} rank {rank} did not come to its end within {LIMIT} s: it hangs by itself, or does far more "
                    "than three short epochs.")


def apart_because(on, places):
    """The Wrong of ranks that do not call the same."""
    def where(place):
        at = f" (line {place['line']})" if place and place["line"] else ""
        return (f"has not come anywhere for {WAIT} s" if place is None else
                "has come to its end" if place["what"] == "ended" else f"is at {place['what']}{at}")

    groups = {}
    for rank, place in enumerate(places):
        groups.setdefault(where(place), []).append(str(rank))
    told = "; ".join(f"rank{'s' * (len(those) > 1)} {' and '.join(those)} {text if len(those) == 1 else plural(text)}"
                     for text, those in groups.items())
    whats = [place and place["what"] for place in places]
    training = [place["epoch"] for place in places if place and place["what"] == "a step of training"]
    others = [place["epoch"] for place in places if place and place["what"] != "a step of training"]
    sizes = {place.get("size") for place in places if place}
    return because(
        f"{on} they do not meet: {told}.",
        (None in whats, "All the others wait for it there."),
        (len(set(whats)) == 1 and len(sizes) > 1, "The tensors differ in size: a collective needs the same shape on "
         "each rank."),
        (bool(training and others) and max(training) == max(others), "Those at the step have more batches in this "
         "epoch than the others, and wait for ever: each backward needs all ranks. The shards must give every rank as "
         "many steps: leave images out, or repeat some."),
        (True, "So they would wait for ever. All ranks must call the same collectives, in the same order. One below "
         "`if rank == 0:` is called by rank 0 alone: move it out, and leave there what one rank does alone."))


def plural(text):
    return re.sub(r"^is ", "are ", re.sub(r"^has ", "have ", text)).replace("its end", "their end")


# ------------------------------------------------------------------------------------------------ what they did


def judge(found, one):
    """Wrong, for the first of what is not minimal.py's training, told as it is; what explains most comes first."""
    ranks = len(found)
    on = f"On {some(ranks, 'rank')}:"
    if not all(seen["grouped"] for seen in found):
        raise Wrong(f"{on} the processes never met. Each one trains alone, on all images, and knows of no other. "
                    "dist.init_process_group() makes them ranks of one group.")
    if any(seen["strange"] for seen in found):
        raise Wrong(f"{on} the model was given images that are not those of data.get_dataset. Leave them as they are: "
                    "the check knows by them which image each rank takes.")
    if not all(seen["updates"] and all(update["batches"] for update in seen["updates"]) for seen in found):
        raise Wrong(f"{on} a rank trained on no image, or updated without any. Every rank trains.")
    steps = [[batch for update in seen["updates"] for batch in update["batches"]] for seen in found]
    judge_wrapping(on, found, steps, one)
    taken = by_epoch(steps)
    judge_shards(on, taken)
    judge_update(on, found, one)
    if ranks > 1 and len({seen["random"] for seen in found}) < ranks:
        raise Wrong(f"{on} when training begins, the random numbers of the ranks are the same. Dropout would drop the "
                    "same places for each rank's images, and augmentation would turn them alike. Give each rank a seed "
                    "of its own, such as its rank. The first weights may differ then: DDP sends rank 0's to all.")
    judge_figures(on, found, steps)
    judge_saving(on, found)


def judge_wrapping(on, found, steps, one):
    through = [all(batch["ddp"] for batch in those) for those in steps]
    if not all(through) and max(one["apart"], one["off"]) > NEAR:  # not so where gradients are averaged by hand
        difference = f"After training, the ranks' weights are {distance(one['apart'])}."
        if not any(seen["wrapped"] for seen in found):
            raise Wrong(f"{on} nobody averages the gradients. {difference} Each rank trains a model of its own. Wrap "
                        "the model: DistributedDataParallel(model).")
        raise Wrong(f"{on} the model is wrapped, but training calls the unwrapped one. {difference} Only a forward of "
                    "the wrapped model makes the following backward average the gradients: the wrapper must be called.")
    if one["apart"] > 1e-3:
        raise Wrong(f"{on} all goes through DDP, and still the ranks' weights are {distance(one['apart'])}. Does "
                    "something change weights or gradients on one rank alone, or stand in no_sync()?")


def distance(apart):
    return f"apart by {apart:.2g} times the way that training should move them"


def by_epoch(steps):
    """The images that each rank took, a list for each epoch: of a list for each rank."""
    loops = [list(dict.fromkeys(batch["loop"] for batch in those)) for those in steps]
    return [[[place for batch in those if batch["loop"] == number for place in batch["images"]]
             for those, number in zip(steps, numbers, strict=True)] for numbers in zip(*loops, strict=False)]


def judge_shards(on, taken):
    ranks = len(taken[0])
    if len(taken) < 2:
        raise Wrong(f"{on} there was one epoch. Leave EPOCHS as minimal.py has it: whether each epoch has another "
                    "order shows in two.")
    for epoch, of_ranks in enumerate(taken):
        counts = [len(places) for places in of_ranks]
        different = len({place for places in of_ranks for place in places})
        if ranks > 1 and min(counts) >= TRAIN:
            raise Wrong(f"{on} each of them took all {TRAIN} images in an epoch, so every image was trained on {ranks} "
                        "times, and nothing is saved. Each rank needs a shard of its own: that is what a "
                        "DistributedSampler gives the DataLoader.")
        if different <= TRAIN - ranks or sum(counts) >= TRAIN + ranks:
            raise because(
                f"{on} in epoch {epoch} the ranks took {' + '.join(map(str, counts))} images, and only {different} of "
                f"the {TRAIN} were there.",
                (different < sum(counts) - ranks, "Their shards overlap, and other images were never taken. The ranks "
                 "must shuffle alike, with one seed for all, and then each take another part of this order."),
                (True, "At most as many may be left out or repeated as make the shards equal. (A DataLoader's own "
                 "drop_last leaves a whole batch out.)"))
    for epoch, (before, after) in enumerate(zip(taken, taken[1:], strict=False)):
        if before == after:
            raise because(
                f"{on} epochs {epoch} and {epoch + 1} have the images in the same order.",
                (before[0] == sorted(before[0]), "It is that of the data set: nothing is shuffled. minimal.py "
                 "shuffles."),
                (True, "A DistributedSampler draws its order from its seed and the number of the epoch, and nobody "
                 "tells it the number: sampler.set_epoch(epoch), at the top of each epoch."))


def judge_update(on, found, one):
    ranks = len(found)
    images = sum(len(batch["images"]) for seen in found for batch in seen["updates"][0]["batches"])
    rates = {update["lr"] for seen in found for update in seen["updates"]}
    rate = next((rate for rate in rates if abs(rate - LR) > 1e-9), None)
    if abs(images - BATCH) >= ranks:
        raise because(
            f"{on} the first update is made of {images} images; minimal.py's of {BATCH}.",
            (images > BATCH and rate is not None, "And the rate is another one, as the linear scaling rule has it for "
             "large batches. That is another training, of fewer, longer steps. Here the task is the same training: "
             "divide the batch, and leave the rate."),
            (images > BATCH, "The batch size of a DataLoader is one rank's, and an update takes the images of all "
             "ranks. So there are fewer updates, at a rate chosen for more. Divide the batch among the ranks."),
            (True, "The ranks' batches of one update must make as many together."))
    if rate is not None:
        raise Wrong(f"{on} the learning rate is {rate:g}; minimal.py's is {LR:g}. An update is made of the same "
                    f"{BATCH} images as before, and DDP takes the mean over the ranks: the rate stays.")
    if one["off"] > NEAR:
        raise because(
            f"{on} all ranks have the same weights, but these and minimal.py's with the same images are "
            f"{distance(one['off'])}.",
            (ranks > 1 and abs(one["times"] * ranks - 1) < NEAR, f"Your updates are {ranks} times too short. DDP has "
             "divided by the number of ranks already: it takes the mean. Is there a second division, of the loss or of "
             "the gradients?"),
            (ranks > 1 and abs(one["times"] / ranks - 1) < NEAR, f"Your updates are {ranks} times too long: something "
             "multiplies by the number of ranks."),
            (True, "Keep its optimizer, its loss and the order of zero_grad, backward and step."))


# ------------------------------------------------------------------------------------------------ what they say


def near(told, values):
    """Are these the values, to the digits that were printed?"""
    return len(told) == len(values) and all(
        abs(float(text) - value) <= 0.52 * 10.0 ** -len(text.partition(".")[2]) + 3e-6 * abs(value)
        for text, value in zip(told, values, strict=True))


def judge_figures(on, found, steps):
    ranks = len(found)
    telling = [rank for rank, seen in enumerate(found) if seen["said"]]
    if not telling:
        raise Wrong(f"{on} no rank printed a line with `Loss:` and `val acc:`, as minimal.py does after each epoch.")
    if len(telling) > 1:
        raise Wrong(f"{on} {len(telling)} of them print each epoch. One line is enough, if it is true of all ranks: "
                    "let one rank print.")
    teller = telling[0]
    losses, accuracies = zip(*found[teller]["said"], strict=True)
    loops = list(dict.fromkeys(batch["loop"] for batch in steps[teller]))
    if len(losses) != len(loops):
        raise Wrong(f"{on} rank {teller} printed {some(len(losses), 'line')} for {len(loops)} epochs.")
    judge_loss(on, teller, losses, [of_epoch(steps, number) for number in range(len(loops))])
    tests = [[[test for test in seen["tests"] if test["epoch"] == number] for seen in found]
             for number in range(1, len(loops) + 1)]
    judge_accuracy(on, teller, accuracies, [[tested(those) for those in of_ranks] for of_ranks in tests], ranks)


def of_epoch(steps, number):
    """[(sum of the losses, images) of each batch] of each rank in an epoch."""
    loops = [list(dict.fromkeys(batch["loop"] for batch in those)) for those in steps]
    return [[(batch["loss"], len(batch["images"])) for batch in those if batch["loop"] == mine[number]]
            for those, mine in zip(steps, loops, strict=True)]


def tested(tests):
    """[(image, 1 for a hit or 0)] of a rank's tests in an epoch."""
    return [pair for test in tests for pair in zip(test["images"], test["hits"], strict=True)]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def judge_loss(on, teller, told, epochs):
    """`epochs`: for each, for each rank, (sum of losses, images) of each batch."""
    ranks = len(epochs[0])

    def each(function):
        return [function(of_ranks) for of_ranks in epochs]

    def total(batches):
        return sum(loss for loss, _ in batches)

    def images(batches):
        return sum(count for _, count in batches)

    def whole(of_ranks):
        return sum(map(total, of_ranks)) / sum(map(images, of_ranks))

    if near(told, each(whole)):
        return
    raise because(
        f"{on} the loss printed for epoch 0 is {told[0]}; over the images of all ranks it is {each(whole)[0]:.4f}.",
        (near(told, each(lambda epoch: total(epoch[teller]) / images(epoch[teller]))), f"It is that of rank {teller}'s "
         "own images: what the others saw is not in it. Add the sums of the losses and the numbers of images up over "
         "all ranks, then divide."),
        (near(told, each(lambda epoch: total(epoch[teller]) / sum(map(images, epoch)))), f"Rank {teller}'s sum was "
         "divided by the images of all ranks: the sums of the losses must be added up over the ranks, too."),
        (near(told, each(lambda epoch: ranks * whole(epoch))), f"That is {ranks} times as much: added up over the "
         "ranks, and not divided by what was added up."),
        (near(told, each(lambda epoch: mean(mean(loss / count for loss, count in batches) for batches in epoch))),
         "It is a mean of means: the last batch is smaller, so its images count for more than the others. Add sums and "
         "counts up, and divide last."),
        (near(told, each(lambda epoch: mean(loss / count for loss, count in epoch[teller]))), f"It is the mean of rank "
         f"{teller}'s means: of its own images only, and the images of the last, smaller batch count for more."))


def judge_accuracy(on, teller, told, epochs, ranks):
    """`epochs`: for each, for each rank, (image, hit) of each test image that it took."""
    def hits(pairs):
        return sum(hit for _, hit in pairs)

    def every(of_ranks):
        return [pair for pairs in of_ranks for pair in pairs]

    def each(function):
        return [function([pairs for pairs in of_ranks if pairs], of_ranks[teller]) for of_ranks in epochs]

    if not all(map(every, epochs)):
        raise Wrong(f"{on} no rank gave the model a test image in each epoch.")
    known = [dict(every(of_ranks)) for of_ranks in epochs]
    missing = max(TEST - len(those) for those in known)
    repeated = max(len(every(of_ranks)) for of_ranks in epochs) - TEST
    exact = [sum(those.values()) / TEST for those in known]
    if not missing and near(told, exact):
        return
    exact_told = f"over the {TEST} test images, each counted once, it is {exact[0]:.4f}" if not missing else (
        f"it must be that of the {TEST} test images, each counted once")
    whole = near(told, each(lambda others, _: hits(every(others)) / len(every(others)))) or near(
        told, each(lambda others, _: hits(every(others)) / TEST))
    raise because(
        f"{on} the accuracy printed for epoch 0 is {told[0]}; {exact_told}.",
        (near(told, each(lambda _, own: hits(own) / max(1, len(own)))), f"It is that of rank {teller}'s own images: "
         "what the others found is not in it. Add hits up over all ranks, then divide by all images."),
        (near(told, each(lambda _, own: hits(own) / TEST)), f"Rank {teller}'s own hits were divided by all images. So "
         f"it shows about 1/{ranks} of the accuracy: the hits must be added up over the ranks."),
        (ranks > 1 and near(told, [ranks * value for value in exact]), f"That is {ranks} times as much: added up over "
         "the ranks, and divided by the images of one."),
        (whole and missing > 0, f"{some(missing, 'test image')} no rank has looked at: the shards were made equal by "
         "leaving images out. A test needs no equal shards: range(rank, images, ranks) has each image once."),
        (whole and repeated > 0, f"The ranks looked at {TEST + repeated} images, {repeated} of them a second time: "
         "images are repeated to make the shards equal, as DistributedSampler does, and counted twice. A test needs no "
         "equal shards: range(rank, images, ranks) has each image once."),
        (near(told, each(lambda others, _: mean(hits(pairs) / len(pairs) for pairs in others))), "It is the mean of "
         "the ranks' accuracies. The shards are unequal, so an image in a small one counts for more. Add hits up over "
         "all ranks, and divide last."),
        (missing > 0, f"{some(missing, 'test image')} no rank has looked at."),
        (repeated > 0, f"The ranks looked at {TEST + repeated} images: some were counted twice."))


# ------------------------------------------------------------------------------------------------ what they save


def judge_saving(on, found):
    saving = [rank for rank, seen in enumerate(found) if seen["saves"]]
    if not saving:
        raise Wrong(f"{on} nobody saved the model with torch.save.")
    if len(saving) > 1:
        raise Wrong(f"{on} {len(saving)} of them saved the model. All have the same weights, so one file is enough; "
                    "and where several write to one file at once it may come out torn. Let rank 0 alone save.")
    last = found[saving[0]]["saves"][-1]
    if last["names"] and all(name.startswith("module.") for name in last["names"]):
        raise Wrong(f"{on} the names in the file begin with `module.`: {last['names'][0]}, … It is the wrapper's "
                    "state_dict, and minimal.py's model cannot load it. Save that of the model inside.")
    if not last["same"]:
        raise Wrong(f"{on} the file does not hold the state_dict of the model as it is after the last update. Save "
                    "model.state_dict(), when training is over.")


# ------------------------------------------------------------------------------------------------ on which GPU


def judge_gpus(found, _):
    """Ranks 0 and 1 are on one node with two GPUs, rank 2 is on another: each must use the GPU of its local rank."""
    asked = [sorted(set(seen["asked"])) if seen else [] for seen in found]
    right = [[rank % GPUS] for rank in range(len(found))]
    if asked == right:
        return
    pretended = (f"The check pretended that there are GPUs: {GPUS} for ranks 0 and 1, and {GPUS} on a second machine, "
                 "for rank 2.")
    together(pretended, found)
    said = "; ".join(f"rank {rank} asks for {'GPU ' + ' and '.join(map(str, numbers)) if numbers else 'none'}"
                     for rank, numbers in enumerate(asked))
    raise because(
        f"{pretended} Then {said}.",
        (not any(asked), "The program trains on the CPU, although it has GPUs."),
        (asked[0] == asked[1], "Two ranks of one machine share a GPU, and the other one is idle: NCCL refuses that. "
         "Each rank takes the GPU of its local rank: torchrun tells it in LOCAL_RANK."),
        (asked[:2] == right[:2], "But the second machine counts its GPUs from 0, as the first does. The rank counts "
         "over all machines; which GPU of its machine is a rank's own, its local rank says: LOCAL_RANK."),
        (any(len(numbers) > 1 for numbers in asked), "A rank has one part on its own GPU and another elsewhere: say "
         "which GPU is its own before anything is sent to one."),
        (True, "Each rank takes the GPU of its local rank: LOCAL_RANK."))
