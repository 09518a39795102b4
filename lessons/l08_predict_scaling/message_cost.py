"""Lesson 08: what an all-reduce costs, by the size of its message, here and on links that others have measured."""

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, head, line_key, line_style
from course.predict.fit import measurable, size_name


def _log_axes(ax, sizes, ylabel):
    ax.set(xscale="log", yscale="log", xlabel="message (bytes)", ylabel=ylabel)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_name(size)))
    ax.yaxis.set_major_formatter("{x:,.12g}")
    ax.xaxis.set_minor_locator(NullLocator())


def time_by_size(points, alpha, beta, ax, title):
    """Microseconds of each message, a DataFrame of message_time.py's points, and the line α + β · bytes fitted to them,
    with the two parts that it is the sum of. A β that noise may have made is not drawn."""
    sizes = points["bytes"].to_numpy()
    many = np.geomspace(sizes[0], sizes[-1], 100)
    ax.vlines(sizes, 1e6 * points["low"], 1e6 * points["high"], color=COLOURS[0], linewidth=2)
    ax.plot(sizes, 1e6 * points["seconds"], "o", color=COLOURS[0], markersize=13)
    ax.plot(many, 1e6 * (alpha + beta * many), ":", color=COLOURS[1], linewidth=4)
    ends = [(many[-1], 1e6 * (alpha + beta * many[-1]), "α + β · bytes", COLOURS[1])]
    if measurable(points.to_dict("records"), alpha, beta):
        bytes_part = many[beta * many > alpha / 10]
        for values, xs, name in ((alpha + 0 * many, many, "α"), (beta * bytes_part, bytes_part, "β · bytes")):
            ax.plot(xs, 1e6 * values, color=GREY, linewidth=1.5)
            ends.append((xs[-1], 1e6 * values[-1], name, GREY))
    _log_axes(ax, sizes[::2], "time (µs)")
    head(ax, title, key=[
        line_key("measured (median; line: fastest to slowest round)", marker="o", linestyle="-", color=COLOURS[0]),
        line_key("fitted", linestyle=":", color=COLOURS[1])], columns=2)
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def bus_bandwidth(points, published, here, ax):
    """busbw against the bytes of a message: `points` as above, called `here`, and those of `published`, a DataFrame
    with system, bytes and busbw (GB/s)."""
    curves = [(here, points["bytes"], points["busbw"] / 1e9, "live")]
    curves += [(system, of["bytes"], of["busbw"], "recorded") for system, of in published.groupby("system", sort=False)]
    ends = []
    for number, (name, sizes, busbw, source) in enumerate(curves):
        ax.plot(sizes, busbw, **line_style(number, source))
        ends.append((sizes.iloc[-1], busbw.iloc[-1], name, COLOURS[number]))
    _log_axes(ax, [2**10, 2**15, 2**20, 2**25, 2**30, 2**34], "busbw (GB/s)")
    head(ax, "Bus bandwidth of all-reduce", columns=2, key=[
        line_key("measured here", **line_style(0, "live", GREY)),
        line_key("published elsewhere", **line_style(0, "recorded", GREY))])
    write_beside(ax, ends, BESIDE_AN_END)
    return ax
