"""The loops under Lightning Fabric, Accelerate and Ray train main.py's model, so that their times can be compared."""

import subprocess
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from course import processes, runs
from tests import runner

# 601 images: they do not divide by 2 or 3, and the last batch is smaller
SMALL = ["--dataset", "synthetic", "--samples", 601, "--test-samples", 101, "--epochs", 2, "--batch-size", 32,
         "--optimizer", "sgd"]
FRAMEWORKS = {"fabric": "lightning_fabric", "accelerate": "accelerate"}
PACKAGES = {**FRAMEWORKS, "ray": "ray"}  # Ray starts its ranks by itself: it has a test of its own
pytestmark = pytest.mark.weekly
each_framework = pytest.mark.parametrize("name", FRAMEWORKS)
each_package = pytest.mark.parametrize("name", PACKAGES)


def skip_unless_installed(*packages):
    if not any(map(find_spec, packages)):
        pytest.skip(f"{' and '.join(packages)} not installed (pip install -e '.[rivals]')")


def train(folder, ranks, script, *options):
    """(weights, the run log as a table, the console) of a run."""
    weights, log = folder / "model.pt", folder / "run.jsonl"
    done = runner.run(ranks, *SMALL, "--save-model", weights, "--log-file", log, *options, script=script)
    assert done.returncode == 0, done.stderr
    return torch.load(weights, weights_only=True), runs.read_run(log), done.stdout + done.stderr


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    skip_unless_installed(*PACKAGES.values())
    return train(tmp_path_factory.mktemp("main"), 2, "main.py", "--no-channels-last")  # the frameworks' own layout


@each_framework
def test_it_trains_the_model_of_main_py_and_writes_its_log(name, expected, tmp_path):
    skip_unless_installed(FRAMEWORKS[name])
    compare(train(tmp_path, 2, f"scripts/rivals/{name}_loop.py"), expected, FRAMEWORKS[name], tmp_path / "console.txt")


def compare(trained, expected, package, console):
    """Both: what train() gives, of the framework and of main.py."""
    weights, log, _ = expected
    theirs, their_log, printed = trained
    assert theirs.keys() == weights.keys()
    for parameter, value in weights.items():
        assert (theirs[parameter].double() - value.double()).abs().max() < 1e-5, parameter
    assert set(their_log["status"]) == {"completed"} and set(their_log["note"]) == {""}
    assert their_log["framework"][0].split()[0].replace("-", "_") == package
    for column in ("loss", "accuracy", "val_loss", "val_accuracy", "weight_norm"):
        assert their_log[column].tolist() == pytest.approx(log[column].tolist(), abs=1e-5), column
    for column in ("world_size", "strategy", "samples", "batch_size", "threads", "optimizer", "device"):
        assert their_log[column].tolist() == log[column].tolist(), column
    assert set(log) | {"framework"} == set(their_log)
    console.write_text(printed)
    assert runs.read_run(console)["loss"].tolist() == pytest.approx(log["loss"].tolist(), abs=1e-4)


@pytest.fixture(scope="module")
def under_ray(tmp_path_factory):
    """(what train() gives, the process id, the home folder, the processes that are left) of two ranks under Ray."""
    skip_unless_installed("ray")
    folder, mark = tmp_path_factory.mktemp("ray"), uuid.uuid4().hex
    home, weights, log = folder / "home", folder / "model.pt", folder / "run.jsonl"
    home.mkdir()
    env = processes.environment(mark, runner.environment(OMP_NUM_THREADS="1", HOME=str(home)))
    command = runner.command(0, "scripts/rivals/ray_loop.py", *SMALL, "--save-model", weights, "--log-file", log)
    for _ in range(3):  # Ray waits 30 s for its own processes to start, which is little where other tests run, too
        process = subprocess.Popen(command, cwd=runner.ROOT, env=env, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        try:
            console, _ = process.communicate(timeout=2 * runner.LIMIT)  # seven processes, each imports Ray and PyTorch
            left = processes.marked(mark)
        finally:
            processes.end(mark)
        if "timed out during startup" not in console:
            break
    assert process.returncode == 0, console
    return (torch.load(weights, weights_only=True), runs.read_run(log), console), process.pid, home, left


@pytest.mark.timeout(7 * runner.LIMIT)  # the fixture's three tries
def test_ray_trains_the_model_of_main_py_and_leaves_nothing(under_ray, expected, tmp_path):
    trained, pid, home, left = under_ray
    compare(trained, expected, "ray", tmp_path / "console.txt")
    assert set(trained[1]["launcher"]) == {"ray"}
    assert (left, [*home.iterdir()], [*Path("/tmp").glob(f"ray-{pid}-*")]) == ([], [], [])


@each_package
def test_without_the_framework_it_says_what_to_install(name, tmp_path):
    script = tmp_path / "without.py"
    script.write_text(f"""import importlib.util, runpy, sys
whole = importlib.util.find_spec
importlib.util.find_spec = lambda wanted, *rest: None if wanted == {PACKAGES[name]!r} else whole(wanted, *rest)
sys.argv[0] = "scripts/rivals/{name}_loop.py"
runpy.run_path(sys.argv[0], run_name="__main__")
""")
    done = runner.run(0, *SMALL, "--log-file", tmp_path / "run.jsonl", script=script)
    assert done.returncode == 2 and not (tmp_path / "run.jsonl").exists()
    assert done.stderr == (f"{name}_loop.py: error: {PACKAGES[name]} is not installed: "
                           "pip install -e '.[rivals]'\n")
