"""Exercises of notebook 14: self time in a trace, Amdahl's law, when a slow start has paid back, all-reduces saved."""

import math

from course.checks import exercise
from course.checks.cases import exactly, misses


# Exercise 1: self time
def my_largest(events):
    own = {}
    for event in events:
        inside = [e for e in events if event["start"] <= e["start"] and e["end"] <= event["end"] and e is not event]
        children = [e for e in inside if not any(o["start"] <= e["start"] and e["end"] <= o["end"]
                                                 for o in inside if o is not e)]
        self_time = event["end"] - event["start"] - sum(e["end"] - e["start"] for e in children)
        own[event["name"]] = own.get(event["name"], 0) + self_time
    return max(own, key=own.get)


def inside(event, events):
    """The events that this one holds, however deep."""
    return [e for e in events if event["start"] <= e["start"] and e["end"] <= event["end"] and e is not event]


def seconds(event):
    return event["end"] - event["start"]


def most_of(own, events):
    """The name that has the most, added up over its events, of what `own` gives for each."""
    total = {}
    for event in events:
        total[event["name"]] = total.get(event["name"], 0) + own(event)
    return max(total, key=total.get)


def spans(*rows):
    return [{"name": name, "start": start, "end": end} for name, start, end in rows]


TRACES = [
    # what lies between the operators of `backward` is the most: waiting, say
    spans(("step", 0, 50), ("forward", 1, 15), ("conv", 2, 14), ("backward", 15, 49), ("conv", 16, 22),
          ("copy", 23, 24), ("copy", 25, 26), ("copy", 27, 28)),
    # conv is the longest call, and the three of relu together are longer
    spans(("step", 0, 100), ("forward", 2, 60), ("conv", 4, 29), ("relu", 30, 44), ("relu", 45, 58),
          ("backward", 61, 98), ("relu", 62, 74), ("mm", 75, 97)),
    # three deep
    spans(("backward", 0, 50), ("engine", 10, 40), ("mm", 15, 33)),
]


@exercise(
    solution=my_largest,
    hint="The self time of an event is its length minus that of its children: the events directly inside it. What is "
    "inside a child has been taken off with the child. Then add up the calls of each name.",
    mistakes={
        "{got} has the largest total time, but that holds the time of all that it calls. Take the children's time off.":
            lambda events: most_of(seconds, events),
        "{got} is called most often. Many short calls can be cheap: add up their time.":
            lambda events: most_of(lambda event: 1, events),
        "{got} has the longest single call. Calls of one name belong together: add them up.":
            lambda events: events[my_largest([{**event, "name": n} for n, event in enumerate(events)])]["name"],
        "You said {got}. If a child holds a grandchild, the grandchild's time is part of the child's: you took it off "
        "twice. Take off the direct children only.":
            lambda events: most_of(lambda event: seconds(event) - sum(map(seconds, inside(event, events))), events),
        "{got} is the longest call with nothing inside. But an event that holds others has time of its own, too: here "
        "backward has gaps in which no operator runs.":
            lambda events: max((event for event in events if not inside(event, events)), key=seconds)["name"],
    },
)
def largest(attempt):
    """Self time, added up over the calls: this is how a profiler sorts its table. Total time would always name the
    outermost label, and a part that nobody named, as waiting in backward, shows as the self time of what is around."""
    for miss in misses(largest, attempt, [(events,) for events in TRACES], read=exactly):
        miss.tell("", "You said {got!r}. The largest self time, over all its calls, has {right!r}.")


# Exercise 2: Amdahl
def my_gain(step, part, times):
    return step / (step - part + part / times)


@exercise(
    solution=my_gain,
    hint="How long is the step afterwards? The rest stays as it is, and the part takes part / times. Divide the step "
    "before by the step after.",
    mistakes={
        "That is the gain of the part. The rest of the step is not faster.": lambda step, part, times: times,
        "This is the limit, if the part took no time. It still takes {faster:g} ms.":
            lambda step, part, times: step / (step - part),
        "These are the milliseconds of the step afterwards. How many times as fast is it?":
            lambda step, part, times: step - part + part / times,
        "This is the share of the step that is saved. How many times as fast is the step?":
            lambda step, part, times: 1 - (step - part + part / times) / step,
        "Shares of time do not multiply so: the rest still takes {rest:g} ms.":
            lambda step, part, times: part / step * times,
    },
)
def gain(attempt):
    """Amdahl's law, for a part of a step. A part of 10 % gives 1.11 at most, however fast it becomes: so look into the
    profile before you work on a part."""
    for miss in misses(gain, attempt, ((20.0, 12.0, 3), (20.0, 2.0, 1000), (8.0, 6.0, 4))):
        step, part, times = miss.asked
        miss.tell("A step of {step:g} ms, in it a part of {part:g} ms that becomes {times} times as fast: you said "
                  "{got:.4g}.", "Afterwards the step takes {after:g} ms.", faster=part / times, rest=step - part,
                  after=step - part + part / times)


# Exercise 3: paid back
NEVER = "Here a step is not faster. It never pays back: return math.inf."


def my_payback(start_before, start_after, before, after):
    if after >= before:
        return math.inf
    return math.ceil((start_after - start_before) / (before - after))


@exercise(
    solution=my_payback,
    hint="Two lines: start_before + n · before, and start_after + n · after. From which whole n on is the second not "
    "above the first? And if it is not less steep? math.inf is a number, too.",
    mistakes={
        "Without the change the start takes {start_before:g} s, too. Only what is more has to come back.":
            lambda start_before, *others: my_payback(0, *others),
        "You divided by the length of a step. What a step gives back is the difference of the two lengths.":
            lambda start_before, start_after, before, after: (
                math.inf if after >= before else math.ceil((start_after - start_before) / after)),
        "With so many steps a little is still missing: round up.": lambda *asked: my_payback(*asked) - 1,
        "A step is made or it is not: give a whole number.":
            lambda start_before, start_after, before, after: (
                math.inf if after >= before else (start_after - start_before) / (before - after)),
        NEVER:
            lambda start_before, start_after, before, after: (
                math.ceil((start_after - start_before) / (before - after)) if before != after else 0),
    },
)
def payback(attempt):
    """A start that takes longer is paid back by what each step saves. Where a step saves nothing it never is; where it
    saves little, a short run is over before."""
    cases = ((0.5, 30.5, 0.010, 0.0075), (1.0, 21.0, 0.020, 0.013), (0.5, 30.0, 0.010, 0.012),
             (0.5, 30.0, 0.010, 0.010))
    for miss in misses(payback, attempt, cases):
        if miss.got == miss.right + 1:  # both are right where the two take the same time: seconds are not exact
            continue
        _, _, before, after = miss.asked
        miss.tell("The first step takes {start_before:g} s before the change and {start_after:g} s after it, every "
                  "other one {before_ms:g} and {after_ms:g} ms: you said {got:g}.",
                  NEVER if miss.right == math.inf else "After {right:g} steps both have taken the same time.",
                  before_ms=1000 * before, after_ms=1000 * after)


# Exercise 4: all-reduces
def my_all_reduces(batches, every, buckets):
    return math.ceil(batches / every) * buckets


@exercise(
    solution=my_all_reduces,
    hint="Under no_sync a backward makes no all-reduce. How many backwards are outside it? The batches that are left "
    "at the end need an update, too. Each such backward sends every bucket once.",
    mistakes={
        "That is without no_sync, an all-reduce of each bucket in every backward.":
            lambda batches, every, buckets: batches * buckets,
        "That is the number of updates. Each of them sends every bucket by itself.":
            lambda batches, every, buckets: math.ceil(batches / every),
        "{left} batches are left over. Without an update their gradients are lost.":
            lambda batches, every, buckets: batches // every * buckets,
        "You counted the backwards under no_sync. These are the ones that send nothing.":
            lambda batches, every, buckets: (batches - math.ceil(batches / every)) * buckets,
    },
)
def all_reduces(attempt):
    """One backward an update synchronises, and it sends every bucket once. Accumulating divides the messages by the
    number of batches an update, whatever their size."""
    for miss in misses(all_reduces, attempt, ((12, 4, 3), (10, 4, 2), (7, 1, 5))):
        batches, every, _ = miss.asked
        miss.tell("{batches} batches, an update each {every} (and one for those left over), {buckets} buckets: you "
                  "said {got:g}.", "{updates} backwards synchronise.", left=batches % every,
                  updates=math.ceil(batches / every))
