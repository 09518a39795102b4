"""Lesson 03: what a launcher writes into the environment of a rank."""

from course.rendezvous import MEANING


def variables(told):
    """Rows: each variable of MEANING, and its value in `told`, {variable: value}."""
    return [{"variable": f"`{name}`", "says": says, "value": told.get(name, "not set")}
            for name, says in MEANING.items()]
