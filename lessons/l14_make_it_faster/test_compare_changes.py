"""What notebook 14 relies on: the profile of real ranks, the predictions' arithmetic, and each change as it is made."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from course import adjustable_training
from course.adjustable_training import Setting, Training
from course.on_ranks import Measurement
from course.predict.fit import powersgd_values
from lessons.l14_make_it_faster import compare_changes, gains
from tests import runner
from trainer import data, launch

pytestmark = pytest.mark.weekly  # each day its notebook is executed, and its exercises are checked


def run(ranks, script, *arguments, **env):
    script = f"lessons/l14_make_it_faster/{script}.py"
    return runner.run(ranks, "--dataset", "synthetic", *arguments, script=script, **env)


# ---------------------------------------------------------------------------------------------- on ranks


HOOK = """import torch
def my_hook(state, bucket):
    done = torch.futures.Future()
    done.set_result(0 * bucket.buffer())
    return done
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Every change that DDP has, on two ranks, in one start; and a learner's hook, after which no gradient is left."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "hook.py").write_text(HOOK)
    done = run(2, "compare_changes", "--rounds", 3, "--seconds", 0.001, "--change",
               *[name for name in compare_changes.TOGETHER if name != "threads"], "--hook-file", folder / "hook.py",
               "--out", folder / "measured.json")
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert {path.name for path in folder.iterdir()} == {"hook.py", "measured.json"}
    return json.loads((folder / "measured.json").read_text())


CHANGE = """import itertools
import torch
def my_change(training):
    training.batches = itertools.cycle([next(training.batches)])
    training.optimizer = torch.optim.SGD(training.raw.parameters(), lr=0.1)
"""
SHORT = """def my_change(training):
    training.batches = ((images[:8], labels[:8]) for images, labels in [next(training.batches)] * 99)
"""


def measured_with(tmp_path, written, *arguments):
    (tmp_path / "answer.py").write_text(written)
    done = run(0, "compare_changes", "--rounds", 3, "--seconds", 0.001, "--change-file", tmp_path / "answer.py",
               *arguments, "--out", tmp_path / "measured.json")
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    return json.loads((tmp_path / "measured.json").read_text())["models"]["lenet"]


def test_what_a_learner_wrote_is_measured_beside_nothing_changed(tmp_path):
    measured = measured_with(tmp_path, CHANGE, "--change", "whole-batches", "bf16")
    assert list(measured) == ["nothing", "whole-batches", "bf16", "my_change"], "nothing is always there, and first"
    assert measured["whole-batches"]["gradient_off"] < 1e-4, "the same images, fetched in another way"
    assert 1e-4 < measured["bf16"]["gradient_off"] < 0.3
    mine = measured["my_change"]
    assert mine["text"] == "yours: my_change" and len(mine["gains"]) == 3 and mine["gradient_off"] < 0.01


def test_a_learner_s_error_ends_no_comparison(tmp_path):
    measured = measured_with(tmp_path, SHORT)
    assert "gains" in measured["nothing"] and measured["my_change"]["error"].startswith("ValueError")


def test_each_change_has_its_rounds_and_what_it_does_to_the_gradient(together):
    changes = together["models"]["lenet"]
    assert list(changes) == [*(name for name in compare_changes.TOGETHER if name != "threads"), "my_hook"]
    assert {len(measured["gains"]) for measured in changes.values()} == {3}
    off = {name: measured.get("gradient_off") for name, measured in changes.items()}
    assert off["nothing"] == off["bucket-view"] == 0
    assert off["small-buckets"] < 1e-5
    assert 1e-4 < off["bf16-hook"] < 0.02 < off["powersgd"] and off["my_hook"] == 1
    assert changes["my_hook"]["text"] == "yours: my_hook"
    assert off["accumulate"] is None, "other images: nothing to compare"
    nothing, other = (changes[name]["losses"] for name in ("nothing", "powersgd"))
    assert nothing[0] == nothing[1] == other[0] != other[1]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    out = tmp_path_factory.mktemp("profile") / "measured.json"
    done = run(2, "step_profile", "--model", "lenet", "resnet", "--steps", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.parent.iterdir()) == ["measured.json", *(
        f"measured.{model}.rank{rank}.trace.json" for model in ("lenet", "resnet") for rank in range(2))]
    return json.loads(out.read_text())


@pytest.mark.parametrize("model", ["lenet", "resnet"])
def test_timeline_is_a_step_of_every_rank_on_one_clock(profiled, model):
    events = pd.DataFrame(profiled["models"][model]["events"])
    assert set(events["rank"]) == {0, 1}
    for _, compute in events[events["lane"] == "compute"].groupby("rank"):
        compute = compute.sort_values("start", kind="stable")
        assert list(compute["event"]) == ["data", "forward", "backward", "wait", "update"]
        assert (compute["start"].iloc[1:].values >= compute["end"].iloc[:-1].values - 1e-3).all()
    sent = events[events["event"] == "all-reduce"]
    assert not events["event"].str.contains("barrier").any()
    of_gradients = sent.sort_values("start").groupby("rank").last()  # one bucket, after whatever BatchNorm sends
    assert len(of_gradients) == 2
    slack = 5  # ms: clocks are tied by a label that the system may have delayed
    assert of_gradients["start"].max() <= of_gradients["end"].min() + slack, "the sum was there before all had sent"


def test_profile_names_the_operators_and_the_waiting(profiled):
    rows = {row["name"]: row for row in profiled["models"]["lenet"]["operators"]}
    assert rows["aten::convolution_backward"]["calls"] == 2
    assert rows["aten::addmm"]["calls"] == 3
    assert rows["backward"]["ms"] > 0 and rows["c10d::allreduce_"]["calls"] == 1
    assert not [name for name in rows if name.startswith("gloo:")], "another thread's time"
    medians = profiled["models"]["lenet"]["medians"]
    assert 0 < medians["least wait"] <= medians["wait"]


def test_every_change_is_predicted_or_says_why_not(profiled):
    profile = profiled["models"]["lenet"] | {"world_size": 3, "cores": 2}
    for name in compare_changes.TOGETHER:
        gain, reason = gains.predict(name, profile)
        assert 0 < gain < 100 and reason
    assert gains.predict("threads", profile)[0] == 1, "three ranks on two cores have no core to spare"
    assert gains.predict("channels-last", profile)[0] is None
    assert set(gains.MODELS) <= set(adjustable_training.CHANGES)


def test_one_process_profile_serves_every_prediction(tmp_path):
    done = run(0, "step_profile", "--steps", 2, "--out", tmp_path / "measured.json")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "measured.json").read_text())
    profile = measured["models"]["lenet"] | {"world_size": 1, "cores": 2}
    assert set(profile["phases"]) == set(gains.LABELS) and "least wait" in profile["medians"]
    for name in compare_changes.ALONE:
        gain, reason = gains.predict(name, profile)
        assert reason and (gain is None or gain > 0)
    assert 1 < gains.predict("bf16", profile)[0] < 2 and gains.predict("compile", profile)[0] > 1


# ---------------------------------------------------------------------------------------------- DDP with a group of one


def in_a_group_of_one(measure):
    """What `measure` gives on the one rank of a gloo group, in a process of its own."""
    [outcome] = Measurement(measure, "").run([(second_rank, 1)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome[0]


def second_rank():
    """The placement of a process that believes it has another beside it, though its group is of one."""
    return replace(launch.find_placement("cpu", env={}), world_size=2)


def random_images():
    torch.manual_seed(0)
    return data.ImageSet("synthetic", torch.randint(0, 256, (600, 3, 32, 32), dtype=torch.uint8),
                          torch.randint(0, 10, (600,)))


def watched(training):
    """A list that gets the bytes of each bucket which DDP sends."""
    sent = []

    def count(_, bucket):
        sent.append(bucket.buffer().nbytes)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    training.model.register_comm_hook(None, count)
    return sent


def accumulated(placement, context):
    """Of an update of 32 images, and of one of 4 batches of 8 images: the gradients, and the bytes of each bucket that
    the second and two more send."""
    large, training = (Training(Setting(batch_size=images, buckets=4, accumulate=32 // images), "lenet",
                                random_images(), placement()) for images in (32, 8))
    large.update()
    sent = watched(training)
    training.update()  # DDP orders its buckets anew after it
    seen = {"gradients": [large.gradients[0].tolist(), training.gradients[0].tolist()],
            "bytes": sum(p.nbytes for p in training.raw.parameters())}
    for updates in (1, 2):
        sent.clear()
        for _ in range(updates):
            training.update()
        seen[f"sent in {updates}"] = list(sent)
    return seen


def test_accumulated_batches_have_the_gradient_of_the_large_batch_and_send_each_bucket_once():
    seen = in_a_group_of_one(accumulated)
    assert torch.allclose(*map(torch.tensor, seen["gradients"]), atol=1e-6)
    buckets = seen["sent in 1"]
    assert len(buckets) > 1 and sum(buckets) == seen["bytes"]
    assert len(seen["sent in 2"]) == 2 * len(buckets), "under no_sync nothing is sent"


def filled(placement, context):
    """{model: (shapes of its parameters, bytes of each bucket that DDP sends)}"""
    seen = {}
    for model in ("lenet", "wide"):
        training = Training(Setting(batch_size=4, buckets=4), model, random_images(), placement())
        sent = watched(training)
        training.update()  # DDP orders its buckets anew after it
        sent.clear()
        training.update()
        seen[model] = [list(p.shape) for p in training.raw.parameters()], sent
    return seen


def test_buckets_are_filled_as_ddp_fills_them():
    for shapes, sent in in_a_group_of_one(filled).values():
        total = sum(4 * math.prod(shape) for shape in shapes)
        ours = gains.fill(shapes, total / 4)
        assert sum(ours) == sum(sent) == total and len(ours) == len(sent)
        assert ours == pytest.approx(sent, rel=0.05), "up to a bias, which comes before or after its weights"


def compressed(placement, context):
    """Shapes of the parameters; values of an update before and after PowerSGD has compressed them."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    training = Training(Setting(batch_size=4), "wide", random_images(), placement())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    training.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(3):
        training.update()
    before = state.total_numel_before_compression, state.total_numel_after_compression
    training.update()
    return {"shapes": [list(p.shape) for p in training.raw.parameters()],
            "values": [state.total_numel_before_compression - before[0],
                       state.total_numel_after_compression - before[1]]}


def test_powersgd_sends_as_many_values_as_torch_counts():
    seen = in_a_group_of_one(compressed)
    assert seen["values"] == [sum(map(math.prod, seen["shapes"])), powersgd_values(seen["shapes"], 1)]


# ---------------------------------------------------------------------------------------------- arithmetic, and input


def settings(**changes):
    return SimpleNamespace(**{"change": None, "rounds": 3, "out": SimpleNamespace(), "change_file": None,
                              "hook_file": None} | changes)


@pytest.mark.parametrize(("ranks", "changes", "message"), [
    (1, {"change": ["nothing", "powersgd"]}, "powersgd is DDP's"),
    (2, {"change": ["compile"]}, "one process"),
    (1, {"rounds": 2}, "3 or more"), (1, {"hook_file": "hook.py"}, "two ranks or more"),
])
def test_what_cannot_work_is_said_before_any_rank_waits(ranks, changes, message):
    with pytest.raises(ValueError, match=message):
        compare_changes.check(settings(**changes), SimpleNamespace(world_size=ranks))
