"""Exercises of lesson 04. All but `choices` run on ranks: course/on_ranks.py says how."""

import math
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, exercise
from course.on_ranks import exercise_on_ranks, patched
from lessons.l04_collectives import messages
from lessons.l04_collectives.solution import my_all_reduce, my_broadcast, my_ring

# ------------------------------------------------------------------------------------------ collectives from messages


FIVE = 5  # ranks of a check that names a shape: on three a chain is a star, on four a tree may be a chain


def numbers(rank):
    """float32, one dimension: 1 2 3 ... of rank 0, 10 20 30 ... of rank 1, as in the lesson's pictures. Their count is
    a multiple of no number of ranks."""
    return torch.tensor([float((1 + place % 9) * 10**rank) for place in range(11)])


def in_worlds(context, call: Callable[[int], dict]) -> dict:
    """{ranks: call(ranks)} for 2, 3 and all ranks, where this rank is one of them: for `call` they are all that there
    are. So each attempt needs as many processes as its largest world, and no more."""
    measured, everyone, wait = {}, dist.group.WORLD, timedelta(seconds=context.timeout)
    worlds = {ranks: dist.new_group(list(range(ranks)), timeout=wait) for ranks in (2, 3)}
    for ranks, world in (worlds | {context.world_size: everyone}).items():
        problem = None
        if context.rank < ranks:
            dist.group.WORLD = world
            try:
                measured[ranks] = call(ranks)
                dist.barrier()  # nobody goes on while another still receives
            except (Exception, SystemExit) as error:  # the learner's
                problem = error
            dist.group.WORLD = everyone
        waited = isinstance(problem, RuntimeError) and re.search("timed out|closed by peer", str(problem), re.I)
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


def watched(function, *arguments):
    """What messages.recorded() saw of the call. Wrong if a message was not waited for."""
    with messages.recorded() as events:
        function(*arguments)
    if 2 * sum(event[0] == "wait" for event in events) < len(events):
        raise Wrong("You started a message with isend or irecv, and did not wait for it. wait() of what they return "
                    "ends it: before, the tensor is not there yet, or not yet sent.")
    return events


def each_world(ranks):
    """(number of ranks, what each of them measured), from what all ranks measured."""
    for world in ranks[0]:
        yield int(world), [measured[world] for measured in ranks[:int(world)]]


def held(rank, got, right, where, what):
    """The case of what a rank holds in the end. `what` says what the first wrong value should be: {wanted}."""
    message = ""
    if got != right:
        place = next(place for place in range(len(right)) if got[place] != right[place])
        message = (f"{where} value {place} of rank {rank} is {got[place]:g} in the end; "
                   + what.format(wanted=f"{right[place]:g}"))
    return Case(got, right, message)


def figures(of_ranks):
    """messages.figures of what the ranks recorded."""
    return messages.figures(messages.rounds([measured["events"] for measured in of_ranks]), len(of_ranks),
                            of_ranks[0]["bytes"])


def described(of_ranks):
    """What the messages of an answer were, in two sentences."""
    seen = figures(of_ranks)
    form = {"mixed": "have no simple shape", "each to each": "go from each rank to each"}.get(
        seen["shape"], f"form a {seen['shape']}")
    return (f"On {len(of_ranks)} ranks your messages {form}: {seen['messages']} messages in {seen['rounds']} rounds, "
            f"one after another. The busiest rank sends {seen['most']:.3g} times its tensor.")


# Exercise 1: broadcast
def to_one_alone(tensor, src):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == src:
        dist.send(tensor, (src + 1) % ranks)
    elif rank == (src + 1) % ranks:
        dist.recv(tensor, src)


def not_into_the_tensor(tensor, src):
    my_broadcast(tensor if dist.get_rank() == src else tensor.clone(), src)


def always_rank_0(tensor, src):
    my_broadcast(tensor, 0)


def star_with(tensor, src, to_itself=False, received=True):
    rank = dist.get_rank()
    for other in range(dist.get_world_size()):
        if rank == src and (to_itself or other != src):
            dist.send(tensor, other)
    if rank != src and received:
        dist.recv(tensor, src)


def passed_on_too_early(tensor, src):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    last = (src - 1) % ranks
    if rank != last:
        dist.send(tensor, (rank + 1) % ranks)
    if rank != src:
        dist.recv(tensor, (rank - 1) % ranks)


def for_powers_of_two(tensor, src):
    ranks = dist.get_world_size()
    place, have = (dist.get_rank() - src) % ranks, 1
    while have < ranks:
        if place < have:
            dist.send(tensor, (place + have + src) % ranks)
        elif place < 2 * have:
            dist.recv(tensor, (place - have + src) % ranks)
        have *= 2


def sources(ranks):
    """Whose tensor all are to get, in each call."""
    return [0, ranks - 1]


def measure_broadcast(function, context):
    """For each number of ranks what this rank held after each call, and what it did in the first."""
    def call(ranks):
        held, done = [], []
        for src in sources(ranks):
            tensor = numbers(context.rank)
            done.append(watched(function, tensor, src))
            held.append(tensor.tolist())
        return {"held": held, "events": done[0], "bytes": tensor.nbytes}

    return in_worlds(context, call)


@exercise_on_ranks(
    measure_broadcast,
    ranks=FIVE,
    solution=my_broadcast,
    hint="Rank src sends, and each other rank receives, into the tensor that it was given: dist.send(tensor, dst) and "
    "dist.recv(tensor, src). Whoever has received may send, too: then others need not wait for src.",
    mistakes={
        "Only one other rank got it. Every rank needs it.": to_one_alone,
        "You received into another tensor. The caller looks at the one that it handed in: receive into that.":
            not_into_the_tensor,
        "You always send rank 0's tensor. `src` says whose it is.": always_rank_0,
        "A rank sent its tensor on before the right one had come: first recv, then send.": passed_on_too_early,
        "src sends to itself, too: leave it out.": partial(star_with, to_itself=True),
        "Does every rank but src call recv, also where src is not rank 0?": partial(star_with, received=False),
        "In the last round of a tree some ranks have nobody left to send to, unless there are 2, 4, 8 or so ranks.":
            for_powers_of_two,
        "You called the collective that you are to build of messages.": dist.broadcast,
    },
)
def broadcasted(ranks):
    """Every rank has the tensor of rank src, on 2, on 3 and on more ranks. Each other rank must receive it, so every
    solution has ranks - 1 messages or more. The rounds differ: a star or a chain needs ranks - 1. In a tree every rank
    that has the tensor sends it on, so it needs log2(ranks) rounds, rounded up."""
    for world, of_ranks in each_world(ranks):
        for number, src in enumerate(sources(world)):
            right = numbers(src).tolist()
            for rank, measured in enumerate(of_ranks):
                yield held(rank, measured["held"][number], right, f"With {world} ranks and src={src},",
                           f"that of rank {src} was {{wanted}}.")
    yield Case(True, True, "", remark=described(of_ranks))


# Exercise 2: all_reduce
def not_in_place(tensor):
    my_all_reduce(tensor.clone())


def sums_with(tensor, adds=True, sends_back="in the end"):
    """The solution where rank 0 replaces its tensor, or sends the sum back at once or never."""
    others = range(1, dist.get_world_size()) if dist.get_rank() == 0 else ()
    for other in others:
        part = torch.empty_like(tensor)
        dist.recv(part, other)
        tensor.copy_(tensor + part if adds else part)
        if sends_back == "at once":
            dist.send(tensor, other)
    for other in others if sends_back == "in the end" else ():
        dist.send(tensor, other)
    if not others:
        dist.send(tensor, 0)
        if sends_back:
            dist.recv(tensor, 0)


def to_the_right(outgoing, incoming):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for transfer in [dist.isend(outgoing, (rank + 1) % ranks), dist.irecv(incoming, (rank - 1) % ranks)]:
        transfer.wait()


def totals_go_round(tensor):
    for _ in range(dist.get_world_size() - 1):
        part = torch.empty_like(tensor)
        to_the_right(tensor, part)
        tensor += part


def averaged(tensor):
    my_all_reduce(tensor)
    tensor /= dist.get_world_size()


def all_send_first(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    for other in set(range(ranks)) - {rank}:
        dist.send(tensor, other)
    for other in set(range(ranks)) - {rank}:
        dist.recv(parts[other], other)
        tensor += parts[other]


def measure_all_reduce(function, context):
    """For each number of ranks what this rank held in the end, and what it did."""
    def call(ranks):
        tensor = numbers(context.rank)
        events = watched(function, tensor)
        return {"held": tensor.tolist(), "events": events, "bytes": tensor.nbytes}

    return in_worlds(context, call)


def sums(ranks):
    """A case for each rank of each number of ranks: it holds the sum."""
    for world, of_ranks in each_world(ranks):
        right = sum(numbers(rank) for rank in range(world)).tolist()
        for rank, measured in enumerate(of_ranks):
            yield held(rank, measured["held"], right, f"With {world} ranks", "the sum is {wanted}. (The ones are rank "
                       "0's, the tens rank 1's, and so on.)")


@exercise_on_ranks(
    measure_all_reduce,
    ranks=FIVE,
    solution=my_all_reduce,
    hint="Two steps are enough: all parts go to one rank, which adds them up; then the sum goes to all, and this is a "
    "broadcast. What arrives needs a tensor of its own, torch.empty_like(tensor), before it is added.",
    mistakes={
        "Rank 0 alone has the sum. Every rank needs it.": partial(sums_with, sends_back=""),
        "The tensor that the caller handed in is as before. Add in place (+=), or copy_ the sum into it.": not_in_place,
        "What arrived has replaced the tensor. Receive into another one, then add.": partial(sums_with, adds=False),
        "Some ranks got a sum before all parts were in it. First receive from all, then send.":
            partial(sums_with, sends_back="at once"),
        "The sum contains some parts more than once: you pass on sums, and add them to sums that contain these parts.":
            totals_go_round,
        "all_reduce adds up, and does not divide.": averaged,
        "All ranks send first, and nobody receives yet. Let some receive first, or start both with isend and irecv.":
            all_send_first,
        "You called the collective that you are to build of messages.": dist.all_reduce,
    },
)
def all_reduced(ranks):
    """Every rank has the sum, on 2, on 3 and on more ranks."""
    yield from sums(ranks)
    *_, (_, of_ranks) = each_world(ranks)
    yield Case(True, True, "", remark=described(of_ranks))


# Exercise 3: the same as a ring
def ring_with(tensor, halves=2, on=1, adds=(True, False), send=to_the_right):
    """The ring with one thing changed: how many halves, how far it moves on, whether each half adds what arrives, and
    how chunks are sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    for step in range(halves * (ranks - 1)):
        incoming = chunks[(rank - on * step - 1) % ranks]
        arriving = torch.empty_like(incoming)
        send(chunks[(rank - on * step) % ranks], arriving)
        incoming.copy_(incoming + arriving if adds[step // (ranks - 1)] else arriving)


def whole_tensors(tensor):
    outgoing = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        arriving = torch.empty_like(tensor)
        to_the_right(outgoing, arriving)
        tensor += arriving
        outgoing = arriving


def send_before_receive(outgoing, incoming):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.send(outgoing, (rank + 1) % ranks)
    dist.recv(incoming, (rank - 1) % ranks)


@exercise_on_ranks(
    measure_all_reduce,
    ranks=FIVE,
    solution=my_ring,
    hint="What arrives in one step is sent on in the next. In step 0 rank r sends chunk r, and receives the chunk that "
    "its left neighbour sends: r - 1. So in step 1 it sends chunk r - 1, and so on, also in the second half. All "
    "numbers of chunks are modulo n.",
    mistakes={
        "You send the same chunk in every step. Send the chunk that has just arrived.": partial(ring_with, on=0),
        "No chunk is a sum in the end. In the first half add the chunk that arrives to the rank's own. The second half "
        "begins with the chunk that is a whole sum then: of rank r it is r + 1.":
            partial(ring_with, adds=(False, False)),
        "In the second half what arrives is a whole sum. Copy it: do not add it.":
            partial(ring_with, adds=(True, True)),
        "This is the first half: each rank has one chunk of the sum. In the second half the sums go round once more.":
            partial(ring_with, halves=1),
        "Cut the tensor with tensor_split, and send one chunk in each step.": whole_tensors,
        "All messages go through one rank: in a ring each rank sends to its right neighbour.": my_all_reduce,
        "Does each message have a rank that receives it? And does no rank wait in `send` before it receives, while all "
        "others do the same? Start both together, as `shift` does.": partial(ring_with, send=send_before_receive),
        "You called the collective that you are to build of messages.": dist.all_reduce,
    },
)
def ring(ranks):
    """The first half is reduce_scatter, the second all_gather; together they are all_reduce. However many ranks there
    are, none sends more than twice its tensor."""
    yield from sums(ranks)
    *_, (world, of_ranks) = each_world(ranks)
    seen = figures(of_ranks)
    yield Case(seen["shape"], "ring", f"The sum is right, but the shape of your messages is: {seen['shape']}. In a "
                                      "ring each rank sends to one neighbour, and receives from the other.")
    most = 2 * (world - 1) * math.ceil(len(of_ranks[0]["held"]) / world) / len(of_ranks[0]["held"])
    yield Case(seen["most"] <= most, True, f"The sum is right, and the ring, too. But on {world} ranks one sends "
                                           f"{seen['most']:.3g} times its tensor; in chunks it is {most:.3g} times.")
    yield Case(True, True, "", remark=described(of_ranks))


# Exercise 4: which collective fits
ANSWERS = {"a": "broadcast", "b": "all_reduce", "c": "reduce", "d": "reduce_scatter", "e": "all_gather",
           "f": "all_to_all"}
REASONS = {
    "a": "Rank 0 has the number that all others need, the same for each.",
    "b": "All ranks need the same sum, to divide it.",
    "c": "Something is added up, and one rank needs it: the others need not receive anything.",
    "d": "A sum over the ranks is needed, and each rank needs only its own part of it.",
    "e": "Each rank has a part, nothing is added up, and every rank needs all parts.",
    "f": "Each rank has another message for each other rank.",
}


@exercise(
    solution=ANSWERS,
    hint="Two questions. Is something added up over the ranks (reduce)? And who needs the result: one rank, all ranks "
    "the same (all_), or each rank another part (scatter)?",
    mistakes={
        "all_reduce adds up, and gives the whole sum to every rank. Most of the tasks need less.":
            dict.fromkeys("abcdef", "all_reduce"),
        "gather gives all parts to one rank only.": ANSWERS | {"e": "gather"},
        "scatter gives each rank a part, too, but adds nothing up.": ANSWERS | {"d": "scatter"},
        "scatter gives each rank another part.": ANSWERS | {"a": "scatter"},
        "gather brings every rank's number to rank 0, which must then add them up itself.":
            ANSWERS | {"c": "gather"},
    },
)
def choices(answer):
    """b, with gradients in place of losses, is what DDP does in each step. d and e together are an all_reduce with an
    update between its two halves: this is how optimizers and models are sharded (ZeRO, FSDP). As in f, a mixture of
    experts sends each token to the rank of its expert."""
    chosen = answer() if callable(answer) else answer
    if not isinstance(chosen, dict):
        raise Wrong(f"You returned {chosen!r}. Return a dict, with a name for each letter.")
    if missing := sorted(ANSWERS.keys() - chosen):
        raise Wrong(f"There is no answer to {', '.join(missing)}.")
    given = {letter: re.sub(r"^dist\.|(_into)?_tensor$|_single$", "", str(chosen[letter])) for letter in ANSWERS}
    wrong = sum(given[letter] != ANSWERS[letter] for letter in ANSWERS)
    for letter, reason in REASONS.items():
        yield Case(given[letter], ANSWERS[letter],
                   f"{letter}: {given[letter]} does not fit, or moves more than is needed. {reason}"
                   + (f" ({wrong} of 6 are not right yet.)" if wrong > 1 else ""))


# Exercise 5: tensors of unequal length
def my_join(mine):
    length = torch.tensor([len(mine)])
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    padded = torch.zeros(max(lengths).item(), dtype=mine.dtype)
    padded[:len(mine)] = mine
    pieces = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(pieces, padded)
    return torch.cat([piece[:own] for piece, own in zip(pieces, lengths, strict=True)])


def padded_pieces(mine):
    longest = torch.tensor([len(mine)])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = torch.zeros(longest.item(), dtype=mine.dtype)
    padded[:len(mine)] = mine
    pieces = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, padded)
    return pieces


def unchanged(own):
    return own


def padding_left(mine):
    return torch.cat(padded_pieces(mine))


def zeros_taken_out(mine):
    joined = torch.cat(padded_pieces(mine))
    return joined[joined != 0]


def own_length_for_all(mine):
    return torch.cat([piece[:len(mine)] for piece in padded_pieces(mine)])


def as_if_equal(mine):
    pieces = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, mine)
    return torch.cat(pieces)


def for_rank_0_alone(mine):
    pieces = padded_pieces(mine)
    lengths = map(len, predictions(dist.get_world_size()))
    return torch.cat([piece[:n] for piece, n in zip(pieces, lengths, strict=True)]) if dist.get_rank() == 0 else None


def predictions(ranks):
    """The predictions of each rank, a list each: of unequal lengths, rank 0's neither the longest nor empty. Some are
    0."""
    return [[(3 * rank + 2 * place) % 5 for place in range(length)] for rank, length in enumerate((3, 0, 5))]


def measure_join(function, context):
    """The rank's own predictions, and what the function made of them."""
    all_gather = dist.all_gather

    def of_equal_lengths(gather):  # with unequal ones gloo would end the process
        def checked(*args, **kwargs):
            mine = args[1] if len(args) > 1 else kwargs.get("tensor", kwargs.get("input_tensor"))
            lengths = [torch.tensor(0) for _ in range(context.world_size)]
            all_gather(lengths, torch.tensor(mine.numel()))
            if len(set(map(int, lengths))) > 1:
                raise Wrong(f"You called {gather.__name__} with {', '.join(str(int(length)) for length in lengths)} "
                            "values on the ranks. It needs equally many on each.")
            return gather(*args, **kwargs)
        return checked

    def forbidden(*args, **kwargs):
        raise Wrong("You called all_gather_object. It works, but packs each tensor with pickle. Send the tensors "
                    "themselves.")

    own = predictions(context.world_size)[context.rank]
    with patched(function, all_gather=of_equal_lengths(all_gather), all_gather_object=forbidden,
                 all_gather_into_tensor=of_equal_lengths(dist.all_gather_into_tensor)):
        result = function(torch.tensor(own, dtype=torch.int64))
    if not torch.is_tensor(result):
        raise Wrong(f"On rank {context.rank} you returned {result!r}, not a tensor.")
    return {"own": own, "joined": result.tolist()}


@exercise_on_ranks(
    measure_join,
    solution=my_join,
    hint="Three steps. All ranks learn all lengths: a number a rank, so its shapes are equal. Each fills its tensor up "
    "to the longest, and all_gather has equal shapes again. Then each piece is cut to its own length.",
    mistakes={
        "Each rank has its own part: nothing came from the others.": unchanged,
        "The ranks do not have equally many predictions. Fill up the shorter tensors first; for this every rank must "
        "know the longest length.": as_if_equal,
        "The values that you filled up with are still in it. (Is each length a tensor of its own? [tensor] * n is one "
        "tensor, n times.)": padding_left,
        "The zeros are gone: 0 is a prediction, too. Cut by length, not by value.": zeros_taken_out,
        "All pieces were cut to the length of this rank. Each piece has a length of its own.": own_length_for_all,
        "Every rank needs all predictions. You return them on rank 0 alone.": for_rank_0_alone,
    },
)
def joined(ranks):
    """Every rank has all predictions, in the order of the ranks, although one rank had none. This is the way to gather
    data of unequal length: first the lengths, then tensors of equal shape."""
    right = [value for measured in ranks for value in measured["own"]]
    for rank, measured in enumerate(ranks):
        yield Case(measured["joined"], right,
                   f"The ranks had {', '.join(str(each['own']) for each in ranks)}. In the end rank {rank} has "
                   f"{measured['joined']} instead of {right}.")


# Exercise 6: stop together
def my_stop(want):
    wishes = torch.tensor(int(want))
    dist.all_reduce(wishes, dist.ReduceOp.MAX)
    return bool(wishes)


def rank_0_decides(want):
    wish = torch.tensor(int(want))
    dist.broadcast(wish, src=0)
    return bool(wish)


def all_must_want(want):
    wishes = torch.tensor(int(want))
    dist.all_reduce(wishes, dist.ReduceOp.MIN)
    return bool(wishes)


def called_only_if_wanted(want):
    if want:
        dist.all_reduce(torch.ones(1))
    return want


def rank_0_alone_learns(want):
    wishes = torch.tensor(int(want))
    dist.reduce(wishes, dst=0)
    return bool(wishes) if dist.get_rank() == 0 else want


def wishes(ranks):
    """The set of ranks that want to stop, in each step: none, the last rank, rank 0, all."""
    return [set(), {ranks - 1}, {0}, set(range(ranks))]


def measure_stop(function, context):
    """The function's answer in each step."""
    answers = [function(context.rank in wanting) for wanting in wishes(context.world_size)]
    if None in answers:
        raise Wrong(f"On rank {context.rank} you returned None. Every rank needs True or False.")
    return {"answers": [bool(answer) for answer in answers]}


@exercise_on_ranks(
    measure_stop,
    solution=my_stop,
    hint="Every rank puts a number, 0 or 1, into one collective, in every step, also when it does not want to stop. "
    "After it every rank must have the same number: which collective, and which ReduceOp?",
    mistakes={
        "Each rank followed its own wish. The others then wait for the ranks that left the loop.": unchanged,
        "It is always rank 0's wish: nobody asked the others.": rank_0_decides,
        "One rank is enough: not all have to want it.": all_must_want,
        "A rank that does not want to stop must call the collective, too.": called_only_if_wanted,
        "The ranks do not agree: `reduce` gives the result to rank 0 alone. The others stay in the loop, and wait for "
        "it.": rank_0_alone_learns,
    },
)
def stopped(ranks):
    """All ranks stop in the same step, whichever rank wants it first. The price is one small all_reduce in each step:
    ask in every 10th step only, or send the wish along with a sum that you make anyway. Without it one rank leaves the
    loop, and the others wait for it in their next collective."""
    for step, wanting in enumerate(wishes(len(ranks))):
        answers, right = [measured["answers"][step] for measured in ranks], bool(wanting)
        yield Case(answers, [right] * len(ranks),
                   f"The ranks wanted to stop: {[rank in wanting for rank in range(len(ranks))]}. Your function "
                   f"answered {answers}; {right} is right on every rank.")
