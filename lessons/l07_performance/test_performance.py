"""Lesson 07: which runs may be compared, where the ideal speed-up goes, what the learner's functions are used for."""

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from course import runs
from course.compare import Ratio, ratio
from lessons.l07_performance import check, show
from tests.runner import ROOT

RECORDED = ROOT / "results" / "recorded"


def run(label, ranks, epochs=2, **fields):
    """A table of `runs.read_runs` with one run; each epoch a second, and a tenth more in backward than ranks."""
    return pd.DataFrame([dict(
        label=label, world_size=ranks, epoch=epoch, epochs=2, status="completed", note="", dataset="cifar10",
        samples=640, test_samples=100, model="lenet", batch_size=64, lr=0.001, optimizer="adam", seed=0, shuffle=True,
        device="cpu", threads=1, cores=2, images_per_second=100.0 * ranks + epoch, data_seconds=0.1,
        forward_seconds=0.5, backward_seconds=0.4 * ranks, update_seconds=0.1) | fields for epoch in range(epochs)])


def test_runs_are_compared_only_where_nothing_else_differs():
    assert "they may be compared" in show.comparable(pd.concat([run("1 rank", 1), run("2 ranks", 2)]), 2)
    bad = pd.concat([run("1 rank", 1), run("2 ranks", 2, epochs=1, status="failed", note="full", threads=2)])
    assert show.comparable(bad, 2) == ["2 ranks: failed, 1 epoch of 2. full", "They differ in `threads`: 1, 2."]


@pytest.mark.parametrize(("one", "many", "talk"), [
    ([1, 1, 1], [1.1, 1.2, 1.3], "0.55 (0.20 to 0.80)"),
    ([1, 1, 1], [1.4, 1.6, 1.7], "0.15 (-0.20 to 0.50): **not told apart**"),
    ([0.65, 1, 1.1], [1.1, 1.2, 1.3], "0.55 (-0.50 to 0.90): **not told apart**"),  # the baseline spreads, too
    ([1, 1], [1.1, 1.2], "0.60 (0.30 to 0.80): **not told apart**")])
def test_losses_add_up_to_the_ideal_and_say_which_are_told_apart_from_none(one, many, talk):
    speedups, rounds = {8: ratio(many, one)}, [1.5, 1.75, 1.9]
    ceiling = {"ceiling": 1.75, "low": 1.5, "high": 1.9, "rounds": rounds}
    (row,) = show.losses(speedups, {8: ceiling}, devices=2)
    assert list(row.values())[:-1] == [8, "6.00", "0.25 (0.10 to 0.50)", talk]
    assert sum(float(value.split()[0]) for value in list(row.values())[1:]) == pytest.approx(8)
    (row,) = show.losses(speedups, {8: ceiling | {"high": 2.1}}, devices=2)
    assert row["lost: they share"] == "0.25 (-0.10 to 0.50): **not told apart**"


def test_the_phase_that_grew_is_in_milliseconds_a_step_after_the_warm_up():
    df = show.per_step(pd.concat([run("1 rank", 1), run("2 ranks", 2)]))
    assert df["forward_seconds"].tolist() == pytest.approx([50, 50, 100, 100])
    assert show.grown(df) == "backward"
    df.loc[df["world_size"] == 2, "data_seconds"] = [0, 999]  # the first epoch warms up
    assert show.grown(df) == "data"


# ------------------------------------------------------------------------------------- what the learner's functions do


def texts(ax):
    return {text.get_text() for text in ax.texts}


def test_the_speed_up_of_exercise_1_is_that_of_the_reader_of_logs():
    logs = {name: RECORDED / "two-cpu-cores" / f"{name}.jsonl" for name in ("one-process", "ddp2", "ddp4", "ddp8")}
    records = {name: [json.loads(line) for line in log.read_text().splitlines()] for name, log in logs.items()}
    for run in runs.speedup_table(runs.read_runs(logs)).itertuples():
        speedup, efficiency = check.my_speedup(records["one-process"], records[run.label])
        assert speedup == pytest.approx(run.speedup) and efficiency == pytest.approx(run.efficiency)


def test_a_further_way_to_train_is_a_further_line():
    lines = {"DDP": {1: (1.0, 1.0), 2: (1.5, 0.75), 8: (1.2, 0.15)}, "MyDDP": {1: (1.0, 1.0), 2: (1.4, 0.7)}}
    ax = show.speedups(lines, plt.subplots()[1], "by your function", mine=6)
    assert {"ideal", "1.50× (75%)", "DDP: 1.20× (15%)", "MyDDP: 1.40× (70%)", "you: 6×"} <= texts(ax)
    assert [list(line.get_ydata()) for line in ax.lines[1:3]] == [[1, 1.5, 1.2], [1, 1.4]]
    assert "you" not in str(texts(show.speedups(lines, plt.subplots()[1], "")))


def test_the_recorded_runs_have_the_faults_that_were_made():
    steps = show.per_step(runs.read_runs(RECORDED / "went-wrong"))
    sound, *wrong = (show.medians(steps, run) for run in ("sound", "a", "b", "c"))
    assert [check.my_diagnosis(sound, run) for run in wrong] == ["threads", "data", "slow rank"]


def test_the_picture_of_the_search_has_its_order_and_its_result():
    measured = {batch: Ratio(speedup, speedup - 0.1, speedup + 0.4, 5)
                for batch, speedup in {512: 1.74, 128: 1.45, 256: 1.62}.items()}
    ax = show.by_batch(measured, 1.7, 512, plt.subplots()[1], "your search")
    assert {"1: 1.74×", "2: 1.45×", "3: 1.62×", "ideal", "wanted: 1.7×"} <= texts(ax)
    found = ax.lines[-1]
    assert (found.get_xdata().item(), found.get_ydata().item()) == (512, 1.74)
    nothing = show.by_batch(measured, 1.9, None, plt.subplots()[1], "our search")
    assert len(nothing.lines) == len(ax.lines) - 1 and nothing.get_ylim()[1] > 2.14
