"""Lesson 11: killed and stopped ranks, lost nodes, how often to save, what a kill cost."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from course import interrupted, rendezvous, runs
from course.hosts import Cluster
from lessons.l11_fault_tolerance import check, kill_rank, lose_node, show, stop_together
from tests import runner

JOB = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 101, "--global-batch-size", 96, "--device", "cpu"]
KILL, LOSE = "lessons/l11_fault_tolerance/kill_rank.py", "lessons/l11_fault_tolerance/lose_node.py"
STOP = "lessons/l11_fault_tolerance/stop_together.py"
STEPS = 13  # an epoch: 1206 images, 96 a step
WHY_NOT = Cluster.available()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")


def script(file, *arguments, seconds=runner.LIMIT, **env):
    return subprocess.run([sys.executable, file, *map(str, arguments)], cwd=runner.ROOT, text=True,
                          env=runner.environment(OMP_NUM_THREADS="1", **env), capture_output=True, timeout=seconds)


def torchrun(ranks, *arguments, restarts=0):
    return runner.command(ranks, *arguments, torchrun=[f"--max-restarts={restarts}"])


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


@pytest.mark.weekly
def test_killed_ranks_are_started_again_and_a_kill_that_comes_too_late_is_said(tmp_path):
    log, kills = tmp_path / "run.jsonl", [(1, 1.0), (0, 2.3)]
    done = script(KILL, *(f"--kill={rank}@{epoch}" for rank, epoch in [*kills, (1, 20)]),
                  "--out", tmp_path / "kills.json", "--",
                  *torchrun(2, "main.py", *JOB, "--epochs", 9, "--checkpoint", tmp_path / "kept",
                            "--checkpoint-every", 5, "--log-file", log, restarts=len(kills)))
    assert done.returncode == 1 and "rank 1 at epoch 20" in done.stderr, done.stdout + done.stderr
    noted, table = json.loads((tmp_path / "kills.json").read_text()), runs.read_run(log)
    assert [(kill["rank"], kill["epoch"]) for kill in noted["kills"]] == kills
    assert list(table["epoch"]) == list(range(9)) and set(table["status"]) == {"completed"}
    assert table["restarts"][0] == len(kills)
    for kill, restart in zip(noted["kills"], [r for r in records(log) if r["kind"] == "restart"], strict=True):
        assert restart["time"] > kill["time"]
        went_on = restart["epoch"] * STEPS + restart["step"]
        assert went_on % 5 == 0 or went_on % STEPS == 0, "main.py writes when the lesson says it does"
    assert processes_of(tmp_path) == []


def test_a_rank_dies_on_one_of_two_nodes_and_all_meet_again(tmp_path):
    """Each node's torchrun counts its restarts for itself, and not all of them: the ranks name none of it."""
    log, port = tmp_path / "run.jsonl", rendezvous.free_port()
    two = ["--nnodes=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint=127.0.0.1:{port}"]
    job = [*JOB, "--epochs", 9, "--timeout", 100, "--checkpoint", tmp_path / "kept", "--log-file", log]
    nodes = [subprocess.Popen(runner.command(1, "main.py", *job, torchrun=two), cwd=runner.ROOT,
                              env=runner.environment(OMP_NUM_THREADS="1"), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) for _ in range(2)]
    runner.wait_for(lambda: log.exists() and log.read_text().count('"kind": "epoch"') > 1, "two epochs")
    of_rank = {process.environ().get("RANK"): process for process in processes_of(tmp_path)
               if "torch.distributed.run" not in process.cmdline()}
    killed = time.time()
    of_rank["1"].kill()
    said = [node.communicate(timeout=runner.LIMIT)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    table = runs.read_run(log)
    assert list(table["epoch"]) == list(range(9)) and set(table["status"]) == {"completed"}
    (restart,) = [record for record in records(log) if record["kind"] == "restart"]
    assert restart["time"] - killed < 100, "a rank waited its whole --timeout for one that could not find it"


def test_an_earlier_run_in_the_log_is_not_this_one(tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text('{"kind": "run", "world_size": 9}\n{"kind": "epoch", "epoch": 1, "seconds": 1}\n')
    killer = kill_rank.Killer([(0, 2.0)], log, "no run has this mark")
    assert killer.finished(1) is None
    with open(log, "a") as file:
        file.write('{"kind": "run", "world_size": 2}\n{"kind": "epoch", "epoch": 1, "seconds": 5}\n{"kind": "epo')
    assert killer.finished(1)["seconds"] == 5 and killer.world_size() == 2

# --------------------------------------------------------------------------------------------------------- lose_node.py


@pytest.mark.weekly
@needs_hosts
def test_a_node_is_lost_and_comes_back(tmp_path):
    done = script(LOSE, "rejoin", "--out", tmp_path, "--epochs", 1, "--", *JOB, seconds=2 * runner.LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    is_lost_and_rejoined(tmp_path)
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
    (line,) = re.findall(r"^rank\(s\) .*", (folder / "node0.out").read_text(), re.M)
    assert "no word from rank(s) 1" in line
    assert records(folder / "run.jsonl")[-1]["status"] == "failed"


def test_the_recorded_runs_are_what_the_lesson_says():
    recorded = runner.ROOT / "results" / "recorded" / "elastic-two-nodes"
    is_lost_and_rejoined(recorded / "rejoin")
    is_cut(recorded / "cut")


@pytest.mark.parametrize(("program", "arguments", "message"), [
    (kill_rank, ["--kill", "1", "--", "torchrun", "main.py", "--log-file", "x"], "RANK@EPOCH"),
    (kill_rank, ["--kill", "1@0.5", "--", "torchrun"], "--kill"),
    (kill_rank, ["--kill=-1@2", "--", "torchrun"], "--kill"),
    (kill_rank, ["--kill", "1@2", "--", "torchrun", "main.py"], "--log-file"), (stop_together, ["lessons"], "lessons"),
    (lose_node, ["cut", "--out", "x", "--", "--log-file=y"], "--log-file")])
def test_bad_input(program, arguments, message, refused):
    assert message in refused(program, *arguments)


# -------------------------------------------------------------------------------------------------------- the exercises


def test_a_torn_write_in_one_line_is_found():
    def in_one_line(path, data):
        open(path, "wb").write(data)  # noqa: SIM115

    assert check.never_half.verdict(in_one_line)[0] == "wrong"


def test_a_careful_write_by_other_means_is_right():
    def other(path, data):
        part = os.open(path + "~", os.O_WRONLY | os.O_CREAT)
        os.write(part, data)
        os.close(part)
        os.rename(path + "~", path)

    assert check.never_half.verdict(other)[0] == "right"


EACH_FIFTH = """import torch.distributed as dist
def must_stop(signalled, step):
    said = [None] * 2
    if step % 5 == 3:
        dist.all_gather_object(said, signalled)
    return any(said)
"""


def test_isend_counts_as_a_message_too(tmp_path):
    (tmp_path / "mine.py").write_text("""import torch, torch.distributed as dist
def must_stop(signalled, step):
    rank, n, flag = dist.get_rank(), dist.get_world_size(), torch.zeros(1)
    for work in dist.isend(flag, (rank + 1) % n), dist.irecv(flag.clone(), (rank - 1) % n):
        work.wait()
    return False
""")
    [ranks] = check.stopped.measurement.run([(str(tmp_path / "mine.py"), 2)])
    assert [measured["messages"][0] for measured in ranks] == [2 * check.STEPS] * 2


def test_a_signal_to_one_rank_stops_all_after_one_step_by_the_learner_s_function(tmp_path):
    file, log = tmp_path / "mine.py", tmp_path / "run.jsonl"
    file.write_text(EACH_FIFTH)
    done = script(KILL, "--signal", "USR1", "--again", "--kill=1@1.5", "--out", tmp_path / "stop.json", "--",
                  *torchrun(2, STOP, file, *JOB, "--epochs", 5, "--checkpoint", tmp_path / "kept", "--log-file", log))
    assert done.returncode == 0 and "must_stop is yours" in done.stdout, done.stdout + done.stderr
    again, seconds = show.stopped(records(log), json.loads((tmp_path / "stop.json").read_text()), STEPS)
    assert again == 0 and 0 < seconds < 60
    (restart,) = [record for record in records(log) if record["kind"] == "restart"]
    assert (restart["epoch"] * STEPS + restart["step"]) % 5 == 3
    assert list(runs.read_run(log)["epoch"]) == list(range(5)) and processes_of(tmp_path) == []


def test_any_interval_near_the_best_is_right():
    assert check.interval.verdict(lambda write, between: (  # Daly's
        math.sqrt(2 * write * between) * (1 + math.sqrt(write / (2 * between)) / 3) - write))[0] == "right"


# ----------------------------------------------------------------------------------------------------- show.py

LOG = [{"kind": "run", "time": 90.0}, {"kind": "epoch", "epoch": 0, "seconds": 10, "checkpoint_seconds": 0.5,
                                       "loss": 2.0},
       {"kind": "end", "time": 100.5, "status": "failed"},
       {"kind": "restart", "time": 107.0, "epoch": 1, "step": 10, "world_size": 1},
       {"kind": "epoch", "epoch": 1, "seconds": 10, "checkpoint_seconds": 9.0, "loss": 1.5},
       {"kind": "end", "time": 120.0, "status": "completed"}]
KILL_NOTE = {"kills": [{"time": 100.0}], "said": ["a line", "rank(s) 0 waited in epoch 1, step 36, at `loss`; no word"]}


def test_the_cost_of_a_kill_is_made_of_what_the_log_notes():
    again, parts = interrupted.kill_cost(LOG, KILL_NOTE, steps=50)
    assert again == 25 and list(parts.values()) == [0.5, 6.5, 25 * 10 / 50]
    log = [record for record in LOG if record.get("status") != "failed"]  # rank 0, which writes the log, was killed
    again, parts = interrupted.kill_cost(log, KILL_NOTE | {"said": []}, steps=50)
    assert again is None and parts == {"noticed, ended, and started again": 7.0}


def test_a_write_is_timed_in_epochs_that_were_begun_once():
    assert interrupted.write_seconds(LOG, steps=50, every=20) == 0.5 / 2
    log = [{"kind": "epoch", "epoch": 0}, {"kind": "epoch", "epoch": 1, "checkpoint_seconds": 0.5}]
    assert interrupted.write_seconds(log, steps=32, every=35) == 0.5  # an epoch without a write
