"""Start main.py and other programs: forked where the start is not the subject, else as a person would."""

import contextlib
import functools
import importlib
import multiprocessing
import multiprocessing.connection
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
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


FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "torch.distributed.elastic.multiprocessing.errors", "torch.utils.data"])


def run(ranks, *arguments, script="main.py", **env):
    """The finished process of `python script ...` (ranks=0), or of as many ranks as torchrun would start, with the same
    environment; its status is that of the rank that failed first. Each is forked from a process that has imported
    torch, which saves most of the seconds that a start takes. Where the launcher is the subject: torchrun()."""
    import torch.distributed as dist

    env, store = {"OMP_NUM_THREADS": "1", **environment(**env)}, None
    if ranks:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent has one
        env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    argv = [str(script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "stdout"), Path(folder, "stderr")
        started = [FORKED.Process(target=_be, args=(argv, env | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks
                                                                 else {}), said)) for rank in range(max(1, ranks))]
        status = _until_the_end(argv, started)
        return subprocess.CompletedProcess(argv, status, *(path.read_text() for path in said))


def _until_the_end(argv, started):
    """The status of all together: 0, or that of the first to fail, whereupon the others are ended as torchrun does."""
    give_up = time.monotonic() + LIMIT
    try:
        for process in started:
            process.start()
        while any(process.exitcode is None for process in started):
            if failed := [process.exitcode for process in started if process.exitcode]:
                for process in started:
                    process.terminate()
                for process in started:
                    process.join(30)
                return failed[0]
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(argv, LIMIT)
            multiprocessing.connection.wait([p.sentinel for p in started if p.exitcode is None], timeout=1)
        return next((process.exitcode for process in started if process.exitcode), 0)
    finally:
        for process in started:
            process.kill()
            process.join()


def _be(argv, env, said):
    """What `python argv...` would be, in this process."""
    for number, path in zip((1, 2), said, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    sys.argv, sys.path[0:0] = argv, [str(Path(argv[0]).resolve().parent)]
    import torch

    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # it was read when torch was imported
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def together(environments, *arguments, script="main.py"):
    """The finished processes of the same command, run at the same time: one for each dict of `environments`."""
    with ThreadPoolExecutor(len(environments)) as pool:
        return list(pool.map(lambda env: run(0, *arguments, script=script, **env), environments))


def torchrun(ranks, *arguments, script="main.py", **env):
    """The finished process of `torchrun --nproc_per_node=ranks script ...`, or of `python script ...` (ranks=0)."""
    return subprocess.run(command(ranks, script, *arguments), cwd=ROOT, env=environment(**env), capture_output=True,
                          text=True, timeout=LIMIT)


def start(ranks, *arguments, torchrun=(), **env):
    """A running one of main.py, with the threads that run() gives: another number computes other last bits."""
    return subprocess.Popen(command(ranks, "main.py", *arguments, torchrun=torchrun), cwd=ROOT, text=True,
                            env={"OMP_NUM_THREADS": "1", **environment(**env)}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


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
