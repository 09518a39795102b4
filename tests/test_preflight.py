"""The preflight: what it names, and that it accuses nobody of a sound job."""

import json
import os
import subprocess
import sys

import pytest

from course.hosts import Cluster
from doctor import preflight
from tests import runner


def judged(folder, ranks, *dial, **env):
    """(exit status, its troubles as (name, who))"""
    out, begin = folder / "found.json", ["course.dial", *dial, "-m"] if dial else []
    done = runner.run(ranks, *begin, "doctor", "--preflight", "--json", out, script="-m", **env)
    return done.returncode, [(each["name"], each["who"]) for each in json.loads(out.read_text())["troubles"]]


def test_another_version_on_one_rank_is_named_and_else_nothing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('RANK') == '1':\n    import torch\n    torch.__version__ = '2.13.0'\n")
    status, found = judged(tmp_path, 3, PYTHONPATH=f"{tmp_path}:{runner.ROOT}")
    assert status == 1 and [(name, who.partition(" on")[0]) for name, who in found] == [("versions", "rank 1")]


@pytest.mark.weekly
@pytest.mark.parametrize(("slow", "name", "who"), [("2:20mbit", "slow_links", "rank 2"),
                                                   ("0-1:20mbit", "slow_connection", "rank 0 and rank 1")])
def test_slow_connections_are_named(tmp_path, slow, name, who):
    status, found = judged(tmp_path, 3, "--rate", "200mbit", "--slow", slow)
    assert status == 1 and [(each, of.partition(" on")[0]) for each, of in found] == [(name, who)]


@pytest.mark.weekly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ten_runs_of_a_sound_job_accuse_nobody(ranks, tmp_path):
    assert [judged(tmp_path, ranks) for _ in range(10)] == [(0, [])] * 10


@pytest.mark.weekly
def test_a_rank_that_another_program_slows_is_named_and_so_is_the_program(tmp_path):
    """Rank 1 shares its core with three programs that do nothing but take time. On a machine whose cores have more of
    their own to do, rank 0 would be slow, too."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nos.sched_setaffinity(0, {{{cores}[int(os.environ.get('RANK', 0))]}})\n")
    busy = [subprocess.Popen([sys.executable, "-S", "-c", f"import os; os.sched_setaffinity(0, {{{cores[1]}}})\n"
                              "while True: pass"]) for _ in range(3)]
    try:
        status, _ = judged(tmp_path, 2, PYTHONPATH=f"{tmp_path}:{runner.ROOT}")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    found = json.loads((tmp_path / "found.json").read_text())["troubles"]  # its connections may be slow for that, too
    seen = {each["who"].partition(" on")[0]: each["seen"] for each in found if each["name"] == "slow_rank"}
    assert status == 1 and [*seen] == ["rank 1"], found
    assert any(f"(process {process.pid})" in seen["rank 1"] for process in busy), found


@pytest.mark.weekly
@pytest.mark.skipif(Cluster.available(rate="1gbit") is not None, reason="no hosts can be made here")
@pytest.mark.parametrize(("nodes", "shaped", "found"), [
    (2, "tc qdisc add dev eth0 root tbf rate 100mbit burst 72kb latency 1s", [("slow_connection", "node1 to node0")]),
    (3, "tc qdisc add dev eth0 root tbf rate 100mbit burst 72kb latency 1s", [("slow_host", "node1")]),
    (2, "true", [])])
def test_of_two_or_three_hosts_the_one_that_sends_slowly_is_named(nodes, shaped, found, tmp_path):
    env = runner.environment(PYTHONPATH=str(runner.ROOT), OMP_NUM_THREADS="1")
    with Cluster(nodes) as hosts:
        hosts.start(1, shaped.split()).wait(20)
        running = [hosts.start(node, [
            "torchrun", f"--nnodes={nodes}", f"--nproc_per_node={2 if nodes == 2 else 1}", "--rdzv-backend=c10d",
            "--rdzv-id=check", "--rdzv-endpoint=node0:29401", "-m", "doctor", "--preflight", "--json",
            tmp_path / "found.json"], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for node in range(nodes)]
        printed = [each.communicate(timeout=runner.LIMIT)[0] for each in running]
    assert [(each["name"], each["who"]) for each in json.loads((tmp_path / "found.json").read_text())["troubles"]
            ] == found, printed
    assert [each.returncode for each in running] == nodes * [int(bool(found))]


@pytest.mark.weekly
@pytest.mark.parametrize("hanging", [0, 1])
def test_a_call_that_never_returns_ends_with_the_table_of_what_was_measured(hanging, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(f"""
import os, time
if "RANK" in os.environ:
    import torch.distributed as dist
    from doctor import preflight
    def hang(*_):
        while True:
            try:
                time.sleep(1)
            except Exception:  # as a call in C: it hears no signal
                pass
    preflight.LIMIT, preflight.GRACE = 12, 6
    if os.environ["RANK"] == "{hanging}":
        dist.send = hang
""")
    done = runner.run(3, "doctor", "--preflight", "--json", tmp_path / "found.json", script="-m",
                      PYTHONPATH=f"{tmp_path}:{runner.ROOT}")
    known = json.loads((tmp_path / "found.json").read_text())
    assert done.returncode == 1 and {each["name"] for each in known["troubles"]} == {"failed"}
    assert any("all-reduce over all: " in line for line in known["table"]), known
    assert any(f"rank {hanging} was ended after 12 s, at: pairs" in each["seen"] for each in known["troubles"]), known


def test_threads_are_held_against_the_cores_that_the_ranks_of_a_host_have_together():
    def facts(threads, cores):
        return {"host": "a", "same": {"threads": threads}, "cores": cores, "shm": None}

    bound = [facts(2, [0, 1]), facts(2, [2, 3])]  # each rank to cores of its own
    assert list(preflight.troubles({"facts": bound})) == []
    shared = [facts(2, [0, 1]), facts(2, [0, 1])]
    assert [(name, seen) for name, _, seen in preflight.troubles({"facts": shared})] == [
        ("threads", "its 2 ranks start 4 threads on 2 cores.")]


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
def test_each_pair_of_ranks_meets_once(size):
    rounds = list(preflight.schedule(size))
    pairs = [tuple(sorted(pair)) for each in rounds for pair in each.items() if pair[0] < pair[1]]
    assert len(pairs) == len(set(pairs)) == size * (size - 1) // 2
