"""Lesson 08: its program on 3 ranks, the parts of a step, and the published figures that it uses."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from course.on_ranks import Measurement
from lessons.l08_performance import check, scaling, show_predicted, step_time
from scripts.measure import side_by_side
from tests import runner
from trainer import models


def test_every_way_is_timed_and_only_by_hand_talks_apart(tmp_path):
    done = runner.run(3, "--dataset", "synthetic", "--rounds", 1, "--batch-sizes", 7, "--out", tmp_path / "steps.json",
                      script="lessons/l08_performance/step_time.py")
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "steps.json").read_text())["models"]["lenet"]["points"]
    assert [(point["way"], point["batch_size"]) for point in points] == [(way, 7) for way in step_time.WAYS]
    for point in points:
        (seconds,) = point["rounds"]
        assert seconds["step"] > seconds["wait"] + seconds["all_reduce"] and seconds["wait"] >= 0
        assert (seconds["all_reduce"] > 0) == (point["way"] == "by_hand")
        assert seconds["wait"] == 0 or point["way"] == "by_hand"


def test_the_ceiling_is_what_all_reach_together_by_one_alone():
    """test_record.py runs the program."""
    assert [side_by_side.up_to(ranks) for ranks in (2, 3, 8)] == [[2], [2, 3], [2, 4, 8]]
    assert side_by_side.ceiling(3, [1, 2, 4], [3, 6, 9], [1, 1, 5]) == {
        "ranks": 3, "together": 6, "rounds": [3, 4, 2], "ceiling": 3, "low": 2, "high": 4}


@pytest.mark.parametrize(("program", "ranks", "arguments", "message"), [
    (step_time, 1, [], "--nproc_per_node=2"), (step_time, 2, ["--batch-sizes", 4097], "--batch-sizes"),
    (side_by_side, 1, [], "--nproc_per_node=2"), (side_by_side, 2, ["--samples", 10], "--samples"),
    (side_by_side, 2, ["--seconds", 40], "--timeout")])
def test_bad_input(program, ranks, arguments, message, tmp_path, refused):
    assert message in refused(program, "--dataset", "synthetic", "--out", tmp_path / "x.json", *arguments, ranks=ranks)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- parts of a step


def test_the_parts_add_up_to_by_hand_and_ddp_itself_and_are_not_cut_at_zero():
    talk = {"step": 9.0, "wait": 1.0, "all_reduce": 2.0}
    points = [{"way": way, "batch_size": batch, "rounds": rounds} for batch in (4, 8) for way, rounds in {
        "ddp": [{"step": 11.0 * batch}, {"step": 9.0 * batch}], "alone": [{"step": 5.0}, {"step": 7.0}],
        "side_by_side": [{"step": 6.5}, {"step": 6.5}], "silent": [{"step": 7.0}, {"step": 6.0}],
        "by_hand": [talk, talk]}.items()]
    table = show_predicted.parts(points)
    assert table[show_predicted.PARTS].values.tolist() == [[5, 1, 1, 2, 0.5], [7, -1, 1, 2, -0.5]] * 2
    assert table["sum"].tolist() == [9.5, 8.5] * 2 and table["ddp"].tolist() == [44, 36, 88, 72]
    assert show_predicted.between(table, 6).tolist() == [6, 0, 1, 2, 0]
    (four, _) = show_predicted.speedups(table, 2).to_dict("records")
    assert four == {"batch_size": 4, "speedup": pytest.approx((10 / 44 + 14 / 36) / 2), "low": 10 / 44,
                    "high": 14 / 36, "pairs": 2}
    assert show_predicted.speedups(table, 2, "side_by_side")["high"].tolist() == [14 / 6.5] * 2
    with pytest.raises(ValueError, match="not between"):
        show_predicted.between(table, 9)


# ---------------------------------------------------------------- the learner's predictions


def test_the_worst_error_is_over_the_sizes_that_were_not_given():
    seconds = {1000: 2e-3, 4000: 1e-3, 16000: 3e-3, 64000: 5e-3}
    points = pd.DataFrame({"bytes": seconds.keys(), **dict.fromkeys(("seconds", "low", "high"), seconds.values())})
    known = [(1000, 2e-3), (16000, 3e-3)]
    assert check.my_message(4000, known) == pytest.approx(2.2e-3)
    assert show_predicted.worst_error(check.my_message, points, known) == (4000, pytest.approx(1.2))
    only_4000 = show_predicted.worst_error(lambda size, known: seconds[size] if size == 4000 else 0.0, points, known)
    assert only_4000 == (64000, -1)


def test_the_worst_error_of_a_curve_is_at_the_measured_batches():
    speedups = pd.DataFrame({"batch_size": [4, 16], "speedup": [1.0, 1.5]})
    assert show_predicted.worst_speedup({4: 1.1, 10: 9.0, 16: 1.2}, speedups) == pytest.approx(-0.2)


# ---------------------------------------------------------------- what others have published


def test_published_figures_follow_from_what_their_readme_says():
    series = show_predicted.series()
    resnet, vit = series["ResNet-50, P100"], series["ViT, A100"]
    assert resnet["images_per_second"] == pytest.approx(90 * 1_281_167 / (29 * 3600), rel=1e-3)
    assert resnet["backward"] == pytest.approx(0.120 * resnet["images_per_second"] / (8 * 32), rel=1e-3)
    assert vit["parameters"] == 12 * 12 * 384**2 + 2 * 384 * 20 * 64 + 45 * 90 * 384
    assert vit["efficiency"]["64"] == pytest.approx(2573 / 204 / 16, rel=1e-3)
    tokens = np.array([40149.94, 37609.69, 35367.61, 31112.23, 26446.44, 15700.38])  # a second and GPU
    assert [*series["LLM, H100"]["efficiency"].values()] == pytest.approx(tokens / tokens[0], abs=5e-4)


def test_the_model_in_the_notebook_and_its_bands():
    twin, model = (runner.ROOT / "notebooks/text/08_performance.py").read_text(), {"within": 3e-6}
    exec(twin.split("whole model:\n\n# %%\n")[1].split("# %%")[0], model)
    assert model["left"](4, 10, 40) == 10 and model["left"](4, 10, 20) == 25  # as the text says
    resnet = show_predicted.series()["ResNet-50, P100"]
    # 5 buckets of 20 MB, all but one hidden: 14 messages of 2.5 MB in a node, a ring of 128 nodes
    bucket = 14 * (3e-6 + 2.5e6 / 80e9) + 2 * 127 / 128 * 20e6 / 6.25e9
    assert model["step"](resnet, 1024, 0, 1) == pytest.approx(resnet["step"] + bucket)
    band = show_predicted.band(resnet, model["step"], 50e-6, 0.5)
    assert list(band) == [8, 16, 32, 64, 128, 256, 512, 1024] and band[8] == (1, 1)
    assert all(low < high for gpus, (low, high) in band.items() if gpus > 8)
    assert show_predicted.band(resnet, model["step"], 0, 1)[1024] == (band[1024][1], band[1024][1])


def test_latencies_give_back_the_time_that_they_were_taken_from():
    links = pd.read_csv(show_predicted.PUBLISHED / "all_reduce.csv")
    within, between = show_predicted.latencies(links, 2**18, "8 × B200, one node", "32 × B200, four nodes", 4)
    seconds = 14 * within + 6 * between
    assert 2 * 31 / 32 * 2**18 / seconds / 1e9 == pytest.approx(1.33)


# ---------------------------------------------------------------- what the notebook says of the model


def note(sizes, bucket):  # a communication hook: DDP calls it for each bucket that is ready
    sizes.append(bucket.buffer().nbytes)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def measure_buckets(cap, context):
    """Bytes of each bucket of LeNet under DDP."""
    model, sizes = DistributedDataParallel(models.ConvNet(), bucket_cap_mb=cap()), []
    model.register_comm_hook(sizes, note)
    for _ in range(2):  # the buckets are made anew after the first step
        sizes.clear()
        model(torch.randn(2, 3, 32, 32)).sum().backward()
    return sizes


def default():
    return 25


def small():
    return 0.04


def test_ddp_cuts_lenet_into_as_many_buckets_as_the_notebook_says():
    ones, threes = Measurement(measure_buckets, "").run([(default, 1), (small, 1)])
    for [sizes], expected in ((ones, 1), (threes, 3)):
        assert len(sizes) == expected and sum(sizes) == 248_024, sizes
    assert scaling.ddp_buckets(248_024) == 1


@pytest.mark.parametrize(("low", "smallest"), [((0.6, 1.1, 1.5), 8), ((1.2, 1.3, 1.4), 4), ((0.5, 0.6, 0.7), None),
                                                   ((1.2, 0.9, 1.1), 16)])
def test_ddp_pays_from_the_smallest_batch_on_which_all_above_are_faster(low, smallest):
    assert show_predicted.smallest(pd.DataFrame({"batch_size": [4, 8, 16], "low": low, "pairs": 6})) == smallest
    assert show_predicted.smallest(pd.DataFrame({"batch_size": [4, 8, 16], "low": low, "pairs": 5})) is None


@pytest.mark.parametrize(("seconds", "rounds", "which"), [
    (3.0, 6, "higher"), (5.0, 6, "lower"), (4.0, 6, "no significant difference"),
    (3.0, 5, "no significant difference")])
def test_the_ceilings_of_two_batches_are_compared_round_by_round(seconds, rounds, which):
    table = pd.DataFrame([{"batch_size": batch, "a step alone": 4.0 + number, "side_by_side": beside + number}
                          for number in range(rounds) for batch, beside in ((4, seconds), (128, 4.0))])
    assert show_predicted.smaller_batch(table) == which
