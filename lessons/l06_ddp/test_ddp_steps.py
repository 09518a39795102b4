"""Lesson 06: the five steps to MyDDP, and the answers of DDP, on 3 ranks; its notebook has 2."""

import copy
import inspect
import json
from pathlib import Path

import pytest
import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

import models
from course import rendezvous
from lessons.l06_ddp import buckets, check, ddp_questions, show, wrapped_training
from tests import runner

ROUNDING = 1e-5
RANKS, STEPS = 3, 4
SCRIPT, QUESTIONS = (f"lessons/l06_ddp/{name}.py" for name in ("wrapped_training", "ddp_questions"))
STEPS_TO_DDP = [check.same_weights, check.mean_gradients, check.one_message, check.overlapped, check.any_backward]
TRAINED = {step.number: step.trains for step in STEPS_TO_DDP} | {"none": "none", "ddp": "ddp"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of every step and question, and the saved weights."""
    folder, both = tmp_path_factory.mktemp("ddp_steps"), ("--dataset", "synthetic", "--steps", STEPS)
    finished = [
        runner.run(RANKS, "--wrapper", *TRAINED.values(), *both, "--out", folder / "steps.json", script=SCRIPT),
        runner.run(RANKS, "--step", *ddp_questions.QUESTIONS, *both, "--width", 600, "--bucket-mb", 0.05, 1000,
                   "--wrapper", TRAINED[5], "--out", folder / "answers.json", script=QUESTIONS)]
    assert [done.returncode for done in finished] == [0, 0], [done.stderr for done in finished]
    assert sorted(path.name for path in folder.iterdir()) == ["answers.json", "answers.pt", "steps.json"]
    steps, answers = (json.loads((folder / f"{name}.json").read_text()) for name in ("steps", "answers"))
    return {**{name: steps[trained] for name, trained in TRAINED.items()}, **answers,
            "weights": torch.load(folder / "answers.pt", weights_only=True)}


def test_nothing_and_broadcast_drift_apart(results):
    assert all(apart > 0.01 for apart in results["none"]["between_ranks"])
    start, *later = results[1]["between_ranks"]
    assert start == 0 and all(apart > 1e-4 for apart in later)
    assert results[1]["from_one_process"][0] == 0 < 1e-4 < results[1]["from_one_process"][-1]


def test_averaged_gradients_are_the_training_of_one_process(results):
    messages = {2: 10, 3: 1, 4: 1, 5: 1, "ddp": 1}  # LeNet has ten tensors, 0.24 MiB
    for step, count in messages.items():
        assert results[step]["between_ranks"] == [0] * (STEPS + 1), step
        assert len(results[step]["from_one_process"]) == STEPS + 1, step
        assert max(results[step]["from_one_process"]) < ROUNDING, step
        assert results[step]["messages"] == count, step


def test_buckets_are_fewer_than_gradients_and_hold_each_once():
    model = models.ConvNet()
    made = buckets.make_buckets(model, 40_000)
    assert 1 < len(made) < len(list(model.parameters()))
    assert [id(p) for bucket in made for p in bucket] == [id(p) for p in reversed(list(model.parameters()))]
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number)
    for bucket in made:
        buckets.unpack(2 * buckets.pack(bucket), bucket)
    assert all(bool((p.grad == 2 * number).all()) for number, p in enumerate(model.parameters()))


def test_gradients_keep_the_strides_of_their_parameters():
    """A fused optimizer reads the memory of both in order."""
    layer = torch.nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)
    buckets.unpack(torch.arange(304.0), [layer.weight, layer.bias])
    assert layer.weight.grad.stride() == layer.weight.stride() != torch.empty(4, 3, 5, 5).stride()
    assert layer.weight.grad.flatten().tolist() + layer.bias.grad.tolist() == list(range(304))


def test_main_py_trains_under_it_as_under_ddp(tmp_path):
    """ResNet has channels_last weights, a fused optimizer, two buckets and a last batch of other size."""
    weights = {}
    for name, options in {"ddp": [], "mine": ["--wrapper", TRAINED[5]]}.items():
        done = runner.run(RANKS, "--dataset", "synthetic", "--samples", 250, "--test-samples", 10, "--epochs", 1,
                          "--model", "resnet", "--batch-size", 32, *options, "--save-model", tmp_path / f"{name}.pt")
        assert done.returncode == 0, done.stderr
        weights[name] = torch.load(tmp_path / f"{name}.pt", weights_only=True)
    torch.testing.assert_close(weights["mine"], weights["ddp"], rtol=1e-3, atol=1e-4)


def written(tmp_path, cls):
    """The file that a learner would write for a step: the class, named MyDDP, with all that it inherits."""
    body = "\n\n".join(inspect.getsource(each) for each in reversed(cls.__mro__[:-2]) if each.__module__ != "torch.nn")
    path = tmp_path / f"{cls.__name__}.py"
    path.write_text("from functools import partial\nimport torch.distributed as dist\nfrom torch import nn\n"
                    f"from lessons.l06_ddp.buckets import make_buckets, pack, unpack\n{body}\n"
                    f"class MyDDP({cls.__name__}):\n    pass\n")
    return str(path)


@pytest.mark.usefixtures("ranks_find_all_modules_imported")
def test_what_the_learner_wrote_trains_once_it_is_right(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "MINE", tmp_path / "mine.py")
    step = check.mean_gradients
    assert check.kept() == "ours" and check.MINE.read_text() == Path(check.OURS).read_text()
    right, wrong = written(tmp_path, check.MeanGradients), written(tmp_path, check.Summed)
    step(right)
    assert (step.whose, step.trains, check.kept()) == ("yours", f"{right}:MyDDP", "yours")
    step(wrong)
    assert (step.whose, step.trains) == ("ours", step.ours)
    assert check.MINE.read_text() == Path(right).read_text(), "what was right is kept"
    (tmp_path / "stub.py").write_text("class MyDDP:\n    def finish(self):\n        raise NotImplementedError\n")
    capsys.readouterr()
    step(str(tmp_path / "stub.py"))
    assert "Not tried yet." in capsys.readouterr().out


def test_mean_loss_needs_the_mean_and_sum_loss_the_sum(results):
    times = {(row["loss"], row["over_ranks"]): row["times"] for row in results["scale"]}
    assert times == pytest.approx({("mean", "sum"): RANKS, ("mean", "mean"): 1, ("sum", "sum"): 1,
                                   ("sum", "mean"): 1 / RANKS}, rel=1e-4)
    assert all(row["relative_difference"] < 1e-3 for row in results["scale"])


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
    monkeypatch.setattr(ddp_questions.dist, "all_reduce", lambda tensor: None)
    torch.manual_seed(0)
    theirs = torch.nn.BatchNorm2d(3, dtype=torch.float64)
    torch.nn.init.normal_(theirs.weight), torch.nn.init.normal_(theirs.bias)
    ours = ddp_questions.over_ranks(copy.deepcopy(theirs))
    assert type(ours) is ddp_questions.BatchNormOverRanks
    inputs = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    seen = []
    for layer in (theirs, ours):
        x = inputs.clone().requires_grad_()
        layer(x).square().mul(torch.arange(5)).sum().backward()
        seen.append([x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var,
                     layer.eval()(inputs)])
    for mine, wanted in zip(seen[1], seen[0], strict=True):
        torch.testing.assert_close(mine, wanted)


def test_timeline_is_a_step_of_every_rank(results):
    small, one, mine = results["timeline"]
    for run in (small, one, mine):
        for rank in range(RANKS):
            events = [event for event in run["events"] if event["rank"] == rank]
            compute = [event for event in events if event["lane"] == "compute"]
            assert [event["event"] for event in compute] == ["forward", "backward", "wait", "update"]
            assert compute[0]["start"] == 0
            for before, after in zip(compute, compute[1:], strict=False):
                assert before["start"] <= before["end"] == after["start"]
            forward, backward, wait, _ = compute
            reduced = [event for event in events if event["event"] == "all-reduce"]
            assert sum(event["bytes"] for event in reduced) == run["bytes"]
            assert all(forward["end"] <= event["start"] < event["end"] <= wait["end"] for event in reduced)
            assert max(event["start"] for event in reduced) == backward["end"]
    count = [len({event["text"] for event in run["events"] if "text" in event}) for run in (small, one, mine)]
    assert count[0] > 2 and count[1] == 1 and count[2] == 6, "a layer of 600 is a bucket of MyDDP's"


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


@pytest.mark.parametrize(("world_size", "options", "message"), [
    (1, ["--wrapper", "ddp"], "start two or more"),
    (2, ["--wrapper", "ddp", "--steps", 5000], "160000 training images"),
    (2, ["--wrapper", "lessons/l06_ddp/my_ddp.py:Nobody"], "my_ddp.py has no Nobody"),
])
def test_bad_input_is_one_line_and_nothing_is_written(world_size, options, message, tmp_path, monkeypatch, capfd):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}.items():
        monkeypatch.setenv(name, value)
    arguments = ["--dataset", "synthetic", *options, "--out", tmp_path / "results.json"]
    monkeypatch.setattr("sys.argv", [SCRIPT, *map(str, arguments)])
    with pytest.raises(SystemExit, match="2"):
        wrapped_training.main()
    stderr = capfd.readouterr().err
    assert message in stderr and len(stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_rank_that_never_comes_ends_the_wait(tmp_path):
    port = str(rendezvous.free_port())
    done = runner.run(0, "--dataset", "synthetic", "--wrapper", "ddp", "--timeout", 3, "--out",
                      tmp_path / "results.json", script=SCRIPT, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=port)
    assert done.returncode == 2 and "waited for the others, 3.0 s at most" in done.stderr
    assert not list(tmp_path.iterdir())


def test_rounding_and_a_different_result_differ_in_colour_and_shape():
    none, same, other = show.from_one_process({"none": 0.0, "same": 1e-16, "other": 1e-3}, False).lines
    assert none.get_color() == same.get_color() != other.get_color()
    assert none.get_marker() == same.get_marker() != other.get_marker()
