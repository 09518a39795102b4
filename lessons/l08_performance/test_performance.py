"""Lesson 08: its programs on ranks, its model, and the figures that it takes from them."""

import json

import pytest

from lessons.l08_performance import check, losses, show, step_map, waking
from tests import runner

FOLDER = "lessons/l08_performance"


def written(ranks, script, path, *arguments):
    done = runner.run(ranks, *arguments, "--out", path, script=f"{FOLDER}/{script}.py")
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.weekly
@pytest.mark.parametrize(("ranks", "options", "ways"), [
    (3, [], [("alone", 1, 64), ("apart", 2, 64), ("ddp", 2, 64), ("apart", 3, 64), ("ddp", 3, 64)]),
    (2, ["--global-batches", 14], [("alone", 1, 14), ("ddp", 2, 7)])])
def test_each_way_is_measured_in_each_round(ranks, options, ways, tmp_path):
    measured = written(ranks, "losses", tmp_path / "x.json", "--dataset", "synthetic", "--rounds", 2, "--seconds", 0.05,
                       *options)
    assert [(each["way"], each["ranks"], each["batch"]) for each in measured["speeds"]] == ways
    assert all(len(each["rounds"]) == 2 and min(each["rounds"]) > 0 for each in measured["speeds"])


@pytest.mark.weekly
def test_a_step_is_measured_with_its_parts_and_its_time_on_the_wire(tmp_path):
    measured = written(2, "step_map", tmp_path / "x.json", "--cells", "7@100mbit", "--parts", "--rounds", 1)
    assert measured["buckets"] == [529_960, 73_984, 20_352], "as the film of train.py has them"
    [[first, *rest, backward, step]] = measured["computing"]["7"]
    assert 0 < first <= max(first, *rest) <= backward <= step
    assert measured["messages"]["100mbit"]["2119840"][0] == pytest.approx(0.170, rel=0.4), "by its bytes"
    assert measured["steps"]["7@100mbit"][0] > 0.04, "the first bucket alone takes 42 ms"


@pytest.mark.weekly
def test_an_all_reduce_is_timed_in_four_situations(tmp_path):
    rounds = written(2, "waking", tmp_path / "x.json", "--rounds", 1, "--calls", 2)["rounds"]
    assert {name.split(maxsplit=1)[1] for name in rounds} == show.SITUATIONS.keys()
    assert {int(name.split()[0]) for name in rounds} == {400, 248_024}
    assert show.cause(rounds) == "neither" and len(show.claims(rounds)) == 6, "one round names none"


@pytest.mark.parametrize(("pause", "computed", "cause"), [
    ([2] * 6, [3] * 6, "either"), ([2] * 6, [1, 2] * 3, "pause"), ([1] * 6, [3] * 6, "computed"),
    ([1, 2] * 3, [0.5] * 6, "neither")])
def test_a_cause_makes_a_message_significantly_longer(pause, computed, cause):
    assert show.cause({"4 at once": [1] * 6, "4 pause": pause, "4 computed": computed}) == cause


@pytest.mark.parametrize(("program", "ranks", "arguments", "message"), [
    (losses, 1, [], "--nproc_per_node=2"), (losses, 2, ["--dataset", "synthetic", "--global-batches", 7], "a multiple"),
    (step_map, 1, ["--cells", "7@100mbit"], "--nproc_per_node=2"), (step_map, 2, ["--cells", "7"], "--cells 7"),
    (step_map, 2, ["--cells", "7@fast"], "is no rate"), (waking, 1, [], "--nproc_per_node=2")])
def test_bad_input(program, ranks, arguments, message, tmp_path, refused):
    assert message in refused(program, *arguments, "--out", tmp_path / "x.json", ranks=ranks)
    assert not list(tmp_path.iterdir())


def test_a_bucket_waits_for_its_gradients_and_for_the_link():
    assert check.predict([4, 7, 10], 10, 11, [8, 2, 1]) == (16, 5)  # 4 to 12, 12 to 14, 14 to 15
    assert check.predict([4, 7, 10], 10, 11, [1, 1, 0]) == (11, 0)


def test_a_step_is_predicted_from_the_parts_of_two_batches():
    corners = {"computing": {"30": [[3, 4, 5]], "10": [[1, 2, 3]]}, "buckets": [2_000_000],
               "messages": {"8mbit": {"1000000": [1.0], "3000000": [3.0]}}}
    step_of = show.steps(check.predict, check.my_message, corners)
    assert step_of(20, "8mbit", corners) == (5, 1)  # full after 2 s, 2 s on the wire, backward ends after 3
    assert step_of(20, "16mbit", corners) == (4, 0)


def test_the_straggler_of_a_film_computes_longest():
    spans = [{"lane": "compute", "step": step, "rank": rank, "d": d} for step in range(3)
             for rank, d in ((1, 9e4), (0, 1e4), (0, 2e4))] + [{"lane": "wait", "step": 0, "rank": 0, "d": 9e9}]
    assert show.computed({"spans": spans}) == [[0.03, 0.09]] * 3
    assert check.my_straggler(show.computed({"spans": spans})) == (1, pytest.approx(0.06))


def test_the_batch_that_pays_is_the_smallest_that_reaches_what_is_wanted():
    speeds = [{"way": way, "ranks": ranks, "batch": batch // ranks, "rounds": [speed * batch] * 6}
              for batch, speed in ((64, 1.2), (512, 1.8), (1024, 1.9)) for way, ranks, speed in (
                  ("alone", 1, 1.0), ("ddp", 2, speed))]
    measured = show.by_batch(speeds)
    assert {batch: each.median for batch, each in measured.items()} == pytest.approx({64: 1.2, 512: 1.8, 1024: 1.9})
    assert show.paying(measured, 1.7) == 512 and show.paying(measured, 3) == 1024
