import json
import re

import pytest
import torch

from course import one_process, step_memory
from examples.minimal_gpt import GPT, loss_of
from lessons.l13_shard_kept import ahead, check, fit
from tests import runner

PROGRAM = "lessons/start/train_gpt.py"
ODD = ["--width", "36", "--layers", "3", "--batch", "24", "--context", "16"]  # sizes that 3 ranks do not divide


@pytest.mark.parametrize("options", [
    ["--parts", "ours", "--strategy", "fsdp", "--micro-batches", "2", "--clip", "0.1"],
    *(pytest.param(["--parts", parts, "--strategy", "zero"], marks=pytest.mark.weekly) for parts in ("ours", "torch"))])
def test_it_trains_what_one_process_trains(options):
    answers = one_process.compare(PROGRAM, [*ODD, *options], (2, 3), 4)
    assert all(each.equal for each in answers[1:]), [str(each) for each in answers]


@pytest.mark.weekly
def test_clipping_by_the_own_norm_is_another_training():
    _, two = one_process.compare(PROGRAM, [*ODD, "--parts", "ours", "--strategy", "lessons.l13_shard_kept.own_norm",
                                           "--clip", "0.1"], (2,), 4)
    assert not two.equal, two


def run(module, *options, ranks=2):
    done = runner.run(ranks, *options, script=module)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("strategy", "bytes_each"), [("ddp", 16), ("zero", 12), ("fsdp", 8)])
@pytest.mark.weekly
def test_a_rank_keeps(strategy, bytes_each, tmp_path):
    run("course/step_memory.py", "--out", tmp_path, PROGRAM, "--strategy", strategy, "--parts", "ours")
    kept = [step_memory.kept(each) / 829_696 for each in step_memory.read(tmp_path)]
    assert kept == pytest.approx([bytes_each] * 2, rel=0.01)


@pytest.mark.weekly
def test_fully_shard_has_the_same_losses():
    losses = {parts: re.findall(r"loss [\d.]+", run(PROGRAM, *ODD, "--strategy", "fsdp", "--parts", parts,
                                                    "--updates", 6, "--report", 2)) for parts in ("ours", "torch")}
    assert losses["ours"] == losses["torch"] and len(losses["ours"]) == 4


@pytest.mark.weekly
def test_a_later_step_is_right_for_the_earlier_checks():
    assert check.in_backward.verdict("lessons/start/ours/fsdp.py")[0] == "right"


def test_the_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "FITTED", tmp_path / "fit.json")
    rows = [{"micro_batches": m, "recomputed": k, "most": (60 - 10 * k) / m} for m in (1, 2) for k in range(5)]
    check.FITTED.write_text(json.dumps({"budget": 25, "choices": rows}))
    expected = {(1, 4): "right", (2, 0): "wrong", (2, 1): "right", (2, 2): "wrong", (1, 3): "wrong", 3: "wrong"}
    assert {choice: check.fit.verdict(lambda choice=choice: choice)[0] for choice in expected} == expected


def test_recomputed_blocks_have_the_same_gradients():
    torch.manual_seed(0)
    model, windows = GPT(8, 16, 2), torch.randint(256, (3, 9))
    gradients = []
    for count in (0, 2):
        fit.recompute(model, count)
        model.zero_grad()
        loss_of(model, windows).backward()
        gradients.append([each.grad.clone() for each in model.parameters()])
    assert all(map(torch.equal, *gradients))


@pytest.mark.weekly
def test_both_ways_to_gather_are_timed(tmp_path):
    run("lessons/l13_shard_kept/ahead.py", "--rounds", 2, "--width", 16, "--layers", 2, "--batch", 2, "--out",
        tmp_path / "x.json")
    measured = json.loads((tmp_path / "x.json").read_text())
    assert measured["rounds"]["none"].keys() == {"alone", "when needed", "one block ahead"}


@pytest.mark.parametrize(("ranks", "options", "message"), [(1, [], "start two"), (2, ["--rates", "300"], "is no rate")])
def test_bad_input(ranks, options, message, tmp_path, refused):
    assert message in refused(ahead, *options, "--out", tmp_path / "x.json", ranks=ranks)
