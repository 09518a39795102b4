TITLE = "Accumulate, then send once"
TASK = """A batch too large for memory comes in micro-batches. <code>gradient</code> begins with zeros; add up the
micro-batches' gradients in it. In the end it should hold the mean over the ranks of these sums, on every rank, with as
few bytes as one all-reduce takes."""
NAME, RANKS, LIMIT, USES = "accumulate", (2, 3, 5), ("bytes",), ("reduce_scatter", "all_gather", "all_reduce")
SOLUTION = """
import torch.distributed as dist
from all_reduce import all_reduce


def accumulate(gradient, micro_gradients):
    # >>>
    for each in micro_gradients:
        gradient += each
    all_reduce(gradient)
    gradient /= dist.get_world_size()
    # <<<
"""
MISTAKES = [
    ([("        gradient += each\n    all_reduce(gradient)\n    gradient /= dist.get_world_size()",
       "        gradient += each\n        all_reduce(gradient)\n        gradient /= dist.get_world_size()")],
     "After each micro-batch the whole sum so far travels again. The mean is right, and the bytes are threefold.",
     "right on gloo"),
    ([("        gradient += each\n    all_reduce(gradient)\n",
       "        gradient += each\n        all_reduce(gradient)\n")],
     "What was added up over the ranks is added up again with the next micro-batch. Add your own first, then "
     "send once."),
    ([("        gradient += each\n    all_reduce(gradient)", "        all_reduce(each)\n        gradient += each")],
     "The values are right, but every micro-batch is sent. Add them up first.", "right on gloo"),
    ([("    for each in micro_gradients:\n        gradient += each\n", "    gradient = sum(micro_gradients)\n")],
     "`gradient = …` names another tensor, and the caller keeps the old one. `gradient += …` changes its values."),
    ([("gradient /= dist", "gradient /= len(micro_gradients) * dist")],
     "Over the micro-batches it is a sum. Divide by the number of ranks alone."),
    ([("    gradient /= dist.get_world_size()\n", "")], "That is the sum over the ranks. Divide by their number."),
]
LEARNED = "In PyTorch: <code>with model.no_sync():</code> around all micro-batches but the last."


def case(ranks):
    micro = [[[1.0 + rank, i, 2.0, rank * i, 5.0 - rank] for i in range(3)] for rank in range(ranks)]
    mean = [sum([each[i][value] for each in micro for i in range(3)]) / ranks for value in range(5)]
    given = [[torch.zeros(5), [torch.tensor(each) for each in micro[rank]]] for rank in range(ranks)]
    return given, [mean] * ranks
