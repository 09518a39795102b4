"""Models of time and memory, to be held against a measurement. No torch in here."""

from course.predict import checkpoints, fit, gains, memory, published, scaling, step_parts, talking  # noqa: F401
