"""A job of many nodes on one CPU: a few of its ranks, one after the other, in a process group that sends nothing.

    python -m doctor --pretend 128x8 my_train.py --epochs 1      128 nodes with 8 GPUs each

Each rank is a child process with torchrun's environment, a group of torch's fake backend (private:
torch.testing._internal.distributed.fake_pg), and GPUs that are pretended: what goes to one stays on the CPU. Of each
DataLoader it reads a few batches. The hooks note what the rank does, as in a real run, and the rest is noted here.
"""

import bisect
import contextlib
import inspect
import json
import multiprocessing
import os
import pickle
import re
import runpy
import socket
import sys
import tempfile
import warnings
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import torch
import torch._dynamo  # before the fork: a mode that sees all calls imports it
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from . import at_scale, report
from .hooks import Hooks
from .log import where
from .runner import PACKAGE, Runner

BATCHES = 3  # of a pass over a DataLoader, unless --steps says it
UPDATES = 100  # after so many, a rank that knows no end is ended
SCHEDULED = 10_000  # steps of a scheduler that are looked at
LARGE = 2**20  # bytes of a list with a tensor of every rank, from which on it is told


def always(value):
    return lambda *_, **__: value


class Nothing(contextlib.nullcontext):
    """A stream or an event of a pretended GPU."""

    elapsed_time = always(1.0)

    def __getattr__(self, _):
        return always(None)


class GPUs(TorchFunctionMode):
    """What is meant for a GPU stays on the CPU. `last`: the number of the GPU that was asked for, if any."""

    def __init__(self, log, count):
        super().__init__()
        self.log, self.count, self.current, self.last = log, count, 0, None

    def visible(self):
        """A script may show itself some of them."""
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        return len(shown.split(",")) if shown else self.count

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.device:
            return function(*args, **kwargs)
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            if function is torch.Tensor.cuda:
                self.ask(*args[1:2] or [kwargs.get("device")])
            return args[0]
        return function(*[self.on_cpu(each, function is torch.Tensor.to) for each in args],  # to(3) is to(cuda:3)
                        **{name: self.on_cpu(each, name == "device") if name != "pin_memory" else False
                           for name, each in kwargs.items()})

    def on_cpu(self, value, number):
        meant = (number and type(value) is int or isinstance(value, torch.device) and value.type == "cuda"
                 or isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value))
        return self.ask(value) if meant else value

    def ask(self, device, choose=False):
        """Note the GPU that is asked for, and give the CPU. (torch keeps eight bits: of cuda:1016 the index is -8.)"""
        index = device if isinstance(device, int) else torch.device(device or "cuda").index
        self.last = self.current if index is None else index
        self.current = self.last if choose else self.current
        if not 0 <= self.last < self.visible():
            self.log.once("no_such_gpu", where=where(), number=self.last, gpus=self.visible())
        return torch.device("cpu")

    def install(self):
        gpu = SimpleNamespace(name="pretended", total_memory=80 * 10**9, major=9, minor=0, multi_processor_count=132)
        answers = {
            "is_available": True, "is_bf16_supported": True, "get_device_name": gpu.name,
            "get_device_properties": gpu, "get_device_capability": (9, 0), "current_accelerator": torch.device("cuda"),
            "mem_get_info": (gpu.total_memory,) * 2, "memory_stats": {}, "memory_summary": "", "stream": Nothing(),
            "current_stream": Nothing(), "get_rng_state": torch.zeros(16, dtype=torch.uint8), "get_rng_state_all": []}
        for module in (torch.cuda, torch.accelerator):
            for name in [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]:
                setattr(module, name, always(answers.get(name, 0 if "memory" in name else None)))
            module.device_count = self.visible
        torch.cuda.Stream = torch.cuda.Event = always(Nothing())
        torch.cuda.current_device = torch.accelerator.current_device_index = lambda: self.current
        torch.cuda.set_device = torch.accelerator.set_device_index = torch.set_default_device = (
            lambda device: self.ask(device, choose=True) and None)
        torch.cuda.device = torch.accelerator.device_index = lambda each: self.ask(each) and Nothing()
        to, load, as_it_is = nn.Module.to, torch.load, lambda function: function
        nn.Module.to = lambda module, *args, **given: to(module, *[self.on_cpu(each, True) for each in args], **given)
        torch.load = lambda *args, **given: load(*args[:1], **given | {"map_location": "cpu"})
        torch.compile = lambda model=None, **_: (
            torch._dynamo.OptimizedModule(model, as_it_is) if isinstance(model, nn.Module) else model or as_it_is)
        nn.Module.compile = always(None)
        for name, value in {"pin_memory": False, "num_workers": 0, "timeout": 0}.items():
            setattr(DataLoader, name, property(always(value), always(None)))
        self.__enter__()


class Wire(TorchDispatchMode):
    """What a rank sends, whoever calls it. `now`: {(collective, its ranks, their nodes): [bytes of each]} of a step."""

    def __init__(self, log, gpus):
        super().__init__()
        self.log, self.gpus, self.now = log, gpus, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a DTensor works out first what it has to send
        out = function(*args, **(kwargs or {}))
        if "c10d" in function.namespace and re.search("reduce|gather|broadcast|all_?to|scatter|send", function.name()):
            boxed = [each for each in args if isinstance(each, torch.ScriptObject)]
            group = (dist.ProcessGroup.unbox(boxed[0]) if boxed
                     else dist.distributed_c10d._resolve_process_group(args[-1]))
            parts = [[each for each in tree_leaves(part) if torch.is_tensor(each)] for part in (*args, out)]
            self.sent(function.name().split("::")[1], max(parts, key=at_scale.held), group)
        return out

    def sent(self, name, tensors, group):
        ranks, size = dist.get_process_group_ranks(group), at_scale.held(tensors)
        name = next((known for part, (known, _) in at_scale.RINGS.items() if part in name.replace("_", "")), name)
        self.now.setdefault((name, len(ranks), len({rank // self.gpus for rank in ranks})), []).append(size)
        if len(tensors) == len(ranks) > 2 and size >= LARGE:
            self.log.once("list", where=where(), what=name, tensors=len(tensors), bytes=size)


class Rank(Runner):
    """A runner that leaves its record in a folder, for the report that compares the ranks."""

    def __init__(self, folder, args, rank, nodes, gpus, heard):
        self.place = SimpleNamespace(rank=rank, ranks=nodes * gpus, node=rank // gpus, gpus=gpus)
        self.folder, self.heard, self.given = folder, heard, []
        self.comm_hooks, self.schedulers, self.highest = WeakKeyDictionary(), {}, 0.0
        os.environ |= {name: str(value) for name, value in {  # torchrun's; the store of its agent is not there
            "RANK": rank, "LOCAL_RANK": rank % gpus, "WORLD_SIZE": nodes * gpus, "LOCAL_WORLD_SIZE": gpus,
            "GROUP_RANK": rank // gpus, "GROUP_WORLD_SIZE": nodes, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": nodes * gpus,
            "ROLE_NAME": "default", "MASTER_ADDR": "node-0", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "pretended",
            "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_USE_AGENT_STORE": False,
            "OMP_NUM_THREADS": 1}.items()}
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        sys.argv, sys.path[0] = [str(args.script), *args.options], str(args.script.resolve().parent)
        sys.path.append(PACKAGE)
        torch.set_num_threads(1)
        self.replace()  # before the hooks, which note what is called
        super().__init__(args, folder / "statuses")
        self.store.join_group = always(None)  # there is nobody to meet
        self.gpus, self.wire = GPUs(self.log, gpus), Wire(self.log, gpus)
        self.hooks.device = lambda _: self.log.note(
            "device", device="cpu" if self.gpus.last is None else f"cuda:{self.gpus.last}", gpu=self.gpus.last,
            visible=self.gpus.visible(), host=socket.gethostname())
        self.gpus.install()
        self.wire.__enter__()
        DataLoader.__iter__ = self.loader(DataLoader.__iter__)
        register_module_forward_pre_hook(self.forward)
        register_optimizer_step_post_hook(self.updated)

    def replace(self):
        """What needs other ranks."""
        place, host, look_up = self.place, f"node-{self.place.node}", socket.gethostbyname
        begin, group, gather, wrap, hooked, mesh = (
            dist.init_process_group, dist.new_group, dist.all_gather_object, DistributedDataParallel.__init__,
            DistributedDataParallel.register_comm_hook, DeviceMesh.__init__)

        def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, *_, **__):
            self.meets(init_method, rank, world_size)
            begin("fake", rank=place.rank, world_size=place.ranks, store=FakeStore())

        def rendezvous(url, rank=-1, world_size=-1, **_):
            self.meets(url, rank, world_size)
            return iter([(FakeStore(), place.rank, place.ranks)])

        def init_ddp(model, module, device_ids=None, output_device=None, **given):
            for device in device_ids or []:
                self.gpus.ask(device)
            wrap(model, module, **given)
            hooked(model, None, lambda _, bucket: self.reduce(model, bucket))

        def all_gather_object(object_list, obj, group=None):
            gather(object_list, obj, group)
            self.log.once("unknown", what="all_gather_object", where=where())
            theirs, own = self.exchanged("all_gather_object", obj), dist.get_rank(group)
            object_list[:] = [obj if number == own else theirs for number in range(len(object_list))]

        def broadcast_object_list(object_list, src=0, *_, **__):
            mine, theirs = list(object_list), self.exchanged("broadcast_object_list", object_list)
            object_list[:] = mine if src == place.rank else theirs

        DistributedDataParallel.__init__ = init_ddp
        DistributedDataParallel.register_comm_hook = lambda model, state, hook: self.comm_hooks.update(
            {model: lambda bucket: hook(state, bucket)})
        DeviceMesh.__init__ = lambda self, device_type, *args, **given: mesh(self, "cpu", *args, **given)
        for module in (dist, dist.distributed_c10d, sys.modules[DeviceMesh.__module__]):
            module.init_process_group, module.new_group = init_process_group, lambda ranks=None, *_, **__: group(ranks)
        dist.all_gather_object, dist.broadcast_object_list = all_gather_object, broadcast_object_list
        dist.rendezvous, dist.monitored_barrier = rendezvous, dist.barrier
        written = Future()
        written.set_result(None)
        checkpoint.save = checkpoint.load = always(None)  # they would need the shards of all ranks
        checkpoint.async_save = always(written)
        torch.multiprocessing.spawn = lambda *_, **__: sys.exit("--pretend is for a script that torchrun starts")
        socket.gethostname = socket.getfqdn = always(host)
        socket.gethostbyname = lambda name: f"10.0.{place.node >> 8}.{place.node & 255}" if name == host else (
            look_up(name))
        for kind in (lr_scheduler.LRScheduler, lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler):
            kind.__init__ = Hooks.before(None, kind.__init__, lambda scheduler, *_, **__: (
                self.schedulers.setdefault(scheduler, where())))

    def meets(self, url, rank=-1, world_size=-1):
        env = os.environ
        if url in (None, "env://"):
            url = f"tcp://{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}"
        rank, ranks = (int(env[name] if given in (-1, None) else given)
                       for name, given in (("RANK", rank), ("WORLD_SIZE", world_size)))
        self.log.note("meets", where=where(), at=url.removeprefix("tcp://"), rank=rank, ranks=ranks)

    def exchanged(self, name, mine):
        """The object that rank 0 gave to this call; `mine` where that is not known."""
        self.given.append((name, pickle.dumps(mine)))
        number = len(self.given) - 1
        if [heard for heard, _ in self.heard[number:number + 1]] == [name]:
            return pickle.loads(self.heard[number][1])
        if self.place.rank:
            self.log.once("unknown", what=name, where=where())
        return mine

    def reduce(self, model, bucket):
        """DDP's gradients come back as they were sent."""
        if model in self.comm_hooks:
            self.comm_hooks[model](bucket)  # a hook of the script's: its messages are counted, its result never comes
        else:
            self.wire.sent("allreduce", [bucket.buffer()], model.process_group)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def loader(self, function):
        def begin(loader):
            iterator, batches = function(loader), None
            if not isinstance(loader.dataset, IterableDataset):
                batches = len(loader)
                shard = len(loader.sampler) if loader.batch_sampler is not None else batches
                self.log.once("plan", where=where(), batches=batches, batch=loader.batch_size, shard=shard,
                                share=batches * loader.batch_size if loader.drop_last else shard,
                                images=len(loader.dataset), drops=loader.drop_last)
            few = batches is None or batches > self.args.batches
            return islice(iterator, self.args.batches) if few else iterator
        return begin

    def forward(self, *_):
        if self.hooks.depth == 1 and not self.log.steps and not self.log.backwards:
            self.wire.now = {}  # the first step begins: what made the model is not its own

    def updated(self, optimizer, *_):
        """Note what a step has sent, and what the rank holds."""
        sent, self.wire.now = [[*kind, sizes] for kind, sizes in self.wire.now.items()], {}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        rate = float(optimizer.param_groups[0]["lr"])
        self.highest = max(self.highest, rate)
        self.log.note("sent", most=20, sent=sent, where=where(), optimizer=id(optimizer), rate=rate,
                        weights=at_scale.held(parameters), states=at_scale.held(states),
                        gradients=at_scale.held([each.grad for each in parameters if each.grad is not None]))

    def rising(self):
        """Run the schedulers on after the last update: does the rate still rise, and until when?"""
        parts = {id(part) for each in self.schedulers for part in getattr(each, "_schedulers", [])}
        for scheduler, line in self.schedulers.items():
            if id(scheduler) in parts or not hasattr(scheduler, "last_epoch"):
                continue
            rates, made = [self.highest], scheduler.last_epoch
            with contextlib.suppress(ValueError):  # OneCycleLR has an end
                while len(rates) < SCHEDULED:
                    scheduler.step()
                    rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
            if max(rates) > 1.001 * rates[0]:
                self.log.note("rises", where=line, until=made + rates.index(max(rates)), rate=max(rates),
                                each="update" if made >= self.log.steps else "epoch")

    def tell(self, records):
        if self.place.rank == 0:
            warnings.simplefilter("ignore")  # nothing is trained any more
            self.rising()
        (self.folder / "record").write_text(json.dumps(self.log.record()))
        (self.folder / "given").write_bytes(pickle.dumps(self.given))
        return 0


def be_rank(folder, *given):
    """The child process. Rank 0's output is shown, that of the others is kept."""
    runner = Rank(folder, *given)
    if runner.place.rank or runner.place.ranks == 1 or runner.args.searching:
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
    runner.run(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
    sys.stdout.flush()
    runner.leave(0)


def run(args, rank, nodes, gpus, heard=()):
    """The record of a rank, run in a child process. `heard`: what rank 0 gave to collectives of objects."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "statuses").mkdir()
        given = folder, args, rank, nodes, gpus, heard
        child = multiprocessing.get_context("fork").Process(target=be_rank, args=given)
        child.start()
        child.join(args.timeout)
        for end in (child.terminate, child.kill):
            if child.is_alive():
                end()
                child.join(5)
        record = {"rank": rank, "said": (folder / "said").read_text() if (folder / "said").exists() else ""}
        if (folder / "record").exists():
            record |= json.loads((folder / "record").read_text())
            record["given"] = pickle.loads((folder / "given").read_bytes())
        return record


def first(without, having, has):
    """The smallest number that has it, where all from there on do. `without` does not have it, `having` does."""
    return without + 1 + bisect.bisect_left(range(without + 1, having), True, key=has)


def examine(args):
    """Run the chosen ranks, and write the report. Returns the exit status."""
    nodes, gpus = args.pretend
    chosen = sorted({rank for rank in (0, 1, gpus - 1, gpus, nodes * gpus - 1) if rank < nodes * gpus})
    args.batches, args.steps, args.searching = args.steps or BATCHES, UPDATES, False
    # Before rank 0 the first rank of another node: the files that rank 0 makes are not there yet.
    early = run(args, gpus, nodes, gpus) if nodes > 1 else None
    runs = {0: run(args, 0, nodes, gpus)}
    for rank in chosen[1:]:
        again = rank != gpus or not early or at_scale.failed(early) or at_scale.notes(early, "unknown")
        runs[rank] = run(args, rank, nodes, gpus, runs[0].get("given", ())) if again else early
    alone = run(args, 0, 1, 1)
    sys.stderr.write(next((runs[rank]["said"] for rank in chosen if at_scale.failed(runs[rank])), ""))
    known = [runs[rank] for rank in chosen]
    args.searching, edges = True, {}  # {what only some ranks or jobs show: the first of them}
    for lack in at_scale.LACKS:
        if lack(known[-1]) and not lack(runs[0]):
            last = max(rank for rank in chosen if not lack(runs[rank]))
            following = min(rank for rank in chosen if rank > last)
            edges[lack.__name__] = first(last, following, lambda rank, lack=lack: (
                lack(run(args, rank, nodes, gpus, runs[0].get("given", ())))))
    if at_scale.becomes_nothing(runs[0]) and not at_scale.failed(alone):
        edges["becomes_nothing"] = first(0, nodes, lambda count: at_scale.becomes_nothing(run(args, 0, count, gpus)))
    said = at_scale.compared(known, early, alone, args, edges)
    return int(report.publish(said, args.json) > 0 or all(at_scale.failed(runs[rank]) for rank in chosen))
