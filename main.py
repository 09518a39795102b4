"""Train an image classifier: one process, DataParallel, DistributedDataParallel (DDP), all with this file.

One process                    python main.py
All GPUs of one process        python main.py --strategy dp
8 ranks on this machine        torchrun --nproc_per_node=8 main.py
Two nodes, run on both         torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-id=1
                                   --rdzv-endpoint=FIRST_NODE:29400 main.py
A Slurm job, a task per rank   srun --ntasks-per-node=8 --kill-on-bad-exit=1 python main.py
MPI's ranks                    mpirun -np 8 -x MASTER_ADDR=FIRST_NODE -x MASTER_PORT=29400 python main.py

It needs no GPU: without one the ranks are processes on the CPU, and gloo carries their gradients. To use it elsewhere,
copy main.py, utils.py and trainer/.
"""

import contextlib
import math
import random
import sys

import numpy
import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import utils
from trainer import checkpoint, data, files, launch, models, options
from trainer.run import Run, Shard, settle_buckets


def parallelise(raw_model: nn.Module, args: options.Options, placement: launch.Placement) -> nn.Module:
    """The model whose backward() gives the gradient of the whole batch, whatever the strategy."""
    if args.strategy == "dp":
        return nn.DataParallel(raw_model)
    if args.wrapper:
        return files.from_file(args.wrapper)(raw_model)
    if args.strategy == "ddp":
        if args.sync_bn:
            raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)
        model = DistributedDataParallel(
            raw_model,
            device_ids=None if args.device == "cpu" else [placement.device],
            bucket_cap_mb=args.bucket_cap_mb,  # how many gradients travel together
            gradient_as_bucket_view=True,  # gradients are views into the all-reduce buckets: saves one copy
        )
        model.broadcast_buffers = False  # training reads no BatchNorm statistics, and evaluate() sends rank 0's
        if args.comm_hook != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(None, getattr(default_hooks, f"{args.comm_hook}_compress_hook"))
        return model
    return raw_model


def train(args: options.Options, placement: launch.Placement, run: Run) -> None:
    """Every rank runs this. `run` counts, times, logs, saves, resumes and stops."""
    device = placement.device
    torch.manual_seed(args.seed)
    train_set, test_set = data.load(args, placement)
    torch.manual_seed(args.seed)  # again: a data set of one's own may have drawn
    raw_model = models.make_model(args, train_set, device)
    model = parallelise(raw_model, args, placement)
    torch.manual_seed(args.seed + placement.rank)  # all ranks have the same weights; dropout must differ
    random.seed(args.seed + placement.rank)  # a data set of one's own may draw from Python's or NumPy's generator
    numpy.random.seed((args.seed + placement.rank) % 2**32)

    # A DistributedSampler that can begin in the middle of an epoch. A single process has one shard: all images, in the
    # order in which all ranks together would see them.
    sampler = Shard(train_set, placement.world_size, placement.rank, shuffle=args.shuffle, seed=args.seed)
    workers_seed = torch.Generator().manual_seed(hash((args.seed, placement.rank)))
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate,
                        num_workers=args.workers, persistent_workers=args.workers > 0, generator=workers_seed,
                        pin_memory=device.type == "cuda",  # makes the copy to the GPU asynchronous
                        timeout=args.timeout if args.workers else 0, worker_init_fn=utils.leave_signals_to_rank)
    eval_batch_size = args.batch_size if isinstance(test_set, data.OwnSet) else 1000  # large images need memory
    test_loader = utils.shard_loader(test_set, placement, args.workers, eval_batch_size, args.timeout)
    optimizer = utils.make_optimizer(model.parameters(), args)
    scheduler = utils.scale_rate(optimizer, args, len(loader))
    no_sync = utils.find_no_sync(model, args)  # inside DDP's no_sync(), backward sends nothing
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=args.bf16)
    torch.set_float32_matmul_precision(args.matmul_precision)
    if args.compile:
        model.compile()  # in place: the weights keep the names that they have without it

    run.hold(raw_model, optimizer, scheduler, train_set)
    if saved := run.saved_state():
        if isinstance(model, DistributedDataParallel):
            settle_buckets(model, loader, device, args.bf16)  # before the weights, for the same bits
        run.restore(saved)
    run.begin(sampler)

    per_update = args.batch_size * args.accumulate  # images of this rank
    updates = math.ceil(len(loader) / args.accumulate)  # per epoch; the last may have fewer images
    for epoch in range(run.progress.epoch, args.epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        sampler.start = run.progress.step * per_update  # a run that resumes skips what it has seen
        if isinstance(train_set, data.OwnSet):
            train_set.epoch.fill_(epoch)  # new random draws in its workers
        model.train()
        run.begin_epoch()
        for number, (images, labels) in enumerate(loader, start=run.progress.step * args.accumulate + 1):
            run.timer.mark("data")
            last = number % args.accumulate == 0 or number == len(loader)  # the last batch of its update
            share = len(labels) / min(per_update, len(sampler) - run.progress.step * per_update)
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with contextlib.nullcontext() if last else no_sync():  # all-reduce once per update
                with autocast:
                    logits = model(images)
                    loss = cross_entropy(logits, labels)
                run.forward_done(logits, labels, loss)
                (loss * share).backward()  # in here DDP averages the gradients over all ranks
            run.timer.mark("backward")
            if not last:
                continue
            if args.wrapper and hasattr(model, "finish"):
                model.finish()  # type: ignore[operator]  # a --wrapper may wait until here to average the gradients
            if args.clip:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # of the averaged gradient
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            run.update_done(updates)
        run.end_epoch(*utils.evaluate(raw_model, test_loader, device))

    if args.save_model and placement.rank == 0:
        checkpoint.save_model(raw_model, args.save_model)  # the raw model's: DDP's names begin with "module."


@record  # a rank that fails leaves its traceback where torchrun finds it
def main() -> None:
    parser = options.get_parser(__doc__)
    with parser.one_line():  # bad input ends the program with one line, exit status 2
        args = parser.parse_options()
        placement = options.resolve(args)
        run = Run(args, placement)
    with options.exit_status(), run:
        if args.verbose:  # before the ranks meet: then it is seen which one has not come
            print(placement, file=sys.stderr)
        if args.strategy == "ddp":
            run.store = launch.init_distributed_mode(placement, args.dist_url, args.timeout)
        train(args, placement, run)


if __name__ == "__main__":
    main()
