"""Train an image classifier: one process, DataParallel, DistributedDataParallel (DDP), all with this file.

One process                    python main.py
All GPUs of one process        python main.py --strategy dp
8 ranks on this machine        torchrun --nproc_per_node=8 main.py
Two nodes, run on both         torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-id=1
                                   --rdzv-endpoint=FIRST_NODE:29400 main.py
A Slurm job, a task a rank     srun --ntasks-per-node=8 --kill-on-bad-exit=1 python main.py

It needs no GPU: without one the ranks are processes on the CPU, and gloo carries their gradients.
"""

import contextlib
import logging
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import checkpoint
import options
import utils

log = logging.getLogger("course")


def load_data(args, here):
    """(training set, test set) on the rank's device; the same on every rank: rank 0's `auto` counts for all."""
    chosen = [None]
    if here.local_rank == 0:  # one rank of each node prepares and checks the file, then all map it
        try:
            chosen = [utils.get_dataset(args.dataset, args.data_path)[0].name]
        except OSError as error:
            log.error("%s: use --dataset synthetic, or another --data-path than %s", error, args.data_path)
    if dist.is_initialized():
        dist.broadcast_object_list(chosen, src=0)
    if chosen[0] is None:
        sys.exit(2)
    train_set, test_set = utils.get_dataset(chosen[0], args.data_path, verify=False)
    return train_set.first(args.samples, here.device), test_set.first(args.test_samples, here.device)


def parallelise(raw_model, args, here):
    """The model whose backward() gives the gradient of the whole batch, whatever the strategy."""
    if args.strategy == "dp":
        if here.device.type == "cpu":
            log.warning("DataParallel splits over GPUs; on a CPU it only passes the batch on.")
        return nn.DataParallel(raw_model)
    if args.strategy == "ddp":
        if args.sync_bn:
            raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)
        model = DistributedDataParallel(raw_model, device_ids=[here.device] if args.device == "cuda" else None,
                                        bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=True)  # saves a copy
        model.broadcast_buffers = False  # of BatchNorm, at each step: training reads none, evaluate() sends them once
        if args.comm_hook != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(None, getattr(default_hooks, f"{args.comm_hook}_compress_hook"))
        return model
    return raw_model


def scale_rate(optimizer, args, world_size, steps_per_epoch):
    """The scheduler that takes --lr to its scaled value, at once or over --warmup-epochs (Goyal et al. 2017,
    1706.02677: k times the images a step, k times the rate). Stepped after each update."""
    scale = {"none": 1, "linear": world_size, "sqrt": math.sqrt(world_size)}[args.lr_scaling]
    rise = (args.warmup_epochs or 0) * steps_per_epoch
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 + (scale - 1) * (s / rise if s < rise else 1))


def train_one_epoch(model, loader, optimizer, scheduler, keeper, progress, args):
    """The rest of an epoch on this rank's shard: ([sum of losses, hits, images] over all ranks, {phase: seconds})."""
    model.train()
    device = keeper.here.device
    sums = torch.tensor(progress.sums, dtype=torch.float64, device=device)  # .item() at each step: a GPU would wait
    autocast = torch.autocast(device.type, torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    timer = utils.PhaseTimer(device, progress.seconds)
    for images, labels in keeper.with_random_state(loader):
        timer.mark("data")
        with autocast:
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
        sums += count(logits, labels, loss)
        timer.mark("forward")
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients over all ranks in here
        timer.mark("backward")
        optimizer.step()
        scheduler.step()
        timer.mark("update")
        keeper.after_step(progress, sums, timer)
    seconds = timer.totals()
    return utils.all_sum(sums), seconds


@torch.no_grad()
def evaluate(raw_model, test_set, here):
    """(loss, accuracy) over the test set; each image counts exactly once, whatever the world size.

    The shard is a plain slice: DistributedSampler would repeat images to make shards equal. Shards may then differ in
    length, so the raw model runs: DDP's forward has collectives that all ranks must call equally often.
    """
    if dist.is_initialized():
        for buffer in raw_model.buffers():  # each rank has its own BatchNorm statistics: judge, and save, rank 0's
            dist.broadcast(buffer, src=0)
    raw_model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=here.device)
    shard = range(here.rank, len(test_set), here.world_size)
    for images, labels in DataLoader(test_set, batch_size=1000, sampler=shard, collate_fn=test_set.collate):
        logits = raw_model(images)
        sums += count(logits, labels, nn.functional.cross_entropy(logits, labels))
    loss, hits, images = utils.all_sum(sums)
    return loss / images, hits / images


def count(logits, labels, mean_loss):
    """[sum of losses, hits, images] of a batch: sums can be added up over unequal batches and shards, means cannot."""
    hits = (logits.argmax(1) == labels).sum()
    return torch.stack([mean_loss.detach() * len(labels), hits, torch.full_like(hits, len(labels))]).double()


def weight_norm(raw_model):
    """L2 norm of all weights; RuntimeError unless it is the same on every rank, as DDP promises."""
    norm = torch.stack([p.detach().double().norm() for p in raw_model.parameters()]).norm()
    low_high = torch.stack([-norm, norm])
    if dist.is_initialized():
        dist.all_reduce(low_high, op=dist.ReduceOp.MAX)
    if not torch.isclose(-low_high[0], low_high[1], rtol=1e-6, atol=0, equal_nan=True):
        raise RuntimeError(f"the ranks' models have drifted apart: weight norms {-low_high[0]} to {low_high[1]}")
    return norm.item()


def make_optimizer(parameters, args):
    settings = {"params": parameters, "lr": args.lr, "fused": True}  # fused: one pass over all weights
    return torch.optim.Adam(**settings) if args.optimizer == "adam" else torch.optim.SGD(**settings, momentum=0.9)


def end_epoch(epoch, sums, seconds, raw_model, test_set, here, run_log):
    """Evaluate, check that the ranks agree, and log the epoch: what its record holds. Every rank must call it."""
    val_loss, val_accuracy = evaluate(raw_model, test_set, here)
    norm = weight_norm(raw_model)  # a collective: every rank must come here, not only the one that logs
    loss, hits, images = sums
    loss, accuracy, total = loss / images, hits / images, sum(seconds.values())
    facts = {"loss": loss, "accuracy": accuracy, "seconds": total, "images_per_second": images / total,
             **{f"{phase}_seconds": s for phase, s in seconds.items()},
             "val_loss": val_loss, "val_accuracy": val_accuracy, "weight_norm": norm}
    run_log.write("epoch", epoch=epoch, **facts)
    log.info("Epoch: %d, Loss: %.4f, acc: %.4f, time cost: %.2fs, val loss: %.4f, val acc: %.4f, images/s: %.0f",
             epoch, loss, accuracy, total, val_loss, val_accuracy, images / total)
    return facts


def save_model(raw_model, path):
    """The raw model's weights, whole or not at all. DDP's own names begin with "module."."""
    torch.save(raw_model.state_dict(), f"{path}.part")
    os.replace(f"{path}.part", path)


def settle_buckets(model, loader):
    """DDP orders its buckets anew after its first step, and sums in another order have other last bits. A run that goes
    on takes that step before it loads its weights, so that it ends with the very weights of one that was never stopped.
    """
    images, labels = next(iter(loader))
    nn.functional.cross_entropy(model(images), labels).backward()
    model.zero_grad()


def train(args, here, run_log, keeper):
    torch.manual_seed(args.seed)
    train_set, test_set = load_data(args, here)
    if not args.compile:
        utils.defer_compiler()
    info = utils.DATASETS[train_set.name]
    raw_model = utils.MODELS[args.model](info.shape[0], len(info.classes), info.shape[1]).to(
        here.device, memory_format=torch.channels_last if args.channels_last else torch.preserve_format)
    model = parallelise(raw_model, args, here)
    # With one process the sampler has one shard: the same images in the same order as all ranks together see.
    sampler = checkpoint.Shard(train_set, here.world_size, here.rank, shuffle=args.shuffle, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    optimizer = make_optimizer(model.parameters(), args)
    scheduler = scale_rate(optimizer, args, here.world_size, len(loader))

    state = keeper.find(args.resume, options.must_agree(args, here, train_set))
    if state and args.strategy == "ddp":
        settle_buckets(model, loader)
    progress = keeper.restore(state, {"model": raw_model, "optimizer": optimizer, "scheduler": scheduler})
    if state:
        run_log.resume(progress.run_id)
    progress.run_id = run_log.run_id
    options.describe(args, here, train_set, sampler, run_log, progress)
    if args.compile:
        model = torch.compile(model)
    utils.keep_memory()  # each step from here on needs what the one before it freed
    for epoch in range(progress.epoch, args.epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        sampler.start = progress.step * args.batch_size
        sums, seconds = train_one_epoch(model, loader, optimizer, scheduler, keeper, progress, args)
        facts = end_epoch(epoch, sums, seconds, raw_model, test_set, here, run_log)
        if not math.isfinite(facts["loss"]):
            raise FloatingPointError(f"the loss is {facts['loss']} after epoch {epoch}: try a smaller --lr")
        keeper.after_epoch(progress, facts)

    if args.save_model and here.rank == 0:
        save_model(raw_model, args.save_model)


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = options.get_parser(__doc__)
    args = parser.parse_args()
    try:
        here = options.resolve(args)
        keeper = checkpoint.Checkpoint(args.checkpoint, args.checkpoint_every, here)
        run_log = utils.RunLog(args.log_file if here.rank == 0 else None)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    logging.basicConfig(format="%(message)s", level=logging.INFO if here.rank == 0 else logging.ERROR)
    torch.set_num_threads(utils.threads_per_rank(here))
    try:
        with run_log:
            if args.strategy == "ddp":
                utils.init_distributed_mode(here, args.dist_url, args.timeout)
            train(args, here, run_log, keeper)
    except (OSError, checkpoint.Unusable) as error:  # no connection, a full disk, a checkpoint of another run
        log.error(error)
        sys.exit(2)
    except RuntimeError as error:
        where = keeper.lost(error)
        if where is None:
            raise
        if where:
            log.error(where)
        sys.exit(1)
    except KeyboardInterrupt:
        log.info("Interrupted.")
        sys.exit(130)  # what a shell expects after Ctrl-C
    finally:
        utils.end_distributed_mode()


if __name__ == "__main__":
    main()
    utils.exit_now()
