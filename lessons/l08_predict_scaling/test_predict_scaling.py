"""Lesson 08: its programs on 1, 2 and 3 ranks, the parts of a step, and the published figures that it uses."""

import json

import pandas as pd
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import models
from lessons.l08_predict_scaling import scaling, show, step_time
from scripts.measure import side_by_side
from tests import runner

SCRIPT = "lessons/l08_predict_scaling/step_time.py"
SMALL = ["--dataset", "synthetic", "--samples", 40, "--rounds", 2]
WAYS = {1: ["alone"], 2: step_time.WAYS, 3: ["alone", "by_hand", "ddp"]}
CEILING = "scripts/measure/side_by_side.py"


def run(ranks, *arguments):
    return runner.run(ranks, *arguments, script=SCRIPT)


@pytest.fixture(scope="module", params=[1, 2, 3])
def steps(request, tmp_path_factory):
    """What one process (no launcher), two and three ranks write; 40 images do not divide by 3, nor by 7."""
    ranks, out = request.param, tmp_path_factory.mktemp("steps") / "new" / "found.json"
    done = run(ranks if ranks > 1 else 0, *SMALL, "--out", out, "--models", *(["lenet", "resnet"] if ranks == 2 else
               ["lenet"]), "--batch-sizes", 7, 2, "--ways", *WAYS[ranks], "--bucket-cap-mb", 0.04)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in out.parent.iterdir()] == ["found.json"]
    return ranks, json.loads(out.read_text()), done.stdout


def test_every_way_and_batch_size_is_timed(steps):
    ranks, measured, console = steps
    assert (measured["world_size"], measured["dataset"], measured["rounds"]) == (ranks, "synthetic", 2)
    assert measured["backend"] == (None if ranks == 1 else "gloo") or measured["device"] == "cuda"
    for model in measured["models"].values():
        assert [(p["way"], p["batch_size"]) for p in model["points"]] == [(w, n) for n in (7, 2) for w in WAYS[ranks]]
        assert console.count("ms a step") == sum(len(model["points"]) for model in measured["models"].values())


def test_a_step_is_the_sum_of_its_phases_and_only_by_hand_talks_apart(steps):
    for model in steps[1]["models"].values():
        for point in model["points"]:
            assert 0 < point["low"] <= point["seconds"] <= point["high"] and point["steps"] >= step_time.LEAST
            assert sum(point["phases"].values()) == pytest.approx(point["seconds"])
            assert list(point["phases"]) == step_time.PHASES and all(s >= 0 for s in point["phases"].values())
            assert (point["phases"]["all_reduce"] > 0) == (point["way"] == "by_hand")
            assert point["phases"]["wait"] == 0 or point["way"] == "by_hand"
            assert all(point["phases"][name] > 0 for name in ("data", "forward", "backward", "update"))
            assert len(point["rounds"]) == 2 and point["phases"] in point["rounds"]


def test_gradients_are_four_bytes_a_parameter(steps):
    for name, model in steps[1]["models"].items():
        assert model["gradient_bytes"] == 4 * sum(p.numel() for p in models.MODELS[name]().parameters())


@pytest.mark.parametrize(("arguments", "message"), [
    (["--ways", "ddp"], "one rank is alone: torchrun --nproc_per_node=2"),
    (["--samples", 10, "--batch-sizes", 64], "--samples 10 are no batch of 64 for each of 1 rank(s)"),
])
def test_bad_input_is_one_line_and_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["step_time.py", "--out", str(tmp_path / "x.json"), *map(str, arguments)])
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        step_time.main()
    console = capsys.readouterr()
    assert ended.value.code == 2 and console.out == "" and console.err.count("\n") == 1
    assert message in console.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_ceiling_is_what_all_reach_together_by_one_alone(ranks, tmp_path):
    out = tmp_path / "ceiling.json"
    done = runner.run(ranks, "--dataset", "synthetic", "--samples", 40, "--batch-size", 4, "--rounds", 3, "--seconds",
                      0.1, "--out", out, script=CEILING)
    assert done.returncode == 0, done.stderr
    measured = json.loads(out.read_text())
    assert (measured["model"], measured["batch_size"], measured["rounds"]) == ("lenet", 4, 3)
    assert [one["ranks"] for one in measured["ceilings"]] == list(range(2, ranks + 1))
    assert all(0 < one["low"] <= one["ceiling"] <= one["high"] for one in measured["ceilings"])
    assert done.stdout.count("\n") == ranks and f"{ranks} side by side" in done.stdout


@pytest.mark.parametrize(("world_size", "arguments", "message"), [
    (1, [], "nobody beside it: torchrun --nproc_per_node=2"),
    (2, ["--samples", 10], "--samples 10 are no batch of 64 for each of 2 ranks"),
    (2, ["--seconds", 40], "--timeout 60 is too short"),
])
def test_a_ceiling_that_cannot_be_measured_is_refused(world_size, arguments, message, tmp_path, monkeypatch, capsys):
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.argv", ["side_by_side.py", "--dataset", "synthetic", "--out", str(tmp_path / "x.json"),
                                     *map(str, arguments)])
    with pytest.raises(SystemExit, match="2"):
        side_by_side.main()
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


# ---------------------------------------------------------------- parts of a step


def point(way, batch, *rounds):
    return {"way": way, "batch_size": batch, "rounds": rounds}


def test_the_parts_add_up_to_by_hand_and_ddp_itself_and_are_not_cut_at_zero():
    talk = {"work": 6.0, "wait": 1.0, "all_reduce": 2.0}
    points = [point(way, batch, *rounds) for batch in (4, 8) for way, rounds in {
        "ddp": [{"work": 11.0 * batch}, {"work": 9.0 * batch}], "alone": [{"work": 5.0}, {"work": 7.0}],
        "side_by_side": [{"work": 6.5}, {"work": 6.5}], "silent": [{"work": 7.0}, {"work": 6.0}],
        "by_hand": [talk, talk]}.items()]
    table = show.parts(points)
    assert table[show.PARTS].values.tolist() == [[5, 1, 1, 2, 0.5], [7, -1, 1, 2, -0.5]] * 2
    assert table["sum"].tolist() == [9.5, 8.5] * 2 and table["ddp"].tolist() == [44, 36, 88, 72]
    assert show.between(table, 6).tolist() == [6, 0, 1, 2, 0]
    (four, _) = show.speedups(table, 2).to_dict("records")
    assert four == {"batch_size": 4, "speedup": pytest.approx((10 / 44 + 14 / 36) / 2), "low": 10 / 44, "high": 14 / 36}
    assert show.speedups(table, 2, "side_by_side")["high"].tolist() == [14 / 6.5] * 2
    with pytest.raises(ValueError, match="not between"):
        show.between(table, 9)


# ---------------------------------------------------------------- what others have published


def test_published_figures_follow_from_what_their_readme_says():
    series = show.series()
    resnet, vit = series["ResNet-50, P100"], series["ViT, A100"]
    assert resnet["images_per_second"] == pytest.approx(90 * 1_281_167 / (29 * 3600), rel=1e-3)
    assert resnet["backward"] == pytest.approx(0.120 * resnet["images_per_second"] / (8 * 32), rel=1e-3)
    assert vit["parameters"] == 12 * 12 * 384**2 + 2 * 384 * 20 * 64 + 45 * 90 * 384
    assert vit["efficiency"]["64"] == pytest.approx(2573 / 204 / 16, rel=1e-3)


def test_a_band_begins_at_one_and_is_as_wide_as_the_latency_is_unknown():
    one = show.series()["ResNet-50, P100"]
    band = show.band(one, 3e-6, 50e-6)
    assert list(band) == [8, 16, 32, 64, 128, 256, 512, 1024] and band[8] == (1, 1)
    assert all(low < high for gpus, (low, high) in band.items() if gpus > 8)
    slow = show.band(one, 3e-6, 50e-6, 0.5)
    assert slow[1024][0] < band[1024][0] and slow[1024][1] == band[1024][1]
    assert show.band(one, 3e-6, 0)[1024] == (band[1024][1], band[1024][1])


def test_latencies_give_back_the_time_that_they_were_taken_from():
    links = pd.read_csv(show.PUBLISHED / "all_reduce.csv")
    within, between = show.latencies(links, 2**18, "8 × B200, one node", "32 × B200, four nodes", 4)
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
    assert scaling.ddp_buckets(248_024) == 1


@pytest.mark.parametrize(("medians", "smallest"), [((0.6, 1.1, 1.5), 8), ((1.2, 1.3, 1.4), 4), ((0.5, 0.6, 0.7), None),
                                                   ((1.2, 0.9, 1.1), 16)])
def test_ddp_pays_from_the_smallest_batch_on_which_none_above_is_slower(medians, smallest):
    assert show.smallest(pd.DataFrame({"batch_size": [4, 8, 16], "speedup": medians})) == smallest


@pytest.mark.parametrize(("small", "compared"), [((1.9, 2.0), "higher"), ((1.5, 1.6), "lower"), ((1.5, 1.8), "equal")])
def test_ceilings_of_two_batches_differ_if_their_rounds_do_not_overlap(small, compared):
    table = pd.DataFrame({"batch_size": [128, 4], "low": [1.7, small[0]], "high": [1.8, small[1]]})
    assert show.smaller_batch(table) == compared


def test_the_error_of_a_prediction_is_also_that_of_the_ratio_to_one_rank():
    rows = show.errors_table(pd.Series([1.0, 1.1]), pd.Series([0.5, 0.5]), 0.8, 1.1, 0.25)
    assert [row["off by"] for row in rows] == ["-27 % to -20 %", "+0 % to +10 %", "-50 %"]
    assert [row["off by, as a ratio to one rank"] for row in rows] == ["+45 % to +60 %", "+100 % to +120 %", "–"]
