"""Lesson 02: the steps of nn.DataParallel, what each device holds, two trainings, and whether Python's lock shows."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, bare, key_below, stacked, write_in

PARTS = {"weights": COLOURS[0], "gradients": COLOURS[5], "Adam's state": COLOURS[2],
         "kept for backward": "#BDBDBD", "outputs": COLOURS[4], "kept by the loss": COLOURS[1]}
GAIN = 1.3  # of two workers: chance may give less than this


def steps(devices: int, rows: int) -> Axes:
    """A schematic of one step: a column a phase, a row a device, and a box where a device has work.

    A box says what the device has afterwards. An arrow comes from each device of the phase before that the box needs.
    The four phases of forward have numbers, and a colour of their own.
    """
    size = -(-rows // devices)
    pieces = [min(size, rows - start) for start in range(0, rows, size)]
    busy = range(len(pieces))
    from_first, from_all, own = [[0] for _ in busy], [list(busy)], [[device] for device in busy]
    phases = {  # name: (what each busy device has after it, from which devices each gets that)
        "batch": ([f"{rows}\nrows"], [[]]),
        "1. scatter": ([f"{piece}\nrows" for piece in pieces], from_first),
        "2. replicate": ([f"{piece} rows,\nweights" for piece in pieces], [sorted({0, device}) for device in busy]),
        "3. apply": ([f"{piece}\noutputs" for piece in pieces], own),
        "4. gather": ([f"{rows}\noutputs"], from_all),
        "loss": (["one loss"], [[0]]),
        "backward": (["gradients"] * len(pieces), from_first),
        "way back": (["one\ngradient"], from_all),
        "update": (["new\nweights"], [[0]]),
    }
    ax = plt.subplots(figsize=(1.9 * len(phases), 1 + 1.2 * devices))[1]
    for x, (name, (texts, sources)) in enumerate(phases.items()):
        colour = COLOURS[0] if name[0].isdigit() else COLOURS[4]
        for y, (text, of_box) in enumerate(zip(texts, sources, strict=True)):
            for number, source in enumerate(of_box):
                end = y + 0.5 * ((number + 0.5) / len(of_box) - 0.5)  # side by side: one point would merge the heads
                ax.annotate("", (x - 0.37, end), (x - 0.63, source), arrowprops={
                    "arrowstyle": "-|>", "color": GREY, "linewidth": 2, "shrinkA": 0, "shrinkB": 0,
                    "mutation_scale": 18})
            ax.add_patch(Rectangle((x - 0.37, y - 0.3), 0.74, 0.6, facecolor=colour, zorder=3))
            write_in(ax, x, y, text, colour, fontsize=14, zorder=4, path_effects=[])
        for y in range(len(texts), devices):
            ax.add_patch(Rectangle((x - 0.37, y - 0.3), 0.74, 0.6, facecolor="white", edgecolor=PALE, linewidth=2))
            ax.text(x, y, "waits", ha="center", va="center", color=GREY, fontsize=14)
    ax.set(xlim=(-0.5, len(phases) - 0.5), ylim=(devices - 0.5, -0.5))
    ax.set_xticks(range(len(phases)), phases, fontweight="bold")
    ax.set_yticks(range(devices), [f"device {device}" for device in range(devices)])
    ax.xaxis.tick_top()
    bare(ax)
    ax.set_title("One step of DataParallel (schematic)", pad=14)
    return ax


def memory(devices: list[dict[str, int]]) -> Axes:
    """What each device holds, {part: bytes} of each: a bar a device, in MB."""
    ax = plt.subplots(figsize=(14, 1.2 + 0.9 * len(devices)))[1]
    bars = [{part: held[part] / 1e6 for part in PARTS if part in held} for held in devices]
    stacked(ax, [f"device {number}" for number in range(len(devices))], bars, PARTS, "MB (million bytes)", "MB")
    ax.set_title("What each device holds")
    key_below(ax.figure, PARTS)
    return ax


def losses(curves: dict[str, list[float]]) -> Axes:
    """The loss of each step: the first run as a broad grey line, the second dashed on it."""
    ax, ends = plt.subplots(figsize=(12, 5))[1], []
    looks = ({"color": GREY, "linewidth": 9}, {"color": COLOURS[1], "linestyle": (0, (3, 2)), "linewidth": 4})
    for (name, losses), look in zip(curves.items(), looks, strict=True):
        ax.plot(range(1, len(losses) + 1), losses, **look)
        ends.append((len(losses), losses[-1], name, look["color"]))
    ax.set(xlabel="step", ylabel="loss", xlim=(0, 1.5 * len(losses)), ylim=(-0.1, None),
           xticks=range(0, len(losses) + 1, 5), title="The loss of each step")
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def lock(threads: float, processes: float) -> str:
    """Whether the speed-ups of two workers at Python's sums, as threads and as processes, show the lock."""
    measured = f"Two threads are {threads:.2f} times as fast as one, two processes {processes:.2f} times"
    if processes < GAIN:
        return (f"{measured}. Even processes gain little: the cores had other work. This run does **not** show the "
                "lock.")
    if threads < GAIN:
        return f"{measured}: the cores were there, but threads could not use both. **That is the lock.**"
    return f"{measured}: threads gain, too. This Python has no lock, or another program disturbed the run."
