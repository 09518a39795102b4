"""Lesson 04: what each collective moves, the ring, the fit of time against size, and the hang on purpose."""

import json
import re
import socket
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.distributed as dist

from course import plots, predict
from lessons.l04_collectives import collectives_shown, hang_on_purpose, pictures
from scripts.measure import message_time
from tests import runner

MEASURE = "scripts/measure/message_time.py"
DEMO, HANG = (f"lessons/l04_collectives/{name}.py" for name in ("collectives_shown", "hang_on_purpose"))


def run(ranks, script, *arguments, **env):
    return runner.run(ranks, *arguments, script=script, **env)


def written(done, path):
    assert done.returncode == 0, done.stderr
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no half-written file is left"
    return json.loads(path.read_text())


# ---------------------------------------------------------------------------------- bandwidth, fit, ring_seconds


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


def test_disturbed_points_move_nothing():
    seconds = 200e-6 + 1e-9 * SIZES
    seconds[[0, 4, 8]] *= [7, 20, 3]
    assert predict.fit.fit(SIZES, seconds) == pytest.approx((200e-6, 1e-9))


def test_small_messages_count_as_much_as_large_ones():
    alpha, beta = predict.fit.fit(SIZES, (200e-6 + 1e-9 * SIZES) * np.where(np.arange(9) % 2, 1.04, 0.96))
    assert alpha == pytest.approx(200e-6, rel=0.05) and beta == pytest.approx(1e-9, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_line_has_less_relative_error(seed):
    numbers = np.random.default_rng(seed)
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
    ([], []), ([1], [1]), ([5, 5], [1, 2]), ([1, 2], [1]), ([1, 2], [0, 1]), ([-1, 2], [1, 2]), ([1, 2], [1, np.nan]),
])
def test_what_cannot_be_fitted_is_said(sizes, seconds):
    with pytest.raises(ValueError, match="a fit needs"):
        predict.fit.fit(sizes, seconds)


def test_ring_seconds_adds_up_its_steps():
    assert predict.fit.ring_seconds(1200, 4, 1e-4, 1e-8) == pytest.approx(6 * (1e-4 + 300 * 1e-8))
    assert predict.fit.ring_seconds(1e9, 1000, 0, 1e-9) == pytest.approx(2, rel=0.002)  # never more than twice
    # its bus bandwidth is that of the link
    assert predict.fit.bandwidth(1e9, predict.fit.ring_seconds(1e9, 8, 0, 1e-9), 8)[1] == pytest.approx(1e9)


def test_the_pure_part_needs_no_torch():
    code = ("import sys\nfrom course.predict.fit import bandwidth, fit, ring_seconds\n"
            "fit([1, 2], [1, 2]); assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], cwd=runner.ROOT, check=True, timeout=60)


# ---------------------------------------------------------------------------------- measuring


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_is_measured(ranks, tmp_path):
    out = tmp_path / "found.json"
    done = run(ranks, MEASURE, "--op", *predict.fit.BUS_FACTORS, "--min-bytes", "102", "--max-bytes", "64K", "--factor",
               8, "--rounds", 3, "--backend", "gloo", "--out", out)
    found = written(done, out)
    assert (found["world_size"], found["backend"], found["rounds"]) == (ranks, "gloo", 3)
    assert list(found["ops"]) == list(predict.fit.BUS_FACTORS)
    for op, measured in found["ops"].items():
        points = measured["points"]
        for asked, point in zip([102, 816, 6528, 52_224], points, strict=True):
            assert asked <= point["bytes"] < asked + 4 * ranks and point["bytes"] % 4 == 0
            assert 0 < point["low"] <= point["seconds"] <= point["high"]
            speeds = predict.fit.bandwidth(point["bytes"], point["seconds"], ranks, op)
            assert (point["algbw"], point["busbw"]) == speeds
        fitted = predict.fit.fit([p["bytes"] for p in points], [p["seconds"] for p in points])
        assert (measured["alpha"], measured["beta"]) == fitted
        assert f"{op}\n" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_own_gpus_are_measured_with_nccl_and_a_shared_one_not_at_all(tmp_path):
    gpus = torch.cuda.device_count()
    for ranks, backend, device in [(gpus + 1, "gloo", "cpu"), (gpus, "nccl", "cuda")]:
        if ranks > 1:
            out = tmp_path / backend / "found.json"
            found = written(run(ranks, MEASURE, "--max-bytes", "64K", "--rounds", 2, "--out", out), out)
            assert (found["backend"], found["device"]) == (backend, device)


def test_sizes_are_written_as_people_write_them():
    assert [message_time.size(text) for text in ("7", "4K", "4k", "64M", "1G")] == [7, 4096, 4096, 2**26, 2**30]


@pytest.mark.parametrize(("script", "world_size", "options", "said"), [
    (message_time, 1, [], "a message needs two ranks"),
    (message_time, 2, ["--factor", "1"], "take 2 or more"),
    (message_time, 2, ["--min-bytes", "1M", "--max-bytes", "1M"], "at least --factor (4) times as many"),
    (message_time, 2, ["--min-bytes", "2"], "has 4 bytes or more"),
    (message_time, 2, ["--max-bytes", "64X"], "64X is not a size"),
    (message_time, 2, ["--op", "all_redcue"], "invalid choice: 'all_redcue'"),
    (message_time, 2, ["--rounds", "0"], "0 is not a positive number"),
    (collectives_shown, 1, [], "this shows 2 to 7 ranks"),
    (collectives_shown, 8, [], "this shows 2 to 7 ranks"),
    (hang_on_purpose, 2, [], "three ranks or more"),
    (hang_on_purpose, 3, ["--timeout", "nan"], "nan is not a positive number"),
    *((script, 3, ["--out", "."], "is a folder") for script in (message_time, collectives_shown, hang_on_purpose)),
    *((script, 3, ["--out", "README.md/x"], "cannot write in README.md (Not a directory)")
      for script in (message_time, collectives_shown, hang_on_purpose)),
])
def test_bad_input_is_one_line_and_nothing_is_written(script, world_size, options, said, tmp_path, monkeypatch, capfd):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, str(world_size))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr("sys.argv", ["script.py", "--out", str(tmp_path / "found.json"), *options])
    monkeypatch.chdir(runner.ROOT)
    with pytest.raises(SystemExit, match="2"):
        script.main()
    stderr = capfd.readouterr().err
    assert said in stderr and len(stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_bad_input_under_torchrun_is_said_once(tmp_path):
    done = run(2, MEASURE, "--out", tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "message_time.py: error:" in done.stderr


@pytest.mark.parametrize("script", [MEASURE, DEMO])
def test_a_rank_that_never_comes_ends_the_wait_on_one_line(script, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = run(0, script, "--out", tmp_path / "found.json", "--timeout", 2,
               RANK="0", WORLD_SIZE="3", LOCAL_RANK="0", LOCAL_WORLD_SIZE="3", MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(port))
    assert done.returncode == 2 and "rank 0 of 3 waited for the others" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------- what each collective moves


@pytest.fixture(scope="module", params=[2, 3, 4])
def demo(request, tmp_path_factory):
    """Findings on 2, 3 and 4 ranks."""
    out = tmp_path_factory.mktemp("demo") / "found.json"
    return written(run(request.param, DEMO, "--out", out), out)


def expected(name, n):
    """(before, after), a list a rank: what the documentation of torch.distributed promises. None: nothing promised."""
    own = [[cell * 10**rank for cell in range(1, n + 1)] for rank in range(n)]
    sums = [sum(column) for column in zip(*own, strict=True)]
    firsts, nothing = [row[0] for row in own], [[]] * (n - 1)
    return {
        "broadcast": (own, [own[0]] * n),
        "scatter": ([own[0], *nothing], [[cell] for cell in own[0]]),
        "gather": ([[cell] for cell in firsts], [firsts, *nothing]),
        "all_gather": ([[cell] for cell in firsts], [firsts] * n),
        "reduce": (own, [sums] + [None] * (n - 1)),
        "all_reduce": (own, [sums] * n),
        "reduce_scatter": (own, [[cell] for cell in sums]),
        "all_to_all": (own, [list(column) for column in zip(*own, strict=True)]),
        "send_recv": (own, [*own[:-1], own[0]]),
        "shift": (own, [own[rank - 1] for rank in range(n)]),
        "async_handle": (own, [sums] * n),
    }[name]


@pytest.mark.parametrize("name", [name for name in collectives_shown.COLLECTIVES if name != "barrier"])
def test_each_collective_moves_what_it_promises(demo, name):
    before, after = expected(name, demo["world_size"])
    states = demo[name]["states"]
    assert states[0]["cells"] == before
    for got, promised in zip(states[-1]["cells"], after, strict=True):
        assert promised is None or got == promised


def test_nobody_leaves_the_barrier_before_all_have_come(demo):
    start, arrives, leaves = (state["seconds"] for state in demo["barrier"]["states"])
    assert all(late > early for early, late in zip(arrives, arrives[1:], strict=False))
    assert min(leaves) >= max(arrives) and max(start) < min(arrives)


def test_an_asynchronous_call_returns_before_the_last_rank_has_come(demo):
    _, before, called, waits, done = demo["async_handle"]["states"]
    assert max(called["seconds"][:-1]) < before["seconds"][-1] <= min(done["seconds"])
    assert waits["cells"][0] != done["cells"][0], "rank 0 cannot have the sum: one rank was late"


def gloo_without(name):
    def refuses(*args, **kwargs):
        raise RuntimeError(f"Backend gloo does not support {name}")
    return refuses


@pytest.mark.parametrize("name", collectives_shown.INSTEAD)
@runner.in_a_group_of_one
def test_what_gloo_lacks_is_built_from_others(name):
    """PyTorch 2.10 refuses it on gloo; here one process plays the refusal, three the substitute."""
    setattr(dist, name, gloo_without(name))
    collectives_shown.INSTEAD[name] = lambda rank, ranks: iter([("instead", None)])
    shown = collectives_shown.show(name)
    assert shown["unsupported"] == f"Backend gloo does not support {name}"
    assert shown["states"][0]["label"] == "instead"


SUBSTITUTES = """
import shortcuts
from lessons.l04_collectives import collectives_shown as demo
demo.COLLECTIVES.update(demo.INSTEAD)
demo.main()
shortcuts.exit_now()
"""


def test_the_substitutes_move_the_same(tmp_path):
    program, out = tmp_path / "substitutes.py", tmp_path / "out" / "found.json"
    program.write_text(SUBSTITUTES)
    done = run(3, program, "--show", *collectives_shown.INSTEAD, "--out", out, PYTHONPATH=str(runner.ROOT))
    found = written(done, out)
    for name in collectives_shown.INSTEAD:
        assert [state["cells"] for state in found[name]["states"]] == list(expected(name, 3))


# ---------------------------------------------------------------------------------- the ring


def test_the_ring_is_all_reduce(demo):
    ring, n = demo["ring"], demo["world_size"]
    assert ring["chunks"] == [1] * n and ring["equal"] == [True] * n
    sums = [(1 + i) * int("1" * n) for i in range(n)]
    assert ring["steps"][-1]["cells"] == [sums] * n
    assert ring["floats"]["ranks_agree"] and ring["floats"]["off"] < 1e-5


def test_after_the_first_phase_each_rank_has_one_whole_chunk(demo):
    n = demo["world_size"]
    cells = demo["ring"]["steps"][n - 1]["cells"]
    whole = [{column for column in range(n) if len(pictures.contributors(row[column])) == n} for row in cells]
    assert whole == [{(rank + 1) % n} for rank in range(n)], "as exercise 3 asks"


def test_the_ring_sends_what_the_formula_says(demo):
    ring, n = demo["ring"], demo["world_size"]
    steps = ring["steps"][1:]
    assert len(steps) == 2 * (n - 1)
    for number, step in enumerate(steps):
        assert sorted(step["sent"]) == list(range(n)), "every chunk travels, in every step"
        assert sum(step["bytes"]) == ring["bytes"]
        assert step["sent"] == [(rank - number) % n for rank in range(n)], "counted from 0, rank r begins with chunk r"
    mean = sum(sum(step["bytes"]) for step in steps) / n
    assert mean == pytest.approx(predict.fit.BUS_FACTORS["all_reduce"](n) * ring["bytes"])


# ---------------------------------------------------------------------------------- pictures


def test_a_digit_tells_the_rank():
    for rank in range(collectives_shown.MOST_RANKS):
        assert {tuple(pictures.contributors(number)) for number in
                collectives_shown.numbers(rank, 30).tolist()} == {(rank,)}
    total = sum(collectives_shown.numbers(rank, 30) for rank in range(collectives_shown.MOST_RANKS))
    assert all(pictures.contributors(number) == list(range(7)) for number in total.tolist())
    assert pictures.contributors(0) == []


@pytest.mark.parametrize("demo", [4], indirect=True)
def test_a_picture_shows_every_number_in_the_colours_of_its_ranks(demo):
    for name in collectives_shown.COLLECTIVES:
        if name == "barrier":
            continue
        fig = pictures.before_after(demo[name], name)
        for state, ax in zip(demo[name]["states"], fig.axes, strict=True):
            numbers = [number for row in state["cells"] for number in row]
            assert ax.get_title(loc="left") == state["label"]
            texts = [str(number) for row in state["cells"] for number in row or ["nothing"]]
            assert [text.get_text() for text in ax.texts] == texts
            stripes = sum(len(pictures.contributors(number)) for number in numbers)
            assert len(ax.patches) == stripes + len(numbers)
        assert plots.picture(fig).data.startswith(b"\x89PNG")
        assert fig.number not in plt.get_fignums()


@pytest.mark.parametrize("demo", [4], indirect=True)
def test_the_ring_is_drawn_step_by_step_counted_from_0(demo):
    panels = [ax for half in ("added", "copied") for ax in pictures.ring(demo["ring"], half).axes]
    assert [ax.get_title(loc="left") for ax in panels] == [
        "start", *(f"step {step}: {'added' if step < 3 else 'copied'}" for step in range(6))]
    drawn = [[int(text.get_text()) for text in ax.texts] for ax in panels]
    assert drawn == [[number for row in step["cells"] for number in row] for step in demo["ring"]["steps"]]
    framed = [sum(patch.get_linewidth() == 4 for patch in ax.patches) for ax in panels]
    assert framed == [0] + 6 * [4], "on each rank a chunk of one number has arrived"


@pytest.mark.parametrize("demo", [4], indirect=True)
def test_who_waited_for_the_barrier_is_a_table_for_the_timeline(demo):
    events = pictures.intervals(demo["barrier"], {"busy": ("work", "start", "arrives"),
                                                           "barrier": ("wait", "arrives", "leaves")})
    assert list(events["rank"]) == [0, 1, 2, 3] * 2 and list(events["event"]) == ["work"] * 4 + ["wait"] * 4
    assert events["start"][4] == events["end"][0] == 1000 * demo["barrier"]["states"][1]["seconds"][0]


# ---------------------------------------------------------------------------------- the hang


@pytest.fixture(scope="module", params=[3, 4])
def hung(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("hang") / "found.json"
    return written(runner.torchrun(request.param, "--timeout", 2, "--out", out, script=HANG), out)


def test_every_rank_waits_and_the_stack_tells_where(hung):
    assert any("imed out" in rank["error"] for rank in hung["stack"])
    for number, rank in enumerate(hung["stack"]):
        # a rank that times out leaves; one that still waited for it may then hear that the connection was closed
        assert re.search("imed out|onnection closed by peer", rank["error"]) and rank["end"] - rank["start"] > 1
        waits = "broadcast" if number == hung["world_size"] - 1 else "all_reduce"
        assert rank["stack"][1].endswith(f" in {waits}")
        assert any(f'"{HANG}"' in line and line.endswith("in different") for line in rank["stack"])
        assert not any(str(runner.ROOT) in line or sys.prefix in line for line in rank["stack"])


def test_a_monitored_barrier_names_the_missing_rank(hung):
    assert re.search(r"Ranks? 1 failed to pass monitoredBarrier", hung["barrier"][0]["error"])
    assert hung["barrier"][1]["error"] is None
    assert all(rank["error"] for rank in hung["barrier"][2:])


def test_detail_names_both_collectives_before_anybody_waits(hung):
    for rank in hung["detail"]:
        assert "ALLREDUCE" in rank["error"] and "BROADCAST" in rank["error"]
        assert "Rank" in rank["error"] and rank["stack"] == []
