"""Processes and ranks: what notebook 03 says of each way to start and to meet is a fact here."""

import subprocess

import pytest

from course.rendezvous import free_port
from lessons.l03_processes_and_ranks import check, ranks_meet
from tests import runner

SCRIPT = "lessons/l03_processes_and_ranks/ranks_meet.py"


def meeting_place():
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def pairs(links, kind):
    return {frozenset((link["client"], link["server"])) for link in links if link["kind"] == kind}


def every_pair(count):
    return {frozenset((f"rank {a}", f"rank {b}")) for a in range(count) for b in range(a)}


def test_torchrun_fills_a_node_before_the_next_also_when_they_are_unequal(tmp_path):
    together = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint=localhost:{free_port()}"]
    nodes = [subprocess.Popen(runner.command(count, *together, SCRIPT, "--out", tmp_path), cwd=runner.ROOT,
                              env=runner.environment()) for count in (2, 3)]
    assert [node.wait(runner.LIMIT) for node in nodes] == [0, 0]
    ranks = ranks_meet.read(tmp_path)
    assert [rank["rank"] for rank in ranks] == list(range(5)) and {rank["world_size"] for rank in ranks} == {5}
    assert [rank["group_rank"] for rank in ranks] in ([0, 0, 1, 1, 1], [0, 0, 0, 1, 1])
    assert [rank["local_rank"] for rank in ranks] in ([0, 1, 0, 1, 2], [0, 1, 2, 0, 1])
    assert len({rank["pid"] for rank in ranks}) == 5
    assert all(rank["variables"]["GROUP_WORLD_SIZE"] == "2" for rank in ranks)


def test_with_torchrun_each_process_knows_its_place_and_torchrun_listens(tmp_path):
    subprocess.run(runner.command(2, SCRIPT, "--meet", "env://", "--out", tmp_path), cwd=runner.ROOT,
                   env=runner.environment(), timeout=runner.LIMIT, check=True)
    ranks = ranks_meet.read(tmp_path)
    places = [{name: rank[name] for name in ("rank", "local_rank", "group_rank")} for rank in ranks]
    assert places == check.placements(1, 2)
    assert [rank["variables"]["LOCAL_RANK"] for rank in ranks] == ["0", "1"]
    names, links = ranks_meet.meetings(tmp_path)["env://"]
    to_store = [link for link in links if link["kind"] == "store"]
    assert set(names) == {"rank 0", "rank 1", "torchrun"} == {link["client"] for link in to_store}
    assert {link["server"] for link in to_store} == {ranks_meet.listener(links)} == {"torchrun"}
    assert pairs(links, "gloo") >= every_pair(2)  # torchrun has a connection of its own, to itself


def test_by_hand_rank_0_listens_and_for_a_file_nobody(tmp_path):
    count, place = 3, meeting_place()
    urls = ["env://", f"tcp://127.0.0.1:{free_port()}", f"file://{tmp_path}/meeting"]
    done = runner.together([{"RANK": str(rank), "WORLD_SIZE": str(count), **place} for rank in range(count)],
                           "--meet", *urls, "--out", tmp_path / "ranks", script=SCRIPT)
    assert [rank.returncode for rank in done] == [0] * count
    meetings, ranks = ranks_meet.meetings(tmp_path / "ranks"), [f"rank {rank}" for rank in range(count)]
    for url, server, listener in zip(urls, ("rank 0", "rank 0", "the file"), ("rank 0", "rank 0", "nobody"),
                                     strict=True):
        names, links = meetings[url]
        assert names == ranks + [server] * (listener == "nobody") and ranks_meet.listener(links) == listener
        assert {link["server"] for link in links if link["kind"] == "store"} == {server}
        assert {link["client"] for link in links if link["kind"] == "store"} == set(ranks)
        assert pairs(links, "gloo") == every_pair(count)


def test_a_rank_that_never_comes_ends_the_wait_and_leaves_no_file_of_an_earlier_run(tmp_path):
    for rank in range(2):  # without --meet a rank waits for no other, and needs no torch
        assert runner.run(0, "--out", tmp_path, script=SCRIPT, RANK=str(rank), WORLD_SIZE="2").returncode == 0
    assert len(ranks_meet.read(tmp_path)) == 2
    done = runner.run(0, "--meet", "env://", "--timeout", 1, "--out", tmp_path, script=SCRIPT, RANK="0",
                      WORLD_SIZE="2", **meeting_place())
    assert done.returncode == 1 and "rank 0 of 2 waited for the others" in done.stderr.splitlines()[-1]
    with pytest.raises(FileNotFoundError):
        ranks_meet.read(tmp_path)


@pytest.mark.parametrize(("ranks", "options", "message"), [
    (None, [], "RANK is not set"), (1, ["--meet", "http://x"], "--meet"), (1, ["--out", "/dev/null"], "--out")])
def test_bad_input(ranks, options, message, refused):
    assert message in refused(ranks_meet, *options, ranks=ranks)
