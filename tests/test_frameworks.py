"""The loops under Lightning Fabric and Accelerate train main.py's model, so that their times can be compared."""

import re
from importlib.util import find_spec

import launch
import pytest
import torch

from course import runs

# 601 images: they do not divide by 2 or 3, and the last batch is smaller
SMALL = ["--dataset", "synthetic", "--samples", 601, "--test-samples", 101, "--epochs", 2, "--batch-size", 32,
         "--optimizer", "sgd"]
FRAMEWORKS = {"fabric": "lightning_fabric", "accelerate": "accelerate"}
each_framework = pytest.mark.parametrize("name", FRAMEWORKS)


def run(ranks, script, *arguments):
    return launch.run(ranks, *arguments, script=script)


def skip_unless_installed(*packages):
    if not any(map(find_spec, packages)):
        pytest.skip(f"{' and '.join(packages)} not installed (requirements-optional.txt)")


def train(folder, ranks, script, *options):
    """(weights, the run log as a table, all that was said)."""
    weights, log = folder / "model.pt", folder / "run.jsonl"
    done = run(ranks, script, *SMALL, "--save-model", weights, "--log-file", log, *options)
    assert done.returncode == 0, done.stderr
    return torch.load(weights, weights_only=True), runs.read_run(log), done.stdout + done.stderr


@pytest.fixture(scope="module", params=[(0, "lenet"), (2, "lenet"), (3, "resnet")], ids=["one", "two", "three"])
def expected(request, tmp_path_factory):
    skip_unless_installed(*FRAMEWORKS.values())
    ranks, model = request.param
    options = ["--model", model]
    return ranks, options, *train(
        tmp_path_factory.mktemp("main"), ranks, "main.py", *options, "--no-channels-last")  # the frameworks' own layout


@each_framework
def test_it_trains_the_model_of_main_py_and_writes_its_log(name, expected, tmp_path):
    skip_unless_installed(FRAMEWORKS[name])
    ranks, options, weights, log, _ = expected
    theirs, their_log, said = train(tmp_path, ranks, f"scripts/rivals/{name}_loop.py", *options)
    assert theirs.keys() == weights.keys()
    for parameter, value in weights.items():
        assert (theirs[parameter].double() - value.double()).abs().max() < 1e-5, parameter
    assert set(their_log["status"]) == {"completed"} and set(their_log["note"]) == {""}
    assert their_log["framework"][0].split()[0].replace("-", "_") == FRAMEWORKS[name]
    for column in ("loss", "accuracy", "val_loss", "val_accuracy", "weight_norm"):
        assert their_log[column].tolist() == pytest.approx(log[column].tolist(), abs=1e-5), column
    for column in ("world_size", "strategy", "samples", "batch_size", "threads", "optimizer", "device"):
        assert their_log[column].tolist() == log[column].tolist(), column
    assert set(log) | {"framework"} == set(their_log)
    console = tmp_path / "console.txt"
    console.write_text(said)
    assert runs.read_run(console)["loss"].tolist() == pytest.approx(log["loss"].tolist(), abs=1e-4)


def test_weights_have_moved(expected):
    """Else the test above could show nothing."""
    import models

    torch.manual_seed(0)
    start = models.MODELS[expected[1][1]](3, 10, 32).state_dict()
    moved = [name for name, value in expected[2].items() if (value.double() - start[name].double()).abs().max() > 1e-4]
    assert set(moved) >= {name for name in start if re.search(r"(conv|fc|body).*weight", name)}


@each_framework
@pytest.mark.parametrize(("options", "said"), [
    (["--strategy", "dp"], "--strategy: NAME decides this; leave it out"),
    (["--dist-url", "tcp://127.0.0.1:1"], "--dist-url: NAME decides this; leave it out"),
    (["--epochs", 0], "0 is not a positive number"),
])
def test_bad_input_is_one_line_and_status_2(name, options, said):
    done = run(0, f"scripts/rivals/{name}_loop.py", *options)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert said.replace("NAME", FRAMEWORKS[name]) in done.stderr


@each_framework
def test_without_the_framework_it_says_what_to_install(name, tmp_path):
    script = tmp_path / "without.py"
    script.write_text(f"""import importlib.util, runpy, sys
whole = importlib.util.find_spec
importlib.util.find_spec = lambda wanted, *rest: None if wanted == {FRAMEWORKS[name]!r} else whole(wanted, *rest)
sys.argv[0] = "scripts/rivals/{name}_loop.py"
runpy.run_path(sys.argv[0], run_name="__main__")
""")
    done = run(0, script, *SMALL, "--log-file", tmp_path / "run.jsonl")
    assert done.returncode == 2 and not (tmp_path / "run.jsonl").exists()
    assert done.stderr == (f"{name}_loop.py: error: {FRAMEWORKS[name]} is not installed: "
                           "pip install -r requirements-optional.txt\n")
