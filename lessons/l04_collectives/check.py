"""Exercises of lesson 04. All but the first run on ranks: course/on_ranks.py says how."""

from functools import partial
from unittest import mock

import torch
import torch.distributed as dist

from course.exercise import Case, Wrong, drawn_one, exercise
from course.on_ranks import exercise_on_ranks


# Exercise 1: which collective fits
def my_choices():
    return {"a": "broadcast", "b": "all_reduce", "c": "reduce", "d": "reduce_scatter", "e": "all_gather",
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
    solution=my_choices,
    hint="Two questions. Is something added up over the ranks (reduce)? And who needs the result: one rank, all ranks "
    "the same (all_), or each rank another part (scatter)?",
    mistakes={
        "all_reduce adds up, and gives the whole sum to every rank. Most of the tasks need less.":
            lambda: dict.fromkeys("abcdef", "all_reduce"),
        "gather gives all parts to one rank only.": lambda: my_choices() | {"e": "gather"},
        "scatter gives each rank a part, too, but adds nothing up.": lambda: my_choices() | {"d": "scatter"},
        "scatter gives each rank another part.": lambda: my_choices() | {"a": "scatter"},
        "gather brings every rank's number to rank 0, which must then add them up itself.":
            lambda: my_choices() | {"c": "gather"},
    },
)
def choices(answer):
    """b, with gradients in place of losses, is what DDP does in each step. d and e together are an all_reduce with an
    update between its two halves: this is how optimizers and models are sharded (ZeRO, FSDP). As in f, a mixture of
    experts sends each token to the rank of its expert."""
    chosen, right = answer(), my_choices()
    if not isinstance(chosen, dict):
        raise Wrong(f"You returned {chosen!r}. Return a dict, with a name for each letter.")
    if missing := sorted(right.keys() - chosen):
        raise Wrong(f"There is no answer to {', '.join(missing)}.")
    names = {letter: str(chosen[letter]).removeprefix("dist.") for letter in right}
    wrong = sum(names[letter] != right[letter] for letter in right)
    for letter, reason in REASONS.items():
        yield Case(names[letter], right[letter],
                   f"{letter}: {names[letter]} does not fit, or moves more than is needed. {reason}"
                   + (f" ({wrong} of 6 are not right yet.)" if wrong > 1 else ""))


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


def predictions(ranks):
    """The predictions of each rank, a list each: of unequal lengths, rank 0's neither the longest nor empty. Some are
    0."""
    def other(random):
        first, *more = random.sample(range(1, 7), ranks - 2)
        lengths = [first, *random.sample([0, 7, *more], ranks - 1)]
        return [random.sample(range(7), length) for length in lengths]  # of 7 numbers, 0 is one

    return drawn_one([[(3 * rank + 2 * place) % 5 for place in range(length)] for rank, length in enumerate((3, 0, 5))],
                     other)


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
    with mock.patch.multiple(dist, all_gather=of_equal_lengths(all_gather), all_gather_object=forbidden,
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
        "Each rank has its own part: nothing came from the others.": own_alone,
        "The ranks do not have equally many predictions. Fill up the shorter tensors first; for this every rank must "
        "know the longest length.": as_if_equal,
        "The values that you filled up with are still in it.": padding_left,
        "The zeros are gone: 0 is a prediction, too. Cut by length, not by value.": zeros_taken_out,
        "All pieces were cut to the length of this rank. Each piece has a length of its own.": own_length_for_all,
        "Every rank needs all predictions. You return them on rank 0 alone.": for_rank_0_alone,
    },
)
def joined(ranks):
    """Every rank has all predictions, in the order of the ranks, although one rank had none. Lengths first, then
    tensors of equal shape: this is how the data of unequal ranks is gathered."""
    right = [value for measured in ranks for value in measured["own"]]
    for rank, measured in enumerate(ranks):
        yield Case(measured["joined"], right,
                   f"The ranks had {', '.join(str(each['own']) for each in ranks)}. In the end rank {rank} has "
                   f"{measured['joined']} instead of {right}.")


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
    """The ring with one thing changed: how many steps, which chunk is sent first, how far it moves on, which way."""
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


def measure_reduce_scatter(function, context):
    """What this rank sent, as [to which rank, bytes], and the chunks of its tensor before and after."""
    sent, send = [], dist.ProcessGroup.send

    def noted(group, tensors, to, *args):
        sent.append((to, sum(tensor.nbytes for tensor in tensors)))
        return send(group, tensors, to, *args)

    def forbidden(*args, **kwargs):
        raise Wrong("You called a collective. The ring consists of messages between two ranks: send and recv, isend "
                    "and irecv.")

    collectives = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "all_to_all", "broadcast")
    values = drawn_one(10, lambda random: random.choice((11, 13, 17)))  # not a multiple of the ranks
    tensor = torch.tensor([(1 + place % 9) * 10**context.rank for place in range(values)])
    own = [chunk.tolist() for chunk in tensor.tensor_split(context.world_size)]
    with mock.patch.multiple(dist, **dict.fromkeys(collectives, forbidden)), \
            mock.patch.object(dist.ProcessGroup, "send", noted):
        function(tensor)
    return {"sent": sent, "bytes": tensor.nbytes, "own": own,
            "chunks": [chunk.tolist() for chunk in tensor.tensor_split(context.world_size)]}


@exercise_on_ranks(
    measure_reduce_scatter,
    solution=my_reduce_scatter,
    hint="What arrives in one step is sent on in the next. In step 0 rank r sends chunk r, and receives the chunk that "
    "its left neighbour sends: r - 1. So in step 1 it sends chunk r - 1. All numbers of chunks are modulo n.",
    mistakes={
        "You send the same chunk in every step. Send the chunk that has just arrived and been added.":
            partial(rounds, on=0),
        "No chunk is a sum: add the chunk that arrives to the rank's own.": partial(rounds, add=False),
        "You send to the left neighbour.": partial(rounds, way=-1),
        "You make one step too many: count from 0 to n - 2.": partial(rounds, more=1),
        "These are the steps of the whole all_reduce. The second half, which copies the sums, is not part of it.":
            partial(rounds, halves=2),
        "Which chunk does rank r send in step 0?": partial(rounds, first=-1),
        "Send one chunk in each step, not the whole tensor.": partial(rounds, whole=True),
        "This ring is the inside of all_reduce.": with_all_reduce,
        "Does each message have a rank that receives it? And does no rank wait in `send` before it receives, while all "
        "others do the same? Start both together, as `shift` does.": all_send_first,
    },
)
def ring_half(ranks):
    """Each rank has one chunk of the whole sum after n - 1 steps, and has sent no more than n - 1 chunks: this is
    reduce_scatter. With a second round that copies it is all_reduce."""
    n, steps = len(ranks), len(ranks) - 1
    for rank, measured in enumerate(ranks):
        messages, neighbour = len(measured["sent"]), (rank + 1) % n
        yield Case(messages, steps, f"Rank {rank} sent {messages} messages. For {n} ranks this half of the ring has "
                                    f"{steps} steps: after them each chunk is a whole sum, on one of the ranks.")
        receivers = sorted({to for to, _ in measured["sent"]})
        yield Case(receivers, [neighbour],
                   f"Rank {rank} sent to rank {' and '.join(map(str, receivers))}. Each rank sends to its right "
                   f"neighbour only, here to rank {neighbour}.")
        sent = sum(size for _, size in measured["sent"])
        yield Case(sent < measured["bytes"], True,
                   f"Rank {rank} sent {sent} bytes, and its whole tensor has {measured['bytes']}.")
    chunks_of_ranks = zip(*(measured["own"] for measured in ranks), strict=True)
    sums = [[sum(values) for values in zip(*chunks, strict=True)] for chunks in chunks_of_ranks]
    for rank, measured in enumerate(ranks):
        place, chunks = (rank + 1) % n, measured["chunks"]
        whole = [chunk for chunk in range(n) if chunks[chunk] == sums[chunk]]
        yield Case(chunks[place], sums[place],
                   f"Chunk {place} of rank {rank} should hold the sum {sums[place]}; it holds {chunks[place]}."
                   + (f" The whole sum is in chunk {whole[0]}." if whole else ""))


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
    fixed = [set(), {ranks - 1}, {0}, set(range(ranks))]
    return drawn_one(fixed, lambda random: random.sample([*fixed, set(), set(), {random.randrange(1, ranks)}], 7))


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
        "Each rank followed its own wish. The others then wait for the ranks that left the loop.": own_wish,
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
