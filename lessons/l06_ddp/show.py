"""Lesson 06: pictures and tables on DDP, from the results that wrapped_training.py and ddp_questions.py write."""

from statistics import median

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.compare import NOT_SHOWN, ratio
from course.lesson import some
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, colour_of, head, line_style, name_rows


def by_update(lines: dict, title: str, synthetic: bool) -> Axes:
    """{name: largest difference of a weight, before and after each update}: a line each."""
    ax = plt.subplots(figsize=(11, 5))[1]
    for number, line in enumerate(lines.values()):
        ax.plot(line, **line_style(number))
    ax.set(xlabel="updates", ylabel="largest difference of a weight", ylim=(-0.002, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    head(ax, title, pd.DataFrame([{"synthetic": synthetic}]), {})
    write_beside(ax, [(len(line) - 1, line[-1], name, colour_of(number)) for number, (name, line) in
                      enumerate(lines.items())], BESIDE_AN_END)
    return ax


PARTS = ("forward", "backward", "wait", "update")


def buckets(run: dict, whose: str) -> str:
    """"DDP, 6 messages (bucket_cap_mb=4)": those that rank 0 sent in the step drawn. `whose`: MyDDP."""
    sent = some(sum(event["event"] == "all-reduce" for event in run["events"]), "message")
    cap = run["bucket_cap_mb"]
    return f"DDP, {sent} (bucket_cap_mb={cap:g})" if cap else f"MyDDP ({whose}), {sent}"


def overlap(timelines: list[dict], whose: str) -> list[dict]:
    """A row for each: small buckets, one bucket, MyDDP. Hidden is the share of one bucket's wait that is saved."""
    wait = median(timelines[1]["rounds"]["wait"])
    return [{"step": buckets(run, whose), **{f"{part}, ms": f"{median(run['rounds'][part]):.1f}" for part in PARTS},
             "together, ms": f"{median(run['rounds']['step']):.1f}",
             "hidden": "–" if run is timelines[1] else f"{1 - median(run['rounds']['wait']) / wait:.0%}"}
            for run in timelines]


def early(run: dict) -> tuple[int, int]:
    """(messages that left before `backward` had ended, all messages) of the step that is drawn."""
    end = next(event["end"] for event in run["events"] if event["event"] == "backward")
    starts = [event["start"] for event in run["events"] if event["lane"] == "all-reduce"]
    return sum(start < end for start in starts), len(starts)


def against_one(small: dict, one: dict) -> list[str]:
    """What small buckets change against one bucket: a line for the messages, `wait`, `backward` and the whole step."""
    wait, backward, step = (ratio(small["rounds"][part], one["rounds"][part]) for part in ("wait", "backward", "step"))
    (soon, of), (late, of_one) = early(small), early(one)
    return [f"Messages that left before `backward` had ended: {soon} of {of} with small buckets, {late} of {of_one} "
            f"with one bucket.{'' if soon > late else f' {NOT_SHOWN}'}",
            f"`wait` with small buckets ÷ `wait` with one bucket: {wait}.",
            f"`backward`, likewise: {backward}.", f"The whole step: {step}."]


def speeds(by_wrapper: dict) -> Axes:
    """{wrapper: table of its run logs}: a point for each epoch after the first, and a bar at their median."""
    ax = plt.subplots(figsize=(12, 3.6))[1]
    for row, run in enumerate(by_wrapper.values()):
        speed = warm(run)
        ax.plot(speed, [row] * len(speed), "o", markersize=13, color=COLOURS[row], alpha=0.6)
        ax.plot([speed.median()] * 2, [row - 0.3, row + 0.3], color=COLOURS[row], linewidth=5)
        ax.annotate(f"{speed.median():,.0f}", (speed.median(), row - 0.34), ha="center", va="bottom", fontweight="bold")
    most = max(run["images_per_second"].max() for run in by_wrapper.values())
    ax.set(xlabel="images a second", xlim=(0, 1.1 * most), ylim=(len(by_wrapper) - 0.4, -0.8))
    name_rows(ax, by_wrapper)
    head(ax, "The same training under both wrappers", pd.concat(by_wrapper.values()), {})
    return ax


def warm(run: pd.DataFrame) -> pd.Series:
    """Images a second of each epoch but the first of a run, in which all warms up."""
    return run.loc[run["epoch"] > 0, "images_per_second"]


def shorter(small_buckets: dict, one_bucket: dict) -> str:
    """Which step is shorter: "small buckets", "one bucket" or "no significant difference"."""
    of = ratio(small_buckets["rounds"]["step"], one_bucket["rounds"]["step"])
    return "no significant difference" if not of.significant else "small buckets" if of.high < 1 else "one bucket"
