"""Several hosts on one Linux machine, out of network namespaces: `with Cluster(2) as hosts: hosts.start(1, ["ls"])`.

It needs Linux, `ip` and `tc` (iproute2), `unshare` and `nsenter` (util-linux), and root, or a kernel that lets users
make namespaces. scripts/cluster/lab_cluster.py is its command; course/slurm.py starts a Slurm on such hosts.
"""

import contextlib
import itertools
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 20  # seconds to start or end a host, which takes some hundredths of a second
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


class ClusterError(OSError):
    """The system does not permit hosts, or lacks a tool for them. The message is one line and says which."""


class Process(subprocess.Popen):
    """A command on a host. Signals go to the command: the process that we see, nsenter, only waits for it."""

    def commands(self):
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def send_signal(self, number):
        for pid in self.commands() if self.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):  # as Popen's own: it has just ended
                os.kill(pid, number)


class Cluster(contextlib.AbstractContextManager):
    """Hosts 0 to nodes-1. They, and all processes on them, end with the `with` block, or with this process.

    `as_root=False` makes them in a user namespace, as any user can; by default root makes them as root. `rate`: the
    bits per second of each host's one network card, each way, in the words of `tc` ("100mbit"); all its connections
    share it.
    Raises ClusterError where the system does not permit hosts, or lacks a tool.
    """

    def __init__(self, nodes: int, as_root: bool | None = None, rate: str | None = None):
        # The burst is one packet of veth, 64 KiB and headers: of a smaller one the kernel cuts each packet into pieces,
        # which takes the cores that compute; a larger one would pass at once after a pause.
        self.shaper = None if rate is None else f"tbf rate {rate} burst 72kb latency 1s"
        needed = ("ip", "unshare", "nsenter", "mount", "hostname", *(["tc"] if self.shaper else []))
        if missing := [tool for tool in needed if not shutil.which(tool, path=TOOLS)]:
            raise ClusterError(f"{', '.join(missing)} not found: install iproute2, util-linux, hostname (Linux only)")
        self.nodes, self.hosts, self.processes = nodes, [None] * nodes, [[] for _ in range(nodes)]
        as_root = os.geteuid() == 0 if as_root is None else as_root
        make_user, self.join_user = ([], []) if as_root else (["--user", "--map-root-user"],
                                                              ["--user", "--preserve-credentials"])
        self.switch = _spawn("the switch", ["unshare", *make_user, "--net", "sh", "-c", SWITCH])
        try:
            for node in range(nodes):
                self._boot(node)
        except BaseException:
            self.close()
            raise

    @classmethod
    def available(cls, **link: str) -> str | None:
        """None where hosts can be made, with a link of this `rate`; else a line that says why not."""
        try:
            cls(1, **link).close()
        except ClusterError as error:
            return str(error)

    def _enter(self, process, *namespaces):
        return ["nsenter", f"--target={process.pid}", "--net", *self.join_user, *namespaces]

    def _enter_host(self, node):
        host = self.hosts[node]
        if not host or host.poll() is not None:
            raise ClusterError(f"node{node} is down: restart({node}) starts it again")
        # The host is `unshare`. It made a namespace of processes for its children, and stays outside.
        return self._enter(host, "--mount", "--uts", f"--pid=/proc/{host.pid}/ns/pid_for_children")

    def _on_switch(self, command, check=True):
        _run([*self._enter(self.switch), *command.split()], check)

    def _boot(self, node):
        # torch looks up an IPv4 address in its IPv6 form, and would warn at each connection if it had no name.
        hosts = ["127.0.0.1 localhost", *(f"10.0.0.{n + 1} node{n}" for n in range(self.nodes))]
        table = "\n".join(["::1 localhost", *hosts, *(f"::ffff:{host}" for host in hosts)])
        options = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*self._enter(self.switch), "unshare", *options, "sh", "-c", HOST]
        host = self.hosts[node] = _spawn(f"node{node}", command, HOST_NAME=f"node{node}", HOST_TABLE=table)
        self._on_switch(f"ip link add port{node} type veth peer name eth0 netns {host.pid}")
        self._on_switch(f"ip link set port{node} master switch up")
        if self.shaper:
            self._on_switch(f"tc qdisc add dev port{node} root {self.shaper}")
        for setting in (f"ip address add 10.0.0.{node + 1}/24 dev eth0", "ip link set eth0 up",
                        *([f"tc qdisc add dev eth0 root {self.shaper}"] if self.shaper else [])):
            _run([*self._enter_host(node), *setting.split()])

    def start(self, node: int, command: list, env: dict | None = None, cwd: str | os.PathLike | None = None,
              **options) -> Process:
        """Start `command`, a list of words, on a host. `options` are those of subprocess.Popen.

        The command has NODE and MASTER in its environment, and finds the programs beside this Python first (torchrun).
        Raises ClusterError where the host is down.
        """
        path = f"{Path(sys.executable).parent}:{(env or os.environ).get('PATH', os.defpath)}"
        setting = ["env", f"--chdir={cwd or os.getcwd()}", f"NODE={node}", "MASTER=node0", f"PATH={path}"]
        process = Process([*self._enter_host(node), *setting, *map(str, command)], env=env, **options)
        self.processes[node].append(process)
        while process.poll() is None and not process.commands():  # once nsenter has started it, it can get signals
            time.sleep(0.002)
        return process

    def cut(self, node: int) -> None:
        """Pull the host's cable: packets from and to it are lost, and no connection is closed."""
        self._on_switch(f"ip link set port{node} down")

    def mend(self, node: int) -> None:
        """Plug the cable in again."""
        self._on_switch(f"ip link set port{node} up")

    def kill(self, node: int) -> None:
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
            self._on_switch(f"ip link delete port{node}", check=False)

    def restart(self, node: int) -> None:
        """Start the host again, with its link and without its processes."""
        self.kill(node)
        self._boot(node)

    def close(self, *_) -> None:
        """End all hosts, and all processes on them."""
        for node in range(self.nodes):
            self.kill(node)
        _end(self.switch, "the switch")

    __exit__ = close


def _spawn(name, command, **env):
    """The first process of the host or the switch `name`, once it is up."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**os.environ, "PATH": TOOLS, **env},
                               start_new_session=True)  # Ctrl-C is for us alone
    answer = "it was stopped"
    try:
        ready = select.select([process.stdout], [], [], LIMIT)[0]
        answer = process.stdout.readline().strip() if ready else f"it did not answer within {LIMIT} s"
    finally:
        if answer != "up":
            process.kill()
            process.communicate()
    if answer != "up":
        raise ClusterError(f"the namespaces of {name} cannot be made here ({answer}): try as root on the machine "
                           "itself, or in a container that is started with --privileged")
    return process


def _run(command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "PATH": TOOLS})
    if check and done.returncode:
        own = itertools.dropwhile(lambda word: word == "nsenter" or word.startswith("--"), command)
        raise ClusterError(f"{' '.join(own)}: {done.stderr.strip()}")


def _end(process, name):
    process.stdin.close()
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"waited {LIMIT} s for {name} to end") from None
    process.stdout.close()


def where(missing: str | None, recorded: str | os.PathLike) -> str:
    """Say which run a cell shows: a live run, or the `recorded` run because of what is `missing` here."""
    if missing:
        return f"**Recorded on another machine** (`{recorded}`), because {missing}."
    return "Live, on hosts that this machine makes for it."
