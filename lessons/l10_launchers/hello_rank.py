"""A rank that says who it is and which variables its launcher gave it, and no more. Notebook 10 starts it in every way.

    torchrun --nproc_per_node=2 lessons/l10_launchers/hello_rank.py
    python -m torch.distributed.launch --nproc_per_node=2 lessons/l10_launchers/hello_rank.py
    python lessons/l10_launchers/hello_rank.py --spawn 2      mp.spawn starts the ranks
    torchrun --nproc_per_node=2 --max-restarts=1 lessons/l10_launchers/hello_rank.py --fail 1      rank 1 fails at first
"""

# ruff: noqa: E402
import time

first_line = time.time()  # seconds since 1970; before anything else is imported

import argparse
import json
import os
import signal
import sys

import psutil

from course import rank_program
from trainer.files import check_output
from trainer.options import from_zero, nonempty_path, positive


def variables_of_launcher():
    """The environment variables that the launcher, this process's parent, has set or changed for it."""
    parent = psutil.Process(os.getppid()).environ()
    return {name: value for name, value in sorted(os.environ.items()) if parent.get(name) != value}


def program(words):
    """What a command line starts, in two words; None: a shell, which only passes it on."""
    name = " ".join([os.path.basename(word) for word in words if not word.startswith("-")][:2])
    known = {"sh ": None, "ipykernel": "this notebook", "torchrun": "torchrun"}
    return next((known[part] for part in known if part in name), name)


def hello(number, args):
    """The life of a rank. `number` is what mp.spawn passes to its function; None from the other launchers."""
    rank, attempt = int(os.environ.get("RANK", number or 0)), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    record = {"rank": rank, "attempt": attempt, "pid": os.getpid(), "first_line": first_line, "passed": number,
              "arguments": [word for word in sys.argv if word.startswith("--local")],
              "variables": variables_of_launcher(),
              "parents": [[parent.pid, program(parent.cmdline())] for parent in psutil.Process().parents()]}
    passed = record["arguments"] + [f"the number {number}"] * (number is not None)
    print(f"rank {rank}, attempt {attempt}, process {os.getpid()}: got {len(record['variables'])} variables", *passed,
          sep=" and ", flush=True)
    try:
        if args.fail is not None:
            fail_once(args.fail, rank, attempt)
        record["end"] = f"rank {rank} is done"
    except SystemExit as end:
        record["end"] = end.code
        raise
    finally:
        record["ready"] = time.time()
        if args.out:
            with open(args.out, "a", encoding="utf-8") as file:  # one short write: the ranks' lines do not mix
                file.write(json.dumps(record) + "\n")


def fail_once(fails, rank, attempt):
    """A second of sleep; then, at the first attempt, rank `fails` fails, and the others sleep on."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"rank {rank} gets SIGTERM"))  # so torchrun ends the others
    time.sleep(1)
    if attempt == 0:
        if rank == fails:
            sys.exit(f"rank {rank} fails")
        time.sleep(60)  # in the middle of its work, as the others are then


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("--spawn", type=positive(int), metavar="N", help="start N ranks with mp.spawn")
    parser.add_argument("--fail", type=from_zero, metavar="RANK", help="this rank fails at its first attempt")
    parser.add_argument("--out", type=nonempty_path, metavar="FILE",
                        help="append a record of each rank to this file, JSON lines")
    # torch.distributed.launch gives it
    parser.add_argument("--local-rank", "--local_rank", type=from_zero, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with parser.one_line():
        if args.out:
            check_output("--out", args.out)
    if args.spawn is None:
        return hello(None, args)
    import torch.multiprocessing as mp

    mp.spawn(hello, (args,), nprocs=args.spawn, daemon=True)


if __name__ == "__main__":
    main()
