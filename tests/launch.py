"""Start main.py as a person would: python, torchrun, or the variables that srun sets."""

import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 150  # seconds; a run that takes longer hangs


def command(ranks, *arguments, torchrun=()):
    """main.py's command line: ranks=0 is plain python, 1 and more are torchrun's, with its own options `torchrun`."""
    launcher = [sys.executable]
    if ranks:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", *torchrun]
    return [*launcher, *map(str, arguments)]


def environment(**changes):
    """This process's environment as a fresh shell's: nothing of a launcher, and `changes` (None takes away)."""
    foreign = re.compile(r"RANK|WORLD_SIZE|MASTER_|SLURM_|TORCHELASTIC|OMP_NUM_THREADS|LOCAL_|GROUP_")
    env = {k: v for k, v in os.environ.items() if not foreign.match(k)}
    env.update({k: v for k, v in changes.items() if v is not None})
    return env


def run(ranks, *arguments, **env):
    """The finished process of `python main.py ...` (ranks=0) or `torchrun --nproc_per_node=ranks main.py ...`."""
    return subprocess.run(command(ranks, "main.py", *arguments), cwd=ROOT, env=environment(**env), capture_output=True,
                          text=True, timeout=LIMIT)


def start(ranks, *arguments, torchrun=(), **env):
    """A running one."""
    return subprocess.Popen(command(ranks, "main.py", *arguments, torchrun=torchrun), cwd=ROOT,
                            env=environment(**env), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for(condition, what, seconds=LIMIT):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def living(text):
    """Processes that this one, or its children, have started and that run, with `text` in their command line."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended, though nobody may have asked for its status
            if text in " ".join(child.cmdline()):
                found.append(child)
    return found


def end(process, sign):
    """Send `sign` to a launched process and to all it has started, and wait until none of them is left."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        member.send_signal(sign)
    process.communicate(timeout=60)
    assert psutil.wait_procs(family, timeout=30)[1] == [], "processes are still alive"


def in_a_group_of_one(test):
    """Runs a test in a process of its own, the one rank of a gloo group: a process that has left a group may be aborted
    by a thread of gloo, and a test process would take all its other tests with it."""
    @functools.wraps(test)
    def outside(**arguments):
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_be_the_rank, args=(test.__module__, test.__qualname__, arguments))
        process.start()
        process.join(LIMIT)
        process.kill()
        process.join()
        assert process.exitcode == 0, f"its process ended with status {process.exitcode}; the traceback is in stderr"

    return outside


def _be_the_rank(module, name, arguments):
    import torch.distributed as dist

    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        getattr(importlib.import_module(module), name).__wrapped__(**arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
