"""Messages between ranks: what each rank starts and awaits, the rounds in which they go, and the shape that they have.

A round is what one pair of hands can do: each rank sends one message at most, and receives one. No clock is read, so
the rounds of a program are the same on every machine.
"""

import re
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist

COLLECTIVE = re.compile("_?(broadcast|all|reduce|gather|scatter|barrier)")  # their names in ProcessGroup
PUBLIC = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


class Collective(Exception):
    """A collective was called where messages alone are allowed. The message is its name."""


@contextmanager
def recorded():
    """The list of what this rank does in the block: ["send" or "recv", the other rank, bytes], and ["wait", the place
    of that message in the list]. It sees dist.send, isend and batch_isend_irecv alike. A collective raises
    Collective."""
    group, works, events = dist.ProcessGroup, {}, []
    start_send, start_recv, start_recv_any, wait = group.send, group.recv, group.recv_anysource, dist.Work.wait

    def note(kind, other, tensors, work):
        works[id(work)] = len(events), work  # the work is kept, so that no other gets its id
        events.append([kind, other, sum(tensor.nbytes for tensor in tensors)])
        return work

    def send(group, tensors, to, *args):
        return note("send", to, tensors, start_send(group, tensors, to, *args))

    def recv(group, tensors, source, *args):
        return note("recv", source, tensors, start_recv(group, tensors, source, *args))

    def recv_anysource(group, tensors, *args):
        return note("recv", None, tensors, start_recv_any(group, tensors, *args))

    def waited(work, *args, **kwargs):
        result = wait(work, *args, **kwargs)
        if id(work) in works:
            place, _ = works[id(work)]
            if events[place][1] is None:
                events[place][1] = work._source_rank()
            events.append(["wait", place])
        return result

    def forbidden(name):
        def raises(*args, **kwargs):
            raise Collective(PUBLIC.get(plain, plain))
        plain = name.strip("_").removesuffix("_base")
        return raises

    collectives = {name: forbidden(name) for name in dir(group) if COLLECTIVE.match(name)}
    with mock.patch.multiple(group, send=send, recv=recv, recv_anysource=recv_anysource, **collectives), \
            mock.patch.object(dist.Work, "wait", waited):
        yield events


def rounds(events: list[list]) -> list[list[tuple[int, int, int]]]:
    """The messages (from, to, bytes) in rounds that follow one another, from what each rank recorded.

    In each round go as many messages as can, of those that both of their ranks have started. A rank starts its calls in
    their order, and stops at a wait until that message has come in an earlier round.
    """
    place, started, gone, result = [0] * len(events), [[] for _ in events], set(), []
    while True:
        for rank, own in enumerate(events):
            while place[rank] < len(own) and (own[place[rank]][0] != "wait" or (rank, own[place[rank]][1]) in gone):
                if own[place[rank]][0] != "wait":
                    started[rank].append(place[rank])
                place[rank] += 1
        ready = [{} for _ in events]  # of each rank {the rank that it can send to: (its send, the other's recv)}
        for rank, own in enumerate(events):
            for index in started[rank]:
                kind, to, _ = own[index]
                arrival = next((other for other in started[to] if events[to][other][:2] == ["recv", rank]), None) if (
                    kind == "send") else None
                if arrival is not None:
                    ready[rank].setdefault(to, (index, arrival))
        now = []
        for to, rank in _as_many_as_can(ready).items():
            index, arrival = ready[rank][to]
            now.append((rank, to, events[rank][index][2]))
            gone |= {(rank, index), (to, arrival)}
        if not now:
            return result
        result.append(sorted(now))
        started = [[index for index in own if (rank, index) not in gone] for rank, own in enumerate(started)]


def _as_many_as_can(ready):
    """{receiver: sender}: as many as can be paired at once (Kuhn's algorithm), first those who have most to send."""
    sender_of = {}

    def paired(sender, tried):
        for to in ready[sender]:
            if to not in tried:
                tried.add(to)
                if to not in sender_of or paired(sender_of[to], tried):
                    sender_of[to] = sender
                    return True
        return False

    for sender in sorted(range(len(ready)), key=lambda rank: -len(ready[rank])):
        paired(sender, set())
    return sender_of


def shape(in_rounds: list[list[tuple[int, int, int]]], ranks: int) -> str:
    """"star", "chain", "tree", "ring", "each to each" or "mixed": which ranks the messages join. Of two ranks there is
    one "pair"; on three ranks a chain is a star. An all-reduce of 2 (n - 1) messages goes to one rank and back: "star,
    then tree" where the two ways differ."""
    if ranks == 2:
        return "pair"
    if sum(map(len, in_rounds)) == 2 * (ranks - 1):
        there = next(end for end in range(len(in_rounds) + 1) if sum(map(len, in_rounds[:end])) >= ranks - 1)
        both = [_one_shape(half, ranks) for half in (in_rounds[:there], in_rounds[there:])]
        if "mixed" not in both:
            return ", then ".join(dict.fromkeys(both))
    return _one_shape(in_rounds, ranks)


def _one_shape(in_rounds, ranks):
    ways = {(source, to) for now in in_rounds for source, to, _ in now}
    pairs = {frozenset(way) for way in ways}
    next_of, reached = dict(ways), {0}
    for _ in range(ranks):
        reached |= {rank for pair in pairs if pair & reached for rank in pair}
    degrees = [sum(rank in pair for pair in pairs) for rank in range(ranks)]
    if len(ways) == len(next_of) == len(set(next_of.values())) == len(reached) == ranks:
        return "ring"
    if len(pairs) == ranks - 1 and len(reached) == ranks:
        if max(degrees) == ranks - 1:
            return "star"
        # A chain is rooted at an end, so its messages follow one another; rooted in its middle it has two branches.
        return "chain" if max(degrees) == 2 and len(in_rounds) >= ranks - 1 else "tree"
    return "each to each" if len(pairs) == ranks * (ranks - 1) / 2 else "mixed"


def figures(in_rounds: list[list[tuple[int, int, int]]], ranks: int, tensor_bytes: int) -> dict:
    """{shape, messages, rounds, most (bytes that the busiest rank sends, in tensors), path (the largest message of each
    round, added up, in tensors)}."""
    sent = [sum(size for now in in_rounds for source, _, size in now if source == rank) for rank in range(ranks)]
    path = sum(max(size for *_, size in now) for now in in_rounds)
    return {"shape": shape(in_rounds, ranks), "messages": sum(map(len, in_rounds)), "rounds": len(in_rounds),
            "most": max(sent) / tensor_bytes, "path": path / tensor_bytes}
