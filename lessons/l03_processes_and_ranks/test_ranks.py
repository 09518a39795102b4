"""Processes and ranks, on 3 ranks: what notebook 03 says of each way to start and to meet is a fact here."""

import subprocess

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from course.rendezvous import free_port
from lessons.l03_processes_and_ranks import check, ranks_meet, show
from tests import runner

SCRIPT = "lessons/l03_processes_and_ranks/ranks_meet.py"


def meeting_place():
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def pairs(links, kind):
    return {frozenset((link["client"], link["server"])) for link in links if link["kind"] == kind}


def every_pair(count):
    return {frozenset((f"rank {a}", f"rank {b}")) for a in range(count) for b in range(a)}


# ------------------------------------------------------------------------------------------------ who is who


def test_torchrun_fills_a_node_before_the_next_also_when_they_are_unequal(tmp_path):
    together = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint=localhost:{free_port()}"]
    nodes = [subprocess.Popen(runner.command(count, *together, SCRIPT, "--out", tmp_path),
                              cwd=runner.ROOT, env=runner.environment()) for count in (2, 3)]
    assert [node.wait(runner.LIMIT) for node in nodes] == [0, 0]
    ranks = ranks_meet.read(tmp_path)
    assert [rank["rank"] for rank in ranks] == list(range(5)) and {rank["world_size"] for rank in ranks} == {5}
    assert [rank["group_rank"] for rank in ranks] in ([0, 0, 1, 1, 1], [0, 0, 0, 1, 1])
    assert [rank["local_rank"] for rank in ranks] in ([0, 1, 0, 1, 2], [0, 1, 2, 0, 1])
    assert len({rank["pid"] for rank in ranks}) == 5
    assert all(rank["variables"]["GROUP_WORLD_SIZE"] == "2" for rank in ranks)


def test_with_torchrun_each_process_knows_its_place_and_torchrun_listens(tmp_path):
    command = runner.command(2, SCRIPT, "--meet", "env://", "--out", tmp_path)
    subprocess.run(command, cwd=runner.ROOT, env=runner.environment(), timeout=runner.LIMIT, check=True)
    ranks = ranks_meet.read(tmp_path)
    places = [{name: rank[name] for name in ("rank", "local_rank", "group_rank")} for rank in ranks]
    assert places == check.placements(1, 2)
    assert [rank["variables"]["LOCAL_RANK"] for rank in ranks] == ["0", "1"]
    names, links = ranks_meet.meetings(tmp_path)["env://"]
    to_store = [link for link in links if link["kind"] == "store"]
    assert set(names) == {"rank 0", "rank 1", "torchrun"} == {link["client"] for link in to_store}
    assert {link["server"] for link in to_store} == {ranks_meet.listener(links)} == {"torchrun"}
    assert pairs(links, "gloo") >= every_pair(2)  # torchrun has a connection of its own, to itself


# ------------------------------------------------------------------------------------------------ who listens


def test_by_hand_rank_0_listens_and_for_a_file_nobody(tmp_path):
    count = 3
    urls = ["env://", f"tcp://127.0.0.1:{free_port()}", f"file://{tmp_path}/meeting"]
    place = meeting_place()
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


# ------------------------------------------------------------------------------------------------ bounds and bad input


def test_a_rank_that_never_comes_ends_the_wait_and_leaves_no_file_of_an_earlier_run(tmp_path):
    for rank in range(2):
        done = runner.run(0, "--out", tmp_path, script=SCRIPT, RANK=str(rank), WORLD_SIZE="2")
        assert done.returncode == 0, done.stderr
    assert len(ranks_meet.read(tmp_path)) == 2
    done = runner.run(0, "--meet", "env://", "--timeout", 1, "--out", tmp_path, script=SCRIPT, RANK="0",
                      WORLD_SIZE="2", **meeting_place())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("trainer.files.Refused: rank 0 of 2 waited for the others, 1.0 s")
    with pytest.raises(FileNotFoundError):
        ranks_meet.read(tmp_path)


@pytest.mark.parametrize(("env", "options", "message"), [
    ({}, [], "RANK is not set: start with torchrun"),
    ({"RANK": "one", "WORLD_SIZE": "2"}, [], "not usable"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--meet", "http://x"], "each begins with env://"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--out", "/dev/null"], "--out"),
])
def test_bad_input_is_one_line(env, options, message):
    done = runner.run(0, *options, script=SCRIPT, **env)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and message in done.stderr


# ------------------------------------------------------------------------------------------------ pictures


def test_ranks_map_draws_every_process_in_its_place():
    places = [(0, 0), (1, 0), (1, 1)]  # group rank, local rank
    ax = show.ranks_map(pd.DataFrame(places, columns=["group_rank", "local_rank"]).assign(rank=range(3)))
    texts = {text.get_text(): text.get_position() for text in ax.texts if text.get_text().startswith("rank ")}
    assert {name: (round(y), x) for name, (x, y) in texts.items()} == {
        f"rank {rank}": place for rank, place in enumerate(places)}
    plt.close(ax.figure)


def test_links_maps_draw_every_link_and_fill_who_listens():
    by_torchrun = [{"client": "rank 0", "server": "torchrun", "kind": "store"},
                   {"client": "torchrun", "server": "torchrun", "kind": "store"},
                   {"client": "rank 1", "server": "rank 0", "kind": "gloo"}]
    in_a_file = [{"client": f"rank {rank}", "server": ranks_meet.FILE, "kind": "store"} for rank in (0, 1)]
    axes = show.links_maps({"torchrun": (["rank 0", "rank 1", "torchrun"], by_torchrun),
                            "file": (["rank 0", "rank 1", ranks_meet.FILE], in_a_file)})
    for ax, links, filled in zip(axes, (by_torchrun, in_a_file), (["torchrun"], []), strict=True):
        assert sum(text.get_text() == "" for text in ax.texts) == len(links)  # an arrow is an annotation without text
        assert [text.get_text() for text in ax.texts if text.get_color() == "white"] == filled
    plt.close(axes[0].figure)
