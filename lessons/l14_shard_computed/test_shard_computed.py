"""Lesson 14: each strategy is one process's training, what it sends, and the orders of pipelines."""

import json
import shutil
from pathlib import Path

import pytest

from course import lesson, one_process, step_memory
from lessons.l14_shard_computed import check, pieces, race, schedule, show
from lessons.start.ours import gpipe, pipe
from tests import runner

PROGRAM = runner.ROOT / "lessons/start/train_gpt.py"
SMALL = ["--updates", "2", "--batch", "8", "--width", "32", "--layers", "5", "--context", "16", "--micro-batches", "4"]


def trained(strategy, parts, ranks, *options):
    return one_process.compare(PROGRAM, ["--strategy", strategy, "--parts", parts, *SMALL, *options], ranks, 2)[1:]


@pytest.mark.parametrize(("strategy", "parts", "ranks"), [
    ("tensor", "ours", [2]), ("pipe", "ours", [3]),
    *(pytest.param(*each, marks=pytest.mark.weekly) for each in (
        ("tensor", "torch", [2, 4]), ("tensor", "ours", [4]), ("gpipe", "ours", [2, 3]), ("pipe", "torch", [2, 3]),
        ("fsdp_tp", "ours", [4]), ("fsdp_tp", "torch", [4])))])
def test_a_strategy_is_one_process_s_training(strategy, parts, ranks):
    answers = trained(strategy, parts, ranks, "--clip", "0.5")
    assert all(answer.equal for answer in answers), "\n".join(map(str, answers))


@pytest.mark.weekly
def test_without_the_backward_of_copy_it_is_another_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    shutil.copy(PROGRAM, "mine")
    first = check.first_program()
    assert "all_reduce(gradient" not in first.with_name("tensor.py").read_text()
    assert (check.layers.parts, check.layers.whose) == ("ours", "ours")
    monkeypatch.chdir(runner.ROOT)
    [_, answer] = one_process.compare(tmp_path / first, ["--strategy", "tensor", *SMALL], [2], 2)
    assert not answer.failure and not answer.equal


@pytest.mark.weekly
@pytest.mark.parametrize(("ranks", "options", "message"), [
    (3, ["--strategy", "tensor"], "no 3 equal pieces"),
    (3, ["--strategy", "pipe", "--layers", 2], "too few for 3 ranks"),
    (2, ["--strategy", "tensor", "--batch", 3, "--micro-batches", 2], "must be a multiple of 1 shares"),
    (3, ["--strategy", "fsdp_tp"], "no mesh of pairs"),
    (2, ["--strategy", "diloco"], "EVERY=0: at least 1"),
    (2, ["--strategy", "hierarchical"], "2 ranks make no nodes of 0"),
    (3, ["--strategy", "hsdp", "--parts", "torch"], "3 ranks make no nodes of 0")])
def test_what_cannot_be_cut_is_refused_in_a_line(ranks, options, message):
    done = runner.run(ranks, "--parts", "ours", "--updates", 1, *options, script=PROGRAM, EVERY="0",
                      RANKS_PER_NODE="0")
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.weekly
def test_the_cells_of_the_notebook_become_a_right_file(tmp_path, monkeypatch):
    """The two backward are put into the class that the first cell has written."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    text = (runner.ROOT / "lessons/start/ours/tensor.py").read_text()
    lesson.mine("tensor.py", text.replace(check.BACK, ""))
    assert check.layers.verdict("mine/tensor.py")[0] == "right"
    assert check.pair.verdict("mine/tensor.py")[0] == "wrong"
    lesson.mine("tensor.py Copy", "@staticmethod\ndef backward(ctx, gradient):\n    gradient = gradient.clone()\n"
                "    dist.all_reduce(gradient, group=ctx.group)\n    return gradient, None\n")
    lesson.mine("tensor.py Sum", "@staticmethod\ndef backward(ctx, gradient):\n    return gradient, None\n")
    assert check.pair.verdict("mine/tensor.py")[0] == "right"


def test_1f1b_is_as_short_as_gpipe_and_keeps_fewer():
    for ranks, micro_batches in ((2, 4), (3, 5), (4, 8), (4, 2)):
        lengths = {}
        for each in (gpipe, pipe):
            orders = [each.my_order(rank, ranks, micro_batches) for rank in range(ranks)]
            lengths[each], waits = schedule.waiting(schedule.computed(orders))
            assert waits == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))
        assert len(set(lengths.values())) == 1
        assert [schedule.most_kept(order) for order in orders] == [
            min(micro_batches, ranks - rank) for rank in range(ranks)]


def test_a_deadlock_is_named():
    orders = [[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]]
    with pytest.raises(ValueError, match="rank 0, before backward 0, waits for rank 1's backward 0; rank 1"):
        schedule.computed(orders)
    assert "deadlock" in check.order.verdict(lambda rank, ranks, micro_batches: [
        (kind, number) for kind in ("backward", "forward") for number in range(micro_batches)])[1]


@pytest.mark.weekly
def test_the_race_times_counts_and_draws(tmp_path):
    done = runner.run(2, "--strategies", "gpipe", "pipe", "--batch", 8, "--micro-batches", 4, "--width", 32, "--layers",
                      2, "--rounds", 2, "--updates", 1, "--draw", "--out", tmp_path / "race.json", script=race.__file__)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "race.json").read_text())
    for way in ("gpipe", "pipe"):
        assert sorted((each["rank"], each["event"], each["text"]) for each in measured["events"][way]) == sorted(
            (rank, kind, str(number)) for rank in range(2) for kind, number in pipe.my_order(rank, 2, 4))
        assert all(len(measured[key]["none"][way]) == 2 for key in ("rounds", "cpu", "faults"))
    assert show.causes({"kept": measured})[0]["memory that is freed"] == "kept"


@pytest.mark.weekly
def test_pieces_are_read_back_from_the_ranks(tmp_path):
    done = runner.run(4, "--strategies", "tensor", "fsdp_tp", "pipe", "--out", tmp_path / "pieces.json",
                      script=pieces.__file__)
    assert done.returncode == 0, done.stderr
    held = json.loads((tmp_path / "pieces.json").read_text())["pieces"]
    assert held["tensor"]["blocks.0.up.weight"][1] == {"first": [32, 0], "shape": [32, 32]}
    assert held["tensor"]["blocks.0.down.weight"][3] == {"first": [0, 96], "shape": [32, 32]}
    assert held["fsdp_tp"]["blocks.0.down.weight"][3] == {"first": [16, 64], "shape": [16, 64]}
    assert [piece is not None for piece in held["pipe"]["blocks.3.up.weight"]] == [False, False, False, True]


@pytest.mark.weekly
def test_1f1b_keeps_fewer_activations_than_gpipe_with_the_same_micro_batches(tmp_path):
    most = {}
    for strategy in ("gpipe", "pipe"):
        done = runner.run(2, "--out", tmp_path / strategy, PROGRAM, "--strategy", strategy, "--parts", "ours",
                          "--batch", 32, "--micro-batches", 8, script=step_memory.__file__)
        assert done.returncode == 0, done.stderr
        most[strategy] = [step_memory.most(curve) - step_memory.kept(curve)
                          for curve in step_memory.read(tmp_path / strategy)]
    assert all(2 * fewer < more for fewer, more in zip(most["pipe"], most["gpipe"], strict=True))
