TITLE = "Equal to one process"
TASK = """Train one weight on all ranks: one step that gives exactly what one process would get from all images and from
rank 0's weight. The ranks start with different weights. Each has its own images, equally many.
<code>own_gradient</code> gives the mean over the images of this rank. The step is <code>weight -= 0.1 *
gradient</code>, with the mean over all images."""
NAME, RANKS, USES = "step", (2, 3, 5), ("broadcast", "reduce_scatter", "all_gather", "all_reduce")
SOLUTION = """
import torch.distributed as dist
from all_reduce import all_reduce
from broadcast import broadcast


def own_gradient(weight, inputs, targets):  # of the mean of (weight * input - target) ** 2
    return (2 * (weight * inputs - targets) * inputs).mean().view(-1)


def step(weight, inputs, targets):
    # >>>
    broadcast(weight)
    gradient = own_gradient(weight, inputs, targets)
    all_reduce(gradient)
    gradient /= dist.get_world_size()
    weight -= 0.1 * gradient
    # <<<
"""
MISTAKES = [
    ([("    broadcast(weight)\n", "")],
     "The ranks start with different weights, and equal gradients keep them different. Begin with rank 0's weight."),
    ([("    gradient /= dist.get_world_size()\n", "")],
     "all_reduce gives the sum of the ranks' gradients. The step needs their mean."),
    ([("    all_reduce(gradient)\n    gradient /= dist.get_world_size()\n", "")],
     "Each rank takes a step with the gradient of its own images, and the weights drift apart."),
    ([("    all_reduce(gradient)\n", "")],
     "You divide a gradient that has not been added up yet: all_reduce comes first."),
]
LEARNED = "The same weights at the start and the mean of the gradients: that is DistributedDataParallel."


def case(ranks):
    inputs = [[1.0 + rank, 0.5 * rank] for rank in range(ranks)]
    targets = [[2.0, 1.0 - rank] for rank in range(ranks)]
    start = 0.5
    pairs = [(x, y) for xs, ys in zip(inputs, targets) for x, y in zip(xs, ys)]
    gradient = sum([2 * (start * x - y) * x for x, y in pairs]) / len(pairs)
    given = [[torch.tensor([start + rank]), torch.tensor(inputs[rank]), torch.tensor(targets[rank])]
             for rank in range(ranks)]
    return given, [[start - 0.1 * gradient]] * ranks
