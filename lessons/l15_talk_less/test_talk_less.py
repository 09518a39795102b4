"""Lesson 15: what each strategy trains and what it sends between nodes; the recorded program against real ranks."""

import copy
import json
import re

import pytest
import torch

from course import one_process
from lessons.l15_talk_less import check, record, show, speeds
from tests import runner

PROGRAM, OURS = "lessons/start/train_gpt.py", "lessons/start/ours"
TINY = ["--width", "16", "--layers", "1", "--context", "16", "--batch", "24"]
GRADIENTS = 4 * 119_424  # bytes, of --width 64 --layers 2


@pytest.mark.parametrize("name", ["hook", "hierarchical", "local", "outer"])
def test_the_course_s_file_is_right(name):
    part = getattr(check, name)
    file = f"{OURS}/{'diloco' if name == 'outer' else name}.py"
    assert part.verdict(file)[0] == "right"
    part.judged(file, "right")
    assert part.parts == "mine"
    part.judged(file, "wrong")
    assert part.parts == "ours"


def test_outer_sgd_with_rate_1_is_local_sgd_to_rounding():
    assert check.same_as_local_sgd(ranks=3) < 1e-14


@pytest.mark.parametrize("ranks", [4, pytest.param(6, marks=pytest.mark.weekly)])
def test_hierarchical_trains_what_one_process_trains(ranks):
    [_, answer] = one_process.compare(PROGRAM, [*TINY, "--strategy", "hierarchical", "--parts", "ours"], [ranks], 3)
    assert answer.equal, str(answer)


@pytest.mark.weekly
@pytest.mark.parametrize("strategy", ["diloco", "local"])
def test_the_recorded_program_trains_what_four_real_ranks_train(strategy, monkeypatch):
    monkeypatch.setenv("EVERY", "4")
    options = [*TINY[:-1], str(record.BATCH), "--strategy", strategy, "--parts", "ours", "--updates", "10"]
    [_, answer] = one_process.compare(PROGRAM, options, [record.RANKS], 10)
    torch.set_default_dtype(torch.float64)
    try:
        outer = 0.7 if strategy == "diloco" else None
        steps = [[copy.deepcopy(each.state_dict()) for each in models]
                 for models in record.train(strategy, 4, 3e-3, outer, 0, 10, context=16, width=16, layers=1)]
    finally:
        torch.set_default_dtype(torch.float32)
    for rank, real in enumerate(answer.records):
        assert len(real.weights) == len(steps)
        for update, weights in enumerate(real.weights):
            for name, value in weights.items():
                torch.testing.assert_close(steps[update][rank][name], value, rtol=1e-9, atol=1e-12)


SENT = {"ddp": 3, "hook": 1.5, "hierarchical": 2, "hsdp": 2, "local": 3 / 8}  # between nodes per update, in GRADIENTS


@pytest.mark.weekly
@pytest.mark.parametrize("strategy", SENT)
def test_bytes_between_two_nodes_are_those_of_the_formula(strategy, tmp_path):
    parts = "torch" if strategy in ("ddp", "hsdp") else "ours"
    done = runner.run(4, "-m", "course.dial", "--count", tmp_path / "count.json", PROGRAM, "--width", 64, "--layers", 2,
                      "--batch", 4, "--updates", 16, "--strategy", strategy, "--parts", parts, script="-u", EVERY="8")
    assert done.returncode == 0, done.stderr
    megabytes = show.between(json.loads((tmp_path / "count.json").read_text()))
    assert 1e6 * megabytes == pytest.approx(SENT[strategy] * GRADIENTS, rel=0.02)


def test_only_pairs_on_different_nodes_cross_the_link():
    table = [[0, 1, 10, 100], [1, 0, 1000, 0], [0, 0, 0, 5], [7, 0, 5, 0]]
    assert show.crossing(table) == 10 + 100 + 1000 + 7


def test_the_tuned_rates_are_the_best_of_seed_0():
    def line(lr, seed, loss):
        return {"strategy": "local", "every": 8, "lr": lr, "outer": None, "seed": seed, "val": [[80, loss]]}

    lines = [line(0.1, 0, 2.0), line(0.2, 0, 1.5), line(0.2, 2, 1.9), line(0.2, 1, 1.7), line(0.1, 1, 1.0)]
    assert show.tuned(lines) == {("local", 8): [lines[1], lines[3], lines[2]]}


def test_a_search_ends_when_both_neighbours_are_worse():
    tried = []
    assert record.best(1.0, lambda rate: tried.append(rate) or abs(rate - 4)) == 4
    assert sorted(tried) == [0.5, 1, 2, 4, 8]


def test_each_recorded_training_has_100_outer_steps_and_went_to_its_end():
    for line in show.recording():
        assert (line["strategy"], line["every"]) in record.STRATEGIES
        assert line["updates"] // line["every"] >= 100 and line["val"][-1][0] == line["updates"]


def test_a_large_batch_is_one_update_of_several():
    """Its gradient is that of all crops at once."""
    given = {"lr": 1e-3, "outer": None, "seed": 0, "updates": 4, "context": 8, "width": 16, "layers": 1}
    *_, [two] = record.train("large", 2, **given)
    first, *_ = [copy.deepcopy(models[0].state_dict()) for models in record.train("large", 2, **given)]
    torch.manual_seed(0)
    fresh = record.GPT(8, 16, 1).state_dict()
    assert all(torch.equal(fresh[name], value) for name, value in first.items())  # no update after the first batch
    assert not torch.equal(two.state_dict()["head.weight"], fresh["head.weight"])


def test_the_summary_says_what_ddp_sends_to_get_as_far():
    def line(strategy, every, losses):
        return {"strategy": strategy, "every": every, "lr": 0.1, "outer": None, "seed": 0,
                "val": [[80 * number, loss] for number, loss in enumerate(losses, 1)]}

    [sentence] = show.summary([line("ddp", 1, [3, 2, 1]), line("local", 8, [3.5, 2.5, 2.2])], {"ddp": 1, "local": 0.1})
    assert re.findall(r"[\d.]+(?= with| MB|, with)", sentence) == ["2.200", "24", "1.000", "240", "160", "160"]


@pytest.mark.weekly
def test_speeds_times_each_strategy_at_each_rate(tmp_path):
    done = runner.run(4, "--rounds", 1, "--between", "50mbit", "200mbit", "--out", tmp_path / "speeds.json",
                      script="lessons/l15_talk_less/speeds.py")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "speeds.json").read_text())
    assert measured["rounds"].keys() == {"50mbit", "200mbit"} and measured["every"] == 8
    assert measured["parameters"] * 4 == GRADIENTS
    assert all(rounds.keys() == speeds.STRATEGIES.keys() for rounds in measured["rounds"].values())


@pytest.mark.parametrize(("ranks", "options", "message"), [
    (2, [], "two nodes of two ranks"), (4, ["--between", "20"], "is no rate"), (4, ["--mine", "ddp"], "--mine")])
def test_bad_input(ranks, options, message, tmp_path, refused):
    assert message in refused(speeds, "--out", tmp_path / "x.json", *options, ranks=ranks)
    assert not list(tmp_path.iterdir())
