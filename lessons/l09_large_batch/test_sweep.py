"""The sweep: what is finished stays, what failed is named, and whatever ends it leaves no process behind."""

import json
import signal
import subprocess
import sys
from argparse import Namespace

import pytest

from course import processes, runs
from lessons.l09_large_batch import sweep
from tests import runner

SMALL = ["--dataset", "synthetic", "--test-samples", 11, "--epochs", 1]
# 2 images cannot be shared by 3 ranks: that run fails, in the middle of the others
GRID = ["--world-sizes", 1, 3, 2, "--seeds", 0, "--batch-sizes", 5, "--threads", 1]
NAMES = ["lenet-single-batch5-seed0", "lenet-ddp3-batch5-seed0", "lenet-ddp2-batch5-seed0"]
ENDLESS = ["--world-sizes", 2, "--", "--dataset", "synthetic", "--test-samples", 11, "--samples", 200,
           "--epochs", 1_000_000]


def command(out, *arguments):
    return runner.command(0, "lessons/l09_large_batch/sweep.py", "--out", out, *arguments)


def run(out, *arguments, **env):
    start = runner.torchrun if "PYTHON_EXEC" in env else runner.run
    return start(0, "--out", out, *arguments, script="lessons/l09_large_batch/sweep.py", **env)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".jsonl"}


def marked(out):
    """Processes that a sweep of this folder started."""
    return processes.marked(out.resolve())


@pytest.fixture(scope="module")
def swept(tmp_path_factory, forked_python):
    out = tmp_path_factory.mktemp("sweep") / "new" / "folder"
    return out, run(out, *GRID, "--", *SMALL, "--samples", 2, PYTHON_EXEC=forked_python)


def test_one_failed_run_is_named_and_the_rest_goes_on(swept):
    out, done = swept
    assert done.returncode == 1
    assert "3 runs" in done.stdout and "0 finished before, 3 to do" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("[")] == NAMES
    assert "done 2, failed 1" in done.stdout.splitlines()[-1] and " s left" in done.stdout
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"failed: {NAMES[1]}: main.py: error: --samples 2 is less than the 3 ranks")
    assert "--samples 2 is less than the 3 ranks" in (out / f"{NAMES[1]}.out").read_text()
    assert not marked(out)


def test_the_logs_are_what_was_asked_for_and_the_reader_reads_them_all(swept):
    out, _ = swept
    logs = runs.read_runs(out)
    assert sorted(logs["label"]) == sorted([NAMES[0], NAMES[2]])  # the console's text is not taken for a log
    logs = logs.set_index("label")
    assert logs["world_size"].to_dict() == {NAMES[0]: 1, NAMES[2]: 2}
    assert logs["strategy"].to_dict() == {NAMES[0]: "single", NAMES[2]: "ddp"}
    assert set(logs["status"]) == {"completed"} and set(logs["batch_size"]) == {5} and set(logs["threads"]) == {1}


def test_finished_runs_are_not_run_again_and_other_options_do_not_overwrite_them(swept):
    out, _ = swept
    before = contents(out)
    again = run(out, "--world-sizes", 2, 1, "--batch-sizes", 5, "--threads", 1, "--", *SMALL, "--samples", 2)
    assert again.returncode == 0 and again.stderr == ""
    assert "2 finished before, 0 to do, 0 cannot be run" in again.stdout
    other = run(out, "--world-sizes", 2, "--batch-sizes", 5, "--", *SMALL, "--samples", 2, "--lr", 0.5)
    assert other.returncode == 1 and len(other.stderr.splitlines()) == 1
    assert f"{NAMES[2]}: " in other.stderr and "other options (lr 0.001, not 0.5)" in other.stderr
    assert contents(out) == before


def test_an_unfinished_run_is_run_again_behind_what_its_log_holds(swept, tmp_path):
    cut = b"".join((swept[0] / f"{NAMES[0]}.jsonl").read_bytes().splitlines(keepends=True)[:-1])
    log = tmp_path / f"{NAMES[0]}.jsonl"
    log.write_bytes(cut)
    done = run(tmp_path, "--world-sizes", 1, "--batch-sizes", 5, "--", *SMALL, "--samples", 2)
    assert done.returncode == 0 and "0 finished before, 1 to do" in done.stdout
    assert log.read_bytes().startswith(cut) and runs.read_run(log)["status"][0] == "completed"


@pytest.fixture
def look(swept, tmp_path):
    """What the sweep makes of the finished log of one process, its `run` record changed by `fields`."""
    def look(*passed_on, **fields):
        records = [json.loads(line) for line in (swept[0] / f"{NAMES[0]}.jsonl").read_text().splitlines()]
        for record in records:
            del record["crc"]  # of what the record held
        records[0] = {name: value for name, value in (records[0] | fields).items() if value is not ...}
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
        args = Namespace(threads=fields.pop("asked_threads", None))
        options = [*map(str, SMALL), "--samples", "2", *map(str, passed_on)]
        return sweep.look(log, sweep.wanted_options(sweep.Cell("lenet", "single", 1, 5, 0), args, options))
    return look


def test_options_are_compared_as_main_py_resolves_them(look):
    assert look()[0] is True
    assert look("--dataset", "auto")[0] and not look("--dataset", "auto", dataset="mnist")[0]
    assert look("--samples", 50_000, samples=50_000)[0]
    assert "samples 2, not 50000" in look("--samples", 50_000)[2]
    assert "epochs 1, not 2" in look("--epochs", 2)[2] and "shuffle True, not False" in look("--no-shuffle")[2]
    assert look("--timeout", 5, "--data-path", "elsewhere")[0]  # neither changes the result
    assert look(optimizer=...)[0], "an option that is younger than the log had its default then"
    assert "optimizer None, not sgd" in look("--optimizer", "sgd", optimizer=...)[2]
    assert "world_size 2, not 1" in look(world_size=2)[2] and "seed 1, not 0" in look(seed=1)[2]
    assert "threads 1, not 2" in look(asked_threads=2)[2]


def test_a_file_that_is_no_log_stays_as_it_is(tmp_path):
    log = tmp_path / "lenet-single-batch64-seed0.jsonl"
    log.write_text("my notes\n")
    done = run(tmp_path, "--world-sizes", 1, "--", *SMALL)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "is it a run log?: move it away" in done.stderr and log.read_text() == "my notes\n"


def test_a_run_that_takes_too_long_is_killed_with_its_ranks_and_named(tmp_path):
    done = run(tmp_path, "--run-timeout", 12, *ENDLESS)
    assert done.returncode == 1
    assert "failed: lenet-ddp2-batch64-seed0: killed after 12 s (--run-timeout)" in done.stderr
    assert not marked(tmp_path)


def test_a_second_sweep_is_refused_and_ctrl_c_leaves_no_process(tmp_path):
    log = tmp_path / "lenet-ddp2-batch64-seed0.jsonl"
    first = subprocess.Popen(command(tmp_path, *ENDLESS), cwd=runner.ROOT, env=runner.environment(), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runner.wait_for(lambda: log.exists() and '"epoch"' in log.read_text(), "the first epoch")
    second = run(tmp_path, *GRID, "--", *SMALL)
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr == f"sweep.py: error: --out {tmp_path}: another sweep is running there\n"
    assert len(marked(tmp_path)) == 3  # torchrun and two ranks
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130 and not marked(tmp_path)
    assert "the same command goes on from here" in said and "Traceback" not in said
    assert runs.read_run(log)["status"][0] == "failed"  # rank 0 ended its log


def test_a_killed_sweep_lets_go_of_its_lock_and_the_next_ends_what_it_left(tmp_path):
    log = tmp_path / "lenet-ddp2-batch64-seed0.jsonl"
    killed = subprocess.Popen(command(tmp_path, *ENDLESS), cwd=runner.ROOT, env=runner.environment(),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    runner.wait_for(lambda: log.exists() and '"epoch"' in log.read_text(), "the first epoch")
    killed.kill()
    killed.wait()
    assert len(marked(tmp_path)) == 3
    following = run(tmp_path, "--world-sizes", 2, "--", *SMALL)  # other options: it runs nothing itself
    assert following.returncode == 1 and "other options" in following.stderr
    assert not marked(tmp_path)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--world-sizes", "0"], "0 is not a positive number"),
    (["--models", "vgg"], "invalid choice: 'vgg'"),
    (["--strategies", "dp", "single", "--world-sizes", "2"], "--strategies dp single need --world-sizes 1"),
    (["--run-timeout", "-1"], "-1 is not a positive number"),
    (["--epochs", "2"], "unrecognized arguments"),
    (["--", "--epochs", "0"], "0 is not a positive number"),
    (["--", "--modell", "lenet"], "unrecognized arguments"),
    (["--", "--seed", "0"], "--seed after `--`"),
    (["--", "--log", "x.jsonl"], "--log-file after `--`"),
    (["--", "--save-model", "x.pt"], "--save-model after `--`"),
    (["--out", "/dev/null/x"], "--out /dev/null/x: Not a directory"),
])
def test_bad_input_is_one_line_and_status_2(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sweep.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        sweep.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and len(told.err.splitlines()) == 1 and said in told.err


def test_the_grid_interleaves_seeds_and_leaves_out_what_cannot_be():
    args = Namespace(world_sizes=[1, 2], strategies=["auto", "dp", "ddp"], models=["lenet", "resnet"],
                         batch_sizes=[8], seeds=[0, 7], lrs=[None])
    cells = sweep.make_grid(args)
    names = list(map(str, cells))
    assert len(set(names)) == len(names) == 2 * 2 * 4  # of each: single, dp, ddp on 1, ddp on 2
    assert names[:4] == [f"lenet-{how}-batch8-seed0" for how in ("single", "dp", "ddp1", "ddp2")]
    assert [cell.seed for cell in cells[::8]] == [0, 7]


def test_the_time_left_comes_from_runs_that_are_alike():
    one, two = (sweep.Cell("lenet", "ddp", ranks, 8, 0) for ranks in (1, 2))
    known = {one: 10.0, one._replace(seed=1): 20.0, two: 60.0}
    assert sweep.time_left([one._replace(seed=2), two._replace(seed=5)], known) == "; about 75 s left"
    assert sweep.time_left([one._replace(model="resnet")], known) == "; about 30 s left"  # the mean of all
    assert sweep.time_left([one], {}) == sweep.time_left([], known) == ""
