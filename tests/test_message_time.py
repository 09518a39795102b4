"""The time of a message: scripts/measure/message_time.py, and the line that course/predict/fit.py puts through it."""

import json

import numpy as np
import pytest
import torch

from course import predict
from scripts.measure import message_time
from tests import runner

MEASURE = "scripts/measure/message_time.py"


def measured(ranks, *arguments, out):
    done = runner.run(ranks, *arguments, "--out", out, script=MEASURE)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_bandwidth_is_that_of_nccl_tests():
    """Rows printed by nccl-tests on 8 A100 (stas00/ml-engineering, network/README.md): bytes, µs, algbw, busbw."""
    for size, us, algbw, busbw in [(32_768, 43.83, 0.75, 1.31), (1_048_576, 101.9, 10.29, 18.00),
                                   (1_073_741_824, 8203.9, 130.88, 229.04)]:
        assert predict.fit.bandwidth(size, us / 1e6, 8) == pytest.approx((algbw * 1e9, busbw * 1e9), rel=0.005)
    assert predict.fit.bandwidth(100, 2, 4, "all_gather") == (50, 37.5)
    assert predict.fit.bandwidth(100, 2, 4, "broadcast") == (50, 50)


SIZES = 1024.0 * 4.0 ** np.arange(9)


def test_a_fit_finds_the_line():
    assert predict.fit.fit(SIZES, 200e-6 + 1e-9 * SIZES) == pytest.approx((200e-6, 1e-9))
    assert predict.fit.fit([8, 4], [3, 2]) == pytest.approx((1, 0.25))


def test_no_other_line_has_less_relative_error():
    numbers = np.random.default_rng(0)
    seconds = (10 ** numbers.uniform(-5, -3) + 10 ** numbers.uniform(-11, -8) * SIZES) * numbers.lognormal(0, 0.7, 9)

    def error(alpha, beta):
        return np.abs((alpha + beta * SIZES) / seconds - 1).sum()

    alpha, beta = predict.fit.fit(SIZES, seconds)
    assert alpha >= 0 and beta >= 0
    for a in [0, *np.geomspace(1e-7, 1, 80)]:
        for b in [0, *np.geomspace(1e-13, 1e-5, 80)]:
            assert error(alpha, beta) <= error(a, b) + 1e-9


def test_a_fit_is_never_negative():
    assert predict.fit.fit([1, 2, 3], [3, 2, 1])[1] == 0
    assert predict.fit.fit([1, 2, 3], [1, 4, 9])[0] == 0


@pytest.mark.parametrize(("sizes", "seconds"), [
    ([], []), ([1], [1]), ([5, 5], [1, 2]), ([1, 2], [1]), ([1, 2], [1, np.nan]),
])
def test_what_cannot_be_fitted_is_said(sizes, seconds):
    with pytest.raises(ValueError, match="a fit needs"):
        predict.fit.fit(sizes, seconds)


def test_ring_seconds_adds_up_its_steps():
    assert predict.fit.ring_seconds(1200, 4, 1e-4, 1e-8) == pytest.approx(6 * (1e-4 + 300 * 1e-8))
    assert predict.fit.ring_seconds(1e9, 1000, 0, 1e-9) == pytest.approx(2, rel=0.002)  # never more than twice
    # its bus bandwidth is that of the link
    assert predict.fit.bandwidth(1e9, predict.fit.ring_seconds(1e9, 8, 0, 1e-9), 8)[1] == pytest.approx(1e9)


@pytest.mark.weekly
def test_every_operation_is_measured(tmp_path):
    ranks = 3  # they cannot share 1,024 bytes equally
    results = measured(ranks, "--op", *predict.fit.BUS_FACTORS, "--max-bytes", "64K", "--rounds", 3,
                       out=tmp_path / "figures.json")
    assert (results["world_size"], results["rounds"]) == (ranks, 3)
    assert list(results["ops"]) == list(predict.fit.BUS_FACTORS)
    for op, of_op in results["ops"].items():
        points = of_op["points"]
        for asked, point in zip([1024, 4096, 16_384, 65_536], points, strict=True):
            assert asked <= point["bytes"] < asked + 4 * ranks and point["bytes"] % 4 == 0
            assert 0 < point["low"] <= point["seconds"] <= point["high"]
            speeds = predict.fit.bandwidth(point["bytes"], point["seconds"], ranks, op)
            assert (point["algbw"], point["busbw"]) == speeds
        fitted = predict.fit.fit([p["bytes"] for p in points], [p["seconds"] for p in points])
        assert (of_op["alpha"], of_op["beta"]) == fitted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_own_gpus_are_measured_with_nccl_and_a_shared_one_not_at_all(tmp_path):
    gpus = torch.cuda.device_count()
    for ranks, backend, device in [(gpus + 1, "gloo", "cpu"), (gpus, "nccl", "cuda")]:
        if ranks > 1:
            results = measured(ranks, "--max-bytes", "64K", "--rounds", 2, out=tmp_path / f"{backend}.json")
            assert (results["backend"], results["device"]) == (backend, device)


def test_sizes_are_written_as_people_write_them():
    assert [message_time.size(text) for text in ("7", "4K", "4k", "64M", "1G")] == [7, 4096, 4096, 2**26, 2**30]


@pytest.mark.parametrize(("options", "message"), [
    ([], "a message needs two ranks"),
    (["--max-bytes", "2K"], "take 4096 or more"),
    (["--max-bytes", "64X"], "64X is not a size"),
])
def test_bad_input_is_one_line_and_nothing_is_written(options, message, tmp_path, monkeypatch, capsys):
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2 if options else 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.argv", ["message_time.py", "--out", str(tmp_path / "found.json"), *options])
    with pytest.raises(SystemExit, match="2"):
        message_time.main()
    stderr = capsys.readouterr().err
    assert message in stderr and len(stderr.splitlines()) == 1 and not list(tmp_path.iterdir())
