"""The laws without a rank: where two ranks went different ways, and the scale of a loss on two world sizes."""

import sys
from pathlib import Path

import pytest

from doctor import laws, log
from doctor.lines import Lines

PROGRAM = """
def train(rank, done):
    for step in range(4):
        if rank == 0:
            print("a word of rank 0 alone")
        for word in ["a"] * rank:
            len(word)
        done("backward")
        CHANGE
        done("an update")
    return rank
"""


def stream(folder: Path, rank: int, change: str) -> list[tuple]:
    """What a rank does, its lines traced."""
    path = folder / "my_train.py"
    path.write_text(PROGRAM.replace("CHANGE", change))
    own = log.Log(rank)
    names: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    lines = Lines(own, always=True)
    try:
        names["train"](rank, lambda what: own.sync(what, "here"))
    finally:
        lines.end()
    record = own.record()
    Path(own.path).unlink()
    return laws.stream(record)


@pytest.mark.parametrize(("change", "line"), [
    ("pass", None),  # each has lines of its own, and no call
    ("if rank == 1 and step == 2: continue", 9),
    ("if rank == 1 and step == 2: break", 9),
    ("for _ in range(rank): done('a barrier')", 9)])
def test_the_line_is_named_at_which_ranks_went_different_ways(change, line, tmp_path):
    found = laws.fork(stream(tmp_path, 0, change), stream(tmp_path, 1, change))
    assert (found and found[0][2]) == line
    assert sys.gettrace() is None


def test_ranks_that_make_their_group_on_lines_of_their_own_are_compared_after_it():
    file = ("my_train.py", "/no/such/file.py")
    own = [[(1, file, line), (1, file, 9), ("sync", "all_reduce", "9")] for line in (3, 5)]
    assert laws.fork(*own) is None
    found = laws.fork([*own[0], (1, file, 10)], [*own[1], (1, file, 12)])
    assert found and found[0][2] == 9


def test_a_factor_that_goes_with_the_ranks_breaks_the_scale_and_a_weight_does_not():
    by_size = {2: {"a.py:1": 0.5, "a.py:2": 0.5, "a.py:3": 2.0}, 3: {"a.py:1": 0.334, "a.py:2": 0.5, "a.py:3": 2.97}}
    found = {finding.where: finding for finding in laws.scale_by_ranks(by_size)}
    assert found.keys() == {"a.py:1", "a.py:3"} and all(finding.law == 5 for finding in found.values())


def test_what_holds_after_each_change_is_compared():
    """Rank 1 changes its rate one update later: between the two they differ."""
    records = [{"events": {"settings": [{"optimizer": 0, "form": 1, "update": update, "values": [rate]}
                                        for update, rate in ((0, "lr=1"), (at, "lr=2"))]}} for at in (3, 4)]
    values = [[fact["values"] for fact in facts] for facts in laws.changes(records, "settings", "optimizer", "form",
                                                                           "update")]
    assert values == [[["lr=1"], ["lr=1"]], [["lr=2"], ["lr=1"]], [["lr=2"], ["lr=2"]]]


def test_what_is_added_and_taken_away_again_is_the_same_and_an_update_is_not():
    assert laws.same([[1.0, 4.0], [1.0 + 1e-6, 4.0 - 1e-6]])
    assert not laws.same([[1.0, 4.0], [1.0, 4.001]])
