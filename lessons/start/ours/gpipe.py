"""A pipeline in the order of GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""

from pipeline import Pipeline


def my_order(rank, ranks, micro_batches):
    return [(kind, number) for kind in ("forward", "backward") for number in range(micro_batches)]


def parallelize(model, make_optimizer):
    parallel = Pipeline(model, my_order)
    return parallel, make_optimizer(parallel.parameters())
