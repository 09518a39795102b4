"""Lesson 13: each way trains the model of one process, and holds and sends the bytes that are predicted."""

import inspect
import json
import math
import queue
import time
from types import SimpleNamespace

import pytest
import torch

from course import memory, sharding, tiny_transformer
from lessons.l13_beyond_ddp import check, pipeline, shard_model, shard_optimizer, shard_ways, show
from tests import runner

FOLDER = "lessons/l13_beyond_ddp"
ORDERS = {way: [order(rank, 3, 4) for rank in range(3)]
          for way, order in {"gpipe": pipeline.gpipe, "1f1b": check.my_order, "mine": check.my_order}.items()}
SHAPE, STEPS = tiny_transformer.SHAPE, 2

pytestmark = pytest.mark.weekly  # each day its notebook is executed, and its exercises are checked


# ------------------------------------------------------------------------------------------------ shard_model.py


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{ranks: what they have measured}: all ways on four ranks; on three, which share neither layers nor letters
    evenly, pipelines, and an order of ours in the place of a learner's. The notebook has two."""
    folder, results = tmp_path_factory.mktemp("sharded"), {}
    (folder / "order.json").write_text(json.dumps(ORDERS["mine"]))
    for ranks, options in ((4, []), (3, ["--order", folder / "order.json"])):
        done = runner.run(ranks, *options, "--steps", STEPS, "--out", folder / "x.json",
                          script=f"{FOLDER}/shard_model.py")
        assert done.returncode == 0, done.stderr
        results[ranks] = json.loads((folder / "x.json").read_text())
    assert (set(results[4]["ways"]), set(results[3]["ways"])) == (set(shard_ways.WAYS), set(ORDERS))
    return results


@pytest.fixture(params=(4, 3), ids="{} ranks".format)
def results(request, runs):
    return runs[request.param]


@pytest.fixture
def all_ways(runs):
    return runs[4]


@pytest.fixture
def pipelines(runs):
    return runs[3]


def test_each_way_trains_the_model_of_one_process(results):
    for way, result in results["ways"].items():
        assert result["weights_off"] < 1e-5 and result["loss_off"] < 1e-5, way
        assert result["losses"][-1] < result["losses"][0] - 0.1, "it has learnt, else nothing would be shown"


def test_counted_bytes_are_those_of_the_memory_model(results):
    for way, result in results["ways"].items():
        expected = memory.count(SHAPE, "1f1b" if way == "mine" else way, results["world_size"], results["batch"],
                                results["micro_batches"])
        counted = [{part: held[part] for part in expected[0]} for held in result["ranks"]]
        assert counted == expected, way


def test_the_paper_s_equations_are_the_counts_but_for_whole_tensors(all_ways):
    """ZeRO shares out single values; PyTorch whole tensors (ZeRO-1) and whole rows (FSDP)."""
    parameters = sum(map(memory.values, SHAPE.tensors().values()))
    for way, stage in {"ddp": 0, "zero1": 1, "fsdp": 3}.items():
        for part, size in memory.model_states(parameters, 4, stage, memory.FLOAT32).items():
            fullest = max(held[part] for held in all_ways["ways"][way]["ranks"])
            assert size <= fullest <= 1.05 * size, (way, part)


def test_pieces_cover_each_weight(results):
    for way, result in results["ways"].items():
        for name, shape in results["shapes"].items():
            pieces = [piece for piece in result["pieces"][name] if piece]
            whole = torch.Size(shape).numel()
            if all(piece["shape"] == shape for piece in pieces):
                assert pieces, "replicated, or of one pipeline stage"
                continue
            assert sum(torch.Size(piece["shape"]).numel() for piece in pieces) in (whole, 2 * whole), (way, name)
            seen = torch.zeros(shape)
            for piece in pieces:
                if piece["first"]:
                    (top, left), (rows, columns) = piece["first"], piece["shape"]
                    seen[top:top + rows, left:left + columns] += 1
            if len(shape) == 2:  # twice: FSDP shares out what TP leaves whole, on each of two ranks
                assert seen.unique().tolist() in ([1], [2]), (way, name)


def test_pipelines_work_in_their_orders(pipelines):
    for way, result in pipelines["ways"].items():
        for rank, order in enumerate(ORDERS[way]):
            events = [event for event in result["timeline"] if event["rank"] == rank]
            assert [(event["event"], int(event["text"])) for event in events] == order, (way, rank)
            assert all(a["end"] <= b["start"] for a, b in zip(events, events[1:], strict=False))


def test_an_order_in_which_ranks_wait_for_each_other_says_so_before_any_rank_waits(tmp_path):
    orders = [[(kind, number) for number in range(2) for kind in ("forward", "backward")], pipeline.gpipe(1, 2, 2)]
    (tmp_path / "order.json").write_text(json.dumps(orders))
    with pytest.raises(ValueError, match="deadlock"):
        shard_model.check(SimpleNamespace(order=tmp_path / "order.json", out=tmp_path / "x.json"),
                          SimpleNamespace(world_size=2, nodes=1))


@pytest.mark.parametrize(("way", "ranks", "nodes", "message"), [
    (None, 5, 1, "2 to 4 ranks"), (None, 4, 2, "one machine"), (["fsdp_tp"], 2, 1, "--nproc_per_node=4")])
def test_ranks_that_a_way_cannot_have_are_refused(way, ranks, nodes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        shard_model.check(SimpleNamespace(way=way, order=None, out=tmp_path / "x.json"),
                          SimpleNamespace(world_size=ranks, nodes=nodes))


def test_a_wait_without_end_is_ended_and_says_where(monkeypatch):
    ended = queue.SimpleQueue()
    monkeypatch.setattr(sharding, "give_up", ended.put)
    dog = sharding.Watchdog(SimpleNamespace(rank=1, world_size=3), 1.5)
    for step in range(4):  # longer than the limit in all, but alive
        dog.beat(f"fsdp_tp, step {step}")
        time.sleep(0.4)
    assert ended.empty()
    message = ended.get(timeout=50)
    assert "rank 1 of 3" in message and "fsdp_tp, step 3" in message


def test_a_piece_that_is_nowhere_in_the_weight_is_an_error():
    weight = torch.arange(12.0).reshape(4, 3)
    assert shard_model.piece(weight[2:, 1:], weight) == {"shape": [2, 2], "first": [2, 1]}
    assert shard_model.piece(weight[:0], weight) == {"shape": [0, 3], "first": None}
    with pytest.raises(RuntimeError, match="nowhere"):
        shard_model.piece(weight[2:, 1:] + 1, weight)


def test_text_gives_the_tokens_that_follow():
    tokens, targets = next(tiny_transformer.batches(1))
    assert tokens.shape == targets.shape == (tiny_transformer.BATCH, SHAPE.sequence)
    assert torch.equal(tokens[:, 1:], targets[:, :-1]) and {*tokens.unique().tolist()} <= {*range(SHAPE.vocabulary)}
    for ranks in (2, 3, 4):
        assert tiny_transformer.BATCH % ranks == 0 and SHAPE.vocabulary % ranks


# ------------------------------------------------------------------------------------------------ shard_optimizer.py

LARGER = shard_model.LARGER
PARAMETERS = sum(map(memory.values, LARGER.tensors().values()))


@pytest.fixture(scope="module")
def zero1(tmp_path_factory):
    """Three ranks, which do not divide the parameters, with a learner's file."""
    folder = tmp_path_factory.mktemp("zero1")
    imports = "import torch\nimport torch.distributed as dist\n"
    (folder / "mine.py").write_text(imports + inspect.getsource(check.MyZero))
    done = runner.run(3, "--optimizer", f"{folder / 'mine.py'}:MyZero", "--steps", STEPS, "--rounds", 3, "--out",
                      folder / "x.json", script=f"{FOLDER}/shard_optimizer.py")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "x.json").read_text())


def test_my_zero_trains_the_model_of_one_process_with_a_share_of_the_state(zero1):
    ways, ranks = zero1["ways"], zero1["world_size"]
    assert all(of_way["weights_off"] < 1e-5 and len(of_way["ms"]) == 3 for of_way in ways.values())
    assert ways["mine"]["losses"][-1] < ways["mine"]["losses"][0] - 0.1, "it has learnt, else nothing would be shown"
    held = {way: [of_rank["optimizer state"] for of_rank in of_way["ranks"]] for way, of_way in ways.items()}
    dealt = memory.greedy(LARGER.tensors(), ranks)
    assert held == {
        "ddp": [8 * PARAMETERS + 4 * len(LARGER.tensors())] * ranks,
        "zero1": [sum(8 * memory.values(LARGER.tensors()[name]) + 4 for name in names) for names in dealt],
        "mine": [8 * math.ceil(PARAMETERS / ranks) + 4] * ranks}


def test_my_zero_sends_as_much_as_ddp_and_pytorch_s_half_as_much_again(zero1):
    sent = {way: {row["collective"]: row for row in show.sent(of_way)} for way, of_way in zero1["ways"].items()}
    once = 4 * PARAMETERS * (zero1["world_size"] - 1) / zero1["world_size"]
    bytes_ = {way: {name: row["bytes"] for name, row in rows.items()} for way, rows in sent.items()}
    assert bytes_ == {"ddp": {"all_reduce": pytest.approx(2 * once, abs=50)},
                      "zero1": {"all_reduce": pytest.approx(2 * once, abs=50),
                                "broadcast": pytest.approx(once, abs=50)},
                      "mine": {"reduce_scatter": pytest.approx(once, abs=50),
                               "all_gather": pytest.approx(once, abs=50)}}
    assert sent["zero1"]["broadcast"]["calls"] == len(LARGER.tensors())
    assert [row["calls"] for row in sent["mine"].values()] == [1, 1]


def test_what_an_optimizer_keeps_is_found_wherever_it_is():
    model, saved = torch.nn.Linear(5, 7), SimpleNamespace(most=0, gathered=0)
    model(torch.ones(5)).sum().backward()
    copy = torch.ones(100)
    hidden = SimpleNamespace(state={model.weight: [copy, copy[3:]]}, pieces=({"own": torch.ones(10)},),
                             model=model, weights=[model.weight.data.view(-1)])
    hidden.itself = hidden
    assert tiny_transformer.held(model, hidden, saved)["optimizer state"] == 4 * 110


# ------------------------------------------------------------------------------------------------ the programs


@pytest.mark.parametrize(("program", "arguments", "message"), [
    (shard_model, [], "--nproc_per_node=2"), (shard_optimizer, ["--optimizer", check.zero1.ours], "2 to 4 ranks"),
    (shard_optimizer, ["--optimizer", "x.py:MyZero"], "--optimizer")])
def test_bad_input(program, arguments, message, tmp_path, refused):
    assert message in refused(program, *arguments, "--out", tmp_path / "x.json")
    assert not list(tmp_path.iterdir())
