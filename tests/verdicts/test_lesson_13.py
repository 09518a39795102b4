"""What lesson 13 says of its results."""

from course.predict import memory
from course.verdicts import lesson_13 as told

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
    rows = told.trained(found())
    assert [row["weights off by"] for row in rows] == ["0e+00", "2e-06", "0e+00", "ImportError: old"]
    assert told.farthest(found()) == 2e-6
    assert told.held(found(), "fsdp") == [{"way": "FSDP2", "this torch says": "ImportError: old"}]
    assert told.share(found(), "fsdp", "activations") is None


def test_bytes_stand_beside_those_of_ddp():
    rows = told.held(found(), "tp")
    assert [list(row) for row in rows] == [["bytes", "one process", "DDP, each rank", "TP, rank 0", "TP, rank 1"]] * 5
    one, tp = (found()["ways"][way]["ranks"][0]["activations"] for way in ("one", "tp"))
    assert told.share(found(), "tp", "activations") == 100 * tp / one


def test_bytes_that_are_not_as_predicted_are_told():
    result = found()
    assert {row["farthest off"] for row in told.against(result, SHAPE)} == {"0"}
    result["ways"]["tp"]["ranks"][1]["gradients"] -= 1024
    assert [row["farthest off"] for row in told.against(result, SHAPE)] == ["0", "0", "1,024", "0"]


def test_waiting_is_what_is_not_work():
    assert told.waited(found()) == {"pipeline, GPipe": 50}
    assert told.bubbles(found()) == [{"schedule": "pipeline, GPipe", "by the equation": "33%", "measured": "50%"}]


def test_limits_and_plans():
    assert [row["PyTorch says"] for row in told.limits(found())] == ["no", "it works in this version"]
    chosen, fits = memory.choose(7e9, memory.Cluster(8))
    assert [row["way"] for row in told.plans(chosen, fits) if row[""]] == [chosen.way]
    assert told.plans(None, {})[0][""] == "nothing fits: take more devices"
