"""Notebook 08: what times the steps on 1, 2 and 3 ranks, what draws them, and the figures that it quotes."""

import json
import re

import matplotlib
import pandas as pd
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import models
from course import predict
from lessons.l08_predict_scaling import message_cost, pictures, published, step_parts, step_time
from scripts.measure import side_by_side
from tests import runner

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

SCRIPT = "lessons/l08_predict_scaling/step_time.py"
SMALL = ["--dataset", "synthetic", "--samples", 40, "--rounds", 2]
WAYS = {1: ["alone"], 2: step_time.WAYS, 3: ["alone", "by_hand", "ddp"]}
CEILING = "scripts/measure/side_by_side.py"


def run(ranks, *arguments):
    return runner.run(ranks, *arguments, script=SCRIPT)


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
            assert (point["phases"]["all_reduce"] > 0) == (point["way"] == "by_hand")
            assert point["phases"]["wait"] == 0 or point["way"] == "by_hand"
            assert all(point["phases"][name] > 0 for name in ("data", "forward", "backward", "update"))
            assert len(point["rounds"]) == 2 and point["phases"] in point["rounds"]


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


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_ceiling_is_what_all_reach_together_by_one_alone(ranks, tmp_path):
    out = tmp_path / "ceiling.json"
    done = runner.run(ranks, "--dataset", "synthetic", "--samples", 40, "--batch-size", 4, "--rounds", 3, "--seconds",
                      0.1, "--out", out, script=CEILING)
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert (told["model"], told["batch_size"], told["rounds"]) == ("lenet", 4, 3)
    assert [one["ranks"] for one in told["ceilings"]] == list(range(2, ranks + 1))
    assert all(0 < one["low"] <= one["ceiling"] <= one["high"] for one in told["ceilings"])
    assert done.stdout.count("\n") == ranks and f"{ranks} side by side" in done.stdout


def test_ceilings_are_measured_for_each_doubling_and_for_all():
    assert [side_by_side.up_to(ranks) for ranks in (2, 3, 8, 12)] == [[2], [2, 3], [2, 4, 8], [2, 4, 8, 12]]


@pytest.mark.parametrize(("world_size", "arguments", "said"), [
    (1, [], "nobody beside it: torchrun --nproc_per_node=2"),
    (2, ["--samples", 10], "--samples 10 are no batch of 64 for each of 2 ranks"),
    (2, ["--seconds", 40], "--timeout 60 is too short"),
])
def test_a_ceiling_that_cannot_be_measured_is_refused(world_size, arguments, said, tmp_path, monkeypatch, capsys):
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.argv", ["side_by_side.py", "--dataset", "synthetic", "--out", str(tmp_path / "x.json"),
                                     *map(str, arguments)])
    with pytest.raises(SystemExit, match="2"):
        side_by_side.main()
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


# ---------------------------------------------------------------- pictures


def texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_the_staircase_begins_each_part_where_the_last_one_ended(ax):
    pictures.staircase(pd.Series({"a": 5.0, "b": -1.0, "c": 2.0}), 5.5, pd.Series([8.0, 6.0, 7.0]), ax, "")
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert [x for x, _ in bars] == [0, 5, 4, 0, 0, 0] and bars[1] == (5, -1)
    assert ["//" if bar.get_hatch() else "" for bar in ax.patches[:3]] == ["", "//", ""]
    assert texts(ax) == ["5.00", "-1.00", "+2.00", "6.00", "5.50", "7.00"]
    assert [bar.get_linestyle() for bar in ax.patches[3:]] == [":", ":", "-"]
    assert [label.get_text() for label in ax.get_yticklabels()][3:] == ["sum of the parts", "first model", "main.py"]


def test_the_curve_over_batch_sizes_shows_the_ceiling_and_tells_measured_from_predicted(ax):
    measured = pd.DataFrame({"batch_size": [4, 64], "speedup": [0.8, 1.5], "low": [0.7, 1.4], "high": [0.9, 1.6]})
    ceiling = pd.DataFrame({"batch_size": [4, 64], "speedup": 1.8, "low": 1.7, "high": 1.9})
    pictures.by_batch(measured, {"sum": {4: 0.9, 64: 1.4}}, ceiling, 2, ax, "")
    (band,) = ax.collections[:1]
    assert {y for _, y in band.get_paths()[0].vertices} == {1.7, 1.9}
    assert {"0.80×", "1.50×", "one process", "sum", "ceiling"} <= set(texts(ax))
    assert [line.get_linestyle() for line in ax.lines] == ["-", "-", "--", "None", ":"]


def test_bands_to_many_gpus_are_dotted_and_published_points_hollow(ax):
    pictures.to_many({"a": {8: (1, 1), 1024: (0.8, 0.9)}, "b": {4: (1, 1), 1024: (0.85, 0.91)}},
                          {"a": {8: 1.0, 256: 0.85}, "b": {4: 1.0}}, ax, "")
    assert [line.get_linestyle() for line in ax.lines] == [":", ":", "--"] * 2
    assert all(line.get_markerfacecolor() == "white" for line in ax.lines[2::3])
    assert {"a:\n80% to 90%", "b:\n85% to 91%", "published: 85% on 256"} <= set(texts(ax))
    one, other = (text.get_window_extent() for text in ax.texts if re.match(r"[ab]:\n", text.get_text()))
    assert not one.overlaps(other)  # the names do not lie on each other


@pytest.mark.parametrize(("beta", "lines"), [(1e-9, 4), (1e-12, 2)])
def test_a_beta_that_noise_may_have_made_is_not_drawn(ax, beta, lines):
    points = pd.DataFrame({"bytes": [2**10, 2**20, 2**24], "seconds": [1e-3, 2e-3, 2e-2], "low": 9e-4, "high": 3e-2,
                           "busbw": 1e9})
    message_cost.time_by_size(points, 1e-3, beta, ax, "")
    assert len(ax.lines) == lines and ("β · bytes" in texts(ax)) == (lines == 4)


def test_our_bandwidth_is_filled_and_that_of_others_hollow(ax):
    points = pd.DataFrame({"bytes": [2**10, 2**20], "busbw": [1e6, 1e9]})
    message_cost.bus_bandwidth(points, pd.read_csv(published.FOLDER / "all_reduce.csv"), "here", ax)
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--", "--", "--"]
    assert {"here", "8 × H200, one node"} <= set(texts(ax))


# ---------------------------------------------------------------- parts of a step


def point(way, batch, *rounds):
    return {"way": way, "batch_size": batch, "rounds": rounds}


def test_the_parts_add_up_to_by_hand_and_ddp_itself_and_are_not_cut_at_zero():
    talk = {"work": 6.0, "wait": 1.0, "all_reduce": 2.0}
    points = [point(way, batch, *rounds) for batch in (4, 8) for way, rounds in {
        "ddp": [{"work": 11.0 * batch}, {"work": 9.0 * batch}], "alone": [{"work": 5.0}, {"work": 7.0}],
        "side_by_side": [{"work": 6.5}, {"work": 6.5}], "silent": [{"work": 7.0}, {"work": 6.0}],
        "by_hand": [talk, talk]}.items()]
    table = step_parts.parts(points)
    assert table[step_parts.PARTS].values.tolist() == [[5, 1, 1, 2, 0.5], [7, -1, 1, 2, -0.5]] * 2
    assert table["sum"].tolist() == [9.5, 8.5] * 2 and table["ddp"].tolist() == [44, 36, 88, 72]
    assert step_parts.between(table, 6).tolist() == [6, 0, 1, 2, 0]
    (four, _) = step_parts.speedups(table, 2).to_dict("records")
    assert four == {"batch_size": 4, "speedup": pytest.approx((10 / 44 + 14 / 36) / 2), "low": 10 / 44, "high": 14 / 36}
    assert step_parts.speedups(table, 2, "side_by_side")["high"].tolist() == [14 / 6.5] * 2
    with pytest.raises(ValueError, match="not between"):
        step_parts.between(table, 9)


# ---------------------------------------------------------------- what others have published


def test_published_figures_follow_from_what_their_readme_says():
    series = published.series()
    resnet, vit = series["ResNet-50, P100"], series["ViT, A100"]
    assert resnet["images_per_second"] == pytest.approx(90 * 1_281_167 / (29 * 3600), rel=1e-3)
    assert resnet["backward"] == pytest.approx(0.120 * resnet["images_per_second"] / (8 * 32), rel=1e-3)
    assert vit["parameters"] == 12 * 12 * 384**2 + 2 * 384 * 20 * 64 + 45 * 90 * 384
    assert vit["efficiency"]["64"] == pytest.approx(2573 / 204 / 16, rel=1e-3)


def test_a_band_begins_at_one_and_is_as_wide_as_the_latency_is_unknown():
    one = published.series()["ResNet-50, P100"]
    band = published.band(one, 3e-6, 50e-6)
    assert list(band) == [8, 16, 32, 64, 128, 256, 512, 1024] and band[8] == (1, 1)
    assert all(low < high for gpus, (low, high) in band.items() if gpus > 8)
    slow = published.band(one, 3e-6, 50e-6, 0.5)
    assert slow[1024][0] < band[1024][0] and slow[1024][1] == band[1024][1]
    assert published.band(one, 3e-6, 0)[1024] == (band[1024][1], band[1024][1])


def test_latencies_give_back_the_time_that_they_were_taken_from():
    links = pd.read_csv(published.FOLDER / "all_reduce.csv")
    within, between = published.latencies(links, 2**18, "8 × B200, one node", "32 × B200, four nodes", 4)
    seconds = 14 * within + 6 * between
    assert 2 * 31 / 32 * 2**18 / seconds / 1e9 == pytest.approx(1.33)


# ---------------------------------------------------------------- what the notebook says of the model


def note(sizes, bucket):  # a communication hook: DDP calls it for each bucket that is ready
    sizes.append(bucket.buffer().nbytes)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@runner.in_a_group_of_one
def test_ddp_cuts_lenet_into_as_many_buckets_as_the_notebook_says():
    for cap, expected in ((25, 1), (0.04, 3)):
        model, sizes = DistributedDataParallel(models.ConvNet(), bucket_cap_mb=cap), []
        model.register_comm_hook(sizes, note)
        for _ in range(2):  # the buckets are made anew after the first step
            sizes.clear()
            model(torch.randn(2, 3, 32, 32)).sum().backward()
        assert len(sizes) == expected and sum(sizes) == 248_024, sizes
    assert predict.scaling.ddp_buckets(248_024) == 1
