"""lessons/l13_beyond_ddp/shard_in_use.py: FSDP2 as it is used, compared with one process and with the bytes
predicted."""

import json
import re

import pytest

from course import predict
from lessons.l13_beyond_ddp import show, tiny_transformer
from tests import runner

SCRIPT, STEPS = "lessons/l13_beyond_ddp/shard_in_use.py", 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("in_use")


@pytest.fixture(scope="module")
def found(folder):
    done = runner.run(4, "--save", folder / "dcp", "--steps", STEPS, "--out", folder / "four.json", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "four.json").read_text())


def sent(counted):
    """{collective: bytes}, without the loss, which all ranks add up: four bytes."""
    return {row["collective"]: row["bytes"] for row in counted["sent"] if row["bytes"] > 100}


@pytest.mark.parametrize("way", ["fsdp", "recomputed", "hsdp"])
def test_what_stays_in_32_bits_trains_the_model_of_one_process(found, way):
    assert found["ways"][way]["gradient_off"] < 1e-5 and found["ways"][way]["weights_off"] < 1e-5


def test_16_bits_are_gathered_and_32_are_stored(found):
    mixed, plain = (found["ways"][way] for way in ("mixed", "fsdp"))
    # bfloat16 rounds each value by up to 2^-8; Adam moves a weight by about its rate, whatever the gradient's size.
    assert 1e-4 < mixed["gradient_off"] < 0.02
    assert mixed["weights_off"] < 2 * STEPS * tiny_transformer.ADAM["lr"]
    assert plain["change_off"] < 1e-5 < mixed["gradient_off"] < mixed["change_off"] < 0.2
    for counted, other in zip(mixed["ranks"], plain["ranks"], strict=True):
        assert set(counted["types"].values()) == {"float32"}
        assert {row["type"] for row in counted["sent"] if row["collective"] == "all_gather"} == {"bfloat16"}
        assert {row["type"] for row in counted["sent"] if row["collective"] == "reduce_scatter"} == {"float32"}
        assert counted["held"]["activations"] < 0.6 * other["held"]["activations"]
        assert 2 * counted["held"][predict.memory.MOMENT] == other["held"][predict.memory.MOMENT]


@pytest.mark.parametrize(("way", "arguments"), [
    ("fsdp", {"shards": 4}), ("mixed", {"shards": 4, "gathered": 2}), ("recomputed", {"shards": 4}),
    ("hsdp", {"shards": 2, "copies": 2})])
def test_the_bytes_sent_are_those_predicted(found, way, arguments):
    predicted = predict.memory.sent_by_fsdp(tiny_transformer.SHAPE, **arguments)
    assert [sent(counted) for counted in found["ways"][way]["ranks"]] == [predicted] * 4


def test_recomputing_keeps_the_input_of_each_block_and_one_block_at_a_time(found):
    for counted, other in zip(found["ways"]["recomputed"]["ranks"], found["ways"]["fsdp"]["ranks"], strict=True):
        shape, batch = tiny_transformer.SHAPE, found["batch"] // 4
        layer, its_input = (predict.memory.activations(shape, batch, recompute=what, dropout=False, size=4, stats=True)
                            for what in ("none", "all"))
        saves = other["held"]["activations"] - counted["held"]["activations"]
        assert saves == shape.layers * (layer - its_input)
        assert counted["alive"] < 0.6 * other["alive"], "not all blocks are there again at the same time"
        assert 1.15 * other["operations"] < counted["operations"] < 4 / 3 * other["operations"]
    counted, predicted = re.findall(r"(\d+)%", show.made_again(found, shape))
    assert counted == predicted


def test_hsdp_adds_up_over_the_copies(found):
    for rank, counted in enumerate(found["ways"]["hsdp"]["ranks"]):
        of = {row["collective"]: row["ranks"] for row in counted["sent"] if row["bytes"] > 100}
        row = [0, 1] if rank < 2 else [2, 3]
        assert of == {"all_gather": row, "reduce_scatter": row, "all_reduce": [rank % 2, rank % 2 + 2]}
        on_two = predict.memory.count(tiny_transformer.SHAPE, "fsdp", 2, found["batch"])[rank % 2]
        assert counted["held"]["parameters"] == on_two["parameters"]


def test_a_norm_of_all_shards_clips_as_one_process_and_that_of_its_own_does_not(found):
    one, right, wrong = (found["clip"][name] for name in ("one", "clip", "clip_own_shards"))
    assert right["type"] == "DTensor" and right["norms"] == pytest.approx(one["norms"], rel=1e-5)
    assert right["weights_off"] < 1e-5 and wrong["weights_off"] > 1e-3
    assert len(set(wrong["norms"])) == 4, "each rank divides by a norm of its own"
    assert sum(norm**2 for norm in wrong["norms"]) == pytest.approx(one["norms"][0]**2, rel=1e-5), "its part of the sum"
    assert (right["calls"], right["sent"]) == (1, 2 * 3 / 4 * 4 * right["parameters"]), "a number for each parameter"
    assert wrong["calls"] == wrong["sent"] == 0
    gathered = predict.memory.sent_by_fsdp(tiny_transformer.SHAPE, 4)["reduce_scatter"]
    assert right["all_gathered"] == gathered, "to make all gradients whole sends as much as their reduce_scatter"


def test_four_ranks_save_and_two_go_on(found, folder):
    done = runner.run(2, "--load", folder / "dcp", "--steps", STEPS, "--out", folder / "two.json", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    loaded = json.loads((folder / "two.json").read_text())["loaded"]
    assert loaded["checksum"] == found["saved"]["checksum"], "bit for bit"
    assert (found["saved"]["rows"], loaded["rows"]) == ([25, 25, 25, 22], [49, 48])
    assert loaded["weights_off"] < 1e-5, "and its optimizer's state came with it"
    assert all(path.suffix != ".json" and not path.is_dir() for path in (folder / "dcp").iterdir()), "no timed ones"


def test_training_goes_on_while_a_checkpoint_is_written_and_changes_nothing_in_it(found):
    timed = found["timed"]
    assert timed["steps"] >= 1, "a step came before it was whole"
    assert timed["as it was"], "it was loaded, and its weights are those of the call"


@pytest.mark.parametrize(("arguments", "said"), [
    (["--save", "dcp"], "for 4 ranks"), (["--load", "nowhere"], "2 ranks or more"), ([], "required"),
    (["--save", "dcp", "--steps", "1"], "two or more")])
def test_bad_input_is_one_line_and_status_2(arguments, said, tmp_path):
    done = runner.run(0, *arguments, "--out", tmp_path / "x.json", script=SCRIPT)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert said in done.stderr and not list(tmp_path.iterdir())


def test_the_tables_say_what_was_counted(found):
    rows = show.beside(found, "mixed")
    held = found["ways"]["mixed"]["ranks"][0]["held"]
    assert rows[0] == {"of rank 0": "parameters, bytes", "FSDP2": f"{held['parameters']:,} float32",
                       "FSDP2, 16 bits": f"{held['parameters']:,} float32"}
    rows = show.sent(found, tiny_transformer.SHAPE)
    assert [row["ranks"] for row in rows if row["way"] == "HSDP"] == ["0 1", "0 1", "0 2"]
    assert 60 < show.sent_share(found) < 70, "weights by half, gradients not: (2 + 2 + 4) / (4 + 4 + 4)"
    assert [row["type of the norm"] for row in show.clipped(found)] == ["Tensor", "DTensor", "Tensor"]
    assert [row["way"] for row in rows if row["rank 0 sends in a step, bytes"] != row["predicted, bytes"]] == []
