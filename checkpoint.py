"""What lets a run survive: a checkpoint file that is always whole, and a stop that all ranks make after the same step.

The file: a line with a SHA-256, then what torch.save wrote. It is read with weights_only=True: loading runs no code.
"""

import contextlib
import hashlib
import io
import itertools
import logging
import os
import pickle
import re
import signal
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

import utils

log = logging.getLogger("course")
MAGIC = b"course checkpoint 1 "
POLL = 10  # steps between two looks at whether another rank was told to stop: each asks the store, some 0.2 ms


class Unusable(ValueError):
    """A checkpoint that this run cannot go on from. One line says why."""


@dataclass
class Progress:
    """How far a run has come: what neither the model nor the optimizer knows."""

    epoch: int = 0
    step: int = 0  # steps of this epoch that are done
    total_steps: int = 0  # since the run began
    sums: list = field(default_factory=lambda: [0.0, 0.0, 0.0])  # this rank's, in this epoch: loss, hits, images
    seconds: dict = field(default_factory=dict)  # rank 0's phases in this epoch
    epochs: list = field(default_factory=list)  # the log's records of the finished epochs
    run_id: str = ""
    restarts: int = 0

    def next_epoch(self, record):
        self.epochs.append(record)
        self.epoch, self.step, self.sums, self.seconds = self.epoch + 1, 0, [0.0, 0.0, 0.0], {}


class Stopped(SystemExit):
    """A signal came and the checkpoint is written: status 75, which sysexits.h calls a failure to try again later."""

    def __init__(self, message):
        log.info(message)
        super().__init__(utils.RESUMABLE)


class Shard(DistributedSampler):
    """A DistributedSampler that can begin in the middle of an epoch: after the first `start` images of this rank."""

    start = 0

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.start, None)


class Checkpoint:
    """Saves and restores a run. Rank 0 alone touches the file; all ranks must make the same calls.

    Without a path nothing is saved and no signal is caught. BlockingIOError where another run has the file.
    """

    def __init__(self, path, every, here):
        self.path, self.every, self.here = path and Path(path), every, here
        self.parts, self.options, self.random, self.progress = {}, {}, None, Progress()
        self.stop_signal, self.stop_at = None, None
        if path and here.rank == 0:
            self.lock = open(f"{path}.lock", "a")  # noqa: SIM115 - held until this process ends, however it ends
            utils.lock(self.lock)

    # ------------------------------------------------------------------------------------------------ the file

    def write(self, state):
        """Replace the file by `state`. At every moment PATH or PATH.previous is whole: the new file is flushed to the
        disk before it takes the name. OSError, and no change, where it cannot be written."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        part, previous = (Path(f"{self.path}.{ending}") for ending in ("part", "previous"))
        try:
            with open(part, "wb") as file:
                file.write(MAGIC + hashlib.sha256(buffer.getbuffer()).hexdigest().encode() + b"\n")
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            part.unlink(missing_ok=True)
            raise
        if self.path.exists():
            os.replace(self.path, previous)
        os.replace(part, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)  # the names, too, must reach the disk
        os.fsync(folder)
        os.close(folder)

    def read(self):
        """The newest whole state, or None where there is no file. Unusable where there are only damaged ones."""
        damaged = []
        for path in (self.path, Path(f"{self.path}.previous")):
            try:
                state = parse(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, Unusable) as error:
                damaged.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            if damaged:
                log.warning("%s. Going on from %s.", damaged[0], path)
                if self.path.exists():  # else the next write would push it over the good one
                    os.replace(self.path, f"{self.path}.damaged")
            return state
        if damaged:
            raise Unusable(f"{'; '.join(damaged)}: move it away, or --resume never")
        return None

    # ------------------------------------------------------------------------------------------------ going on

    def find(self, mode, options):
        """The state to go on from, the same on every rank, or None for a run that begins.

        `mode`: auto, never or must. `options`: {name: value} of what a run and its continuation must share. Unusable
        where they differ, where the file is damaged, and where there must be one and is not.
        """
        found, self.options = [None, None], options
        if self.here.rank == 0 and self.path and mode != "never":
            try:
                found[0] = self.read()
                if found[0]:
                    agree(found[0]["options"], options, self.path)
                elif mode == "must":
                    raise Unusable(f"--resume must, but there is no checkpoint {self.path}")
            except Unusable as error:
                found[1] = str(error)
        if dist.is_initialized():
            dist.broadcast_object_list(found, src=0)  # one reader: nodes need no common file system
        if found[1]:
            raise Unusable(found[1])
        return found[0]

    def restore(self, state, parts):
        """This rank's Progress, with `parts`, {name: model, optimizer, ...}, as `state` holds them. None: a new run.

        From here on SIGTERM and SIGUSR1 stop the run after a step: torchrun passes on the first, Slurm sends either.
        """
        self.parts = parts
        for number in (signal.SIGTERM, signal.SIGUSR1) if self.path else ():
            signal.signal(number, self.on_signal)
        if state is None:
            return self.progress
        for name, part in parts.items():
            part.load_state_dict(state["parts"][name])
        self.progress = progress = Progress(**state["progress"])
        ranks, rank = state["ranks"], self.here.rank
        if len(ranks) == self.here.world_size:
            progress.sums, self.random = ranks[rank]["sums"], ranks[rank]["random"]
        elif rank == 0:  # other ranks than before: what they counted is added up, their random states fit nobody
            progress.sums = [sum(column) for column in zip(*(one["sums"] for one in ranks), strict=True)]
        progress.restarts += 1
        return progress

    def with_random_state(self, loader):
        """Batches of the loader; after a restart this rank's random state is set once the loader has drawn its own."""
        batches, states, self.random = iter(loader), self.random, None
        if states:
            torch.set_rng_state(states["cpu"])
            if "cuda" in states and self.here.device.type == "cuda":
                torch.cuda.set_rng_state(states["cuda"], self.here.device)
        return batches

    def save(self, progress):
        mine = {"sums": progress.sums, "random": {"cpu": torch.get_rng_state()}}
        if self.here.device.type == "cuda":
            mine["random"]["cuda"] = torch.cuda.get_rng_state(self.here.device)
        ranks = [mine]
        if dist.is_initialized():
            ranks = [None] * self.here.world_size if self.here.rank == 0 else None
            dist.gather_object(mine, ranks, dst=0)
        if self.here.rank == 0:
            whole = {"options": self.options, "progress": {**asdict(progress), "sums": [0.0] * 3}, "ranks": ranks}
            self.write({**whole, "parts": {name: part.state_dict() for name, part in self.parts.items()}})

    def after_step(self, progress, sums, timer):
        """Count a step, and save where it is time to. Stopped where a signal asks for it, on all ranks at once."""
        progress.step, progress.total_steps = progress.step + 1, progress.total_steps + 1
        if not self.path:
            return
        stop = self.must_stop(progress.total_steps)
        if stop or (self.every and progress.total_steps % self.every == 0):
            progress.sums, progress.seconds = sums.tolist(), timer.totals()
            self.save(progress)
            timer.mark("checkpoint")
        if stop:
            if dist.is_initialized():
                dist.barrier()  # srun ends all ranks when the first leaves: rank 0 must have written
            raise Stopped(f"{self.stop_signal or 'A signal to another rank'}: stopped in epoch {progress.epoch} after "
                          f"step {progress.step}; --resume auto goes on from {self.path}")

    def after_epoch(self, progress, record):
        progress.next_epoch(record)
        if self.path:
            self.save(progress)

    def lost(self, error):
        """Where the ranks stand after a wait for each other failed with `error`: a line for the lowest of those that
        wait, "" for the others, None for an error that no wait made."""
        if not dist.is_initialized() or not re.search(r"gloo|nccl|timed out|connection", str(error), re.IGNORECASE):
            return None
        frames = traceback.extract_tb(error.__traceback__)
        line = next(frame.line for frame in reversed(frames) if "torch" not in Path(frame.filename).parts)
        ranks, store = range(self.here.world_size), dist.distributed_c10d._get_default_store()

        def ask():
            store.set(f"rank {self.here.rank} waits", "")
            time.sleep(2)  # the others' waits end within moments of each other
            return [rank for rank in ranks if store.check([f"rank {rank} waits"])]

        try:
            waiting = within(10, ask)
        except RuntimeError:  # who kept the store is gone, or behind a cut link
            waiting = [self.here.rank]
        silent = ", ".join(str(rank) for rank in ranks if rank not in waiting)
        if self.here.rank != waiting[0]:
            return ""
        return (f"rank(s) {', '.join(map(str, waiting))} waited in epoch {self.progress.epoch}, step "
                f"{self.progress.step + 1}, at `{line.split('  #')[0]}`; no word from rank(s) {silent or 'none'}: look "
                f"there first ({str(error).splitlines()[0][:150]})")

    # ---------------------------------------------------------------------------------------------- the signal

    def on_signal(self, number, frame):
        self.stop_signal = signal.Signals(number).name

    def must_stop(self, step):
        """Whether all ranks stop after this step (counted from the run's begin): True on all, or on none.

        A signal reaches the ranks at different moments, or only one. The first to see it names a step that none
        has passed yet: DDP keeps the ranks within one step of each other, and all look at the same steps.
        """
        if not dist.is_initialized() or self.here.world_size == 1:
            return self.stop_signal is not None
        store = dist.distributed_c10d._get_default_store()
        if self.stop_signal and self.stop_at is None:
            self.stop_at = int(store.compare_set("stop after step", "", str((step // POLL + 2) * POLL)))
        if step % POLL == 0 and self.stop_at is None and within(60, lambda: store.check(["stop after step"])):
            self.stop_at = int(store.get("stop after step"))
        return self.stop_at is not None and step >= self.stop_at


def within(seconds, ask):
    """What `ask` returns; RuntimeError after so many seconds: a store behind a cut link never answers."""
    answers = []

    def run():
        with contextlib.suppress(RuntimeError):
            answers.append(ask())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise RuntimeError(f"connection lost: the store of the ranks' addresses has not answered in {seconds} s")
    return answers[0]


def parse(raw):
    """The state in a file's bytes; Unusable where one of them is wrong or missing."""
    head, _, body = raw.partition(b"\n")
    if not head.startswith(MAGIC):
        raise Unusable("not a checkpoint of this course, or its begin is damaged")
    if head != MAGIC + hashlib.sha256(body).hexdigest().encode():
        raise Unusable("damaged: its SHA-256 does not fit")
    try:
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise Unusable(f"holds what weights_only=True does not load ({str(error).splitlines()[0]})") from None


def agree(theirs, ours, path):
    """Unusable where a run with `ours` cannot go on from a checkpoint with `theirs`."""
    for option in ours:
        if theirs.get(option) != ours[option]:
            raise Unusable(f"{path} is of a run with {option} {theirs.get(option)}, and this one has {ours[option]}: "
                           "use the same, another --checkpoint, or --resume never")
