"""The doctor without ranks: where two went different ways, the scale of a loss on two world sizes, the numbers of
samples, and when lines are traced no more."""

import sys
from pathlib import Path

import pytest
import torch

from doctor import hooks, laws, lines, log

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


def stream(folder: Path, rank: int, change: str, always: bool = True) -> tuple[list[tuple], dict]:
    """(what a rank does, its lines traced; the events of its log)"""
    path = folder / "my_train.py"
    path.write_text(PROGRAM.replace("CHANGE", change))
    own = log.Log(rank)
    names: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    traced = lines.Lines(own, always)
    try:
        names["train"](rank, lambda what: own.sync(what, "here"))
    finally:
        traced.end()
    record = own.record()
    Path(own.path).unlink()
    return laws.stream(record), record["events"]


@pytest.mark.parametrize(("change", "line"), [
    ("pass", None),  # each has lines of its own, and no call
    ("if rank == 1 and step == 2: continue", 9),
    ("if rank == 1 and step == 2: break", 9),
    ("for _ in range(rank): done('a barrier')", 9)])
def test_the_line_is_named_at_which_ranks_went_different_ways(change, line, tmp_path):
    found = laws.fork(*(stream(tmp_path, rank, change)[0] for rank in range(2)))
    assert (found and found[0][2]) == line
    assert sys.gettrace() is None


def test_lines_that_took_their_time_are_traced_no_more_and_the_log_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "FREE", 8e-6)  # seconds
    monkeypatch.setattr(lines, "SHARE", 0)
    own, events = stream(tmp_path, 0, "pass", always=False)
    kept = [what for what, *_ in own if what != "sync"]
    assert 0 < len(kept) < 25 and len(own) - len(kept) == 8  # all backwards and updates are still there
    assert len(events["untraced"]) == 1 and sys.gettrace() is None


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


@pytest.mark.parametrize(("orders", "contents", "repeated"), [
    ([3, 3], [5, 6], True), ([3, 4], [5, 5], False),  # the first batches may be the same on purpose
    ([None, None], [5, 5], True), ([None, None], [5, 6], False)])  # where no index is known
def test_an_order_comes_again_by_index_where_it_is_known_and_else_by_content(orders, contents, repeated):
    passes = [{"where": "a.py:1", "batch": 8, "lineage": 1, "trained": True, "whole": True, "images": 40,
               "shuffles": True, "told_at": "", "order": order, "content": content}
              for order, content in zip(orders, contents, strict=True)]
    assert [finding.name for finding in laws.epochs([{"events": {"pass": passes}}])] == ["set_epoch"] * repeated


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_a_sample_has_the_number_of_its_content_wherever_it_stands(kind):
    images = torch.randint(0, 200, (6, 3, 5, 5), generator=torch.Generator().manual_seed(0)).to(kind)
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    numbers = hooks.contents((images, labels))
    assert len(set(numbers)) == 6
    order = torch.tensor([4, 0, 4, 2])
    assert hooks.contents([images[order], labels[order]]) == [numbers[place] for place in order]
    assert hooks.contents([images, 1 - labels])[0] not in numbers
