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
from lessons.l13_beyond_ddp import check, pipeline, shard_model, shard_ways, show
from tests import runner

FOLDER = "lessons/l13_beyond_ddp"
ORDERS = {way: [order(rank, 3, 4) for rank in range(3)]
          for way, order in {"gpipe": pipeline.gpipe, "1f1b": check.my_order, "mine": check.my_order}.items()}
SHAPE, STEPS = tiny_transformer.SHAPE, 2


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


def test_the_chart_and_the_table_of_pipelines_show_the_orders(pipelines):
    computed = {way: pipeline.computed(orders) for way, orders in ORDERS.items()}
    axes = show.orders(computed, "forwards").axes
    assert [len(ax.patches) for ax in axes] == [3 * 2 * 4] * 3 and len({ax.get_xlim() for ax in axes}) == 1
    rows = show.bubbles(pipelines, computed, "our")
    assert {row["waits, computed"] for row in rows} == {f"{memory.bubble(3, 4):.0%}"} and rows[-1][""] == "our order"


def test_an_order_in_which_ranks_wait_for_each_other_says_so_before_any_rank_waits(tmp_path):
    orders = [[(kind, number) for number in range(2) for kind in ("forward", "backward")], pipeline.gpipe(1, 2, 2)]
    (tmp_path / "order.json").write_text(json.dumps(orders))
    with pytest.raises(ValueError, match="deadlock: rank 0, before backward 0, waits for rank 1's backward 0; rank 1"):
        shard_model.check(SimpleNamespace(order=tmp_path / "order.json", out=tmp_path / "x.json"),
                          SimpleNamespace(world_size=2, nodes=1))


def test_torch_refuses_both_mistakes(all_ways):
    width, few = all_ways["limits"].values()
    assert "reduction dim" in width or "shape" in width.lower() or "Sharding" in width
    assert "(3) must be greater than or equal" in few


def test_pictures_show_what_was_counted(all_ways):
    drawn = {round(bar.get_width() * 1e6) for bar in show.kept(all_ways).axes[0].patches}
    assert drawn >= {held[part] for result in all_ways["ways"].values() for held in result["ranks"][:1]
                     for part in show.PARTS if part != "activations" and held[part]}
    ax = show.pieces(all_ways, ["head.weight"]).axes[list(all_ways["ways"]).index("fsdp")]
    assert [patch.get_height() for patch in ax.patches] == [memory.rows((97, 48), rank, 4)[0] for rank in range(4)]


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


def test_states_stand_beside_the_memory_of_a_device():
    rows = memory.shared_out(7e9, 8)
    (ax,) = show.states(rows, 80e9, "title").axes
    parts = [size for held in rows.values() for size in held.values() if size]
    numbers = [text.get_text() for text in ax.texts if text.get_text().isdigit()]
    assert sorted(numbers) == sorted(f"{size / 1e9:.0f}" for size in parts), "each part has its number, small ones too"
    assert ax.lines[0].get_xdata() == [80, 80]
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(sum(parts) / 1e9)


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


def test_the_picture_of_my_zero_shows_what_was_counted_and_whose_it_is(zero1):
    held, moved, times = show.zero1_beside_pytorch(zero1).axes
    mine = zero1["ways"]["mine"]
    assert {round(bar.get_width() * 1e6) for bar in held.patches} >= {of_rank["optimizer state"]
                                                                      for of_rank in mine["ranks"]}
    assert sum(bar.get_width() for bar in moved.patches[-2:]) == pytest.approx(
        sum(row["bytes"] for row in show.sent(mine)) / 1e6)
    assert times.lines[-1].get_xdata()[0] == sorted(mine["ms"])[1], "the median of three"
    assert [label.get_text() for label in held.get_yticklabels()] == ["DDP", "PyTorch's ZeRO-1", "MyZero (yours)"]
    assert show.sharded(zero1 | {"optimizer": check.zero1.ours})["mine"] == "MyZero (ours)"


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
    ("shard_model", [], "torchrun --nproc_per_node=2"),
    ("shard_optimizer", ["--optimizer", check.zero1.ours], "2 to 4 ranks"),
    ("shard_optimizer", ["--optimizer", "x.py:MyZero"], "of a file that is there")])
def test_bad_input_is_one_line_and_status_2(program, arguments, message, tmp_path):
    done = runner.run(0, *arguments, "--out", tmp_path / "x.json", script=f"{FOLDER}/{program}.py")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert message in done.stderr and not list(tmp_path.iterdir())
