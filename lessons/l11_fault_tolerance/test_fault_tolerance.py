"""Lesson 11: a killed training ends with the same bits, what a missing item changes, what a kill costs, how often to
save."""

import json
import math
import re
import subprocess

import pytest
import torch

from lessons.l11_fault_tolerance import check, killed, sharded, show, take_out
from tests import runner

JOB = ["lessons/start/train.py", "--parts", "ours", "--images", 576, "--batch", 96, "--lr", 0.1, "--epochs", 3,
       "--cosine", "--flip", "--every", 4]
TOTAL = 18  # updates
KILLED = ["-m", "lessons.l11_fault_tolerance.killed", "--kill"]


def started(ranks, *words, restarts=0, status=0):
    done = subprocess.run(runner.command(ranks, *words, torchrun=["--standalone", f"--max-restarts={restarts}"]),
                          cwd=runner.ROOT, env=runner.environment(
                              OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
                          capture_output=True, text=True,
                          timeout=2 * runner.LIMIT)
    assert (done.returncode == 0) == (status == 0), done.stdout + done.stderr
    return done.stdout


def lines(text):
    return [line.rpartition(",")[0] for line in text.splitlines() if line.startswith("epoch")]


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module", params=[2, 3])
def whole(request, tmp_path_factory):
    """(ranks, folder with the weights of an undisturbed training, its lines)."""
    folder = tmp_path_factory.mktemp("whole")
    return request.param, folder, lines(started(request.param, *JOB, "--save", folder / "whole.pt"))


@pytest.mark.weekly
def test_a_killed_training_ends_with_the_same_bits(whole, tmp_path):
    ranks, folder, right = whole
    said = started(ranks, *KILLED, "1@11", "--events", tmp_path / "events", *JOB, "--checkpoint", tmp_path / "kept",
                   "--save", tmp_path / "end.pt", restarts=1)
    assert lines(said)[-2:] == right[-2:]
    assert same(torch.load(folder / "whole.pt"), torch.load(tmp_path / "end.pt"))
    log = show.events(tmp_path / "events")
    assert 3 <= show.again(log, TOTAL) <= 4  # update 8 was the last that was kept; update 12 may have been made
    assert all(seconds > 0 for seconds in show.cost(log, TOTAL).values())


@pytest.mark.weekly
def test_a_signal_to_one_rank_stops_all_and_no_update_is_repeated(whole, tmp_path):
    ranks, folder, _ = whole
    job = [*JOB, "--checkpoint", tmp_path / "kept"]
    said = started(ranks, *KILLED, "1@5", "--send", "USR1", "--events", tmp_path / "events", *job, status=1)
    stops = re.findall(r"rank (\d) stops after update (\d+)", said)  # two ranks may write on one line
    assert sorted(stops) == [(str(rank), "10") for rank in range(ranks)] and said.count("stops") == ranks
    started(ranks, *KILLED, "1@99", "--events", tmp_path / "events", *job, "--save", tmp_path / "end.pt")
    assert show.again(show.events(tmp_path / "events"), TOTAL) == 0
    assert same(torch.load(folder / "whole.pt"), torch.load(tmp_path / "end.pt"))


@pytest.mark.weekly
def test_only_the_losses_may_be_missing_for_the_same_weights(tmp_path):
    job = [*JOB[:1], *JOB[3:-2]]  # whose parts: those beside the program, or the course's
    started(2, *KILLED, "1@11", "--events", tmp_path / "events", *job, "--every", 4, "--checkpoint", tmp_path / "kept",
            status=1)
    started(2, "-m", "lessons.l11_fault_tolerance.take_out", "--out", tmp_path / "out", *job,
            "--checkpoint", tmp_path / "kept")
    results = json.loads((tmp_path / "out").read_text())
    assert list(results) == list(take_out.ITEMS)
    assert [item for item in results if not results[item]["weights"]] == ["nothing", "losses"]
    differ = show.differences(results)
    assert differ["losses"][0] != "the same" and differ["losses"][1:] == ["the same", "the same", "0: the same bits"]


@pytest.mark.weekly
def test_a_table_of_four_ranks_is_read_by_two(tmp_path):
    program = "lessons/l11_fault_tolerance/sharded.py"
    assert "rank 3 of 4 saved 248" in started(4, program, "--save", tmp_path / "table")
    assert "rank 1 of 2 has, bit for bit, 500" in started(2, program, "--load", tmp_path / "table")
    assert [(row["rows, of table and momentum"], row["read by, of two"]) for row in sharded.contents(tmp_path / "table")
            ] == [("0 to 250", "rank 0"), ("251 to 501", "rank 0 and rank 1"), ("502 to 752", "rank 1"),
                  ("753 to 1000", "rank 1")]


def test_bad_input(refused):
    assert "RANK@UPDATE" in refused(killed, "--kill", "1", "--events", "x", "train.py")


# -------------------------------------------------------------------------------------------------------- the exercises


@pytest.mark.parametrize(("text", "verdict"), [
    ("def replace(path, data):\n    open(path, 'wb').write(data)\n", "wrong"),
    ("import os as o\n\n\ndef beside(path):\n    return path + '~'\n\n\ndef replace(path, data):\n"
     "    part = o.open(beside(path), o.O_WRONLY | o.O_CREAT)\n    o.write(part, data)\n    o.close(part)\n"
     "    o.rename(beside(path), path)\n", "right")])
def test_a_file_is_judged_by_what_a_kill_leaves(text, verdict, tmp_path):
    (tmp_path / "replace.py").write_text(text)
    assert check.never_half.verdict(str(tmp_path / "replace.py"))[0] == verdict


@pytest.mark.weekly
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


def test_any_interval_near_the_best_is_right():
    assert check.interval.verdict(lambda write, between: (  # Daly's
        math.sqrt(2 * write * between) * (1 + math.sqrt(write / (2 * between)) / 3) - write))[0] == "right"


def test_the_recorded_group_goes_on_alone():
    rows = show.without_a_group(runner.ROOT / "results/recorded/restart-nothing", heartbeat=1.5)
    silence, quorum, alone, together, step = (float(row["seconds"]) for row in rows)
    assert max(step, together) < quorum < silence < alone


