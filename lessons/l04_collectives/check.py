"""Exercises of notebook 04. All but the first run on ranks: course/on_ranks.py says how."""

from functools import partial
from unittest import mock

import torch
import torch.distributed as dist

from course.cases import drawn_one, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import SAME_CALLS, Answers

LENGTHS = (3, 0, 5)  # predictions of each rank
VALUES = 10  # of each rank in the ring: they do not divide by three



def predictions(ranks):
    """Those of each rank, a list each: all of other lengths, rank 0's neither the longest nor empty, and a 0 in one."""
    def other(random):
        first, *more = random.sample(range(1, 7), ranks - 2)
        lengths = [first, *random.sample([0, 7, *more], ranks - 1)]
        return [random.sample(range(7), length) for length in lengths]  # of 7 numbers, 0 is one

    return drawn_one([[(3 * rank + 2 * place) % 5 for place in range(length)] for rank, length in enumerate(LENGTHS)],
                     other)


def wishes(ranks):
    """The ranks that want to stop, one step after another: none, the last, rank 0, all."""
    fixed = [set(), {ranks - 1}, {0}, set(range(ranks))]
    return drawn_one(fixed, lambda random: random.sample([*fixed, set(), set(), {random.randrange(1, ranks)}], 7))


# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure_my_join(function, here):
    """A rank's own predictions, zeros among them, and what the function made of them."""
    all_gather = dist.all_gather

    def of_equal_lengths(gather):  # with others gloo would end the process
        def checked(pieces, mine, *rest, **more):
            lengths = [torch.tensor(0) for _ in range(here.world_size)]
            all_gather(lengths, torch.tensor(mine.numel()))
            if len(set(map(int, lengths))) > 1:
                raise Wrong(f"You called {gather.__name__} with {', '.join(str(int(length)) for length in lengths)} "
                            "values on the ranks. They must be equally many: fill up the shorter tensors first.")
            return gather(pieces, mine, *rest, **more)
        return checked

    def forbidden(*args, **kwargs):
        raise Wrong("all_gather_object does it, but packs each tensor with pickle. Send the tensors themselves.")

    mine = torch.tensor(predictions(here.world_size)[here.rank], dtype=torch.int64)
    own = mine.tolist()
    with mock.patch.multiple(dist, all_gather=of_equal_lengths(all_gather), all_gather_object=forbidden,
                             all_gather_into_tensor=of_equal_lengths(dist.all_gather_into_tensor)):
        got = function(mine)
    if not torch.is_tensor(got):
        raise Wrong(f"On rank {here.rank} you returned {got!r}. Every rank needs the tensor.")
    return {"own": own, "got": got.tolist()}


def measure_my_reduce_scatter(function, here):
    """What this rank sent, as (to whom, bytes), and what the function left in each chunk of its tensor."""
    sent, send = [], dist.ProcessGroup.send

    def noted(group, tensors, to, *rest):
        sent.append((to, sum(tensor.nbytes for tensor in tensors)))
        return send(group, tensors, to, *rest)

    def forbidden(*args, **kwargs):
        raise Wrong("The ring has no collectives, only messages between two ranks: send and recv, isend and irecv.")

    collectives = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "all_to_all", "broadcast")
    values = drawn_one(VALUES, lambda random: random.choice((11, 13, 17)))
    tensor = torch.tensor([(1 + cell % 9) * 10**here.rank for cell in range(values)])
    own = [chunk.tolist() for chunk in tensor.tensor_split(here.world_size)]
    with mock.patch.multiple(dist, **dict.fromkeys(collectives, forbidden)), \
            mock.patch.object(dist.ProcessGroup, "send", noted):
        function(tensor)
    return {"sent": sent, "bytes": tensor.nbytes, "own": own,
            "chunks": [chunk.tolist() for chunk in tensor.tensor_split(here.world_size)]}


def measure_my_stop(function, here):
    """The rank's wishes, one after another, and the answers."""
    own = [here.rank in those for those in wishes(here.world_size)]
    got = [function(wish) for wish in own]
    if None in got:
        raise Wrong(f"On rank {here.rank} you returned None. Every rank needs True or False.")
    return {"wishes": own, "got": [bool(answer) for answer in got]}


answers = Answers({"my_join": measure_my_join, "my_reduce_scatter": measure_my_reduce_scatter,
                   "my_stop": measure_my_stop})


# Exercise 1: which collective fits
def my_choices():
    return {"a": "broadcast", "b": "all_reduce", "c": "reduce", "d": "reduce_scatter", "e": "all_gather",
            "f": "all_to_all"}


@exercise(
    solution=my_choices,
    hint="Two questions. Is something added up over the ranks (reduce)? And who needs the result: one rank, all ranks "
    "the same (all_), or each rank another part (scatter)?",
    mistakes={"all_reduce for everything": lambda: dict.fromkeys("abcdef", "all_reduce"),
              "gather for all_gather": lambda: my_choices() | {"e": "gather"},
              "scatter for reduce_scatter": lambda: my_choices() | {"d": "scatter"},
              "scatter for broadcast": lambda: my_choices() | {"a": "scatter"},
              "gather for reduce": lambda: my_choices() | {"c": "gather"}},
)
def choices(attempt):
    """b, with gradients in place of losses, is what DDP does in each step. d and e together are an all_reduce with an
    update between its two halves: this is how optimizers and models are sharded (ZeRO, FSDP). As in f, a mixture of
    experts sends each token to the rank of its expert."""
    why = {
        "a": "Rank 0 has what all others need, the same for each.",
        "b": "All ranks need the same sum, to divide it.",
        "c": "Something is added up, and one rank needs it: the others need not receive anything.",
        "d": "A sum over the ranks is needed, and each rank needs only its own part of it.",
        "e": "Each rank has a part, nothing is added up, and every rank needs all parts.",
        "f": "Each rank has another message for each other rank.",
    }

    def named(answer):
        if not isinstance(answer, dict):
            raise Wrong(f"You gave {answer!r}. Return a dict, with a name for each letter.")
        if missing := sorted(why.keys() - answer):
            raise Wrong(f"There is no answer to {', '.join(missing)}.")
        return {letter: str(answer[letter]) for letter in why}

    for miss in misses(choices, attempt, [()], read=named):
        wrong = [letter for letter in why if miss.got[letter].removeprefix("dist.") != miss.right[letter]]
        more = f" ({len(wrong)} of 6 are not right yet.)" if len(wrong) > 1 else ""
        if wrong:  # not so where a name begins with dist.
            letter = wrong[0]
            raise Wrong(f"{letter}: {miss.got[letter]} does not fit, or moves more than is needed. {why[letter]}{more}")


# Exercise 2: tensors of unequal length
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


def padding_left(mine):
    return torch.cat(padded_pieces(mine))


def zeros_taken_out(mine):
    joined = torch.cat(padded_pieces(mine))
    return joined[joined != 0]


def own_length_for_all(mine):
    return torch.cat([piece[:len(mine)] for piece in padded_pieces(mine)])


def own_alone(mine):
    return mine


def as_if_equal(mine):
    pieces = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, mine)
    return torch.cat(pieces)


def for_rank_0_alone(mine):
    pieces = padded_pieces(mine)
    lengths = map(len, predictions(dist.get_world_size()))
    return torch.cat([piece[:n] for piece, n in zip(pieces, lengths, strict=True)]) if dist.get_rank() == 0 else None


@exercise(
    solution=my_join,
    hint="Three steps. All ranks learn all lengths: a number a rank, so its shapes are equal. Each fills its tensor up "
    "to the longest, and all_gather has equal shapes again. Then each piece is cut to its own length.",
    mistakes={"own alone": own_alone, "all_gather as if all were equal": as_if_equal, "padding left": padding_left,
              "zeros taken out": zeros_taken_out, "own length for all": own_length_for_all,
              "for rank 0 alone": for_rank_0_alone},
)
def joined(attempt):
    """Every rank has all predictions, in the order of the ranks, though one rank had none. Lengths first, then tensors
    of equal shape: so the data of unequal ranks is gathered."""
    ranks = answers.findings("my_join", attempt)
    right = [value for rank in ranks for value in rank["own"]]
    longest = max(len(rank["own"]) for rank in ranks)
    for number, rank in enumerate(ranks):
        got = rank["got"]
        if got != right:
            raise because(
                f"The ranks had {', '.join(str(one['own']) for one in ranks)}. Rank {number} has {got} in the end, and "
                f"not {right}.",
                (got == rank["own"], "That is its own part: nothing came from the others."),
                (len(got) == longest * len(ranks), "What you filled up with is still in it."),
                (got == [value for value in right if value], "The zeros are gone: 0 is a prediction, too. Cut by "
                 "length, not by value."),
                (len(got) == sum(min(len(rank["own"]), longest) for _ in ranks), "All pieces were cut to the length of "
                 "this rank. Each has a length of its own."),
                (sorted(got) == sorted(right), "Nothing is lost, but the order is not that of the ranks."))


# Exercise 3: the first half of the ring
def my_reduce_scatter(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    for step in range(ranks - 1):
        outgoing, incoming = chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]
        arriving = torch.empty_like(incoming)
        to_the_right = dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks)
        from_the_left = dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks)
        for transfer in dist.batch_isend_irecv([to_the_right, from_the_left]):
            transfer.wait()
        incoming += arriving


def rounds(tensor, halves=1, more=0, first=0, on=1, way=1, add=True, whole=False):
    """The ring with one thing another way: how many steps, the first chunk, how far it moves on, to whom it goes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = (tensor,) * ranks if whole else tensor.tensor_split(ranks)
    for step in range(halves * (ranks - 1) + more):
        sent = rank + way * (first - on * step)
        outgoing, incoming = chunks[sent % ranks], chunks[(sent - way) % ranks]
        arriving = torch.empty_like(incoming)
        for transfer in [dist.isend(outgoing, (rank + way) % ranks), dist.irecv(arriving, (rank - way) % ranks)]:
            transfer.wait()
        incoming.copy_(incoming + arriving if add else arriving)


def all_send_first(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    for step in range(ranks - 1):
        incoming = chunks[(rank - step - 1) % ranks]
        arriving = torch.empty_like(incoming)
        dist.send(chunks[(rank - step) % ranks], (rank + 1) % ranks)
        dist.recv(arriving, (rank - 1) % ranks)
        incoming += arriving


def with_all_reduce(tensor):
    dist.all_reduce(tensor)


@exercise(
    solution=my_reduce_scatter,
    hint="What arrives in one step is sent on in the next. In step 0 rank r sends chunk r, and receives the chunk that "
    "its left neighbour sends: r - 1. So in step 1 it sends chunk r - 1. All numbers of chunks are modulo n.",
    mistakes={"its own chunk again and again": partial(rounds, on=0), "copied, not added": partial(rounds, add=False),
              "to the left": partial(rounds, way=-1), "one step too many": partial(rounds, more=1),
              "both halves' steps": partial(rounds, halves=2), "begins with another chunk": partial(rounds, first=-1),
              "the whole tensor": partial(rounds, whole=True), "a collective": with_all_reduce,
              "all send first": all_send_first},
)
def ring_half(attempt):
    """Each rank has one chunk of the whole sum after n - 1 steps, and has sent no more than n - 1 chunks: this is
    reduce_scatter. With a second round that copies it is all_reduce."""
    try:
        ranks = answers.findings("my_reduce_scatter", attempt)
    except Wrong as wrong:
        if SAME_CALLS not in str(wrong):
            raise
        raise Wrong("Ranks waited for each other in vain. Does each message that is sent have a rank that receives it? "
                    "And does no rank wait in `send` before it receives, while all others do the same? Start both "
                    "together, as `shift` does.") from None
    n, steps = len(ranks), len(ranks) - 1
    for number, rank in enumerate(ranks):
        right, sent = (number + 1) % n, sum(size for _, size in rank["sent"])
        if others := {to for to, _ in rank["sent"]} - {right}:
            raise Wrong(f"Rank {number} sent to rank {min(others)}. Each rank sends to its right neighbour only, here "
                        f"to rank {right}.")
        if len(rank["sent"]) != steps:
            raise Wrong(f"Rank {number} sent {len(rank['sent'])} messages. For {n} ranks this half of the ring has "
                        f"{steps} steps: then each chunk is a whole sum, on one of the ranks.")
        if sent >= rank["bytes"]:
            raise Wrong(f"Rank {number} sent {sent} bytes, and its whole tensor has {rank['bytes']}. Send one chunk a "
                        "step.")
    owns = [rank["own"] for rank in ranks]
    sums = [[sum(values) for values in zip(*chunks, strict=True)] for chunks in zip(*owns, strict=True)]
    for number, rank in enumerate(ranks):
        place, got = (number + 1) % n, rank["chunks"]
        if got[place] != sums[place]:
            whole = [chunk for chunk in range(n) if got[chunk] == sums[chunk]]
            raise because(
                f"Chunk {place} of rank {number} should hold the sum {sums[place]}; it holds {got[place]}.",
                (whole, f"Its chunk {whole[:1]} is the one that is whole. Which chunk does rank r send in step 0?"),
                (all(got[chunk] in [own[chunk] for own in owns] for chunk in range(n)), "No chunk is a sum: what "
                 "arrives is to be added to what the rank has."),
                (True, "What arrived in one step is to be added, and sent on in the next."))


# Exercise 4: stop together
def my_stop(want):
    wishes = torch.tensor(int(want))
    dist.all_reduce(wishes, dist.ReduceOp.MAX)
    return bool(wishes)


def own_wish(want):
    return want


def rank_0_decides(want):
    wish = torch.tensor(int(want))
    dist.broadcast(wish, src=0)
    return bool(wish)


def all_must_want(want):
    wishes = torch.tensor(int(want))
    dist.all_reduce(wishes, dist.ReduceOp.MIN)
    return bool(wishes)


def only_who_wants_calls(want):
    if want:
        dist.all_reduce(torch.ones(1))
    return want


def rank_0_alone_learns(want):
    wishes = torch.tensor(int(want))
    dist.reduce(wishes, dst=0)
    return bool(wishes) if dist.get_rank() == 0 else want


@exercise(
    solution=my_stop,
    hint="Every rank puts a number, 0 or 1, into one collective, in every step, also when it does not want to stop. "
    "After it every rank must have the same number: which collective, and which ReduceOp?",
    mistakes={"its own wish": own_wish, "rank 0 decides": rank_0_decides, "all must want": all_must_want,
              "only who wants calls": only_who_wants_calls, "rank 0 alone learns": rank_0_alone_learns},
)
def stopped(attempt):
    """All ranks stop in the same step, whoever wants it first. The price is one small all_reduce in each step: ask
    in every 10th step only, or send the wish along with a sum that you make anyway. Without it one rank leaves the
    loop, and the others wait for it in their next collective."""
    ranks = answers.findings("my_stop", attempt)
    wishes, gots = (list(zip(*(rank[what] for rank in ranks), strict=True)) for what in ("wishes", "got"))
    for wish, got in zip(wishes, gots, strict=True):
        if got != (any(wish),) * len(ranks):
            raise because(
                f"The ranks wanted to stop: {wish}. Your function answered {got}; it should be {any(wish)} everywhere.",
                (gots == wishes, "Each rank followed its own wish. The others then wait for those that left the loop."),
                (all(set(got) == {wish[0]} for wish, got in zip(wishes, gots, strict=True)), "It is always rank 0's "
                 "wish: nobody asked the others."),
                (len(set(got)) > 1, "The ranks do not agree: some leave the loop, the others wait for them."),
                (not any(got), "One rank is enough: not all have to want it."))
