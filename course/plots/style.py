"""What the pictures share: the style, bars and axes, titles and keys.

A picture says what its numbers are: solid lines and filled markers were measured on this machine, dashed and hollow
ones are recorded elsewhere, dotted ones predicted, and "SYNTHETIC DATA" stands above whatever was not trained on real
images.
"""

import math
from collections.abc import Collection, Iterable

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from course.plots.tables import by_machine, machine_of, made_up, source_of

# Okabe and Ito's palette, which colour-blind readers can tell apart; without its yellow, too faint on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
PREDICTED = {"marker": "D", "linestyle": "", "color": COLOURS[1], "markerfacecolor": "none", "markersize": 14}
MARKERS = ["o", "s", "^", "D", "v", "p", "h"]  # each has an inside that can be hollow
LINES = {"live": "-", "recorded": "--", "predicted": ":"}
PHASES = {"data": "#E69F00", "forward": "#56B4E9", "backward": "#0072B2", "update": "#009E73"}
PARTS = {"parameters": COLOURS[0], "gradients": COLOURS[5], "optimizer state": COLOURS[2],
         "activations": COLOURS[1]}  # of the memory that training takes
ROOM = 0.06  # for a number in a part of a bar, as a share of the longest bar
GREY, PALE, WARNING = "#5F5F5F", "#E3E3E3", "#D55E00"


mpl.rcParams.update({  # large enough to be read from the back of a room
    "figure.figsize": (10, 6), "figure.constrained_layout.use": True,  # makes room for what stands outside the axes
    "savefig.bbox": "tight",
    "font.size": 17, "axes.titlesize": 21, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 18, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": PALE,
    "lines.linewidth": 3, "lines.markersize": 9, "lines.markeredgewidth": 2.5, "hatch.linewidth": 1.5,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
})


def colour_of(number: float) -> str:
    """The colour of a rank, or of a run by its place in the table; they repeat."""
    return COLOURS[int(number) % len(COLOURS)]


def line_style(number: int, source: str = "live", colour: str | None = None) -> dict:
    """How the run or series of this number is drawn, as options of `ax.plot`."""
    colour = colour or colour_of(number)
    return {"color": colour, "linestyle": LINES[source], "marker": MARKERS[number % len(MARKERS)],
            "markerfacecolor": colour if source == "live" else "white"}


def bar_style(source: str, colour: str = COLOURS[0]) -> dict:
    """The same for `ax.barh`: recorded bars are hatched, too."""
    return {"facecolor": colour if source == "live" else "white", "edgecolor": colour, "linewidth": 3,
            "hatch": "/" if source == "recorded" else None, "linestyle": LINES[source]}


def darker(colour: str) -> list[float]:
    """For text, which needs more contrast than lines."""
    return [0.8 * part for part in mpl.colors.to_rgb(colour)]


def halo(colour: str = "white") -> list:
    """Path effects that set a text off from lines behind it."""
    return [patheffects.withStroke(linewidth=4, foreground=colour)]


def write_in(ax: Axes, x: float, y: float, text, colour, **look) -> None:
    """Bold text in the middle of what has this colour: black or white, whichever can be read on it."""
    dark = np.dot(mpl.colors.to_rgb(colour), [0.30, 0.59, 0.11]) < 0.5
    style = {"ha": "center", "va": "center", "fontweight": "bold", "path_effects": halo(colour)}
    ax.text(x, y, text, color="white" if dark else "black", **style | look)


# ---------------------------------------------------------------- bars and axes


def stacked(ax: Axes, names: list[str], bars: list[dict], colours: dict[str, str], xlabel: str,
            unit: str = "") -> dict[str, str]:
    """Draw a bar a row, made of its {part: width} from left to right, with its name before and its sum in `unit` after.
    Returns the colours of the parts that occur."""
    longest = max(sum(parts.values()) for parts in bars)
    digits = max(0, 1 - math.floor(math.log10(longest / 3))) if longest > 0 else 0
    for y, parts in enumerate(bars):
        left = 0.0
        for part, width in parts.items():
            ax.barh(y, width, left=left, height=0.6, facecolor=colours[part], edgecolor="white")
            if width > ROOM * longest:
                write_in(ax, left + width / 2, y, f"{width:.{digits}f}", colours[part])
            left += width
        if unit and parts:
            ax.text(left, y, f"  {left:,.1f} {unit}", va="center", fontweight="bold")
            ax.margins(x=0.15)
    name_rows(ax, names)
    ax.set_xlabel(xlabel)
    return {part: colour for part, colour in colours.items() if any(part in parts for parts in bars)}


def name_rows(ax: Axes, names: Collection[str], places: Iterable[float] | None = None,
              bottom: float | None = None) -> None:
    """A name beside each row, from the top down; `bottom` is where the axes end if the rows are not 0, 1, 2 ..."""
    ax.set_yticks(list(range(len(names)) if places is None else places), list(names))
    ax.set_ylim(len(names) - 0.4 if bottom is None else bottom, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)


def bare(ax: Axes) -> None:
    """No grid, no ticks, no frame: of a picture that is made of cells."""
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)


def ticks(ax: Axes, values: Iterable[float], form: str = "{:g}") -> None:
    """A tick at each of the values and nowhere else, also where the axis is logarithmic."""
    ax.set_xticks(values, [form.format(value) for value in values])
    ax.xaxis.set_minor_locator(NullLocator())


def percent(ax: Axes) -> None:
    """Shares (0 to 1) in whole percent; the sign belongs into the label."""
    ax.yaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))


# ---------------------------------------------------------------- titles and keys


def head(ax: Axes, title: str, table: pd.DataFrame | None = None, key: list | dict | None = None, columns=1) -> None:
    """Title, below it the key (of whose runs stand in the table, if left out), and between them what is made up."""
    key = key_of(table) if key is None else handles(key)
    height = 0.0  # points above the axes
    if key:
        ax.legend(handles=key, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=16,
                  borderaxespad=0.2, borderpad=0, labelspacing=0.3, columnspacing=1.5, handlelength=2.6)
        height += 24 * -(-len(key) // columns)
    warning = "" if table is None else made_up(table)
    if warning:
        ax.annotate(warning, (0, 1), (5, height + 8), xycoords="axes fraction", textcoords="offset points", va="bottom",
                    color="white", fontsize=16, fontweight="bold",
                    bbox={"facecolor": WARNING, "edgecolor": "none", "pad": 4})
        height += 30
    ax.set_title(title, pad=10 + height)


def key_of(table: pd.DataFrame, bars: bool = False) -> list:
    """The meaning of solid, dashed and dotted; empty where all runs were measured on this machine."""
    runs = [rows.iloc[0] for rows in by_machine(table)]
    if [source_of(run) for run in runs] == ["live"]:
        return []
    if bars:
        return [Patch(label=machine_of(run), **bar_style(source_of(run), GREY)) for run in runs]
    return [line_key(machine_of(run), **line_style(0, source_of(run), GREY)) for run in runs]


def handles(key: list | dict) -> list:
    """The handles of a key, which may also be given as {name: colour}."""
    return [Patch(color=colour, label=name) for name, colour in key.items()] if isinstance(key, dict) else key


def line_key(label: str, **style) -> Line2D:
    """The entry of a key for a line or a marker."""
    return Line2D([], [], label=label, **style)


def key_below(fig: Figure, key: list | dict) -> None:
    """One row below all axes of the figure."""
    fig.legend(handles=handles(key), loc="outside lower center", ncols=len(key), frameon=False)
