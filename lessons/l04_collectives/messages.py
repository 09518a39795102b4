"""Messages between ranks: what each rank starts and awaits, and the rounds in which they go on two kinds of networks.

No clock is read, so the rounds of a program are the same on every machine.
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
def world(group):
    """Within it the ranks of `group` are all that there are; None: this process is alone."""
    everyone, dist.group.WORLD = dist.group.WORLD, group
    try:
        yield
    finally:
        dist.group.WORLD = everyone


@contextmanager
def recorded():
    """The list of what this rank does in the block: ["send" or "recv", the other rank, bytes], and ["wait", the place
    of that message in the list], or "in vain" where it gave up. It sees dist.send, isend and batch_isend_irecv alike. A
    collective raises Collective."""
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
        place, _ = works.get(id(work), (None, None))
        try:
            result = wait(work, *args, **kwargs)
        except RuntimeError:
            events.append(["in vain", place])
            raise
        if place is not None:
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


def waits_for(events: list[list]) -> str:
    """The message of one rank's list for which it has waited in vain: "in send to 2"."""
    place = next(place for kind, place, *_ in reversed(events) if kind == "in vain")
    kind, other, _ = events[place]
    return f"in {kind} {'to' if kind == 'send' else 'from'} {other}"


def rounds(events: list[list], cards: bool = False) -> list[list[tuple[int, int, int]]]:
    """The messages (from, to, bytes) in rounds that follow one another, from what each rank recorded.

    A rank starts its calls in their order, and stops at a wait until that message has come in an earlier round. A round
    takes the messages that both of their ranks have started: one at most in each direction of a cable between two
    ranks; with `cards` one at most that a rank sends, and one that it receives.
    """
    place, started, gone, result = [0] * len(events), [[] for _ in events], set(), []
    while True:
        for rank, own in enumerate(events):
            while place[rank] < len(own) and (own[place[rank]][0] != "wait" or (rank, own[place[rank]][1]) in gone):
                if own[place[rank]][0] != "wait":
                    started[rank].append(place[rank])
                place[rank] += 1
        now, busy = [], set()
        for rank, index in [(rank, index) for rank, own in enumerate(started) for index in own]:
            kind, to, size = events[rank][index]
            taken = {("from", rank), ("to", to)} if cards else {(rank, to)}
            receipt = next((other for other in started[to] if events[to][other][:2] == ["recv", rank]), None)
            if kind == "send" and receipt is not None and not busy & taken:
                now.append((rank, to, size))
                busy |= taken
                gone |= {(rank, index), (to, receipt)}
        if not now:
            return result
        result.append(now)
        started = [[index for index in own if (rank, index) not in gone] for rank, own in enumerate(started)]


def count(events: list[list], tensor_bytes: int) -> dict:
    """Of an all-reduce, from what each rank recorded, sizes in tensors: {messages; most, which the busiest rank sends;
    rounds and path on cables; card_rounds and card_path with one card per host; in_rounds, on cables}.

    A path is the largest message of each round, added up: as long as that takes, the network is busy.
    """
    cables, cards = rounds(events), rounds(events, cards=True)
    sent = [sum(size for now in cables for source, _, size in now if source == rank) for rank in range(len(events))]
    path, card_path = (sum(max(size for *_, size in now) for now in each) / tensor_bytes for each in (cables, cards))
    return {"messages": sum(map(len, cables)), "most": max(sent) / tensor_bytes, "rounds": len(cables), "path": path,
            "card_rounds": len(cards), "card_path": card_path, "in_rounds": cables}
