"""What a training loop leaves to `Run`: it counts, times, logs, saves, resumes and stops."""

import argparse
import contextlib
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
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import utils
from trainer import launch, run_log
from trainer.checkpoint import Checkpoint, Unusable
from trainer.launch import Stopped

log = logging.getLogger("course")
TORCH = Path(torch.__file__).parent
ASK_SECONDS, ASK_STEPS = 1, 10  # the ranks ask each other whether to stop after so many seconds, or so many steps


class Shard(DistributedSampler):
    """A DistributedSampler that can begin in the middle of an epoch: after the first `start` images of this rank."""

    start = 0

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.start, None)


@dataclass
class Progress:
    """How far a run has come: the state that neither the model nor the optimizer holds."""

    epoch: int = 0
    step: int = 0  # updates of this epoch that are done
    total_steps: int = 0  # since the run began
    sums: list = field(default_factory=lambda: [0.0, 0.0, 0.0])  # this rank's, in this epoch: loss, hits, images
    seconds: dict = field(default_factory=dict)  # rank 0's phases in this epoch
    epochs: list = field(default_factory=list)  # the log's records of the finished epochs
    run_id: str = ""
    restarts: int = 0

    def next_epoch(self, record):
        self.epochs.append(record)
        self.epoch, self.step, self.sums, self.seconds = self.epoch + 1, 0, [0.0, 0.0, 0.0], {}


class Run:
    """A training on this rank. It counts, times, logs, saves, goes on and stops, so that the loop shows the training:

        with Run(args, placement) as run:
            ...
            for epoch in run.epochs(loader, model, raw_model, optimizer, scheduler):
                for images, labels, share, last in run.batches(loader):
                    ...                                     # forward
                    run.forward_done(logits, labels, loss)
                    ...                                     # backward, of the loss times share
                    run.backward_done()
                    ...                                     # if last: update
                run.end_epoch(val_loss, val_accuracy)

    All ranks must make the same calls. OSError where another run has the log or the checkpoint.
    """

    def __init__(self, args: argparse.Namespace, placement: launch.Placement):
        logging.basicConfig(format="%(message)s")
        log.setLevel(logging.INFO if placement.rank == 0 else logging.ERROR)
        self.args, self.placement, self.progress = args, placement, Progress()
        path, log_file = (args.checkpoint, args.log_file) if placement.rank == 0 else (None, None)
        # Another run may own an existing file, so lock it before creating anything: a refusal leaves nothing.
        log_exists = log_file and Path(log_file).exists()
        self.log = run_log.RunLog(log_file if log_exists else None)
        self.file = Checkpoint(path) if path else None
        self.log = self.log if log_exists else run_log.RunLog(log_file)
        self.store = None  # that the ranks share, once they have met: see launch.init_distributed_mode
        self.parts, self.identity = {}, {}  # what a checkpoint holds, and what two runs must share to hold the same
        self.sums = self.timer = self.bar = None  # of this epoch
        self.track = run_log.tracker(args.tracker if placement.rank == 0 else None)
        self.stop_signal, self.asked, self.steps_since, self.ask_after = None, 0.0, 0, 1

    # ------------------------------------------------------------------------------------------------ the loop

    def epochs(self, loader: DataLoader, model: nn.Module, raw_model: nn.Module, optimizer: torch.optim.Optimizer,
               scheduler) -> Iterator[int]:
        """Resume from --checkpoint, if the file exists, and give the numbers of the epochs that remain.

        From now on SIGTERM and SIGUSR1 stop the run after a step: torchrun passes on the first, Slurm sends either.
        (A signal that reaches one rank alone is a failure to torchrun: with --max-restarts it starts the run again.)
        Unusable if the file is damaged, belongs to another run, or is missing with --resume must.
        """
        self.parts = {"model": raw_model, "optimizer": optimizer, "scheduler": scheduler}
        self.identity = must_agree(self.args, self.placement, loader.dataset)
        for number in (signal.SIGTERM, signal.SIGUSR1) if self.args.checkpoint else ():
            signal.signal(number, lambda number, _: setattr(self, "stop_signal", signal.Signals(number).name))
        state = self.saved_state()
        if state:
            if isinstance(model, torch.nn.parallel.DistributedDataParallel):
                settle_buckets(model, loader, self.placement.device, self.args.bf16)
            self.restore(state)
            self.log.resume(self.progress.run_id)
        self.progress.run_id = self.log.run_id
        run_log.describe(self.args, self.placement, loader.sampler, self.log)
        for epoch, facts in enumerate(self.progress.epochs):  # records that the log still has are not written twice
            self.log.write("epoch", epoch=epoch, **facts)
        if state:
            self.log.write("restart", restarts=self.progress.restarts, epoch=self.progress.epoch,
                           step=self.progress.step, world_size=self.placement.world_size, epochs=self.args.epochs)
            log.info("Going on from %s, in epoch %d after step %d (restart %d)", self.args.checkpoint,
                     self.progress.epoch, self.progress.step, self.progress.restarts)
            if (before := len(state["ranks"])) != self.placement.world_size:
                log.info("%d ranks now, %d before. An update still takes %d images, at %g times --lr.",
                         self.placement.world_size, before, images_an_update(self.args, self.placement),
                         self.args.lr_scale)
        yield from range(self.progress.epoch, self.args.epochs)

    def batches(self, loader: DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor, float, bool]]:
        """The batches that remain of this epoch: (images, labels, its share of the images of its update, whether it is
        the last of its update). An update has --accumulate batches, and fewer at the end of an epoch."""
        device, progress, accumulate = self.placement.device, self.progress, self.args.accumulate
        of_update = loader.batch_size * accumulate  # images of this rank
        loader.sampler.start = progress.step * of_update
        if loader.generator:  # of the workers' seeds: others on each rank and in each epoch
            loader.generator.manual_seed(hash((self.args.seed, self.placement.rank, progress.epoch)))
        self.sums = torch.tensor(progress.sums, dtype=utils.sum_type(device), device=device)
        self.timer = utils.PhaseTimer(device, progress.seconds)
        self.asked, self.steps_since, self.ask_after = time.monotonic(), 0, 1  # a signal may have come in evaluate()
        for number, (images, labels) in enumerate(loader, start=progress.step * accumulate + 1):
            left = len(loader.sampler) - progress.step * of_update
            last = number % accumulate == 0 or number == len(loader)
            self.timer.mark("data")
            yield images, labels, len(labels) / min(of_update, left), last
            if last:
                self.timer.mark("update")
                self.after_step()
                self.show_step(math.ceil(len(loader) / accumulate))
        self.bar = None

    def forward_done(self, logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        self.sums += utils.count(logits, labels, loss)  # on the device: .item() would wait for it at each step
        self.timer.mark("forward")

    def backward_done(self) -> None:
        self.timer.mark("backward")

    def end_epoch(self, val_loss: float, val_accuracy: float) -> None:
        """Log the epoch over all ranks, and save. RuntimeError if the ranks' models differ, which DDP prevents."""
        epoch = self.progress.epoch
        facts = run_log.epoch_facts(utils.all_sum(self.sums), self.timer.totals(), val_loss, val_accuracy,
                                    utils.weight_norm(self.parts["model"]))
        self.log.write("epoch", epoch=epoch, **facts)
        self.track(epoch, facts)
        run_log.say_epoch(epoch, facts)
        if not math.isfinite(facts["loss"]):
            raise FloatingPointError(f"the loss is {facts['loss']} after epoch {epoch}: try a smaller --lr")
        self.progress.next_epoch(facts)
        if self.args.checkpoint:
            self.save()

    def show_step(self, steps: int) -> None:
        """Each --log-every updates, of `steps` an epoch, say how rank 0 stands: all ranks' figures would cost a
        message. A GPU is waited for then."""
        progress, every = self.progress, self.args.log_every
        if not every or self.placement.rank or progress.step % every:
            return
        loss, hits, images = self.sums.tolist()
        if self.bar is None and sys.stderr.isatty() and importlib.util.find_spec("tqdm"):
            from tqdm import tqdm
            self.bar = tqdm(total=steps, desc=f"epoch {progress.epoch}", leave=False)
        if self.bar is None:
            log.info("epoch %d, update %d of %d: rank 0's loss %.4f, acc %.4f", progress.epoch, progress.step, steps,
                     loss / images, hits / images)
        else:
            self.bar.update(progress.step - self.bar.n)
            self.bar.set_postfix(loss=f"{loss / images:.4f}", acc=f"{hits / images:.4f}")

    # ------------------------------------------------------------------------------------------------ the end

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Write how the run ended, say who waited for whom, and leave the process group. The error itself goes on."""
        try:
            self.log.__exit__(kind, error, trace)
            # gloo's errors have no type of their own, but begin with the place in its source.
            of_gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
            if self.store and (of_gloo or isinstance(error, dist.DistError)):
                self.say_who_waited(error)
        finally:
            utils.end_workers()
            launch.end_distributed_mode()

    def say_who_waited(self, error):
        """Of the ranks whose wait for another has failed, the lowest logs which ranks are silent."""
        frames = traceback.extract_tb(error.__traceback__)
        line = next(frame.line for frame in reversed(frames) if not Path(frame.filename).is_relative_to(TORCH))
        ranks, store, me = range(self.placement.world_size), self.store, self.placement.rank

        def ask():
            store.set(f"rank {me} waits", "")
            with contextlib.suppress(dist.DistError):  # some rank does not wait
                store.wait([f"rank {rank} waits" for rank in ranks], timedelta(seconds=2))
            return [rank for rank in ranks if store.check([f"rank {rank} waits"])]

        try:
            waiting = launch.within(10, ask)
        except (dist.DistError, TimeoutError):  # the store is gone, with the rank or the torchrun that kept it, or is
            waiting = [me]  # behind a cut link
        if waiting[0] == me:
            silent = ", ".join(str(rank) for rank in ranks if rank not in waiting)
            log.error("rank(s) %s waited in epoch %d, step %d, at `%s`; no word from rank(s) %s: look there first",
                      ", ".join(map(str, waiting)), self.progress.epoch, self.progress.step + 1,
                      line.split("  #")[0], silent or "none")

    # ------------------------------------------------------------------------------------------------ going on

    def saved_state(self):
        """The state to go on from, the same on every rank, or None for a run that begins.

        Each rank gets all of it at once, and pickled: for weights of some GB, let each rank write and read its part
        (torch.distributed.checkpoint).
        """
        state = refusal = None
        if self.file and self.args.resume != "never":
            try:
                state = self.file.read()
                if state:
                    agree(state["options"], self.identity, self.file.path)
                elif self.args.resume == "must":
                    raise Unusable(f"--resume must, but there is no checkpoint {self.file.path}")
            except Unusable as error:
                refusal = str(error)
        answer = [state, refusal]
        if dist.is_initialized():
            dist.broadcast_object_list(answer, src=0)  # one reader: nodes need no common file system
        if answer[1]:
            raise Unusable(answer[1])
        return answer[0]

    def restore(self, state):
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.progress = progress = Progress(**state["progress"])
        ranks, rank, device = state["ranks"], self.placement.rank, self.placement.device
        if len(ranks) == self.placement.world_size:
            progress.sums = ranks[rank]["sums"]
            torch.set_rng_state(ranks[rank]["random"]["cpu"])
            if device.type != "cpu" and device.type in ranks[rank]["random"]:
                torch.get_device_module(device).set_rng_state(ranks[rank]["random"][device.type])
        elif rank == 0:  # another number of ranks: add up their counts; their random states match none of the new ranks
            progress.sums = [sum(column) for column in zip(*(saved["sums"] for saved in ranks), strict=True)]
        progress.restarts += 1

    def save(self):
        states = {"cpu": torch.get_rng_state()}
        if self.placement.device.type != "cpu":
            states[self.placement.device.type] = torch.get_device_module(self.placement.device).get_rng_state()
        mine = {"sums": self.progress.sums, "random": states}
        ranks = [mine]
        if dist.is_initialized():
            ranks = [None] * self.placement.world_size if self.placement.rank == 0 else None
            dist.gather_object(mine, ranks, dst=0)
        if self.file:
            whole = {"options": self.identity, "progress": {**asdict(self.progress), "sums": [0.0] * 3}, "ranks": ranks}
            self.file.write({**whole, "parts": {name: part.state_dict() for name, part in self.parts.items()}})

    def after_step(self):
        """Count the step, and save where it is time to. Stopped where a signal asks for it, on all ranks at once."""
        progress, every = self.progress, self.args.checkpoint_every
        stop = bool(self.args.checkpoint) and self.must_stop()
        progress.step, progress.total_steps = progress.step + 1, progress.total_steps + 1
        if not self.args.checkpoint:
            return
        if stop or (every and progress.total_steps % every == 0):
            progress.sums, progress.seconds = self.sums.tolist(), self.timer.totals()
            self.save()
            self.timer.mark("checkpoint")
        if stop:
            if dist.is_initialized():
                dist.barrier()  # srun ends all ranks when the first leaves: rank 0 must have written
            raise Stopped(f"{self.stop_signal or 'A signal to another rank'}: stopped in epoch {progress.epoch} after "
                          f"step {progress.step}; --resume auto goes on from {self.args.checkpoint}")

    def must_stop(self):
        """Whether all ranks stop after this step: True on all, or on none.

        A signal reaches the ranks at different moments, or only one of them, so they ask each other: after each step
        where a step is slow, after ASK_STEPS where it is fast. All ranks know the slowest rank's pace, and so agree on
        the step at which they ask again. A GPU is waited for then.
        """
        if not dist.is_initialized() or self.placement.world_size == 1:
            return self.stop_signal is not None
        self.steps_since += 1
        if self.steps_since < self.ask_after:
            return False
        pace = (time.monotonic() - self.asked) / self.steps_since
        flag_and_pace = torch.tensor([self.stop_signal is not None, pace], device=self.placement.device)
        dist.all_reduce(flag_and_pace, op=dist.ReduceOp.MAX)
        stop, pace = flag_and_pace.tolist()
        self.ask_after = max(1, min(ASK_STEPS, int(ASK_SECONDS / pace)))
        self.asked, self.steps_since = time.monotonic(), 0
        return bool(stop)


def images_an_update(args, placement):
    return placement.world_size * args.batch_size * args.accumulate


def agree(theirs, ours, path):
    """Unusable where a run with `ours` cannot go on from a checkpoint with `theirs`."""
    for option in ours:
        if theirs.get(option) != ours[option]:
            raise Unusable(f"{path} is of a run with {option} {theirs.get(option)}, and this one has {ours[option]}: "
                           "use the same, another --checkpoint, or --resume never")


def must_agree(args, placement, train_set):
    """{name: value} of what a run and its continuation share, or the second would not be the first."""
    same = ("model", "samples", "test_samples", "optimizer", "weight_decay", "clip", "lr", "lr_scaling", "schedule",
            "warmup_epochs", "seed", "shuffle", "lr_scale", "sync_bn", "comm_hook", "wrapper", "bf16", "image_size")
    last = {"epochs": args.epochs} if args.schedule == "cosine" else {}
    return {"dataset": train_set.name, "global batch size": images_an_update(args, placement), **last,
            **{name: getattr(args, name) for name in same}}


def settle_buckets(model, loader, device, bf16):
    """DDP orders its buckets anew after its first step, and summing in another order changes the last bits. A run that
    resumes takes that step before it loads its weights, so that it ends with the weights of an undisturbed run.
    """
    images, labels = (part.to(device) for part in next(iter(loader)))
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    model.zero_grad()
