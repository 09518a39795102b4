"""What lesson 11 says of its results, and the model of how often to save."""

import math
import shutil

import pytest

from course.predict import checkpoints
from lessons.l11_fault_tolerance import show

LOG = [{"kind": "run", "time": 90.0}, {"kind": "epoch", "epoch": 0, "seconds": 10, "checkpoint_seconds": 0.5,
                                       "loss": 2.0},
       {"kind": "end", "time": 100.5, "status": "failed"},
       {"kind": "restart", "time": 107.0, "epoch": 1, "step": 10, "world_size": 1},
       {"kind": "epoch", "epoch": 1, "seconds": 10, "checkpoint_seconds": 9.0, "loss": 1.5},
       {"kind": "end", "time": 120.0, "status": "completed"}]
KILL = {"kills": [{"time": 100.0}], "said": ["a line", "rank(s) 0 waited in epoch 1, step 36, at `loss`; no word"]}


def test_the_table_of_errors_has_those_that_left_none():
    said = {"attempt_0/1": "nan"}
    rows = show.error_files(["attempt_0/0", "attempt_0/1", "attempt_1/0"], said)
    assert [list(row.values()) for row in rows] == [["0", "0", "(there is none)"], ["0", "1", "nan"],
                                                   ["1", "0", "(there is none)"]]
    assert show.second_attempt(said) == "ends well" and show.second_attempt({"attempt_1/0": "nan"}) == "fails"


def test_what_a_kill_cost_is_the_sum_of_what_is_shown():
    again, parts = show.kill_cost(LOG, KILL, steps=50)
    assert again == 25 and list(parts.values()) == [0.5, 6.5, 25 * 10 / 50]
    assert show.cost_rows(again, parts)[-1] == {"after the kill": "**together, with 25 steps made again**",
                                                "seconds": "12.00"}


def test_a_kill_of_rank_0_leaves_less_to_tell():
    log = [record for record in LOG if record.get("status") != "failed"]
    again, parts = show.kill_cost(log, KILL | {"said": []}, steps=50)
    assert again is None and parts == {"noticed, ended, and started again": 7.0}
    assert "not known" in show.cost_rows(again, parts)[-1]["after the kill"]


def test_trainings_that_differ_are_said_to_differ():
    assert "bit for bit" in show.apart(LOG, LOG, 0) and "equal, too" in show.apart(LOG, LOG, 0)
    assert "differ by up to 1.0e-03" in show.apart(LOG, LOG, 1e-3)
    assert "epochs differ" in show.apart(LOG, LOG[:-2], 0)


def test_a_write_is_timed_in_epochs_that_were_begun_once():
    assert show.write_seconds(LOG, steps=50, every=20) == 0.5 / 2


def test_an_epoch_shorter_than_the_interval_may_have_no_write():
    log = [{"kind": "epoch", "epoch": 0}, {"kind": "epoch", "epoch": 1, "checkpoint_seconds": 0.5}]
    assert show.write_seconds(log, steps=32, every=35) == 0.5


def test_the_three_times_have_a_unit_each():
    assert show.three(0.0251, 8.44, 11_135) == "δ = 25 ms, R = 8.4 s, M = 3.1 h"


def test_youngs_interval_is_the_best_of_the_sum():
    for write, between in [(2.0, 360_000.0), (0.03, 86_400.0)]:
        best = math.sqrt(2 * write * between)
        costs = [sum(checkpoints.lost(best * factor, write, between, 7).values()) for factor in (1, 0.5, 0.99, 1.01, 2)]
        assert min(costs) == costs[0]
        assert checkpoints.drawn(best, write, between, 7) == pytest.approx(costs[0], rel=0.1)


def test_more_nodes_fail_more_often_and_small_shares_are_not_nought():
    rows = show.by_nodes((1, 2048), 0.02, 6000, 7)
    assert [row["a failure every, h"] for row in rows] == ["6,000.0", "2.9"]
    assert [row["best interval, s"] for row in rows] == ["930", "21"]
    assert [row["restarts, %"] for row in rows] == ["< 0.001", "0.066"]


def test_of_a_console_the_story_is_left():
    console = ("cifar10: 1 image\nlenet, ddp: 1 rank(s) x batch 64 = 64 images a step\nEpoch: 0\n"
               "rank(s) 0 waited in epoch 1, step 2, at `x`; no word from rank(s) 1: look there first ([/a.cc] no)\n"
               "Going on from kept, in epoch 1 after step 2 (restart 1)\n")
    assert show.essential(console).splitlines() == [
        "lenet, ddp: 1 rank(s) x batch 64 = 64 images a step",
        "rank(s) 0 waited in epoch 1, step 2, at `x`; no word from rank(s) 1: look there first",
        "Going on from kept, in epoch 1 after step 2 (restart 1)"]
    assert show.images_alone(console) == 64 and show.images_alone("2 rank(s) x batch 32") is None


def test_each_change_of_nodes_has_a_row():
    log = [LOG[3], LOG[3] | {"time": 130.0, "epoch": 7, "world_size": 2}]
    moments = {"began": 90, "node1 is killed": 100, "node1 is started again": 115}
    assert [list(row.values()) for row in show.changes(log, moments)] == [
        ["node1 is killed", "7.0", 1, 1, 10], ["node1 is started again", "15.0", 2, 7, 10]]


def test_a_timeout_that_this_torch_does_not_have_is_left_out():
    assert show.waits({"seen": 5.06, "NCCL": None, "gloo": 1800.0}) == [
        {"timeout": "seen", "seconds": "5.1", "GPU hours, 64 GPUs wait": "0.09"},
        {"timeout": "gloo", "seconds": "1,800.0", "GPU hours, 64 GPUs wait": "32"}]


# ------------------------------------------------------------------------------------------------ who is started again

STEPS = [{"kind": "step", "step": step, "groups": groups, "time": time} for step, groups, time in (
    (1, 1, 96.0), (2, 2, 97.0), (3, 2, 99.9), (4, 1, 101.5), (5, 1, 102.0), (6, 2, 103.0))]
STEPS.insert(0, {"kind": "run", "time": 95.0})
STEPS.insert(4, {"kind": "attempt", "step": 4, "groups": 2, "time": 100.2})
NOTED = {"apart": 0, "off": 0.1, "largest": 0.5}


def test_how_all_were_started_again():
    log = [LOG[0], LOG[1] | {"time": 98.0}, LOG[3], LOG[4] | {"time": 112.0}]
    way = show.started_again(log, KILL, steps=50)
    assert (way["gap"], way["again"], way["unseen"], way["done"], way["speed"]) == (7.0, 25, 0, 85, 8.5)
    assert way["pieces"] == [[(-10.0, 0), (-2.0, 50), (0, 85)],
                                                                 [(7.0, 60), (12.0, 100)]]


def test_how_one_went_on_and_the_other_came_back():
    way = show.went_on(STEPS, killed=100.0, batch=32)
    assert way["gap"] == pytest.approx(1.6) and way["speed"] == pytest.approx(3 / 4.9)
    assert (way["alone"], way["back"], way["done"]) == (2, 3.0, 3)
    assert way["again"] == 1, "an attempt that did not count was made again"
    assert way["unseen"] == 3 * 32, "the step that was made alone before the kill, too"
    assert way["images"] == [(1, 32), (2, 64), (3, 64), (4, 32), (5, 32), (6, 64)]
    assert show.came_back(way, NOTED) == (
        "The killed group trained again 3.0 s after the kill. In between the other made 2 steps alone. Both ended with "
        "the same weights, **bit for bit**. From those of the undisturbed run they are off by up to 0.1: 20 % of the "
        "largest weight there.")
    assert "differ by up to 1.0e-03" in show.came_back(way, NOTED | {"apart": 1e-3})
    late = show.went_on(STEPS[:-1], killed=100.0, batch=32)
    assert late["back"] is None and "too late" in show.came_back(late, NOTED)


def test_the_recorded_recoveries_are_told():
    ways, noted = show.ways("results/recorded/restart-nothing", 32)
    rows = show.recovery_rows(ways, noted["loss"])
    assert [row["after the kill"].split(":")[0] for row in rows] == ["torchrun", "queue", "torchft", "(undisturbed)"]
    ends = [row["test loss, end"] for row in rows]
    assert ends[0] == ends[1] == ends[3] != ends[2], "a restart gives the undisturbed run, torchft another one"
    alone = ways[show.ALONE]
    assert alone["unseen"] == 32 * alone["alone"] > 0 == noted["apart"], "no step was made alone before the kill"
    assert alone["again"] <= 1 and noted["off"] > 0


@pytest.mark.parametrize("log", ["11_whole", "11_killed", "11_again", "11_groups/group0"])
def test_a_recovery_whose_log_is_cut_short_is_not_told(log, tmp_path):
    shutil.copytree("results/recorded/restart-nothing", tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"{log}.jsonl"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ValueError, match=f"{log}.jsonl is cut short"):
        show.ways(tmp_path, 32)


def test_one_of_many_groups_loses_less_than_all():
    (row,) = show.both_ways([10], write=8, restart=360, node_hours=10, gap=3.6)
    # M = 3600 s: Young's interval 240 s loses 8/240 + 240/7200, the restart 360/3600; a gap 3.6/3600, and 36/3600
    assert (row["all start again: lost, %"], row["one group does: lost, %"]) == ("17", "1.1")
    assert row["a failure every, h"] == "1.0"


def test_it_says_whose_runs_they_are():
    said = show.which_groups("torchft is not installed", "results/recorded/restart-nothing")
    assert "Recorded" in said and "because torchft is not installed. There each run had 12 epochs." in said
    assert show.which_groups(None, "results/live").startswith("Live")
