"""Exercises of notebook 11. The first is tested by what it is for: the learner's function is killed. The others run on
ranks: course/on_ranks.py says how."""

import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import torch.distributed as dist

from course.cases import drawn_one, generator_seed
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

LIMIT = 60  # seconds for all kills of one function, which take one or two
BATCH = 64  # images of a step that all groups take part in


# Exercise 1: never half
def replace(path, data):
    with open(f"{path}.part", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)


def straight(path, data):
    with open(path, "wb") as file:
        file.write(data)


def delete_first(path, data):
    with open(f"{path}.part", "wb") as file:
        file.write(data)
    os.remove(path)
    os.rename(f"{path}.part", path)


def copy_over(path, data):
    with open(f"{path}.part", "wb") as file:
        file.write(data)
    with open(path, "wb") as file:
        file.write(data)


def never_renamed(path, data):
    with open(f"{path}.part", "wb") as file:
        file.write(data)


def renamed_too_soon(path, data):
    with open(f"{path}.part", "wb") as file:
        file.write(data)
        os.replace(f"{path}.part", path)


# Runs the function once for each of its bytecode instructions, in a process of its own that is killed right before it.
# torch is not imported here: os.fork is safe. The first line printed that is not "whole" ends it.
KILLS = '''
import os, shutil, signal, sys, tempfile
from pathlib import Path
{source}
OLD, NEW = {old!r} * 1000, {new!r} * 1300  # shorter than the buffer of an open file
def killed_at(number, path):
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        frame.f_trace_opcodes = True
        seen += event == "opcode"
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    {name}(path, NEW)
    os._exit(0)
number, status = 0, None
while status != 0:
    number += 1
    for old in os.listdir():
        os.remove(old)
    path = os.path.join(os.getcwd(), "checkpoint")
    Path(path).write_bytes(OLD)
    number_of_old = os.stat(path).st_ino
    child = os.fork()
    if child == 0:
        killed_at(number, path)
    status = os.waitpid(child, 0)[1]
    found = Path(path).read_bytes() if os.path.exists(path) else None
    beside = any(Path(name).read_bytes() == NEW for name in os.listdir() if name != "checkpoint")
    if status == 0:
        print("end", "whole" if found == NEW else "old" if found == OLD else "torn", number)
    elif found not in (OLD, NEW):
        how = "missing" if found is None else "copied" if beside else "emptied"
        if found is not None and os.stat(path).st_ino != number_of_old:
            how = "renamed"
        print("killed", how, len(found or b""), len(NEW))
        break
'''


def old_and_new():
    """What stands in the file, and what is to stand there: three bytes each."""
    return drawn_one((b"old", b"new"), lambda random: [b"%d" % number for number in random.sample(range(100, 999), 2)])


def kill_often(function):
    """The words of KILLS for this function: how it ended, or what a kill left."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Wrong("Your function's text is not to be found. Define it with def, in a cell of its own.") from None
    old, new = old_and_new()
    program = KILLS.format(source=source, name=function.__name__, old=old, new=new)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True,
                              timeout=LIMIT)
    if not done.stdout.strip() or done.returncode:
        raise Wrong("In a process of its own, where only os, shutil, tempfile and Path are imported, it said: "
                    f"{(done.stderr.strip().splitlines() or ['nothing'])[-1]}.")
    return done.stdout.split()


@exercise(
    solution=replace,
    hint="Write all of it to a file beside it, such as path + '.part', and close that. Then os.replace(part, path): "
    "the name changes at once, and there is no moment in between.",
    mistakes={"written in place": straight, "deleted before it is renamed": delete_first, "copied over": copy_over,
              "never renamed": never_renamed, "renamed before it is closed": renamed_too_soon},
)
def never_half(attempt):
    """Killed before each single instruction, your function left the whole old file or the whole new one. main.py too
    writes beside and renames, and keeps the file before as .previous. os.fsync before the rename guards against a
    power cut."""
    old, new = old_and_new()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        path.write_bytes(old)
        attempt(str(path), new)
        if path.read_bytes() != new:
            raise Wrong(f"When it was done, the file still held {path.read_bytes()!r}, and not the new data. Give the "
                        "new file its name.")
    what, found, *numbers = kill_often(attempt)
    if (what, found) == ("end", "whole"):
        return
    if found == "missing":
        raise Wrong("It was killed when there was no file at all: the old one was gone, and the new one had not got "
                    "its name. os.replace does both at once; do not remove first.")
    torn = f"It was killed when the file held {' of '.join(numbers)} bytes: neither the old data nor the new."
    if found == "copied":
        raise Wrong(f"{torn} The whole new data stood in another file. Do not copy it: rename that file.")
    if found == "renamed":
        raise Wrong(f"{torn} It got its name before the data had left the program's buffer: close the file first.")
    raise Wrong(f"{torn} To open a file for writing empties it. Write to another name first.")


# ----------------------------------------------------------------------------------- on each rank: what a function does

KEPT = ([[10, 20, 30], [10, 20, 30], [10, 20, 30]], [[20, 40], [20, 30], [20, 30, 50]], [[10, 20], [], [20]],
        [[20], [10], [10, 20]])  # steps of the checkpoints on each rank's disk, case by case
WRITERS = ((2, 6, 3), (4, 3, 2))  # ranks that wrote the checkpoint, images a step of each, steps of the epoch done
LEFT = 24  # images of the epoch that are left


def kept_on(ranks):
    """KEPT; or for a grader others."""
    def other(random):
        common, *newer = sorted(random.sample(range(31, 99), ranks + 1))
        own = random.sample(newer, ranks)  # of each rank another one, so that each mistake shows
        lists = [sorted(random.sample(range(10, 30), random.randint(1, 15))) for _ in range(ranks)]
        return [sorted((common - 30, common, step)) for step in own], lists, [[common, own[0]], *lists[1:-1], []]

    return drawn_one(KEPT, other)


def writers_and_left(ranks):
    """(WRITERS, LEFT); or for a grader others: first fewer writers than ranks, then more."""
    def other(random):
        fewer, more = random.randrange(2, ranks), ranks + random.randint(1, 3)
        return ([(writers, random.randint(3, 8), random.randint(4, 9)) for writers in (fewer, more)],
                ranks * random.randint(3, 7))

    return drawn_one((WRITERS, LEFT), other)


def measure_newest(function, here):
    """The step that the function names on this rank, in each case."""
    found = []
    for kept in kept_on(here.world_size):
        got = function(list(kept[here.rank]))
        if got is not None and (isinstance(got, bool) or got != int(got)):
            raise Wrong(f"On rank {here.rank} it returned {got!r}. Asked for: the number of a step, or None.")
        found.append(None if got is None else int(got))
    return {"steps": found}


def measure_resume(function, here):
    """The images that this rank still takes, and the sums it goes on with, for each number of ranks that wrote."""
    found, (cases, left) = {"images": [], "sums": []}, writers_and_left(here.world_size)
    for number, (writers, batch_size, step) in enumerate(cases):
        numbers = torch.Generator().manual_seed(number + generator_seed())
        order = torch.randperm(writers * batch_size * step + left, generator=numbers).tolist()
        path = Path(here.folder, f"node{here.rank}", f"checkpoint{number}")
        if here.rank == 0:  # as if each rank had a disk of its own
            path.parent.mkdir(exist_ok=True)
            ranks = [{"sums": [10.0 + rank, 2.0 + rank, float(step * batch_size)]} for rank in range(writers)]
            torch.save({"step": step, "batch_size": batch_size, "ranks": ranks}, path)
        here.gather(f"written {number}", True)
        try:
            got = function(str(path), order)
        except FileNotFoundError:
            raise Wrong(f"Rank {here.rank} opened the file, and it is on rank 0's disk only. What rank 0 has read must "
                        "reach the others by a collective.") from None
        if not isinstance(got, tuple | list) or len(got) != 2 or len(got[1]) != 3:
            raise Wrong(f"On rank {here.rank} it did not return two things: a list of this rank's images, and its "
                        "three sums.")
        images, sums = got
        places = {image: place for place, image in enumerate(order)}
        found["images"].append([places.get(int(image), -1) for image in images])
        found["sums"].append([float(value) for value in sums])
    return found


answers = Answers({"my_newest": measure_newest, "my_resume": measure_resume})


# Exercise 2: the newest checkpoint that all have
def my_newest(steps):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, steps)
    common = set(everyone[0]).intersection(*everyone[1:])
    return max(common, default=None)


def each_its_own(steps):
    return max(steps, default=None)


def that_of_rank_0(steps):
    newest = [max(steps, default=None)]
    dist.broadcast_object_list(newest, src=0)
    return newest[0]


def least_of_the_newest(steps):
    newest = torch.tensor(max(steps, default=-1))
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    return None if newest < 0 else int(newest)


def newest_of_all(steps):
    newest = torch.tensor(max(steps, default=-1))
    dist.all_reduce(newest, op=dist.ReduceOp.MAX)
    return None if newest < 0 else int(newest)


def rank_0_alone_knows(steps):
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(steps, everyone, dst=0)
    return max(set(everyone[0]).intersection(*everyone[1:]), default=None) if everyone else None


@exercise(
    solution=my_newest,
    hint="dist.all_gather_object(everyone, steps) fills the list `everyone` with each rank's list, whatever their "
         "lengths. Then every rank can work out the same answer. Which numbers stand in all of the lists?",
    mistakes={"each its own": each_its_own, "that of rank 0": that_of_rank_0, "the newest of all": newest_of_all,
              "the least of the newest": least_of_the_newest, "only rank 0 knows": rank_0_alone_knows},
)
def newest(attempt):
    """Every rank names the same step, and has it. A rank that went on from another step than the rest would train
    another model, and DDP would average the two without a word."""
    ranks = answers.findings("my_newest", attempt)
    for case, kept in enumerate(kept_on(len(ranks))):
        got = [rank["steps"][case] for rank in ranks]
        wanted = max(set(kept[0]).intersection(*kept[1:]), default=None)
        if got == [wanted] * len(got):
            continue
        own = [max(steps, default=None) for steps in kept]
        known = [step for step in own if step is not None]
        lacks = [rank for rank, steps in enumerate(kept) if got[0] not in steps] or [None]
        same = len(set(got)) == 1
        raise because(
            f"The ranks have {', '.join(map(str, kept))}. They named {', '.join(map(str, got))}; right is {wanted}, on "
            "all of them.",
            (got == own, "Each rank took its own newest: they would go on from different steps. They must ask each "
             "other."),
            (got[0] == wanted, "Rank 0 has it right, and the others do not know."),
            (same and got[0] == max(known), f"That is the newest of any rank, and rank {lacks[0]} does not have it."),
            (same and got[0] == own[0], f"That is rank 0's newest, and rank {lacks[0]} does not have it."),
            (same and got[0] == min(known), f"The smallest of the newest is not enough: rank {lacks[0]} has a newer "
             "one, but not this one. Compare the whole lists."),
            (same and got[0] is None, "One that all of them have does exist."))


# Exercise 3: another number of ranks
def my_resume(path, order):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    box = [torch.load(path) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    state = box[0]
    done = state["step"] * state["batch_size"] * len(state["ranks"])
    sums = torch.tensor([one["sums"] for one in state["ranks"]]).sum(dim=0)
    return order[done:][rank::world_size], sums if rank == 0 else torch.zeros(3)


def shared(path):
    box = [torch.load(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0], dist.get_rank(), dist.get_world_size()


def all_read(path, order):
    torch.load(path)
    return order, torch.zeros(3)


def by_the_new_number(path, order):
    state, rank, world_size = shared(path)
    _, sums = my_resume(path, order)
    return order[state["step"] * state["batch_size"] * world_size:][rank::world_size], sums


def epoch_again(path, order):
    _, sums = my_resume(path, order)
    return order[dist.get_rank()::dist.get_world_size()], sums


def all_take_all(path, order):
    state, _, _ = shared(path)
    return order[state["step"] * state["batch_size"] * len(state["ranks"]):], my_resume(path, order)[1]


def everybody_counts(path, order):
    state, _, _ = shared(path)
    return my_resume(path, order)[0], torch.tensor([one["sums"] for one in state["ranks"]]).sum(dim=0)


def its_own_sums(path, order):
    state, rank, _ = shared(path)
    ranks = state["ranks"]
    return my_resume(path, order)[0], ranks[rank]["sums"] if rank < len(ranks) else [0.0, 0.0, 0.0]


def from_zero(path, order):
    return my_resume(path, order)[0], torch.zeros(3)


@exercise(
    solution=my_resume,
    hint="dist.broadcast_object_list([state], src=0) brings a Python object to all ranks. The images that are done are "
         "a beginning of `order`: how long is it, with the ranks of then? Deal what is left to the ranks of now. The "
         "ranks' sums are added up later: each number may stand on one rank only.",
    mistakes={"all read the file": all_read, "by the new number of ranks": by_the_new_number,
              "the epoch again": epoch_again, "all take all that is left": all_take_all,
              "all count the old sums": everybody_counts, "own sums": its_own_sums, "sums from zero": from_zero},
)
def resumed(attempt):
    """Each image that was left is seen once, by one rank, and nothing is counted twice or lost. Weights and optimizer
    are easier: they are the same on all ranks. The random states of the old ranks fit no new one, so such a run is not
    the same bit for bit."""
    ranks = answers.findings("my_resume", attempt)
    cases, left = writers_and_left(len(ranks))
    for case, (writers, batch_size, step) in enumerate(cases):
        done = writers * batch_size * step
        began = (f"{writers} ranks had made {step} steps with {batch_size} images each, so {done} of {done + left} "
                 f"images are done.")
        images = [rank["images"][case] for rank in ranks]
        together = sorted(place for places in images for place in places)
        if any(place < 0 for place in together):
            raise Wrong(f"{began} Your function returned numbers that are not in `order`.")
        again, twice = sum(place < done for place in together), len(together) - len(set(together))
        missing = len(set(range(done, done + left)) - set(together))
        if again or twice or missing:
            raise because(
                f"{began} Of the images that your ranks take, {again} are done already and {twice} are taken twice; "
                f"{missing} are left out.",
                (len(set(together)) == done + left, "Go on where the epoch was, not at its beginning."),
                (twice > 0, "Each rank needs a part of its own."),
                (True, "How many images were done depends on the number of ranks that did them, not on today's."))
        if len({len(places) for places in images}) > 1:
            raise Wrong(f"{began} Your ranks take {', '.join(str(len(places)) for places in images)} images: a rank "
                        "that has more than the others waits for them in its next all-reduce.")
        sums = [rank["sums"][case] for rank in ranks]
        total = [sum(column) for column in zip(*sums, strict=True)]
        wanted = [writers * 10.0 + sum(range(writers)), writers * 2.0 + sum(range(writers)), float(done)]
        if total != wanted:
            raise because(
                f"{began} Added up over your ranks the sums are {total}; those in the file give {wanted}.",
                (total == [len(ranks) * value for value in wanted], "Every rank has the whole of it, so it is counted "
                 f"{len(ranks)} times."),
                (not any(total), "What was counted before the stop is lost."),
                (writers > len(ranks), "There were more ranks then than now: who takes over what the others counted?"))


# Exercise 4: which recovery was it?
def read_log(log, batch):
    kept = dict(log)  # of a step that was made twice the last one counts
    again, unseen = len(log) - len(kept), sum(batch - images for images in kept.values())
    return "all" if again else "one" if unseen else "nobody", again, unseen


def run_of(first, last, images=BATCH):
    return [(step, images) for step in range(first, last + 1)]


def logs():
    """{what happened: (the log, and what is right)}; for a grader with other numbers."""
    kill, back, alone = drawn_one((50, 36, 17), lambda random: (
        random.randint(60, 90), random.randint(30, 50), random.randint(5, 25)))
    half, end, again = BATCH // 2, kill + 40, kill - back + 1
    return {
        "All ranks were started again, from a checkpoint.":
            (run_of(1, kill) + run_of(back, end), ("all", again, 0)),
        "One group of two was killed, and came back.":
            (run_of(1, kill) + run_of(kill + 1, kill + alone, half) + run_of(kill + alone + 1, end),
             ("one", 0, alone * half)),
        "One group was killed; then all were, and went on from a checkpoint, for two more steps with one group.":
            (run_of(1, back - 5) + run_of(back - 4, kill, half) + run_of(back, back + 1, half) + run_of(back + 2, end),
             ("all", again, (4 + 2) * half)),
        "Nothing happened.": (run_of(1, end), ("nobody", 0, 0)),
    }


def shorter(log, batch):
    return read_log(log, batch)[0], log[-1][0] - len({step for step, _ in log}), sum(batch - own for _, own in log)


def first_counts(log, batch):
    kept = dict(reversed(log))
    return *read_log(log, batch)[:2], sum(batch - images for images in kept.values())


def steps_not_images(log, batch):
    return *read_log(log, batch)[:2], sum(images < batch for images in dict(log).values())


def every_line_counts(log, batch):
    return *read_log(log, batch)[:2], sum(batch - images for _, images in log)


def when_it_went_back(log, batch):
    who, _, unseen = read_log(log, batch)
    return who, sum(one[0] >= other[0] for one, other in zip(log, log[1:], strict=False)), unseen


def by_what_is_missing(log, batch):
    _, again, unseen = read_log(log, batch)
    return "one" if unseen else "all" if again else "nobody", again, unseen


@exercise(
    solution=read_log,
    hint="A step that was made twice stands twice in the log. The weights have only seen the last one: a dict keeps "
         "it. A step that all took part in has `batch` images. And when does a rank that was not killed go back?",
    mistakes={"steps left out": shorter, "the first one counts": first_counts, "steps, not images": steps_not_images,
              "each line counts": every_line_counts, "how often it went back": when_it_went_back,
              "who by what is missing": by_what_is_missing},
)
def recovery(attempt):
    """Steps made twice: all were started again. Images missing: somebody went on alone. A log can have both."""
    for what, (log, (who, again, unseen)) in logs().items():
        got = attempt(list(log), BATCH)
        if not isinstance(got, tuple | list) or len(got) != 3:
            raise Wrong(f"It returned {got!r}. Asked for: who was started again, steps made twice, images never seen.")
        if tuple(got) == (who, again, unseen):
            continue
        raise because(
            f"{what} The log has {len(log)} lines, of {log[-1][0]} steps. You found {got[0]!r}, {got[1]} steps made "
            f"twice and {got[2]} images never seen; right are {who!r}, {again} and {unseen}.",
            (got[1] == 1 and again > 1, "It went back once, and made more than one step a second time."),
            (got[1] == 0 and again > 0, "Is there a step that stands in two lines?"),
            (unseen and got[2] == unseen * 2 // BATCH, "You counted steps. How many images does each of them lack?"),
            (got[2] == sum(BATCH - images for _, images in log) != unseen, "You counted each line. What a step lacked "
             "when it was made first was not lost: it was made again."),
            (got[2] > unseen, "Of a step that was made twice the weights have kept the second, and not the first."),
            (got[0] != who, "A rank makes a step twice only if it was itself set back to a checkpoint: then all were."))
