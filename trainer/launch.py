"""Who this process is among all of the job, as its launcher says (torchrun, srun, mpirun, or nobody), and the process
group that it joins."""

import gc
import os
import platform
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer import files

# The names of rank, world size, local rank and local world size under each mpirun: Open MPI's; MPICH's and Intel MPI's.
MPIRUNS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
RESUMABLE = 75  # exit status of a run that a signal stopped: sysexits.h calls it a failure to try again later


class Stopped(Exception):
    """A signal came, and the checkpoint is written. Started again, the run goes on from there."""


@dataclass(frozen=True)
class Placement:
    """Which process of the job this one is, and what it computes on."""

    rank: int
    local_rank: int  # among the processes of this node
    world_size: int
    local_world_size: int
    nodes: int
    launcher: str  # python, torchrun, srun or mpirun
    device: torch.device
    backend: str  # gloo or nccl
    meet_at: str  # where the ranks find each other, unless --dist-url says it

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} on {socket.gethostname()}: {self.device}" + (
            f", {self.backend}" if self.launcher != "python" else "")


def slurm_names(env: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """(srun's variables under torchrun's names, where its ranks meet). Rank 0 runs on the first node of the step."""
    first = re.split(r",(?![^[]*\])", env["SLURM_STEP_NODELIST"])[0]  # up to a comma outside of brackets
    tasks, node = [], int(env["SLURM_NODEID"])
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"]):  # 2(x3),1 -> 2 2 2 1
        tasks += [count] * int(repeat or 1)
    if not first or not 0 <= node < len(tasks):
        raise ValueError(f"SLURM_NODEID is {node}, with SLURM_STEP_NODELIST {env['SLURM_STEP_NODELIST']!r} and "
                         f"SLURM_STEP_TASKS_PER_NODE {env['SLURM_STEP_TASKS_PER_NODE']!r}")
    names = {"RANK": env["SLURM_PROCID"], "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"], "LOCAL_RANK": env["SLURM_LOCALID"],
             "LOCAL_WORLD_SIZE": tasks[node], "GROUP_WORLD_SIZE": env["SLURM_STEP_NUM_NODES"]}
    step = 16 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])  # one port for each step of each job
    host = env.get("MASTER_ADDR") or re.sub(r"\[(\d+)[^]]*\]", r"\1", first)  # rack[1-2]n[07-09]: rack1n07
    return names, f"tcp://{host}:{env.get('MASTER_PORT') or 20_000 + step % 12_000}"


def launcher_names(env: Mapping[str, str]) -> tuple[str, Mapping[str, str], str]:
    """(launcher, who this process is, under torchrun's names, where the ranks meet).

    One process alone is python's, whatever started it: a Jupyter server in a step of Slurm is no rank of anything.
    """
    # Slurm sets PMI_RANK, too, but not MPICH's local rank; and it may have started what mpirun starts on each node.
    mpi = next((names for names in MPIRUNS
                if names[0] in env and (names[2] in env or "SLURM_STEP_ID" not in env)), None)
    if "RANK" in env:
        if mpi and "TORCHELASTIC_RUN_ID" not in env and int(env.get("WORLD_SIZE", 1)) < int(env[mpi[1]]):
            raise files.Refused(f"mpirun started {env[mpi[1]]} processes, and each found RANK {env['RANK']} and "
                                f"WORLD_SIZE {env.get('WORLD_SIZE', 1)}, left over from elsewhere: unset both")
        return "torchrun", env, "env://"
    if mpi and env[mpi[1]] != "1":
        if not {"MASTER_ADDR", "MASTER_PORT"} <= env.keys():
            raise files.Refused(f"mpirun started {env[mpi[1]]} processes and does not say where rank 0 is: set "
                                "MASTER_ADDR and MASTER_PORT for all, in Open MPI by mpirun -x MASTER_ADDR=HOST "
                                "-x MASTER_PORT=29500")
        names = zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), mpi, strict=True)
        return "mpirun", {ours: env[theirs] for ours, theirs in names}, \
            f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    # A batch script that calls python has SLURM_PROCID, too, but no step.
    if not mpi and "SLURM_STEP_ID" in env and env["SLURM_STEP_NUM_TASKS"] != "1":
        return "srun", *slurm_names(env)
    return "python", {"RANK": "0", "WORLD_SIZE": "1"}, "env://"


def find_placement(device: str = "auto", backend: str = "auto", env: Mapping[str, str] = os.environ,
                   ddp: bool = False) -> Placement:
    """Read the rank from the variables of a launcher in `env`, and choose a device and a backend.

    The backend is NCCL if each local rank has its own GPU, and gloo if ranks share GPUs or compute on a CPU. A rank
    that sees one GPU cannot know whether the others see the same one, or one of their own each: then NCCL must be asked
    for. `ddp`: a process without a launcher wants DDP, too. ValueError, in one line, for a request that cannot be met;
    files.Refused for a launcher whose processes do not know each other.
    """
    try:
        launcher, names, meet_at = launcher_names(env)
        rank, world_size = int(names["RANK"]), int(names["WORLD_SIZE"])
        local_rank, local_world_size = int(names.get("LOCAL_RANK", 0)), int(names.get("LOCAL_WORLD_SIZE", 1))
        nodes = int(names.get("GROUP_WORLD_SIZE", -(-world_size // max(1, local_world_size))))
        of_node = int(env.get("SLURM_GPUS_ON_NODE", 0)) if launcher == "srun" else 0  # a torchrun inherits it
        port = int(names.get("MASTER_PORT", 1) if meet_at == "env://" else meet_at.rpartition(":")[2])
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is not set: start with torchrun, or with srun in a Slurm job") from None
    except ValueError as error:
        raise ValueError(f"the launcher's environment is not usable ({error}): start with torchrun or srun") from None
    local_ranks = local_world_size if "LOCAL_WORLD_SIZE" in names else world_size  # not every launcher says it
    for name, value, least, below in (("WORLD_SIZE", world_size, 1, 2**31), ("RANK", rank, 0, world_size),
                                      ("LOCAL_WORLD_SIZE", local_world_size, 1, world_size + 1),
                                      ("LOCAL_RANK", local_rank, 0, min(local_ranks, rank + 1)),
                                      ("MASTER_PORT", port, 1, 2**16)):
        if not least <= value < below:
            raise ValueError(f"the launcher's environment contradicts itself: {name} is {value}, and can be {least} to "
                             f"{below - 1} (RANK {rank}, WORLD_SIZE {world_size}, LOCAL_WORLD_SIZE "
                             f"{local_world_size}): start with torchrun or srun")

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    best = accelerator.type if accelerator else "cpu"
    kind = {"auto": best if best in ("cuda", "mps") else "cpu"}.get(device, device)
    if kind not in ("cpu", best):
        raise ValueError(f"--device {device}, but torch sees no such GPU here: use --device cpu")
    if kind == "mps" and (ddp or launcher != "python"):  # no backend carries what is on Apple's GPUs
        if device == "mps":
            raise ValueError("--device mps is for one process, without a launcher and without DDP: use --device cpu")
        kind = "cpu"
    gpus = torch.accelerator.device_count() if kind != "cpu" else 0
    # Slurm may show each task its own GPU only: then the tasks of a node together see no more GPUs than the node has.
    own = kind == "cuda" and (gpus >= local_world_size or 0 < gpus * local_world_size <= of_node)
    if backend == "nccl" and not (own or "CUDA_VISIBLE_DEVICES" in env and gpus == 1):
        raise ValueError(f"--backend nccl needs a GPU for each of this node's {local_world_size} ranks, and there are "
                         f"{gpus}: use --backend gloo")
    if backend == "auto":
        backend = "nccl" if own else "gloo"
    here = torch.device(kind, local_rank % gpus) if gpus else torch.device("cpu")
    return Placement(rank, local_rank, world_size, local_world_size, nodes, launcher, here, backend, meet_at)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The maker's name of the GPU or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere the kind of processor has to do
    name = re.search(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return name[1] if name else platform.machine()

# ------------------------------------------------------------------------------------------------------- process group

def init_distributed_mode(placement: Placement, dist_url: str = "env://", timeout: float = 600) -> dist.Store:
    """Join the process group. Every later wait for another rank ends after `timeout` seconds with an error.

    A process without a launcher makes a group of one. Returns the store that the ranks share, a dictionary of small
    facts. files.Refused, in one line, if the others do not come.
    """
    if placement.device.type != "cpu":
        torch.accelerator.set_device_index(placement.device)
    url, bound = placement.meet_at if dist_url == "env://" else dist_url, timedelta(seconds=timeout)
    try:
        if placement.launcher == "python":
            store: dist.Store = dist.HashStore()
        else:
            meet = dist.rendezvous(url, placement.rank, placement.world_size, timeout=bound)
            store, *_ = within(timeout + 5, lambda: next(meet))
        if url == "env://" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun's store outlives a restart, and with it the addresses of ranks that are dead; its count of
            # restarts differs from node to node. https://github.com/pytorch/pytorch/issues/135712
            store = dist.PrefixStore(name_start(store, placement, timeout), store)
        dist.init_process_group(placement.backend, rank=placement.rank, world_size=placement.world_size,
                                timeout=bound, store=store,
                                device_id=placement.device if placement.backend == "nccl" else None)  # connects now
        return store
    except (dist.DistNetworkError, dist.DistStoreError, TimeoutError, ValueError) as error:
        place = url if url != "env://" else ":".join(os.environ.get(f"MASTER_{part}", "?") for part in ("ADDR", "PORT"))
        reason = (str(error) or "another program listens there and does not answer").splitlines()[0].rstrip(".")
        if "EADDRINUSE" in reason:
            raise files.Refused(f"rank {placement.rank} of {placement.world_size} cannot listen at "
                                f"{place.removeprefix('tcp://')}: another program does. Choose another MASTER_PORT"
                                ) from error
        raise files.Refused(f"rank {placement.rank} of {placement.world_size} waited for the others, {timeout} s at "
                            f"most, at {place.removeprefix('tcp://')}: {reason}. Were all started? Is this address the "
                            "same for all, and that of rank 0?") from error


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of `call`; TimeoutError after so many seconds. A TCPStore's client waits without end for a server that
    takes its connection and does not answer, such as another program at MASTER_PORT (tried with torch 2.14.1)."""
    answer: Future = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def name_start(store: dist.Store, placement: Placement, timeout: float) -> str:
    """A name for this start of the job, chosen by rank 0 and unknown to the ranks of an earlier start.

    DistStoreError after `timeout` seconds.
    """
    me, end = uuid.uuid4().hex, time.monotonic() + timeout
    if placement.rank:
        store.set(f"rank {placement.rank} asks", me)
        name = store.get(f"answer to {me}").decode()
        store.add(f"{name} is known", 1)
        return name
    while (known := store.add(f"{me} is known", 0)) < placement.world_size - 1:
        if time.monotonic() > end:
            raise dist.DistStoreError(f"{placement.world_size - 1 - known} of them did not come")
        for asks in (f"rank {rank} asks" for rank in range(1, placement.world_size)):
            if store.check([asks]):  # an answer to a rank that has died does no harm
                store.set(f"answer to {store.get(asks).decode()}", me)
        time.sleep(0.05)
    return me


def gathered(value: Any) -> list:
    """The values of all ranks, rank 0's first; in a single process its own. Anything that can be pickled."""
    values = [value]
    if dist.is_initialized():
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
    return values


def end_distributed_mode() -> None:
    """Leave the process group, unless it is NCCL's after an error: it would wait for the other ranks and hide it."""
    gc.collect()  # a model in a circle of references would keep gloo's threads alive until Python ends, and abort it
    together = sys.exc_info()[0] in (None, Stopped)
    if dist.is_initialized() and (together or dist.get_backend() != "nccl"):
        dist.destroy_process_group()
