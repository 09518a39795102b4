"""Lesson 04: pictures of what each rank holds, cell by cell, of messages, and of the race.

The numbers are those of collectives.py and race.py. Each digit of a number stands for one rank, so a cell shows by its
colours from which ranks its number came, and an arrow leads from each of them.
"""

import math

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from course import compare, dial, lesson
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, MARKERS, PREDICTED, bar_style, bare, colour_of, darker, name_rows

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
    """What each rank held before and after these collectives, of the file of collectives.py, one below another. An
    arrow leads from one rank to another for the numbers that went there."""
    ranks = len(demo[names[0]][0])
    fig = plt.figure(figsize=(13.8, (1 + 0.68 * ranks) * len(names)))
    for name, part in zip(names, fig.subfigures(len(names), 1, squeeze=False)[:, 0], strict=True):
        before, after = demo[name]
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


def ring(steps: list[dict], half: str) -> Figure:
    """One half of the ring, "ring" of collectives.py: the start and the steps in which chunks are "added", or the steps
    in which they are "copied". Steps count from 0. An arrow leads to each number that has just arrived."""
    ranks = len(steps[0]["cells"])
    shown = range(-1, ranks - 1) if half == "added" else range(ranks - 1, 2 * (ranks - 1))
    rows = math.ceil(len(shown) / 2)
    fig, axes = plt.subplots(rows, 2, figsize=(6 + 2 * ranks, (1 + 0.85 * ranks) * rows), squeeze=False)
    for ax in axes.flat[len(shown):]:
        ax.remove()
    for step, ax in zip(shown, axes.flat, strict=False):
        sent = steps[step + 1]["sent"] if step >= 0 else ()
        held(steps[step + 1]["cells"], ax, fontsize=20, height=0.56,
             mark={((rank + 1) % ranks, chunk) for rank, chunk in enumerate(sent)})
        for rank, chunk in enumerate(sent):
            arrow(ax, (chunk, rank + 0.3), (chunk, rank + 0.7), rank)
            if rank == ranks - 1:  # it goes on at the top
                arrow(ax, (chunk, -0.8), (chunk, -0.3), rank)
        ax.set(ylim=(ranks - 0.2, -0.9))
        ax.set_title("start" if step < 0 else f"step {step}: {half}", fontsize=20)
    fig.suptitle("Ring all-reduce, recorded on each rank", x=0.01, ha="left", fontweight="bold")
    return fig


# ------------------------------------------------------------------------------------------ counted


WAYS = {"star": COLOURS[1], "tree": COLOURS[2], "ring": COLOURS[0], "direct": COLOURS[3], "torch": GREY}


def called(name: str, run: dict) -> str:
    """What a way is called in a table of this run: "ring, yours"."""
    return "dist.all_reduce" if name == "torch" else f"{name}, yours" if run["whose"][name] == "yours" else name


def of_ranks(run: dict, ranks: int) -> dict:
    """{way: its counts} on so many ranks, or on all that there were."""
    return run["counts"].get(str(ranks)) or run["counts"][str(run["world_size"])]


def messages_sent(run: dict, ranks: int = 4) -> Figure:
    """The messages of each way, of the file of race.py: a row a rank, a column a round on cables."""
    counts = {name: each for name, each in of_ranks(run, ranks).items() if name != "torch"}
    fig, axes = plt.subplots(1, len(counts), figsize=(18, 2.6 + 0.75 * ranks),
                             width_ratios=[each["rounds"] + 1 for each in counts.values()])
    for (name, each), ax in zip(counts.items(), axes, strict=True):
        for number, now in enumerate(each["in_rounds"]):
            for source, to, size in now:
                arrow(ax, (number, source), (number + 1, to), source, 1 + 3 * size / run["counted_bytes"])
        ax.set(xlim=(-0.15, each["rounds"] + 0.15), ylim=(ranks - 0.6, -0.4), xlabel="rounds")
        ax.set_xticks(range(each["rounds"] + 1))
        name_ranks(ax, ranks)
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.set_title(called(name, run), fontsize=18)
    return fig


def number_of_messages(run: dict, ranks: int, name: str) -> int:
    """In a call. Of torch's own: from the bytes that the kernel counted beyond the tensor's; a message has as many of
    its own, its headers, as one of our ring."""
    ways = of_ranks(run, ranks)
    if name != "torch":
        return ways[name]["messages"]
    beyond = {each: sum(ways[each]["sent"]) - 2 * (len(ways[each]["sent"]) - 1) * run["counted_bytes"]
              for each in ("ring", "torch")}
    return round(beyond["torch"] / (beyond["ring"] / ways["ring"]["messages"]))


def counts_table(run: dict, ranks: int = 4) -> list[dict]:
    """What each way sends on so many ranks, and the kernel's count beside it where there is one."""
    rows = []
    for name, each in of_ranks(run, ranks).items():
        row = {"": called(name, run), "messages": "–", "rounds": each.get("rounds", "–"),
               "the busiest rank sends, tensors": f"{each['most']:.3g}" if "most" in each else "–"}
        if "sent" in each:
            row["messages"] = number_of_messages(run, ranks, name)
            row["counted by the kernel, tensors"] = f"{max(each['sent']) / run['counted_bytes']:.2f}"
        rows.append(row)
    return rows


def busiest_by_ranks(run: dict, ax: Axes | None = None) -> Axes:
    """How many times its tensor the busiest rank sends, against the number of ranks: counted."""
    ax = ax or plt.subplots(figsize=(11, 6))[1]
    worlds, ends = sorted(map(int, run["counts"])), []
    for number, name in enumerate(WAYS):
        if name == "torch":
            continue
        most = [run["counts"][str(ranks)][name]["most"] for ranks in worlds]
        over = name == "direct"  # it sends as much as the ring: dashes and larger, hollow markers show both
        ax.plot(worlds, most, marker=MARKERS[number], color=WAYS[name], linestyle="--" if over else "-",
                markersize=15 if over else 9, markerfacecolor="none" if over else WAYS[name])
        ends.append((worlds[-1], most[-1], called(name, run), WAYS[name]))
    ax.set(xlabel="ranks", ylabel="× its tensor", title="What the busiest rank sends", ylim=(0, None))
    ax.set_xticks(worlds)
    ax.set_xlim(right=worlds[-1] + 0.15 * (worlds[-1] - worlds[0]) + 0.2)
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


# ------------------------------------------------------------------------------------------ raced


def race_of(run: dict, rate: str | None, ranks: int | None = None, size: int | None = None) -> dict:
    """One race of the file of race.py; of several sizes the largest, of several numbers of ranks all."""
    return max((race for race in run["races"] if race["rate"] == rate and race["ranks"] == (ranks or race["ranks"])
                and race["bytes"] == (size or race["bytes"])), key=lambda race: (race["ranks"], race["bytes"]))


def predicted(run: dict, race: dict, name: str) -> float:
    """Seconds on cables, from the counted rounds: the largest message of each, one after the other. torch's own is a
    ring."""
    counts = run["counts"][str(race["ranks"])]["ring" if name == "torch" else name]
    return counts["path"] * 8 * race["bytes"] / dial.bits(race["rate"])


def middle(run: dict) -> str:
    """The rate at which a run stands beside that of the cards: 200mbit, or the one that there is."""
    rates = [race["rate"] for race in run["races"] if race["rate"]]
    return "200mbit" if "200mbit" in rates else rates[-1]


def seconds_of(run: dict, rate: str | None) -> dict[str, list[float]]:
    """{way: seconds of each round} of the largest message at this rate."""
    return {name: each["seconds"] for name, each in race_of(run, rate)["ways"].items()}


def with_cards(recorded: dict) -> dict[str, list[float]]:
    """The same of a recorded run of scripts/measure/network.py, which has no tree: these names are that program's."""
    names = {"star": "star, at once", "ring": "ring", "direct": "direct", "torch": "dist.all_reduce"}
    return {name: recorded["seconds"][theirs] for name, theirs in names.items()}


def fastest(seconds: dict[str, list[float]]) -> str:
    """Of the ways that are made of messages."""
    return min((name for name in seconds if name != "torch"), key=lambda name: compare.interval(seconds[name]))


def in_ms(seconds: list[float]) -> str:
    return "{} ({} to {})".format(*(f"{1e3 * each:.{0 if each >= 1 else 3}{'f' if each >= 1 else 'g'}}"
                                    for each in compare.interval(seconds)))


def race_table(run: dict) -> list[dict]:
    """At each rate: milliseconds, the median and its interval, beside the prediction."""
    rates = [race["rate"] for race in run["races"] if race["rate"]]
    rows = []
    for name in WAYS:
        row = {"": called(name, run)}
        for rate in rates:
            race = race_of(run, rate)
            row |= {f"{dial.words(rate)}: predicted, ms": f"{1e3 * predicted(run, race, name):.0f}",
                    f"{dial.words(rate)}: measured, ms": in_ms(race["ways"][name]["seconds"])}
        rows.append(row)
    return rows


def networks(run: dict, recorded: dict, source: str) -> Figure:
    """The same message on three networks: `run` at one rate on cables, `recorded` with cards, and `run` without a
    limit. `source` of `run`: live or recorded."""
    rate, cards = middle(run), with_cards(recorded)
    fig, axes = plt.subplots(1, 3, figsize=(18, 5.5))
    counted = [{name: predicted(run, race_of(run, rate), name) for name in WAYS},
               dict(zip(cards, with_cards({"seconds": recorded["by_bytes"]}).values(), strict=True)), {}]
    for seconds, of_bytes, its_source, title, ax in zip(
            [seconds_of(run, rate), cards, seconds_of(run, None)], counted, [source, "recorded", source],
            [f"a cable per pair, {dial.words(rate)}", f"one card per host, {dial.words(recorded['rate'])}",
             "no limit: one memory"], axes, strict=True):
        for row, (name, colour) in enumerate(WAYS.items()):
            if name not in seconds:
                ax.text(0, row, "  not timed", va="center", color=GREY)
                continue
            median = 1e3 * compare.interval(seconds[name])[0]
            ax.barh(row, median, height=0.6, **bar_style(its_source, colour))
            ax.text(median, row, f"   {median:.0f} ", va="center", fontweight="bold")
            if name in of_bytes:
                ax.plot(1e3 * of_bytes[name], row, **PREDICTED | {"color": "black"})
        name_rows(ax, [called(name, run) for name in WAYS] if ax is axes[0] else [""] * len(WAYS))
        ax.set(title=f"{title}\n({its_source})", xlabel="milliseconds")
        ax.margins(x=0.2)
    fig.legend(handles=[Line2D([], [], label="predicted from the count", **PREDICTED | {"color": "black"})],
               frameon=False, loc="outside lower center")
    return fig


def unlimited(run: dict, size: int) -> list[tuple[str, dict, dict, int]]:
    """(a name, the way's race, the star's, the number of its messages) for a message of this size without a limit, on
    two ranks and on all."""
    rows = []
    for ranks in sorted({race["ranks"] for race in run["races"] if not race["rate"]}):
        ways = race_of(run, None, ranks, size)["ways"]
        on = f"{lesson.some(ranks, 'rank')} on {lesson.some(run['cores'], 'core')}"
        rows += [(f"{called(name, run)}, {on}", ways[name], ways["star"], number_of_messages(run, ranks, name))
                 for name in ("star", "ring", "torch")]
    return rows


def against(way: dict, star: dict) -> str:
    return "1" if way is star else str(compare.ratio(way["seconds"], star["seconds"]))


def small_table(run: dict) -> list[dict]:
    """1 KiB without a limit: the time of a call, and of a message."""
    return [{"1 KiB": name, "time, ms": in_ms(way["seconds"]), "times the star's": against(way, star),
             "messages": messages, "ms per message": f"{1e3 * compare.interval(way['seconds'])[0] / messages:.2f}"}
            for name, way, star, messages in unlimited(run, 1024)]


def price(run: dict) -> str:
    """What a message of 1 KiB costs, over all rows of that table."""
    rows = small_table(run)
    costs, messages = (sorted(float(row[column]) for row in rows) for column in ("ms per message", "messages"))
    return (f"A message costs {costs[0]:.2f} to {costs[-1]:.2f} ms. A call sends {messages[0]:.0f} to "
            f"{messages[-1]:.0f} of them.")


def large_table(run: dict) -> list[dict]:
    """4 MiB without a limit: the time, and who computes how much."""
    return [{"4 MiB": name, "time, ms": in_ms(way["seconds"]), "times the star's": against(way, star),
             "the busiest rank computes, ms": f"{1e3 * max(way['computed']):.1f}",
             "all ranks' computing / cores, ms": f"{1e3 * sum(way['computed']) / run['cores']:.1f}"}
            for name, way, star, _ in unlimited(run, 4 * 1024**2)]


def ring_verdict(run: dict) -> str:
    """What the ring saves at the middle rate."""
    race = race_of(run, middle(run))
    ratio = compare.ratio(race["ways"]["ring"]["seconds"], race["ways"]["star"]["seconds"])
    counted = predicted(run, race, "ring") / predicted(run, race, "star")
    return (f"At {dial.words(race['rate'])} per cable, 4 MiB on 4 ranks: time of the {called('ring', run)} / time of "
            f"the {called('star', run)}: {ratio}. Predicted: {counted:.2f}.")
