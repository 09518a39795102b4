"""Lesson 15: what ways that talk less send, how fast they are, and what they learn.

`results` is the JSON of lessons/l15_talk_less/talk_less.py. A way is its name there, `way`, and `every`, the number of
batches after which its ranks talk. The forecast is lesson 08's first model, with fewer or shorter messages.
"""

import math
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.compare import FEWEST, NOT_SHOWN, ratio
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, PREDICTED, handles, head, key_below, line_key, line_style, name_rows
from course.predict.fit import BUS_FACTORS, powersgd_values

WORDS = {"never": "never", "ddp": "DDP", "accumulate": "accumulate", "local": "local SGD", "diloco": "DiLoCo",
         "bf16": "DDP, bf16", "powersgd": "DDP, PowerSGD"}
TRAININGS = ["never", "ddp", "accumulate", "local", "diloco"]  # each learns in its own way; the rest are DDP's, nearly
FLOAT = 4  # bytes
POWERSGD_RANK = 2  # columns, as talk_ways.py asks for


def name(way: str, every: int, whose: str | None = None) -> str:
    """A way's name in tables and pictures; `whose`: the author of DiLoCo's outer step, "yours" or "ours"."""
    author = f" ({whose})" if whose and way == "diloco" else ""
    return WORDS[way] + author + (f", each {every}" if every > 1 else "")


# ------------------------------------------------------------------------------------------------ predicted


def messages(way: str, shapes: list) -> tuple[int, int]:
    """(number, bytes of all) of the all-reduces that a rank takes part in when it talks; `shapes` of the tensors."""
    whole = FLOAT * sum(map(math.prod, shapes))
    if way == "never":
        return 0, 0
    if way == "bf16":
        return 1, whole // 2
    if way == "powersgd":
        return 3, FLOAT * powersgd_values(shapes, POWERSGD_RANK)  # what stays whole, all P, all Q
    return 1, whole


def sent(way: str, every: int, shapes: list, ranks: int) -> float:
    """Bytes that each rank sends a batch, by a ring's formula: 2 (W - 1) / W times the message."""
    return BUS_FACTORS["all_reduce"](ranks) * messages(way, shapes)[1] / every


def silent_batch(results: dict) -> float:
    """Seconds of a batch of ranks that never talk, the median of the rounds."""
    return median(row["seconds"] for row in results["rounds"] if row["way"] == "never") / results["steps"]


def forecast(text: str, results: dict, alpha: float, beta: float) -> pd.DataFrame:
    """A row for each way of `text`, a --ways, without `never`: `count` of its messages, `message`, the bytes of all,
    and `share` of the images a second of ranks that never talk, whose time stands in `results`.

    A message of n bytes takes alpha + beta * n seconds, once in `every` batches.
    """
    alone, rows = silent_batch(results), []
    for way, _, every in (word.partition(":") for word in text.split()):
        every, (count, size) = int(every or 1), messages(way, results["shapes"])
        if count:
            rows.append({"way": way, "every": every, "name": name(way, every), "count": count, "message": size,
                         "share": alone / (alone + (count * alpha + beta * size) / every)})
    return pd.DataFrame(rows)


def expected(forecast: pd.DataFrame, row) -> float | None:
    """The predicted share of a way, from its row of `ways`; None where nothing is predicted."""
    return forecast.set_index(["way", "every"])["share"].get((row.way, row.every))


def seldom(seconds: float, alpha: float, beta: float, size: int, share: float) -> int:
    """Batches of `seconds` each after which ranks must talk to reach this share of the images a second of ranks that
    never do; a message of `size` bytes takes alpha + beta * size seconds."""
    return max(1, math.ceil((alpha + beta * size) / seconds * share / (1 - share)))


def forecasts(table: pd.DataFrame) -> list[dict]:
    """A row a way of a forecast: what it sends, when, and how fast that lets it be."""
    return [{"way": row.name, "talks after batches": row.every, "messages": row.count,
             "their bytes": f"{row.message:,}", "predicted, % of the ceiling": f"{100 * row.share:.0f}"}
            for row in table.itertuples(index=False)]


# ------------------------------------------------------------------------------------------------ measured


def rounds(results: dict) -> pd.DataFrame:
    """A row for each round of each way: its `name`, images a second as a `share` of what ranks that never talk reached
    in the same round, and `elapsed`, seconds of training since the start of this seed."""
    table = pd.DataFrame(results["rounds"])
    table["name"] = [name(row["way"], row["every"], results.get("outer")) for row in results["rounds"]]
    never = table[table["way"] == "never"].set_index(["seed", "round"])["seconds"]
    table["share"] = [never[row.seed, row.round] / row.seconds for row in table.itertuples()]
    table["synthetic"] = results["dataset"] == "synthetic"
    table["elapsed"] = table.groupby(["seed", "name"], sort=False)["seconds"].cumsum()
    return table


def ways(results: dict) -> pd.DataFrame:
    """A row a way: `share` (median), and its interval from `low` to `high`, by `pairs` of rounds, one of ranks that
    never talk; `accuracy` (median), `worst`, `best` over the seeds after the last round; `sent`, bytes a batch and
    rank, the lowest of the rounds: other programs talk, too. `slower`: significantly, than ranks that never talk."""
    table = rounds(results)
    of_ways = table.groupby(["name", "way", "every"], sort=False)
    last = table[table["round"] == table["round"].max()].groupby(["name", "way", "every"], sort=False)["accuracy"]
    speed = pd.DataFrame([ratio(share, [1] * len(share)) for _, share in of_ways["share"]],  # 1: that of `never`
                         columns=["share", "low", "high", "pairs"], index=of_ways["share"].first().index)
    return speed.assign(accuracy=last.median(), worst=last.min(), best=last.max(), sent=of_ways["sent"].min(),
                        synthetic=of_ways["synthetic"].first(),
                        slower=(speed["pairs"] >= FEWEST) & (speed["high"] < 1)).reset_index()


def least(table: pd.DataFrame) -> str:
    """The kind of training whose median accuracy over the seeds is the lowest, of `ways`."""
    tried = table[table["way"].isin(TRAININGS)]
    return WORDS[tried.loc[tried["accuracy"].idxmin(), "way"]]


def in_time(results: dict, seconds: float) -> dict[str, float]:
    """{way's name: mean accuracy over the seeds after so many seconds of training}, between two rounds on a line; nan
    before the end of the first round, when no accuracy is known."""
    return {name: rows.groupby("seed")[["elapsed", "accuracy"]].apply(
        lambda run: np.interp(seconds, run["elapsed"], run["accuracy"], left=np.nan)).mean(skipna=False)
        for name, rows in rounds(results).groupby("name", sort=False)}


def all_had(results: dict) -> float:
    """Seconds of training that each way has had with every seed: those of the fastest."""
    return rounds(results).groupby(["name", "seed"])["elapsed"].max().min()


def of_ceiling(row, forecast: pd.DataFrame) -> dict[str, str]:
    """Three columns of a table: how fast a way was predicted to be, and is, from its row of `ways`."""
    share = expected(forecast, row)
    return {"predicted": f"{100 * share:.0f}" if share else "–", "% of the ceiling": f"{100 * row.share:.0f}",
            "its interval": f"{100 * row.low:.0f} to {100 * row.high:.0f}"}


def both(results: dict) -> list[str]:
    """A line on the ways that are not significantly slower than ranks that never talk, and one for each of them: its
    accuracy after the same images beside DDP's with the same seed."""
    table, each = ways(results).set_index("name"), rounds(results)
    if table["pairs"].min() < FEWEST:
        return [f"With fewer than {FEWEST} rounds of all seeds no way is called slower than another."]
    fast = table[~table["slower"] & ~table["way"].isin(["never", "ddp"])].index
    reached = each[each["round"] == each["round"].max()].sort_values("seed").groupby("name")["accuracy"]
    lines = [f"No significant difference from the ceiling, or faster: **{'; '.join(fast) or 'none'}**."
             + f" {NOT_SHOWN}" * (not table.loc["DDP", "slower"])]
    return lines + [f"{way}: accuracy after the same images / DDP's with the same seed: "
                    f"{ratio(*(reached.get_group(one) for one in (way, 'DDP')))}" for way in fast]


# ------------------------------------------------------------------------------------------------ pictures


def fast_and_good(results: dict, forecast: pd.DataFrame, title: str) -> Figure:
    """A line a way. Left: images a second, in percent of ranks that never talk, predicted and measured; right: test
    accuracy after the same images, and the band of DDP's seeds."""
    table = ways(results)
    fig, (left, right) = plt.subplots(1, 2, figsize=(18, 3 + 0.65 * len(table)), sharey=True)
    ddp = table.set_index("name").loc["DDP"]
    left.axvline(100, color=GREY, linewidth=2, zorder=1)
    right.axvspan(ddp["worst"], ddp["best"], color=PALE, zorder=0, linewidth=0)
    for y, row in enumerate(table.itertuples(index=False)):
        left.plot([100 * row.low, 100 * row.high], [y, y], color=COLOURS[0], linewidth=2)
        left.plot(100 * row.share, y, "o", color=COLOURS[0], markersize=13)
        if share := expected(forecast, row):
            left.plot(100 * share, y, **PREDICTED)
        right.plot([row.worst, row.best], [y, y], color=COLOURS[2], linewidth=4)
        right.plot(row.accuracy, y, "s", color=COLOURS[2], markersize=12)
        right.text(1.02, y, f"{row.accuracy:.3f}", va="center", transform=right.get_yaxis_transform())
    name_rows(left, table["name"])
    left.set(xlabel="images a second, % of ranks that never talk")
    head(left, title, table.rename(columns={"name": "label"}), key=[])
    right.set(xlabel="test accuracy after the same images")
    key_below(fig, [line_key("predicted", **PREDICTED),
                    line_key("measured: median, its interval", marker="o", color=COLOURS[0], markersize=13),
                    line_key("median, all seeds", marker="s", color=COLOURS[2], markersize=12),
                    *handles({"DDP's seeds": PALE})])
    return fig


def by_time(results: dict, title: str) -> Axes:
    """Test accuracy by seconds of training, as long as all ways have trained: the mean over the seeds of each round; of
    each of TRAININGS the way that talks most seldom."""
    ax = plt.subplots(figsize=(13, 7))[1]
    table, of_ways = rounds(results), ways(results).query("way in @TRAININGS")
    means = table.groupby(["name", "round"], sort=False)[["elapsed", "accuracy"]].mean()
    end, notes = means["elapsed"].groupby("name").max().min(), []
    for number, name in enumerate(of_ways.loc[of_ways.groupby("way", sort=False)["every"].idxmax(), "name"]):
        elapsed, accuracy = means.loc[name, "elapsed"], means.loc[name, "accuracy"]
        last, style = np.interp(end, elapsed, accuracy), line_style(number)
        ax.plot([*elapsed[elapsed < end], end], [*accuracy[elapsed < end], last], **style)
        notes.append((end, last, name, style["color"]))
    ax.set(xlabel="seconds of training (the last marker of each line: after the same time)", ylabel="test accuracy",
           xlim=(0, None))
    head(ax, title, table.rename(columns={"name": "label"}), key=[])
    write_beside(ax, notes, BESIDE_AN_END)
    return ax
