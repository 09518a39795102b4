"""The pictures of lesson 01: steps that differ, a clock beside a queue, and what a faster phase gains."""

import statistics

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from course.compare import Ratio
from course.plots.labels import BESIDE_A_POINT, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, PALE, PHASES, darker, halo
from course.plots.timelines import timeline


def steps(milliseconds: list[float], crowded: range) -> Axes:
    """The time of each step, with mean and median. `crowded`: the steps beside which other programs ran."""
    ax = plt.subplots(figsize=(13, 5.5))[1]
    ax.plot(range(1, len(milliseconds) + 1), milliseconds, "o", markersize=6)
    ax.axvspan(crowded.start + 0.5, crowded.stop + 0.5, color=PALE)
    ax.text(crowded.start + 1, 1.02 * max(milliseconds), "other programs\nwant the core", va="bottom", fontsize=16,
            color=darker(GREY))
    for name, value, colour, line in (("mean", statistics.fmean(milliseconds), COLOURS[1], "--"),
                                      ("median", statistics.median(milliseconds), COLOURS[2], "-")):
        ax.axhline(value, color=colour, linestyle=line)
        ax.annotate(f"{name}: {value:.1f} ms", (1, value), (8, 0), xycoords=("axes fraction", "data"),
                    textcoords="offset points", va="bottom" if name == "mean" else "top", color=darker(colour),
                    fontweight="bold")
    ax.set(xlabel="step", ylabel="milliseconds", ylim=(0, 1.2 * max(milliseconds)), xlim=(0, len(milliseconds) + 1),
           title="The same step, many times")
    write_beside(ax, [(1, milliseconds[0], "the first step", COLOURS[0])], BESIDE_A_POINT)
    return ax


def queue(spans: list[tuple[str, str, float, float]], early: float, late: float) -> Axes:
    """What Python and a device with a queue did: (lane, what, begin, end), in seconds from the start of the clock.

    `early`, `late`: when a clock stops that does not wait, and one that does.
    """
    lanes = list(dict.fromkeys(lane for lane, *_ in spans))
    ax = timeline(pd.DataFrame([{"rank": lanes.index(lane), "event": what, "start": 1000 * begin, "end": 1000 * end}
                                for lane, what, begin, end in spans]), plt.subplots(figsize=(13, 4))[1])
    ax.set_yticks(ax.get_yticks(), lanes)
    for moment, words, side in ((early, "a clock that\ndoes not wait", "left"), (late, "a clock\nthat waits", "right")):
        ax.axvline(1000 * moment, color="black", linestyle="--")
        ax.annotate(f"{words}: {1000 * moment:.1f} ms", (1000 * moment, 0.5), (8 if side == "left" else -8, 0),
                    xycoords=("data", "axes fraction"), textcoords="offset points", ha=side, va="center",
                    fontweight="bold", path_effects=halo())
    ax.set_xlim(0)
    ax.set_title("Python queues the work; the device does it", pad=40)
    return ax


def amdahl(curves: dict[str, dict[float, float]], measured: dict[float, Ratio], limit: float, whose: str) -> Axes:
    """What faster phases gain. `curves`: {phase: {times as fast: gain of the step}}; `measured`: those of the first,
    and `limit`: were it infinitely fast."""
    ax, ends = plt.subplots(figsize=(12, 6))[1], []
    for phase, curve in curves.items():
        ax.plot(list(curve), list(curve.values()), color=PHASES[phase])
        ends.append((max(curve), curve[max(curve)], phase, PHASES[phase]))
    for times, ratio in measured.items():
        ax.errorbar(times, ratio.median, [[ratio.median - ratio.low], [ratio.high - ratio.median]], fmt="s",
                    markersize=12, color=COLOURS[1], capsize=6)
    ax.axhline(limit, color=GREY, linestyle="--")
    ax.set(xlabel="speed-up of the phase", ylabel="speed-up of the step", xlim=(0.8, 1.2 * ends[0][0]),
           ylim=(0.8, 1.15 * max(limit, *(ratio.high for ratio in measured.values()))),
           title=f"What a faster phase gains: {whose} function, and measured (squares)")
    write_beside(ax, ends, BESIDE_AN_END)
    ax.text(1, limit, f"the limit of {ends[0][2]}: {limit:.2f}", va="bottom", color=darker(GREY), fontweight="bold")
    return ax
