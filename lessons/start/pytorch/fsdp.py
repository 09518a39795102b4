"""Each rank keeps one N-th of everything: PyTorch's fully_shard, a unit per block, and one for the rest."""

from torch.distributed.fsdp import fully_shard


def parallelize(model, make_optimizer):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, make_optimizer(model.parameters())
