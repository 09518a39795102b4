"""Exercises of notebook 11. The third is tested by what it is for: the learner's function is killed."""

import inspect
import math
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses

LIMIT = 60  # seconds for all kills of one function, which take one or two


# Exercise 1: steps done again
def lost(done, every, steps_per_epoch):
    return min(done % every, done % steps_per_epoch)


def last_written(done, every, steps_per_epoch):
    """The last step after which main.py has written, found by going through all of them."""
    return max((step for step in range(1, done + 1) if step % every == 0 or step % steps_per_epoch == 0), default=0)


@exercise(
    solution=lost,
    hint="done % every steps were made since a multiple of every, and done % steps_per_epoch since the end of an "
    "epoch. The newest of both checkpoints counts.",
    mistakes={
        "main.py also writes after each epoch.": lambda done, every, steps_per_epoch: done % every,
        "You count from the end of the epoch; there is a checkpoint in between.":
            lambda done, every, steps_per_epoch: done % steps_per_epoch,
        "Half an interval is right on average, and this is one kill.": lambda done, every, steps_per_epoch: every / 2,
        "The steps are counted from the start of the run, not of the epoch.":
            lambda done, every, steps_per_epoch: done % steps_per_epoch % every,
    },
)
def again(attempt):
    """Only the steps since the newest checkpoint are made again. All ranks make them again: the work that is lost
    is these steps, times the number of ranks."""
    cases = (46, 20, 100), (105, 40, 100), (150, 40, 100), (250, 1000, 100), (7, 10, 100), (200, 30, 100)
    for miss in misses(again, attempt, cases, lambda done, *often: done - last_written(done, *often), exactly):
        miss.tell("After {done} steps in all, --checkpoint-every {every} and {steps_per_epoch} steps an epoch, you "
                  "gave {got}. The newest checkpoint is that of step {newest}, so {right} steps are lost.",
                  newest=miss.asked[0] - miss.right)


# Exercise 2: how often
def interval(write_seconds, node_hours, nodes):
    return math.sqrt(2 * write_seconds * 3600 * node_hours / nodes)


@exercise(
    solution=interval,
    hint="Young: sqrt(2 x write time x mean time between failures of the job), all in seconds. Any node that fails "
    "stops the whole job. So how often does a job of many nodes fail?",
    mistakes={
        "The job stops when any of its nodes fails: its time between failures is that of a node divided by the nodes.":
            lambda write_seconds, node_hours, nodes: interval(write_seconds, node_hours, 1),
        "Convert the hours to seconds.":
            lambda write_seconds, node_hours, nodes: interval(write_seconds, node_hours / 3600, nodes),
        "There is a factor of 2 under the root.":
            lambda write_seconds, node_hours, nodes: interval(write_seconds / 2, node_hours, nodes),
        "You made more nodes fail less often: divide, do not multiply.":
            lambda write_seconds, node_hours, nodes: interval(write_seconds, node_hours, 1 / nodes),
    },
)
def young(attempt):
    """Ten times the nodes fail ten times as often, and the interval shrinks by the root of ten, about 3."""
    cases = (2.0, 1000.0, 10), (60.0, 50_000.0, 1000), (0.005, 24.0, 1)
    for miss in misses(young, attempt, cases, rel_tol=1e-3):
        miss.tell("With {write_seconds:g} s a write, {nodes} node(s) and {node_hours:g} hours between two failures of "
                  "a node you gave {got:.4g} s; it is {right:.4g} s.")


# Exercise 3: never half
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
OLD, NEW = b"old" * 1000, b"new" * 1300  # shorter than the buffer of an open file
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


def kill_often(function):
    """The words of KILLS for this function: how it ended, or what a kill left."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Wrong("Your function's text is not to be found. Define it with def, in a cell of its own.") from None
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", KILLS.format(source=source, name=function.__name__)], cwd=folder,
                              capture_output=True, text=True, timeout=LIMIT)
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        path.write_bytes(b"old")
        attempt(str(path), b"new")
        if path.read_bytes() != b"new":
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
