"""The exam's texts, their targets and their solution; what ranks train; the tables of budget and speed."""

import json
import re
from pathlib import Path

import pytest
import torch

from course.exercise import edited
from course.one_process import compare
from examples.minimal_gpt import GPT
from lessons.l16_language_model import check, notes, show, targets
from tests import runner

FOLDER = Path("lessons/l16_language_model")
SMALL = ["--text", "TROUBLESHOOTING.md", "--width", 32, "--batch", 24, "--updates", 20, "--report", 10, "--write", 90]


def test_a_crop_s_targets_end_with_its_paragraph_or_begin_with_its_answer():
    window = torch.tensor([list(b"ab\n\nc\nd")], dtype=torch.uint8)
    none = targets.NO_TARGET
    assert targets.paragraph(window).tolist() == [[*b"b\n", none, none, none, none]]  # the blank line is no target
    assert targets.answer(window).tolist() == [[none, none, *b"\nc\nd"]]


def test_a_sum_of_no_targets_is_zero_and_a_mean_is_that_of_the_targets():
    torch.manual_seed(0)
    model, window = GPT(6, 8), torch.tensor([list(b"abcdefg")], dtype=torch.uint8)
    assert targets.loss_of(model, window, targets.answer(window), "sum") == 0
    windows = torch.tensor([list(b"ab\n\ncde"), list(b"abcdefg")], dtype=torch.uint8)
    mask = targets.paragraph(windows)
    total, mean = (targets.loss_of(model, windows, mask, how) for how in ("sum", "mean"))
    assert mean.item() == pytest.approx(total.item() / (mask >= 0).sum().item())


def test_the_notebook_s_cell_is_text_a_with_the_stub_s_line():
    cell = (runner.ROOT / "notebooks/text/16_language_model.py").read_text().partition("# %%mine gpt_ranks.py\n")[2]
    text = (runner.ROOT / FOLDER / "text_a.py").read_text().partition('"""\n\n')[2]
    assert cell.startswith(text.replace("def train(args):\n", "def train(args):\n    raise NotImplementedError"
                                        "  # delete this line\n"))


def test_text_b_and_its_solution_differ_from_those_of_a_in_the_same_lines():
    a, b, solved = ((runner.ROOT / FOLDER / f"{name}.py").read_text() for name in ("text_a", "text_b", "solution"))
    lines = edited(solved, check.OF_TEXT["b"]).splitlines()
    new = [line.partition("  #")[0] for line in b.splitlines() if line not in a.splitlines()]
    theirs = [line.partition("  #")[0] for line in lines]
    assert len(new) == 6 and [line for line in new[1:] if line not in theirs] == []


@pytest.mark.weekly
def test_a_solution_of_text_a_is_wrong_for_text_b():
    outcome, message = check.ddp_b.verdict(check.mistake({}))
    assert outcome == "wrong" and "crops" in message


@pytest.mark.weekly
def test_a_file_about_text_b_is_judged_by_text_b(tmp_path):
    (tmp_path / "b.py").write_text("from lessons.l16_language_model.targets import answer as targets_of\n\n\n"
                                   "def train(args):\n    raise NotImplementedError\n")
    assert check.ddp.verdict(tmp_path / "b.py")[0] == "untried"
    (tmp_path / "b.py").write_text(edited((runner.ROOT / FOLDER / "solution.py").read_text(), check.OF_TEXT["b"]))
    assert check.ddp.verdict(tmp_path / "b.py")[1].startswith("Right, exam version B.")


def test_each_note_that_a_message_names_is_there(capsys):
    named = re.findall(r'check\.note\("([^"]+)"\)', " ".join([*check.ddp.mistakes, *check.fsdp.mistakes]))
    assert set(named) == set(notes.NOTES)
    check.note("clip")
    assert "(0.99, 0.13)" in capsys.readouterr().out
    check.note()
    assert "validation" in capsys.readouterr().out


def test_nothing_above_the_exam_says_what_it_judges():
    above = (runner.ROOT / "notebooks/text/16_language_model.py").read_text().partition('check.ddp("mine')[0]
    for decision in ("no_sync", "ranks::", "get_rank", "DistributedDataParallel", "get_model_state_dict", "all_reduce",
                     "minimal_gpt_ddp", "solution.py"):
        assert decision not in above


@pytest.mark.weekly
def test_ranks_train_what_one_process_trains_and_a_mean_of_means_does_not(tmp_path):
    given = ["--text", "TROUBLESHOOTING.md", "--width", "32", "--batch", "24", "--updates", "3", "--write", "1"]
    one, two, three = compare(FOLDER / "solution.py", given, [2, 3], 3)
    assert two.equal and three.equal and max(show.distances(one, three)) < 1e-12
    one, wrong = compare(check.write_mean_of_means(str(tmp_path / "wrong.py")), given, [2], 3)
    assert wrong.one_model and not wrong.equal and min(show.distances(one, wrong)) > 1e-5


@pytest.mark.weekly
@pytest.mark.parametrize("options", [[], ["--fsdp"]], ids=["ddp", "fsdp"])
def test_it_learns_and_the_file_is_a_gpt_s(options, tmp_path):
    done = runner.run(2, *SMALL, *options, "--save", tmp_path / "two.pt", script=FOLDER / "solution.py")
    assert done.returncode == 0, done.stderr
    (first, guess), *_, (last, learnt) = show.reports(done.stdout)
    assert (first, last) == (0, 20) and guess == pytest.approx(5.55, abs=0.1) and learnt < guess - 0.5
    assert show.written(done.stdout)
    GPT(64, 32).load_state_dict(torch.load(tmp_path / "two.pt", weights_only=True))


@pytest.mark.weekly
def test_speeds_are_of_pairs(tmp_path):
    done = runner.run(2, "--program", FOLDER / "solution.py", "--rounds", 1, "--updates", 2, "--out",
                      tmp_path / "speed.json", script=FOLDER / "token_speed.py")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "speed.json").read_text())
    assert results["tokens"] == 96 * 64 and min(results["rounds"]["none"]["ranks"]) > 0


def test_speeds_say_where_the_ranks_pay():
    made_up = {"rounds": {"20mbit": {"one process": [1.0] * 6, "ranks": [3.0] * 6},
                          "none": {"one process": [1.0] * 6, "ranks": [0.5] * 6}}}
    assert show.where_faster(made_up) == ["none"]
    assert show.sentence(made_up) == "The ranks are faster than one process: no limit; slower: 20 Mbit/s."


def test_the_board_scores_who_keeps_budget_and_tokens():
    rows = show.board([show.Try("ddp (ours)", "", 13, 100, 2.5), show.Try("zero (ours)", "", 11, 100, 2.7),
                       show.Try("fsdp (mine)", "", 11, 90, 2.1), show.Try("ddp (ours)", "--width 96", 9, 100, 2.9)],
                      12, 100)
    assert [row["score"] for row in rows] == ["2.700", "2.900", "none", "none"]


def test_what_train_gpt_prints_is_read(tmp_path):
    (tmp_path / "0.json").write_text(json.dumps({"ms": [0, 1], "bytes": [2e6, 5e6], "spans": []}))
    printed = "ddp (ours): 1,000 parameters, 64 tokens per update\nval loss 2.5000 after 1,234 tokens\n"
    assert show.tried("", str(tmp_path), printed) == show.Try("ddp (ours)", "", 2.0, 1234, 2.5)
    with pytest.raises(ValueError, match="no memory"):
        show.tried("", str(tmp_path), "no memory\n")
