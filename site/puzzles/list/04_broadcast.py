TITLE = "Broadcast"
TASK = """Give every rank the tensor of rank 0. A message takes one tick, and a rank sends one at a time. If rank 0
sends to all others itself, five ranks take four ticks. Three will do: whoever has the tensor helps."""
NAME, RANKS, LIMIT = "broadcast", (2, 3, 5), ("time",)
SOLUTION = """
import torch.distributed as dist


def broadcast(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # >>>
    have = 1  # so many ranks have the tensor
    while have < ranks:
        if rank < have and rank + have < ranks:
            dist.send(tensor, dst=rank + have)
        elif have <= rank < 2 * have:
            dist.recv(tensor, src=rank - have)
        have *= 2
    # <<<
"""
TREE = SOLUTION[SOLUTION.index("    have = 1"):SOLUTION.index("    # <<<")]
MISTAKES = [
    ([(TREE, """    if rank == 0:
        for other in range(1, ranks):
            dist.send(tensor, dst=other)
    else:
        dist.recv(tensor, src=0)
""")], "Rank 0 does all the work, a tick for each rank. Let a rank that has the tensor send it on.", "right on gloo"),
    ([(TREE, """    if rank > 0:
        dist.recv(tensor, src=rank - 1)
    if rank + 1 < ranks:
        dist.send(tensor, dst=rank + 1)
""")], "A chain takes ranks - 1 ticks. Twice as many ranks can have the tensor after each tick: 1, 2, 4 …",
     "right on gloo"),
    ([(" and rank + have < ranks", "")], "With three or five ranks some have nobody to send to: ask before you send."),
    ([(TREE, """    if rank == 0:
        dist.send(tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor, src=0)
""")], "Rank 1 has the tensor. With more than two ranks the others need it, too."),
]
LEARNED = "A tree: after k ticks 2<sup>k</sup> ranks have it. 1,000 ranks take ten ticks."


def case(ranks):
    return [[torch.tensor([4, 2] if rank == 0 else [0, 0])] for rank in range(ranks)], [[4, 2]] * ranks
