"""What lesson 03 says of a rank's environment."""

from course.verdicts import lesson_03
from scripts.lessons import ranks_meet


def test_each_variable_that_a_rank_writes_down_has_a_row_and_one_that_is_missing_is_said_to_be():
    rows = lesson_03.variables({"RANK": "3"})
    assert {row["variable"].strip("`") for row in rows} == set(ranks_meet.VARIABLES)
    assert [row["value"] for row in rows] == ["3"] + ["not set"] * (len(rows) - 1)
