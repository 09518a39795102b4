"""The dial: the rates of the sockets between ranks, and the bytes that the kernel has counted on them."""

import json
import socket
import struct

import pytest

from course import dial
from tests import runner

# Two updates under DDP, a group of two ranks, and the rate that the kernel says of each connection to another rank.
PROGRAM = """
import json, os, socket, struct, sys, torch, torch.distributed as dist
from course import dial
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(500, 1000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(2):
    model(torch.ones(2, 500)).sum().backward()
    optimizer.step()
pair = dist.new_group([0, 1])
if dist.get_rank() < 2:
    dist.all_reduce(torch.ones(3), group=pair)
found = []
for copy, own, other in dial._connections():
    rate = struct.unpack("=Q", copy.getsockopt(socket.SOL_SOCKET, dial.SO_MAX_PACING_RATE, 8))[0]
    if (own, other) in dial.dial.peers:
        found.append([dial.dial.peers[own, other], 8 * rate])
print(json.dumps([dist.get_rank(), sorted(found), sys.argv[1:]]), flush=True)
dist.destroy_process_group()
"""


def test_each_connection_has_its_rate_and_what_it_carried_is_counted(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = runner.run(3, "--nodes", "3x1", "--between", "80mbit", "--slow", "0-2:40mbit", "--count",
                      tmp_path / "count.json", tmp_path / "program.py", "word", "--option", script="course/dial.py")
    assert done.returncode == 0, done.stderr
    fast, slow = 80_000_000, 40_000_000
    said = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [each[1] for each in said] == [[[1, fast], [1, fast], [2, slow]], [[0, fast], [0, fast], [2, fast]],
                                          [[0, slow], [1, fast]]], "ranks 0 and 1 have a group more"
    assert all(each[2] == ["word", "--option"] for each in said)
    counted = json.loads((tmp_path / "count.json").read_text())
    assert counted["world_size"] == 3 and counted["rates"][2] == [slow, fast, None]
    second = counted["updates"][1]
    ring = 2 * 2 / 3 * 4 * (500 * 1000 + 1000)  # bytes that a rank sends to the next
    assert len(counted["updates"]) == 2
    for rank in range(3):
        assert sum(second[rank]) == pytest.approx(ring, rel=0.01)
        assert max(second[rank]) == pytest.approx(ring, rel=0.01), "to one rank, the next in the ring"
    assert sum(counted["total"][0]) > sum(counted["updates"][0][0]) + sum(second[0]), "the group of two, afterwards"


def test_a_program_can_turn_the_dial_itself(tmp_path):
    (tmp_path / "program.py").write_text("""
import torch, torch.distributed as dist
from course import dial
dist.init_process_group("gloo")
dial.pace("80mbit")
dist.all_reduce(torch.ones(250_000))
print(*dial.counted(), *dial.dial.rates)
dist.barrier()  # a rank that has left has closed its connections
dial.pace(None)
print(*dial.dial.rates)
try:
    dial.pace("80")
except ValueError as error:
    print(error)
dist.destroy_process_group()
""")
    done = runner.run(2, script=str(tmp_path / "program.py"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    received = sorted(max(map(int, line.split()[:2])) for line in (lines[0], lines[3]))
    assert received == pytest.approx([1_000_000] * 2, rel=0.01)
    assert lines[0].endswith("[80000000.0, 80000000.0]") and lines[1] == "[None, None] [None, None]"
    assert "'80' is no rate" in lines[2]


def test_rates_by_nodes_and_of_slow_ranks():
    assert dial.rates(2, "1.5gbit") == [[1.5e9] * 2] * 2
    assert dial.rates(4, "1gbit", "2x2", "20mbit")[1] == [1e9, 1e9, 2e7, 2e7]
    assert dial.rates(3, "1gbit", slow=["2:20mbit", "0-1:500kbit"]) == [[1e9, 5e5, 2e7], [5e5, 1e9, 2e7], [2e7] * 3]


@pytest.mark.parametrize("words", [
    ["--rate", "200"], ["--rate", "0mbit"], ["--rate", "nanmbit"], ["--rate", "1mbit", "--nodes", "2x2"],
    ["--rate", "1mbit", "--nodes", "2x2", "--between", "1mbit"], ["--slow", "2:1mbit"], ["--slow", "1-1:1mbit"],
    ["--slow", "1"], ["--check"], ["--rate", "1mbit", "--count", "/proc/none/file"],
    ["-m", "no_such_module"], ["-m", "no_such.module"]])
def test_bad_words_are_refused_in_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dial", *words, *([] if "--check" in words else [__file__])])
    assert refused(monkeypatch, capsys).startswith("dial: error: ")


def test_without_a_launcher_or_a_program_a_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dial", "--rate", "1mbit"])
    assert "PROGRAM" in refused(monkeypatch, capsys)
    monkeypatch.setattr("sys.argv", ["dial", "--rate", "1mbit", "no_such_file.py"])
    assert "no_such_file.py" in refused(monkeypatch, capsys)
    monkeypatch.setattr("sys.argv", ["dial", "--rate", "1mbit", __file__])
    assert "torchrun" in refused(monkeypatch, capsys, RANK=None)


def test_a_kernel_that_does_not_obey_is_named(monkeypatch, capsys):
    assert dial.missing() is None
    monkeypatch.setattr(dial, "SO_MAX_PACING_RATE", 9999)  # an option that no kernel has
    monkeypatch.setattr("sys.argv", ["dial", "--rate", "1mbit", __file__])
    assert dial.missing() in refused(monkeypatch, capsys)
    monkeypatch.setattr("sys.platform", "darwin")
    assert "darwin" in dial.missing()


def refused(monkeypatch, capsys, **env):
    """The one line with which the command ends, on rank 0 of 2."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **env}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        dial.main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1), said
    return said.err


@pytest.mark.weekly
def test_nccl_is_refused(tmp_path):
    (tmp_path / "program.py").write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    done = runner.run(2, "--rate", "1mbit", tmp_path / "program.py", script="course/dial.py")
    assert done.returncode == 2 and "gloo" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.weekly
def test_an_error_of_the_program_keeps_its_traceback(tmp_path):
    (tmp_path / "own.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n1 / 0\n")
    done = runner.run(1, "--rate", "1mbit", tmp_path / "own.py", script="course/dial.py")
    assert done.returncode == 1 and 'own.py", line 3' in done.stderr and "ZeroDivisionError" in done.stderr


def test_only_tcp_connections_are_looked_at():
    ends = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other = "{}:{}".format(*client.getsockname())
        found = [(own, to) for copy, own, to in dial._connections() if not copy.close()]
        assert ("{}:{}".format(*server.getsockname()), other) not in found, "it has not been accepted here"
        assert (other, "{}:{}".format(*server.getsockname())) in found
        dial._limit(client, 8e6)
        rate = client.getsockopt(socket.SOL_SOCKET, dial.SO_MAX_PACING_RATE, 8)
        assert struct.unpack("=Q", rate)[0] == 1_000_000
    for end in ends:
        end.close()
