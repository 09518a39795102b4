"""What a program is told on its command line: one-line errors, paths that can be written, and main.py's own options.

It imports no torch of itself: a bad word is refused at once, and small programs start in a tenth of a second.
"""

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import files

log = logging.getLogger("course")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, and no usage: each rank says it, for the first to end may end the others."""
        print(f"{self.prog}: error: {' '.join(message.split())}", file=sys.stderr)  # one line, whatever a path holds
        sys.exit(2)

    @contextmanager
    def one_line(self):
        """What the block finds wrong with its input (ValueError, OSError) ends the program with one line, status 2."""
        try:
            yield
        except OSError as error:
            self.error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except ValueError as error:
            self.error(str(error))


@contextmanager
def exit_status():
    """End the process with the status that its launcher expects: 2, after one line, for what no change of the code can
    mend; 75 after a signal; 130 after Ctrl-C. Every other error goes on, with its whole text and its traceback."""
    import launch

    try:
        yield
    except files.Refused as refusal:
        log.error(refusal)
        sys.exit(2)
    except launch.Stopped as stopped:
        log.info(stopped)
        sys.exit(launch.RESUMABLE)
    except KeyboardInterrupt:
        log.info("Interrupted.")
        sys.exit(130)


def positive(kind: type, limit: float | None = None) -> Callable[[str], float]:
    """A type of argparse: a number above 0, and below `limit`; for whole numbers that is 2^31, if left out."""
    limit = limit or (2**31 if kind is int else math.inf)

    def number(text):
        if not 0 < kind(text) < limit:
            below = f" below {limit:,}" if 0 < kind(text) < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text} is not a positive number{below}")
        return kind(text)
    return number


def nonempty_path(text: str) -> Path:
    """A type of argparse: a Path. Path("") would be the folder that the program runs in."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no path")
    return Path(text)


def from_zero(text: str) -> int:
    """A type of argparse: a seed, say, or a rank. (2^32 is NumPy's limit for seeds.)"""
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 2^32 - 1")
    return int(text)


def get_parser(description: str | None = None) -> Parser:
    import data
    import models

    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", choices=["auto", *data.DATASETS], default="auto",
        help="auto: cifar10, or synthetic where it cannot be had")
    add("--data-path", default=data.FOLDER, help="folder of the data files; default: COURSE_DATA, or ./data")
    add("--samples", type=positive(int), help="train on the first so many images; default: all")
    add("--test-samples", type=positive(int), help="evaluate on the first so many images; default: all")
    add("--model", choices=models.MODELS, default="lenet", help="resnet is small and has BatchNorm")
    add("--epochs", type=positive(int), default=10, help="passes over the training images")
    add("--batch-size", type=positive(int), default=64, help="images a step, for each process")
    add("--global-batch-size", type=positive(int), help="images a step, over all processes, whatever their "
        "number: in place of --batch-size")
    add("--optimizer", choices=["adam", "sgd"], default="adam", help="sgd has momentum 0.9")
    add("--lr", type=positive(float), default=0.001, help="learning rate")
    add("--lr-scaling", choices=["none", "linear", "sqrt"], default="none",
        help="--lr is for --batch-size images an update. All processes together take k times as many: multiply it by k,"
        " or by its square root")
    add("--warmup-epochs", type=positive(float), help="rise from --lr to the scaled rate in so many epochs")
    add("--seed", type=from_zero, default=0, help="of the weights and of the shuffling")
    add("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the images")
    add("--strategy", choices=["auto", "single", "dp", "ddp"], default="auto",
        help="auto: ddp where torchrun or srun started this process, else single")
    add("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto", help="auto: a GPU where there is one")
    add("--backend", choices=["auto", "nccl", "gloo"], default="auto",
        help="auto: nccl where each rank has a GPU of its own, else gloo")
    add("--dist-url", default="env://", help="where the ranks meet; env:// reads MASTER_ADDR and MASTER_PORT")
    add("--timeout", type=positive(float, 2**31), default=600, help="longest wait for another rank, seconds")
    add("--sync-bn", action="store_true", help="BatchNorm over the batches of all ranks (GPUs only)")
    add("--bucket-cap-mb", type=positive(float, 2**31), default=25, help="size of DDP's gradient buckets, MiB")
    add("--comm-hook", choices=["none", "fp16", "bf16"], default="none", help="send gradients in 16 bits")
    add("--bf16", action="store_true", help="forward pass in bfloat16, by autocast")
    add("--channels-last", action=argparse.BooleanOptionalAction,
        help="keep a pixel's channels side by side in memory; default: on a CPU, where it is faster")
    add("--compile", action="store_true", help="torch.compile the model: slow to start, faster later")
    add("--shortcuts", action=argparse.BooleanOptionalAction, default=os.environ.get("COURSE_SHORTCUTS") == "1",
        help="take those of shortcuts.py, for ranks on a CPU; default: where COURSE_SHORTCUTS is 1, as lessons set it")
    add("--verbose", action="store_true", help="let each rank say that it has come")
    add("--checkpoint", metavar="PATH", help="keep a file to go on from; SIGTERM and SIGUSR1 then write it and stop"
        " with status 75, which torchrun takes for a failure: with --max-restarts it starts the run again")
    add("--checkpoint-every", type=positive(int), metavar="N",
        help="write it each N steps; default: after each epoch, which is done in any case")
    add("--resume", choices=["auto", "never", "must"], default="auto",
        help="go on from --checkpoint: where it exists, never, or fail without it")
    add("--log-file", help="append the run log, JSON lines, to this file")
    add("--save-model", help="write the trained weights to this file")
    # torch.distributed.launch passes this; the environment variable LOCAL_RANK says the same.
    add("--local-rank", "--local_rank", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def resolve(args: argparse.Namespace):
    """Replace each `auto` and each default that depends on the machine, and return the launch.Placement of this rank.
    ValueError or OSError for bad input.

    Runs before any process group exists: a mistake must not leave ranks that wait for each other.
    """
    import torch

    import data
    import launch

    placement = launch.find_placement(args.device, args.backend, ddp=args.strategy == "ddp")
    if args.strategy == "auto":
        args.strategy = "single" if placement.launcher == "python" else "ddp"
    if args.strategy != "ddp" and placement.world_size > 1:
        raise ValueError(f"--strategy {args.strategy} is for one process, and {placement.launcher} started "
                         f"{placement.world_size}, each of which would train a model of its own: use --strategy ddp")
    if args.sync_bn and (args.strategy, placement.device.type) != ("ddp", "cuda"):
        raise ValueError("--sync-bn needs DDP on GPUs (SyncBatchNorm has no CPU form): leave it out")
    if args.sync_bn and args.model == "lenet":
        raise ValueError("--sync-bn changes nothing: lenet has no BatchNorm. Leave it out, or use --model resnet")
    if args.warmup_epochs and args.lr_scaling == "none":
        raise ValueError("--warmup-epochs rises from --lr to the scaled rate: choose --lr-scaling linear or sqrt")
    if args.comm_hook != "none" and args.strategy != "ddp":
        raise ValueError(f"--comm-hook is DDP's, and the strategy is {args.strategy}: leave it out")
    if args.checkpoint is None and (args.checkpoint_every or args.resume == "must"):
        raise ValueError("--checkpoint-every and --resume need --checkpoint PATH")
    if not args.dist_url.startswith(("env://", "tcp://", "file:///")):
        raise ValueError(f"--dist-url {args.dist_url!r}: use env://, tcp://HOST:PORT or file:///PATH")
    if args.dist_url.startswith("tcp://") and "TORCHELASTIC_RUN_ID" in os.environ and torch.__version__ < (2, 14):
        # https://github.com/pytorch/pytorch/pull/192113: before it, all ranks wait for a store that none opens.
        raise ValueError("--dist-url tcp:// does not work under torchrun before PyTorch 2.14: leave it out")
    if args.dist_url != "env://" and placement.launcher == "python":
        raise ValueError("--dist-url is where several processes meet, and this one was started alone: use torchrun")
    times = args.global_batch_size / args.batch_size if args.global_batch_size else placement.world_size
    args.lr_scale = {"none": 1, "linear": times, "sqrt": math.sqrt(times)}[args.lr_scaling]
    if args.global_batch_size:
        if args.global_batch_size % placement.world_size:
            raise ValueError(f"--global-batch-size {args.global_batch_size} does not divide by "
                             f"{placement.world_size} ranks")
        args.batch_size = args.global_batch_size // placement.world_size

    dataset = "cifar10" if args.dataset == "auto" else args.dataset
    sizes = data.DATASETS[dataset].sizes
    args.samples, args.test_samples = args.samples or sizes[0], args.test_samples or sizes[1]
    if args.samples > sizes[0] or args.test_samples > sizes[1]:
        raise ValueError(f"--samples {args.samples} --test-samples {args.test_samples}: {args.dataset} has "
                         f"{sizes[0]} and {sizes[1]} images")
    if args.samples < placement.world_size:
        raise ValueError(f"--samples {args.samples} is less than the {placement.world_size} ranks: each needs an image")

    if not Path(args.data_path, f"{dataset}.pt").is_file():
        files.check_writable("--data-path", args.data_path)
    taken = {Path(args.data_path, f"{name}{ending}").resolve(): "--data-path"
             for name in data.DATASETS for ending in (".pt", ".lock")}
    outputs = {"--save-model": args.save_model, "--log-file": args.log_file, "--checkpoint": args.checkpoint}
    for option, file in ((option, file) for option, file in outputs.items() if file is not None):
        for ending in ("", ".lock", ".part", ".previous", ".damaged") if option == "--checkpoint" else ("",):
            path = f"{file}{ending}"
            files.check_output(option, path)
            if (other := taken.setdefault(Path(path).resolve(), option)) != option:
                raise ValueError(f"{option} {path}: {other} writes to the same file; name another")
    if args.channels_last is None:
        args.channels_last = placement.device.type == "cpu"
    args.device, args.backend = placement.device.type, placement.backend if args.strategy == "ddp" else None
    return placement
