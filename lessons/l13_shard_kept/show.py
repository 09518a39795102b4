"""Lesson 13: its pictures and tables."""

import json
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course import step_memory
from course.compare import ratio
from course.dial import words
from course.plots.style import COLOURS, GREY, PARTS, head, line_style, stacked

SHARED = {"DDP": (), "MyZero": ("optimizer state",), "MyFSDP": tuple(PARTS)[:3]}  # what N ranks share
BYTES = {"parameters": 4, "gradients": 4, "optimizer state": 8}  # per parameter: float32, and Adam's two averages


def kept(curves: dict[str, dict], parameters: int, ranks: int) -> Axes:
    """{strategy: what course.step_memory has written of one rank}: bytes per parameter by the sum 4 + 4 + 8, and what
    the meter has found, a diamond."""
    ax = plt.subplots(figsize=(12, 4.6))[1]
    bars = [{part: size / (ranks if part in SHARED[name] else 1) for part, size in BYTES.items()} for name in curves]
    key = stacked(ax, list(curves), bars, {part: PARTS[part] for part in BYTES}, "bytes per parameter, on each rank")
    for place, curve in enumerate(curves.values()):
        ax.plot(step_memory.kept(curve) / parameters, place, "D", color="black", markersize=13, clip_on=False)
    head(ax, "Kept between two updates (diamond: measured)", key=key, columns=3)
    return ax


def sent(files: dict[str, str | Path], parameters: int, update: int = 2) -> list[dict]:
    """{strategy: what course.dial --count has written}: what rank 0 sent in that update, by the kernel's count."""
    sizes = {name: sum(json.loads(Path(file).read_text())["updates"][update][0]) for name, file in files.items()}
    return [{"strategy": name, "rank 0 sends per update, bytes": f"{size:,}",
             "in all weights' float32 bytes": f"{size / (4 * parameters):.2f}"} for name, size in sizes.items()]


def percent(file: str | Path, of: str | Path, update: int = 2) -> float:
    """What rank 0 sent in that update of one count of course.dial, in percent of another."""
    mine, other = (sum(json.loads(Path(each).read_text())["updates"][update][0]) for each in (file, of))
    return 100 * mine / other


def ahead(measured: dict) -> list[Axes]:
    """A panel for each rate, a bar for each strategy: milliseconds per update, and which of them `alone` lacks."""
    rounds = measured["rounds"]
    axes = plt.subplots(len(rounds), 1, figsize=(13, 1.3 + 2.5 * len(rounds)), sharex=True, squeeze=False)[1][:, 0]
    labels = {"alone": "no communication"} | {name: f"{name} ({whose})" for name, whose in measured["whose"].items()}
    parts = {"computing": COLOURS[5], "added by communication": COLOURS[1]}
    for ax, (rate, times) in zip(axes, rounds.items(), strict=True):
        medians = [1000 * median(times[name]) for name in labels]
        bars = [{"computing": min(each, medians[0]), "added by communication": max(0, each - medians[0])}
                for each in medians]
        key = stacked(ax, list(labels.values()), bars, parts, "milliseconds per update" if ax is axes[-1] else "", "ms")
        head(ax, words(rate), key=key if ax is axes[0] else [], columns=2)
    return list(axes)


def claims(measured: dict) -> list[dict]:
    return [{"network": words(rate), "one block ahead ÷ when needed": str(ratio(times["one block ahead"],
                                                                                   times["when needed"]))}
            for rate, times in measured["rounds"].items()]


def saves_more(measured: dict) -> str:
    """The rate at which gathering ahead saves more milliseconds, by the medians; "the same": within a millisecond."""
    saved = {rate: 1000 * (median(times["when needed"]) - median(times["one block ahead"]))
             for rate, times in measured["rounds"].items()}
    return "the same" if max(saved.values()) - min(saved.values()) < 1 else max(saved, key=saved.get)


def choices(measured: dict, mine: tuple[int, int]) -> Axes:
    """A curve for each number of micro-batches over the number of recomputed blocks. `mine` is ringed."""
    ax = plt.subplots(figsize=(12, 6))[1]
    rows = measured["choices"]
    for number, count in enumerate(sorted({row["micro_batches"] for row in rows})):
        line = [row for row in rows if row["micro_batches"] == count]
        ax.plot([row["recomputed"] for row in line], [row["most"] / 1e6 for row in line], **line_style(number))
        below = count == max(row["micro_batches"] for row in rows)  # else two curves' numbers meet
        for row in line:
            ax.annotate(f"{row['most'] / 1e6:.0f}", (row["recomputed"], row["most"] / 1e6), (0, -24 if below else 14),
                        fontsize=14, textcoords="offset points", ha="center", color=COLOURS[number])
        ax.text(line[-1]["recomputed"] + 0.15, line[-1]["most"] / 1e6 - 2 * below,
                f"{count} micro-batch{'es' * (count > 1)}", color=COLOURS[number], va="center")
        if mine[0] == count:
            [own] = [row["most"] / 1e6 for row in line if row["recomputed"] == mine[1]]
            ax.plot(mine[1], own, "o", markersize=26, color="black", markerfacecolor="none", markeredgewidth=3)
    ax.axhline(measured["budget"] / 1e6, color=GREY, linestyle="--")
    ax.text(-0.15, measured["budget"] / 1e6 - 5, f"budget {measured['budget'] / 1e6:g} MB", color=GREY, va="top")
    ax.set(xlabel="recomputed blocks, of 4", ylabel="MB at the worst moment", ylim=(0, 70), xlim=(-0.2, 5.2))
    ax.set_xticks(sorted({row["recomputed"] for row in rows}))
    head(ax, "What a rank holds at most", key=[])
    return ax
