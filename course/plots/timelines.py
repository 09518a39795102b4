"""What each rank did, and when."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from course.plots.style import COLOURS, PHASES, head, name_rows, write_in
from course.plots.tables import field, need, plain

# One colour in all pictures: a reader learns it once.
EVENTS = PHASES | {"evaluate": "#B5DEF5", "wait": "#BDBDBD", "work": "#5F5F5F", "all-reduce": "#D55E00"}


def timeline(events: pd.DataFrame, ax: Axes | None = None, length: float | None = None) -> Axes:
    """What each rank did, and when: a bar an event, a lane for each `rank` and, if there is such a column, `lane`.

    Columns: `rank`, `event` (what was done: the colour), `start` and `end` (ms); a `text` stands in its bar where it
    fits. Bars of a lane that overlap in time stand below each other. `length`: how many milliseconds the axis will show
    (default: these events).
    """
    need(events, "start", "end")
    ax = ax or plt.subplots()[1]
    events = events.assign(lane=events.get("lane", "")).sort_values("start", kind="stable")
    others = itertools.cycle(colour for colour in COLOURS if colour not in EVENTS.values())
    names = dict.fromkeys([*EVENTS, *events["event"]])
    colours = {name: EVENTS.get(name) or next(others) for name in names if name in set(events["event"])}
    length = length or events["end"].max() - events["start"].min()
    inch = length / (ax.figure.get_figwidth() * ax.get_position().width)
    top, lanes = 0.0, {}
    for rank, of_rank in events.groupby("rank"):
        for lane, bars in of_rank.groupby("lane", sort=events["lane"].dtype == "category", observed=True):
            free = []  # from when on, for each row of this lane
            for _, bar in bars.iterrows():
                row = next((row for row, end in enumerate(free) if end <= bar["start"] + 1e-9), len(free))
                free[row:row + 1] = [bar["end"]]
                colour, width = colours[bar["event"]], bar["end"] - bar["start"]
                ax.barh(top + row, width, left=bar["start"], height=0.85, color=colour, edgecolor="white", linewidth=1)
                text = plain(field(bar, "text", ""))
                if width > 0.12 * inch * len(text):  # a character of 14 points takes about that
                    write_in(ax, bar["start"] + width / 2, top + row, text, colour, fontsize=14)
            lanes[top + (len(free) - 1) / 2] = f"rank {rank}" + (f"\n{plain(lane)}" if lane else "")
            top += len(free)
        top += 0.6
    name_rows(ax, lanes.values(), lanes.keys(), bottom=top - 0.9)
    ax.set_xlabel("milliseconds")
    head(ax, "What each rank did, and when", events, colours, columns=min(6, len(colours)))
    return ax


def lanes(film: dict | str | Path, steps: range | None = None) -> Axes:
    """A film of a run, drawn: for each rank what it computes, its messages from call to end, and its waits. While it
    waits it computes nothing: there its forward or backward has a gap.

    `film`: the file that `torchrun … -m doctor --film run.json PROGRAM` has written, or its "film". `steps`: which
    steps (default: all). Times are milliseconds from the first that is drawn.
    """
    events = _events(film, steps)
    height = 1.5 + 2.6 * events["rank"].nunique()  # three lanes per rank
    return timeline(events, plt.subplots(figsize=(14, height))[1])


def films(runs: dict[str, dict | str | Path], step: int) -> list[Axes]:
    """{title: the film of a run}: the lanes of all ranks in that step, one run below the other, on one axis of time."""
    shown = {title: _events(film, range(step, step + 1)) for title, film in runs.items()}
    length = max(events["end"].max() for events in shown.values())
    axes = plt.subplots(len(runs), 1, figsize=(14, 6 * len(runs)), sharex=True, squeeze=False)[1][:, 0]
    for ax, (title, events) in zip(axes, shown.items(), strict=True):
        timeline(events, ax, length).set_title(title, pad=40)
        ax.set_xlabel("milliseconds" if ax is axes[-1] else "")
    return list(axes)


def _events(film: dict | str | Path, steps: range | None) -> pd.DataFrame:
    """What `lanes` draws, as `timeline` takes it."""
    if not isinstance(film, dict):
        film = json.loads(Path(film).read_text(encoding="utf-8"))["film"]
    shown = [each for each in film["spans"] + film["messages"]
             if each.get("lane") != "film" and (steps is None or each["step"] in steps)]
    if not shown:
        raise ValueError("the film has nothing in these steps")
    waits = sorted((each for each in shown if each.get("lane") == "wait"), key=lambda wait: wait["t"])
    shown = [piece for each in shown
             for piece in (_computing(each, waits) if each.get("lane") == "compute" else [each])]
    last = {rank["rank"]: rank["end"] for rank in film["ranks"]}
    begin = min(each["t"] for each in shown)
    events = pd.DataFrame([{
        "rank": each["rank"], "event": each["name"].replace("_", "-"), "lane": each.get("lane", "messages"),
        "start": (each["t"] - begin) / 1000,
        "end": ((each["t"] + each["d"] if "d" in each else each["end"] or last[each["rank"]]) - begin) / 1000,
        "text": each["name"].replace("_", "-")} for each in shown])
    order = pd.CategoricalDtype(["compute", "messages", "wait"])  # on each rank, whichever comes first in time
    return events.astype({"lane": order})


def _computing(span: dict, waits: list[dict]) -> Iterator[dict]:
    """The pieces of a span of compute between those waits of its rank that last a millisecond."""
    begin, end = span["t"], span["t"] + span["d"]
    for wait in waits:
        if wait["rank"] == span["rank"] and wait["d"] >= 1000 and begin < wait["t"] + wait["d"] and wait["t"] < end:
            if begin < wait["t"]:
                yield span | {"t": begin, "d": wait["t"] - begin}
            begin = wait["t"] + wait["d"]
    if begin < end:
        yield span | {"t": begin, "d": end - begin}
