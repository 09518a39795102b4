"""Lesson 14: Amdahl's law, the shares of a profile, and which verdict a measurement gets."""

import math

import pytest

from lessons.l14_make_it_faster import gains, show


def profile(**changes):
    names = {"aten::convolution_backward": 5, "aten::addmm": 1, "Optimizer.step#Adam.step": 1, "aten::relu": 2,
             "aten::index_select": 1}
    return {"operators": [{"name": name, "ms": ms, "calls": 1} for name, ms in names.items()],
            "phases": {"data": 1, "forward": 4, "backward": 4, "update": 1}, "halves": [10, 10.5],
            "medians": {"data": 1, "forward": 4, "backward": 4, "update": 1, "wait": 1, "least wait": 0.5},
            "batch_size": 64, "small_batch": 16, "small_batch_step": 4, "one_by_one_data": 6} | changes


def test_amdahl():
    assert gains.amdahl(0.5, 2) == pytest.approx(4 / 3)
    assert gains.amdahl(0.1, math.inf) == pytest.approx(10 / 9)


@pytest.mark.parametrize(("rounds", "verdict"), [
    ([1.21, 1.3, 1.4], "pays"), ([0.5, 0.6, 0.89], "costs"), ([1.19, 1.3, 1.4], "not told apart"),
    ([0.8, 1.3, 1.4], "not told apart")])
def test_a_change_is_told_apart_where_none_of_its_rounds_lies_among_the_control_s(rounds, verdict):
    assert gains.verdict({"gains": rounds}, {"gains": [0.9, 1.0, 1.2]}) == verdict


def test_shares_add_up_with_everything_else():
    shares = show.shares(profile())
    assert math.isclose(sum(shares.values()), 1) and shares["everything else"] == pytest.approx(0.3 - 1 / 11)
