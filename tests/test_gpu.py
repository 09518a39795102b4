"""main.py on GPUs: what no other test can show. Skips where there is none."""

import json

import pytest
import torch

from tests import runner
from trainer import data, models

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no GPU")]
SMALL = ["--dataset", "synthetic", "--samples", 1200, "--test-samples", 1001, "--epochs", 2, "--optimizer", "sgd",
         "--lr", 0.01, "--batch-size", 60]


def train(folder, ranks, *options):
    log, weights = folder / "run.jsonl", folder / "weights.pt"
    done = runner.torchrun(ranks, *SMALL, *options, "--log-file", log, "--save-model", weights)
    assert done.returncode == 0, done.stderr
    run, *epochs, end = map(json.loads, log.read_text().splitlines())
    assert run["device"] == "cuda" and end["status"] == "completed"
    return run, epochs, torch.load(weights, map_location="cpu", weights_only=True), done.stderr


@pytest.mark.parametrize(("ranks", "options", "backend"), [
    (0, [], None), (0, ["--strategy", "dp"], None), (1, [], "nccl"), (1, ["--backend", "gloo"], "gloo"),
])
def test_one_gpu_in_every_way(ranks, options, backend, tmp_path):
    run, epochs, _, _ = train(tmp_path, ranks, *options)
    assert run["backend"] == backend and run["device_name"] == torch.cuda.get_device_name(0)
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert epochs[0]["seconds"] == pytest.approx(sum(epochs[0][f"{p}_seconds"] for p in
                                                     ("data", "forward", "backward", "update")))


def test_more_ranks_than_gpus_share_them_over_gloo_and_say_so(tmp_path):
    run, _, _, said = train(tmp_path, GPUS + 1)
    assert run["backend"] == "gloo" and f"{GPUS + 1} ranks share {GPUS} GPU(s)" in said
    refused = runner.run(GPUS + 1, *SMALL, "--backend", "nccl")
    assert refused.returncode == 2 and "--backend nccl needs a GPU for each" in refused.stderr


def test_sync_bn_reports_the_model_that_it_saves(tmp_path):
    _, epochs, weights, _ = train(tmp_path, GPUS, "--model", "resnet", "--sync-bn")
    model = models.SmallResNet()
    model.load_state_dict(weights)
    images, labels = data.get_dataset("synthetic", runner.ROOT / "data")[1].first(1001).__getitems__(range(1001))
    with torch.no_grad():
        hits = (model.eval()(images).argmax(1) == labels).sum().item()
    assert abs(epochs[-1]["val_accuracy"] * 1001 - hits) <= 2  # the CPU rounds otherwise
