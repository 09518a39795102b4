TITLE = "DiLoCo: talk once in a while"
TASK = """Slow links: each rank takes several steps alone, <code>local -= 0.1 * gradient</code>, on a copy of the
weights. Then the ranks average how far they came. The new weights are the old ones minus 0.7 times the mean of
<code>weights - local</code>. Send no more than one all-reduce does."""
NAME, RANKS, LIMIT, USES = "outer", (2, 3, 5), ("bytes",), ("reduce_scatter", "all_gather", "all_reduce")
SOLUTION = """
import torch
import torch.distributed as dist
from all_reduce import all_reduce


def outer(weights, gradients):
    # >>>
    local = weights.clone()
    for gradient in gradients:
        local -= 0.1 * gradient
    moved = weights - local
    all_reduce(moved)
    moved /= dist.get_world_size()
    weights -= 0.7 * moved
    # <<<
"""
MISTAKES = [
    ([("    moved = weights - local", "    moved = local - weights")],
     "The weights went away from where the ranks were going: mind the sign."),
    ([("        local -= 0.1 * gradient\n", "        all_reduce(gradient)\n        gradient /= dist.get_world_size()\n"
       "        local -= 0.1 * gradient\n"), ("    all_reduce(moved)\n    moved /= dist.get_world_size()\n", "")],
     "The ranks talk in every step. Let them talk once, after all steps.", "right on gloo"),
    ([("weights.clone()", "weights")],
     "`local = weights` is a second name, not a copy: the old weights are gone. Use weights.clone()."),
    ([("    moved /= dist.get_world_size()\n", "")], "That is the sum of the ranks' ways. Divide by their number."),
    ([("0.7 * moved", "moved")], "That is the mean of the ranks' weights. The outer step goes only 0.7 of the way."),
]
LEARNED = "With 500 steps between two rounds, training on two continents sends 500 times less."


def case(ranks):
    steps = [[[1.0 + rank, step, 2.0, rank * step, 5.0 - rank] for step in range(3)] for rank in range(ranks)]
    weights = [1.0, 2.0, 3.0, 4.0, 5.0]
    wanted = [w - 0.07 * sum([step[i] for each in steps for step in each]) / ranks for i, w in enumerate(weights)]
    given = [[torch.tensor(weights), [torch.tensor(each) for each in steps[rank]]] for rank in range(ranks)]
    return given, [wanted] * ranks
