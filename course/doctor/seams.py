"""Hooks at the public seams of torch: each notes what the script does, and changes nothing of it."""

import functools
import hashlib
import inspect
import math
import os
import random
import socket
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Subset

from .diary import where

TORCH = str(Path(torch.__file__).parent)
COLLECTIVES = ["all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
               "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
               "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
               "scatter_object_list"]
LOOKED_AT = 8  # steps in which what changes little is looked at: random numbers, gradients, names
BATCHNORM = nn.modules.batchnorm._BatchNorm


class Enough(BaseException):
    """--steps have been made."""


def install(diary, steps=None):
    """Put the hooks in this process. After `steps` updates of the weights the script is ended by Enough."""
    seams = Seams(diary, steps)
    for name in COLLECTIVES:
        setattr(dist, name, seams.collective(name, getattr(dist, name)))
    dist.init_process_group = seams.after(dist.init_process_group, seams.group_begun)
    dist.destroy_process_group = seams.after(dist.destroy_process_group, seams.group_ended)
    DistributedDataParallel.__init__ = seams.after(DistributedDataParallel.__init__, seams.wrapped)
    DistributedDataParallel.no_sync = seams.no_sync(DistributedDataParallel.no_sync)
    register_module_forward_pre_hook(seams.module_begins)
    register_module_forward_hook(seams.module_ends, always_call=True)
    register_optimizer_step_pre_hook(seams.before_step)
    register_optimizer_step_post_hook(seams.after_step)
    torch.Tensor.backward = seams.backward(torch.Tensor.backward)
    nn.utils.clip_grad_norm_ = seams.clip(nn.utils.clip_grad_norm_)
    DataLoader.__iter__ = seams.loader(DataLoader.__iter__)
    BatchSampler.__iter__ = seams.batches(BatchSampler.__iter__)
    DistributedSampler.__iter__ = seams.shard(DistributedSampler.__iter__)
    torch.save, torch.load = seams.save(torch.save), seams.load(torch.load)
    Optimizer.load_state_dict = seams.after(Optimizer.load_state_dict, seams.optimizer_loaded)
    return seams


def digest(tensors):
    """Sum and norm of all numbers: the same on ranks that hold the same. None where a tensor is a part of one."""
    tensors = [tensor.detach() for tensor in tensors]
    if any(hasattr(tensor, "full_tensor") or not tensor.numel() for tensor in tensors):
        return None
    exact = torch.float32 if any(tensor.device.type == "mps" for tensor in tensors) else torch.float64
    norms = [torch.linalg.vector_norm(tensor, dtype=exact).item() for tensor in tensors if not tensor.is_complex()]
    return [sum(tensor.sum(dtype=exact).item() for tensor in tensors if not tensor.is_complex()), math.hypot(*norms)]


def random_state():
    """{whose: a digest of what the next random numbers hang on}."""
    return {"torch": hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest(),
            "random": hashlib.md5(repr(random.getstate()).encode()).hexdigest()}


def drawn_from(before):
    """The states among `before` from which numbers have been drawn since."""
    now = random_state()
    return {whose: state for whose, state in before.items() if state != now[whose]}


def tensors_in(batch):
    if torch.is_tensor(batch):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else []
    return [tensor for part in parts for tensor in tensors_in(part)]


def in_the_whole(dataset, index):
    """What an index of a Subset, or of a Subset of one, is in the data set that it was taken from."""
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    return int(index)


def rows(batch):
    """How many samples a batch has; None where it has no tensor that says it."""
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), None)


class Seams:
    def __init__(self, diary, steps):
        self.diary, self.steps = diary, steps
        self.models = {}  # {id of a wrapped module: the DDP around it}
        self.within = self.depth = 0  # forwards of DDP, and of any module, that are going on
        self.loaders, self.samplers = {}, {}
        self.optimizers = []
        self.destroyed = False

    def ours(self):
        """Only the main thread's doings are noted."""
        return threading.get_ident() == self.diary.main

    def after(self, function, then):
        @functools.wraps(function)
        def called(*args, **kwargs):
            line = where()
            self.diary.enter(function.__name__ if function.__name__ != "__init__" else "DDP", line)
            try:
                result = function(*args, **kwargs)
            finally:
                self.diary.leave()
            then(line, *args, **kwargs)
            return result
        return called

    # ------------------------------------------------------------------------------------------------ talking

    def collective(self, name, function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args, **kwargs):
            given = signature.bind_partial(*args, **kwargs).arguments
            by_torch = sys._getframe(1).f_code.co_filename.startswith(TORCH)  # a collective within another, Join, ...
            if by_torch or not self.ours() or given.get("group") not in (None, dist.group.WORLD):
                return function(*args, **kwargs)
            line = where()
            self.diary.collective(name, line)
            sent = next((value for key, value in given.items() if key.startswith(("tensor", "input"))), None)
            if torch.is_tensor(sent):
                self.diary.note("talk", most=2000, what=name, where=line, numbers=sent.numel(), step=self.diary.steps,
                                passes=self.diary.passes, backwards=self.diary.backwards)
            self.diary.enter(name, line)
            try:
                return function(*args, **kwargs)
            finally:
                self.diary.leave()
        return called

    def group_begun(self, line, *_, **__):
        self.diary.rank, self.diary.world_size = dist.get_rank(), dist.get_world_size()
        self.destroyed = False
        self.diary.note("group", where=line, backend=dist.get_backend())

    def group_ended(self, *_, **__):
        self.destroyed = True

    # ------------------------------------------------------------------------------------------------ the model

    def module_begins(self, module, _):
        if not self.ours():  # DataParallel's threads
            return
        self.depth += 1
        outermost = self.depth == 1 and module.training and torch.is_grad_enabled()
        if outermost and next(module.parameters(), None) is not None:
            self.diary.alive = time.monotonic()
            self.diary.outer += 1
            if self.diary.outer & (self.diary.outer - 1) == 0:  # 1, 2, 4, 8, ...
                self.diary.note("weights", forward=self.diary.outer, digest=digest(module.parameters()), where=where())

    def module_ends(self, *_):
        if self.ours():
            self.depth -= 1

    def wrapped(self, line, model, *_, **__):
        self.models[id(model.module)] = model
        model.register_forward_pre_hook(self.forward_begins)
        model.register_forward_hook(self.forward_ends, always_call=True)
        model.module.register_forward_pre_hook(self.raw_forward)
        self.diary.note("wrapped", where=line, trained=[name for name, one in model.module.named_parameters()
                                                        if one.requires_grad])
        if any(isinstance(part, BATCHNORM) and not isinstance(part, nn.SyncBatchNorm) for part in model.modules()):
            self.diary.once("batchnorm", where=line)

    def forward_begins(self, model, _):
        self.within += 1
        if model.training and torch.is_grad_enabled():
            self.diary.forwards += 1
            self.names(model, where())
            if self.diary.forwards <= LOOKED_AT:
                self.before_forward = random_state()

    def forward_ends(self, model, _, __):
        self.within -= 1
        looked = model.training and torch.is_grad_enabled() and self.diary.forwards <= LOOKED_AT
        if looked and (states := drawn_from(self.before_forward)):
            self.diary.note("drawn", what="the model's forward", where=where(), states=states, step=self.diary.steps)

    def raw_forward(self, module, _):
        if not self.within and module.training and torch.is_grad_enabled():
            self.diary.once("raw", where=where())

    def names(self, model, line):
        """Parameters that have no gradient while others have one; and those that were frozen after wrapping."""
        if self.diary.forwards > LOOKED_AT + 1:
            return
        all_of = dict(model.module.named_parameters())
        began = next(fact for fact in self.diary.facts["wrapped"])["trained"]
        frozen = [name for name in began if name in all_of and not all_of[name].requires_grad]
        if frozen:
            self.diary.once("frozen", names=frozen[:20], where=line)
        without = [name for name, one in all_of.items() if one.requires_grad and one.grad is None]
        if without and any(one.grad is not None for one in all_of.values()):
            self.diary.note("without", names=without[:20], where=line, step=self.diary.steps)

    def no_sync(self, function):
        @functools.wraps(function)
        @contextmanager
        def quiet(model):
            line, forwards, backwards = where(), self.diary.forwards, self.diary.backwards
            try:
                with function(model):
                    yield
            finally:
                self.diary.note("no_sync", where=line, forwards=self.diary.forwards - forwards,
                                backwards=self.diary.backwards - backwards)
        return quiet

    # ------------------------------------------------------------------------------------------------ a step

    def backward(self, function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            if not self.ours():
                return function(*args, **kwargs)
            self.diary.backwards += 1
            self.diary.enter("backward", where())
            try:
                return function(*args, **kwargs)
            finally:
                self.diary.leave()
        return called

    def clip(self, function):
        @functools.wraps(function)
        def called(parameters, *args, **kwargs):
            parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
            if self.diary.steps < LOOKED_AT:
                found = digest([one.grad for one in parameters if one.grad is not None])
                self.diary.note("clip", where=where(), gradients=found, step=self.diary.steps)
            return function(parameters, *args, **kwargs)
        return called

    def before_step(self, optimizer, _, __):
        """The weights before the first step, and what the optimizer holds."""
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
            held = {id(one) for group in optimizer.param_groups for one in group["params"]}
            self.diary.note("optimizer", where=where(), name=type(optimizer).__name__,
                            rates=[group["lr"] for group in optimizer.param_groups if isinstance(group["lr"], float)])
            for model in self.models.values():
                trained = {name: id(one) for name, one in model.module.named_parameters() if one.requires_grad}
                left = [name for name, one in trained.items() if one not in held]
                if len(left) == len(trained):
                    self.diary.note("foreign", where=where())
                elif left:
                    self.diary.note("left", names=left[:20], where=where())
        for model in self.models.values():
            self.names(model, where())

    def after_step(self, optimizer, _, __):
        if optimizer is self.optimizers[0]:
            self.diary.steps += 1
            self.diary.alive = time.monotonic()
        step = self.diary.steps
        if step & (step - 1) == 0:  # 1, 2, 4, 8, ...
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            self.diary.note("updated", step=step, optimizer=self.optimizers.index(optimizer),
                            digest=digest(parameters), where=where())
        if step == self.steps and optimizer is self.optimizers[0]:
            raise Enough

    # ------------------------------------------------------------------------------------------------ the data

    def loader(self, function):
        @functools.wraps(function)
        def begin(loader):
            if not self.ours():
                return function(loader)
            line, drawn = where(), []
            number = self.loaders.setdefault(line, len(self.loaders))  # many scripts make a new one for each epoch
            self.samplers[id(loader.batch_sampler)] = drawn
            stream = isinstance(loader.dataset, IterableDataset)
            return Watched(function(loader), self, number, line, drawn, stream, loader)
        return begin

    def batches(self, function):
        @functools.wraps(function)
        def begin(sampler):
            drawn = self.samplers.get(id(sampler))
            for batch in function(sampler):
                if drawn is not None and len(drawn) < 10**6:
                    drawn.extend(batch)
                yield batch
        return begin

    def shard(self, function):
        @functools.wraps(function)
        def begin(sampler):
            indices = list(function(sampler))
            self.diary.note("shard", most=6, where=where(), epoch=sampler.epoch, shuffle=sampler.shuffle,
                            images=len(sampler.dataset), total=sampler.total_size, rank=sampler.rank,
                            ranks=sampler.num_replicas, order=zlib.crc32(repr(indices).encode()))
            return iter(indices)
        return begin

    # ------------------------------------------------------------------------------------------------ the end

    def save(self, function):
        @functools.wraps(function)
        def called(obj, f, *args, **kwargs):
            if isinstance(f, str | os.PathLike) and str(f) != os.devnull:
                names = [name for name in nested_names(obj) if name.startswith(("module.", "_orig_mod."))]
                self.diary.note("saved", where=where(), path=str(Path(f).resolve()), host=socket.gethostname(),
                                prefixed=names[:3], step=self.diary.steps)
            return function(obj, f, *args, **kwargs)
        return called

    def load(self, function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            loaded = function(*args, **kwargs)
            if isinstance(loaded, dict) and any(isinstance(part, dict) and "param_groups" in part
                                                for part in loaded.values()):
                self.diary.note("kept_optimizer", where=where())
            return loaded
        return called

    def optimizer_loaded(self, line, *_, **__):
        self.diary.note("loaded_optimizer", where=line)

    def close(self):
        """What only the end shows."""
        if dist.is_available() and dist.is_initialized() and not self.destroyed:
            self.diary.note("not_destroyed", where=(self.diary.facts.get("group") or [{"where": ""}])[-1]["where"])
        self.diary.note("threads", each=torch.get_num_threads(), host=socket.gethostname(),
                        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
        for model in self.models.values():
            device = next((str(one.device) for one in model.parameters()), "none")
            self.diary.note("device", device=device, host=socket.gethostname())


def nested_names(obj, depth=3):
    """The names in a state_dict, or in the dicts of one."""
    if depth and isinstance(obj, dict):
        for name, value in obj.items():
            if isinstance(name, str):
                yield name
            yield from nested_names(value, depth - 1)


class Watched:
    """A DataLoader's iterator, whose passes and waits are noted. All else it leaves to the iterator."""

    def __init__(self, iterator, seams, number, line, drawn, stream, loader):
        self.iterator, self.seams, self.diary, self.line = iterator, seams, seams.diary, line
        self.number, self.drawn, self.stream, self.loader = number, drawn, stream, loader
        self.begin = (self.diary.steps, self.diary.forwards)
        self.batches, self.images, self.labels, self.prints, self.done, self.states = 0, 0, 0.0, [], False, []

    def __getattr__(self, name):
        return getattr(self.iterator, name)

    def __len__(self):
        return len(self.iterator)

    def __iter__(self):
        return self

    def __next__(self):
        before = random_state() if self.batches < LOOKED_AT else None
        self.diary.enter("data", self.line)
        try:
            batch = next(self.iterator)
        except StopIteration:
            self.close(whole=True)
            raise
        finally:
            self.diary.leave()
        if before and self.batches and (states := drawn_from(before)):  # the order is drawn with the first
            self.states.append(states)
        self.batches += 1
        self.images += rows(batch) or 0
        last = (tensors_in(batch) or [None])[-1]  # the labels, in most data sets: nothing random is done to them
        if last is not None and last.device.type == "cpu" and not last.is_complex() and last.numel() < 10**6:
            self.labels += last.sum(dtype=torch.float64).item()
        if self.stream and self.batches <= LOOKED_AT:
            raw = b"".join(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()[:2**18]
                           for tensor in tensors_in(batch)[:1] if tensor.dim())
            self.prints.append(zlib.crc32(raw))
        return batch

    def __del__(self):
        if not self.done:
            self.close(whole=False)

    def close(self, whole):
        self.done = True
        sampler = self.loader.sampler if self.loader.batch_sampler is not None else None
        kept = [one for one in self.diary.facts.get("pass", []) if one["loader"] == self.number]
        fact = {"loader": self.number, "where": self.line, "whole": whole, "batches": self.batches,
                "images": self.images, "labels": self.labels, "prints": self.prints,
                "trained": self.diary.steps > self.begin[0],
                "step": self.begin[0], "number": self.diary.passes, "of": None, "order": None, "indices": None,
                "shuffles": isinstance(sampler, RandomSampler) or bool(getattr(sampler, "shuffle", False)),
                "batch": self.loader.batch_size, "sampler": type(sampler).__name__}
        if self.drawn and not self.stream:
            fact["of"] = len(self.loader.dataset)
            fact["order"] = zlib.crc32(repr(self.drawn).encode())
            if len(kept) < 2 and all(isinstance(index, int) for index in self.drawn):
                fact["indices"] = [in_the_whole(self.loader.dataset, index) for index in self.drawn]
        if self.states:
            self.diary.note("drawn", what="the data", where=self.line, states=self.states[0], step=self.begin[0])
        self.diary.passes += 1
        self.diary.note("pass", most=2000, **fact)
