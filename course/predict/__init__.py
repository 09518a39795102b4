"""Models of time and memory, to be held against a measurement. No torch in here."""

from course.predict import checkpoints, fit, memory, scaling  # noqa: F401
