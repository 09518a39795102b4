"""Lesson 04: all-reduces made of messages, how they are counted and raced, what each collective moves, and the hang."""

import inspect
import json

import pytest
import torch
import torch.distributed as dist

from course import dial, predict
from course.on_ranks import Measurement
from lessons.l04_collectives import check, collectives, messages, race, show, solution
from tests import runner

# ---------------------------------------------------------------------------------- all-reduces made of messages


def in_turn_from_anybody(tensor):
    if dist.get_rank():
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    part = torch.empty_like(tensor)
    for _ in range(dist.get_world_size() - 1):
        dist.recv(part)
        tensor += part
    for other in range(1, dist.get_world_size()):
        dist.send(tensor, other)


def ring_to_the_left(tensor):
    if not dist.is_initialized():
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(ranks)
    for step in range(2 * ranks - 2):
        mine, theirs = chunks[(rank + step) % ranks], chunks[(rank + step + 1) % ranks]
        part = torch.empty_like(theirs)
        for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, (rank - 1) % ranks),
                                            dist.P2POp(dist.irecv, part, (rank + 1) % ranks)]):
            each.wait()
        theirs.copy_(part if step >= ranks - 1 else theirs + part)


def file_of(function, name, folder):
    """A learner's file with this function under its name."""
    path = folder / f"{function.__name__}.py"
    path.write_text("import torch\nimport torch.distributed as dist\n"
                    "from lessons.l04_collectives.solution import broadcast\n\n\n"
                    + inspect.getsource(function).replace(f"def {function.__name__}(", f"def {name}("))
    return path


@pytest.mark.weekly
def test_any_way_that_is_right_passes_and_its_messages_are_counted(tmp_path):
    """On five ranks: (messages, rounds on cables, rounds with one card per host)."""
    ways = {solution.star: (8, 2, 8), solution.tree: (8, 6, 6), solution.direct: (40, 2, 8),
            in_turn_from_anybody: (8, 8, 8), ring_to_the_left: (40, 8, 8)}
    files = [(str(file_of(way, "star", tmp_path)), check.FIVE) for way in ways]
    for way, ranks in zip(ways, check.star.measurement.run(files), strict=True):
        assert all(case.got == case.right for case in check.star.check(ranks)), way
        *_, (_, of_ranks) = check.each_world(ranks)
        seen = check.counted(of_ranks)
        assert (seen["messages"], seen["rounds"], seen["card_rounds"]) == ways[way], way
        rings = all(case.got == case.right for case in check.ring.check(ranks))
        assert rings == (way is ring_to_the_left)


def test_messages_follow_one_another_in_rounds():
    """Rank 0 sends to 1 and to 2; rank 1 passes it on to 2 after it has come. Rank 2 waits for none of the two."""
    events = [[["send", 1, 8], ["send", 2, 8]], [["recv", 0, 8], ["wait", 0], ["send", 2, 8]],
              [["recv", 1, 8], ["recv", 0, 8]]]
    assert messages.rounds(events) == [[(0, 1, 8), (0, 2, 8)], [(1, 2, 8)]], "a cable per pair"
    assert messages.rounds(events, cards=True) == [[(0, 1, 8)], [(0, 2, 8)], [(1, 2, 8)]], "one message at a time"
    assert messages.count(events, 4) == {"messages": 3, "most": 4, "rounds": 2, "path": 4, "card_rounds": 3,
                                         "card_path": 6, "in_rounds": messages.rounds(events)}


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """The file that race.py writes on 3 ranks, with one function of a learner's, and what it was asked for."""
    folder = tmp_path_factory.mktemp("race")
    mine = file_of(ring_to_the_left, "all_reduce", folder).rename(folder / "all_reduce.py")
    rates = () if dial.missing() else ("--rates", "1gbit")
    done = runner.run(3, "--out", folder / "race.json", "--rounds", 1, "--yours", mine, *rates,
                      script="lessons/l04_collectives/race.py")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "race.json").read_text())


def test_what_the_learner_wrote_is_raced_and_ours_elsewhere(raced):
    assert raced["whose"] == {"star": "ours", "tree": "ours", "ring": "yours", "direct": "ours", "torch": "torch"}
    asked = [] if dial.missing() else [(3, "1gbit", race.SIZE)]
    assert [(each["ranks"], each["rate"], each["bytes"]) for each in raced["races"]] == [
        *asked, (2, None, 1024), (2, None, race.SIZE), (3, None, 1024), (3, None, race.SIZE)]
    for each in raced["races"]:
        for way in each["ways"].values():
            assert way["seconds"][0] > 0 and len(way["computed"]) == each["ranks"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_count_is_the_formula_and_the_kernel_s(raced, ranks):
    counts = raced["counts"][str(ranks)]
    formula = predict.fit.BUS_FACTORS["all_reduce"](ranks)
    assert counts["ring"]["most"] == counts["direct"]["most"] == pytest.approx(formula)
    assert counts["star"]["most"] == ranks - 1
    if not dial.missing():
        for name in ("star", "tree", "ring", "direct"):
            sent = max(counts[name]["sent"]) / raced["counted_bytes"]
            assert counts[name]["most"] < sent < 1.1 * counts[name]["most"], name
        assert show.number_of_messages(raced, ranks, "torch") == pytest.approx(2 * counts["ring"]["messages"], abs=1)


@pytest.mark.parametrize(("arguments", "message"), [((), "two ranks"), (("--rates", "fast"), "is no rate"),
                                                    (("--yours", "ring.py"), "ring.py")])
def test_what_cannot_be_raced_is_refused(arguments, message, refused, tmp_path):
    assert message in refused(race, "--out", tmp_path / "results.json", *arguments, ranks=2 if arguments else None)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------- what each collective moves


def shown(function, context):
    return {name: collectives.states(name) for name in collectives.COLLECTIVES} | {"ring": collectives.ring()}


@pytest.fixture(scope="module")
def demo():
    """What collectives.py writes on 3 ranks."""
    [ranks] = Measurement(shown, "none").run([(shown, 3)])
    return ranks[0]


def expected(name, n):
    """[before, after], a list for each rank: what the documentation of torch.distributed promises."""
    own, nothing = [[cell * 10**rank for cell in range(1, n + 1)] for rank in range(n)], [[]] * (n - 1)
    columns = [list(column) for column in zip(*own, strict=True)]
    sums, firsts = [sum(column) for column in columns], [row[0] for row in own]
    return {
        "broadcast": [own, [own[0]] * n],
        "scatter": [[own[0], *nothing], [[cell] for cell in own[0]]],
        "gather": [[[cell] for cell in firsts], [firsts, *nothing]],
        "all_gather": [[[cell] for cell in firsts], [firsts] * n],
        "reduce": [own, [sums, *nothing]],
        "all_reduce": [own, [sums] * n],
        "reduce_scatter": [own, [[cell] for cell in sums]],
        "all_to_all": [own, columns],
    }[name]


@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_each_collective_moves_what_it_promises(demo, name):
    assert demo[name] == expected(name, 3)


def test_the_ring_is_the_program_s_step_by_step(demo):
    start, *steps = demo["ring"]
    assert start["cells"] == expected("all_reduce", 3)[0] and steps[-1]["cells"] == expected("all_reduce", 3)[1]
    assert [step["sent"] for step in steps] == [[(rank - number) % 3 for rank in range(3)] for number in range(4)]


def test_a_digit_tells_the_rank():
    of_ranks = [collectives.numbers(rank, 30) for rank in range(7)]
    for rank, mine in enumerate(of_ranks):
        assert all(show.contributors(number) == [rank] for number in mine.tolist())
    assert all(show.contributors(number) == list(range(7)) for number in sum(of_ranks).tolist())


# ---------------------------------------------------------------------------------- the hang


def left_out(function, context):
    with messages.recorded() as events:
        try:
            if context.rank != 2:
                function(torch.ones(4))
        except RuntimeError:
            return {"waited": messages.waits_for(events)}
    return {"waited": None}


@pytest.mark.weekly  # its two seconds are those of the clock: beside other tests a rank may come later
def test_each_rank_that_waits_in_vain_names_its_message():
    [ranks] = Measurement(left_out, "all_reduce", wait=2).run([(check.all_reduce, 4)])
    assert [each["waited"] for each in ranks] == ["in send to 1", "in send to 2", None, "in recv from 2"]
