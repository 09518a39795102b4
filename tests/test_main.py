"""main.py as it is used: real processes, real gloo ranks, real logs."""

import json
import math
import signal
import socket
import subprocess
import sys

import psutil
import pytest
import torch

from course import rendezvous, runs
from tests import runner
from trainer import data, models

# 1206 images in global batches of 96: the last batch has 54, which 2 and 3 ranks share equally. 1001 test images divide
# by neither. Not Adam: it turns a gradient that is all rounding error into a full step.
SMALL = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 1001, "--epochs", 2, "--optimizer", "sgd",
         "--lr", 0.01]


def log_records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(folder, ranks, *options, global_batch=96):
    """(weights, epoch records) of a completed run."""
    log, weights = folder / f"{ranks}.jsonl", folder / f"{ranks}.pt"
    done = runner.run(ranks, *SMALL, "--batch-size", global_batch // max(1, ranks), "--log-file", log, "--save-model",
                      weights, *options)
    assert done.returncode == 0, done.stderr
    records = log_records(log)
    assert [r["kind"] for r in records] == ["run", "epoch", "epoch", "end"]
    assert records[0]["world_size"] == max(1, ranks)
    return torch.load(weights, weights_only=True), records[1:3]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), 0, "--no-shuffle")


@pytest.mark.promise("one model")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp_equals_one_process_on_the_whole_batch(ranks, one_process, tmp_path):
    (expected, expected_epochs), (weights, epochs) = one_process, train(tmp_path, ranks, "--no-shuffle")
    torch.manual_seed(0)
    start = models.ConvNet().state_dict()
    for name, value in expected.items():
        assert (value - start[name]).abs().max() > 1e-3, f"{name} has not moved, so it can show nothing"
        assert (weights[name] - value).abs().max() < 1e-5, name
    for ours, theirs in zip(epochs, expected_epochs, strict=True):
        assert ours["accuracy"] == theirs["accuracy"]  # hits over all ranks, not one rank's
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["val_accuracy"] == theirs["val_accuracy"]  # 1001 images, each exactly once
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], abs=1e-5)


def test_shuffled_ranks_together_see_what_one_process_sees(two_ranks, tmp_path):
    expected, weights = train(tmp_path, 0)[0], two_ranks[0]
    assert max((weights[name] - value).abs().max() for name, value in expected.items()) < 1e-5


@pytest.mark.promise("each image once")
def test_reported_evaluation_is_that_of_the_saved_model(tmp_path):
    """With BatchNorm the ranks' statistics differ: what is reported must be what is saved."""
    weights, epochs = train(tmp_path, 3, "--model", "resnet", "--samples", 402)
    model = models.SmallResNet()
    model.load_state_dict(weights)
    model.eval()
    images, labels = data.get_dataset("synthetic", runner.ROOT / "data")[1].first(1001).__getitems__(range(1001))
    with torch.no_grad():
        logits = model(images)
    assert epochs[-1]["val_accuracy"] * 1001 == pytest.approx((logits.argmax(1) == labels).sum().item(), abs=1e-6)
    assert epochs[-1]["val_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), abs=1e-5)


def test_ddp_sends_no_batchnorm_statistics_at_each_step(tmp_path):
    """evaluate() does, once: the test above. DDP's default would give rank 1 the count of rank 0."""
    script = tmp_path / "buffers.py"
    script.write_text("""import main, torch, utils
from trainer import launch, models, options
args = options.get_parser().parse_args(["--strategy", "ddp"])
args.device, here = "cpu", launch.find_placement("cpu", "gloo")
launch.init_distributed_mode(here)
model = main.parallelise(models.SmallResNet(), args, here)
counts = [buffer for name, buffer in model.named_buffers() if "num_batches" in name]
for count in counts:
    count.add_(100 * here.rank)
for _ in range(2):
    model(torch.randn(4, 3, 32, 32)).sum().backward()
print(f"rank {here.rank}: {sorted({count.item() for count in counts})}")
launch.end_distributed_mode()
""")
    done = runner.run(2, script=script)
    assert sorted(done.stdout.splitlines()) == ["rank 0: [2]", "rank 1: [102]"], done.stderr


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return train(tmp_path_factory.mktemp("two"), 2)


def losses(epochs):
    return [record["loss"] for record in epochs]


@pytest.mark.parametrize("options", [["--bf16"], ["--comm-hook", "bf16"],
                                     pytest.param(["--comm-hook", "fp16"], marks=pytest.mark.weekly)])
def test_what_computes_otherwise_trains_nearly_the_same(options, two_ranks, tmp_path):
    expected, changed = losses(two_ranks[1]), losses(train(tmp_path, 2, *options)[1])
    assert changed != expected, "the option changed nothing"
    assert changed == pytest.approx(expected, rel=0.05) and changed[1] < changed[0]


@pytest.mark.weekly
def test_a_compiled_model_trains_the_same_on_two_ranks(tmp_path):
    runs_of = {}
    for name, options in {"plain": [], "compiled": ["--compile"]}.items():
        (tmp_path / name).mkdir()
        runs_of[name] = losses(train(tmp_path / name, 2, "--samples", 192, *options)[1])
    assert runs_of["compiled"] == pytest.approx(runs_of["plain"], rel=1e-3)


def test_log_is_read_back_whole(forked_python, tmp_path):
    done = runner.torchrun(2, *SMALL, "--log-file", tmp_path / "run.jsonl", PYTHON_EXEC=forked_python)
    assert done.returncode == 0, done.stderr
    frame = runs.read_run(tmp_path / "run.jsonl")
    records = log_records(tmp_path / "run.jsonl")
    assert list(frame["epoch"]) == [0, 1] and set(frame["status"]) == {"completed"} and set(frame["note"]) == {""}
    for epoch, record in enumerate(records[1:3]):
        for name in set(record) - {"kind", "time", "run_id", "epoch", "crc"}:
            assert frame[name][epoch] == record[name], name
    for name in set(records[0]) - {"kind", "time", "log_file", "data_path", "crc"}:
        if records[0][name] is not None:
            assert (frame[name] == records[0][name]).all(), name
    assert bool(frame["synthetic"].all()) and "SYNTHETIC" in done.stderr + done.stdout
    phases = records[1]["data_seconds"] + records[1]["forward_seconds"] + records[1]["backward_seconds"]
    assert records[1]["seconds"] == pytest.approx(phases + records[1]["update_seconds"])
    assert records[1]["images_per_second"] == pytest.approx(1206 / records[1]["seconds"])
    console = tmp_path / "console.txt"
    console.write_text(done.stdout + done.stderr)
    assert list(runs.read_run(console)["loss"]) == pytest.approx(list(frame["loss"]), abs=1e-4)


def test_ctrl_c_ends_one_process_quietly(tmp_path):
    log = tmp_path / "run.jsonl"
    process = runner.start(0, *SMALL, "--epochs", 1000, "--log-file", log)
    runner.wait_for(lambda: log.exists() and '"epoch"' in log.read_text(), "the first epoch")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in output and "Interrupted." in output
    assert log_records(log)[-1]["status"] == "failed"


def test_ctrl_c_ends_all_ranks_and_none_gives_a_traceback(forked_python, tmp_path):
    log = tmp_path / "run.jsonl"
    process = runner.start(3, *SMALL, "--epochs", 1000, "--log-file", log, PYTHON_EXEC=forked_python)
    runner.wait_for(lambda: log.exists() and '"epoch"' in log.read_text(), "the first epoch")
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert len(ranks) == 3
    process.send_signal(signal.SIGINT)  # torchrun's ranks are sessions of their own: a terminal reaches torchrun alone
    output, _ = process.communicate(timeout=60)
    assert psutil.wait_procs(ranks, timeout=30)[1] == [], "ranks are still alive"
    assert "main.py\", line" not in output, "a rank gave a traceback"  # torchrun's own is not ours to mend
    assert runs.read_run(log)["status"][0] == "failed"  # each rank gets SIGINT, and 30 s to end its log


def test_an_appended_log_keeps_the_earlier_run_and_refuses_a_second_writer_and_a_kill_leaves_it_unfinished(tmp_path):
    log = tmp_path / "run.jsonl"
    assert runner.run(0, *SMALL, "--log-file", log).returncode == 0
    earlier = log.read_text()
    process = runner.start(0, *SMALL, "--epochs", 1000, "--log-file", log)
    runner.wait_for(lambda: '"epoch"' in log.read_text()[len(earlier):], "the second run's first epoch")
    refused = runner.run(0, *SMALL, "--log-file", log)
    runner.end(process, signal.SIGKILL)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [f"main.py: error: {log}: another run is writing to it"]
    assert log.read_text().startswith(earlier)
    frame = runs.read_run(log)
    assert set(frame["status"]) == {"unfinished"} and frame["epoch"][0] == 0


def test_bad_input_is_one_line_and_status_2(tmp_path):
    """All that can be wrong is tried in test_bad_input.py, in its own process."""
    done = runner.run(0, "--log-file", tmp_path / "run.jsonl", "--sync-bn")
    assert done.returncode == 2 and done.stdout == "" and not list(tmp_path.iterdir())
    assert len(done.stderr.splitlines()) == 1 and "main.py: error: --sync-bn needs DDP on GPUs" in done.stderr


def test_torchrun_is_told_the_status_of_a_refusal(forked_python):
    done = runner.torchrun(3, "--samples", 2, PYTHON_EXEC=forked_python)
    assert done.returncode == 1 and "main.py: error: --samples 2" in done.stderr and "exitcode  : 2" in done.stderr


def test_failing_rank_is_named_with_its_traceback(forked_python, tmp_path):
    """A rank dies in the second epoch: torchrun ends the others and shows that rank's traceback, through @record."""
    script = tmp_path / "rank_1_fails.py"
    script.write_text("""import os, main, utils
whole = utils.evaluate
def evaluate(*args):
    if os.environ["RANK"] == "1":
        raise ZeroDivisionError("on purpose")
    return whole(*args)
utils.evaluate = evaluate
main.main()
""")
    done = runner.torchrun(3, *SMALL, "--log-file", tmp_path / "run.jsonl", script=script, PYTHON_EXEC=forked_python)
    assert done.returncode == 1
    failures = done.stderr.split("Failures:")[1]  # Root Cause is rank 0 where both failed within one second
    assert "rank      : 1 (local_rank: 1)" in failures and "ZeroDivisionError: on purpose" in failures
    # Rank 0 loses its neighbour, and writes so, unless torchrun's SIGTERM is faster.
    assert runs.read_run(tmp_path / "run.jsonl")["status"][0] in ("failed", "unfinished")


def test_dropout_differs_from_rank_to_rank_and_the_weights_do_not(tmp_path):
    script = tmp_path / "dropout.py"
    script.write_text(f"""import os, main, models, torch
class Dropping(models.ConvNet):
    def forward(self, images):
        global kept, weights
        kept, weights = torch.nn.functional.dropout(torch.ones(1000), training=self.training), self.fc3.weight
        return super().forward(images)
models.MODELS["lenet"] = Dropping
whole = main.utils.evaluate
def evaluate(raw_model, *others):
    torch.save((kept, weights), f"{tmp_path}/{{os.environ['RANK']}}.pt")
    return whole(raw_model, *others)
main.utils.evaluate = evaluate
main.main()
""")
    done = runner.run(3, *SMALL, "--epochs", 1, script=script)
    assert done.returncode == 0, done.stderr
    kept, weights = zip(*(torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(3)), strict=True)
    assert all(0.3 < (one == 0).float().mean() < 0.7 for one in kept), "dropout was at work"
    assert len({tuple(one.tolist()) for one in kept}) == 3, "two ranks drop the same"
    assert all(torch.equal(weights[0], one) for one in weights)


def test_lost_loss_stops_the_run(tmp_path):
    done = runner.run(0, *SMALL, "--lr", 1e6, "--log-file", tmp_path / "run.jsonl")
    assert done.returncode == 1 and "try a smaller --lr" in done.stderr
    end = log_records(tmp_path / "run.jsonl")[-1]
    assert end["kind"] == "end" and end["status"] == "failed" and "FloatingPointError" in end["error"]


def alone(rank, port, address="127.0.0.1", timeout=2):
    """The last line of main.py, as one rank of two, of which the other never comes."""
    done = runner.run(0, *SMALL, "--timeout", timeout, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
                      LOCAL_WORLD_SIZE="1", MASTER_ADDR=address, MASTER_PORT=str(port))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.promise("bounded waits")
@pytest.mark.parametrize(("rank", "address", "why"), [
    (0, "127.0.0.1", "1/2 clients joined"), (1, "127.0.0.1", "timed out"), (1, "nohost.invalid", "timed out")])
def test_other_ranks_that_never_come_are_named(rank, address, why):
    line = alone(rank, port := rendezvous.free_port(), address)
    assert line.startswith(f"rank {rank} of 2 waited for the others, 2.0 s at most, at {address}:{port}: ")
    assert why in line


@pytest.mark.promise("bounded waits")
def test_another_program_at_the_masters_port_does_not_hang_us():
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # takes the connection and says nothing
        line = alone(1, port := stranger.getsockname()[1])
    assert f"at 127.0.0.1:{port}: another program listens there and does not answer" in line


def test_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as other:
        line = alone(0, port := other.getsockname()[1])
    assert line == f"rank 0 of 2 cannot listen at 127.0.0.1:{port}: another program does. Choose another MASTER_PORT"


def with_little_data(folder, line=""):
    """A script that runs main.py with a small synthetic set."""
    (folder / "little.py").write_text(f"""import main, os, sys
from trainer import data
data.DATASETS["synthetic"] = data.DATASETS["synthetic"]._replace(sizes=(1206, 1001))
{line}
main.main()
""")
    return folder / "little.py"


def test_each_nodes_first_rank_vouches_for_its_data(tmp_path, monkeypatch):
    """Two nodes of two ranks, each with a folder of its own. The second one has a damaged file: no rank maps it."""
    port = rendezvous.free_port()
    for node in (0, 1):
        (tmp_path / str(node)).mkdir()
    monkeypatch.setitem(data.DATASETS, "synthetic", data.DATASETS["synthetic"]._replace(sizes=(1206, 1001)))
    data.get_dataset("synthetic", tmp_path / "0")
    whole = (tmp_path / "0" / "synthetic.pt").read_bytes()
    (tmp_path / "1" / "synthetic.pt").write_bytes(whole[:len(whole) // 2])
    script = with_little_data(tmp_path, f'sys.argv += ["--data-path", {str(tmp_path)!r} + "/" + os.environ["NODE"]]')
    tasks = runner.together([{"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "NODE": str(rank // 2),
                              "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                             for rank in range(4)], *SMALL, "--epochs", 1, script=script)
    assert [task.returncode for task in tasks] == [0] * 4, [task.stderr for task in tasks]
    assert (tmp_path / "1" / "synthetic.pt").stat().st_size == len(whole)
    assert (tmp_path / "1" / "synthetic.damaged-1").exists()


@pytest.mark.parametrize("strategy", ["dp", "ddp"])
def test_one_process_with_any_strategy_trains_the_same_model(strategy, one_process, tmp_path):
    weights, _ = train(tmp_path, 0, "--no-shuffle", "--strategy", strategy)
    assert all((weights[name] - value).abs().max() < 1e-6 for name, value in one_process[0].items())


def test_threads_are_those_that_torchrun_gives_or_the_user(forked_python, tmp_path):
    for set_by_user, expected in ((None, 1), ("2", 2)):
        log = tmp_path / f"{set_by_user}.jsonl"
        done = runner.torchrun(2, "--dataset", "synthetic", "--samples", 64, "--test-samples", 8, "--epochs", 1,
                               "--log-file", log, PYTHON_EXEC=forked_python, OMP_NUM_THREADS=set_by_user)
        assert done.returncode == 0, done.stderr
        assert log_records(log)[0]["threads"] == expected


def test_mnist_and_padding_are_said(tmp_path):
    done = runner.run(3, "--dataset", "mnist", "--samples", 1000, "--test-samples", 100, "--epochs", 1)
    if "could not be had" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr
    assert "2 image(s) are trained on twice an epoch" in done.stderr
    assert math.isfinite(float(done.stderr.split("Loss: ")[1].split(",")[0]))


def test_first_run_without_network_goes_on_with_synthetic_data_and_says_so(tmp_path):
    no_network = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "PATH": "/nowhere"}  # no npm
    options = ["--samples", 640, "--test-samples", 100, "--epochs", 1, "--data-path", tmp_path / "data"]
    log = tmp_path / "run.jsonl"
    done = runner.run(2, "--dataset", "auto", *options, "--log-file", log, script=with_little_data(tmp_path),
                      **no_network)
    assert done.returncode == 0, done.stderr
    assert "cifar10 could not be had" in done.stderr and "SYNTHETIC" in done.stderr
    assert log_records(log)[0]["synthetic"] is True and log_records(log)[0]["dataset"] == "synthetic"
    refused = runner.run(0, "--dataset", "cifar10", *options, **no_network)
    assert refused.returncode == 2 and "use --dataset synthetic" in refused.stderr and "Traceback" not in refused.stderr


def test_what_a_rank_imports():
    """Each rank pays for every import: no torchvision, pandas or matplotlib, and not torch's compiler either."""
    unwanted = ["torchvision", "pandas", "matplotlib", "torch._inductor", "torch._dynamo.config"]
    script = f"""import sys, main
from course import shortcuts
shortcuts.exit_now = lambda: print([name for name in {unwanted} if name in sys.modules])
sys.argv[1:] = "--dataset synthetic --samples 64 --epochs 1 --test-samples 8 --strategy ddp".split()
main.main()"""
    done = subprocess.run([sys.executable, "-c", script], cwd=runner.ROOT, env=runner.environment(), text=True,
                          capture_output=True, timeout=runner.LIMIT)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
