"""What lesson 08 says of its results: each condition once."""

import pandas as pd
import pytest

from course.predict.scaling import StepTime
from lessons.l08_predict_scaling import show
from lessons.l08_predict_scaling.step_parts import PARTS


@pytest.mark.parametrize(("beta", "said"), [(2e-9, "At α / β = 488 KiB"), (5e-10, "β cannot be measured here")])
def test_beta_is_told_only_where_bytes_show(beta, said):
    assert said in show.line([{"bytes": 1024}, {"bytes": 1_000_000}], 1e-3, beta)


def test_the_parts_stand_as_they_were_measured_also_below_zero():
    row = dict(zip(PARTS, (0.008, -0.0002, 0.001, 0.001, 0.0005), strict=True))
    table = pd.DataFrame([{"batch_size": 64, "round": n, **row, "sum": 0.0103, "ddp": ddp}
                          for n, ddp in enumerate((0.0103, 0.0206))])
    (found,) = show.parts(table)
    assert found["slower together, ms"] == "-0.20" and found["each round's sum is off by"] == "-50 % to +0 %"


@pytest.mark.parametrize(("slower", "lines"), [(0.001, 1), (-0.001, 2)])
def test_a_part_below_zero_is_called_noise(slower, lines):
    said = show.missing(pd.Series((0.008, slower, 0.002, 0.001, 0.0005), PARTS, name=64), 0.009)
    assert len(said) == lines and "**waiting**, 2.00 ms" in said[0] and "For batch 64" in said[0]
    assert f"**{11.5 + 1e3 * slower:.2f} ms** a step, the first model 9.00 ms" in said[0]


def test_the_first_model_says_what_part_of_an_epoch_it_predicts():
    (row,) = show.first(StepTime(0.001, 0.0001), 0.002, 1000, 0.0104, 2, 64)
    assert row["an epoch, in those of one rank"] == "0.70" and row["predicted: a step of 2 ranks, ms"] == "10.40"


def test_the_sum_of_the_parts_is_that_of_the_figures_beside_it():
    rows = [{"batch_size": 64, **dict(zip(PARTS, parts, strict=True)), "sum": sum(parts), "ddp": 0.01} for parts in
            ((0.001, 0.005, 0, 0, 0), (0.002, 0.001, 0, 0, 0), (0.006, 0.002, 0, 0, 0))]
    (found,) = show.parts(pd.DataFrame(rows))
    assert found["sum"] == "4.00" and found["each round's sum is off by"] == "-70 % to -20 %"


def test_how_far_a_prediction_was_off_is_told_also_against_one_rank():
    rows = show.held([1.0, 1.1], [0.5, 0.5], 0.8, 1.1, 0.25)
    assert [row["off by"] for row in rows] == ["-27 % to -20 %", "+0 % to +10 %", "-50 %"]
    assert [row["off by, as a ratio to one rank"] for row in rows] == ["+45 % to +60 %", "+100 % to +120 %", "–"]


@pytest.mark.parametrize(("ranges", "said", "smallest"), [
    ([(0.5, 0.6, 0.7), (0.9, 1.1, 1.2), (1.4, 1.5, 1.6)], "slower than one process in every round: batch size 4; "
     "slower in some rounds and faster in others: batch size 8; faster in every round: batch size 16.", 8),
    ([(1.1, 1.2, 1.3)] * 3, "DDP was faster in every round: batch size 4, 8, 16.", 4),
    ([(0.5, 0.6, 0.7)] * 3, "in every round: batch size 4, 8, 16.", None),
])
def test_when_it_pays_is_told_by_all_rounds(ranges, said, smallest):
    table = pd.DataFrame([{"batch_size": batch, "low": low, "speedup": middle, "high": high}
                          for batch, (low, middle, high) in zip((4, 8, 16), ranges, strict=True)])
    assert said in show.pays(table) and show.smallest(table) == smallest


@pytest.mark.parametrize(("small", "said"), [((1.9, 2.0), "higher"), ((1.5, 1.6), "lower"), ((1.5, 1.8), "equal")])
def test_the_ceilings_of_two_batches_differ_where_their_rounds_do_not_overlap(small, said):
    table = pd.DataFrame({"batch_size": [128, 4], "low": [1.7, small[0]], "high": [1.8, small[1]]})
    assert show.smaller_batch(table) == said


def test_a_published_point_is_within_the_band_or_not():
    bands = {"a": {8: (1, 1), 16: (0.9, 0.95), 32: (0.8, 0.9)}}
    rows = show.far(bands, {"a": {8: 1, 16: 0.8, 32: 0.85}})
    assert [(row["GPUs"], row["more than was reached"]) for row in rows] == [(16, "yes"), (32, "within")]
