"""Models of time, to be held against a measurement. No torch in here."""

from course.predict import checkpoints, fit  # noqa: F401
