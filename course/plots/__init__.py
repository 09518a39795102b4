"""Every picture of the course: a table in, matplotlib Axes out, one module a subject. Importing this sets the style.

What several lessons draw is a name of this package (`plots.speedup`); what one lesson draws stands in its folder. No
torch in here, so that a log can be studied on any laptop.
"""

# ruff: noqa: F401

from course.plots import timelines
from course.plots.comparison import efficiency, seconds_per_epoch, speedup, throughput, under_ceiling
from course.plots.files import write_all
from course.plots.memory import memory
from course.plots.style import GREY
from course.plots.timelines import films, lanes, timeline
from course.plots.training import (
    accuracy_by_epoch,
    accuracy_twice,
    loss_by_epoch,
    loss_by_time,
    phases,
)
