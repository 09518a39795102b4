"""Lesson 13b: what stands around FSDP2 changes, and a model that is to fit.

`in_use` is the JSON of lessons/l13b_fsdp2/shard_in_use.py, `results` that of fit.py.
"""

import math

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course import memory
from course.compare import FEWEST, NOT_SHOWN, ratio
from course.lesson import some
from course.plots.style import COLOURS, PARTS, key_below, stacked
from course.predict import checkpoints

IN_USE = {"fsdp": "FSDP2", "mixed": "FSDP2, 16 bits", "recomputed": "FSDP2, recomputed", "hsdp": "HSDP"}
NEEDED = {"parameters": PARTS["parameters"], "optimizer state": PARTS["optimizer state"],
          "all other tensors, at most at one time": COLOURS[1]}

# ------------------------------------------------------------------------------------------------ tables


def messages(in_use: dict, way: str, rank: int = 0) -> list[dict]:
    """What a rank sends in a step, a row for each collective, without the loss, which is one number."""
    return [row for row in in_use["ways"][way]["ranks"][rank]["sent"] if row["bytes"] > 100]


def beside(in_use: dict, way: str) -> list[dict]:
    """A row for each thing that may change between FSDP2 and this way: of rank 0, and how far it is off."""
    def column(name):
        result = in_use["ways"][name]
        counted = result["ranks"][0]
        return {f"{part}, bytes": f"{counted['held'][part]:,} {counted['types'].get(part, '')}" for part in PARTS} | {
            "most tensors at one time, bytes": f"{counted['alive']:,}",
            "sent in a step, bytes": f"{sum(row['bytes'] for row in messages(in_use, name)):,}",
            "operations in a step": f"{counted['operations'] / 1e6:,.0f} million",
            "first gradient, off by": f"{result['gradient_off']:.1e} of its length",
            "what training changed in the weights, off by": f"{result['change_off']:.1e} of its length"}
    plain, other = column("fsdp"), column(way)
    return [{"of rank 0": part, IN_USE["fsdp"]: plain[part], IN_USE[way]: other[part]} for part in plain]


def recomputed(in_use: dict, shape: memory.Transformer) -> tuple[float, float]:
    """What recomputing adds to the operations of a step, a share of them: counted, and from the sizes of the matrices.

    The output layer is not made again, nor a block's last product, `down`: nothing in backward needs its output.
    """
    plain, again = (in_use["ways"][way]["ranks"][0]["operations"] for way in ("fsdp", "recomputed"))
    down = 4 * shape.hidden**2  # products for a token
    of_a_block = 12 * shape.hidden**2 + 2 * shape.sequence * shape.hidden
    forward = shape.layers * of_a_block + shape.hidden * shape.vocabulary
    return again / plain - 1, shape.layers * (of_a_block - down) / (3 * forward)


def crossing(in_use: dict, way: str) -> int:
    """Bytes of a step that go from node to node, of all ranks: two ranks a node, and rings in the order of ranks."""
    total = 0
    for rank in range(in_use["world_size"]):
        for row in messages(in_use, way, rank):
            following = row["ranks"][(row["ranks"].index(rank) + 1) % len(row["ranks"])]
            total += row["bytes"] * (following // 2 != rank // 2)
    return total


def deltas(in_use: dict) -> dict[str, tuple[float, float]]:
    """{call: (seconds that it takes from training, seconds from its return until the checkpoint is whole)}."""
    timed = in_use["timed"]
    return {"save": (timed["save"], 0), "async_save": (timed["async_save"] + timed["slower"],
                                                       timed["until whole"] - timed["async_save"])}


def held_up(in_use: dict, between: float) -> list[dict]:
    """A row for each way to write a checkpoint: what it takes from training, and what becomes of lesson 11's interval.

    `between`: mean seconds between two failures. One that comes before the checkpoint is whole goes back by an interval
    more: of all failures, on average by as long as that takes.
    """
    timed, rows = in_use["timed"], []
    for call, (delta, late) in deltas(in_use).items():
        best = math.sqrt(2 * delta * between)
        lost = checkpoints.lost(best, delta, between, late)
        rows.append({"": f"{call}, {timed['bytes'] / 1e6:.0f} MB", "training waits, ms": f"{1000 * timed[call]:.0f}",
                     "and is slower by, ms": f"{1000 * (delta - timed[call]):.0f}",
                     "δ: both, ms": f"{1000 * delta:.0f}",
                     "whole after the return, ms": f"{1000 * late:.0f}", "best interval, s": f"{best:.0f}",
                     "lost, %": f"{100 * sum(lost.values()):.2f}"})
    return rows


def meanwhile(in_use: dict) -> str:
    """How long each call holds training up, and how long training went on while a checkpoint was written."""
    timed = in_use["timed"]
    held = ratio(timed["rounds"]["async_save"], timed["rounds"]["save"])
    return (f"The time that training waits for `async_save`, divided by that for `save`: {held}. Training went on "
            f"meanwhile, for {some(round(timed['steps']), 'step')}, and shared its cores with the writer."
            + f" {NOT_SHOWN}" * (held.pairs >= FEWEST and held.high >= 1))


# ------------------------------------------------------------------------------------------------ pictures


def needed(result: dict) -> dict[str, int]:
    """{part: bytes} of the rank that needs the most."""
    return max(({"parameters": each["held"]["parameters"], "optimizer state": each["held"]["optimizer state"],
                 "all other tensors, at most at one time": each["alive"]} for each in result["ranks"]),
               key=lambda parts: sum(parts.values()))


def named(results: dict) -> tuple[str, dict[str, str]]:
    """(whose choice it is, {way: how tables and pictures call it})."""
    whose = "our" if results["choice"].startswith("lessons/") else "your"
    return whose, {"fsdp": "FSDP2", "mixed": "16 bits", "recomputed": "all recomputed", "mine": f"{whose} choice"}


def fitted(results: dict) -> Figure:
    """What a rank needs in each way, the limit, and what the choice predicted."""
    whose, ways = named(results)
    fig, ax = plt.subplots(figsize=(15, 6))
    bars = [{part: size / 1e6 for part, size in needed(results["ways"][way]).items()} for way in ways]
    bars.append({"predicted": max(results["ways"]["mine"]["predicted"]) / 1e6})
    colours = NEEDED | {"predicted": COLOURS[1]}
    key = stacked(ax, [*ways.values(), f"{whose} prediction"], bars, colours, "MB a rank", predicted={len(ways)})
    key.pop("predicted")
    key_below(fig, key)
    for y, parts in enumerate(bars):  # beside the axes: at the bars' ends the line of the limit would go through it
        ax.text(1.02, y, f"{sum(parts.values()):.1f} MB", va="center", fontweight="bold",
                transform=ax.get_yaxis_transform())
    ax.axvline(results["limit"] / 1e6, color="black", linewidth=3)
    ax.text(results["limit"] / 1e6, -0.62, f" {results['limit'] / 1e6:g} MB: the limit ", va="bottom", ha="center",
            fontweight="bold")
    ax.set_title("What a rank needs: measured, and the choice's prediction", pad=38)
    return fig


def costs(results: dict) -> list[dict]:
    """A row for each way: what it adds to the operations of a step, what it sends, and how far it is off."""
    _, ways = named(results)
    plain = results["ways"]["fsdp"]["ranks"][0]["operations"]
    return [{"": name, "needs, MB": f"{sum(needed(results['ways'][way]).values()) / 1e6:.1f}",
             "operations added": f"{results['ways'][way]['ranks'][0]['operations'] / plain - 1:.0%}",
             "sent in a step, bytes": f"{sum(row['bytes'] for row in messages(results, way)):,}",
             "what training changed in the weights, off by": f"{results['ways'][way]['change_off']:.0e} of its length"}
            for way, name in ways.items()]
