"""Lesson 06: the file that grows, the checks of all steps on it, buckets, and the ladder."""

import inspect
import json
import shutil
import textwrap
from pathlib import Path

import pytest
import torch

from course import lesson
from lessons.l06_ddp import check, ladder, show, solution
from lessons.start.ours.my_ddp import MyDDP
from tests import runner
from trainer import models

SCRIPT, OURS = "lessons/l06_ddp/ladder.py", "lessons/start/ours/my_ddp.py"
STEPS = [check.same_weights, check.mean_gradients, check.one_message, check.overlapped, check.any_backward]


def methods(cls, *names):
    """A cell with these methods."""
    return textwrap.dedent("\n".join(inspect.getsource(inspect.getattr_static(cls, name)) for name in names))


STEP_4 = """
def __init__(self, module, all_reduce=dist.all_reduce):
    super().__init__()
    self.module, self.all_reduce, self.communicate = module, all_reduce, True
    self.ranks = dist.get_world_size() if dist.is_initialized() else 1
    self.buckets, self.underway = [], []
    if self.ranks > 1:
        self.same_weights()
        self.buckets = self.make_buckets(module)
    self.missing = [len(bucket) for bucket in self.buckets]
    for number, bucket in enumerate(self.buckets):
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(partial(self.arrived, number))
"""


@pytest.mark.weekly
def test_one_file_grows_through_the_steps_and_earlier_checks_go_on_finding_it_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    shutil.copy(runner.ROOT / "lessons/start/train.py", "mine")
    first = inspect.getsource(solution.SameWeights).replace("SameWeights", "MyDDP")
    lesson.mine("my_ddp.py", "import contextlib\nfrom functools import partial\n\nimport torch\n"
                f"import torch.distributed as dist\nfrom torch import nn\n\nBUCKET = 65536\n\n\n{first}")
    cells = [methods(solution.MeanGradients, "finish"), methods(MyDDP, "pack", "unpack")
             + methods(solution.OneMessage, "finish"),
             STEP_4 + methods(MyDDP, "make_buckets", "no_sync") + methods(solution.Overlapped, "arrived", "finish")]
    assert check.parts() == "ours", "no check has seen it"
    for number, cell in enumerate(cells, 2):
        lesson.mine("my_ddp.py MyDDP", cell)
        STEPS[number - 1].judged("mine/my_ddp.py", "right")
        assert check.parts() == "mine" and STEPS[number - 1].whose == "yours"
        assert Path(STEPS[number - 1].program()).with_name("my_ddp.py").read_text() == check.MINE.read_text()
    verdicts = [step.verdict("mine/my_ddp.py") for step in STEPS[1:4]]
    assert [outcome for outcome, _ in verdicts] == ["right"] * 3, verdicts
    STEPS[3].judged("mine/my_ddp.py", "wrong")
    assert (check.parts(), STEPS[3].whose) == ("ours", "ours")
    assert "import Overlapped as MyDDP" in STEPS[3].program().with_name("my_ddp.py").read_text()


@pytest.mark.weekly
def test_the_course_s_class_is_right_for_each_step():
    for step in STEPS[1:4]:  # the last is tests/test_exercises.py's
        assert step.verdict(OURS)[0] == "right", step.number


OTHER_WAY = """
import torch.distributed as dist
from torch.nn.functional import pad
from lessons.l06_ddp.solution import Overlapped

class MyDDP(Overlapped):
    def arrived(self, number, parameter):
        self.missing[number] -= self.communicate
        if self.communicate and not self.missing[number]:
            bucket = self.buckets[number]
            flat = self.pack(bucket)
            flat = pad(flat, (0, -len(flat) % self.ranks))
            piece = flat.new_empty(len(flat) // self.ranks)
            self.underway.append((bucket, flat, piece, dist.reduce_scatter_tensor(piece, flat, async_op=True)))
            self.missing[number] = len(bucket)

    def finish(self):
        for bucket, flat, piece, work in self.underway:
            work.wait()
            dist.all_gather_into_tensor(flat, piece / self.ranks)
            self.unpack(flat[:sum(parameter.numel() for parameter in bucket)], bucket)
        self.underway.clear()
"""


@pytest.mark.weekly
def test_a_bucket_may_be_reduced_and_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(check.overlapped, "ranks", 3)
    (tmp_path / "other.py").write_text(OTHER_WAY)
    assert check.overlapped.verdict(str(tmp_path / "other.py"))[0] == "right"


def test_buckets_are_fewer_than_gradients_and_hold_each_once():
    model = models.ConvNet()
    made = MyDDP.make_buckets(model, 40_000)
    assert 1 < len(made) < len(list(model.parameters()))
    assert [id(p) for bucket in made for p in bucket] == [id(p) for p in reversed(list(model.parameters()))]
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number)
    for bucket in made:
        MyDDP.unpack(2 * MyDDP.pack(bucket), bucket)
    assert all(bool((p.grad == 2 * number).all()) for number, p in enumerate(model.parameters()))


def test_gradients_keep_the_strides_of_their_parameters():
    """A fused optimizer reads the memory of both in order."""
    layer = torch.nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)
    MyDDP.unpack(torch.arange(304.0), [layer.weight, layer.bias])
    assert layer.weight.grad.stride() == layer.weight.stride() != torch.empty(4, 3, 5, 5).stride()
    assert layer.weight.grad.flatten().tolist() + layer.bias.grad.tolist() == list(range(304))


@pytest.mark.weekly
def test_main_py_trains_under_it_as_under_ddp(tmp_path):
    """ResNet has channels_last weights, a fused optimizer, many buckets and a last batch of other size."""
    weights = {}
    for name, options in {"ddp": [], "mine": ["--wrapper", f"{OURS}:MyDDP"]}.items():
        done = runner.run(3, "--dataset", "synthetic", "--samples", 250, "--test-samples", 10, "--epochs", 1,
                          "--model", "resnet", "--batch-size", 32, *options, "--save-model", tmp_path / f"{name}.pt")
        assert done.returncode == 0, done.stderr
        weights[name] = torch.load(tmp_path / f"{name}.pt", weights_only=True)
    torch.testing.assert_close(weights["mine"], weights["ddp"], rtol=1e-3, atol=1e-4)


@pytest.mark.weekly
def test_the_ladder_has_each_way_and_counts_its_all_reduces(tmp_path):
    done = runner.run(2, "--rounds", 2, "--updates", 1, "--out", tmp_path / "ladder.json", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "ladder.json").read_text())
    assert measured["parameters"] == 156_074, "the model of train.py"
    assert measured["all_reduces"] == {"alone": 0, "step 2": 10, "step 3": 1, "step 4": 3, "DDP": 1,
                                       "DDP, small buckets": 3}
    rounds = measured["rounds"]["none"]
    assert rounds.keys() == show.names(measured).keys() and all(len(each) == 2 for each in rounds.values())


@pytest.mark.parametrize(("ranks", "options", "message"), [
    (1, [], "start two"), (2, ["--rates", "150"], "is no rate"), (2, ["--rounds", "0"], "--rounds")])
def test_bad_input(ranks, options, message, tmp_path, refused):
    assert message in refused(ladder, *options, "--out", tmp_path / "x.json", ranks=ranks)
    assert not list(tmp_path.iterdir())
