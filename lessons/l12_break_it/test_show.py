"""What lesson 12 says of its suspects, and reads from a patient's lines."""

from types import SimpleNamespace

import pytest

from lessons.l12_break_it import show


def test_every_suspect_has_a_link_and_the_columns_are_read_downwards():
    entries = [SimpleNamespace(heading=f"{number}. m", anchor=f"{number}-m") for number in range(1, 6)]
    rows = [list(row.values()) for row in show.suspects(entries, "P.md", columns=2)]
    assert rows == [["[1. m](P.md#1-m)", "[4. m](P.md#4-m)"], ["[2. m](P.md#2-m)", "[5. m](P.md#5-m)"],
                    ["[3. m](P.md#3-m)", ""]]


def test_losses_are_read_from_lines_of_losses_alone():
    printed = ["losses of epoch 0: 0.15 3.86", "epoch 0, rank 0 sees: 20 3 7", "losses of epoch 1: 0.13 3.73", ""]
    assert show.losses(printed) == {0: [0.15, 3.86], 1: [0.13, 3.73]}
    with pytest.raises(ValueError, match="KeyError: 3"):
        show.losses(["Traceback", "KeyError: 3"])
