"""main.py's training step with a setting changed: what compare_changes.py, step_time.py and step_profile.py measure.
It is written once more here because it must differ in order to be compared."""

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate

import utils
from course.timing import timed
from trainer import data, models

MIB = 2**20

# ---------------------------------------------------------------------------------------------- what can be changed


@dataclass(frozen=True)
class Setting:
    """How a model is trained; the defaults are main.py's, with one thread a rank."""

    batch_size: int = 64  # images a backward, for each rank
    threads: int = 1
    one_by_one: bool = False  # images fetched and transformed singly, as scripts/measure/textbook.py does
    fused: bool = True  # the optimizer: one pass over all weights
    bf16: bool = False
    channels_last: bool | None = None  # None: as main.py, on a CPU
    compile: bool = False
    ddp: bool = True  # with several ranks; else each trains a model of its own
    bucket_view: bool = True
    buckets: int | None = None  # how many buckets the gradients should fill; None: as main.py
    hook: str = "none"  # none, bf16, powersgd; or silent: nothing is sent, each rank keeps its own gradients
    accumulate: int = 1  # batches an update, all-reduced once

    @property
    def images_an_update(self):
        return self.batch_size * self.accumulate

    @property
    def exact_updates(self):
        """Updates before the communication hook begins: PowerSGD's error feedback needs two."""
        return 2 if self.hook == "powersgd" else 0


@dataclass(frozen=True)
class Change:
    text: str
    after: dict = field(default_factory=dict)  # what differs from Setting()
    before: dict = field(default_factory=dict)
    ranks: bool = False  # it is DDP's
    act: Callable | None = None  # changes a Training before its first update: a learner's


CHANGES = {
    "nothing": Change("nothing changed"),
    "whole-batches": Change("images a batch at a time, not one by one", before={"one_by_one": True}),
    "fused": Change("fused optimizer", before={"fused": False}),
    "threads": Change("2 threads a rank, not 1", {"threads": 2}),
    "batch": Change("batch 256, not 64", {"batch_size": 256}),
    "bf16": Change("bf16 autocast", {"bf16": True}),
    "channels-last": Change("channels_last", {"channels_last": True}, before={"channels_last": False}),
    "compile": Change("torch.compile", {"compile": True}),
    "bucket-view": Change("gradient_as_bucket_view", before={"bucket_view": False}, ranks=True),
    "small-buckets": Change("bucket_cap_mb for 4 buckets", {"buckets": 4}, ranks=True),
    "bf16-hook": Change("bf16 compression", {"hook": "bf16"}, ranks=True),
    "powersgd": Change("PowerSGD, one column", {"hook": "powersgd"}, ranks=True),
    "accumulate": Change("an update each 4 batches", {"accumulate": 4}, ranks=True),
}
ALONE = [name for name, one in CHANGES.items() if not one.ranks]
TOGETHER = ["nothing", "threads", *(name for name, one in CHANGES.items() if one.ranks)]


def wide(channels, classes, side):
    """Three fully connected layers: many weights, and little to compute with each. Images [N, C, S, S] to logits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 1024), nn.ReLU(),
                         nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, classes))


MODELS = {**models.MODELS, "wide": wide}

# ---------------------------------------------------------------------------------------------- a training


class Training:
    """A model in training on this rank, as a Setting says."""

    def __init__(self, setting, model, train_set, placement):
        self.setting, self.placement, self.ddp = setting, placement, setting.ddp and placement.world_size > 1
        torch.manual_seed(0)
        info = data.DATASETS[train_set.name]
        channels_last = placement.device.type == "cpu" if setting.channels_last is None else setting.channels_last
        memory_format = torch.channels_last if channels_last else torch.preserve_format
        self.raw = MODELS[model](info.shape[0], len(info.classes), info.shape[1]).to(
            placement.device, memory_format=memory_format)
        self.model = parallelise(self.raw, setting, placement) if self.ddp else self.raw
        if setting.compile:
            self.model = torch.compile(self.model)
        self.optimizer = torch.optim.Adam(self.raw.parameters(), lr=0.001, fused=setting.fused)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1)  # main.py steps one, too
        self.sums = torch.zeros(3, dtype=utils.sum_type(placement.device), device=placement.device)
        self.autocast = torch.autocast(placement.device.type, torch.bfloat16, enabled=setting.bf16)
        self.batches = endless(train_set, setting, placement)
        self.gradients = []  # of the first updates, flat

    def update(self, mark=lambda phase: None):
        """One update of the weights; mark(phase) is called when a phase has ended."""
        parts = self.setting.accumulate
        for part in range(parts):
            images, labels = next(self.batches)
            mark("data")
            with self.model.no_sync() if self.ddp and part < parts - 1 else contextlib.nullcontext():
                with self.autocast:
                    logits = self.model(images)
                    loss = cross_entropy(logits, labels)
                self.sums += utils.count(logits, labels, loss)
                mark("forward")
                if part == 0:
                    self.optimizer.zero_grad()
                (loss if parts == 1 else loss / parts).backward()
                mark("backward")
        if len(self.gradients) <= 2:
            self.gradients.append(torch.cat([p.grad.flatten() for p in self.raw.parameters()]))
        self.optimizer.step()
        self.scheduler.step()
        mark("update")

    def block(self, images):
        """Seconds an image, for at least `images` images of this rank, from one meeting of all ranks to done."""
        torch.set_num_threads(self.setting.threads)
        each = self.setting.images_an_update
        return timed(self.update, math.ceil(images / each), self.placement.device) / each

    @torch.no_grad()
    def loss(self, test_set):
        """Of the test images, in float32 whatever the training did."""
        self.raw.eval()
        images, labels = test_set.__getitems__(range(len(test_set)))
        value = cross_entropy(self.raw(images), labels).item()
        self.raw.train()
        return value


def parallelise(raw, setting, placement):
    cap = 25  # MiB of a bucket, as main.py
    if setting.buckets:
        cap = sum(p.nbytes for p in raw.parameters()) / setting.buckets / MIB
    model = DistributedDataParallel(raw, device_ids=[placement.device] if placement.device.type == "cuda" else None,
                                    bucket_cap_mb=cap, gradient_as_bucket_view=setting.bucket_view)
    model.broadcast_buffers = False  # as main.py
    if setting.hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1,
                                            start_powerSGD_iter=setting.exact_updates)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif setting.hook == "silent":
        model.register_comm_hook(None, send_nothing)
    elif setting.hook != "none":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return model


def send_nothing(_, bucket):
    """A communication hook: what DDP costs without its messages."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def endless(train_set, setting, placement):
    """This rank's batches, epoch after epoch; the same images for every Setting."""
    sampler = DistributedSampler(range(len(train_set)), placement.world_size, placement.rank)
    source, collate = train_set, train_set.collate
    if setting.one_by_one:
        source, collate = range(len(train_set)), singly(train_set)
    loader = DataLoader(source, setting.batch_size, sampler=sampler, drop_last=True, collate_fn=collate)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for images, labels in loader:
            yield images.to(placement.device), labels.to(placement.device)


def singly(train_set):
    """Makes a batch of its indices: a PIL image and a transform for each, as torchvision.datasets.CIFAR10."""
    import torchvision  # late: it takes seconds to import, and only this change needs it
    from PIL import Image

    info = data.DATASETS[train_set.name]
    to_tensor, normalise = torchvision.transforms.ToTensor(), torchvision.transforms.Normalize(info.mean, info.std)
    transform = torchvision.transforms.Compose([to_tensor, normalise])
    pixels, labels = train_set.images.cpu().permute(0, 2, 3, 1).contiguous().numpy(), train_set.labels.tolist()
    return lambda batch: default_collate([(transform(Image.fromarray(pixels[i])), labels[i]) for i in batch])
