"""Lesson 06: the five steps to MyDDP, and the timeline, on 3 ranks; its notebook has 2."""

import inspect
import json
from pathlib import Path

import pytest
import torch

from lessons.l06_ddp import buckets, check, ddp_questions, show, wrapped_training
from tests import runner
from trainer import models

ROUNDING = 1e-5
RANKS, STEPS = 3, 3
SCRIPT, QUESTIONS = (f"lessons/l06_ddp/{name}.py" for name in ("wrapped_training", "ddp_questions"))
STEPS_TO_DDP = [check.same_weights, check.mean_gradients, check.one_message, check.overlapped, check.any_backward]
TRAINED = {step.number: step.trains for step in STEPS_TO_DDP} | {"none": "none", "ddp": "ddp"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of every step and question."""
    folder, both = tmp_path_factory.mktemp("ddp_steps"), ("--dataset", "synthetic", "--steps", STEPS)
    (other := tmp_path_factory.mktemp("other") / "way.py").write_text(OTHER_WAY)
    finished = [
        runner.run(RANKS, "--wrapper", *TRAINED.values(), *both, "--out", folder / "steps.json", script=SCRIPT),
        runner.run(RANKS, "--step", *ddp_questions.QUESTIONS, *both, "--width", 520, "--bucket-mb", 0.05, 1000,
                   "--wrapper", f"{other}:MyDDP", "--out", folder / "answers.json", script=QUESTIONS)]
    assert [done.returncode for done in finished] == [0, 0], [done.stderr for done in finished]
    assert sorted(path.name for path in folder.iterdir()) == ["answers.json", "steps.json"]
    steps, answers = (json.loads((folder / f"{name}.json").read_text()) for name in ("steps", "answers"))
    return {**{name: steps[trained] for name, trained in TRAINED.items()}, **answers}


@pytest.mark.weekly
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


@pytest.mark.weekly
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


def test_what_the_learner_wrote_trains_once_it_is_right(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "MINE", tmp_path / "mine.py")
    step = check.mean_gradients
    assert check.kept() == "ours" and check.MINE.read_text() == Path(check.OURS).read_text()
    right = written(tmp_path, check.MeanGradients)
    step(right)
    assert (step.whose, step.trains, check.kept()) == ("yours", f"{right}:MyDDP", "yours")
    step.judged(right, "wrong")
    assert (step.whose, step.trains) == ("ours", step.ours)
    assert check.MINE.read_text() == f"# Step 2 of lesson 06.\n{Path(right).read_text()}", "what was right is kept"
    check.one_message.judged(written(tmp_path, check.OneMessage), "right")
    step.judged(right, "right")
    assert check.kept_step() == 3, "an earlier step, run again, does not take the place of a later one"


OTHER_WAY = """
import torch
import torch.distributed as dist
from functools import partial
from torch.nn.functional import pad
from lessons.l06_ddp.check import Overlapped
from lessons.l06_ddp.buckets import pack, unpack

class MyDDP(Overlapped):
    def send_if_full(self, bucket, parameter):
        if all(other.grad is not None for other in bucket):
            flat, ranks = pack(bucket), dist.get_world_size()
            flat = pad(flat, (0, -len(flat) % ranks))
            piece = flat.new_empty(len(flat) // ranks)
            self.underway.append((bucket, flat, piece, dist.reduce_scatter_tensor(piece, flat, async_op=True)))

    def finish(self):
        for bucket, flat, piece, work in self.underway:
            work.wait()
            dist.all_gather_into_tensor(flat, piece / dist.get_world_size())
            unpack(flat[:sum(parameter.numel() for parameter in bucket)], bucket)
        self.underway.clear()
"""


def test_a_bucket_may_be_reduced_and_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(check.overlapped, "ranks", RANKS)
    (tmp_path / "other.py").write_text(OTHER_WAY)
    assert check.overlapped.verdict(str(tmp_path / "other.py"))[0] == "right"


def test_mean_loss_needs_the_mean_and_sum_loss_the_sum(results):
    times = {(row["loss"], row["over_ranks"]): row["times"] for row in results["scale"]}
    assert times == pytest.approx({("mean", "sum"): RANKS, ("mean", "mean"): 1, ("sum", "sum"): 1,
                                   ("sum", "mean"): 1 / RANKS}, rel=1e-4)


def test_timeline_is_a_step_of_rank_0_whatever_sends_the_gradients(results):
    small, one, other_way = results["timeline"]
    for run in (small, one, other_way):
        compute = [event for event in run["events"] if event["lane"] == "compute"]
        assert [event["event"] for event in compute] == ["forward", "backward", "wait", "update"]
        forward, backward, wait, _ = compute
        sent = [event for event in run["events"] if event["lane"] == "all-reduce"]
        assert sum(event["bytes"] for event in sent) == pytest.approx(2 * (RANKS - 1) / RANKS * run["bytes"], rel=1e-3)
        assert all(forward["end"] <= event["start"] < event["end"] <= wait["end"] for event in sent)
        assert backward["end"] <= max(event["start"] for event in sent)
    assert show.early(small)[0] > 1 and show.early(one)[0] == 0
    count = [len({event["text"] for event in run["events"] if "text" in event}) for run in results["timeline"]]
    assert count[0] > 2 and count[1] == 1 and count[2] == 12, "a layer of 520 is a bucket, and each takes two messages"


@pytest.mark.parametrize(("ranks", "options", "message"), [
    (1, ["--wrapper", "ddp"], "start two or more"), (2, ["--wrapper", "ddp", "--steps", 5000], "160000"),
    (2, ["--wrapper", "lessons/l06_ddp/my_ddp.py:Nobody"], "Nobody")])
def test_bad_input(ranks, options, message, tmp_path, refused):
    assert message in refused(wrapped_training, "--dataset", "synthetic", *options, "--out", tmp_path / "x.json",
                              ranks=ranks)
    assert not list(tmp_path.iterdir())
