"""Lesson 13: what the ways of sharing out a model trained and held, and what the model of the memory says.

`found` is the JSON of scripts/lessons/shard_model.py. A way that this torch lacks is told as such.
"""

from course.plots.sharded import NAMES, PARTS
from course.predict import memory


def working(found):
    """{way: what was found of it}, of those that this torch has."""
    return {way: result for way, result in found["ways"].items() if "unsupported" not in result}


def trained(found):
    """A row for each way but the one process, with which it is compared."""
    return [{"way": NAMES[way], "last loss": "–", "loss off by": "–", "weights off by": result["unsupported"]}
            if "unsupported" in result else
            {"way": NAMES[way], "last loss": f"{result['losses'][-1]:.4f}", "loss off by": f"{result['loss_off']:.0e}",
             "weights off by": f"{result['weights_off']:.0e}"} for way, result in found["ways"].items() if way != "one"]


def farthest(found):
    """The largest difference of any weight from that of the one process."""
    return max(result["weights_off"] for result in working(found).values())


def held(found, way):
    """A row for each part of the memory: bytes in one process, on one rank of DDP, and on each rank of this way."""
    if way not in working(found):
        return [{"way": NAMES[way], "this torch says": found["ways"][way]["unsupported"]}]
    ranks, alone, ddp = (found["ways"][name]["ranks"] for name in (way, "one", "ddp"))
    return [{"bytes": part, "one process": f"{alone[0][part]:,}", "DDP, each rank": f"{ddp[0][part]:,}"}
            | {f"{NAMES[way]}, rank {rank}": f"{one[part]:,}" for rank, one in enumerate(ranks)}
            for part in PARTS]


def share(found, way, part):
    """How much of the one process's bytes rank 0 holds, in percent; None where this torch lacks the way."""
    if way not in working(found):
        return None
    return 100 * found["ways"][way]["ranks"][0][part] / found["ways"]["one"]["ranks"][0][part]


def waited(found):
    """{way: the share of its time in which a rank of the pipeline computed nothing, in percent}."""
    shares = {}
    for way, result in working(found).items():
        if events := result["timeline"]:
            end, ranks = max(event["end"] for event in events), len({event["rank"] for event in events})
            shares[NAMES[way]] = 100 * (1 - sum(event["end"] - event["start"] for event in events) / (ranks * end))
    return shares


def bubbles(found):
    """A row for each schedule: the bubble of the equation, and the waiting that was measured."""
    counted = memory.bubble(found["world_size"], found["micro_batches"])
    return [{"schedule": name, "by the equation": f"{counted:.0%}", "measured": f"{share:.0f}%"}
            for name, share in waited(found).items()]


def against(found, shape):
    """A row for each way: all bytes of all ranks, counted and predicted, and the farthest that any rank's part is off.

    `shape`: the Transformer that was trained. Each rank has trained the one process's way; one of them counts.
    """
    rows = []
    for way, result in working(found).items():
        predicted = memory.count(shape, way, found["world_size"], found["batch"], found["micro_batches"])
        ranks = list(zip(result["ranks"], predicted, strict=True))[:1 if way == "one" else None]
        pairs = [(counted[part], one[part]) for counted, one in ranks for part in PARTS]
        counts, predictions = zip(*pairs, strict=True)
        rows.append({"way": NAMES[way], "counted, bytes": f"{sum(counts):,}",
                     "predicted, bytes": f"{sum(predictions):,}",
                     "farthest off": f"{max(abs(count - one) for count, one in pairs):,}"})
    return rows


def limits(found):
    """A row for each mistake that was tried, and what PyTorch said."""
    return [{"tried": tried, "PyTorch says": said or "it works in this version"}
            for tried, said in found["limits"].items()]


def plans(chosen, fits):
    """A row for each way that fits, and which one is to be taken."""
    if not fits:
        return [{"way": "none", "GB a device": "–", "seconds a step": "–", "": "nothing fits: take more devices"}]
    return [{"way": way, "GB a device": f"{sum(plan.bytes.values()) / 1e9:.0f}",
             "seconds a step": f"{plan.seconds:.2f}", "": "take this" if plan is chosen else ""}
            for way, plan in fits.items()]
