"""Lesson 06b: the answers of DDP, on 3 ranks; its notebook has 2."""

import copy
import json

import pytest
import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from lessons.l06b_ddp_traps import show, traps
from tests import runner
from trainer import models

ROUNDING = 1e-5
RANKS = 3


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of every question, and the saved weights."""
    folder = tmp_path_factory.mktemp("traps")
    done = runner.run(RANKS, "--step", *traps.QUESTIONS, "--dataset", "synthetic", "--steps", 3, "--out",
                      folder / "answers.json", script="lessons/l06b_ddp_traps/traps.py")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["answers.json", "answers.pt"]
    return {**json.loads((folder / "answers.json").read_text()),
            "weights": torch.load(folder / "answers.pt", weights_only=True)}


def test_when_ddp_is_one_process_and_when_not(results):
    equality = results["equality"]
    same = {"equal shards", "unequal shards, loss weighted", "BatchNorm over all ranks"}
    assert {name for name, off in equality["weights"].items() if off < show.ROUNDING} == same
    assert all(off > 1e-4 for name, off in equality["weights"].items() if name not in same)


def test_batchnorm_over_all_ranks_has_one_running_mean_and_two_messages_a_layer(results):
    batchnorm = results["equality"]["batchnorm"]
    own, shared = batchnorm["messages"].values()
    assert shared - own == 2 * batchnorm["layers"] > 2
    own, shared = batchnorm["running_means"].values()
    assert own > 1e-4 and shared == 0
    assert batchnorm.get("torch.nn.SyncBatchNorm", 0) < show.ROUNDING, "on a GPU"


def test_batchnorm_over_one_rank_is_torchs(monkeypatch):
    """Outputs, gradients and running statistics, in training and after it."""
    monkeypatch.setattr(traps.dist, "all_reduce", lambda tensor: None)
    torch.manual_seed(0)
    theirs = torch.nn.BatchNorm2d(3, dtype=torch.float64)
    torch.nn.init.normal_(theirs.weight), torch.nn.init.normal_(theirs.bias)
    ours = traps.over_ranks(copy.deepcopy(theirs))
    assert type(ours) is traps.BatchNormOverRanks
    inputs = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    seen = []
    for layer in (theirs, ours):
        x = inputs.clone().requires_grad_()
        layer(x).square().mul(torch.arange(5)).sum().backward()
        seen.append([x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var,
                     layer.eval()(inputs)])
    for mine, wanted in zip(seen[1], seen[0], strict=True):
        torch.testing.assert_close(mine, wanted)


def test_no_sync_in_the_right_place_saves_and_in_the_wrong_place_does_not(results):
    ways = results["no_sync"]
    assert {name: way["all_reduces"] for name, way in ways.items()} == {
        "synchronise_each": 4, "synchronise_last": 1, "first_try": 4, "never": 0, "around_ddp": 0}
    for name in ("synchronise_each", "synchronise_last", "first_try"):
        assert ways[name]["between_ranks"] == 0 and ways[name]["from_one_process"] < ROUNDING
    for name in ("never", "around_ddp"):
        assert ways[name]["between_ranks"] > 1e-3 and ways[name]["from_one_process"] > 1e-3


def test_an_unused_parameter_raises_in_the_second_step(results):
    silent, searching = results["unused"]["False"], results["unused"]["True"]
    assert silent["steps"] == 1
    assert silent["error"].startswith("Expected to have finished reduction")
    assert "find_unused_parameters=True" in silent["error"]
    assert searching == {"error": None, "steps": 3, "tried": 3}


def test_a_model_that_changes_its_type_after_ddp_is_no_longer_synchronised(results):
    before, after = results["order"].values()
    assert before == 0 and after > 1e-3


def test_the_saved_weights_load_without_ddp(results):
    models.ConvNet().load_state_dict(results["weights"])
    assert results["save"]["names"] == {"DDP(model)": "module.conv1.weight", "DDP(model).module": "conv1.weight"}
    state = {f"module.{name}": value for name, value in results["weights"].items()}
    consume_prefix_in_state_dict_if_present(state, "module.")
    models.ConvNet().load_state_dict(state)


def test_every_rank_holds_everything(results):
    default, view = results["memory"]
    size = 4 * default["values"]
    for rank in default["ranks"]:
        assert rank["parameters"] == rank["gradients"] == rank["buckets"] == size
        assert 2 * size <= rank["Adam's state"] < 2 * size + 100
    for rank in view["ranks"]:
        assert rank["gradients"] == 0 and rank["parameters"] == rank["buckets"] == size
    assert len(default["ranks"]) == RANKS
