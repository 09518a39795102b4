"""Lesson 04: collectives made of messages, what each collective moves, the ring, and the hang on purpose."""

import inspect
import json
import re
import sys

import pytest
import torch
import torch.distributed as dist

from course import predict
from lessons.l04_collectives import check, collectives_shown, hang_on_purpose, messages, own_collectives, show
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


@pytest.mark.parametrize(("asked", "ways"), [
    (check.broadcasted, {star: ("star", 4, 4), both_ways: ("tree", 4, 3)}),
    (check.all_reduced, {each_to_each: ("each to each", 20, 4), check.my_ring: ("ring", 40, 8)}),
    (check.ring, {ring_to_the_left: ("ring", 40, 8)}),
], ids=lambda value: getattr(value, "__name__", ""))
def test_any_way_that_is_right_passes_and_its_shape_is_seen(asked, ways, tmp_path):
    files = [(str(file_of(way, asked.measurement.name, tmp_path)), check.FIVE) for way in ways]
    for ranks, (shape, sent, rounds) in zip(asked.measurement.run(files), ways.values(), strict=True):
        assert all(case.got == case.right for case in asked.check(ranks))
        *_, (_, of_ranks) = check.each_world(ranks)
        seen = check.figures(of_ranks)
        assert (seen["shape"], seen["messages"], seen["rounds"]) == (shape, sent, rounds)


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
    """What own_collectives.py measures on 3 ranks, where the learner has written one of three functions."""
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
        assert all([time["seconds"]] == time["rounds"] and time["seconds"] > 0 for time in program["times"])


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


def test_a_digit_tells_the_rank():
    most = collectives_shown.MOST_RANKS
    of_ranks = [collectives_shown.numbers(rank, 30) for rank in range(most)]
    for rank, mine in enumerate(of_ranks):
        assert all(show.contributors(number) == [rank] for number in mine.tolist())
    assert all(show.contributors(number) == list(range(most)) for number in sum(of_ranks).tolist())


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


@pytest.mark.parametrize(("program", "ranks", "message"), [
    (collectives_shown, 8, "2 to 7 ranks"), (hang_on_purpose, 2, "three ranks"), (own_collectives, None, "two ranks")])
def test_too_few_or_too_many_ranks_are_refused(program, ranks, message, refused, tmp_path):
    assert message in refused(program, "--out", tmp_path / "results.json", ranks=ranks)
    assert not list(tmp_path.iterdir())
