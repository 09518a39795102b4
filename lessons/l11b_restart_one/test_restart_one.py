"""Lesson 11b: groups under torchft, checkpoints that other numbers of ranks read, a neighbour's memory, figures."""

import re
import shutil
import uuid
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from course import processes
from course.interrupted import records
from lessons.l11b_restart_one import restart_nothing, sharded_checkpoint, show, torchft_loop
from tests import runner

SHARDED = "lessons/l11b_restart_one/sharded_checkpoint.py"
# 601 images: they do not divide by 2, and the last batch is smaller
SMALL = ["--device", "cpu", "--dataset", "synthetic", "--samples", 601, "--test-samples", 101, "--batch-size", 32]


def needs_torchft(test):
    """Marks a test that needs torchft, which only the weekly run installs."""
    return pytest.mark.weekly(pytest.mark.skipif(not find_spec("torchft"), reason="torchft is not installed")(test))


@pytest.mark.parametrize(("program", "arguments", "message"), [
    (restart_nothing, ["--kill", "2@3", "--out", "out"], "--kill"),
    (restart_nothing, ["--kill", "1@0", "--out", "out"], "--kill"),
    (restart_nothing, ["--kill", "1@3", "--out", "out", "--", "--save-model=x"], "--save-model"),
    (restart_nothing, ["--kill", "1@3", "--out", "out"], "torchft is not installed"),
    (torchft_loop, ["--strategy", "dp"], "--strategy"), (torchft_loop, SMALL, "torchft is not installed")])
def test_bad_input(program, arguments, message, refused, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    assert message in refused(program, *arguments)


# ------------------------------------------------------------------------------------------------ sharded_checkpoint.py


def test_what_three_ranks_wrote_two_read_and_so_does_a_single_process(tmp_path, refused):
    assert "no checkpoint" in refused(sharded_checkpoint, "--load", tmp_path)
    saved = runner.run(3, "--save", tmp_path, script=SHARDED)
    assert saved.returncode == 0, saved.stderr
    assert "already" in refused(sharded_checkpoint, "--save", tmp_path)
    pieces = sharded_checkpoint.contents(tmp_path)
    assert len({piece["file"] for piece in pieces}) == 3
    names = [piece["name"] for piece in pieces]
    assert all(names.count(name) == (3 if name == "table" else 1) for name in sharded_checkpoint.expected())
    for readers in (2, 0):
        read = runner.run(readers, "--load", tmp_path, script=SHARDED)
        assert read.returncode == 0 and "bit for bit" in read.stdout, read.stderr
        rows = [int(rows) for rows in re.findall(r'"rows of the table": (\d+)', read.stdout)]
        assert len(rows) == max(readers, 1) and sum(rows) == sharded_checkpoint.ROWS


# ------------------------------------------------------------------------------------------- groups under torchft


@needs_torchft
def test_two_groups_train_the_model_of_main_py(tmp_path):
    job, mark = [*SMALL, "--epochs", 2], uuid.uuid4().hex
    done = runner.run(2, *job, "--no-channels-last", "--save-model", tmp_path / "main.pt")
    assert done.returncode == 0, done.stderr
    try:
        groups = restart_nothing.Groups(SimpleNamespace(out=tmp_path, within=runner.LIMIT,
                                                        options=list(map(str, job))), mark)
        groups.wait(groups.ended, "the end of both groups")
    finally:
        processes.end(mark)
    expected, *trained = (restart_nothing.weights(tmp_path / f"{name}.pt") for name in ("main", "group0", "group1"))
    assert restart_nothing.difference(*trained) == 0
    assert restart_nothing.difference(trained[0], expected) < 1e-5
    assert all(value.abs().max() > 0 for value in expected.values())
    steps = [record for record in records(tmp_path / "group0.jsonl") if record["kind"] == "step"]
    assert [(record["step"], record["groups"]) for record in steps] == [(step, 2) for step in range(1, 21)]


# ----------------------------------------------------------------------------------------------------- show.py

GROUP_LOG = [{"kind": "step", "step": step, "groups": groups, "time": time} for step, groups, time in (
    (1, 1, 96.0), (2, 2, 97.0), (3, 2, 99.9), (4, 1, 101.5), (5, 1, 102.0), (6, 2, 103.0))]
GROUP_LOG.insert(0, {"kind": "run", "time": 95.0})
GROUP_LOG.insert(4, {"kind": "attempt", "step": 4, "groups": 2, "time": 100.2})


def test_how_all_were_started_again():
    log = [{"kind": "run", "time": 90.0}, {"kind": "epoch", "epoch": 0, "seconds": 10, "time": 98.0},
           {"kind": "restart", "time": 107.0, "epoch": 1, "step": 10},
           {"kind": "epoch", "epoch": 1, "seconds": 10, "time": 112.0}]
    kill = {"kills": [{"time": 100.0}], "said": ["rank(s) 0 waited in epoch 1, step 36, at `loss`"]}
    way = show.started_again(log, kill, steps=50)
    assert (way["gap"], way["again"], way["unseen"], way["done"], way["speed"]) == (7.0, 25, 0, 85, 8.5)
    assert way["pieces"] == [[(-10.0, 0), (-2.0, 50), (0, 85)], [(7.0, 60), (12.0, 100)]]


def test_how_one_went_on_and_the_other_came_back():
    way = show.went_on(GROUP_LOG, killed=100.0, batch=32)
    assert way["gap"] == pytest.approx(1.6) and way["speed"] == pytest.approx(3 / 4.9)
    assert (way["alone"], way["back"], way["done"]) == (2, 3.0, 3)
    assert way["again"] == 1, "an attempt that did not count was made again"
    assert way["unseen"] == 3 * 32, "the step that was made alone before the kill, too"


def test_the_recorded_recoveries_are_those_of_the_lesson():
    ways, noted = show.ways("results/recorded/restart-nothing", 32)
    assert ways[show.RESTART]["loss"] == noted["loss"] != ways[show.ALONE]["loss"]
    alone = ways[show.ALONE]
    assert alone["unseen"] == 32 * alone["alone"] > 0 == noted["apart"], "no step was made alone before the kill"
    assert alone["again"] <= 1 and noted["off"] > 0 and alone["back"] is not None


def test_a_recovery_whose_log_is_cut_short_is_not_told(tmp_path):
    shutil.copytree("results/recorded/restart-nothing", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "11b_groups/group0.jsonl"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ValueError, match="group0.jsonl is cut short"):
        show.ways(tmp_path, 32)
