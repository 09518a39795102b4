"""Lesson 08: whether runs may be compared, what they lost and to what, the phase that grew, the batch from which two
ranks pay, and the published runs."""

import pandas as pd
from matplotlib.axes import Axes

from course import runs
from course.compare import Ratio, ratio
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


def by_batch(measured: dict[int, Ratio], wanted: float, found: int | None, ax: Axes, title: str) -> Axes:
    """Speed-up of two ranks against one process, over the images of an update. `measured`: {global batch: speed-up}, in
    the order in which a search measured them; `found`: the search's result."""
    sizes = sorted(measured)
    middles = [measured[size].median for size in sizes]
    lows, highs = zip(*((measured[size].low, measured[size].high) for size in sizes), strict=True)
    ax.vlines(sizes, lows, highs, color=COLOURS[0], linewidth=3)
    ax.plot(sizes, middles, color=COLOURS[0], linewidth=1)
    ax.plot(sizes, middles, **line_style(0) | {"linestyle": "", "markersize": 14})
    ax.axhline(1, color="black", linewidth=2)
    notes = [(size, speedup.median, f"{number}: {speedup.median:.2f}×", COLOURS[0])
             for number, (size, speedup) in enumerate(measured.items(), start=1)]
    ends = []
    for y, name, colour in ((2, "ideal", GREY), (wanted, f"wanted: {wanted:g}×", COLOURS[1])):
        ax.axhline(y, color=colour, linewidth=2, linestyle="--")
        ends.append((1.5 * sizes[-1], y, name, colour))
    if found:
        ax.plot(found, measured[found].median, marker="o", markersize=26, markerfacecolor="none", color=COLOURS[1])
    ax.set_xscale("log", base=2)
    ticks(ax, sizes, "{:,}")
    ax.set(xlabel="images an update, both ranks together", ylabel="times as fast as one process",
           xlim=(sizes[0] / 1.5, 1.5 * sizes[-1]),
           ylim=(0, 1.15 * max(2, *(speedup.high for speedup in measured.values()))))
    head(ax, title, columns=2, key=[
        line_key("measured, in this order (upright: its interval)", **line_style(0)),
        line_key("found", marker="o", linestyle="", markersize=16, markerfacecolor="none", color=COLOURS[1])])
    write_beside(ax, ends, BESIDE_AN_END)
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def losses(speedups: dict[int, Ratio], ceilings: dict[int, dict], devices: int) -> list[dict]:
    """From the ideal to the speed-up, a row for each of `ceilings`: {ranks: a ceiling of side_by_side.py}.

    `speedups`: {ranks: against one process}. A round of a ceiling is a pair: all ranks, and one alone beside them. The
    speed-ups are of separate runs, so what the ranks lose by talking is stated with its range, without a verdict.
    """
    rows = []
    for ranks, ceiling in ceilings.items():
        limit, speedup = min(ranks, devices), speedups[ranks]
        middle, low, high = (ceiling[name] for name in ("ceiling", "low", "high"))
        of_limit = ratio(ceiling["rounds"], [limit] * len(ceiling["rounds"]))
        share = (f"{limit - middle:.2f} ({limit * (1 - of_limit.high):.2f} to {limit * (1 - of_limit.low):.2f})"
                 + ": **no significant loss**" * of_limit.undecided)
        rows.append({"ranks = ideal": ranks, "lost: they take turns": f"{ranks - limit:.2f}", "lost: they share": share,
                     "lost: they talk": f"{middle - speedup.median:.2f} ({low - speedup.high:.2f} to "
                                        f"{high - speedup.low:.2f})",
                     "speed-up": f"{speedup.median:.2f}"})
    return rows


def per_step(df: pd.DataFrame) -> pd.DataFrame:
    """The table of `runs.read_runs`, with each phase in milliseconds a step, of rank 0."""
    each = [1000 / runs.updates_per_epoch(run.samples, run.world_size, run.batch_size) for run in df.itertuples()]
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
