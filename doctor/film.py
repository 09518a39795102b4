"""Record a run, rank by rank: what computes, which message is under way, who waits, and each step's loss and weights.

`torchrun … -m doctor --film run.json PROGRAM` comes here. Each rank appends its events to a file of its own, line by
line, so that they are there also when the rank is killed. At the end one rank puts the files together: a Chrome trace,
which Perfetto opens, or a page of its own (run.html).
"""

import functools
import json
import math
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from .log import innermost, where

MOST = 20_000_000  # bytes of a rank's events: then it records no more
NAMES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all"}  # else in small letters
NEAR = 1e-6  # of a tensor's norm, between machines: ranks whose digests differ by more hold different values
LAUNCHED = [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE")]  # by torchrun, srun, Open MPI, MPICH


def now() -> int:
    """Microseconds of a clock that all ranks of a machine share (CLOCK_MONOTONIC)."""
    return time.perf_counter_ns() // 1000


class Film:
    """What one rank has recorded."""

    def __init__(self, path: Path, steps: range):
        self.path, self.steps, self.step, self.ended = path, steps, 0, False
        self.rank, self.world_size = next(((int(os.environ[rank]), int(os.environ[size])) for rank, size in LAUNCHED
                                           if rank in os.environ and size in os.environ), (0, 1))
        self.pid, self.part = os.getpid(), part_of(path, self.rank)
        if self.rank == 0:
            path.unlink(missing_ok=True)  # of an earlier run
        self.file = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self.pending, self.writing = deque(), threading.Lock()  # gloo's threads tell of the ends of messages
        self.size = self.own = self.depth = self.updating = 0
        self.touched = time.monotonic()
        self.calls, self.open = 0, {}  # messages so far; op_id of torch's hooks: ours
        self.of_work = weakref.WeakKeyDictionary()
        self.held: dict[int, dist.Work] = {}  # what is under way
        self.models, self.loss, self.vectors = [], None, {}
        self.gradients, self.by_hand, self.due = {}, True, False  # by_hand: there is no optimizer
        self.write(k="head", rank=self.rank, ranks=self.world_size, host=host(), run=run_id(), pid=self.pid,
                   torch=torch.__version__, t=now())

    # ------------------------------------------------------------------------------------------------------- events

    @property
    def on(self) -> bool:
        self.lives()
        return self.step in self.steps and self.size < MOST and os.getpid() == self.pid

    def lives(self) -> None:
        """Tell the other ranks, by the time of this rank's part, that it moves. It may record nothing."""
        if time.monotonic() - self.touched > 0.5 and os.getpid() == self.pid:
            self.touched = time.monotonic()
            with suppress(FileNotFoundError):  # the run has ended: the last rank has put the parts together
                os.utime(self.part)

    def write(self, **event) -> None:
        """Append an event, and with it those that wait. What is written outlives this process."""
        self.keep(**event)
        self.flush()

    def keep(self, **event) -> None:
        """Keep an event until the next that is written: a span that has ended tells nothing of a hang."""
        self.pending.append(json.dumps(event, allow_nan=False))
        if len(self.pending) > 50:
            self.flush()

    def flush(self) -> None:
        begin = now()
        with self.writing:
            lines = [self.pending.popleft() for _ in range(len(self.pending))]
            if self.size + sum(map(len, lines)) > MOST > self.size:
                lines.append(json.dumps({"k": "full", "t": now()}))
            text = "".join(f"{line}\n" for line in lines).encode()
            self.size += len(text)
            os.write(self.file, text)
        self.own += now() - begin

    @contextmanager
    def span(self, lane, name, **more):
        """A block that takes its time in a lane."""
        begin = now()
        try:
            yield
        finally:
            if self.on:
                self.keep(k="span", lane=lane, name=name, t=begin, d=now() - begin, step=self.step, **more)

    def align(self, store, rank, ranks) -> None:
        """Measure how far this clock is from rank 0's, where it is another machine's: by the store that they share."""
        store.set(f"film {rank}", host())
        hosts = [store.get(f"film {each}").decode() for each in range(ranks)]
        offset = error = 0
        for other in (each for each in range(ranks) if hosts[each] != hosts[0]):
            for number in range(10):
                if rank == 0:
                    store.wait([f"film {other} asks {number}"])
                    store.set(f"film {other} hears {number}", str(now()))
                elif rank == other:
                    asked = now()
                    store.set(f"film {other} asks {number}", "")
                    answer, took = int(store.get(f"film {other} hears {number}")), now() - asked
                    if number == 0 or took / 2 < error:
                        offset, error = answer - (asked + took / 2), took / 2
        self.write(k="clock", offset=offset, error=error)

    def end(self, how: str) -> None:
        """Write how this process ended, once; one rank then puts the film together."""
        if self.ended or os.getpid() != self.pid:
            return
        self.ended = True
        if threading.current_thread() is threading.main_thread():
            if self.due:  # elsewhere, in a hang: no digest, which would wait for the GPU
                self.step_ends()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, when a rank has failed: what follows is short
        self.write(k="end", how=how, t=now())
        if not any(alive(part_of(self.path, rank)) for rank in range(self.world_size)):
            publish(self.path)  # this rank is the last

    # ----------------------------------------------------------------------------------------------------- messages

    def group_made(self, group) -> None:
        """Record the messages of a new group."""
        group.register_pre_hook(4711, functools.partial(self.called, weakref.ref(group)))
        group.register_post_hook(4711, self.under_way)

    def called(self, group, call) -> None:
        if not self.on:
            return
        begin = now()
        self.calls += 1
        self.open[call.op_id] = self.calls
        tensors = call.input_tensors or call.output_tensors
        size = max(sum(each.nbytes for each in call.input_tensors), sum(each.nbytes for each in call.output_tensors))
        event = {"name": NAMES.get(call.name.name, call.name.name.lower()), "step": self.step, "bytes": size,
                 "type": str(tensors[0].dtype).removeprefix("torch.") if tensors else "", "root": call.root,
                 "group": dist.get_process_group_ranks(group()), "where": where()}
        self.own += now() - begin
        self.write(k="call", id=self.calls, t=now(), **event)

    def under_way(self, call) -> None:
        number, work = self.open.pop(call.op_id, None), call.work
        if number is None or work is None:
            return
        self.of_work[work] = number
        self.held[number] = work  # else Python makes another object of it for the script, unknown to of_work
        if call.name.name not in ("SEND", "RECV"):  # a second wait for these hangs
            try:
                work.get_future().then(functools.partial(self.done, number))
            except RuntimeError:  # gloo's reduce_scatter has no future: its end is known when somebody waits
                return

    def done(self, number, _=None) -> None:
        self.held.pop(number, None)
        self.pending.append(json.dumps({"k": "done", "id": number, "t": now()}))

    def waiting(self, wait):
        @functools.wraps(wait)
        def waited(work, *args, **options):
            number, begin = self.of_work.get(work), now()
            try:
                return wait(work, *args, **options)
            finally:
                if self.on and number:
                    self.done(number)
                    self.keep(k="span", lane="wait", name="wait", t=begin, d=now() - begin, step=self.step)
        return waited

    # ---------------------------------------------------------------------------------------------------- computing

    def forward_begins(self, module, _) -> None:
        self.depth += 1
        if self.depth == 1:
            if self.due and torch.is_grad_enabled():
                self.step_ends()
            self.forward_began = now()
            if module.training and torch.is_grad_enabled() and not any(
                    part is module for known in self.models if known() for part in known().modules()):
                self.models.append(weakref.ref(module))

    def forward_ends(self, module, *_) -> None:
        self.depth -= 1
        if self.depth == 0 and self.on:
            self.keep(k="span", lane="compute", name="forward" if torch.is_grad_enabled() else "evaluate",
                      t=self.forward_began, d=now() - self.forward_began, step=self.step)

    def backward(self, backward):
        @functools.wraps(backward)
        def recorded(tensors, *args, **options):
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            self.loss = first.detach() if first is not None and first.numel() == 1 else None
            with self.span("compute", "backward", where=where()):
                backward(tensors, *args, **options)
            self.due = self.by_hand  # its update has no hook: the step ends where the next one begins
        return recorded

    def next_batch(self, iterate):
        @functools.wraps(iterate)
        def batches(loader):
            iterator, nothing = iterate(loader), object()
            while True:
                with self.span("compute", "data"):
                    batch = next(iterator, nothing)
                if batch is nothing:
                    return
                yield batch
        return batches

    def optimizer_made(self, initialise):
        @functools.wraps(initialise)
        def made(*args, **options):
            self.by_hand = self.due = False
            return initialise(*args, **options)
        return made

    def before_update(self, *_) -> None:
        self.updating += 1
        if self.updating == 1:  # ZeroRedundancyOptimizer's step calls that of its own optimizer
            self.note_gradients()
            self.update_began = now()

    def after_update(self, *_) -> None:
        self.updating -= 1
        if self.updating:
            return
        if self.on:
            self.keep(k="span", lane="compute", name="update", t=self.update_began, d=now() - self.update_began,
                      step=self.step)
        self.step_ends()

    def note_gradients(self) -> None:
        if self.on:
            self.gradients = self.digests({name: tensor.grad for name, tensor in self.tensors("named_parameters")
                                           if tensor.grad is not None})

    def step_ends(self) -> None:
        if self.by_hand:  # what zero_grad() has left of them
            self.note_gradients()
        if self.on:
            loss = None if self.loss is None else float(self.loss)
            self.write(k="step", step=self.step, t=now(), gradients=self.gradients,
                       loss=loss if loss is None or math.isfinite(loss) else repr(loss),
                       values=self.digests(dict(self.tensors("named_parameters"))),
                       buffers=self.digests(dict(self.tensors("named_buffers"))), own=self.own)
        self.step, self.due = self.step + 1, False

    def tensors(self, which: str):
        """(name, tensor) of the models that have trained; names of a second model begin with its number."""
        for number, model in enumerate(filter(None, (known() for known in self.models))):
            model = model.module if isinstance(model, DistributedDataParallel) else model
            for name, tensor in getattr(model, which)():
                yield f"{number}:{name}" if number else name, tensor

    @torch.no_grad()
    def digests(self, tensors) -> dict[str, list]:
        """{name: [product with a fixed vector, norm]}: they tell values apart, and their order. Tensors that are
        sharded over ranks have none."""
        begin, found = now(), {}
        for name, tensor in tensors.items():
            if (hasattr(tensor, "full_tensor") or type(tensor).__name__ == "FlatParameter" or tensor.is_meta
                    or not tensor.numel() or not tensor.is_floating_point()
                    or not tensor.untyped_storage().nbytes()):  # released between two uses: reading would crash
                continue
            exact = torch.float32 if tensor.device.type == "mps" else torch.float64
            flat = tensor.detach().reshape(-1).to(exact)
            vector = self.vectors.get(flat.device)
            if vector is None or len(vector) < len(flat):
                vector = torch.rand(len(flat), generator=torch.Generator().manual_seed(0), dtype=exact) + 0.5
                vector = self.vectors[flat.device] = vector.to(flat.device)
            found[name] = torch.stack([torch.dot(flat, vector[:len(flat)]), torch.linalg.vector_norm(flat)])
        digests = {name: [value if math.isfinite(value) else repr(value) for value in pair.tolist()]
                   for name, pair in found.items()}
        self.own += now() - begin
        self.keep(k="span", lane="film", name="digests", t=begin, d=now() - begin, step=self.step)
        return digests


def host() -> str:
    """A name of this machine, and of no other, even where two are called localhost."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()


def run_id() -> str:
    """The same on all ranks of a run, and usually different from that of an earlier run."""
    return "/".join(os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID"))


def part_of(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name}.rank{rank}")


# ------------------------------------------------------------------------------------------------------- the recorder


def record(path: Path, steps: range) -> Film:
    """Begin to record this process. RuntimeError, one line, where this torch has no hooks of process groups."""
    if not hasattr(dist.ProcessGroup, "register_pre_hook"):
        raise RuntimeError(f"--film needs torch 2.14 or newer; this is {torch.__version__}")
    film = Film(path, steps)
    make = distributed_c10d._new_process_group_helper

    def made(*args, **options):
        group, store = make(*args, **options)
        if store is not None:  # this rank is in the group
            film.group_made(group)
            if not args[2]:  # the group of all ranks
                if (group.rank(), group.size()) != (film.rank, film.world_size):
                    raise RuntimeError(f"--film took this process for rank {film.rank} of {film.world_size}, and it is "
                                       f"rank {group.rank()} of {group.size()}: start with torchrun, srun or mpirun")
                film.align(store, group.rank(), group.size())
        return group, store

    distributed_c10d._new_process_group_helper = made
    dist.Work.wait = film.waiting(dist.Work.wait)
    torch.autograd.backward = film.backward(torch.autograd.backward)  # Tensor.backward calls it
    DataLoader.__iter__ = film.next_batch(DataLoader.__iter__)
    register_module_forward_pre_hook(film.forward_begins)
    register_module_forward_hook(film.forward_ends, always_call=True)
    torch.optim.Optimizer.__init__ = film.optimizer_made(torch.optim.Optimizer.__init__)
    register_optimizer_step_pre_hook(film.before_update)
    register_optimizer_step_post_hook(film.after_update)
    return film


# --------------------------------------------------------------------------------------------------- putting together


def alive(part: Path) -> bool:
    """Does the rank that writes this part still run?"""
    if not part.exists():
        return False
    with part.open("rb") as file:
        head = json.loads(file.readline())
        file.seek(max(0, part.stat().st_size - 2000))
        if any(b'"k": "end"' in line for line in file.read().splitlines()[-1:]):
            return False
    if head["host"] != host():
        return True  # on another machine: nobody knows
    try:
        os.kill(head["pid"], 0)
    except ProcessLookupError:
        return False
    try:
        fields = Path(f"/proc/{head['pid']}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has gone in this moment; or a system without /proc
        return not Path("/proc/self/stat").exists()
    return fields[0] != "Z" and not int(fields[6]) & 4  # PF_EXITING: its connections close before it is a zombie


def read(part: Path) -> list[dict]:
    """The events of a part, without a last line of which only a piece is there yet."""
    return [json.loads(line) for line in part.read_text().splitlines(keepends=True) if line.endswith("\n")]


def publish(path: Path) -> None:
    """Put the ranks' parts together in the file that was asked for, and remove them unless a rank still lives."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    except FileExistsError:  # two ranks were the last: the other one does it
        return
    try:
        parts = sorted(path.parent.glob(f"{path.name}.rank*"), key=lambda part: part.stat().st_mtime)
        if not parts:
            return
        events = {part: read(part) for part in parts}
        newest = events[parts[-1]][0]
        film = joined(sorted((of_rank for of_rank in events.values() if of_rank[0]["run"] == newest["run"]
                              and of_rank[0]["rank"] < newest["ranks"]), key=lambda of_rank: of_rank[0]["rank"]))
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(page(film) if path.suffix == ".html" else json.dumps(trace(film), allow_nan=False))
        whole.replace(path)
        if not any(map(alive, parts)):
            for part in parts:
                part.unlink()
    finally:
        lock.unlink()
    print("\n".join(f"film: {line}" for line in [f"{path}: {film['summary']}", *film["verdicts"]]), file=sys.stderr)


def joined(parts: list[list[dict]]) -> dict:
    """The film of the ranks' events: {"ranks": [head of each], "spans", "messages", "steps"}, times in microseconds
    from the first rank's begin on, on rank 0's clock; and what follows from these: {"missing", "parted", "summary",
    "verdicts"}."""
    film = {"ranks": [], "spans": [], "messages": [], "steps": [], "cut": None}
    offsets = [next((event["offset"] for event in events if event["k"] == "clock"), 0) for events in parts]
    zero = min(events[0]["t"] + offset for events, offset in zip(parts, offsets, strict=True))
    for events, offset in zip(parts, offsets, strict=True):
        head, last = events[0], events[-1]
        rank = head["rank"]
        ends_at = last["t"] if "t" in last else max(event.get("t", 0) for event in events)
        film["ranks"].append({
            "rank": rank, "host": head["host"], "torch": head["torch"],
            "clock_error": next((event["error"] for event in events if event["k"] == "clock"), 0),
            "ended": last["how"] if last["k"] == "end" else "killed, or still running",
            "end": ends_at + offset - zero})
        ends, orders, free = {}, {}, []
        for event in events:
            event |= {"t": event["t"] + offset - zero} if "t" in event else {}
            if event["k"] == "full":
                film["cut"] = min(event["t"], film["cut"] or event["t"])
            elif event["k"] == "done":
                ends.setdefault(event["id"], event["t"])
            elif event["k"] in ("span", "step"):
                film[f"{event['k']}s"].append({"rank": rank, **{key: event[key] for key in event if key != "k"}})
        for event in (each for each in events if each["k"] == "call"):
            key = key_of(rank, event)
            orders[key] = orders.get(key, -1) + 1
            end = ends.get(event["id"])
            # Messages that are under way at the same time stand on tracks of their own.
            track = next((number for number, until in enumerate(free) if until <= event["t"]), len(free))
            free[track:track + 1] = [film["ranks"][-1]["end"] if end is None else end]
            film["messages"].append({
                "rank": rank, "key": json.dumps([*key, orders[key]]), "end": end, "track": track,
                **{name: event[name] for name in ("name", "t", "step", "bytes", "type", "where")},
                "members": members(rank, event)})
    film["spans"] += waits_of_ddp(film)
    film["missing"], film["parted"] = missing(film), parted(film)
    film["summary"], film["verdicts"] = summary(film), verdicts(film)
    return film


def waits_of_ddp(film: dict) -> list[dict]:
    """DDP waits inside of backward, where no hook sees it: from its last all-reduce, when all gradients are there, to
    the end of the last one."""
    sent, waited, found = {}, {}, []  # of a rank and step
    for message in (each for each in film["messages"] if each["name"] == "all_reduce" and each["end"] is not None):
        sent.setdefault((message["rank"], message["step"]), []).append(message)
    for span in (each for each in film["spans"] if each["lane"] == "wait"):
        waited.setdefault((span["rank"], span["step"]), []).append(span)
    for span in (each for each in film["spans"] if each["name"] == "backward"):
        at = span["rank"], span["step"]
        inside = [each for each in sent.get(at, []) if span["t"] <= each["t"] <= span["t"] + span["d"]]
        if inside:
            begin, end = max(each["t"] for each in inside), max(each["end"] for each in inside)
            end = min(end, span["t"] + span["d"])
            if not any(each["t"] < end and each["t"] + each["d"] > begin for each in waited.get(at, [])):
                found.append({"rank": span["rank"], "lane": "wait", "name": "wait", "t": begin, "d": end - begin,
                              "step": span["step"]})
    return found


def key_of(rank: int, call: dict) -> tuple:
    """What the two ends of a message, or all members of a collective, have in common; the n-th of it belongs to the
    n-th of the others."""
    if call["name"] in ("send", "recv"):
        return ("p2p", *members(rank, call))
    return ("group", *call["group"])


def members(rank: int, call: dict) -> list[int]:
    """The ranks that take part; of a message the sender and the receiver."""
    if call["name"] in ("send", "recv"):
        if call["root"] < 0:  # a recv from whoever sends
            return [rank]
        peer = call["group"][call["root"]]
        return [rank, peer] if call["name"] == "send" else [peer, rank]
    return call["group"]


def missing(film: dict) -> list[dict]:
    """Messages that never ended: who waited, where, and who never came."""
    calls = {}
    for message in (each for each in film["messages"] if film["cut"] is None or each["t"] < film["cut"]):
        calls.setdefault(message["key"], {})[message["rank"]] = message
    found = []
    for here in calls.values():
        one = next(iter(here.values()))
        absent = sorted(set(one["members"]) - set(here))
        names = {message["name"] for message in here.values()}
        if absent or (len(names) > 1 and names != {"send", "recv"}):
            found.append({"t": max(message["t"] for message in here.values()), "absent": absent, "waiting": [
                {"rank": rank, "name": message["name"], "where": message["where"]}
                for rank, message in sorted(here.items())]})
    return sorted(found, key=lambda each: each["t"])


def parted(film: dict) -> list[dict]:
    """For each tensor the first step in which ranks hold different values: {"step", "what": "gradient" or "value",
    "tensor", "ranks": who holds the same as whom}."""
    at, found = {}, {}
    pairs = any(message["name"] in ("send", "recv") for message in film["messages"])
    if pairs and not any(message["name"] == "all_reduce" for message in film["messages"]):
        return []  # stages of a pipeline hold what they hold
    near = NEAR if len({rank["host"] for rank in film["ranks"]}) > 1 else 0
    for step in film["steps"]:
        at.setdefault(step["step"], {})[step["rank"]] = step
    for number in sorted(at):
        for what, kind in (("gradient", "gradients"), ("value", "values")):
            for name in next(iter(at[number].values()))[kind]:
                held = {rank: step[kind][name] for rank, step in sorted(at[number].items()) if name in step[kind]}
                groups: list[list[int]] = []
                for rank, value in held.items():
                    same = next((group for group in groups if alike(held[group[0]], value, near)), None)
                    groups.append([rank]) if same is None else same.append(rank)
                if len(groups) > 1:
                    found.setdefault((what, name), {"step": number, "what": what, "tensor": name, "ranks": groups})
    return sorted(found.values(), key=lambda each: (each["step"], each["what"]))


def alike(one: list, other: list, near: float) -> bool:
    """Are two digests those of the same values? `near`: the difference that rounding may make, as a share of the
    norm. A digest that is no number is a string."""
    numbers = not any(isinstance(value, str) for value in one + other)
    return one == other or numbers and all(abs(a - b) <= near * max(one[1], other[1])
                                           for a, b in zip(one, other, strict=True))


def summary(film: dict) -> str:
    ranks, steps = film["ranks"], {step["step"] for step in film["steps"]}
    error = max(rank["clock_error"] for rank in ranks)
    clocks = f"clocks aligned to {error:.0f} µs at the start" if error else "one clock"
    line = f"{len(ranks)} rank{'s' * (len(ranks) > 1)}, {len(steps)} steps, {len(film['messages'])} messages; {clocks}"
    lasted, own = [], []
    for rank in ranks:
        of_rank = [step for step in film["steps"] if step["rank"] == rank["rank"]]
        lasted += [new["t"] - old["t"] for old, new in zip(of_rank, of_rank[1:], strict=False)]
        own += [new["own"] - old["own"] for old, new in zip(of_rank, of_rank[1:], strict=False)]
    if lasted:
        line += f"; a step took {median(lasted) / 1000:.1f} ms, and {median(own) / 1000:.1f} ms of it were the film's"
    return line + f"; cut after {MOST // 10**6} MB of a rank" * (film["cut"] is not None)


def verdicts(film: dict) -> list[str]:
    """What the film shows that should not be, a line each."""
    lines = []
    for each in film["parted"][:1]:
        groups = " and ".join(f"rank{'s' * (len(group) > 1)} {', '.join(map(str, group))}" for group in each["ranks"])
        lines.append(f"the {each['what']} of {each['tensor']} differs from step {each['step']} on, between {groups}")
    for each in film["missing"][:1]:
        waiting = "; ".join(f"rank {call['rank']} in {call['name']} ({call['where']})" for call in each["waiting"])
        lines.append(f"{waiting}: never joined by rank{'s' * (len(each['absent']) > 1)} "
                     f"{', '.join(map(str, each['absent']))}" if each["absent"] else f"different calls: {waiting}")
    return lines


def trace(film: dict) -> dict:
    """The film as a Chrome trace (https://ui.perfetto.dev opens it), with the film itself beside it."""
    events, lanes = [], {"compute": 1, "wait": 2, "film": 3}
    for rank in film["ranks"]:
        number = rank["rank"]
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"rank {number}"}})
        events.append({"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}})
        messages = [message for message in film["messages"] if message["rank"] == number]
        for name, thread in [*lanes.items(), *((f"messages {track + 1}", 10 + track) for track in sorted(
                {message["track"] for message in messages}))]:
            events.append({"ph": "M", "pid": number, "tid": thread, "name": "thread_name", "args": {"name": name}})
        for message in messages:
            until = rank["end"] if message["end"] is None else message["end"]
            events.append({
                "ph": "X", "pid": number, "tid": 10 + message["track"], "name": message["name"], "cat": "message",
                "ts": message["t"], "dur": until - message["t"], "args": {
                    "ended": message["end"] is not None,
                    **{key: message[key] for key in ("bytes", "type", "members", "where", "step", "key")}}})
    for span in film["spans"]:
        more = {key: span[key] for key in span if key not in ("rank", "lane", "name", "t", "d")}
        events.append({"ph": "X", "pid": span["rank"], "tid": lanes[span["lane"]], "name": span["name"],
                       "cat": span["lane"], "ts": span["t"], "dur": span["d"], "args": more})
    for step in film["steps"]:
        events.append({"ph": "i", "pid": step["rank"], "tid": 1, "name": f"step {step['step']}", "cat": "step",
                       "s": "p", "ts": step["t"], "args": {"loss": step["loss"]}})
    return {"displayTimeUnit": "ms", "traceEvents": events, "film": film}


def page(film: dict) -> str:
    """A page without any other file: ranks below each other, step by step."""
    data = json.dumps(film).replace("</", "<\\/")
    return Path(__file__).with_name("film.html").read_text(encoding="utf-8").replace("/*FILM*/null", data)


# ------------------------------------------------------------------------------------------------------- the command


def script(args) -> int:
    """Run the script as it is, and record it. Returns its exit status. Without a script: put together what is there."""
    if args.script is None:
        publish(args.film)
        return 0
    try:
        film = record(args.film, args.steps or range(2**31))
    except RuntimeError as error:
        print(f"doctor: error: {error}", file=sys.stderr)
        return 2
    leave, os._exit = os._exit, lambda status: (film.end(f"os._exit({status})"), leave(status))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    threading.Thread(target=watch, args=(film, args.timeout, leave), daemon=True).start()
    sys.argv = [str(args.script), *args.options]
    sys.path[0] = str(args.script.resolve().parent)
    how = "done"
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        how = f"exit status {end.code}" if end.code else "done"
        raise
    except BaseException as error:
        how = f"{type(error).__name__}: {error}"[:500]
        raise
    finally:
        film.end(how)
        if dist.is_initialized():  # else gloo's threads call this film's hooks while Python ends, and die of it
            dist.destroy_process_group()
    return 0


def watch(film: Film, timeout: float, leave) -> None:
    """End a run in which no rank has moved for so many seconds: the film shows who waits for whom."""
    main, computed = threading.main_thread().ident, 0.0
    clock = time.pthread_getcpuclockid(main) if hasattr(time, "pthread_getcpuclockid") else None
    while not film.ended:
        time.sleep(0.2)
        if clock is not None and time.clock_gettime(clock) - computed > 0.05:  # it computes, and calls nothing
            computed = time.clock_gettime(clock)
            film.lives()
        parts = [part_of(film.path, rank) for rank in range(film.world_size)]
        newest = max((part.stat().st_mtime for part in parts if part.exists()), default=time.time())
        if time.time() - newest > timeout:
            frame = sys._current_frames().get(main)
            line = innermost(traceback.walk_stack(frame)) if frame else ""
            sys.stdout.flush()
            film.end(f"no rank had moved for {timeout:g} s; this one was at {line}")
            leave(1)
