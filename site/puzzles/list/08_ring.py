TITLE = "The ring all-reduce"
TASK = """Put both halves together: every rank should end with the sum. The busiest rank must send no more than 2 (n −
1)/n of its tensor. The lines around yours make it work at home, too, where a tensor may have many dimensions."""
NAME, RANKS, LIMIT, USES = "all_reduce", (2, 3, 5), ("bytes",), ("reduce_scatter", "all_gather")
FILE = "all_reduce.py"
SOLUTION = """
import torch.distributed as dist
from reduce_scatter import reduce_scatter
from all_gather import all_gather


def all_reduce(tensor):
    if not dist.is_initialized():  # one process alone
        return
    flat = tensor.view(-1)  # the same memory, in one dimension
    # >>>
    reduce_scatter(flat)
    all_gather(flat)
    # <<<
"""
MISTAKES = [
    ([("    all_gather(flat)\n", "")], "Each rank has one chunk of the sum. The other chunks are on the other ranks."),
    ([("    reduce_scatter(flat)\n    all_gather(flat)", "    all_gather(flat)\n    reduce_scatter(flat)")],
     "Add first, then give the sums to all."),
    ([("    reduce_scatter(flat)\n", "    flat = reduce_scatter(flat)\n")],
     "reduce_scatter returns one chunk, and all_gather needs the whole tensor. Let `flat` keep its name.", "page only"),
    ([("    reduce_scatter(flat)\n", "")], "Nothing has been added yet: all_gather only copies chunks."),
]
LEARNED = """This is how gloo and NCCL add gradients. The file below trains a real network: copy it to
<code>mine/</code> in the course and start <code>torchrun --nproc_per_node=2 mine/train.py</code>."""


def case(ranks):
    values = [[rank + 1, 10 * (rank + 1), rank * rank, 7, 100 - rank] for rank in range(ranks)]
    return [[torch.tensor(each)] for each in values], [[sum(each) for each in zip(*values)]] * ranks
