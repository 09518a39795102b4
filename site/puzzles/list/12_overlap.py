TITLE = "Send while you compute"
TASK = """Backward comes to the last layer first. <code>work(2)</code> stands for two ticks of computing; after it one
layer's gradient is there. A message takes two ticks, too. Add the other rank's gradients to yours, and finish within
eight ticks. <code>dist.irecv(tensor, src)</code> is to recv what isend is to send: it goes on at once, and the values
are there after its <code>wait()</code>."""
NAME, RANKS, LIMIT, COST = "backward", (2,), ("time",), (2, 0)
SOLUTION = """
import torch
import torch.distributed as dist


def backward(gradients):
    other = 1 - dist.get_rank()
    arrived = [torch.zeros_like(each) for each in gradients]
    waiting = []
    for layer in [2, 1, 0]:
        work(2)  # computes gradients[layer]
        # >>>
        waiting.append(dist.isend(gradients[layer], dst=other))
        waiting.append(dist.irecv(arrived[layer], src=other))
    for each in waiting:
        each.wait()
    for layer in [2, 1, 0]:
        gradients[layer] += arrived[layer]
    # <<<
"""
POST = """        waiting.append(dist.isend(gradients[layer], dst=other))
        waiting.append(dist.irecv(arrived[layer], src=other))
"""
MISTAKES = [
    ([(POST, POST + "        waiting[-2].wait()\n        waiting[-1].wait()\n"),
      ("    for each in waiting:\n        each.wait()\n", "")],
     "You wait for each message before you compute the next layer. Wait when all has been computed.", "right on gloo"),
    ([(POST, ""), ("    for each in waiting:", "    for layer in [2, 1, 0]:\n" + POST + "    for each in waiting:")],
     "The first message leaves when all is computed. Post each as soon as its gradient is there.", "right on gloo"),
    ([("    for each in waiting:\n        each.wait()\n", "")],
     "You add what may not have arrived yet. Wait for each message first.", "page only"),
]
LEARNED = "Communication hides behind computing. DDP does this with buckets of gradients; only the last one shows."


def case(ranks):
    values = [[[rank + layer, 10.0 * rank] for layer in range(3)] for rank in range(2)]
    sums = [[a + b for a, b in zip(*pair)] for pair in zip(*values)]
    return [[[torch.tensor(layer) for layer in each]] for each in values], [sums] * 2
