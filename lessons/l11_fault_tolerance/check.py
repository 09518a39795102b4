"""Exercises of lesson 11. The first is judged by its purpose: the learner's function is killed while it writes."""

import functools
import inspect
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, exercise
from course.on_ranks import exercise_on_ranks, patched
from course.predict.checkpoints import drawn
from lessons.l11_fault_tolerance.solution import ASK, must_stop

OLD, NEW = b"old", b"new"  # data of the file
LIMIT = 60  # seconds for all kills of one function, which take one or two


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


def kill_often(function):
    """What KILLS prints of this function: the state of its file after the kill that did harm, or at the end."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Wrong("The text of your function was not found. Define it with def, in a cell of its own.") from None
    program = KILLS.format(source=source, name=function.__name__, old=OLD, new=NEW)
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True,
                                  timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Wrong(f"Your function had not come to its end after {LIMIT} s.") from None
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
    limit=2 * LIMIT,
)
def never_half(answer):
    """Killed before each single instruction, your function left the whole old file or the whole new one. main.py too
    writes beside and renames, and keeps the file before as .previous. os.fsync before the rename guards against a
    power cut."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        path.write_bytes(OLD)
        answer(str(path), NEW)
        contents = path.read_bytes() if path.exists() else None
        yield Case(contents, NEW, f"After your function had returned, the file held {contents!r}; {NEW!r} is right.")
    state = kill_often(answer)
    written, size = state.pop("bytes"), state.pop("of")
    whole = state["contents"] == "new" and not state["killed"]
    yield Case("whole" if whole else state, "whole",
               "It was killed when there was no file at all: the old one was gone, and the new one did not have its "
               "name yet." if state["contents"] == "no file" else
               f"It was killed when the file held {written} of {size} bytes: neither the old data nor the new.")


# Exercise 2: how often to save
def my_interval(write, between):
    return math.sqrt(2 * write * between)


@functools.lru_cache
def least_by_chance(write, between):
    """(the best interval by search, the share of time that it loses), over the same failures as every other."""
    return min(((every, drawn(every, write, between, 0)) for every in np.geomspace(write / 2, between, 400)),
               key=lambda found: found[1])


@exercise(
    solution=my_interval,
    hint="Call the interval t. Writing takes write / t of the time, and failures t / (2 * between). Where the sum is "
    "least, its derivative by t is 0: -write / t**2 + 1 / (2 * between) = 0.",
    mistakes={
        "Of an interval half is lost at a failure, on average: where is the 2?":
            lambda write, between: math.sqrt(write * between),
        "That is its square. Look at the units: seconds times seconds.": lambda write, between: 2 * write * between,
        "So short an interval spends half of the time on writing.": lambda write, between: write,
        "Then each failure costs half of all that was done since the last one.": lambda write, between: between,
        "The longer a write takes, the less often you should write.":
            lambda write, between: math.sqrt(2 * between / write),
    },
)
def interval(answer):
    """Two costs, one that falls with the interval and one that rises: at the best interval they are equal."""
    worst, cases = 1.0, []
    for write, between in [(0.02, 11_000.0), (5.0, 90_000.0), (30.0, 20_000.0)]:
        every = float(answer(write, between))
        if not every > 0:
            raise Wrong(f"With writes of {write:g} s and a failure every {between:g} s it returned {every:g}. An "
                        "interval is longer than 0 s.")
        best, least = least_by_chance(write, between)
        factor = drawn(every, write, between, 0) / least
        worst = max(worst, factor)
        cases.append(Case(
            every, every if factor < 1.02 else best,
            f"A write takes {write:.3g} s, a failure comes every {between:,.0f} s. Saving every {every:,.4g} s "
            f"loses {factor:.3g} times the least, over 5,000 random failures: it is too "
            f"{'seldom' if every > best else 'often'}."))
    cases[-1].remark = f"Over 5,000 random failures your intervals lose at most {worst:.3f} times the least possible."
    yield from cases


# Exercise 3: all ranks stop after one step
STEPS = 40


def own_signal(signalled, step):
    return signalled


def own_signal_each_tenth(signalled, step):
    return signalled and step % ASK == 0


def asks_when_signalled(signalled, step):
    if signalled:
        dist.all_reduce(torch.tensor(1))
    return signalled


def rank_0_decides(signalled, step):
    flag = torch.tensor(int(signalled))
    if step % ASK == 0:
        dist.broadcast(flag, src=0)
    return step % ASK == 0 and bool(flag)


def agreed(op, every, signalled, step):
    flag = torch.tensor(int(signalled))
    if step % every == 0:
        dist.all_reduce(flag, op=op)
    return step % every == 0 and bool(flag)


def asks_when_signalled_too(signalled, step):
    flag = torch.tensor(int(signalled))
    if signalled or step % ASK == 0:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def signals(ranks):
    """For each training {rank: step in which it gets the signal}."""
    return [{}, {ranks - 1: 13}, {0: 7, 1: 12}, {1: 10}]


def measure_stop(function, context):
    """For each training the step after which this rank stopped (0: never; less than 0: in which it waited in vain), and
    its messages."""
    measured, calls = {"stopped": [], "messages": []}, []
    names = ("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast",
             "broadcast_object_list", "reduce", "gather", "gather_object", "barrier", "send", "recv",
             "isend", "irecv")
    with patched(function, **{name: counted(getattr(dist, name), calls) for name in names}):
        for number, got in enumerate(signals(context.world_size)):
            calls.clear()
            stopped, step = 0, 0
            try:
                while step < STEPS and not stopped:
                    step += 1
                    stopped = step if function(got.get(context.rank, STEPS + 1) <= step, step) else 0
            except NotImplementedError:
                raise
            except RuntimeError as error:  # gloo's, of a wait in vain
                if not re.search("timed out|closed", str(error), re.IGNORECASE):
                    raise
                stopped = -step
            measured["stopped"].append(stopped)
            measured["messages"].append(len(calls))
            if len(set(context.gather(f"training {number}", stopped))) > 1:
                break  # the ranks are no longer together
    return measured


def counted(call, calls):
    @functools.wraps(call)
    def noted(*args, **kwargs):
        calls.append(call)
        return call(*args, **kwargs)
    return noted


@exercise_on_ranks(
    measure_stop,
    solution=must_stop,
    ranks=(2, 3),
    hint="Make a tensor that is 1 where this rank has got the signal, else 0. In each tenth step, `step % 10 == 0`, "
    "dist.all_reduce(flag, op=dist.ReduceOp.MAX) gives all ranks the largest: each sees the same result.",
    mistakes={
        "A rank that looks at its own signal alone leaves the others behind. They must ask each other.": own_signal,
        "A message takes time. Ask in each tenth step.": functools.partial(agreed, dist.ReduceOp.MAX, 1),
        "Each rank still looks at its own signal alone.": own_signal_each_tenth,
        "Only a rank with a signal asks, and the others do not answer: a collective needs all ranks. When to ask must "
        "depend on what all of them know, such as the step.": asks_when_signalled,
        "A rank with a signal asks at once, and what answers it is the question of another step. When to ask must "
        "depend on what all ranks know, such as the step.": asks_when_signalled_too,
        "Ask more often: in each tenth step.": functools.partial(agreed, dist.ReduceOp.MAX, 2 * ASK),
        "Rank 0 decides, and it has heard of no signal: another rank has.": rank_0_decides,
        "One signal is enough: take the largest flag, and not the smallest.":
            functools.partial(agreed, dist.ReduceOp.MIN, ASK),
    },
)
def stopped(ranks):
    """All ranks see the same result of the all-reduce, so they leave the loop after the same step, and nobody waits."""
    n = len(ranks)
    for number, got in enumerate(signals(n)):
        steps = [measured["stopped"][number] for measured in ranks]
        first = min(got.values(), default=STEPS)
        expected = n * [-(-first // ASK) * ASK if got else 0]
        together = len(set(steps)) == 1
        right = together and (first <= steps[0] <= first + ASK if got else steps[0] == 0)
        story = " and ".join(f"rank {rank} gets a signal in step {step}" for rank, step in got.items()) or (
            "no rank gets a signal")
        ends = ["stopped after" if step > 0 else "waited in vain in" if step else "did not stop by"
                for step in steps]
        what = "; ".join(f"rank {rank} {end} step {abs(step) or STEPS}"
                         for rank, (end, step) in enumerate(zip(ends, steps, strict=True)))
        late = (" In each step all ranks must ask, or none." if not together else
                " That is too late: at most 10 steps after the signal." if steps[0] > first + ASK else "")
        yield Case(steps, steps if right else expected, f"Of {n} ranks {story}. {what.capitalize()}.{late}")
        if not together:
            return
        messages = [measured["messages"][number] for measured in ranks]
        most = STEPS // ASK
        yield Case(messages, messages if max(messages) <= most else n * [most],
                   f"In at most {STEPS} steps a rank took part in {max(messages)} messages; {most} are enough.")


# Exercise 4: another number of ranks
def my_resume(path, order):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    box = [torch.load(path) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    state = box[0]
    done = state["step"] * state["batch_size"] * len(state["ranks"])
    sums = torch.tensor([old_rank["sums"] for old_rank in state["ranks"]]).sum(dim=0)
    return order[done:][rank::world_size], sums if rank == 0 else torch.zeros(3)


def all_read(path, order):
    torch.load(path)
    return order, torch.zeros(3)


def otherwise(mistake, path, order):
    """my_resume, but for one mistake."""
    images, sums = my_resume(path, order)
    box = [torch.load(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    rank, world_size, state = dist.get_rank(), dist.get_world_size(), box[0]
    each, old_sums = state["step"] * state["batch_size"], torch.tensor([old["sums"] for old in state["ranks"]])
    return {"the new number": (order[each * world_size:][rank::world_size], sums),
            "epoch again": (order[rank::world_size], sums),
            "all take all": (order[each * len(old_sums):], sums),
            "everybody counts": (images, old_sums.sum(dim=0)),
            "own sums": (images, old_sums[rank] if rank < len(old_sums) else torch.zeros(3)),
            "from zero": (images, torch.zeros(3))}[mistake]


def checkpoints(ranks):
    """([(ranks that wrote the checkpoint, images a step of each, steps of the epoch done)], images that are left)."""
    return ((2, 6, 3), (4, 3, 2)), 24


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
        generator = torch.Generator().manual_seed(number)
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
        "How many images were done depends on the number of ranks that did them, not on today's.":
            functools.partial(otherwise, "the new number"),
        "Go on where the epoch was, not at its beginning.": functools.partial(otherwise, "epoch again"),
        "Each rank needs a part of its own.": functools.partial(otherwise, "all take all"),
        "Every rank has all of the sums, so they are counted once for each rank.":
            functools.partial(otherwise, "everybody counts"),
        "There were more ranks then than now: which rank takes over the sums of the others?":
            functools.partial(otherwise, "own sums"),
        "The sums from before the stop are lost.": functools.partial(otherwise, "from zero"),
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
