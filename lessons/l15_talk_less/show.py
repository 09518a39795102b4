"""Lesson 15: its pictures and tables.

A count is what `course.dial --count` has written of two nodes of two ranks. A recording is the list of the lines of
results/recorded/talk-less/trainings.jsonl, which record.py explains.
"""

import json
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.nn.utils import parameters_to_vector

from course.compare import ratio
from course.dial import words
from course.lesson import some
from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, bare, colour_of, darker, halo, head, line_style, name_rows, ticks
from lessons.l15_talk_less import record

WORDS = {"ddp": "DDP", "hook": "DDP, 16 bits", "hierarchical": "DDP, hierarchical", "hsdp": "HSDP",
         "local": "local SGD", "diloco": "DiLoCo", "large": f"DDP, batch × {record.LARGE}"}
COLOUR = {"ddp": 6, "hook": 0, "hierarchical": 5, "hsdp": 3, "local": 2, "diloco": 1, "large": 0}
PER_NODE = 2


def name(strategy: str, every: int = 1, whose: str = "") -> str:
    text = WORDS[strategy] + (f", H = {every}" if strategy in ("local", "diloco") and every > 1 else "")
    return f"{text} ({whose})" if whose else text


# --------------------------------------------------------------------------------------------------------- bytes


def between(count: dict, every: int = 8) -> float:
    """MB that go between nodes per update, both directions, on average. The first `every` updates are left out: there
    DDP sends the first weights, too."""
    rest = count["updates"][every:]
    return sum(map(crossing, rest)) / len(rest) / 1e6


def crossing(table: list[list[int]]) -> int:
    """Bytes between nodes, of a table: row i, column j, what rank i has sent to rank j."""
    return sum(sent for i, row in enumerate(table) for j, sent in enumerate(row) if i // PER_NODE != j // PER_NODE)


def read(files: dict[str, str | Path]) -> dict[str, float]:
    """{strategy: MB between nodes per update} of the counts in these files."""
    return {strategy: between(json.loads(Path(file).read_text())) for strategy, file in files.items()}


def links(file: str | Path, every: int = 8) -> Axes:
    """Which rank sends how many MB per update to which: four ranks in two nodes, an arrow per connection in use."""
    count = json.loads(Path(file).read_text())
    rest = count["updates"][every:]
    ax = plt.subplots(figsize=(11, 4.6))[1]
    places = [(0, 1), (0, 0), (4, 0), (4, 1)]  # of ranks 0 to 3
    for node, x in enumerate((0, 4)):
        ax.add_patch(plt.Rectangle((x - 0.75, -0.6), 1.5, 2.2, facecolor=PALE, edgecolor="none"))
        ax.text(x, 1.72, f"node {node}", ha="center", fontsize=18, fontweight="bold")
    for i, one in enumerate(places):
        ax.text(*one, f"rank {i}", ha="center", va="center", fontsize=17, fontweight="bold",
                bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": GREY})
        for j, other in enumerate(places):
            sent = sum(table[i][j] for table in rest) / len(rest) / 1e6
            if sent < 0.01:
                continue
            crosses = i // PER_NODE != j // PER_NODE
            colour = COLOURS[1] if crosses else COLOURS[0]
            side = 0.55 if crosses else 0.24
            (x, y), (to_x, to_y) = one, other
            sign = (to_x > x) - (to_x < x)
            start, end = (x + sign * side, y), (to_x - sign * side, to_y)
            if not crosses:
                start, end = (x, y + 0.24 * (1 if to_y > y else -1)), (x, to_y - 0.24 * (1 if to_y > y else -1))
            ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 4})
            middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            ax.text(middle[0], middle[1] + (0.09 if crosses else 0), f"{sent:.2f} MB", ha="center", fontsize=17,
                    va="bottom" if crosses else "center", fontweight="bold", color=darker(colour), path_effects=halo())
    bare(ax)
    ax.set(xlim=(-1, 5), ylim=(-0.7, 2), xticks=[], yticks=[])
    return ax


def budget(megabytes: dict[str, float], most: float, every: int) -> Axes:
    """{strategy: MB between nodes per update}: a bar each, and the budget."""
    ax = plt.subplots(figsize=(12, 1.6 + 0.75 * len(megabytes)))[1]
    for y, size in enumerate(megabytes.values()):
        ax.barh(y, size, height=0.6, color=COLOURS[2] if size <= most else COLOURS[1])
        ax.text(max(size, most), y, f"  {size:.2f} MB", va="center", fontweight="bold", path_effects=halo())
    ax.axvline(most, color="black", linewidth=2.5, linestyle="--")
    ax.text(most, -0.62, f" the budget, {most:g} MB", va="bottom", fontsize=17, fontweight="bold")
    name_rows(ax, [name(strategy, every) for strategy in megabytes])
    ax.set_xlabel("MB between nodes per update")
    ax.margins(x=0.15)
    return ax


def bytes_table(megabytes: dict[str, float], parameters: int) -> list[dict]:
    """A row for each strategy: MB between nodes per update, in DDP's, and in the bytes of all gradients in float32."""
    return [{"strategy": WORDS[strategy], "MB between nodes per update": f"{size:.3f}",
             "÷ the gradients' bytes": f"{size / (4e-6 * parameters):.2f}",
             "÷ DDP's": f"{size / megabytes['ddp']:.2f}"} for strategy, size in megabytes.items()]


# --------------------------------------------------------------------------------------------------------- time


def seconds(measured: dict, strategies: list[str]) -> Figure:
    """A panel for each rate between nodes, a bar for each strategy: milliseconds per update, the median."""
    rates = measured["rounds"]
    fig, axes = plt.subplots(1, len(rates), figsize=(16, 1.9 + 0.75 * len(strategies)), sharey=True, squeeze=False)
    for ax, (rate, rounds) in zip(axes[0], rates.items(), strict=True):
        for y, strategy in enumerate(strategies):
            value = 1000 * median(rounds[strategy])
            ax.barh(y, value, height=0.6, color=colour_of(COLOUR[strategy]))
            ax.text(value, y, f"  {value:.0f} ms", va="center", fontweight="bold")
        name_rows(ax, [name(each, measured["every"], measured["whose"][each]) for each in strategies])
        ax.set_xlabel("milliseconds per update")
        ax.margins(x=0.25)
        head(ax, f"{words(rate)} between nodes", key=[])
    return fig


def claims(measured: dict, strategies: list[str]) -> list[dict]:
    """A row for each strategy: its time ÷ DDP's at each rate, by pairs of rounds."""
    return [{"time ÷ time of DDP": name(strategy, measured["every"], measured["whose"][strategy]),
             **{f"{words(rate)} between nodes": str(ratio(rounds[strategy], rounds["ddp"]))
                for rate, rounds in measured["rounds"].items()}} for strategy in strategies]


def where_faster(measured: dict, strategy: str) -> list[str]:
    """The rates at which an update takes significantly less time than with DDP."""
    ratios = {rate: ratio(rounds[strategy], rounds["ddp"]) for rate, rounds in measured["rounds"].items()}
    return [rate for rate, each in ratios.items() if each.significant and each.high < 1]


# --------------------------------------------------------------------------------------------------------- learning


def recording() -> list[dict]:
    return [json.loads(line) for line in record.FILE.read_text().splitlines()]


def tuned(lines: list[dict]) -> dict[tuple[str, int], list[dict]]:
    """{(strategy, every): the trainings with the best rates, a line per seed}."""
    groups: dict[tuple[str, int], list[dict]] = {}
    for line in lines:
        groups.setdefault((line["strategy"], line["every"]), []).append(line)
    found = {}
    for key, of_strategy in groups.items():
        best = min((line for line in of_strategy if line["seed"] == 0), key=lambda line: line["val"][-1][1])
        same = [line for line in of_strategy if (line["lr"], line["outer"]) == (best["lr"], best["outer"])]
        found[key] = sorted(same, key=lambda line: line["seed"])
    return found


def learned(lines: list[dict], megabytes: dict[str, float], most: float) -> list[dict]:
    """A row for each strategy: its tuned rates, the val loss over the seeds, the bytes, whether the budget holds."""
    rows = []
    for (strategy, every), runs in tuned(lines).items():
        last = [line["val"][-1][1] for line in runs]
        rows.append({"strategy": name(strategy, every), "learning rate": f"{runs[0]['lr']:g}",
                     "outer rate": f"{runs[0]['outer']:g}" if runs[0]["outer"] else "–",
                     "messages": runs[0]["updates"] // every,
                     "val loss: median (all seeds)": f"{median(last):.3f} ({min(last):.3f} to {max(last):.3f})",
                     "MB between nodes per update": f"{megabytes[strategy]:.2f}",
                     "within the budget": "yes" if megabytes[strategy] <= most else "no"})
    return rows


def lowest(lines: list[dict]) -> str:
    """The strategy whose median val loss over the seeds is the lowest."""
    return min(tuned(lines).items(), key=lambda each: median(line["val"][-1][1] for line in each[1]))[0][0]


def summary(lines: list[dict], megabytes: dict[str, float]) -> list[str]:
    """A line for each strategy that communicates less often: its val loss beside DDP's, and what DDP sends to get as
    far as it does."""
    runs = tuned(lines)
    ddp = [(update, median(losses)) for update, *losses in by_update(runs["ddp", 1])]
    sentences = []
    for (strategy, every), of_strategy in runs.items():
        if strategy == "ddp":
            continue
        update, *losses = by_update(of_strategy)[-1]
        loss = median(losses)
        text = (f"**{name(strategy, every)}**: val loss {loss:.3f} with {update * megabytes[strategy]:,.0f} MB between "
                f"the nodes; DDP {ddp[-1][1]:.3f} with {update * megabytes['ddp']:,.0f} MB.")
        far = next((before for before, ddp_loss in ddp if ddp_loss <= loss), None)
        reached = f" DDP has this loss by update {far}, with {far * megabytes['ddp']:,.0f} MB." if far else ""
        sentences.append(text + reached)
    return sentences


def by_update(runs: list[dict]) -> list[tuple]:
    """[(update, val loss of each seed …)]."""
    together = zip(*(line["val"] for line in runs), strict=True)
    return [(points[0][0], *(loss for _, loss in points)) for points in together]


def curves(lines: list[dict], megabytes: dict[str, float], axis: str) -> Axes:
    """Val loss against `axis`, "tokens" or "bytes" (between nodes, on a logarithmic axis): a line for each strategy
    through the medians of the seeds, and a band from the lowest to the highest of them."""
    ax = plt.subplots(figsize=(12, 7))[1]
    notes = []
    for number, ((strategy, every), runs) in enumerate(tuned(lines).items()):
        updates, *of_seeds = zip(*by_update(runs), strict=True)
        x = [update * (runs[0]["tokens"] / 1000 if axis == "tokens" else megabytes[strategy]) for update in updates]
        losses = list(zip(*of_seeds, strict=True))
        middle = [median(of_update) for of_update in losses]
        colour = colour_of(COLOUR[strategy])
        ax.plot(x, middle, **line_style(number, "recorded", colour))
        ax.fill_between(x, [min(each) for each in losses], [max(each) for each in losses], color=colour, alpha=0.2)
        notes.append((x[-1], middle[-1], name(strategy, every), colour))
    ax.set(ylabel="val loss, nats per byte",
           xlabel="thousand tokens" if axis == "tokens" else "MB between the two nodes, so far (logarithmic axis)")
    if axis == "bytes":
        ax.set_xscale("log")
        ticks(ax, [each for each in (10, 20, 50, 100, 200, 500, 1000) if ax.get_xlim()[0] <= each <= ax.get_xlim()[1]])
    head(ax, f"Recorded: {some(len(runs), 'seed')}, tuned rates", key=[])
    write_beside(ax, notes, BESIDE_AN_END if axis == "tokens" else BESIDE_A_POINT)
    return ax


# --------------------------------------------------------------------------------------------------------- geometry


def walks(every: int = 8, first: int = 24, outer_steps: int = 3, updates: int = 64) -> Axes:
    """Some outer steps of a real DiLoCo training of four ranks, computed now, in the plane in which they move most."""
    alone, after = [], []  # [ranks, weights] each: after every update before a message; [weights]: after the message

    def weights(models):
        return torch.stack([parameters_to_vector(each.parameters()).detach() for each in models])

    training = record.train("diloco", every, 3e-3, 0.7, 0, updates, before=lambda models: alone.append(weights(models)))
    for update, models in enumerate(training, 1):
        (after if update % every == 0 else alone).append(weights(models))
        if update == first + every * outer_steps:
            break
    begun = first // every  # outer steps before the picture begins
    start, after = after[begun - 1][0], [each[0] for each in after[begun:]]
    walked = torch.stack(alone[first:])
    plane = torch.pca_lowrank((walked - start).flatten(0, 1), 2, niter=8)[2]
    ax = plt.subplots(figsize=(14, 6))[1]
    agreed = start
    for number in range(outer_steps):
        of_round = walked[number * every:(number + 1) * every]
        points = torch.cat([agreed.expand(1, record.RANKS, -1), of_round])
        for rank in range(record.RANKS):
            x, y = ((points[:, rank] - start) @ plane).T
            ax.plot(x, y, color=colour_of([0, 2, 3, 4][rank]), linewidth=2.5,
                    label=f"rank {rank} trains alone" if number == 0 else None)
        (x, y), (to_x, to_y) = (agreed - start) @ plane, (after[number] - start) @ plane
        mean_x, mean_y = (points[-1].mean(0) - start) @ plane
        ax.plot([mean_x], [mean_y], "o", color="white", markeredgecolor="black", markersize=12, zorder=5,
                label="the ranks' mean" if number == 0 else None)
        ax.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "-|>", "color": COLOURS[1], "linewidth": 4,
                                                          "shrinkA": 0, "shrinkB": 0})
        ax.plot([to_x], [to_y])  # an arrow does not widen the axes
        ax.annotate(f"outer step {begun + number + 1}", ((x + to_x) / 2, (y + to_y) / 2), (0, 12), fontsize=16,
                    textcoords="offset points", ha="center", fontweight="bold", color=darker(COLOURS[1]),
                    path_effects=halo())
        agreed = after[number]
    ax.plot([], [], color=COLOURS[1], linewidth=4, label="outer step")
    ax.set(xlabel="first direction", ylabel="second direction")
    ax.set_aspect("equal", "datalim")
    ax.legend(fontsize=15, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return ax
