"""A pipeline whose ranks work in the order 1F1B: one forward, one backward (PipeDream-Flush: Narayanan et
al. 2021, arXiv:2006.09503).

    torchrun --nproc_per_node=4 mine/train_gpt.py --strategy pipe --parts ours --micro-batches 8
"""

from pipeline import Pipeline


def my_order(rank, ranks, micro_batches):
    ahead = min(ranks - rank, micro_batches)  # so many forwards until the first gradient can come back
    work = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        work.append(("backward", number))
        if ahead + number < micro_batches:
            work.append(("forward", ahead + number))
    return work


def parallelize(model, make_optimizer):
    parallel = Pipeline(model, my_order)
    return parallel, make_optimizer(parallel.parameters())
