"""What lesson 14 says of its results."""

import math
from types import SimpleNamespace

import pytest

from lessons.l14_make_it_faster import show

CHANGES = {name: SimpleNamespace(text=name.upper()) for name in ("nothing", "bf16", "compile", "channels-last")}
NOISE = {"gain": 1.0, "low": 0.95, "high": 1.05, "quartiles": [0.99, 1.01]}


def profile(**changes):
    names = {"aten::convolution_backward": 5, "aten::addmm": 1, "Optimizer.step#Adam.step": 1, "aten::relu": 2,
             "aten::index_select": 1}
    return {"operators": [{"name": name, "ms": ms, "calls": 1} for name, ms in names.items()],
            "phases": {"data": 1, "forward": 4, "backward": 4, "update": 1}, "halves": [10, 10.5],
            "medians": {"data": 1, "forward": 4, "backward": 4, "update": 1, "wait": 1, "least wait": 0.5},
            "batch_size": 64, "small_batch": 16, "small_batch_step": 4, "one_by_one_data": 6} | changes


def run(**changes):
    return {"models": {"lenet": profile(**changes)}, "world_size": 1, "cores": 2}


def measured(**changes):
    row = {"gain": 1.5, "low": 1.4, "high": 1.6, "quartiles": [1.45, 1.55], "losses": [2.1, 2.2], "gradient_off": 0.05}
    return {"lenet": {"nothing": NOISE | {"losses": [2.1, 2.1], "gradient_off": 0.0}, "bf16": row | changes}}


def tables(**changes):
    return show.judged(measured(**changes), run(), CHANGES, ["nothing", "bf16", "compile"])


def test_shares_add_up_with_everything_else():
    shares = show.shares(profile())
    assert math.isclose(sum(shares.values()), 1) and shares["everything else"] == pytest.approx(0.3 - 1 / 11)
    assert show.most(run(), "lenet") == "convolution"
    assert [row["part"] for row in show.parts(run())][-1] == "everything else"


def test_a_profiler_that_makes_faster_is_a_disturbance():
    assert show.disturbed(profile()) == ""
    assert "no profiler" in show.disturbed(profile(halves=[12, 13]))
    assert "its speed" in show.disturbed(profile(halves=[8, 11]))


def test_waiting_is_a_share_of_the_profiled_step():
    assert show.waiting(run(), "lenet") == pytest.approx(100 / 11)


def test_a_library_that_cannot_keep_memory_is_told():
    assert show.can_keep({"can_keep": True}) == "" and "noise" in show.can_keep({"can_keep": False})


def test_each_change_is_judged_or_said_not_to_have_been_tried():
    table = tables()["LeNet"].set_index("change")
    assert list(table["verdict"]) == ["no difference seen", "pays", "not tried"]
    assert show.judged(measured(gain=float("nan")), run(), CHANGES, ["nothing"])["LeNet"].shape[0] == 1
    assert show.gain(tables(), "lenet", "bf16") == 1.5 and show.gain(tables(), "lenet", "compile") == "not tried"
    assert "**BF16**, LeNet" in show.furthest(tables())
    assert show.decided(CHANGES, tables()) == [
        {"change": "BF16", "tried": 1, "paid": 1, "cost": 0, "in main.py": "`--bf16`"},
        {"change": "COMPILE", "tried": 0, "paid": 0, "cost": 0, "in main.py": "`--compile`"}]


def test_bf16_instructions_are_those_that_linux_names():
    assert "avx512_bf16." in show.instructions("flags : fpu avx512_bf16 amx_tile")
    assert "**no" in show.instructions("flags : fpu avx512_bf16x") and "does not tell" in show.instructions("")


def test_where_there_is_no_honest_prediction_there_is_none():
    row, = show.predictions(run(), CHANGES, "nothing channels-last")
    assert row["LeNet"] == "–" and row["how"].startswith("no prediction")


def test_gradients_that_differ_by_rounding_are_one_row():
    assert [row["change"] for row in show.numerics(tables())] == ["BF16", "all others here"]
    assert [row["first gradient is off by"] for row in show.numerics(tables(gradient_off=3e-7))] == ["3e-05 % at most"]


@pytest.mark.parametrize(("found", "words"), [
    (None, "Not tried"), ({"error": "InductorError: no compiler."}, "did not run here"),
    ({**NOISE, "first_update_seconds": [1, 21], "images_an_update": [64, 64],
      "seconds_an_image": [[2 / 64, 1 / 64]] * 3}, "not known to be **ever** paid back"),
    ({"gain": 2, "low": 2, "high": 2, "quartiles": [2, 2], "first_update_seconds": [1, 21],
      "images_an_update": [64, 64], "seconds_an_image": [[2 / 64, 1 / 64]] * 3}, "after **20 updates**"),
])
def test_when_compiling_is_paid_back(found, words):
    assert words in show.compiled(found, NOISE)
    assert show.pays(found, NOISE) == words.startswith("after")


def test_page_faults_are_told_as_memory(monkeypatch):
    monkeypatch.setattr(show.mmap, "PAGESIZE", 4096)
    found = {"models": {"resnet": {"returned": {"faults": 3072.4}}}}
    assert show.given_back(found, result=4 * 2**20) == (
        "3,072 pages of 4 KiB are 12 MiB: in each step, memory for 3.0 such results is given back and asked for again.")
