"""What lesson 07 says of its results: each condition once."""

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


@pytest.mark.parametrize(("cores", "gpus", "busy", "device", "said"), [
    (2, 0, 3, "one core. This machine has **2 cores**", "we may measure"),
    (16, 1, 10.4, "one GPU. This machine has **1 GPU**", "**close them"),
])
def test_one_device_and_whether_the_machine_is_free(cores, gpus, busy, device, said):
    lines = show.machine(cores, gpus, busy)
    assert device in lines[0] and said in lines[1]


def test_the_plan_counts_the_steps_of_padded_shards():
    one, eight = show.plan([1, 8], devices=2, samples=1000, batch_size=64)
    assert (one["steps an epoch"], eight["steps an epoch"], eight["global batch"]) == (16, 2, 512)
    assert (one["ranks for each device"], eight["ranks for each device"]) == ("0.5", "4")


def test_runs_are_compared_only_where_nothing_else_differs():
    assert "they may be compared" in show.comparable(pd.concat([run("1 rank", 1), run("2 ranks", 2)]), 2)
    bad = pd.concat([run("1 rank", 1), run("2 ranks", 2, epochs=1, status="failed", note="full", threads=2)])
    assert show.comparable(bad, 2) == ["2 ranks: failed, 1 epoch of 2. full", "They differ in `threads`: 1, 2."]


def test_losses_add_up_to_the_ideal():
    table = pd.DataFrame({"world_size": [1, 8], "speedup": [1.0, 1.2]})
    (row,) = show.losses(table, {8: {"ceiling": 1.75, "low": 1.5, "high": 1.9}}, devices=2)
    assert list(row.values()) == [8, "6.00", "0.25 (0.10 to 0.50)", "0.55 (0.30 to 0.70)", "1.20"]
    assert sum(float(value.split()[0]) for value in list(row.values())[1:]) == pytest.approx(8)


@pytest.mark.parametrize(("speedup", "said"), [(1.2, "below every round"), (1.6, "cannot be told from 0"),
                                               (2.0, "**above** every round")])
def test_what_talking_costs_is_told_only_where_it_shows(speedup, said):
    (line,) = show.talking(pd.DataFrame({"world_size": [1, 8], "speedup": [1.0, speedup]}),
                           {8: {"ceiling": 1.75, "low": 1.5, "high": 1.9}})
    assert line.startswith("With 8 ranks") and said in line


def test_phases_are_told_in_milliseconds_a_step_and_the_one_that_grew_is_found():
    df = show.per_step(pd.concat([run("1 rank", 1), run("2 ranks", 2)]))
    assert df["forward_seconds"].tolist() == pytest.approx([50, 50, 100, 100])
    assert show.grown(df) == "backward"
    df.loc[df["world_size"] == 2, "data_seconds"] = [0, 999]  # the first epoch warms up
    assert show.grown(df) == "data"


@pytest.mark.parametrize(("many", "said"), [(1.02, "higher"), (0.98, "lower"), (1.005, "equal")])
def test_losses_are_compared_with_room_for_noise(many, said):
    assert show.compared(many, 1.0) == said


def test_the_published_runs_stand_side_by_side_and_a_cut_page_is_a_dash():
    one = pd.DataFrame({"label": "one", "epoch": [0, 1], "seconds": [20.0, 40.0], "loss": 2.0, "accuracy": 0.3})
    eight = one.head(1).assign(label="eight", seconds=5.0)
    df = pd.concat([one, eight])
    first, second = show.recorded(df)
    assert (first["seconds, eight"], second["seconds, eight"]) == ("5.00", "–")
    assert "between 4.0 and 8.0" in show.published(pd.DataFrame({"speedup": [6.0], "efficiency": [0.75]}), df)


def test_what_was_rounded_is_a_range():
    assert show.rounded(0.06, 8).endswith("from 0.44 to 0.52.")


def test_heads_have_a_row_a_run_without_the_warm_up():
    (row,) = show.heads(run("a", 2))
    assert (row["run"], row["threads a rank"], row["images/s"]) == ("a", 1, "201")
