"""Hooks on torch's public functions. Each writes into the log what the script does, and changes nothing of it."""

import functools
import hashlib
import inspect
import itertools
import math
import os
import pickle
import random
import socket
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms import Join
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Subset
from torch.utils.weak import WeakIdKeyDictionary

from .log import TORCH, Log, users, where

COLLECTIVES = ["all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
               "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
               "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
               "scatter_object_list"]
LOSSES = ["cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
          "binary_cross_entropy", "binary_cross_entropy_with_logits"]
FIRST = 8  # steps in which what changes little is looked at: random numbers, gradients, names; later at powers of two
MOST = 1_000_000  # samples whose place is kept; later ones are not compared
CONTENTS = 256  # samples of each pass whose content is looked at, to the end of their batch
ROW = 256  # numbers of a sample that its digest takes
BATCHNORM = nn.modules.batchnorm._BatchNorm
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # {bytes of a number: as an integer}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Enough(BaseException):
    """--steps have been made."""


def looks(method: Callable) -> Callable:
    """Decorates a method that notes something: its errors never reach the script, and torch compiles none of it."""
    @functools.wraps(method)
    def guarded(self: "Hooks", *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self.ours():
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.log.once("failed", what=method.__name__, error=f"{type(error).__name__}: {error}"[:200])
            return None
    return guarded


# ---------------------------------------------------------------------------------------------------- what is looked at


def digest(tensors: Iterable[Tensor]) -> list[float] | None:
    """[sum, norm] of all numbers: equal on ranks that hold the same. None where a tensor is sparse, is a part of a
    larger one, or has no values yet, and while a CUDA graph is captured."""
    tensors = list(tensors)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return None
    if any(nn.parameter.is_lazy(tensor) or hasattr(tensor, "full_tensor") or tensor.is_meta or tensor.is_quantized
           or tensor.is_sparse for tensor in tensors):
        return None
    tensors = [tensor.detach() for tensor in tensors if not tensor.is_complex() and tensor.numel()]
    if not tensors:
        return [0.0, 0.0]
    # The memory of fully sharded weights is given back between two uses: to read it then would end the process.
    if not all(tensor.untyped_storage().nbytes() for tensor in tensors):
        return None
    exact = torch.float32 if any(tensor.device.type == "mps" for tensor in tensors) else torch.float64
    sums = torch.stack([tensor.sum(dtype=exact).cpu() for tensor in tensors]).tolist()
    norms = torch.stack([torch.linalg.vector_norm(tensor if tensor.is_floating_point() else tensor.to(exact),
                                                  dtype=exact).cpu() for tensor in tensors]).tolist()
    return [sum(sums), math.hypot(*norms)]


def shared(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that all ranks hold alike: not the experts of a rank, nor an average of weights beside DDP."""
    models = [part.module for part in module.modules() if isinstance(part, DistributedDataParallel)] or [module]
    return [parameter for model in models for name, parameter in model.named_parameters()
            if name not in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]


def buffers(module: nn.Module) -> list[Tensor]:
    """Those that a forward in training reads: not BatchNorm's statistics."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return [buffer for name, buffer in module.named_buffers() if buffer.is_floating_point() and name not in ignored
            and not name.endswith(STATISTICS)]


def shapes(tensors: Iterable[Tensor]) -> int:
    """A checksum of the shapes: it tells models of one form from those of another."""
    return checksum([None if nn.parameter.is_lazy(tensor) else tuple(tensor.shape) for tensor in tensors])


def checksum(values: Any) -> int:
    return zlib.crc32(repr(values).encode())


def random_state() -> dict[str, str]:
    """{whose: a digest of the state that gives the next random numbers}."""
    states: dict[str, Any] = {"torch": torch.get_rng_state().numpy(), "random": random.getstate()}
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        states["cuda"] = torch.cuda.get_rng_state().numpy()
    if "numpy.random" in sys.modules:
        states["numpy"] = sys.modules["numpy.random"].get_state()
    return {whose: hashlib.md5(pickle.dumps(state)).hexdigest()[:12] for whose, state in states.items()}


def drawn_from(before: dict[str, str]) -> dict[str, str]:
    """The states among `before` from which numbers have been drawn since."""
    now = random_state()
    return {whose: state for whose, state in before.items() if state != now[whose]}


def tensors_in(batch: Any) -> list[Tensor]:
    if torch.is_tensor(batch):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else []
    return [tensor for part in parts for tensor in tensors_in(part)]


@functools.cache
def factors(length: int) -> Tensor:
    return torch.arange(1, 2 * length, 2) * 2654435761


def contents(batch: Any) -> list[int]:
    """A number for each sample of a batch, the same for the same content. [] where there is no tensor on the CPU."""
    total = None
    for tensor in tensors_in(batch):
        if tensor.dim() and tensor.numel() and tensor.device.type == "cpu" and not tensor.is_complex() and (
                tensor.dtype.itemsize in WORDS and (total is None or len(tensor) == len(total))):
            own = tensor.detach()
            if own.dtype != torch.bool:
                own = own.view(WORDS[own.dtype.itemsize])
            if own.dim() > 1:
                rows = own.reshape(len(own), -1)
                rows = rows[:, ::max(1, rows.shape[1] // ROW)].to(torch.int64)
                own = rows @ factors(rows.shape[1])
            own = own.to(torch.int64)
            total = own if total is None else total * 31 + own
    return [] if total is None else (total % (2**53 - 111)).tolist()


def whole(dataset: Any) -> Any:
    """The data set that a Subset, or a Subset of a Subset, was taken from."""
    return whole(dataset.dataset) if isinstance(dataset, Subset) else dataset


def in_the_whole(dataset: Any, index: int) -> int:
    """The index in the whole data set of a sample of a Subset."""
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    return int(index)


def rows(batch: Any) -> int | None:
    """How many samples a batch has; None where it has no tensor that says it."""
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), None)


def power_of_two(number: int) -> bool:
    return number & (number - 1) == 0  # 0, too


def looked_at(number: int) -> bool:
    return number < FIRST or power_of_two(number)


def nested_names(obj: Any, depth: int = 3) -> Iterator[str]:
    """The names in a state_dict, or in the dicts of one."""
    if depth and isinstance(obj, dict):
        for name, value in obj.items():
            if isinstance(name, str):
                yield name
            yield from nested_names(value, depth - 1)


# ------------------------------------------------------------------------------------------------------------ the hooks


class Hooks:
    """Puts the hooks into this process. After `steps` updates of the weights the script is ended by Enough. `met` is
    called when a process group was made."""

    def __init__(self, log: Log, steps: int | None, met: Callable[[], None]):
        self.log, self.steps, self.met, self.pid = log, steps, met, os.getpid()
        self.models: WeakKeyDictionary = WeakKeyDictionary()  # {DDP: its Wrapped}
        self.all_wrapped: list[Wrapped] = []  # the Wrapped of models that have gone, too
        self.lineage = 0  # trainings so far: a new model begins one, unless it was loaded from one of this run
        self.loads: set = set()  # digests of weights that were loaded
        self.resumed: WeakSet = WeakSet()  # modules that were given weights which nobody was given before
        self.outermost: WeakKeyDictionary = WeakKeyDictionary()  # modules called in training from outside any, in order
        self.with_gradient: WeakSet = WeakSet()  # those among them that have had one
        self.within = self.depth = 0  # forwards of DDP and of any module under way
        self.optimizers: WeakKeyDictionary = WeakKeyDictionary()  # {optimizer: its steps}
        self.held: set = set()  # numbers of the parameters that optimizers hold
        self.left: WeakKeyDictionary = WeakKeyDictionary()  # {optimizer: what is known of its gradients}
        self.samplers: dict[int, array] = {}  # {id of a BatchSampler: what it drew}
        self.numbers, self.number = WeakIdKeyDictionary(), itertools.count()  # {data set or parameter: its number}
        self.judged = 0  # forwards in evaluation
        self.called = 0  # forwards of any outermost module
        self.left_on: str | None = None  # the line of a forward without gradients, in training mode, in this pass
        self.shown = 0  # samples that went through the model in training, DDP's where there is one
        self.seen: set = set()
        self.kept = 0  # samples whose place is kept, at most MOST
        self.raw: str | None = None
        self.before_forward: dict | None = None
        self.ready: float | None = None
        self.closing: int | None = None
        self.updated = False  # since the last backward
        self.stepped: WeakSet = WeakSet()  # optimizers that have made a step since the last backward
        self.forwarded = False  # in training, since the last backward
        self.synchronises = True  # the backward of DDP's last forward
        self.scaled = 1.0  # the gradients, by a GradScaler
        self.fed: dict | None = None  # the random state after the last batch was read
        self.graphs: dict = {}  # {graph of a tensor that a collective took since the last backward: (it, list, call)}
        self.summed: list = []  # [(a gradient that was all-reduced, its digest then)] since the last update
        self.unfinished: dict = {}  # {id: (work of a collective that nobody has waited for, its name, its line)}
        self.reading: WeakSet = WeakSet()  # passes under way
        self.tests: WeakKeyDictionary = WeakKeyDictionary()  # {a model that was evaluated: after which steps}
        self.modes: WeakKeyDictionary = WeakKeyDictionary()  # {a model: its parts' modes, when last noted}
        self.mode_was: dict | None = None  # of the last forward with gradients
        self.fresh = True  # something else than training has happened since the last forward in training
        self.evaluated = self.told_at = ""  # the lines of the last eval() and set_epoch()
        self.schedules: WeakKeyDictionary = WeakKeyDictionary()  # {scheduler: what is known of its steps}
        self.factors: dict[str, float] = {}  # {line of a loss: the sum of the gradients that reached it}
        self.install()

    def install(self) -> None:
        for name in COLLECTIVES:
            setattr(dist, name, self.collective(name, getattr(dist, name)))
        for name in LOSSES:
            setattr(nn.functional, name, self.loss(getattr(nn.functional, name)))
        ddp, scaler, schedule = DistributedDataParallel, torch.amp.GradScaler, lr_scheduler.LRScheduler
        for owner, name, look in [
                *((dist, name, self.in_pairs) for name in ("send", "recv", "batch_isend_irecv")),
                (dist, "destroy_process_group", self.last_look), (ddp, "__init__", self.wrapping),
                (ddp, "register_comm_hook", self.noting("hooked")), (Join, "__enter__", self.noting("joined")),
                (Optimizer, "load_state_dict", self.noting("loaded_optimizer")),
                *((dist.Work, name, self.waited_for) for name in ("wait", "is_completed", "get_future", "synchronize",
                                                                  "block_current_stream")),
                (schedule, "__init__", self.scheduled), (lr_scheduler.ReduceLROnPlateau, "__init__", self.scheduled),
                (nn.utils, "clip_grad_norm_", self.clipping), (scaler, "scale", self.scaling),
                (scaler, "unscale_", self.unscaling), (scaler, "update", self.unscaling),
                (scaler, "step", self.settled), (nn.Module, "eval", self.evaluating), (torch, "save", self.saving),
                (DistributedSampler, "set_epoch", self.told),
                *((kind, "step", self.rescheduled) for kind in vars(lr_scheduler).values()
                  if isinstance(kind, type) and issubclass(kind, schedule) and "step" in vars(kind))]:
            setattr(owner, name, self.before(getattr(owner, name), look))
        for owner, name, hook in [
                (dist, "init_process_group", self.after(dist.init_process_group, self.group_begun)),
                (ddp, "__init__", self.after(ddp.__init__, self.wrapped, "DDP")),
                (ddp, "forward", self.direct(ddp.forward)), (ddp, "no_sync", self.no_sync(ddp.no_sync)),
                (nn.Module, "load_state_dict", self.after(nn.Module.load_state_dict, self.weights_loaded)),
                (torch, "load", self.after(torch.load, self.loaded)),
                (torch.autograd, "backward", self.backward(torch.autograd.backward)),  # Tensor.backward calls it
                (DataLoader, "__iter__", self.loader(DataLoader.__iter__)),
                (BatchSampler, "__iter__", self.batches(BatchSampler.__iter__)),
                (DistributedSampler, "__iter__", self.shard(DistributedSampler.__iter__))]:
            setattr(owner, name, hook)
        register_module_forward_pre_hook(self.any_begins)
        register_module_forward_hook(self.any_ends, always_call=True)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.step_made)
        sys.addaudithook(self.heard)

    def ours(self) -> bool:
        """Is this the main thread, or the thread that closes? Nothing of others is noted, nor of forked processes."""
        return threading.get_ident() in (self.log.main, self.closing) and os.getpid() == self.pid

    def after(self, function: Callable, then: Callable, name: str = "") -> Callable:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            line = where()
            with self.log.during(name or function.__name__, line):
                result = function(*args, **kwargs)
            then(line, result, *args, **kwargs)
            return result
        return called

    def before(self, function: Callable, look: Callable) -> Callable:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            given = [list(value) if inspect.isgenerator(value) else value for value in args]  # else read only once
            kwargs = {name: list(value) if inspect.isgenerator(value) else value for name, value in kwargs.items()}
            look(*given, **kwargs)
            return function(*given, **kwargs)
        return called

    def noting(self, kind: str) -> Callable:
        """A look that notes the call, and nothing of it."""
        def look(self: Hooks, *_: Any, **__: Any) -> None:
            self.log.once(kind, where=where(), backwards=self.log.backwards)
        look.__name__ = kind  # the report names the looks that fail
        return functools.partial(looks(look), self)

    # -------------------------------------------------------------------------------------------------- collectives

    def collective(self, name: str, function: Callable) -> Callable:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.ours() or sys._getframe(1).f_code.co_filename.startswith(
                    TORCH):  # within another collective, Join, ...
                return function(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            if dist.get_world_size(given.get("group")) != dist.get_world_size():  # by a part of the ranks
                self.in_pairs()
                return function(*args, **kwargs)
            line = where()
            sent = next(filter(torch.is_tensor, reversed(given.values())), None)
            self.talked(name, line, sent, given)
            self.cut_off(name, line, given)
            with self.log.during(name, line):
                result = function(*args, **kwargs)
            if name == "all_reduce" and given.get("op", dist.ReduceOp.SUM) == dist.ReduceOp.SUM:
                self.added_up(sent, line)
            if given.get("async_op") and len(self.unfinished) < 100:
                self.unfinished[id(result)] = (result, name, line)
            return result
        return called

    @looks
    def talked(self, name: str, line: str, sent: Tensor | None, given: dict[str, Any]) -> None:
        self.log.calls += 1
        self.log.sync(name, line, numbers=-1 if sent is None else sent.numel(), type="" if sent is None else str(
            sent.dtype).removeprefix("torch."))
        if sent is not None:
            few = sent.numel() <= 8 and sent.device.type == "cpu" and not sent.is_complex()
            values = sent.flatten().tolist() if few else None
            fraction = bool(values and len(values) == 1 and sent.is_floating_point() and values[0] % 1 != 0)
            self.log.note("talk", what=name, where=line, numbers=sent.numel(), values=values, fraction=fraction,
                          within=bool(self.log.inside), passes=self.log.passes, backwards=self.log.backwards,
                          updated=self.updated)
        for outputs in [value for value in given.values() if isinstance(value, list)]:
            places = [one.data_ptr() for one in outputs if torch.is_tensor(one) and one.numel()]
            if len(set(places)) < len(places):
                self.log.once("aliased", what=name, where=line, tensors=len(places), distinct=len(set(places)))
        self.log.flush()  # gloo may abort the process at any moment

    @looks
    def in_pairs(self, *_: Any, **__: Any) -> None:
        self.log.once("in_pairs")
        self.log.flush()

    @looks
    def waited_for(self, work: Any, *_: Any, **__: Any) -> None:
        self.unfinished.pop(id(work), None)

    @looks
    def added_up(self, gradient: Tensor, line: str) -> None:
        """Note a gradient that an all-reduce has just summed: something must divide it before the update."""
        if 0 < self.log.backwards <= FIRST and not self.updated and dist.get_world_size() > 1:
            self.summed.append((gradient, digest([gradient]), line))

    def undivided(self, gradients: list[Tensor | None]) -> None:
        """Note gradients that are clipped, or used by an update, as an all-reduce has left them."""
        ids = set(map(id, gradients))
        for gradient, before, line in self.summed:
            if id(gradient) in ids and before and before[1] and digest([gradient]) == before:
                self.log.once("summed", where=line, ranks=dist.get_world_size())
                break
        self.summed.clear()

    @looks
    def cut_off(self, name: str, line: str, given: dict[str, Any]) -> None:
        """Remember tensors with a graph behind them that go through a collective, perhaps on their way to the loss."""
        if self.forwarded and torch.is_grad_enabled() and self.log.backwards < FIRST:
            call = {"what": name, "where": line}
            self.graphs |= {tensor.grad_fn: (tensor, given.get("tensor_list"), call)
                            for tensor in tensors_in(list(given.values())) if tensor.grad_fn}

    @looks
    def losses(self, tensors: Any, *_: Any, **__: Any) -> None:
        """Note a collective that took a part of these losses' graphs. A figure for the log is none."""
        nodes: list[Any] = [tensor.grad_fn for tensor in tensors_in(tensors)] if self.graphs else []
        seen: set[Any] = {None}
        while nodes:
            if (node := nodes.pop()) not in seen:
                seen.add(node)
                nodes += [further for further, _ in node.next_functions]
        for node, (own, parts, call) in self.graphs.items():
            put_back = isinstance(parts, list) and any(part is own for part in parts)  # into its place, with its graph
            if node in seen and not put_back:
                self.log.once("cut_off", **call)
        self.graphs = {}

    @looks
    def group_begun(self, line: str, *_: Any, **__: Any) -> None:
        own = users(sys._getframe(3))  # nearer are looks() and after()
        self.log.note("group", where=line, ranks=dist.get_world_size(), own=own)
        self.met()

    # ---------------------------------------------------------------------------------------------------- the model

    @looks
    def wrapping(self, _: Any, module: nn.Module, *__: Any, **___: Any) -> None:
        self.log.note("wraps", most=4, where=where(), shapes={
            name: list(parameter.shape) for name, parameter in module.named_parameters()
            if not nn.parameter.is_lazy(parameter)})
        if any(isinstance(part, DistributedDataParallel) for part in module.modules()):
            self.log.once("twice", where=where())
        self.log.flush()

    @looks
    def wrapped(self, line: str, _: Any, model: DistributedDataParallel, *__: Any, **___: Any) -> None:
        self.models[model] = wrapped = Wrapped(model, self.number_of)
        self.all_wrapped.append(wrapped)
        self.lineage += model.module not in self.resumed
        self.log.note("wrapped", where=line, ranks=dist.get_world_size(model.process_group))
        if any(isinstance(part, BATCHNORM) and not isinstance(part, nn.SyncBatchNorm) for part in model.modules()):
            self.log.once("batchnorm", where=line)
        first = next((parameter for parameter in model.module.parameters() if parameter.requires_grad), None)
        if first is not None and not nn.parameter.is_lazy(first):
            first.register_post_accumulate_grad_hook(self.last_is_ready)

    def last_is_ready(self, _: Tensor) -> None:
        """Backward ends with the first layer. The time after it is the all-reduce, and the wait for slower ranks."""
        self.ready = time.monotonic()

    def inner(self, module: nn.Module) -> bool:
        """Is this a module within one that was looked at? There are many, so this is all that they cost."""
        return (self.depth > 1 and (self.within > 0 or not self.models) and threading.get_ident() == self.log.main
                and not isinstance(module, DistributedDataParallel))

    def any_begins(self, module: nn.Module, given: Any) -> None:
        if self.inner(module):
            self.depth += 1
        else:
            self.module_begins(module, given)

    def any_ends(self, module: nn.Module, *_: Any) -> None:
        if self.depth > 2 and self.inner(module):
            self.depth -= 1
        else:
            self.module_ends(module)

    @looks
    def module_begins(self, module: nn.Module, given: Any) -> None:
        self.depth += 1
        ddp = isinstance(module, DistributedDataParallel)
        self.within += ddp
        outermost = not ddp and self.depth == 1 + bool(self.within)  # below DDP, which may first send buffers
        self.called += self.depth == 1
        training = module.training and torch.is_grad_enabled()
        if ddp and not training:
            self.log.sync("a forward of DDP in evaluation", where())
        self.judged += self.depth == 1 and not module.training
        self.fresh |= self.depth == 1 and not training
        if outermost and not torch.is_grad_enabled() and self.log.steps:
            self.tested(module)
        if outermost and torch.is_grad_enabled() and not self.log.inside and (
                self.fresh or looked_at(self.log.steps)):
            self.mode(module)
        if not training or self.log.inside:  # inside backward: recomputed
            return
        if self.depth == 1 and next(module.parameters(), None) is not None:
            self.log.alive = time.monotonic()
            self.forwarded = True
            if dist.is_initialized() and not self.log.counts.get("group"):  # made by a device mesh, say
                self.group_begun(where(), None)
            self.outermost.pop(module, None)
            self.outermost[module] = True
            if power_of_two(self.log.backwards):
                self.weights(module, where())
        if ddp or self.depth == 1 and not self.models:
            samples = rows(given)
            self.shown += 10**9 if samples is None else samples  # where the samples cannot be seen
            if self.fed and (states := drawn_from(self.fed)):
                states.pop("random", None)  # a coin that all ranks toss alike, often on purpose
                self.log.note("drawn", what="the loop", where=where(), states=states, step=self.log.steps)
            self.fed = None
        if isinstance(module, DistributedDataParallel):
            self.raw = None
            if self.synchronises:
                self.names(module)
            self.synchronises = bool(module.require_backward_grad_sync)
            if not self.log.counts.get("device"):
                self.device(next(module.parameters()).device)
            self.log.forwards += 1
            self.log.sync("a forward of DDP", where())
            if self.log.steps < FIRST or module.modules_buffers or self.log.counts.get("joined"):
                self.log.flush()  # it sends: to build its buckets, buffers, or within Join
            self.before_forward = random_state() if looked_at(self.log.forwards) else None
        elif not self.within and not self.raw and any(module in wrapped.parts for wrapped in self.models.values()):
            self.raw = where()

    def tested(self, module: nn.Module) -> None:
        """A forward without gradients, after some updates."""
        steps = self.log.steps
        if not module.training:
            known = self.tests.setdefault(module, set())
            if steps not in known and len(known) < FIRST:
                known.add(steps)
                self.log.note("tested", where=where(), step=steps, form=shapes(module.parameters()),
                              weights=digest(shared(module)), passes=len(self.reading),
                              buffers=digest([buffer for buffer in module.buffers() if buffer.is_floating_point()]))
            return
        active = [part for part in module.modules() if part.training and (
            isinstance(part, BATCHNORM) or isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0)]
        if any(getattr(part, "momentum", 0) is None for part in active):
            self.left_on = ""  # on purpose: update_bn() averages BatchNorm's statistics over all batches
        elif active and (module in self.with_gradient or any(module in wrapped.parts for wrapped in self.all_wrapped)):
            self.left_on = where()

    def mode(self, module: nn.Module) -> None:
        """Note which parts of a model are in evaluation in a forward in training, which parameters are frozen, and
        what its buffers hold."""
        self.fresh = not module.training  # an evaluation, perhaps
        names = [name or "the model" for name, part in module.named_modules() if not part.training]
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        held, self.mode_was = buffers(module), None
        if (known := (names, frozen)) != self.modes.get(module):
            self.modes[module] = known
            self.mode_was = {"form": shapes(module.parameters()), "step": self.log.steps, "off": names[:20],
                             "frozen": frozen[:20], "where": self.evaluated if names else where()}
        if held and looked_at(self.log.steps):
            self.log.note("buffers", most=100, form=shapes(module.parameters()), step=self.log.steps, where=where(),
                          digest=digest(held), names=[name for name, one in module.named_buffers() if any(
                              one is buffer for buffer in held)][:4], weights=digest(shared(module)))

    @looks
    def evaluating(self, *_: Any) -> None:
        self.evaluated = where()

    def direct(self, function: Callable) -> Callable:
        """DDP's forward: where a script calls it by its name, torch calls no hook."""
        @functools.wraps(function)
        def forward(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self.within:
                return function(model, *args, **kwargs)
            self.module_begins(model, args)
            try:
                return function(model, *args, **kwargs)
            finally:
                self.module_ends(model)
        return forward

    @looks
    def module_ends(self, module: nn.Module, *_: Any) -> None:
        self.depth -= 1
        if isinstance(module, DistributedDataParallel):
            self.within -= 1
            if self.before_forward and (states := drawn_from(self.before_forward)):
                self.log.note("drawn", what="the model's forward", where=where(), states=states, step=self.log.steps)
            self.before_forward = None

    def device(self, device: torch.device) -> None:
        """Note where the first model is. Each process may have numbers of its own for the GPUs."""
        gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
        self.log.note("device", device=str(device), gpu=str(getattr(gpu, "uuid", device)), host=socket.gethostname(),
                      visible=torch.cuda.device_count())

    def weights(self, module: nn.Module, line: str, last: bool = False) -> None:
        """A digest of the weights, once between two backwards, for each form of model, under DDP or not."""
        parameters = list(module.parameters())
        together = any(isinstance(part, DistributedDataParallel) or part in wrapped.parts
                       for part in module.modules() for wrapped in self.all_wrapped)
        form = shapes(parameters), together
        if (self.log.backwards, form) not in self.seen:
            self.seen.add((self.log.backwards, form))
            kinds = {type(part).__name__ for part in module.modules()}
            now = None if "FullyShardedDataParallel" in kinds else digest(shared(module))
            self.log.note("weights", after=self.log.backwards, form=form[0], where=line, last=last, digest=now,
                          together=together, wrapped=bool(self.all_wrapped), updates=self.log.steps,
                          sharded=any(kind.startswith(("FSDP", "FullySharded")) for kind in kinds),
                          numbers=sum(one.numel() for one in parameters
                                      if one.requires_grad and not nn.parameter.is_lazy(one)))

    def names(self, model: DistributedDataParallel) -> None:
        """Note parameters that have no gradient while others have one, and those that were frozen after wrapping."""
        if self.log.forwards > FIRST + 1:
            return
        parameters, known = dict(model.module.named_parameters()), self.models[model]
        frozen = [name for name in known.trained if name in parameters and not parameters[name].requires_grad]
        # A whole model is frozen on purpose, as in a GAN; so is a part of it where DDP looks for what is unused.
        if 0 < len(frozen) < len(known.trained) and not known.expects_unused:
            self.log.once("frozen", names=frozen[:20])
        got = {name for name, parameter in parameters.items() if parameter.grad is not None}
        without = [name for name, parameter in parameters.items() if parameter.requires_grad and name not in got]
        if without and got and not known.expects_unused:
            self.log.note("without", names=without[:20], where=where())
        known.got |= got

    def no_sync(self, function: Callable) -> Callable:
        @functools.wraps(function)
        @contextmanager
        def quiet(model: DistributedDataParallel) -> Iterator[None]:
            line, forwards, backwards = where(), self.log.forwards, self.log.backwards
            try:
                with function(model):
                    yield
            finally:
                self.log.note("no_sync", most=100, where=line, forwards=self.log.forwards - forwards,
                              backwards=self.log.backwards - backwards)
        return quiet

    # ------------------------------------------------------------------------------------------------------- a step

    def loss(self, function: Callable) -> Callable:
        """A loss of torch's: note the gradients that reach what it returns, in the first updates."""
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self.log.steps < FIRST and torch.is_tensor(result) and result.requires_grad and self.ours() and (
                    not torch.compiler.is_compiling()):
                line, many = where(), kwargs.get("reduction") == "sum" and rows(args)
                result.register_hook(lambda gradient: self.reached(line, gradient, many or 1))
            return result
        return called

    @looks
    def reached(self, line: str, gradient: Tensor, times: int) -> None:
        self.factors[line] = self.factors.get(line, 0) + times * float(gradient.sum()) / self.scaled

    def backward(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.ours():
                return function(*args, **kwargs)
            line = where()
            self.backward_begins(line)
            self.losses(*args, **kwargs)
            self.left_over()
            with self.log.during("backward", line):
                result = function(*args, **kwargs)
                if self.ready:
                    tail = self.log.seconds.get("tail", 0)
                    self.log.seconds["tail"] = tail + time.monotonic() - self.ready
                self.left_over()
            self.trained()
            return result
        return called

    @looks
    def backward_begins(self, line: str) -> None:
        if self.raw:
            self.log.once("raw", where=self.raw)
        self.log.backwards += 1
        if self.mode_was:  # else it was an evaluation
            self.log.note("mode", **self.mode_was)
        self.mode_was = None
        self.log.sync("backward", line)
        self.log.flush()  # DDP talks in it
        if self.log.backwards > FIRST:
            self.summed.clear()  # no optimizer of torch's may ever look at them
        self.ready, self.updated, self.forwarded, self.stepped = None, False, False, WeakSet()

    def gradients(self, optimizer: Optimizer) -> tuple[list, list[float] | None]:
        """(the numbers of the gradients that an optimizer has, a digest of them)"""
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]
                     if parameter.grad is not None]
        return [self.number_of(gradient) for gradient in gradients], digest(gradients)

    @looks
    def left_over(self) -> None:
        """Note to which optimizer's gradients a backward adds. A change outside a backward empties or sets them."""
        if not self.left:
            return
        for optimizer, left in list(self.left.items()):
            now = self.gradients(optimizer)
            if self.log.backwards > left["until"] or now != left["now"] and not self.log.inside:
                del self.left[optimizer]
            elif now != left["now"]:
                left["now"] = now
                left["added"].add(self.optimizers[optimizer])

    def not_emptied(self, optimizer: Optimizer) -> None:
        """Note an optimizer that has twice used gradients of its update before, to which a backward had added."""
        if self.optimizers[optimizer] == 1 or optimizer in self.left:
            numbers, look = now = self.gradients(optimizer)
            left = self.left.pop(optimizer, {"now": now, "added": set(), "until": self.log.backwards + 64})
            if left["now"][0] != numbers or not look or not look[1] or self.log.inside:
                return  # they were set by hand, were emptied by the update, or it was made within a backward
            if len(left["added"]) == 2:
                self.log.once("not_emptied", where=where())
            else:
                self.left[optimizer] = left | {"now": now}

    @looks
    def trained(self) -> None:
        """Note the models that get gradients. Others may differ on the ranks."""
        if len(self.outermost) == len(self.with_gradient):
            return
        for module in set(self.outermost) - set(self.with_gradient):
            parameters = list(module.parameters())
            if any(parameter.grad is not None for parameter in parameters):
                self.with_gradient.add(module)
                self.log.once("trained", form=shapes(parameters))

    @looks
    def scaling(self, scaler: Any, _: Any) -> None:
        if self.log.steps < FIRST:  # get_scale() waits for the GPU
            self.scaled = scaler.get_scale() if scaler.is_enabled() else 1

    @looks
    def unscaling(self, *_: Any, **__: Any) -> None:
        self.scaled = 1

    @looks
    def settled(self, *_: Any, **__: Any) -> None:
        """An update, for the schedules. A GradScaler may leave it out: it counts all the same."""
        for known in self.schedules.values():
            known["since"] = 0

    @looks
    def clipping(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        if self.log.steps < FIRST:
            parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
            parameters = [parameter for parameter in parameters if parameter.grad is not None]
            self.undivided([parameter.grad for parameter in parameters])
            own = {id(parameter) for model in self.models for parameter in model.parameters()} - {
                id(parameter) for model in self.models for parameter in shared(model)}
            gradients = [parameter.grad for parameter in parameters if id(parameter) not in own]
            self.log.note("clip", where=where(), gradients=digest(gradients), form=shapes(gradients),
                          step=self.log.steps, scaled=self.scaled > 100 * max_norm)

    @looks
    def before_step(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        """Note the parameters that an optimizer holds, before its first step, and its settings when they change."""
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if optimizer not in self.optimizers:
            self.optimizers[optimizer] = 0
            self.held.update(map(self.number_of, held))
            self.log.note("optimizer", where=where(), idle=all(parameter.grad is None for parameter in held),
                          rates=[group["lr"] for group in optimizer.param_groups if isinstance(group["lr"], float)])
        settings = [(name, value) for group in optimizer.param_groups for name, value in group.items()
                    if isinstance(value, int | float | tuple)]
        count, line = self.optimizers[optimizer], where()
        if self.modes.get(optimizer) != settings:
            self.modes[optimizer] = settings
            self.log.note("settings", optimizer=self.number_of(optimizer), update=count, form=shapes(held),
                          values=[f"{name}={value}" for name, value in settings], where=line)
        self.log.sync("an update", line)
        if self.models and not self.synchronises:
            self.log.once("unsynchronised", where=line)
        if self.summed:
            self.undivided([part.grad for part in held])
        if looked_at(count):
            gradients = [part.grad for part in held if part.grad is not None]
            self.log.note("update", optimizer=self.number_of(optimizer), update=count, form=shapes(held), where=line,
                          gradients=digest(gradients) if gradients else None, backwards=self.log.backwards)
        for model in self.models:
            self.names(model)
        for name, factor in self.factors.items():
            self.log.note("factor", where=name, value=factor)
        self.factors = {}

    def step_made(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self.after_step(optimizer)
        if self.steps and self.ours() and self.log.steps >= self.steps:
            raise Enough

    @looks
    def after_step(self, optimizer: Optimizer) -> None:
        self.updated = True
        self.settled()
        self.optimizers[optimizer] += 1
        self.not_emptied(optimizer)
        if not self.stepped or optimizer in self.stepped:  # several optimizers after one backward make one update
            self.log.steps, self.stepped = self.log.steps + 1, WeakSet()
        self.stepped.add(optimizer)
        self.log.alive = time.monotonic()

    # ----------------------------------------------------------------------------------------------------- schedules

    @looks
    def scheduled(self, scheduler: Any, *_: Any, **__: Any) -> None:
        self.schedules[scheduler] = {"where": where(), "since": 0, "extra": 0, "steps": 0, "line": "", "times": 0}

    @looks
    def rescheduled(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """A step of a schedule. Is it the second since an update?"""
        if (known := self.schedules.get(scheduler)) and self.log.steps:
            known["steps"] += 1
            known["since"] += 1
            if known["since"] > 1:
                known |= {"extra": known["extra"] + 1, "line": where(), "times": max(known["times"],
                                                                                     known["since"])}

    # ------------------------------------------------------------------------------------------------------ the data

    def loader(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def begin(loader: DataLoader) -> Any:
            if not self.ours():
                return function(loader)
            watched = Watched(self, loader, where())  # first: workers draw their batches at once
            self.reading.add(watched)
            self.fresh = True
            if loader.num_workers:
                self.workers(loader, watched.line)
            with self.log.during("data", watched.line):
                watched.iterator = function(loader)
            return watched
        return begin

    @looks
    def workers(self, loader: DataLoader, line: str) -> None:
        """Note the random state from which the workers' seeds are drawn."""
        state = loader.generator.get_state() if loader.generator else torch.get_rng_state()
        self.log.note("workers", most=1, where=line, state=checksum(state.tolist()))

    def batches(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def begin(sampler: BatchSampler) -> Iterator:
            drawn = self.samplers.get(id(sampler))
            for batch in function(sampler):
                if drawn is not None and len(drawn) < MOST:
                    with suppress(TypeError):  # no numbers
                        drawn.extend(batch)
                yield batch
        return begin

    def shard(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def begin(sampler: DistributedSampler) -> Iterator:
            indices = list(function(sampler))
            self.sharded(sampler, checksum(indices))
            return iter(indices)
        return begin

    @looks
    def told(self, *_: Any, **__: Any) -> None:
        self.told_at = where()

    @looks
    def sharded(self, sampler: Any, order: int) -> None:
        self.log.note("shard", most=6, where=where(), shuffle=sampler.shuffle, images=len(sampler.dataset),
                      total=sampler.total_size, ranks=sampler.num_replicas, order=order)

    @looks
    def batch_read(self, watched: "Watched", batch: Any, before: dict | None) -> None:
        if before and (states := drawn_from(before)):
            watched.states = watched.states or states
        self.fed = random_state() if watched.batches < FIRST and looked_at(self.log.passes) or (
            power_of_two(self.log.steps)) else None
        watched.batches += 1
        watched.images += rows(batch) or 0
        tensors = tensors_in(batch)
        watched.unused_before(self.called, self.log.backwards, tensors)
        labels = tensors[-1] if tensors else None  # in most data sets: nothing random is done to them
        if labels is not None and labels.dim() and labels.numel() < MOST // 100 and (
                watched.classes is not None and len(watched.classes) < MOST):
            watched.numbered = labels.dim() == 1 and labels.dtype in (torch.int64, torch.int32)
            if watched.numbered or watched.batches <= FIRST:
                watched.classes.extend(labels.tolist() if watched.numbered else contents(labels))
        else:
            watched.classes = None
        if len(watched.kept) < CONTENTS:
            watched.kept.extend(contents(batch))

    def number_of(self, thing: Any) -> int | None:
        """The same for the same data set or parameter, and never another one's, as an id() may be."""
        try:
            return self.numbers.setdefault(thing, next(self.number))
        except TypeError:  # a list, say
            return None

    @looks
    def passed(self, watched: "Watched", to_its_end: bool) -> None:
        """A pass over a DataLoader has ended."""
        loader, drawn = watched.loader, watched.drawn
        if self.samplers.get(id(loader.batch_sampler)) is drawn:
            del self.samplers[id(loader.batch_sampler)]
        sampler = getattr(loader.batch_sampler, "sampler", None)
        images = watched.stream or len(whole(watched.dataset))
        trained = (self.log.steps, self.log.backwards) > watched.began
        fact: dict[str, Any] = {
                "loader": f"{watched.line} {loader.batch_size} {images}",  # alike on all ranks, and for a new one
                "object": self.number_of(loader), "where": watched.line, "whole": to_its_end, "images": watched.images,
                "labels": checksum(sorted(watched.classes or ())), "batches": watched.batches,
                "prints": watched.kept[:CONTENTS].tolist(), "content": zlib.crc32(watched.kept),
                "number": self.log.passes, "trained": trained, "before_training": watched.began == (0, 0),
                "shown": self.shown - watched.shown, "judged": self.judged > watched.judged,
                "statistics": self.left_on == "", "unused": watched.unused, "used": watched.used,
                "head": watched.head, "told_at": self.told_at, "lineage": self.lineage, "numbered": watched.numbered,
                "padded": getattr(sampler, "total_size", 0) > len(getattr(sampler, "dataset", ())),
                "told": loader.persistent_workers and checksum(
                    {name: value for name, value in getattr(whole(loader.dataset), "__dict__", {}).items()
                     if isinstance(value, int | float | str)}),
                "of": None, "order": None, "indices": None, "classes": None, "batch": loader.batch_size,
                "set": self.number_of(whole(loader.dataset)),
                "unseen": not drawn and not watched.stream and watched.images > 0,
                "shuffles": isinstance(sampler, RandomSampler) or bool(
                    getattr(sampler, "shuffle", hasattr(sampler or loader.batch_sampler, "set_epoch")))}
        if drawn and not watched.stream:
            fact |= {"of": len(watched.dataset), "order": zlib.crc32(drawn), "whole": to_its_end and len(drawn) < MOST}
            if self.log.counts.get(f"kept {fact['loader']}", 0) < 2 and self.kept + len(drawn) <= MOST:
                self.kept += len(drawn)
                self.log.counts[f"kept {fact['loader']}"] = self.log.counts.get(f"kept {fact['loader']}", 0) + 1
                fact["indices"] = array("q", (in_the_whole(loader.dataset, index) for index in drawn))
                fact["classes"] = watched.classes
            elif self.log.counts.get(f"kept {fact['loader']}", 0) < 2:
                self.log.once("full", where=watched.line)
        if watched.states:
            self.log.note("drawn", what="the data", where=watched.line, states=watched.states, step=watched.began[0])
        self.log.passes += 1
        if trained and power_of_two(self.log.passes):
            for module in [module for module in self.outermost if module in self.with_gradient]:
                self.weights(module, watched.line)
        self.log.note("pass", **fact)
        if to_its_end and not trained and self.left_on:
            self.log.once("left_on", where=self.left_on)

    # ------------------------------------------------------------------------------------------- files, and the end

    @looks
    def saving(self, obj: Any, f: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(f, str | os.PathLike) and str(f) != os.devnull:
            names = [name for name in nested_names(obj) if name.startswith(("module.", "_orig_mod."))]
            self.log.note("saved", where=where(), path=str(Path(f).resolve()), host=socket.gethostname(),
                          prefixed=names[:3], step=self.log.steps)

    def heard(self, event: str, args: tuple) -> None:
        """Python's own audit: each file or folder that a line of the user's makes, by whatever library."""
        if event == "open" and isinstance(args[0], str) and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            self.opened(args[0])
        elif event == "os.mkdir" and isinstance(args[0], str):
            self.made(args[0])

    @looks
    def opened(self, path: str) -> None:
        caller = sys._getframe(3).f_code.co_filename  # nearer are looks() and heard()
        theirs = not caller.startswith((TORCH, "<")) and not path.startswith(("/dev/", "/proc/"))
        if theirs and not os.path.isdir(path) and (line := where()):  # a nameless temporary file's folder
            path = os.path.realpath(path)  # event files have a name for each process: their folder counts
            path = os.path.dirname(path) if "tfevents" in path else path
            self.log.once("opened", where=line, path=path, host=socket.gethostname())

    @looks
    def made(self, path: str) -> None:
        if line := where():
            self.log.once("made", where=line, path=os.path.realpath(path), host=socket.gethostname())

    @looks
    def loaded(self, line: str, loaded: Any, *_: Any, **__: Any) -> None:
        if isinstance(loaded, dict) and any(isinstance(part, dict) and "param_groups" in part
                                            for part in loaded.values()):
            self.log.note("kept_optimizer", where=line, backwards=self.log.backwards)

    @looks
    def weights_loaded(self, line: str, _: Any, module: nn.Module, *__: Any, **___: Any) -> None:
        if any(parameter.requires_grad for parameter in module.parameters()):
            now = digest(list(module.parameters()))
            self.log.note("loaded_weights", where=line, digest=now, step=self.log.steps,
                          form=shapes(module.parameters()))
            inner = module.module if isinstance(module, DistributedDataParallel) else module
            if now and tuple(now) not in self.loads and inner not in self.resumed:
                self.loads.add(tuple(now))
                self.resumed.add(inner)
                self.lineage -= self.lineage > 1 and any(inner is model.module for model in self.models)

    def close(self) -> None:
        """What only the end shows."""
        self.closing = threading.get_ident()  # the watching thread, where the main one hangs
        self.ending()

    @looks
    def ending(self) -> None:
        if dist.is_initialized():
            self.log.note("not_destroyed")
        every = range(os.cpu_count() or 1)
        cores = sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else every)
        self.log.note("threads", each=torch.get_num_threads(), host=socket.gethostname(), cores=cores)
        for model in self.all_wrapped if self.optimizers else []:
            left = [name for name, number in model.trained.items() if number not in self.held and name in model.got]
            never = [name for name in model.trained if name not in model.got]
            for kind, names in (("left", left), ("never", never if model.expects_unused else [])):
                if 0 < len(names) < len(model.trained):
                    self.log.note(kind, names=names[:20])
            if model.trained and not set(model.trained.values()) & self.held:
                self.log.note("foreign")
        for scheduler, known in self.schedules.items():
            for name in vars(scheduler).keys() & {"T_max", "total_steps", "total_iters"}:
                self.log.note("schedule", where=known["where"], length=vars(scheduler)[name],
                              made=scheduler.last_epoch)
            if known["extra"] > 1:
                self.log.note("untied", where=known["line"], steps=known["steps"], extra=known["extra"],
                              times=known["times"])
        for _, name, line in self.unfinished.values():
            self.log.once("unfinished", what=name, where=line)
        for watched in list(self.reading):
            watched.close(whole=False)
        self.last_look()

    @looks
    def last_look(self, *_: Any, **__: Any) -> None:
        """Look at the weights while the models are still there. This would hang with work that hangs on a GPU."""
        if self.closing not in (None, self.log.main) and torch.cuda.is_initialized():
            return
        for module in reversed(list(self.outermost)):  # the last of each form that was called
            self.weights(module, "", last=True)


class Wrapped:
    """What is remembered of a model that DDP wraps, so that the model itself can go."""

    def __init__(self, model: DistributedDataParallel, number_of: Callable):
        self.trained = {name: number_of(parameter) for name, parameter in model.module.named_parameters()
                        if parameter.requires_grad}
        self.parts = WeakSet(model.module.modules())
        self.expects_unused = model.find_unused_parameters or model.static_graph
        self.got: set[str] = set()  # the names of those that had a gradient


class Watched:
    """A DataLoader's iterator, whose passes and waits are noted. All else it leaves to the iterator."""

    iterator: Any = None

    def __init__(self, hooks: Hooks, loader: DataLoader, line: str):
        self.hooks, self.log, self.loader, self.line = hooks, hooks.log, loader, line
        self.dataset: Any = loader.dataset
        self.stream = isinstance(loader.dataset, IterableDataset)
        self.began, self.shown = (self.log.steps, self.log.backwards), hooks.shown
        self.judged, hooks.left_on = hooks.judged, None
        self.drawn = hooks.samplers[id(loader.batch_sampler)] = array("q")
        self.batches, self.images, self.done, self.states = 0, 0, False, {}  # type: int, int, bool, dict[str, str]
        self.numbered = False  # the classes are class numbers, not checksums of labels
        self.classes: array | None = array("d")  # of the samples, in their order; None where they are no numbers
        self.kept = array("q")  # a digest of each of the first samples
        self.at: tuple | None = None  # of the batch before: (forwards and backwards when it was read, its tensor)
        self.idle: Any = None  # the tensor of the batch before that, if no forward followed it
        self.unused = self.used = self.head = 0  # batches; unused ones before the first that was used

    def unused_before(self, forwards: int, backwards: int, tensors: list[Tensor]) -> None:
        """Count the batches that nothing used: no forward came before the next one was read, and it is gone when the
        one after is read, since a loop's variable keeps the last one."""
        if self.idle is not None and self.idle() is None:
            self.unused += 1
            self.head += not self.used
        self.idle = None
        if self.at:
            self.used += (idle := self.at[:2] == (forwards, backwards)) is False
            self.idle = self.at[2] if idle else None
        self.at = (forwards, backwards, ref(tensors[0])) if tensors else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def __len__(self) -> int:
        return len(self.iterator)

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> Any:
        before = random_state() if 0 < self.batches < FIRST else None  # the order is drawn with the first
        try:
            with self.log.during("data", self.line):
                batch = next(self.iterator)
        except StopIteration:
            self.close(whole=True)
            raise
        self.hooks.batch_read(self, batch, before)
        return batch

    def __del__(self) -> None:
        self.close(whole=False)

    def close(self, whole: bool) -> None:
        if not self.done:
            self.done = True
            self.hooks.passed(self, whole)
