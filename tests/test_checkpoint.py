"""Checkpoints: nothing lost, nothing twice, and the very weights of a run that nobody disturbed."""

import errno
import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from course import runs
from tests import runner
from trainer import checkpoint, data, launch
from trainer.options import get_parser
from trainer.run import Run

JOB = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 101, "--epochs", 4, "--optimizer", "sgd",
       "--lr", 0.01, "--global-batch-size", 96]  # with momentum; Adam turns rounding errors into whole steps


def weights(path):
    return torch.load(path, weights_only=True)


def equal(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def ranks_of(process):
    """The rank processes that a torchrun has started."""
    ranks = sorted(psutil.Process(process.pid).children(recursive=True), key=lambda rank: rank.pid)
    assert ranks, "nobody to signal"
    return ranks


def epochs_logged(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return [record["epoch"] for record in map(json.loads, lines) if record["kind"] == "epoch"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """undisturbed(ranks): (weights, table) of a run that nobody stops."""
    @functools.cache
    def trained(ranks):
        folder = tmp_path_factory.mktemp("undisturbed")
        done = runner.run(ranks, *JOB, "--log-file", folder / "log.jsonl", "--save-model", folder / "model.pt")
        assert done.returncode == 0, done.stderr
        return weights(folder / "model.pt"), runs.read_run(folder / "log.jsonl")
    return trained


def is_the_undisturbed(ranks, undisturbed, model, log):
    expected, table = undisturbed(ranks)
    assert equal(weights(model), expected), "other weights than the undisturbed run's"
    continued = runs.read_run(log)
    assert list(continued["epoch"]) == [0, 1, 2, 3] and set(continued["status"]) == {"completed"}
    for column in ("loss", "accuracy", "val_loss", "val_accuracy", "weight_norm"):
        assert list(continued[column]) == list(table[column]), column
    assert len(epochs_logged(log)) == 4, "an epoch stands twice in the log"
    return continued


@pytest.mark.weekly
@pytest.mark.parametrize("ranks", [0, 2])
def test_stopped_by_a_signal_and_resumed_is_the_undisturbed_run(ranks, undisturbed, tmp_path):
    log, model, file = tmp_path / "run.jsonl", tmp_path / "model.pt", tmp_path / "c"
    options = [*JOB, "--log-file", log, "--save-model", model, "--checkpoint", file]
    process = runner.start(ranks, *options)
    runner.wait_for(lambda: epochs_logged(log), "the first epoch")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=runner.LIMIT)
    # torchrun has a status of its own: 1, or that of SIGABRT where one of its threads aborts it at its end.
    assert process.returncode in ((1, -signal.SIGABRT) if ranks else (launch.RESUMABLE,)), output
    assert runs.read_run(log)["status"][0] == "resumable" and "SIGTERM: stopped in epoch" in output
    assert runner.run(ranks, *options, "--resume", "must").returncode == 0
    assert is_the_undisturbed(ranks, undisturbed, model, log)["restarts"][0] == 1
    if not ranks:
        assert runner.run(ranks, *options).returncode == 0, "a finished run has nothing to add"
        assert equal(weights(model), undisturbed(ranks)[0])


@pytest.mark.weekly
def test_a_signal_to_one_rank_stops_all_within_seconds(tmp_path):
    """However slow the steps are: ten of these would take 30 s."""
    script, log = tmp_path / "slow.py", tmp_path / "run.jsonl"
    script.write_text("""import main, time
from trainer import models
class Slow(models.ConvNet):
    def forward(self, images):
        time.sleep(3 * self.training)
        return super().forward(images)
models.MODELS["lenet"] = Slow
main.main()
""")
    process = runner.start(2, *JOB, "--epochs", 1000, "--checkpoint", tmp_path / "c", "--log-file", log, script=script)
    runner.wait_for(lambda: log.exists() and "\n" in log.read_text(), "the first record")
    time.sleep(1)  # into the steps
    ranks_of(process)[1].send_signal(signal.SIGUSR1)  # Slurm's --signal gives a job so long before it kills
    runner.wait_for(lambda: '"kind": "end"' in log.read_text(), "the stop", 20)
    output, _ = process.communicate(timeout=runner.LIMIT)
    assert output.count("stopped in epoch") == 1 and runs.read_run(log)["status"].iloc[0] == "resumable", output


@pytest.mark.weekly
def test_accumulation_and_dropout_go_on_where_they_were_and_dropout_differs_from_rank_to_rank(tmp_path):
    script = tmp_path / "dropout.py"
    script.write_text(f"""import main, os, signal, torch
from trainer import models
class Dropping(models.ConvNet):
    passes = 0
    def forward(self, images):
        Dropping.passes += self.training
        if Dropping.passes == int(os.environ.get("STOP_IN", 0)):
            os.kill(os.getpid(), signal.SIGTERM)
        logits = torch.nn.functional.dropout(super().forward(images), training=self.training)
        if self.training:
            torch.save(logits == 0, f"{tmp_path}/{{os.environ['RANK']}}.pt")
        return logits
models.MODELS["lenet"] = Dropping
main.main()
""")
    options = [*JOB[:-2], "--samples", 300, "--epochs", 3, "--batch-size", 8, "--accumulate", 3, "--schedule", "cosine"]
    undisturbed, model, kept = tmp_path / "u.pt", tmp_path / "m.pt", ["--checkpoint", tmp_path / "c"]
    assert runner.run(2, *options, "--save-model", undisturbed, script=script).returncode == 0
    masks = [weights(tmp_path / f"{rank}.pt") for rank in range(2)]  # of the last step
    assert all(0.2 < mask.float().mean() < 0.8 for mask in masks) and not torch.equal(*masks)
    done = runner.run(2, *options, *kept, script=script, STOP_IN="5")
    assert done.returncode == launch.RESUMABLE, done.stderr
    done = runner.run(2, *options, *kept, "--resume", "must", "--save-model", model, script=script)
    assert done.returncode == 0 and equal(weights(model), weights(undisturbed)), done.stderr


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.weekly) for seed in range(1, 20))])
def test_a_rank_killed_at_a_random_moment_is_restarted_and_the_run_is_the_undisturbed_one(
        seed, undisturbed, tmp_path):
    log, model, moments = tmp_path / "run.jsonl", tmp_path / "model.pt", random.Random(seed)
    process = runner.start(2, *JOB, "--log-file", log, "--save-model", model, "--checkpoint", tmp_path / "c",
                           "--checkpoint-every", moments.choice((1, 5, 13)), torchrun=["--max-restarts=2"])
    runner.wait_for(lambda: epochs_logged(log), "the first epoch")
    (first,) = runs.read_run(log)["seconds"][:1]
    time.sleep(2 * first * moments.random())  # the run has three more epochs
    ranks = ranks_of(process)
    moments.choice(ranks).kill()
    output, _ = process.communicate(timeout=runner.LIMIT)
    assert process.returncode == 0, output
    assert psutil.wait_procs(ranks, timeout=30)[1] == []
    assert is_the_undisturbed(2, undisturbed, model, log)["restarts"][0] == 1


@pytest.mark.weekly
def test_a_rank_that_hangs_is_named_by_the_others(tmp_path):
    """SIGSTOP: the process lives, keeps its connections, and does nothing. --timeout bounds the wait of the others."""
    log = tmp_path / "run.jsonl"
    process = runner.start(2, *JOB, "--epochs", 1000, "--timeout", 5, "--log-file", log)
    try:
        runner.wait_for(lambda: epochs_logged(log), "the first epoch")
        victim = ranks_of(process)[-1]
        rank = int(victim.environ()["RANK"])
        victim.suspend()
        assert psutil.wait_procs(ranks_of(process)[:-1], timeout=60)[1] == [], "the others still wait"
        victim.resume()  # else torchrun would wait 30 s for it before it kills it
        output, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            runner.end(process, signal.SIGKILL)
    assert process.returncode == 1
    assert f"rank(s) {1 - rank} waited in epoch" in output and f"no word from rank(s) {rank}" in output, output


@pytest.mark.weekly
def test_other_world_size_goes_on_with_the_same_global_batches(undisturbed, tmp_path):
    log, model = tmp_path / "run.jsonl", tmp_path / "model.pt"
    options = [*JOB, "--checkpoint", tmp_path / "c", "--log-file", log]
    process = runner.start(3, *options)
    runner.wait_for(lambda: epochs_logged(log), "the first epoch")
    for rank in ranks_of(process):
        rank.send_signal(signal.SIGUSR1)  # as Slurm warns every task
    process.communicate(timeout=runner.LIMIT)
    assert runs.read_run(log)["status"][0] == "resumable"
    done = runner.run(2, *options, "--save-model", model)
    assert done.returncode == 0, done.stderr
    one, other = undisturbed(0)[0], weights(model)
    assert max((one[name] - other[name]).abs().max() for name in one) < 1e-5
    table = runs.read_run(log)
    assert list(table["epoch"]) == [0, 1, 2, 3] and "world size changed: 3, 2" in table["note"][0]


def test_a_missing_checkpoint_is_refused_where_there_must_be_one(tmp_path):
    args = get_parser().parse_args(["--checkpoint", str(tmp_path / "c"), "--resume", "must"])
    with pytest.raises(checkpoint.Unusable, match="there is no checkpoint"):
        Run(args, launch.find_placement("cpu")).saved_state()


@pytest.mark.weekly
def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    options = [*JOB, "--samples", 192, "--epochs", 1, "--checkpoint", tmp_path / "c"]
    assert runner.run(0, *options).returncode == 0
    before = (tmp_path / "c").read_bytes()
    done = runner.run(2, *options, "--model", "resnet")
    assert done.returncode == 2 and "model lenet, and this one has resnet" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and (tmp_path / "c").read_bytes() == before


# ------------------------------------------------------------------------------------------- the disk


def test_a_disk_that_is_full_is_one_line_and_leaves_the_last_checkpoint(tmp_path):
    data.get_dataset("synthetic", runner.ROOT / "data")  # else the run would write that first
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = f"""mount -t tmpfs -o size=1200k tmpfs "$1" || exit 99
        {sys.executable} main.py {" ".join(map(str, JOB))} --samples 192 --epochs 1000 --checkpoint "$1/c"; status=$?
        mkdir "$2"; cp "$1"/c* "$2"; exit $status"""
    as_root = ["--map-root-user"] if os.getuid() else []
    done = subprocess.run(["unshare", "--mount", *as_root, "bash", "-c", script, "_", disk, kept], cwd=runner.ROOT,
                          env=runner.environment(OMP_NUM_THREADS="1"), capture_output=True, text=True,
                          timeout=runner.LIMIT)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no disk of its own: {done.stderr}")
    assert done.returncode == 2 and "No space left" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "parts" in read(kept / "c")


# ------------------------------------------------------------------------------------------- the file itself


def write(path, value):
    checkpoint.Checkpoint(path).write({"value": value, "weights": torch.arange(500.0)})


def read(path):
    return checkpoint.Checkpoint(path).read()[0]


def write_for_ever(path, written):
    for value in range(10**9):
        write(path, value)
        written.value = value


def test_a_kill_at_any_moment_of_a_write_leaves_a_whole_checkpoint(tmp_path):
    """Until the rename the old checkpoint is found, and the new one after it. Nothing that was written is lost."""
    moments, fork = random.Random(0), multiprocessing.get_context("fork")
    for number in range(15):
        written = fork.RawValue("q", -1)
        writer = fork.Process(target=write_for_ever, args=(tmp_path / f"{number}", written))
        writer.start()
        runner.wait_for(lambda written=written: written.value >= 0, "the first checkpoint", 60)
        time.sleep(0.05 * moments.random())
        writer.kill()
        writer.join()
        assert read(tmp_path / f"{number}")["value"] - written.value in (0, 1)


def test_a_checkpoint_is_a_file_of_torchs(tmp_path):
    write(tmp_path / "c", 1)
    state = torch.load(tmp_path / "c", weights_only=True)
    assert state["value"] == 1 and torch.equal(state["weights"], torch.arange(500.0))


def test_no_truncation_gives_another_state(tmp_path):
    write(tmp_path / "c", 1)
    raw = (tmp_path / "c").read_bytes()
    for cut in range(0, len(raw), 7):
        (tmp_path / "c").write_bytes(raw[:cut])
        with pytest.raises(checkpoint.Unusable):
            checkpoint.load(tmp_path / "c")


def test_a_damaged_file_falls_back_to_the_one_before_which_is_never_replaced_by_it(tmp_path):
    keeper = checkpoint.Checkpoint(tmp_path / "c")
    for value in (1, 2):
        write(tmp_path / "c", value)
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:-9])
    state, damage = keeper.read()
    assert state["value"] == 1 and "damaged" in damage
    keeper.put_aside()
    write(tmp_path / "c", 3)
    assert read(tmp_path / "c")["value"] == 3 and checkpoint.load(tmp_path / "c.previous")["value"] == 1


def test_only_damaged_files_are_refused(tmp_path):
    (tmp_path / "c").write_bytes(b"course checkpoint 1 nothing\n")
    with pytest.raises(checkpoint.Unusable, match="move it away"):
        read(tmp_path / "c")


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code was run"),)

    torch.save({"value": Evil()}, tmp_path / "c")
    with pytest.raises(checkpoint.Unusable, match="Weights only load failed"):
        read(tmp_path / "c")
    assert not (tmp_path / "code was run").exists()


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_disk_that_fails_leaves_the_last_checkpoint(call, tmp_path, monkeypatch):
    write(tmp_path / "c", 1)

    def fails(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    keeper = checkpoint.Checkpoint(tmp_path / "c")
    if call == "open":
        monkeypatch.setattr(checkpoint, "open", fails, raising=False)
    else:
        monkeypatch.setattr(checkpoint.os, call, fails)
    with pytest.raises(OSError, match=f"{tmp_path}/c: No space left on device"):
        keeper.write({"value": 2})
    monkeypatch.undo()
    assert read(tmp_path / "c")["value"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


# ------------------------------------------------------------------------------------------------ what a run says last


@pytest.mark.weekly
def test_nccl_is_left_where_the_ranks_stop_together_and_not_after_an_error(monkeypatch):
    """After an error it would wait for ranks that are gone."""
    left = []
    monkeypatch.setattr(launch.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(launch.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(launch.dist, "destroy_process_group", lambda: left.append(sys.exc_info()[0]))
    launch.end_distributed_mode()
    for error in (RuntimeError("NCCL"), SystemExit(2), launch.Stopped("SIGTERM")):
        try:
            raise error
        except BaseException:
            launch.end_distributed_mode()
    assert left == [None, launch.Stopped]
