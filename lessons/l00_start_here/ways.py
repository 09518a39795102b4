"""Questions from the top down, each with the way to take where the answer is yes."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course.plots.style import COLOURS, GREY

LEFT, BOX, WIDTH, HEIGHT, DOWN = 3.6, 4.9, 7.6, 1.15, 1.55  # of questions and boxes, and from one row to the next


def decisions(rows: list[dict], ax: Axes | None = None, title="") -> Axes:
    """A row each with `question` (of the last one it is told what remains), `way`, `what`, `command`, `lesson` and
    `lacks`: what this machine has not, or "" where it runs there (filled)."""
    ax = ax or plt.subplots(figsize=(15, 9))[1]
    arrow = {"arrowstyle": "-|>", "linewidth": 3, "mutation_scale": 28, "color": GREY, "shrinkA": 0, "shrinkB": 0}
    for number, row in enumerate(rows):
        y, runs, last = -number * DOWN, not row["lacks"], number == len(rows) - 1
        ax.add_patch(plt.Rectangle((BOX, y - HEIGHT / 2), WIDTH, HEIGHT, linewidth=3, edgecolor=COLOURS[0],
                                   facecolor=COLOURS[0] if runs else "white"))
        ink = "white" if runs else "black"
        name = ax.text(BOX + 0.15, y + 0.24, row["way"], fontsize=19, fontweight="bold", color=ink, va="center")
        ax.annotate(f"  {row['what']}", (1, 0.5), xycoords=name, fontsize=16, color=ink, va="center")
        ax.text(BOX + 0.15, y - 0.25, row["command"], fontsize=17, family="monospace", color=ink, va="center")
        ax.text(BOX + WIDTH - 0.15, y - 0.25, row["lacks"], fontsize=16, fontweight="bold", ha="right",
                color=ink, va="center")
        ax.text(BOX + WIDTH + 0.15, y, f"lesson {row['lesson']}", fontsize=16, color=GREY, va="center")
        ax.text(LEFT / 2, y, row["question"], fontsize=17, fontweight="bold", ha="center", va="center")
        ax.annotate("", (BOX, y), (LEFT, y), arrowprops=arrow)
        if not last:
            ax.text((LEFT + BOX) / 2, y + 0.1, "yes", fontsize=17, color=GREY, ha="center", va="bottom")
            ax.annotate("", (LEFT / 2, y - DOWN + 0.45), (LEFT / 2, y - 0.45), arrowprops=arrow)
            ax.text(LEFT / 2 + 0.15, y - DOWN / 2, "no", fontsize=17, color=GREY, va="center")
    ax.set(xlim=(-0.1, BOX + WIDTH + 1.5), ylim=(-(len(rows) - 1) * DOWN - 0.7 * HEIGHT, 0.7 * HEIGHT))
    ax.set_title(title)
    ax.set_title("filled: runs on this machine", loc="right", fontsize=17, fontweight="normal", color=GREY)
    ax.axis("off")
    return ax
