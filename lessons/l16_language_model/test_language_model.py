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


def test_to_send_each_micro_batch_is_right():
    assert check.ddp.verdict(check.mistake({check.SYNC: "if True"}))[0] == "right"


def test_each_way_trains_the_same_and_sends_what_the_lesson_says(tmp_path):
    done = runner.run(2, "--wrapper", "lessons/start/ours/my_ddp.py:MyDDP", "--rounds", 1, "--steps", 1, "--out",
                      tmp_path / "speed.json", script=f"{FOLDER}/token_speed.py")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "speed.json").read_text())
    gradients, once = 4 * results["parameters"], results["sent"]["ddp"][0]
    assert once == pytest.approx(gradients, rel=0.01), "two ranks send an all-reduce's bytes once"
    assert results["sent"]["each"][0] == results["sent"]["wrapper"][0] == 2 * once
    off = results["off"]
    assert max(off[way] for way in ("ddp", "each", "fsdp", "wrapper")) < 1e-3 < 0.1 < off["never"]


def test_a_token_takes_six_operations_a_parameter_and_the_attention():
    assert show.operations({"parameters": 1000 + 4 * 8, "width": 4, "context": 8}) == 6000 + 12 * 2 * 4 * 8
