"""What lesson 04 says of its results."""

import pytest

from lessons.l04_collectives import show

STATES = [{"label": label, "seconds": seconds} for label, seconds in [
    ("start", [0, 0]), ("before the call", [0, 0.3]), ("after the call", [0.0002, 0.31]),
    ("before wait()", [0.1, 0.41]), ("after wait()", [0.31, 0.41])]]


def test_a_backend_that_lacks_a_collective_is_told():
    whole = {"world_size": 4, "torch": "2.14", "reduce": {"states": []}}
    assert show.backend(whole) == "Here gloo (torch 2.14) has all of them."
    assert "lacks all_to_all:" in show.backend(whole | {"all_to_all": {"states": [], "unsupported": "no"}})


def test_the_ring_is_judged_by_its_numbers():
    steps = [{"cells": []}, *[{"bytes": [8, 16, 8]}] * 4]
    found = {"chunks": [1, 2, 1], "steps": steps, "bytes": 32, "equal": [True, False, True],
             "floats": {"off": 5e-7, "ranks_agree": False}}
    assert [row["found"] for row in show.ring(found)] == ["32", "32, 64, 32", "2 of 3", "5e-07", "no"]
    found["floats"]["ranks_agree"] = True
    assert show.ring(found)[-1]["found"] == "yes"


def test_the_handle_has_a_row_a_rank():
    assert show.handle({"states": STATES}) == [
        {"rank": 0, "the call, ms": "0.2", "own work, ms": "99.8", "`wait()`, ms": "210.0"},
        {"rank": 1, "the call, ms": "10.0", "own work, ms": "100.0", "`wait()`, ms": "0.0"}]


def test_what_ranks_say_is_shortened_and_silence_is_told():
    error = ("[/__w/gloo/unbound_buffer.cc:78] Timed out\nwaiting",
             "TensorDeviceTypes=TensorOptions(a=b (c), d=(e))), but", "[Rank 0]: Ranks 1 failed", None)
    rows = show.says([{"error": text, "end": 2.5} for text in error])
    assert [row["it says"] for row in rows] == [
        "Timed out waiting", "TensorDeviceTypes=…), but", "[Rank 0]: Ranks 1 failed", "nothing: it went on"]
    assert rows[0]["after, s"] == "2.50"


def test_a_stack_gives_the_function_and_the_line():
    stack = ['  File "torch/c10d_logger.py", line 83 in wrapper', '  File "torch/distributed.py", line 9 in broadcast',
             '  File "lessons/l04_collectives/hang_on_purpose.py", line 29 in different']
    assert show.waits([{"stack": stack}, {"stack": []}]) == [
        {"rank": 0, "it is in": "`broadcast`", "called at": "line 29 in different"},
        {"rank": 1, "it is in": "`–`", "called at": "–"}]


@pytest.mark.parametrize(("after", "holds"), [([10, 20], "as before"), ([111, 222], "the sum"),
                                              ([110, 220], "something else")])
def test_what_a_reduce_leaves_on_another_rank_is_read_from_the_run(after, holds):
    states = [{"label": "before", "cells": [[1, 2], [10, 20], [100, 200]]},
              {"label": "after", "cells": [[111, 222], after, [100, 200]]}]
    assert show.after_reduce({"states": states}, rank=1) == holds
