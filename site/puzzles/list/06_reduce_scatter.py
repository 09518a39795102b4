TITLE = "Reduce-scatter"
TASK = """Share the adding. <code>chunks = tensor.tensor_split(ranks)</code> cuts the tensor into one part per rank; the
parts share its memory. Rank r should end with chunk r of the sum, and return it. No rank may send more than it must.
One way goes around the ring: in each step a rank passes one chunk to the next rank, which adds its own and passes that
on in the next step. Chunk r begins at rank r + 1: with three ranks, chunk 0 goes from rank 1 to 2 to 0."""
NAME, RANKS, LIMIT = "reduce_scatter", (2, 3, 5), ("bytes",)
SOLUTION = """
import torch
import torch.distributed as dist


def reduce_scatter(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    # >>>
    for step in range(ranks - 1):
        outgoing = chunks[(rank - step - 1) % ranks]
        incoming = chunks[(rank - step - 2) % ranks]
        arrived = torch.zeros_like(incoming)
        sending = dist.isend(outgoing, dst=(rank + 1) % ranks)
        dist.recv(arrived, src=(rank - 1) % ranks)
        sending.wait()
        incoming += arrived
    # <<<
    return chunks[rank]
"""
LOOP = SOLUTION[SOLUTION.index("    for step"):SOLUTION.index("    # <<<")]
MISTAKES = [
    ([("incoming += arrived", "incoming.copy_(arrived)")], "What arrives must be added to your own chunk."),
    ([("rank - step - 1", "rank - step"), ("rank - step - 2", "rank - step - 1")],
     "Each rank ends with a whole sum, but of another chunk than its own: begin with the chunk before yours."),
    ([("range(ranks - 1)", "range(ranks)")],
     "One step too many: after ranks - 1 steps each sum is whole, and nobody needs another message.", "right on gloo"),
    ([("incoming += arrived", "chunks[(rank - step - 2) % ranks] += arrived")],
     "chunks is a tuple, so `chunks[i] += …` fails. Give the chunk a name, and write `name += …`."),
    ([("rank - step", "rank")], "You send the same chunk in every step. Send the one that has just arrived."),
    ([(LOOP, """    for step in range(1, ranks):
        arrived = torch.zeros_like(tensor)
        sending = dist.isend(tensor.clone(), dst=(rank + step) % ranks)
        dist.recv(arrived, src=(rank - step) % ranks)
        sending.wait()
        mine = arrived.tensor_split(ranks)[rank]
        own = chunks[rank]
        own += mine
""")], "Whole tensors travel, and each rank uses one chunk of them. Send only that chunk.", "right on gloo"),
]
LEARNED = "Each rank sends (n − 1)/n of its tensor, however many ranks there are."


def case(ranks):
    values = [[rank + 1, 10 * (rank + 1), rank * rank, 7, 100 - rank] for rank in range(ranks)]
    sums = [sum(each) for each in zip(*values)]
    return [[torch.tensor(each)] for each in values], torch.tensor(sums).tensor_split(ranks)
