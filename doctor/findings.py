"""What the diaries of all ranks show: pure functions of facts, so that each can be tried without a rank."""

import math
import re
import textwrap
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter

WRONG, COSTLY, LOOK = "wrong", "costly", "worth a look"
LEVELS = [WRONG, COSTLY, LOOK]
WELL = ("done", "exit status 0", "os._exit(0)")  # how a script may end
WAITED = "(?i)timed out|timeout|connection|gloo|nccl|socket|broken pipe"  # an error of a rank that waited for another


@dataclass
class Finding:
    name: str  # an entry of TROUBLESHOOTING.md has the same, where there is one
    level: str
    where: str  # my_train.py:42
    seen: str  # what was observed
    means: str
    repair: str


@dataclass
class Report:
    findings: list
    facts: list  # lines: how many images an update, where the time went
    unjudged: list  # lines: what this run could not show


def judge(diaries, world_size):
    """The report on {rank: diary}; a rank that left none is a finding of its own."""
    known = [diaries[rank] for rank in sorted(diaries)]
    checks = CHECKS + (COMPARING if len(known) > 1 else []) + (OF_ALL if len(known) == world_size > 1 else [])
    found = [one for check in checks for one in check(known, world_size) or ()]
    names = {one.name for one in found}
    found = [one for one in found if not names & set(BECAUSE.get(one.name, ()))]
    return Report(sorted(found, key=lambda one: LEVELS.index(one.level)), facts(known, world_size),
                  unjudged(known, world_size))


def of(diary, kind):
    return diary["facts"].get(kind, [])


def listed(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def first_of(diaries, kind):
    """The first fact of this kind on each rank; None where a rank has none."""
    found = [of(diary, kind) for diary in diaries]
    return [one[0] for one in found] if all(found) else None


# ---------------------------------------------------------------------------------------------------- hangs and ends


def talked(diaries, world_size):
    """The first collective that is not the same on all ranks: what each called, and where each is now."""
    calls = [[diary["kinds"][number] for number in diary["order"]] for diary in diaries]
    stalled = any(of(diary, "stalled") for diary in diaries)
    first = differing(calls, 0)
    if first is None and stalled:  # the same names, from other lines: shapes may differ, or one has left one out
        first = differing(calls, slice(None))
    errors = [diary["ended"]["error"] for diary in diaries if (diary["ended"] or {}).get("error")]
    if first is None or not (stalled or errors or all(len(c) > first for c in calls)):
        return
    if any(not re.search(WAITED, error) for error in errors):  # a rank failed by itself: the others' waits follow
        return
    said = []
    for diary, made in zip(diaries, calls, strict=True):
        what = f"`{made[first][0]}` at {made[first][1]}" if first < len(made) else "none: " + standing(diary)
        said.append(f"rank {diary['rank']}: {what}")
    lines = [made[first][1] for made in calls if first < len(made)]
    steps = {diary["forwards"] for diary in diaries}
    if len(steps) > 1:
        counted = ", ".join(f"rank {diary['rank']} {diary['forwards']}" for diary in diaries)
        yield Finding("hang_uneven", WRONG, lines[0], f"The ranks have made different numbers of forwards through DDP: "
                      f"{counted}. " + "; ".join(said) + ".", "DDP talks in each step: a rank with more batches than "
                      "the others waits for them in its last ones.",
                      "Give all ranks equally many batches (DistributedSampler), or use "
                      "torch.distributed.algorithms.join.Join.")
        return
    ends = {len(made) > first for made in calls}
    yield Finding("hang_different" if ends == {True} else "hang_rank_0", WRONG, lines[0],
                  f"Collective number {first + 1} of the run is not the same on all ranks. " + "; ".join(said) + ".",
                  "All ranks must make the same collective calls in the same order. Here one waits for what the other "
                  "never calls.", "Take the call out of the branch that only some ranks take, or let all take it.")


def differing(calls, part):
    """The number of the first call of which a `part` (its name, or name and line) differs; None where none does."""
    return next((n for n in range(max(map(len, calls)))
                 if len({str(made[n][part]) if n < len(made) else None for made in calls}) > 1), None)


def standing(diary):
    """Where a rank is, or how it ended."""
    if diary["ended"]:
        at = f" at {diary['ended']['where']}" if diary["ended"].get("where") else ""
        return f"its script ended ({diary['ended']['how']}{at}{first_line(diary['ended'], ': ')[:120]})"
    now = diary["position"]
    return f"it is {'in `' + now['in'] + '` ' if now['in'] else ''}at {now['where'] or 'no line of yours'}"


def first_line(ended, before=""):
    """Of the error's message, "" where there is none."""
    lines = ended.get("error", "").splitlines()
    return before + lines[0] if lines else ""


def wrong_traceback(diaries, _):
    """The rank that failed by itself, beside those that failed because it was gone."""
    failed = [diary for diary in diaries if (diary["ended"] or {}).get("status")]
    own = [one for one in failed if not re.search(WAITED, one["ended"].get("error", ""))]
    others = [one["rank"] for one in diaries if one not in own]
    lost = [one for one in diaries if one not in own and (one in failed or one["position"]["in"])]
    if own and lost:
        first, theirs = own[0]["ended"], listed([one["rank"] for one in own]).capitalize()
        yield Finding("wrong_traceback", WRONG, first.get("where", ""),
                      f"{theirs} failed: {first['how']}{first_line(first, ': ')[:200]}.",
                      f"What {listed(others)} may print of a lost connection only follows from it.",
                      "Mend this one. @record of torch.distributed.elastic lets torchrun print it, too.")


def stalled(diaries, world_size):
    """Ranks that stand still, while the calls so far are the same."""
    if not any(of(diary, "stalled") for diary in diaries) or any(True for _ in talked(diaries, world_size)):
        return
    said = "; ".join(f"rank {diary['rank']}: {standing(diary)}" for diary in diaries)
    seconds = max(fact["seconds"] for diary in diaries for fact in of(diary, "stalled"))
    waiting = [diary for diary in diaries if diary["position"]["in"]]
    yield Finding("stall", WRONG, (waiting or diaries)[0]["position"]["where"],
                  f"No rank has moved for {seconds:g} s. {said}.",
                  "Ranks that stand in a collective, or in backward(), wait for one that is elsewhere.",
                  "Look at the rank that does not wait. If it only needs longer, give --timeout more seconds.")


def silent(diaries, world_size):
    missing = sorted(set(range(world_size)) - {diary["rank"] for diary in diaries})
    if missing:
        yield Finding("silent", WRONG, "", f"No word from {listed(missing)}: killed, or ended without a trace.",
                      "What it saw is lost. The other ranks were judged without it.",
                      "See what torchrun says of its exit code: -9 is often a lack of memory.")


def no_group(diaries, world_size):
    """Ranks that have a launcher, and know nothing of each other."""
    first = diaries[0]
    if world_size > 1 and of(first, "weights") and not any(of(one, "group") for one in diaries):
        yield Finding("no_group", WRONG, of(first, "weights")[0]["where"],
                      f"{world_size} processes trained a model each, and made no process group.",
                      "They know nothing of each other: each does the whole work.",
                      "dist.init_process_group() first, then DistributedDataParallel and DistributedSampler.")


def left_open(diaries, _):
    for fact in of(diaries[0], "not_destroyed"):
        if (diaries[0]["ended"] or {}).get("how") in WELL:
            yield Finding("not_destroyed", LOOK, fact["where"], "The script ended with its process group open.",
                          "NCCL warns of it, and a rank may be aborted at the end.",
                          "Call dist.destroy_process_group() last, on all ranks.")


# ---------------------------------------------------------------------------------------------------- models


def not_wrapped(diaries, _):
    """Weights that each rank changes for itself."""
    raw = [fact for diary in diaries for fact in of(diary, "raw")]
    trained = {fact["form"] for fact in of(diaries[0], "trained")}
    ends = len({diary["backwards"] for diary in diaries})  # Join: the last weights are those after other ranks' steps
    looks = [{(fact["after"], fact["form"]): fact for fact in of(diary, "weights") if fact["digest"] and
              fact["form"] in trained and (ends == 1 or not fact["last"])} for diary in diaries]
    earlier = None
    for key in sorted(set.intersection(*map(set, looks))):
        facts = [one[key] for one in looks]
        after = key[0]
        if all(same(facts[0]["digest"], one["digest"]) for one in facts):
            earlier = after
            continue
        norms = ", ".join(f"rank {diary['rank']} {one['digest'][1]:.6f}"
                          for diary, one in zip(diaries, facts, strict=True))
        passes = "1 backward pass" if after == 1 else f"{after} backward passes"
        when = f"After {passes} the ranks hold other weights (norms: {norms})"
        line = facts[0]["where"] or of(diaries[0], "weights")[0]["where"]
        wrapped = any(of(one, "wrapped") for one in diaries)
        averaged = any(talk["backwards"] and not talk["updated"] for talk in of(diaries[0], "talk"))
        if after == 0 and (wrapped or averaged):
            yield Finding("other_weights", WRONG, line, f"Before the first step the ranks hold other weights (norms: "
                          f"{norms}).", "Each rank trains a model of its own.",
                          "Wrap the model in DistributedDataParallel, which sends rank 0's weights to all, or "
                          "broadcast them; seeds alone make no promise.")
        elif not wrapped:
            yield Finding("not_wrapped", WRONG, line, f"{when}, and no model was wrapped in DistributedDataParallel.",
                          "No gradient goes to the other ranks: each trains alone, on its own part of the data.",
                          "model = DistributedDataParallel(model), before the first step.")
        elif raw:
            yield Finding("ddp_module", WRONG, raw[0]["where"], f"The model inside DistributedDataParallel was called "
                          f"in training. {when}.", *AROUND)
        else:
            before = "" if earlier is None else f"; after {earlier} they held the same"
            yield Finding("drift", WRONG, line, f"{when}{before}.", "From then on they train different models.",
                          "Look for weights or gradients that are changed on one rank only.")
        return
    if raw:
        yield Finding("ddp_module", LOOK, raw[0]["where"], "backward() followed a forward of the model inside "
                      "DistributedDataParallel.", *AROUND)


AROUND = ("DDP exchanges gradients only for a forward that goes through it.",
          "Call the wrapped model; keep model.module for saving and evaluating.")


def same(ours, theirs):
    return all(a == b or math.isnan(a) and math.isnan(b) or abs(a - b) <= 1e-10 * max(abs(a), abs(b))
               for a, b in zip(ours, theirs, strict=True))


def parameters(diaries, _):
    first = diaries[0]
    for fact in of(first, "frozen")[:1]:
        yield Finding("frozen_late", WRONG, of(first, "wrapped")[0]["where"],
                      f"Frozen after the model was wrapped: {names(fact['names'])}.",
                      "DDP waits for the gradient of each parameter that was trainable when it was wrapped.",
                      "Call requires_grad_(False) before DistributedDataParallel(model).")
    for fact in of(first, "without")[:1] if not of(first, "frozen") else []:
        yield Finding("unused_parameter", WRONG, fact["where"],
                      f"After backward() these have no gradient while others have one: {names(fact['names'])}.",
                      "They play no part in the loss, so they are not trained; DDP waits for them, and fails in the "
                      "next forward unless find_unused_parameters=True.",
                      "Use the parameters, or remove them. If only some steps use them: find_unused_parameters=True.")
    for fact in of(first, "never")[:1]:
        yield Finding("unused_parameter", LOOK, fact["where"],
                      f"In the steps that were looked at these never had a gradient: {names(fact['names'])}.",
                      "find_unused_parameters=True lets DDP go on; these are not trained all the same.",
                      "Use the parameters, or freeze them before the model is wrapped.")
    for fact in of(first, "left")[:1]:
        yield Finding("optimizer_misses", WRONG, fact["where"], f"The optimizer does not hold {names(fact['names'])}.",
                      "These parameters get gradients and are never changed.",
                      "Give the optimizer model.parameters(), or freeze what is not to be trained.")
    for fact in of(first, "foreign")[:1]:
        yield Finding("optimizer_foreign", WRONG, fact["where"],
                      "The optimizer holds no parameter of the model that was wrapped.",
                      "It updates tensors that nobody trains: those of another model, or of this one before it moved.",
                      "Make the optimizer after the model is on its device, from the parameters of the wrapped model.")


def names(all_names):
    more = f" and {len(all_names) - 4} more" if len(all_names) > 4 else ""
    return ", ".join(f"`{name}`" for name in all_names[:4]) + more


def quiet(diaries, _):
    for fact in of(diaries[0], "no_sync"):
        if fact["backwards"] and not fact["forwards"]:
            return [Finding("no_sync", COSTLY, fact["where"],
                            "backward() ran within no_sync(), and the forward before it did not.",
                            "DDP decides in the forward whether to exchange gradients: nothing was saved.",
                            "Put the forward into the `with model.no_sync():` as well.")]


def many_messages(diaries, world_size):
    talks = [one for one in of(diaries[0], "talk") if one["what"] == "all_reduce" and not one["updated"]]
    for number in sorted({one["backwards"] for one in talks} - {0})[1:4]:  # the first step may set things up
        sent = [one for one in talks if one["backwards"] == number]
        if len(sent) > 10 and sum(one["numbers"] for one in sent) / len(sent) < 10**5:
            numbers = sum(one["numbers"] for one in sent)
            yield Finding("slower", COSTLY, sent[0]["where"], f"After one backward() came {len(sent)} all-reduces, of "
                          f"{numbers / len(sent):,.0f} numbers on average.",
                          "Each costs the time of a message, however short it is, and all wait for each.",
                          "Put the gradients into one flat tensor, or use DistributedDataParallel, which has buckets.")
            return


def resumed(diaries, _):
    for fact in of(diaries[0], "kept_optimizer")[:1]:
        trained = diaries[0]["backwards"] > fact["backwards"]  # and not only tested
        if trained and of(diaries[0], "optimizer") and not of(diaries[0], "loaded_optimizer"):
            yield Finding("optimizer_left_out", WRONG, fact["where"], "A checkpoint with an optimizer's state was "
                          "loaded, and no optimizer has taken it.", "Momentum and averages begin anew: the resumed run "
                          "is another one.", "optimizer.load_state_dict(...), too.")


def clipped(diaries, _):
    for fact in of(diaries[0], "clip"):
        if fact["scaled"]:
            yield Finding("clip_scaled", WRONG, fact["where"], "The gradients were clipped while they were multiplied "
                          "by a GradScaler's scale.", "They are larger by that factor: all are cut to almost nothing.",
                          "scaler.unscale_(optimizer) before clip_grad_norm_.")
            return
    for facts in zip(*(of(diary, "clip") for diary in diaries), strict=False):
        ours = [fact["gradients"] for fact in facts]
        if len({(fact["step"], fact["form"]) for fact in facts}) > 1 or not all(ours):
            return
        if not all(same(ours[0], one) for one in ours):
            norms = ", ".join(f"{one[1]:.4f}" for one in ours)
            yield Finding("clip_early", WRONG, facts[0]["where"],
                          f"When they were clipped, the gradients of the ranks had different norms: {norms}.",
                          "They were clipped before the ranks averaged them: each rank by another factor.",
                          "Clip after backward() of a step that exchanges gradients.")
            return


def statistics(diaries, _):
    for together in zip(*(of(diary, "buffers") for diary in diaries), strict=False):
        if all(one["digest"] for one in together) and not all(same(together[0]["digest"], one["digest"])
                                                              for one in together):
            yield Finding("statistics", LOOK, together[0]["where"], "The ranks evaluated with the same weights and "
                          "other BatchNorm statistics: each with its own running mean and variance.",
                          "The accuracy is that of several models.",
                          "Send rank 0's buffers to all before evaluating, or evaluate through the wrapped model.")
            break
    facts = of(diaries[0], "batchnorm")
    batch = next((fact["batch"] for fact in of(diaries[0], "pass") if fact["trained"]), None)
    if facts and batch and batch < 16:
        yield Finding("batchnorm", LOOK, facts[0]["where"],
                      f"BatchNorm takes its mean and variance from the {batch} images of one rank.",
                      "With so few images they are rough, and other than those of one process with the whole batch.",
                      "SyncBatchNorm.convert_sync_batchnorm(model), or a larger batch a rank.")


def drawn(diaries, _):
    for what in ("the model's forward", "the data"):
        ours = [[fact for fact in of(diary, "drawn") if fact["what"] == what] for diary in diaries]
        if all(ours) and len({fact[0]["step"] for fact in ours}) == 1 and set.intersection(
                *(set(fact[0]["states"].items()) for fact in ours)):
            where = ours[0][0]["where"]
            yield Finding("same_seed", WRONG, where, f"{what[0].upper() + what[1:]} drew random numbers, and all ranks "
                          f"drew the same ones (step {ours[0][0]['step'] + 1}).",
                          "Dropout or augmentation is then the same on all ranks, and less random than it seems.",
                          "Once the model is built, seed each rank apart: torch.manual_seed(seed + rank).")
            return


# ---------------------------------------------------------------------------------------------------- data


def by_loader(diaries):
    """Of each loader: the ranks' lists of their passes over it."""
    for loader in dict.fromkeys(one["loader"] for one in of(diaries[0], "pass")):
        yield [[one for one in of(diary, "pass") if one["loader"] == loader] for diary in diaries]


def data(diaries, _):
    evaluated = len({one["loader"] for one in of(diaries[0], "pass") if not one["trained"]})
    for passes in by_loader(diaries):
        for together in zip(*passes, strict=False):
            if found := shared(together, gathered(diaries[0], together[0]), evaluated == 1):
                yield found
                break
        yield from ordered(passes[0])


def gathered(diary, one):
    """Has a rank sent something of each sample of a pass to the others? What was counted twice may then be cut off."""
    sent = sum(talk["numbers"] for talk in of(diary, "talk")
               if "gather" in talk["what"] and talk["passes"] in (one["number"], one["number"] + 1))
    return sent >= one["images"]


def shared(passes, gathered, alone):
    """One pass of all ranks over the same loader. `alone`: no other loader is evaluated, which may have the rest."""
    first = passes[0]
    streamed = first["prints"] and (first["trained"] or first["before_training"])
    if streamed and all(one["prints"] == first["prints"] for one in passes):
        return Finding("iterable_unsharded", WRONG, first["where"],
                       f"All ranks read the same batches from a stream: the first {len(first['prints'])} are equal.",
                       "Each sample is used once by every rank.",
                       "In the IterableDataset, let each rank take its part: islice(stream, rank, None, world_size).")
    indices = [one["indices"] for one in passes]
    if not all(indices):
        return None
    sets = [set(one) for one in indices]
    whole = all(one["whole"] for one in passes)
    if whole and all(len(mine) == one["of"] for mine, one in zip(sets, passes, strict=True)) and (
            len({one["labels"] for one in passes}) > 1):
        return None  # each rank has a data set of its own, and goes through all of it
    total, union = sum(map(len, indices)), len(set.union(*sets))
    twice, padding = total - union, len(passes) - 1
    alike = all(one == indices[0] for one in indices)
    if first["trained"]:
        replaced = any(len(mine) < len(one) for mine, one in zip(sets, indices, strict=True))  # drawn with replacement
        if alike or not replaced and twice > padding and (twice > len(passes) * padding or not whole):
            if all(one == sets[0] for one in sets):
                how = "in the same order" if alike else "in another order each"
                seen = f"In one pass all ranks trained on the same {len(sets[0]):,} samples, {how}."
            else:
                seen = f"In one pass the ranks trained on {total:,} samples, of which only {union:,} are different."
            return Finding("same_data", WRONG, first["where"], seen,
                           "The ranks do the same work: more ranks make the training no faster.",
                           "DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset)).")
        missing = first["of"] - union
        if whole and not replaced and missing > len(passes) * (first["batch"] or 1):
            return Finding("missing_data", LOOK, first["where"],
                           f"In one pass over {first['of']:,} samples the ranks together used {union:,}.",
                           "The rest is never seen in this epoch.", "Look at the sampler's shares.")
    elif twice and whole and not gathered and not all(one == sets[0] for one in sets):
        return Finding("padded_evaluation", WRONG, first["where"],
                       f"The ranks evaluated {total:,} samples, {union:,} of them different: {twice} counted twice.",
                       "DistributedSampler pads, so that all ranks have as many; an accuracy counts these twice.",
                       "Evaluate Subset(dataset, range(rank, len(dataset), world_size)), and add up hits and samples.")
    elif whole and alone and not twice and 0 < (missing := first["of"] - union) < len(passes):
        return Finding("missing_data", LOOK, first["where"],
                       f"The ranks evaluated {union:,} samples of {first['of']:,}.",
                       "What made the shards equal, such as DistributedSampler's drop_last, has left some out.",
                       "Evaluate Subset(dataset, range(rank, len(dataset), world_size)): shards may be unequal there.")
    return None


def ordered(passes):
    """The order of one rank's training passes."""
    trained = [one for one in passes if one["trained"] and one["order"] and one["whole"]]
    if len(trained) > 1 and trained[0]["shuffles"] and trained[0]["images"] > 5 and (
            trained[0]["order"] == trained[1]["order"]):  # five images may come in the same order by chance
        yield same_order(trained[0]["where"])


def same_order(where):
    return Finding("set_epoch", WRONG, where, "Two epochs had the same order, though the sampler shuffles.",
                   "Each batch has the same neighbours in every epoch: a shuffle that was made once.",
                   "Call sampler.set_epoch(epoch) at the beginning of each epoch.")


def shards(diaries, _):
    """DistributedSamplers that were read without a DataLoader."""
    if of(diaries[0], "pass"):
        return
    facts = of(diaries[0], "shard")
    again = [one for one in facts if one["shuffle"] and one["order"] == facts[0]["order"]]
    if len(again) > 1:
        yield same_order(again[1]["where"])
    for fact in facts:
        if fact["total"] > fact["images"] and not fact["shuffle"]:
            yield Finding("padded_evaluation", LOOK, fact["where"],
                          f"{fact['ranks']} ranks share {fact['images']:,} samples as if they were {fact['total']:,}.",
                          "DistributedSampler pads: what counts them all counts some twice.",
                          "For an evaluation: range(rank, len(dataset), world_size).")
            return


def metrics(diaries, _):
    """Each rank evaluates its part, and nobody adds the parts up, or what is added up is an average."""
    by_objects = any("object" in what or what.startswith(("gather", "reduce")) for what, _ in diaries[0]["kinds"])
    if not all((diary["ended"] or {}).get("how", "") in WELL for diary in diaries):
        return  # the collective may have been to come
    for together in (one for passes in by_loader(diaries) for one in zip(*passes, strict=False)):
        fact = together[0]
        if fact["trained"] or not fact["whole"] or not fact["indices"] or by_objects or (
                len({frozenset(one["indices"] or ()) for one in together}) == 1):  # all ranks evaluate everything
            continue
        until = next((one["number"] for one in of(diaries[0], "pass") if one["trained"] and one["number"] >
                      fact["number"]), math.inf)  # other evaluations may come in between
        after = [talk for talk in of(diaries[0], "talk") if fact["number"] <= talk["passes"] <= until]
        if not after:
            yield Finding("rank_0_loss", LOOK, fact["where"],
                          f"Each rank evaluated its own samples (rank 0: {fact['images']:,}); no collective followed.",
                          "A figure that is printed now is that of one rank, not of all.",
                          "Add up hits and samples over the ranks with all_reduce, then divide.")
            return
        counts = [one["images"] for one in together]
        if len(set(counts)) > 1 and len(after) == 1 and after[0]["fraction"]:
            yield Finding("average_of_averages", LOOK, after[0]["where"], "The ranks evaluated "
                          f"{', '.join(map(str, counts))} samples, and then one number was added up, which is not "
                          "whole: an average, it seems.", "The average of averages over unequal parts is not the "
                          "average over all.", "Add up hits and samples, then divide.")
            return


# ---------------------------------------------------------------------------------------------------- files, devices


def files(diaries, world_size):
    saved = [{(fact["host"], fact["path"]): fact for fact in of(diary, "saved")} for diary in diaries]
    for (_, path), fact in saved[0].items():
        writers = [diary["rank"] for diary, one in zip(diaries, saved, strict=True) if (fact["host"], path) in one]
        if len(writers) > 1:
            yield Finding("every_rank_writes", WRONG, fact["where"],
                          f"{listed(writers)} wrote the same file, {path.rpartition('/')[2]}.",
                          "They write over each other; a reader may find a torn file.",
                          "Let rank 0 write: if dist.get_rank() == 0.")
            break
    for diary in diaries:
        if fact := next((fact for fact in of(diary, "saved") if fact["prefixed"]), None):
            yield Finding("module_prefix", LOOK, fact["where"], f"A name in what was saved: `{fact['prefixed'][0]}`.",
                          "It loads into a wrapped model only.",
                          "Save model.module.state_dict() (for compiled models: model._orig_mod.state_dict()).")
            break


def devices(diaries, _):
    facts = first_of(diaries, "device")
    if facts and facts[0]["device"].startswith("cuda") and len(
            {(fact["gpu"], fact["host"]) for fact in facts}) < len(facts):
        yield Finding("all_on_gpu_0", WRONG, of(diaries[0], "wrapped")[0]["where"],
                      "On one host, several ranks hold their model on the same GPU: "
                      + ", ".join(fact["device"] for fact in facts) + ".",
                      "They share its memory and take turns.",
                      "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is made.")


def threads(diaries, _):
    facts = first_of(diaries, "threads") or []
    for _, group in groupby(sorted(facts, key=itemgetter("host")), key=itemgetter("host")):
        group = list(group)
        cores, busy = len(set().union(*(fact["cores"] for fact in group))), sum(fact["each"] for fact in group)
        if len(group) > 1 and busy > cores and max(fact["each"] for fact in group) > 1:
            yield Finding("threads", COSTLY, "", f"{len(group)} ranks compute with {group[0]['each']} threads each "
                          f"on {cores} cores.", "They take the cores from each other.",
                          "OMP_NUM_THREADS=cores/ranks, or torch.set_num_threads.")
            return


# What the message of an error that ended a rank says of the mistake: (pattern, name, what it means, repair).
ERRORS = [
    (r'Unexpected key\(s\) in state_dict: "module\.', "module_prefix", "The weights were saved from a wrapped model, "
     "and are loaded into a plain one.", "Save model.module.state_dict(), or load into the wrapped model."),
    (r'Unexpected key\(s\) in state_dict: "_orig_mod\.', "compiled_prefix", "The weights were saved from a compiled "
     "model, and are loaded into a plain one.", "Save model._orig_mod.state_dict(), or compile with model.compile()."),
    ("Modules with uninitialized parameters", "lazy_module", "A lazy layer has no weights before its first forward, so "
     "there is nothing to send.", "Call the model once, on all ranks, before DistributedDataParallel(model)."),
    ("modified by an inplace operation", "step_between", "Weights or buffers changed between a forward and its "
     "backward: by an optimizer's step, or by DDP, which sends buffers in each forward.",
     "backward() before anything changes what its forward used; broadcast_buffers=False if it was a buffer."),
    ("Weights only load failed", "weights_only", "torch.load reads tensors only, unless it is told otherwise.",
     "Save state_dicts and plain Python; weights_only=False only for files of your own."),
    ("Attempting to deserialize object on a CUDA device", "map_location", "The file remembers the GPU it came from.",
     'torch.load(file, map_location="cpu").'),
    ("mark a variable ready only once", "ready_twice", "A parameter was used in two backward passes of one forward, or "
     "twice under reentrant checkpointing.", "checkpoint(..., use_reentrant=False), or one backward for each forward."),
    ("(?i)EADDRINUSE|address already in use", "address_in_use", "Another program has the port, often an earlier run.",
     "torchrun --standalone, or another --master-port."),
]


def errors(diaries, _):
    """Errors whose message names the mistake; of any other the facts tell."""
    for diary in diaries:
        ended = diary["ended"] or {}
        for pattern, name, means, repair in ERRORS:
            if re.search(pattern, ended.get("error", "")):
                yield Finding(name, WRONG, ended["where"], f"rank {diary['rank']}: {ended['how']}"
                              f"{first_line(ended, ': ')[:200]}", means, repair)
                return


# A finding that only follows from another one is left out.
BECAUSE = {
    "drift": ("not_wrapped", "ddp_module", "other_weights", "optimizer_foreign"), "silent": ("stall",),
    "not_wrapped": ("no_group",), "other_weights": ("no_group",), "same_data": ("no_group",),
    "every_rank_writes": ("no_group",), "set_epoch": ("no_group",), "same_seed": ("no_group",),
    "clip_early": ("not_wrapped", "ddp_module", "drift", "other_weights"),
    "rank_0_loss": ("not_wrapped", "same_data"),
    "statistics": ("not_wrapped", "ddp_module", "drift", "other_weights"),
    "unused_parameter": ("optimizer_misses",),  # whose gradients stay: the optimizer does not empty them
    "wrong_traceback": tuple(name for _, name, _, _ in ERRORS),
}

CHECKS = [silent, errors, no_group, parameters, quiet, many_messages, shards, files, resumed, left_open]
COMPARING = [talked, stalled, wrong_traceback, not_wrapped, clipped, drawn, statistics, devices, threads]
OF_ALL = [data, metrics]  # what one rank's share of the data is, only all shares show


# ---------------------------------------------------------------------------------------------------- what is told


def facts(diaries, world_size):
    lines = [f"rank {diary['rank']}: {standing(diary)}." for diary in diaries
             if (diary["ended"] or {"how": "done"})["how"] not in WELL]
    first = diaries[0]
    batch = next((one["batch"] for one in of(first, "pass") if one["trained"] and one["batch"]), None)
    rates = next((one["rates"] for one in of(first, "optimizer") if one["rates"]), None)
    if batch and rates:
        lines.append(f"{first['steps']:,} updates, each of {world_size} x {batch} = {world_size * batch} samples, with "
                     f"a learning rate of {rates[0]:g}.")
    waited = []
    for diary in diaries:
        spent, whole = diary["seconds"], diary["seconds"]["all"]
        talking = sum(seconds for what, seconds in spent.items()
                      if what not in ("data", "backward", "tail", "all", "DDP", "spawn"))
        waited.append((spent.get("backward", 0) + talking) / whole)
        lines.append(f"rank {diary['rank']}: {whole:.1f} s, of which {spent.get('data', 0) / whole:.0%} waiting for "
                     f"data, {spent.get('backward', 0) / whole:.0%} in backward ({spent.get('tail', 0) / whole:.0%} "
                     f"after its last gradient), {talking / whole:.0%} in collectives.")
    if max(waited) - min(waited) > 0.1 and any(diary["steps"] > 10 for diary in diaries):
        lines.append(f"The others waited for rank {diaries[waited.index(min(waited))]['rank']}: of all ranks it spends "
                     f"the smallest share of its time in backward and collectives, {100 * min(waited):.0f} %.")
    return lines


def unjudged(diaries, world_size):
    first, lines = diaries[0], []
    if world_size == 1:
        lines.append("Only one rank ran: what differs between ranks could not be seen.")
    if not of(first, "group"):
        lines.append("It made no process group.")
    for fact in of(first, "group"):
        if fact["ranks"] != world_size:
            lines.append(f"Its process group at {fact['where']} has {fact['ranks']} of the {world_size} ranks.")
    if not of(first, "optimizer"):
        lines.append("No optimizer of torch.optim made a step: which parameters it holds was not looked at.")
    if not of(first, "weights"):
        lines.append("No model was trained: weights were not compared.")
    elif any(not fact["digest"] for fact in of(first, "weights")):
        lines.append("Some weights have no values of their own (sharded, lazy, meta): they were not compared.")
    for fact in of(first, "alone"):
        lines.append(f"The ranks' diaries could not be put together ({fact['error']}): each was judged alone.")
    for fact in of(first, "failed"):
        lines.append(f"The doctor's own look at `{fact['what']}` failed: {fact['error']}")
    passes = of(first, "pass")
    for line in sorted({one["where"] for one in passes if one["unseen"]}):
        lines.append(f"Which samples a sampler of your own draws could not be seen: {line}.")
    if not any(one["trained"] for one in passes):
        lines.append("No DataLoader was read in training: the ranks' data was not compared.")
    if sum(one["trained"] for one in passes) == 1:
        lines.append("It trained for one epoch: set_epoch could not be judged.")
    if not any(one["whole"] and not one["trained"] for one in passes):
        lines.append("It evaluated no DataLoader to its end.")
    return lines


def as_text(report):
    lines = [""]
    for one in report.findings:
        lines += [f"doctor: {one.level}: {one.where or '(no line)'}: {one.name}"]
        lines += textwrap.wrap(f"{one.seen} {one.means} Repair: {one.repair}", 110, initial_indent="    ",
                               subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    count = len(report.findings)
    lines.append(f"doctor: {'nothing found' if not count else '1 finding' if count == 1 else f'{count} findings'}.")
    lines += [f"    {line}" for line in report.facts]
    lines += ["doctor: not judged:"] * bool(report.unjudged) + [f"    {line}" for line in report.unjudged]
    return "\n".join(lines)


def as_json(report):
    return {"findings": [asdict(one) for one in report.findings], "facts": report.facts, "unjudged": report.unjudged}
