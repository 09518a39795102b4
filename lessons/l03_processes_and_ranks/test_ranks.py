"""Processes and ranks, on 3 ranks: what notebook 03 says of each way to start and to meet is a fact here."""

import json
import subprocess
import sys

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from course import rendezvous
from lessons.l03_processes_and_ranks import pictures, ranks_meet
from tests import runner

SCRIPT = "lessons/l03_processes_and_ranks/ranks_meet.py"


def run(count, *arguments, **env):
    return (runner.torchrun if count else runner.run)(count, *arguments, script=SCRIPT, **env)


def by_hand(count, *arguments):
    """What `count` processes return that nobody but this test launches."""
    for_all = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rendezvous.free_port())}
    processes = [subprocess.Popen(runner.command(0, SCRIPT, *arguments), cwd=runner.ROOT,
                                  env=runner.environment(RANK=str(rank), **for_all)) for rank in range(count)]
    return [process.wait(runner.LIMIT) for process in processes]


def pairs(links, kind):
    return {frozenset((link["client"], link["server"])) for link in links if link["kind"] == kind}


def every_pair(count):
    return {frozenset((f"rank {a}", f"rank {b}")) for a in range(count) for b in range(a)}


# ------------------------------------------------------------------------------------------------ who is who


def test_torchrun_fills_a_node_before_the_next_also_when_they_are_unequal(tmp_path):
    endpoint = f"localhost:{rendezvous.free_port()}"
    together = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint={endpoint}"]
    nodes = [subprocess.Popen([*runner.command(count, *together, SCRIPT), "--step", "hello", "--out", str(tmp_path)],
                              cwd=runner.ROOT, env=runner.environment()) for count in (2, 3)]
    assert [node.wait(runner.LIMIT) for node in nodes] == [0, 0]
    found = rendezvous.read(tmp_path)
    assert [one["rank"] for one in found] == list(range(5)) and {one["world_size"] for one in found} == {5}
    assert [one["group_rank"] for one in found] in ([0, 0, 1, 1, 1], [0, 0, 0, 1, 1])
    assert [one["local_rank"] for one in found] in ([0, 1, 0, 1, 2], [0, 1, 2, 0, 1])
    assert len({one["pid"] for one in found}) == 5
    assert all(one["hello"]["GROUP_WORLD_SIZE"] == "2" for one in found)


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """What each of three ranks of torchrun found, in one start."""
    folder = tmp_path_factory.mktemp("ranks")
    done = run(3, "--step", "hello", "meet", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == [f"rank-{rank}.json" for rank in range(3)]
    return rendezvous.read(folder), rendezvous.meetings(folder)


def test_torchrun_tells_each_process_its_place(torchrun):
    torchrun, _ = torchrun
    places = [{name: one[name] for name in ("rank", "local_rank", "group_rank")} for one in torchrun]
    assert places == rendezvous.placements(1, len(torchrun))
    for place, one in zip(places, torchrun, strict=True):
        told = {"RANK": place["rank"], "LOCAL_RANK": place["local_rank"], "GROUP_RANK": 0, "WORLD_SIZE": len(torchrun),
                "LOCAL_WORLD_SIZE": len(torchrun), "GROUP_WORLD_SIZE": 1}
        assert one["hello"].items() >= {name: str(number) for name, number in told.items()}.items()


# ------------------------------------------------------------------------------------------------ who listens


def test_torchrun_listens_and_all_ranks_connect(torchrun):
    found, meetings = torchrun
    names, links = meetings["env://"]
    assert set(names) == {f"rank {one['rank']}" for one in found} | {"torchrun"}
    assert {link["server"] for link in links if link["kind"] == "store"} == {rendezvous.listener(links)} == {"torchrun"}
    assert {link["client"] for link in links if link["kind"] == "store"} == set(names)
    assert pairs(links, "gloo") >= every_pair(len(found))  # torchrun has a connection of its own, to itself


def test_by_hand_rank_0_listens_and_for_a_file_nobody(tmp_path):
    count = 3
    urls = ["env://", f"tcp://127.0.0.1:{rendezvous.free_port()}", f"file://{tmp_path}/meeting"]
    assert by_hand(count, "--step", "meet", "--url", *urls, "--out", tmp_path / "found") == [0] * count
    found, names = rendezvous.meetings(tmp_path / "found"), [f"rank {rank}" for rank in range(count)]
    for url, server, listener in zip(urls, ("rank 0", "rank 0", "the file"), ("rank 0", "rank 0", "nobody"),
                                     strict=True):
        those, links = found[url]
        assert those == names + [server] * (listener == "nobody") and rendezvous.listener(links) == listener
        assert {link["server"] for link in links if link["kind"] == "store"} == {server}
        assert {link["client"] for link in links if link["kind"] == "store"} == set(names)
        assert pairs(links, "gloo") == every_pair(count)


def test_links_are_told_apart_by_the_port():
    seen = {"rank 0": {"listens": [10, 20], "connections": [(20, 31), (10, 32), (33, 20)]},
            "rank 1": {"listens": [], "connections": [(31, 20), (32, 10), (34, 99)]}}
    assert rendezvous.links(seen, 20) == [
        {"client": "rank 0", "server": "rank 0", "kind": "store"},
        {"client": "rank 1", "server": "rank 0", "kind": "store"},
        {"client": "rank 1", "server": "rank 0", "kind": "gloo"}]


def test_hello_and_chatter_do_not_import_torch():
    code = ("import sys; sys.argv = ['ranks_meet.py', '--step', 'hello', 'chatter', '--lines', '2']\n"
            "from lessons.l03_processes_and_ranks import ranks_meet; ranks_meet.main()\n"
            "assert 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], cwd=runner.ROOT, capture_output=True, text=True, timeout=60,
                          env=runner.environment(RANK="1", WORLD_SIZE="2"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [f"{how}: rank 1, step {n}" for how in ("print", "write") for n in (0, 1)]


# ------------------------------------------------------------------------------------------------ no wait without end


def test_a_rank_that_never_comes_ends_the_wait(tmp_path):
    done = run(0, "--step", "meet", "--timeout", 2, "--out", tmp_path, RANK="0", WORLD_SIZE="2",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rendezvous.free_port()))
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    assert done.stderr.splitlines()[-1].startswith("ConnectionError: rank 0 of 2 waited for the others, 2.0 s")


def test_the_limit_ends_a_rank_and_says_where_it_was():
    done = run(0, "--step", "meet", "--timeout", 100, "--limit", 5, RANK="0", WORLD_SIZE="2",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rendezvous.free_port()))
    assert done.returncode == 1 and done.stderr.startswith("Timeout (0:00:05)!") and "in main" in done.stderr


@pytest.mark.parametrize(("env", "options", "said"), [
    ({}, ["--step", "hello"], "RANK is not set: start with torchrun"),
    ({"RANK": "0"}, ["--step", "hello"], "WORLD_SIZE is not set"),
    ({"RANK": "one", "WORLD_SIZE": "2"}, ["--step", "hello"], "not usable"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--step", "helo"], "invalid choice: 'helo'"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--step", "meet", "--url", "http://x"], "each begins with env://"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--step", "meet", "--timeout", "0"], "0 is not a positive number"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--step", "meet", "--timeout", "soon"], "invalid number value: 'soon'"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, ["--step", "hello", "--lines", "-1"], "-1 is not a positive number"),
])
def test_bad_input_is_one_line(env, options, said, monkeypatch, capfd):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", [SCRIPT, *options])
    with pytest.raises(SystemExit, match="2"):
        ranks_meet.main()
    stderr = capfd.readouterr().err
    assert said in stderr and len(stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(0, "--step", "hello", "--out", tmp_path / "file", RANK="0", WORLD_SIZE="1")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "--out" in done.stderr


def test_what_an_earlier_run_wrote_is_not_taken_for_this_one(tmp_path):
    for rank in range(3):
        assert run(0, "--step", "hello", "--out", tmp_path, RANK=str(rank), WORLD_SIZE="3").returncode == 0
    assert len(rendezvous.read(tmp_path)) == 3
    assert run(0, "--step", "hello", "--out", tmp_path, RANK="0", WORLD_SIZE="2").returncode == 0
    assert run(0, "--step", "meet", "--timeout", 1, "--out", tmp_path, RANK="1", WORLD_SIZE="2",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rendezvous.free_port())).returncode == 1
    with pytest.raises(FileNotFoundError):
        rendezvous.read(tmp_path)


# ------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (2, 4), (3, 1), (8, 8)])
def test_ranks_map_draws_every_process_in_its_place(nodes, per_node):
    processes = pd.DataFrame(rendezvous.placements(nodes, per_node))
    ax = pictures.ranks_map(processes, plt.subplots(figsize=(14, 6))[1])
    texts = {text.get_text(): text.get_position() for text in ax.texts if text.get_text().startswith("rank ")}
    assert {name: (x, round(y)) for name, (x, y) in texts.items()} == {
        f"rank {node * per_node + local}": (local, node) for node in range(nodes) for local in range(per_node)}
    assert ax.get_title(loc="left") == f"{nodes} node{'s' * (nodes > 1)}, world size {nodes * per_node}"
    plt.close(ax.figure)


def test_ranks_map_draws_unequal_nodes():
    places = [(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 2, 1)]
    processes = pd.DataFrame(places, columns=["rank", "local_rank", "group_rank"])
    ax = pictures.ranks_map(processes, plt.subplots()[1])
    assert sum(text.get_text().startswith("rank ") for text in ax.texts) == 4
    plt.close(ax.figure)


def test_links_map_draws_every_link_and_marks_who_listens():
    links = [{"client": "rank 0", "server": "torchrun", "kind": "store"}, {"client": "torchrun", "server": "torchrun",
             "kind": "store"}, {"client": "rank 1", "server": "rank 0", "kind": "gloo"}]
    ax = pictures.links_map(["rank 0", "rank 1", "torchrun"], links, plt.subplots()[1])
    assert sum(text.get_text() == "" for text in ax.texts) == len(links)  # an arrow is an annotation without text
    inks = {text.get_text(): text.get_color() for text in ax.texts}
    assert (inks["torchrun"], inks["rank 0"], inks["rank 1"]) == ("white", "black", "black")
    plt.close(ax.figure)


def test_a_file_is_drawn_and_does_not_listen():
    links = [{"client": f"rank {rank}", "server": rendezvous.FILE, "kind": "store"} for rank in (0, 1)]
    axes = pictures.links_maps({"a": (["rank 0", "rank 1", rendezvous.FILE], links), "b": (["rank 0"], [])})
    assert [ax.get_title(loc="left") for ax in axes] == ["a", "b"]
    assert rendezvous.FILE in [text.get_text() for text in axes[0].texts]
    assert plt.matplotlib.colors.to_hex(axes[0].patches[2].get_facecolor()) == "#ffffff"
    plt.close(axes[0].figure)


def test_the_placements_are_those_of_the_formula():
    assert json.loads(json.dumps(rendezvous.placements(2, 2))) == [
        {"rank": 0, "local_rank": 0, "group_rank": 0}, {"rank": 1, "local_rank": 1, "group_rank": 0},
        {"rank": 2, "local_rank": 0, "group_rank": 1}, {"rank": 3, "local_rank": 1, "group_rank": 1}]
