"""Lesson 04: what each collective moves, the ring, and the hang on purpose."""

import json
import re
import sys

import pytest

from course import predict
from lessons.l04_collectives import collectives_shown, show
from tests import runner

DEMO, HANG = (f"lessons/l04_collectives/{name}.py" for name in ("collectives_shown", "hang_on_purpose"))


# ---------------------------------------------------------------------------------- what each collective moves


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The file that collectives_shown.py writes on 3 ranks."""
    out = tmp_path_factory.mktemp("demo") / "results.json"
    done = runner.run(3, "--out", out, script=DEMO)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def numbers(n):
    """What each of n ranks begins with."""
    return [[cell * 10**rank for cell in range(1, n + 1)] for rank in range(n)]


def expected(name, n):
    """(before, after), a list for each rank: what the documentation of torch.distributed promises. None: nothing."""
    own, nothing = numbers(n), [[]] * (n - 1)
    columns = [list(column) for column in zip(*own, strict=True)]
    sums, firsts = [sum(column) for column in columns], [row[0] for row in own]
    return {
        "broadcast": (own, [own[0]] * n),
        "scatter": ([own[0], *nothing], [[cell] for cell in own[0]]),
        "gather": ([[cell] for cell in firsts], [firsts, *nothing]),
        "all_gather": ([[cell] for cell in firsts], [firsts] * n),
        "reduce": (own, [sums] + [None] * (n - 1)),
        "all_reduce": (own, [sums] * n),
        "reduce_scatter": (own, [[cell] for cell in sums]),
        "all_to_all": (own, columns),
        "send_recv": (own, [*own[:-1], own[0]]),
        "shift": (own, [own[rank - 1] for rank in range(n)]),
    }[name]


@pytest.mark.parametrize("name", collectives_shown.COLLECTIVES)
def test_each_collective_moves_what_it_promises(demo, name):
    before, after = (state["cells"] for state in demo[name])
    promised_before, promised_after = expected(name, len(before))
    assert before == promised_before
    for cells, promised in zip(after, promised_after, strict=True):
        assert promised is None or cells == promised


OLD_GLOO = """
import torch.distributed as dist
from course import rank_program
from lessons.l04_collectives import collectives_shown
def all_to_all(*_):
    raise RuntimeError("Backend gloo does not support alltoall")
dist.all_to_all = all_to_all
rank_program.start(collectives_shown.main)
"""


@pytest.mark.weekly
def test_scatters_move_the_same_where_gloo_lacks_all_to_all(tmp_path):
    program, out = tmp_path / "old_gloo.py", tmp_path / "results.json"
    program.write_text(OLD_GLOO)
    done = runner.run(3, "--out", out, script=program, PYTHONPATH=str(runner.ROOT))
    assert done.returncode == 0, done.stderr
    states = json.loads(out.read_text())["all_to_all"]
    assert tuple(state["cells"] for state in states) == expected("all_to_all", 3)


def test_nobody_leaves_the_barrier_before_all_have_come(demo):
    start, arrives, leaves = (demo["barrier"][point] for point in ("start", "arrives", "leaves"))
    assert min(leaves) >= max(arrives) and max(start) < min(arrives)


def test_an_asynchronous_call_returns_before_the_last_rank_has_come(demo):
    times = demo["async_handle"]
    assert max(times["after the call"][:-1]) < times["before the call"][-1] <= min(times["after wait()"])


# ---------------------------------------------------------------------------------- the ring


def test_the_ring_is_all_reduce(demo):
    ring, n = demo["ring"], len(demo["ring"]["equal"])
    assert ring["equal"] == [True] * n
    assert ring["steps"][-1]["cells"] == [[(1 + i) * int("1" * n) for i in range(n)]] * n
    assert ring["floats"]["ranks_agree"] and ring["floats"]["off"] < 1e-5


def test_after_the_first_phase_each_rank_has_one_whole_chunk(demo):
    n = len(demo["ring"]["equal"])
    cells = demo["ring"]["steps"][n - 1]["cells"]
    whole = [{column for column in range(n) if len(show.contributors(row[column])) == n} for row in cells]
    assert whole == [{(rank + 1) % n} for rank in range(n)], "as exercise 3 asks"


def test_the_ring_sends_what_the_formula_says(demo):
    ring, n = demo["ring"], len(demo["ring"]["equal"])
    steps = ring["steps"][1:]
    assert len(steps) == 2 * (n - 1)
    for number, step in enumerate(steps):
        assert sum(step["bytes"]) == ring["bytes"]
        assert step["sent"] == [(rank - number) % n for rank in range(n)], "counted from 0, rank r begins with chunk r"
    mean = sum(sum(step["bytes"]) for step in steps) / n
    assert mean == pytest.approx(predict.fit.BUS_FACTORS["all_reduce"](n) * ring["bytes"])


# ---------------------------------------------------------------------------------- pictures


def test_a_digit_tells_the_rank():
    most = collectives_shown.MOST_RANKS
    of_ranks = [collectives_shown.numbers(rank, 30) for rank in range(most)]
    for rank, mine in enumerate(of_ranks):
        assert all(show.contributors(number) == [rank] for number in mine.tolist())
    assert all(show.contributors(number) == list(range(most)) for number in sum(of_ranks).tolist())


def test_pictures_show_the_numbers_of_the_run_in_the_colours_of_their_ranks(demo):
    panels = show.before_after(demo["gather"], "gather").axes
    assert [[text.get_text() for text in ax.texts] for ax in panels] == [
        ["1", "10", "100"], ["1", "10", "100", "nothing", "nothing"]]
    panels = [ax for half in ("added", "copied") for ax in show.ring(demo["ring"], half).axes]
    cells = [[number for row in step["cells"] for number in row] for step in demo["ring"]["steps"]]
    assert [[int(text.get_text()) for text in ax.texts] for ax in panels] == cells
    for ax, numbers_of_panel in zip(panels, cells, strict=True):
        stripes = sum(len(show.contributors(number)) for number in numbers_of_panel)
        assert len(ax.patches) == stripes + len(numbers_of_panel)
    framed = [sum(patch.get_linewidth() == 4 for patch in ax.patches) for ax in panels]
    assert framed == [0] + 4 * [3], "on each rank a chunk of one number has arrived"


# ---------------------------------------------------------------------------------- the hang


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """The file that hang_on_purpose.py writes on 3 ranks."""
    out = tmp_path_factory.mktemp("hang") / "results.json"
    done = runner.run(3, "--timeout", 2, "--out", out, script=HANG)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_every_rank_waits_and_the_stack_tells_where(hung):
    assert any("imed out" in rank["error"] for rank in hung["stack"])
    for number, rank in enumerate(hung["stack"]):
        # a rank that times out leaves; a rank that still waited for it may then hear that the connection was closed
        assert re.search("imed out|onnection closed by peer", rank["error"]) and rank["end"] - rank["start"] > 1
        assert rank["stack"][1].endswith(" in broadcast" if number == 2 else " in all_reduce")
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


@pytest.mark.parametrize(("script", "ranks", "message"), [
    (DEMO, 1, "this shows 2 to 7 ranks"), (DEMO, 8, "this shows 2 to 7 ranks"),
    (HANG, 1, "three ranks or more"), (HANG, 2, "three ranks or more")])
def test_too_few_or_too_many_ranks_are_refused_in_one_line(script, ranks, message, tmp_path):
    environment = {} if ranks == 1 else {  # rank 0's, as torchrun sets it; it refuses before it meets another
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = runner.run(0, "--out", tmp_path / "results.json", script=script, **environment)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
