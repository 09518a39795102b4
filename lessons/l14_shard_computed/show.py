"""Lesson 14: its pictures and tables."""

import re
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course import step_memory
from course.compare import ratio
from course.dial import words
from course.plots.style import COLOURS, GREY, PALE, PHASES, bare, colour_of, handles, key_below, name_rows, write_in
from course.plots.timelines import timeline

NAMES = {"ddp": "DDP", "tensor": "TP", "fsdp_tp": "FSDP × TP", "gpipe": "GPipe", "pipe": "1F1B"}


# --------------------------------------------------------------------------------------- tensor parallelism and DDP


def block() -> Axes:
    """The forward of an MLP on two ranks, drawn: what each has, and where the ranks meet."""
    ax = plt.subplots(figsize=(14, 4.6))[1]
    places = [0, 2.6, 5.4, 8.0, 10.8, 13.0]
    for rank in range(2):
        own = ["#FBE3CF", "#CFEBE1"][rank]
        boxes = [("x", "#CFE4F2"), (f"up:\ncolumns {'ab'[rank]}", own), ("gelu", own),
                 (f"down:\nrows {'ab'[rank]}", own), ("part\nof a sum", own), ("y", "#CFE4F2")]
        for place, (text, colour) in zip(places, boxes, strict=True):
            ax.text(place, -rank, text, ha="center", va="center", fontsize=17, fontweight="bold",
                    bbox={"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": GREY})
        for start, end in zip(places[:4], places[1:5], strict=True):
            ax.annotate("", (end - 1.05, -rank), (start + 0.95, -rank),
                        arrowprops={"arrowstyle": "-|>", "color": GREY, "linewidth": 2})
        for other in range(2):
            ax.annotate("", (places[5] - 0.45, -rank), (places[4] + 0.95, -other),
                        arrowprops={"arrowstyle": "-|>", "color": COLOURS[1], "linewidth": 3})
    ax.text(12.0, 0.55, "Sum: all-reduce", ha="center", va="bottom", fontsize=17, color=COLOURS[1])
    ax.text(1.2, 0.55, "Copy: nothing is sent", ha="center", va="bottom", fontsize=17, color=GREY)
    bare(ax)
    ax.set(xlim=(-0.8, 13.8), ylim=(-1.5, 1.1), xticks=[], yticks=[0, -1], yticklabels=["rank 0", "rank 1"])
    ax.set_title("Forward of an MLP on two ranks", pad=12)
    return ax


def sent(counted: dict[str, dict]) -> list[dict]:
    """{strategy: what course.dial --count wrote}: a row for each, MB per update that rank 0 has sent."""
    rows = []
    for name, count in counted.items():
        *_, last = count["updates"]
        rows.append({"strategy": name, "rank 0 sends, MB per update": f"{sum(last[0]) / 1e6:.2f}"})
    return rows


def races(measured: dict[str, dict]) -> list[Axes]:
    """{title: what race.py wrote of ddp and tensor}: a panel for each, the ms of an update at each rate."""
    axes = plt.subplots(1, len(measured), figsize=(15, 5), squeeze=False)[1][0]
    for ax, (title, race) in zip(axes, measured.items(), strict=True):
        for number, name in enumerate(("ddp", "tensor")):
            values = [1000 * median(rounds[name]) for rounds in race["rounds"].values()]
            for place, value in enumerate(values):
                ax.barh(place + 0.38 * number, value, 0.36, color=COLOURS[number])
                ax.text(value, place + 0.38 * number, f" {value:.0f}", va="center", fontweight="bold")
        name_rows(ax, [words(rate) for rate in race["rounds"]], [0.19 + row for row in range(len(race["rounds"]))],
                  bottom=len(race["rounds"]) - 0.2)
        ax.margins(x=0.15)
        ax.set_title(title)
        ax.set_xlabel("milliseconds per update")
    key_below(axes[0].figure, {NAMES[name]: COLOURS[number] for number, name in enumerate(("ddp", "tensor"))})
    return list(axes)


def claims(measured: dict[str, dict], way: str = "tensor", than: str = "ddp") -> list[dict]:
    """A row for each race: how long `way` takes in the time of `than`, at each rate."""
    return [{f"{NAMES[way]} ÷ {NAMES[than]}": title, **{words(rate): str(ratio(rounds[way], rounds[than]))
                                                       for rate, rounds in race["rounds"].items()}}
            for title, race in measured.items()]


def winner(race: dict, rate: str, way: str = "tensor", than: str = "ddp") -> str:
    """"TP", "DDP" or "no significant difference"."""
    compared = ratio(race["rounds"][rate][way], race["rounds"][rate][than])
    return NAMES[way if compared.high < 1 else than] if compared.significant else "no significant difference"


def falls(printed: str | Path) -> str:
    """"yes" or "no": is the last loss of what train_gpt.py has printed below the first?"""
    losses = [float(loss) for loss in re.findall(r"^update \d+: loss ([\d.]+)", Path(printed).read_text(), re.M)]
    return "yes" if losses[-1] < losses[0] else "no"


# ------------------------------------------------------------------------------------------------------- pipelines


def schedules(panels: dict[str, tuple[list[dict], str]], columns: int = 2) -> Figure:
    """{title: (events, unit)}: what each rank of a pipeline did, on one screen; the panels of a column share their
    axis of time."""
    rows = -(-len(panels) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(18, 0.9 + 3.6 * rows), sharex="col", squeeze=False)
    for number, (title, (events, unit)) in enumerate(panels.items()):
        ax = axes[number // columns, number % columns]
        timeline(pd.DataFrame(events), ax)
        ax.get_legend().remove()
        ax.set_title(title, fontsize=18, pad=6)
        ax.set_xlabel(unit if number // columns == rows - 1 else "")
    key_below(fig, {"forward of a micro-batch": PHASES["forward"], "backward of a micro-batch": PHASES["backward"]})
    return fig


def causes(measured: dict[str, dict]) -> list[dict]:
    """{what glibc does with memory: what race.py wrote of gpipe and pipe}: a row for each, GPipe beside 1F1B."""
    rows = []
    for title, race in measured.items():
        rounds, cpu, faults = (race[key]["none"] for key in ("rounds", "cpu", "faults"))
        rows.append({"memory that is freed": title,
                     "page faults per update, GPipe": f"{median(faults['gpipe']):,.0f}",
                     "1F1B": f"{median(faults['pipe']):,.0f}",
                     "time of GPipe ÷ 1F1B": str(ratio(rounds["gpipe"], rounds["pipe"])),
                     "CPU time of GPipe ÷ 1F1B": str(ratio(cpu["gpipe"], cpu["pipe"]))})
    return rows


def memory_over_time(folders: dict[str, str | Path]) -> list[Axes]:
    """{title: what course.step_memory wrote}: what each rank holds above what it keeps between two updates."""
    axes = plt.subplots(1, len(folders), figsize=(16, 5), sharey=True)[1]
    for ax, (title, folder) in zip(axes, folders.items(), strict=True):
        notes = []
        for rank, curve in enumerate(step_memory.read(folder)):
            above = [(size - step_memory.kept(curve)) / 1e6 for size in curve["bytes"]]
            ax.step(curve["ms"], above, where="post", color=colour_of(rank), linewidth=2)
            notes.append((curve["ms"][above.index(max(above))], max(above), f"rank {rank}: {max(above):.1f}",
                          colour_of(rank)))
        ax.set_title(title)
        ax.set_xlabel("time of one update")
        ax.set_xticks([])
        ax.legend(handles=handles({text: colour for *_, text, colour in notes}), frameon=False, loc="upper right",
                  fontsize=14)
    axes[0].set_ylabel("MB above what is kept")
    axes[0].set_ylim(0, 1.5 * axes[0].get_ylim()[1])
    return list(axes)


def memory(folders: dict[str, str | Path]) -> Axes:
    """{title: what course.step_memory wrote}: a thin bar for each rank, what it keeps and what comes on top."""
    ax, y, places = plt.subplots(figsize=(14, 1.5 + 1.15 * len(folders)))[1], 0.0, []
    for folder in folders.values():
        curves = step_memory.read(folder)
        places.append(y + (len(curves) - 1) / 2)
        for curve in curves:
            kept, most = step_memory.kept(curve) / 1e6, step_memory.most(curve) / 1e6
            ax.barh(y, kept, 0.9, color=COLOURS[0], edgecolor="white")
            ax.barh(y, most - kept, 0.9, kept, color=COLOURS[1], edgecolor="white")
            ax.text(most, y, f" {most:.1f}", va="center", fontsize=14)
            y += 1
        y += 0.8
    name_rows(ax, list(folders), places, bottom=y - 0.8)
    ax.margins(x=0.08)
    ax.set_xlabel("MB per rank")
    ax.set_title("Bytes of tensors: a bar for each of four ranks")
    key_below(ax.figure, {"kept between two updates": COLOURS[0], "on top, at the worst moment": COLOURS[1]})
    return ax


def on_top(folder: str | Path) -> int:
    """Bytes above what is kept, of the rank that has the most of them."""
    return max(step_memory.most(curve) - step_memory.kept(curve) for curve in step_memory.read(folder))


def score(name: str, folder: str, budget: float) -> dict:
    """A row for runs, one per seed: step_memory has metered one into `folder`, and their lines stand in folder.txt."""
    size, printed = largest(folder), Path(f"{folder}.txt").read_text()
    losses = re.findall(r"val loss ([\d.]+) after", printed)
    return {"": name, "parameters": re.search(r"([\d,]+) parameters", printed)[1],
            "MB of the largest rank": f"{size:.1f}", "within the budget": "yes" if size <= budget else "no",
            "val loss of each seed": ", ".join(losses), "median": f"{median(map(float, losses)):.3f}"}


def largest(folder: str | Path) -> float:
    """MB of the largest rank at the worst moment of its update."""
    return max(map(step_memory.most, step_memory.read(folder))) / 1e6


# ---------------------------------------------------------------------------------------------------------- a mesh


def pieces(results: dict) -> Figure:
    """Which rank has which piece of each weight (columns), with each strategy (rows). Drawn to scale."""
    strategies, shapes = list(results["pieces"]), results["shapes"]
    names = list(next(iter(results["pieces"].values())))
    tallest = max(shape[0] for shape in shapes.values())
    fig, axes = plt.subplots(len(strategies), len(names), figsize=(15, 0.6 + 2.5 * len(strategies)),
                             width_ratios=[max(shapes[name][1], tallest / 3) for name in names], squeeze=False)
    for row, strategy in zip(axes, strategies, strict=True):
        for ax, name in zip(row, names, strict=True):
            (height, width), of_ranks = shapes[name], results["pieces"][strategy][name]
            holders = {}
            for rank, piece in enumerate(of_ranks):
                if piece:
                    holders.setdefault((*piece["first"], *piece["shape"]), []).append(rank)
            for (top, left, rows, columns), ranks in holders.items():
                shared = len(ranks) > 1
                colour = PALE if shared else colour_of(ranks[0])
                ax.add_patch(Rectangle((left, top), columns, rows, facecolor=colour, edgecolor="white", linewidth=3))
                who = "all" if 1 < len(ranks) == len(of_ranks) else " ".join(map(str, ranks))
                write_in(ax, left + columns / 2, top + rows / 2, who, colour)
            ax.set(xlim=(-2, width + 2), ylim=(height + 2, -2), xticks=[], yticks=[], aspect="equal")
            bare(ax)
            if ax in axes[0]:
                title = name.removesuffix(".weight").replace("blocks.", "block ").replace(".", " ")
                ax.set_title(f"{title}\n{height} × {width}", fontsize=16, loc="center")
        row[0].set_ylabel(NAMES[strategy], rotation=0, ha="right", va="center", fontweight="bold", labelpad=12)
    fig.suptitle(f"Which rank has which piece ({results['world_size']} ranks)", x=0.01, ha="left", fontweight="bold")
    return fig
