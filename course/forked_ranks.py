"""Ranks forked from a process that has imported torch: what tests can afford that start them by the hundred.

They get the variables that torchrun would set. torchrun, and each of its ranks, would import torch anew, which is most
of the seconds that a short run takes. What is about torchrun itself is run by torchrun.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "torch.distributed.elastic.multiprocessing.errors"])
ONE_AT_A_TIME = threading.Lock()  # multiprocessing's processes are not for several threads
GRACE = 30  # seconds from SIGTERM to SIGKILL, as torchrun gives them
# In a rank: what the script has made lives until its process ends, as in python. In PyTorch 2.10 a DDP model that goes
# right after its group waits for a thread of gloo, and keeps Python's lock, for which that thread may wait.
KEPT = []


def run(argv, ranks, env, out, err, limit, stop=None):
    """Run the script argv[0], or `-m module`, with its options in the repository's root; the status of the rank that
    failed first, else 0; None where it took longer than `limit` seconds and was killed.

    ranks=0: one process that no launcher has started. `env`: all of its environment. The files `out` and `err` get what
    all ranks print. Where one fails the others are ended, as torchrun does. An event `stop` kills all.
    """
    from torch.distributed import TCPStore

    if ranks:  # a store of this process's, as torchrun's agent has one: nobody else can take its port
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        env = env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks),
                     "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                     "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
                     "TORCHELASTIC_USE_AGENT_STORE": "True"}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)] or [{}]
    with ONE_AT_A_TIME:
        processes = [FORKED.Process(target=be_rank, args=(argv, env | place, out, err)) for place in places]
        for process in processes:
            process.start()
    try:
        return _first_failure(processes, limit, stop)
    finally:
        with ONE_AT_A_TIME:
            for process in processes:
                process.kill()
                process.join()


def _first_failure(processes, limit, stop):
    give_up, ending, failure = time.monotonic() + limit, False, 0
    while time.monotonic() < give_up and not (stop and stop.is_set()):
        with ONE_AT_A_TIME:
            statuses = [process.exitcode for process in processes]
        failure = failure or next((status for status in statuses if status), 0)
        if None not in statuses:
            return failure
        if failure and not ending:
            ending, give_up = True, min(give_up, time.monotonic() + GRACE)
            for process in processes:
                process.terminate()
        time.sleep(0.03)
    return failure or None


def be_rank(argv, env, out, err):
    """What `python argv...` would be, in this process."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    for stream in (sys.stdout, sys.stderr):  # a line at a time: ranks share the file
        stream.reconfigure(line_buffering=True, write_through=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    tempfile.tempdir = None  # of the parent's TMPDIR
    sys.argv, sys.path[:0] = list(map(str, argv)), [str(Path(argv[0]).resolve().parent)]
    import torch  # the process has it already, and what it reads of the environment when it is imported it has read

    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    torch.distributed.set_debug_level_from_env()
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            KEPT.append(runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True))
        else:
            KEPT.append(runpy.run_path(sys.argv[0], run_name="__main__"))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
