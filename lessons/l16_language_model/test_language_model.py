"""The language model learns, ranks learn the same, and what the lesson says of no_sync, MyDDP and the doctor holds."""

import json

import pytest
import torch

from lessons.l16_language_model import check, show
from tests import runner

FOLDER = "lessons/l16_language_model"
SMALL = ["--text", "TROUBLESHOOTING.md", "--width", 32, "--batch", 16, "--updates", 30, "--report", 10, "--write", 20]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    done = runner.run(0, *SMALL, "--save", folder / "one.pt", script="examples/minimal_gpt.py")
    assert done.returncode == 0, done.stderr
    return done.stdout, torch.load(folder / "one.pt", weights_only=True)


def test_the_loss_falls_from_that_of_a_guess(one):
    (first, guess), *_, (last, learnt) = show.reports(one[0])
    assert (first, last) == (0, 30) and guess == pytest.approx(5.55, abs=0.05) and learnt < 4
    assert show.written(one[0]), "it writes at the end"


@pytest.mark.parametrize("options", [[], ["--fsdp"]], ids=["ddp", "fsdp"])
def test_two_ranks_train_what_one_process_trains_and_the_doctor_finds_nothing(options, one, tmp_path):
    done = runner.run(2, "doctor", "examples/minimal_gpt_ddp.py", *SMALL, *options, "--save", tmp_path / "two.pt",
                      script="-m")
    assert done.returncode == 0 and "doctor: nothing found." in done.stdout + done.stderr, done.stderr
    assert show.apart(one[0], done.stdout) < 0.002, "in float32"
    weights = torch.load(tmp_path / "two.pt", weights_only=True)
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in one[1].items()}


@pytest.mark.usefixtures("ranks_find_all_modules_imported")
def test_to_send_each_micro_batch_is_right_and_remarked():
    outcome, text = check.ddp.verdict(check.mistake({check.SYNC: "if True"}))
    assert outcome == "right" and "sent 3 times an update, and once would do" in text, text


def test_each_way_trains_the_same_and_sends_what_the_lesson_says(tmp_path):
    done = runner.run(2, "--wrapper", "lessons/l06_ddp/my_ddp.py:MyDDP", "--rounds", 1, "--steps", 1, "--out",
                      tmp_path / "speed.json", script=f"{FOLDER}/token_speed.py")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "speed.json").read_text())
    gradients, once = 4 * results["parameters"], results["sent"]["ddp"][0]
    assert once == pytest.approx(gradients, rel=0.01), "two ranks send an all-reduce's bytes once"
    assert results["sent"]["each"][0] == results["sent"]["wrapper"][0] == 2 * once
    off = results["off"]
    assert max(off[way] for way in ("ddp", "each", "fsdp", "wrapper")) < 1e-3 < 0.1 < off["never"]
    assert [row[""] for row in show.speeds(results)] == list(show.WORDS.values())
    bars = [bar.get_width() for bar in show.under_ceiling(results).patches[:5]]
    assert bars == pytest.approx([speed[0] / 1000 for way, speed in results["rounds"].items() if way != "never"])


def test_a_token_takes_six_operations_a_parameter_and_the_attention():
    assert show.operations({"parameters": 1000 + 4 * 8, "width": 4, "context": 8}) == 6000 + 12 * 2 * 4 * 8


def test_runs_are_drawn_by_the_tokens_that_they_have_learnt_from():
    run = "update 0, val loss 5.5000\nupdate 10, loss 4.1, val loss 4.0000, 1,234 tokens/s\nwords"
    other = run.replace("4.0000", "4.2500")
    ax = show.learning({"one": run, "two": other}, 100)
    assert [list(line.get_xdata()) for line in ax.lines] == [[0, 1], [0, 1]]
    assert list(ax.lines[1].get_ydata()) == [5.5, 4.25] and show.apart(run, other) == 0.25
    assert show.written(run) == "words"
