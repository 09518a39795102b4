"""Start main.py and other programs: forked where the start is not the subject, else as a person would."""

import functools
import importlib
import multiprocessing.forkserver
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

from course import forked_ranks

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 150  # seconds; a run that takes longer hangs
LESSONS = sorted(f"lessons.{path.parent.name}.check" for path in ROOT.glob("lessons/l*/check.py"))
# In the one process that a pytest process forks all ranks from: what the slowest of them would import for seconds
PRELOAD = ["torch._dynamo", "torch._inductor", "torch.nn.parallel", "torch.distributed.fsdp",
           "torch.distributed.elastic.multiprocessing.errors", *LESSONS, "tests.test_exercises"]


def prepare_to_fork():
    """Start the process that ranks are forked from: the first who needs it would bring in its own modules alone."""
    multiprocessing.set_forkserver_preload(PRELOAD)
    multiprocessing.forkserver.ensure_running()


def command(ranks, *arguments, torchrun=(), python=sys.executable):
    """main.py's command line: ranks=0 is plain python, 1 and more are torchrun's, with its own options `torchrun`."""
    launcher = [str(python)]
    if ranks:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", *torchrun]
    return [*launcher, *map(str, arguments)]


def environment(**changes):
    """This process's environment as a fresh shell's: nothing of a launcher, and `changes` (None takes away)."""
    foreign = re.compile(r"RANK|WORLD_SIZE|MASTER_|SLURM_|OMPI_|PMI_|PALS_|TORCHELASTIC|OMP_NUM_THREADS|LOCAL_|GROUP_")
    env = {k: v for k, v in os.environ.items() if not foreign.match(k)} | {"COURSE_SHORTCUTS": "1"}  # as in a lesson
    env.update(changes)
    return {k: v for k, v in env.items() if v is not None}


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
    """The finished process of `python script ...` (ranks=0), or of as many ranks as torchrun would start, its status
    that of the rank that failed first: see course/forked_ranks.py. Where the launcher is the subject: torchrun()."""
    argv = [str(script), *map(str, arguments)]
    prepare_to_fork()
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        for path in said:
            path.touch()
        status = forked_ranks.run(argv, ranks, {"OMP_NUM_THREADS": "1", **environment(**env)}, *said, limit)
        if status is None:
            raise subprocess.TimeoutExpired(argv, limit, *(path.read_text() for path in said))
        return subprocess.CompletedProcess(argv, status, *(without_gloo(path.read_text()) for path in said))


def together(environments, *arguments, script="main.py"):
    """The finished processes of the same command, run at the same time: one for each dict of `environments`."""
    with ThreadPoolExecutor(len(environments)) as pool:
        return list(pool.map(lambda env: run(0, *arguments, script=script, **env), environments))


def torchrun(ranks, *arguments, script="main.py", limit=LIMIT, PYTHON_EXEC=None, **env):
    """The finished process of `torchrun --nproc_per_node=ranks script ...`, or of `python script ...` (ranks=0).
    PYTHON_EXEC: another python for torchrun and its ranks, or for the script."""
    done = subprocess.run(command(ranks, script, *arguments, python=PYTHON_EXEC or sys.executable), cwd=ROOT, text=True,
                          env=environment(PYTHON_EXEC=PYTHON_EXEC, **env), capture_output=True, timeout=limit)
    done.stdout = without_gloo(done.stdout)
    return done


def start(ranks, *arguments, script="main.py", torchrun=(), **env):
    """A running one of main.py, with the threads that run() gives: another number computes other last bits."""
    return subprocess.Popen(command(ranks, script, *arguments, torchrun=torchrun), cwd=ROOT, text=True,
                            env={"OMP_NUM_THREADS": "1", **environment(**env)}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


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
        prepare_to_fork()
        process = forked_ranks.FORKED.Process(target=_be_the_rank, args=(test.__module__, test.__qualname__, arguments))
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
