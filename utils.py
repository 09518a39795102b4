"""What runs inside a rank: models, data, process group, metric reduction, run log.

Every rank imports this, so it imports no more than it must: no torchvision, say (scripts/prepare_data.py needs it).
"""

import fcntl
import importlib
import json
import logging
import os
import resource
import socket
import sys
import threading
import time
import types
import uuid
import zlib
from collections import namedtuple
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from placement import Placement, cores, find_placement, keep_memory, threads_per_rank  # noqa: F401 - utils.cores()

log = logging.getLogger("course")
RESUMABLE = 75  # exit status of a run that a signal stopped, and that goes on from its checkpoint

# --------------------------------------------------------------------------------------------------------------- models

class ConvNet(nn.Module):
    """LeNet as most first tutorials write it: images [N, C, S, S] to logits [N, classes].

    Logits, not probabilities: CrossEntropyLoss applies log-softmax itself (notebook 01 measures what a second
    softmax costs).
    """

    def __init__(self, channels=3, classes=10, image_size=32):
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2  # a 5x5 convolution without padding takes 4, a pool halves
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images):
        x = torch.relu(nn.functional.max_pool2d(self.conv1(images), 2))  # pool, then ReLU: the same values as
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))  # ReLU, then pool, for a quarter of the ReLUs
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm that halve the side, and a 1x1 shortcut (He et al. 2015, 1512.03385)."""

    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels_out),
            nn.ReLU(), nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out))
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=2, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network small enough for a CPU: images [N, C, S, S], any S, to logits [N, classes]."""

    def __init__(self, channels=3, classes=10, image_size=None):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(ResidualBlock(16, 16), ResidualBlock(16, 32), ResidualBlock(32, 64))
        self.fc = nn.Linear(64, classes)

    def forward(self, images):
        return self.fc(self.blocks(self.stem(images)).mean(dim=(2, 3)))


MODELS = {"lenet": ConvNet, "resnet": SmallResNet}
# ----------------------------------------------------------------------------------------------------------------- data

# shape: channels, height, width. sizes: training and test images. mean, std: by channel, of pixels scaled to 0..1.
DatasetInfo = namedtuple("DatasetInfo", "classes shape sizes mean std")
_CIFAR10 = DatasetInfo(("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
                       (3, 32, 32), (50_000, 10_000), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
DATASETS = {
    "cifar10": _CIFAR10,
    "mnist": DatasetInfo(tuple("0123456789"), (1, 28, 28), (60_000, 10_000), (0.1307,), (0.3081,)),
    "synthetic": _CIFAR10._replace(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)),
}


class ImageSet(torch.utils.data.Dataset):
    """A labelled image set held as one uint8 tensor [N, C, H, W] and int64 labels [N].

    A DataLoader asks `__getitems__` for a whole batch, which is gathered and normalised at once. It is stacked then:
    give the loader `collate_fn=ImageSet.collate`.
    """

    def __init__(self, name, images, labels):
        self.name, self.images, self.labels = name, images, labels
        mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1)
                     for values in (DATASETS[name].mean, DATASETS[name].std))
        self.scale, self.shift = 1 / (255 * std), -mean / std

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        """float32 [n, C, H, W], about mean 0 and deviation 1 in each channel, and int64 [n], for n indices."""
        indices = torch.as_tensor(indices, device=self.images.device)
        return self.images.index_select(0, indices).float().mul_(self.scale).add_(self.shift), self.labels[indices]

    def __getitem__(self, index):
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    @staticmethod
    def collate(batch):
        return batch

    def first(self, count, device="cpu"):
        """The first `count` images, on `device`: a GPU that holds them needs no copying (CIFAR-10 takes 154 MB)."""
        return ImageSet(self.name, self.images[:count].to(device), self.labels[:count].to(device))


def get_dataset(name, path="./data", verify=True):
    """The training and test ImageSet of "cifar10", "mnist" or "synthetic", mapped from `path`/name.pt.

    "auto" is cifar10 where it can be had, else synthetic: look at `.name`. A missing or damaged file is built by one
    process while all others wait, those of other jobs too. `verify=False` leaves the SHA-256 to another rank of this
    node (it takes 0.1 s). Raises ConnectionError where no source answers.
    """
    from scripts import prepare_data  # late: it needs DATASETS

    if name == "auto":
        try:
            return get_dataset("cifar10", path, verify)
        except ConnectionError as error:
            log.warning("%s. Going on with SYNTHETIC data.", error)
            return get_dataset("synthetic", path, verify)
    file = Path(path) / f"{name}.pt"
    if verify or not file.is_file():
        prepare_data.prepare(name, file)
    arrays = torch.load(file, mmap=True, weights_only=True)  # mapped: the ranks of a node share its pages
    return [ImageSet(name, arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in ("train", "test")]

# -------------------------------------------------------------------------------------------------------- process group

def init_distributed_mode(here, dist_url="env://", timeout=600):
    """Join the process group. Every later wait for another rank ends after `timeout` seconds with an error.

    A process that nobody launched makes a group of one. Raises ConnectionError, one line, if the others do not come.
    """
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    meet, place = {"init_method": dist_url}, dist_url
    if dist_url == "env://" and here.launcher == "python":
        meet = {"store": dist.HashStore()}
    elif dist_url == "env://":
        place = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun listens there already
            # Its store outlives a restart (torch 2.14), and with it the addresses of ranks that are dead.
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                  timeout=timedelta(seconds=timeout))
            meet = {"store": dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)}
        elif here.rank:
            reach_master(here, place, timeout)
    who = f"rank {here.rank} of {here.world_size}"
    watchdog = threading.Timer(timeout + 30, give_up, [f"{who}: what answers at {place} is not rank 0 of this job: "
                                                       "choose another MASTER_PORT"])
    watchdog.daemon = True
    watchdog.start()
    try:
        dist.init_process_group(here.backend, rank=here.rank, world_size=here.world_size,
                                timeout=timedelta(seconds=timeout), **meet)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise ConnectionError(f"{who} cannot listen at {place}, another program does: choose another "
                                  "MASTER_PORT") from None
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConnectionError(f"{who} waited for the others, {timeout} s at most, at {place}: {reason}. Were all "
                              "started? Is this address the same for all, and that of rank 0?") from None
    finally:
        watchdog.cancel()


def reach_master(here, place, timeout):
    """Wait until rank 0 listens: torch's own attempt ends in pages of C++ frames that hide the reason."""
    address, port = place.rsplit(":", 1)
    end = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((address, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            if time.monotonic() > end or isinstance(error, ValueError):
                raise ConnectionError(f"rank {here.rank} of {here.world_size} waited for rank 0 at {place}, {timeout} "
                                      f"s at most: {error}. Is rank 0 running there? MASTER_ADDR and MASTER_PORT must "
                                      "be rank 0's") from None
            time.sleep(0.2)


def give_up(message):
    """End this process at once, from a thread: the main one sits in a wait that has no bound of its own."""
    log.error(message)
    os._exit(2)


def end_distributed_mode():
    """Leave the process group. Not NCCL's after an error: it would wait for the other ranks, and hide the error."""
    if dist.is_initialized() and not (dist.get_backend() == "nccl" and sys.exc_info()[0]):
        dist.destroy_process_group()


def exit_now():
    """End with status 0 and without Python's teardown, in which a gloo thread that still lets go of a tensor aborts
    the process ("terminate called without an active exception": torch 2.15, 1 run of 8 ranks in 15)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def defer_compiler():
    """Put a stand-in for torch._dynamo, which optimizers and DDP import (1.1 s a rank) only to be left alone by it. Any
    other question brings in the real one. It saves start-up time, no more; not for programs that use torch.compile."""
    def real(name):
        if sys.modules.get("torch._dynamo") is stand_in:
            del sys.modules["torch._dynamo"], torch._dynamo
        return getattr(importlib.import_module("torch._dynamo"), name)

    if "torch._dynamo" not in sys.modules:
        stand_in = sys.modules["torch._dynamo"] = torch._dynamo = types.ModuleType("torch._dynamo")
        stand_in.utils = stand_in
        stand_in.get_optimize_ddp_mode = lambda: "no_optimization"
        stand_in.disable = lambda function, *args, **kwargs: function
        stand_in.graph_break = lambda *args, **kwargs: None
        stand_in.__getattr__ = real  # PEP 562


def all_sum(values):
    """Sums over all ranks of a float64 tensor, as a list; in a single process its own values."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values.tolist()

# ----------------------------------------------------------------------------------------------- timing and the run log

class PhaseTimer:
    """Seconds in each phase of a step: `mark(phase)` counts the time since the last mark to `phase`.

    On a GPU the marks are events, read once in `totals`: to synchronise at each would slow what is measured.
    """

    def __init__(self, device, earlier=()):
        """`earlier`: {phase: seconds} of the same epoch before a restart."""
        self.cuda, self.marks, self.earlier = device.type == "cuda", [], dict(earlier)
        self.mark("start")

    def mark(self, phase):
        now = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        if self.cuda:
            now.record()
        self.marks.append((phase, now))

    def totals(self):
        """{phase: seconds}; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
        seconds = {**dict.fromkeys((phase for phase, _ in self.marks[1:]), 0.0), **self.earlier}
        for (_, before), (phase, after) in zip(self.marks, self.marks[1:], strict=False):
            seconds[phase] += before.elapsed_time(after) / 1000 if self.cuda else after - before
        return seconds


class RunLog:
    """JSON lines, flushed one by one: `run`, an `epoch` each, and `end` when the `with` block is left.

    A log without `end` is a run that did not finish. A file is appended to; one that another run is writing to raises
    BlockingIOError. Without a path nothing is written.
    """

    def __init__(self, path):
        self.file, self.run_id, self.started, self.logged = None, uuid.uuid4().hex[:12], time.time(), set()
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - __exit__ closes it
            lock(self.file)

    def resume(self, run_id):
        """Go on with run `run_id`: what the file holds of it is not written again. A line that a kill cut goes."""
        self.run_id = run_id
        if self.file:
            raw = Path(self.file.name).read_bytes()
            os.truncate(self.file.name, raw.rfind(b"\n") + 1)
            for line in raw.splitlines():
                try:
                    record = json.loads(line)
                    if record["kind"] == "run":
                        self.logged.clear()  # a reader takes the last run in the file
                    if record["run_id"] == run_id:
                        self.logged.add((record["kind"], record.get("epoch")))
                except (ValueError, KeyError, TypeError):
                    continue  # not a record of ours

    def write(self, kind, **fields):
        if self.file and ((kind, fields.get("epoch")) not in self.logged or kind not in ("run", "epoch")):
            text = json.dumps({"kind": kind, "time": time.time(), "run_id": self.run_id, **fields})[:-1]
            print(f'{text}, "crc": {zlib.crc32(text.encode())}}}', file=self.file, flush=True)  # a reader sees damage

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        outcome = {"status": "failed", "error": repr(error)} if error else {"status": "completed"}
        if isinstance(error, SystemExit) and error.code == RESUMABLE:
            outcome = {"status": "resumable"}
        self.write("end", **outcome, seconds=time.time() - self.started, peak_memory_bytes=peak_memory())
        if self.file:
            self.file.close()


def lock(file):
    """Take an open file for this process, until it ends. BlockingIOError where another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, "another run is writing to it", file.name.removesuffix(".lock")) from None
    except OSError as error:  # some network file systems have no locks
        log.warning("%s cannot be locked (%s): take care that no second run writes to it", file.name, error.strerror)


def write_json(path, found):
    """Write `found` to `path`, whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    os.replace(part, path)


def peak_memory():
    """Bytes, the most this process has held: on its GPU if it uses one, else in main memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
