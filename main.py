"""Train an image classifier: one process, DataParallel, DistributedDataParallel (DDP), all with this file.

One process                    python main.py
All GPUs of one process        python main.py --strategy dp
8 ranks on this machine        torchrun --nproc_per_node=8 main.py
Two nodes, run on both         torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-id=1
                                   --rdzv-endpoint=FIRST_NODE:29400 main.py
A Slurm job, a task a rank     srun --ntasks-per-node=8 --kill-on-bad-exit=1 python main.py
MPI's ranks                    mpirun -np 8 -x MASTER_ADDR=FIRST_NODE -x MASTER_PORT=29400 python main.py

It needs no GPU: without one the ranks are processes on the CPU, and gloo carries their gradients.
"""

import argparse
import contextlib
import random
import sys

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import utils
from course import shortcuts
from trainer import checkpoint, data, files, models, options
from trainer.launch import Placement, init_distributed_mode
from trainer.run import Run, Shard


def parallelise(raw_model: nn.Module, args: argparse.Namespace, placement: Placement) -> nn.Module:
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
            gradient_as_bucket_view=True,  # they lie where they are sent from: saves a copy
            **{utils.BUFFERS: False},  # send no BatchNorm statistics: training reads none, evaluate() sends rank 0's
        )
        if args.comm_hook != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(None, getattr(default_hooks, f"{args.comm_hook}_compress_hook"))
        return model
    return raw_model


def train(args: argparse.Namespace, placement: Placement, run: Run) -> None:
    """Every rank runs this. `run` counts, times, logs and saves, and resumes where an earlier run stopped."""
    torch.manual_seed(args.seed)
    train_set, test_set = data.load(args, placement)
    raw_model = models.make_model(args, train_set, placement.device)
    model = parallelise(raw_model, args, placement)
    torch.manual_seed(args.seed + placement.rank)  # all ranks have the same weights; dropout must differ
    random.seed(args.seed + placement.rank)  # a data set of one's own may draw from Python's generator
    # A DistributedSampler that can begin in the middle of an epoch. A single process has one shard: all images, in the
    # order in which all ranks together would see them.
    sampler = Shard(train_set, placement.world_size, placement.rank, shuffle=args.shuffle, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate,
                        num_workers=args.workers, generator=torch.Generator(),  # of the workers' seeds
                        pin_memory=placement.device.type == "cuda",  # then a copy to the GPU need not be waited for
                        timeout=args.timeout if args.workers else 0, worker_init_fn=utils.leave_signals_to_rank)
    optimizer = utils.make_optimizer(model.parameters(), args)
    scheduler = utils.scale_rate(optimizer, args, len(loader))

    def before_update(*_):
        if hasattr(model, "finish"):  # a --wrapper may wait until here to average the gradients
            model.finish()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)

    optimizer.register_step_pre_hook(before_update)
    no_sync = utils.find_no_sync(model, args)  # inside DDP's no_sync(), backward sends nothing
    autocast = torch.autocast(placement.device.type, torch.bfloat16, enabled=args.bf16)
    torch.set_float32_matmul_precision(args.matmul_precision)
    if args.compile:
        model.compile()  # in its place: the weights keep the names that they have without it

    judged = args.batch_size if isinstance(test_set, data.OwnSet) else 1000  # images at a time; large ones need memory
    for epoch in run.epochs(loader, model, raw_model, optimizer, scheduler):
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        model.train()
        for images, labels, share, last in run.batches(loader):  # share: of its update's images
            images, labels = (part.to(placement.device, non_blocking=True) for part in (images, labels))
            with contextlib.nullcontext() if last else no_sync():
                with autocast:
                    logits = model(images)
                    loss = cross_entropy(logits, labels)
                run.forward_done(logits, labels, loss)
                (loss * share).backward()  # in here DDP averages the gradients over all ranks
            run.backward_done()
            if last:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        run.end_epoch(*utils.evaluate(raw_model, test_set, placement, args.workers, judged, args.timeout))

    if args.save_model and placement.rank == 0:
        checkpoint.save_model(raw_model, args.save_model)  # the raw model's: DDP's names begin with "module."


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = options.get_parser(__doc__)
    with parser.one_line():  # bad input ends the program with one line, exit status 2
        args = parser.parse_args()
        placement = options.resolve(args)
        run = Run(args, placement)
    with options.exit_status(), run:
        if args.verbose:  # before the ranks meet: then it is seen which one has not come
            print(placement, file=sys.stderr)
        if args.strategy == "ddp":
            run.store = init_distributed_mode(placement, args.dist_url, args.timeout)
        if args.shortcuts and args.device == "cpu":
            shortcuts.before_training(args.compile)
        train(args, placement, run)
    if args.shortcuts and args.backend == "gloo":
        shortcuts.exit_now()


if __name__ == "__main__":
    main()
