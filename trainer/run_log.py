"""What a run says: the run log, in JSON lines, and the same facts on the console. Written by rank 0.

A new column is a line in `epoch_facts` or `describe`.
"""

import json
import logging
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from torch.utils.data import DistributedSampler

from trainer import files, launch
from trainer.data import AnySet
from trainer.launch import cores, device_name
from trainer.options import Options

log = logging.getLogger("course")


class RunLog:
    """JSON lines, flushed one by one: `run`, an `epoch` each, and `end` when the `with` block is left.

    A log without `end` is a run that did not finish. A file is appended to; one that another run is writing to raises
    BlockingIOError, one that cannot be written to Unwritable. Without a path nothing is written.
    """

    def __init__(self, path: str | None):
        self.run_id, self.started = uuid.uuid4().hex[:12], time.time()
        self.logged: set[tuple[str, int | None]] = set()  # records that the file holds already
        self.file: TextIO | None = None
        self.made = path is not None and not Path(path).exists()  # by this run
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - __exit__ closes it
            files.lock(self.file)

    def resume(self, run_id: str) -> None:
        """Go on with run `run_id`: what the file holds of it is not written again. A line that a kill cut goes."""
        self.run_id = run_id
        if self.file:
            raw = Path(self.file.name).read_bytes()
            with files.writing(self.file.name):
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

    def write(self, kind: str, **fields: Any) -> None:
        """Append a record. Unwritable, where the disk is full, say."""
        if self.file and ((kind, fields.get("epoch")) not in self.logged or kind not in ("run", "epoch")):
            record = {"kind": kind, "time": time.time(), "run_id": self.run_id, **fields}
            with files.writing(self.file.name):
                print(json.dumps(record), file=self.file, flush=True)

    def undo(self) -> None:
        """Leave nothing behind of a log that this run has made and not written to."""
        if self.file and self.made:
            Path(self.file.name).unlink()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, error_type: type | None, error: BaseException | None, traceback: object) -> None:
        outcome = {"status": "failed", "error": repr(error)} if error else {"status": "completed"}
        if isinstance(error, launch.Stopped):
            outcome = {"status": "resumable"}
        self.write("end", **outcome, seconds=time.time() - self.started, peak_memory_bytes=peak_memory())
        if self.file:
            with files.writing(self.file.name):
                self.file.close()


def tracker(directory: str | None) -> Callable[[int, dict[str, float]], None]:
    """A function of an epoch and its facts, which the tracker keeps. Another tracker is another such function."""
    if not directory:
        return lambda epoch, facts: None
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(directory)

    def track(epoch: int, facts: dict[str, float]) -> None:
        for name, value in facts.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return track


def describe(args: Options, placement: launch.Placement, sampler: DistributedSampler, run_log: RunLog) -> None:
    """Say what runs where, in the log's `run` record and on the console."""
    train_set, processor = cast(AnySet, sampler.dataset), device_name(placement.device)
    gpus, threads = torch.cuda.device_count(), torch.get_num_threads()
    synthetic, padding = train_set.name == "synthetic", sampler.total_size - len(train_set)
    run_log.write("run", **{**vars(args), "dataset": train_set.name}, synthetic=synthetic,
                  world_size=placement.world_size, local_world_size=placement.local_world_size,
                  nodes=placement.nodes, launcher=placement.launcher, device_name=processor,
                  device_count=gpus, cores=cores(), threads=threads,
                  host=f"{platform.system()} {platform.machine()}", torch=torch.__version__,
                  python=platform.python_version())
    log.info("%s%s: %d training and %d test images", train_set.name,
             " (SYNTHETIC: made from a seed, not photographs)" if synthetic else "", args.samples, args.test_samples)
    batches = f"{placement.world_size} rank(s) x batch {args.batch_size} = {placement.world_size * args.batch_size}"
    accumulated = f", {args.accumulate} batches per update" if args.accumulate > 1 else ""
    log.info("%s, %s: %s images per step%s; %s, %d thread(s) per rank", args.model, args.strategy, batches, accumulated,
             ", ".join(filter(None, [processor, args.backend])), threads)
    if args.lr_scaling != "none":
        log.info("learning rate %g x %g: --lr-scaling %s, %d images per update", args.lr, args.lr_scale,
                 args.lr_scaling, placement.world_size * args.batch_size * args.accumulate)
    if args.device == "cpu" and args.strategy == "dp":
        log.warning("DataParallel splits over GPUs; on a CPU it only passes the batch on.")
    if args.device == "cuda" and args.backend == "gloo" and placement.local_world_size > gpus:
        log.warning("%d ranks share %d GPU(s): they take turns, and gloo carries the gradients. If each "
                    "rank sees a GPU of its own, say --backend nccl.",
                    placement.local_world_size, gpus)
    # mpirun and srun may keep each rank to cores of its own
    shared = cores() if placement.launcher == "torchrun" else os.cpu_count() or 1
    if args.device == "cpu" and placement.local_world_size > shared:
        log.warning("%d ranks share %d cores: they take turns.", placement.local_world_size, shared)
    if padding:
        log.warning("%d image(s) are trained on twice per epoch, so that all shards are equally long.", padding)


def epoch_facts(sums: list[float], seconds: dict[str, float], val_loss: float, val_accuracy: float,
                weight_norm: float) -> dict[str, float]:
    """{column: value} of an epoch. `sums` over all ranks: loss, hits, images; `seconds`: rank 0's in each phase."""
    loss, hits, images = sums
    total = sum(seconds.values())
    return {"loss": loss / images, "accuracy": hits / images, "seconds": total, "images_per_second": images / total,
            **{f"{phase}_seconds": spent for phase, spent in seconds.items()},
            "val_loss": val_loss, "val_accuracy": val_accuracy, "weight_norm": weight_norm}


def say_epoch(epoch: int, facts: dict[str, float]) -> None:
    log.info("Epoch: %d, Loss: %.4f, acc: %.4f, time cost: %.2fs, val loss: %.4f, val acc: %.4f, images/s: %.0f", epoch,
             *(facts[name] for name in ("loss", "accuracy", "seconds", "val_loss", "val_accuracy",
                                        "images_per_second")))


def peak_memory() -> int:
    """Bytes, the most this process has held: on its GPU if it uses one, else in main memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    import resource  # late, as Windows has none: there files.py says so, in one line

    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
