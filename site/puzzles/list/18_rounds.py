TITLE = "Hard: the fewest ticks"
TASK = """A small tensor again: each message takes one tick, whatever its size. The ring takes eight ticks on five
ranks. Write an all-reduce that takes three, for any number of ranks. <code>torch.cat([a, b])</code> joins tensors into
one, so a message can carry several."""
NAME, RANKS, LIMIT = "all_reduce_fast", (2, 3, 5), ("time",)
USES = ("broadcast", "reduce_scatter", "all_gather", "all_reduce", "all_reduce_star")
SOLUTION = """
import torch
import torch.distributed as dist


def all_reduce_fast(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # >>>
    known = [tensor.clone()]  # known[k] is the tensor of rank + k
    while len(known) < ranks:
        distance, count = len(known), min(len(known), ranks - len(known))
        outgoing = torch.cat(known[:count])
        arrived = torch.zeros_like(outgoing)
        sending = dist.isend(outgoing, dst=(rank - distance) % ranks)
        dist.recv(arrived, src=(rank + distance) % ranks)
        sending.wait()
        known += arrived.tensor_split(count)
    tensor.zero_()
    for each in known:
        tensor += each
    # <<<
"""
ANSWER = SOLUTION[SOLUTION.index("    known = "):SOLUTION.index("    # <<<")]
MISTAKES = [
    ([(", min(len(known), ranks - len(known))", ", len(known)")],
     "In the last round some tensors come a second time: pass on only as many as are missing."),
    ([(ANSWER, "    from all_reduce import all_reduce\n    all_reduce(tensor)\n")],
     "The ring sends few bytes, in many ticks. Double what each rank knows in every tick.", "right on gloo"),
    ([(ANSWER, "    from all_reduce_star import all_reduce_star\n    all_reduce_star(tensor)\n")],
     "Rank 0 receives one tensor per tick. Let all ranks send and receive in every tick.", "right on gloo"),
]
LEARNED = "Few ticks or few bytes: libraries take this way for small tensors and the ring for large ones."


def case(ranks):
    values = [[rank + 1, 10 * (rank + 1)] for rank in range(ranks)]
    return [[torch.tensor(each)] for each in values], [[sum(each) for each in zip(*values)]] * ranks
