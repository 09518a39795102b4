"""Exercises of notebook 14: self time in a trace, Amdahl's law, when a slow start has paid back, all-reduces saved."""

import math

from scripts.checks import Wrong, exercise

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


def largest_total(events):
    total = {}
    for event in events:
        total[event["name"]] = total.get(event["name"], 0) + event["end"] - event["start"]
    return max(total, key=total.get)


def innermost_and_longest(events):
    def has_children(event):
        return any(event["start"] <= e["start"] and e["end"] <= event["end"] for e in events if e is not event)

    return max((e for e in events if not has_children(e)), key=lambda e: e["end"] - e["start"])["name"]


def largest_single_self(events):
    singles = [{**event, "name": number} for number, event in enumerate(events)]
    return events[my_largest(singles)]["name"]


def all_descendants(events):
    own = {}
    for event in events:
        inside = [e for e in events if event["start"] <= e["start"] and e["end"] <= event["end"] and e is not event]
        self_time = event["end"] - event["start"] - sum(e["end"] - e["start"] for e in inside)
        own[event["name"]] = own.get(event["name"], 0) + self_time
    return max(own, key=own.get)


def called_most(events):
    names = [event["name"] for event in events]
    return max(names, key=names.count)


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
        "the largest total time": largest_total,
        "the longest call without children": innermost_and_longest,
        "the calls of a name not added up": largest_single_self,
        "all descendants taken off": all_descendants,
        "the most calls": called_most,
    },
)
def largest(attempt):
    """Self time, added up over the calls: this is how a profiler sorts its table. Total time would always name the
    outermost label, and a part that nobody named, as waiting in backward, shows as the self time of what is around."""
    for events in TRACES:
        truth, got = my_largest(events), attempt([dict(event) for event in events])
        if got == truth:
            continue
        if got == largest_total(events) and events is TRACES[0]:
            raise Wrong(f"{got} has the largest total time, but that holds the time of all that it calls. Take the "
                        "children's time off.")
        if got == called_most(events) and got == "copy":
            raise Wrong(f"{got} is called most often. Many short calls can be cheap: add up their time.")
        if got == innermost_and_longest(events) and events is TRACES[0]:
            raise Wrong(f"{got} is the longest call with nothing inside. But an event that holds others has time of "
                        "its own, too: here backward has gaps in which no operator runs.")
        if got == all_descendants(events) and events is TRACES[2]:
            raise Wrong(f"You said {got}. If a child holds a grandchild, the grandchild's time is part of the child's: "
                        "you took it off twice. Take off the direct children only.")
        if got == largest_single_self(events):
            raise Wrong(f"{got} has the longest single call. Calls of one name belong together: add them up.")
        raise Wrong(f"You said {got!r}. The largest self time, over all its calls, has {truth!r}.")


# ---------------------------------------------------------------------------------- 2: Amdahl


def my_gain(step, part, times):
    return step / (step - part + part / times)


def the_part_alone(step, part, times):
    return float(times)


def part_taken_off(step, part, times):
    return step / (step - part)


def share_times_times(step, part, times):
    return part / step * times


def seconds_after(step, part, times):
    return step - part + part / times


def share_saved(step, part, times):
    return 1 - (step - part + part / times) / step


@exercise(
    solution=my_gain,
    hint="How long is the step afterwards? The rest stays as it is, and the part takes part / times. Divide the step "
    "before by the step after.",
    mistakes={
        "the gain of the part": the_part_alone,
        "as if the part vanished": part_taken_off,
        "share × times": share_times_times,
        "milliseconds": seconds_after,
        "the share saved": share_saved,
    },
)
def gain(attempt):
    """Amdahl's law, for a part of a step. A part of 10 % gives 1.11 at most, however fast it becomes: so look into the
    profile before you work on a part."""
    for step, part, times in ((20.0, 12.0, 3), (20.0, 2.0, 1000), (8.0, 6.0, 4)):
        truth, got = my_gain(step, part, times), float(attempt(step, part, times))
        if math.isclose(got, truth, rel_tol=1e-6):
            continue
        case = (f"A step of {step:g} ms, in it a part of {part:g} ms that becomes {times} times as fast: you said "
                f"{got:.4g}.")
        if math.isclose(got, times):
            raise Wrong(f"{case} That is the gain of the part. The rest of the step is not faster.")
        if math.isclose(got, part_taken_off(step, part, times)):
            raise Wrong(f"{case} This is the limit, if the part took no time. It still takes {part / times:g} ms.")
        if math.isclose(got, seconds_after(step, part, times)):
            raise Wrong(f"{case} These are the milliseconds of the step afterwards. How many times as fast is it?")
        if math.isclose(got, share_saved(step, part, times)):
            raise Wrong(f"{case} This is the share of the step that is saved. How many times as fast is the step?")
        if math.isclose(got, share_times_times(step, part, times)):
            raise Wrong(f"{case} Shares of time do not multiply so: the rest still takes {step - part:g} ms.")
        raise Wrong(f"{case} Afterwards the step takes {step - part + part / times:g} ms.")


# ---------------------------------------------------------------------------------- 3: paid back


def my_payback(start_before, start_after, before, after):
    if after >= before:
        return math.inf
    return math.ceil((start_after - start_before) / (before - after))


def whole_start(start_before, start_after, before, after):
    return math.inf if after >= before else math.ceil(start_after / (before - after))


def divided_by_a_step(start_before, start_after, before, after):
    return math.inf if after >= before else math.ceil((start_after - start_before) / after)


def never_forgotten(start_before, start_after, before, after):
    return math.ceil((start_after - start_before) / (before - after)) if before != after else 0


def rounded_down(start_before, start_after, before, after):
    return math.inf if after >= before else math.floor((start_after - start_before) / (before - after))


@exercise(
    solution=my_payback,
    hint="Two lines: start_before + n · before, and start_after + n · after. From which whole n on is the second not "
    "above the first? And if it is not less steep? math.inf is a number, too.",
    mistakes={
        "the start before forgotten": whole_start,
        "divided by a step, not by what it saves": divided_by_a_step,
        "negative where it never pays": never_forgotten,
        "rounded down": rounded_down,
    },
)
def payback(attempt):
    """A start that takes longer is paid back by what each step saves. Where a step saves nothing it never is; where it
    saves little, a short run is over before."""
    for start_before, start_after, before, after in ((0.5, 30.5, 0.010, 0.0075), (1.0, 21.0, 0.020, 0.013),
                                                     (0.5, 30.0, 0.010, 0.012), (0.5, 30.0, 0.010, 0.010)):
        truth = my_payback(start_before, start_after, before, after)
        got = float(attempt(start_before, start_after, before, after))
        if got == truth or (truth != math.inf and math.isclose(got, truth, abs_tol=1.01)
                            and got >= (start_after - start_before) / (before - after) - 1e-6):
            continue
        case = (f"The first step takes {start_before:g} s before the change and {start_after:g} s after it, every "
                f"other one {1000 * before:g} and {1000 * after:g} ms: you said {got:g}.")
        if truth == math.inf:
            raise Wrong(f"{case} Here a step is not faster. It never pays back: return math.inf.")
        if math.isclose(got, whole_start(start_before, start_after, before, after), abs_tol=0.5):
            raise Wrong(f"{case} Without the change the start takes {start_before:g} s, too. Only what is more has to "
                        "come back.")
        if math.isclose(got, divided_by_a_step(start_before, start_after, before, after), abs_tol=0.5):
            raise Wrong(f"{case} You divided by the length of a step. What a step gives back is the difference of the "
                        "two lengths.")
        if math.isclose(got, truth - 1, abs_tol=0.5):
            raise Wrong(f"{case} With so many steps a little is still missing: round up.")
        raise Wrong(f"{case} After {truth:g} steps both have taken the same time.")


# ---------------------------------------------------------------------------------- 4: all-reduces


def my_all_reduces(batches, every, buckets):
    return math.ceil(batches / every) * buckets


def each_batch(batches, every, buckets):
    return batches * buckets


def buckets_forgotten(batches, every, buckets):
    return math.ceil(batches / every)


def remainder_forgotten(batches, every, buckets):
    return batches // every * buckets


def the_silent_ones(batches, every, buckets):
    return (batches - math.ceil(batches / every)) * buckets


@exercise(
    solution=my_all_reduces,
    hint="Under no_sync a backward makes no all-reduce. How many backwards are outside it? The batches that are left "
    "at the end need an update, too. Each such backward sends every bucket once.",
    mistakes={
        "an all-reduce in each backward": each_batch,
        "the buckets forgotten": buckets_forgotten,
        "the batches left over forgotten": remainder_forgotten,
        "those under no_sync": the_silent_ones,
    },
)
def all_reduces(attempt):
    """One backward an update synchronises, and it sends every bucket once. Accumulating divides the messages by the
    number of batches an update, whatever their size."""
    for batches, every, buckets in ((12, 4, 3), (10, 4, 2), (7, 1, 5)):
        truth, got = my_all_reduces(batches, every, buckets), float(attempt(batches, every, buckets))
        if got == truth:
            continue
        case = (f"{batches} batches, an update each {every} (and one for those left over), {buckets} buckets: you said "
                f"{got:g}.")
        if got == each_batch(batches, every, buckets):
            raise Wrong(f"{case} That is without no_sync, an all-reduce of each bucket in every backward.")
        if got == buckets_forgotten(batches, every, buckets):
            raise Wrong(f"{case} That is the number of updates. Each of them sends every bucket by itself.")
        if got == remainder_forgotten(batches, every, buckets):
            raise Wrong(f"{case} {batches % every} batches are left over. Without an update their gradients are lost.")
        if got == the_silent_ones(batches, every, buckets):
            raise Wrong(f"{case} You counted the backwards under no_sync. These are the ones that send nothing.")
        raise Wrong(f"{case} {math.ceil(batches / every)} backwards synchronise.")
