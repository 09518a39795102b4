"""Lesson 11's scripts: killed ranks, lost nodes, and checkpoints that other numbers of ranks read."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from course import rendezvous, runs
from course.hosts import Cluster
from lessons.l11_fault_tolerance import check as lesson_11
from lessons.l11_fault_tolerance import kill_rank, lose_node, sharded_checkpoint
from tests import runner

JOB = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 101, "--global-batch-size", 96, "--device", "cpu"]
KILL, LOSE = "lessons/l11_fault_tolerance/kill_rank.py", "lessons/l11_fault_tolerance/lose_node.py"
SHARDED = "lessons/l11_fault_tolerance/sharded_checkpoint.py"
STEPS = 13  # an epoch: 1206 images, 96 a step
WHY_NOT = Cluster.available()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")


def script(file, *arguments, seconds=runner.LIMIT, **env):
    return subprocess.run([sys.executable, file, *map(str, arguments)], cwd=runner.ROOT, text=True,
                          env=runner.environment(OMP_NUM_THREADS="1", **env), capture_output=True, timeout=seconds)


def torchrun(ranks, *arguments, restarts=0, python=sys.executable):
    return runner.command(ranks, *arguments, torchrun=[f"--max-restarts={restarts}"], python=python)


def records(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


def processes_of(folder):
    """Those with the folder in their command line: the runs that this test started."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found

# --------------------------------------------------------------------------------------------------------- kill_rank.py


def test_killed_ranks_are_started_again_and_the_run_ends(forked_python, tmp_path):
    log, ranks, kills = tmp_path / "run.jsonl", 3, [(1, 1.0), (0, 2.3)]
    done = script(KILL, *(f"--kill={rank}@{epoch}" for rank, epoch in kills), "--out", tmp_path / "kills.json",
                  "--", *torchrun(ranks, "main.py", *JOB, "--epochs", 9, "--checkpoint", tmp_path / "kept",
                                  "--checkpoint-every", 5, "--log-file", log, restarts=len(kills),
                                  python=forked_python),
                  PYTHON_EXEC=forked_python)
    assert done.returncode == 0, done.stdout + done.stderr
    found, table = json.loads((tmp_path / "kills.json").read_text()), runs.read_run(log)
    assert [(kill["rank"], kill["epoch"]) for kill in found["kills"]] == kills
    assert list(table["epoch"]) == list(range(9)) and set(table["status"]) == {"completed"}
    assert table["restarts"][0] == len(kills)
    for kill, restart in zip(found["kills"], [r for r in records(log) if r["kind"] == "restart"], strict=True):
        assert restart["time"] > kill["time"]
        went_on = restart["epoch"] * STEPS + restart["step"]
        assert went_on % 5 == 0 or went_on % STEPS == 0, "main.py writes when the lesson says it does"
    assert found["said"] == done.stdout.splitlines() and str(runner.ROOT) not in done.stdout
    assert processes_of(tmp_path) == []


def test_a_killed_command_is_started_again_as_a_whole(forked_python, tmp_path):
    log = tmp_path / "run.jsonl"
    done = script(KILL, "--again", "--kill=1@1.5", "--", *torchrun(2, "main.py", *JOB, "--epochs", 9, "--checkpoint",
                  tmp_path / "kept", "--log-file", log, python=forked_python), PYTHON_EXEC=forked_python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["kind"] for record in records(log)].count("restart") == 1
    assert list(runs.read_run(log)["epoch"]) == list(range(9)) and processes_of(tmp_path) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_dies_on_one_of_two_nodes_and_all_meet_again(victim, tmp_path):
    """Each node's torchrun counts its restarts for itself, and not all of them: the ranks name none of it."""
    log, port = tmp_path / "run.jsonl", rendezvous.free_port()
    two = ["--nnodes=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint=127.0.0.1:{port}"]
    job = [*JOB, "--epochs", 9, "--timeout", 100, "--checkpoint", tmp_path / "kept", "--log-file", log]
    nodes = [runner.start(1, *job, torchrun=two) for _ in range(2)]
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


def test_a_run_that_takes_too_long_is_ended(tmp_path):
    done = script(KILL, "--kill=0@900", "--within", 12, "--", *torchrun(2, "main.py", *JOB, "--epochs", 10**6,
                                                                              "--log-file", tmp_path / "run.jsonl"))
    assert done.returncode == 124 and "not done within 12 s" in done.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(("arguments", "said"), [
    (["--kill", "1", "--", "torchrun", "main.py", "--log-file", "x"], "'1' is not RANK@EPOCH"),
    (["--kill", "1@soon", "--", "torchrun"], "'1@soon' is not RANK@EPOCH"),
    (["--kill", "1@0.5", "--", "torchrun"], "the first epoch that can be hit is 1"),
    (["--kill=-1@2", "--", "torchrun"], "ranks count from 0"),
    (["--kill", "1@2", "--", "torchrun", "main.py"], "the command has no --log-file"),
    (["--kill", "1@2", "--within", "0", "--", "torchrun", "--log-file=x"], "--within: 0 is not a positive number"),
    (["--kill", "1@2", "--", "no-such-program", "--log-file=x"], "no-such-program: No such file"),
    (["--", "torchrun"], "--kill"),
])
def test_bad_input_of_kill_rank_is_one_line(arguments, said):
    done = runner.run(0, *arguments, script=KILL)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and said in done.stderr, done.stderr


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
    (line,) = re.findall(r"^rank\(s\) .*", (folder / "node0.out").read_text(), re.M)
    assert re.match(r"rank\(s\) 0 waited in epoch \d+, step \d+, .* no word from rank\(s\) 1:", line), line
    assert "5000ms" in line
    assert records(folder / "run.jsonl")[-1]["status"] == "failed"


def test_the_recorded_runs_are_what_the_lesson_says():
    recorded = runner.ROOT / "results" / "recorded" / "elastic-two-nodes"
    is_lost_and_rejoined(recorded / "rejoin")
    is_cut(recorded / "cut")
    assert not [file for file in recorded.rglob("kept*")]


@pytest.mark.parametrize(("arguments", "said"), [
    (["explode", "--out", "x"], "invalid choice: 'explode'"),
    (["cut"], "--out"),
    (["cut", "--out", "x", "--epochs", "0"], "argument --epochs: 0 is not a positive number"),
    (["cut", "--out", "x", "--", "--log-file=y"], "--log-file after --"),
])
def test_bad_input_of_lose_node_is_one_line(arguments, said):
    done = runner.run(0, *arguments, script=LOSE)
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (2, 1, "") and said in done.stderr


@needs_hosts
def test_a_job_that_fails_is_named_in_one_line(tmp_path):
    done = script(LOSE, "cut", "--out", tmp_path, "--", *JOB, "--model", "no-such-model")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "waited for 2 epochs of both nodes, and node0's torchrun ended" in done.stderr and "no-such" in done.stderr


def test_trained_by_counts_since_the_last_change_of_size(tmp_path):
    lab = lose_node.Lab.__new__(lose_node.Lab)
    lab.log = tmp_path / "run.jsonl"
    assert lab.trained_by(2) == 0
    lines = [{"kind": "run", "world_size": 2}, {"kind": "epoch"}, {"kind": "epoch"},
             {"kind": "restart", "world_size": 1}, {"kind": "epoch"}]
    lab.log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "epo')
    assert (lab.trained_by(2), lab.trained_by(1)) == (0, 1)

# ------------------------------------------------------------------------------------------------ sharded_checkpoint.py


@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (3, 2)])
def test_what_many_ranks_wrote_another_number_reads(writers, readers, tmp_path):
    saved = runner.run(writers, "--save", tmp_path, script=SHARDED)
    assert saved.returncode == 0, saved.stderr
    pieces = sharded_checkpoint.contents(tmp_path)
    assert len({piece["file"] for piece in pieces}) == writers
    names = [piece["name"] for piece in pieces]
    assert all(names.count(name) == (writers if name == "table" else 1) for name in sharded_checkpoint.expected())
    read = runner.run(readers if readers > 1 else 0, "--load", tmp_path, script=SHARDED)
    assert read.returncode == 0, read.stderr
    rows = [int(rows) for rows in re.findall(r'"rows of the table": (\d+)', read.stdout)]
    assert len(rows) == readers and sum(rows) == sharded_checkpoint.ROWS and "bit for bit" in read.stdout
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

# -------------------------------------------------------------------------------------------------------- the exercises


def test_a_torn_write_in_one_line_is_found():
    def in_one_line(path, data):
        open(path, "wb").write(data)  # noqa: SIM115

    assert lesson_11.never_half.verdict(in_one_line)[0] == "wrong"


def test_a_careful_write_by_other_means_is_right():
    def other(path, data):
        part = Path(str(path) + ".new")
        part.write_bytes(data)
        part.rename(path)

    assert lesson_11.never_half.verdict(other)[0] == "right"
