"""Ranks that print at the same moments, for notebook 10: 20 lines each with `print`, then 20 with one write each.

    torchrun --nproc_per_node=4 lessons/l10_launchers/chatter.py
"""

import os
import sys
import time


def main():
    time.sleep(2 - time.time() % 2)  # DDP ends a step on all ranks at one moment: so do these ranks, by the clock
    for name, write in (("print", print), ("write", lambda line: sys.stdout.write(line + "\n"))):
        for step in range(20):
            time.sleep(0.02 - time.time() % 0.02)
            write(f"{name}: rank {os.environ['RANK']}, step {step}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
