"""main.py as it is used: real processes, real gloo ranks, real logs. A start takes seconds: each shows many facts."""

import json
import signal
import socket

import psutil
import pytest
import torch

from course import rendezvous, runs
from tests import runner
from trainer import data, files, launch, models

# 1206 images in global batches of 96: the last batch has 54, which 2 and 3 ranks share equally. 1001 test images divide
# by neither. Not Adam: it turns a gradient that is all rounding error into a full step.
SMALL = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 1001, "--epochs", 2, "--optimizer", "sgd",
         "--lr", 0.01]
CLIP = ("--clip", "0.1")


def log_records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(folder, ranks, *options, start=runner.run):
    """(weights, epoch records, what was printed) of a completed run."""
    log, weights = folder / f"{ranks}.jsonl", folder / f"{ranks}.pt"
    done = start(ranks, *SMALL, "--log-file", log, "--save-model", weights, *options)
    assert done.returncode == 0, done.stderr
    records = log_records(log)
    assert [r["kind"] for r in records] == ["run", "epoch", "epoch", "end"]
    assert records[0]["world_size"] == max(1, ranks)
    return torch.load(weights, weights_only=True), records[1:3], done.stdout + done.stderr


def distance(weights, others):
    return max((weights[name] - others[name]).abs().max().item() for name in weights)


def losses(epochs):
    return [record["loss"] for record in epochs]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """(weights, epochs, what was printed) of one process with the whole batch."""
    return train(tmp_path_factory.mktemp("one"), 0, "--batch-size", 96)


@pytest.fixture(scope="module")
def one_process_clipped(tmp_path_factory):
    return train(tmp_path_factory.mktemp("clipped"), 0, "--batch-size", 96, *CLIP)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """(folder, weights, epochs, what was printed) of two ranks that torchrun has started."""
    folder = tmp_path_factory.mktemp("two")
    return folder, *train(folder, 2, "--batch-size", 48, "--log-every", 5, start=runner.torchrun)


def compare(trained, expected, moved=1e-4):
    (weights, epochs, _), (expected, expected_epochs, _) = trained, expected
    torch.manual_seed(0)
    start = models.ConvNet().state_dict()
    for name, value in expected.items():
        assert (value - start[name]).abs().max() > moved, f"{name} has not moved, so it can show nothing"
        assert (weights[name] - value).abs().max() < 1e-5, name
    for ours, theirs in zip(epochs, expected_epochs, strict=True):
        assert ours["accuracy"] == theirs["accuracy"]  # hits over all ranks, not one rank's
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["val_accuracy"] == theirs["val_accuracy"]  # 1001 images, each exactly once
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], abs=1e-5)


def test_two_ranks_train_the_model_of_one_process_on_the_whole_batch(one_process, two_ranks):
    compare(two_ranks[1:], one_process)


@pytest.mark.weekly
def test_accumulated_and_clipped_gradients_of_three_ranks_are_those_of_the_large_batch(
        one_process, one_process_clipped, tmp_path):
    compare(train(tmp_path, 3, "--batch-size", 8, "--accumulate", 4, *CLIP), one_process_clipped)
    assert distance(one_process[0], one_process_clipped[0]) > 1e-3, "clipping changes nothing"


@pytest.mark.weekly
def test_one_process_with_ddp_trains_the_same_model(one_process, tmp_path):
    weights, *_ = train(tmp_path, 0, "--batch-size", 96, "--strategy", "ddp")
    assert distance(weights, one_process[0]) < 1e-6


WRAPPER = """import contextlib, torch, torch.distributed as dist

class Averaging(torch.nn.Module):
    def __init__(self, raw_model):
        super().__init__()
        self.net = raw_model
        for parameter in raw_model.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, images):
        return self.net(images)

    def finish(self):
        for parameter in self.net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    no_sync = contextlib.nullcontext  # backward sends nothing
"""


@pytest.mark.weekly
def test_a_wrapper_of_ones_own_trains_the_model_of_one_process(one_process_clipped, tmp_path):
    """Its gradients are clipped when it has averaged them."""
    (tmp_path / "utils.py").write_text(WRAPPER)
    weights, *_ = train(tmp_path, 2, "--batch-size", 16, "--accumulate", 3, "--wrapper",
                        f"{tmp_path / 'utils.py'}:Averaging", *CLIP)
    assert distance(weights, one_process_clipped[0]) < 1e-5


@pytest.mark.weekly
def test_a_wrapper_that_sends_nothing_is_noticed(tmp_path):
    (tmp_path / "utils.py").write_text(WRAPPER.replace("def finish", "def forgotten"))
    done = runner.run(2, *SMALL, "--wrapper", f"{tmp_path / 'utils.py'}:Averaging")
    assert done.returncode == 1 and "the ranks' models have drifted apart" in done.stderr


def test_log_and_console_are_read_back_whole(two_ranks):
    folder, _, _, printed = two_ranks
    frame, records = runs.read_run(folder / "2.jsonl"), log_records(folder / "2.jsonl")
    assert list(frame["epoch"]) == [0, 1] and set(frame["status"]) == {"completed"} and set(frame["note"]) == {""}
    for epoch, record in enumerate(records[1:3]):
        for name in ("loss", "accuracy", "val_loss", "val_accuracy", "weight_norm", "seconds"):
            assert frame[name][epoch] == record[name], name
    for name in ("world_size", "batch_size", "optimizer", "lr", "samples", "threads"):
        assert (frame[name] == records[0][name]).all(), name
    assert records[0]["threads"] == 1 and bool(frame["synthetic"].all()) and "SYNTHETIC" in printed
    phases = records[1]["data_seconds"] + records[1]["forward_seconds"] + records[1]["backward_seconds"]
    assert records[1]["seconds"] == pytest.approx(phases + records[1]["update_seconds"])
    assert records[1]["images_per_second"] == pytest.approx(1206 / records[1]["seconds"])
    lines = [line.split(":")[0] for line in printed.splitlines() if line.startswith("epoch 0, update")]
    assert lines == ["epoch 0, update 5 of 13", "epoch 0, update 10 of 13"], "--log-every 5, of rank 0 alone"
    (folder / "console.txt").write_text(printed)
    assert list(runs.read_run(folder / "console.txt")["loss"]) == pytest.approx(list(frame["loss"]), abs=1e-4)


@pytest.mark.weekly
def test_reported_evaluation_is_that_of_the_saved_model(tmp_path):
    """With BatchNorm the ranks' statistics differ: what is reported must be what is saved."""
    weights, epochs, printed = train(tmp_path, 3, "--model", "resnet", "--samples", 400)
    assert "2 image(s) are trained on twice per epoch" in printed
    model = models.SmallResNet()
    model.load_state_dict(weights)
    model.eval()
    images, labels = data.get_dataset("synthetic", runner.ROOT / "data")[1].first(1001).__getitems__(range(1001))
    with torch.no_grad():
        logits = model(images)
    assert epochs[-1]["val_accuracy"] * 1001 == pytest.approx((logits.argmax(1) == labels).sum().item(), abs=1e-6)
    assert epochs[-1]["val_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), abs=1e-5)


@pytest.mark.weekly
def test_what_computes_otherwise_trains_nearly_the_same(two_ranks, tmp_path):
    expected = losses(two_ranks[2])
    changed = losses(train(tmp_path, 2, "--batch-size", 48, "--bf16", "--comm-hook", "fp16")[1])
    assert changed != expected, "the options changed nothing"
    assert changed == pytest.approx(expected, rel=0.05) and changed[1] < changed[0]


@pytest.mark.weekly
def test_a_compiled_model_trains_the_same_on_two_ranks(two_ranks, tmp_path):
    compiled = train(tmp_path, 2, "--batch-size", 48, "--compile")
    assert losses(compiled[1]) == pytest.approx(losses(two_ranks[2]), rel=1e-3)


@pytest.mark.weekly
def test_what_is_sent_and_what_is_imported(tmp_path):
    """Gradients once an update, BatchNorm's statistics never. And each rank pays for every import."""
    script = tmp_path / "count.py"
    script.write_text("""import main, sys, torch
from torch.nn.parallel import DistributedDataParallel as DDP
calls, models, made = [], [], DDP.__init__
def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    models.append(self)
    def hook(state, bucket):
        calls.append(bucket.is_last())
        return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(
            lambda done: done.value()[0] / 2)
    self.register_comm_hook(None, hook)
DDP.__init__ = init
main.main()
print("sends buffers", models[0].will_sync_module_buffers())
print("messages", sum(calls), [name for name in ("torchvision", "pandas", "matplotlib") if name in sys.modules],
      flush=True)
""")
    done = runner.run(2, *SMALL, "--epochs", 1, "--samples", 100, "--test-samples", 10, "--batch-size", 16,
                      "--accumulate", 3, "--model", "resnet", script=script)
    # 50 images of each rank make 4 batches: updates of 3 and 1
    assert sorted(done.stdout.splitlines()) == ["messages 2 []"] * 2 + ["sends buffers False"] * 2, done.stderr


# ----------------------------------------------------------------------------------------------------- how a run ends


@pytest.mark.weekly
def test_ctrl_c_ends_one_process_quietly_and_its_log_has_one_writer_and_keeps_the_earlier_run(tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text(earlier := (runner.ROOT / "results/recorded/two-cpu-cores/ddp2.jsonl").read_text())
    process = runner.start(0, *SMALL, "--epochs", 1000, "--log-file", log)
    runner.wait_for(lambda: '"epoch"' in log.read_text()[len(earlier):], "the first epoch")
    refused = runner.run(0, *SMALL, "--log-file", log)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert f"{log}: another run is writing to it" in refused.stderr
    assert process.returncode == 130 and "Traceback" not in output and "Interrupted." in output
    assert log.read_text().startswith(earlier) and log_records(log)[-1]["status"] == "failed"


@pytest.mark.weekly
def test_ctrl_c_ends_all_ranks_and_none_gives_a_traceback(tmp_path):
    log = tmp_path / "run.jsonl"
    process = runner.start(2, *SMALL, "--epochs", 1000, "--log-file", log, OMP_NUM_THREADS="2")
    runner.wait_for(lambda: log.exists() and '"epoch"' in log.read_text(), "the first epoch")
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert len(ranks) == 2 and log_records(log)[0]["threads"] == 2, "the user's number counts"
    process.send_signal(signal.SIGINT)  # torchrun's ranks are sessions of their own: a terminal reaches torchrun alone
    output, _ = process.communicate(timeout=60)
    assert psutil.wait_procs(ranks, timeout=30)[1] == [], "ranks are still alive"
    assert "main.py\", line" not in output, "a rank gave a traceback"  # torchrun's own is not ours to mend
    assert runs.read_run(log)["status"][0] == "failed"  # each rank gets SIGINT, and 30 s to end its log


def test_torchrun_is_told_the_status_of_a_refusal():
    """All that can be wrong is tried in test_bad_input.py, in its own process."""
    done = runner.torchrun(3, "--samples", 2)
    assert done.returncode == 1 and "main.py: error: --samples 2" in done.stderr and "exitcode  : 2" in done.stderr


def failing(tmp_path, line):
    """A program whose model runs `line` on rank 1 in its second training step."""
    script = tmp_path / "fails.py"
    script.write_text(f"""import os, main
from trainer import models
class Failing(models.ConvNet):
    passes = 0
    def forward(self, images):
        Failing.passes += 1
        if Failing.passes == 2 and os.environ["RANK"] == "1":
            {line}
        return super().forward(images)
models.MODELS["lenet"] = Failing
main.main()
""")
    return script


@pytest.mark.weekly
def test_failing_rank_is_named_with_its_whole_error(tmp_path):
    """torchrun ends the others and shows that rank's traceback, through @record; no error is taken for a wait."""
    message = "the connection of layer 3 timed out in nccl " + 200 * "x" + "\\nits cause stands on the next line"
    done = runner.torchrun(3, *SMALL, "--log-file", tmp_path / "run.jsonl", PYTHONPATH=str(runner.ROOT),
                           script=failing(tmp_path, f'raise RuntimeError("{message}")'))
    assert done.returncode == 1 and "rank(s) 1 waited" not in done.stderr
    failures = done.stderr.split("Failures:")[1]  # Root Cause is rank 0 where both failed within one second
    assert "rank      : 1 (local_rank: 1)" in failures
    for line in message.split("\\n"):
        assert line in failures
    # Rank 0 loses its neighbour, and writes so, unless torchrun's SIGTERM is faster.
    assert runs.read_run(tmp_path / "run.jsonl")["status"].iloc[-1] in ("failed", "unfinished")


@pytest.mark.weekly
def test_lost_loss_stops_the_run(tmp_path):
    done = runner.run(0, *SMALL, "--lr", 1e6, "--log-file", tmp_path / "run.jsonl")
    assert done.returncode == 1 and "try a smaller --lr" in done.stderr
    end = log_records(tmp_path / "run.jsonl")[-1]
    assert end["kind"] == "end" and end["status"] == "failed" and "FloatingPointError" in end["error"]


def alone(monkeypatch, rank, port, address="127.0.0.1"):
    """Why one rank of two, of which the other never comes, cannot join."""
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": address,
                        "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(files.Refused) as refused:
        launch.init_distributed_mode(launch.find_placement("cpu"), timeout=2)
    return str(refused.value)


@pytest.mark.parametrize(("rank", "address", "why"), [
    (0, "127.0.0.1", "1/2 clients joined"), (1, "127.0.0.1", "timed out"), (1, "nohost.invalid", "timed out")])
def test_other_ranks_that_never_come_are_named(rank, address, why, monkeypatch):
    line = alone(monkeypatch, rank, port := rendezvous.free_port(), address)
    assert line.startswith(f"rank {rank} of 2 waited for the others, 2 s at most, at {address}:{port}: ")
    assert why in line


@pytest.mark.parametrize(("rank", "why"), [(0, "cannot listen"), (1, "listens there and does not answer")])
def test_another_program_at_the_masters_port_is_named(rank, why, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # takes the connection and says nothing
        assert why in alone(monkeypatch, rank, stranger.getsockname()[1])


@pytest.mark.weekly
def test_first_run_without_network_goes_on_with_synthetic_data_and_says_so(tmp_path):
    no_network = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "PATH": "/nowhere"}  # no npm
    options = ["--samples", 640, "--test-samples", 100, "--epochs", 1, "--data-path", tmp_path / "data"]
    log = tmp_path / "run.jsonl"
    done = runner.run(2, "--dataset", "auto", *options, "--log-file", log, **no_network)
    assert done.returncode == 0, done.stderr
    assert "cifar10 could not be had" in done.stderr and "SYNTHETIC" in done.stderr
    assert log_records(log)[0]["synthetic"] is True and log_records(log)[0]["dataset"] == "synthetic"
