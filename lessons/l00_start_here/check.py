"""Exercises of notebook 00: when a slow start is paid back, and a first function that ranks run."""

import contextlib
import io
import math
import re

import torch.distributed as dist

from course.cases import drawn, exactly, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers


# Exercise 1: when a slow start pays
def my_epochs(start_one, epoch_one, start_many, epoch_many):
    saved = epoch_one - epoch_many  # in each epoch
    if saved <= 0:
        return None
    return max(1, math.floor((start_many - start_one) / saved) + 1)  # a tie is not earlier


def totals(epochs, start_one, epoch_one, start_many, epoch_many):
    """The seconds of both commands."""
    return start_one + epochs * epoch_one, start_many + epochs * epoch_many


def tried_out(*times):
    """What is right: one number of epochs after the other."""
    for epochs in range(1, 1000):
        one, many = totals(epochs, *times)
        if many < one:
            return epochs
    return None


def later(random):
    """A case in which the ranks pay, and later than in the fixed ones. Quarters are exact, so that a tie is one."""
    start, epoch, saved, epochs = (random.randint(*span) for span in ((4, 40), (4, 40), (1, 12), (6, 40)))
    longer = saved * (epochs - random.choice((1, 0.75, 0.5, 0.25)))
    return start / 4, (epoch + saved) / 4, (start + longer) / 4, epoch / 4


@exercise(
    solution=my_epochs,
    hint="How many seconds more does the second command need to start? How many does it save in each epoch? How many "
    "epochs until it has saved what it cost? And what if it saves nothing?",
    mistakes={
        "the start ignored": lambda start_one, epoch_one, start_many, epoch_many: (
            1 if epoch_many < epoch_one else None),
        "the whole start instead of what it takes longer": lambda start_one, *others: my_epochs(0, *others),
        "a tie is earlier": lambda start_one, epoch_one, start_many, epoch_many: max(
            1, math.ceil((start_many - start_one) / (epoch_one - epoch_many))) if epoch_many < epoch_one else None,
        "rounded down": lambda *times: my_epochs(*times) and my_epochs(*times) - 1,
        "not rounded": lambda start_one, epoch_one, start_many, epoch_many: (
            max(1, (start_many - start_one) / (epoch_one - epoch_many)) if epoch_many < epoch_one else None),
        "never forgotten": lambda *times: my_epochs(*times) or 1,
        "a run without epochs": lambda start_one, epoch_one, start_many, epoch_many: (
            my_epochs(start_one, epoch_one, start_many, epoch_many) if start_many > start_one else 0),
    },
)
def pays(attempt):
    """Your number is where the longer start is paid back, on every case tried: a job with fewer epochs is done sooner
    by one process, however many devices there are."""
    cases = (3, 2, 7, 1.1), (2, 10, 10, 4), (4, 3, 3.9, 1), (3, 2, 5, 2.4), (3, 2, 5, 1)
    for miss in misses(pays, attempt, drawn(cases, later), tried_out, exactly):
        (start_one, epoch_one, start_many, epoch_many), got = miss.asked, miss.got
        case = (f"One process starts in {start_one:g} s and takes {epoch_one:g} s an epoch, the ranks start in "
                f"{start_many:g} s and take {epoch_many:g} s an epoch: you said {got}.")
        if miss.right is None:
            raise Wrong(f"{case} Here the ranks lose time in every epoch too. They never pay: None.")
        if got is None:
            raise Wrong(f"{case} But the ranks save {epoch_one - epoch_many:g} s in each epoch: some day they pay.")
        if got < 1:
            raise Wrong(f"{case} A job has at least one epoch.")
        if got % 1:
            raise Wrong(f"{case} An epoch is begun or it is not: give a whole number.")
        one, many = totals(got, *miss.asked)
        if many == one:
            raise Wrong(f"{case} With {got} epoch(s) both are done after {one:.1f} s: nobody is earlier.")
        if many > one:
            start = " Each epoch is shorter, but the start is longer." if got == 1 else ""
            raise Wrong(f"{case} With {got} epoch(s) one process is done after {one:.1f} s, and the ranks after "
                        f"{many:.1f} s.{start}")
        one, many = totals(got - 1, *miss.asked)
        raise Wrong(f"{case} But {got - 1} epoch(s) are enough: {many:.1f} s against {one:.1f} s. One process has to "
                    "start, too: what counts is how much longer the ranks take for it.")


# Exercise 2: a first function on ranks
def my_hello():
    print("hello from rank", dist.get_rank())
    if dist.get_rank() == 0:
        print("world size", dist.get_world_size())


def rank_0_alone_says_hello():
    if dist.get_rank() == 0:
        my_hello()


def all_are_rank_0():
    print("hello from rank", 0)
    if dist.get_rank() == 0:
        print("world size", dist.get_world_size())


def counted_from_1():
    print("hello from rank", dist.get_rank() + 1)
    if dist.get_rank() == 0:
        print("world size", dist.get_world_size())


def all_print_the_world_size():
    print("hello from rank", dist.get_rank(), "\nworld size", dist.get_world_size())


def no_world_size():
    print("hello from rank", dist.get_rank())


def two_as_in_the_lesson():
    print("hello from rank", dist.get_rank())
    if dist.get_rank() == 0:
        print("world size", 2)


def the_last_rank_prints_it():
    print("hello from rank", dist.get_rank())
    if dist.get_rank() == dist.get_world_size() - 1:
        print("world size", dist.get_world_size())


def nothing_printed():
    return f"hello from rank {dist.get_rank()}, world size {dist.get_world_size()}"


def measure(function, here):
    """The numbers that this rank printed behind "hello from rank" and "world size"."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function()
    said = " ".join(out.getvalue().split())
    return {"said": said} | {what: [int(number) for number in re.findall(rf"{what}\W*(\d+)", said, re.IGNORECASE)]
                             for what in ("hello from rank", "world size")}


answers = Answers({"my_hello": measure})


@exercise(
    solution=my_hello,
    hint="Every rank runs the same lines. So print `hello from rank` with dist.get_rank() without any condition, and "
    "ask `if dist.get_rank() == 0` before you print `world size` with dist.get_world_size().",
    mistakes={"rank 0 alone says hello": rank_0_alone_says_hello, "all are rank 0": all_are_rank_0,
              "counted from 1": counted_from_1, "all print the world size": all_print_the_world_size,
              "no world size": no_world_size, "two, as in the lesson": two_as_in_the_lesson,
              "the last rank prints it": the_last_rank_prints_it, "returned": nothing_printed},
)
def hello(attempt):
    """Each process ran your lines by itself, and each knew who it was. `if dist.get_rank() == 0` is how one
    process of many prints, saves or writes a log. The hellos may come in any order: nobody waits for anybody."""
    ranks = answers.findings("my_hello", attempt)
    hellos, sizes = ([rank[what] for rank in ranks] for what in ("hello from rank", "world size"))
    if not any(rank["said"] for rank in ranks):
        raise Wrong("No rank printed anything. What a function returns, nobody sees here: print it.")
    if hellos != (right := [[rank] for rank in range(len(ranks))]):
        greeted = sum(map(bool, hellos))
        raise because(
            f"{greeted} of {len(ranks)} ranks printed `hello from rank` and a number: {sum(hellos, [])}.",
            (greeted == 1, "Every rank has to say hello: print that without a condition."),
            (hellos == [[0]] * len(ranks), "All say the same number. Each process asks for its own: dist.get_rank()."),
            (hellos == [[rank + 1] for rank, in right], "Ranks are counted from 0, as dist.get_rank() does."),
            (True, "Each rank says it once, with its own number: dist.get_rank()."))
    if sizes != [[len(ranks)]] + [[]] * (len(ranks) - 1):
        told = [rank for rank, numbers in enumerate(sizes) if numbers]
        size = next((number for numbers in sizes for number in numbers), None)
        raise because(
            f"The hellos are right. `world size` was printed by {told or 'no rank'}.",
            (not told, "Let rank 0 print it, with dist.get_world_size()."),
            (len(told) > 1, "Every rank runs all your lines, unless a condition says who: rank 0 alone."),
            (told != [0], "Rank 0 is the one that speaks for all: the only one that every job has."),
            (True, f"It is said to be {size}, but {len(ranks)} ranks ran it. Ask dist.get_world_size()."))
