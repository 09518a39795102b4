"""Exercises of lesson 04: two all-reduces made of messages. They run on ranks: course/on_ranks.py says how."""

import math
import re
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, error_and_line, mistake
from course.on_ranks import exercise_on_ranks
from lessons.l04_collectives import messages, solution
from lessons.start.ours.all_reduce import all_reduce

FIVE = 5  # ranks of a check that asks for a ring: on three a ring is also a star
SUM = "the sum is {wanted}. The ones are rank 0's, the tens rank 1's, and so on."


def numbers(rank):
    """What a rank begins with, float32, as in the lesson's pictures: ones of rank 0, tens of rank 1. Eleven numbers,
    which no number of ranks divides; and one, in a tensor without dimensions, such as a loss."""
    eleven = torch.tensor([float((1 + place % 9) * 10**rank) for place in range(11)])
    return {"eleven": eleven, "one": eleven[2].clone()}


def in_worlds(context, call: Callable[[], dict]) -> dict:
    """{ranks: call()} for 2, 3 and all ranks, where this rank is one of them: for `call` they are all that there are.
    So each attempt needs as many processes as its largest world, and no more."""
    measured, wait = {}, timedelta(seconds=context.timeout)
    worlds = {ranks: dist.new_group(list(range(ranks)), timeout=wait) for ranks in (2, 3)}
    for ranks, world in (worlds | {context.world_size: dist.group.WORLD}).items():
        problem = None
        if context.rank < ranks:
            with messages.world(world):
                try:
                    measured[ranks] = call()
                    dist.barrier()  # nobody goes on while another still receives
                except (Exception, SystemExit) as error:  # the learner's
                    problem = error
        waited = in_vain(problem)
        ends = context.gather(f"end of {ranks}", "waited" if waited else problem and "raised", 4 * context.timeout)
        if isinstance(problem, messages.Collective):
            raise Wrong(f"You called {problem}. Build it of messages between two ranks: send and recv, isend and "
                        "irecv.")
        if problem and not waited:
            raise problem
        if waited and "raised" not in ends:
            raise Wrong(f"With {ranks} ranks a rank waited in vain. Each send needs its recv on the other rank, each "
                        "recv its send; and send may return only when the other rank receives.")
        if any(ends):  # the others tell why
            break
    return measured


def in_vain(problem):
    return isinstance(problem, RuntimeError) and re.search("timed out|closed by peer", str(problem), re.I)


def raised(function, tensor):
    """The learner's error in one line, or None. A rank that has waited in vain raises."""
    try:
        function(tensor)
    except Exception as error:
        if in_vain(error):
            raise
        return error_and_line(error, function.__code__.co_filename if hasattr(function, "__code__") else "")
    return None


def measure(function, context):
    """For each number of ranks what this rank held in the end, and what it did; and what it did when it was alone."""
    def call():
        tensors = numbers(context.rank)
        with messages.recorded() as events:
            function(tensors["eleven"])
        if 2 * sum(event[0] == "wait" for event in events) < len(events):
            raise Wrong("You started a message with isend or irecv, and did not wait for it. wait() of what they "
                        "return ends it: before, the tensor is not there yet, or not yet sent.")
        dist.barrier()
        problem = raised(function, tensors["one"])
        return {"events": events, "eleven": tensors["eleven"].tolist(), "one": problem or [tensors["one"].item()]}

    measured = in_worlds(context, call)
    with messages.world(None):
        alone = numbers(0)["eleven"]
        return {"worlds": measured, "alone": raised(function, alone) or alone.tolist()}


def kind_of_error(got):
    """What a rank held, or the kind of error that it raised: the same mistake fails in another line elsewhere."""
    return got.partition(":")[0] if isinstance(got, str) else got


def each_world(ranks):
    """(number of ranks, what each of them measured), from what all ranks measured."""
    for world in ranks[0]["worlds"]:
        yield int(world), [measured["worlds"][world] for measured in ranks[:int(world)]]


def sums(ranks, which):
    """A case for each rank of each number of ranks: it holds the sum of the eleven numbers, or of the one."""
    for world, of_ranks in each_world(ranks):
        right = sum(numbers(rank)[which] for rank in range(world)).view(-1).tolist()
        for rank, measured in enumerate(of_ranks):
            got, message = measured[which], ""
            if isinstance(got, str):
                message = f"With {world} ranks and a tensor that holds one number, without dimensions, it raised {got}"
            elif got != right:
                place = next(place for place in range(len(right)) if got[place] != right[place])
                message = (f"With {world} ranks value {place} of {len(right)} is {got[place]:g} on rank {rank} in the "
                           f"end; {SUM.format(wanted=f'{right[place]:g}')}")
            yield Case(kind_of_error(got), right, message)


def counted(of_ranks):
    return messages.count([measured["events"] for measured in of_ranks], 4 * len(of_ranks[0]["eleven"]))


def described(of_ranks):
    """What the messages of an answer were."""
    seen = counted(of_ranks)
    return (f"On {len(of_ranks)} ranks it takes {seen['messages']} messages, in {seen['rounds']} rounds where each "
            f"pair of ranks has a cable. The busiest rank sends {seen['most']:.3g} times its tensor.")


# Exercise 1: any way
def not_in_place(tensor):
    solution.star(tensor.clone())


def sent_back_at_once(tensor):
    if dist.get_rank() == 0:
        part = torch.empty_like(tensor)
        for other in range(1, dist.get_world_size()):
            dist.recv(part, other)
            tensor += part
            dist.send(tensor, other)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


def whole_tensors(tensor, add_what_is_added=True):
    """Round the ring: the sums so far, or each rank's own tensor."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    for _ in range(ranks - 1):
        arriving = torch.empty_like(tensor)
        receipt = dist.irecv(arriving, (rank - 1) % ranks)
        dist.send(outgoing, (rank + 1) % ranks)
        receipt.wait()
        tensor += arriving
        outgoing = tensor.clone() if add_what_is_added else arriving


def each_tensor_goes_round(tensor):
    whole_tensors(tensor, add_what_is_added=False)


def all_send_first(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = torch.empty_like(tensor)
    for other in set(range(ranks)) - {rank}:
        dist.send(tensor, other)
    for other in set(range(ranks)) - {rank}:
        dist.recv(part, other)
        tensor += part


COLLECTIVE = {"You called the collective that you are to build of messages.": dist.all_reduce}


@exercise_on_ranks(
    measure,
    ranks=FIVE,
    solution=solution.star,
    hint=(
        "Two steps are enough. All parts go to one rank, which adds them up. Then the sum goes to all.",
        "Ask `dist.get_rank()`. Rank 0 receives each part into a tensor of its own, and adds it to `tensor`. "
        "Only when all parts are in does it send.",
        "Rank 0: `part = torch.empty_like(tensor)`; for each other rank `dist.recv(part, other)` and `tensor += "
        "part`; then for each `dist.send(tensor, other)`. All others: `dist.send(tensor, 0)`, `dist.recv(tensor, "
        "0)`."),
    mistakes={
        "Rank 0 alone has the sum. Every rank needs it.": mistake(solution.star, {
            "dist.isend(tensor, other) for other in others": "", "dist.recv(tensor, 0)": ""}),
        "The tensor that the caller handed in is as before. Add in place (+=), or copy_ the sum into it.": not_in_place,
        "What arrived has replaced the tensor. Receive into another one, then add.":
            mistake(solution.star, {"tensor += part": "tensor.copy_(part)"}),
        "Some ranks got a sum before all parts were in it. First receive from all, then send.": sent_back_at_once,
        "The sum contains some parts more than once: you pass on sums, and add them to sums that contain these parts.":
            whole_tensors,
        "all_reduce adds up, and does not divide.": mistake(solution.star, {
            "    for sending in": "    tensor /= dist.get_world_size()\n        for sending in"}),
        "All ranks send first, and nobody receives yet. Let some receive first, or start both with isend and irecv.":
            all_send_first,
    } | COLLECTIVE,
)
def star(ranks):
    """The race has a row for it."""
    yield from sums(ranks, "eleven")
    *_, (_, of_ranks) = each_world(ranks)
    yield Case(True, True, "", remark=described(of_ranks))


# Exercise 2: the ring
MOVES = "chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]"
RECEIVE = "receipt = dist.irecv(arriving, (rank - 1) % ranks)\n"


@exercise_on_ranks(
    measure,
    ranks=FIVE,
    solution=all_reduce,
    hint=(
        "What arrives in one step is sent on in the next. Write down for three ranks which chunk each of them "
        "sends in each step, first half and second half.",
        "In step s of the first half rank r sends chunk (r - s) % n. What arrives belongs to the chunk whose "
        "number is one lower, modulo n. In the end rank r has the whole sum of chunk (r + 1) % n, and begins the "
        "second half with it. `tensor.view(-1)` has one dimension, and the same memory.",
        "`chunks = tensor.view(-1).tensor_split(n)`. For each of 2 * (n - 1) steps: `outgoing, incoming = "
        "chunks[(rank - step) % n], chunks[(rank - step - 1) % n]`. Receive into `torch.empty_like(incoming)` "
        "from the left, send `outgoing` to the right, wait. In the first half add what arrived to `incoming`, in "
        "the second `copy_` it there. A process without a group returns at once."),
    mistakes={
        "You send the same chunk in every step. Send the chunk that has just arrived.":
            mistake(all_reduce, {MOVES: "chunks[rank], chunks[(rank - 1) % ranks]"}),
        "No chunk is a sum in the end. In the first half add the chunk that arrives to the rank's own.":
            mistake(all_reduce, {"incoming += arriving": "incoming.copy_(arriving)"}),
        "In the second half what arrives is a whole sum. Copy it: do not add it.":
            mistake(all_reduce, {"incoming.copy_(arriving)": "incoming += arriving"}),
        "This is the first half: each rank has one chunk of the sum. In the second half the sums go round once more.":
            mistake(all_reduce, {"2 * (ranks - 1)": "ranks - 1"}),
        "The caller's tensor is as before. Parts of `tensor.view(-1)` share its memory; parts of a copy do not.":
            mistake(all_reduce, {"tensor.view(-1)": "tensor.clone().view(-1)"}),
        "`chunk(n)` may give fewer than n parts: eleven numbers for five ranks make four. `tensor_split(n)` gives n.":
            mistake(all_reduce, {"tensor_split": "chunk"}),
        "Cut the tensor into chunks, and send one chunk in each step.": each_tensor_goes_round,
        "Nobody can assign to a place of a tuple, and `chunks[…] += …` does. Give the chunk a name first, or "
        "call `chunks[…].add_(…)`.":
            mistake(all_reduce, {"incoming += arriving": "chunks[(rank - step - 1) % ranks] += arriving"}),
        "All messages go through one rank: in a ring each rank sends to its right neighbour.": solution.star,
        "No rank receives yet, since all are in `send`. Start to receive, then send, then wait: `irecv`, `send`, "
        "`wait()`.": mistake(all_reduce, {RECEIVE: "\n", "receipt.wait()": "dist.recv(arriving, (rank - 1) % ranks)"}),
        "`tensor.view(-1)` makes one dimension of any number, also of none, and shares the memory.":
            mistake(all_reduce, {"tensor.view(-1)": "tensor"}),
        "One process has no group: there the sum is the tensor itself. Return where `dist.is_initialized()` is False.":
            mistake(all_reduce, {"if not dist.is_initialized():\n        return": ""}),
    } | COLLECTIVE,
)
def ring(ranks):
    """The first half is a reduce_scatter, the second an all_gather. `mine/train.py` now adds up with it."""
    yield from sums(ranks, "eleven")
    *_, (world, of_ranks) = each_world(ranks)
    seen = counted(of_ranks)
    sends_to = [sorted({to for now in seen["in_rounds"] for source, to, _ in now if source == rank})
                for rank in range(world)]
    place, met = 0, set()
    while place not in met and len(sends_to[place]) == 1:
        met.add(place)
        place = sends_to[place][0]
    yield Case(len(met) == world, True, f"The sum is right. On {world} ranks they send to these ranks: {sends_to}. In "
                                        "a ring each rank sends to one neighbour, and receives from the other.")
    most = 2 * (world - 1) * math.ceil(11 / world) / 11
    yield Case(seen["most"] <= most, True, f"The sum is right, and the ring, too. But on {world} ranks one sends "
                                           f"{seen['most']:.3g} times its tensor; in chunks it is {most:.3g} times.")
    yield from sums(ranks, "one")
    alone = ranks[0]["alone"]
    yield Case(kind_of_error(alone), numbers(0)["eleven"].tolist(),
               f"In one process without a group, `python mine/train.py`, it gave {alone}")
    yield Case(True, True, "", remark=described(of_ranks))
