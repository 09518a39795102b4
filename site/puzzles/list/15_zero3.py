TITLE = "ZeRO-3: weights in parts"
TASK = """Two layers, and each rank keeps one chunk of each layer's weights: <code>chunks[0]</code> and
<code>chunks[1]</code>. A layer computes <code>x = x * weights</code> and needs all its weights. Return x after both
layers. No rank may ever hold both layers whole: <code>free(tensor)</code> gives a tensor's memory back, as FSDP does.
Memory counts the tensors that you make with calls such as <code>torch.zeros</code>, until they are freed."""
NAME, RANKS, LIMIT, USES = "forward", (2, 3, 5), ("memory",), ("all_gather",)
SOLUTION = """
import torch
import torch.distributed as dist
from all_gather import all_gather  # needs a whole tensor in which this rank's own chunk is right


def forward(x, chunks):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # >>>
    for chunk in chunks:
        weights = torch.zeros_like(x)
        weights.tensor_split(ranks)[rank].copy_(chunk)
        all_gather(weights)
        x = x * weights
        free(weights)
    return x
    # <<<
"""
MISTAKES = [
    ([("        free(weights)\n", "")], "Both layers are whole at the end. Free a layer once x has been computed.",
     "right on gloo"),
    ([("        weights.tensor_split(ranks)[rank].copy_(chunk)\n", "")],
     "all_gather passes on this rank's chunk of the whole tensor, and nothing was copied into it yet."),
    ([("        weights = torch.zeros_like(x)\n        weights.tensor_split(ranks)[rank].copy_(chunk)\n"
       "        all_gather(weights)\n        x = x * weights\n        free(weights)\n",
       "        all_gather(chunk)\n        x = x * chunk\n")],
     "all_gather needs a whole tensor in which your chunk is right: make one like x, and copy the chunk into it.",
     "page only"),
    ([("        all_gather(weights)\n", "")], "Only this rank's chunk of the weights is there. Gather the others."),
    ([("        x = x * weights\n        free(weights)\n", "        free(weights)\n        x = x * weights\n")],
     "You free the weights before they are used."),
]
LEARNED = "A model that fits on no rank can be computed, layer by layer. That is what FSDP's fully_shard does."


def case(ranks):
    x, layers = [1.0, 2.0, 3.0, 4.0, 5.0], [[2.0, 3.0, 1.0, 2.0, 1.0], [1.0, 2.0, 4.0, 0.5, 3.0]]
    given = [[torch.tensor(x), [torch.tensor(each).tensor_split(ranks)[rank] for each in layers]]
             for rank in range(ranks)]
    return given, [[a * b * c for a, b, c in zip(x, *layers)]] * ranks
