"""What runs inside a rank: optimizer, sums over all ranks, a loader's workers, evaluation, timer.

Every rank imports this, so it imports no more than it must: no torchvision, say (only who prepares data needs it).
"""

import contextlib
import math
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from trainer.data import AnySet
from trainer.files import Refused
from trainer.launch import Placement
from trainer.options import Options

# ------------------------------------------------------------------------------------------------------------ optimizer

def make_optimizer(parameters: Iterable[nn.Parameter], args: Options) -> torch.optim.Optimizer:
    lr, decay = args.lr, args.weight_decay or 0.0
    if args.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=decay, fused=True)  # in one pass
    kind = torch.optim.AdamW if args.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr, weight_decay=decay, fused=True)


def scale_rate(optimizer: torch.optim.Optimizer, args: Options,
               batches_per_epoch: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The scheduler that takes --lr to --lr times args.lr_scale, at once or over --warmup-epochs (Goyal et al. 2017,
    1706.02677: k times the images per update, k times the rate), and with --schedule cosine on to 0. Stepped after each
    update."""
    updates_per_epoch, scale = math.ceil(batches_per_epoch / args.accumulate), args.lr_scale
    rise, last = (args.warmup_epochs or 0) * updates_per_epoch, args.epochs * updates_per_epoch

    def factor(step: int) -> float:
        if step < rise and args.lr_scaling == "none":
            return (step + 1) / (rise + 1)  # at a rate of 0 the first update would move nothing
        if step < rise:
            return 1 + (scale - 1) * step / rise
        fallen = (step - rise) / (last - rise) if args.schedule == "cosine" else 0  # from 0 to 1
        return scale * (0.5 + 0.5 * math.cos(math.pi * fallen))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def find_no_sync(model: nn.Module, args: Options) -> Callable[[], contextlib.AbstractContextManager]:
    """DDP's no_sync, or a --wrapper's; where backward sends nothing anyway, a context that does nothing."""
    if args.wrapper and args.accumulate > 1 and not hasattr(model, "no_sync"):
        raise Refused(f"--accumulate asks --wrapper {args.wrapper} for no_sync(), in which backward sends "
                            "nothing; if only finish() sends: no_sync = contextlib.nullcontext")
    return getattr(model, "no_sync", contextlib.nullcontext)


def leave_signals_to_rank(_worker: int) -> None:
    """A DataLoader's worker_init_fn. torchrun sends SIGTERM to a rank's workers, too; the rank still needs them,
    because it stops after its update."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def end_workers() -> None:
    """Kill loader workers that an error left behind. They ignore SIGTERM, and Python waits for them as it ends: for
    ever, if one hangs."""
    if workers := [child for child in multiprocessing.active_children() if child.daemon]:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else DataLoader's handler raises an error of its own here
        for worker in workers:
            worker.kill()

# ---------------------------------------------------------------------------------------------- sums over all ranks

def all_sum(values: torch.Tensor) -> list[float]:
    """Sums over all ranks of a float64 tensor, as a list; in a single process its own values."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values.tolist()


def sum_type(device: torch.device) -> torch.dtype:
    """float64, in which a million losses add up without loss; Apple's GPUs (mps) have float32 at most."""
    return torch.float32 if device.type == "mps" else torch.float64


def count(logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """[sum of losses, hits, images] of a batch of logits [N, classes]; `loss` is its mean.

    Sums can be added up over unequal batches and shards; means cannot.
    """
    hits = (logits.argmax(1) == labels).sum()
    sums = torch.stack([loss.detach() * len(labels), hits, torch.full_like(hits, len(labels))])
    return sums.to(sum_type(sums.device))


def shard_loader(test_set: AnySet, placement: Placement, workers: int = 0, batch_size: int = 1000,
                 timeout: float = 0) -> DataLoader:
    """A loader of this rank's share of the test images; each image is in exactly one share, whatever the world size.

    The share is a plain slice: DistributedSampler would repeat images to make all shares equal.
    """
    shard = range(placement.rank, len(test_set), placement.world_size)
    return DataLoader(test_set, batch_size, sampler=shard, collate_fn=test_set.collate, num_workers=workers,
                      persistent_workers=workers > 0, worker_init_fn=leave_signals_to_rank,
                      generator=torch.Generator(),  # else its workers' seeds would take a draw from the training's
                      timeout=timeout if workers else 0, pin_memory=placement.device.type == "cuda")


@torch.no_grad()
def evaluate(raw_model: nn.Module, test_loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """(loss, accuracy 0 to 1) over all ranks' shares: see shard_loader.

    Shares may differ in length, so the raw model runs: DDP's forward has collectives that all ranks must call equally
    often.
    """
    if dist.is_initialized():
        for buffer in raw_model.buffers():  # each rank has its own BatchNorm statistics: judge, and save, rank 0's
            dist.broadcast(buffer, src=0)
    raw_model.eval()
    sums = torch.zeros(3, dtype=sum_type(device), device=device)
    for images, labels in test_loader:
        images, labels = (part.to(device, non_blocking=True) for part in (images, labels))
        logits = raw_model(images)
        sums += count(logits, labels, nn.functional.cross_entropy(logits, labels))
    loss, hits, images = all_sum(sums)
    return loss / images, hits / images


def weight_norm(raw_model: nn.Module) -> float:
    """L2 norm of all weights; RuntimeError unless it is the same on every rank, as DDP promises."""
    norm = torch.stack([p.detach().to(sum_type(p.device)).norm() for p in raw_model.parameters()]).norm()
    low_high = torch.stack([-norm, norm])
    if dist.is_initialized():
        dist.all_reduce(low_high, op=dist.ReduceOp.MAX)
    if not torch.isclose(-low_high[0], low_high[1], rtol=1e-6, atol=0, equal_nan=True):
        raise RuntimeError(f"the ranks' models have drifted apart: weight norms {-low_high[0]} to {low_high[1]}")
    return norm.item()

# ------------------------------------------------------------------------------------------------------------- timing

class PhaseTimer:
    """Seconds in each phase of a step: `mark(phase)` counts the time since the last mark to `phase`.

    On a CUDA GPU the marks are events. Those that the GPU has passed are summed up and dropped, without waiting for
    it: to synchronise at each would slow what is measured. Other accelerators are waited for at each mark.
    """

    def __init__(self, device: torch.device, earlier: dict[str, float] | None = None):
        """`earlier`: {phase: seconds} of the same epoch before a restart."""
        self.cuda, self.wait = device.type == "cuda", device.type not in ("cpu", "cuda")
        self.marks: deque[tuple[str, Any]] = deque()
        self.seconds = dict(earlier or {})
        self.mark("start")

    def mark(self, phase: str) -> None:
        if self.wait:
            torch.accelerator.synchronize()
        now: Any = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        if self.cuda:
            now.record()
        self.marks.append((phase, now))
        while len(self.marks) > 1 and (not self.cuda or self.marks[1][1].query()):
            self.fold()

    def fold(self) -> None:
        """Add the time between the two oldest marks to its phase."""
        _, before = self.marks.popleft()
        phase, after = self.marks[0]
        seconds = before.elapsed_time(after) / 1000 if self.cuda else after - before
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def totals(self) -> dict[str, float]:
        """{phase: seconds}; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
        while len(self.marks) > 1:
            self.fold()
        return dict(self.seconds)
