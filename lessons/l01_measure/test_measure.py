"""How lesson 01 reads steps and logs."""

import math

import numpy as np
import pandas as pd
import pytest

from lessons.l01_measure import show


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
