"""Each rank updates some of the tensors, and keeps the optimizer's state of these alone: PyTorch's own ZeRO-1.

DDP makes the mean gradient. ZeroRedundancyOptimizer wants the optimizer's class, so it is asked of make_optimizer's.
"""

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def parallelize(model, make_optimizer):
    def sharded(parameters, **options):
        return make_optimizer(parameters)

    def follow(zero, *_):  # its step() gives the inner optimizer its own rates: they are to be the schedule's
        for outer, inner in zip(zero.param_groups, zero.optim.param_groups, strict=True):
            outer["lr"] = inner["lr"]

    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=sharded)
    optimizer.register_step_pre_hook(follow)
    return parallel, optimizer
