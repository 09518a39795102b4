"""The report on a few ranks of a job that was pretended: what only many ranks show."""

import re

from . import detectors, findings
from .detectors import COSTLY, LOOK, WRONG, Finding, error_of, first_line, listed, notes

# {part of a collective's name: (the name, how often its bytes go around a ring)}
RINGS = {"allreduce": ("all_reduce", 2), "allgather": ("all_gather", 1), "reducescatter": ("reduce_scatter", 1)}
TOLERATED = 0.1  # of the samples may be repeated

NO_SUCH_GPU = Finding(
    "device_is_rank", WRONG, "{ranks} asked for GPU {number} of a node that has {gpus}.",
    "A node counts its GPUs from 0, and the global rank counts on over all nodes.",
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])).")
FETCHED = Finding(
    "fetched_by_rank_0", LOOK, "Rank {rank}, the first of node 1, failed before rank 0 ran, and not after it: {error}.",
    "It needs a file that only rank 0 makes. Do all nodes share this folder?",
    "Let the first rank of each node fetch it (LOCAL_RANK 0), before a barrier.")
MEETS = Finding(
    "meeting_place", WRONG, "The ranks do not meet at one place: {places}.",
    "Each waits at an address of its own until the timeout.",
    "Take MASTER_ADDR and MASTER_PORT as the launcher gives them.")
TYPED_IN = Finding(
    "world_size", WRONG, "Rank {rank} joins a group of {given} ranks, as its rank {own}, and the job has {ranks:,}.",
    "The number is typed in, or counts the GPUs of one node.", "Take WORLD_SIZE and RANK as the launcher gives them.")
NO_STEP = Finding(
    "no_step", WRONG, "{ranks} got no batch: a share of {shard} samples, batches of {batch}, and drop_last.",
    "An epoch passes without an update, and no error says so.", "A smaller batch, fewer ranks, or drop_last=False.")
REPEATED = Finding(
    "repeated", COSTLY, "An epoch of {ranks:,} ranks takes {taken:,} samples, and there are {images:,}.",
    "So ranks repeat what others compute.",
    "If each rank reads everything, use DistributedSampler. If it is padding, use fewer ranks, or drop_last=True.")
RATE = Finding(
    "rate", LOOK, "One process has {one:,} samples an update, this job {many:,}, both with the rate {rate:g}.",
    "An epoch has fewer updates, each as long as before. Is the rate meant for the larger batch?",
    "Scale it with the batch (for SGD linearly, for Adam often by the square root), and warm it up.")
WARM_UP = Finding(
    "warm_up", LOOK, "The rate is highest after {until:,} {each}s, and this run has {length:,}.",
    "It ends before its rate is reached. Has the real training more epochs?",
    "Give the warm-up in epochs, or in updates of this number of ranks.")
LIST = Finding(
    "gathers_all", LOOK, "`{what}` collects a list of {tensors:,} tensors, {size} on a rank.",
    "It grows with the number of ranks.", "All-reduce sums and counts, or let each rank keep its share.")


def held(tensors):
    """Bytes on this rank: of a DTensor its shard."""
    return sum((each.to_local() if hasattr(each, "to_local") else each).nbytes for each in tensors)


def failed(run):
    return "facts" not in run or (run["ended"] or {}).get("status")


def received(run):
    """Has the script used what other ranks send?"""
    return notes(run, "unknown") or [fact for fact in notes(run, "talk") if "barrier" not in fact["what"]]


def compared(runs, early, alone, args):
    """The Report. `early`: the run of the first rank of the second node, before rank 0's; `alone`: one process."""
    nodes, gpus = args.pretend
    ranks, known = nodes * gpus, [run for run in runs if "facts" in run]
    # An error after a message, or of a GPU, may come of what is pretended.
    pretended = [run for run in known if failed(run) and (received(run) or re.search("CUDA|NVIDIA", error_of(run)))]
    sound = [run for run in known if run not in pretended]
    found = [detectors.SILENT.at("", missing=listed([run["rank"]]).capitalize()) for run in runs if run not in known]
    if sound:
        found += [*detectors.errors(sound), *detectors.crashed(sound)]
    if known:
        found += [*detectors.devices(known), *placed(known, gpus, ranks), *files(known, ranks), *data(known, ranks),
                  *rates(known[0], alone, ranks)]
    if early and failed(early) and "facts" in early and not received(early) and not any(map(failed, runs)):
        found.append(FETCHED.at(early["ended"].get("where", ""), rank=gpus,
                                error=early["ended"]["how"] + first_line(error_of(early))[:200]))
    facts = [f"{nodes:,} nodes x {gpus} GPUs = {ranks:,} ranks. {listed([run['rank'] for run in runs]).capitalize()} "
             f"ran, with {args.batches} batches of an epoch at most.", *(figures(known[0], args) if known else ())]
    return findings.Report(findings.causes(found), facts, [
        *(f"Rank {run['rank']} needs a real GPU, or what other ranks know: {detectors.standing(run)}."
          for run in pretended),
        *(f"Rank {run['rank']} was ended after {args.timeout:g} s (--timeout)." for run in known
          if (run["ended"] or {}).get("how") == "exit status 143"),
        "What comes from other ranks: each received its own values, so sums and decisions by them are not the job's.",
        "Time, NCCL, the memory of activations, and what two real ranks show: torchrun --nproc_per_node=2 -m doctor."])


def placed(runs, gpus, ranks):
    """GPUs, addresses and numbers of ranks."""
    asked = {run["rank"]: fact for run in runs for fact in notes(run, "no_such_gpu")[:1]}
    for rank, fact in list(asked.items())[:1]:
        number = rank if (fact["number"] - rank) % 256 == 0 else fact["number"]
        yield NO_SUCH_GPU.at(fact["where"], ranks=listed(asked).capitalize(), number=number, gpus=fact["gpus"])
    met = {run["rank"]: fact for run in runs for fact in notes(run, "meets")[:1] if fact["ranks"] > 1}
    places = {fact["at"]: f"rank {rank} at {fact['at']}" for rank, fact in met.items()}
    if len(places) > 1 or gpus < ranks and any(re.match(r"localhost|127\.", at) for at in places):
        yield MEETS.at(next(iter(met.values()))["where"], places=", ".join(places.values()))
    wrong = [(rank, fact) for rank, fact in met.items() if (fact["rank"], fact["ranks"]) != (rank, ranks)]
    for rank, fact in wrong[:1]:
        yield TYPED_IN.at(fact["where"], rank=rank, own=fact["rank"], given=fact["ranks"], ranks=ranks)
    for fact in notes(runs[-1], "list")[:1]:
        yield LIST.at(fact["where"], what=fact["what"], tensors=fact["tensors"], size=size(fact["bytes"]))


def files(runs, ranks):
    """The first path that each of the ranks writes."""
    for kind, finding in (("saved", detectors.EVERY_RANK_WRITES), ("opened", detectors.EVERY_RANK_OPENS)):
        of_all = set.intersection(*({fact["path"] for fact in notes(run, kind)} for run in runs))
        for fact in [fact for fact in notes(runs[0], kind) if fact["path"] in of_all and len(runs) > 1][:1]:
            yield finding.at(fact["where"], writers=f"All {len(runs)} ranks that ran, so perhaps all {ranks:,},",
                             file=fact["path"].rpartition("/")[2])
            return


def training(run):
    """(plan of the loader that trained, its passes); (None, 0) where there is none."""
    lines = [read["where"] for read in notes(run, "pass") if read["trained"]]
    plans = [plan for plan in notes(run, "plan") if plan["where"] in lines]
    return (plans[0], lines.count(plans[0]["where"])) if plans else (None, 0)


def data(runs, ranks):
    empty = {run["rank"]: plan for run in runs for plan in notes(run, "plan")
             if not plan["batches"] and plan["drops"] and plan["images"]}
    for plan in list(empty.values())[:1]:
        yield NO_STEP.at(plan["where"], ranks=listed(empty).capitalize(), shard=plan["shard"], batch=plan["batch"])
    plans = [plan for run in runs for plan in training(run)[:1] if plan]
    if len({plan["share"] for plan in plans}) == 1:
        images, taken = plans[0]["images"], ranks * plans[0]["share"]
        if taken > (1 + TOLERATED) * images:
            yield REPEATED.at(plans[0]["where"], ranks=ranks, taken=taken, images=images)


def rates(run, alone, ranks):
    (plan, passes), one = training(run), training(alone)[0] if not failed(alone) else None
    if plan and one:
        rate, of_one = (max(fact["rate"] for fact in notes(each, "update") + notes(each, "rises"))
                        for each in (run, alone))
        if abs(rate - of_one) <= 1e-6 * rate and ranks * plan["batch"] > one["batch"]:
            yield RATE.at(notes(run, "update")[0]["where"], one=one["batch"], many=ranks * plan["batch"], rate=rate)
    for fact in notes(run, "rises")[:1]:
        length = passes * updates(run, plan) if fact["each"] == "update" and plan else passes or run["steps"]
        if fact["until"] >= length:
            yield WARM_UP.at(fact["where"], until=fact["until"], each=fact["each"], length=length)


def updates(run, plan):
    """Of an epoch: fewer than its batches, where several backwards make one."""
    return max(1, round(plan["batches"] * run["steps"] / max(1, run["backwards"])))


def size(count):
    return next(f"{count / unit:.3g} {name}" for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
                if count >= unit or unit == 1)


def figures(run, args):
    plan, steps, ranks = training(run)[0], notes(run, "update"), args.pretend[0] * args.pretend[1]
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
    sent = min((fact["sent"] for fact in steps if fact["sent"]), default=[],
               key=lambda sent: sum(sum(sizes) for *_, sizes in sent))
    if sent:
        yield "A step sends " + "; ".join(f"{len(sizes)} x {name} in a group of {members:,}, {size(sum(sizes))} in all"
                                          for name, members, _, sizes in sent) + "."
    if sent and args.alpha:
        fast, slow = band(sent, args)
        yield (f"Their rings between nodes take {1e3 * fast:.3g} ms without latency and with the whole bandwidth, "
               f"{1e3 * slow:.3g} ms with alpha and half of it; backward() hides a part. (Not in it: rings in a node.)")


def band(sent, args):
    """Seconds of a step's rings, at best and on a slower network. An all-reduce in a ring of n takes 2 (n - 1)
    messages of bytes / n (Thakur, Rabenseifner, Gropp 2005); an all-gather and a reduce-scatter are its two halves."""
    trips = dict(RINGS.values())
    rings = [(trips[name], nodes if args.pretend[0] > 1 else members, each) for name, members, nodes, sizes in sent
             if name in trips for each in sizes]
    return [sum(times * (n - 1) * (alpha + each / n * beta) for times, n, each in rings)
            for alpha, beta in ((0, args.beta), (args.alpha, 2 * args.beta))]
