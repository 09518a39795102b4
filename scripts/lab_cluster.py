#!/usr/bin/env python3
"""Several hosts on one Linux machine, out of network namespaces: two nodes for those who have one.

    scripts/lab_cluster.py --nodes 2 -- 'torchrun --nnodes=2 --node-rank=$NODE --nproc-per-node=1
        --master-addr=$MASTER --master-port=29500 main.py --dataset synthetic --samples 500 --epochs 1'
    scripts/lab_cluster.py --nodes 2 --cut 1@20 --mend 1@40 --timeout 120 -- 'COMMAND'
    scripts/lab_cluster.py --nodes 2 --kill 1@15 --start 1@30 -- 'COMMAND'

COMMAND is a line for the shell of every host, started on all of them at once. Write it in single quotes: $NODE (0, 1,
...) and $MASTER (node0) are set on the hosts, not in your shell. Each line it prints begins with its host: `node0: `.

Each host has its own name (node0, node1, ...), address (10.0.0.1, 10.0.0.2, ...), /etc/hosts and processes, and a link
to one switch. They share the machine's files, cores and GPUs: this shows what happens, not how fast. Nothing outside
sees the hosts, and they see nothing outside, so any number of clusters may run side by side.

Exit status: that of the first host whose COMMAND failed (one that --kill took down does not count); 124 when --timeout
is over; 2 for bad input, and where the system does not permit namespaces.

It needs Linux, `ip` (iproute2), `unshare` and `nsenter` (util-linux), and root, or a kernel that lets users make
namespaces. In Python: `with Cluster(2) as cluster: ...`.
"""

import argparse
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LIMIT = 20  # seconds for what takes some hundredths: starting a host, ending one
TOOLS = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # not every user's PATH goes where `ip` is

# Namespaces live as long as a process is in them. The first process of the switch, and of each host, becomes a `cat`
# that reads a pipe from us. When we end, however we end, the kernel closes the pipe, and `cat` ends. On a host it is
# process 1, and when that ends the kernel kills all others. No namespace has a name, so nothing is left.
SWITCH = "ip link add switch type bridge && ip link set switch up && echo up && exec cat"
HOST = """
set -e
hostname "$HOST_NAME"
mount -t tmpfs none /tmp  # its own /etc/hosts is a file in memory
echo "$HOST_TABLE" > /tmp/hosts
mount --bind /tmp/hosts /etc/hosts
umount /tmp
ip link set lo up
echo up
trap '' CHLD  # orphans that end do not stay as zombies
exec cat
"""


class ClusterError(RuntimeError):
    """What cannot be done; one line says why."""


class Process(subprocess.Popen):
    """A command on a host. Signals go to the command: the process that we see, nsenter, only waits for it."""

    def commands(self):
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def send_signal(self, number):
        for pid in self.commands() if self.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):  # as Popen's own: it has just ended
                os.kill(pid, number)


class Cluster:
    """Hosts 0 to nodes-1. They, and all that runs on them, end with the `with` block, or with this process.

    `as_root=False` makes them in a user namespace, as any user can; default: whether we are root. Raises ClusterError
    where the system does not permit it.
    """

    def __init__(self, nodes, as_root=None):
        needed = ("ip", "unshare", "nsenter", "mount", "hostname")
        if missing := [tool for tool in needed if not shutil.which(tool, path=TOOLS)]:
            raise ClusterError(f"{', '.join(missing)} not found: install iproute2, util-linux, hostname (Linux only)")
        self.nodes, self.hosts, self.processes = nodes, [None] * nodes, [[] for _ in range(nodes)]
        as_root = os.geteuid() == 0 if as_root is None else as_root
        make_user, self.join_user = ([], []) if as_root else (["--user", "--map-root-user"],
                                                              ["--user", "--preserve-credentials"])
        self.switch = _spawn(["unshare", *make_user, "--net", "sh", "-c", SWITCH])
        try:
            _wait_until_up(self.switch, "the switch")
            for node in range(nodes):
                self._boot(node)
        except BaseException:
            self.close()
            raise

    @classmethod
    def available(cls):
        """None where hosts can be made, else one line: why not, and what to do."""
        try:
            cls(1).close()
        except ClusterError as error:
            return str(error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _enter(self, process, *namespaces):
        return ["nsenter", f"--target={process.pid}", "--net", *self.join_user, *namespaces]

    def _enter_host(self, node):
        host = self.hosts[node]
        if not host or host.poll() is not None:
            raise ClusterError(f"node{node} is down: restart({node}) starts it again")
        # The host is `unshare`. It made a namespace of processes for its children, and stays outside.
        return self._enter(host, "--mount", "--uts", f"--pid=/proc/{host.pid}/ns/pid_for_children")

    def _on_switch(self, command):
        _run([*self._enter(self.switch), *command.split()])

    def _boot(self, node):
        # torch looks up an IPv4 address in its IPv6 form, and would warn at each connection if it had no name.
        hosts = ["127.0.0.1 localhost", *(f"10.0.0.{n + 1} node{n}" for n in range(self.nodes))]
        table = "\n".join(["::1 localhost", *hosts, *(f"::ffff:{host}" for host in hosts)])
        options = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        host = self.hosts[node] = _spawn([*self._enter(self.switch), "unshare", *options, "sh", "-c", HOST],
                                         HOST_NAME=f"node{node}", HOST_TABLE=table)
        _wait_until_up(host, f"node{node}")
        self._on_switch(f"ip link add port{node} type veth peer name eth0 netns {host.pid}")
        self._on_switch(f"ip link set port{node} master switch up")
        for setting in (f"address add 10.0.0.{node + 1}/24 dev eth0", "link set eth0 up"):
            _run([*self._enter_host(node), "ip", *setting.split()])

    def start(self, node, command, env=None, cwd=None, **options):
        """Start `command`, a list of words, on a host; a Popen. `options` are those of subprocess.Popen.

        It has NODE and MASTER in its environment, and finds the programs beside this Python first (torchrun).
        """
        path = f"{Path(sys.executable).parent}:{(env or os.environ).get('PATH', os.defpath)}"
        setting = ["env", f"--chdir={cwd or os.getcwd()}", f"NODE={node}", "MASTER=node0", f"PATH={path}"]
        process = Process([*self._enter_host(node), *setting, *map(str, command)], env=env, **options)
        self.processes[node].append(process)
        while process.poll() is None and not process.commands():  # once nsenter has started it, it can get signals
            time.sleep(0.002)
        return process

    def cut(self, node):
        """Pull the host's cable: packets from and to it are lost, and nobody is told."""
        self._on_switch(f"ip link set port{node} down")

    def mend(self, node):
        self._on_switch(f"ip link set port{node} up")

    def kill(self, node):
        """Kill everything on the host at once. Its connections close, so that the others notice, as in a reboot.

        `cut` it first for a loss of power: the others then hear nothing.
        """
        host, self.hosts[node] = self.hosts[node], None
        if host:
            _end(host, f"node{node}")
            for process in self.processes[node]:
                process.wait(LIMIT)
            self.processes[node] = []
            # The kernel removes the link some time after the host's last process. It may have done so: no check.
            _run([*self._enter(self.switch), "ip", "link", "delete", f"port{node}"], check=False)

    def restart(self, node):
        """Start the host again, with its link; nothing runs on it."""
        self.kill(node)
        self._boot(node)

    def close(self):
        for node in range(self.nodes):
            self.kill(node)
        _end(self.switch, "the switch")


def _spawn(command, **env):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "PATH": TOOLS, **env}, start_new_session=True)  # Ctrl-C is for us alone


def _wait_until_up(process, name):
    heard = select.select([process.stdout], [], [], LIMIT)[0]
    said = process.stdout.readline().strip() if heard else f"it did not answer within {LIMIT} s"
    if said != "up":
        raise ClusterError(f"the namespaces of {name} cannot be made here ({said}): try as root on the machine itself, "
                           "or in a container that is started with --privileged")


def _run(command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "PATH": TOOLS})
    if check and done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")


def _end(process, name):
    process.stdin.close()
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"waited {LIMIT} s for {name} to end") from None
    process.stdout.close()

# --------------------------------------------------------------------------------------------------------- command line


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def moment(text):
    node, _, seconds = text.partition("@")
    try:
        when = float(seconds), int(node)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE@SECONDS, such as 1@20") from None
    if not 0 <= when[0] < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: the seconds must be 0 or more")
    return when


def get_arguments(parser):
    add, actions = parser.add_argument, {
        "cut": "cut the link of a host", "mend": "mend it", "kill": "kill everything on a host at once",
        "start": "start a killed host again, and COMMAND on it"}
    add("--nodes", type=int, default=2, help="number of hosts (default: %(default)s)")
    for action, what in actions.items():
        add(f"--{action}", type=moment, metavar="NODE@SECONDS", action="append", default=[],
            help=f"{what}, so many seconds after COMMAND began; may be repeated")
    add("--timeout", type=float, default=300, help="end everything after so many seconds (default: %(default)s)")
    add("command", nargs="+", metavar="COMMAND", help="a shell command line, in single quotes")
    args = parser.parse_args()
    if not 1 <= args.nodes <= 100:
        parser.error(f"--nodes {args.nodes}: it must be 1 to 100")
    if not 0 < args.timeout < float("inf"):
        parser.error(f"--timeout {args.timeout:g}: it must be more than 0")
    args.plan, down = sorted((*when, action) for action in actions for when in getattr(args, action)), set()
    for seconds, node, action in args.plan:
        if not 0 <= node < args.nodes:
            parser.error(f"--{action} {node}@{seconds:g}: the hosts are 0 to {args.nodes - 1}")
        if (action == "start") != (node in down):
            parser.error(f"--{action} {node}@{seconds:g}: node{node} is {'down' if node in down else 'up'} then")
        down ^= {node} if action in ("kill", "start") else set()
    return args


def print_lines(node, stream):
    for line in stream:
        sys.stdout.buffer.write(b"node%d: %s\n" % (node, line.rstrip(b"\n")))
        sys.stdout.buffer.flush()


def run(cluster, args, printers):
    """Exit status of COMMAND on all hosts. `printers`: threads that end after the hosts."""
    def start(node):
        running[node] = cluster.start(node, ["sh", "-c", " ".join(args.command)], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        printers.append(threading.Thread(target=print_lines, args=(node, running[node].stdout), daemon=True))
        printers[-1].start()

    running, status, began = {}, 0, time.monotonic()
    for node in range(args.nodes):
        start(node)
    while running:
        seconds = time.monotonic() - began
        while args.plan and args.plan[0][0] <= seconds:
            _, node, action = args.plan.pop(0)
            print(f"lab_cluster: {seconds:.0f} s: {action} node{node}", flush=True)
            if action == "start":
                cluster.restart(node)
                start(node)
            else:
                getattr(cluster, action)(node)
                if action == "kill":
                    running.pop(node, None)
        for node, process in list(running.items()):
            if process.poll() is not None:
                del running[node]
                status = status or (process.returncode if process.returncode >= 0 else 128 - process.returncode)
        if running and seconds > args.timeout:
            names = ", ".join(f"node{node}" for node in sorted(running))
            print(f"lab_cluster: --timeout {args.timeout:g} s is over; still running: {names}", file=sys.stderr)
            return 124
        time.sleep(0.05)
    return status


def main():
    parser = Parser(prog="lab_cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args, printers = get_arguments(parser), []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `lab_cluster.py ... | head` ends as other programs do
    try:
        with Cluster(args.nodes) as cluster:
            status = run(cluster, args, printers)
        for printer in printers:
            printer.join(LIMIT)
        return status
    except ClusterError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
