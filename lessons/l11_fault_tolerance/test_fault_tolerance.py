"""Lesson 11: killed ranks, lost nodes, groups under torchft, checkpoints that other numbers of ranks read, figures."""

import json
import math
import re
import shutil
import subprocess
import sys
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from course import processes, rendezvous, runs
from course.hosts import Cluster
from course.predict import checkpoints
from lessons.l11_fault_tolerance import check, kill_rank, restart_nothing, sharded_checkpoint, show
from tests import runner

JOB = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 101, "--global-batch-size", 96, "--device", "cpu"]
KILL, LOSE = "lessons/l11_fault_tolerance/kill_rank.py", "lessons/l11_fault_tolerance/lose_node.py"
SHARDED = "lessons/l11_fault_tolerance/sharded_checkpoint.py"
GROUP, DRIVER = "lessons/l11_fault_tolerance/torchft_loop.py", "lessons/l11_fault_tolerance/restart_nothing.py"
# 601 images: they do not divide by 2, and the last batch is smaller
SMALL = ["--device", "cpu", "--dataset", "synthetic", "--samples", 601, "--test-samples", 101, "--batch-size", 32]
STEPS = 13  # an epoch: 1206 images, 96 a step
WHY_NOT = Cluster.available()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")


def needs_torchft(test):
    """Marks a test that needs torchft, which only the weekly run installs."""
    return pytest.mark.weekly(pytest.mark.skipif(not find_spec("torchft"), reason="torchft is not installed")(test))


def script(file, *arguments, seconds=runner.LIMIT, **env):
    return subprocess.run([sys.executable, file, *map(str, arguments)], cwd=runner.ROOT, text=True,
                          env=runner.environment(OMP_NUM_THREADS="1", **env), capture_output=True, timeout=seconds)


def torchrun(ranks, *arguments, restarts=0, python=sys.executable):
    return runner.command(ranks, *arguments, torchrun=[f"--max-restarts={restarts}"], python=python)


def records(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


def processes_of(folder):
    """Those with the folder in their command line: the runs that this test started."""
    mine = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                mine.append(process)
        except psutil.Error:
            continue
    return mine

# --------------------------------------------------------------------------------------------------------- kill_rank.py


def test_killed_ranks_are_started_again_and_the_run_ends(forked_python, tmp_path):
    log, kills = tmp_path / "run.jsonl", [(1, 1.0), (0, 2.3)]
    done = script(KILL, *(f"--kill={rank}@{epoch}" for rank, epoch in kills), "--out", tmp_path / "kills.json",
                  "--", *torchrun(2, "main.py", *JOB, "--epochs", 9, "--checkpoint", tmp_path / "kept",
                                  "--checkpoint-every", 5, "--log-file", log, restarts=len(kills),
                                  python=forked_python),
                  PYTHON_EXEC=forked_python)
    assert done.returncode == 0, done.stdout + done.stderr
    noted, table = json.loads((tmp_path / "kills.json").read_text()), runs.read_run(log)
    assert [(kill["rank"], kill["epoch"]) for kill in noted["kills"]] == kills
    assert list(table["epoch"]) == list(range(9)) and set(table["status"]) == {"completed"}
    assert table["restarts"][0] == len(kills)
    for kill, restart in zip(noted["kills"], [r for r in records(log) if r["kind"] == "restart"], strict=True):
        assert restart["time"] > kill["time"]
        went_on = restart["epoch"] * STEPS + restart["step"]
        assert went_on % 5 == 0 or went_on % STEPS == 0, "main.py writes when the lesson says it does"
    assert noted["said"] == done.stdout.splitlines() and str(runner.ROOT) not in done.stdout
    assert processes_of(tmp_path) == []


def test_a_killed_command_is_started_again_as_a_whole(forked_python, tmp_path):
    log = tmp_path / "run.jsonl"
    done = script(KILL, "--again", "--kill=1@1.5", "--", *torchrun(2, "main.py", *JOB, "--epochs", 9, "--checkpoint",
                  tmp_path / "kept", "--log-file", log, python=forked_python), PYTHON_EXEC=forked_python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["kind"] for record in records(log)].count("restart") == 1
    assert list(runs.read_run(log)["epoch"]) == list(range(9)) and processes_of(tmp_path) == []


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.weekly), 1])
def test_a_rank_dies_on_one_of_two_nodes_and_all_meet_again(victim, forked_python, tmp_path):
    """Each node's torchrun counts its restarts for itself, and not all of them: the ranks name none of it."""
    log, port = tmp_path / "run.jsonl", rendezvous.free_port()
    two = ["--nnodes=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint=127.0.0.1:{port}"]
    job = [*JOB, "--epochs", 9, "--timeout", 100, "--checkpoint", tmp_path / "kept", "--log-file", log]
    nodes = [subprocess.Popen(runner.command(1, "main.py", *job, torchrun=two, python=forked_python), cwd=runner.ROOT,
                              env=runner.environment(OMP_NUM_THREADS="1"), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) for _ in range(2)]
    runner.wait_for(lambda: log.exists() and log.read_text().count('"kind": "epoch"') > 1, "two epochs")
    of_rank = {process.environ().get("RANK"): process for process in processes_of(tmp_path)
               if "torch.distributed.run" not in process.cmdline()}
    killed = time.time()
    of_rank[str(victim)].kill()
    said = [node.communicate(timeout=runner.LIMIT)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    table = runs.read_run(log)
    assert list(table["epoch"]) == list(range(9)) and set(table["status"]) == {"completed"}
    (restart,) = [record for record in records(log) if record["kind"] == "restart"]
    assert restart["time"] - killed < 100, "a rank waited its whole --timeout for one that could not find it"


@pytest.mark.parametrize(("kill", "said"), [("5@1", "there is no rank 5 to kill: the run has 2"),
                                            ("1@9", "the run was over before rank 1 at epoch 9")])
def test_a_kill_that_cannot_be_is_said(kill, said, forked_python, tmp_path):
    epochs = 1000 if kill.startswith("5") else 2
    done = script(KILL, "--kill", kill, "--", *torchrun(2, "main.py", *JOB, "--epochs", epochs, "--log-file",
                                                tmp_path / "run.jsonl", python=forked_python),
                  PYTHON_EXEC=forked_python)
    assert done.returncode not in (0, 2) and done.stderr.splitlines() == [f"kill_rank.py: {said}"]
    assert processes_of(tmp_path) == []


def test_an_earlier_run_in_the_log_is_not_this_one(tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text('{"kind": "run", "world_size": 9}\n{"kind": "epoch", "epoch": 1, "seconds": 1}\n')
    killer = kill_rank.Killer([(0, 2.0)], log, "no run has this mark")
    assert killer.finished(1) is None
    with open(log, "a") as file:
        file.write('{"kind": "run", "world_size": 2}\n{"kind": "epoch", "epoch": 1, "seconds": 5}\n{"kind": "epo')
    assert killer.finished(1)["seconds"] == 5 and killer.world_size() == 2

# --------------------------------------------------------------------------------------------------------- lose_node.py


@needs_hosts
def test_a_node_is_lost_and_comes_back(tmp_path):
    done = script(LOSE, "rejoin", "--out", tmp_path, "--epochs", 1, "--", *JOB, seconds=2 * runner.LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    is_lost_and_rejoined(tmp_path)
    assert processes_of(tmp_path) == []


@pytest.mark.weekly
@needs_hosts
def test_a_cut_link_is_named_by_the_node_that_waits(tmp_path):
    done = script(LOSE, "cut", "--out", tmp_path, "--epochs", 1, "--", *JOB, "--timeout", 5)
    assert done.returncode == 0, done.stdout + done.stderr
    is_cut(tmp_path)
    assert processes_of(tmp_path) == []


def is_lost_and_rejoined(folder):
    """Two nodes, then one, then two; nothing begins again, and the end is resumable."""
    log = records(folder / "run.jsonl")
    sizes = [record["world_size"] for record in log if record["kind"] in ("run", "restart")]
    epochs = [record["epoch"] for record in log if record["kind"] == "epoch"]
    assert sizes[-3:] == [2, 1, 2] and epochs == list(range(len(epochs))) and log[-1]["status"] == "resumable"
    assert list(json.loads((folder / "moments.json").read_text())) == [
        "began", "node1 is killed", "node1 is started again", "both are told to stop (SIGTERM)"]


def is_cut(folder):
    moments = json.loads((folder / "moments.json").read_text())
    assert moments["node0 gives up"] - moments["the link of node1 is cut"] > 4  # --timeout 5, one step's wait earlier
    console = (folder / "node0.out").read_text()
    (line,) = re.findall(r"^rank\(s\) .*", console, re.M)
    assert re.match(r"rank\(s\) 0 waited in epoch \d+, step \d+, .* no word from rank\(s\) 1:", line), line
    assert "Timed out waiting 5000ms" in console
    assert records(folder / "run.jsonl")[-1]["status"] == "failed"


def test_the_recorded_runs_are_what_the_lesson_says():
    recorded = runner.ROOT / "results" / "recorded" / "elastic-two-nodes"
    is_lost_and_rejoined(recorded / "rejoin")
    is_cut(recorded / "cut")
    assert not [file for file in recorded.rglob("kept*")]


@needs_hosts
def test_a_job_that_fails_is_named_in_one_line(tmp_path):
    done = script(LOSE, "cut", "--out", tmp_path, "--", *JOB, "--model", "no-such-model")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "waited for 2 epochs of both nodes, and node0's torchrun ended" in done.stderr and "no-such" in done.stderr


# ------------------------------------------------------------------------------------------------ sharded_checkpoint.py


def test_what_three_ranks_wrote_two_read_and_so_does_a_single_process(tmp_path):
    saved = runner.run(3, "--save", tmp_path, script=SHARDED)
    assert saved.returncode == 0, saved.stderr
    pieces = sharded_checkpoint.contents(tmp_path)
    assert len({piece["file"] for piece in pieces}) == 3
    names = [piece["name"] for piece in pieces]
    assert all(names.count(name) == (3 if name == "table" else 1) for name in sharded_checkpoint.expected())
    for readers in (2, 0):
        read = runner.run(readers, "--load", tmp_path, script=SHARDED)
        assert read.returncode == 0 and "bit for bit" in read.stdout, read.stderr
        rows = [int(rows) for rows in re.findall(r'"rows of the table": (\d+)', read.stdout)]
        assert len(rows) == max(readers, 1) and sum(rows) == sharded_checkpoint.ROWS
    lost = next(tmp_path.glob("__0_*.distcp"))
    shutil.move(lost, tmp_path / "elsewhere")
    assert runner.run(0, "--load", tmp_path, script=SHARDED).returncode != 0, "a part is missing"


def test_no_checkpoint_to_load_and_one_in_the_way_are_one_line_each(tmp_path):
    done = runner.run(0, "--load", tmp_path, script=SHARDED)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "no checkpoint there" in done.stderr
    (tmp_path / ".metadata").write_bytes(b"another's")
    done = runner.run(0, "--save", tmp_path, script=SHARDED)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "holds a checkpoint already" in done.stderr
    assert (tmp_path / ".metadata").read_bytes() == b"another's"


@pytest.mark.parametrize(("script", "arguments", "message"), [
    (KILL, ["--kill", "1", "--", "torchrun", "main.py", "--log-file", "x"], "'1' is not RANK@EPOCH"),
    (KILL, ["--kill", "1@0.5", "--", "torchrun"], "the first epoch that can be hit is 1"),
    (KILL, ["--kill=-1@2", "--", "torchrun"], "ranks count from 0"),
    (KILL, ["--kill", "1@2", "--", "torchrun", "main.py"], "the command has no --log-file"),
    (KILL, ["--kill", "1@2", "--", "no-such-program", "--log-file=x"], "no-such-program: No such file"),
    (LOSE, ["cut"], "--out"),
    (LOSE, ["cut", "--out", "x", "--", "--log-file=y"], "--log-file after --"),
    (DRIVER, ["--kill", "2@3", "--out", "OUT"], "--kill: there is no group 2; there are 2"),
    (DRIVER, ["--kill", "1@0", "--out", "OUT"], "steps from 1"),
    (DRIVER, ["--kill", "1@3", "--out", "OUT", "--", "--save-model=x"], "--save-model after --: this script sets it"),
    (GROUP, ["--strategy", "dp"], "--strategy: torchft decides this; leave it out"),
])
def test_bad_input_is_one_line_and_status_2(script, arguments, message, tmp_path):
    refused_in_one_line(script, arguments, message, tmp_path)


def refused_in_one_line(script, arguments, message, folder):
    done = runner.run(0, *(folder / "out" if word == "OUT" else word for word in arguments), script=script)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert message in done.stderr and not (folder / "out/moments.json").exists()


# ------------------------------------------------------------------------------------------- groups under torchft


@pytest.mark.parametrize(("script", "arguments"), [(DRIVER, ["--kill", "1@3", "--out", "OUT"]), (GROUP, SMALL)])
def test_without_torchft_it_says_what_to_install(script, arguments, tmp_path):
    without = tmp_path / "without.py"
    without.write_text(f"""import importlib.util, runpy, sys
whole = importlib.util.find_spec
importlib.util.find_spec = lambda wanted, *rest: None if wanted == "torchft" else whole(wanted, *rest)
runpy.run_path({script!r}, run_name="__main__")
""")
    refused_in_one_line(without, arguments, "torchft is not installed: pip install -e '.[rivals]'", tmp_path)


@needs_torchft
@pytest.mark.parametrize(("script", "arguments", "message"), [
    (DRIVER, ["--kill", "1@3", "--out", "OUT", "--compare", "README.md"], "--compare README.md: holds no weights"),
    (GROUP, SMALL, "without a torchrun of its own"),
    (GROUP, ["--group", "2"], "--group 2: groups count from 0, and there are 2"),
])
def test_bad_input_with_torchft_is_one_line_and_status_2(script, arguments, message, tmp_path):
    refused_in_one_line(script, arguments, message, tmp_path)


@needs_torchft
def test_two_groups_train_the_model_of_main_py(tmp_path):
    job, mark = [*SMALL, "--epochs", 2], uuid.uuid4().hex
    done = runner.run(2, *job, "--no-channels-last", "--save-model", tmp_path / "main.pt")
    assert done.returncode == 0, done.stderr
    try:
        groups = restart_nothing.Groups(SimpleNamespace(out=tmp_path, within=runner.LIMIT,
                                                        options=list(map(str, job))), mark)
        groups.wait(lambda: all(groups.started[group].poll() == 0 for group in (0, 1)), "the end of both groups")
    finally:
        processes.end(mark)
    expected, *trained = (restart_nothing.weights(tmp_path / f"{name}.pt") for name in ("main", "group0", "group1"))
    assert restart_nothing.difference(*trained) == 0
    assert restart_nothing.difference(trained[0], expected) < 1e-5
    assert all(value.abs().max() > 0 for value in expected.values())
    steps = [record for record in records(tmp_path / "group0.jsonl") if record["kind"] == "step"]
    assert [(record["step"], record["groups"]) for record in steps] == [(step, 2) for step in range(1, 21)]


@needs_torchft
@pytest.mark.timeout(400)
def test_a_group_dies_the_other_goes_on_and_takes_it_back(tmp_path):
    env = runner.environment(PYTHON_EXEC=str(runner.ROOT / "tests/slow_alone.py"))
    done = subprocess.run(runner.command(0, DRIVER, "--kill", "1@30", "--out", tmp_path, "--within", 280, "--", *SMALL,
                                         "--epochs", 60), cwd=runner.ROOT, capture_output=True, text=True, timeout=350,
                          env=processes.environment(str(tmp_path), env))
    assert done.returncode == 0, done.stdout + done.stderr
    noted = json.loads((tmp_path / "moments.json").read_text())
    assert (noted["victim"], noted["apart"], noted["off"], noted["largest"]) == (1, 0, None, None)
    survivor, victim = (records(tmp_path / f"group{group}.jsonl") for group in (0, 1))
    steps = [record for record in survivor if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, 601)), "each step counted once for the survivor"
    assert all(record["groups"] == 2 for record in steps if record["time"] < noted["killed"]), "both began together"
    assert sum(record["kind"] == "attempt" for record in survivor) <= 2, "the step under way, and that of the return"
    assert [record["kind"] for record in survivor].count("run") == 1, "nobody started it again"
    assert [record["kind"] for record in victim].count("run") == 2
    taken_back = next(record for record in victim if record["kind"] == "step" and record["time"] > noted["killed"])
    assert taken_back["step"] > 30, "it goes on where the others are"
    alone = [record["step"] for record in steps if record["groups"] == 1]
    assert alone and alone[0] <= taken_back["step"] and steps[-1]["groups"] == 2, "both end together"
    assert processes.marked(str(tmp_path)) == []


@needs_torchft
def test_a_group_without_a_lighthouse_says_so():
    done = runner.run(1, *SMALL, script=GROUP)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "TORCHFT_LIGHTHOUSE is not set" in done.stderr


@needs_torchft
def test_a_kill_that_comes_too_late_is_said(tmp_path):
    done = runner.torchrun(0, "--kill", "1@1000", "--out", tmp_path, "--", *SMALL, "--epochs", 1, script=DRIVER)
    assert done.returncode == 1 and done.stderr.splitlines() == [
        "restart_nothing.py: waited for step 1000 of group0, and the run was over before"]


@needs_torchft
def test_a_group_that_cannot_train_ends_all_and_is_named(tmp_path):
    done = subprocess.run(runner.command(0, DRIVER, "--kill", "1@3", "--out", tmp_path, "--", *SMALL, "--lr", -1),
                          cwd=runner.ROOT, env=runner.environment(), capture_output=True, text=True,
                          timeout=runner.LIMIT)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "waited for step 3 of group0, and group" in done.stderr and "--lr" in done.stderr
    assert not (tmp_path / "moments.json").exists()


# -------------------------------------------------------------------------------------------------------- the exercises


def test_a_torn_write_in_one_line_is_found():
    def in_one_line(path, data):
        open(path, "wb").write(data)  # noqa: SIM115

    assert check.never_half.verdict(in_one_line)[0] == "wrong"


def test_a_careful_write_by_other_means_is_right():
    def other(path, data):
        part = Path(str(path) + ".new")
        part.write_bytes(data)
        part.rename(path)

    assert check.never_half.verdict(other)[0] == "right"


# ----------------------------------------------------------------------------------------------------- show.py

LOG = [{"kind": "run", "time": 90.0}, {"kind": "epoch", "epoch": 0, "seconds": 10, "checkpoint_seconds": 0.5,
                                       "loss": 2.0},
       {"kind": "end", "time": 100.5, "status": "failed"},
       {"kind": "restart", "time": 107.0, "epoch": 1, "step": 10, "world_size": 1},
       {"kind": "epoch", "epoch": 1, "seconds": 10, "checkpoint_seconds": 9.0, "loss": 1.5},
       {"kind": "end", "time": 120.0, "status": "completed"}]
KILL_NOTE = {"kills": [{"time": 100.0}], "said": ["a line", "rank(s) 0 waited in epoch 1, step 36, at `loss`; no word"]}


def test_the_cost_of_a_kill_is_made_of_what_the_log_notes():
    again, parts = show.kill_cost(LOG, KILL_NOTE, steps=50)
    assert again == 25 and list(parts.values()) == [0.5, 6.5, 25 * 10 / 50]
    log = [record for record in LOG if record.get("status") != "failed"]  # rank 0, which writes the log, was killed
    again, parts = show.kill_cost(log, KILL_NOTE | {"said": []}, steps=50)
    assert again is None and parts == {"noticed, ended, and started again": 7.0}


def test_a_write_is_timed_in_epochs_that_were_begun_once():
    assert show.write_seconds(LOG, steps=50, every=20) == 0.5 / 2
    log = [{"kind": "epoch", "epoch": 0}, {"kind": "epoch", "epoch": 1, "checkpoint_seconds": 0.5}]
    assert show.write_seconds(log, steps=32, every=35) == 0.5, "an epoch shorter than the interval may have no write"


def test_youngs_interval_is_the_best_of_the_sum():
    for write, between in [(2.0, 360_000.0), (0.03, 86_400.0)]:
        best = math.sqrt(2 * write * between)
        costs = [sum(checkpoints.lost(best * factor, write, between, 7).values()) for factor in (1, 0.5, 0.99, 1.01, 2)]
        assert min(costs) == costs[0]
        assert checkpoints.drawn(best, write, between, 7) == pytest.approx(costs[0], rel=0.1)


def test_more_nodes_fail_more_often_and_small_shares_are_not_nought():
    rows = show.by_nodes((1, 2048), 0.02, 6000, 7)
    assert [row["a failure every, h"] for row in rows] == ["6,000.0", "2.9"]
    assert [row["best interval, s"] for row in rows] == ["930", "21"]
    assert [row["restarts, %"] for row in rows] == ["< 0.001", "0.066"]


GROUP_LOG = [{"kind": "step", "step": step, "groups": groups, "time": time} for step, groups, time in (
    (1, 1, 96.0), (2, 2, 97.0), (3, 2, 99.9), (4, 1, 101.5), (5, 1, 102.0), (6, 2, 103.0))]
GROUP_LOG.insert(0, {"kind": "run", "time": 95.0})
GROUP_LOG.insert(4, {"kind": "attempt", "step": 4, "groups": 2, "time": 100.2})


def test_how_all_were_started_again():
    log = [LOG[0], LOG[1] | {"time": 98.0}, LOG[3], LOG[4] | {"time": 112.0}]
    way = show.started_again(log, KILL_NOTE, steps=50)
    assert (way["gap"], way["again"], way["unseen"], way["done"], way["speed"]) == (7.0, 25, 0, 85, 8.5)
    assert way["pieces"] == [[(-10.0, 0), (-2.0, 50), (0, 85)], [(7.0, 60), (12.0, 100)]]


def test_how_one_went_on_and_the_other_came_back():
    way = show.went_on(GROUP_LOG, killed=100.0, batch=32)
    assert way["gap"] == pytest.approx(1.6) and way["speed"] == pytest.approx(3 / 4.9)
    assert (way["alone"], way["back"], way["done"]) == (2, 3.0, 3)
    assert way["again"] == 1, "an attempt that did not count was made again"
    assert way["unseen"] == 3 * 32, "the step that was made alone before the kill, too"
    assert way["images"] == [(1, 32), (2, 64), (3, 64), (4, 32), (5, 32), (6, 64)]


def test_the_recorded_recoveries_are_those_of_the_lesson():
    ways, noted = show.ways("results/recorded/restart-nothing", 32)
    assert ways[show.RESTART]["loss"] == ways[show.QUEUE]["loss"] == noted["loss"] != ways[show.ALONE]["loss"]
    alone = ways[show.ALONE]
    assert alone["unseen"] == 32 * alone["alone"] > 0 == noted["apart"], "no step was made alone before the kill"
    assert alone["again"] <= 1 and noted["off"] > 0 and alone["back"] is not None


@pytest.mark.parametrize("log", ["11_whole", "11_killed", "11_again", "11_groups/group0"])
def test_a_recovery_whose_log_is_cut_short_is_not_told(log, tmp_path):
    shutil.copytree("results/recorded/restart-nothing", tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"{log}.jsonl"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ValueError, match=f"{log}.jsonl is cut short"):
        show.ways(tmp_path, 32)


def test_one_of_many_groups_loses_less_than_all():
    (row,) = show.both_ways([10], write=8, restart=360, node_hours=10, gap=3.6)
    # M = 3600 s: Young's interval 240 s loses 8/240 + 240/7200, the restart 360/3600; a gap 3.6/3600, and 36/3600
    assert (row["all start again: lost, %"], row["one group does: lost, %"]) == ("17", "1.1")
    assert row["a failure every, h"] == "1.0"
