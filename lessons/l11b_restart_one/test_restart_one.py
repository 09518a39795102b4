"""Lesson 11b: groups under torchft, checkpoints that other numbers of ranks read, a neighbour's memory, figures."""

import json
import re
import shutil
import subprocess
import uuid
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from course import processes
from course.interrupted import records
from lessons.l11b_restart_one import restart_nothing, sharded_checkpoint, show
from tests import runner

SHARDED = "lessons/l11b_restart_one/sharded_checkpoint.py"
GROUP, DRIVER = "lessons/l11b_restart_one/torchft_loop.py", "lessons/l11b_restart_one/restart_nothing.py"
# 601 images: they do not divide by 2, and the last batch is smaller
SMALL = ["--device", "cpu", "--dataset", "synthetic", "--samples", 601, "--test-samples", 101, "--batch-size", 32]


def needs_torchft(test):
    """Marks a test that needs torchft, which only the weekly run installs."""
    return pytest.mark.weekly(pytest.mark.skipif(not find_spec("torchft"), reason="torchft is not installed")(test))


def refused_in_one_line(script, arguments, message, folder):
    done = runner.run(0, *(folder / "out" if word == "OUT" else word for word in arguments), script=script)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert message in done.stderr and not (folder / "out/moments.json").exists()


@pytest.mark.parametrize(("script", "arguments", "message"), [
    (DRIVER, ["--kill", "2@3", "--out", "OUT"], "--kill: there is no group 2; there are 2"),
    (DRIVER, ["--kill", "1@0", "--out", "OUT"], "steps from 1"),
    (DRIVER, ["--kill", "1@3", "--out", "OUT", "--", "--save-model=x"], "--save-model after --: this script sets it"),
    (GROUP, ["--strategy", "dp"], "--strategy: torchft decides this; leave it out"),
])
def test_bad_input_is_one_line_and_status_2(script, arguments, message, tmp_path):
    refused_in_one_line(script, arguments, message, tmp_path)


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
        groups.wait(groups.ended, "the end of both groups")
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
    done = subprocess.run(runner.command(0, DRIVER, "--kill", "1@30", "--out", tmp_path, "--within", 280, "--", *SMALL,
                                         "--epochs", 300), cwd=runner.ROOT, capture_output=True, text=True, timeout=350,
                          env=processes.environment(str(tmp_path), runner.environment()))
    assert done.returncode == 0, done.stdout + done.stderr
    noted = json.loads((tmp_path / "moments.json").read_text())
    assert (noted["victim"], noted["apart"], noted["off"], noted["largest"]) == (1, 0, None, None)
    survivor, victim = (records(tmp_path / f"group{group}.jsonl") for group in (0, 1))
    steps = [record for record in survivor if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, 3001)), "each step counted once for the survivor"
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
    done = runner.run(0, "--kill", "1@1000", "--out", tmp_path, "--", *SMALL, "--epochs", 1, script=DRIVER)
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


def test_one_of_many_groups_loses_less_than_all():
    one, large, everyone = show.both_ways((1, 5), write=8, restart=360, between=3600, gap=3.6, nodes=10)
    # Young's interval, 240 s, loses 8/240 + 240/7200, the restart 360/3600; a gap 3.6/3600, and 36/3600 or 180/3600
    assert [row["time that is lost, %"] for row in (one, large, everyone)] == ["1.1", "5.1", "17"]
    assert large["started again"] == "one of 2 groups of 5 nodes"
