TITLE = "All-gather"
TASK = """Now the way back. Chunk r is right on rank r only; the rest of each tensor is old. Give every rank all the
right chunks, and let no rank send more than it must. First each rank sends its own chunk to the next rank, then it
passes on what has just arrived."""
NAME, RANKS, LIMIT = "all_gather", (2, 3, 5), ("bytes",)
SOLUTION = """
import torch
import torch.distributed as dist


def all_gather(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    # >>>
    for step in range(ranks - 1):
        outgoing = chunks[(rank - step) % ranks]
        incoming = chunks[(rank - step - 1) % ranks]
        sending = dist.isend(outgoing, dst=(rank + 1) % ranks)
        dist.recv(incoming, src=(rank - 1) % ranks)
        sending.wait()
    # <<<
"""
LOOP = SOLUTION[SOLUTION.index("    for step"):SOLUTION.index("    # <<<")]
MISTAKES = [
    ([("chunks[(rank - step) % ranks]", "chunks[rank]")],
     "Only your neighbour gets your chunk. In later steps pass on what has just arrived.", "page only"),
    ([("range(ranks - 1)", "range(1)")], "One step brings one chunk. All of them take ranks - 1 steps."),
    ([("dist.recv(incoming,", "dist.recv(incoming.clone(),")], "What arrives goes into a copy that nobody keeps."),
    ([(LOOP, """    copy = tensor.clone()
    for step in range(1, ranks):
        arrived = torch.zeros_like(tensor)
        sending = dist.isend(copy, dst=(rank + step) % ranks)
        dist.recv(arrived, src=(rank - step) % ranks)
        sending.wait()
        theirs = (rank - step) % ranks
        chunks[theirs].copy_(arrived.tensor_split(ranks)[theirs])
""")], "Whole tensors travel, though one chunk of each is right. Send only that.", "right on gloo"),
]
LEARNED = "Reduce-scatter and all-gather are the two halves of a ring. FSDP and ZeRO use each of them alone."


def case(ranks):
    wanted = [11, 22, 33, 44, 55]
    given = []
    for rank in range(ranks):
        tensor = torch.tensor([0] * 5)
        tensor.tensor_split(ranks)[rank].copy_(torch.tensor(wanted).tensor_split(ranks)[rank])
        given.append([tensor])
    return given, [wanted] * ranks
