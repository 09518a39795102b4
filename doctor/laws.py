"""Eight laws that hold for any sound data-parallel training, judged on the records of all ranks.

A law is a function of the records, so it can be tried without a rank. It yields findings, the earliest first; what only
follows from the first is left to it. A record is what log.py has of a rank, in the order of the ranks.
"""

import ast
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, groupby, repeat, zip_longest
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from .lines import DEPTH, FILE
from .log import Record

LAWS = {1: "the same where one model is meant", 2: "different where it must be", 3: "nothing for nothing",
        4: "each sample once", 5: "the scale of one process", 6: "decided together", 7: "one file, one writer",
        8: "every wait ends", 0: "time"}  # the last is no law: it costs
WRONG, COSTLY, LOOK = "wrong", "costly", "worth a look"
SIZED = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter",
         "reduce_scatter_tensor")  # collectives to which all ranks give equally large tensors
LOCAL = ("an update", "a forward of DDP", "a forward of DDP in evaluation", "backward")  # no collectives by themselves
LEVELS = [WRONG, COSTLY, LOOK]
WELL = ("done", "exit status 0", "os._exit(0)")  # how a script may end
# The error of a rank that waited for another one
WAITED = "(?i)timed out|timeout|connection|gloo|nccl|socket|broken pipe"
UNFINISHED = "Expected to have finished reduction"  # DDP's error, which makes a fact of what may be meant
# {cause: {"link": its entry of TROUBLESHOOTING.md, "look": how to see it without the doctor, "title", and where an
# error says it "says", "why", "repair"}}, made by gallery/
ENTRIES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("entries.json").read_text(encoding="utf-8"))
NEAR = 1e-6  # of a norm: what is added and taken away again leaves other last bits


@dataclass
class Finding:
    name: str
    law: int
    level: str
    seen: str  # what was observed, with its numbers
    means: str
    repair: str
    where: str = ""  # my_train.py:42
    entry: str = ""  # where to read more; "" where TROUBLESHOOTING.md has no entry
    usually: list[str] = field(default_factory=list)  # what people did who broke the law so: titles of entries


TABLE = tomllib.loads(Path(__file__).with_name("laws.toml").read_text(encoding="utf-8"))


def say(form: str, where: str, level: str = "", **fields: Any) -> Finding:
    """A form of the table laws.toml, at a line, with the {fields} of its texts."""
    name, known = form.partition(",")[0], TABLE[form]
    texts = {part: known[part].format(**fields) for part in ("seen", "means", "repair")}
    entry = ENTRIES.get(name, {})
    return Finding(name, known["law"], level or known["level"], **texts, where=where, entry=entry.get("link", ""),
                   usually=entry.get("usually", []))


def notes(record: Record, kind: str) -> list[dict[str, Any]]:
    """The events of this kind that a rank noted."""
    return record.get("events", {}).get(kind, [])


def notes_of_all(records: list[Record], kind: str) -> list[list[dict[str, Any]]]:
    return [notes(record, kind) for record in records]


def paired(records: list[Record], kind: str, *key: str) -> Iterator[list[dict[str, Any]]]:
    """Events of this kind that all ranks have with the same key, in rank 0's order; the first of each key."""
    own: list[dict] = [{} for _ in records]
    for known, events in zip(own, notes_of_all(records, kind), strict=True):
        for event in events:
            known.setdefault(tuple(event[name] for name in key), event)
    for each in own[0]:
        if all(each in known for known in own):
            yield [known[each] for known in own]


def changes(records: list[Record], kind: str, *key: str) -> Iterator[list[dict[str, Any]]]:
    """Of events that are noted when something changes: what holds on each rank after each change. key: what it is of,
    and the step."""
    of, at = itemgetter(*key[:-1]), itemgetter(key[-1])
    for model, step in sorted({(of(fact), at(fact)) for fact in chain(*notes_of_all(records, kind))},
                              key=lambda each: (each[1], str(each[0]))):
        now = [[fact for fact in facts if of(fact) == model and at(fact) <= step][-1:]
               for facts in notes_of_all(records, kind)]
        if all(now):
            yield [fact[0] for fact in now]


def error_of(record: Record) -> str:
    return (record["ended"] or {}).get("error", "")


def ended_well(record: Record) -> bool:
    return bool(record["ended"]) and record["ended"]["how"] in WELL


def standing(record: Record) -> str:
    """Where a rank is, or how it ended."""
    if ended := record["ended"]:
        at = f" at {ended['where']}" if ended.get("where") else ""
        return f"its script ended ({ended['how']}{at}{first_line(error_of(record))[:120]})"
    if record.get("killed"):
        return f"it is gone; it was last at {place(stream(record)[-1])}" if stream(record) else "it is gone"
    now = record["position"]
    within = f"in `{now['in']}` " if now["in"] else ""
    return f"it is {within}at {now['where'] or 'no line of yours'}"


def first_line(error: str) -> str:
    """`: ` and the first line of an error's message; "" where there is none."""
    return f": {error.splitlines()[0]}" if error else ""


def listed(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def by_rank(records: list[Record], values: Iterable[Any], between: str = ", ", after: str = "") -> str:
    """`rank 0 7, rank 1 8`: a value of each rank."""
    return between.join(f"rank {record['rank']}{after} {value}" for record, value in zip(records, values, strict=True))


def in_code(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in names[:4]) + more


def over_all(records: list[Record]) -> bool:
    """Do the ranks train one model together: by DDP over all of them, or by gradients averaged by hand?"""
    return by_hand(records[0]) or any(fact["ranks"] >= len(records) for fact in notes(records[0], "wrapped"))


def by_hand(record: Record) -> bool:
    """Does a rank send gradients of the size of its model, between a backward and the update? (What is sent within
    backward may belong to activations, as in tensor parallelism: then the number must be the model's.)"""
    model = next((fact["numbers"] for fact in notes(record, "weights")), 0)
    talks = [fact for fact in notes(record, "talk") if fact["backwards"] and not fact["updated"]]
    for _, step in groupby(talks, itemgetter("backwards")):
        sent = [0, 0]
        for fact in step:
            sent[fact["within"]] += fact["numbers"]
        if 0 < model <= sent[False] or 0 < model == sent[True]:
            return True
    return False


def averages_weights(record: Record) -> bool:
    """Does a rank average weights after an update, not gradients before it?"""
    model = next((fact["numbers"] for fact in notes(record, "weights")), 0)
    talks = [fact for fact in notes(record, "talk") if fact["updated"] and "reduce" in fact["what"]]
    return any(0 < model <= sum(fact["numbers"] for fact in step)
               for _, step in groupby(talks, itemgetter("backwards"))) and not by_hand(record)


def same(digests: list[list[float]]) -> bool:
    """Do all ranks hold the same numbers, but for the last digits?"""
    if not digests:
        return True
    near = NEAR * max(norm for _, norm in digests) if all(map(math.isfinite, chain(*digests))) else 0.0
    return all(abs(a - b) <= near or a == b or math.isnan(a) and math.isnan(b)
               for one in digests for a, b in zip(digests[0], one, strict=True))


# ------------------------------------------------------------------------------------- 1: the same where one is meant


def drift(records: list[Record]) -> Iterator[Finding]:
    """Weights at the same number of backwards. Excused: models of one rank, groups, averaging of weights, and weights
    that are the same again in the end."""
    first, wrapped = records[0], any(notes_of_all(records, "wrapped"))
    raw = list(chain(*notes_of_all(records, "raw")))
    if wrapped and not over_all(records) or averages_weights(first):
        return
    earlier = None  # after so many backward passes the ranks still held the same
    looks = [(after, facts, same([fact["digest"] for fact in facts])) for after, facts in compared_weights(records)]
    for after, facts, alike in looks:
        earlier = after if alike else earlier
        model = itemgetter("form", "together")
        met = [alike for _, others, alike in looks if model(others[0]) == model(facts[0])][-1]
        if alike or met:  # apart before DDP sent the weights, or within a step that moves them and back
            continue
        form, where, fields = why_apart(records, after, facts, raw)
        norms = by_rank(records, [f"{fact['digest'][1]:.6f}" for fact in facts])
        passes = "Before the first step" if not after else f"After {after} backward pass{'es' * (after > 1)}"
        level = LOOK if form.startswith("drift") and notes(first, "hooked") else ""
        yield say(form, where or facts[0]["where"] or notes(first, "weights")[0]["where"], level,
                  differ=f"{passes} the ranks hold other weights (norms: {norms})",
                  before="" if earlier is None else f"; after {earlier} they held the same", **fields)
        return
    if raw:
        yield say("ddp_module, asked", raw[0]["where"])


def why_apart(records: list[Record], after: int, facts: list[dict], raw: list[dict]) -> tuple[str, str, dict]:
    """(form of the finding, line, fields): what differed first, or what alone leaves ranks apart."""
    first, wrapped, by_hands = records[0], any(notes_of_all(records, "wrapped")), by_hand(records[0])
    if after == 0 and over_all(records):
        return "other_weights", "", {}
    if not wrapped and not by_hands:
        shards = any(fact["ranks"] == len(records) for fact in notes(first, "shard"))
        certain = shards and not gives_its_own(records) and not notes(first, "in_pairs")
        return "not_wrapped" if certain else "not_wrapped, alone", "", {}
    if raw:
        return "ddp_module", raw[0]["where"], {}
    if wrapped and not facts[0]["together"]:
        return "drift, alone", "", {}
    if unsynchronised := notes(first, "unsynchronised"):
        return "unsynchronised_step", unsynchronised[0]["where"], {}
    loaded = {record["rank"]: fact["where"] for record in records for fact in notes(record, "loaded_optimizer")[:1]}
    if 0 < len(loaded) < len(records):
        return "resumed_apart", next(iter(loaded.values())), {"some": listed(loaded)}
    for loads in zip_longest(*notes_of_all(records, "loaded_weights")):
        if None in loads or not same([load["digest"] for load in loads if load["digest"]]):
            return "loaded_apart", next(filter(None, loads))["where"], {}
    for settings in changes(records, "settings", "optimizer", "form", "update"):
        each = [set(fact["values"]) for fact in settings]
        if any(own != each[0] for own in each):
            some = [" ".join(sorted(own - set.intersection(*each))) for own in each]
            return "other_settings", settings[0]["where"], {"settings": by_rank(records, some)}
    updates = [fact["updates"] for fact in facts]
    if len(set(updates)) > 1:
        return "skipped_update", notes(first, "update")[0]["where"], {"updates": by_rank(records, updates)}
    for update in paired(records, "update", "optimizer", "update", "form"):
        gradients = [fact["gradients"] for fact in update]
        if update[0]["backwards"] <= after and all(gradients) and not same(gradients):
            norms = by_rank(records, [f"{norm:.4f}" for _, norm in gradients])
            return "drift, gradients", update[0]["where"], {"update": update[0]["update"] + 1, "norms": norms}
    return "drift, beside", "", {}


def gives_its_own(records: list[Record]) -> bool:
    """Does each rank keep its own model, or its outputs, for the others: an ensemble, say?"""
    paths = [{fact["path"] for fact in facts} for facts in notes_of_all(records, "saved")]
    return (any("gather" in fact["what"] for fact in notes(records[0], "sync"))
            or all(paths) and not set.intersection(*paths))


def compared_weights(records: list[Record]) -> Iterator[tuple[int, list[dict]]]:
    """(after how many backward passes, [each rank's look at the weights]) where all have looked."""
    joined = min((fact["backwards"] for fact in chain(*notes_of_all(records, "joined"))), default=math.inf)
    trained = {fact["form"] for fact in notes(records[0], "trained")}
    # Under Join the last weights of a rank are those after the steps of other ranks.
    as_many = len({record["backwards"] for record in records}) == 1
    looks = [{(fact["after"], fact["form"], fact["together"]): fact for fact in facts
              if fact["digest"] and fact["form"] in trained and (as_many or not fact["last"])
              and (fact["wrapped"] or not notes(records[0], "wrapped"))}  # else before DDP sent the weights
             for facts in notes_of_all(records, "weights")]
    for key in sorted(set.intersection(*map(set, looks))):
        if key[0] <= joined:  # under Join the same number of backwards is not the same step
            yield key[0], [look[key] for look in looks]


def same_model(records: list[Record]) -> Iterator[Finding]:
    """Law 1: weights, modes, buffers, what is frozen, clipped, carried by a collective, evaluated."""
    yield from shapes_differ(records)
    yield from sizes_differ(records)
    yield from drift(records)
    together = over_all(records)
    for facts in changes(records, "mode", "form", "step"):
        if not together or any(notes_of_all(records, "joined")):
            break
        kind = next((kind for kind in ("off", "frozen") if len({str(fact[kind]) for fact in facts}) > 1), None)
        if kind:
            line = next(fact["where"] for fact in facts if fact[kind])
            yield say("other_modes" if kind == "off" else "other_frozen", line,
                      step=max(fact["step"] for fact in facts),
                      off=by_rank(records, [in_code(fact[kind]) if fact[kind] else "none" for fact in facts]))
            break
    for facts in paired(records, "buffers", "form", "step"):
        if together and all(fact["digest"] and fact["weights"] for fact in facts) and not same(
                [fact["digest"] for fact in facts]) and same([fact["weights"] for fact in facts]):
            yield say("statistics", facts[0]["where"], names=f": {in_code(facts[0]['names'])}",
                      when=f"In a forward in training, after {facts[0]['step']} updates,")
            break
    for facts in zip(*notes_of_all(records, "clip"), strict=False):
        gradients = [fact["gradients"] for fact in facts]
        if len({(fact["step"], fact["form"]) for fact in facts}) > 1 or not all(gradients):
            break
        if not same(gradients):
            if together and not notes(records[0], "hooked"):  # else the ranks may differ
                asks = " Is that meant, to bound what one rank can do?" if by_hand(records[0]) else ""
                yield say("clip_early", facts[0]["where"], LOOK if asks else WRONG, asks=asks,
                          norms=", ".join(f"{norm:.4f}" for _, norm in gradients))
            break
    for facts in zip(*notes_of_all(records, "tested"), strict=False):
        weights, held = ([fact[kind] for fact in facts] for kind in ("weights", "buffers"))
        if len({(fact["step"], fact["where"]) for fact in facts}) > 1 or not all(weights + held):
            break
        if not same(weights) and together:
            yield say("tested_apart", facts[0]["where"], step=facts[0]["step"],
                                  norms=by_rank(records, [f"{norm:.6f}" for _, norm in weights]))
            break
        if not same(held):
            yield say("statistics", facts[0]["where"], when="In an evaluation",
                      names=", BatchNorm's mean and variance, say")
            break


def shapes_differ(records: list[Record]) -> Iterator[Finding]:
    """The first parameter whose shape is not the same on all ranks, in a model that each of them wraps."""
    for wraps in zip(*notes_of_all(records, "wraps"), strict=False):
        shapes = [fact["shapes"] for fact in wraps]
        for name in dict.fromkeys(chain(*shapes)):
            of_each = [" × ".join(map(str, each[name])) if name in each else "missing" for each in shapes]
            if len(set(of_each)) > 1 and not all(map(ended_well, records)):
                yield say("other_shapes", wraps[0]["where"], shapes=f" `{name}`: {by_rank(records, of_each)}.")
                return


def sizes_differ(records: list[Record]) -> Iterator[Finding]:
    """The first collective that is the same on all ranks, and carries other sizes or types."""
    calls = [[each for each in syncs(record) if each["what"] in SIZED] for record in records]
    for made in zip(*calls, strict=False):
        if len({(each["what"], each["where"]) for each in made}) > 1:
            return
        if len({(each["numbers"], each["type"]) for each in made}) > 1 and not all(map(ended_well, records)):
            yield say("other_sizes", made[0]["where"], what=made[0]["what"], sizes=by_rank(
                records, [f"{each['numbers']} of {each['type']}" for each in made]))
            return


# ------------------------------------------------------------------------------------------ 2: different where it must


def different(records: list[Record]) -> Iterator[Finding]:
    """Law 2: random draws, where at least half of those in the same steps are the same. (Samples: law 4.)"""
    for what in ("the model's forward", "the data", "the loop"):
        own = [{"events": {"drawn": [fact for fact in facts if fact["what"] == what]}}
               for facts in notes_of_all(records, "drawn")]
        looks = list(paired(own, "drawn", "step"))
        alike = [facts for facts in looks
                 if set.intersection(*(set(fact["states"].items()) for fact in facts))]
        if alike and 2 * len(alike) >= len(looks):
            yield say("same_seed", alike[0][0]["where"], what=what[0].upper() + what[1:], step=alike[0][0]["step"] + 1,
                               often=len(alike), looks=len(looks))
            return


# ----------------------------------------------------------------------------------------------- 3: nothing for nothing

AS_NOTED = {"cut_off": "cut_off", "left_on": "no_eval", "not_emptied": "no_zero_grad", "aliased": "aliased",
            "unfinished": "not_waited_for"}


def no_group(records: list[Record], world_size: int) -> Iterator[Finding]:
    """Ranks that a launcher started, and that never met."""
    trained = notes(records[0], "weights")
    if world_size > 1 and trained and all(fact["ranks"] == 1 for fact in chain(*notes_of_all(records, "group"))):
        compared = list(compared_weights(records)) if len(records) == world_size else []
        read = [[fact["labels"] for fact in facts if fact["trained"]] for facts in notes_of_all(records, "pass")]
        alike = compared and same([fact["digest"] for fact in compared[-1][1]]) and all(
            mine and mine == read[0] for mine in read)  # of other data, they have talked by another library
        yield say("no_group" if alike else "no_group, each", trained[0]["where"], world_size=world_size)


def nothing_for_nothing(records: list[Record]) -> Iterator[Finding]:
    """Law 3: what is computed, read, loaded, scheduled or awaited is used."""
    first = next((record for record in records if UNFINISHED in error_of(record)), records[0])
    yield from parameters(first)
    for kind, form in AS_NOTED.items():
        for fact in notes(records[0], kind)[:1]:
            yield say(form, **fact)
    for fact in notes(first, "kept_optimizer")[:1]:
        trained = first["backwards"] > fact["backwards"]  # and not only tested
        if trained and notes(first, "optimizer") and not notes(first, "loaded_optimizer"):
            yield say("optimizer_left_out", fact["where"])
    yield from unused_batches(records)
    yield from schedules(records)
    start = {fact["form"]: fact["digest"] for fact in reversed(notes(first, "weights")) if fact["after"] == 0}
    moved = {fact["form"] for fact in notes(first, "weights") if fact["digest"] != start.get(fact["form"])}
    loaded = {(fact["form"], fact["step"]) for fact in notes(first, "loaded_weights")}
    for form in start.keys() & moved:
        still = [fact for fact in notes(first, "tested") if fact["form"] == form and fact["passes"]
                 and fact["weights"] == start[form] and fact["weights"]]
        if len({fact["step"] for fact in still}) > 1:
            certain = all((form, fact["step"]) in loaded for fact in still)
            yield say("never_moves", still[0]["where"], WRONG if certain else LOOK, times=len(still),
                      step=still[-1]["step"])
    for passes in by_loader(records[:1]):
        told = [read["told"] for read in passes[0] if read["told"]]
        if len(set(told)) > 1:
            yield say("stale_workers", passes[0][0]["where"])
            break


def parameters(first: Record) -> Iterator[Finding]:
    """Parameters that get no gradient, or no update."""
    level = WRONG if UNFINISHED in error_of(first) else LOOK
    line = next((fact["where"] for fact in notes(first, "optimizer")), "")
    idle = [fact for fact in notes(first, "optimizer") if fact["idle"]]
    if idle and notes(first, "foreign"):
        yield say("optimizer_foreign", idle[0]["where"])
    elif frozen := notes(first, "frozen")[:1]:
        yield say("frozen_late", notes(first, "wrapped")[0]["where"], level,
                                                   names=in_code(frozen[0]["names"]))
    elif left := notes(first, "left")[:1]:  # their gradients stay: the optimizer empties none
        yield say("optimizer_misses", line, names=in_code(left[0]["names"]))
    elif without := notes(first, "without")[:1]:
        yield say("unused_parameter", without[0]["where"], level, names=in_code(without[0]["names"]),
                                              when="After backward(), which gave others one,")
    elif never := notes(first, "never")[:1]:
        yield say("unused_parameter", line, names=in_code(never[0]["names"]), when="In the steps that were looked at")


def unused_batches(records: list[Record]) -> Iterator[Finding]:
    """Batches that nobody used, and passes without any. A first pass may skip what an earlier run has had."""
    for passes in by_loader(records):
        objects = {read["object"] for read in passes[0]}
        for number, read in enumerate(passes[0]):
            before = [other for other in passes[0][:number] if other["object"] == read["object"] and other["trained"]]
            if read["whole"] and not read["batches"] and before and before[-1]["batches"]:
                yield say("empty_pass", read["where"], number=number + 1, batches=before[-1]["batches"])
                return
        trained = [[read for read in own if read["trained"] and read["used"]] for own in passes]
        later = [own[1:] if len(objects) == 1 else own for own in trained]
        skipped = [[read["unused"] for read in own] for own in later]
        if later[0] and all(own and min(own) for own in skipped):
            certain = all(read["head"] == read["unused"] == trained[0][0]["unused"] for read in later[0])
            yield say("batches_unused", later[0][0]["where"], WRONG if certain and len(later[0]) > 1 else LOOK,
                      passes=len(later[0]),
                each=by_rank(records, [f"{own[0]} of {read[0]['batches']}"
                                       for own, read in zip(skipped, later, strict=True)]))
            return


def schedules(records: list[Record]) -> Iterator[Finding]:
    first, ranks = records[0], len(records)
    for fact in notes(first, "untied"):
        level = WRONG if fact["times"] == ranks and fact["extra"] * ranks == fact["steps"] * (ranks - 1) else LOOK
        if ended_well(first) and ranks > 1:
            yield say("schedule_steps", fact["where"], level, extra=fact["extra"], steps=fact["steps"],
                                                  times=fact["times"], ranks=ranks)
            return
    for fact in notes(first, "schedule"):
        length, made, steps = fact["length"], fact["made"], first["steps"]
        if ended_well(first) and made == steps and math.isclose(length, steps * ranks, rel_tol=0.1):
            yield say("schedule_length", fact["where"], length=length, made=made, ranks=ranks, steps=steps)
            return


# -------------------------------------------------------------------------------------------------- 4: each sample once
# An event "pass" is one pass of a rank over a DataLoader.


def by_loader(records: list[Record]) -> Iterator[list[list[dict]]]:
    """Of each loader: the passes of each rank over it."""
    for loader in dict.fromkeys(read["loader"] for read in notes(records[0], "pass")):
        yield [[read for read in passes if read["loader"] == loader] for passes in notes_of_all(records, "pass")]


def each_sample_once(records: list[Record]) -> Iterator[Finding]:
    """Law 4: shares, labels, splits, and what an evaluation counts."""
    if split := list(other_split(records)):
        yield from split
    else:
        yield from other_labels(records)
        yield from shares(records)
    yield from metrics(records)


def epochs(records: list[Record]) -> Iterator[Finding]:
    """Orders over the passes of one training. One may come twice, by a search for a rate, say."""
    trained: dict[Any, list[dict]] = {}
    for read in notes(records[0], "pass"):
        of = trained.setdefault((read["where"], read["batch"], read["lineage"]), [])
        if read["trained"] and (read["order"] or read["content"]) and (
                read["whole"] or of and read["images"] == of[0]["images"] or not of):
            of.append(read)
    for passes in trained.values():
        kind = "order" if all(read["order"] for read in passes) else "content"  # of the first samples alone
        orders = [read[kind] for read in passes]
        distinct = set(orders)
        if (len(orders) > 1 and all(orders) and 2 * len(distinct) <= len(orders)
                and all(orders.count(order) > 1 for order in distinct)
                and passes[0]["shuffles"] and passes[0]["images"] > 5):  # five may come so by chance
            again = next(number for number, order in enumerate(orders) if order in orders[:number])
            yield say("set_epoch", passes[-1]["told_at"] or passes[0]["where"],
                      passes=len(orders), distinct=len(distinct),
                      orders=f": pass {again + 1} had that of pass {orders.index(orders[again]) + 1}")
            return
    facts = notes(records[0], "shard") if not notes(records[0], "pass") else []  # read without a DataLoader
    again_by_hand = [fact for fact in facts if fact["shuffle"] and fact["order"] == facts[0]["order"]]
    padded = [fact for fact in facts if fact["total"] > fact["images"] and not fact["shuffle"]]
    for fact in again_by_hand[1:2]:
        yield say("set_epoch", fact["where"], passes=len(again_by_hand), distinct=1, orders="")
    for fact in padded[:1]:
        yield say("padded_evaluation, shares", fact["where"], ranks=fact["ranks"], images=fact["images"],
                  total=fact["total"])


def other_labels(records: list[Record]) -> Iterator[Finding]:
    """One data set, whose ranks share its samples, and another label on another rank."""
    for passes in by_loader(records):
        if not all(read and read[0]["classes"] and read[0]["trained"] for read in passes):
            continue
        total, different, _ = counted([read[0] for read in passes])
        if total - different >= len(passes):  # not shared out: each rank may have a set of its own
            continue
        labels = list(map(by_index, passes))
        common = {index for one in range(len(labels)) for other in range(one)
                  for index in labels[one].keys() & labels[other].keys()}
        apart = [index for index in sorted(common) if len({mine[index] for mine in labels if index in mine}) > 1]
        if apart:
            one, *others = [mine for mine in labels if apart[0] in mine]
            other = next(mine for mine in others if mine[apart[0]] != one[apart[0]])
            pairs = {(one[index], other[index]) for index in one.keys() & other.keys()}
            numbered = passes[0][0]["numbered"] and len(pairs) == len({number for number, _ in pairs})
            alike = set(one.values()) & set(other.values())
            if not alike or not numbered and not all(map(steady, passes)):
                continue  # labels of a rank's own samples, or drawn, or changed by an augmentation
            shown = ", ".join(f"{f'{mine[apart[0]]:g}' if numbered else 'another'} on rank {record['rank']}"
                              for record, mine in zip(records, labels, strict=True) if apart[0] in mine)
            yield say("other_labels" if numbered else "other_order",
                passes[0][0]["where"], index=apart[0], labels=shown, many=len(apart), common=len(common))
            return


def by_index(passes: list[dict]) -> dict[int, float]:
    """{index of a sample: its label} of a rank's passes over one loader, where labels are numbers."""
    return {index: label for read in passes if read["classes"]
            for index, label in zip(read["indices"], read["classes"], strict=False)}


def steady(passes: list[dict]) -> bool:
    """Had each sample that a rank read twice the same label both times?"""
    twice = [dict(zip(read["indices"], read["classes"], strict=False)) for read in passes[:2] if read["classes"]]
    both = list(twice[0].keys() & twice[-1].keys()) if len(twice) > 1 else []
    return bool(both) and all(twice[0][index] == twice[1][index] for index in both)


def other_split(records: list[Record]) -> Iterator[Finding]:
    if not over_all(records):
        return  # folds of a cross-validation, say
    used = []  # of each rank: [(samples trained, samples evaluated)] of each data set
    for passes in notes_of_all(records, "pass"):
        sets: dict[int, tuple[dict, dict]] = {}
        for read in passes:
            sets.setdefault(read["set"], ({}, {}))[not read["trained"]].update(
                zip(read["indices"] or (), read["classes"] or repeat(None), strict=False))
        used.append([both for both in sets.values() if all(both)])
    for together in zip(*used, strict=False):
        trained, evaluated = (set().union(*(both[kind].items() for both in together)) for kind in (0, 1))
        if trained & evaluated and not any(mine.keys() & tests.keys() for mine, tests in together):
            line = next(read["where"] for read in notes(records[0], "pass") if not read["trained"])
            yield say("split_on_each_rank", line, count=len(trained & evaluated))
            return


def shares(records: list[Record]) -> Iterator[Finding]:
    """What the ranks read of each loader, and which samples they have in common."""
    models = notes(records[0], "weights")
    unknown = not models or any(fact["sharded"] for fact in models)
    for passes in by_loader(records):
        for together in zip(*passes, strict=False):
            finding = of_a_stream(together)
            if not finding and all(read["indices"] for read in together) and not own_sets(together):
                others = tested(records, together)
                finding = (of_training(together, others, draws_apart(records)) if together[0]["trained"] else
                           of_evaluation(together, len(others), gathered(records[0], together[0])
                                         or counts_once(records, together)))
            if finding and finding.name in ("same_data", "iterable_unsharded"):
                if together[0]["trained"] and together[0]["shown"] <= 0.6 * together[0]["images"]:
                    continue  # each rank takes its part of a batch that all have read, or trains something else
                if not over_all(records):  # tensor or pipeline parallelism, a sweep
                    if not unknown:
                        continue
                    finding.level = LOOK
            if finding:
                yield finding
                break


def draws_apart(records: list[Record]) -> bool:
    """Do the ranks draw other numbers between a batch and its forward?"""
    return any(len({str(fact["states"]) for fact in facts}) > 1
               for facts in zip(*notes_of_all(records, "drawn"), strict=False)
               if all(fact["what"] == "the loop" for fact in facts))


def tested(records: list[Record], together: tuple[dict, ...]) -> set[int]:
    """The samples that the ranks evaluated of the data set of these passes, in all loaders."""
    passes = [(own["set"], read) for own, mine in zip(together, notes_of_all(records, "pass"), strict=True)
              for read in mine]
    return set().union(*(read["indices"] or () for own, read in passes if read["set"] == own and not read["trained"]))


def of_a_stream(passes: tuple[dict, ...]) -> Finding | None:
    """The same content on all ranks, where no index tells the samples apart."""
    first = passes[0]
    if not first["indices"] and not first["order"] and first["prints"] and (
            first["trained"] or first["before_training"]) and all(read["prints"] == first["prints"] for read in passes):
        many = len(first["prints"])
        return say("iterable_unsharded", first["where"],
                   seen=f"all ranks read the same samples: the first {many} are equal")
    return None


def own_sets(passes: tuple[dict, ...]) -> bool:
    """Has each rank a data set of its own: other labels at the same places? Where labels are unknown: does it go
    through all of it (in training: no list of indices into one)?"""
    first, *others = [by_index([read]) for read in passes]
    common = [(label, mine[index]) for mine in others for index, label in first.items() if index in mine]
    if common:
        return sum(a != b for a, b in common) > len(common) / 2
    return (all(read["whole"] and len(set(read["indices"])) == read["of"] for read in passes)
            and len({read["labels"] for read in passes}) > 1
            and all(max(read["indices"]) < read["of"] for read in passes if read["trained"]))


def counted(passes: Iterable[dict]) -> tuple[int, int, bool]:
    """(samples that the ranks took, different ones among them, whether all took the same set)"""
    sets = [read["indices"] for read in passes]
    return sum(map(len, sets)), len(set().union(*sets)), all(set(samples) == set(sets[0]) for samples in sets)


def of_training(passes: tuple[dict, ...], tested: set[int], augmented: bool) -> Finding | None:
    """`tested`: samples of the data set that were evaluated: the other part of a split, or of folds. `augmented`: each
    rank drew numbers of its own between a batch and its forward."""
    first, world_size = passes[0], len(passes)
    total, different, same_set = counted(passes)
    twice, padding = total - different, world_size - 1
    all_read = all(read["whole"] for read in passes)
    same_order = all(read["indices"] == first["indices"] for read in passes)
    replacing = any(len(set(read["indices"])) < len(read["indices"]) for read in passes)
    if same_order or not replacing and twice > padding and (twice > world_size * padding or not all_read):
        how = "in the same order" if same_order else "in another order each"
        seen = f"all ranks trained on the same {different:,} samples, {how}" if same_set else (
            f"the ranks trained on {total:,} samples, of which only {different:,} are different")
        same_values = all(read["prints"] == first["prints"] for read in passes)  # no augmentation of its own
        certain = same_order and same_values and not augmented
        return say("same_data" if certain else "same_data, shared", first["where"], seen=seen)
    unseen = first["of"] - len(tested.union(*(read["indices"] for read in passes)))
    if all_read and not replacing and unseen > world_size * (first["batch"] or 1):
        return say("missing_data", first["where"], of=first["of"], different=different, did="trained on")
    return None


def of_evaluation(passes: tuple[dict, ...], tested: int, gathered: bool) -> Finding | None:
    """`tested`: how many samples of the data set were evaluated, in other passes, too. `gathered`: the ranks sent
    something of each sample, and what was counted twice may have been cut off."""
    first = passes[0]
    total, different, same_set = counted(passes)
    twice, missing = total - different, first["of"] - max(different, tested)
    if not all(read["whole"] for read in passes):
        return None
    if twice and not gathered and not same_set:
        asks = "" if first["judged"] and first["padded"] else " Is that meant?"
        return say("padded_evaluation", first["where"], LOOK if asks else WRONG, total=total, different=different,
                   twice=twice, asks=asks)
    if not twice and 0 < missing < len(passes):
        return say("missing_data", first["where"], different=different, of=first["of"], did="evaluated")
    return None


def counts_once(records: list[Record], passes: tuple[dict, ...]) -> bool:
    """Do the ranks add up a number that, over all of them, is that of the different samples?"""
    different = counted(passes)[1]
    return any(sum(values) == different for talks in zip(*notes_of_all(records, "talk"), strict=False)
               if all(talk["values"] for talk in talks)
               for values in zip(*(talk["values"] for talk in talks), strict=False))


def gathered(record: Record, read: dict) -> bool:
    """Has a rank sent something of each sample of a pass to the others?"""
    sent = sum(talk["numbers"] for talk in notes(record, "talk")
               if ("gather" in talk["what"] or talk["updated"])  # an array, to which each rank adds its own part
               and talk["passes"] in (read["number"], read["number"] + 1))
    return sent >= read["images"]


def metrics(records: list[Record]) -> Iterator[Finding]:
    """Each rank evaluates its part, and nobody adds the parts up, or an average is added up."""
    first = records[0]
    by_objects = any("object" in fact["what"] or fact["what"].startswith(("gather", "reduce"))
                     for fact in notes(first, "sync"))
    if by_objects or not all(map(ended_well, records)):  # the collective may have been to come
        return
    for together in chain(*(zip(*passes, strict=False) for passes in by_loader(records))):
        own = together[0]
        everything = len({frozenset(read["indices"] or ()) for read in together}) == 1  # on all ranks
        if own["trained"] or own["statistics"] or not own["whole"] or not own["indices"] or everything:
            continue
        later = [read["number"] for read in notes(first, "pass") if read["trained"] and read["number"] > own["number"]]
        after = [talk for talk in notes(first, "talk")  # other evaluations may come in between
                 if own["number"] <= talk["passes"] <= min(later, default=math.inf)]
        counts = [read["images"] for read in together]
        if not after:
            yield say("rank_0_loss", own["where"], images=own["images"])
            return
        if len(set(counts)) > 1 and len(after) == 1 and after[0]["fraction"]:
            yield say("average_of_averages", after[0]["where"], counts=", ".join(map(str, counts)))
            return


# ------------------------------------------------------------------------------------------ 5: the scale of one process


def scale(records: list[Record]) -> Iterator[Finding]:
    """Law 5, as far as one world size shows it. scale_by_ranks compares two."""
    for fact in notes(records[0], "summed")[:1]:
        yield say("summed_gradients", fact["where"], ranks=fact["ranks"])
    for fact in [fact for fact in notes(records[0], "clip") if fact["scaled"]][:1]:
        yield say("clip_scaled", fact["where"])


def factors(records: list[Record]) -> dict[str, float]:
    """{line of a loss: with which factor its mean enters the gradient, the median over updates and ranks}"""
    of_all: dict[str, list[float]] = {}
    for fact in chain(*notes_of_all(records, "factor")):
        of_all.setdefault(fact["where"], []).append(fact["value"])
    return {line: median(values) for line, values in of_all.items()}


def scale_by_ranks(by_size: dict[int, dict[str, float]]) -> Iterator[Finding]:
    """Law 5 on {number of ranks: factors}: is a factor the ranks', or one over them?"""
    small, large = sorted(by_size)
    for line in by_size[small].keys() & by_size[large].keys():
        one, other = by_size[small][line], by_size[large][line]
        for power, word in ((-1, "one over the"), (1, "the")):
            if one and math.isclose(other / one, (large / small) ** power, rel_tol=0.05):
                yield say("scale_by_ranks", line, power=word,
                          factors=f"{one:.3g} on {small} ranks and {other:.3g} on {large}")


# ------------------------------------------------------------------------------------------------- 6: decided together


@cache
def statements(path: str) -> list[tuple[int, int, bool]]:
    """(first line, last line, is it a function?) of the statements of a file, the inner ones behind the outer ones."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    return [(node.lineno, node.end_lineno or node.lineno, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def stream(record: Record) -> list[tuple]:
    """What a rank did, in order: (depth, file, line) of each line of the user's, and ("sync", what, where)."""
    kinds = {fact["number"]: ("sync", fact["what"], fact["where"]) for fact in notes(record, "sync")}
    files = {fact["number"] % 1000: (fact["path"], fact["whole"]) for fact in notes(record, "file")}
    return [kinds.get(-1 - number, ("sync", "", "")) if number < 0 else
            (number // DEPTH, files[number % DEPTH // FILE], number % FILE)
            for number in chain(*(fact["numbers"] for fact in notes(record, "stream")))]


def syncs(record: Record) -> list[dict[str, Any]]:
    """The collectives, backwards and updates of a rank, in order."""
    kinds = {fact["number"]: fact for fact in notes(record, "sync")}
    numbers = chain(*(fact["numbers"] for fact in notes(record, "stream")))
    return [kinds[-1 - number] for number in numbers if -1 - number in kinds]


def without_lines(items: list[tuple]) -> list[tuple]:
    """The collectives, backwards and updates among a stream's items."""
    return [item for item in items if item[0] == "sync"]


def left(items: list[tuple], at: int, depth: int, lines: tuple[int, int], file: Any) -> int | None:
    """Where a rank comes out of these lines of a file, from `at` on; None where it never does."""
    for number in range(at, len(items)):
        if items[number][0] != "sync" and (items[number][0] < depth or items[number][0] == depth and (
                items[number][1] != file or not lines[0] <= items[number][2] <= lines[1])):
            return number
    return None


def fork(one: list[tuple], other: list[tuple]) -> tuple[tuple, tuple, tuple, int] | None:
    """(the last line before two ranks went different ways, the next item of each, its place): None where they did not.

    Excused: a statement around the line, a function at most, which both leave for the same line after the same
    collectives, backwards and updates. `if rank == 0: print(…)` is one.
    """
    here = there = 0
    last: tuple = ()
    while here < len(one) and there < len(other):
        if one[here] == other[there]:
            last = one[here] if one[here][0] != "sync" else last
            here, there = here + 1, there + 1
            continue
        if not last:  # they made the group on lines of their own: begin at the first line that both have
            both = set(other[there:])
            first = next((at for at in range(here, len(one)) if one[at][0] != "sync" and one[at] in both), len(one))
            start = other.index(one[first], there) if first < len(one) else len(other)
            if without_lines(one[here:first]) != without_lines(other[there:start]):
                return None
            here, there = first, start
            continue
        depth, file, line = last
        around = sorted({(begin, end, function) for begin, end, function in statements(file[1])
                         if begin <= line <= end}, key=lambda each: each[1] - each[0])
        for begin, end, function in around:
            lines = (0, 10**9) if function else (begin, end)
            out, off = left(one, here, depth, lines, file), left(other, there, depth, lines, file)
            if out is not None and off is not None and one[out] == other[off] and (
                    without_lines(one[here:out]) == without_lines(other[there:off])):
                here, there = out, off
                break
            if function:
                return last, one[here], other[there], here
        else:
            return last, one[here], other[there], here
    return None


def decided_together(records: list[Record]) -> Iterator[Finding]:
    """Law 6: the first line at which ranks went different ways, where they ended so. Excused: a rank's own error."""
    errors = list(filter(None, map(error_of, records)))
    stuck = any(notes_of_all(records, "stalled")) or bool(errors) or any(record.get("killed") for record in records)
    own = [record for record in records if error_of(record) and not re.search(WAITED, error_of(record))]
    if own or any(notes_of_all(records, "joined")):
        return
    calls = [[each for each in syncs(record) if each["what"] not in LOCAL] for record in records]
    first = next((number for number, made in enumerate(zip(*calls, strict=False))
                  if len({each["what"] for each in made}) > 1), None)
    done = [syncs(record) for record in records]
    counts = [len(each) for each in done]
    if not (first is not None and not any(record.get("killed") for record in records)
            or stuck and len({str([(each["what"], each["where"]) for each in mine]) for mine in done}) > 1):
        return
    made = [next(iter(mine[first:first + 1]), None) if first is not None else None for mine in calls]
    forks = [(found[3], found, record) for record in records[1:]
             if (found := fork(stream(records[0]), stream(record)))]
    each = ". ".join(f"Rank {record['rank']}: {record['forwards']} forwards of DDP, {record['backwards']} backwards, "
                     f"{record['calls']} collectives; {standing(record)}" for record in records)
    if forks:
        _, (last, ours, theirs, _), record = min(forks, key=itemgetter(0))
        yield say("parted", f"{last[1][0]}:{last[2]}", parted=f"After this line rank {records[0]['rank']} went on to "
                        f"{place(ours)}, and rank {record['rank']} to {place(theirs)}. ", each=each, more="")
        return
    index = next((number for number in range(min(counts)) if len({
        (mine[number]["what"], mine[number]["where"]) for mine in done}) > 1), min(counts))
    at = [mine[index] if index < len(mine) else None for mine in done]
    calls_at = [f"`{one['what']}` at {one['where']}" if one else "none" for one in (made if any(made) else at)]
    where = next((one["where"] for one in at if one), "") or next(
        (record["position"]["where"] for record in records), "")
    untraced = any(notes_of_all(records, "untraced"))
    more = " Run it again with --lines: it names the line at which they went different ways." if untraced else ""
    parted = f"The next call is not the same on all ranks: {by_rank(records, calls_at, after=':')}. "
    yield say("parted", where, more=more, parted=parted, each=each)


def place(item: tuple) -> str:
    return f"`{item[1]}` at {item[2]}" if item[0] == "sync" else f"{item[1][0]}:{item[2]}"


# ---------------------------------------------------------------------------------------------------------- 7: files

NOT_FOUND = re.compile(r"No such file|does not exist|FileNotFound|cannot find")


def one_file(form: str, records: list[Record], facts: list[list[dict]], *at: str) -> Iterator[Finding]:
    """The first file that two ranks have written, after as many steps if `at` is "step"; `facts`: of each rank, what it
    wrote."""
    writers: dict[Any, list[tuple[int, dict]]] = {}
    for record, mine in zip(records, facts, strict=True):
        for fact in mine:
            writers.setdefault(tuple(fact[name] for name in ("host", "path", *at)), []).append((record["rank"], fact))
    for by in writers.values():
        if len(ranks := sorted({rank for rank, _ in by})) > 1:
            yield say(form, by[0][1]["where"], writers=listed(ranks).capitalize(),
                             file=by[0][1]["path"].rpartition("/")[2])
            return


def files(records: list[Record]) -> Iterator[Finding]:
    """Law 7: one path, one writer; written before read."""
    facts = notes_of_all(records, "saved")
    opened = [mine + notes(record, "opened") for record, mine in zip(records, facts, strict=True)]
    by_torch = list(one_file("every_rank_writes", records, facts, "step"))
    yield from by_torch or one_file("every_rank_writes, opened", records, opened)
    for fact in [fact for fact in chain(*facts) if fact["prefixed"]][:1]:
        yield say("module_prefix", fact["where"], name=fact["prefixed"][0])
    missing = [record for record in records if NOT_FOUND.search(error_of(record))]
    for record in missing if len(missing) < len(records) else []:
        made = [(other["rank"], fact) for other in records if other is not record
                for kind in ("made", "saved", "opened") for fact in notes(other, kind)
                if fact["path"] in error_of(record) or fact["path"].rpartition("/")[2] in error_of(record)]
        path = re.search(r"(/[^\s'\"]+)", error_of(record))
        yield say("read_early", record["ended"]["where"], rank=record["rank"],
                  path=path[1].rstrip(".") if path else "a file",
            error=record["ended"]["how"] + first_line(error_of(record))[:200].rstrip("."),
            maker=f"Rank {made[0][0]} makes it at {made[0][1]['where']}." if made else "Does another rank make it?")
        return


# --------------------------------------------------------------------------------------------------- 8: every wait ends


def said(error: str) -> tuple[str, dict[str, Any]]:
    """(name of the cause that an error's message tells, what is known of it)"""
    return next(((name, known) for name, known in ENTRIES.items()
                 if known.get("says") and re.search(known["says"], error)), ("crashed", {}))


def failures(records: list[Record], own: bool = False) -> Iterator[Finding]:
    """The ranks that failed by themselves, first, beside those that failed because they were gone; or, unless `own`,
    all that failed."""
    failed = [record for record in records if (record["ended"] or {}).get("status")]
    gone = any(fact["ranks"] > len(records) for fact in notes(records[0], "group"))  # a rank that left no record
    first = [record for record in failed if not re.search(WAITED, error_of(record)) or said(error_of(record))[1]]
    if not (first or own or gone or any(record.get("killed") for record in records)):
        first = failed
    if first:
        record = first[0]
        name, cause = said(error_of(record))
        others = [other for other in records if other not in first]
        followed = any(other in failed or other["position"]["in"] for other in others)
        those = listed(other["rank"] for other in others)
        after = f" If {those} reported a lost connection, that only follows from it."
        finding = say("crashed", record["ended"].get("where", ""), own="Every rank" if not others else listed(
                each["rank"] for each in first).capitalize(),
            how=(record["ended"]["how"] + first_line(error_of(record))[:200]).rstrip("."),
            after=after if followed else "",
            why=cause.get("why", "What the report says below was seen up to there."),
            repair=cause.get("repair", "Mend this first: what it printed above shows the way."))
        finding.name = name if cause else "wrong_traceback" if followed else "crashed"
        finding.entry = ENTRIES.get(finding.name, {}).get("link", "")
        yield finding


def waits(records: list[Record]) -> Iterator[Finding]:
    """Ranks that stand still, and ranks that are gone."""
    facts = list(chain(*notes_of_all(records, "stalled")))
    if facts:
        waiting = [record for record in records if record["position"]["in"]] or records
        yield say("stall", waiting[0]["position"]["where"], seconds=max(fact["seconds"] for fact in facts),
                       each=by_rank(records, map(standing, records), "; ", ":"))


def gone(records: list[Record], world_size: int) -> Iterator[Finding]:
    missing = sorted(set(range(world_size)) - {record["rank"] for record in records if not record.get("killed")})
    if world_size == 1:  # a rank that is judged alone knows of no other
        return
    if missing:
        last = [(record["rank"], syncs(record)[-1:]) for record in records if record["rank"] in missing]
        told = " ".join(f"Rank {rank} was last at `{done[0]['what']}`, {done[0]['where']}."
                        for rank, done in last if done)
        where = next((done[0]["where"] for _, done in last if done), "")
        yield say("silent", where, missing=listed(missing).capitalize(), last=f" {told}" if told else "")


# ----------------------------------------------------------------------------------------------------------- 0: time


def costs(records: list[Record]) -> Iterator[Finding]:
    """What is right, and takes time; what only small batches show."""
    first = records[0]
    for fact in [fact for fact in notes(first, "no_sync") if fact["backwards"] and not fact["forwards"]][:1]:
        yield say("no_sync", fact["where"])
    talks = [fact for fact in notes(first, "talk")
             if fact["what"] == "all_reduce" and not fact["updated"] and fact["backwards"]]
    steps = [list(sent) for _, sent in groupby(talks, itemgetter("backwards"))]
    for sent in steps[1:4]:  # the first step may set things up
        mean = sum(fact["numbers"] for fact in sent) / len(sent)
        if len(sent) > 10 and mean < 10**5:
            yield say("slower", sent[0]["where"], count=len(sent), numbers=mean)
            break
    for fact in notes(first, "twice")[:1]:
        yield say("wrapped_twice", fact["where"])
    batch = next((read["batch"] for read in notes(first, "pass") if read["trained"]), None)
    for fact in notes(first, "batchnorm")[:1]:
        if batch and batch < 16:
            yield say("batchnorm", fact["where"], batch=batch)
    yield from devices(records)
    facts = [fact for facts in notes_of_all(records, "threads") for fact in facts[:1]]
    for _, group in groupby(sorted(facts, key=itemgetter("host")), itemgetter("host")):
        one_host = list(group)
        cores = len(set().union(*(fact["cores"] for fact in one_host)))
        each = [fact["each"] for fact in one_host]
        if len(one_host) > 1 and sum(each) > cores and max(each) > 1:
            yield say("threads", "", ranks=len(one_host), each=each[0], cores=cores)
            break


def devices(records: list[Record]) -> Iterator[Finding]:
    facts = [fact for facts in notes_of_all(records, "device") for fact in facts[:1]]
    if len(facts) == len(records) and facts[0]["device"].startswith("cuda") and len(
            {(fact["gpu"], fact["host"]) for fact in facts}) < len(facts):
        level = WRONG if facts[0]["visible"] > 1 else LOOK  # one GPU for several ranks may be all there is
        yield say("all_on_gpu_0", notes(records[0], "wrapped")[0]["where"], level,
                                               devices=", ".join(fact["device"] for fact in facts))


# -------------------------------------------------------------------------------------------------------- all of them


def broken(records: list[Record], world_size: int) -> Iterator[Finding]:
    """What the laws say of the records of all ranks that left one, a crash first, then the gravest. Of the findings of
    law 1 the first stands for those that follow from it; where ranks went different ways, or one failed, the others'
    waits follow from that."""
    alive = [record for record in records if not record.get("killed")]
    if not alive:
        yield from gone(records, world_size)
        return
    ends: list[Finding] = []
    if len(records) > 1:
        ends = list(shapes_differ(records)) or list(sizes_differ(records))
    if missing := [finding for finding in files(records) if finding.name == "read_early"]:
        ends = missing
    unused = [finding for finding in nothing_for_nothing(alive) if finding.level == WRONG and UNFINISHED in str(
        list(map(error_of, records)))]
    ends = ends or unused or list(failures(alive, own=True)) or (
        list(decided_together(records)) if len(records) > 1 else [])
    ends = ends or list(waits(alive)) or list(failures(alive)) or list(gone(records, world_size))
    apart = list(no_group(alive, world_size))
    models = list(same_model(alive)) if len(alive) > 1 and not apart else []
    worst = [finding for finding in models if finding.level == WRONG][:1] or [
        finding for number, finding in enumerate(models) if finding.name not in {each.name for each in models[:number]}]
    follows = {"every_rank_writes", "set_epoch", "same_seed"} if apart else set()
    found = [*ends, *apart, *worst]
    for law in (different if len(alive) > 1 else None, nothing_for_nothing,
                each_sample_once if len(alive) == world_size > 1 and not apart else None, epochs, scale, files, costs):
        found += law(alive) if law else []
    if ended_well(alive[0]) and notes(alive[0], "not_destroyed"):
        group = [fact for fact in notes(alive[0], "group") if fact["own"]][-1:]
        found += [say("not_destroyed", fact["where"]) for fact in group]
    seen: set[tuple[str, str]] = set()
    for finding in sorted(found, key=lambda each: (each not in ends, LEVELS.index(each.level))):
        if (finding.name, finding.where) not in seen and finding.name not in follows:
            seen.add((finding.name, finding.where))
            yield finding
