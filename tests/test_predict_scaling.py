"""Notebook 08: what times the steps on 1, 2 and 3 ranks, what draws them, and the figures that it quotes."""

import json
import re

import launch
import matplotlib
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import models
from course import plots, predict
from scripts.measure import step_time

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

SCRIPT = "scripts/measure/step_time.py"
SMALL = ["--dataset", "synthetic", "--samples", 40, "--rounds", 2]
WAYS = {1: ["alone"], 2: step_time.WAYS, 3: ["alone", "by_hand", "ddp"]}


def run(ranks, *arguments):
    return launch.run(ranks, *arguments, script=SCRIPT)


@pytest.fixture(scope="module", params=[1, 2, 3])
def found(request, tmp_path_factory):
    """What one process (no launcher), two and three ranks write; 40 images do not divide by 3, nor by 7."""
    ranks, out = request.param, tmp_path_factory.mktemp("steps") / "new" / "found.json"
    done = run(ranks if ranks > 1 else 0, *SMALL, "--out", out, "--models", *(["lenet", "resnet"] if ranks == 2 else
               ["lenet"]), "--batch-sizes", 7, 2, "--ways", *WAYS[ranks], "--bucket-cap-mb", 0.04)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in out.parent.iterdir()] == ["found.json"]
    return ranks, json.loads(out.read_text()), done.stdout


def test_every_way_and_batch_size_is_timed(found):
    ranks, told, console = found
    assert (told["world_size"], told["dataset"], told["rounds"]) == (ranks, "synthetic", 2)
    assert told["backend"] == (None if ranks == 1 else "gloo") or told["device"] == "cuda"
    for model in told["models"].values():
        assert [(p["way"], p["batch_size"]) for p in model["points"]] == [(w, n) for n in (7, 2) for w in WAYS[ranks]]
        assert console.count("ms a step") == sum(len(model["points"]) for model in told["models"].values())


def test_a_step_is_the_sum_of_its_phases_and_only_by_hand_talks_apart(found):
    for model in found[1]["models"].values():
        for point in model["points"]:
            assert 0 < point["low"] <= point["seconds"] <= point["high"] and point["steps"] >= step_time.LEAST
            assert sum(point["phases"].values()) == pytest.approx(point["seconds"])
            assert list(point["phases"]) == step_time.PHASES and all(s >= 0 for s in point["phases"].values())
            talks = point["way"] == "by_hand"
            assert all((point["phases"][name] > 0) == talks for name in ("wait", "all_reduce"))
            assert all(point["phases"][name] > 0 for name in ("data", "forward", "backward", "update"))


def test_gradients_are_four_bytes_a_parameter(found):
    for name, model in found[1]["models"].items():
        assert model["gradient_bytes"] == 4 * sum(p.numel() for p in models.MODELS[name]().parameters())


@pytest.mark.parametrize(("arguments", "said"), [
    (["--ways", "ddp"], "one rank is alone: torchrun --nproc_per_node=2"),
    (["--samples", 10, "--batch-sizes", 64], "--samples 10 are no batch of 64 for each of 1 rank(s)"),
    (["--rounds", 0], "0 is not a positive number"),
    (["--batch-sizes", "x"], "invalid number value: 'x'"),
    (["--out", "/dev/null/x/y"], "Not a directory"),
])
def test_bad_input_is_one_line_and_status_2(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["step_time.py", "--out", str(tmp_path / "x.json"), *map(str, arguments)])
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        step_time.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and told.err.count("\n") == 1 and said in told.err, told.err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- pictures


def texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_the_overlay_says_by_how_many_percent_each_prediction_is_off(ax):
    measured = {1: (2.0, 1.9, 2.2), 2: (1.5, 1.4, 1.6)}
    plots.scaling.overlay(measured, {"three": {1: 2.0, 2: 1.2}, "four": {2: 1.8}}, ax, "")
    assert sorted(texts(ax)) == sorted(["2.00 s", "1.50 s", "+0%", "-20%", "+20%"])
    lines = {line.get_label(): line for line in ax.get_legend().get_lines()}
    assert lines["three"].get_linestyle() == lines["four"].get_linestyle() == ":"
    assert [line.get_markerfacecolor() for line in lines.values()].count("white") == 2  # measured is filled
    boxes = [(patch.get_y(), patch.get_height()) for patch in ax.patches]
    assert boxes == [(pytest.approx(0.85 * s), pytest.approx(0.3 * s)) for s in (2.0, 1.5)]


def test_the_heat_map_tells_measured_from_predicted_and_slower_from_faster(ax):
    plots.scaling.heat_map([{"world_size": 2, "batch_size": 4, "speedup": 0.8, "measured": True},
                            {"world_size": 4, "batch_size": 4, "speedup": 1.6, "measured": False}], ax, "")
    predicted, measured = ax.patches  # measured last, so that its frame lies on top
    assert (measured.get_hatch(), measured.get_linestyle()) == (None, "-")
    assert predicted.get_hatch() and predicted.get_linestyle() == ":"
    assert measured.get_linewidth() > predicted.get_linewidth()
    assert texts(ax) == ["1.60×", "predicted", "0.80×", "measured, slower"]
    (red, _, blue), (red_too, _, blue_too) = measured.get_facecolor()[:3], predicted.get_facecolor()[:3]
    assert red > blue and red_too < blue_too  # orange is slower, blue faster


def test_the_bars_of_a_step_are_as_long_as_their_parts(ax):
    plots.scaling.parts([("p", False, {"a step alone": 5.0, "all-reduce": 1.0}),
                         ("m", True, {"the whole step": 8.0})], ax, "")
    assert [bar.get_width() for bar in ax.patches] == [5.0, 1.0, 8.0]
    assert [bar.get_linestyle() for bar in ax.patches] == [":", ":", "-"]
    assert "  6.0 ms" in texts(ax) and "  8.0 ms" in texts(ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["p\n(predicted)", "m\n(measured)"]


def test_curves_to_many_gpus_are_dotted_and_their_published_points_hollow(ax):
    plots.scaling.to_many({"a": {8: 1.0, 1024: 0.9}, "b": {4: 1.0, 1024: 0.91}},
                          {"a": {8: 1.0, 256: 0.85}, "b": {4: 1.0}}, ax, "")
    assert [line.get_linestyle() for line in ax.lines] == [":", "--", ":", "--"]
    assert all(line.get_markerfacecolor() == "white" for line in ax.lines[1::2])
    assert {"a: 90%", "b: 91%", "published: 85% on 256"} <= set(texts(ax))
    one, other = (text.get_window_extent() for text in ax.texts if re.match(r"[ab]: ", text.get_text()))
    assert not one.overlaps(other)  # the names do not lie on each other


# ---------------------------------------------------------------- what the notebook says of the model


def note(sizes, bucket):  # a communication hook: DDP calls it for each bucket that is ready
    sizes.append(bucket.buffer().nbytes)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@launch.in_a_group_of_one
def test_ddp_cuts_lenet_into_as_many_buckets_as_the_notebook_says():
    for cap, expected in ((25, 1), (0.04, 3)):
        model, sizes = DistributedDataParallel(models.ConvNet(), bucket_cap_mb=cap), []
        model.register_comm_hook(sizes, note)
        for _ in range(2):  # the buckets are made anew after the first step
            sizes.clear()
            model(torch.randn(2, 3, 32, 32)).sum().backward()
        assert len(sizes) == expected and sum(sizes) == 248_024, sizes
    assert predict.scaling.ddp_buckets(248_024) == 1
