"""What lesson 02 says of its results."""

import pytest

from lessons.l02_data_parallel import show


def test_the_schematic_has_a_box_where_a_device_has_work():
    boxes = show.steps(4, rows=5)  # 2, 2, 1: the last device gets nothing
    by_step = {box["step"]: [each["device"] for each in boxes if each["step"] == box["step"]] for box in boxes}
    assert list(by_step) == ["batch", "1. scatter", "2. replicate", "3. apply", "4. gather", "loss", "backward",
                             "way back", "update"]
    assert by_step["3. apply"] == by_step["backward"] == [0, 1, 2] and by_step["loss"] == [0]
    assert [box["has"] for box in boxes if box["step"] == "1. scatter"] == ["2\nrows", "2\nrows", "1\nrows"]
    (gathered,) = [box for box in boxes if box["step"] == "4. gather"]
    assert gathered["source"] == [0, 1, 2] and gathered["has"] == "5\noutputs"


def test_what_the_real_one_did_follows_the_gpus():
    assert show.forwards(0, [64]).startswith("No GPU here: `forward` ran once, on all 64 rows.")
    assert show.forwards(1, [64]).startswith("One GPU here")
    assert show.forwards(3, [20, 22, 22]) == "3 GPUs here: `forward` ran 3 times, on 20, 22, 22 rows."


def test_phases_are_medians_and_say_who_works():
    rows = show.phases([{"scatter": 0.001, "apply": ms / 1000} for ms in (3, 2, 90)])
    assert [list(row.values())[1:] for row in rows] == [
        ["device 0, for all", "1.00", "25%"], ["all devices", "3.00", "75%"], ["", "4.00", "100%"]]


@pytest.mark.parametrize(("threads", "processes", "said"), [
    (1.0, 1.1, "does **not** show"), (1.4, 1.2, "does **not** show"), (1.05, 1.8, "That is the lock"),
    (1.7, 1.8, "no lock, or")])
def test_the_lock_is_seen_only_where_processes_gain(threads, processes, said):
    assert said in show.lock(threads, processes)


def test_a_speed_up_is_that_of_the_fastest_runs():
    (row,) = show.speedups({("sums", 1): [0.3, 0.2], ("sums", 4): [0.5, 0.1]})
    assert row == {"work": "sums", "1 worker, ms": "200", "4 workers, ms": "100", "times as fast": "2.00"}
