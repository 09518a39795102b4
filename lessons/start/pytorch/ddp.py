"""Each rank holds the whole model, and the ranks' mean gradient: PyTorch's own."""

from torch.nn.parallel import DistributedDataParallel


def parallelize(model, make_optimizer):
    return DistributedDataParallel(model, gradient_as_bucket_view=True), make_optimizer(model.parameters())
