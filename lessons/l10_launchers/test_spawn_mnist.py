"""spawn_mnist.py: each launcher trains the same model, and none leaves a process."""

import os
import re
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from course import rendezvous, runs
from lessons.l10_launchers import spawn_mnist
from tests import runner
from trainer import data, models

SCRIPT = "lessons/l10_launchers/spawn_mnist.py"
# 1206 images in global batches of 96: the last has 54, which 2 and 3 ranks share equally. 1001 test images divide by
# neither 2 nor 3.
SMALL = ["--samples", 1206, "--test-samples", 1001, "--epochs", 2, "--lr", 0.01]
MAIN = ["--dataset", "mnist", "--optimizer", "sgd", "--no-channels-last", *SMALL]  # spawn_mnist's layout


@pytest.fixture(scope="module", autouse=True)
def mnist():
    """(training set, test set); skips where no source answers."""
    try:
        return data.get_dataset("mnist", runner.ROOT / "data")
    except ConnectionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{way to start: (weights, console)} with 96 images a step over all ranks, 3 and 2 of them."""
    folder, results = tmp_path_factory.mktemp("weights"), {}
    for way, script, options in (
            ("mp.spawn", SCRIPT, [*SMALL, "--batch-size", 32, "--n-gpus", 3, "--device", "cpu",
                                  "--port", rendezvous.free_port()]),
            ("torch.distributed.launch", "-m", ["torch.distributed.launch", "--nproc_per_node=2", "main.py", *MAIN,
                                                "--batch-size", 48])):
        file = folder / f"{way}.pt"
        done = runner.run(0, *options, "--save-model", file, script=script)
        assert done.returncode == 0, f"{way}: {done.stderr}"
        results[way] = torch.load(file, weights_only=True, map_location="cpu"), done.stdout
    return results


def test_each_launcher_trains_the_same_model(trained):
    torch.manual_seed(0)
    start = models.ConvNet(channels=1, image_size=28).state_dict()
    spawned, launched = (weights for weights, _ in trained.values())
    assert set(spawned) == set(launched) == set(start), "the saved names are the plain model's"
    for name, value in launched.items():
        assert (value - start[name]).abs().max() > 1e-3, f"{name} has not moved, so it can show nothing"
        assert (spawned[name] - value).abs().max() < 1e-5, name


def test_reported_accuracy_is_that_of_the_saved_model_on_every_test_image_once(trained, mnist, tmp_path):
    weights, console = trained["mp.spawn"]
    model = models.ConvNet(channels=1, image_size=28)
    model.load_state_dict(weights)
    images, labels = mnist[1].first(1001).__getitems__(range(1001))
    with torch.no_grad():
        hits = (model(images).argmax(1) == labels).sum().item()
    (tmp_path / "console.txt").write_text(console)
    epochs = runs.read_run(tmp_path / "console.txt")
    assert list(epochs["epoch"]) == [0, 1] and epochs["loss"][1] < epochs["loss"][0]
    assert epochs["val_accuracy"][1] == pytest.approx(hits / 1001, abs=1e-4)


@pytest.mark.parametrize(("args", "message"), [
    ({"port": -1}, "--port -1 is no port"),
    ({"samples": 60_001}, "--samples must be 1 (one a rank) to 60000"),
    ({"n_gpus": 3, "samples": 2}, "--samples must be 3"),
    ({"n_gpus": 3, "device": "auto"}, "--n-gpus 3, but torch sees 2"),
    ({"save_model": "/dev/null/model.pt"}, "--save-model: cannot write in /dev/null"),
    ({"data_path": "/dev/null/data"}, "--data-path: [Errno 20] Not a directory"),
])
def test_what_cannot_work_is_refused_before_anything_is_started(args, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("RANK", raising=False)
    usual = {"device": "cpu", "n_gpus": 1, "samples": 9, "test_samples": 9, "port": 0, "save_model": None}
    with pytest.raises(ValueError, match=re.escape(message)):
        spawn_mnist.check(SimpleNamespace(**{**usual, "data_path": runner.ROOT / "data", **args}))


def test_a_launcher_or_a_port_in_use_is_refused(refused):
    assert "plain python" in refused(spawn_mnist, *SMALL, ranks=2)
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        assert f"--port {port}" in refused(spawn_mnist, "--n-gpus", 2, "--device", "cpu", "--port", port)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_gpus_each_rank_has_its_own(tmp_path):
    gpus = torch.cuda.device_count()
    done = runner.run(0, *SMALL, "--n-gpus", gpus, "--save-model", tmp_path / "model.pt", script=SCRIPT)
    assert done.returncode == 0 and f"{gpus} process(es) on the GPUs; " in done.stdout, done.stderr
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {value.device.type for value in weights.values()} == {"cuda"}


# ------------------------------------------------------------------------------------------- when it does not end well


@pytest.fixture
def running(tmp_path):
    """(the parent, its two ranks, the file of what they say) of a run that would train for hours."""
    console = tmp_path / "console.txt"
    with console.open("w") as file:
        process = subprocess.Popen([sys.executable, SCRIPT, *map(str, SMALL), "--epochs", "100000", "--n-gpus", "2",
                                    "--device", "cpu", "--timeout", "10"], cwd=runner.ROOT, env=runner.environment(),
                                   stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    family = []
    try:
        runner.wait_for(lambda: "Epoch: 0" in console.read_text(), f"the first epoch: {console.read_text()}")
        family = [child for child in psutil.Process(process.pid).children(recursive=True)
                  if "spawn_main" in " ".join(child.cmdline())]
        assert len(family) == 2
        yield process, family, console
    finally:
        for member in [*family, psutil.Process(process.pid)] if process.poll() is None else family:
            if member.is_running():
                member.kill()
        process.wait(30)


def test_ranks_end_with_their_parent(running):
    process, family, console = running
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C in a terminal: the ranks get it, too
    assert process.wait(60) == 130 and "Traceback" not in console.read_text()
    assert psutil.wait_procs(family, timeout=30)[1] == [], "ranks are still alive"


def test_a_rank_that_is_killed_ends_all(running):
    process, family, _ = running
    family[1].kill()
    assert process.wait(runner.LIMIT) == 1
    assert psutil.wait_procs(family, timeout=30)[1] == [], "ranks are still alive"
