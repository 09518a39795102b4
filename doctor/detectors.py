"""Detectors of mistakes in the diaries of all ranks.

A detector is a pure function of facts, so it can be tried without a rank. It gets the diaries in the order of the
ranks, and yields findings. Each Finding's text stands above its detector.
"""

import math
import re
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

WRONG, COSTLY, LOOK = "wrong", "costly", "worth a look"
LEVELS = [WRONG, COSTLY, LOOK]
WELL = ("done", "exit status 0", "os._exit(0)")  # how a script may end
# The error of a rank that waited for another one
WAITED = "(?i)timed out|timeout|connection|gloo|nccl|socket|broken pipe"


@dataclass
class Finding:
    name: str  # an entry of TROUBLESHOOTING.md has the same, where there is one
    level: str
    seen: str  # what was observed; {fields} are filled by at()
    means: str
    repair: str
    where: str = ""  # my_train.py:42

    def at(self, where, **fields):
        """This finding at a line, with what was observed there."""
        return replace(self, where=where, seen=self.seen.format(**fields),
                       means=self.means.format(**fields))


def notes(diary, kind):
    """The facts of this kind that a rank noted."""
    return diary["facts"].get(kind, [])


def notes_of_all(diaries, kind):
    """[the facts of this kind of each rank, in the order in which it noted them]"""
    return [notes(diary, kind) for diary in diaries]


def error_of(diary):
    return (diary["ended"] or {}).get("error", "")


def ended_well(diary):
    return bool(diary["ended"]) and diary["ended"]["how"] in WELL


def standing(diary):
    """Where a rank is, or how it ended."""
    if ended := diary["ended"]:
        at = f" at {ended['where']}" if ended.get("where") else ""
        return f"its script ended ({ended['how']}{at}{first_line(error_of(diary))[:120]})"
    now = diary["position"]
    within = f"in `{now['in']}` " if now["in"] else ""
    return f"it is {within}at {now['where'] or 'no line of yours'}"


def first_line(error):
    """`: ` and the first line of an error's message; "" where there is none."""
    return f": {error.splitlines()[0]}" if error else ""


def listed(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def by_rank(diaries, values, between=", ", after=""):
    """`rank 0 7, rank 1 8`: a value of each rank."""
    return between.join(f"rank {diary['rank']}{after} {value}"
                        for diary, value in zip(diaries, values, strict=True))


def in_code(names):
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in names[:4]) + more


def all_same(lists):
    """Do all ranks hold the same numbers, but for the last digits?"""
    return all(math.isclose(a, b, rel_tol=1e-10) or math.isnan(a) and math.isnan(b)
               for numbers in lists for a, b in zip(lists[0], numbers, strict=True))


# ----------------------------------------------------------------------------------- hangs and ends

HANG_UNEVEN = Finding(
    "hang_uneven", WRONG,
    "The ranks have made different numbers of forwards through DDP: {forwards}. {each}.",
    "DDP talks in each step: a rank with more batches than the others waits for them in its last "
    "ones.",
    "Give all ranks equally many batches (DistributedSampler), or use "
    "torch.distributed.algorithms.join.Join.")
HANG_DIFFERENT = Finding(
    "hang_different", WRONG,
    "Collective number {number} of the run is not the same on all ranks. {each}.",
    "All ranks must make the same collective calls in the same order. Here one rank waits for a "
    "call that another never makes.",
    "Take the call out of the branch that only some ranks take, or let all take it.")
HANG_RANK_0 = replace(HANG_DIFFERENT, name="hang_rank_0")


def talked(diaries):
    """The first collective that is not the same on all ranks."""
    calls = [[diary["kinds"][number] for number in diary["order"]] for diary in diaries]
    stalled = any(notes_of_all(diaries, "stalled"))
    errors = list(filter(None, map(error_of, diaries)))
    first = differing(calls, 0)
    if first is None and stalled:  # the same names from other lines: shapes may differ
        first = differing(calls, slice(None))
    if first is None:
        return
    made = [mine[first] if len(mine) > first else None for mine in calls]
    if not (stalled or errors or all(made)):
        return
    if any(not re.search(WAITED, error) for error in errors):  # one failed by itself: waits follow
        return
    where = next(line for _, line in filter(None, made))
    each = by_rank(diaries, [f"`{call[0]}` at {call[1]}" if call else f"none: {standing(diary)}"
                             for diary, call in zip(diaries, made, strict=True)], "; ", ":")
    forwards = [diary["forwards"] for diary in diaries]
    if len(set(forwards)) > 1:
        yield HANG_UNEVEN.at(where, forwards=by_rank(diaries, forwards), each=each)
    else:
        mistake = HANG_DIFFERENT if all(made) else HANG_RANK_0
        yield mistake.at(where, number=first + 1, each=each)


def differing(calls, part):
    """The number of the first call whose `part` (its name, or name and line) differs, or None."""
    for number in range(max(map(len, calls))):
        if len({str(mine[number][part]) if number < len(mine) else None for mine in calls}) > 1:
            return number
    return None


WRONG_TRACEBACK = Finding(
    "wrong_traceback", WRONG, "{own} failed: {how}.",
    "If {others} reported a lost connection, that only follows from it.",
    "Mend this one. @record of torch.distributed.elastic lets torchrun print it, too.")


def wrong_traceback(diaries):
    """The rank that failed by itself, beside those that failed because it was gone."""
    failed = [diary for diary in diaries if (diary["ended"] or {}).get("status")]
    own = [diary for diary in failed if not re.search(WAITED, error_of(diary))]
    others = [diary for diary in diaries if diary not in own]
    if own and any(diary in failed or diary["position"]["in"] for diary in others):
        ended = own[0]["ended"]
        yield WRONG_TRACEBACK.at(
            ended.get("where", ""), own=listed([diary["rank"] for diary in own]).capitalize(),
            how=ended["how"] + first_line(error_of(own[0]))[:200],
            others=listed([diary["rank"] for diary in others]))


STALL = Finding(
    "stall", WRONG, "No rank has moved for {seconds:g} s. {each}.",
    "Ranks that stand in a collective, or in backward(), wait for a rank that is elsewhere.",
    "Look at the rank that does not wait. If it only needs longer, give --timeout more seconds.")


def stalled(diaries):
    """Ranks that stand still, while the calls so far are the same."""
    facts = list(chain(*notes_of_all(diaries, "stalled")))
    if facts and not list(talked(diaries)):
        waiting = [diary for diary in diaries if diary["position"]["in"]] or diaries
        yield STALL.at(waiting[0]["position"]["where"],
                       seconds=max(fact["seconds"] for fact in facts),
                       each=by_rank(diaries, map(standing, diaries), "; ", ":"))


NOT_DESTROYED = Finding(
    "not_destroyed", LOOK, "The script ended with its process group open.",
    "NCCL warns of it, and a rank may be aborted at the end.",
    "Call dist.destroy_process_group() last, on all ranks.")


def left_open(diaries):
    for fact in notes(diaries[0], "not_destroyed"):
        if ended_well(diaries[0]):
            yield NOT_DESTROYED.at(fact["where"])


SILENT = Finding(
    "silent", WRONG, "No word from {missing}: killed, or ended without a trace.",
    "The notes are lost, and the other ranks were judged without them.",
    "See what torchrun says of its exit code: -9 is often a lack of memory.")


def silent(diaries, world_size):
    if missing := sorted(set(range(world_size)) - {diary["rank"] for diary in diaries}):
        yield SILENT.at("", missing=listed(missing))


NO_GROUP = Finding(
    "no_group", WRONG, "{world_size} processes trained a model each, and made no process group.",
    "They know nothing of each other: each does the whole work.",
    "dist.init_process_group() first, then DistributedDataParallel and DistributedSampler.")


def no_group(diaries, world_size):
    """Ranks that a launcher started, and that never met."""
    trained = notes(diaries[0], "weights")
    if world_size > 1 and trained and not any(notes_of_all(diaries, "group")):
        yield NO_GROUP.at(trained[0]["where"], world_size=world_size)


# {pattern of the message of the error that ended a rank: its finding}
ERRORS = {
    r'Unexpected key\(s\) in state_dict: "module\.': Finding(
        "module_prefix", WRONG, "{error}",
        "The weights were saved from a wrapped model, and are loaded into a plain one.",
        "Save model.module.state_dict(), or load into the wrapped model."),
    r'Unexpected key\(s\) in state_dict: "_orig_mod\.': Finding(
        "compiled_prefix", WRONG, "{error}",
        "The weights were saved from a compiled model, and are loaded into a plain one.",
        "Save model._orig_mod.state_dict(), or compile with model.compile()."),
    "Modules with uninitialized parameters": Finding(
        "lazy_module", WRONG, "{error}",
        "A lazy layer has no weights before its first forward, so there is nothing to send.",
        "Call the model once, on all ranks, before DistributedDataParallel(model)."),
    "modified by an inplace operation": Finding(
        "step_between", WRONG, "{error}",
        "Weights or buffers changed between a forward and its backward: by an optimizer's step, "
        "or by DDP, which sends buffers in each forward.",
        "backward() before anything changes what its forward used; broadcast_buffers=False if it "
        "was a buffer."),
    "Weights only load failed": Finding(
        "weights_only", WRONG, "{error}",
        "torch.load reads tensors only, unless it is told otherwise.",
        "Save state_dicts and plain Python; weights_only=False only for files of your own."),
    "Attempting to deserialize object on a CUDA device": Finding(
        "map_location", WRONG, "{error}",
        "The file remembers the GPU it came from.",
        'torch.load(file, map_location="cpu").'),
    "mark a variable ready only once": Finding(
        "ready_twice", WRONG, "{error}",
        "A parameter was used in two backward passes of one forward, or twice under reentrant "
        "checkpointing.",
        "checkpoint(..., use_reentrant=False), or one backward for each forward."),
    "(?i)EADDRINUSE|address already in use": Finding(
        "address_in_use", WRONG, "{error}",
        "Another program has the port, often an earlier run.",
        "torchrun --standalone, or another --master-port."),
}


def errors(diaries):
    """Errors whose message names the mistake; of any other the facts tell."""
    for diary in diaries:
        for pattern, finding in ERRORS.items():
            if re.search(pattern, error_of(diary)):
                how = diary["ended"]["how"] + first_line(error_of(diary))[:200]
                yield finding.at(diary["ended"]["where"], error=f"rank {diary['rank']}: {how}")
                return


# ------------------------------------------------------------------------------------------- models

OTHER_WEIGHTS = Finding(
    "other_weights", WRONG, "Before the first step the ranks hold other weights (norms: {norms}).",
    "Each rank trains a model of its own.",
    "Wrap the model in DistributedDataParallel, which sends rank 0's weights to all, or broadcast "
    "them; seeds alone make no promise.")
NOT_WRAPPED = Finding(
    "not_wrapped", WRONG, "{differ}, and no model was wrapped in DistributedDataParallel.",
    "No gradient goes to the other ranks: each trains alone, on its own part of the data.",
    "model = DistributedDataParallel(model), before the first step.")
DRIFT = Finding(
    "drift", WRONG, "{differ}{before}.",
    "From then on they train different models.",
    "Look for weights or gradients that are changed on one rank only.")
DDP_MODULE = Finding(
    "ddp_module", WRONG,
    "The model inside DistributedDataParallel was called in training. {differ}.",
    "DDP exchanges gradients only for a forward that goes through it.",
    "Call the wrapped model; keep model.module for saving and evaluating.")
BESIDE_DDP = replace(
    DDP_MODULE, level=LOOK,
    seen="backward() followed a forward of the model inside DistributedDataParallel.")


def apart(diaries):
    """Weights that each rank changes for itself."""
    inner_calls = list(chain(*notes_of_all(diaries, "raw")))
    wrapped = any(notes_of_all(diaries, "wrapped"))
    averaged = any(fact["backwards"] and not fact["updated"] for fact in notes(diaries[0], "talk"))
    earlier = None  # after so many backward passes the ranks still held the same
    for after, facts in compared_weights(diaries):
        if all_same([fact["digest"] for fact in facts]):
            earlier = after
            continue
        norms = by_rank(diaries, [f"{fact['digest'][1]:.6f}" for fact in facts])
        passes = "1 backward pass" if after == 1 else f"{after} backward passes"
        differ = f"After {passes} the ranks hold other weights (norms: {norms})"
        where = facts[0]["where"] or notes(diaries[0], "weights")[0]["where"]
        if after == 0 and (wrapped or averaged):
            yield OTHER_WEIGHTS.at(where, norms=norms)
        elif not wrapped:
            yield NOT_WRAPPED.at(where, differ=differ)
        elif inner_calls:
            yield DDP_MODULE.at(inner_calls[0]["where"], differ=differ)
        else:
            before = "" if earlier is None else f"; after {earlier} they held the same"
            yield DRIFT.at(where, differ=differ, before=before)
        return
    if inner_calls:
        yield BESIDE_DDP.at(inner_calls[0]["where"])


def compared_weights(diaries):
    """(after how many backward passes, [each rank's look at the weights]) where all have looked."""
    trained = {fact["form"] for fact in notes(diaries[0], "trained")}
    # Under Join the last weights of a rank are those after the steps of other ranks.
    as_many = len({diary["backwards"] for diary in diaries}) == 1
    looks = [{(fact["after"], fact["form"]): fact for fact in facts
              if fact["digest"] and fact["form"] in trained and (as_many or not fact["last"])}
             for facts in notes_of_all(diaries, "weights")]
    for key in sorted(set.intersection(*map(set, looks))):
        yield key[0], [look[key] for look in looks]


FROZEN_LATE = Finding(
    "frozen_late", WRONG, "Frozen after the model was wrapped: {names}.",
    "DDP waits for the gradient of each parameter that was trainable when it was wrapped.",
    "Call requires_grad_(False) before DistributedDataParallel(model).")
UNUSED = Finding(
    "unused_parameter", WRONG,
    "After backward() these have no gradient while others have one: {names}.",
    "They play no part in the loss, so they are not trained. DDP waits for their gradients, and "
    "fails in the next forward unless find_unused_parameters=True.",
    "Use the parameters, or remove them. If only some steps use them: find_unused_parameters=True.")
NEVER_USED = Finding(
    "unused_parameter", LOOK,
    "In the steps that were looked at these never had a gradient: {names}.",
    "find_unused_parameters=True lets DDP go on; these are not trained all the same.",
    "Use the parameters, or freeze them before the model is wrapped.")
MISSES = Finding(
    "optimizer_misses", WRONG, "The optimizer does not hold {names}.",
    "These parameters get gradients and are never changed.",
    "Give the optimizer model.parameters(), or freeze what is not to be trained.")
FOREIGN = Finding(
    "optimizer_foreign", WRONG, "The optimizer holds no parameter of the model that was wrapped.",
    "It updates tensors that nobody trains: those of another model, or of this one before it "
    "moved.",
    "Make the optimizer after the model is on its device, from the parameters of the wrapped "
    "model.")


def parameters(diaries):
    """Parameters that get no gradient, or no update."""
    first = diaries[0]
    frozen = notes(first, "frozen")[:1]
    for fact in frozen:
        yield FROZEN_LATE.at(notes(first, "wrapped")[0]["where"], names=in_code(fact["names"]))
    for kind, finding in (("without", UNUSED), ("never", NEVER_USED), ("left", MISSES)):
        if kind != "without" or not frozen:
            for fact in notes(first, kind)[:1]:
                yield finding.at(fact["where"], names=in_code(fact["names"]))
    for fact in notes(first, "foreign")[:1]:
        yield FOREIGN.at(fact["where"])


LEFT_OUT = Finding(
    "optimizer_left_out", WRONG,
    "A checkpoint with an optimizer's state was loaded, and no optimizer has taken it.",
    "Momentum and averages begin anew: the resumed run is a different run.",
    "optimizer.load_state_dict(...), too.")


def resumed(diaries):
    first = diaries[0]
    for fact in notes(first, "kept_optimizer")[:1]:
        trained = first["backwards"] > fact["backwards"]  # and not only tested
        if trained and notes(first, "optimizer") and not notes(first, "loaded_optimizer"):
            yield LEFT_OUT.at(fact["where"])


NO_SYNC = Finding(
    "no_sync", COSTLY, "backward() ran within no_sync(), and the forward before it did not.",
    "DDP decides in the forward whether to exchange gradients: nothing was saved.",
    "Put the forward into the `with model.no_sync():` as well.")


def no_sync(diaries):
    late = [fact for fact in notes(diaries[0], "no_sync") if fact["backwards"] and not fact["forwards"]]
    for fact in late[:1]:
        yield NO_SYNC.at(fact["where"])


SLOWER = Finding(
    "slower", COSTLY,
    "After one backward() came {count} all-reduces, of {numbers:,.0f} numbers on average.",
    "Each costs the time of a message, however short it is, and all wait for each.",
    "Put the gradients into one flat tensor, or use DistributedDataParallel, which has buckets.")


def many_messages(diaries):
    talks = [fact for fact in notes(diaries[0], "talk")
             if fact["what"] == "all_reduce" and not fact["updated"] and fact["backwards"]]
    steps = [list(sent) for _, sent in groupby(talks, itemgetter("backwards"))]
    for sent in steps[1:4]:  # the first step may set things up
        mean = sum(fact["numbers"] for fact in sent) / len(sent)
        if len(sent) > 10 and mean < 10**5:
            yield SLOWER.at(sent[0]["where"], count=len(sent), numbers=mean)
            return


CLIP_SCALED = Finding(
    "clip_scaled", WRONG,
    "The gradients were clipped while they were multiplied by a GradScaler's scale.",
    "They are larger by that factor: all are cut to almost nothing.",
    "scaler.unscale_(optimizer) before clip_grad_norm_.")
CLIP_EARLY = Finding(
    "clip_early", WRONG,
    "When they were clipped, the gradients of the ranks had different norms: {norms}.",
    "They were clipped before the ranks averaged them: each rank by a factor of its own.",
    "Clip after backward() of a step that exchanges gradients.")


def clipped(diaries):
    scaled = [fact for fact in notes(diaries[0], "clip") if fact["scaled"]]
    if scaled:
        yield CLIP_SCALED.at(scaled[0]["where"])
        return
    for facts in zip(*notes_of_all(diaries, "clip"), strict=False):
        gradients = [fact["gradients"] for fact in facts]
        if len({(fact["step"], fact["form"]) for fact in facts}) > 1 or not all(gradients):
            return
        if not all_same(gradients):
            norms = ", ".join(f"{norm:.4f}" for _, norm in gradients)
            yield CLIP_EARLY.at(facts[0]["where"], norms=norms)
            return


STATISTICS = Finding(
    "statistics", LOOK,
    "The ranks evaluated with the same weights and different BatchNorm statistics: each with its "
    "own running mean and variance.",
    "The accuracy is that of several models.",
    "Send rank 0's buffers to all before evaluating, or evaluate through the wrapped model.")
BATCHNORM = Finding(
    "batchnorm", LOOK, "BatchNorm takes its mean and variance from the {batch} images of one rank.",
    "With so few images they are rough, and differ from those of one process with the whole batch.",
    "SyncBatchNorm.convert_sync_batchnorm(model), or a larger batch a rank.")


def batchnorm(diaries):
    for facts in zip(*notes_of_all(diaries, "buffers"), strict=False):
        digests = [fact["digest"] for fact in facts]
        if all(digests) and not all_same(digests):
            yield STATISTICS.at(facts[0]["where"])
            break
    batch = next((read["batch"] for read in notes(diaries[0], "pass") if read["trained"]), None)
    for fact in notes(diaries[0], "batchnorm")[:1]:
        if batch and batch < 16:
            yield BATCHNORM.at(fact["where"], batch=batch)


SAME_SEED = Finding(
    "same_seed", WRONG,
    "{what} drew random numbers, and all ranks drew the same ones (step {step}).",
    "Dropout or augmentation is then the same on all ranks, and less random than it seems.",
    "Once the model is built, seed each rank apart: torch.manual_seed(seed + rank).")


def drawn(diaries):
    """Random numbers that all ranks drew alike in the same step."""
    for what in ("the model's forward", "the data"):
        draws = [next((fact for fact in facts if fact["what"] == what), None)
                 for facts in notes_of_all(diaries, "drawn")]
        if all(draws) and len({fact["step"] for fact in draws}) == 1 and set.intersection(
                *(set(fact["states"].items()) for fact in draws)):
            yield SAME_SEED.at(draws[0]["where"], what=what[0].upper() + what[1:],
                               step=draws[0]["step"] + 1)
            return


# --------------------------------------------------------------------------------------------- data
# A fact "pass" is one pass of a rank over a DataLoader.


def by_loader(diaries):
    """Of each loader: the passes of each rank over it."""
    for loader in dict.fromkeys(read["loader"] for read in notes(diaries[0], "pass")):
        yield [[read for read in passes if read["loader"] == loader]
               for passes in notes_of_all(diaries, "pass")]


def shares(diaries):
    """What the ranks read of each loader, and which samples they have in common."""
    evaluated = {read["loader"] for read in notes(diaries[0], "pass") if not read["trained"]}
    for passes in by_loader(diaries):
        for together in zip(*passes, strict=False):
            finding = of_a_stream(together)
            if not finding and all(read["indices"] for read in together) and not own_sets(together):
                finding = (of_training(together) if together[0]["trained"] else
                           of_evaluation(together, alone=len(evaluated) == 1,
                                         gathered=gathered(diaries[0], together[0])))
            if finding:
                yield finding
                break


UNSHARDED = Finding(
    "iterable_unsharded", WRONG,
    "All ranks read the same batches from a stream: the first {count} are equal.",
    "Each sample is used once by every rank.",
    "In the IterableDataset, let each rank take its part: islice(stream, rank, None, world_size).")


def of_a_stream(passes):
    first = passes[0]
    if first["prints"] and (first["trained"] or first["before_training"]) and all(
            read["prints"] == first["prints"] for read in passes):
        return UNSHARDED.at(first["where"], count=len(first["prints"]))
    return None


def own_sets(passes):
    """Has each rank a data set of its own, and goes through all of it?"""
    return (all(read["whole"] and len(set(read["indices"])) == read["of"] for read in passes)
            and len({read["labels"] for read in passes}) > 1)


def counted(passes):
    """(samples that the ranks took, different ones among them, whether all took the same set)"""
    sets = [set(read["indices"]) for read in passes]
    return (sum(len(read["indices"]) for read in passes), len(set.union(*sets)),
            all(samples == sets[0] for samples in sets))


SAME_DATA = Finding(
    "same_data", WRONG, "In one pass {seen}.",
    "The ranks do the same work: more ranks make the training no faster.",
    "DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset)).")
UNSEEN = Finding(
    "missing_data", LOOK, "In one pass over {of:,} samples the ranks together used {different:,}.",
    "The rest is never seen in this epoch.",
    "Look at the sampler's shares.")


def of_training(passes):
    first, world_size = passes[0], len(passes)
    total, different, same_set = counted(passes)
    twice, padding = total - different, world_size - 1
    whole = all(read["whole"] for read in passes)
    same_order = all(read["indices"] == first["indices"] for read in passes)
    replacing = any(len(set(read["indices"])) < len(read["indices"]) for read in passes)
    if same_order or not replacing and twice > padding and (
            twice > world_size * padding or not whole):
        how = "in the same order" if same_order else "in another order each"
        seen = f"all ranks trained on the same {different:,} samples, {how}" if same_set else (
            f"the ranks trained on {total:,} samples, of which only {different:,} are different")
        return SAME_DATA.at(first["where"], seen=seen)
    batch = first["batch"] or 1
    if whole and not replacing and first["of"] - different > world_size * batch:
        return UNSEEN.at(first["where"], of=first["of"], different=different)
    return None


PADDED = Finding(
    "padded_evaluation", WRONG,
    "The ranks evaluated {total:,} samples, {different:,} of them different: {twice} counted "
    "twice.",
    "DistributedSampler pads, so that all ranks have as many; an accuracy counts these twice.",
    "Evaluate Subset(dataset, range(rank, len(dataset), world_size)), and add up hits and samples.")
UNTESTED = Finding(
    "missing_data", LOOK, "The ranks evaluated {different:,} samples of {of:,}.",
    "Equal shards left some samples out, as DistributedSampler's drop_last does.",
    "Evaluate Subset(dataset, range(rank, len(dataset), world_size)): shards may be unequal there.")


def of_evaluation(passes, alone, gathered):
    """`alone`: no other loader is evaluated, which may have the rest. `gathered`: the ranks sent
    something of each sample, and what was counted twice may have been cut off.
    """
    first = passes[0]
    total, different, same_set = counted(passes)
    twice, missing = total - different, first["of"] - different
    if not all(read["whole"] for read in passes):
        return None
    if twice and not gathered and not same_set:
        return PADDED.at(first["where"], total=total, different=different, twice=twice)
    if alone and not twice and 0 < missing < len(passes):
        return UNTESTED.at(first["where"], different=different, of=first["of"])
    return None


def gathered(diary, read):
    """Has a rank sent something of each sample of a pass to the others?"""
    sent = sum(talk["numbers"] for talk in notes(diary, "talk")
               if "gather" in talk["what"] and talk["passes"] in (read["number"], read["number"] + 1))
    return sent >= read["images"]


SET_EPOCH = Finding(
    "set_epoch", WRONG, "Two epochs had the same order, though the sampler shuffles.",
    "Each batch has the same neighbours in every epoch: a shuffle that was made once.",
    "Call sampler.set_epoch(epoch) at the beginning of each epoch.")


def epochs(diaries):
    for passes in by_loader(diaries[:1]):
        trained = [read for read in passes[0] if read["trained"] and read["order"] and read["whole"]]
        if len(trained) > 1 and trained[0]["order"] == trained[1]["order"] and (
                trained[0]["shuffles"] and trained[0]["images"] > 5):  # five may come so by chance
            yield SET_EPOCH.at(trained[0]["where"])


PADS = Finding(
    "padded_evaluation", LOOK, "{ranks} ranks share {images:,} samples as if they were {total:,}.",
    "DistributedSampler pads: a sum over all shards counts some samples twice.",
    "For an evaluation: range(rank, len(dataset), world_size).")


def samplers(diaries):
    """DistributedSamplers that were read without a DataLoader."""
    facts = notes(diaries[0], "shard") if not notes(diaries[0], "pass") else []
    again = [fact for fact in facts if fact["shuffle"] and fact["order"] == facts[0]["order"]]
    padded = [fact for fact in facts if fact["total"] > fact["images"] and not fact["shuffle"]]
    for fact in again[1:2]:
        yield SET_EPOCH.at(fact["where"])
    for fact in padded[:1]:
        yield PADS.at(fact["where"], **{name: fact[name] for name in ("ranks", "images", "total")})


ONE_RANKS = Finding(
    "rank_0_loss", LOOK,
    "Each rank evaluated its own samples (rank 0: {images:,}); no collective followed.",
    "A figure that is printed now is that of one rank, not of all.",
    "Add up hits and samples over the ranks with all_reduce, then divide.")
AVERAGES = Finding(
    "average_of_averages", LOOK,
    "The ranks evaluated {counts} samples, and then one number was added up, which is not whole: "
    "an average, it seems.",
    "The average of averages over unequal parts is not the average over all.",
    "Add up hits and samples, then divide.")


def metrics(diaries):
    """Each rank evaluates its part, and nobody adds the parts up, or an average is added up."""
    first = diaries[0]
    by_objects = any("object" in what or what.startswith(("gather", "reduce"))
                     for what, _ in first["kinds"])
    if by_objects or not all(map(ended_well, diaries)):  # the collective may have been to come
        return
    for together in chain(*(zip(*passes, strict=False) for passes in by_loader(diaries))):
        own = together[0]
        everything = len({frozenset(read["indices"] or ()) for read in together}) == 1  # on all ranks
        if own["trained"] or not own["whole"] or not own["indices"] or everything:
            continue
        later = [read["number"] for read in notes(first, "pass")
                 if read["trained"] and read["number"] > own["number"]]
        after = [talk for talk in notes(first, "talk")  # other evaluations may come in between
                 if own["number"] <= talk["passes"] <= min(later, default=math.inf)]
        counts = [read["images"] for read in together]
        if not after:
            yield ONE_RANKS.at(own["where"], images=own["images"])
            return
        if len(set(counts)) > 1 and len(after) == 1 and after[0]["fraction"]:
            yield AVERAGES.at(after[0]["where"], counts=", ".join(map(str, counts)))
            return


# ----------------------------------------------------------------------------------- files, devices

EVERY_RANK_WRITES = Finding(
    "every_rank_writes", WRONG, "{writers} wrote the same file, {file}.",
    "They write over each other; a reader may find a torn file.",
    "Let rank 0 write: if dist.get_rank() == 0.")
PREFIX = Finding(
    "module_prefix", LOOK, "A name in what was saved: `{name}`.",
    "It loads into a wrapped model only.",
    "Save model.module.state_dict() (for compiled models: model._orig_mod.state_dict()).")


def saved(diaries):
    facts = notes_of_all(diaries, "saved")
    for fact in facts[0]:
        place = fact["host"], fact["path"]
        writers = [diary["rank"] for diary, mine in zip(diaries, facts, strict=True)
                   if place in [(fact["host"], fact["path"]) for fact in mine]]
        if len(writers) > 1:
            yield EVERY_RANK_WRITES.at(fact["where"], writers=listed(writers),
                                       file=fact["path"].rpartition("/")[2])
            break
    for fact in [fact for fact in chain(*facts) if fact["prefixed"]][:1]:
        yield PREFIX.at(fact["where"], name=fact["prefixed"][0])


ONE_GPU = Finding(
    "all_on_gpu_0", WRONG,
    "On one host, several ranks hold their model on the same GPU: {devices}.",
    "They share its memory and take turns.",
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is made.")


def devices(diaries):
    facts = [fact for facts in notes_of_all(diaries, "device") for fact in facts[:1]]
    if len(facts) == len(diaries) and facts[0]["device"].startswith("cuda") and len(
            {(fact["gpu"], fact["host"]) for fact in facts}) < len(facts):
        yield ONE_GPU.at(notes(diaries[0], "wrapped")[0]["where"],
                         devices=", ".join(fact["device"] for fact in facts))


THREADS = Finding(
    "threads", COSTLY, "{ranks} ranks compute with {each} threads each on {cores} cores.",
    "They take the cores from each other.",
    "OMP_NUM_THREADS=cores/ranks, or torch.set_num_threads.")


def threads(diaries):
    host = itemgetter("host")
    facts = [fact for facts in notes_of_all(diaries, "threads") for fact in facts[:1]]
    for _, group in groupby(sorted(facts, key=host), host):
        group = list(group)
        cores = len(set().union(*(fact["cores"] for fact in group)))
        each = [fact["each"] for fact in group]
        if len(group) > 1 and sum(each) > cores and max(each) > 1:
            yield THREADS.at("", ranks=len(group), each=each[0], cores=cores)
            return


ONE_IS_ENOUGH = [errors, parameters, resumed, no_sync, many_messages, samplers, saved, left_open]
COMPARING = [talked, stalled, wrong_traceback, apart, clipped, drawn, batchnorm, devices, threads]
OF_ALL = [shares, epochs, metrics]  # one rank's share of the data means little: all are needed

# A finding that only follows from another one is left out.
ALL_APART = ("not_wrapped", "ddp_module", "drift", "other_weights")
BECAUSE = {
    "drift": ("not_wrapped", "ddp_module", "other_weights", "optimizer_foreign"),
    "silent": ("stall",),
    "clip_early": ALL_APART,
    "statistics": ALL_APART,
    "rank_0_loss": ("not_wrapped", "same_data"),
    "unused_parameter": ("optimizer_misses",),  # their gradients stay: the optimizer empties none
    "wrong_traceback": tuple(finding.name for finding in ERRORS.values()),
    **dict.fromkeys(["not_wrapped", "other_weights", "same_data", "every_rank_writes", "set_epoch",
                     "same_seed"], ("no_group",)),
}
