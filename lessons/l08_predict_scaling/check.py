"""Exercises of notebook 08: an all-reduce that times itself, its bandwidths, processes side by side, the batch from
which DDP pays, and the link that 64 GPUs need. Two run on ranks: course/on_ranks.py says how."""

import math
import statistics
import time

import torch
import torch.distributed as dist

from course import predict
from course.cases import drawn, drawn_one, exactly, misses, same
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers
from course.predict.scaling import Job, Link, Measured, StepTime

# ---------------------------------------------------------------------------------- on each rank: what a function does

WARM_UP = 0.3  # seconds: how late the first call ends
# By how much each later call ends late, on ranks 0, 1, 2. The slowest of each: 150, 130, 160, 500, 250 ms. Each mistake
# is off by more than a busy machine adds: the ranks' own medians, the mean of the ranks, a start 490 ms apart.
LATE = [(0.15, 0.01, 0.03), (0.01, 0.13, 0.03), (0.01, 0.01, 0.16), (0.01, 0.5, 0.03), (0.25, 0.01, 0.03)]
STEP, STEPS = 0.015, 8  # seconds of a step on rank 0; rank 1 takes half as long again, rank 2 twice as long


def late():
    """LATE; or for a grader two rounds more, of which neither is the median, and all of it longer."""
    def other(random):
        times = random.uniform(1.3, 1.5)
        more = [(0.14, 0.01, 0.03), (0.01, 0.03, 0.2)]
        return [tuple(times * seconds for seconds in of_ranks) for of_ranks in LATE + more]

    return drawn_one(LATE, other)


def steps_asked():
    return drawn_one(STEPS, lambda random: random.randint(STEPS + 1, STEPS + 4))


def spanned(work):
    """`work`, and a list that grows by (start, end) of each call; the clock is the same for all processes."""
    spans = []

    def call():
        start = time.monotonic()
        work(len(spans))
        spans.append((start, time.monotonic()))

    return call, spans


def number_of(got, here):
    if got is None:
        raise Wrong(f"On rank {here.rank} it returned None. Every rank needs the number.")
    return float(got)


def measure_timing(function, here):
    """What it returned, and when each collective began and ended here."""
    tensor, rounds = torch.zeros(1000), late()

    def late_all_reduce(number):
        dist.all_reduce(tensor)
        time.sleep(rounds[(number - 1) % len(rounds)][here.rank % 3] if number else WARM_UP)

    call, spans = spanned(late_all_reduce)
    return {"got": number_of(function(call, len(rounds)), here), "spans": spans}


def measure_ceiling(function, here):
    train, spans = spanned(lambda _: time.sleep(STEP * (1 + here.rank / 2)))
    return {"got": number_of(function(train, steps_asked()), here), "spans": spans}


answers = Answers({"my_timing": measure_timing, "my_ceiling": measure_ceiling})


def apart(times):
    return max(times) - min(times)


def near(got, value):
    return abs(got - value) <= 0.12 * value


# Exercise 1: a collective that times itself
def my_timing(call, rounds):
    call()
    seconds = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        call()
        took = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds.append(took.item())
    return statistics.median(seconds)


def own_times(call, rounds, together=True):
    seconds = []
    for _ in range(rounds):
        if together:
            dist.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return torch.tensor(seconds)


def of_all(seconds, op=dist.ReduceOp.MAX):
    dist.all_reduce(seconds, op=op)
    return seconds


def no_warm_up(call, rounds):
    return of_all(own_times(call, rounds)).median().item()


def own_rank_only(call, rounds):
    call()
    return own_times(call, rounds).median().item()


def not_together(call, rounds):
    call()
    return of_all(own_times(call, rounds, together=False)).median().item()


def mean_of_the_ranks(call, rounds):
    call()
    return (of_all(own_times(call, rounds), dist.ReduceOp.SUM) / dist.get_world_size()).median().item()


def mean_of_the_rounds(call, rounds):
    call()
    return of_all(own_times(call, rounds)).mean().item()


def median_before_the_slowest(call, rounds):
    call()
    return of_all(own_times(call, rounds).median()).item()


@exercise(
    solution=my_timing,
    hint="One call that does not count. Then, in each round: dist.barrier(), read the clock, call(), read the clock; "
    "dist.all_reduce(seconds, op=dist.ReduceOp.MAX) of the difference, as a tensor. At the end statistics.median.",
    mistakes={"no warm-up": no_warm_up, "each rank its own": own_rank_only, "no barrier": not_together,
              "the mean of the ranks": mean_of_the_ranks, "the mean of the rounds": mean_of_the_rounds,
              "the median of each rank, then the slowest": median_before_the_slowest},
)
def timing(attempt):
    """That is how message_time.py measures: warmed up, begun together, the slowest rank of each round, and the median
    of the rounds. Each of the four changes the number. On a GPU also torch.cuda.synchronize() before each reading of
    the clock (a collective of NCCL returns before it is done; message_time.py waits for it), and the tensor there."""
    ranks, rounds = answers.findings("my_timing", attempt), len(late())
    got, calls = [rank["got"] for rank in ranks], list(zip(*(rank["spans"] for rank in ranks), strict=True))
    if len(calls) <= rounds:
        raise Wrong(f"{len(calls)} calls, and {rounds} rounds were asked for. The first call, which took "
                    f"{1e3 * WARM_UP:.0f} ms more, must not count: a first message connects the ranks and takes "
                    "memory. Warm up with one more call, before the rounds."
                    if len(calls) == rounds else f"{len(calls)} calls, and {rounds} rounds were asked for.")
    calls = calls[-rounds:]
    took = [[end - start for start, end in of_ranks] for of_ranks in calls]
    right = statistics.median(map(max, took))
    said = " and ".join(f"{1e3 * value:.0f}" for value in got)
    waited = max(apart([start for start, _ in of_ranks]) for of_ranks in calls)
    if waited > 0.25:
        raise Wrong(f"In one round the last rank began {1e3 * waited:.0f} ms after the first. So you also timed how "
                    "long the ranks waited for one another. Let them start each round together: dist.barrier().")
    if apart(got) > 0.01:
        raise Wrong(f"The ranks returned {said} ms: each has timed itself. A collective has ended when the last rank "
                    "has its result, so take the slowest of all: dist.all_reduce with dist.ReduceOp.MAX.")
    if not near(got[0], right):
        raise because(
            f"You say {1e3 * got[0]:.0f} ms; it is {1e3 * right:.0f} ms. The slowest rank of each round took "
            f"{', '.join(f'{1e3 * max(of_ranks):.0f}' for of_ranks in took)} ms.",
            (near(got[0], statistics.mean(map(max, took))), "That is their mean: one disturbed round moves it. The "
             "median stays."),
            (near(got[0], statistics.median(map(statistics.mean, took))), "You took the mean of the ranks. But all "
             "wait for the slowest."),
            (near(got[0], max(statistics.median(times) for times in zip(*took, strict=True))), "You took the median "
             "of each rank first. The slowest rank is another one in each round: MAX first, then the median."))


# Exercise 2: algbw and busbw
def my_bandwidths(bytes, seconds, ranks):
    algbw = bytes / seconds / 1e9
    return algbw, algbw * 2 * (ranks - 1) / ranks


@exercise(
    solution=my_bandwidths,
    hint="algbw is bytes / seconds. busbw counts what each rank sends in the ring: 2 (n - 1) / n times the bytes of "
    "the tensor. 1 GB is 1e9 bytes.",
    mistakes={"no factor": lambda bytes, seconds, ranks: (bytes / seconds / 1e9, bytes / seconds / 1e9),
              "one phase only": lambda bytes, seconds, ranks: (
                  bytes / seconds / 1e9, bytes / seconds / 1e9 * (ranks - 1) / ranks),
              "GiB": lambda bytes, seconds, ranks: my_bandwidths(bytes * 1e9 / 2**30, seconds, ranks),
              "bits": lambda bytes, seconds, ranks: my_bandwidths(8 * bytes, seconds, ranks),
              "one number": lambda bytes, seconds, ranks: my_bandwidths(bytes, seconds, ranks)[1]},
)
def bandwidths(attempt):
    """Both are right for 2, 4 and 8 ranks. algbw tells how long your message takes; busbw tells how well the links are
    used, whatever the number of ranks."""
    def two(answer):
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Wrong(f"You gave {answer!r}. Return two numbers: algbw, busbw.")
        return tuple(float(value) for value in answer)

    cases = drawn(((10**9, 0.5, 8), (4_000_000, 0.002, 4), (1_000_000, 0.001, 2)), lambda random: (
        random.randint(1, 999) * 10**6, random.randint(1, 99) / 1000, random.randint(3, 64)))
    for miss in misses(bandwidths, attempt, cases, read=two):
        (bytes, seconds, ranks), (algbw, busbw), right = miss.asked, miss.got, miss.right
        case = f"{bytes:,} bytes in {seconds} s on {ranks} ranks"
        if not same(algbw, right[0]):
            raise because(
                f"{case}: algbw is bytes / seconds, {right[0]:g} GB/s; you have {algbw:.4g}.",
                (same(algbw, right[0] * 1e9 / 2**30), "These are GiB (2^30 bytes); network speeds are given in GB "
                 "(1e9)."),
                (same(algbw, 8 * right[0]), "These are gigabits. A link of 400 Gbit/s carries 50 GB/s."))
        if not same(busbw, right[1]):
            raise because(
                f"{case}: busbw is {right[1]:.4g} GB/s; you have {busbw:.4g}.",
                (same(busbw, algbw), f"That is algbw. But each rank has to send {2 * (ranks - 1) / ranks:g} times the "
                 "bytes of the tensor."),
                (same(busbw, right[1] / 2), "That is half. The ring goes round twice: once adding, once copying."))


# Exercise 3: side by side
def my_ceiling(train, steps):
    def speed():
        start = time.perf_counter()
        for _ in range(steps):
            train()
        return steps / (time.perf_counter() - start)

    alone = speed() if dist.get_rank() == 0 else 0.0
    dist.barrier()  # the others wait here
    speeds = torch.tensor([alone, speed()])
    dist.all_reduce(speeds)
    return (speeds[1] / speeds[0]).item()


def seconds_of(train, steps):
    start = time.perf_counter()
    for _ in range(steps):
        train()
    return time.perf_counter() - start


def all_alone_at_once(train, steps):
    alone = torch.tensor(steps / seconds_of(train, steps))
    dist.broadcast(alone, src=0)
    dist.barrier()
    return (of_all(torch.tensor(steps / seconds_of(train, steps)), dist.ReduceOp.SUM) / alone).item()


def nobody_waits(train, steps):
    alone = steps / seconds_of(train, steps) if dist.get_rank() == 0 else 0.0
    speeds = of_all(torch.tensor([alone, steps / seconds_of(train, steps)]), dist.ReduceOp.SUM)
    return (speeds[1] / speeds[0]).item()


def alone_and_together(train, steps):
    alone = torch.tensor(seconds_of(train, steps) if dist.get_rank() == 0 else 0.0)
    dist.broadcast(alone, src=0)
    return alone.item(), torch.tensor(seconds_of(train, steps))


def mean_speed(train, steps):
    alone, together = alone_and_together(train, steps)
    return of_all(alone / together, dist.ReduceOp.SUM).item() / dist.get_world_size()


def slowest_counts(train, steps):
    alone, together = alone_and_together(train, steps)
    return dist.get_world_size() * alone / of_all(together).item()


def own_speed(train, steps):
    alone, together = alone_and_together(train, steps)
    return alone / together.item()


@exercise(
    solution=my_ceiling,
    hint="Steps a second is steps / seconds. First on rank 0 alone, while the others wait at dist.barrier(). Then on "
    "all at once. Add up over the ranks with dist.all_reduce, and divide last.",
    mistakes={"all ranks train in the first phase": all_alone_at_once, "nobody waits for rank 0": nobody_waits,
              "the mean, not the sum": mean_speed, "as if all waited for the slowest": slowest_counts,
              "each rank its own": own_speed},
)
def ceiling(attempt):
    """All ranks' speeds added up, by that of one which had the machine for itself. No training on these ranks can be
    faster: what lies between it and the number of ranks, the machine takes; what lies below it, talking does."""
    ranks = answers.findings("my_ceiling", attempt)
    (got, spans), steps = ([rank[name] for rank in ranks] for name in ("got", "spans")), steps_asked()
    if len(spans[0]) < 2 * steps or min(map(len, spans)) < steps:
        raise Wrong(f"The ranks made {', '.join(str(len(one)) for one in spans)} steps. Rank 0 makes {steps} alone, "
                    f"and then each rank {steps}.")
    free = spans[0][steps - 1][1]  # when rank 0 had done its steps alone
    for rank, ((start, _), *_) in enumerate(spans[1:], start=1):
        if start < free - 0.005:
            raise Wrong(f"Rank {rank} began to train {1e3 * (free - start):.0f} ms before rank 0 had done its steps: "
                        "then rank 0 was not alone. " + (
                            "Only rank 0 trains in the first phase: ask dist.get_rank()."
                            if len(spans[rank]) > steps else "Let the others wait at a barrier."))
    speeds = [steps / (one[-1][1] - one[-steps][0]) for one in spans]
    alone = steps / (free - spans[0][0][0])
    right = sum(speeds) / alone
    if apart(got) > 0.01:
        raise Wrong(f"The ranks returned {' and '.join(f'{value:.2f}' for value in got)}: each its own speed. Add up "
                    "over all ranks: dist.all_reduce.")
    if not near(got[0], right):
        raise because(
            f"Alone {alone:.0f} steps a second, together {' + '.join(f'{speed:.0f}' for speed in speeds)}: that is "
            f"{right:.2f} times as many. You have {got[0]:.2f}.",
            (near(got[0], right / len(ranks)), "That is the mean of the ranks. The machine does all of their steps: "
             "take the sum."),
            (near(got[0], len(ranks) * min(speeds) / alone), "That is as if each rank were as slow as the slowest. "
             "But nobody waits for another here: add up what each reaches."),
            (near(got[0], 1 / right), "That is turned round: divide together by alone."))


# Exercise 4: from which batch on does it pay?
def my_batch(fixed, per_image, all_reduce, ranks):
    needed = all_reduce / (ranks - 1)  # a step of one rank must take longer than this
    return max(1, math.floor((needed - fixed) / per_image) + 1)


def tried_out(fixed, per_image, all_reduce, ranks):
    """What is right: one batch size after the other."""
    return next(n for n in range(1, 10_000) if speedup((fixed, per_image, all_reduce, ranks), n) > 1 + 1e-9)


def larger_batch(random):
    """A case that is right for more images than any fixed one, and whose tie lies between two batches."""
    fixed, per_image = random.randint(2, 20) * 1e-4, random.randint(20, 90) * 1e-6
    batch, ranks = random.randint(60, 400), random.randint(2, 8)
    return fixed, per_image, (fixed + per_image * (batch - 0.5)) * (ranks - 1), ranks


def speedup(asked, batch):
    """How many times as fast the model of the lesson says that the ranks of exercise 4 are."""
    fixed, per_image, all_reduce, ranks = asked
    job = Job(StepTime(fixed, per_image), 0, Measured({ranks: (all_reduce, 0)}), overlap=False)
    return predict.scaling.speedup(job, ranks, batch)[0]


@exercise(
    solution=my_batch,
    hint="In the time of one step the ranks do ranks * n images, one rank n. The ranks' step takes fixed + per_image * "
    "n + all_reduce. They are faster where ranks * (fixed + per_image * n) is more than that. Solve for n.",
    mistakes={
        "There the ranks are {ratio:.3f} times as fast as one. Not yet faster: one image more.":
            lambda *asked: max(1, my_batch(*asked) - 1),
        "The step need not take as long as the all-reduce: {ranks} ranks do {ranks} batches in it. There they are "
        "{ratio:.2f} times as fast as one already.":
            lambda fixed, per_image, all_reduce, ranks: my_batch(fixed, per_image, all_reduce, 2),
        "A step also has its fixed part, and the ranks do that side by side, too: it counts for them.":
            lambda fixed, *others: my_batch(0, *others),
        "That is for ranks which share one batch. Here each has a batch of its own.":
            lambda fixed, per_image, all_reduce, ranks: (
                max(1, math.floor(all_reduce / per_image * ranks / (ranks - 1)) + 1)),
    },
)
def break_even(attempt):
    """Your batch size is where the curve crosses 1: below it the ranks talk longer than they gain. More ranks need less
    of a step each, as long as the all-reduce does not get slower with them, and no rank has to wait for a core."""
    cases = ((1e-3, 6.25e-5, 4e-3, 2), (1e-3, 6.25e-5, 4e-3, 4), (2e-4, 5e-5, 2.01e-2, 8), (1e-3, 6e-5, 5e-4, 2))
    for miss in misses(break_even, attempt, drawn(cases, larger_batch), tried_out, exactly):
        if not isinstance(miss.got, int) or miss.got < 1:
            raise Wrong(f"You said {miss.got}. A batch is a whole number of images, 1 or more.")
        fixed, per_image, all_reduce, _ = miss.asked
        ratio = speedup(miss.asked, miss.got)
        miss.tell("Fixed {fixed_ms:g} ms, {image_us:g} µs an image, all-reduce {all_reduce_ms:g} ms, {ranks} ranks: "
                  "you said {got}.", "There the ranks are {ratio:.2f} times as fast as one process. "
                  + ("A smaller batch would do." if ratio > 1 else "They need a larger one."), ratio=ratio,
                  fixed_ms=1e3 * fixed, image_us=1e6 * per_image, all_reduce_ms=1e3 * all_reduce)


# Exercise 5: which link?
def my_bandwidth(step, gradient_bytes, ranks, efficiency):
    allowed = step * (1 / efficiency - 1)  # seconds that may be added to a step
    return 2 * (ranks - 1) / ranks * gradient_bytes / allowed


@exercise(
    solution=my_bandwidth,
    hint="Efficiency is step / (step + all-reduce): how long may the all-reduce take? In a ring each rank sends "
    "2 (ranks - 1) / ranks times the gradients. Bytes by seconds is the bandwidth.",
    mistakes={
        "That is right in bits a second. Return bytes a second.": lambda *asked: 8 * my_bandwidth(*asked),
        "In a ring each rank sends more than its gradients once: reduce-scatter, and then all-gather.":
            lambda step, gradient_bytes, ranks, efficiency: gradient_bytes / (step * (1 / efficiency - 1)),
        "With {efficiency:.0%} the step alone is {efficiency:.0%} of the *whole*. You took the rest as a share of the "
        "step alone.":
            lambda step, gradient_bytes, ranks, efficiency: (
                my_bandwidth(step * efficiency, gradient_bytes, ranks, efficiency)),
        "In each of its 2 (n - 1) steps a ring sends bytes / n, not all bytes.":
            lambda step, gradient_bytes, ranks, efficiency: (
                my_bandwidth(step, ranks * gradient_bytes, ranks, efficiency)),
    },
)
def link(attempt):
    """Your link gives just that efficiency, in the model. The number hardly depends on the ranks, since 2 (n - 1) / n
    goes to 2: what asks for a fast link is many bytes in a short step. Overlap would ask for less, latency for more."""
    cases = drawn(((0.2, 1e8, 64, 0.9), (0.3, 1e8, 4, 0.5), (0.05, 4e8, 8, 0.8)), lambda random: (
        random.randint(1, 50) / 100, random.randint(1, 90) * 1e7, random.randint(2, 64), random.randint(5, 9) / 10))
    for miss in misses(link, attempt, cases):
        step, gradient_bytes, ranks, _ = miss.asked
        if not miss.got > 0:
            raise Wrong(f"You said {miss.got:g}. A bandwidth is more than 0.")
        job = Job(StepTime(step, 0), gradient_bytes, Link(0, miss.got), overlap=False)
        miss.tell("A step of {step:g} s, {megabytes:g} MB, {ranks} ranks, {efficiency:.0%}: you said {said:.4g} "
                  "GB/s.", "The model then gives {reached:.1%}; it would take {needed:.4g} GB/s.",
                  reached=predict.scaling.speedup(job, ranks, 1)[1], megabytes=gradient_bytes / 1e6,
                  said=miss.got / 1e9, needed=miss.right / 1e9)
