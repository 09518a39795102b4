"""Lesson 06: pictures and tables on DDP, from the results that ddp_from_scratch.py and ddp_questions.py write."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.lesson import some
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, PALE, colour_of, head, line_style, name_rows

ROUNDING = 1e-9  # largest difference of a float64 weight in the same training, summed in another order
CLOSE = 0.03  # steps whose times differ by less are called equal
SMALLEST = 1e-18  # a difference below it, 0 too, is drawn here: a logarithm has no 0


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


def from_one_process(cases: dict, synthetic: bool) -> Axes:
    """{name: largest difference of a weight}: a point each. Up to ROUNDING the result is the same."""
    ax = plt.subplots(figsize=(13, 1.8 + 0.65 * len(cases)))[1]
    ax.set(xscale="log", xlim=(SMALLEST / 2, 10), xlabel="largest difference of a weight from one process")
    ax.axvspan(SMALLEST / 2, ROUNDING, color=PALE, zorder=0, linewidth=0)
    for row, off in enumerate(cases.values()):
        same = off <= ROUNDING
        ax.plot(max(off, SMALLEST), row, "o" if same else "s", markersize=15, color=COLOURS[0 if same else 1])
        ax.annotate(f"{off:.0e}" if off else "0", (max(off, SMALLEST), row), (14, 0), textcoords="offset points",
                    va="center", fontweight="bold")
    name_rows(ax, cases)
    for x, text in ((SMALLEST, "rounding: the same result"), (3 * ROUNDING, "a different result")):
        ax.text(x, -0.7, text, va="bottom", fontsize=16, fontstyle="italic")
    head(ax, "DDP against one process on the whole batches", pd.DataFrame([{"synthetic": synthetic}]), {})
    ax.set_title(ax.get_title(loc="left"), pad=34 + 30 * synthetic)
    return ax


def small(difference: float) -> str:
    return f"{difference:.0e}" if difference else "0"


PARTS = ("forward", "backward", "wait", "update")


def length(run: dict) -> float:
    """Milliseconds of a step, the sum of its parts' medians."""
    return sum(run["medians"][part] for part in PARTS)


def buckets(run: dict) -> str:
    """"6 buckets (bucket_cap_mb=4)": those that rank 0 sent in the step drawn."""
    sent = sum(event["event"] == "all-reduce" and event["rank"] == 0 for event in run["events"])
    return f"{some(sent, 'bucket')} (bucket_cap_mb={run['bucket_cap_mb']:g})"


def overlap(small_buckets: dict, one_bucket: dict) -> list[dict]:
    """A row for each size of the buckets. Hidden is the share of one bucket's wait that small buckets save."""
    hidden = 1 - small_buckets["medians"]["wait"] / one_bucket["medians"]["wait"]
    return [{"buckets": buckets(run), **{f"{part}, ms": f"{run['medians'][part]:.1f}" for part in PARTS},
             "step, ms": f"{length(run):.1f}", "hidden": share}
            for run, share in ((small_buckets, f"{hidden:.0%}"), (one_bucket, "–"))]


def shorter(small_buckets: dict, one_bucket: dict) -> str:
    """Which step is shorter: "small buckets", "one bucket" or "neither"."""
    ratio = length(one_bucket) / length(small_buckets)
    return "neither" if abs(ratio - 1) < CLOSE else "small buckets" if ratio > 1 else "one bucket"


def batchnorm(equality: dict) -> list[dict]:
    """A row for each way to take mean and variance; the last on GPUs only."""
    measured = equality["batchnorm"]
    rows = [{f"the model's {measured['layers']} layers": name,
             "weights, from one process": small(equality["weights"][name]),
             "running means, between the ranks": small(measured["running_means"][name]),
             "all-reduces per update": messages} for name, messages in measured["messages"].items()]
    if (real := measured.get("torch.nn.SyncBatchNorm")) is not None:
        rows.append(dict(zip(rows[0], ("`torch.nn.SyncBatchNorm`, on the GPU", small(real), "–", "–"), strict=True)))
    return rows
