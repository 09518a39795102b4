"""Orders of work of a pipeline: computed without ranks, and run on ranks with send and recv.

An order is a list for each rank: ("forward", i) or ("backward", i) for each micro-batch i, one after another.
"""

import time

import torch
import torch.distributed as dist

from course.sharding import Setup, adam
from course.tiny_transformer import loss_of
from lessons.l13_beyond_ddp.shard_ways import MICRO_BATCHES


def gpipe(rank, ranks, micro_batches):
    """All forwards, then all backwards: the same on each rank."""
    return [(kind, number) for kind in ("forward", "backward") for number in range(micro_batches)]


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


def in_order(model, placement, orders, micro_batches=MICRO_BATCHES):
    """Each rank has some of the layers, and works through its list of `orders`."""
    rank, last, hidden, events = placement.rank, placement.world_size - 1, model.embedding.embedding_dim, []
    model.keep_stage(rank, placement.world_size)

    def backward(tokens, targets):
        tokens, targets, losses = tokens.chunk(micro_batches), targets.chunk(micro_batches), []
        inputs, outputs, sent = {}, {}, []
        shape = *tokens[0].shape, hidden  # of the activations that ranks send, and of their gradients
        for kind, number in orders[rank]:
            if kind == "forward":
                x = inputs[number] = tokens[number] if rank == 0 else received(shape, rank - 1, number).requires_grad_()
                start = time.perf_counter()
                y = outputs[number] = model(x) if rank < last else loss_of(model(x), targets[number]) / micro_batches
                end = time.perf_counter()
                if rank < last:
                    sent.append(dist.isend(y.detach(), rank + 1, tag=number))  # without waiting: else two might send
                else:
                    losses.append(y.detach())
            else:
                gradient = received(shape, rank + 1, number) if rank < last else None
                start = time.perf_counter()
                outputs.pop(number).backward(gradient)
                end = time.perf_counter()
                x = inputs.pop(number)
                if rank > 0:
                    sent.append(dist.isend(x.grad, rank - 1, tag=number))
            events.append({"event": kind, "text": str(number), "start": start, "end": end})
        for each in sent:
            each.wait()
        loss = sum(losses, torch.zeros(()))
        dist.all_reduce(loss)  # the last stage alone has it
        return loss
    return Setup(model, adam(model), backward, events)


def received(shape, rank, number):
    values = torch.empty(shape)
    dist.recv(values, rank, tag=number)
    return values
