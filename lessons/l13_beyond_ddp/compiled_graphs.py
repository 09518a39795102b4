"""Where torch.compile splits a model under DDP and FSDP2: the graphs are counted, and gradients compared. Lesson 13.

    torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/compiled_graphs.py --out results/live/13_compiled.json

A graph is what the compiler can make faster as one. Backend aot_eager: it finds the graphs of forward and backward as
the default does, and makes no machine code of them, which would take longer. On CPUs with gloo.
"""

import logging

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import launch
from course import rank_program
from files import check_output
from lessons.l13_beyond_ddp import tiny_transformer as tiny
from lessons.l13_beyond_ddp.shard_in_use import LARGER, apart, fresh, gradients
from lessons.l13_beyond_ddp.shard_model import Watchdog
from lessons.l13_beyond_ddp.shard_ways import own_share, shard_blocks


def ddp(model, ranks, backend, megabytes, optimized=True):
    torch._dynamo.config.optimize_ddp = optimized  # whether the DDPOptimizer cuts the graph at DDP's buckets
    return torch.compile(DistributedDataParallel(model, bucket_cap_mb=megabytes, gradient_as_bucket_view=True),
                         backend=backend)


def fsdp_blocks(model, ranks, backend):
    for block in model.blocks.values():
        block.compile(backend=backend)
    shard_blocks(model, init_device_mesh("cpu", (ranks,)))
    return model


def fsdp_whole(model, ranks, backend, fullgraph=False):
    shard_blocks(model, init_device_mesh("cpu", (ranks,)))
    return torch.compile(model, backend=backend, fullgraph=fullgraph)


WAYS = {"DDP, buckets of 25 MB (the default)": (ddp, {"megabytes": 25}),
        "DDP, buckets of 5 MB": (ddp, {"megabytes": 5}),
        "DDP, not cut at buckets": (ddp, {"megabytes": 5, "optimized": False}),
        "FSDP2, each block compiled": (fsdp_blocks, {}), "FSDP2, the model compiled": (fsdp_whole, {}),
        "FSDP2, the model, fullgraph=True": (fsdp_whole, {"fullgraph": True})}


def tried(make, options, here, reference):
    """{"graphs": operations of each, "off": of the gradients from one process}, or {"error": its first line}."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._logging.set_logs(dynamo=logging.ERROR)  # else each rank warns of a profiler's mark inside DDP
    torch._dynamo.reset()
    counter, model = CompileCounterWithBackend("aot_eager"), fresh(LARGER)
    (tokens, targets), = tiny.batches(1, LARGER)
    try:
        own_share(make(model, here.world_size, counter, **options), here.rank, here.world_size)(tokens, targets)
    except TorchDynamoException as error:  # on all ranks alike, before any of them sends
        return {"error": str(error).splitlines()[0]}
    operations = [sum(node.op.startswith("call") for node in graph.graph.nodes) for graph in counter.graphs]
    return {"graphs": operations, "off": apart(gradients(model), reference)}


def alone(batch):
    """The gradients of one process that has the whole batch, not compiled."""
    model, (tokens, targets) = fresh(LARGER), batch
    tiny.loss_of(model(tokens), targets).backward()
    return gradients(model)


def main():
    parser = rank_program.parser(__doc__, out="write what was found to this file, as JSON", timeout=60)
    args = parser.parse_args()
    with parser.one_line():
        here = launch.find_placement("cpu", "gloo")
        if here.world_size < 2:
            raise ValueError("this is for 2 ranks or more: torchrun --nproc_per_node=2")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    with rank_program.ranks(here, args.timeout):
        watchdog, found = Watchdog(here, args.timeout + 30), {}
        reference = alone(next(tiny.batches(1, LARGER)))
        for name, (make, options) in WAYS.items():
            watchdog.beat(name)
            found[name] = tried(make, options, here, reference)
        watchdog.timer.cancel()
    if here.rank == 0:
        rank_program.write_json(args.out, found)
        print(f"{here.world_size} ranks: {len(found)} ways compiled or refused")


if __name__ == "__main__":
    rank_program.start(main)
