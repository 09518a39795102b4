"""Start a program several times on this machine, and tell each process who it is.

    python lessons/start/ours/launch.py 2 mine/train.py --epochs 1
"""

import os
import socket
import subprocess
import sys
import time


def launch(count, command, wait):
    """Run `command`, a list of words, in `count` processes, as ranks 0 to count - 1. No process is left at the end.

    The exit status of the job: 0 where all ranks ended well, that of a rank that failed, or 124 after `wait` seconds.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))  # the system chooses a port that is free
        port = probe.getsockname()[1]
    everyone = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen(command, env={**os.environ, **everyone, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank in range(count)]
    give_up = time.monotonic() + wait
    try:
        while time.monotonic() < give_up:
            statuses = [process.poll() for process in ranks]  # None: it still runs; below 0: a signal ended it
            failed = [status for status in statuses if status]
            if failed:
                return failed[0]
            if None not in statuses:
                return 0
            time.sleep(0.05)
        return 124
    finally:  # Ctrl-C comes here, too
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), [sys.executable, *sys.argv[2:]], wait=600))
