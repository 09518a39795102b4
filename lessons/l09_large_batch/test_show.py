"""What lesson 09 says of losses, accuracies, seeds, rates and times."""

import math

import pandas as pd
import pytest

from lessons.l09_large_batch import show as lesson_09


def run_of(*losses, samples=640, world_size=8):
    return pd.DataFrame({"loss": losses, "weight_norm": 1.0, "samples": samples, "world_size": world_size})


@pytest.mark.parametrize(("run", "said"), [
    (run_of(2.3, 2.1), "later ones by 3e-05 at most: rounding."),
    (run_of(2.2, 2.1), "**This is not the same training.**"),
    (run_of(2.2, 2.1, samples=635), "the ranks train on 5 of the images twice"),
])
def test_one_process_stands_for_the_ranks_where_only_rounding_parts_them(run, said):
    assert said in lesson_09.same_training(run, run_of(2.300001, 2.10003))


def test_losses_stand_side_by_side():
    assert lesson_09.side_by_side(run_of(2.5), run_of(2.25)) == [
        {"epoch": 0, "loss, 8 ranks": "2.5000000", "loss, one process": "2.2500000", "difference": "2e-01",
         "difference of the weights' norms": "0e+00"}]


def test_the_closest_rule_may_lie_above_or_below_and_is_a_rule():
    after = pd.Series({"1 rank": 0.4, "rate left alone": 0.41, "square root": 0.3, "linear": 0.45})
    assert lesson_09.closest(after, to="1 rank") == "linear"


@pytest.mark.parametrize(("alone", "share"), [(0.2, "50%"), (0.4, "–"), (0.5, "–")])
def test_what_a_rule_wins_back_is_a_share_of_what_was_lost(alone, share):
    after = pd.Series({"1 rank": 0.4, "rate left alone": alone, "linear": 0.3})
    rows = lesson_09.rules(after, 2100, to="1 rank")
    assert [row["of the lost accuracy, won back"] for row in rows] == ["", "", share]
    assert rows[2]["test accuracy"] == "30.0% ± 1.0%"


def test_a_run_that_never_reaches_the_accuracy_has_no_time():
    def run(label, rate, *accuracies):
        return pd.DataFrame({"label": label, "seconds": 2.0, "val_accuracy": accuracies, "images_per_second": rate,
                             "synthetic": False})

    table = lesson_09.reached(pd.concat([run("1 rank", 10, 0.1, 0.4, 0.3), run("2 ranks", 15, 0.1, 0.2, 0.3)]), 0.3)
    assert table["reached"].tolist() == [4.0, 6.0]
    assert table["epoch"].tolist() == [2.0, 2.0]
    assert lesson_09.fastest(table) == "The most images a second: **2 ranks**. The first at the target: **1 rank**."
    never = lesson_09.reached(pd.concat([run("1 rank", 10, 0.1, 0.4), run("2 ranks", 5, 0.1, 0.2)]), 0.4)
    assert never["reached"].iloc[0] == 4.0 and math.isnan(never["reached"].iloc[1])
    assert lesson_09.fastest(never).endswith("The first at the target: **1 rank**.")
    near = lesson_09.fastest(table.assign(reached=[4.0, 5.9]))
    assert near.endswith("too close to call: 1 rank, 2 ranks may each have been first, within an epoch.")


def table_of(**columns):
    return pd.DataFrame({"sd": 0.01, "runs": 3, "broken": 0} | columns)


def test_seeds_are_told_with_their_spread_and_what_broke():
    rows = lesson_09.seeds(table_of(rule=["rate left alone"] * 2 + ["linear"] * 2, global_batch=[64, 512] * 2,
                                    mean=[0.4, 0.2, 0.4, math.nan], broken=[0, 0, 0, 2]), 512)
    assert [row["test accuracy"] for row in rows] == ["40.0% ± 1.0%", "20.0% ± 1.0%", "2 of 3 runs broke off"]
    assert [row["of the lost accuracy, won back"] for row in rows] == ["", "", ""]


@pytest.mark.parametrize(("risen", "said"), [(0.35, "It helps here."), (0.25, "It does harm"), (0.31, "do not show")])
def test_a_warm_up_helps_where_it_gains_more_than_the_seeds_scatter(risen, said):
    assert said in lesson_09.warm_up(table_of(rule=["linear", "linear", "linear, warm-up"],
                                              global_batch=[64, 512, 512], mean=[0.5, 0.3, risen]))


def test_rates_within_one_sd_are_about_as_good_as_the_best():
    (row,) = lesson_09.best_rates(table_of(global_batch=64, lr=[0.01, 0.02, 0.04], mean=[0.395, 0.4, 0.3]))
    assert (row["best rate tried"], row["about as good"]) == (0.02, "0.01 to 0.02")
    (row,) = lesson_09.best_rates(table_of(global_batch=64, lr=[0.01, 0.02], mean=[0.3, 0.4]))
    assert row["about as good"] == "0.02"


def test_updates_and_noise_are_told_in_rows():
    assert lesson_09.updates({1: 157, 8: 20}, 64, 4)[1] == {
        "ranks": 8, "global batch": 512, "updates an epoch": 20, "in 4 epochs": 80}
    (row,) = lesson_09.noise({"a": {64: 2.0, 512: 0.5}}, 64)
    assert (row["times smaller"], row["error = gradient at"]) == ("4.0", "256 images")


@pytest.mark.parametrize(("after", "moved", "said"), [
    (1.0, "fewer", ["fallen, to 0.25 times", "lies below it with the first weights, and in the end above it."]),
    (4.0, "more", ["grown, to 4.0 times", "lies below it."]),
])
def test_the_noise_scale_is_said_to_move_as_it_did(after, moved, said):
    errors = {"first": {64: 2.0}, "last": {64: after}}
    lines = " ".join(lesson_09.scale(errors, 64, 128))
    assert lesson_09.moved(errors, 64) == moved and all(text in lines for text in said), lines
