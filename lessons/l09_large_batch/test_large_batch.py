"""Lesson 09: ranks are one large batch, and what is computed from the recorded runs."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from torch.utils.data import DataLoader, DistributedSampler

from course import runs
from lessons.l09_large_batch import show
from tests import runner

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
        assert runs.updates_per_epoch(samples, ranks, batch_size) == len(loader)


# ------------------------------------------------------------------------------------------------- the recorded runs


def test_every_recorded_run_is_whole_and_of_one_kind_with_every_seed(recorded):
    assert set(recorded["source"]) == {"recorded"} and set(recorded["machine"]) == {"large-batch"}
    assert set(recorded["status"]) <= {"completed", "failed"}
    assert recorded.loc[recorded["status"] == "failed", "note"].str.contains("not finite").all()
    same = ["dataset", "samples", "test_samples", "epochs", "model", "threads", "device", "synthetic"]
    assert len(recorded[same].drop_duplicates()) == 1
    by = ["optimizer", "world_size", "global_batch", "lr", "lr_scaling"]
    assert set(map(tuple, recorded.groupby(by)["seed"].agg(sorted))) == {(0, 1, 2)}



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
    linear = show.against(sgd, 0.01, 64, 512, "linear", "rate left alone")
    assert linear.low > 1 and linear.pairs == 3 and not linear.significant
    upside_down = sgd.iloc[::-1]
    assert show.against(upside_down, 0.01, 64, 512, "linear", "rate left alone") == linear, "pairs have one seed"


def test_the_closest_rule_may_lie_above_or_below_and_is_a_rule():
    after = pd.Series({"1 rank": 0.4, "rate left alone": 0.41, "square root": 0.3, "linear": 0.45})
    assert show.closest(after, to="1 rank") == "linear"


def test_a_run_that_never_reaches_the_accuracy_has_no_time():
    def run(label, *accuracies):
        return pd.DataFrame({"label": label, "seconds": 2.0, "val_accuracy": accuracies, "images_per_second": 10,
                             "synthetic": False})

    table = show.reached(pd.concat([run("1 rank", 0.1, 0.4, 0.3), run("2 ranks", 0.1, 0.2, 0.3)]), 0.4)
    assert table["reached"].iloc[0] == 4 and np.isnan(table["reached"].iloc[1])


def test_the_noise_scale_is_where_the_error_is_as_large_as_the_gradient():
    assert show.noise_scale({64: 2.0}, 64) == 256
