"""Ranks in the background, in one gloo process group: engines of ipyparallel. `lesson.live_ranks(4)` starts them.

A cell that begins with %%px, a magic of ipyparallel, runs on all of them, `%%px --targets 1` on one. What they print
stands below the cell, and what a cell defines on the ranks later cells find there.
"""

import atexit
import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
import time

import ipyparallel
from ipyparallel.error import RemoteError
from ipyparallel.error import TimeoutError as NoAnswer
from IPython import get_ipython

_running: list = []  # [(cluster, client)]: of this kernel
ANSWER = 20  # seconds for an engine to answer what takes a tenth of one; else it is busy, and all start again
START = 120  # seconds for all engines to start, and to import torch


def start(count: int, timeout: float) -> str:
    """Start `count` ranks, or let those that run meet again; a line that says what there is.

    `timeout`: the longest wait in a collective, seconds. ValueError for a count that is none.
    """
    if count < 1:
        raise ValueError(f"live_ranks({count}): 1 or more ranks")
    try:
        memory = _meet(count, timeout)
    except (NoAnswer, RemoteError):  # a rank still computes, or a group cannot be left
        stop()
        memory = _meet(count, timeout)
    return (f"{count} ranks, {max(memory) / 2**20:.0f} MiB of memory each. A cell that begins with %%px runs on all of "
            f"them. Whoever waits for another rank gives up after {timeout:g} s; then run this cell again.")


def _meet(count, timeout):
    if _running and len(_running[0][1]) != count:
        stop()
    if not _running:
        _engines(count)
    cluster, client = _running[0]
    store = tempfile.mktemp(dir=cluster.profile_dir)  # for as long as the ranks live: later groups meet there, too
    asked = [client[rank].apply_async(be_rank, rank, count, store, timeout) for rank in client.ids]
    return [answer.get(ANSWER + timeout) for answer in asked]


def _engines(count):
    # In a folder of its own, so that two notebooks do not meet; on this machine alone.
    cluster = ipyparallel.Cluster(n=count, profile_dir=tempfile.mkdtemp(prefix="live_ranks_"), cluster_id="",
                                  log_level=logging.ERROR, controller_ip="127.0.0.1", engine_timeout=START)
    try:
        cluster.start_cluster_sync()
        client = cluster.connect_client_sync()
        client.wait_for_engines(count, timeout=START, interactive=False)
        client[:].apply_async(prepare, os.getpid(), cluster.controller.pid, cluster.profile_dir).get(START)
    except BaseException:  # Ctrl-C, too: half a start leaves nothing behind
        _end(cluster)
        raise
    _running.append((cluster, client))
    view = client[:]
    view.block = True
    view.activate()  # %%px
    get_ipython().run_line_magic("pxconfig", "--no-stream --progress-after=-1")


@atexit.register
def stop() -> None:
    """End the ranks."""
    while _running:
        cluster, client = _running.pop()
        client.close()
        _end(cluster)


def _end(cluster):
    cluster.stop_cluster_sync()
    shutil.rmtree(cluster.profile_dir, ignore_errors=True)


def prepare(kernel: int, controller: int, folder: str) -> None:
    """On an engine: end with the kernel, and import what takes seconds."""
    threading.Thread(target=end_with, args=(kernel, controller, folder), daemon=True).start()
    import torch.distributed  # noqa: F401


def be_rank(rank: int, count: int, store: str, timeout: float) -> int:
    """On an engine: meet the others in a new group, with nothing left of earlier cells. Bytes of memory that it holds.
    """
    from datetime import timedelta

    import psutil
    import torch
    import torch.distributed as dist

    shell = get_ipython()
    shell.reset(new_session=False)
    shell.InteractiveTB.set_mode("Plain")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count,
                            timeout=timedelta(seconds=timeout))
    shell.push({"torch": torch, "dist": dist, "rank": rank})
    return psutil.Process().memory_full_info().uss


def end_with(kernel: int, controller: int, folder: str) -> None:
    """End this engine, and the controller, soon after the notebook's kernel has ended, also when it was killed."""
    while os.getppid() == kernel:
        time.sleep(0.5)
    with contextlib.suppress(ProcessLookupError):
        os.kill(controller, signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)  # all of them do
    os._exit(0)
