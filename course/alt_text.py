"""Says in words what a picture shows, for whoever cannot see it.

All of it is read from the matplotlib figure: titles, kinds of marks, axis labels, rows, key, names beside lines. So it
holds for any picture, also one that a learner draws, and never says what the picture means.
"""

import re
from itertools import groupby

from matplotlib.collections import LineCollection, PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.image import AxesImage
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle
from matplotlib.ticker import FixedLocator

LONGEST = 400  # characters: a screen reader reads it in one go, and nobody can skip a part
# (most names in a list, whether numbers beside marks are told, too), from the fullest telling down to the shortest
TELLINGS = [(40, True), (12, True), (40, False), (12, False), (8, False), (5, False), (3, False), (2, False),
            (1, False)]
NUMBER = re.compile(r"[-+–−<]?[\d.,]+(e[-+]?\d+)? ?[A-Za-zµ%×]{0,3}$")  # "8", "1,024", "12.5 s", "70 B": no name
LETTER = re.compile(r"[^\W\d_]")


def describe(figure) -> str:
    """One to a few short sentences on what is drawn, in at most LONGEST characters."""
    panels = [_panel(ax) for ax in figure.axes if ax.get_visible() and (ax.has_data() or ax.texts or ax.patches)]
    keys = [_plain(text.get_text()) for legend in figure.legends for text in legend.get_texts()]
    for most, numbers in TELLINGS:
        told = _tell(_plain(figure.get_suptitle()), panels, keys, most, numbers)
        if len(told) <= LONGEST:
            return told or "An empty picture."
    return told[:LONGEST - 1].rstrip() + "…"


def _tell(heading, panels, keys, most, numbers):
    sentences = [heading] if heading else []
    titles = [panel["title"] for panel in panels]
    several = len(panels) > 1
    if several:
        named = _listed(_once(titles), most)
        sentences.append(f"{len(panels)} panels" + (f": {named}" if named else ""))
    else:
        sentences += filter(None, titles)
    if warnings := _once(warning for panel in panels for warning in panel["warnings"]):
        sentences.append("; ".join(warnings))
    drawn = [_in_turn([panel[what] for panel in panels]) for what in ("marks", "labels", "scale")]
    drawn = "; ".join(filter(None, drawn))
    sentences += [drawn[0].upper() + drawn[1:]] if drawn else []  # titles stay as they are
    for name, told in (("Rows", [_rows(panel["rows"], most, numbers) for panel in panels]),
                       ("Columns", [_listed(panel["columns"], most) for panel in panels]),
                       ("Key", [_listed(panel["key"], most) for panel in panels]),
                       ("Written in it", [_listed(_worded(panel["texts"], numbers), most) for panel in panels])):
        told = [(title, text) for title, text in zip(titles, told, strict=True) if text]
        if len({text for _, text in told}) > 1:  # the panels differ
            text = "; ".join(f"{title}: {text}" if title else text for title, text in told[:most])
            if len(told) > most:
                text += f"; and {len(told) - most} more"
        else:
            text = told[0][1] if told else ""
        if text:
            sentences.append(f"{name}: {text}")
    if keys:
        sentences.append(f"Key: {_listed(_once(keys), most)}")
    return " ".join(_sentence(text) for text in sentences)


def _sentence(text):
    return text + ("" if text.endswith((".", "?", "!")) else ".")


def _listed(names, most):
    rest = len(names) - most
    apart = "; " if any(re.search("[,;]", name) for name in names) else ", "
    return apart.join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _in_turn(told):
    """What is told of each panel, in their order; once if it is the same."""
    return ", then ".join(text for text, _ in groupby(told) if text)


def _worded(texts, numbers):
    return [text for text in texts if numbers or LETTER.search(text) and not NUMBER.match(text)]


def _rows(rows, most, numbers):
    """"one (training: 36; 43 s)": `rows` are [(name, [(entry of the key or "", text), ...]), ...]."""
    told = []
    for name, texts in rows:
        of_parts = [(part, _worded([text for _, text in those], numbers)) for part, those in
                    groupby(texts, key=lambda pair: pair[0])]
        inside = [f"{part}: {', '.join(those)}" if part else ", ".join(those) for part, those in of_parts if those]
        told.append(f"{name} ({'; '.join(inside)})" if inside else name)
    return _listed(told, most)


# ---------------------------------------------------------------- one panel


def _panel(ax):
    title = _plain(" ".join(filter(None, (ax.get_title(loc=side) for side in ("left", "center", "right")))))
    rows, columns = _names(ax.yaxis), _names(ax.xaxis)
    texts = [text for text in ax.texts if text.get_visible() and _plain(text.get_text())]
    beside = {place: [] for place, _ in rows}  # what stands in or beside a named row belongs to it
    others = []
    for text in texts:
        place = _row_of(text, ax, beside)
        (others if place is None else beside[place]).append(text)
    told = [_plain(text.get_text()) for text in others]
    warnings = [text for text in told if text.startswith("SYNTHETIC DATA")]
    legend = ax.get_legend()
    *most, last = _kinds(ax) or [""]
    x, y = (_label(ax, side) for side in "xy")
    logs = [side for side in "xy" if _label(ax, side) and getattr(ax, f"get_{side}scale")() == "log"]
    return {
        "title": title,
        "marks": f"{', '.join(most)} and {last}" if most else last,
        "labels": f"{y} against {x}" if x and y else f"across: {x}" if x else f"upwards: {y}" if y else "",
        "scale": {0: "", 1: f"{''.join(logs)} axis logarithmic", 2: "both axes logarithmic"}[len(logs)],
        "rows": [(name, [(_part(_patch_under(text, ax), ax), _plain(text.get_text()))
                         for text in sorted(beside[place], key=lambda text: _anchor(text, ax)[0])])
                 for place, name in rows],
        "columns": [name for _, name in columns],
        "key": _once(_plain(text.get_text()) for text in legend.get_texts()) if legend else [],
        "texts": [text for text in _once(told) if text not in warnings],
        "warnings": warnings,
    }


def _label(ax, side):
    """Of the x or y axis; where panels share one axis, only the outer one has it written."""
    joined = getattr(ax, f"get_shared_{side}_axes")().get_siblings(ax)
    labels = [getattr(each, f"get_{side}label")() for each in (ax, *joined) if ax.axison]
    return next(filter(None, map(_plain, labels)), "")


def _names(axis):
    """[(place, name)] of the ticks that have names in place of numbers, as rows of bars have."""
    if not axis.get_visible() or not isinstance(axis.get_major_locator(), FixedLocator):
        return []
    places = axis.get_ticklocs()
    ticks = zip(places, map(_plain, axis.get_major_formatter().format_ticks(places)), strict=True)
    named = [(float(place), name) for place, name in ticks if name]
    return [] if all(NUMBER.match(name) for _, name in named) else named


def _row_of(text, ax, places):
    """The row that a text stands in. Notes of the whole picture are placed by other units than the data's."""
    if not places or getattr(text, "xycoords", "data") != "data":
        return None
    if not hasattr(text, "xycoords") and text.get_transform() not in (ax.transData, ax.get_yaxis_transform()):
        return None
    _, y = _anchor(text, ax)
    nearest = min(places, key=lambda place: abs(place - y))
    return nearest if abs(nearest - y) <= 0.45 or _patch_under(text, ax) else None  # a row may have several lanes


def _anchor(text, ax):
    x, y = text.xy if hasattr(text, "xycoords") else text.get_position()  # of an annotation, or of a text
    return ax.convert_xunits(x), ax.convert_yunits(y)  # dates, and names of categories


def _patch_under(text, ax):
    """The bar or box that a text is written in, or None."""
    x, y = _anchor(text, ax)
    return next((patch for patch in ax.patches if isinstance(patch, Rectangle)
                 and patch.get_data_transform() == ax.transData
                 and patch.get_bbox().fully_contains(x, y)), None)


def _part(patch, ax):
    """What the key says of the colour of a bar or box: a number in a bar of many parts says nothing without it."""
    legends = [legend for legend in (ax.get_legend(), *ax.figure.legends) if legend]
    key = {to_hex(handle.get_facecolor()): _plain(text.get_text()) for legend in legends
           for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True)
           if isinstance(handle, Patch)}
    colours = [to_hex(colour) for colour in (patch.get_facecolor(), patch.get_edgecolor())] if patch else []
    return next((key[colour] for colour in colours if colour in key), "")


# ---------------------------------------------------------------- kinds of marks


def _kinds(ax):
    errors = [each for each in ax.containers if isinstance(each, ErrorbarContainer)]
    caps = {id(line) for each in errors for line in each.lines[1]}
    lines = [line for line in ax.lines if line.get_visible() and id(line) not in caps and len(line.get_xdata())]
    curves = [line for line in lines if line.get_linestyle() not in ("None", "none", "", " ")
              and line.get_transform() == ax.transData and len(line.get_xdata()) > 1]
    dots = [line for line in lines if line.get_marker() not in ("None", "none", "", " ", None, "_", "|")]
    bars = [each for each in ax.containers if isinstance(each, BarContainer)]
    in_bars = {id(bar) for each in bars for bar in each.patches}
    others = [patch for patch in ax.patches if id(patch) not in in_bars]
    shapes = [patch for patch in others if patch.get_data_transform() == ax.transData]
    arrows = [text.arrow_patch.get_arrowstyle() for text in ax.texts if getattr(text, "arrow_patch", None)]
    heads = [arrow for arrow in arrows if getattr(arrow, "arrow", "->") != "-"]
    there = {
        "an image": _any(ax.images, AxesImage),
        "a map of coloured cells": _any(ax.collections, QuadMesh),
        "horizontal bars": any(each.orientation == "horizontal" for each in bars),
        "upright bars": any(each.orientation == "vertical" for each in bars),
        "coloured boxes": _any(shapes, (Rectangle, FancyBboxPatch)),
        "shapes": any(not isinstance(shape, (Rectangle, FancyBboxPatch)) for shape in shapes),
        "a line" if len(curves) == 1 else f"{len(curves)} lines": curves,
        "points": dots or _any(ax.collections, PathCollection),
        "error bars": errors,
        "segments": not errors and _any(ax.collections, LineCollection),
        "shaded areas": len(others) > len(shapes) or _any(ax.collections, PolyCollection),
        "arrows": heads,
        "connections": len(arrows) > len(heads),
    }
    return [kind for kind, found in there.items() if found]


def _any(artists, kind):
    return any(isinstance(artist, kind) for artist in artists)


def _plain(text):
    """In one line, without matplotlib's escaped dollars."""
    return re.sub(r"\s+", " ", str(text).replace(r"\$", "$")).strip()


def _once(names):
    return list(dict.fromkeys(name for name in names if name))
