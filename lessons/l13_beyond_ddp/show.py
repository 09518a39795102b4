"""Lesson 13: what the ways of sharing out a model trained and held, and what the model of the memory says.

`found` is the JSON of lessons/l13_beyond_ddp/shard_model.py. A way that this torch lacks is told as such. `in_use` is
that of
shard_in_use.py, for FSDP2 as it is used.
"""

import math

from course.lesson import some
from course.predict import checkpoints, memory
from lessons.l13_beyond_ddp.pictures import NAMES, PARTS


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
    """How much of the one process's bytes rank 0 holds, beside a half; None where this torch lacks the way."""
    if way not in working(found):
        return None
    part_of_it = found["ways"][way]["ranks"][0][part] / found["ways"]["one"]["ranks"][0][part]
    return "half" if abs(part_of_it - 0.5) < 0.01 else "less than half" if part_of_it < 0.5 else "more than half"


def lengths(found):
    """{way: (ms of a step of the pipeline, the share of them in which a rank computed nothing)}."""
    pipelines = {}
    for way, result in working(found).items():
        if events := result["timeline"]:
            end, ranks = max(event["end"] for event in events), len({event["rank"] for event in events})
            pipelines[NAMES[way]] = end, 1 - sum(event["end"] - event["start"] for event in events) / (ranks * end)
    return pipelines


def bubbles(found):
    """A row for each schedule: the bubble of the equation, the waiting that was measured, and the length of a step."""
    counted = memory.bubble(found["world_size"], found["micro_batches"])
    return [{"schedule": name, "waits, by the equation": f"{counted:.0%}", "waits, measured": f"{share:.0%}",
             "the step took, ms": f"{end:.0f}"} for name, (end, share) in lengths(found).items()]


def as_long(found):
    """Whether the pipelines' steps took equally long, as the equation says."""
    ends = sorted((end, name) for name, (end, _) in lengths(found).items())
    if len(ends) < 2:
        return "This torch has not both schedules."
    (short, other), (long, slow) = ends[0], ends[-1]
    if long < 1.1 * short:
        return f"Both steps took about as long, {short:.0f} and {long:.0f} ms: the equation says so, too."
    return (f"**{slow} took {long / short - 1:.0%} longer than {other}.** The equation has both equally long: it knows "
            "nothing of sending, and of what else a machine does.")


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


def messages(in_use, way, rank=0):
    """What a rank sends in a step, without the loss, which is one number."""
    return [row for row in in_use["ways"][way]["ranks"][rank]["sent"] if row["bytes"] > 100]


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
            "what training changed in the weights, off by": f"{result['change_off']:.1e} of its length"}
    plain, other = column("fsdp"), column(way)
    return [{"of rank 0": what, IN_USE["fsdp"]: plain[what], IN_USE[way]: other[what]} for what in plain]


def rounded(in_use):
    """How far 16 bits put off the change of the weights, beside the first gradient: both as a share of their length."""
    mixed = in_use["ways"]["mixed"]
    told = (f"The first gradient is off by {mixed['gradient_off']:.1%} of its length, and what training changed in the "
            f"weights by {mixed['change_off']:.1%}")
    if mixed["change_off"] <= mixed["gradient_off"]:
        return f"{told}: no more."
    return (f"{told}, which is more. Adam moves each weight by about its learning rate a step, however small the "
            "gradient; and where a gradient is near 0, rounding may change its sign.")


def made_again(in_use, shape):
    """What recomputing adds to the operations of a step, counted and from the sizes of the matrices."""
    plain, again = (in_use["ways"][way]["ranks"][0]["operations"] for way in ("fsdp", "recomputed"))
    down = 4 * shape.hidden**2  # products for a token
    of_a_block = 12 * shape.hidden**2 + 2 * shape.sequence * shape.hidden
    forward = shape.layers * of_a_block + shape.hidden * shape.vocabulary
    predicted = shape.layers * (of_a_block - down) / (3 * forward)
    return (f"Recomputing adds **{again / plain - 1:.0%}** to the operations of a step. All of forward once more would "
            "be a third, for backward has two products for each of forward. But the output layer is not made again, "
            "nor is the last product of a block, `down`: nothing in the block's backward needs what comes out of it. "
            f"So predicted: {predicted:.0%}.")


def sent(in_use, shape):
    """A row for each collective of each way: who takes part, and bytes that rank 0 sends, counted and predicted."""
    predicted = {way: memory.sent_by_fsdp(shape, **asked) for way, asked in SENT_AS.items()}
    return [{"way": IN_USE[way], "collective": row["collective"], "type": row["type"],
             "ranks": " ".join(map(str, row["ranks"])),
             "rank 0 sends in a step, bytes": f"{row['bytes']:,}",
             "predicted, bytes": f"{predicted[way][row['collective']]:,}"}
            for way in SENT_AS for row in messages(in_use, way)]


def crossing(in_use, way):
    """Bytes of a step that go from node to node, of all ranks: two ranks a node, and rings in the order of ranks."""
    total = 0
    for rank in range(in_use["world_size"]):
        for row in messages(in_use, way, rank):
            following = row["ranks"][(row["ranks"].index(rank) + 1) % len(row["ranks"])]
            total += row["bytes"] * (following // 2 != rank // 2)
    return total


def between_nodes(in_use):
    plain, hybrid = (crossing(in_use, way) for way in ("fsdp", "hsdp"))
    return (f"From node to node all ranks together send {plain:,} bytes a step with FSDP2, and {hybrid:,} with HSDP: "
            f"**{hybrid / plain:.0%}** of it.")


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
    """What it costs to make all gradients whole, beside the numbers that clipping needs."""
    one = in_use["clip"]["clip"]
    ranks = len(one["norms"])
    numbers = one["sent"] * ranks / (2 * 4 * (ranks - 1))  # of 4 bytes, in a ring that adds them up
    each = "one for each parameter" if numbers == one["parameters"] else f"for {one['parameters']} parameters"
    return (f"Each rank sends {one['all_gathered']:,} bytes for full_tensor() of all gradients. For the norm it sends "
            f"{one['sent']:,} bytes in {some(one['calls'], 'all-reduce')}: {some(round(numbers), 'number')}, {each}.")


def went_on(in_use, loaded):
    """A row for each of the two runs: who holds what of the same weights."""
    return [{"run": name, "ranks": len(one["rows"]), "rows of the output layer": " ".join(map(str, one["rows"])),
             "checksum of all weights": one["checksum"], "in the end off by": off}
            for name, one, off in (("saved", in_use["saved"], "–"),
                                   ("loaded, trained on", loaded["loaded"], f"{loaded['loaded']['weights_off']:.0e}"))]


def deltas(in_use):
    """{call: (seconds that it takes from training, seconds from its return until the checkpoint is whole)}."""
    timed = in_use["timed"]
    return {"save": (timed["save"], 0), "async_save": (timed["async_save"] + timed["slower"],
                                                       timed["until whole"] - timed["async_save"])}


def held_up(in_use, between):
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


def meanwhile(in_use):
    """Whether training went on while a checkpoint was written, and whether that has made δ smaller."""
    timed, (plain, other) = in_use["timed"], (delta for delta, _ in deltas(in_use).values())
    went = f"Training went on meanwhile, for {some(round(timed['steps']), 'step')}" if timed["steps"] else (
        "**Training made no step meanwhile**")
    kept = "the checkpoint holds the weights of the call, bit for bit" if timed["as it was"] else (
        "**the checkpoint does not hold the weights of the call**")
    if other < 0.9 * plain:
        gain = f"δ is {other / plain:.0%} of what it is with `save`."
    elif timed["async_save"] < 0.9 * plain:
        gain = ("**δ is not smaller**, though training waits for less: the steps meanwhile are slower.")
    else:
        gain = "**Training waits for no less.**"
    return f"{went}, and {kept}. {gain}"


def graphs(compiled):
    """A row for each way that torch.compile was tried: its graphs, or the first line of what it said."""
    return [{"compiled": name, "graphs": str(len(one["graphs"])) if "graphs" in one else "–",
             "operations in each": " ".join(map(str, one["graphs"])) if "graphs" in one else "–",
             "gradient, off by": f"{one['off']:.0e}" if "off" in one else one["error"]}
            for name, one in compiled.items()]
