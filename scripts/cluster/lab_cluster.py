#!/usr/bin/env python3
"""Several hosts on one Linux machine, out of network namespaces: two nodes for those who have one.

    scripts/cluster/lab_cluster.py --nodes 2 -- 'torchrun --nnodes=2 --node-rank=$NODE --nproc-per-node=1
        --master-addr=$MASTER --master-port=29500 main.py --dataset synthetic --samples 500 --epochs 1'
    scripts/cluster/lab_cluster.py --nodes 2 --cut 1@20 --mend 1@40 --timeout 120 -- 'COMMAND'
    scripts/cluster/lab_cluster.py --nodes 2 --kill 1@15 --start 1@30 -- 'COMMAND'
    scripts/cluster/lab_cluster.py --nodes 2 --rate 100mbit -- 'COMMAND'

COMMAND is a line for the shell of every host, started on all of them at once. Write it in single quotes: $NODE (0, 1,
...) and $MASTER (node0) are set on the hosts, not in your shell. Each line it prints begins with its host: `node0: `.

Each host has its own name (node0, node1, ...), address (10.0.0.1, 10.0.0.2, ...), /etc/hosts and processes, and a link
to one switch. They share the machine's files, cores and GPUs: this shows what happens, not how fast. Nothing outside
sees the hosts, and they see nothing outside, so any number of clusters may run side by side.

Exit status: that of the first host whose COMMAND failed (one that --kill took down does not count); 124 when --timeout
is over; 2 for bad input, and where the system does not permit namespaces: course/hosts.py says what it needs.
"""

import signal
import subprocess
import sys
import threading
import time

from course import rank_program
from course.hosts import LIMIT, Cluster
from trainer import options

ACTIONS = {"cut": "cut the link of a host", "mend": "mend it", "kill": "kill everything on a host at once",
           "start": "start a killed host again, and COMMAND on it"}


def get_arguments(parser):
    add = parser.add_argument
    add("--nodes", type=int, default=2, help="number of hosts (default: %(default)s)")
    for action, what in ACTIONS.items():
        add(f"--{action}", type=rank_program.moment("NODE@SECONDS", 0,
            "hosts count from 0, and the seconds must be 0 or more"),
            metavar="NODE@SECONDS", action="append", default=[],
            help=f"{what}, so many seconds after COMMAND began; may be repeated")
    add("--rate", help="bits per second of each host's network card, each way, which its connections share; as tc "
        "writes it: 100mbit (default: what the kernel can)")
    add("--timeout", type=options.positive(float), default=300,
        help="end everything after so many seconds (default: %(default)s)")
    add("command", nargs="+", metavar="COMMAND", help="a shell command line, in single quotes")
    args = parser.parse_args()
    if not 1 <= args.nodes <= 100:
        parser.error(f"--nodes {args.nodes}: it must be 1 to 100")
    args.plan = sorted((when, node, action) for action in ACTIONS for node, when in getattr(args, action))
    down = set()
    for seconds, node, action in args.plan:
        if node >= args.nodes:
            parser.error(f"--{action} {node}@{seconds:g}: the hosts are 0 to {args.nodes - 1}")
        if (action == "start") != (node in down):
            parser.error(f"--{action} {node}@{seconds:g}: node{node} is {'down' if node in down else 'up'} then")
        down ^= {node} if action in ("kill", "start") else set()
    return args


def print_lines(node, stream):
    for line in stream:
        sys.stdout.buffer.write(b"node%d: %s\n" % (node, line.rstrip(b"\n")))
        sys.stdout.buffer.flush()


def run(args):
    """Exit status of COMMAND on all hosts."""
    def start(node):
        running[node] = cluster.start(node, ["sh", "-c", " ".join(args.command)], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        printers.append(threading.Thread(target=print_lines, args=(node, running[node].stdout), daemon=True))
        printers[-1].start()

    running, printers, status, began = {}, [], 0, time.monotonic()
    with Cluster(args.nodes, rate=args.rate) as cluster:
        for node in range(args.nodes):
            start(node)
        while running:
            seconds = time.monotonic() - began
            while args.plan and args.plan[0][0] <= seconds:
                _, node, action = args.plan.pop(0)
                print(f"lab_cluster: {seconds:.0f} s: {action} node{node}", flush=True)
                getattr(cluster, "restart" if action == "start" else action)(node)
                if action == "start":
                    start(node)
                elif action == "kill":
                    running.pop(node, None)
            for node, process in list(running.items()):
                if process.poll() is not None:
                    del running[node]
                    status = status or (process.returncode if process.returncode >= 0 else 128 - process.returncode)
            if running and seconds > args.timeout:
                names = ", ".join(f"node{node}" for node in sorted(running))
                print(f"lab_cluster: --timeout {args.timeout:g} s is over; still running: {names}", file=sys.stderr)
                status = 124
                break
            time.sleep(0.05)
    for printer in printers:  # they end after the hosts: what a command left behind may still have printed
        printer.join(LIMIT)
    return status


def main():
    parser = rank_program.parser(__doc__)
    args = get_arguments(parser)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `lab_cluster.py ... | head` ends as other programs do
    with rank_program.stoppable(parser):
        sys.exit(run(args))


if __name__ == "__main__":
    main()
