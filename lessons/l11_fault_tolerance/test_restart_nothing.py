"""Groups under torchft: the model of main.py, one killed and taken back, and what cannot be is said."""

import json
import subprocess
import uuid
from importlib.util import find_spec

import pytest

from course import processes
from lessons.l11_fault_tolerance import restart_nothing
from lessons.l11_fault_tolerance.kill_rank import records
from tests import runner

GROUP, DRIVER = "lessons/l11_fault_tolerance/torchft_loop.py", "lessons/l11_fault_tolerance/restart_nothing.py"
# 601 images: they do not divide by 2, and the last batch is smaller
SMALL = ["--device", "cpu", "--dataset", "synthetic", "--samples", 601, "--test-samples", 101, "--batch-size", 32]
needs_torchft = pytest.mark.skipif(not find_spec("torchft"), reason="torchft is not installed")


@needs_torchft
def test_two_groups_train_the_model_of_main_py(tmp_path):
    job, mark = [*SMALL, "--epochs", 2], uuid.uuid4().hex
    done = runner.run(2, *job, "--no-channels-last", "--save-model", tmp_path / "main.pt")
    assert done.returncode == 0, done.stderr

    class Arguments:
        out, within, options = tmp_path, runner.LIMIT, list(map(str, job))
    try:
        groups = restart_nothing.Groups(Arguments, mark)
        groups.wait(lambda: all(groups.started[group].poll() == 0 for group in (0, 1)), "the end of both groups")
    finally:
        processes.end(mark)
    expected, *found = (restart_nothing.weights(tmp_path / f"{name}.pt") for name in ("main", "group0", "group1"))
    assert restart_nothing.difference(*found) == 0
    assert restart_nothing.difference(found[0], expected) < 1e-5
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


@pytest.mark.parametrize(("script", "arguments", "said"), [
    (DRIVER, ["--kill", "2@3", "--out", "OUT"], "--kill: there is no group 2; there are 2"),
    (DRIVER, ["--kill", "1", "--out", "OUT"], "'1' is not GROUP@STEP"),
    (DRIVER, ["--kill", "1@0", "--out", "OUT"], "steps from 1"),
    (DRIVER, ["--out", "OUT"], "--kill"),
    pytest.param(DRIVER, ["--kill", "1@3", "--out", "/dev/null"], "--out: cannot write", marks=needs_torchft),
    pytest.param(DRIVER, ["--kill", "1@3", "--out", "OUT", "--compare", "no.pt"], "--compare no.pt: No such file",
                 marks=needs_torchft),
    pytest.param(DRIVER, ["--kill", "1@3", "--out", "OUT", "--compare", "README.md"],
                 "--compare README.md: holds no weights", marks=needs_torchft),
    (DRIVER, ["--kill", "1@3", "--out", "OUT", "--", "--save-model=x"], "--save-model after --: this script sets it"),
    (GROUP, ["--strategy", "dp"], "--strategy: torchft decides this; leave it out"),
    pytest.param(GROUP, SMALL, "without a torchrun of its own", marks=needs_torchft),
    pytest.param(GROUP, ["--group", "2"], "--group 2: groups count from 0, and there are 2", marks=needs_torchft),
])
def test_bad_input_is_one_line_and_status_2(script, arguments, said, tmp_path):
    done = runner.run(0, *(tmp_path / "out" if one == "OUT" else one for one in arguments), script=script)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert said in done.stderr and not (tmp_path / "out/moments.json").exists()


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
