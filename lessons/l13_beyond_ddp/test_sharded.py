"""lessons/l13_beyond_ddp/shard_model.py: each way trains the model of one process, and holds the bytes that are
predicted."""

import json
import subprocess
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

import options
from course import plots, predict
from lessons.l13_beyond_ddp import pictures, shard_model, shard_ways, tiny_transformer
from tests import runner

SCRIPT = "lessons/l13_beyond_ddp/shard_model.py"
RUNS = {2: [], 3: [], 4: ["--way", "fsdp", "fsdp_tp", "gpipe", "1f1b"]}  # four ranks: what two and three cannot show


def start(ranks, *arguments):
    return runner.run(ranks, *arguments, script=SCRIPT)


@pytest.fixture(scope="module", params=RUNS, ids="{} ranks".format)
def found(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("sharded") / "found.json"
    done = start(request.param, *RUNS[request.param], "--steps", 3, "--out", out)
    assert done.returncode == 0, done.stderr
    assert [file.name for file in out.parent.iterdir()] == [out.name], "no half-written file is left"
    found = json.loads(out.read_text())
    assert found["world_size"] == request.param and found["ways"]
    assert not [one for one in found["ways"].values() if "unsupported" in one], "the oldest torch has all of it, too"
    return found


def test_each_way_trains_the_model_of_one_process(found):
    for way, result in found["ways"].items():
        assert result["weights_off"] < 1e-5 and result["loss_off"] < 1e-5, way
        assert result["losses"][-1] < result["losses"][0] - 0.1, "it has learnt, else nothing would be shown"


def test_counted_bytes_are_those_of_the_memory_model(found):
    for way, result in found["ways"].items():
        expected = predict.memory.count(tiny_transformer.SHAPE, way, found["world_size"], found["batch"],
                                        found["micro_batches"])
        counted = [{part: held[part] for part in expected[0]} for held in result["ranks"]]
        assert counted == expected, way


def test_the_paper_s_equations_are_the_counts_but_for_whole_tensors(found):
    """ZeRO shares out single values; PyTorch whole tensors (ZeRO-1) and whole rows (FSDP)."""
    ranks = found["world_size"]
    parameters = sum(map(predict.memory.values, tiny_transformer.SHAPE.tensors().values()))
    for way, stage in {"ddp": 0, "zero1": 1, "fsdp": 3}.items():
        if way in found["ways"]:
            for part, size in predict.memory.model_states(parameters, ranks, stage, predict.memory.FLOAT32).items():
                fullest = max(held[part] for held in found["ways"][way]["ranks"])
                assert size <= fullest <= 1.05 * size, (way, part)


def test_pieces_cover_each_weight(found):
    for way, result in found["ways"].items():
        for name, shape in found["shapes"].items():
            pieces = [piece for piece in result["pieces"][name] if piece]
            whole = torch.Size(shape).numel()
            if all(piece["shape"] == shape for piece in pieces):
                continue  # replicated, or of one pipeline stage
            assert sum(torch.Size(piece["shape"]).numel() for piece in pieces) in (whole, 2 * whole), (way, name)
            seen = torch.zeros(shape)
            for piece in pieces:
                if piece["first"]:
                    (top, left), (rows, columns) = piece["first"], piece["shape"]
                    seen[top:top + rows, left:left + columns] += 1
            if len(shape) == 2:  # twice: FSDP shares out what TP leaves whole, on each of two ranks
                assert seen.unique().tolist() in ([1], [2]), (way, name)


def test_zero_shares_the_state_of_whole_tensors(found):
    if "zero1" not in found["ways"]:
        pytest.skip("not among the ways of this run")
    dealt = predict.memory.greedy(tiny_transformer.SHAPE.tensors(), found["world_size"])
    assert [sorted(names) for names in found["ways"]["zero1"]["state_of"]] == [sorted(names) for names in dealt]


def test_pipelines_do_each_micro_batch_once_and_1f1b_goes_back_sooner(found):
    for way in ("gpipe", "1f1b"):
        for rank in range(found["world_size"]):
            events = [event for event in found["ways"][way]["timeline"] if event["rank"] == rank]
            for name in ("forward", "backward"):
                assert [event["text"] for event in events if event["event"] == name] == ["0", "1", "2", "3"]
            order = "".join(event["event"][0] for event in events)
            ahead = found["micro_batches"] if way == "gpipe" else found["world_size"] - rank
            assert order.index("b") == min(ahead, found["micro_batches"])
            assert all(a["end"] <= b["start"] for a, b in zip(events, events[1:], strict=False))


def test_limits_are_said(found):
    if "limits" not in found:
        pytest.skip("not among the ways of this run")
    width, few = found["limits"].values()
    assert "reduction dim" in width or "shape" in width.lower() or "Sharding" in width
    assert f"({found['world_size'] - 1}) must be greater than or equal" in few


def test_pictures_show_what_was_counted(found):
    drawn = {round(bar.get_width() * 1e6) for bar in pictures.memory(found).axes[0].patches}
    counted = {held[part] for way, result in found["ways"].items() for held in result["ranks"][:1]
               for part in pictures.PARTS if part != "activations" and held[part]}
    assert drawn >= counted
    fig = pictures.pieces(found, ["fsdp"], ["head.weight"])
    (ax,) = fig.axes
    heights = [patch.get_height() for patch in ax.patches]
    ranks = found["world_size"]
    assert heights == [predict.memory.rows((97, 48), rank, ranks)[0] for rank in range(ranks)]
    drawn = pictures.schedules(found).axes
    assert [ax.get_title(loc="left").split(":")[0] for ax in drawn] == ["pipeline, GPipe", "pipeline, 1F1B"]
    assert len({ax.get_xlim() for ax in drawn}) == 1, "one axis of time"
    plt.close("all")


# ------------------------------------------------------------------------------------------------ without ranks


def placed(ranks, nodes=1):
    return SimpleNamespace(world_size=ranks, nodes=nodes)


@pytest.mark.parametrize(("way", "here", "said"), [
    (None, placed(1), "2 to 4 ranks"), (None, placed(5), "2 to 4 ranks"), (None, placed(4, nodes=2), "one machine"),
    (["fsdp_tp"], placed(2), "--nproc_per_node=4"),
])
def test_what_cannot_work_is_said_before_any_rank_waits(way, here, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        shard_model.check(SimpleNamespace(way=way, out=tmp_path / "x.json"), here)


def test_all_ways_that_fit_the_ranks_are_the_default(tmp_path):
    for ranks, without in ((2, {"fsdp_tp"}), (4, set())):
        args = SimpleNamespace(way=None, out=tmp_path / "x.json")
        shard_model.check(args, placed(ranks))
        assert set(args.way) == {*shard_ways.WAYS, "limits"} - without


def test_bad_input_is_one_line_and_status_2(tmp_path):
    done = start(0, "--out", tmp_path / "x.json")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "torchrun --nproc_per_node=2" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ImportError("cannot import name 'fully_shard'"), NotImplementedError("not on a CPU"),
                                   RuntimeError("ProcessGroupGloo does not support reduce_scatter\npages")])
def test_what_this_torch_lacks_is_reported_and_other_errors_are_not_hidden(error, monkeypatch):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(shard_model, "compare", fail)
    said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert shard_model.compare_or_say("fsdp") == {"unsupported": said}
    error = RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"):
        shard_model.compare_or_say("fsdp")


def test_a_wait_without_end_is_ended_and_says_where():
    code = """
import sys, time
sys.argv[0] = "lessons/l13_beyond_ddp/shard_model.py"
from types import SimpleNamespace
from lessons.l13_beyond_ddp import shard_model
dog = shard_model.Watchdog(SimpleNamespace(rank=1, world_size=3), 1.0)
for step in range(4):  # longer than the limit in all, but alive
    dog.beat(f"fsdp_tp, step {step}")
    time.sleep(0.4)
print("alive", flush=True)
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=runner.ROOT, text=True, capture_output=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, "alive\n")
    assert "rank 1 of 3 has waited 1 s for the others in: fsdp_tp, step 3" in done.stderr


def test_a_piece_that_is_nowhere_in_the_weight_is_an_error():
    weight = torch.arange(12.0).reshape(4, 3)
    assert shard_model.piece(weight[2:, 1:], weight) == {"shape": [2, 2], "first": [2, 1]}
    assert shard_model.piece(weight[:0], weight) == {"shape": [0, 3], "first": None}
    with pytest.raises(RuntimeError, match="nowhere"):
        shard_model.piece(weight[2:, 1:] + 1, weight)


def test_saved_bytes_are_counted_once_and_let_go_after_backward():
    model = torch.nn.Linear(5, 7)
    saved = tiny_transformer.SavedForBackward(model)
    x = torch.zeros(3, 5, requires_grad=True)
    with saved:
        y = model(x).exp()
        loss = (y * y).sum()
        # y is kept by exp and, twice, by the product: counted once. The weight is no activation.
        assert saved.now == x.nbytes + y.nbytes
        loss.backward()
    assert (saved.now, saved.most) == (0, x.nbytes + y.nbytes)
    with saved:
        y = model(x).softmax(1)
        del y
    assert saved.now == 0, "what is dropped without a backward is let go, too"


def test_text_gives_the_tokens_that_follow():
    tokens, targets = next(tiny_transformer.batches(1))
    shape = tiny_transformer.SHAPE
    assert tokens.shape == targets.shape == (tiny_transformer.BATCH, shape.sequence)
    assert torch.equal(tokens[:, 1:], targets[:, :-1]) and {*tokens.unique().tolist()} <= {*range(shape.vocabulary)}
    for ranks in (2, 3, 4):
        assert tiny_transformer.BATCH % ranks == 0 and shape.vocabulary % ranks


def test_a_map_shows_what_the_model_chooses():
    devices, parameters = [1, 8, 64], [1e8, 1e9, 1e10, 1e11]
    ways = pictures.grid(predict.memory.Cluster, devices, parameters)
    assert ways[2][1] == predict.memory.choose(1e10, predict.memory.Cluster(8))[0].way and ways[3][0] is None
    ax = pictures.chart(ways, devices, parameters, plt.subplots()[1], "map")
    names = [None, *pictures.WAYS]
    assert ax.collections[0].get_array().ravel().tolist() == [names.index(way) for row in ways for way in row]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["100 M", "1 B", "10 B", "100 B"]
    (both, _) = pictures.maps({"fast": 50e9, "slow": 1e9}, devices, parameters, yours=(8, 1e10)).axes
    assert [mark.get_xydata().tolist() for mark in both.lines] == [[[1.5, 2.5]]], "in the middle of its cell"
    plt.close("all")


def test_states_stand_beside_the_memory_of_a_device():
    rows = predict.memory.shared_out(7e9, 8)
    (ax,) = pictures.states(rows, 80e9, "title").axes
    parts = [size for held in rows.values() for size in held.values() if size]
    numbers = [text.get_text() for text in ax.texts if text.get_text().isdigit()]
    assert sorted(numbers) == sorted(f"{size / 1e9:.0f}" for size in parts), "each part has its number, small ones too"
    assert ax.lines[0].get_xdata() == [80, 80] and [label.get_text() for label in ax.get_yticklabels()] == list(rows)
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(
        sum(sum(parts.values()) for parts in rows.values()) / 1e9)
    plt.close("all")


def test_options_are_the_parser_s(capsys):
    with pytest.raises(SystemExit, match="2"):
        shard_model.get_parser().parse_args(["--way", "dp", "--out", "x"])
    assert len(capsys.readouterr().err.splitlines()) == 1 and isinstance(shard_model.get_parser(), options.Parser)
    assert set(pictures.NAMES) == set(shard_ways.WAYS) and set(pictures.WAYS) == set(predict.memory.WAYS)
    assert plots.COLOURS
