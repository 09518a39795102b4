"""Every picture of the course: a table in, matplotlib Axes out, one module a subject. Importing this sets the style.

What several lessons draw is a name of this package (`plots.speedup`); what one lesson draws, one of its module
(`plots.rank_maps.ranks_map`). No torch in here, so that a log can be studied on any laptop.
"""

# ruff: noqa: F401

from course.plots import (
    changes,
    collectives,
    data_parallel,
    equality,
    faults,
    images,
    learning,
    message_cost,
    one_device,
    rank_maps,
    samplers,
    scaling,
    sharded,
    talking,
    timelines,
    ways,
)
from course.plots.comparison import efficiency, seconds_per_epoch, speedup, throughput, under_ceiling
from course.plots.files import write_all
from course.plots.samplers import sampler_map
from course.plots.style import COLOURS, GREY, LINES, MARKERS, PHASES, WARNING, picture
from course.plots.timelines import timeline
from course.plots.training import (
    COMMAND,
    accuracy_by_epoch,
    accuracy_twice,
    loss_by_epoch,
    loss_by_time,
    phases,
    whole_command,
)
