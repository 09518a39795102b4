"""What lesson 01 says of its clocks and of a second softmax."""

import math

import numpy as np
import pandas as pd
import pytest

from lessons.l01_one_device import show


def test_an_epoch_is_judged_by_four_clocks():
    rows = show.clocks([40.0, *[10.0, 20.0] * 9, 5.0])
    assert [row["ms per step"] for row in rows] == ["40.0", "15.8", "15.0", "7.5"]
    assert [row["seconds per epoch"] for row in rows] == ["0.80", "0.32", "0.30", "0.15"]


def test_the_last_row_is_the_first_pipeline_by_the_second():
    slow, fast = (pd.Series({"data": data, "forward": 1.0, "backward": 1.0, "update": 0.5}) for data in (2.5, 0.5))
    rows = show.pipelines({"slow": slow, "fast": fast}, 1000)
    assert rows[0]["data, µs per image"] == "2500.0" and rows[1]["images/s"] == "333"
    assert list(rows[-1].values())[1:] == ["5.0", "5.0", "1.67", "0.60"]


def test_a_tenth_of_an_epoch_weighs_its_steps_by_their_images():
    steps = pd.DataFrame({"loss": [1.0, 2.0] * 10, "hits": [3, 1] * 10, "images": [3, 1] * 10})
    curves = show.tenths({"a": steps}, 20, False)
    np.testing.assert_allclose(curves["epoch"], np.arange(1, 11) / 10)
    assert set(curves["loss"]) == {1.25} and set(curves["accuracy"]) == {1.0}


@pytest.mark.parametrize(("off", "said"), [(0.0, "softmax first"), (0.04, "softmax first"), (-0.06, "logits")])
def test_a_log_shows_how_the_model_ends(off, said):
    run = pd.DataFrame({"accuracy": [0.3, 0.5, 0.6]})
    run["loss"] = math.log(math.e + 9) - run["accuracy"] + [0, 0, off]
    assert show.ends_in(run) == said
    assert show.distances({"x": run})[0]["farthest from the dotted line"] == f"{abs(off):.2f}"
