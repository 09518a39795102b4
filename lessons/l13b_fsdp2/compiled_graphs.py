"""Where torch.compile splits a model under DDP and FSDP2: the graphs are counted, and gradients compared. Lesson 13.

    torchrun --nproc_per_node=2 lessons/l13b_fsdp2/compiled_graphs.py --out results/live/13b_compiled.json

A graph is what the compiler can make faster as one. The backend here gets the same graphs as the default backend,
counts their operations and runs them one by one: to make machine code of them would take longer. On CPUs with gloo.
"""

import logging

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from course import rank_program
from course import tiny_transformer as tiny
from course.sharding import Watchdog, apart, own_share, shard_blocks
from lessons.l13b_fsdp2.shard_in_use import LARGER, fresh, gradients
from trainer import launch
from trainer.files import check_output


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


def compiled(make, options, placement, reference):
    """{"graphs": [operations of each], "off": largest difference of the gradients from those of one process}; where
    the compiler refuses, {"graphs": [], "error": the first line of its message}."""
    from torch._dynamo.exc import TorchDynamoException

    torch._logging.set_logs(dynamo=logging.ERROR)  # else each rank warns of a profiler's mark inside DDP
    torch._dynamo.reset()
    graphs, model = [], fresh(LARGER)

    def backend(graph, inputs):
        graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward  # as the backend `eager` does
    (tokens, targets), = tiny.batches(1, LARGER)
    try:
        parallel = make(model, placement.world_size, backend, **options)
        own_share(parallel, placement.rank, placement.world_size)(tokens, targets)
    except TorchDynamoException as error:  # on all ranks alike, before any of them sends
        return {"graphs": [], "error": str(error).splitlines()[0]}
    return {"graphs": graphs, "off": apart(gradients(model), reference)}


def main():
    parser = rank_program.parser(__doc__, out="write the graphs to this file, as JSON", timeout=60)
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this is for 2 ranks or more: torchrun --nproc_per_node=2")
        check_output("--out", args.out)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        watchdog, results = Watchdog(placement, args.timeout + 30), {}
        model, (tokens, targets) = fresh(LARGER), next(tiny.batches(1, LARGER))
        tiny.loss_of(model(tokens), targets).backward()  # one process with the whole batch, not compiled
        reference = gradients(model)
        for name, (make, options) in WAYS.items():
            watchdog.beat(name)
            results[name] = compiled(make, options, placement, reference)
    if placement.rank == 0:
        rank_program.write_json(args.out, results)
        print(f"{placement.world_size} ranks: {len(results)} ways compiled or refused")


if __name__ == "__main__":
    rank_program.start(main)
