"""What a step of several ranks is made of: parts that lessons/l08_predict_scaling/step_time.py timed in the same
rounds."""

import numpy as np
import pandas as pd

PARTS = ["a step alone", "slower together", "waiting", "all-reduce", "DDP itself"]


def parts(points):
    """A row for each batch size and round: the PARTS in seconds, their `sum`, and `ddp`, which the sum should be; also
    `side_by_side`, a step of ranks that never talk.

    `points` of the ways alone, side_by_side, by_hand, silent and ddp. A part is the difference of two measurements, so
    noise can make a small one less than 0. It stays so: what is cut off here would be missing in the sum.
    """
    rounds = {(point["way"], point["batch_size"]): point["rounds"] for point in points}
    rows = []
    for batch in dict.fromkeys(point["batch_size"] for point in points):
        of_ways = [rounds[way, batch] for way in ("alone", "side_by_side", "by_hand", "silent", "ddp")]
        for number, (*others, by_hand) in enumerate(zip(*of_ways[:2], *of_ways[3:], of_ways[2], strict=True)):
            alone, beside, silent, ddp = (sum(phases.values()) for phases in others)
            own = sum(by_hand.values()) - by_hand["wait"] - by_hand["all_reduce"]
            values = [alone, own - alone, by_hand["wait"], by_hand["all_reduce"], silent - beside]
            rows.append({"batch_size": batch, "round": number, **dict(zip(PARTS, values, strict=True)),
                         "sum": sum(values), "ddp": ddp, "side_by_side": beside})
    return pd.DataFrame(rows)


def between(table, batch):
    """The PARTS at a batch size that lies between those of the table: on the lines that join their medians."""
    medians = table.groupby("batch_size")[PARTS].median()
    if not medians.index.min() <= batch <= medians.index.max():
        raise ValueError(f"batch {batch} is not between the batch sizes that were timed: {list(medians.index)}")
    return pd.Series({part: float(np.interp(batch, medians.index, medians[part])) for part in PARTS}, name=batch)


def speedups(table, ranks, way="ddp"):
    """Images a second of so many ranks against one rank alone, with DDP or `side_by_side`: `speedup`, and `low` and
    `high` over the rounds."""
    ratio = (ranks * table["a step alone"] / table[way]).groupby(table["batch_size"])
    return pd.DataFrame({"speedup": ratio.median(), "low": ratio.min(), "high": ratio.max()}).reset_index()
