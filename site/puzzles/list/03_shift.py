TITLE = "All at once"
TASK = """Each rank passes its tensor to the next rank, and the last one to rank 0. A message takes one <b>tick</b>, the
unit of time here. All messages should travel in the same tick. <code>sending = dist.isend(tensor, dst=…)</code> posts a
message and goes on at once. After <code>sending.wait()</code> it has left, and only then may the tensor change.
<code>(rank + 1) % ranks</code> is the next rank, around the ring."""
NAME, RANKS, LIMIT = "shift", (2, 3, 5), ("time",)
SOLUTION = """
import torch
import torch.distributed as dist


def shift(tensor):
    rank = dist.get_rank()
    ranks = dist.get_world_size()  # how many there are
    arrived = torch.zeros_like(tensor)
    # >>>
    sending = dist.isend(tensor, dst=(rank + 1) % ranks)
    dist.recv(arrived, src=(rank - 1) % ranks)
    sending.wait()
    # <<<
    tensor.copy_(arrived)
"""
MISTAKES = [
    ([("sending = dist.isend", "dist.send"), ("    sending.wait()\n", "")],
     "Every rank sends and waits for the next one to receive: a circle. isend does not wait."),
    ([("src=(rank - 1) % ranks", "src=(rank + 1) % ranks")],
     "The message for a rank comes from the rank before it: (rank - 1) % ranks."),
    ([("dst=(rank + 1) % ranks", "dst=rank + 1")], "After the last rank comes rank 0: (rank + 1) % ranks."),
    ([("src=(rank - 1) % ranks", "src=rank - 1")], "Before rank 0 comes the last rank: (rank - 1) % ranks.",
     "page only"),
    ([("    sending.wait()\n", "")],
     "tensor changes below, and the message may not have left yet. Call sending.wait() first.", "page only"),
    ([("sending = dist.isend(tensor, dst=(rank + 1) % ranks)\n    dist.recv(arrived, src=(rank - 1) % ranks)\n"
       "    sending.wait()",
       "if rank == 0:\n        dist.send(tensor, dst=1)\n        dist.recv(arrived, src=ranks - 1)\n    else:\n"
       "        dist.recv(arrived, src=rank - 1)\n        dist.send(tensor, dst=(rank + 1) % ranks)")],
     "That works, one rank after the other. With isend all of them send in the same tick.", "right on gloo"),
]
LEARNED = "isend and wait: a message travels while the rank does something else."


def case(ranks):
    values = [[10 * rank + 1, 10 * rank + 2] for rank in range(ranks)]
    return [[torch.tensor(each)] for each in values], [values[rank - 1] for rank in range(ranks)]
