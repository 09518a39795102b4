"""Exercises of lesson 11. The first is judged by its purpose: the learner's function is killed while it writes."""

import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, drawn_one, exercise, generator_seed
from course.on_ranks import exercise_on_ranks

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
# torch is not imported here: os.fork is safe. Ends at the first kill that leaves neither the old data nor the new.
KILLS = '''
import json, os, shutil, signal, sys, tempfile
from pathlib import Path
{source}
OLD, NEW = {old!r} * 1000, {new!r} * 1300  # shorter than the buffer of an open file
CONTENTS = {{OLD: "old", NEW: "new", None: "no file"}}
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
number, killed, contents = 0, True, "old"
while killed and contents in ("old", "new"):
    number += 1
    for name in os.listdir():
        os.remove(name)
    path = os.path.join(os.getcwd(), "checkpoint")
    Path(path).write_bytes(OLD)
    inode = os.stat(path).st_ino
    child = os.fork()
    if child == 0:
        killed_at(number, path)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and status:
        sys.exit(1)
    killed = status != 0
    data = Path(path).read_bytes() if os.path.exists(path) else None
    contents = CONTENTS.get(data, "torn")
print(json.dumps({{
    "killed": killed, "contents": contents, "bytes": len(data or b""), "of": len(NEW),
    "whole new data in another file": any(Path(name).read_bytes() == NEW for name in os.listdir()
                                          if name != "checkpoint"),
    "renamed": data is not None and os.stat(path).st_ino != inode}}))
'''


def old_and_new():
    """The old and the new data of the file, three bytes each."""
    return drawn_one((b"old", b"new"), lambda random: [b"%d" % number for number in random.sample(range(100, 999), 2)])


def kill_often(function):
    """What KILLS prints of this function: the state of its file after the kill that did harm, or at the end."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Wrong("The text of your function was not found. Define it with def, in a cell of its own.") from None
    old, new = old_and_new()
    program = KILLS.format(source=source, name=function.__name__, old=old, new=new)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True,
                              timeout=LIMIT)
    if done.returncode:
        raise Wrong("In a process of its own, where only os, shutil, tempfile and Path are imported, your function "
                    f"failed: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1]}.")
    return json.loads(done.stdout.splitlines()[-1])


@exercise(
    solution=replace,
    hint="Write all of it to a file beside it, such as path + '.part', and close that. Then os.replace(part, path): "
    "the name changes at once, and there is no moment in between.",
    mistakes={
        "Opening a file for writing empties it. Write to another name first.": straight,
        "os.replace removes the old file and renames the new one at once: do not remove it first.": delete_first,
        "The whole new data stood in another file. Do not copy it: rename that file.": copy_over,
        "Give the new file its name.": never_renamed,
        "It got its name before the data had left the program's buffer: close the file first.": renamed_too_soon,
    },
)
def never_half(answer):
    """Killed before each single instruction, your function left the whole old file or the whole new one. main.py too
    writes beside and renames, and keeps the file before as .previous. os.fsync before the rename guards against a
    power cut."""
    old, new = old_and_new()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        path.write_bytes(old)
        answer(str(path), new)
        contents = path.read_bytes() if path.exists() else None
        yield Case(contents, new, f"After your function had returned, the file held {contents!r}; {new!r} is right.")
    state = kill_often(answer)
    written, size = state.pop("bytes"), state.pop("of")
    whole = state["contents"] == "new" and not state["killed"]
    yield Case("whole" if whole else state, "whole",
               "It was killed when there was no file at all: the old one was gone, and the new one did not have its "
               "name yet." if state["contents"] == "no file" else
               f"It was killed when the file held {written} of {size} bytes: neither the old data nor the new.")


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


def newest_if_common(steps):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, steps)
    step = max((max(steps) for steps in everyone if steps), default=None)
    return step if all(step in steps for steps in everyone) else None


def kept_on(ranks):
    """Steps of the checkpoints on each rank's disk, case by case."""
    def other(random):
        common, *newer = sorted(random.sample(range(31, 99), ranks + 1))
        own = random.sample(newer, ranks)  # another one for each rank, so that each mistake shows
        lists = [sorted(random.sample(range(10, 30), random.randint(1, 15))) for _ in range(ranks)]
        return [sorted((common - 30, common, step)) for step in own], lists, [[common, own[0]], *lists[1:-1], []]

    return drawn_one(([[10, 20, 30], [10, 20, 30], [10, 20, 30]], [[20, 40], [20, 30], [20, 30, 50]],
                      [[10, 20], [], [20]], [[20], [10], [10, 20]]), other)


def measure_newest(function, context):
    """The step that the function names on this rank, in each case."""
    steps = []
    for kept in kept_on(context.world_size):
        step = function(list(kept[context.rank]))
        if step is not None and (isinstance(step, bool) or step != int(step)):
            raise Wrong(f"On rank {context.rank} it returned {step!r}. Return the number of a step, or None.")
        steps.append(None if step is None else int(step))
    return {"steps": steps}


@exercise_on_ranks(
    measure_newest,
    solution=my_newest,
    hint="dist.all_gather_object(everyone, steps) fills the list `everyone` with each rank's list, whatever their "
         "lengths. Then every rank can work out the same answer. Which numbers stand in all of the lists?",
    mistakes={
        "Each rank took its own newest step, so the ranks would go on from different steps. They must ask each other.":
            each_its_own,
        "That is rank 0's newest step, and another rank does not have it.": that_of_rank_0,
        "That is the newest step of any rank, and another rank does not have it.": newest_of_all,
        "The smallest of the newest steps is not enough: a rank may have a newer one, but not this one. Compare the "
        "whole lists.": least_of_the_newest,
        "Rank 0 knows the step, and the other ranks do not.": rank_0_alone_knows,
        "The newest step of all is not common to all ranks, but an older one is.": newest_if_common,
    },
)
def newest(ranks):
    """Every rank names the same step, and has it. A rank that went on from another step than the rest would train
    another model, and DDP would average the two without a word."""
    for case, kept in enumerate(kept_on(len(ranks))):
        got = [measured["steps"][case] for measured in ranks]
        right = max(set(kept[0]).intersection(*kept[1:]), default=None)
        yield Case(got, [right] * len(ranks),
                   f"The ranks have {', '.join(map(str, kept))}. They named {', '.join(map(str, got))}; {right} is "
                   "right, on all of them.")


# Exercise 3: another number of ranks
def my_resume(path, order):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    box = [torch.load(path) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    state = box[0]
    done = state["step"] * state["batch_size"] * len(state["ranks"])
    sums = torch.tensor([old_rank["sums"] for old_rank in state["ranks"]]).sum(dim=0)
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
    return my_resume(path, order)[0], torch.tensor([old_rank["sums"] for old_rank in state["ranks"]]).sum(dim=0)


def its_own_sums(path, order):
    state, rank, _ = shared(path)
    ranks = state["ranks"]
    return my_resume(path, order)[0], ranks[rank]["sums"] if rank < len(ranks) else [0.0, 0.0, 0.0]


def from_zero(path, order):
    return my_resume(path, order)[0], torch.zeros(3)


def checkpoints(ranks):
    """([(ranks that wrote the checkpoint, images a step of each, steps of the epoch done)], images that are left)."""
    def other(random):  # first fewer writers than ranks, then more
        fewer, more = random.randrange(2, ranks), ranks + random.randint(1, 3)
        return ([(writers, random.randint(3, 8), random.randint(4, 9)) for writers in (fewer, more)],
                ranks * random.randint(3, 7))

    return drawn_one((((2, 6, 3), (4, 3, 2)), 24), other)


def measure_resume(function, context):
    """For each checkpoint the places in `order` of the images that this rank still takes, and its three sums."""
    measured, (cases, left) = {"places": [], "sums": []}, checkpoints(context.world_size)
    folder = Path(context.folder, f"node{context.rank}")  # as if each rank had a disk of its own
    if context.rank == 0:
        folder.mkdir()
        for number, (writers, batch_size, step) in enumerate(cases):
            ranks = [{"sums": [10.0 + rank, 2.0 + rank, float(step * batch_size)]} for rank in range(writers)]
            torch.save({"step": step, "batch_size": batch_size, "ranks": ranks}, folder / f"checkpoint{number}")
    context.gather("written", True)
    for number, (writers, batch_size, step) in enumerate(cases):
        generator = torch.Generator().manual_seed(number + generator_seed())
        order = torch.randperm(writers * batch_size * step + left, generator=generator).tolist()
        try:
            returned = function(str(folder / f"checkpoint{number}"), order)
        except FileNotFoundError:
            raise Wrong(f"Rank {context.rank} opened the file, which only rank 0's disk has.") from None
        if not isinstance(returned, tuple | list) or len(returned) != 2 or len(returned[1]) != 3:
            raise Wrong(f"On rank {context.rank} it returned {returned!r}. Return two things: a list of this rank's "
                        "images, and its three sums.")
        images, sums = returned
        places = {image: place for place, image in enumerate(order)}
        measured["places"].append([places.get(int(image)) for image in images])
        measured["sums"].append([float(value) for value in sums])
    return measured


@exercise_on_ranks(
    measure_resume,
    solution=my_resume,
    hint="dist.broadcast_object_list([state], src=0) brings a Python object to all ranks. The images that are done are "
         "a beginning of `order`: how long is it, with the ranks of then? Deal what is left to the ranks of now. The "
         "ranks' sums are added up later: each number may stand on one rank only.",
    mistakes={
        "A collective must bring to the others what rank 0 has read.": all_read,
        "How many images were done depends on the number of ranks that did them, not on today's.": by_the_new_number,
        "Go on where the epoch was, not at its beginning.": epoch_again,
        "Each rank needs a part of its own.": all_take_all,
        "Every rank has all of the sums, so they are counted once for each rank.": everybody_counts,
        "There were more ranks then than now: which rank takes over the sums of the others?": its_own_sums,
        "The sums from before the stop are lost.": from_zero,
    },
)
def resumed(ranks):
    """Each image that was left is seen once, by one rank, and nothing is counted twice or lost. Weights and optimizer
    are easier: they are the same on all ranks. The random states of the old ranks fit no new one, so such a run is not
    the same bit for bit."""
    cases, left = checkpoints(len(ranks))
    for case, (writers, batch_size, step) in enumerate(cases):
        done = writers * batch_size * step
        began = (f"{writers} ranks had made {step} steps with {batch_size} images each, so {done} of {done + left} "
                 f"images are done.")
        shares = [measured["places"][case] for measured in ranks]
        taken = [place for share in shares for place in share]
        if None in taken:
            raise Wrong(f"{began} Your function returned numbers that are not in `order`.")
        again, twice = sum(place < done for place in taken), len(taken) - len(set(taken))
        missing = len(set(range(done, done + left)) - set(taken))
        yield Case([again, twice, missing], [0, 0, 0],
                   f"{began} Of the images that your ranks take, {again} are done already and {twice} are taken twice; "
                   f"{missing} are left out.")
        lengths = [len(share) for share in shares]
        yield Case(lengths, [max(lengths)] * len(ranks),
                   f"{began} Your ranks take {', '.join(map(str, lengths))} images: a rank that has more than the "
                   "others waits for them in its next all-reduce.")
        total = [sum(column) for column in zip(*(measured["sums"][case] for measured in ranks), strict=True)]
        right = [writers * 10.0 + sum(range(writers)), writers * 2.0 + sum(range(writers)), float(done)]
        yield Case(total, right,
                   f"{began} Added up over your ranks the sums are {total}; those in the file give {right}.")


# Exercise 4: which recovery was it?
def read_log(log, batch):
    kept = dict(log)  # of a step that was made twice the last one counts
    again, unseen = len(log) - len(kept), sum(batch - images for images in kept.values())
    return "all" if again else "one" if unseen else "nobody", again, unseen


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
    return who, sum(step >= following for (step, _), (following, _) in itertools.pairwise(log)), unseen


def by_what_is_missing(log, batch):
    _, again, unseen = read_log(log, batch)
    return "one" if unseen else "all" if again else "nobody", again, unseen


def run_of(first, last, images=BATCH):
    return [(step, images) for step in range(first, last + 1)]


def logs():
    """{what happened: (the log, the right answer)}."""
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


@exercise(
    solution=read_log,
    hint="A step that was made twice stands twice in the log. The weights have only seen the last one: a dict keeps "
         "it. A step that all took part in has `batch` images. And when does a rank that was not killed go back?",
    mistakes={
        "Is there a step that stands in two lines?": shorter,
        "Of a step that was made twice the weights have kept the second, and not the first.": first_counts,
        "You counted steps. How many images does each of them lack?": steps_not_images,
        "You counted each line. The images that a step lacked when it was made first were not lost: it was made "
        "again.": every_line_counts,
        "You counted how often the rank went back. It made more than one step a second time.": when_it_went_back,
        "A rank makes a step twice only if it was itself set back to a checkpoint: then all were.": by_what_is_missing,
    },
)
def recovery(answer):
    """Steps made twice: all were started again. Images missing: somebody went on alone. A log can have both."""
    for event, (log, right) in logs().items():
        got = answer(list(log), BATCH)
        if not isinstance(got, tuple | list) or len(got) != 3:
            raise Wrong(f"It returned {got!r}. Return three things: who was started again, the steps made twice, the "
                        "images never seen.")
        yield Case(list(got), list(right),
                   f"{event} The log has {len(log)} lines, of {log[-1][0]} steps. You found {got[0]!r}, {got[1]} steps "
                   f"made twice and {got[2]} images never seen; {right[0]!r}, {right[1]} and {right[2]} are right.")
