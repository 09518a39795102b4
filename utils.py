"""What runs inside a rank: models, data, process group, metric reduction, run log.

Every rank imports this, so it imports no more than it must: no torchvision, say (scripts/prepare_data.py needs it).
"""

import fcntl
import importlib
import json
import logging
import os
import re
import resource
import sys
import time
import types
import uuid
from collections import namedtuple
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("course")

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

@dataclass(frozen=True)
class Placement:
    """Who this process is among all processes of the job, and what it computes on."""

    rank: int
    local_rank: int  # among the processes of this node
    world_size: int
    local_world_size: int
    nodes: int
    launcher: str  # python, torchrun or srun
    device: torch.device
    backend: str  # gloo or nccl


def adopt_slurm(env):
    """Write what srun tells a task under the names that torchrun uses, so that the rest reads one set of names."""
    first = re.match(r"([^,\[]+)(?:\[(\d+)[^]]*\]([^,\[]*))?", env["SLURM_STEP_NODELIST"])  # node[07-09]-x -> node07-x
    tasks = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"]):  # 2(x3),1 -> 2 2 2 1
        tasks += [count] * int(repeat or 1)
    env.update(RANK=env["SLURM_PROCID"], WORLD_SIZE=env["SLURM_STEP_NUM_TASKS"], LOCAL_RANK=env["SLURM_LOCALID"],
               LOCAL_WORLD_SIZE=tasks[int(env["SLURM_NODEID"])], GROUP_WORLD_SIZE=env["SLURM_STEP_NUM_NODES"])
    step = 16 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])  # one port for each step of each job
    env.setdefault("MASTER_ADDR", "".join(filter(None, first.groups())))  # rank 0 runs on the first node
    env.setdefault("MASTER_PORT", str(20_000 + step % 20_000))  # the same on all ranks, asking nobody


def find_placement(device="auto", backend="auto", env=os.environ):
    """Read from `env` who this process is, as torchrun or srun says, and choose its device and backend.

    NCCL where each local rank has a GPU of its own; gloo where ranks share GPUs, and on a CPU. Raises ValueError, one
    line, where the request cannot be met.
    """
    launcher = "torchrun" if "RANK" in env else "srun" if "SLURM_STEP_ID" in env else "python"
    try:
        if launcher == "srun":  # a batch script that calls python has SLURM_PROCID too, but no step
            adopt_slurm(env)
        rank, world_size = int(env.get("RANK", 0)), int(env["WORLD_SIZE"] if launcher != "python" else 1)
        local_rank, local_world_size = int(env.get("LOCAL_RANK", 0)), int(env.get("LOCAL_WORLD_SIZE", 1))
        nodes = int(env.get("GROUP_WORLD_SIZE", -(-world_size // local_world_size)))
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is not set: start with torchrun, or with srun in a Slurm job") from None
    except ValueError as error:
        raise ValueError(f"the launcher's environment is not usable ({error}): start with torchrun or srun") from None

    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and not gpus:
        raise ValueError("--device cuda, but torch sees no GPU here: use --device cpu")
    own_gpu = gpus >= local_world_size or (gpus and "SLURM_GPUS_PER_TASK" in env)  # Slurm may show each task its own
    if backend == "nccl" and not own_gpu:
        raise ValueError(f"--backend nccl needs a GPU for each of this node's {local_world_size} ranks, and there are "
                         f"{gpus}: use --backend gloo")
    if backend == "auto":
        backend = "nccl" if own_gpu else "gloo"
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    return Placement(rank, local_rank, world_size, local_world_size, nodes, launcher, device, backend)


def cores():
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def threads_per_rank(here, env=os.environ):
    """Cores divided by the ranks of this node, at least 1. OMP_NUM_THREADS wins where the user has set it."""
    try:  # torchrun sets it to 1 for its ranks; what torchrun itself was started with tells the user's from torchrun's
        launcher_env = Path(f"/proc/{os.getppid()}/environ").read_bytes()
        by_user = here.launcher != "torchrun" or b"OMP_NUM_THREADS=" in launcher_env
    except OSError:
        by_user = True
    if by_user and env.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(env["OMP_NUM_THREADS"]))
    if here.launcher == "srun" and "SLURM_CPUS_PER_TASK" in env:
        return int(env["SLURM_CPUS_PER_TASK"])
    return max(1, cores() // here.local_world_size)


def init_distributed_mode(here, dist_url="env://", timeout=600):
    """Join the process group. Every later wait for another rank ends after `timeout` seconds with an error.

    A process that nobody launched makes a group of one. Raises RuntimeError, one line, if the others do not come.
    """
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    meet = {"init_method": dist_url}
    if here.launcher == "python" and dist_url == "env://":
        meet = {"store": dist.HashStore()}
    try:
        dist.init_process_group(here.backend, rank=here.rank, world_size=here.world_size,
                                timeout=timedelta(seconds=timeout), **meet)
    except (RuntimeError, ValueError) as error:
        master = [os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT")]
        raise RuntimeError(f"rank {here.rank} of {here.world_size} waited for the others, {timeout} s at most, at "
                           f"{dist_url} {':'.join(master)}: {str(error).splitlines()[0]}") from None


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

    def __init__(self, device):
        self.cuda, self.marks = device.type == "cuda", []
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
        seconds = dict.fromkeys((phase for phase, _ in self.marks[1:]), 0.0)
        for (_, before), (phase, after) in zip(self.marks, self.marks[1:], strict=False):
            seconds[phase] += before.elapsed_time(after) / 1000 if self.cuda else after - before
        return seconds


class RunLog:
    """JSON lines, flushed one by one: `run`, an `epoch` each, and `end` when the `with` block is left.

    A log without `end` is a run that did not finish. A file is appended to; one that another run is writing to raises
    BlockingIOError. Without a path nothing is written.
    """

    def __init__(self, path):
        self.file, self.run_id, self.started = None, uuid.uuid4().hex[:12], time.time()
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - __exit__ closes it
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, "another run is writing to it") from None

    def write(self, kind, **fields):
        if self.file:
            print(json.dumps({"kind": kind, "time": time.time(), "run_id": self.run_id, **fields}), file=self.file,
                  flush=True)

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        outcome = {"status": "failed", "error": repr(error)} if error else {"status": "completed"}
        self.write("end", **outcome, seconds=time.time() - self.started, peak_memory_bytes=peak_memory())
        if self.file:
            self.file.close()


def peak_memory():
    """Bytes, the most this process has held: on its GPU if it uses one, else in main memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
