"""How lesson 01 reads steps and logs."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from course import runs
from lessons.l01_one_device import show
from tests import runner


def test_a_tenth_of_an_epoch_weighs_its_steps_by_their_images():
    steps = pd.DataFrame({"loss": [1.0, 2.0] * 10, "hits": [3, 1] * 10, "images": [3, 1] * 10})
    curves = show.tenths({"a": steps}, 20, False)
    np.testing.assert_allclose(curves["epoch"], np.arange(1, 11) / 10)
    assert set(curves["loss"]) == {1.25} and set(curves["accuracy"]) == {1.0}


@pytest.mark.parametrize(("off", "end"), [(0.0, "softmax first"), (0.04, "softmax first"), (-0.06, "logits")])
def test_a_log_shows_how_the_model_ends(off, end):
    run = pd.DataFrame({"accuracy": [0.3, 0.5, 0.6]})
    run["loss"] = math.log(math.e + 9) - run["accuracy"] + [0, 0, off]
    assert show.ends_in(run) == end


def test_measured_points_are_filled_and_recorded_ones_hollow():
    measured = pd.DataFrame({"label": ["a", "a", "b"], "loss": 2.0, "accuracy": [0.2, 0.3, 0.4], "synthetic": True})
    recorded = runs.read_run(runner.ROOT / "results/recorded/tutorial-one-gpu-vs-eight/one_gpu.txt")
    ax = show.loss_against_accuracy(measured, recorded)
    assert [line.get_markerfacecolor() == "white" for line in ax.lines[:3]] == [False, False, True]
    texts = [text.get_text() for text in ax.texts]
    assert {"a", "b", "a tutorial's run\n(recorded elsewhere)", "SYNTHETIC DATA"} <= set(texts)
    plt.close(ax.figure)


def test_the_curve_is_the_function_s_and_the_point_is_the_measured_one():
    ax = show.amdahl({1: 1, 10: 1.8, 20: 1.9}, 2, (15, 1.7), "your function")
    assert [line.get_xydata().tolist() for line in ax.lines[:2]] == [[[1, 1], [10, 1.8], [20, 1.9]], [[15, 1.7]]]
    assert {text.get_text() for text in ax.texts} == {"measured: 1.70", "your function", "the limit: 2.00"}
