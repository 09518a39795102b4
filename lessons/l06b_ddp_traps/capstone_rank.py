"""Watches one rank of a learner's program, for capstone.py: which images it trains on and tests, what it prints and
saves, and where it waits for other ranks.

The program runs unchanged, except that torchvision's MNIST is two small sets, and that each collective first asks every
rank whether it calls the same one. So ranks that would wait forever are found at once, with the place of each.

With gpus > 0 the check pretends that each machine has so many GPUs: what the program sends to a GPU stays on the CPU,
and the watcher notes the number of the GPU.
"""

import copy
import io
import multiprocessing
import os
import re
import signal
import sys
import traceback
import zlib
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from course import shortcuts
from course.one_model import flat_gradient, flat_weights

TRAIN, TEST = 223, 23  # images: neither 2 nor 3 ranks can share them equally
WAIT = 30  # seconds that a rank waits for the others: longer than a rank may show no sign of life
COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "barrier",
               "broadcast", "broadcast_object_list", "gather", "gather_object", "init_process_group", "reduce",
               "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list")
COMPARED = 1  # the update whose gradient is compared: the second, where a forgotten zero_grad shows
KEPT = []  # the programs' variables: a DDP model that is freed right after its group can block (PyTorch 2.10)


class Stop(BaseException):
    """Ends the program. Not an Exception, which the program might catch."""


class NoSignOfLife(BaseException):
    """Raised in a rank that has met no other for too long, wherever it is."""


def small_sets():
    """A training and a test set of noise. Class 3 is the most frequent, so that the first steps learn something; in
    the test set it is placed so that no two shards have the same share of it."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(TRAIN + TEST, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (TRAIN + TEST,), generator=generator)
    labels[:TRAIN][torch.rand(TRAIN, generator=generator) < 0.6] = 3
    labels[TRAIN:] = torch.tensor([3 if place % 2 == 0 or place < 8 else place % 3 for place in range(TEST)])
    return [TensorDataset(images[part], labels[part]) for part in (slice(TRAIN), slice(TRAIN, None))]


def watch(program, context, gpus, limit):
    """Run the program on this rank; return the facts. A rank that meets no other for `limit` seconds is stopped.

    program: functools.partial(runpy.run_path, PATH, ...), so that it can be pickled.
    """
    machine, local_rank = divmod(context.rank, gpus or context.world_size)
    os.environ |= {"RANK": str(context.rank), "WORLD_SIZE": str(context.world_size), "LOCAL_RANK": str(local_rank),
                   "LOCAL_WORLD_SIZE": str(gpus or context.world_size), "GROUP_RANK": str(machine),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "CUDA_VISIBLE_DEVICES": ""}
    os.chdir(context.folder)
    sys.argv = [program.args[0]]  # of this process they are those of the check
    # A DataLoader's workers start as in any program, and not as this process did, which would run the program again.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    watcher = Watcher(program.args[0], context, gpus, limit)
    printed = io.StringIO()
    with watcher.watching(), redirect_stdout(printed), redirect_stderr(printed):
        watcher.run(program)
    watcher.facts["printed"] = printed.getvalue()
    if all(state == "has ended" for state, _ in watcher.facts["places"]):
        watcher.compare()
    return watcher.facts


class Watcher:
    """`facts` is what the judge reads. Its `places` are those of all ranks, at their last meeting."""

    def __init__(self, path, context, gpus, limit):
        self.path, self.context, self.gpus, self.limit = path, context, gpus, limit
        self.sets = small_sets()
        self.known = {image_key(image): (split, number) for split, images in enumerate(self.sets)
                      for number, image in enumerate(images.tensors[0])}
        self.meetings = self.update = self.loops = self.depth = self.current_gpu = 0
        self.epoch = self.training_loop = -1
        self.model = self.reference = self.gradient = self.images = None
        self.facts = {"met": False, "wrapped": False, "random": None, "batches": [], "rate": 0.0, "tests": [],
                      "printed": "", "saves": [], "gpus": [], "places": [], "apart": 0.0}

    @contextmanager
    def watching(self):
        replaced = [(dist, name, partial(self.collective, name)) for name in COLLECTIVES]
        replaced += [(torch, "save", self.save), (torchvision.datasets, "MNIST", self.mnist)]
        if self.gpus:
            replaced += self.gpu_functions()
        with ExitStack() as stack:
            for owner, name, replacement in replaced:
                stack.enter_context(self.replace(owner, name, replacement))
            for owner, name, replacement in ((DataLoader, "__iter__", self.loop),
                                             (DistributedDataParallel, "__init__", self.wrap)):
                stack.enter_context(self.replace(owner, name, replacement, for_all=True))
            for hook in (register_module_forward_pre_hook(self.before_forward),
                         register_module_forward_hook(self.after_forward, always_call=True),
                         register_optimizer_step_pre_hook(self.before_update)):
                stack.callback(hook.remove)
            if self.gpus:
                stack.enter_context(PretendedGPUs(self.note_gpu))
            yield

    def replace(self, owner, name, replacement, for_all=False):
        """Where the program calls the function, replacement(function, ...) is called. torch's own calls stay."""
        function = getattr(owner, name)

        def call(*args, **kwargs):
            if for_all or sys._getframe(1).f_code.co_filename == self.path:
                return replacement(function, *args, **kwargs)
            return function(*args, **kwargs)

        return mock.patch.object(owner, name, call)

    def run(self, program):
        def give_up(*_):
            raise NoSignOfLife

        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(self.limit)
        state, line = "has ended", None
        try:
            KEPT.append(program())
        except Stop:
            state = None  # the ranks know where they are
        except BaseException as error:
            if isinstance(error, NoSignOfLife):
                state = f"has met no other rank for {self.limit} s"
            elif not isinstance(error, SystemExit) or error.code:
                text = re.sub(r"^\[\S+:\d+\] ", "", str(error)).strip().split("\n")[0]  # gloo names its own file first
                state = f"raised {type(error).__name__}: {text.rstrip('.')}"
            line = self.line(traceback.extract_tb(error.__traceback__)) if state != "has ended" else None
        if state:
            self.report(state, line)
        signal.alarm(0)

    # -------------------------------------------------------------------------------------- where ranks wait

    def line(self, frames):
        """The innermost line of the program."""
        return next((frame.lineno for frame in reversed(frames) if frame.filename == self.path), None)

    def report(self, state, line):
        """Tell all ranks where this one is, and wait until they have told it, too."""
        signal.alarm(0)
        self.facts["places"] = self.context.gather(f"meeting {self.meetings}", [state, line], WAIT)
        self.meetings += 1
        signal.alarm(self.limit)

    def meet(self, state):
        """Go on only if all ranks do the same."""
        self.report(state, self.line(traceback.extract_stack()))
        if len({state for state, _ in self.facts["places"]}) > 1:
            raise Stop

    def collective(self, name, function, *args, **kwargs):
        if kwargs.get("group") in (None, dist.group.WORLD):
            size = f" of {args[0].numel()} values" if args and isinstance(args[0], torch.Tensor) else ""
            self.meet(f"is at dist.{name}{size}")
        if self.gpus:
            kwargs.pop("device_ids", None)
        return self.join(function, *args[:1], **kwargs) if name == "init_process_group" else function(*args, **kwargs)

    def join(self, init_process_group, backend=None, init_method=None, device_id=None, **kwargs):
        """Join the group through the store where the check's ranks have met."""
        kwargs = {"rank": self.context.rank, "world_size": self.context.world_size, **kwargs,
                  "store": dist.PrefixStore("group", self.context.store), "timeout": timedelta(seconds=self.limit)}
        init_process_group("gloo" if self.gpus else backend, **kwargs)
        self.facts["met"] = True
        shortcuts.defer_compiler()  # after it: joining the group brings in the real one

    def wrap(self, init, ddp, module, device_ids=None, output_device=None, *args, **kwargs):
        self.meet("is at DistributedDataParallel")
        if self.gpus:
            for device in device_ids or []:
                self.note_gpu(device)
            device_ids = output_device = None
        init(ddp, module, device_ids, output_device, *args, **kwargs)
        self.facts["wrapped"] = True

    # -------------------------------------------------------------------------------------- training, tests, files

    def recognise(self, arguments):
        """(0 for training or 1 for test, the numbers of the images in that set); None for other images."""
        images = next((argument for argument in arguments if isinstance(argument, torch.Tensor)), torch.empty(0))
        places = [self.known.get(image_key(image)) for image in images] if images.ndim == 4 else [None]
        return None if None in places else (places[0][0], [number for _, number in places])

    def before_forward(self, module, arguments):
        self.depth += 1  # modules within modules: only the outermost counts
        if self.depth > 1:
            return
        self.images = self.recognise(arguments)
        if self.images is None or self.images[0] == 1 or not torch.is_grad_enabled():
            return
        ddp = isinstance(module, DistributedDataParallel)
        self.model = module.module if ddp else module
        if self.facts["random"] is None:
            self.facts["random"] = zlib.crc32(torch.get_rng_state().numpy())
        if self.update == COMPARED and self.reference is None:
            self.reference = copy.deepcopy(self.model)
        if self.loops != self.training_loop:
            self.training_loop, self.epoch = self.loops, self.epoch + 1
        self.facts["batches"].append({"epoch": self.epoch, "update": self.update, "images": self.images[1], "ddp": ddp})
        # Under join() a rank with fewer batches has no more steps: DDP answers the others for it.
        if ddp and module.require_backward_grad_sync and not module._join_config.enable:
            self.meet("is at a step of training")

    def after_forward(self, module, arguments, output):
        self.depth -= 1
        if self.depth or not self.images or not isinstance(output, torch.Tensor):
            return
        split, numbers = self.images
        output, labels = output.detach(), self.sets[split].tensors[1][numbers]
        if split == 1:
            hits = (output.argmax(1) == labels).int().tolist()
            self.facts["tests"].append({"epoch": self.epoch, "hits": list(zip(numbers, hits, strict=True))})
        elif torch.is_grad_enabled():
            self.facts["batches"][-1]["loss"] = cross_entropy(output, labels, reduction="sum").item()

    def before_update(self, optimizer, args, kwargs):
        self.facts["rate"] = max(self.facts["rate"], optimizer.param_groups[0]["lr"])
        if self.update == COMPARED and self.model is not None:
            self.gradient = flat_gradient(self.model)
        self.update += 1

    def loop(self, begin, loader):
        self.loops += 1
        return begin(loader)

    def mnist(self, function, root, train=True, *args, **kwargs):
        return self.sets[0 if train else 1]

    def save(self, save, saved, file, *args, **kwargs):
        self.facts["saves"].append(list(map(str, saved)) if isinstance(saved, dict) else [])
        if isinstance(file, str | os.PathLike):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        return save(saved, file, *args, **kwargs)

    def compare(self):
        """Compare the ranks' last weights with each other, and the gradient of one update with that of one process that
        has the images of all ranks."""
        images = self.context.gather("images", [number for batch in self.facts["batches"]
                                                if batch["update"] == COMPARED for number in batch["images"]])
        weights = [] if self.gradient is None else flat_weights(self.model)[::97].tolist()
        weights = self.context.gather("weights", weights)
        if not all(images) or not all(weights):
            return
        before, weights = flat_weights(self.reference)[::97], torch.tensor(weights)
        self.facts["apart"] = ((weights - weights[0]).norm(dim=1).max() / (weights[0] - before).norm()).item()
        pixels, labels = self.sets[0][sum(images, [])]
        self.reference.zero_grad()
        cross_entropy(self.reference(pixels), labels).backward()
        right = flat_gradient(self.reference)
        times = self.gradient @ right / right.norm() ** 2
        off = (self.gradient - times * right).norm() / right.norm()
        self.facts |= {"times": times.item(), "off": off.item()}

    # -------------------------------------------------------------------------------------- GPUs, pretended

    def note_gpu(self, device):
        number = gpu_number(device)
        number = self.current_gpu if number is None else number
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")  # "", unless the program has set it
        self.facts["gpus"].append(int(visible[number]) if visible[0] else number)

    def set_device(self, function, device):
        self.current_gpu = gpu_number(device) or 0

    def gpu_functions(self):
        """(module, name, replacement) of the functions that tell of GPUs."""
        def answer(value):
            return lambda function, *args, **kwargs: value

        functions = [(dist, "is_nccl_available", answer(True)),
                     (torch.accelerator, "current_accelerator", answer(torch.device("cuda")))]
        for module, suffix in ((torch.cuda, ""), (torch.accelerator, "_index")):
            functions += [(module, "is_available", answer(True)), (module, "device_count", answer(self.gpus)),
                          (module, "synchronize", answer(None)), (module, f"set_device{suffix}", self.set_device),
                          (module, f"current_device{suffix}", lambda function: self.current_gpu)]
        return functions


def image_key(image):
    return image[:, 0, :8].float().contiguous().numpy().tobytes()


def gpu_number(device):
    """None for the current GPU."""
    return device if device is None or isinstance(device, int) else torch.device(device).index


class PretendedGPUs(TorchFunctionMode):
    """Tensors and modules that the program sends to a GPU stay on the CPU; note(device) is called."""

    def __init__(self, note):
        super().__init__()
        self.note = note

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function is torch.device:
            return torch.device("cuda", *args) if isinstance(args[0], int) else function(*args, **kwargs)
        if name == "cuda":
            self.note((*args, *kwargs.values(), None)[1])
            return args[0]
        first = {"_parse_to": 0, "to": 1}.get(name)  # an int there is the number of a GPU
        args = [self.on_cpu(argument, number == first) for number, argument in enumerate(args)]
        if "device" in kwargs:
            kwargs["device"] = self.on_cpu(kwargs["device"], True)
        return function(*args, **kwargs)

    def on_cpu(self, argument, may_be_number):
        names_gpu = isinstance(argument, torch.device | str) and re.fullmatch(r"cuda(:\d+)?", str(argument))
        if names_gpu or may_be_number and type(argument) is int:
            self.note(argument)
            return torch.device("cpu")
        return argument
