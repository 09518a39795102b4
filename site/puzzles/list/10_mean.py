TITLE = "The exact mean"
TASK = """Each rank has the losses of its own images, and the ranks have different numbers of them. Return the mean over
all images, on every rank. <code>losses.sum().item()</code> is a number, <code>losses.numel()</code> says how many there
are, and <code>torch.tensor([a, b])</code> makes a tensor of two numbers."""
NAME, RANKS, USES = "mean", (2, 3, 5), ("reduce_scatter", "all_gather", "all_reduce")
SOLUTION = """
import torch
import torch.distributed as dist
from all_reduce import all_reduce


def mean(losses):
    # >>>
    total = torch.tensor([losses.sum().item(), losses.numel()])
    all_reduce(total)
    return total[0] / total[1]
    # <<<
"""
MISTAKES = [
    ([("torch.tensor([losses.sum().item(), losses.numel()])", "torch.tensor([losses.mean().item(), 1.0])")],
     "The mean of the ranks' means. A rank with few images counts as much as one with many: add sums and counts."),
    ([("total[0] / total[1]", "total[0] / losses.numel()")],
     "You divide the sum of all ranks by your own number of images: add up the numbers, too."),
    ([("    all_reduce(total)\n", "")], "Each rank has the mean of its own losses only."),
]
LEARNED = "Sums and counts can be added over ranks, means cannot. Evaluation on a test set is wrong without this."


def case(ranks):
    losses = [[float(rank + i) for i in range(1 + rank)] for rank in range(ranks)]
    every = [loss for each in losses for loss in each]
    return [[torch.tensor(each)] for each in losses], [sum(every) / len(every)] * ranks
