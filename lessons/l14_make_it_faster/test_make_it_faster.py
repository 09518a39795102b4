"""Lesson 14: what a gain is predicted to be, which verdict a measurement gets, and the tables and pictures of both."""

import math
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from lessons.l14_make_it_faster import gains, show

CHANGES = {name: SimpleNamespace(text=name.upper()) for name in ("nothing", "bf16", "compile", "channels-last")}
NOISE = {"gains": [0.95, 1.0, 1.05]}


def profile(**changes):
    names = {"aten::convolution_backward": 5, "aten::addmm": 1, "Optimizer.step#Adam.step": 1, "aten::relu": 2,
             "aten::index_select": 1}
    return {"operators": [{"name": name, "ms": ms, "calls": 1} for name, ms in names.items()],
            "phases": {"data": 1, "forward": 4, "backward": 4, "update": 1}, "halves": [10, 10.5],
            "medians": {"data": 1, "forward": 4, "backward": 4, "update": 1, "wait": 1, "least wait": 0.5},
            "batch_size": 64, "small_batch": 16, "small_batch_step": 4, "one_by_one_data": 6} | changes


def tables(**changes):
    row = {"gains": [1.4, 1.5, 1.6], "losses": [2.1, 2.2], "gradient_off": 0.05}
    measured = {"nothing": NOISE | {"losses": [2.1, 2.1], "gradient_off": 0.0}, "bf16": row | changes}
    run = {"models": {"lenet": profile()}, "world_size": 1, "cores": 2}
    return show.judged({"lenet": measured}, run, CHANGES, ["nothing", "bf16", "compile"])


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


@pytest.mark.parametrize(("halves", "disturbed"), [([10, 10.5], ""), ([14, 15], "no profiler"), ([8, 11], "speed")])
def test_a_profiler_that_makes_faster_is_a_disturbance(halves, disturbed):
    [row] = show.times({"world_size": 1, "models": {"lenet": profile(halves=halves)}})
    assert disturbed in row["ms of a step"] and ("disturbed" in row["ms of a step"]) == bool(disturbed)


def test_each_change_is_judged_or_not_tried():
    assert list(tables()["LeNet"]["verdict"]) == ["not told apart", "pays", "not tried"]
    assert show.gain(tables(), "lenet", "bf16") == 1.5 and show.gain(tables(), "lenet", "compile") == "not tried"
    assert [(row["change"], row["tried"], row["paid"]) for row in show.decided(CHANGES, tables())] == [
        ("BF16", 1, 1), ("COMPILE", 0, 0)]


@pytest.mark.parametrize(("measured", "verdict"), [
    ({"gains": [1.01, 1.02, 1.03]}, "Verdict: **not told apart**. If `data` took no time the step would be 1.12"),
    ({"gains": [1.3, 1.4, 1.5]}, "Verdict: **pays**"), ({"error": "TypeError: oops"}, "did not run: TypeError: oops")])
def test_a_learner_s_change_stands_beside_its_bound(measured, verdict):
    run = {"models": {"lenet": profile()}, "world_size": 1, "cores": 2}
    row = {"text": "yours: my_change"} | measured
    [table] = show.judged({"lenet": {"nothing": NOISE, "my_change": row}}, run, CHANGES, ["nothing"],
                          {"my_change": 1.12}).values()
    text = show.of_the_learner(table, "data", 1.12, "our")
    assert text.startswith("**yours: my_change**") and verdict in text
    assert "Name its part" in show.of_the_learner(table, None, None, "our") or "error" in measured
    ax = show.compared({"LeNet": table}, "one rank").axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["NOTHING", "yours: my_change"]
    two = show.judged({"lenet": {"nothing": NOISE, "my_change": row}, "resnet": {"nothing": NOISE}},
                      run | {"models": {"lenet": profile(), "resnet": profile()}}, CHANGES, ["nothing"])
    assert list(two["small ResNet"]["verdict"]) == ["not told apart", "not tried"], "both pictures have the same rows"


def test_the_bound_is_drawn_by_the_function_that_is_given():
    profiles = {"LeNet": show.milliseconds(profile()), "small ResNet": {"data": 1.0, "convolution": 3.0}}
    assert sum(profiles["LeNet"].values()) == pytest.approx(gains.step(profile()))
    figure = show.bounds(lambda profile, part, times: 2.0, profiles, "your")
    left, right = figure.axes
    assert len(left.lines) == len(profiles["LeNet"]) and {*left.lines[0].get_ydata()} == {2.0}
    assert right.get_title(loc="left") == "small ResNet: your bound"
    assert {text.get_text() for text in right.texts} == {"data: at most 2.00×", "convolution: at most 2.00×"}


def test_gradients_that_differ_by_rounding_are_one_row():
    assert [row["change"] for row in show.numerics(tables())] == ["BF16", "all others here"]
    assert [row["change"] for row in show.numerics(tables(gradient_off=3e-7))] == ["all others here"]


def test_a_change_that_did_not_run_and_a_dot_beyond_the_axis_are_drawn():
    run = {"models": {"lenet": profile()}, "world_size": 1, "cores": 2}
    rows = {"nothing": NOISE, "bf16": {"gains": [0.1, 0.1, 0.2]}, "compile": {"error": "no compiler"}}
    table = show.judged({"lenet": rows}, run, CHANGES, [*rows])
    ax = show.compared(table, "one rank").axes[0]
    assert [text.get_text() for text in ax.texts] == ["1.00×", "0.10× costs", "did not run"]
    assert ax.get_xlim()[0] == 0.4 and "<" in [line.get_marker() for line in ax.lines]


def test_operators_and_everything_else_add_up():
    rows = [{"name": "aten::mm", "ms": 3, "calls": 1}, {"name": "backward", "ms": 1, "calls": 1},
            {"name": "aten::add", "ms": 0.5, "calls": 1}, {"name": "aten::mul", "ms": 0.5, "calls": 1}]
    ax = show.operators(rows, plt.subplots()[1], most=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "mm", "backward (between operators)", "everything else (2 names)"]
    assert sum(bar.get_width() for bar in ax.patches) == 5
