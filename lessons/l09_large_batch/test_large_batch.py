"""Lesson 09: ranks are one large batch, the recorded runs are whole, and the pictures say what they show."""

from itertools import product

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from torch.utils.data import DataLoader, DistributedSampler

from course import runs
from lessons.l09_large_batch import show
from tests import runner

mpl.use("Agg")
FOLDER = runner.ROOT / "results" / "recorded" / "large-batch"
# 120 images divide by 3 ranks; the last batch of an epoch is smaller than the others
TRAIN = ["--dataset", "synthetic", "--device", "cpu", "--samples", 120, "--test-samples", 11, "--epochs", 2,
         "--optimizer", "sgd"]


@pytest.fixture(scope="module")
def recorded():
    return show.last_epochs(runs.read_runs(FOLDER))


# ------------------------------------------------------------------------------------------- ranks and one process


def test_ranks_with_a_rule_are_one_process_with_the_larger_batch_and_rate(tmp_path):
    many, one = tmp_path / "many.jsonl", tmp_path / "one.jsonl"
    launched = [runner.run(3, *TRAIN, "--batch-size", 7, "--lr", 0.02, "--lr-scaling", "sqrt", "--log-file", many),
                runner.run(0, *TRAIN, "--global-batch-size", 21, "--lr", 0.02 * 3**0.5, "--log-file", one)]
    assert [done.returncode for done in launched] == [0, 0], [done.stderr for done in launched]
    df = show.along(runs.read_runs([many, one]))
    of_many, of_one = (df[df["label"] == label].reset_index(drop=True) for label in ("many", "one"))
    for name in ("loss", "val_loss", "weight_norm"):
        np.testing.assert_allclose(of_many[name], of_one[name], rtol=1e-5)
    assert of_many["loss"].is_monotonic_decreasing, "a training that does not move would prove nothing"
    for name in ("updates", "images", "global_batch"):
        assert of_many[name].tolist() == of_one[name].tolist()


def test_updates_are_counted_as_the_loader_makes_them():
    for samples, ranks, batch_size in product((100, 101), (1, 2, 3), (7, 25)):
        loader = DataLoader(range(samples), batch_size, sampler=DistributedSampler(range(samples), ranks, 0))
        assert runs.updates_an_epoch(samples, ranks, batch_size) == len(loader)


# ------------------------------------------------------------------------------------------------- the recorded runs


def test_every_recorded_run_is_whole_and_of_one_kind_with_every_seed(recorded):
    assert set(recorded["source"]) == {"recorded"} and set(recorded["machine"]) == {"large-batch"}
    assert set(recorded["status"]) <= {"completed", "failed"}
    assert recorded.loc[recorded["status"] == "failed", "note"].str.contains("not finite").all()
    same = ["dataset", "samples", "test_samples", "epochs", "model", "threads", "device", "synthetic"]
    assert len(recorded[same].drop_duplicates()) == 1
    by = ["optimizer", "world_size", "global_batch", "lr", "lr_scaling"]
    assert set(map(tuple, recorded.groupby(by)["seed"].agg(sorted))) == {(0, 1, 2)}


# ------------------------------------------------------------------------------------------------------ the pictures


def made_by_hand(**columns):
    return pd.DataFrame({"global_batch": [64, 512] * 2, "lr": [0.1] * 2 + [0.2] * 2, "rule": ["a"] * 2 + ["b"] * 2,
                         "mean": [0.4, 0.3, 0.45, 0.2], "sd": [0.01] * 4, "runs": [3] * 4, "broken": [0] * 4,
                         "source": ["recorded"] * 4, "machine": ["there"] * 4} | columns)


def lines(ax):
    """The drawn series: (line style, colour of the marker's inside, y values)."""
    return [(line.get_linestyle(), line.get_markerfacecolor(), line.get_ydata().tolist()) for line in ax.lines
            if len(line.get_ydata()) == 2 and line.get_marker() not in ("_", "None")]


def texts(ax):
    legend = ax.get_legend()
    return [text.get_text() for text in [*ax.texts, *(legend.get_texts() if legend else [])]]


def test_a_rule_is_drawn_as_recorded_and_by_name():
    ax = show.by_rule(made_by_hand(), plt.subplots()[1], "title")
    assert [line[2] for line in lines(ax)] == [[0.4, 0.3], [0.45, 0.2]]
    assert {line[:2] for line in lines(ax)} == {("--", "white")}
    assert {"a", "b", "recorded: there"} <= set(texts(ax))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["64", "512"]


def test_rates_mark_what_broke_off_and_join_what_a_rule_chooses():
    table = made_by_hand(mean=[0.4, 0.3, 0.45, np.nan], sd=[0.01, 0.01, 0.01, np.nan], broken=[0, 0, 0, 2])
    ax = show.by_rate(table, plt.subplots()[1], "title", lr=0.0125, batch=8)
    crosses = [line.get_xdata().tolist() for line in ax.lines if line.get_marker() == "X"]
    assert crosses == [[], [0.2]]
    assert {"64 images", "512 images", "linear rule"} <= set(texts(ax))
    assert [0.4] in [line.get_ydata().tolist() for line in ax.lines], "through the points that the rule chooses"


def test_a_run_that_broke_off_takes_its_mean_with_it():
    last = pd.DataFrame({"lr": [1, 1, 2, 2], "result": [0.5, 0.7, 0.9, np.nan]})
    one, two = show.over_seeds(last, ["lr"]).to_dict("records")
    assert (one["mean"], one["runs"], one["broken"]) == (pytest.approx(0.6), 2, 0)
    assert one["sd"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert np.isnan(two["mean"]) and (two["runs"], two["broken"]) == (2, 1)


def test_what_a_run_has_spent_adds_up(recorded):
    run = show.along(runs.read_run(FOLDER / "warm-up" / "lenet-ddp8-batch64-lr0.01-seed0.jsonl"))
    assert run["images"].tolist() == [10_000, 20_000, 30_000, 40_000, 50_000]
    assert run["updates"].tolist() == [20, 40, 60, 80, 100] and set(run["global_batch"]) == {512}
    assert run["elapsed"].iloc[-1] == pytest.approx(run["seconds"].sum())


def test_rules_choose_their_runs(recorded):
    table = show.chosen_by_rules(recorded, lr=0.01, batch=64)
    assert table.groupby("rule", sort=False)["global_batch"].agg(list).to_dict() == {
        "rate left alone": [64, 128, 256, 512], "square root": [64, 128, 256, 512], "linear": [64, 128, 256, 512],
        "linear, warm-up": [512]}
    assert set(table["runs"]) == {3}
    sgd = recorded[recorded["optimizer"] == "sgd"]
    assert show.against(sgd, 0.01, 64, 512, "linear", "rate left alone").low > 1
    assert not show.against(sgd, 0.01, 64, 512, "linear, warm-up", "linear").apart


def test_the_training_with_the_learner_s_rates_stands_beside_main_py_s():
    log = FOLDER / "warm-up" / "lenet-ddp8-batch64-lr0.01-seed0.jsonl"
    rules = runs.read_runs({"linear": log, "linear, warm-up": log})
    left, right = show.with_rates([0.01, 0.02], [0.1, 0.2, 0.3, 0.4, 0.5], rules, "your rates")
    assert list(left.lines[0].get_ydata()) == [0.01, 0.02]
    assert list(right.lines[2].get_ydata()) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert {"linear", "linear, warm-up", "your rates"} <= set(texts(right))


def test_a_run_that_did_not_get_there_has_no_bar():
    table = pd.DataFrame({"label": ["1 rank", "2 ranks"], "images_per_second": [10.0, 20.0], "reached": [3.0, np.nan],
                          "synthetic": [False, False]})
    speed, time = show.speed_and_time(table, 0.3)
    assert [bar.get_width() for bar in time.patches] == [3.0, 0.0]
    assert [text.get_text().strip() for text in (*speed.texts, *time.texts)] == ["10", "20", "3.0 s", "not reached"]


def test_errors_of_gradients_stand_beside_what_the_root_predicts():
    ax = show.gradient_errors({"a": {64: 2.0, 256: 0.9}}, synthetic=True)
    assert [(line.get_linestyle(), list(line.get_ydata())) for line in ax.lines] == [
        ("-", [2.0, 0.9]), (":", [2.0, 1.0]), ("-", [1, 1])]
    assert any("SYNTHETIC" in text for text in texts(ax))


# ------------------------------------------------------------------------------------------------------ the verdicts


@pytest.mark.parametrize(("loss", "verdict"), [(2.3, "later ones by 3e-05 at most: rounding."),
                                               (2.2, "**This is not the same training.**")])
def test_one_process_stands_for_the_ranks_where_only_rounding_parts_them(loss, verdict):
    many, alone = pd.DataFrame({"loss": [loss, 2.1]}), pd.DataFrame({"loss": [2.300001, 2.10003]})
    assert verdict in show.same_training(many, alone)


def test_the_closest_rule_may_lie_above_or_below_and_is_a_rule():
    after = pd.Series({"1 rank": 0.4, "rate left alone": 0.41, "square root": 0.3, "linear": 0.45})
    assert show.closest(after, to="1 rank") == "linear"


@pytest.mark.parametrize(("alone", "share"), [(0.2, "50%"), (0.4, "–"), (0.5, "–")])
def test_a_rule_wins_back_a_share_of_the_lost_accuracy(alone, share):
    assert show.won_back(0.3, 0.4, alone) == share


def test_a_run_that_never_reaches_the_accuracy_has_no_time():
    def run(label, *accuracies):
        return pd.DataFrame({"label": label, "seconds": 2.0, "val_accuracy": accuracies, "images_per_second": 10,
                             "synthetic": False})

    table = show.reached(pd.concat([run("1 rank", 0.1, 0.4, 0.3), run("2 ranks", 0.1, 0.2, 0.3)]), 0.4)
    assert table["reached"].iloc[0] == 4 and np.isnan(table["reached"].iloc[1])
    near = table.assign(images_per_second=[10, 15], reached=[4.0, 5.9], epoch=2.0)
    assert show.fastest(near) == ("The most images a second: **2 ranks**. At the target, beside 1 rank: "
                                  "**too close to call**: 2 ranks.")
    for reached, when in (([4.0, 6.0], "later or never"), ([4.0, np.nan], "later or never"), ([6.0, 4.0], "sooner"),
                          ([np.nan, 4.0], "sooner")):
        assert show.sooner(near.assign(reached=reached), "2 ranks", "1 rank") == when


def test_rates_within_one_standard_deviation_are_about_as_good_as_the_best():
    table = pd.DataFrame({"global_batch": 64, "lr": [0.01, 0.02, 0.04], "mean": [0.395, 0.4, 0.3], "sd": 0.01,
                          "runs": 3, "broken": 0})
    (row,) = show.best_rates(table)
    assert (row["best rate tried"], row["about as good"]) == (0.02, "0.01 to 0.02")


def test_the_noise_scale_is_where_the_error_is_as_large_as_the_gradient():
    assert show.noise_scale({64: 2.0}, 64) == 256
    assert show.moved({"first": {64: 2.0}, "last": {64: 1.0}}, 64) == "fewer"
