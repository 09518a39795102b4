"""One rank of a learner's program, watched: which images it trains on and tests, what it says, saves and waits for.

    capstone_rank.py PROGRAM FOLDER GPUS WAIT       started by lessons/l06_ddp/capstone.py, which reads what is in
    FOLDER

The program runs as it stands, but for this: data.get_dataset gives two small sets, and a collective first asks all
ranks whether they call it too. So a rank that would wait for ever is told at once, with the places of all.

GPUS > 0: each node has so many GPUs. That is pretended: what is sent to a GPU stays where it is, and the number of that
GPU is written down. Ranks are given nodes in turn, GPUS to each; a rank ends after its first update.

WAIT: seconds for a rank that is not known to wait or to have ended: it computes, or hangs by itself.
"""

import copy
import functools
import json
import multiprocessing
import os
import re
import runpy
import sys
import traceback
import zlib
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

import data
import shortcuts

TRAIN, TEST = 151, 23  # images: neither 2 nor 3 ranks can share them equally
COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "barrier",
               "broadcast", "broadcast_object_list", "gather", "gather_object", "init_process_group", "reduce",
               "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list")


class Apart(BaseException):
    """The ranks do not call the same. No `except Exception` of the program stops it."""


class Enough(BaseException):
    """All is known that was asked."""


def small_sets():
    """Training and test ImageSet of noise. In each, class 3 is the most frequent one, so that something is learnt at
    once; in the test set it lies so that no two shards have the same share of it."""
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(256, (TRAIN + TEST, 3, 32, 32), generator=numbers, dtype=torch.uint8)
    labels = torch.randint(10, (TRAIN + TEST,), generator=numbers)
    labels[:TRAIN][torch.rand(TRAIN, generator=numbers) < 0.6] = 3
    labels[TRAIN:] = torch.tensor([3 if place % 2 == 0 or place < 8 else place % 3 for place in range(TEST)])
    return [data.ImageSet("synthetic", images[part], labels[part]) for part in (slice(TRAIN), slice(TRAIN, None))]


class Watch:
    """What one rank of the program does."""

    def __init__(self, program, folder, gpus, wait):
        self.program, self.folder, self.gpus, self.wait = program, folder, gpus, timedelta(seconds=wait)
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store = dist.FileStore(f"{folder}/store", self.ranks)
        self.sets = small_sets()
        self.places = {self.key(image): (split, place) for split, images in enumerate(self.sets)
                       for place, image in enumerate(images.__getitems__(range(len(images)))[0])}
        self.meetings = self.loops = self.depth = 0  # met; loaders begun; modules whose forward is under way
        self.start = self.model = self.random = None  # the model, before its first update and as it is; random state
        self.first = None  # weights after the first update
        self.waiting = []  # batches since the last update
        self.saved = []  # state dicts
        self.seen = {"grouped": False, "wrapped": False, "strange": 0, "updates": [], "tests": [], "saves": [],
                     "asked": [], "raised": None, "apart": None}

    # ------------------------------------------------------------------------------------------ what waits for others

    def line(self):
        """The line of the program that is being run."""
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename != self.program:
            frame = frame.f_back
        return frame and frame.f_lineno

    def epoch(self):
        """How many epochs of training have begun."""
        return len({batch["loop"] for update in self.seen["updates"] for batch in update["batches"]}
                   | {batch["loop"] for batch in self.waiting})

    def tell(self, what, **more):
        place = {"what": what, "line": self.line(), "epoch": self.epoch(), **more}
        self.store.set(f"meeting {self.meetings} rank {self.rank}", json.dumps(place))
        return place

    def meet(self, what, **more):
        """All ranks are here, or Apart."""
        mine, number = self.tell(what, **more), self.meetings
        self.meetings += 1
        places = {self.rank: mine}
        for rank in range(self.ranks):
            key = f"meeting {number} rank {rank}"
            try:
                self.store.wait([key], self.wait)
                places[rank] = json.loads(self.store.get(key))
            except RuntimeError:  # FileStore: "Wait timeout."
                places[rank] = None
        if any(place is None or (place["what"], place.get("size")) != (what, more.get("size"))
               for place in places.values()):
            self.seen["apart"] = [places[rank] for rank in range(self.ranks)]
            raise Apart

    def met(self, name, collective):
        """The collective, which all ranks must call."""
        @functools.wraps(collective)
        def call(*args, **kwargs):
            if sys._getframe(1).f_code.co_filename != self.program:  # torch's own
                return collective(*args, **kwargs)
            if kwargs.get("group") in (None, dist.group.WORLD):
                sizes = [arg.numel() for arg in args[:1] if isinstance(arg, torch.Tensor)]
                self.meet(f"dist.{name}", size=sizes[0] if sizes else None)
            if name == "init_process_group":
                kwargs["timeout"] = self.wait
                if self.gpus:
                    args, kwargs = (), {**kwargs, "backend": "gloo", "device_id": None}
            if self.gpus:
                kwargs.pop("device_ids", None)
            result = collective(*args, **kwargs)
            if name == "init_process_group":
                self.seen["grouped"] = True
                shortcuts.defer_compiler()  # 3 s; before the group it would be brought in all the same
            return result

        return call

    def wrap(self, init):
        """DistributedDataParallel's constructor."""
        @functools.wraps(init)
        def call(ddp, module, device_ids=None, output_device=None, *args, **kwargs):
            self.seen["wrapped"] = True
            self.meet("DistributedDataParallel")
            if self.gpus:
                for device in device_ids or []:
                    self.ask(device)
                device_ids = output_device = None
            init(ddp, module, device_ids, output_device, *args, **kwargs)

        return call

    # ------------------------------------------------------------------------------------------ what the model is given

    @staticmethod
    def key(image):
        return image[:, 0, :8].float().contiguous().numpy().tobytes()

    def find(self, arguments):
        """(0 for training or 1 for test, the images' places in that set); None for no images of ours."""
        images = next((one for one in arguments if isinstance(one, torch.Tensor)), None)
        if images is None or images.ndim != 4:
            return None
        found = [self.places.get(self.key(image)) for image in images]
        if None in found or len({split for split, _ in found}) != 1:
            self.seen["strange"] += 1
            return None
        return found[0][0], [place for _, place in found]

    def before_forward(self, module, arguments):
        self.depth += 1
        if self.depth > 1:
            return
        found = self.find(arguments)
        self.images = found
        if found and found[0] == 0 and torch.is_grad_enabled():
            ddp = isinstance(module, DistributedDataParallel)
            self.model = module.module if ddp else module
            if self.start is None:
                self.start, self.random = copy.deepcopy(self.model), torch.get_rng_state()
            self.waiting.append({"loop": self.loops, "images": found[1], "ddp": ddp})
            if ddp and module.require_backward_grad_sync and not module._join_config.enable:
                self.meet("a step of training")

    def after_forward(self, module, arguments, output):
        self.depth -= 1
        if self.depth or not self.images or not isinstance(output, torch.Tensor):
            return
        split, places = self.images
        output, labels = output.detach(), self.sets[split].labels[places]
        if split == 1:
            self.seen["tests"].append({"epoch": self.epoch(), "images": places,
                                       "hits": (output.argmax(1) == labels).int().tolist()})
        elif self.waiting and "loss" not in self.waiting[-1]:
            self.waiting[-1]["loss"] = cross_entropy(output, labels, reduction="sum").item()

    def after_update(self, optimizer, args, kwargs):
        self.seen["updates"].append({"lr": optimizer.param_groups[0]["lr"], "batches": self.waiting})
        self.waiting = []
        if self.first is None and self.model is not None:
            self.first = flat(self.model)
        if self.gpus:
            raise Enough

    def loop(self, begin):
        @functools.wraps(begin)
        def call(loader):
            self.loops += 1
            return begin(loader)

        return call

    def save(self, write):
        """torch.save: into the folder of this check, also where the program would write elsewhere."""
        @functools.wraps(write)
        def call(thing, file, *args, **kwargs):
            if sys._getframe(1).f_code.co_filename != self.program:  # torch's own: an object that is sent is pickled
                return write(thing, file, *args, **kwargs)
            state = copy.deepcopy(thing) if isinstance(thing, dict) else {}
            self.saved.append(state)
            self.seen["saves"].append({"file": str(file), "names": list(map(str, state)), "line": self.line()})
            if isinstance(file, str | os.PathLike):
                file = Path(file).relative_to("/") if Path(file).is_absolute() else Path(file)
                file.parent.mkdir(parents=True, exist_ok=True)
            return write(thing, file, *args, **kwargs)

        return call

    # ------------------------------------------------------------------------------------------ GPUs, pretended

    def ask(self, device):
        """Write down the number of the GPU that is asked for: the current one where none is said."""
        number = device if isinstance(device, int) else torch.device(device).index
        number = self.current if number is None else number
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")  # the check sets it to "": a number is the program's
        self.seen["asked"].append(int(visible[number]) if visible[0] else number)

    def set_device(self, device):
        number = device if isinstance(device, int) else torch.device(device).index
        self.current = 0 if number is None else number

    def pretend_gpus(self, stack):
        self.current = 0
        node, local_rank = divmod(self.rank, self.gpus)
        here = min(self.gpus, self.ranks - node * self.gpus)
        os.environ.update(LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(here), GROUP_RANK=str(node),
                          GROUP_WORLD_SIZE=str(-(-self.ranks // self.gpus)))
        answers = {torch.cuda: {"is_available": True, "device_count": self.gpus, "synchronize": None,
                                "get_device_name": "a GPU"},
                   torch.accelerator: {"is_available": True, "device_count": self.gpus, "synchronize": None,
                                       "current_accelerator": torch.device("cuda")},
                   dist: {"is_nccl_available": True}}
        for place, those in answers.items():
            for name, answer in those.items():
                stack.enter_context(mock.patch.object(place, name, self.for_program(getattr(place, name), answer)))
        for place, name in ((torch.cuda, "set_device"), (torch.accelerator, "set_device_index")):
            stack.enter_context(mock.patch.object(place, name, self.set_device))
        for place, name in ((torch.cuda, "current_device"), (torch.accelerator, "current_device_index")):
            stack.enter_context(mock.patch.object(place, name, lambda: self.current))
        stack.enter_context(PretendedGPUs(self.ask))

    def for_program(self, function, answer):
        """`function`, which answers the program so; torch itself gets the true answer."""
        def call(*args, **kwargs):
            asked_by_program = sys._getframe(1).f_code.co_filename == self.program
            return answer if asked_by_program else function(*args, **kwargs)

        return call

    # ------------------------------------------------------------------------------------------ the program, and after

    def run(self):
        with ExitStack() as stack:
            patches = [(dist, name, self.met(name, getattr(dist, name))) for name in COLLECTIVES]
            patches += [(DistributedDataParallel, "__init__", self.wrap(DistributedDataParallel.__init__)),
                        (DataLoader, "__iter__", self.loop(DataLoader.__iter__)),
                        (data, "get_dataset", lambda *args, **kwargs: list(self.sets)),
                        (torch, "save", self.save(torch.save)), (sys, "argv", [self.program])]
            for place, name, other in patches:
                stack.enter_context(mock.patch.object(place, name, other))
            for hook in (register_module_forward_pre_hook(self.before_forward),
                         register_module_forward_hook(self.after_forward, always_call=True),
                         register_optimizer_step_post_hook(self.after_update)):
                stack.callback(hook.remove)
            if self.gpus:
                self.pretend_gpus(stack)
            try:
                self.made = runpy.run_path(self.program, run_name="__main__")  # kept to the end: see forked_ranks.KEPT
            except (Apart, Enough):
                pass
            except BaseException as error:
                if not isinstance(error, SystemExit) or error.code not in (None, 0):
                    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                             if frame.filename == self.program]
                    text = re.sub(r"^\[\S+:\d+\] ", "", str(error)).strip() or "nothing more"
                    self.seen["raised"] = {"type": type(error).__name__, "text": text.splitlines()[0],
                                           "line": lines[-1] if lines else None}
            self.tell("raised" if self.seen["raised"] else "ended")

    def report(self):
        """Write all of it; rank 0 trains the model anew, in one process, on the images that all ranks took."""
        if self.model is not None:
            self.seen["random"] = zlib.crc32(self.random.numpy().tobytes())
            final = self.model.state_dict()
            for save, state in zip(self.seen["saves"], self.saved, strict=True):
                plain = {name.removeprefix("module."): value for name, value in state.items()}
                save["same"] = plain.keys() == final.keys() and all(
                    isinstance(value, torch.Tensor) and torch.equal(value, final[name])
                    for name, value in plain.items())
            torch.save(flat(self.model), self.folder / f"weights-{self.rank}.pt")
        part = self.folder / f"part-{self.rank}.json"
        part.write_text(json.dumps(self.seen))
        part.rename(self.folder / f"rank-{self.rank}.json")
        self.store.set(f"done {self.rank}", "")
        if self.rank == 0 and self.start is not None and not (self.gpus or self.seen["raised"] or self.seen["apart"]):
            self.store.wait([f"done {rank}" for rank in range(self.ranks)], self.wait)
            (self.folder / "one.json").write_text(json.dumps(self.in_one_process()))

    def in_one_process(self):
        """How far the ranks' weights are apart, and from those of minimal.py's training on the same images: the unit is
        the way that these have gone. `times`: how much longer than minimal.py's the first update is."""
        of_ranks = [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in range(self.ranks)]
        weights = [torch.load(self.folder / f"weights-{rank}.pt") for rank in range(self.ranks)]
        model, images = self.start, self.sets[0]
        reached = [flat(model)]  # after each update
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # minimal.py's
        for updates in zip(*(rank["updates"] for rank in of_ranks), strict=False):
            taken = [place for update in updates for batch in update["batches"] for place in batch["images"]]
            pixels, labels = images.__getitems__(taken)
            optimizer.zero_grad()
            cross_entropy(model(pixels), labels).backward()
            optimizer.step()
            reached.append(flat(model))
        way, first = (reached[-1] - reached[0]).norm(), reached[1] - reached[0]
        return {"apart": max((other - weights[0]).norm() / way for other in weights).item(),
                "off": ((weights[0] - reached[-1]).norm() / way).item(),
                "times": ((self.first - reached[0]) @ first / first.norm()**2).item()}


def flat(model):
    return torch.cat([one.detach().flatten() for one in model.parameters()])


class PretendedGPUs(TorchFunctionMode):
    """What is asked to be on a GPU stays on the CPU."""

    def __init__(self, ask):
        super().__init__()
        self.ask = ask

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function is torch.device:
            return torch.device("cuda", *args) if isinstance(args[0], int) else function(*args, **kwargs)
        if name == "cuda":
            device = kwargs.get("device", args[1] if len(args) > 1 else "cuda")
            self.ask("cuda" if device is None else device)
            return args[0]
        first = {"_parse_to": 0, "to": 1}.get(name)  # an int there is a GPU's number
        args = tuple(self.here(arg, number == first) for number, arg in enumerate(args))
        if "device" in kwargs:
            kwargs["device"] = self.here(kwargs["device"], True)
        return function(*args, **kwargs)

    def here(self, thing, may_be_number=False):
        is_gpu = (isinstance(thing, torch.device) and thing.type == "cuda"
                  or isinstance(thing, str) and re.fullmatch(r"cuda(:\d+)?", thing)
                  or may_be_number and type(thing) is int)
        if is_gpu:
            self.ask(thing)
        return "cpu" if is_gpu and isinstance(thing, str) else torch.device("cpu") if is_gpu else thing


def main(program, folder, gpus, wait):
    watch = Watch(program, Path(folder), int(gpus), float(wait))
    said = os.open(watch.folder / f"said-{watch.rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(said, number)
    home = watch.folder / "home"
    home.mkdir(exist_ok=True)
    os.chdir(home)
    sys.path[0] = str(Path(program).parent)
    # A DataLoader's workers are started as in any program, and not as this process was
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    watch.run()
    watch.report()
    if None in (watch.seen["apart"] or []):
        os._exit(1)  # so that the rank that hangs by itself is ended
    shortcuts.exit_now()


if __name__ == "__main__":
    main(*sys.argv[1:])
