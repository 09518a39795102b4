"""The ways to train one model on several ranks, each a few lines of PyTorch. shard_model.py runs and compares them.

course/sharding.py says what a way takes and returns; one process and FSDP stand there.
"""

import logging
import time
import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from course.sharding import Setup, adam, fsdp, one_process, own_share, shard_blocks, whole_batch
from course.tiny_transformer import ADAM, SHAPE, Block, TinyTransformer, batches, loss_of

MICRO_BATCHES = 4


def ddp(model, placement):
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return Setup(model, adam(model), own_share(parallel, placement.rank, placement.world_size))


def zero1(model, placement):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, **ADAM)
    return Setup(model, optimizer, own_share(parallel, placement.rank, placement.world_size))


def mine(model, placement, sharded_optimizer):
    optimizer = sharded_optimizer(model.parameters(), torch.optim.Adam, **ADAM)  # sends what has to be sent: no DDP
    return Setup(model, optimizer, own_share(model, placement.rank, placement.world_size))


def tp(model, placement):
    mesh = init_device_mesh("cpu", (placement.world_size,))
    split_matrices(model, mesh)
    return Setup(model, adam(model), whole_batch(model))


def split_matrices(model, mesh):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks.values():
        parallelize_module(block, mesh, {
            "query": ColwiseParallel(), "key": ColwiseParallel(), "value": ColwiseParallel(), "out": RowwiseParallel(),
            "up": ColwiseParallel(), "down": RowwiseParallel()})
    # The embedding by columns, too: by rows (of the vocabulary) its gradient would be whole on each rank (torch 2.14).
    parallelize_module(model, mesh, dict.fromkeys(("embedding", "head"), ColwiseParallel(output_layouts=Replicate())))


def fsdp_tp(model, placement):
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nothing here writes to the logits
    mesh = init_device_mesh("cpu", (placement.world_size // 2, 2), mesh_dim_names=("data", "tensor"))
    split_matrices(model, mesh["tensor"])
    shard_blocks(model, mesh["data"])
    return Setup(model, adam(model), own_share(model, placement.rank // 2, placement.world_size // 2))


def pipeline(model, placement, kind, micro_batches=MICRO_BATCHES):
    """`kind` is ScheduleGPipe or Schedule1F1B."""
    from torch.distributed import pipelining

    model.keep_stage(placement.rank, placement.world_size)
    stage = pipelining.PipelineStage(model, placement.rank, placement.world_size, torch.device("cpu"))
    schedule = getattr(pipelining, kind)(stage, n_microbatches=micro_batches, loss_fn=loss_of)

    def backward(tokens, targets):
        losses = []
        if placement.rank == 0:
            schedule.step(tokens)
        elif placement.rank == placement.world_size - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.all_reduce(loss)  # the last stage alone has it
        return loss
    return Setup(model, adam(model), backward, watched(stage))


def watched(stage):
    """A list that `timed` fills with each micro-batch that the pipeline stage computes."""
    events = []
    stage.forward_one_chunk = timed(stage.forward_one_chunk, "forward", events)
    stage.backward_one_chunk = timed(stage.backward_one_chunk, "backward", events)
    return events


def timed(function, name, events):
    """`function`, whose first argument is the micro-batch, which then adds {event, text, start, end}, in seconds."""
    def wrapped(micro_batch, *args, **kwargs):
        start = time.perf_counter()
        result = function(micro_batch, *args, **kwargs)
        events.append({"event": name, "text": str(micro_batch), "start": start, "end": time.perf_counter()})
        return result
    return wrapped


WAYS = {"one": one_process, "ddp": ddp, "zero1": zero1, "fsdp": fsdp, "tp": tp, "fsdp_tp": fsdp_tp,
        "gpipe": partial(pipeline, kind="ScheduleGPipe"), "1f1b": partial(pipeline, kind="Schedule1F1B")}


# ------------------------------------------------------------------------------------------------ mistakes


def tensor_parallel_that_does_not_divide(placement):
    """An MLP whose width the ranks do not divide."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    block = Block(SHAPE.hidden, SHAPE.heads)
    width = 193 if 193 % placement.world_size else 194
    block.up, block.down = (nn.Linear(*size, bias=False) for size in ((SHAPE.hidden, width), (width, SHAPE.hidden)))
    mesh = init_device_mesh("cpu", (placement.world_size,))
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    block(torch.zeros(1, SHAPE.sequence, SHAPE.hidden))


def pipeline_with_too_few_micro_batches(placement):
    """1F1B with one micro-batch less than stages."""
    pipeline(TinyTransformer(), placement, "Schedule1F1B", placement.world_size - 1).backward(*next(batches(1)))


def limits(placement):
    """{mistake: the first line of torch's message}."""
    messages = {}
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it prints a page before the error
    for mistake in (tensor_parallel_that_does_not_divide, pipeline_with_too_few_micro_batches):
        try:
            mistake(placement)
        except (RuntimeError, ValueError) as error:
            messages[mistake.__doc__] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return messages
