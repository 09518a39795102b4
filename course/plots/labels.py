"""Texts beside points, each where it covers no line and no other text."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from course.plots.style import darker, halo

# Where a text may stand beside its point, best first: offset in points, and which side of the text is there.
BESIDE_AN_END = [(12, dy, "left", "center") for dy in sorted(range(-250, 251, 5), key=abs)]
BESIDE_AN_END += [(0, 14, "center", "bottom"), (0, -14, "center", "top")]
BESIDE_A_POINT = [
    (0, 10, "center", "bottom"), (0, -12, "center", "top"), (12, 0, "left", "center"), (-12, 0, "right", "center"),
    (10, 8, "left", "bottom"), (10, -8, "left", "top"), (-10, 8, "right", "bottom"), (-10, -8, "right", "top"),
    (0, 30, "center", "bottom"), (0, -32, "center", "top"), (0, 50, "center", "bottom"), (0, -52, "center", "top"),
]


def write_beside(ax: Axes, notes: list[tuple[float, float, str, str]], places: list[tuple]) -> None:
    """Writes each (x, y, text, colour) beside its point, where it covers no other text, no line, and fits best."""
    style = {"textcoords": "offset points", "fontsize": 16, "fontweight": "bold", "linespacing": 1.0,
             "path_effects": halo(), "annotation_clip": False}
    texts = [ax.annotate(text, (x, y), (0, 0), color=darker(colour), **style) for x, y, text, colour in notes]
    for _ in range(2):  # placing them makes the axes shrink for what stands outside; then they are placed for good
        ax.figure.canvas.figure.draw_without_rendering()
        drawn, frame = _pixels_of_lines(ax), ax.get_window_extent()
        written = [text.get_window_extent() for text in ax.texts if text not in texts]
        for text in sorted(texts, key=lambda text: -text.xy[1]):  # from the top down, as a list reads
            extent = text.get_window_extent()
            boxes = [_box_at(text, extent, place) for place in places]
            costs = [_cost(box, drawn, written, frame) + i for i, box in enumerate(boxes)]
            best = int(np.argmin(costs))
            dx, dy, ha, va = places[best]
            text.set(position=(dx, dy), ha=ha, va=va)
            written.append(boxes[best])


def _box_at(text, extent: Bbox, place: tuple) -> Bbox:
    """The pixels that a text of this extent takes at a place."""
    dx, dy, ha, va = place
    point = text.figure.dpi / 72
    x, y = text.axes.transData.transform(text.xy) + np.array([dx, dy]) * point
    left = x - extent.width * {"left": 0, "center": 0.5, "right": 1}[ha]
    bottom = y - extent.height * {"bottom": 0, "center": 0.5, "top": 1}[va]
    return Bbox.from_bounds(left, bottom, extent.width, extent.height).padded(1)


def _pixels_of_lines(ax: Axes) -> np.ndarray:
    """Points about 4 pixels apart along every line of the axes."""
    pieces = [np.empty((0, 2))]
    for line in ax.lines:
        path = ax.transData.transform(np.column_stack(line.get_data(orig=False)).astype(float))
        pieces.append(path[np.isfinite(path).all(axis=1)])
        for a, b in zip(path, path[1:], strict=False) if line.get_linestyle() != "None" else []:
            if np.isfinite([a, b]).all():
                pieces.append(np.linspace(a, b, 2 + int(np.hypot(*(b - a)) // 4)))
    return np.concatenate(pieces)


def _cost(box: Bbox, drawn: np.ndarray, written: list[Bbox], frame: Bbox) -> float:
    hidden = np.all((drawn > box.min) & (drawn < box.max), axis=1).sum()
    clashes = sum(box.overlaps(other) for other in written)
    outside = max(0, box.y1 - frame.y1, frame.y0 - box.y0) / box.height + (box.x0 < frame.x0)
    return hidden + 1000.0 * clashes + 30.0 * outside
