"""Hooks at the public seams of torch. Each notes what the script does, and changes nothing of it."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Subset
from torch.utils.weak import WeakIdKeyDictionary

from .diary import MOST, TORCH, users, where

COLLECTIVES = ["all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
               "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
               "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
               "scatter_object_list"]
LOOKED_AT = 8  # steps in which what changes little is looked at: random numbers, gradients, names
BATCHNORM = nn.modules.batchnorm._BatchNorm


class Enough(BaseException):
    """--steps have been made."""


def install(diary, steps=None, exchange=None):
    """Put the hooks in this process. After `steps` updates of the weights the script is ended by Enough."""
    seams = Seams(diary, steps, exchange)
    for name in COLLECTIVES:
        setattr(dist, name, seams.collective(name, getattr(dist, name)))
    for name in ("send", "recv", "batch_isend_irecv"):  # P2POp takes no other isend than torch's
        setattr(dist, name, seams.before(getattr(dist, name), seams.in_pairs))
    dist.init_process_group = seams.after(dist.init_process_group, seams.group_begun)
    dist.destroy_process_group = seams.before(dist.destroy_process_group, seams.last_look)
    DistributedDataParallel.__init__ = seams.after(
        seams.before(DistributedDataParallel.__init__, seams.wrapping), seams.wrapped, "DDP")
    for kind, owner, name in (("hooked", DistributedDataParallel, "register_comm_hook"), ("joined", Join, "__enter__"),
                              ("loaded_optimizer", Optimizer, "load_state_dict")):
        setattr(owner, name, seams.before(getattr(owner, name), seams.noting(kind)))
    DistributedDataParallel.forward = seams.direct(DistributedDataParallel.forward)
    DistributedDataParallel.no_sync = seams.no_sync(DistributedDataParallel.no_sync)
    nn.Module.load_state_dict = seams.after(nn.Module.load_state_dict, seams.weights_loaded)
    for name in ("wait", "is_completed", "get_future", "synchronize", "block_current_stream"):
        setattr(dist.Work, name, seams.before(getattr(dist.Work, name), seams.waited_for))
    LRScheduler.__init__ = seams.before(LRScheduler.__init__, seams.scheduled)
    register_module_forward_pre_hook(seams.module_begins)
    register_module_forward_hook(seams.module_ends, always_call=True)
    register_optimizer_step_pre_hook(seams.before_step)
    register_optimizer_step_post_hook(seams.step_made)
    torch.autograd.backward = seams.backward(torch.autograd.backward)  # Tensor.backward calls it
    nn.utils.clip_grad_norm_ = seams.before(nn.utils.clip_grad_norm_, seams.clipping)
    torch.amp.GradScaler.scale = seams.before(torch.amp.GradScaler.scale, seams.scaling)
    for name in ("unscale_", "update"):
        setattr(torch.amp.GradScaler, name, seams.before(getattr(torch.amp.GradScaler, name), seams.unscaling))
    DataLoader.__iter__ = seams.loader(DataLoader.__iter__)
    BatchSampler.__iter__ = seams.batches(BatchSampler.__iter__)
    DistributedSampler.__iter__ = seams.shard(DistributedSampler.__iter__)
    torch.save = seams.before(torch.save, seams.saving)
    torch.load = seams.load(torch.load)
    sys.addaudithook(seams.heard)
    return seams


def looks(method):
    """Decorates a method that notes something: its errors never reach the script, and torch compiles none of it."""
    @functools.wraps(method)
    def guarded(self, *args, **kwargs):
        if torch.compiler.is_compiling() or not self.ours():
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.diary.once("failed", what=method.__name__, error=f"{type(error).__name__}: {error}"[:200])
    return guarded


def digest(tensors):
    """[sum, norm] of all numbers: equal on ranks that hold the same. None where a tensor is sparse, is a part of a
    larger one, or has no values yet, and while a CUDA graph is captured.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return None
    if any(nn.parameter.is_lazy(tensor) or hasattr(tensor, "full_tensor") or tensor.is_meta or tensor.is_quantized
           or tensor.is_sparse for tensor in tensors):
        return None
    tensors = [tensor.detach() for tensor in tensors if not tensor.is_complex()]
    exact = torch.float32 if any(tensor.device.type == "mps" for tensor in tensors) else torch.float64
    tensors = [tensor if tensor.is_floating_point() else tensor.to(exact) for tensor in tensors if tensor.numel()]
    norms = [torch.linalg.vector_norm(tensor, dtype=exact).item() for tensor in tensors]
    return [sum(tensor.sum(dtype=exact).item() for tensor in tensors), math.hypot(*norms)]


def shared(module):
    """The parameters that all ranks hold alike: not the experts of a rank, nor an average of weights beside DDP."""
    models = [part.module for part in module.modules() if isinstance(part, DistributedDataParallel)] or [module]
    return [parameter for model in models for name, parameter in model.named_parameters()
            if name not in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]


def shapes(tensors):
    """A checksum of the shapes: it tells models of one form from those of another."""
    return checksum([None if nn.parameter.is_lazy(tensor) else tuple(tensor.shape) for tensor in tensors])


def checksum(values):
    return zlib.crc32(repr(values).encode())


def random_state():
    """{whose: a digest of the state that gives the next random numbers}."""
    states = {"torch": torch.get_rng_state().numpy(), "random": random.getstate()}
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        states["cuda"] = torch.cuda.get_rng_state().numpy()
    if "numpy.random" in sys.modules:
        states["numpy"] = sys.modules["numpy.random"].get_state()
    return {whose: hashlib.md5(pickle.dumps(state)).hexdigest() for whose, state in states.items()}


def drawn_from(before):
    """The states among `before` from which numbers have been drawn since."""
    now = random_state()
    return {whose: state for whose, state in before.items() if state != now[whose]}


def tensors_in(batch):
    if torch.is_tensor(batch):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else []
    return [tensor for part in parts for tensor in tensors_in(part)]


def whole(dataset):
    """The data set that a Subset, or a Subset of a Subset, was taken from."""
    return whole(dataset.dataset) if isinstance(dataset, Subset) else dataset


def in_the_whole(dataset, index):
    """The index in the whole data set of a sample of a Subset."""
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    return int(index)


def rows(batch):
    """How many samples a batch has; None where it has no tensor that says it."""
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), None)


def power_of_two(number):
    return number & (number - 1) == 0  # 0, too


class Seams:
    def __init__(self, diary, steps, exchange):
        self.diary, self.steps, self.exchange, self.pid = diary, steps, exchange, os.getpid()
        self.models = WeakKeyDictionary()  # {DDP: its Wrapped}
        self.all_wrapped = []  # the Wrapped of models that have gone, too
        self.outermost = WeakKeyDictionary()  # modules that were called in training from outside any module, in order
        self.with_gradient = WeakSet()  # those among them that have had one
        self.within = self.depth = 0  # forwards of DDP and of any module under way
        self.optimizers, self.held = WeakKeyDictionary(), set()  # {optimizer: its steps}, numbers of what they hold
        self.left = WeakKeyDictionary()  # {optimizer: what is known of its gradients}, until it is settled
        self.samplers = {}  # {id of a BatchSampler: what it drew}
        self.numbers, self.number = WeakIdKeyDictionary(), itertools.count()  # {data set or parameter: its number}
        self.judged = 0  # forwards in evaluation
        self.left_on = None  # the line of a forward without gradients, in training mode, since a pass began
        self.shown = 0  # samples that went through the model in training, DDP's where there is one
        self.seen = set()
        self.kept = 0  # indices of samples, at most MOST
        self.raw = self.before_forward = self.ready = self.closing = None
        self.idle = None  # the line of the first step of an optimizer whose parameters had no gradient
        self.updated = False  # since the last backward
        self.forwarded = False  # in training, since the last backward
        self.last_forward = None  # of DDP: the backwards before it, and its line
        self.synchronises = True  # the backward of DDP's last forward
        self.scaled = 1  # the gradients, by a GradScaler
        self.fed = None  # the random state after the last batch was read
        self.graphs = {}  # {graph behind a tensor that a collective took since the last backward: (it, its list, call)}
        self.summed = []  # [(a gradient that was all-reduced, its norm then)] since the last update
        self.unfinished = {}  # {id: (work of a collective that nobody has waited for, its name, its line)}
        self.updated_to = {}  # {form of a model: a digest of its weights after an update}
        self.reading = WeakSet()  # passes under way
        self.tests = WeakKeyDictionary()  # {a model that was evaluated: after which steps}
        self.schedules = WeakKeyDictionary()  # {scheduler: the line where it was made}

    def ours(self):
        """Is this the main thread, or the thread that closes? Nothing of others is noted, nor of forked processes."""
        return threading.get_ident() in (self.diary.main, self.closing) and os.getpid() == self.pid

    def after(self, function, then, name=None):
        @functools.wraps(function)
        def called(*args, **kwargs):
            line = where()
            with self.diary.during(name or function.__name__, line):
                result = function(*args, **kwargs)
            then(line, *args, **kwargs)
            return result
        return called

    def before(self, function, look):
        @functools.wraps(function)
        def called(*args, **kwargs):
            args = [list(value) if inspect.isgenerator(value) else value for value in args]  # else read only once
            kwargs = {name: list(value) if inspect.isgenerator(value) else value for name, value in kwargs.items()}
            look(*args, **kwargs)
            return function(*args, **kwargs)
        return called

    # ------------------------------------------------------------------------------------------------ talking

    def collective(self, name, function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args, **kwargs):
            if torch.compiler.is_compiling() or not self.ours():
                return function(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            if sys._getframe(1).f_code.co_filename.startswith(TORCH):  # within another collective, Join, ...
                return function(*args, **kwargs)
            if dist.get_world_size(given.get("group")) != dist.get_world_size():  # by a part of the ranks
                self.in_pairs()
                return function(*args, **kwargs)
            line = where()
            self.diary.collective(name, line)
            sent = next(filter(torch.is_tensor, reversed(given.values())), None)
            self.talked(name, line, sent)
            self.cut_off(name, line, given)
            with self.diary.during(name, line):
                result = function(*args, **kwargs)
            if name == "all_reduce" and given.get("op", dist.ReduceOp.SUM) == dist.ReduceOp.SUM:
                self.added_up(sent)
            if given.get("async_op") and len(self.unfinished) < 100:
                self.unfinished[id(result)] = (result, name, line)
            return result
        return called

    @looks
    def talked(self, name, line, sent):
        self.diary.sent = [name, line, None if sent is None else sent.numel()]
        self.diary.keep_counts()
        if sent is not None:
            number = sent.numel() == 1 and sent.device.type == "cpu" and sent.is_floating_point()
            fraction = number and sent.item() % 1 != 0
            few = sent.numel() <= 8 and sent.device.type == "cpu" and not sent.is_complex()
            self.diary.note("talk", most=2000, what=name, where=line, numbers=sent.numel(), fraction=fraction,
                            values=sent.flatten().tolist() if few else None, within=bool(self.diary.inside),
                            passes=self.diary.passes, backwards=self.diary.backwards, updated=self.updated)

    def noting(self, kind):
        """A look that notes the call, and nothing of it."""
        def look(self, *_, **__):
            self.diary.once(kind, where=where(), backwards=self.diary.backwards)
        look.__name__ = kind  # the report names the looks that fail
        return functools.partial(looks(look), self)

    @looks
    def in_pairs(self, *_, **__):
        self.diary.once("in_pairs")

    @looks
    def waited_for(self, work, *_, **__):
        self.unfinished.pop(id(work), None)

    @looks
    def added_up(self, gradient):
        """Note a gradient that an all-reduce has just summed: something must divide it before the update."""
        if 0 < self.diary.backwards <= LOOKED_AT and not self.updated and dist.get_world_size() > 1:
            self.summed.append((gradient, digest([gradient])))

    def undivided(self, gradients):
        """Note gradients that are clipped, or used by an update, as an all-reduce has left them."""
        ids = set(map(id, gradients))
        if any(id(gradient) in ids and before and before[1] and digest([gradient]) == before
               for gradient, before in self.summed):
            self.diary.once("summed", where=self.diary.sent[1], ranks=dist.get_world_size())
        self.summed.clear()

    @looks
    def cut_off(self, name, line, given):
        """Remember tensors with a graph behind them that go through a collective, perhaps on their way to the loss."""
        if self.forwarded and torch.is_grad_enabled() and self.diary.backwards < LOOKED_AT:
            call = {"what": name, "where": line}
            self.graphs |= {tensor.grad_fn: (tensor, given.get("tensor_list"), call)
                            for tensor in tensors_in(list(given.values())) if tensor.grad_fn}

    @looks
    def losses(self, tensors, *_, **__):
        """Note a collective that took a part of these losses' graphs. A figure for the log is none."""
        nodes, seen = [tensor.grad_fn for tensor in tensors_in(tensors)] if self.graphs else [], {None}
        while nodes:
            if (node := nodes.pop()) not in seen:
                seen.add(node)
                nodes += [further for further, _ in node.next_functions]
        for node, (own, parts, call) in self.graphs.items():
            put_back = isinstance(parts, list) and any(part is own for part in parts)  # into its place, with its graph
            if node in seen and not put_back:
                self.diary.once("cut_off", **call)
        self.graphs = {}

    @looks
    def group_begun(self, line, *_, **__):
        own = users(sys._getframe(3))  # nearer are looks() and after()
        self.diary.note("group", where=line, ranks=dist.get_world_size(), own=own)
        if not self.exchange.store:
            self.exchange.join_group()

    # ------------------------------------------------------------------------------------------------ the model

    @looks
    def wrapping(self, _, module, *__, **___):
        shapes_of = {name: list(parameter.shape) for name, parameter in module.named_parameters()
                     if not nn.parameter.is_lazy(parameter)}
        self.diary.note("wraps", most=4, where=where(), shapes=shapes_of)
        if any(isinstance(part, DistributedDataParallel) for part in module.modules()):
            self.diary.once("twice", where=where())

    @looks
    def wrapped(self, line, model, *_, **__):
        self.models[model] = wrapped = Wrapped(model, self.number_of)
        self.all_wrapped.append(wrapped)
        self.diary.note("wrapped", where=line, ranks=dist.get_world_size(model.process_group))
        if any(isinstance(part, BATCHNORM) and not isinstance(part, nn.SyncBatchNorm) for part in model.modules()):
            self.diary.once("batchnorm", where=line)
        first = next((parameter for parameter in model.module.parameters() if parameter.requires_grad), None)
        if first is not None and not nn.parameter.is_lazy(first):
            first.register_post_accumulate_grad_hook(self.last_is_ready)

    def last_is_ready(self, _):
        """Backward ends with the first layer. The time after it is the all-reduce, and the wait for slower ranks."""
        self.ready = time.monotonic()

    @looks
    def module_begins(self, module, given):
        self.depth += 1
        ddp = isinstance(module, DistributedDataParallel)
        self.within += ddp
        outermost = not ddp and self.depth == 1 + bool(self.within)  # below DDP, which may first send buffers
        if ddp and not (module.training and torch.is_grad_enabled()):
            self.diary.tested += 1
            self.diary.keep_counts()
        self.judged += self.depth == 1 and not module.training
        if outermost and not module.training and self.diary.steps:
            tested = self.tests.setdefault(module, set())
            if self.diary.steps not in tested and len(tested) < LOOKED_AT:
                tested.add(self.diary.steps)
                self.diary.note("tested", where=where(), step=self.diary.steps, weights=digest(shared(module)),
                                buffers=digest([buffer for buffer in module.buffers() if buffer.is_floating_point()]))
        if outermost and module.training and self.diary.steps and not torch.is_grad_enabled():
            active = [part for part in module.modules() if part.training and (
                isinstance(part, BATCHNORM) or isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0)]
            if any(getattr(part, "momentum", 0) is None for part in active):
                self.left_on = ""  # on purpose: update_bn() averages BatchNorm's statistics over all batches
            elif active and (module in self.with_gradient
                             or any(module in wrapped.parts for wrapped in self.all_wrapped)):
                self.left_on = where()
        if not module.training or not torch.is_grad_enabled() or self.diary.inside:  # inside backward: recomputed
            return
        if self.depth == 1 and next(module.parameters(), None) is not None:
            self.diary.alive = time.monotonic()
            self.forwarded = True
            if dist.is_initialized() and "group" not in self.diary.facts:  # made by a device mesh, say
                self.group_begun(where())
            self.outermost.pop(module, None)
            self.outermost[module] = True
            if power_of_two(self.diary.backwards):
                self.weights(module, where())
        if ddp or self.depth == 1 and not self.models:
            samples = rows(given)
            self.shown += 10**9 if samples is None else samples  # where the samples cannot be seen
        if ddp:
            self.raw, line = None, where()
            if self.synchronises:
                self.names(module, line)
            self.synchronises = module.require_backward_grad_sync
            if "device" not in self.diary.facts:
                self.device(next(module.parameters()).device)
            self.diary.forwards += 1
            if self.fed and (states := drawn_from(self.fed)):
                states.pop("random", None)  # a coin that all ranks toss alike, often on purpose
                self.diary.note("drawn", what="the loop", where=where(), states=states, step=self.diary.steps)
            self.fed = None
            if self.last_forward and self.last_forward[0] == self.diary.backwards:
                self.diary.skipped = {"times": self.diary.skipped["times"] + 1, "where": self.last_forward[1]}
            self.last_forward = self.diary.backwards, line
            self.diary.keep_counts()
            self.before_forward = random_state() if self.diary.forwards <= LOOKED_AT else None
        elif not self.within and not self.raw and any(module in wrapped.parts for wrapped in self.models.values()):
            self.raw = where()

    def direct(self, function):
        """DDP's forward: where a script calls it by its name, torch calls no hook."""
        @functools.wraps(function)
        def forward(model, *args, **kwargs):
            if torch.compiler.is_compiling() or self.within:
                return function(model, *args, **kwargs)
            self.module_begins(model, args)
            try:
                return function(model, *args, **kwargs)
            finally:
                self.module_ends(model)
        return forward

    @looks
    def module_ends(self, module, *_):
        self.depth -= 1
        if isinstance(module, DistributedDataParallel):
            self.within -= 1
            if self.before_forward and (states := drawn_from(self.before_forward)):
                self.diary.note("drawn", what="the model's forward", where=where(), states=states,
                                step=self.diary.steps)
            self.before_forward = None

    def device(self, device):
        """Note where the first model is. Each process may have numbers of its own for the GPUs."""
        gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
        self.diary.note("device", device=str(device), gpu=str(getattr(gpu, "uuid", device)), host=socket.gethostname(),
                        visible=torch.cuda.device_count())

    def weights(self, module, line, last=False):
        """A digest of the weights, once between two backwards, for each form of model, under DDP or not."""
        parameters = list(module.parameters())
        together = any(isinstance(part, DistributedDataParallel) or part in wrapped.parts
                       for part in module.modules() for wrapped in self.all_wrapped)
        form = shapes(parameters), together
        if (self.diary.backwards, form) not in self.seen:
            self.seen.add((self.diary.backwards, form))
            kinds = {type(part).__name__ for part in module.modules()}
            now = None if "FullyShardedDataParallel" in kinds else digest(shared(module))
            self.diary.note("weights", after=self.diary.backwards, form=form[0], where=line, last=last, digest=now,
                            together=together, wrapped=bool(self.all_wrapped), updates=self.diary.steps,
                            sharded=any(kind.startswith(("FSDP", "FullySharded")) for kind in kinds),
                            numbers=sum(one.numel() for one in parameters
                                        if one.requires_grad and not nn.parameter.is_lazy(one)),
                            beside=self.updated_to.pop(form[0], now) != now,
                            settings=[f"{name}={value}" for optimizer in list(self.optimizers)
                                      for group in optimizer.param_groups for name, value in group.items()
                                      if isinstance(value, int | float | tuple)])

    def names(self, model, line):
        """Note parameters that have no gradient while others have one, and those that were frozen after wrapping."""
        if self.diary.forwards > LOOKED_AT + 1:
            return
        parameters, known = dict(model.module.named_parameters()), self.models[model]
        frozen = [name for name in known.trained if name in parameters and not parameters[name].requires_grad]
        # A whole model is frozen on purpose, as in a GAN; so is a part of it where DDP looks for what is unused.
        if 0 < len(frozen) < len(known.trained) and not known.expects_unused:
            self.diary.once("frozen", names=frozen[:20], where=line)
        got = {name for name, parameter in parameters.items() if parameter.grad is not None}
        without = [name for name, parameter in parameters.items() if parameter.requires_grad and name not in got]
        if without and got and not known.expects_unused:
            self.diary.note("without", names=without[:20], where=line)
        known.got |= got

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
            if torch.compiler.is_compiling() or not self.ours():
                return function(*args, **kwargs)
            if self.raw:
                self.diary.once("raw", where=self.raw)
            self.diary.backwards += 1
            if self.diary.backwards > LOOKED_AT:
                self.summed.clear()  # no optimizer of torch's may ever look at them
            self.ready, self.updated, self.forwarded = None, False, False
            self.losses(*args, **kwargs)
            self.left_over()
            with self.diary.during("backward", where()):
                result = function(*args, **kwargs)
                if self.ready:
                    tail = self.diary.seconds.get("tail", 0)
                    self.diary.seconds["tail"] = tail + time.monotonic() - self.ready
                self.left_over()
            self.trained()
            return result
        return called

    def gradients(self, optimizer):
        """(the numbers of the gradients that an optimizer has, a digest of them)"""
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]
                     if parameter.grad is not None]
        return [self.number_of(gradient) for gradient in gradients], digest(gradients)

    @looks
    def left_over(self):
        """Note to which optimizer's gradients a backward adds. A change outside a backward empties or sets them."""
        for optimizer, left in list(self.left.items()):
            now = self.gradients(optimizer)
            if self.diary.backwards > left["until"] or now != left["now"] and not self.diary.inside:
                del self.left[optimizer]
            elif now != left["now"]:
                left["now"] = now
                left["added"].add(self.optimizers[optimizer])

    def not_emptied(self, optimizer):
        """Note an optimizer that has twice used gradients of its update before, to which a backward had added."""
        if self.optimizers[optimizer] == 1 or optimizer in self.left:
            numbers, look = now = self.gradients(optimizer)
            left = self.left.pop(optimizer, {"now": now, "added": set(), "until": self.diary.backwards + 64})
            if left["now"][0] != numbers or not look or not look[1] or self.diary.inside:
                return  # they were set by hand, were emptied by the update, or it was made within a backward
            if len(left["added"]) == 2:
                self.diary.once("not_emptied", where=where())
            else:
                self.left[optimizer] = left | {"now": now}

    @looks
    def trained(self):
        """Note the models that get gradients. Others may differ on the ranks."""
        for module in set(self.outermost) - set(self.with_gradient):
            parameters = list(module.parameters())
            if any(parameter.grad is not None for parameter in parameters):
                self.with_gradient.add(module)
                self.diary.once("trained", form=shapes(parameters))

    @looks
    def scaling(self, scaler, _):
        if self.diary.steps < LOOKED_AT:  # get_scale() waits for the GPU
            self.scaled = scaler.get_scale() if scaler.is_enabled() else 1

    @looks
    def unscaling(self, *_, **__):
        self.scaled = 1

    @looks
    def clipping(self, parameters, max_norm, *_, **__):
        if self.diary.steps < LOOKED_AT:
            parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
            parameters = [parameter for parameter in parameters if parameter.grad is not None]
            self.undivided([parameter.grad for parameter in parameters])
            own = {id(parameter) for model in self.models for parameter in model.parameters()} - {
                id(parameter) for model in self.models for parameter in shared(model)}
            gradients = [parameter.grad for parameter in parameters if id(parameter) not in own]
            self.diary.note("clip", where=where(), gradients=digest(gradients), form=shapes(gradients),
                            step=self.diary.steps, scaled=self.scaled > 100 * max_norm)

    @looks
    def before_step(self, optimizer, _, __):
        """Note the parameters that an optimizer holds, before its first step."""
        if optimizer not in self.optimizers:
            self.optimizers[optimizer] = 0
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self.held |= set(map(self.number_of, held))
            rates = [group["lr"] for group in optimizer.param_groups if isinstance(group["lr"], float)]
            self.diary.note("optimizer", where=where(), rates=rates)
            if all(parameter.grad is None for parameter in held):
                self.idle = where()
        if self.models and not self.synchronises:
            self.diary.once("unsynchronised", where=where())
        self.undivided([part.grad for group in optimizer.param_groups for part in group["params"]])
        for model in self.models:
            self.names(model, where())

    def step_made(self, optimizer, _, __):
        self.after_step(optimizer)
        if self.steps and self.ours() and self.diary.steps >= self.steps:
            raise Enough

    @looks
    def after_step(self, optimizer):
        self.updated = True
        self.optimizers[optimizer] += 1
        self.not_emptied(optimizer)
        self.diary.steps = max(self.diary.steps, self.optimizers[optimizer])
        self.diary.alive = time.monotonic()
        if power_of_two(self.diary.backwards):
            for module in self.with_gradient:
                self.updated_to[shapes(module.parameters())] = digest(shared(module))

    # ------------------------------------------------------------------------------------------------ the data

    def loader(self, function):
        @functools.wraps(function)
        def begin(loader):
            if not self.ours():
                return function(loader)
            watched = Watched(self, loader, where())  # first: workers draw their batches at once
            self.reading.add(watched)
            if loader.num_workers:
                self.workers(loader, watched.line)
            with self.diary.during("data", watched.line):
                watched.iterator = function(loader)
            return watched
        return begin

    @looks
    def workers(self, loader, line):
        """Note the random state from which the workers' seeds are drawn."""
        state = loader.generator.get_state() if loader.generator else torch.get_rng_state()
        self.diary.note("workers", most=1, where=line, state=checksum(state.tolist()))

    def batches(self, function):
        @functools.wraps(function)
        def begin(sampler):
            drawn = self.samplers.get(id(sampler))
            for batch in function(sampler):
                if drawn is not None and len(drawn) < MOST:
                    with suppress(TypeError):  # no numbers
                        drawn.extend(batch)
                yield batch
        return begin

    def shard(self, function):
        @functools.wraps(function)
        def begin(sampler):
            indices = list(function(sampler))
            self.sharded(sampler, checksum(indices))
            return iter(indices)
        return begin

    @looks
    def sharded(self, sampler, order):
        self.diary.note("shard", most=6, where=where(), shuffle=sampler.shuffle, images=len(sampler.dataset),
                        total=sampler.total_size, ranks=sampler.num_replicas, order=order)

    @looks
    def batch_read(self, watched, batch, before):
        if before and (states := drawn_from(before)):
            watched.states = watched.states or states
        self.fed = random_state() if max(watched.batches, self.diary.forwards) < LOOKED_AT else None
        watched.batches += 1
        watched.images += rows(batch) or 0
        tensors = tensors_in(batch)
        labels = tensors[-1] if tensors else None  # in most data sets: nothing random is done to them
        if labels is not None and labels.device.type == "cpu" and not labels.is_complex() and labels.numel() < MOST:
            watched.labels += labels.sum(dtype=torch.float64).item()
        if labels is not None and labels.dim() and labels.numel() < MOST // 100 and (
                watched.classes is not None and len(watched.classes) < MOST):
            watched.numbered = labels.dim() == 1 and labels.dtype in (torch.int64, torch.int32)
            if watched.numbered or watched.batches <= LOOKED_AT:
                watched.classes.extend(labels.tolist() if watched.numbered else map(checksum, labels.tolist()))
        else:
            watched.classes = None
        if watched.batches <= LOOKED_AT and tensors and tensors[0].dim():
            raw = tensors[0].detach().cpu().flatten()[:2**14].contiguous().view(torch.uint8)
            watched.prints.append(zlib.crc32(bytes(raw.tolist())))

    def number_of(self, thing):
        """The same for the same data set or parameter, and never another one's, as an id() may be."""
        try:
            return self.numbers.setdefault(thing, next(self.number))
        except TypeError:  # a list, say
            return None

    @looks
    def passed(self, watched, to_its_end):
        """A pass over a DataLoader has ended."""
        loader, drawn = watched.loader, watched.drawn
        if self.samplers.get(id(loader.batch_sampler)) is drawn:
            del self.samplers[id(loader.batch_sampler)]
        sampler = getattr(loader.batch_sampler, "sampler", None)
        images = watched.stream or len(whole(loader.dataset))
        loader_id = f"{watched.line} {loader.batch_size} {images}"  # alike on all ranks, and for a new one each epoch
        fact = {"loader": loader_id, "where": watched.line, "whole": to_its_end, "images": watched.images,
                "labels": watched.labels, "prints": watched.prints, "number": self.diary.passes,
                "trained": (self.diary.steps, self.diary.backwards) > watched.began,
                "before_training": watched.began == (0, 0), "shown": self.shown - watched.shown,
                "judged": self.judged > watched.judged, "statistics": self.left_on == "",
                "padded": getattr(sampler, "total_size", 0) > len(getattr(sampler, "dataset", ())),
                "numbered": watched.numbered,
                "told": loader.persistent_workers and checksum(
                    {name: value for name, value in getattr(whole(loader.dataset), "__dict__", {}).items()
                     if isinstance(value, int | float | str)}),
                "of": None, "order": None, "indices": None, "classes": None, "batch": loader.batch_size,
                "set": self.number_of(whole(loader.dataset)), "forwards": self.diary.forwards,
                "models": len(self.all_wrapped),
                "unseen": not drawn and not watched.stream and watched.images > 0,
                "shuffles": isinstance(sampler, RandomSampler) or bool(getattr(sampler, "shuffle", False))}
        if drawn and not watched.stream:
            fact |= {"of": len(loader.dataset), "order": zlib.crc32(drawn),
                     "whole": to_its_end and len(drawn) < MOST}
            earlier = [fact for fact in self.diary.facts.get("pass", []) if fact["loader"] == loader_id]
            if len(earlier) < 2 and self.kept + len(drawn) <= MOST:
                self.kept += len(drawn)
                fact["indices"] = array("q", (in_the_whole(loader.dataset, index) for index in drawn))
                fact["classes"] = watched.classes
            elif len(earlier) < 2:
                self.diary.once("full", where=watched.line)
        if watched.states:
            self.diary.note("drawn", what="the data", where=watched.line, states=watched.states,
                            step=watched.began[0])
        self.diary.passes += 1
        if fact["trained"] and power_of_two(self.diary.passes):
            for module in [module for module in self.outermost if module in self.with_gradient]:
                self.weights(module, watched.line)
        self.diary.note("pass", most=2000, **fact)
        if to_its_end and not fact["trained"] and self.left_on:
            self.diary.once("left_on", where=self.left_on)

    # ------------------------------------------------------------------------------------------------ the end

    @looks
    def saving(self, obj, f=None, *_, **__):
        if isinstance(f, str | os.PathLike) and str(f) != os.devnull:
            names = [name for name in nested_names(obj) if name.startswith(("module.", "_orig_mod."))]
            self.diary.note("saved", where=where(), path=str(Path(f).resolve()), host=socket.gethostname(),
                            prefixed=names[:3], step=self.diary.steps)

    def heard(self, event, args):
        """Python's own audit: each file that a line of the user's opens for writing, by whatever library."""
        if event == "open" and isinstance(args[0], str) and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            self.opened(args[0])

    @looks
    def opened(self, path):
        caller = sys._getframe(3).f_code.co_filename  # nearer are looks() and heard()
        theirs = not caller.startswith((TORCH, "<")) and not path.startswith(("/dev/", "/proc/"))
        if theirs and not os.path.isdir(path) and (line := where()):  # a nameless temporary file's folder
            path = os.path.realpath(path)  # event files have a name for each process: their folder counts
            path = os.path.dirname(path) if "tfevents" in path else path
            self.diary.once("opened", where=line, path=path, host=socket.gethostname())

    def load(self, function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            loaded = function(*args, **kwargs)
            self.loaded(loaded)
            return loaded
        return called

    @looks
    def loaded(self, loaded):
        if isinstance(loaded, dict) and any(isinstance(part, dict) and "param_groups" in part
                                            for part in loaded.values()):
            self.diary.note("kept_optimizer", where=where(), backwards=self.diary.backwards)

    @looks
    def scheduled(self, scheduler, *_, **__):
        self.schedules[scheduler] = where()

    @looks
    def weights_loaded(self, line, module, *_, **__):
        if any(parameter.requires_grad for parameter in module.parameters()):
            self.diary.note("loaded_weights", where=line, digest=digest(list(module.parameters())))

    def close(self):
        """What only the end shows."""
        self.closing = threading.get_ident()  # the watching thread, where the main one hangs
        self.ending()

    @looks
    def ending(self):
        if dist.is_available() and dist.is_initialized():
            for group in [group for group in self.diary.facts.get("group", []) if group["own"]][-1:]:
                self.diary.note("not_destroyed", where=group["where"])
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))
        self.diary.note("threads", each=torch.get_num_threads(), host=socket.gethostname(), cores=cores)
        for model in self.all_wrapped if "optimizer" in self.diary.facts else []:
            left = [name for name, number in model.trained.items() if number not in self.held and name in model.got]
            never = [name for name in model.trained if name not in model.got]
            if self.idle and model.trained and not set(model.trained.values()) & self.held:
                self.diary.note("foreign", where=self.idle)
            for kind, names in (("left", left), ("never", never if model.expects_unused else [])):
                if 0 < len(names) < len(model.trained):
                    self.diary.note(kind, names=names[:20], where=self.diary.facts["optimizer"][0]["where"])
        for scheduler, line in self.schedules.items():
            for name in vars(scheduler).keys() & {"T_max", "total_steps", "total_iters"}:
                self.diary.note("schedule", where=line, length=vars(scheduler)[name], made=scheduler.last_epoch)
        for _, name, line in self.unfinished.values():
            self.diary.once("unfinished", what=name, where=line)
        for watched in list(self.reading):
            watched.close(whole=False)
        self.last_look()

    @looks
    def last_look(self, *_, **__):
        """Look at the weights while the models are still there. This would hang with work that hangs on a GPU."""
        if self.closing not in (None, self.diary.main) and torch.cuda.is_initialized():
            return
        for module in reversed(list(self.outermost)):  # the last of each form that was called
            self.weights(module, "", last=True)


class Wrapped:
    """What is remembered of a model that DDP wraps, so that the model itself can go."""

    def __init__(self, model, number_of):
        self.trained = {name: number_of(parameter) for name, parameter in model.module.named_parameters()
                        if parameter.requires_grad}
        self.parts = WeakSet(model.module.modules())
        self.expects_unused = model.find_unused_parameters or model.static_graph
        self.got = set()  # the names of those that had a gradient


def nested_names(obj, depth=3):
    """The names in a state_dict, or in the dicts of one."""
    if depth and isinstance(obj, dict):
        for name, value in obj.items():
            if isinstance(name, str):
                yield name
            yield from nested_names(value, depth - 1)


class Watched:
    """A DataLoader's iterator, whose passes and waits are noted. All else it leaves to the iterator."""

    iterator = None

    def __init__(self, seams, loader, line):
        self.seams, self.diary, self.loader, self.line = seams, seams.diary, loader, line
        self.stream = isinstance(loader.dataset, IterableDataset)
        self.began, self.shown = (self.diary.steps, self.diary.backwards), seams.shown
        self.judged, seams.left_on = seams.judged, None
        self.drawn = seams.samplers[id(loader.batch_sampler)] = array("q")
        self.batches, self.images, self.labels, self.prints, self.done, self.states = 0, 0, 0.0, [], False, {}
        self.numbered = False  # the classes are class numbers, not checksums of labels
        self.classes = array("d")  # of the samples, in the order that they were read in; None where they are no numbers

    def __getattr__(self, name):
        return getattr(self.iterator, name)

    def __len__(self):
        return len(self.iterator)

    def __iter__(self):
        return self

    def __next__(self):
        before = random_state() if 0 < self.batches < LOOKED_AT else None  # the order is drawn with the first
        try:
            with self.diary.during("data", self.line):
                batch = next(self.iterator)
        except StopIteration:
            self.close(whole=True)
            raise
        self.seams.batch_read(self, batch, before)
        return batch

    def __del__(self):
        self.close(whole=False)

    def close(self, whole):
        if not self.done:
            self.done = True
            self.seams.passed(self, whole)
