"""Lesson 07: whether runs may be compared, what they lost and to what, the phase that grew, and the published runs."""

import math

import pandas as pd

from course.lesson import some
from course.plots.style import PHASES

MUST_AGREE = ["dataset", "samples", "test_samples", "model", "batch_size", "lr", "optimizer", "seed", "shuffle",
              "device", "threads"]


def steps(samples: int, ranks: int, batch_size: int) -> int:
    """Steps an epoch: the sampler pads the shards to one length, and the last batch may be smaller."""
    return math.ceil(math.ceil(samples / ranks) / batch_size)


def comparable(df: pd.DataFrame, epochs: int) -> list[str] | str:
    """May the runs be compared? `df`: a table of `runs.read_runs`, a label a run."""
    last = df.groupby("label", sort=False).tail(1)
    problems = [f"{run.label}: {run.status}, {some(run.epoch + 1, 'epoch')} of {epochs}. {run.note}"
                for run in last.itertuples() if run.status != "completed" or run.epoch + 1 != epochs]
    problems += [f"They differ in `{name}`: {', '.join(map(str, df[name].unique()))}." for name in MUST_AGREE
                 if df[name].nunique(dropna=False) > 1]
    return problems or "All runs ended well, on the same images, with the same settings: they may be compared."


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
    each = [1000 / steps(run.samples, run.world_size, run.batch_size) for run in df.itertuples()]
    return df.assign(**{f"{phase}_seconds": df[f"{phase}_seconds"] * each for phase in PHASES})


def grown(df: pd.DataFrame) -> str:
    """The phase that grows most from one rank to two; `df`: that of per_step, its first epoch warms up."""
    timed = df[(df["epoch"] > 0) | (df["epochs"] == 1)]
    alone, together = (timed[timed["world_size"] == ranks] for ranks in (1, 2))
    return max(PHASES, key=lambda phase: (together[f"{phase}_seconds"].median()
                                          - alone[f"{phase}_seconds"].median()))


def recorded(df: pd.DataFrame) -> list[dict]:
    """A row an epoch of the two published runs; a dash after the end of the page."""
    (_, alone), (_, eight) = df.groupby("label", sort=False)
    eight = eight.set_index("epoch")
    rows = []
    for run in alone.itertuples():
        row = {"epoch": run.epoch}
        for column in ("seconds", "loss", "accuracy"):
            row |= {f"{column}, one GPU": f"{getattr(run, column):.2f}",
                    f"{column}, eight": f"{eight.loc[run.epoch, column]:.2f}" if run.epoch in eight.index else "–"}
        rows.append(row)
    return rows
