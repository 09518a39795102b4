"""Start main.py and other programs as a person would: by python, by torchrun, or a process for each rank by hand."""

import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from course.rendezvous import free_port

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 150  # seconds; a run that takes longer hangs
FOREIGN = re.compile(r"RANK|WORLD_SIZE|MASTER_|SLURM_|OMPI_|PMI_|TORCHELASTIC|OMP_NUM_THREADS|LOCAL_|GROUP_|"
                     "PYTHONUNBUFFERED")  # with the last, words that gloo prints on all ranks at one moment are mixed


def sampled(names):
    """Parameters of a test, of which each case starts ranks: the first runs daily, all run weekly."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.weekly) for name in others)]


def command(ranks, *arguments, torchrun=()):
    """A command line: ranks=0 is plain python, 1 and more are torchrun's, with its own options `torchrun`."""
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", *torchrun] if ranks else []
    return [sys.executable, *launcher, *map(str, arguments)]


def environment(**changes):
    """This process's environment as a fresh shell's: nothing of a launcher, and `changes` (None takes away)."""
    env = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    env.update(changes)
    return {k: v for k, v in env.items() if v is not None}


def shown(notebook):
    """A notebook's cells, without those that a folded heading hides."""
    folded = 7  # the level of the heading that hides what follows
    for cell in notebook.cells:
        level = len(re.match("#*", cell.source)[0]) if cell.cell_type == "markdown" else 0
        if folds := 0 < level <= folded:
            folded = level if cell.metadata.get("jp-MarkdownHeadingCollapsed") else 7
        if folds or folded == 7:
            yield cell


def _of_a_run(env):
    """One thread for each process, as torchrun gives: another number computes other last bits."""
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment(**env)}


def clone(folder):
    """Copy into `folder` what git would clone, with all changes that are not committed yet, and link the data. Returns
    an environment in which Python imports the copy's modules, and scripts/setup takes this Python."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True, timeout=60, check=True)
    for name in listed.stdout.split("\0"):
        if not (ROOT / name).is_file():  # a linked data folder, or a file that is gone
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    (folder / "data").symlink_to(Path(os.environ.get("COURSE_DATA") or ROOT / "data").resolve())
    return environment(PYTHONPATH=str(folder), VIRTUAL_ENV=sys.prefix,
                       PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def without_gloo(text):
    """What was printed, without the line that gloo prints on each rank in older versions of PyTorch: 2.10, not 2.14."""
    return re.sub(r"\[Gloo\] Rank \d+ is connected to .*\n", "", text)


def run(ranks, *arguments, script="main.py", limit=LIMIT, **env):
    """The finished process of `python script ...` (ranks=0), or of so many ranks, with what they printed, rank after
    rank, and the status of the one that failed first. They are started as by hand: torchrun would import torch once
    more."""
    argv, env, places = command(0, script, *arguments), _of_a_run(env), [{}]
    if ranks:
        argv.insert(1, "-u")  # as torchrun: what a rank has printed is not lost when it is ended
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks)}
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    with contextlib.ExitStack() as stack:
        out, err = ([stack.enter_context(tempfile.TemporaryFile("w+")) for _ in places] for _ in range(2))
        processes = [subprocess.Popen(argv, cwd=ROOT, stdout=of_out, stderr=of_err, env=env | place)
                     for place, of_out, of_err in zip(places, out, err, strict=True)]
        status = _first_failure(processes, time.monotonic() + limit)
        for file in out + err:
            file.seek(0)
        said = [without_gloo("".join(file.read() for file in files)) for files in (out, err)]
    if status is None:
        raise subprocess.TimeoutExpired(argv, limit, *said)
    return subprocess.CompletedProcess(argv, status, *said)


def _first_failure(processes, give_up):
    """The status of the process that failed first, whose failure ends the others; 0 if none did; None: time is up."""
    failure = 0
    try:
        while any(process.poll() is None for process in processes):
            if time.monotonic() > give_up:
                return failure or None
            if not failure and (failure := next((each.returncode for each in processes if each.returncode), 0)):
                give_up = min(give_up, time.monotonic() + 30)  # as torchrun
                for process in processes:
                    process.terminate()
            time.sleep(0.03)
        return failure or next((each.returncode for each in processes if each.returncode), 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def together(environments, *arguments, script="main.py"):
    """The finished processes of the same command, run at the same time: one for each dict of `environments`."""
    with ThreadPoolExecutor(len(environments)) as pool:
        return list(pool.map(lambda env: run(0, *arguments, script=script, **env), environments))


def torchrun(ranks, *arguments, script="main.py", limit=LIMIT, **env):
    """The finished process of `torchrun --nproc_per_node=ranks script ...`, where the launcher is the subject."""
    done = subprocess.run(command(ranks, script, *arguments), cwd=ROOT, text=True, env=environment(**env),
                          capture_output=True, timeout=limit)
    done.stdout = without_gloo(done.stdout)
    return done


def start(ranks, *arguments, script="main.py", torchrun=(), **env):
    """A running one of main.py, with the threads that run() gives."""
    return subprocess.Popen(command(ranks, script, *arguments, torchrun=torchrun), cwd=ROOT, text=True,
                            env=_of_a_run(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for(condition, what, seconds=LIMIT):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"waited {seconds} s for {what}"
        time.sleep(0.1)


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
        process = multiprocessing.get_context("forkserver").Process(
            target=_be_the_rank, args=(test.__module__, test.__qualname__, arguments))
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
