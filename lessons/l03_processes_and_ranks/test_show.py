"""What lesson 03 says of a rank's environment."""

from lessons.l03_processes_and_ranks import ranks_meet
from lessons.l03_processes_and_ranks import show as lesson_03


def test_each_variable_that_a_rank_writes_down_has_a_row_and_one_that_is_missing_is_said_to_be():
    rows = lesson_03.variables({"RANK": "3"})
    assert {row["variable"].strip("`") for row in rows} == set(ranks_meet.VARIABLES)
    assert [row["value"] for row in rows] == ["3"] + ["not set"] * (len(rows) - 1)
