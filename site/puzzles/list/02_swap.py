TITLE = "Swap without a deadlock"
TASK = """Let the two ranks swap their tensors. <code>dist.send</code> waits until the other rank receives.
<code>torch.zeros_like(tensor)</code> makes a new tensor of the same size, and <code>tensor.copy_(other)</code>
overwrites the values of <code>tensor</code>."""
NAME, RANKS = "swap", (2,)
SOLUTION = """
import torch
import torch.distributed as dist


def swap(tensor):
    rank = dist.get_rank()
    other = 1 - rank
    arrived = torch.zeros_like(tensor)
    # >>>
    if rank == 0:
        dist.send(tensor, dst=other)
        dist.recv(arrived, src=other)
    else:
        dist.recv(arrived, src=other)
        dist.send(tensor, dst=other)
    tensor.copy_(arrived)
    # <<<
"""
MISTAKES = [
    ([("        dist.recv(arrived, src=other)\n        dist.send(tensor, dst=other)",
       "        dist.send(tensor, dst=other)\n        dist.recv(arrived, src=other)")],
     "Both ranks send first, so both wait for the other's recv. One of them must receive first."),
    ([("        dist.send(tensor, dst=other)\n        dist.recv(arrived, src=other)\n    else",
       "        dist.recv(arrived, src=other)\n        dist.send(tensor, dst=other)\n    else")],
     "Both ranks receive first, and nobody sends. One of them must send first."),
    ([("    else:\n        dist.recv(arrived", "    else:\n        dist.recv(tensor")],
     "Rank 1 received into the tensor that it had yet to send. Receive into another one and copy at the end."),
    ([("    tensor.copy_(arrived)\n", "    if rank == 0:\n        tensor.copy_(arrived)\n")],
     "Rank 1 has received, but its tensor has the old values. tensor.copy_(arrived) changes them."),
    ([("tensor.copy_(arrived)", "tensor = arrived")],
     "The values have arrived, but the tensor has its old ones. tensor.copy_(arrived) changes them; `tensor = arrived` "
     "would only give a name to another tensor."),
]
LEARNED = """Ranks that wait for each other in a circle wait forever. That is a deadlock; in training it looks like a
hang."""


def case(ranks):
    return [[torch.tensor([1, 2, 3])], [torch.tensor([7, 8, 9])]], [[7, 8, 9], [1, 2, 3]]
