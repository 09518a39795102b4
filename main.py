"""Train an image classifier: one process, DataParallel, DistributedDataParallel (DDP), all with this file.

One process                    python main.py
All GPUs of one process        python main.py --strategy dp
8 ranks on this machine        torchrun --nproc_per_node=8 main.py
Two nodes, run on both         torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-id=1
                                   --rdzv-endpoint=FIRST_NODE:29400 main.py
A Slurm job, a task a rank     srun --ntasks-per-node=8 --kill-on-bad-exit=1 python main.py

It needs no GPU: without one the ranks are processes on the CPU, and gloo carries their gradients.
"""

import argparse
import logging
import math
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import utils

log = logging.getLogger("course")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, not a page from each rank: the others wait for a node's first rank to say it and end the job."""
        if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0":
            time.sleep(10)
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        sys.exit(2)


def positive(kind):
    def number(text):
        if not 0 < kind(text) < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not a positive number")
        return kind(text)
    return number


def get_parser():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", choices=["auto", *utils.DATASETS], default="auto",
        help="auto: cifar10, or synthetic where it cannot be had")
    add("--data-path", default="./data", help="folder of the data files")
    add("--samples", type=positive(int), help="train on the first so many images; default: all")
    add("--test-samples", type=positive(int), help="evaluate on the first so many images; default: all")
    add("--model", choices=utils.MODELS, default="lenet", help="resnet is small and has BatchNorm")
    add("--epochs", type=positive(int), default=10, help="passes over the training images")
    add("--batch-size", type=positive(int), default=64, help="images a step, for each process")
    add("--optimizer", choices=["adam", "sgd"], default="adam", help="sgd has momentum 0.9")
    add("--lr", type=positive(float), default=0.001, help="learning rate")
    add("--seed", type=int, default=0, help="of the weights and of the shuffling")
    add("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the images")
    add("--strategy", choices=["auto", "single", "dp", "ddp"], default="auto",
        help="auto: ddp where torchrun or srun started this process, else single")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: a GPU where there is one")
    add("--backend", choices=["auto", "nccl", "gloo"], default="auto",
        help="auto: nccl where each rank has a GPU of its own, else gloo")
    add("--dist-url", default="env://", help="where the ranks meet; env:// reads MASTER_ADDR and MASTER_PORT")
    add("--timeout", type=positive(float), default=600, help="longest wait for another rank, seconds")
    add("--sync-bn", action="store_true", help="BatchNorm over the batches of all ranks (GPUs only)")
    add("--log-file", help="append the run log, JSON lines, to this file")
    add("--save-model", help="write the trained weights to this file")
    # torch.distributed.launch passes this; the environment variable LOCAL_RANK says the same.
    add("--local-rank", "--local_rank", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def resolve(args):
    """Replace each `auto` and default that depends on the machine; ValueError or OSError for what cannot work.

    Runs before any process group exists: a mistake must not leave ranks that wait for each other.
    """
    here = utils.find_placement(args.device, args.backend)
    if args.strategy == "auto":
        args.strategy = "single" if here.launcher == "python" else "ddp"
    if args.strategy != "ddp" and here.world_size > 1:
        raise ValueError(f"--strategy {args.strategy} is for one process, and {here.launcher} started "
                         f"{here.world_size}, each of which would train a model of its own: use --strategy ddp")
    if args.sync_bn and (args.strategy, here.device.type) != ("ddp", "cuda"):
        raise ValueError("--sync-bn needs DDP on GPUs (SyncBatchNorm has no CPU form): leave it out")

    dataset = "cifar10" if args.dataset == "auto" else args.dataset
    sizes = utils.DATASETS[dataset].sizes
    args.samples, args.test_samples = args.samples or sizes[0], args.test_samples or sizes[1]
    if args.samples > sizes[0] or args.test_samples > sizes[1]:
        raise ValueError(f"--samples {args.samples} --test-samples {args.test_samples}: {args.dataset} has "
                         f"{sizes[0]} and {sizes[1]} images")
    if args.samples < here.world_size:
        raise ValueError(f"--samples {args.samples} is less than the {here.world_size} ranks: each needs an image")

    if not Path(args.data_path, f"{dataset}.pt").is_file():
        check_writable("--data-path", args.data_path)
    for option, file in (("--save-model", args.save_model), ("--log-file", args.log_file)):
        if file:
            check_writable(option, Path(file).parent)
    args.device, args.backend = here.device.type, here.backend if args.strategy == "ddp" else None
    return here


def check_writable(option, folder):
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{option}: cannot write in {folder} ({error.strerror})") from None


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
        return DistributedDataParallel(raw_model, device_ids=[here.device] if args.device == "cuda" else None,
                                       gradient_as_bucket_view=True)  # saves copying the averages back
    return raw_model


def train_one_epoch(model, loader, optimizer, device):
    """One pass over this rank's shard: ([sum of losses, hits, images] over all ranks, {phase: seconds})."""
    model.train()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # .item() at each step would make a GPU wait
    timer = utils.PhaseTimer(device)
    for images, labels in loader:
        timer.mark("data")
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        sums += count(logits, labels, loss)
        timer.mark("forward")
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients over all ranks in here
        timer.mark("backward")
        optimizer.step()
        timer.mark("update")
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


def train(args, here, run_log):
    torch.manual_seed(args.seed)
    train_set, test_set = load_data(args, here)
    utils.defer_compiler()  # nothing is compiled here
    info = utils.DATASETS[train_set.name]
    raw_model = utils.MODELS[args.model](info.shape[0], len(info.classes), info.shape[1]).to(here.device)
    model = parallelise(raw_model, args, here)
    # With one process the sampler has one shard: the same images in the same order as all ranks together see.
    sampler = DistributedSampler(train_set, here.world_size, here.rank, shuffle=args.shuffle, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    options = {"params": model.parameters(), "lr": args.lr, "fused": True}  # fused: one pass over all weights
    optimizer = torch.optim.Adam(**options) if args.optimizer == "adam" else torch.optim.SGD(**options, momentum=0.9)
    describe(args, here, train_set, sampler, run_log)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        (loss, hits, images), seconds = train_one_epoch(model, loader, optimizer, here.device)
        val_loss, val_accuracy = evaluate(raw_model, test_set, here)
        norm = weight_norm(raw_model)  # a collective: every rank must come here, not only the one that logs
        loss, accuracy, total = loss / images, hits / images, sum(seconds.values())
        run_log.write("epoch", epoch=epoch, loss=loss, accuracy=accuracy, seconds=total,
                      images_per_second=images / total, **{f"{phase}_seconds": s for phase, s in seconds.items()},
                      val_loss=val_loss, val_accuracy=val_accuracy, weight_norm=norm)
        log.info("Epoch: %d, Loss: %.4f, acc: %.4f, time cost: %.2fs, val loss: %.4f, val acc: %.4f, images/s: %.0f",
                 epoch, loss, accuracy, total, val_loss, val_accuracy, images / total)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} after epoch {epoch}: try a smaller --lr")

    if args.save_model and here.rank == 0:  # the raw model: DDP's own names begin with "module."
        torch.save(raw_model.state_dict(), f"{args.save_model}.part")
        os.replace(f"{args.save_model}.part", args.save_model)


def describe(args, here, train_set, sampler, run_log):
    """Say what runs where, in the log's `run` record and on the console."""
    gpus, cores, threads = torch.cuda.device_count(), utils.cores(), torch.get_num_threads()
    synthetic, padding = train_set.name == "synthetic", sampler.total_size - len(train_set)
    device_name = torch.cuda.get_device_name(here.device) if args.device == "cuda" else cpu_name()
    run_log.write("run", **{**vars(args), "dataset": train_set.name}, synthetic=synthetic, world_size=here.world_size,
                  local_world_size=here.local_world_size, nodes=here.nodes, launcher=here.launcher,
                  device_name=device_name, device_count=gpus, cores=cores, threads=threads,
                  host=f"{platform.system()} {platform.machine()}", torch=torch.__version__,
                  python=platform.python_version())
    log.info("%s%s: %d training and %d test images", train_set.name,
             " (SYNTHETIC: made from a seed, not photographs)" if synthetic else "", args.samples, args.test_samples)
    log.info("%s, %s: %d rank(s) x batch %d = %d images a step; %s, %d thread(s) a rank", args.model, args.strategy,
             here.world_size, args.batch_size, here.world_size * args.batch_size,
             ", ".join(filter(None, [device_name, args.backend])), threads)
    if args.device == "cuda" and args.backend == "gloo" and here.local_world_size > gpus:
        log.warning("%d ranks share %d GPU(s): they take turns, and gloo carries the gradients.",
                    here.local_world_size, gpus)
    if args.device == "cpu" and here.local_world_size > cores:
        log.warning("%d ranks share %d cores: they take turns.", here.local_world_size, cores)
    if padding:
        log.warning("%d image(s) are trained on twice an epoch, so that all shards are equally long.", padding)


def cpu_name():
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere the kind of processor has to do
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return found[1] if found else platform.machine()


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = get_parser()
    args = parser.parse_args()
    try:
        here = resolve(args)
        run_log = utils.RunLog(args.log_file if here.rank == 0 else None)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--log-file {args.log_file}: {error.strerror}")
    logging.basicConfig(format="%(message)s", level=logging.INFO if here.rank == 0 else logging.ERROR)
    torch.set_num_threads(utils.threads_per_rank(here))
    try:
        with run_log:
            if args.strategy == "ddp":
                utils.init_distributed_mode(here, args.dist_url, args.timeout)
            train(args, here, run_log)
    except KeyboardInterrupt:
        log.info("Interrupted.")
        sys.exit(130)  # what a shell expects after Ctrl-C
    finally:
        utils.end_distributed_mode()


if __name__ == "__main__":
    main()
    utils.exit_now()
