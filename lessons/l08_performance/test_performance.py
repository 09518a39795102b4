"""Lesson 08: the phase that grew, and the learner's functions on recorded runs."""

import json

import pandas as pd
import pytest

from course import compare, runs
from lessons.l08_performance import check, show
from tests.runner import ROOT

RECORDED = ROOT / "results" / "recorded"


def run(label, ranks, epochs=2, **fields):
    """A table of `runs.read_runs` with one run; each epoch a second, and a tenth more in backward than ranks."""
    return pd.DataFrame([dict(
        label=label, world_size=ranks, epoch=epoch, epochs=2, status="completed", note="", dataset="cifar10",
        samples=640, test_samples=100, model="lenet", batch_size=64, lr=0.001, optimizer="adam", seed=0, shuffle=True,
        device="cpu", threads=1, cores=2, images_per_second=100.0 * ranks + epoch, data_seconds=0.1,
        forward_seconds=0.5, backward_seconds=0.4 * ranks, update_seconds=0.1) | fields for epoch in range(epochs)])


def test_the_phase_that_grew_is_in_milliseconds_a_step_after_the_warm_up():
    df = show.per_step(pd.concat([run("1 rank", 1), run("2 ranks", 2)]))
    assert df["forward_seconds"].tolist() == pytest.approx([50, 50, 100, 100])
    assert show.grown(df) == "backward"
    df.loc[df["world_size"] == 2, "data_seconds"] = [0, 999]  # the first epoch warms up
    assert show.grown(df) == "data"


def test_a_loss_by_sharing_has_the_interval_of_its_rounds_and_one_by_talking_the_range():
    rounds = [1.5, 1.6, 1.7, 1.6, 1.6, 1.8]
    speedup = compare.of_separate_runs([130, 140, 150], [100])
    [row] = show.losses({2: speedup}, {2: {"rounds": rounds, "ceiling": 1.6, "low": 1.5, "high": 1.8}}, devices=2)
    assert row["lost: they share"] == "0.40 (0.20 to 0.50)" and row["lost: they talk"] == "0.20 (0.00 to 0.50)"
    [row] = show.losses({2: speedup}, {2: {"rounds": [1.5, 1.6, 1.7, 1.6, 1.6, 2.1], "ceiling": 1.6, "low": 1.5,
                                           "high": 2.1}}, devices=2)
    assert row["lost: they share"].startswith("0.40 (-0.10 to 0.50): "), "it is not significant, and says so"


def test_the_speed_up_of_exercise_1_is_that_of_the_reader_of_logs():
    logs = {name: RECORDED / "two-cpu-cores" / f"{name}.jsonl" for name in ("one-process", "ddp2", "ddp4", "ddp8")}
    records = {name: [json.loads(line) for line in log.read_text().splitlines()] for name, log in logs.items()}
    for run in runs.speedup_table(runs.read_runs(logs)).itertuples():
        speedup, efficiency = check.my_speedup(records["one-process"], records[run.label])
        assert speedup == pytest.approx(run.speedup) and efficiency == pytest.approx(run.efficiency)


def test_the_recorded_runs_have_the_faults_that_were_made():
    steps = show.per_step(runs.read_runs(RECORDED / "went-wrong"))
    sound, *wrong = (show.medians(steps, run) for run in ("sound", "a", "b", "c"))
    assert [check.my_diagnosis(sound, run) for run in wrong] == ["threads", "data", "slow rank"]
