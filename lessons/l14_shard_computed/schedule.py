"""Orders of work of a pipeline, computed without ranks.

An order is a list for each rank: ("forward", i) or ("backward", i) for each micro-batch i, one after another.
"""


def waits_for(rank, kind, number, ranks):
    """What must have ended before, (rank, kind, number), or None: the neighbour's work on the same micro-batch."""
    if kind == "forward":
        return (rank - 1, kind, number) if rank else None
    return (rank + 1, kind, number) if rank < ranks - 1 else (rank, "forward", number)


def computed(orders):
    """[{rank, event, text, start, end}] of the orders of all ranks, if each forward and each backward takes 1 and
    sending takes nothing. ValueError, one line, says who waits for whom where the ranks cannot reach the end."""
    ends, events, free, done = {}, [], [0] * len(orders), [0] * len(orders)
    going_on = True
    while going_on:
        going_on = False
        for rank, order in enumerate(orders):
            while done[rank] < len(order):
                kind, number = order[done[rank]]
                needed = waits_for(rank, kind, number, len(orders))
                if needed is not None and needed not in ends:
                    break
                start = max(free[rank], ends.get(needed, 0))
                free[rank] = ends[rank, kind, number] = start + 1
                events.append({"rank": rank, "event": kind, "text": str(number), "start": start, "end": start + 1})
                done[rank] += 1
                going_on = True
    waiting = []
    for rank, order in enumerate(orders):
        if done[rank] < len(order):
            kind, number = order[done[rank]]
            of = waits_for(rank, kind, number, len(orders))[0]
            waiting.append(f"rank {rank}, before {kind} {number}, waits for "
                           + (f"rank {of}'s {kind} {number}" if of != rank else f"its own forward {number}"))
    if waiting:
        raise ValueError(f"deadlock: {'; '.join(waiting)}")
    return events


def most_kept(order):
    """How many micro-batches wait for their backward at one time, at most."""
    kept = [0]
    for kind, _ in order:
        kept.append(kept[-1] + (1 if kind == "forward" else -1))
    return max(kept)


def waiting(events):
    """(how long an update takes, the share of it in which a rank computes nothing)."""
    end, ranks = max(event["end"] for event in events), len({event["rank"] for event in events})
    return end, 1 - sum(event["end"] - event["start"] for event in events) / (ranks * end)
