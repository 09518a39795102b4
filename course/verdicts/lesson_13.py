"""Lesson 13: what the ways of sharing out a model trained and held, and what the model of the memory says.

`found` is the JSON of scripts/lessons/shard_model.py. A way that this torch lacks is told as such. `in_use` is that of
shard_in_use.py, for FSDP2 as it is used.
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


IN_USE = {"fsdp": "FSDP2", "mixed": "FSDP2, 16 bits", "recomputed": "FSDP2, recomputed", "hsdp": "HSDP"}
SENT_AS = {"fsdp": {"shards": 4}, "mixed": {"shards": 4, "gathered": 2}, "recomputed": {"shards": 4},
           "hsdp": {"shards": 2, "copies": 2}}  # of predict.memory.sent_by_fsdp


def messages(in_use, way):
    """What rank 0 sends in a step, without the loss, which is one number."""
    return [row for row in in_use["ways"][way]["ranks"][0]["sent"] if row["bytes"] > 100]


def beside(in_use, way):
    """A row for each thing that may change between FSDP2 and this way: of rank 0, and how far it is off."""
    def column(name):
        result = in_use["ways"][name]
        counted = result["ranks"][0]
        return {f"{part}, bytes": f"{counted['held'][part]:,} {counted['types'].get(part, '')}" for part in PARTS} | {
            "most tensors at one time, bytes": f"{counted['alive']:,}",
            "sent in a step, bytes": f"{sum(row['bytes'] for row in messages(in_use, name)):,}",
            "operations in a step": f"{counted['operations'] / 1e6:,.0f} million",
            "first gradient, off by": f"{result['gradient_off']:.1e} of its length",
            "any weight in the end, off by": f"{result['weights_off']:.0e}"}
    plain, other = column("fsdp"), column(way)
    return [{"of rank 0": what, IN_USE["fsdp"]: plain[what], IN_USE[way]: other[what]} for what in plain]


def sent(in_use, shape):
    """A row for each collective of each way: who takes part, and bytes that rank 0 sends, counted and predicted."""
    predicted = {way: memory.sent_by_fsdp(shape, **asked) for way, asked in SENT_AS.items()}
    return [{"way": IN_USE[way], "collective": row["collective"], "type": row["type"],
             "ranks": " ".join(map(str, row["ranks"])), "counted, bytes": f"{row['bytes']:,}",
             "predicted, bytes": f"{predicted[way][row['collective']]:,}"}
            for way in SENT_AS for row in messages(in_use, way)]


def sent_share(in_use):
    """What 16 bits leave of FSDP2's bytes, in percent."""
    mixed, plain = (sum(row["bytes"] for row in messages(in_use, way)) for way in ("mixed", "fsdp"))
    return 100 * mixed / plain


def clipped(in_use):
    """A row for one process, and for each way to clip: the norm that each rank divides by, and what came of it."""
    names = {"one": "one process", "clip": "clip", "clip_own_shards": "clip_own_shards"}
    return [{"": names[name], "type of the norm": one["type"],
             "the norm, rank by rank": "  ".join(f"{norm:.3f}" for norm in one["norms"][:1 if name == "one" else None]),
             "sent, bytes": f"{one['sent']:,}", "any weight, off by": f"{one['weights_off']:.0e}"}
            for name, one in in_use["clip"].items()]


def made_whole(in_use):
    """What it costs to make all gradients whole, beside the one number that clipping needs."""
    one = in_use["clip"]["clip"]
    return (f"Each rank sends {one['all_gathered']:,} bytes for full_tensor() of all gradients, and {one['sent']:,} "
            "for the norm.")


def went_on(in_use, loaded):
    """A row for each of the two runs: who holds what of the same weights."""
    return [{"run": name, "ranks": len(one["rows"]), "rows of the head": " ".join(map(str, one["rows"])),
             "checksum of all weights": one["checksum"], "in the end off by": off}
            for name, one, off in (("saved", in_use["saved"], "–"),
                                   ("loaded, trained on", loaded["loaded"], f"{loaded['loaded']['weights_off']:.0e}"))]


def held_up(in_use):
    """A row for each way to write a checkpoint: how long training waits, and how long until it is whole."""
    timed = in_use["timed"]
    return [{"": f"{call}, {timed['bytes'] / 1e6:.0f} MB", "training waits, ms": f"{1000 * timed[call]:.0f}",
             "compared with save": f"{timed[call] / timed['save']:.0%}",
             "whole after, ms": f"{1000 * timed[whole]:.0f}"}
            for call, whole in (("save", "save"), ("async_save", "until whole"))]


def graphs(compiled):
    """A row for each way that torch.compile was tried: its graphs, or the first line of what it said."""
    return [{"compiled": name, "graphs": str(len(one["graphs"])) if "graphs" in one else "–",
             "operations in each": " ".join(map(str, one["graphs"])) if "graphs" in one else "–",
             "gradient, off by": f"{one['off']:.0e}" if "off" in one else one["error"]}
            for name, one in compiled.items()]
