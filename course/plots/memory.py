"""What a rank holds over the time of an update."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course.plots.style import COLOURS, GREY, head


def memory(curves: dict[str, dict], budget: float | None = None) -> list[Axes]:
    """{strategy: what course.step_memory has written of one rank}: a panel each, on one scale of MB. The time runs from
    the end of one update, 0, to the end of the next, 100 %. `budget`: bytes, a line in each panel."""
    axes = plt.subplots(len(curves), 1, figsize=(13, 1.2 + 2.4 * len(curves)), sharex=True, sharey=True,
                        squeeze=False)[1][:, 0]
    for number, (ax, (name, curve)) in enumerate(zip(axes, curves.items(), strict=True)):
        whole = curve["ms"][-1]
        times, sizes = [100 * ms / whole for ms in curve["ms"]], [size / 1e6 for size in curve["bytes"]]
        ax.fill_between(times, sizes, step="post", color=COLOURS[number], alpha=0.85)
        ax.axhline(sizes[0], color="black", linewidth=1.5, linestyle=":")
        worst = max(range(len(sizes)), key=sizes.__getitem__)
        ax.text(times[worst], 1.04 * max(sizes), f"most {max(sizes):.1f} MB", va="bottom", ha="center",
                fontweight="bold")
        ax.text(99.5, sizes[0] + 0.05 * max(sizes), f"kept {sizes[0]:.1f} MB", ha="right", va="bottom",
                bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1})
        if budget:
            ax.axhline(budget / 1e6, color=GREY, linewidth=2.5, linestyle="--")
        for kind, begin, end in curve["spans"]:
            if end - begin > 0.08 * whole:
                ax.text(50 * (begin + end) / whole, -0.03, kind, ha="center", va="top", color=GREY, fontsize=14,
                        transform=ax.get_xaxis_transform())
        head(ax, name, key=[])
        ax.set(ylabel="MB", xlim=(0, 100), ylim=(0, 1.35 * max(max(each["bytes"]) for each in curves.values()) / 1e6))
        ax.grid(axis="x", visible=False)
        ax.set_xticks([])
    axes[-1].set_xlabel("time of one update", labelpad=24)
    return list(axes)
