TITLE = "1F1B: a pipeline"
TASK = """Three stages of one model stand on three ranks. Micro-batches go forward from stage 0 to 2, and gradients come
back. Each forward and each backward takes one tick; messages take none. A stage keeps what a forward computed until its
backward. <code>order</code> returns a list of "F" and "B", one of each per micro-batch: what the stage does, in which
order. Finish six micro-batches in 16 ticks, and keep few: stage 0 needs three at a time, the last stage one.
<code>train</code> returns the sum of what came in, and how many micro-batches are kept at the end."""
NAME, RANKS, LIMIT, COST = "train", (3,), ("time", "memory"), (0, 0)
SOLUTION = """
import torch
import torch.distributed as dist


def order(stage, stages, batches):
    # >>>
    first = stages - stage
    return ["F"] * first + ["B", "F"] * (batches - first) + ["B"] * first
    # <<<


def train(inputs):
    stage, last = dist.get_rank(), dist.get_world_size() - 1
    kept, sending, total, batch = [], [], 0, 0
    for what in order(stage, last + 1, len(inputs)):
        if what == "F":
            x = inputs[batch:batch + 1].clone()
            if stage > 0:
                dist.recv(x, src=stage - 1)
            batch += 1
            work(1)
            kept.append(x)
            total += x.item()
            if stage < last:
                sending.append(dist.isend(x + 1, dst=stage + 1))
        else:
            gradient = kept[0] * 0 + 1
            if stage < last:
                dist.recv(gradient, src=stage + 1)
            work(1)
            free(kept.pop(0))
            if stage > 0:
                sending.append(dist.isend(gradient * 2, dst=stage - 1))
    for each in sending:
        each.wait()
    return [total, len(kept)]
"""
BEST = '["F"] * first + ["B", "F"] * (batches - first) + ["B"] * first'
MISTAKES = [
    ([(BEST, '["F"] * batches + ["B"] * batches')],
     "All forwards first: stage 0 keeps six micro-batches. Begin with backwards as soon as they can come."),
    ([(BEST, '["F", "B"] * batches')],
     "Each micro-batch goes through alone, and two of three stages wait. Start as many as there are stages."),
    ([("first = stages - stage", "first = stages")],
     "Every stage starts three forwards, so the last one delays its first backward. It can begin after one."),
    ([("first = stages - stage", "first = stages - stage - 1")],
     "One forward too few at the start: a gradient is awaited before the micro-batch has left."),
]
MISTAKES = [mistake + ("right on gloo",) for mistake in MISTAKES[:3]] + MISTAKES[3:]
LEARNED = """One forward, one backward: the same time as all forwards first, and memory that no longer grows with the
batch."""


def case(ranks):
    inputs = [float(i) for i in range(6)]
    return [[torch.tensor(inputs)] for _ in range(3)], [[sum(inputs) + 6 * rank, 0] for rank in range(3)]
