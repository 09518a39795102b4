"""Each rank updates some of the tensors, and keeps the optimizer's state of these alone: PyTorch's own ZeRO-1.

DDP makes the mean gradient. ZeroRedundancyOptimizer wants the optimizer's class, so it is asked of make_optimizer's.
"""

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def parallelize(model, make_optimizer):
    def sharded(parameters, **options):
        return make_optimizer(parameters)

    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return parallel, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=sharded)
