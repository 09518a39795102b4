"""Lesson 09: ranks are one large batch, the recorded runs are whole, and the pictures say what they show."""

import subprocess
from itertools import product

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from course import runs
from lessons.l09_large_batch import pictures, sweep
from tests import runner

mpl.use("Agg")
FOLDER = runner.ROOT / "results" / "recorded" / "large-batch"
# 120 images divide by 2 and by 3 ranks; the last batch of an epoch is smaller than the others
TRAIN = ["--dataset", "synthetic", "--device", "cpu", "--samples", 120, "--test-samples", 11, "--epochs", 3,
         "--optimizer", "sgd"]


@pytest.fixture(scope="module")
def recorded():
    return pictures.last_epochs(runs.read_runs(FOLDER))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


# ------------------------------------------------------------------------------------------- ranks and one process


@pytest.mark.parametrize(("ranks", "rule", "factor"), [(2, "linear", 2), (3, "sqrt", 3**0.5)])
def test_ranks_with_a_rule_are_one_process_with_the_larger_batch_and_rate(ranks, rule, factor, tmp_path):
    many, one = tmp_path / "many.jsonl", tmp_path / "one.jsonl"
    launched = [runner.run(ranks, *TRAIN, "--batch-size", 7, "--lr", 0.02, "--lr-scaling", rule, "--log-file", many),
                runner.run(0, *TRAIN, "--global-batch-size", 7 * ranks, "--lr", 0.02 * factor, "--log-file", one)]
    assert [done.returncode for done in launched] == [0, 0], [done.stderr for done in launched]
    df = pictures.along(runs.read_runs([many, one]))
    of_many, of_one = (df[df["label"] == label].reset_index(drop=True) for label in ("many", "one"))
    for name in ("loss", "val_loss", "weight_norm"):
        np.testing.assert_allclose(of_many[name], of_one[name], rtol=1e-5)
    assert of_many["loss"].is_monotonic_decreasing, "a training that does not move would prove nothing"
    for name in ("updates", "images", "global_batch"):
        assert of_many[name].tolist() == of_one[name].tolist()


@pytest.mark.parametrize(("samples", "ranks", "batch_size"), list(product((100, 101), (1, 2, 3), (7, 25))))
def test_updates_are_counted_as_the_loader_makes_them(samples, ranks, batch_size):
    from torch.utils.data import DataLoader, DistributedSampler

    loader = DataLoader(range(samples), batch_size, sampler=DistributedSampler(range(samples), ranks, 0))
    assert pictures.updates_an_epoch(samples, ranks, batch_size) == len(loader)


# ------------------------------------------------------------------------------------------------- the recorded runs


def test_every_recorded_run_is_whole_and_of_one_kind(recorded):
    assert set(recorded["source"]) == {"recorded"} and set(recorded["machine"]) == {"large-batch"}
    assert set(recorded["status"]) <= {"completed", "failed"}
    assert recorded.loc[recorded["status"] == "failed", "note"].str.contains("not finite").all()
    same = ["dataset", "samples", "test_samples", "epochs", "model", "optimizer", "threads", "device"]
    assert len(recorded[same].drop_duplicates()) == 1
    assert not recorded["synthetic"].any()


def test_every_configuration_has_every_seed(recorded):
    by = ["world_size", "global_batch", "lr", "lr_scaling"]
    seeds = recorded.groupby(by)["seed"].agg(lambda found: sorted(found))
    assert {tuple(found) for found in seeds} == {(0, 1, 2)}
    one = recorded[recorded["world_size"] == 1]
    for batch, factor in product((64, 128, 256, 512), (lambda k: 1, lambda k: k, np.sqrt)):  # what the rules choose
        assert np.isclose(one.loc[one["global_batch"] == batch, "lr"], 0.01 * factor(batch / 64), rtol=1e-4).sum() == 3
    ranks = recorded[recorded["world_size"] == 8]
    assert set(ranks["lr_scaling"]) == {"linear"} and set(ranks["warmup_epochs"]) == {1}
    assert sorted(ranks["lr"].unique()) == [0.01, 0.02] and set(ranks["global_batch"]) == {512}


def test_the_command_that_records_says_what_it_does():
    said = subprocess.run([FOLDER / "record.sh", "--help"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and "Records the runs of this folder again" in said.stdout and said.stderr == ""
    text = (FOLDER / "record.sh").read_text()
    for option in ("--samples 10000", "--test-samples 3000", "--epochs 5", "--optimizer sgd"):
        assert option in text


# ------------------------------------------------------------------------------------------------------ the pictures


def made_by_hand(**columns):
    return pd.DataFrame({"global_batch": [64, 512] * 2, "lr": [0.1] * 2 + [0.2] * 2, "rule": ["a"] * 2 + ["b"] * 2,
                         "mean": [0.4, 0.3, 0.45, 0.2], "sd": [0.01] * 4, "runs": [3] * 4, "broken": [0] * 4,
                         "source": ["recorded"] * 4, "machine": ["there"] * 4} | columns)


def lines(ax):
    """The drawn series: (line style, colour of the marker's inside, y values)."""
    return [(line.get_linestyle(), line.get_markerfacecolor(), line.get_ydata().tolist()) for line in ax.lines
            if len(line.get_ydata()) == 2 and line.get_marker() not in ("_", "None")]


def said(ax):
    legend = ax.get_legend()
    return [text.get_text() for text in [*ax.texts, *(legend.get_texts() if legend else [])]]


def test_a_rule_is_drawn_as_recorded_and_by_name():
    ax = pictures.by_rule(made_by_hand(), plt.subplots()[1], "title")
    assert [line[2] for line in lines(ax)] == [[0.4, 0.3], [0.45, 0.2]]
    assert {line[:2] for line in lines(ax)} == {("--", "white")}
    assert {"a", "b", "recorded: there"} <= set(said(ax))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["64", "512"]


def test_rates_mark_what_broke_off_and_join_what_a_rule_chooses():
    table = made_by_hand(mean=[0.4, 0.3, 0.45, np.nan], sd=[0.01, 0.01, 0.01, np.nan], broken=[0, 0, 0, 2])
    ax = pictures.by_rate(table, plt.subplots()[1], "title", lr=0.0125, batch=8)
    crosses = [line.get_xdata().tolist() for line in ax.lines if line.get_marker() == "X"]
    assert crosses == [[], [0.2]]
    assert {"64 images", "512 images", "linear rule"} <= set(said(ax))
    assert [0.4] in [line.get_ydata().tolist() for line in ax.lines], "through the points that the rule chooses"


def test_a_run_that_broke_off_takes_its_mean_with_it():
    last = pd.DataFrame({"lr": [1, 1, 2, 2], "result": [0.5, 0.7, 0.9, np.nan]})
    one, two = pictures.over_seeds(last, ["lr"]).to_dict("records")
    assert (one["mean"], one["runs"], one["broken"]) == (pytest.approx(0.6), 2, 0)
    assert one["sd"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert np.isnan(two["mean"]) and (two["runs"], two["broken"]) == (2, 1)


def test_what_a_run_has_spent_adds_up(recorded):
    run = pictures.along(runs.read_run(FOLDER / "warm-up" / "lenet-ddp8-batch64-lr0.01-seed0.jsonl"))
    assert run["images"].tolist() == [10_000, 20_000, 30_000, 40_000, 50_000]
    assert run["updates"].tolist() == [20, 40, 60, 80, 100] and set(run["global_batch"]) == {512}
    assert run["elapsed"].iloc[-1] == pytest.approx(run["seconds"].sum())


@pytest.mark.parametrize(("draw", "more"), [(pictures.by_rule, {}),
                                           (pictures.by_rate, {"lr": 0.01, "batch": 64})])
def test_nothing_to_draw_is_said(draw, more):
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(made_by_hand().iloc[:0], plt.subplots()[1], "title", **more)


def test_rules_choose_their_runs(recorded):
    table = pictures.chosen_by_rules(recorded, lr=0.01, batch=64)
    assert table.groupby("rule", sort=False)["global_batch"].agg(list).to_dict() == {
        "rate left alone": [64, 128, 256, 512], "square root": [64, 128, 256, 512], "linear": [64, 128, 256, 512],
        "linear, warm-up": [512]}
    assert set(table["runs"]) == {3}


def test_a_run_that_did_not_get_there_has_no_bar():
    table = pd.DataFrame({"label": ["1 rank", "2 ranks"], "images_per_second": [10.0, 20.0], "reached": [3.0, np.nan],
                          "synthetic": [False, False]})
    speed, time = pictures.speed_and_time(table, 0.3)
    assert [bar.get_width() for bar in time.patches] == [3.0, 0.0]
    assert [text.get_text().strip() for text in (*speed.texts, *time.texts)] == ["10", "20", "3.0 s", "not reached"]


@pytest.mark.parametrize("synthetic", [True, False])
def test_errors_of_gradients_stand_beside_what_the_root_predicts(synthetic):
    ax = pictures.gradient_errors({"a": {64: 2.0, 256: 0.9}}, synthetic)
    assert [(line.get_linestyle(), list(line.get_ydata())) for line in ax.lines] == [
        ("-", [2.0, 0.9]), (":", [2.0, 1.0]), ("-", [1, 1])]
    assert any("SYNTHETIC" in text for text in said(ax)) == synthetic


# --------------------------------------------------------------------------------------------------------- the sweep


def test_a_sweep_over_rates_names_each_and_passes_it_on(monkeypatch, tmp_path):
    swept = []
    monkeypatch.setattr(sweep, "sweep", lambda cells, *rest: swept.extend(cells) or {})
    monkeypatch.setattr("sys.argv", ["sweep.py", "--out", str(tmp_path), "--world-sizes", "1", "--seeds", "0", "1",
                                     "--lrs", "0.01", "0.02", "--", "--optimizer", "sgd"])
    with pytest.raises(SystemExit) as ended:
        sweep.main()
    assert ended.value.code == 0
    assert list(map(str, swept)) == [f"lenet-single-batch64-lr{lr}-seed{seed}"
                                     for seed, lr in product((0, 1), (0.01, 0.02))]
    assert [cell.options()[-1] for cell in swept] == ["--lr=0.01", "--lr=0.02"] * 2
    assert str(swept[0]._replace(lr=None)) == "lenet-single-batch64-seed0", "logs of before are found again"


@pytest.mark.parametrize(("arguments", "what"), [
    (["--lrs", "0"], "0 is not a positive number"),
    (["--lrs", "0.1", "--", "--lr", "0.2"], "--lr after `--`"),
])
def test_bad_rates_are_one_line_and_status_2(arguments, what, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sweep.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        sweep.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and len(told.err.splitlines()) == 1 and what in told.err
