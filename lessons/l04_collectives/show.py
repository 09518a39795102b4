"""Lesson 04: pictures of what each rank holds, cell by cell, of messages and of their times, and tables of the hangs.

The numbers are those of collectives_shown.py, own_collectives.py and hang_on_purpose.py. Each digit of a number stands
for one rank, so a cell shows by its colours from which ranks its number came, and an arrow leads from each of them.
"""

import math
import re

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course import compare, lesson
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, MARKERS, bare, colour_of, darker, ticks

# ------------------------------------------------------------------------------------------ pictures


def contributors(number: int) -> list[int]:
    """The ranks whose digit is in the number: [0, 2] for 101."""
    return [rank for rank, digit in enumerate(reversed(str(number))) if digit != "0"]


def held(cells: list, ax: Axes, title="", fontsize=17, mark=(), empty="nothing", height=0.8) -> Axes:
    """A row for each rank, a cell for each number, striped in the colours of the ranks that it came from.

    `cells` is a list of numbers for each rank; `mark` holds the (rank, cell) that get a thick frame. `empty` stands in
    a row without numbers.
    """
    for rank, row in enumerate(cells):
        for column, number in enumerate(row):
            sources, top = contributors(number), rank - height / 2
            for stripe, source in enumerate(sources):
                ax.add_patch(Rectangle((column - 0.45, top + height * stripe / len(sources)), 0.9,
                                       height / len(sources), color=colour_of(source), linewidth=0))
            framed = (rank, column) in mark
            ax.add_patch(Rectangle((column - 0.45, top), 0.9, height, facecolor="none", zorder=3,
                                   edgecolor="black" if framed else GREY, linewidth=4 if framed else 1))
            ax.text(column, rank, str(number), ha="center", va="center", fontsize=fontsize, fontweight="bold", zorder=4,
                    bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.1"})
        if not row:
            ax.text(-0.4, rank, empty, va="center", fontsize=fontsize, color=GREY)
    ax.set(xlim=(-0.6, max(2, *map(len, cells)) - 0.4), ylim=(len(cells) - 0.4, -0.6), xticks=[])
    name_ranks(ax, len(cells))
    bare(ax)
    ax.set_title(title, fontsize=fontsize)
    return ax


def name_ranks(ax: Axes, ranks: int) -> None:
    """The name of each row's rank beside it, in its colour."""
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontweight="bold")
    for rank, label in enumerate(ax.get_yticklabels()):
        label.set_color(darker(colour_of(rank)))


def arrow(ax: Axes, start: tuple, end: tuple, rank: int, width=3.0) -> None:
    """From `start` to `end`, in the colour of the rank that sends."""
    ax.annotate("", end, start, zorder=5, arrowprops={
        "arrowstyle": f"-|>,head_length={0.3 + 0.1 * width},head_width={0.15 + 0.05 * width}", "linewidth": width,
        "color": darker(colour_of(rank)), "shrinkA": 0, "shrinkB": 0})


def before_after(demo: dict, *names: str) -> Figure:
    """What each rank held before and after these collectives, of the file of collectives_shown.py, one below another.
    An arrow leads from one rank to another for the numbers that went there."""
    ranks = len(demo[names[0]][0]["cells"])
    fig = plt.figure(figsize=(13.8, (1 + 0.68 * ranks) * len(names)))
    for name, part in zip(names, fig.subfigures(len(names), 1, squeeze=False)[:, 0], strict=True):
        before, after = (state["cells"] for state in demo[name])
        columns = [max(2, *map(len, cells)) for cells in (before, after)]
        left, middle, right = part.subplots(1, 3, width_ratios=[columns[0], 1.2, columns[1]])
        held(before, left, f"{name}: before")
        held(after, right, "after", empty="not defined" if name == "reduce" else "nothing")
        middle.set(xlim=(0, 1), ylim=left.get_ylim(), xticks=[], yticks=[])
        bare(middle)
        for rank, row in enumerate(after):
            for source in sorted({source for number in row for source in contributors(number)} - {rank}):
                arrow(middle, (0, source), (1, rank), source)
    return fig


def ring(run: dict, half: str) -> Figure:
    """One half of the ring, "ring" of collectives_shown.py: the start and the steps in which chunks are "added", or
    the steps in which they are "copied". Steps count from 0. An arrow leads to each number that has just arrived."""
    ranks = len(run["equal"])
    steps = range(-1, ranks - 1) if half == "added" else range(ranks - 1, 2 * (ranks - 1))
    rows = math.ceil(len(steps) / 2)
    fig, axes = plt.subplots(rows, 2, figsize=(6 + 2 * ranks, (1 + 0.85 * ranks) * rows), squeeze=False)
    for ax in axes.flat[len(steps):]:
        ax.remove()
    for step, ax in zip(steps, axes.flat, strict=False):
        state = run["steps"][step + 1]
        sent = state.get("sent", ())
        held(state["cells"], ax, fontsize=20, height=0.56,
             mark={((rank + 1) % ranks, chunk) for rank, chunk in enumerate(sent)})
        for rank, chunk in enumerate(sent):
            arrow(ax, (chunk, rank + 0.3), (chunk, rank + 0.7), rank)
            if rank == ranks - 1:  # it goes on at the top
                arrow(ax, (chunk, -0.8), (chunk, -0.3), rank)
        ax.set(ylim=(ranks - 0.2, -0.9))
        ax.set_title("start" if step < 0 else f"step {step}: {half}", fontsize=20)
    fig.suptitle("Ring all-reduce, recorded on each rank", x=0.01, ha="left", fontweight="bold")
    return fig


# ------------------------------------------------------------------------------------------ what the learner wrote


NAMES = {"04_broadcast": "broadcast", "04_all_reduce": "all_reduce", "04_ring": "all_reduce, exercise 3"}


def messages_sent(run: dict) -> Figure:
    """The messages of each function in the file of own_collectives.py: a row a rank, a column a round."""
    programs = [program for program in run["programs"] if program["name"] != "torch"]
    ranks = run["world_size"]
    fig, axes = plt.subplots(1, len(programs), width_ratios=[program["rounds"] + 1 for program in programs], figsize=(
        4 + 0.85 * sum(program["rounds"] + 1 for program in programs), 2.6 + 0.75 * ranks))
    for program, ax in zip(programs, axes, strict=True):
        for number, now in enumerate(program["in_rounds"]):
            for source, to, size in now:
                arrow(ax, (number, source), (number + 1, to), source, 1 + 3 * size / program["bytes"])
        ax.set(xlim=(-0.15, program["rounds"] + 0.15), ylim=(ranks - 0.6, -0.4), xlabel="rounds")
        ax.set_xticks(range(program["rounds"] + 1))
        name_ranks(ax, ranks)
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"{NAMES[program['name']]}\n{program['whose']}: {program['shape']}", fontsize=18)
    return fig


def called(program: dict) -> str:
    """Whose it is, and its shape."""
    shape = program.get("shape", "")
    if shape == "pair":  # of two ranks: no shape tells exercises 2 and 3 apart
        shape = NAMES[program["name"]].partition(", ")[2]
    return f"{program['whose']}: {shape}" if shape else program["whose"]


def own_table(run: dict) -> list[dict]:
    """The figures of those messages."""
    return [{"": f"{NAMES[program['name']]}, {program['whose']}", "shape": program["shape"],
             "messages": program["messages"], "rounds": program["rounds"],
             "the busiest rank sends, tensors": f"{program['most']:.3g}",
             "one after another, tensors": f"{program['path']:.3g}",
             "all messages, tensors": "{:.3g}".format(
                 sum(size for now in program["in_rounds"] for *_, size in now) / program["bytes"])}
            for program in run["programs"] if program["name"] != "torch"]


def own_times(run: dict) -> Figure:
    """Milliseconds by message size, of own_collectives.py: a panel for each operation."""
    fig, axes = plt.subplots(1, 2, figsize=(16, 6))
    for operation, ax in zip(("broadcast", "all_reduce"), axes, strict=True):
        ends = []
        for number, program in enumerate(each for each in run["programs"] if each["operation"] == operation):
            rows = pd.DataFrame(program["times"])
            colour = GREY if program["name"] == "torch" else COLOURS[number]
            ms = 1e3 * rows["seconds"]
            spread = [ms - 1e3 * rows["rounds"].map(min), 1e3 * rows["rounds"].map(max) - ms]
            ax.errorbar(rows["bytes"], ms, spread, marker=MARKERS[number], color=colour, capsize=6)
            ends.append((rows["bytes"].iloc[-1], ms.iloc[-1], called(program), colour))
        ax.set(xscale="log", yscale="log", title=f"{operation}, {lesson.some(run['world_size'], 'rank')}",
               xlabel="size of the tensor", ylabel="milliseconds")
        ax.set_xlim(right=200 * rows["bytes"].iloc[-1])
        ticks(ax, rows["bytes"])
        ax.set_xticklabels(map(size_name, rows["bytes"]))
        ax.yaxis.set_major_formatter("{x:g}")
        write_beside(ax, ends, BESIDE_AN_END)
    return fig


def size_name(size: int) -> str:
    """Of bytes: 32 KiB, 1 MiB."""
    return f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"


def ratio(program: dict, other: dict, at: int) -> compare.Ratio:
    """How many times as long as the `other` a program takes, for the tensor size number `at`."""
    return compare.ratio(*(each["times"][at]["rounds"] for each in (program, other)))


def times_table(run: dict) -> list[dict]:
    """The median time of each function for the smallest and the largest tensor, and how many times torch's that is."""
    torch = {each["operation"]: each for each in run["programs"] if each["name"] == "torch"}
    rows = []
    for program in sorted(run["programs"], key=lambda program: program["operation"], reverse=True):
        row = {"": program["operation"], "by": called(program)}
        for at in (0, -1):
            size, its = size_name(program["times"][at]["bytes"]), torch[program["operation"]]
            row[f"{size}, ms"] = f"{1e3 * program['times'][at]['seconds']:.3g}"
            row[f"{size}: times as long as torch"] = "" if its is program else str(ratio(program, its, at))
        rows.append(row)
    return rows


def ring_ratios(run: dict) -> list[compare.Ratio]:
    """How many times as long as the all-reduce of exercise 2 the ring takes, for the smallest and the largest size."""
    programs = {program["name"]: program for program in run["programs"]}
    return [ratio(programs["04_ring"], programs["04_all_reduce"], at) for at in (0, -1)]


def ring_verdict(run: dict) -> list[str]:
    """A line for each of the two sizes. Our star and our ring must differ at the smaller one."""
    star = next(program for program in run["programs"] if program["name"] == "04_all_reduce")
    small, large = ring_ratios(run)
    missed = star["whose"] == "ours" and small.undecided
    sizes = [size_name(time["bytes"]) for time in star["times"]]
    return [f"{sizes[0]}: time of the ring / time of the all-reduce of exercise 2: {small}."
            + f" {compare.NOT_SHOWN}" * missed, f"{sizes[-1]}: {large}."]


def intervals(times: dict, events: dict) -> pd.DataFrame:
    """The table for `plots.timeline`, in milliseconds, from {point: the seconds at which each rank came to it}.

    `events`: {text in the bar: (event, the point at which it begins, the point at which it ends)}.
    """
    return pd.DataFrame([{"rank": rank, "event": event, "text": text, "start": 1000 * begin, "end": 1000 * end}
                         for text, (event, first, last) in events.items()
                         for rank, (begin, end) in enumerate(zip(times[first], times[last], strict=True))])


# ------------------------------------------------------------------------------------------ tables


def messages(ranks: list[dict]) -> list[dict]:
    """Each rank's error message in the end, without its place in gloo's source and the options of its tensors."""
    rows = []
    for number, rank_result in enumerate(ranks):
        text = re.sub(r"\[[^\] ]*/[^\]]*\] ?", "", rank_result["error"] or "")
        message = " ".join(re.sub(r"TensorOptions\(.*?\)\)\)", "…)", text).split())
        rows.append({"rank": number, "after, s": f"{rank_result['end']:.2f}",
                     "it says": message or "nothing: it went on"})
    return rows


def stacks(ranks: list[dict]) -> list[dict]:
    """In which function of torch each rank was when its stack was printed, and from which line of the program."""
    rows = []
    for number, rank_result in enumerate(ranks):
        line = next(line for line in rank_result["stack"] if "/hang_on_purpose.py" in line)
        inside = rank_result["stack"][1].split(" in ")[-1]  # [0] is a wrapper around it, which logs
        rows.append({"rank": number, "it is in": f"`{inside}`", "called at": line.partition(", ")[2]})
    return rows
