"""Lesson 04: collectives made of messages, what each collective moves, the ring, and the hang on purpose."""

import inspect
import json
import re
import sys

import pytest
import torch
import torch.distributed as dist

from course import compare, predict
from lessons.l04_collectives import check, collectives_shown, messages, show
from tests import runner

DEMO, OWN, HANG = (f"lessons/l04_collectives/{name}.py"
                   for name in ("collectives_shown", "own_collectives", "hang_on_purpose"))


# ---------------------------------------------------------------------------------- collectives made of messages


def star(tensor, src):
    for other in range(dist.get_world_size()):
        if dist.get_rank() == src != other:
            dist.send(tensor, other)
    if dist.get_rank() != src:
        dist.recv(tensor)  # from anybody


def both_ways(tensor, src):
    """A chain that begins in its middle."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    place, half = (rank - src) % ranks, ranks // 2
    if place > half:
        dist.recv(tensor, (rank + 1) % ranks)
    elif place:
        dist.recv(tensor, (rank - 1) % ranks)
    if place < half:
        dist.send(tensor, (rank + 1) % ranks)
    if place == 0 and ranks > 2 or place > half + 1:
        dist.send(tensor, (rank - 1) % ranks)


def each_to_each(tensor):
    others = [other for other in range(dist.get_world_size()) if other != dist.get_rank()]
    parts, mine = {other: torch.empty_like(tensor) for other in others}, tensor.clone()
    under_way = [dist.isend(mine, other) for other in others]
    under_way += [dist.irecv(part, other) for other, part in parts.items()]
    for each in under_way:
        each.wait()
    for part in parts.values():
        tensor += part


def ring_to_the_left(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(ranks)
    for step in range(2 * ranks - 2):
        mine, theirs = chunks[(rank + step) % ranks], chunks[(rank + step + 1) % ranks]
        part = torch.empty_like(theirs)
        for each in [dist.irecv(part, (rank + 1) % ranks), dist.isend(mine, (rank - 1) % ranks)]:
            each.wait()
        theirs.copy_(part if step >= ranks - 1 else theirs + part)


def file_of(function, name, folder):
    """A learner's file with this function under its name."""
    path = folder / f"{function.__name__}.py"
    path.write_text("import torch\nimport torch.distributed as dist\nfrom lessons.l04_collectives import check\n\n\n"
                    + inspect.getsource(function).replace(f"def {function.__name__}(", f"def {name}("))
    return path


@pytest.mark.parametrize(("asked", "remarks"), [
    (check.broadcasted, {star: "form a star: 4 messages in 4 rounds",
                         both_ways: "form a tree: 4 messages in 3 rounds"}),
    (check.all_reduced, {each_to_each: "go from each rank to each: 20 messages in 4 rounds",
                         check.my_ring: "form a ring: 40 messages in 8 rounds"}),
    (check.ring, {ring_to_the_left: "form a ring: 40 messages in 8 rounds"}),
], ids=lambda value: getattr(value, "__name__", ""))
def test_any_way_that_is_right_passes_and_its_shape_is_named(asked, remarks, tmp_path):
    files = [file_of(function, asked.measurement.name, tmp_path) for function in remarks]
    for (cases, error), remark in zip(asked.observe(files), remarks.values(), strict=True):
        assert error is None and all(case.got == case.right for case in cases)
        assert remark in cases[-1].remark


def test_messages_follow_one_another_in_rounds():
    """Rank 0 sends to 1 and to 2; rank 1 passes it on to 2 after it has come. Rank 2 waits for none of the two."""
    events = [[["send", 1, 8], ["send", 2, 8]], [["recv", 0, 8], ["wait", 0], ["send", 2, 8]],
              [["recv", 1, 8], ["recv", 0, 8]]]
    in_rounds = messages.rounds(events)
    assert in_rounds == [[(0, 1, 8)], [(0, 2, 8)], [(1, 2, 8)]], "one message at a time leaves a rank, and arrives"
    assert messages.figures(in_rounds, 3, 8) == {"shape": "each to each", "messages": 3, "rounds": 3, "most": 2,
                                                 "path": 3}
    others = [[other for other in range(5) if other != rank] for rank in range(5)]
    all_started = [[[kind, other, 8] for kind in ("send", "recv") for other in own] for own in others]
    assert [len(now) for now in messages.rounds(all_started)] == [5] * 4, "all ranks send and receive in each round"


def started_and_left(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.isend(tensor, (rank + 1) % ranks)
    dist.irecv(tensor, (rank - 1) % ranks)


def test_a_message_that_is_not_waited_for_is_told_as_that(tmp_path, monkeypatch):
    monkeypatch.setattr(check.all_reduced, "_mistake_behind", lambda *_: "")  # test_exercises.py runs the mistakes
    assert "did not wait for it" in check.all_reduced.verdict(file_of(started_and_left, "my_all_reduce", tmp_path))[1]


@pytest.mark.parametrize(("ways", "ranks", "shape"), [
    ([(0, 1), (1, 0)], 2, "pair"), ([(1, 0), (2, 0), (0, 1), (0, 2)], 3, "star"), ([(0, 1), (1, 2), (2, 0)], 3, "ring"),
    ([(0, 1), (0, 2), (0, 3)], 4, "star"), ([(0, 2), (2, 1), (1, 3)], 4, "chain"),
    ([(3, 2), (2, 1), (1, 0), (0, 1), (0, 2), (0, 3)], 4, "chain, then star"),
    ([(0, 2), (2, 1), (1, 3), (3, 0)], 4, "ring"), ([(0, 1), (1, 0), (2, 3), (3, 2)], 4, "mixed"),
    ([(0, 1), (1, 2), (2, 0), (0, 3)], 4, "mixed"), ([(0, 1)], 3, "mixed"), ([], 4, "mixed")])
def test_a_shape_is_which_ranks_the_messages_join(ways, ranks, shape):
    assert messages.shape([[(*way, 4)] for way in ways], ranks) == shape


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The file that own_collectives.py writes on 3 ranks, where the learner has written one of three functions."""
    folder = tmp_path_factory.mktemp("own")
    mine = file_of(each_to_each, "my_all_reduce", folder).rename(folder / "04_all_reduce.py")
    done = runner.run(3, "--out", folder / "own.json", "--rounds", 1, "--yours", mine, script=OWN)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "own.json").read_text())


def test_what_the_learner_wrote_runs_and_ours_elsewhere(own):
    assert [(each["name"], each["whose"], each.get("shape")) for each in own["programs"]] == [
        ("04_broadcast", "ours", "star"), ("04_all_reduce", "yours", "each to each"), ("04_ring", "ours", "ring"),
        ("torch", "torch", None), ("torch", "torch", None)]
    for program in own["programs"]:
        assert [time["bytes"] for time in program["times"]] == [1024, 32 * 1024, 1024**2, 32 * 1024**2]
        assert all(0 < time["low"] <= time["seconds"] <= time["high"] for time in program["times"])


def test_the_picture_of_messages_has_an_arrow_for_each(own):
    axes = show.messages_sent(own).axes
    programs = [program for program in own["programs"] if program["name"] != "torch"]
    assert [len(ax.texts) for ax in axes] == [program["messages"] for program in programs] == [2, 6, 12]
    assert [row["shape"] for row in show.own_table(own)] == ["star", "each to each", "ring"]


def test_the_table_of_times_says_whose_each_row_is(own):
    assert [row["by"] for row in show.times_table(own)] == [
        "ours: star", "torch", "yours: each to each", "ours: ring", "torch"]


def test_the_verdict_misses_a_difference_between_our_star_and_our_ring():
    def program(name, low, high):
        time = {"bytes": 1024, "seconds": (low + high) / 2, "low": low, "high": high}
        return {"operation": "all_reduce", "name": name, "whose": "ours", "shape": "star", "times": [time]}

    run = {"world_size": 4, "programs": [program("04_all_reduce", 0.003, 0.005), program("torch", 1, 3)]}
    for low, missed in ((0.004, True), (0.006, False)):
        ring = program("04_ring", low, 0.008)
        verdict = show.ring_verdict(run | {"programs": [*run["programs"], ring]})[0]
        assert (compare.NOT_SHOWN in verdict) == missed == ("not told apart" in verdict)


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
    """(before, after), a list for each rank: what the documentation of torch.distributed promises."""
    own, nothing = numbers(n), [[]] * (n - 1)
    columns = [list(column) for column in zip(*own, strict=True)]
    sums, firsts = [sum(column) for column in columns], [row[0] for row in own]
    return {
        "broadcast": (own, [own[0]] * n),
        "scatter": ([own[0], *nothing], [[cell] for cell in own[0]]),
        "gather": ([[cell] for cell in firsts], [firsts, *nothing]),
        "all_gather": ([[cell] for cell in firsts], [firsts] * n),
        "reduce": (own, [sums, *nothing]),
        "all_reduce": (own, [sums] * n),
        "reduce_scatter": (own, [[cell] for cell in sums]),
        "all_to_all": (own, columns),
        "shift": (own, [own[rank - 1] for rank in range(n)]),
    }[name]


@pytest.mark.parametrize("name", collectives_shown.COLLECTIVES)
def test_each_collective_moves_what_it_promises(demo, name):
    before, after = (state["cells"] for state in demo[name])
    promised_before, promised_after = expected(name, len(before))
    assert before == promised_before
    assert after == promised_after


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
    *_, before, arrows, after = show.before_after(demo, "scatter", "gather").axes
    assert [[text.get_text() for text in ax.texts] for ax in (before, after)] == [
        ["1", "10", "100"], ["1", "10", "100", "nothing", "nothing"]]
    assert [(text.xyann[1], text.xy[1]) for text in arrows.texts] == [(1, 0), (2, 0)], "from and to"
    panels = [ax for half in ("added", "copied") for ax in show.ring(demo["ring"], half).axes]
    cells = [[number for row in step["cells"] for number in row] for step in demo["ring"]["steps"]]
    assert [[int(text.get_text()) for text in ax.texts if text.get_text()] for ax in panels] == cells
    assert [len(ax.texts) - 9 for ax in panels] == [0] + 4 * [4], "an arrow a rank; that of the last is drawn twice"
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
    (DEMO, 8, "this shows 2 to 7 ranks"), (HANG, 2, "three ranks or more"), (OWN, 1, "two ranks or more")])
def test_too_few_or_too_many_ranks_are_refused_in_one_line(script, ranks, message, tmp_path):
    environment = {} if ranks == 1 else {  # rank 0's, as torchrun sets it; it refuses before it meets another
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = runner.run(0, "--out", tmp_path / "results.json", script=script, **environment)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
