"""Exercises of notebook 07: where a step's time is lost, the rank that holds up the others, logs of runs that went
wrong, and the number of ranks for a job. One runs on ranks: course/on_ranks.py says how."""

import math
import statistics
import time

import torch
import torch.distributed as dist

from course.cases import drawn, drawn_one, exactly, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers

# ---------------------------------------------------------------------------------- on each rank: what a function does

ROUNDS, QUICK, SLOW, TALK = 5, 0.01, 0.04, 0.06  # seconds of work() on a rank, on the slow one, and of talk()
DISTURBED = 0.4  # seconds of rank 0's work in one round


def pace():
    """(ROUNDS, QUICK, SLOW, TALK, DISTURBED)"""
    def other(random):
        times_as_long = random.uniform(1.6, 1.8)
        return random.choice((4, 6)), *(times_as_long * seconds for seconds in (QUICK, SLOW, TALK, DISTURBED))

    return drawn_one((ROUNDS, QUICK, SLOW, TALK, DISTURBED), other)


def measure_slowest(function, here):
    """For two slow ranks, one after another: what the function returned, and how long each work() took here."""
    found, (rounds, quick, slow_one, talking, disturbance) = [], pace()
    for slow in drawn_one((1, here.world_size - 1), lambda random: random.sample(range(1, here.world_size), 2)):
        works, talks = [], []

        def work(slow=slow, works=works):
            start = time.perf_counter()
            disturbed = here.rank == 0 and len(works) == 2
            time.sleep(disturbance if disturbed else slow_one if here.rank == slow else quick)
            works.append(time.perf_counter() - start)

        def talk(talks=talks):
            dist.all_reduce(torch.zeros(1))
            time.sleep(talking)
            talks.append(1)

        got = function(work, talk, rounds)
        if not isinstance(got, tuple | list) or len(got) != 2 or None in got:
            raise Wrong(f"On rank {here.rank} it returned {got!r}. Every rank needs the pair (rank, seconds).")
        if len(works) != rounds or len(talks) != rounds:
            raise Wrong(f"Rank {here.rank} called work() {len(works)} and talk() {len(talks)} times. {rounds} rounds "
                        "were asked for, with one of each: other ranks would wait for the rest.")
        found.append({"got": [int(got[0]), float(got[1])], "works": works})
        dist.barrier()
    return found


answers = Answers({"my_slowest": measure_slowest})


# Exercise 1: what the machine takes, and what talking takes
def my_split(alone, together, ranks, ceiling):
    beside = alone * ranks / ceiling
    return beside - alone, together - beside


def two_numbers(answer):
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise Wrong("Return two numbers, in ms: by being beside each other, by talking.")
    return tuple(round(float(value), 4) for value in answer)


@exercise(
    solution=my_split,
    hint="How long is a step of processes that never talk? In the time of one step alone they do `ceiling` steps, all "
    "together. There are `ranks` of them, so each has done ceiling / ranks of its own step.",
    mistakes={
        "The two are swapped: first what the machine takes, then what talking takes.":
            lambda *asked: my_split(*asked)[::-1],
        "You called all that is more than alone the price of talking. But processes that never talk are slower side by "
        "side, too.": lambda alone, together, ranks, ceiling: (0.0, together - alone),
        "A ceiling of {ceiling:g} counts the steps of *all* {ranks} ranks. Each of them makes a step of its own: it is "
        "not shorter than alone.":
            lambda alone, together, ranks, ceiling: (alone / ceiling - alone, together - alone / ceiling),
        "Speeds and times are one by the other. With half the speed a step takes twice as long, not half as long "
        "again.":
            lambda alone, together, ranks, ceiling: (
                alone * (1 - ceiling / ranks), together - alone * (2 - ceiling / ranks)),
        "As long as alone it takes where the ceiling is as high as the ranks are many. Here they have to share.":
            lambda alone, together, ranks, ceiling: (alone * ranks - alone, together - alone * ranks),
    },
)
def split(attempt):
    """The first part no link and no better program will give back: it is the machine's. Only the second is the price of
    working together: messages, and waiting for the slowest rank."""
    cases = drawn(((10.0, 14.0, 2, 1.6), (5.0, 26.0, 8, 2.0), (4.0, 6.5, 4, 3.2)), lambda random: (
        random.randint(4, 20) / 2, random.randint(170, 200) / 2, random.randint(3, 8), random.choice((1.25, 2.0, 2.5))))
    for miss in misses(split, attempt, cases, read=two_numbers):
        alone, _, ranks, ceiling = miss.asked
        miss.tell("A step takes {alone:g} ms alone and {together:g} ms with {ranks} ranks, the ceiling is {ceiling:g}: "
                  "you said {got[0]:g} and {got[1]:g} ms.", "Side by side, without a word, a step takes {beside:g} ms.",
                  beside=alone * ranks / ceiling)


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
    spent = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        middle = time.perf_counter()
        talk()
        spent.append((middle - start, time.perf_counter() - middle))
    return torch.tensor(spent)


def name(mine):
    of_ranks = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, mine)
    slow = torch.stack(of_ranks).argmax().item()
    return slow, of_ranks[slow].item()


def whole_steps(work, talk, rounds):
    return name(timed(work, talk, rounds).sum(1).median())


def who_waits_longest(work, talk, rounds):
    return name(timed(work, talk, rounds)[:, 1].median())


def mean_of_the_rounds(work, talk, rounds):
    return name(timed(work, talk, rounds)[:, 0].mean())


def own_time(work, talk, rounds):
    return dist.get_rank(), timed(work, talk, rounds)[:, 0].median().item()


def sum_of_the_rounds(work, talk, rounds):
    slow, _ = name(spent := timed(work, talk, rounds)[:, 0].median())
    dist.broadcast(spent, src=slow)
    return slow, rounds * spent.item()


def never_talks(work, talk, rounds):
    for _ in range(rounds):
        work()
    return 0, 0.0


@exercise(
    solution=my_slowest,
    hint="Read the clock before and after work(), not after talk(): there all ranks wait for each other. Take the "
    "statistics.median of the rounds. Then every rank needs the medians of all ranks: dist.all_gather.",
    mistakes={"the whole step": whole_steps, "who waits longest": who_waits_longest, "the mean": mean_of_the_rounds,
              "each its own": own_time, "the sum of the rounds": sum_of_the_rounds, "never talks": never_talks},
)
def slowest(attempt):
    """All ranks' steps are equally long, so no rank's step time tells who is slow, and rank 0's log hardly does. The
    time before the collective tells it: the slow rank works longest, and waits least."""
    ranks, (rounds, _, _, talking, disturbance) = answers.findings("my_slowest", attempt), pace()
    for each in zip(*ranks, strict=True):  # what all ranks saw of one case
        got, works = [one["got"] for one in each], [one["works"] for one in each]
        medians = [statistics.median(times) for times in works]
        slow = medians.index(max(medians))
        if len({rank for rank, _ in got}) > 1 or max(s for _, s in got) - min(s for _, s in got) > 0.003:
            raise Wrong(f"The ranks returned {', '.join(f'({rank}, {seconds:.3f})' for rank, seconds in got)}: each "
                        "knows its own time only. dist.all_gather gives every rank the times of all.")
        (said, seconds), right = got[0], medians[slow]
        if said != slow or abs(seconds - right) > 0.3 * right:
            raise because(
                f"You say rank {said}, {1000 * seconds:.0f} ms. The medians of work() are "
                f"{', '.join(f'{1000 * median:.0f}' for median in medians)} ms.",
                (math.isclose(seconds, rounds * right, rel_tol=0.3) and said == slow, "That is the slow rank. But its "
                 "seconds are those of one round, not of all."),
                (math.isclose(seconds, statistics.mean(works[0]), rel_tol=0.1), "In one round something else kept rank "
                 f"0 busy for {1000 * disturbance:.0f} ms: the mean names it, the median of the rounds does not."),
                (math.isclose(seconds, right + talking, rel_tol=0.15), "That is the time of a whole step, which all "
                 "ranks share: in talk() they wait for the slowest."),
                (said != slow and seconds > talking, "It waits longest in talk(), because it was done first. Who works "
                 "longest is the slow one."))


# Exercise 3: what went wrong?
FAULTS = ("threads", "data", "batch", "slow rank")


def my_diagnosis():
    return {"a": "threads", "b": "data", "c": "slow rank"}


@exercise(
    solution=my_diagnosis,
    hint="First the table: does a log say of its run what it should not? Then the picture: which phase has grown "
    "beside the sound run, and which has not? What happens in that phase?",
    mistakes={"data for a": lambda: my_diagnosis() | {"a": "data"},
              "slow rank for a": lambda: my_diagnosis() | {"a": "slow rank"},
              "threads for b": lambda: my_diagnosis() | {"b": "threads"},
              "batch for c": lambda: my_diagnosis() | {"c": "batch"},
              "threads for c": lambda: my_diagnosis() | {"c": "threads"},
              "no such fault": lambda: my_diagnosis() | {"c": "the weather"}},
)
def diagnosis(attempt):
    """a: 8 threads a rank, on two cores for two ranks. b: each image was opened and decoded when it was asked for. c:
    rank 1 had the processor for a quarter of the time; rank 0, whose log this is, waited for it in backward. A slow
    link would look the same: the exercise before this one tells the two apart."""
    look = {
        "a": "Look at the table: in which column does run a differ from the sound run? Forward and backward are where "
             "it counts.",
        "b": "Look at the picture: one phase of run b is many times as long as in the sound run, and it comes before "
             "forward.",
        "c": "Look at the picture: forward has grown little, so rank 0 computes about as fast as before. What has "
             "grown is the phase in which it waits for the other rank.",
    }

    def named(answer):
        if not isinstance(answer, dict) or look.keys() - answer.keys():
            raise Wrong(f"You gave {answer!r}. Return a dict with a fault for each of a, b and c.")
        for run, fault in answer.items():
            if fault not in FAULTS:
                raise Wrong(f"{run}: {fault!r} is not among the faults: {', '.join(FAULTS)}.")
        return {run: answer[run] for run in look}

    for miss in misses(diagnosis, attempt, [()], read=named):
        run, said = next((run, said) for run, said in miss.got.items() if said != miss.right[run])
        raise because(
            f"{run}: not {said!r}. {look[run]}",
            (said == "threads", "The wrong number of threads would stand in the table."),
            (said == "batch", "A small batch would stand in the table, and forward would be short."),
            (said == "data", "Slow data would make the data phase long."),
            (True, "With a slow rank, rank 0's backward would grow, and little else."))


# Exercise 4: how many ranks for this job?
STARTED = {1: ([4.0, 4.25, 4.5], 6.0), 2: ([5.25, 24.0, 5.0], 4.0), 4: ([7.25, 7.0, 6.75], 3.5),
           8: ([12.0, 12.5, 11.75], 3.25)}
JOBS = (STARTED, 2), (STARTED, 6), (STARTED, 100), ({1: ([2.0, 2.0, 2.0], 9.0), 2: ([4.0, 2.5, 2.5], 7.5)}, 1)


def other_job(random):
    """One for other numbers of ranks. What stands behind the quarters keeps any two of them from a tie."""
    starts, epochs = (sorted(random.sample(range(4, 60), 4), reverse=falling) for falling in (False, True))
    measured = {}
    for place, (start, epoch) in enumerate(zip(starts, epochs, strict=True)):
        late = random.sample((0, 0.5, random.randint(9, 30)), 3)
        measured[3 * 2**place] = [round(start / 4 + 0.05 * place + more, 2) for more in late], epoch / 4
    return measured, random.randint(1, 30)


def my_choice(measured, epochs):
    def seconds(ranks):
        starts, epoch = measured[ranks]
        return statistics.median(starts) + epochs * epoch

    return min(measured, key=seconds)


def chosen(measured, epochs, start=statistics.median):
    return my_choice({ranks: ([start(starts)], epoch) for ranks, (starts, epoch) in measured.items()}, epochs)


@exercise(
    solution=my_choice,
    hint="How many seconds does the whole job take with each number of ranks? One start, and then its epochs. One "
    "disturbed start must not move it: statistics.median. Then the smallest: min(..., key=...).",
    mistakes={
        "One start was disturbed, and the mean follows it. The median does not.":
            lambda *asked: chosen(*asked, start=statistics.mean),
        "You took the first start alone. It may be the disturbed one: take the median.":
            lambda *asked: chosen(*asked, start=lambda starts: starts[0]),
        "It has the shortest epoch. But it starts later, and so short a job does not win that back.":
            lambda measured, epochs: chosen(measured, 1, start=lambda starts: 0),
        "It is the first to train. The others win that back in the epochs: count them, too.":
            lambda measured, epochs: chosen(measured, 0),
        "The job starts once, however many epochs it has.":
            lambda measured, epochs: chosen(measured, 1),
        "Return the number of ranks, not its seconds.":
            lambda measured, epochs: (
                statistics.median(measured[my_choice(measured, epochs)][0])
                + epochs * measured[my_choice(measured, epochs)][1]),
    },
)
def choice(attempt):
    """More ranks begin later and run faster: like a train against a bicycle, the longer the way, the surer they are
    first. So the best number of ranks depends on the job, and the starts count as much as the speed-up."""
    for miss in misses(choice, attempt, drawn(JOBS, other_job), read=exactly):
        miss.tell("A job of {epochs} epochs, and {measured}: you said {got}.", "It is {right}.")
