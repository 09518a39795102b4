"""Exercises of lesson 12."""

import copy
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import exercise_on_ranks
from lessons.l12_break_it import hang

# Exercise 1: four stacks. Each hang was recorded with hang.py, the stack of the culprit first.
RECORDED = json.loads(Path(hang.__file__).with_name("stacks.json").read_text(encoding="utf-8"))["stacks"]


def recorded_stacks(fault, culprit):
    """{rank: its stack}, as if this rank had been the culprit."""
    own, *others = RECORDED[fault]
    others.insert(culprit, own)
    return dict(enumerate(others))


def calls(stacks):
    """{rank: the function of torch.distributed that it stands in, or None}."""
    inner = {rank: re.search(r'distributed_c10d\.py", line \d+ in (\w+)', text) for rank, text in stacks.items()}
    return {rank: match and match[1] for rank, match in inner.items()}


def culprit_of_stacks(stacks):
    called = calls(stacks)
    collective, _ = Counter(called.values()).most_common(1)[0]
    return next((rank, collective) for rank in called if called[rank] != collective)


def named_in(stacks):
    return {rank: next((name for name in ("all_reduce", "all_gather", "barrier") if name in text), None)
            for rank, text in stacks.items()}


@exercise(
    solution=culprit_of_stacks,
    hint="Of each rank: the function in the first line whose file is distributed_c10d.py, or None where there is no "
    "such line. Three ranks agree. collections.Counter counts; the fourth is the culprit.",
    mistakes={
        "Rank 0 is the rank whose console you see. Any rank can be the culprit.":
            lambda stacks: (0, culprit_of_stacks(stacks)[1]),
        "A rank that stands in a collective waits there for somebody. Who is not with it?":
            lambda stacks: next((rank, call) for rank, call in calls(stacks).items() if call),
        "A culprit may stand in a collective, too: in another one than the rest.": mistake(culprit_of_stacks, {
            "next((rank, collective) for": "next((rank for",
            "!= collective)": "is None), None), collective"}),
        "The rank is right. But that is where the culprit stands. In which collective do the others miss it?":
            mistake(culprit_of_stacks, {"(rank, collective)": "(rank, called[rank])"}),
        "The program has functions of its own, such as all_reduce_gradients. A rank is in a collective when a line of "
        "torch's distributed_c10d.py says so.": mistake(culprit_of_stacks, {
            "calls(": "named_in(", "next((rank, collective) for": "next((rank for",
            "!= collective)": "!= collective), None), collective"}),
    },
)
def stacks(answer):
    """Five hangs: a rank that still loads data, one that packs its gradients, one that has left the loop, one that
    logs alone, and one so dead that it has no stack. All look the same to whoever waits."""
    for fault, culprit in [("loads", 2), ("leaves", 1), ("packs", 3), ("stops", 0), ("logs", 1)]:
        texts, right = recorded_stacks(fault, culprit), (culprit, hang.FAULTS[fault])
        got = as_tuple(answer(dict(texts)))
        where = ", ".join(f"rank {rank} in {innermost(text)}" for rank, text in texts.items())
        yield Case(got, right, f"Four ranks hang: {where}. You returned {got}; {right} is right.")


def as_tuple(got):
    return tuple(got) if isinstance(got, list) else got


def innermost(text):
    """The innermost function of the program on a stack, and torch's if it stands in one, in words."""
    ours, call = re.search(r'hang\.py", line \d+ in (\w+)', text), calls({0: text})[0]
    return "no stack at all" if not ours else f"{ours[1]} ({call})" if call else ours[1]


# Exercise 2: a dump of each of 64 ranks
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
    """(group, collective) of each call of a rank, as train_by_node of hang.py makes them, for 20 steps."""
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
    hint="Keep the entries that are not retired, by group and number: {(group, number): {rank: name}}. In each, the "
    "ranks with the commonest name wait. Members of the group without an entry, or with another name, are suspects. "
    "The culprit is the suspect that waits nowhere with others.",
    mistakes={
        "That rank waits: its last entry is not retired. Having most entries says that it is in more groups, no more.":
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
    """The culprit is missed, and waits for nobody. Of 64 ranks 63 only wait: for their leader, for a leader of another
    node, or for the culprit."""
    cases = [(64, 8, 37, "late", 11, 2000), (64, 8, 51, "late", 8, 16), (64, 8, 22, "other", 14, 16),
             (48, 6, 5, "late", 9, 16)]
    for arguments in cases:
        ranks, per_node, culprit, fault, at, _ = arguments
        group, number = f"node {culprit // per_node}", 2 * at + 1
        right, got = (culprit, group, number), as_tuple(answer(dumps_of(*arguments)))
        did = "did not call it" if fault == "late" else "called barrier as its own"
        yield Case(got, right, f"{ranks} ranks in nodes of {per_node}: the ranks of {group} wait in its collective "
                               f"{number}, and rank {culprit} {did}. So {right} is right; you returned {got}.")


# Exercise 3: a patient with three mistakes
def train(ddp, optimizer, images, labels, epochs):
    sampler, means = DistributedSampler(images, shuffle=True), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2)
        for batch in torch.tensor(list(sampler)).split(4):
            loss = cross_entropy(ddp(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(batch), len(batch)])
        dist.all_reduce(sums)
        if dist.get_rank() == 0:
            means.append((sums[0] / sums[1]).item())
    return means


RAW, NO_EPOCH = {"ddp(images": "ddp.module(images"}, {"        sampler.set_epoch(epoch)\n": ""}


SIZES = 24, 2  # images, epochs that `train` is given; the ranks' shards are equal


def measure_train(function, context):
    """For each epoch the images that this rank took and the sum of their losses; how many gradients were all-reduced;
    what the function returned."""
    torch.manual_seed(0)
    size, epochs = SIZES
    images, labels = torch.randn(size, 5), torch.randint(3, (size,))
    model, taken, sums, reduced = nn.Linear(5, 3), [], [], []

    def note(module, inputs, scores):
        rows = (inputs[0].unsqueeze(1) == images).all(2).int().argmax(1)
        taken.extend(rows.tolist())
        sums.append(cross_entropy(scores.detach(), labels[rows], reduction="sum").item())

    def count(state, bucket):
        reduced.append(bucket.index())
        return allreduce_hook(None, bucket)

    model.register_forward_hook(note)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, count)
    returned = function(ddp, torch.optim.SGD(model.parameters(), lr=0.5), images, labels, epochs)

    def by_epoch(values):
        length = len(values) // epochs
        return [values[epoch * length:(epoch + 1) * length] for epoch in range(epochs)]

    return {"taken": by_epoch(taken), "loss sums": [sum(losses) for losses in by_epoch(sums)],
            "all-reduces": len(reduced), "returned": None if returned is None else list(returned)}


@exercise_on_ranks(
    measure_train,
    solution=train,
    hint="One mistake makes it hang, one leaves the ranks' models to themselves, one repeats an order. You have met "
    "all three: patients 3, 4 and 6.",
    mistakes={
        "Rank 0 alone all-reduces the sums, and the others do not take part.":
            mistake(train, RAW | NO_EPOCH | {"        dist.all_reduce(sums)\n        if dist.get_rank() == 0:\n":
                                             "        if dist.get_rank() == 0:\n            dist.all_reduce(sums)\n"}),
        "Which object must the images go through, so that the gradients are all-reduced?": mistake(train, RAW),
        "The sampler does not know which epoch it is.": mistake(train, NO_EPOCH),
        "Yours is the loss of rank 0's images alone.": mistake(train, {"        dist.all_reduce(sums)\n": ""}),
    },
)
def repaired(ranks):
    """All three are mended: the gradients are all-reduced, each epoch has an order of its own, and the loss is that of
    all images. Only one of the three had stopped the program."""
    returned, (images, epochs) = ranks[0]["returned"], SIZES
    if not returned or len(returned) != epochs:
        raise Wrong(f"Rank 0 returned {returned}. Return a list with the loss of each of the {epochs} epochs.")
    yield Case(all(measured["all-reduces"] for measured in ranks), True,
               "It ends, but no gradient was ever all-reduced: each rank trained a model of its own.")
    taken = [[measured["taken"][epoch] for measured in ranks] for epoch in range(epochs)]
    yield Case(all(sorted(sum(shards, [])) == list(range(images)) for shards in taken), True,
               "In an epoch each image must be taken once, by one of the ranks. Leave that to the sampler.")
    yield Case(taken[0] == taken[1], False,
               f"The models stay together now. But {'both' if epochs == 2 else 'the first two'} epochs take the images "
               f"in the same order: rank 0 begins with {', '.join(map(str, taken[0][0][:4]))} each time.")
    for epoch, loss in enumerate(returned):
        right = sum(measured["loss sums"][epoch] for measured in ranks) / images
        yield Case(loss, right, f"Epoch {epoch}: rank 0 returned the loss {loss:.4f}; that of all {images} images is "
                                f"{right:.4f}.", rel_tol=1e-4)


# Exercise 4: an instrument
def drifted(model):
    names = []
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        differs = (of_rank_0 != parameter).any().int()
        dist.all_reduce(differs, op=dist.ReduceOp.MAX)
        if differs:
            names.append(name)
    return names


DRIFTING = "0.bias", "3.weight"  # ranks add something to the one, and the last rank exchanges rows of the other


def measure_drifted(function, context):
    """What the function says of two models: one the same on all ranks, one with weights that are not."""
    measured = []
    for drift in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2, bias=False))
        added, flipped = map(model.get_parameter, DRIFTING)
        with torch.no_grad():
            flipped.mul_(64).round_().div_(64)  # so that no order of its sum is rounded
            if drift:
                added += 2**-10 * (context.rank - 1)  # of three ranks, rank 1 has the mean
            if drift and context.rank == context.world_size - 1:
                flipped.copy_(flipped.flip(0))  # the sum and the norm stay
        before = copy.deepcopy(model).parameters()
        names = function(model)
        measured.append({"names": names if names is None else sorted(map(str, names)),
                         "changed": not all(map(torch.equal, before, model.parameters()))})
    return {"models": measured}


@exercise_on_ranks(
    measure_drifted,
    solution=drifted,
    hint="For each parameter: a copy, into which rank 0's values are broadcast; does it differ from your own? Then one "
    "more collective, so that every rank knows whether it does on any: dist.ReduceOp.MAX.",
    mistakes={
        "They do not agree: each knows its own comparison alone, and rank 0 has nothing to compare with but itself. "
        "Tell each other.": mistake(drifted, {"        dist.all_reduce(differs, op=dist.ReduceOp.MAX)\n": ""}),
        "An instrument must not change what it measures: receive into a copy.":
            mistake(drifted, {"of_rank_0 =": "own, of_rank_0 =", "clone()": "clone(), parameter.data",
                              "!= parameter)": "!= own)"}),
        "In a parameter that you did not name two rows had changed places: the sum and the norm are the same, the "
        "weights are not. Compare every number.":
            mistake(drifted, {"clone()": "norm()", "!= parameter)": "!= parameter.norm())"}),
        "You named all parameters. Which of them differ?": mistake(drifted, {"if differs": "if True"}),
        "Every rank must return the list, not rank 0 alone.":
            mistake(drifted, {"return names": "return names if dist.get_rank() == 0 else None"}),
    },
)
def instrument(ranks):
    """The same list on every rank, and the model as it was. A few lines to keep: call it after the first step of each
    new script. (TORCH_DISTRIBUTED_DEBUG=DETAIL compares what ranks call, not what they hold.)"""
    for number, differing in enumerate(([], sorted(DRIFTING))):
        results = [measured["models"][number] for measured in ranks]
        changed = [rank for rank, result in enumerate(results) if result["changed"]]
        yield Case(changed, [], f"Your function changed the weights, on rank {' and '.join(map(str, changed))}.")
        weights = f"{' and '.join(differing)} differed between ranks" if differing else "All weights were the same"
        got = [result["names"] for result in results]
        returned = "; ".join(f"rank {rank} returned {names}" for rank, names in enumerate(got))
        yield Case(got, [differing] * len(ranks), f"{weights}: {differing} is right, on every rank. But {returned}.")
