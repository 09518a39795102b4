"""What a training loop leaves to `Run`: it counts, times, logs, saves, resumes and stops."""

import importlib.util
import itertools
import logging
import math
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import utils
from trainer import launch, run_log
from trainer.checkpoint import Checkpoint, Unusable
from trainer.data import AnySet
from trainer.files import Unwritable
from trainer.launch import Stopped
from trainer.options import Options

log = logging.getLogger("course")
TORCH = Path(torch.__file__).parent
ASK_SECONDS = 1  # between two votes on stopping
WORD_SECONDS, HURRY_SECONDS = 2, 0.3  # for the ranks to say that they wait; once the launcher wants this rank to end


class Shard(DistributedSampler):
    """A DistributedSampler that can begin in the middle of an epoch: after the first `start` images of this rank."""

    start = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.start, None)


@dataclass
class Progress:
    """How far a run has come: the state that neither the model nor the optimizer holds."""

    epoch: int = 0
    step: int = 0  # updates of this epoch that are done
    total_steps: int = 0  # since the run began
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # this rank's, in this epoch: loss, hits, images
    seconds: dict[str, float] = field(default_factory=dict)  # rank 0's phases in this epoch
    epochs: list[dict[str, float]] = field(default_factory=list)  # the log's records of the finished epochs
    run_id: str = ""
    restarts: int = 0

    def next_epoch(self, record: dict[str, float]) -> None:
        self.epochs.append(record)
        self.epoch, self.step, self.sums, self.seconds = self.epoch + 1, 0, [0.0, 0.0, 0.0], {}


class Vote:
    """Numbers of which all ranks learn the greatest, without waiting for each other now, or for a GPU's queue."""

    def __init__(self, numbers: list[float], device: torch.device):
        pinned = torch.tensor(numbers, dtype=torch.float32, pin_memory=device.type == "cuda")  # else the copy waits
        self.numbers = pinned.to(device, non_blocking=True)
        self.work = dist.all_reduce(self.numbers, op=dist.ReduceOp.MAX, async_op=True)

    def result(self) -> list[float]:
        beside = torch.cuda.Stream(self.numbers.device) if self.numbers.is_cuda else None
        with torch.cuda.stream(beside):  # this stream has the vote to wait for, and nothing that was queued since
            self.work.wait()
            return self.numbers.tolist()


class Run:
    """A training on this rank. It counts, times, logs, saves, resumes and stops, so that the loop shows the training:
    see main.py. All ranks must make the same calls. OSError where another run has the log or the checkpoint."""

    def __init__(self, args: Options, placement: launch.Placement):
        logging.basicConfig(format="%(message)s")
        log.setLevel(logging.INFO if placement.rank == 0 else logging.ERROR)
        self.args, self.placement, self.progress = args, placement, Progress()
        self.file = Checkpoint(args.checkpoint) if args.checkpoint else None
        self.log = run_log.RunLog(args.log_file if placement.rank == 0 else None)
        if self.file and placement.rank == 0:  # that owns the file, and alone writes it
            try:
                self.file.own()
            except OSError:
                self.log.undo()
                raise
        self.store: dist.Store | None = None  # that the ranks share: see launch.init_distributed_mode
        self.parts: dict[str, Any] = {}  # what a checkpoint holds: model, optimizer and scheduler
        self.identity: dict[str, Any] = {}  # what two runs must share to hold the same
        self.sums: torch.Tensor  # of this rank in this epoch: loss, hits, images
        self.timer: utils.PhaseTimer  # of this epoch; made late, for on a GPU it uses the current one
        self.track, self.bar = run_log.tracker(args.tracker if placement.rank == 0 else None), None
        self.stop_signal: str | None = None
        self.vote: Vote | None = None
        self.voted, self.steps_since, self.vote_after = time.monotonic(), 0, 1

    # ------------------------------------------------------------------------------------------------ beginning

    def hold(self, raw_model: nn.Module, optimizer: torch.optim.Optimizer,
             scheduler: torch.optim.lr_scheduler.LRScheduler, train_set: AnySet) -> None:
        """Name what a checkpoint holds, and the data that it belongs to."""
        self.parts = {"model": raw_model, "optimizer": optimizer, "scheduler": scheduler}
        last = {"epochs": self.args.epochs} if self.args.schedule == "cosine" else {}
        self.identity = {"dataset": train_set.name, "global batch size": self.images_per_update, **last,
                         **self.args.must_match()}

    @property
    def images_per_update(self) -> int:
        return self.placement.world_size * self.args.batch_size * self.args.accumulate

    def saved_state(self) -> dict[str, Any] | None:
        """The state to resume from, or None for a run that begins. Every rank reads the file. Unusable, on all ranks,
        if it is damaged, belongs to another run, is missing with --resume must, or is not the same for all."""
        if not self.file or self.args.resume == "never":
            return None
        state, damage, refusal = None, "", None
        try:
            state, damage = self.file.read()
            if state is not None:
                agree(state.get("options", {}), self.identity, self.file.path)
            elif self.args.resume == "must":
                raise Unusable(f"--resume must, but there is no checkpoint {self.file.path}")
        except Unusable as error:
            refusal = str(error)
        seen = state and [state["progress"][name] for name in ("run_id", "total_steps", "restarts")]
        answers = launch.gathered((seen, refusal))
        for rank, (others, refused) in enumerate(answers):
            if refused:
                raise Unusable(refused)
            if others != answers[0][0]:
                raise Unusable(f"rank {rank} finds another --checkpoint {self.file.path} than rank 0, or none: it must "
                               "lie on a file system that all nodes share")
        if damage and self.placement.rank == 0:
            log.warning("%s. Going on from %s.", damage, self.file.previous)
            self.file.put_aside()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Load what saved_state() has read into model, optimizer, scheduler and this run's counts."""
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.progress = progress = Progress(**state["progress"])
        ranks, rank, device = state["ranks"], self.placement.rank, self.placement.device
        if len(ranks) == self.placement.world_size:
            progress.sums = ranks[rank]["sums"]
            torch.set_rng_state(ranks[rank]["random"]["cpu"].clone())
            if device.type != "cpu" and device.type in ranks[rank]["random"]:
                torch.get_device_module(device).set_rng_state(ranks[rank]["random"][device.type].clone())
        else:  # their random states match none of the new ranks
            if rank == 0:
                progress.sums = [sum(column) for column in zip(*(saved["sums"] for saved in ranks), strict=True)]
            log.info("%d ranks now, %d before. An update still takes %d images, at %g times --lr.",
                     self.placement.world_size, len(ranks), self.images_per_update, self.args.lr_scale)
        progress.restarts += 1
        self.log.resume(progress.run_id)
        log.info("Going on from %s, in epoch %d after step %d (restart %d)", self.args.checkpoint, progress.epoch,
                 progress.step, progress.restarts)

    def begin(self, sampler: DistributedSampler) -> None:
        """Say what runs where. From now on SIGTERM and SIGUSR1 stop a run with --checkpoint after an update: torchrun
        passes on the first, Slurm sends either. A signal that reaches one rank alone is a failure to torchrun, which
        with --max-restarts starts the run again."""
        for number in (signal.SIGTERM, signal.SIGUSR1) if self.file else ():
            signal.signal(number, lambda number, _: setattr(self, "stop_signal", signal.Signals(number).name))
        progress = self.progress
        progress.run_id = self.log.run_id
        run_log.describe(self.args, self.placement, sampler, self.log)
        for epoch, facts in enumerate(progress.epochs):  # records that the log still has are not written twice
            self.log.write("epoch", epoch=epoch, **facts)
        if progress.restarts:
            self.log.write("restart", restarts=progress.restarts, epoch=progress.epoch, step=progress.step,
                           world_size=self.placement.world_size, epochs=self.args.epochs)

    # ------------------------------------------------------------------------------------------------ the loop

    def begin_epoch(self) -> None:
        device, progress = self.placement.device, self.progress
        self.sums = torch.tensor(progress.sums, dtype=utils.sum_type(device), device=device)
        self.timer = utils.PhaseTimer(device, progress.seconds)
        self.voted, self.steps_since, self.vote_after = time.monotonic(), 0, 1  # a signal may have come in evaluate()

    def forward_done(self, logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        """Count a batch: logits [N, classes], labels [N], and the mean loss."""
        self.sums += utils.count(logits, labels, loss)  # on the device: .item() would wait for it at each step
        self.timer.mark("forward")

    def update_done(self, updates: int) -> None:
        """Count an update, of `updates` per epoch; log and save where it is time to. Stopped where a signal asks for
        it, on all ranks after the same update."""
        self.timer.mark("update")
        progress, every = self.progress, self.args.checkpoint_every
        progress.step, progress.total_steps = progress.step + 1, progress.total_steps + 1
        if self.file:
            stop = self.must_stop()
            if stop or (every and progress.total_steps % every == 0):
                progress.sums, progress.seconds = self.sums.tolist(), self.timer.totals()
                self.save()
                self.timer.mark("checkpoint")
            if stop:
                if dist.is_initialized():
                    dist.barrier()  # srun ends all ranks when the first leaves: rank 0 must have written
                raise Stopped(f"{self.stop_signal or 'A signal to another rank'}: stopped in epoch {progress.epoch} "
                              f"after step {progress.step}; --resume auto goes on from {self.args.checkpoint}")
        self.show_step(updates)

    def end_epoch(self, val_loss: float, val_accuracy: float) -> None:
        """Log the epoch over all ranks, and save. RuntimeError if the ranks' models differ, which DDP prevents."""
        self.bar, epoch = None, self.progress.epoch
        facts = run_log.epoch_facts(utils.all_sum(self.sums), self.timer.totals(), val_loss, val_accuracy,
                                    utils.weight_norm(self.parts["model"]))
        self.log.write("epoch", epoch=epoch, **facts)
        self.track(epoch, facts)
        run_log.say_epoch(epoch, facts)
        if not math.isfinite(facts["loss"]):
            raise FloatingPointError(f"the loss is {facts['loss']} after epoch {epoch}: try a smaller --lr")
        self.progress.next_epoch(facts)
        if self.file:
            self.save()

    def show_step(self, updates: int) -> None:
        """Each --log-every updates, log how rank 0 stands: all ranks' figures would need a collective. A GPU is waited
        for then."""
        progress, every = self.progress, self.args.log_every
        if not every or self.placement.rank or progress.step % every:
            return
        loss, hits, images = self.sums.tolist()
        if self.bar is None and sys.stderr.isatty() and importlib.util.find_spec("tqdm"):
            from tqdm import tqdm
            self.bar = tqdm(total=updates, desc=f"epoch {progress.epoch}", leave=False)
        if self.bar is None:
            log.info("epoch %d, update %d of %d: rank 0's loss %.4f, acc %.4f", progress.epoch, progress.step, updates,
                     loss / images, hits / images)
        else:
            self.bar.update(progress.step - self.bar.n)
            self.bar.set_postfix(loss=f"{loss / images:.4f}", acc=f"{hits / images:.4f}")

    def save(self) -> None:
        """Write the checkpoint, from rank 0, with every rank's counts and random states."""
        assert self.file
        states = {"cpu": torch.get_rng_state()}
        if self.placement.device.type != "cpu":
            states[self.placement.device.type] = torch.get_device_module(self.placement.device).get_rng_state()
        ranks = launch.gathered({"sums": self.progress.sums, "random": states})
        if self.placement.rank == 0:
            self.file.write({"options": self.identity, "progress": {**asdict(self.progress), "sums": [0.0] * 3},
                             "ranks": ranks, "parts": {name: part.state_dict() for name, part in self.parts.items()}})

    def must_stop(self) -> bool:
        """Whether all ranks stop after this update: True on all, or on none.

        A signal reaches the ranks at different moments, or only one of them, so they vote: about once a second. The
        vote is read after the next update. All ranks learn the slowest rank's pace from it, and so agree on the update
        at which they vote again.
        """
        if not dist.is_initialized() or self.placement.world_size == 1:
            return self.stop_signal is not None
        stop, self.steps_since = 0.0, self.steps_since + 1
        if self.vote:
            stop, pace = self.vote.result()
            self.vote, self.vote_after = None, max(1, int(ASK_SECONDS / max(pace, 1e-6)))
            self.voted, self.steps_since = time.monotonic(), 0
        elif self.steps_since >= self.vote_after:
            pace = (time.monotonic() - self.voted) / self.steps_since
            self.vote = Vote([self.stop_signal is not None, pace], self.placement.device)
        return bool(stop)

    # ------------------------------------------------------------------------------------------------ the end

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Write how the run ended, say who waited for whom, and leave the process group. The error itself goes on."""
        try:
            try:
                self.log.__exit__(kind, error, trace)
            except Unwritable as unwritten:
                if error is None:
                    raise
                log.error(unwritten)  # and the error that ended the run goes on
            # gloo's errors have no type of their own, but begin with the place in its source.
            of_gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
            if self.store and error and (of_gloo or isinstance(error, dist.DistError)):
                self.say_who_waited(error, self.store)
        finally:
            self.parts, self.vote = {}, None  # else they would keep the group's threads alive
            utils.end_workers()
            launch.end_distributed_mode()

    def say_who_waited(self, error: BaseException, store: dist.Store) -> None:
        """Of the ranks whose wait for another has failed, the lowest logs which ranks are silent.

        It asks for WORD_SECONDS; where torchrun has sent SIGTERM, which is to say that it knows of a rank that failed
        and waits for the others to end before it restarts them, for HURRY_SECONDS.
        """
        frames = traceback.extract_tb(error.__traceback__)
        line = next(frame.line for frame in reversed(frames) if not Path(frame.filename).is_relative_to(TORCH)) or ""
        ranks, me, begun = range(self.placement.world_size), self.placement.rank, time.monotonic()

        def ask() -> list[int]:
            store.set(f"rank {me} waits", "")
            while True:
                waiting = [rank for rank in ranks if store.check([f"rank {rank} waits"])]
                patience = HURRY_SECONDS if self.stop_signal else WORD_SECONDS
                if len(waiting) == len(ranks) or time.monotonic() - begun > patience:
                    return waiting
                time.sleep(0.05)

        try:
            waiting = launch.within(10, ask)
        except (dist.DistError, TimeoutError):  # the store is gone, with the rank or the torchrun that kept it, or is
            waiting = [me]  # behind a cut link
        if waiting[0] == me:
            silent = ", ".join(str(rank) for rank in ranks if rank not in waiting)
            log.error("rank(s) %s waited in epoch %d, step %d, at `%s`; no word from rank(s) %s: look there first",
                      ", ".join(map(str, waiting)), self.progress.epoch, self.progress.step + 1,
                      line.split("  #")[0], silent or "none")


def agree(theirs: dict[str, Any], ours: dict[str, Any], path: Path) -> None:
    """Unusable where a run with `ours` cannot resume from a checkpoint with `theirs`."""
    if not theirs:
        raise Unusable(f"{path} is a file of torch, but no checkpoint of main.py: name another --checkpoint")
    for option in ours:
        if theirs.get(option) != ours[option]:
            raise Unusable(f"{path} is of a run with {option} {theirs.get(option)}, and this one has {ours[option]}: "
                           "use the same, another --checkpoint, or --resume never")


def settle_buckets(model: nn.Module, loader: DataLoader, device: torch.device, bf16: bool) -> None:
    """DDP orders its buckets anew after its first step, and summing in another order changes the last bits. A run that
    resumes takes that step before it loads its weights, so that it ends with the weights of an undisturbed run."""
    here = DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn)  # leaves the workers alone
    images, labels = (part.to(device) for part in next(iter(here)))
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    model.zero_grad()
