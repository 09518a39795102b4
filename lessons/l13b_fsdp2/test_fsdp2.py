"""Lesson 13b: FSDP2 as it is used trains the model of one process, and holds and sends the bytes that are predicted."""

import json

import pytest

from course import memory, tiny_transformer
from lessons.l13b_fsdp2 import check, compiled_graphs, fit, shard_in_use, show
from tests import runner

FOLDER = "lessons/l13b_fsdp2"
SHAPE, STEPS = tiny_transformer.SHAPE, 2

pytestmark = pytest.mark.weekly  # each day its notebook is executed, and its exercises are checked


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("in_use")


@pytest.fixture(scope="module")
def in_use(folder):
    done = runner.run(4, "--save", folder / "dcp", "--steps", STEPS, "--out", folder / "four.json",
                      script=f"{FOLDER}/shard_in_use.py")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "four.json").read_text())


@pytest.mark.parametrize("way", ["fsdp", "recomputed", "hsdp"])
def test_what_stays_in_32_bits_trains_the_model_of_one_process(in_use, way):
    assert in_use["ways"][way]["gradient_off"] < 1e-5 and in_use["ways"][way]["weights_off"] < 1e-5


def test_16_bits_are_gathered_and_32_are_stored(in_use):
    mixed, plain = (in_use["ways"][way] for way in ("mixed", "fsdp"))
    # bfloat16 rounds each value by up to 2^-8; Adam moves a weight by about its rate, whatever the gradient's size.
    assert 1e-4 < mixed["gradient_off"] < 0.02
    assert mixed["weights_off"] < 2 * STEPS * tiny_transformer.ADAM["lr"]
    assert plain["change_off"] < 1e-5 < mixed["gradient_off"] < mixed["change_off"] < 0.2
    for counted, other in zip(mixed["ranks"], plain["ranks"], strict=True):
        assert set(counted["types"].values()) == {"float32"}
        types = {(row["collective"], row["type"]) for row in counted["sent"] if row["bytes"] > 100}
        assert types == {("all_gather", "bfloat16"), ("reduce_scatter", "float32")}
        assert counted["held"]["activations"] < 0.6 * other["held"]["activations"]
        assert 2 * counted["held"][memory.MOMENT] == other["held"][memory.MOMENT]


@pytest.mark.parametrize(("way", "arguments"), [
    ("fsdp", {"shards": 4}), ("mixed", {"shards": 4, "gathered": 2}), ("recomputed", {"shards": 4}),
    ("hsdp", {"shards": 2, "copies": 2})])
def test_the_bytes_sent_are_those_predicted(in_use, way, arguments):
    predicted = memory.sent_by_fsdp(SHAPE, **arguments)
    sent = [{row["collective"]: row["bytes"] for row in show.messages(in_use, way, rank)} for rank in range(4)]
    assert sent == [predicted] * 4


def test_recomputing_keeps_the_input_of_each_block_and_one_block_at_a_time(in_use):
    for counted, other in zip(in_use["ways"]["recomputed"]["ranks"], in_use["ways"]["fsdp"]["ranks"], strict=True):
        layer, its_input = (memory.activations(SHAPE, in_use["batch"] // 4, recompute=part, dropout=False, size=4,
                                               stats=True) for part in ("none", "all"))
        saves = other["held"]["activations"] - counted["held"]["activations"]
        assert saves == SHAPE.layers * (layer - its_input)
        assert counted["alive"] < 0.6 * other["alive"], "the blocks do not all live at the same time"
    counted, predicted = show.recomputed(in_use, SHAPE)
    assert counted == pytest.approx(predicted, abs=0.01) and 0.15 < counted < 1 / 3


def test_hsdp_adds_up_over_the_copies(in_use):
    for rank, counted in enumerate(in_use["ways"]["hsdp"]["ranks"]):
        ranks_of = {row["collective"]: row["ranks"] for row in show.messages(in_use, "hsdp", rank)}
        node = [0, 1] if rank < 2 else [2, 3]
        assert ranks_of == {"all_gather": node, "reduce_scatter": node, "all_reduce": [rank % 2, rank % 2 + 2]}
        on_two = memory.count(SHAPE, "fsdp", 2, in_use["batch"])[rank % 2]
        assert counted["held"]["parameters"] == on_two["parameters"]
    sent = sum(memory.sent_by_fsdp(SHAPE, shards=4).values())
    assert show.crossing(in_use, "fsdp") == 2 * sent, "of a ring of four ranks two links cross"
    assert show.crossing(in_use, "hsdp") == 4 * memory.sent_by_fsdp(SHAPE, shards=2, copies=2)["all_reduce"]


def test_a_norm_of_all_shards_clips_as_one_process_and_that_of_its_own_does_not(in_use):
    alone, right, wrong = (in_use["clip"][name] for name in ("one", "clip", "clip_own_shards"))
    assert right["type"] == "DTensor" and right["norms"] == pytest.approx(alone["norms"], rel=1e-5)
    assert right["weights_off"] < 1e-5 and wrong["weights_off"] > 1e-3
    assert len(set(wrong["norms"])) == 4, "each rank divides by a norm of its own"
    assert sum(norm**2 for norm in wrong["norms"]) == pytest.approx(alone["norms"][0]**2, rel=1e-5), "its part"
    assert (right["calls"], right["sent"]) == (1, 2 * 3 / 4 * 4 * right["parameters"]), "a number for each parameter"
    assert wrong["calls"] == wrong["sent"] == 0
    gathered = memory.sent_by_fsdp(SHAPE, 4)["reduce_scatter"]
    assert right["all_gathered"] == gathered, "full_tensor() of all gradients sends as much as their reduce_scatter"


def test_four_ranks_save_and_two_go_on(in_use, folder):
    done = runner.run(2, "--load", folder / "dcp", "--steps", STEPS, "--out", folder / "two.json",
                      script=f"{FOLDER}/shard_in_use.py")
    assert done.returncode == 0, done.stderr
    loaded = json.loads((folder / "two.json").read_text())["loaded"]
    assert loaded["checksum"] == in_use["saved"]["checksum"], "bit for bit"
    assert (in_use["saved"]["rows"], loaded["rows"]) == ([25, 25, 25, 22], [49, 48])
    assert loaded["weights_off"] < 1e-5, "and its optimizer's state came with it"
    assert not [path for path in (folder / "dcp").iterdir() if path.is_dir()], "the timed checkpoints are gone"


def test_training_goes_on_while_a_checkpoint_is_written_and_changes_nothing_in_it(in_use):
    assert in_use["timed"]["steps"] >= 1 and in_use["timed"]["as it was"]


def test_delta_is_all_that_a_checkpoint_takes_from_training():
    timed = {"timed": {"bytes": 1e6, "save": 0.4, "async_save": 0.1, "until whole": 1.1, "slower": 0.1, "steps": 3}}
    assert show.deltas(timed) == {"save": (0.4, 0), "async_save": (0.2, 1.0)}


# ------------------------------------------------------------------------------------------------ fit.py


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """On three ranks; the notebook has two."""
    out = tmp_path_factory.mktemp("fit") / "x.json"
    done = runner.run(3, "--choice", check.fit.ours, "--limit", 4e6, "--steps", STEPS, "--out", out,
                      script=f"{FOLDER}/fit.py")
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_our_choice_fits_as_it_predicts_and_the_ways_as_they_come_do_not(fitted):
    needed = {way: sum(show.needed(result).values()) for way, result in fitted["ways"].items()}
    assert needed["mine"] <= fitted["limit"] < needed["mixed"] < needed["fsdp"]
    assert max(fitted["ways"]["mine"]["predicted"]) == pytest.approx(needed["mine"], rel=check.OFF)
    operations = {way: result["ranks"][0]["operations"] for way, result in fitted["ways"].items()}
    assert operations["mixed"] < operations["mine"] < operations["recomputed"]
    assert fitted["ways"]["recomputed"]["weights_off"] < 1e-5
    assert fitted["ways"]["mine"]["gradient_off"] < 0.02


def test_what_a_block_keeps_is_what_is_counted(fitted):
    kept = fit.kept_by(fit.SHAPE, tiny_transformer.BATCH // len(fitted["ways"]["fsdp"]["ranks"]))
    plain, again = (fitted["ways"][way]["ranks"][0]["held"]["activations"] for way in ("fsdp", "recomputed"))
    assert plain == pytest.approx(fit.SHAPE.layers * kept["block"] + kept["head"], rel=0.001)
    assert again == pytest.approx(fit.SHAPE.layers * kept["input"] + kept["head"], rel=0.001)


# ------------------------------------------------------------------------------------------------ the programs


@pytest.mark.parametrize(("program", "arguments", "message"), [
    (compiled_graphs, [], "2 ranks"), (fit, ["--choice", check.fit.ours, "--limit", "1e6"], "2 to 4 ranks"),
    (shard_in_use, ["--save", "dcp"], "4 ranks"), (shard_in_use, ["--load", "nowhere"], "2 ranks"),
    (shard_in_use, ["--save", "dcp", "--steps", "1"], "two or more")])
def test_bad_input(program, arguments, message, tmp_path, refused):
    assert message in refused(program, *arguments, "--out", tmp_path / "x.json")
    assert not list(tmp_path.iterdir())
