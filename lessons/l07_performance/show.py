"""Lesson 07: whether runs may be compared, what they lost and to what, the phase that grew, the batch from which two
ranks pay, and the published runs."""

import pandas as pd
from matplotlib.axes import Axes

from course import runs
from course.lesson import some
from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PHASES, head, line_key, line_style, ticks

MUST_AGREE = ["dataset", "samples", "test_samples", "model", "batch_size", "lr", "optimizer", "seed", "shuffle",
              "device", "threads"]


def comparable(df: pd.DataFrame, epochs: int) -> list[str] | str:
    """May the runs be compared? `df`: a table of `runs.read_runs`, a label a run."""
    last = df.groupby("label", sort=False).tail(1)
    problems = [f"{run.label}: {run.status}, {some(run.epoch + 1, 'epoch')} of {epochs}. {run.note}"
                for run in last.itertuples() if run.status != "completed" or run.epoch + 1 != epochs]
    problems += [f"They differ in `{name}`: {', '.join(map(str, df[name].unique()))}." for name in MUST_AGREE
                 if df[name].nunique(dropna=False) > 1]
    return problems or "All runs ended well, on the same images, with the same settings: they may be compared."


def speedups(lines: dict[str, dict[int, tuple[float, float]]], ax: Axes, title: str, mine: float | None = None) -> Axes:
    """Speed-up against the number of ranks, with the efficiency written beside it. `lines`: {name of a way to train:
    {ranks: (speed-up, efficiency)}}, a line each. `mine`: the speed-up predicted for the most ranks."""
    sizes = sorted({ranks for line in lines.values() for ranks in line})
    most, ends, points = sizes[-1], [], []
    ax.plot(sizes, sizes, "--", color=GREY, linewidth=2)
    ends.append((most, most, "ideal", GREY))
    for number, (name, line) in enumerate(lines.items()):
        ax.plot(list(line), [speedup for speedup, _ in line.values()], **line_style(number))
        for ranks, (speedup, efficiency) in line.items():
            text = f"{name}: " * (ranks == max(line)) + f"{speedup:.2f}× ({efficiency:.0%})"
            if ranks > 1:
                (ends if ranks == most else points).append((ranks, speedup, text, COLOURS[number]))
    key = [line_key("speed-up (efficiency in brackets)", **line_style(0, "live", GREY))]
    if mine:
        ax.plot(most, mine, **line_style(3, "predicted") | {"markersize": 16, "linestyle": ""})
        ends.append((most, mine, f"you: {mine:g}×", COLOURS[3]))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks(ax, sizes)
    ax.set_yticks(sizes, [f"{size:g}" for size in sizes])
    ax.set(xlabel="world size (ranks)", ylabel="times as fast as one rank", xlim=(0.9, 1.3 * most),
           ylim=(0.8 * min(0.9, mine or 1, *(speedup for _, speedup, *_ in points + ends)), 1.2 * max(most, mine or 0)))
    head(ax, title, key=key)
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, points, BESIDE_A_POINT)
    return ax


def spread(one: pd.DataFrame, many: pd.DataFrame) -> tuple[float, float]:
    """The lowest and the highest speed-up of an epoch of `many` ranks against one of `one`, after each run's first;
    tables of `runs.read_run`."""
    slow, fast = ([run["images_per_second"].iloc[1:].agg(end) for run in (one, many)] for end in ("min", "max"))
    return slow[1] / fast[0], fast[1] / slow[0]


def by_batch(measured: dict[int, float], spreads: dict[int, tuple[float, float]], wanted: float, found: int | None,
             ax: Axes, title: str) -> Axes:
    """Speed-up of two ranks against one process, over the images of an update. `measured`: {global batch: speed-up}, in
    the order in which a search measured them; `spreads`: lowest and highest of each; `found`: the search's result."""
    sizes = sorted(measured)
    ax.vlines(sizes, *zip(*(spreads[size] for size in sizes), strict=True), color=COLOURS[0], linewidth=3)
    ax.plot(sizes, [measured[size] for size in sizes], color=COLOURS[0], linewidth=1)
    ax.plot(sizes, [measured[size] for size in sizes], **line_style(0) | {"linestyle": "", "markersize": 14})
    ax.axhline(1, color="black", linewidth=2)
    notes = [(size, speedup, f"{number}: {speedup:.2f}×", COLOURS[0])
             for number, (size, speedup) in enumerate(measured.items(), start=1)]
    ends = []
    for y, name, colour in ((2, "ideal", GREY), (wanted, f"wanted: {wanted:g}×", COLOURS[1])):
        ax.axhline(y, color=colour, linewidth=2, linestyle="--")
        ends.append((1.5 * sizes[-1], y, name, colour))
    if found:
        ax.plot(found, measured[found], marker="o", markersize=26, markerfacecolor="none", color=COLOURS[1])
    ax.set_xscale("log", base=2)
    ticks(ax, sizes, "{:,}")
    ax.set(xlabel="images an update, both ranks together", ylabel="times as fast as one process",
           xlim=(sizes[0] / 1.5, 1.5 * sizes[-1]), ylim=(0, 1.15 * max(2, *(high for _, high in spreads.values()))))
    head(ax, title, columns=2, key=[
        line_key("measured, in this order (line: all epochs)", **line_style(0)),
        line_key("found", marker="o", linestyle="", markersize=16, markerfacecolor="none", color=COLOURS[1])])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def losses(table: pd.DataFrame, ceilings: dict[int, dict], devices: int) -> list[dict]:
    """From the ideal to the speed-up, a row for each of `ceilings`: {ranks: a ceiling of side_by_side.py}. In brackets
    the losses by the lowest and the highest round of the ceiling."""
    rows = []
    for run in table[table["world_size"].isin(list(ceilings))].itertuples():
        limit = min(run.world_size, devices)
        middle, low, high = (ceilings[run.world_size][name] for name in ("ceiling", "low", "high"))
        rows.append({"ranks = ideal": run.world_size, "lost: they take turns": f"{run.world_size - limit:.2f}",
                     "lost: they share": f"{limit - middle:.2f} ({limit - high:.2f} to {limit - low:.2f})",
                     "lost: they talk": f"{middle - run.speedup:.2f} ({low - run.speedup:.2f} to "
                                        f"{high - run.speedup:.2f})", "speed-up": f"{run.speedup:.2f}"})
    return rows


def talking(table: pd.DataFrame, ceilings: dict[int, dict]) -> list[str]:
    """Whether the cost of talking shows, beside the rounds of each ceiling."""
    verdicts = {"below": "the speed-up is below every round of the ceiling: talking costs.",
                "among": "the speed-up is among the rounds of the ceiling: the cost of talking cannot be told from 0.",
                "above": "the speed-up is **above** every round of the ceiling, so the machine was not the same for "
                         "both: close other programs, and run both again."}
    speedups, ranks = table.set_index("world_size")["speedup"], {place: [] for place in verdicts}
    for count, ceiling in ceilings.items():
        speedup = speedups[count]
        place = "below" if speedup < ceiling["low"] else "above" if speedup > ceiling["high"] else "among"
        ranks[place].append(str(count))
    return [f"With {', '.join(counts)} ranks {verdicts[place]}" for place, counts in ranks.items() if counts]


def per_step(df: pd.DataFrame) -> pd.DataFrame:
    """The table of `runs.read_runs`, with each phase in milliseconds a step, of rank 0."""
    each = [1000 / runs.updates_an_epoch(run.samples, run.world_size, run.batch_size) for run in df.itertuples()]
    return df.assign(**{f"{phase}_seconds": df[f"{phase}_seconds"] * each for phase in PHASES})


def grown(df: pd.DataFrame) -> str:
    """The phase that grows most from one rank to two; `df`: that of per_step, its first epoch warms up."""
    timed = df[(df["epoch"] > 0) | (df["epochs"] == 1)]
    alone, together = (timed[timed["world_size"] == ranks] for ranks in (1, 2))
    return max(PHASES, key=lambda phase: (together[f"{phase}_seconds"].median()
                                          - alone[f"{phase}_seconds"].median()))


def medians(df: pd.DataFrame, label: str) -> dict[str, float]:
    """{phase: milliseconds of a step} of a run in the table of per_step, after its first epoch."""
    later = df[(df["label"] == label) & (df["epoch"] > 0)]
    return {phase: later[f"{phase}_seconds"].median() for phase in PHASES}


def recorded(df: pd.DataFrame) -> list[dict]:
    """A row an epoch of the two published runs; a dash after the end of the page, and no accuracy of the second."""
    (_, alone), (_, eight) = df.groupby("label", sort=False)
    eight = eight.set_index("epoch")
    rows = []
    for run in alone.itertuples():
        row = {"epoch": run.epoch}
        for column in ("seconds", "loss", "accuracy"):
            row[f"{column}, one GPU"] = f"{getattr(run, column):.2f}"
            if column != "accuracy":
                row[f"{column}, eight"] = f"{eight.loc[run.epoch, column]:.2f}" if run.epoch in eight.index else "–"
        rows.append(row)
    return rows
