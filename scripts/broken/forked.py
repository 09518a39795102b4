"""Runs a script of the gallery on ranks forked from a process that has torch. `gallery.py check --fork` uses it.

They get the variables that torchrun would set. It is what a test of all pairs can afford: torchrun and each of its
ranks import torch anew. What is about torchrun itself is run by torchrun.
"""

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_AT_A_TIME = threading.Lock()  # multiprocessing's processes are not for several threads


def run(script, ranks, env, file, limit, stop):
    """Exit status of the first rank that fails, else 0; None where they took longer than `limit` seconds and were
    killed. `file` gets what they print; an event `stop` kills them, too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.nn.parallel", "torch._dynamo"])
    with socket.socket() as free:  # another process might take the port before the ranks do, which is rare
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    file.touch()
    processes = [context.Process(target=be_rank, args=(rank, script, file, env)) for rank in range(ranks)]
    with ONE_AT_A_TIME:
        for process in processes:
            process.start()
    give_up, status = time.monotonic() + limit, [None]
    while None in status and time.monotonic() < give_up and not stop.is_set():
        time.sleep(0.05)
        with ONE_AT_A_TIME:
            status = [process.exitcode for process in processes]
    with ONE_AT_A_TIME:
        for process in processes:
            process.kill()
            process.join()
    return None if None in status else next((one for one in status if one), 0)


def be_rank(rank, script, file, env):
    out = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
    tempfile.tempdir = env["TMPDIR"]
    os.chdir(ROOT)
    sys.argv = [script]
    import torch  # the process has it already
    torch.set_num_threads(1)
    torch.distributed.set_debug_level_from_env()  # as importing it does
    runpy.run_path(script, run_name="__main__")
