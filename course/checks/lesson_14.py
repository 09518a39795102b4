"""Exercises of notebook 14: self time in a trace, Amdahl's law, when a slow start has paid back, all-reduces saved."""

import math

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses

# ---------------------------------------------------------------------------------- 1: self time


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


def all_descendants(events):
    return most_of(lambda event: seconds(event) - sum(map(seconds, inside(event, events))), events)


def largest_single_self(events):
    singles = [{**event, "name": number} for number, event in enumerate(events)]
    return events[my_largest(singles)]["name"]


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
        "the largest total time": lambda events: most_of(seconds, events),
        "the longest call without children": lambda events: max(
            (event for event in events if not inside(event, events)), key=seconds)["name"],
        "the calls of a name not added up": largest_single_self,
        "all descendants taken off": all_descendants,
        "the most calls": lambda events: most_of(lambda event: 1, events),
    },
)
def largest(attempt):
    """Self time, added up over the calls: this is how a profiler sorts its table. Total time would always name the
    outermost label, and a part that nobody named, as waiting in backward, shows as the self time of what is around."""
    for miss in misses(largest, attempt, [(events,) for events in TRACES], read=exactly):
        got = miss.got
        miss.explain("", {
            "the largest total time": f"{got} has the largest total time, but that holds the time of all that it "
            "calls. Take the children's time off.",
            "the most calls": f"{got} is called most often. Many short calls can be cheap: add up their time.",
            "the calls of a name not added up": f"{got} has the longest single call. Calls of one name belong "
            "together: add them up.",
            "all descendants taken off": f"You said {got}. If a child holds a grandchild, the grandchild's time is "
            "part of the child's: you took it off twice. Take off the direct children only.",
            "the longest call without children": f"{got} is the longest call with nothing inside. But an event that "
            "holds others has time of its own, too: here backward has gaps in which no operator runs.",
        }, f"You said {got!r}. The largest self time, over all its calls, has {miss.right!r}.")


# ---------------------------------------------------------------------------------- 2: Amdahl


def my_gain(step, part, times):
    return step / (step - part + part / times)


@exercise(
    solution=my_gain,
    hint="How long is the step afterwards? The rest stays as it is, and the part takes part / times. Divide the step "
    "before by the step after.",
    mistakes={
        "the gain of the part": lambda step, part, times: times,
        "as if the part vanished": lambda step, part, times: step / (step - part),
        "share × times": lambda step, part, times: part / step * times,
        "milliseconds": lambda step, part, times: step - part + part / times,
        "the share saved": lambda step, part, times: 1 - (step - part + part / times) / step,
    },
)
def gain(attempt):
    """Amdahl's law, for a part of a step. A part of 10 % gives 1.11 at most, however fast it becomes: so look into the
    profile before you work on a part."""
    for miss in misses(gain, attempt, ((20.0, 12.0, 3), (20.0, 2.0, 1000), (8.0, 6.0, 4))):
        step, part, times = miss.asked
        miss.explain(f"A step of {step:g} ms, in it a part of {part:g} ms that becomes {times} times as fast: you said "
                     f"{miss.got:.4g}.", {
            "the gain of the part": "That is the gain of the part. The rest of the step is not faster.",
            "as if the part vanished": f"This is the limit, if the part took no time. It still takes {part / times:g} "
            "ms.",
            "milliseconds": "These are the milliseconds of the step afterwards. How many times as fast is it?",
            "the share saved": "This is the share of the step that is saved. How many times as fast is the step?",
            "share × times": f"Shares of time do not multiply so: the rest still takes {step - part:g} ms.",
        }, f"Afterwards the step takes {step - part + part / times:g} ms.")


# ---------------------------------------------------------------------------------- 3: paid back


def my_payback(start_before, start_after, before, after):
    if after >= before:
        return math.inf
    return math.ceil((start_after - start_before) / (before - after))


@exercise(
    solution=my_payback,
    hint="Two lines: start_before + n · before, and start_after + n · after. From which whole n on is the second not "
    "above the first? And if it is not less steep? math.inf is a number, too.",
    mistakes={
        "the start before forgotten": lambda start_before, *others: my_payback(0, *others),
        "divided by a step, not by what it saves": lambda start_before, start_after, before, after: (
            math.inf if after >= before else math.ceil((start_after - start_before) / after)),
        "negative where it never pays": lambda start_before, start_after, before, after: (
            math.ceil((start_after - start_before) / (before - after)) if before != after else 0),
        "rounded down": lambda *asked: my_payback(*asked) - 1,
        "not rounded": lambda start_before, start_after, before, after: (
            math.inf if after >= before else (start_after - start_before) / (before - after)),
    },
)
def payback(attempt):
    """A start that takes longer is paid back by what each step saves. Where a step saves nothing it never is; where it
    saves little, a short run is over before."""
    cases = ((0.5, 30.5, 0.010, 0.0075), (1.0, 21.0, 0.020, 0.013), (0.5, 30.0, 0.010, 0.012),
             (0.5, 30.0, 0.010, 0.010))
    for miss in misses(payback, attempt, cases):
        (start_before, start_after, before, after), got = miss.asked, miss.got
        case = (f"The first step takes {start_before:g} s before the change and {start_after:g} s after it, every "
                f"other one {1000 * before:g} and {1000 * after:g} ms: you said {got:g}.")
        if miss.right == math.inf:
            raise Wrong(f"{case} Here a step is not faster. It never pays back: return math.inf.")
        if got == miss.right + 1:  # both are right where the two take the same time: seconds are not exact
            continue
        miss.explain(case, {
            "the start before forgotten": f"Without the change the start takes {start_before:g} s, too. Only what is "
            "more has to come back.",
            "divided by a step, not by what it saves": "You divided by the length of a step. What a step gives back is "
            "the difference of the two lengths.",
            "rounded down": "With so many steps a little is still missing: round up.",
            "not rounded": "A step is made or it is not: give a whole number.",
        }, f"After {miss.right:g} steps both have taken the same time.")


# ---------------------------------------------------------------------------------- 4: all-reduces


def my_all_reduces(batches, every, buckets):
    return math.ceil(batches / every) * buckets


@exercise(
    solution=my_all_reduces,
    hint="Under no_sync a backward makes no all-reduce. How many backwards are outside it? The batches that are left "
    "at the end need an update, too. Each such backward sends every bucket once.",
    mistakes={
        "an all-reduce in each backward": lambda batches, every, buckets: batches * buckets,
        "the buckets forgotten": lambda batches, every, buckets: math.ceil(batches / every),
        "the batches left over forgotten": lambda batches, every, buckets: batches // every * buckets,
        "those under no_sync": lambda batches, every, buckets: (
            (batches - math.ceil(batches / every)) * buckets),
    },
)
def all_reduces(attempt):
    """One backward an update synchronises, and it sends every bucket once. Accumulating divides the messages by the
    number of batches an update, whatever their size."""
    for miss in misses(all_reduces, attempt, ((12, 4, 3), (10, 4, 2), (7, 1, 5))):
        batches, every, buckets = miss.asked
        miss.explain(f"{batches} batches, an update each {every} (and one for those left over), {buckets} buckets: you "
                     f"said {miss.got:g}.", {
            "an all-reduce in each backward": "That is without no_sync, an all-reduce of each bucket in every "
            "backward.",
            "the buckets forgotten": "That is the number of updates. Each of them sends every bucket by itself.",
            "the batches left over forgotten": f"{batches % every} batches are left over. Without an update their "
            "gradients are lost.",
            "those under no_sync": "You counted the backwards under no_sync. These are the ones that send nothing.",
        }, f"{math.ceil(batches / every)} backwards synchronise.")
