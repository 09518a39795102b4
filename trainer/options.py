"""The options of main.py, as one typed dataclass, and the command line that is made of it.

It imports no torch at its top: small programs with options start in a tenth of a second.
"""

import argparse
import ast
import importlib.util
import inspect
import itertools
import logging
import math
import os
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from trainer import files
from trainer.datasets import DATASETS

if TYPE_CHECKING:
    from trainer.launch import Placement

log = logging.getLogger("course")
Number = TypeVar("Number", int, float)

# ---------------------------------------------------------------------------------------- types of single options


def positive(kind: type[Number], limit: float | None = None) -> Callable[[str], Number]:
    """A type of argparse: a number above 0, and below `limit`; for whole numbers that is 2^31, if left out."""
    below = limit or (2**31 if kind is int else math.inf)

    def number(text: str) -> Number:
        if not 0 < kind(text) < below:
            limited = f" below {below:,}" if 0 < kind(text) < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text} is not a positive number{limited}")
        return kind(text)
    return number


def not_negative(text: str) -> float:
    """A type of argparse: a finite number from 0."""
    if not 0 <= float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0")
    return float(text)


def from_zero(text: str) -> int:
    """A type of argparse: a seed, say, or a rank. (2^32 is NumPy's limit for seeds.)"""
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 2^32 - 1")
    return int(text)


def nonempty_path(text: str) -> Path:
    """A type of argparse: a Path. Path("") would be the folder that the program runs in."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no path")
    return Path(text)


def address(text: str) -> str:
    """A type of argparse: FILE.py:NAME, of a file that is there."""
    if not re.fullmatch(r".+\.py:\w+", text) or not Path(text.rpartition(":")[0]).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE.py:NAME of a file that is there")
    return text


def dataset(text: str) -> str:
    """A type of argparse: auto, one of DATASETS, a folder of images, or FILE.py:NAME."""
    if text in ("auto", *DATASETS) or all(Path(text, split).is_dir() for split in ("train", "val")):
        return text
    if ".py:" in text:
        return address(text)
    raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (auto, {', '.join(DATASETS)}, a folder with "
                                     "train/CLASS/ and val/CLASS/, or FILE.py:NAME)")


Count = Annotated[int, positive(int)]
Amount = Annotated[float, positive(float)]
Seconds = Annotated[float, positive(float, 2**31)]
Mebibytes = Annotated[float, positive(float, 2**31)]
FromZero = Annotated[int, from_zero]
Address = Annotated[str, address]
Dataset = Annotated[str, dataset]


def kept(default: Any) -> Any:
    """An option that a run and its continuation must share, or the second would not be the first."""
    return field(default=default, metadata={"kept": True})

# ------------------------------------------------------------------------------------------------------ main.py's


@dataclass
class Options:
    """What main.py does. A text under a field is its help on the command line."""

    dataset: Dataset = "auto"
    """cifar10, mnist, synthetic; auto: cifar10, or synthetic where it is not available; a folder of images,
    train/CLASS/*.jpg and val/CLASS/*.jpg; or FILE.py:NAME, a data set of your own: see trainer/data.py"""
    image_size: Count | None = kept(None)
    """images of a folder are cut to so many pixels per side; default: 224"""
    workers: FromZero = 0
    """processes of each rank that fetch its batches; 0: the rank does it itself"""
    data_path: str = files.DATA
    """folder of the data files; default: the environment variable COURSE_DATA, or ./data"""
    samples: Count | None = kept(None)
    """train on the first so many images; default: all"""
    test_samples: Count | None = kept(None)
    """evaluate on the first so many images; default: all"""
    model: Literal["lenet", "resnet"] = kept("lenet")
    """resnet is small and has BatchNorm"""
    epochs: Count = 10
    """passes over the training images"""
    batch_size: Count = 64
    """batch size of each process"""
    accumulate: Count = 1
    """accumulate the gradients of so many batches per update"""
    global_batch_size: Count | None = None
    """images per update over all processes, whatever their number: in place of --batch-size"""
    optimizer: Literal["adam", "adamw", "sgd"] = kept("adam")
    """sgd has momentum 0.9"""
    weight_decay: Annotated[float, not_negative] | None = kept(None)
    """adamw decouples it from the gradient; default: 0.01 for adamw, else 0"""
    clip: Amount | None = kept(None)
    """clip the norm of an update's gradient"""
    lr: Amount = kept(0.001)
    """learning rate"""
    lr_scaling: Literal["none", "linear", "sqrt"] = kept("none")
    """--lr is for --batch-size images per update. All processes together take k times as many: multiply it by k, or by
    its square root"""
    schedule: Literal["constant", "cosine"] = kept("constant")
    """cosine: after the warm-up the rate falls to 0 until the last epoch ends"""
    warmup_epochs: Amount | None = kept(None)
    """rise to the rate in so many epochs: from --lr to the scaled one, or with --lr-scaling none from nearly 0"""
    seed: FromZero = kept(0)
    """seed for weight initialisation and shuffling"""
    shuffle: bool = kept(True)
    """keep the order of the images"""
    strategy: Literal["auto", "single", "dp", "ddp"] = "auto"
    """auto: ddp where torchrun, srun or mpirun started this process, else single"""
    device: Annotated[str, Literal["auto", "cpu", "cuda", "mps"]] = "auto"
    """auto: a GPU where there is one"""
    backend: Annotated[str, Literal["auto", "nccl", "gloo"]] | None = "auto"
    """auto: nccl where each rank has a GPU of its own, else gloo"""
    dist_url: str = "env://"
    """where the ranks meet; env:// reads MASTER_ADDR and MASTER_PORT"""
    timeout: Seconds = 600
    """longest wait for another rank, or for a batch of --workers, in seconds"""
    sync_bn: bool = kept(False)
    """BatchNorm over the batches of all ranks (GPUs only)"""
    bucket_cap_mb: Mebibytes = 25
    """size of DDP's gradient buckets in MiB"""
    comm_hook: Literal["none", "fp16", "bf16"] = kept("none")
    """compress gradients to 16 bits for the all-reduce"""
    wrapper: Address | None = kept(None)
    """FILE.py:CLASS, a module of your own in place of DistributedDataParallel, made of the raw model; if it has
    finish(), that is called before each update; with --accumulate it needs no_sync(), in which backward sends
    nothing"""
    bf16: bool = kept(False)
    """bf16 mixed precision: the forward pass under autocast"""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """of matrix products in float32; high: TF32 on the GPUs that have it"""
    channels_last: bool | None = None
    """keep a pixel's channels side by side in memory; default: on a CPU, where it is faster"""
    compile: bool = False
    """torch.compile the model: slow to start, faster later"""
    verbose: bool = False
    """let each rank say that it has started"""
    checkpoint: str | None = None
    """a file to resume from; SIGTERM and SIGUSR1 then write it and stop with status 75, which torchrun takes for a
    failure: with --max-restarts it starts the run again"""
    checkpoint_every: Count | None = None
    """write it every so many updates; default: after each epoch, which is done in any case"""
    resume: Literal["auto", "never", "must"] = "auto"
    """resume from --checkpoint: where it exists, never, or fail without it"""
    log_every: Count | None = None
    """log rank 0's running loss every so many updates; on a terminal with tqdm, as a bar"""
    tracker: str | None = None
    """a folder: write each epoch for TensorBoard, too"""
    log_file: str | None = None
    """append the run log, JSON lines, to this file"""
    save_model: str | None = None
    """write the trained weights to this file"""

    lr_scale: float = field(default=1.0, metadata={"kept": True, "hidden": True})  # set by resolve()

    def must_match(self) -> dict[str, Any]:
        """{name: value} of the options that a continuation must share."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.metadata.get("kept")}


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line, and @FILE for the options in a file."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Of a file of options, @FILE: words as in a shell, # begins a comment."""
        return shlex.split(arg_line, comments=True)

    def error(self, message: str) -> NoReturn:
        """One line, and no usage: each rank says it, for the first to end may end the others."""
        print(f"{self.prog}: error: {' '.join(message.split())}", file=sys.stderr)  # one line, whatever a path holds
        sys.exit(2)

    @contextmanager
    def one_line(self) -> Iterator[None]:
        """What the block finds wrong with its input (ValueError, OSError) ends the program with one line, status 2."""
        try:
            yield
        except OSError as error:
            self.error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except ValueError as error:
            self.error(str(error))

    def parse_options(self) -> Options:
        """The Options of the program's own command line."""
        return self.parse_args(namespace=Options())


def get_parser(description: str | None = None) -> Parser:
    """A parser with an option for each field of Options."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                    fromfile_prefix_chars="@", epilog="@FILE stands for the options in a file.")
    hints, helps = get_type_hints(Options, include_extras=True), _texts_below_fields(Options)
    for one in fields(Options):
        if one.metadata.get("hidden"):
            continue
        name, kind = f"--{one.name.replace('_', '-')}", hints[one.name]
        if optional := get_origin(kind) in (types.UnionType, Union):
            kind = next(part for part in get_args(kind) if part is not types.NoneType)
        settings: dict[str, Any] = {"help": helps[one.name].replace("%", "%%"), "default": one.default}
        if kind is bool and one.default is True:
            name, settings = f"--no-{name[2:]}", settings | {"action": "store_false", "dest": one.name}
        elif kind is bool:
            settings["action"] = argparse.BooleanOptionalAction if optional else "store_true"
        elif get_origin(parse := kind.__metadata__[0] if get_origin(kind) is Annotated else kind) is Literal:
            settings["choices"] = get_args(parse)
        else:
            settings |= {"type": parse, "metavar": one.name.split("_")[-1].upper()}
        if one.default is not None and kind is not bool and "default" not in helps[one.name]:
            settings["help"] += f" ({one.default})"
        parser.add_argument(name, **settings)
    # torch.distributed.launch passes this; the environment variable LOCAL_RANK says the same.
    parser.add_argument("--local-rank", "--local_rank", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _texts_below_fields(kind: type) -> dict[str, str]:
    """{field: the string that stands below it} of a dataclass; Python itself drops these."""
    [made] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    return {here.target.id: " ".join(below.value.value.split()) for here, below in itertools.pairwise(made.body)
            if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name) and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)}


@contextmanager
def exit_status() -> Iterator[None]:
    """End the process with the status that its launcher expects: 2, after one line, for a user error; 75 after a
    signal; 130 after Ctrl-C. Every other error goes on, with its whole text and its traceback."""
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


def resolve(args: Options) -> "Placement":
    """Replace each `auto` and each default that depends on the machine, and return the Placement of this rank.
    ValueError or OSError for bad input.

    Runs before any process group exists: a mistake must not leave ranks that wait for each other.
    """
    import torch

    from trainer import launch

    placement = launch.find_placement(args.device, args.backend or "auto", ddp=args.strategy == "ddp")
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
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
    if args.dist_url.startswith("tcp://") and "TORCHELASTIC_RUN_ID" in os.environ and old:
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

    name = "cifar10" if args.dataset == "auto" else args.dataset
    data_file = Path(args.data_path, f"{name}.pt")
    if args.image_size and (name in DATASETS or not Path(name).is_dir()):
        raise ValueError(f"--image-size is for a folder of images, and --dataset is {args.dataset}: leave it out")
    args.image_size = args.image_size or 224
    if name in DATASETS:  # of another set the sizes are known when it is loaded
        check_sizes(args, DATASETS[name].sizes, placement.world_size)
        if not data_file.is_file():
            files.check_writable("--data-path", args.data_path)
    if args.tracker is not None:
        files.check_writable("--tracker", args.tracker)
    beside = [f"{args.checkpoint}{ending}" for ending in (".lock", ".previous", ".damaged") if args.checkpoint]
    check_outputs({"--save-model": args.save_model, "--log-file": args.log_file, "--checkpoint": args.checkpoint},
                  {data_file.resolve(): "--data-path", **{Path(file).resolve(): "--checkpoint" for file in beside}})
    if args.channels_last is None:
        args.channels_last = placement.device.type == "cpu"
    args.device, args.backend = placement.device.type, placement.backend if args.strategy == "ddp" else None
    return placement


def check_sizes(args: Options, sizes: tuple[int, int], world_size: int) -> None:
    """Set --samples and --test-samples to all that there are, where left out. ValueError where there are fewer."""
    args.samples, args.test_samples = args.samples or sizes[0], args.test_samples or sizes[1]
    if args.samples > sizes[0] or args.test_samples > sizes[1]:
        raise ValueError(f"--samples {args.samples} --test-samples {args.test_samples}: {args.dataset} has "
                         f"{sizes[0]} and {sizes[1]} images")
    if args.samples < world_size:
        raise ValueError(f"--samples {args.samples} is less than the {world_size} ranks: each needs an image")


def check_outputs(outputs: dict[str, str | None], taken: dict[Path, str]) -> None:
    """ValueError for an output that cannot be written, or that is the file of another option. `outputs`: {option: path,
    or None where it is not given}; `taken`: {resolved path: option}."""
    taken = dict(taken)
    for option, path in outputs.items():
        if path is not None:
            files.check_output(option, path)
            if (other := taken.setdefault(Path(path).resolve(), option)) != option:
                raise ValueError(f"{option} {path}: {other} writes to the same file; name another")
