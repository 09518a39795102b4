"""The report on a few ranks of a job that was pretended: what only many ranks show."""

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from . import laws
from .laws import Finding, Record, error_of, first_line, listed, notes, say
from .report import Report

# {part of a collective's name: (the name, how often its bytes go around a ring)}
RINGS = {"allreduce": ("all_reduce", 2), "allgather": ("all_gather", 1), "reducescatter": ("reduce_scatter", 1)}
TOLERATED = 0.1  # of the samples may be repeated


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes on this rank: of a DTensor its shard."""
    return sum((each.to_local() if hasattr(each, "to_local") else each).nbytes for each in tensors)


def failed(run: Record) -> Any:
    return "events" not in run or (run["ended"] or {}).get("status")


def received(run: Record) -> Any:
    """Has the script used what other ranks send?"""
    return notes(run, "unknown") or [fact for fact in notes(run, "talk") if "barrier" not in fact["what"]]


def no_update(run: Record) -> bool:
    """Has this rank ended well, and made no update?"""
    return "events" in run and (run["ended"] or {}).get("how") == "done" and not run["steps"]


def no_sample(run: Record) -> bool:
    """Has this rank made a DataLoader of a data set without samples?"""
    return any(not plan["images"] for plan in notes(run, "plan"))


def becomes_nothing(run: Record) -> bool:
    """Has this rank failed because a number was 0?"""
    return bool(failed(run) and "events" in run and re.search(
        r"by zero|batch_size=0|must not be zero|num_samples=0", error_of(run)))


LACKS = (no_update, no_sample)


def compared(runs: list[Record], early: Record | None, alone: Record, args: argparse.Namespace,
             edges: dict[str, int]) -> Report:
    """The Report. `early`: the run of the first rank of the second node, before rank 0's; `alone`: one process;
    `edges`: {what some ranks lack: the first rank that does; "becomes_nothing": the first number of nodes}."""
    nodes, gpus = args.pretend
    ranks, known = nodes * gpus, [run for run in runs if "events" in run]
    # An error after a message, or of a GPU, may come of what is pretended.
    pretended = [run for run in known if failed(run) and (received(run) or re.search("CUDA|NVIDIA", error_of(run)))]
    sound = [run for run in known if run not in pretended]
    found = [say("silent", "", missing=listed([run["rank"]]).capitalize(), last="") for run in runs if run not in known]
    if sound:
        found += laws.failures(sound)
    if known:
        found += [*laws.devices(known), *placed(known, gpus, ranks), *files(known, ranks, gpus), *data(known, ranks),
                  *lacking(known, edges, ranks, gpus), *rates(known[0], alone, ranks)]
    if early and failed(early) and "events" in early and not received(early) and not any(map(failed, runs)):
        found.append(say("fetched_by_rank_0", early["ended"].get("where", ""), rank=gpus,
                                error=early["ended"]["how"] + first_line(error_of(early))[:200]))
    names = {finding.name for finding in found}
    if names & {"no_step", "crashed"}:  # no update: the rate rises for nobody
        found = [finding for finding in found if finding.name != "warm_up"]
    facts = [f"{nodes:,} nodes x {gpus} GPUs = {ranks:,} ranks. {listed([run['rank'] for run in runs]).capitalize()} "
             f"ran, with {args.batches} batches of an epoch at most.", *(figures(known[0], args) if known else ())]
    return Report(sorted(found, key=lambda each: (each.law != 8, laws.LEVELS.index(each.level))), facts, [
        *(f"Rank {run['rank']} needs a real GPU, or what other ranks know: {laws.standing(run)}."
          for run in pretended),
        *(f"Rank {run['rank']} was ended after {args.timeout:g} s (--timeout)." for run in known
          if (run["ended"] or {}).get("how") == "exit status 143"),
        "What comes from other ranks: each received its own values, so sums and decisions by them are not the job's.",
        "Time, NCCL, the memory of activations, and what two real ranks show: torchrun --nproc_per_node=2 -m doctor."])


def placed(runs: list[Record], gpus: int, ranks: int) -> Iterator[Finding]:
    """GPUs, addresses and numbers of ranks."""
    asked = {run["rank"]: fact for run in runs for fact in notes(run, "no_such_gpu")[:1]}
    for rank, fact in list(asked.items())[:1]:
        number = rank if (fact["number"] - rank) % 256 == 0 else fact["number"]
        yield say("device_is_rank", fact["where"], ranks=listed(asked).capitalize(), number=number, gpus=fact["gpus"])
    met = {run["rank"]: fact for run in runs for fact in notes(run, "meets")[:1] if fact["ranks"] > 1}
    places = {fact["at"]: f"rank {rank} at {fact['at']}" for rank, fact in met.items()}
    if len(places) > 1 or gpus < ranks and any(re.match(r"localhost|127\.", at) for at in places):
        yield say("meeting_place", next(iter(met.values()))["where"], places=", ".join(places.values()))
    wrong = [(rank, fact) for rank, fact in met.items() if (fact["rank"], fact["ranks"]) != (rank, ranks)]
    for rank, fact in wrong[:1]:
        yield say("world_size", fact["where"], rank=rank, own=fact["rank"], given=fact["ranks"], ranks=ranks)
    for fact in notes(runs[-1], "list")[:1]:
        yield say("gathers_all", fact["where"], what=fact["what"], tensors=fact["tensors"], size=size(fact["bytes"]))


def files(runs: list[Record], ranks: int, gpus: int) -> Iterator[Finding]:
    """The first path that each of the ranks writes; a checkpoint that the first rank of each node saves."""
    for kind, form in (("saved", "every_rank_writes"), ("opened", "every_rank_writes, opened")):
        of_all = set.intersection(*({fact["path"] for fact in notes(run, kind)} for run in runs))
        for fact in [fact for fact in notes(runs[0], kind) if fact["path"] in of_all and len(runs) > 1][:1]:
            yield say(form, fact["where"], writers=f"All {len(runs)} ranks that ran, so perhaps all {ranks:,},",
                             file=fact["path"].rpartition("/")[2])
            return
    of_node = {fact["path"] for run in runs if run["rank"] == gpus for fact in notes(run, "saved")}
    for fact in [fact for fact in notes(runs[0], "saved") if fact["path"] in of_node][:1]:
        yield say("every_rank_writes", fact["where"], file=fact["path"].rpartition("/")[2], writers=(
            f"Ranks 0 and {gpus}, both with LOCAL_RANK 0, so perhaps the first rank of each of {ranks // gpus} nodes,"))


def lacking(runs: list[Record], edges: dict[str, int], ranks: int, gpus: int) -> Iterator[Finding]:
    """What the last ranks do not get, and what is 0 in so large a job. The edge was searched for by running ranks."""
    if rank := edges.get("no_update"):
        yield say("no_step, nothing", next((fact["where"] for fact in notes(runs[0], "sent")), ""), rank=rank,
                  count=ranks - rank, ranks=ranks, steps=runs[0]["steps"])
    if rank := edges.get("no_sample"):
        plan = next(plan for plan in notes(runs[-1], "plan") if not plan["images"])
        yield say("no_step, no sample", plan["where"], rank=rank, count=ranks - rank, ranks=ranks)
    if nodes := edges.get("becomes_nothing"):
        fewer = f"{nodes - 1} x {gpus} = {(nodes - 1) * gpus} ranks" if nodes > 1 else "one process"
        yield say("no_step, zero", runs[0]["ended"].get("where", ""), ranks=nodes * gpus, nodes=nodes, gpus=gpus,
                  fewer=fewer, error=first_line(error_of(runs[0]))[:200])


def training(run: Record) -> tuple[dict | None, int]:
    """(plan of the loader that trained, its passes); (None, 0) where there is none."""
    lines = [read["where"] for read in notes(run, "pass") if read["trained"]]
    plans = [plan for plan in notes(run, "plan") if plan["where"] in lines]
    return (plans[0], lines.count(plans[0]["where"])) if plans else (None, 0)


def data(runs: list[Record], ranks: int) -> Iterator[Finding]:
    empty = {run["rank"]: plan for run in runs for plan in notes(run, "plan")
             if not plan["batches"] and plan["drops"] and plan["images"]}
    for plan in list(empty.values())[:1]:
        yield say("no_step", plan["where"], ranks=listed(empty).capitalize(), shard=plan["shard"], batch=plan["batch"])
    plans = [plan for run in runs for plan in training(run)[:1] if plan]
    if len({plan["share"] for plan in plans}) == 1:
        images, taken = plans[0]["images"], ranks * plans[0]["share"]
        if taken > (1 + TOLERATED) * images:
            yield say("repeated", plans[0]["where"], ranks=ranks, taken=taken, images=images)


def rates(run: Record, alone: Record, ranks: int) -> Iterator[Finding]:
    (plan, passes), one = training(run), training(alone)[0] if not failed(alone) else None
    if plan and one:
        rate, of_one = (max(fact["rate"] for fact in notes(each, "sent") + notes(each, "rises"))
                        for each in (run, alone))
        if abs(rate - of_one) <= 1e-6 * rate and ranks * plan["batch"] > one["batch"]:
            yield say("rate", notes(run, "sent")[0]["where"], one=one["batch"], many=ranks * plan["batch"], rate=rate)
    for fact in notes(run, "rises")[:1]:
        length = passes * updates(run, plan) if fact["each"] == "update" and plan else passes or run["steps"]
        if fact["until"] >= length:
            yield say("warm_up", fact["where"], until=fact["until"], each=fact["each"], length=length)


def updates(run: Record, plan: dict) -> int:
    """Of an epoch: fewer than its batches, where several backwards make one."""
    return max(1, round(plan["batches"] * run["steps"] / max(1, run["backwards"])))


def size(count: float) -> str:
    return next(f"{count / unit:.3g} {name}" for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
                if count >= unit or unit == 1)


def figures(run: Record, args: argparse.Namespace) -> Iterator[str]:
    plan, steps, ranks = training(run)[0], notes(run, "sent"), args.pretend[0] * args.pretend[1]
    if plan and plan["batch"]:
        taken, images = ranks * plan["share"], plan["images"]
        each, count = min(plan["batch"], plan["share"]), updates(run, plan)
        yield (f"An update has {ranks:,} x {each:,} = {ranks * each:,} samples" + (
               f" (the batch is {plan['batch']:,}, and a rank has no more)" if each < plan["batch"] else "")
               + f". An epoch has {count:,} update{'s' * (count != 1)}, and takes {taken:,} samples of {images:,}: "
               f"{max(0, taken - images):,} are repeated, {max(0, images - taken):,} left out.")
    if steps:
        last = {fact["optimizer"]: fact for fact in steps}.values()
        weights, gradients, states = (size(sum(fact[part] for fact in last))
                                      for part in ("weights", "gradients", "states"))
        yield f"A rank holds {weights} of weights, {gradients} of gradients, {states} of the optimizer's state."
    sent: list = min((fact["sent"] for fact in steps if fact["sent"]), default=[],
               key=lambda sent: sum(sum(sizes) for *_, sizes in sent))
    if sent:
        yield "A step sends " + "; ".join(f"{len(sizes)} x {name} in a group of {members:,}, {size(sum(sizes))} in all"
                                          for name, members, _, sizes in sent) + "."
    if sent and args.alpha:
        fast, slow = band(sent, args)
        yield (f"Their rings between nodes take {1e3 * fast:.3g} ms without latency and with the whole bandwidth, "
               f"{1e3 * slow:.3g} ms with alpha and half of it; backward() hides a part. (Not in it: rings in a node.)")


def band(sent: list, args: argparse.Namespace) -> list[float]:
    """Seconds of a step's rings, at best and on a slower network. An all-reduce in a ring of n takes 2 (n - 1)
    messages of bytes / n (Thakur, Rabenseifner, Gropp 2005); an all-gather and a reduce-scatter are its two halves."""
    trips = dict(RINGS.values())
    rings = [(trips[name], nodes if args.pretend[0] > 1 else members, each) for name, members, nodes, sizes in sent
             if name in trips for each in sizes]
    return [sum(times * (n - 1) * (alpha + each / n * beta) for times, n, each in rings)
            for alpha, beta in ((0, args.beta), (args.alpha, 2 * args.beta))]
