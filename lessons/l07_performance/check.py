"""Exercises of lesson 07: where a step's time is lost, the rank that holds up the others, logs of runs that went wrong,
and the number of ranks for a job."""

import copy
import math
import statistics
import time
from functools import partial

import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, drawn, drawn_one, exercise
from course.on_ranks import exercise_on_ranks


# Exercise 1: the cost of sharing the machine, and the cost of communication
def my_split(alone, together, ranks, ceiling):
    beside = alone * ranks / ceiling
    return beside - alone, together - beside


def parts_swapped(alone, together, ranks, ceiling):
    return my_split(alone, together, ranks, ceiling)[::-1]


def all_to_talking(alone, together, ranks, ceiling):
    return 0.0, together - alone


def ceiling_of_one_rank(alone, together, ranks, ceiling):
    return alone / ceiling - alone, together - alone / ceiling


def speed_taken_for_time(alone, together, ranks, ceiling):
    return alone * (1 - ceiling / ranks), together - alone * (2 - ceiling / ranks)


def nothing_in_parallel(alone, together, ranks, ceiling):
    return alone * ranks - alone, together - alone * ranks


@exercise(
    solution=my_split,
    hint="How long is a step of processes that never talk? In the time of one step alone they do `ceiling` steps, all "
    "together. There are `ranks` of them, so each has done ceiling / ranks of its own step.",
    mistakes={
        "You swapped the two parts: sharing the machine comes first, talking second.": parts_swapped,
        "You counted everything beyond `alone` as talking. But processes that never talk slow each other down, too.":
            all_to_talking,
        "The ceiling counts the steps of *all* ranks. Each rank makes a step of its own, and that step is not shorter "
        "than alone.": ceiling_of_one_rank,
        "A time is the inverse of a speed. At half the speed a step takes twice as long, not one and a half times.":
            speed_taken_for_time,
        "You let the ranks take turns, as with a ceiling of 1. With a higher ceiling some of them run together.":
            nothing_in_parallel,
    },
)
def split(answer):
    """No link and no better program will give back the first part: it belongs to the machine. Only the second part is
    the price of working together: messages, and waiting for the slowest rank."""
    steps = drawn(((10.0, 14.0, 2, 1.6), (5.0, 26.0, 8, 2.0), (4.0, 6.5, 4, 3.2)), lambda random: (
        random.randint(4, 20) / 2, random.randint(170, 200) / 2, random.randint(3, 8), random.choice((1.25, 2.0, 2.5))))
    for alone, together, ranks, ceiling in steps:
        parts = answer(alone, together, ranks, ceiling)
        if not isinstance(parts, tuple | list) or len(parts) != 2:
            raise Wrong(f"Your function returned {parts!r}. Return two numbers, in ms: the time lost because the "
                        "processes are beside each other, and the time lost because they talk.")
        beside = alone * ranks / ceiling
        got, right = [float(part) for part in parts], [beside - alone, together - beside]
        yield Case(got, right,
                   f"A step takes {alone:g} ms alone and {together:g} ms with {ranks} ranks, and the ceiling is "
                   f"{ceiling:g}. You gave {got[0]:g} and {got[1]:g} ms; {right[0]:g} and {right[1]:g} ms are right.")


# Exercise 2: the rank that holds up the others
def my_slowest(work, talk, rounds):
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        talk()
    of_ranks = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, torch.tensor(statistics.median(seconds)))
    slow = torch.stack(of_ranks).argmax().item()
    return slow, of_ranks[slow].item()


def timed(work, talk, rounds):
    """Seconds of each work() and each talk()."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        middle = time.perf_counter()
        talk()
        seconds.append((middle - start, time.perf_counter() - middle))
    return torch.tensor(seconds)


def largest(seconds):
    """The rank with the most seconds, and these."""
    of_ranks = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, seconds)
    slow = torch.stack(of_ranks).argmax().item()
    return slow, of_ranks[slow].item()


def whole_steps(work, talk, rounds):
    return largest(timed(work, talk, rounds).sum(1).median())


def longest_wait(work, talk, rounds):
    return largest(timed(work, talk, rounds)[:, 1].median())


def mean_of_the_rounds(work, talk, rounds):
    return largest(timed(work, talk, rounds)[:, 0].mean())


def own_time(work, talk, rounds):
    return dist.get_rank(), timed(work, talk, rounds)[:, 0].median().item()


def sum_of_the_rounds(work, talk, rounds):
    slow, seconds = largest(timed(work, talk, rounds)[:, 0].median())
    return slow, rounds * seconds


def never_talks(work, talk, rounds):
    for _ in range(rounds):
        work()
    return 0, 0.0


USUAL = "work() in a usual round"


def pace():
    """Of the exercise: the number of rounds; seconds of work() on a quick rank and on the slow one; of talk(); and of
    the work() of rank 0 that is disturbed."""
    def other(random):
        stretch = random.uniform(1.6, 1.8)
        return random.choice((7, 9)), *(stretch * seconds for seconds in (0.01, 0.04, 0.06, 0.4))

    return drawn_one((5, 0.01, 0.04, 0.06, 0.4), other)


def measure_slowest(function, context):
    """The function's result and the times of each part of a round, for two slow ranks, one after the other."""
    measured, (rounds, quick, slow_work, message, disturbance) = [], pace()
    for slow in drawn_one((1, context.world_size - 1), lambda random: random.sample(range(1, context.world_size), 2)):
        works, talks = [], []

        def work(slow=slow, works=works):
            start = time.perf_counter()
            disturbed = context.rank == 0 and len(works) == 2
            time.sleep(disturbance if disturbed else slow_work if context.rank == slow else quick)
            works.append(time.perf_counter() - start)

        def talk(talks=talks):
            start = time.perf_counter()
            dist.all_reduce(torch.zeros(1))
            time.sleep(message)
            talks.append(time.perf_counter() - start)

        pair = function(work, talk, rounds)
        if not isinstance(pair, tuple | list) or len(pair) != 2 or None in pair:
            raise Wrong(f"On rank {context.rank} it returned {pair!r}. Every rank needs the pair (rank, seconds).")
        if len(works) != rounds or len(talks) != rounds:
            raise Wrong(f"Rank {context.rank} called work() {len(works)} times and talk() {len(talks)} times. In each "
                        f"of the {rounds} rounds it must call both, once.")
        measured.append({"slow": slow, "named": int(pair[0]), "seconds": float(pair[1]), "times": {
            USUAL: statistics.median(works),
            "work(), mean of the rounds": statistics.mean(works),
            "work(), all rounds": sum(works),
            "talk() in a usual round": statistics.median(talks),
            "a usual round": statistics.median(map(sum, zip(works, talks, strict=True)))}})
        dist.barrier()
    return measured


def kind_of_time(seconds, times):
    """The name of the time that a function returned as `seconds`: a usual work() if near it, else the nearest."""
    near = [name for name in times if math.isclose(times[name], seconds, rel_tol=0.3)]
    return USUAL if USUAL in near else min(near, key=lambda name: abs(times[name] - seconds), default="another time")


@exercise_on_ranks(
    measure_slowest,
    solution=my_slowest,
    hint="Read the clock before and after work(), not after talk(): there all ranks wait for each other. Take the "
    "statistics.median of the rounds. Then every rank needs the medians of all ranks: dist.all_gather.",
    mistakes={
        "That is the time of a whole round, and all ranks share it: in talk() they wait for the slowest.": whole_steps,
        "The rank that you named waits longest in talk(), because it was done first. The slow rank works longest.":
            longest_wait,
        "Rank 0 was disturbed in one round. The mean of the rounds follows that round; the median does not.":
            mean_of_the_rounds,
        "Each rank knows its own time only. dist.all_gather gives every rank the times of all.": own_time,
        "These are the seconds of all rounds. Return those of one round.": sum_of_the_rounds,
        "Without talk() a round is not a step: nobody waits for anybody.": never_talks,
    },
)
def slowest(ranks):
    """The steps of all ranks are equally long, so a step time does not show which rank is slow, and rank 0's log hardly
    shows it. The time before the collective does: the slow rank works longest, and waits least."""
    for results in zip(*ranks, strict=True):  # of all ranks, with the same rank slow
        pairs = ", ".join(f"({result['named']}, {1000 * result['seconds']:.0f} ms)" for result in results)
        medians = ", ".join(f"{1000 * result['times'][USUAL]:.0f}" for result in results)
        message = f"The ranks returned {pairs}. In a usual round their work() takes {medians} ms."
        named = [result["named"] for result in results]
        # First the kind of time, which a mistake determines. With a wrong one, chance may decide which rank is named.
        kinds = [kind_of_time(result["seconds"], results[rank]["times"]) if rank in range(len(results)) else "no rank"
                 for rank, result in zip(named, results, strict=True)]
        yield Case(kinds, [USUAL] * len(results), message)
        yield Case(named, [result["slow"] for result in results], message)


# Exercise 3: what went wrong?
def my_diagnosis():
    return {"a": "threads", "b": "data", "c": "slow rank"}


def always(fault):
    return partial(dict.fromkeys, my_diagnosis(), fault)


@exercise(
    solution=my_diagnosis,
    hint="First the table: does a log say of its run what it should not? Then the picture: which phase has grown "
    "beside the sound run, and which has not? What happens in that phase?",
    mistakes={
        "The table would show the wrong number of threads.": always("threads"),
        "Slow data would make the data phase long.": always("data"),
        "The table would show a small batch, and forward would be short.": always("batch"),
        "With a slow rank, rank 0's backward would grow, and little else.": always("slow rank"),
    },
)
def diagnosis(answer):
    """a: 8 threads a rank, on two cores for two ranks. b: each image was opened and decoded when it was asked for. c:
    rank 1 had the processor for a quarter of the time; rank 0, whose log this is, waited for it in backward. A slow
    link would look the same: the exercise before this one tells the two apart."""
    where_to_look = {
        "a": "Look at the table: in which column does run a differ from the sound run? The effect shows in forward and "
             "backward.",
        "b": "Look at the picture: one phase of run b is many times as long as in the sound run, and it comes before "
             "forward.",
        "c": "Look at the picture: forward has grown little, so rank 0 computes about as fast as before. The other "
             "phase, in which it waits for rank 1, has grown.",
    }
    faults, right = ("threads", "data", "batch", "slow rank"), {"a": "threads", "b": "data", "c": "slow rank"}
    named = answer()
    if not isinstance(named, dict) or right.keys() - named.keys():
        raise Wrong(f"Your function returned {named!r}. Return a dict with a fault for each of a, b and c.")
    for run, fault in named.items():
        if fault not in faults:
            raise Wrong(f"{run}: {fault!r} is not among the faults: {', '.join(faults)}.")
    for run in right:
        yield Case(named[run], right[run], f"{run}: not {named[run]!r}. {where_to_look[run]}")


# Exercise 4: the number of ranks for a job
def my_choice(measured, epochs):
    def seconds(ranks):
        starts, epoch = measured[ranks]
        return statistics.median(starts) + epochs * epoch

    return min(measured, key=seconds)


def choose(measured, epochs, start=statistics.median):
    return my_choice({ranks: ([start(starts)], epoch) for ranks, (starts, epoch) in measured.items()}, epochs)


def by_mean_start(measured, epochs):
    return choose(measured, epochs, statistics.mean)


def by_first_start(measured, epochs):
    return choose(measured, epochs, lambda starts: starts[0])


def shortest_epoch(measured, epochs):
    return min(measured, key=lambda ranks: measured[ranks][1])


def first_to_train(measured, epochs):
    return choose(measured, 0)


def one_epoch(measured, epochs):
    return choose(measured, 1)


def seconds_of_the_job(measured, epochs):
    starts, epoch = measured[my_choice(measured, epochs)]
    return statistics.median(starts) + epochs * epoch


def jobs():
    """{ranks: (starts, seconds an epoch)} and the epochs, for each job."""
    started = {1: ([4.0, 4.25, 4.5], 6.0), 2: ([5.25, 24.0, 5.0], 4.0), 4: ([7.25, 7.0, 6.75], 3.5),
               8: ([12.0, 12.5, 11.75], 3.25)}

    def other(random):
        starts, epochs = (sorted(random.sample(range(4, 60), 4), reverse=falling) for falling in (False, True))
        measured = {}
        for place, (start, epoch) in enumerate(zip(starts, epochs, strict=True)):
            late = random.sample((0, 0.5, random.randint(9, 30)), 3)
            # Without 0.05 * place two numbers of ranks could tie.
            measured[3 * 2**place] = [round(start / 4 + 0.05 * place + more, 2) for more in late], epoch / 4
        return measured, random.randint(1, 30)

    short = {1: ([2.0, 2.0, 2.0], 9.0), 2: ([4.0, 2.5, 2.5], 7.5)}
    return drawn([(started, 2), (started, 6), (started, 100), (short, 1)], other)


@exercise(
    solution=my_choice,
    hint="How many seconds does the whole job take with each number of ranks? One start, and then its epochs. One "
    "disturbed start must not move it: statistics.median. Then the smallest: min(..., key=...).",
    mistakes={
        "One start was disturbed, and the mean follows it. The median does not.": by_mean_start,
        "You took the first start alone. It may be the disturbed one: take the median.": by_first_start,
        "These ranks have the shortest epoch. But they start later, and so short a job does not win that back.":
            shortest_epoch,
        "These ranks are the first to train. The others win that back in the epochs: count them, too.": first_to_train,
        "You counted a start for every epoch. The job starts once, however many epochs it has.": one_epoch,
        "Return the number of ranks, not its seconds.": seconds_of_the_job,
    },
)
def choice(answer):
    """More ranks begin later and run faster: like a train against a bicycle, the longer the way, the surer they are
    first. So the best number of ranks depends on the job, and the starts count as much as the speed-up."""
    for measured, epochs in jobs():
        got = answer(copy.deepcopy(measured), epochs)
        right = min(measured, key=lambda ranks: statistics.median(measured[ranks][0]) + epochs * measured[ranks][1])
        yield Case(got, right, f"A job of {epochs} epochs, with measured={measured}: your function returned {got!r}; "
                               f"{right} is right.")
