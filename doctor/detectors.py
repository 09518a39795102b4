"""Detectors of mistakes in the diaries of all ranks.

A detector is a pure function of facts, so it can be tried without a rank. It gets the diaries in the order of the
ranks, and yields findings. Each Finding's text stands above its detector.
"""

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat, zip_longest
from operator import itemgetter
from pathlib import Path

WRONG, COSTLY, LOOK = "wrong", "costly", "worth a look"
LEVELS = [WRONG, COSTLY, LOOK]
WELL = ("done", "exit status 0", "os._exit(0)")  # how a script may end
# The error of a rank that waited for another one
WAITED = "(?i)timed out|timeout|connection|gloo|nccl|socket|broken pipe"
# {finding: {"link": its entry of TROUBLESHOOTING.md, "look": how to see it without the doctor}}, made by gallery/
ENTRIES = json.loads(Path(__file__).with_name("entries.json").read_text(encoding="utf-8"))


@dataclass
class Finding:
    name: str
    level: str
    seen: str  # what was observed; {fields} are filled by at()
    means: str
    repair: str
    where: str = ""  # my_train.py:42
    entry: str = ""  # where to read more; "" where TROUBLESHOOTING.md has no entry

    def at(self, where, **fields):
        """This finding at a line, with what was observed there."""
        return replace(self, where=where, seen=self.seen.format(**fields), means=self.means.format(**fields),
                       entry=ENTRIES.get(self.name, {}).get("link", ""))


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


def over_all(diaries):
    """Do the ranks train one model together: by DDP over all of them, or by gradients averaged by hand?"""
    return by_hand(diaries[0]) or any(fact["ranks"] >= len(diaries) for fact in notes(diaries[0], "wrapped"))


def by_hand(diary):
    """Does a rank send gradients of the size of its model, between a backward and the update? (What is sent within
    backward may belong to activations, as in tensor parallelism: then the number must be the model's.)
    """
    model = next((fact["numbers"] for fact in notes(diary, "weights")), 0)
    talks = [fact for fact in notes(diary, "talk") if fact["backwards"] and not fact["updated"]]
    for _, step in groupby(talks, itemgetter("backwards")):
        sent = [0, 0]
        for fact in step:
            sent[fact["within"]] += fact["numbers"]
        if 0 < model <= sent[False] or 0 < model == sent[True]:
            return True
    return False


def all_same(lists):
    """Do all ranks hold the same numbers, but for the last digits?"""
    return all(math.isclose(a, b, rel_tol=1e-10) or math.isnan(a) and math.isnan(b)
               for numbers in lists for a, b in zip(lists[0], numbers, strict=True))


# ----------------------------------------------------------------------------------- hangs and ends

HANG_UNEVEN = Finding(
    "hang_uneven", WRONG, "The ranks have made different numbers of forwards through DDP: {forwards}. {each}.",
    "DDP talks in each step: a rank that has fewer batches, or leaves its loop or a batch out, is missed by the "
    "others.",
    "Give all ranks equally many batches (DistributedSampler), or use torch.distributed.algorithms.join.Join. Decide "
    "together to leave a loop: all-reduce the flag.")
HANG_DIFFERENT = Finding(
    "hang_different", WRONG, "Collective number {number} of the run is not the same on all ranks. {each}.",
    "All ranks must make the same collective calls in the same order. Here one rank waits for a call that another "
    "never makes.",
    "Take the call out of the branch that only some ranks take, or let all take it.")
HANG_RANK_0 = replace(HANG_DIFFERENT, name="hang_rank_0")


STOPPED_APART = Finding(
    "stopped_apart", WRONG,
    "{left} left the training after {forwards} forwards, at the end of an epoch. {waits} went on, and waited.",
    "Each rank decided by itself when to stop, by figures of its own, and the decisions differ.",
    "Let all ranks decide together: all-reduce the figure, or rank 0's decision, before it is compared.")
STOPPED_OR_BARRIER = replace(
    STOPPED_APART, seen="{left} made {forwards} forwards, to the end of an epoch, and stood in a barrier. {waits} went "
    "on, and waited, too.", means="Each rank decided by itself when to stop, or not all ranks reach this barrier.",
    repair="Let all ranks decide together when to stop, and take the barrier out of a branch that only some take.")
SKIPPED = Finding(
    "skipped_backward", WRONG, "Forwards through DDP that no backward followed: {skipped}.",
    "A rank that skips a backward, for a loss that is not finite, say, is one message behind. From then on the ranks "
    "average gradients of different steps.",
    "Skip together: all-reduce a flag before the step, or call backward on the loss times zero.")


def skipped(diaries):
    """A rank leaves out a backward that another one makes. `diaries` may be last words, which have no facts."""
    counts = [diary["skipped"]["times"] for diary in diaries]
    if len(set(counts)) > 1 and not all(map(ended_well, diaries)):
        most = max((diary["skipped"] for diary in diaries), key=itemgetter("times"))
        yield SKIPPED.at(most["where"], skipped=by_rank(diaries, counts, after=":"))


def stopped_apart(diaries):
    """A rank has left the loop at the end of a pass; another one waits for it."""
    forwards = [diary["forwards"] for diary in diaries]
    least = min(forwards)
    waits = [diary for diary in diaries if diary["forwards"] > least]
    left = [diary for diary in diaries if diary not in waits]
    in_barrier = [diary["position"]["where"] for diary in left if diary["position"]["in"] == "barrier"]
    over = all(diary["ended"] or diary["position"]["in"] == "barrier" for diary in left)
    if waits and over and (any(map(error_of, waits)) or any(notes_of_all(waits, "stalled"))):
        ends = [read["where"] for read in notes(waits[0], "pass")
                if read["trained"] and read["whole"] and read["forwards"] == least]
        for where in ends[:1]:
            finding, where = (STOPPED_OR_BARRIER, in_barrier[0]) if in_barrier else (STOPPED_APART, where)
            yield finding.at(where, forwards=least, waits=listed([diary["rank"] for diary in waits]).capitalize(),
                             left=listed([diary["rank"] for diary in left]).capitalize())


TESTS_THROUGH_DDP = Finding(
    "tests_through_ddp", WRONG, "Forwards through DDP in evaluation: {tested}. {each}.",
    "DDP may send buffers in each forward, in evaluation, too. The ranks that do not evaluate take no part.",
    "Evaluate model.module on rank 0, or evaluate on all ranks.")
OTHER_SIZES = Finding(
    "other_sizes", WRONG, "The tensors for `{what}` have other sizes: {sizes} numbers.",
    "All ranks must give a collective equally large tensors. gloo fails, or aborts a process; NCCL waits or mixes "
    "the numbers.",
    "Gather the sizes first, and pad to the largest; or use all_gather_object.")


def torn(diaries):
    """What the counts alone show of ranks that are out of step. `diaries` may be last words.

    A rank that was killed is behind in all counts, or in none. One that is behind in forwards, and ahead in calls, has
    taken another way.
    """
    def out_of_step(kind):
        return any(one[kind] < other[kind] and one["calls"] > other["calls"] for one in diaries for other in diaries)

    each = by_rank(diaries, map(standing, diaries), "; ", ":")
    sent = [diary["sent"] or [None, "", None] for diary in diaries]
    as_many = len({diary["calls"] for diary in diaries}) == 1
    tested, forwards = (by_rank(diaries, [diary[kind] for diary in diaries]) for kind in ("tested", "forwards"))
    if out_of_step("tested"):
        yield TESTS_THROUGH_DDP.at(standing_at(max(diaries, key=itemgetter("tested"))), each=each, tested=tested)
    elif out_of_step("forwards"):
        yield HANG_UNEVEN.at(standing_at(max(diaries, key=itemgetter("forwards"))), forwards=forwards, each=each)
    elif as_many and len({(what, line) for what, line, _ in sent}) > 1:
        yield HANG_DIFFERENT.at(sent[0][1], number=diaries[0]["calls"], each=by_rank(
            diaries, [f"`{what}` at {line}" for what, line, _ in sent], "; ", ":"))
    elif as_many and len({size for *_, size in sent}) > 1:
        yield OTHER_SIZES.at(sent[0][1], what=sent[0][0], sizes=by_rank(diaries, [size for *_, size in sent]))


def standing_at(diary):
    return (diary["ended"] or {}).get("where") or diary["position"]["where"]


def talked(diaries):
    """The first collective that is not the same on all ranks."""
    calls = [[diary["kinds"][number] for number in diary["order"]] for diary in diaries]
    stalled = any(notes_of_all(diaries, "stalled"))
    errors = list(filter(None, map(error_of, diaries)))
    if any(not re.search(WAITED, error) for error in errors):  # one failed by itself: waits follow
        return
    first = differing(calls, 0)
    if first is None and (stalled or errors):  # the same names from other lines: shapes may differ
        first = differing(calls, slice(None))
    if first is None:
        return
    made = [mine[first] if len(mine) > first else None for mine in calls]
    if not (stalled or errors or all(made)):
        return
    where = next(line for _, line in filter(None, made))
    if any(finding.name in ("tests_through_ddp", "other_sizes") for finding in torn(diaries)):
        yield from torn(diaries)
        return
    each = by_rank(diaries, [f"`{call[0]}` at {call[1]}" if call else f"none: {standing(diary)}"
                             for diary, call in zip(diaries, made, strict=True)], "; ", ":")
    forwards = [diary["forwards"] for diary in diaries]
    if len(set(forwards)) > 1 and min(forwards):
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


CRASHED = Finding(
    "crashed", WRONG, "{own} failed: {how}.",
    "What the report says below was seen up to there.", "Mend this first: what it printed above shows the way.")
WRONG_TRACEBACK = replace(
    CRASHED, name="wrong_traceback", means="If {others} reported a lost connection, that only follows from it.",
    repair="Mend this one. @record of torch.distributed.elastic lets torchrun print it, too.")


def crashed(diaries):
    """The ranks that failed by themselves, beside those that failed because they were gone; or all that failed."""
    failed = [diary for diary in diaries if (diary["ended"] or {}).get("status")]
    gone = any(fact["ranks"] > len(diaries) for fact in notes(diaries[0], "group"))  # a rank that left no notes
    own = [diary for diary in failed if not re.search(WAITED, error_of(diary))] or ([] if gone else failed)
    unused = any(UNFINISHED in error_of(diary) for diary in diaries)
    if unused and any(notes_of_all(diaries, "without") + notes_of_all(diaries, "frozen")):
        return  # parameters() tells of it
    others = [diary for diary in diaries if diary not in own]
    followed = any(diary in failed or diary["position"]["in"] for diary in others)
    if own:
        ended = own[0]["ended"]
        yield (WRONG_TRACEBACK if followed else CRASHED).at(
            ended.get("where", ""), how=(ended["how"] + first_line(error_of(own[0]))[:200]).rstrip("."),
            own="Every rank" if not others else listed([diary["rank"] for diary in own]).capitalize(),
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
    "NCCL warns of it, and a rank may be aborted at the end.", "Call dist.destroy_process_group() last, on all ranks.")


def left_open(diaries):
    for fact in notes(diaries[0], "not_destroyed"):
        if ended_well(diaries[0]):
            yield NOT_DESTROYED.at(fact["where"])


SILENT = Finding(
    "silent", WRONG, "{missing} left no notes: killed, or ended without a trace.",
    "The notes are lost, and the other ranks were judged without them.",
    "See what torchrun says of its exit code: -9 is often a lack of memory.")


def silent(diaries, world_size, last_words):
    if missing := sorted(set(range(world_size)) - {diary["rank"] for diary in diaries}):
        differ = list(skipped([*diaries, *last_words])) or list(torn([*diaries, *last_words]))
        yield from differ or [SILENT.at("", missing=listed(missing).capitalize())]


NO_GROUP = Finding(
    "no_group", WRONG, "{world_size} processes made the same training, step by step, and no process group together.",
    "They know nothing of each other: each does the whole work.",
    "dist.init_process_group() first, then DistributedDataParallel and DistributedSampler.")
NO_GROUP_EACH = replace(
    NO_GROUP, level=LOOK, seen="{world_size} processes trained a model each, and made no process group together.",
    means="Are these several trainings on purpose, as in a sweep? If not: they know nothing of each other.")


def no_group(diaries, world_size):
    """Ranks that a launcher started, and that never met."""
    trained = notes(diaries[0], "weights")
    if world_size > 1 and trained and all(fact["ranks"] == 1 for fact in chain(*notes_of_all(diaries, "group"))):
        compared = list(compared_weights(diaries)) if len(diaries) == world_size else []
        read = [[fact["labels"] for fact in facts if fact["trained"]] for facts in notes_of_all(diaries, "pass")]
        alike = compared and all_same([fact["digest"] for fact in compared[-1][1]]) and all(
            mine and mine == read[0] for mine in read)  # of other data, they have talked by another library
        yield (NO_GROUP if alike else NO_GROUP_EACH).at(trained[0]["where"], world_size=world_size)


# {pattern of the message of the error that ended a rank: its finding}
ERRORS = {pattern: Finding(name, WRONG, "{error}", means, repair) for pattern, name, means, repair in [
    ("Default process group has not been initialized", "group_missing",
     "The call needs the process group, and dist.init_process_group() comes later or never, or this rank has destroyed "
     "it.",
     "Call dist.init_process_group() first. In one process, leave DistributedSampler and DDP out."),
    ("initialize the default process group twice", "group_twice",
     "A library, or a cell that ran again, has made the process group already.",
     "Ask `if not dist.is_initialized():` first, or let only one place make it."),
    ("environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected", "not_launched",
     "The script was started without a launcher, which would have set the variable.", "Start it with torchrun."),
    ("'DistributedDataParallel' object has no attribute", "wrapper_attribute",
     "The attribute belongs to the model inside: the wrapper has `module`, and no copy of its attributes.",
     "model.module.NAME for values. Work that must be trained goes through model(...): put it into forward()."),
    ("appears not to match sizes|DDP expects same model across all ranks|same number of params", "other_shapes",
     "The ranks have built models of different shapes, from what each one sees of the data, say.",
     "Let all ranks build the same model: fix the number of classes, or let rank 0 broadcast it."),
    ("not needed when a module doesn't have any parameter", "nothing_to_train",
     "All parameters are frozen, so there is no gradient to average.",
     "Do not wrap this model; call it under torch.no_grad()."),
    ("Expected more than 1 value per channel", "batch_of_one",
     "BatchNorm takes a mean over the batch, and this one has a single image: the last one of a shard, mostly.",
     "DataLoader(..., drop_last=True), or another batch size."),
    ("sampler option is mutually exclusive with shuffle", "sampler_and_shuffle",
     "The sampler gives the order, and `shuffle=True` asks for another one.",
     "Leave shuffle out: DistributedSampler(dataset, shuffle=True) shuffles."),
    ("SyncBatchNorm expected input tensor to be on", "sync_batchnorm_cpu",
     "SyncBatchNorm works on GPUs only.", "Convert the model only where its device is a GPU."),
    ("mixed torch.Tensor and DTensor", "mixed_dtensor",
     "A sharded parameter met a plain tensor in one operation.",
     "Call the sharded module itself, which gathers its weights; or distribute the tensor, too."),
    (r'Unexpected key\(s\) in state_dict: "module\.', "module_prefix",
     "The weights were saved from a wrapped model, and are loaded into a plain one.",
     "Save model.module.state_dict(), or load into the wrapped model."),
    (r'Unexpected key\(s\) in state_dict: "_orig_mod\.', "compiled_prefix",
     "The weights were saved from a compiled model, and are loaded into a plain one.",
     "Save model._orig_mod.state_dict(), or compile with model.compile()."),
    ("Modules with uninitialized parameters", "lazy_module",
     "A lazy layer has no weights before its first forward, so there is nothing to send.",
     "Call the model once, on all ranks, before DistributedDataParallel(model)."),
    ("modified by an inplace operation", "step_between",
     "Weights or buffers changed between a forward and its backward: by an optimizer's step, or by DDP, which sends "
     "buffers in each forward.",
     "backward() before anything changes what its forward used; broadcast_buffers=False if it was a buffer."),
    ("Weights only load failed", "weights_only",
     "torch.load reads tensors only, unless it is told otherwise.",
     "Save state_dicts and plain Python; weights_only=False only for files of your own."),
    ("Attempting to deserialize object on a CUDA device", "map_location",
     "The file remembers the GPU it came from.", 'torch.load(file, map_location="cpu").'),
    ("mark a variable ready only once", "ready_twice",
     "A parameter was used in two backward passes of one forward, or twice under reentrant checkpointing.",
     "checkpoint(..., use_reentrant=False), or one backward for each forward."),
    (r"\[Errno 2\] No such file", "read_early",
     "Other ranks went on. Does one of them write the file? Then this rank did not wait for it.",
     "dist.barrier() after the rank that writes, before the others read."),
    (r"\[Errno 17\] File exists", "made_twice",
     "Another rank, or an earlier run, has made it: perhaps after this rank had looked and found nothing.",
     "os.makedirs(folder, exist_ok=True), or rank 0 alone and then dist.barrier()."),
    ("^No module named", "module_missing",
     "This Python has no such package: torchrun of another environment than the one it was installed in, say.",
     "`python -m torch.distributed.run` starts the ranks with this Python; `python -m pip` installs for it."),
    ("Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available", "no_gpu",
     "The script asks for a GPU, and this process sees none.",
     "Run it where a GPU is; or choose the device by torch.cuda.is_available(), and gloo where there is none."),
    ("(?i)EADDRINUSE|address already in use", "address_in_use",
     "Another program has the port, often an earlier run.", "torchrun --standalone, or another --master-port.")]}


def errors(diaries):
    """Errors whose message names the mistake; of any other the facts tell."""
    for diary in diaries:
        for pattern, finding in ERRORS.items():
            some = any(not re.search(pattern, error_of(other)) for other in diaries)
            if re.search(pattern, error_of(diary)) and (some or finding.name != "read_early"):
                how = diary["ended"]["how"] + first_line(error_of(diary))[:200]
                more = differing_shapes(diaries) if finding.name == "other_shapes" else ""
                yield finding.at(diary["ended"]["where"], error=f"Rank {diary['rank']}: {how.rstrip('.')}.{more}")
                return


def differing_shapes(diaries):
    """" `head.weight` is 3 × 16 on rank 0, ...": the first parameter whose shape is not the same on all ranks."""
    for wraps in zip(*notes_of_all(diaries, "wraps"), strict=False):
        shapes = [fact["shapes"] for fact in wraps]
        for name in dict.fromkeys(chain(*shapes)):
            of_each = [" × ".join(map(str, each[name])) if name in each else "missing" for each in shapes]
            if len(set(of_each)) > 1:
                return f" `{name}`: {by_rank(diaries, of_each)}."
    return ""


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
EACH_ITS_OWN = replace(
    NOT_WRAPPED, level=LOOK, means="Does each rank train a model of its own on purpose, as in a sweep or an ensemble? "
    "If not: no gradient goes to the other ranks.")
DRIFT = Finding(
    "drift", WRONG, "{differ}{before}.",
    "From then on they train different models.", "Look for weights or gradients that are changed on one rank only.")
UNSYNCHRONISED = replace(
    DRIFT, name="unsynchronised_step", seen="{differ}{before}. An optimizer made a step after a backward that did "
    "not synchronise.", means="Inside no_sync(), or with require_backward_grad_sync=False, each rank keeps its own "
    "gradients, and this step used them.",
    repair="The last backward before each step must synchronise: leave no_sync() before it.")
RESUMED_APART = replace(
    DRIFT, name="resumed_apart", seen="{differ}{before}. An optimizer's state was loaded on {some}, and not on the "
    "others.", means="DDP sends the weights of rank 0 to all when it is made, but no optimizer's state: the same "
    "gradients then make different updates.", repair="Load the optimizer's state on every rank.")
OTHER_SETTINGS = replace(
    DRIFT, name="other_settings", seen="{differ}{before}. Their optimizers' settings differ: {settings}.",
    means="The ranks get the same gradients, and make different updates of them.",
    repair="Give all ranks the same: step a scheduler on each rank, and all-reduce the figure that it decides by.")
LOADED_APART = replace(
    DRIFT, name="loaded_apart", seen="{differ}{before}. load_state_dict() did not give all ranks the same weights.",
    means="DDP sends weights only when it is made. What is loaded later stays on its rank.",
    repair="Load the same file on all ranks, or load before DistributedDataParallel(model).")
SKIPPED_UPDATE = replace(
    DRIFT, name="skipped_update", seen="{differ}{before}. They had made different numbers of updates: {updates}.",
    means="The gradients were the same, but not all ranks used them, for an overflow that only one saw, say.",
    repair="Decide together whether to make the update: all-reduce the flag.")
CHANGED_BESIDE = replace(
    DRIFT, seen="{differ}{before}. Between an update and the next forward something changed them.",
    means="No optimizer did: a rule, a reset, or an average that is written back, from what each rank sees.",
    repair="Average the change over the ranks with all_reduce, or make it on rank 0 and broadcast it.")
HOOKED = replace(
    DRIFT, level=LOOK, means="A communication hook is registered. Does it leave the ranks apart on purpose for some "
    "steps, as local SGD does?", repair="If not: the hook must give all ranks the same gradients.")
BESIDE = replace(
    DRIFT, level=LOOK, seen="{differ}{before}. This model is not in DistributedDataParallel, as another one is.",
    means="Does each rank train it for itself on purpose, as a probe, say?", repair="If not: wrap it, too.")
DDP_MODULE = Finding(
    "ddp_module", WRONG, "The model inside DistributedDataParallel was called in training. {differ}.",
    "DDP exchanges gradients only for a forward that goes through it.",
    "Call the wrapped model; keep model.module for saving and evaluating.")
BESIDE_DDP = replace(
    DDP_MODULE, level=LOOK,
    seen="backward() followed a forward of the model inside DistributedDataParallel.")


def apart(diaries):
    """Weights that each rank changes for itself."""
    first = diaries[0]
    inner_calls = list(chain(*notes_of_all(diaries, "raw")))
    wrapped = any(notes_of_all(diaries, "wrapped"))
    if wrapped and not over_all(diaries) or averages_weights(first):
        return  # in groups, or local SGD: the ranks may differ
    loaded = {diary["rank"]: fact["where"] for diary in diaries for fact in notes(diary, "loaded_optimizer")[:1]}
    unsynchronised = notes(first, "unsynchronised")
    earlier = None  # after so many backward passes the ranks still held the same
    looks = [(after, facts, all_same([fact["digest"] for fact in facts])) for after, facts in compared_weights(diaries)]
    for after, facts, same in looks:
        earlier = after if same else earlier
        model = itemgetter("form", "together")
        met = [alike for _, others, alike in looks if model(others[0]) == model(facts[0])][-1]
        if same or met:  # apart before DDP sent the weights, or within a step that moves them and back
            continue
        where = facts[0]["where"] or notes(first, "weights")[0]["where"]
        optimizer = next((fact["where"] for fact in notes(first, "optimizer")), where)
        if after == 0 and over_all(diaries):
            finding = OTHER_WEIGHTS
        elif not wrapped:
            shards = any(fact["ranks"] == len(diaries) for fact in notes(first, "shard"))
            certain = shards and not gives_its_own(diaries) and not notes(first, "in_pairs")
            finding = NOT_WRAPPED if certain else EACH_ITS_OWN
        elif inner_calls:
            finding, where = DDP_MODULE, inner_calls[0]["where"]
        elif not facts[0]["together"]:
            finding = BESIDE
        elif unsynchronised:
            finding, where = UNSYNCHRONISED, unsynchronised[0]["where"]
        elif 0 < len(loaded) < len(diaries):
            finding, where = RESUMED_APART, next(iter(loaded.values()))
        elif apart_by := loaded_apart(diaries):
            finding, where = LOADED_APART, apart_by
        elif len({tuple(fact["settings"]) for fact in facts}) > 1:
            finding, where = OTHER_SETTINGS, optimizer
        elif len({fact["updates"] for fact in facts}) > 1:
            finding, where = SKIPPED_UPDATE, optimizer
        elif any(fact["beside"] and fact["after"] <= after for fact in chain(*notes_of_all(diaries, "weights"))):
            finding = CHANGED_BESIDE
        else:
            finding = HOOKED if notes(first, "hooked") else DRIFT
        norms = by_rank(diaries, [f"{fact['digest'][1]:.6f}" for fact in facts])
        passes = "1 backward pass" if after == 1 else f"{after} backward passes"
        settings = [set(fact["settings"]) for fact in facts]
        yield finding.at(
            where, norms=norms, differ=f"After {passes} the ranks hold other weights (norms: {norms})",
            before="" if earlier is None else f"; after {earlier} they held the same", some=listed(loaded),
            settings=by_rank(diaries, [" ".join(sorted(each - set.intersection(*settings))) for each in settings]),
            updates=by_rank(diaries, [fact["updates"] for fact in facts]))
        return
    if inner_calls:
        yield BESIDE_DDP.at(inner_calls[0]["where"])


def gives_its_own(diaries):
    """Does each rank keep its own model, or its outputs, for the others: an ensemble, say?"""
    paths = [{fact["path"] for fact in facts} for facts in notes_of_all(diaries, "saved")]
    return any("gather" in what for what, _ in diaries[0]["kinds"]) or all(paths) and not set.intersection(*paths)


SCHEDULE = Finding(
    "schedule_length", LOOK, "A schedule over {length} steps made {made} in {steps} updates, on {ranks} ranks.",
    "It is as long as one process would train, or is stepped by each rank for all. Is it meant to end with the run?",
    "Count the updates of one rank, len(loader) * epochs with the sampler in the loader, and step once for each.")


def schedules(diaries):
    first, ranks = diaries[0], len(diaries)
    for fact in notes(first, "schedule"):
        length, made, steps = fact["length"], fact["made"], first["steps"]
        for_one, for_all = (math.isclose(length, updates, rel_tol=0.1) for updates in (steps * ranks, steps))
        if ended_well(first) and (made == steps and for_one or made == steps * ranks and for_all):
            yield SCHEDULE.at(**fact, ranks=ranks, steps=steps)
            return


SUMMED = Finding(
    "summed_gradients", LOOK, "Gradients were all-reduced, and the update used their sum over {ranks} ranks.",
    "A sum is {ranks} times the average, as a learning rate {ranks} times as high. Is the loss divided instead?",
    "Divide each gradient by the number of ranks after all_reduce, or use DistributedDataParallel.")


def loaded_apart(diaries):
    """The line where weights were loaded on some ranks only, or other weights; or None."""
    for facts in zip_longest(*notes_of_all(diaries, "loaded_weights")):
        if None in facts or not all_same([fact["digest"] for fact in facts if fact["digest"]]):
            return next(filter(None, facts))["where"]
    return None


UNFINISHED_SEND = Finding(
    "not_waited_for", LOOK, "`{what}` was called with async_op=True, and its end was never waited for.",
    "Until work.wait() has returned, the tensor may hold this rank's numbers, or half of the sum.",
    "work = dist.all_reduce(..., async_op=True), and work.wait() before the tensor is used.")


def averages_weights(diary):
    """Does a rank average weights after an update, not gradients before it?"""
    model = next((fact["numbers"] for fact in notes(diary, "weights")), 0)
    talks = [fact for fact in notes(diary, "talk") if fact["updated"] and "reduce" in fact["what"]]
    return any(0 < model <= sum(fact["numbers"] for fact in step)
               for _, step in groupby(talks, itemgetter("backwards")))


def compared_weights(diaries):
    """(after how many backward passes, [each rank's look at the weights]) where all have looked."""
    joined = min((fact["backwards"] for fact in chain(*notes_of_all(diaries, "joined"))), default=math.inf)
    trained = {fact["form"] for fact in notes(diaries[0], "trained")}
    # Under Join the last weights of a rank are those after the steps of other ranks.
    as_many = len({diary["backwards"] for diary in diaries}) == 1
    looks = [{(fact["after"], fact["form"], fact["together"]): fact for fact in facts
              if fact["digest"] and fact["form"] in trained and (as_many or not fact["last"])
              and (fact["wrapped"] or not notes(diaries[0], "wrapped"))}  # else before DDP sent the weights
             for facts in notes_of_all(diaries, "weights")]
    for key in sorted(set.intersection(*map(set, looks))):
        if key[0] <= joined:  # under Join the same number of backwards is not the same step
            yield key[0], [look[key] for look in looks]


FROZEN_LATE = Finding(
    "frozen_late", WRONG, "Frozen after the model was wrapped: {names}.",
    "DDP waits for the gradient of each parameter that was trainable when it was wrapped.",
    "Call requires_grad_(False) before DistributedDataParallel(model).")
UNFINISHED = "Expected to have finished reduction"  # DDP's error, which makes a fact of what may be meant
UNUSED = Finding(
    "unused_parameter", WRONG, "After backward() these have no gradient while others have one: {names}.",
    "They play no part in the loss, so they are not trained. DDP waits for their gradients, and fails in the next "
    "forward unless find_unused_parameters=True.",
    "Use the parameters, or remove them. If only some steps use them: find_unused_parameters=True.")
NEVER_USED = Finding(
    "unused_parameter", LOOK, "In the steps that were looked at these never had a gradient: {names}.",
    "find_unused_parameters=True lets DDP go on; these are not trained all the same.",
    "Use the parameters, or freeze them before the model is wrapped.")
MISSES = Finding(
    "optimizer_misses", LOOK, "The optimizer does not hold {names}.",
    "These parameters get gradients and are never changed. Is that meant?",
    "Give the optimizer model.parameters(), or freeze what is not to be trained.")
FOREIGN = Finding(
    "optimizer_foreign", WRONG, "The optimizer holds no parameter of the model that was wrapped.",
    "It updates tensors that nobody trains: those of another model, or of this one before it moved.",
    "Make the optimizer after the model is on its device, from the parameters of the wrapped model.")


def parameters(diaries):
    """Parameters that get no gradient, or no update."""
    first = next((diary for diary in diaries if UNFINISHED in error_of(diary)), diaries[0])
    frozen = notes(first, "frozen")[:1]
    level = WRONG if UNFINISHED in error_of(first) else LOOK
    for fact in frozen:
        yield replace(FROZEN_LATE, level=level).at(notes(first, "wrapped")[0]["where"], names=in_code(fact["names"]))
    for kind, finding in (("without", UNUSED), ("never", NEVER_USED), ("left", MISSES)):
        if kind != "without" or not frozen:
            for fact in notes(first, kind)[:1]:
                given = level if kind == "without" else finding.level
                yield replace(finding, level=given).at(fact["where"], names=in_code(fact["names"]))


LEFT_OUT = Finding(
    "optimizer_left_out", LOOK, "A checkpoint with an optimizer's state was loaded, and no optimizer has taken it.",
    "Does this run resume another one? Then momentum and averages begin anew. (Fine-tuning may leave them.)",
    "To resume: optimizer.load_state_dict(...), too.")


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
    "slower", COSTLY, "After one backward() came {count} all-reduces, of {numbers:,.0f} numbers on average.",
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
    "clip_scaled", WRONG, "The gradients were clipped while they were multiplied by a GradScaler's scale.",
    "They are larger by that factor: all are cut to almost nothing.",
    "scaler.unscale_(optimizer) before clip_grad_norm_.")
CLIP_EARLY = Finding(
    "clip_early", WRONG, "When they were clipped, the gradients of the ranks had different norms: {norms}.",
    "They were clipped before the ranks averaged them: each rank by a factor of its own.",
    "Clip after backward() of a step that exchanges gradients.")

CLIPPED_EACH = replace(
    CLIP_EARLY, level=LOOK, means="They were clipped before the ranks averaged them: each rank by a factor of its own. "
    "Is that meant, to bound what one rank can do?")


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
            if over_all(diaries) and not notes(diaries[0], "hooked"):  # else the ranks may differ
                yield (CLIPPED_EACH if by_hand(diaries[0]) else CLIP_EARLY).at(facts[0]["where"], norms=norms)
            return


TESTED_APART = Finding(
    "tested_apart", LOOK, "In step {step} the ranks evaluated models with other weights (norms: {norms}).",
    "A figure over all ranks is then that of several models. An average that rank 0 alone updates does this.",
    "Update the average on all ranks, or evaluate it on rank 0 alone.")
STATISTICS = Finding(
    "statistics", LOOK,
    "The ranks evaluated with the same weights and different buffers: BatchNorm's running mean and variance, say.",
    "The accuracy is that of several models.",
    "Send rank 0's buffers to all before evaluating, or evaluate through the wrapped model.")
BATCHNORM = Finding(
    "batchnorm", LOOK, "BatchNorm takes its mean and variance from the {batch} images of one rank.",
    "With so few images they are rough, and differ from those of one process with the whole batch.",
    "SyncBatchNorm.convert_sync_batchnorm(model), or a larger batch a rank.")


def batchnorm(diaries):
    for facts in zip(*notes_of_all(diaries, "tested"), strict=False):
        weights, buffers = ([fact[kind] for fact in facts] for kind in ("weights", "buffers"))
        if len({(fact["step"], fact["where"]) for fact in facts}) > 1 or not all(weights + buffers):
            break
        if not all_same(weights) and over_all(diaries):
            yield TESTED_APART.at(facts[0]["where"], step=facts[0]["step"],
                                  norms=by_rank(diaries, [f"{norm:.6f}" for _, norm in weights]))
            break
        if not all_same(buffers):
            yield STATISTICS.at(facts[0]["where"])
            break
    batch = next((read["batch"] for read in notes(diaries[0], "pass") if read["trained"]), None)
    for fact in notes(diaries[0], "batchnorm")[:1]:
        if batch and batch < 16:
            yield BATCHNORM.at(fact["where"], batch=batch)


SAME_SEED = Finding(
    "same_seed", LOOK, "{what} drew random numbers, and all ranks drew the same ones (step {step}).",
    "Dropout or augmentation is then the same on all ranks, and less random than it seems. Is that meant?",
    "Once the model is built, seed each rank apart: torch.manual_seed(seed + rank).")


def drawn(diaries):
    """Random numbers that all ranks drew alike in the same step."""
    for what in ("the model's forward", "the data", "the loop"):
        draws = [next((fact for fact in facts if fact["what"] == what), None)
                 for facts in notes_of_all(diaries, "drawn")]
        if all(draws) and len({fact["step"] for fact in draws}) == 1 and set.intersection(
                *(set(fact["states"].items()) for fact in draws)):
            yield SAME_SEED.at(draws[0]["where"], what=what[0].upper() + what[1:],
                               step=draws[0]["step"] + 1)
            return


def draws_apart(diaries):
    """Do the ranks draw other numbers between a batch and its forward?"""
    return any(len({str(fact["states"]) for fact in facts}) > 1
               for facts in zip(*notes_of_all(diaries, "drawn"), strict=False)
               if all(fact["what"] == "the loop" for fact in facts))


# --------------------------------------------------------------------------------------------- data
# A fact "pass" is one pass of a rank over a DataLoader.


def by_loader(diaries):
    """Of each loader: the passes of each rank over it."""
    for loader in dict.fromkeys(read["loader"] for read in notes(diaries[0], "pass")):
        yield [[read for read in passes if read["loader"] == loader]
               for passes in notes_of_all(diaries, "pass")]


CUT_OFF = Finding(
    "cut_off", LOOK, "`{what}` took a tensor that needs a gradient, between a forward and its backward.",
    "What it gives back has no gradient: autograd does not pass through it. Does it become a part of the loss?",
    "For a loss: torch.distributed.nn.functional, or put this rank's own tensor back into its place. For a figure: "
    "tensor.detach() first.")


WRAPPED_TWICE = Finding(
    "wrapped_twice", COSTLY, "A model that has DistributedDataParallel in it was wrapped in it again.",
    "The gradients of the inner part are averaged and sent twice.", "Wrap the model once.")
NOT_EMPTIED = Finding(
    "no_zero_grad", LOOK, "In the first steps each backward() added to the gradients of the step before.",
    "An update then uses the sum of the gradients of all steps so far. Is that meant?",
    "optimizer.zero_grad() in each step.")
LEFT_ON = Finding(
    "no_eval", LOOK,
    "In training mode, a model with dropout or BatchNorm ran over a whole DataLoader without a backward.",
    "Dropout then drops outputs, and BatchNorm takes the statistics of the batch, and learns them. Is that meant?",
    "model.eval() before an evaluation, and model.train() after it.")
AS_NOTED = {"cut_off": CUT_OFF, "foreign": FOREIGN, "left_on": LEFT_ON, "not_emptied": NOT_EMPTIED, "summed": SUMMED,
            "twice": WRAPPED_TWICE, "unfinished": UNFINISHED_SEND}


def as_noted(diaries):
    """Facts that are findings as they stand: the first of each kind."""
    for kind, finding in AS_NOTED.items():
        for fact in notes(diaries[0], kind)[:1]:
            yield finding.at(**fact)


OTHER_LABELS = Finding(
    "other_labels", WRONG, "Sample {index} has label {labels}: the ranks disagree on {many} of {common} samples.",
    "The ranks number their classes differently, by the order of a set or of a folder, say, and pull the model "
    "into different directions.",
    "Number the classes in one order on all ranks: sorted(...).")
OTHER_ORDER = replace(
    OTHER_LABELS, name="other_order", seen="Sample {index} is another one on each rank: on {many} of {common} samples "
    "the ranks disagree.", means="The ranks hold their samples in different orders, so their shares overlap, and some "
    "samples are in none.", repair="Sort the list of files on all ranks, or shuffle it with one seed.")


def other_labels(diaries):
    """One data set, whose ranks share its samples, and another label on another rank."""
    for passes in by_loader(diaries):
        if not all(read and read[0]["classes"] and read[0]["trained"] for read in passes):
            continue
        total, different, _ = counted([read[0] for read in passes])
        if total - different >= len(passes):  # not shared out: each rank may have a set of its own
            continue
        labels = list(map(by_index, passes))
        common = {index for one in range(len(labels)) for other in range(one)
                  for index in labels[one].keys() & labels[other].keys()}
        apart = [index for index in sorted(common)
                 if len({mine[index] for mine in labels if index in mine}) > 1]
        if apart:
            one, *others = [mine for mine in labels if apart[0] in mine]
            other = next(mine for mine in others if mine[apart[0]] != one[apart[0]])
            pairs = {(one[index], other[index]) for index in one.keys() & other.keys()}
            numbered = passes[0][0]["numbered"] and len(pairs) == len({number for number, _ in pairs})
            alike = set(one.values()) & set(other.values())
            if not alike or not numbered and not all(map(steady, passes)):
                continue  # labels of a rank's own samples, or drawn, or changed by an augmentation
            shown = ", ".join(f"{f'{mine[apart[0]]:g}' if numbered else 'another'} on rank {diary['rank']}"
                              for diary, mine in zip(diaries, labels, strict=True) if apart[0] in mine)
            yield (OTHER_LABELS if numbered else OTHER_ORDER).at(
                passes[0][0]["where"], index=apart[0], labels=shown, many=len(apart), common=len(common))
            return


def by_index(passes):
    """{index of a sample: its label} of a rank's passes over one loader, where labels are numbers."""
    return {index: label for read in passes if read["classes"]
            for index, label in zip(read["indices"], read["classes"], strict=False)}


def steady(passes):
    """Had each sample that a rank read twice the same label both times?"""
    twice = [dict(zip(read["indices"], read["classes"], strict=False)) for read in passes[:2] if read["classes"]]
    both = twice[0].keys() & twice[-1].keys() if len(twice) > 1 else ()
    return bool(both) and all(twice[0][index] == twice[1][index] for index in both)


OTHER_SPLIT = Finding(
    "split_on_each_rank", WRONG,
    "{count:,} samples were trained on one rank and evaluated on another, though on each rank the two are apart.",
    "Each rank has drawn a split of its own, so the evaluation sees what was trained.",
    "Draw the split with one seed on all ranks: random_split(..., generator=torch.Generator().manual_seed(0)).")


def other_split(diaries):
    if not over_all(diaries):
        return  # folds of a cross-validation, say
    used = []  # of each rank: {data set: (samples trained, samples evaluated)}
    for passes in notes_of_all(diaries, "pass"):
        sets = {}
        for read in passes:
            sets.setdefault(read["set"], ({}, {}))[not read["trained"]].update(
                zip(read["indices"] or (), read["classes"] or repeat(None), strict=False))
        used.append([both for both in sets.values() if all(both)])
    for together in zip(*used, strict=False):
        trained, evaluated = (set().union(*(both[kind].items() for both in together)) for kind in (0, 1))
        if trained & evaluated and not any(mine.keys() & tests.keys() for mine, tests in together):
            line = next(read["where"] for read in notes(diaries[0], "pass") if not read["trained"])
            yield OTHER_SPLIT.at(line, count=len(trained & evaluated))
            return


def shares(diaries):
    """What the ranks read of each loader, and which samples they have in common."""
    models = notes(diaries[0], "weights")
    unknown, augmented = not models or any(fact["sharded"] for fact in models), draws_apart(diaries)
    for passes in by_loader(diaries):
        for together in zip(*passes, strict=False):
            finding = of_a_stream(together)
            if not finding and all(read["indices"] for read in together) and not own_sets(together):
                others = tested(diaries, together)
                finding = (of_training(together, others, augmented) if together[0]["trained"] else
                           of_evaluation(together, len(others), gathered(diaries[0], together[0])
                                         or counts_once(diaries, together)))
            if finding and finding.name in ("same_data", "iterable_unsharded"):
                if together[0]["trained"] and together[0]["shown"] <= 0.6 * together[0]["images"]:
                    continue  # each rank takes its part of a batch that all have read, or trains something else
                if not over_all(diaries):  # tensor or pipeline parallelism, a sweep
                    finding = replace(finding, level=LOOK) if unknown else None
            if finding:
                yield finding
                break


def tested(diaries, together):
    """The samples that the ranks evaluated of the data set of these passes, in all loaders."""
    passes = [(own["set"], read) for own, mine in zip(together, notes_of_all(diaries, "pass"), strict=True)
              for read in mine]
    return set().union(*(read["indices"] or () for own, read in passes if read["set"] == own and not read["trained"]))


UNSHARDED = Finding(
    "iterable_unsharded", WRONG, "All ranks read the same batches from a stream: the first {count} are equal.",
    "Each sample is used once by every rank.",
    "In the IterableDataset, let each rank take its part: islice(stream, rank, None, world_size).")


def of_a_stream(passes):
    first = passes[0]
    if first["of"] is None and first["prints"] and (first["trained"] or first["before_training"]) and all(
            read["prints"] == first["prints"] for read in passes):
        return UNSHARDED.at(first["where"], count=len(first["prints"]))
    return None


def own_sets(passes):
    """Has each rank a data set of its own: other labels at the same places? Where labels are unknown: does it go
    through all of it (in training: no list of indices into one)?
    """
    first, *others = [by_index([read]) for read in passes]
    common = [(label, mine[index]) for mine in others for index, label in first.items() if index in mine]
    if common:
        return sum(a != b for a, b in common) > len(common) / 2
    return (all(read["whole"] and len(set(read["indices"])) == read["of"] for read in passes)
            and len({read["labels"] for read in passes}) > 1
            and all(max(read["indices"]) < read["of"] for read in passes if read["trained"]))


def counted(passes):
    """(samples that the ranks took, different ones among them, whether all took the same set)"""
    sets = [set(read["indices"]) for read in passes]
    return (sum(len(read["indices"]) for read in passes), len(set.union(*sets)),
            all(samples == sets[0] for samples in sets))


SAME_DATA = Finding(
    "same_data", WRONG, "In one pass {seen}.",
    "The ranks do the same work: more ranks make the training no faster.",
    "DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset)).")
SHARED_DATA = replace(
    SAME_DATA, level=LOOK, means="Is that meant, as in repeated augmentation? If not, the ranks do work twice. Ranks "
    "that shuffle a list, and take their shares of it, need one seed.")
UNSEEN = Finding(
    "missing_data", LOOK, "In one pass over {of:,} samples the ranks together used {different:,}.",
    "The rest is never seen in this epoch.", "Look at the sampler's shares.")


def of_training(passes, tested, augmented):
    """`tested`: samples of the data set that were evaluated: the other part of a split, or of folds. `augmented`: each
    rank drew numbers of its own between a batch and its forward.
    """
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
        same_values = all(read["prints"] == first["prints"] for read in passes)  # no augmentation of its own
        certain = same_order and same_values and not augmented
        return (SAME_DATA if certain else SHARED_DATA).at(first["where"], seen=seen)
    batch = first["batch"] or 1
    unseen = first["of"] - len(tested.union(*(read["indices"] for read in passes)))
    if whole and not replacing and unseen > world_size * batch:
        return UNSEEN.at(first["where"], of=first["of"], different=different)
    return None


PADDED = Finding(
    "padded_evaluation", WRONG, "The ranks evaluated {total:,} samples, {different:,} of them different: {twice} "
    "counted twice.",
    "DistributedSampler pads, so that all ranks have as many; an accuracy counts these twice.",
    "Evaluate Subset(dataset, range(rank, len(dataset), world_size)), and add up hits and samples.")
TWICE = replace(PADDED, level=LOOK, means="Samples count twice in a figure over all ranks. Is that meant?")
UNTESTED = Finding(
    "missing_data", LOOK, "The ranks evaluated {different:,} samples of {of:,}.",
    "Equal shards left some samples out, as DistributedSampler's drop_last does.",
    "Evaluate Subset(dataset, range(rank, len(dataset), world_size)): shards may be unequal there.")


def of_evaluation(passes, tested, gathered):
    """`tested`: how many samples of the data set were evaluated, in other passes, too. `gathered`: the ranks sent
    something of each sample, and what was counted twice may have been cut off.
    """
    first = passes[0]
    total, different, same_set = counted(passes)
    twice, missing = total - different, first["of"] - max(different, tested)
    if not all(read["whole"] for read in passes):
        return None
    if twice and not gathered and not same_set:
        certain = first["judged"] and first["padded"]
        return (PADDED if certain else TWICE).at(first["where"], total=total, different=different, twice=twice)
    if not twice and 0 < missing < len(passes):
        return UNTESTED.at(first["where"], different=different, of=first["of"])
    return None


def counts_once(diaries, passes):
    """Do the ranks add up a number that, over all of them, is that of the different samples?"""
    different = counted(passes)[1]
    return any(sum(values) == different for talks in zip(*notes_of_all(diaries, "talk"), strict=False)
               if all(talk["values"] for talk in talks)
               for values in zip(*(talk["values"] for talk in talks), strict=False))


def gathered(diary, read):
    """Has a rank sent something of each sample of a pass to the others?"""
    sent = sum(talk["numbers"] for talk in notes(diary, "talk")
               if ("gather" in talk["what"] or talk["updated"])  # an array, to which each rank adds its own part
               and talk["passes"] in (read["number"], read["number"] + 1))
    return sent >= read["images"]


SET_EPOCH = Finding(
    "set_epoch", WRONG, "Two epochs had the same order, though the sampler shuffles.",
    "Each batch has the same neighbours in every epoch: a shuffle that was made once.",
    "Call sampler.set_epoch(epoch) at the beginning of each epoch.")


def epochs(diaries):
    for passes in by_loader(diaries[:1]):
        trained = [read for read in passes[0] if read["trained"] and read["order"] and (
            read["whole"] or read["images"] == passes[0][0]["images"])]
        again = len(trained) > 1 and trained[0]["models"] == trained[1]["models"]  # else another training, of a sweep
        if again and len({read["order"] for read in trained}) == 1 and (  # one may repeat: a search for a rate, say
                trained[0]["shuffles"] and trained[0]["images"] > 5):  # five may come so by chance
            yield SET_EPOCH.at(trained[0]["where"])


STALE_WORKERS = Finding(
    "stale_workers", LOOK, "The data set was changed between two epochs, and its workers persist.",
    "They have copies from before the first epoch, which no later change reaches: set_epoch() of a data set, say.",
    "persistent_workers=False, or keep the epoch in a torch tensor in shared memory.")


def workers(diaries):
    for passes in by_loader(diaries[:1]):
        told = [read["told"] for read in passes[0] if read["told"]]
        if len(set(told)) > 1:
            yield STALE_WORKERS.at(passes[0][0]["where"])
            return


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
        yield PADS.at(**fact)


ONE_RANKS = Finding(
    "rank_0_loss", LOOK, "Each rank evaluated its own samples (rank 0: {images:,}); no collective followed.",
    "A figure that is printed now is that of one rank, not of all.",
    "Add up hits and samples over the ranks with all_reduce, then divide.")
AVERAGES = Finding(
    "average_of_averages", LOOK, "The ranks evaluated {counts} samples, and then one number was added up, which is not "
    "whole: an average, it seems.",
    "The average of averages over unequal parts is not the average over all.", "Add up hits and samples, then divide.")


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
        if own["trained"] or own["statistics"] or not own["whole"] or not own["indices"] or everything:
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
    "They write over each other; a reader may find a torn file.", "Let rank 0 write: if dist.get_rank() == 0.")
EVERY_RANK_OPENS = replace(
    EVERY_RANK_WRITES, level=LOOK, seen="{writers} opened the same file for writing, {file}.",
    means="Their lines are mixed, or one overwrites the other. Is that meant?")
PREFIX = Finding(
    "module_prefix", LOOK, "A name in what was saved: `{name}`.",
    "It loads into a wrapped model only.",
    "Save model.module.state_dict() (for compiled models: model._orig_mod.state_dict()).")


def one_file(finding, diaries, facts, *at):
    """The first file that several ranks have written, after as many steps if `at` is "step"; `facts`: of each rank,
    what it wrote.
    """
    place = itemgetter("host", "path", *at)
    places = [set(map(place, mine)) for mine in facts]
    for fact in facts[0]:
        writers = [diary["rank"] for diary, mine in zip(diaries, places, strict=True) if place(fact) in mine]
        if len(writers) > 1:
            yield finding.at(fact["where"], writers=listed(writers).capitalize(),
                             file=fact["path"].rpartition("/")[2])
            return


def saved(diaries):
    facts = notes_of_all(diaries, "saved")
    opened = [mine + notes(diary, "opened") for diary, mine in zip(diaries, facts, strict=True)]
    by_torch = list(one_file(EVERY_RANK_WRITES, diaries, facts, "step"))
    yield from by_torch or one_file(EVERY_RANK_OPENS, diaries, opened)
    for fact in [fact for fact in chain(*facts) if fact["prefixed"]][:1]:
        yield PREFIX.at(fact["where"], name=fact["prefixed"][0])


ONE_GPU = Finding(
    "all_on_gpu_0", WRONG, "On one host, several ranks hold their model on the same GPU: {devices}.",
    "They share its memory and take turns.",
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is made.")


def devices(diaries):
    facts = [fact for facts in notes_of_all(diaries, "device") for fact in facts[:1]]
    if len(facts) == len(diaries) and facts[0]["device"].startswith("cuda") and len(
            {(fact["gpu"], fact["host"]) for fact in facts}) < len(facts):
        level = WRONG if facts[0]["visible"] > 1 else LOOK  # one GPU for several ranks may be all there is
        yield replace(ONE_GPU, level=level).at(notes(diaries[0], "wrapped")[0]["where"],
                         devices=", ".join(fact["device"] for fact in facts))


THREADS = Finding(
    "threads", COSTLY, "{ranks} ranks compute with {each} threads each on {cores} cores.",
    "They take the cores from each other.", "OMP_NUM_THREADS=cores/ranks, or torch.set_num_threads.")


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


ONE_IS_ENOUGH = [errors, crashed, parameters, resumed, no_sync, many_messages, as_noted, samplers, workers, saved,
                 left_open]
COMPARING = [skipped, talked, stopped_apart, stalled, apart, schedules, clipped, drawn, batchnorm, devices, threads]
# One rank's share of the data means little: all are needed.
OF_ALL = [other_labels, other_split, shares, epochs, metrics]

# A finding that only follows from another one is left out.
ALL_APART = ("not_wrapped", "ddp_module", "drift", "other_weights", "loaded_apart", "skipped_update",
             "unsynchronised_step", "resumed_apart", "other_settings")
BECAUSE = {
    "crashed": (*(finding.name for finding in ERRORS.values()), "skipped_backward", "stopped_apart", "hang_uneven",
                "hang_different", "hang_rank_0", "stall", "other_sizes", "tests_through_ddp"),
    "same_data": ("split_on_each_rank", "no_group"),
    "padded_evaluation": ("split_on_each_rank",),
    **dict.fromkeys(["stall", "hang_uneven", "hang_different", "hang_rank_0"], ("skipped_backward", "stopped_apart")),
    "drift": ("not_wrapped", "ddp_module", "other_weights", "optimizer_foreign"),
    "silent": ("stall",),
    "clip_early": ALL_APART,
    "statistics": ALL_APART,
    "rank_0_loss": ("not_wrapped", "same_data", "no_group"),
    "tested_apart": ALL_APART,
    "unused_parameter": ("optimizer_misses",),  # their gradients stay: the optimizer empties none
    "wrong_traceback": tuple(finding.name for finding in ERRORS.values()),
    **dict.fromkeys(["not_wrapped", "other_weights", "every_rank_writes", "set_epoch",
                     "same_seed"], ("no_group",)),
    "warm_up": ("no_step", "crashed"),
}
