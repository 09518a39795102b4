"""Lesson 02: a picture of the steps of nn.DataParallel."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.plots.style import COLOURS, GREY, PALE, bare, write_in


def steps(devices: int, rows: int) -> Axes:
    """A schematic of one step: a column a phase, a row a device, and a box where a device has work.

    A box says what the device has afterwards, the lines before it from which devices that came. The four phases of
    forward have numbers, and a colour of their own.
    """
    size = -(-rows // devices)
    pieces = [min(size, rows - start) for start in range(0, rows, size)]
    busy, first = list(range(len(pieces))), [0]
    phases = {  # name: (what each busy device has after it, from which devices it comes)
        "batch": ([f"{rows}\nrows"], []),
        "1. scatter": ([f"{piece}\nrows" for piece in pieces], first),
        "2. replicate": ([f"{piece} rows\n+ weights" for piece in pieces], first),
        "3. apply": ([f"{piece}\noutputs" for piece in pieces], busy),
        "4. gather": ([f"{rows}\noutputs"], busy),
        "loss": (["one loss"], first),
        "backward": (["gradients"] * len(pieces), first),
        "bring back": (["one\ngradient"], busy),
        "update": (["new\nweights"], first),
    }
    ax = plt.subplots(figsize=(1.9 * len(phases), 1 + devices))[1]
    for x, (name, (texts, sources)) in enumerate(phases.items()):
        colour = COLOURS[0] if name[0].isdigit() else COLOURS[4]
        if len(sources) != len(texts):  # one to all, or all to one: along a line between the columns
            ax.plot([x - 0.54] * 2, [0, len(pieces) - 1], color=GREY, linewidth=2)
        for y in sources if len(sources) != len(texts) else ():
            ax.plot([x - 0.65, x - 0.54], [y, y], color=GREY, linewidth=2)
        for y in range(len(texts) if sources else 0):
            ax.annotate("", (x - 0.35, y), (x - (0.54 if len(sources) != len(texts) else 0.65), y), arrowprops={
                "arrowstyle": "-|>", "color": GREY, "linewidth": 2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 18})
        for y in range(devices):
            works = y < len(texts)
            ax.add_patch(Rectangle((x - 0.35, y - 0.3), 0.7, 0.6, zorder=3, linewidth=2, edgecolor=colour if works else
                                   PALE, facecolor=colour if works else "white"))
            write_in(ax, x, y, texts[y] if works else "waits", colour if works else "white", fontsize=14, zorder=4,
                     path_effects=[], fontweight="bold" if works else "normal")
    ax.set(xlim=(-0.5, len(phases) - 0.5), ylim=(devices - 0.5, -0.5))
    ax.set_xticks(range(len(phases)), phases, fontweight="bold")
    ax.set_yticks(range(devices), [f"device {device}" for device in range(devices)])
    ax.xaxis.tick_top()
    bare(ax)
    ax.set_title("One step of DataParallel (schematic)", pad=14)
    return ax
