"""Exercises of notebook 00: when a slow start is paid back, and a first function that ranks run."""

import contextlib
import io
import math
import re
from functools import partial

import torch.distributed as dist

from course.exercise import Case, exercise, mistake
from course.on_ranks import exercise_on_ranks


# Exercise 1: when a slow start pays
def my_epochs(start_one, epoch_one, start_many, epoch_many):
    saved = epoch_one - epoch_many  # in each epoch
    if saved <= 0:
        return None
    return max(1, math.floor((start_many - start_one) / saved) + 1)  # a tie is not earlier


def tie_is_earlier(start_one, epoch_one, start_many, epoch_many):
    return max(1, math.ceil((start_many - start_one) / (epoch_one - epoch_many))) if epoch_many < epoch_one else None


def not_rounded(start_one, epoch_one, start_many, epoch_many):
    return max(1, (start_many - start_one) / (epoch_one - epoch_many)) if epoch_many < epoch_one else None


def totals(epochs, start_one, epoch_one, start_many, epoch_many):
    """The seconds of both commands."""
    return start_one + epochs * epoch_one, start_many + epochs * epoch_many


def first_earlier(times):
    """The right number, found by trying one number of epochs after the other."""
    for epochs in range(1, 1000):
        one, many = totals(epochs, *times)
        if many < one:
            return epochs
    return None


@exercise(
    solution=my_epochs,
    hint="How many seconds more does the second command need to start? How many does it save in each epoch? How many "
    "epochs until it has saved what it cost? And what if it saves nothing?",
    mistakes={
        "Each epoch is shorter, but the start is longer: one epoch does not always pay it back.":
            lambda start_one, epoch_one, start_many, epoch_many: 1 if epoch_many < epoch_one else None,
        "One process has to start, too. What counts is how much longer the ranks take for it.":
            lambda start_one, *times: my_epochs(0, *times),
        "After the epochs that you returned both are done at the same time: a tie is not earlier.": tie_is_earlier,
        "A job has at least one epoch.": lambda *times: my_epochs(*times) if times[2] > times[0] else 0,
        "You rounded down. After the epochs that you returned the ranks are still behind.":
            lambda *times: my_epochs(*times) and my_epochs(*times) - 1,
        "An epoch is begun or it is not: return a whole number.": not_rounded,
        "Where the ranks lose time in every epoch too, they never pay.": lambda *times: my_epochs(*times) or 1,
        "Where the ranks save time in each epoch, some day they pay.": lambda *times: None,
    },
)
def pays(answer):
    """Your number is where the longer start is paid back, on every case tried: a job with fewer epochs is done sooner
    by one process, however many devices there are."""
    for times in [(3, 2, 7, 1.1), (2, 10, 10, 4), (4, 3, 3.9, 1), (3, 2, 5, 2.4), (3, 2, 5, 1)]:
        start_one, epoch_one, start_many, epoch_many = times
        got, right = answer(*times), first_earlier(times)
        reason = "the ranks are never done earlier"
        if right:
            one, many = totals(right, *times)
            reason = f"after {right} epoch(s) one process is done in {one:.1f} s, and the ranks in {many:.1f} s"
        yield Case(got, right,
                   f"One process starts in {start_one:g} s and takes {epoch_one:g} s an epoch. The ranks start in "
                   f"{start_many:g} s and take {epoch_many:g} s an epoch. You returned {got}; {right} is right: "
                   f"{reason}.")


# Exercise 2: a first function on ranks
def my_hello():
    print("hello from rank", dist.get_rank())
    if dist.get_rank() == 0:
        print("world size", dist.get_world_size())


def rank_0_alone_says_hello():
    if dist.get_rank() == 0:
        my_hello()


def hello_with(first=0, step=1, speakers=(0,), size=None):
    """Rank r greets as `first` + `step` * r. The `speakers`, -1 the last rank, print the world size, or `size`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    print("hello from rank", first + step * rank)
    if rank in speakers or rank - ranks in speakers:
        print("world size", size or ranks)


def nothing_printed():
    return f"hello from rank {dist.get_rank()}, world size {dist.get_world_size()}"


def measure_hello(function, context):
    """Whether this rank printed anything, and no function; the numbers behind "hello from rank" and "world size"."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function()
    text = " ".join(out.getvalue().split())
    numbers = {words: [int(number) for number in re.findall(rf"{words}\W*(\d+)", text, re.I)]
               for words in ("hello from rank", "world size")}
    return {"printed": bool(text), "called": "<function" not in text, **numbers}


@exercise_on_ranks(
    measure_hello,
    solution=my_hello,
    hint="Every rank runs the same lines. So print `hello from rank` with dist.get_rank() without any condition, and "
    "ask `if dist.get_rank() == 0` before you print `world size` with dist.get_world_size().",
    mistakes={
        "Every rank has to say hello: print that without a condition.": rank_0_alone_says_hello,
        "Each process asks for its own number: dist.get_rank().": partial(hello_with, step=0),
        "Ranks are counted from 0, as dist.get_rank() does.": partial(hello_with, first=1),
        "Every rank runs all your lines, unless a condition says which rank does: rank 0 alone.":
            partial(hello_with, speakers=range(9)),
        "Let rank 0 print it, with dist.get_world_size().": partial(hello_with, speakers=()),
        "The number of ranks is another here. Ask dist.get_world_size().": partial(hello_with, size=2),
        "Rank 0 speaks for all: every job has a rank 0.": partial(hello_with, speakers=(-1,)),
        "Nobody sees here what a function returns: print it.": nothing_printed,
        "`dist.get_rank` is the function itself. Call it: `dist.get_rank()`.":
            mistake(my_hello, {'rank", dist.get_rank()': 'rank", dist.get_rank'}),
    },
)
def hello(ranks):
    """Each process ran your lines by itself, and each knew who it was. `if dist.get_rank() == 0` is how one
    process of many prints, saves or writes a log. The hellos may come in any order: nobody waits for anybody."""
    everyone = list(range(len(ranks)))
    printed = [rank for rank, measured in enumerate(ranks) if measured["printed"]]
    yield Case(printed, everyone,
               f"Every rank should print. Of ranks {everyone}, {printed or 'none'} printed something.")
    yield Case([measured["called"] for measured in ranks], [True] * len(ranks),
               "A rank printed a function where its number should stand.")
    hellos = [measured["hello from rank"] for measured in ranks]
    lines = "; ".join(f"rank {rank} printed {', '.join(map(str, numbers)) or 'none'}"
                      for rank, numbers in enumerate(hellos))
    yield Case(hellos, [[rank] for rank in everyone],
               f"Each rank should print `hello from rank` once, with its own number. Here {lines}.")
    sizes = {rank: measured["world size"] for rank, measured in enumerate(ranks) if measured["world size"]}
    lines = "; ".join(f"rank {rank} prints {', '.join(map(str, numbers))}" for rank, numbers in sizes.items())
    yield Case(sizes, {0: [len(ranks)]},
               f"The hellos are right. Rank 0, and no other, should print `world size` once, with {len(ranks)}. Here "
               f"{lines or 'no rank prints it'}.")
