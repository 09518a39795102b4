"""What a rank sends, whoever calls it: DDP, FSDP, an optimizer, or a learner's class."""

from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Sent(TorchDispatchMode):
    """Within `with`: `bytes`, {(ranks of the group, collective, type): what this rank sends}, in a ring of n ranks, and
    `calls`, how many messages these are.

    Of a whole of S bytes each rank sends (n - 1) / n S to all-gather or to reduce-scatter it, twice that to all-reduce
    it, and on average (n - 1) / n S to broadcast it or to reduce it to one rank. Of a rank's piece of P bytes it sends
    on average (n - 1) / n P to gather or scatter it.
    """

    # The first name that a call's own contains. Point to point: all of it, once.
    COLLECTIVES = {"all_gather": ("all_gather", 1), "allgather": ("all_gather", 1), "all_reduce": ("all_reduce", 2),
                   "reduce_scatter": ("reduce_scatter", 1), "allreduce": ("all_reduce", 2),
                   "broadcast": ("broadcast", 1), "alltoall": ("all_to_all", 1), "all_to_all": ("all_to_all", 1),
                   "reduce_": ("reduce", 1), "gather": ("gather", 1), "scatter": ("scatter", 1), "send": ("send", None)}

    def __init__(self):
        self.bytes, self.calls = Counter(), Counter()
        super().__init__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a DTensor works out first what it has to send
        out = function(*args, **(kwargs or {}))
        known = [collective for name, collective in self.COLLECTIVES.items() if name in function.name()]
        if "c10d" in function.namespace and known:
            (name, times), ranks = known[0], self.ranks(args)
            tensors = [[each for each in tree_leaves(part) if torch.is_tensor(each)] for part in (*args, out)]
            pick = min if name in ("gather", "scatter") else max  # a list of pieces is one message
            whole = pick(filter(None, tensors), key=lambda part: sum(each.nbytes for each in part))
            key = tuple(ranks), name, str(whole[0].dtype).removeprefix("torch.")
            size = sum(each.nbytes for each in whole)
            self.calls[key] += 1
            self.bytes[key] += times * size * (len(ranks) - 1) // len(ranks) if times else size
        return out

    @property
    def all_reduces(self):
        """How many all-reduces the messages are worth: a reduce_scatter and an all_gather make one, a send counts as
        one."""
        halves = dict(self.COLLECTIVES.values())
        return sum(count * (halves[name] or 2) for (_, name, _), count in self.calls.items()) / 2

    @staticmethod
    def ranks(args):
        boxed = [each for each in args if isinstance(each, torch.ScriptObject)]  # the group, and then the operation
        group = dist.ProcessGroup.unbox(boxed[0]) if boxed else _resolve_process_group(args[-1])
        return dist.get_process_group_ranks(group)

    def rows(self):
        return [{"ranks": list(ranks), "collective": name, "type": kind, "bytes": size, "calls": self.calls[key]}
                for key, size in self.bytes.items() for ranks, name, kind in [key]]
