"""Exercises of lesson 12: a function that names a culprit, and a part of a slow job."""

import json
from collections import Counter, defaultdict

from course.exercise import Case, exercise, mistake
from lessons.l12_break_it.jobs import job_4815


# Job 4711: a dump of each of 64 ranks
def culprit_of_dumps(dumps):
    members, called = {}, defaultdict(dict)
    for rank, dump in dumps.items():
        for group in dump["pg_config"].values():
            members[group["desc"]] = json.loads(group["ranks"])
        for entry in dump["entries"]:
            if not entry["retired"]:
                called[entry["process_group"][1], entry["collective_seq_id"]][rank] = entry["profiling_name"]
    suspects, waiting = {}, set()
    for (group, number), names in called.items():
        most, _ = Counter(names.values()).most_common(1)[0]
        for rank in members[group]:
            if names.get(rank) == most:
                waiting.add(rank)
            else:
                suspects[rank] = group, number
    return next((rank, *place) for rank, place in suspects.items() if rank not in waiting)


def last_unfinished(dumps, rank):
    """(rank, group, number) of the last collective that this rank has not finished; its last one where there is
    none."""
    entries = dumps[rank]["entries"]
    entry = next((entry for entry in reversed(entries) if not entry["retired"]), entries[-1])
    return rank, entry["process_group"][1], entry["collective_seq_id"]


def fewest_entries(dumps):
    rank = min(dumps, key=lambda rank: len(dumps[rank]["entries"]))
    _, group, number = last_unfinished(dumps, rank)
    return rank, group, number + dumps[rank]["entries"][-1]["retired"]


def program(rank, per_node, culprit, fault, at):
    """(group, collective) of each call of a rank, as train of hang.py makes them, for 20 steps."""
    for step in range(20):
        if rank == culprit and step == at:
            if fault == "late":
                return
            yield f"node {rank // per_node}", "barrier"
        yield f"node {rank // per_node}", "all_reduce"
        if rank % per_node == 0:
            yield "leaders", "all_reduce"
        yield f"node {rank // per_node}", "broadcast"


def dumps_of(ranks, per_node, culprit, fault, at, kept):
    """{rank: its dump}, in the flight recorder's format of PyTorch 2.14, as gloo writes it.

    The format: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html. The ranks are played: a
    collective is completed when all members of its group have called it by the same name, and who is in it goes on.
    """
    members = {f"node {node}": list(range(node * per_node, (node + 1) * per_node)) for node in range(ranks // per_node)}
    members["leaders"] = list(range(0, ranks, per_node))
    entries, together, number = {rank: [] for rank in range(ranks)}, defaultdict(list), Counter()
    todo = {rank: program(rank, per_node, culprit, fault, at) for rank in range(ranks)}
    free = list(range(ranks))
    while free:
        rank = free.pop()
        group, name = next(todo[rank], (None, None))
        if not group:
            continue
        number[rank, group] += 1
        identifier = str(1 + list(members).index(group))
        entries[rank].append(entry := {
            "record_id": len(entries[rank]), "pg_id": int(identifier), "process_group": (identifier, group),
            "collective_seq_id": number[rank, group], "p2p_seq_id": 0, "op_id": number[rank, group],
            "profiling_name": f"gloo:{name}", "time_created_ns": 10**18 + 10**6 * len(entries[rank]),
            "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"],
            "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": False, "timeout_ms": 600_000, "is_p2p": False})
        calls = together[group, number[rank, group]]
        calls.append((rank, entry))
        if len(calls) == len(members[group]) and len({entry["profiling_name"] for _, entry in calls}) == 1:
            for caller, its_entry in calls:
                its_entry["retired"] = True
                free.append(caller)
    return {rank: {"version": "2.10", "entries": entries[rank][-kept:],
                   "pg_config": {str(place): {"name": str(place), "desc": group, "ranks": str(of_group)}
                                 for place, (group, of_group) in enumerate(members.items(), 1) if rank in of_group}}
            for rank in range(ranks)}


@exercise(
    solution=culprit_of_dumps,
    hint=("The culprit is missed by others. It waits for nobody, or in a collective that nobody else has called.",
          "Keep the entries that are not retired, by group and number: {(group, number): {rank: name}}. In each, the "
          "ranks with the commonest name wait. Members of the group without an entry, or with another name, are "
          "suspects.",
          "For each (group, number): waiting.add(rank) or suspects[rank] = group, number. At the end return the "
          "suspect that is not in waiting: next((rank, *place) for rank, place in suspects.items() if …)."),
    mistakes={
        "That rank waits: its last entry is not retired. Having most entries says only that it is in more groups.":
            lambda dumps: last_unfinished(dumps, max(dumps, key=lambda rank: len(dumps[rank]["entries"]))),
        "The recorder keeps the last calls only, so ranks have equally many entries, however far they came.":
            fewest_entries,
        "Each group counts for itself: a low number in one group is not behind a high one in another.":
            lambda dumps: last_unfinished(dumps, min(
                dumps, key=lambda rank: dumps[rank]["entries"][-1]["collective_seq_id"])),
        "That rank is missed by others, but it waits, too: in another group. Go on to the rank for which it waits.":
            mistake(culprit_of_dumps, {"names.get(rank) == most": "rank in names", " if rank not in waiting": ""}),
        "In one hang all ranks of the node have an entry of this number. Compare the names: one called something else.":
            mistake(culprit_of_dumps, {"names.get(rank) == most": "rank in names",
                                       "next((rank, *place) for": "next(((rank, *place) for",
                                       "not in waiting)": "not in waiting), None)"}),
        "The rank is right. That is the last collective it has finished; the others wait in the next.":
            mistake(culprit_of_dumps, {"(rank, *place)": "(rank, place[0], place[1] - 1)"}),
    },
)
def dumps(answer):
    """The culprit is missed. It waits for nobody, or in a collective that nobody else has called. Of 64 ranks the 63
    others wait: for their leader, for a leader of another node, or for the culprit."""
    cases = [(64, 8, 37, "late", 11, 2000), (64, 8, 51, "late", 8, 16), (64, 8, 22, "other", 14, 16),
             (48, 6, 5, "late", 9, 16)]
    for arguments in cases:
        ranks, per_node, culprit, fault, at, _ = arguments
        group, number = f"node {culprit // per_node}", 2 * at + 1
        right, got = (culprit, group, number), answer(dumps_of(*arguments))
        did = "did not call it" if fault == "late" else "called barrier under that number, in place of all_reduce"
        yield Case(got, right, f"{ranks} ranks in nodes of {per_node}: the ranks of {group} wait in its collective "
                               f"{number}, and rank {culprit} {did}. So {right} is right; you returned {got}.")


# Job 4815: which recordings a rank takes
def shard(lengths, rank, world_size):
    ordered = sorted(range(len(lengths)), key=lambda index: lengths[index])
    return ordered[rank:len(ordered) // world_size * world_size:world_size]


@exercise(
    solution=shard,
    hint=("In every step the ranks wait for the one with the longest recordings. When would all be equally long?",
          "Neighbours in a list sorted by length are about equally long. Deal them out like cards.",
          "Of the sorted list rank 0 takes the items 0, n, 2n …, rank 1 the items 1, n + 1, 2n + 1 …: a slice "
          "with a step."),
    mistakes={
        "They are equally many, and one rank still has the long ones: that is what the job did.": job_4815.shard,
        "All in one order of chance: in each step another rank has the longest, and all wait for it.":
            mistake(shard, {"key=lambda index: lengths[index])": "key=lambda index: index * 7919 % 8191)"}),
        "Each rank took all of them. Each recording belongs to one rank.":
            mistake(shard, {"[rank:": "[:", ":world_size]": "]"}),
    },
)
def faster(answer):
    """Each recording belongs to one rank, and in each step all ranks have about equally much to do."""
    lengths = job_4815.manifest()
    for ranks, listed in ((2, lengths), (3, lengths), (2, lengths[::3] + lengths[1::3] + lengths[2::3])):
        shares = [list(answer(list(listed), rank, ranks)) for rank in range(ranks)]
        counts = [len(share) for share in shares]
        yield Case(counts, [len(listed) // ranks] * ranks, f"{ranks} ranks took {counts} of {len(listed)} recordings. "
                   f"With unequal numbers a rank waits at the end for ever.")
        taken = sorted(sum(shares, []))
        yield Case(taken, list(range(len(listed))), f"{ranks} ranks took {len(set(taken))} different recordings of "
                   f"{len(listed)}. Each must be taken once.")
        totals = [sum(listed[index] for index in share) for share in shares]
        yield Case(max(totals) < 1.3 * min(totals), True, f"{ranks} ranks have recordings of {totals} frames in all.")
        size, worst = job_4815.PER_BATCH, 0.0
        for first in range(0, counts[0], size):
            longest = [max(listed[index] for index in share[first:first + size]) for share in shares]
            worst = max(worst, max(longest) / min(longest))
        yield Case(worst < 1.5, True, f"{ranks} ranks: in a step one rank's batch is {worst:.1f} times as long as "
                   "another's, padding included. A batch is as long as its longest recording.")
