"""fully_shard that gathers weights and computes in bf16, and adds up gradients in float32."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def parallelize(model, make_optimizer):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, make_optimizer(model.parameters())
