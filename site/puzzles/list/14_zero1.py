TITLE = "ZeRO-1: an optimizer in parts"
TASK = """SGD with momentum: <code>momentum = 0.5 * momentum + gradient</code>, then <code>weights -= 0.1 *
momentum</code>, with the mean gradient of all ranks. All ranks have all weights. The momentum should exist only once
over all ranks: each rank keeps and updates its own chunk. <code>gradients</code> has this rank's gradient of each step.
Memory counts the tensors that you make with calls such as <code>torch.zeros</code>."""
NAME, RANKS, LIMIT, USES = "train", (2, 3, 5), ("memory",), ("reduce_scatter", "all_gather", "all_reduce")
SOLUTION = """
import torch
import torch.distributed as dist
from reduce_scatter import reduce_scatter  # adds, and returns this rank's chunk of the sum
from all_gather import all_gather


def train(weights, gradients):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # >>>
    mine = weights.tensor_split(ranks)[rank]
    momentum = torch.zeros_like(mine)
    for gradient in gradients:
        momentum *= 0.5
        momentum += reduce_scatter(gradient) / ranks
        mine -= 0.1 * momentum
        all_gather(weights)
    # <<<
"""
MISTAKES = [
    ([("    mine = weights.tensor_split(ranks)[rank]\n    momentum = torch.zeros_like(mine)",
       "    momentum = torch.zeros_like(weights)"),
      ("        momentum += reduce_scatter(gradient) / ranks\n        mine -= 0.1 * momentum\n",
       "        reduce_scatter(gradient)\n        all_gather(gradient)\n        momentum += gradient / ranks\n"
       "        weights -= 0.1 * momentum\n"), ("        all_gather(weights)\n", "")],
     "Every rank keeps the momentum of all weights. One chunk per rank is enough: see reduce_scatter.",
     "right on gloo"),
    ([("    mine = weights.tensor_split(ranks)[rank]\n    momentum = torch.zeros_like(mine)",
       "    momentum = torch.zeros_like(weights)"),
      ("        momentum += reduce_scatter(gradient) / ranks\n        mine -= 0.1 * momentum\n"
       "        all_gather(weights)\n",
       "        momentum += gradient\n        weights -= 0.1 * momentum\n")],
     "Each rank uses its own gradients alone, so the weights drift apart. reduce_scatter adds the ranks' gradients."),
    ([("        all_gather(weights)\n", "")], "Each rank has new weights in its own chunk only. Gather them."),
    ([(" / ranks", "")], "reduce_scatter gives a sum. The step needs the mean gradient."),
]
LEARNED = "Adam keeps two such tensors. ZeRO-1 gives each rank 1/n of them, for no more bytes than an all-reduce sends."


def case(ranks):
    steps = [[[1.0 + rank, step, 2.0, rank * step, 5.0 - rank] for step in range(2)] for rank in range(ranks)]
    weights, momentum = [1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5
    wanted = list(weights)
    for step in range(2):
        for i in range(5):
            momentum[i] = 0.5 * momentum[i] + sum([each[step][i] for each in steps]) / ranks
            wanted[i] -= 0.1 * momentum[i]
    given = [[torch.tensor(weights), [torch.tensor(each) for each in steps[rank]]] for rank in range(ranks)]
    return given, [wanted] * ranks
