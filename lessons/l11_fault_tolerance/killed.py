"""Run a training program on ranks, one of which is killed, or gets a signal, in the middle of an update.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1    # a new store for each attempt, without the addresses of dead ranks
    torchrun --standalone --nproc_per_node=2 --max-restarts=1 -m lessons.l11_fault_tolerance.killed --kill 1@20 \\
        --events results/live/events.jsonl mine/train.py --checkpoint results/live/kept.pt

1@20 is rank 1, half an update after update 20 of the first attempt; what torchrun starts again runs undisturbed. The
file --events gets a line per event: when a process began, joined, had made an update, and noticed that another rank is
gone. Seconds since 1970.
"""

import argparse
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from course import rank_program
from trainer import options

RANK, ATTEMPT = (int(os.environ.get(name, 0)) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))


def age() -> float:
    """Seconds since this process began. Linux says its boot only to the second: ask for both on the same clock."""
    process = psutil.Process()
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME) - (process.create_time() - psutil.boot_time())
    return time.time() - process.create_time()


class Events:
    """What happens on this rank. Each line is one write, so those of several ranks do not mix."""

    def __init__(self, args):
        self.args, self.updates, self.last = args, 0, time.time()
        self.write("began", time.time() - age())

    def write(self, what, at=None):
        line = {"rank": RANK, "attempt": ATTEMPT, "what": what, "updates": self.updates, "time": at or time.time()}
        with open(self.args.events, "a") as file:
            file.write(json.dumps(line) + "\n")

    def updated(self, *_):
        self.updates += 1
        self.write("update")
        took, self.last = time.time() - self.last, time.time()
        if (RANK, self.updates) == self.args.kill and ATTEMPT == 0:
            threading.Timer(took / 2, self.strike).start()

    def strike(self):
        self.write(self.args.send)
        os.kill(os.getpid(), signal.Signals[f"SIG{self.args.send}"])


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("--kill", type=rank_program.moment("RANK@UPDATE", 1, "ranks count from 0, updates from 1"),
                        metavar="RANK@UPDATE", help="default: nobody")
    parser.add_argument("--send", choices=["KILL", "USR1"], default="KILL", help="the signal; default: KILL")
    parser.add_argument("--events", type=options.nonempty_path, metavar="FILE", required=True)
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    events, join = Events(args), dist.init_process_group

    def joined(*arguments, **given):
        join(*arguments, **given)
        events.write("joined")

    dist.init_process_group = joined
    register_optimizer_step_post_hook(events.updated)
    sys.argv = [args.program, *args.arguments]
    sys.path.insert(0, str(Path(args.program).resolve().parent))
    try:
        runpy.run_path(args.program, run_name="__main__")
    except RuntimeError:  # gloo's, of a connection that has ended
        events.write("noticed")
        raise


if __name__ == "__main__":
    main()
