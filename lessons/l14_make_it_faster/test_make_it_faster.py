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


CONTROL = [0.9, 1.0, 1.2, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("rounds", "verdict"), [
    ([0.91, 1.1, 1.3, 1.1, 1.1, 1.1], "pays"), ([0.89, 0.9, 1.1, 0.9, 0.9, 0.9], "costs"),
    ([0.89, 1.1, 1.3, 1.1, 1.1, 1.1], "no significant difference"), ([1.3, 1.4, 1.5], "no winner named")])
def test_a_change_is_compared_with_the_control_round_by_round(rounds, verdict):
    gain = gains.against({"gains": rounds}, {"gains": CONTROL[:len(rounds)]})
    assert gains.verdict(gain) == verdict and gain.pairs == len(rounds)


def test_the_control_is_shown_by_its_own_gains():
    nothing = {"gains": CONTROL}
    assert gains.against(nothing, nothing)[:3] == (1, 0.9, 1.2)


def test_shares_add_up_with_everything_else():
    shares = show.shares(profile())
    assert math.isclose(sum(shares.values()), 1) and shares["everything else"] == pytest.approx(0.3 - 1 / 11)
