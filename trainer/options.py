"""The command line: one-line errors, paths that can be written, and main.py's own options.

It imports no torch of itself: a bad word is refused at once, and small programs start in a tenth of a second.
"""

import argparse
import importlib.util
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from trainer import files

log = logging.getLogger("course")


class Parser(argparse.ArgumentParser):
    def parse_known_args(self, args=None, namespace=None):
        """As argparse's; but @FILE must be a regular file: a pipe would be waited for."""
        for word in sys.argv[1:] if args is None else args:
            if self.fromfile_prefix_chars and word.startswith("@"):
                files.check_input("@FILE", word[1:])
        return super().parse_known_args(args, namespace)

    def convert_arg_line_to_args(self, arg_line):
        """Of a file of options, @FILE: words as in a shell, # begins a comment."""
        return shlex.split(arg_line, comments=True)

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
    from trainer import launch

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


def not_negative(text: str) -> float:
    """A type of argparse: a finite number from 0."""
    if not 0 <= float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0")
    return float(text)


def address(text: str) -> str:
    """A type of argparse: FILE.py:NAME, of a file that is there."""
    if not re.fullmatch(r".+\.py:\w+", text) or not Path(text.rpartition(":")[0]).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE.py:NAME of a file that is there")
    return text


def from_zero(text: str) -> int:
    """A type of argparse: a seed, say, or a rank. (2^32 is NumPy's limit for seeds.)"""
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 2^32 - 1")
    return int(text)


def get_parser(description: str | None = None) -> Parser:
    from trainer import data, models

    def dataset(text):
        if text in ("auto", *data.DATASETS) or all(Path(text, split).is_dir() for split in ("train", "val")):
            return text
        if ".py:" in text:
            return address(text)
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (auto, {', '.join(data.DATASETS)}, a folder with "
                                         "train/CLASS/ and val/CLASS/, or FILE.py:NAME)")

    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                    fromfile_prefix_chars="@", epilog="@FILE stands for the options in a file.")
    add = parser.add_argument
    add("--dataset", type=dataset, default="auto", metavar="NAME",
        help=f"{', '.join(data.DATASETS)}; auto: cifar10, or synthetic where it cannot be had; a folder of images, "
        "train/CLASS/*.jpg and val/CLASS/*.jpg; or FILE.py:NAME, a set of your own: see data.py")
    add("--image-size", type=positive(int), help="pixels a side of the images of a folder; default: 224")
    add("--workers", type=from_zero, default=0, help="processes of each rank that fetch its batches; 0: the rank does")
    add("--data-path", default=data.FOLDER, help="folder of the data files; default: COURSE_DATA, or ./data")
    add("--samples", type=positive(int), help="train on the first so many images; default: all")
    add("--test-samples", type=positive(int), help="evaluate on the first so many images; default: all")
    add("--model", choices=models.MODELS, default="lenet", help="resnet is small and has BatchNorm")
    add("--epochs", type=positive(int), default=10, help="passes over the training images")
    add("--batch-size", type=positive(int), default=64, help="images a backward, for each process")
    add("--accumulate", type=positive(int), default=1, metavar="N",
        help="add up the gradients of N batches for an update")
    add("--global-batch-size", type=positive(int), help="images an update, over all processes, whatever their "
        "number: in place of --batch-size")
    add("--optimizer", choices=["adam", "adamw", "sgd"], default="adam", help="sgd has momentum 0.9")
    add("--weight-decay", type=not_negative, help="adamw keeps it apart from the gradient; default: 0.01 for adamw, "
        "else 0")
    add("--clip", type=positive(float), metavar="NORM", help="shorten the gradient of an update to this norm")
    add("--lr", type=positive(float), default=0.001, help="learning rate")
    add("--lr-scaling", choices=["none", "linear", "sqrt"], default="none",
        help="--lr is for --batch-size images an update. All processes together take k times as many: multiply it by k,"
        " or by its square root")
    add("--schedule", choices=["constant", "cosine"], default="constant",
        help="cosine: after the warm-up the rate falls to 0 until the last epoch ends")
    add("--warmup-epochs", type=positive(float),
        help="rise to the rate in so many epochs: from --lr to the scaled one, or with --lr-scaling none from nearly 0")
    add("--seed", type=from_zero, default=0, help="of the weights and of the shuffling")
    add("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the images")
    add("--strategy", choices=["auto", "single", "dp", "ddp"], default="auto",
        help="auto: ddp where torchrun, srun or mpirun started this process, else single")
    add("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto", help="auto: a GPU where there is one")
    add("--backend", choices=["auto", "nccl", "gloo"], default="auto",
        help="auto: nccl where each rank has a GPU of its own, else gloo")
    add("--dist-url", default="env://", help="where the ranks meet; env:// reads MASTER_ADDR and MASTER_PORT")
    add("--timeout", type=positive(float, 2**31), default=600,
        help="longest wait for another rank, or for a batch of --workers, seconds")
    add("--sync-bn", action="store_true", help="BatchNorm over the batches of all ranks (GPUs only)")
    add("--bucket-cap-mb", type=positive(float, 2**31), default=25, help="size of DDP's gradient buckets, MiB")
    add("--comm-hook", choices=["none", "fp16", "bf16"], default="none", help="send gradients in 16 bits")
    add("--wrapper", type=address, metavar="FILE.py:CLASS", help="a module of your own in place of "
        "DistributedDataParallel, made of the raw model; if it has finish(), that is called before each update; with "
        "--accumulate it needs no_sync(), in which backward sends nothing")
    add("--bf16", action="store_true", help="forward pass in bfloat16, by autocast")
    add("--matmul-precision", choices=["highest", "high", "medium"], default="highest",
        help="of matrix products in float32; high: TF32 on the GPUs that have it")
    add("--channels-last", action=argparse.BooleanOptionalAction,
        help="keep a pixel's channels side by side in memory; default: on a CPU, where it is faster")
    add("--compile", action="store_true", help="torch.compile the model: slow to start, faster later")
    add("--shortcuts", action=argparse.BooleanOptionalAction, default=os.environ.get("COURSE_SHORTCUTS") == "1",
        help="take those of shortcuts.py, for ranks on a CPU; default: where COURSE_SHORTCUTS is 1, as lessons set it")
    add("--verbose", action="store_true", help="let each rank say that it has come")
    add("--checkpoint", metavar="PATH", help="keep a file to go on from; SIGTERM and SIGUSR1 then write it and stop"
        " with status 75, which torchrun takes for a failure: with --max-restarts it starts the run again")
    add("--checkpoint-every", type=positive(int), metavar="N",
        help="write it each N updates; default: after each epoch, which is done in any case")
    add("--resume", choices=["auto", "never", "must"], default="auto",
        help="go on from --checkpoint: where it exists, never, or fail without it")
    add("--log-every", type=positive(int), metavar="N",
        help="say each N updates how rank 0 stands; on a terminal with tqdm, by a bar")
    add("--tracker", metavar="DIR", help="write each epoch for TensorBoard, too")
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

    from trainer import data, launch

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
    if args.weight_decay is None:
        args.weight_decay = 0.01 if args.optimizer == "adamw" else 0
    if args.warmup_epochs and args.warmup_epochs >= args.epochs and args.schedule == "cosine":
        raise ValueError(f"--warmup-epochs {args.warmup_epochs:g} leaves nothing of --epochs {args.epochs} to "
                         "--schedule cosine: take less")
    if args.wrapper and (args.strategy != "ddp" or args.comm_hook != "none" or args.sync_bn):
        raise ValueError("--wrapper stands in place of DDP: start several ranks, without --comm-hook and --sync-bn")
    if args.tracker is not None and not importlib.util.find_spec("tensorboard"):
        raise ValueError("--tracker needs TensorBoard: pip install tensorboard")
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
    parts = placement.world_size * args.accumulate
    times = args.global_batch_size / args.batch_size if args.global_batch_size else parts
    args.lr_scale = {"none": 1, "linear": times, "sqrt": math.sqrt(times)}[args.lr_scaling]
    if args.global_batch_size:
        if args.global_batch_size % parts:
            raise ValueError(f"--global-batch-size {args.global_batch_size} does not divide by {placement.world_size} "
                             f"ranks{f' and --accumulate {args.accumulate}' if args.accumulate > 1 else ''}")
        args.batch_size = args.global_batch_size // parts

    dataset = "cifar10" if args.dataset == "auto" else args.dataset
    if args.image_size and (dataset in data.DATASETS or not Path(dataset).is_dir()):
        raise ValueError(f"--image-size is for a folder of images, and --dataset is {args.dataset}: leave it out")
    args.image_size = args.image_size or 224
    if dataset in data.DATASETS:  # of another set the sizes are known when it is loaded
        data.check_sizes(args, data.DATASETS[dataset].sizes, placement.world_size)
    if dataset in data.DATASETS and not Path(args.data_path, f"{dataset}.pt").is_file():
        files.check_writable("--data-path", args.data_path)
    taken = {Path(args.data_path, f"{name}{ending}").resolve(): "--data-path"
             for name in data.DATASETS for ending in (".pt", ".lock")}
    if args.tracker is not None:
        files.check_writable("--tracker", args.tracker)
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
