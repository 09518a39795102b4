"""Run a launch command and, when it fails, say why in one line: the cause, and what to do.

    python scripts/cluster/why_it_failed.py -- torchrun --nproc_per_node=2 --master-port=29500 main.py
    python scripts/cluster/why_it_failed.py --within 20 -- torchrun --nnodes=2 --node-rank=1 --master-addr=node0 main.py
    python scripts/cluster/why_it_failed.py --log slurm-17.out          looks into a log that is there already

A launcher that fails prints a page from each rank, with the line that matters somewhere in it. The command is ended,
with all its ranks, when it is not done within --within seconds. --all prints its output, too.

Exit status: that of the command; 124 if it had to be ended. With --expect-failure, for notebooks and tests: 0 if the
command failed for a cause that is known here, else 1.
"""

import signal
import sys
import time
import uuid

from course import processes, rank_program
from course.failures import explain
from trainer import files, options


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--within", type=options.positive(float), default=60, metavar="SECONDS",
        help="end the command then; default: 60")
    add("--all", action="store_true", help="print the command's output, too")
    add("--expect-failure", action="store_true", help="exit with 0 if it failed for a cause that is known here")
    add("--log", type=options.nonempty_path, metavar="FILE", help="look into this file instead of running a command")
    add("command", nargs="*", metavar="COMMAND", help="what to run, after --")
    args = parser.parse_args()
    if bool(args.log) == bool(args.command):
        parser.error("give a command after --, or --log FILE")
    with parser.one_line():
        if args.log:
            files.check_input("--log", args.log)
    start = time.monotonic()
    with rank_program.stoppable(parser, signal.default_int_handler):  # a stop from outside ends the command, too
        status, output = ((1, processes.without_folders(args.log.read_text(errors="replace"))) if args.log else
                          processes.run_and_read(args.command, args.within, mark=uuid.uuid4().hex))
    seconds, ended = time.monotonic() - start, status is None
    status = 124 if ended else status
    if args.all:
        print(output.rstrip(), flush=True)
    cause = explain(output) if status else None  # (the line that matters, why)
    if not args.log:
        print(f"status:  {status} after {seconds:.1f} s" + " (it was ended, with all that it had started)" * ended)
    if cause:
        print(f"it said: {cause[0]}\nwhy:     {cause[1]}")
    elif ended:
        print("why:     it had said nothing of it. A launch that stands still mostly waits for others: start it on all "
              "nodes, with the same address and port, and the same number of nodes and ranks")
    elif status:
        print("why:     not known here. Read it (--all) from the first error on; search TROUBLESHOOTING.md for that")
    sys.exit(int(cause is None) if args.expect_failure else status)


if __name__ == "__main__":
    main()
