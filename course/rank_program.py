"""How a program of the lessons begins and ends: its command line, its ranks, and the file of its results.

Nothing here imports torch before ranks meet: a program that only says hello starts in a tenth of a second.
"""

import argparse
import json
import math
import signal
import sys
from contextlib import contextmanager

from trainer import files, options


def parser(description, out=None, dataset=False, timeout=None):
    """A parser whose errors are one line, with the options that most programs share.

    `out`: the help of --out, a file that is then required. `dataset`: --dataset and --data-path. `timeout`: the
    default of --timeout, in seconds.
    """
    made = options.Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        made.add_argument("--out", type=options.nonempty_path, required=True, help=out)
    if dataset:
        from trainer import data

        made.add_argument("--dataset", choices=["auto", *data.DATASETS], default="auto",
                          help="auto: cifar10, or else synthetic")
        made.add_argument("--data-path", type=options.nonempty_path, default=data.FOLDER,
                          help="folder of the data files")
    if timeout:
        made.add_argument("--timeout", type=options.positive(float, 2**31), default=timeout,
                          help="longest wait for another rank, seconds")
    return made


def moment(form, first, otherwise):
    """A type of argparse: (1, 20.0) of the text 1@20. `form`: how it is called, such as NODE@SECONDS. Neither may be
    negative, nor the second number less than `first`: `otherwise` says so."""
    def read(text):
        who, _, when = text.partition("@")
        try:
            who, when = int(who), float(when)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}, such as 1@20") from None
        if who < 0 or not first <= when < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r}: {otherwise}")
        return who, when
    return read


@contextmanager
def stoppable(parser, sigterm=lambda *_: sys.exit(128 + signal.SIGTERM)):
    """parser.one_line(); and Ctrl-C, SIGTERM or a closed terminal (SIGHUP) end the program without a traceback, after
    the block has cleaned up.

    `sigterm`: the handler of the two signals. With signal.default_int_handler the status is that of Ctrl-C, 130, and
    not 143.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a closed terminal is to be ignored
            signal.signal(number, sigterm)
    try:
        with parser.one_line():
            yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


@contextmanager
def ranks(placement, timeout):
    """The process group of several ranks, for as long as the block runs; at its end each waits for all the others.

    Ranks that do not meet end the program with one line, status 2.
    """
    import torch.distributed as dist

    from trainer import launch

    if placement.world_size > 1:
        with options.Parser().one_line():
            launch.init_distributed_mode(placement, timeout=timeout)
    try:
        yield
        if dist.is_initialized():
            dist.barrier()
    finally:
        launch.end_distributed_mode()


def meet(device):
    """Wait until every rank has done all it began. A process alone only waits for its device."""
    import torch.distributed as dist

    synchronise(device)
    if dist.is_initialized():
        dist.barrier()


def synchronise(device):
    """Wait for a GPU: work on it has only been queued when a call returns."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def start(main, *arguments):
    """Call `main` as a rank: if it fails torchrun finds its traceback, if it ends well no thread of gloo aborts it."""
    import torch
    from torch.distributed.elastic.multiprocessing.errors import record

    from course import shortcuts

    record(main)(*arguments)
    if not torch.cuda.is_initialized():  # with GPUs it is NCCL, which needs no such thing
        shortcuts.exit_now()


def dataset(args):
    """data.get_dataset for --dataset and --data-path; its ConnectionError says what to do."""
    from trainer import data

    try:
        return data.get_dataset(args.dataset, args.data_path, verify=False)
    except ConnectionError as error:
        raise ConnectionError(f"{error}: use --dataset synthetic") from None


def measured_on(placement):
    """The machine of a measurement: {world_size, device, device_name, cores, threads, torch, host}."""
    import platform

    import torch

    from trainer import launch

    return {"world_size": placement.world_size, "device": placement.device.type,
            "device_name": launch.device_name(placement.device), "cores": launch.cores(),
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "host": f"{platform.system()} {platform.machine()}"}


def write_json(path, results):
    """Write `results` to `path`, whole or not at all."""
    with files.whole(path) as part:
        part.write_text(json.dumps(results, indent=1), encoding="utf-8")
