"""Run a program on ranks of which one is slow: busy processes share its core. Which rank, nobody is told.

    torchrun --nproc_per_node=2 lessons/l08_performance/straggler.py -m doctor --film run.json mine/train.py

What follows is what `python` would be given: a file, or -m and a module. Linux, which can bind a process to a core.
"""

import os
import runpy
import subprocess
import sys

BUSY = 2  # processes that never wait: the rank gets about a third of its core


def main():
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    slow = int(os.environ["MASTER_PORT"]) % ranks  # torchrun draws the port anew for each run
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    program = "import os, time\nwhile os.getppid() == int(__import__('sys').argv[1]):\n  for _ in range(10**5): pass"
    others = [subprocess.Popen([sys.executable, "-c", program, str(os.getpid())]) for _ in range(BUSY)
              ] if rank == slow else []
    try:
        sys.argv.pop(0)
        if sys.argv[0] == "-m":
            sys.argv.pop(0)
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
