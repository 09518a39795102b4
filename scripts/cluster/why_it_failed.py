"""Runs a launch command and, when it fails, says why in one line: the cause, and what to do.

    python scripts/cluster/why_it_failed.py -- torchrun --nproc_per_node=2 --master-port=29500 main.py
    python scripts/cluster/why_it_failed.py --within 20 -- torchrun --nnodes=2 --node-rank=1 --master-addr=node0 main.py
    python scripts/cluster/why_it_failed.py --log slurm-17.out          looks into a log that is there already

A launcher that fails prints a page from each rank; the line that matters stands somewhere in it. The command is ended,
with all its ranks, when it is not done within --within seconds. --all prints what it said, too.

Exit status: that of the command; 124 if it had to be ended. With --expect-failure, for notebooks and tests: 0 if the
command failed for a cause that is known here, else 1.
"""

import re
import signal
import sys
import time
import uuid

import options
from course import processes, rank_program

# What a launcher's output holds -> cause and cure. The first that is found counts: the particular stand first.
CAUSES = {
    r"unrecognized arguments: --local[-_]rank\S*":
        "torch.distributed.launch passes --local-rank (--local_rank before PyTorch 2.0), which the script does not "
        "declare. Start it with torchrun and read os.environ['LOCAL_RANK'], or declare both spellings",
    r"current process has finished its bootstrapping phase":
        "each new process imports the script from its first line, and comes to the line that starts processes. Put "
        "that line under `if __name__ == \"__main__\":`, which holds for the first process alone",
    r"port: (\d+)\b.*EADDRINUSE":
        "port {1} of this node is in use, by another job or by one that was not ended (`ss -tlnp` shows it). Choose "
        "another --master-port; on a single node leave it out, and a free one is taken",
    r"addresses of \(([^,)]+), \d+\) cannot be retrieved":
        "this node knows no host {1}. Use the name that `hostname` prints on the first node, or that node's address",
    r"timed out after \d+ms while trying to connect to \(([^,)]+), (\d+)\)":
        "nobody answers at {1}:{2}. Start torchrun on the first node, too; name one address and port on all nodes; "
        "look for a firewall between them",
    r"RendezvousTimeoutError":
        "fewer nodes came than --nnodes asks for. Start torchrun on each, with the same --nnodes, --rdzv-id and "
        "--rdzv-endpoint; --rdzv-conf=join_timeout=SECONDS sets how long they wait for each other",
    r"needs a GPU for each of this node's \d+ ranks, and there are \d+|invalid device ordinal|Duplicate GPU detected":
        "more ranks than GPUs on this node. Give --nproc_per_node at most the number of GPUs, or --backend gloo, "
        "and ranks share them",
    r"(rank \d+ of \d+(?::| waited for| cannot listen at) .+)": "{1}",  # what utils.init_distributed_mode says
    r"Timed out after \d+ seconds waiting for clients\. (\d+)/(\d+) clients joined":
        "only {1} of {2} ranks came. Start the others too, with this address and port, and this world size",
    r"(?m)^(?:.*: )?(\S+\.py): error: (.+)$": "{1} says: {2}",
    r"Root Cause[\s\S]*?exitcode\s*: -9 ": "a rank was killed (SIGKILL): most often the machine ran out of memory",
    # The first error of all: where a rank raised another one, the others only wait for it in vain.
    r"\A(?:(?!\w(?:Error|Exception): )[\s\S])*\wError: Timed out waiting (\d+)ms for (?:recv|send).*":
        "the ranks met, and then one did not take part in a collective within {1} ms. Look at the ranks that do not "
        "complain",
    r"(?m)^(?:\[rank\d+\]: )?\s*(\w+(?:\.\w+)*(?:Error|Exception)(?:: .+)?)$": "a rank raised {1}",
    r"Root Cause[\s\S]*?rank\s*: (\d+) .*\n\s*exitcode\s*: (\d+)":
        "rank {1} ended with exit status {2}, and left no traceback: read what it printed before (--all). @record from "
        "torch.distributed.elastic.multiprocessing.errors on its main function would bring the traceback here",
}


def explain(output):
    """(the text that gives it away, cause and cure) of a failed run's output, or None where the cause is not known."""
    output = re.sub(r"\[[^\s\]]*/\S+:\d+\] ", "", output)  # without places in gloo's source
    root_cause = output.partition("Root Cause")[2]  # torchrun knows which rank failed first; the others' errors follow
    for pattern, meaning in CAUSES.items():
        for text in (root_cause, output):
            if found := re.search(pattern, text):
                groups = [group for group in found.groups() if group is not None]
                return found[0].splitlines()[-1].strip(), meaning.format(None, *groups)
    return None


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
            options.check_input("--log", args.log)
    start = time.monotonic()
    with rank_program.stoppable(parser, signal.default_int_handler):  # a stop from outside ends the command, too
        status, output = ((1, processes.without_folders(args.log.read_text(errors="replace"))) if args.log else
                          processes.run_and_read(args.command, args.within, mark=uuid.uuid4().hex))
    seconds, ended = time.monotonic() - start, status is None
    status = 124 if ended else status
    if args.all:
        print(output.rstrip(), flush=True)
    found = explain(output) if status else None
    if not args.log:
        print(f"status:  {status} after {seconds:.1f} s" + " (it was ended, with all that it had started)" * ended)
    if found:
        print(f"it said: {found[0]}\nwhy:     {found[1]}")
    elif ended:
        print("why:     it had said nothing of it. A launch that stands still mostly waits for others: start it on all "
              "nodes, with the same address and port, and the same number of nodes and ranks")
    elif status:
        print("why:     not known here. Read all of it (--all), from the first error on")
    sys.exit(int(found is None) if args.expect_failure else status)


if __name__ == "__main__":
    main()
