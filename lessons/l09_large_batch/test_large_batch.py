"""Lesson 09: the parts in the learner's program, what the recorded trainings are, and what is computed from them."""

import json
import math
import shutil

import pytest

from lessons.l09_large_batch import record, show
from tests import runner

SMALL = ["--parts", "ours", "--small", "--images=192", "--epochs=1"]


def train(*options, ranks=0):
    return runner.run(ranks, *SMALL, *options, script="lessons/start/train.py")


@pytest.mark.weekly
def test_a_warm_up_changes_the_training_and_a_batch_that_a_rate_was_right_for_changes_nothing():
    plain, same, risen = (record.epochs(train("--batch=48", *options).stdout)["loss"]
                          for options in ([], ["--lr-for=48"], ["--lr-for=12", "--warm-up=3"]))
    assert plain == same != risen


@pytest.mark.weekly
@pytest.mark.parametrize("ranks, batch", [(2, 48), (3, 96)])
def test_the_noise_scale_is_printed_with_the_courses_parts(ranks, batch):
    done = train(f"--batch={batch}", "--noise", ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert len(record.epochs(done.stdout)["noise"]) == 1


def test_the_recorded_trainings_are_those_of_the_script():
    rows = [json.loads(line) for line in (runner.ROOT / record.FILE).read_text().splitlines()]
    expected = sorted(f"{options} --seed {seed}" for seed in record.SEEDS for _, _, options in record.trainings())
    assert sorted(row["options"] for row in rows) == expected
    for row in rows:
        assert all(math.isfinite(each) for each in row["accuracy"] + row.get("noise", []))


def test_between_two_epochs_a_straight_line_is_assumed():
    assert show.epochs_to([0.3, 0.4, 0.5], 0.45) == pytest.approx(2.5)
    assert show.epochs_to([0.3, 0.4], 0.45) is None
    training = {"accuracy": [0.3, 0.4, 0.5], "ms": [10, 20, 40]}
    assert show.seconds_to(training, images=100, batch=10, target=0.45) == pytest.approx(0.1 + 0.2 + 0.2)


def test_the_law_finds_its_own_numbers():
    batches = [16, 64, 256, 1024, 4096]
    assert show.law(batches, [50 * (1 + 300 / batch) for batch in batches]) == pytest.approx((50, 300), rel=0.02)


def test_a_race_names_a_winner_by_the_rule_and_none_where_a_run_missed_the_target():
    assert "2.0 s sooner" in (won := show.race([(6.0, 4.0)] * 6)) and "; significant" in won
    assert "; significant" not in show.race([(6.0, 4.0)]) and " s sooner" not in show.race([(6.0, None), (6.0, 4.0)])


@pytest.mark.weekly
def test_the_race_runs_the_learners_program(tmp_path):
    mine, made = runner.ROOT / "mine", not (runner.ROOT / "mine").exists()
    if made:
        mine.mkdir()
        shutil.copy(runner.ROOT / "lessons/start/train.py", mine)
    try:
        out = tmp_path / "race.json"
        done = runner.run(0, "--one=--batch 48", "--two=--batch 96", "--both=--small --images 192 --epochs 1",
                          "--pairs=1", f"--out={out}", script="lessons/l09_large_batch/race.py")
        assert done.returncode == 0, done.stderr
        [pair] = json.loads(out.read_text())
        assert len(pair["one"]["ms"]) == len(pair["two"]["ms"]) == 1
    finally:
        if made:
            shutil.rmtree(mine)
