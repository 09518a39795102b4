"""Lesson 07: which runs may be compared, and where the ideal speed-up goes."""

import pandas as pd
import pytest

from lessons.l07_performance import show


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


def test_losses_add_up_to_the_ideal():
    table = pd.DataFrame({"world_size": [1, 8], "speedup": [1.0, 1.2]})
    (row,) = show.losses(table, {8: {"ceiling": 1.75, "low": 1.5, "high": 1.9}}, devices=2)
    assert list(row.values()) == [8, "6.00", "0.25 (0.10 to 0.50)", "0.55 (0.30 to 0.70)", "1.20"]
    assert sum(float(value.split()[0]) for value in list(row.values())[1:]) == pytest.approx(8)


@pytest.mark.parametrize(("speedup", "verdict"), [(1.2, "below every round"), (1.6, "cannot be told from 0"),
                                                  (2.0, "**above** every round")])
def test_talking_costs_only_below_every_round_of_the_ceiling(speedup, verdict):
    (line,) = show.talking(pd.DataFrame({"world_size": [1, 8], "speedup": [1.0, speedup]}),
                           {8: {"ceiling": 1.75, "low": 1.5, "high": 1.9}})
    assert line.startswith("With 8 ranks") and verdict in line


def test_the_phase_that_grew_is_in_milliseconds_a_step_after_the_warm_up():
    df = show.per_step(pd.concat([run("1 rank", 1), run("2 ranks", 2)]))
    assert df["forward_seconds"].tolist() == pytest.approx([50, 50, 100, 100])
    assert show.grown(df) == "backward"
    df.loc[df["world_size"] == 2, "data_seconds"] = [0, 999]  # the first epoch warms up
    assert show.grown(df) == "data"
