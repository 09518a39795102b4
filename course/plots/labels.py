"""Texts beside points, each where it covers no line and no other text."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

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
    """Write each (x, y, text, colour) of `notes` beside its point, at the place that covers no text and no line.

    `places`: BESIDE_A_POINT and its like, best first.
    """
    style = {"textcoords": "offset points", "fontsize": 16, "fontweight": "bold", "linespacing": 1.0,
             "path_effects": halo(), "annotation_clip": False}
    texts = [ax.annotate(text, (x, y), (0, 0), color=darker(colour), **style) for x, y, text, colour in notes]

    def box_at(text, place):
        dx, dy, ha, va = place
        text.set(position=(dx, dy), ha=ha, va=va)
        return text.get_window_extent().padded(1)

    def cost(box):
        hidden = box.count_contains(points) + sum(path.intersects_bbox(box, filled=False) for path in paths)
        clashes = sum(box.overlaps(other) for other in written)
        outside = max(0, box.y1 - frame.y1, frame.y0 - box.y0) / box.height + (box.x0 < frame.x0)
        return 8 * hidden + 1000 * clashes + 30 * outside

    for _ in range(2):  # placing them makes the axes shrink for what stands outside; then they are placed for good
        ax.figure.canvas.figure.draw_without_rendering()
        frame = ax.get_window_extent()
        drawn = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
        points = np.concatenate([path.vertices for path in drawn])
        paths = [path for path, line in zip(drawn, ax.lines, strict=True) if line.get_linestyle() != "None"]
        paths += [bar.get_transform().transform_path(path) for bar in ax.collections
                  if isinstance(bar, LineCollection) for path in bar.get_paths()]
        written = [text.get_window_extent() for text in ax.texts if text not in texts]
        for text in sorted(texts, key=lambda text: -text.xy[1]):  # from the top down, as a list reads
            costs = [cost(box_at(text, place)) + i for i, place in enumerate(places)]
            written.append(box_at(text, places[np.argmin(costs)]))
