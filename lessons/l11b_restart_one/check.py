"""Exercises of lesson 11b: a checkpoint in a neighbour's memory, and the newest checkpoint that all ranks have."""

from functools import partial

import torch
import torch.distributed as dist

from course.exercise import Case, Wrong
from course.on_ranks import exercise_on_ranks


# Exercise 1: a checkpoint in a neighbour's memory
class Spare:
    def keep(self, shard):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.of_neighbour = torch.empty_like(shard)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        sending = dist.isend(shard, right)
        dist.recv(self.of_neighbour, left)
        sending.wait()

    def restore(self, shard, dead):
        rank, keeper = dist.get_rank(), (dead + 1) % dist.get_world_size()
        if rank == keeper:
            dist.send(self.of_neighbour, dead)
        if rank == dead:
            dist.recv(shard, keeper)


class KeepsItsOwn(Spare):
    def keep(self, shard):
        self.own = shard.clone()

    def restore(self, shard, dead):
        if dist.get_rank() == dead:
            shard.copy_(self.own)


class KeepsAll(Spare):
    def keep(self, shard):
        self.all = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(self.all, shard)

    def restore(self, shard, dead):
        if dist.get_rank() != dead:  # which has nothing left
            self.of_neighbour = self.all[dist.get_rank() - 1]
        super().restore(shard, dead)


class AllToRank0(Spare):
    def keep(self, shard):
        first = dist.get_rank() == 0
        self.all = [torch.empty_like(shard) for _ in range(dist.get_world_size())] if first else None
        dist.gather(shard, self.all, dst=0)

    def restore(self, shard, dead):
        if dead == 0:
            return
        if dist.get_rank() == 0:
            dist.send(self.all[dead], dead)
        if dist.get_rank() == dead:
            dist.recv(shard, 0)


class SendsWhatIsThere(Spare):
    def restore(self, shard, dead):
        self.of_neighbour = shard
        super().restore(shard, dead)


class OverwritesAll(Spare):
    def restore(self, shard, dead):
        keeper = (dead + 1) % dist.get_world_size()
        sent = self.of_neighbour.clone() if dist.get_rank() == keeper else torch.empty_like(shard)
        dist.broadcast(sent, src=keeper)
        shard.copy_(sent)


class ReceivesFirst(Spare):
    def keep(self, shard):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.of_neighbour = torch.empty_like(shard)
        dist.recv(self.of_neighbour, (rank - 1) % world_size)
        dist.send(shard, (rank + 1) % world_size)


class RebindsTheName(Spare):
    def restore(self, shard, dead):
        super().restore(shard.clone(), dead)


class AsksTheOtherNeighbour(Spare):
    def restore(self, shard, dead):
        rank, keeper = dist.get_rank(), (dead - 1) % dist.get_world_size()
        if rank == keeper:
            dist.send(self.of_neighbour, dead)
        if rank == dead:
            dist.recv(shard, keeper)


def values_of(rank):
    """The shard of a rank: what only this rank has."""
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(100, generator=generator)


def tensors_in(thing):
    if isinstance(thing, torch.Tensor):
        return [thing]
    things = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    return [tensor for each in things for tensor in tensors_in(each)]


def measure_spare(made, context):
    """For each rank that dies: which of the ranks' shards this rank has in the end (-1: none); and the shards kept."""
    measured = {"has": [], "kept": 0}
    for dead in range(context.world_size):
        shard, spare = values_of(context.rank), made()
        spare.keep(shard)
        measured["kept"] = max(measured["kept"], sum(tensor.numel() for tensor in tensors_in(vars(spare))) / 100)
        context.gather(f"kept {dead}", True)
        if context.rank == dead:  # another process in its place: nothing is left
            shard, spare = torch.zeros_like(shard), made()
        try:
            spare.restore(shard, dead)
        except AttributeError as error:  # its new object has kept nothing
            raise Wrong(f"Rank {dead} has died and is a new process: {error}. What it had kept is gone, too.") from None
        found = [rank for rank in range(context.world_size) if torch.equal(shard, values_of(rank))]
        measured["has"].append(found[0] if found else -1)
        context.gather(f"restored {dead}", True)
    return measured


@exercise_on_ranks(
    measure_spare,
    solution=Spare,
    ranks=(2, 3),
    hint="The ranks make a ring. keep: dist.isend(shard, right) and dist.recv(buffer, left) at once, then wait. "
    "restore: only two ranks have something to do. `dead` receives into its shard what its neighbour has kept.",
    mistakes={
        "A copy in the same memory dies with its rank. Keep another rank's.": KeepsItsOwn,
        "That takes as much memory as there are ranks. One neighbour's shard is enough.": KeepsAll,
        "And if rank 0 dies? Every rank must have its shard on another one.": AllToRank0,
        "The neighbour has sent its own shard, and not the one that it kept.": SendsWhatIsThere,
        "Only the rank that died needs a shard. The others have theirs.": OverwritesAll,
        "Each rank waits for its neighbour, and nobody sends. Begin with dist.isend: it does not wait.": ReceivesFirst,
        "`shard = …` only gives the name to another tensor. Fill the one that you got: shard.copy_(…), or receive into "
        "it.": RebindsTheName,
        "That neighbour keeps another rank's shard. To whom has `keep` sent yours?": AsksTheOtherNeighbour,
    },
)
def spare(ranks):
    """Each shard stands in the memory of two ranks, so one rank may die, and no disk is read."""
    n = len(ranks)
    kept = [measured["kept"] for measured in ranks]
    for dead in range(n):
        has = [measured["has"][dead] for measured in ranks]
        wrong = [f"rank {rank} has {'no shard' if got < 0 else f'the shard of rank {got}'}"
                 for rank, got in enumerate(has) if got != rank]
        yield Case(has, list(range(n)), f"Rank {dead} of {n} died. After restore {'; '.join(wrong)}.")
    yield Case(kept, kept if max(kept) <= 1 else n * [1.0],
               f"Of {n} ranks one keeps {max(kept):g} shards in its object; 1 is enough.")


# Exercise 2: the newest checkpoint that all ranks have
def my_newest(steps):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, steps)
    common = set(everyone[0]).intersection(*everyone[1:])
    return max(common, default=None)


def each_its_own(steps):
    return max(steps, default=None)


def that_of_rank_0(steps):
    newest = [max(steps, default=None)]
    dist.broadcast_object_list(newest, src=0)
    return newest[0]


def newest_by(op, steps):
    newest = torch.tensor(max(steps, default=-1))
    dist.all_reduce(newest, op=op)
    return None if newest < 0 else int(newest)


def rank_0_alone_knows(steps):
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(steps, everyone, dst=0)
    return max(set(everyone[0]).intersection(*everyone[1:]), default=None) if everyone else None


def newest_if_common(steps):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, steps)
    step = max((max(steps) for steps in everyone if steps), default=None)
    return step if all(step in steps for steps in everyone) else None


def kept_on(ranks):
    """Steps of the checkpoints on each rank's disk, case by case."""
    return ([[10, 20, 30], [10, 20, 30], [10, 20, 30]], [[20, 40], [20, 30], [20, 30, 50]],
            [[10, 20], [], [20]], [[20], [10], [10, 20]])


def measure_newest(function, context):
    """The step that the function names on this rank, in each case."""
    steps = []
    for kept in kept_on(context.world_size):
        step = function(list(kept[context.rank]))
        if step is not None and (isinstance(step, bool) or step != int(step)):
            raise Wrong(f"On rank {context.rank} it returned {step!r}. Return the number of a step, or None.")
        steps.append(None if step is None else int(step))
    return {"steps": steps}


@exercise_on_ranks(
    measure_newest,
    solution=my_newest,
    hint="dist.all_gather_object(everyone, steps) fills the list `everyone` with each rank's list, whatever their "
         "lengths. Then every rank can work out the same answer. Which numbers stand in all of the lists?",
    mistakes={
        "Each rank took its own newest step, so the ranks would go on from different steps. They must ask each other.":
            each_its_own,
        "That is rank 0's newest step, and another rank does not have it.": that_of_rank_0,
        "That is the newest step of any rank, and another rank does not have it.":
            partial(newest_by, dist.ReduceOp.MAX),
        "The smallest of the newest steps is not enough: a rank may have a newer one, but not this one. Compare the "
        "whole lists.": partial(newest_by, dist.ReduceOp.MIN),
        "Rank 0 knows the step, and the other ranks do not.": rank_0_alone_knows,
        "The newest step of all is not common to all ranks, but an older one is.": newest_if_common,
    },
)
def newest(ranks):
    """Every rank names the same step, and has it. A rank that went on from another step than the rest would train
    another model, and DDP would average the two without a word."""
    for case, kept in enumerate(kept_on(len(ranks))):
        got = [measured["steps"][case] for measured in ranks]
        right = max(set(kept[0]).intersection(*kept[1:]), default=None)
        yield Case(got, [right] * len(ranks),
                   f"The ranks have {', '.join(map(str, kept))}. They named {', '.join(map(str, got))}; {right} is "
                   "right, on all of them.")
