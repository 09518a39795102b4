"""Lesson 13: what the ways of sharing out a model trained and held, and which rank has which piece.

`results` is the JSON of lessons/l13_beyond_ddp/shard_model.py, `zero1` that of shard_optimizer.py. Predictions are
those of course/memory.py.
"""

from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter

from course.compare import ratio
from course.plots.style import (
    COLOURS,
    GREY,
    PARTS,
    ROOM,
    bare,
    colour_of,
    handles,
    key_below,
    name_rows,
    stacked,
    write_in,
)
from course.plots.timelines import one_below_another

SHARED = "#D9D9D9"  # by all ranks
NAMES = {"one": "one process", "ddp": "DDP", "zero1": "ZeRO-1", "fsdp": "FSDP2", "tp": "TP", "fsdp_tp": "FSDP2 × TP",
         "gpipe": "pipeline, GPipe", "1f1b": "pipeline, 1F1B", "mine": "pipeline, your order"}
COLLECTIVES = dict(zip(("all_reduce", "broadcast", "reduce_scatter", "all_gather", "other"),
                       [*(COLOURS[i] for i in (6, 1, 4, 3)), GREY], strict=True))

# ------------------------------------------------------------------------------------------------ tables


def held(results: dict, way: str) -> list[dict]:
    """A row for each part of the memory: bytes in one process, on one rank of DDP, and on each rank of this way."""
    ranks, alone, ddp = (results["ways"][name]["ranks"] for name in (way, "one", "ddp"))
    return [{"bytes": part, "one process": f"{alone[0][part]:,}", "DDP, each rank": f"{ddp[0][part]:,}"}
            | {f"{NAMES[way]}, rank {rank}": f"{of_rank[part]:,}" for rank, of_rank in enumerate(ranks)}
            for part in PARTS]


def sharded(zero1: dict) -> dict[str, str]:
    """{way: its name}, which says whose MyZero it is."""
    whose = "ours" if zero1["optimizer"].startswith("lessons/") else "yours"
    return {"ddp": "DDP", "zero1": "PyTorch's ZeRO-1", "mine": f"MyZero ({whose})"}


def sharded_optimizers(zero1: dict) -> list[dict]:
    """A row a way: how far off it trains, what its optimizer keeps on each rank, what it sends, how long it takes."""
    rows = []
    for way, name in sharded(zero1).items():
        of_way = zero1["ways"][way]
        rows.append({"": name, "weights off by": f"{of_way['weights_off']:.0e}"} | {
            f"optimizer state of rank {rank}, bytes": f"{held['optimizer state']:,}"
            for rank, held in enumerate(of_way["ranks"])} | {
            "messages": " + ".join(f"{row['calls']} {row['collective']}" for row in sent(of_way)),
            "rank 0 sends, bytes": f"{sum(row['bytes'] for row in sent(of_way)):,}",
            "a step, ms (all rounds)": f"{median(of_way['ms']):.0f} ({min(of_way['ms']):.0f} to "
                                       f"{max(of_way['ms']):.0f})"})
    return rows


def as_fast(zero1: dict, other: str) -> str:
    """How long MyZero's step takes beside another way's."""
    compared = ratio(*(zero1["ways"][way]["ms"] for way in ("mine", other)))
    return f"The time of a step with MyZero, divided by that with {sharded(zero1)[other]}: {compared}."


def pipelines(results: dict, whose: str) -> dict[str, str]:
    """{way: its name}, which says whose order it is."""
    return {"gpipe": "PyTorch's GPipe", "1f1b": "PyTorch's 1F1B", "mine": f"{whose} order"}


def waiting(events: list[dict]) -> tuple[float, float]:
    """(how long a step takes, the share of it in which a rank computes nothing)."""
    end, ranks = max(event["end"] for event in events), len({event["rank"] for event in events})
    return end, 1 - sum(event["end"] - event["start"] for event in events) / (ranks * end)


def bubbles(results: dict, computed: dict[str, list[dict]], whose: str) -> list[dict]:
    """A row for each pipeline: its bubble, computed and measured, and the activations that its ranks keep."""
    rows = []
    for way, name in pipelines(results, whose).items():
        milliseconds, waits = waiting(results["ways"][way]["timeline"])
        rows.append({"": name, "waits, computed": f"{waiting(computed[way])[1]:.0%}", "waits, measured": f"{waits:.0%}",
                     "a step, ms": f"{milliseconds:.0f}",
                     "weights off by": f"{results['ways'][way]['weights_off']:.0e}"} | {
            f"rank {rank} keeps, bytes": f"{held['activations']:,}"
            for rank, held in enumerate(results["ways"][way]["ranks"])})
    return rows


def sent(counted: dict) -> list[dict]:
    """What a rank sends in a step, a row for each collective, without the loss, which is one number."""
    return [row for row in counted["sent"] if row["bytes"] > 100]


# ------------------------------------------------------------------------------------------------ pictures


def bars_of_ranks(axes, panels, ways: dict, names: dict) -> None:
    """The bytes that each rank was counted to hold, a thin bar a rank; on each of the axes some of the parts."""
    y, places = 0, []
    for way in names:
        ranks = ways[way]["ranks"][:1] if way == "one" else ways[way]["ranks"]
        places.append(y + (len(ranks) - 1) / 2)
        for row, of_rank in enumerate(ranks):
            for ax, panel in zip(axes, panels, strict=True):
                parts = [part for part in panel if of_rank[part]]
                sizes = np.array([of_rank[part] for part in parts]) / 1e6
                ax.barh(y + row, sizes, 0.9, sizes.cumsum() - sizes, color=[PARTS[part] for part in parts],
                        edgecolor="white")
                ax.text(sizes.sum(), y + row, f" {sizes.sum():.2f}", va="center", fontsize=15)
        y += len(ranks) + 0.7
    for ax in axes:
        name_rows(ax, list(names.values()), places, bottom=y - 1)
        ax.margins(x=0.13)
        ax.set_xlabel("MB a rank")


def kept(results: dict) -> Figure:
    """The bytes that each rank holds; model states on the left, activations on the right."""
    fig, axes = plt.subplots(1, 2, figsize=(18, 8), width_ratios=[3, 2])
    panels = [part for part in PARTS if part != "activations"], ["activations"]
    bars_of_ranks(axes, panels, results["ways"], {way: NAMES[way] for way in results["ways"]})
    axes[1].tick_params(labelleft=False)
    axes[0].set_title(f"Model states, {results['world_size']} ranks: a bar each")
    axes[1].set_title("Activations")
    key_below(fig, PARTS)
    return fig


def zero1_beside_pytorch(zero1: dict) -> Figure:
    """What each rank holds, what rank 0 sends in a step, and how long a step takes: DDP, PyTorch's ZeRO-1, MyZero."""
    fig, axes = plt.subplots(1, 3, figsize=(20, 6.5), width_ratios=[4, 4, 3])
    names, states = sharded(zero1), list(PARTS)[:3]
    bars_of_ranks(axes[:1], [states], zero1["ways"], names)
    axes[0].set_title(f"Held: a bar for each of {zero1['world_size']} ranks")
    axes[0].legend(handles=handles({part: PARTS[part] for part in states}), loc="upper left", ncols=3, frameon=False,
                   bbox_to_anchor=(-0.35, -0.16), handlelength=1, columnspacing=1)
    bars = []
    for way in names:
        sizes = {}
        for row in sent(zero1["ways"][way]):
            known = row["collective"] if row["collective"] in COLLECTIVES else "other"
            sizes[known] = sizes.get(known, 0) + row["bytes"] / 1e6
        bars.append(sizes)
    used = stacked(axes[1], list(names.values()), bars, COLLECTIVES, "MB a step", "MB")
    axes[1].set_title("Sent by rank 0, in a ring")
    axes[1].legend(handles=handles(used), loc="upper left", ncols=2, frameon=False, bbox_to_anchor=(-0.1, -0.16))
    for y, way in enumerate(names):
        ms = zero1["ways"][way]["ms"]
        axes[2].plot([min(ms), max(ms)], [y, y], color=GREY, linewidth=9, solid_capstyle="butt")
        axes[2].plot(median(ms), y, "o", color="black", markersize=14)
        axes[2].annotate(f"{median(ms):.0f}", (median(ms), y), (0, 14), textcoords="offset points", ha="center",
                         fontweight="bold")
    name_rows(axes[2], list(names.values()))
    axes[2].set(xlabel="ms a step: median, all rounds", title="Time", xlim=(0, None))
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)
    return fig


def pieces(results: dict, names: list[str]) -> Figure:
    """Which rank has which piece of each of the weights `names` (columns), under each way (rows). Drawn to scale."""
    ways, shapes = list(results["ways"]), [results["shapes"][name] for name in names]
    tallest = max(shape[0] for shape in shapes)
    fig, axes = plt.subplots(len(ways), len(names), figsize=(3.4 * len(names) + 2, 0.6 + 2.5 * len(ways)),
                             width_ratios=[max(shape[1], tallest / 3) for shape in shapes], squeeze=False)
    for row, way in zip(axes, ways, strict=True):
        for ax, name, (height, width) in zip(row, names, shapes, strict=True):
            of_ranks = results["ways"][way]["pieces"][name]
            holders = {}
            for rank, piece in enumerate(of_ranks):
                if piece and piece["first"]:
                    holders.setdefault((*piece["first"], *piece["shape"]), []).append(rank)
            for (top, left, rows, columns), ranks in holders.items():
                all_have_it = len(ranks) == len(of_ranks) > 1
                colour = SHARED if all_have_it else colour_of(ranks[0])
                ax.add_patch(Rectangle((left, top), columns, rows, facecolor=colour, edgecolor="white", linewidth=3))
                label = "all" if all_have_it else " ".join(map(str, ranks))
                write_in(ax, left + columns / 2, top + rows / 2, label, colour)
            ax.set(xlim=(-2, width + 2), ylim=(height + 2, -2), xticks=[], yticks=[], aspect="equal")
            bare(ax)
            if ax in axes[0]:
                ax.set_title(f"{name.removesuffix('.weight').replace('blocks.', 'block ').replace('.', ' ')}\n"
                             f"{height} × {width}", fontsize=16, loc="center")
        row[0].set_ylabel(NAMES[way], rotation=0, ha="right", va="center", fontweight="bold", labelpad=12)
    fig.suptitle(f"Which rank has which piece ({results['world_size']} ranks)", x=0.01, ha="left", fontweight="bold")
    return fig


def states(rows: dict, limit: float, title: str) -> Figure:
    """Predicted bytes a device, {name: {part: bytes}}, stacked and dotted, and a line at `limit` bytes."""
    fig, ax = plt.subplots(figsize=(15, 7))
    bars = [{part: size / 1e9 for part, size in parts.items() if size} for parts in rows.values()]
    key_below(fig, stacked(ax, list(rows), bars, PARTS, "GB a device (predicted)", "GB", range(len(rows))))
    narrow = ROOM * max(sum(parts.values()) for parts in bars)
    for bar in ax.patches:
        if bar.get_width() <= narrow:  # the others have theirs inside
            ax.text(bar.get_x() + bar.get_width() / 2, bar.get_y(), f"{bar.get_width():.0f}", fontsize=14, ha="center",
                    va="bottom")
    ax.axvline(limit / 1e9, color="black", linewidth=3)
    ax.text(limit / 1e9, -0.62, f" {limit / 1e9:.0f} GB: a device ", va="bottom", ha="center", fontweight="bold")
    ax.set_title(title, pad=38)
    return fig


def orders(steps: dict[str, list[dict]], unit: str) -> Figure:
    """{title: events of a pipeline}: what each rank did, one below the other on one axis of time in `unit`."""
    axes = one_below_another({f"{title}: a number is a micro-batch": pd.DataFrame(events)
                              for title, events in steps.items()})
    axes[-1].set_xlabel(unit)
    return axes[0].figure


def short(number: float) -> str:
    """"70 B" for 70e9."""
    return EngFormatter()(float(f"{number:.3g}")).replace("G", "B")
