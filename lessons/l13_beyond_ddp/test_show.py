"""What lesson 13 says of its results."""

import math

import pytest

from course.predict import memory
from lessons.l13_beyond_ddp import show

SHAPE = memory.Transformer(layers=2, hidden=8, heads=2, sequence=4, vocabulary=5)


def ranks(way):
    return [dict(rank) for rank in memory.count(SHAPE, way, 2, 8, 2)]


def found():
    events = [{"rank": 0, "start": 0, "end": 2}, {"rank": 1, "start": 2, "end": 4}]
    base = {"losses": [3, 2.5], "loss_off": 0, "weights_off": 0, "timeline": []}
    return {"world_size": 2, "batch": 8, "micro_batches": 2, "limits": {"a": "no", "b": None}, "ways": {
        "one": base | {"ranks": memory.count(SHAPE, "one", 1, 8) * 2}, "ddp": base | {"ranks": ranks("ddp")},
        "tp": base | {"ranks": ranks("tp"), "weights_off": 2e-6},
        "gpipe": base | {"ranks": ranks("gpipe"), "timeline": events}, "fsdp": {"unsupported": "ImportError: old"}}}


def test_what_was_trained_and_what_this_torch_lacks():
    rows = show.trained(found())
    assert [row["weights off by"] for row in rows] == ["0e+00", "2e-06", "0e+00", "ImportError: old"]
    assert show.farthest(found()) == 2e-6
    assert show.held(found(), "fsdp") == [{"way": "FSDP2", "this torch says": "ImportError: old"}]
    assert show.share(found(), "fsdp", "activations") is None


def test_bytes_stand_beside_those_of_ddp():
    rows = show.held(found(), "tp")
    assert [list(row) for row in rows] == [["bytes", "one process", "DDP, each rank", "TP, rank 0", "TP, rank 1"]] * 5
    assert show.share(found(), "tp", "activations") == "more than half"
    result = found()
    for bytes_, said in ((480, "less than half"), (500, "half"), (520, "more than half")):
        result["ways"]["one"]["ranks"][0]["gradients"], result["ways"]["tp"]["ranks"][0]["gradients"] = 1000, bytes_
        assert show.share(result, "tp", "gradients") == said


def test_bytes_that_are_not_as_predicted_are_told():
    result = found()
    assert {row["farthest off"] for row in show.against(result, SHAPE)} == {"0"}
    result["ways"]["tp"]["ranks"][1]["gradients"] -= 1024
    assert [row["farthest off"] for row in show.against(result, SHAPE)] == ["0", "0", "1,024", "0"]


def test_waiting_is_what_is_not_work():
    assert show.lengths(found()) == {"pipeline, GPipe": (4, 0.5)}
    assert show.bubbles(found()) == [{"schedule": "pipeline, GPipe", "waits, by the equation": "33%",
                                      "waits, measured": "50%", "the step took, ms": "4"}]


@pytest.mark.parametrize(("end", "said"), [
    (4.2, "about as long, 4 and 4 ms"), (5, "**pipeline, 1F1B took 25% longer than pipeline, GPipe.**"),
    (3.2, "**pipeline, GPipe took 25% longer than pipeline, 1F1B.**")])
def test_schedules_are_as_long_as_each_other_or_it_is_said(end, said):
    result = found()
    assert show.as_long(result) == "This torch has not both schedules."
    events = [{"rank": 0, "start": 0, "end": 2}, {"rank": 1, "start": 2, "end": end}]
    result["ways"]["1f1b"] = result["ways"]["gpipe"] | {"timeline": events}
    assert said in show.as_long(result)


def test_limits_and_plans():
    assert [row["PyTorch says"] for row in show.limits(found())] == ["no", "it works in this version"]
    chosen, fits = memory.choose(7e9, memory.Cluster(8))
    assert [row["way"] for row in show.plans(chosen, fits) if row[""]] == [chosen.way]
    assert show.plans(None, {})[0][""] == "nothing fits: take more devices"


def in_use(**timed):
    def of_rank(ranks, bytes_):
        return {"sent": [{"ranks": ranks, "bytes": bytes_}, {"ranks": [0, 1, 2, 3], "bytes": 6}], "operations": 100}
    hsdp = [[0, 1], [0, 1], [2, 3], [2, 3]], [[0, 2], [1, 3], [0, 2], [1, 3]]
    return {"world_size": 4, "timed": {"bytes": 1e6, "step": 0.1, "save": 0.4, "async_save": 0.1, "until whole": 1.1,
                                       "steps": 3, "slower": 0.1, "as it was": True} | timed, "ways": {
        "fsdp": {"ranks": [of_rank([0, 1, 2, 3], 1000)] * 4},
        "mixed": {"gradient_off": 0.004, "change_off": 0.02},
        "hsdp": {"ranks": [{"sent": [{"ranks": inside, "bytes": 700}, {"ranks": across, "bytes": 300}]}
                           for inside, across in zip(*hsdp, strict=True)]}}}


def test_of_a_ring_two_links_cross_between_two_nodes():
    assert (show.crossing(in_use(), "fsdp"), show.crossing(in_use(), "hsdp")) == (2 * 1000, 4 * 300)
    assert "2,000 bytes" in show.between_nodes(in_use()) and "**60%**" in show.between_nodes(in_use())


def test_a_change_is_compared_with_a_gradient_both_as_a_share():
    result = in_use()
    assert "0.4% of its length" in show.rounded(result) and "by 2.0%, which is more. Adam" in show.rounded(result)
    result["ways"]["mixed"]["change_off"] = 0.004
    assert show.rounded(result).endswith("by 0.4%: no more.")


def test_one_number_a_parameter_or_as_many_as_there_were():
    one = {"norms": [1] * 4, "parameters": 45, "calls": 1, "sent": 270, "all_gathered": 1000}
    assert show.made_whole({"clip": {"clip": one}}).endswith("in 1 all-reduce: 45 numbers, one for each parameter.")
    one |= {"calls": 2, "sent": 12}
    assert show.made_whole({"clip": {"clip": one}}).endswith("in 2 all-reduces: 2 numbers, for 45 parameters.")


def test_delta_is_all_that_a_checkpoint_takes_from_training():
    assert show.deltas(in_use()) == {"save": (0.4, 0), "async_save": (0.2, 1.0)}
    save, meanwhile = show.held_up(in_use(), between=5000)
    assert (save["δ: both, ms"], save["best interval, s"]) == ("400", f"{math.sqrt(2 * 0.4 * 5000):.0f}")
    assert (meanwhile["δ: both, ms"], meanwhile["whole after the return, ms"]) == ("200", "1000")
    shares = 2 * 0.2 / math.sqrt(2 * 0.2 * 5000) + 1.0 / 5000  # an interval more, where it was not yet whole
    assert meanwhile["lost, %"] == f"{100 * shares:.2f}"


@pytest.mark.parametrize(("timed", "said"), [
    ({}, "Training went on meanwhile, for 3 steps, and the checkpoint holds the weights of the call, bit for bit. δ"),
    ({"slower": 0.3}, "**δ is not smaller**, though training waits for less"),
    ({"async_save": 0.4}, "**Training waits for no less.**"), ({"steps": 0}, "**Training made no step meanwhile**"),
    ({"as it was": False}, "**the checkpoint does not hold the weights of the call**")])
def test_what_async_save_gains_is_said_as_it_was(timed, said):
    assert said in show.meanwhile(in_use(**timed))


def test_what_recomputing_adds_is_counted():
    result = in_use()
    result["ways"]["recomputed"] = {"ranks": [{"operations": 125}]}
    down, block, forward = 4 * 64, 12 * 64 + 2 * 4 * 8, 2 * (12 * 64 + 2 * 4 * 8) + 8 * 5
    assert "**25%**" in show.made_again(result, SHAPE)
    assert show.made_again(result, SHAPE).endswith(f"So predicted: {2 * (block - down) / (3 * forward):.0%}.")
