"""Hosts out of network namespaces: their links, cut and mended, and hosts that are killed. main.py trains on such hosts
in test_slurm.py and in lesson 11's tests."""

import os
import re
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from course import processes
from course.hosts import Cluster, ClusterError
from tests import runner

WHY_NOT = Cluster.available()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
SCRIPT = [sys.executable, "scripts/cluster/lab_cluster.py"]

# Prints a line when it listens, then tells everybody who connects, and then everything they send, its host's name.
SERVER = """
import socket
server = socket.create_server((socket.gethostname(), 29500))
print("listening", flush=True)
while True:
    with server.accept()[0] as peer:
        peer.sendall(socket.gethostname().encode())
        while peer.recv(99):
            peer.sendall(socket.gethostname().encode())
"""
CLIENT = """
import socket, sys
print(socket.create_connection((sys.argv[1], 29500), timeout=3).recv(99).decode())
"""
# Says that it is connected, and asks again when it is told to.
PATIENT_CLIENT = """
import socket
server = socket.create_connection(("node0", 29500), timeout=100)
print("connected", server.recv(99).decode(), flush=True)
input()
server.sendall(b"again")
print("again", server.recv(99).decode(), flush=True)
"""


@pytest.fixture
def cluster():
    with Cluster(2) as hosts:
        yield hosts


def python(cluster, node, code, *arguments, **options):
    return cluster.start(node, [sys.executable, "-c", code, *arguments], text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, **options)


def output(process):
    return process.communicate(timeout=runner.LIMIT)[0]


def next_line(process, seconds=runner.LIMIT):
    """What a process prints next, that prints a line at a time; "" if it prints nothing for so long."""
    return process.stdout.readline() if select.select([process.stdout], [], [], seconds)[0] else ""


def serve(cluster, node, code=SERVER):
    server = python(cluster, node, code)
    assert next_line(server) == "listening\n"
    return server


def answers(cluster, node, other):
    """Whether `node` is told `other`'s name by it."""
    return output(python(cluster, node, CLIENT, f"node{other}")) == f"node{other}\n"


def net_namespace(pid):
    """What names the network namespace of a process, while it lives; None if it is gone or another user's."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def inhabitants(namespaces):
    return [process for process in psutil.process_iter() if net_namespace(process.pid) in namespaces]


def wait_for_sleepers(count, of_lab):
    """A shell's child is a shell until it becomes `sleep`."""
    def asleep():
        return sum(process.is_running() and process.name() == "sleep" for process in of_lab())

    runner.wait_for(lambda: asleep() == count, f"{count} sleepers")


# ------------------------------------------------------------------------------------------------------------ the hosts


@needs_hosts
@pytest.mark.parametrize("as_root", [True, False])
def test_each_host_has_its_name_address_and_processes_and_reaches_the_others(as_root):
    if as_root and os.geteuid():
        pytest.skip("not root")
    try:
        hosts = Cluster(3, as_root)
    except ClusterError as error:
        pytest.skip(str(error))
    with hosts:
        about = ("import os, socket as s; print(s.gethostname(), s.gethostbyname(s.gethostname()), os.environ['NODE'], "
                 "os.environ['MASTER'], os.getcwd(), len([p for p in os.listdir('/proc') if p.isdigit()]))")
        printed = [output(python(hosts, node, about, cwd=runner.ROOT)).split() for node in range(3)]
        assert printed == [[f"node{n}", f"10.0.0.{n + 1}", str(n), "node0", str(runner.ROOT), "2"] for n in range(3)]
        for node in range(3):
            serve(hosts, node)
        assert all(answers(hosts, node, other) for node in range(3) for other in range(3))
        loopback = "import socket as s; a = s.create_server(('localhost', 0)); s.create_connection(a.getsockname())"
        assert output(python(hosts, 0, f"{loopback}; print('up')")) == "up\n"
    assert not Path("/etc/hosts").read_text().count("node2"), "the machine's own table was changed"


@needs_hosts
def test_a_cut_link_is_silent_until_it_is_mended(cluster):
    serve(cluster, 0)
    patient = python(cluster, 1, PATIENT_CLIENT, stdin=subprocess.PIPE)
    assert next_line(patient) == "connected node0\n"
    cluster.cut(1)
    print(file=patient.stdin, flush=True)
    assert next_line(patient, seconds=3) == "" and patient.poll() is None  # neither an answer nor an error
    assert not answers(cluster, 1, 0)
    cluster.mend(1)
    assert next_line(patient) == "again node0\n", "an open connection goes on after the gap"
    serve(cluster, 1)
    assert answers(cluster, 0, 1)


@needs_hosts
def test_kill_ends_everything_on_one_host_and_a_restarted_one_is_new(cluster):
    server = serve(cluster, 0)
    assert cluster.start(1, ["sh", "-c", "setsid sleep 1000 &"]).wait(runner.LIMIT) == 0  # leaves an orphan
    busy = cluster.start(1, ["sleep", "1000"])
    wait_for_sleepers(2, lambda: inhabitants({net_namespace(busy.pid)}))
    on_host = inhabitants({net_namespace(busy.pid)})
    cluster.kill(1)
    assert busy.returncode == -signal.SIGKILL
    assert psutil.wait_procs(on_host, timeout=30)[1] == []
    with pytest.raises(ClusterError, match=r"node1 is down: restart\(1\)"):
        cluster.start(1, ["true"])
    assert server.poll() is None
    cluster.restart(1)
    assert answers(cluster, 1, 0)


BULK = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 29500), timeout=30)
began = time.monotonic()
peer.sendall(bytes(600_000))
peer.shutdown(socket.SHUT_WR)
while peer.recv(65536):
    pass
print(time.monotonic() - began)
"""
SINK = """
import socket
server = socket.create_server((socket.gethostname(), 29500))
print("listening", flush=True)
with server.accept()[0] as peer:
    while peer.recv(65536):
        pass
"""


def crossing(hosts):
    """Seconds until 600,000 bytes of node1 have come to node0, and node1 knows."""
    serve(hosts, 0, SINK)
    return float(output(python(hosts, 1, BULK, "node0")))


@needs_hosts
def test_a_link_carries_no_more_than_its_rate():
    with Cluster(2, rate="8mbit") as slow:
        assert crossing(slow) > (600_000 - 2 * 72_000) / 1e6, "a million bytes per second, but for the cards' bursts"
    done = lab("--rate", "fast", "--", "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and 'illegal value for "rate"' in done.stderr


@needs_hosts
def test_signals_and_status_are_those_of_the_command(cluster):
    assert cluster.start(0, ["sh", "-c", "exit 3"]).wait(runner.LIMIT) == 3
    sleeper = cluster.start(0, ["sleep", "1000"])
    (command,) = sleeper.commands()
    sleeper.terminate()
    assert sleeper.wait(runner.LIMIT) == -signal.SIGTERM and not psutil.pid_exists(command)
    polite = cluster.start(1, ["sh", "-c", "trap 'exit 5' INT; echo ready; sleep 1000 & wait"], stdout=subprocess.PIPE)
    assert polite.stdout.readline() == b"ready\n"
    polite.send_signal(signal.SIGINT)
    assert polite.wait(runner.LIMIT) == 5


# -------------------------------------------------------------------------------------------------------- command line


def lab(*arguments, **options):
    return subprocess.run([*SCRIPT, *map(str, arguments)], cwd=runner.ROOT, env=runner.environment(),
                          capture_output=True, text=True, timeout=runner.LIMIT, **options)


@pytest.mark.parametrize(("options", "message"), [
    (["--mend", "1@soon", "--", "true"], "'1@soon' is not NODE@SECONDS"),
    (["--kill", "2@1", "--", "true"], "--kill 2@1: the hosts are 0 to 1"),
    (["--kill", "1@5", "--cut", "1@6", "--", "true"], "--cut 1@6: node1 is down then"),
])
def test_bad_input_is_one_line_and_status_2(options, message):
    done = lab(*options)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("lab_cluster.py: error: ") and message in done.stderr


@needs_hosts
def test_status_is_that_of_the_first_host_that_failed():
    done = lab("--nodes", 3, "--", "echo here; [ $NODE = 2 ] || sleep 3; exit $((NODE * 4))")
    assert done.returncode == 8, "node2 fails first"
    assert sorted(done.stdout.splitlines()) == ["node0: here", "node1: here", "node2: here"]
    assert lab("--", "kill -9 $$").returncode == 128 + signal.SIGKILL


@needs_hosts
def test_timeout_names_the_hosts_still_running():
    done = lab("--timeout", 3, "--nodes", 3, "--", "[ $NODE = 1 ] || sleep 1000")
    assert done.returncode == 124
    assert done.stderr == "lab_cluster: --timeout 3 s is over; still running: node0, node2\n"


@needs_hosts
def test_killed_host_does_not_count_and_may_start_again(tmp_path):
    done = lab("--kill", "1@2", "--start", "1@3", "--", f"echo $$ >> {tmp_path}/$NODE; sleep 5; echo through")
    assert done.returncode == 0, done.stderr
    assert re.sub(r"\d+ s", "then", done.stdout).splitlines() == [
        "lab_cluster: then: kill node1", "lab_cluster: then: start node1", "node0: through", "node1: through"]
    assert [len((tmp_path / node).read_text().splitlines()) for node in "01"] == [1, 2]


@needs_hosts
def test_nothing_is_left_of_a_lab_that_is_killed():
    """Its processes are known by a mark in their environment: the kernel gives numbers of namespaces again."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen([*SCRIPT, "--", "setsid sleep 1000 & sleep 1000 & echo ready; wait"], cwd=runner.ROOT,
                               env=processes.environment(mark, runner.environment()), text=True,
                               stdout=subprocess.PIPE)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["node0: ready\n", "node1: ready\n"]
    wait_for_sleepers(4, lambda: processes.marked(mark))
    family = processes.marked(mark)
    assert len({net_namespace(each.pid) for each in family} - {net_namespace("self")}) == 3, "two hosts and a switch"
    process.kill()
    process.communicate(timeout=runner.LIMIT)
    assert psutil.wait_procs(family, timeout=30)[1] == [], "processes are still alive"
    assert processes.marked(mark) == []
