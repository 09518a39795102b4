TITLE = "All-reduce, the simple way"
TASK = """Every rank should end with the sum of all ranks' tensors. Let rank 0 receive and add them all, then use your
<code>broadcast</code>. <code>tensor += arrived</code> adds in place."""
NAME, RANKS, USES = "all_reduce_star", (2, 3, 5), ("broadcast",)
SOLUTION = """
import torch
import torch.distributed as dist
from broadcast import broadcast


def all_reduce_star(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # >>>
    if rank == 0:
        arrived = torch.zeros_like(tensor)
        for other in range(1, ranks):
            dist.recv(arrived, src=other)
            tensor += arrived
    else:
        dist.send(tensor, dst=0)
    broadcast(tensor)
    # <<<
"""
MISTAKES = [
    ([("dist.recv(arrived,", "dist.recv(tensor,"), ("            tensor += arrived\n", "")],
     "Each message overwrites what was there. Receive into another tensor, then add."),
    ([("dist.recv(arrived,", "dist.recv(tensor,"), ("tensor += arrived", "tensor += tensor")],
     "recv has overwritten the tensor's own values, so they are lost. Receive into another tensor, then add."),
    ([("tensor += arrived", "tensor = tensor + arrived")],
     "`tensor = …` names a new tensor, and the caller keeps the old one. `tensor += …` changes its values."),
    ([("    broadcast(tensor)\n", "")], "Rank 0 has the sum. The others still have their own values: broadcast it."),
    ([("    broadcast(tensor)\n", ""), ("            tensor += arrived\n",
      "            tensor += arrived\n        broadcast(tensor)\n")],
     "Only rank 0 calls broadcast. All ranks must call it, each for its own part."),
]
LEARNED = """All-reduce is what data-parallel training calls in each step. Rank 0 is now the bottleneck: look at the
bytes."""


def case(ranks):
    values = [[rank + 1, 10 * (rank + 1), 0, rank % 2, -rank] for rank in range(ranks)]
    return [[torch.tensor(each)] for each in values], [[sum(each) for each in zip(*values)]] * ranks
