"""Who this process is among all of the job, as its launcher says (torchrun, srun, or nobody), and the process
group that it joins."""

import logging
import os
import platform
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("course")
RESUMABLE = 75  # exit status of a run that a signal stopped, and that goes on from its checkpoint


@dataclass(frozen=True)
class Placement:
    """Which process of the job this one is, and what it computes on."""

    rank: int
    local_rank: int  # among the processes of this node
    world_size: int
    local_world_size: int
    nodes: int
    launcher: str  # python, torchrun or srun
    device: torch.device
    backend: str  # gloo or nccl


def adopt_slurm(env: MutableMapping[str, str]) -> None:
    """Copy srun's variables to torchrun's names, so that the rest of the code reads one set of names."""
    first = re.match(r"(?:[^,[]|\[[^]]*\])*", env["SLURM_STEP_NODELIST"])[0]  # up to a comma outside of brackets
    tasks, node = [], int(env["SLURM_NODEID"])
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"]):  # 2(x3),1 -> 2 2 2 1
        tasks += [count] * int(repeat or 1)
    if not first or not 0 <= node < len(tasks):
        raise ValueError(f"SLURM_NODEID is {node}, with SLURM_STEP_NODELIST {env['SLURM_STEP_NODELIST']!r} and "
                         f"SLURM_STEP_TASKS_PER_NODE {env['SLURM_STEP_TASKS_PER_NODE']!r}")
    env.update(RANK=env["SLURM_PROCID"], WORLD_SIZE=env["SLURM_STEP_NUM_TASKS"], LOCAL_RANK=env["SLURM_LOCALID"],
               LOCAL_WORLD_SIZE=tasks[node], GROUP_WORLD_SIZE=env["SLURM_STEP_NUM_NODES"])
    step = 16 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])  # one port for each step of each job
    # Rank 0 runs on the first node: rack[1-2]n[07-09] begins with rack1n07.
    env.setdefault("MASTER_ADDR", re.sub(r"\[(\d+)[^]]*\]", r"\1", first))
    env.setdefault("MASTER_PORT", str(20_000 + step % 12_000))  # the same on all ranks, asking nobody


def find_placement(device: str = "auto", backend: str = "auto", env: MutableMapping[str, str] = os.environ,
                   ddp: bool = False) -> Placement:
    """Read the rank from the variables of torchrun or srun in `env`, and choose a device and a backend.

    The backend is NCCL if each local rank has its own GPU, and gloo if ranks share GPUs or compute on a CPU. `ddp`:
    a process without a launcher wants DDP, too. ValueError, in one line, for a request that cannot be met.
    """
    launcher = "torchrun" if "RANK" in env else "srun" if "SLURM_STEP_ID" in env else "python"
    try:
        if launcher == "srun":  # a batch script that calls python has SLURM_PROCID too, but no step
            adopt_slurm(env)
        rank, world_size = int(env.get("RANK", 0)), int(env["WORLD_SIZE"] if launcher != "python" else 1)
        local_rank, local_world_size = int(env.get("LOCAL_RANK", 0)), int(env.get("LOCAL_WORLD_SIZE", 1))
        nodes = int(env.get("GROUP_WORLD_SIZE", -(-world_size // max(1, local_world_size))))
        port = int(env.get("MASTER_PORT", 1) if launcher != "python" else 1)
        of_node = int(env.get("SLURM_GPUS_ON_NODE", 0)) if launcher == "srun" else 0  # a torchrun inherits it
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is not set: start with torchrun, or with srun in a Slurm job") from None
    except ValueError as error:
        raise ValueError(f"the launcher's environment is not usable ({error}): start with torchrun or srun") from None
    local_ranks = local_world_size if "LOCAL_WORLD_SIZE" in env else world_size  # not every launcher says it
    for name, value, least, below in (("WORLD_SIZE", world_size, 1, 2**31), ("RANK", rank, 0, world_size),
                                      ("LOCAL_WORLD_SIZE", local_world_size, 1, world_size + 1),
                                      ("LOCAL_RANK", local_rank, 0, min(local_ranks, rank + 1)),
                                      ("MASTER_PORT", port, 1, 2**16)):
        if not least <= value < below:
            raise ValueError(f"the launcher's environment contradicts itself: {name} is {value}, and can be {least} to "
                             f"{below - 1} (RANK {rank}, WORLD_SIZE {world_size}, LOCAL_WORLD_SIZE "
                             f"{local_world_size}): start with torchrun or srun")

    found = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    kind = {"auto": found}.get(device, device)
    if kind not in ("cpu", found):
        raise ValueError(f"--device {device}, but torch sees no such GPU here: use --device cpu")
    if kind == "mps" and (ddp or launcher != "python"):  # no backend carries what is on Apple's GPUs
        if device == "mps":
            raise ValueError("--device mps is for one process, without a launcher and without DDP: use --device cpu")
        kind = "cpu"
    gpus = torch.accelerator.device_count() if kind != "cpu" else 0
    # Slurm may show each task its own GPU only: then the tasks of a node together see no more GPUs than the node has.
    own = gpus >= local_world_size or 0 < gpus * local_world_size <= of_node
    nccl = kind == "cuda" and own
    if backend == "nccl" and not nccl:
        raise ValueError(f"--backend nccl needs a GPU for each of this node's {local_world_size} ranks, and there are "
                         f"{gpus}: use --backend gloo")
    if backend == "auto":
        backend = "nccl" if nccl else "gloo"
    device = torch.device(kind, local_rank % gpus) if gpus else torch.device("cpu")
    return Placement(rank, local_rank, world_size, local_world_size, nodes, launcher, device, backend)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def device_name(device: torch.device) -> str:
    """The maker's name of the GPU or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere the kind of processor has to do
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return found[1] if found else platform.machine()


def threads_per_rank(placement: Placement, env: Mapping[str, str] = os.environ) -> int:
    """Cores divided by the ranks of this node, at least 1. A value of OMP_NUM_THREADS that the user has set wins."""
    by_user = True
    if "TORCHELASTIC_RUN_ID" in env:  # torchrun's rank: it sets 1, unless the user has started it with another number
        try:
            by_user = b"OMP_NUM_THREADS=" in Path(f"/proc/{os.getppid()}/environ").read_bytes()
        except OSError:  # no /proc, as on macOS: a 1 is torchrun's
            by_user = env.get("OMP_NUM_THREADS") != "1"
    if by_user and env.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(env["OMP_NUM_THREADS"]))
    if placement.launcher == "srun" and "SLURM_CPUS_PER_TASK" in env:
        return int(env["SLURM_CPUS_PER_TASK"])
    return max(1, cores() // placement.local_world_size)


# ------------------------------------------------------------------------------------------------------- process group

def init_distributed_mode(placement: Placement, dist_url: str = "env://", timeout: float = 600) -> dist.Store:
    """Join the process group. Every later wait for another rank ends after `timeout` seconds with an error.

    A process without a launcher makes a group of one. Returns the store that the ranks share, a dictionary of small
    facts. ConnectionError, in one line, if the others do not come.
    """
    if placement.device.type != "cpu":
        torch.accelerator.set_device_index(placement.device)
    place, bound = dist_url, timedelta(seconds=timeout)
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun listens already
    if dist_url == "env://" and placement.launcher != "python":
        if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
            raise ConnectionError(f"{' and '.join(missing)} not set: start with torchrun, or name rank 0's host and a "
                                  "free port")
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if placement.rank and not agent:
            reach_master(placement, place, timeout)
    who = f"rank {placement.rank} of {placement.world_size}"
    # name_start() and the group have a bound of their own, `timeout`; a store that is not ours has none.
    watchdog = threading.Timer(2 * timeout + 30, give_up, [f"{who}: what answers at {place} is not rank 0 of this job: "
                                                       "choose another MASTER_PORT"])
    watchdog.daemon = True
    watchdog.start()
    try:
        if dist_url == "env://" and placement.launcher == "python":
            store = dist.HashStore()
        elif dist_url == "env://" and agent:
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                  timeout=bound)
            # torchrun's store outlives a restart (torch 2.14), and with it the addresses of ranks that are dead.
            store = dist.PrefixStore(name_start(store, placement, timeout), store)
        else:
            store, *_ = next(dist.rendezvous(dist_url, placement.rank, placement.world_size, timeout=bound))
        dist.init_process_group(placement.backend, rank=placement.rank, world_size=placement.world_size,
                                timeout=bound, store=store,
                                device_id=placement.device if placement.backend == "nccl" else None)  # connects now
        return store
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise ConnectionError(f"{who} cannot listen at {place}, another program does: choose another "
                                  "MASTER_PORT") from None
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConnectionError(f"{who} waited for the others, {timeout} s at most, at {place}: {reason}. Were all "
                              "started? Is this address the same for all, and that of rank 0?") from None
    finally:
        watchdog.cancel()


def name_start(store: dist.Store, placement: Placement, timeout: float) -> str:
    """A name for this start of the job, chosen by rank 0 and unknown to the ranks of an earlier start.

    TORCHELASTIC_RESTART_COUNT will not do: each node's torchrun counts its own restarts. RuntimeError after `timeout`
    seconds.
    """
    me, end = uuid.uuid4().hex, time.monotonic() + timeout
    if placement.rank:
        store.set(f"rank {placement.rank} asks", me)
        name = store.get(f"answer to {me}").decode()
        store.add(f"{name} is known", 1)
        return name
    while (known := store.add(f"{me} is known", 0)) < placement.world_size - 1:
        if time.monotonic() > end:
            raise RuntimeError(f"{placement.world_size - 1 - known} of them did not come")
        for asks in (f"rank {rank} asks" for rank in range(1, placement.world_size)):
            if store.check([asks]):  # an answer to a rank that has died does no harm
                store.set(f"answer to {store.get(asks).decode()}", me)
        time.sleep(0.05)
    return me


def reach_master(placement: Placement, place: str, timeout: float) -> None:
    """Wait until rank 0 listens: torch's own attempt ends in pages of C++ frames that hide the reason."""
    address, port = place.rsplit(":", 1)
    end = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((address, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            if time.monotonic() > end or isinstance(error, ValueError):
                raise ConnectionError(f"rank {placement.rank} of {placement.world_size} waited for rank 0 at {place}, "
                                      f"{timeout} s at most: {error}. Is rank 0 running there? MASTER_ADDR and "
                                      "MASTER_PORT must be rank 0's") from None
            time.sleep(0.2)


def give_up(message: str) -> None:
    """End this process at once, from a thread: the main thread is in a wait that has no bound."""
    log.error(message)
    os._exit(2)


def end_distributed_mode() -> None:
    """Leave the process group, unless it is NCCL's after an error: it would wait for the other ranks and hide it."""
    error = sys.exc_info()[1]
    together = error is None or getattr(error, "code", None) == RESUMABLE
    if dist.is_initialized() and (together or dist.get_backend() != "nccl"):
        dist.destroy_process_group()
