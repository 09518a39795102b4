TITLE = "A first message"
TASK = """Two <b>ranks</b>, 0 and 1, run the same function at the same time, each with its own <code>tensor</code>. They
share no memory: a value gets from one to the other only in a message. <code>dist.send(tensor, dst=1)</code> sends to
rank 1. <code>dist.recv(tensor, src=0)</code> waits for a message from rank 0 and writes it into <code>tensor</code>.
Give rank 1 the values of rank 0."""
NAME, RANKS = "give", (2,)
SOLUTION = """
import torch.distributed as dist


def give(tensor):
    rank = dist.get_rank()  # 0 or 1
    # >>>
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    # <<<
"""
MISTAKES = [
    ([("if rank == 0:\n        dist.send(tensor, dst=1)\n    else:\n        dist.recv(tensor, src=0)",
       "dist.send(tensor, dst=1)")],
     "Both ranks run this line, and rank 1 would send to itself. Ask with `if rank == 0:` which rank you are."),
    ([("if rank == 0:\n        dist.send(tensor, dst=1)\n    else:\n        dist.recv(tensor, src=0)",
       "dist.recv(tensor, src=1 - rank)")],
     "Both ranks wait, and nobody sends. Both run the same lines: ask with `if rank == 0:` which rank you are."),
    ([("dist.recv(tensor,", "dist.recv(tensor.clone(),")],
     "The message went into a copy, which nobody keeps. Receive into the tensor itself."),
    ([("rank == 0", "rank == 1"), ("dst=1", "dst=0"), ("src=0", "src=1")],
     "The message went the wrong way: rank 0 should keep its values, and rank 1 should get them."),
    ([("\n    else:\n        dist.recv(tensor, src=0)", "")],
     "A send needs a recv at the other end. Until then the sender waits."),
]
LEARNED = "All ranks run one program. What differs is what they do with their rank."


def case(ranks):
    return [[torch.tensor([5, 6, 7])], [torch.tensor([0, 0, 0])]], [[5, 6, 7], [5, 6, 7]]
