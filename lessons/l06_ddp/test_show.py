"""Lesson 06: which step is called shorter, what counts as hidden, and what as another training."""

import pytest

from lessons.l06_ddp import show


def run(backward, wait=10.0):
    return {"medians": {"forward": 20.0, "backward": backward, "wait": wait, "update": 5.0}}


@pytest.mark.parametrize(("small", "one", "said"), [
    (run(50), run(50, wait=30), "small buckets"),
    (run(80), run(50, wait=30), "one bucket"),
    (run(65), run(50, wait=26), "neither"),
    (run(65), run(50, wait=24), "neither"),
])
def test_the_shorter_step(small, one, said):
    assert show.shorter(small, one) == said


def test_hidden_is_what_lies_below_the_backward_of_its_own_rank():
    events = [{"rank": 0, "event": "backward", "start": 0, "end": 10}, {"rank": 1, "event": "backward", "end": 4},
              {"rank": 0, "event": "all-reduce", "start": 6, "end": 12},
              {"rank": 1, "event": "all-reduce", "start": 2, "end": 3},
              {"rank": 1, "event": "all-reduce", "start": 4, "end": 5}]
    assert show.hidden(events) == pytest.approx((4 + 1 + 0) / 8)
    assert show.buckets({"events": events, "bucket_cap_mb": 4.0}) == "1 bucket (bucket_cap_mb=4)"


def test_rounding_is_the_same_training():
    assert show.another_training({"a": 1e-16, "b": 0, "c": 1e-3}) == ["c"]


@pytest.mark.parametrize("real", [None, 2e-15])
def test_torchs_own_syncbatchnorm_has_a_row_where_it_ran(real):
    found = {"layers": 7, "messages": {"BatchNorm": 1}, "running_means": {"BatchNorm": 0.01}}
    rows = show.batchnorm({"weights": {"BatchNorm": 0.02},
                           "batchnorm": found | ({"torch.nn.SyncBatchNorm": real} if real else {})})
    assert [list(row.values())[1] for row in rows] == ["2e-02", "2e-15"][:1 + bool(real)]
    assert len({tuple(row) for row in rows}) == 1, "one table has one head"
