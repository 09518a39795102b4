"""Lesson 02: the steps of nn.DataParallel, and what each device holds in one."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.plots.style import COLOURS, GREY, PALE, bare, key_below, stacked, write_in

PARTS = {"weights": COLOURS[0], "gradients": COLOURS[5], "Adam's state": COLOURS[2],
         "kept for backward": "#BDBDBD", "outputs": COLOURS[4], "kept by the loss": COLOURS[1]}


def steps(table, ax: Axes | None = None) -> Axes:
    """A schematic: a column a step, a row a device, a box where a device has work, an arrow from where that comes.

    `table` holds a dict a box: `step`, `device`, `has` (what the device has after it) and `source`, the devices of the
    step before that it comes from. A step that begins with a number is one of the four of forward.
    """
    names = list(dict.fromkeys(box["step"] for box in table))
    devices = sorted({box["device"] for box in table})
    ax = ax or plt.subplots(figsize=(1.9 * len(names), 1 + 1.2 * len(devices)))[1]
    for box in table:
        x, y = names.index(box["step"]), box["device"]
        colour = COLOURS[0] if box["step"][0].isdigit() else COLOURS[4]
        for source in box["source"]:
            ax.annotate("", (x - 0.37, y), (x - 0.63, source), arrowprops={
                "arrowstyle": "-|>", "color": GREY, "linewidth": 2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 18})
        ax.add_patch(Rectangle((x - 0.37, y - 0.3), 0.74, 0.6, facecolor=colour, zorder=3))
        write_in(ax, x, y, box["has"], colour, fontsize=14, zorder=4, path_effects=[])
    working = {(box["step"], box["device"]) for box in table}
    for x, name in enumerate(names):
        for y in devices:
            if (name, y) not in working:
                ax.add_patch(Rectangle((x - 0.37, y - 0.3), 0.74, 0.6, facecolor="white", edgecolor=PALE, linewidth=2))
                ax.text(x, y, "waits", ha="center", va="center", color=GREY, fontsize=14)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(devices) - 0.5, -0.5))
    ax.set_xticks(range(len(names)), names, fontweight="bold")
    ax.set_yticks(devices, [f"device {device}" for device in devices])
    ax.xaxis.tick_top()
    bare(ax)
    ax.set_title("One step of DataParallel (schematic)", pad=14)
    return ax


def memory(devices: list[dict], ax: Axes | None = None) -> Axes:
    """What each device holds, {part: bytes} of each: a bar a device, in MB."""
    ax = ax or plt.subplots(figsize=(14, 1.2 + 0.9 * len(devices)))[1]
    bars = [{part: held[part] / 1e6 for part in PARTS if part in held} for held in devices]
    stacked(ax, [f"device {number}" for number in range(len(devices))], bars, PARTS, "MB (million bytes)", "MB")
    ax.set_title("What each device holds")
    key_below(ax.figure, PARTS)
    return ax
