"""Lesson 07: one device, the plan of the runs, what they lost and to what, the published runs, and logs to diagnose."""

import math

from course.lesson import some
from course.plots.style import PHASES

QUIET = 10  # % of all cores that other programs may use while we measure
EQUAL = 0.01  # losses that differ by less are called equal
MUST_AGREE = ["dataset", "samples", "test_samples", "model", "batch_size", "lr", "optimizer", "seed", "shuffle",
              "device", "threads"]


def machine(cores, gpus, busy):
    """What one device is here, and whether other programs leave us alone; `busy` in % of all cores."""
    devices, kind = (gpus, "GPU") if gpus else (cores, "core")
    return [f"One device is one {kind}. This machine has **{some(devices, kind)}**.",
            f"Other programs use {busy:.0f} % of the cores just now: "
            + ("**close them, or the times below are theirs as much as ours.**" if busy > QUIET else "we may measure.")]


def plan(sizes, devices, samples, batch_size):
    return [{"ranks": ranks, "images an epoch": f"{samples:,}", "images a step, each rank": batch_size,
             "global batch": ranks * batch_size, "steps an epoch": steps(samples, ranks, batch_size),
             "ranks for each device": f"{ranks / devices:.3g}"} for ranks in sizes]


def steps(samples, ranks, batch_size):
    return math.ceil(math.ceil(samples / ranks) / batch_size)


def comparable(df, epochs):
    """May the runs be compared? `df`: a table of `runs.read_runs`, a label a run."""
    last = df.groupby("label", sort=False).tail(1)
    problems = [f"{run.label}: {run.status}, {some(run.epoch + 1, 'epoch')} of {epochs}. {run.note}"
                for run in last.itertuples() if run.status != "completed" or run.epoch + 1 != epochs]
    problems += [f"They differ in `{name}`: {', '.join(map(str, df[name].unique()))}." for name in MUST_AGREE
                 if df[name].nunique(dropna=False) > 1]
    return problems or "All runs ended well, on the same images, with the same settings: they may be compared."


def told_runs(table):
    return [{"run": run.label, "seconds an epoch": f"{run.seconds:.2f}", "images/s": f"{run.images_per_second:,.0f}",
             "speed-up": f"{run.speedup:.2f}", "efficiency": f"{run.efficiency:.0%}", "loss": f"{run.loss:.2f}"}
            for run in table.itertuples()]


def losses(table, ceilings, devices):
    """From the ideal to the speed-up, a row for each of `ceilings`: {ranks: what side_by_side.py wrote}. In brackets
    what the lowest and the highest round of the ceiling say."""
    rows = []
    for run in table[table["world_size"].isin(list(ceilings))].itertuples():
        limit = min(run.world_size, devices)
        middle, low, high = (ceilings[run.world_size][name] for name in ("ceiling", "low", "high"))
        rows.append({"ranks = ideal": run.world_size, "lost: they take turns": f"{run.world_size - limit:.2f}",
                     "lost: they share": f"{limit - middle:.2f} ({limit - high:.2f} to {limit - low:.2f})",
                     "lost: they talk": f"{middle - run.speedup:.2f} ({low - run.speedup:.2f} to "
                                        f"{high - run.speedup:.2f})", "speed-up": f"{run.speedup:.2f}"})
    return rows


def talking(table, ceilings):
    """Whether the price of talking shows, beside the rounds of each ceiling."""
    speedups, found = table.set_index("world_size")["speedup"], {"below": [], "inside": [], "above": []}
    for ranks, limits in ceilings.items():
        speedup = speedups[ranks]
        where = "below" if speedup < limits["low"] else "above" if speedup > limits["high"] else "inside"
        found[where].append(str(ranks))
    says = {"below": "the speed-up is below every round of the ceiling: talking costs.",
            "inside": "the speed-up is among the rounds of the ceiling: what talking costs cannot be told from 0.",
            "above": "the speed-up is **above** every round of the ceiling. The two were not measured on the same "
                     "machine, so to say: close other programs, and run both again."}
    return [f"With {', '.join(ranks)} ranks {says[where]}" for where, ranks in found.items() if ranks]


def per_step(df):
    """The table of `runs.read_runs`, with each phase in milliseconds a step, of rank 0."""
    each = [1000 / steps(run.samples, run.world_size, run.batch_size) for run in df.itertuples()]
    return df.assign(**{f"{phase}_seconds": df[f"{phase}_seconds"] * each for phase in PHASES})


def grown(df):
    """The phase that grows most from one rank to two; `df`: that of per_step, its first epoch warms up."""
    timed = df[(df["epoch"] > 0) | (df["epochs"] == 1)]
    one, two = (timed[timed["world_size"] == ranks] for ranks in (1, 2))
    return max(PHASES, key=lambda phase: two[f"{phase}_seconds"].median() - one[f"{phase}_seconds"].median())


def compared(many, one):
    """"higher", "lower" or "equal": the loss of many ranks against that of one."""
    if abs(many / one - 1) < EQUAL:
        return "equal"
    return "higher" if many > one else "lower"


def recorded(df):
    """A row an epoch of the two published runs; where the page ends, a dash."""
    (_, one), (_, eight) = df.groupby("label", sort=False)
    eight = eight.set_index("epoch")
    rows = []
    for run in one.itertuples():
        other = eight.loc[run.epoch] if run.epoch in eight.index else None
        row = {"epoch": run.epoch}
        for name, column in (("seconds", "seconds"), ("loss", "loss"), ("accuracy", "accuracy")):
            row |= {f"{name}, one GPU": f"{getattr(run, column):.2f}",
                    f"{name}, eight": "–" if other is None else f"{other[column]:.2f}"}
        rows.append(row)
    return rows


def published(table, df):
    """How far the published speed-up can be trusted, epoch against epoch."""
    one, eight = (run["seconds"] for _, run in df.groupby("label", sort=False))
    last = table.iloc[-1]
    return (f"Speed-up **{last.speedup:.1f}**, efficiency {last.efficiency:.0%}, by the medians. But one GPU took "
            f"{one.min():.0f} to {one.max():.0f} s for the same work: epoch against epoch the speed-up is anything "
            f"between {one.min() / eight.max():.1f} and {one.max() / eight.min():.1f}.")


def rounded(printed, times):
    """What a value printed with two digits may be, after it is multiplied."""
    low, high = (times * (printed + off) for off in (-0.005, 0.005))
    return f"Two printed digits leave room: {times} × {printed:.2f} is anything from {low:.2f} to {high:.2f}."


def heads(df):
    """What the first lines of each log say, and what came out."""
    last = df.groupby("label", sort=False).tail(1).set_index("label")
    speed = df[df["epoch"] > 0].groupby("label")["images_per_second"].median()
    return [{"run": label, "ranks": run.world_size, "batch of each": run.batch_size, "cores": run.cores,
             "threads a rank": run.threads, "status": run.status, "images/s": f"{speed[label]:,.0f}"}
            for label, run in last.iterrows()]
